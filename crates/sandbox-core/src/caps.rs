//! What a backend says of itself.

use std::fmt;

use crate::spec::NetworkMode;

/// Whether something is there, and if not, why not and what would bring it.
///
/// ```
/// use sandbox_core::Support;
/// assert!(Support::Yes.is_yes());
/// assert_eq!(Support::no("no cgroup is delegated").reason(), Some("no cgroup is delegated"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Support {
    /// It is enforced or works.
    Yes,
    /// It is not there, for the given reason.
    No(String),
}

impl Support {
    /// Absent, with the reason and the remedy in one sentence.
    ///
    /// ```
    /// assert!(!sandbox_core::Support::no("because").is_yes());
    /// ```
    pub fn no(reason: impl Into<String>) -> Self {
        Support::No(reason.into())
    }

    /// Whether it is there.
    ///
    /// ```
    /// assert!(!sandbox_core::Support::default().is_yes());
    /// ```
    pub fn is_yes(&self) -> bool {
        matches!(self, Support::Yes)
    }

    /// Why it is absent.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Support::Yes.reason(), None);
    /// ```
    pub fn reason(&self) -> Option<&str> {
        match self {
            Support::Yes => None,
            Support::No(reason) => Some(reason),
        }
    }
}

impl Default for Support {
    fn default() -> Self {
        Support::No("the backend does not declare it".into())
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Yes => f.write_str("yes"),
            Support::No(reason) => write!(f, "no: {reason}"),
        }
    }
}

/// How a backend takes snapshots.
///
/// ```
/// assert_eq!(sandbox_core::SnapshotMode::default(), sandbox_core::SnapshotMode::None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SnapshotMode {
    /// Not at all: `snapshot` and `restore` answer `Unsupported`.
    #[default]
    None,
    /// From a copy-on-write layer: costs what changed.
    FsCow,
    /// As an archive of the whole tree.
    FsArchive,
}

/// The capabilities of a backend (rules CAPS-1 to CAPS-5). The default is "nothing".
///
/// ```
/// let caps = sandbox_core::Caps::default();
/// assert!(!caps.stdin.is_yes() && caps.networks.is_empty() && caps.shell.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Caps {
    /// How snapshots are taken.
    pub snapshot: SnapshotMode,
    /// Specs from a working directory on the backend's own base ([`Source::Workdir`](crate::Source::Workdir)).
    pub workdir: Support,
    /// Specs from an image.
    pub runtime_image: Support,
    /// Specs from a compose file.
    pub runtime_compose: Support,
    /// An absolute directory inside every sandbox where callers may stage files; they are invisible in the workdir.
    pub staging_root: Option<String>,
    /// The shell that runs [`Program::Shell`](crate::Program::Shell) in sandboxes on the backend's own base; `None` if there is
    /// none.
    pub shell: Option<String>,
    /// Piped standard input.
    pub stdin: Support,
    /// Pseudo-terminals.
    pub pty: Support,
    /// `dial` into the sandbox.
    pub dial: Support,
    /// A death by signal is told apart from an exit with 128 + n.
    pub exact_signals: Support,
    /// Users other than the default one.
    pub users: Support,
    /// Caller's directories bound into the sandbox.
    pub binds: Support,
    /// Sandboxes that outlive their owner, with `list` and `attach`.
    pub detached: Support,
    /// Which limits are enforced.
    pub limits: LimitCaps,
    /// Which network modes exist; a spec with another one is refused.
    pub networks: Vec<NetworkMode>,
    /// Which walls there are.
    pub isolation: Isolation,
}

/// Which limits a backend enforces.
///
/// ```
/// assert!(!sandbox_core::LimitCaps::default().memory.is_yes());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LimitCaps {
    /// Bytes of memory of all processes together.
    pub memory: Support,
    /// CPU time per wall time.
    pub cpu: Support,
    /// Number of processes and threads.
    pub pids: Support,
    /// Bytes written to the sandbox's own file system.
    pub disk: Support,
}

/// The walls around a sandbox (rules ISO-1 to ISO-4).
///
/// ```
/// assert!(!sandbox_core::Isolation::default().is_complete());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Isolation {
    /// A root file system of its own.
    pub root: Support,
    /// Processes of its own: it sees no others.
    pub processes: Support,
    /// A network of its own.
    pub network: Support,
    /// It runs as an ordinary user of the host.
    pub unprivileged_user: Support,
    /// A system call filter.
    pub syscall_filter: Support,
}

impl Isolation {
    /// Every wall with its name.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Isolation::default().walls().len(), 5);
    /// ```
    pub fn walls(&self) -> [(&'static str, &Support); 5] {
        [
            ("own root", &self.root),
            ("own processes", &self.processes),
            ("own network", &self.network),
            ("unprivileged user", &self.unprivileged_user),
            ("system call filter", &self.syscall_filter),
        ]
    }

    /// Whether all walls stand.
    ///
    /// ```
    /// assert!(!sandbox_core::Isolation::default().is_complete());
    /// ```
    pub fn is_complete(&self) -> bool {
        self.walls().iter().all(|(_, wall)| wall.is_yes())
    }
}

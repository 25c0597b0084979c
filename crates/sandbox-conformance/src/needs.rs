//! When a case applies: decided by what the backend declares, never by its name.

use std::fmt;

use sandbox_core::{Caps, NetworkMode, SnapshotMode, Support};

/// Something that a backend can declare in its [`Caps`].
///
/// ```
/// use sandbox_conformance::Ability;
/// assert!(!Ability::Pty.support(&sandbox_core::Caps::default()).is_yes());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "each is a field of Caps, documented there, under the same name"
)]
pub enum Ability {
    Snapshot,
    Workdir,
    Image,
    Compose,
    StagingRoot,
    Shell,
    Stdin,
    Pty,
    Dial,
    ExactSignals,
    Users,
    Binds,
    Detached,
    LimitMemory,
    LimitCpu,
    LimitPids,
    LimitDisk,
    NetworkNone,
    NetworkHost,
    NetworkBridge,
    OwnRoot,
    OwnProcesses,
    OwnNetwork,
    UnprivilegedUser,
    SyscallFilter,
}

impl Ability {
    /// Every ability.
    ///
    /// ```
    /// assert!(sandbox_conformance::Ability::ALL.len() >= 25);
    /// ```
    pub const ALL: &'static [Ability] = &[
        Ability::Snapshot,
        Ability::Workdir,
        Ability::Image,
        Ability::Compose,
        Ability::StagingRoot,
        Ability::Shell,
        Ability::Stdin,
        Ability::Pty,
        Ability::Dial,
        Ability::ExactSignals,
        Ability::Users,
        Ability::Binds,
        Ability::Detached,
        Ability::LimitMemory,
        Ability::LimitCpu,
        Ability::LimitPids,
        Ability::LimitDisk,
        Ability::NetworkNone,
        Ability::NetworkHost,
        Ability::NetworkBridge,
        Ability::OwnRoot,
        Ability::OwnProcesses,
        Ability::OwnNetwork,
        Ability::UnprivilegedUser,
        Ability::SyscallFilter,
    ];

    /// Whether `caps` declares it, and if not, why not.
    ///
    /// ```
    /// use sandbox_conformance::Ability;
    /// let mut caps = sandbox_core::Caps::default();
    /// caps.pty = sandbox_core::Support::Yes;
    /// assert!(Ability::Pty.support(&caps).is_yes());
    /// ```
    pub fn support(self, caps: &Caps) -> Support {
        let listed = |there: bool| {
            if there {
                Support::Yes
            } else {
                Support::default()
            }
        };
        match self {
            Ability::Snapshot => listed(caps.snapshot != SnapshotMode::None),
            Ability::Workdir => caps.workdir.clone(),
            Ability::Image => caps.runtime_image.clone(),
            Ability::Compose => caps.runtime_compose.clone(),
            Ability::StagingRoot => listed(caps.staging_root.is_some()),
            Ability::Shell => listed(caps.shell.is_some()),
            Ability::Stdin => caps.stdin.clone(),
            Ability::Pty => caps.pty.clone(),
            Ability::Dial => caps.dial.clone(),
            Ability::ExactSignals => caps.exact_signals.clone(),
            Ability::Users => caps.users.clone(),
            Ability::Binds => caps.binds.clone(),
            Ability::Detached => caps.detached.clone(),
            Ability::LimitMemory => caps.limits.memory.clone(),
            Ability::LimitCpu => caps.limits.cpu.clone(),
            Ability::LimitPids => caps.limits.pids.clone(),
            Ability::LimitDisk => caps.limits.disk.clone(),
            Ability::NetworkNone => listed(caps.networks.contains(&NetworkMode::None)),
            Ability::NetworkHost => listed(caps.networks.contains(&NetworkMode::Host)),
            Ability::NetworkBridge => listed(caps.networks.contains(&NetworkMode::Bridge)),
            Ability::OwnRoot => caps.isolation.root.clone(),
            Ability::OwnProcesses => caps.isolation.processes.clone(),
            Ability::OwnNetwork => caps.isolation.network.clone(),
            Ability::UnprivilegedUser => caps.isolation.unprivileged_user.clone(),
            Ability::SyscallFilter => caps.isolation.syscall_filter.clone(),
        }
    }
}

/// A condition of a case.
///
/// ```
/// use sandbox_conformance::{Ability, Need};
/// let caps = sandbox_core::Caps::default();
/// assert!(Need::Has(Ability::Dial).unmet(&caps).is_some());
/// assert!(Need::Lacks(Ability::Dial).unmet(&caps).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// The ability is declared: a positive case.
    Has(Ability),
    /// It is not: the negative twin.
    Lacks(Ability),
}

impl Need {
    /// Why the case does not apply to a backend with these capabilities; `None` if it does.
    ///
    /// ```
    /// use sandbox_conformance::{Ability, Need};
    /// let reason = Need::Has(Ability::Pty).unmet(&sandbox_core::Caps::default());
    /// assert_eq!(reason.unwrap(), "Pty: the backend does not declare it");
    /// ```
    pub fn unmet(self, caps: &Caps) -> Option<String> {
        match self {
            Need::Has(ability) => match ability.support(caps) {
                Support::Yes => None,
                absent => Some(format!(
                    "{ability:?}: {}",
                    absent.reason().unwrap_or("it is absent")
                )),
            },
            Need::Lacks(ability) => ability
                .support(caps)
                .is_yes()
                .then(|| format!("{ability:?} is declared, so that its positive cases run")),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Has(ability) => write!(f, "{ability:?}"),
            Need::Lacks(ability) => write!(f, "no {ability:?}"),
        }
    }
}

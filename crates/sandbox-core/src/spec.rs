//! What a sandbox is made from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cmd::User;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::name::{ContainerName, ImageRef};
use crate::path::SandboxPath;

/// Everything that `create` needs to know. One [`Source`], so that impossible mixtures cannot be written (rule LIFE-3).
///
/// ```
/// use sandbox_core::{ContainerName, ContainerSpec, NetworkMode};
/// let spec = ContainerSpec::workdir(ContainerName::new("lab")?);
/// assert_eq!(spec.network, NetworkMode::None);
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ContainerSpec {
    /// The name, unique among the backend's live sandboxes.
    pub name: ContainerName,
    /// What it starts from.
    pub source: Source,
    /// Variables of every command in it, over the base environment.
    pub env: Env,
    /// The directory in which commands start; the backend's or the image's own if absent.
    pub workdir: Option<SandboxPath>,
    /// The default user of commands and file calls; the image's user or root of the sandbox if absent.
    pub user: Option<User>,
    /// Bounds on what it may use.
    pub limits: Limits,
    /// What it can reach.
    pub network: NetworkMode,
    /// The caller's directories inside it.
    pub binds: Vec<Bind>,
    /// How long it lives.
    pub lifetime: Lifetime,
}

/// What a sandbox starts from.
///
/// ```
/// use sandbox_core::{RootFs, Source};
/// let source = Source::Workdir { root: RootFs::System };
/// assert!(matches!(source, Source::Workdir { .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// An empty workdir on a base of the backend.
    Workdir {
        /// The base.
        root: RootFs,
    },
    /// A container image.
    Image(ImageSource),
    /// One service of a compose project.
    Compose(ComposeSource),
}

/// The base of a [`Source::Workdir`].
///
/// ```
/// assert_eq!(sandbox_core::RootFs::default(), sandbox_core::RootFs::System);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RootFs {
    /// The backend's own base: on `native` the host's system directories, read-only.
    #[default]
    System,
    /// A directory of the host that holds a root file system; it is never changed (copy-on-write).
    Dir(PathBuf),
}

/// An image and how to boot it.
///
/// ```
/// use sandbox_core::{ImageRef, ImageSource, Pull};
/// let image = ImageSource::new(ImageRef::new("busybox")?);
/// assert_eq!(image.pull, Pull::Never);
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageSource {
    /// The image.
    pub image: ImageRef,
    /// Whether it may be pulled.
    pub pull: Pull,
    /// Replaces the image's command; the image's own if absent.
    pub command: Option<Vec<Vec<u8>>>,
    /// Whether an image whose command would end is kept alive for execs.
    pub keepalive: Keepalive,
}

impl ImageSource {
    /// A local image with its own command, kept alive.
    ///
    /// ```
    /// # use sandbox_core::{ImageRef, ImageSource, Keepalive};
    /// assert_eq!(ImageSource::new(ImageRef::new("a")?).keepalive, Keepalive::Auto);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn new(image: ImageRef) -> Self {
        ImageSource {
            image,
            pull: Pull::Never,
            command: None,
            keepalive: Keepalive::Auto,
        }
    }
}

/// Whether an image may be pulled.
///
/// ```
/// assert_ne!(sandbox_core::Pull::Never, sandbox_core::Pull::IfAbsent);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pull {
    /// Never: it must be local.
    Never,
    /// If it is not local; requires a digest-pinned reference (rule LIFE-10).
    IfAbsent,
}

/// Whether an image whose command would end serves execs all the same.
///
/// ```
/// assert_ne!(sandbox_core::Keepalive::Auto, sandbox_core::Keepalive::Off);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keepalive {
    /// The sandbox lives until `destroy`.
    Auto,
    /// The image's own command runs; when it ends, so does the sandbox.
    Off,
}

/// A compose file and the service that commands run in.
///
/// ```
/// let source = sandbox_core::ComposeSource::new("services: {app: {image: busybox}}", "app");
/// assert_eq!(source.service, "app");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComposeSource {
    /// The file's content.
    pub file: Vec<u8>,
    /// The service that commands and file calls go to.
    pub service: String,
    /// A directory whose files the compose file may read; none if absent.
    pub project_directory: Option<PathBuf>,
}

impl ComposeSource {
    /// A compose file that may read no other file.
    ///
    /// ```
    /// assert!(sandbox_core::ComposeSource::new("", "app").project_directory.is_none());
    /// ```
    pub fn new(file: impl Into<Vec<u8>>, service: impl Into<String>) -> Self {
        ComposeSource {
            file: file.into(),
            service: service.into(),
            project_directory: None,
        }
    }
}

impl fmt::Debug for ComposeSource {
    // A compose file may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComposeSource")
            .field("file", &format_args!("<{} bytes>", self.file.len()))
            .field("service", &self.service)
            .field("project_directory", &self.project_directory)
            .finish()
    }
}

/// Bounds on what a sandbox may use. What a backend cannot enforce it refuses (rule CAPS-5).
///
/// ```
/// let limits = sandbox_core::Limits { memory: Some(512 << 20), ..Default::default() };
/// assert!(limits.check().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Bytes of memory of all its processes together, swap excluded.
    pub memory: Option<u64>,
    /// CPUs: 1.5 is one and a half cores' worth of time.
    pub cpus: Option<f64>,
    /// Processes and threads at once.
    pub pids: Option<u64>,
    /// Bytes that it may write to its own file system.
    pub disk: Option<u64>,
}

impl Limits {
    /// Checks that each limit can be meant.
    ///
    /// # Errors
    /// `InvalidSpec` for zero, negative or absurd values.
    ///
    /// ```
    /// use sandbox_core::Limits;
    /// assert!(Limits { cpus: Some(f64::NAN), ..Default::default() }.check().is_err());
    /// assert!(Limits { memory: Some(1024), ..Default::default() }.check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        const MIN_BYTES: u64 = 1 << 20;
        for (field, value) in [("limits.memory", self.memory), ("limits.disk", self.disk)] {
            if value.is_some_and(|bytes| !(MIN_BYTES..=1 << 60).contains(&bytes)) {
                return Err(Error::invalid_spec(
                    field,
                    "must be between 1 MiB and 1 EiB",
                ));
            }
        }
        if self
            .pids
            .is_some_and(|pids| !(1..=4_194_304).contains(&pids))
        {
            return Err(Error::invalid_spec(
                "limits.pids",
                "must be between 1 and 4194304",
            ));
        }
        if self
            .cpus
            .is_some_and(|cpus| !(0.01..=100_000.0).contains(&cpus))
        {
            return Err(Error::invalid_spec(
                "limits.cpus",
                "must be between 0.01 and 100000",
            ));
        }
        Ok(())
    }
}

/// What a sandbox can reach.
///
/// ```
/// assert_eq!(sandbox_core::NetworkMode::default(), sandbox_core::NetworkMode::None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum NetworkMode {
    /// Only its own loopback.
    #[default]
    None,
    /// The host's network, unfiltered.
    Host,
    /// A network of the engine's with access outwards.
    Bridge,
    /// A network of the engine's by name.
    Named(String),
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetworkMode::None => "none",
            NetworkMode::Host => "host",
            NetworkMode::Bridge => "bridge",
            NetworkMode::Named(name) => name,
        })
    }
}

/// A directory or file of the host inside a sandbox.
///
/// ```
/// use sandbox_core::{Bind, SandboxPath};
/// let bind = Bind::read_only("/srv/data", SandboxPath::new("/data")?);
/// assert!(!bind.writable);
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bind {
    /// The absolute path on the host.
    pub source: PathBuf,
    /// The absolute path in the sandbox; made if absent.
    pub target: SandboxPath,
    /// Whether the sandbox may change it.
    pub writable: bool,
}

impl Bind {
    /// Bound so that the sandbox can only read it.
    ///
    /// ```
    /// # use sandbox_core::{Bind, SandboxPath};
    /// assert!(!Bind::read_only("/a", SandboxPath::new("/b")?).writable);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn read_only(source: impl Into<PathBuf>, target: SandboxPath) -> Self {
        Bind {
            source: source.into(),
            target,
            writable: false,
        }
    }

    /// Bound so that the sandbox changes the host's files.
    ///
    /// ```
    /// # use sandbox_core::{Bind, SandboxPath};
    /// assert!(Bind::writable("/a", SandboxPath::new("/b")?).writable);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn writable(source: impl Into<PathBuf>, target: SandboxPath) -> Self {
        Bind {
            source: source.into(),
            target,
            writable: true,
        }
    }
}

/// How long a sandbox lives (rule LIFE-7).
///
/// ```
/// assert_eq!(sandbox_core::Lifetime::default(), sandbox_core::Lifetime::Owned);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Lifetime {
    /// Until `destroy`, or until the owning process ends, however it ends.
    #[default]
    Owned,
    /// Until `destroy` or the time to live has passed, whatever happens to the owner.
    Detached {
        /// Counted from `create`.
        ttl: Duration,
    },
}

impl ContainerSpec {
    /// An empty workdir on the backend's own base, without network.
    ///
    /// ```
    /// # use sandbox_core::{ContainerName, ContainerSpec};
    /// let spec = ContainerSpec::workdir(ContainerName::new("a")?);
    /// assert!(spec.check().is_ok());
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn workdir(name: ContainerName) -> Self {
        ContainerSpec::new(
            name,
            Source::Workdir {
                root: RootFs::System,
            },
        )
    }

    /// A sandbox from any source, without network, owned.
    ///
    /// ```
    /// # use sandbox_core::*;
    /// let source = Source::Workdir { root: RootFs::Dir("/srv/rootfs".into()) };
    /// let spec = ContainerSpec::new(ContainerName::new("a")?, source);
    /// # assert!(spec.check().is_ok());
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn new(name: ContainerName, source: Source) -> Self {
        ContainerSpec {
            name,
            source,
            env: Env::new(),
            workdir: None,
            user: None,
            limits: Limits::default(),
            network: NetworkMode::None,
            binds: Vec::new(),
            lifetime: Lifetime::Owned,
        }
    }

    /// Checks everything that can be checked without a backend. [`Checked`](crate::Checked) calls it before any side effect.
    ///
    /// # Errors
    /// `InvalidSpec` that names the field.
    ///
    /// ```
    /// # use sandbox_core::*;
    /// let mut spec = ContainerSpec::workdir(ContainerName::new("a")?);
    /// spec.binds.push(Bind::read_only("relative", SandboxPath::new("/x")?));
    /// assert_eq!(spec.check().unwrap_err().kind(), ErrorKind::InvalidSpec);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn check(&self) -> Result<()> {
        self.env.check()?;
        self.limits.check()?;
        if self.workdir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return Err(Error::invalid_spec(
                "workdir",
                "must be absolute inside the sandbox",
            ));
        }
        for bind in &self.binds {
            if !bind.source.is_absolute() {
                return Err(Error::invalid_spec(
                    "binds",
                    format!("the host path {:?} must be absolute", bind.source),
                ));
            }
            let target = bind.target.as_bytes();
            if !bind.target.is_absolute()
                || target.iter().all(|b| *b == b'/')
                || target.split(|b| *b == b'/').any(|part| part == b"..")
            {
                return Err(Error::invalid_spec(
                    "binds",
                    format!(
                        "the target {:?} must be absolute, not the root, and without '..'",
                        bind.target
                    ),
                ));
            }
        }
        if let Lifetime::Detached { ttl } = self.lifetime
            && ttl.is_zero()
        {
            return Err(Error::invalid_spec(
                "lifetime",
                "the time to live must be above zero",
            ));
        }
        match &self.source {
            Source::Workdir {
                root: RootFs::Dir(dir),
            } if !dir.is_absolute() => Err(Error::invalid_spec(
                "source",
                format!("the root directory {dir:?} must be absolute"),
            )),
            Source::Image(image) if image.pull == Pull::IfAbsent && !image.image.is_pinned() => {
                Err(Error::invalid_spec(
                    "image",
                    format!(
                        "{} may only be pulled if it is digest-pinned: name@sha256:<64 hexadecimal digits>",
                        image.image
                    ),
                ))
            }
            Source::Image(image) if image.command.as_ref().is_some_and(|argv| argv.is_empty()) => {
                Err(Error::invalid_spec(
                    "command",
                    "must not be an empty list; leave it out",
                ))
            }
            Source::Compose(compose) if compose.file.iter().all(u8::is_ascii_whitespace) => {
                Err(Error::invalid_spec("compose", "the file is empty"))
            }
            Source::Compose(compose) if compose.service.is_empty() => Err(Error::invalid_spec(
                "service",
                "a compose sandbox needs the service that commands run in",
            )),
            _ => Ok(()),
        }
    }
}

//! The backend itself.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};
use sandbox_core::tree::TreeLimits;
use sandbox_core::{
    Backend, ByteStream, Caps, CapturedFile, Cmd, ContainerName, ContainerSpec, DirEntry,
    DuplexStream, Env, Error, Execution, FileStat, Handle, InputFile, Lifetime, NetworkMode,
    Result, RootFs, SandboxId, SandboxPath, SnapshotMode, SnapshotRef, Source, Support, User,
};
use sandbox_guest::setup::{Base, Fault, Ids, Mount, Rlimit, Setup, Upper};
use sandbox_guest::{ExecContext, GuestClient};

use crate::builder::{Builder, choose_ids};
use crate::cgroup::{Cgroups, Controller};
use crate::detached::{self, Found, Record};
use crate::executable::Executable;
use crate::janitor::Janitor;
use crate::launch::{Failure, Launcher};
use crate::place::Place;
use crate::process::Process;
use crate::state::{Session, State, make_directory, prepare};
use crate::{known, random_hex, remedy, seccomp, skeleton, spare};

const WORKDIR: &[u8] = b"/work";
/// Enough for browsers and databases, not enough to fill a machine.
const SHARED_MEMORY: u64 = 256 << 20;
/// How much of files `capture_files` takes into memory if nothing else is said.
const MAX_CAPTURE: u64 = 256 << 20;
/// How much memory the throw-away sandbox of a probe may take.
const PROBE_MEMORY: u64 = 1 << 20;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Sandboxes from this machine's own kernel: namespaces, overlayfs, seccomp, Landlock, control groups.
///
/// Made by [`Native::builder`]. Dropping it ends its `Owned` sandboxes and removes them; so does the end of the process, however
/// it ends.
///
/// ```
/// use sandbox_core::{Backend, Cmd, ContainerName, ContainerSpec};
/// use sandbox_native::Native;
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let directory = tempfile::tempdir()?;
/// let native = Native::builder().state_dir(directory.path().join("state")).build().await?;
/// if native.capabilities().isolation.is_complete() {
///     let handle = native.create(ContainerSpec::workdir(ContainerName::new("lab")?)).await?;
///     let result = native.exec(&handle, Cmd::argv(["hostname"])).await?.wait().await;
///     assert_eq!(&result.stdout[..], b"sandbox\n");
///     native.destroy(&handle).await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Native {
    caps: Caps,
    shared: Arc<Shared>,
}

/// What all calls share. The order of the fields is the order in which it is taken down.
#[derive(Debug)]
struct Shared {
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    launcher: Launcher,
    janitor: Option<Janitor>,
    cgroups: Cgroups,
    session: Session,
    directory: OwnedFd,
    state: State,
    skeleton: spare::Base,
    ids: Ids,
    frames: bool,
    max_capture: u64,
    unsandboxed: bool,
    /// Where the upper layer goes: memory, if the state directory cannot hold one.
    in_memory: bool,
    fault: Option<Fault>,
}

/// One live sandbox.
struct Live {
    handle: Handle,
    client: GuestClient,
    env: Env,
    shell: &'static str,
    oom_kills: Option<Arc<dyn Fn() -> Option<u64> + Send + Sync>>,
    detached: bool,
    /// Somebody is destroying it: for all others it is gone.
    ending: AtomicBool,
    place: Mutex<Place>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

/// What the throw-away sandboxes showed.
pub(crate) struct Probe {
    /// The way that works, or why none does.
    pub(crate) outcome: std::result::Result<Ready, Failure>,
    /// Whether the upper layer can be kept in memory of a bounded size.
    pub(crate) bounded: std::result::Result<(), Failure>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) in_memory: bool,
    pub(crate) landlock: u32,
    pub(crate) bash: bool,
}

impl Native {
    /// Starts with the defaults.
    ///
    /// ```
    /// let _ = sandbox_native::Native::builder();
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Looks at every layer of isolation on this machine, by making a throw-away sandbox. It blocks for some milliseconds.
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    ///
    /// ```no_run
    /// let report = sandbox_native::Native::doctor()?;
    /// for layer in &report.layers {
    ///     println!("{}: {}", layer.name, layer.detail);
    /// }
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn doctor() -> Result<crate::DoctorReport> {
        let shared = Shared::new(Builder::default())?;
        let probe = shared.probe();
        Ok(crate::doctor::report(
            &shared.ids,
            &shared.cgroups,
            shared.state.path(),
            probe,
        ))
    }

    pub(crate) fn new(builder: Builder) -> Result<Self> {
        let mut shared = Shared::new(builder)?;
        let caps = if shared.unsandboxed {
            eprintln!(
                "warning: commands run WITHOUT a sandbox, as this user and with all of this user's rights"
            );
            unsandboxed_caps()
        } else {
            let probe = shared.probe_or_recall();
            if let Ok(ready) = &probe.outcome {
                shared.in_memory = ready.in_memory;
            }
            shared.caps(probe)
        };
        Ok(Native {
            caps,
            shared: Arc::new(shared),
        })
    }
}

impl Shared {
    fn new(builder: Builder) -> Result<Self> {
        let ids = choose_ids(builder.base)?;
        let state = State::open(builder.state_dir)?;
        let failed = |what: &'static str| {
            let path = state.path().to_owned();
            move |error| Error::io(format!("{what} in {path:?}"), error)
        };
        let swept = state.sweep_sessions();
        let session = state.new_session().map_err(failed("making a session"))?;
        let cgroups = Cgroups::new(&session.id);
        swept.iter().for_each(|id| cgroups.sweep(id));
        if let Err(error) = detached::live(&state.detached()) {
            tracing::warn!(%error, "detached sandboxes could not be looked through");
        }
        let skeleton = spare::Base::put_into(&session.directory, &state.spares(), base(ids))
            .map_err(failed("making the base"))?;
        let executable =
            Executable::new(&session.directory).map_err(failed("preparing the set-up program"))?;
        let launcher = Launcher::new(executable).map_err(failed("starting the launcher"))?;
        let janitor = Janitor::start(&launcher, &session, &cgroups)
            .map_err(|error| Error::io("starting the janitor", error))?;
        let directory = open_directory(&session.directory).map_err(failed("opening a session"))?;
        Ok(Shared {
            live: Mutex::default(),
            launcher,
            janitor: Some(janitor),
            cgroups,
            session,
            directory,
            state,
            skeleton,
            ids,
            frames: builder.frames,
            max_capture: builder.max_capture.unwrap_or(MAX_CAPTURE),
            unsandboxed: builder.unsandboxed,
            in_memory: false,
            fault: builder.fault,
        })
    }

    /// What throw-away sandboxes show, or showed an earlier session in the same surroundings.
    fn probe_or_recall(&self) -> Probe {
        let state = self.state.path();
        let surroundings = match known::surroundings(state, self.ids) {
            Ok(surroundings) => surroundings,
            Err(_) => return self.probe(),
        };
        if let Some(ready) = known::recall(state, &surroundings) {
            return Probe {
                outcome: Ok(ready),
                bounded: Ok(()),
            };
        }
        let probe = self.probe();
        if let (Ok(ready), Ok(())) = (&probe.outcome, &probe.bounded)
            && !ready.in_memory
            && let Err(error) = known::remember(state, &surroundings, ready)
        {
            tracing::debug!(%error, "the outcome of a probe could not be written down");
        }
        probe
    }

    /// Makes throw-away sandboxes, with the upper layer on disk and in memory.
    fn probe(&self) -> Probe {
        let on_disk = self.try_once(false);
        let in_memory = self.try_once(true);
        let bounded = match &in_memory {
            Ok(_) => Ok(()),
            Err(Failure::Step {
                step,
                errno,
                detail,
            }) => Err(Failure::Step {
                step: step.clone(),
                errno: *errno,
                detail: detail.clone(),
            }),
            Err(Failure::Program { doing, error }) => {
                let error = std::io::Error::new(error.kind(), error.to_string());
                Err(Failure::Program { doing, error })
            }
        };
        let outcome = match on_disk {
            Err(Failure::Step {
                step,
                errno,
                detail,
            }) if step == "overlay" => {
                // Only where the layer lies can be wrong; what works in memory is used.
                in_memory.map_err(|_| Failure::Step {
                    step,
                    errno,
                    detail,
                })
            }
            other => other,
        };
        Probe { outcome, bounded }
    }

    fn try_once(&self, in_memory: bool) -> std::result::Result<Ready, Failure> {
        let id = if in_memory { "probe-memory" } else { "probe" };
        let io = |error| Failure::Program {
            doing: "preparing a probe",
            error,
        };
        let mut place = self.new_place(id).map_err(io)?;
        let upper = match in_memory {
            true => Upper::Memory {
                bytes: Some(PROBE_MEMORY),
            },
            false => Upper::Disk(upper_directory(id)),
        };
        let setup = Setup {
            upper,
            fault: None,
            ..self.plain_setup()
        };
        let launched = self.launcher.launch(&setup, &[self.directory.as_fd()])?;
        place.add_process(launched.process);
        place.end().map_err(io)?;
        Ok(Ready {
            in_memory,
            landlock: launched.landlock,
            bash: launched.bash,
        })
    }

    /// A directory in the session for one sandbox.
    fn new_place(&self, id: &str) -> std::io::Result<Place> {
        let directory = self.session.directory.join("boxes").join(id);
        own_directory(&directory, base(self.ids))?;
        Ok(Place::new(directory))
    }

    fn plain_setup(&self) -> Setup {
        Setup {
            ids: self.ids,
            base: Base::Skeleton,
            upper: Upper::Memory { bytes: None },
            host_network: false,
            hostname: b"sandbox".to_vec(),
            mounts: self.skeleton.mounts.clone(),
            workdir: WORKDIR.to_vec(),
            user: None,
            shm_bytes: SHARED_MEMORY,
            rlimits: default_rlimits(),
            seccomp: vec![seccomp::program(false)],
            landlock: true,
            listener: false,
            cgroups: 0,
            detached: false,
            ttl_ms: None,
            fault: self.fault.clone(),
        }
    }

    fn caps(&self, probe: Probe) -> Caps {
        let mut caps = Caps::default();
        caps.snapshot = SnapshotMode::None;
        caps.workdir = Support::Yes;
        caps.runtime_image =
            Support::no("the native backend runs no images; use the docker backend");
        caps.runtime_compose =
            Support::no("the native backend runs no compose files; use the docker backend");
        caps.staging_root = Some("/tmp".into());
        for ability in [
            &mut caps.stdin,
            &mut caps.pty,
            &mut caps.dial,
            &mut caps.exact_signals,
            &mut caps.binds,
            &mut caps.detached,
        ] {
            *ability = Support::Yes;
        }
        caps.users = match self.ids {
            Ids::Range { .. } => Support::Yes,
            Ids::Single { .. } => Support::no(
                "a sandbox that an ordinary user makes has one user, its root; make sandboxes as root to have more",
            ),
        };
        caps.networks = vec![NetworkMode::None, NetworkMode::Host];
        caps.limits.memory = self.cgroups.support(Controller::Memory);
        caps.limits.cpu = self.cgroups.support(Controller::Cpu);
        caps.limits.pids = match (self.cgroups.support(Controller::Pids), self.ids) {
            // All processes of such a sandbox are one user's, whom the kernel counts.
            (Support::No(_), Ids::Single { .. }) => Support::Yes,
            (other, _) => other,
        };
        caps.limits.disk = match probe.bounded {
            Ok(()) => Support::Yes,
            Err(failure) => Support::no(remedy::explain(failure).to_string()),
        };
        let wall = match probe.outcome {
            Ok(ready) => {
                caps.shell = Some(shell(ready.bash).into());
                Support::Yes
            }
            Err(failure) => {
                caps.shell = Some(shell(Path::new("/bin/bash").exists()).into());
                Support::no(remedy::explain(failure).to_string())
            }
        };
        caps.isolation.root = wall.clone();
        caps.isolation.processes = wall.clone();
        caps.isolation.network = wall.clone();
        caps.isolation.unprivileged_user = wall.clone();
        caps.isolation.syscall_filter = wall;
        caps
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, handle: &Handle) -> Result<Arc<Live>> {
        let unknown = || Error::UnknownHandle {
            id: handle.id.to_string(),
        };
        let live = self.live().get(&handle.id).cloned().ok_or_else(unknown)?;
        if live.ending.load(Ordering::Acquire) {
            return Err(unknown());
        }
        // Its time may have passed, or another process may have destroyed it.
        if live.detached && live.has_ended() {
            self.forget(&live);
            return Err(unknown());
        }
        Ok(live)
    }

    /// Takes a sandbox off the list.
    fn forget(&self, live: &Live) {
        self.live().remove(&live.handle.id);
    }

    /// Everything of `destroy` that blocks.
    fn end(&self, live: &Live) -> Result<()> {
        let ended = live.place().end();
        match ended {
            Ok(()) => self.forget(live),
            // It can be tried again.
            Err(_) => live.ending.store(false, Ordering::Release),
        }
        ended
            .map_err(|error| Error::io(format!("destroying the sandbox {}", live.handle.id), error))
    }

    /// Everything of `create` that blocks.
    fn make(&self, spec: &ContainerSpec, id: &SandboxId) -> Result<Made> {
        if self.unsandboxed {
            return self.make_unsandboxed(spec, id);
        }
        let is_detached = matches!(spec.lifetime, Lifetime::Detached { .. });
        let io = |error| Error::io(format!("preparing the sandbox {}", spec.name), error);
        let (directory, mut place, upper, mounts) = if is_detached {
            let path = self.state.detached().join(id.as_str());
            prepare(&path).map_err(io)?;
            let place = Place::new(path.clone());
            let skeleton =
                spare::Base::put_into(&path, &self.state.spares(), base(self.ids)).map_err(io)?;
            own_directory(&path.join("box"), base(self.ids)).map_err(io)?;
            (
                open_directory(&path).map_err(io)?,
                place,
                b"box".to_vec(),
                skeleton.mounts,
            )
        } else {
            let directory = self.directory.try_clone().map_err(io)?;
            let place = self.new_place(id.as_str()).map_err(io)?;
            (
                directory,
                place,
                upper_directory(id.as_str()),
                self.skeleton.mounts.clone(),
            )
        };
        let mut setup = Setup {
            mounts,
            ..self.plain_setup()
        };
        setup.upper = match (spec.limits.disk, self.in_memory) {
            (None, false) => Upper::Disk(upper),
            (bytes, _) => Upper::Memory { bytes },
        };
        fill(&mut setup, spec)?;
        let cgroups = self
            .cgroups
            .make(id.as_str(), &spec.limits, is_detached)
            .map_err(|error| Error::Isolation {
                layer: "control group".into(),
                cause: error.to_string(),
                remedy: "`sandbox doctor` shows what control groups this process may make".into(),
            })?;
        if let Some(pids) = spec.limits.pids
            && !self.cgroups.support(Controller::Pids).is_yes()
        {
            let most = pids + crate::OWN_PROCESSES;
            setup.rlimits.push(Rlimit {
                resource: NPROC,
                soft: most,
                hard: most,
            });
        }
        let procs = cgroups
            .as_ref()
            .map(|groups| groups.procs())
            .transpose()
            .map_err(io)?;
        if let Some(cgroups) = cgroups {
            place.add_cgroups(cgroups);
        }
        let listener = match is_detached {
            true => Some(detached::listen(&self.state.detached().join(id.as_str())).map_err(io)?),
            false => None,
        };
        setup.listener = listener.is_some();
        setup.cgroups = procs.as_ref().map_or(0, Vec::len) as u32;
        let mut descriptors = vec![directory.as_fd()];
        descriptors.extend(listener.as_ref().map(|listener| listener.as_fd()));
        descriptors.extend(procs.iter().flatten().map(|fd| fd.as_fd()));
        let launched = self
            .launcher
            .launch(&setup, &descriptors)
            .map_err(remedy::explain)?;
        let pid = launched.process.pid();
        place.add_process(launched.process);
        if let Lifetime::Detached { ttl } = spec.lifetime {
            let record = Record {
                id: id.clone(),
                name: spec.name.clone(),
                workdir: workdir(spec),
                pid,
                started: detached::start_time(pid).unwrap_or(0),
                boot: detached::boot_id(),
                pid_namespace: detached::pid_namespace(),
                ends: detached::end_after(ttl),
                bash: launched.bash,
                user: spec.user.as_ref().map(ToString::to_string),
                cgroups: place
                    .cgroups()
                    .map_or(Vec::new(), |groups| groups.directories().to_vec()),
                env: spec
                    .env
                    .iter()
                    .map(|(name, value)| (name.to_vec(), value.to_vec()))
                    .collect(),
            };
            record
                .write(&self.state.detached().join(id.as_str()))
                .map_err(io)?;
        }
        Ok(Made {
            place,
            stream: launched.stream,
            shell: shell(launched.bash),
        })
    }

    fn make_unsandboxed(&self, spec: &ContainerSpec, id: &SandboxId) -> Result<Made> {
        let io = |error| Error::io(format!("preparing the workdir of {}", spec.name), error);
        let directory = self.session.directory.join("boxes").join(id.as_str());
        own_directory(&directory, None).map_err(io)?;
        let mut place = Place::new(directory.clone());
        let (stream, child) = self
            .launcher
            .start(&["serve", "confined"], Some(&directory))
            .map_err(io)?;
        place.add_process(Process::open(child.id()).map_err(io)?);
        place.end_politely(stream.try_clone().map_err(io)?);
        Ok(Made {
            place,
            stream,
            shell: shell(Path::new("/bin/bash").exists()),
        })
    }

    fn workdir(&self, spec: &ContainerSpec, id: &SandboxId) -> Result<SandboxPath> {
        if self.unsandboxed {
            use std::os::unix::ffi::OsStrExt;
            let directory = self.session.directory.join("boxes").join(id.as_str());
            return SandboxPath::new(directory.as_os_str().as_bytes());
        }
        Ok(workdir(spec))
    }

    fn context(&self, live: &Live) -> ExecContext {
        let mut context = ExecContext::new(base_env().merged(&live.env), live.shell);
        context.oom_kills = live.oom_kills.clone();
        context
    }

    /// Connects to a sandbox of an earlier process.
    async fn open(&self, found: Found) -> Result<Handle> {
        let record = found.record.clone();
        let handle = record.handle();
        let io = |error: std::io::Error| Error::Unavailable {
            target: format!("the sandbox {}", handle.id),
            never_started: true,
            detail: error.to_string(),
        };
        let stream = detached::connect(&found.directory).map_err(io)?;
        let user = record.user.as_ref().and_then(|user| user.parse().ok());
        let client = self.client(stream, user.as_ref()).await?;
        let place = found.into_place();
        let live = Live {
            client,
            env: record.env.into_iter().collect(),
            shell: shell(record.bash),
            oom_kills: oom_counter(&place),
            detached: true,
            ending: AtomicBool::new(false),
            place: Mutex::new(place),
            handle: handle.clone(),
        };
        self.live().insert(handle.id.clone(), Arc::new(live));
        Ok(handle)
    }

    /// The client of a sandbox whose default user is `user`.
    async fn client(
        &self,
        stream: std::os::unix::net::UnixStream,
        user: Option<&User>,
    ) -> Result<GuestClient> {
        let client = if self.frames {
            let failed = |error| Error::io("preparing the control socket", error);
            stream.set_nonblocking(true).map_err(failed)?;
            let stream = tokio::net::UnixStream::from_std(stream).map_err(failed)?;
            GuestClient::connect(stream).await?
        } else {
            GuestClient::connect_local(stream).await?
        };
        if let Some(user) = user {
            client.set_default_user(user).await?;
        }
        Ok(client)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let live = std::mem::take(&mut *self.live());
        let mut all_ended = true;
        for live in live.into_values() {
            live.client.mark_destroyed();
            // An execution may still hold the client; the place goes here in any case.
            let mut place = live.place();
            if live.detached {
                place.leave();
            } else if let Err(error) = place.end() {
                all_ended = false;
                tracing::warn!(id = %live.handle.id, %error, "a sandbox could not be removed completely");
            }
        }
        // Before the janitor removes what is left.
        if all_ended && let Err(error) = self.skeleton.give_back() {
            tracing::debug!(%error, "a base could not be kept for the next session");
        }
        // Before the session's lock is released.
        self.janitor = None;
    }
}

impl Live {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its process 1 is known to be dead. Never waits for somebody who is taking it down.
    fn has_ended(&self) -> bool {
        match self.place.try_lock() {
            Ok(place) => !place.is_alive(),
            Err(TryLockError::Poisoned(poisoned)) => !poisoned.into_inner().is_alive(),
            Err(TryLockError::WouldBlock) => false,
        }
    }
}

/// A sandbox that stands.
struct Made {
    place: Place,
    stream: std::os::unix::net::UnixStream,
    shell: &'static str,
}

const CORE: u32 = 4;
const NPROC: u32 = 6;
const NOFILE: u32 = 7;

fn default_rlimits() -> Vec<Rlimit> {
    vec![
        // Not 0: where the host pipes core dumps to a program, that program runs on the host, and only 1 stops it.
        Rlimit {
            resource: CORE,
            soft: 1,
            hard: 1,
        },
        Rlimit {
            resource: NOFILE,
            soft: 65_536,
            hard: 1 << 20,
        },
    ]
}

/// The host's id of the sandbox's root, if it is not the caller's own.
fn base(ids: Ids) -> Option<u32> {
    match ids {
        Ids::Range { base, .. } => Some(base),
        Ids::Single { .. } => None,
    }
}

fn upper_directory(id: &str) -> Vec<u8> {
    format!("boxes/{id}").into_bytes()
}

fn open_directory(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// A new directory that belongs to the sandbox's root.
fn own_directory(path: &Path, base: Option<u32>) -> std::io::Result<()> {
    make_directory(path, 0o700)?;
    match base {
        Some(base) => std::os::unix::fs::chown(path, Some(base), Some(base)),
        None => Ok(()),
    }
}

fn workdir(spec: &ContainerSpec) -> SandboxPath {
    let default = || SandboxPath::new(WORKDIR).expect("the default workdir is a path");
    spec.workdir.clone().unwrap_or_else(default)
}

fn shell(bash: bool) -> &'static str {
    if bash { "/bin/bash" } else { "/bin/sh" }
}

fn base_env() -> Env {
    Env::new()
        .with("PATH", PATH)
        .with("LANG", "C.UTF-8")
        .with("TMPDIR", "/tmp")
}

fn oom_counter(place: &Place) -> Option<Arc<dyn Fn() -> Option<u64> + Send + Sync>> {
    Some(Arc::new(place.cgroups()?.oom_kills()?))
}

/// What the caller's spec adds to a set-up.
fn fill(setup: &mut Setup, spec: &ContainerSpec) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    if let Source::Workdir {
        root: RootFs::Dir(dir),
    } = &spec.source
    {
        if !dir.is_dir() {
            return Err(Error::invalid_spec(
                "source",
                format!("{dir:?} is not a directory"),
            ));
        }
        setup.base = Base::Dir(dir.as_os_str().as_bytes().to_vec());
        setup.mounts = Vec::new();
    }
    setup.host_network = spec.network == NetworkMode::Host;
    if setup.host_network && setup.base == Base::Skeleton {
        setup.mounts.push(skeleton::resolver());
    }
    for bind in &spec.binds {
        if !bind.source.exists() {
            return Err(Error::invalid_spec(
                "binds",
                format!("{:?} does not exist", bind.source),
            ));
        }
        setup.mounts.push(Mount {
            source: bind.source.as_os_str().as_bytes().to_vec(),
            target: bind.target.as_bytes().to_vec(),
            writable: bind.writable,
            system: false,
        });
    }
    if spec.binds.iter().any(|bind| bind.writable) {
        setup.seccomp = vec![seccomp::program(true)];
    }
    setup.workdir = workdir(spec).as_bytes().to_vec();
    setup.user = spec.user.as_ref().map(|user| user.to_string().into_bytes());
    setup.shm_bytes = spec
        .limits
        .disk
        .map_or(SHARED_MEMORY, |disk| disk.min(SHARED_MEMORY));
    if let Lifetime::Detached { ttl } = spec.lifetime {
        setup.detached = true;
        setup.ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    }
    Ok(())
}

fn unsandboxed_caps() -> Caps {
    const WHY: &str =
        "commands run directly on the host, because running without a sandbox was allowed";
    let absent = || Support::no(WHY);
    let mut caps = Caps::default();
    caps.workdir = Support::Yes;
    caps.runtime_image = absent();
    caps.runtime_compose = absent();
    caps.shell = Some(shell(Path::new("/bin/bash").exists()).into());
    caps.stdin = Support::Yes;
    caps.pty = Support::Yes;
    caps.dial = Support::Yes;
    caps.exact_signals = Support::Yes;
    caps.users = absent();
    caps.binds = absent();
    caps.detached = absent();
    for limit in [
        &mut caps.limits.memory,
        &mut caps.limits.cpu,
        &mut caps.limits.pids,
        &mut caps.limits.disk,
    ] {
        *limit = absent();
    }
    caps.networks = vec![NetworkMode::Host];
    caps.isolation.root = absent();
    caps.isolation.processes = absent();
    caps.isolation.network = absent();
    caps.isolation.unprivileged_user = absent();
    caps.isolation.syscall_filter = absent();
    caps
}

fn joined<T>(result: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    result.map_err(|error| Error::io("a blocking task", std::io::Error::other(error)))
}

#[async_trait]
impl Backend for Native {
    fn name(&self) -> &str {
        "native"
    }

    fn capabilities(&self) -> Caps {
        self.caps.clone()
    }

    async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
        let shared = self.shared.clone();
        let id = format!(
            "native-{}",
            random_hex().map_err(|error| Error::io("making an id", error))?
        );
        let id = SandboxId::new(id)?;
        let workdir = shared.workdir(&spec, &id)?;
        let (maker, made_id) = (shared.clone(), id.clone());
        // If this future is dropped, the task ends all the same and its result, when dropped, takes the sandbox down again.
        let task = tokio::task::spawn_blocking(move || {
            maker.refuse_taken_name(&spec)?;
            let made = maker.make(&spec, &made_id)?;
            Ok::<_, Error>((made, spec))
        });
        let (made, spec) = joined(task.await)??;
        let client = shared.client(made.stream, spec.user.as_ref()).await?;
        let handle = Handle::new(spec.name, id.clone(), workdir);
        let live = Live {
            handle: handle.clone(),
            client,
            env: spec.env,
            shell: made.shell,
            oom_kills: oom_counter(&made.place),
            detached: matches!(spec.lifetime, Lifetime::Detached { .. }),
            ending: AtomicBool::new(false),
            place: Mutex::new(made.place),
        };
        shared.live().insert(id, Arc::new(live));
        Ok(handle)
    }

    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
        let live = self.shared.find(handle)?;
        live.client.exec(&cmd, self.shared.context(&live)).await
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        let live = self.shared.find(handle)?;
        let limit = self.shared.max_capture;
        let mut left = limit;
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let content = live.client.read_file(path).await?.collect(left).await;
            let content = content.map_err(|error| match error {
                Error::TooLarge { .. } => Error::TooLarge {
                    what: format!("the captured files together, at {:?}", path.to_text()),
                    limit,
                },
                other => other,
            })?;
            left -= content.len() as u64;
            files.push(CapturedFile {
                path: path.clone(),
                content,
            });
        }
        Ok(files)
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        let live = self.shared.find(handle)?;
        for file in files {
            live.client
                .write_file(&file.path, ByteStream::from_bytes(file.content))
                .await?;
        }
        Ok(())
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        self.shared.find(handle)?.client.read_file(path).await
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        self.shared
            .find(handle)?
            .client
            .write_file(path, content)
            .await
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        self.shared.find(handle)?.client.stat(path).await
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.shared.find(handle)?.client.list_dir(dir).await
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        self.shared.find(handle)?.client.delete_file(path).await
    }

    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
        self.shared
            .find(handle)?
            .client
            .read_tree(dir, TreeLimits::default())
            .await
    }

    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()> {
        self.shared
            .find(handle)?
            .client
            .write_tree(dir, tree, TreeLimits::default())
            .await
    }

    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
        self.shared.find(handle)?.client.dial(port).await
    }

    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
        self.shared.find(handle)?;
        Err(self.no_snapshots("snapshot"))
    }

    async fn restore(&self, _: &SnapshotRef, _: ContainerName) -> Result<Handle> {
        Err(self.no_snapshots("restore"))
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        let shared = self.shared.clone();
        let found = joined(tokio::task::spawn_blocking(move || shared.found()).await)??;
        let mut handles: Vec<Handle> = found.iter().map(|found| found.record.handle()).collect();
        for live in self.shared.live().values() {
            if !live.detached && !live.ending.load(Ordering::Acquire) {
                handles.push(live.handle.clone());
            }
        }
        Ok(handles)
    }

    async fn attach(&self, id: &SandboxId) -> Result<Handle> {
        let known = self.shared.live().get(id).map(|live| live.handle.clone());
        if let Some(handle) = known {
            return self.shared.find(&handle).map(|live| live.handle.clone());
        }
        let shared = self.shared.clone();
        let found = joined(tokio::task::spawn_blocking(move || shared.found()).await)??;
        match found.into_iter().find(|found| found.record.id == *id) {
            Some(found) => self.shared.open(found).await,
            None => Err(Error::UnknownHandle { id: id.to_string() }),
        }
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        let live = self.shared.find(handle)?;
        if live.ending.swap(true, Ordering::AcqRel) {
            return Err(Error::UnknownHandle {
                id: handle.id.to_string(),
            });
        }
        // Commands that end from here on ended because of this.
        live.client.mark_destroyed();
        let shared = self.shared.clone();
        // It goes on to its end if this future is dropped.
        joined(tokio::task::spawn_blocking(move || shared.end(&live)).await)?
    }
}

impl Native {
    fn no_snapshots(&self, operation: &str) -> Error {
        Error::Unsupported {
            backend: self.name().into(),
            operation: operation.into(),
            reason: String::new(),
        }
    }
}

impl Shared {
    fn found(&self) -> Result<Vec<Found>> {
        detached::live(&self.state.detached()).map_err(|error| Error::Unavailable {
            target: "the directory of detached sandboxes".into(),
            never_started: true,
            detail: error.to_string(),
        })
    }

    /// A detached sandbox of another process counts too, because it is found by `list`.
    fn refuse_taken_name(&self, spec: &ContainerSpec) -> Result<()> {
        if matches!(spec.lifetime, Lifetime::Detached { .. })
            && self
                .found()?
                .iter()
                .any(|found| found.record.name == spec.name)
        {
            return Err(Error::AlreadyExists {
                name: spec.name.to_string(),
            });
        }
        Ok(())
    }
}

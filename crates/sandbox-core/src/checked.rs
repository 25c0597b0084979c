//! The checks that need no backend, done once for all of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::backend::Backend;
use crate::caps::{Caps, SnapshotMode, Support};
use crate::cmd::{Cmd, Program, Stdin, User};
use crate::error::{Error, Result};
use crate::execution::Execution;
use crate::file::{ByteStream, CapturedFile, DirEntry, DuplexStream, FileStat, InputFile};
use crate::handle::Handle;
use crate::name::{ContainerName, SandboxId, SnapshotRef};
use crate::path::SandboxPath;
use crate::spec::{ContainerSpec, Lifetime, NetworkMode, Source};

/// A backend behind the checks of the contract, so that no backend can forget one.
///
/// In this order (rule LIFE-8): the handle must be a live one that was made through this wrapper by `create`, `restore` or
/// `attach` (else `UnknownHandle`); the arguments must be valid (else `InvalidSpec` and its like, or `Cancelled` for a token that
/// is cancelled already); [`Caps`] must declare what is asked for (else `Unsupported`, rules CAPS-3 and CAPS-5); the name must be
/// free (else `AlreadyExists`). Only then the backend is called. Of several `destroy` calls exactly one reaches it; if it fails
/// or is dropped, the handle lives on, so that the call can be repeated.
///
/// Calls without an effect (`capture_files` of nothing, `copy_to` of nothing) do not reach the backend, and `copy_to` hands on
/// only the last of duplicates (rule FILE-6).
///
/// ```
/// use sandbox_core::{Backend, Checked, Cmd, ErrorKind, Handle};
///
/// async fn refuses_what_is_not_valid<B: Backend>(backend: Checked<B>, handle: &Handle) {
///     let error = backend.exec(handle, Cmd::argv(["a\0b"])).await.unwrap_err();
///     assert!(matches!(error.kind(), ErrorKind::UnknownHandle | ErrorKind::InvalidSpec));
/// }
/// ```
#[derive(Debug)]
pub struct Checked<B> {
    inner: B,
    caps: Caps,
    registry: Registry,
}

impl<B: Backend> Checked<B> {
    /// Puts a backend, or an `Arc` or `Box` of one, behind the checks.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use sandbox_core::{Backend, Checked};
    /// fn check(backend: Arc<dyn Backend>) -> Checked<Arc<dyn Backend>> {
    ///     Checked::new(backend)
    /// }
    /// ```
    pub fn new(inner: B) -> Self {
        Checked {
            caps: inner.capabilities(),
            inner,
            registry: Registry::default(),
        }
    }

    /// The backend itself, without checks.
    ///
    /// ```
    /// # use sandbox_core::{Backend, Checked};
    /// fn name<B: Backend>(backend: &Checked<B>) -> &str {
    ///     backend.inner().name()
    /// }
    /// ```
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The backend itself; what is live stays so.
    ///
    /// ```
    /// # use sandbox_core::{Backend, Checked};
    /// fn unwrap<B: Backend>(backend: Checked<B>) -> B {
    ///     backend.into_inner()
    /// }
    /// ```
    pub fn into_inner(self) -> B {
        self.inner
    }

    fn unsupported(&self, operation: impl Into<String>, reason: &str) -> Error {
        Error::Unsupported {
            backend: self.inner.name().into(),
            operation: operation.into(),
            reason: reason.into(),
        }
    }

    fn require(&self, support: &Support, operation: &str) -> Result<()> {
        match support {
            Support::Yes => Ok(()),
            Support::No(reason) => Err(self.unsupported(operation, reason)),
        }
    }

    fn require_user(&self, user: Option<&User>) -> Result<()> {
        let other = match user {
            None
            | Some(User::Ids {
                uid: 0,
                gid: None | Some(0),
            }) => None,
            Some(User::Name(name)) if name == "root" => None,
            other => other,
        };
        match other {
            None => Ok(()),
            Some(user) => self.require(&self.caps.users, &format!("the user {user}")),
        }
    }

    fn require_spec(&self, spec: &ContainerSpec) -> Result<()> {
        let caps = &self.caps;
        match &spec.source {
            Source::Workdir { .. } => self.require(&caps.workdir, "workdir sandboxes")?,
            Source::Image(_) => self.require(&caps.runtime_image, "image sandboxes")?,
            Source::Compose(_) => self.require(&caps.runtime_compose, "compose sandboxes")?,
        }
        let limits = [
            (
                spec.limits.memory.is_some(),
                &caps.limits.memory,
                "limits.memory",
            ),
            (spec.limits.cpus.is_some(), &caps.limits.cpu, "limits.cpus"),
            (spec.limits.pids.is_some(), &caps.limits.pids, "limits.pids"),
            (spec.limits.disk.is_some(), &caps.limits.disk, "limits.disk"),
        ];
        for (asked, support, operation) in limits {
            if asked {
                self.require(support, operation)?;
            }
        }
        self.require_network(spec)?;
        if !spec.binds.is_empty() {
            self.require(&caps.binds, "binds")?;
        }
        self.require_user(spec.user.as_ref())?;
        if matches!(spec.lifetime, Lifetime::Detached { .. }) {
            self.require(&caps.detached, "detached sandboxes")?;
        }
        Ok(())
    }

    fn require_network(&self, spec: &ContainerSpec) -> Result<()> {
        let named = |mode: &NetworkMode| matches!(mode, NetworkMode::Named(_));
        let exists = self
            .caps
            .networks
            .iter()
            .any(|mode| *mode == spec.network || (named(mode) && named(&spec.network)));
        // A compose file brings its own networks, so that the default asks for nothing there.
        let own = matches!(spec.source, Source::Compose(_)) && spec.network == NetworkMode::None;
        if exists || own {
            return Ok(());
        }
        let modes: Vec<String> = self.caps.networks.iter().map(ToString::to_string).collect();
        Err(self.unsupported(
            format!("network mode {}", spec.network),
            &format!("the modes here are: {}", modes.join(", ")),
        ))
    }

    fn require_cmd(&self, cmd: &Cmd, live: &Live) -> Result<()> {
        if live.on_own_base && self.caps.shell.is_none() && matches!(cmd.program, Program::Shell(_))
        {
            return Err(self.unsupported("shell commands", "its base has no shell; use an argv"));
        }
        if matches!(cmd.stdin, Stdin::Piped) {
            self.require(&self.caps.stdin, "piped stdin")?;
        }
        if cmd.pty.is_some() {
            self.require(&self.caps.pty, "a pty")?;
        }
        self.require_user(cmd.user.as_ref())
    }

    fn require_snapshots(&self, operation: &str) -> Result<()> {
        if self.caps.snapshot == SnapshotMode::None {
            return Err(self.unsupported(operation, ""));
        }
        Ok(())
    }

    /// A backend that does not know a sandbox any more (its time to live has passed) frees its name.
    fn forget_if_gone<T>(&self, handle: &Handle, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::UnknownHandle { .. })) {
            let mut entries = self.registry.entries();
            // One that is being destroyed is the business of that call.
            if entries
                .live
                .get(&handle.id)
                .is_some_and(|live| !live.ending)
            {
                entries.live.remove(&handle.id);
            }
        }
        result
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Checked<B> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Caps {
        self.inner.capabilities()
    }

    async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
        spec.check()?;
        self.require_spec(&spec)?;
        let reservation = self.registry.reserve(&spec.name)?;
        let on_own_base = matches!(spec.source, Source::Workdir { .. });
        // Nothing is awaited between the end of this call and the return, so that a dropped future either drops the backend's
        // own one, which cleans up (LIFE-6), or has handed its result out.
        let handle = self.inner.create(spec).await?;
        reservation.fill(&handle, on_own_base);
        Ok(handle)
    }

    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
        let live = self.registry.live(handle)?;
        cmd.check()?;
        if let Some(token) = cmd.cancel.as_ref().filter(|token| token.is_cancelled()) {
            return Err(token.error());
        }
        self.require_cmd(&cmd, &live)?;
        let result = self.inner.exec(handle, cmd).await;
        self.forget_if_gone(handle, result)
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        self.registry.live(handle)?;
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let result = self.inner.capture_files(handle, paths).await;
        self.forget_if_gone(handle, result)
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        self.registry.live(handle)?;
        if files.is_empty() {
            return Ok(());
        }
        let result = self.inner.copy_to(handle, last_of_each(files)).await;
        self.forget_if_gone(handle, result)
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        self.registry.live(handle)?;
        let result = self.inner.read_file_at(handle, path).await;
        self.forget_if_gone(handle, result)
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        self.registry.live(handle)?;
        let result = self.inner.write_file_at(handle, path, content).await;
        self.forget_if_gone(handle, result)
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        self.registry.live(handle)?;
        let result = self.inner.stat_at(handle, path).await;
        self.forget_if_gone(handle, result)
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.registry.live(handle)?;
        let result = self.inner.list_dir_at(handle, dir).await;
        self.forget_if_gone(handle, result)
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        self.registry.live(handle)?;
        let result = self.inner.delete_file_at(handle, path).await;
        self.forget_if_gone(handle, result)
    }

    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
        self.registry.live(handle)?;
        let result = self.inner.read_tree_at(handle, dir).await;
        self.forget_if_gone(handle, result)
    }

    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()> {
        self.registry.live(handle)?;
        let result = self.inner.write_tree_at(handle, dir, tree).await;
        self.forget_if_gone(handle, result)
    }

    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
        self.registry.live(handle)?;
        if port == 0 {
            return Err(Error::invalid_spec("port", "must be 1 to 65535"));
        }
        self.require(&self.caps.dial, "dial")?;
        let result = self.inner.dial(handle, port).await;
        self.forget_if_gone(handle, result)
    }

    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
        self.registry.live(handle)?;
        self.require_snapshots("snapshot")?;
        let result = self.inner.snapshot(handle).await;
        self.forget_if_gone(handle, result)
    }

    async fn restore(&self, snapshot: &SnapshotRef, name: ContainerName) -> Result<Handle> {
        self.require_snapshots("restore")?;
        let reservation = self.registry.reserve(&name)?;
        let handle = self.inner.restore(snapshot, name).await?;
        reservation.fill(&handle, false);
        Ok(handle)
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        self.inner.list().await
    }

    async fn attach(&self, id: &SandboxId) -> Result<Handle> {
        let handle = self.inner.attach(id).await?;
        self.registry.attach(&handle);
        Ok(handle)
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        let ending = self.registry.end(handle)?;
        match self.inner.destroy(handle).await {
            // A sandbox that is gone already needs no second try.
            result @ (Ok(()) | Err(Error::UnknownHandle { .. })) => {
                ending.done();
                result
            }
            failed => failed,
        }
    }
}

fn last_of_each(files: Vec<InputFile>) -> Vec<InputFile> {
    let mut seen = HashSet::new();
    let mut last: Vec<InputFile> = files
        .into_iter()
        .rev()
        .filter(|file| seen.insert(file.path.clone()))
        .collect();
    last.reverse();
    last
}

/// What is live, and which names are taken.
#[derive(Debug, Default)]
struct Registry(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    live: HashMap<SandboxId, Live>,
    /// Names of sandboxes that are being made.
    reserved: HashSet<ContainerName>,
}

#[derive(Debug, Clone)]
struct Live {
    name: ContainerName,
    /// It is known to start from the backend's own base, which `Caps::shell` speaks of.
    on_own_base: bool,
    /// It is being destroyed: it takes no calls, but its name is not free yet.
    ending: bool,
}

impl Registry {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // No code that can panic runs under the lock between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, handle: &Handle) -> Result<Live> {
        match self.entries().live.get(&handle.id) {
            Some(live) if !live.ending => Ok(live.clone()),
            _ => Err(unknown(handle)),
        }
    }

    fn reserve(&self, name: &ContainerName) -> Result<Reservation<'_>> {
        let mut entries = self.entries();
        let taken = entries.live.values().any(|live| live.name == *name);
        if taken || !entries.reserved.insert(name.clone()) {
            return Err(Error::AlreadyExists {
                name: name.to_string(),
            });
        }
        Ok(Reservation {
            registry: self,
            name: name.clone(),
        })
    }

    fn attach(&self, handle: &Handle) {
        let live = Live {
            name: handle.name.clone(),
            on_own_base: false,
            ending: false,
        };
        let mut entries = self.entries();
        entries.live.entry(handle.id.clone()).or_insert(live);
    }

    fn end<'a>(&'a self, handle: &'a Handle) -> Result<Ending<'a>> {
        match self.entries().live.get_mut(&handle.id) {
            Some(live) if !live.ending => {
                live.ending = true;
                Ok(Ending {
                    registry: self,
                    id: &handle.id,
                })
            }
            _ => Err(unknown(handle)),
        }
    }
}

fn unknown(handle: &Handle) -> Error {
    Error::UnknownHandle {
        id: handle.id.to_string(),
    }
}

/// A name that is kept for a sandbox in the making; dropped with the attempt.
struct Reservation<'a> {
    registry: &'a Registry,
    name: ContainerName,
}

impl Reservation<'_> {
    fn fill(self, handle: &Handle, on_own_base: bool) {
        let live = Live {
            name: self.name.clone(),
            on_own_base,
            ending: false,
        };
        self.registry.entries().live.insert(handle.id.clone(), live);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.registry.entries().reserved.remove(&self.name);
    }
}

/// A sandbox that is being destroyed; it takes calls again unless that is done.
struct Ending<'a> {
    registry: &'a Registry,
    id: &'a SandboxId,
}

impl Ending<'_> {
    fn done(self) {
        self.registry.entries().live.remove(self.id);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(live) = self.registry.entries().live.get_mut(self.id) {
            live.ending = false;
        }
    }
}

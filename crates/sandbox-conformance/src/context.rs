//! What a case works with: a fresh backend, sandboxes of it, and a few ways to look inside.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sandbox_core::{
    Backend, ByteStream, Caps, Cmd, ContainerName, ContainerSpec, Error, ErrorKind, ExecResult,
    Execution, FileKind, FileStat, Handle, Result, SandboxPath,
};

use crate::case::{Done, Stop, short};
use crate::factory::Factory;
use crate::tracked::Tracked;

/// Asks until it is so (the body is a `Done<bool>`), or fails the case at the deadline. A macro, since the future of an async
/// closure cannot be said to be `Send`.
macro_rules! eventually {
    ($limit:expr, $what:expr, $body:expr $(,)?) => {{
        let (limit, what): (std::time::Duration, &str) = ($limit, $what);
        let deadline = std::time::Instant::now() + limit;
        loop {
            let so: $crate::case::Done<bool> = $body;
            if so? {
                break $crate::case::Done::<()>::Ok(());
            }
            if std::time::Instant::now() >= deadline {
                break Err($crate::case::Stop::fail(format!(
                    "waited {limit:?} for {what}"
                )));
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }};
}

pub(crate) use eventually;

/// The most that a case reads into memory.
const MOST: u64 = 256 << 20;

#[derive(Clone)]
pub(crate) struct Context(Arc<Inner>);

struct Inner {
    backend: Arc<Tracked>,
    factory: Arc<dyn Factory>,
    scratch: PathBuf,
    prefix: String,
    names: AtomicU64,
}

impl Context {
    /// `prefix` begins the name of every sandbox of this case, so that the runner knows them again.
    pub(crate) fn new(
        backend: Arc<Tracked>,
        factory: Arc<dyn Factory>,
        scratch: PathBuf,
        prefix: String,
    ) -> Self {
        Context(Arc::new(Inner {
            backend,
            factory,
            scratch,
            prefix,
            names: AtomicU64::new(0),
        }))
    }

    pub(crate) fn backend(&self) -> &Tracked {
        &self.0.backend
    }

    pub(crate) fn caps(&self) -> Caps {
        self.0.backend.capabilities()
    }

    /// A second backend over the state of the first, as another process would make it.
    pub(crate) async fn second_backend(&self) -> Done<Arc<dyn Backend>> {
        let scratch = backend_scratch(&self.0.scratch);
        Ok(self.0.factory.backend(&scratch).await?)
    }

    /// An existing directory on the host that is this case's own.
    pub(crate) fn host_dir(&self) -> Done<PathBuf> {
        let dir = self.0.scratch.join("host");
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    pub(crate) fn name(&self) -> Done<ContainerName> {
        let number = self.0.names.fetch_add(1, Ordering::Relaxed);
        Ok(ContainerName::new(format!("{}-{number}", self.0.prefix))?)
    }

    /// The plainest sandbox of the backend, under a fresh name of this case.
    pub(crate) fn spec(&self) -> Done<ContainerSpec> {
        let mut spec = self.0.factory.spec(self.name()?);
        let networks = self.caps().networks;
        if !networks.contains(&spec.network)
            && let Some(first) = networks.first()
        {
            spec.network = first.clone();
        }
        Ok(spec)
    }

    pub(crate) async fn place(&self) -> Done<Place> {
        self.place_of(self.spec()?).await
    }

    pub(crate) async fn place_of(&self, spec: ContainerSpec) -> Done<Place> {
        let handle = self.0.backend.create(spec).await?;
        Ok(Place {
            backend: self.0.backend.clone(),
            handle,
        })
    }

    /// The names of the live sandboxes of this case, if the backend can list them.
    pub(crate) async fn listed(&self) -> Done<Option<Vec<String>>> {
        listed(&*self.0.backend, &self.0.prefix).await
    }
}

pub(crate) fn backend_scratch(scratch: &Path) -> PathBuf {
    scratch.join("backend")
}

pub(crate) async fn listed(backend: &dyn Backend, prefix: &str) -> Done<Option<Vec<String>>> {
    match backend.list().await {
        Ok(handles) => {
            let mut names: Vec<String> = handles
                .iter()
                .map(|handle| handle.name.as_str().to_owned())
                .filter(|name| name.starts_with(prefix))
                .collect();
            names.sort();
            Ok(Some(names))
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A sandbox of a case.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) backend: Arc<Tracked>,
    pub(crate) handle: Handle,
}

impl Place {
    pub(crate) async fn start(&self, cmd: Cmd) -> Result<Execution> {
        self.backend.exec(&self.handle, cmd).await
    }

    pub(crate) async fn run(&self, cmd: Cmd) -> Result<ExecResult> {
        Ok(self.start(cmd).await?.wait().await)
    }

    pub(crate) async fn sh(&self, script: &str) -> Result<ExecResult> {
        self.run(Cmd::shell(script)).await
    }

    /// The exact standard output of a script that must succeed.
    #[track_caller]
    pub(crate) fn out(&self, script: &str) -> impl Future<Output = Done<String>> {
        let at = std::panic::Location::caller();
        async move {
            let fail =
                |what: String| Stop::fail_at(format!("the script {} {what}", short(&script)), at);
            let result = self.sh(script).await;
            let result = result.map_err(|error| fail(format!("was not started: {error}")))?;
            if !result.success() {
                return Err(fail(format!("did not succeed: {}", short(&result))));
            }
            Ok(String::from_utf8_lossy(&result.stdout).into_owned())
        }
    }

    pub(crate) async fn write(
        &self,
        path: impl AsRef<[u8]>,
        content: impl Into<Bytes>,
    ) -> Result<()> {
        let path = SandboxPath::new(path)?;
        self.backend
            .write_file_at(&self.handle, &path, ByteStream::from_bytes(content))
            .await
    }

    pub(crate) async fn read(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        let path = SandboxPath::new(path)?;
        self.backend
            .read_file_at(&self.handle, &path)
            .await?
            .collect(MOST)
            .await
    }

    pub(crate) async fn stat(&self, path: impl AsRef<[u8]>) -> Result<FileStat> {
        let path = SandboxPath::new(path)?;
        self.backend.stat_at(&self.handle, &path).await
    }

    pub(crate) async fn list(&self, dir: impl AsRef<[u8]>) -> Result<BTreeMap<Vec<u8>, FileKind>> {
        let dir = SandboxPath::new(dir)?;
        let entries = self.backend.list_dir_at(&self.handle, &dir).await?;
        Ok(entries
            .into_iter()
            .map(|entry| (entry.name, entry.kind))
            .collect())
    }

    pub(crate) async fn delete(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = SandboxPath::new(path)?;
        self.backend.delete_file_at(&self.handle, &path).await
    }

    pub(crate) async fn read_tree(&self, dir: impl AsRef<[u8]>) -> Result<Bytes> {
        let dir = SandboxPath::new(dir)?;
        self.backend
            .read_tree_at(&self.handle, &dir)
            .await?
            .collect(MOST)
            .await
    }

    pub(crate) async fn write_tree(
        &self,
        dir: impl AsRef<[u8]>,
        tree: impl Into<Bytes>,
    ) -> Result<()> {
        let dir = SandboxPath::new(dir)?;
        self.backend
            .write_tree_at(&self.handle, &dir, ByteStream::from_bytes(tree))
            .await
    }

    pub(crate) async fn destroy(&self) -> Result<()> {
        self.backend.destroy(&self.handle).await
    }

    /// Whether a program is in the sandbox's `PATH`.
    pub(crate) async fn has(&self, program: &str) -> Done<bool> {
        let result = self.sh(&format!("command -v {program} >/dev/null")).await?;
        Ok(result.success())
    }

    /// Ends the case as unavailable unless the program is there.
    pub(crate) async fn need(&self, program: &str) -> Done {
        if self.has(program).await? {
            Ok(())
        } else {
            Err(Stop::Unavailable(format!("the base has no {program}")))
        }
    }

    /// How many processes in the sandbox have `marker` as one of their arguments. Zombies have no arguments.
    pub(crate) async fn count(&self, marker: &str) -> Done<usize> {
        // Neither this script nor anything that it starts has the marker as an argument.
        let script =
            r#"for f in /proc/[0-9]*/cmdline; do cat "$f" 2>/dev/null; printf '\0\0'; done"#;
        let result = self.sh(script).await?;
        let wanted = marker.as_bytes();
        Ok(split_at_double_nul(&result.stdout)
            .iter()
            .filter(|line| line.split(|byte| *byte == 0).any(|arg| arg == wanted))
            .count())
    }

    /// Waits until no process has `marker` as an argument.
    pub(crate) async fn gone(&self, marker: &str, limit: Duration) -> Done {
        let what = format!("processes with the argument {marker} to be gone");
        eventually!(limit, &what, Ok(self.count(marker).await? == 0))
    }

    /// Waits until `number` processes have `marker` as an argument.
    pub(crate) async fn appears(&self, marker: &str, number: usize) -> Done {
        let what = format!("{number} processes with the argument {marker} to appear");
        eventually!(Duration::from_secs(10), &what, {
            Ok(self.count(marker).await? >= number)
        })
    }
}

fn split_at_double_nul(bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(2).position(|pair| pair == [0, 0]) {
        parts.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    parts
}

/// `sh -c script sh marker`: `$1` is the marker, and every process of the tree carries it, also its subshells.
pub(crate) fn marked(script: &str, marker: &str) -> Cmd {
    Cmd::argv(["sh", "-c", script, "sh", marker])
}

/// A number that nothing else on this machine uses: short enough for `sleep`, long enough to outlive every case.
pub(crate) fn marker() -> String {
    format!("9{:08}", unique() % 100_000_000)
}

pub(crate) fn unique() -> u64 {
    // Each RandomState hashes nothing to another value: randomness without a dependency.
    RandomState::new().build_hasher().finish()
}

/// The error of a call that must be refused with that kind.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(
    result: Result<T>,
    kind: ErrorKind,
    what: &str,
) -> Done<Error> {
    refused_as(result, &[kind], what)
}

/// The same, where a rule leaves a choice.
#[track_caller]
pub(crate) fn refused_as<T: std::fmt::Debug>(
    result: Result<T>,
    kinds: &[ErrorKind],
    what: &str,
) -> Done<Error> {
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(error),
        Err(error) => Err(Stop::fail(format!(
            "{what}: refused as {:?} ({error}), expected {}",
            error.kind(),
            short(&kinds)
        ))),
        Ok(value) => Err(Stop::fail(format!(
            "{what}: not refused but {}, expected {}",
            short(&value),
            short(&kinds)
        ))),
    }
}

/// Fails the case if the future takes longer.
#[track_caller]
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> impl Future<Output = Done<T>> {
    let late = Stop::fail(format!("{what}: not done within {limit:?}"));
    async move { tokio::time::timeout(limit, future).await.map_err(|_| late) }
}

/// `count` bytes without a pattern that a block size could hide in.
pub(crate) fn noise(count: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

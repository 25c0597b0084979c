//! A backend in memory for these tests: files are a map, programs are closures, and `supervise` is the real one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use sandbox_core::tree::{TreeEvent, TreeKind, TreeLimits, decode, encode};
use sandbox_core::*;
use tokio::io::DuplexStream as Pipe;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Script = Arc<dyn Fn(Guest) -> BoxFuture<ExitStatus> + Send + Sync>;

pub(crate) const OK: ExitStatus = ExitStatus::Code(0);

/// Everything but snapshots, images and compose.
pub(crate) fn full_caps() -> Caps {
    let mut caps = Caps::default();
    caps.workdir = Support::Yes;
    caps.shell = Some("/bin/sh".into());
    caps.stdin = Support::Yes;
    caps.pty = Support::Yes;
    caps.dial = Support::Yes;
    caps.exact_signals = Support::Yes;
    caps.networks = vec![NetworkMode::None];
    caps.isolation.root = Support::Yes;
    caps.isolation.processes = Support::Yes;
    caps.isolation.network = Support::Yes;
    caps.isolation.unprivileged_user = Support::Yes;
    caps.isolation.syscall_filter = Support::Yes;
    caps
}

pub(crate) struct Memory {
    caps: Caps,
    next_id: AtomicUsize,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    programs: Mutex<HashMap<String, (Script, bool)>>,
    log: Mutex<Vec<String>>,
    faults: Mutex<Vec<(&'static str, Error)>>,
    gates: Mutex<HashMap<&'static str, Arc<Semaphore>>>,
}

struct Sandbox {
    handle: Handle,
    env: Env,
    /// Absolute paths; no content means a directory.
    files: Mutex<BTreeMap<String, Option<Bytes>>>,
    trees: Mutex<Vec<Arc<Tree>>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Memory::with_caps(full_caps())
    }

    pub(crate) fn with_caps(caps: Caps) -> Arc<Self> {
        Arc::new(Memory {
            caps,
            next_id: AtomicUsize::new(1),
            sandboxes: Mutex::default(),
            programs: Mutex::default(),
            log: Mutex::default(),
            faults: Mutex::default(),
            gates: Mutex::default(),
        })
    }

    /// What runs for a shell script, or for an argv joined by blanks. It dies of TERM.
    pub(crate) fn program<F: Future<Output = ExitStatus> + Send + 'static>(
        &self,
        name: &str,
        script: impl Fn(Guest) -> F + Send + Sync + 'static,
    ) {
        self.add(name, script, false);
    }

    /// As `program`, but it hears of TERM only if it asks.
    pub(crate) fn trapping_program<F: Future<Output = ExitStatus> + Send + 'static>(
        &self,
        name: &str,
        script: impl Fn(Guest) -> F + Send + Sync + 'static,
    ) {
        self.add(name, script, true);
    }

    fn add<F: Future<Output = ExitStatus> + Send + 'static>(
        &self,
        name: &str,
        script: impl Fn(Guest) -> F + Send + Sync + 'static,
        traps: bool,
    ) {
        let script: Script = Arc::new(move |guest| Box::pin(script(guest)));
        self.programs
            .lock()
            .unwrap()
            .insert(name.into(), (script, traps));
    }

    /// The next call of that operation fails.
    pub(crate) fn fail(&self, operation: &'static str, error: Error) {
        self.faults.lock().unwrap().push((operation, error));
    }

    /// Calls of that operation wait until the gate has permits.
    pub(crate) fn gate(&self, operation: &'static str) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.gates
            .lock()
            .unwrap()
            .insert(operation, Arc::clone(&gate));
        gate
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn calls_of(&self, operation: &str) -> usize {
        self.log()
            .iter()
            .filter(|line| line.split(' ').next() == Some(operation))
            .count()
    }

    pub(crate) fn live(&self) -> usize {
        self.sandboxes.lock().unwrap().len()
    }

    /// Processes that live in all sandboxes.
    pub(crate) fn processes(&self) -> usize {
        let sandboxes = self.sandboxes.lock().unwrap();
        let trees = sandboxes.values().map(|sandbox| {
            let trees = sandbox.trees.lock().unwrap();
            trees.iter().map(|tree| *tree.live.borrow()).sum::<usize>()
        });
        trees.sum()
    }

    async fn begin(&self, operation: &'static str, detail: impl fmt::Display) -> Result<()> {
        let line = format!("{operation} {detail}");
        self.log.lock().unwrap().push(line.trim_end().into());
        let gate = self.gates.lock().unwrap().get(operation).cloned();
        if let Some(gate) = gate {
            gate.acquire().await.unwrap().forget();
        }
        let mut faults = self.faults.lock().unwrap();
        match faults.iter().position(|(at, _)| *at == operation) {
            Some(at) => Err(faults.remove(at).1),
            None => Ok(()),
        }
    }

    fn sandbox(&self, handle: &Handle) -> Result<Arc<Sandbox>> {
        let sandboxes = self.sandboxes.lock().unwrap();
        sandboxes
            .get(&handle.id)
            .cloned()
            .ok_or_else(|| Error::UnknownHandle {
                id: handle.id.to_string(),
            })
    }

    fn make(&self, name: ContainerName, env: Env, workdir: Option<SandboxPath>) -> Handle {
        let id = format!("memory-{}", self.next_id.fetch_add(1, Ordering::Relaxed));
        let workdir = workdir.unwrap_or_else(|| SandboxPath::new("/work").unwrap());
        let handle = Handle::new(name, SandboxId::new(id).unwrap(), workdir.clone());
        let mut files = BTreeMap::new();
        for dir in ["/", "/tmp", &workdir.to_text()] {
            files.insert(dir.to_owned(), None);
        }
        let sandbox = Arc::new(Sandbox {
            handle: handle.clone(),
            env,
            files: Mutex::new(files),
            trees: Mutex::default(),
        });
        self.sandboxes
            .lock()
            .unwrap()
            .insert(handle.id.clone(), sandbox);
        handle
    }
}

impl Sandbox {
    fn resolve(&self, path: &SandboxPath) -> String {
        let path = self.handle.workdir.join(path).to_text();
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }

    /// The entry at a path: `Some(content)` of a file, `None` for a directory.
    fn find(&self, path: &SandboxPath) -> Result<Option<Bytes>> {
        let at = self.resolve(path);
        let files = self.files.lock().unwrap();
        for (end, _) in at.match_indices('/').skip(1) {
            if matches!(files.get(&at[..end]), Some(Some(_))) {
                return Err(Error::NotADirectory {
                    path: path.to_text(),
                });
            }
        }
        match files.get(&at) {
            Some(Some(_)) if path.as_bytes().ends_with(b"/") => Err(Error::NotADirectory {
                path: path.to_text(),
            }),
            Some(entry) => Ok(entry.clone()),
            None => Err(Error::NotFound {
                role: PathRole::Path,
                path: path.to_text(),
            }),
        }
    }

    fn put(&self, path: &SandboxPath, content: Option<Bytes>) -> Result<()> {
        match self.find(path) {
            Ok(None) if content.is_some() => {
                return Err(Error::IsADirectory {
                    path: path.to_text(),
                });
            }
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let at = self.resolve(path);
        let mut files = self.files.lock().unwrap();
        for (end, _) in at.match_indices('/').skip(1) {
            files.entry(at[..end].to_owned()).or_insert(None);
        }
        files.insert(at, content);
        Ok(())
    }
}

#[async_trait]
impl Backend for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Caps {
        self.caps.clone()
    }

    async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
        self.begin("create", &spec.name).await?;
        Ok(self.make(spec.name, spec.env, spec.workdir))
    }

    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
        let name = match &cmd.program {
            Program::Shell(script) => String::from_utf8_lossy(script).into_owned(),
            Program::Argv(argv) => String::from_utf8_lossy(&argv.join(&b' ')).into_owned(),
            _ => unreachable!("there is no other kind"),
        };
        self.begin("exec", &name).await?;
        let sandbox = self.sandbox(handle)?;
        let cwd = cmd.cwd.clone().unwrap_or_else(|| handle.workdir.clone());
        if !matches!(sandbox.find(&cwd), Ok(None)) {
            return Err(Error::BadCwd {
                cwd: cwd.to_text(),
                reason: "it is not there".into(),
            });
        }
        let program = self.programs.lock().unwrap().get(&name).cloned();
        let Some((script, traps)) = program else {
            return Err(Error::NotFound {
                role: PathRole::Program,
                path: name,
            });
        };
        let cwd = sandbox.resolve(&cwd);
        let env = Env::new()
            .with("PATH", "/bin")
            .with("HOME", "/root")
            .merged(&sandbox.env)
            .merged(&cmd.env);
        let (execution, tree) = start(&cmd, traps, cwd, env, script);
        sandbox.trees.lock().unwrap().push(tree);
        Ok(execution.with_pid(7))
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        self.begin("capture_files", paths.len()).await?;
        let sandbox = self.sandbox(handle)?;
        let file = |path: &SandboxPath| match sandbox.find(path)? {
            Some(content) => Ok(CapturedFile {
                path: path.clone(),
                content,
            }),
            None => Err(Error::IsADirectory {
                path: path.to_text(),
            }),
        };
        paths.iter().map(file).collect()
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        let names: Vec<String> = files.iter().map(|file| file.path.to_text()).collect();
        self.begin("copy_to", names.join(",")).await?;
        let sandbox = self.sandbox(handle)?;
        for file in files {
            sandbox.put(&file.path, Some(file.content))?;
        }
        Ok(())
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        self.begin("read_file_at", path).await?;
        match self.sandbox(handle)?.find(path)? {
            Some(content) => {
                // One byte at a time, so that a cancel can come between.
                let chunks: Vec<_> = (0..content.len())
                    .map(|at| Ok(content.slice(at..=at)))
                    .collect();
                Ok(ByteStream::new(futures_util::stream::iter(chunks)))
            }
            None => Err(Error::IsADirectory {
                path: path.to_text(),
            }),
        }
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        self.begin("write_file_at", path).await?;
        let sandbox = self.sandbox(handle)?;
        let content = content.collect(u64::MAX).await?;
        sandbox.put(path, Some(content))
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        self.begin("stat_at", path).await?;
        Ok(match self.sandbox(handle)?.find(path)? {
            Some(content) => FileStat {
                kind: FileKind::File,
                size: content.len() as u64,
            },
            None => FileStat {
                kind: FileKind::Directory,
                size: 0,
            },
        })
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.begin("list_dir_at", dir).await?;
        let sandbox = self.sandbox(handle)?;
        if sandbox.find(dir)?.is_some() {
            return Err(Error::NotADirectory {
                path: dir.to_text(),
            });
        }
        let prefix = format!("{}/", sandbox.resolve(dir).trim_end_matches('/'));
        let files = sandbox.files.lock().unwrap();
        let entries = files.iter().filter_map(|(path, content)| {
            let name = path.strip_prefix(&prefix)?;
            (!name.is_empty() && !name.contains('/')).then(|| DirEntry {
                name: name.into(),
                kind: match content {
                    Some(_) => FileKind::File,
                    None => FileKind::Directory,
                },
            })
        });
        Ok(entries.collect())
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        self.begin("delete_file_at", path).await?;
        let sandbox = self.sandbox(handle)?;
        if sandbox.find(path)?.is_none() {
            return Err(Error::IsADirectory {
                path: path.to_text(),
            });
        }
        let at = sandbox.resolve(path);
        sandbox.files.lock().unwrap().remove(&at);
        Ok(())
    }

    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
        self.begin("read_tree_at", dir).await?;
        self.sandbox(handle)?.find(dir)?;
        Ok(encode(futures_util::stream::empty(), TreeLimits::default()))
    }

    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()> {
        self.begin("write_tree_at", dir).await?;
        let sandbox = self.sandbox(handle)?;
        sandbox.put(dir, None)?;
        let mut events = decode(tree, TreeLimits::default());
        while let Some(event) = events.next().await {
            match event? {
                TreeEvent::Entry(entry) if entry.kind == TreeKind::Directory => {
                    sandbox.put(&dir.join(&SandboxPath::new(entry.path)?), None)?;
                }
                other => unimplemented_in_tests(&other),
            }
        }
        Ok(())
    }

    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
        self.begin("dial", port).await?;
        self.sandbox(handle)?;
        Err(Error::ConnectionRefused { port })
    }

    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
        self.begin("snapshot", &handle.name).await?;
        self.sandbox(handle)?;
        SnapshotRef::new(format!("sbx1:sha256:{}", "0".repeat(64)))
    }

    async fn restore(&self, _: &SnapshotRef, name: ContainerName) -> Result<Handle> {
        self.begin("restore", &name).await?;
        Ok(self.make(name, Env::new(), None))
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        self.begin("list", "").await?;
        let sandboxes = self.sandboxes.lock().unwrap();
        Ok(sandboxes
            .values()
            .map(|sandbox| sandbox.handle.clone())
            .collect())
    }

    async fn attach(&self, id: &SandboxId) -> Result<Handle> {
        self.begin("attach", id).await?;
        let sandboxes = self.sandboxes.lock().unwrap();
        match sandboxes.get(id) {
            Some(sandbox) => Ok(sandbox.handle.clone()),
            None => Err(Error::UnknownHandle { id: id.to_string() }),
        }
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        self.begin("destroy", &handle.name).await?;
        let sandbox = self.sandbox(handle)?;
        self.sandboxes.lock().unwrap().remove(&handle.id);
        for tree in sandbox.trees.lock().unwrap().iter() {
            tree.destroyed.store(true, Ordering::SeqCst);
            tree.kill.cancel();
        }
        Ok(())
    }
}

fn unimplemented_in_tests(event: &TreeEvent) {
    panic!("the memory backend unpacks directories only, not {event:?}");
}

/// Starts a script as a process tree under the real supervisor.
pub(crate) fn start(
    cmd: &Cmd,
    traps: bool,
    cwd: String,
    env: Env,
    script: Script,
) -> (Execution, Arc<Tree>) {
    let (sender, output) = mpsc::channel(4);
    let (exit_sender, exit) = oneshot::channel();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let tree = Arc::new(Tree {
        term: CancellationToken::new(),
        kill: CancellationToken::new(),
        live: watch::channel(1).0,
        destroyed: AtomicBool::new(false),
        unread: [AtomicU64::new(0), AtomicU64::new(0)],
        ends: Mutex::default(),
        resizes: Mutex::default(),
        released: AtomicBool::new(false),
    });
    let guest = Guest {
        stdin: match &cmd.stdin {
            Stdin::Null => None,
            _ => Some(far),
        },
        sender,
        cwd,
        env,
        tree: Arc::clone(&tree),
    };
    let main = Arc::clone(&tree);
    tokio::spawn(async move {
        let status = tokio::select! {
            biased;
            () = main.kill.cancelled() => ExitStatus::Signal(9),
            () = main.term.cancelled(), if !traps => ExitStatus::Signal(15),
            status = script(guest) => status,
        };
        main.live.send_modify(|live| *live -= 1);
        let mut exit = Exit::new(status);
        exit.background = *main.live.borrow() > 0;
        exit.destroyed = main.destroyed.load(Ordering::SeqCst);
        exit.unread_stdout = main.unread[0].load(Ordering::SeqCst);
        exit.unread_stderr = main.unread[1].load(Ordering::SeqCst);
        let _ = exit_sender.send(exit);
    });
    let process = MemoryProcess {
        output,
        exit,
        gone: None,
        tree: Arc::clone(&tree),
    };
    let stdin = match &cmd.stdin {
        Stdin::Null => None,
        _ => Some(ExecStdin::new(near)),
    };
    (supervise(Box::new(process), cmd, stdin), tree)
}

/// What a script can do.
pub(crate) struct Guest {
    pub(crate) stdin: Option<Pipe>,
    pub(crate) cwd: String,
    pub(crate) env: Env,
    sender: mpsc::Sender<Chunk>,
    tree: Arc<Tree>,
}

impl Guest {
    pub(crate) async fn out(&self, data: impl Into<Bytes>) {
        self.write(OutputStream::Stdout, data.into()).await;
    }

    pub(crate) async fn err(&self, data: impl Into<Bytes>) {
        self.write(OutputStream::Stderr, data.into()).await;
    }

    async fn write(&self, stream: OutputStream, mut data: Bytes) {
        while !data.is_empty() {
            let data = data.split_to(data.len().min(MAX_CHUNK));
            let Ok(permit) = self.sender.reserve().await else {
                return;
            };
            let unread = &self.tree.unread[usize::from(stream == OutputStream::Stderr)];
            unread.fetch_add(data.len() as u64, Ordering::SeqCst);
            permit.send(Chunk { stream, data });
        }
    }

    /// Waits for TERM.
    pub(crate) async fn term(&self) {
        self.tree.term.cancelled().await;
    }

    /// One more process of the tree, which ignores TERM and holds the output open.
    pub(crate) fn background<F: Future<Output = ()> + Send + 'static>(
        &self,
        script: impl FnOnce(Guest) -> F,
    ) {
        let tree = Arc::clone(&self.tree);
        tree.live.send_modify(|live| *live += 1);
        let script = script(Guest {
            stdin: None,
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            sender: self.sender.clone(),
            tree: Arc::clone(&tree),
        });
        tokio::spawn(async move {
            tokio::select! {
                () = tree.kill.cancelled() => {}
                () = script => {}
            }
            tree.live.send_modify(|live| *live -= 1);
        });
    }
}

pub(crate) struct Tree {
    term: CancellationToken,
    kill: CancellationToken,
    live: watch::Sender<usize>,
    destroyed: AtomicBool,
    unread: [AtomicU64; 2],
    ends: Mutex<Vec<Duration>>,
    resizes: Mutex<Vec<PtySize>>,
    released: AtomicBool,
}

impl Tree {
    pub(crate) fn live(&self) -> usize {
        *self.live.borrow()
    }

    /// The graces with which it was ended.
    pub(crate) fn ends(&self) -> Vec<Duration> {
        self.ends.lock().unwrap().clone()
    }

    pub(crate) fn resizes(&self) -> Vec<PtySize> {
        self.resizes.lock().unwrap().clone()
    }

    pub(crate) fn released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::SeqCst);
        self.kill.cancel();
    }
}

struct MemoryProcess {
    output: mpsc::Receiver<Chunk>,
    exit: oneshot::Receiver<Exit>,
    gone: Option<BoxFuture<()>>,
    tree: Arc<Tree>,
}

impl Process for MemoryProcess {
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Chunk>>> {
        self.output.poll_recv(context).map(|chunk| {
            chunk.map(|chunk| {
                let unread = &self.tree.unread[usize::from(chunk.stream == OutputStream::Stderr)];
                unread.fetch_sub(chunk.data.len() as u64, Ordering::SeqCst);
                Ok(chunk)
            })
        })
    }

    fn poll_exit(&mut self, context: &mut Context<'_>) -> Poll<Result<Exit>> {
        Pin::new(&mut self.exit)
            .poll(context)
            .map(|exit| Ok(exit.unwrap()))
    }

    fn end(&mut self, grace: Duration) {
        self.tree.ends.lock().unwrap().push(grace);
        self.tree.term.cancel();
        let kill = self.tree.kill.clone();
        if grace.is_zero() {
            kill.cancel();
        } else {
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                kill.cancel();
            });
        }
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let tree = Arc::clone(&self.tree);
        let gone = self.gone.get_or_insert_with(|| {
            Box::pin(async move {
                let mut live = tree.live.subscribe();
                live.wait_for(|live| *live == 0).await.unwrap();
            })
        });
        gone.as_mut().poll(context)
    }

    fn resize(&mut self, size: PtySize) {
        self.tree.resizes.lock().unwrap().push(size);
    }

    fn release(self: Box<Self>) {
        self.tree.released.store(true, Ordering::SeqCst);
    }
}

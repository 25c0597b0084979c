//! A small backend of ordinary processes and directories: enough of the contract for the cases that the tests choose.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use sandbox_core::{
    Backend, ByteStream, Caps, CapturedFile, Checked, Cmd, ContainerName, ContainerSpec, DirEntry,
    DuplexStream, EndedBy, Env, Error, ExecResult, Execution, ExitStatus, FileKind, FileStat,
    Handle, InputFile, NetworkMode, OutputStream, PathRole, Program, Result, SandboxId,
    SandboxPath, SnapshotRef, Support,
};
use tokio::io::AsyncReadExt;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct Plain {
    root: PathBuf,
    live: Mutex<BTreeMap<SandboxId, (Handle, Env)>>,
}

pub(crate) async fn plain(scratch: PathBuf) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Checked::new(Plain {
        root: scratch,
        live: Mutex::default(),
    })))
}

impl Plain {
    fn host(&self, handle: &Handle, path: &SandboxPath) -> PathBuf {
        let joined = handle.workdir.join(path);
        PathBuf::from(std::ffi::OsString::from_vec(joined.as_bytes().to_vec()))
    }
}

fn told(error: std::io::Error, path: &SandboxPath) -> Error {
    let path = path.to_text();
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound {
            role: PathRole::Path,
            path,
        },
        std::io::ErrorKind::NotADirectory => Error::NotADirectory { path },
        std::io::ErrorKind::IsADirectory => Error::IsADirectory { path },
        std::io::ErrorKind::PermissionDenied => Error::PermissionDenied { path },
        _ => Error::io(path, error),
    }
}

fn absent(operation: &str) -> Error {
    Error::Unsupported {
        backend: "plain".into(),
        operation: operation.into(),
        reason: String::new(),
    }
}

async fn run(mut command: tokio::process::Command, mut sink: sandbox_core::ExecutionSink) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(_) => return,
    };
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return;
    };
    let (mut out_open, mut err_open) = (true, true);
    let (mut out_buffer, mut err_buffer) = (vec![0; 8192], vec![0; 8192]);
    while out_open || err_open {
        let (stream, data) = tokio::select! {
            read = out.read(&mut out_buffer), if out_open => {
                let count = read.unwrap_or(0);
                out_open = count > 0;
                (OutputStream::Stdout, out_buffer[..count].to_vec())
            }
            read = err.read(&mut err_buffer), if err_open => {
                let count = read.unwrap_or(0);
                err_open = count > 0;
                (OutputStream::Stderr, err_buffer[..count].to_vec())
            }
        };
        sink.send(stream, data.into()).await;
    }
    let status = child.wait().await.ok().and_then(|status| {
        let code = status.code().map(ExitStatus::Code);
        code.or(status.signal().map(ExitStatus::Signal))
    });
    sink.finish(ExecResult::new(status, EndedBy::Exited));
}

#[async_trait]
impl Backend for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn capabilities(&self) -> Caps {
        let mut caps = Caps::default();
        caps.workdir = Support::Yes;
        caps.shell = Some("sh".into());
        caps.exact_signals = Support::Yes;
        caps.networks = vec![NetworkMode::Host];
        caps
    }

    async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let id = SandboxId::new(format!("plain-{number}"))?;
        let dir = self.root.join(id.as_str());
        fs::create_dir(&dir).map_err(|error| Error::io("making the workdir", error))?;
        let workdir = SandboxPath::new(dir.as_os_str().as_encoded_bytes())?;
        let handle = Handle::new(spec.name, id.clone(), workdir);
        self.live
            .lock()
            .unwrap()
            .insert(id, (handle.clone(), spec.env));
        Ok(handle)
    }

    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
        let argv: Vec<Vec<u8>> = match &cmd.program {
            Program::Argv(argv) => argv.clone(),
            Program::Shell(script) => vec![b"sh".to_vec(), b"-c".to_vec(), script.clone()],
            _ => return Err(absent("this kind of program")),
        };
        let env = self.live.lock().unwrap()[&handle.id]
            .1
            .clone()
            .merged(&cmd.env);
        let workdir = handle.workdir.to_text();
        let mut words = argv.into_iter().map(std::ffi::OsString::from_vec);
        let mut command = tokio::process::Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .env_clear()
            .envs([
                ("PATH", "/usr/bin:/bin"),
                ("HOME", &workdir),
                ("TMPDIR", "/tmp"),
                ("LANG", "C"),
            ])
            .envs(env.iter().map(|(name, value)| {
                let text = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
                (text(name), text(value))
            }))
            .current_dir(Path::new(&workdir))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let (execution, sink) = Execution::channel(cmd.limits, None);
        tokio::spawn(run(command, sink));
        Ok(execution)
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        paths
            .iter()
            .map(|path| {
                let content =
                    fs::read(self.host(handle, path)).map_err(|error| told(error, path))?;
                Ok(CapturedFile {
                    path: path.clone(),
                    content: content.into(),
                })
            })
            .collect()
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        for file in files {
            let content = ByteStream::from_bytes(file.content);
            self.write_file_at(handle, &file.path, content).await?;
        }
        Ok(())
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        let content = fs::read(self.host(handle, path)).map_err(|error| told(error, path))?;
        Ok(ByteStream::from_bytes(content))
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        let content = content.collect(1 << 30).await?;
        let host = self.host(handle, path);
        if let Some(parent) = host.parent() {
            fs::create_dir_all(parent).map_err(|error| told(error, path))?;
        }
        fs::write(host, content).map_err(|error| told(error, path))
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        let found = fs::metadata(self.host(handle, path)).map_err(|error| told(error, path))?;
        let kind = if found.is_dir() {
            FileKind::Directory
        } else if found.is_file() {
            FileKind::File
        } else {
            FileKind::Other
        };
        Ok(FileStat {
            kind,
            size: found.len(),
        })
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        let entries = fs::read_dir(self.host(handle, dir)).map_err(|error| told(error, dir))?;
        entries
            .map(|entry| {
                let entry = entry.map_err(|error| told(error, dir))?;
                let found = entry.file_type().map_err(|error| told(error, dir))?;
                let kind = if found.is_symlink() {
                    FileKind::Symlink
                } else if found.is_dir() {
                    FileKind::Directory
                } else if found.is_file() {
                    FileKind::File
                } else {
                    FileKind::Other
                };
                Ok(DirEntry {
                    name: entry.file_name().into_vec(),
                    kind,
                })
            })
            .collect()
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        fs::remove_file(self.host(handle, path)).map_err(|error| told(error, path))
    }

    async fn read_tree_at(&self, _: &Handle, _: &SandboxPath) -> Result<ByteStream> {
        Err(absent("trees"))
    }

    async fn write_tree_at(&self, _: &Handle, _: &SandboxPath, _: ByteStream) -> Result<()> {
        Err(absent("trees"))
    }

    async fn dial(&self, _: &Handle, _: u16) -> Result<DuplexStream> {
        Err(absent("dial"))
    }

    async fn snapshot(&self, _: &Handle) -> Result<SnapshotRef> {
        Err(absent("snapshot"))
    }

    async fn restore(&self, _: &SnapshotRef, _: ContainerName) -> Result<Handle> {
        Err(absent("restore"))
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        let live = self.live.lock().unwrap();
        Ok(live.values().map(|(handle, _)| handle.clone()).collect())
    }

    async fn attach(&self, _: &SandboxId) -> Result<Handle> {
        Err(absent("attach"))
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        self.live.lock().unwrap().remove(&handle.id);
        fs::remove_dir_all(self.root.join(handle.id.as_str()))
            .map_err(|error| Error::io("removing the workdir", error))
    }
}

//! The session: what an agent does in one sandbox.

mod process;
mod text;

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use crate::backend::Backend;
use crate::cancel::CancelToken;
use crate::cmd::{Cmd, Stdin};
use crate::error::{Error, Result};
use crate::execution::{EndedBy, ExecResult};
use crate::ext::some_if_present;
use crate::file::{ByteStream, DirEntry, FileStat};
use crate::handle::Handle;
use crate::path::SandboxPath;
use crate::spec::NetworkMode;

pub use process::{ProcessExit, SessionProcess};
pub use text::{Encoding, LineRange};

/// One sandbox as an agent uses it: commands and files, all from the same base directory (rules SESS-1 to SESS-5).
///
/// Relative paths, also the working directory of commands, start at [`workdir`](Session::workdir); nothing carries over from one
/// command to the next. What is absent is `None` or `false`; every other failure is an error, and a dead sandbox always is. Any
/// call can be tied to a [`CancelToken`] and then fails with the caller's own reason. A session owns nothing: `destroy` the
/// sandbox through its backend.
///
/// ```
/// use sandbox_core::{Result, Session};
///
/// async fn example(session: &Session) -> Result<()> {
///     session.write_text("hello.txt", "hello\n").await?;
///     let output = session.run("cat hello.txt; exit 3").await?;
///     assert_eq!((output.exit_code, output.stdout.as_str()), (3, "hello\n"));
///     assert_eq!(session.read_text("absent.txt").await?, None);
///     assert!(session.delete_file("hello.txt").await?);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Session {
    backend: Arc<dyn Backend>,
    handle: Handle,
    network: Option<NetworkMode>,
    max_read: u64,
}

/// How a command that was [`run`](Session::run) ended.
///
/// ```
/// # use sandbox_core::{Result, Session};
/// async fn tests_pass(session: &Session) -> Result<bool> {
///     Ok(session.run("cargo test").await?.exit_code == 0)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunOutput {
    /// The exit code as a shell reports it: 128 + n for signal n.
    pub exit_code: i32,
    /// Standard output as text; bytes that are not UTF-8 became U+FFFD.
    pub stdout: String,
    /// Standard error as text, likewise.
    pub stderr: String,
    /// Whether there was more standard output than was kept.
    pub stdout_truncated: bool,
    /// Whether there was more standard error than was kept.
    pub stderr_truncated: bool,
    /// Why it ended; never `Cancelled`, which is an error.
    pub ended_by: EndedBy,
}

/// A path, and what else a file call may be told. Texts and [`SandboxPath`]s become one by `into`.
///
/// ```
/// use sandbox_core::{CancelToken, FileOptions};
/// let _ = FileOptions::new("src/main.rs").cancel(CancelToken::new());
/// let _: FileOptions = "src/main.rs".into();
/// ```
#[derive(Debug, Clone)]
pub struct FileOptions {
    path: Vec<u8>,
    cancel: Option<CancelToken>,
    encoding: Encoding,
    lines: LineRange,
}

impl FileOptions {
    /// A path; it is checked when it is used.
    ///
    /// ```
    /// let _ = sandbox_core::FileOptions::new(b"\xff");
    /// ```
    pub fn new(path: impl AsRef<[u8]>) -> Self {
        FileOptions {
            path: path.as_ref().to_vec(),
            cancel: None,
            encoding: Encoding::default(),
            lines: LineRange::default(),
        }
    }

    /// Ties the call to a token: cancelled before, it does nothing; cancelled meanwhile, it stops. Either way the call fails with
    /// the token's reason. A stream that was given out stops too.
    ///
    /// ```
    /// # use sandbox_core::{CancelToken, FileOptions};
    /// let _ = FileOptions::new("a").cancel(CancelToken::new());
    /// ```
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// The encoding of a text call; UTF-8 by default. Other calls ignore it.
    ///
    /// ```
    /// # use sandbox_core::{Encoding, FileOptions};
    /// let _ = FileOptions::new("a").encoding("latin1".parse::<Encoding>()?);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    #[must_use]
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// The lines that [`Session::read_text`] gives; all by default. Other calls ignore it.
    ///
    /// ```
    /// # use sandbox_core::{FileOptions, LineRange};
    /// let _ = FileOptions::new("a").lines(LineRange::new(Some(10), Some(20)));
    /// ```
    #[must_use]
    pub fn lines(mut self, lines: LineRange) -> Self {
        self.lines = lines;
        self
    }

    /// The checked path, unless the call is cancelled already.
    fn check(&self) -> Result<SandboxPath> {
        let path = SandboxPath::new(&self.path)?;
        match &self.cancel {
            Some(token) if token.is_cancelled() => Err(token.error()),
            _ => Ok(path),
        }
    }
}

impl From<&str> for FileOptions {
    fn from(path: &str) -> Self {
        FileOptions::new(path)
    }
}

impl From<String> for FileOptions {
    fn from(path: String) -> Self {
        FileOptions::new(path)
    }
}

impl From<&[u8]> for FileOptions {
    fn from(path: &[u8]) -> Self {
        FileOptions::new(path)
    }
}

impl From<SandboxPath> for FileOptions {
    fn from(path: SandboxPath) -> Self {
        FileOptions::new(path.as_bytes())
    }
}

impl From<&SandboxPath> for FileOptions {
    fn from(path: &SandboxPath) -> Self {
        FileOptions::new(path.as_bytes())
    }
}

impl Session {
    /// What [`read_bytes`](Session::read_bytes) and [`read_text`](Session::read_text) read at most unless told otherwise, in
    /// bytes: 64 MiB.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Session::MAX_READ, 67_108_864);
    /// ```
    pub const MAX_READ: u64 = 64 << 20;

    /// A session in a live sandbox.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use sandbox_core::{Backend, Handle, Session};
    /// fn open(backend: Arc<dyn Backend>, handle: Handle) -> Session {
    ///     Session::new(backend, handle)
    /// }
    /// ```
    pub fn new(backend: Arc<dyn Backend>, handle: Handle) -> Self {
        Session {
            backend,
            handle,
            network: None,
            max_read: Session::MAX_READ,
        }
    }

    /// Names the network mode that the sandbox was made with, for the description.
    ///
    /// ```
    /// # use sandbox_core::{NetworkMode, Session};
    /// fn offline(session: Session) -> Session {
    ///     session.with_network(NetworkMode::None)
    /// }
    /// ```
    #[must_use]
    pub fn with_network(mut self, mode: NetworkMode) -> Self {
        self.network = Some(mode);
        self
    }

    /// Sets what whole-file reads read at most, in bytes.
    ///
    /// ```
    /// # use sandbox_core::Session;
    /// fn small(session: Session) -> Session {
    ///     session.with_max_read(1 << 20)
    /// }
    /// ```
    #[must_use]
    pub fn with_max_read(mut self, limit: u64) -> Self {
        self.max_read = limit;
        self
    }

    /// The sandbox.
    ///
    /// ```
    /// # use sandbox_core::Session;
    /// fn id(session: &Session) -> &str {
    ///     session.handle().id.as_str()
    /// }
    /// ```
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The absolute directory at which relative paths start and in which commands start.
    ///
    /// ```
    /// # use sandbox_core::Session;
    /// fn base(session: &Session) -> String {
    ///     session.workdir().to_text()
    /// }
    /// ```
    pub fn workdir(&self) -> &SandboxPath {
        &self.handle.workdir
    }

    /// What an agent should know of its surroundings, as text for its instructions: base directory, shell, network, published
    /// ports; and in capitals if nothing isolates it.
    ///
    /// ```
    /// # use sandbox_core::Session;
    /// fn instructions(session: &Session) -> String {
    ///     format!("You can run commands.\n{}", session.description())
    /// }
    /// ```
    pub fn description(&self) -> String {
        let caps = self.backend.capabilities();
        let mut text = String::new();
        let walls = caps.isolation.walls();
        if !caps.isolation.root.is_yes() && !caps.isolation.processes.is_yes() {
            text.push_str(
                "WARNING: NOT SANDBOXED. Commands run directly on this machine and can change its files.\n",
            );
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Sandbox: {} ({} backend)",
            self.handle.name,
            self.backend.name()
        );
        let _ = writeln!(text, "Current working directory: {}", self.handle.workdir);
        let _ = match &caps.shell {
            Some(shell) => writeln!(text, "Shell: {shell}"),
            None => writeln!(text, "Shell: the one of its image, if any"),
        };
        match &self.network {
            Some(NetworkMode::None) => text.push_str("Network: none, only its own loopback\n"),
            Some(NetworkMode::Host) => text.push_str("Network: the host's, unfiltered\n"),
            Some(mode) => {
                let _ = writeln!(text, "Network: {mode}");
            }
            None => {}
        }
        for (inside, address) in &self.handle.ports {
            let _ = writeln!(text, "Port {inside} is published at {address}");
        }
        for (wall, support) in walls {
            if let Some(reason) = support.reason() {
                let _ = writeln!(text, "Not isolated by: {wall} ({reason})");
            }
        }
        text
    }

    /// Runs a command to its end. A text is a script for the sandbox's shell; a [`Cmd`] can say more: argv, directory, environment,
    /// timeout, user, token. Output is kept up to the command's [limits](crate::OutputLimits) (8 MiB and 1 MiB unless set).
    ///
    /// # Errors
    /// Those of [`Backend::exec`]; `InvalidSpec` for piped input, which needs [`spawn`](Session::spawn); `Cancelled` with the
    /// caller's reason, after the whole tree has ended; a failure of the transport. A non-zero exit is none.
    ///
    /// ```
    /// # use sandbox_core::{Cmd, Result, Session};
    /// async fn check(session: &Session) -> Result<String> {
    ///     let cmd = Cmd::shell("make check").cwd("project")?.env("CI", "1");
    ///     Ok(session.run(cmd).await?.stdout)
    /// }
    /// ```
    pub async fn run(&self, cmd: impl Into<Cmd>) -> Result<RunOutput> {
        let cmd = cmd.into();
        if matches!(cmd.stdin, Stdin::Piped) {
            return Err(Error::invalid_spec(
                "stdin",
                "nobody can write to it while the command is run; use spawn, or give the bytes",
            ));
        }
        let cancel = cmd.cancel.clone();
        let exec = self.backend.exec(&self.handle, cmd);
        let result = cancellable(cancel.as_ref(), exec).await?.wait().await;
        let exit_code = exit_code(&result, cancel.as_ref())?;
        Ok(RunOutput {
            exit_code,
            stdout: String::from_utf8_lossy(&result.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&result.stderr).into_owned(),
            stdout_truncated: result.stdout_truncated,
            stderr_truncated: result.stderr_truncated,
            ended_by: result.ended_by,
        })
    }

    /// Starts a command and gives it while it runs. As [`run`](Session::run), but with live streams of exact bytes and, with
    /// [`Cmd::stdin_piped`], a writer.
    ///
    /// # Errors
    /// Those of [`Backend::exec`]; the command was then not started.
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn serve(session: &Session) -> Result<()> {
    ///     let mut server = session.spawn("python3 -m http.server 8000").await?;
    ///     let mut log = server.take_stderr().unwrap();
    ///     let first = log.next().await;
    ///     server.kill();
    ///     assert_ne!(server.wait().await?.exit_code, 0);
    ///     Ok(())
    /// }
    /// ```
    pub async fn spawn(&self, cmd: impl Into<Cmd>) -> Result<SessionProcess> {
        let cmd = cmd.into();
        let cancel = cmd.cancel.clone();
        let exec = self.backend.exec(&self.handle, cmd);
        let execution = cancellable(cancel.as_ref(), exec).await?;
        Ok(SessionProcess::new(execution, cancel))
    }

    /// Streams a file; `None` if it is absent.
    ///
    /// # Errors
    /// Those of [`Backend::read_file_at`] but for `NotFound` and `NotADirectory`; `Cancelled`.
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn size(session: &Session) -> Result<usize> {
    ///     let Some(mut stream) = session.read_file("big").await? else { return Ok(0) };
    ///     let mut size = 0;
    ///     while let Some(chunk) = stream.next().await {
    ///         size += chunk?.len();
    ///     }
    ///     Ok(size)
    /// }
    /// ```
    pub async fn read_file(&self, options: impl Into<FileOptions>) -> Result<Option<ByteStream>> {
        let options = options.into();
        let path = options.check()?;
        let read = self.backend.read_file_at(&self.handle, &path);
        let stream = some_if_present(cancellable(options.cancel.as_ref(), read).await)?;
        Ok(stream.map(|stream| match options.cancel {
            Some(token) => cancellable_stream(token, stream),
            None => stream,
        }))
    }

    /// Reads a whole file; `None` if it is absent.
    ///
    /// # Errors
    /// `TooLarge` beyond [`MAX_READ`](Session::MAX_READ), else as [`read_file`](Session::read_file).
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn ready(session: &Session) -> Result<bool> {
    ///     Ok(session.read_bytes(".ready").await?.is_some())
    /// }
    /// ```
    pub async fn read_bytes(&self, options: impl Into<FileOptions>) -> Result<Option<Bytes>> {
        match self.read_file(options).await? {
            Some(stream) => stream.collect(self.max_read).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads a whole file as text, or a range of its lines; `None` if it is absent.
    ///
    /// # Errors
    /// As [`read_bytes`](Session::read_bytes). Bytes that the encoding does not know are no error (see [`Encoding`]).
    ///
    /// ```
    /// # use sandbox_core::{FileOptions, LineRange, Result, Session};
    /// async fn head(session: &Session) -> Result<Option<String>> {
    ///     session.read_text(FileOptions::new("a.txt").lines(LineRange::new(None, Some(10)))).await
    /// }
    /// ```
    pub async fn read_text(&self, options: impl Into<FileOptions>) -> Result<Option<String>> {
        let options = options.into();
        let (encoding, lines) = (options.encoding, options.lines);
        let bytes = self.read_bytes(options).await?;
        Ok(bytes.map(|bytes| lines.of(encoding.decode(&bytes))))
    }

    /// Writes a file from a stream, with its parents. If the stream fails, the old file stays.
    ///
    /// # Errors
    /// The stream's own; those of [`Backend::write_file_at`]; `Cancelled`.
    ///
    /// ```
    /// # use sandbox_core::{ByteStream, Result, Session};
    /// async fn upload(session: &Session, content: ByteStream) -> Result<()> {
    ///     session.write_file("data/input.bin", content).await
    /// }
    /// ```
    pub async fn write_file(
        &self,
        options: impl Into<FileOptions>,
        content: ByteStream,
    ) -> Result<()> {
        let options = options.into();
        let path = options.check()?;
        let write = self.backend.write_file_at(&self.handle, &path, content);
        cancellable(options.cancel.as_ref(), write).await
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// As [`write_file`](Session::write_file).
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn mark(session: &Session) -> Result<()> {
    ///     session.write_bytes(".ready", "").await
    /// }
    /// ```
    pub async fn write_bytes(
        &self,
        options: impl Into<FileOptions>,
        content: impl Into<Bytes>,
    ) -> Result<()> {
        self.write_file(options, ByteStream::from_bytes(content))
            .await
    }

    /// Writes a whole file from text, in the options' encoding.
    ///
    /// # Errors
    /// As [`write_file`](Session::write_file).
    ///
    /// ```
    /// # use sandbox_core::{Encoding, FileOptions, Result, Session};
    /// async fn write(session: &Session) -> Result<()> {
    ///     session.write_text(FileOptions::new("a.txt").encoding(Encoding::Utf16Le), "é").await
    /// }
    /// ```
    pub async fn write_text(&self, options: impl Into<FileOptions>, text: &str) -> Result<()> {
        let options = options.into();
        let content = options.encoding.encode(text);
        self.write_bytes(options, content).await
    }

    /// What is at a path, symbolic links followed; `None` if nothing is.
    ///
    /// # Errors
    /// Those of [`Backend::stat_at`] but for `NotFound` and `NotADirectory`; `Cancelled`.
    ///
    /// ```
    /// # use sandbox_core::{FileKind, Result, Session};
    /// async fn is_directory(session: &Session, path: &str) -> Result<bool> {
    ///     Ok(session.stat(path).await?.is_some_and(|stat| stat.kind == FileKind::Directory))
    /// }
    /// ```
    pub async fn stat(&self, options: impl Into<FileOptions>) -> Result<Option<FileStat>> {
        let options = options.into();
        let path = options.check()?;
        let stat = self.backend.stat_at(&self.handle, &path);
        some_if_present(cancellable(options.cancel.as_ref(), stat).await)
    }

    /// One level of a directory, in no order; `None` if it is absent.
    ///
    /// # Errors
    /// `NotADirectory` for something else; those of [`Backend::list_dir_at`] but for `NotFound`; `Cancelled`.
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn count(session: &Session) -> Result<usize> {
    ///     Ok(session.list_dir(".").await?.map_or(0, |entries| entries.len()))
    /// }
    /// ```
    pub async fn list_dir(&self, options: impl Into<FileOptions>) -> Result<Option<Vec<DirEntry>>> {
        let options = options.into();
        let path = options.check()?;
        let list = self.backend.list_dir_at(&self.handle, &path);
        match cancellable(options.cancel.as_ref(), list).await {
            // Either the path is a file, which is an error, or it lies below one, which makes it absent.
            Err(error @ Error::NotADirectory { .. }) => match self.stat(options).await? {
                Some(_) => Err(error),
                None => Ok(None),
            },
            result => some_if_present(result),
        }
    }

    /// Removes a file, or a symbolic link itself; `false` if it is absent.
    ///
    /// # Errors
    /// `IsADirectory`; those of [`Backend::delete_file_at`] but for `NotFound` and `NotADirectory`; `Cancelled`.
    ///
    /// ```
    /// # use sandbox_core::{Result, Session};
    /// async fn clean(session: &Session) -> Result<bool> {
    ///     session.delete_file("a.out").await
    /// }
    /// ```
    pub async fn delete_file(&self, options: impl Into<FileOptions>) -> Result<bool> {
        let options = options.into();
        let path = options.check()?;
        let delete = self.backend.delete_file_at(&self.handle, &path);
        let deleted = some_if_present(cancellable(options.cancel.as_ref(), delete).await)?;
        Ok(deleted.is_some())
    }
}

/// The call, unless the token comes first; the call is then dropped, which cancels it.
async fn cancellable<T>(
    token: Option<&CancelToken>,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(token) = token else {
        return call.await;
    };
    tokio::select! {
        biased;
        () = token.cancelled() => Err(token.error()),
        result = call => result,
    }
}

fn cancellable_stream(token: CancelToken, stream: ByteStream) -> ByteStream {
    ByteStream::new(futures_util::stream::unfold(
        (token, stream),
        |(token, mut stream)| async move {
            let next = async { stream.next().await.transpose() };
            let next = cancellable(Some(&token), next).await.transpose()?;
            Some((next, (token, stream)))
        },
    ))
}

/// The exit code of a command that ended, unless it was cancelled by the caller or its end is unknown.
fn exit_code(result: &ExecResult, cancel: Option<&CancelToken>) -> Result<i32> {
    if result.ended_by == EndedBy::Cancelled
        && let Some(token) = cancel.filter(|token| token.is_cancelled())
    {
        return Err(token.error());
    }
    if let Some(error) = &result.error {
        return Err(error.duplicate());
    }
    result.code().ok_or_else(|| Error::Unavailable {
        target: "the command".into(),
        never_started: false,
        detail: "the backend did not say how it ended".into(),
    })
}

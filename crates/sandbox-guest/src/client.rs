//! The host's side of a guest.

use std::fmt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use sandbox_core::tree::TreeLimits;
use sandbox_core::{
    ByteStream, Cmd, DirEntry, DuplexStream, Env, Error, Execution, FileStat, Result, SandboxPath,
    User,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::connection::Connection;
use crate::transport::{Reader, Writer};
use crate::{exec, files};

/// What a command inherits from its sandbox.
///
/// ```
/// use sandbox_core::Env;
/// use sandbox_guest::ExecContext;
/// let context = ExecContext::new(Env::new().with("PATH", "/usr/bin:/bin"), "/bin/sh");
/// assert!(context.oom_kills.is_none());
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ExecContext {
    /// The base environment with the sandbox's over it. `HOME`, `USER` and `LOGNAME` are added by the guest where absent.
    pub env: Env,
    /// The program that runs shell commands: it is given `-c` and the script.
    pub shell: Vec<u8>,
    /// Counts processes that the sandbox's memory limit has killed; absent if that is not known.
    pub oom_kills: Option<Arc<dyn Fn() -> Option<u64> + Send + Sync>>,
}

impl ExecContext {
    /// An environment and a shell.
    ///
    /// ```
    /// # use sandbox_core::Env;
    /// # use sandbox_guest::ExecContext;
    /// let context = ExecContext::new(Env::new(), "/bin/bash");
    /// assert_eq!(context.shell, b"/bin/bash");
    /// ```
    pub fn new(env: Env, shell: impl Into<Vec<u8>>) -> Self {
        ExecContext {
            env,
            shell: shell.into(),
            oom_kills: None,
        }
    }
}

impl fmt::Debug for ExecContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecContext")
            .field("env", &self.env)
            .field("shell", &String::from_utf8_lossy(&self.shell))
            .finish_non_exhaustive()
    }
}

/// A connection to the guest of one sandbox; clones share it. When the last one is dropped the connection closes.
///
/// Every call may be cancelled by dropping its future. When the connection is lost, calls answer `Unavailable` and running commands
/// end with that as their error.
///
/// ```no_run
/// # async fn example(socket: std::os::unix::net::UnixStream) -> sandbox_core::Result<()> {
/// use sandbox_core::{Cmd, Env};
/// use sandbox_guest::{ExecContext, GuestClient};
///
/// let guest = GuestClient::connect_local(socket).await?;
/// let context = ExecContext::new(Env::new().with("PATH", "/usr/bin:/bin"), "/bin/sh");
/// let result = guest.exec(&Cmd::argv(["echo", "hello"]), context).await?.wait().await;
/// assert_eq!(&result.stdout[..], b"hello\n");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct GuestClient(Arc<Connection>);

impl GuestClient {
    /// Connects to a guest on the same kernel: pipe ends, files and connections are passed as descriptors. Needs a tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` if the guest does not answer, or speaks another version of the protocol.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    /// drop(far);
    /// let error = sandbox_guest::GuestClient::connect_local(near).await.unwrap_err();
    /// assert_eq!(error.kind(), sandbox_core::ErrorKind::Unavailable);
    /// # });
    /// ```
    pub async fn connect_local(socket: StdUnixStream) -> Result<GuestClient> {
        let io = |error| Error::io("using the socket of a sandbox", error);
        socket.set_nonblocking(true).map_err(io)?;
        let socket = Arc::new(UnixStream::from_std(socket).map_err(io)?);
        let reader = Reader::Local(socket.clone());
        let writer = Writer::Local(socket.clone());
        Connection::open(reader, writer, Some(Writer::Local(socket)), true)
            .await
            .map(GuestClient)
    }

    /// Connects to a guest over any byte stream: everything travels in frames.
    ///
    /// # Errors
    /// As [`connect_local`](Self::connect_local).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (near, far) = tokio::io::duplex(1024);
    /// drop(far);
    /// assert!(sandbox_guest::GuestClient::connect(near).await.is_err());
    /// # });
    /// ```
    pub async fn connect(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> Result<GuestClient> {
        let (reader, writer) = tokio::io::split(stream);
        let (reader, writer) = (
            Reader::Stream(Box::pin(reader)),
            Writer::Stream(Box::pin(writer)),
        );
        Connection::open(reader, writer, None, false)
            .await
            .map(GuestClient)
    }

    /// Makes a user of the sandbox's database the default one of commands and file calls.
    ///
    /// # Errors
    /// `UserNotFound`.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// guest.set_default_user(&"nobody".parse()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn set_default_user(&self, user: &User) -> Result<()> {
        files::set_default_user(&self.0, user).await
    }

    /// Starts a command ([`Backend::exec`](sandbox_core::Backend::exec)).
    ///
    /// # Errors
    /// Those of `Backend::exec`: the command was not started.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient, context: sandbox_guest::ExecContext) -> sandbox_core::Result<()> {
    /// let mut execution = guest.exec(&sandbox_core::Cmd::shell("exit 3"), context).await?;
    /// assert_eq!(execution.wait().await.code(), Some(3));
    /// # Ok(()) }
    /// ```
    pub async fn exec(&self, cmd: &Cmd, context: ExecContext) -> Result<Execution> {
        exec::exec(&self.0, cmd, context).await
    }

    /// Streams a regular file.
    ///
    /// # Errors
    /// The kinds of FILE-3.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// let content = guest.read_file(&"out.txt".try_into()?).await?.collect(1 << 20).await?;
    /// # Ok(()) }
    /// ```
    pub async fn read_file(&self, path: &SandboxPath) -> Result<ByteStream> {
        files::read(&self.0, path).await
    }

    /// Writes a file atomically, with its parents.
    ///
    /// # Errors
    /// The kinds of FILE-3, or the content's own error; then the old file stays.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// guest.write_file(&"in.txt".try_into()?, sandbox_core::ByteStream::from_bytes("x")).await?;
    /// # Ok(()) }
    /// ```
    pub async fn write_file(&self, path: &SandboxPath, content: ByteStream) -> Result<()> {
        files::write(&self.0, path, content).await
    }

    /// What is at a path, symbolic links followed.
    ///
    /// # Errors
    /// The kinds of FILE-3.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// assert!(guest.stat(&"/etc/passwd".try_into()?).await?.size > 0);
    /// # Ok(()) }
    /// ```
    pub async fn stat(&self, path: &SandboxPath) -> Result<FileStat> {
        files::stat(&self.0, path).await
    }

    /// One level of a directory.
    ///
    /// # Errors
    /// The kinds of FILE-3.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// let entries = guest.list_dir(&"/".try_into()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn list_dir(&self, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(&self.0, dir).await
    }

    /// Removes a file or a symbolic link itself.
    ///
    /// # Errors
    /// The kinds of FILE-3.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// guest.delete_file(&"in.txt".try_into()?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn delete_file(&self, path: &SandboxPath) -> Result<()> {
        files::delete(&self.0, path).await
    }

    /// Streams a directory as a deterministic gzip tar.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`; later, in the stream, `TooLarge`.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// let archive = guest.read_tree(&".".try_into()?, Default::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn read_tree(&self, dir: &SandboxPath, limits: TreeLimits) -> Result<ByteStream> {
        files::read_tree(&self.0, dir, limits).await
    }

    /// Unpacks a gzip tar below a directory.
    ///
    /// # Errors
    /// `InvalidArchive`, `TooLarge`, the kinds of FILE-3.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient, tree: sandbox_core::ByteStream) -> sandbox_core::Result<()> {
    /// guest.write_tree(&"repo".try_into()?, tree, Default::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn write_tree(
        &self,
        dir: &SandboxPath,
        tree: ByteStream,
        limits: TreeLimits,
    ) -> Result<()> {
        files::write_tree(&self.0, dir, tree, limits).await
    }

    /// Opens a byte stream to a TCP port of the sandbox's loopback.
    ///
    /// # Errors
    /// `ConnectionRefused`.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) -> sandbox_core::Result<()> {
    /// let stream = guest.dial(8080).await?;
    /// # Ok(()) }
    /// ```
    pub async fn dial(&self, port: u16) -> Result<DuplexStream> {
        files::dial(&self.0, port).await
    }

    /// Says that the sandbox is being destroyed: commands whose connection ends report `Destroyed` instead of a lost runtime.
    ///
    /// ```no_run
    /// # fn example(guest: &sandbox_guest::GuestClient) {
    /// guest.mark_destroyed();
    /// # }
    /// ```
    pub fn mark_destroyed(&self) {
        self.0.mark_destroyed();
    }

    /// Closes the connection now, for all clones.
    ///
    /// ```no_run
    /// # fn example(guest: &sandbox_guest::GuestClient) {
    /// guest.close();
    /// # }
    /// ```
    pub fn close(&self) {
        self.0.close("this side closed it");
    }

    /// Resolves when the connection has ended.
    ///
    /// ```no_run
    /// # async fn example(guest: &sandbox_guest::GuestClient) {
    /// guest.closed().await;
    /// # }
    /// ```
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

impl fmt::Debug for GuestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuestClient")
    }
}

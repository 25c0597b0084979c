//! The contract that every backend keeps.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::caps::Caps;
use crate::cmd::Cmd;
use crate::error::Result;
use crate::execution::Execution;
use crate::file::{ByteStream, CapturedFile, DirEntry, DuplexStream, FileStat, InputFile};
use crate::handle::Handle;
use crate::name::{ContainerName, SandboxId, SnapshotRef};
use crate::path::SandboxPath;
use crate::spec::ContainerSpec;

/// Makes sandboxes, runs commands in them, moves files, takes snapshots.
///
/// # The rules
/// This trait is the short form of `docs/CONTRACT.md`; `sandbox-conformance` proves each rule. In all calls:
///
/// - **Order of checks**: handle, validity of arguments, capability, input and output (LIFE-8). A dead or foreign handle answers
///   `UnknownHandle` before anything else is looked at.
/// - **Capabilities**: what [`capabilities`](Backend::capabilities) does not declare answers `Unsupported` and changes nothing
///   (CAPS-3).
/// - **Concurrency**: calls on one handle may run at the same time and do not block one another.
/// - **Cancellation**: dropping the future of a call cancels it. `create` and `restore` then leave nothing behind (LIFE-6); a
///   file that was being written keeps its old content (FILE-4).
/// - **A dead runtime** is `Unavailable`, never an exit code, never `NotFound` (POL-1).
///
/// There are no default methods, so that a wrapper cannot lose an override silently; short forms live in
/// [`BackendExt`](crate::BackendExt). Wrap an implementation in [`Checked`](crate::Checked): it does the checks that do not need
/// the backend once, in one place.
///
/// ```
/// use sandbox_core::{Backend, Cmd, ContainerName, ContainerSpec, Result};
///
/// async fn greet(backend: &dyn Backend) -> Result<String> {
///     let handle = backend.create(ContainerSpec::workdir(ContainerName::new("greeter")?)).await?;
///     let result = backend.exec(&handle, Cmd::argv(["echo", "hello"])).await?.wait().await;
///     backend.destroy(&handle).await?;
///     Ok(String::from_utf8_lossy(&result.stdout).into_owned())
/// }
/// ```
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The backend's name, for messages: `native`, `docker`, ….
    fn name(&self) -> &str;

    /// What this backend can do here. No input or output, the same answer for its whole life (CAPS-1).
    fn capabilities(&self) -> Caps;

    /// Makes a sandbox that is ready for the next exec (LIFE-1).
    ///
    /// # Errors
    /// `InvalidSpec`, `AlreadyExists`, `Unsupported`, `ImageUnavailable`, `Isolation`, `Unavailable`. Nothing stays behind.
    async fn create(&self, spec: ContainerSpec) -> Result<Handle>;

    /// Starts a command (EXEC-1 to EXEC-20). `Err` means that it was not started; everything later is in the [`Execution`].
    ///
    /// # Errors
    /// `UnknownHandle`, `InvalidSpec`, `NotFound` or `NotExecutable` for the program, `BadCwd`, `UserNotFound`,
    /// `ArgumentsTooLong`, `Cancelled`, `SandboxExited`, `Unavailable`.
    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution>;

    /// Reads whole files: in input order, all or nothing (FILE-6).
    ///
    /// # Errors
    /// The kinds of FILE-3, for the first path that fails.
    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>>;

    /// Writes whole files; the last of duplicates wins (FILE-6).
    ///
    /// # Errors
    /// The kinds of FILE-3, for the first path that fails.
    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()>;

    /// Streams one regular file (FILE-5).
    ///
    /// # Errors
    /// The kinds of FILE-3.
    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream>;

    /// Writes one file atomically, with its parents (FILE-4). If `content` fails, its error is returned and the old file stays.
    ///
    /// # Errors
    /// The kinds of FILE-3.
    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()>;

    /// What is at a path, symbolic links followed (FILE-7).
    ///
    /// # Errors
    /// The kinds of FILE-3.
    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat>;

    /// One level of a directory, in no order (FILE-7).
    ///
    /// # Errors
    /// The kinds of FILE-3.
    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>>;

    /// Removes one file, or a symbolic link itself; refuses a directory (FILE-7).
    ///
    /// # Errors
    /// The kinds of FILE-3.
    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()>;

    /// Streams a directory as a deterministic gzip tar (TREE-1).
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `TooLarge`.
    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream>;

    /// Unpacks a gzip tar below a directory, which is made if absent (TREE-2 to TREE-4).
    ///
    /// # Errors
    /// `InvalidArchive`, `TooLarge`, the kinds of FILE-3.
    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()>;

    /// Opens a byte stream to a TCP port inside (NET-1).
    ///
    /// # Errors
    /// `ConnectionRefused`, `Unsupported`.
    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream>;

    /// Captures the whole difference from the base (SNAP-1).
    ///
    /// # Errors
    /// `Unsupported`, `SnapshotTooLarge`.
    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef>;

    /// Makes a new sandbox from a snapshot (SNAP-2).
    ///
    /// # Errors
    /// `Unsupported`, `InvalidSnapshot`, `NotFound`, `AlreadyExists`, and those of `create`.
    async fn restore(&self, snapshot: &SnapshotRef, name: ContainerName) -> Result<Handle>;

    /// The live sandboxes of this backend, also detached ones of earlier processes (LIFE-7).
    ///
    /// # Errors
    /// `Unavailable`.
    async fn list(&self) -> Result<Vec<Handle>>;

    /// Opens a live sandbox by id, also one that another process detached (LIFE-7).
    ///
    /// # Errors
    /// `UnknownHandle` if no live sandbox has that id, `Unavailable`.
    async fn attach(&self, id: &SandboxId) -> Result<Handle>;

    /// Ends the sandbox and frees everything it holds (LIFE-4, LIFE-5).
    ///
    /// # Errors
    /// `UnknownHandle` for a second call; if freeing fails, the handle stays known so that the call can be repeated.
    async fn destroy(&self, handle: &Handle) -> Result<()>;
}

macro_rules! forward {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $pointer<B> {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn capabilities(&self) -> Caps {
                (**self).capabilities()
            }

            async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
                (**self).create(spec).await
            }

            async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
                (**self).exec(handle, cmd).await
            }

            async fn capture_files(
                &self,
                handle: &Handle,
                paths: &[SandboxPath],
            ) -> Result<Vec<CapturedFile>> {
                (**self).capture_files(handle, paths).await
            }

            async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
                (**self).copy_to(handle, files).await
            }

            async fn read_file_at(
                &self,
                handle: &Handle,
                path: &SandboxPath,
            ) -> Result<ByteStream> {
                (**self).read_file_at(handle, path).await
            }

            async fn write_file_at(
                &self,
                handle: &Handle,
                path: &SandboxPath,
                content: ByteStream,
            ) -> Result<()> {
                (**self).write_file_at(handle, path, content).await
            }

            async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
                (**self).stat_at(handle, path).await
            }

            async fn list_dir_at(
                &self,
                handle: &Handle,
                dir: &SandboxPath,
            ) -> Result<Vec<DirEntry>> {
                (**self).list_dir_at(handle, dir).await
            }

            async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
                (**self).delete_file_at(handle, path).await
            }

            async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
                (**self).read_tree_at(handle, dir).await
            }

            async fn write_tree_at(
                &self,
                handle: &Handle,
                dir: &SandboxPath,
                tree: ByteStream,
            ) -> Result<()> {
                (**self).write_tree_at(handle, dir, tree).await
            }

            async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
                (**self).dial(handle, port).await
            }

            async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
                (**self).snapshot(handle).await
            }

            async fn restore(&self, snapshot: &SnapshotRef, name: ContainerName) -> Result<Handle> {
                (**self).restore(snapshot, name).await
            }

            async fn list(&self) -> Result<Vec<Handle>> {
                (**self).list().await
            }

            async fn attach(&self, id: &SandboxId) -> Result<Handle> {
                (**self).attach(id).await
            }

            async fn destroy(&self, handle: &Handle) -> Result<()> {
                (**self).destroy(handle).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);

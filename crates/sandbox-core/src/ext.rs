//! Short forms of the backend's calls.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::backend::Backend;
use crate::cmd::Cmd;
use crate::error::{Error, PathRole, Result};
use crate::execution::ExecResult;
use crate::file::ByteStream;
use crate::handle::Handle;
use crate::path::SandboxPath;
use crate::session::Session;

/// Short forms for every [`Backend`], also behind `dyn`.
///
/// ```
/// use sandbox_core::{Backend, BackendExt, Handle, Result};
///
/// async fn example(backend: &dyn Backend, handle: &Handle) -> Result<()> {
///     backend.write_bytes(handle, "notes/a.txt", "hello").await?;
///     let result = backend.run_shell(handle, "wc -c < notes/a.txt").await?;
///     assert_eq!(&result.stdout[..], b"5\n");
///     assert!(backend.exists(handle, "notes").await?);
///     assert_eq!(backend.read_opt(handle, "absent", 1024).await?, None);
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait BackendExt: Backend {
    /// Runs a command to its end. Dropping the future cancels the command.
    ///
    /// # Errors
    /// Those of [`Backend::exec`]; how a started command ended is in the result.
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn compile(backend: &dyn Backend, handle: &Handle) -> Result<bool> {
    ///     Ok(backend.run(handle, Cmd::argv(["make", "all"])).await?.success())
    /// }
    /// ```
    async fn run(&self, handle: &Handle, cmd: Cmd) -> Result<ExecResult> {
        Ok(self.exec(handle, cmd).await?.wait().await)
    }

    /// Runs a script of the sandbox's shell to its end.
    ///
    /// # Errors
    /// As [`run`](BackendExt::run).
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn count(backend: &dyn Backend, handle: &Handle) -> Result<ExecResult> {
    ///     backend.run_shell(handle, "ls | wc -l").await
    /// }
    /// ```
    async fn run_shell(&self, handle: &Handle, script: &str) -> Result<ExecResult> {
        self.run(handle, Cmd::shell(script)).await
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    /// `InvalidPath`, `TooLarge`, and those of [`Backend::read_file_at`].
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn passwd(backend: &dyn Backend, handle: &Handle) -> Result<bytes::Bytes> {
    ///     backend.read_bytes(handle, "/etc/passwd", 1 << 20).await
    /// }
    /// ```
    async fn read_bytes(&self, handle: &Handle, path: &str, limit: u64) -> Result<Bytes> {
        let path = SandboxPath::new(path)?;
        self.read_file_at(handle, &path).await?.collect(limit).await
    }

    /// As [`read_bytes`](BackendExt::read_bytes); `None` if there is no such file, or if it would lie below something that is not
    /// a directory. Every other failure stays one (rule SESS-2).
    ///
    /// # Errors
    /// As [`read_bytes`](BackendExt::read_bytes), but for `NotFound` and `NotADirectory`.
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn config(backend: &dyn Backend, handle: &Handle) -> Result<Option<bytes::Bytes>> {
    ///     backend.read_opt(handle, "config.toml", 64 * 1024).await
    /// }
    /// ```
    async fn read_opt(&self, handle: &Handle, path: &str, limit: u64) -> Result<Option<Bytes>> {
        some_if_present(self.read_bytes(handle, path, limit).await)
    }

    /// Writes a whole file, with its parents.
    ///
    /// # Errors
    /// `InvalidPath`, and those of [`Backend::write_file_at`].
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn mark(backend: &dyn Backend, handle: &Handle) -> Result<()> {
    ///     backend.write_bytes(handle, ".ready", "").await
    /// }
    /// ```
    async fn write_bytes(
        &self,
        handle: &Handle,
        path: &str,
        content: impl Into<Bytes> + Send + 'async_trait,
    ) -> Result<()> {
        let path = SandboxPath::new(path)?;
        let content = ByteStream::from_bytes(content);
        self.write_file_at(handle, &path, content).await
    }

    /// Whether there is anything at a path, symbolic links followed.
    ///
    /// # Errors
    /// Those of [`Backend::stat_at`], but for `NotFound` and `NotADirectory`: a dead sandbox is never "no".
    ///
    /// ```
    /// # use sandbox_core::*;
    /// async fn built(backend: &dyn Backend, handle: &Handle) -> Result<bool> {
    ///     backend.exists(handle, "target/release").await
    /// }
    /// ```
    async fn exists(&self, handle: &Handle, path: &str) -> Result<bool> {
        let path = SandboxPath::new(path)?;
        Ok(some_if_present(self.stat_at(handle, &path).await)?.is_some())
    }

    /// A session in a sandbox of this backend.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use sandbox_core::*;
    /// fn open(backend: Arc<dyn Backend>, handle: Handle) -> Session {
    ///     backend.session(handle)
    /// }
    /// ```
    fn session(self: Arc<Self>, handle: Handle) -> Session {
        // An `Arc` of an unsized backend is itself a backend, and a sized one.
        Session::new(Arc::new(self), handle)
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}

/// Absent is an answer; everything else that went wrong is not (rule SESS-2).
pub(crate) fn some_if_present<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(
            Error::NotFound {
                role: PathRole::Path,
                ..
            }
            | Error::NotADirectory { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

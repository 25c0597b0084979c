//! How the suite gets backends.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use sandbox_core::{Backend, ContainerName, ContainerSpec, Result};

/// A future in a box, as the methods of [`Factory`] return them.
///
/// ```
/// let ready: sandbox_conformance::BoxFuture<'_, u8> = Box::pin(async { 1 });
/// # drop(ready);
/// ```
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes backends for the suite: a fresh one for each case. An async function from a scratch directory to a backend is one.
///
/// ```
/// use std::path::PathBuf;
/// use std::sync::Arc;
/// use sandbox_core::{Backend, Error, Result};
///
/// async fn make(_scratch: PathBuf) -> Result<Arc<dyn Backend>> {
///     Err(Error::invalid_spec("backend", "this one is only an example"))
/// }
/// fn takes(_: impl sandbox_conformance::Factory) {}
/// takes(make);
/// ```
pub trait Factory: Send + Sync + 'static {
    /// A backend that keeps its state below `scratch`, an existing empty directory of its own. Called again with the directory of
    /// an earlier backend it makes one that sees that one's detached sandboxes.
    ///
    /// # Errors
    /// Whatever keeps the backend from being made; the case then ends as an error of the suite.
    fn backend<'a>(&'a self, scratch: &'a Path) -> BoxFuture<'a, Result<Arc<dyn Backend>>>;

    /// The plainest sandbox of this backend; a backend of images names its image here.
    fn spec(&self, name: ContainerName) -> ContainerSpec {
        ContainerSpec::workdir(name)
    }

    /// What the backend's sandboxes left behind, asked when all are destroyed and the backend is dropped: mounts, processes,
    /// directories. Anything in it fails the case.
    fn residue<'a>(&'a self, _scratch: &'a Path) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async { Vec::new() })
    }
}

impl<F, B> Factory for F
where
    F: Fn(PathBuf) -> B + Send + Sync + 'static,
    B: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
{
    fn backend<'a>(&'a self, scratch: &'a Path) -> BoxFuture<'a, Result<Arc<dyn Backend>>> {
        Box::pin(self(scratch.to_path_buf()))
    }
}

//! A backend that remembers which sandboxes were made through it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use sandbox_core::{
    Backend, ByteStream, Caps, CapturedFile, Cmd, ContainerName, ContainerSpec, DirEntry,
    DuplexStream, Execution, FileStat, Handle, InputFile, Result, SandboxId, SandboxPath,
    SnapshotRef,
};

/// Records every sandbox that a case makes, so that the runner can end it and see what leaks.
#[derive(Debug)]
pub(crate) struct Tracked {
    inner: Arc<dyn Backend>,
    live: Mutex<BTreeMap<SandboxId, Handle>>,
}

impl Tracked {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Self {
        Tracked {
            inner,
            live: Mutex::default(),
        }
    }

    /// What was made and not yet destroyed.
    pub(crate) fn live(&self) -> Vec<Handle> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.values().cloned().collect()
    }

    fn made(&self, handle: &Handle) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(handle.id.clone(), handle.clone());
    }

    /// For sandboxes that ended in another way than through this backend's `destroy`.
    pub(crate) fn forget(&self, id: &SandboxId) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.remove(id);
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Tracked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Caps {
        self.inner.capabilities()
    }

    async fn create(&self, spec: ContainerSpec) -> Result<Handle> {
        let handle = self.inner.create(spec).await?;
        self.made(&handle);
        Ok(handle)
    }

    async fn exec(&self, handle: &Handle, cmd: Cmd) -> Result<Execution> {
        self.inner.exec(handle, cmd).await
    }

    async fn capture_files(
        &self,
        handle: &Handle,
        paths: &[SandboxPath],
    ) -> Result<Vec<CapturedFile>> {
        self.inner.capture_files(handle, paths).await
    }

    async fn copy_to(&self, handle: &Handle, files: Vec<InputFile>) -> Result<()> {
        self.inner.copy_to(handle, files).await
    }

    async fn read_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<ByteStream> {
        self.inner.read_file_at(handle, path).await
    }

    async fn write_file_at(
        &self,
        handle: &Handle,
        path: &SandboxPath,
        content: ByteStream,
    ) -> Result<()> {
        self.inner.write_file_at(handle, path, content).await
    }

    async fn stat_at(&self, handle: &Handle, path: &SandboxPath) -> Result<FileStat> {
        self.inner.stat_at(handle, path).await
    }

    async fn list_dir_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.inner.list_dir_at(handle, dir).await
    }

    async fn delete_file_at(&self, handle: &Handle, path: &SandboxPath) -> Result<()> {
        self.inner.delete_file_at(handle, path).await
    }

    async fn read_tree_at(&self, handle: &Handle, dir: &SandboxPath) -> Result<ByteStream> {
        self.inner.read_tree_at(handle, dir).await
    }

    async fn write_tree_at(
        &self,
        handle: &Handle,
        dir: &SandboxPath,
        tree: ByteStream,
    ) -> Result<()> {
        self.inner.write_tree_at(handle, dir, tree).await
    }

    async fn dial(&self, handle: &Handle, port: u16) -> Result<DuplexStream> {
        self.inner.dial(handle, port).await
    }

    async fn snapshot(&self, handle: &Handle) -> Result<SnapshotRef> {
        self.inner.snapshot(handle).await
    }

    async fn restore(&self, snapshot: &SnapshotRef, name: ContainerName) -> Result<Handle> {
        let handle = self.inner.restore(snapshot, name).await?;
        self.made(&handle);
        Ok(handle)
    }

    async fn list(&self) -> Result<Vec<Handle>> {
        self.inner.list().await
    }

    async fn attach(&self, id: &SandboxId) -> Result<Handle> {
        self.inner.attach(id).await
    }

    async fn destroy(&self, handle: &Handle) -> Result<()> {
        self.inner.destroy(handle).await?;
        self.forget(&handle.id);
        Ok(())
    }
}

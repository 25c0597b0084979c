//! What names a live sandbox.

use std::net::SocketAddr;

use crate::name::{ContainerName, SandboxId};
use crate::path::SandboxPath;

/// Names one live sandbox of one backend. Cheap to clone; dropping it frees nothing (`destroy` does).
///
/// ```
/// use sandbox_core::{ContainerName, Handle, SandboxId, SandboxPath};
/// let handle = Handle::new(ContainerName::new("lab")?, SandboxId::new("native-1")?, SandboxPath::new("/work")?);
/// assert_eq!(handle.name.as_str(), "lab");
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Handle {
    /// The name from the spec.
    pub name: ContainerName,
    /// Unique for ever.
    pub id: SandboxId,
    /// The absolute directory in which commands start and at which relative paths begin.
    pub workdir: SandboxPath,
    /// Compose mode: the service that calls with this handle go to; the spec's service if absent.
    pub service: Option<String>,
    /// Image mode: the digest of the image that booted.
    pub resolved_image_digest: Option<String>,
    /// Ports published on the host: the port inside and its real address.
    pub ports: Vec<(u16, SocketAddr)>,
}

impl Handle {
    /// A handle without service, image or ports; backends fill those fields.
    ///
    /// ```
    /// # use sandbox_core::{ContainerName, Handle, SandboxId, SandboxPath};
    /// # let (name, id) = (ContainerName::new("a")?, SandboxId::new("b")?);
    /// let handle = Handle::new(name, id, SandboxPath::new("/work")?);
    /// assert!(handle.ports.is_empty());
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn new(name: ContainerName, id: SandboxId, workdir: SandboxPath) -> Self {
        Handle {
            name,
            id,
            workdir,
            service: None,
            resolved_image_digest: None,
            ports: Vec::new(),
        }
    }
}

//! Paths inside a sandbox.

use std::fmt;

use crate::error::{Error, Result};

/// A path inside a sandbox: POSIX bytes, not text.
///
/// Relative paths start at the sandbox's workdir; absolute ones at the sandbox's own root. `..` and symbolic links are resolved
/// inside the sandbox, as for a process there, when the path is used; they never reach the host.
///
/// ```
/// use sandbox_core::SandboxPath;
/// let path = SandboxPath::new("src/main.rs")?;
/// assert!(!path.is_absolute());
/// assert!(SandboxPath::new("").is_err());
/// assert!(SandboxPath::new(b"a\0b").is_err());
/// assert_eq!(SandboxPath::new(b"\xff")?.as_bytes(), b"\xff");
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxPath(Vec<u8>);

impl SandboxPath {
    /// The longest path that is accepted, in bytes.
    ///
    /// ```
    /// assert!(sandbox_core::SandboxPath::MAX_LEN >= 4096);
    /// ```
    pub const MAX_LEN: usize = 64 * 1024;

    /// Checks a path.
    ///
    /// # Errors
    /// `InvalidPath` if it is empty, holds a NUL byte or is longer than [`MAX_LEN`](Self::MAX_LEN).
    ///
    /// ```
    /// assert!(sandbox_core::SandboxPath::new("a b\n-'\"").is_ok());
    /// ```
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self> {
        let path = path.as_ref();
        let reason = if path.is_empty() {
            "it is empty"
        } else if path.contains(&0) {
            "it holds a NUL byte"
        } else if path.len() > Self::MAX_LEN {
            "it is longer than 65536 bytes"
        } else {
            return Ok(SandboxPath(path.to_vec()));
        };
        let shown: Vec<u8> = path.iter().copied().take(128).collect();
        Err(Error::InvalidPath {
            path: lossy(&shown),
            reason: reason.into(),
        })
    }

    /// The bytes of the path.
    ///
    /// ```
    /// assert_eq!(sandbox_core::SandboxPath::new("/x")?.as_bytes(), b"/x");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it starts at the root rather than at the workdir.
    ///
    /// ```
    /// assert!(sandbox_core::SandboxPath::new("/tmp")?.is_absolute());
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn is_absolute(&self) -> bool {
        self.0.starts_with(b"/")
    }

    /// The path of `other` below this one; `other` itself if it is absolute.
    ///
    /// ```
    /// use sandbox_core::SandboxPath;
    /// let base = SandboxPath::new("/work")?;
    /// assert_eq!(base.join(&SandboxPath::new("a")?).as_bytes(), b"/work/a");
    /// assert_eq!(base.join(&SandboxPath::new("/a")?).as_bytes(), b"/a");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn join(&self, other: &SandboxPath) -> SandboxPath {
        if other.is_absolute() {
            return other.clone();
        }
        let mut joined = self.0.clone();
        if !joined.ends_with(b"/") {
            joined.push(b'/');
        }
        joined.extend_from_slice(&other.0);
        SandboxPath(joined)
    }

    /// The path as text, for messages: bytes that are not UTF-8 become U+FFFD.
    ///
    /// ```
    /// assert_eq!(sandbox_core::SandboxPath::new("a")?.to_text(), "a");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn to_text(&self) -> String {
        lossy(&self.0)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_text(), f)
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl std::str::FromStr for SandboxPath {
    type Err = Error;

    fn from_str(path: &str) -> Result<Self> {
        SandboxPath::new(path)
    }
}

impl TryFrom<&str> for SandboxPath {
    type Error = Error;

    fn try_from(path: &str) -> Result<Self> {
        SandboxPath::new(path)
    }
}

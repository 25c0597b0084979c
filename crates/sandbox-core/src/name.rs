//! Names and identities of sandboxes and images.

use std::fmt;

use crate::error::{Error, Result};

/// The name that a caller gives to a sandbox: `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}` (rule LIFE-2).
///
/// ```
/// use sandbox_core::ContainerName;
/// assert_eq!(ContainerName::new("lab.db")?.as_str(), "lab.db");
/// for bad in ["", ".", "..", "../x", "/abs", "a/../b", "a\0b", "-x"] {
///     assert!(ContainerName::new(bad).is_err());
/// }
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerName(String);

impl ContainerName {
    /// Checks a name.
    ///
    /// # Errors
    /// `InvalidSpec` if it does not have the form above.
    ///
    /// ```
    /// assert!(sandbox_core::ContainerName::new("x".repeat(63)).is_ok());
    /// assert!(sandbox_core::ContainerName::new("x".repeat(64)).is_err());
    /// ```
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let mut bytes = name.bytes();
        let good = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
            && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
            && name.len() <= 63;
        if good {
            Ok(ContainerName(name))
        } else {
            Err(Error::invalid_spec(
                "name",
                format!(
                    "{name:?} must be 1 to 63 of the characters A-Z a-z 0-9 _ . - and start with a letter or digit"
                ),
            ))
        }
    }

    /// The name as text.
    ///
    /// ```
    /// assert_eq!(sandbox_core::ContainerName::new("a")?.as_str(), "a");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for ContainerName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        ContainerName::new(name)
    }
}

/// The identity of one sandbox, unique for ever. Made by a backend; opaque to callers.
///
/// ```
/// let id = sandbox_core::SandboxId::new("native-5f2c")?;
/// assert_eq!(id.to_string(), "native-5f2c");
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

impl SandboxId {
    /// Takes an id, for example one that a command printed earlier.
    ///
    /// # Errors
    /// `InvalidSpec` unless it is 1 to 128 of the characters `A-Z a-z 0-9 _ . : -` and starts with a letter or digit (so that an
    /// id can be a file name and never a path).
    ///
    /// ```
    /// assert!(sandbox_core::SandboxId::new("../../etc").is_err());
    /// ```
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        let good = id.starts_with(|c: char| c.is_ascii_alphanumeric())
            && id.len() <= 128
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b));
        if good {
            Ok(SandboxId(id))
        } else {
            Err(Error::invalid_spec(
                "id",
                format!("{id:?} is not a sandbox id"),
            ))
        }
    }

    /// The id as text.
    ///
    /// ```
    /// assert_eq!(sandbox_core::SandboxId::new("a1")?.as_str(), "a1");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reference to a container image: `[registry/]name[:tag][@sha256:…]`.
///
/// ```
/// use sandbox_core::ImageRef;
/// assert!(!ImageRef::new("debian:12")?.is_pinned());
/// let pinned = format!("debian@sha256:{}", "a".repeat(64));
/// assert!(ImageRef::new(pinned)?.is_pinned());
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageRef(String);

impl ImageRef {
    /// Checks the form of a reference; nothing is contacted.
    ///
    /// # Errors
    /// `InvalidSpec` if the name, the tag or the digest is malformed.
    ///
    /// ```
    /// use sandbox_core::ImageRef;
    /// for bad in ["", "UPPER/case", "a b", "a@sha256:12", "a:", "-x", "a//b"] {
    ///     assert!(ImageRef::new(bad).is_err(), "{bad}");
    /// }
    /// assert!(ImageRef::new("localhost:5000/team/app:v1").is_ok());
    /// ```
    pub fn new(reference: impl Into<String>) -> Result<Self> {
        let reference = reference.into();
        match check_image(&reference) {
            Ok(()) => Ok(ImageRef(reference)),
            Err(reason) => Err(Error::invalid_spec(
                "image",
                format!("{reference:?}: {reason}"),
            )),
        }
    }

    /// The reference as text.
    ///
    /// ```
    /// assert_eq!(sandbox_core::ImageRef::new("busybox")?.as_str(), "busybox");
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digest (`sha256:…`), if the reference is pinned to one.
    ///
    /// ```
    /// assert_eq!(sandbox_core::ImageRef::new("busybox:1")?.digest(), None);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn digest(&self) -> Option<&str> {
        self.0.split_once('@').map(|(_, digest)| digest)
    }

    /// Whether the reference names content by digest, so that it can never change.
    ///
    /// ```
    /// assert!(!sandbox_core::ImageRef::new("busybox:latest")?.is_pinned());
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn is_pinned(&self) -> bool {
        self.digest().is_some()
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_image(reference: &str) -> std::result::Result<(), &'static str> {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    if let Some(digest) = digest {
        let hex = digest
            .strip_prefix("sha256:")
            .ok_or("the digest must start with sha256:")?;
        if hex.len() != 64 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err("the digest must be 64 lower-case hexadecimal digits");
        }
    }
    let after_slash = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[after_slash..].find(':') {
        Some(at) => (
            &name[..after_slash + at],
            Some(&name[after_slash + at + 1..]),
        ),
        None => (name, None),
    };
    if let Some(tag) = tag {
        let first = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let rest = |b: u8| first(b) || b == b'.' || b == b'-';
        if tag.is_empty() || tag.len() > 128 || !first(tag.as_bytes()[0]) || !tag.bytes().all(rest)
        {
            return Err("the tag is malformed");
        }
    }
    if path.is_empty() || path.len() > 255 {
        return Err("the name must have 1 to 255 characters");
    }
    let components: Vec<&str> = path.split('/').collect();
    for (index, component) in components.iter().enumerate() {
        let registry = index == 0
            && components.len() > 1
            && (component.contains(['.', ':']) || *component == "localhost");
        let allowed = |b: u8| match b {
            b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' => true,
            b'_' => !registry,
            b'A'..=b'Z' | b':' | b'[' | b']' => registry,
            _ => false,
        };
        let edge = |b: u8| b.is_ascii_alphanumeric() || (registry && matches!(b, b'[' | b']'));
        let bytes = component.as_bytes();
        match (bytes.first(), bytes.last()) {
            (Some(first), Some(last))
                if edge(*first) && edge(*last) && bytes.iter().all(|b| allowed(*b)) => {}
            _ => return Err("the name must be lower-case components joined by slashes"),
        }
    }
    Ok(())
}

/// A snapshot: an opaque, versioned reference that a backend gave out. It names the content of a blob store.
///
/// ```
/// let text = format!("sbx1:sha256:{}", "0".repeat(64));
/// assert_eq!(sandbox_core::SnapshotRef::new(text.clone())?.as_str(), text);
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotRef(String);

impl SnapshotRef {
    /// Takes a reference that a backend gave out earlier: `sbx1:sha256:` and 64 hexadecimal digits.
    ///
    /// # Errors
    /// `InvalidSnapshot` for any other form.
    ///
    /// ```
    /// for bad in ["", "sbx1:", "sbx9:sha256:00", "latest"] {
    ///     assert!(sandbox_core::SnapshotRef::new(bad).is_err());
    /// }
    /// ```
    pub fn new(reference: impl Into<String>) -> Result<Self> {
        let reference = reference.into();
        let hex = reference.strip_prefix("sbx1:sha256:").unwrap_or("");
        if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(SnapshotRef(reference))
        } else {
            Err(Error::InvalidSnapshot {
                snapshot: reference,
                reason: "a reference has the form sbx1:sha256:<64 hexadecimal digits>".into(),
            })
        }
    }

    /// The reference as text.
    ///
    /// ```
    /// # let text = format!("sbx1:sha256:{}", "1".repeat(64));
    /// assert!(sandbox_core::SnapshotRef::new(text)?.as_str().starts_with("sbx1:"));
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

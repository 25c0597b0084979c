//! The one error type of the contract, matched by [`Error::kind`].

use std::sync::Arc;
use std::{fmt, io};

/// The result of every call of this crate.
///
/// ```
/// fn parse(name: &str) -> sandbox_core::Result<sandbox_core::ContainerName> {
///     sandbox_core::ContainerName::new(name)
/// }
/// assert!(parse("lab").is_ok());
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A shared error of somebody else, kept as the cause of an [`Error`].
///
/// ```
/// let source: sandbox_core::BoxError = "the socket went away".into();
/// assert_eq!(source.to_string(), "the socket went away");
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What went wrong, to what, and what to do.
///
/// Route on [`kind`](Error::kind) or on the variant's data, never on the text: the text is for people and may change in any
/// release. No variant holds a dependency's type.
///
/// ```
/// use sandbox_core::{ContainerName, ErrorKind};
/// let error = ContainerName::new("../x").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidSpec);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The handle names no live sandbox of this backend: never made here, destroyed, or another backend's.
    #[error("no live sandbox has the id {id:?}: it was destroyed, or another backend made it")]
    UnknownHandle {
        /// The id that was asked for.
        id: String,
    },

    /// A live sandbox of this backend has that name already.
    #[error("a live sandbox is already named {name:?}: destroy it first or choose another name")]
    AlreadyExists {
        /// The name that is taken.
        name: String,
    },

    /// A field of a spec, a command or an option cannot be used as it is. Nothing has been touched.
    #[error("invalid {field}: {reason}")]
    InvalidSpec {
        /// The field, in the words of the API (`name`, `env`, `limits.memory`, …).
        field: String,
        /// What is wrong with it and what is accepted.
        reason: String,
    },

    /// The backend does not have this ability here. Nothing has been changed.
    #[error("the {backend} backend does not support {operation}{}", Because(.reason))]
    Unsupported {
        /// The backend's name.
        backend: String,
        /// What was asked for.
        operation: String,
        /// Why it is absent here and what would make it available; empty if it never is.
        reason: String,
    },

    /// The caller cancelled. Carries the reason that the caller gave to the token, if any.
    #[error("cancelled by the caller{}", Because(&.reason.as_ref().map(ToString::to_string).unwrap_or_default()))]
    Cancelled {
        /// The caller's own reason, the same object.
        reason: Option<CancelReason>,
    },

    /// There is nothing at that path.
    #[error("{role} {path:?} was not found")]
    NotFound {
        /// What the path was meant to be.
        role: PathRole,
        /// The path as it was given.
        path: String,
    },

    /// A component that must be a directory is something else.
    #[error("{path:?} is not a directory, or lies below something that is not one")]
    NotADirectory {
        /// The path as it was given.
        path: String,
    },

    /// A file was needed and there is a directory.
    #[error("{path:?} is a directory")]
    IsADirectory {
        /// The path as it was given.
        path: String,
    },

    /// A regular file was needed and there is a fifo, a socket or a device.
    #[error("{path:?} is not a regular file (a fifo, socket or device)")]
    NotRegular {
        /// The path as it was given.
        path: String,
    },

    /// The sandbox's default user may not do that there.
    #[error("permission denied for {path:?}: the sandbox's default user may not do this")]
    PermissionDenied {
        /// The path as it was given.
        path: String,
    },

    /// The path is empty, holds a NUL byte, is too long, or cannot be resolved (a loop of symbolic links).
    #[error("invalid path {path:?}: {reason}")]
    InvalidPath {
        /// The path as it was given.
        path: String,
        /// What is wrong with it.
        reason: String,
    },

    /// More data than a limit allows.
    #[error("{what} is too large: over the limit of {limit}")]
    TooLarge {
        /// What grew too large.
        what: String,
        /// The limit, in the unit that `what` names (bytes unless it says entries).
        limit: u64,
    },

    /// A program was found but cannot be executed. The command was not started.
    #[error("program {program:?} cannot be executed: {reason}")]
    NotExecutable {
        /// The program as it was given.
        program: String,
        /// The kernel's reason.
        reason: String,
    },

    /// The working directory of a command is absent or not a directory. The command was not started.
    #[error("the working directory {cwd:?} cannot be used: {reason}; the command was not started")]
    BadCwd {
        /// The directory as it was given.
        cwd: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The sandbox has no such user. The command was not started.
    #[error("the sandbox has no user {user:?}: {reason}; the command was not started")]
    UserNotFound {
        /// The user as it was given.
        user: String,
        /// Where it was looked up.
        reason: String,
    },

    /// Arguments and environment exceed what the kernel can pass to a program. The command was not started.
    #[error("arguments or environment too long: {reason}; the command was not started")]
    ArgumentsTooLong {
        /// Which bound was exceeded.
        reason: String,
    },

    /// The other side of a pipe or connection is gone; concerns only who writes.
    #[error("broken pipe: the process no longer reads its input")]
    BrokenPipe,

    /// Nobody listens on that port inside the sandbox.
    #[error("connection refused: nobody listens on port {port} in the sandbox")]
    ConnectionRefused {
        /// The TCP port.
        port: u16,
    },

    /// An archive is damaged, or an entry of it would reach outside the target directory.
    #[error("invalid archive{}: {reason}", AtEntry(.entry))]
    InvalidArchive {
        /// The offending entry's name; empty if the archive as a whole is damaged.
        entry: String,
        /// What is wrong.
        reason: String,
    },

    /// A snapshot reference, or what it points to, is malformed or corrupt.
    #[error("invalid snapshot {snapshot:?}: {reason}")]
    InvalidSnapshot {
        /// The reference as it was given.
        snapshot: String,
        /// What is wrong.
        reason: String,
    },

    /// A snapshot would exceed the configured cap. Nothing was stored.
    #[error(
        "the snapshot is too large: {size} bytes, the limit is {limit}; raise the limit or remove files"
    )]
    SnapshotTooLarge {
        /// The size that was reached, in bytes.
        size: u64,
        /// The cap, in bytes.
        limit: u64,
    },

    /// An image could not be pulled or booted.
    #[error("image {image:?} is unavailable: {source}")]
    ImageUnavailable {
        /// The image as it was given.
        image: String,
        /// Why; a cancel inside it stays recognisable through [`Error::kind`] of the downcast source.
        source: BoxError,
    },

    /// An isolation layer could not be set up; nothing of the payload has run.
    #[error("cannot isolate: {layer}: {cause}. {remedy}")]
    Isolation {
        /// The layer that failed (`user namespace`, `proc`, `overlay`, …).
        layer: String,
        /// What the system answered.
        cause: String,
        /// What would fix it.
        remedy: String,
    },

    /// The runtime behind the sandbox is away: neither an exit code nor an absent file.
    #[error("{target} is unavailable{}{}", Because(.detail), WhatItDid(*.never_started))]
    Unavailable {
        /// What is away (an engine, a sandbox's supervisor, …).
        target: String,
        /// Whether it is proven that the operation never started, so that a caller may retry it.
        never_started: bool,
        /// The evidence.
        detail: String,
    },

    /// The sandbox's own main command has ended, so that it serves nothing any more.
    #[error("the sandbox has ended by itself with {code}")]
    SandboxExited {
        /// The exit code of its main command (128 + n for a signal).
        code: i32,
    },

    /// No sandbox could be had, and running without one is not allowed.
    #[error(
        "no sandbox is available: {failure}\nNothing was run: neither in a sandbox nor on the host.\nTo allow running without a sandbox, set {variable}=1 and try again.",
        variable = crate::policy::ALLOW_UNSANDBOXED
    )]
    SandboxRequired {
        /// Why there is no sandbox.
        failure: String,
    },

    /// An input or output error that has no kind of its own.
    #[error("{operation} failed: {source}")]
    Io {
        /// What was being done, and to what.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The kind of an [`Error`], for matching.
///
/// ```
/// use sandbox_core::{Error, ErrorKind};
/// assert_eq!(Error::BrokenPipe.kind(), ErrorKind::BrokenPipe);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "each kind is its variant of Error, documented there"
)]
pub enum ErrorKind {
    UnknownHandle,
    AlreadyExists,
    InvalidSpec,
    Unsupported,
    Cancelled,
    NotFound,
    NotADirectory,
    IsADirectory,
    NotRegular,
    PermissionDenied,
    InvalidPath,
    TooLarge,
    NotExecutable,
    BadCwd,
    UserNotFound,
    ArgumentsTooLong,
    BrokenPipe,
    ConnectionRefused,
    InvalidArchive,
    InvalidSnapshot,
    SnapshotTooLarge,
    ImageUnavailable,
    Isolation,
    Unavailable,
    SandboxExited,
    SandboxRequired,
    Io,
}

impl Error {
    /// The kind, for matching.
    ///
    /// ```
    /// use sandbox_core::{Error, ErrorKind};
    /// let error = Error::ConnectionRefused { port: 80 };
    /// assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::UnknownHandle { .. } => ErrorKind::UnknownHandle,
            Error::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            Error::InvalidSpec { .. } => ErrorKind::InvalidSpec,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
            Error::Cancelled { .. } => ErrorKind::Cancelled,
            Error::NotFound { .. } => ErrorKind::NotFound,
            Error::NotADirectory { .. } => ErrorKind::NotADirectory,
            Error::IsADirectory { .. } => ErrorKind::IsADirectory,
            Error::NotRegular { .. } => ErrorKind::NotRegular,
            Error::PermissionDenied { .. } => ErrorKind::PermissionDenied,
            Error::InvalidPath { .. } => ErrorKind::InvalidPath,
            Error::TooLarge { .. } => ErrorKind::TooLarge,
            Error::NotExecutable { .. } => ErrorKind::NotExecutable,
            Error::BadCwd { .. } => ErrorKind::BadCwd,
            Error::UserNotFound { .. } => ErrorKind::UserNotFound,
            Error::ArgumentsTooLong { .. } => ErrorKind::ArgumentsTooLong,
            Error::BrokenPipe => ErrorKind::BrokenPipe,
            Error::ConnectionRefused { .. } => ErrorKind::ConnectionRefused,
            Error::InvalidArchive { .. } => ErrorKind::InvalidArchive,
            Error::InvalidSnapshot { .. } => ErrorKind::InvalidSnapshot,
            Error::SnapshotTooLarge { .. } => ErrorKind::SnapshotTooLarge,
            Error::ImageUnavailable { .. } => ErrorKind::ImageUnavailable,
            Error::Isolation { .. } => ErrorKind::Isolation,
            Error::Unavailable { .. } => ErrorKind::Unavailable,
            Error::SandboxExited { .. } => ErrorKind::SandboxExited,
            Error::SandboxRequired { .. } => ErrorKind::SandboxRequired,
            Error::Io { .. } => ErrorKind::Io,
        }
    }

    /// Short for [`Error::InvalidSpec`].
    ///
    /// ```
    /// use sandbox_core::{Error, ErrorKind};
    /// let error = Error::invalid_spec("timeout", "must be above zero");
    /// assert_eq!(error.to_string(), "invalid timeout: must be above zero");
    /// ```
    pub fn invalid_spec(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::InvalidSpec {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// Short for [`Error::Io`].
    ///
    /// ```
    /// use sandbox_core::Error;
    /// let error = Error::io("reading a socket", std::io::Error::other("reset"));
    /// assert_eq!(error.to_string(), "reading a socket failed: reset");
    /// ```
    pub fn io(operation: impl Into<String>, source: io::Error) -> Self {
        Error::Io {
            operation: operation.into(),
            source,
        }
    }

    /// An error like this one, for another who waits for the same thing. Those that carry somebody else's error, which cannot be
    /// copied, keep its text.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Error::Unsupported {
                backend,
                operation,
                reason,
            } => Error::Unsupported {
                backend: backend.clone(),
                operation: operation.clone(),
                reason: reason.clone(),
            },
            Error::Cancelled { reason } => Error::Cancelled {
                reason: reason.clone(),
            },
            Error::ImageUnavailable { image, source } => Error::ImageUnavailable {
                image: image.clone(),
                source: source.to_string().into(),
            },
            Error::Isolation {
                layer,
                cause,
                remedy,
            } => Error::Isolation {
                layer: layer.clone(),
                cause: cause.clone(),
                remedy: remedy.clone(),
            },
            Error::InvalidSpec { field, reason } => Error::InvalidSpec {
                field: field.clone(),
                reason: reason.clone(),
            },
            Error::SandboxRequired { failure } => Error::SandboxRequired {
                failure: failure.clone(),
            },
            Error::SandboxExited { code } => Error::SandboxExited { code: *code },
            Error::Unavailable {
                target,
                never_started,
                detail,
            } => Error::Unavailable {
                target: target.clone(),
                never_started: *never_started,
                detail: detail.clone(),
            },
            Error::Io { operation, source } => Error::Io {
                operation: operation.clone(),
                source: io::Error::new(source.kind(), source.to_string()),
            },
            Error::UnknownHandle { id } => Error::UnknownHandle { id: id.clone() },
            // What neither a resolution nor a command that runs can meet.
            other => Error::Io {
                operation: "the operation".into(),
                source: io::Error::other(other.to_string()),
            },
        }
    }

    /// Short for an [`Error::Cancelled`] without a reason of the caller's.
    ///
    /// ```
    /// use sandbox_core::{Error, ErrorKind};
    /// assert_eq!(Error::cancelled().kind(), ErrorKind::Cancelled);
    /// ```
    pub fn cancelled() -> Self {
        Error::Cancelled { reason: None }
    }
}

/// What a path in an [`Error::NotFound`] was meant to be.
///
/// ```
/// use sandbox_core::PathRole;
/// assert_eq!(PathRole::Program.to_string(), "program");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathRole {
    /// A file or directory of the sandbox.
    Path,
    /// The program of a command that was therefore not started.
    Program,
    /// A blob or a snapshot in a store.
    Snapshot,
}

impl fmt::Display for PathRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathRole::Path => "path",
            PathRole::Program => "program",
            PathRole::Snapshot => "snapshot",
        })
    }
}

/// Why a caller cancelled: the caller's own error, shared.
///
/// ```
/// use sandbox_core::CancelReason;
/// let reason = CancelReason::new("the user closed the tab");
/// assert_eq!(reason.to_string(), "the user closed the tab");
/// assert!(reason.same_as(&reason.clone()));
/// ```
#[derive(Debug, Clone)]
pub struct CancelReason(Arc<dyn std::error::Error + Send + Sync>);

impl CancelReason {
    /// Wraps an error or a text.
    ///
    /// ```
    /// let reason = sandbox_core::CancelReason::new("superseded");
    /// assert_eq!(reason.to_string(), "superseded");
    /// ```
    pub fn new(reason: impl Into<BoxError>) -> Self {
        CancelReason(Arc::from(reason.into()))
    }

    /// The caller's error itself, for downcasting.
    ///
    /// ```
    /// let reason = sandbox_core::CancelReason::new(std::io::Error::other("x"));
    /// assert!(reason.get().downcast_ref::<std::io::Error>().is_some());
    /// ```
    pub fn get(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        &*self.0
    }

    /// Whether both are the very same object.
    ///
    /// ```
    /// use sandbox_core::CancelReason;
    /// let (a, b) = (CancelReason::new("x"), CancelReason::new("x"));
    /// assert!(a.same_as(&a) && !a.same_as(&b));
    /// ```
    pub fn same_as(&self, other: &CancelReason) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

struct Because<'a>(&'a String);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.0)
        }
    }
}

struct AtEntry<'a>(&'a String);

impl fmt::Display for AtEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " at entry {:?}", self.0)
        }
    }
}

/// Whether the operation of an `Unavailable` may have had effects, so that nobody repeats it lightly.
struct WhatItDid(bool);

impl fmt::Display for WhatItDid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            true => ". Nothing was started, neither in a sandbox nor on the host",
            false => {
                ". This is not the result of the operation, whose effects are unknown; it was neither repeated nor run on the host"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_says_what_is_known_of_the_operation() {
        let text = |never_started, detail: &str| {
            let error = Error::Unavailable {
                target: "the engine".into(),
                never_started,
                detail: detail.into(),
            };
            error.to_string()
        };
        assert_eq!(
            text(true, "no socket"),
            "the engine is unavailable: no socket. Nothing was started, neither in a sandbox nor on the host"
        );
        let unknown = text(false, "");
        assert!(
            unknown.starts_with("the engine is unavailable. "),
            "{unknown}"
        );
        for part in [
            "effects are unknown",
            "neither repeated nor run on the host",
        ] {
            assert!(unknown.contains(part), "{unknown}");
        }
    }

    #[test]
    fn a_duplicate_has_the_same_kind_and_text_where_callers_route_on_it() {
        let reason = CancelReason::new("x");
        let errors = [
            Error::cancelled(),
            Error::Cancelled {
                reason: Some(reason.clone()),
            },
            Error::invalid_spec("a", "b"),
            Error::io("a", io::Error::from(io::ErrorKind::TimedOut)),
            Error::SandboxExited { code: 3 },
            Error::SandboxRequired {
                failure: "a".into(),
            },
            Error::UnknownHandle { id: "a".into() },
            Error::Unsupported {
                backend: "a".into(),
                operation: "b".into(),
                reason: "c".into(),
            },
            Error::ImageUnavailable {
                image: "a".into(),
                source: "b".into(),
            },
            Error::Isolation {
                layer: "a".into(),
                cause: "b".into(),
                remedy: "c".into(),
            },
            Error::Unavailable {
                target: "a".into(),
                never_started: true,
                detail: "b".into(),
            },
        ];
        for error in errors {
            let duplicate = error.duplicate();
            assert_eq!(duplicate.kind(), error.kind());
            assert_eq!(duplicate.to_string(), error.to_string());
        }
        let cancelled = Error::Cancelled {
            reason: Some(reason.clone()),
        };
        match cancelled.duplicate() {
            Error::Cancelled { reason: Some(same) } => assert!(same.same_as(&reason)),
            other => panic!("{other:?}"),
        }
    }
}

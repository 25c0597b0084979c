//! Directory trees as gzip tar archives: a streaming codec in constant memory (rules TREE-1 to TREE-4).
//!
//! [`encode`] turns a walk of a tree into an archive whose bytes depend on the tree alone. [`decode`] turns any sane archive
//! (ustar, GNU, PAX) into checked events: no path of an event reaches outside of the tree, whatever the archive says. Neither
//! touches a file system; whoever writes the events must still not follow symbolic links that were there before.
//!
//! ```
//! use futures_util::{StreamExt, stream};
//! use sandbox_core::tree::{TreeEntry, TreeEvent, TreeKind, TreeLimits, decode, encode};
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let walk = vec![
//!     TreeEvent::Entry(TreeEntry { path: b"src".to_vec(), mode: 0o755, kind: TreeKind::Directory }),
//!     TreeEvent::Entry(TreeEntry { path: b"src/a".to_vec(), mode: 0o644, kind: TreeKind::File { size: 2 } }),
//!     TreeEvent::Data("hi".into()),
//! ];
//! let archive = encode(stream::iter(walk.clone()).map(Ok), TreeLimits::default());
//! let events: Vec<TreeEvent> = decode(archive, TreeLimits::default()).map(Result::unwrap).collect().await;
//! assert_eq!(events, walk);
//! # });
//! ```

mod decode;
mod encode;
mod gzip;
mod header;

use bytes::Bytes;

use crate::error::Error;

pub use decode::{TreeStream, decode};
pub use encode::encode;

/// The longest path of an entry and the longest link target, in bytes.
///
/// ```
/// assert_eq!(sandbox_core::tree::MAX_PATH_LEN, 65_536);
/// ```
pub const MAX_PATH_LEN: usize = crate::path::SandboxPath::MAX_LEN;

/// Bounds on an archive (rule TREE-4). Both are counted on what is really there, never on what a header claims.
///
/// ```
/// let limits = sandbox_core::tree::TreeLimits::default();
/// assert_eq!((limits.bytes, limits.entries), (4 << 30, 1_000_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// Bytes of the uncompressed archive: contents, and 512 and more for each entry.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
}

impl Default for TreeLimits {
    fn default() -> Self {
        TreeLimits {
            bytes: 4 << 30,
            entries: 1_000_000,
        }
    }
}

impl TreeLimits {
    fn check_bytes(&self, bytes: u64) -> Result<(), Error> {
        TreeLimits::check("the tree archive, in bytes,", bytes, self.bytes)
    }

    fn check_entries(&self, entries: u64) -> Result<(), Error> {
        TreeLimits::check("the tree archive, in entries,", entries, self.entries)
    }

    fn check(what: &str, count: u64, limit: u64) -> Result<(), Error> {
        if count <= limit {
            return Ok(());
        }
        Err(Error::TooLarge {
            what: what.into(),
            limit,
        })
    }
}

/// What an entry of a tree is.
///
/// ```
/// use sandbox_core::tree::TreeKind;
/// assert_ne!(TreeKind::File { size: 0 }, TreeKind::Directory);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeKind {
    /// A regular file; exactly `size` bytes of [`TreeEvent::Data`] follow.
    File {
        /// Its size in bytes.
        size: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// What it says, verbatim: it is data, and may point anywhere.
        target: Vec<u8>,
    },
    /// One more name of an earlier entry.
    Hardlink {
        /// The path of that entry, in the form of [`TreeEntry::path`].
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
}

/// One entry of a tree.
///
/// ```
/// use sandbox_core::tree::{TreeEntry, TreeKind};
/// let entry = TreeEntry { path: b"bin/run".to_vec(), mode: 0o755, kind: TreeKind::File { size: 3 } };
/// assert_eq!(entry.mode, 0o755);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// Relative to the tree, without `.`, `..`, empty components or a trailing slash: bytes, not text.
    pub path: Vec<u8>,
    /// Permission bits, within `0o777`; of a symbolic link always `0o777`.
    pub mode: u32,
    /// What it is.
    pub kind: TreeKind,
}

/// A step of a walk over a tree.
///
/// ```
/// use sandbox_core::tree::TreeEvent;
/// assert_ne!(TreeEvent::Data("a".into()), TreeEvent::Data("b".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// The next entry.
    Entry(TreeEntry),
    /// Content of the last entry, which is a file; never empty when decoded.
    Data(Bytes),
}

fn invalid(entry: &[u8], reason: impl Into<String>) -> Error {
    let shown = &entry[..entry.len().min(256)];
    Error::InvalidArchive {
        entry: String::from_utf8_lossy(shown).into_owned(),
        reason: reason.into(),
    }
}

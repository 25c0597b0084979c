//! A walk over a tree becomes an archive.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::StreamExt;

use super::gzip::{Gzip, STEP};
use super::header::{self, BLOCK, Header, NAME, padding};
use super::{MAX_PATH_LEN, TreeEntry, TreeEvent, TreeKind, TreeLimits, invalid};
use crate::error::Result;
use crate::file::ByteStream;

/// The archive of a tree: gzip around tar, the same bytes for the same events (rule TREE-1).
///
/// `events` is a depth-first walk. It names each directory before what is in it, sorted bytewise where a directory's name counts
/// with a trailing slash; each file is followed by exactly its size in [`TreeEvent::Data`], cut in any way; the first name of a
/// file is a [`TreeKind::File`], further ones are [`TreeKind::Hardlink`]s. The tree itself has no entry. Owner and time are
/// zero, modes are cut to `0o777`. Names are written byte for byte, long ones as GNU tar does.
///
/// The bytes depend on the version of the compressor, so compare archives of the same build, or inflated.
///
/// # Errors
/// The stream ends with an error, and the archive is then cut off so that nobody can take it for whole: an error of `events` is
/// passed on; `InvalidArchive` if the walk is out of order, a path is not one, or a file has more or less data than its size
/// (it changed while it was read); `TooLarge` beyond a limit.
///
/// ```
/// use sandbox_core::tree::{TreeLimits, encode};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let empty = encode(futures_util::stream::empty(), TreeLimits::default()).collect(1024).await?;
/// assert!(empty.starts_with(&[0x1f, 0x8b]));
/// # Ok::<(), sandbox_core::Error>(()) }).unwrap();
/// ```
pub fn encode(
    events: impl Stream<Item = Result<TreeEvent>> + Send + 'static,
    limits: TreeLimits,
) -> ByteStream {
    let encoder = Encoder {
        events: Box::pin(events),
        limits,
        gzip: Gzip::new(),
        tar: BytesMut::new(),
        data: Bytes::new(),
        fill: 0,
        file: None,
        last_name: Vec::new(),
        entries: 0,
        bytes: 0,
        state: State::Walking,
    };
    ByteStream::new(futures_util::stream::unfold(
        encoder,
        |mut encoder| async move {
            let next = encoder.next().await.transpose()?;
            if next.is_err() {
                encoder.state = State::Finished;
            }
            Some((next, encoder))
        },
    ))
}

struct Encoder {
    events: Pin<Box<dyn Stream<Item = Result<TreeEvent>> + Send>>,
    limits: TreeLimits,
    gzip: Gzip,
    /// Tar that waits to be compressed.
    tar: BytesMut,
    /// Content of the current file that waits to become tar.
    data: Bytes,
    /// Zeros that go after `data`.
    fill: usize,
    /// The file whose content is not complete: its path, size and what is missing.
    file: Option<(Vec<u8>, u64, u64)>,
    last_name: Vec<u8>,
    entries: u64,
    bytes: u64,
    state: State,
}

enum State {
    Walking,
    Walked,
    Finished,
}

impl Encoder {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            while self.tar.len() < STEP && matches!(self.state, State::Walking) {
                if !self.data.is_empty() {
                    let piece = self.data.split_to(self.data.len().min(STEP));
                    self.append(&piece)?;
                    continue;
                }
                if self.fill > 0 {
                    let fill = std::mem::take(&mut self.fill);
                    self.append(&[0; BLOCK][..fill])?;
                    continue;
                }
                match self.events.next().await {
                    Some(event) => self.accept(event?)?,
                    None => self.end()?,
                }
            }
            let last = match self.state {
                State::Finished => return Ok(None),
                State::Walked => self.tar.len() <= STEP,
                State::Walking => false,
            };
            // Always cut at the same places, so that the compressed bytes do not depend on how the content came.
            let step = self.tar.split_to(self.tar.len().min(STEP));
            let compressed = self.gzip.step(&step, last)?;
            if last {
                self.state = State::Finished;
            }
            tokio::task::consume_budget().await;
            if !compressed.is_empty() {
                return Ok(Some(compressed));
            }
        }
    }

    fn accept(&mut self, event: TreeEvent) -> Result<()> {
        match event {
            TreeEvent::Data(data) => self.accept_data(data),
            TreeEvent::Entry(entry) => {
                self.check_file_is_complete()?;
                self.accept_entry(entry)
            }
        }
    }

    fn accept_data(&mut self, data: Bytes) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let Some((path, size, missing)) = &mut self.file else {
            return Err(invalid(
                &self.last_name,
                "more data than the entry's size: did it change while it was read?",
            ));
        };
        if data.len() as u64 > *missing {
            return Err(invalid(
                path,
                format!(
                    "more data than the size of {size} bytes: did it change while it was read?"
                ),
            ));
        }
        *missing -= data.len() as u64;
        if *missing == 0 {
            self.fill = padding(*size) as usize;
            self.file = None;
        }
        self.data = data;
        Ok(())
    }

    fn accept_entry(&mut self, entry: TreeEntry) -> Result<()> {
        let TreeEntry { path, mode, kind } = entry;
        check_path(&path, &path)?;
        let mut name = path.clone();
        let (code, mode, size, link): (u8, u32, u64, &[u8]) = match &kind {
            TreeKind::File { size } => (header::FILE, mode, *size, b""),
            TreeKind::Directory => {
                name.push(b'/');
                (header::DIRECTORY, mode, 0, b"")
            }
            TreeKind::Symlink { target } => {
                check_target(&path, target)?;
                (header::SYMLINK, 0o777, 0, target)
            }
            TreeKind::Hardlink { target } => {
                check_path(&path, target)?;
                (header::HARDLINK, mode, 0, target)
            }
            TreeKind::Fifo => (header::FIFO, mode, 0, b""),
        };
        if name <= self.last_name {
            return Err(invalid(
                &name,
                "the walk is out of order, or names it twice",
            ));
        }
        self.entries += 1;
        self.limits.check_entries(self.entries)?;
        if link.len() > NAME {
            self.append_long(header::GNU_LONG_LINK, link)?;
        }
        if name.len() > NAME {
            self.append_long(header::GNU_LONG_NAME, &name)?;
        }
        self.append(&Header::write(&name, link, mode, size, code))?;
        self.last_name = name;
        if size > 0 {
            self.file = Some((path, size, size));
        }
        Ok(())
    }

    /// A text that does not fit into the header: an entry of its own before it.
    fn append_long(&mut self, kind: u8, text: &[u8]) -> Result<()> {
        let size = text.len() as u64 + 1;
        self.append(&Header::write(b"././@LongLink", b"", 0o644, size, kind))?;
        self.append(text)?;
        self.append(&[0])?;
        self.append(&[0; BLOCK][..padding(size) as usize])
    }

    fn end(&mut self) -> Result<()> {
        self.check_file_is_complete()?;
        self.append(&[0; 2 * BLOCK])?;
        self.state = State::Walked;
        Ok(())
    }

    fn check_file_is_complete(&self) -> Result<()> {
        match &self.file {
            None => Ok(()),
            Some((path, size, missing)) => Err(invalid(
                path,
                format!("{missing} of {size} bytes are missing: did it change while it was read?"),
            )),
        }
    }

    fn append(&mut self, tar: &[u8]) -> Result<()> {
        self.bytes += tar.len() as u64;
        self.limits.check_bytes(self.bytes)?;
        self.tar.extend_from_slice(tar);
        Ok(())
    }
}

fn check_path(entry: &[u8], path: &[u8]) -> Result<()> {
    check_target(entry, path)?;
    let good = path
        .split(|byte| *byte == b'/')
        .all(|component| !matches!(component, b"" | b"." | b".."));
    if good {
        Ok(())
    } else {
        Err(invalid(
            entry,
            "a path must be relative, without '.', '..' and empty components",
        ))
    }
}

fn check_target(entry: &[u8], target: &[u8]) -> Result<()> {
    if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH_LEN {
        return Err(invalid(
            entry,
            format!("a path must have 1 to {MAX_PATH_LEN} bytes and no NUL"),
        ));
    }
    Ok(())
}

//! Files and streams.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{Error, Result};
use crate::path::SandboxPath;

/// One file's content, as `capture_files` gives it.
///
/// ```
/// let file = sandbox_core::CapturedFile {
///     path: sandbox_core::SandboxPath::new("out.txt")?,
///     content: "hi".into(),
/// };
/// assert_eq!(file.content, "hi");
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFile {
    /// The path as it was asked for.
    pub path: SandboxPath,
    /// The content.
    pub content: Bytes,
}

/// One file to write, as `copy_to` takes it.
///
/// ```
/// let file = sandbox_core::InputFile::new("sub/in.txt", "hi")?;
/// assert_eq!(file.content, "hi");
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Where to.
    pub path: SandboxPath,
    /// The content.
    pub content: Bytes,
}

impl InputFile {
    /// A file to write.
    ///
    /// # Errors
    /// `InvalidPath` as [`SandboxPath::new`].
    ///
    /// ```
    /// assert!(sandbox_core::InputFile::new("", "x").is_err());
    /// ```
    pub fn new(path: impl AsRef<[u8]>, content: impl Into<Bytes>) -> Result<Self> {
        Ok(InputFile {
            path: SandboxPath::new(path)?,
            content: content.into(),
        })
    }
}

/// What `stat` says; symbolic links are followed.
///
/// ```
/// use sandbox_core::{FileKind, FileStat};
/// let stat = FileStat { kind: FileKind::File, size: 3 };
/// assert_eq!(stat.size, 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// `File`, `Directory` or `Other`.
    pub kind: FileKind,
    /// Size of a file in bytes; for anything else it depends on the file system.
    pub size: u64,
}

/// One entry of a directory; symbolic links are not followed.
///
/// ```
/// use sandbox_core::{DirEntry, FileKind};
/// let entry = DirEntry { name: b"a\nb".to_vec(), kind: FileKind::Symlink };
/// assert_eq!(entry.kind, FileKind::Symlink);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without the directory: bytes, not text.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: FileKind,
}

/// The kind of a file system entry.
///
/// ```
/// assert_ne!(sandbox_core::FileKind::File, sandbox_core::FileKind::Other);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; only in listings.
    Symlink,
    /// A fifo, socket or device.
    Other,
}

/// A stream of bytes that may fail. Dropping it early stops the transfer and leaks nothing.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let stream = sandbox_core::ByteStream::from_bytes("hello");
/// assert_eq!(stream.collect(1024).await?, "hello");
/// # Ok::<(), sandbox_core::Error>(()) }).unwrap();
/// ```
pub struct ByteStream {
    chunks: Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>,
    ended: bool,
}

impl ByteStream {
    /// Wraps any stream of chunks.
    ///
    /// ```
    /// let chunks = futures_util::stream::iter([Ok("a".into()), Ok("b".into())]);
    /// let _ = sandbox_core::ByteStream::new(chunks);
    /// ```
    pub fn new(stream: impl Stream<Item = Result<Bytes>> + Send + 'static) -> Self {
        ByteStream {
            chunks: Box::pin(stream),
            ended: false,
        }
    }

    /// A stream of bytes that are there already.
    ///
    /// ```
    /// let _ = sandbox_core::ByteStream::from_bytes(vec![1, 2, 3]);
    /// ```
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let chunk = (!bytes.is_empty()).then_some(Ok(bytes));
        ByteStream::new(futures_util::stream::iter(chunk))
    }

    /// A stream over anything that reads, in chunks of up to 64 KiB.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let stream = sandbox_core::ByteStream::from_reader(&b"abc"[..]);
    /// assert_eq!(stream.collect(10).await?, "abc");
    /// # Ok::<(), sandbox_core::Error>(()) }).unwrap();
    /// ```
    pub fn from_reader(reader: impl AsyncRead + Send + 'static) -> Self {
        use futures_util::StreamExt;
        let chunks = tokio_util::io::ReaderStream::with_capacity(reader, 64 * 1024);
        ByteStream::new(
            chunks.map(|chunk| chunk.map_err(|source| Error::io("reading a stream", source))),
        )
    }

    /// The next chunk; `None` at the end, and ever after. Safe to cancel.
    ///
    /// # Errors
    /// Whatever the transfer met; nothing follows an error.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mut stream = sandbox_core::ByteStream::from_bytes("x");
    /// assert_eq!(stream.next().await.unwrap()?, "x");
    /// assert!(stream.next().await.is_none());
    /// # Ok::<(), sandbox_core::Error>(()) }).unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Everything, if it is at most `limit` bytes.
    ///
    /// # Errors
    /// `TooLarge` beyond the limit, else as [`next`](Self::next).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use sandbox_core::{ByteStream, ErrorKind};
    /// let error = ByteStream::from_bytes("abc").collect(2).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TooLarge);
    /// # });
    /// ```
    pub async fn collect(mut self, limit: u64) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            if (all.len() + chunk.len()) as u64 > limit {
                return Err(Error::TooLarge {
                    what: "the content".into(),
                    limit,
                });
            }
            if all.is_empty() {
                // One chunk is the common case: keep it without a copy.
                all = BytesMut::from(chunk);
            } else {
                all.extend_from_slice(&chunk);
            }
        }
        Ok(all.freeze())
    }
}

impl Stream for ByteStream {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Not every stream may be asked again after its end.
        if self.ended {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.chunks.as_mut().poll_next(context));
        self.ended = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByteStream")
    }
}

/// A byte stream in both directions, as `dial` opens it. Dropping it closes both.
///
/// ```
/// let (near, _far) = tokio::io::duplex(64);
/// let _ = sandbox_core::DuplexStream::new(near);
/// ```
pub struct DuplexStream(Pin<Box<dyn ReadWrite>>);

trait ReadWrite: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ReadWrite for T {}

impl DuplexStream {
    /// Wraps anything that reads and writes.
    ///
    /// ```
    /// let (near, _far) = tokio::io::duplex(64);
    /// let _ = sandbox_core::DuplexStream::new(near);
    /// ```
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        DuplexStream(Box::pin(stream))
    }
}

impl fmt::Debug for DuplexStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DuplexStream")
    }
}

impl AsyncRead for DuplexStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.0.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for DuplexStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.0.as_mut().poll_write(context, buffer)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.0.as_mut().poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.0.as_mut().poll_shutdown(context)
    }
}

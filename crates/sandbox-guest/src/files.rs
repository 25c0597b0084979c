//! Files, trees and ports of the sandbox.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;
use rustix::fs::FileType;
use sandbox_core::tree::{self, TreeEntry, TreeEvent, TreeKind, TreeLimits};
use sandbox_core::{
    ByteStream, DirEntry, DuplexStream, Error, FileKind, FileStat, PathRole, Result, SandboxPath,
    User,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::connection::{Connection, Events, Incoming};
use crate::wire::bytes::{Decoder, Encoder, Malformed};
use crate::wire::frame::{FRAME_COST, MAX_DATA, MAX_PAYLOAD, WINDOW};
use crate::wire::message::{
    self, Code, Entry, FLAG_LOCAL, Failure, KIND_DIRECTORY, KIND_FIFO, KIND_FILE, KIND_HARDLINK,
    KIND_SYMLINK, STDIN, STDOUT, UserSpec, to_guest, to_host,
};

/// A passed file is read in pieces of this many bytes: each costs a switch to a thread that may block.
const READ_PIECE: usize = 1 << 20;
/// The most bytes of names that one listing may have.
const NAMES_MOST: usize = 1 << 30;

/// The error of a failed operation. What it is about comes from the guest, as text for a message and nothing else.
pub(crate) fn failure(connection: &Connection, payload: &[u8], operation: &str) -> Error {
    let failure = match Failure::decode(payload) {
        Ok(failure) => failure,
        Err(malformed) => return connection.violated(malformed),
    };
    let path = String::from_utf8_lossy(&failure.detail).into_owned();
    let reason = || match failure.errno {
        0 => "it was refused".to_owned(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    };
    match failure.code {
        Code::NotFound => Error::NotFound {
            role: PathRole::Path,
            path,
        },
        Code::NotADirectory => Error::NotADirectory { path },
        Code::IsADirectory => Error::IsADirectory { path },
        Code::NotRegular => Error::NotRegular { path },
        Code::PermissionDenied => Error::PermissionDenied { path },
        Code::InvalidPath if failure.errno == 0 => Error::InvalidPath {
            path,
            reason: "it lies outside of the working directory".into(),
        },
        Code::InvalidPath => Error::InvalidPath {
            path,
            reason: reason(),
        },
        Code::TooLarge => Error::TooLarge {
            what: path,
            limit: 900,
        },
        Code::ProgramNotFound => Error::NotFound {
            role: PathRole::Program,
            path,
        },
        Code::NotExecutable => Error::NotExecutable {
            program: path,
            reason: if failure.errno == 2 {
                "the interpreter that it names is missing".into()
            } else {
                reason()
            },
        },
        Code::BadCwd => Error::BadCwd {
            cwd: path,
            reason: reason(),
        },
        Code::UserNotFound => Error::UserNotFound {
            user: path,
            reason: match failure.errno {
                0 => "its /etc/passwd has no such name".into(),
                _ => format!("its ids cannot be used here ({})", reason()),
            },
        },
        Code::ArgumentsTooLong => Error::ArgumentsTooLong { reason: reason() },
        Code::ConnectionRefused => Error::ConnectionRefused {
            port: path.parse().unwrap_or(0),
        },
        Code::InvalidArchive => Error::InvalidArchive {
            entry: path,
            reason: "it would be written outside of the directory".into(),
        },
        Code::Io | Code::Protocol => Error::io(
            format!("{operation} ({path})"),
            io::Error::from_raw_os_error(if failure.errno == 0 { 5 } else { failure.errno }),
        ),
    }
}

/// One operation: ends on the guest's side too when it is dropped before its end.
struct Operation {
    connection: Arc<Connection>,
    id: u32,
    events: Events,
    name: &'static str,
    over: bool,
}

impl Operation {
    fn begin(
        connection: &Arc<Connection>,
        kind: u8,
        local: bool,
        payload: &[u8],
        name: &'static str,
    ) -> Result<Operation> {
        let (id, events) = connection.begin()?;
        let flags = if local { FLAG_LOCAL } else { 0 };
        connection.send(id, kind, flags, payload, Vec::new());
        Ok(Operation {
            connection: connection.clone(),
            id,
            events,
            name,
            over: false,
        })
    }

    /// The next answer; a failure of the operation is an error.
    async fn next(&mut self) -> Result<Incoming> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Incoming>> {
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(match event {
            Some(event) if event.kind == to_host::FAILED => {
                self.over = true;
                Err(failure(&self.connection, &event.payload, self.name))
            }
            Some(event) => Ok(event),
            None => Err(self.connection.lost(false)),
        })
    }

    async fn expect(&mut self, kind: u8) -> Result<Incoming> {
        let event = self.next().await?;
        if event.kind == kind {
            Ok(event)
        } else {
            Err(self.unexpected())
        }
    }

    fn unexpected(&self) -> Error {
        self.connection.violated(Malformed("an unexpected answer"))
    }

    /// A frame of a stream has been consumed.
    fn credit(&self, payload: usize) {
        let bytes = ((payload + FRAME_COST) as u32).to_le_bytes();
        self.connection
            .send(self.id, to_guest::CREDIT, STDOUT, &bytes, Vec::new());
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.over {
            self.connection
                .send(self.id, to_guest::ABORT, 0, &[], Vec::new());
        }
        self.connection.end(self.id);
    }
}

// --- single calls

pub(crate) async fn set_default_user(connection: &Arc<Connection>, user: &User) -> Result<()> {
    let mut payload = Encoder::default();
    user_spec(Some(user)).put(&mut payload);
    let mut operation = Operation::begin(
        connection,
        to_guest::SET_USER,
        false,
        &payload.0,
        "setting the default user",
    )?;
    operation.expect(to_host::DONE).await?;
    operation.over = true;
    Ok(())
}

pub(crate) fn user_spec(user: Option<&User>) -> UserSpec {
    match user {
        Some(User::Name(name)) => UserSpec::Name(name.clone().into_bytes()),
        Some(User::Ids { uid, gid }) => UserSpec::Ids(*uid, *gid),
        _ => UserSpec::Default,
    }
}

pub(crate) async fn stat(connection: &Arc<Connection>, path: &SandboxPath) -> Result<FileStat> {
    let mut operation =
        Operation::begin(connection, to_guest::STAT, false, path.as_bytes(), "stat")?;
    let event = operation.expect(to_host::STAT).await?;
    operation.over = true;
    let mut decoder = Decoder::new(&event.payload);
    let decoded = decoder
        .u8()
        .and_then(|kind| Ok((kind, decoder.u64()?, decoder.end()?)));
    let (kind, size, ()) = decoded.map_err(|malformed| connection.violated(malformed))?;
    Ok(FileStat {
        kind: file_kind(kind),
        size,
    })
}

fn file_kind(kind: u8) -> FileKind {
    match kind {
        KIND_FILE => FileKind::File,
        KIND_DIRECTORY => FileKind::Directory,
        KIND_SYMLINK => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

pub(crate) async fn list(connection: &Arc<Connection>, dir: &SandboxPath) -> Result<Vec<DirEntry>> {
    let mut operation = Operation::begin(
        connection,
        to_guest::LIST,
        false,
        dir.as_bytes(),
        "listing a directory",
    )?;
    operation.expect(to_host::OPENED).await?;
    let mut entries = Vec::new();
    let mut bytes = 0;
    loop {
        let event = operation.next().await?;
        match event.kind {
            to_host::NAMES => {
                operation.credit(event.payload.len());
                bytes += event.payload.len();
                if bytes > NAMES_MOST {
                    return Err(Error::TooLarge {
                        what: "the listing".into(),
                        limit: NAMES_MOST as u64,
                    });
                }
                let names = Decoder::new(&event.payload)
                    .list()
                    .map_err(|bad| connection.violated(bad))?;
                for entry in names {
                    let Some((kind, name)) = entry.split_first() else {
                        return Err(operation.unexpected());
                    };
                    if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
                        return Err(
                            connection.violated(Malformed("a directory entry that cannot be one"))
                        );
                    }
                    entries.push(DirEntry {
                        name: name.to_vec(),
                        kind: file_kind(*kind),
                    });
                }
            }
            to_host::EOF => {
                operation.over = true;
                return Ok(entries);
            }
            _ => return Err(operation.unexpected()),
        }
    }
}

pub(crate) async fn delete(connection: &Arc<Connection>, path: &SandboxPath) -> Result<()> {
    let mut operation = Operation::begin(
        connection,
        to_guest::DELETE,
        false,
        path.as_bytes(),
        "deleting a file",
    )?;
    operation.expect(to_host::DONE).await?;
    operation.over = true;
    Ok(())
}

// --- reading

pub(crate) async fn read(connection: &Arc<Connection>, path: &SandboxPath) -> Result<ByteStream> {
    let local = connection.is_local();
    let mut operation = Operation::begin(
        connection,
        to_guest::READ_FILE,
        local,
        path.as_bytes(),
        "reading a file",
    )?;
    let opened = operation.expect(to_host::OPENED).await?;
    if local {
        operation.over = true;
        let file = passed_file(connection, opened)?;
        let pieces = tokio_util::io::ReaderStream::with_capacity(file, READ_PIECE);
        let path = path.to_text();
        return Ok(ByteStream::new(pieces.map(move |piece| {
            piece.map_err(|error| Error::io(format!("reading {path:?}"), error))
        })));
    }
    Ok(ByteStream::new(Framed {
        operation,
        ended: false,
    }))
}

/// A file that the guest has passed: nothing but a regular file is read or written by this process.
fn passed_file(connection: &Connection, opened: Incoming) -> Result<tokio::fs::File> {
    let regular = |fd: &OwnedFd| {
        rustix::fs::fstat(fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    };
    match opened.fds.into_iter().next() {
        Some(fd) if regular(&fd) => Ok(tokio::fs::File::from_std(fd.into())),
        _ => Err(connection.violated(Malformed("no regular file was passed"))),
    }
}

/// A file's content in frames.
struct Framed {
    operation: Operation,
    ended: bool,
}

impl Stream for Framed {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.operation.poll_next(context));
        Poll::Ready(match event {
            Ok(event) if event.kind == to_host::DATA && event.payload.len() <= MAX_DATA => {
                self.operation.credit(event.payload.len());
                Some(Ok(event.payload.into()))
            }
            Ok(event) if event.kind == to_host::EOF => {
                self.ended = true;
                self.operation.over = true;
                None
            }
            other => {
                self.ended = true;
                Some(Err(other
                    .err()
                    .unwrap_or_else(|| self.operation.unexpected())))
            }
        })
    }
}

// --- writing

/// Sends data within the guest's credit.
struct Feed {
    operation: Operation,
    under_way: usize,
}

impl Feed {
    /// Sends one frame; waits while too much is under way.
    async fn send(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        while self.under_way > 0 && self.under_way + payload.len() > WINDOW as usize {
            let event = self.operation.expect(to_host::CREDIT).await?;
            let bytes = message::number(&event.payload);
            let bytes = bytes.map_err(|bad| self.operation.connection.violated(bad))? as usize;
            self.under_way = self.under_way.saturating_sub(bytes);
        }
        self.under_way += payload.len();
        self.operation
            .connection
            .send(self.operation.id, kind, STDIN, payload, Vec::new());
        Ok(())
    }

    async fn commit(mut self) -> Result<()> {
        self.operation
            .connection
            .send(self.operation.id, to_guest::COMMIT, 0, &[], Vec::new());
        loop {
            let event = self.operation.next().await?;
            match event.kind {
                to_host::DONE => {
                    self.operation.over = true;
                    return Ok(());
                }
                to_host::CREDIT => {}
                _ => return Err(self.operation.unexpected()),
            }
        }
    }
}

pub(crate) async fn write(
    connection: &Arc<Connection>,
    path: &SandboxPath,
    mut content: ByteStream,
) -> Result<()> {
    // Small content is cheaper in one frame than through a passed descriptor and a thread that may block.
    let mut start: VecDeque<Bytes> = VecDeque::new();
    let mut gathered = 0;
    let mut rest = true;
    while gathered <= MAX_DATA {
        match content.next().await {
            Some(chunk) => {
                let chunk = chunk?;
                gathered += chunk.len();
                start.push_back(chunk);
            }
            None => {
                rest = false;
                break;
            }
        }
    }
    let local = connection.is_local() && rest;
    let mut operation = Operation::begin(
        connection,
        to_guest::WRITE_FILE,
        local,
        path.as_bytes(),
        "writing a file",
    )?;
    let opened = operation.expect(to_host::OPENED).await?;
    if local {
        let mut file = passed_file(connection, opened)?;
        file.set_max_buf_size(READ_PIECE);
        let io = |error| Error::io(format!("writing {:?}", path.to_text()), error);
        loop {
            let chunk = match start.pop_front() {
                Some(chunk) => chunk,
                None => match content.next().await {
                    Some(chunk) => chunk?,
                    None => break,
                },
            };
            file.write_all(&chunk).await.map_err(io)?;
        }
        file.flush().await.map_err(io)?;
        return Feed {
            operation,
            under_way: 0,
        }
        .commit()
        .await;
    }
    let mut feed = Feed {
        operation,
        under_way: 0,
    };
    loop {
        let chunk = match start.pop_front() {
            Some(chunk) => chunk,
            None if rest => match content.next().await {
                Some(chunk) => chunk?,
                None => break,
            },
            None => break,
        };
        for piece in chunk.chunks(MAX_DATA) {
            feed.send(to_guest::DATA, piece).await?;
        }
    }
    feed.commit().await
}

// --- trees

pub(crate) async fn read_tree(
    connection: &Arc<Connection>,
    dir: &SandboxPath,
    limits: TreeLimits,
) -> Result<ByteStream> {
    let mut operation = Operation::begin(
        connection,
        to_guest::READ_TREE,
        false,
        dir.as_bytes(),
        "reading a tree",
    )?;
    operation.expect(to_host::OPENED).await?;
    Ok(tree::encode(
        TreeEvents {
            operation,
            ended: false,
        },
        limits,
    ))
}

struct TreeEvents {
    operation: Operation,
    ended: bool,
}

impl Stream for TreeEvents {
    type Item = Result<TreeEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = match ready!(self.operation.poll_next(context)) {
            Ok(event) => event,
            Err(error) => {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
        };
        self.operation.credit(event.payload.len());
        let decoded = match event.kind {
            to_host::DATA if event.payload.len() <= MAX_DATA => {
                Ok(TreeEvent::Data(event.payload.into()))
            }
            to_host::ENTRY => Entry::decode(&event.payload)
                .and_then(tree_entry)
                .map(TreeEvent::Entry),
            to_host::EOF => {
                self.ended = true;
                self.operation.over = true;
                return Poll::Ready(None);
            }
            _ => Err(Malformed("an unexpected answer")),
        };
        Poll::Ready(Some(decoded.map_err(|malformed| {
            self.ended = true;
            self.operation.connection.violated(malformed)
        })))
    }
}

fn tree_entry(entry: Entry) -> std::result::Result<TreeEntry, Malformed> {
    let Entry {
        kind,
        mode,
        size,
        path,
        target,
    } = entry;
    let kind = match kind {
        KIND_FILE => TreeKind::File { size },
        KIND_DIRECTORY => TreeKind::Directory,
        KIND_SYMLINK => TreeKind::Symlink { target },
        KIND_HARDLINK => TreeKind::Hardlink { target },
        KIND_FIFO => TreeKind::Fifo,
        _ => return Err(Malformed("an entry of an unknown kind")),
    };
    Ok(TreeEntry { path, mode, kind })
}

fn wire_entry(entry: TreeEntry) -> Entry {
    let TreeEntry { path, mode, kind } = entry;
    let (kind, size, target) = match kind {
        TreeKind::File { size } => (KIND_FILE, size, Vec::new()),
        TreeKind::Directory => (KIND_DIRECTORY, 0, Vec::new()),
        TreeKind::Symlink { target } => (KIND_SYMLINK, 0, target),
        TreeKind::Hardlink { target } => (KIND_HARDLINK, 0, target),
        TreeKind::Fifo => (KIND_FIFO, 0, Vec::new()),
    };
    Entry {
        kind,
        mode,
        size,
        path,
        target,
    }
}

pub(crate) async fn write_tree(
    connection: &Arc<Connection>,
    dir: &SandboxPath,
    archive: ByteStream,
    limits: TreeLimits,
) -> Result<()> {
    let mut operation = Operation::begin(
        connection,
        to_guest::WRITE_TREE,
        false,
        dir.as_bytes(),
        "writing a tree",
    )?;
    operation.expect(to_host::OPENED).await?;
    let mut feed = Feed {
        operation,
        under_way: 0,
    };
    let mut events = tree::decode(archive, limits);
    while let Some(event) = events.next().await {
        match event? {
            TreeEvent::Entry(entry) => {
                let name =
                    String::from_utf8_lossy(&entry.path[..entry.path.len().min(256)]).into_owned();
                let payload = wire_entry(entry).encode();
                if payload.len() > MAX_PAYLOAD {
                    return Err(Error::InvalidArchive {
                        entry: name,
                        reason: "its name is too long".into(),
                    });
                }
                feed.send(to_guest::ENTRY, &payload).await?;
            }
            TreeEvent::Data(data) => {
                for piece in data.chunks(MAX_DATA) {
                    feed.send(to_guest::DATA, piece).await?;
                }
            }
        }
    }
    feed.commit().await
}

// --- ports

pub(crate) async fn dial(connection: &Arc<Connection>, port: u16) -> Result<DuplexStream> {
    let local = connection.is_local();
    let mut operation = Operation::begin(
        connection,
        to_guest::DIAL,
        local,
        &port.to_le_bytes(),
        "connecting inside the sandbox",
    )?;
    let opened = operation.expect(to_host::OPENED).await?;
    if !local {
        return Ok(DuplexStream::new(FramedSocket {
            operation,
            left: Bytes::new(),
            credit: u64::from(WINDOW),
            ended: false,
            shut: false,
            wakers: Arc::default(),
            frames: 0,
            read: 0,
        }));
    }
    operation.over = true;
    let socket = |fd: &OwnedFd| {
        rustix::fs::fstat(fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
    };
    let Some(fd) = opened.fds.into_iter().next().filter(socket) else {
        return Err(connection.violated(Malformed("no connection was passed")));
    };
    let stream = std::net::TcpStream::from(fd);
    let io = |error| Error::io("using a connection into the sandbox", error);
    stream.set_nonblocking(true).map_err(io)?;
    Ok(DuplexStream::new(TcpStream::from_std(stream).map_err(io)?))
}

/// A connection into the sandbox whose bytes travel in frames.
struct FramedSocket {
    operation: Operation,
    left: Bytes,
    credit: u64,
    ended: bool,
    shut: bool,
    /// Of the reading and the writing task: the events of both arrive in one place.
    wakers: Arc<Wakers>,
    /// Frames and bytes that were taken in and for which the guest has no credit yet.
    frames: usize,
    read: usize,
}

#[derive(Default)]
struct Wakers(Mutex<[Option<Waker>; 2]>);

impl Wakers {
    fn set(&self, side: usize, waker: &Waker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[side] = Some(waker.clone());
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl FramedSocket {
    /// Takes in answers until there is data to read (`true`) or the guest can take more (`false`), or nothing is there.
    fn poll_event(&mut self, side: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wakers.set(side, context.waker());
        // What arrives may be for either side, and the queue remembers only one waker: it wakes both.
        let both = Waker::from(self.wakers.clone());
        let event = ready!(self.operation.poll_next(&mut Context::from_waker(&both)));
        let event = match event {
            Ok(event) => event,
            Err(error) => return Poll::Ready(Err(io::Error::other(error))),
        };
        match event.kind {
            to_host::DATA if event.payload.len() <= MAX_DATA => {
                self.frames += 1;
                // Its credit is given when it is read: at most one window is under way, so that this never grows.
                self.left = if self.left.is_empty() {
                    event.payload.into()
                } else {
                    [&self.left[..], &event.payload].concat().into()
                };
            }
            to_host::EOF => self.ended = true,
            to_host::CREDIT => {
                let bytes = message::number(&event.payload).unwrap_or(0);
                self.credit = self
                    .credit
                    .saturating_add(u64::from(bytes))
                    .min(u64::from(WINDOW));
            }
            to_host::CLOSED => self.shut = true,
            _ => return Poll::Ready(Err(io::Error::other(self.operation.unexpected()))),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for FramedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.left.is_empty() && !self.ended {
            ready!(self.poll_event(0, context))?;
        }
        let length = self.left.len().min(buffer.remaining());
        buffer.put_slice(&self.left.split_to(length));
        self.read += length;
        if self.left.is_empty() && self.frames > 0 {
            let (frames, read) = (
                std::mem::take(&mut self.frames),
                std::mem::take(&mut self.read),
            );
            // `credit` adds the cost of one frame.
            self.operation.credit(read + (frames - 1) * FRAME_COST);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FramedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.credit == 0 && !self.shut {
            ready!(self.poll_event(1, context))?;
        }
        if self.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = data
            .len()
            .min(MAX_DATA)
            .min(usize::try_from(self.credit).unwrap_or(MAX_DATA));
        self.credit -= length as u64;
        let id = self.operation.id;
        self.operation
            .connection
            .send(id, to_guest::DATA, STDIN, &data[..length], Vec::new());
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.shut, true) {
            let id = self.operation.id;
            self.operation
                .connection
                .send(id, to_guest::EOF, STDIN, &[], Vec::new());
        }
        Poll::Ready(Ok(()))
    }
}

//! Ways to a guest: a unix socket that also passes descriptors, or any byte stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The most descriptors that are accepted with one message.
const MAX_FDS: usize = 8;

/// Bytes that are to be sent, with the descriptors that go with the first of them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The reading side.
pub(crate) enum Reader {
    Local(std::sync::Arc<UnixStream>),
    Stream(Pin<Box<dyn AsyncRead + Send>>),
}

impl Reader {
    /// Reads some bytes and the descriptors that came with them; 0 at the end. Safe to cancel.
    pub(crate) async fn read(
        &mut self,
        buffer: &mut [u8],
        fds: &mut VecDeque<OwnedFd>,
    ) -> io::Result<usize> {
        match self {
            Reader::Stream(stream) => stream.read(buffer).await,
            Reader::Local(socket) => loop {
                socket.readable().await?;
                match socket.try_io(Interest::READABLE, || receive(socket.as_fd(), buffer, fds)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => return other,
                }
            },
        }
    }
}

fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut vectors = [IoSliceMut::new(buffer)];
    let received =
        rustix::net::recvmsg(socket, &mut vectors, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    Ok(received.bytes)
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    Ok(rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// The writing side.
pub(crate) enum Writer {
    Local(std::sync::Arc<UnixStream>),
    Stream(Pin<Box<dyn AsyncWrite + Send>>),
}

impl Writer {
    /// Sends as much as goes at once; `None` if this transport cannot tell, so that a task has to do it.
    pub(crate) fn try_send(&self, outgoing: &mut Outgoing) -> Option<io::Result<bool>> {
        let Writer::Local(socket) = self else {
            return None;
        };
        while !outgoing.bytes.is_empty() {
            match socket.try_io(Interest::WRITABLE, || {
                send(socket.as_fd(), &outgoing.bytes, &outgoing.fds)
            }) {
                Ok(length) => {
                    outgoing.fds.clear();
                    outgoing.bytes.drain(..length);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(Ok(false)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(true))
    }

    /// Ends both directions now.
    pub(crate) fn shut_down(&self) {
        if let Writer::Local(socket) = self {
            // It may have ended already.
            let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }

    /// Sends all of it.
    pub(crate) async fn send(&mut self, mut outgoing: Outgoing) -> io::Result<()> {
        if let Writer::Stream(stream) = self {
            stream.write_all(&outgoing.bytes).await?;
            return stream.flush().await;
        }
        loop {
            match self.try_send(&mut outgoing) {
                Some(Ok(true)) | None => return Ok(()),
                Some(Err(error)) => return Err(error),
                Some(Ok(false)) => {
                    if let Writer::Local(socket) = self {
                        socket.writable().await?;
                    }
                }
            }
        }
    }
}

//! One connection to a guest: frames out, frames in, each to the operation that it belongs to.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sandbox_core::{Error, Result};
use tokio::sync::{mpsc, watch};

use crate::transport::{Outgoing, Reader, Writer};
use crate::wire::bytes::{Encoder, Malformed};
use crate::wire::frame::{self, Assembler, FRAME_COST, Frame, MAX_DATA, VERSION, WINDOW};
use crate::wire::message::{to_guest, to_host};

/// How long a guest may take to answer the greeting.
const GREETING_MOST: Duration = Duration::from_secs(30);
/// What may wait for one operation, in bytes with the frames' cost. A guest within the credit of two streams never comes near it.
const WAITING_MOST: usize = 4 * WINDOW as usize;
/// The longest message of a guest but stream data, in bytes: a tree entry with the longest of paths fits.
const MESSAGE_MOST: usize = 512 << 10;

/// A frame of an operation, with its descriptors.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) kind: u8,
    pub(crate) stream: u8,
    pub(crate) payload: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Where the frames of an operation arrive.
pub(crate) struct Events {
    receiver: mpsc::UnboundedReceiver<Incoming>,
    queued: Arc<AtomicUsize>,
}

impl Events {
    /// The next frame; `None` when the connection or the operation has ended. Safe to cancel.
    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let event = ready!(self.receiver.poll_recv(context));
        if let Some(event) = &event {
            self.queued
                .fetch_sub(event.payload.len() + FRAME_COST, Ordering::Relaxed);
        }
        Poll::Ready(event)
    }
}

/// An operation's side of the connection.
#[derive(Clone)]
struct Mailbox {
    sender: mpsc::UnboundedSender<Incoming>,
    queued: Arc<AtomicUsize>,
}

/// Shared by all operations; the tasks that read and write end with it.
pub(crate) struct Connection {
    out: Mutex<Out>,
    /// Wakes the writing task.
    queued: mpsc::UnboundedSender<Outgoing>,
    operations: Mutex<HashMap<u32, Mailbox>>,
    next_id: AtomicU32,
    /// Why the connection is over, once it is.
    closed: watch::Sender<Option<String>>,
    destroyed: AtomicBool,
    local: bool,
}

/// Sends directly while nothing waits, so that a request costs no task switch.
struct Out {
    direct: Option<Writer>,
    waiting: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere must not take the sandbox down with it; the data are valid between any two statements.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Connection {
    /// Greets the guest and starts the tasks of the connection.
    pub(crate) async fn open(
        mut reader: Reader,
        writer: Writer,
        direct: Option<Writer>,
        local: bool,
    ) -> Result<Arc<Connection>> {
        let (queued, mut queue) = mpsc::unbounded_channel::<Outgoing>();
        let connection = Arc::new(Connection {
            out: Mutex::new(Out {
                direct,
                waiting: false,
            }),
            queued,
            operations: Mutex::new(HashMap::new()),
            next_id: AtomicU32::new(1),
            closed: watch::channel(None).0,
            destroyed: AtomicBool::new(false),
            local,
        });
        let weak = Arc::downgrade(&connection);
        let mut writer = writer;
        let mut closed = connection.closed.subscribe();
        tokio::spawn(async move {
            loop {
                let outgoing = tokio::select! {
                    outgoing = queue.recv() => outgoing,
                    _ = closed.changed() => return,
                };
                let Some(outgoing) = outgoing else { return };
                let sent = tokio::select! {
                    sent = writer.send(outgoing) => sent,
                    // The other side does not read; nobody on this side waits for it any more.
                    _ = closed.changed() => return,
                };
                let Some(connection) = weak.upgrade() else {
                    return;
                };
                if let Err(error) = sent {
                    return connection.close(&format!("writing to it failed: {error}"));
                }
                if queue.is_empty() {
                    // Taken under the lock by whoever sends next; a frame queued meanwhile keeps the order.
                    let mut out = lock(&connection.out);
                    if queue.is_empty() {
                        out.waiting = false;
                    }
                }
            }
        });
        let mut hello = Encoder::default();
        hello.u16(VERSION);
        connection.send(0, to_guest::HELLO, 0, &hello.0, Vec::new());
        let mut state = Assembly {
            buffer: vec![0; MAX_DATA],
            assembler: Assembler::default(),
            fds: VecDeque::new(),
        };
        let greeting = tokio::time::timeout(GREETING_MOST, state.next(&mut reader)).await;
        let unavailable = |detail: String| Error::Unavailable {
            target: "the sandbox's supervisor".into(),
            never_started: true,
            detail,
        };
        match greeting {
            Ok(Ok(Some((frame, _)))) if frame.kind == to_host::HELLO => {
                let version = frame
                    .payload
                    .first_chunk()
                    .map(|bytes| u16::from_le_bytes(*bytes));
                if version != Some(VERSION) {
                    return Err(unavailable(format!(
                        "it speaks version {version:?} of the protocol, this side {VERSION}: use the same release on both sides"
                    )));
                }
            }
            Ok(Ok(Some(_))) => return Err(unavailable("it did not answer with a greeting".into())),
            Ok(Ok(None)) => {
                return Err(unavailable(
                    "it closed the connection before its greeting".into(),
                ));
            }
            Ok(Err(error)) => return Err(unavailable(error)),
            Err(_) => {
                return Err(unavailable(
                    "it did not answer the greeting within 30 s".into(),
                ));
            }
        }
        let weak = Arc::downgrade(&connection);
        let mut closed = connection.closed.subscribe();
        tokio::spawn(async move {
            loop {
                let next = tokio::select! {
                    next = state.next(&mut reader) => next,
                    // The last user is gone, or the writing side has failed.
                    _ = closed.changed() => return,
                };
                let Some(connection) = weak.upgrade() else {
                    return;
                };
                match next {
                    Ok(Some((frame, fds))) => {
                        if let Err(reason) = connection.deliver(frame, fds) {
                            return connection.close(&reason);
                        }
                    }
                    Ok(None) => return connection.close("it ended"),
                    Err(reason) => return connection.close(&reason),
                }
            }
        });
        Ok(connection)
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// Sends a frame. Never blocks; data is bounded by the credit of its stream. After the end nothing happens.
    pub(crate) fn send(&self, id: u32, kind: u8, stream: u8, payload: &[u8], fds: Vec<OwnedFd>) {
        let bytes = frame::encode(id, kind, stream, fds.len() as u8, payload);
        let mut outgoing = Outgoing { bytes, fds };
        let mut out = lock(&self.out);
        if !out.waiting
            && let Some(writer) = &out.direct
        {
            match writer.try_send(&mut outgoing) {
                Some(Ok(true)) => return,
                Some(Err(error)) => {
                    drop(out);
                    return self.close(&format!("writing to it failed: {error}"));
                }
                Some(Ok(false)) | None => {}
            }
        }
        out.waiting = true;
        // The task ends with the connection; then nobody wants the frame.
        let _ = self.queued.send(outgoing);
    }

    /// Begins an operation: its id, and where its frames arrive. The receiver ends when the connection does.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<(u32, Events)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let events = Events {
            receiver,
            queued: queued.clone(),
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.operations).insert(id, Mailbox { sender, queued });
        if self.closed.borrow().is_some() {
            lock(&self.operations).remove(&id);
            return Err(self.lost(true));
        }
        Ok((id, events))
    }

    /// Ends an operation on this side.
    pub(crate) fn end(&self, id: u32) {
        lock(&self.operations).remove(&id);
    }

    fn deliver(&self, frame: Frame, fds: Vec<OwnedFd>) -> std::result::Result<(), String> {
        let most = if frame.kind == to_host::DATA {
            MAX_DATA
        } else {
            MESSAGE_MOST
        };
        if frame.payload.len() > most {
            return Err("it sent a message that is longer than allowed".into());
        }
        let Some(mailbox) = lock(&self.operations).get(&frame.id).cloned() else {
            // Of an operation that this side has given up.
            return Ok(());
        };
        let cost = frame.payload.len() + FRAME_COST;
        if mailbox.queued.fetch_add(cost, Ordering::Relaxed) + cost > WAITING_MOST {
            return Err("it sent more than it had credit for".into());
        }
        let incoming = Incoming {
            kind: frame.kind,
            stream: frame.stream,
            payload: frame.payload,
            fds,
        };
        // An operation that has just ended does not want it.
        let _ = mailbox.sender.send(incoming);
        Ok(())
    }

    /// Ends the connection: every operation sees its end.
    pub(crate) fn close(&self, reason: &str) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(reason.to_owned());
            }
            first
        });
        lock(&self.operations).clear();
        // At once, also where no task runs any more that could drop the socket.
        if let Some(writer) = lock(&self.out).direct.take() {
            writer.shut_down();
        }
    }

    /// Resolves when the connection has ended.
    pub(crate) async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender lives as long as `self`.
        let _ = closed.wait_for(Option::is_some).await;
    }

    pub(crate) fn mark_destroyed(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// The error of an operation whose connection has ended.
    pub(crate) fn lost(&self, never_started: bool) -> Error {
        let detail = if self.is_destroyed() {
            "the sandbox was destroyed".to_owned()
        } else {
            self.closed
                .borrow()
                .clone()
                .unwrap_or_else(|| "the operation was given up".into())
        };
        Error::Unavailable {
            target: "the sandbox's supervisor".into(),
            never_started,
            detail,
        }
    }

    /// The guest has broken the protocol: the connection ends.
    pub(crate) fn violated(&self, malformed: Malformed) -> Error {
        self.close(&malformed.to_string());
        self.lost(false)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Wakes the reading task, which holds the socket.
        self.closed.send_modify(|closed| {
            closed.get_or_insert_with(|| "the client is gone".into());
        });
    }
}

struct Assembly {
    buffer: Vec<u8>,
    assembler: Assembler,
    fds: VecDeque<OwnedFd>,
}

impl Assembly {
    /// The next frame with its descriptors; `None` at a clean end. Safe to cancel.
    async fn next(
        &mut self,
        reader: &mut Reader,
    ) -> std::result::Result<Option<(Frame, Vec<OwnedFd>)>, String> {
        loop {
            if let Some(frame) = self
                .assembler
                .next()
                .map_err(|malformed| malformed.to_string())?
            {
                let wanted = usize::from(frame.fds);
                if self.fds.len() < wanted {
                    return Err("a descriptor is missing".into());
                }
                return Ok(Some((frame, self.fds.drain(..wanted).collect())));
            }
            match reader.read(&mut self.buffer, &mut self.fds).await {
                Ok(0) if self.assembler.is_empty() => return Ok(None),
                Ok(0) => return Err("it ended in the middle of a message".into()),
                Ok(length) => self.assembler.push(&self.buffer[..length]),
                Err(error) => return Err(format!("reading from it failed: {error}")),
            }
        }
    }
}

//! A command in the sandbox, as a [`Process`] that core supervises.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sandbox_core::{
    Chunk, Cmd, Env, Error, ExecStdin, Execution, Exit, ExitStatus, OutputStream, Process, Program,
    PtySize, Result, Stdin, Usage, supervise,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

use crate::client::ExecContext;
use crate::connection::{Connection, Events, Incoming};
use crate::files::{failure, user_spec};
use crate::wire::bytes::{Encoder, Malformed};
use crate::wire::frame::{Assembler, FRAME_COST, Frame, MAX_DATA, WINDOW};
use crate::wire::message::{
    self, ExecRequest, Exited, FLAG_LOCAL, FLAG_PTY, FLAG_SEARCH, FLAG_STDIN, STDERR, STDIN,
    STDOUT, to_guest, to_host,
};

/// A kernel's default pipe holds 64 KiB; more halves the number of switches for output that floods.
const PIPE_SIZE: usize = 1 << 20;

pub(crate) async fn exec(
    connection: &Arc<Connection>,
    cmd: &Cmd,
    context: ExecContext,
) -> Result<Execution> {
    let request = request(connection, cmd, &context);
    let local = connection.is_local();
    let io = |error: io::Error| Error::io("making the pipes of a command", error);
    let mut passed = Vec::new();
    let mut streams = Streams::default();
    let mut stdin = None;
    let mut status = None;
    if local && cmd.pty.is_none() {
        if request.flags & FLAG_STDIN != 0 {
            let (read, write) = pipe_ends().map_err(io)?;
            passed.push(read);
            stdin = Some(ExecStdin::new(
                pipe::Sender::from_owned_fd(write).map_err(io)?,
            ));
        }
        for place in [&mut streams.stdout, &mut streams.stderr] {
            let (read, write) = pipe_ends().map_err(io)?;
            passed.push(write);
            *place = Some(pipe::Receiver::from_owned_fd(read).map_err(io)?);
        }
        // Start and end come straight from the command's monitor, past the guest's event loop and this side's reading task.
        let (read, write) = pipe_ends().map_err(io)?;
        passed.push(write);
        status = Some(Status {
            pipe: pipe::Receiver::from_owned_fd(read).map_err(io)?,
            assembler: Assembler::default(),
        });
    } else if !local {
        streams.framed = 1 + u8::from(cmd.pty.is_none());
    }
    let oom_before = context.oom_kills.as_ref().and_then(|count| count());
    let (id, events) = connection.begin()?;
    let mut process = GuestProcess {
        connection: connection.clone(),
        id,
        events,
        status,
        streams,
        input: Arc::default(),
        exit: None,
        exited: false,
        gone: false,
        lost: false,
        context,
        oom_before,
        pty: cmd.pty.is_some(),
        released: false,
    };
    connection.send(id, to_guest::EXEC, 0, &request.encode(), passed);
    // Dropping this future drops the process, which ends what may have started.
    let (pid, terminal) = process.started(cmd).await?;
    if let Some(terminal) = terminal {
        let copy = terminal.try_clone().map_err(io)?;
        process.streams.stdout = Some(pipe::Receiver::from_owned_fd_unchecked(copy).map_err(io)?);
        let writer = pipe::Sender::from_owned_fd_unchecked(terminal).map_err(io)?;
        stdin = Some(ExecStdin::new(TerminalInput {
            writer,
            last: b'\n',
        }));
    } else if !local && (request.flags & FLAG_STDIN != 0 || cmd.pty.is_some()) {
        let input = process.input.clone();
        stdin = Some(ExecStdin::new(FramedInput {
            connection: connection.clone(),
            id,
            input,
            ended: false,
        }));
    }
    if cmd.pty.is_some()
        && matches!(cmd.stdin, Stdin::Null)
        && let Some(mut writer) = stdin.take()
    {
        // A terminal without input: end of file for whoever reads.
        use tokio::io::AsyncWriteExt;
        let _ = writer.shutdown().await;
    }
    Ok(supervise(Box::new(process), cmd, stdin).with_pid(pid))
}

fn request(connection: &Connection, cmd: &Cmd, context: &ExecContext) -> ExecRequest {
    let mut flags = if connection.is_local() { FLAG_LOCAL } else { 0 };
    let argv = match &cmd.program {
        Program::Shell(script) => {
            // A script may begin with a dash.
            vec![
                context.shell.clone(),
                b"-c".to_vec(),
                b"--".to_vec(),
                script.clone(),
            ]
        }
        Program::Argv(argv) => {
            flags |= FLAG_SEARCH;
            argv.clone()
        }
        // A kind of program that a later release of core adds.
        _ => Vec::new(),
    };
    if !matches!(cmd.stdin, Stdin::Null) && cmd.pty.is_none() {
        flags |= FLAG_STDIN;
    }
    let mut env = context.env.clone();
    if cmd.pty.is_some() && env.get("TERM").is_none() {
        env.set("TERM", "xterm-256color");
    }
    let env: Env = env.merged(&cmd.env);
    let size = cmd.pty.unwrap_or_default();
    if cmd.pty.is_some() {
        flags |= FLAG_PTY;
    }
    ExecRequest {
        flags,
        argv,
        env: env
            .iter()
            .map(|(name, value)| [name, b"=", value].concat())
            .collect(),
        cwd: cmd
            .cwd
            .as_ref()
            .map(|cwd| cwd.as_bytes().to_vec())
            .unwrap_or_default(),
        user: user_spec(cmd.user.as_ref()),
        rows: size.rows,
        columns: size.columns,
    }
}

fn pipe_ends() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Where a command's output comes from: its own pipes, or frames.
#[derive(Default)]
struct Streams {
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    /// How many framed streams have not ended.
    framed: u8,
    queue: VecDeque<Chunk>,
    buffer: BytesMut,
    /// Bytes of the current stream read without a pause; a flood gets a larger pipe.
    flood: usize,
    stderr_first: bool,
}

struct GuestProcess {
    connection: Arc<Connection>,
    id: u32,
    events: Events,
    status: Option<Status>,
    streams: Streams,
    input: Arc<Mutex<InputState>>,
    exit: Option<Result<Exit>>,
    exited: bool,
    gone: bool,
    lost: bool,
    context: ExecContext,
    oom_before: Option<u64>,
    pty: bool,
    released: bool,
}

impl GuestProcess {
    /// Waits until the command runs: its process id, and its terminal if that is passed.
    async fn started(&mut self, cmd: &Cmd) -> Result<(u32, Option<OwnedFd>)> {
        let next = std::future::poll_fn(|context| self.poll_event(context));
        let event = match &cmd.cancel {
            Some(token) => tokio::select! {
                event = next => event,
                () = token.cancelled() => return Err(token.error()),
            },
            None => next.await,
        };
        let Some(event) = event else {
            return Err(self.connection.lost(false));
        };
        match event.kind {
            to_host::STARTED => {
                let pid =
                    message::number(&event.payload).map_err(|bad| self.connection.violated(bad))?;
                let terminal = event.fds.into_iter().next();
                if self.pty && self.connection.is_local() && terminal.is_none() {
                    return Err(self.connection.violated(Malformed("a terminal is missing")));
                }
                Ok((pid, terminal))
            }
            to_host::FAILED => {
                self.released = true;
                self.connection.end(self.id);
                Err(failure(
                    &self.connection,
                    &event.payload,
                    "starting a command",
                ))
            }
            _ => Err(self
                .connection
                .violated(Malformed("a command did not start with its start"))),
        }
    }

    /// The next thing that is said of the command, by its monitor or by the guest; `None` when the connection has ended.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Incoming>> {
        if let Some(status) = &mut self.status {
            match status.poll(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some(event)),
                Poll::Ready(None) => self.status = None,
                Poll::Pending => {}
            }
        }
        self.events.poll_recv(context)
    }

    /// Takes in everything that has been said.
    fn poll_events(&mut self, context: &mut Context<'_>) {
        while !self.lost {
            match self.poll_event(context) {
                Poll::Pending => return,
                Poll::Ready(Some(event)) => {
                    if let Err(bad) = self.event(event) {
                        let error = self.connection.violated(bad);
                        self.exit.get_or_insert(Err(error));
                    }
                }
                Poll::Ready(None) => {
                    self.lost = true;
                    self.gone = true;
                    self.streams.framed = 0;
                    self.input
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .close();
                    self.exit.get_or_insert_with(|| {
                        if self.connection.is_destroyed() {
                            let mut exit = Exit::new(ExitStatus::Signal(9));
                            exit.destroyed = true;
                            Ok(exit)
                        } else {
                            Err(self.connection.lost(false))
                        }
                    });
                }
            }
        }
    }

    fn event(&mut self, event: Incoming) -> std::result::Result<(), Malformed> {
        match event.kind {
            to_host::DATA => {
                if event.payload.len() > MAX_DATA || self.streams.framed == 0 {
                    return Err(Malformed("output that nobody asked for"));
                }
                let stream = stream(event.stream)?;
                self.streams.queue.push_back(Chunk {
                    stream,
                    data: event.payload.into(),
                });
            }
            to_host::EOF => {
                self.streams.framed = self
                    .streams
                    .framed
                    .checked_sub(1)
                    .ok_or(Malformed("a stream ended twice"))?;
            }
            to_host::CREDIT => {
                let bytes = message::number(&event.payload)?;
                self.input
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .credit(bytes);
            }
            to_host::CLOSED => self
                .input
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .close(),
            to_host::EXITED => {
                let exited = Exited::decode(&event.payload)?;
                if std::mem::replace(&mut self.exited, true) {
                    return Ok(());
                }
                self.exit = Some(Ok(self.exit(&exited)));
                self.input
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .close();
            }
            to_host::GONE => self.gone = true,
            // Told by the guest too if the monitor was killed in between.
            to_host::STARTED => {}
            _ => return Err(Malformed("an unexpected answer to a command")),
        }
        Ok(())
    }

    fn exit(&self, exited: &Exited) -> Exit {
        let value = i32::from(exited.value);
        let status = if exited.by_signal {
            ExitStatus::Signal(value)
        } else {
            ExitStatus::Code(value)
        };
        let mut exit = Exit::new(status);
        exit.background = exited.background;
        exit.usage = Usage {
            cpu_user: Some(Duration::from_micros(exited.user_us)),
            cpu_system: Some(Duration::from_micros(exited.system_us)),
            peak_memory: Some(exited.peak_kib.saturating_mul(1024)),
        };
        let ready = |pipe: &Option<pipe::Receiver>| {
            pipe.as_ref()
                .and_then(|pipe| rustix::io::ioctl_fionread(pipe.as_fd()).ok())
                .unwrap_or(0)
        };
        let queued = |stream| {
            let chunks = self
                .streams
                .queue
                .iter()
                .filter(|chunk| chunk.stream == stream);
            chunks.map(|chunk| chunk.data.len() as u64).sum::<u64>()
        };
        // A guest that lies can make the caller wait, but no longer than core's bound.
        let framed = u64::from(WINDOW) * 4;
        exit.unread_stdout = ready(&self.streams.stdout)
            + queued(OutputStream::Stdout)
            + exited.unread_stdout.min(framed);
        exit.unread_stderr = ready(&self.streams.stderr)
            + queued(OutputStream::Stderr)
            + exited.unread_stderr.min(framed);
        // A memory limit kills with KILL; a shell that waited for the victim says 137.
        if status.as_code() == 137
            && let (Some(before), Some(count)) = (self.oom_before, &self.context.oom_kills)
        {
            exit.out_of_memory = count().is_some_and(|after| after > before);
        }
        exit
    }
}

/// What a command's monitor says itself.
struct Status {
    pipe: pipe::Receiver,
    assembler: Assembler,
}

impl Status {
    /// `None` at the end, which damaged messages are too: the guest says the same in its own way if it has to.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Incoming>> {
        loop {
            match self.assembler.next() {
                Ok(Some(Frame {
                    kind,
                    stream,
                    payload,
                    ..
                })) => {
                    let fds = Vec::new();
                    return Poll::Ready(Some(Incoming {
                        kind,
                        stream,
                        payload,
                        fds,
                    }));
                }
                Ok(None) => {}
                Err(_) => return Poll::Ready(None),
            }
            let mut space = [0; 256];
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.pipe).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.assembler.push(buffer.filled()),
                _ => return Poll::Ready(None),
            }
        }
    }
}

fn stream(number: u8) -> std::result::Result<OutputStream, Malformed> {
    match number {
        STDOUT => Ok(OutputStream::Stdout),
        STDERR => Ok(OutputStream::Stderr),
        _ => Err(Malformed("output on an unknown stream")),
    }
}

/// One read of a pipe; `None` at its end, and then the pipe is gone.
fn poll_pipe(
    pipe: &mut Option<pipe::Receiver>,
    buffer: &mut BytesMut,
    flood: &mut usize,
    context: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>> {
    let Some(open) = pipe else {
        return Poll::Ready(None);
    };
    if buffer.capacity() - buffer.len() < MAX_DATA / 4 {
        buffer.reserve(MAX_DATA);
    }
    let read = ready!(tokio_util::io::poll_read_buf(
        Pin::new(open),
        context,
        buffer
    ));
    match read {
        Ok(0) => {
            *pipe = None;
            Poll::Ready(None)
        }
        Ok(length) => {
            *flood += length;
            if *flood >= PIPE_SIZE && *flood - length < PIPE_SIZE {
                // Refused beyond the user's pipe budget; then it stays as it is.
                let _ = rustix::pipe::fcntl_setpipe_size(open.as_fd(), PIPE_SIZE);
            }
            let mut data = buffer.split();
            if data.len() > MAX_DATA {
                *buffer = data.split_off(MAX_DATA);
            }
            Poll::Ready(Some(Ok(data.freeze())))
        }
        // The last process of a terminal has gone.
        Err(error) if error.raw_os_error() == Some(5) => {
            *pipe = None;
            Poll::Ready(None)
        }
        Err(error) => {
            *pipe = None;
            Poll::Ready(Some(Err(error)))
        }
    }
}

impl Process for GuestProcess {
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Chunk>>> {
        let streams = &mut self.streams;
        if streams.stdout.is_none() && streams.stderr.is_none() {
            self.poll_events(context);
            let streams = &mut self.streams;
            return match streams.queue.pop_front() {
                Some(chunk) => {
                    let number = if chunk.stream == OutputStream::Stdout {
                        STDOUT
                    } else {
                        STDERR
                    };
                    let bytes = ((chunk.data.len() + FRAME_COST) as u32).to_le_bytes();
                    self.connection
                        .send(self.id, to_guest::CREDIT, number, &bytes, Vec::new());
                    Poll::Ready(Some(Ok(chunk)))
                }
                None if streams.framed == 0 => Poll::Ready(None),
                None => Poll::Pending,
            };
        }
        // In turn, so that a flood on one does not silence the other.
        streams.stderr_first = !streams.stderr_first;
        let mut pending = false;
        for turn in [streams.stderr_first, !streams.stderr_first] {
            let (pipe, stream) = if turn {
                (&mut streams.stderr, OutputStream::Stderr)
            } else {
                (&mut streams.stdout, OutputStream::Stdout)
            };
            match poll_pipe(pipe, &mut streams.buffer, &mut streams.flood, context) {
                Poll::Ready(Some(Ok(data))) => {
                    return Poll::Ready(Some(Ok(Chunk { stream, data })));
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(Error::io("reading a command's output", error))));
                }
                Poll::Ready(None) => {}
                Poll::Pending => pending = true,
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    fn poll_exit(&mut self, context: &mut Context<'_>) -> Poll<Result<Exit>> {
        self.poll_events(context);
        match self.exit.take() {
            Some(exit) => Poll::Ready(exit),
            None => Poll::Pending,
        }
    }

    fn end(&mut self, grace: Duration) {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.connection
            .send(self.id, to_guest::END, 0, &grace.to_le_bytes(), Vec::new());
    }

    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_events(context);
        if self.gone {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn resize(&mut self, size: PtySize) {
        let mut payload = Encoder::default();
        payload.u16(size.rows).u16(size.columns);
        self.connection
            .send(self.id, to_guest::RESIZE, 0, &payload.0, Vec::new());
    }

    fn release(mut self: Box<Self>) {
        self.released = true;
        // The guest reads on, so that what runs in the background gets no SIGPIPE, whatever becomes of this process.
        let pipes = [self.streams.stdout.take(), self.streams.stderr.take()];
        let left = pipes.into_iter().flatten().filter(|_| !self.pty);
        let fds = left
            .filter_map(|pipe| pipe.into_nonblocking_fd().ok())
            .collect();
        self.connection
            .send(self.id, to_guest::RELEASE, 0, &[], fds);
        self.connection.end(self.id);
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        if !self.released {
            // Given up before there was a result: whatever was started ends.
            self.connection
                .send(self.id, to_guest::END, 0, &0u64.to_le_bytes(), Vec::new());
            self.connection
                .send(self.id, to_guest::RELEASE, 0, &[], Vec::new());
            self.connection.end(self.id);
        }
    }
}

/// How much of a framed input the guest can take.
struct InputState {
    credit: u64,
    closed: bool,
    waker: Option<Waker>,
}

impl Default for InputState {
    fn default() -> Self {
        InputState {
            credit: u64::from(WINDOW),
            closed: false,
            waker: None,
        }
    }
}

impl InputState {
    fn credit(&mut self, bytes: u32) {
        self.credit = self
            .credit
            .saturating_add(u64::from(bytes))
            .min(u64::from(WINDOW));
        self.wake();
    }

    fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct FramedInput {
    connection: Arc<Connection>,
    id: u32,
    input: Arc<Mutex<InputState>>,
    ended: bool,
}

impl AsyncWrite for FramedInput {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed || self.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = data
            .len()
            .min(MAX_DATA)
            .min(usize::try_from(state.credit).unwrap_or(MAX_DATA));
        if length == 0 && !data.is_empty() {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        state.credit -= length as u64;
        self.connection
            .send(self.id, to_guest::DATA, STDIN, &data[..length], Vec::new());
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.ended, true) {
            self.connection
                .send(self.id, to_guest::EOF, STDIN, &[], Vec::new());
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for FramedInput {
    fn drop(&mut self) {
        if !self.ended {
            self.connection
                .send(self.id, to_guest::EOF, STDIN, &[], Vec::new());
        }
    }
}

/// The input side of a terminal that was passed. Its end of file is the terminal's own character.
struct TerminalInput {
    writer: pipe::Sender,
    last: u8,
}

impl AsyncWrite for TerminalInput {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.writer).poll_write(context, data));
        match written {
            Ok(length) => {
                self.last = length
                    .checked_sub(1)
                    .and_then(|at| data.get(at))
                    .copied()
                    .unwrap_or(self.last);
                Poll::Ready(Ok(length))
            }
            // The terminal has hung up.
            Err(error) if error.raw_os_error() == Some(5) => {
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // In the middle of a line the first one only delivers the line.
        let end: &[u8] = if self.last == b'\n' {
            b"\x04"
        } else {
            b"\x04\x04"
        };
        match ready!(Pin::new(&mut self.writer).poll_write(context, end)) {
            Ok(_) => {
                self.last = b'\n';
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

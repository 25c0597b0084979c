//! A running command: the caller's half ([`Execution`]) and the backend's half ([`ExecutionSink`]).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, oneshot};

use crate::cmd::{OutputLimits, PtySize};
use crate::error::{CancelReason, Error};

/// Chunks that may wait between the process and its reader: 16 of up to 64 KiB. Then the process is slowed down.
const CHUNKS_IN_FLIGHT: usize = 16;

/// The largest chunk, in bytes (rule EXEC-3).
///
/// ```
/// assert_eq!(sandbox_core::MAX_CHUNK, 65_536);
/// ```
pub const MAX_CHUNK: usize = 64 * 1024;

/// Which output stream.
///
/// ```
/// assert_ne!(sandbox_core::OutputStream::Stdout, sandbox_core::OutputStream::Stderr);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Standard output; with a pty everything.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of output as it arrived: exact bytes, at most [`MAX_CHUNK`].
///
/// ```
/// use sandbox_core::{Chunk, OutputStream};
/// let chunk = Chunk { stream: OutputStream::Stdout, data: "hi\n".into() };
/// assert_eq!(chunk.data.len(), 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Where it was written.
    pub stream: OutputStream,
    /// What was written.
    pub data: Bytes,
}

/// How a process ended.
///
/// ```
/// use sandbox_core::ExitStatus;
/// assert_eq!(ExitStatus::Signal(9).as_code(), 137);
/// assert!(ExitStatus::Code(0).success());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    /// It exited with this code, 0 to 255.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// The code as a shell reports it: 128 + n for signal n.
    ///
    /// ```
    /// assert_eq!(sandbox_core::ExitStatus::Signal(15).as_code(), 143);
    /// ```
    pub fn as_code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128 + signal,
        }
    }

    /// Whether it exited with 0.
    ///
    /// ```
    /// assert!(!sandbox_core::ExitStatus::Code(1).success());
    /// ```
    pub fn success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exit code {code}"),
            ExitStatus::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Why a command ended; decided once (rule EXEC-7).
///
/// ```
/// assert_eq!(sandbox_core::EndedBy::Exited.to_string(), "exited");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndedBy {
    /// By itself, or by a signal that was not the caller's.
    Exited,
    /// The caller cancelled, killed or dropped it.
    Cancelled,
    /// Its timeout passed.
    TimedOut,
    /// It wrote more standard output than allowed.
    OverflowStdout,
    /// It wrote more standard error than allowed.
    OverflowStderr,
    /// The memory limit.
    OutOfMemory,
    /// The sandbox was destroyed.
    Destroyed,
}

impl fmt::Display for EndedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndedBy::Exited => "exited",
            EndedBy::Cancelled => "cancelled",
            EndedBy::TimedOut => "timed out",
            EndedBy::OverflowStdout => "overflow of stdout",
            EndedBy::OverflowStderr => "overflow of stderr",
            EndedBy::OutOfMemory => "out of memory",
            EndedBy::Destroyed => "sandbox destroyed",
        })
    }
}

/// What a command used, where the backend measures it.
///
/// ```
/// assert_eq!(sandbox_core::Usage::default().peak_memory, None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time in user mode, of the direct process and those it waited for.
    pub cpu_user: Option<Duration>,
    /// CPU time in the kernel, of the same.
    pub cpu_system: Option<Duration>,
    /// The largest resident set of any one of them, in bytes.
    pub peak_memory: Option<u64>,
}

/// The end of a command (rule EXEC-5).
///
/// ```
/// use sandbox_core::{EndedBy, ExecResult, ExitStatus};
/// let result = ExecResult::new(Some(ExitStatus::Code(3)), EndedBy::Exited);
/// assert_eq!(result.code(), Some(3));
/// assert!(!result.success());
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecResult {
    /// How the direct process ended; absent only if that is unknown, and then `error` says why.
    pub status: Option<ExitStatus>,
    /// Standard output, up to its limit; always kept, however the command ended.
    pub stdout: Bytes,
    /// Standard error, up to its limit.
    pub stderr: Bytes,
    /// Whether there was more standard output than was kept.
    pub stdout_truncated: bool,
    /// Whether there was more standard error than was kept.
    pub stderr_truncated: bool,
    /// Why it ended.
    pub ended_by: EndedBy,
    /// From the start to the end of the direct process or, if ended, to the result.
    pub duration: Duration,
    /// Whether processes of the command live on (rule EXEC-12).
    pub background: bool,
    /// What it used.
    pub usage: Usage,
    /// A failure of the transport after the start.
    pub error: Option<Arc<Error>>,
}

impl ExecResult {
    /// A result without output.
    ///
    /// ```
    /// use sandbox_core::{EndedBy, ExecResult};
    /// assert!(ExecResult::new(None, EndedBy::Cancelled).stdout.is_empty());
    /// ```
    pub fn new(status: Option<ExitStatus>, ended_by: EndedBy) -> Self {
        ExecResult {
            status,
            stdout: Bytes::new(),
            stderr: Bytes::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            ended_by,
            duration: Duration::ZERO,
            background: false,
            usage: Usage::default(),
            error: None,
        }
    }

    /// The exit code as a shell reports it, if the status is known.
    ///
    /// ```
    /// use sandbox_core::{EndedBy, ExecResult, ExitStatus};
    /// let killed = ExecResult::new(Some(ExitStatus::Signal(9)), EndedBy::TimedOut);
    /// assert_eq!(killed.code(), Some(137));
    /// ```
    pub fn code(&self) -> Option<i32> {
        self.status.map(ExitStatus::as_code)
    }

    /// Whether the command exited by itself with 0 and nothing went wrong.
    ///
    /// ```
    /// use sandbox_core::{EndedBy, ExecResult, ExitStatus};
    /// assert!(ExecResult::new(Some(ExitStatus::Code(0)), EndedBy::Exited).success());
    /// ```
    pub fn success(&self) -> bool {
        self.ended_by == EndedBy::Exited
            && self.error.is_none()
            && self.status.is_some_and(ExitStatus::success)
    }
}

/// A running command: live output, input, control, and exactly one result.
///
/// Read chunks with [`next_chunk`](Execution::next_chunk) or as a [`Stream`]; they end before the result arrives. A slow reader
/// slows the process down; nothing is lost. [`wait`](Execution::wait) alone is enough when only the result matters.
///
/// **Dropping** an execution cancels it (TERM, grace, KILL for the whole tree); [`detach`](Execution::detach) lets it run on.
///
/// ```
/// use sandbox_core::{EndedBy, ExecResult, Execution, ExitStatus, OutputLimits, OutputStream};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let (mut execution, mut sink) = Execution::channel(OutputLimits::default(), None);
/// tokio::spawn(async move {
///     sink.send(OutputStream::Stdout, "hi\n".into()).await;
///     sink.finish(ExecResult::new(Some(ExitStatus::Code(0)), EndedBy::Exited));
/// });
/// assert_eq!(execution.next_chunk().await.unwrap().data, "hi\n");
/// assert!(execution.next_chunk().await.is_none());
/// let result = execution.wait().await;
/// assert_eq!((result.code(), &result.stdout[..]), (Some(0), &b"hi\n"[..]));
/// # });
/// ```
#[must_use = "dropping an execution cancels the command"]
pub struct Execution {
    chunks: mpsc::Receiver<Chunk>,
    result: oneshot::Receiver<ExecResult>,
    finished: Option<ExecResult>,
    stdin: Option<ExecStdin>,
    control: Controller,
    pid: Option<u32>,
}

impl Execution {
    /// Both halves of a command's execution: the caller's and the backend's.
    ///
    /// Backends whose commands are processes use [`supervise`](crate::supervise) instead, which adds timeouts, grace, overflow
    /// and drain.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (mut execution, sink) = Execution::channel(OutputLimits::default(), None);
    /// drop(sink); // a backend that gives up
    /// assert!(execution.wait().await.error.is_some());
    /// # });
    /// ```
    pub fn channel(limits: OutputLimits, stdin: Option<ExecStdin>) -> (Execution, ExecutionSink) {
        let (chunk_sender, chunks) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let (result_sender, result) = oneshot::channel();
        let (control, commands) = mpsc::unbounded_channel();
        let execution = Execution {
            chunks,
            result,
            finished: None,
            stdin,
            control: Controller(control),
            pid: None,
        };
        let sink = ExecutionSink {
            chunks: chunk_sender,
            result: result_sender,
            commands,
            stdout: Kept::new(limits.stdout),
            stderr: Kept::new(limits.stderr),
        };
        (execution, sink)
    }

    /// The same execution, with the process id inside the sandbox.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// assert_eq!(execution.with_pid(7).pid(), Some(7));
    /// ```
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }

    /// The direct process's id as seen inside the sandbox, where the backend has one.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// assert_eq!(execution.pid(), None);
    /// ```
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The next piece of output; `None` when both streams have ended. Safe to cancel.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (mut execution, sink) = Execution::channel(OutputLimits::default(), None);
    /// drop(sink);
    /// assert!(execution.next_chunk().await.is_none());
    /// # });
    /// ```
    pub async fn next_chunk(&mut self) -> Option<Chunk> {
        self.chunks.recv().await
    }

    /// The result, after the chunks that were not read (they are kept in it up to its limits). Asked again it answers the same.
    /// Safe to cancel. A piped input that was not taken ends now: nobody could write to it.
    ///
    /// ```
    /// use sandbox_core::{EndedBy, ExecResult, Execution, ExitStatus, OutputLimits};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (mut execution, sink) = Execution::channel(OutputLimits::default(), None);
    /// sink.finish(ExecResult::new(Some(ExitStatus::Code(4)), EndedBy::Exited));
    /// assert_eq!(execution.wait().await.code(), Some(4));
    /// assert_eq!(execution.wait().await.code(), Some(4));
    /// # });
    /// ```
    pub async fn wait(&mut self) -> ExecResult {
        if let Some(result) = &self.finished {
            return result.clone();
        }
        self.stdin = None;
        while self.chunks.recv().await.is_some() {}
        let result = (&mut self.result).await.unwrap_or_else(|_| abandoned());
        self.finished.insert(result).clone()
    }

    /// The result as soon as it is there, although chunks may be left; never again once it was given.
    pub(crate) async fn early_result(&mut self) -> ExecResult {
        if self.finished.is_some() {
            return std::future::pending().await;
        }
        let result = (&mut self.result).await.unwrap_or_else(|_| abandoned());
        self.finished.insert(result).clone()
    }

    /// The writer of a command with [`Stdin::Piped`](crate::Stdin::Piped); once. Dropping or shutting it down is end of file.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (mut execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// assert!(execution.take_stdin().is_none());
    /// ```
    pub fn take_stdin(&mut self) -> Option<ExecStdin> {
        self.stdin.take()
    }

    /// A handle that controls the command from elsewhere.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// execution.controller().kill();
    /// ```
    pub fn controller(&self) -> Controller {
        self.control.clone()
    }

    /// Ends the whole tree: TERM, grace, KILL. Returns at once; idempotent.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// execution.cancel();
    /// ```
    pub fn cancel(&self) {
        self.control.cancel();
    }

    /// Ends the whole tree with KILL. Returns at once; idempotent; harmless after the end.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// execution.kill();
    /// execution.kill();
    /// ```
    pub fn kill(&self) {
        self.control.kill();
    }

    /// Resizes the pseudo-terminal; nothing happens without one.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits, PtySize};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// execution.resize(PtySize { rows: 1, columns: 2 });
    /// ```
    pub fn resize(&self, size: PtySize) {
        self.control.resize(size);
    }

    /// Lets the command run on without anybody looking; its output is discarded.
    ///
    /// ```
    /// use sandbox_core::{Execution, OutputLimits};
    /// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
    /// execution.detach();
    /// ```
    pub fn detach(self) {
        self.control.detach();
    }
}

fn abandoned() -> ExecResult {
    let error = Error::Unavailable {
        target: "the command's execution".into(),
        never_started: false,
        detail: "the backend gave up before it had a result".into(),
    };
    ExecResult {
        error: Some(Arc::new(error)),
        ..ExecResult::new(None, EndedBy::Exited)
    }
}

impl Stream for Execution {
    type Item = Chunk;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        self.chunks.poll_recv(context)
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.finished.is_none() {
            self.control.send(Control::Dropped);
        }
    }
}

/// Controls a running command; clones control the same one. Harmless after its end.
///
/// ```
/// use sandbox_core::{Execution, OutputLimits};
/// let (execution, _sink) = Execution::channel(OutputLimits::default(), None);
/// let controller = execution.controller();
/// controller.cancel();
/// ```
#[derive(Clone)]
pub struct Controller(mpsc::UnboundedSender<Control>);

impl Controller {
    /// TERM, grace, KILL for the whole tree. Idempotent.
    ///
    /// ```
    /// # let (execution, _sink) = sandbox_core::Execution::channel(Default::default(), None);
    /// execution.controller().cancel();
    /// ```
    pub fn cancel(&self) {
        self.send(Control::Cancel(None));
    }

    /// KILL for the whole tree. Idempotent.
    ///
    /// ```
    /// # let (execution, _sink) = sandbox_core::Execution::channel(Default::default(), None);
    /// execution.controller().kill();
    /// ```
    pub fn kill(&self) {
        self.send(Control::Kill);
    }

    /// Resizes the pseudo-terminal.
    ///
    /// ```
    /// # let (execution, _sink) = sandbox_core::Execution::channel(Default::default(), None);
    /// execution.controller().resize(sandbox_core::PtySize::default());
    /// ```
    pub fn resize(&self, size: PtySize) {
        self.send(Control::Resize(size));
    }

    pub(crate) fn detach(&self) {
        self.send(Control::Detach);
    }

    fn send(&self, control: Control) {
        // Nobody listens once the command has ended, and then there is nothing to control.
        let _ = self.0.send(control);
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Controller")
    }
}

/// What the caller wants of a running command; a backend receives it from [`ExecutionSink::control`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use sandbox_core::{Control, Execution, OutputLimits};
/// let (execution, mut sink) = Execution::channel(OutputLimits::default(), None);
/// execution.kill();
/// assert!(matches!(sink.control().await, Control::Kill));
/// # });
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Control {
    /// TERM, grace, KILL.
    Cancel(Option<CancelReason>),
    /// KILL.
    Kill,
    /// A new size of the pseudo-terminal.
    Resize(PtySize),
    /// The caller let go and wants the command to run on.
    Detach,
    /// The caller dropped the execution: as `Cancel`, and nobody will read.
    Dropped,
}

/// Whether an output stream went over its limit by what was just sent.
///
/// ```
/// assert_ne!(sandbox_core::Accepted::Fits, sandbox_core::Accepted::Overflow);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// All of it was kept.
    Fits,
    /// The limit was exceeded, now or before.
    Overflow,
}

/// The backend's half of an [`Execution`]. Dropping it without [`finish`](Self::finish) gives the caller a transport error, never
/// a hang.
///
/// ```
/// use sandbox_core::{Accepted, Execution, OutputLimits, OutputStream, Overflow};
/// let (execution, mut sink) = Execution::channel(OutputLimits::new(2, 2, Overflow::Kill), None);
/// assert_eq!(sink.keep(OutputStream::Stdout, b"ab"), Accepted::Fits);
/// assert_eq!(sink.keep(OutputStream::Stdout, b"c"), Accepted::Overflow);
/// # drop(execution);
/// ```
pub struct ExecutionSink {
    chunks: mpsc::Sender<Chunk>,
    result: oneshot::Sender<ExecResult>,
    commands: mpsc::UnboundedReceiver<Control>,
    stdout: Kept,
    stderr: Kept,
}

impl ExecutionSink {
    /// Keeps output for the result and delivers it, waiting while the reader is slow. Data of any size; it is cut into chunks.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use sandbox_core::{Accepted, Execution, OutputLimits, OutputStream};
    /// let (execution, mut sink) = Execution::channel(OutputLimits::default(), None);
    /// assert_eq!(sink.send(OutputStream::Stderr, "x".into()).await, Accepted::Fits);
    /// # drop(execution);
    /// # });
    /// ```
    pub async fn send(&mut self, stream: OutputStream, mut data: Bytes) -> Accepted {
        let accepted = self.keep(stream, &data);
        while !data.is_empty() {
            let chunk = Chunk {
                stream,
                data: data.split_to(data.len().min(MAX_CHUNK)),
            };
            // A reader that went away makes the rest of the output nobody's.
            let _ = self.chunks.send(chunk).await;
        }
        accepted
    }

    /// Keeps output for the result without delivering it.
    ///
    /// ```
    /// use sandbox_core::{Accepted, Execution, OutputLimits, OutputStream};
    /// let (execution, mut sink) = Execution::channel(OutputLimits::default(), None);
    /// assert_eq!(sink.keep(OutputStream::Stdout, b"x"), Accepted::Fits);
    /// # drop(execution);
    /// ```
    pub fn keep(&mut self, stream: OutputStream, data: &[u8]) -> Accepted {
        match stream {
            OutputStream::Stdout => self.stdout.add(data),
            OutputStream::Stderr => self.stderr.add(data),
        }
    }

    pub(crate) fn chunks(&self) -> &mpsc::Sender<Chunk> {
        &self.chunks
    }

    /// The caller's next wish; [`Control::Dropped`] when the caller is gone. Safe to cancel.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use sandbox_core::{Control, Execution, OutputLimits};
    /// let (execution, mut sink) = Execution::channel(OutputLimits::default(), None);
    /// drop(execution);
    /// assert!(matches!(sink.control().await, Control::Dropped));
    /// # });
    /// ```
    pub async fn control(&mut self) -> Control {
        match self.commands.recv().await {
            Some(control) => control,
            // The caller is gone and its last wish has been handed out before.
            None => std::future::pending().await,
        }
    }

    /// Ends the chunks, then publishes the result with the output that was kept.
    ///
    /// ```
    /// use sandbox_core::{EndedBy, ExecResult, Execution, OutputLimits};
    /// let (execution, sink) = Execution::channel(OutputLimits::default(), None);
    /// sink.finish(ExecResult::new(None, EndedBy::Destroyed));
    /// # drop(execution);
    /// ```
    pub fn finish(self, mut result: ExecResult) {
        (result.stdout, result.stdout_truncated) = self.stdout.take();
        (result.stderr, result.stderr_truncated) = self.stderr.take();
        drop(self.chunks);
        // A caller that detached or dropped the execution does not want it.
        let _ = self.result.send(result);
    }
}

impl fmt::Debug for ExecutionSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecutionSink")
    }
}

/// What is kept of one output stream.
struct Kept {
    data: BytesMut,
    limit: u64,
    truncated: bool,
}

impl Kept {
    fn new(limit: u64) -> Self {
        Kept {
            data: BytesMut::new(),
            limit,
            truncated: false,
        }
    }

    fn add(&mut self, data: &[u8]) -> Accepted {
        let room = self
            .limit
            .saturating_sub(self.data.len() as u64)
            .min(data.len() as u64) as usize;
        self.data.extend_from_slice(&data[..room]);
        self.truncated |= room < data.len();
        if self.truncated {
            Accepted::Overflow
        } else {
            Accepted::Fits
        }
    }

    fn take(self) -> (Bytes, bool) {
        (self.data.freeze(), self.truncated)
    }
}

/// Writes to the standard input of a running command. Shutting it down or dropping it is end of file and ends nothing else.
/// Writing after the process went away is an error of kind `BrokenPipe` for the writer only.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// let (near, mut far) = tokio::io::duplex(64);
/// let mut stdin = sandbox_core::ExecStdin::new(near);
/// stdin.write_all(b"hi").await.unwrap();
/// drop(stdin);
/// let mut read = String::new();
/// far.read_to_string(&mut read).await.unwrap();
/// assert_eq!(read, "hi");
/// # });
/// ```
pub struct ExecStdin(Option<Pin<Box<dyn AsyncWrite + Send>>>);

impl ExecStdin {
    /// Wraps a backend's writer.
    ///
    /// ```
    /// let _ = sandbox_core::ExecStdin::new(tokio::io::sink());
    /// ```
    pub fn new(writer: impl AsyncWrite + Send + 'static) -> Self {
        ExecStdin(Some(Box::pin(writer)))
    }
}

impl fmt::Debug for ExecStdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecStdin")
    }
}

impl AsyncWrite for ExecStdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match &mut self.0 {
            Some(writer) => writer.as_mut().poll_write(context, buffer),
            None => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        match &mut self.0 {
            Some(writer) => writer.as_mut().poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        if let Some(writer) = &mut self.0 {
            let ended = ready!(writer.as_mut().poll_shutdown(context));
            // A pipe ends when its last writer is closed.
            self.0 = None;
            return Poll::Ready(ended);
        }
        Poll::Ready(Ok(()))
    }
}

//! Timeouts, grace, overflow and drain, the same for every backend whose commands are processes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, Sleep};

use crate::cancel::CancelToken;
use crate::cmd::{Cmd, Overflow, PtySize, Stdin};
use crate::error::{Error, Result};
use crate::execution::{
    Accepted, Chunk, Control, EndedBy, ExecResult, ExecStdin, Execution, ExecutionSink, ExitStatus,
    OutputStream, Usage,
};

/// After the exit, output that is still being written by background processes is awaited this long without data …
const DRAIN_IDLE: Duration = Duration::from_millis(100);
/// … and this long in all (rule EXEC-12).
const DRAIN_MOST: Duration = Duration::from_secs(2);
/// Output that was written before the exit is awaited this long without data, however slow the transport.
const GUARANTEE_MOST: Duration = Duration::from_secs(10);
/// The most that is taken from the streams at the very end, in bytes.
const FINAL_SWEEP: usize = 4 << 20;
/// How long after the grace a result may take (rule EXEC-4 allows 2 s; the rest is for the caller's side).
const END_SLACK: Duration = Duration::from_millis(1500);

/// A started process with its whole tree, as a backend sees it. [`supervise`] drives it from one task.
///
/// ```
/// use std::task::{Context, Poll};
/// use std::time::Duration;
/// use sandbox_core::{Chunk, Cmd, Exit, ExitStatus, Process, PtySize, Result, supervise};
///
/// struct Done;
/// impl Process for Done {
///     fn poll_output(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk>>> { Poll::Ready(None) }
///     fn poll_exit(&mut self, _: &mut Context<'_>) -> Poll<Result<Exit>> {
///         Poll::Ready(Ok(Exit::new(ExitStatus::Code(3))))
///     }
///     fn end(&mut self, _: Duration) {}
///     fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> { Poll::Ready(()) }
///     fn resize(&mut self, _: PtySize) {}
///     fn release(self: Box<Self>) {}
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut execution = supervise(Box::new(Done), &Cmd::argv(["x"]), None);
/// assert_eq!(execution.wait().await.code(), Some(3));
/// # });
/// ```
pub trait Process: Send + 'static {
    /// The next output, at most [`MAX_CHUNK`](crate::MAX_CHUNK) bytes; `None`, for ever, when all output streams have ended.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Chunk>>>;

    /// The end of the direct process; asked until it is ready, once.
    ///
    /// # Errors
    /// `Unavailable` if the runtime died, so that the end is unknown.
    fn poll_exit(&mut self, context: &mut Context<'_>) -> Poll<Result<Exit>>;

    /// Ends the whole tree: TERM and CONT, and after `grace` KILL; at once KILL if `grace` is zero. May be called again with a
    /// shorter grace.
    fn end(&mut self, grace: Duration);

    /// Ready when, after [`end`](Process::end), no process of the tree lives; asked only after it, until it is ready.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Resizes the pseudo-terminal, if there is one.
    fn resize(&mut self, size: PtySize);

    /// The result is published: what background processes still write is discarded, and none of them may get a SIGPIPE.
    fn release(self: Box<Self>);
}

/// The end of a direct process.
///
/// ```
/// use sandbox_core::{Exit, ExitStatus};
/// assert!(!Exit::new(ExitStatus::Code(0)).background);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Exit {
    /// How.
    pub status: ExitStatus,
    /// Whether other processes of its tree live on.
    pub background: bool,
    /// What it used.
    pub usage: Usage,
    /// Whether the memory limit ended it.
    pub out_of_memory: bool,
    /// Whether the sandbox was destroyed under it.
    pub destroyed: bool,
    /// Bytes of stdout that were written before the end and that `poll_output` has still to give.
    pub unread_stdout: u64,
    /// The same of stderr.
    pub unread_stderr: u64,
}

impl Exit {
    /// An ordinary end.
    ///
    /// ```
    /// use sandbox_core::{Exit, ExitStatus};
    /// assert_eq!(Exit::new(ExitStatus::Signal(9)).status.as_code(), 137);
    /// ```
    pub fn new(status: ExitStatus) -> Self {
        Exit {
            status,
            background: false,
            usage: Usage::default(),
            out_of_memory: false,
            destroyed: false,
            unread_stdout: 0,
            unread_stderr: 0,
        }
    }
}

/// Drives a started process on its own task (of the current tokio runtime) and gives the caller's half: delivers output with
/// back-pressure, applies `cmd`'s timeout, grace, output limits and token, feeds its input, drains after the exit.
///
/// `stdin` is the writer of the process's input; needed unless `cmd.stdin` is `Null`.
///
/// See [`Process`] for an example.
///
/// ```
/// # use sandbox_core::{Cmd, Execution, Process, supervise};
/// fn start(process: Box<dyn Process>, cmd: &Cmd) -> Execution {
///     supervise(process, cmd, None)
/// }
/// ```
pub fn supervise(process: Box<dyn Process>, cmd: &Cmd, stdin: Option<ExecStdin>) -> Execution {
    let (piped, feeder) = match (&cmd.stdin, stdin) {
        (Stdin::Bytes(bytes), Some(mut writer)) => {
            let bytes = bytes.clone();
            let feeder = tokio::spawn(async move {
                // A process that does not read its input to the end is no error.
                if writer.write_all(&bytes).await.is_ok() {
                    let _ = writer.shutdown().await;
                }
            });
            (None, Some(feeder))
        }
        (Stdin::Piped, Some(writer)) => (Some(writer), None),
        _ => (None, None),
    };
    let (execution, sink) = Execution::channel(cmd.limits, piped);
    let supervisor = Supervisor {
        process,
        sink,
        cancel: cmd.cancel.clone(),
        overflow: cmd.limits.overflow,
        grace: cmd.effective_grace(),
        started: Instant::now(),
        pending: None,
        eof: false,
        exit: None,
        error: None,
        ending: None,
        detached: false,
    };
    let timeout = cmd.timeout;
    tokio::spawn(async move {
        supervisor.run(timeout).await;
        if let Some(feeder) = feeder {
            feeder.abort();
        }
    });
    execution
}

struct Supervisor {
    process: Box<dyn Process>,
    sink: ExecutionSink,
    cancel: Option<CancelToken>,
    overflow: Overflow,
    grace: Duration,
    started: Instant,
    /// Output that was taken from the process and waits for room in the reader's channel.
    pending: Option<Chunk>,
    eof: bool,
    exit: Option<(Exit, Instant)>,
    error: Option<Error>,
    ending: Option<Ending>,
    detached: bool,
}

/// The tree is being ended.
struct Ending {
    /// Why; absent if the direct process had exited by itself before, so that only its background processes are ended.
    by: Option<EndedBy>,
    /// When KILL comes, so that a later call can only make it come earlier.
    kill_at: Instant,
    /// When the result is published whatever happens.
    deadline: Instant,
    gone: bool,
}

enum Event {
    Output(Option<Result<Chunk>>),
    Exit(Result<Exit>),
    Gone,
}

enum Wake {
    Event(Event),
    Delivered,
    Control(Control),
    Cancelled,
    TimedOut,
    Deadline,
    Quiet,
}

impl Supervisor {
    async fn run(mut self, timeout: Option<Duration>) {
        let mut timer = std::pin::pin!(tokio::time::sleep(timeout.unwrap_or(Duration::ZERO)));
        let mut quiet = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut cancel_pending = self.cancel.is_some();
        let mut timeout_pending = timeout.is_some();
        loop {
            if self.complete() {
                return self.finish();
            }
            let draining = self.exit.is_some() && self.pending.is_none() && !self.eof;
            if draining {
                let most = self
                    .exit
                    .as_ref()
                    .map_or(self.started, |(_, at)| *at + DRAIN_MOST);
                // Asked before the output is: a background process that never stops writing must not win for ever.
                if Instant::now() >= most && self.guaranteed_output_is_read() {
                    return self.finish();
                }
                quiet.as_mut().reset(Instant::now() + DRAIN_IDLE);
            }
            match self
                .wake(
                    &mut timer,
                    timeout_pending,
                    cancel_pending,
                    &mut quiet,
                    draining,
                )
                .await
            {
                Wake::Event(Event::Output(None)) => self.eof = true,
                Wake::Event(Event::Output(Some(Ok(chunk)))) => self.accept(chunk),
                Wake::Event(Event::Output(Some(Err(error)))) => {
                    self.eof = true;
                    self.error.get_or_insert(error);
                }
                Wake::Event(Event::Exit(Ok(exit))) => {
                    timeout_pending = false;
                    self.exit = Some((exit, Instant::now()));
                    if exit.destroyed {
                        self.bound_after_destroy();
                    }
                }
                Wake::Event(Event::Exit(Err(error))) => {
                    self.error.get_or_insert(error);
                    return self.finish();
                }
                Wake::Event(Event::Gone) => {
                    if let Some(ending) = &mut self.ending {
                        ending.gone = true;
                    }
                }
                Wake::Delivered => self.pending = None,
                Wake::Control(Control::Cancel(_)) => self.end(EndedBy::Cancelled, self.grace),
                Wake::Control(Control::Dropped) if !self.detached => {
                    self.end(EndedBy::Cancelled, self.grace);
                }
                Wake::Control(Control::Kill) => self.end(EndedBy::Cancelled, Duration::ZERO),
                Wake::Control(Control::Resize(size)) => self.process.resize(size),
                Wake::Control(Control::Detach) => self.detached = true,
                Wake::Control(Control::Dropped) => {}
                Wake::Cancelled => {
                    cancel_pending = false;
                    self.end(EndedBy::Cancelled, self.grace);
                }
                Wake::TimedOut => {
                    timeout_pending = false;
                    self.end(EndedBy::TimedOut, self.grace);
                }
                Wake::Quiet if self.guaranteed_output_is_read() || self.guarantee_is_void() => {
                    return self.finish();
                }
                Wake::Quiet => {}
                Wake::Deadline => {
                    if !self.ending.as_ref().is_some_and(|ending| ending.gone)
                        || self.exit.is_none()
                    {
                        self.error.get_or_insert(Error::Unavailable {
                            target: "the command's process tree".into(),
                            never_started: false,
                            detail: "it did not end within the grace and 2 seconds".into(),
                        });
                    }
                    return self.finish();
                }
            }
        }
    }

    /// Waits for whatever comes next. Everything in it is safe to cancel.
    async fn wake(
        &mut self,
        timer: &mut Pin<&mut Sleep>,
        timeout_pending: bool,
        cancel_pending: bool,
        quiet: &mut Pin<&mut Sleep>,
        draining: bool,
    ) -> Wake {
        let chunks = self.sink.chunks().clone();
        let pending = self.pending.clone();
        let deadline = self.ending.as_ref().map(|ending| ending.deadline);
        let cancel = self.cancel.clone();
        let process = &mut self.process;
        let (want_output, want_exit) = (pending.is_none() && !self.eof, self.exit.is_none());
        let want_gone = self.ending.as_ref().is_some_and(|ending| !ending.gone);
        let event = std::future::poll_fn(|context| {
            if want_exit && let Poll::Ready(exit) = process.poll_exit(context) {
                return Poll::Ready(Event::Exit(exit));
            }
            if want_output && let Poll::Ready(output) = process.poll_output(context) {
                return Poll::Ready(Event::Output(output));
            }
            if want_gone && process.poll_gone(context).is_ready() {
                return Poll::Ready(Event::Gone);
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            control = self.sink.control() => Wake::Control(control),
            () = async { if let Some(token) = &cancel { token.cancelled().await } },
                if cancel_pending => Wake::Cancelled,
            () = timer.as_mut(), if timeout_pending => Wake::TimedOut,
            event = event => Wake::Event(event),
            () = async {
                // A reader that went away makes the chunk nobody's: it counts as delivered.
                if let Some(chunk) = pending.clone() { let _ = chunks.send(chunk).await; }
            }, if pending.is_some() => Wake::Delivered,
            () = tokio::time::sleep_until(deadline.unwrap_or(self.started)),
                if deadline.is_some() => Wake::Deadline,
            () = quiet.as_mut(), if draining => Wake::Quiet,
        }
    }

    fn accept(&mut self, chunk: Chunk) {
        if let Some((exit, _)) = &mut self.exit {
            let unread = match chunk.stream {
                OutputStream::Stdout => &mut exit.unread_stdout,
                OutputStream::Stderr => &mut exit.unread_stderr,
            };
            *unread = unread.saturating_sub(chunk.data.len() as u64);
        }
        let accepted = self.sink.keep(chunk.stream, &chunk.data);
        if accepted == Accepted::Overflow
            && self.overflow == Overflow::Kill
            && self.ending.is_none()
        {
            self.end(
                match chunk.stream {
                    OutputStream::Stdout => EndedBy::OverflowStdout,
                    OutputStream::Stderr => EndedBy::OverflowStderr,
                },
                self.grace,
            );
        }
        self.pending = Some(chunk);
    }

    /// Ends the tree. The first reason stays; a later call can only shorten the grace.
    fn end(&mut self, by: EndedBy, grace: Duration) {
        let (kill_at, deadline) = (after(grace), after(grace.saturating_add(END_SLACK)));
        match &mut self.ending {
            Some(ending) if ending.kill_at <= kill_at => return,
            Some(ending) => (ending.kill_at, ending.deadline) = (kill_at, deadline),
            none => {
                let overflowed = matches!(by, EndedBy::OverflowStdout | EndedBy::OverflowStderr);
                // Output that overflows is a fact about the command even if it has exited meanwhile.
                let by = (self.exit.is_none() || overflowed).then_some(by);
                *none = Some(Ending {
                    by,
                    kill_at,
                    deadline,
                    gone: false,
                });
            }
        }
        self.process.end(grace);
    }

    /// Nothing lives in a sandbox that was destroyed, and the result must not wait for a reader who does not read.
    fn bound_after_destroy(&mut self) {
        let (kill_at, deadline) = (after(Duration::ZERO), after(END_SLACK));
        let by = self.ending.as_ref().and_then(|ending| ending.by);
        self.ending = Some(Ending {
            by,
            kill_at,
            deadline,
            gone: true,
        });
    }

    /// Output that was written before the exit and does not come was taken by somebody else (a process of the command that
    /// reads its own output back): it must not hold the result for ever.
    fn guarantee_is_void(&self) -> bool {
        self.exit
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() >= GUARANTEE_MOST)
            && self.ending.as_ref().is_none_or(|ending| ending.gone)
    }

    fn guaranteed_output_is_read(&self) -> bool {
        self.exit
            .as_ref()
            .is_some_and(|(exit, _)| exit.unread_stdout == 0 && exit.unread_stderr == 0)
            && self.ending.as_ref().is_none_or(|ending| ending.gone)
    }

    fn complete(&self) -> bool {
        self.exit.is_some()
            && self.eof
            && self.pending.is_none()
            && self.ending.as_ref().is_none_or(|ending| ending.gone)
    }

    fn finish(mut self) {
        // What lies ready in the streams is kept for the result even if nobody read the chunks before it. Bounded: somebody may
        // still be writing.
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut kept = 0;
        while !self.eof
            && kept < FINAL_SWEEP
            && let Poll::Ready(Some(Ok(chunk))) = self.process.poll_output(&mut context)
        {
            kept += chunk.data.len();
            let _ = self.sink.keep(chunk.stream, &chunk.data);
        }
        let by = self.ending.as_ref().and_then(|ending| ending.by);
        let mut result = ExecResult::new(None, by.unwrap_or(EndedBy::Exited));
        result.duration = self.started.elapsed();
        if let Some((exit, at)) = &self.exit {
            result.status = Some(exit.status);
            result.usage = exit.usage;
            result.background = exit.background && self.ending.is_none();
            result.ended_by = by.unwrap_or(if exit.destroyed {
                EndedBy::Destroyed
            } else if exit.out_of_memory {
                EndedBy::OutOfMemory
            } else {
                EndedBy::Exited
            });
            if self.ending.is_none() {
                result.duration = *at - self.started;
            }
        }
        result.error = self.error.map(Arc::new);
        self.process.release();
        self.sink.finish(result);
    }
}

/// An instant that may lie beyond what the clock can say; then far enough.
fn after(duration: Duration) -> Instant {
    let far = Duration::from_secs(86_400 * 365);
    let now = Instant::now();
    now.checked_add(duration).unwrap_or(now + far)
}

impl std::fmt::Debug for dyn Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Process")
    }
}

//! A process that runs in a session.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::exit_code;
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::execution::{
    Chunk, Controller, EndedBy, ExecResult, ExecStdin, Execution, OutputStream,
};
use crate::file::ByteStream;

/// Chunks of one stream that wait for its reader, beside those that the execution holds: 16 of up to 64 KiB.
const CHUNKS_IN_FLIGHT: usize = 16;

/// A command that was [`spawn`](super::Session::spawn)ed and may still run.
///
/// Its two output streams are independent: dropping one discards what comes for it and neither ends the process nor stops the
/// other. A stream that is kept but not read holds the process back once about 1 MiB waits, as a full pipe does; `kill` and the
/// token work all the same. Dropping the process itself cancels it, unless it was [`detach`](SessionProcess::detach)ed.
///
/// ```
/// # use sandbox_core::{Cmd, Result, Session};
/// use tokio::io::AsyncWriteExt;
/// async fn sort(session: &Session) -> Result<bytes::Bytes> {
///     let mut process = session.spawn(Cmd::shell("sort").stdin_piped()).await?;
///     let mut stdin = process.take_stdin().unwrap();
///     stdin.write_all(b"b\na\n").await.unwrap();
///     drop(stdin); // end of file
///     let sorted = process.take_stdout().unwrap().collect(1024).await?;
///     assert_eq!(process.wait().await?.exit_code, 0);
///     Ok(sorted)
/// }
/// ```
pub struct SessionProcess {
    pid: Option<u32>,
    stdin: Option<ExecStdin>,
    stdout: Option<ByteStream>,
    stderr: Option<ByteStream>,
    control: Controller,
    cancel: Option<CancelToken>,
    /// It was killed before the token was cancelled, so that `wait` answers with the exit code.
    killed: AtomicBool,
    detached: bool,
    result: watch::Receiver<Option<ExecResult>>,
}

/// How a process ended.
///
/// ```
/// # use sandbox_core::{Result, SessionProcess};
/// async fn code(process: &SessionProcess) -> Result<i32> {
///     Ok(process.wait().await?.exit_code)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessExit {
    /// The exit code as a shell reports it: 128 + n for signal n.
    pub exit_code: i32,
    /// Why it ended.
    pub ended_by: EndedBy,
}

impl SessionProcess {
    pub(super) fn new(mut execution: Execution, cancel: Option<CancelToken>) -> Self {
        let (stdout_sender, stdout) = output();
        let (stderr_sender, stderr) = output();
        let (publish, result) = watch::channel(None);
        let process = SessionProcess {
            pid: execution.pid(),
            stdin: execution.take_stdin(),
            stdout: Some(stdout),
            stderr: Some(stderr),
            control: execution.controller(),
            cancel,
            killed: AtomicBool::new(false),
            detached: false,
            result,
        };
        let pump = Pump {
            execution,
            stdout: stdout_sender,
            stderr: stderr_sender,
            publish,
        };
        tokio::spawn(pump.run());
        process
    }

    /// The process id inside the sandbox, where the backend has one.
    ///
    /// ```
    /// # use sandbox_core::SessionProcess;
    /// fn show(process: &SessionProcess) -> String {
    ///     process.pid().map_or("?".into(), |pid| pid.to_string())
    /// }
    /// ```
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The stream of standard output; once.
    ///
    /// ```
    /// # use sandbox_core::{ByteStream, SessionProcess};
    /// fn output(process: &mut SessionProcess) -> Option<ByteStream> {
    ///     process.take_stdout()
    /// }
    /// ```
    pub fn take_stdout(&mut self) -> Option<ByteStream> {
        self.stdout.take()
    }

    /// The stream of standard error; once.
    ///
    /// ```
    /// # use sandbox_core::{ByteStream, SessionProcess};
    /// fn errors(process: &mut SessionProcess) -> Option<ByteStream> {
    ///     process.take_stderr()
    /// }
    /// ```
    pub fn take_stderr(&mut self) -> Option<ByteStream> {
        self.stderr.take()
    }

    /// The writer of a command with [`Cmd::stdin_piped`](crate::Cmd::stdin_piped); once. Dropping it is end of file.
    ///
    /// ```
    /// # use sandbox_core::{ExecStdin, SessionProcess};
    /// fn input(process: &mut SessionProcess) -> Option<ExecStdin> {
    ///     process.take_stdin()
    /// }
    /// ```
    pub fn take_stdin(&mut self) -> Option<ExecStdin> {
        self.stdin.take()
    }

    /// The end of the process; asked again it answers the same. Safe to cancel.
    ///
    /// # Errors
    /// `Cancelled` with the caller's reason if the command's token ended it; a failure of the transport. After
    /// [`kill`](SessionProcess::kill) there is no error, but a non-zero code.
    ///
    /// ```
    /// # use sandbox_core::{Result, SessionProcess};
    /// async fn succeeded(process: &SessionProcess) -> Result<bool> {
    ///     Ok(process.wait().await?.exit_code == 0)
    /// }
    /// ```
    pub async fn wait(&self) -> Result<ProcessExit> {
        let mut result = self.result.clone();
        let result = match result.wait_for(Option::is_some).await {
            Ok(result) => result.clone(),
            Err(_) => None,
        };
        let Some(result) = result else {
            return Err(Error::Unavailable {
                target: "the process".into(),
                never_started: false,
                detail: "the runtime that watched it has ended".into(),
            });
        };
        let killed = self.killed.load(Ordering::Acquire);
        let cancel = self.cancel.as_ref().filter(|_| !killed);
        Ok(ProcessExit {
            exit_code: exit_code(&result, cancel)?,
            ended_by: result.ended_by,
        })
    }

    /// Ends the whole tree with KILL. Returns at once; idempotent; harmless after the end.
    ///
    /// ```
    /// # use sandbox_core::SessionProcess;
    /// fn stop(process: &SessionProcess) {
    ///     process.kill();
    ///     process.kill();
    /// }
    /// ```
    pub fn kill(&self) {
        if !self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            self.killed.store(true, Ordering::Release);
        }
        self.control.kill();
    }

    /// Lets the process run on without its owner. Streams that were taken go on.
    ///
    /// ```
    /// # use sandbox_core::SessionProcess;
    /// fn leave(process: SessionProcess) {
    ///     process.detach();
    /// }
    /// ```
    pub fn detach(mut self) {
        self.detached = true;
        self.control.detach();
    }
}

impl fmt::Debug for SessionProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionProcess")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

impl Drop for SessionProcess {
    fn drop(&mut self) {
        if !self.detached && self.result.borrow().is_none() {
            self.control.cancel();
        }
    }
}

type OutputSender = mpsc::Sender<Result<Bytes>>;

fn output() -> (OutputSender, ByteStream) {
    let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?, receiver))
    });
    (sender, ByteStream::new(stream))
}

/// Sorts the chunks of an execution into the two streams, and publishes the result.
struct Pump {
    execution: Execution,
    stdout: OutputSender,
    stderr: OutputSender,
    publish: watch::Sender<Option<ExecResult>>,
}

impl Pump {
    async fn run(mut self) {
        let mut pending: Option<Chunk> = None;
        loop {
            let delivered = match &pending {
                // The result must not wait for a reader who does not read: after a kill it comes while chunks are left.
                Some(chunk) => {
                    let sender = match chunk.stream {
                        OutputStream::Stdout => &self.stdout,
                        OutputStream::Stderr => &self.stderr,
                    };
                    tokio::select! {
                        // A reader that went away makes the chunk nobody's.
                        _ = sender.send(Ok(chunk.data.clone())) => true,
                        result = self.execution.early_result() => {
                            self.publish.send_replace(Some(result));
                            false
                        }
                    }
                }
                None => true,
            };
            if !delivered {
                continue;
            }
            pending = self.execution.next_chunk().await;
            if pending.is_none() {
                break;
            }
        }
        let result = self.execution.wait().await;
        if let Some(error) = &result.error {
            for sender in [&self.stdout, &self.stderr] {
                // A stream whose process was lost must not look complete. A full stream waits for its reader, the result does not.
                let (sender, error) = (sender.clone(), error.duplicate());
                tokio::spawn(async move { sender.send(Err(error)).await });
            }
        }
        self.publish.send_replace(Some(result));
    }
}

//! `sandbox run`: one command in a fresh sandbox.

use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandbox_core::policy::{ALLOW_UNSANDBOXED, FallbackPolicy};
use sandbox_core::{
    Backend, Chunk, Cmd, ContainerName, ContainerSpec, EndedBy, Error, ErrorKind, ExecResult,
    Execution, Handle, Limits, NetworkMode, OutputLimits, Overflow, Result, RootFs, Source, Stdin,
};
use sandbox_native::Native;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::args::Run;
use crate::failure::Failure;
use crate::signals::{Ended, Received, Signals};
use crate::{stdio, terminal};

/// The code of a command whose timeout passed, as `timeout(1)` has it.
const TIMED_OUT: u8 = 124;
/// The code of a command whose reader went away: 128 + SIGPIPE.
const READER_GONE: u8 = 141;
/// Once a command is over or was to end, output that nobody takes is held this long.
const STUCK_OUTPUT: Duration = Duration::from_secs(2);

/// Runs the command and gives the exit code.
pub(crate) async fn run(options: &Run) -> Result<u8, Failure> {
    let (spec, cmd) = (spec(options)?, command(options)?);
    let mut signals = Signals::install().map_err(|error| {
        Failure::new(
            "signals cannot be handled",
            error.to_string(),
            "try again; the machine may be short of descriptors",
        )
    })?;
    let made = tokio::select! {
        made = make(&spec, options) => made?,
        // Dropping a create leaves nothing behind.
        ended = signals.end() => return Ok(ended.code),
    };
    let (backend, handle) = made;
    let outcome = match backend.exec(&handle, cmd.clone()).await {
        Ok(execution) => attend(execution, &cmd, &mut signals).await,
        Err(error) => Err(error.into()),
    };
    terminal::restore();
    if let Err(error) = backend.destroy(&handle).await {
        eprintln!("sandbox: the sandbox could not be removed: {error}");
    }
    outcome
}

fn spec(options: &Run) -> Result<ContainerSpec, Failure> {
    // Unique among processes, whose ids are used again, and among pid namespaces, which all have the same ones.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!("run-{}-{:x}", std::process::id(), now.as_nanos());
    let root = options.root()?.map_or(RootFs::System, RootFs::Dir);
    let mut spec = ContainerSpec::new(ContainerName::new(name)?, Source::Workdir { root });
    spec.user = options.user.clone();
    spec.network = options.network().unwrap_or_default();
    spec.binds = options.binds()?;
    spec.limits = Limits {
        memory: options.memory,
        cpus: options.cpus,
        pids: options.pids,
        disk: options.disk,
    };
    spec.check()?;
    Ok(spec)
}

fn command(options: &Run) -> Result<Cmd, Failure> {
    let mut cmd = match &options.script {
        Some(script) => Cmd::shell(script.as_bytes()),
        None => Cmd::argv(options.argv.iter().map(|argument| argument.as_bytes())),
    };
    cmd.env = options.env(|name| std::env::var_os(name))?;
    cmd.cwd = options.cwd()?;
    cmd.timeout = options.timeout;
    // Output is passed on as it comes; nothing of it is kept.
    cmd.limits = OutputLimits::new(0, 0, Overflow::Truncate);
    cmd.stdin = if stdio::input_is_null() {
        Stdin::Null
    } else {
        Stdin::Piped
    };
    cmd.pty = options.tty.then(terminal::size);
    cmd.check()?;
    Ok(cmd)
}

type Made = (Arc<dyn Backend>, Handle);

/// The backend and a sandbox of it. Where none can be made, the owner's policy decides (rule POL-4).
async fn make(spec: &ContainerSpec, options: &Run) -> Result<Made, Failure> {
    let failure = match sandboxed(spec).await {
        Ok(made) => return Ok(made),
        Err(error) if is_outage(&error) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    let permit = FallbackPolicy::from_vars(std::env::vars_os()).decide(&failure)?;
    eprintln!(
        "sandbox: NOT SANDBOXED: the command runs on the host, with your rights, files and network\n  why:  {failure}\n  help: unset {ALLOW_UNSANDBOXED} to have this refused"
    );
    let mut spec = spec.clone();
    if options.network().is_none() {
        // Nothing was asked of the network, and there is no other than the host's. What was asked for is refused.
        spec.network = NetworkMode::Host;
    }
    let backend: Arc<dyn Backend> = Arc::new(Native::builder().unsandboxed(permit).build().await?);
    let handle = backend.create(spec).await?;
    Ok((backend, handle))
}

async fn sandboxed(spec: &ContainerSpec) -> Result<Made> {
    let backend: Arc<dyn Backend> = Arc::new(Native::builder().build().await?);
    let handle = backend.create(spec.clone()).await?;
    Ok((backend, handle))
}

/// Whether there is no sandbox at all, as opposed to one that was asked for wrongly.
fn is_outage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Isolation | ErrorKind::Unavailable | ErrorKind::SandboxRequired
    )
}

/// Passes input, output and signals between the caller and the command, to its end.
async fn attend(mut execution: Execution, cmd: &Cmd, signals: &mut Signals) -> Result<u8, Failure> {
    if cmd.pty.is_some() {
        terminal::make_raw().map_err(|error| {
            Failure::new(
                "the terminal cannot be set up",
                error.to_string(),
                "leave out --tty",
            )
        })?;
    }
    if let Some(stdin) = execution.take_stdin() {
        stdio::pass_input(stdin);
    }
    let stdio::Output { chunks, mut done } = stdio::output();
    let mut chunks = Some(chunks);
    let mut queue: VecDeque<Chunk> = VecDeque::new();
    let mut result: Option<ExecResult> = None;
    let mut ended: Option<Ended> = None;
    // By then a command with a timeout is over, one way or the other, unless its end waits for output that nobody takes.
    let mut late = cmd
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout + patience(cmd)));
    let mut taken_whole = false;
    let written = loop {
        if result.is_some() && queue.is_empty() {
            // The writer has been handed everything and may end.
            chunks = None;
        }
        tokio::select! {
            biased;
            received = signals.next() => match received {
                Received::Resize if cmd.pty.is_some() => execution.resize(terminal::size()),
                Received::Resize => {}
                Received::End(_) if ended.is_some() => {
                    execution.kill();
                    late = Some(Instant::now());
                }
                Received::End(request) => {
                    ended = Some(request);
                    execution.cancel();
                    late = Some(Instant::now() + patience(cmd));
                }
            },
            written = &mut done => break written.unwrap_or(Ok(())),
            permit = reserve(&chunks), if !queue.is_empty() => {
                if let (Some(permit), Some(chunk)) = (permit, queue.pop_front()) {
                    permit.send(chunk);
                }
            }
            chunk = execution.next_chunk(), if result.is_none() && (taken_whole || queue.is_empty()) => {
                match chunk {
                    Some(chunk) => queue.push_back(chunk),
                    None => {
                        let over = execution.wait().await;
                        late = (ended.is_some() || over.ended_by == EndedBy::TimedOut)
                            .then(|| Instant::now() + STUCK_OUTPUT);
                        result = Some(over);
                    }
                }
            }
            () = tokio::time::sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                if ended.is_some() || result.is_some() {
                    // Nobody takes the output, and the command was to end: the rest of it is given up.
                    break Ok(());
                }
                // The command is over, so what is left of its output is bounded: take it, and see how it ended.
                taken_whole = true;
                late = None;
            }
        }
    };
    if written.is_err() {
        execution.kill();
    }
    let result = execution.wait().await;
    match (ended, written) {
        (Some(request), _) => Ok(request.code),
        (None, Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(READER_GONE),
        (None, Err(error)) => Err(Failure::new(
            "the command was ended: its output could not be written",
            error.to_string(),
            "see where standard output goes",
        )),
        (None, Ok(())) => code(&result, cmd),
    }
}

/// How long an ended command's output is still awaited.
fn patience(cmd: &Cmd) -> Duration {
    cmd.effective_grace() + STUCK_OUTPUT
}

/// Room in the writer, or `None` if it has ended.
async fn reserve(chunks: &Option<mpsc::Sender<Chunk>>) -> Option<mpsc::Permit<'_, Chunk>> {
    match chunks {
        Some(chunks) => chunks.reserve().await.ok(),
        None => None,
    }
}

fn code(result: &ExecResult, cmd: &Cmd) -> Result<u8, Failure> {
    if let Some(error) = &result.error {
        return Err(Failure::new(
            "contact with the command was lost",
            error.to_string(),
            "what the command did is unknown: look before trying again",
        ));
    }
    match result.ended_by {
        EndedBy::TimedOut => {
            let timeout = cmd.timeout.unwrap_or_default();
            eprintln!("sandbox: the command was ended: its timeout of {timeout:?} passed");
            return Ok(TIMED_OUT);
        }
        EndedBy::OutOfMemory => {
            eprintln!("sandbox: the command was ended: it reached its memory limit");
        }
        _ => {}
    }
    let code = result.code().and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| {
        Failure::new(
            "the command's end is unknown",
            "the sandbox ended with it",
            "look at what it did before trying again",
        )
    })
}

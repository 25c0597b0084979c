//! One command, bounded in every direction, in a sandbox of its own.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::Backend;
use crate::cancel::CancelToken;
use crate::cmd::{Cmd, OutputLimits, Overflow};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::execution::{EndedBy, ExecResult, ExitStatus};
use crate::handle::Handle;
use crate::name::ContainerName;
use crate::path::SandboxPath;
use crate::spec::ContainerSpec;
use crate::tree::{TreeLimits, encode};

/// What [`run_sandboxed`] shall run, and within which bounds.
///
/// ```
/// use std::time::Duration;
/// use sandbox_core::RunOptions;
/// let options = RunOptions::new(["/bin/sort", "-n"], Duration::from_secs(10))
///     .stdin("2\n1\n")
///     .env("LC_ALL", "C");
/// assert!(options.check().is_ok());
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// The program and its arguments; no shell. A name without a slash is looked up in the `PATH` of the sandbox.
    pub argv: Vec<Vec<u8>>,
    /// Where it runs: an absolute directory inside the sandbox, which must exist there. If absent, a fresh directory is made for
    /// it, which is gone with the sandbox.
    pub cwd: Option<SandboxPath>,
    /// The variables that it gets, over the sandbox's base environment (`PATH`, `HOME` and the like). Nothing of the caller's own
    /// environment is passed on.
    pub env: Env,
    /// When it is ended for taking too long.
    pub timeout: Duration,
    /// How long it may clean up between TERM and KILL, less than the timeout; half the timeout, at most 2 seconds, if absent.
    pub grace: Option<Duration>,
    /// What it reads; nothing if absent.
    pub stdin: Option<Bytes>,
    /// Bytes of standard output; one more ends it. 8 MiB.
    pub max_stdout: u64,
    /// Bytes of standard error; one more ends it. 1 MiB.
    pub max_stderr: u64,
    /// A token that cancels it.
    pub cancel: Option<CancelToken>,
    /// The sandbox that is made for it; an empty workdir on the backend's own base, under a name of its own, if absent.
    pub spec: Option<ContainerSpec>,
}

impl RunOptions {
    /// A program with its arguments, and its time.
    ///
    /// ```
    /// use std::time::Duration;
    /// let _ = sandbox_core::RunOptions::new(["true"], Duration::from_secs(1));
    /// ```
    pub fn new<A: Into<Vec<u8>>>(argv: impl IntoIterator<Item = A>, timeout: Duration) -> Self {
        RunOptions {
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: Env::new(),
            timeout,
            grace: None,
            stdin: None,
            max_stdout: OutputLimits::default().stdout,
            max_stderr: OutputLimits::default().stderr,
            cancel: None,
            spec: None,
        }
    }

    /// Runs it in a directory that the sandbox has.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sandbox_core::{RunOptions, SandboxPath};
    /// let _ = RunOptions::new(["ls"], Duration::from_secs(1)).cwd(SandboxPath::new("/usr")?);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    #[must_use]
    pub fn cwd(mut self, cwd: SandboxPath) -> Self {
        self.cwd = Some(cwd);
        self
    }

    /// Passes one variable.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let _ = sandbox_core::RunOptions::new(["env"], Duration::from_secs(1)).env("EMPTY", "");
    /// ```
    #[must_use]
    pub fn env(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.env.set(name, value);
        self
    }

    /// Sets the time between TERM and KILL.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let _ = sandbox_core::RunOptions::new(["x"], Duration::from_secs(1)).grace(Duration::ZERO);
    /// ```
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Gives it exactly these bytes to read.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let _ = sandbox_core::RunOptions::new(["cat"], Duration::from_secs(1)).stdin("hello");
    /// ```
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Bytes>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Sets the bytes that it may write to standard output and to standard error.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let _ = sandbox_core::RunOptions::new(["yes"], Duration::from_secs(1)).max_output(1024, 512);
    /// ```
    #[must_use]
    pub fn max_output(mut self, stdout: u64, stderr: u64) -> Self {
        (self.max_stdout, self.max_stderr) = (stdout, stderr);
        self
    }

    /// Ties it to a token.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sandbox_core::{CancelToken, RunOptions};
    /// let _ = RunOptions::new(["x"], Duration::from_secs(1)).cancel(CancelToken::new());
    /// ```
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Chooses the sandbox. Its name must be free, as for `create`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sandbox_core::{ContainerName, ContainerSpec, Limits, RunOptions};
    /// let mut spec = ContainerSpec::workdir(ContainerName::new("job-7")?);
    /// spec.limits.memory = Some(256 << 20);
    /// let _ = RunOptions::new(["python3", "job.py"], Duration::from_secs(60)).spec(spec);
    /// # Ok::<(), sandbox_core::Error>(())
    /// ```
    #[must_use]
    pub fn spec(mut self, spec: ContainerSpec) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Checks everything that can be checked without a sandbox; [`run_sandboxed`] does so first.
    ///
    /// # Errors
    /// `InvalidSpec` (no program, a zero timeout, a grace that is not less than the timeout, a limit of zero, a relative cwd, bad
    /// variable names, NUL bytes, what the spec's own check refuses), `ArgumentsTooLong`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sandbox_core::RunOptions;
    /// let second = Duration::from_secs(1);
    /// assert!(RunOptions::new(["x"], second).grace(second).check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        if self.grace.is_some_and(|grace| grace >= self.timeout) {
            return Err(Error::invalid_spec(
                "grace",
                "must be less than the timeout",
            ));
        }
        for (field, limit) in [
            ("max_stdout", self.max_stdout),
            ("max_stderr", self.max_stderr),
        ] {
            if limit == 0 {
                return Err(Error::invalid_spec(field, "must be above zero"));
            }
        }
        if self.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
            return Err(Error::invalid_spec(
                "cwd",
                "must be absolute inside the sandbox; leave it out for a fresh directory",
            ));
        }
        if let Some(spec) = &self.spec {
            spec.check()?;
        }
        self.cmd(None).check()
    }

    fn cmd(&self, cwd: Option<SandboxPath>) -> Cmd {
        let limits = OutputLimits::new(self.max_stdout, self.max_stderr, Overflow::Kill);
        let mut cmd = Cmd::argv(self.argv.iter().cloned())
            .envs(&self.env)
            .timeout(self.timeout)
            .limits(limits);
        cmd.cwd = cwd;
        cmd.grace = self.grace;
        cmd.cancel = self.cancel.clone();
        match &self.stdin {
            Some(bytes) => cmd.stdin_bytes(bytes.clone()),
            None => cmd,
        }
    }
}

/// Why a run is over.
///
/// ```
/// assert_eq!(sandbox_core::RunOutcome::OverflowStdout.to_string(), "overflow-stdout");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunOutcome {
    /// The command ended by itself.
    Exit,
    /// Its time was over.
    Timeout,
    /// The caller cancelled.
    Canceled,
    /// It wrote more standard output than allowed.
    OverflowStdout,
    /// It wrote more standard error than allowed.
    OverflowStderr,
    /// It could not be started; see [`RunResult::error_message`].
    SpawnError,
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunOutcome::Exit => "exit",
            RunOutcome::Timeout => "timeout",
            RunOutcome::Canceled => "canceled",
            RunOutcome::OverflowStdout => "overflow-stdout",
            RunOutcome::OverflowStderr => "overflow-stderr",
            RunOutcome::SpawnError => "spawn-error",
        })
    }
}

/// The end of a run. All fields are there whatever the outcome.
///
/// ```
/// # use sandbox_core::{RunOutcome, RunResult};
/// fn passed(result: &RunResult) -> bool {
///     result.outcome == RunOutcome::Exit && result.exit_code == Some(0)
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct RunResult {
    /// Why it is over; decided once.
    pub outcome: RunOutcome,
    /// The exit code, only for [`RunOutcome::Exit`], and if no signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, only for [`RunOutcome::Exit`].
    pub signal: Option<i32>,
    /// Standard output up to its limit; kept for every outcome.
    pub stdout: Bytes,
    /// Standard error up to its limit.
    pub stderr: Bytes,
    /// Whether there was more standard output.
    pub stdout_truncated: bool,
    /// Whether there was more standard error.
    pub stderr_truncated: bool,
    /// How long the command ran; zero if it was not started.
    pub duration: Duration,
    /// The directory in which it ran.
    pub cwd: SandboxPath,
    /// Whether that directory was made for it; it is then gone.
    pub cwd_owned: bool,
    /// Why it was not started; empty for every other outcome.
    pub error_message: String,
    /// The sandbox could not be removed: it may still take up room, and its backend can say more.
    pub cleanup_error: Option<Error>,
}

impl RunResult {
    /// Standard output as text; bytes that are not UTF-8 became U+FFFD (a limit may cut a character).
    ///
    /// ```
    /// # fn show(result: &sandbox_core::RunResult) -> String {
    /// result.stdout_text()
    /// # }
    /// ```
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text, likewise.
    ///
    /// ```
    /// # fn show(result: &sandbox_core::RunResult) -> String {
    /// result.stderr_text()
    /// # }
    /// ```
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs one command in a sandbox that is made for it and gone before this returns (rule RUN-1). Dropping the future ends the
/// command and removes the sandbox too.
///
/// # Errors
/// What is not about the command: invalid options (before any side effect), a sandbox that cannot be made, a runtime that dies
/// (`Unavailable`). Whatever the command does is a [`RunOutcome`], also a program that is not there.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use sandbox_core::{Backend, Result, RunOptions, RunOutcome, run_sandboxed};
///
/// async fn grade(backend: Arc<dyn Backend>, program: &str) -> Result<bool> {
///     let options = RunOptions::new(["python3", "-c", program], Duration::from_secs(5));
///     let result = run_sandboxed(backend, options).await?;
///     Ok(result.outcome == RunOutcome::Exit && result.stdout_text() == "42\n")
/// }
/// ```
pub async fn run_sandboxed(backend: Arc<dyn Backend>, options: RunOptions) -> Result<RunResult> {
    options.check()?;
    let place = Place::new(&options)?;
    let created = unless_cancelled(&options, backend.create(place.spec.clone())).await;
    let sandbox = match created {
        Some(handle) => Sandbox {
            backend,
            handle: handle?,
            destroyed: false,
        },
        None => return Ok(place.result(RunOutcome::Canceled)),
    };
    let ran = run_in(&sandbox, &place, &options).await;
    let cleanup_error = sandbox.destroy().await.err();
    ran.map(|result| RunResult {
        cleanup_error,
        ..result
    })
}

async fn run_in(sandbox: &Sandbox, place: &Place, options: &RunOptions) -> Result<RunResult> {
    let backend = &sandbox.backend;
    if place.owned {
        // Writing an empty tree makes the directory.
        let nothing = encode(futures_util::stream::empty(), TreeLimits::default());
        let made = backend.write_tree_at(&sandbox.handle, &place.cwd, nothing);
        match unless_cancelled(options, made).await {
            Some(made) => made?,
            None => return Ok(place.result(RunOutcome::Canceled)),
        }
    }
    let cmd = options.cmd(Some(place.cwd.clone()));
    let started = unless_cancelled(options, backend.exec(&sandbox.handle, cmd)).await;
    let mut execution = match started {
        None => return Ok(place.result(RunOutcome::Canceled)),
        Some(Ok(execution)) => execution,
        Some(Err(error)) => return place.not_started(error),
    };
    place.ended(execution.wait().await)
}

/// The call, unless the token comes first; the call is then dropped, which cancels it.
async fn unless_cancelled<T>(options: &RunOptions, call: impl Future<Output = T>) -> Option<T> {
    let Some(token) = &options.cancel else {
        return Some(call.await);
    };
    tokio::select! {
        biased;
        () = token.cancelled() => None,
        result = call => Some(result),
    }
}

/// Where the command runs.
struct Place {
    spec: ContainerSpec,
    cwd: SandboxPath,
    owned: bool,
}

impl Place {
    fn new(options: &RunOptions) -> Result<Self> {
        // Unique among everything that runs anywhere, so that runs never meet under one name.
        let unique = format!("run-{:016x}", RandomState::new().hash_one(0));
        let spec = match &options.spec {
            Some(spec) => spec.clone(),
            None => ContainerSpec::workdir(ContainerName::new(unique.clone())?),
        };
        let (cwd, owned) = match &options.cwd {
            Some(cwd) => (cwd.clone(), false),
            None => (SandboxPath::new(format!("/tmp/{unique}"))?, true),
        };
        Ok(Place { spec, cwd, owned })
    }

    fn result(&self, outcome: RunOutcome) -> RunResult {
        RunResult {
            outcome,
            exit_code: None,
            signal: None,
            stdout: Bytes::new(),
            stderr: Bytes::new(),
            stdout_truncated: false,
            stderr_truncated: false,
            duration: Duration::ZERO,
            cwd: self.cwd.clone(),
            cwd_owned: self.owned,
            error_message: String::new(),
            cleanup_error: None,
        }
    }

    fn not_started(&self, error: Error) -> Result<RunResult> {
        match &error {
            Error::Cancelled { .. } => Ok(self.result(RunOutcome::Canceled)),
            // These are about the command; everything else is about the sandbox.
            Error::NotFound { .. }
            | Error::NotExecutable { .. }
            | Error::BadCwd { .. }
            | Error::UserNotFound { .. }
            | Error::ArgumentsTooLong { .. } => Ok(RunResult {
                error_message: error.to_string(),
                ..self.result(RunOutcome::SpawnError)
            }),
            _ => Err(error),
        }
    }

    fn ended(&self, ended: ExecResult) -> Result<RunResult> {
        let outcome = match ended.ended_by {
            EndedBy::Exited | EndedBy::OutOfMemory => RunOutcome::Exit,
            EndedBy::TimedOut => RunOutcome::Timeout,
            EndedBy::Cancelled => RunOutcome::Canceled,
            EndedBy::OverflowStdout => RunOutcome::OverflowStdout,
            EndedBy::OverflowStderr => RunOutcome::OverflowStderr,
            EndedBy::Destroyed => {
                return Err(Error::Unavailable {
                    target: "the sandbox".into(),
                    never_started: false,
                    detail: "somebody else destroyed it while the command ran".into(),
                });
            }
        };
        if let Some(error) = &ended.error {
            return Err(error.duplicate());
        }
        let (exit_code, signal) = match (outcome, ended.status) {
            (RunOutcome::Exit, Some(ExitStatus::Code(code))) => (Some(code), None),
            (RunOutcome::Exit, Some(ExitStatus::Signal(signal))) => (None, Some(signal)),
            _ => (None, None),
        };
        Ok(RunResult {
            exit_code,
            signal,
            stdout: ended.stdout,
            stderr: ended.stderr,
            stdout_truncated: ended.stdout_truncated,
            stderr_truncated: ended.stderr_truncated,
            duration: ended.duration,
            ..self.result(outcome)
        })
    }
}

/// The sandbox of a run; destroyed also if the run is dropped midway.
struct Sandbox {
    backend: Arc<dyn Backend>,
    handle: Handle,
    destroyed: bool,
}

impl Sandbox {
    async fn destroy(mut self) -> Result<()> {
        let result = self.backend.destroy(&self.handle).await;
        // A failure is the caller's to handle; a second try behind its back could surprise it.
        self.destroyed = true;
        result
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.destroyed {
            return;
        }
        // Without a runtime this process is about to end, and the sandbox, which it owns, with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (backend, handle) = (Arc::clone(&self.backend), self.handle.clone());
            runtime.spawn(async move {
                // Nobody is left who could be told.
                let _ = backend.destroy(&handle).await;
            });
        }
    }
}

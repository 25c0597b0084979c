//! A command to run in a sandbox.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::cancel::CancelToken;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::path::SandboxPath;

/// One command: what to run, where, with what, and within which bounds.
///
/// ```
/// use std::time::Duration;
/// use sandbox_core::Cmd;
/// let cmd = Cmd::shell("make test").env("CI", "1").cwd("repo")?.timeout(Duration::from_secs(60));
/// assert!(cmd.check().is_ok());
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Cmd {
    /// What is executed.
    pub program: Program,
    /// Variables over the sandbox's environment; these win.
    pub env: Env,
    /// The working directory, relative to the sandbox's workdir; that workdir if absent.
    pub cwd: Option<SandboxPath>,
    /// What the command reads.
    pub stdin: Stdin,
    /// When the command is ended for taking too long; never if absent.
    pub timeout: Option<Duration>,
    /// How long the command may clean up between TERM and KILL; see [`Cmd::effective_grace`].
    pub grace: Option<Duration>,
    /// How much output is kept in the result, and what happens beyond.
    pub limits: OutputLimits,
    /// As whom it runs; the sandbox's default user if absent.
    pub user: Option<User>,
    /// The size of a pseudo-terminal, if the command shall have one.
    pub pty: Option<PtySize>,
    /// A token that cancels the command.
    pub cancel: Option<CancelToken>,
}

/// What a [`Cmd`] executes.
///
/// ```
/// use sandbox_core::{Cmd, Program};
/// assert!(matches!(Cmd::shell("ls | wc").program, Program::Shell(_)));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// A program and its arguments, byte for byte, without a shell. A name without a slash is looked up in the command's `PATH`.
    Argv(Vec<Vec<u8>>),
    /// A script for the sandbox's shell (`Caps::shell`).
    Shell(Vec<u8>),
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Argv(argv) => {
                f.write_str("Argv")?;
                f.debug_list()
                    .entries(argv.iter().map(|a| String::from_utf8_lossy(a)))
                    .finish()
            }
            Program::Shell(script) => write!(f, "Shell({:?})", String::from_utf8_lossy(script)),
        }
    }
}

/// What a command reads from its standard input.
///
/// ```
/// let cmd = sandbox_core::Cmd::argv(["cat"]).stdin_bytes("hello");
/// assert!(matches!(cmd.stdin, sandbox_core::Stdin::Bytes(_)));
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Stdin {
    /// Nothing: end of file at once.
    #[default]
    Null,
    /// Exactly these bytes, then end of file.
    Bytes(Bytes),
    /// Whatever the caller writes ([`Execution::take_stdin`](crate::Execution::take_stdin)).
    Piped,
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stdin::Null => f.write_str("Null"),
            Stdin::Bytes(bytes) => write!(f, "Bytes(<{} bytes>)", bytes.len()),
            Stdin::Piped => f.write_str("Piped"),
        }
    }
}

/// How much of each output stream is kept, and what happens beyond.
///
/// Chunks are delivered live whatever the limits are; limits concern what the result keeps and whether the command goes on.
///
/// ```
/// let limits = sandbox_core::OutputLimits::default();
/// assert_eq!(limits.stdout, 8 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputLimits {
    /// Bytes of standard output kept; exactly this many is no overflow.
    pub stdout: u64,
    /// Bytes of standard error kept; exactly this many is no overflow.
    pub stderr: u64,
    /// What one byte more does.
    pub overflow: Overflow,
}

impl OutputLimits {
    /// Limits in bytes for both streams, with the given policy.
    ///
    /// ```
    /// use sandbox_core::{OutputLimits, Overflow};
    /// assert_eq!(OutputLimits::new(10, 20, Overflow::Kill).stderr, 20);
    /// ```
    pub fn new(stdout: u64, stderr: u64, overflow: Overflow) -> Self {
        OutputLimits {
            stdout,
            stderr,
            overflow,
        }
    }
}

impl Default for OutputLimits {
    fn default() -> Self {
        OutputLimits {
            stdout: 8 << 20,
            stderr: 1 << 20,
            overflow: Overflow::Truncate,
        }
    }
}

/// What happens when an output stream exceeds its limit.
///
/// ```
/// assert_eq!(sandbox_core::Overflow::default(), sandbox_core::Overflow::Truncate);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The command goes on; the result says `truncated`.
    #[default]
    Truncate,
    /// The command's whole tree is ended; the result says `OverflowStdout` or `OverflowStderr`.
    Kill,
}

/// As whom a command runs.
///
/// ```
/// use sandbox_core::User;
/// assert_eq!("1000:100".parse::<User>()?, User::Ids { uid: 1000, gid: Some(100) });
/// assert_eq!("nobody".parse::<User>()?, User::Name("nobody".into()));
/// assert!("".parse::<User>().is_err());
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum User {
    /// A name of the sandbox's own user database.
    Name(String),
    /// Numeric ids. Without a group: the user's own group if the database has the user, else a group of the same number.
    Ids {
        /// The user id inside the sandbox.
        uid: u32,
        /// The group id inside the sandbox.
        gid: Option<u32>,
    },
}

impl std::str::FromStr for User {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid_spec("user", format!("{text:?} is no name, uid or uid:gid"));
        // u32::MAX is the kernel's "no change", so it names nobody.
        let id = |digits: &str| {
            digits
                .parse::<u32>()
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(bad)
        };
        if text.is_empty() || text.len() > 64 || text.contains(['\0', '\n', '/']) {
            return Err(bad());
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(match text.split_once(':') {
                Some((uid, gid)) => User::Ids {
                    uid: id(uid)?,
                    gid: Some(id(gid)?),
                },
                None => User::Ids {
                    uid: id(text)?,
                    gid: None,
                },
            });
        }
        if text.contains(':') {
            Err(bad())
        } else {
            Ok(User::Name(text.to_owned()))
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Name(name) => f.write_str(name),
            User::Ids { uid, gid: None } => write!(f, "{uid}"),
            User::Ids {
                uid,
                gid: Some(gid),
            } => write!(f, "{uid}:{gid}"),
        }
    }
}

/// The size of a pseudo-terminal, in character cells.
///
/// ```
/// assert_eq!(sandbox_core::PtySize::default().columns, 80);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl Default for PtySize {
    fn default() -> Self {
        PtySize {
            rows: 24,
            columns: 80,
        }
    }
}

impl Cmd {
    /// The longest single argument or variable, in bytes, without its NUL: the kernel's `MAX_ARG_STRLEN`.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Cmd::MAX_ARG_LEN, 131_071);
    /// ```
    pub const MAX_ARG_LEN: usize = 128 * 1024 - 1;

    /// The most that arguments and command environment may take together, in bytes.
    ///
    /// ```
    /// assert!(sandbox_core::Cmd::MAX_ARGS_LEN > 16 * 64 * 1024);
    /// ```
    pub const MAX_ARGS_LEN: usize = 2 * 1024 * 1024 - 64 * 1024;

    /// A program and its arguments, without a shell.
    ///
    /// ```
    /// let cmd = sandbox_core::Cmd::argv(["echo", "a b"]);
    /// assert!(cmd.check().is_ok());
    /// ```
    pub fn argv<A: Into<Vec<u8>>>(argv: impl IntoIterator<Item = A>) -> Self {
        Cmd::new(Program::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// A script for the sandbox's shell.
    ///
    /// ```
    /// assert!(sandbox_core::Cmd::shell("exit 3").check().is_ok());
    /// ```
    pub fn shell(script: impl Into<Vec<u8>>) -> Self {
        Cmd::new(Program::Shell(script.into()))
    }

    fn new(program: Program) -> Self {
        Cmd {
            program,
            env: Env::new(),
            cwd: None,
            stdin: Stdin::Null,
            timeout: None,
            grace: None,
            limits: OutputLimits::default(),
            user: None,
            pty: None,
            cancel: None,
        }
    }

    /// Sets one variable.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Cmd::argv(["env"]).env("A", "1").env.len(), 1);
    /// ```
    #[must_use]
    pub fn env(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.env.set(name, value);
        self
    }

    /// Sets several variables.
    ///
    /// ```
    /// use sandbox_core::{Cmd, Env};
    /// let cmd = Cmd::argv(["env"]).envs(&Env::new().with("A", "1"));
    /// assert_eq!(cmd.env.len(), 1);
    /// ```
    #[must_use]
    pub fn envs(mut self, env: &Env) -> Self {
        self.env = self.env.merged(env);
        self
    }

    /// Sets the working directory.
    ///
    /// # Errors
    /// `InvalidPath` as [`SandboxPath::new`].
    ///
    /// ```
    /// assert!(sandbox_core::Cmd::argv(["ls"]).cwd("").is_err());
    /// ```
    pub fn cwd(mut self, cwd: impl AsRef<[u8]>) -> Result<Self> {
        self.cwd = Some(SandboxPath::new(cwd)?);
        Ok(self)
    }

    /// Gives the command exactly these bytes to read.
    ///
    /// ```
    /// let _ = sandbox_core::Cmd::argv(["cat"]).stdin_bytes(vec![0, 1]);
    /// ```
    #[must_use]
    pub fn stdin_bytes(mut self, bytes: impl Into<Bytes>) -> Self {
        self.stdin = Stdin::Bytes(bytes.into());
        self
    }

    /// Lets the caller write the command's input while it runs.
    ///
    /// ```
    /// let _ = sandbox_core::Cmd::argv(["cat"]).stdin_piped();
    /// ```
    #[must_use]
    pub fn stdin_piped(mut self) -> Self {
        self.stdin = Stdin::Piped;
        self
    }

    /// Bounds the run time.
    ///
    /// ```
    /// use std::time::Duration;
    /// let _ = sandbox_core::Cmd::argv(["make"]).timeout(Duration::from_secs(49 * 24 * 3600));
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time between TERM and KILL.
    ///
    /// ```
    /// use std::time::Duration;
    /// let cmd = sandbox_core::Cmd::argv(["make"]).grace(Duration::ZERO);
    /// assert_eq!(cmd.effective_grace(), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets the output limits.
    ///
    /// ```
    /// use sandbox_core::{Cmd, OutputLimits, Overflow};
    /// let _ = Cmd::argv(["yes"]).limits(OutputLimits::new(1024, 1024, Overflow::Kill));
    /// ```
    #[must_use]
    pub fn limits(mut self, limits: OutputLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs as another user of the sandbox.
    ///
    /// ```
    /// use sandbox_core::{Cmd, User};
    /// let _ = Cmd::argv(["id"]).user(User::Name("nobody".into()));
    /// ```
    #[must_use]
    pub fn user(mut self, user: User) -> Self {
        self.user = Some(user);
        self
    }

    /// Gives the command a pseudo-terminal; its output is then one stream.
    ///
    /// ```
    /// use sandbox_core::{Cmd, PtySize};
    /// let _ = Cmd::shell("stty size").pty(PtySize { rows: 50, columns: 132 });
    /// ```
    #[must_use]
    pub fn pty(mut self, size: PtySize) -> Self {
        self.pty = Some(size);
        self
    }

    /// Ties the command to a token: cancelled before the start it is not started, cancelled later its tree is ended.
    ///
    /// ```
    /// use sandbox_core::{CancelToken, Cmd};
    /// let token = CancelToken::new();
    /// let _ = Cmd::argv(["sleep", "60"]).cancel(token.clone());
    /// ```
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// The grace that applies: the one that was set, else half the timeout, 2 seconds at most.
    ///
    /// ```
    /// use std::time::Duration;
    /// let cmd = sandbox_core::Cmd::argv(["x"]).timeout(Duration::from_millis(500));
    /// assert_eq!(cmd.effective_grace(), Duration::from_millis(250));
    /// ```
    pub fn effective_grace(&self) -> Duration {
        let most = Duration::from_secs(2);
        self.grace
            .unwrap_or_else(|| self.timeout.map_or(most, |timeout| most.min(timeout / 2)))
    }

    /// Checks everything that can be checked without a sandbox. [`Checked`](crate::Checked) calls it before any backend.
    ///
    /// # Errors
    /// `InvalidSpec` (empty argv, NUL bytes, bad variable names, a zero timeout, a pty with piped bounds of zero),
    /// `ArgumentsTooLong`.
    ///
    /// ```
    /// use sandbox_core::{Cmd, ErrorKind};
    /// let long = Cmd::argv(["echo".to_owned(), "x".repeat(200_000)]);
    /// assert_eq!(long.check().unwrap_err().kind(), ErrorKind::ArgumentsTooLong);
    /// assert_eq!(Cmd::argv(["a\0b"]).check().unwrap_err().kind(), ErrorKind::InvalidSpec);
    /// ```
    pub fn check(&self) -> Result<()> {
        let arguments: &[Vec<u8>] = match &self.program {
            Program::Argv(argv) => argv,
            Program::Shell(script) => std::slice::from_ref(script),
        };
        if let Program::Argv(argv) = &self.program
            && argv.first().is_none_or(Vec::is_empty)
        {
            return Err(Error::invalid_spec("argv", "the program is missing"));
        }
        if arguments.iter().any(|argument| argument.contains(&0)) {
            return Err(Error::invalid_spec("argv", "an argument holds a NUL byte"));
        }
        self.env.check()?;
        let variables = self
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len() + 1);
        let mut total = 0;
        for length in arguments.iter().map(Vec::len).chain(variables) {
            if length > Self::MAX_ARG_LEN {
                return Err(Error::ArgumentsTooLong {
                    reason: format!(
                        "one argument or variable has {length} bytes, at most {} are possible",
                        Self::MAX_ARG_LEN
                    ),
                });
            }
            total += length + 1 + size_of::<usize>();
        }
        if total > Self::MAX_ARGS_LEN {
            return Err(Error::ArgumentsTooLong {
                reason: format!(
                    "{total} bytes in all, at most {} are possible",
                    Self::MAX_ARGS_LEN
                ),
            });
        }
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::invalid_spec(
                "timeout",
                "must be above zero; leave it out for none",
            ));
        }
        if self
            .pty
            .is_some_and(|size| size.rows == 0 || size.columns == 0)
        {
            return Err(Error::invalid_spec(
                "pty",
                "rows and columns must be above zero",
            ));
        }
        Ok(())
    }
}

impl From<&str> for Cmd {
    /// A script for the sandbox's shell.
    fn from(script: &str) -> Self {
        Cmd::shell(script)
    }
}

impl From<String> for Cmd {
    /// A script for the sandbox's shell.
    fn from(script: String) -> Self {
        Cmd::shell(script)
    }
}

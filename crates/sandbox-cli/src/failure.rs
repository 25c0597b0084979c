//! What the command says when it fails: what happened, why, what to do.

use std::fmt;

use sandbox_core::{Error, PathRole};

use crate::args::BadOption;

/// The sandbox could not be made, or the command was not started, or contact with it was lost.
pub(crate) const NOT_RUN: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A failure of the `sandbox` command itself, in three lines.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    what: String,
    why: String,
    help: String,
}

impl Failure {
    pub(crate) fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Failure {
            code: NOT_RUN,
            what: what.into(),
            why: why.into(),
            help: help.into(),
        }
    }

    fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sandbox: {}\n  why:  {}\n  help: {}",
            self.what, self.why, self.help
        )
    }
}

impl From<BadOption> for Failure {
    fn from(bad: BadOption) -> Self {
        Failure::new(
            format!("{} cannot be used", bad.option),
            bad.reason,
            bad.help,
        )
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::SandboxRequired { failure } => Failure::new(
                format!("no sandbox is available: {failure}"),
                "nothing was run, neither in a sandbox nor on the host",
                format!(
                    "`sandbox doctor` shows what is missing; to run without any isolation set {}=1",
                    sandbox_core::policy::ALLOW_UNSANDBOXED
                ),
            ),
            Error::Isolation {
                layer,
                cause,
                remedy,
            } => Failure::new(
                format!("no sandbox could be made: {layer} failed"),
                format!("{cause}; nothing was run"),
                remedy,
            ),
            Error::NotFound {
                role: PathRole::Program,
                path,
            } => Failure::new(
                format!("the program {path:?} was not found"),
                "no directory of the sandbox's PATH has it, or there is no such file inside; of the host only system directories are visible",
                "bind the directory that holds it, for example --bind ~/tools:/tools:ro, and run /tools/NAME",
            )
            .with_code(NOT_FOUND),
            Error::NotExecutable { program, reason } => Failure::new(
                format!("the program {program:?} cannot be executed"),
                reason,
                "make it executable and check its first line (#!) and its architecture",
            )
            .with_code(NOT_EXECUTABLE),
            Error::ArgumentsTooLong { reason } => Failure::new(
                "the arguments or the environment are too long",
                reason,
                "pass large data through standard input or a bound file",
            )
            .with_code(NOT_EXECUTABLE),
            Error::BadCwd { cwd, reason } => Failure::new(
                format!("the working directory {cwd:?} cannot be used"),
                reason,
                "--cwd names a directory inside the sandbox; /work is empty unless something is bound there",
            ),
            Error::UserNotFound { user, reason } => Failure::new(
                format!("the sandbox has no user {user:?}"),
                reason,
                "give a name of the sandbox's /etc/passwd, a UID or UID:GID with --user",
            ),
            Error::InvalidSpec { field, reason } => Failure::new(
                format!("{} cannot be used", option_of(&field)),
                reason,
                "`sandbox run --help` shows what each option takes",
            ),
            Error::Unsupported {
                operation, reason, ..
            } => Failure::new(
                format!("this machine does not support {operation}; nothing was run"),
                if reason.is_empty() {
                    "the native backend never does".into()
                } else {
                    reason
                },
                "`sandbox doctor` shows what each layer needs; or leave the option out",
            ),
            Error::Unavailable {
                target,
                never_started,
                detail,
            } => Failure::new(
                format!("{target} is unavailable"),
                detail,
                if never_started {
                    "nothing was started: try again"
                } else {
                    "what the command did is unknown: look before trying again"
                },
            ),
            error => Failure::new(
                error.to_string(),
                "see the line above",
                "`sandbox doctor` shows what this machine can isolate",
            ),
        }
    }
}

/// The option that sets a field of the API.
fn option_of(field: &str) -> String {
    match field {
        "limits.memory" => "--memory".into(),
        "limits.disk" => "--disk".into(),
        "limits.cpus" => "--cpus".into(),
        "limits.pids" => "--pids".into(),
        "env" => "--env".into(),
        "binds" => "--bind".into(),
        "user" => "--user".into(),
        "timeout" => "--timeout".into(),
        "network" => "--network".into(),
        "source" => "--root".into(),
        field => format!("the {field}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        let not_found = |role| Error::NotFound {
            role,
            path: "x".into(),
        };
        for (error, code) in [
            (not_found(PathRole::Program), 127),
            (not_found(PathRole::Path), 125),
            (
                Error::NotExecutable {
                    program: "x".into(),
                    reason: "r".into(),
                },
                126,
            ),
            (Error::ArgumentsTooLong { reason: "r".into() }, 126),
            (
                Error::BadCwd {
                    cwd: "x".into(),
                    reason: "r".into(),
                },
                125,
            ),
            (Error::invalid_spec("env", "r"), 125),
            (Error::BrokenPipe, 125),
        ] {
            assert_eq!(Failure::from(error).code, code);
        }
    }

    #[test]
    fn every_failure_has_three_lines() {
        let errors = [
            Error::SandboxRequired {
                failure: "f".into(),
            },
            Error::Isolation {
                layer: "user namespace".into(),
                cause: "c".into(),
                remedy: "r".into(),
            },
            Error::invalid_spec("limits.memory", "must be larger"),
            Error::BrokenPipe,
        ];
        for error in errors {
            let text = Failure::from(error).to_string();
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(text.starts_with("sandbox: "), "{text}");
        }
    }

    #[test]
    fn a_field_is_shown_as_its_option() {
        let text = Failure::from(Error::invalid_spec("limits.memory", "r")).to_string();
        assert!(text.contains("--memory cannot be used"), "{text}");
    }
}

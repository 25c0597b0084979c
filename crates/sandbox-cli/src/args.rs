//! The command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sandbox_core::{Bind, Env, NetworkMode, SandboxPath, User};

use crate::quantity;

/// Runs commands in isolated, rootless Linux sandboxes. No daemon, no image.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs one command in a fresh sandbox, which is removed afterwards.
    #[command(after_long_help = RUN_HELP, after_help = "See --help for exit codes and examples.")]
    Run(Box<Run>),
    /// Shows layer by layer what this machine can isolate, and what would fix the rest.
    #[command(after_help = "Exits with 0 if sandboxes can be made here, else with 1.")]
    Doctor(Doctor),
}

const RUN_HELP: &str = "\
Inside, the root is private: of the host only its system directories are there, read-only. The command starts in /work, which is
empty, without network, and with a minimal environment. What it leaves is removed with the sandbox; bind a directory to keep results.

Standard input is passed on (and read ahead: give </dev/null in loops that read their own input). Ctrl-C and TERM end the command
with everything it started; a second one does so without waiting for it to clean up.

Exit codes:
  the command's own; 128+n if signal n ended it
  124  the timeout passed
  125  the command was not started: bad options, or the sandbox could not be made; or contact with it was lost
  126  the program cannot be executed
  127  the program was not found in the sandbox
  130, 143, 129  ended by Ctrl-C, TERM or a hang-up
  141  standard output was closed by its reader

Where no sandbox can be made, nothing is run, unless SANDBOX_ALLOW_UNSANDBOXED=1 is set: then the command runs as an ordinary
process of the host, without any isolation, and a warning says so.

Examples:
  sandbox run -- python3 -c 'print(6 * 7)'
  sandbox run --timeout 10s --memory 512m --pids 64 -c 'make -j4 test'
  sandbox run --bind .:/work -- cargo test --offline
  sandbox run --tty -- bash";

/// What to run, and within which bounds.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("program").required(true).args(["script", "argv"])))]
pub(crate) struct Run {
    /// Runs SCRIPT with the sandbox's shell (bash where there is one, else sh) instead of a program.
    #[arg(short = 'c', value_name = "SCRIPT", allow_hyphen_values = true)]
    pub(crate) script: Option<OsString>,

    /// Sets a variable; without a value it is taken from the caller's environment. Can be repeated.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,

    /// The directory to start in, relative to /work.
    #[arg(long, value_name = "DIR")]
    cwd: Option<OsString>,

    /// Ends the command with everything it started after this long: 500ms, 30s, 2m, 1h30m.
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,

    /// The most memory of all processes together: 64m, 1.5g.
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, allow_negative_numbers = true)]
    pub(crate) memory: Option<u64>,

    /// The most the sandbox may write to its own file system: 64m, 1.5g.
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, allow_negative_numbers = true)]
    pub(crate) disk: Option<u64>,

    /// The most CPU time per time: 0.5 is half a core.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) cpus: Option<f64>,

    /// The most processes and threads at once.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) pids: Option<u64>,

    /// What the command can reach: its own loopback only (the default), or all that the host can reach.
    #[arg(long, value_name = "MODE")]
    network: Option<Network>,

    /// Makes a file or directory of the host appear in the sandbox, writable unless :ro. Can be repeated.
    #[arg(long, value_name = "HOST:BOX[:ro|rw]")]
    bind: Vec<OsString>,

    /// A directory that holds a root file system to use instead of the host's system directories; it is never changed.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// The user inside: a name, UID or UID:GID.
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<User>,

    /// Gives the command a terminal, as large as the caller's.
    #[arg(short, long)]
    pub(crate) tty: bool,

    /// The program and its arguments.
    #[arg(value_name = "ARGV", trailing_var_arg = true)]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Prints the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    /// Only its own loopback.
    None,
    /// The host's network, unfiltered.
    Host,
}

/// An option that cannot be used, and what to write instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadOption {
    pub(crate) option: String,
    pub(crate) reason: String,
    pub(crate) help: &'static str,
}

impl Run {
    /// The network that was asked for, if any was.
    pub(crate) fn network(&self) -> Option<NetworkMode> {
        self.network.map(|network| match network {
            Network::None => NetworkMode::None,
            Network::Host => NetworkMode::Host,
        })
    }

    pub(crate) fn cwd(&self) -> Result<Option<SandboxPath>, BadOption> {
        let Some(cwd) = &self.cwd else {
            return Ok(None);
        };
        match SandboxPath::new(cwd.as_bytes()) {
            Ok(path) => Ok(Some(path)),
            Err(error) => Err(BadOption {
                option: "--cwd".into(),
                reason: error.to_string(),
                help: "give a directory inside the sandbox, relative to /work",
            }),
        }
    }

    pub(crate) fn root(&self) -> Result<Option<PathBuf>, BadOption> {
        self.root
            .as_deref()
            .map(|dir| absolute("--root", dir.as_os_str()))
            .transpose()
    }

    /// The variables; those without a value are looked up with `lookup`.
    pub(crate) fn env(
        &self,
        lookup: impl Fn(&OsStr) -> Option<OsString>,
    ) -> Result<Env, BadOption> {
        let mut variables = Env::new();
        for option in &self.env {
            let bytes = option.as_bytes();
            let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (&bytes[..at], Some(bytes[at + 1..].to_vec())),
                None => (bytes, None),
            };
            let bad = |reason: String| BadOption {
                option: format!("--env {}", String::from_utf8_lossy(name)),
                reason,
                help: "write --env NAME=VALUE, or --env NAME for a variable that is set here",
            };
            if name.is_empty() {
                return Err(bad("the name is empty".into()));
            }
            let value = match value {
                Some(value) => value,
                None => lookup(OsStr::from_bytes(name))
                    .ok_or_else(|| bad("the caller's environment has no such variable".into()))?
                    .into_vec(),
            };
            variables.set(name, value);
        }
        Ok(variables)
    }

    pub(crate) fn binds(&self) -> Result<Vec<Bind>, BadOption> {
        self.bind.iter().map(|option| bind(option)).collect()
    }
}

/// `HOST:BOX[:ro|rw]`, writable unless it says otherwise, as in Docker's `--volume`.
fn bind(option: &OsStr) -> Result<Bind, BadOption> {
    let bad = |reason: String| BadOption {
        option: format!("--bind {}", option.to_string_lossy()),
        reason,
        help: "write --bind HOST:BOX for a writable and --bind HOST:BOX:ro for a read-only directory",
    };
    let parts: Vec<&[u8]> = option.as_bytes().split(|byte| *byte == b':').collect();
    let (source, target, writable) = match parts[..] {
        [source, target] | [source, target, b"rw"] => (source, target, true),
        [source, target, b"ro"] => (source, target, false),
        [_] => return Err(bad("the path in the sandbox is missing".into())),
        [_, _, mode] => {
            return Err(bad(format!(
                "{:?} is neither ro nor rw",
                String::from_utf8_lossy(mode)
            )));
        }
        _ => {
            return Err(bad(
                "it has too many colons; a path with one cannot be bound".into(),
            ));
        }
    };
    if source.is_empty() || target.is_empty() {
        return Err(bad("a path is empty".into()));
    }
    let source = absolute("--bind", OsStr::from_bytes(source))?;
    let target = SandboxPath::new(target).map_err(|error| bad(error.to_string()))?;
    Ok(if writable {
        Bind::writable(source, target)
    } else {
        Bind::read_only(source, target)
    })
}

/// A path of the host, from the current directory.
fn absolute(option: &str, path: &OsStr) -> Result<PathBuf, BadOption> {
    std::path::absolute(path).map_err(|error| BadOption {
        option: format!("{option} {}", path.to_string_lossy()),
        reason: error.to_string(),
        help: "give a path that exists on the host",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<Run, clap::Error> {
        let cli = Cli::try_parse_from(["sandbox", "run"].iter().chain(arguments))?;
        match cli.command {
            Command::Run(run) => Ok(*run),
            Command::Doctor(_) => panic!("parsed as doctor"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_program_are_the_programs() {
        for line in [&["--", "ls", "--env", "-c"][..], &["ls", "--env", "-c"][..]] {
            assert_eq!(run(line).unwrap().argv, ["ls", "--env", "-c"], "{line:?}");
        }
        let run = run(&["--tty", "sh", "-c", "exit 1"]).unwrap();
        assert!(run.tty && run.script.is_none());
        assert_eq!(run.argv, ["sh", "-c", "exit 1"]);
    }

    #[test]
    fn a_script_may_look_like_an_option() {
        assert_eq!(run(&["-c", "-x"]).unwrap().script, Some("-x".into()));
    }

    #[test]
    fn one_program_is_needed_and_no_more() {
        assert!(run(&[]).is_err());
        assert!(run(&["-c", "true", "true"]).is_err());
    }

    #[test]
    fn an_unknown_option_gets_a_suggestion() {
        let error = run(&["--timout", "1s", "true"]).unwrap_err().to_string();
        assert!(error.contains("--timeout"), "{error}");
    }

    #[test]
    fn bad_values_are_refused_while_parsing() {
        for line in [
            ["--timeout", "10"],
            ["--timeout", "-1s"],
            ["--memory", "1x"],
            ["--disk", "-1"],
            ["--pids", "-1"],
            ["--pids", "1.5"],
            ["--cpus", "half"],
            ["--network", "bridge"],
            ["--user", ""],
            ["--user", "1:2:3"],
        ] {
            assert!(run(&[line[0], line[1], "true"]).is_err(), "{line:?}");
        }
    }

    #[test]
    fn variables_keep_their_bytes() {
        let options = [
            "--env", "A=1=2", "--env", "B=", "--env", "C", "--env", "D=x\ny", "true",
        ];
        let env = run(&options)
            .unwrap()
            .env(|name| (name == "C").then(|| OsString::from_vec(vec![0xff])))
            .unwrap();
        let expected: [(&str, &[u8]); 4] =
            [("A", b"1=2"), ("B", b""), ("C", b"\xff"), ("D", b"x\ny")];
        assert_eq!(env.len(), expected.len());
        for (name, value) in expected {
            assert_eq!(env.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_variable_that_is_not_set_is_an_error_without_its_value() {
        let missing = run(&["--env", "NOPE", "true"]).unwrap().env(|_| None);
        assert_eq!(missing.unwrap_err().option, "--env NOPE");
        let empty = run(&["--env", "=secret", "true"]).unwrap().env(|_| None);
        assert!(!format!("{:?}", empty.unwrap_err()).contains("secret"));
    }

    #[test]
    fn binds_are_writable_unless_read_only() {
        let here = std::env::current_dir().unwrap();
        for (text, source, target, writable) in [
            ("/a:/b", "/a".into(), "/b", true),
            ("/a:/b:rw", "/a".into(), "/b", true),
            ("/a:/b:ro", "/a".into(), "/b", false),
            ("a b:/c", here.join("a b"), "/c", true),
            (".:/work:ro", here.clone(), "/work", false),
        ] {
            let bind = bind(OsStr::new(text)).unwrap();
            assert_eq!(bind.source, source, "{text}");
            assert_eq!(bind.target.as_bytes(), target.as_bytes(), "{text}");
            assert_eq!(bind.writable, writable, "{text}");
        }
    }

    #[test]
    fn what_is_no_bind_is_refused() {
        for text in [
            "",
            ":",
            "/a",
            "/a:",
            ":/b",
            "/a:/b:",
            "/a:/b:rx",
            "/a:/b:ro:ro",
            "/a:b:/c:ro",
        ] {
            assert!(bind(OsStr::new(text)).is_err(), "{text:?}");
        }
    }
}

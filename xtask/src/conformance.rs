//! `cargo xtask conformance`: the cases of the contract against one backend.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use sandbox_conformance::{BoxFuture, Factory, Options, Report};
use sandbox_core::{Backend, Result};

const USAGE: u8 = 2;

#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 every case that applies passed; 1 a case failed, or a required one did not run; 2 wrong command line;
3 nothing passed; 4 incomplete, a case could not be tried here; 5 the suite itself failed.")]
pub(crate) struct Arguments {
    /// The backend under test
    #[arg(value_enum, required_unless_present = "list")]
    backend: Option<Name>,
    /// Run the cases whose id matches: a pattern with *, or a part of the id (repeatable)
    #[arg(long = "case", value_name = "PATTERN")]
    cases: Vec<String>,
    /// List the selected cases with their rules and conditions, and run nothing
    #[arg(long)]
    list: bool,
    /// How to report
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// How many cases run at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    jobs: usize,
    /// How often each case runs; the worst counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    repeat: usize,
    /// Count it as a failure if a case whose id matches is skipped or unavailable (repeatable)
    #[arg(long, value_name = "PATTERN")]
    require: Vec<String>,
    /// Native: all traffic as frames, as a backend without a shared kernel needs it, instead of passed descriptors
    #[arg(long)]
    frames: bool,
    /// Run as this user id of the host, without groups and capabilities (only root can)
    #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(1..))]
    as_user: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Linux namespaces on this machine
    Native,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line per case as it ends, and a summary
    Text,
    /// One JSON document at the end
    Json,
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a number above zero".into()),
    }
}

pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    let done = match arguments.as_user {
        Some(user) => run_as(user),
        None => run(arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(USAGE)
        }
    }
}

fn run(arguments: &Arguments) -> std::result::Result<u8, String> {
    // Sandboxes of root run as another user of the host, who must be able to pass through.
    let scratch = tempfile::Builder::new()
        .prefix("conformance-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .map_err(|error| format!("cannot make a scratch directory: {error}"))?;
    let mut options = Options::new(scratch.path());
    options.select = arguments.cases.clone();
    options.require = arguments.require.clone();
    options.jobs = arguments.jobs;
    options.repeat = arguments.repeat;
    let Some(Name::Native) = arguments.backend.filter(|_| !arguments.list) else {
        list(&options);
        return Ok(0);
    };
    let factory = Arc::new(Native {
        frames: arguments.frames,
    });
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| format!("cannot start a runtime: {error}"))?;
    let text = arguments.format == Format::Text;
    let report = runtime.block_on(sandbox_conformance::run(factory, &options, |row| {
        if text {
            say(&format!("{row}\n"));
        }
    }));
    print(&report, arguments.format);
    Ok(report.verdict().exit_code())
}

fn list(options: &Options) {
    for case in sandbox_conformance::all() {
        if options.selects(case.id) {
            let needs: Vec<String> = case.needs.iter().map(ToString::to_string).collect();
            println!(
                "{} [{}] {}",
                case.id,
                case.rules.join(", "),
                needs.join(", ")
            );
        }
    }
}

fn print(report: &Report, format: Format) {
    match format {
        Format::Text => say(&format!("\n{}", report.summary())),
        Format::Json => say(&format!("{:#}\n", report.to_json())),
    }
}

/// The exit code tells the verdict also to those who stop reading early (`| head`).
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

struct Native {
    frames: bool,
}

impl Factory for Native {
    fn backend<'a>(&'a self, scratch: &'a Path) -> BoxFuture<'a, Result<Arc<dyn Backend>>> {
        Box::pin(async move {
            let builder = sandbox_native::Native::builder()
                .state_dir(scratch.join("state"))
                .frames(self.frames);
            Ok(Arc::new(builder.build().await?) as Arc<dyn Backend>)
        })
    }

    /// Sessions are cleared away when their owner is gone, within 2 s; detached sandboxes when they are destroyed.
    fn residue<'a>(&'a self, scratch: &'a Path) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async move {
            let state = scratch.join("state");
            let deadline = Instant::now() + Duration::from_secs(4);
            loop {
                let left = left_in(&state);
                if left.is_empty() || Instant::now() >= deadline {
                    return left;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

fn left_in(state: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for part in ["sessions", "detached"] {
        let Ok(entries) = std::fs::read_dir(state.join(part)) else {
            continue;
        };
        for entry in entries.flatten() {
            left.push(format!("{part}/{}", entry.file_name().to_string_lossy()));
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let state = state.to_string_lossy();
    left.extend(
        mounts
            .lines()
            .filter(|line| line.contains(&*state))
            .map(|line| format!("the mount {line}")),
    );
    left
}

/// Runs this same program with the same arguments as another user, from a copy that this user can read.
fn run_as(user: u32) -> std::result::Result<u8, String> {
    let failed = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    let home = tempfile::Builder::new()
        .prefix("conformance-user-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .map_err(|error| failed("make a home directory", error))?;
    let program = home.path().join("xtask");
    std::env::current_exe()
        .and_then(|own| std::fs::copy(own, &program))
        .map_err(|error| failed("copy this program", error))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .and_then(|()| chown(home.path(), Some(user), Some(user)))
        .map_err(|error| failed("give a directory to the user (only root can)", error))?;
    let status = Command::new(&program)
        .args(arguments_without_user())
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        // Something that must not be seen in any sandbox, whatever else the environment holds.
        .env("SANDBOX_CONFORMANCE_CANARY", "of the host")
        .env_remove("XDG_RUNTIME_DIR")
        // Leaving user 0 drops the capabilities, and the supplementary groups too.
        .gid(user)
        .uid(user)
        .status()
        .map_err(|error| failed("run as another user", error))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(code),
        None => Err(format!("the run as user {user} ended with {status}")),
    }
}

fn arguments_without_user() -> Vec<std::ffi::OsString> {
    let mut kept = Vec::new();
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if text == "--as-user" {
            arguments.next();
        } else if !text.starts_with("--as-user=") {
            kept.push(argument);
        }
    }
    kept
}

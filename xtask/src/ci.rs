//! `cargo xtask ci`: everything that CI runs, as root and as an ordinary user, with one build profile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::tidy;

/// An id that no user of an ordinary machine has.
const UNPRIVILEGED: u32 = 61_234;

/// The crates whose tests are run again as an unprivileged user. Those of `sandbox-native` and `sandbox-cli` do so by themselves.
const RUN_TWICE: [&str; 1] = ["sandbox-guest"];

/// Runs all steps, also after one that failed, and ends with one line of counts.
pub(crate) fn main() -> ExitCode {
    let mut run = Run::default();
    let all = ["--workspace", "--all-features"];

    run.cargo("format", &["fmt", "--all", "--check"], &[]);
    run.step("tidy", || tidy::main() == ExitCode::SUCCESS);
    run.cargo(
        "clippy",
        &["clippy", "--all-targets"],
        &[&all[..], &["--", "-D", "warnings"]].concat(),
    );
    run.cargo("tests", &["test", "--all-targets"], &all);
    run.cargo("doc tests", &["test", "--doc"], &all);
    run.conformance(None);
    if is_root() {
        run.tests_as(UNPRIVILEGED);
        run.conformance(Some(UNPRIVILEGED));
    } else {
        println!("ci: run by an ordinary user: what root does is not tested here");
    }
    run.step("documentation", || {
        let mut command = cargo(&["doc", "--no-deps"], &all);
        succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
    run.cargo(
        "packages",
        &["package", "--allow-dirty", "--exclude", "xtask"],
        &["--workspace"],
    );
    run.finish()
}

#[derive(Default)]
struct Run {
    passed: u32,
    failed: Vec<String>,
}

impl Run {
    fn step(&mut self, name: &str, run: impl FnOnce() -> bool) {
        println!("\nci: {name}");
        let before = Instant::now();
        let passed = run();
        let verdict = if passed { "passed" } else { "FAILED" };
        println!(
            "ci: {name}: {verdict} in {:.0} s",
            before.elapsed().as_secs_f64()
        );
        if passed {
            self.passed += 1;
        } else {
            self.failed.push(name.to_owned());
        }
    }

    fn cargo(&mut self, name: &str, first: &[&str], rest: &[&str]) {
        self.step(name, || succeeds(&mut cargo(first, rest)));
    }

    /// The contract, with descriptors passed and with everything in frames.
    fn conformance(&mut self, uid: Option<u32>) {
        for frames in [false, true] {
            let who = uid.map_or("this user".into(), |uid| format!("uid {uid}"));
            let how = if frames { "frames" } else { "descriptors" };
            self.step(&format!("conformance of native, {who}, {how}"), || {
                let mut command =
                    Command::new(std::env::current_exe().expect("this program has a path"));
                command.args(["conformance", "native"]);
                if frames {
                    command.arg("--frames");
                }
                if let Some(uid) = uid {
                    command.args(["--as-user", &uid.to_string()]);
                }
                succeeds(&mut command)
            });
        }
    }

    /// The tests of the crates that behave differently for an ordinary user, once more as one.
    fn tests_as(&mut self, uid: u32) {
        for package in RUN_TWICE {
            self.step(&format!("tests of {package} as uid {uid}"), || {
                let binaries = test_binaries(package);
                let place = open_directory();
                !binaries.is_empty()
                    && binaries.iter().all(|binary| {
                        let copied = copy(binary, place.path());
                        succeeds(&mut program(&copied, place.path(), uid))
                    })
            });
        }
    }

    fn finish(self) -> ExitCode {
        println!();
        for name in &self.failed {
            println!("ci: failed: {name}");
        }
        println!("ci: {} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn is_root() -> bool {
    let id = Command::new("id")
        .arg("-u")
        .output()
        .expect("id is installed");
    id.stdout.trim_ascii() == b"0"
}

fn cargo(first: &[&str], rest: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(first).args(rest).current_dir(tidy::root());
    command
}

/// Runs a command without input; whatever it starts sees the same terminal or log.
fn succeeds(command: &mut Command) -> bool {
    match command.stdin(Stdio::null()).status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("ci: {command:?} cannot be run: {error}");
            false
        }
    }
}

/// The executables that hold a package's tests, which an earlier step has built.
fn test_binaries(package: &str) -> Vec<PathBuf> {
    let arguments = [
        "--no-run",
        "--message-format=json",
        "--all-features",
        "--package",
        package,
    ];
    let output = cargo(&["test", "--all-targets"], &arguments)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// A directory that every user can reach: the work tree may be closed to others.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

fn copy(binary: &Path, directory: &Path) -> PathBuf {
    let target = directory.join(binary.file_name().expect("an executable has a name"));
    fs::copy(binary, &target).expect("an executable can be copied");
    target
}

/// A program as another user, with no more of this one's environment than any program needs.
fn program(path: &Path, directory: &Path, uid: u32) -> Command {
    let mut command = Command::new(path);
    command
        .current_dir(directory)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .uid(uid)
        .gid(uid);
    command
}

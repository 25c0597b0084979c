//! Who runs the binary, and what is left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// An id that no user of an ordinary machine has.
const UNPRIVILEGED: u32 = 61_234;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Host root.
    Root,
    /// An id without privileges, taken on by root.
    Unprivileged,
    /// The user who runs the tests.
    Myself,
}

/// Somebody who can run the binary.
pub(crate) struct Who {
    pub(crate) identity: Identity,
    /// Holds a copy of the binary where everybody can reach it: the target directory may be closed to others.
    home: TempDir,
}

/// Runs a test as everybody that it can be run as: for root that is root and an ordinary user.
pub(crate) fn each(test: impl Fn(&Who)) {
    let identities: &[Identity] = if rustix::process::geteuid().is_root() {
        &[Identity::Root, Identity::Unprivileged]
    } else {
        &[Identity::Myself]
    };
    for identity in identities {
        let who = Who {
            identity: *identity,
            home: open_directory(),
        };
        copy_program(Path::new(env!("CARGO_BIN_EXE_sandbox")), &who.binary());
        test(&who);
    }
}

/// Copies a program with another process: a writer in this one would be inherited by what other tests are just starting, and a
/// file that is open for writing cannot be executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "{from:?} could not be copied");
}

fn open_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

impl Who {
    pub(crate) fn binary(&self) -> PathBuf {
        self.home.path().join("sandbox")
    }

    /// The binary with arguments, without input, with a small environment of its own.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(&self.binary());
        command.args(arguments);
        command
    }

    /// Any program, as this user.
    pub(crate) fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .stdin(Stdio::null());
        if self.identity == Identity::Unprivileged {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut all = vec!["run"];
        all.extend(arguments);
        self.command(&all).output().expect("the binary starts")
    }

    /// A temporary directory of this user's.
    pub(crate) fn directory(&self) -> TempDir {
        let directory = open_directory();
        self.give(directory.path());
        directory
    }

    /// Makes a tree this user's.
    pub(crate) fn give(&self, path: &Path) {
        if self.identity != Identity::Unprivileged {
            return;
        }
        std::os::unix::fs::lchown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.give(&entry.unwrap().path());
            }
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A sleep that can be told from all others by its argument.
pub(crate) fn unusual_sleep() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "sleep 7200.{}{:03}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Waits until no process of the machine has that command line.
pub(crate) fn wait_until_gone(command_line: &str) {
    let wanted: Vec<u8> = command_line
        .bytes()
        .map(|byte| if byte == b' ' { 0 } else { byte })
        .chain([0])
        .collect();
    let deadline = Instant::now() + Duration::from_secs(2);
    while anybody_has(&wanted) {
        assert!(Instant::now() < deadline, "{command_line:?} still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn anybody_has(command_line: &[u8]) -> bool {
    fs::read_dir("/proc").unwrap().any(|process| {
        // A process that ends while it is looked at has no command line any more.
        process
            .and_then(|process| fs::read(process.path().join("cmdline")))
            .is_ok_and(|read| read == command_line)
    })
}

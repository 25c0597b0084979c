//! The same tests once more as an ordinary user.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::helper::ORDINARY;

/// The modules whose tests run as both.
const BOTH: [&str; 7] = [
    "basics::",
    "escapes::",
    "lifetime::",
    "limits::",
    "roots::",
    "state::",
    "walls::",
];
const FEWEST: usize = 30;

#[test]
fn an_ordinary_user_passes_the_same_tests() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755))
        .expect("permissions");
    // The target directory may be closed to others. Copied by another process, because a writer in this one could be inherited by
    // what other tests are just starting, and a file that is open for writing cannot be executed.
    let copy = home.path().join("tests");
    let copied = Command::new("cp")
        .arg(std::env::current_exe().expect("this program"))
        .arg(&copy)
        .status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "copying this program"
    );
    let mut command = Command::new(copy);
    command
        .args(BOTH)
        .args(["--test-threads", "2"])
        .env("TMPDIR", home.path())
        .env("HOME", home.path())
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        chown(home.path(), Some(ORDINARY), Some(ORDINARY)).expect("an owner");
        // Without this the caller's groups would stay, and the user would not be an ordinary one.
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.output().expect("this program runs as another user");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let passed = text.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= FEWEST, "only {passed} tests ran:\n{text}");
}

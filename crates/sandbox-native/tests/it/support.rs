//! What tests share.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sandbox_core::{Backend, Checked, Cmd, ContainerName, ContainerSpec, ExecResult, Handle};
use sandbox_native::Native;

/// A state directory of a test's own, which the sandboxes of any user may be kept in.
pub(crate) struct State(tempfile::TempDir);

impl State {
    pub(crate) fn new() -> Self {
        State(
            tempfile::Builder::new()
                .prefix("sandbox-native-")
                .tempdir()
                .expect("a directory"),
        )
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("state")
    }

    pub(crate) async fn native(&self) -> Checked<Native> {
        Native::builder()
            .state_dir(self.path())
            .build()
            .await
            .expect("a native backend")
    }

    /// Every file and directory of sandboxes.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for part in ["sessions", "detached"] {
            for entry in std::fs::read_dir(self.path().join(part))
                .into_iter()
                .flatten()
                .flatten()
            {
                found.push(entry.path());
            }
        }
        found
    }
}

pub(crate) fn spec(name: &str) -> ContainerSpec {
    ContainerSpec::workdir(ContainerName::new(name).expect("a name"))
}

pub(crate) async fn run(native: &Checked<Native>, handle: &Handle, script: &str) -> ExecResult {
    native
        .exec(handle, Cmd::shell(script))
        .await
        .expect("a command")
        .wait()
        .await
}

pub(crate) async fn output(native: &Checked<Native>, handle: &Handle, script: &str) -> String {
    let result = run(native, handle, script).await;
    assert!(
        result.success(),
        "{script:?}: {:?} {}{}",
        result.status,
        String::from_utf8_lossy(&result.stdout),
        String::from_utf8_lossy(&result.stderr)
    );
    String::from_utf8_lossy(&result.stdout).into_owned()
}

/// Waits until something holds, at most so long.
pub(crate) fn eventually(most: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + most;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

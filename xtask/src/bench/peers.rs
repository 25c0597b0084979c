//! What others take for the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A static program that does nothing, and the ways to run it without these crates.
pub(super) struct Peers {
    directory: TempDir,
    bwrap: bool,
}

impl Peers {
    pub(super) fn new() -> Peers {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let source = directory.path().join("true.rs");
        std::fs::write(&source, "fn main() {}\n").expect("the directory is ours");
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let status = Command::new(rustc)
            .args([
                "-Copt-level=s",
                "-Cpanic=abort",
                "-Cstrip=symbols",
                "-Ctarget-feature=+crt-static",
                "-o",
            ])
            .arg(directory.path().join("true"))
            .arg(&source)
            .status()
            .expect("rustc is installed");
        assert!(
            status.success(),
            "rustc could not build the program that is measured"
        );
        let bwrap = Command::new("bwrap")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        Peers { directory, bwrap }
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn program(&self) -> PathBuf {
        self.directory.path().join("true")
    }

    pub(super) fn has_bwrap(&self) -> bool {
        self.bwrap
    }

    /// The program on the host, its output collected as an exec's is.
    pub(super) fn host(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.program());
        command.stdin(Stdio::null());
        command
    }

    /// The program in a sandbox of bubblewrap's that shows about what ours does.
    pub(super) fn bwrap(&self) -> Option<tokio::process::Command> {
        if !self.bwrap {
            return None;
        }
        let mut command = tokio::process::Command::new("bwrap");
        command
            .args([
                "--unshare-all",
                "--die-with-parent",
                "--ro-bind",
                "/usr",
                "/usr",
            ])
            .args([
                "--symlink",
                "usr/bin",
                "/bin",
                "--symlink",
                "usr/lib",
                "/lib",
            ])
            .args([
                "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/work",
            ])
            .arg("--ro-bind")
            .arg(self.directory())
            .args(["/bench", "--chdir", "/work", "/bench/true"])
            .stdin(Stdio::null());
        Some(command)
    }
}

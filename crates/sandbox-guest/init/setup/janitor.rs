//! Cleans up after a host process, however it ended.
//!
//! A host starts one janitor and tells it what the session's directory and control groups are. The janitor then only waits for its
//! input to end, which the kernel does for it when the host is gone. It holds the session's lock until everything is removed, so
//! that nobody takes the session for abandoned meanwhile.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{prepare_process, read_exact, remove};
use crate::sys;
use crate::wire::setup::{Chores, payload_length};

/// How long processes of the sandboxes may take to die. They are killed by the kernel; this is for a machine under heavy load.
const PATIENCE_MS: u64 = 60_000;
const PAUSE_MS: u64 = 10;

/// The entry point: standard input is the host's socket.
pub(crate) fn run() -> ! {
    // Nobody hears of an error here; leftovers of a janitor that failed are removed by the next session.
    let _ = prepare_process();
    // It must outlive the host, and the signals that a terminal or a shell sends to the host's group.
    let _ = sys::prctl(sys::PR_SET_PDEATHSIG, 0);
    let _ = sys::setsid();
    let mut lock = Vec::new();
    if let Some(chores) = receive(&mut lock) {
        // Tells the host that from here on its death is noticed.
        let _ = sys::write_all(0, b"k");
        let mut ignored = [0; 64];
        while !matches!(sys::read(0, &mut ignored), Ok(0) | Err(_)) {}
        clean(&chores);
    }
    sys::exit(0)
}

fn receive(lock: &mut Vec<sys::OwnedFd>) -> Option<Chores> {
    let mut head = [0; 4];
    read_exact(&mut head, lock).ok()?;
    let mut payload = vec![0; payload_length(head)?];
    read_exact(&mut payload, lock).ok()?;
    Chores::decode(&payload)
}

fn clean(chores: &Chores) {
    let deadline = sys::now_ms() + PATIENCE_MS;
    loop {
        // Control groups first: as long as processes live, the directory can fill again.
        let groups_gone = chores
            .cgroups
            .iter()
            .all(|group| remove_cgroup(Path::new(bytes_as_path(group))));
        let directory = Path::new(bytes_as_path(&chores.directory));
        if groups_gone && remove::remove_tree(directory).is_ok() {
            // Its lock lies beside it; whoever finds neither finds nothing to do.
            let _ = fs::remove_file(directory.with_extension("lock"));
            return;
        }
        if sys::now_ms() >= deadline {
            return;
        }
        sys::sleep_ms(PAUSE_MS);
    }
}

fn bytes_as_path(bytes: &[u8]) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(bytes)
}

/// Kills what is in a control group and below, and removes both; says whether nothing is left.
fn remove_cgroup(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else {
        return !group.exists();
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // Version 2 kills a whole group at once; for version 1 each process is named.
    if fs::write(group.join("cgroup.kill"), "1").is_err() {
        let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in processes
            .lines()
            .filter_map(|line| line.parse().ok())
            .filter(|pid| *pid > 1)
        {
            let _ = sys::kill(pid, sys::SIGKILL);
        }
    }
    let _ = fs::remove_dir(group);
    !group.exists()
}

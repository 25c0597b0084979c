//! Whether many open sandboxes, or many mounts on the host, slow a new one down.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use sandbox_core::{Error, Result};

use super::report::{Goal, Row};
use super::{Bench, median};

const OPEN: usize = 500;
const MOUNTS: usize = 1_000;
const CREATES: usize = 60;

pub(super) fn many(bench: &Bench) -> Result<Vec<Row>> {
    let goal = Goal::AtMost(1.5);
    let (alone, among) = bench.runtime.block_on(async {
        let alone = create_median(bench).await?;
        let mut handles = Vec::new();
        for number in 0..OPEN {
            handles.push(bench.sandbox(&format!("open-{number}")).await?);
        }
        let among = create_median(bench).await?;
        // Each of them still serves.
        for handle in &handles {
            let cmd = sandbox_core::Cmd::argv(["/bench/true"]);
            let result = bench.backend.exec(handle, cmd).await?.wait().await;
            if !result.success() {
                return Err(failed(format!(
                    "one of {OPEN} sandboxes answered {result:?}"
                )));
            }
        }
        for handle in &handles {
            bench.backend.destroy(handle).await?;
        }
        Ok((alone, among))
    })?;
    let mut rounds: Vec<(Duration, Duration)> = Vec::new();
    for _ in 0..3 {
        rounds.push((in_namespace(0)?, in_namespace(MOUNTS)?));
    }
    let (mut few, mut lots): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    Ok(vec![
        Row::ratio("create with 500 open / with none", goal, among, Some(alone)),
        Row::ratio(
            "create with 1,000 mounts / with the usual",
            goal,
            median(&mut lots),
            Some(median(&mut few)),
        ),
    ])
}

/// The median time in which a sandbox is made; it is removed again, outside the time.
pub(super) async fn create_median(bench: &Bench) -> Result<Duration> {
    let mut times = Vec::new();
    for round in 0..CREATES + 5 {
        let spec = bench.spec("median")?;
        let before = Instant::now();
        let handle = bench.backend.create(spec).await?;
        let time = before.elapsed();
        bench.backend.destroy(&handle).await?;
        if round >= 5 {
            times.push(time);
        }
    }
    Ok(median(&mut times))
}

/// [`create_median`] of another process, in a mount namespace of its own with that many mounts more.
fn in_namespace(mounts: usize) -> Result<Duration> {
    let place = tempfile::tempdir().map_err(|error| Error::io("making a directory", error))?;
    let script = "set -e; i=0; while [ $i -lt \"$1\" ]; do mkdir \"$2/$i\"; mount -t tmpfs none \"$2/$i\"; i=$((i+1)); done; exec \"$3\" bench --create-median";
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let output = command
        .args([
            "--mount",
            "--",
            "sh",
            "-c",
            script,
            "sh",
            &mounts.to_string(),
        ])
        .arg(place.path())
        .arg(std::env::current_exe().map_err(|error| Error::io("finding this program", error))?)
        .output()
        .map_err(|error| Error::io("running unshare", error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(nanoseconds) if output.status.success() => Ok(Duration::from_nanos(nanoseconds)),
        _ => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn failed(what: String) -> Error {
    Error::io("measuring many sandboxes", io::Error::other(what))
}

//! What memory the host process and its sandboxes use.

use std::collections::HashSet;
use std::fs;

use sandbox_core::{Error, Result};

use super::Bench;
use super::report::{Goal, Row};

const SANDBOXES: usize = 64;

/// The memory of an idle sandbox: its processes' share and the growth of the host process, without what the kernel keeps.
pub(super) fn idle(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime.block_on(async {
        // One first, for what is paid once per host process.
        let first = bench.sandbox("idle-first").await?;
        let before = total_share()?;
        let mut handles = vec![first];
        for number in 0..SANDBOXES {
            handles.push(bench.sandbox(&format!("idle-{number}")).await?);
        }
        let after = total_share()?;
        for handle in &handles {
            bench.backend.destroy(handle).await?;
        }
        Ok(vec![Row {
            name: "memory of an idle sandbox",
            goal: Goal::AtMost(0.5),
            unit: "MiB",
            figure: Some((after - before) / SANDBOXES as f64),
            detail: format!("proportional set size of all processes, mean of {SANDBOXES}"),
        }])
    })
}

/// The resident set of this process, in MiB.
pub(super) fn resident() -> Result<f64> {
    field("/proc/self/status", "VmRSS:")
}

/// The largest resident set since [`reset_peak`], in MiB.
pub(super) fn peak_resident() -> Result<f64> {
    field("/proc/self/status", "VmHWM:")
}

pub(super) fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5")
        .map_err(|error| Error::io("resetting the peak of memory", error))
}

/// The proportional set size of this process and of all that descend from it, in MiB.
fn total_share() -> Result<f64> {
    let mut total = 0.0;
    for pid in family() {
        match field(&format!("/proc/{pid}/smaps_rollup"), "Pss:") {
            Ok(share) => total += share,
            // A helper that has just ended uses nothing.
            Err(_) if !fs::exists(format!("/proc/{pid}")).unwrap_or(false) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

fn family() -> HashSet<u32> {
    let mut family = HashSet::from([std::process::id()]);
    let parents: Vec<(u32, u32)> = processes()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    loop {
        let known = family.len();
        for (pid, parent) in &parents {
            if family.contains(parent) {
                family.insert(*pid);
            }
        }
        if family.len() == known {
            return family;
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

/// A field of a file of `/proc` that counts kB, in MiB.
fn field(path: &str, name: &str) -> Result<f64> {
    let text =
        fs::read_to_string(path).map_err(|error| Error::io(format!("reading {path}"), error))?;
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok())
        .map(|kilobytes| kilobytes / 1024.0)
        .ok_or_else(|| {
            Error::io(
                format!("reading {path}"),
                std::io::Error::other(format!("no {name}")),
            )
        })
}

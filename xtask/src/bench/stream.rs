//! How fast output flows, and what it costs in memory.

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sandbox_core::{Cmd, Error, Result};
use tokio::io::AsyncReadExt;

use super::memory::{peak_resident, reset_peak, resident};
use super::report::{Goal, Row};
use super::{Bench, middle};

const BYTES: u64 = 2 << 30;
const ROUNDS: usize = 3;
const SOURCE: [&str; 4] = ["dd", "if=/dev/zero", "bs=64k", "count=32768"];

/// Two gigabytes through an execution, against a pipe of tokio's.
pub(super) fn stream(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime.block_on(async {
        let handle = bench.sandbox("stream").await?;
        let (mut ours, mut pipe, mut growth) = (Vec::new(), Vec::new(), 0.0_f64);
        for _ in 0..ROUNDS {
            let before = resident()?;
            reset_peak()?;
            let started = Instant::now();
            let mut execution = bench.backend.exec(&handle, Cmd::argv(SOURCE)).await?;
            let mut received = 0;
            while let Some(chunk) = execution.next_chunk().await {
                if chunk.stream == sandbox_core::OutputStream::Stdout {
                    received += chunk.data.len() as u64;
                }
            }
            ours.push(rate(received, started)?);
            growth = growth.max(peak_resident()? - before);
            pipe.push(raw_pipe().await?);
        }
        let asleep = sleeping_reader(bench, &handle).await?;
        bench.backend.destroy(&handle).await?;
        Ok(vec![
            Row::rates(
                "2 GiB of output / a raw pipe of tokio's",
                Goal::AtLeast(0.8),
                "MB/s",
                middle(&mut ours),
                Some(middle(&mut pipe)),
            ),
            grown("host memory while 2 GiB stream", growth),
            grown("host memory while the reader sleeps", asleep),
        ])
    })
}

fn grown(name: &'static str, mebibytes: f64) -> Row {
    Row {
        name,
        goal: Goal::AtMost(32.0),
        unit: "MiB",
        figure: Some(mebibytes),
        detail: "growth of the resident set, at its peak".into(),
    }
}

async fn raw_pipe() -> Result<f64> {
    let started = Instant::now();
    let mut child = tokio::process::Command::new(SOURCE[0])
        .args(&SOURCE[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Error::io("starting dd", error))?;
    let mut stdout = child.stdout.take().expect("it is piped");
    let mut buffer = vec![0; 64 * 1024];
    let mut received = 0;
    loop {
        match stdout.read(&mut buffer).await {
            Ok(0) => break,
            Ok(length) => received += length as u64,
            Err(error) => return Err(Error::io("reading a pipe", error)),
        }
    }
    let rate = rate(received, started)?;
    child
        .wait()
        .await
        .map_err(|error| Error::io("waiting for dd", error))?;
    Ok(rate)
}

/// Megabytes a second.
fn rate(received: u64, started: Instant) -> Result<f64> {
    if received == BYTES {
        Ok(received as f64 / 1e6 / started.elapsed().as_secs_f64())
    } else {
        let short = io::Error::other(format!("{received} bytes of {BYTES}"));
        Err(Error::io("streaming", short))
    }
}

/// The growth, in MiB, while a command writes without end and nobody reads.
async fn sleeping_reader(bench: &Bench, handle: &sandbox_core::Handle) -> Result<f64> {
    let before = resident()?;
    reset_peak()?;
    let mut execution = bench
        .backend
        .exec(handle, Cmd::argv(["cat", "/dev/zero"]))
        .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let growth = peak_resident()? - before;
    execution.kill();
    execution.wait().await;
    Ok(growth)
}

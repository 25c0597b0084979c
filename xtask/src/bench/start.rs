//! How long it takes to start a command, and to make and remove a sandbox.

use std::io;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{Backend, Cmd, Error, Handle, Result};

use super::report::{Goal, Row, time};
use super::{Bench, median, middle};

const EXEC_ROUNDS: usize = 2_000;
const CREATE_ROUNDS: usize = 150;
const PARALLEL_EXECS: usize = 8;
const PARALLEL_CREATES: usize = 64;
const PARALLEL_ROUNDS: usize = 7;

/// A static program in a live sandbox, against the same program on the host: from the thread that blocks on a runtime of several
/// threads, where each wake-up of this side crosses to another thread …
pub(super) fn exec(bench: &Bench) -> Result<Vec<Row>> {
    let (ours, host, bare) = bench
        .runtime
        .block_on(exec_rounds(bench, &*bench.backend))?;
    Ok(vec![
        Row::ratio(
            "exec of a static true / tokio output()",
            Goal::AtMost(1.0),
            ours,
            Some(host),
        ),
        Row::ratio(
            "  the same / tokio status(), no pipes",
            Goal::None,
            ours,
            Some(bare),
        ),
    ])
}

/// … and on a runtime of one thread.
pub(super) fn exec_one_thread(bench: &Bench) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("starting a runtime", error))?;
    let (ours, host, _) = runtime.block_on(async {
        let backend = bench.another_backend().await?;
        exec_rounds(bench, &backend).await
    })?;
    Ok(vec![Row::ratio(
        "  the same on a runtime of one thread",
        Goal::AtMost(1.0),
        ours,
        Some(host),
    )])
}

/// Medians of our exec, of the host's with pipes, and of the host's without.
async fn exec_rounds(
    bench: &Bench,
    backend: &dyn Backend,
) -> Result<(Duration, Duration, Duration)> {
    let handle = backend.create(bench.spec("exec")?).await?;
    let (mut ours, mut host, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    // The first rounds fill caches on both sides.
    for round in 0..EXEC_ROUNDS + 100 {
        let times = [
            timed_exec(backend, &handle).await?,
            timed_host(bench).await?,
            timed_bare(bench).await?,
        ];
        if round >= 100 {
            ours.push(times[0]);
            host.push(times[1]);
            bare.push(times[2]);
        }
    }
    backend.destroy(&handle).await?;
    Ok((median(&mut ours), median(&mut host), median(&mut bare)))
}

/// Many commands at once in one sandbox, against as many on the host.
pub(super) fn exec_parallel(bench: &Bench) -> Result<Vec<Row>> {
    const EACH: usize = 250;
    bench.runtime.block_on(async {
        let handle = bench.sandbox("exec-parallel").await?;
        let (mut ours, mut host) = (Vec::new(), Vec::new());
        for _ in 0..PARALLEL_ROUNDS {
            let before = Instant::now();
            let tasks = (0..PARALLEL_EXECS).map(|_| {
                let (backend, handle) = (Arc::clone(&bench.backend), handle.clone());
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        timed_exec(&*backend, &handle).await?;
                    }
                    Ok(())
                })
            });
            all(tasks.collect()).await?;
            ours.push(rate(PARALLEL_EXECS * EACH, before));

            let before = Instant::now();
            let tasks = (0..PARALLEL_EXECS).map(|_| {
                let program = bench.peers.program();
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        let mut command = tokio::process::Command::new(&program);
                        let output = command.stdin(std::process::Stdio::null()).output().await;
                        succeeded(output)?;
                    }
                    Ok(())
                })
            });
            all(tasks.collect()).await?;
            host.push(rate(PARALLEL_EXECS * EACH, before));
        }
        bench.backend.destroy(&handle).await?;
        Ok(vec![Row::rates(
            "execs, 8 at once / the host's rate",
            Goal::AtLeast(1.0),
            "/s",
            middle(&mut ours),
            Some(middle(&mut host)),
        )])
    })
}

/// The same exec from a small and from a large host process, in turns.
pub(super) fn exec_large_host(bench: &Bench) -> Result<Vec<Row>> {
    const TURNS: usize = 4;
    bench.runtime.block_on(async {
        let handle = bench.sandbox("exec-large-host").await?;
        let gigabytes = memory_to_take();
        let (mut small, mut large, mut host) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            small.extend(execs(bench, &handle, 300).await?);
            // Written to, or the kernel would not give it.
            let memory = vec![1_u8; gigabytes << 30];
            large.extend(execs(bench, &handle, 300).await?);
            for _ in 0..20 {
                host.push(timed_host(bench).await?);
            }
            let touched = std::hint::black_box(&memory).iter().step_by(4096);
            assert!(
                touched.copied().all(|byte| byte == 1),
                "the memory was kept"
            );
        }
        bench.backend.destroy(&handle).await?;
        let (small, large) = (median(&mut small), median(&mut large));
        let mut row = Row::ratio(
            "exec, large host process / small one",
            Goal::AtMost(1.2),
            large,
            Some(small),
        );
        row.detail = format!(
            "{} with {gigabytes} GiB, {} without; tokio output() with it {}",
            time(large),
            time(small),
            time(median(&mut host))
        );
        Ok(vec![row])
    })
}

/// Four gigabytes, or half of what the machine has left.
fn memory_to_take() -> usize {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok())
        .unwrap_or(0);
    ((available >> 20) / 2).clamp(1, 4)
}

async fn execs(bench: &Bench, handle: &Handle, rounds: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(timed_exec(&*bench.backend, handle).await?);
    }
    Ok(times)
}

/// A sandbox made, used once and removed, against one run of bubblewrap.
pub(super) fn create(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime.block_on(async {
        let (mut ours, mut bwrap) = (Vec::new(), Vec::new());
        for round in 0..CREATE_ROUNDS + 10 {
            let time = timed_create(bench, "create").await?;
            let peer = timed_bwrap(bench).await?;
            if round >= 10 {
                ours.push(time);
                bwrap.extend(peer);
            }
        }
        let peer = (!bwrap.is_empty()).then(|| median(&mut bwrap));
        Ok(vec![Row::ratio(
            "create, exec, destroy / bwrap --unshare-all",
            Goal::AtMost(0.8),
            median(&mut ours),
            peer,
        )])
    })
}

/// Many sandboxes at once, against as many runs of bubblewrap.
pub(super) fn create_parallel(bench: &Bench) -> Result<Vec<Row>> {
    bench.runtime.block_on(async {
        let (mut ours, mut bwrap) = (Vec::new(), Vec::new());
        for round in 0..PARALLEL_ROUNDS {
            let mut tasks = Vec::new();
            let before = Instant::now();
            for task in 0..PARALLEL_CREATES {
                let spec = bench.spec(&format!("parallel-{round}-{task}"))?;
                let backend = Arc::clone(&bench.backend);
                tasks.push(tokio::spawn(async move {
                    let handle = backend.create(spec).await?;
                    timed_exec(&*backend, &handle).await?;
                    backend.destroy(&handle).await
                }));
            }
            all(tasks).await?;
            ours.push(rate(PARALLEL_CREATES, before));

            let mut tasks = Vec::new();
            let before = Instant::now();
            for _ in 0..PARALLEL_CREATES {
                if let Some(mut command) = bench.peers.bwrap() {
                    tasks.push(tokio::spawn(
                        async move { succeeded(command.output().await) },
                    ));
                }
            }
            if !tasks.is_empty() {
                all(tasks).await?;
                bwrap.push(rate(PARALLEL_CREATES, before));
            }
        }
        let peer = (!bwrap.is_empty()).then(|| middle(&mut bwrap));
        Ok(vec![Row::rates(
            "sandboxes, 64 at once / bwrap's rate",
            Goal::AtLeast(1.5),
            "/s",
            middle(&mut ours),
            peer,
        )])
    })
}

async fn timed_create(bench: &Bench, name: &str) -> Result<Duration> {
    let spec = bench.spec(name)?;
    let before = Instant::now();
    let handle = bench.backend.create(spec).await?;
    timed_exec(&*bench.backend, &handle).await?;
    bench.backend.destroy(&handle).await?;
    Ok(before.elapsed())
}

async fn timed_exec(backend: &dyn Backend, handle: &Handle) -> Result<Duration> {
    let before = Instant::now();
    let result = backend
        .exec(handle, Cmd::argv(["/bench/true"]))
        .await?
        .wait()
        .await;
    let time = before.elapsed();
    if result.success() {
        Ok(time)
    } else {
        Err(failed(&format!("{result:?}")))
    }
}

async fn timed_host(bench: &Bench) -> Result<Duration> {
    let before = Instant::now();
    let output = bench.peers.host().output().await;
    let time = before.elapsed();
    succeeded(output).map(|()| time)
}

async fn timed_bare(bench: &Bench) -> Result<Duration> {
    let before = Instant::now();
    let status = bench.peers.host().status().await;
    let time = before.elapsed();
    match status {
        Ok(status) if status.success() => Ok(time),
        other => Err(failed(&format!("{other:?}"))),
    }
}

async fn timed_bwrap(bench: &Bench) -> Result<Option<Duration>> {
    let Some(mut command) = bench.peers.bwrap() else {
        return Ok(None);
    };
    let before = Instant::now();
    let output = command.output().await;
    let time = before.elapsed();
    succeeded(output).map(|()| Some(time))
}

fn succeeded(output: io::Result<Output>) -> Result<()> {
    match output {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(failed(&format!("{other:?}"))),
    }
}

fn failed(what: &str) -> Error {
    Error::io(
        "running the program that is measured",
        io::Error::other(what.to_owned()),
    )
}

fn rate(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

async fn all(tasks: Vec<tokio::task::JoinHandle<Result<()>>>) -> Result<()> {
    for task in tasks {
        task.await.map_err(|error| failed(&error.to_string()))??;
    }
    Ok(())
}

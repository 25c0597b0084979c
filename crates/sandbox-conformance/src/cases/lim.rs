//! LIM-1 and EXEC-18: memory, cpu, processes and disk.

use std::time::{Duration, Instant};

use sandbox_core::{Cmd, EndedBy, ErrorKind, Limits};

use crate::case::{Done, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, eventually, marked, marker, noise, refused_as, within};
use crate::needs::{Ability, Need};

cases! { "lim":
    process_over_the_memory_limit_is_told ["EXEC-18", "LIM-1"] [Need::Has(Ability::LimitMemory)] 120;
    memory_below_the_limit_can_be_used ["LIM-1"] [Need::Has(Ability::LimitMemory)];
    memory_limit_counts_all_processes ["LIM-1"] [Need::Has(Ability::LimitMemory)] 120;
    memory_limit_does_not_disturb_another_sandbox ["LIM-1"] [Need::Has(Ability::LimitMemory)] 120;
    own_kill_is_no_lack_of_memory ["EXEC-18"] [];
    cpu_limit_slows_a_busy_loop ["LIM-1"] [Need::Has(Ability::LimitCpu)];
    process_limit_stops_forks ["LIM-1"] [Need::Has(Ability::LimitPids)];
    process_limit_does_not_disturb_another_sandbox ["LIM-1"] [Need::Has(Ability::LimitPids)];
    disk_limit_stops_writes ["LIM-1"] [Need::Has(Ability::LimitDisk)];
    disk_limit_stops_files_of_the_host_side ["LIM-1", "FILE-4"] [Need::Has(Ability::LimitDisk)];
    wall_time_is_limited ["LIM-1", "EXEC-7"] [];
    usage_is_reported ["LIM-1"] [Need::Has(Ability::OwnProcesses)];
}

async fn limited(cx: &Context, limits: Limits) -> Done<Place> {
    let mut spec = cx.spec()?;
    spec.limits = limits;
    cx.place_of(spec).await
}

/// Reads a line that never ends, into memory.
fn hog() -> Cmd {
    Cmd::argv(["tail", "/dev/zero"]).timeout(Duration::from_secs(60))
}

async fn process_over_the_memory_limit_is_told(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            memory: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await?;
    let result = place.run(hog()).await?;
    ensure_eq!(result.ended_by, EndedBy::OutOfMemory, "end");
    ensure_eq!(result.code(), Some(137), "code");
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn memory_below_the_limit_can_be_used(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            memory: Some(256 << 20),
            ..Limits::default()
        },
    )
    .await?;
    let result = place
        .sh("head -c 40000000 /dev/zero | tail -c 1 | wc -c")
        .await?;
    ensure_eq!(
        (&result.stdout[..], result.ended_by),
        (&b"1\n"[..], EndedBy::Exited),
        "40 MB of 256 MiB"
    );
    Ok(())
}

async fn memory_limit_counts_all_processes(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            memory: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await?;
    // Each of four processes holds 30 MB, far below the limit; together they are above it.
    let script = "for i in 1 2 3 4; do (head -c 30000000 /dev/zero; sleep 3) | tail >/dev/null & all=\"$all $!\"; done; \
        for one in $all; do wait $one || echo killed; done";
    let result = place
        .run(Cmd::shell(script).timeout(Duration::from_secs(60)))
        .await?;
    let told = result.ended_by == EndedBy::OutOfMemory || result.stdout.starts_with(b"killed\n");
    ensure!(
        told,
        "120 MB were held under a limit of 64 MiB: {}",
        short(&result)
    );
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn memory_limit_does_not_disturb_another_sandbox(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            memory: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await?;
    let other = limited(
        &cx,
        Limits {
            memory: Some(64 << 20),
            ..Limits::default()
        },
    )
    .await?;
    let marker = marker();
    let mut running = other.start(Cmd::argv(["sleep", &marker])).await?;
    other.appears(&marker, 1).await?;
    let result = place.run(hog()).await?;
    ensure_eq!(result.ended_by, EndedBy::OutOfMemory, "end");
    ensure_eq!(
        other.count(&marker).await?,
        1,
        "processes of the other sandbox"
    );
    running.kill();
    running.wait().await;
    Ok(())
}

async fn own_kill_is_no_lack_of_memory(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("kill -9 $$").await?;
    ensure_eq!(
        (result.code(), result.ended_by),
        (Some(137), EndedBy::Exited),
        "end by its own SIGKILL"
    );
    Ok(())
}

async fn cpu_limit_slows_a_busy_loop(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            cpus: Some(0.2),
            ..Limits::default()
        },
    )
    .await?;
    let started = Instant::now();
    let cmd = Cmd::shell("while :; do :; done")
        .timeout(Duration::from_secs(3))
        .grace(Duration::ZERO);
    let result = place.run(cmd).await?;
    let wall = started.elapsed();
    let used =
        result.usage.cpu_user.unwrap_or_default() + result.usage.cpu_system.unwrap_or_default();
    ensure!(used > Duration::ZERO, "the cpu time is not reported");
    ensure!(
        used < wall.mul_f64(0.4),
        "{used:?} of cpu time in {wall:?}, with 0.2 cpus"
    );
    Ok(())
}

async fn process_limit_stops_forks(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            pids: Some(32),
            ..Limits::default()
        },
    )
    .await?;
    // Whether the shell gives up at the first fork that fails or tries again, it does not get to the end in time.
    let script = "i=0; while [ $i -lt 100 ]; do sleep 3 & i=$((i + 1)); done; echo all";
    let cmd = Cmd::argv(["sh", "-c", script]).timeout(Duration::from_secs(2));
    let result = within(Duration::from_secs(10), "the result", place.run(cmd)).await??;
    ensure!(
        !result.stdout.starts_with(b"all") && !result.stderr.is_empty(),
        "100 processes were started, with a limit of 32: {}",
        short(&result)
    );
    eventually!(
        Duration::from_secs(15),
        "a command to work when the processes have ended",
        Ok(place
            .sh("echo on")
            .await
            .is_ok_and(|result| result.success()))
    )
}

async fn process_limit_does_not_disturb_another_sandbox(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            pids: Some(32),
            ..Limits::default()
        },
    )
    .await?;
    let other = limited(
        &cx,
        Limits {
            pids: Some(64),
            ..Limits::default()
        },
    )
    .await?;
    let (full, free) = (marker(), marker());
    let script =
        r#"i=0; while [ $i -lt 20 ]; do sleep "$1" & i=$((i + 1)); done; echo started; wait"#;
    let mut first = place.start(marked(script, &full)).await?;
    let mut second = other.start(marked(script, &free)).await?;
    place.appears(&full, 20).await?;
    other.appears(&free, 20).await?;
    first.kill();
    second.kill();
    first.wait().await;
    second.wait().await;
    Ok(())
}

async fn disk_limit_stops_writes(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            disk: Some(8 << 20),
            ..Limits::default()
        },
    )
    .await?;
    let result = place.sh("head -c 33554432 /dev/zero >big").await?;
    ensure!(
        !result.success(),
        "32 MiB were written, with a limit of 8 MiB"
    );
    let size = place.stat("big").await?.size;
    ensure!(
        size <= 8 << 20,
        "the file has {size} bytes, with a limit of 8 MiB"
    );
    place.out("rm big; echo x >small; cat small").await?;
    place.destroy().await?;
    Ok(())
}

async fn disk_limit_stops_files_of_the_host_side(cx: Context) -> Done {
    let place = limited(
        &cx,
        Limits {
            disk: Some(8 << 20),
            ..Limits::default()
        },
    )
    .await?;
    place.write("file", "old").await?;
    let kinds = [ErrorKind::TooLarge, ErrorKind::Io];
    refused_as(
        place.write("file", noise(16 << 20)).await,
        &kinds,
        "16 MiB under a limit of 8 MiB",
    )?;
    ensure_eq!(
        place.read("file").await?,
        "old",
        "the file after a failed write"
    );
    ensure_eq!(place.list(".").await?.len(), 1, "entries of the workdir");
    place.write("other", noise(1 << 20)).await?;
    Ok(())
}

async fn wall_time_is_limited(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::argv(["sleep", "300"]).timeout(Duration::from_millis(300));
    let result = within(Duration::from_secs(5), "the result", place.run(cmd)).await??;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure!(
        result.duration >= Duration::from_millis(290),
        "it took only {:?}",
        result.duration
    );
    Ok(())
}

async fn usage_is_reported(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
    let result = place.sh(script).await?;
    let usage = result.usage;
    ensure!(
        usage.cpu_user.is_some_and(|time| time > Duration::ZERO),
        "the cpu time is {:?}",
        usage.cpu_user
    );
    ensure!(
        usage.peak_memory.is_some_and(|bytes| bytes > 100_000),
        "the peak memory is {:?}",
        usage.peak_memory
    );
    Ok(())
}

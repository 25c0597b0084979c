//! EXEC-14: limits on output.

use std::time::Duration;

use sandbox_core::{Cmd, EndedBy, OutputLimits, Overflow};

use crate::case::{Done, cases, ensure, ensure_eq, short};
use crate::context::{Context, within};

cases! { "limits":
    exactly_the_limit_is_no_overflow ["EXEC-14"] [];
    one_byte_more_is_truncated ["EXEC-14", "EXEC-5"] [];
    truncation_does_not_end_the_command ["EXEC-14"] [];
    overflow_of_stdout_kills_if_asked ["EXEC-14", "EXEC-7"] [];
    overflow_of_stderr_kills_if_asked ["EXEC-14", "EXEC-7"] [];
    exactly_the_limit_does_not_kill ["EXEC-14"] [];
    endless_output_is_ended ["EXEC-14", "LIM-1"] [];
    endless_output_without_kill_times_out ["EXEC-14", "EXEC-7"] [];
    limit_of_zero_keeps_nothing ["EXEC-14"] [];
    both_streams_carry_10_mib_at_once ["EXEC-14"] [];
    both_streams_interleave_without_a_reader ["EXEC-14", "EXEC-4"] [];
}

fn limited(script: &str, stdout: u64, stderr: u64, overflow: Overflow) -> Cmd {
    Cmd::shell(script).limits(OutputLimits::new(stdout, stderr, overflow))
}

async fn exactly_the_limit_is_no_overflow(cx: Context) -> Done {
    let place = cx.place().await?;
    for limit in [1, 1000, 65_536, 65_537] {
        let script = format!("head -c {limit} /dev/zero; head -c {limit} /dev/zero >&2");
        let result = place
            .run(limited(&script, limit, limit, Overflow::Truncate))
            .await?;
        ensure_eq!(
            (result.stdout.len() as u64, result.stderr.len() as u64),
            (limit, limit),
            "kept bytes"
        );
        ensure!(
            !result.stdout_truncated && !result.stderr_truncated,
            "{limit} of {limit} bytes count as truncated"
        );
    }
    Ok(())
}

async fn one_byte_more_is_truncated(cx: Context) -> Done {
    let place = cx.place().await?;
    for limit in [1, 1000, 65_536] {
        let script = format!(
            "head -c {0} /dev/zero; head -c {0} /dev/zero >&2; exit 3",
            limit + 1
        );
        let result = place
            .run(limited(&script, limit, limit, Overflow::Truncate))
            .await?;
        ensure_eq!(
            (result.stdout.len() as u64, result.stderr.len() as u64),
            (limit, limit),
            "kept bytes"
        );
        ensure!(
            result.stdout_truncated && result.stderr_truncated,
            "one byte over {limit} does not count as truncated"
        );
        ensure_eq!(
            (result.code(), result.ended_by),
            (Some(3), EndedBy::Exited),
            "end"
        );
    }
    let result = place
        .run(limited("printf 1234567890", 4, 4, Overflow::Truncate))
        .await?;
    ensure_eq!(&result.stdout[..], b"1234", "the first bytes");
    Ok(())
}

async fn truncation_does_not_end_the_command(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "head -c 500000 /dev/zero; touch finished";
    let mut execution = place
        .start(limited(script, 1000, 1000, Overflow::Truncate))
        .await?;
    let mut count = 0;
    while let Some(chunk) = execution.next_chunk().await {
        count += chunk.data.len();
    }
    ensure_eq!(count, 500_000, "bytes in all chunks");
    ensure_eq!(execution.wait().await.stdout.len(), 1000, "kept bytes");
    place.stat("finished").await?;
    Ok(())
}

async fn overflow_of_stdout_kills_if_asked(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "echo err >&2; head -c 1001 /dev/zero; sleep 300";
    let run = place.run(limited(script, 1000, 1000, Overflow::Kill));
    let result = within(Duration::from_secs(10), "the result", run).await??;
    ensure_eq!(result.ended_by, EndedBy::OverflowStdout, "end");
    ensure_eq!(result.stdout.len(), 1000, "kept bytes");
    ensure!(
        result.stdout_truncated,
        "an overflow does not count as truncated"
    );
    ensure_eq!(&result.stderr[..], b"err\n", "the other stream");
    ensure!(
        !result.success(),
        "an overflow counts as success: {}",
        short(&result.status)
    );
    Ok(())
}

async fn overflow_of_stderr_kills_if_asked(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "echo out; head -c 1001 /dev/zero >&2; sleep 300";
    let run = place.run(limited(script, 1000, 1000, Overflow::Kill));
    let result = within(Duration::from_secs(10), "the result", run).await??;
    ensure_eq!(result.ended_by, EndedBy::OverflowStderr, "end");
    ensure_eq!(result.stderr.len(), 1000, "kept bytes");
    ensure_eq!(&result.stdout[..], b"out\n", "the other stream");
    Ok(())
}

async fn exactly_the_limit_does_not_kill(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "head -c 1000 /dev/zero; sleep 0.3; exit 4";
    let result = place
        .run(limited(script, 1000, 1000, Overflow::Kill))
        .await?;
    ensure_eq!(
        (result.code(), result.ended_by),
        (Some(4), EndedBy::Exited),
        "end"
    );
    Ok(())
}

async fn endless_output_is_ended(cx: Context) -> Done {
    let place = cx.place().await?;
    for program in ["yes", "cat /dev/zero", "exec cat /dev/zero >&2"] {
        let run = place.run(limited(program, 1 << 20, 1 << 20, Overflow::Kill));
        let result = within(Duration::from_secs(10), "the result", run).await??;
        let stderr = program.ends_with(">&2");
        let (end, kept) = if stderr {
            (EndedBy::OverflowStderr, result.stderr.len())
        } else {
            (EndedBy::OverflowStdout, result.stdout.len())
        };
        ensure_eq!(
            (result.ended_by, kept),
            (end, 1 << 20),
            "end and kept bytes of {program}"
        );
    }
    Ok(())
}

async fn endless_output_without_kill_times_out(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd =
        limited("cat /dev/zero", 1000, 1000, Overflow::Truncate).timeout(Duration::from_secs(1));
    let result = within(Duration::from_secs(10), "the result", place.run(cmd)).await??;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure_eq!(
        (result.stdout.len(), result.stdout_truncated),
        (1000, true),
        "kept bytes"
    );
    Ok(())
}

async fn limit_of_zero_keeps_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.run(limited("exit 0", 0, 0, Overflow::Kill)).await?;
    ensure_eq!(
        (result.code(), result.ended_by),
        (Some(0), EndedBy::Exited),
        "end without output"
    );
    let result = place
        .run(limited("echo x", 0, 0, Overflow::Truncate))
        .await?;
    ensure_eq!(
        (result.stdout.len(), result.stdout_truncated),
        (0, true),
        "kept bytes"
    );
    Ok(())
}

async fn both_streams_carry_10_mib_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "head -c 10485760 /dev/zero & head -c 10485760 /dev/zero >&2; wait";
    let run = place.run(limited(script, 16 << 20, 16 << 20, Overflow::Kill));
    let result = within(Duration::from_secs(30), "the result", run).await??;
    ensure_eq!(
        (result.stdout.len(), result.stderr.len()),
        (10 << 20, 10 << 20),
        "kept bytes"
    );
    ensure!(result.success(), "not a success: {}", short(&result.status));
    Ok(())
}

/// One stream after the other, each longer than any pipe: who reads only one of them never comes to the end.
async fn both_streams_interleave_without_a_reader(cx: Context) -> Done {
    let place = cx.place().await?;
    let script =
        "for i in 1 2 3 4 5; do head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; done";
    let mut execution = place
        .start(limited(script, 16 << 20, 16 << 20, Overflow::Kill))
        .await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let result = within(Duration::from_secs(20), "the result", execution.wait()).await?;
    ensure_eq!(
        (result.stdout.len(), result.stderr.len()),
        (1_500_000, 1_500_000),
        "kept bytes"
    );
    Ok(())
}

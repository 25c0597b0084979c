//! EXEC-12: when a command is over that left processes behind.

use std::time::{Duration, Instant};

use sandbox_core::{Cmd, EndedBy};

use crate::case::{Done, cases, ensure, ensure_eq};
use crate::context::{Context, eventually, marked, marker, within};

cases! { "drain":
    background_process_does_not_hold_the_result ["EXEC-12"] [];
    background_process_lives_on ["EXEC-12"] [];
    background_process_with_closed_output_is_told ["EXEC-12"] [];
    ended_background_process_is_not_told ["EXEC-12"] [];
    line_within_the_idle_window_is_kept ["EXEC-12"] [];
    line_after_the_idle_window_is_discarded ["EXEC-12"] [];
    endless_background_output_ends_after_two_seconds ["EXEC-12", "EXEC-4"] [];
    late_background_output_gets_no_broken_pipe ["EXEC-12"] [];
    late_background_output_is_not_held_back ["EXEC-12"] [];
    output_before_the_exit_is_kept_whatever_follows ["EXEC-12", "EXEC-4"] [];
}

async fn background_process_does_not_hold_the_result(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let started = Instant::now();
    let result = place
        .run(marked(r#"sleep "$1" & echo hi"#, &marker))
        .await?;
    let took = started.elapsed();
    ensure!(
        took < Duration::from_secs(1),
        "a command with a background process took {took:?}"
    );
    ensure_eq!(&result.stdout[..], b"hi\n", "output");
    ensure_eq!(
        (result.code(), result.ended_by),
        (Some(0), EndedBy::Exited),
        "end"
    );
    ensure!(result.background, "the background process is not told");
    Ok(())
}

async fn background_process_lives_on(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    place
        .run(marked(r#"sleep "$1" & echo hi"#, &marker))
        .await?;
    ensure_eq!(
        place.count(&marker).await?,
        1,
        "background processes right after the result"
    );
    tokio::time::sleep(Duration::from_millis(2500)).await;
    ensure_eq!(place.count(&marker).await?, 1, "background processes later");
    place.destroy().await?;
    Ok(())
}

async fn background_process_with_closed_output_is_told(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let result = place
        .run(marked(r#"sleep "$1" >/dev/null 2>&1 & echo hi"#, &marker))
        .await?;
    ensure_eq!(&result.stdout[..], b"hi\n", "output");
    ensure!(result.background, "the background process is not told");
    ensure_eq!(place.count(&marker).await?, 1, "background processes");
    Ok(())
}

async fn ended_background_process_is_not_told(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("sleep 0.1 & wait; echo hi").await?;
    ensure_eq!(&result.stdout[..], b"hi\n", "output");
    ensure!(!result.background, "a process that has ended is told");
    Ok(())
}

async fn line_within_the_idle_window_is_kept(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("(sleep 0.02; echo late) & echo hi").await?;
    ensure_eq!(
        &result.stdout[..],
        b"hi\nlate\n",
        "output with a line 20 ms after the exit"
    );
    Ok(())
}

async fn line_after_the_idle_window_is_discarded(cx: Context) -> Done {
    let place = cx.place().await?;
    let started = Instant::now();
    let result = place.sh("(sleep 2; echo late) & echo hi").await?;
    ensure_eq!(&result.stdout[..], b"hi\n", "output");
    let took = started.elapsed();
    ensure!(
        took < Duration::from_millis(1500),
        "the result took {took:?}"
    );
    ensure!(result.background, "the background process is not told");
    Ok(())
}

async fn endless_background_output_ends_after_two_seconds(cx: Context) -> Done {
    let place = cx.place().await?;
    let started = Instant::now();
    let cmd = Cmd::shell("(while :; do echo x; sleep 0.02; done) & echo hi");
    let result = within(Duration::from_secs(10), "the result", place.run(cmd)).await??;
    let took = started.elapsed();
    ensure!(
        took < Duration::from_millis(3500),
        "the result took {took:?}"
    );
    ensure!(
        result.stdout.starts_with(b"hi\n") || result.stdout.starts_with(b"x\n"),
        "the output is lost"
    );
    ensure!(result.background, "the background process is not told");
    ensure_eq!(result.ended_by, EndedBy::Exited, "end");
    Ok(())
}

async fn late_background_output_gets_no_broken_pipe(cx: Context) -> Done {
    let place = cx.place().await?;
    let script =
        "(for i in 1 2 3 4 5; do sleep 0.3; echo x; echo y >&2; done; touch survived) & echo hi";
    let result = place.sh(script).await?;
    ensure_eq!(&result.stdout[..], b"hi\n", "output");
    eventually!(
        Duration::from_secs(15),
        "the background process to survive its late output",
        Ok(place.stat("survived").await.is_ok()),
    )
}

async fn late_background_output_is_not_held_back(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "(sleep 0.4; head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2; touch written) & echo hi";
    place.sh(script).await?;
    eventually!(
        Duration::from_secs(15),
        "late output of 10 MB to be taken",
        Ok(place.stat("written").await.is_ok()),
    )
}

async fn output_before_the_exit_is_kept_whatever_follows(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let mut execution = place
        .start(marked(r#"sleep "$1" & seq 1 100000"#, &marker))
        .await?;
    let mut all = Vec::new();
    // Slower than the process: much is still on its way when it exits.
    while let Some(chunk) = execution.next_chunk().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
        all.extend_from_slice(&chunk.data);
    }
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    ensure!(
        all == expected.as_bytes(),
        "{} of {} bytes arrived intact",
        all.len(),
        expected.len()
    );
    ensure!(
        execution.wait().await.background,
        "the background process is not told"
    );
    Ok(())
}

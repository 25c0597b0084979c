//! EXEC-10, EXEC-11 and EXEC-13: ending commands with everything that they started.

use std::time::{Duration, Instant};

use sandbox_core::{
    CancelReason, CancelToken, Cmd, EndedBy, ExecResult, Execution, ExitStatus, OutputLimits,
    Overflow,
};

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, eventually, marked, marker, within};
use crate::needs::{Ability, Need};

cases! { "kill":
    cancel_ends_children ["EXEC-10"] [];
    cancel_ends_new_sessions ["EXEC-10"] [];
    cancel_ends_double_forks_with_closed_descriptors ["EXEC-10"] [];
    cancel_ends_trees_that_ignore_signals ["EXEC-10"] [];
    cancel_ends_stopped_trees ["EXEC-10"] [];
    cancel_ends_trees_that_fork_meanwhile ["EXEC-10"] [];
    cancel_ends_background_processes_of_a_script ["EXEC-10", "EXEC-12"] [];
    token_ends_the_tree ["EXEC-10"] [];
    timeout_ends_the_tree ["EXEC-10", "EXEC-7"] [];
    overflow_ends_the_tree ["EXEC-10", "EXEC-14"] [];
    kill_ends_the_tree_at_once ["EXEC-10"] [];
    drop_ends_the_tree ["EXEC-11"] [];
    detached_command_runs_on ["EXEC-11"] [];
    kill_is_idempotent_and_harmless_after_the_end ["EXEC-10"] [];
    cancel_comes_as_term_first ["EXEC-10"] [];
    stopped_process_gets_its_term ["EXEC-10"] [];
    ignored_term_is_followed_by_kill_after_the_grace ["EXEC-10", "EXEC-4"] [];
    grace_of_zero_kills_at_once ["EXEC-10", "EXEC-13"] [];
    other_commands_are_not_harmed ["EXEC-10"] [];
    last_words_within_the_grace_are_kept ["EXEC-13", "EXEC-5"] [];
    default_grace_is_half_a_short_timeout ["EXEC-13"] [];
    timeout_needs_no_reader ["EXEC-13", "EXEC-4"] [];
    busy_loop_times_out ["EXEC-7", "EXEC-10"] [];
    long_timeouts_do_not_fire ["EXEC-13"] [];
    reason_is_decided_once ["EXEC-7"] [];
    output_until_the_cancel_is_kept ["EXEC-5", "EXEC-7"] [];
    nothing_becomes_a_zombie ["EXEC-11"] [Need::Has(Ability::OwnProcesses)] 120;
}

/// From the end's begin to the result, with the default grace of 2 s: EXEC-4's bound, and some for a busy machine.
const ENDED: Duration = Duration::from_millis(4_500);
/// Until no process is seen any more, once there is a result.
const GONE: Duration = Duration::from_secs(3);

/// Starts a marked script and waits until `number` processes of it live.
async fn started(place: &Place, script: &str, marker: &str, number: usize) -> Done<Execution> {
    let execution = place.start(marked(script, marker)).await?;
    place.appears(marker, number).await?;
    Ok(execution)
}

async fn ended(execution: &mut Execution) -> Done<ExecResult> {
    within(ENDED, "the result", execution.wait()).await
}

async fn cancel_ends(cx: Context, script: &str, number: usize) -> Done {
    let place = cx.place().await?;
    if script.contains("setsid") {
        place.need("setsid").await?;
    }
    let marker = marker();
    let mut execution = started(&place, script, &marker, number).await?;
    execution.cancel();
    let result = ended(&mut execution).await?;
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    ensure!(
        result.error.is_none(),
        "the result has an error: {}",
        short(&result.error)
    );
    place.gone(&marker, GONE).await?;
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn cancel_ends_children(cx: Context) -> Done {
    cancel_ends(
        cx,
        r#"sleep "$1" & (sleep "$1"; true) & sleep "$1"; true"#,
        5,
    )
    .await
}

async fn cancel_ends_new_sessions(cx: Context) -> Done {
    let script = r#"setsid sh -c 'setsid sleep "$1" >/dev/null 2>&1 &' sh "$1"; setsid sleep "$1" & sleep "$1"; true"#;
    cancel_ends(cx, script, 4).await
}

async fn cancel_ends_double_forks_with_closed_descriptors(cx: Context) -> Done {
    let script = r#"(sleep "$1" <&- >&- 2>&- &); ( (sleep "$1" </dev/null >/dev/null 2>&1 &) & ); sleep "$1"; true"#;
    cancel_ends(cx, script, 4).await
}

async fn cancel_ends_trees_that_ignore_signals(cx: Context) -> Done {
    let script = r#"trap '' TERM INT HUP QUIT USR1; sleep "$1" & sleep "$1"; true"#;
    cancel_ends(cx, script, 3).await
}

async fn cancel_ends_stopped_trees(cx: Context) -> Done {
    let script = r#"trap '' TERM; sleep "$1" & kill -STOP $!; kill -STOP $$; true"#;
    cancel_ends(cx, script, 2).await
}

/// New processes while the tree is being ended: every round of looking finds some that the last one did not.
async fn cancel_ends_trees_that_fork_meanwhile(cx: Context) -> Done {
    let script = r#"trap '' TERM
        i=0; while [ $i -lt 400 ]; do (sleep "$1" >/dev/null 2>&1 &); i=$((i + 1)); done; sleep "$1"; true"#;
    cancel_ends(cx, script, 10).await
}

async fn cancel_ends_background_processes_of_a_script(cx: Context) -> Done {
    let script = r#"sleep "$1" >/dev/null 2>&1 & sleep "$1" & wait"#;
    cancel_ends(cx, script, 3).await
}

async fn token_ends_the_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    let (marker, token) = (marker(), CancelToken::new());
    let cmd = marked(r#"sleep "$1" & sleep "$1"; true"#, &marker).cancel(token.clone());
    let mut execution = place.start(cmd).await?;
    place.appears(&marker, 3).await?;
    token.cancel_with(CancelReason::new("enough"));
    let result = ended(&mut execution).await?;
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    place.gone(&marker, GONE).await
}

async fn timeout_ends_the_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"(sleep "$1" >/dev/null 2>&1 &); sleep "$1" & echo out; sleep "$1"; true"#;
    let cmd = marked(script, &marker).timeout(Duration::from_secs(1));
    let started = Instant::now();
    let result = within(Duration::from_secs(6), "the result", place.run(cmd)).await??;
    let took = started.elapsed();
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure_eq!(&result.stdout[..], b"out\n", "kept output");
    ensure!(!result.success(), "a timeout counts as success");
    ensure!(
        took >= Duration::from_millis(990),
        "the timeout of 1 s came after {took:?}"
    );
    place.gone(&marker, GONE).await
}

async fn overflow_ends_the_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"sleep "$1" & (sleep "$1" >/dev/null 2>&1 &); head -c 100000 /dev/zero; sleep "$1"; true"#;
    let cmd = marked(script, &marker).limits(OutputLimits::new(1000, 1000, Overflow::Kill));
    let mut execution = place.start(cmd).await?;
    let result = within(Duration::from_secs(10), "the result", execution.wait()).await?;
    ensure_eq!(result.ended_by, EndedBy::OverflowStdout, "end");
    place.gone(&marker, GONE).await
}

async fn kill_ends_the_tree_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"trap 'echo term' TERM; (sleep "$1" >/dev/null 2>&1 &); sleep "$1" & while :; do sleep 0.1; done"#;
    let mut execution = started(&place, script, &marker, 3).await?;
    let begin = Instant::now();
    execution.kill();
    execution.kill();
    let result = within(Duration::from_secs(2), "the result", execution.wait()).await?;
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    ensure_eq!(result.code(), Some(137), "code");
    ensure!(
        result.stdout.is_empty(),
        "TERM was sent before KILL: {}",
        short(&result.stdout)
    );
    ensure!(
        begin.elapsed() < Duration::from_secs(2),
        "kill took {:?}",
        begin.elapsed()
    );
    place.gone(&marker, GONE).await
}

async fn drop_ends_the_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"trap '' TERM; (sleep "$1" >/dev/null 2>&1 &); sleep "$1" & sleep "$1"; true"#;
    let execution = started(&place, script, &marker, 4).await?;
    drop(execution);
    place.gone(&marker, ENDED).await
}

async fn detached_command_runs_on(cx: Context) -> Done {
    let place = cx.place().await?;
    let script =
        "i=0; while [ $i -lt 30 ]; do echo $i; sleep 0.05; i=$((i + 1)); done; touch finished";
    place.start(Cmd::shell(script)).await?.detach();
    eventually!(
        Duration::from_secs(15),
        "the detached command to finish",
        Ok(place.stat("finished").await.is_ok()),
    )
}

async fn kill_is_idempotent_and_harmless_after_the_end(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place.start(Cmd::shell("exit 3")).await?;
    let control = execution.controller();
    let result = ended(&mut execution).await?;
    execution.kill();
    execution.cancel();
    control.kill();
    let again = execution.wait().await;
    ensure_eq!(
        (again.code(), again.ended_by),
        (Some(3), EndedBy::Exited),
        "the result after kill"
    );
    ensure_eq!(result.code(), Some(3), "the result before");
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn cancel_comes_as_term_first(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap 'echo got term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut execution = place.start(Cmd::shell(script)).await?;
    within(Duration::from_secs(10), "readiness", execution.next_chunk()).await?;
    execution.cancel();
    let result = ended(&mut execution).await?;
    ensure_eq!(&result.stdout[..], b"ready\ngot term\n", "output");
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    ensure_eq!(result.code(), Some(7), "the code that it ended with itself");
    Ok(())
}

/// Without CONT a stopped process would not act on TERM, and lose its grace.
async fn stopped_process_gets_its_term(cx: Context) -> Done {
    let place = cx.place().await?;
    let script =
        "trap 'echo got term; exit' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done";
    let mut execution = place.start(Cmd::shell(script)).await?;
    within(Duration::from_secs(10), "readiness", execution.next_chunk()).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    execution.cancel();
    let result = ended(&mut execution).await?;
    ensure_eq!(&result.stdout[..], b"ready\ngot term\n", "output");
    Ok(())
}

async fn ignored_term_is_followed_by_kill_after_the_grace(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap '' TERM INT; while :; do sleep 0.05; done";
    let cmd = Cmd::shell(script)
        .timeout(Duration::from_millis(500))
        .grace(Duration::from_secs(1));
    let started = Instant::now();
    let result = within(Duration::from_secs(5), "the result", place.run(cmd)).await??;
    let took = started.elapsed();
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure_eq!(result.code(), Some(137), "code");
    ensure!(
        took >= Duration::from_millis(1_450) && took <= Duration::from_millis(3_500),
        "0.5 s of time and 1 s of grace took {took:?}"
    );
    Ok(())
}

async fn grace_of_zero_kills_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done";
    let mut execution = place
        .start(Cmd::shell(script).grace(Duration::ZERO))
        .await?;
    within(Duration::from_secs(10), "readiness", execution.next_chunk()).await?;
    execution.cancel();
    let result = within(Duration::from_secs(2), "the result", execution.wait()).await?;
    ensure_eq!(&result.stdout[..], b"ready\n", "output");
    ensure_eq!(result.code(), Some(137), "code");
    Ok(())
}

async fn other_commands_are_not_harmed(cx: Context) -> Done {
    let place = cx.place().await?;
    let (kept, killed) = (marker(), marker());
    let script = r#"(sleep "$1" >/dev/null 2>&1 &); sleep "$1"; true"#;
    let mut other = started(&place, script, &kept, 3).await?;
    for _ in 0..3 {
        let mut execution = started(&place, script, &killed, 3).await?;
        execution.kill();
        ended(&mut execution).await?;
        place.gone(&killed, GONE).await?;
    }
    ensure_eq!(
        place.count(&kept).await?,
        3,
        "processes of the other command"
    );
    let early = tokio::time::timeout(Duration::from_millis(50), other.wait()).await;
    ensure!(early.is_err(), "the other command ended: {}", short(&early));
    other.kill();
    ended(&mut other).await?;
    place.gone(&kept, GONE).await
}

async fn last_words_within_the_grace_are_kept(cx: Context) -> Done {
    let place = cx.place().await?;
    let script =
        "trap 'echo bye; echo err >&2; exit 0' TERM; echo hi; while :; do sleep 0.05; done";
    let cmd = Cmd::shell(script)
        .timeout(Duration::from_secs(1))
        .grace(Duration::from_secs(2));
    let result = within(Duration::from_secs(5), "the result", place.run(cmd)).await??;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure_eq!(&result.stdout[..], b"hi\nbye\n", "stdout");
    // A shell may add what it has to say about its child, which got the signal too.
    ensure!(
        result.stderr.ends_with(b"err\n"),
        "stderr is {}",
        short(&result.stderr)
    );
    Ok(())
}

async fn default_grace_is_half_a_short_timeout(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd =
        Cmd::shell("trap '' TERM; while :; do sleep 0.05; done").timeout(Duration::from_secs(1));
    let started = Instant::now();
    let result = within(Duration::from_secs(5), "the result", place.run(cmd)).await??;
    let took = started.elapsed();
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure!(
        took >= Duration::from_millis(1_450) && took <= Duration::from_millis(3_500),
        "1 s of time and 0.5 s of grace took {took:?}"
    );
    Ok(())
}

async fn timeout_needs_no_reader(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"sleep "$1" & cat /dev/zero"#;
    let cmd = marked(script, &marker)
        .timeout(Duration::from_millis(500))
        .grace(Duration::from_millis(200));
    let mut execution = place.start(cmd).await?;
    place.gone(&marker, Duration::from_secs(5)).await?;
    let result = ended(&mut execution).await?;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    Ok(())
}

async fn busy_loop_times_out(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let cmd = marked("while :; do :; done", &marker).timeout(Duration::from_millis(500));
    let result = within(Duration::from_secs(5), "the result", place.run(cmd)).await??;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    ensure_eq!(result.code(), Some(143), "code");
    place.gone(&marker, GONE).await
}

/// Timers that count milliseconds in 32 bits fire at once beyond 24 or 49 days.
async fn long_timeouts_do_not_fire(cx: Context) -> Done {
    let place = cx.place().await?;
    for timeout in [
        Duration::from_millis(2_147_483_648),
        Duration::from_millis(4_294_967_297),
        Duration::from_secs(u64::MAX / 1000),
        Duration::MAX,
    ] {
        let cmd = Cmd::shell("sleep 0.2; echo on")
            .timeout(timeout)
            .grace(Duration::MAX);
        let result = within(Duration::from_secs(10), "the result", place.run(cmd)).await??;
        ensure_eq!(
            result.ended_by,
            EndedBy::Exited,
            "end with a timeout of {timeout:?}"
        );
        ensure_eq!(
            &result.stdout[..],
            b"on\n",
            "output with a timeout of {timeout:?}"
        );
    }
    Ok(())
}

async fn reason_is_decided_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let cmd = Cmd::shell(script)
        .timeout(Duration::from_millis(1500))
        .grace(Duration::from_secs(1));
    let mut execution = place.start(cmd).await?;
    within(Duration::from_secs(10), "readiness", execution.next_chunk()).await?;
    execution.cancel();
    // The timeout passes during the grace of the cancel.
    let result = within(Duration::from_secs(6), "the result", execution.wait()).await?;
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    let mut execution = place
        .start(Cmd::shell("exit 7").timeout(Duration::from_secs(60)))
        .await?;
    let result = ended(&mut execution).await?;
    ensure_eq!(
        (result.status, result.ended_by),
        (Some(ExitStatus::Code(7)), EndedBy::Exited),
        "an ordinary end"
    );
    Ok(())
}

async fn output_until_the_cancel_is_kept(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("echo out; echo err >&2; sleep 300"))
        .await?;
    let mut bytes = 0;
    while bytes < 8 {
        let chunk = within(
            Duration::from_secs(10),
            "the output",
            execution.next_chunk(),
        )
        .await?;
        bytes += chunk
            .ok_or_else(|| Stop::fail("the output ended"))?
            .data
            .len();
    }
    execution.cancel();
    let result = ended(&mut execution).await?;
    ensure_eq!(
        (&result.stdout[..], &result.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..]),
        "kept output"
    );
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    ensure_eq!(result.code(), Some(143), "code");
    Ok(())
}

pub(super) async fn zombies(place: &Place) -> Done<usize> {
    let script = r#"for f in /proc/[0-9]*/stat; do cat "$f" 2>/dev/null; done"#;
    let result = place.sh(script).await?;
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    let state = |line: &str| {
        line.rsplit_once(')')
            .map(|(_, rest)| rest.trim_start().starts_with('Z'))
    };
    Ok(text
        .lines()
        .filter_map(state)
        .filter(|zombie| *zombie)
        .count())
}

async fn nothing_becomes_a_zombie(cx: Context) -> Done {
    let place = cx.place().await?;
    for round in 0..100 {
        let execution = place
            .start(Cmd::shell("(true &) ; sleep 0.01 & exit 0"))
            .await?;
        match round % 3 {
            0 => drop(execution),
            1 => execution.detach(),
            _ => {
                let mut execution = execution;
                execution.wait().await;
            }
        }
    }
    eventually!(
        Duration::from_secs(10),
        "no zombies to be left",
        Ok(zombies(&place).await? == 0),
    )
}

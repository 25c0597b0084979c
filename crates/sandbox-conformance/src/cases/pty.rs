//! EXEC-16: pseudo-terminals.

use std::time::Duration;

use sandbox_core::{Cmd, EndedBy, ErrorKind, Execution, OutputStream, PtySize};
use tokio::io::AsyncWriteExt;

use crate::case::{Done, Stop, cases, ensure, ensure_eq};
use crate::context::{Context, marker, refused, within};
use crate::needs::{Ability, Need};

cases! { "pty":
    terminal_is_one_for_the_command ["EXEC-16"] [Need::Has(Ability::Pty)];
    size_is_set_at_the_start ["EXEC-16"] [Need::Has(Ability::Pty)];
    size_of_zero_is_refused ["EXEC-16"] [Need::Has(Ability::Pty)];
    resize_is_seen ["EXEC-16"] [Need::Has(Ability::Pty), Need::Has(Ability::Stdin)];
    output_is_one_stream ["EXEC-16"] [Need::Has(Ability::Pty)];
    output_is_exact_and_live ["EXEC-16", "EXEC-3"] [Need::Has(Ability::Pty)];
    control_c_interrupts ["EXEC-16"] [Need::Has(Ability::Pty), Need::Has(Ability::Stdin)];
    control_d_is_the_end_of_input ["EXEC-16"] [Need::Has(Ability::Pty), Need::Has(Ability::Stdin)];
    hang_up_ends_the_command ["EXEC-16", "EXEC-11"] [Need::Has(Ability::Pty), Need::Has(Ability::Stdin)];
    exit_code_is_kept ["EXEC-16", "EXEC-6"] [Need::Has(Ability::Pty)];
    cancel_ends_the_tree ["EXEC-16", "EXEC-10"] [Need::Has(Ability::Pty)];
}

const SIZE: PtySize = PtySize {
    rows: 40,
    columns: 100,
};

/// Reads until the output holds `text`.
async fn until(execution: &mut Execution, text: &str) -> Done<String> {
    let mut all = Vec::new();
    loop {
        let what = format!("{text:?} after {:?}", String::from_utf8_lossy(&all));
        let chunk = within(Duration::from_secs(10), &what, execution.next_chunk()).await?;
        let chunk = chunk.ok_or_else(|| Stop::fail(format!("the output ended before {what}")))?;
        all.extend_from_slice(&chunk.data);
        let seen = String::from_utf8_lossy(&all);
        if seen.contains(text) {
            return Ok(seen.into_owned());
        }
    }
}

async fn terminal_is_one_for_the_command(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "test -t 0 && test -t 1 && test -t 2 && tty && (: </dev/tty) && echo all";
    let result = place.run(Cmd::shell(script).pty(SIZE)).await?;
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    ensure!(
        said.starts_with("/dev/pts/") || said.starts_with("/dev/tty"),
        "tty says {said:?}"
    );
    ensure!(
        said.ends_with("\r\nall\r\n"),
        "not all are terminals: {said:?}"
    );
    Ok(())
}

async fn size_is_set_at_the_start(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.run(Cmd::argv(["stty", "size"]).pty(SIZE)).await?;
    ensure_eq!(&result.stdout[..], b"40 100\r\n", "size");
    Ok(())
}

async fn size_of_zero_is_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::argv(["touch", "touched"]).pty(PtySize {
        rows: 0,
        columns: 80,
    });
    refused(place.start(cmd).await, ErrorKind::InvalidSpec, "no rows")?;
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

async fn resize_is_seen(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "trap 'echo winch' WINCH; echo ready; read line; stty size";
    let mut execution = place
        .start(Cmd::shell(script).pty(SIZE).stdin_piped())
        .await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    until(&mut execution, "ready").await?;
    execution.resize(PtySize {
        rows: 50,
        columns: 132,
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    input.write_all(b"\n").await.map_err(Stop::fail)?;
    input.flush().await.map_err(Stop::fail)?;
    let result = within(Duration::from_secs(10), "the result", execution.wait()).await?;
    let said = String::from_utf8_lossy(&result.stdout).into_owned();
    ensure!(said.contains("50 132"), "the size afterwards: {said:?}");
    ensure!(said.contains("winch"), "no SIGWINCH came: {said:?}");
    Ok(())
}

async fn output_is_one_stream(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("echo out; echo err >&2; echo out").pty(SIZE))
        .await?;
    while let Some(chunk) = execution.next_chunk().await {
        ensure_eq!(chunk.stream, OutputStream::Stdout, "stream of a chunk");
    }
    let result = execution.wait().await;
    ensure_eq!(&result.stdout[..], b"out\r\nerr\r\nout\r\n", "output");
    ensure_eq!(result.stderr.len(), 0, "bytes of stderr");
    Ok(())
}

/// Bytes that a multiplexed protocol could take for its own, and no line end.
async fn output_is_exact_and_live(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("printf '\\001\\000\\002A> '; sleep 300").pty(SIZE))
        .await?;
    let seen = until(&mut execution, "> ").await?;
    ensure_eq!(seen.as_bytes(), b"\x01\x00\x02A> ", "first output");
    execution.kill();
    within(Duration::from_secs(5), "the result", execution.wait()).await?;
    Ok(())
}

async fn control_c_interrupts(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let mut execution = place
        .start(Cmd::argv(["sleep", &marker]).pty(SIZE).stdin_piped())
        .await?;
    place.appears(&marker, 1).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    input.write_all(b"\x03").await.map_err(Stop::fail)?;
    input.flush().await.map_err(Stop::fail)?;
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(
        (result.code(), result.ended_by),
        (Some(130), EndedBy::Exited),
        "end"
    );
    Ok(())
}

async fn control_d_is_the_end_of_input(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::argv(["cat"]).pty(SIZE).stdin_piped())
        .await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    input.write_all(b"line\n").await.map_err(Stop::fail)?;
    input.flush().await.map_err(Stop::fail)?;
    // The echo of the terminal, and then what cat writes.
    until(&mut execution, "line\r\nline\r\n").await?;
    input.write_all(b"\x04").await.map_err(Stop::fail)?;
    input.flush().await.map_err(Stop::fail)?;
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(result.code(), Some(0), "code");
    Ok(())
}

async fn hang_up_ends_the_command(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let execution = place
        .start(Cmd::argv(["sleep", &marker]).pty(SIZE).stdin_piped())
        .await?;
    place.appears(&marker, 1).await?;
    drop(execution);
    place.gone(&marker, Duration::from_secs(5)).await
}

async fn exit_code_is_kept(cx: Context) -> Done {
    let place = cx.place().await?;
    for code in [0, 7, 255] {
        let result = place
            .run(Cmd::shell(format!("echo x; exit {code}")).pty(SIZE))
            .await?;
        ensure_eq!(result.code(), Some(code), "code");
        ensure_eq!(&result.stdout[..], b"x\r\n", "output");
    }
    Ok(())
}

async fn cancel_ends_the_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    let marker = marker();
    let script = r#"trap '' HUP TERM; sleep "$1" & sleep "$1"; true"#;
    let cmd = crate::context::marked(script, &marker)
        .pty(SIZE)
        .timeout(Duration::from_millis(700));
    let result = within(Duration::from_secs(6), "the result", place.run(cmd)).await??;
    ensure_eq!(result.ended_by, EndedBy::TimedOut, "end");
    place.gone(&marker, Duration::from_secs(3)).await
}

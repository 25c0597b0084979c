//! EXEC-8: standard input.

use std::time::Duration;

use sandbox_core::{Cmd, EndedBy};
use tokio::io::AsyncWriteExt;

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, noise, within};
use crate::needs::{Ability, Need};

cases! { "stdin":
    absent_input_is_at_its_end_at_once ["EXEC-8"] [];
    bytes_arrive_exactly_and_then_the_end ["EXEC-8"] [];
    large_input_arrives ["EXEC-8", "EXEC-14"] [];
    process_that_does_not_read_is_no_error ["EXEC-8"] [];
    process_that_closes_its_input_is_no_error ["EXEC-8"] [];
    only_piped_input_has_a_writer ["EXEC-8"] [];
    piped_input_is_live ["EXEC-8"] [Need::Has(Ability::Stdin)];
    closing_is_the_end_and_kills_nothing ["EXEC-8"] [Need::Has(Ability::Stdin)];
    pending_bytes_come_before_the_end ["EXEC-8"] [Need::Has(Ability::Stdin)];
    many_small_writes_arrive ["EXEC-8"] [Need::Has(Ability::Stdin)];
    open_writer_does_not_hold_the_result ["EXEC-8", "EXEC-12"] [Need::Has(Ability::Stdin)];
    broken_pipe_is_the_writers_alone ["EXEC-8"] [Need::Has(Ability::Stdin)];
    writer_is_held_back_by_a_process_that_does_not_read ["EXEC-8", "EXEC-3"] [Need::Has(Ability::Stdin)];
}

async fn absent_input_is_at_its_end_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let said = within(
        Duration::from_secs(5),
        "cat without input",
        place.out("cat; echo done"),
    )
    .await??;
    ensure_eq!(said, "done\n", "output without input");
    let cmd = Cmd::shell("cat; echo done").stdin_bytes("");
    let result = within(
        Duration::from_secs(5),
        "cat with empty input",
        place.run(cmd),
    )
    .await??;
    ensure_eq!(&result.stdout[..], b"done\n", "output with empty input");
    Ok(())
}

async fn bytes_arrive_exactly_and_then_the_end(cx: Context) -> Done {
    let place = cx.place().await?;
    for size in [1, 4096, 65_536, 65_537, 1_000_003] {
        let bytes = noise(size);
        let result = place
            .run(Cmd::shell("cat; printf end").stdin_bytes(bytes.clone()))
            .await?;
        let mut expected = bytes.to_vec();
        expected.extend_from_slice(b"end");
        ensure!(
            result.stdout == expected,
            "{size} bytes of input came out as {} bytes of output",
            result.stdout.len()
        );
    }
    Ok(())
}

async fn large_input_arrives(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place
        .run(Cmd::argv(["wc", "-c"]).stdin_bytes(vec![7; 20 << 20]))
        .await?;
    ensure_eq!(&result.stdout[..], b"20971520\n", "bytes of input");
    Ok(())
}

async fn process_that_does_not_read_is_no_error(cx: Context) -> Done {
    let place = cx.place().await?;
    for script in ["exit 0", "exit 9", "head -c 1 >/dev/null; exit 0"] {
        let result = place
            .run(Cmd::shell(script).stdin_bytes(vec![7; 4 << 20]))
            .await?;
        let code = if script == "exit 9" { 9 } else { 0 };
        ensure_eq!(result.code(), Some(code), "code of {script}");
        ensure_eq!(result.ended_by, EndedBy::Exited, "end of {script}");
        ensure!(
            result.error.is_none(),
            "{script} has an error: {}",
            short(&result.error)
        );
    }
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn process_that_closes_its_input_is_no_error(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::shell("exec <&-; sleep 0.3; echo on").stdin_bytes(vec![7; 4 << 20]);
    let result = place.run(cmd).await?;
    ensure_eq!(&result.stdout[..], b"on\n", "output");
    ensure!(result.success(), "not a success: {}", short(&result));
    Ok(())
}

async fn only_piped_input_has_a_writer(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut none = place.start(Cmd::argv(["true"])).await?;
    ensure!(
        none.take_stdin().is_none(),
        "a command without input has a writer"
    );
    let mut bytes = place.start(Cmd::argv(["true"]).stdin_bytes("x")).await?;
    ensure!(
        bytes.take_stdin().is_none(),
        "a command with given input has a writer"
    );
    none.wait().await;
    bytes.wait().await;
    Ok(())
}

async fn piped_input_is_live(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place.start(Cmd::argv(["cat"]).stdin_piped()).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    ensure!(
        execution.take_stdin().is_none(),
        "the writer is given out twice"
    );
    for word in ["one\n", "two\n", "\0three"] {
        input.write_all(word.as_bytes()).await.map_err(Stop::fail)?;
        input.flush().await.map_err(Stop::fail)?;
        let chunk = within(Duration::from_secs(5), "the echo", execution.next_chunk()).await?;
        ensure_eq!(
            chunk.map(|chunk| chunk.data),
            Some(word.into()),
            "the echo of {word:?}"
        );
    }
    input.shutdown().await.map_err(Stop::fail)?;
    let result = within(Duration::from_secs(5), "the end", execution.wait()).await?;
    ensure!(result.success(), "not a success: {}", short(&result));
    Ok(())
}

async fn closing_is_the_end_and_kills_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "cat >/dev/null; sleep 0.3; echo after";
    let mut execution = place.start(Cmd::shell(script).stdin_piped()).await?;
    drop(execution.take_stdin());
    let result = within(Duration::from_secs(10), "the result", execution.wait()).await?;
    ensure_eq!(
        &result.stdout[..],
        b"after\n",
        "output after the end of input"
    );
    ensure!(result.success(), "not a success: {}", short(&result));
    Ok(())
}

/// A race between the last bytes and the end of file would lose one now and then.
async fn pending_bytes_come_before_the_end(cx: Context) -> Done {
    let place = cx.place().await?;
    for round in 0..50 {
        let mut execution = place.start(Cmd::argv(["cat"]).stdin_piped()).await?;
        let mut input = execution
            .take_stdin()
            .ok_or_else(|| Stop::fail("there is no writer"))?;
        input.write_all(b"x").await.map_err(Stop::fail)?;
        input.shutdown().await.map_err(Stop::fail)?;
        drop(input);
        let result = within(Duration::from_secs(10), "the result", execution.wait()).await?;
        ensure_eq!(&result.stdout[..], b"x", "output in round {round}");
    }
    let mut execution = place.start(Cmd::argv(["wc", "-c"]).stdin_piped()).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    input
        .write_all(&noise(3_000_000))
        .await
        .map_err(Stop::fail)?;
    drop(input);
    let result = within(Duration::from_secs(10), "the result", execution.wait()).await?;
    ensure_eq!(
        &result.stdout[..],
        b"3000000\n",
        "bytes before a dropped writer"
    );
    Ok(())
}

async fn many_small_writes_arrive(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "sleep 0.5; wc -c";
    let mut execution = place.start(Cmd::shell(script).stdin_piped()).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    let writing = tokio::spawn(async move {
        for _ in 0..20_000 {
            input.write_all(b"x").await?;
        }
        Ok::<(), std::io::Error>(())
    });
    let result = within(Duration::from_secs(20), "the result", execution.wait()).await?;
    writing.await.map_err(Stop::fail)?.map_err(Stop::fail)?;
    ensure_eq!(&result.stdout[..], b"20000\n", "bytes of 20000 writes");
    Ok(())
}

async fn open_writer_does_not_hold_the_result(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("echo x; exit 4").stdin_piped())
        .await?;
    let input = execution.take_stdin();
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(result.code(), Some(4), "code");
    drop(input);
    Ok(())
}

async fn broken_pipe_is_the_writers_alone(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place.start(Cmd::shell("exit 6").stdin_piped()).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(result.code(), Some(6), "code");
    let writes = async {
        let block = vec![7; 65_536];
        loop {
            if let Err(error) = input.write_all(&block).await {
                return error.kind();
            }
        }
    };
    let kind = within(Duration::from_secs(5), "an error for the writer", writes).await?;
    ensure_eq!(
        kind,
        std::io::ErrorKind::BrokenPipe,
        "kind of the writer's error"
    );
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn writer_is_held_back_by_a_process_that_does_not_read(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "sleep 1; wc -c";
    let mut execution = place.start(Cmd::shell(script).stdin_piped()).await?;
    let mut input = execution
        .take_stdin()
        .ok_or_else(|| Stop::fail("there is no writer"))?;
    let block = vec![7; 1 << 20];
    let mut written = 0;
    // 64 MiB cannot be taken at once by anything with a bounded buffer.
    let early = tokio::time::timeout(Duration::from_millis(500), async {
        while written < 64 {
            if input.write_all(&block).await.is_err() {
                break;
            }
            written += 1;
        }
    })
    .await;
    ensure!(
        early.is_err(),
        "{written} MiB were taken though the process reads nothing"
    );
    drop(input);
    let result = within(Duration::from_secs(20), "the result", execution.wait()).await?;
    let said = String::from_utf8_lossy(&result.stdout)
        .trim()
        .parse::<u64>();
    ensure!(
        said.is_ok_and(|count| count >= written << 20),
        "{written} MiB were taken, wc says {}",
        short(&result.stdout)
    );
    Ok(())
}

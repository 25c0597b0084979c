//! EXEC-1 to EXEC-7 and EXEC-15: starting commands, their output and their results.

use std::time::{Duration, Instant};

use sandbox_core::{
    CancelReason, CancelToken, Chunk, Cmd, EndedBy, Error, ErrorKind, ExecResult, ExitStatus,
    MAX_CHUNK, OutputStream, PathRole,
};

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, noise, refused, within};
use crate::needs::{Ability, Need};

cases! { "exec":
    shell_string_runs_in_the_workdir ["EXEC-1"] [];
    shell_is_the_declared_one ["EXEC-1", "CAPS-2"] [Need::Has(Ability::Shell)];
    argv_arrives_verbatim ["EXEC-1"] [];
    program_of_an_argv_is_found_in_the_path_of_the_command ["EXEC-1", "EXEC-9"] [];
    relative_program_starts_at_the_cwd ["EXEC-1"] [];
    relative_cwd_starts_at_the_workdir ["EXEC-1"] [];
    absolute_cwd_is_used_as_it_is ["EXEC-1"] [];
    missing_cwd_is_refused_before_anything_starts ["EXEC-1", "EXEC-2"] [];
    cwd_that_is_a_file_is_refused_before_anything_starts ["EXEC-1", "EXEC-2"] [];
    missing_program_is_not_started ["EXEC-2"] [];
    unexecutable_program_is_not_started ["EXEC-2"] [];
    cancelled_token_starts_nothing ["EXEC-2"] [];
    exit_code_is_kept ["EXEC-2", "EXEC-6"] [];
    exit_code_is_taken_modulo_256 ["EXEC-6"] [];
    death_by_signal_is_told_from_an_exit ["EXEC-6"] [Need::Has(Ability::ExactSignals)];
    death_by_signal_has_the_code_of_a_shell ["EXEC-6"] [];
    death_by_signal_is_no_timeout ["EXEC-7"] [];
    failures_of_the_shell_are_results ["EXEC-2"] [];
    script_is_not_changed_by_a_wrapper ["EXEC-1"] [];
    nothing_carries_over_between_commands ["EXEC-1"] [];
    output_streams_are_separate_and_exact ["EXEC-3", "EXEC-5"] [];
    chunks_arrive_while_the_command_runs ["EXEC-3"] [];
    chunk_without_a_line_end_arrives ["EXEC-3"] [];
    chunks_are_in_order_and_at_most_64_kib ["EXEC-3"] [];
    every_line_reaches_a_slow_reader ["EXEC-3", "EXEC-4"] [];
    slow_reader_holds_the_process_back ["EXEC-3"] [];
    many_small_writes_wait_for_a_late_reader ["EXEC-3", "EXEC-4"] [];
    short_output_is_never_lost ["EXEC-4", "EXEC-12"] [];
    result_follows_last_chunk ["EXEC-4"] [];
    result_is_the_same_when_asked_again ["EXEC-4"] [];
    result_arrives_though_nobody_reads ["EXEC-4", "EXEC-10"] [];
    result_tells_the_duration ["EXEC-5"] [];
    commands_run_at_once ["LIFE-8", "EXEC-2"] [];
    text_of_a_dead_runtime_is_ordinary_output ["POL-1"] [];
    no_descriptor_but_the_standard_ones_arrives ["EXEC-15"] [];
    there_is_no_controlling_terminal ["EXEC-15"] [];
    signals_are_default_and_unblocked ["EXEC-15"] [];
    broken_pipe_ends_a_writer ["EXEC-15"] [];
    umask_is_022 ["EXEC-15"] [];
    sixteen_arguments_of_64_kib_arrive ["EXEC-20"] [];
    too_long_argument_is_refused ["EXEC-20"] [];
    too_many_arguments_are_refused ["EXEC-20"] [];
    nul_and_empty_commands_are_refused ["EXEC-20", "EXEC-13"] [];
}

async fn shell_string_runs_in_the_workdir(cx: Context) -> Done {
    let place = cx.place().await?;
    ensure!(
        place.handle.workdir.is_absolute(),
        "the workdir {} is not absolute",
        place.handle.workdir
    );
    let expected = format!("{}\n", place.handle.workdir);
    ensure_eq!(place.out("pwd").await?, expected, "pwd");
    ensure_eq!(place.out("pwd -P").await?, expected, "the physical workdir");
    Ok(())
}

async fn shell_is_the_declared_one(cx: Context) -> Done {
    let place = cx.place().await?;
    let declared = cx.caps().shell.unwrap_or_default();
    let bash = declared.rsplit('/').next() == Some("bash");
    let said = place.out(r#"printf %s "${BASH_VERSION:+bash}""#).await?;
    ensure_eq!(
        said == "bash",
        bash,
        "running in bash, while {declared:?} is declared"
    );
    Ok(())
}

async fn argv_arrives_verbatim(cx: Context) -> Done {
    let place = cx.place().await?;
    let odd: [&[u8]; 9] = [
        b"a b",
        b"$HOME",
        b"'\"`",
        b"",
        b"\n",
        b"-n",
        b"\xff\xfe",
        b"*",
        b"\\",
    ];
    let mut argv = vec![b"printf".to_vec(), b"[%s]".to_vec()];
    argv.extend(odd.iter().map(|argument| argument.to_vec()));
    let mut expected = Vec::new();
    for argument in odd {
        expected.extend_from_slice(&[b"[", argument, b"]"].concat());
    }
    let result = place.run(Cmd::argv(argv)).await?;
    ensure_eq!(
        result.stdout.to_vec(),
        expected,
        "arguments as printf sees them"
    );
    Ok(())
}

async fn program_of_an_argv_is_found_in_the_path_of_the_command(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir bin && printf '#!/bin/sh\\necho found\\n' >bin/conformance-tool && chmod 755 bin/conformance-tool").await?;
    let path = format!("{}/bin:/usr/bin:/bin", place.handle.workdir);
    let result = place
        .run(Cmd::argv(["conformance-tool"]).env("PATH", path))
        .await?;
    ensure_eq!(
        &result.stdout[..],
        b"found\n",
        "output of a program in the command's PATH"
    );
    Ok(())
}

async fn relative_program_starts_at_the_cwd(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir sub && printf '#!/bin/sh\\necho here\\n' >sub/tool && chmod 755 sub/tool")
        .await?;
    let result = place.run(Cmd::argv(["./tool"]).cwd("sub")?).await?;
    ensure_eq!(
        &result.stdout[..],
        b"here\n",
        "output of ./tool in its directory"
    );
    Ok(())
}

async fn relative_cwd_starts_at_the_workdir(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir -p 'a b/c' && ln -s 'a b/c' link").await?;
    for cwd in ["a b/c", "./a b/../a b/c/.", "link"] {
        let result = place.run(Cmd::shell("pwd -P").cwd(cwd)?).await?;
        let expected = format!("{}/a b/c\n", place.handle.workdir);
        ensure_eq!(
            String::from_utf8_lossy(&result.stdout),
            expected,
            "pwd in the cwd {cwd:?}"
        );
    }
    Ok(())
}

async fn absolute_cwd_is_used_as_it_is(cx: Context) -> Done {
    let place = cx.place().await?;
    for cwd in ["/", "/tmp"] {
        let result = place.run(Cmd::shell("pwd").cwd(cwd)?).await?;
        ensure_eq!(
            String::from_utf8_lossy(&result.stdout),
            format!("{cwd}\n"),
            "pwd in {cwd}"
        );
    }
    Ok(())
}

async fn missing_cwd_is_refused_before_anything_starts(cx: Context) -> Done {
    let place = cx.place().await?;
    for cwd in ["no/such", "/no/such"] {
        let touched = format!("{}/touched", place.handle.workdir);
        let cmd = Cmd::argv(["touch", &touched]).cwd(cwd)?;
        let error = refused(place.start(cmd).await, ErrorKind::BadCwd, "a missing cwd")?;
        ensure!(
            error.to_string().contains(cwd),
            "the error does not name {cwd}: {error}"
        );
    }
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries of the workdir after refused commands"
    );
    Ok(())
}

async fn cwd_that_is_a_file_is_refused_before_anything_starts(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    for cwd in ["file", "file/sub"] {
        let touched = format!("{}/touched", place.handle.workdir);
        let cmd = Cmd::argv(["touch", &touched]).cwd(cwd)?;
        let error = refused(
            place.start(cmd).await,
            ErrorKind::BadCwd,
            "a cwd that is a file",
        )?;
        ensure!(
            error.to_string().contains(cwd),
            "the error does not name {cwd}: {error}"
        );
    }
    ensure_eq!(
        place.list(".").await?.len(),
        1,
        "entries of the workdir after refused commands"
    );
    Ok(())
}

async fn missing_program_is_not_started(cx: Context) -> Done {
    let place = cx.place().await?;
    for program in ["/no/such/program", "no-such-program", "./no-such-program"] {
        let error = refused(
            place.start(Cmd::argv([program])).await,
            ErrorKind::NotFound,
            program,
        )?;
        let Error::NotFound { role, path } = &error else {
            return Err(Stop::fail(format!("another variant: {error}")));
        };
        ensure_eq!(*role, PathRole::Program, "role in the error for {program}");
        ensure_eq!(path.as_str(), program, "path in the error");
    }
    Ok(())
}

async fn unexecutable_program_is_not_started(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("echo x >plain; mkdir dir; printf '\\177ELFgarbage' >garbage; chmod 755 garbage")
        .await?;
    for program in ["./plain", "./dir", "./garbage"] {
        let error = refused(
            place.start(Cmd::argv([program])).await,
            ErrorKind::NotExecutable,
            program,
        )?;
        ensure!(
            error.to_string().contains(program),
            "the error does not name {program}: {error}"
        );
    }
    Ok(())
}

async fn cancelled_token_starts_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    let token = CancelToken::new();
    let reason = CancelReason::new("too late");
    token.cancel_with(reason.clone());
    let cmd = Cmd::argv(["touch", "touched"]).cancel(token);
    let error = refused(
        place.start(cmd).await,
        ErrorKind::Cancelled,
        "a cancelled token",
    )?;
    let Error::Cancelled {
        reason: Some(given),
    } = &error
    else {
        return Err(Stop::fail(format!("the caller's reason is lost: {error}")));
    };
    ensure!(
        given.same_as(&reason),
        "the reason is another object than the caller's"
    );
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

async fn exit_code_is_kept(cx: Context) -> Done {
    let place = cx.place().await?;
    for code in [0, 1, 2, 7, 125, 126, 127, 128, 137, 255] {
        let result = place.sh(&format!("exit {code}")).await?;
        ensure_eq!(result.code(), Some(code), "code of exit {code}");
        ensure_eq!(result.ended_by, EndedBy::Exited, "end of exit {code}");
        ensure!(
            result.error.is_none(),
            "exit {code} has an error: {}",
            short(&result.error)
        );
    }
    Ok(())
}

async fn exit_code_is_taken_modulo_256(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("sh -c 'exit 300'").await?;
    ensure_eq!(
        result.status,
        Some(ExitStatus::Code(44)),
        "status of exit 300"
    );
    Ok(())
}

async fn death_by_signal_is_told_from_an_exit(cx: Context) -> Done {
    let place = cx.place().await?;
    for (signal, number) in [
        ("KILL", 9),
        ("TERM", 15),
        ("ABRT", 6),
        ("SEGV", 11),
        ("HUP", 1),
    ] {
        let result = place.sh(&format!("kill -{signal} $$")).await?;
        ensure_eq!(
            result.status,
            Some(ExitStatus::Signal(number)),
            "status after SIG{signal}"
        );
        ensure_eq!(result.ended_by, EndedBy::Exited, "end by SIG{signal}");
    }
    let result = place.sh("exit 137").await?;
    ensure_eq!(
        result.status,
        Some(ExitStatus::Code(137)),
        "status of exit 137"
    );
    Ok(())
}

async fn death_by_signal_has_the_code_of_a_shell(cx: Context) -> Done {
    let place = cx.place().await?;
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("ABRT", 134)] {
        let result = place.sh(&format!("kill -{signal} $$")).await?;
        ensure_eq!(result.code(), Some(code), "code after SIG{signal}");
        ensure!(
            !result.success(),
            "a death by SIG{signal} counts as success"
        );
    }
    Ok(())
}

async fn death_by_signal_is_no_timeout(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::shell("kill -TERM $$").timeout(Duration::from_secs(30));
    let result = place.run(cmd).await?;
    ensure_eq!(
        result.ended_by,
        EndedBy::Exited,
        "end of a command that killed itself"
    );
    ensure_eq!(result.code(), Some(143), "its code");
    Ok(())
}

async fn failures_of_the_shell_are_results(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("no-such-program-inside").await?;
    ensure_eq!(
        result.code(),
        Some(127),
        "code of an unknown program in a script"
    );
    ensure!(
        !result.stderr.is_empty(),
        "the shell's message about an unknown program is lost"
    );
    let result = place.sh("if").await?;
    ensure_eq!(result.code(), Some(2), "code of a syntax error");
    let result = place.sh("").await?;
    ensure_eq!(result.code(), Some(0), "code of an empty script");
    Ok(())
}

/// A backend that puts something before or after the script changes the meaning of these.
async fn script_is_not_changed_by_a_wrapper(cx: Context) -> Done {
    let place = cx.place().await?;
    for (script, expected) in [
        ("echo a # the end", "a\n"),
        ("cat <<E\nhere\nE", "here\n"),
        ("cat <<E\nhere\nE\n", "here\n"),
        ("exec echo replaced", "replaced\n"),
        ("echo a; exit 0; echo b", "a\n"),
        ("echo 'it'\"'\"'s' \"$((1 + 1))\"", "it's 2\n"),
        ("echo \"$0 $#\" | tail -c 3", " 0\n"),
        ("\n\n  echo blank\n\n", "blank\n"),
        ("(echo sub)", "sub\n"),
        ("-bad 2>/dev/null; echo on", "on\n"),
    ] {
        ensure_eq!(place.out(script).await?, expected, "output of {script:?}");
    }
    Ok(())
}

async fn nothing_carries_over_between_commands(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("cd /tmp; CARRIED=1; export CARRIED; umask 077")
        .await?;
    let expected = format!("{} []\n", place.handle.workdir);
    ensure_eq!(
        place.out(r#"echo "$(pwd) [$CARRIED]""#).await?,
        expected,
        "the next command's state"
    );
    Ok(())
}

async fn output_streams_are_separate_and_exact(cx: Context) -> Done {
    let place = cx.place().await?;
    let bytes = noise(100_000);
    place.write("noise", bytes.clone()).await?;
    let result = place.sh("cat noise; printf 'err\\0\\377' >&2").await?;
    ensure!(
        result.stdout == bytes,
        "stdout is not byte for byte what was written"
    );
    ensure_eq!(&result.stderr[..], b"err\0\xff", "stderr");
    ensure!(
        !result.stdout_truncated && !result.stderr_truncated,
        "output counts as truncated"
    );
    ensure!(
        !result.background,
        "a command without background processes has some"
    );
    Ok(())
}

async fn chunks_arrive_while_the_command_runs(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::shell("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done");
    let mut execution = place.start(cmd).await?;
    let mut times = Vec::new();
    let mut text = Vec::new();
    while let Some(chunk) = execution.next_chunk().await {
        times.push(Instant::now());
        text.extend_from_slice(&chunk.data);
    }
    ensure_eq!(text, b"1\n2\n3\n4\n5\n".to_vec(), "all chunks");
    ensure!(
        times.len() >= 2,
        "five lines over 0.4 s came in {} chunk",
        times.len()
    );
    let spread = times[times.len() - 1] - times[0];
    ensure!(
        spread >= Duration::from_millis(200),
        "first to last chunk took only {spread:?}"
    );
    Ok(())
}

async fn chunk_without_a_line_end_arrives(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("printf 'prompt> '; sleep 30"))
        .await?;
    let chunk = within(Duration::from_secs(5), "the prompt", execution.next_chunk()).await?;
    ensure_eq!(
        chunk.map(|chunk| chunk.data),
        Some("prompt> ".into()),
        "first chunk"
    );
    execution.kill();
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(&result.stdout[..], b"prompt> ", "kept output");
    Ok(())
}

async fn chunks_are_in_order_and_at_most_64_kib(cx: Context) -> Done {
    let place = cx.place().await?;
    let bytes = noise(3_000_001);
    place.write("noise", bytes.clone()).await?;
    let mut execution = place.start(Cmd::argv(["cat", "noise"])).await?;
    let mut all = Vec::new();
    while let Some(Chunk { stream, data }) = execution.next_chunk().await {
        ensure_eq!(stream, OutputStream::Stdout, "stream of a chunk");
        ensure!(!data.is_empty(), "an empty chunk arrived");
        ensure!(
            data.len() <= MAX_CHUNK,
            "a chunk of {} bytes arrived",
            data.len()
        );
        all.extend_from_slice(&data);
    }
    ensure!(
        bytes == all,
        "the chunks together are not what was written ({} bytes)",
        all.len()
    );
    let result = execution.wait().await;
    ensure!(
        result.stdout == bytes,
        "the result does not keep what the chunks carried"
    );
    Ok(())
}

async fn every_line_reaches_a_slow_reader(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("seq 1 200000; echo end >&2"))
        .await?;
    let mut all = Vec::new();
    while let Some(chunk) = execution.next_chunk().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if chunk.stream == OutputStream::Stdout {
            all.extend_from_slice(&chunk.data);
        }
    }
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    ensure!(
        all == expected.as_bytes(),
        "{} of {} bytes arrived intact",
        all.len(),
        expected.len()
    );
    let result = execution.wait().await;
    ensure!(
        result.success(),
        "the command did not succeed: {}",
        short(&result)
    );
    ensure_eq!(&result.stderr[..], b"end\n", "stderr");
    Ok(())
}

async fn slow_reader_holds_the_process_back(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("head -c 50000000 /dev/zero; touch written"))
        .await?;
    // Nobody reads: the bounded buffers fill, and the process cannot come to its end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    refused(
        place.stat("written").await,
        ErrorKind::NotFound,
        "the file made after the output",
    )?;
    let mut count = 0;
    while let Some(chunk) = execution.next_chunk().await {
        count += chunk.data.len();
    }
    ensure_eq!(count, 50_000_000, "bytes that arrived in the end");
    ensure!(
        execution.wait().await.status.is_some(),
        "the status is unknown"
    );
    place.stat("written").await?;
    Ok(())
}

/// Bounds that count pieces instead of bytes, or bytes instead of pieces, meet their opposite here.
async fn many_small_writes_wait_for_a_late_reader(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = "i=0; while [ $i -lt 30000 ]; do echo $i; i=$((i + 1)); done";
    let mut execution = place.start(Cmd::shell(script)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure_eq!(
        place.out("echo on").await?,
        "on\n",
        "another command meanwhile"
    );
    let mut all = Vec::new();
    while let Some(chunk) = execution.next_chunk().await {
        all.extend_from_slice(&chunk.data);
    }
    let expected: String = (0..30_000).map(|number| format!("{number}\n")).collect();
    ensure!(
        all == expected.as_bytes(),
        "{} of {} bytes arrived intact",
        all.len(),
        expected.len()
    );
    let result = execution.wait().await;
    ensure!(
        result.success(),
        "the command did not succeed: {}",
        short(&result)
    );
    Ok(())
}

async fn short_output_is_never_lost(cx: Context) -> Done {
    let place = cx.place().await?;
    for round in 0..100 {
        let result = place.sh("echo running").await?;
        ensure_eq!(&result.stdout[..], b"running\n", "output in round {round}");
        ensure_eq!(result.code(), Some(0), "code in round {round}");
    }
    Ok(())
}

async fn result_follows_last_chunk(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place
        .start(Cmd::shell("echo one; sleep 0.2; echo two; exit 5"))
        .await?;
    let mut text = Vec::new();
    while let Some(chunk) = execution.next_chunk().await {
        text.extend_from_slice(&chunk.data);
    }
    let result = within(Duration::from_secs(5), "the result", execution.wait()).await?;
    ensure_eq!(text, result.stdout.to_vec(), "chunks and result");
    ensure_eq!(result.code(), Some(5), "code");
    ensure!(
        execution.next_chunk().await.is_none(),
        "a chunk came after the result"
    );
    Ok(())
}

async fn result_is_the_same_when_asked_again(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut execution = place.start(Cmd::shell("echo x; exit 3")).await?;
    let first = execution.wait().await;
    let second = execution.wait().await;
    let told = |result: &ExecResult| {
        (
            result.status,
            result.ended_by,
            result.stdout.clone(),
            result.duration,
        )
    };
    ensure_eq!(told(&second), told(&first), "second answer");
    ensure_eq!(first.code(), Some(3), "code");
    Ok(())
}

async fn result_arrives_though_nobody_reads(cx: Context) -> Done {
    let place = cx.place().await?;
    let cmd = Cmd::argv(["cat", "/dev/zero"]).grace(Duration::from_millis(500));
    let mut execution = place.start(cmd).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    execution.cancel();
    let limit = Duration::from_millis(2500 + 500);
    let result = within(limit, "the result of a cancelled command", execution.wait()).await?;
    ensure_eq!(result.ended_by, EndedBy::Cancelled, "end");
    ensure!(
        !result.stdout.is_empty(),
        "the output until the cancel is lost"
    );
    Ok(())
}

async fn result_tells_the_duration(cx: Context) -> Done {
    let place = cx.place().await?;
    let started = Instant::now();
    let result = place.sh("sleep 0.4").await?;
    let outside = started.elapsed();
    ensure!(
        result.duration >= Duration::from_millis(390) && result.duration <= outside,
        "sleep 0.4 took {:?}, seen from outside {outside:?}",
        result.duration
    );
    Ok(())
}

async fn commands_run_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut running = Vec::new();
    for code in 0..24 {
        let place = place.clone();
        running.push(tokio::spawn(async move {
            let cmd = Cmd::shell(format!("echo {code}; sleep 0.2; exit {code}"));
            (code, place.run(cmd).await)
        }));
    }
    for task in running {
        let (code, result) = task.await.map_err(Stop::fail)?;
        let result = result?;
        ensure_eq!(result.code(), Some(code), "code of one of many");
        ensure_eq!(
            String::from_utf8_lossy(&result.stdout),
            format!("{code}\n"),
            "its output"
        );
    }
    Ok(())
}

/// Signatures of dead runtimes are for opaque command lines; a command may print them.
async fn text_of_a_dead_runtime_is_ordinary_output(cx: Context) -> Done {
    let place = cx.place().await?;
    let text = "failed to start sandbox: start runtime: request failed: 500";
    for code in [1, 125, 126, 127] {
        let result = place.sh(&format!("echo '{text}' >&2; exit {code}")).await?;
        ensure_eq!(result.status, Some(ExitStatus::Code(code)), "status");
        ensure!(
            result.error.is_none(),
            "the output was taken for a failure: {}",
            short(&result.error)
        );
        ensure_eq!(
            String::from_utf8_lossy(&result.stderr),
            format!("{text}\n"),
            "stderr"
        );
    }
    Ok(())
}

async fn no_descriptor_but_the_standard_ones_arrives(cx: Context) -> Done {
    let place = cx.place().await?;
    // A child lists its parent's, so that the directory it holds open itself is not among them.
    let script = "ls /proc/$$/fd; :";
    let cmd = || Cmd::argv(["sh", "-c", script]);
    for (how, cmd) in [("no", cmd()), ("some", cmd().stdin_bytes("x"))] {
        let result = place.run(cmd).await?;
        ensure_eq!(
            String::from_utf8_lossy(&result.stdout),
            "0\n1\n2\n",
            "open descriptors with {how} input"
        );
    }
    Ok(())
}

async fn there_is_no_controlling_terminal(cx: Context) -> Done {
    let place = cx.place().await?;
    let said = place
        .out("if (: </dev/tty) 2>/dev/null; then echo tty; else echo none; fi")
        .await?;
    ensure_eq!(said, "none\n", "opening /dev/tty");
    let stat = place
        .run(Cmd::argv(["cat", "/proc/self/stat"]))
        .await?
        .stdout;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let terminal = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(4));
    ensure_eq!(terminal, Some("0"), "the terminal in /proc/self/stat");
    Ok(())
}

async fn signals_are_default_and_unblocked(cx: Context) -> Done {
    let place = cx.place().await?;
    let status = place
        .run(Cmd::argv(["cat", "/proc/self/status"]))
        .await?
        .stdout;
    let status = String::from_utf8_lossy(&status).into_owned();
    for field in ["SigBlk", "SigIgn", "SigPnd"] {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(str::trim);
        ensure_eq!(value, Some("0000000000000000"), "{field}");
    }
    Ok(())
}

async fn broken_pipe_ends_a_writer(cx: Context) -> Done {
    let place = cx.place().await?;
    let result = place.sh("(yes; echo $? >&2) | head -n 1").await?;
    ensure_eq!(&result.stdout[..], b"y\n", "stdout");
    ensure_eq!(
        &result.stderr[..],
        b"141\n",
        "status of a writer whose reader went away"
    );
    Ok(())
}

async fn umask_is_022(cx: Context) -> Done {
    let place = cx.place().await?;
    let said = place
        .out("touch file; mkdir dir; stat -c %a file dir")
        .await?;
    ensure_eq!(said, "644\n755\n", "modes of a new file and directory");
    Ok(())
}

async fn sixteen_arguments_of_64_kib_arrive(cx: Context) -> Done {
    let place = cx.place().await?;
    let script = r#"for a; do printf %s "$a"; done | wc -c"#;
    let mut argv = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    argv.extend((0..16).map(|_| "x".repeat(64 << 10)));
    let result = place.run(Cmd::argv(argv)).await?;
    ensure_eq!(
        String::from_utf8_lossy(&result.stdout).trim(),
        "1048576",
        "bytes of all arguments"
    );
    Ok(())
}

async fn too_long_argument_is_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let long = "x".repeat(Cmd::MAX_ARG_LEN + 1);
    let cmds = [
        Cmd::argv(["touch", "touched", &long]),
        Cmd::shell(format!("touch touched; : {long}")),
        Cmd::argv(["touch", "touched"]).env("LONG", long.clone()),
    ];
    for cmd in cmds {
        refused(
            place.start(cmd).await,
            ErrorKind::ArgumentsTooLong,
            "an argument of 128 KiB",
        )?;
    }
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    let longest = "x".repeat(Cmd::MAX_ARG_LEN);
    let result = place.run(Cmd::argv(["printf", "%s", &longest])).await?;
    ensure_eq!(
        result.stdout.len(),
        longest.len(),
        "bytes of the longest argument"
    );
    Ok(())
}

async fn too_many_arguments_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let argument = "x".repeat(64 << 10);
    let mut argv = vec!["touch".to_owned(), "touched".to_owned()];
    argv.extend((0..40).map(|_| argument.clone()));
    let error = place.start(Cmd::argv(argv)).await;
    refused(error, ErrorKind::ArgumentsTooLong, "2.5 MiB of arguments")?;
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

async fn nul_and_empty_commands_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let none: [&str; 0] = [];
    for (what, cmd) in [
        ("an argument with NUL", Cmd::argv(["touch", "a\0b"])),
        ("a script with NUL", Cmd::shell("touch a\0b")),
        ("no argv", Cmd::argv(none)),
        ("an empty program", Cmd::argv(["", "x"])),
        (
            "a timeout of zero",
            Cmd::argv(["touch", "a"]).timeout(Duration::ZERO),
        ),
    ] {
        refused(place.start(cmd).await, ErrorKind::InvalidSpec, what)?;
    }
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

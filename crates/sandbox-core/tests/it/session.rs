//! The session, clause by clause.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use sandbox_core::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use crate::memory::{Memory, OK, full_caps};

const SECOND: Duration = Duration::from_secs(1);

async fn open() -> (Arc<Memory>, Session) {
    let memory = Memory::new();
    let session = open_with(&memory).await;
    (memory, session)
}

async fn open_with(memory: &Arc<Memory>) -> Session {
    let backend = Arc::new(Checked::new(memory.clone()));
    let spec = ContainerSpec::workdir(ContainerName::new("lab").unwrap());
    let handle = backend.create(spec).await.unwrap();
    backend.session(handle)
}

fn unavailable() -> Error {
    Error::Unavailable {
        target: "the engine".into(),
        never_started: false,
        detail: "no such file or directory: not found (ENOENT)".into(),
    }
}

#[track_caller]
fn assert_kind<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) {
    match result {
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
        Ok(value) => panic!("expected {kind:?}, got {value:?}"),
    }
}

#[track_caller]
fn assert_reason<T: std::fmt::Debug>(result: Result<T>, reason: &CancelReason) {
    match result {
        Err(Error::Cancelled {
            reason: Some(given),
        }) => assert!(given.same_as(reason)),
        other => panic!("expected the caller's reason, got {other:?}"),
    }
}

fn cancelled() -> (CancelToken, CancelReason) {
    let (token, reason) = (CancelToken::new(), CancelReason::new("the user left"));
    token.cancel_with(reason.clone());
    (token, reason)
}

#[tokio::test]
async fn the_description_says_what_an_agent_must_know() {
    let (_, session) = open().await;
    let text = session.with_network(NetworkMode::None).description();
    for part in [
        "Current working directory: /work\n",
        "Shell: /bin/sh\n",
        "Network: none",
        "lab",
        "memory",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(
        !text.contains("NOT SANDBOXED") && !text.contains("Not isolated"),
        "{text}"
    );

    let mut caps = full_caps();
    caps.isolation = Isolation::default();
    let text = open_with(&Memory::with_caps(caps)).await.description();
    assert!(text.starts_with("WARNING: NOT SANDBOXED"), "{text}");
    let mut caps = full_caps();
    caps.isolation.syscall_filter = Support::no("the kernel has none");
    let text = open_with(&Memory::with_caps(caps)).await.description();
    assert!(
        text.contains("system call filter (the kernel has none)"),
        "{text}"
    );
    assert!(!text.contains("NOT SANDBOXED"), "{text}");
}

#[tokio::test]
async fn files_are_read_as_they_were_written() {
    let (_, session) = open().await;
    let bytes = &[0, 1, 2, 0xff, 0xfe, 0, 0x80][..];
    session.write_bytes("r.bin", bytes).await.unwrap();
    for path in ["r.bin", "/work/r.bin", "./r.bin", "../work/r.bin"] {
        assert_eq!(session.read_bytes(path).await.unwrap().unwrap(), bytes);
    }
    // An empty file is not an absent one.
    session.write_bytes("empty", "").await.unwrap();
    assert_eq!(
        session.read_bytes("empty").await.unwrap(),
        Some(Bytes::new())
    );
    assert_eq!(
        session.read_text("empty").await.unwrap().as_deref(),
        Some("")
    );
    let stream = session.read_file("empty").await.unwrap().unwrap();
    assert_eq!(stream.collect(0).await.unwrap(), "");
    // Shorter content replaces longer.
    session.write_text("d/e/f", "longer").await.unwrap();
    session.write_text("d/e/f", "x").await.unwrap();
    assert_eq!(
        session.read_text("d/e/f").await.unwrap().as_deref(),
        Some("x")
    );
    session
        .write_bytes("view", Bytes::from_static(b"abcdef").slice(2..4))
        .await
        .unwrap();
    assert_eq!(session.read_bytes("view").await.unwrap().unwrap(), "cd");
}

#[tokio::test]
async fn absent_is_none_and_everything_else_is_an_error() {
    let (memory, session) = open().await;
    session.write_text("f", "x").await.unwrap();
    for path in ["absent", "no/such/dir", "f/below", "f/"] {
        assert!(session.read_file(path).await.unwrap().is_none(), "{path}");
        assert!(session.read_bytes(path).await.unwrap().is_none(), "{path}");
        let lines = FileOptions::new(path).lines(LineRange::new(Some(1), None));
        assert!(session.read_text(lines).await.unwrap().is_none(), "{path}");
        assert!(session.stat(path).await.unwrap().is_none(), "{path}");
        assert!(!session.delete_file(path).await.unwrap(), "{path}");
    }
    for path in ["absent", "no/such/dir", "f/below"] {
        assert!(session.list_dir(path).await.unwrap().is_none(), "{path}");
    }
    assert_kind(session.list_dir("f").await, ErrorKind::NotADirectory);
    session.write_text("d/x", "").await.unwrap();
    assert_kind(session.read_bytes("d").await, ErrorKind::IsADirectory);
    assert_kind(session.delete_file("d").await, ErrorKind::IsADirectory);
    assert_kind(session.write_text("d", "x").await, ErrorKind::IsADirectory);
    assert_kind(
        session.write_text("f/x", "x").await,
        ErrorKind::NotADirectory,
    );
    assert_eq!(session.read_text("f").await.unwrap().as_deref(), Some("x"));

    // A text that says "not found" does not make a dead runtime an absent file.
    for operation in ["read_file_at", "stat_at", "list_dir_at", "delete_file_at"] {
        memory.fail(operation, unavailable());
    }
    assert_kind(session.read_bytes("f").await, ErrorKind::Unavailable);
    assert_kind(session.stat("f").await, ErrorKind::Unavailable);
    assert_kind(session.list_dir(".").await, ErrorKind::Unavailable);
    assert_kind(session.delete_file("f").await, ErrorKind::Unavailable);
    let denied = Error::PermissionDenied { path: "f".into() };
    memory.fail("read_file_at", denied);
    assert_kind(session.read_bytes("f").await, ErrorKind::PermissionDenied);
    memory.fail("exec", unavailable());
    assert_kind(session.run("true").await, ErrorKind::Unavailable);
}

#[tokio::test]
async fn stat_list_and_delete() {
    let (_, session) = open().await;
    session.write_text("d/.dot", "123").await.unwrap();
    session.write_text("d/sub/x", "").await.unwrap();
    let stat = session.stat("d/.dot").await.unwrap().unwrap();
    assert_eq!((stat.kind, stat.size), (FileKind::File, 3));
    assert_eq!(
        session.stat("d").await.unwrap().unwrap().kind,
        FileKind::Directory
    );
    let mut entries = session.list_dir("d").await.unwrap().unwrap();
    entries.sort();
    let names: Vec<_> = entries.iter().map(|e| (&e.name[..], e.kind)).collect();
    assert_eq!(
        names,
        [
            (&b".dot"[..], FileKind::File),
            (&b"sub"[..], FileKind::Directory)
        ]
    );
    assert!(session.delete_file("d/.dot").await.unwrap());
    assert!(!session.delete_file("d/.dot").await.unwrap());
}

#[tokio::test]
async fn bad_paths_are_refused_before_the_backend_is_asked() {
    let (memory, session) = open().await;
    let calls = memory.log().len();
    for path in [&b""[..], b"a\0b"] {
        assert_kind(session.read_file(path).await, ErrorKind::InvalidPath);
        assert_kind(session.read_bytes(path).await, ErrorKind::InvalidPath);
        assert_kind(session.read_text(path).await, ErrorKind::InvalidPath);
        assert_kind(session.write_bytes(path, "").await, ErrorKind::InvalidPath);
        assert_kind(session.write_text(path, "").await, ErrorKind::InvalidPath);
        assert_kind(session.stat(path).await, ErrorKind::InvalidPath);
        assert_kind(session.list_dir(path).await, ErrorKind::InvalidPath);
        assert_kind(session.delete_file(path).await, ErrorKind::InvalidPath);
        assert_kind(Cmd::shell("pwd").cwd(path), ErrorKind::InvalidPath);
    }
    assert_eq!(memory.log().len(), calls);
}

#[tokio::test]
async fn texts_have_encodings_and_line_ranges() {
    let (_, session) = open().await;
    let latin1 = || FileOptions::new("t").encoding("latin1".parse().unwrap());
    session.write_text(latin1(), "é\nü\n").await.unwrap();
    assert_eq!(
        session.read_bytes("t").await.unwrap().unwrap(),
        &b"\xe9\n\xfc\n"[..]
    );
    assert_eq!(
        session.read_text(latin1()).await.unwrap().unwrap(),
        "é\nü\n"
    );
    let second = latin1().lines(LineRange::new(Some(2), Some(2)));
    assert_eq!(session.read_text(second).await.unwrap().unwrap(), "ü");
    session
        .write_text(FileOptions::new("u").encoding(Encoding::Utf16Le), "é")
        .await
        .unwrap();
    assert_eq!(
        session.read_bytes("u").await.unwrap().unwrap(),
        &[0xe9, 0][..]
    );
    assert_eq!(session.read_text("u").await.unwrap().unwrap(), "\u{fffd}\0");
}

#[tokio::test]
async fn whole_reads_are_bounded() {
    let (_, session) = open().await;
    session.write_text("f", "12345").await.unwrap();
    let session = session.with_max_read(4);
    assert_kind(session.read_bytes("f").await, ErrorKind::TooLarge);
    assert_kind(session.read_text("f").await, ErrorKind::TooLarge);
    let stream = session.read_file("f").await.unwrap().unwrap();
    assert_eq!(stream.collect(5).await.unwrap(), "12345");
}

#[tokio::test]
async fn a_stream_that_fails_leaves_the_old_file() {
    let (_, session) = open().await;
    session.write_text("f", "old").await.unwrap();
    let content = ByteStream::new(stream::iter([Ok("new".into()), Err(unavailable())]));
    assert_kind(
        session.write_file("f", content).await,
        ErrorKind::Unavailable,
    );
    assert_eq!(
        session.read_text("f").await.unwrap().as_deref(),
        Some("old")
    );
}

#[tokio::test]
async fn a_cancelled_token_stops_every_call_before_it_does_anything() {
    let (memory, session) = open().await;
    memory.program("echo changed > f", |_| async { OK });
    let (token, reason) = cancelled();
    let options = || FileOptions::new("f").cancel(token.clone());
    let calls = memory.log().len();
    assert_reason(session.read_file(options()).await, &reason);
    assert_reason(session.read_bytes(options()).await, &reason);
    assert_reason(session.read_text(options()).await, &reason);
    assert_reason(session.write_bytes(options(), "x").await, &reason);
    assert_reason(session.write_text(options(), "x").await, &reason);
    assert_reason(session.stat(options()).await, &reason);
    assert_reason(session.list_dir(options()).await, &reason);
    assert_reason(session.delete_file(options()).await, &reason);
    let cmd = || Cmd::shell("echo changed > f").cancel(token.clone());
    assert_reason(session.run(cmd()).await, &reason);
    assert_reason(session.spawn(cmd()).await, &reason);
    assert_eq!(memory.log().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_token_stops_calls_and_streams_that_are_under_way() {
    let (memory, session) = open().await;
    session.write_text("f", "old").await.unwrap();
    let (token, reason) = (CancelToken::new(), CancelReason::new("enough"));
    let canceller = token.clone();
    let given = reason.clone();
    let options = FileOptions::new("f").cancel(token.clone());
    let mut stream = session.read_file(options.clone()).await.unwrap().unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), "o");
    tokio::spawn(async move {
        sleep(SECOND).await;
        canceller.cancel_with(given);
    });
    let never = ByteStream::new(stream::pending());
    assert_reason(session.write_file(options, never).await, &reason);
    assert_reason(stream.next().await.unwrap(), &reason);
    assert!(stream.next().await.is_none());
    assert_eq!(
        session.read_text("f").await.unwrap().as_deref(),
        Some("old")
    );
    drop(memory);
}

#[tokio::test]
async fn run_gives_code_and_texts() {
    let (memory, session) = open().await;
    memory.program("echo hello && echo bye >&2", |guest| async move {
        guest.out("hello\n").await;
        guest.err("bye\n").await;
        OK
    });
    memory.program("exit 7", |_| async { ExitStatus::Code(7) });
    memory.program("kill -9 $$", |_| async { ExitStatus::Signal(9) });
    memory.program("bytes", |guest| async move {
        guest.out(&b"\xffok"[..]).await;
        OK
    });
    memory.program("where", |guest| async move {
        let value = guest.env.get("A").unwrap_or(b"unset").to_vec();
        guest.out(guest.cwd.clone()).await;
        guest.out([b"|", &value[..]].concat()).await;
        assert!(guest.env.get("HOME").is_some() && guest.stdin.is_none());
        OK
    });
    let output = session.run("echo hello && echo bye >&2").await.unwrap();
    assert_eq!(
        (output.exit_code, &*output.stdout, &*output.stderr),
        (0, "hello\n", "bye\n")
    );
    assert_eq!(session.run("exit 7").await.unwrap().exit_code, 7);
    assert_eq!(
        session
            .run("kill -9 $$".to_owned())
            .await
            .unwrap()
            .exit_code,
        137
    );
    assert_eq!(session.run("bytes").await.unwrap().stdout, "\u{fffd}ok");
    assert_eq!(session.run("where").await.unwrap().stdout, "/work|unset");
    session.write_text("sub/x", "").await.unwrap();
    let cmd = Cmd::shell("where").cwd("sub").unwrap().env("A", "it's 1 2");
    assert_eq!(session.run(cmd).await.unwrap().stdout, "/work/sub|it's 1 2");
    let cmd = Cmd::shell("where").env("A", "");
    assert_eq!(session.run(cmd).await.unwrap().stdout, "/work|");
    for cwd in ["absent", "sub/x"] {
        let cmd = Cmd::shell("where").cwd(cwd).unwrap();
        assert_kind(session.run(cmd).await, ErrorKind::BadCwd);
    }
    for name in ["", "A=B", "A\0"] {
        assert_kind(
            session.run(Cmd::shell("where").env(name, "")).await,
            ErrorKind::InvalidSpec,
        );
    }
    assert_kind(
        session.run(Cmd::shell("where").stdin_piped()).await,
        ErrorKind::InvalidSpec,
    );
}

#[tokio::test(start_paused = true)]
async fn run_keeps_output_up_to_its_limits_and_says_so() {
    let (memory, session) = open().await;
    memory.program("much", |guest| async move {
        let data = || vec![b'x'; 10 << 20];
        tokio::join!(guest.out(data()), guest.err(data()));
        OK
    });
    let output = session.run("much").await.unwrap();
    assert_eq!(
        (output.stdout.len(), output.stderr.len()),
        (8 << 20, 1 << 20)
    );
    assert!(output.stdout_truncated && output.stderr_truncated);
    let limits = OutputLimits::new(20 << 20, 20 << 20, Overflow::Kill);
    let output = session
        .run(Cmd::shell("much").limits(limits))
        .await
        .unwrap();
    assert_eq!(
        (output.stdout.len(), output.stderr.len()),
        (10 << 20, 10 << 20)
    );
    assert!(!output.stdout_truncated && output.exit_code == 0);
}

#[tokio::test(start_paused = true)]
async fn an_abort_rejects_run_with_the_reason_after_the_tree_is_dead() {
    let (memory, session) = open().await;
    memory.trapping_program("hang", |guest| async move {
        guest.background(|_| async { std::future::pending().await });
        guest.term().await;
        sleep(SECOND).await;
        OK
    });
    let (token, reason) = (CancelToken::new(), CancelReason::new("enough"));
    let (canceller, given) = (token.clone(), reason.clone());
    tokio::spawn(async move {
        sleep(SECOND).await;
        canceller.cancel_with(given);
    });
    // That it exits with 0 from its TERM trap changes nothing.
    assert_reason(session.run(Cmd::shell("hang").cancel(token)).await, &reason);
    assert_eq!(memory.processes(), 0);
    // A token that comes after the end changes nothing either.
    memory.program("true", |_| async { OK });
    let token = CancelToken::new();
    let output = session
        .run(Cmd::shell("true").cancel(token.clone()))
        .await
        .unwrap();
    token.cancel();
    assert_eq!(output.exit_code, 0);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_no_error_of_run() {
    let (memory, session) = open().await;
    memory.program("hang", |_| std::future::pending());
    let output = session
        .run(Cmd::shell("hang").timeout(SECOND))
        .await
        .unwrap();
    assert_eq!(
        (output.exit_code, output.ended_by),
        (143, EndedBy::TimedOut)
    );
}

#[tokio::test(start_paused = true)]
async fn spawn_gives_live_streams_of_exact_bytes() {
    let (memory, session) = open().await;
    memory.program("work", |guest| async move {
        guest.out(&b"a\xe2"[..]).await;
        sleep(SECOND).await;
        guest.out(&b"\x82\xac\0"[..]).await;
        guest.err("err\n").await;
        ExitStatus::Code(4)
    });
    let started = Instant::now();
    let mut process = session.spawn("work").await.unwrap();
    assert_eq!(process.pid(), Some(7));
    assert!(process.take_stdin().is_none());
    let mut stdout = process.take_stdout().unwrap();
    let stderr = process.take_stderr().unwrap();
    assert!(process.take_stdout().is_none() && process.take_stderr().is_none());
    assert_eq!(stdout.next().await.unwrap().unwrap(), &b"a\xe2"[..]);
    assert!(started.elapsed() < SECOND);
    assert_eq!(stdout.collect(10).await.unwrap(), &b"\x82\xac\0"[..]);
    assert_eq!(stderr.collect(10).await.unwrap(), "err\n");
    for _ in 0..2 {
        let exit = process.wait().await.unwrap();
        assert_eq!((exit.exit_code, exit.ended_by), (4, EndedBy::Exited));
    }
    process.kill();
    assert_eq!(process.wait().await.unwrap().exit_code, 4);
}

#[tokio::test(start_paused = true)]
async fn wait_needs_no_reader_for_small_output_and_the_streams_keep_it() {
    let (memory, session) = open().await;
    memory.program("small", |guest| async move {
        guest.out(vec![b'x'; 200_000]).await;
        guest.err("e").await;
        OK
    });
    let mut process = session.spawn("small").await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, 0);
    let stdout = process
        .take_stdout()
        .unwrap()
        .collect(1 << 20)
        .await
        .unwrap();
    assert_eq!(stdout.len(), 200_000);
    assert_eq!(
        process.take_stderr().unwrap().collect(1).await.unwrap(),
        "e"
    );
}

async fn chatty(guest: crate::memory::Guest) -> ExitStatus {
    loop {
        guest.out(vec![b'x'; MAX_CHUNK]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn kill_resolves_wait_non_zero_and_abort_rejects_it() {
    let (memory, session) = open().await;
    memory.trapping_program("chatty", chatty);
    // Nobody reads, and kill works all the same.
    let mut process = session.spawn("chatty").await.unwrap();
    sleep(SECOND).await;
    process.kill();
    process.kill();
    let exit = process.wait().await.unwrap();
    assert_eq!((exit.exit_code, exit.ended_by), (137, EndedBy::Cancelled));
    assert_eq!(memory.processes(), 0);
    let mut stdout = process.take_stdout().unwrap();
    while let Some(chunk) = stdout.next().await {
        assert!(!chunk.unwrap().is_empty());
    }

    let (token, reason) = (CancelToken::new(), CancelReason::new("enough"));
    let cmd = || Cmd::shell("chatty").grace(SECOND);
    let process = session.spawn(cmd().cancel(token.clone())).await.unwrap();
    sleep(SECOND).await;
    token.cancel_with(reason.clone());
    assert_reason(process.wait().await, &reason);
    assert_reason(process.wait().await, &reason);
    assert_eq!(memory.processes(), 0);

    // Killed first, aborted later: it was the kill.
    let token = CancelToken::new();
    let process = session.spawn(cmd().cancel(token.clone())).await.unwrap();
    process.kill();
    token.cancel();
    assert_eq!(process.wait().await.unwrap().exit_code, 137);
    // And the reverse.
    let token = CancelToken::new();
    let process = session.spawn(cmd().cancel(token.clone())).await.unwrap();
    token.cancel_with(reason.clone());
    process.kill();
    assert_reason(process.wait().await, &reason);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_away_neither_kills_nor_stops_the_other_stream() {
    let (memory, session) = open().await;
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    memory.program("both", move |guest| {
        let count = count.clone();
        async move {
            for _ in 0..100 {
                guest.out(vec![b'o'; MAX_CHUNK]).await;
                guest.err("e").await;
                count.fetch_add(1, Ordering::SeqCst);
            }
            OK
        }
    });
    let mut process = session.spawn("both").await.unwrap();
    let mut stdout = process.take_stdout().unwrap();
    stdout.next().await.unwrap().unwrap();
    drop(stdout);
    let stderr = process.take_stderr().unwrap().collect(1000).await.unwrap();
    assert_eq!(stderr.len(), 100);
    assert_eq!(process.wait().await.unwrap().exit_code, 0);
    assert_eq!(done.load(Ordering::SeqCst), 100);
}

#[tokio::test(start_paused = true)]
async fn an_unread_stream_holds_the_process_back() {
    let (memory, session) = open().await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    memory.program("much", move |guest| {
        let count = count.clone();
        async move {
            for _ in 0..200 {
                guest.out(vec![b'o'; MAX_CHUNK]).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
            OK
        }
    });
    let mut process = session.spawn("much").await.unwrap();
    sleep(60 * SECOND).await;
    assert!((16..60).contains(&written.load(Ordering::SeqCst)));
    let stdout = process
        .take_stdout()
        .unwrap()
        .collect(u64::MAX)
        .await
        .unwrap();
    assert_eq!(stdout.len(), 200 * MAX_CHUNK);
    assert_eq!(process.wait().await.unwrap().exit_code, 0);
}

#[tokio::test(start_paused = true)]
async fn stdin_is_there_when_asked_for_and_its_end_ends_nothing_else() {
    let (memory, session) = open().await;
    memory.program("cat; sleep 1", |mut guest| async move {
        let mut read = Vec::new();
        guest
            .stdin
            .take()
            .unwrap()
            .read_to_end(&mut read)
            .await
            .unwrap();
        guest.out(read).await;
        sleep(SECOND).await;
        OK
    });
    let mut process = session
        .spawn(Cmd::shell("cat; sleep 1").stdin_piped())
        .await
        .unwrap();
    let mut stdin = process.take_stdin().unwrap();
    stdin.write_all(b"one ").await.unwrap();
    stdin.write_all(b"two").await.unwrap();
    stdin.shutdown().await.unwrap();
    assert_eq!(
        process.take_stdout().unwrap().collect(100).await.unwrap(),
        "one two"
    );
    assert_eq!(process.wait().await.unwrap().exit_code, 0);
    assert!(stdin.write_all(b"late").await.is_err());
    // What is not there is refused before anything starts.
    let mut caps = full_caps();
    caps.stdin = Support::no("closed");
    let memory = Memory::with_caps(caps);
    let session = open_with(&memory).await;
    let refused = session
        .spawn(Cmd::shell("cat; sleep 1").stdin_piped())
        .await;
    assert_kind(refused, ErrorKind::Unsupported);
    assert_eq!(memory.calls_of("exec"), 0);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_process_ends_it_and_detaching_does_not() {
    let (memory, session) = open().await;
    memory.program("hang", |_| std::future::pending());
    drop(session.spawn("hang").await.unwrap());
    sleep(3 * SECOND).await;
    assert_eq!(memory.processes(), 0);
    let mut process = session.spawn("hang").await.unwrap();
    let stdout = process.take_stdout();
    process.detach();
    sleep(3 * SECOND).await;
    assert_eq!(memory.processes(), 1);
    drop(stdout);
    sleep(3 * SECOND).await;
    assert_eq!(memory.processes(), 1);
}

#[tokio::test]
async fn many_commands_and_file_calls_run_at_once() {
    let (memory, session) = open().await;
    let gate = Arc::new(tokio::sync::Barrier::new(9));
    let inside = gate.clone();
    memory.program("meet", move |_| {
        let inside = inside.clone();
        async move {
            inside.wait().await;
            OK
        }
    });
    let runs: Vec<_> = (0..8)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.run("meet").await.unwrap().exit_code })
        })
        .collect();
    while memory.calls_of("exec") < 8 {
        tokio::task::yield_now().await;
    }
    session.write_text("f", "x").await.unwrap();
    assert!(runs.iter().all(|run| !run.is_finished()));
    gate.wait().await;
    for run in runs {
        assert_eq!(run.await.unwrap(), 0);
    }
}

/// A backend whose executions lose their transport.
#[tokio::test]
async fn a_transport_that_is_lost_is_an_error_of_run_wait_and_both_streams() {
    let (memory, session) = open().await;
    // The script's panic ends its task, and with it what the supervisor waits for.
    memory.program("lost", |guest| async move {
        guest.out("partial").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        panic!("this panic is part of the test");
    });
    assert_kind(session.run("lost").await, ErrorKind::Unavailable);
    let mut process = session.spawn("lost").await.unwrap();
    let mut stdout = process.take_stdout().unwrap();
    assert_eq!(stdout.next().await.unwrap().unwrap(), "partial");
    assert_kind(stdout.next().await.unwrap(), ErrorKind::Unavailable);
    assert!(stdout.next().await.is_none());
    let mut stderr = process.take_stderr().unwrap();
    assert_kind(stderr.next().await.unwrap(), ErrorKind::Unavailable);
    assert_kind(process.wait().await, ErrorKind::Unavailable);
}

//! Timeouts, grace, overflow, drain and back-pressure, on a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use sandbox_core::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use crate::memory::{self, Guest, OK, Tree};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn cmd() -> Cmd {
    Cmd::argv(["test"])
}

fn start<F: Future<Output = ExitStatus> + Send + 'static>(
    cmd: Cmd,
    script: impl Fn(Guest) -> F + Send + Sync + 'static,
) -> (Execution, Arc<Tree>) {
    let script = Arc::new(move |guest| Box::pin(script(guest)) as _);
    memory::start(&cmd, false, "/".into(), Env::new(), script)
}

/// A script that does not die of TERM.
fn start_trapping<F: Future<Output = ExitStatus> + Send + 'static>(
    cmd: Cmd,
    script: impl Fn(Guest) -> F + Send + Sync + 'static,
) -> (Execution, Arc<Tree>) {
    let script = Arc::new(move |guest| Box::pin(script(guest)) as _);
    memory::start(&cmd, true, "/".into(), Env::new(), script)
}

async fn forever() -> ExitStatus {
    std::future::pending().await
}

fn kill_limits(stdout: u64, stderr: u64) -> OutputLimits {
    OutputLimits::new(stdout, stderr, Overflow::Kill)
}

#[tokio::test(start_paused = true)]
async fn output_comes_live_in_order_and_before_the_result() {
    let (mut execution, tree) = start(cmd(), |guest| async move {
        for line in ["1\n", "2\n", "3\n"] {
            guest.out(line).await;
            sleep(ms(100)).await;
        }
        guest.err("oops").await;
        ExitStatus::Code(7)
    });
    let started = Instant::now();
    let mut times = Vec::new();
    let mut chunks = Vec::new();
    while let Some(chunk) = execution.next_chunk().await {
        times.push(started.elapsed().as_millis());
        chunks.push(chunk.data);
    }
    assert_eq!(chunks, ["1\n", "2\n", "3\n", "oops"]);
    assert_eq!(times, [0, 100, 200, 300]);
    for _ in 0..2 {
        let result = execution.wait().await;
        assert_eq!(result.code(), Some(7));
        assert_eq!(
            (&result.stdout[..], &result.stderr[..]),
            (&b"1\n2\n3\n"[..], &b"oops"[..])
        );
        assert_eq!(result.ended_by, EndedBy::Exited);
        assert_eq!(result.duration, ms(300));
        assert!(!result.background && !result.stdout_truncated && result.error.is_none());
    }
    assert!(tree.released());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_gives_grace_and_keeps_the_last_words() {
    let (mut execution, tree) = start_trapping(cmd().timeout(10 * SECOND), |guest| async move {
        guest.out("working\n").await;
        guest.term().await;
        guest.out("bye\n").await;
        ExitStatus::Code(7)
    });
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::TimedOut);
    assert_eq!(result.status, Some(ExitStatus::Code(7)));
    assert_eq!(result.stdout, "working\nbye\n");
    assert_eq!(result.duration, 10 * SECOND);
    assert_eq!(tree.ends(), [2 * SECOND]);
}

#[tokio::test(start_paused = true)]
async fn who_ignores_term_is_killed_after_the_grace() {
    for (timeout, grace, expected) in [
        (10 * SECOND, None, 2 * SECOND),
        (SECOND, None, ms(500)),
        (SECOND, Some(5 * SECOND), 5 * SECOND),
        (SECOND, Some(Duration::ZERO), Duration::ZERO),
    ] {
        let mut cmd = cmd().timeout(timeout);
        cmd.grace = grace;
        let started = Instant::now();
        let (mut execution, tree) = start_trapping(cmd, |_| forever());
        let result = execution.wait().await;
        assert_eq!(result.ended_by, EndedBy::TimedOut);
        assert_eq!(result.status, Some(ExitStatus::Signal(9)));
        // The runtime's clock rounds up to whole milliseconds.
        let late = started.elapsed() - (timeout + expected);
        assert!(late <= ms(5), "{late:?}");
        assert_eq!((tree.ends(), tree.live()), (vec![expected], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn long_timeouts_are_neither_cut_nor_too_much() {
    let (mut execution, _) = start(cmd().timeout(49 * DAY), |_| async {
        sleep(48 * DAY).await;
        OK
    });
    assert_eq!(execution.wait().await.ended_by, EndedBy::Exited);
    let started = Instant::now();
    let (mut execution, _) = start(cmd().timeout(49 * DAY), |_| forever());
    assert_eq!(execution.wait().await.ended_by, EndedBy::TimedOut);
    assert!(started.elapsed() >= 49 * DAY);
    let cmd = cmd().timeout(Duration::MAX).grace(Duration::MAX);
    let (mut execution, _) = start_trapping(cmd, |guest| async move {
        sleep(3 * DAY).await;
        guest.term().await;
        OK
    });
    sleep(SECOND).await;
    execution.cancel();
    let result = execution.wait().await;
    assert_eq!(
        (result.ended_by, result.code()),
        (EndedBy::Cancelled, Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn exactly_the_limit_is_no_overflow_and_one_more_is() {
    for (stream, by) in [
        (OutputStream::Stdout, EndedBy::OverflowStdout),
        (OutputStream::Stderr, EndedBy::OverflowStderr),
    ] {
        for size in [99_999, 100_000, 100_001, 1_000_000] {
            let cmd = cmd().limits(kill_limits(100_000, 100_000));
            let (mut execution, tree) = start(cmd, move |guest| async move {
                let data = vec![b'x'; size];
                match stream {
                    OutputStream::Stdout => guest.out(data).await,
                    OutputStream::Stderr => guest.err(data).await,
                }
                if size > 100_000 { forever().await } else { OK }
            });
            let result = execution.wait().await;
            let (kept, truncated) = match stream {
                OutputStream::Stdout => (&result.stdout, result.stdout_truncated),
                OutputStream::Stderr => (&result.stderr, result.stderr_truncated),
            };
            assert_eq!(kept.len(), size.min(100_000));
            let over = size > 100_000;
            assert_eq!((truncated, result.ended_by == by), (over, over), "{size}");
            assert_eq!(tree.live(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn overflow_of_a_command_that_has_exited_is_still_overflow() {
    let (mut execution, _) = start(cmd().limits(kill_limits(10, 10)), |guest| async move {
        guest.out(vec![b'x'; 11]).await;
        OK
    });
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::OverflowStdout);
    assert_eq!((result.stdout.len(), result.stdout_truncated), (10, true));
}

#[tokio::test(start_paused = true)]
async fn truncation_lets_the_command_go_on_and_the_chunks_are_whole() {
    let limits = OutputLimits::new(10, 0, Overflow::Truncate);
    let (mut execution, _) = start(cmd().limits(limits), |guest| async move {
        guest.out(vec![b'x'; 300_000]).await;
        guest.err("e").await;
        ExitStatus::Code(3)
    });
    let mut delivered = 0;
    while let Some(chunk) = execution.next_chunk().await {
        assert!(chunk.data.len() <= MAX_CHUNK);
        delivered += chunk.data.len();
    }
    assert_eq!(delivered, 300_001);
    let result = execution.wait().await;
    assert_eq!((result.code(), result.ended_by), (Some(3), EndedBy::Exited));
    assert_eq!((result.stdout.len(), result.stderr.len()), (10, 0));
    assert!(result.stdout_truncated && result.stderr_truncated);
}

#[tokio::test(start_paused = true)]
async fn both_streams_carry_much_at_once_though_nobody_reads_before_the_wait() {
    let (mut execution, _) = start(cmd(), |guest| async move {
        let data = || vec![b'x'; 10 << 20];
        tokio::join!(guest.out(data()), guest.err(data()));
        OK
    });
    sleep(SECOND).await;
    let result = execution.wait().await;
    assert_eq!(result.code(), Some(0));
    assert_eq!(
        (result.stdout.len(), result.stderr.len()),
        (8 << 20, 1 << 20)
    );
    assert!(result.stdout_truncated && result.stderr_truncated);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_slows_the_process_down_and_loses_nothing() {
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let (mut execution, _) = start(cmd(), move |guest| {
        let count = Arc::clone(&count);
        async move {
            for _ in 0..200 {
                guest.out(vec![b'x'; MAX_CHUNK]).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
            OK
        }
    });
    sleep(60 * SECOND).await;
    let ahead = written.load(Ordering::SeqCst);
    assert!((1..40).contains(&ahead), "{ahead} chunks are in memory");
    let mut read = 0;
    while let Some(chunk) = execution.next_chunk().await {
        read += chunk.data.len();
        sleep(ms(10)).await;
    }
    assert_eq!(read, 200 * MAX_CHUNK);
    assert_eq!(execution.wait().await.code(), Some(0));
}

async fn chatty(guest: Guest) -> ExitStatus {
    loop {
        guest.out(vec![b'x'; MAX_CHUNK]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_cancel_kill_or_destroy_the_result_comes_though_nobody_reads() {
    let (mut execution, tree) = start_trapping(cmd().grace(SECOND), chatty);
    sleep(SECOND).await;
    execution.cancel();
    sleep(SECOND + ms(1990)).await;
    assert!(tree.released(), "the result was not published");
    let result = execution.wait().await;
    assert_eq!((result.ended_by, tree.live()), (EndedBy::Cancelled, 0));
    assert!(!result.stdout.is_empty());

    let (mut execution, tree) = start_trapping(cmd(), chatty);
    sleep(SECOND).await;
    execution.kill();
    sleep(ms(1990)).await;
    assert!(tree.released(), "the result was not published");
    assert_eq!((execution.wait().await.code(), tree.live()), (Some(137), 0));

    let (mut execution, tree) = start(cmd(), chatty);
    sleep(SECOND).await;
    tree.destroy();
    sleep(ms(1990)).await;
    assert!(tree.released(), "the result was not published");
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::Destroyed);
    assert!(result.error.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_does_not_count_while_the_reader_is_slow() {
    let (mut execution, tree) = start(cmd().timeout(2 * SECOND), |guest| async move {
        guest.out(vec![b'x'; 19 * MAX_CHUNK]).await;
        OK
    });
    sleep(10 * SECOND).await;
    assert!(!tree.released(), "some of its output is not delivered yet");
    let result = execution.wait().await;
    assert_eq!((result.ended_by, result.code()), (EndedBy::Exited, Some(0)));
    assert_eq!(tree.ends(), []);
}

#[tokio::test(start_paused = true)]
async fn destroy_during_the_grace_keeps_the_first_reason() {
    let (mut execution, tree) = start_trapping(cmd().grace(100 * SECOND), |_| forever());
    sleep(SECOND).await;
    execution.cancel();
    sleep(SECOND).await;
    tree.destroy();
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::Cancelled);
    assert!(result.duration < 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn background_processes_do_not_hold_the_result_and_live_on() {
    let started = Instant::now();
    let (mut execution, tree) = start(cmd(), |guest| async move {
        guest.background(|guest| async move {
            sleep(30 * SECOND).await;
            guest.out("late, to nobody").await;
            sleep(30 * SECOND).await;
        });
        guest.out("hi\n").await;
        OK
    });
    let result = execution.wait().await;
    assert!(started.elapsed() < SECOND);
    assert_eq!((result.code(), &result.stdout[..]), (Some(0), &b"hi\n"[..]));
    assert!(result.background);
    assert_eq!(
        result.duration,
        Duration::ZERO,
        "the direct process's own time"
    );
    assert_eq!(tree.live(), 1);
    drop(execution);
    sleep(40 * SECOND).await;
    assert_eq!((tree.live(), tree.ends()), (1, vec![]), "it lives on");
}

#[tokio::test(start_paused = true)]
async fn the_drain_waits_100_ms_without_data_and_2_s_in_all() {
    // Every 80 ms something comes, for 500 ms; then silence.
    let started = Instant::now();
    let (mut execution, _) = start(cmd(), |guest| async move {
        guest.background(|guest| async move {
            for _ in 0..6 {
                sleep(ms(80)).await;
                guest.out(".").await;
            }
            sleep(DAY).await;
        });
        OK
    });
    assert_eq!(execution.wait().await.stdout, "......");
    assert!(
        (ms(580)..ms(620)).contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    // Something comes for ever.
    let started = Instant::now();
    let (mut execution, tree) = start(cmd(), |guest| async move {
        guest.background(|guest| async move {
            loop {
                sleep(ms(10)).await;
                guest.out(".").await;
            }
        });
        OK
    });
    let result = execution.wait().await;
    assert!(
        (2 * SECOND..ms(2100)).contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    assert!(result.background && result.stdout.len() > 150);
    assert_eq!(tree.live(), 1);
}

#[tokio::test(start_paused = true)]
async fn background_processes_end_with_a_cancel() {
    let (execution, tree) = start(cmd().grace(SECOND), |guest| async move {
        guest.background(|guest| async move {
            loop {
                sleep(ms(10)).await;
                guest.out(".").await;
            }
        });
        OK
    });
    sleep(ms(500)).await;
    execution.cancel();
    let mut execution = execution;
    let result = execution.wait().await;
    assert_eq!((result.ended_by, result.code()), (EndedBy::Exited, Some(0)));
    assert!(!result.background);
    assert_eq!(tree.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn cancel_by_token_ends_the_tree() {
    let token = CancelToken::new();
    let (mut execution, tree) = start(cmd().cancel(token.clone()), |guest| async move {
        guest.background(|_| async {
            forever().await;
        });
        guest.out("so far").await;
        forever().await
    });
    sleep(SECOND).await;
    token.cancel_with(CancelReason::new("enough"));
    let result = execution.wait().await;
    assert_eq!(
        (result.ended_by, &result.stdout[..]),
        (EndedBy::Cancelled, &b"so far"[..])
    );
    assert_eq!(result.code(), Some(143));
    assert_eq!(tree.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_reason_stays_and_a_later_call_only_shortens_the_grace() {
    let (mut execution, tree) =
        start_trapping(cmd().timeout(SECOND).grace(10 * SECOND), |_| forever());
    sleep(2 * SECOND).await;
    execution.cancel();
    sleep(SECOND).await;
    execution.kill();
    execution.cancel();
    execution.kill();
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::TimedOut);
    assert!(result.duration < 4 * SECOND);
    assert_eq!(tree.ends(), [10 * SECOND, Duration::ZERO]);
    execution.kill();
    execution.cancel();
    assert_eq!(execution.wait().await.ended_by, EndedBy::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn dropping_cancels_and_detaching_does_not() {
    let (execution, tree) = start(cmd(), |_| forever());
    sleep(SECOND).await;
    drop(execution);
    sleep(SECOND).await;
    assert_eq!((tree.live(), tree.ends()), (0, vec![2 * SECOND]));
    assert!(tree.released());

    let (execution, tree) = start(cmd(), |guest| async move {
        for _ in 0..1000 {
            guest.out(vec![b'x'; MAX_CHUNK]).await;
        }
        sleep(10 * SECOND).await;
        OK
    });
    execution.detach();
    sleep(5 * SECOND).await;
    assert_eq!((tree.live(), tree.ends()), (1, vec![]));
    sleep(10 * SECOND).await;
    assert_eq!(tree.live(), 0);
    assert!(tree.released(), "nothing of it stays");
}

#[tokio::test(start_paused = true)]
async fn dropping_after_the_result_ends_nothing() {
    let (mut execution, tree) = start(cmd(), |guest| async move {
        guest.background(|_| async {
            forever().await;
        });
        OK
    });
    execution.wait().await;
    drop(execution);
    sleep(10 * SECOND).await;
    assert_eq!(tree.live(), 1);
}

#[tokio::test(start_paused = true)]
async fn stdin_bytes_arrive_exactly_and_need_not_be_read() {
    let input: Vec<u8> = (0..4_000_000_u32).map(|n| n as u8).collect();
    let (mut execution, _) = start(cmd().stdin_bytes(input.clone()), |mut guest| async move {
        let mut read = Vec::new();
        guest
            .stdin
            .take()
            .unwrap()
            .read_to_end(&mut read)
            .await
            .unwrap();
        guest.out(read).await;
        OK
    });
    assert_eq!(execution.wait().await.stdout, input);
    let (mut execution, _) = start(cmd().stdin_bytes(input), |_| async { OK });
    let result = execution.wait().await;
    assert!(result.success());
}

#[tokio::test(start_paused = true)]
async fn piped_stdin_ends_when_it_is_dropped_and_breaks_for_the_writer_only() {
    let (mut execution, _) = start(cmd().stdin_piped(), |mut guest| async move {
        let mut read = String::new();
        guest
            .stdin
            .take()
            .unwrap()
            .read_to_string(&mut read)
            .await
            .unwrap();
        guest.out(read).await;
        sleep(SECOND).await;
        OK
    });
    let mut stdin = execution.take_stdin().unwrap();
    assert!(execution.take_stdin().is_none());
    stdin.write_all(b"one ").await.unwrap();
    stdin.write_all(b"two").await.unwrap();
    drop(stdin);
    let result = execution.wait().await;
    assert_eq!(
        (&result.stdout[..], result.code()),
        (&b"one two"[..], Some(0))
    );

    // Who only waits cannot write any more.
    let (mut execution, _) = start(cmd().stdin_piped(), |mut guest| async move {
        let mut stdin = guest.stdin.take().unwrap();
        assert_eq!(stdin.read(&mut [0]).await.unwrap(), 0);
        OK
    });
    assert!(execution.wait().await.success());

    let (mut execution, _) = start(cmd().stdin_piped(), |_| async { OK });
    let mut stdin = execution.take_stdin().unwrap();
    assert!(execution.wait().await.success());
    let error = stdin.write_all(&[0; 100]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn resizes_reach_the_process() {
    let (mut execution, tree) = start(cmd().pty(PtySize::default()), |_| async {
        sleep(SECOND).await;
        OK
    });
    let size = PtySize {
        rows: 1,
        columns: 2,
    };
    execution.resize(size);
    execution.wait().await;
    assert_eq!(tree.resizes(), [size]);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_dropped_is_an_error_and_no_hang() {
    let (mut execution, mut sink) = Execution::channel(OutputLimits::default(), None);
    sink.send(OutputStream::Stdout, "partial".into()).await;
    drop(sink);
    assert_eq!(execution.next_chunk().await.unwrap().data, "partial");
    assert!(execution.next_chunk().await.is_none());
    let result = execution.wait().await;
    assert_eq!(result.error.unwrap().kind(), ErrorKind::Unavailable);
    assert_eq!(result.status, None);
}

/// A process whose transport misbehaves as told.
struct Broken {
    output: Vec<Result<Chunk>>,
    exit: Option<Result<Exit>>,
    /// Bytes that were written before the exit come only now.
    late: Option<(std::pin::Pin<Box<tokio::time::Sleep>>, Bytes)>,
    never_ends: bool,
}

impl Process for Broken {
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Chunk>>> {
        if !self.output.is_empty() {
            return Poll::Ready(Some(self.output.remove(0)));
        }
        if let Some((sleep, _)) = &mut self.late {
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let (_, data) = self.late.take().unwrap();
            return Poll::Ready(Some(Ok(Chunk {
                stream: OutputStream::Stdout,
                data,
            })));
        }
        Poll::Pending
    }

    fn poll_exit(&mut self, _: &mut Context<'_>) -> Poll<Result<Exit>> {
        match self.exit.take() {
            Some(exit) => Poll::Ready(exit),
            None => Poll::Pending,
        }
    }

    fn end(&mut self, _: Duration) {}

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.never_ends {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn resize(&mut self, _: PtySize) {}

    fn release(self: Box<Self>) {}
}

fn broken() -> Broken {
    let chunk = Chunk {
        stream: OutputStream::Stdout,
        data: "partial".into(),
    };
    Broken {
        output: vec![Ok(chunk)],
        exit: None,
        late: None,
        never_ends: false,
    }
}

fn lost() -> Error {
    Error::Unavailable {
        target: "the engine".into(),
        never_started: false,
        detail: "the connection was reset".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_fails_is_an_error_with_the_output_so_far() {
    let process = Broken {
        exit: Some(Err(lost())),
        ..broken()
    };
    let result = supervise(Box::new(process), &cmd(), None).wait().await;
    assert_eq!(result.error.unwrap().kind(), ErrorKind::Unavailable);
    assert_eq!((&result.stdout[..], result.status), (&b"partial"[..], None));

    let mut process = Broken {
        exit: Some(Ok(Exit::new(OK))),
        ..broken()
    };
    process.output.push(Err(lost()));
    let result = supervise(Box::new(process), &cmd(), None).wait().await;
    assert_eq!(
        result.error.as_ref().unwrap().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(
        (&result.stdout[..], result.code()),
        (&b"partial"[..], Some(0))
    );
    assert!(!result.success());
}

#[tokio::test(start_paused = true)]
async fn output_from_before_the_exit_is_awaited_however_slow_but_not_for_ever() {
    for (delay, arrives) in [(ms(5000), true), (DAY, false)] {
        let mut exit = Exit::new(OK);
        exit.unread_stdout = "partialtail".len() as u64;
        let process = Broken {
            exit: Some(Ok(exit)),
            late: Some((Box::pin(sleep(delay)), "tail".into())),
            ..broken()
        };
        let started = Instant::now();
        let result = supervise(Box::new(process), &cmd(), None).wait().await;
        assert_eq!(&result.stdout[..] == b"partialtail", arrives);
        assert!(started.elapsed() < 12 * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_cannot_be_ended_gives_an_error_in_time() {
    let process = Broken {
        never_ends: true,
        ..broken()
    };
    let started = Instant::now();
    let mut execution = supervise(Box::new(process), &cmd().grace(SECOND), None);
    execution.cancel();
    let result = execution.wait().await;
    assert!(started.elapsed() <= 3 * SECOND);
    assert_eq!(result.ended_by, EndedBy::Cancelled);
    assert_eq!(result.error.unwrap().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn out_of_memory_is_told_from_a_kill() {
    let mut exit = Exit::new(ExitStatus::Signal(9));
    exit.out_of_memory = true;
    let process = Broken {
        exit: Some(Ok(exit)),
        ..broken()
    };
    let result = supervise(Box::new(process), &cmd(), None).wait().await;
    assert_eq!(
        (result.ended_by, result.code()),
        (EndedBy::OutOfMemory, Some(137))
    );
    assert!(!result.success());
}

//! `run_sandboxed`, clause by clause.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::*;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep};

use crate::memory::{Memory, OK};

const SECOND: Duration = Duration::from_secs(1);

fn options(program: &str) -> RunOptions {
    RunOptions::new([program], 10 * SECOND)
}

async fn run(memory: &Arc<Memory>, options: RunOptions) -> Result<RunResult> {
    let result = run_sandboxed(Arc::new(Checked::new(memory.clone())), options).await;
    assert_eq!(memory.live(), 0, "the sandbox is gone before the result");
    result
}

fn unavailable() -> Error {
    Error::Unavailable {
        target: "the engine".into(),
        never_started: true,
        detail: "gone".into(),
    }
}

#[track_caller]
fn assert_not_exit(result: &RunResult, outcome: RunOutcome) {
    assert_eq!(result.outcome, outcome);
    assert_eq!((result.exit_code, result.signal), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_ends_by_itself() {
    let memory = Memory::new();
    memory.program("both", |guest| async move {
        guest.out("out").await;
        guest.err("err").await;
        sleep(SECOND).await;
        ExitStatus::Code(42)
    });
    memory.program("killed", |_| async { ExitStatus::Signal(9) });
    let result = run(&memory, options("both")).await.unwrap();
    assert_eq!(result.outcome, RunOutcome::Exit);
    assert_eq!((result.exit_code, result.signal), (Some(42), None));
    assert_eq!(
        (result.stdout_text(), result.stderr_text()),
        ("out".into(), "err".into())
    );
    assert!(!result.stdout_truncated && !result.stderr_truncated);
    assert_eq!(
        (result.duration, result.error_message.as_str()),
        (SECOND, "")
    );
    assert!(result.cleanup_error.is_none());
    let result = run(&memory, options("killed")).await.unwrap();
    assert_eq!(result.outcome, RunOutcome::Exit);
    assert_eq!((result.exit_code, result.signal), (None, Some(9)));
}

#[tokio::test]
async fn an_owned_cwd_is_fresh_and_a_given_one_is_kept() {
    let memory = Memory::new();
    memory.program("pwd", |guest| async move {
        guest.out(guest.cwd.clone()).await;
        OK
    });
    let first = run(&memory, options("pwd")).await.unwrap();
    assert!(first.cwd_owned && first.cwd.is_absolute());
    assert_eq!(first.stdout_text(), first.cwd.to_text());
    let second = run(&memory, options("pwd")).await.unwrap();
    assert_ne!(first.cwd, second.cwd);
    let cwd = SandboxPath::new("/work").unwrap();
    let result = run(&memory, options("pwd").cwd(cwd.clone())).await.unwrap();
    assert_eq!((result.cwd_owned, &result.cwd), (false, &cwd));
    assert_eq!(result.stdout_text(), "/work");
}

#[tokio::test]
async fn what_cannot_be_started_is_an_outcome_that_says_why() {
    let memory = Memory::new();
    memory.program("true", |_| async { OK });
    let result = run(&memory, options("absent")).await.unwrap();
    assert_not_exit(&result, RunOutcome::SpawnError);
    assert!(
        result.error_message.contains("absent"),
        "{}",
        result.error_message
    );
    assert_eq!(result.duration, Duration::ZERO);
    let cwd = SandboxPath::new("/no/such/dir").unwrap();
    let result = run(&memory, options("true").cwd(cwd)).await.unwrap();
    assert_not_exit(&result, RunOutcome::SpawnError);
    assert!(
        result.error_message.contains("/no/such/dir"),
        "{}",
        result.error_message
    );
}

#[tokio::test]
async fn input_is_exact_then_ends_and_need_not_be_read() {
    let memory = Memory::new();
    memory.program("cat", |mut guest| async move {
        let mut read = Vec::new();
        if let Some(mut stdin) = guest.stdin.take() {
            stdin.read_to_end(&mut read).await.unwrap();
        }
        guest.out(read).await;
        OK
    });
    memory.program("true", |_| async { OK });
    for (input, output) in [(None, ""), (Some(""), ""), (Some("a\0é"), "a\0é")] {
        let mut options = options("cat");
        if let Some(input) = input {
            options = options.stdin(input);
        }
        assert_eq!(run(&memory, options).await.unwrap().stdout, output);
    }
    let result = run(&memory, options("true").stdin(vec![0; 4_000_000]))
        .await
        .unwrap();
    assert_eq!(
        (result.outcome, result.exit_code),
        (RunOutcome::Exit, Some(0))
    );
}

#[tokio::test]
async fn only_named_variables_are_passed() {
    let memory = Memory::new();
    memory.program("env", |guest| async move {
        for (name, value) in guest.env.iter() {
            guest.out([name, b"=", value, b"\n"].concat()).await;
        }
        OK
    });
    let options = options("env")
        .env("UNICODE", "é\n")
        .env("EMPTY", "")
        .env("PATH", "/own");
    let env = run(&memory, options).await.unwrap().stdout_text();
    assert_eq!(env, "EMPTY=\nHOME=/root\nPATH=/own\nUNICODE=é\n\n");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_keeps_what_was_written() {
    let memory = Memory::new();
    memory.trapping_program("trap", |guest| async move {
        guest.out("so far ").await;
        guest.term().await;
        guest.out("last words").await;
        ExitStatus::Code(7)
    });
    memory.trapping_program("ignore", |_| std::future::pending());
    let result = run(&memory, options("trap")).await.unwrap();
    assert_not_exit(&result, RunOutcome::Timeout);
    assert_eq!(result.stdout, "so far last words");
    let started = Instant::now();
    let result = run(&memory, options("ignore").grace(SECOND)).await.unwrap();
    assert_not_exit(&result, RunOutcome::Timeout);
    assert!((11 * SECOND..12 * SECOND).contains(&started.elapsed()));
    // Short timeouts need no grace of their own, and long ones are not cut.
    let short = RunOptions::new(["ignore"], Duration::from_millis(100));
    assert_not_exit(&run(&memory, short).await.unwrap(), RunOutcome::Timeout);
    let started = Instant::now();
    let long = RunOptions::new(["ignore"], Duration::from_millis(3_000_000_000));
    assert_not_exit(&run(&memory, long).await.unwrap(), RunOutcome::Timeout);
    assert!(started.elapsed() >= Duration::from_millis(3_000_000_000));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_before_or_during_any_step_is_an_outcome() {
    let memory = Memory::new();
    memory.program("hang", |guest| async move {
        guest.out("partial").await;
        std::future::pending().await
    });
    let token = CancelToken::new();
    token.cancel();
    let result = run(&memory, options("hang").cancel(token)).await.unwrap();
    assert_not_exit(&result, RunOutcome::Canceled);
    assert_eq!((result.duration, memory.log()), (Duration::ZERO, vec![]));
    assert!(result.cwd_owned);

    let token = CancelToken::new();
    let canceller = token.clone();
    tokio::spawn(async move {
        sleep(SECOND).await;
        canceller.cancel();
    });
    let result = run(&memory, options("hang").cancel(token)).await.unwrap();
    assert_not_exit(&result, RunOutcome::Canceled);
    assert_eq!(result.stdout, "partial");

    for operation in ["create", "write_tree_at", "exec"] {
        let memory = Memory::new();
        memory.gate(operation);
        let token = CancelToken::new();
        let canceller = token.clone();
        tokio::spawn(async move {
            sleep(SECOND).await;
            canceller.cancel();
        });
        let result = run(&memory, options("hang").cancel(token)).await.unwrap();
        assert_not_exit(&result, RunOutcome::Canceled);
        assert_eq!(memory.calls_of(operation), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn overflow_is_exact() {
    let memory = Memory::new();
    memory.program("out", |guest| async move {
        guest.out(vec![b'o'; 10_000]).await;
        OK
    });
    memory.program("err", |guest| async move {
        guest.err(vec![b'e'; 10_000]).await;
        OK
    });
    memory.program("é", |guest| async move {
        guest.out("éé").await;
        OK
    });
    for (program, stdout, stderr, outcome) in [
        ("out", 100, 50, RunOutcome::OverflowStdout),
        ("err", 100, 50, RunOutcome::OverflowStderr),
        ("out", 10_000, 1, RunOutcome::Exit),
        ("out", 9_999, 1, RunOutcome::OverflowStdout),
        ("err", 1, 10_000, RunOutcome::Exit),
        ("err", 1, 9_999, RunOutcome::OverflowStderr),
    ] {
        let result = run(&memory, options(program).max_output(stdout, stderr))
            .await
            .unwrap();
        assert_eq!(result.outcome, outcome, "{program} {stdout} {stderr}");
        let over = outcome != RunOutcome::Exit;
        let (kept, limit, truncated) = match program {
            "out" => (result.stdout.len(), stdout, result.stdout_truncated),
            _ => (result.stderr.len(), stderr, result.stderr_truncated),
        };
        assert_eq!((kept as u64, truncated), (limit.min(10_000), over));
        assert_eq!(result.exit_code, (!over).then_some(0));
    }
    let result = run(&memory, options("é").max_output(3, 1)).await.unwrap();
    assert_eq!(result.stdout_text(), "é\u{fffd}");
    assert_eq!(result.stdout.len(), 3);
}

#[tokio::test]
async fn options_that_are_invalid_are_refused_before_anything_happens() {
    let memory = Memory::new();
    let bad: Vec<RunOptions> = vec![
        RunOptions::new(Vec::<Vec<u8>>::new(), SECOND),
        RunOptions::new([""], SECOND),
        RunOptions::new(["a\0"], SECOND),
        RunOptions::new(["a"], Duration::ZERO),
        options("a").grace(10 * SECOND),
        options("a").grace(11 * SECOND),
        options("a").max_output(0, 1),
        options("a").max_output(1, 0),
        options("a").cwd(SandboxPath::new("relative").unwrap()),
        options("a").env("A=B", ""),
        options("a").env("A", "\0"),
        options("a").spec({
            let mut spec = ContainerSpec::workdir(ContainerName::new("a").unwrap());
            spec.limits.pids = Some(0);
            spec
        }),
    ];
    for options in bad {
        let shown = format!("{options:?}");
        match run(&memory, options).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{shown}"),
            Ok(_) => panic!("accepted: {shown}"),
        }
    }
    assert_eq!(memory.log(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_not_about_the_command_is_an_error_and_leaves_nothing() {
    for operation in ["create", "write_tree_at", "exec"] {
        let memory = Memory::new();
        memory.program("true", |_| async { OK });
        memory.fail(operation, unavailable());
        let error = run(&memory, options("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{operation}");
    }
    let memory = Memory::new();
    let mut spec = ContainerSpec::workdir(ContainerName::new("a").unwrap());
    spec.network = NetworkMode::Host;
    let error = run(&memory, options("true").spec(spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_sandbox_that_stays_is_told() {
    let memory = Memory::new();
    memory.program("true", |_| async { OK });
    memory.fail("destroy", unavailable());
    let result = run_sandboxed(memory.clone(), options("true"))
        .await
        .unwrap();
    assert_eq!(result.exit_code, Some(0));
    assert_eq!(result.cleanup_error.unwrap().kind(), ErrorKind::Unavailable);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(memory.calls_of("destroy"), 1);
}

#[tokio::test]
async fn the_given_spec_is_used() {
    let memory = Memory::new();
    memory.program("where", |guest| async move {
        guest.out(guest.env.get("A").unwrap().to_vec()).await;
        OK
    });
    let mut spec = ContainerSpec::workdir(ContainerName::new("job-7").unwrap());
    spec.env.set("A", "from the spec");
    let result = run(&memory, options("where").spec(spec)).await.unwrap();
    assert_eq!(result.stdout, "from the spec");
    assert_eq!(memory.log()[0], "create job-7");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_midway_leaves_nothing() {
    for operation in ["create", "write_tree_at", "exec", "wait", "destroy"] {
        let memory = Memory::new();
        memory.program("hang", |_| std::future::pending());
        memory.program("true", |_| async { OK });
        let gate = (operation != "wait").then(|| memory.gate(operation));
        let program = if operation == "wait" { "hang" } else { "true" };
        let backend = Arc::new(Checked::new(memory.clone()));
        let running = tokio::spawn(run_sandboxed(backend, options(program)));
        sleep(SECOND).await;
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        if let Some(gate) = gate {
            gate.add_permits(10);
        }
        sleep(5 * SECOND).await;
        assert_eq!((memory.live(), memory.processes()), (0, 0), "{operation}");
    }
}

#[tokio::test]
async fn many_runs_at_once_do_not_meet() {
    let memory = Memory::new();
    memory.program("true", |_| async { OK });
    let backend: Arc<dyn Backend> = Arc::new(Checked::new(memory.clone()));
    let runs: Vec<_> = (0..50)
        .map(|_| tokio::spawn(run_sandboxed(backend.clone(), options("true"))))
        .collect();
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
    }
    assert_eq!(memory.live(), 0);
}

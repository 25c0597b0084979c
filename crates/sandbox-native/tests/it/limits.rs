//! Limits hold where they are declared, and the sandbox stays usable.

use std::time::{Duration, Instant};

use sandbox_core::{Backend, Cmd, EndedBy, ErrorKind, Support};

use crate::support::{State, output, run, spec};

#[tokio::test]
async fn a_command_over_the_memory_limit_is_named_so() {
    let state = State::new();
    let native = state.native().await;
    let mut wanted = spec("memory");
    wanted.limits.memory = Some(64 << 20);
    if let Support::No(reason) = native.capabilities().limits.memory {
        // The other half of the rule: not declared means refused, with the reason.
        let error = native.create(wanted).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&reason), "{error}");
        return;
    }
    let handle = native.create(wanted).await.unwrap();
    let hungry = Cmd::argv(["python3", "-c", "x = bytearray(300 << 20); print(len(x))"]);
    let result = native.exec(&handle, hungry).await.unwrap().wait().await;
    assert_eq!(result.ended_by, EndedBy::OutOfMemory, "{result:?}");
    assert_eq!(output(&native, &handle, "echo usable").await, "usable\n");
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn a_fork_bomb_meets_the_process_limit() {
    let state = State::new();
    let native = state.native().await;
    let mut wanted = spec("bomb");
    wanted.limits.pids = Some(32);
    let other = native.create(spec("other")).await.unwrap();
    if let Support::No(reason) = native.capabilities().limits.pids {
        let error = native.create(wanted).await.unwrap_err();
        assert!(error.to_string().contains(&reason), "{error}");
        return;
    }
    let handle = native.create(wanted).await.unwrap();
    let count = "n=0; while [ $n -lt 100 ]; do sleep 60 & n=$((n+1)); done; echo all";
    let result = run(&native, &handle, count).await;
    assert!(
        !String::from_utf8_lossy(&result.stdout).contains("all"),
        "100 processes were started"
    );
    let bomb =
        Cmd::shell("bomb() { bomb | bomb & }; bomb; sleep 60").timeout(Duration::from_secs(1));
    let _ = native
        .exec(&handle, bomb)
        .await
        .map(|mut execution| async move { execution.wait().await });
    assert_eq!(output(&native, &other, "echo unharmed").await, "unharmed\n");
    native.destroy(&handle).await.unwrap();
    native.destroy(&other).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_the_sandboxs_own() {
    let state = State::new();
    let native = state.native().await;
    let mut wanted = spec("disk");
    wanted.limits.disk = Some(8 << 20);
    assert!(
        native.capabilities().limits.disk.is_yes(),
        "{:?}",
        native.capabilities().limits.disk
    );
    let handle = native.create(wanted).await.unwrap();
    let result = run(&native, &handle, "head -c 20M /dev/zero > /work/big").await;
    assert!(!result.success());
    assert!(
        String::from_utf8_lossy(&result.stderr).contains("No space"),
        "{result:?}"
    );
    assert_eq!(
        output(
            &native,
            &handle,
            "rm /work/big; echo small > /work/f; cat /work/f"
        )
        .await,
        "small\n"
    );
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn half_a_cpu_is_half_a_cpu() {
    let state = State::new();
    let native = state.native().await;
    let mut wanted = spec("cpu");
    wanted.limits.cpus = Some(0.25);
    if let Support::No(reason) = native.capabilities().limits.cpu {
        let error = native.create(wanted).await.unwrap_err();
        assert!(error.to_string().contains(&reason), "{error}");
        return;
    }
    let handle = native.create(wanted).await.unwrap();
    let busy = "python3 -c 'import time\nwhile time.process_time() < 0.4: pass'";
    let started = Instant::now();
    output(&native, &handle, busy).await;
    assert!(
        started.elapsed() > Duration::from_millis(1000),
        "{:?}",
        started.elapsed()
    );
    native.destroy(&handle).await.unwrap();
}

//! The directory that sandboxes are kept in, and what is said about a machine.

use sandbox_core::policy::FallbackPolicy;
use sandbox_core::{Backend, Cmd, ErrorKind, NetworkMode};
use sandbox_native::{LayerState, Native};

use crate::support::{State, eventually, output, run, spec};

#[tokio::test]
async fn two_backends_share_a_state_directory() {
    let state = State::new();
    let (one, two) = (state.native().await, state.native().await);
    let (a, b) = (
        one.create(spec("same")).await.unwrap(),
        two.create(spec("same")).await.unwrap(),
    );
    assert_ne!(a.id, b.id);
    output(&one, &a, "echo a > /tmp/f").await;
    assert!(
        !run(&two, &b, "cat /tmp/f").await.success(),
        "they see each other's files"
    );
    drop(one);
    assert_eq!(output(&two, &b, "echo here").await, "here\n");
    assert_eq!(
        two.exec(&a, Cmd::argv(["true"])).await.unwrap_err().kind(),
        ErrorKind::UnknownHandle
    );
}

#[test]
fn the_doctor_names_every_layer() {
    let state = State::new();
    // In a process of its own: the directory comes from the environment there.
    let report = {
        let said = crate::helper::answers(&mut crate::helper::helper("doctor", &state.path(), &[]));
        said["layers"].clone()
    };
    for layer in [
        "kernel",
        "namespaces",
        "user map",
        "overlay root",
        "proc",
        "devices",
        "privileges",
        "landlock",
        "system call filter",
        "memory limit",
        "process limit",
        "disk limit",
    ] {
        assert!(
            report.contains(&format!("{layer}: ")),
            "{layer} is not in {report}"
        );
    }
    assert!(report.contains("usable"), "{report}");
    assert_ne!(LayerState::Enforced, LayerState::Degraded);
}

#[tokio::test]
async fn without_a_sandbox_everything_says_so() {
    let permit = FallbackPolicy::from_vars([("SANDBOX_ALLOW_UNSANDBOXED", "1")])
        .decide("a test")
        .unwrap();
    let state = State::new();
    let native = Native::builder()
        .state_dir(state.path())
        .unsandboxed(permit)
        .build()
        .await
        .unwrap();
    let caps = native.capabilities();
    for (name, wall) in caps.isolation.walls() {
        assert!(
            wall.reason().is_some_and(|reason| reason.contains("host")),
            "{name}"
        );
    }
    assert_eq!(
        native.create(spec("a")).await.unwrap_err().kind(),
        ErrorKind::Unsupported,
        "no network is asked for"
    );
    let mut wanted = spec("a");
    wanted.network = NetworkMode::Host;
    let handle = native.create(wanted).await.unwrap();
    let mark = format!("3602.{}", std::process::id());
    let text = output(
        &native,
        &handle,
        &format!("pwd; (setsid sleep {mark} >/dev/null 2>&1 &) ; echo x > f; cat f"),
    )
    .await;
    assert_eq!(text, format!("{}\nx\n", handle.workdir.to_text()));
    assert!(!crate::helper::outside(&mark).is_empty());
    native.destroy(&handle).await.unwrap();
    assert!(
        eventually(std::time::Duration::from_secs(2), || {
            crate::helper::outside(&mark).is_empty()
        }),
        "a process lives on"
    );
    drop(native);
    assert_eq!(state.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn what_a_session_leaves_makes_the_next_one_quick_and_none_unsafe() {
    let state = State::new();
    let first = state.native().await;
    let handle = first.create(spec("first")).await.unwrap();
    output(&first, &handle, "echo x > /etc/mine; rm /etc/hosts").await;
    let caps = format!("{:?}", first.capabilities());
    drop(first);
    assert!(state.path().join("probe").exists());
    // What a sandbox did to its files is not in the base that is used again.
    let second = state.native().await;
    assert_eq!(format!("{:?}", second.capabilities()), caps);
    let handle = second.create(spec("second")).await.unwrap();
    let text = output(
        &second,
        &handle,
        "ls /etc/mine /etc/hosts 2>/dev/null; true",
    )
    .await;
    assert_eq!(text, "/etc/hosts\n");
    drop(second);
    assert_eq!(state.leftovers(), Vec::<std::path::PathBuf>::new());
}

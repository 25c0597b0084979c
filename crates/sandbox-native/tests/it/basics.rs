use sandbox_core::{Backend, ErrorKind, SandboxPath};
use sandbox_native::Native;

use crate::support::{State, output, spec};

#[tokio::test]
async fn a_sandbox_runs_and_leaves_nothing() {
    let state = State::new();
    let native = state.native().await;
    let caps = native.capabilities();
    assert!(caps.isolation.is_complete(), "{:?}", caps.isolation);
    let handle = native.create(spec("lab")).await.unwrap();
    let text = output(
        &native,
        &handle,
        "hostname; pwd; id -u; echo x > /work/f && cat /work/f",
    )
    .await;
    assert_eq!(text, "sandbox\n/work\n0\nx\n");
    native.destroy(&handle).await.unwrap();
    drop(native);
    assert_eq!(state.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn sixty_four_at_once_are_made_used_and_removed() {
    let state = State::new();
    let native = std::sync::Arc::new(state.native().await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..64 {
        let native = native.clone();
        tasks.spawn(async move {
            let handle = native.create(spec(&format!("n{number}"))).await.unwrap();
            let text = output(&native, &handle, &format!("echo {number} > f; cat f")).await;
            assert_eq!(text, format!("{number}\n"));
            native.destroy(&handle).await.unwrap();
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.unwrap();
    }
    drop(native);
    assert_eq!(state.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn captured_files_are_limited_together() {
    let state = State::new();
    let builder = Native::builder().state_dir(state.path()).max_capture(10);
    let native = builder.build().await.unwrap();
    let handle = native.create(spec("capture")).await.unwrap();
    output(
        &native,
        &handle,
        "printf 123456 > a; printf 7890 > b; cp b c",
    )
    .await;
    let paths = ["a", "b", "c"].map(|name| SandboxPath::new(name).unwrap());
    let files = native.capture_files(&handle, &paths[..2]).await.unwrap();
    assert_eq!(
        (&files[0].content[..], &files[1].content[..]),
        (&b"123456"[..], &b"7890"[..])
    );
    let error = native.capture_files(&handle, &paths).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let text = error.to_string();
    assert!(text.contains("\"c\"") && text.contains("10"), "{text}");
    // The device never ends.
    let endless = [SandboxPath::new("/dev/zero").unwrap()];
    assert!(native.capture_files(&handle, &endless).await.is_err());
    native.destroy(&handle).await.unwrap();
}

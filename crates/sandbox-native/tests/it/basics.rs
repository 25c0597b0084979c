use sandbox_core::Backend;

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

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

//! What a hostile other side may send: it ends its own connection, and nothing else happens.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use sandbox_core::{Cmd, Env, ErrorKind, SandboxPath};
use sandbox_guest::{ExecContext, GuestClient};

fn frame(id: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&id.to_le_bytes());
    frame.extend_from_slice(&[kind, 0, 0, 0]);
    frame.extend_from_slice(payload);
    frame
}

/// A guest that greets, answers the first request with `answer`, and then keeps the connection open.
fn liar(answer: Vec<u8>) -> UnixStream {
    let (near, mut far) = UnixStream::pair().expect("a socket pair");
    std::thread::spawn(move || {
        let mut greeting = [0; 14];
        if far.read_exact(&mut greeting).is_err()
            || far.write_all(&frame(0, 64, &1u16.to_le_bytes())).is_err()
        {
            return;
        }
        let mut request = [0; 12];
        if far.read_exact(&mut request).is_ok() && far.write_all(&answer).is_ok() {
            let mut rest = Vec::new();
            let _ = far.read_to_end(&mut rest);
        }
    });
    near
}

async fn ask(answer: Vec<u8>) -> ErrorKind {
    let client = GuestClient::connect_local(liar(answer))
        .await
        .expect("it greets");
    let path = SandboxPath::new("x").expect("a path");
    let stat = tokio::time::timeout(Duration::from_secs(10), client.stat(&path)).await;
    stat.expect("an answer in time").expect_err("a lie").kind()
}

#[tokio::test]
async fn a_lying_guest_makes_its_sandbox_unavailable() {
    for (what, answer) in [
        ("a short stat", frame(1, 73, &[0])),
        ("another kind of answer", frame(1, 72, &[])),
        (
            "an unknown failure",
            frame(1, 66, &[200, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("a frame that is too long", u32::MAX.to_le_bytes().repeat(3)),
        (
            "a missing descriptor",
            [&frame(1, 75, &[0; 8])[..10], &[1, 0], &[0; 8]].concat(),
        ),
    ] {
        assert_eq!(ask(answer).await, ErrorKind::Unavailable, "{what}");
    }
}

#[tokio::test]
async fn a_guest_that_starts_nothing_and_floods_is_cut_off() {
    let mut flood = Vec::new();
    for _ in 0..20_000 {
        flood.extend(frame(1, 69, b"x"));
    }
    let client = GuestClient::connect_local(liar(flood))
        .await
        .expect("it greets");
    let context = ExecContext::new(Env::new(), "/bin/sh");
    let error = client
        .exec(&Cmd::argv(["true"]), context)
        .await
        .expect_err("it did not start");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_answers_never_hang_or_panic(
        kind in 60u8..80,
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        tail in proptest::collection::vec(any::<u8>(), 0..32),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let answer = [frame(1, kind, &payload), tail].concat();
        let honest = kind == 73 && payload.len() == 9;
        let client = runtime.block_on(GuestClient::connect_local(liar(answer))).expect("it greets");
        let path = SandboxPath::new("x").expect("a path");
        let asked = runtime.block_on(async {
            let stat = client.stat(&path);
            tokio::time::timeout(Duration::from_millis(500), stat).await
        });
        // A frame of no consequence leaves the question open; then the guest is silent, not this side stuck.
        if let Ok(answer) = asked {
            prop_assert!(honest || answer.is_err());
        }
    }

    #[test]
    fn a_guest_survives_random_requests_or_ends(
        bytes in proptest::collection::vec(any::<u8>(), 1..200),
        kind in 1u8..24,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut near, far) = UnixStream::pair().expect("a socket pair");
        let mut child = Command::new(crate::program())
            .args(["serve", "confined"])
            .current_dir(dir.path())
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        near.write_all(&frame(0, 1, &1u16.to_le_bytes())).expect("greeted");
        near.write_all(&frame(1, kind, &bytes)).expect("sent");
        // It may have ended the connection already.
        let _ = near.write_all(&bytes);
        drop(near);
        let status = child.wait().expect("it ends");
        prop_assert_eq!(status.code(), Some(0), "it must end in order, never by a panic");
    }
}

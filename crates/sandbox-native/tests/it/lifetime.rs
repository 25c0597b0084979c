//! What remains when processes die, fail, or are left to themselves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_core::{Backend, Cmd, EndedBy, ErrorKind, Lifetime, SandboxId};
use sandbox_native::{Builder, Native};

use crate::helper::{Running, answers, children, helper, kill, outside};
use crate::support::{State, eventually, output, spec};

/// The rule's own bound.
const SOON: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_failing_step_leaves_nothing_and_runs_nothing() {
    let state = State::new();
    let errors = [libc::EPERM, libc::EMFILE, libc::ENOSYS];
    for (step, errno) in Builder::steps().iter().zip(errors.into_iter().cycle()) {
        let builder = Native::builder().state_dir(state.path()).fault(step, errno);
        let native = builder.build().await.unwrap();
        let error = native.create(spec("never")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Isolation, "{step}: {error}");
        assert!(
            error.to_string().contains("fault injected"),
            "{step}: {error}"
        );
        assert_eq!(boxes(&state), Vec::<PathBuf>::new(), "{step}");
        // The name is free again.
        let error = native.create(spec("never")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Isolation, "{step}: {error}");
    }
    assert_eq!(state.leftovers(), Vec::<PathBuf>::new());
}

/// Directories of sandboxes in all sessions of a state directory.
fn boxes(state: &State) -> Vec<PathBuf> {
    let sessions = std::fs::read_dir(state.path().join("sessions"))
        .into_iter()
        .flatten()
        .flatten();
    sessions
        .flat_map(|session| {
            std::fs::read_dir(session.path().join("boxes"))
                .into_iter()
                .flatten()
                .flatten()
        })
        .map(|entry| entry.path())
        .collect()
}

#[tokio::test]
async fn a_killed_host_leaves_nothing() {
    let state = State::new();
    let cgroups = cgroups_of_sandboxes();
    let mut host = Running::start(helper("host", &state.path(), &[]));
    let mark = host.answers["mark"].clone();
    assert_eq!(outside(&mark).len(), 4);
    let sessions: Vec<String> = state
        .leftovers()
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    assert!(!sessions.is_empty());
    // Only the host itself: nothing else is told to end.
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(
        eventually(SOON, || outside(&mark).is_empty()),
        "processes live on: {:?}",
        outside(&mark)
    );
    assert!(
        eventually(SOON, || state.leftovers().is_empty()),
        "{:?}",
        state.leftovers()
    );
    let own = |groups: BTreeSet<PathBuf>| {
        groups
            .difference(&cgroups)
            .filter(|path| {
                sessions
                    .iter()
                    .any(|session| path.to_string_lossy().contains(session))
            })
            .count()
    };
    assert!(
        eventually(SOON, || own(cgroups_of_sandboxes()) == 0),
        "{:?}",
        cgroups_of_sandboxes()
    );
}

#[tokio::test]
async fn a_killed_host_and_janitor_are_cleaned_up_after_by_the_next() {
    let state = State::new();
    let mut host = Running::start(helper("host", &state.path(), &[]));
    let mark = host.answers["mark"].clone();
    let janitors = children(host.child.id(), "janitor");
    assert_eq!(janitors.len(), 1, "{janitors:?}");
    janitors.into_iter().for_each(kill);
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(
        eventually(SOON, || outside(&mark).is_empty()),
        "processes live on"
    );
    assert!(
        !state.leftovers().is_empty(),
        "somebody cleaned up: the test tests nothing"
    );
    drop(state.native().await);
    assert_eq!(state.leftovers(), Vec::<PathBuf>::new());
}

fn cgroups_of_sandboxes() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with("sandbox-") {
                    found.insert(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn a_killed_nursery_takes_its_sandboxes_along_and_is_replaced() {
    let said = answers(&mut helper("nursery", &State::new().path(), &[]));
    assert_eq!(said["nurseries"], "1", "{said:?}");
    assert_eq!(said["unavailable"], "true", "{said:?}");
    assert_eq!(said["next"], "Unavailable", "{said:?}");
    assert_eq!(said["second"], "made", "{said:?}");
}

#[tokio::test]
async fn a_detached_sandbox_outlives_its_maker() {
    let state = State::new();
    let mut host = Running::start(helper("detach", &state.path(), &[]));
    let (mark, id) = (host.answers["mark"].clone(), host.answers["id"].clone());
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    let native = state.native().await;
    let listed = native.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].id.as_str(), listed[0].name.as_str()),
        (&*id, "held")
    );
    let handle = native.attach(&SandboxId::new(id).unwrap()).await.unwrap();
    assert_eq!(
        output(&native, &handle, "echo $FROM_SPEC; hostname").await,
        "yes\nsandbox\n"
    );
    assert_eq!(outside(&mark).len(), 4, "its commands run on");
    // The name is taken, also for another process.
    let mut same = spec("held");
    same.lifetime = Lifetime::Detached {
        ttl: Duration::from_secs(60),
    };
    let other = state.native().await;
    assert_eq!(
        other.create(same).await.unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    native.destroy(&handle).await.unwrap();
    assert!(eventually(SOON, || outside(&mark).is_empty()));
    assert!(other.list().await.unwrap().is_empty());
    let unknown = other.attach(&handle.id).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownHandle);
    drop((native, other));
    assert_eq!(state.leftovers(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_detached_sandbox_ends_at_its_time_and_what_is_left_is_swept() {
    let state = State::new();
    let native = state.native().await;
    let mut short = spec("short");
    short.lifetime = Lifetime::Detached {
        ttl: Duration::from_millis(300),
    };
    let handle = native.create(short).await.unwrap();
    assert_eq!(output(&native, &handle, "echo here").await, "here\n");
    let mark = format!("3601.{}", std::process::id());
    let mut execution = native
        .exec(&handle, Cmd::argv(["sleep", &mark]))
        .await
        .unwrap();
    let result = tokio::time::timeout(Duration::from_secs(10), execution.wait())
        .await
        .expect("it ends");
    assert_ne!(result.ended_by, EndedBy::TimedOut);
    assert!(
        eventually(SOON, || outside(&mark).is_empty()),
        "its processes live on"
    );
    let deadline = std::time::Instant::now() + SOON;
    while !native.list().await.unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is still listed");
    }
    let error = native.exec(&handle, Cmd::argv(["true"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownHandle, "{error}");
    drop(native);
    assert_eq!(state.leftovers(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_dropped_create_leaves_nothing() {
    let state = State::new();
    let native = state.native().await;
    for polls in 0..40 {
        let mut create = std::pin::pin!(native.create(spec("dropped")));
        for _ in 0..polls {
            let once = std::future::poll_fn(|context| {
                std::task::Poll::Ready(create.as_mut().poll(context).is_ready())
            });
            if once.await {
                break;
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        // Dropped here, in whatever state it is; one that was ready handed out a handle.
        if let Some(handle) = native.list().await.unwrap().pop() {
            native.destroy(&handle).await.unwrap();
        }
    }
    assert!(
        eventually(SOON, || boxes(&state).is_empty()),
        "{:?}",
        boxes(&state)
    );
    drop(native);
    assert_eq!(state.leftovers(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn of_two_destroys_one_succeeds() {
    let state = State::new();
    let native = state.native().await;
    for round in 0..20 {
        let handle = native.create(spec("contested")).await.unwrap();
        output(&native, &handle, "mkdir -p a/b/c/d; touch a/b/c/d/e").await;
        let (one, two) = tokio::join!(native.destroy(&handle), native.destroy(&handle));
        let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
        assert!(won.is_ok(), "{round}: {won:?}");
        let lost = lost.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::UnknownHandle, "{round}: {lost}");
    }
}

#[tokio::test]
async fn a_dropped_destroy_goes_on() {
    let state = State::new();
    let native = state.native().await;
    let handle = native.create(spec("dropped")).await.unwrap();
    {
        let mut destroy = std::pin::pin!(native.destroy(&handle));
        // Once: the task has started, the future is dropped.
        std::future::poll_fn(|context| {
            let _ = destroy.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    assert!(
        eventually(SOON, || boxes(&state).is_empty()),
        "{:?}",
        boxes(&state)
    );
    assert!(native.list().await.unwrap().is_empty());
    let error = native.exec(&handle, Cmd::argv(["true"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownHandle, "{error}");
}

#[tokio::test]
async fn destroy_ends_commands_and_removes_the_worst_directories() {
    let state = State::new();
    let native = state.native().await;
    let handle = native.create(spec("worst")).await.unwrap();
    let script = "mkdir -p a/b && echo x > a/b/f && chmod 000 a/b a && chmod a-w . && \
                  python3 -c 'import os\nfor i in range(3000):\n os.mkdir(\"d\"); os.chdir(\"d\")' && \
                  ln -s /etc/passwd l && mkfifo p && chmod 000 /work && echo ready && sleep 1000";
    let mut execution = native.exec(&handle, Cmd::shell(script)).await.unwrap();
    let chunk = execution.next_chunk().await.expect("output");
    assert_eq!(chunk.data, "ready\n");
    native.destroy(&handle).await.unwrap();
    let result = execution.wait().await;
    assert_eq!(result.ended_by, EndedBy::Destroyed);
    assert_eq!(boxes(&state), Vec::<PathBuf>::new());
    assert!(Path::new("/etc/passwd").exists());
}

#[tokio::test]
async fn a_tree_of_a_hundred_thousand_levels_is_removed() {
    // In memory, if that is to be had: it is the depth that matters, not the disk.
    let memory = Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let directory = tempfile::tempdir_in(memory.unwrap_or_else(std::env::temp_dir)).unwrap();
    let top = directory.path().join("top");
    std::fs::create_dir(&top).unwrap();
    // Made from the inside out, so that no path gets long: each new directory takes the ones before into it.
    let (mut inner, levels) = (top.join("x"), 100_000);
    std::fs::create_dir(&inner).unwrap();
    for level in 0..levels {
        let outer = top.join(format!("y{}", level % 2));
        std::fs::create_dir(&outer).unwrap();
        std::fs::rename(&inner, outer.join("x")).unwrap();
        inner = outer;
    }
    sandbox_guest::remove::remove_tree(&top).unwrap();
    assert!(!top.exists());
}

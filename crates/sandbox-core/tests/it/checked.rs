//! `Checked`: what it refuses, in which order, and what it never lets through twice.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandbox_core::*;

use crate::memory::{Memory, OK, full_caps};

type TestBackend = Checked<Arc<Memory>>;

fn checked() -> (Arc<Memory>, Arc<TestBackend>) {
    let memory = Memory::new();
    memory.program("true", |_| async { OK });
    (memory.clone(), Arc::new(Checked::new(memory)))
}

fn name(name: &str) -> ContainerName {
    ContainerName::new(name).unwrap()
}

fn spec(text: &str) -> ContainerSpec {
    ContainerSpec::workdir(name(text))
}

fn path(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap()
}

fn unavailable() -> Error {
    Error::Unavailable {
        target: "the engine".into(),
        never_started: false,
        detail: "gone".into(),
    }
}

#[track_caller]
fn assert_kind<T>(result: Result<T>, kind: ErrorKind) -> Error {
    match result {
        Ok(_) => panic!("expected {kind:?}, got a success"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            error
        }
    }
}

/// Polls once.
async fn is_pending(mut future: std::pin::Pin<&mut (impl Future + ?Sized)>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Every call that takes a handle, with arguments that are wrong in other ways too.
async fn call_all(backend: &dyn Backend, handle: &Handle) -> Vec<Result<()>> {
    let token = CancelToken::new();
    token.cancel();
    let garbage = || ByteStream::from_bytes("no archive");
    vec![
        backend
            .exec(handle, Cmd::argv(["a\0"]).cancel(token))
            .await
            .map(drop),
        backend.capture_files(handle, &[]).await.map(drop),
        backend.copy_to(handle, vec![]).await,
        backend.read_file_at(handle, &path("x")).await.map(drop),
        backend.write_file_at(handle, &path("x"), garbage()).await,
        backend.stat_at(handle, &path("x")).await.map(drop),
        backend.list_dir_at(handle, &path("x")).await.map(drop),
        backend.delete_file_at(handle, &path("x")).await,
        backend.read_tree_at(handle, &path("x")).await.map(drop),
        backend.write_tree_at(handle, &path("x"), garbage()).await,
        backend.dial(handle, 0).await.map(drop),
        backend.snapshot(handle).await.map(drop),
        backend.destroy(handle).await,
    ]
}

#[tokio::test]
async fn an_unknown_handle_comes_before_everything_else() {
    let (memory, backend) = checked();
    let dead = backend.create(spec("dead")).await.unwrap();
    backend.destroy(&dead).await.unwrap();
    let (_, other) = checked();
    let foreign = other.create(spec("foreign")).await.unwrap();
    let unattached = memory.create(spec("unattached")).await.unwrap();
    for handle in [&dead, &foreign, &unattached] {
        // The foreign one may share its id with a live one of another backend, so make sure that it does not.
        let calls = memory.log().len();
        for result in call_all(&*backend, handle).await {
            assert_kind(result, ErrorKind::UnknownHandle);
        }
        assert_eq!(memory.log().len(), calls, "the backend was not asked");
    }
}

#[tokio::test]
async fn calls_without_effect_do_not_reach_the_backend() {
    let (memory, backend) = checked();
    let handle = backend.create(spec("a")).await.unwrap();
    assert_eq!(backend.capture_files(&handle, &[]).await.unwrap(), []);
    backend.copy_to(&handle, vec![]).await.unwrap();
    assert_eq!(memory.log(), ["create a"]);
    let file = |path, content: &'static str| InputFile::new(path, content).unwrap();
    let files = vec![file("a", "1"), file("b", "2"), file("a", "3")];
    backend.copy_to(&handle, files).await.unwrap();
    assert_eq!(memory.log()[1], "copy_to b,a");
    let captured = backend
        .capture_files(&handle, &[path("a"), path("b")])
        .await
        .unwrap();
    assert_eq!(
        (&captured[0].content[..], &captured[1].content[..]),
        (&b"3"[..], &b"2"[..])
    );
}

#[tokio::test]
async fn arguments_come_before_capabilities_and_both_before_the_backend() {
    let memory = Memory::with_caps(Caps::default());
    let backend = Checked::new(memory.clone());
    let mut bad = spec("a");
    bad.limits.memory = Some(0);
    assert_kind(backend.create(bad).await, ErrorKind::InvalidSpec);
    let error = assert_kind(backend.create(spec("a")).await, ErrorKind::Unsupported);
    assert!(error.to_string().contains("memory backend"), "{error}");
    assert_eq!(memory.log(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_not_declared_in_a_spec_is_unsupported() {
    let (memory, backend) = checked();
    let mut specs: Vec<(&str, ContainerSpec)> = Vec::new();
    let mut add = |operation, change: fn(&mut ContainerSpec)| {
        let mut spec = spec("a");
        change(&mut spec);
        specs.push((operation, spec));
    };
    add("image", |s| {
        s.source = Source::Image(ImageSource::new(ImageRef::new("busybox").unwrap()));
    });
    add("compose", |s| {
        s.source = Source::Compose(ComposeSource::new("services: {}", "app"));
    });
    add("limits.memory", |s| s.limits.memory = Some(1 << 30));
    add("limits.cpus", |s| s.limits.cpus = Some(1.0));
    add("limits.pids", |s| s.limits.pids = Some(10));
    add("limits.disk", |s| s.limits.disk = Some(1 << 30));
    add("network mode host", |s| s.network = NetworkMode::Host);
    add("network mode lan", |s| {
        s.network = NetworkMode::Named("lan".into())
    });
    add("binds", |s| {
        s.binds.push(Bind::read_only("/srv", path("/srv")))
    });
    add("user nobody", |s| {
        s.user = Some(User::Name("nobody".into()))
    });
    add("user 0:5", |s| {
        s.user = Some(User::Ids {
            uid: 0,
            gid: Some(5),
        });
    });
    add("detached", |s| {
        s.lifetime = Lifetime::Detached {
            ttl: Duration::from_secs(1),
        };
    });
    for (operation, spec) in specs {
        let error = assert_kind(backend.create(spec).await, ErrorKind::Unsupported);
        assert!(
            error.to_string().contains(operation),
            "{operation}: {error}"
        );
    }
    assert_eq!(memory.log(), Vec::<String>::new());
    for user in ["root", "0", "0:0"] {
        let mut spec = spec("a");
        spec.user = Some(user.parse().unwrap());
        let handle = backend.create(spec).await.unwrap();
        backend.destroy(&handle).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_declared_reaches_the_backend() {
    let mut caps = full_caps();
    caps.limits.memory = Support::Yes;
    caps.users = Support::Yes;
    caps.detached = Support::Yes;
    caps.binds = Support::Yes;
    caps.runtime_compose = Support::Yes;
    caps.networks = vec![NetworkMode::Named("any".into())];
    caps.snapshot = SnapshotMode::FsCow;
    let memory = Memory::with_caps(caps.clone());
    let backend = Checked::new(memory.clone());
    assert_eq!(backend.capabilities(), caps);
    assert_kind(backend.create(spec("a")).await, ErrorKind::Unsupported);
    let mut full = spec("a");
    full.network = NetworkMode::Named("lan".into());
    full.limits.memory = Some(1 << 30);
    full.user = Some("nobody".parse().unwrap());
    full.binds.push(Bind::writable("/srv", path("/srv")));
    full.lifetime = Lifetime::Detached {
        ttl: Duration::from_secs(1),
    };
    let handle = backend.create(full).await.unwrap();
    // A compose file brings its own networks.
    let mut compose = spec("b");
    compose.source = Source::Compose(ComposeSource::new("services: {}", "app"));
    backend.create(compose).await.unwrap();
    let snapshot = backend.snapshot(&handle).await.unwrap();
    let restored = backend.restore(&snapshot, name("c")).await.unwrap();
    assert_eq!(
        backend
            .stat_at(&restored, &path("/work"))
            .await
            .unwrap()
            .kind,
        FileKind::Directory
    );
    assert_kind(
        backend.restore(&snapshot, name("c")).await,
        ErrorKind::AlreadyExists,
    );
}

#[tokio::test]
async fn what_is_not_declared_in_a_command_is_unsupported() {
    let mut caps = Caps::default();
    caps.workdir = Support::Yes;
    caps.networks = vec![NetworkMode::None];
    caps.stdin = Support::no("no writer here");
    let memory = Memory::with_caps(caps);
    memory.program("true", |_| async { OK });
    let backend = Checked::new(memory.clone());
    let handle = backend.create(spec("a")).await.unwrap();
    let argv = || Cmd::argv(["true"]);
    for (operation, cmd) in [
        ("shell", Cmd::shell("true")),
        ("no writer here", argv().stdin_piped()),
        ("pty", argv().pty(PtySize::default())),
        ("user nobody", argv().user(User::Name("nobody".into()))),
    ] {
        let error = assert_kind(backend.exec(&handle, cmd).await, ErrorKind::Unsupported);
        assert!(
            error.to_string().contains(operation),
            "{operation}: {error}"
        );
    }
    assert_kind(backend.dial(&handle, 0).await, ErrorKind::InvalidSpec);
    assert_kind(backend.dial(&handle, 80).await, ErrorKind::Unsupported);
    assert_kind(backend.snapshot(&handle).await, ErrorKind::Unsupported);
    let snapshot = SnapshotRef::new(format!("sbx1:sha256:{}", "0".repeat(64))).unwrap();
    assert_kind(
        backend.restore(&snapshot, name("b")).await,
        ErrorKind::Unsupported,
    );
    assert_eq!(memory.log(), ["create a"]);
    assert!(backend.run(&handle, argv()).await.unwrap().success());
}

#[tokio::test]
async fn a_cancelled_token_starts_nothing_and_keeps_its_reason() {
    let (memory, backend) = checked();
    let handle = backend.create(spec("a")).await.unwrap();
    let token = CancelToken::new();
    let reason = CancelReason::new("too late");
    token.cancel_with(reason.clone());
    let cmd = Cmd::argv(["true"]).cancel(token.clone());
    match backend
        .exec(
            &handle,
            cmd.pty(PtySize {
                rows: 0,
                columns: 1,
            }),
        )
        .await
    {
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidSpec, "arguments first"),
        Ok(_) => panic!("it started"),
    }
    match backend
        .exec(&handle, Cmd::argv(["true"]).cancel(token))
        .await
    {
        Err(Error::Cancelled {
            reason: Some(given),
        }) => assert!(given.same_as(&reason)),
        other => panic!("{other:?}"),
    }
    assert_eq!(memory.calls_of("exec"), 0);
}

#[tokio::test]
async fn names_are_taken_while_a_sandbox_is_made_and_lives() {
    let (memory, backend) = checked();
    let gate = memory.gate("create");
    let making = tokio::spawn({
        let backend = backend.clone();
        async move { backend.create(spec("lab")).await }
    });
    while memory.calls_of("create") == 0 {
        tokio::task::yield_now().await;
    }
    assert_kind(backend.create(spec("lab")).await, ErrorKind::AlreadyExists);
    gate.add_permits(1);
    let handle = making.await.unwrap().unwrap();
    assert_kind(backend.create(spec("lab")).await, ErrorKind::AlreadyExists);
    assert_eq!(memory.calls_of("create"), 1);
    gate.add_permits(1);
    backend.destroy(&handle).await.unwrap();
    let again = backend.create(spec("lab")).await.unwrap();
    assert_ne!(again.id, handle.id);
}

#[tokio::test]
async fn a_create_that_fails_or_is_dropped_frees_its_name() {
    let (memory, backend) = checked();
    memory.fail("create", unavailable());
    assert_kind(backend.create(spec("lab")).await, ErrorKind::Unavailable);
    let gate = memory.gate("create");
    {
        let making = backend.create(spec("lab"));
        tokio::pin!(making);
        assert!(is_pending(making.as_mut()).await);
    }
    gate.add_permits(1);
    backend.create(spec("lab")).await.unwrap();
    assert_eq!(memory.live(), 1);
}

#[tokio::test]
async fn exactly_one_of_many_destroys_wins() {
    let (memory, backend) = checked();
    let handle = backend.create(spec("lab")).await.unwrap();
    let gate = memory.gate("destroy");
    let destroys: Vec<_> = (0..8)
        .map(|_| {
            let (backend, handle) = (backend.clone(), handle.clone());
            tokio::spawn(async move { backend.destroy(&handle).await })
        })
        .collect();
    while memory.calls_of("destroy") == 0 {
        tokio::task::yield_now().await;
    }
    // While it is being destroyed it takes no calls, but its name is not free.
    assert_kind(
        backend.stat_at(&handle, &path("/")).await,
        ErrorKind::UnknownHandle,
    );
    assert_kind(backend.create(spec("lab")).await, ErrorKind::AlreadyExists);
    gate.add_permits(8);
    let mut won = 0;
    for destroy in destroys {
        match destroy.await.unwrap() {
            Ok(()) => won += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::UnknownHandle),
        }
    }
    assert_eq!((won, memory.calls_of("destroy"), memory.live()), (1, 1, 0));
}

#[tokio::test]
async fn a_destroy_that_fails_or_is_dropped_can_be_repeated() {
    let (memory, backend) = checked();
    let handle = backend.create(spec("lab")).await.unwrap();
    memory.fail("destroy", unavailable());
    assert_kind(backend.destroy(&handle).await, ErrorKind::Unavailable);
    backend.stat_at(&handle, &path("/")).await.unwrap();
    let gate = memory.gate("destroy");
    {
        let destroying = backend.destroy(&handle);
        tokio::pin!(destroying);
        assert!(is_pending(destroying.as_mut()).await);
    }
    gate.add_permits(1);
    backend.destroy(&handle).await.unwrap();
    assert_kind(backend.destroy(&handle).await, ErrorKind::UnknownHandle);
    assert_eq!(memory.live(), 0);
}

#[tokio::test]
async fn attach_makes_a_sandbox_of_somebody_else_known() {
    let (memory, backend) = checked();
    let theirs = memory.create(spec("theirs")).await.unwrap();
    let listed = backend.list().await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&theirs));
    assert_kind(
        backend.stat_at(&theirs, &path("/")).await,
        ErrorKind::UnknownHandle,
    );
    let absent = SandboxId::new("absent").unwrap();
    assert_kind(backend.attach(&absent).await, ErrorKind::UnknownHandle);
    let attached = backend.attach(&theirs.id).await.unwrap();
    backend.stat_at(&attached, &path("/")).await.unwrap();
    assert_kind(
        backend.create(spec("theirs")).await,
        ErrorKind::AlreadyExists,
    );
    backend.destroy(&attached).await.unwrap();
    assert_eq!(memory.live(), 0);
}

#[tokio::test]
async fn a_sandbox_that_is_gone_by_itself_frees_its_name() {
    let (memory, backend) = checked();
    for operation in ["stat", "destroy"] {
        let handle = backend.create(spec("lab")).await.unwrap();
        memory.destroy(&handle).await.unwrap();
        let result = match operation {
            "stat" => backend.stat_at(&handle, &path("/")).await.map(drop),
            _ => backend.destroy(&handle).await,
        };
        assert_kind(result, ErrorKind::UnknownHandle);
        let again = backend.create(spec("lab")).await.unwrap();
        backend.destroy(&again).await.unwrap();
    }
}

#[tokio::test]
async fn it_works_on_shared_boxed_and_dyn_backends() {
    async fn round_trip<B: Backend>(inner: B) {
        let backend = Checked::new(inner);
        let handle = backend.create(spec("a")).await.unwrap();
        assert_eq!(backend.name(), "memory");
        assert_eq!(backend.inner().name(), "memory");
        backend.write_bytes(&handle, "d/f", "x").await.unwrap();
        assert_eq!(backend.read_bytes(&handle, "d/f", 1).await.unwrap(), "x");
        assert_kind(
            backend.read_bytes(&handle, "d/f", 0).await,
            ErrorKind::TooLarge,
        );
        assert_eq!(backend.read_opt(&handle, "d/g", 1).await.unwrap(), None);
        assert_eq!(backend.read_opt(&handle, "d/f/g", 1).await.unwrap(), None);
        assert_kind(
            backend.read_opt(&handle, "d", 1).await,
            ErrorKind::IsADirectory,
        );
        assert!(backend.exists(&handle, "d").await.unwrap());
        assert!(!backend.exists(&handle, "e").await.unwrap());
        assert_kind(backend.exists(&handle, "").await, ErrorKind::InvalidPath);
        backend.destroy(&handle).await.unwrap();
        assert_eq!(backend.into_inner().list().await.unwrap(), []);
    }
    round_trip(Memory::new()).await;
    round_trip(Box::new(Memory::new())).await;
    let shared: Arc<dyn Backend> = Memory::new();
    round_trip(shared.clone()).await;
    round_trip(Checked::new(shared)).await;
}

#[tokio::test]
async fn a_dead_runtime_is_never_absence() {
    let (memory, backend) = checked();
    let handle = backend.create(spec("a")).await.unwrap();
    memory.fail("stat_at", unavailable());
    assert_kind(backend.exists(&handle, "x").await, ErrorKind::Unavailable);
    memory.fail("read_file_at", unavailable());
    assert_kind(
        backend.read_opt(&handle, "x", 1).await,
        ErrorKind::Unavailable,
    );
    // Nor is something else that is absent.
    let other = Error::NotFound {
        role: PathRole::Snapshot,
        path: "x".into(),
    };
    memory.fail("read_file_at", other);
    assert_kind(backend.read_opt(&handle, "x", 1).await, ErrorKind::NotFound);
}

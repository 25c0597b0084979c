//! The fail-closed policy and the resolver.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_core::policy::{FailureEpisode, FallbackPolicy, Resolver};
use sandbox_core::*;
use tokio::sync::Semaphore;

use crate::memory::Memory;

fn unavailable(detail: &str) -> Error {
    Error::Unavailable {
        target: "the engine".into(),
        never_started: false,
        detail: detail.into(),
    }
}

fn allowing() -> FallbackPolicy {
    FallbackPolicy::from_vars([("SANDBOX_ALLOW_UNSANDBOXED", "1")])
}

#[test]
fn the_variable_allows_only_by_its_four_words() {
    let decide = |value: &str| {
        FallbackPolicy::from_vars([("OTHER", "1"), ("SANDBOX_ALLOW_UNSANDBOXED", value)])
            .decide("x")
    };
    for value in ["1", "true", "TRUE", " yes ", "On", "\tON\n"] {
        assert!(decide(value).is_ok(), "{value:?}");
    }
    for value in [
        "", "0", "false", "no", "off", "y", "enabled", "11", "1 1", "yes!",
    ] {
        assert!(decide(value).is_err(), "{value:?}");
    }
    assert!(
        FallbackPolicy::from_vars(Vec::<(String, String)>::new())
            .decide("x")
            .is_err()
    );
    assert!(
        FallbackPolicy::from_vars([("sandbox_allow_unsandboxed", "1")])
            .decide("x")
            .is_err()
    );
}

#[test]
fn a_refusal_names_cause_consequence_and_remedy() {
    let text = FallbackPolicy::default()
        .decide("  the engine is down \n")
        .unwrap_err()
        .to_string();
    for part in [
        "the engine is down\n",
        "Nothing was run",
        "on the host",
        "SANDBOX_ALLOW_UNSANDBOXED=1",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    let text = FallbackPolicy::default()
        .decide(" ")
        .unwrap_err()
        .to_string();
    assert!(text.contains("no backend could be resolved"), "{text}");
}

#[test]
fn an_episode_has_one_notification() {
    let episode = FailureEpisode::new();
    assert!(!episode.claim(false));
    assert!(episode.claim(true));
    assert!(!episode.claim(true));
    assert!(!episode.claim(false));
    episode.succeeded();
    assert!(episode.claim(true));
    let episode = FailureEpisode::new();
    let claims = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| claims.fetch_add(usize::from(episode.claim(true)), Ordering::SeqCst));
        }
    });
    assert_eq!(claims.into_inner(), 1);
}

/// A resolution that is counted, can be held, and fails as long as it is told to.
#[derive(Default)]
struct World {
    attempts: AtomicUsize,
    down: AtomicBool,
    gate: Option<Semaphore>,
    told: Mutex<Vec<String>>,
    deaf: AtomicBool,
    fallbacks: AtomicUsize,
}

impl World {
    fn resolver(self: &Arc<Self>, policy: FallbackPolicy) -> Resolver {
        let (world, told) = (self.clone(), self.clone());
        Resolver::new(policy, move || {
            let world = world.clone();
            async move {
                world.attempts.fetch_add(1, Ordering::SeqCst);
                if let Some(gate) = &world.gate {
                    gate.acquire().await.unwrap().forget();
                }
                if world.down.load(Ordering::SeqCst) {
                    return Err(unavailable("no socket"));
                }
                Ok(Memory::new() as Arc<dyn Backend>)
            }
        })
        .on_failure(move |error| {
            if told.deaf.load(Ordering::SeqCst) {
                return false;
            }
            told.told.lock().unwrap().push(error.to_string());
            true
        })
    }

    fn with_fallback(self: &Arc<Self>, policy: FallbackPolicy) -> Resolver {
        let world = self.clone();
        self.resolver(policy).with_fallback(move |_permit| {
            world.fallbacks.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(Memory::new() as Arc<dyn Backend>))
        })
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    fn told(&self) -> usize {
        self.told.lock().unwrap().len()
    }
}

async fn ok(resolver: &Resolver) -> Result<()> {
    resolver
        .call(|backend| async move { backend.list().await.map(drop) })
        .await
}

async fn fail(resolver: &Resolver, error: Error) -> ErrorKind {
    resolver
        .call(|_| async move { Err::<(), _>(error) })
        .await
        .unwrap_err()
        .kind()
}

#[tokio::test]
async fn a_backend_is_resolved_once_and_kept() {
    let world = Arc::new(World::default());
    let resolver = world.resolver(FallbackPolicy::default());
    assert_eq!(world.attempts(), 0, "not before it is needed");
    let first = resolver.backend().await.unwrap();
    ok(&resolver).await.unwrap();
    assert!(Arc::ptr_eq(&first, &resolver.backend().await.unwrap()));
    assert_eq!((world.attempts(), world.told()), (1, 0));
}

#[tokio::test]
async fn callers_share_an_attempt_and_its_outcome() {
    for down in [false, true] {
        let world = Arc::new(World {
            gate: Some(Semaphore::new(0)),
            ..World::default()
        });
        world.down.store(down, Ordering::SeqCst);
        let resolver = Arc::new(world.resolver(FallbackPolicy::default()));
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let resolver = resolver.clone();
                tokio::spawn(async move { resolver.backend().await.map(drop) })
            })
            .collect();
        while world.attempts() == 0 {
            tokio::task::yield_now().await;
        }
        // One that gives up does not end the attempt of the others.
        callers[0].abort();
        tokio::task::yield_now().await;
        world.gate.as_ref().unwrap().add_permits(1);
        for caller in callers.into_iter().skip(1) {
            assert_eq!(caller.await.unwrap().is_err(), down);
        }
        assert_eq!(world.attempts(), 1);
        assert_eq!(world.told(), usize::from(down), "once for all of them");
    }
}

#[tokio::test]
async fn a_failed_attempt_is_forgotten_and_never_repeated_by_itself() {
    let world = Arc::new(World::default());
    world.down.store(true, Ordering::SeqCst);
    let resolver = world.resolver(FallbackPolicy::default());
    for attempt in 1..=3 {
        let error = ok(&resolver).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(world.attempts(), attempt);
    }
    assert_eq!(world.told(), 1, "one outage");
    world.down.store(false, Ordering::SeqCst);
    ok(&resolver).await.unwrap();
    world.down.store(true, Ordering::SeqCst);
    ok(&resolver).await.unwrap();
    assert_eq!(world.attempts(), 4, "what was found is kept");
}

#[tokio::test]
async fn a_backend_that_is_unavailable_is_forgotten_and_the_operation_not_repeated() {
    let world = Arc::new(World::default());
    let resolver = world.resolver(FallbackPolicy::default());
    let first = resolver.backend().await.unwrap();
    assert_eq!(
        fail(&resolver, unavailable("reset")).await,
        ErrorKind::Unavailable
    );
    let second = resolver.backend().await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((world.attempts(), world.told()), (2, 1));
    // The outage is over only when a sandbox has done its work.
    assert_eq!(
        fail(&resolver, unavailable("reset")).await,
        ErrorKind::Unavailable
    );
    assert_eq!(world.told(), 1);
    ok(&resolver).await.unwrap();
    assert_eq!(
        fail(&resolver, unavailable("reset")).await,
        ErrorKind::Unavailable
    );
    assert_eq!(world.told(), 2);
}

#[tokio::test]
async fn a_late_failure_does_not_forget_a_newer_backend() {
    let world = Arc::new(World::default());
    let resolver = world.resolver(FallbackPolicy::default());
    let late = resolver.call(|_| async {
        assert_eq!(
            fail(&resolver, unavailable("first")).await,
            ErrorKind::Unavailable
        );
        resolver.backend().await?;
        Err::<(), _>(unavailable("second, of the old backend"))
    });
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Unavailable);
    resolver.backend().await.unwrap();
    assert_eq!(world.attempts(), 2);
}

#[tokio::test]
async fn other_errors_neither_start_nor_end_an_outage() {
    let world = Arc::new(World::default());
    let resolver = world.resolver(FallbackPolicy::default());
    let other = || Error::BrokenPipe;
    assert_eq!(fail(&resolver, other()).await, ErrorKind::BrokenPipe);
    assert_eq!((world.told(), world.attempts()), (0, 1));
    fail(&resolver, unavailable("down")).await;
    fail(&resolver, other()).await;
    fail(&resolver, unavailable("still down")).await;
    assert_eq!(world.told(), 1);
}

#[tokio::test]
async fn what_could_not_be_told_is_told_later() {
    let world = Arc::new(World::default());
    let resolver = world.resolver(FallbackPolicy::default());
    world.deaf.store(true, Ordering::SeqCst);
    fail(&resolver, unavailable("down")).await;
    world.deaf.store(false, Ordering::SeqCst);
    fail(&resolver, unavailable("still down")).await;
    fail(&resolver, unavailable("still down")).await;
    assert_eq!(world.told(), 1);
}

#[tokio::test]
async fn the_fallback_needs_the_permit() {
    let world = Arc::new(World::default());
    world.down.store(true, Ordering::SeqCst);
    let resolver = world.with_fallback(FallbackPolicy::default());
    let error = ok(&resolver).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SandboxRequired);
    assert!(error.to_string().contains("no socket"), "{error}");
    assert_eq!(world.fallbacks.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_fallback_is_told_is_not_kept_and_does_not_end_the_outage() {
    let world = Arc::new(World::default());
    world.down.store(true, Ordering::SeqCst);
    let resolver = world.with_fallback(allowing());
    ok(&resolver).await.unwrap();
    ok(&resolver).await.unwrap();
    assert_eq!(
        (world.attempts(), world.fallbacks.load(Ordering::SeqCst)),
        (2, 2)
    );
    assert_eq!(world.told(), 1);
    // As soon as there is a sandbox again, it is used.
    world.down.store(false, Ordering::SeqCst);
    ok(&resolver).await.unwrap();
    ok(&resolver).await.unwrap();
    assert_eq!(
        (world.attempts(), world.fallbacks.load(Ordering::SeqCst)),
        (3, 2)
    );
}

#[tokio::test]
async fn without_a_failure_there_is_no_fallback() {
    let world = Arc::new(World::default());
    let resolver = world.with_fallback(allowing());
    ok(&resolver).await.unwrap();
    fail(&resolver, unavailable("down")).await;
    assert_eq!(world.fallbacks.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_attempt_that_panics_is_an_error_and_forgotten() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let resolver = Resolver::new(FallbackPolicy::default(), move || {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            assert!(!first, "this panic is part of the test");
            Ok(Memory::new() as Arc<dyn Backend>)
        }
    });
    let error = tokio::time::timeout(Duration::from_secs(10), resolver.backend());
    assert_eq!(
        error.await.unwrap().unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    resolver.backend().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

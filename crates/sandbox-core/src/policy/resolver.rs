//! Finds a backend when one is needed, and forgets it when it is dead.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use tokio::sync::watch;

use super::{FailureEpisode, FallbackPolicy, UnsandboxedPermit};
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};

/// Resolves a backend lazily and shares it, fails closed, and tells about each outage once.
///
/// - A resolved backend is kept; callers that arrive while it is being resolved share that attempt and its outcome.
/// - A failed attempt is forgotten at once, and a backend that answers `Unavailable` is forgotten too: the next call resolves
///   anew. Nothing is retried by itself.
/// - If nothing can be resolved, a fallback without isolation is made only with an [`UnsandboxedPermit`] of the policy; it is
///   never kept as if it were a sandbox, and its successes do not end an outage.
/// - Each outage is told once through [`on_failure`](Resolver::on_failure). An error that is not about the sandbox neither starts
///   nor ends one.
///
/// ```
/// use std::sync::Arc;
/// use sandbox_core::policy::{FallbackPolicy, Resolver};
/// use sandbox_core::{Backend, Error, ErrorKind};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let policy = FallbackPolicy::from_vars(std::env::vars_os());
/// let resolver = Resolver::new(policy, || async {
///     Err::<Arc<dyn Backend>, _>(Error::Unavailable {
///         target: "the engine".into(),
///         never_started: true,
///         detail: "no socket".into(),
///     })
/// });
/// let error = resolver.call(|backend| async move { backend.list().await }).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Unavailable);
/// # });
/// ```
pub struct Resolver {
    ways: Ways,
    state: Arc<Mutex<State>>,
    episode: FailureEpisode,
    on_failure: Option<OnFailure>,
}

/// How a backend can be had.
#[derive(Clone)]
struct Ways {
    policy: FallbackPolicy,
    resolve: Resolve,
    fallback: Option<Fallback>,
}

type Resolve = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Backend>>> + Send + Sync>;
type Fallback =
    Arc<dyn Fn(UnsandboxedPermit) -> BoxFuture<'static, Result<Arc<dyn Backend>>> + Send + Sync>;
type OnFailure = Box<dyn Fn(&Error) -> bool + Send + Sync>;
type Outcome = Result<Found, Arc<Error>>;

enum State {
    Nothing,
    Resolving(watch::Receiver<Option<Outcome>>),
    Found(Arc<dyn Backend>),
}

#[derive(Clone)]
struct Found {
    backend: Arc<dyn Backend>,
    sandboxed: bool,
    /// Why it is not sandboxed.
    failure: Option<Arc<Error>>,
}

impl Resolver {
    /// Resolves with `resolve`, and without a fallback.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use sandbox_core::{Backend, policy::{FallbackPolicy, Resolver}};
    /// fn always(backend: Arc<dyn Backend>) -> Resolver {
    ///     Resolver::new(FallbackPolicy::default(), move || std::future::ready(Ok(backend.clone())))
    /// }
    /// ```
    pub fn new<F>(policy: FallbackPolicy, resolve: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        Resolver {
            ways: Ways {
                policy,
                resolve: Arc::new(move || Box::pin(resolve())),
                fallback: None,
            },
            state: Arc::new(Mutex::new(State::Nothing)),
            episode: FailureEpisode::new(),
            on_failure: None,
        }
    }

    /// Makes a backend without isolation when no other can be resolved and the policy permits it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use sandbox_core::{Backend, policy::{Resolver, UnsandboxedPermit}};
    /// fn with_host(resolver: Resolver, host: fn(UnsandboxedPermit) -> Arc<dyn Backend>) -> Resolver {
    ///     resolver.with_fallback(move |permit| std::future::ready(Ok(host(permit))))
    /// }
    /// ```
    #[must_use]
    pub fn with_fallback<F>(
        mut self,
        fallback: impl Fn(UnsandboxedPermit) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        self.ways.fallback = Some(Arc::new(move |permit| Box::pin(fallback(permit))));
        self
    }

    /// Tells about outages: called with the failure, answers whether it could be delivered. Once it was, it is not called again
    /// until a sandbox has done its work.
    ///
    /// ```
    /// # use sandbox_core::policy::Resolver;
    /// fn with_log(resolver: Resolver) -> Resolver {
    ///     resolver.on_failure(|error| {
    ///         eprintln!("{error}");
    ///         true
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn on_failure(mut self, notify: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(notify));
        self
    }

    /// The backend, resolved now if it is not known. Runs on a task of its own, so that a caller who gives up does not end the
    /// attempt of others.
    ///
    /// # Errors
    /// The error of `resolve`, if there is no fallback; else `SandboxRequired` if the policy refuses, or the fallback's error.
    ///
    /// ```
    /// # use sandbox_core::policy::Resolver;
    /// async fn name(resolver: &Resolver) -> sandbox_core::Result<String> {
    ///     Ok(resolver.backend().await?.name().to_owned())
    /// }
    /// ```
    pub async fn backend(&self) -> Result<Arc<dyn Backend>> {
        self.find().await.map(|found| found.backend)
    }

    /// Does something with the backend, and draws the conclusions.
    ///
    /// # Errors
    /// Those of [`backend`](Resolver::backend), and those of `operation`, unchanged.
    ///
    /// ```
    /// # use sandbox_core::{BackendExt, Handle, policy::Resolver};
    /// async fn whoami(resolver: &Resolver, handle: &Handle) -> sandbox_core::Result<Option<i32>> {
    ///     let handle = handle.clone();
    ///     let run = |backend: std::sync::Arc<dyn sandbox_core::Backend>| async move {
    ///         backend.run_shell(&handle, "whoami").await
    ///     };
    ///     Ok(resolver.call(run).await?.code())
    /// }
    /// ```
    pub async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        operation: impl FnOnce(Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let found = self.find().await?;
        let result = operation(Arc::clone(&found.backend)).await;
        match &result {
            Ok(_) if found.sandboxed => self.episode.succeeded(),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.forget(&found.backend);
                self.notify(error);
            }
            _ => {}
        }
        result
    }

    async fn find(&self) -> Result<Found> {
        let outcome = self.found_or_attempt().await;
        let failure = match &outcome {
            Ok(found) => found.failure.as_ref(),
            Err(error) => Some(error),
        };
        if let Some(failure) = failure {
            self.notify(failure);
        }
        outcome.map_err(|error| error.duplicate())
    }

    async fn found_or_attempt(&self) -> Outcome {
        let mut attempt = match &mut *lock(&self.state) {
            State::Found(backend) => return Ok(Found::sandboxed(Arc::clone(backend))),
            State::Resolving(attempt) => attempt.clone(),
            nothing => {
                let attempt = self.start_attempt();
                *nothing = State::Resolving(attempt.clone());
                attempt
            }
        };
        let outcome = match attempt.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| {
            Err(Arc::new(Error::Unavailable {
                target: "the backend".into(),
                never_started: true,
                detail: "its resolution was abandoned".into(),
            }))
        })
    }

    fn start_attempt(&self) -> watch::Receiver<Option<Outcome>> {
        let (publish, attempt) = watch::channel(None);
        let ways = self.ways.clone();
        let mut settle = Settle {
            state: Arc::clone(&self.state),
            next: State::Nothing,
        };
        tokio::spawn(async move {
            let outcome = ways.resolve().await;
            if let Ok(found) = &outcome
                && found.sandboxed
            {
                settle.next = State::Found(Arc::clone(&found.backend));
            }
            drop(settle);
            // Nobody may be waiting any more.
            let _ = publish.send(Some(outcome));
        });
        attempt
    }

    /// Forgets a dead backend, but not one that was resolved since.
    fn forget(&self, dead: &Arc<dyn Backend>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Found(backend) if Arc::ptr_eq(backend, dead)) {
            *state = State::Nothing;
        }
    }

    fn notify(&self, error: &Error) {
        let Some(notify) = &self.on_failure else {
            return;
        };
        if self.episode.claim(true) && !notify(error) {
            // What could not be delivered does not use up the notification.
            self.episode.succeeded();
        }
    }
}

impl Found {
    fn sandboxed(backend: Arc<dyn Backend>) -> Self {
        Found {
            backend,
            sandboxed: true,
            failure: None,
        }
    }
}

impl Ways {
    async fn resolve(&self) -> Outcome {
        let failure = match (self.resolve)().await {
            Ok(backend) => return Ok(Found::sandboxed(backend)),
            Err(failure) => failure,
        };
        let Some(fallback) = &self.fallback else {
            return Err(Arc::new(failure));
        };
        let permit = self.policy.decide(&failure.to_string())?;
        Ok(Found {
            backend: fallback(permit).await?,
            sandboxed: false,
            failure: Some(Arc::new(failure)),
        })
    }
}

/// Ends an attempt, also one that panicked or whose runtime ended: then the next caller starts another.
struct Settle {
    state: Arc<Mutex<State>>,
    next: State,
}

impl Drop for Settle {
    fn drop(&mut self) {
        *lock(&self.state) = std::mem::replace(&mut self.next, State::Nothing);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("policy", &self.ways.policy)
            .finish_non_exhaustive()
    }
}

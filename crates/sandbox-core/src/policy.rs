//! What to do when the runtime is dead: classify, refuse, notify once (rules POL-1 to POL-5).
//!
//! Three questions are kept apart. *Was it the runtime?* Backends answer with structure ([`Error::Unavailable`](crate::Error));
//! [`classify_runtime_failure`] is for opaque command lines only. *May we go on without a sandbox?* Never, unless a
//! [`FallbackPolicy`] gives out an [`UnsandboxedPermit`]. *Who tells the user, and how often?* A [`FailureEpisode`]: once for
//! each outage. [`Resolver`] puts them together.

mod classify;
mod resolver;

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

pub use classify::{RuntimeFailureClassifier, classify_runtime_failure};
pub use resolver::Resolver;

/// The variable that allows running without a sandbox ([`FallbackPolicy`]).
///
/// ```
/// assert_eq!(sandbox_core::policy::ALLOW_UNSANDBOXED, "SANDBOX_ALLOW_UNSANDBOXED");
/// ```
pub const ALLOW_UNSANDBOXED: &str = "SANDBOX_ALLOW_UNSANDBOXED";

/// Whether commands may run without a sandbox when none can be had. The default refuses.
///
/// ```
/// use sandbox_core::ErrorKind;
/// use sandbox_core::policy::FallbackPolicy;
/// let refuses = FallbackPolicy::default().decide("the engine is down").unwrap_err();
/// assert_eq!(refuses.kind(), ErrorKind::SandboxRequired);
/// assert!(refuses.to_string().contains("SANDBOX_ALLOW_UNSANDBOXED=1"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FallbackPolicy {
    allow: bool,
}

impl FallbackPolicy {
    /// Reads [`ALLOW_UNSANDBOXED`] from a snapshot of an environment, so that a later change of the process's own cannot change
    /// the decision. `1`, `true`, `yes` and `on` allow (in any case, blanks around them ignored); everything else refuses.
    ///
    /// ```
    /// use sandbox_core::policy::FallbackPolicy;
    /// let _own = FallbackPolicy::from_vars(std::env::vars_os());
    /// let allows = FallbackPolicy::from_vars([("SANDBOX_ALLOW_UNSANDBOXED", " Yes ")]);
    /// assert!(allows.decide("no engine").is_ok());
    /// ```
    pub fn from_vars<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let allow = variables
            .into_iter()
            .filter(|(name, _)| name.as_ref() == ALLOW_UNSANDBOXED)
            .last()
            .is_some_and(|(_, value)| allows(value.as_ref()));
        FallbackPolicy { allow }
    }

    /// Decides after no sandbox could be had because of `failure`.
    ///
    /// # Errors
    /// `SandboxRequired`, whose text names the failure, says that nothing was run anywhere, and names the variable.
    ///
    /// ```
    /// use sandbox_core::policy::FallbackPolicy;
    /// assert!(FallbackPolicy::default().decide("").is_err());
    /// ```
    pub fn decide(&self, failure: &str) -> Result<UnsandboxedPermit> {
        if self.allow {
            return Ok(UnsandboxedPermit { _private: () });
        }
        let failure = match failure.trim() {
            "" => "no backend could be resolved (is one installed, and can it start?)",
            failure => failure,
        };
        Err(Error::SandboxRequired {
            failure: failure.into(),
        })
    }
}

fn allows(value: &OsStr) -> bool {
    let value = value.to_str().unwrap_or_default().trim();
    ["1", "true", "yes", "on"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

/// The permission to run without isolation. Only [`FallbackPolicy::decide`] makes one; a backend that can run without isolation
/// demands it, so that no code path reaches the host by accident.
///
/// ```
/// use sandbox_core::policy::{FallbackPolicy, UnsandboxedPermit};
/// fn run_on_the_host(_permit: UnsandboxedPermit) {}
/// if let Ok(permit) = FallbackPolicy::default().decide("no engine") {
///     run_on_the_host(permit);
/// }
/// ```
/// Nobody else can make one:
/// ```compile_fail
/// let permit = sandbox_core::policy::UnsandboxedPermit { _private: () };
/// ```
#[derive(Debug, Clone)]
pub struct UnsandboxedPermit {
    _private: (),
}

/// One outage and its one notification. Shared by reference; safe from several threads.
///
/// ```
/// use sandbox_core::policy::FailureEpisode;
/// let episode = FailureEpisode::new();
/// assert!(!episode.claim(false)); // nobody to tell: not used up
/// assert!(episode.claim(true));
/// assert!(!episode.claim(true));
/// episode.succeeded();
/// assert!(episode.claim(true)); // a new outage
/// ```
#[derive(Debug, Default)]
pub struct FailureEpisode {
    notified: AtomicBool,
}

impl FailureEpisode {
    /// No outage.
    ///
    /// ```
    /// let _ = sandbox_core::policy::FailureEpisode::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Claims the notification of this outage. True for the first caller that can deliver one.
    ///
    /// ```
    /// assert!(sandbox_core::policy::FailureEpisode::new().claim(true));
    /// ```
    pub fn claim(&self, deliverable: bool) -> bool {
        deliverable && !self.notified.swap(true, Ordering::AcqRel)
    }

    /// A sandbox did its work: the outage is over. Not for errors of other kinds, which say nothing about it.
    ///
    /// ```
    /// sandbox_core::policy::FailureEpisode::new().succeeded();
    /// ```
    pub fn succeeded(&self) {
        self.notified.store(false, Ordering::Release);
    }
}

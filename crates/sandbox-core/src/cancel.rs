//! Cancellation with a reason.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::error::{CancelReason, Error};

/// A token that cancels whatever it was given to, once, with the caller's reason. Clones share one state.
///
/// ```
/// use sandbox_core::{CancelReason, CancelToken};
/// let token = CancelToken::new();
/// let reason = CancelReason::new("superseded");
/// token.clone().cancel_with(reason.clone());
/// assert!(token.is_cancelled());
/// assert!(token.reason().is_some_and(|r| r.same_as(&reason)));
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    token: CancellationToken,
    reason: Arc<OnceLock<CancelReason>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    ///
    /// ```
    /// assert!(!sandbox_core::CancelToken::new().is_cancelled());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels without a reason. Idempotent.
    ///
    /// ```
    /// let token = sandbox_core::CancelToken::new();
    /// token.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Cancels with a reason; the first reason stays.
    ///
    /// ```
    /// let token = sandbox_core::CancelToken::new();
    /// token.cancel_with(sandbox_core::CancelReason::new("first"));
    /// token.cancel_with(sandbox_core::CancelReason::new("second"));
    /// assert_eq!(token.reason().unwrap().to_string(), "first");
    /// ```
    pub fn cancel_with(&self, reason: CancelReason) {
        if !self.token.is_cancelled() {
            // A lost race leaves the earlier reason, which is the one that counts.
            let _ = self.reason.set(reason);
        }
        self.token.cancel();
    }

    /// Whether it was cancelled.
    ///
    /// ```
    /// assert!(!sandbox_core::CancelToken::new().is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The reason, if one was given.
    ///
    /// ```
    /// assert!(sandbox_core::CancelToken::new().reason().is_none());
    /// ```
    pub fn reason(&self) -> Option<CancelReason> {
        self.reason.get().cloned()
    }

    /// Resolves when the token is cancelled. Safe to drop and ask again.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let token = sandbox_core::CancelToken::new();
    /// token.cancel();
    /// token.cancelled().await;
    /// # });
    /// ```
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// The error that a call cancelled by this token gives.
    ///
    /// ```
    /// use sandbox_core::{CancelToken, ErrorKind};
    /// assert_eq!(CancelToken::new().error().kind(), ErrorKind::Cancelled);
    /// ```
    pub fn error(&self) -> Error {
        Error::Cancelled {
            reason: self.reason(),
        }
    }
}

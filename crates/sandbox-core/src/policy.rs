//! What to do when the runtime is dead: classify, refuse, notify once.

/// The variable that allows running without a sandbox ([`FallbackPolicy`]).
///
/// ```
/// assert_eq!(sandbox_core::policy::ALLOW_UNSANDBOXED, "SANDBOX_ALLOW_UNSANDBOXED");
/// ```
pub const ALLOW_UNSANDBOXED: &str = "SANDBOX_ALLOW_UNSANDBOXED";

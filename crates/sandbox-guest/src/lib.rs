#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod client;
mod connection;
mod exec;
mod files;
mod transport;
#[expect(dead_code, reason = "each side of the protocol uses its own half")]
mod wire;

pub use client::{ExecContext, GuestClient};

/// The program inside a sandbox: a static executable for this target, to be started there. Empty on systems other than Linux.
///
/// ```
/// assert!(!cfg!(target_os = "linux") || sandbox_guest::INIT.starts_with(b"\x7fELF"));
/// ```
pub const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-init"));

/// The set-up message of `sandbox-init box`, for backends that make sandboxes from namespaces.
#[doc(hidden)]
pub mod setup {
    pub use crate::wire::bytes::Malformed;
    pub use crate::wire::setup::*;
}

/// Removes directory trees that sandboxes filled, for backends that keep them on disk.
#[doc(hidden)]
#[path = "../init/setup/remove.rs"]
pub mod remove;

//! The protocol between the host and the program inside a sandbox, shared by both.
//!
//! Std only: it is compiled into the guest too. Decoding trusts nobody: every length is bounded before anything is allocated, and
//! damaged input is an error, never a panic.

pub(crate) mod bytes;
pub(crate) mod frame;
pub(crate) mod message;
pub(crate) mod setup;

//! The crate's integration tests: one binary.

mod checked;
mod memory;
mod policy;
mod run;
mod session;
mod supervise;
mod tree;

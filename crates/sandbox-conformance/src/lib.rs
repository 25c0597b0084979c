#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod archive;
mod case;
mod cases;
mod context;
mod factory;
mod needs;
mod report;
mod runner;
mod tracked;
mod verdict;

pub use case::{Case, Level};
pub use cases::all;
pub use factory::{BoxFuture, Factory};
pub use needs::{Ability, Need};
pub use report::{Report, Row};
pub use runner::{Options, run};
pub use verdict::{Status, Verdict, verdict};

//! The table of cases, in modules by group of rules.

mod caps;
mod drain;
mod env;
mod exec;
mod file;
mod iso;
mod kill;
mod life;
mod lim;
mod limits;
mod net;
mod pty;
mod stdin;
mod survive;
mod tree;
mod user;

use crate::case::Case;

/// Every case, in the order of the groups.
///
/// ```
/// assert!(sandbox_conformance::all().len() > 100);
/// ```
pub fn all() -> Vec<&'static Case> {
    [
        caps::CASES,
        life::CASES,
        exec::CASES,
        stdin::CASES,
        env::CASES,
        kill::CASES,
        drain::CASES,
        limits::CASES,
        survive::CASES,
        pty::CASES,
        user::CASES,
        file::CASES,
        tree::CASES,
        iso::CASES,
        net::CASES,
        lim::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

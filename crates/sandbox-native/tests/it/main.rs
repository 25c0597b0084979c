//! What the contract's conformance suite cannot see from outside: what is left on the host, what failing steps do, and what a
//! hostile program can reach.

mod basics;
mod escapes;
mod helper;
mod hostile;
mod lifetime;
mod limits;
mod ordinary;
mod roots;
mod state;
mod support;
mod walls;

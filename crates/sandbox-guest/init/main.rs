//! `sandbox-init`: the program inside a sandbox.
//!
//! - `sandbox-init nursery`: makes isolated sandboxes, each as the message on a socket says, and serves each as its PID 1; the sockets
//!   come over descriptor 0.
//! - `sandbox-init serve`: serves the place it was started in, over the socket on descriptor 0, or over descriptors 0 and 1.
//! - `sandbox-init janitor`: removes what sandboxes of a host process left behind, once that process is gone.

mod exec;
mod files;
mod monitor;
mod processes;
mod server;
mod setup;
mod streams;
mod sys;
mod tree;
mod users;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "each side of the protocol uses its own half; the library re-exports some of it"
)]
#[path = "../src/wire/mod.rs"]
mod wire;

fn main() {
    let mode = std::env::args_os().nth(1).unwrap_or_default();
    match mode.to_str() {
        Some("nursery") => setup::nursery::run(),
        Some("janitor") => setup::janitor::run(),
        Some("serve") => server::serve(),
        _ => {
            eprintln!("sandbox-init: started by the sandbox libraries only; see its documentation");
            sys::exit(2);
        }
    }
}

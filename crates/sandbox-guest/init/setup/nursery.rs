//! Starts sandboxes for one host process without executing a program for each.
//!
//! Loading even a static program costs more than half of what making a sandbox does. So a host starts one nursery, which forks for
//! every sandbox: it is small and has one thread, as a host is and has not. What it forks is stage 1 of the set-up; that process's
//! sibling, process 1 of the sandbox, is the nursery's child too and dies with it.

use crate::sys::{self, Fd};
use crate::wire::setup::Reply;

const REQUESTS: Fd = 0;

/// The entry point. Each byte on standard input brings the control socket of a sandbox to be; the end of input is the end.
pub(crate) fn run() -> ! {
    if super::prepare_process().is_err() {
        sys::exit(1);
    }
    // Signals that a terminal or a shell sends to the host's group are not for the sandboxes.
    let _ = sys::setsid();
    // Nobody asks how a sandbox's processes ended; ignored, they are reaped by the kernel.
    let _ = sys::ignore_signal(sys::SIGCHLD, true);
    loop {
        let (mut byte, mut sockets) = ([0], Vec::new());
        match sys::receive_with_fds(REQUESTS, &mut byte, &mut sockets) {
            Ok(1) => {}
            _ => sys::exit(0),
        }
        let Some(control) = sockets.pop() else {
            continue;
        };
        match sys::fork_into(0) {
            Ok((0, _)) => {
                // From here on as if it had been executed with that socket as its standard input.
                if sys::dup_onto(control.raw(), super::CONTROL).is_err() {
                    sys::exit(1);
                }
                super::run();
            }
            Ok(_) => {}
            Err(errno) => {
                let failed = Reply::Failed {
                    step: "namespaces".into(),
                    errno: errno.0,
                    detail: "forking for a sandbox".into(),
                };
                let _ = sys::write_all(control.raw(), &failed.encode());
            }
        }
    }
}

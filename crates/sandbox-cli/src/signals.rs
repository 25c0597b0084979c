//! The signals that end the `sandbox` command, or that resize its terminal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The exit code, as a shell reports the signal: 128 + n.
    pub(crate) code: u8,
}

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    resize: Signal,
}

pub(crate) enum Received {
    End(Ended),
    Resize,
}

impl Signals {
    /// From here on the signals do not end this process by themselves.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    /// The next one. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => Received::End(Ended { code: 130 }),
            _ = self.terminate.recv() => Received::End(Ended { code: 143 }),
            _ = self.hangup.recv() => Received::End(Ended { code: 129 }),
            _ = self.resize.recv() => Received::Resize,
        }
    }

    /// The next request to end. Safe to cancel.
    pub(crate) async fn end(&mut self) -> Ended {
        loop {
            if let Received::End(ended) = self.next().await {
                return ended;
            }
        }
    }
}

//! A process that is held by descriptor, so that its number cannot come to mean another one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

/// A process of this machine.
#[derive(Debug)]
pub(crate) struct Process {
    descriptor: OwnedFd,
    pid: u32,
}

impl Process {
    pub(crate) fn new(descriptor: OwnedFd, pid: u32) -> Self {
        Process { descriptor, pid }
    }

    /// The process with this number now.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Process {
            descriptor: pidfd_open(number, PidfdFlags::empty())?,
            pid,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it; a process that is dead already is no error.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.wait(Duration::ZERO).unwrap_or(false)
    }

    /// Waits until it has ended and reaps it if it is a child; says whether it has ended.
    pub(crate) fn wait(&self, most: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + most;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // Another process's child, or one that the embedding program reaped with a wait for any child: ended all the same.
        use std::os::fd::AsFd;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), options);
        Ok(true)
    }
}

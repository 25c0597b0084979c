//! The process that cleans up when this one is gone.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::Duration;

use sandbox_guest::setup::Chores;

use crate::cgroup::Cgroups;
use crate::launch::{Launcher, send_with_descriptors};
use crate::state::Session;

/// Ends, having removed the session, when it is dropped or when this process dies.
#[derive(Debug)]
pub(crate) struct Janitor {
    stream: Option<UnixStream>,
    child: Child,
}

impl Janitor {
    /// Comes back when it is certain that this process's death would be noticed.
    pub(crate) fn start(
        launcher: &Launcher,
        session: &Session,
        cgroups: &Cgroups,
    ) -> io::Result<Self> {
        let (stream, child) = launcher.start(&["janitor"], None)?;
        let janitor = Janitor {
            stream: Some(stream),
            child,
        };
        let chores = Chores {
            cgroups: cgroups
                .directories()
                .iter()
                .map(|path| path.as_os_str().as_bytes().to_vec())
                .collect(),
            directory: session.directory.as_os_str().as_bytes().to_vec(),
        };
        if let Some(mut stream) = janitor.stream.as_ref() {
            send_with_descriptors(stream, &chores.encode(), &[session.lock.as_fd()])?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.read_exact(&mut [0])?;
        }
        Ok(janitor)
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stream = None;
        // It removes what is left of the session, which is next to nothing here, and exits.
        let _ = self.child.wait();
    }
}

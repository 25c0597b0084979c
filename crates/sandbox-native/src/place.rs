//! One sandbox on this machine: its process 1, its directory, its control groups.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_guest::remove::remove_tree;

use crate::cgroup::BoxCgroups;
use crate::process::Process;

/// The kernel ends all processes of a sandbox with its process 1; under heavy load that takes a while.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take to end its commands when asked to.
const POLITENESS: Duration = Duration::from_secs(5);

/// Ends and removes the sandbox when it is dropped, unless it is [`left`](Place::leave).
#[derive(Debug)]
pub(crate) struct Place {
    process: Option<Process>,
    cgroups: Option<BoxCgroups>,
    directory: Option<PathBuf>,
    /// Without a process tree of its own, killing process 1 would leave the others: it is asked to end them first.
    polite: Option<UnixStream>,
}

impl Place {
    /// A sandbox in the making: what it has so far is removed if it comes to nothing.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Place {
            process: None,
            cgroups: None,
            directory: Some(directory),
            polite: None,
        }
    }

    pub(crate) fn add_cgroups(&mut self, cgroups: BoxCgroups) {
        self.cgroups = Some(cgroups);
    }

    pub(crate) fn add_process(&mut self, process: Process) {
        self.process = Some(process);
    }

    /// Makes `end` close this connection and wait a little for the process to end all others.
    pub(crate) fn end_politely(&mut self, connection: UnixStream) {
        self.polite = Some(connection);
    }

    pub(crate) fn cgroups(&self) -> Option<&BoxCgroups> {
        self.cgroups.as_ref()
    }

    /// Whether its process 1 still lives.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_alive)
    }

    /// Kills everything in it and removes what it held. Can be repeated after an error.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if let Some(process) = &self.process {
            if let Some(connection) = &self.polite {
                let _ = connection.shutdown(Shutdown::Both);
                process.wait(POLITENESS)?;
            }
            process.kill()?;
            if !process.wait(PATIENCE)? {
                let text = format!("process {} does not die", process.pid());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            self.process = None;
        }
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove()?;
            self.cgroups = None;
        }
        if let Some(directory) = &self.directory {
            remove_tree(directory)?;
            self.directory = None;
        }
        Ok(())
    }

    /// Lets it live on without this process.
    pub(crate) fn leave(&mut self) {
        self.process = None;
        self.cgroups = None;
        self.directory = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, directory = ?self.directory, "a sandbox could not be removed completely");
        }
    }
}

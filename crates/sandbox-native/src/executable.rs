//! The in-sandbox program as a file that can be executed and that nobody can change.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// The program; keep it for as long as it is to be executed.
#[derive(Debug)]
pub(crate) struct Executable {
    path: PathBuf,
    /// Keeps the memory file alive.
    _file: OwnedFd,
}

impl Executable {
    /// A sealed file in memory, so that a sandbox that gets hold of it cannot change what the next one runs (CVE-2019-5736). Where
    /// the system does not execute such files, a file in `directory`.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        in_memory().or_else(|_| on_disk(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn in_memory() -> io::Result<Executable> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Since Linux 6.3 a system may demand that executable memory files are asked for as such; before, the flag is unknown.
    let descriptor = memfd_create("sandbox-init", flags | MemfdFlags::EXEC)
        .or_else(|_| memfd_create("sandbox-init", flags))?;
    let mut file = File::from(descriptor);
    file.write_all(sandbox_guest::INIT)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o555))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, seals)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if !path.exists() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "/proc is not mounted",
        ));
    }
    Ok(Executable {
        path,
        _file: file.into(),
    })
}

fn on_disk(directory: &Path) -> io::Result<Executable> {
    let path = directory.join("sandbox-init");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o500)
        .open(&path)?;
    file.write_all(sandbox_guest::INIT)?;
    // Only a descriptor for reading may stay: a file that is open for writing cannot be executed.
    drop(file);
    Ok(Executable {
        _file: File::open(&path)?.into(),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn both_kinds_run_and_the_one_in_memory_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        for executable in [in_memory().unwrap(), on_disk(directory.path()).unwrap()] {
            let status = Command::new(executable.path())
                .arg("nonsense")
                .output()
                .unwrap()
                .status;
            assert_eq!(status.code(), Some(2), "{executable:?}");
        }
        let executable = in_memory().unwrap();
        let written = std::fs::OpenOptions::new()
            .write(true)
            .open(executable.path());
        assert!(written.and_then(|mut file| file.write_all(b"x")).is_err());
    }
}

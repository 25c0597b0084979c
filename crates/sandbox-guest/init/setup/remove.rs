//! Removes a directory tree that a sandbox filled, whatever is in it.
//!
//! Deep trees need neither recursion nor one descriptor per level: a directory that is not empty is moved up to the top and emptied
//! there. Links are never followed, also if somebody still changes the tree. Directories without permissions get them first.
//!
//! Only the standard library, because the janitor in the guest and the host's library share this file; a name relative to an open
//! directory is written `/proc/self/fd/N/name`.
#![allow(unreachable_pub)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const O_PATH: i32 = 0o10000000;
#[cfg(not(target_arch = "aarch64"))]
const O_DIRECTORY: i32 = 0o200000;
#[cfg(not(target_arch = "aarch64"))]
const O_NOFOLLOW: i32 = 0o400000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: i32 = 0o40000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: i32 = 0o100000;

/// Removes the directory at `path` with everything below. It is no error if there is none. The directories above it must be the
/// caller's own.
///
/// # Errors
/// The first error of the system that is not "it is gone already".
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open_directory(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let mut moved = 0;
    loop {
        let mut empty = true;
        for entry in fs::read_dir(below(&top, None))? {
            empty = false;
            let entry = entry?;
            let name = below(&top, Some(entry.file_name().as_ref()));
            if entry.file_type()?.is_dir() {
                empty_directory(&top, &name, &mut moved)?;
            } else {
                gone_is_fine(fs::remove_file(&name))?;
            }
        }
        if empty {
            return gone_is_fine(fs::remove_dir(path));
        }
    }
}

/// Removes one directory below `top`; what directories in it are not empty are moved to `top`.
fn empty_directory(top: &File, name: &Path, moved: &mut u64) -> io::Result<()> {
    if fs::remove_dir(name).is_ok() {
        return Ok(());
    }
    let directory = match open_directory(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in fs::read_dir(below(&directory, None))? {
        let entry = entry?;
        let inner = below(&directory, Some(entry.file_name().as_ref()));
        if !entry.file_type()?.is_dir() {
            gone_is_fine(fs::remove_file(&inner))?;
        } else if fs::remove_dir(&inner).is_err() {
            move_up(top, &inner, moved)?;
        }
    }
    gone_is_fine(fs::remove_dir(name))
}

fn move_up(top: &File, inner: &Path, moved: &mut u64) -> io::Result<()> {
    // A directory that changes its parent must be writable itself.
    match open_directory(inner) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => drop(other?),
    }
    loop {
        *moved += 1;
        let target = below(top, Some(format!("~{moved}").as_ref()));
        match fs::rename(inner, target) {
            // The tree has that name itself.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::DirectoryNotEmpty
                        | ErrorKind::NotADirectory
                        | ErrorKind::AlreadyExists
                ) => {}
            other => return gone_is_fine(other),
        }
    }
}

/// Opens a directory for reading and makes it fully usable for its owner.
fn open_directory(path: &Path) -> io::Result<File> {
    let named = OpenOptions::new()
        .read(true)
        .custom_flags(O_PATH | O_DIRECTORY | O_NOFOLLOW)
        .open(path)?;
    let exactly = below(&named, None);
    let mode = named.metadata()?.permissions().mode();
    if mode & 0o700 != 0o700 {
        fs::set_permissions(&exactly, fs::Permissions::from_mode(0o700))?;
    }
    OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECTORY)
        .open(&exactly)
}

fn below(directory: &File, name: Option<&Path>) -> PathBuf {
    let base = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    match name {
        Some(name) => base.join(name),
        None => base,
    }
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

//! Files of the sandbox, as its default user sees them.
//!
//! The guest is inside: plain resolution from its own root can never reach the host. Magic links of `/proc` are never followed.

use std::ffi::CString;

use crate::sys::{self, AT_FDCWD, AT_SYMLINK_NOFOLLOW, Errno, Fd, OwnedFd, Sys};
use crate::wire::message::{Code, Failure, KIND_DIRECTORY, KIND_FILE, KIND_OTHER, KIND_SYMLINK};

pub(crate) type Outcome<T> = Result<T, Failure>;

/// Links that are followed before the path counts as a loop; the kernel's own number.
const MAX_LINKS: usize = 40;

/// The kernel's number for a `/proc`.
const PROC: u64 = 0x9fa0;

/// A failure with its path.
pub(crate) fn failure(code: Code, errno: i32, detail: &[u8]) -> Failure {
    // A path beyond what a message needs is cut.
    Failure {
        code,
        errno,
        detail: detail[..detail.len().min(4096)].to_vec(),
    }
}

/// The contract's kind for an error number of a file call.
pub(crate) fn failed(error: Errno, path: &[u8]) -> Failure {
    let code = match error {
        sys::ENOENT => Code::NotFound,
        sys::ENOTDIR => Code::NotADirectory,
        sys::EISDIR => Code::IsADirectory,
        sys::ENXIO | sys::ENODEV => Code::NotRegular,
        sys::EACCES | sys::EPERM | sys::EROFS => Code::PermissionDenied,
        sys::ELOOP | sys::ENAMETOOLONG | sys::EINVAL | sys::EXDEV => Code::InvalidPath,
        _ => Code::Io,
    };
    failure(code, error.0, path)
}

fn c_string(bytes: &[u8]) -> Outcome<CString> {
    CString::new(bytes).map_err(|_| failure(Code::InvalidPath, 0, bytes))
}

/// The same failure, of the path that the caller named.
fn of(path: &[u8]) -> impl Fn(Failure) -> Failure + '_ {
    move |error| failure(error.code, error.errno, path)
}

/// Where relative paths begin, and whether the caller is kept below it.
pub(crate) struct Files {
    workdir: Vec<u8>,
    /// Without a root of its own, only what lies below the workdir may be named.
    confined: Option<OwnedFd>,
}

/// A directory and a name in it.
pub(crate) struct Place {
    dir: OwnedFd,
    name: CString,
    /// The path it came from, for resolving a relative symbolic link.
    parent: Vec<u8>,
}

impl Files {
    pub(crate) fn new(workdir: Vec<u8>, confined: Option<OwnedFd>) -> Self {
        Files { workdir, confined }
    }

    pub(crate) fn is_confined(&self) -> bool {
        self.confined.is_some()
    }

    /// The absolute path of what a caller named.
    pub(crate) fn absolute(&self, path: &[u8]) -> Vec<u8> {
        if path.starts_with(b"/") {
            path.to_vec()
        } else {
            [&self.workdir[..], b"/", path].concat()
        }
    }

    /// Where a command starts: absolute, and the workdir if it does not say.
    pub(crate) fn cwd(&self, cwd: &[u8]) -> Vec<u8> {
        if cwd.is_empty() {
            self.workdir.clone()
        } else {
            self.absolute(cwd)
        }
    }

    /// Opens a path, following symbolic links.
    pub(crate) fn open(&self, path: &[u8], flags: u32, mode: u32) -> Outcome<OwnedFd> {
        let absolute = self.absolute(path);
        let opened = match &self.confined {
            None => sys::openat2(
                AT_FDCWD,
                &c_string(&absolute)?,
                flags,
                mode,
                sys::RESOLVE_NO_MAGICLINKS,
            ),
            Some(base) => {
                let below = self
                    .below_workdir(&absolute)
                    .ok_or_else(|| failure(Code::InvalidPath, 0, path))?;
                let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_MAGICLINKS;
                sys::openat2(base.raw(), &c_string(below)?, flags, mode, resolve)
            }
        };
        match opened {
            // A kernel before 5.6: inside a root of its own, the plain call resolves to the same files.
            Err(sys::ENOSYS) if self.confined.is_none() => {
                sys::openat(AT_FDCWD, &c_string(&absolute)?, flags, mode)
                    .map_err(|error| failed(error, path))
            }
            other => other.map_err(|error| failed(error, path)),
        }
    }

    fn below_workdir<'a>(&self, absolute: &'a [u8]) -> Option<&'a [u8]> {
        let rest = absolute.strip_prefix(self.workdir.as_slice())?;
        if !rest.is_empty() && !rest.starts_with(b"/") {
            return None;
        }
        Some(
            rest.iter()
                .position(|b| *b != b'/')
                .map_or(&b"."[..], |at| &rest[at..]),
        )
    }

    /// The directory of a path's last component; trailing slashes and dots are answered by kind, since they name directories.
    fn place(&self, path: &[u8], make_parents: bool) -> Outcome<Place> {
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        let trimmed = &path[..end];
        let start = trimmed
            .iter()
            .rposition(|b| *b == b'/')
            .map_or(0, |at| at + 1);
        let name = &trimmed[start..];
        if end < path.len() || matches!(name, b"" | b"." | b"..") {
            let fd = self.open(
                if trimmed.is_empty() { b"/" } else { trimmed },
                sys::O_PATH,
                0,
            )?;
            let stat = sys::fstat(fd.raw()).map_err(|error| failed(error, path))?;
            let directory = stat.kind() == sys::S_IFDIR;
            return Err(failure(
                if directory {
                    Code::IsADirectory
                } else {
                    Code::NotADirectory
                },
                0,
                path,
            ));
        }
        if name.len() > 255 {
            return Err(failure(Code::InvalidPath, sys::ENAMETOOLONG.0, path));
        }
        let parent = match start {
            0 => self.workdir.clone(),
            1 => b"/".to_vec(),
            _ => trimmed[..start - 1].to_vec(),
        };
        let dir = match self.open(&parent, sys::O_PATH | sys::O_DIRECTORY, 0) {
            Err(missing) if missing.code == Code::NotFound && make_parents => {
                self.make_dirs(&parent)
            }
            other => other,
        }
        .map_err(of(path))?;
        Ok(Place {
            dir,
            name: c_string(name)?,
            parent,
        })
    }

    /// Makes a directory with all its parents and opens it.
    pub(crate) fn make_dirs(&self, dir: &[u8]) -> Outcome<OwnedFd> {
        let absolute = self.absolute(dir);
        let directory = sys::O_PATH | sys::O_DIRECTORY;
        // Without a root of its own, nothing is made above the workdir.
        let mut end = if self.is_confined() {
            self.workdir.len()
        } else {
            0
        };
        let mut current = self.open(
            if self.is_confined() {
                &self.workdir
            } else {
                b"/"
            },
            directory,
            0,
        )?;
        while end < absolute.len() {
            let start = end + absolute[end..].iter().take_while(|b| **b == b'/').count();
            end = start + absolute[start..].iter().take_while(|b| **b != b'/').count();
            if start == end {
                break;
            }
            let prefix = &absolute[..end];
            current = match self.open(prefix, directory, 0) {
                Err(missing) if missing.code == Code::NotFound => {
                    match sys::mkdirat(current.raw(), &c_string(&absolute[start..end])?, 0o755) {
                        Ok(()) | Err(sys::EEXIST) => self.open(prefix, directory, 0)?,
                        Err(error) => return Err(failed(error, dir)),
                    }
                }
                other => other?,
            };
        }
        Ok(current)
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &[u8]) -> Outcome<(OwnedFd, u64)> {
        // First without opening it in earnest: a fifo's other side must not notice, a device must not act.
        let seen = self.open(path, sys::O_PATH, 0)?;
        regular(&seen, path)?;
        let fd = self.open(path, sys::O_RDONLY | sys::O_NONBLOCK | sys::O_NOCTTY, 0)?;
        let size = regular(&fd, path)?;
        Ok((fd, size))
    }

    pub(crate) fn stat(&self, path: &[u8]) -> Outcome<(u8, u64)> {
        let fd = self.open(path, sys::O_PATH, 0)?;
        let stat = sys::fstat(fd.raw()).map_err(|error| failed(error, path))?;
        let kind = match stat.kind() {
            sys::S_IFREG => KIND_FILE,
            sys::S_IFDIR => KIND_DIRECTORY,
            _ => KIND_OTHER,
        };
        Ok((kind, stat.size))
    }

    pub(crate) fn list(&self, path: &[u8]) -> Outcome<Vec<(u8, Vec<u8>)>> {
        let fd = self.open(path, sys::O_RDONLY | sys::O_DIRECTORY | sys::O_NONBLOCK, 0)?;
        let mut names = Vec::new();
        sys::read_dir(fd.raw(), |entry| names.push((entry.kind, entry.name)))
            .map_err(|error| failed(error, path))?;
        Ok(names
            .into_iter()
            .map(|(kind, name)| (entry_kind(fd.raw(), kind, &name), name))
            .collect())
    }

    pub(crate) fn delete(&self, path: &[u8]) -> Outcome<()> {
        let place = self.place(path, false)?;
        match sys::unlinkat(place.dir.raw(), &place.name, 0) {
            Ok(()) => Ok(()),
            // POSIX allows EPERM for a directory; the kind decides.
            Err(sys::EPERM) if place.is_directory() => Err(failure(Code::IsADirectory, 0, path)),
            Err(error) => Err(failed(error, path)),
        }
    }

    /// Prepares to write a file: see [`Writer`].
    pub(crate) fn write(&self, path: &[u8]) -> Outcome<Writer> {
        let at = |error| failed(error, path);
        let mut place = self.place(path, true).map_err(|error| match error.code {
            // "new/" names a directory that is not there: a file of that name must not be made.
            Code::NotFound if path.ends_with(b"/") => failure(Code::IsADirectory, 0, path),
            _ => error,
        })?;
        for _ in 0..MAX_LINKS {
            let stat = match sys::statx(place.dir.raw(), &place.name, AT_SYMLINK_NOFOLLOW) {
                Err(sys::ENOENT) => return Writer::replace(place, None, path),
                other => other.map_err(at)?,
            };
            match stat.kind() {
                sys::S_IFDIR => return Err(failure(Code::IsADirectory, 0, path)),
                sys::S_IFREG => return write_existing(place, stat, path),
                sys::S_IFLNK => {
                    let target = sys::readlinkat(place.dir.raw(), &place.name).map_err(at)?;
                    let next = if target.starts_with(b"/") {
                        target
                    } else {
                        [&self.absolute(&place.parent)[..], b"/", &target].concat()
                    };
                    place = self.place(&next, false).map_err(of(path))?;
                }
                _ => return Err(failure(Code::NotRegular, 0, path)),
            }
        }
        Err(failure(Code::InvalidPath, sys::ELOOP.0, path))
    }
}

fn write_existing(place: Place, stat: sys::Stat, path: &[u8]) -> Outcome<Writer> {
    let at = |error| failed(error, path);
    let flags = sys::O_PATH | sys::O_NOFOLLOW;
    let existing = sys::openat(place.dir.raw(), &place.name, flags, 0).map_err(at)?;
    // The directory would allow the rename, but the file itself decides who may change it.
    sys::access_fd(existing.raw(), 2).map_err(at)?;
    let directory = sys::fstat(place.dir.raw()).map_err(at)?;
    if stat.links > 1 || stat.mount != directory.mount {
        return Writer::in_place(&place, path);
    }
    Writer::replace(place, Some(stat), path)
}

/// A directory entry's kind from the kernel's `d_type`, or from the entry itself where the file system does not say.
fn entry_kind(dir: Fd, kind: u8, name: &[u8]) -> u8 {
    match kind {
        8 => KIND_FILE,
        4 => KIND_DIRECTORY,
        10 => KIND_SYMLINK,
        0 => match CString::new(name).map(|name| sys::statx(dir, &name, AT_SYMLINK_NOFOLLOW)) {
            Ok(Ok(stat)) => match stat.kind() {
                sys::S_IFREG => KIND_FILE,
                sys::S_IFDIR => KIND_DIRECTORY,
                sys::S_IFLNK => KIND_SYMLINK,
                _ => KIND_OTHER,
            },
            _ => KIND_OTHER,
        },
        _ => KIND_OTHER,
    }
}

/// The size of a regular file; anything else is refused by kind.
fn regular(fd: &OwnedFd, path: &[u8]) -> Outcome<u64> {
    let stat = sys::fstat(fd.raw()).map_err(|error| failed(error, path))?;
    match stat.kind() {
        sys::S_IFREG => Ok(stat.size),
        sys::S_IFDIR => Err(failure(Code::IsADirectory, 0, path)),
        _ => Err(failure(Code::NotRegular, 0, path)),
    }
}

impl Place {
    fn is_directory(&self) -> bool {
        sys::statx(self.dir.raw(), &self.name, AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| stat.kind() == sys::S_IFDIR)
    }
}

/// A file that is being written: next to its place under another name until [`commit`](Writer::commit), or in place where the file
/// has several links or is a mount. Dropped before that, the old content stays.
pub(crate) struct Writer {
    fd: OwnedFd,
    path: Vec<u8>,
    replace: Option<Replace>,
}

struct Replace {
    place: Place,
    temporary: CString,
    /// What the file was before.
    old: Option<sys::Stat>,
    done: bool,
}

impl Drop for Replace {
    fn drop(&mut self) {
        if !self.done {
            // It may have been removed by the sandbox meanwhile, which is the same.
            let _ = sys::unlinkat(self.place.dir.raw(), &self.temporary, 0);
        }
    }
}

impl Writer {
    fn replace(place: Place, old: Option<sys::Stat>, path: &[u8]) -> Outcome<Writer> {
        let mut random = [0; 8];
        sys::random(&mut random).map_err(|error| failed(error, path))?;
        let temporary =
            c_string(format!(".sandbox-{:016x}.tmp", u64::from_ne_bytes(random)).as_bytes())?;
        let flags = sys::O_CREAT | sys::O_EXCL | sys::O_WRONLY | sys::O_NOFOLLOW;
        match sys::openat(place.dir.raw(), &temporary, flags, 0o600) {
            Ok(fd) => {
                let replace = Replace {
                    place,
                    temporary,
                    old,
                    done: false,
                };
                Ok(Writer {
                    fd,
                    path: path.to_vec(),
                    replace: Some(replace),
                })
            }
            // The file may be written although its directory may not.
            Err(sys::EACCES | sys::EROFS) if old.is_some() => Writer::in_place(&place, path),
            Err(error) => Err(failed(error, path)),
        }
    }

    fn in_place(place: &Place, path: &[u8]) -> Outcome<Writer> {
        let seen = sys::openat(
            place.dir.raw(),
            &place.name,
            sys::O_PATH | sys::O_NOFOLLOW,
            0,
        )
        .map_err(|error| failed(error, path))?;
        if sys::filesystem_magic(seen.raw()) == Ok(PROC) {
            // `/proc/self` of the guest is the guest, not a process of the sandbox.
            return Err(failure(Code::PermissionDenied, sys::EACCES.0, path));
        }
        let flags =
            sys::O_WRONLY | sys::O_TRUNC | sys::O_NOFOLLOW | sys::O_NONBLOCK | sys::O_NOCTTY;
        let fd = sys::openat(place.dir.raw(), &place.name, flags, 0)
            .map_err(|error| failed(error, path))?;
        regular(&fd, path)?;
        Ok(Writer {
            fd,
            path: path.to_vec(),
            replace: None,
        })
    }

    /// The open file, for a host that writes it itself.
    pub(crate) fn fd(&self) -> Fd {
        self.fd.raw()
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> Outcome<()> {
        sys::write_all(self.fd.raw(), data).map_err(|error| failed(error, &self.path))
    }

    /// Puts the content in place.
    pub(crate) fn commit(mut self) -> Outcome<()> {
        let Some(replace) = &mut self.replace else {
            return Ok(());
        };
        let done: Sys<()> = (|| {
            if let Some(old) = replace.old {
                // Only who may give files away can keep a foreign owner; the content matters more.
                let _ = sys::fchown(self.fd.raw(), old.uid, old.gid);
            }
            sys::fchmod(
                self.fd.raw(),
                replace.old.map_or(0o644, |old| old.mode & 0o7777),
            )?;
            let dir = replace.place.dir.raw();
            sys::renameat2(dir, &replace.temporary, dir, &replace.place.name, 0)
        })();
        match done {
            Ok(()) => {
                replace.done = true;
                Ok(())
            }
            Err(error) => Err(failed(error, &self.path)),
        }
    }
}

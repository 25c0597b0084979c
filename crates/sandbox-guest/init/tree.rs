//! Whole directory trees: read in order, and written strictly below their directory.

use std::collections::HashMap;
use std::ffi::CString;

use crate::files::{Files, Outcome, failed, failure};
use crate::sys::{self, AT_SYMLINK_NOFOLLOW, OwnedFd};
use crate::wire::frame::MAX_DATA;
use crate::wire::message::{
    Code, Entry, KIND_DIRECTORY, KIND_FIFO, KIND_FILE, KIND_HARDLINK, KIND_SYMLINK,
};

/// Levels that are followed; each holds a descriptor.
const MAX_DEPTH: usize = 900;

/// Walks a tree depth-first, names sorted bytewise where a directory's name counts with a slash behind it, so that the whole
/// archive is sorted by its entries' names.
pub(crate) struct Walker {
    levels: Vec<Level>,
    /// The first name of each file that has several.
    links: HashMap<((u32, u32), u64), Vec<u8>>,
    file: Option<Reading>,
}

struct Level {
    fd: OwnedFd,
    path: Vec<u8>,
    /// Sorted backwards, so that the next is the last.
    names: Vec<Vec<u8>>,
}

/// A file whose size is promised and whose content is on its way.
struct Reading {
    fd: OwnedFd,
    left: u64,
    path: Vec<u8>,
}

pub(crate) enum Step {
    Entry(Entry),
    Data(Vec<u8>),
    Done,
}

impl Walker {
    pub(crate) fn new(files: &Files, dir: &[u8]) -> Outcome<Walker> {
        let fd = files.open(dir, sys::O_RDONLY | sys::O_DIRECTORY, 0)?;
        let level = Level::new(fd, Vec::new())?;
        Ok(Walker {
            levels: vec![level],
            links: HashMap::new(),
            file: None,
        })
    }

    pub(crate) fn next(&mut self) -> Outcome<Step> {
        if let Some(file) = &mut self.file {
            let data = file.read()?;
            if file.left == 0 {
                self.file = None;
            }
            return Ok(Step::Data(data));
        }
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(Step::Done);
            };
            let Some(mut name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            if name.last() == Some(&b'/') {
                name.pop();
            }
            let path = [&level.path[..], &name].concat();
            let name = CString::new(name).map_err(|_| failure(Code::InvalidPath, 0, &path))?;
            match self.enter(&name, path) {
                Ok(Some(entry)) => return Ok(Step::Entry(entry)),
                Ok(None) => {}
                // It was removed after its directory had been read.
                Err(gone) if gone.code == Code::NotFound => {}
                Err(other) => return Err(other),
            }
        }
    }

    fn enter(&mut self, name: &CString, path: Vec<u8>) -> Outcome<Option<Entry>> {
        let dir = self.levels.last().map_or(-1, |level| level.fd.raw());
        let at = |error| failed(error, &path);
        let stat = sys::statx(dir, name, AT_SYMLINK_NOFOLLOW).map_err(at)?;
        let mut entry = Entry {
            kind: KIND_FILE,
            mode: stat.mode & 0o777,
            size: 0,
            path: path.clone(),
            target: Vec::new(),
        };
        if stat.kind() != sys::S_IFDIR && stat.links > 1 {
            let key = (stat.device, stat.inode);
            if let Some(first) = self.links.get(&key) {
                entry.kind = KIND_HARDLINK;
                entry.target = first.clone();
                return Ok(Some(entry));
            }
            self.links.insert(key, path.clone());
        }
        match stat.kind() {
            sys::S_IFREG => {
                let flags = sys::O_RDONLY | sys::O_NOFOLLOW | sys::O_NONBLOCK | sys::O_NOCTTY;
                let fd = sys::openat(dir, name, flags, 0).map_err(at)?;
                let stat = sys::fstat(fd.raw()).map_err(at)?;
                if stat.kind() != sys::S_IFREG {
                    return Err(failure(Code::NotRegular, 0, &path));
                }
                entry.size = stat.size;
                if stat.size > 0 {
                    self.file = Some(Reading {
                        fd,
                        left: stat.size,
                        path,
                    });
                }
            }
            sys::S_IFDIR => {
                if self.levels.len() >= MAX_DEPTH {
                    return Err(failure(
                        Code::TooLarge,
                        0,
                        b"the depth of a tree (900 levels)",
                    ));
                }
                let flags = sys::O_RDONLY | sys::O_DIRECTORY | sys::O_NOFOLLOW;
                let fd = sys::openat(dir, name, flags, 0).map_err(at)?;
                entry.kind = KIND_DIRECTORY;
                self.levels
                    .push(Level::new(fd, [&path[..], b"/"].concat())?);
            }
            sys::S_IFLNK => {
                entry.kind = KIND_SYMLINK;
                entry.mode = 0o777;
                entry.target = sys::readlinkat(dir, name).map_err(at)?;
            }
            sys::S_IFIFO => entry.kind = KIND_FIFO,
            // A socket is the address of a process and means nothing without it; every archiver leaves it out.
            sys::S_IFSOCK => return Ok(None),
            _ => return Err(failure(Code::NotRegular, 0, &path)),
        }
        Ok(Some(entry))
    }
}

impl Reading {
    fn read(&mut self) -> Outcome<Vec<u8>> {
        let mut buffer = vec![0; MAX_DATA.min(usize::try_from(self.left).unwrap_or(MAX_DATA))];
        let length =
            sys::read(self.fd.raw(), &mut buffer).map_err(|error| failed(error, &self.path))?;
        if length == 0 {
            let path = [&self.path[..], b" (it shrank while it was read)"].concat();
            return Err(failure(Code::Io, sys::EIO.0, &path));
        }
        buffer.truncate(length);
        self.left -= length as u64;
        Ok(buffer)
    }
}

impl Level {
    fn new(fd: OwnedFd, path: Vec<u8>) -> Outcome<Level> {
        let mut names = Vec::new();
        sys::read_dir(fd.raw(), |entry| {
            let mut name = entry.name;
            let directory = match entry.kind {
                4 => true,
                0 => CString::new(name.clone()).is_ok_and(|name| {
                    sys::statx(fd.raw(), &name, AT_SYMLINK_NOFOLLOW)
                        .is_ok_and(|stat| stat.kind() == sys::S_IFDIR)
                }),
                _ => false,
            };
            if directory {
                name.push(b'/');
            }
            names.push(name);
        })
        .map_err(|error| failed(error, &path))?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Level { fd, path, names })
    }
}

/// Writes a tree below one directory: no entry can leave it, neither by name nor through a symbolic link.
pub(crate) struct Applier {
    base: OwnedFd,
    /// The directory of the last entry, since the next one is most often there too.
    parent: Option<(Vec<u8>, OwnedFd)>,
    file: Option<Writing>,
    /// Modes of directories are set last, so that a read-only one can be filled.
    directories: Vec<(Vec<u8>, u32)>,
}

struct Writing {
    fd: OwnedFd,
    left: u64,
    mode: u32,
    path: Vec<u8>,
}

impl Applier {
    pub(crate) fn new(files: &Files, dir: &[u8]) -> Outcome<Applier> {
        let base = match files.open(dir, sys::O_PATH | sys::O_DIRECTORY, 0) {
            Err(missing) if missing.code == Code::NotFound => files.make_dirs(dir)?,
            other => other?,
        };
        Ok(Applier {
            base,
            parent: None,
            file: None,
            directories: Vec::new(),
        })
    }

    /// The next entry; the content of a file follows with [`data`](Self::data).
    pub(crate) fn entry(&mut self, entry: Entry) -> Outcome<()> {
        self.close_file()?;
        let path = entry.path;
        check_inside(&path)?;
        let start = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let name =
            CString::new(&path[start..]).map_err(|_| failure(Code::InvalidArchive, 0, &path))?;
        let at = |error| failed(error, &path);
        let linked = if entry.kind == KIND_HARDLINK {
            Some(self.link_target(&entry.target)?)
        } else {
            None
        };
        let dir = self.parent(&path[..start.saturating_sub(1)])?;
        if entry.kind == KIND_DIRECTORY {
            match sys::mkdirat(dir, &name, 0o755) {
                Err(sys::EEXIST) => {
                    let stat = sys::statx(dir, &name, AT_SYMLINK_NOFOLLOW).map_err(at)?;
                    if stat.kind() != sys::S_IFDIR {
                        return Err(failure(Code::NotADirectory, 0, &path));
                    }
                }
                other => other.map_err(at)?,
            }
            self.directories.push((path, entry.mode));
            return Ok(());
        }
        remove_file(dir, &name, &path)?;
        match (entry.kind, linked) {
            (KIND_HARDLINK, Some((from, old))) => {
                sys::linkat(from.raw(), &old, dir, &name, 0).map_err(|error| match error {
                    // What it names has not been in the archive.
                    sys::ENOENT | sys::EPERM => failure(Code::InvalidArchive, error.0, &path),
                    other => failed(other, &path),
                })
            }
            (KIND_FILE, _) => {
                let flags = sys::O_CREAT | sys::O_EXCL | sys::O_WRONLY | sys::O_NOFOLLOW;
                let fd = sys::openat(dir, &name, flags, 0o600).map_err(at)?;
                self.file = Some(Writing {
                    fd,
                    left: entry.size,
                    mode: entry.mode,
                    path,
                });
                if entry.size == 0 {
                    self.close_file()
                } else {
                    Ok(())
                }
            }
            (KIND_SYMLINK, _) => {
                let target = CString::new(entry.target)
                    .map_err(|_| failure(Code::InvalidArchive, 0, &path))?;
                sys::symlinkat(&target, dir, &name).map_err(at)
            }
            (KIND_FIFO, _) => {
                sys::mknodat(dir, &name, sys::S_IFIFO | entry.mode, 0).map_err(at)?;
                // The umask has taken bits away.
                sys::fchmodat(dir, &name, entry.mode).map_err(at)
            }
            _ => Err(failure(Code::InvalidArchive, 0, &path)),
        }
    }

    /// Content of the file that the last entry announced.
    pub(crate) fn data(&mut self, data: &[u8]) -> Outcome<()> {
        let Some(file) = &mut self.file else {
            return Err(failure(Code::InvalidArchive, 0, b"content without a file"));
        };
        let left = file.left.checked_sub(data.len() as u64);
        file.left = left.ok_or_else(|| failure(Code::InvalidArchive, 0, &file.path))?;
        sys::write_all(file.fd.raw(), data).map_err(|error| failed(error, &file.path))?;
        if file.left == 0 {
            self.close_file()
        } else {
            Ok(())
        }
    }

    fn close_file(&mut self) -> Outcome<()> {
        match self.file.take() {
            Some(file) if file.left > 0 => Err(failure(Code::InvalidArchive, 0, &file.path)),
            Some(file) => {
                sys::fchmod(file.fd.raw(), file.mode).map_err(|error| failed(error, &file.path))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn finish(mut self) -> Outcome<()> {
        self.close_file()?;
        for (path, mode) in std::mem::take(&mut self.directories).into_iter().rev() {
            let fd = self.open_inside(&path, sys::O_RDONLY | sys::O_DIRECTORY)?;
            sys::fchmod(fd.raw(), mode).map_err(|error| failed(error, &path))?;
        }
        Ok(())
    }

    fn open_inside(&self, path: &[u8], flags: u32) -> Outcome<OwnedFd> {
        let c_path = CString::new(path).map_err(|_| failure(Code::InvalidArchive, 0, path))?;
        let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
        sys::openat2(self.base.raw(), &c_path, flags, 0, resolve).map_err(|error| match error {
            // A symbolic link or "..": the entry would be written somewhere else.
            sys::ELOOP | sys::EXDEV => failure(Code::InvalidArchive, error.0, path),
            other => failed(other, path),
        })
    }

    /// The directory of an entry, made if absent.
    fn parent(&mut self, parent: &[u8]) -> Outcome<sys::Fd> {
        if parent.is_empty() {
            return Ok(self.base.raw());
        }
        let fd = match self.parent.take() {
            Some((known, fd)) if known == parent => fd,
            _ => match self.open_inside(parent, sys::O_PATH | sys::O_DIRECTORY) {
                Err(missing) if missing.code == Code::NotFound => self.make_parents(parent)?,
                other => other?,
            },
        };
        let raw = fd.raw();
        self.parent = Some((parent.to_vec(), fd));
        Ok(raw)
    }

    fn make_parents(&self, parent: &[u8]) -> Outcome<OwnedFd> {
        let ends = parent
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'/')
            .map(|(at, _)| at);
        let mut current: Option<OwnedFd> = None;
        let mut start = 0;
        for end in ends.chain(std::iter::once(parent.len())) {
            let dir = current.as_ref().map_or(self.base.raw(), OwnedFd::raw);
            let name = CString::new(&parent[start..end])
                .map_err(|_| failure(Code::InvalidArchive, 0, parent))?;
            match sys::mkdirat(dir, &name, 0o755) {
                Ok(()) | Err(sys::EEXIST) => {}
                Err(error) => return Err(failed(error, parent)),
            }
            current = Some(self.open_inside(&parent[..end], sys::O_PATH | sys::O_DIRECTORY)?);
            start = end + 1;
        }
        current.ok_or_else(|| failure(Code::InvalidArchive, 0, parent))
    }

    /// A hard link's target: its directory, which no symbolic link may lead to, and its name.
    fn link_target(&self, target: &[u8]) -> Outcome<(OwnedFd, CString)> {
        check_inside(target)?;
        let start = target
            .iter()
            .rposition(|b| *b == b'/')
            .map_or(0, |at| at + 1);
        let bad = || failure(Code::InvalidArchive, 0, target);
        let parent = if start == 0 {
            &b"."[..]
        } else {
            &target[..start - 1]
        };
        let dir = self
            .open_inside(parent, sys::O_PATH | sys::O_DIRECTORY)
            .map_err(|error| match error.code {
                Code::NotFound => bad(),
                _ => error,
            })?;
        Ok((dir, CString::new(&target[start..]).map_err(|_| bad())?))
    }
}

fn check_inside(path: &[u8]) -> Outcome<()> {
    if path
        .split(|b| *b == b'/')
        .any(|part| matches!(part, b"" | b"." | b".."))
    {
        return Err(failure(Code::InvalidArchive, 0, path));
    }
    Ok(())
}

/// Makes room for a file: what is there goes, unless it is a directory. A symbolic link is replaced, never written through.
fn remove_file(dir: sys::Fd, name: &CString, path: &[u8]) -> Outcome<()> {
    match sys::unlinkat(dir, name, 0) {
        Ok(()) | Err(sys::ENOENT) => Ok(()),
        Err(error) => Err(failed(error, path)),
    }
}

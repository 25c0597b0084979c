//! Copies of the host's mounts, and how stage 1 hands them to process 1.

use super::{ABSENT, About, GO, PLAIN_TREE, TREE, c_string, shown};
use crate::sys::{self, Errno, Fd, OwnedFd, Sys};
use crate::wire::setup::{Base, Ids, Mount, Setup};

/// A detached copy of a mount of the host.
pub(super) struct Tree {
    pub(super) mount: OwnedFd,
    /// Whether owners show inside as they are on disk.
    pub(super) owners: bool,
}

/// The copies that a set-up needs; a bind that is absent and may be has none.
pub(super) struct Trees {
    pub(super) base: Option<Tree>,
    /// One per mount of the set-up.
    pub(super) mounts: Vec<Option<Tree>>,
}

/// Stage 1 of a privileged caller: opens everything with the caller's rights, which process 1 does not have, and maps the owners.
pub(super) fn send_trees(setup: &Setup, pid: i32, pair: Fd) -> Result<(), (Errno, String)> {
    let path = format!("/proc/{pid}/ns/user");
    let name = c_string(path.as_bytes()).about(path.as_str())?;
    let map = sys::openat(sys::AT_FDCWD, &name, sys::O_RDONLY, 0).about(path)?;
    let send = |kind: u8, fd: Option<Fd>| {
        sys::send_with_fds(pair, &[kind], fd.as_slice())
            .about("handing a mount over")
            .map(drop)
    };
    if let Base::Dir(dir) = &setup.base {
        let mount = copy(dir, true).about(shown(dir))?;
        // Without the mapping nothing of the base could be changed inside.
        sys::set_mount_attributes(mount.raw(), sys::MOUNT_ATTR_IDMAP, Some(map.raw()), true)
            .about(format!("mapping the owners of {}", shown(dir)))?;
        send(TREE, Some(mount.raw()))?;
    }
    for mount in &setup.mounts {
        match copy(&mount.source, true) {
            Err(sys::ENOENT) if mount.optional => send(ABSENT, None)?,
            Err(errno) => return Err((errno, shown(&mount.source))),
            Ok(tree) => {
                let mapped = sys::set_mount_attributes(
                    tree.raw(),
                    sys::MOUNT_ATTR_IDMAP,
                    Some(map.raw()),
                    true,
                );
                // A file system that cannot map owners shows them as nobody's: readable as for any other user, which is enough
                // for the system's directories, but not what a caller's writable directory promises.
                if mount.writable {
                    mapped.about(format!("mapping the owners of {}", shown(&mount.source)))?;
                }
                let kind = if mapped.is_ok() { TREE } else { PLAIN_TREE };
                send(kind, Some(tree.raw()))?;
            }
        }
    }
    Ok(())
}

/// Process 1: waits until stage 1 lets it go, with what stage 1 opened for it. `None` if stage 1 gave up.
pub(super) fn receive_trees(setup: &Setup, pair: Fd) -> Option<Trees> {
    let mut received = Vec::new();
    loop {
        let (mut kind, mut fds) = ([0], Vec::new());
        if sys::receive_with_fds(pair, &mut kind, &mut fds) != Ok(1) {
            return None;
        }
        let tree = |mut fds: Vec<OwnedFd>, owners| {
            fds.pop()
                .filter(|_| fds.is_empty())
                .map(|mount| Tree { mount, owners })
        };
        match kind[0] {
            GO => break,
            ABSENT => received.push(None),
            TREE => received.push(Some(tree(std::mem::take(&mut fds), true)?)),
            PLAIN_TREE => received.push(Some(tree(std::mem::take(&mut fds), false)?)),
            _ => return None,
        }
    }
    let Ids::Range { .. } = setup.ids else {
        return Some(Trees {
            base: None,
            mounts: Vec::new(),
        });
    };
    let mut received = received.into_iter();
    let base = match &setup.base {
        Base::Skeleton => None,
        Base::Dir(_) => Some(received.next()??),
    };
    let mounts: Vec<_> = received.collect();
    (mounts.len() == setup.mounts.len()).then_some(Trees { base, mounts })
}

/// Process 1 of an ordinary caller: it still is the caller as far as files are concerned, and opens them itself.
pub(super) fn open_trees(setup: &Setup) -> Result<Trees, (Errno, String)> {
    let open = |path: &[u8]| {
        copy(path, true).map(|mount| Tree {
            mount,
            owners: true,
        })
    };
    let base = match &setup.base {
        Base::Skeleton => None,
        Base::Dir(dir) => Some(open(dir).about(shown(dir))?),
    };
    let mut mounts = Vec::new();
    for mount in &setup.mounts {
        mounts.push(match open(&mount.source) {
            Ok(tree) => Some(tree),
            Err(sys::ENOENT) if mount.optional => None,
            Err(errno) => return Err((errno, shown(&mount.source))),
        });
    }
    Ok(Trees { base, mounts })
}

/// What a bind mount may do: the sandbox never gains rights through files of the host.
pub(super) fn restrict(tree: &Tree, mount: &Mount) -> Sys<()> {
    let read_only = if mount.writable {
        0
    } else {
        sys::MOUNT_ATTR_RDONLY
    };
    let attributes = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | read_only;
    sys::set_mount_attributes(tree.mount.raw(), attributes, None, true)
}

fn copy(path: &[u8], recursive: bool) -> Sys<OwnedFd> {
    sys::clone_mounts(sys::AT_FDCWD, &*c_string(path)?, recursive)
}

//! Copies of the host's mounts, and how stage 1 hands them to process 1.

use super::{ABSENT, About, GO, TREE, c_string, shown};
use crate::sys::{self, Errno, Fd, OwnedFd, Sys};
use crate::wire::setup::{Base, Ids, Mount, Setup};

/// Detached copies of the mounts that a set-up needs; a system directory that is absent has none.
pub(super) struct Trees {
    pub(super) base: Option<OwnedFd>,
    /// One per mount of the set-up.
    pub(super) mounts: Vec<Option<OwnedFd>>,
}

/// Stage 1 of a privileged caller: opens everything with the caller's rights, which process 1 does not have, and maps the owners
/// of what is the caller's.
pub(super) fn send_trees(setup: &Setup, pid: i32, pair: Fd) -> Result<(), (Errno, String)> {
    let path = format!("/proc/{pid}/ns/user");
    let name = c_string(path.as_bytes()).about(path.as_str())?;
    let map = sys::openat(sys::AT_FDCWD, &name, sys::O_RDONLY, 0).about(path)?;
    let map_owners = |tree: &OwnedFd| {
        sys::set_mount_attributes(tree.raw(), sys::MOUNT_ATTR_IDMAP, Some(map.raw()), true)
    };
    let send = |kind: u8, tree: Option<&OwnedFd>| {
        sys::send_with_fds(pair, &[kind], tree.map(OwnedFd::raw).as_slice())
            .about("handing a mount over")
            .map(drop)
    };
    if let Base::Dir(dir) = &setup.base {
        let tree = copy(dir).about(shown(dir))?;
        // Without the mapping nothing of the base could be changed inside.
        map_owners(&tree).about(format!("mapping the owners of {}", shown(dir)))?;
        send(TREE, Some(&tree))?;
    }
    for mount in &setup.mounts {
        let Some(tree) = copy_mount(mount)? else {
            send(ABSENT, None)?;
            continue;
        };
        if !mount.system {
            let mapped = map_owners(&tree);
            // Where owners cannot be mapped, they show as nobody's: good enough for reading what everybody may.
            if mount.writable {
                mapped.about(format!("mapping the owners of {}", shown(&mount.source)))?;
            }
        }
        send(TREE, Some(&tree))?;
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
        match (kind[0], fds.pop(), fds.pop()) {
            (GO, None, None) => break,
            (ABSENT, None, None) => received.push(None),
            (TREE, Some(tree), None) => received.push(Some(tree)),
            _ => return None,
        }
    }
    let mut received = received.into_iter();
    let base = match (setup.ids, &setup.base) {
        (Ids::Range { .. }, Base::Dir(_)) => Some(received.next()??),
        _ => None,
    };
    let mounts: Vec<_> = received.collect();
    let expected = match setup.ids {
        Ids::Range { .. } => setup.mounts.len(),
        Ids::Single { .. } => 0,
    };
    (mounts.len() == expected).then_some(Trees { base, mounts })
}

/// Process 1 of an ordinary caller: it still is the caller as far as files are concerned, and opens them itself.
pub(super) fn open_trees(setup: &Setup) -> Result<Trees, (Errno, String)> {
    let base = match &setup.base {
        Base::Skeleton => None,
        Base::Dir(dir) => Some(copy(dir).about(shown(dir))?),
    };
    let mounts = setup
        .mounts
        .iter()
        .map(copy_mount)
        .collect::<Result<_, _>>()?;
    Ok(Trees { base, mounts })
}

/// What a bind mount may do: the sandbox never gains rights through files of the host.
pub(super) fn restrict(tree: &OwnedFd, mount: &Mount) -> Sys<()> {
    let read_only = if mount.writable {
        0
    } else {
        sys::MOUNT_ATTR_RDONLY
    };
    let attributes = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | read_only;
    sys::set_mount_attributes(tree.raw(), attributes, None, true)
}

fn copy_mount(mount: &Mount) -> Result<Option<OwnedFd>, (Errno, String)> {
    match copy(&mount.source) {
        Ok(tree) => Ok(Some(tree)),
        Err(sys::ENOENT) if mount.system => Ok(None),
        Err(errno) => Err((errno, shown(&mount.source))),
    }
}

/// With the mounts below it: an ordinary user may not look under them, so the kernel refuses anything less.
fn copy(path: &[u8]) -> Sys<OwnedFd> {
    sys::clone_mounts(sys::AT_FDCWD, &c_string(path)?, true)
}

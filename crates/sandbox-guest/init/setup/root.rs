//! Builds the root file system in process 1 and makes it the only one.
//!
//! Everything below the new root is named through descriptors and `RESOLVE_IN_ROOT`: the base may be hostile (links that point at
//! the old root, devices that are links), and the old root is still within reach of a path.

use std::ffi::CStr;

use super::mounts::{self, Trees};
use super::{About, Step, Steps, c_string, shown};
use crate::sys::{self, Errno, Fd, OwnedFd, Sys};
use crate::users::Users;
use crate::wire::message::UserSpec;
use crate::wire::setup::{Base, Ids, Mount, Setup, Upper};

const SAFE: u64 = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV;
const INERT: u64 = SAFE | sys::MOUNT_ATTR_NOEXEC;

/// Says whether the root has a bash.
pub(super) fn build(steps: &Steps<'_>, trees: Trees) -> Step<bool> {
    let setup = steps.setup;
    let trees = steps.run("mount namespace", || {
        // Private, so that neither what is mounted here nor the end of the old root gets to the host.
        sys::set_propagation(c"/", sys::MS_REC | sys::MS_PRIVATE)
            .about("making the mounts private")?;
        match setup.ids {
            Ids::Single { .. } => mounts::open_trees(setup),
            Ids::Range { .. } => Ok(trees),
        }
    })?;
    let devices = steps.run("scratch file system", || {
        mount_scratch(setup)?;
        open_devices()
    })?;
    steps.run("base", || prepare_base(trees.base))?;
    let root = steps.run("overlay", || mount_overlay(setup))?;
    let root = root.raw();

    let system = setup
        .mounts
        .iter()
        .zip(trees.mounts)
        .partition::<Vec<_>, _>(|(mount, _)| mount.system);
    let (system, binds) = system;
    let attach_all = |pairs: Vec<(&Mount, Option<OwnedFd>)>| {
        for (mount, tree) in pairs {
            let Some(tree) = tree else { continue };
            mounts::restrict(&tree, mount).about(shown(&mount.source))?;
            let kind = sys::fstat(tree.raw()).about(shown(&mount.source))?.kind();
            let point = mount_point(root, &mount.target, kind == sys::S_IFDIR)
                .about(format!("making {} in the sandbox", shown(&mount.target)))?;
            sys::attach_mount(tree.raw(), point.raw()).about(shown(&mount.target))?;
        }
        Ok(())
    };
    steps.run("system directories", || attach_all(system))?;
    steps.run("proc", || mount_proc(root, &devices))?;
    steps.run("dev", || mount_dev(root, setup, devices))?;
    steps.run("sys", || {
        let empty = empty_mount()?;
        attach(root, c"sys", &empty)
    })?;
    steps.run("binds", || attach_all(binds))?;
    steps.run("pivot", || pivot(root))?;
    steps.run("workdir", || make_workdir(root, setup))?;
    Ok(sys::openat(root, c"bin/bash", sys::O_PATH, 0).is_ok())
}

/// A file system in memory for mount points, and for the upper layer if it is kept in memory. Each sandbox mounts its own over the
/// same directory of the session.
fn mount_scratch(setup: &Setup) -> Result<(), (Errno, String)> {
    let limits = match setup.upper {
        Upper::Memory { bytes: Some(bytes) } => {
            // Inodes cost memory too: as many as files of 1 KiB would need.
            let size = c_string(bytes.to_string().as_bytes()).about("size")?;
            let inodes = c_string((bytes / 1024 + 1024).to_string().as_bytes()).about("inodes")?;
            Some((size, inodes))
        }
        _ => None,
    };
    let mut options: Vec<(&CStr, Option<&CStr>)> = vec![(c"mode", Some(c"0755"))];
    if let Some((size, inodes)) = &limits {
        options.push((c"size", Some(size)));
        options.push((c"nr_inodes", Some(inodes)));
    }
    let scratch = sys::new_mount(c"tmpfs", &options, SAFE).about("mounting tmpfs")?;
    let point = directory(sys::AT_FDCWD, c"mnt").about("the session's mount point")?;
    sys::attach_mount(scratch.raw(), point.raw()).about("the session's mount point")?;
    for name in [c"lower", c"root"] {
        sys::mkdirat(scratch.raw(), name, 0o755).about("a mount point")?;
    }
    if let Upper::Memory { .. } = setup.upper {
        for name in [c"upper", c"work"] {
            sys::mkdirat(scratch.raw(), name, 0o755).about("the upper layer")?;
        }
    }
    Ok(())
}

/// The device nodes that a sandbox has: name, major, minor.
const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];

/// Opened on the host before anything of the sandbox is mounted, and verified: a link or another device in its place would become
/// the sandbox's, and `/dev/null` hides what must not be seen (CVE-2025-31133).
fn open_devices() -> Result<Vec<OwnedFd>, (Errno, String)> {
    let dev = directory(sys::AT_FDCWD, c"/dev").about("/dev of the host")?;
    let mut devices = Vec::new();
    for (name, major, minor) in DEVICES {
        let what = || format!("/dev/{} of the host", name.to_string_lossy());
        let fd = sys::openat(dev.raw(), name, sys::O_PATH | sys::O_NOFOLLOW, 0).about(what())?;
        let stat = sys::fstat(fd.raw()).about(what())?;
        if stat.kind() != sys::S_IFCHR || stat.special != (major, minor) {
            return Err((
                sys::ENODEV,
                format!("{} is not the device {major}:{minor}", what()),
            ));
        }
        devices.push(fd);
    }
    Ok(devices)
}

fn prepare_base(tree: Option<OwnedFd>) -> Result<(), (Errno, String)> {
    let Some(tree) = tree else { return Ok(()) };
    let kind = sys::fstat(tree.raw()).about("the root directory")?.kind();
    if kind != sys::S_IFDIR {
        return Err((sys::ENOTDIR, "the root directory".into()));
    }
    let point = directory(sys::AT_FDCWD, c"mnt/lower").about("a mount point")?;
    sys::attach_mount(tree.raw(), point.raw()).about("the root directory")
}

fn mount_overlay(setup: &Setup) -> Result<OwnedFd, (Errno, String)> {
    let lower = match setup.base {
        Base::Skeleton => c"skeleton",
        Base::Dir(_) => c"mnt/lower",
    };
    let (upper, work) = match &setup.upper {
        Upper::Memory { .. } => (c"mnt/upper".to_owned(), c"mnt/work".to_owned()),
        Upper::Disk(dir) => {
            let within = |name: &[u8]| c_string(&[dir, name].concat()).about(shown(dir));
            let (upper, work) = (within(b"/upper")?, within(b"/work")?);
            for name in [&upper, &work] {
                sys::mkdirat(sys::AT_FDCWD, name, 0o755).about("making the upper layer")?;
            }
            (upper, work)
        }
    };
    let options: [(&CStr, Option<&CStr>); 6] = [
        (c"source", Some(c"overlay")),
        (c"lowerdir", Some(lower)),
        (c"upperdir", Some(&upper)),
        (c"workdir", Some(&work)),
        (c"userxattr", None),
        // A sandbox does not survive a crash of the machine, so nothing needs to be on disk before it says so.
        (c"volatile", None),
    ];
    let root = sys::new_mount(c"overlay", &options, SAFE).map_err(|errno| {
        let magic = directory(sys::AT_FDCWD, &upper)
            .and_then(|fd| sys::filesystem_magic(fd.raw()))
            .unwrap_or(0);
        (
            errno,
            format!("the upper layer is on a file system of type {magic:#x}"),
        )
    })?;
    let point = directory(sys::AT_FDCWD, c"mnt/root").about("a mount point")?;
    sys::attach_mount(root.raw(), point.raw()).about("attaching the root")?;
    Ok(root)
}

/// Below `/proc`: what tells about the host or its hardware, hidden …
const HIDDEN_FILES: [&CStr; 8] = [
    c"kcore",
    c"keys",
    c"key-users",
    c"kmsg",
    c"timer_list",
    c"sched_debug",
    c"interrupts",
    c"latency_stats",
];
const HIDDEN_DIRECTORIES: [&CStr; 4] = [c"acpi", c"scsi", c"asound", c"bus"];
/// … and what could change something, made read-only.
const READ_ONLY: [&CStr; 4] = [c"sys", c"irq", c"fs", c"sysrq-trigger"];

fn mount_proc(root: Fd, devices: &[OwnedFd]) -> Result<(), (Errno, String)> {
    let proc = sys::new_mount(c"proc", &[], INERT).about("mounting proc")?;
    attach(root, c"proc", &proc)?;
    let proc = proc.raw();
    // No user namespaces inside: they are the door to most of the kernel's attack surface.
    let limit = c"sys/user/max_user_namespaces";
    let fd =
        sys::openat(proc, limit, sys::O_WRONLY, 0).about("/proc/sys/user/max_user_namespaces")?;
    sys::write_all(fd.raw(), b"0").about("/proc/sys/user/max_user_namespaces")?;

    let what = |name: &CStr| format!("/proc/{}", name.to_string_lossy());
    let present = |name: &CStr| match sys::openat(proc, name, sys::O_PATH | sys::O_NOFOLLOW, 0) {
        Ok(fd) => Ok(Some(fd)),
        Err(sys::ENOENT) => Ok(None),
        Err(errno) => Err((errno, what(name))),
    };
    for name in HIDDEN_FILES {
        let Some(point) = present(name)? else {
            continue;
        };
        let null = sys::clone_mounts(devices[0].raw(), c"", false).about("/dev/null")?;
        sys::set_mount_attributes(
            null.raw(),
            INERT & !sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_RDONLY,
            None,
            false,
        )
        .about("/dev/null")?;
        sys::attach_mount(null.raw(), point.raw()).about(what(name))?;
        verify_hidden(proc, name).about(what(name))?;
    }
    let mut empty = None;
    for name in HIDDEN_DIRECTORIES {
        let Some(point) = present(name)? else {
            continue;
        };
        let copy = match &empty {
            None => empty_mount()?,
            Some(first) => sys::clone_mounts(OwnedFd::raw(first), c"", false).about("tmpfs")?,
        };
        sys::attach_mount(copy.raw(), point.raw()).about(what(name))?;
        empty.get_or_insert(copy);
    }
    for name in READ_ONLY {
        let Some(point) = present(name)? else {
            continue;
        };
        let copy = sys::clone_mounts(point.raw(), c"", false).about(what(name))?;
        sys::set_mount_attributes(copy.raw(), INERT | sys::MOUNT_ATTR_RDONLY, None, false)
            .about(what(name))?;
        sys::attach_mount(copy.raw(), point.raw()).about(what(name))?;
    }
    Ok(())
}

fn verify_hidden(proc: Fd, name: &CStr) -> Sys<()> {
    let stat = sys::statx(proc, name, sys::AT_SYMLINK_NOFOLLOW)?;
    if stat.kind() == sys::S_IFCHR && stat.special == (1, 3) {
        Ok(())
    } else {
        Err(sys::ENODEV)
    }
}

fn mount_dev(root: Fd, setup: &Setup, devices: Vec<OwnedFd>) -> Result<(), (Errno, String)> {
    let options: [(&CStr, Option<&CStr>); 2] = [(c"mode", Some(c"0755")), (c"size", Some(c"64k"))];
    // Not noexec: some programs map executable memory from /dev/zero.
    let dev = sys::new_mount(c"tmpfs", &options, sys::MOUNT_ATTR_NOSUID).about("mounting tmpfs")?;
    attach(root, c"dev", &dev)?;
    let dev_fd = dev.raw();
    for ((name, ..), device) in DEVICES.iter().zip(&devices) {
        let what = || format!("/dev/{}", name.to_string_lossy());
        let point = new_file(dev_fd, name).about(what())?;
        let node = sys::clone_mounts(device.raw(), c"", false).about(what())?;
        sys::attach_mount(node.raw(), point.raw()).about(what())?;
    }
    for (target, name) in [
        (c"/proc/self/fd", c"fd"),
        (c"/proc/self/fd/0", c"stdin"),
        (c"/proc/self/fd/1", c"stdout"),
        (c"/proc/self/fd/2", c"stderr"),
        (c"pts/ptmx", c"ptmx"),
    ] {
        sys::symlinkat(target, dev_fd, name).about("links in /dev")?;
    }
    // No group for terminals: where there is only one id, group 5 does not exist.
    let options: [(&CStr, Option<&CStr>); 3] = [
        (c"newinstance", None),
        (c"ptmxmode", Some(c"0666")),
        (c"mode", Some(c"0620")),
    ];
    let pts = sys::new_mount(
        c"devpts",
        &options,
        sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NOEXEC,
    )
    .about("mounting devpts")?;
    let shm_size = c_string(setup.shm_bytes.to_string().as_bytes()).about("size")?;
    let options: [(&CStr, Option<&CStr>); 2] =
        [(c"mode", Some(c"1777")), (c"size", Some(&shm_size))];
    let shm = sys::new_mount(c"tmpfs", &options, SAFE).about("mounting tmpfs")?;
    for (name, mount) in [(c"pts", &pts), (c"shm", &shm)] {
        sys::mkdirat(dev_fd, name, 0o755).about("a mount point in /dev")?;
        let point = directory(dev_fd, name).about("a mount point in /dev")?;
        sys::attach_mount(mount.raw(), point.raw()).about("a mount in /dev")?;
    }
    sys::set_mount_attributes(
        dev_fd,
        sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_RDONLY,
        None,
        false,
    )
    .about("making /dev read-only")
}

fn pivot(root: Fd) -> Result<(), (Errno, String)> {
    let old = directory(sys::AT_FDCWD, c"/").about("the old root")?;
    sys::fchdir(root).about("the new root")?;
    sys::pivot_root(c".", c".").about("pivot_root")?;
    sys::fchdir(old.raw()).about("the old root")?;
    // The old root may hold shared mounts again if something was propagated meanwhile; its end must stay here.
    sys::set_propagation(c".", sys::MS_REC | sys::MS_PRIVATE).about("the old root")?;
    sys::umount_detach(c".").about("detaching the old root")?;
    sys::chdir(c"/").about("the new root")
}

fn make_workdir(root: Fd, setup: &Setup) -> Result<(), (Errno, String)> {
    let what = || shown(&setup.workdir);
    let name = c_string(&setup.workdir).about(what())?;
    let there = sys::openat2(root, &name, sys::O_PATH, 0, IN_ROOT).is_ok();
    let point = mount_point(root, &setup.workdir, true).about(what())?;
    let bound = setup
        .mounts
        .iter()
        .any(|mount| mount.target == setup.workdir);
    let ours = !there || (setup.base == Base::Skeleton && setup.workdir == b"/work" && !bound);
    // A user that is unknown is reported by the first command, with its name.
    if let Some(user) = &setup.user
        && ours
        && let Some(user) = Users::default().find(&user_spec(user))
    {
        sys::fchownat(point.raw(), c"", user.uid, user.gid).about(what())?;
    }
    Ok(())
}

pub(super) fn user_spec(text: &[u8]) -> UserSpec {
    let number = |bytes: &[u8]| {
        std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse().ok())
    };
    let mut parts = text.splitn(2, |b| *b == b':');
    match (parts.next().and_then(number), parts.next()) {
        (Some(uid), gid) => UserSpec::Ids(uid, gid.and_then(number)),
        (None, _) => UserSpec::Name(text.to_vec()),
    }
}

const IN_ROOT: u64 = sys::RESOLVE_IN_ROOT | sys::RESOLVE_NO_MAGICLINKS;

fn directory(dir: Fd, path: &CStr) -> Sys<OwnedFd> {
    sys::openat(dir, path, sys::O_PATH | sys::O_DIRECTORY, 0)
}

/// Attaches a file system of the sandbox's own at a directory of the root, which is made if absent and must not be a link: a link
/// would leave the well-known path without it.
fn attach(root: Fd, name: &CStr, mount: &OwnedFd) -> Result<(), (Errno, String)> {
    let what = || format!("/{}", name.to_string_lossy());
    match sys::mkdirat(root, name, 0o755) {
        Ok(()) | Err(sys::EEXIST) => {}
        Err(errno) => return Err((errno, what())),
    }
    let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
    let point = sys::openat2(root, name, flags, 0, IN_ROOT | sys::RESOLVE_NO_SYMLINKS)
        .about(format!("{} of the base is not a directory", what()))?;
    sys::attach_mount(mount.raw(), point.raw()).about(what())
}

/// A read-only file system with nothing in it.
fn empty_mount() -> Result<OwnedFd, (Errno, String)> {
    let options: [(&CStr, Option<&CStr>); 2] = [(c"mode", Some(c"0555")), (c"size", Some(c"4k"))];
    sys::new_mount(c"tmpfs", &options, INERT | sys::MOUNT_ATTR_RDONLY).about("mounting tmpfs")
}

fn new_file(dir: Fd, name: &CStr) -> Sys<OwnedFd> {
    let flags = sys::O_CREAT | sys::O_EXCL | sys::O_NOFOLLOW | sys::O_WRONLY;
    drop(sys::openat(dir, name, flags, 0o644)?);
    sys::openat(dir, name, sys::O_PATH | sys::O_NOFOLLOW, 0)
}

/// A place in the root to mount something at, made with its parents if absent. Links are followed as a process inside would follow
/// them, so they cannot lead out.
fn mount_point(root: Fd, path: &[u8], is_directory: bool) -> Sys<OwnedFd> {
    let components: Vec<&[u8]> = path
        .split(|b| *b == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    let mut prefix = b".".to_vec();
    let mut parent = sys::openat2(root, c".", sys::O_PATH | sys::O_DIRECTORY, 0, IN_ROOT)?;
    for (index, component) in components.iter().enumerate() {
        let last = index + 1 == components.len();
        prefix.push(b'/');
        prefix.extend_from_slice(component);
        let name = c_string(component)?;
        let whole = c_string(&prefix)?;
        let directory = !last || is_directory;
        let flags = sys::O_PATH | if directory { sys::O_DIRECTORY } else { 0 };
        parent = match sys::openat2(root, &whole, flags, 0, IN_ROOT) {
            Err(sys::ENOENT) if directory => {
                sys::mkdirat(parent.raw(), &name, 0o755)?;
                sys::openat2(root, &whole, flags, 0, IN_ROOT)?
            }
            Err(sys::ENOENT) => new_file(parent.raw(), &name)?,
            other => other?,
        };
    }
    Ok(parent)
}

//! What process 1 gives up at the end. Commands inherit it; nothing of it is done again for each of them.

use super::{About, Step, Steps};
use crate::sys::{self, Errno};
use crate::wire::setup::{Rlimit, Setup};

/// The capabilities over itself that a sandbox keeps: enough for package managers and servers, nothing that reaches mounts,
/// devices, modules, the clock or other namespaces.
const KEPT: [u32; 8] = [
    0,  // CAP_CHOWN
    1,  // CAP_DAC_OVERRIDE
    3,  // CAP_FOWNER
    4,  // CAP_FSETID
    5,  // CAP_KILL
    6,  // CAP_SETGID
    7,  // CAP_SETUID
    10, // CAP_NET_BIND_SERVICE
];

pub(super) fn give_up(steps: &Steps<'_>) -> Step<()> {
    let setup = steps.setup;
    steps.run("network", || {
        if setup.host_network {
            Ok(())
        } else {
            loopback_up()
        }
    })?;
    steps.run("hostname", || {
        sys::sethostname(&setup.hostname).about("sethostname")
    })?;
    steps.run("limits", || set_limits(&setup.rlimits))?;
    steps.run("privileges", drop_privileges)?;
    steps.run(
        "landlock",
        || if setup.landlock { landlock() } else { Ok(()) },
    )?;
    // Last, because the filter denies what the steps before it do.
    steps.run("seccomp", || {
        for program in &setup.seccomp {
            sys::install_filter(program).about("installing a system call filter")?;
        }
        Ok(())
    })
}

fn loopback_up() -> Result<(), (Errno, String)> {
    const SOCK_DGRAM: usize = 2;
    const SIOCGIFFLAGS: u32 = 0x8913;
    const SIOCSIFFLAGS: u32 = 0x8914;
    const UP_AND_RUNNING: u8 = 0x41;
    /// The kernel's `ifreq`: a name of 16 bytes, then the flags.
    const FLAGS: usize = 16;
    let socket = sys::socket(sys::AF_INET, SOCK_DGRAM).about("a socket for the loopback")?;
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    sys::ioctl_with(socket.raw(), SIOCGIFFLAGS, &mut request).about("the loopback's flags")?;
    request[FLAGS] |= UP_AND_RUNNING;
    sys::ioctl_with(socket.raw(), SIOCSIFFLAGS, &mut request)
        .about("bringing the loopback up")
        .map(drop)
}

fn set_limits(limits: &[Rlimit]) -> Result<(), (Errno, String)> {
    // Keys of the caller must not be inherited. Where an outer filter forbids it they cannot be used either: so does ours.
    let _ = sys::new_session_keyring();
    for limit in limits {
        let what = || format!("resource limit {}", limit.resource);
        let (_, most) = sys::get_rlimit(limit.resource).about(what())?;
        // Raising a hard limit is the caller's right, not the sandbox's.
        let hard = limit.hard.min(most);
        sys::set_rlimit(limit.resource, limit.soft.min(hard), hard).about(what())?;
    }
    Ok(())
}

fn drop_privileges() -> Result<(), (Errno, String)> {
    const PR_CAP_AMBIENT: usize = 47;
    const CLEAR_ALL: usize = 4;
    let mut capability = 0;
    loop {
        if !KEPT.contains(&capability) {
            match sys::prctl(sys::PR_CAPBSET_DROP, capability as usize) {
                Ok(_) => {}
                // The first number that the kernel does not know.
                Err(sys::EINVAL) => break,
                Err(errno) => return Err((errno, format!("dropping capability {capability}"))),
            }
        }
        capability += 1;
    }
    sys::prctl(PR_CAP_AMBIENT, CLEAR_ALL).about("clearing ambient capabilities")?;
    let kept = KEPT.iter().fold(0, |set, capability| set | 1 << capability);
    sys::set_capabilities(kept).about("dropping capabilities")?;
    sys::prctl(sys::PR_SET_NO_NEW_PRIVS, 1)
        .about("no_new_privs")
        .map(drop)
}

/// Landlock before this version can neither rename between directories nor be told to.
const LEAST_LANDLOCK: u32 = 2;

/// The version in force after [`give_up`].
pub(super) fn landlock_in_force(setup: &Setup) -> u32 {
    if !setup.landlock {
        return 0;
    }
    match sys::landlock_version() {
        version if version >= LEAST_LANDLOCK => version,
        _ => 0,
    }
}

/// A second wall around the root: a file that is reached some other way than below it (a descriptor, a mount that should not be
/// there) stays closed, and abstract sockets and signals do not leave the sandbox.
fn landlock() -> Result<(), (Errno, String)> {
    let version = sys::landlock_version();
    if version < LEAST_LANDLOCK {
        return Ok(());
    }
    // File accesses came one bit at a time: 14 with version 2, truncate with 3, device ioctls with 5.
    let accesses: u64 = match version {
        2 => 0x3fff,
        3 | 4 => 0x7fff,
        _ => 0xffff,
    };
    let scopes = if version >= 6 { 0b11 } else { 0 };
    let root = sys::openat(sys::AT_FDCWD, c"/", sys::O_PATH | sys::O_DIRECTORY, 0).about("/")?;
    sys::landlock_confine(root.raw(), accesses, scopes).about("landlock_restrict_self")
}

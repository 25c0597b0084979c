//! Sets up a native sandbox and becomes its process 1.
//!
//! Two processes, forked by the [`nursery`], which a host executes once:
//!
//! - **Stage 1** runs in the host's namespaces as the caller. It clones process 1 into new namespaces (as a sibling, so that its
//!   own end is no news for it), writes its user map, hands it what only the caller may open, and exits.
//! - **Process 1** builds the root file system, gives up everything it does not need, and turns into the server. What it gave up is
//!   inherited by every command, so that starting one costs nothing extra.
//!
//! Process 1 never executes another program: its memory belongs to the host's user namespace and it is not dumpable, so nobody
//! inside can trace it or open its `/proc` files, whatever rights the sandbox's root has over the sandbox.
//!
//! Each step has a name ([`STEPS`](crate::wire::setup::STEPS)); the first that fails is reported with its error and ends the
//! sandbox before anything foreign ran.

mod confine;
pub(crate) mod janitor;
mod mounts;
pub(crate) mod nursery;
mod remove;
mod root;

use std::ffi::CString;

use crate::server;
use crate::sys::{self, Errno, Fd, OwnedFd, Sys};
use crate::wire::message::UserSpec;
use crate::wire::setup::{Ids, Reply, Setup, payload_length};

/// The control socket, which the host puts at standard input.
const CONTROL: Fd = 0;
/// The highest signal number.
const SIGNALS: i32 = 64;

/// Why a step failed.
struct Failure {
    step: &'static str,
    errno: i32,
    detail: String,
}

type Step<T> = Result<T, Failure>;

/// Runs steps by name, so that every failure says where.
struct Steps<'a> {
    setup: &'a Setup,
}

impl Steps<'_> {
    /// One step; `action`'s error is the kernel's and what it was about.
    fn run<T>(
        &self,
        step: &'static str,
        action: impl FnOnce() -> Result<T, (Errno, String)>,
    ) -> Step<T> {
        if let Some(fault) = &self.setup.fault
            && fault.step == step
        {
            return Err(Failure {
                step,
                errno: fault.errno,
                detail: "fault injected by a test".into(),
            });
        }
        action().map_err(|(errno, detail)| Failure {
            step,
            errno: errno.0,
            detail,
        })
    }
}

/// Says what a failed system call was about.
trait About<T> {
    fn about(self, what: impl Into<String>) -> Result<T, (Errno, String)>;
}

impl<T> About<T> for Sys<T> {
    fn about(self, what: impl Into<String>) -> Result<T, (Errno, String)> {
        self.map_err(|errno| (errno, what.into()))
    }
}

/// Stage 1, and process 1 when it is made: standard input is the control socket.
fn run() -> ! {
    match set_up() {
        Ok(config) => server::run(config),
        Err(failure) => {
            reply(&Reply::Failed {
                step: failure.step.into(),
                errno: failure.errno,
                detail: failure.detail,
            });
            sys::exit(1)
        }
    }
}

fn reply(reply: &Reply) {
    // If the host is gone there is nobody to tell, and process 1 ends with the next look at the socket.
    let _ = sys::write_all(CONTROL, &reply.encode());
}

/// Comes back in process 1 only.
fn set_up() -> Step<server::Config> {
    let message = |errno: Errno, detail: &str| Failure {
        step: "message",
        errno: errno.0,
        detail: detail.into(),
    };
    prepare_process().map_err(|errno| message(errno, "the process could not be cleaned"))?;
    let (setup, mut descriptors) =
        receive().map_err(|errno| message(errno, "the host's message was damaged"))?;
    let steps = Steps { setup: &setup };
    steps.run("message", || Ok(()))?;
    if descriptors.len() != 1 + usize::from(setup.listener) + setup.cgroups as usize {
        return Err(message(
            sys::EINVAL,
            "the host sent other descriptors than it said",
        ));
    }
    // As the current directory, because that is what the kernel carries over into a copied mount namespace; a descriptor would go
    // on naming the host's mount. Relative names also need no permission on the directories above.
    let session = descriptors.remove(0);
    sys::fchdir(session.raw()).map_err(|errno| message(errno, "the session's directory"))?;
    drop(session);
    let listener = setup.listener.then(|| descriptors.remove(0));

    steps.run("control group", || {
        enter_cgroups(&descriptors)?;
        no_precedence()
    })?;
    drop(descriptors);

    let pair = sys::socket_pair().map_err(|errno| message(errno, "socketpair"))?;
    let (host_end, box_end) = pair;
    let (pid, pidfd) = steps.run("namespaces", || {
        sys::fork_into(namespaces(&setup)).about("cloning into new namespaces")
    })?;
    if let Some(pidfd) = pidfd {
        drop(box_end);
        let outcome = stage_one(&steps, pid, &pidfd, &host_end);
        if outcome.is_err() {
            let _ = sys::kill(pid, sys::SIGKILL);
        }
        outcome?;
        sys::exit(0);
    }
    drop(host_end);
    process_one(&steps, listener, &box_end)
}

/// Leaves behind what a parent passes on by accident: descriptors, signal dispositions and mask, umask, directory.
fn prepare_process() -> Sys<()> {
    sys::close_range(3, u32::MAX, 0)?;
    for signal in 1..=SIGNALS {
        // SIGKILL and SIGSTOP refuse; they have no disposition to reset.
        let _ = sys::ignore_signal(signal, false);
    }
    // Executed through a descriptor, it would be named like its number.
    sys::set_name(c"sandbox-init")?;
    sys::set_signal_mask(0)?;
    sys::umask(0o022);
    sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize)?;
    sys::chdir(c"/")
}

fn receive() -> Sys<(Setup, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    let mut head = [0; 4];
    read_exact(&mut head, &mut descriptors)?;
    let length = payload_length(head).ok_or(sys::EINVAL)?;
    let mut payload = vec![0; length];
    read_exact(&mut payload, &mut descriptors)?;
    let setup = Setup::decode(&payload).ok_or(sys::EINVAL)?;
    Ok((setup, descriptors))
}

fn read_exact(mut buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Sys<()> {
    while !buffer.is_empty() {
        match sys::receive_with_fds(CONTROL, buffer, descriptors)? {
            0 => return Err(sys::ECONNRESET),
            n => buffer = &mut buffer[n..],
        }
    }
    Ok(())
}

/// Before anything is forked, so that no process of the sandbox is ever outside.
fn enter_cgroups(procs: &[OwnedFd]) -> Result<(), (Errno, String)> {
    for fd in procs {
        sys::write_all(fd.raw(), b"0").about("joining a control group")?;
    }
    Ok(())
}

/// A caller that the kernel spares when memory runs out, or lets run before all others, does not pass that on.
fn no_precedence() -> Result<(), (Errno, String)> {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let spared = std::fs::read_to_string(SCORE).is_ok_and(|score| score.starts_with('-'));
    if spared {
        write_file(SCORE, b"0")?;
    }
    sys::leave_real_time().about("leaving the real-time scheduler")
}

fn namespaces(setup: &Setup) -> u64 {
    sys::CLONE_PARENT
        | sys::CLONE_NEWUSER
        | sys::CLONE_NEWNS
        | sys::CLONE_NEWPID
        | sys::CLONE_NEWIPC
        | sys::CLONE_NEWUTS
        | sys::CLONE_NEWCGROUP
        | if setup.host_network {
            0
        } else {
            sys::CLONE_NEWNET
        }
}

/// What stage 1 tells process 1, a byte each: a bind source with its descriptor …
const TREE: u8 = b't';
/// … one that is absent and may be …
const ABSENT: u8 = b'-';
/// … and that process 1 may go on.
const GO: u8 = b'g';

fn stage_one(steps: &Steps<'_>, pid: i32, pidfd: &OwnedFd, pair: &OwnedFd) -> Step<()> {
    let started = Reply::Started { pid: pid as u32 }.encode();
    steps.run("user map", || {
        sys::send_with_fds(CONTROL, &started, &[pidfd.raw()]).about("the control socket")?;
        write_maps(pid, steps.setup.ids)
    })?;
    steps.run("host directories", || {
        if let Ids::Range { .. } = steps.setup.ids {
            mounts::send_trees(steps.setup, pid, pair.raw())?;
        }
        sys::send_with_fds(pair.raw(), &[GO], &[])
            .about("releasing process 1")
            .map(drop)
    })
}

fn write_maps(pid: i32, ids: Ids) -> Result<(), (Errno, String)> {
    let (users, groups) = match ids {
        Ids::Single { uid, gid } => {
            // Without this an ordinary user could drop a group that denies access (CVE-2014-8989); the kernel insists.
            write_file(&format!("/proc/{pid}/setgroups"), b"deny")?;
            (format!("0 {uid} 1"), format!("0 {gid} 1"))
        }
        Ids::Range { base, count } => {
            // Id 0 of the host is never inside.
            if base == 0 {
                return Err((sys::EINVAL, "the range of ids holds the host's root".into()));
            }
            let map = format!("0 {base} {count}");
            (map.clone(), map)
        }
    };
    write_file(&format!("/proc/{pid}/gid_map"), groups.as_bytes())?;
    write_file(&format!("/proc/{pid}/uid_map"), users.as_bytes())
}

fn write_file(path: &str, content: &[u8]) -> Result<(), (Errno, String)> {
    let name = c_string(path.as_bytes()).about(path)?;
    let fd = sys::openat(sys::AT_FDCWD, &name, sys::O_WRONLY, 0).about(path)?;
    sys::write_all(fd.raw(), content).about(path)
}

fn c_string(bytes: &[u8]) -> Sys<CString> {
    CString::new(bytes).map_err(|_| sys::EINVAL)
}

/// A path as text, for a failure's detail.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn process_one(
    steps: &Steps<'_>,
    listener: Option<OwnedFd>,
    pair: &OwnedFd,
) -> Step<server::Config> {
    let setup = steps.setup;
    // Silently: stage 1 has reported its own failure.
    let Some(trees) = mounts::receive_trees(setup, pair.raw()) else {
        sys::exit(1)
    };
    let control = steps.run("supervision", || supervise(setup))?;
    steps.run("credentials", || become_root(setup))?;
    if !setup.detached {
        // Changing credentials cleared it.
        steps.run("supervision", || die_with_parent(control.raw()))?;
    }
    let bash = root::build(steps, trees)?;
    confine::give_up(steps)?;
    reply(&Reply::Ready {
        landlock: confine::landlock_in_force(setup),
        bash,
    });
    if release_standard_streams().is_err() {
        // The host takes the end of the socket for the sandbox's death, which it is.
        sys::exit(1);
    }
    let user = setup.user.as_deref();
    Ok(server::Config {
        input: control,
        output: None,
        listener,
        detached: setup.detached,
        ttl_ms: setup.ttl_ms,
        workdir: setup.workdir.clone(),
        confined: false,
        default_user: user.map_or(UserSpec::Default, root::user_spec),
    })
}

/// The control socket is at another number by now; nothing of the host's stays at the well-known ones.
fn release_standard_streams() -> Sys<()> {
    let null = sys::openat(sys::AT_FDCWD, c"/dev/null", sys::O_RDWR, 0)?;
    (0..3).try_for_each(|stream| sys::dup_onto(null.raw(), stream))
}

/// A session of its own, no standard streams of the host, and no way in for tracers.
fn supervise(setup: &Setup) -> Result<OwnedFd, (Errno, String)> {
    sys::prctl(sys::PR_SET_DUMPABLE, 0).about("PR_SET_DUMPABLE")?;
    if !setup.detached {
        sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize).about("PR_SET_PDEATHSIG")?;
    }
    sys::setsid().about("setsid")?;
    sys::dup_from(CONTROL, 3).about("the control socket")
}

/// The host may have died before the signal was asked for, and its id is not visible from here: the socket knows.
fn die_with_parent(control: Fd) -> Result<(), (Errno, String)> {
    sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize).about("PR_SET_PDEATHSIG")?;
    if sys::peer_is_gone(control) {
        sys::exit(1);
    }
    Ok(())
}

fn become_root(setup: &Setup) -> Result<(), (Errno, String)> {
    if let Ids::Range { .. } = setup.ids {
        sys::setgroups(&[]).about("setgroups")?;
    }
    sys::setresgid(0).about("setresgid")?;
    sys::setresuid(0).about("setresuid")?;
    // Changing ids may have made it dumpable again, by the host's sysctl.
    sys::prctl(sys::PR_SET_DUMPABLE, 0)
        .about("PR_SET_DUMPABLE")
        .map(drop)
}

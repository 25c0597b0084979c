//! The monitor of one command: a process that shares the guest's memory and is the subreaper of the command's tree.
//!
//! Why: a command can be ended whole only if all its descendants can be found, whatever they do (`setsid`, double fork, closed
//! descriptors, a scrubbed environment). With a subreaper of its own, every orphan of the command's tree stays below the monitor.
//! `CLONE_VM` makes it nearly free: no page table is copied, and the report is a few atomic stores. When the tree has ended, the
//! monitor waits for the next command.
//!
//! What runs in [`monitor`] and [`child`] shares memory and the allocator with the guest's only thread. So both use raw system
//! calls alone: no allocation, no locks, no thread-local state, no panic.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, Errno, Fd, OwnedFd, Sys};
use crate::wire::frame::HEADER;
use crate::wire::message::to_host;

// How far a command has come; only ever grows, from 0.
pub(crate) const RUNNING: u32 = 1;
pub(crate) const FAILED: u32 = 2;
pub(crate) const EXITED: u32 = 3;
/// No process of the tree lives any more; the monitor ends.
pub(crate) const GONE: u32 = 4;

pub(crate) const TOLD_START: u32 = 1;
pub(crate) const TOLD_EXIT: u32 = 2;

// Which step of a start failed.
pub(crate) const STEP_PROCESS: u32 = 1;
pub(crate) const STEP_STDIO: u32 = 2;
pub(crate) const STEP_USER: u32 = 3;
pub(crate) const STEP_CWD: u32 = 4;
pub(crate) const STEP_EXEC: u32 = 5;

const STACK: usize = 32 << 10;

/// What the monitor reports, by plain stores followed by one of `state`.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) state: AtomicU32,
    pub(crate) pid: AtomicI32,
    pub(crate) step: AtomicU32,
    pub(crate) errno: AtomicI32,
    /// Whether status and usage of the direct process are known.
    pub(crate) ended: AtomicBool,
    pub(crate) status: AtomicI32,
    pub(crate) background: AtomicU32,
    /// What the host has been told by the monitor: [`TOLD_START`], [`TOLD_EXIT`].
    pub(crate) told: AtomicU32,
    pub(crate) user_us: AtomicU64,
    pub(crate) system_us: AtomicU64,
    pub(crate) peak_kib: AtomicU64,
}

impl Report {
    /// For the next command.
    fn reset(&self) {
        for number in [&self.pid, &self.errno, &self.status] {
            number.store(0, Ordering::Relaxed);
        }
        for number in [&self.step, &self.background, &self.told] {
            number.store(0, Ordering::Relaxed);
        }
        for number in [&self.user_us, &self.system_us, &self.peak_kib] {
            number.store(0, Ordering::Relaxed);
        }
        self.ended.store(false, Ordering::Relaxed);
        self.state.store(0, Ordering::Release);
    }

    /// A step failed, in the child or in the monitor.
    fn fail(&self, step: u32, error: Errno) {
        self.step.store(step, Ordering::Relaxed);
        self.errno.store(error.0, Ordering::Relaxed);
    }
}

/// Everything that a command needs to start, prepared by the guest so that monitor and child only read.
pub(crate) struct Plan {
    /// Descriptors for 0, 1 and 2.
    pub(crate) stdio: [Fd; 3],
    /// Closed by the monitor once the child has its own copies: the guest then need not wake up for it.
    pub(crate) child_side: Vec<Fd>,
    /// Where the host itself hears of the start and the end; absent: the guest tells it.
    pub(crate) status: Option<Fd>,
    /// Whether descriptor 0 is a terminal that becomes the controlling one.
    pub(crate) terminal: bool,
    /// User, group and supplementary groups; absent: the guest's own.
    pub(crate) user: Option<(u32, u32, Vec<u32>)>,
    pub(crate) cwd: CString,
    /// Paths to try in turn.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
}

/// A started monitor.
pub(crate) struct Monitor {
    pub(crate) pid: i32,
    /// Leaked unless the process is known to have ended ([`Monitor::ended`]): it uses this memory until then.
    shared: ManuallyDrop<Box<Shared>>,
}

struct Shared {
    report: Report,
    /// Becomes readable when the report has changed.
    notify: Fd,
    /// Becomes readable when there is a job.
    wake: OwnedFd,
    /// Written by the guest while the monitor waits on `wake`, read by the monitor and its child until they store `FAILED` or `GONE`.
    job: UnsafeCell<Option<Job>>,
    child_stack: *mut u8,
    /// Stacks of the monitor and of the child until its exec; only the pages that are touched exist.
    _stacks: Vec<u8>,
}

/// A plan with the arrays that `execve` takes.
struct Job {
    plan: Plan,
    argv: Vec<*const u8>,
    env: Vec<*const u8>,
}

impl Monitor {
    /// Starts a monitor, which waits for its first command.
    pub(crate) fn start(notify: Fd) -> Sys<Monitor> {
        let mut stacks = Vec::with_capacity(2 * STACK + 16);
        let base: *mut u8 = stacks.as_mut_ptr();
        // Down from the aligned end of each half.
        let aligned = base.wrapping_add(base.align_offset(16));
        let (middle, top) = (aligned.wrapping_add(STACK), aligned.wrapping_add(2 * STACK));
        let mut shared = Box::new(Shared {
            report: Report::default(),
            notify,
            wake: sys::eventfd(false)?,
            job: UnsafeCell::new(None),
            child_stack: middle,
            _stacks: stacks,
        });
        let argument = std::ptr::from_mut(&mut *shared).cast::<u8>();
        let flags = sys::CLONE_VM | sys::CLONE_FILES | sys::SIGCHLD as usize;
        // SAFETY: the upper half of the stacks is the monitor's alone, ends 16-byte aligned, and lives as long as `shared`, which is
        // not freed before the monitor has been waited for; `monitor` is written for shared memory.
        let pid = unsafe { sys::clone_onto(flags, top, monitor, argument)? };
        Ok(Monitor {
            pid,
            shared: ManuallyDrop::new(shared),
        })
    }

    /// Gives a waiting monitor (new, or whose last command has `FAILED` or is `GONE`) a command.
    pub(crate) fn run(&mut self, plan: Plan) {
        let pointers = |strings: &[CString]| {
            let end = std::iter::once(std::ptr::null());
            strings
                .iter()
                .map(|string| string.as_ptr().cast::<u8>())
                .chain(end)
                .collect::<Vec<_>>()
        };
        let job = Job {
            argv: pointers(&plan.argv),
            env: pointers(&plan.env),
            plan,
        };
        // SAFETY: the monitor waits: it does not look at the job before it is woken below.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.report.reset();
        // The counter cannot overflow: it is read before the next job.
        let _ = sys::write(self.shared.wake.raw(), &1u64.to_ne_bytes());
    }

    /// Frees what the last command needed; the monitor waits for the next.
    pub(crate) fn rest(&mut self) {
        // SAFETY: as in `run`.
        unsafe { *self.shared.job.get() = None };
    }

    /// Ends a waiting monitor. It must be kept until it has been waited for.
    pub(crate) fn dismiss(&mut self) {
        self.rest();
        let _ = sys::write(self.shared.wake.raw(), &1u64.to_ne_bytes());
    }

    /// Its process has been waited for: nobody uses its memory any more. Gives back the plan that it had.
    pub(crate) fn ended(mut self) -> Option<Plan> {
        // SAFETY: `self` is consumed, so that it is taken out once.
        let shared = unsafe { ManuallyDrop::take(&mut self.shared) };
        shared.job.into_inner().map(|job| job.plan)
    }

    pub(crate) fn report(&self) -> &Report {
        &self.shared.report
    }

    /// The paths that were tried.
    pub(crate) fn programs(&self) -> &[CString] {
        // SAFETY: only this side writes the job, through `&mut self`.
        unsafe {
            (*self.shared.job.get())
                .as_ref()
                .map_or(&[], |job| &job.plan.programs)
        }
    }
}

/// Tells the guest that the report has changed. The counter cannot overflow; a failure could not be told to anybody.
fn notify(shared: &Shared) {
    let _ = sys::write(shared.notify, &1u64.to_ne_bytes());
}

/// Writes the host a frame with what a command's start would say. A small write into a pipe is whole; a host that is gone hears
/// nothing.
fn tell_start(status: Fd, pid: i32) {
    let mut frame = [0; HEADER + 4];
    frame[0] = 4;
    frame[8] = to_host::STARTED;
    frame[HEADER..].copy_from_slice(&pid.to_le_bytes());
    let _ = sys::write(status, &frame);
}

/// The same with what its end would say ([`Exited`](crate::wire::message::Exited)).
fn tell_exit(status: Fd, ended: &sys::Waited, background: bool) {
    const PAYLOAD: usize = 43;
    let signal = ended.status & 0x7f;
    let mut frame = [0; HEADER + PAYLOAD];
    frame[0] = PAYLOAD as u8;
    frame[8] = to_host::EXITED;
    frame[HEADER] = u8::from(signal != 0);
    frame[HEADER + 1] = if signal != 0 {
        signal as u8
    } else {
        (ended.status >> 8) as u8
    };
    frame[HEADER + 2] = u8::from(background);
    frame[HEADER + 3..HEADER + 11].copy_from_slice(&ended.user_us.to_le_bytes());
    frame[HEADER + 11..HEADER + 19].copy_from_slice(&ended.system_us.to_le_bytes());
    frame[HEADER + 19..HEADER + 27].copy_from_slice(&ended.peak_kib.to_le_bytes());
    let _ = sys::write(status, &frame);
}

/// # Safety
/// Started by [`Monitor::start`] with its `Shared`.
unsafe extern "C" fn monitor(argument: *mut u8) -> ! {
    // SAFETY: the guest keeps it until this process has been waited for.
    let shared = unsafe { &*argument.cast::<Shared>() };
    // The guest blocks all signals, so the payload cannot end the monitor with anything but KILL (and the guest notices that).
    let _ = sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize);
    let _ = sys::prctl(sys::PR_SET_CHILD_SUBREAPER, 1);
    loop {
        let woken = sys::read(shared.wake.raw(), &mut [0; 8]);
        // SAFETY: the guest has written the job before it woke this process, and leaves it alone until the end is reported.
        let job = unsafe { (*shared.job.get()).is_some() };
        if woken.is_err() || !job {
            sys::exit(0);
        }
        // SAFETY: this is the monitor, and there is a job.
        let end = unsafe { watch(argument) };
        shared.report.state.store(end, Ordering::Release);
        notify(shared);
    }
}

/// Runs one command and waits for its whole tree: `FAILED` or `GONE`.
///
/// # Safety
/// Called by [`monitor`] with its `Shared`, which has a job.
unsafe fn watch(argument: *mut u8) -> u32 {
    // SAFETY: the guest keeps it until this process has been waited for.
    let shared = unsafe { &*argument.cast::<Shared>() };
    let report = &shared.report;
    // SAFETY: the guest leaves the job alone until the end is reported.
    let Some(Job { plan, .. }) = (unsafe { &*shared.job.get() }) else {
        return FAILED;
    };
    let flags = sys::CLONE_VM | sys::CLONE_VFORK | sys::SIGCHLD as usize;
    // SAFETY: the lower half of the stacks is the child's alone; CLONE_VFORK suspends this process until the child has executed
    // or ended; `child` is written for shared memory.
    let started = unsafe { sys::clone_onto(flags, shared.child_stack, child, argument) };
    for fd in &plan.child_side {
        let _ = sys::close(*fd);
    }
    let child = match started {
        Ok(pid) => pid,
        Err(error) => {
            report.fail(STEP_PROCESS, error);
            return FAILED;
        }
    };
    if report.step.load(Ordering::Relaxed) != 0 {
        let _ = sys::wait4(child, 0);
        return FAILED;
    }
    match plan.status {
        Some(status) => {
            tell_start(status, child);
            report.told.store(TOLD_START, Ordering::Release);
            report.state.store(RUNNING, Ordering::Release);
        }
        None => {
            report.state.store(RUNNING, Ordering::Release);
            notify(shared);
        }
    }
    // Looked at before it is reaped: were the monitor killed in between, nobody could tell the status any more.
    while let Ok(ended) = sys::peek_ended_child() {
        if ended.pid == child {
            report.status.store(ended.status, Ordering::Relaxed);
            report.user_us.store(ended.user_us, Ordering::Relaxed);
            report.system_us.store(ended.system_us, Ordering::Relaxed);
            report.peak_kib.store(ended.peak_kib, Ordering::Relaxed);
            report.ended.store(true, Ordering::Release);
        }
        let _ = sys::wait4(ended.pid, 0);
        if ended.pid == child {
            // Orphans that are zombies already are no background.
            let more = loop {
                match sys::wait4(-1, sys::WNOHANG) {
                    Ok(waited) if waited.pid > 0 => {}
                    Ok(_) => break true,
                    Err(_) => break false,
                }
            };
            report.background.store(u32::from(more), Ordering::Relaxed);
            if let Some(status) = plan.status {
                tell_exit(status, &ended, more);
                report.told.store(TOLD_START | TOLD_EXIT, Ordering::Release);
            }
            if !more {
                break;
            }
            report.state.store(EXITED, Ordering::Release);
            notify(shared);
        }
    }
    GONE
}

/// Becomes the command.
///
/// # Safety
/// Started by [`monitor`] with its `Shared`, while the monitor is suspended.
unsafe extern "C" fn child(argument: *mut u8) -> ! {
    // SAFETY: the guest keeps it until the monitor has been waited for.
    let shared = unsafe { &*argument.cast::<Shared>() };
    // SAFETY: the guest leaves the job alone until the end is reported.
    if let Some(job) = unsafe { &*shared.job.get() } {
        let (step, error) = become_command(&shared.report, job);
        shared.report.fail(step, error);
    }
    sys::exit(127)
}

/// Returns only if it failed: at which step, and why.
fn become_command(report: &Report, job: &Job) -> (u32, Errno) {
    let plan = &job.plan;
    // Told by the child itself: it may run, and kill the monitor, before the monitor could say.
    report.pid.store(sys::getpid(), Ordering::Release);
    let _ = sys::setsid();
    let [stdin, stdout, stderr] = plan.stdio;
    // The sources are all above 2: the guest keeps 0, 1 and 2 occupied.
    for (from, to) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
        if let Err(error) = sys::dup_onto(from, to) {
            return (STEP_STDIO, error);
        }
    }
    const TIOCSCTTY: u32 = 0x540e;
    if plan.terminal
        && let Err(error) = sys::ioctl(0, TIOCSCTTY, 0)
    {
        return (STEP_STDIO, error);
    }
    // Before anything is resolved: neither /proc/self/fd nor an inherited directory may lead anywhere.
    if let Err(error) = sys::close_range(3, u32::MAX, 0) {
        return (STEP_STDIO, error);
    }
    if let Some((uid, gid, groups)) = &plan.user {
        let changed = sys::setgroups(groups)
            .and_then(|()| sys::setresgid(*gid))
            .and_then(|()| sys::setresuid(*uid));
        // The memory is still the guest's, and a change of ids may have made it traceable.
        let hidden = sys::prctl(sys::PR_SET_DUMPABLE, 0).map(drop);
        if let Err(error) = changed.and(hidden) {
            return (STEP_USER, error);
        }
    }
    if let Err(error) = sys::chdir(&plan.cwd).and_then(|()| sys::check_cwd()) {
        return (STEP_CWD, error);
    }
    let _ = sys::ignore_signal(sys::SIGPIPE, false);
    let _ = sys::set_signal_mask(0);
    let mut result = sys::ENOENT;
    for program in &plan.programs {
        // SAFETY: both arrays end with a null pointer, and all their strings outlive the call.
        match unsafe { sys::execve(program, job.argv.as_ptr(), job.env.as_ptr()) } {
            sys::ENOENT | sys::ENOTDIR => {}
            // As a shell looks further along PATH, and says at the end that it was not permitted.
            sys::EACCES => result = sys::EACCES,
            error => return (STEP_EXEC, error),
        }
    }
    (STEP_EXEC, result)
}

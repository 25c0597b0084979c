//! Commands: start, terminal, end of the whole tree.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use crate::files::{Files, Outcome, failure};
use crate::monitor::{self, Monitor, Plan};
use crate::processes::Processes;
use crate::sys::{self, Fd, OwnedFd};
use crate::users::User;
use crate::wire::message::{
    Code, ExecRequest, Exited, FLAG_LOCAL, FLAG_PTY, FLAG_SEARCH, FLAG_STDIN, Failure, UserSpec,
};

/// How often a tree that is being killed is looked at again, in milliseconds.
const KILL_TICK: u64 = 1;
/// How often a tree in its grace is looked at, in milliseconds.
const GRACE_TICK: u64 = 20;

/// A command whose tree may be alive.
pub(crate) struct Exec {
    /// Absent once it has nothing to watch any more and watches for another command.
    monitor: Option<Monitor>,
    /// What the monitor had reported when it went.
    last: Last,
    /// The monitor was killed by the payload; the guest itself is now the parent of what it watched.
    lost: bool,
    /// The exit of the direct process, if the guest had to wait for it itself.
    own_wait: Option<sys::Waited>,
    /// The monitor's process has been waited for.
    reaped: bool,
    pub(crate) started_sent: bool,
    pub(crate) exited_sent: bool,
    pub(crate) gone_sent: bool,
    pub(crate) released: bool,
    ending: Option<Ending>,
    /// The host's ear for start and end, which the monitor writes to; closed with the command's record.
    _status: Option<OwnedFd>,
    described: Described,
    /// The terminal's master side.
    pub(crate) terminal: Option<OwnedFd>,
}

#[derive(Default, Clone, Copy)]
struct Last {
    state: u32,
    pid: i32,
    waited: sys::Waited,
    background: bool,
    told: u32,
}

/// What a failure names.
struct Described {
    program: Vec<u8>,
    cwd: Vec<u8>,
    user: String,
}

struct Ending {
    kill_at: u64,
    next_look: u64,
}

/// The guest's ends of a command's framed streams.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl Exec {
    /// Starts a command as a user (absent if the wanted one is unknown). `passed` are the child's ends of its streams if the host
    /// made them.
    pub(crate) fn start(
        request: &ExecRequest,
        passed: VecDeque<OwnedFd>,
        files: &Files,
        null: Fd,
        wanted: &UserSpec,
        user: Option<&User>,
        monitors: &mut Monitors,
    ) -> Outcome<(Exec, Ends)> {
        let named = user_text(wanted);
        let user = user.ok_or_else(|| failure(Code::UserNotFound, 0, named.as_bytes()))?;
        let mut child_side = Vec::new();
        let mut status = None;
        let mut ends = Ends::default();
        let mut terminal = None;
        let stdio = if request.flags & FLAG_PTY != 0 {
            let (master, slave) = open_terminal(request.rows, request.columns)?;
            let fd = slave.raw();
            child_side.push(slave);
            terminal = Some(master);
            [fd; 3]
        } else if request.flags & FLAG_LOCAL != 0 {
            passed_streams(request, passed, null, &mut child_side, &mut status)?
        } else {
            framed_streams(request, null, &mut child_side, &mut ends)?
        };
        let mut plan = plan(request, user, files, stdio, terminal.is_some())?;
        let mut monitor = monitors
            .take()
            .map_err(|error| failure(Code::Io, error.0, b"starting a process"))?;
        // From here on the monitor's to close.
        plan.child_side = child_side.into_iter().map(OwnedFd::into_raw).collect();
        plan.status = status.as_ref().map(OwnedFd::raw);
        monitor.run(plan);
        let described = Described {
            program: request.argv[0].clone(),
            cwd: files.cwd(&request.cwd),
            user: named,
        };
        let exec = Exec {
            monitor: Some(monitor),
            last: Last::default(),
            lost: false,
            own_wait: None,
            reaped: false,
            started_sent: false,
            exited_sent: false,
            gone_sent: false,
            released: false,
            ending: None,
            _status: status,
            described,
            terminal,
        };
        Ok((exec, ends))
    }

    /// How far the command has come, as the monitor or the guest itself knows.
    pub(crate) fn state(&self) -> u32 {
        let state = match &self.monitor {
            Some(monitor) => monitor.report().state.load(Ordering::Acquire),
            None => self.last.state,
        };
        if self.lost && self.own_wait.is_some() {
            state.max(monitor::EXITED)
        } else {
            state
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        match &self.monitor {
            Some(monitor) => monitor.report().pid.load(Ordering::Acquire),
            None => self.last.pid,
        }
    }

    /// Whether the monitor itself has told the host: [`monitor::TOLD_START`], [`monitor::TOLD_EXIT`].
    pub(crate) fn has_told(&self, what: u32) -> bool {
        match &self.monitor {
            Some(monitor) => monitor.report().told.load(Ordering::Acquire) & what != 0,
            None => self.last.told & what != 0,
        }
    }

    /// Why the start failed, in the contract's terms.
    pub(crate) fn start_failure(&self) -> Failure {
        let Some(monitor) = &self.monitor else {
            return failure(Code::Io, 0, b"starting a process");
        };
        let report = monitor.report();
        let error = sys::Errno(report.errno.load(Ordering::Relaxed));
        let Described { program, cwd, user } = &self.described;
        match report.step.load(Ordering::Relaxed) {
            monitor::STEP_CWD => failure(Code::BadCwd, error.0, cwd),
            monitor::STEP_USER => failure(Code::UserNotFound, error.0, user.as_bytes()),
            monitor::STEP_EXEC => match error {
                sys::E2BIG => failure(Code::ArgumentsTooLong, error.0, program),
                // The file is there, so what is missing is the interpreter that it names.
                sys::ENOENT if monitor.programs().iter().any(exists) => {
                    failure(Code::NotExecutable, error.0, program)
                }
                sys::ENOENT => failure(Code::ProgramNotFound, error.0, program),
                _ => failure(Code::NotExecutable, error.0, program),
            },
            _ => failure(Code::Io, error.0, b"starting a process"),
        }
    }

    fn reported(&self) -> sys::Waited {
        let Some(monitor) = &self.monitor else {
            return self.last.waited;
        };
        let report = monitor.report();
        sys::Waited {
            pid: 0,
            status: report.status.load(Ordering::Relaxed),
            user_us: report.user_us.load(Ordering::Relaxed),
            system_us: report.system_us.load(Ordering::Relaxed),
            peak_kib: report.peak_kib.load(Ordering::Relaxed),
        }
    }

    fn background(&self) -> bool {
        match &self.monitor {
            Some(monitor) => monitor.report().background.load(Ordering::Relaxed) != 0,
            None => self.last.background,
        }
    }

    pub(crate) fn exited(&self) -> Exited {
        let waited = self.own_wait.unwrap_or_else(|| self.reported());
        let signal = waited.status & 0x7f;
        Exited {
            by_signal: signal != 0,
            value: if signal != 0 {
                signal as u8
            } else {
                (waited.status >> 8) as u8
            },
            background: self.background(),
            user_us: waited.user_us,
            system_us: waited.system_us,
            peak_kib: waited.peak_kib,
            unread_stdout: 0,
            unread_stderr: 0,
        }
    }

    /// The guest has waited for a child that may be this command's monitor or, if that was killed, its direct process.
    pub(crate) fn waited(&mut self, waited: sys::Waited, monitors: &mut Monitors) -> bool {
        let watching = self.monitor.as_ref().filter(|_| !self.reaped);
        if let Some(monitor) = watching.filter(|monitor| monitor.pid == waited.pid) {
            let report = monitor.report();
            let state = report.state.load(Ordering::Acquire);
            let ended = report.ended.load(Ordering::Acquire);
            let nothing_started = report.pid.load(Ordering::Acquire) == 0;
            self.reaped = true;
            if matches!(state, monitor::FAILED | monitor::GONE) {
                return true;
            }
            if nothing_started && self.start_again(monitors) {
                return true;
            }
            self.lost = true;
            if ended {
                // It had seen the exit before.
                self.own_wait = Some(sys::Waited {
                    pid: self.pid(),
                    ..self.reported()
                });
            } else if nothing_started {
                self.own_wait = Some(sys::Waited {
                    status: sys::SIGKILL,
                    ..waited
                });
            }
            if state < monitor::RUNNING {
                self.set_state(monitor::RUNNING);
            }
            true
        } else if self.lost && self.own_wait.is_none() && waited.pid == self.pid() {
            self.own_wait = Some(waited);
            true
        } else {
            false
        }
    }

    /// The monitor was killed while it waited for a command, before it had this one: another takes it on.
    fn start_again(&mut self, monitors: &mut Monitors) -> bool {
        let plan = self.monitor.take().and_then(Monitor::ended);
        let (Some(plan), Ok(mut monitor)) = (plan, monitors.take()) else {
            return false;
        };
        monitor.run(plan);
        self.monitor = Some(monitor);
        self.reaped = false;
        true
    }

    fn set_state(&mut self, state: u32) {
        match &self.monitor {
            Some(monitor) => monitor.report().state.store(state, Ordering::Release),
            None => self.last.state = state,
        }
    }

    /// Lets a monitor that has nothing to watch any more watch for another command.
    pub(crate) fn give_back_monitor(&mut self, monitors: &mut Monitors) {
        if self.lost || !matches!(self.state(), monitor::FAILED | monitor::GONE) {
            return;
        }
        let Some(monitor) = &self.monitor else {
            // Given back before; what it had reported stays.
            return;
        };
        self.last = Last {
            state: self.state(),
            pid: self.pid(),
            waited: self.reported(),
            background: self.background(),
            told: monitor.report().told.load(Ordering::Acquire),
        };
        if let Some(monitor) = self.monitor.take() {
            if self.reaped {
                monitor.ended();
            } else {
                monitors.give_back(monitor);
            }
        }
    }

    /// Whether nothing of the command is left to look after.
    pub(crate) fn is_over(&self) -> bool {
        if self.lost {
            self.own_wait.is_some()
        } else {
            self.state() == monitor::GONE
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Ends the tree: TERM and CONT now, KILL after `grace` milliseconds; a later call can only shorten the grace.
    pub(crate) fn end(&mut self, grace: u64, processes: &Processes) {
        let now = sys::now_ms();
        let kill_at = now.saturating_add(grace);
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
            ending.next_look = now;
        } else {
            self.ending = Some(Ending {
                kill_at,
                next_look: now,
            });
            if grace > 0 {
                for pid in self.tree(processes) {
                    // A process that is gone meanwhile needs no signal. CONT: a stopped process never acts on TERM.
                    let _ = sys::kill(pid, sys::SIGTERM);
                    let _ = sys::kill(pid, sys::SIGCONT);
                }
            }
        }
    }

    /// Goes on with ending the tree; the time of the next look, if one is needed.
    pub(crate) fn pursue(&mut self, now: u64, processes: &Processes) -> Option<u64> {
        let ending = self.ending.as_mut()?;
        if self.gone_sent {
            return None;
        }
        let due = ending.next_look.min(ending.kill_at);
        if now < due {
            return Some(due);
        }
        let killing = now >= ending.kill_at;
        ending.next_look = now + if killing { KILL_TICK } else { GRACE_TICK };
        let next = if killing {
            ending.next_look
        } else {
            ending.next_look.min(ending.kill_at)
        };
        if killing {
            self.kill_tree(processes);
        }
        if self.lost && self.own_wait.is_some() && self.tree(processes).is_empty() {
            // No monitor is left to say so.
            self.set_state(monitor::GONE);
        }
        Some(next)
    }

    /// Stops everything first, so that nothing can fork away while it is killed.
    fn kill_tree(&self, processes: &Processes) {
        let mut stopped = std::collections::HashSet::new();
        for _ in 0..64 {
            let mut fresh = self.tree(processes);
            fresh.retain(|pid| stopped.insert(*pid));
            if fresh.is_empty() {
                break;
            }
            for pid in fresh {
                let _ = sys::kill(pid, sys::SIGSTOP);
            }
        }
        for pid in stopped {
            let _ = sys::kill(pid, sys::SIGKILL);
        }
    }

    fn tree(&self, processes: &Processes) -> Vec<i32> {
        match &self.monitor {
            _ if self.lost => processes.orphans(),
            Some(monitor) if !self.reaped => processes.below(monitor.pid),
            _ => Vec::new(),
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // A monitor whose process may still run is leaked: it uses its memory.
        if let Some(monitor) = self.monitor.take_if(|_| self.reaped) {
            monitor.ended();
        }
    }
}

/// Monitors that wait for a command.
pub(crate) struct Monitors {
    notify: Fd,
    resting: Vec<Monitor>,
    /// Told to end, kept until they have.
    dismissed: Vec<Monitor>,
    /// The processes of all monitors, also those that watch.
    pub(crate) pids: Vec<i32>,
}

impl Monitors {
    /// How many wait at most: starting one costs little, and an idle sandbox should have few processes.
    const RESTING: usize = 2;

    /// `notify` becomes readable when a monitor has something to report.
    pub(crate) fn new(notify: Fd) -> Self {
        Monitors {
            notify,
            resting: Vec::new(),
            dismissed: Vec::new(),
            pids: Vec::new(),
        }
    }

    fn take(&mut self) -> sys::Sys<Monitor> {
        if let Some(monitor) = self.resting.pop() {
            return Ok(monitor);
        }
        let monitor = Monitor::start(self.notify)?;
        self.pids.push(monitor.pid);
        Ok(monitor)
    }

    fn give_back(&mut self, mut monitor: Monitor) {
        if self.resting.len() < Self::RESTING {
            monitor.rest();
            self.resting.push(monitor);
        } else {
            monitor.dismiss();
            self.dismissed.push(monitor);
        }
    }

    /// The guest has waited for a child that may be a monitor with nothing to watch.
    pub(crate) fn waited(&mut self, waited: sys::Waited) {
        self.pids.retain(|pid| *pid != waited.pid);
        for monitors in [&mut self.resting, &mut self.dismissed] {
            if let Some(at) = monitors
                .iter()
                .position(|monitor| monitor.pid == waited.pid)
            {
                monitors.remove(at).ended();
            }
        }
    }
}

fn io(error: sys::Errno) -> Failure {
    failure(Code::Io, error.0, b"the streams of a command")
}

/// The child's ends that the host has passed.
fn passed_streams(
    request: &ExecRequest,
    mut passed: VecDeque<OwnedFd>,
    null: Fd,
    child_side: &mut Vec<OwnedFd>,
    status: &mut Option<OwnedFd>,
) -> Outcome<[Fd; 3]> {
    // The last one is not the child's: start and end are told on it.
    *status = passed.pop_back();
    let mut next = || {
        let fd = passed.pop_front();
        let fd =
            fd.ok_or_else(|| failure(Code::Protocol, 0, b"a stream's descriptor is missing"))?;
        let raw = fd.raw();
        child_side.push(fd);
        Ok::<_, Failure>(raw)
    };
    let stdin = if request.flags & FLAG_STDIN != 0 {
        next()?
    } else {
        null
    };
    Ok([stdin, next()?, next()?])
}

/// Pipes between the child and the guest.
fn framed_streams(
    request: &ExecRequest,
    null: Fd,
    child_side: &mut Vec<OwnedFd>,
    ends: &mut Ends,
) -> Outcome<[Fd; 3]> {
    let mut stdin = null;
    if request.flags & FLAG_STDIN != 0 {
        let (read, write) = sys::pipe().map_err(io)?;
        sys::set_nonblocking(write.raw()).map_err(io)?;
        stdin = read.raw();
        child_side.push(read);
        ends.stdin = Some(write);
    }
    let mut output = |end: &mut Option<OwnedFd>| {
        let (read, write) = sys::pipe().map_err(io)?;
        sys::set_nonblocking(read.raw()).map_err(io)?;
        let fd = write.raw();
        child_side.push(write);
        *end = Some(read);
        Ok::<_, Failure>(fd)
    };
    Ok([stdin, output(&mut ends.stdout)?, output(&mut ends.stderr)?])
}

pub(crate) fn user_text(user: &UserSpec) -> String {
    match user {
        UserSpec::Default => "root".into(),
        UserSpec::Name(name) => String::from_utf8_lossy(name).into_owned(),
        UserSpec::Ids(uid, None) => uid.to_string(),
        UserSpec::Ids(uid, Some(gid)) => format!("{uid}:{gid}"),
    }
}

fn exists(path: &CString) -> bool {
    std::path::Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())).is_file()
}

fn plan(
    request: &ExecRequest,
    user: &User,
    files: &Files,
    stdio: [Fd; 3],
    terminal: bool,
) -> Outcome<Plan> {
    let c_string = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| failure(Code::Protocol, 0, b"a NUL byte in a command"))
    };
    let mut env = request.env.clone();
    for (name, value) in [
        (&b"HOME="[..], &user.home),
        (b"USER=", &user.name),
        (b"LOGNAME=", &user.name),
    ] {
        if !value.is_empty() && !env.iter().any(|entry| entry.starts_with(name)) {
            env.push([name, value].concat());
        }
    }
    let program = &request.argv[0];
    let programs = if request.flags & FLAG_SEARCH != 0 && !program.contains(&b'/') {
        let path = env
            .iter()
            .find_map(|entry| entry.strip_prefix(b"PATH="))
            .unwrap_or(b"/usr/bin:/bin");
        path.split(|b| *b == b':')
            .map(|dir| if dir.is_empty() { &b"."[..] } else { dir })
            .map(|dir| c_string(&[dir, b"/", program].concat()))
            .collect::<Outcome<Vec<_>>>()?
    } else {
        vec![c_string(program)?]
    };
    // The guest's own ids need no change, and none may be possible.
    let foreign = user.uid != 0 || user.gid != 0 || user.groups.iter().any(|group| *group != 0);
    let confined_or_own = files.is_confined() && user.uid == 0 && user.gid == 0;
    Ok(Plan {
        stdio,
        child_side: Vec::new(),
        status: None,
        terminal,
        user: (foreign && !confined_or_own).then(|| (user.uid, user.gid, user.groups.clone())),
        cwd: c_string(&files.cwd(&request.cwd))?,
        programs,
        argv: request
            .argv
            .iter()
            .map(|argument| c_string(argument))
            .collect::<Outcome<_>>()?,
        env: env
            .iter()
            .map(|entry| c_string(entry))
            .collect::<Outcome<_>>()?,
    })
}

/// A new terminal of the sandbox's own: master and slave.
fn open_terminal(rows: u16, columns: u16) -> Outcome<(OwnedFd, OwnedFd)> {
    const TIOCSPTLCK: u32 = 0x4004_5431;
    const TIOCGPTPEER: u32 = 0x5441;
    let at =
        |error: sys::Errno| failure(Code::Io, error.0, b"opening a pseudo-terminal (/dev/ptmx)");
    let flags = sys::O_RDWR | sys::O_NOCTTY;
    let master = sys::openat(sys::AT_FDCWD, c"/dev/ptmx", flags, 0).map_err(at)?;
    let mut unlock = 0i32;
    sys::ioctl_with(master.raw(), TIOCSPTLCK, &mut unlock).map_err(at)?;
    // By descriptor, never by name: a path could have been swapped for something else.
    let peer =
        sys::ioctl(master.raw(), TIOCGPTPEER, (flags | sys::O_CLOEXEC) as usize).map_err(at)?;
    let slave = OwnedFd::new(peer as Fd);
    resize(master.raw(), rows, columns);
    sys::set_nonblocking(master.raw()).map_err(at)?;
    Ok((master, slave))
}

pub(crate) fn resize(terminal: Fd, rows: u16, columns: u16) {
    const TIOCSWINSZ: u32 = 0x5414;
    let mut size = [rows, columns, 0, 0];
    // A terminal that has hung up has no size.
    let _ = sys::ioctl_with(terminal, TIOCSWINSZ, &mut size);
}

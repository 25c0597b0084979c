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
    pub(crate) monitor: Monitor,
    /// The monitor was killed by the payload; the guest itself is now the parent of what it watched.
    lost: bool,
    /// The exit of the direct process, if the guest had to wait for it itself.
    own_wait: Option<sys::Waited>,
    /// The monitor has been waited for, so that its memory is no longer used.
    pub(crate) reaped: bool,
    pub(crate) started_sent: bool,
    pub(crate) exited_sent: bool,
    pub(crate) gone_sent: bool,
    pub(crate) released: bool,
    ending: Option<Ending>,
    /// Descriptors of the child's side, closed as soon as it runs.
    child_side: Vec<OwnedFd>,
    described: Described,
    /// The terminal's master side.
    pub(crate) terminal: Option<OwnedFd>,
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
        notify: Fd,
        null: Fd,
        wanted: &UserSpec,
        user: Option<&User>,
    ) -> Outcome<(Exec, Ends)> {
        let named = user_text(wanted);
        let user = user.ok_or_else(|| failure(Code::UserNotFound, 0, named.as_bytes()))?;
        let mut child_side = Vec::new();
        let mut ends = Ends::default();
        let mut terminal = None;
        let stdio = if request.flags & FLAG_PTY != 0 {
            let (master, slave) = open_terminal(request.rows, request.columns)?;
            let fd = slave.raw();
            child_side.push(slave);
            terminal = Some(master);
            [fd; 3]
        } else if request.flags & FLAG_LOCAL != 0 {
            passed_streams(request, passed, null, &mut child_side)?
        } else {
            framed_streams(request, null, &mut child_side, &mut ends)?
        };
        let plan = plan(request, user, files, stdio, terminal.is_some(), notify)?;
        let monitor = Monitor::start(plan)
            .map_err(|error| failure(Code::Io, error.0, b"starting a process"))?;
        let described = Described {
            program: request.argv[0].clone(),
            cwd: files.cwd(&request.cwd),
            user: named,
        };
        let exec = Exec {
            monitor,
            lost: false,
            own_wait: None,
            reaped: false,
            started_sent: false,
            exited_sent: false,
            gone_sent: false,
            released: false,
            ending: None,
            child_side,
            described,
            terminal,
        };
        Ok((exec, ends))
    }

    /// How far the command has come, as the monitor or the guest itself knows.
    pub(crate) fn state(&self) -> u32 {
        let state = self.monitor.report().state.load(Ordering::Acquire);
        if self.lost && self.own_wait.is_some() {
            state.max(monitor::EXITED)
        } else {
            state
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.monitor.report().pid.load(Ordering::Relaxed)
    }

    /// The child has its own copies of its descriptors, or never will.
    pub(crate) fn close_child_side(&mut self) {
        self.child_side.clear();
    }

    /// Why the start failed, in the contract's terms.
    pub(crate) fn start_failure(&self) -> Failure {
        let report = self.monitor.report();
        let error = sys::Errno(report.errno.load(Ordering::Relaxed));
        let Described { program, cwd, user } = &self.described;
        match report.step.load(Ordering::Relaxed) {
            monitor::STEP_CWD => failure(Code::BadCwd, error.0, cwd),
            monitor::STEP_USER => failure(Code::UserNotFound, error.0, user.as_bytes()),
            monitor::STEP_EXEC => match error {
                sys::E2BIG => failure(Code::ArgumentsTooLong, error.0, program),
                // The file is there, so what is missing is the interpreter that it names.
                sys::ENOENT if self.monitor.plan().programs.iter().any(exists) => {
                    failure(Code::NotExecutable, error.0, program)
                }
                sys::ENOENT => failure(Code::ProgramNotFound, error.0, program),
                _ => failure(Code::NotExecutable, error.0, program),
            },
            _ => failure(Code::Io, error.0, b"starting a process"),
        }
    }

    fn reported(&self) -> sys::Waited {
        let report = self.monitor.report();
        sys::Waited {
            pid: 0,
            status: report.status.load(Ordering::Relaxed),
            user_us: report.user_us.load(Ordering::Relaxed),
            system_us: report.system_us.load(Ordering::Relaxed),
            peak_kib: report.peak_kib.load(Ordering::Relaxed),
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
            background: self.monitor.report().background.load(Ordering::Relaxed) != 0,
            user_us: waited.user_us,
            system_us: waited.system_us,
            peak_kib: waited.peak_kib,
            unread_stdout: 0,
            unread_stderr: 0,
        }
    }

    /// The guest has waited for a child that may be this command's monitor or, if that was killed, its direct process.
    pub(crate) fn waited(&mut self, waited: sys::Waited) -> bool {
        if waited.pid == self.monitor.pid && !self.reaped {
            self.reaped = true;
            let report = self.monitor.report();
            self.lost = !matches!(
                report.state.load(Ordering::Acquire),
                monitor::FAILED | monitor::GONE
            );
            if self.lost && report.ended.load(Ordering::Acquire) {
                // It had seen the exit before.
                self.own_wait = Some(sys::Waited {
                    pid: self.pid(),
                    ..self.reported()
                });
            } else if self.lost && self.pid() == 0 {
                // Killed before it could start anything.
                self.own_wait = Some(sys::Waited {
                    status: sys::SIGKILL,
                    ..waited
                });
            }
            if self.lost && report.state.load(Ordering::Acquire) < monitor::RUNNING {
                report.state.store(monitor::RUNNING, Ordering::Release);
            }
            true
        } else if self.lost && self.own_wait.is_none() && waited.pid == self.pid() {
            self.own_wait = Some(waited);
            true
        } else {
            false
        }
    }

    /// Whether nothing of the command is left to look after.
    pub(crate) fn is_over(&self) -> bool {
        self.reaped
            && if self.lost {
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
            self.monitor
                .report()
                .state
                .store(monitor::GONE, Ordering::Release);
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
        match (self.lost, self.reaped) {
            (true, _) => processes.orphans(),
            (false, true) => Vec::new(),
            (false, false) => processes.below(self.monitor.pid),
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
) -> Outcome<[Fd; 3]> {
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
    notify: Fd,
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
        notify,
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

//! The server: one thread, one event loop, all operations of all connections.

use std::collections::{HashMap, VecDeque};

use crate::exec::{self, Exec, Monitors};
use crate::files::{Files, Outcome, Writer, failure};
use crate::monitor;
use crate::processes::Processes;
use crate::streams::{Pulled, Sink, Source};
use crate::sys::{self, EpollEvent, Fd, OwnedFd};
use crate::tree::{Applier, Step, Walker};
use crate::users::{User, Users};
use crate::wire::bytes::{Decoder, Encoder, Malformed};
use crate::wire::frame::{self, Assembler, FRAME_COST, Frame, MAX_DATA, VERSION, WINDOW};
use crate::wire::message::{
    self, Code, Entry, ExecRequest, FLAG_LOCAL, Failure, STDERR, STDIN, STDOUT, UserSpec, to_guest,
    to_host,
};

/// Output that may wait for a connection before its streams are left alone, in bytes.
const CONGESTED: usize = 1 << 20;
/// How long a listener rests that could not accept, in milliseconds.
const LISTEN_PAUSE: u64 = 100;
/// How long trees may take to end when the guest itself ends and is not process 1, in milliseconds.
const LAST_WAIT: u64 = 2_000;

/// What to serve and for how long.
pub(crate) struct Config {
    /// The first connection: where frames come from and go to (the same for a socket).
    pub(crate) input: OwnedFd,
    pub(crate) output: Option<OwnedFd>,
    /// Accepts further connections.
    pub(crate) listener: Option<OwnedFd>,
    /// Whether the sandbox lives on without any connection.
    pub(crate) detached: bool,
    /// When it ends by itself, in milliseconds from now.
    pub(crate) ttl_ms: Option<u64>,
    /// Absolute; where commands start and relative paths begin.
    pub(crate) workdir: Vec<u8>,
    /// Whether file calls are kept below the workdir, because there is no root of its own.
    pub(crate) confined: bool,
    pub(crate) default_user: UserSpec,
}

/// Serves the place this program was started in: an engine's container, or a directory without isolation. The workdir is the
/// current one; the argument `confined` keeps file calls below it.
pub(crate) fn serve() -> ! {
    // Whoever started this may ignore signals (a shell does so for its background jobs); commands must not.
    for signal in 1..=64 {
        // KILL and STOP cannot be changed and need not be.
        let _ = sys::ignore_signal(signal, false);
    }
    // Orphans come to this process and not to the system's init, so that they are found and reaped.
    let _ = sys::prctl(sys::PR_SET_CHILD_SUBREAPER, 1);
    let _ = sys::prctl(sys::PR_SET_DUMPABLE, 0);
    let workdir = std::env::current_dir().map(|dir| {
        use std::os::unix::ffi::OsStringExt;
        dir.into_os_string().into_vec()
    });
    let (Ok(workdir), Ok(input)) = (workdir, sys::dup_from(0, 3)) else {
        eprintln!("sandbox-init: the working directory or descriptor 0 cannot be used");
        sys::exit(1);
    };
    // One socket serves both directions; two pipes are two.
    let socket = sys::fstat(input.raw()).is_ok_and(|stat| stat.kind() == sys::S_IFSOCK);
    run(Config {
        input,
        output: if socket {
            None
        } else {
            sys::dup_from(1, 3).ok()
        },
        listener: None,
        detached: false,
        ttl_ms: None,
        workdir,
        confined: std::env::args_os()
            .nth(2)
            .is_some_and(|argument| argument == "confined"),
        default_user: UserSpec::Default,
    })
}

/// Serves until the first connection ends (or, detached, until the time to live has passed).
pub(crate) fn run(config: Config) -> ! {
    match Server::new(config) {
        Ok(mut server) => server.serve(),
        Err(error) => {
            eprintln!("sandbox-init: {error}");
            sys::exit(1);
        }
    }
}

#[derive(Clone, Copy)]
enum Target {
    Listener,
    Signals,
    Reports,
    Connection(u32),
    Output(u32),
    Stream {
        connection: u32,
        id: u32,
        stream: u8,
    },
}

struct Server {
    epoll: OwnedFd,
    targets: HashMap<u64, Target>,
    next_token: u64,
    signals: OwnedFd,
    reports: OwnedFd,
    null: OwnedFd,
    listener: Option<OwnedFd>,
    /// When a listener that could not accept is asked again.
    listen_again_at: Option<u64>,
    connections: HashMap<u32, Connection>,
    next_connection: u32,
    /// Commands whose connection is gone.
    abandoned: Vec<Exec>,
    detached: bool,
    ends_at: Option<u64>,
    files: Files,
    monitors: Monitors,
    processes: Processes,
    users: Users,
    default_user: UserSpec,
    /// As whom files are used, if not as root.
    file_user: Option<User>,
}

struct Connection {
    input: OwnedFd,
    output: Option<OwnedFd>,
    output_token: u64,
    waits_to_write: bool,
    assembler: Assembler,
    fds: VecDeque<OwnedFd>,
    out: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    out_offset: usize,
    out_bytes: usize,
    greeted: bool,
    broken: bool,
    operations: HashMap<u32, Operation>,
    execs: HashMap<u32, Exec>,
}

/// An operation that streams. A command's own record is in `execs`; its framed streams are here under its id.
#[derive(Default)]
struct Operation {
    sources: Vec<(u8, Source, Registered)>,
    sinks: Vec<(u8, Sink, Registered)>,
    body: Body,
}

/// A stream's place in the event loop: its token, and whether it is being watched.
#[derive(Default, Clone, Copy)]
struct Registered {
    token: u64,
    watched: bool,
}

#[derive(Default)]
enum Body {
    /// Only streams.
    #[default]
    Streams,
    Write(Writer),
    ReadTree {
        walker: Walker,
        credit: i64,
    },
    WriteTree(Applier),
    /// A directory's entries, sent as credit allows.
    List {
        names: VecDeque<(u8, Vec<u8>)>,
        credit: i64,
    },
    /// A connection that is not there yet; whether it is passed when it is.
    Connecting {
        socket: OwnedFd,
        local: bool,
        port: u16,
        registered: Registered,
    },
    /// A regular file that is sent as its credit allows; never waited for.
    ReadFile(Source),
}

impl Server {
    fn new(config: Config) -> sys::Sys<Server> {
        // Descriptors 0 to 2 belong to no stream, so that a child's can be put there in any order.
        let null = sys::openat(sys::AT_FDCWD, c"/dev/null", sys::O_RDWR, 0)?;
        for fd in 0..3 {
            if null.raw() != fd {
                sys::dup_onto(null.raw(), fd)?;
            }
        }
        let null = sys::dup_from(null.raw(), 3)?;
        sys::set_signal_mask(u64::MAX)?;
        let _ = sys::ignore_signal(sys::SIGPIPE, true);
        sys::umask(0o022);
        let confined = if config.confined {
            let dir = std::ffi::CString::new(config.workdir.clone()).map_err(|_| sys::EINVAL)?;
            Some(sys::openat(
                sys::AT_FDCWD,
                &dir,
                sys::O_PATH | sys::O_DIRECTORY,
                0,
            )?)
        } else {
            None
        };
        let reports = sys::eventfd(true)?;
        let mut server = Server {
            epoll: sys::epoll_create()?,
            targets: HashMap::new(),
            next_token: 0,
            signals: sys::signalfd(1 << (sys::SIGCHLD - 1))?,
            monitors: Monitors::new(reports.raw()),
            reports,
            null,
            listener: config.listener,
            listen_again_at: None,
            connections: HashMap::new(),
            next_connection: 0,
            abandoned: Vec::new(),
            detached: config.detached,
            ends_at: config.ttl_ms.map(|ttl| sys::now_ms().saturating_add(ttl)),
            files: Files::new(config.workdir, confined),
            processes: Processes::new(),
            users: Users::default(),
            default_user: config.default_user,
            file_user: None,
        };
        server.watch(server.signals.raw(), sys::EPOLLIN, Target::Signals)?;
        server.watch(server.reports.raw(), sys::EPOLLIN, Target::Reports)?;
        if let Some(listener) = server.listener.as_ref().map(OwnedFd::raw) {
            sys::set_nonblocking(listener)?;
            server.watch(listener, sys::EPOLLIN, Target::Listener)?;
        }
        server.connect(config.input, config.output)?;
        Ok(server)
    }

    fn serve(&mut self) -> ! {
        let mut events = [EpollEvent::default(); 64];
        let mut next_look = None;
        let mut busy = false;
        loop {
            let now = sys::now_ms();
            let next = next_look
                .into_iter()
                .chain(self.ends_at)
                .chain(self.listen_again_at)
                .min();
            let timeout = match (busy, next) {
                (true, _) => 0,
                (false, Some(at)) => {
                    i32::try_from(u64::saturating_sub(at, now)).unwrap_or(i32::MAX)
                }
                (false, None) => -1,
            };
            let count = sys::epoll_wait(self.epoll.raw(), &mut events, timeout).unwrap_or(0);
            for event in &events[..count] {
                let (token, flags) = (event.data, event.events);
                if let Some(target) = self.targets.get(&token).copied() {
                    self.handle(target, flags);
                }
            }
            if self.ends_at.is_some_and(|at| sys::now_ms() >= at) {
                self.end_everything();
            }
            self.listen_again();
            self.collect_reports();
            busy = self.pump();
            next_look = self.pursue();
            self.flush_all();
        }
    }

    fn handle(&mut self, target: Target, flags: u32) {
        match target {
            Target::Listener => self.accept(),
            Target::Signals => {
                let mut buffer = [0; 1024];
                while sys::read(self.signals.raw(), &mut buffer).is_ok_and(|length| length > 0) {}
                self.reap();
            }
            Target::Reports => {
                let _ = sys::read(self.reports.raw(), &mut [0; 8]);
            }
            // Writing goes on in flush_all.
            Target::Connection(number) if flags & !sys::EPOLLOUT == 0 => {
                let _ = number;
            }
            Target::Connection(number) => self.receive(number),
            Target::Output(number) => {
                if flags & (sys::EPOLLERR | sys::EPOLLHUP) != 0 {
                    self.break_connection(number);
                }
            }
            Target::Stream {
                connection,
                id,
                stream,
            } => self.stream_ready(connection, id, stream),
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = self.listener.as_ref().map(OwnedFd::raw) {
            match sys::accept(listener) {
                // A connection that cannot be watched is closed; its host sees that.
                Ok(socket) => {
                    let _ = self.connect(socket, None);
                }
                Err(sys::EAGAIN) => return,
                Err(_) => {
                    // Out of descriptors: the caller waits in the queue. Asked again later, not at once and for ever.
                    sys::epoll_remove(self.epoll.raw(), listener);
                    self.targets
                        .retain(|_, target| !matches!(target, Target::Listener));
                    self.listen_again_at = Some(sys::now_ms() + LISTEN_PAUSE);
                    return;
                }
            }
        }
    }

    fn listen_again(&mut self) {
        if self.listen_again_at.is_some_and(|at| sys::now_ms() >= at)
            && let Some(listener) = self.listener.as_ref().map(OwnedFd::raw)
        {
            let watched = self.watch(listener, sys::EPOLLIN, Target::Listener);
            self.listen_again_at = watched.err().map(|_| sys::now_ms() + LISTEN_PAUSE);
        }
    }

    fn watch(&mut self, fd: Fd, events: u32, target: Target) -> sys::Sys<u64> {
        self.next_token += 1;
        sys::epoll_add(self.epoll.raw(), fd, events, self.next_token)?;
        self.targets.insert(self.next_token, target);
        Ok(self.next_token)
    }

    fn unwatch(&mut self, fd: Fd, registered: &mut Registered) {
        if registered.watched {
            sys::epoll_remove(self.epoll.raw(), fd);
            self.targets.remove(&registered.token);
            registered.watched = false;
        }
    }

    // --- connections

    fn connect(&mut self, input: OwnedFd, output: Option<OwnedFd>) -> sys::Sys<()> {
        self.next_connection += 1;
        let number = self.next_connection;
        sys::set_nonblocking(input.raw())?;
        let token = self.watch(input.raw(), sys::EPOLLIN, Target::Connection(number))?;
        let mut output_token = token;
        if let Some(output) = &output {
            sys::set_nonblocking(output.raw())?;
            output_token = self.watch(output.raw(), 0, Target::Output(number))?;
        }
        let connection = Connection {
            input,
            output,
            output_token,
            waits_to_write: false,
            assembler: Assembler::default(),
            fds: VecDeque::new(),
            out: VecDeque::new(),
            out_offset: 0,
            out_bytes: 0,
            greeted: false,
            broken: false,
            operations: HashMap::new(),
            execs: HashMap::new(),
        };
        self.connections.insert(number, connection);
        Ok(())
    }

    fn operation(&mut self, number: u32, id: u32) -> Option<&mut Operation> {
        self.connections.get_mut(&number)?.operations.get_mut(&id)
    }

    fn receive(&mut self, number: u32) {
        let mut buffer = [0; MAX_DATA];
        let mut fds = Vec::new();
        // A bounded number of reads, so that one connection cannot keep the others waiting.
        for _ in 0..16 {
            let Some(connection) = self.connections.get_mut(&number) else {
                return;
            };
            let received = if connection.output.is_none() {
                sys::receive_with_fds(connection.input.raw(), &mut buffer, &mut fds)
            } else {
                sys::read(connection.input.raw(), &mut buffer)
            };
            let length = match received {
                Ok(length) if length > 0 => length,
                Err(sys::EAGAIN) => return,
                _ => return self.break_connection(number),
            };
            connection.fds.extend(fds.drain(..));
            connection.assembler.push(&buffer[..length]);
            loop {
                let Some(connection) = self.connections.get_mut(&number) else {
                    return;
                };
                let handled = match connection.assembler.next() {
                    Ok(Some(frame)) => self.dispatch(number, frame),
                    Ok(None) => break,
                    Err(malformed) => Err(malformed),
                };
                if handled.is_err() {
                    return self.break_connection(number);
                }
            }
            if length < buffer.len() {
                return;
            }
        }
    }

    fn break_connection(&mut self, number: u32) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.broken = true;
        }
    }

    fn send(&mut self, number: u32, id: u32, kind: u8, stream: u8, payload: &[u8]) {
        self.send_with(number, id, kind, stream, payload, Vec::new());
    }

    fn send_with(
        &mut self,
        number: u32,
        id: u32,
        kind: u8,
        stream: u8,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) {
        if let Some(connection) = self.connections.get_mut(&number) {
            let bytes = frame::encode(id, kind, stream, fds.len() as u8, payload);
            connection.out_bytes += bytes.len();
            connection.out.push_back((bytes, fds));
        }
    }

    fn fail(&mut self, number: u32, id: u32, failure: &Failure) {
        self.send(number, id, to_host::FAILED, 0, &failure.encode());
    }

    fn flush_all(&mut self) {
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            self.flush(number);
            if self
                .connections
                .get(&number)
                .is_some_and(|connection| connection.broken)
            {
                self.disconnect(number);
            }
        }
    }

    fn flush(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let fd = connection
            .output
            .as_ref()
            .unwrap_or(&connection.input)
            .raw();
        let socket = connection.output.is_none();
        let mut blocked = false;
        while let Some((bytes, fds)) = connection.out.front_mut() {
            let rest = &bytes[connection.out_offset..];
            let sent = if socket {
                let raw: Vec<Fd> = fds.iter().map(OwnedFd::raw).collect();
                sys::send_with_fds(fd, rest, &raw)
            } else {
                sys::write(fd, rest)
            };
            match sent {
                Ok(length) => {
                    // Descriptors go with the first byte.
                    fds.clear();
                    connection.out_offset += length;
                    connection.out_bytes -= length;
                    if connection.out_offset == bytes.len() {
                        connection.out.pop_front();
                        connection.out_offset = 0;
                    }
                }
                Err(sys::EAGAIN) => {
                    blocked = true;
                    break;
                }
                Err(_) => {
                    connection.broken = true;
                    return;
                }
            }
        }
        if blocked != connection.waits_to_write {
            connection.waits_to_write = blocked;
            let write = if blocked { sys::EPOLLOUT } else { 0 };
            let events = if socket { sys::EPOLLIN | write } else { write };
            let _ = sys::epoll_modify(self.epoll.raw(), fd, events, connection.output_token);
        }
    }

    fn disconnect(&mut self, number: u32) {
        if number == 1 && !self.detached {
            // The owner is gone.
            self.end_everything();
        }
        let Some(mut connection) = self.connections.remove(&number) else {
            return;
        };
        sys::epoll_remove(self.epoll.raw(), connection.input.raw());
        if let Some(output) = &connection.output {
            sys::epoll_remove(self.epoll.raw(), output.raw());
        }
        self.targets.retain(|_, target| {
            !matches!(target, Target::Connection(of) | Target::Output(of) if *of == number)
        });
        for (_, mut operation) in connection.operations.drain() {
            self.unwatch_all(&mut operation);
        }
        // Commands of a detached sandbox run on without their host; only their records stay.
        self.abandoned.extend(connection.execs.into_values());
    }

    /// Ends the sandbox. As process 1 its end is everybody's; elsewhere each tree is ended first.
    fn end_everything(&mut self) -> ! {
        if sys::getpid() == 1 {
            sys::exit(0);
        }
        let deadline = sys::now_ms() + LAST_WAIT;
        let mut execs = std::mem::take(&mut self.abandoned);
        execs.extend(
            self.connections
                .values_mut()
                .flat_map(|all| all.execs.drain().map(|(_, exec)| exec)),
        );
        for exec in &mut execs {
            exec.end(0, &self.processes);
        }
        self.abandoned = execs;
        while sys::now_ms() < deadline && self.abandoned.iter().any(|exec| !exec.is_over()) {
            self.reap();
            let _ = self.pursue();
            let _ = sys::epoll_wait(self.epoll.raw(), &mut [EpollEvent::default(); 1], 1);
        }
        sys::exit(0)
    }

    // --- frames from the host

    fn dispatch(&mut self, number: u32, frame: Frame) -> Result<(), Malformed> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let mut passed = VecDeque::new();
        for _ in 0..frame.fds {
            passed.push_back(
                connection
                    .fds
                    .pop_front()
                    .ok_or(Malformed("a descriptor is missing"))?,
            );
        }
        if !connection.greeted {
            if frame.kind != to_guest::HELLO {
                return Err(Malformed("the first frame is no greeting"));
            }
            connection.greeted = true;
            self.send(number, 0, to_host::HELLO, 0, &VERSION.to_le_bytes());
            return Ok(());
        }
        let id = frame.id;
        let begins = matches!(
            frame.kind,
            to_guest::EXEC
                | to_guest::READ_FILE
                | to_guest::WRITE_FILE
                | to_guest::STAT
                | to_guest::LIST
                | to_guest::DELETE
                | to_guest::READ_TREE
                | to_guest::WRITE_TREE
                | to_guest::DIAL
        );
        if begins && (connection.operations.contains_key(&id) || connection.execs.contains_key(&id))
        {
            return Err(Malformed("an id is in use"));
        }
        match frame.kind {
            to_guest::EXEC => {
                let request = ExecRequest::decode(&frame.payload)?;
                if let Err(failed) = self.exec(number, id, &request, passed) {
                    self.fail(number, id, &failed);
                }
            }
            to_guest::DATA => {
                self.as_user(|server| server.data(number, id, frame.stream, frame.payload))?
            }
            to_guest::EOF => self.eof(number, id, frame.stream),
            to_guest::CREDIT => {
                self.credit(number, id, frame.stream, message::number(&frame.payload)?)
            }
            to_guest::END => {
                let grace = Decoder::new(&frame.payload).u64()?;
                if let Some(exec) = connection.execs.get_mut(&id) {
                    exec.end(grace, &self.processes);
                }
            }
            to_guest::RESIZE => {
                let mut decoder = Decoder::new(&frame.payload);
                let (rows, columns) = (decoder.u16()?, decoder.u16()?);
                if let Some(terminal) = connection
                    .execs
                    .get(&id)
                    .and_then(|exec| exec.terminal.as_ref())
                {
                    exec::resize(terminal.raw(), rows, columns);
                }
            }
            to_guest::ABORT => self.drop_operation(number, id),
            to_guest::RELEASE => self.release(number, id, passed),
            to_guest::COMMIT => self.as_user(|server| server.commit(number, id)),
            to_guest::ENTRY => {
                let entry = Entry::decode(&frame.payload)?;
                self.as_user(|server| server.apply(number, id, entry, frame.payload.len() as u32));
            }
            to_guest::SET_USER => {
                let mut decoder = Decoder::new(&frame.payload);
                let user = UserSpec::take(&mut decoder)?;
                decoder.end()?;
                match self.set_user(user) {
                    Ok(()) => self.send(number, id, to_host::DONE, 0, &[]),
                    Err(failed) => self.fail(number, id, &failed),
                }
            }
            to_guest::READ_FILE
            | to_guest::WRITE_FILE
            | to_guest::STAT
            | to_guest::LIST
            | to_guest::DELETE
            | to_guest::READ_TREE
            | to_guest::WRITE_TREE => {
                let path = message::path(&frame.payload)?;
                let local = frame.stream & FLAG_LOCAL != 0;
                if let Err(failed) =
                    self.as_user(|server| server.file_call(number, id, frame.kind, local, path))
                {
                    self.fail(number, id, &failed);
                }
            }
            to_guest::DIAL => {
                let port = Decoder::new(&frame.payload).u16()?;
                let local = frame.stream & FLAG_LOCAL != 0;
                if let Err(failed) = self.dial(number, id, local, port) {
                    self.fail(number, id, &failed);
                }
            }
            _ => return Err(Malformed("an unknown kind of frame")),
        }
        Ok(())
    }

    fn set_user(&mut self, spec: UserSpec) -> Outcome<()> {
        let named = exec::user_text(&spec);
        let user = self
            .users
            .find(&spec)
            .ok_or_else(|| failure(Code::UserNotFound, 0, named.as_bytes()))?;
        if (user.uid, user.gid) != (0, 0) {
            let usable = sys::set_file_user(user.uid, user.gid, &user.groups);
            let back = back_to_root(self.detached);
            usable
                .and(back)
                .map_err(|error| failure(Code::UserNotFound, error.0, named.as_bytes()))?;
            self.file_user = Some(user);
        } else {
            self.file_user = None;
        }
        self.default_user = spec;
        Ok(())
    }

    /// Uses files as the sandbox's default user does.
    fn as_user<T>(&mut self, action: impl FnOnce(&mut Self) -> T) -> T {
        match self.file_user.clone() {
            Some(user) => as_user(&user, self.detached, || action(self)),
            None => action(self),
        }
    }

    fn exec(
        &mut self,
        number: u32,
        id: u32,
        request: &ExecRequest,
        passed: VecDeque<OwnedFd>,
    ) -> Outcome<()> {
        let wanted = match &request.user {
            UserSpec::Default => &self.default_user,
            other => other,
        };
        let user = self.users.find(wanted);
        let (exec, ends) = Exec::start(
            request,
            passed,
            &self.files,
            self.null.raw(),
            wanted,
            user.as_ref(),
            &mut self.monitors,
        )?;
        self.processes.monitors.clone_from(&self.monitors.pids);
        let mut operation = Operation::default();
        let credit = u64::from(WINDOW);
        let source = |fd| Source::new(fd, credit);
        if request.flags & FLAG_LOCAL == 0
            && let Some(terminal) = &exec.terminal
            && let (Ok(read), Ok(write)) = (
                sys::dup_from(terminal.raw(), 3),
                sys::dup_from(terminal.raw(), 3),
            )
        {
            operation
                .sources
                .push((STDOUT, source(read), Registered::default()));
            operation
                .sinks
                .push((STDIN, Sink::new(write), Registered::default()));
        }
        operation.sinks.extend(
            ends.stdin
                .map(|fd| (STDIN, Sink::new(fd), Registered::default())),
        );
        for (stream, fd) in [(STDOUT, ends.stdout), (STDERR, ends.stderr)] {
            operation
                .sources
                .extend(fd.map(|fd| (stream, source(fd), Registered::default())));
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.execs.insert(id, exec);
            if !operation.sources.is_empty() || !operation.sinks.is_empty() {
                connection.operations.insert(id, operation);
            }
        }
        Ok(())
    }

    fn file_call(
        &mut self,
        number: u32,
        id: u32,
        kind: u8,
        local: bool,
        path: &[u8],
    ) -> Outcome<()> {
        let mut fds = Vec::new();
        let mut size = 0u64;
        let body = match kind {
            to_guest::STAT => {
                let (kind, size) = self.files.stat(path)?;
                let mut stat = Encoder::default();
                stat.u8(kind).u64(size);
                self.send(number, id, to_host::STAT, 0, &stat.0);
                return Ok(());
            }
            to_guest::LIST => Body::List {
                names: self.files.list(path)?.into(),
                credit: i64::from(WINDOW),
            },
            to_guest::DELETE => {
                self.files.delete(path)?;
                self.send(number, id, to_host::DONE, 0, &[]);
                return Ok(());
            }
            to_guest::READ_FILE => {
                let (fd, length) = self.files.open_file(path)?;
                size = length;
                if local {
                    fds.push(fd);
                    Body::Streams
                } else {
                    Body::ReadFile(Source::new(fd, u64::from(WINDOW)))
                }
            }
            to_guest::WRITE_FILE => {
                let writer = self.files.write(path)?;
                if local {
                    let copy = sys::dup_from(writer.fd(), 3);
                    fds.push(copy.map_err(|error| failure(Code::Io, error.0, path))?);
                }
                Body::Write(writer)
            }
            to_guest::READ_TREE => Body::ReadTree {
                walker: Walker::new(&self.files, path)?,
                credit: i64::from(WINDOW),
            },
            _ => Body::WriteTree(Applier::new(&self.files, path)?),
        };
        self.send_with(number, id, to_host::OPENED, 0, &size.to_le_bytes(), fds);
        if !matches!(body, Body::Streams)
            && let Some(connection) = self.connections.get_mut(&number)
        {
            connection.operations.insert(
                id,
                Operation {
                    body,
                    ..Operation::default()
                },
            );
        }
        Ok(())
    }

    fn data(
        &mut self,
        number: u32,
        id: u32,
        stream: u8,
        payload: Vec<u8>,
    ) -> Result<(), Malformed> {
        // What arrives for an operation that has failed meanwhile is thrown away.
        let Some(operation) = self.operation(number, id) else {
            return Ok(());
        };
        let length = payload.len();
        let written = match &mut operation.body {
            Body::Write(writer) => writer.write(&payload),
            Body::WriteTree(applier) => applier.data(&payload),
            _ => {
                if let Some((_, sink, _)) =
                    operation.sinks.iter_mut().find(|(of, ..)| *of == stream)
                {
                    if sink.queued() + length > WINDOW as usize {
                        return Err(Malformed("more data than there was credit for"));
                    }
                    sink.queue(payload);
                    self.drain(number, id, stream);
                }
                return Ok(());
            }
        };
        match written {
            Ok(()) => self.send(
                number,
                id,
                to_host::CREDIT,
                STDIN,
                &(length as u32).to_le_bytes(),
            ),
            Err(failed) => {
                self.fail(number, id, &failed);
                self.drop_operation(number, id);
            }
        }
        Ok(())
    }

    fn eof(&mut self, number: u32, id: u32, stream: u8) {
        if let Some(operation) = self.operation(number, id)
            && let Some((_, sink, _)) = operation.sinks.iter_mut().find(|(of, ..)| *of == stream)
        {
            sink.ended = true;
            self.drain(number, id, stream);
        }
    }

    fn credit(&mut self, number: u32, id: u32, stream: u8, bytes: u32) {
        let Some(operation) = self.operation(number, id) else {
            return;
        };
        match &mut operation.body {
            Body::ReadTree { credit, .. } | Body::List { credit, .. } => {
                *credit = credit.saturating_add(i64::from(bytes));
            }
            Body::ReadFile(source) => {
                source.credit = source.credit.saturating_add(u64::from(bytes))
            }
            _ => {
                if let Some((_, source, _)) =
                    operation.sources.iter_mut().find(|(of, ..)| *of == stream)
                {
                    source.credit = source.credit.saturating_add(u64::from(bytes));
                }
            }
        }
    }

    fn commit(&mut self, number: u32, id: u32) {
        let operation = self
            .connections
            .get_mut(&number)
            .and_then(|all| all.operations.remove(&id));
        let done = match operation.map(|operation| operation.body) {
            Some(Body::Write(writer)) => writer.commit(),
            Some(Body::WriteTree(applier)) => applier.finish(),
            _ => return,
        };
        match done {
            Ok(()) => self.send(number, id, to_host::DONE, 0, &[]),
            Err(failed) => self.fail(number, id, &failed),
        }
    }

    fn apply(&mut self, number: u32, id: u32, entry: Entry, length: u32) {
        let Some(Operation {
            body: Body::WriteTree(applier),
            ..
        }) = self.operation(number, id)
        else {
            return;
        };
        match applier.entry(entry) {
            Ok(()) => self.send(number, id, to_host::CREDIT, STDIN, &length.to_le_bytes()),
            Err(failed) => {
                self.fail(number, id, &failed);
                self.drop_operation(number, id);
            }
        }
    }

    fn release(&mut self, number: u32, id: u32, passed: VecDeque<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let Some(exec) = connection.execs.get_mut(&id) {
            exec.released = true;
            exec.terminal = None;
        }
        let operation = connection.operations.entry(id).or_default();
        for (index, fd) in (0u8..).zip(passed) {
            if sys::set_nonblocking(fd.raw()).is_ok() {
                // Numbers of their own: the streams' are taken by framed ones.
                operation.sources.push((
                    u8::MAX - index,
                    Source::new(fd, 0),
                    Registered::default(),
                ));
            }
        }
        for (_, source, _) in &mut operation.sources {
            source.discard = true;
        }
        let mut sinks = std::mem::take(&mut operation.sinks);
        for (_, sink, registered) in &mut sinks {
            self.unwatch(sink.fd.raw(), registered);
        }
        self.forget_if_idle(number, id);
    }

    fn unwatch_all(&mut self, operation: &mut Operation) {
        for (_, source, registered) in &mut operation.sources {
            self.unwatch(source.fd.raw(), registered);
        }
        for (_, sink, registered) in &mut operation.sinks {
            self.unwatch(sink.fd.raw(), registered);
        }
        if let Body::Connecting {
            socket, registered, ..
        } = &mut operation.body
        {
            self.unwatch(socket.raw(), registered);
        }
    }

    fn drop_operation(&mut self, number: u32, id: u32) {
        let operation = self
            .connections
            .get_mut(&number)
            .and_then(|all| all.operations.remove(&id));
        if let Some(mut operation) = operation {
            self.unwatch_all(&mut operation);
        }
    }

    fn forget_if_idle(&mut self, number: u32, id: u32) {
        if let Some(connection) = self.connections.get_mut(&number)
            && let Some(operation) = connection.operations.get(&id)
            && operation.sources.is_empty()
            && operation.sinks.is_empty()
            && matches!(operation.body, Body::Streams)
        {
            connection.operations.remove(&id);
        }
    }

    // --- ports

    fn dial(&mut self, number: u32, id: u32, local: bool, port: u16) -> Outcome<()> {
        let mut last = sys::ECONNREFUSED;
        for (family, address) in [
            (sys::AF_INET, address4(port)),
            (sys::AF_INET6, address6(port)),
        ] {
            let connecting = sys::socket(family, sys::SOCK_STREAM).and_then(|socket| {
                match sys::connect(socket.raw(), &address) {
                    Ok(()) => Ok((socket, true)),
                    Err(sys::EINPROGRESS) => Ok((socket, false)),
                    Err(error) => Err(error),
                }
            });
            match connecting {
                Ok((socket, true)) => {
                    self.connected(number, id, local, socket);
                    return Ok(());
                }
                Ok((socket, false)) => {
                    let target = Target::Stream {
                        connection: number,
                        id,
                        stream: STDOUT,
                    };
                    let token = self
                        .watch(socket.raw(), sys::EPOLLOUT, target)
                        .map_err(|error| not_connected(error, port))?;
                    let registered = Registered {
                        token,
                        watched: true,
                    };
                    let body = Body::Connecting {
                        socket,
                        local,
                        port,
                        registered,
                    };
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.operations.insert(
                            id,
                            Operation {
                                body,
                                ..Operation::default()
                            },
                        );
                    }
                    return Ok(());
                }
                // Without IPv6 in the kernel or on the loopback the answer of IPv4 counts.
                Err(error) if family == sys::AF_INET => last = error,
                Err(_) => {}
            }
        }
        Err(not_connected(last, port))
    }

    fn connected(&mut self, number: u32, id: u32, local: bool, socket: OwnedFd) {
        let size = 0u64.to_le_bytes();
        if local {
            self.send_with(number, id, to_host::OPENED, 0, &size, vec![socket]);
            return;
        }
        let Ok(copy) = sys::dup_from(socket.raw(), 3) else {
            self.fail(number, id, &not_connected(sys::EMFILE, 0));
            return;
        };
        let operation = Operation {
            sources: vec![(
                STDOUT,
                Source::new(socket, u64::from(WINDOW)),
                Registered::default(),
            )],
            sinks: vec![(STDIN, Sink::new(copy), Registered::default())],
            body: Body::Streams,
        };
        self.send(number, id, to_host::OPENED, 0, &size);
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.operations.insert(id, operation);
        }
    }

    fn connecting_ended(&mut self, number: u32, id: u32) {
        let operation = self
            .connections
            .get_mut(&number)
            .and_then(|all| all.operations.remove(&id));
        let Some(mut operation) = operation else {
            return;
        };
        self.unwatch_all(&mut operation);
        if let Body::Connecting {
            socket,
            local,
            port,
            ..
        } = operation.body
        {
            match sys::socket_error(socket.raw()) {
                Ok(()) => self.connected(number, id, local, socket),
                Err(error) => self.fail(number, id, &not_connected(error, port)),
            }
        }
    }

    // --- streams

    fn stream_ready(&mut self, number: u32, id: u32, stream: u8) {
        let Some(operation) = self.operation(number, id) else {
            return;
        };
        if matches!(operation.body, Body::Connecting { .. }) {
            self.connecting_ended(number, id);
        } else if stream == STDIN {
            self.drain(number, id, stream);
        } else {
            self.pull(number, id, stream);
        }
    }

    /// Reads one piece of a source and sends it.
    fn pull(&mut self, number: u32, id: u32, stream: u8) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let congested = connection.out_bytes > CONGESTED;
        let Some(operation) = connection.operations.get_mut(&id) else {
            return;
        };
        let Some(index) = operation.sources.iter().position(|(of, ..)| *of == stream) else {
            return;
        };
        let (_, source, registered) = &mut operation.sources[index];
        if congested && !source.discard {
            let (fd, mut place) = (source.fd.raw(), *registered);
            self.unwatch(fd, &mut place);
            self.set_registered(number, id, stream, place);
            return;
        }
        match source.pull() {
            Pulled::Data(data) => self.send(number, id, to_host::DATA, stream, &data),
            Pulled::Nothing => {}
            Pulled::End => {
                let (_, source, mut registered) = operation.sources.remove(index);
                self.unwatch(source.fd.raw(), &mut registered);
                if !source.discard {
                    self.send(number, id, to_host::EOF, stream, &[]);
                }
                self.forget_if_idle(number, id);
            }
        }
    }

    fn set_registered(&mut self, number: u32, id: u32, stream: u8, registered: Registered) {
        if let Some(operation) = self.operation(number, id)
            && let Some((_, _, place)) = operation.sources.iter_mut().find(|(of, ..)| *of == stream)
        {
            *place = registered;
        }
    }

    /// Writes what waits in a sink, gives the host credit for it, and closes the sink at its end.
    fn drain(&mut self, number: u32, id: u32, stream: u8) {
        let Some(operation) = self.operation(number, id) else {
            return;
        };
        let Some(index) = operation.sinks.iter().position(|(of, ..)| *of == stream) else {
            return;
        };
        let (_, sink, mut registered) = operation.sinks.remove(index);
        let mut sink = sink;
        let fd = sink.fd.raw();
        match sink.flush() {
            Ok(0) => {}
            Ok(length) => self.send(
                number,
                id,
                to_host::CREDIT,
                stream,
                &(length as u32).to_le_bytes(),
            ),
            Err(_) => {
                self.unwatch(fd, &mut registered);
                self.send(number, id, to_host::CLOSED, stream, &[]);
                return self.forget_if_idle(number, id);
            }
        }
        if sink.is_finished() {
            self.unwatch(fd, &mut registered);
            end_of_input(&sink.fd);
            return self.forget_if_idle(number, id);
        }
        if sink.queued() == 0 {
            self.unwatch(fd, &mut registered);
        } else if !registered.watched
            && let Ok(token) = self.watch(
                fd,
                sys::EPOLLOUT,
                Target::Stream {
                    connection: number,
                    id,
                    stream,
                },
            )
        {
            registered = Registered {
                token,
                watched: true,
            };
        }
        if let Some(operation) = self.operation(number, id) {
            operation.sinks.push((stream, sink, registered));
        }
    }

    /// Registers sources that may be read again and goes on with files and trees. Whether there is more to do at once.
    fn pump(&mut self) -> bool {
        let mut busy = false;
        let uncongested = |connection: &&Connection| connection.out_bytes <= CONGESTED;
        let ready: Vec<(u32, Vec<u32>)> = self
            .connections
            .iter()
            .filter(|(_, connection)| uncongested(connection) && !connection.operations.is_empty())
            .map(|(number, connection)| (*number, connection.operations.keys().copied().collect()))
            .collect();
        for (number, ids) in ready {
            for id in ids {
                busy |= self.pump_operation(number, id);
            }
        }
        busy
    }

    fn pump_operation(&mut self, number: u32, id: u32) -> bool {
        let (file_user, detached) = (self.file_user.clone(), self.detached);
        let Some(operation) = self.operation(number, id) else {
            return false;
        };
        match &mut operation.body {
            Body::ReadFile(source) => {
                if !source.wants() {
                    return false;
                }
                match source.pull() {
                    Pulled::Data(data) => {
                        self.send(number, id, to_host::DATA, STDOUT, &data);
                        true
                    }
                    Pulled::Nothing => false,
                    Pulled::End => self.stream_ended(number, id),
                }
            }
            Body::ReadTree { walker, credit } => {
                if *credit <= 0 {
                    return false;
                }
                let step = match &file_user {
                    Some(user) => as_user(user, detached, || walker.next()),
                    None => walker.next(),
                };
                let (kind, payload) = match step {
                    Ok(Step::Entry(entry)) => (to_host::ENTRY, entry.encode()),
                    Ok(Step::Data(data)) => (to_host::DATA, data),
                    Ok(Step::Done) => return self.stream_ended(number, id),
                    Err(failed) => {
                        self.drop_operation(number, id);
                        self.fail(number, id, &failed);
                        return false;
                    }
                };
                *credit -= (payload.len() + FRAME_COST) as i64;
                self.send(number, id, kind, STDOUT, &payload);
                true
            }
            Body::List { names, credit } => {
                if *credit <= 0 {
                    return false;
                }
                let some: Vec<Vec<u8>> = names
                    .drain(..names.len().min(200))
                    .map(|(kind, name)| [&[kind][..], &name].concat())
                    .collect();
                if some.is_empty() {
                    return self.stream_ended(number, id);
                }
                let mut list = Encoder::default();
                list.list(some.iter().map(Vec::as_slice));
                *credit -= (list.0.len() + FRAME_COST) as i64;
                self.send(number, id, to_host::NAMES, STDOUT, &list.0);
                true
            }
            Body::Streams => {
                self.register_sources(number, id);
                false
            }
            Body::Write(_) | Body::WriteTree(_) | Body::Connecting { .. } => false,
        }
    }

    fn stream_ended(&mut self, number: u32, id: u32) -> bool {
        self.drop_operation(number, id);
        self.send(number, id, to_host::EOF, STDOUT, &[]);
        false
    }

    fn register_sources(&mut self, number: u32, id: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection
            .execs
            .get(&id)
            .is_some_and(|exec| !exec.started_sent)
        {
            // The host learns of the start before it gets output.
            return;
        }
        let Some(operation) = connection.operations.get_mut(&id) else {
            return;
        };
        let changes: Vec<(u8, Fd, Registered, bool)> = operation
            .sources
            .iter()
            .filter(|(_, source, registered)| registered.watched != source.wants())
            .map(|(stream, source, registered)| {
                (*stream, source.fd.raw(), *registered, source.wants())
            })
            .collect();
        for (stream, fd, mut registered, wanted) in changes {
            if !wanted {
                self.unwatch(fd, &mut registered);
            } else if let Ok(token) = self.watch(
                fd,
                sys::EPOLLIN,
                Target::Stream {
                    connection: number,
                    id,
                    stream,
                },
            ) {
                registered = Registered {
                    token,
                    watched: true,
                };
            }
            self.set_registered(number, id, stream, registered);
        }
    }

    // --- commands

    /// Waits for every child that has ended, and wakes monitors that the payload has stopped.
    fn reap(&mut self) {
        let mut ended = Vec::new();
        while let Ok(waited) = sys::wait4(-1, sys::WNOHANG | sys::WUNTRACED) {
            if waited.pid == 0 {
                break;
            }
            if waited.status & 0xff != 0x7f {
                ended.push(waited);
            } else if self.monitors.pids.contains(&waited.pid) {
                let _ = sys::kill(waited.pid, sys::SIGCONT);
            }
        }
        // Monitors first: only then is a direct process known to be the guest's to wait for.
        ended.sort_by_key(|waited| !self.monitors.pids.contains(&waited.pid));
        for waited in ended {
            self.monitors.waited(waited);
            let Server {
                connections,
                abandoned,
                monitors,
                ..
            } = self;
            let _ = execs(connections, abandoned).any(|exec| exec.waited(waited, monitors));
        }
        self.processes.monitors.clone_from(&self.monitors.pids);
    }

    /// Sends what the monitors have reported since the last time.
    fn collect_reports(&mut self) {
        let Server {
            connections,
            abandoned,
            monitors,
            ..
        } = self;
        abandoned.retain_mut(|exec| {
            exec.give_back_monitor(monitors);
            !exec.is_over() && exec.state() != monitor::FAILED
        });
        let mut sends: Vec<Said> = Vec::new();
        for (number, connection) in connections {
            let Connection {
                execs, operations, ..
            } = connection;
            execs.retain(|id, exec| {
                let mut send = |kind, payload, fds| sends.push((*number, *id, kind, payload, fds));
                let state = exec.state();
                if state == monitor::FAILED {
                    send(to_host::FAILED, exec.start_failure().encode(), Vec::new());
                    exec.give_back_monitor(monitors);
                    return false;
                }
                let operation = operations.get(id);
                if state >= monitor::RUNNING && !exec.started_sent {
                    exec.started_sent = true;
                    // The host gets a terminal that is passed; a framed one has its copies.
                    let terminal = exec.terminal.as_ref().filter(|_| operation.is_none());
                    let fds = terminal.and_then(|terminal| sys::dup_from(terminal.raw(), 3).ok());
                    let pid = (exec.pid() as u32).to_le_bytes().to_vec();
                    if !exec.has_told(monitor::TOLD_START) {
                        send(to_host::STARTED, pid, fds.into_iter().collect());
                    }
                }
                if state >= monitor::EXITED && !exec.exited_sent {
                    exec.exited_sent = true;
                    exec.terminal = None;
                    let mut exited = exec.exited();
                    for (stream, source, _) in
                        operation.iter().flat_map(|operation| &operation.sources)
                    {
                        match *stream {
                            STDOUT => exited.unread_stdout = sys::bytes_ready(source.fd.raw()),
                            STDERR => exited.unread_stderr = sys::bytes_ready(source.fd.raw()),
                            _ => {}
                        }
                    }
                    if !exec.has_told(monitor::TOLD_EXIT) {
                        send(to_host::EXITED, exited.encode(), Vec::new());
                    }
                }
                if state == monitor::GONE && exec.is_ending() && !exec.gone_sent {
                    exec.gone_sent = true;
                    send(to_host::GONE, Vec::new(), Vec::new());
                }
                exec.give_back_monitor(monitors);
                !(exec.released && exec.is_over() && (!exec.is_ending() || exec.gone_sent))
            });
        }
        for (number, id, kind, payload, fds) in sends {
            if kind == to_host::FAILED {
                self.drop_operation(number, id);
            }
            self.send_with(number, id, kind, 0, &payload, fds);
        }
    }

    /// Goes on with trees that are being ended; when to look again.
    fn pursue(&mut self) -> Option<u64> {
        let now = sys::now_ms();
        let Server {
            connections,
            abandoned,
            processes,
            ..
        } = self;
        execs(connections, abandoned)
            .filter_map(|exec| exec.pursue(now, processes))
            .min()
    }
}

/// A frame that a report gives rise to: connection, id, kind, payload, descriptors.
type Said = (u32, u32, u8, Vec<u8>, Vec<OwnedFd>);

fn execs<'a>(
    connections: &'a mut HashMap<u32, Connection>,
    abandoned: &'a mut [Exec],
) -> impl Iterator<Item = &'a mut Exec> {
    connections
        .values_mut()
        .flat_map(|connection| connection.execs.values_mut())
        .chain(abandoned)
}

/// Runs something with the rights of a user over files. If they cannot be taken on or given back, the sandbox ends: nothing may be
/// done with the wrong ones.
fn as_user<T>(user: &User, detached: bool, action: impl FnOnce() -> T) -> T {
    if sys::set_file_user(user.uid, user.gid, &user.groups).is_err() {
        sys::exit(1);
    }
    let _ = sys::prctl(sys::PR_SET_DUMPABLE, 0);
    let result = action();
    if back_to_root(detached).is_err() {
        sys::exit(1);
    }
    result
}

fn back_to_root(detached: bool) -> sys::Sys<()> {
    sys::set_file_user(0, 0, &[])?;
    // A change of ids makes the process what the system says of set-id programs, which may be traceable.
    sys::prctl(sys::PR_SET_DUMPABLE, 0)?;
    if !detached {
        // Every change of the ids clears it.
        sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL as usize)?;
    }
    Ok(())
}

fn not_connected(error: sys::Errno, port: u16) -> Failure {
    let code = if error == sys::ECONNREFUSED {
        Code::ConnectionRefused
    } else {
        Code::Io
    };
    failure(code, error.0, port.to_string().as_bytes())
}

/// A socket's other direction stays open; a pipe's end is closed by dropping it; a terminal gets its end-of-file character.
fn end_of_input(fd: &OwnedFd) {
    const SHUT_WR: usize = 1;
    let Ok(stat) = sys::fstat(fd.raw()) else {
        return;
    };
    match stat.kind() {
        sys::S_IFSOCK => sys::shutdown(fd.raw(), SHUT_WR),
        sys::S_IFCHR => {
            let _ = sys::write(fd.raw(), b"\x04");
        }
        _ => {}
    }
}

fn address4(port: u16) -> Vec<u8> {
    let family = (sys::AF_INET as u16).to_ne_bytes();
    [&family[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat()
}

fn address6(port: u16) -> Vec<u8> {
    let family = (sys::AF_INET6 as u16).to_ne_bytes();
    let mut loopback = [0; 16];
    loopback[15] = 1;
    [
        &family[..],
        &port.to_be_bytes(),
        &[0; 4],
        &loopback,
        &[0; 4],
    ]
    .concat()
}

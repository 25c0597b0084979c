//! Starts the in-sandbox program and talks with it until the sandbox stands.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use sandbox_guest::setup::{MAX_DESCRIPTORS, Reply, Setup, payload_length};

use crate::executable::Executable;
use crate::process::Process;

/// A set-up takes about a millisecond; whoever needs this long hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const SUID_DUMPABLE: &str = "/proc/sys/fs/suid_dumpable";

/// Starts processes from one thread that lives as long as it: they are told to die when the thread that started them ends, not
/// when the process does. Sandboxes come from one of these processes, the nursery.
#[derive(Debug)]
pub(crate) struct Launcher {
    requests: mpsc::Sender<Request>,
    nursery: Mutex<Option<Nursery>>,
}

#[derive(Debug)]
struct Nursery {
    requests: UnixStream,
    process: Child,
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // It ends with its input.
        let _ = self.requests.shutdown(Shutdown::Both);
        let _ = self.process.wait();
    }
}

struct Request {
    arguments: &'static [&'static str],
    input: OwnedFd,
    directory: Option<std::path::PathBuf>,
    answer: mpsc::Sender<io::Result<Child>>,
}

/// What a set-up gave.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) stream: UnixStream,
    pub(crate) process: Process,
    pub(crate) landlock: u32,
    pub(crate) bash: bool,
}

/// Why there is no sandbox.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A step of the set-up failed; nothing foreign has run.
    Step {
        step: String,
        errno: i32,
        detail: String,
    },
    /// The program could not be started, or did not answer.
    Program {
        doing: &'static str,
        error: io::Error,
    },
}

fn program(doing: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Program { doing, error }
}

impl Launcher {
    pub(crate) fn new(executable: Executable) -> io::Result<Self> {
        let (requests, received) = mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("sandbox-launcher".into())
            .spawn(move || {
                for request in received {
                    let mut command = Command::new(executable.path());
                    command
                        .arg0("sandbox-init")
                        .args(request.arguments)
                        .env_clear();
                    command
                        .stdin(request.input)
                        .stdout(Stdio::null())
                        .stderr(Stdio::null());
                    if let Some(directory) = request.directory {
                        command.current_dir(directory);
                    }
                    // A requester that went away has dropped its end of the socket, and the program ends by itself.
                    let _ = request.answer.send(command.spawn());
                }
            })?;
        Ok(Launcher {
            requests,
            nursery: Mutex::default(),
        })
    }

    /// Starts the program with a socket as its standard input; gives the other end.
    pub(crate) fn start(
        &self,
        arguments: &'static [&'static str],
        directory: Option<&std::path::Path>,
    ) -> io::Result<(UnixStream, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (answer, answered) = mpsc::channel();
        let request = Request {
            arguments,
            input: theirs.into(),
            directory: directory.map(Into::into),
            answer,
        };
        let gone = || io::Error::other("the launcher's thread is gone");
        self.requests.send(request).map_err(|_| gone())?;
        let child = answered.recv().map_err(|_| gone())??;
        Ok((ours, child))
    }

    /// Makes a sandbox as `setup` says; `descriptors` go with it in the order that it documents.
    pub(crate) fn launch(
        &self,
        setup: &Setup,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Launched, Failure> {
        refuse_traceable_supervisor()?;
        let (stream, theirs) = UnixStream::pair().map_err(program("making a control socket"))?;
        self.conceive(theirs)
            .map_err(program("starting the set-up program"))?;
        let (process, landlock, bash) = negotiate(&stream, setup, descriptors)?;
        Ok(Launched {
            stream,
            process,
            landlock,
            bash,
        })
    }
}

impl Launcher {
    /// Has the nursery fork for a sandbox with this control socket. A nursery that was killed is replaced.
    fn conceive(&self, control: UnixStream) -> io::Result<()> {
        let mut nursery = self.nursery.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nursery) = &*nursery
            && send_with_descriptors(&nursery.requests, &[0], &[control.as_fd()]).is_ok()
        {
            return Ok(());
        }
        let (requests, process) = self.start(&["nursery"], None)?;
        let fresh = Nursery { requests, process };
        send_with_descriptors(&fresh.requests, &[0], &[control.as_fd()])?;
        *nursery = Some(fresh);
        Ok(())
    }
}

/// With this setting a process that changes its ids, as a supervisor does to use files as somebody, can be traced from then on.
fn refuse_traceable_supervisor() -> Result<(), Failure> {
    let setting = std::fs::read_to_string(SUID_DUMPABLE).unwrap_or_default();
    if setting.trim() != "1" {
        return Ok(());
    }
    Err(Failure::Step {
        step: "supervision".into(),
        errno: libc::EPERM,
        detail: "commands could trace the supervisor, because fs.suid_dumpable is 1".into(),
    })
}

fn negotiate(
    stream: &UnixStream,
    setup: &Setup,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(Process, u32, bool), Failure> {
    stream
        .set_read_timeout(Some(PATIENCE))
        .map_err(program("preparing the control socket"))?;
    send_with_descriptors(stream, &setup.encode(), descriptors)
        .map_err(program("sending the set-up"))?;
    let mut process = None;
    loop {
        match receive(stream) {
            Ok((Reply::Started { pid }, Some(descriptor))) => {
                process = Some(Process::new(descriptor, pid));
            }
            Ok((Reply::Ready { landlock, bash }, None)) => {
                let process = process.ok_or_else(|| {
                    program("reading the answer")(io::Error::other("no process came with it"))
                })?;
                stream
                    .set_read_timeout(None)
                    .map_err(program("preparing the control socket"))?;
                return Ok((process, landlock, bash));
            }
            Ok((
                Reply::Failed {
                    step,
                    errno,
                    detail,
                },
                None,
            )) => {
                reap(process);
                return Err(Failure::Step {
                    step,
                    errno,
                    detail,
                });
            }
            Ok(_) => {
                reap(process);
                return Err(program("reading the answer")(io::Error::other(
                    "it made no sense",
                )));
            }
            Err(error) => {
                reap(process);
                return Err(program("waiting for the set-up")(error));
            }
        }
    }
}

fn reap(process: Option<Process>) {
    if let Some(process) = process {
        let _ = process.kill();
        let _ = process.wait(PATIENCE);
    }
}

/// Sends a whole message; the descriptors go with its first byte.
pub(crate) fn send_with_descriptors(
    stream: &UnixStream,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(
        descriptors.len() <= MAX_DESCRIPTORS,
        "a set-up names at most {MAX_DESCRIPTORS}"
    );
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut sent = 0;
    while sent < message.len() {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        match sendmsg(
            stream,
            &[IoSlice::new(&message[sent..])],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(count) => sent += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Exactly one message, so that what follows it stays in the socket for the client of the protocol.
fn receive(mut stream: &UnixStream) -> io::Result<(Reply, Option<OwnedFd>)> {
    let mut descriptor = None;
    let mut head = [0; 4];
    let mut filled = 0;
    while filled < head.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut head[filled..])];
        let received = match recvmsg(
            stream.as_fd(),
            &mut buffers,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.last();
            }
        }
        if received.bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it ended without an answer",
            ));
        }
        filled += received.bytes;
    }
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the answer is damaged");
    let mut payload = vec![0; payload_length(head).ok_or_else(malformed)?];
    stream.read_exact(&mut payload)?;
    Ok((Reply::decode(&payload).ok_or_else(malformed)?, descriptor))
}

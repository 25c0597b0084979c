//! The caller's standard streams. Reading and writing them can block for as long as others like, so each direction has a thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sandbox_core::{Chunk, ExecStdin, OutputStream};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

const BUFFER: usize = 64 * 1024;

/// Whether standard input gives nothing for ever, as `/dev/null` does.
pub(crate) fn input_is_null() -> bool {
    use std::os::linux::fs::MetadataExt;
    let null = std::fs::metadata("/dev/null").map(|file| file.st_rdev());
    let input = std::fs::metadata("/proc/self/fd/0").map(|file| file.st_rdev());
    matches!((null, input), (Ok(null), Ok(input)) if null == input)
}

/// Passes standard input on to a command, to its end or until the command no longer reads.
pub(crate) fn pass_input(mut stdin: ExecStdin) {
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(2);
    thread::spawn(move || {
        let mut buffer = vec![0; BUFFER];
        // An input that cannot be read ends like one that is over: the command decides what that means.
        while let Ok(length @ 1..) = read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(data) = receiver.recv().await {
            if stdin.write_all(&data).await.is_err() {
                return;
            }
        }
        // A command that has gone away needs no end of file.
        let _ = stdin.shutdown().await;
    });
}

/// Writes a command's output to the caller's standard streams.
pub(crate) struct Output {
    /// Takes chunks while the reader of standard output is there.
    pub(crate) chunks: mpsc::Sender<Chunk>,
    /// Ready when everything has been written, or standard output can no longer be.
    pub(crate) done: oneshot::Receiver<io::Result<()>>,
}

pub(crate) fn output() -> Output {
    let (chunks, mut receiver) = mpsc::channel::<Chunk>(1);
    let (sender, done) = oneshot::channel();
    thread::spawn(move || {
        let mut result = Ok(());
        while let Some(chunk) = receiver.blocking_recv() {
            match chunk.stream {
                OutputStream::Stdout => {
                    result = write_all(rustix::stdio::stdout(), &chunk.data);
                    if result.is_err() {
                        break;
                    }
                }
                // Whoever closed standard error does not want it.
                OutputStream::Stderr => drop(write_all(rustix::stdio::stderr(), &chunk.data)),
            }
        }
        drop(receiver);
        // The caller has stopped waiting only if it is on its way out.
        let _ = sender.send(result);
    });
    Output { chunks, done }
}

fn read(buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut *buffer) {
            Ok(length) => return Ok(length),
            Err(Errno::INTR) => {}
            // Somebody who shares the stream has made it non-blocking.
            Err(Errno::AGAIN) => wait_for(rustix::stdio::stdin(), PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_all(stream: BorrowedFd<'_>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(stream, data) {
            Ok(length) => data = &data[length..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait_for(stream: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::from_borrowed_fd(stream, flags)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

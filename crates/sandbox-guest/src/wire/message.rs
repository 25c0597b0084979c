//! What the frames say.

use super::bytes::{Decoder, Encoder, Malformed};

/// Kinds of frames from the host to the guest.
pub(crate) mod to_guest {
    /// The first frame: version.
    pub(crate) const HELLO: u8 = 1;
    /// Start a command: [`super::ExecRequest`].
    pub(crate) const EXEC: u8 = 2;
    /// Bytes of a stream.
    pub(crate) const DATA: u8 = 3;
    /// End of a stream.
    pub(crate) const EOF: u8 = 4;
    /// A stream's receiver has consumed: u32 bytes.
    pub(crate) const CREDIT: u8 = 5;
    /// End a command's tree: u64 grace in milliseconds.
    pub(crate) const END: u8 = 6;
    /// Resize a terminal: u16 rows, u16 columns.
    pub(crate) const RESIZE: u8 = 7;
    /// Give an operation up and free what it holds.
    pub(crate) const ABORT: u8 = 8;
    /// A command's result is published: discard what it still writes. May bring the read ends of its pipes.
    pub(crate) const RELEASE: u8 = 9;
    /// Open a file for reading: path.
    pub(crate) const READ_FILE: u8 = 10;
    /// Open a file for writing: path.
    pub(crate) const WRITE_FILE: u8 = 11;
    /// All content of a written file is there: put it in place.
    pub(crate) const COMMIT: u8 = 12;
    /// What is at a path: path.
    pub(crate) const STAT: u8 = 13;
    /// List a directory: path.
    pub(crate) const LIST: u8 = 14;
    /// Delete a file: path.
    pub(crate) const DELETE: u8 = 15;
    /// Send a tree: path.
    pub(crate) const READ_TREE: u8 = 16;
    /// Receive a tree: path.
    pub(crate) const WRITE_TREE: u8 = 17;
    /// Connect to a port: u16.
    pub(crate) const DIAL: u8 = 18;
    /// One entry of a tree that is being written: [`super::Entry`].
    pub(crate) const ENTRY: u8 = 19;
    /// The default user of commands and file calls: [`super::UserSpec`].
    pub(crate) const SET_USER: u8 = 20;
}

/// Kinds of frames from the guest to the host.
pub(crate) mod to_host {
    /// The answer to the first frame: version.
    pub(crate) const HELLO: u8 = 64;
    /// A command runs: u32 pid. May bring the terminal.
    pub(crate) const STARTED: u8 = 65;
    /// An operation failed: [`super::Failure`].
    pub(crate) const FAILED: u8 = 66;
    /// A command's direct process ended: [`super::Exited`].
    pub(crate) const EXITED: u8 = 67;
    /// No process of a command's tree lives any more.
    pub(crate) const GONE: u8 = 68;
    /// Bytes of a stream.
    pub(crate) const DATA: u8 = 69;
    /// End of a stream.
    pub(crate) const EOF: u8 = 70;
    /// A stream's receiver has consumed: u32 bytes.
    pub(crate) const CREDIT: u8 = 71;
    /// An operation has succeeded.
    pub(crate) const DONE: u8 = 72;
    /// The answer to STAT: u8 kind, u64 size.
    pub(crate) const STAT: u8 = 73;
    /// Some entries of a directory: a list of one kind byte and the name.
    pub(crate) const NAMES: u8 = 74;
    /// A file or connection is open: u64 size. May bring it.
    pub(crate) const OPENED: u8 = 75;
    /// One entry of a tree that is being read: [`super::Entry`].
    pub(crate) const ENTRY: u8 = 76;
    /// Nobody reads a stream any more.
    pub(crate) const CLOSED: u8 = 77;
}

pub(crate) const STDIN: u8 = 0;
pub(crate) const STDOUT: u8 = 1;
pub(crate) const STDERR: u8 = 2;

/// Flags of an operation.
pub(crate) const FLAG_STDIN: u8 = 1;
pub(crate) const FLAG_PTY: u8 = 2;
/// The operation's descriptors are passed instead of framed.
pub(crate) const FLAG_LOCAL: u8 = 4;
/// The program is to be looked up in `PATH` if its name has no slash.
pub(crate) const FLAG_SEARCH: u8 = 8;

/// As whom a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UserSpec {
    Default,
    Name(Vec<u8>),
    Ids(u32, Option<u32>),
}

impl UserSpec {
    pub(crate) fn put(&self, encoder: &mut Encoder) {
        match self {
            UserSpec::Default => encoder.u8(0),
            UserSpec::Name(name) => encoder.u8(1).bytes(name),
            UserSpec::Ids(uid, None) => encoder.u8(2).u32(*uid),
            UserSpec::Ids(uid, Some(gid)) => encoder.u8(3).u32(*uid).u32(*gid),
        };
    }

    pub(crate) fn take(decoder: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(match decoder.u8()? {
            0 => UserSpec::Default,
            1 => UserSpec::Name(decoder.bytes()?.to_vec()),
            2 => UserSpec::Ids(decoder.u32()?, None),
            3 => UserSpec::Ids(decoder.u32()?, Some(decoder.u32()?)),
            _ => return Err(Malformed("an unknown form of user")),
        })
    }
}

/// A command to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecRequest {
    pub(crate) flags: u8,
    pub(crate) argv: Vec<Vec<u8>>,
    /// `NAME=value` each.
    pub(crate) env: Vec<Vec<u8>>,
    /// Empty: the workdir.
    pub(crate) cwd: Vec<u8>,
    pub(crate) user: UserSpec,
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

impl ExecRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u8(self.flags);
        self.user.put(&mut encoder);
        encoder.u16(self.rows).u16(self.columns).bytes(&self.cwd);
        encoder
            .list(self.argv.iter().map(Vec::as_slice))
            .list(self.env.iter().map(Vec::as_slice));
        encoder.0
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(payload);
        let flags = decoder.u8()?;
        let user = UserSpec::take(&mut decoder)?;
        let (rows, columns) = (decoder.u16()?, decoder.u16()?);
        let cwd = decoder.bytes()?.to_vec();
        let (argv, env) = (decoder.list()?, decoder.list()?);
        decoder.end()?;
        let strings = argv.iter().chain(&env).chain(std::iter::once(&cwd));
        if argv.is_empty() || strings.clone().any(|string| string.contains(&0)) {
            return Err(Malformed("a command without a program, or with a NUL byte"));
        }
        Ok(ExecRequest {
            flags,
            argv,
            env,
            cwd,
            user,
            rows,
            columns,
        })
    }
}

/// Why an operation failed, in the terms of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    NotFound = 1,
    NotADirectory = 2,
    IsADirectory = 3,
    NotRegular = 4,
    PermissionDenied = 5,
    InvalidPath = 6,
    TooLarge = 7,
    ProgramNotFound = 8,
    NotExecutable = 9,
    BadCwd = 10,
    UserNotFound = 11,
    ArgumentsTooLong = 12,
    ConnectionRefused = 13,
    InvalidArchive = 14,
    Io = 15,
    Protocol = 16,
}

const CODES: [Code; 16] = [
    Code::NotFound,
    Code::NotADirectory,
    Code::IsADirectory,
    Code::NotRegular,
    Code::PermissionDenied,
    Code::InvalidPath,
    Code::TooLarge,
    Code::ProgramNotFound,
    Code::NotExecutable,
    Code::BadCwd,
    Code::UserNotFound,
    Code::ArgumentsTooLong,
    Code::ConnectionRefused,
    Code::InvalidArchive,
    Code::Io,
    Code::Protocol,
];

/// A failed operation: its code, the kernel's error number if there is one, and what it concerned (a path or a reason).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) errno: i32,
    pub(crate) detail: Vec<u8>,
}

impl Failure {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder
            .u8(self.code as u8)
            .u32(self.errno as u32)
            .bytes(&self.detail);
        encoder.0
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(payload);
        let code = decoder.u8()?;
        let code = CODES
            .into_iter()
            .find(|known| *known as u8 == code)
            .ok_or(Malformed("an unknown failure"))?;
        let errno = decoder.u32()? as i32;
        let detail = decoder.bytes()?.to_vec();
        decoder.end()?;
        Ok(Failure {
            code,
            errno,
            detail,
        })
    }
}

/// The end of a direct process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Exited {
    pub(crate) by_signal: bool,
    pub(crate) value: u8,
    pub(crate) background: bool,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) peak_kib: u64,
    /// Bytes of framed output that were written before the end and not yet sent.
    pub(crate) unread_stdout: u64,
    pub(crate) unread_stderr: u64,
}

impl Exited {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder
            .u8(u8::from(self.by_signal))
            .u8(self.value)
            .u8(u8::from(self.background));
        encoder
            .u64(self.user_us)
            .u64(self.system_us)
            .u64(self.peak_kib);
        encoder.u64(self.unread_stdout).u64(self.unread_stderr);
        encoder.0
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(payload);
        let exited = Exited {
            by_signal: decoder.u8()? != 0,
            value: decoder.u8()?,
            background: decoder.u8()? != 0,
            user_us: decoder.u64()?,
            system_us: decoder.u64()?,
            peak_kib: decoder.u64()?,
            unread_stdout: decoder.u64()?,
            unread_stderr: decoder.u64()?,
        };
        decoder.end()?;
        Ok(exited)
    }
}

pub(crate) const KIND_FILE: u8 = 0;
pub(crate) const KIND_DIRECTORY: u8 = 1;
pub(crate) const KIND_SYMLINK: u8 = 2;
pub(crate) const KIND_HARDLINK: u8 = 3;
pub(crate) const KIND_FIFO: u8 = 4;
pub(crate) const KIND_OTHER: u8 = 5;

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    /// Of a file, in bytes.
    pub(crate) size: u64,
    pub(crate) path: Vec<u8>,
    /// Of a symbolic or hard link.
    pub(crate) target: Vec<u8>,
}

impl Entry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder
            .u8(self.kind)
            .u32(self.mode)
            .u64(self.size)
            .bytes(&self.path)
            .bytes(&self.target);
        encoder.0
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(payload);
        let entry = Entry {
            kind: decoder.u8()?,
            mode: decoder.u32()? & 0o777,
            size: decoder.u64()?,
            path: decoder.bytes()?.to_vec(),
            target: decoder.bytes()?.to_vec(),
        };
        decoder.end()?;
        if entry.kind > KIND_FIFO
            || entry.path.is_empty()
            || entry.path.contains(&0)
            || entry.target.contains(&0)
        {
            return Err(Malformed("an entry of an unknown kind or without a name"));
        }
        Ok(entry)
    }
}

/// A payload that is one path (or another byte string without NUL).
pub(crate) fn path(payload: &[u8]) -> Result<&[u8], Malformed> {
    if payload.is_empty() || payload.contains(&0) {
        Err(Malformed("a path is empty or holds NUL"))
    } else {
        Ok(payload)
    }
}

/// A payload that is one u32.
pub(crate) fn number(payload: &[u8]) -> Result<u32, Malformed> {
    let mut decoder = Decoder::new(payload);
    let value = decoder.u32()?;
    decoder.end()?;
    Ok(value)
}

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod backend;
mod cancel;
mod caps;
mod checked;
mod cmd;
mod env;
mod error;
mod execution;
mod ext;
mod file;
mod handle;
mod name;
mod path;
pub mod policy;
mod run;
mod session;
mod spec;
mod supervise;
pub mod tree;

pub use backend::Backend;
pub use cancel::CancelToken;
pub use caps::{Caps, Isolation, LimitCaps, SnapshotMode, Support};
pub use checked::Checked;
pub use cmd::{Cmd, OutputLimits, Overflow, Program, PtySize, Stdin, User};
pub use env::Env;
pub use error::{BoxError, CancelReason, Error, ErrorKind, PathRole, Result};
pub use execution::{
    Accepted, Chunk, Control, Controller, EndedBy, ExecResult, ExecStdin, Execution, ExecutionSink,
    ExitStatus, MAX_CHUNK, OutputStream, Usage,
};
pub use ext::BackendExt;
pub use file::{ByteStream, CapturedFile, DirEntry, DuplexStream, FileKind, FileStat, InputFile};
pub use handle::Handle;
pub use name::{ContainerName, ImageRef, SandboxId, SnapshotRef};
pub use path::SandboxPath;
pub use run::{RunOptions, RunOutcome, RunResult, run_sandboxed};
pub use session::{
    Encoding, FileOptions, LineRange, ProcessExit, RunOutput, Session, SessionProcess,
};
pub use spec::{
    Bind, ComposeSource, ContainerSpec, ImageSource, Keepalive, Lifetime, Limits, NetworkMode,
    Pull, RootFs, Source,
};
pub use supervise::{Exit, Process, supervise};

//! The messages with which a host sets up a native sandbox: one [`Setup`] downwards, then [`Reply`]s upwards, on the stream
//! that afterwards carries the protocol. Each is a little-endian `u32` length and that many bytes.
//!
//! Only the standard library, because the in-sandbox program is compiled without dependencies and shares this file. Everything
//! of this happens before the first foreign instruction runs, but the decoder trusts nothing all the same.

// The host's library publishes these for the native backend; in the guest they are as private as everything.
#![allow(unreachable_pub, missing_docs)]

use super::bytes::{Decoder, Encoder, Malformed};

/// The longest message that is accepted.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The most file descriptors that go with a [`Setup`].
pub const MAX_DESCRIPTORS: usize = 8;

/// The steps of a set-up in their order, as they are named in [`Reply::Failed`].
pub const STEPS: [&str; 24] = [
    "message",
    "control group",
    "namespaces",
    "user map",
    "host directories",
    "supervision",
    "credentials",
    "mount namespace",
    "scratch file system",
    "base",
    "overlay",
    "system directories",
    "proc",
    "dev",
    "sys",
    "binds",
    "pivot",
    "workdir",
    "network",
    "hostname",
    "limits",
    "privileges",
    "landlock",
    "seccomp",
];

/// Which users of the host the users of a sandbox are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Id 0 inside is this user and group outside; there is no other id. All that an ordinary user can have.
    Single { uid: u32, gid: u32 },
    /// Ids 0 to `count` - 1 inside are `base`, `base` + 1, … outside. Needs a privileged caller.
    Range { base: u32, count: u32 },
}

/// What the root file system starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The directory `skeleton` of the session; its owners are already right.
    Skeleton,
    /// A directory of the host that holds a root file system.
    Dir(Vec<u8>),
}

/// Where what the sandbox writes is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upper {
    /// In this directory of the session, on disk.
    Disk(Vec<u8>),
    /// In memory, at most so many bytes.
    Memory { bytes: Option<u64> },
}

/// Something of the host that is bound into the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The absolute path on the host.
    pub source: Vec<u8>,
    /// The absolute path in the sandbox; made if absent.
    pub target: Vec<u8>,
    /// Whether the sandbox may change it.
    pub writable: bool,
    /// Whether it is one of the host's system directories: it may be absent, and the sandbox's root sees of it what any user of the
    /// host may read. Of the caller's own binds it sees what their owners see.
    pub system: bool,
}

/// A resource limit, by the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// Makes one step fail, for tests of the failure paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The step's name, as in [`Reply::Failed`].
    pub step: String,
    /// The error number that it fails with.
    pub errno: i32,
}

/// Everything that the in-sandbox program has to know. The descriptors that go with it are, in this order: the session's
/// directory, the listening socket if `listener`, then `cgroups` descriptors of `cgroup.procs` files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    pub ids: Ids,
    pub base: Base,
    pub upper: Upper,
    /// Whether the host's network is shared; else there is only a loopback of its own.
    pub host_network: bool,
    pub hostname: Vec<u8>,
    pub mounts: Vec<Mount>,
    /// The absolute directory inside in which commands start; made if absent.
    pub workdir: Vec<u8>,
    /// The sandbox's default user, as a name or ids, if it is not root: owns `workdir`.
    pub user: Option<Vec<u8>>,
    /// The most bytes of shared memory.
    pub shm_bytes: u64,
    pub rlimits: Vec<Rlimit>,
    /// Programs for the system call filter, installed in this order: `struct sock_filter` in memory order.
    pub seccomp: Vec<Vec<u8>>,
    pub landlock: bool,
    pub listener: bool,
    pub cgroups: u32,
    /// Whether the sandbox lives on when the host goes away.
    pub detached: bool,
    pub ttl_ms: Option<u64>,
    pub fault: Option<Fault>,
}

/// What the in-sandbox program says while it sets up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The sandbox's process 1 exists, under this id outside; a descriptor of the process goes with it.
    Started { pid: u32 },
    /// Everything stands. The protocol follows.
    Ready {
        /// The version of Landlock that is in force; 0 if the kernel has none or it was not asked for.
        landlock: u32,
        /// Whether `/bin/bash` is in the root file system.
        bash: bool,
    },
    /// A step failed; nothing foreign has run and nothing will.
    Failed {
        step: String,
        errno: i32,
        detail: String,
    },
}

impl Setup {
    /// The message with its length in front.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self.ids {
            Ids::Single { uid, gid } => e.u8(0).u32(uid).u32(gid),
            Ids::Range { base, count } => e.u8(1).u32(base).u32(count),
        };
        match &self.base {
            Base::Skeleton => e.u8(0),
            Base::Dir(path) => e.u8(1).bytes(path),
        };
        match &self.upper {
            Upper::Disk(path) => {
                e.u8(0).bytes(path);
            }
            Upper::Memory { bytes } => option(e.u8(1), *bytes),
        }
        flag(&mut e, self.host_network);
        e.bytes(&self.hostname).u32(self.mounts.len() as u32);
        for mount in &self.mounts {
            e.bytes(&mount.source).bytes(&mount.target);
            flag(&mut e, mount.writable);
            flag(&mut e, mount.system);
        }
        e.bytes(&self.workdir);
        flag(&mut e, self.user.is_some());
        e.bytes(self.user.as_deref().unwrap_or_default());
        e.u64(self.shm_bytes).u32(self.rlimits.len() as u32);
        for limit in &self.rlimits {
            e.u32(limit.resource).u64(limit.soft).u64(limit.hard);
        }
        e.list(self.seccomp.iter().map(Vec::as_slice));
        flag(&mut e, self.landlock);
        flag(&mut e, self.listener);
        e.u32(self.cgroups);
        flag(&mut e, self.detached);
        option(&mut e, self.ttl_ms);
        flag(&mut e, self.fault.is_some());
        if let Some(fault) = &self.fault {
            e.bytes(fault.step.as_bytes()).u32(fault.errno as u32);
        }
        framed(e)
    }

    /// Reads a message's payload, without the length in front; `None` if it is damaged.
    pub fn decode(payload: &[u8]) -> Option<Setup> {
        Self::read(payload).ok()
    }

    fn read(payload: &[u8]) -> Result<Setup, Malformed> {
        let mut d = Decoder::new(payload);
        let setup = Setup {
            ids: match d.u8()? {
                0 => Ids::Single {
                    uid: d.u32()?,
                    gid: d.u32()?,
                },
                1 => Ids::Range {
                    base: d.u32()?,
                    count: d.u32()?,
                },
                _ => return Err(Malformed("unknown kind of ids")),
            },
            base: match d.u8()? {
                0 => Base::Skeleton,
                1 => Base::Dir(d.bytes()?.to_vec()),
                _ => return Err(Malformed("unknown kind of base")),
            },
            upper: match d.u8()? {
                0 => Upper::Disk(d.bytes()?.to_vec()),
                1 => Upper::Memory {
                    bytes: read_option(&mut d)?,
                },
                _ => return Err(Malformed("unknown kind of upper")),
            },
            host_network: read_flag(&mut d)?,
            hostname: d.bytes()?.to_vec(),
            mounts: read_many(&mut d, |d| {
                Ok(Mount {
                    source: d.bytes()?.to_vec(),
                    target: d.bytes()?.to_vec(),
                    writable: read_flag(d)?,
                    system: read_flag(d)?,
                })
            })?,
            workdir: d.bytes()?.to_vec(),
            user: {
                let given = read_flag(&mut d)?;
                let user = d.bytes()?.to_vec();
                given.then_some(user)
            },
            shm_bytes: d.u64()?,
            rlimits: read_many(&mut d, |d| {
                Ok(Rlimit {
                    resource: d.u32()?,
                    soft: d.u64()?,
                    hard: d.u64()?,
                })
            })?,
            seccomp: d.list()?,
            landlock: read_flag(&mut d)?,
            listener: read_flag(&mut d)?,
            cgroups: d.u32()?,
            detached: read_flag(&mut d)?,
            ttl_ms: read_option(&mut d)?,
            fault: if read_flag(&mut d)? {
                Some(Fault {
                    step: read_text(&mut d)?,
                    errno: d.u32()? as i32,
                })
            } else {
                None
            },
        };
        d.end()?;
        Ok(setup)
    }
}

impl Reply {
    /// The message with its length in front.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        match self {
            Reply::Started { pid } => {
                e.u8(0).u32(*pid);
            }
            Reply::Ready { landlock, bash } => {
                e.u8(1).u32(*landlock);
                flag(&mut e, *bash);
            }
            Reply::Failed {
                step,
                errno,
                detail,
            } => {
                e.u8(2)
                    .bytes(step.as_bytes())
                    .u32(*errno as u32)
                    .bytes(detail.as_bytes());
            }
        }
        framed(e)
    }

    /// Reads a message's payload, without the length in front; `None` if it is damaged.
    pub fn decode(payload: &[u8]) -> Option<Reply> {
        Self::read(payload).ok()
    }

    fn read(payload: &[u8]) -> Result<Reply, Malformed> {
        let mut d = Decoder::new(payload);
        let reply = match d.u8()? {
            0 => Reply::Started { pid: d.u32()? },
            1 => Reply::Ready {
                landlock: d.u32()?,
                bash: read_flag(&mut d)?,
            },
            2 => Reply::Failed {
                step: read_text(&mut d)?,
                errno: d.u32()? as i32,
                detail: read_text(&mut d)?,
            },
            _ => return Err(Malformed("unknown reply")),
        };
        d.end()?;
        Ok(reply)
    }
}

/// What a janitor has to know: it removes all of it when its input ends. The session's lock goes with it as a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chores {
    /// Directories of control groups that the session made; everything in them is killed and removed.
    pub cgroups: Vec<Vec<u8>>,
    /// The session's directory.
    pub directory: Vec<u8>,
}

impl Chores {
    /// The message with its length in front.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.list(self.cgroups.iter().map(Vec::as_slice))
            .bytes(&self.directory);
        framed(e)
    }

    /// Reads a message's payload, without the length in front; `None` if it is damaged.
    pub fn decode(payload: &[u8]) -> Option<Chores> {
        Self::read(payload).ok()
    }

    fn read(payload: &[u8]) -> Result<Chores, Malformed> {
        let mut d = Decoder::new(payload);
        let chores = Chores {
            cgroups: d.list()?,
            directory: d.bytes()?.to_vec(),
        };
        d.end()?;
        Ok(chores)
    }
}

/// The length of a payload from the four bytes in front of it; `None` if it is too long.
pub fn payload_length(head: [u8; 4]) -> Option<usize> {
    Some(u32::from_le_bytes(head) as usize).filter(|length| *length <= MAX_MESSAGE)
}

fn flag(e: &mut Encoder, value: bool) {
    e.u8(u8::from(value));
}

fn option(e: &mut Encoder, value: Option<u64>) {
    flag(e, value.is_some());
    if let Some(value) = value {
        e.u64(value);
    }
}

fn framed(e: Encoder) -> Vec<u8> {
    let mut message = (e.0.len() as u32).to_le_bytes().to_vec();
    message.extend(e.0);
    message
}

fn read_flag(d: &mut Decoder<'_>) -> Result<bool, Malformed> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("a flag is neither 0 nor 1")),
    }
}

fn read_option(d: &mut Decoder<'_>) -> Result<Option<u64>, Malformed> {
    Ok(if read_flag(d)? { Some(d.u64()?) } else { None })
}

fn read_text(d: &mut Decoder<'_>) -> Result<String, Malformed> {
    String::from_utf8(d.bytes()?.to_vec()).map_err(|_| Malformed("a text is not UTF-8"))
}

fn read_many<T>(
    d: &mut Decoder<'_>,
    mut item: impl FnMut(&mut Decoder<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = d.u32()?;
    // Grown item by item, so that a false count cannot reserve memory.
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(item(d)?);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            ids: Ids::Range { base: 7, count: 9 },
            base: Base::Dir(b"/srv/root".to_vec()),
            upper: Upper::Memory {
                bytes: Some(1 << 20),
            },
            host_network: true,
            hostname: b"sandbox".to_vec(),
            mounts: vec![Mount {
                source: b"/usr".to_vec(),
                target: b"/usr".to_vec(),
                writable: false,
                system: true,
            }],
            workdir: b"/work".to_vec(),
            user: Some(b"1000:100".to_vec()),
            shm_bytes: 64 << 20,
            rlimits: vec![Rlimit {
                resource: 4,
                soft: 1,
                hard: 1,
            }],
            seccomp: vec![vec![0; 16]],
            landlock: true,
            listener: false,
            cgroups: 2,
            detached: true,
            ttl_ms: Some(5000),
            fault: Some(Fault {
                step: "proc".into(),
                errno: 1,
            }),
        }
    }

    #[test]
    fn messages_survive_the_way() {
        let encoded = setup().encode();
        let length = payload_length(encoded[..4].try_into().unwrap()).unwrap();
        assert_eq!(length, encoded.len() - 4);
        assert_eq!(Setup::decode(&encoded[4..]), Some(setup()));
        for reply in [
            Reply::Started { pid: 3 },
            Reply::Ready {
                landlock: 7,
                bash: true,
            },
            Reply::Failed {
                step: "proc".into(),
                errno: 1,
                detail: "x".into(),
            },
        ] {
            assert_eq!(Reply::decode(&reply.encode()[4..]), Some(reply));
        }
        let chores = Chores {
            cgroups: vec![b"/a".to_vec()],
            directory: b"/b".to_vec(),
        };
        assert_eq!(Chores::decode(&chores.encode()[4..]), Some(chores));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        let encoded = setup().encode();
        for length in 4..encoded.len() {
            assert!(
                Setup::decode(&encoded[4..length]).is_none(),
                "cut at {length}"
            );
        }
        let longer = [&encoded[4..], &[0]].concat();
        assert!(Setup::decode(&longer).is_none());
        assert!(payload_length(u32::MAX.to_le_bytes()).is_none());
    }
}

//! Sandboxes that outlive the process that made them.
//!
//! Each has a directory of its own with a record of what another process needs to find it, and a listening socket. A record names
//! a process by number *and* start time of this boot, so that a number that came to mean another process is noticed.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox_core::{ContainerName, Handle, SandboxId, SandboxPath};

use crate::cgroup::BoxCgroups;
use crate::place::Place;
use crate::process::Process;

const RECORD: &str = "record";
const SOCKET: &str = "socket";
const FORMAT: &str = "sandbox-native 1";

/// What is written about a detached sandbox: text lines, so that a person can read them too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) name: ContainerName,
    pub(crate) workdir: SandboxPath,
    pub(crate) pid: u32,
    pub(crate) started: u64,
    pub(crate) boot: String,
    /// Where the process has that number: containers may share a directory, and each numbers its own processes.
    pub(crate) pid_namespace: u64,
    /// Seconds since 1970.
    pub(crate) ends: u64,
    pub(crate) bash: bool,
    pub(crate) user: Option<String>,
    pub(crate) cgroups: Vec<PathBuf>,
    /// Variables of every command: names and values.
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Record {
    pub(crate) fn handle(&self) -> Handle {
        Handle::new(self.name.clone(), self.id.clone(), self.workdir.clone())
    }

    fn encode(&self) -> String {
        let mut text = format!(
            "{FORMAT}\nid {}\nname {}\nworkdir {}\npid {}\nstarted {}\nboot {}\npidns {}\nends {}\nbash {}\n",
            self.id,
            self.name,
            hex(self.workdir.as_bytes()),
            self.pid,
            self.started,
            self.boot,
            self.pid_namespace,
            self.ends,
            self.bash,
        );
        if let Some(user) = &self.user {
            text.push_str(&format!("user {}\n", hex(user.as_bytes())));
        }
        for cgroup in &self.cgroups {
            use std::os::unix::ffi::OsStrExt;
            text.push_str(&format!("cgroup {}\n", hex(cgroup.as_os_str().as_bytes())));
        }
        for (name, value) in &self.env {
            text.push_str(&format!("env {} {}\n", hex(name), hex(value)));
        }
        text.push_str("end\n");
        text
    }

    fn decode(text: &str) -> Option<Record> {
        let mut lines = text.lines();
        let complete = lines.next()? == FORMAT && text.ends_with("\nend\n");
        let all = |wanted: &'static str| {
            text.lines()
                .filter_map(move |line| line.strip_prefix(wanted)?.strip_prefix(' '))
        };
        let one = |wanted: &'static str| all(wanted).next();
        let path = |text: &str| {
            use std::os::unix::ffi::OsStringExt;
            Some(PathBuf::from(std::ffi::OsString::from_vec(unhex(text)?)))
        };
        let record = Record {
            id: SandboxId::new(one("id")?).ok()?,
            name: ContainerName::new(one("name")?).ok()?,
            workdir: SandboxPath::new(unhex(one("workdir")?)?).ok()?,
            pid: one("pid")?.parse().ok()?,
            started: one("started")?.parse().ok()?,
            boot: one("boot")?.to_owned(),
            pid_namespace: one("pidns")?.parse().ok()?,
            ends: one("ends")?.parse().ok()?,
            bash: one("bash")?.parse().ok()?,
            user: match one("user") {
                Some(user) => Some(String::from_utf8(unhex(user)?).ok()?),
                None => None,
            },
            cgroups: all("cgroup").map(path).collect::<Option<_>>()?,
            env: all("env")
                .map(|pair| {
                    let (name, value) = pair.split_once(' ')?;
                    Some((unhex(name)?, unhex(value)?))
                })
                .collect::<Option<_>>()?,
        };
        complete.then_some(record)
    }

    /// Writes it, complete or not at all.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let temporary = directory.join("record.new");
        // It holds the values of variables: for the owner's eyes only.
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(self.encode().as_bytes())?;
        fs::rename(temporary, directory.join(RECORD))
    }

    fn read(directory: &Path) -> Option<Record> {
        Record::decode(&fs::read_to_string(directory.join(RECORD)).ok()?)
    }

    /// Whether it was written where this process's numbers do not count. After a restart of the machine nothing of it lives anywhere.
    fn is_of_another_namespace(&self) -> bool {
        self.boot == boot_id() && self.pid_namespace != pid_namespace()
    }

    /// Its process 1, if that still lives.
    fn process(&self) -> Option<Process> {
        if self.boot != boot_id() {
            return None;
        }
        let process = Process::open(self.pid).ok()?;
        // Looked at after the descriptor was taken: now the number cannot be reused any more.
        (start_time(self.pid) == Some(self.started) && process.is_alive()).then_some(process)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The number of the process namespace that `/proc` and process descriptors speak of; 0 if `/proc` is not there.
pub(crate) fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; the start time is field 22, the 20th after it.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// When a time to live that begins now ends, in seconds since 1970.
pub(crate) fn end_after(ttl: Duration) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_add(ttl).as_secs()
}

/// A socket in a directory whose path may be longer than a socket's address can be.
pub(crate) fn listen(directory: &Path) -> io::Result<UnixListener> {
    let opened = fs::File::open(directory)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd()))
}

pub(crate) fn connect(directory: &Path) -> io::Result<UnixStream> {
    let opened = fs::File::open(directory)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd()))
}

/// A live one.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: Record,
    pub(crate) directory: PathBuf,
    process: Process,
}

impl Found {
    /// Takes charge of it: it ends with the place, unless it is left again.
    pub(crate) fn into_place(self) -> Place {
        let mut place = Place::new(self.directory);
        if !self.record.cgroups.is_empty() {
            place.add_cgroups(BoxCgroups::adopt(self.record.cgroups));
        }
        place.add_process(self.process);
        place
    }
}

/// The live ones below `detached`. What is left of dead ones is removed on the way. Those of another process namespace can
/// neither be found alive nor be known to be dead here: they are passed over.
pub(crate) fn live(detached: &Path) -> io::Result<Vec<Found>> {
    let mut live = Vec::new();
    for entry in fs::read_dir(detached)? {
        let directory = entry?.path();
        let Some(record) = Record::read(&directory) else {
            remove_if_abandoned(&directory);
            continue;
        };
        if record.is_of_another_namespace() {
            continue;
        }
        match record.process() {
            Some(process) => live.push(Found {
                record,
                directory,
                process,
            }),
            None => {
                let mut place = Place::new(directory);
                place.add_cgroups(BoxCgroups::adopt(record.cgroups));
                if let Err(error) = place.end() {
                    tracing::warn!(id = %record.id, %error, "a dead sandbox could not be removed yet");
                    place.leave();
                }
            }
        }
    }
    Ok(live)
}

/// A directory without a record is a sandbox that is being made now, or whose maker died meanwhile.
fn remove_if_abandoned(directory: &Path) {
    const LONG: Duration = Duration::from_secs(120);
    let age = fs::symlink_metadata(directory)
        .and_then(|data| data.modified())
        .ok()
        .and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age > LONG) {
        drop(Place::new(directory.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            id: SandboxId::new("native-1").unwrap(),
            name: ContainerName::new("lab").unwrap(),
            workdir: SandboxPath::new(b"/w\n\xff").unwrap(),
            pid: std::process::id(),
            started: start_time(std::process::id()).unwrap(),
            boot: boot_id(),
            pid_namespace: pid_namespace(),
            ends: 7,
            bash: true,
            user: Some("1000:100".into()),
            cgroups: vec!["/sys/fs/cgroup/x y".into()],
            env: vec![
                (b"A".to_vec(), b"1\n2".to_vec()),
                (b"B".to_vec(), Vec::new()),
            ],
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let text = record().encode();
        assert_eq!(Record::decode(&text), Some(record()));
        for cut in 0..text.len() {
            assert_eq!(Record::decode(&text[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_process_is_known_by_its_start_time_and_boot() {
        assert!(record().process().is_some());
        assert!(
            Record {
                started: 1,
                ..record()
            }
            .process()
            .is_none()
        );
        assert!(
            Record {
                boot: "another".into(),
                ..record()
            }
            .process()
            .is_none()
        );
    }

    #[test]
    fn what_another_process_namespace_recorded_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        // No process of this namespace, so that it would be dead if it were of here.
        let (foreign, dead, restarted) = (
            directory.path().join("foreign"),
            directory.path().join("dead"),
            directory.path().join("restarted"),
        );
        let gone = Record {
            started: 1,
            cgroups: Vec::new(),
            ..record()
        };
        let elsewhere = Record {
            pid_namespace: gone.pid_namespace + 1,
            ..gone.clone()
        };
        let long_ago = Record {
            boot: "another".into(),
            ..elsewhere.clone()
        };
        for (path, record) in [(&foreign, elsewhere), (&dead, gone), (&restarted, long_ago)] {
            fs::create_dir(path).unwrap();
            record.write(path).unwrap();
        }
        assert!(live(directory.path()).unwrap().is_empty());
        assert!(foreign.exists());
        assert!(!dead.exists() && !restarted.exists());
    }

    #[test]
    fn a_socket_works_in_a_directory_with_a_long_name() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("x".repeat(200));
        fs::create_dir(&deep).unwrap();
        let _listener = listen(&deep).unwrap();
        assert!(connect(&deep).is_ok());
    }
}

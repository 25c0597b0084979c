//! Control groups: limits of memory, CPU time and processes, over plain files, for both versions and the mixture of them.
//!
//! A session has one group per hierarchy and a group below it for each sandbox that asked for a limit. A group is usable only if
//! making it and setting the limit has worked once; what the version or the distribution is does not matter.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_core::{Limits, Support};

/// What can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "pids",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A directory in which groups can be made that have a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    version: Version,
}

/// The groups of one session.
#[derive(Debug)]
pub(crate) struct Cgroups {
    name: String,
    places: BTreeMap<Controller, Place>,
    reasons: BTreeMap<Controller, String>,
}

/// The groups of one sandbox.
#[derive(Debug)]
pub(crate) struct BoxCgroups {
    directories: Vec<PathBuf>,
    oom: Option<(PathBuf, Version)>,
}

const FEW_TRIES: u32 = 2000;
const PAUSE: Duration = Duration::from_millis(1);

impl Cgroups {
    /// Finds out what works, by making the session's groups. Nothing working is not an error: `support` says why.
    pub(crate) fn new(session: &str) -> Self {
        let name = format!("sandbox-{session}");
        let mut cgroups = Cgroups {
            name,
            places: BTreeMap::new(),
            reasons: BTreeMap::new(),
        };
        match candidates() {
            Err(error) => {
                let reason = format!("the control groups could not be read: {error}");
                cgroups.reasons = Controller::ALL
                    .map(|controller| (controller, reason.clone()))
                    .into();
            }
            Ok(candidates) => {
                for (controller, places) in candidates {
                    match cgroups.first_usable(controller, &places) {
                        Ok(place) => {
                            cgroups.places.insert(controller, place);
                        }
                        Err(reason) => {
                            cgroups.reasons.insert(controller, reason);
                        }
                    }
                }
            }
        }
        cgroups
    }

    fn first_usable(&self, controller: Controller, places: &[Place]) -> Result<Place, String> {
        let mut first = None;
        for place in places {
            let group = place.parent.join(&self.name);
            let existed = group.is_dir();
            match self.try_place(controller, place) {
                Ok(()) => return Ok(place.clone()),
                Err(error) => {
                    first.get_or_insert(format!("{}: {error}", place.parent.display()));
                    if !existed {
                        let _ = fs::remove_dir(&group);
                    }
                }
            }
        }
        Err(first.unwrap_or_else(|| "the system has no such controller".into()))
    }

    /// Makes the session's group and a group in it, and sets a limit there.
    fn try_place(&self, controller: Controller, place: &Place) -> io::Result<()> {
        if place.version == Version::Two {
            enable(&place.parent, controller)?;
        }
        let group = place.parent.join(&self.name);
        make_group(&group)?;
        if place.version == Version::Two {
            enable(&group, controller)?;
        }
        let probe = group.join("probe");
        make_group(&probe)?;
        let limits = Limits {
            memory: Some(1 << 30),
            cpus: Some(1.0),
            pids: Some(64),
            disk: None,
        };
        let outcome = set_limit(&probe, place.version, controller, &limits);
        remove_group(&probe)?;
        outcome
    }

    /// Whether a limit can be enforced.
    pub(crate) fn support(&self, controller: Controller) -> Support {
        if self.places.contains_key(&controller) {
            return Support::Yes;
        }
        Support::no(format!(
            "no control group with the {} controller can be made ({}); run as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes",
            controller.name(),
            self.reasons.get(&controller).map_or("", String::as_str)
        ))
    }

    /// Makes the groups that the limits need; `None` if they need none. A detached sandbox's are not part of the session's.
    pub(crate) fn make(
        &self,
        id: &str,
        limits: &Limits,
        detached: bool,
    ) -> io::Result<Option<BoxCgroups>> {
        let mut made = BoxCgroups {
            directories: Vec::new(),
            oom: None,
        };
        for controller in Controller::ALL {
            let wanted = match controller {
                Controller::Memory => limits.memory.is_some(),
                Controller::Cpu => limits.cpus.is_some(),
                Controller::Pids => limits.pids.is_some(),
            };
            let Some(place) = self.places.get(&controller).filter(|_| wanted) else {
                continue;
            };
            let group = if detached {
                place.parent.join(format!("sandbox-{id}"))
            } else {
                place.parent.join(&self.name).join(id)
            };
            let outcome = (|| {
                if !made.directories.contains(&group) {
                    make_group(&group)?;
                    made.directories.push(group.clone());
                }
                set_limit(&group, place.version, controller, limits)
            })();
            if let Err(error) = outcome {
                let _ = made.remove();
                return Err(error);
            }
            if controller == Controller::Memory {
                made.oom = Some((group, place.version));
            }
        }
        Ok((!made.directories.is_empty()).then_some(made))
    }

    /// The session's own groups.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let mut directories: Vec<_> = self
            .places
            .values()
            .map(|place| place.parent.join(&self.name))
            .collect();
        directories.dedup();
        directories
    }

    /// Removes what a session of this machine left behind.
    pub(crate) fn sweep(&self, session: &str) {
        for place in self.places.values() {
            remove_with_children(&place.parent.join(format!("sandbox-{session}")));
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for directory in self.directories() {
            remove_with_children(&directory);
        }
    }
}

impl BoxCgroups {
    /// Groups that an earlier process made.
    pub(crate) fn adopt(directories: Vec<PathBuf>) -> Self {
        let version = |path: &Path| {
            if path.join("memory.max").exists() {
                Version::Two
            } else {
                Version::One
            }
        };
        let memory = directories.iter().find(|path| {
            path.join("memory.max").exists() || path.join("memory.limit_in_bytes").exists()
        });
        let oom = memory.map(|path| (path.clone(), version(path)));
        BoxCgroups { directories, oom }
    }

    pub(crate) fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// For joining them.
    pub(crate) fn procs(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |path: &PathBuf| {
            fs::OpenOptions::new()
                .write(true)
                .open(path.join("cgroup.procs"))
        };
        self.directories
            .iter()
            .map(|path| open(path).map(OwnedFd::from))
            .collect()
    }

    /// Counts kills for lack of memory, if memory is limited.
    pub(crate) fn oom_kills(&self) -> Option<impl Fn() -> Option<u64> + Send + Sync + 'static> {
        let (group, version) = self.oom.clone()?;
        let file = match version {
            Version::One => group.join("memory.oom_control"),
            Version::Two => group.join("memory.events"),
        };
        Some(move || {
            let text = fs::read_to_string(&file).ok()?;
            text.lines()
                .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
        })
    }

    /// Removes them; their processes must be dead.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.directories
            .iter()
            .try_for_each(|group| remove_group(group))
    }
}

fn make_group(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// A dead process leaves its group a moment after its parent hears of it.
fn remove_group(path: &Path) -> io::Result<()> {
    for _ in 0..FEW_TRIES {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return other,
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("the control group {} still has processes", path.display()),
    ))
}

fn remove_with_children(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

/// Lets the children of a version 2 group have a controller.
fn enable(group: &Path, controller: Controller) -> io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    let has = |file: &Path| {
        fs::read_to_string(file).map(|text| {
            text.split_whitespace()
                .any(|name| name == controller.name())
        })
    };
    if has(&file)? {
        return Ok(());
    }
    if !has(&group.join("cgroup.controllers"))? {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("the {} controller is not delegated", controller.name()),
        ));
    }
    fs::write(&file, format!("+{}", controller.name()))
}

fn set_limit(
    group: &Path,
    version: Version,
    controller: Controller,
    limits: &Limits,
) -> io::Result<()> {
    const PERIOD: u64 = 100_000;
    let put = |file: &str, value: String| fs::write(group.join(file), value);
    match (controller, version) {
        (Controller::Memory, Version::Two) => {
            let Some(bytes) = limits.memory else {
                return Ok(());
            };
            put("memory.max", bytes.to_string())?;
            // Absent where the kernel has no swap.
            if_there(put("memory.swap.max", "0".into()))
        }
        (Controller::Memory, Version::One) => {
            let Some(bytes) = limits.memory else {
                return Ok(());
            };
            put("memory.limit_in_bytes", bytes.to_string())?;
            if_there(put("memory.memsw.limit_in_bytes", bytes.to_string()))
        }
        (Controller::Cpu, version) => {
            let Some(cpus) = limits.cpus else {
                return Ok(());
            };
            let quota = ((cpus * PERIOD as f64) as u64).max(1000);
            match version {
                Version::Two => put("cpu.max", format!("{quota} {PERIOD}")),
                Version::One => {
                    put("cpu.cfs_period_us", PERIOD.to_string())?;
                    put("cpu.cfs_quota_us", quota.to_string())
                }
            }
        }
        (Controller::Pids, _) => {
            let Some(pids) = limits.pids else {
                return Ok(());
            };
            // Process 1 is ours and does not count against the caller's number.
            put("pids.max", (pids + crate::OWN_PROCESSES).to_string())
        }
    }
}

fn if_there(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Where groups might be made, best first: below our own group, and beside it (a version 2 group with processes in it can have no
/// children with controllers).
fn candidates() -> io::Result<BTreeMap<Controller, Vec<Place>>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    Ok(Controller::ALL
        .into_iter()
        .map(|controller| (controller, places(controller, &mounts, &own)))
        .collect())
}

fn places(controller: Controller, mounts: &str, own: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for (root, point, kind, options) in mounts.lines().filter_map(parse_mount) {
        let (version, path) = match kind {
            "cgroup2" => (Version::Two, own_path(own, "")),
            "cgroup" if options.split(',').any(|option| option == controller.name()) => {
                (Version::One, own_path(own, controller.name()))
            }
            _ => continue,
        };
        // The mount may show only a part of the hierarchy, as in a container.
        let Some(within) = path.and_then(|path| Path::new(path).strip_prefix(root).ok()) else {
            continue;
        };
        let group: PathBuf = Path::new(point).join(within).components().collect();
        let above = group
            .parent()
            .filter(|parent| parent.starts_with(point))
            .map(Path::to_owned);
        places.push(Place {
            parent: group,
            version,
        });
        if let Some(parent) = above.filter(|_| version == Version::Two) {
            places.push(Place { parent, version });
        }
    }
    places
}

/// Root, mount point, type and super options of one line of `mountinfo`.
fn parse_mount(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    Some((root, point, right.next()?, right.nth(1)?))
}

/// Our group in the hierarchy of a controller; of version 2 for the empty name.
fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 24 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn a_mixed_system_offers_version_1_and_2() {
        let own = "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/user/x\n";
        let memory = places(Controller::Memory, MOUNTS, own);
        let parents: Vec<_> = memory
            .iter()
            .map(|place| place.parent.to_str().unwrap())
            .collect();
        assert_eq!(
            parents,
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/unified/user/x",
                "/sys/fs/cgroup/unified/user"
            ]
        );
        assert_eq!(memory[0].version, Version::One);
        assert_eq!(places(Controller::Pids, MOUNTS, own).len(), 2);
    }

    #[test]
    fn a_part_of_the_hierarchy_is_followed_only_if_we_are_in_it() {
        let mounts = "33 24 0:29 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            places(Controller::Cpu, mounts, "0::/box/in\n")[0].parent,
            Path::new("/sys/fs/cgroup/in")
        );
        assert!(places(Controller::Cpu, mounts, "0::/elsewhere\n").is_empty());
        assert_eq!(
            places(Controller::Cpu, mounts, "0::/box\n").len(),
            1,
            "nothing above the mount"
        );
    }

    #[test]
    fn limits_are_written_in_the_words_of_each_version() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits {
            memory: Some(64 << 20),
            cpus: Some(1.5),
            pids: Some(10),
            disk: None,
        };
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        for version in [Version::One, Version::Two] {
            for controller in Controller::ALL {
                set_limit(directory.path(), version, controller, &limits).unwrap();
            }
        }
        assert_eq!(
            (read("memory.max"), read("memory.swap.max")),
            ("67108864".into(), "0".into())
        );
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("memory.limit_in_bytes"), "67108864");
        assert_eq!(read("cpu.cfs_quota_us"), "150000");
        assert_eq!(read("pids.max"), (10 + crate::OWN_PROCESSES).to_string());
    }
}

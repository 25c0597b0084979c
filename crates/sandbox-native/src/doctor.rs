//! What each layer of isolation is like on this machine.

use std::fs;
use std::path::Path;

use sandbox_core::Support;
use sandbox_guest::setup::Ids;

use crate::cgroup::{Cgroups, Controller};
use crate::launch::Failure;
use crate::native::Probe;
use crate::remedy;

/// What [`Native::doctor`](crate::Native::doctor) found.
///
/// ```no_run
/// let report = sandbox_native::Native::doctor()?;
/// assert!(!report.layers.is_empty());
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DoctorReport {
    /// Whether sandboxes can be made.
    pub usable: bool,
    /// Every layer, from the outside in.
    pub layers: Vec<Layer>,
}

/// One layer of isolation.
///
/// ```no_run
/// # use sandbox_native::{LayerState, Native};
/// let report = Native::doctor()?;
/// for layer in report.layers.iter().filter(|layer| layer.state != LayerState::Enforced) {
///     println!("{}: {} — {}", layer.name, layer.detail, layer.remedy.as_deref().unwrap_or("nothing to do"));
/// }
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Layer {
    /// Its name.
    pub name: &'static str,
    /// Whether it stands.
    pub state: LayerState,
    /// What was found.
    pub detail: String,
    /// What would make it stand; absent if it does or nothing can be done.
    pub remedy: Option<String>,
}

/// Whether a layer stands.
///
/// ```
/// assert_ne!(sandbox_native::LayerState::Enforced, sandbox_native::LayerState::Missing);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum LayerState {
    /// It stands.
    Enforced,
    /// It works with a drawback that the detail names.
    Degraded,
    /// It is not there. If sandboxes are usable, a spec that needs it is refused.
    Missing,
}

impl Layer {
    fn new(name: &'static str, state: LayerState, detail: impl Into<String>) -> Self {
        Layer {
            name,
            state,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// The steps of a set-up that make up a layer, in the order in which they are done, and what is true if they succeed.
const LAYERS: [(&str, &[&str], &str); 10] = [
    (
        "namespaces",
        &["message", "control group", "namespaces"],
        "own users, mounts, processes, network, IPC, host name and control-group view",
    ),
    ("user map", &["user map", "credentials"], ""),
    (
        "supervisor",
        &["supervision"],
        "process 1 cannot be traced or read from inside",
    ),
    (
        "binds",
        &["host directories", "mount namespace", "scratch file system"],
        "the host's system directories are bound read-only",
    ),
    (
        "overlay root",
        &["base", "overlay", "system directories"],
        "",
    ),
    (
        "proc",
        &["proc"],
        "a /proc of its own, with the host's secrets hidden",
    ),
    (
        "devices",
        &["dev", "sys", "binds"],
        "six harmless devices, own terminals and shared memory, an empty /sys",
    ),
    ("root", &["pivot", "workdir"], "the host's root is detached"),
    (
        "own network",
        &["network", "hostname"],
        "only a loopback of its own",
    ),
    (
        "privileges",
        &["limits", "privileges"],
        "no new privileges, eight capabilities over itself, core dumps off",
    ),
];

pub(crate) fn report(ids: &Ids, cgroups: &Cgroups, state: &Path, probe: Probe) -> DoctorReport {
    let usable = probe.outcome.is_ok();
    let mut layers = vec![kernel()];
    let (failed, explained) = match &probe.outcome {
        Ok(_) => (None, None),
        Err(Failure::Step { step, .. }) => (Some(step.clone()), None),
        Err(Failure::Program { doing, .. }) => (None, Some(*doing)),
    };
    let error = match &probe.outcome {
        Err(Failure::Step {
            step,
            errno,
            detail,
        }) => Some(remedy::explain(Failure::Step {
            step: step.clone(),
            errno: *errno,
            detail: detail.clone(),
        })),
        Err(Failure::Program { doing, error }) => Some(remedy::explain(Failure::Program {
            doing,
            error: std::io::Error::new(error.kind(), error.to_string()),
        })),
        Ok(_) => None,
    };
    let mut reached = explained.is_none();
    for (name, steps, good) in LAYERS {
        let broken = failed
            .as_ref()
            .is_some_and(|failed| steps.contains(&failed.as_str()));
        layers.push(if broken {
            reached = false;
            missing(name, error.as_ref())
        } else if !reached {
            Layer::new(
                name,
                LayerState::Missing,
                "not reached: an outer layer is missing",
            )
        } else {
            detail(name, good, ids, state, &probe)
        });
    }
    layers.push(match &probe.outcome {
        Ok(ready) if ready.landlock > 0 => Layer::new(
            "landlock",
            LayerState::Enforced,
            format!(
                "version {}; abstract sockets and signals stay inside from version 6",
                ready.landlock
            ),
        ),
        Ok(_) => Layer::new(
            "landlock",
            LayerState::Degraded,
            "the kernel has none, so the root has one wall less",
        )
        .with_remedy("boot with landlock in the lsm= parameter, on Linux 5.19 or later"),
        Err(_) if failed.as_deref() == Some("landlock") => missing("landlock", error.as_ref()),
        Err(_) => Layer::new(
            "landlock",
            LayerState::Missing,
            "not reached: an outer layer is missing",
        ),
    });
    layers.push(match &failed {
        Some(step) if step == "seccomp" => missing("system call filter", error.as_ref()),
        _ if usable => Layer::new(
            "system call filter",
            LayerState::Enforced,
            "mounts, namespaces, kernel modules, keys, tracing of the kernel, io_uring and odd sockets are denied",
        ),
        _ => Layer::new("system call filter", LayerState::Missing, "not reached: an outer layer is missing"),
    });
    for (name, controller) in [
        ("memory limit", Controller::Memory),
        ("cpu limit", Controller::Cpu),
        ("process limit", Controller::Pids),
    ] {
        layers.push(limit(name, controller, ids, cgroups));
    }
    layers.push(match probe.bounded {
        Ok(()) => Layer::new(
            "disk limit",
            LayerState::Enforced,
            "a limited sandbox keeps what it writes in memory",
        ),
        Err(failure) => missing("disk limit", Some(&remedy::explain(failure))),
    });
    DoctorReport { usable, layers }
}

fn kernel() -> Layer {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 12) {
        Layer::new("kernel", LayerState::Enforced, format!("Linux {release}"))
    } else {
        Layer::new(
            "kernel",
            LayerState::Degraded,
            format!("Linux {release}; 5.12 is the least that is expected to work"),
        )
        .with_remedy("upgrade the kernel")
    }
}

fn missing(name: &'static str, error: Option<&sandbox_core::Error>) -> Layer {
    match error {
        Some(sandbox_core::Error::Isolation { cause, remedy, .. }) => {
            Layer::new(name, LayerState::Missing, cause.clone()).with_remedy(remedy.clone())
        }
        _ => Layer::new(name, LayerState::Missing, "it could not be set up"),
    }
}

fn detail(name: &'static str, good: &str, ids: &Ids, state: &Path, probe: &Probe) -> Layer {
    match (name, ids) {
        ("user map", Ids::Single { uid, .. }) => Layer::new(
            name,
            LayerState::Enforced,
            format!("the sandbox's root is user {uid}, who makes it; it has no other users"),
        ),
        ("user map", Ids::Range { base, count }) => Layer::new(
            name,
            LayerState::Enforced,
            format!("the sandbox's ids 0 to {} are {base} and on, which are nobody's", count - 1),
        ),
        ("overlay root", _) => match &probe.outcome {
            Ok(ready) if ready.in_memory => Layer::new(
                name,
                LayerState::Degraded,
                format!("{} cannot hold an upper layer: what sandboxes write is kept in memory", state.display()),
            )
            .with_remedy("set SANDBOX_STATE_DIR to a directory on ext4, xfs or btrfs (in a container: a volume)"),
            _ => Layer::new(name, LayerState::Enforced, format!("copy-on-write, on disk in {}", state.display())),
        },
        _ => Layer::new(name, LayerState::Enforced, good),
    }
}

fn limit(name: &'static str, controller: Controller, ids: &Ids, cgroups: &Cgroups) -> Layer {
    match (cgroups.support(controller), controller, ids) {
        (Support::Yes, ..) => Layer::new(name, LayerState::Enforced, "by a control group"),
        (_, Controller::Pids, Ids::Single { .. }) => Layer::new(
            name,
            LayerState::Enforced,
            "by the kernel's count of the user's processes in the sandbox",
        ),
        (other, ..) => {
            let reason = other.reason().unwrap_or_default().to_owned();
            let (detail, remedy) = reason.split_once("; ").unwrap_or((&reason, ""));
            Layer::new(name, LayerState::Missing, detail).with_remedy(remedy)
        }
    }
}

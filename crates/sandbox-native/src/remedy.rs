//! Turns a failed step into what failed, why, and what to do.

use std::fs;
use std::io;

use sandbox_core::Error;

use crate::launch::{Failure, SUID_DUMPABLE};

/// The error of `create` for a set-up that failed.
pub(crate) fn explain(failure: Failure) -> Error {
    let read = |path: &str| {
        fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_owned())
    };
    explain_with(failure, &read)
}

fn explain_with(failure: Failure, read: &dyn Fn(&str) -> Option<String>) -> Error {
    match failure {
        Failure::Program { doing, error } => Error::Isolation {
            layer: "set-up program".into(),
            cause: format!("{doing}: {error}"),
            remedy: "executing a file in memory and one in the state directory must be allowed; look for a security \
                     module's or a seccomp filter's message in the kernel log"
                .into(),
        },
        Failure::Step { step, errno, detail } => {
            let cause = format!("{detail}: {}", io::Error::from_raw_os_error(errno));
            Error::Isolation { remedy: remedy(&step, errno, read), layer: layer(&step).into(), cause }
        }
    }
}

fn layer(step: &str) -> &str {
    match step {
        "namespaces" | "user map" | "credentials" => "user namespace",
        "mount namespace" | "scratch file system" | "pivot" => "mount namespace",
        "base" | "overlay" => "overlay root",
        "host directories" | "system directories" | "binds" | "workdir" => "binds",
        "network" | "hostname" => "network namespace",
        other => other,
    }
}

fn remedy(step: &str, errno: i32, read: &dyn Fn(&str) -> Option<String>) -> String {
    let says = |path: &str, value: &str| read(path).is_some_and(|text| text == value);
    let apparmor = says(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    );
    match (step, errno) {
        ("namespaces" | "user map" | "credentials" | "mount namespace", libc::EPERM | libc::EACCES) => {
            if says("/proc/sys/kernel/unprivileged_userns_clone", "0") {
                return "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1".into();
            }
            if apparmor {
                return "AppArmor restricts user namespaces: install an AppArmor profile with `userns,` for the program that \
                        makes sandboxes, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
                    .into();
            }
            if says("/proc/sys/user/max_user_namespaces", "0") {
                return NAMESPACES_OFF.into();
            }
            if says("/proc/sys/kernel/userns_restrict", "1") {
                return "allow user namespaces: sysctl kernel.userns_restrict=0".into();
            }
            "a seccomp filter or security module around this process forbids namespaces; in a container start it with \
             docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
             (podman: --security-opt seccomp=unconfined --security-opt unmask=ALL; Kubernetes: hostUsers: false with procMount: Unmasked \
             and an Unconfined seccomp profile)"
                .into()
        }
        ("supervision", libc::EPERM) if says(SUID_DUMPABLE, "1") => {
            "keep processes that change their ids from being traced: sysctl fs.suid_dumpable=0 (or 2)".into()
        }
        ("namespaces", libc::ENOSPC | libc::EUSERS) => NAMESPACES_OFF.into(),
        ("namespaces", libc::EINVAL | libc::ENOSYS) => {
            "the kernel lacks a kind of namespace, or a seccomp filter answers for it; Linux 5.12 or later with CONFIG_USER_NS, \
             CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS and CONFIG_UTS_NS is needed"
                .into()
        }
        ("proc", libc::EPERM | libc::EACCES) => {
            "parts of /proc are covered, as in a container, so that the kernel refuses a new one: start the container with \
             docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=ALL, or Kubernetes \
             procMount: Unmasked with hostUsers: false"
                .into()
        }
        ("overlay", libc::EINVAL) => {
            "the state directory lies on a file system that cannot hold an overlay's upper layer (another overlay, NFS, \
             or a kernel before 5.11): set SANDBOX_STATE_DIR or the builder's state_dir to a directory on ext4, xfs, btrfs or tmpfs \
             (in a container: a volume)"
                .into()
        }
        ("overlay", libc::ENODEV) => "the kernel has no overlay file system: load it with modprobe overlay".into(),
        ("host directories", libc::EINVAL) => {
            "the owners of a root directory or a writable bind cannot be mapped on its file system: put it on ext4, xfs, btrfs \
             or tmpfs, or make sandboxes as an ordinary user"
                .into()
        }
        ("host directories" | "binds" | "mount namespace", libc::ENOENT | libc::ENOTDIR) => {
            "a directory of the host that the spec names does not exist: make it, or correct the spec".into()
        }
        (_, libc::EACCES | libc::EPERM) if apparmor => {
            "AppArmor takes the rights of user namespaces away: install an AppArmor profile with `userns,` for the program \
             that makes sandboxes, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
                .into()
        }
        (_, libc::ENOSYS) => {
            "the kernel is too old (5.12 is the least) or a seccomp filter around this process hides the call".into()
        }
        (_, libc::EPERM | libc::EACCES) => {
            "a seccomp filter or security module around this process forbids it; `sandbox doctor` shows each layer".into()
        }
        (_, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::ENOSPC) => {
            "the system is out of files, memory, processes or disk space: free some and try again".into()
        }
        _ => "run `sandbox doctor` to see each layer".into(),
    }
}

const NAMESPACES_OFF: &str = "user namespaces are used up or switched off: raise sysctl user.max_user_namespaces (and \
                              user.max_mnt_namespaces, user.max_pid_namespaces, user.max_net_namespaces)";

#[cfg(test)]
mod tests {
    use super::*;

    fn text(step: &str, errno: i32, files: &[(&str, &str)]) -> String {
        let failure = Failure::Step {
            step: step.into(),
            errno,
            detail: "d".into(),
        };
        let read = |path: &str| {
            files
                .iter()
                .find(|(name, _)| *name == path)
                .map(|(_, text)| (*text).to_owned())
        };
        explain_with(failure, &read).to_string()
    }

    #[test]
    fn each_known_cause_has_its_own_advice() {
        let ubuntu = [(
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
        )];
        let debian = [("/proc/sys/kernel/unprivileged_userns_clone", "0")];
        let traceable = [(SUID_DUMPABLE, "1")];
        assert!(text("supervision", libc::EPERM, &traceable).contains("fs.suid_dumpable=0"));
        assert!(text("user map", libc::EPERM, &ubuntu).contains("AppArmor"));
        assert!(text("namespaces", libc::EPERM, &debian).contains("unprivileged_userns_clone=1"));
        assert!(text("namespaces", libc::ENOSPC, &[]).contains("max_user_namespaces"));
        assert!(text("proc", libc::EPERM, &[]).contains("systempaths=unconfined"));
        assert!(text("overlay", libc::EINVAL, &[]).contains("SANDBOX_STATE_DIR"));
        assert!(text("namespaces", libc::EPERM, &[]).contains("seccomp=unconfined"));
    }
}

//! Where a layer of isolation cannot be had: `create` fails and says what to do, and nothing has run.

use std::process::Command;

use crate::helper::{answers, helper};
use crate::support::State;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a shell script with own mounts before the helper takes over.
fn with_mounts(script: &str) -> Vec<String> {
    let kind = if is_root() { "-m" } else { "-Urm" };
    let script = format!("{script} && exec \"$0\" \"$@\"");
    ["unshare", kind, "sh", "-e", "-c", &script]
        .map(str::to_owned)
        .to_vec()
}

fn attempt(
    mode: &str,
    state: &State,
    before: &[String],
) -> std::collections::BTreeMap<String, String> {
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let mut command: Command = helper(mode, &state.path(), &before);
    answers(&mut command)
}

#[test]
fn the_helper_makes_a_sandbox_where_nothing_is_in_the_way() {
    let said = attempt("try", &State::new(), &[]);
    assert_eq!(
        (&*said["outcome"], &*said["ran"], &*said["complete"]),
        ("made", "ran 0 ", "true")
    );
}

#[test]
fn covered_parts_of_proc_are_named_with_the_remedy() {
    let said = attempt(
        "try",
        &State::new(),
        &with_mounts("mount --bind /dev/null /proc/timer_list"),
    );
    assert!(
        said["outcome"].contains("systempaths=unconfined"),
        "{said:?}"
    );
    assert!(said["outcome"].contains("unmask=ALL"), "{said:?}");
    assert_eq!((said.get("ran"), &*said["complete"]), (None, "false"));
}

#[test]
fn used_up_user_namespaces_are_named_with_the_remedy() {
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let before = ["unshare", "-Ur", "sh", "-e", "-c", script].map(str::to_owned);
    let said = attempt("try", &State::new(), &before);
    assert!(said["outcome"].contains("max_user_namespaces"), "{said:?}");
    assert_eq!(said.get("ran"), None);
}

#[test]
fn a_filter_around_us_that_forbids_namespaces_is_named_with_the_remedy() {
    let said = attempt("filtered", &State::new(), &[]);
    assert!(said["outcome"].contains("seccomp=unconfined"), "{said:?}");
    assert_eq!(said.get("ran"), None);
}

#[test]
fn a_state_directory_on_an_overlay_is_replaced_by_memory() {
    let state = State::new();
    let path = state.path();
    let parent = path.parent().expect("a parent").display();
    // As in a container: the state directory is on an overlay. Its own upper layer is on a tmpfs here.
    let script = format!(
        "mount -t tmpfs none /mnt && mkdir /mnt/l /mnt/u /mnt/w && \
         mount -t overlay overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w,userxattr {parent}"
    );
    let said = attempt("try", &state, &with_mounts(&script));
    assert_eq!(
        (&*said["outcome"], &*said["ran"]),
        ("made", "ran 0 "),
        "{said:?}"
    );
}

#[test]
fn a_limit_that_cannot_be_enforced_is_refused() {
    let cover = "for d in /sys/fs/cgroup/*; do mount -t tmpfs none $d; done";
    let said = attempt("try", &State::new(), &with_mounts(cover));
    assert!(said["memory"].starts_with("Unsupported "), "{said:?}");
    assert!(said["memory"].contains("control group"), "{said:?}");
    assert_eq!(said["outcome"], "made", "without the limit it works");
}

#[test]
fn a_machine_where_the_supervisor_could_be_traced_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let setting = directory.path().join("setting");
    std::fs::write(&setting, "1\n").unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/fs/suid_dumpable",
        setting.display()
    );
    let state = State::new();
    let said = attempt("try", &state, &with_mounts(&script));
    assert!(said["outcome"].contains("fs.suid_dumpable=0"), "{said:?}");
    assert_eq!((said.get("ran"), &*said["complete"]), (None, "false"));
    let said = attempt("doctor", &state, &with_mounts(&script));
    assert!(
        said["layers"].contains("supervisor: Missing commands could trace"),
        "{said:?}"
    );
}

#[test]
fn a_sandbox_of_a_spared_caller_is_not_spared_when_memory_runs_out() {
    // As low as this caller may go: below zero only with the right to.
    let script =
        "{ echo -500 > /proc/self/oom_score_adj; } 2> /dev/null || true; exec \"$0\" \"$@\"";
    let before = ["sh", "-c", script].map(str::to_owned);
    let said = attempt("score", &State::new(), &before);
    let outside: i32 = said["outside"].parse().unwrap();
    assert_eq!(said["inside"], outside.max(0).to_string(), "{said:?}");
}

//! A machine without user namespaces: nothing is run, unless its owner allows that to happen without a sandbox.

use std::path::Path;
use std::process::Command;

use crate::support::{Who, each, text};

/// The binary where no further user namespace can be made. (Its own one is what sets that limit.)
fn denied(who: &Who, arguments: &[&str]) -> Command {
    let mut command = who.program(Path::new("/usr/bin/unshare"));
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    command
        .args(["--user", "--map-root-user", "--", "sh", "-c", script])
        .arg(who.binary())
        .args(arguments);
    command
}

#[test]
fn nothing_is_run_and_the_way_out_is_named() {
    each(|who| {
        let directory = who.directory();
        let canary = directory.path().join("canary");
        let bind = format!("{}:/box", directory.path().display());
        let run = ["run", "--bind", &bind, "-c", "echo ran; touch /box/canary"];
        let touch = format!("echo ran; touch {}", canary.display());
        for arguments in [&run[..], &["run", "-c", &touch]] {
            for value in [None, Some(""), Some("0"), Some("maybe")] {
                let mut command = denied(who, arguments);
                if let Some(value) = value {
                    command.env("SANDBOX_ALLOW_UNSANDBOXED", value);
                }
                let output = command.output().unwrap();
                let errors = text(&output.stderr);
                assert_eq!(output.status.code(), Some(125), "{errors}");
                assert_eq!(text(&output.stdout), "");
                assert!(errors.contains("user namespace"), "{errors}");
                assert!(errors.contains("nothing was run"), "{errors}");
                assert!(errors.contains("SANDBOX_ALLOW_UNSANDBOXED"), "{errors}");
                assert!(!canary.exists());
            }
        }
    });
}

#[test]
fn the_owner_can_allow_it_and_is_warned() {
    each(|who| {
        for value in ["1", " Yes ", "TRUE", "on"] {
            let output = denied(who, &["run", "-c", "echo ran; exit 7"])
                .env("SANDBOX_ALLOW_UNSANDBOXED", value)
                .output()
                .unwrap();
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{errors}");
            assert_eq!(text(&output.stdout), "ran\n");
            assert!(errors.contains("NOT SANDBOXED"), "{errors}");
        }
    });
}

#[test]
fn where_a_sandbox_can_be_made_the_variable_changes_nothing() {
    each(|who| {
        let output = who
            .command(&["run", "-c", "ls /root /home; cat /proc/1/comm"])
            .env("SANDBOX_ALLOW_UNSANDBOXED", "1")
            .output()
            .unwrap();
        assert!(!text(&output.stderr).contains("NOT SANDBOXED"));
        let init = std::fs::read_to_string("/proc/1/comm").unwrap();
        assert_ne!(text(&output.stdout).lines().last(), Some(init.trim()));
    });
}

#[test]
fn doctor_names_the_layer_and_its_remedy() {
    each(|who| {
        let output = denied(who, &["doctor"]).output().unwrap();
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{table}");
        assert!(
            table.contains("missing") && table.contains("fix:"),
            "{table}"
        );

        let output = denied(who, &["doctor", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["usable"], false);
    });
}

//! The real binary, as root and as an unprivileged user: exit codes, streams, signals, terminals, refusals.

mod denied;
mod support;
mod terminal;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Identity, each, text};

#[test]
fn the_exit_code_is_the_commands() {
    each(|who| {
        for code in [0, 1, 3, 124, 255] {
            let output = who.run(&["-c", &format!("exit {code}")]);
            assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        }
        assert_eq!(who.run(&["--", "true"]).status.code(), Some(0));
        assert_eq!(who.run(&["false"]).status.code(), Some(1));
    });
}

#[test]
fn a_signal_is_128_and_its_number() {
    each(|who| {
        assert_eq!(who.run(&["-c", "kill -9 $$"]).status.code(), Some(137));
        assert_eq!(who.run(&["-c", "kill -TERM $$"]).status.code(), Some(143));
    });
}

#[test]
fn streams_stay_apart_and_nothing_is_added() {
    each(|who| {
        let output = who.run(&["-c", "printf out; printf err >&2; exit 5"]);
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            ("out".into(), "err".into())
        );
        assert_eq!(output.status.code(), Some(5));
    });
}

#[test]
fn arguments_arrive_as_they_are() {
    each(|who| {
        let output = who.run(&["--", "printf", "%s|", "", "a b", "$HOME", "--env", "'\"\n"]);
        assert_eq!(text(&output.stdout), "|a b|$HOME|--env|'\"\n|");
    });
}

#[test]
fn ten_megabytes_go_through_byte_for_byte() {
    each(|who| {
        let data: Vec<u8> = (0..10_u32 << 20)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut child = who
            .command(&["run", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let sent = data.clone();
        let writer = std::thread::spawn(move || stdin.write_all(&sent));
        let mut received = Vec::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut received)
            .unwrap();
        writer.join().unwrap().unwrap();
        assert!(
            received == data,
            "{} bytes came back, not the same",
            received.len()
        );
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn input_that_nobody_reads_is_no_error() {
    each(|who| {
        let mut child = who
            .command(&["run", "--", "true"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&vec![b'x'; 10 << 20]));
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(
            writer.join().unwrap().is_err(),
            "somebody took all of the input"
        );
    });
}

#[test]
fn without_input_there_is_end_of_file() {
    each(|who| {
        let output = who.run(&["-c", "cat; echo over"]);
        assert_eq!(text(&output.stdout), "over\n");
    });
}

#[test]
fn output_is_live() {
    each(|who| {
        let mut child = who
            .command(&["run", "-c", "echo first; read answer; echo $answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut first = [0; 6];
        stdout.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first\n");
        // The command waits for this line, so the first one came while it ran.
        child.stdin.take().unwrap().write_all(b"second\n").unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "second\n");
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn a_timeout_ends_everything_with_124() {
    each(|who| {
        let sleep = support::unusual_sleep();
        let script = format!("setsid {sleep} & trap '' TERM; {sleep}; {sleep}");
        let before = Instant::now();
        let output = who.run(&["--timeout", "500ms", "-c", &script]);
        assert_eq!(output.status.code(), Some(124));
        assert!(
            before.elapsed() < Duration::from_secs(5),
            "{:?}",
            before.elapsed()
        );
        assert!(text(&output.stderr).contains("timeout of 500ms passed"));
        support::wait_until_gone(&sleep);
    });
}

#[test]
fn a_timeout_works_although_nobody_takes_the_output() {
    each(|who| {
        let mut child = who
            .command(&["run", "--timeout", "500ms", "--", "yes"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let before = Instant::now();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(124));
        assert!(
            before.elapsed() < Duration::from_secs(10),
            "{:?}",
            before.elapsed()
        );
    });
}

#[test]
fn a_slow_reader_gets_everything_although_the_timeout_has_passed() {
    each(|who| {
        let mut child = who
            .command(&[
                "run",
                "--timeout",
                "1s",
                "--",
                "head",
                "-c",
                "150000",
                "/dev/zero",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        // The command itself is over at once: all it wrote lies in buffers between it and this reader.
        std::thread::sleep(Duration::from_secs(4));
        let mut received = Vec::new();
        stdout.read_to_end(&mut received).unwrap();
        assert_eq!(
            (received.len(), child.wait().unwrap().code()),
            (150_000, Some(0))
        );
    });
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    each(|who| {
        let marker = support::unusual_sleep();
        let mut child = who
            .command(&[
                "run",
                "-c",
                &format!("{marker} & while echo line; do :; done"),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut line).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(141));
        assert_eq!(text(&output.stderr), "");
        support::wait_until_gone(&marker);
    });
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    each(|who| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = who
            .command(&["run", "--", "yes"])
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(
            text(&output.stderr).contains("No space left"),
            "{}",
            text(&output.stderr)
        );
    });
}

#[test]
fn interrupt_and_terminate_end_everything() {
    each(|who| {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            let sleep = support::unusual_sleep();
            let mut child = who
                .command(&["run", "-c", &format!("setsid {sleep} & echo up; {sleep}")])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut [0; 3])
                .unwrap();
            support::send(&child, signal);
            assert_eq!(child.wait().unwrap().code(), Some(code));
            support::wait_until_gone(&sleep);
        }
    });
}

#[test]
fn a_second_interrupt_does_not_wait_for_the_grace() {
    each(|who| {
        let mut child = who
            .command(&[
                "run",
                "--timeout",
                "1h",
                "-c",
                "trap '' TERM; echo up; while :; do sleep 0.1; done",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 3])
            .unwrap();
        let before = Instant::now();
        support::send(&child, Signal::INT);
        // Signals of one kind merge: the second must come after the first was taken.
        std::thread::sleep(Duration::from_millis(200));
        support::send(&child, Signal::INT);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(
            before.elapsed() < Duration::from_millis(1500),
            "{:?}",
            before.elapsed()
        );
    });
}

#[test]
fn a_kill_of_the_command_line_leaves_nothing() {
    each(|who| {
        let sleep = support::unusual_sleep();
        let mut child = who
            .command(&["run", "-c", &format!("setsid {sleep} & echo up; {sleep}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 3])
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        support::wait_until_gone(&sleep);
    });
}

#[test]
fn programs_that_cannot_be_started_have_the_codes_of_a_shell() {
    each(|who| {
        let missing = who.run(&["--", "no-such-program"]);
        assert_eq!(missing.status.code(), Some(127));
        assert!(
            text(&missing.stderr).contains("no-such-program"),
            "{}",
            text(&missing.stderr)
        );

        let directory = who.directory();
        fs::write(directory.path().join("data"), "no program").unwrap();
        let bind = format!("{}:/box:ro", directory.path().display());
        let output = who.run(&["--bind", &bind, "--", "/box/data"]);
        assert_eq!(output.status.code(), Some(126), "{}", text(&output.stderr));
    });
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_runs() {
    each(|who| {
        let directory = who.directory();
        let bind = format!("{}:/box", directory.path().display());
        let cases: [(&[&str], &str); 12] = [
            (&["--timout", "1s"], "--timeout"),
            (&["--timeout", "10"], "the unit is missing"),
            (&["--timeout", "0s"], "--timeout"),
            (&["--memory", "-1"], "--memory"),
            (&["--memory", "1k"], "--memory"),
            (&["--cpus", "nan"], "--cpus"),
            (&["--pids", "0"], "--pids"),
            (&["--env", "=x"], "the name is empty"),
            (&["--env", "SURELY_NOT_SET"], "SURELY_NOT_SET"),
            (&["--bind", "/usr"], "missing"),
            (&["--bind", "/no/such/path:/x"], "/no/such/path"),
            (&["--cwd", "no/such/dir"], "no/such/dir"),
        ];
        for (options, expected) in cases {
            let mut arguments = vec!["--bind", &bind];
            arguments.extend(options);
            arguments.extend(["--", "touch", "/box/canary"]);
            let output = who.run(&arguments);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {errors}");
            assert!(errors.contains(expected), "{options:?}: {errors}");
            assert!(!directory.path().join("canary").exists(), "{options:?} ran");
        }
        // The same command without those options does run.
        assert!(
            who.run(&["--bind", &bind, "--", "touch", "/box/canary"])
                .status
                .success()
        );
        assert!(directory.path().join("canary").exists());
    });
}

#[test]
fn the_environment_is_what_was_given_and_no_more() {
    each(|who| {
        let output = who
            .command(&[
                "run",
                "--env",
                "GIVEN=a=b\nc",
                "--env",
                "TAKEN",
                "--",
                "env",
                "-0",
            ])
            .env("TAKEN", "from the caller")
            .env("SECRET", "stays outside")
            .output()
            .unwrap();
        let variables = text(&output.stdout);
        let variables: Vec<&str> = variables.split_terminator('\0').collect();
        assert!(variables.contains(&"GIVEN=a=b\nc"), "{variables:?}");
        assert!(
            variables.contains(&"TAKEN=from the caller"),
            "{variables:?}"
        );
        assert!(
            !variables
                .iter()
                .any(|variable| variable.contains("outside")),
            "{variables:?}"
        );
    });
}

#[test]
fn binds_are_writable_or_read_only_as_asked() {
    each(|who| {
        let directory = who.directory();
        fs::write(directory.path().join("in"), "hello").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let run = |mode: &str, script: &str| {
            who.command(&[
                "run",
                "--bind",
                &format!(".:/box{mode}"),
                "--cwd",
                "/box",
                "-c",
                script,
            ])
            .current_dir(directory.path())
            .output()
            .unwrap()
        };
        let output = run("", "cat in; echo out > made");
        assert_eq!(text(&output.stdout), "hello", "{}", text(&output.stderr));
        assert_eq!(
            fs::read_to_string(directory.path().join("made")).unwrap(),
            "out\n"
        );
        let output = run(":ro", "cat in; echo out > refused");
        assert_eq!(text(&output.stdout), "hello");
        assert!(!output.status.success());
        assert!(!directory.path().join("refused").exists());
    });
}

#[test]
fn the_network_is_closed_unless_it_is_the_hosts() {
    each(|who| {
        let interfaces = |devices: &str| -> Vec<String> {
            let names = devices.lines().filter_map(|line| line.split_once(':'));
            names.map(|(name, _)| name.trim().to_owned()).collect()
        };
        let output = who.run(&["--", "cat", "/proc/net/dev"]);
        assert_eq!(interfaces(&text(&output.stdout)), ["lo"]);
        let output = who.run(&["--network", "host", "--", "cat", "/proc/net/dev"]);
        let host = fs::read_to_string("/proc/net/dev").unwrap();
        assert_eq!(interfaces(&text(&output.stdout)), interfaces(&host));
    });
}

#[test]
fn users_are_those_of_the_sandbox_or_refused() {
    each(|who| {
        let output = who.run(&["--user", "1000:100", "-c", "id -u; id -g"]);
        match who.identity {
            Identity::Root => assert_eq!(
                text(&output.stdout),
                "1000\n100\n",
                "{}",
                text(&output.stderr)
            ),
            _ => {
                assert_eq!(output.status.code(), Some(125));
                assert!(
                    text(&output.stderr).contains("does not support"),
                    "{}",
                    text(&output.stderr)
                );
            }
        }
    });
}

#[test]
fn a_root_directory_is_the_base_and_stays_as_it_was() {
    each(|who| {
        let root = who.directory();
        fs::create_dir(root.path().join("bin")).unwrap();
        support::copy_program(Path::new("/bin/busybox"), &root.path().join("bin/sh"));
        fs::write(root.path().join("greeting"), "hello").unwrap();
        who.give(root.path());
        let directory = root.path().to_str().unwrap();
        let script = "read line < /greeting; echo $line; echo changed > /greeting; echo new > /new";
        let output = who.run(&["--root", directory, "--", "/bin/sh", "-c", script]);
        assert_eq!(text(&output.stdout), "hello\n", "{}", text(&output.stderr));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(
            fs::read_to_string(root.path().join("greeting")).unwrap(),
            "hello"
        );
        assert!(!root.path().join("new").exists());
    });
}

#[test]
fn help_names_the_exit_codes_and_goes_to_standard_output() {
    each(|who| {
        let output = who.command(&["run", "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        for expected in [
            "124",
            "125",
            "126",
            "127",
            "--timeout",
            "SANDBOX_ALLOW_UNSANDBOXED",
        ] {
            assert!(
                text(&output.stdout).contains(expected),
                "{expected} is missing"
            );
        }
        assert_eq!(
            who.command(&["--version"]).output().unwrap().status.code(),
            Some(0)
        );
        assert_eq!(who.command(&[]).output().unwrap().status.code(), Some(125));
    });
}

#[test]
fn doctor_tells_every_layer() {
    each(|who| {
        let output = who.command(&["doctor"]).output().unwrap();
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{table}");
        assert!(table.contains("enforced"), "{table}");

        let output = who.command(&["doctor", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["usable"], true);
        let layers = report["layers"].as_array().unwrap();
        assert!(layers.len() >= 5, "{layers:?}");
        for layer in layers {
            let state = layer["state"].as_str().unwrap();
            assert!(
                ["enforced", "degraded", "missing"].contains(&state),
                "{layer}"
            );
            assert!(!layer["name"].as_str().unwrap().is_empty(), "{layer}");
            assert!(!layer["detail"].as_str().unwrap().is_empty(), "{layer}");
            if state == "missing" {
                assert!(
                    !layer["remedy"].as_str().unwrap_or_default().is_empty(),
                    "{layer}"
                );
            }
        }
    });
}

//! This test binary as a process of its own: as another user, as a host that is killed, or where namespaces are denied.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandbox_core::{Backend, Cmd, ErrorKind, Lifetime};
use sandbox_native::Native;

use crate::support::spec;

const MODE: &str = "SANDBOX_TEST_HELPER";
const STATE: &str = "SANDBOX_TEST_STATE";
/// An ordinary user that the system has no other use for.
pub(crate) const ORDINARY: u32 = 65_533;

/// The helper, started in a mode, optionally by another program in front of it.
pub(crate) fn helper(mode: &str, state: &Path, before: &[&str]) -> Command {
    let own = std::env::current_exe().expect("this program");
    let mut command = match before.split_first() {
        None => Command::new(&own),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(&own);
            command
        }
    };
    command
        .args([
            "helper::as_a_process",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(MODE, mode)
        .env(STATE, state)
        .env("SANDBOX_STATE_DIR", state)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    command
}

/// What a helper that ends by itself said: lines `key=value`.
pub(crate) fn answers(command: &mut Command) -> BTreeMap<String, String> {
    let output = command.output().expect("the helper starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers: BTreeMap<String, String> = text.lines().filter_map(answer).collect();
    assert!(
        !answers.is_empty(),
        "{:?}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    answers
}

fn answer(line: &str) -> Option<(String, String)> {
    // The harness writes in front of the first one.
    let at = line.find("answer ")?;
    let (key, value) = line[at + 7..].split_once('=')?;
    Some((key.to_owned(), value.to_owned()))
}

/// A helper that lives until it is killed, after it has said all it has to.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) answers: BTreeMap<String, String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the helper starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut answers = BTreeMap::new();
        for line in lines.map_while(Result::ok) {
            match answer(&line) {
                Some((key, _)) if key == "done" => break,
                Some((key, value)) => drop(answers.insert(key, value)),
                None => {}
            }
        }
        Running { child, answers }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(key: &str, value: impl std::fmt::Display) {
    println!("answer {key}={}", value.to_string().replace('\n', " "));
    std::io::stdout().flush().expect("standard output");
}

/// The number that a process of a sandbox has outside: that of the process whose command line ends in `mark`.
pub(crate) fn outside(mark: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line
            .split(|b| *b == 0)
            .any(|argument| argument == mark.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// Children of a process whose second argument is `mode`.
pub(crate) fn children(parent: u32, mode: &str) -> Vec<u32> {
    let of_parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    outside(mode).into_iter().filter(of_parent).collect()
}

/// Kills one process by its number.
pub(crate) fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
}

#[tokio::test]
#[ignore = "a process that other tests start"]
async fn as_a_process() {
    let mode = std::env::var(MODE).expect("started by other tests only");
    let state = std::env::var(STATE).expect("started by other tests only");
    let builder = Native::builder().state_dir(state);
    match mode.as_str() {
        "try" => try_once(builder).await,
        "doctor" => {
            // It takes the state directory from the environment, as the command line program does.
            let report = Native::doctor().expect("a report");
            let layers: Vec<String> = report
                .layers
                .iter()
                .map(|layer| format!("{}: {:?} {}", layer.name, layer.state, layer.detail))
                .collect();
            say(
                "layers",
                format!("usable {}; {}", report.usable, layers.join("; ")),
            );
        }
        "nursery" => {
            let native = builder.build().await.expect("a backend");
            let first = native.create(spec("first")).await.expect("a sandbox");
            let mut running = native
                .exec(&first, Cmd::argv(["sleep", "3600"]))
                .await
                .expect("a command");
            let nurseries = children(std::process::id(), "nursery");
            say("nurseries", nurseries.len());
            for pid in nurseries {
                kill(pid);
            }
            let bound = Duration::from_secs(10);
            let result = tokio::time::timeout(bound, running.wait())
                .await
                .expect("a result");
            say(
                "unavailable",
                result
                    .error
                    .is_some_and(|error| error.kind() == ErrorKind::Unavailable),
            );
            let error = native
                .exec(&first, Cmd::argv(["true"]))
                .await
                .expect_err("no sandbox, no command");
            say("next", format!("{:?}", error.kind()));
            native.destroy(&first).await.expect("destroyed");
            let second = native
                .create(spec("second"))
                .await
                .expect("another sandbox");
            native.destroy(&second).await.expect("destroyed");
            say("second", "made");
        }
        "score" => {
            const SCORE: &str = "/proc/self/oom_score_adj";
            let native = builder.build().await.expect("a backend");
            let handle = native.create(spec("scored")).await.expect("a sandbox");
            say(
                "outside",
                std::fs::read_to_string(SCORE).expect("a score").trim(),
            );
            let inside = crate::support::output(&native, &handle, &format!("cat {SCORE}")).await;
            say("inside", inside.trim());
            native.destroy(&handle).await.expect("destroyed");
        }
        "filtered" => {
            forbid_namespaces();
            try_once(builder).await;
        }
        "host" | "detach" => {
            let native = builder.build().await.expect("a backend");
            let mark = format!("3600.{}", std::process::id());
            let mut spec = spec("held");
            if mode == "detach" {
                spec.lifetime = Lifetime::Detached {
                    ttl: Duration::from_secs(3600),
                };
                spec.env.set("FROM_SPEC", "yes");
            } else if native.capabilities().limits.memory.is_yes() {
                spec.limits.memory = Some(256 << 20);
            }
            let handle = native.create(spec).await.expect("a sandbox");
            // Processes that a signal to a group or a session does not reach.
            let script = format!(
                "setsid sleep {mark} & (setsid sleep {mark} &) ; sleep {mark} & sleep {mark}; echo over"
            );
            let mut execution = native
                .exec(&handle, Cmd::shell(script))
                .await
                .expect("a command");
            while outside(&mark).len() < 4 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            say("mark", &mark);
            say("id", &handle.id);
            say("done", "");
            // Until it is killed, and not for ever in any case.
            tokio::time::timeout(Duration::from_secs(120), execution.wait())
                .await
                .expect("killed before");
        }
        other => panic!("unknown mode {other}"),
    }
}

/// Makes a sandbox, and says what came of it.
async fn try_once(builder: sandbox_native::Builder) {
    let native = builder.build().await.expect("a backend");
    let caps = native.capabilities();
    say("complete", caps.isolation.is_complete());
    let mut wanted = spec("tried");
    let memory = native.create({
        wanted.limits.memory = Some(256 << 20);
        wanted
    });
    say(
        "memory",
        match memory.await {
            Ok(handle) => {
                native.destroy(&handle).await.expect("destroyed");
                "made".to_owned()
            }
            Err(error) => format!("{:?} {error}", error.kind()),
        },
    );
    match native.create(spec("tried")).await {
        Ok(handle) => {
            let result = native
                .exec(&handle, Cmd::shell("echo ran; id -u"))
                .await
                .expect("a command")
                .wait()
                .await;
            say("ran", String::from_utf8_lossy(&result.stdout));
            native.destroy(&handle).await.expect("destroyed");
            say("outcome", "made");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Isolation, "{error}");
            say("outcome", error);
        }
    }
    say("done", "");
}

/// As a container engine's filter does: no namespaces, and a `clone3` that does not exist because its flags cannot be seen.
fn forbid_namespaces() {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };
    const NEW_USER: u64 = 0x1000_0000;
    let arch = if cfg!(target_arch = "aarch64") {
        TargetArch::aarch64
    } else {
        TargetArch::x86_64
    };
    let has_user = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(NEW_USER),
        NEW_USER,
    );
    let new_user = SeccompRule::new(vec![has_user.expect("a condition")]).expect("a rule");
    let filters = [
        (
            libc::EPERM,
            vec![
                (libc::SYS_unshare, Vec::new()),
                (libc::SYS_clone, vec![new_user]),
            ],
        ),
        (libc::ENOSYS, vec![(libc::SYS_clone3, Vec::new())]),
    ];
    for (errno, rules) in filters {
        let answer = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(
            rules.into_iter().collect(),
            SeccompAction::Allow,
            answer,
            arch,
        );
        let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
        seccompiler::apply_filter_all_threads(&program).expect("a filter in force");
    }
}

//! Every door of the escape matrix, tried by a hostile program from inside, with its effect looked for on the host.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use sandbox_core::{Backend, Bind, Cmd, NetworkMode, SandboxPath};

use crate::hostile;
use crate::support::{State, output, run, spec};

/// What the host has that a sandbox must not get at.
struct Treasure {
    file: tempfile::NamedTempFile,
    socket_name: String,
    _socket: UnixListener,
    port: TcpListener,
}

impl Treasure {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "secret").expect("a secret");
        let socket_name = format!("sandbox-native-test-{}", file.path().display());
        let address = SocketAddr::from_abstract_name(&socket_name).expect("a name");
        Treasure {
            socket_name,
            _socket: UnixListener::bind_addr(&address).expect("a socket"),
            port: TcpListener::bind("127.0.0.1:0").expect("a port"),
            file,
        }
    }

    fn program(&self) -> Cmd {
        Cmd::argv([
            "/run/hostile",
            "hostile::try_all_doors",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("HOSTILE", "1")
        .env(hostile::HOST_PID, std::process::id().to_string())
        .env(hostile::HOST_FILE, self.file.path().display().to_string())
        .env(hostile::HOST_SOCKET, self.socket_name.clone())
        .env(
            hostile::HOST_PORT,
            self.port
                .local_addr()
                .expect("an address")
                .port()
                .to_string(),
        )
        .env(hostile::HOST_SHM, "1397882963")
    }
}

/// The doors that did not hold, and how many were tried.
fn open_doors(report: &str) -> (Vec<&str>, usize) {
    // The test harness's own line shares one with the first door.
    let lines: Vec<&str> = report
        .lines()
        .filter_map(|line| {
            line.find("held\t")
                .or_else(|| line.find("OPEN\t"))
                .map(|at| &line[at..])
        })
        .collect();
    let open = lines
        .iter()
        .copied()
        .filter(|line| line.starts_with("OPEN"))
        .collect();
    (open, lines.len())
}

const FEWEST_DOORS: usize = 150;

#[tokio::test]
async fn every_door_is_shut() {
    let settings = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
    ];
    let before = settings.map(|path| std::fs::read(path).expect("a setting"));
    let state = State::new();
    let native = state.native().await;
    let treasure = Treasure::new();
    let mut spec = spec("hostile");
    let own = std::env::current_exe().expect("this program");
    spec.binds.push(Bind::read_only(
        &own,
        SandboxPath::new("/run/hostile").unwrap(),
    ));
    let digest = std::fs::read(&own).expect("this program");
    let handle = native.create(spec).await.unwrap();

    let result = native
        .exec(&handle, treasure.program())
        .await
        .unwrap()
        .wait()
        .await;
    let report = String::from_utf8_lossy(&result.stdout).into_owned();
    let (open, tried) = open_doors(&report);
    assert!(open.is_empty(), "{}", open.join("\n"));
    assert!(
        tried >= FEWEST_DOORS,
        "only {tried} doors were tried:\n{report}{}",
        String::from_utf8_lossy(&result.stderr)
    );
    assert!(result.success(), "{:?}", result.status);

    // Process 1 took no notice of the signals, and the host of nothing at all.
    assert_eq!(output(&native, &handle, "echo alive").await, "alive\n");
    assert_eq!(
        settings.map(|path| std::fs::read(path).expect("a setting")),
        before
    );
    assert_eq!(
        std::fs::read_to_string(treasure.file.path()).unwrap(),
        "secret"
    );
    assert!(
        std::fs::read(&own).unwrap() == digest,
        "the program was changed through its bind"
    );
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn abstract_sockets_of_the_host_are_out_of_reach_on_its_network_too() {
    let state = State::new();
    let native = state.native().await;
    let treasure = Treasure::new();
    let mut spec = spec("online");
    spec.network = NetworkMode::Host;
    let own = std::env::current_exe().expect("this program");
    spec.binds.push(Bind::read_only(
        own,
        SandboxPath::new("/run/hostile").unwrap(),
    ));
    let handle = native.create(spec).await.unwrap();
    let result = native
        .exec(&handle, treasure.program())
        .await
        .unwrap()
        .wait()
        .await;
    let report = String::from_utf8_lossy(&result.stdout).into_owned();
    let (open, tried) = open_doors(&report);
    assert!(
        tried >= FEWEST_DOORS,
        "only {tried} doors were tried:\n{report}"
    );
    let allowed = ["OPEN\ta port of the host", "OPEN\tthe network"];
    let others: Vec<_> = open
        .into_iter()
        .filter(|door| !allowed.iter().any(|allowed| door.starts_with(allowed)))
        .collect();
    assert!(others.is_empty(), "{}", others.join("\n"));
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn no_set_uid_file_can_be_left_in_a_directory_of_the_host() {
    let state = State::new();
    let native = state.native().await;
    let shared = tempfile::tempdir().unwrap();
    let mut spec = spec("writer");
    spec.binds.push(Bind::writable(
        shared.path(),
        SandboxPath::new("/shared").unwrap(),
    ));
    let handle = native.create(spec).await.unwrap();
    for attempt in [
        "cp /bin/true /shared/a && chmod u+s /shared/a",
        "cp /bin/true /shared/b && chmod 2755 /shared/b",
        "python3 -c 'import os; os.close(os.open(\"/shared/c\", os.O_CREAT | os.O_WRONLY, 0o4755))'",
        "python3 -c 'import os; os.mknod(\"/shared/d\", 0o104755)'",
    ] {
        let result = run(&native, &handle, attempt).await;
        assert!(!result.success(), "{attempt}: {:?}", result.status);
    }
    assert_eq!(
        output(&native, &handle, "chmod 755 /shared/a && echo fine").await,
        "fine\n"
    );
    for entry in std::fs::read_dir(shared.path()).unwrap() {
        use std::os::unix::fs::MetadataExt;
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().mode() & 0o6000,
            0,
            "{:?}",
            entry.path()
        );
    }
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn descriptors_that_the_host_leaks_do_not_arrive() {
    // Without close-on-exec, as a careless program opens them: the host's root in many places (CVE-2024-21626).
    let root = std::fs::File::open("/").expect("the root");
    let leaked: Vec<_> = (0..40)
        .map(|_| rustix::io::dup(&root).expect("a descriptor"))
        .collect();
    let state = State::new();
    let native = state.native().await;
    let handle = native.create(spec("leaky")).await.unwrap();
    let listing = output(&native, &handle, "ls /proc/self/fd | wc -l").await;
    // 0, 1, 2, and the listing's own.
    assert_eq!(listing.trim(), "4");
    for fd in [7, 20, 40] {
        let command = Cmd::argv(["pwd"])
            .cwd(format!("/proc/self/fd/{fd}"))
            .unwrap();
        let refused = match native.exec(&handle, command).await {
            Err(_) => true,
            Ok(mut execution) => !execution.wait().await.success(),
        };
        assert!(refused, "descriptor {fd} was a working directory");
    }
    drop(leaked);
    native.destroy(&handle).await.unwrap();
}

#[tokio::test]
async fn two_sandboxes_see_nothing_of_each_other() {
    let state = State::new();
    let native = state.native().await;
    let (a, b) = (
        native.create(spec("a")).await.unwrap(),
        native.create(spec("b")).await.unwrap(),
    );
    let mark = format!("3603.{}", std::process::id());
    let script = format!(
        "echo x | tee /dev/shm/f /tmp/f /var/tmp/f /work/f /root/f > /dev/null; \
         python3 -c 'import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(\"\\0mine\"); s.listen(); time.sleep({mark})'"
    );
    let mut running = native.exec(&a, Cmd::shell(script)).await.unwrap();
    let listening = "until grep -q '@mine' /proc/net/unix; do sleep 0.01; done; echo there";
    assert_eq!(output(&native, &a, listening).await, "there\n");
    let look = "ls /dev/shm /tmp /var/tmp /work /root | grep -c f; grep -c '@mine' /proc/net/unix; \
                cat /proc/[0-9]*/comm | grep -c python3; true";
    assert_eq!(output(&native, &b, look).await, "0\n0\n0\n");
    running.kill();
    let _ = running.wait().await;
    native.destroy(&a).await.unwrap();
    native.destroy(&b).await.unwrap();
}

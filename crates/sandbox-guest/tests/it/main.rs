//! The guest as an ordinary process of the host, driven both ways: with passed descriptors and in frames.

mod wire;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sandbox_core::{
    ByteStream, CancelToken, Cmd, EndedBy, Env, ErrorKind, ExitStatus, OutputStream, PtySize,
    SandboxPath,
};
use sandbox_guest::{ExecContext, GuestClient, INIT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A guest in a directory of its own.
struct Guest {
    client: GuestClient,
    child: Child,
    dir: tempfile::TempDir,
}

impl Guest {
    async fn start(local: bool) -> Guest {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = program();
        let workdir = dir.path().join("work");
        std::fs::create_dir(&workdir).expect("mkdir");
        let (near, far) = UnixStream::pair().expect("a socket pair");
        // Ignored signals are inherited; what the guest starts must not have them.
        let child = Command::new("/bin/sh")
            .args(["-c", "trap '' INT QUIT TERM; exec \"$0\" serve confined"])
            .arg(program)
            .env_clear()
            .current_dir(&workdir)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .expect("the guest starts");
        let client = if local {
            GuestClient::connect_local(near).await
        } else {
            near.set_nonblocking(true).expect("nonblocking");
            GuestClient::connect(tokio::net::UnixStream::from_std(near).expect("a socket")).await
        };
        Guest {
            client: client.expect("the guest answers"),
            child,
            dir,
        }
    }

    fn context(&self) -> ExecContext {
        ExecContext::new(Env::new().with("PATH", "/usr/bin:/bin"), "/bin/sh")
    }

    async fn run(&self, cmd: Cmd) -> sandbox_core::ExecResult {
        self.client
            .exec(&cmd, self.context())
            .await
            .expect("it starts")
            .wait()
            .await
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.client.close();
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().expect("wait").is_none() {
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                assert!(
                    std::thread::panicking(),
                    "the guest did not end with its connection"
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The guest on disk, written once: an executable that some other test's fork holds open for writing cannot be started.
fn program() -> &'static std::path::Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("sandbox-init");
        std::fs::write(&program, INIT).expect("the guest can be written");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("chmod");
        (dir, program)
    });
    program
}

fn path(path: impl AsRef<[u8]>) -> SandboxPath {
    SandboxPath::new(path).expect("a good path")
}

macro_rules! both_ways {
    ($($name:ident($guest:ident) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn check($guest: &Guest) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn with_descriptors() {
                check(&Guest::start(true).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_frames() {
                check(&Guest::start(false).await).await;
            }
        })*
    };
}

both_ways! {
    commands_have_exact_results(guest) {
        let result = guest.run(Cmd::shell("echo out; echo err >&2; exit 300")).await;
        assert_eq!(result.status, Some(ExitStatus::Code(44)));
        assert_eq!((&result.stdout[..], &result.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(result.ended_by, EndedBy::Exited);
        assert!(!result.background && result.error.is_none());
        let killed = guest.run(Cmd::shell("kill -9 $$")).await;
        assert_eq!(killed.status, Some(ExitStatus::Signal(9)));
        assert_eq!(guest.run(Cmd::shell("exit 137")).await.status, Some(ExitStatus::Code(137)));
    }

    a_command_that_cannot_start_is_an_error(guest) {
        let cases = [
            (Cmd::argv(["/no/such/program"]), ErrorKind::NotFound),
            (Cmd::argv(["no-such-program"]), ErrorKind::NotFound),
            (Cmd::argv(["/etc/passwd"]), ErrorKind::NotExecutable),
            (Cmd::argv(["/"]), ErrorKind::NotExecutable),
            (Cmd::argv(["true"]).cwd("missing").expect("a path"), ErrorKind::BadCwd),
            (Cmd::argv(["true"]).cwd("/etc/passwd").expect("a path"), ErrorKind::BadCwd),
            (Cmd::argv(["true"]).cwd("/proc/self/fd/5").expect("a path"), ErrorKind::BadCwd),
            (Cmd::argv(["true"]).user("nobody-at-all".parse().expect("a user")), ErrorKind::UserNotFound),
        ];
        for (cmd, kind) in cases {
            let error = guest.client.exec(&cmd, guest.context()).await.expect_err("it must not start");
            assert_eq!(error.kind(), kind, "{cmd:?}: {error}");
        }
    }

    output_arrives_whole_and_in_order(guest) {
        let mut execution =
            guest.client.exec(&Cmd::shell("seq 1 200000"), guest.context()).await.expect("it starts");
        let mut all = Vec::new();
        while let Some(chunk) = execution.next_chunk().await {
            assert_eq!(chunk.stream, OutputStream::Stdout);
            assert!(chunk.data.len() <= sandbox_core::MAX_CHUNK);
            all.extend_from_slice(&chunk.data);
        }
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(all, expected.as_bytes());
        assert!(execution.wait().await.success());
    }

    both_streams_can_carry_much_at_once(guest) {
        let script = "head -c 10485760 /dev/zero & head -c 10485760 /dev/zero >&2; wait";
        let mut execution =
            guest.client.exec(&Cmd::shell(script), guest.context()).await.expect("it starts");
        let mut counts = [0, 0];
        while let Some(chunk) = execution.next_chunk().await {
            counts[usize::from(chunk.stream == OutputStream::Stderr)] += chunk.data.len();
        }
        assert_eq!(counts, [10_485_760; 2]);
    }

    input_is_exact(guest) {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
        let echoed = guest
            .run(Cmd::argv(["cat"]).stdin_bytes(bytes.clone())
                .limits(sandbox_core::OutputLimits::new(1 << 30, 0, sandbox_core::Overflow::Truncate)))
            .await;
        assert!(echoed.stdout == bytes, "{} of {} bytes", echoed.stdout.len(), bytes.len());
        assert_eq!(&guest.run(Cmd::shell("cat; echo done")).await.stdout[..], b"done\n");
        let ignored = guest.run(Cmd::shell("exit 0").stdin_bytes(vec![0; 4_000_000])).await;
        assert!(ignored.success());
    }

    piped_input_ends_where_the_writer_ends_it(guest) {
        let cmd = Cmd::argv(["cat"]).stdin_piped();
        let mut execution = guest.client.exec(&cmd, guest.context()).await.expect("it starts");
        let mut stdin = execution.take_stdin().expect("a writer");
        stdin.write_all(b"one ").await.expect("written");
        stdin.write_all(b"two").await.expect("written");
        stdin.shutdown().await.expect("ended");
        drop(stdin);
        assert_eq!(&execution.wait().await.stdout[..], b"one two");

        let cmd = Cmd::argv(["true"]).stdin_piped();
        let mut execution = guest.client.exec(&cmd, guest.context()).await.expect("it starts");
        let mut stdin = execution.take_stdin().expect("a writer");
        assert!(execution.wait().await.success());
        let mut failed = Ok(());
        for _ in 0..100 {
            failed = stdin.write_all(&[0; 65_536]).await;
            if failed.is_err() { break; }
        }
        assert_eq!(failed.expect_err("nobody reads").kind(), std::io::ErrorKind::BrokenPipe);
    }

    a_background_process_does_not_hold_the_result(guest) {
        let started = Instant::now();
        let result = guest.run(Cmd::shell("sleep 30 & echo hi; echo $! > pid")).await;
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(&result.stdout[..], b"hi\n");
        assert!(result.background);
        let alive = guest.run(Cmd::shell("kill -0 $(cat pid) && kill -9 $(cat pid)")).await;
        assert!(alive.success(), "{alive:?}");
    }

    late_output_is_kept_and_later_output_hurts_nobody(guest) {
        let result = guest.run(Cmd::shell("(sleep 0.05; echo late) & echo early")).await;
        assert_eq!(&result.stdout[..], b"early\nlate\n");
        // Longer than the drain waits: the write must not be a SIGPIPE.
        let script = "(sleep 0.4; echo later; echo survived > file) & echo early";
        assert_eq!(&guest.run(Cmd::shell(script)).await.stdout[..], b"early\n");
        let deadline = Instant::now() + Duration::from_secs(5);
        while !guest.work().join("file").exists() {
            assert!(Instant::now() < deadline, "the background process did not survive its write");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    a_cancel_ends_the_whole_tree(guest) {
        // Unique on the host: without a namespace of its own the guest sees all processes.
        let mark = format!("300.{}", guest.child.id());
        let script = format!(
            "trap '' TERM; setsid sh -c 'trap \"\" TERM; setsid sleep {mark} >/dev/null 2>&1 & wait' & \
             (sh -c 'sleep {mark} & kill -STOP $$' &) ; echo up; sleep {mark}"
        );
        let token = CancelToken::new();
        let cmd = Cmd::shell(script).cancel(token.clone()).grace(Duration::from_millis(100));
        let mut execution = guest.client.exec(&cmd, guest.context()).await.expect("it starts");
        assert!(execution.next_chunk().await.is_some());
        let other = guest.client.exec(&Cmd::shell("sleep 0.5; echo unharmed"), guest.context()).await;
        token.cancel();
        let result = execution.wait().await;
        assert_eq!(result.ended_by, EndedBy::Cancelled);
        assert!(result.error.is_none(), "{:?}", result.error);
        let look = format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'slee[p] {mark}'");
        let left = guest.run(Cmd::shell(look)).await;
        assert_eq!(String::from_utf8_lossy(&left.stdout).trim(), "0");
        assert_eq!(&other.expect("it starts").wait().await.stdout[..], b"unharmed\n");
    }

    a_timeout_keeps_the_last_words(guest) {
        let cmd = Cmd::shell("trap 'echo bye; exit 7' TERM; echo hi; while :; do sleep 0.01; done")
            .timeout(Duration::from_millis(300));
        let result = guest.run(cmd).await;
        assert_eq!(result.ended_by, EndedBy::TimedOut);
        assert_eq!(&result.stdout[..], b"hi\nbye\n");
    }

    a_terminal_has_a_size_and_signals(guest) {
        let size = PtySize { rows: 40, columns: 123 };
        let result = guest.run(Cmd::shell("stty size; tty").pty(size)).await;
        let text = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(text.starts_with("40 123\r\n/dev/pts/"), "{text:?}");
        // One process: a shell between the two may take the signal before it has forked, and then waits for its child.
        let cmd = Cmd::shell("echo up; exec sleep 60").pty(size).stdin_piped();
        let mut execution = guest.client.exec(&cmd, guest.context()).await.expect("it starts");
        let mut stdin = execution.take_stdin().expect("a writer");
        assert!(execution.next_chunk().await.is_some());
        stdin.write_all(b"\x03").await.expect("written");
        let result = execution.wait().await;
        assert_eq!(result.status.map(ExitStatus::as_code), Some(130), "{result:?}");
        assert_eq!(&guest.run(Cmd::shell("cat; echo end").pty(size)).await.stdout[..], b"end\r\n");
    }

    files_round_trip(guest) {
        for size in [0, 1, 65_536, 65_537, 3_000_000] {
            let content: Vec<u8> = (0..size).map(|n: u32| (n * 7) as u8).collect();
            let target = path("sub/dir/file");
            guest.client.write_file(&target, ByteStream::from_bytes(content.clone())).await.expect("written");
            let read = guest.client.read_file(&target).await.expect("opened");
            assert!(read.collect(1 << 30).await.expect("read") == content, "{size} bytes");
            assert_eq!(guest.client.stat(&target).await.expect("stat").size, u64::from(size));
        }
        let failing = futures_util::stream::iter([
            Ok(vec![1; 100_000].into()),
            Err(sandbox_core::Error::io("the source", std::io::Error::other("gone"))),
        ]);
        let failed = guest.client.write_file(&path("sub/dir/file"), ByteStream::new(failing)).await;
        assert_eq!(failed.expect_err("the content failed").kind(), ErrorKind::Io);
        assert_eq!(guest.client.stat(&path("sub/dir/file")).await.expect("stat").size, 3_000_000);
        // The temporary file goes when the guest has seen the abort.
        let listed = guest.client.list_dir(&path("sub/dir")).await.expect("listed");
        assert_eq!(listed.len(), 1, "{listed:?}");
        guest.client.delete_file(&path("sub/dir/file")).await.expect("deleted");
    }

    file_errors_have_their_kinds(guest) {
        std::fs::create_dir(guest.work().join("d")).expect("mkdir");
        std::fs::write(guest.work().join("f"), "x").expect("written");
        assert!(Command::new("mkfifo").arg(guest.work().join("p")).status().expect("mkfifo").success());
        let kind = |result: sandbox_core::Result<()>| result.expect_err("an error").kind();
        let read = async |name: &str| guest.client.read_file(&path(name)).await.map(drop);
        let write = async |name: &str| guest.client.write_file(&path(name), ByteStream::from_bytes("y")).await;
        assert_eq!(kind(read("missing").await), ErrorKind::NotFound);
        assert_eq!(kind(read("f/x").await), ErrorKind::NotADirectory);
        assert_eq!(kind(read("d").await), ErrorKind::IsADirectory);
        assert_eq!(kind(read("p").await), ErrorKind::NotRegular);
        assert_eq!(kind(write("d").await), ErrorKind::IsADirectory);
        assert_eq!(kind(write("d/").await), ErrorKind::IsADirectory);
        assert_eq!(kind(write("new/").await), ErrorKind::IsADirectory);
        assert_eq!(kind(write("f/x").await), ErrorKind::NotADirectory);
        assert_eq!(kind(write("p").await), ErrorKind::NotRegular);
        assert_eq!(kind(write(&"n".repeat(256)).await), ErrorKind::InvalidPath);
        assert_eq!(kind(guest.client.delete_file(&path("d")).await), ErrorKind::IsADirectory);
        assert_eq!(kind(guest.client.delete_file(&path("f/x")).await), ErrorKind::NotADirectory);
        assert_eq!(kind(guest.client.list_dir(&path("f")).await.map(drop)), ErrorKind::NotADirectory);
        // Without a root of its own the guest stays below its directory.
        for outside in ["/etc/passwd", "../outside"] {
            assert_eq!(kind(read(outside).await), ErrorKind::InvalidPath, "{outside}");
        }
    }

    trees_round_trip(guest) {
        let made = guest
            .run(Cmd::shell(
                "mkdir -p t/a/empty t/b; echo one > t/a/one; ln t/a/one t/b/same; ln -s ../a/one t/b/link; \
                 mkfifo t/p; chmod 700 t/a; chmod 755 t/a/one; head -c 300000 /dev/zero > 't/a b'",
            ))
            .await;
        assert!(made.success(), "{made:?}");
        let tree = async |name: &str| {
            let stream = guest.client.read_tree(&path(name), Default::default()).await.expect("opened");
            stream.collect(1 << 30).await.expect("read")
        };
        let archive = tree("t").await;
        guest
            .client
            .write_tree(&path("u/v"), ByteStream::from_bytes(archive.clone()), Default::default())
            .await
            .expect("written");
        assert!(tree("u/v").await == archive, "the copy gives the same bytes");
        let same = guest.run(Cmd::shell("[ u/v/a/one -ef u/v/b/same ] && [ -p u/v/p ] && readlink u/v/b/link")).await;
        assert_eq!(&same.stdout[..], b"../a/one\n");
        let missing = guest.client.read_tree(&path("missing"), Default::default()).await.map(drop);
        assert_eq!(missing.expect_err("missing").kind(), ErrorKind::NotFound);
    }

    a_tree_is_not_written_through_a_link(guest) {
        let outside = guest.dir.path().join("outside");
        std::fs::create_dir(&outside).expect("mkdir");
        std::os::unix::fs::symlink(&outside, guest.work().join("evil")).expect("symlink");
        std::fs::create_dir_all(guest.work().join("src/evil")).expect("mkdir");
        std::fs::write(guest.work().join("src/evil/x"), "x").expect("written");
        let archive = guest.client.read_tree(&path("src"), Default::default()).await.expect("opened");
        let refused = guest.client.write_tree(&path("."), archive, Default::default()).await;
        let kind = refused.expect_err("it would leave the directory").kind();
        assert!(matches!(kind, ErrorKind::InvalidArchive | ErrorKind::NotADirectory), "{kind:?}");
        assert!(!outside.join("x").exists());
    }

    a_port_is_reached_and_a_closed_one_refuses(guest) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let mut all = Vec::new();
            socket.read_to_end(&mut all).await.expect("read");
            socket.write_all(&all).await.expect("written");
        });
        let mut stream = guest.client.dial(port).await.expect("connected");
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        stream.write_all(&sent).await.expect("written");
        stream.shutdown().await.expect("half closed");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.expect("read");
        assert!(back == sent, "{} bytes came back", back.len());
        server.await.expect("the server ends");
        let refused = guest.client.dial(port).await.map(drop).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    a_lease_on_a_file_holds_nobody_up(guest) {
        std::fs::write(guest.work().join("leased"), "x").expect("written");
        // F_SETLEASE, F_WRLCK: whoever opens the file has to wait for the holder.
        let script = "$SIG{IO} = 'IGNORE'; open(F, '+<', 'leased'); fcntl(F, 1024, 1) or die; $| = 1; print 'up'; sleep 60";
        let cmd = Cmd::argv(["perl", "-e", script]);
        let mut holder = guest.client.exec(&cmd, guest.context()).await.expect("perl starts");
        assert_eq!(holder.next_chunk().await.expect("it has the lease").data, "up");
        let started = Instant::now();
        let error = guest.client.read_file(&path("leased")).await.map(drop).expect_err("it is leased");
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(guest.run(Cmd::argv(["true"])).await.success());
        holder.kill();
        holder.wait().await;
    }

    long_listings_arrive_whole(guest) {
        let made = guest.run(Cmd::shell("mkdir many; cd many; seq -f 'a-rather-long-name-%g' 1 20000 | xargs touch")).await;
        assert!(made.success(), "{made:?}");
        let listed = guest.client.list_dir(&path("many")).await.expect("listed");
        assert_eq!(listed.len(), 20_000);
    }

    a_dead_guest_is_unavailable(guest) {
        let mut execution =
            guest.client.exec(&Cmd::shell("echo up; sleep 60"), guest.context()).await.expect("it starts");
        assert!(execution.next_chunk().await.is_some());
        let pid = guest.child.id().to_string();
        assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
        let result = execution.wait().await;
        assert_eq!(result.status, None);
        assert_eq!(result.error.as_ref().map(|error| error.kind()), Some(ErrorKind::Unavailable));
        assert_eq!(&result.stdout[..], b"up\n");
        let error = guest.client.stat(&path(".")).await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

//! NET-1 and ISO-2: reaching in, and not reaching out.

use std::time::{Duration, Instant};

use sandbox_core::{Backend, Cmd, DuplexStream, Error, ErrorKind, Execution, NetworkMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::case::{Done, Stop, cases, ensure, ensure_eq};
use crate::context::{Context, Place, noise, refused, unique, within};
use crate::needs::{Ability, Need};

cases! { "net":
    dial_reaches_a_listener_inside ["NET-1"] [Need::Has(Ability::Dial)];
    dial_to_nobody_is_refused_at_once ["NET-1"] [Need::Has(Ability::Dial)];
    dial_carries_much_both_ways ["NET-1"] [Need::Has(Ability::Dial)];
    closing_outside_closes_inside ["NET-1"] [Need::Has(Ability::Dial)];
    closing_inside_closes_outside ["NET-1"] [Need::Has(Ability::Dial)];
    sixty_four_dials_at_once_work ["NET-1"] [Need::Has(Ability::Dial)];
    destroy_closes_dialed_streams ["NET-1", "LIFE-4"] [Need::Has(Ability::Dial)];
    only_loopback_is_there ["ISO-2"] [Need::Has(Ability::NetworkNone), Need::Has(Ability::OwnNetwork)];
    connecting_out_fails_at_once ["ISO-2"] [Need::Has(Ability::NetworkNone), Need::Has(Ability::OwnNetwork)];
    loopback_of_the_host_is_another ["ISO-2", "ISO-1"] [Need::Has(Ability::NetworkNone), Need::Has(Ability::OwnNetwork)];
    own_loopback_works ["ISO-2"] [Need::Has(Ability::NetworkNone), Need::Has(Ability::OwnNetwork)];
}

/// Echoes what each connection sends; says `closed` when one has ended.
const PERL: &str = r#"
use IO::Socket::INET; $SIG{CHLD} = 'IGNORE'; $| = 1;
my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 128, ReuseAddr => 1) or die $!;
print "ready\n";
while (1) {
    my $c = $s->accept or next;
    if (!fork) {
        close $s;
        if ($ARGV[1] eq 'hello') { syswrite $c, 'hello'; close $c; exit }
        while (my $n = sysread $c, my $b, 65536) {
            my $o = 0;
            while ($o < $n) { my $w = syswrite $c, $b, $n - $o, $o; exit unless $w; $o += $w }
        }
        print "closed\n"; exit
    }
    close $c
}
"#;

const PYTHON: &str = r#"
import socket, sys, threading
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(128)
def serve(c):
    with c:
        if sys.argv[2] == 'hello':
            c.sendall(b'hello'); return
        while True:
            b = c.recv(65536)
            if not b: break
            c.sendall(b)
    print('closed', flush=True)
print('ready', flush=True)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

/// A port that hardly anybody uses, should the network not be the sandbox's own.
fn port() -> u16 {
    20_000 + (unique() % 30_000) as u16
}

async fn interpreter(place: &Place, perl: &str, python: &str) -> Done<Vec<String>> {
    if place.sh("perl -MIO::Socket::INET -e 1").await?.success() {
        Ok(["perl", "-e", perl].map(str::to_owned).to_vec())
    } else if place.has("python3").await? {
        Ok(["python3", "-c", python].map(str::to_owned).to_vec())
    } else {
        Err(Stop::Unavailable(
            "the base has neither perl with sockets nor python3".into(),
        ))
    }
}

async fn listen(place: &Place, port: u16, mode: &str) -> Done<Execution> {
    let mut argv = interpreter(place, PERL, PYTHON).await?;
    argv.extend([port.to_string(), mode.to_owned()]);
    let mut execution = place.start(Cmd::argv(argv)).await?;
    let ready = within(
        Duration::from_secs(10),
        "the listener",
        execution.next_chunk(),
    )
    .await?;
    ensure_eq!(
        ready.map(|chunk| chunk.data),
        Some("ready\n".into()),
        "the listener's first output"
    );
    Ok(execution)
}

async fn echo(stream: &mut DuplexStream, bytes: &[u8]) -> Done {
    stream.write_all(bytes).await.map_err(Stop::fail)?;
    stream.flush().await.map_err(Stop::fail)?;
    let mut back = vec![0; bytes.len()];
    within(
        Duration::from_secs(10),
        "the echo",
        stream.read_exact(&mut back),
    )
    .await?
    .map_err(Stop::fail)?;
    ensure!(
        back == bytes,
        "the echo of {} bytes is another",
        bytes.len()
    );
    Ok(())
}

async fn dial_reaches_a_listener_inside(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let _listener = listen(&place, port, "echo").await?;
    let mut stream = cx.backend().dial(&place.handle, port).await?;
    for word in [&b"one"[..], b"\0", b"three\n"] {
        echo(&mut stream, word).await?;
    }
    Ok(())
}

async fn dial_to_nobody_is_refused_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    for port in [1, port(), 65_535] {
        let dial = cx.backend().dial(&place.handle, port);
        let dialed = within(Duration::from_secs(2), "dial", dial).await?;
        let error = refused(dialed, ErrorKind::ConnectionRefused, "dial to nobody")?;
        let named = matches!(error, Error::ConnectionRefused { port: named } if named == port);
        ensure!(named, "the error names another port than {port}: {error}");
    }
    Ok(())
}

async fn dial_carries_much_both_ways(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let _listener = listen(&place, port, "echo").await?;
    let stream = cx.backend().dial(&place.handle, port).await?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let bytes = noise(4 << 20);
    let sent = bytes.clone();
    let send = tokio::spawn(async move {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    });
    let mut back = Vec::new();
    within(
        Duration::from_secs(20),
        "the echo",
        reader.read_to_end(&mut back),
    )
    .await?
    .map_err(Stop::fail)?;
    send.await.map_err(Stop::fail)?.map_err(Stop::fail)?;
    ensure!(
        bytes == back,
        "{} of {} bytes came back intact",
        back.len(),
        bytes.len()
    );
    Ok(())
}

async fn closing_outside_closes_inside(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let mut listener = listen(&place, port, "echo").await?;
    let mut stream = cx.backend().dial(&place.handle, port).await?;
    echo(&mut stream, b"x").await?;
    drop(stream);
    let said = within(
        Duration::from_secs(5),
        "the end inside",
        listener.next_chunk(),
    )
    .await?;
    ensure_eq!(
        said.map(|chunk| chunk.data),
        Some("closed\n".into()),
        "what the listener says"
    );
    Ok(())
}

async fn closing_inside_closes_outside(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let _listener = listen(&place, port, "hello").await?;
    let mut stream = cx.backend().dial(&place.handle, port).await?;
    let mut all = Vec::new();
    within(
        Duration::from_secs(5),
        "the end outside",
        stream.read_to_end(&mut all),
    )
    .await?
    .map_err(Stop::fail)?;
    ensure_eq!(all, b"hello".to_vec(), "what came before the end");
    Ok(())
}

async fn sixty_four_dials_at_once_work(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let _listener = listen(&place, port, "echo").await?;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(cx.backend().dial(&place.handle, port).await?);
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        echo(stream, format!("stream {number}").as_bytes()).await?;
    }
    Ok(())
}

async fn destroy_closes_dialed_streams(cx: Context) -> Done {
    let place = cx.place().await?;
    let port = port();
    let _listener = listen(&place, port, "echo").await?;
    let mut stream = cx.backend().dial(&place.handle, port).await?;
    echo(&mut stream, b"x").await?;
    place.destroy().await?;
    let mut rest = Vec::new();
    // An end and an error say the same here.
    let end = within(
        Duration::from_secs(5),
        "the end",
        stream.read_to_end(&mut rest),
    )
    .await?;
    ensure!(
        rest.is_empty(),
        "{} bytes came after destroy ({end:?})",
        rest.len()
    );
    Ok(())
}

async fn only_loopback_is_there(cx: Context) -> Done {
    let place = cx.place().await?;
    let text = place.out("cat /proc/net/dev").await?;
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim()))
        .collect();
    ensure_eq!(names, ["lo"], "network devices");
    Ok(())
}

/// The exit code of a program that connects to an address and says whether it could.
async fn connect(place: &Place, address: &str, port: u16) -> Done<bool> {
    let perl = "use IO::Socket::INET; exit(IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 20) ? 0 : 1)";
    let python = "import socket, sys\ntry:\n    socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\nexcept OSError:\n    sys.exit(1)";
    let mut argv = interpreter(place, perl, python).await?;
    argv.extend([address.to_owned(), port.to_string()]);
    match place.run(Cmd::argv(argv)).await?.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        other => Err(Stop::fail(format!(
            "the connecting program ended with {other:?}"
        ))),
    }
}

async fn place_without_network(cx: &Context) -> Done<Place> {
    let mut spec = cx.spec()?;
    spec.network = NetworkMode::None;
    cx.place_of(spec).await
}

async fn connecting_out_fails_at_once(cx: Context) -> Done {
    let place = place_without_network(&cx).await?;
    // Addresses that are set aside for examples, and one of everybody's.
    for address in ["192.0.2.1", "198.51.100.1", "10.0.0.1"] {
        let started = Instant::now();
        ensure!(
            !connect(&place, address, 80).await?,
            "{address} can be reached"
        );
        let took = started.elapsed();
        ensure!(
            took < Duration::from_secs(5),
            "the failure to reach {address} took {took:?}"
        );
    }
    Ok(())
}

async fn loopback_of_the_host_is_another(cx: Context) -> Done {
    let place = place_without_network(&cx).await?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    ensure!(
        !connect(&place, "127.0.0.1", port).await?,
        "a listener of the host can be reached"
    );
    ensure!(
        listener.accept().is_err(),
        "the host's listener was reached"
    );
    Ok(())
}

async fn own_loopback_works(cx: Context) -> Done {
    let place = place_without_network(&cx).await?;
    let port = port();
    let _listener = listen(&place, port, "echo").await?;
    ensure!(
        connect(&place, "127.0.0.1", port).await?,
        "a listener of the sandbox cannot be reached inside"
    );
    let other = place_without_network(&cx).await?;
    ensure!(
        !connect(&other, "127.0.0.1", port).await?,
        "it can be reached from another sandbox"
    );
    Ok(())
}

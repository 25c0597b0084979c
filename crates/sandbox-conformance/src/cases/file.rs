//! FILE-1 to FILE-8: files through the file calls and through commands.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sandbox_core::{
    Backend, ByteStream, CancelReason, Error, ErrorKind, FileKind, InputFile, SandboxPath, User,
};

use crate::case::{Done, Stop, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, eventually, noise, refused, refused_as, unique, within};
use crate::needs::{Ability, Need};

cases! { "file":
    files_and_commands_see_one_file_system ["FILE-1"] [];
    relative_paths_start_at_the_workdir ["FILE-1"] [];
    dots_and_slashes_resolve_as_inside ["FILE-1"] [];
    dot_dot_stops_at_the_sandboxs_root ["FILE-1", "ISO-1"] [Need::Has(Ability::OwnRoot)];
    absolute_link_stays_inside ["FILE-1", "ISO-1"] [Need::Has(Ability::OwnRoot)];
    links_to_host_paths_reach_nothing ["FILE-1", "ISO-1"] [Need::Has(Ability::OwnRoot)];
    swapping_directory_and_link_never_reaches_the_host ["FILE-1"] [Need::Has(Ability::OwnRoot)] 120;
    magic_links_of_proc_never_reach_the_host ["FILE-1", "ISO-1"] [Need::Has(Ability::OwnRoot)];
    empty_and_nul_paths_are_invalid ["FILE-2"] [];
    odd_names_round_trip ["FILE-2"] [];
    names_of_256_bytes_are_invalid ["FILE-2"] [];
    paths_beyond_4096_bytes_work_or_are_invalid ["FILE-2"] [];
    absent_is_not_found ["FILE-3"] [];
    below_a_file_is_not_a_directory ["FILE-3", "FILE-4"] [];
    directory_is_no_file ["FILE-3", "FILE-4", "FILE-7"] [];
    file_is_no_directory ["FILE-3", "FILE-7"] [];
    special_files_are_not_regular_at_once ["FILE-3"] [];
    loops_of_links_are_invalid ["FILE-3", "FILE-2"] [];
    kinds_do_not_come_from_names ["FILE-3"] [];
    unreadable_file_is_denied_as_to_a_command ["FILE-3"] [];
    unwritable_file_is_denied_as_to_a_command ["FILE-3", "FILE-4"] [];
    write_makes_parents ["FILE-4"] [];
    write_replaces_the_whole_content ["FILE-4"] [];
    write_keeps_the_mode ["FILE-4"] [];
    reader_sees_old_or_new ["FILE-4"] [] 120;
    failed_stream_leaves_the_old_file ["FILE-4", "LIFE-8"] [];
    dropped_write_leaves_the_old_file ["FILE-4"] [];
    write_follows_a_link ["FILE-4"] [];
    write_makes_the_target_of_a_dangling_link ["FILE-4"] [];
    file_with_several_links_is_written_in_place ["FILE-4"] [];
    refused_write_changes_nothing ["FILE-4"] [];
    empty_file_is_not_absent ["FILE-4"] [];
    large_files_stream ["FILE-5"] [] 120;
    dropped_read_leaves_nothing ["FILE-5"] [];
    captured_files_come_in_order ["FILE-6"] [];
    capture_is_all_or_nothing ["FILE-6"] [];
    copied_files_are_there ["FILE-6", "FILE-4"] [];
    copy_of_a_bad_file_fails ["FILE-6"] [];
    stat_follows_links ["FILE-7"] [];
    list_shows_one_level_with_kinds ["FILE-7"] [];
    list_follows_a_link_to_a_directory ["FILE-7"] [];
    large_directories_are_listed ["FILE-7"] [];
    delete_removes_a_file_or_the_link_itself ["FILE-7"] [];
    delete_refuses_directories ["FILE-7"] [];
    files_belong_to_the_default_user ["FILE-8"] [];
    files_belong_to_the_specs_user ["FILE-8", "EXEC-19"] [Need::Has(Ability::Users)];
    many_files_at_once ["LIFE-8"] [];
}

async fn files_and_commands_see_one_file_system(cx: Context) -> Done {
    let place = cx.place().await?;
    let bytes = noise(200_000);
    place.write("/tmp/written", bytes.clone()).await?;
    let result = place.sh("cat /tmp/written").await?;
    ensure!(
        result.stdout == bytes,
        "a command reads {} of {} bytes",
        result.stdout.len(),
        bytes.len()
    );
    place.out("printf 'a\\0b\\377' >/tmp/made").await?;
    ensure_eq!(
        &place.read("/tmp/made").await?[..],
        b"a\0b\xff",
        "a command's file"
    );
    Ok(())
}

async fn relative_paths_start_at_the_workdir(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("dir/file", "x").await?;
    let absolute = format!("{}/dir/file", place.handle.workdir);
    ensure_eq!(
        place.read(&absolute).await?,
        "x",
        "the file by its absolute path"
    );
    ensure_eq!(
        place.out("cat dir/file").await?,
        "x",
        "the file by a command"
    );
    Ok(())
}

async fn dots_and_slashes_resolve_as_inside(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir -p real/deep; echo deep >real/up; ln -s real/deep link; echo here >up")
        .await?;
    for (path, expected) in [
        ("./real/../up", "here\n"),
        (".//real///up", "deep\n"),
        // Through a link, .. is the parent of where it leads, as for the kernel, not of where it lies.
        ("link/../up", "deep\n"),
        ("real/deep/../../up", "here\n"),
    ] {
        ensure_eq!(place.read(path).await?, expected, "content of {path}");
        ensure_eq!(
            place.out(&format!("cat {path}")).await?,
            expected,
            "content of {path} by a command"
        );
    }
    Ok(())
}

/// A path of the host that the sandbox does not have, with a file that it must never see.
fn host_secret(cx: &Context) -> Done<(String, String)> {
    let dir = cx.host_dir()?;
    let text = format!("secret-{:016x}", unique());
    std::fs::write(dir.join("secret"), &text)?;
    let dir = dir
        .to_str()
        .ok_or_else(|| Stop::Error("the scratch path is no text".into()))?;
    Ok((dir.to_owned(), text))
}

async fn dot_dot_stops_at_the_sandboxs_root(cx: Context) -> Done {
    let place = cx.place().await?;
    let (host, _) = host_secret(&cx)?;
    let up = "../".repeat(40);
    let name = format!("conformance-{:016x}", unique());
    place.write(format!("{up}tmp/{name}"), "x").await?;
    ensure_eq!(
        place.out(&format!("cat /tmp/{name}")).await?,
        "x",
        "the file inside"
    );
    ensure!(
        !std::env::temp_dir().join(&name).exists(),
        "the file was written on the host"
    );
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::NotADirectory,
        ErrorKind::PermissionDenied,
    ];
    refused_as(
        place.read(format!("{up}{host}/secret")).await,
        &kinds,
        "a file of the host",
    )?;
    Ok(())
}

async fn absolute_link_stays_inside(cx: Context) -> Done {
    let place = cx.place().await?;
    let name = format!("conformance-{:016x}", unique());
    place
        .out("mkdir /tmp/target; ln -s /tmp/target t; ln -s /etc e; ln -s / root")
        .await?;
    place.write(format!("t/{name}"), "x").await?;
    ensure_eq!(
        place.out(&format!("cat /tmp/target/{name}")).await?,
        "x",
        "the file behind the link"
    );
    ensure!(
        !std::path::Path::new("/tmp/target").join(&name).exists(),
        "the file was written on the host"
    );
    // Whether the sandbox may write its own /etc is its business; the host's must stay as it is.
    for path in [format!("e/{name}"), format!("root/etc/{name}")] {
        if let Err(error) = place.write(&path, "x").await {
            let kinds = [ErrorKind::PermissionDenied, ErrorKind::Io];
            ensure!(
                kinds.contains(&error.kind()),
                "{path}: {:?}: {error}",
                error.kind()
            );
        }
    }
    ensure!(
        !std::path::Path::new("/etc").join(&name).exists(),
        "a file was written to the host's /etc"
    );
    let inside = place.sh("cat /etc/passwd").await?;
    match place.read("e/passwd").await {
        Ok(read) => ensure!(
            read == inside.stdout,
            "the file behind the link is another than a command sees"
        ),
        Err(error) => ensure!(
            !inside.success(),
            "a command reads /etc/passwd, the file call says {error}"
        ),
    }
    Ok(())
}

async fn links_to_host_paths_reach_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    let (host, _) = host_secret(&cx)?;
    place
        .out(&format!(
            "ln -s {host} d; ln -s {host}/secret f; ln -s ../../../../../..{host} up"
        ))
        .await?;
    for path in ["d/secret", "f", "up/secret"] {
        let kinds = [
            ErrorKind::NotFound,
            ErrorKind::NotADirectory,
            ErrorKind::PermissionDenied,
        ];
        refused_as(place.read(path).await, &kinds, path)?;
        refused_as(place.stat(path).await, &kinds, path)?;
    }
    // Written through a dangling link, a file lands inside; the host's stays.
    let _ = place.write("f", "overwritten").await;
    let _ = place.write("d/new", "new").await;
    let dir = cx.host_dir()?;
    ensure!(
        std::fs::read(dir.join("secret"))? != b"overwritten",
        "a file of the host was overwritten"
    );
    ensure!(!dir.join("new").exists(), "a file was written on the host");
    Ok(())
}

/// The classical race: what was a directory when it was checked is a link when it is used.
async fn swapping_directory_and_link_never_reaches_the_host(cx: Context) -> Done {
    let place = cx.place().await?;
    let (host, text) = host_secret(&cx)?;
    let script = format!(
        "mkdir x; ln -s {host} l; while :; do mv x d; mv l x; mv x l; mv d x; done 2>/dev/null"
    );
    let mut swapping = place.start(sandbox_core::Cmd::shell(script)).await?;
    let mut outcomes: BTreeMap<ErrorKind, u32> = BTreeMap::new();
    let mut landed = 0;
    for round in 0..300 {
        match place.read("x/secret").await {
            Ok(read) => ensure!(read != text, "the host's file was read in round {round}"),
            Err(error) => *outcomes.entry(error.kind()).or_default() += 1,
        }
        match place.write(format!("x/w{round}"), "x").await {
            Ok(()) => landed += 1,
            Err(error) => *outcomes.entry(error.kind()).or_default() += 1,
        }
        let _ = place.delete(format!("x/w{round}")).await;
        let _ = place.write_tree("x", Bytes::new()).await;
    }
    swapping.kill();
    swapping.wait().await;
    let entries: Vec<_> = std::fs::read_dir(cx.host_dir()?)?.collect::<Result<_, _>>()?;
    ensure_eq!(entries.len(), 1, "entries of the host's directory");
    ensure!(
        std::fs::read_to_string(cx.host_dir()?.join("secret"))? == text,
        "the host's file was changed"
    );
    let known = [
        ErrorKind::NotFound,
        ErrorKind::NotADirectory,
        ErrorKind::PermissionDenied,
        ErrorKind::InvalidPath,
        ErrorKind::IsADirectory,
    ];
    ensure!(
        outcomes.keys().all(|kind| known.contains(kind)),
        "{landed} writes landed; errors: {}",
        short(&outcomes)
    );
    Ok(())
}

async fn magic_links_of_proc_never_reach_the_host(cx: Context) -> Done {
    let place = cx.place().await?;
    let (host, text) = host_secret(&cx)?;
    for start in [
        "/proc/self/root",
        "/proc/1/root",
        "/proc/self/cwd/../../../..",
        "/proc/1/cwd/../../..",
        "/proc/thread-self/root",
    ] {
        let path = format!("{start}{host}/secret");
        if let Ok(read) = place.read(&path).await {
            ensure!(read != text, "the host's file was read as {path}");
        }
        let new = format!("{start}{host}/new");
        let _ = place.write(&new, "x").await;
        ensure!(
            !cx.host_dir()?.join("new").exists(),
            "a file was written on the host as {new}"
        );
    }
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

async fn empty_and_nul_paths_are_invalid(_: Context) -> Done {
    for bad in ["", "\0", "a\0b"] {
        refused(
            SandboxPath::new(bad),
            ErrorKind::InvalidPath,
            &format!("the path {bad:?}"),
        )?;
    }
    Ok(())
}

async fn odd_names_round_trip(cx: Context) -> Done {
    let place = cx.place().await?;
    let long = "l".repeat(255);
    let names: [&[u8]; 19] = [
        b"new\nline",
        b"-rf",
        b"--",
        b"it's",
        b"\"quoted\"",
        b"two  spaces",
        b" ",
        b"\xff\xfe",
        b"*",
        b"$(id)",
        b"back\\slash",
        b"tab\t",
        b"...",
        b"#",
        b"~",
        b"\x01",
        "ž🦀".as_bytes(),
        long.as_bytes(),
        b".wh.x",
    ];
    for name in &names {
        let shown = String::from_utf8_lossy(name).into_owned();
        place.write(name, name.to_vec()).await?;
        ensure_eq!(
            place.read(name).await?,
            Bytes::copy_from_slice(name),
            "content of {shown:?}"
        );
        ensure_eq!(
            place.stat(name).await?.size,
            name.len() as u64,
            "size of {shown:?}"
        );
    }
    let listed = place.list(".").await?;
    let expected: BTreeMap<Vec<u8>, FileKind> = names
        .iter()
        .map(|name| (name.to_vec(), FileKind::File))
        .collect();
    ensure_eq!(listed, expected, "all names");
    let count = place.out("set -- ./* ./.[!.]* ./...; n=0; for f; do [ -e \"$f\" ] && n=$((n + 1)); done; echo $n").await?;
    ensure_eq!(
        count,
        format!("{}\n", names.len()),
        "files as a command counts them"
    );
    for name in &names {
        place.delete(name).await?;
    }
    ensure_eq!(
        place.list(".").await?.len(),
        0,
        "entries after all were deleted"
    );
    Ok(())
}

async fn names_of_256_bytes_are_invalid(cx: Context) -> Done {
    let place = cx.place().await?;
    let long = "l".repeat(256);
    refused(
        place.write(&long, "x").await,
        ErrorKind::InvalidPath,
        "a write",
    )?;
    refused(place.read(&long).await, ErrorKind::InvalidPath, "a read")?;
    refused(place.stat(&long).await, ErrorKind::InvalidPath, "a stat")?;
    refused(
        place.write(format!("{long}/x"), "x").await,
        ErrorKind::InvalidPath,
        "a write below it",
    )?;
    ensure_eq!(place.list(".").await?.len(), 0, "entries of the workdir");
    Ok(())
}

async fn paths_beyond_4096_bytes_work_or_are_invalid(cx: Context) -> Done {
    let place = cx.place().await?;
    let dots = format!("{}file", "./".repeat(3000));
    let deep = format!("{}file", "deep/".repeat(1000));
    for path in [dots, deep] {
        match place.write(&path, "x").await {
            Ok(()) => ensure_eq!(
                place.read(&path).await?,
                "x",
                "content at a path of {} bytes",
                path.len()
            ),
            Err(error) => ensure_eq!(
                error.kind(),
                ErrorKind::InvalidPath,
                "kind for {} bytes",
                path.len()
            ),
        }
    }
    Ok(())
}

async fn absent_is_not_found(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("ln -s nowhere dangling").await?;
    for path in ["absent", "no/such/dir/absent", "/absent", "dangling"] {
        refused(place.read(path).await, ErrorKind::NotFound, path)?;
        refused(place.stat(path).await, ErrorKind::NotFound, path)?;
        refused(place.list(path).await, ErrorKind::NotFound, path)?;
        refused(place.read_tree(path).await, ErrorKind::NotFound, path)?;
        if path != "dangling" {
            let error = refused(place.delete(path).await, ErrorKind::NotFound, path)?;
            ensure!(
                error.to_string().contains(path),
                "the error does not name {path}: {error}"
            );
        }
    }
    Ok(())
}

async fn below_a_file_is_not_a_directory(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    for path in ["file/below", "file/below/it", "file/"] {
        refused(place.read(path).await, ErrorKind::NotADirectory, path)?;
        refused(place.stat(path).await, ErrorKind::NotADirectory, path)?;
        refused(place.list(path).await, ErrorKind::NotADirectory, path)?;
        refused(place.write(path, "y").await, ErrorKind::NotADirectory, path)?;
        refused(place.delete(path).await, ErrorKind::NotADirectory, path)?;
        refused(place.read_tree(path).await, ErrorKind::NotADirectory, path)?;
    }
    ensure_eq!(place.read("file").await?, "x", "the file afterwards");
    Ok(())
}

async fn directory_is_no_file(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir dir; echo x >dir/inside; ln -s dir link")
        .await?;
    for path in ["dir", "dir/", "link", ".", "/"] {
        refused(place.read(path).await, ErrorKind::IsADirectory, path)?;
        refused(place.write(path, "y").await, ErrorKind::IsADirectory, path)?;
        let capture = cx
            .backend()
            .capture_files(&place.handle, &[SandboxPath::new(path)?])
            .await;
        refused(capture, ErrorKind::IsADirectory, path)?;
    }
    refused(
        place.delete("dir").await,
        ErrorKind::IsADirectory,
        "delete of a directory",
    )?;
    ensure_eq!(place.read("dir/inside").await?, "x\n", "the file inside");
    Ok(())
}

async fn file_is_no_directory(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    refused(place.list("file").await, ErrorKind::NotADirectory, "list")?;
    refused(
        place.read_tree("file").await,
        ErrorKind::NotADirectory,
        "read_tree",
    )?;
    Ok(())
}

async fn special_files_are_not_regular_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkfifo fifo; ln -s fifo link").await?;
    let mut paths = vec!["fifo", "link", "/dev/zero", "/dev/null", "/dev/urandom"];
    if place.has("perl").await? {
        place.out("perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(\"socket\")) or die $!'").await?;
        paths.push("socket");
    }
    let limit = Duration::from_secs(2);
    for path in paths {
        let read = within(limit, &format!("a read of {path}"), place.read(path)).await?;
        refused(read, ErrorKind::NotRegular, path)?;
        let write = within(limit, &format!("a write to {path}"), place.write(path, "x")).await?;
        refused(write, ErrorKind::NotRegular, path)?;
        let paths = [SandboxPath::new(path)?];
        let capture = within(
            limit,
            path,
            cx.backend().capture_files(&place.handle, &paths),
        )
        .await?;
        refused(capture, ErrorKind::NotRegular, path)?;
        ensure_eq!(
            place.stat(path).await?.kind,
            FileKind::Other,
            "kind of {path}"
        );
    }
    place.delete("fifo").await?;
    refused(
        place.stat("fifo").await,
        ErrorKind::NotFound,
        "the deleted fifo",
    )?;
    Ok(())
}

async fn loops_of_links_are_invalid(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("ln -s b a; ln -s a b; ln -s self self").await?;
    for path in ["a", "self", "self/x"] {
        refused(place.read(path).await, ErrorKind::InvalidPath, path)?;
        refused(place.stat(path).await, ErrorKind::InvalidPath, path)?;
        refused(place.write(path, "x").await, ErrorKind::InvalidPath, path)?;
    }
    place.delete("self").await?;
    Ok(())
}

/// Who matches the text of messages is misled by the name that is quoted in them.
async fn kinds_do_not_come_from_names(cx: Context) -> Done {
    let place = cx.place().await?;
    for name in [
        "No such file or directory",
        "Is a directory",
        "Permission denied",
        "ENOENT not found",
        "404",
    ] {
        place.out(&format!("mkdir '{name}'")).await?;
        refused(place.read(name).await, ErrorKind::IsADirectory, name)?;
        refused(
            place.read(format!("{name}/x")).await,
            ErrorKind::NotFound,
            name,
        )?;
        place.write(format!("{name}/{name}"), "x").await?;
        refused(
            place.list(format!("{name}/{name}")).await,
            ErrorKind::NotADirectory,
            name,
        )?;
        ensure_eq!(
            place.read(format!("{name}/{name}")).await?,
            "x",
            "content below {name:?}"
        );
    }
    Ok(())
}

async fn unreadable_file_is_denied_as_to_a_command(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("echo x >file; chmod 000 file; mkdir dir; echo y >dir/file; chmod 000 dir")
        .await?;
    for (path, script) in [("file", "cat file"), ("dir/file", "cat dir/file")] {
        if place.sh(script).await?.success() {
            place.read(path).await?;
        } else {
            refused(place.read(path).await, ErrorKind::PermissionDenied, path)?;
        }
    }
    if !place.sh("ls dir").await?.success() {
        refused(place.list("dir").await, ErrorKind::PermissionDenied, "dir")?;
    }
    place.out("chmod 755 dir").await?;
    Ok(())
}

async fn unwritable_file_is_denied_as_to_a_command(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("echo old >file; chmod 444 file; mkdir dir; echo old >dir/file; chmod 555 dir")
        .await?;
    if place.sh(": >>file").await?.success() {
        place.write("file", "new").await?;
        ensure_eq!(
            place.read("file").await?,
            "new",
            "a file that a command can write"
        );
    } else {
        // Its directory would allow a rename over it.
        refused(
            place.write("file", "new").await,
            ErrorKind::PermissionDenied,
            "a read-only file",
        )?;
        ensure_eq!(
            place.read("file").await?,
            "old\n",
            "the file after a denied write"
        );
        ensure_eq!(
            place.list(".").await?.len(),
            2,
            "entries after a denied write"
        );
    }
    if place.sh(": >dir/new").await?.success() {
        place.delete("dir/new").await?;
    } else {
        refused(
            place.write("dir/new", "x").await,
            ErrorKind::PermissionDenied,
            "a file in a read-only directory",
        )?;
        refused(
            place.delete("dir/file").await,
            ErrorKind::PermissionDenied,
            "a delete in a read-only directory",
        )?;
        ensure_eq!(
            place.list("dir").await?.len(),
            1,
            "entries of the read-only directory"
        );
        // The file itself may be written, and so it is, though nothing can be renamed there.
        place.write("dir/file", "new").await?;
        ensure_eq!(
            place.read("dir/file").await?,
            "new",
            "a writable file in a read-only directory"
        );
    }
    place.out("chmod 755 dir").await?;
    Ok(())
}

async fn write_makes_parents(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("a/b/c/file", "x").await?;
    place.write("/tmp/new/dir/file", "y").await?;
    let said = place
        .out("stat -c '%a %F' a a/b/c a/b/c/file; cat a/b/c/file /tmp/new/dir/file")
        .await?;
    ensure_eq!(
        said,
        "755 directory\n755 directory\n644 regular file\nxy",
        "modes and content"
    );
    Ok(())
}

async fn write_replaces_the_whole_content(cx: Context) -> Done {
    let place = cx.place().await?;
    for content in ["a long content", "short", "", "x"] {
        place.write("file", content).await?;
        ensure_eq!(place.read("file").await?, content, "content");
        ensure_eq!(place.stat("file").await?.size, content.len() as u64, "size");
    }
    ensure_eq!(place.list(".").await?.len(), 1, "entries of the workdir");
    Ok(())
}

async fn write_keeps_the_mode(cx: Context) -> Done {
    let place = cx.place().await?;
    for mode in ["755", "600", "640", "777"] {
        place
            .out(&format!("echo old >file; chmod {mode} file"))
            .await?;
        place.write("file", "new").await?;
        ensure_eq!(
            place.out("stat -c %a file; cat file").await?,
            format!("{mode}\nnew"),
            "mode and content"
        );
    }
    Ok(())
}

async fn reader_sees_old_or_new(cx: Context) -> Done {
    let place = cx.place().await?;
    let contents = [vec![b'a'; 300_000], vec![b'b'; 200_000]];
    place.write("file", contents[0].clone()).await?;
    let script = "i=0; while [ $i -lt 60 ]; do cat file | tr -s ab | tr -d '\\n'; cat file | wc -c; i=$((i + 1)); done";
    let mut inside = place.start(sandbox_core::Cmd::shell(script)).await?;
    let reader = place.clone();
    let wanted = contents.clone();
    let outside = tokio::spawn(async move {
        for round in 0..60 {
            let read = reader.read("file").await?;
            ensure!(
                wanted.iter().any(|one| *one == read),
                "a mixture of {} bytes in round {round}",
                read.len()
            );
        }
        Done::Ok(())
    });
    for round in 0..120 {
        place
            .write("file", contents[(round + 1) % 2].clone())
            .await?;
    }
    outside.await.map_err(Stop::fail)??;
    let result = within(Duration::from_secs(60), "the reader inside", inside.wait()).await?;
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    ensure_eq!(text.lines().count(), 60, "lines of the reader inside");
    for line in text.lines() {
        // Two opens: the letters of one content, the size of the same or the other.
        ensure!(
            ["a300000", "b200000", "a200000", "b300000"].contains(&line),
            "the reader inside saw {line:?}"
        );
    }
    Ok(())
}

async fn failed_stream_leaves_the_old_file(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "old").await?;
    for path in ["file", "new", "new-dir/new"] {
        let reason = CancelReason::new("the source failed");
        let failure = Error::Cancelled {
            reason: Some(reason.clone()),
        };
        let parts = vec![Ok(noise(100_000)), Err(failure)];
        let content = ByteStream::new(stream::iter(parts));
        let write = cx
            .backend()
            .write_file_at(&place.handle, &SandboxPath::new(path)?, content)
            .await;
        let error = refused(write, ErrorKind::Cancelled, "a write whose stream fails")?;
        let same =
            matches!(&error, Error::Cancelled { reason: Some(given) } if given.same_as(&reason));
        ensure!(same, "the stream's own error is not returned: {error}");
    }
    ensure_eq!(
        place.read("file").await?,
        "old",
        "the file after a failed stream"
    );
    refused(
        place.stat("new").await,
        ErrorKind::NotFound,
        "a file whose stream failed",
    )?;
    let names = place.list(".").await?;
    ensure!(
        names
            .keys()
            .all(|name| name == b"file" || name == b"new-dir"),
        "something is left behind: {}",
        short(&names)
    );
    Ok(())
}

async fn dropped_write_leaves_the_old_file(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "old").await?;
    for path in ["file", "new"] {
        let endless = stream::once(async { Ok(noise(200_000)) }).chain(stream::pending());
        let path = SandboxPath::new(path)?;
        let write = cx
            .backend()
            .write_file_at(&place.handle, &path, ByteStream::new(endless));
        let dropped = tokio::time::timeout(Duration::from_millis(200), write).await;
        ensure!(
            dropped.is_err(),
            "a write whose stream does not end has ended"
        );
    }
    eventually!(
        Duration::from_secs(5),
        "the dropped writes to leave nothing",
        Ok(place.list(".").await?.len() == 1),
    )?;
    ensure_eq!(
        place.read("file").await?,
        "old",
        "the file after a dropped write"
    );
    Ok(())
}

async fn write_follows_a_link(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir dir; echo old >dir/target; chmod 600 dir/target; ln -s dir/target link; ln -s link again").await?;
    place.write("again", "new").await?;
    ensure_eq!(
        place
            .out("cat dir/target; stat -c %a dir/target; readlink link")
            .await?,
        "new600\ndir/target\n",
        "the target and the link"
    );
    ensure_eq!(
        place.list(".").await?.get(&b"again"[..]),
        Some(&FileKind::Symlink),
        "kind of the link"
    );
    ensure_eq!(place.read("link").await?, "new", "content through the link");
    Ok(())
}

async fn write_makes_the_target_of_a_dangling_link(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir dir; ln -s dir/target link; ln -s /tmp/elsewhere absolute")
        .await?;
    place.write("link", "x").await?;
    place.write("absolute", "y").await?;
    ensure_eq!(
        place
            .out("cat dir/target /tmp/elsewhere; readlink link absolute")
            .await?,
        "xydir/target\n/tmp/elsewhere\n",
        "targets and links"
    );
    Ok(())
}

async fn file_with_several_links_is_written_in_place(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("echo old content >one; ln one two").await?;
    place.write("one", "new").await?;
    ensure_eq!(place.read("two").await?, "new", "content by the other name");
    ensure_eq!(place.out("stat -c %h two").await?, "2\n", "links");
    Ok(())
}

async fn refused_write_changes_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir dir; echo inside >dir/file; echo plain >file")
        .await?;
    refused(
        place.write("dir", "x").await,
        ErrorKind::IsADirectory,
        "a write onto a directory",
    )?;
    refused(
        place.write("file/x/y", "x").await,
        ErrorKind::NotADirectory,
        "a write below a file",
    )?;
    let kinds = [
        ErrorKind::IsADirectory,
        ErrorKind::NotADirectory,
        ErrorKind::NotFound,
        ErrorKind::InvalidPath,
    ];
    refused_as(
        place.write("absent/", "x").await,
        &kinds,
        "a write to a name with a slash",
    )?;
    let names: Vec<Vec<u8>> = place.list(".").await?.into_keys().collect();
    ensure!(
        names.iter().all(|name| ["dir", "file", "absent"]
            .iter()
            .any(|known| known.as_bytes() == name)),
        "something is left behind: {}",
        short(&names)
    );
    ensure_eq!(
        place.out("cat file dir/file; ls dir").await?,
        "plain\ninside\nfile\n",
        "files afterwards"
    );
    Ok(())
}

async fn empty_file_is_not_absent(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("empty", "").await?;
    place.out(": >made").await?;
    for path in ["empty", "made"] {
        ensure_eq!(place.read(path).await?.len(), 0, "bytes of {path}");
        let stat = place.stat(path).await?;
        ensure_eq!(
            (stat.kind, stat.size),
            (FileKind::File, 0),
            "kind and size of {path}"
        );
    }
    ensure_eq!(place.out("wc -c <empty").await?, "0\n", "size by a command");
    Ok(())
}

async fn large_files_stream(cx: Context) -> Done {
    const BLOCKS: usize = 256;
    const BLOCK: usize = 256 << 10;
    let place = cx.place().await?;
    let block = noise(BLOCK);
    let source = block.clone();
    let content = stream::iter((0..BLOCKS).map(move |_| Ok(source.clone())));
    let path = SandboxPath::new("large")?;
    cx.backend()
        .write_file_at(&place.handle, &path, ByteStream::new(content))
        .await?;
    ensure_eq!(
        place.stat("large").await?.size,
        (BLOCKS * BLOCK) as u64,
        "size"
    );
    ensure_eq!(
        place.out("wc -c <large").await?,
        format!("{}\n", BLOCKS * BLOCK),
        "size by a command"
    );
    let mut stream = cx.backend().read_file_at(&place.handle, &path).await?;
    let mut at = 0;
    while let Some(chunk) = stream.next().await {
        let mut chunk = chunk?;
        while !chunk.is_empty() {
            let offset = at % BLOCK;
            let part = chunk.split_to(chunk.len().min(BLOCK - offset));
            ensure!(
                part == block[offset..offset + part.len()],
                "other bytes near {at}"
            );
            at += part.len();
        }
    }
    ensure_eq!(at, BLOCKS * BLOCK, "bytes read");
    Ok(())
}

async fn dropped_read_leaves_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("head -c 20000000 /dev/zero >large").await?;
    let path = SandboxPath::new("large")?;
    for _ in 0..50 {
        let mut stream = cx.backend().read_file_at(&place.handle, &path).await?;
        let first = stream
            .next()
            .await
            .ok_or_else(|| Stop::fail("a large file has no content"))??;
        ensure!(!first.is_empty(), "the first chunk is empty");
    }
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    ensure_eq!(
        place.read("large").await?.len(),
        20_000_000,
        "bytes of a whole read afterwards"
    );
    Ok(())
}

fn paths(names: &[&str]) -> Done<Vec<SandboxPath>> {
    names
        .iter()
        .map(|name| Ok(SandboxPath::new(name)?))
        .collect()
}

async fn captured_files_come_in_order(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("echo b >b; echo a >a; mkdir d; echo c >d/c; ln -s d/c link")
        .await?;
    let absolute = format!("{}/a", place.handle.workdir);
    let wanted = paths(&["b", "./a", "d/../d/c", &absolute, "b", "link"])?;
    let captured = cx.backend().capture_files(&place.handle, &wanted).await?;
    let echoed: Vec<SandboxPath> = captured.iter().map(|file| file.path.clone()).collect();
    ensure_eq!(echoed, wanted, "paths as they were given");
    let contents: Vec<&[u8]> = captured.iter().map(|file| &file.content[..]).collect();
    ensure_eq!(
        contents,
        [&b"b\n"[..], b"a\n", b"c\n", b"a\n", b"b\n", b"c\n"],
        "contents"
    );
    ensure_eq!(
        cx.backend().capture_files(&place.handle, &[]).await?.len(),
        0,
        "files of nothing"
    );
    Ok(())
}

async fn capture_is_all_or_nothing(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("a", "a").await?;
    for (bad, kind) in [
        ("absent", ErrorKind::NotFound),
        (".", ErrorKind::IsADirectory),
        ("a/b", ErrorKind::NotADirectory),
    ] {
        let capture = cx
            .backend()
            .capture_files(&place.handle, &paths(&["a", bad, "a"])?)
            .await;
        let error = refused(capture, kind, bad)?;
        ensure!(
            error.to_string().contains(bad),
            "the error does not name {bad}: {error}"
        );
    }
    Ok(())
}

async fn copied_files_are_there(cx: Context) -> Done {
    let place = cx.place().await?;
    let files = vec![
        InputFile::new("a", "first")?,
        InputFile::new("deep/er/b", noise(100_000))?,
        InputFile::new("/tmp/c", "")?,
        InputFile::new("a", "last")?,
    ];
    cx.backend().copy_to(&place.handle, files).await?;
    ensure_eq!(place.read("a").await?, "last", "the last of duplicates");
    ensure!(
        place.read("deep/er/b").await? == noise(100_000),
        "a file in new directories is another"
    );
    ensure_eq!(
        place.out("wc -c </tmp/c; stat -c %a a").await?,
        "0\n644\n",
        "an empty file, and a mode"
    );
    cx.backend().copy_to(&place.handle, Vec::new()).await?;
    Ok(())
}

async fn copy_of_a_bad_file_fails(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir dir; echo x >file").await?;
    for (bad, kind) in [
        ("dir", ErrorKind::IsADirectory),
        ("file/below", ErrorKind::NotADirectory),
    ] {
        let files = vec![InputFile::new("good", "x")?, InputFile::new(bad, "x")?];
        let error = refused(cx.backend().copy_to(&place.handle, files).await, kind, bad)?;
        ensure!(
            error.to_string().contains(bad),
            "the error does not name {bad}: {error}"
        );
    }
    ensure_eq!(place.read("file").await?, "x\n", "the file afterwards");
    Ok(())
}

async fn stat_follows_links(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("printf 12345 >file; mkdir dir; mkfifo fifo; ln -s file f; ln -s dir d; ln -s fifo o; ln -s nowhere n").await?;
    for (path, kind, size) in [
        ("file", FileKind::File, Some(5)),
        ("f", FileKind::File, Some(5)),
        ("dir", FileKind::Directory, None),
        ("d", FileKind::Directory, None),
        ("d/", FileKind::Directory, None),
        (".", FileKind::Directory, None),
        ("/", FileKind::Directory, None),
        ("fifo", FileKind::Other, None),
        ("o", FileKind::Other, None),
        ("/dev/null", FileKind::Other, None),
    ] {
        let stat = place.stat(path).await?;
        ensure_eq!(stat.kind, kind, "kind of {path}");
        ensure!(
            size.is_none_or(|size| stat.size == size),
            "size of {path} is {}",
            stat.size
        );
    }
    refused(
        place.stat("n").await,
        ErrorKind::NotFound,
        "a dangling link",
    )?;
    Ok(())
}

async fn list_shows_one_level_with_kinds(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir dir empty; echo x >dir/inside; echo x >.hidden; echo x >file; mkfifo fifo; ln -s dir l-dir; ln -s file l-file; ln -s nowhere l-none").await?;
    let expected: BTreeMap<Vec<u8>, FileKind> = [
        ("dir", FileKind::Directory),
        ("empty", FileKind::Directory),
        (".hidden", FileKind::File),
        ("file", FileKind::File),
        ("fifo", FileKind::Other),
        ("l-dir", FileKind::Symlink),
        ("l-file", FileKind::Symlink),
        ("l-none", FileKind::Symlink),
    ]
    .into_iter()
    .map(|(name, kind)| (name.as_bytes().to_vec(), kind))
    .collect();
    ensure_eq!(place.list(".").await?, expected, "the workdir");
    ensure_eq!(
        place.list("empty").await?,
        BTreeMap::new(),
        "an empty directory"
    );
    Ok(())
}

async fn list_follows_a_link_to_a_directory(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir dir; echo x >dir/inside; ln -s dir link")
        .await?;
    let names: Vec<Vec<u8>> = place.list("link").await?.into_keys().collect();
    ensure_eq!(names, [b"inside".to_vec()], "the linked directory");
    Ok(())
}

async fn large_directories_are_listed(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("i=0; while [ $i -lt 5000 ]; do : >a-file-with-a-rather-long-name-number-$i; i=$((i + 1)); done").await?;
    ensure_eq!(place.list(".").await?.len(), 5000, "entries");
    Ok(())
}

async fn delete_removes_a_file_or_the_link_itself(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("echo x >file; echo t >target; mkdir dir; echo i >dir/inside; ln -s target link; ln -s dir l-dir; ln -s nowhere l-none; mkfifo fifo").await?;
    for path in ["file", "link", "l-dir", "l-none", "fifo"] {
        place.delete(path).await?;
        refused(place.delete(path).await, ErrorKind::NotFound, path)?;
    }
    ensure_eq!(
        place.out("cat target dir/inside; ls").await?,
        "t\ni\ndir\ntarget\n",
        "what the links led to"
    );
    Ok(())
}

async fn delete_refuses_directories(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir empty full; echo x >full/inside").await?;
    for path in ["empty", "full", "."] {
        refused(place.delete(path).await, ErrorKind::IsADirectory, path)?;
    }
    ensure_eq!(
        place.out("ls; cat full/inside").await?,
        "empty\nfull\nx\n",
        "the directories afterwards"
    );
    Ok(())
}

async fn belongs(place: &Place) -> Done {
    place.write("dir/file", "x").await?;
    let said = place.out("stat -c %u:%g dir dir/file; echo \"$(id -u):$(id -g)\"; echo more >>dir/file; : >dir/new; rm dir/new; cat dir/file").await?;
    let lines: Vec<&str> = said.lines().collect();
    ensure_eq!(lines.len(), 4, "lines");
    ensure_eq!(
        (lines[0], lines[1]),
        (lines[2], lines[2]),
        "owners of a new directory and file"
    );
    ensure_eq!(lines[3], "xmore", "the file after a command appended to it");
    Ok(())
}

async fn files_belong_to_the_default_user(cx: Context) -> Done {
    belongs(&cx.place().await?).await
}

async fn files_belong_to_the_specs_user(cx: Context) -> Done {
    let mut spec = cx.spec()?;
    spec.user = Some(User::Ids {
        uid: 4242,
        gid: Some(4343),
    });
    let place = cx.place_of(spec).await?;
    ensure_eq!(
        place.out("echo $(id -u):$(id -g)").await?,
        "4242:4343\n",
        "the default user"
    );
    belongs(&place).await
}

async fn many_files_at_once(cx: Context) -> Done {
    let place = cx.place().await?;
    let tasks: Vec<_> = (0..32)
        .map(|number: usize| {
            let place = place.clone();
            tokio::spawn(async move {
                let content = noise(10_000 * (number + 1));
                let path = format!("dir{}/file{number}", number % 4);
                place.write(&path, content.clone()).await?;
                ensure!(place.read(&path).await? == content, "{path} is another");
                Done::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(Stop::fail)??;
    }
    Ok(())
}

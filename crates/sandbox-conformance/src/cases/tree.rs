//! TREE-1 to TREE-4: directory trees as gzip tar.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use sandbox_core::{Backend, ByteStream, CancelReason, Error, ErrorKind, SandboxPath};

use crate::archive::{Entry, archive, entries, gzip, tar, tar_with_pax_size, tar_with_size};
use crate::case::{Done, cases, ensure, ensure_eq, short};
use crate::context::{Context, Place, eventually, noise, refused, refused_as, unique};
use crate::needs::{Ability, Need};

cases! { "tree":
    entries_are_relative_and_sorted ["TREE-1"] [];
    owners_times_and_gzip_header_are_fixed ["TREE-1"] [];
    same_tree_gives_same_bytes ["TREE-1"] [];
    empty_directory_is_a_valid_archive ["TREE-1"] [];
    absent_directory_is_not_found ["TREE-1"] [];
    file_is_not_a_directory ["TREE-1"] [];
    workdir_is_a_tree ["TREE-1"] [];
    write_makes_the_directory_and_its_parents ["TREE-2"] [];
    write_overwrites_and_keeps_the_rest ["TREE-2"] [];
    write_of_what_was_read_is_the_identity ["TREE-2"] [];
    odd_and_long_names_survive ["TREE-2", "FILE-2"] [];
    hard_links_survive ["TREE-2"] [];
    commands_see_what_was_written ["TREE-2", "FILE-8"] [];
    written_files_belong_to_the_default_user ["TREE-2", "FILE-8"] [];
    names_with_dot_dot_are_refused ["TREE-3"] [];
    absolute_names_are_refused ["TREE-3"] [];
    links_of_the_archive_are_not_followed ["TREE-3"] [];
    links_of_the_tree_are_not_followed ["TREE-3"] [];
    hard_links_to_the_outside_are_refused ["TREE-3"] [];
    link_in_the_place_of_a_file_is_not_written_through ["TREE-3"] [];
    devices_are_refused ["TREE-3"] [];
    damaged_archives_are_refused ["TREE-3"] [];
    sizes_that_disagree_are_refused ["TREE-3"] [];
    failing_stream_is_passed_on ["TREE-3"] [];
    swapped_directories_do_not_let_a_tree_out ["TREE-3", "FILE-1"] [Need::Has(Ability::OwnRoot)] 120;
    set_id_and_sticky_bits_are_dropped ["TREE-4"] [];
    announced_sizes_count_only_when_inflated ["TREE-4", "TREE-3"] [];
    many_files_pass ["TREE-2", "TREE-4"] [] 120;
}

const SAMPLE: &str = "mkdir -p t/b t/a t/empty; echo 1 >t/b/file; echo 2 >t/a.txt; echo 3 >t/a/z; : >t/a-; chmod 755 t/a.txt; \
    chmod 600 t/b/file; ln -s ../b/file t/a/link; ln -s /nowhere t/dangling; mkfifo t/fifo; chmod 700 t/empty";

async fn entries_are_relative_and_sorted(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out(SAMPLE).await?;
    let found = entries(&place.read_tree("t").await?)?;
    let told: Vec<(String, char, u32)> = found
        .iter()
        .map(|entry| {
            (
                String::from_utf8_lossy(&entry.name).into_owned(),
                entry.kind as char,
                entry.mode & 0o7777,
            )
        })
        .collect();
    let plain: Vec<(&str, char, u32)> = told
        .iter()
        // The mode of a link says nothing.
        .map(|(name, kind, mode)| (name.as_str(), *kind, if *kind == '2' { 0 } else { *mode }))
        .collect();
    let expected = [
        ("a-", '0', 0o644),
        ("a.txt", '0', 0o755),
        ("a/", '5', 0o755),
        ("a/link", '2', 0),
        ("a/z", '0', 0o644),
        ("b/", '5', 0o755),
        ("b/file", '0', 0o600),
        ("dangling", '2', 0),
        ("empty/", '5', 0o700),
        ("fifo", '6', 0o644),
    ];
    ensure_eq!(plain, expected, "entries");
    ensure_eq!(found[3].link, b"../b/file".to_vec(), "target of a link");
    ensure_eq!(
        found[7].link,
        b"/nowhere".to_vec(),
        "target of a dangling link"
    );
    ensure_eq!(found[6].content, b"1\n".to_vec(), "content of a file");
    Ok(())
}

async fn owners_times_and_gzip_header_are_fixed(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out(SAMPLE).await?;
    let bytes = place.read_tree("t").await?;
    entries(&bytes)?;
    ensure!(bytes.len() > 18, "the archive has {} bytes", bytes.len());
    // Method deflate, no flags (no name, no comment), no time.
    ensure_eq!(
        bytes[..8].to_vec(),
        [0x1f, 0x8b, 8, 0, 0, 0, 0, 0],
        "begin of the gzip header"
    );
    Ok(())
}

async fn same_tree_gives_same_bytes(cx: Context) -> Done {
    let (place, other) = (cx.place().await?, cx.place().await?);
    place.out(SAMPLE).await?;
    let first = place.read_tree("t").await?;
    place
        .out("touch -d 2001-01-01 t/a.txt t/a; : >t/zz; rm t/zz")
        .await?;
    ensure!(
        place.read_tree("t").await? == first,
        "times change the archive"
    );
    let reversed = "mkdir -p u/empty; chmod 700 u/empty; mkfifo u/fifo; ln -s /nowhere u/dangling; mkdir u/b u/a; : >u/a-; \
        echo 3 >u/a/z; ln -s ../b/file u/a/link; echo 2 >u/a.txt; chmod 755 u/a.txt; echo 1 >u/b/file; chmod 600 u/b/file";
    other.out(reversed).await?;
    ensure!(
        other.read_tree("u").await? == first,
        "the same tree in another sandbox gives other bytes"
    );
    Ok(())
}

async fn empty_directory_is_a_valid_archive(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir empty").await?;
    let bytes = place.read_tree("empty").await?;
    ensure_eq!(entries(&bytes)?.len(), 0, "entries");
    place.write_tree("copy", bytes).await?;
    ensure_eq!(place.list("copy").await?.len(), 0, "entries of its copy");
    Ok(())
}

async fn absent_directory_is_not_found(cx: Context) -> Done {
    let place = cx.place().await?;
    refused(
        place.read_tree("absent").await,
        ErrorKind::NotFound,
        "an absent directory",
    )?;
    Ok(())
}

async fn file_is_not_a_directory(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    refused(
        place.read_tree("file").await,
        ErrorKind::NotADirectory,
        "a file",
    )?;
    let tree = archive(&[Entry::file("a", "a")])?;
    refused(
        place.write_tree("file", tree.clone()).await,
        ErrorKind::NotADirectory,
        "a tree onto a file",
    )?;
    refused(
        place.write_tree("file/sub", tree).await,
        ErrorKind::NotADirectory,
        "a tree below a file",
    )?;
    ensure_eq!(place.read("file").await?, "x", "the file afterwards");
    Ok(())
}

async fn workdir_is_a_tree(cx: Context) -> Done {
    let place = cx.place().await?;
    place.write("file", "x").await?;
    let workdir = place.handle.workdir.to_text();
    let relative = place.read_tree(".").await?;
    ensure!(
        relative == place.read_tree(&workdir).await?,
        "the workdir by its two names gives two archives"
    );
    let names: Vec<Vec<u8>> = entries(&relative)?
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    ensure_eq!(names, [b"file".to_vec()], "entries");
    Ok(())
}

async fn write_makes_the_directory_and_its_parents(cx: Context) -> Done {
    let place = cx.place().await?;
    // An entry's parents need no entry of their own.
    let tree = archive(&[Entry::file("deep/er/file", "x"), Entry::directory("dir/")])?;
    place.write_tree("new/target", tree.clone()).await?;
    place.write_tree("/tmp/other/target", tree).await?;
    let said = place.out("cat new/target/deep/er/file /tmp/other/target/deep/er/file; stat -c %a new/target new/target/deep new/target/dir").await?;
    ensure_eq!(said, "xx755\n755\n755\n", "content and modes");
    Ok(())
}

async fn write_overwrites_and_keeps_the_rest(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir -p t/dir; echo old old old >t/file; echo keep >t/keep; echo keep >t/dir/keep; ln -s keep t/link").await?;
    let tree = archive(&[
        Entry::file("file", "new").with_mode(0o755),
        Entry::directory("dir").with_mode(0o700),
        Entry::file("dir/new", "new"),
        Entry::symlink("link", "file"),
    ])?;
    place.write_tree("t", tree).await?;
    let said = place
        .out("cd t; cat file keep dir/keep dir/new; stat -c %a file; readlink link")
        .await?;
    ensure_eq!(
        said,
        "newkeep\nkeep\nnew755\nfile\n",
        "content, mode and link"
    );
    Ok(())
}

async fn is_identity(place: &Place, from: &str) -> Done<Bytes> {
    let first = place.read_tree(from).await?;
    let copy = format!("copy-{:016x}", unique());
    place.write_tree(&copy, first.clone()).await?;
    let second = place.read_tree(&copy).await?;
    ensure!(
        first == second,
        "the copy differs: {} became {}",
        short(&entries(&first)?),
        short(&entries(&second)?)
    );
    Ok(first)
}

async fn write_of_what_was_read_is_the_identity(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out(SAMPLE).await?;
    place.write("t/noise", noise(300_000)).await?;
    place
        .out("chmod 400 t/a/z; chmod 777 t/b; mkdir -p t/x/y/z; chmod 711 t/x/y")
        .await?;
    is_identity(&place, "t").await?;
    Ok(())
}

async fn odd_and_long_names_survive(cx: Context) -> Done {
    let place = cx.place().await?;
    let long = "n".repeat(255);
    let deep = format!("{0}/{0}/{0}/{0}/file", "d".repeat(200));
    let names: [&[u8]; 10] = [
        b"t/new\nline",
        b"t/-rf",
        b"t/ sp ace ",
        b"t/\xff\xfe",
        b"t/\"q'",
        b"t/back\\slash",
        b"t/...",
        b"t/.wh.x",
        "t/ž".as_bytes(),
        b"t/*",
    ];
    for name in names {
        place.write(name, name).await?;
    }
    place.write(format!("t/{long}"), "long").await?;
    place.write(format!("t/{deep}"), "deep").await?;
    let target = "/target/".repeat(30);
    place.out(&format!("ln -s {target} t/long-link")).await?;
    let found = entries(&is_identity(&place, "t").await?)?;
    for name in names {
        ensure!(
            found.iter().any(|entry| entry.name == name[2..]),
            "{:?} is not in the archive",
            String::from_utf8_lossy(name)
        );
    }
    ensure!(
        found.iter().any(|entry| entry.name == deep.as_bytes()),
        "the deep file is not in the archive"
    );
    ensure!(
        found.iter().any(|entry| entry.link == target.as_bytes()),
        "the long link is not in the archive"
    );
    Ok(())
}

async fn hard_links_survive(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .out("mkdir -p t/sub; echo x >t/b; ln t/b t/sub/c; ln t/b t/a; ln t/b outside")
        .await?;
    let tree = is_identity(&place, "t").await?;
    let found = entries(&tree)?;
    let links: Vec<(Vec<u8>, Vec<u8>)> = found
        .iter()
        .filter(|entry| entry.kind == b'1')
        .map(|entry| (entry.name.clone(), entry.link.clone()))
        .collect();
    let expected = [
        (b"b".to_vec(), b"a".to_vec()),
        (b"sub/c".to_vec(), b"a".to_vec()),
    ];
    ensure_eq!(links, expected, "hard links");
    place.write_tree("copy", tree).await?;
    ensure_eq!(
        place
            .out("stat -c %h copy/b; echo more >>copy/a; cat copy/sub/c")
            .await?,
        "3\nx\nmore\n",
        "links and shared content"
    );
    Ok(())
}

async fn commands_see_what_was_written(cx: Context) -> Done {
    let place = cx.place().await?;
    let tree = archive(&[
        Entry::directory("d/").with_mode(0o711),
        Entry::file("d/run", "#!/bin/sh\necho ran\n").with_mode(0o755),
        Entry::symlink("d/link", "run"),
        Entry::file("d/fifo", "").of_kind(b'6'),
        Entry::hard_link("d/again", "d/run"),
    ])?;
    place.write_tree("t", tree).await?;
    let said = place
        .out("t/d/link; t/d/again; stat -c %a t/d; [ -p t/d/fifo ] && echo fifo; readlink t/d/link")
        .await?;
    ensure_eq!(said, "ran\nran\n711\nfifo\nrun\n", "what commands see");
    Ok(())
}

/// The archive's own owner is 1234, its time long ago.
async fn written_files_belong_to_the_default_user(cx: Context) -> Done {
    let place = cx.place().await?;
    place
        .write_tree(
            "t",
            archive(&[Entry::directory("d"), Entry::file("d/file", "x")])?,
        )
        .await?;
    let said = place
        .out("stat -c %u:%g t t/d t/d/file; echo $(id -u):$(id -g); echo more >>t/d/file")
        .await?;
    let lines: Vec<&str> = said.lines().collect();
    ensure!(
        lines.len() == 4 && lines.iter().all(|line| line == &lines[3]),
        "owners and own ids: {lines:?}"
    );
    Ok(())
}

/// Refused as an invalid archive, and nothing beside the target was touched.
async fn escapes(place: &Place, tree: Bytes, what: &str) -> Done {
    place.out("rm -rf /tmp/outside && mkdir /tmp/outside && echo safe >/tmp/outside/victim && mkdir -p t").await?;
    refused(
        place.write_tree("t", tree).await,
        ErrorKind::InvalidArchive,
        what,
    )?;
    let said = place
        .out(
            "ls /tmp/outside; cat /tmp/outside/victim; stat -c %h /tmp/outside/victim; ls ..//; ls",
        )
        .await?;
    ensure!(
        said.starts_with("victim\nsafe\n1\n"),
        "{what}: outside there is now {said:?}"
    );
    ensure!(
        !said.contains("escaped"),
        "{what}: something escaped: {said:?}"
    );
    Ok(())
}

async fn names_with_dot_dot_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    for name in [
        "../escaped",
        "..",
        "a/../../escaped",
        "./../escaped",
        "a/b/../../../escaped",
        "../../../../../../tmp/outside/escaped",
    ] {
        escapes(&place, archive(&[Entry::file(name, "x")])?, name).await?;
        escapes(&place, archive(&[Entry::directory(name)])?, name).await?;
    }
    Ok(())
}

async fn absolute_names_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    for name in ["/tmp/outside/escaped", "//tmp/outside/escaped", "/escaped"] {
        escapes(&place, archive(&[Entry::file(name, "x")])?, name).await?;
    }
    Ok(())
}

async fn links_of_the_archive_are_not_followed(cx: Context) -> Done {
    let place = cx.place().await?;
    for target in ["/tmp/outside", "../../../../../../tmp/outside", "/"] {
        let link = Entry::symlink("link", target);
        for name in ["link/escaped", "link/tmp/outside/escaped", "link/victim"] {
            let tree = archive(&[link.clone(), Entry::file(name, "x")])?;
            escapes(&place, tree, &format!("{name} through {target}")).await?;
        }
        place.out("rm -rf t").await?;
    }
    // A link to a place inside is one all the same: whether it may be followed is not the archive's to say.
    let tree = archive(&[
        Entry::directory("d"),
        Entry::symlink("link", "d"),
        Entry::file("link/escaped", "x"),
    ])?;
    escapes(&place, tree, "a file through a link inside").await?;
    ensure_eq!(
        place.sh("ls t/d 2>/dev/null").await?.stdout.len(),
        0,
        "what the link inside led to"
    );
    Ok(())
}

async fn links_of_the_tree_are_not_followed(cx: Context) -> Done {
    let place = cx.place().await?;
    for target in ["/tmp/outside", "../../../../../../tmp/outside"] {
        place
            .out(&format!("rm -rf t; mkdir t; ln -s {target} t/link"))
            .await?;
        escapes(
            &place,
            archive(&[Entry::file("link/escaped", "x")])?,
            "a file through a link that was there",
        )
        .await?;
        escapes(
            &place,
            archive(&[Entry::directory("link/escaped")])?,
            "a directory through it",
        )
        .await?;
        escapes(
            &place,
            archive(&[Entry::file("link/victim", "x")])?,
            "a file that is there",
        )
        .await?;
    }
    Ok(())
}

async fn hard_links_to_the_outside_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    for target in [
        "/tmp/outside/victim",
        "../../../../../tmp/outside/victim",
        "../escaped",
        "a/../../x",
    ] {
        let tree = archive(&[Entry::hard_link("link", target)])?;
        escapes(&place, tree, &format!("a hard link to {target}")).await?;
    }
    let tree = archive(&[
        Entry::symlink("s", "/tmp/outside"),
        Entry::hard_link("link", "s/victim"),
    ])?;
    escapes(&place, tree, "a hard link through a link").await?;
    Ok(())
}

async fn link_in_the_place_of_a_file_is_not_written_through(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir -p t /tmp/outside; echo safe >/tmp/outside/victim; ln -s /tmp/outside/victim t/file").await?;
    match place
        .write_tree("t", archive(&[Entry::file("file", "new")])?)
        .await
    {
        Ok(()) => ensure_eq!(
            place.out("cat t/file; [ -L t/file ] || echo plain").await?,
            "newplain\n",
            "the file in the link's place"
        ),
        Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArchive, "kind"),
    }
    ensure_eq!(
        place.out("cat /tmp/outside/victim").await?,
        "safe\n",
        "what the link led to"
    );
    // In one archive: the link first, then a file of the same name.
    let tree = archive(&[
        Entry::symlink("twice", "/tmp/outside/victim"),
        Entry::file("twice", "new"),
    ])?;
    if let Err(error) = place.write_tree("u", tree).await {
        ensure_eq!(error.kind(), ErrorKind::InvalidArchive, "kind");
    }
    ensure_eq!(
        place.out("cat /tmp/outside/victim").await?,
        "safe\n",
        "what the archive's link led to"
    );
    Ok(())
}

async fn devices_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    for kind in [b'3', b'4'] {
        escapes(
            &place,
            archive(&[Entry::file("device", "").of_kind(kind)])?,
            "a device",
        )
        .await?;
        ensure_eq!(
            place.sh("ls t").await?.stdout.len(),
            0,
            "bytes of the target's listing"
        );
    }
    Ok(())
}

async fn damaged_archives_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let plain = tar(&[Entry::file("file", noise(20_000))]);
    let whole = gzip(&plain)?;
    let mut flipped = whole.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    let mut checksum = plain.clone();
    checksum[0] ^= 1;
    for (what, tree) in [
        ("nothing", Bytes::new()),
        ("garbage", noise(5_000)),
        ("text", Bytes::from_static(b"this is no archive")),
        ("a tar without gzip", Bytes::from(plain.clone())),
        ("a gzip header alone", whole.slice(..10)),
        ("a gzip cut in the middle", whole.slice(..whole.len() / 2)),
        ("a gzip without its trailer", whole.slice(..whole.len() - 8)),
        ("a gzip with a flipped byte", Bytes::from(flipped)),
        ("gzip of garbage", gzip(&noise(5_000))?),
        ("a tar cut in its content", gzip(&plain[..5_000])?),
        ("a tar cut in its header", gzip(&plain[..300])?),
        ("a header with a wrong checksum", gzip(&checksum)?),
    ] {
        let refusal = place.write_tree("t", tree).await;
        refused(refusal, ErrorKind::InvalidArchive, what)?;
    }
    ensure_eq!(place.out("echo on").await?, "on\n", "the next command");
    Ok(())
}

/// Readers that believe one size and skip by the other can be made to see entries that are not there.
async fn sizes_that_disagree_are_refused(cx: Context) -> Done {
    let place = cx.place().await?;
    let hidden = tar(&[Entry::file("hidden", "x")]);
    let carrier = Entry::file("file", &hidden);
    for (what, plain) in [
        (
            "a PAX size below the header's",
            tar_with_pax_size(&carrier, 0),
        ),
        (
            "a PAX size above the header's",
            tar_with_pax_size(&carrier, 1 << 20),
        ),
        ("a size beyond the end", tar_with_size(&carrier, 1 << 20)),
    ] {
        refused(
            place.write_tree("t", gzip(&plain)?).await,
            ErrorKind::InvalidArchive,
            what,
        )?;
        refused_as(
            place.stat("t/hidden").await,
            &[ErrorKind::NotFound],
            "the hidden entry",
        )?;
    }
    Ok(())
}

async fn failing_stream_is_passed_on(cx: Context) -> Done {
    let place = cx.place().await?;
    let whole = archive(&[Entry::file("file", noise(200_000))])?;
    let reason = CancelReason::new("the source failed");
    let failure = Error::Cancelled {
        reason: Some(reason.clone()),
    };
    let parts = vec![Ok(whole.slice(..whole.len() / 2)), Err(failure)];
    let tree = ByteStream::new(stream::iter(parts));
    let refusal = cx
        .backend()
        .write_tree_at(&place.handle, &SandboxPath::new("t")?, tree)
        .await;
    let error = refused(refusal, ErrorKind::Cancelled, "a tree whose stream fails")?;
    let same = matches!(&error, Error::Cancelled { reason: Some(given) } if given.same_as(&reason));
    ensure!(same, "the stream's own error is not returned: {error}");
    Ok(())
}

async fn swapped_directories_do_not_let_a_tree_out(cx: Context) -> Done {
    let place = cx.place().await?;
    place.out("mkdir -p t /tmp/outside").await?;
    let script = "cd t; mkdir sub; ln -s /tmp/outside link; while :; do mv sub d; mv link sub; mv sub link; mv d sub; done 2>/dev/null";
    let mut swapping = place.start(sandbox_core::Cmd::shell(script)).await?;
    let tree = archive(&[
        Entry::directory("sub"),
        Entry::file("sub/escaped", "x"),
        Entry::file("sub/deep/escaped", "x"),
    ])?;
    for _ in 0..150 {
        if let Err(error) = place.write_tree("t", tree.clone()).await {
            let kinds = [
                ErrorKind::InvalidArchive,
                ErrorKind::NotFound,
                ErrorKind::NotADirectory,
                ErrorKind::Io,
                ErrorKind::InvalidPath,
            ];
            ensure!(
                kinds.contains(&error.kind()),
                "an error of kind {:?}: {error}",
                error.kind()
            );
        }
    }
    swapping.kill();
    swapping.wait().await;
    eventually!(Duration::from_secs(2), "the swapping to end", {
        Ok(place.sh("true").await?.success())
    })?;
    ensure_eq!(
        place.list("/tmp/outside").await?.len(),
        0,
        "entries outside"
    );
    Ok(())
}

async fn set_id_and_sticky_bits_are_dropped(cx: Context) -> Done {
    let place = cx.place().await?;
    let tree = archive(&[
        Entry::directory("dir").with_mode(0o7777),
        Entry::file("suid", "x").with_mode(0o4755),
        Entry::file("sgid", "x").with_mode(0o2755),
        Entry::file("sticky", "x").with_mode(0o1644),
    ])?;
    place.write_tree("t", tree).await?;
    let said = place.out("cd t; stat -c %a dir suid sgid sticky").await?;
    ensure_eq!(said, "777\n755\n755\n644\n", "modes");
    place
        .out("mkdir u; echo x >u/suid; chmod 4755 u/suid; mkdir u/dir; chmod 1777 u/dir")
        .await?;
    let modes: Vec<u32> = entries(&place.read_tree("u").await?)?
        .iter()
        .map(|entry| entry.mode)
        .collect();
    ensure_eq!(modes, [0o777, 0o755], "modes in an archive that was read");
    Ok(())
}

/// A header may say anything; only what comes out of the gzip counts, so this one is cut off, not too large.
async fn announced_sizes_count_only_when_inflated(cx: Context) -> Done {
    let place = cx.place().await?;
    let plain = tar_with_size(&Entry::file("file", "x"), 7 << 30);
    let kinds = [ErrorKind::InvalidArchive, ErrorKind::TooLarge];
    refused_as(
        place.write_tree("t", gzip(&plain)?).await,
        &kinds,
        "a size of 7 GiB that is not there",
    )?;
    // What had come in until then may be there; no room was made for the rest.
    if let Ok(stat) = place.stat("t/file").await {
        ensure!(stat.size <= 2048, "the file has {} bytes", stat.size);
    }
    Ok(())
}

async fn many_files_pass(cx: Context) -> Done {
    let place = cx.place().await?;
    let mut all = vec![Entry::directory("d/")];
    all.extend((0..3000).map(|number| Entry::file(format!("d/{number:05}"), number.to_string())));
    place.write_tree("t", archive(&all)?).await?;
    ensure_eq!(
        place.out("ls t/d | wc -l; cat t/d/02999").await?,
        "3000\n2999",
        "files"
    );
    ensure_eq!(
        entries(&place.read_tree("t").await?)?,
        all,
        "entries when read again"
    );
    Ok(())
}

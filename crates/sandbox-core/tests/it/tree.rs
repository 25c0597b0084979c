//! The tree codec against itself, against `tar` and `python3`, and against archives that somebody made to hurt.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use proptest::collection::vec;
use proptest::prelude::*;
use sandbox_core::tree::{TreeEntry, TreeEvent, TreeKind, TreeLimits, decode, encode};
use sandbox_core::{ByteStream, Error, ErrorKind, Result};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn entry(path: impl AsRef<[u8]>, kind: TreeKind) -> TreeEvent {
    let mode = match kind {
        TreeKind::Directory => 0o755,
        TreeKind::Symlink { .. } => 0o777,
        _ => 0o644,
    };
    let path = path.as_ref().to_vec();
    TreeEvent::Entry(TreeEntry { path, mode, kind })
}

fn file(path: impl AsRef<[u8]>, content: impl Into<Bytes>) -> Vec<TreeEvent> {
    let content = content.into();
    let size = content.len() as u64;
    let mut events = vec![entry(path, TreeKind::File { size })];
    if size > 0 {
        events.push(TreeEvent::Data(content));
    }
    events
}

fn pack(events: Vec<TreeEvent>) -> Result<Bytes> {
    pack_within(events, TreeLimits::default())
}

fn pack_within(events: Vec<TreeEvent>, limits: TreeLimits) -> Result<Bytes> {
    block_on(encode(stream::iter(events).map(Ok), limits).collect(u64::MAX))
}

fn unpack(archive: &[u8]) -> Result<Vec<TreeEvent>> {
    unpack_chunks(vec![Bytes::copy_from_slice(archive)], TreeLimits::default())
}

/// Decodes and joins the data of each file.
fn unpack_chunks(chunks: Vec<Bytes>, limits: TreeLimits) -> Result<Vec<TreeEvent>> {
    let archive = ByteStream::new(stream::iter(chunks).map(Ok));
    block_on(async {
        let mut events: Vec<TreeEvent> = Vec::new();
        let mut decoded = decode(archive, limits);
        while let Some(event) = decoded.next().await {
            let event = event.inspect_err(|_| ())?;
            if let TreeEvent::Data(data) = &event {
                assert!(!data.is_empty() && data.len() <= 64 * 1024);
            }
            match (events.last_mut(), event) {
                (Some(TreeEvent::Data(all)), TreeEvent::Data(data)) => {
                    *all = [&all[..], &data].concat().into();
                }
                (_, event) => events.push(event),
            }
        }
        assert!(decoded.next().await.is_none(), "nothing follows the end");
        Ok(events)
    })
}

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

fn gunzip(archive: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(archive), &mut tar).unwrap();
    tar
}

/// A header made by hand, so that it can be wrong.
#[derive(Clone)]
struct Raw {
    name: Vec<u8>,
    kind: u8,
    size: Vec<u8>,
    link: Vec<u8>,
    mode: Vec<u8>,
    magic: [u8; 8],
    prefix: Vec<u8>,
    body: Vec<u8>,
}

impl Raw {
    fn new(name: impl AsRef<[u8]>, kind: u8) -> Self {
        Raw {
            name: name.as_ref().to_vec(),
            kind,
            size: b"00000000000\0".to_vec(),
            link: Vec::new(),
            mode: b"0000644\0".to_vec(),
            magic: *b"ustar\x0000",
            prefix: Vec::new(),
            body: Vec::new(),
        }
    }

    fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self.size = format!("{:011o}\0", self.body.len()).into_bytes();
        self
    }

    fn link(mut self, link: impl AsRef<[u8]>) -> Self {
        self.link = link.as_ref().to_vec();
        self
    }

    fn pax(records: &[(&str, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            body.extend_from_slice(format!("{length} {key}=").as_bytes());
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        Raw::new("pax", b'x').body(body)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; 512];
        let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
        put(0, &self.name);
        put(100, &self.mode);
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, &self.size);
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &self.link);
        put(257, &self.magic);
        put(345, &self.prefix);
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.extend_from_slice(&self.body);
        block.resize(block.len().next_multiple_of(512), 0);
        block
    }
}

fn archive(entries: &[Raw]) -> Vec<u8> {
    let mut tar: Vec<u8> = entries.iter().flat_map(Raw::bytes).collect();
    tar.resize(tar.len() + 1024, 0);
    gzip(&tar)
}

#[track_caller]
fn assert_refused(entries: &[Raw], reason: &str) {
    assert_invalid(&archive(entries), reason);
}

#[track_caller]
fn assert_invalid(bytes: &[u8], reason: &str) {
    match unpack(bytes) {
        Err(error @ Error::InvalidArchive { .. }) => {
            assert!(error.to_string().contains(reason), "{error}");
        }
        other => panic!("expected InvalidArchive ({reason}), got {other:?}"),
    }
}

/// Trees of odd names: path to entry, in no order, so that parents can be missing or files.
fn events() -> impl Strategy<Value = Vec<TreeEvent>> {
    let text = |pattern: &'static str| pattern.prop_map(String::into_bytes);
    let component = prop_oneof![
        4 => text("[a-c]{1,2}"),
        2 => text("[ -.0-~]{1,6}"),
        1 => text("[a-z]{90,120}"),
        1 => vec(prop_oneof![1_u8..b'/', b'/' + 1..], 1..5),
    ]
    .prop_filter("dots", |name| name != b"." && name != b"..");
    let node = prop_oneof![
        Just(None),
        vec(any::<u8>(), 0..2000).prop_map(|content| Some((0, content))),
        vec(1_u8.., 1..300).prop_map(|target| Some((1, target))),
        Just(Some((2, Vec::new()))),
        Just(Some((3, Vec::new()))),
    ];
    vec((vec(component, 1..4), node, 0_u32..0o1000), 0..20).prop_map(|nodes| {
        let mut tree: BTreeMap<Vec<u8>, (TreeEvent, Vec<u8>)> = BTreeMap::new();
        let mut first_file: Option<Vec<u8>> = None;
        for (components, node, mode) in nodes {
            let path = components.join(&b'/');
            let mut parents = (1..components.len()).map(|n| components[..n].join(&b'/'));
            if parents.any(|parent| tree.contains_key(&parent)) {
                continue;
            }
            let mut name = path.clone();
            name.push(b'/');
            let taken = tree.contains_key(&path)
                || tree
                    .range(name.clone()..)
                    .next()
                    .is_some_and(|(other, _)| other.starts_with(&name));
            if taken {
                continue;
            }
            let (kind, mode, content) = match node {
                None => (TreeKind::Directory, mode, Vec::new()),
                Some((0, content)) => {
                    first_file.get_or_insert_with(|| path.clone());
                    let size = content.len() as u64;
                    (TreeKind::File { size }, mode, content)
                }
                Some((1, target)) => (TreeKind::Symlink { target }, 0o777, Vec::new()),
                Some((2, _)) => (TreeKind::Fifo, mode, Vec::new()),
                Some(_) => match first_file.clone().filter(|target| *target < path) {
                    Some(target) => (TreeKind::Hardlink { target }, mode, Vec::new()),
                    None => continue,
                },
            };
            let key = if kind == TreeKind::Directory {
                name
            } else {
                path.clone()
            };
            tree.insert(
                key,
                (TreeEvent::Entry(TreeEntry { path, mode, kind }), content),
            );
        }
        tree.into_values()
            .flat_map(|(entry, content)| {
                let data = (!content.is_empty()).then_some(TreeEvent::Data(content.into()));
                [Some(entry), data]
            })
            .flatten()
            .collect()
    })
}

fn cut(bytes: &[u8], sizes: &[usize]) -> Vec<Bytes> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut chunks = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        chunks.push(rest.split_to((*size).min(rest.len())));
        chunks.push(Bytes::new());
    }
    chunks
}

/// Events whose data is cut into small pieces.
fn cut_data(events: &[TreeEvent], sizes: &[usize]) -> Vec<TreeEvent> {
    events
        .iter()
        .flat_map(|event| match event {
            TreeEvent::Data(data) => cut(data, sizes).into_iter().map(TreeEvent::Data).collect(),
            entry => vec![entry.clone()],
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn decode_is_the_inverse_of_encode(events in events()) {
        prop_assert_eq!(unpack(&pack(events.clone()).unwrap()).unwrap(), events);
    }

    #[test]
    fn cutting_does_not_matter(events in events(), sizes in vec(1_usize..700, 1..5)) {
        let archive = pack(events.clone()).unwrap();
        prop_assert_eq!(&pack(cut_data(&events, &sizes)).unwrap(), &archive);
        let decoded = unpack_chunks(cut(&archive, &sizes), TreeLimits::default()).unwrap();
        prop_assert_eq!(decoded, events);
    }

    #[test]
    fn changed_archives_neither_panic_nor_escape(
        events in events(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        fix_checksums in any::<bool>(),
    ) {
        let mut tar = gunzip(&pack(events).unwrap());
        for (at, byte) in changes {
            let at = at.index(tar.len());
            tar[at] = byte;
        }
        if fix_checksums {
            for block in tar.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        check_outcome(unpack(&gzip(&tar)));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..2000)) {
        check_outcome(unpack(&bytes));
        check_outcome(unpack(&gzip(&bytes)));
        check_outcome(unpack(&[&gzip(&[])[..10], &bytes].concat()));
    }

    #[test]
    fn every_cut_off_is_noticed(events in events(), at in any::<prop::sample::Index>()) {
        let archive = pack(events).unwrap();
        let cut = &archive[..at.index(archive.len())];
        prop_assert_eq!(unpack(cut).unwrap_err().kind(), ErrorKind::InvalidArchive);
    }
}

fn check_outcome(outcome: Result<Vec<TreeEvent>>) {
    match outcome {
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArchive, "{error}"),
        Ok(events) => {
            for event in events {
                if let TreeEvent::Entry(TreeEntry { path, mode, kind }) = event {
                    assert_stays_inside(&path);
                    assert_eq!(mode & !0o777, 0);
                    if let TreeKind::Hardlink { target } = kind {
                        assert_stays_inside(&target);
                    }
                }
            }
        }
    }
}

fn assert_stays_inside(path: &[u8]) {
    let good = |component: &[u8]| {
        !component.is_empty() && component != b"." && component != b".." && !component.contains(&0)
    };
    assert!(path.split(|byte| *byte == b'/').all(good), "{path:?}");
}

#[test]
fn an_empty_tree_is_a_valid_archive_with_known_bytes() {
    let archive = pack(vec![]).unwrap();
    assert_eq!(unpack(&archive).unwrap(), []);
    assert_eq!(&archive[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255]);
    assert_eq!(gunzip(&archive), vec![0; 1024]);
}

#[test]
fn content_of_many_steps_comes_back() {
    let mut seed = 1_u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let mut events = file("noise", (0..300_000).map(|_| noise()).collect::<Vec<u8>>());
    for size in [65_535, 65_536, 65_537, 131_072, 1_000_000] {
        events.extend(file(format!("z{size:07}"), vec![b'x'; size]));
    }
    let archive = pack(events.clone()).unwrap();
    assert_eq!(unpack(&archive).unwrap(), events);
    assert_eq!(
        pack(cut_data(&events, &[1000, 1, 70_000])).unwrap(),
        archive
    );
}

#[test]
fn a_walk_that_is_wrong_is_refused() {
    let long = "x".repeat(70_000);
    let cases: Vec<(&str, Vec<TreeEvent>)> = vec![
        ("out of order", [file("b", ""), file("a", "")].concat()),
        ("twice", [file("a", ""), file("a", "")].concat()),
        (
            "a directory counts with its slash",
            [vec![entry("a", TreeKind::Directory)], file("a.b", "")].concat(),
        ),
        ("empty", file("", "")),
        ("absolute", file("/a", "")),
        ("dots", file("a/../b", "")),
        ("dot", file("./a", "")),
        ("slash at the end", file("a/", "")),
        ("NUL", file("a\0", "")),
        ("long", file(&long, "")),
        (
            "link to the outside",
            vec![entry(
                "a",
                TreeKind::Hardlink {
                    target: b"../b".to_vec(),
                },
            )],
        ),
        (
            "empty link",
            vec![entry("a", TreeKind::Symlink { target: vec![] })],
        ),
        ("data before an entry", vec![TreeEvent::Data("x".into())]),
        (
            "data of a directory",
            vec![entry("a", TreeKind::Directory), TreeEvent::Data("x".into())],
        ),
        (
            "data is missing at the end",
            vec![entry("a", TreeKind::File { size: 1 })],
        ),
        (
            "data is missing before an entry",
            [vec![entry("a", TreeKind::File { size: 1 })], file("b", "")].concat(),
        ),
        (
            "too much data",
            vec![
                entry("a", TreeKind::File { size: 1 }),
                TreeEvent::Data("xy".into()),
            ],
        ),
        (
            "data after the data",
            [file("a", "x"), vec![TreeEvent::Data("y".into())]].concat(),
        ),
    ];
    for (case, events) in cases {
        assert_eq!(
            pack(events).unwrap_err().kind(),
            ErrorKind::InvalidArchive,
            "{case}"
        );
    }
}

#[test]
fn an_error_of_the_walk_ends_the_archive() {
    let events = stream::iter([Ok(file("a", "")[0].clone()), Err(Error::cancelled())]);
    let mut archive = encode(events, TreeLimits::default());
    let mut bytes = Vec::new();
    let error = block_on(async {
        loop {
            match archive.next().await {
                Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                Some(Err(error)) => break error,
                None => panic!("the error was swallowed"),
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(block_on(archive.next()).is_none());
    assert!(unpack(&bytes).is_err(), "what came out must not look whole");
}

#[test]
fn an_error_of_the_archive_is_passed_on() {
    let bytes = pack(file("a", "x")).unwrap();
    let chunks = [Ok(bytes.slice(..20)), Err(Error::cancelled())];
    let mut events = decode(ByteStream::new(stream::iter(chunks)), TreeLimits::default());
    let error = block_on(events.next()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn sane_archives_of_all_formats_are_accepted() {
    let mut gnu = Raw::new("g", b'0').body("gnu");
    gnu.magic = *b"ustar  \0";
    // In GNU format the prefix field holds times.
    gnu.prefix = b"14000000000".to_vec();
    let mut old = Raw::new("old", 0).body("v7");
    old.magic = [0; 8];
    let mut prefixed = Raw::new("name", b'0');
    prefixed.prefix = b"pre/fix".to_vec();
    let mut set_uid = Raw::new("suid", b'0');
    set_uid.mode = b"0007755\0".to_vec();
    let mut base256 = Raw::new("base256", b'0').body("four");
    base256.size = vec![0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4];
    let entries = [
        Raw::new("pax_global_header", b'g').body("16 comment=abcd\n"),
        Raw::new("./", b'5'),
        Raw::new(".", b'5'),
        gnu,
        old,
        prefixed,
        set_uid,
        base256,
        Raw::new(".//d//", b'5'),
        Raw::new("olddir/", 0),
        Raw::new("./d/x", b'7').body("contiguous"),
        Raw::pax(&[
            ("path", b"p\xff/./q"),
            ("mtime", b"-1.5"),
            ("comment", b"a=b\nc"),
        ]),
        Raw::new("short", b'0').body("pax"),
        Raw::pax(&[("linkpath", b"long target"), ("path", b"")]),
        Raw::new("l", b'2').link("short"),
        Raw::new("././@LongLink", b'L').body("gnu long\0"),
        Raw::new("gnu", b'0'),
        Raw::new("././@LongLink", b'K').body("./d/./x\0"),
        Raw::new("hard", b'1').link("d/y"),
        Raw::new("d/x", b'0').body("again"),
        Raw::new("fifo", b'6'),
    ];
    let expected = [
        file("g", "gnu"),
        file("old", "v7"),
        file("pre/fix/name", ""),
        vec![TreeEvent::Entry(TreeEntry {
            path: b"suid".to_vec(),
            mode: 0o755,
            kind: TreeKind::File { size: 0 },
        })],
        file("base256", "four"),
        vec![
            entry("d", TreeKind::Directory),
            entry("olddir", TreeKind::Directory),
        ],
        file("d/x", "contiguous"),
        file(b"p\xff/q", "pax"),
        vec![entry(
            "l",
            TreeKind::Symlink {
                target: b"long target".to_vec(),
            },
        )],
        file("gnu long", ""),
        vec![entry(
            "hard",
            TreeKind::Hardlink {
                target: b"d/x".to_vec(),
            },
        )],
        file("d/x", "again"),
        vec![entry("fifo", TreeKind::Fifo)],
    ]
    .concat();
    let forget_modes = |events: Vec<TreeEvent>| -> Vec<TreeEvent> {
        events
            .into_iter()
            .map(|event| match event {
                TreeEvent::Entry(mut entry) if entry.path != b"suid" => {
                    entry.mode = 0;
                    TreeEvent::Entry(entry)
                }
                other => other,
            })
            .collect()
    };
    let decoded = unpack(&archive(&entries)).unwrap();
    assert_eq!(forget_modes(decoded), forget_modes(expected));
}

#[test]
fn the_end_of_an_archive_may_be_padded_but_not_followed() {
    let tar: Vec<u8> = Raw::new("a", b'0').bytes();
    let zeros = |n: usize| vec![0; n];
    for end in [512, 1024, 1000, 10_240, 1_000_000] {
        assert_eq!(
            unpack(&gzip(&[tar.clone(), zeros(end)].concat())).unwrap(),
            file("a", "")
        );
    }
    assert_invalid(&gzip(&tar), "cut off");
    assert_invalid(&gzip(&[]), "cut off");
    assert_invalid(&[], "cut off");
    assert_invalid(
        &gzip(&[&tar[..], &[0; 1024], b"x"].concat()),
        "follows the end",
    );
    assert_invalid(
        &gzip(&[tar.clone(), zeros(512), tar.clone(), zeros(1024)].concat()),
        "follows",
    );
    assert_invalid(
        &gzip(&[zeros(1024), tar.clone(), zeros(1024)].concat()),
        "follows the end",
    );
    let whole = archive(&[Raw::new("a", b'0')]);
    assert_invalid(&[&whole[..], b"garbage"].concat(), "garbage");
    assert_invalid(&[&whole[..], &[0; 10]].concat(), "garbage");
    assert_invalid(b"plain text", "not gzip");
    assert_invalid(&[tar, zeros(1024)].concat(), "not gzip");
    let mut wrong_sum = whole.clone();
    let at = whole.len() - 8;
    wrong_sum[at] ^= 1;
    assert_invalid(&wrong_sum, "checksum");
}

#[test]
fn gzip_members_in_a_row_and_full_headers_are_one_stream() {
    let tar = [Raw::new("a", b'0').body("x").bytes(), vec![0; 1024]].concat();
    let mut bytes = gzip(&[]);
    for (index, part) in tar.chunks(700).enumerate() {
        let mut builder = flate2::GzBuilder::new().mtime(7);
        if index == 1 {
            builder = builder.filename("name").comment("comment").extra("extra");
        }
        let mut encoder = builder.write(Vec::new(), flate2::Compression::none());
        encoder.write_all(part).unwrap();
        bytes.extend(encoder.finish().unwrap());
    }
    for size in [1, 3, 7, 10_000] {
        let chunks = cut(&bytes, &[size]);
        assert_eq!(
            unpack_chunks(chunks, TreeLimits::default()).unwrap(),
            file("a", "x")
        );
    }
}

#[test]
fn names_that_escape_are_refused() {
    for name in ["/etc/passwd", "//a", "/"] {
        assert_refused(&[Raw::new(name, b'0')], "absolute");
        assert_refused(&[Raw::new(name, b'5')], "absolute");
    }
    for name in ["../escape", "..", "a/../../b", "a/..", "./.."] {
        assert_refused(&[Raw::new(name, b'5')], "'..'");
    }
    assert_refused(&[Raw::new("", b'0')], "empty");
    assert_refused(&[Raw::new("", b'5')], "empty");
    assert_refused(
        &[Raw::pax(&[("path", b"a\0b")]), Raw::new("a", b'0')],
        "NUL",
    );
    assert_refused(
        &[Raw::pax(&[("path", b"../a")]), Raw::new("a", b'0')],
        "'..'",
    );
    let long_name = Raw::new("././@LongLink", b'L');
    assert_refused(
        &[long_name.clone().body("/abs\0"), Raw::new("a", b'0')],
        "absolute",
    );
    assert_refused(
        &[long_name.clone().body("a\0b\0"), Raw::new("a", b'0')],
        "NUL",
    );
    assert_refused(
        &[long_name.body(vec![b'x'; 70_000]), Raw::new("a", b'0')],
        "1 to 65536",
    );
    assert_refused(&[Raw::new("x/", b'2').link("y")], "slash");
    assert_refused(&[Raw::new("x/", b'0').body("y")], "slash");
    assert_refused(&[Raw::new(".", b'2').link("x")], "only a directory");
}

#[test]
fn nothing_is_written_through_a_link_or_file_of_the_archive() {
    let evil = Raw::new("evil", b'2').link("/outside");
    let below = "below a symbolic link or file";
    assert_refused(&[evil.clone(), Raw::new("evil/x", b'0')], below);
    assert_refused(&[evil.clone(), Raw::new("./evil//x/y", b'5')], below);
    assert_refused(&[Raw::new("f", b'0'), Raw::new("f/x", b'0')], below);
    assert_refused(&[Raw::new("f", b'6'), Raw::new("f/x", b'0')], below);
    assert_refused(
        &[
            Raw::new("a", b'0'),
            Raw::new("h", b'1').link("a"),
            Raw::new("h/x", b'0'),
        ],
        below,
    );
    assert_refused(
        &[evil.clone(), Raw::new("evil", b'5')],
        "both as a directory",
    );
    assert_refused(
        &[Raw::new("d/x", b'0'), Raw::new("d", b'2').link("/")],
        "both as a directory",
    );
    // The parent that was found good before is asked again once something could have changed it.
    assert_refused(
        &[
            Raw::new("d/x", b'0'),
            Raw::new("d/y", b'0'),
            Raw::new("d", b'0'),
        ],
        "both as a directory",
    );
    assert_refused(
        &[
            evil.clone(),
            Raw::new("ok", b'0'),
            Raw::new("h", b'1').link("evil/passwd"),
        ],
        "earlier entry",
    );
    assert!(unpack(&archive(&[evil.clone(), Raw::new("evil", b'0'), evil])).is_ok());
}

#[test]
fn hard_links_must_name_an_earlier_entry() {
    for link in ["/etc/passwd", "../x", "", "a/.."] {
        let entries = [Raw::new("a", b'0'), Raw::new("h", b'1').link(link)];
        assert_eq!(
            unpack(&archive(&entries)).unwrap_err().kind(),
            ErrorKind::InvalidArchive
        );
    }
    for link in ["later", "d", "h", "."] {
        let entries = [
            Raw::new("d", b'5'),
            Raw::new("h", b'1').link(link),
            Raw::new("later", b'0'),
        ];
        assert_refused(&entries, "earlier entry");
    }
}

#[test]
fn what_cannot_be_unpacked_safely_is_refused() {
    assert_refused(&[Raw::new("null", b'3')], "devices");
    assert_refused(&[Raw::new("sda", b'4')], "devices");
    assert_refused(&[Raw::new("s", b'S')], "sparse");
    for kind in [b'D', b'M', b'V', b'N', b'X', b'A', b'8', 0xff] {
        assert_refused(&[Raw::new("x", kind)], "unknown");
    }
    let sparse = Raw::pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")]);
    assert_refused(&[sparse, Raw::new("s", b'0')], "sparse");
    for kind in [b'1', b'2', b'5', b'6'] {
        let entries = [
            Raw::new("a", b'0'),
            Raw::new("x", kind).link("a").body("data"),
        ];
        assert_refused(&entries, "only a file can have a size");
    }
}

#[test]
fn sizes_that_could_desynchronise_readers_are_refused() {
    let inner = Raw::new("smuggled", b'0').bytes();
    // The header says nothing, PAX says more: a reader without PAX would unpack the content.
    let size = inner.len().to_string();
    let mut outer = Raw::new("outer", b'0').body(&inner);
    outer.size = b"00000000000\0".to_vec();
    assert_refused(&[Raw::pax(&[("size", size.as_bytes())]), outer], "disagree");
    let outer = Raw::new("outer", b'0').body(&inner);
    assert_refused(&[Raw::pax(&[("size", b"0")]), outer.clone()], "disagree");
    for bad in [&b"-1"[..], b"x", b"1 ", b"99999999999999999999", b"+5"] {
        assert_refused(&[Raw::pax(&[("size", bad)]), outer.clone()], "malformed");
    }
    assert!(
        unpack(&archive(&[
            Raw::pax(&[("size", size.as_bytes())]),
            outer.clone()
        ]))
        .is_ok()
    );
    let global = |record: &str| Raw::new("g", b'g').body(record);
    assert_refused(&[global("9 path=x\n"), outer.clone()], "global");
    assert_refused(&[global("9 size=1\n"), outer.clone()], "global");
    assert_refused(
        &[Raw::pax(&[]), Raw::pax(&[]), outer.clone()],
        "two extended headers",
    );
    let long = Raw::new("././@LongLink", b'L').body("x\0");
    assert_refused(
        &[long.clone(), long.clone(), outer.clone()],
        "two extended headers",
    );
    assert_refused(
        &[Raw::pax(&[("path", b"p")]), long.clone(), outer.clone()],
        "both PAX and GNU",
    );
    assert_refused(&[long], "no entry after it");
    let mut negative = Raw::new("n", b'0');
    negative.size = vec![0xff; 12];
    assert_refused(&[negative], "size is malformed");
    let mut huge = Raw::new("h", b'0');
    huge.size = [&[0x80][..], &[0xff; 11]].concat();
    assert_refused(&[huge], "size is malformed");
    let mut endless = Raw::new("e", b'0');
    endless.size = b"77777777777\0".to_vec();
    assert_refused(&[endless], "cut off");
    let mut long_pax = Raw::new("x", b'x');
    long_pax.size = b"10000000000\0".to_vec();
    assert_refused(&[long_pax], "longer than");
    assert_refused(&[Raw::new("x", b'x').body("no records")], "malformed");
}

#[test]
fn limits_count_what_is_there() {
    let within = |bytes, entries| TreeLimits { bytes, entries };
    let events = [file("a", vec![b'x'; 600]), file("b", "")].concat();
    let archive = pack(events.clone()).unwrap();
    // Two headers, 600 bytes in two blocks, two blocks of zeros.
    let exact = within(512 * 6, 2);
    assert_eq!(pack_within(events.clone(), exact).unwrap(), archive);
    assert_eq!(unpack_chunks(vec![archive.clone()], exact).unwrap(), events);
    for limits in [within(512 * 6 - 1, 2), within(512 * 6, 1)] {
        let error = pack_within(events.clone(), limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let error = unpack_chunks(vec![archive.clone()], limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}

#[test]
fn bombs_are_stopped_by_what_they_inflate_to() {
    let limits = TreeLimits {
        bytes: 1 << 20,
        entries: 10,
    };
    let too_large = |bytes: Vec<u8>| {
        let error = unpack_chunks(vec![bytes.into()], limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    };
    let zeros = vec![0; 20 << 20];
    // In a file, behind the end, in extended headers, as entries for the tree itself, and in members of nothing.
    let mut tar = Raw::new("bomb", b'0').bytes();
    tar[124..136].copy_from_slice(b"00120000000\0");
    tar[148..156].fill(b' ');
    let sum: u32 = tar.iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    too_large(gzip(&[tar, zeros.clone()].concat()));
    too_large(gzip(&zeros));
    let comment = vec![b'c'; 500_000];
    let header = Raw::pax(&[("comment", &comment)]);
    let entry = Raw::new("a", b'0');
    too_large(archive(&[
        header.clone(),
        entry.clone(),
        header.clone(),
        entry.clone(),
        header,
    ]));
    too_large(archive(&vec![Raw::new("./", b'5'); 11]));
    too_large(gzip(&[]).repeat(120_000));
}

/// A tree with everything that is awkward, written by `encode`, read by the tools that people have.
fn awkward_tree() -> Vec<TreeEvent> {
    let long = |c: &str, n| c.repeat(n);
    let deep = ["d".repeat(200), "e".repeat(200)].join("/");
    let mut events = [
        file(b"\xff\xfe not utf-8", "bytes"),
        file("-leading", ""),
        file("a b'c\"d", "quotes"),
        file("new\nline", "x"),
        file(long("n", 99), "99"),
        file(long("n", 100), "100"),
        file(long("n", 101), "101"),
        file([b"\xff".repeat(150)].concat(), "long and not utf-8"),
        vec![
            entry("bin", TreeKind::Directory),
            TreeEvent::Entry(TreeEntry {
                path: b"bin/run".to_vec(),
                mode: 0o751,
                kind: TreeKind::File { size: 0 },
            }),
        ],
        vec![TreeEvent::Entry(TreeEntry {
            path: b"bin/twin".to_vec(),
            mode: 0o751,
            kind: TreeKind::Hardlink {
                target: b"bin/run".to_vec(),
            },
        })],
        vec![entry("d".repeat(200), TreeKind::Directory)],
        vec![entry(&deep, TreeKind::Directory)],
        file(format!("{deep}/f"), "deep"),
        vec![entry(
            "dangling",
            TreeKind::Symlink {
                target: b"../../no/where".to_vec(),
            },
        )],
        vec![entry("empty", TreeKind::Directory)],
        vec![entry("fifo", TreeKind::Fifo)],
        vec![entry(
            "link",
            TreeKind::Symlink {
                target: long("t/", 300).into_bytes(),
            },
        )],
        vec![entry(
            "link2",
            TreeKind::Symlink {
                target: b"\xff".to_vec(),
            },
        )],
        vec![entry(
            "zlink",
            TreeKind::Hardlink {
                target: format!("{deep}/f").into_bytes(),
            },
        )],
        file("zz", vec![7; 200_000]),
    ];
    events.sort_by_key(|events| match &events[0] {
        TreeEvent::Entry(entry) if entry.kind == TreeKind::Directory => {
            [&entry.path[..], b"/"].concat()
        }
        TreeEvent::Entry(entry) => entry.path.clone(),
        TreeEvent::Data(_) => unreachable!("each group starts with its entry"),
    });
    events.concat()
}

fn check_unpacked(directory: &Path) {
    let at = |path: &[u8]| directory.join(OsStr::from_bytes(path));
    let mut content = Vec::new();
    let mut path = Vec::new();
    for event in awkward_tree()
        .into_iter()
        .chain([entry("end", TreeKind::Fifo)])
    {
        match event {
            TreeEvent::Data(data) => content.extend_from_slice(&data),
            TreeEvent::Entry(entry) => {
                if !path.is_empty() && fs::symlink_metadata(at(&path)).unwrap().is_file() {
                    let expected = std::mem::take(&mut content);
                    // Links are checked by inode below.
                    if !expected.is_empty() {
                        assert_eq!(fs::read(at(&path)).unwrap(), expected, "{path:?}");
                    }
                }
                path = entry.path.clone();
                if path == b"end" {
                    continue;
                }
                let found = fs::symlink_metadata(at(&path)).unwrap_or_else(|error| {
                    panic!("{:?}: {error}", String::from_utf8_lossy(&path))
                });
                match &entry.kind {
                    TreeKind::File { size } => assert_eq!(found.len(), *size, "{path:?}"),
                    TreeKind::Directory => assert!(found.is_dir(), "{path:?}"),
                    TreeKind::Symlink { target } => {
                        let read = fs::read_link(at(&path)).unwrap();
                        assert_eq!(read.as_os_str().as_bytes(), target);
                    }
                    TreeKind::Hardlink { target } => {
                        assert_eq!(fs::metadata(at(target)).unwrap().ino(), found.ino());
                    }
                    TreeKind::Fifo => {
                        use std::os::unix::fs::FileTypeExt;
                        assert!(found.file_type().is_fifo());
                    }
                }
                if !matches!(
                    entry.kind,
                    TreeKind::Symlink { .. } | TreeKind::Hardlink { .. }
                ) {
                    assert_eq!(found.permissions().mode() & 0o777, entry.mode, "{path:?}");
                }
            }
        }
    }
}

fn run(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} is needed for this test: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stderr.is_empty(),
        "{command:?} complains: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[test]
fn gnu_tar_reads_it_back_exactly() {
    for locale in ["C", "C.UTF-8"] {
        let directory = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.args(["-xzp", "--no-same-owner", "-f", "-", "-C"])
            .arg(directory.path());
        run(tar.env("LC_ALL", locale), &pack(awkward_tree()).unwrap());
        check_unpacked(directory.path());
    }
}

#[test]
fn python_reads_it_back_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let script = "import sys, tarfile\n\
        tarfile.open(fileobj=sys.stdin.buffer, mode='r|gz').extractall(sys.argv[1])\n";
    let mut python = Command::new("python3");
    // Newer versions warn unless a filter is chosen, and refuse the links of this tree with the default one.
    python.args(["-W", "ignore", "-c"]);
    python.arg(script.replace("(sys.argv[1])", "(sys.argv[1], **({'filter': 'fully_trusted'} if hasattr(tarfile, 'fully_trusted_filter') else {}))"));
    python.arg(directory.path());
    run(&mut python, &pack(awkward_tree()).unwrap());
    check_unpacked(directory.path());
}

#[test]
fn what_gnu_tar_and_python_write_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-xzp", "--no-same-owner", "-f", "-", "-C"])
        .arg(directory.path());
    run(&mut tar, &pack(awkward_tree()).unwrap());
    let names = |events: &[TreeEvent]| -> Vec<TreeEntry> {
        let mut entries: Vec<TreeEntry> = events
            .iter()
            .filter_map(|event| match event {
                // Which of two linked names comes first is the writer's choice.
                TreeEvent::Entry(entry) if fs_links(directory.path(), &entry.path) < 2 => {
                    Some(entry.clone())
                }
                _ => None,
            })
            .collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries
    };
    let expected = names(&awkward_tree());
    assert!(expected.len() > 10);
    for format in ["gnu", "posix", "oldgnu"] {
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(directory.path());
        tar.args(["-czf", "-", "--format", format, "."]);
        let archive = run(&mut tar, b"");
        assert_eq!(names(&unpack(&archive).unwrap()), expected, "{format}");
    }
    for format in ["GNU_FORMAT", "PAX_FORMAT"] {
        let script = format!(
            "import sys, tarfile\n\
             with tarfile.open(fileobj=sys.stdout.buffer, mode='w|gz', format=tarfile.{format}) as t:\n\
             \tt.add(sys.argv[1], arcname='.')\n"
        );
        let mut python = Command::new("python3");
        python.arg("-c").arg(script).arg(directory.path());
        let archive = run(&mut python, b"");
        assert_eq!(names(&unpack(&archive).unwrap()), expected, "{format}");
    }
}

fn fs_links(directory: &Path, path: &[u8]) -> u64 {
    let metadata = fs::symlink_metadata(directory.join(OsStr::from_bytes(path))).unwrap();
    if metadata.is_dir() {
        1
    } else {
        metadata.nlink()
    }
}

#[test]
fn sizes_beyond_8_gib_are_announced_as_tools_understand_them() {
    let size = 9 << 30;
    let events = stream::iter([entry("big", TreeKind::File { size })]).map(Ok);
    // Only the announcement: the header comes out with the first step of content.
    let content = stream::repeat_with(|| Ok(TreeEvent::Data(vec![0; 1 << 16].into()))).take(40);
    let limits = TreeLimits {
        bytes: u64::MAX,
        entries: 1,
    };
    let mut archive = encode(events.chain(content), limits);
    let mut bytes = Vec::new();
    let error = block_on(async {
        loop {
            match archive.next().await {
                Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
                Some(Err(error)) => break error,
                None => panic!("the missing content was not noticed"),
            }
        }
    });
    assert_eq!(error.kind(), ErrorKind::InvalidArchive);
    let mut events = decode(ByteStream::from_bytes(bytes.clone()), limits);
    let first = block_on(events.next()).unwrap().unwrap();
    assert_eq!(first, entry("big", TreeKind::File { size }));
    let script = "import sys, tarfile\n\
        print(tarfile.open(fileobj=sys.stdin.buffer, mode='r|gz').next().size)\n";
    let mut python = Command::new("python3");
    python.arg("-c").arg(script);
    assert_eq!(run(&mut python, &bytes), format!("{size}\n").as_bytes());
}

//! An archive becomes checked events.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;

use super::gzip::Gunzip;
use super::header::{self, BLOCK, Header, padding};
use super::{MAX_PATH_LEN, TreeEntry, TreeEvent, TreeKind, TreeLimits, invalid};
use crate::error::Result;
use crate::file::ByteStream;

/// The longest extended header, in bytes.
const MAX_EXTENSION: u64 = 1 << 20;

/// Reads an archive, in memory that does not grow with contents (and by 40 bytes for each entry).
///
/// Accepts gzip around ustar, GNU and PAX archives, in any chunking, also several gzip members in a row. Names come out in the
/// form of [`TreeEntry::path`]: `./` and repeated slashes vanish, and so does an entry for the tree itself. Permission bits
/// beyond `0o777`, owners, times and attributes are dropped. Within one archive a later entry may replace an earlier one of the
/// same name, but never a directory by something else or the reverse.
///
/// # Errors
/// One error ends the stream. `InvalidArchive` for damage, cut-off or trailing garbage; for names that are absolute, empty, hold
/// `..` or NUL, or lie below something that is not a directory in this archive (a symbolic link, say); for hard links to
/// anything but an earlier entry; for devices, sparse files and unknown types; for two sizes that disagree. `TooLarge` beyond a
/// limit. Errors of `archive` itself are passed on. Checksums can be checked only at the end, so events may have been given out
/// before.
///
/// ```
/// use futures_util::StreamExt;
/// use sandbox_core::tree::{TreeLimits, decode};
/// use sandbox_core::{ByteStream, ErrorKind};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut events = decode(ByteStream::from_bytes("no gzip at all"), TreeLimits::default());
/// assert_eq!(events.next().await.unwrap().unwrap_err().kind(), ErrorKind::InvalidArchive);
/// assert!(events.next().await.is_none());
/// # });
/// ```
pub fn decode(archive: ByteStream, limits: TreeLimits) -> TreeStream {
    let decoder = Decoder {
        archive,
        compressed: Bytes::new(),
        received: 0,
        gunzip: Gunzip::new(),
        tar: Bytes::new(),
        inflated: 0,
        limits,
        entries: 0,
        seen: Seen::default(),
        file: None,
        skip: 0,
        ended: false,
    };
    let events = futures_util::stream::unfold(decoder, |mut decoder| async move {
        let next = decoder.next().await.transpose()?;
        if next.is_err() {
            decoder.ended = true;
        }
        Some((next, decoder))
    });
    TreeStream(Box::pin(events.fuse()))
}

/// The events of an archive; see [`decode`].
///
/// ```
/// # use sandbox_core::{ByteStream, tree::{TreeLimits, TreeStream, decode}};
/// let _: TreeStream = decode(ByteStream::from_bytes(""), TreeLimits::default());
/// ```
pub struct TreeStream(Pin<Box<dyn Stream<Item = Result<TreeEvent>> + Send>>);

impl Stream for TreeStream {
    type Item = Result<TreeEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

impl fmt::Debug for TreeStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TreeStream")
    }
}

struct Decoder {
    archive: ByteStream,
    compressed: Bytes,
    received: u64,
    gunzip: Gunzip,
    /// Inflated and not yet read.
    tar: Bytes,
    inflated: u64,
    limits: TreeLimits,
    entries: u64,
    seen: Seen,
    /// The file whose content comes: its path, and how much is left.
    file: Option<(Vec<u8>, u64)>,
    /// Padding before the next header.
    skip: u64,
    ended: bool,
}

/// What extended headers say about the next entry.
#[derive(Default)]
struct Extension {
    pax: Option<Pax>,
    gnu_name: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
}

#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Decoder {
    async fn next(&mut self) -> Result<Option<TreeEvent>> {
        if self.ended {
            return Ok(None);
        }
        if let Some((path, left)) = &mut self.file {
            let (path, left) = (std::mem::take(path), *left);
            let data = self.piece(left, &path).await?;
            let left = left - data.len() as u64;
            self.file = (left > 0).then_some((path, left));
            return Ok(Some(TreeEvent::Data(data)));
        }
        let mut extension = Extension::default();
        loop {
            self.skip_padding().await?;
            let block = self.block().await?;
            if block == [0; BLOCK] {
                if !extension.is_empty() {
                    return Err(invalid(b"", "an extended header has no entry after it"));
                }
                self.read_to_end().await?;
                self.ended = true;
                return Ok(None);
            }
            let header = Header::parse(&block)?;
            match header.kind {
                header::PAX => {
                    let records = self.extension(&header).await?;
                    set_once(&mut extension.pax, parse_pax(&records)?)?;
                }
                header::PAX_GLOBAL => check_global(&self.extension(&header).await?)?,
                header::GNU_LONG_NAME => {
                    let name = c_string(self.extension(&header).await?);
                    set_once(&mut extension.gnu_name, name)?;
                }
                header::GNU_LONG_LINK => {
                    let link = c_string(self.extension(&header).await?);
                    set_once(&mut extension.gnu_link, link)?;
                }
                _ => {
                    let entry = self.entry(header, std::mem::take(&mut extension))?;
                    if let Some(entry) = entry {
                        return Ok(Some(TreeEvent::Entry(entry)));
                    }
                }
            }
        }
    }

    /// Checks an entry; `None` for the tree itself.
    fn entry(&mut self, header: Header, extension: Extension) -> Result<Option<TreeEntry>> {
        self.entries += 1;
        self.limits.check_entries(self.entries)?;
        let pax = extension.pax.unwrap_or_default();
        let name = one_of(pax.path, extension.gnu_name)?.unwrap_or(header.name);
        let link = one_of(pax.link, extension.gnu_link)?.unwrap_or(header.link);
        let size = agreed_size(&name, header.size, pax.size)?;
        let slash = name.ends_with(b"/") || name.ends_with(b"/.") || name == b".";
        let path = clean_path(&name, &name)?;
        let kind = match header.kind {
            // Before there was a type for directories they were empty files with a slash.
            0 | header::FILE if slash && size == 0 => TreeKind::Directory,
            0 | header::FILE | header::CONTIGUOUS => TreeKind::File { size },
            header::DIRECTORY => TreeKind::Directory,
            header::SYMLINK => TreeKind::Symlink {
                target: clean_target(&name, link)?,
            },
            header::HARDLINK => TreeKind::Hardlink {
                target: clean_path(&name, &link)?,
            },
            header::FIFO => TreeKind::Fifo,
            header::CHARACTER_DEVICE | header::BLOCK_DEVICE => {
                return Err(invalid(&name, "devices are refused"));
            }
            header::GNU_SPARSE => return Err(invalid(&name, "sparse entries are refused")),
            kind => {
                return Err(invalid(
                    &name,
                    format!("the type {:?} is unknown", char::from(kind)),
                ));
            }
        };
        // Readers disagree on whether content follows such an entry, so nobody can say what comes next.
        if size > 0 && !matches!(kind, TreeKind::File { .. }) {
            return Err(invalid(&name, "only a file can have a size"));
        }
        if slash && kind != TreeKind::Directory {
            return Err(invalid(&name, "only a directory's name can end in a slash"));
        }
        if path.is_empty() {
            return Ok(None);
        }
        self.seen.add(&path, &kind)?;
        if size > 0 {
            self.file = Some((path.clone(), size));
            self.skip = padding(size);
        }
        let mode = match kind {
            TreeKind::Symlink { .. } => 0o777,
            _ => header.mode,
        };
        Ok(Some(TreeEntry { path, mode, kind }))
    }

    /// The body of an extended header.
    async fn extension(&mut self, header: &Header) -> Result<Vec<u8>> {
        if header.size > MAX_EXTENSION {
            return Err(invalid(
                &header.name,
                format!("an extended header is longer than {MAX_EXTENSION} bytes"),
            ));
        }
        let mut body = Vec::new();
        while (body.len() as u64) < header.size {
            let left = header.size - body.len() as u64;
            body.extend_from_slice(&self.piece(left, &header.name).await?);
        }
        self.skip = padding(header.size);
        Ok(body)
    }

    async fn block(&mut self) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            let piece = self.piece((BLOCK - filled) as u64, b"").await?;
            block[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        Ok(block)
    }

    async fn skip_padding(&mut self) -> Result<()> {
        while self.skip > 0 {
            self.skip -= self.piece(self.skip, b"").await?.len() as u64;
        }
        Ok(())
    }

    /// Some of the next `most` bytes, at least one.
    async fn piece(&mut self, most: u64, entry: &[u8]) -> Result<Bytes> {
        if self.tar.is_empty() {
            self.tar = self
                .inflate()
                .await?
                .ok_or_else(|| invalid(entry, "the tar archive is cut off"))?;
        }
        let length = most.min(self.tar.len() as u64) as usize;
        Ok(self.tar.split_to(length))
    }

    /// After the first block of zeros only zeros may come, and the gzip stream must be whole.
    async fn read_to_end(&mut self) -> Result<()> {
        loop {
            if self.tar.iter().any(|byte| *byte != 0) {
                return Err(invalid(b"", "something follows the end of the archive"));
            }
            match self.inflate().await? {
                Some(tar) => self.tar = tar,
                None => return Ok(()),
            }
        }
    }

    /// The next inflated bytes, never none; `None` at the end.
    async fn inflate(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.compressed.is_empty() {
                match self.archive.next().await {
                    Some(chunk) => self.receive(chunk?)?,
                    None => return self.gunzip.end().map(|()| None),
                }
                continue;
            }
            let tar = self.gunzip.step(&mut self.compressed)?;
            // A small archive may inflate for long without waiting for anything.
            tokio::task::consume_budget().await;
            if !tar.is_empty() {
                self.inflated = self.inflated.saturating_add(tar.len() as u64);
                self.limits.check_bytes(self.inflated)?;
                return Ok(Some(tar));
            }
        }
    }

    fn receive(&mut self, chunk: Bytes) -> Result<()> {
        self.received = self.received.saturating_add(chunk.len() as u64);
        // Members that inflate to nothing could go on for ever. Honest gzip is at most a little larger than its content.
        let most = self.limits.bytes.saturating_add(self.limits.bytes / 16);
        if self.received > most.saturating_add(1 << 20) {
            return self.limits.check_bytes(u64::MAX);
        }
        self.compressed = chunk;
        Ok(())
    }
}

impl Extension {
    fn is_empty(&self) -> bool {
        self.pax.is_none() && self.gnu_name.is_none() && self.gnu_link.is_none()
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(invalid(b"", "two extended headers for one entry")),
    }
}

/// PAX and GNU can both name an entry, and then readers disagree.
fn one_of(pax: Option<Vec<u8>>, gnu: Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match (pax, gnu) {
        (Some(pax), Some(_)) => Err(invalid(&pax, "both PAX and GNU extended names")),
        (pax, gnu) => Ok(pax.or(gnu)),
    }
}

/// The size that all readers agree on, those that know PAX and those that do not; else one of them would take content for
/// headers.
fn agreed_size(name: &[u8], header: u64, pax: Option<u64>) -> Result<u64> {
    match pax {
        None => Ok(header),
        Some(size) if size == header || size > header::MAX_OCTAL_SIZE => Ok(size),
        Some(size) => Err(invalid(
            name,
            format!("the PAX size {size} and the header's size {header} disagree"),
        )),
    }
}

/// A path in the form of [`TreeEntry::path`]; empty for the tree itself.
fn clean_path(entry: &[u8], path: &[u8]) -> Result<Vec<u8>> {
    if path.is_empty() {
        return Err(invalid(entry, "a name is empty"));
    }
    if path.starts_with(b"/") {
        return Err(invalid(entry, "a name is absolute"));
    }
    let path = clean_target(entry, path.to_vec())?;
    let mut clean = Vec::with_capacity(path.len());
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(invalid(entry, "a name holds '..'")),
            component => {
                if !clean.is_empty() {
                    clean.push(b'/');
                }
                clean.extend_from_slice(component);
            }
        }
    }
    Ok(clean)
}

fn clean_target(entry: &[u8], target: Vec<u8>) -> Result<Vec<u8>> {
    if target.is_empty() || target.contains(&0) || target.len() > MAX_PATH_LEN {
        return Err(invalid(
            entry,
            format!("a name or link target must have 1 to {MAX_PATH_LEN} bytes and no NUL"),
        ));
    }
    Ok(target)
}

/// A GNU long name without its final NULs.
fn c_string(mut text: Vec<u8>) -> Vec<u8> {
    while text.last() == Some(&0) {
        text.pop();
    }
    text
}

fn check_global(records: &[u8]) -> Result<()> {
    for_each_record(records, |key, _| match key {
        b"path" | b"linkpath" | b"size" => Err(invalid(
            b"",
            "a global header sets names or sizes of all entries",
        )),
        _ => Ok(()),
    })
}

fn parse_pax(records: &[u8]) -> Result<Pax> {
    let mut pax = Pax::default();
    for_each_record(records, |key, value| {
        // An empty value takes the header's own.
        let value = (!value.is_empty()).then_some(value);
        match key {
            b"path" => pax.path = value.map(<[u8]>::to_vec),
            b"linkpath" => pax.link = value.map(<[u8]>::to_vec),
            b"size" => {
                pax.size = value
                    .map(|value| {
                        decimal(value).ok_or_else(|| invalid(b"", "a PAX size is malformed"))
                    })
                    .transpose()?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(pax)
}

/// Records are `<length> <key>=<value>\n`, where the length counts all of it.
fn for_each_record(
    mut records: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let bad = || invalid(b"", "a PAX header is malformed");
    while !records.is_empty() {
        let space = records
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(bad)?;
        let length = decimal(&records[..space]).ok_or_else(bad)?;
        let length = usize::try_from(length).map_err(|_| bad())?;
        if length > records.len() || length < space + 2 || records[length - 1] != b'\n' {
            return Err(bad());
        }
        let record = &records[space + 1..length - 1];
        let equals = record
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(bad)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if key.starts_with(b"GNU.sparse.") {
            return Err(invalid(b"", "sparse entries are refused"));
        }
        each(key, value)?;
        records = &records[length..];
    }
    Ok(())
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| {
        digit
            .is_ascii_digit()
            .then(|| value * 10 + u64::from(digit - b'0'))
    })
}

/// Which paths the archive has made, and whether as directories.
///
/// Kept as keyed hashes of 128 bits, so that long names cost no memory. What was added is always found; to be found without
/// having been added takes a collision of unknown keys, and would only refuse an archive.
#[derive(Default)]
struct Seen {
    keys: [RandomState; 2],
    is_directory: HashMap<[u64; 2], bool>,
    /// The last parent that was found good; most entries share it with the one before.
    parent: Vec<u8>,
}

impl Seen {
    fn add(&mut self, path: &[u8], kind: &TreeKind) -> Result<()> {
        self.add_parents(path, path)?;
        if let TreeKind::Hardlink { target } = kind {
            self.check_link(path, target)?;
        }
        let directory = *kind == TreeKind::Directory;
        let key = self.key(path);
        if *self.is_directory.entry(key).or_insert(directory) == directory {
            return Ok(());
        }
        Err(invalid(
            path,
            "the archive holds it both as a directory and as something else",
        ))
    }

    /// Every parent must be a directory, so that writing the entry cannot be redirected.
    fn add_parents(&mut self, entry: &[u8], path: &[u8]) -> Result<()> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let parent = &path[..slash.unwrap_or(0)];
        if parent.is_empty() || parent == self.parent {
            return Ok(());
        }
        let ends = parent.iter().enumerate().filter(|(_, b)| **b == b'/');
        for end in ends.map(|(at, _)| at).chain([parent.len()]) {
            let key = self.key(&parent[..end]);
            if !*self.is_directory.entry(key).or_insert(true) {
                return Err(invalid(
                    entry,
                    "it lies below a symbolic link or file of the same archive",
                ));
            }
        }
        self.parent = parent.to_vec();
        Ok(())
    }

    fn check_link(&self, entry: &[u8], target: &[u8]) -> Result<()> {
        // An earlier entry has good parents, so the link cannot be redirected either.
        match self.is_directory.get(&self.key(target)) {
            Some(false) if entry != target => Ok(()),
            _ => Err(invalid(
                entry,
                "a hard link must name an earlier entry that is not a directory",
            )),
        }
    }

    fn key(&self, path: &[u8]) -> [u64; 2] {
        [self.keys[0].hash_one(path), self.keys[1].hash_one(path)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_read_strictly() {
        let pax = parse_pax(b"9 path=a\n12 size=123\n19 comment=a\nb = c\n").unwrap();
        assert_eq!(
            (pax.path.as_deref(), pax.size),
            (Some(&b"a"[..]), Some(123))
        );
        let cases: [&[u8]; 9] = [
            b"path=a\n",
            b"9 path=a",
            b"8 path=a\n",
            b"99 path=a\n",
            b"0 \n",
            b"2 \n",
            b"-9 path=a\n",
            b"99999999999999999999 path=a\n",
            b"9 size=x\n",
        ];
        for case in cases {
            assert!(
                parse_pax(case).is_err(),
                "{:?}",
                String::from_utf8_lossy(case)
            );
        }
        assert!(parse_pax(b"25 GNU.sparse.name=hello\n").is_err());
    }

    #[test]
    fn paths_are_cleaned_or_refused() {
        for (path, clean) in [
            ("a", "a"),
            ("./a//b/./c/", "a/b/c"),
            (".", ""),
            ("./", ""),
            ("...", "..."),
        ] {
            assert_eq!(
                clean_path(b"", path.as_bytes()).unwrap(),
                clean.as_bytes(),
                "{path}"
            );
        }
        for path in ["", "/", "/a", "..", "a/../b", "a/..", "a\0b"] {
            assert!(clean_path(b"", path.as_bytes()).is_err(), "{path:?}");
        }
    }
}

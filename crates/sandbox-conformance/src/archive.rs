//! Archives as the cases need them: also such that no sane program would make.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use crate::case::{Done, Stop};

/// One entry, with its names as raw bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) link: Vec<u8>,
    pub(crate) content: Vec<u8>,
}

impl Entry {
    pub(crate) fn file(name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        Entry {
            name: name.as_ref().to_vec(),
            kind: b'0',
            mode: 0o644,
            link: Vec::new(),
            content: content.as_ref().to_vec(),
        }
    }

    pub(crate) fn directory(name: impl AsRef<[u8]>) -> Self {
        Entry {
            kind: b'5',
            mode: 0o755,
            ..Entry::file(name, "")
        }
    }

    pub(crate) fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Entry {
            kind: b'2',
            mode: 0o777,
            link: target.as_ref().to_vec(),
            ..Entry::file(name, "")
        }
    }

    pub(crate) fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Entry {
            kind: b'1',
            link: target.as_ref().to_vec(),
            ..Entry::file(name, "")
        }
    }

    pub(crate) fn with_mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(crate) fn of_kind(mut self, kind: u8) -> Self {
        self.kind = kind;
        self
    }

    /// Header and content as they stand in a tar.
    fn blocks(&self, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        let raw = header.as_old_mut();
        // Longer names do not fit a plain header, and none of the cases needs them here.
        raw.name[..self.name.len()].copy_from_slice(&self.name);
        raw.linkname[..self.link.len()].copy_from_slice(&self.link);
        header.set_entry_type(EntryType::new(self.kind));
        header.set_mode(self.mode);
        header.set_uid(1234);
        header.set_gid(1234);
        header.set_mtime(1_000_000_000);
        header.set_size(size);
        if matches!(self.kind, b'3' | b'4') {
            // The numbers of /dev/null and of the first disk: neither may come into being.
            let _ = header.set_device_major(if self.kind == b'3' { 1 } else { 8 });
            let _ = header.set_device_minor(if self.kind == b'3' { 3 } else { 0 });
        }
        header.set_cksum();
        let mut blocks = header.as_bytes().to_vec();
        blocks.extend_from_slice(&self.content);
        blocks.resize(blocks.len().next_multiple_of(512), 0);
        blocks
    }
}

/// The tar of these entries, without gzip.
pub(crate) fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut tar: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry.blocks(entry.content.len() as u64))
        .collect();
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// A tar whose only entry says another size than it has.
pub(crate) fn tar_with_size(entry: &Entry, size: u64) -> Vec<u8> {
    let mut tar = entry.blocks(size);
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// A file whose PAX header gives it another size than its own header.
pub(crate) fn tar_with_pax_size(entry: &Entry, size: u64) -> Vec<u8> {
    let value = format!("size={size}\n");
    let mut length = value.len() + 2;
    length = value.len() + 1 + length.to_string().len();
    let record = format!("{length} {value}");
    let pax = Entry::file("pax", record).of_kind(b'x');
    let mut tar = pax.blocks(pax.content.len() as u64);
    tar.extend(entry.blocks(entry.content.len() as u64));
    tar.resize(tar.len() + 1024, 0);
    tar
}

pub(crate) fn gzip(bytes: &[u8]) -> Done<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.into())
}

pub(crate) fn archive(entries: &[Entry]) -> Done<Bytes> {
    gzip(&tar(entries))
}

/// The entries of an archive that a backend gave, which must be sound and of zeroed owners and times.
pub(crate) fn entries(archive: &[u8]) -> Done<Vec<Entry>> {
    let broken = |error: std::io::Error| Stop::fail(format!("the archive cannot be read: {error}"));
    let mut inflated = Vec::new();
    MultiGzDecoder::new(archive)
        .read_to_end(&mut inflated)
        .map_err(broken)?;
    let mut found = Vec::new();
    for entry in tar::Archive::new(&inflated[..]).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        let header = entry.header();
        let numbers = (
            header.uid().map_err(broken)?,
            header.gid().map_err(broken)?,
            header.mtime().map_err(broken)?,
        );
        let name = entry.path_bytes().into_owned();
        if numbers != (0, 0, 0) {
            return Err(Stop::fail(format!(
                "owner, group and time of {:?} are {numbers:?}",
                String::from_utf8_lossy(&name)
            )));
        }
        let named =
            |field: Option<&[u8]>| field.is_some_and(|name| name.iter().any(|byte| *byte != 0));
        if named(header.username_bytes()) || named(header.groupname_bytes()) {
            return Err(Stop::fail("an entry names its owner or group"));
        }
        let kind = header.entry_type().as_byte();
        found.push(Entry {
            kind: if kind == 0 { b'0' } else { kind },
            mode: header.mode().map_err(broken)?,
            link: entry.link_name_bytes().unwrap_or_default().into_owned(),
            content,
            name,
        });
    }
    Ok(found)
}

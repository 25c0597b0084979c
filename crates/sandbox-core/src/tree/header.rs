//! Tar headers: the fields that matter, read strictly and written in GNU format.

use super::invalid;
use crate::error::Result;

pub(super) const BLOCK: usize = 512;
/// What a name field holds.
pub(super) const NAME: usize = 100;

pub(super) const FILE: u8 = b'0';
pub(super) const HARDLINK: u8 = b'1';
pub(super) const SYMLINK: u8 = b'2';
pub(super) const CHARACTER_DEVICE: u8 = b'3';
pub(super) const BLOCK_DEVICE: u8 = b'4';
pub(super) const DIRECTORY: u8 = b'5';
pub(super) const FIFO: u8 = b'6';
pub(super) const CONTIGUOUS: u8 = b'7';
pub(super) const GNU_LONG_LINK: u8 = b'K';
pub(super) const GNU_LONG_NAME: u8 = b'L';
pub(super) const GNU_SPARSE: u8 = b'S';
pub(super) const PAX_GLOBAL: u8 = b'g';
pub(super) const PAX: u8 = b'x';

/// The largest size that the octal field of eleven digits holds.
pub(super) const MAX_OCTAL_SIZE: u64 = 0o77_777_777_777;

/// A header as it was read.
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) kind: u8,
}

impl Header {
    /// Reads a block that is not all zeros.
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Header> {
        check_sum(block)?;
        let mut name = text(&block[..NAME]).to_vec();
        if &block[257..263] == b"ustar\0" {
            // star keeps times where POSIX has the end of the prefix, and says so in the last four bytes.
            let prefix_end = if &block[508..] == b"tar\0" { 476 } else { 500 };
            let prefix = text(&block[345..prefix_end]);
            if !prefix.is_empty() {
                name = [prefix, b"/", &name].concat();
            }
        }
        let size =
            number(&block[124..136]).ok_or_else(|| invalid(&name, "the size is malformed"))?;
        let mode =
            number(&block[100..108]).ok_or_else(|| invalid(&name, "the mode is malformed"))?;
        Ok(Header {
            link: text(&block[157..257]).to_vec(),
            mode: (mode & 0o777) as u32,
            size,
            kind: block[156],
            name,
        })
    }

    /// One block in GNU format without owner and time. Name and link are cut to their fields; the caller writes long ones before.
    pub(super) fn write(name: &[u8], link: &[u8], mode: u32, size: u64, kind: u8) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let (name, link) = (&name[..name.len().min(NAME)], &link[..link.len().min(NAME)]);
        block[..name.len()].copy_from_slice(name);
        block[100..108].copy_from_slice(format!("{:07o}\0", mode & 0o777).as_bytes());
        block[108..116].copy_from_slice(b"0000000\0");
        block[116..124].copy_from_slice(b"0000000\0");
        if size <= MAX_OCTAL_SIZE {
            block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        } else {
            block[124] = 0x80;
            block[128..136].copy_from_slice(&size.to_be_bytes());
        }
        block[136..148].copy_from_slice(b"00000000000\0");
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link);
        block[257..265].copy_from_slice(b"ustar  \0");
        let sum = sums(&block).0;
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// How many bytes fill the last block of `size`.
pub(super) fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

fn check_sum(block: &[u8; BLOCK]) -> Result<()> {
    let (unsigned, signed) = sums(block);
    // Old programs added up signed bytes.
    match number(&block[148..156]) {
        Some(sum) if sum == unsigned || i64::try_from(sum) == Ok(signed) => Ok(()),
        _ => Err(invalid(b"", "a header is damaged: its checksum is wrong")),
    }
}

/// The sums of all bytes, unsigned and signed, with the checksum itself taken as blanks.
fn sums(block: &[u8; BLOCK]) -> (u64, i64) {
    let bytes = block.iter().enumerate().map(|(at, byte)| {
        if (148..156).contains(&at) {
            b' '
        } else {
            *byte
        }
    });
    bytes.fold((0, 0), |(unsigned, signed), byte| {
        (
            unsigned + u64::from(byte),
            signed + i64::from(byte.cast_signed()),
        )
    })
}

/// A text field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// A number field: octal between blanks, or base 256 if its highest bit is set. An empty field is zero.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // 0xff starts a negative number.
        let mut bytes = field.iter().copied();
        let first = u64::from(bytes.next()? & 0x7f);
        if field[0] == 0xff {
            return None;
        }
        let value = bytes.try_fold(first, |value, byte| {
            Some(value.checked_mul(256)? + u64::from(byte))
        })?;
        return (value <= i64::MAX as u64).then_some(value);
    }
    let start = field.iter().position(|byte| *byte != b' ');
    let digits = &field[start.unwrap_or(field.len())..];
    let end = digits.iter().position(|byte| matches!(byte, b' ' | 0));
    let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
    if rest.iter().any(|byte| !matches!(byte, b' ' | 0)) {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'7' => Some(value.checked_mul(8)? + u64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for size in [0, 1, MAX_OCTAL_SIZE, MAX_OCTAL_SIZE + 1, i64::MAX as u64] {
            let block = Header::write(b"a/b", b"t", 0o7755, size, SYMLINK);
            let header = Header::parse(&block).unwrap();
            assert_eq!(
                (&header.name[..], &header.link[..]),
                (&b"a/b"[..], &b"t"[..])
            );
            assert_eq!(
                (header.mode, header.size, header.kind),
                (0o755, size, SYMLINK)
            );
        }
    }

    #[test]
    fn numbers_are_read_strictly() {
        let cases: [(&[u8], Option<u64>); 9] = [
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"00000644", Some(0o644)),
            (b"6 4\0\0\0\0\0", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"9\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ];
        for (field, value) in cases {
            assert_eq!(number(field), value, "{field:?}");
        }
        assert_eq!(number(b"\x80\xff\0\0\0\0\0\0\0\0\0\0"), None, "overflow");
    }

    #[test]
    fn a_damaged_header_is_refused() {
        let mut block = Header::write(b"a", b"", 0o644, 0, FILE);
        block[0] = b'b';
        assert!(Header::parse(&block).is_err());
    }
}

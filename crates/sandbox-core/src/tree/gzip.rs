//! Gzip members (RFC 1952) around raw deflate, in steps whose memory is bounded.

use bytes::{Buf, Bytes};
use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

use super::invalid;
use crate::error::Result;

/// How much is compressed or inflated in one step.
pub(super) const STEP: usize = 64 * 1024;

/// No time, no name, fastest level, system unknown: nothing of the machine that writes it.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// Makes one gzip member.
pub(super) struct Gzip {
    deflate: Compress,
    crc: Crc,
    started: bool,
}

impl Gzip {
    pub(super) fn new() -> Self {
        Gzip {
            deflate: Compress::new(Compression::fast(), false),
            crc: Crc::new(),
            started: false,
        }
    }

    /// Compresses one step; `last` ends the member. The bytes depend on how the input is cut, so callers cut it at [`STEP`].
    pub(super) fn step(&mut self, input: &[u8], last: bool) -> Result<Bytes> {
        // Room for a step that does not compress, so that one call is the rule and the bytes do not depend on the buffer.
        let mut output = Vec::with_capacity(STEP + STEP / 8 + HEADER.len() + 64);
        if !self.started {
            output.extend_from_slice(&HEADER);
            self.started = true;
        }
        self.crc.update(input);
        let flush = if last {
            FlushCompress::Finish
        } else {
            FlushCompress::None
        };
        let mut rest = input;
        loop {
            let before = self.deflate.total_in();
            let status = self
                .deflate
                .compress_vec(rest, &mut output, flush)
                .map_err(|error| invalid(b"", format!("compression failed: {error}")))?;
            rest = &rest[(self.deflate.total_in() - before) as usize..];
            let full = output.len() == output.capacity();
            if status == Status::StreamEnd || (!last && rest.is_empty() && !full) {
                break;
            }
            output.reserve(STEP);
        }
        if last {
            output.extend_from_slice(&self.crc.sum().to_le_bytes());
            output.extend_from_slice(&self.crc.amount().to_le_bytes());
        }
        Ok(output.into())
    }
}

/// Reads gzip members, one after the other.
pub(super) struct Gunzip {
    inflate: Decompress,
    crc: Crc,
    at: At,
    /// What is collected of a header field or the trailer.
    field: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first member.
    Start,
    Header,
    ExtraLength(u8),
    Extra(u8, usize),
    Name(u8),
    Comment(u8),
    HeaderCrc,
    Body,
    Trailer,
    /// Between members.
    Between,
}

const FLAG_HEADER_CRC: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;
const FLAGS_RESERVED: u8 = 0xe0;
/// A name or comment in a header is at most this long.
const MAX_TEXT: usize = STEP;

impl Gunzip {
    pub(super) fn new() -> Self {
        Gunzip {
            inflate: Decompress::new(false),
            crc: Crc::new(),
            at: At::Start,
            field: Vec::new(),
        }
    }

    /// The input has ended: was that a place to end?
    pub(super) fn end(&self) -> Result<()> {
        if self.at == At::Between {
            Ok(())
        } else {
            Err(invalid(b"", "the gzip stream is cut off"))
        }
    }

    /// Takes from `input`, which is not empty, and gives what it inflates to, at most [`STEP`] bytes, perhaps none. Output that
    /// is held back comes with the next input: a member ends with a checksum, so that there is always some.
    pub(super) fn step(&mut self, input: &mut Bytes) -> Result<Bytes> {
        if self.at == At::Body {
            return self.inflate(input);
        }
        while self.at != At::Body && !input.is_empty() {
            self.frame(input)?;
        }
        Ok(Bytes::new())
    }

    /// Reads what is around the bodies.
    fn frame(&mut self, input: &mut Bytes) -> Result<()> {
        self.at = match self.at {
            At::Start | At::Between => At::Header,
            At::Header => {
                let good_start = HEADER.starts_with(&input[..1]) || !self.field.is_empty();
                if !good_start {
                    return Err(invalid(b"", "this is not gzip, or garbage follows it"));
                }
                if !self.collect(input, HEADER.len()) {
                    return Ok(());
                }
                let flags = self.field[3];
                if self.field[..3] != HEADER[..3] {
                    return Err(invalid(b"", "this is not gzip, or garbage follows it"));
                }
                if flags & FLAGS_RESERVED != 0 {
                    return Err(invalid(b"", "the gzip header has reserved flags"));
                }
                self.field.clear();
                At::ExtraLength(flags)
            }
            At::ExtraLength(flags) if flags & FLAG_EXTRA == 0 => At::Name(flags),
            At::ExtraLength(flags) => {
                if !self.collect(input, 2) {
                    return Ok(());
                }
                let length = u16::from_le_bytes([self.field[0], self.field[1]]);
                self.field.clear();
                At::Extra(flags, usize::from(length))
            }
            At::Extra(flags, 0) => At::Name(flags),
            At::Extra(flags, left) => {
                let skipped = left.min(input.len());
                input.advance(skipped);
                At::Extra(flags, left - skipped)
            }
            At::Name(flags) if flags & FLAG_NAME == 0 => At::Comment(flags),
            At::Name(flags) => {
                if !self.skip_text(input)? {
                    return Ok(());
                }
                At::Comment(flags)
            }
            At::Comment(flags) => {
                if flags & FLAG_COMMENT != 0 && !self.skip_text(input)? {
                    return Ok(());
                }
                if flags & FLAG_HEADER_CRC == 0 {
                    At::Body
                } else {
                    At::HeaderCrc
                }
            }
            At::HeaderCrc => {
                if !self.collect(input, 2) {
                    return Ok(());
                }
                self.field.clear();
                At::Body
            }
            At::Trailer => {
                if !self.collect(input, 8) {
                    return Ok(());
                }
                let expected = [
                    self.crc.sum().to_le_bytes(),
                    self.crc.amount().to_le_bytes(),
                ];
                if self.field != expected.concat() {
                    return Err(invalid(b"", "the gzip checksum is wrong"));
                }
                self.field.clear();
                self.crc.reset();
                self.inflate.reset(false);
                At::Between
            }
            At::Body => At::Body,
        };
        Ok(())
    }

    fn inflate(&mut self, input: &mut Bytes) -> Result<Bytes> {
        let mut output = Vec::with_capacity(STEP);
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress_vec(input, &mut output, FlushDecompress::None)
            .map_err(|_| invalid(b"", "the gzip data is corrupt"))?;
        let consumed = (self.inflate.total_in() - before_in) as usize;
        let produced = self.inflate.total_out() - before_out;
        self.crc.update(&output);
        if status == Status::StreamEnd {
            self.at = At::Trailer;
        } else if consumed == 0 && produced == 0 {
            return Err(invalid(b"", "the gzip data is corrupt"));
        }
        input.advance(consumed);
        Ok(output.into())
    }

    /// Collects `length` bytes into `field`; false if more input is needed.
    fn collect(&mut self, input: &mut Bytes, length: usize) -> bool {
        let taken = input.split_to((length - self.field.len()).min(input.len()));
        self.field.extend_from_slice(&taken);
        self.field.len() == length
    }

    /// Skips a text up to its NUL; false if more input is needed.
    fn skip_text(&mut self, input: &mut Bytes) -> Result<bool> {
        let end = input.iter().position(|byte| *byte == 0);
        let length = end.unwrap_or(input.len());
        // Only the length matters, so the field counts in zeros.
        self.field
            .resize(self.field.len() + length.min(MAX_TEXT + 1), 0);
        if self.field.len() > MAX_TEXT {
            return Err(invalid(b"", "the gzip header is too long"));
        }
        input.advance(end.map_or(length, |end| end + 1));
        if end.is_some() {
            self.field.clear();
        }
        Ok(end.is_some())
    }
}

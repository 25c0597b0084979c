//! Frames: a 12-byte header and a payload.

use super::bytes::Malformed;

/// The protocol's version; both sides must have the same.
pub(crate) const VERSION: u16 = 1;

/// The longest payload, in bytes: arguments and environment of one command fit.
pub(crate) const MAX_PAYLOAD: usize = 3 << 20;

/// The longest piece of stream data in one frame, in bytes.
pub(crate) const MAX_DATA: usize = 64 << 10;

/// How much of one stream may be under way before its receiver has consumed it, in bytes.
pub(crate) const WINDOW: u32 = 512 << 10;

/// What a frame costs of its stream's window beyond its payload: a flood of tiny frames is bounded too.
pub(crate) const FRAME_COST: usize = 64;

pub(crate) const HEADER: usize = 12;

/// One frame. `id` names the operation, chosen by the host; `fds` is how many descriptors came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: u32,
    pub(crate) kind: u8,
    pub(crate) stream: u8,
    pub(crate) fds: u8,
    pub(crate) payload: Vec<u8>,
}

/// A frame's header: payload length, id, kind, stream, number of descriptors, zero.
pub(crate) fn header(length: usize, id: u32, kind: u8, stream: u8, fds: u8) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(length as u32).to_le_bytes());
    header[4..8].copy_from_slice(&id.to_le_bytes());
    header[8..].copy_from_slice(&[kind, stream, fds, 0]);
    header
}

/// A whole frame as bytes.
pub(crate) fn encode(id: u32, kind: u8, stream: u8, fds: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&header(payload.len(), id, kind, stream, fds));
    bytes.extend_from_slice(payload);
    bytes
}

/// Puts frames together from bytes that arrive in any pieces.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    buffer: Vec<u8>,
    start: usize,
}

impl Assembler {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let pending = &self.buffer[self.start..];
        let Some(header) = pending.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, i0, i1, i2, i3, kind, stream, fds, zero] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(Malformed("a frame is longer than allowed"));
        }
        if zero != 0 {
            return Err(Malformed("a reserved byte is not zero"));
        }
        let Some(payload) = pending.get(HEADER..HEADER + length) else {
            return Ok(None);
        };
        let frame = Frame {
            id: u32::from_le_bytes([i0, i1, i2, i3]),
            kind,
            stream,
            fds,
            payload: payload.to_vec(),
        };
        self.start += HEADER + length;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // A large command should not leave its buffer with an idle sandbox.
            self.buffer.shrink_to(MAX_DATA);
        } else if self.start > MAX_DATA {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        Ok(Some(frame))
    }

    /// Whether bytes of an unfinished frame are waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }
}

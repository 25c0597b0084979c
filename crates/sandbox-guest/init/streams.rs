//! Streams that travel as frames: from a descriptor to the host and back, within the credit that the receiver has given.

use std::collections::VecDeque;

use crate::sys::{self, Errno, OwnedFd};
use crate::wire::frame::{FRAME_COST, MAX_DATA};

/// From a descriptor to the host.
pub(crate) struct Source {
    pub(crate) fd: OwnedFd,
    /// Bytes that the host can still take.
    pub(crate) credit: u64,
    /// What it reads is nobody's any more: read on, so that nobody gets a SIGPIPE, and throw it away.
    pub(crate) discard: bool,
}

/// What a source gave.
pub(crate) enum Pulled {
    Data(Vec<u8>),
    Nothing,
    End,
}

impl Source {
    pub(crate) fn new(fd: OwnedFd, credit: u64) -> Self {
        Source {
            fd,
            credit,
            discard: false,
        }
    }

    pub(crate) fn wants(&self) -> bool {
        self.discard || self.credit > FRAME_COST as u64
    }

    pub(crate) fn pull(&mut self) -> Pulled {
        let most = if self.discard {
            MAX_DATA
        } else {
            MAX_DATA.min((self.credit as usize).saturating_sub(FRAME_COST))
        };
        if most == 0 {
            return Pulled::Nothing;
        }
        let mut buffer = vec![0; most];
        match sys::read(self.fd.raw(), &mut buffer) {
            Ok(0) => Pulled::End,
            Ok(_) if self.discard => Pulled::Nothing,
            Ok(length) => {
                buffer.truncate(length);
                self.credit -= (length + FRAME_COST) as u64;
                Pulled::Data(buffer)
            }
            Err(sys::EAGAIN) => Pulled::Nothing,
            // EIO: the last process of a terminal is gone. Anything else ends the stream too.
            Err(_) => Pulled::End,
        }
    }
}

/// From the host to a descriptor.
pub(crate) struct Sink {
    pub(crate) fd: OwnedFd,
    queue: VecDeque<Vec<u8>>,
    offset: usize,
    /// After what is queued, end of file.
    pub(crate) ended: bool,
}

impl Sink {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Sink {
            fd,
            queue: VecDeque::new(),
            offset: 0,
            ended: false,
        }
    }

    pub(crate) fn queue(&mut self, data: Vec<u8>) {
        match self.queue.back_mut() {
            // Many small pieces take no more memory than a few large ones.
            Some(last) if last.len() < MAX_DATA / 16 => last.extend_from_slice(&data),
            _ if data.is_empty() => {}
            _ => self.queue.push_back(data),
        }
    }

    /// Bytes that wait. The host never sends more than its credit, so this bounds what it may claim.
    pub(crate) fn queued(&self) -> usize {
        self.queue.iter().map(Vec::len).sum::<usize>() - self.offset
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.ended && self.queue.is_empty()
    }

    /// Writes what the descriptor takes; how many bytes that was.
    pub(crate) fn flush(&mut self) -> Result<usize, Errno> {
        let mut written = 0;
        while let Some(front) = self.queue.front() {
            match sys::write(self.fd.raw(), &front[self.offset..]) {
                Ok(length) => {
                    written += length;
                    self.offset += length;
                    if self.offset == front.len() {
                        self.queue.pop_front();
                        self.offset = 0;
                    }
                }
                Err(sys::EAGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

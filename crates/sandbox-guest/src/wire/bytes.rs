//! Little-endian fields and length-prefixed bytes.

/// Damaged or oversized input; says what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub(crate) &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

/// Builds a payload.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn list<'a>(
        &mut self,
        values: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> &mut Self {
        self.u32(values.len() as u32);
        for value in values {
            self.bytes(value);
        }
        self
    }
}

/// Takes a payload apart.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Decoder(payload)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Malformed("it ends too early"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// A list; every element costs at least its length field, so that the count cannot promise more than the payload holds.
    pub(crate) fn list(&mut self) -> Result<Vec<Vec<u8>>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() / 4 {
            return Err(Malformed("a list is longer than the message"));
        }
        (0..count)
            .map(|_| self.bytes().map(<[u8]>::to_vec))
            .collect()
    }

    /// The payload must have been used up.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed("it has bytes left over"))
        }
    }
}

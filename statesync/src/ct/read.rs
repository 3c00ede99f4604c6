//! Checked reading of attributes. Nothing here allocates, and nothing indexes.

use super::number::NLA_TYPE_MASK;

/// A length or a value that the kernel doesn't send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// The attributes of a message or of a nest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next one: its type without flags, and its value.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u16, &'a [u8])>, Malformed> {
        let Some([l0, l1, k0, k1]) = self.rest.first_chunk::<4>() else {
            return if self.rest.is_empty() { Ok(None) } else { Err(Malformed) };
        };
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let value = self.rest.get(4..length).ok_or(Malformed)?;
        // The last one's padding may be missing.
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Ok(Some((u16::from_ne_bytes([*k0, *k1]) & NLA_TYPE_MASK, value)))
    }
}

#[inline]
pub(super) fn byte(value: &[u8]) -> Result<u8, Malformed> {
    value.first().copied().ok_or(Malformed)
}

#[inline]
pub(super) fn array<const N: usize>(value: &[u8]) -> Result<[u8; N], Malformed> {
    value.first_chunk::<N>().copied().ok_or(Malformed)
}

#[inline]
pub(super) fn be16(value: &[u8]) -> Result<u16, Malformed> {
    array(value).map(u16::from_be_bytes)
}

#[inline]
pub(super) fn be32(value: &[u8]) -> Result<u32, Malformed> {
    array(value).map(u32::from_be_bytes)
}

#[inline]
pub(super) fn be64(value: &[u8]) -> Result<u64, Malformed> {
    array(value).map(u64::from_be_bytes)
}

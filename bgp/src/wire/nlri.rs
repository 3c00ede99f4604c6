//! Prefixes as they stand in withdrawn routes, NLRI and the MP attributes: a length in bits, and as many bytes as it takes
//! (RFC 4271 section 4.3, RFC 4760 section 5).

use std::net::IpAddr;

use super::reader::Reader;
use crate::types::{Family, Prefix};

/// Bytes that can't be a prefix: longer than an address, or cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads prefixes one by one; after the first wrong one there are no more.
#[derive(Debug, Clone)]
pub(super) struct Prefixes<'a> {
    reader: Reader<'a>,
    family: Family,
}

impl<'a> Prefixes<'a> {
    pub(super) const fn new(family: Family, bytes: &'a [u8]) -> Self {
        Self { reader: Reader::new(bytes), family }
    }

    /// How many there are, if all can be read.
    pub(super) fn count_valid(self) -> Result<u32, Malformed> {
        let mut count = 0;
        for prefix in self {
            prefix?;
            count += 1;
        }
        Ok(count)
    }

    fn read(&mut self) -> Option<Prefix> {
        let length = self.reader.u8()?;
        let bytes = self.reader.take(usize::from(length.div_ceil(8)))?;
        // Bits beyond the length are irrelevant (RFC 4271 section 4.3): `Prefix::new` clears them.
        Prefix::new(address(self.family, bytes)?, length)
    }
}

impl Iterator for Prefixes<'_> {
    type Item = Result<Prefix, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let prefix = self.read().ok_or(Malformed);
        if prefix.is_err() {
            self.reader.rest();
        }
        Some(prefix)
    }
}

/// An address of which the first bytes are given and the others are 0; `None` if there are more than it has.
fn address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => filled::<4>(bytes).map(IpAddr::from),
        Family::Ipv6 => filled::<16>(bytes).map(IpAddr::from),
    }
}

fn filled<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut octets = [0; N];
    octets.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(octets)
}

/// Bytes that a prefix takes.
pub(super) const fn len(prefix: Prefix) -> usize {
    1 + prefix.length().div_ceil(8) as usize
}

/// Writes a prefix.
pub(super) fn put(out: &mut Vec<u8>, prefix: Prefix) {
    let bytes = usize::from(prefix.length().div_ceil(8));
    out.push(prefix.length());
    match prefix.ip() {
        IpAddr::V4(ip) => out.extend(ip.octets().iter().take(bytes)),
        IpAddr::V6(ip) => out.extend(ip.octets().iter().take(bytes)),
    }
}

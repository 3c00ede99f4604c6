//! Communities: standard (RFC 1997), large (RFC 8092), extended (RFC 4360) with the link bandwidth; how they are written
//! for people.

use std::fmt;

use crate::types::Asn;

/// GRACEFUL_SHUTDOWN (RFC 8326): prefer any other path, this one goes soon.
pub const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;
/// BLACKHOLE (RFC 7999).
pub const BLACKHOLE: u32 = 0xffff_029a;
/// NO_EXPORT (RFC 1997): not beyond this AS.
pub const NO_EXPORT: u32 = 0xffff_ff01;
/// NO_ADVERTISE (RFC 1997): to nobody.
pub const NO_ADVERTISE: u32 = 0xffff_ff02;
/// NO_EXPORT_SUBCONFED (RFC 1997): not beyond this member AS.
pub const NO_EXPORT_SUBCONFED: u32 = 0xffff_ff03;
/// NOPEER (RFC 3765): not to peers of the same rank.
pub const NO_PEER: u32 = 0xffff_ff04;

/// A standard community as people write it: `65000:100`, or its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Standard(pub u32);

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            GRACEFUL_SHUTDOWN => "graceful-shutdown",
            BLACKHOLE => "blackhole",
            NO_EXPORT => "no-export",
            NO_ADVERTISE => "no-advertise",
            NO_EXPORT_SUBCONFED => "no-export-subconfed",
            NO_PEER => "no-peer",
            other => return write!(f, "{}:{}", other >> 16, other & 0xffff),
        };
        f.write_str(name)
    }
}

/// A large community as people write it: `65000:1:2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Large(pub [u32; 3]);

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [global, first, second] = self.0;
        write!(f, "{global}:{first}:{second}")
    }
}

/// An extended community as people write it: link bandwidth, route target and origin in words, others in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extended(pub [u8; 8]);

impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, subkind, a, b, c, d, e, g] = self.0;
        let two = u16::from_be_bytes([a, b]);
        let four = u32::from_be_bytes([c, d, e, g]);
        match (kind & 0x3f, subkind) {
            (0x00, 0x04) => {
                let scope = if kind & 0x40 == 0 { "transitive, " } else { "" };
                // Bits, as links are sold; the wire has bytes.
                write!(f, "link bandwidth {} bit/s ({scope}AS {two})", f64::from(f32::from_bits(four)) * 8.0)
            }
            (0x00, 0x02) => write!(f, "target:{two}:{four}"),
            (0x00, 0x03) => write!(f, "origin:{two}:{four}"),
            _ => write!(f, "0x{:016x}", u64::from_be_bytes(self.0)),
        }
    }
}

/// The link bandwidth community (draft-ietf-idr-link-bandwidth): non-transitive, an AS of two octets, and **bytes** per
/// second as a 32-bit float. Routers weigh next hops of equal paths by it.
pub fn link_bandwidth(asn: Asn, bytes_per_second: f32) -> [u8; 8] {
    let [a, b] = asn.two_octets().to_be_bytes();
    let [c, d, e, f] = bytes_per_second.to_bits().to_be_bytes();
    [0x40, 0x04, a, b, c, d, e, f]
}

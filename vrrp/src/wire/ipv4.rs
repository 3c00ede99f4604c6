//! The IPv4 header, as far as VRRP looks at it (RFC 791).

use std::net::Ipv4Addr;

use super::AdvertError;

const HEADER_MIN: usize = 20;

/// The fields of an IPv4 packet that matter here.
pub(super) struct Ipv4<'a> {
    pub(super) protocol: u8,
    pub(super) ttl: u8,
    pub(super) fragment: bool,
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
    pub(super) payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    pub(super) fn parse(packet: &'a [u8]) -> Result<Self, AdvertError> {
        let have = packet.len();
        let (&[version_ihl, _, tl1, tl0, _, _, frag1, frag0, ttl, protocol, _, _, s3, s2, s1, s0, d3, d2, d1, d0], _) =
            packet.split_first_chunk::<HEADER_MIN>().ok_or(AdvertError::Truncated { have, need: HEADER_MIN })?;
        let header_len = usize::from(version_ihl & 0x0f) * 4;
        let total_len = usize::from(u16::from_be_bytes([tl1, tl0]));
        if version_ihl >> 4 != 4 || header_len < HEADER_MIN || total_len < header_len {
            return Err(AdvertError::IpHeader);
        }
        let payload = packet.get(header_len..total_len).ok_or(AdvertError::Truncated { have, need: total_len })?;
        // "More fragments" and the offset; "don't fragment" (0x4000) is fine.
        let fragment = u16::from_be_bytes([frag1, frag0]) & 0x3fff != 0;
        Ok(Self {
            protocol,
            ttl,
            fragment,
            source: Ipv4Addr::new(s3, s2, s1, s0),
            destination: Ipv4Addr::new(d3, d2, d1, d0),
            payload,
        })
    }
}

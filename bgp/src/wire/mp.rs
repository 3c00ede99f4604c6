//! MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760), their next hops (RFC 2545, RFC 8950).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Codec;
use super::error::Fault;
use super::reader::Reader;
use super::{attribute, nlri::Prefixes};
use crate::types::{Family, NextHop};

/// An MP_REACH_NLRI, borrowed, with prefixes that are known to be readable if the family is one of ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach<'a> {
    pub(super) afi: u16,
    pub(super) safi: u8,
    /// `None`: a family that wasn't negotiated; neither next hop nor prefixes were looked at.
    pub(super) known: Option<(Family, NextHop)>,
    pub(super) count: u32,
    pub(super) next_hop: &'a [u8],
    pub(super) prefixes: &'a [u8],
}

/// An MP_UNREACH_NLRI, in the same way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unreach<'a> {
    pub(super) afi: u16,
    pub(super) safi: u8,
    pub(super) known: Option<Family>,
    pub(super) count: u32,
    pub(super) prefixes: &'a [u8],
}

fn negotiated(afi: u16, safi: u8, codec: &Codec) -> Option<Family> {
    Family::from_afi_safi(afi, safi).filter(|family| codec.families.contains(*family))
}

/// What an MP_REACH_NLRI holds. A next hop of a length that its family can't have hides where the prefixes begin, and so
/// is a reset (RFC 7606 section 7.11); an address that can't be is not.
pub(super) fn reach<'a>(value: &'a [u8], codec: &Codec) -> Result<Reach<'a>, Fault> {
    let malformed = Fault::MalformedMp(attribute::MP_REACH_NLRI);
    let mut reader = Reader::new(value);
    let (afi, safi) = reader.u16().zip(reader.u8()).ok_or(malformed)?;
    let length = reader.u8().ok_or(malformed)?;
    let next_hop = reader.take(usize::from(length)).ok_or(malformed)?;
    // Reserved: ignored.
    reader.u8().ok_or(malformed)?;
    let prefixes = reader.rest();
    let Some(family) = negotiated(afi, safi, codec) else {
        return Ok(Reach { afi, safi, known: None, count: 0, next_hop, prefixes });
    };
    let hop = match (next_hop.len(), family) {
        (4, Family::Ipv4) => true,
        (16 | 32, Family::Ipv4) => codec.extended_next_hop,
        (16 | 32, Family::Ipv6) => true,
        _ => false,
    };
    if !hop {
        return Err(malformed);
    }
    let count = Prefixes::new(family, prefixes).count_valid().map_err(|_| malformed)?;
    let hop = read_next_hop(next_hop).ok_or(Fault::NextHop)?;
    Ok(Reach { afi, safi, known: Some((family, hop)), count, next_hop, prefixes })
}

/// What an MP_UNREACH_NLRI holds.
pub(super) fn unreach<'a>(value: &'a [u8], codec: &Codec) -> Result<Unreach<'a>, Fault> {
    let malformed = Fault::MalformedMp(attribute::MP_UNREACH_NLRI);
    let mut reader = Reader::new(value);
    let (afi, safi) = reader.u16().zip(reader.u8()).ok_or(malformed)?;
    let prefixes = reader.rest();
    let known = negotiated(afi, safi, codec);
    let count = match known {
        Some(family) => Prefixes::new(family, prefixes).count_valid().map_err(|_| malformed)?,
        None => 0,
    };
    Ok(Unreach { afi, safi, known, count, prefixes })
}

/// A next hop that a router can have. Peers on unnumbered links send their link-local alone, twice (FRR), or after an
/// unspecified address (old BIRD): all mean the same.
fn read_next_hop(bytes: &[u8]) -> Option<NextHop> {
    let mut reader = Reader::new(bytes);
    if bytes.len() == 4 {
        return reader.array().map(Ipv4Addr::from).filter(|address| is_host(*address)).map(NextHop::V4);
    }
    let first = Ipv6Addr::from(reader.array::<16>()?);
    let second = reader.array::<16>().map(Ipv6Addr::from);
    let link_local = [Some(first), second].into_iter().flatten().find(Ipv6Addr::is_unicast_link_local);
    let global = Some(first).filter(|address| is_global(*address));
    let possible = !first.is_multicast() && !first.is_loopback() && (global.is_some() || link_local.is_some());
    possible.then_some(NextHop::V6 { global, link_local })
}

fn is_global(address: Ipv6Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_unicast_link_local())
}

/// Whether a host can have it: not in 0/8, 127/8, 224/3.
pub(super) const fn is_host(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    first != 0 && first != 127 && first < 224
}

/// The bytes of a next hop in an MP_REACH_NLRI of a family. A link-local alone stands alone: routers take an unspecified
/// global before it for an error.
pub(super) fn put_next_hop(out: &mut Vec<u8>, next_hop: NextHop) {
    match next_hop {
        NextHop::V4(address) => {
            out.push(4);
            out.extend(address.octets());
        }
        NextHop::V6 { global, link_local } => {
            let addresses = [global, link_local];
            out.push(if addresses.iter().flatten().count() == 2 { 32 } else { 16 });
            for address in addresses.into_iter().flatten() {
                out.extend(address.octets());
            }
        }
    }
}

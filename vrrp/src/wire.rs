//! Wire format: VRRPv3 over IPv4 and IPv6 (RFC 9568 section 5), VRRPv2 over IPv4 (RFC 3768 section 5).
//!
//! [`decode_v4`] takes what a raw IPv4 socket gives, header included; [`decode_v6`] what a raw IPv6 socket gives, which is
//! the message, with the rest from ancillary data. [`Advert::encode`] makes what such sockets are given, without the
//! header. Decoding is total: any bytes give an advert or a typed refusal. This module doesn't know which virtual routers
//! exist: the caller looks the VRID up, and asks that leg whether it takes the packet ([`LegConfig::accept`]).
//!
//! VRRPv3:
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+---------------+---------------+
//! |Version| Type  | Virtual Rtr ID|   Priority    |  Addr Count   |
//! +-------+-------+---------------+---------------+---------------+
//! |Reserve| Max Advertise Interval|           Checksum            |
//! +-------+-----------------------+-------------------------------+
//! |        addresses: IPv4 4 bytes each, IPv6 16 bytes each       |
//! ```
//! VRRPv2 has an authentication type (0) and an interval in seconds in the place of reserved bits and interval, and 8
//! bytes of authentication data at the end, which both length and checksum count.
//!
//! [`LegConfig::accept`]: crate::LegConfig::accept

mod error;
mod ipv4;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum;
pub use crate::checksum::ChecksumForm;
use crate::types::{Addresses, AdvertInterval, Family, Priority, Version, Vrid};
pub use error::AdvertError;
use ipv4::Ipv4;

/// IP protocol number of VRRP.
pub const VRRP_PROTOCOL: u8 = 112;
/// The TTL or hop limit an advert is sent with, and to the group must arrive with (sections 5.1.1.3 and 5.1.2.3): it
/// comes from this very segment.
pub const TTL: u8 = 255;

const TYPE_ADVERTISEMENT: u8 = 1;
const HEADER_LEN: usize = 8;
/// VRRPv2's authentication data: dead since RFC 3768, but still there.
const AUTH_DATA_LEN: usize = 8;

/// A VRRP advert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert {
    /// Which protocol it is in.
    pub version: Version,
    /// Which virtual router on the segment.
    pub vrid: Vrid,
    /// The sender's priority; 0 resigns.
    pub priority: Priority,
    /// The sender's advert interval.
    pub interval: AdvertInterval,
    /// What it holds the addresses of. IPv6: the virtual router's link-local comes first.
    pub addresses: Addresses,
}

impl Advert {
    /// The VRRP message (no IP header), reserved bits 0. `form` counts only where there are two
    /// ([`ChecksumForm::only`]); both addresses go into the pseudo-header's sum, where there is one.
    ///
    /// An interval that the version can't carry ([`AdvertInterval::fits`]) becomes the next longer one that it can, or
    /// its longest: never 0, which would flood the segment.
    pub fn encode(&self, form: ChecksumForm, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let [byte4, byte5] = match self.version {
            Version::V2 => [0, u8::try_from(self.interval.cs().div_ceil(100)).unwrap_or(u8::MAX)],
            Version::V3 => self.interval.min(AdvertInterval::MAX).cs().to_be_bytes(),
        };
        let version_type = self.version.get() << 4 | TYPE_ADVERTISEMENT;
        let head = [version_type, self.vrid.get(), self.priority.get(), self.addresses.count(), byte4, byte5];
        let mut message = Vec::with_capacity(message_len(self.version, self.addresses.family(), self.addresses.len()));
        message.extend(head);
        message.extend([0, 0]);
        for address in self.addresses.iter() {
            match address {
                IpAddr::V4(address) => message.extend(address.octets()),
                IpAddr::V6(address) => message.extend(address.octets()),
            }
        }
        if self.version == Version::V2 {
            message.extend([0; AUTH_DATA_LEN]);
        }
        let form = ChecksumForm::only(self.addresses.family(), self.version).unwrap_or(form);
        let checksum = checksum::of(&message, form, source, destination);
        message.splice(head.len()..HEADER_LEN, checksum);
        message
    }
}

/// Bytes of a message with so many addresses, without the IP header.
pub const fn message_len(version: Version, family: Family, addresses: usize) -> usize {
    let auth = match version {
        Version::V2 => AUTH_DATA_LEN,
        Version::V3 => 0,
    };
    HEADER_LEN + addresses * family.address_len() + auth
}

/// An advert as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The sender's primary address on the segment; IPv6: its link-local, but for unicast peers.
    pub source: IpAddr,
    /// Where it was sent to: the group, but for unicast peers.
    pub destination: IpAddr,
    /// TTL or hop limit it arrived with: 255 if it was sent to a group.
    pub ttl: u8,
    /// What it says.
    pub advert: Advert,
    /// In which form its checksum was right: to be counted, and told to the operator if it isn't ours.
    pub checksum: ChecksumForm,
}

/// Decodes a whole IPv4 packet as a raw socket gives it: header with options, Ethernet padding after the total length
/// tolerated. The IP header checksum is the kernel's business and not looked at again.
pub fn decode_v4(packet: &[u8]) -> Result<Received, AdvertError> {
    let ip = Ipv4::parse(packet)?;
    if ip.protocol != VRRP_PROTOCOL {
        return Err(AdvertError::Protocol(ip.protocol));
    }
    if ip.fragment {
        return Err(AdvertError::Fragment);
    }
    if ip.destination.is_multicast() || ip.destination.is_broadcast() {
        check_ttl(ip.ttl)?;
    }
    if ip.source.is_unspecified() || ip.source.is_multicast() || ip.source.is_broadcast() {
        return Err(AdvertError::Source(ip.source.into()));
    }
    received(ip.source.into(), ip.destination.into(), ip.ttl, ip.payload)
}

/// Decodes a VRRP message that came over IPv6; the rest is what the kernel tells of its header.
pub fn decode_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    message: &[u8],
) -> Result<Received, AdvertError> {
    if destination.is_multicast() {
        check_ttl(hop_limit)?;
    }
    if source.is_unspecified() || source.is_multicast() {
        return Err(AdvertError::Source(source.into()));
    }
    received(source.into(), destination.into(), hop_limit, message)
}

/// RFC 9568 section 5.1.1.3: nothing that crossed a router is believed. The only guard of a protocol without
/// authentication. Between unicast peers it is their legs' policy ([`Transport::accept`](crate::Transport::accept)).
fn check_ttl(ttl: u8) -> Result<(), AdvertError> {
    if ttl != TTL && !crate::mutants::off("ttl-check") { Err(AdvertError::Ttl(ttl)) } else { Ok(()) }
}

fn received(source: IpAddr, destination: IpAddr, ttl: u8, message: &[u8]) -> Result<Received, AdvertError> {
    let (advert, checksum) = decode_message(message, source, destination)?;
    Ok(Received { source, destination, ttl, advert, checksum })
}

/// Decodes a VRRP message without looking at how it came; `source` says of which family it is, and both addresses are
/// needed for the checksum.
pub fn decode_message(
    message: &[u8],
    source: IpAddr,
    destination: IpAddr,
) -> Result<(Advert, ChecksumForm), AdvertError> {
    let have = message.len();
    let too_short = AdvertError::Truncated { have, need: HEADER_LEN };
    let (&[version_type, vrid, priority, count, byte4, byte5, _, _], body) =
        message.split_first_chunk::<HEADER_LEN>().ok_or(too_short)?;
    let family = Family::of(source);
    let version = match (version_type >> 4, family) {
        (3, _) => Version::V3,
        (2, Family::V4) => Version::V2,
        (2, Family::V6) => return Err(AdvertError::Version2),
        (other, _) => return Err(AdvertError::Version(other)),
    };
    if version_type & 0x0f != TYPE_ADVERTISEMENT {
        return Err(AdvertError::Type(version_type & 0x0f));
    }
    if count == 0 {
        return Err(AdvertError::NoAddresses);
    }
    let need = message_len(version, family, usize::from(count));
    if have < need {
        return Err(AdvertError::Truncated { have, need });
    }
    if have > need {
        return Err(AdvertError::Trailing(have - need));
    }
    let form = match checksum::form_of(message, version, source, destination) {
        Some(form) => form,
        None if crate::mutants::off("checksum") => ChecksumForm::Message,
        None => return Err(AdvertError::Checksum),
    };
    let interval = match version {
        // Before the interval: with a password there is nothing to be read at all (RFC 3768 section 7.1).
        Version::V2 if byte4 != 0 => return Err(AdvertError::AuthType(byte4)),
        Version::V2 => AdvertInterval::from_seconds(byte5),
        // Section 5.2.6: the four reserved bits are ignored.
        Version::V3 => AdvertInterval::from_cs(u16::from_be_bytes([byte4 & 0x0f, byte5])),
    };
    let advert = Advert {
        version,
        vrid: Vrid::new(vrid).map_err(|_| AdvertError::Vrid)?,
        priority: Priority::from_wire(priority),
        interval: interval.map_err(|_| AdvertError::Interval)?,
        addresses: addresses(family, usize::from(count), body).map_err(|_| AdvertError::NoAddresses)?,
    };
    Ok((advert, form))
}

/// The first `count` addresses of a body that is known to hold them.
fn addresses(family: Family, count: usize, body: &[u8]) -> Result<Addresses, crate::types::AddressesError> {
    match family {
        Family::V4 => Addresses::new(body.as_chunks::<4>().0.iter().take(count).copied().map(Ipv4Addr::from)),
        Family::V6 => Addresses::new(body.as_chunks::<16>().0.iter().take(count).copied().map(Ipv6Addr::from)),
    }
}

#[cfg(test)]
mod tests;

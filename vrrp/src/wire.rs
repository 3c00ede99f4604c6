//! Wire format (RFC 9568 section 5): VRRPv3 adverts over IPv4.
//!
//! [`decode_packet`] takes what a raw socket gives, IPv4 header included; [`Advert::encode`] makes what such a socket is
//! given, without the header. Decoding is total: any bytes give an advert or a typed refusal. This module doesn't know
//! which virtual routers exist; the caller looks the VRID up.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+---------------+---------------+
//! |Version| Type  | Virtual Rtr ID|   Priority    |  Addr Count   |
//! +-------+-------+---------------+---------------+---------------+
//! |Reserve| Max Advertise Interval|           Checksum            |
//! +-------+-----------------------+-------------------------------+
//! |                     IPv4 addresses, 4 bytes each              |
//! ```

use std::net::Ipv4Addr;

use thiserror::Error;

use crate::checksum;
pub use crate::checksum::ChecksumForm;
use crate::types::{Addresses, AdvertInterval, Priority, Vrid};

/// IP protocol number of VRRP.
pub const VRRP_PROTOCOL: u8 = 112;
/// Where IPv4 adverts go (RFC 9568 section 5.1.1.2). Never forwarded.
pub const MULTICAST_GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
/// The TTL an advert is sent with and must arrive with (section 5.1.1.3): it comes from this very segment.
pub const TTL: u8 = 255;

const VERSION: u8 = 3;
const TYPE_ADVERTISEMENT: u8 = 1;
const HEADER_LEN: usize = 8;
const IPV4_HEADER_MIN: usize = 20;

/// A VRRPv3 advert. One that exists can be encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert {
    /// Which virtual router on the segment.
    pub vrid: Vrid,
    /// The sender's priority; 0 resigns.
    pub priority: Priority,
    /// The sender's advert interval.
    pub interval: AdvertInterval,
    /// What it holds the address of.
    pub addresses: Addresses,
}

impl Advert {
    /// The VRRP message (no IP header), checksum in the form of RFC 9568, reserved bits 0.
    pub fn encode(&self) -> Vec<u8> {
        let [interval_high, interval_low] = self.interval.cs().to_be_bytes();
        let head = [
            VERSION << 4 | TYPE_ADVERTISEMENT,
            self.vrid.get(),
            self.priority.get(),
            self.addresses.count(),
            interval_high,
            interval_low,
        ];
        let addresses = self.addresses.iter().flat_map(Ipv4Addr::octets);
        let mut message: Vec<u8> = head.into_iter().chain([0, 0]).chain(addresses).collect();
        let checksum = checksum::of_message(&message);
        message.splice(head.len()..HEADER_LEN, checksum);
        message
    }
}

/// An advert as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The sender's primary address on the segment.
    pub source: Ipv4Addr,
    /// Where it was sent to: the group, but for unicast peers.
    pub destination: Ipv4Addr,
    /// TTL it arrived with: 255.
    pub ttl: u8,
    /// What it says.
    pub advert: Advert,
    /// In which form its checksum was right: to be counted, and told to the operator if it is the old one.
    pub checksum: ChecksumForm,
}

/// Why a packet was refused (RFC 9568 section 7.1). All of them are dropped, counted, and logged at a limited rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum AdvertError {
    /// Ends before what its headers promise.
    #[error("truncated: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes needed at least.
        need: usize,
    },
    /// Not IPv4, or a header length or total length that can't be.
    #[error("malformed IPv4 header")]
    IpHeader,
    /// A fragment: adverts are never fragmented on their own segment.
    #[error("IPv4 fragment")]
    Fragment,
    /// Not VRRP.
    #[error("IP protocol {0} is not VRRP")]
    Protocol(u8),
    /// Sent from beyond the segment, or by a broken sender.
    #[error("TTL {0}, must be 255")]
    Ttl(u8),
    /// A source that no host can have (unspecified, multicast, broadcast).
    #[error("source {0} is no host's address")]
    Source(Ipv4Addr),
    /// VRRPv2: known, but not spoken yet.
    #[error("VRRPv2 is not supported")]
    Version2,
    /// Neither 2 nor 3.
    #[error("unknown VRRP version {0}")]
    Version(u8),
    /// Not an ADVERTISEMENT, the only type there is.
    #[error("unknown VRRP type {0}")]
    Type(u8),
    /// No address (erratum 8299).
    #[error("address count 0")]
    NoAddresses,
    /// Bytes after the last address: another version's trailer, not ours to guess.
    #[error("{0} bytes after the last address")]
    Trailing(usize),
    /// Wrong in both forms.
    #[error("wrong checksum")]
    Checksum,
    /// VRID 0.
    #[error("VRID 0")]
    Vrid,
    /// Interval 0: would make every Backup fire at once (erratum 8301).
    #[error("advert interval 0")]
    Interval,
}

impl AdvertError {
    /// Every kind's counter name, in the order of the checks.
    pub const COUNTERS: [&'static str; 14] = [
        "truncated",
        "ip-header",
        "fragment",
        "protocol",
        "ttl",
        "source",
        "version-2",
        "version",
        "type",
        "no-addresses",
        "trailing",
        "checksum",
        "vrid",
        "interval",
    ];

    /// A stable name to count it by: part of the metrics' interface, never changed.
    pub fn counter(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::IpHeader => "ip-header",
            Self::Fragment => "fragment",
            Self::Protocol(_) => "protocol",
            Self::Ttl(_) => "ttl",
            Self::Source(_) => "source",
            Self::Version2 => "version-2",
            Self::Version(_) => "version",
            Self::Type(_) => "type",
            Self::NoAddresses => "no-addresses",
            Self::Trailing(_) => "trailing",
            Self::Checksum => "checksum",
            Self::Vrid => "vrid",
            Self::Interval => "interval",
        }
    }
}

/// Decodes a whole IPv4 packet as a raw socket gives it: header with options, Ethernet padding after the total length
/// tolerated. The IP header checksum is the kernel's business and not looked at again.
pub fn decode_packet(packet: &[u8]) -> Result<Received, AdvertError> {
    let ip = Ipv4::parse(packet)?;
    if ip.protocol != VRRP_PROTOCOL {
        return Err(AdvertError::Protocol(ip.protocol));
    }
    if ip.fragment {
        return Err(AdvertError::Fragment);
    }
    // RFC 9568 section 5.1.1.3: nothing that crossed a router is believed. The only guard of a protocol without
    // authentication.
    if ip.ttl != TTL && !crate::mutants::off("ttl-check") {
        return Err(AdvertError::Ttl(ip.ttl));
    }
    if ip.source.is_unspecified() || ip.source.is_multicast() || ip.source.is_broadcast() {
        return Err(AdvertError::Source(ip.source));
    }
    let (advert, checksum) = decode_message(ip.payload, ip.source, ip.destination)?;
    Ok(Received { source: ip.source, destination: ip.destination, ttl: ip.ttl, advert, checksum })
}

/// Decodes a VRRP message that came without its IP header; both addresses are needed for the checksum's old form.
pub fn decode_message(
    message: &[u8],
    source: Ipv4Addr,
    destination: Ipv4Addr,
) -> Result<(Advert, ChecksumForm), AdvertError> {
    let have = message.len();
    let too_short = AdvertError::Truncated { have, need: HEADER_LEN };
    let (&[version_type, vrid, priority, count, interval_high, interval_low, _, _], body) =
        message.split_first_chunk::<HEADER_LEN>().ok_or(too_short)?;
    match version_type >> 4 {
        VERSION => {}
        2 => return Err(AdvertError::Version2),
        other => return Err(AdvertError::Version(other)),
    }
    if version_type & 0x0f != TYPE_ADVERTISEMENT {
        return Err(AdvertError::Type(version_type & 0x0f));
    }
    if count == 0 {
        return Err(AdvertError::NoAddresses);
    }
    let need = HEADER_LEN + 4 * usize::from(count);
    if have < need {
        return Err(AdvertError::Truncated { have, need });
    }
    if have > need {
        return Err(AdvertError::Trailing(have - need));
    }
    let form = match checksum::form_of(message, source, destination) {
        Some(form) => form,
        None if crate::mutants::off("checksum") => ChecksumForm::Message,
        None => return Err(AdvertError::Checksum),
    };
    let (words, _) = body.as_chunks::<4>();
    let addresses = words.iter().copied().map(Ipv4Addr::from).collect::<Vec<_>>();
    let advert = Advert {
        vrid: Vrid::new(vrid).map_err(|_| AdvertError::Vrid)?,
        priority: Priority::from_wire(priority),
        // Section 5.2.6: the four reserved bits are ignored.
        interval: AdvertInterval::from_cs(u16::from_be_bytes([interval_high & 0x0f, interval_low]))
            .map_err(|_| AdvertError::Interval)?,
        addresses: Addresses::new(addresses).map_err(|_| AdvertError::NoAddresses)?,
    };
    Ok((advert, form))
}

/// The fields of an IPv4 packet that matter here.
struct Ipv4<'a> {
    protocol: u8,
    ttl: u8,
    fragment: bool,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    fn parse(packet: &'a [u8]) -> Result<Self, AdvertError> {
        let have = packet.len();
        let (&[version_ihl, _, tl1, tl0, _, _, frag1, frag0, ttl, protocol, _, _, s3, s2, s1, s0, d3, d2, d1, d0], _) =
            packet
                .split_first_chunk::<IPV4_HEADER_MIN>()
                .ok_or(AdvertError::Truncated { have, need: IPV4_HEADER_MIN })?;
        let header_len = usize::from(version_ihl & 0x0f) * 4;
        let total_len = usize::from(u16::from_be_bytes([tl1, tl0]));
        if version_ihl >> 4 != 4 || header_len < IPV4_HEADER_MIN || total_len < header_len {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 4] = [10, 0, 0, 1];

    /// VRID 10, priority 254, 10 cs, one address; its checksum follows from `message`.
    const GOOD: [u8; 12] = [0x31, 10, 254, 1, 0, 10, 0, 0, 192, 0, 2, 10];

    fn message(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut message = GOOD.to_vec();
        change(&mut message);
        if message.len() >= HEADER_LEN {
            let checksum = checksum::of_message(&message);
            message[6..8].copy_from_slice(&checksum);
        }
        message
    }

    fn packet(message: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let total = u8::try_from(IPV4_HEADER_MIN + message.len()).unwrap();
        let mut packet = vec![0x45, 0xc0, 0, total, 0, 1, 0x40, 0, TTL, VRRP_PROTOCOL, 0, 0];
        packet.extend(SOURCE);
        packet.extend(MULTICAST_GROUP.octets());
        packet.extend(message);
        change(&mut packet);
        packet
    }

    fn with_ip(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        packet(&message(|_| {}), change)
    }

    fn with_message(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        packet(&message(change), |_| {})
    }

    /// RFC 9568 section 7.1 and the header fields of section 5: one row or more for each refusal.
    fn refusals() -> Vec<(&'static str, Vec<u8>, AdvertError)> {
        use AdvertError as E;
        vec![
            ("nothing", vec![], E::Truncated { have: 0, need: 20 }),
            ("half an IP header", with_ip(|p| p.truncate(19)), E::Truncated { have: 19, need: 20 }),
            ("IPv6", with_ip(|p| p[0] = 0x65), E::IpHeader),
            ("IHL below 5", with_ip(|p| p[0] = 0x44), E::IpHeader),
            ("total length inside the header", with_ip(|p| p[3] = 19), E::IpHeader),
            ("options beyond the total length", with_ip(|p| p[0] = 0x4f), E::IpHeader),
            ("total length beyond the packet", with_ip(|p| p[3] = 33), E::Truncated { have: 32, need: 33 }),
            ("UDP", with_ip(|p| p[9] = 17), E::Protocol(17)),
            ("first fragment", with_ip(|p| p[6] = 0x20), E::Fragment),
            ("last fragment", with_ip(|p| p[7] = 1), E::Fragment),
            ("TTL 254", with_ip(|p| p[8] = 254), E::Ttl(254)),
            ("TTL 0", with_ip(|p| p[8] = 0), E::Ttl(0)),
            ("from nowhere", with_ip(|p| p[12..16].fill(0)), E::Source(Ipv4Addr::UNSPECIFIED)),
            ("from a group", with_ip(|p| p[12] = 224), E::Source(Ipv4Addr::new(224, 0, 0, 1))),
            ("from everybody", with_ip(|p| p[12..16].fill(255)), E::Source(Ipv4Addr::BROADCAST)),
            ("no message", packet(&[], |_| {}), E::Truncated { have: 0, need: 8 }),
            ("half a header", with_message(|m| m.truncate(7)), E::Truncated { have: 7, need: 8 }),
            ("VRRPv2", with_message(|m| m[0] = 0x21), E::Version2),
            ("VRRPv4", with_message(|m| m[0] = 0x41), E::Version(4)),
            ("version 0", with_message(|m| m[0] = 0x01), E::Version(0)),
            ("type 0", with_message(|m| m[0] = 0x30), E::Type(0)),
            ("type 2", with_message(|m| m[0] = 0x32), E::Type(2)),
            ("count 0", with_message(|m| m[3] = 0), E::NoAddresses),
            ("count 2 of 1", with_message(|m| m[3] = 2), E::Truncated { have: 12, need: 16 }),
            ("count 255 of 1", with_message(|m| m[3] = 255), E::Truncated { have: 12, need: 1028 }),
            ("a trailer", with_message(|m| m.extend([0; 8])), E::Trailing(8)),
            ("one bit", with_ip(|p| p[31] ^= 1), E::Checksum),
            ("VRID 0", with_message(|m| m[1] = 0), E::Vrid),
            ("interval 0", with_message(|m| m[5] = 0), E::Interval),
            ("interval 0 under reserved bits", with_message(|m| m[4..6].copy_from_slice(&[0xf0, 0])), E::Interval),
        ]
    }

    #[test]
    fn every_malformed_packet_is_refused_by_its_own_error() {
        for (name, packet, error) in refusals() {
            assert_eq!(decode_packet(&packet), Err(error), "{name}");
        }
    }

    #[test]
    fn every_counter_has_a_refusal_and_its_own_name() {
        let seen: std::collections::BTreeSet<_> = refusals().iter().map(|(_, _, error)| error.counter()).collect();
        let names: std::collections::BTreeSet<_> = AdvertError::COUNTERS.into_iter().collect();
        assert_eq!(names.len(), AdvertError::COUNTERS.len(), "no name stands twice");
        assert_eq!(seen, names);
    }

    #[test]
    fn the_unchanged_packet_is_accepted() {
        let received = decode_packet(&with_ip(|_| {})).unwrap();
        assert_eq!((received.source, received.destination, received.ttl), (SOURCE.into(), MULTICAST_GROUP, 255));
        assert_eq!((received.advert.vrid.get(), received.advert.priority.get()), (10, 254));
        assert_eq!(received.advert.interval.cs(), 10);
        assert_eq!(*received.advert.addresses, [Ipv4Addr::new(192, 0, 2, 10)]);
    }

    #[test]
    fn the_old_checksum_is_accepted_and_told_apart() {
        let mut message = message(|_| {});
        // The pseudo-header by hand: 10.0.0.1 + 224.0.0.18 + 112 + 12 = 0a00+0001+e000+0012+0070+000c = ea8f.
        let plain = u32::from(u16::from_be_bytes([message[6], message[7]]));
        let with_pseudo = (plain + (0xffff - 0xea8f)) % 0xffff;
        message[6..8].copy_from_slice(&u16::try_from(with_pseudo).unwrap().to_be_bytes());
        assert_eq!(decode_packet(&packet(&message, |_| {})).unwrap().checksum, ChecksumForm::PseudoHeader);
        // The pseudo-header is that of this packet, no other.
        assert_eq!(decode_packet(&packet(&message, |p| p[15] = 2)), Err(AdvertError::Checksum));
    }

    #[test]
    fn a_refusal_says_what_was_wrong() {
        assert_eq!(AdvertError::Ttl(64).to_string(), "TTL 64, must be 255");
        assert_eq!(AdvertError::Truncated { have: 7, need: 8 }.to_string(), "truncated: 7 bytes where 8 are needed");
    }
}

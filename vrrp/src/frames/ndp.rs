//! Neighbour discovery (RFC 4861): what announces an IPv6 address, and what asks for one.

use std::net::Ipv6Addr;

use pnet_packet::Packet;
use pnet_packet::ethernet::{EtherTypes, EthernetPacket, MutableEthernetPacket};
use pnet_packet::icmpv6::ndp::{
    MutableNdpOptionPacket, MutableNeighborAdvertPacket, MutableNeighborSolicitPacket, NdpOptionType,
    NeighborAdvertPacket,
};
use pnet_packet::icmpv6::{Icmpv6Code, Icmpv6Packet, Icmpv6Type, Icmpv6Types, MutableIcmpv6Packet, checksum};
use pnet_packet::ip::IpNextHeaderProtocols;
use pnet_packet::ipv6::{Ipv6Packet, MutableIpv6Packet};

use super::{ETHERNET_LEN, Mac};

/// Ethernet and IPv6 header, and an advertisement or solicitation with one link-layer address option.
pub const ND_FRAME_LEN: usize = ETHERNET_LEN + IPV6_LEN + ND_LEN;

const IPV6_LEN: usize = 40;
/// Both messages have their options after the target.
const MESSAGE_LEN: usize = 24;
const OPTION_LEN: usize = 8;
const ND_LEN: usize = MESSAGE_LEN + OPTION_LEN;
/// What proves that a message wasn't forwarded (section 7.1).
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// An unsolicited neighbour advertisement: "`address` is at `mac`", told to all nodes. Router and Override set,
/// Solicited not (RFC 9568 section 6.4.2 with RFC 4861 section 7.2.6).
pub fn unsolicited_na(mac: Mac, address: Ipv6Addr) -> [u8; ND_FRAME_LEN] {
    frame(mac, address, ALL_NODES, |message| {
        let mut na = MutableNeighborAdvertPacket::new(message).expect("the message holds an advertisement");
        na.set_icmpv6_type(Icmpv6Types::NeighborAdvert);
        na.set_flags(ROUTER | OVERRIDE);
        na.set_target_addr(address);
        TARGET_LINK_ADDRESS
    })
}

/// "Who has `target`? Tell `source` at `mac`", to the target's solicited-node group. `source` is an address of ours,
/// never the unspecified one: this is no duplicate address detection.
pub fn neighbour_solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> [u8; ND_FRAME_LEN] {
    frame(mac, source, solicited_node(target), |message| {
        let mut ns = MutableNeighborSolicitPacket::new(message).expect("the message holds a solicitation");
        ns.set_icmpv6_type(Icmpv6Types::NeighborSolicit);
        ns.set_target_addr(target);
        SOURCE_LINK_ADDRESS
    })
}

/// The group that the owner of an address listens to: `ff02::1:ffXX:XXXX` (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a & 0xff, b)
}

/// The link address of a group (RFC 2464 section 7).
const fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// A frame to a group around a message that `write` makes; it returns the type of the link-layer address option.
fn frame(mac: Mac, source: Ipv6Addr, destination: Ipv6Addr, write: impl FnOnce(&mut [u8]) -> u8) -> [u8; ND_FRAME_LEN] {
    let mut frame = [0; ND_FRAME_LEN];
    let (head, rest) = frame.split_at_mut(ETHERNET_LEN);
    let mut ethernet = MutableEthernetPacket::new(head).expect("the head is an Ethernet header long");
    ethernet.set_destination(group_mac(destination).into());
    ethernet.set_source(mac.into());
    ethernet.set_ethertype(EtherTypes::Ipv6);
    let (head, message) = rest.split_at_mut(IPV6_LEN);
    let mut ip = MutableIpv6Packet::new(head).expect("the head is an IPv6 header long");
    ip.set_version(6);
    ip.set_payload_length(u16::try_from(ND_LEN).expect("32 fits 16 bits"));
    ip.set_next_header(IpNextHeaderProtocols::Icmpv6);
    ip.set_hop_limit(HOP_LIMIT);
    ip.set_source(source);
    ip.set_destination(destination);
    let (body, option) = message.split_at_mut(MESSAGE_LEN);
    let option_type = write(body);
    let mut link_address = MutableNdpOptionPacket::new(option).expect("the rest is an option long");
    link_address.set_option_type(NdpOptionType(option_type));
    link_address.set_length(1);
    link_address.set_data(&mac);
    let mut icmp = MutableIcmpv6Packet::new(message).expect("the message begins with an ICMPv6 header");
    icmp.set_checksum(checksum(&icmp.to_immutable(), &source, &destination));
    frame
}

/// A neighbour solicitation or advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Asks or tells.
    pub kind: Kind,
    /// Who sent it; unspecified: it tries out whether the target is free.
    pub source: Ipv6Addr,
    /// The address asked for, or told of.
    pub target: Ipv6Addr,
    /// The link address in the option that belongs to the kind, if there is one.
    pub mac: Option<Mac>,
}

/// What a neighbour message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Who has it?
    Solicitation,
    /// I have it.
    Advertisement {
        /// The sender is a router.
        router: bool,
        /// It answers a question.
        solicited: bool,
        /// It replaces what neighbours remember.
        overrides: bool,
    },
}

impl Neighbour {
    /// Whether it says that somebody has `target`, asked or unasked.
    pub fn answers(&self, target: Ipv6Addr) -> bool {
        matches!(self.kind, Kind::Advertisement { .. }) && self.target == target
    }
}

/// Reads an untagged Ethernet frame. `None`: no neighbour solicitation or advertisement, or not a valid one (RFC 4861
/// sections 7.1.1 and 7.1.2: hop limit 255, checksum, code 0, no option of length 0). Padding is tolerated.
pub fn parse_nd(frame: &[u8]) -> Option<Neighbour> {
    let ethernet = EthernetPacket::new(frame)?;
    if ethernet.get_ethertype() != EtherTypes::Ipv6 {
        return None;
    }
    let ip = Ipv6Packet::new(ethernet.payload())?;
    if ip.get_version() != 6 || ip.get_next_header() != IpNextHeaderProtocols::Icmpv6 || ip.get_hop_limit() != HOP_LIMIT
    {
        return None;
    }
    let (source, destination) = (ip.get_source(), ip.get_destination());
    let message = ip.packet().get(IPV6_LEN..IPV6_LEN + usize::from(ip.get_payload_length()))?;
    let icmp = Icmpv6Packet::new(message)?;
    let right = checksum(&icmp, &source, &destination) == icmp.get_checksum();
    if !right || icmp.get_icmpv6_code() != Icmpv6Code(0) || source.is_multicast() {
        return None;
    }
    // Both kinds have the target in the same place.
    let advert = NeighborAdvertPacket::new(message)?;
    let target = advert.get_target_addr();
    if target.is_multicast() {
        return None;
    }
    let (kind, option) = kind(icmp.get_icmpv6_type(), advert.get_flags())?;
    Some(Neighbour { kind, source, target, mac: link_address(message.get(MESSAGE_LEN..)?, option)? })
}

/// Like [`parse_nd`], advertisements only.
pub fn parse_na(frame: &[u8]) -> Option<Neighbour> {
    parse_nd(frame).filter(|neighbour| neighbour.kind != Kind::Solicitation)
}

fn kind(icmpv6_type: Icmpv6Type, flags: u8) -> Option<(Kind, u8)> {
    match icmpv6_type {
        Icmpv6Types::NeighborSolicit => Some((Kind::Solicitation, SOURCE_LINK_ADDRESS)),
        Icmpv6Types::NeighborAdvert => {
            let kind = Kind::Advertisement {
                router: flags & ROUTER != 0,
                solicited: flags & SOLICITED != 0,
                overrides: flags & OVERRIDE != 0,
            };
            Some((kind, TARGET_LINK_ADDRESS))
        }
        _ => None,
    }
}

/// The link address in the first option of this type; outer `None`: an option that can't be. By hand, since the parser
/// of pnet_packet multiplies an option's length in 8 bits, which overflows with a length of 32 units or more.
fn link_address(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let [option_type, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * OPTION_LEN)?;
        let body = option.get(2..)?;
        if option_type == wanted && found.is_none() {
            found = body.first_chunk::<6>().copied();
        }
        options = rest;
    }
    options.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Mac = [2, 0, 0, 0, 0, 1];
    const OUR_IP: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const VIP: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x1234, 0x5678);

    /// A valid frame with one byte changed and the checksum put right again.
    fn changed(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
        frame[at] = value;
        let source = Ipv6Addr::from(<[u8; 16]>::try_from(&frame[22..38]).unwrap());
        let destination = Ipv6Addr::from(<[u8; 16]>::try_from(&frame[38..54]).unwrap());
        let sum = checksum(&Icmpv6Packet::new(&frame[54..]).unwrap(), &source, &destination);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn an_unsolicited_advertisement_tells_all_nodes_and_overrides() {
        let frame = unsolicited_na(US, VIP);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[6..12], US);
        assert_eq!(frame[21], 255, "hop limit");
        assert_eq!(frame[38..54], ALL_NODES.octets());
        assert_eq!(frame[54], 136);
        let kind = Kind::Advertisement { router: true, solicited: false, overrides: true };
        let na = parse_na(&frame).unwrap();
        assert_eq!(na, Neighbour { kind, source: VIP, target: VIP, mac: Some(US) });
        assert!(na.answers(VIP));
        assert!(!na.answers(OUR_IP));
    }

    #[test]
    fn a_solicitation_asks_the_group_of_its_target() {
        let frame = neighbour_solicitation(US, OUR_IP, VIP);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x34, 0x56, 0x78]);
        assert_eq!(frame[38..54], "ff02::1:ff34:5678".parse::<Ipv6Addr>().unwrap().octets());
        let asked = Neighbour { kind: Kind::Solicitation, source: OUR_IP, target: VIP, mac: Some(US) };
        assert_eq!(parse_nd(&frame), Some(asked));
        assert!(!asked.answers(VIP), "a question is no answer");
        assert_eq!(parse_na(&frame), None);
    }

    #[test]
    fn what_is_no_valid_neighbour_message_is_nothing() {
        let na = || unsolicited_na(US, VIP).to_vec();
        // (offset, value): ethertype, version, next header, hop limit, from a group, type, code, target a group,
        // option of length 0, option beyond the end.
        for (at, value) in [
            (12, 8),
            (14, 0x40),
            (20, 17),
            (21, 254),
            (22, 0xff),
            (54, 134),
            (55, 1),
            (62, 0xff),
            (79, 0),
            (79, 2),
            (79, 32),
            (79, 255),
        ] {
            assert_eq!(parse_nd(&changed(na(), at, value)), None, "byte {at} = {value}");
        }
        let mut wrong = na();
        wrong[60] ^= 1;
        assert_eq!(parse_nd(&wrong), None, "a bit, and the checksum as it was");
        assert!(parse_nd(&changed(na(), 60, 0)).is_some(), "the change itself leaves a valid frame");
    }

    #[test]
    fn an_option_of_another_type_is_skipped() {
        let other = changed(unsolicited_na(US, VIP).to_vec(), 78, 14);
        assert_eq!(parse_na(&other).unwrap().mac, None);
    }

    #[test]
    fn a_frame_cut_short_anywhere_is_nothing_and_padding_is_tolerated() {
        let mut frame = unsolicited_na(US, VIP).to_vec();
        for length in 0..ND_FRAME_LEN {
            assert_eq!(parse_nd(&frame[..length]), None, "{length} bytes");
        }
        frame.resize(120, 0xa5);
        assert!(parse_nd(&frame).is_some());
    }
}

//! Ethernet frames that announce an address and ask for one: ARP (RFC 826, RFC 5227).
//!
//! What IPv6 needs (unsolicited neighbour advertisements, RFC 4861) will stand beside these with the same form: a
//! function from addresses to a frame, and a total parser. The link address is a parameter, since it may change at any
//! time: the caller reads it when it sends.

use std::net::Ipv4Addr;

use pnet_packet::Packet;
use pnet_packet::arp::{ArpHardwareTypes, ArpOperation, ArpOperations, ArpPacket, MutableArpPacket};
use pnet_packet::ethernet::{EtherTypes, EthernetPacket, MutableEthernetPacket};

/// A link address.
pub type Mac = [u8; 6];

/// Where requests for everybody go.
pub const BROADCAST: Mac = [0xff; 6];

/// Ethernet header and ARP for IPv4, without padding.
pub const ARP_FRAME_LEN: usize = ETHERNET_LEN + ARP_LEN;

const ETHERNET_LEN: usize = 14;
const ARP_LEN: usize = 28;

/// A gratuitous ARP: "`address` is at `mac`", told to all. A request whose sender and target address are the same
/// (RFC 5227 section 2.3), which more neighbours honour than a reply.
pub fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> [u8; ARP_FRAME_LEN] {
    arp_request(mac, address, address)
}

/// "Who has `target`? Tell `source` at `mac`", to all.
pub fn arp_request(mac: Mac, source: Ipv4Addr, target: Ipv4Addr) -> [u8; ARP_FRAME_LEN] {
    let mut frame = [0; ARP_FRAME_LEN];
    let (head, body) = frame.split_at_mut(ETHERNET_LEN);
    let mut ethernet = MutableEthernetPacket::new(head).expect("the head is an Ethernet header long");
    ethernet.set_destination(BROADCAST.into());
    ethernet.set_source(mac.into());
    ethernet.set_ethertype(EtherTypes::Arp);
    let mut arp = MutableArpPacket::new(body).expect("the body is an ARP packet long");
    arp.set_hardware_type(ArpHardwareTypes::Ethernet);
    arp.set_protocol_type(EtherTypes::Ipv4);
    arp.set_hw_addr_len(6);
    arp.set_proto_addr_len(4);
    arp.set_operation(ArpOperations::Request);
    arp.set_sender_hw_addr(mac.into());
    arp.set_sender_proto_addr(source);
    // The target's link address is what is asked for: zero (RFC 5227 section 2.1.1).
    arp.set_target_hw_addr([0; 6].into());
    arp.set_target_proto_addr(target);
    frame
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Asks or answers.
    pub operation: Operation,
    /// The sender's link address.
    pub sender_mac: Mac,
    /// The sender's address: it says that it has it.
    pub sender: Ipv4Addr,
    /// The target's link address; means nothing in a request.
    pub target_mac: Mac,
    /// The address asked for, or the asker's.
    pub target: Ipv4Addr,
}

/// What an ARP packet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Who has it?
    Request,
    /// I have it.
    Reply,
}

impl Arp {
    /// Whether it answers a question for `target`.
    pub fn answers(&self, target: Ipv4Addr) -> bool {
        self.operation == Operation::Reply && self.sender == target
    }
}

/// Reads an untagged Ethernet frame. `None`: not ARP for IPv4 over Ethernet, or cut short. Padding is tolerated.
pub fn parse_arp(frame: &[u8]) -> Option<Arp> {
    let ethernet = EthernetPacket::new(frame)?;
    if ethernet.get_ethertype() != EtherTypes::Arp {
        return None;
    }
    let arp = ArpPacket::new(ethernet.payload())?;
    let ipv4_over_ethernet = arp.get_hardware_type() == ArpHardwareTypes::Ethernet
        && arp.get_protocol_type() == EtherTypes::Ipv4
        && arp.get_hw_addr_len() == 6
        && arp.get_proto_addr_len() == 4;
    if !ipv4_over_ethernet {
        return None;
    }
    Some(Arp {
        operation: operation(arp.get_operation())?,
        sender_mac: arp.get_sender_hw_addr().octets(),
        sender: arp.get_sender_proto_addr(),
        target_mac: arp.get_target_hw_addr().octets(),
        target: arp.get_target_proto_addr(),
    })
}

/// Like [`parse_arp`], replies only.
pub fn parse_arp_reply(frame: &[u8]) -> Option<Arp> {
    parse_arp(frame).filter(|arp| arp.operation == Operation::Reply)
}

fn operation(operation: ArpOperation) -> Option<Operation> {
    match operation {
        ArpOperations::Request => Some(Operation::Request),
        ArpOperations::Reply => Some(Operation::Reply),
        _ => None,
    }
}

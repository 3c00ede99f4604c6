//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::Ipv4Addr;

use pnet_packet::Packet;
use pnet_packet::arp::{ArpHardwareTypes, ArpOperation, ArpOperations, ArpPacket, MutableArpPacket};
use pnet_packet::ethernet::{EtherTypes, EthernetPacket, MutableEthernetPacket};

use super::{BROADCAST, ETHERNET_LEN, Mac};

/// Ethernet header and ARP for IPv4, without padding.
pub const ARP_FRAME_LEN: usize = ETHERNET_LEN + ARP_LEN;

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

#[cfg(test)]
mod tests {
    use super::*;

    const US: Mac = [2, 0, 0, 0, 0, 1];
    const THEM: Mac = [2, 0, 0, 0, 0, 2];
    const OUR_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

    /// THEM's answer to a question of ours for the VIP, padded as a driver hands it over.
    fn reply() -> Vec<u8> {
        let mut frame = arp_request(THEM, VIP, OUR_IP).to_vec();
        frame[..6].copy_from_slice(&US);
        frame[20..22].copy_from_slice(&[0, 2]);
        frame[32..38].copy_from_slice(&US);
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn a_gratuitous_arp_is_a_request_for_the_address_from_the_address() {
        let frame = gratuitous_arp(US, VIP);
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[..6], BROADCAST);
        assert_eq!(frame[6..12], US);
        let arp = parse_arp(&frame).unwrap();
        assert_eq!(arp.operation, Operation::Request);
        assert_eq!((arp.sender_mac, arp.sender, arp.target), (US, VIP, VIP));
    }

    #[test]
    fn a_probe_asks_everybody_from_our_address() {
        let arp = parse_arp(&arp_request(US, OUR_IP, VIP)).unwrap();
        assert_eq!(
            arp,
            Arp { operation: Operation::Request, sender_mac: US, sender: OUR_IP, target_mac: [0; 6], target: VIP }
        );
        assert_eq!(parse_arp_reply(&arp_request(US, OUR_IP, VIP)), None, "a question is no answer");
    }

    #[test]
    fn a_reply_answers_for_its_sender_only() {
        let arp = parse_arp_reply(&reply()).unwrap();
        assert_eq!((arp.sender_mac, arp.target_mac), (THEM, US));
        assert!(arp.answers(VIP));
        assert!(!arp.answers(OUR_IP));
    }

    #[test]
    fn what_is_not_arp_for_ipv4_over_ethernet_is_nothing() {
        // (offset, value) that spoils a good reply: ethertype, hardware, protocol, both lengths, operation.
        for (at, value) in [(12, 0x86), (15, 6), (16, 0x86), (18, 8), (19, 16), (21, 3), (21, 0)] {
            let mut frame = reply();
            frame[at] = value;
            assert_eq!(parse_arp(&frame), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn a_frame_cut_short_anywhere_is_nothing() {
        for length in 0..ARP_FRAME_LEN {
            assert_eq!(parse_arp(&reply()[..length]), None, "{length} bytes");
        }
        assert!(parse_arp(&reply()[..ARP_FRAME_LEN]).is_some());
    }
}

//! Ethernet frames that announce an address and ask for one: ARP (RFC 826, RFC 5227) for IPv4, neighbour discovery
//! (RFC 4861) for IPv6.
//!
//! Each has the same form: a function from addresses to a frame, and a total parser. The link address is a parameter,
//! since it may change at any time: the caller reads it when it sends.

mod arp;
mod ndp;

pub use arp::{ARP_FRAME_LEN, Arp, Operation, arp_request, gratuitous_arp, parse_arp, parse_arp_reply};
pub use ndp::{
    Kind, ND_FRAME_LEN, Neighbour, neighbour_solicitation, parse_na, parse_nd, solicited_node, unsolicited_na,
};

/// A link address.
pub type Mac = [u8; 6];

/// Where requests for everybody go.
pub const BROADCAST: Mac = [0xff; 6];

const ETHERNET_LEN: usize = 14;

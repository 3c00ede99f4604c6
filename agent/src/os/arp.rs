//! Tells the segment where an address lives, and asks it who has one.
//!
//! What this module refuses to do: turn promiscuous mode on; keep a socket that receives frames nobody reads; send
//! more than it was asked for (repetition and pacing are the node's).

use super::asyncfd::AsyncDescriptor;
use holdfast_node::io::ProbeOutcome;
use holdfast_vrrp::frames::{Mac, arp_request, gratuitous_arp, parse_arp_reply};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use pnet::datalink::{self, Channel, ChannelType, DataLinkSender, NetworkInterface};
use pnet::packet::ethernet::{EtherTypes, MutableEthernetPacket};
use pnet::packet::icmpv6::ndp::{MutableNdpOptionPacket, MutableNeighborAdvertPacket, NdpOptionTypes};
use pnet::packet::icmpv6::{self, Icmpv6Packet, Icmpv6Types};
use pnet::packet::ip::IpNextHeaderProtocols;
use pnet::packet::ipv6::MutableIpv6Packet;
use pnet::util::MacAddr;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Ethernet, IPv6, neighbour advertisement, target link-layer address option.
const NA_FRAME: usize = 14 + 40 + 24 + 8;
/// ff02::1
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Announces addresses; keeps one sending channel per interface.
#[derive(Default)]
pub struct Announcer {
    channels: BTreeMap<u32, Announcing>,
}

struct Announcing {
    /// The same socket as in `sender`: asked for the link address at each frame.
    socket: OwnedFd,
    sender: Box<dyn DataLinkSender>,
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").field("interfaces", &self.channels.keys()).finish()
    }
}

impl Announcer {
    /// Without any channel yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends one gratuitous ARP request (or unsolicited neighbour advertisement) for `ip` with the link address that
    /// the interface has now. Never blocks; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// `ENODEV` or `ENXIO` when the interface is gone, `ENETDOWN` when it's down, `ENOBUFS` when the send queue is
    /// full. The channel is opened anew at the next call.
    pub fn announce(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<()> {
        let channel = match self.channels.entry(ifindex) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(none) => none.insert(Announcing::open(ifindex)?),
        };
        let result = channel.announce(ip);
        if result.is_err() {
            self.channels.remove(&ifindex);
        }
        result
    }

    /// Closes the channel of an interface.
    pub fn forget(&mut self, ifindex: u32) {
        self.channels.remove(&ifindex);
    }
}

impl Announcing {
    fn open(ifindex: u32) -> io::Result<Self> {
        // Protocol 0: the socket receives nothing at all.
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        let interface = NetworkInterface {
            name: String::new(),
            description: String::new(),
            index: ifindex,
            mac: None,
            ips: Vec::new(),
            flags: 0,
        };
        let config = datalink::Config {
            write_buffer_size: 256,
            read_buffer_size: 0,
            // Full queue: an error, not a wait.
            write_timeout: Some(Duration::ZERO),
            // pnet binds to this protocol; the frames carry their own.
            channel_type: ChannelType::Layer3(0),
            promiscuous: false,
            // pnet closes it, also on failure.
            socket_fd: Some(socket.try_clone()?.into_raw_fd()),
            ..datalink::Config::default()
        };
        match datalink::channel(&interface, config)? {
            Channel::Ethernet(sender, _receiver) => Ok(Self { socket, sender }),
            _ => Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)),
        }
    }

    fn announce(&mut self, ip: IpAddr) -> io::Result<()> {
        let mac = link_address(&self.socket)?;
        let sent = match ip {
            IpAddr::V4(ip) => self.sender.send_to(&gratuitous_arp(mac, ip), None),
            IpAddr::V6(ip) => self.sender.send_to(&neighbour_advertisement(mac, ip), None),
        };
        match sent {
            Some(Err(e)) if e.kind() == io::ErrorKind::TimedOut => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Some(result) => result,
            None => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
        }
    }
}

/// Who has `target`? Sends up to `tries` ARP requests from `source`, waits `wait` for an answer to each, and tells
/// whether the target itself answered; if not, whether any of the `others`, who were asked at the same time, did. Must
/// be called inside a tokio runtime; needs CAP_NET_RAW.
///
/// # Errors
/// Whatever the system says about the socket or the first send.
pub async fn probe(
    ifindex: u32,
    source: Ipv4Addr,
    target: Ipv4Addr,
    others: &[Ipv4Addr],
    tries: u8,
    wait: Duration,
) -> io::Result<ProbeOutcome> {
    let fd = arp_socket(ifindex)?;
    let mac = link_address(&fd)?;
    let socket = AsyncDescriptor::new(fd)?;
    let mut buffer = [0; 128];
    let mut outcome = ProbeOutcome::Nobody;
    for _ in 0..tries {
        for asked in std::iter::once(&target).chain(others) {
            send(socket.as_raw_fd(), &arp_request(mac, source, *asked), MsgFlags::MSG_DONTWAIT)?;
        }
        let deadline = Instant::now() + wait;
        // Bounded by the deadline: other frames are skipped.
        loop {
            let read = socket.read(|fd| Ok(recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?));
            let Ok(read) = timeout_at(deadline, read).await else { break };
            let frame = buffer.get(..read?).unwrap_or_default();
            if answers(frame, mac, source, target) {
                return Ok(ProbeOutcome::Target);
            }
            if others.iter().any(|other| answers(frame, mac, source, *other)) {
                outcome = ProbeOutcome::Others;
            }
        }
    }
    Ok(outcome)
}

/// An ARP socket on the interface: receives ARP frames addressed to us or to all, nothing else.
fn arp_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // Protocol 0 until it's bound, or it would take the frames of every interface meanwhile.
    let fd = socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)?;
    bind_packet(&fd, ifindex, libc::ETH_P_ARP)?;
    Ok(fd)
}

fn bind_packet(fd: &OwnedFd, ifindex: u32, protocol: i32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: u16::try_from(protocol).unwrap_or_default().to_be(),
        sll_ifindex: i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("twenty bytes");
    // SAFETY: the pointer is to a live sockaddr_ll and the length is its size; the kernel only reads it.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The link address, now, of the interface to which a packet socket is bound.
fn link_address(socket: &OwnedFd) -> io::Result<Mac> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll, which holds integers only.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("twenty bytes");
    // SAFETY: the kernel writes at most `length` bytes to the live `address` and the number of bytes to `length`.
    let rc = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    match address.sll_addr {
        [a, b, c, d, e, f, _, _] if address.sll_halen == 6 => Ok([a, b, c, d, e, f]),
        // The interface is gone (or isn't Ethernet).
        _ => Err(io::Error::from_raw_os_error(libc::ENODEV)),
    }
}

/// Whether this frame is `target`'s answer to our request: a reply to us, from it, for the address that we asked from.
/// An announcement of the target isn't one: it doesn't show that our frames get through.
fn answers(frame: &[u8], mac: Mac, source: Ipv4Addr, target: Ipv4Addr) -> bool {
    parse_arp_reply(frame).is_some_and(|arp| {
        arp.answers(target) && arp.target == source && arp.target_mac == mac && arp.sender_mac != mac
    })
}

/// RFC 9568 section 6.4.2: unsolicited, to all nodes, R and O set, with the target's link-layer address.
fn neighbour_advertisement(mac: Mac, ip: Ipv6Addr) -> [u8; NA_FRAME] {
    let mut frame = [0; NA_FRAME];
    let mut ethernet = MutableEthernetPacket::new(&mut frame).expect("sized for it");
    ethernet.set_destination(MacAddr(0x33, 0x33, 0, 0, 0, 1));
    ethernet.set_source(mac.into());
    ethernet.set_ethertype(EtherTypes::Ipv6);
    let (_, packet) = frame.split_at_mut(14);
    let mut ipv6 = MutableIpv6Packet::new(packet).expect("sized for it");
    ipv6.set_version(6);
    ipv6.set_payload_length(32);
    ipv6.set_next_header(IpNextHeaderProtocols::Icmpv6);
    ipv6.set_hop_limit(255);
    ipv6.set_source(ip);
    ipv6.set_destination(ALL_NODES);
    let (_, message) = packet.split_at_mut(40);
    let mut option = MutableNdpOptionPacket::new(message.split_at_mut(24).1).expect("sized for it");
    option.set_option_type(NdpOptionTypes::TargetLLAddr);
    option.set_length(1);
    option.set_data(&mac);
    let mut advertisement = MutableNeighborAdvertPacket::new(message).expect("sized for it");
    advertisement.set_icmpv6_type(Icmpv6Types::NeighborAdvert);
    advertisement.set_flags(0b1010_0000);
    advertisement.set_target_addr(ip);
    let checksum = icmpv6::checksum(&Icmpv6Packet::new(message).expect("sized for it"), &ip, &ALL_NODES);
    MutableNeighborAdvertPacket::new(message).expect("sized for it").set_checksum(checksum);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn only_a_reply_of_the_target_to_us_is_an_answer() {
        let (us, them) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut reply = arp_request(OTHER, them, us);
        reply[21] = 2;
        assert!(!answers(&reply, MAC, us, them), "it must be addressed to our link address");
        reply[32..38].copy_from_slice(&MAC);
        assert!(answers(&reply, MAC, us, them));
        assert!(!answers(&reply, MAC, us, Ipv4Addr::new(10, 0, 0, 3)), "of another");
        assert!(!answers(&reply, MAC, Ipv4Addr::new(10, 0, 0, 9), them), "for another question");
        assert!(!answers(&gratuitous_arp(OTHER, them), MAC, us, them), "an announcement");
        reply[22..28].copy_from_slice(&MAC);
        assert!(!answers(&reply, MAC, us, them), "of our own interface");
    }

    #[test]
    fn a_neighbour_advertisement_sums_to_all_ones() {
        let ip: Ipv6Addr = "2001:db8::10".parse().expect("valid");
        let frame = neighbour_advertisement(MAC, ip);
        assert_eq!(frame[14 + 7], 255, "hop limit");
        assert_eq!(frame[14 + 40 + 4], 0xA0, "router and override");
        // RFC 8200 section 8.1: the pseudo-header and the message with its checksum sum to 0xffff.
        let mut sum = 32 + 58;
        for pair in frame[14 + 8..].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!(sum, 0xffff);
    }
}

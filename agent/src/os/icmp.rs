//! Echo requests: is there an answer from just this address, to just this question?
//!
//! What this module refuses to do: wait, repeat, or believe an answer with another identifier, source or content.

use super::asyncfd::AsyncDescriptor;
use super::link;
use super::netlink::set_option;
use nix::sys::socket::{MsgFlags, recv, send};
use rustix::rand::{GetRandomFlags, getrandom};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// What a request carries, and an answer has to bring back: sixteen random bytes.
const CONTENT: usize = 16;
/// Type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
const REQUEST: usize = HEADER + CONTENT;
/// Longer answers are cut, which makes them no answers.
const ANSWER_MAX: usize = 60 + REQUEST + 64;
/// An answer or two: the socket lives for one question.
const RECEIVE_BUFFER: usize = 16 * 1024;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
const ICMP: u8 = 1;
/// Option of raw sockets: bits of the types that are *not* wanted.
const ICMP_FILTER: i32 = 1;
const SOL_RAW: i32 = 255;

/// One question to one address, which may be repeated.
#[derive(Debug)]
pub struct Echo {
    socket: AsyncDescriptor,
    target: IpAddr,
    source: IpAddr,
    identifier: [u8; 2],
    content: [u8; CONTENT],
    sequence: u16,
}

impl Echo {
    /// A socket that sends from `source` over this interface only, and receives from `target` only. Must be called
    /// inside a tokio runtime; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: the source isn't an address of ours; `EPERM`; `ENODEV`; else what the system says.
    pub fn open(ifindex: u32, source: IpAddr, target: IpAddr) -> io::Result<Self> {
        let (domain, protocol) = match target {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
        if target.is_ipv4() {
            let unwanted = !(1_i32 << ECHO_REPLY);
            set_option(socket.as_fd(), SOL_RAW, ICMP_FILTER, unwanted)?;
        }
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.bind_device(Some(link::name(ifindex).as_bytes()))?;
        socket.bind(&address(source, ifindex))?;
        socket.connect(&address(target, ifindex))?;
        let mut random = [0; 2 + CONTENT];
        getrandom(&mut random, GetRandomFlags::NONBLOCK)?;
        let (identifier, content) = random.split_first_chunk::<2>().expect("more than two bytes");
        let content = content.first_chunk().expect("the rest");
        let (identifier, content) = (*identifier, *content);
        let socket = AsyncDescriptor::new(OwnedFd::from(socket))?;
        Ok(Self { socket, target, source, identifier, content, sequence: 0 })
    }

    /// Sends the next request.
    ///
    /// # Errors
    /// What the system says; `ENOBUFS` and `EAGAIN` when nothing can be queued now.
    pub fn ask(&mut self) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = [0; REQUEST];
        let kind = if self.target.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_V6 };
        let parts =
            [&[kind, 0, 0, 0][..], &self.identifier, &self.sequence.to_be_bytes(), self.content.as_slice()].concat();
        message.copy_from_slice(&parts);
        if self.target.is_ipv4() {
            // The kernel does it for IPv6, where it includes the addresses.
            let sum = checksum(&message);
            if let Some(field) = message.get_mut(2..4) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
        send(self.socket.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Waits for an answer to any of the requests; other packets are passed over. Cancel safe.
    ///
    /// # Errors
    /// What the socket says: `EHOSTUNREACH`, `ENETDOWN`, …
    pub async fn answered(&self) -> io::Result<()> {
        let mut buffer = [0; ANSWER_MAX];
        loop {
            let read = self.socket.read(|fd| Ok(recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?)).await?;
            let packet = buffer.get(..read).unwrap_or_default();
            let message = match (self.source, self.target) {
                (IpAddr::V4(source), IpAddr::V4(target)) => message_of(packet, target, source),
                // Without its header; the socket is connected, so it's from there.
                _ => Some(packet),
            };
            if message.is_some_and(|message| self.is_answer(message)) {
                return Ok(());
            }
        }
    }

    fn is_answer(&self, message: &[u8]) -> bool {
        let Some((head, content)) = message.split_first_chunk::<HEADER>() else { return false };
        let [kind, code, _, _, a, b, c, d] = *head;
        let expected = if self.target.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_V6 };
        // The kernel has checked the checksum of ICMPv6, and gives us ICMP before it does.
        let sums = self.target.is_ipv6() || checksum(message) == 0;
        let asked = 1..=self.sequence;
        (kind, code) == (expected, 0)
            && [a, b] == self.identifier
            && asked.contains(&u16::from_be_bytes([c, d]))
            && content == self.content
            && sums
    }
}

fn address(ip: IpAddr, ifindex: u32) -> SockAddr {
    match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, 0).into(),
        IpAddr::V6(six) => {
            let scope = if six.is_unicast_link_local() { ifindex } else { 0 };
            SocketAddrV6::new(six, 0, 0, scope).into()
        }
    }
}

/// The ICMP message in a whole IPv4 packet from `source` to `destination`; `None`: it's something else, or a fragment.
fn message_of(packet: &[u8], source: Ipv4Addr, destination: Ipv4Addr) -> Option<&[u8]> {
    let head: &[u8; 20] = packet.first_chunk()?;
    let [first, _, high, low, _, _, fragment, offset, _, protocol, _, _, a, b, c, d, e, f, g, h] = *head;
    let header = usize::from(first & 0x0f) * 4;
    let fits = first >> 4 == 4 && header >= 20 && protocol == ICMP && fragment & 0x3f == 0 && offset == 0;
    let between = Ipv4Addr::new(a, b, c, d) == source && Ipv4Addr::new(e, f, g, h) == destination;
    // Short frames arrive padded: the packet ends where it says.
    let end = usize::from(u16::from_be_bytes([high, low]));
    if fits && between { packet.get(header..end) } else { None }
}

/// RFC 1071; 0 over a message that carries its own.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        let word = [pair.first().copied().unwrap_or(0), pair.get(1).copied().unwrap_or(0)];
        sum += u32::from(u16::from_be_bytes(word));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const THEM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    async fn echo(source: IpAddr, target: IpAddr) -> Echo {
        // Any descriptor that can be waited for stands for the socket.
        let (one, _two) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        one.set_nonblocking(true).expect("set");
        let socket = AsyncDescriptor::new(one.into()).expect("registered");
        Echo { socket, target, source, identifier: [1, 2], content: [7; CONTENT], sequence: 3 }
    }

    fn reply(kind: u8, identifier: [u8; 2], sequence: u16, content: &[u8]) -> Vec<u8> {
        let mut message = [&[kind, 0, 0, 0][..], &identifier, &sequence.to_be_bytes(), content].concat();
        let sum = checksum(&message).to_be_bytes();
        message[2..4].copy_from_slice(&sum);
        message
    }

    #[tokio::test]
    async fn only_the_right_kind_identifier_sequence_content_and_checksum_is_an_answer() {
        let four = echo(US.into(), THEM.into()).await;
        let content = [7; CONTENT];
        for sequence in 1..=3 {
            assert!(four.is_answer(&reply(ECHO_REPLY, [1, 2], sequence, &content)));
        }
        for sequence in [0, 4, u16::MAX] {
            assert!(!four.is_answer(&reply(ECHO_REPLY, [1, 2], sequence, &content)), "never asked: {sequence}");
        }
        assert!(!four.is_answer(&reply(ECHO_REQUEST, [1, 2], 1, &content)), "a request");
        assert!(!four.is_answer(&reply(ECHO_REPLY_V6, [1, 2], 1, &content)), "of the other family");
        assert!(!four.is_answer(&reply(ECHO_REPLY, [2, 1], 1, &content)), "another's");
        assert!(!four.is_answer(&reply(ECHO_REPLY, [1, 2], 1, &[8; CONTENT])), "other content");
        assert!(!four.is_answer(&reply(ECHO_REPLY, [1, 2], 1, &content[1..])), "cut");
        let mut damaged = reply(ECHO_REPLY, [1, 2], 1, &content);
        damaged[2] ^= 1;
        assert!(!four.is_answer(&damaged), "damaged");
        let six = echo(std::net::Ipv6Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into()).await;
        assert!(six.is_answer(&reply(ECHO_REPLY_V6, [1, 2], 1, &content)));
        assert!(!six.is_answer(&reply(ECHO_REPLY, [1, 2], 1, &content)));
    }

    #[test]
    fn a_packet_is_opened_only_if_it_is_whole_and_between_the_two() {
        let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0x40, 0, 64, ICMP, 0, 0];
        packet.extend(THEM.octets());
        packet.extend(US.octets());
        packet.extend([1, 2, 3, 4]);
        assert_eq!(message_of(&packet, THEM, US), Some(&[1, 2, 3, 4][..]));
        assert_eq!(message_of(&packet, US, THEM), None, "the other way round");
        packet.extend([0; 22]);
        assert_eq!(message_of(&packet, THEM, US), Some(&[1, 2, 3, 4][..]), "padding is not part of it");
        for (at, value) in [(0, 0x65), (0, 0x44), (6, 0x20), (7, 1), (9, 17), (3, 200)] {
            let mut other = packet.clone();
            other[at] = value;
            assert_eq!(message_of(&other, THEM, US), None, "byte {at} = {value}");
        }
        (0..24).for_each(|n| assert_eq!(message_of(&packet[..n], THEM, US), None, "cut after {n} bytes"));
    }

    #[test]
    fn the_checksum_of_the_rfcs_example_is_its_own() {
        // RFC 1071 section 3: 0001 f203 f4f5 f6f7 sum to ddf2.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    proptest! {
        #[test]
        fn no_packet_makes_the_parser_panic(packet in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = message_of(&packet, THEM, US);
            let _ = checksum(&packet);
        }
    }
}

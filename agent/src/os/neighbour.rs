//! Who else the kernel knows on a segment: its neighbour table.

use super::addr::parse_ip;
use super::netlink::{Message, NetlinkSocket, attributes};
use super::vrrp::Family;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::IpAddr;

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// `struct ndmsg`: family, padding, interface index, state, flags, type.
const HEADER: usize = 12;
const NDA_DST: u16 = 1;
const NDA_IFINDEX: u16 = 8;
/// States in which the kernel once had an answer from the neighbour.
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;

/// At most `limit` neighbours of this family on this interface that have answered at some time, the surest first.
///
/// # Errors
/// Whatever the kernel says.
pub fn answered(ifindex: u32, family: Family, limit: usize) -> io::Result<Vec<IpAddr>> {
    let mut body = [0; HEADER + 8];
    body[0] = match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    };
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[HEADER..HEADER + 2].copy_from_slice(&8u16.to_ne_bytes());
    body[HEADER + 2..HEADER + 4].copy_from_slice(&NDA_IFINDEX.to_ne_bytes());
    body[HEADER + 4..].copy_from_slice(&ifindex.to_ne_bytes());
    let mut found: Vec<(u8, IpAddr)> = Vec::new();
    NetlinkSocket::open(SockProtocol::NetlinkRoute)?.dump(
        RTM_GETNEIGH,
        &body,
        &mut found,
        Vec::clear,
        |found, message| {
            if let Some((rank, ip)) = parse(message, ifindex) {
                let at = found.partition_point(|(other, _)| *other <= rank);
                if at < limit {
                    found.insert(at, (rank, ip));
                    found.truncate(limit);
                }
            }
        },
    )?;
    Ok(found.into_iter().map(|(_, ip)| ip).collect())
}

/// A neighbour of this interface with how doubtful it is; `None` for all else.
fn parse(message: &Message<'_>, ifindex: u32) -> Option<(u8, IpAddr)> {
    if message.kind != RTM_NEWNEIGH {
        return None;
    }
    let header: &[u8; HEADER] = message.payload.first_chunk()?;
    let [_, _, _, _, a, b, c, d, low, high, _, _] = *header;
    if u32::from_ne_bytes([a, b, c, d]) != ifindex {
        return None;
    }
    let rank = match u16::from_ne_bytes([low, high]) {
        NUD_REACHABLE => 0,
        NUD_DELAY | NUD_PROBE => 1,
        NUD_STALE => 2,
        _ => return None,
    };
    let (_, value) = attributes(message.payload.get(HEADER..)?).find(|(kind, _)| *kind == NDA_DST)?;
    Some((rank, parse_ip(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn neighbour(ifindex: u32, state: u16, ip: [u8; 4]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(ifindex.to_ne_bytes());
        bytes.extend(state.to_ne_bytes());
        bytes.extend([0, 1]);
        bytes.extend(8u16.to_ne_bytes());
        bytes.extend(NDA_DST.to_ne_bytes());
        bytes.extend(ip);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<(u8, IpAddr)> {
        parse(&Message { kind: RTM_NEWNEIGH, flags: 0, sequence: 1, payload: bytes }, 2)
    }

    #[test]
    fn only_neighbours_of_the_interface_that_once_answered_count() {
        let four = Ipv4Addr::new(10, 0, 0, 2);
        let ip = IpAddr::from(four);
        assert_eq!(read(&neighbour(2, NUD_REACHABLE, four.octets())), Some((0, ip)));
        assert_eq!(read(&neighbour(2, NUD_STALE, four.octets())), Some((2, ip)));
        assert_eq!(read(&neighbour(3, NUD_REACHABLE, four.octets())), None, "another interface");
        assert_eq!(read(&neighbour(2, 0x20, four.octets())), None, "failed");
        assert_eq!(read(&neighbour(2, 0x40, four.octets())), None, "no ARP there");
        let whole = neighbour(2, NUD_REACHABLE, four.octets());
        (0..whole.len()).for_each(|n| assert_eq!(read(&whole[..n]), None, "cut after {n} bytes"));
    }
}

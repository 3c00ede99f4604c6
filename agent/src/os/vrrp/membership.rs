//! Of which groups the host is a member.

use crate::os::addr::parse_ip;
use crate::os::netlink::{Message, NetlinkSocket, attributes};
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

const RTM_GETMULTICAST: u16 = 58;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, interface index.
const HEADER: usize = 8;
const IFA_MULTICAST: u16 = 7;

/// Whether anybody on this host has joined the group on the interface.
pub(super) fn is_member(ifindex: u32, group: Ipv6Addr) -> io::Result<bool> {
    let mut body = [0; HEADER];
    body[0] = libc::AF_INET6 as u8;
    let mut found = false;
    NetlinkSocket::open(SockProtocol::NetlinkRoute)?.dump(
        RTM_GETMULTICAST,
        &body,
        &mut found,
        |found| *found = false,
        |found, message| *found |= parse(message) == Some((ifindex, group.into())),
    )?;
    Ok(found)
}

/// Interface and group. Of what kind the message is doesn't matter: kernels differ, and nothing else answers.
fn parse(message: &Message<'_>) -> Option<(u32, IpAddr)> {
    let [_, _, _, _, a, b, c, d] = *message.payload.first_chunk::<HEADER>()?;
    let (_, value) = attributes(message.payload.get(HEADER..)?).find(|(kind, _)| *kind == IFA_MULTICAST)?;
    Some((u32::from_ne_bytes([a, b, c, d]), parse_ip(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_reads_with_its_interface_and_a_cut_message_as_nothing() {
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);
        let mut bytes = vec![10, 128, 0, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(20u16.to_ne_bytes());
        bytes.extend(IFA_MULTICAST.to_ne_bytes());
        bytes.extend(group.octets());
        let read = |payload| parse(&Message { kind: 58, flags: 0, sequence: 1, payload });
        assert_eq!(read(&bytes), Some((7, group.into())));
        (0..bytes.len()).for_each(|n| assert_eq!(read(&bytes[..n]), None, "cut after {n} bytes"));
    }
}

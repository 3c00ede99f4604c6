//! Counts established TCP connections by their local address (`INET_DIAG`).
//!
//! What this module refuses to do: list or end connections.

use super::netlink::{Message, NetlinkSocket};
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::IpAddr;

/// `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `TCP_ESTABLISHED` as a bit of the state mask.
const ESTABLISHED: u32 = 1 << 1;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;

/// How many established TCP connections have one of these addresses as their local end, in the network namespace of
/// the calling thread. The kernel walks its whole table: call it for a person or once a second, never on the protocol
/// thread.
///
/// # Errors
/// Whatever the kernel says.
pub fn established(addresses: &[IpAddr]) -> io::Result<u64> {
    if addresses.is_empty() {
        return Ok(0);
    }
    let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkSockDiag)?;
    let mut total = 0;
    // A socket of a dual-stack listener is in the IPv6 table with an IPv4-mapped address: both are always asked.
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut count = 0u64;
        netlink.dump(
            SOCK_DIAG_BY_FAMILY,
            &request(u8::try_from(family).expect("both are small")),
            &mut count,
            |count| *count = 0,
            |count, message| *count += u64::from(local_address(message).is_some_and(|ip| addresses.contains(&ip))),
        )?;
        total += count;
    }
    Ok(total)
}

fn request(family: u8) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[0] = family;
    bytes[1] = libc::IPPROTO_TCP as u8;
    bytes[4..8].copy_from_slice(&ESTABLISHED.to_ne_bytes());
    bytes
}

/// The local address in a `struct inet_diag_msg`, an IPv4-mapped one as IPv4.
fn local_address(message: &Message<'_>) -> Option<IpAddr> {
    if message.kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let family = i32::from(*message.payload.first()?);
    // family, state, timer, retransmits; source and destination port; then the addresses in 16 bytes each.
    let source = message.payload.get(8..24)?;
    if family == libc::AF_INET {
        return source.first_chunk::<4>().map(|four| IpAddr::from(*four));
    }
    source.first_chunk::<16>().map(|sixteen| IpAddr::from(*sixteen).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_counts_as_ipv4() {
        let mut payload = vec![0; 72];
        payload[0] = 10;
        payload[8..24].copy_from_slice(&std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets());
        let message = |payload| Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, sequence: 1, payload };
        assert_eq!(local_address(&message(&payload)), Some("192.0.2.1".parse().expect("valid")));
        for cut in 0..24 {
            assert_eq!(local_address(&message(&payload[..cut])), None, "cut at {cut}");
        }
    }
}

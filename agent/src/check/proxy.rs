//! The PROXY protocol's header, as HAProxy's "proxy-protocol.txt" has it (versions 1 and 2), of a connection that is a
//! health check's own.
//!
//! Version 1 tells the connection's real addresses: its "UNKNOWN" is refused by many servers, and the specification
//! asks not to use it where they are known. Version 2 has LOCAL for just this case: the receiver takes the addresses of
//! the connection itself.

use holdfast_node::config::ProxyVersion;
use std::net::SocketAddr;

/// Section 2.2: what every header of version 2 begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command LOCAL.
const LOCAL: u8 = 0x20;
/// AF_UNSPEC, UNSPEC.
const UNSPECIFIED: u8 = 0;

/// The bytes to send before anything else. `ends`: our own and the other one's address; `None` where there are none (a
/// socket of this host).
pub fn header(version: ProxyVersion, ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    match version {
        ProxyVersion::V1 => {
            let line = match ends {
                Some((from, to)) => {
                    let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
                    format!("PROXY {family} {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port())
                }
                None => "PROXY UNKNOWN\r\n".to_owned(),
            };
            line.into_bytes()
        }
        ProxyVersion::V2 => [SIGNATURE.as_slice(), &[LOCAL, UNSPECIFIED, 0, 0]].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: &str, to: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((from.parse().expect("an address"), to.parse().expect("an address")))
    }

    #[test]
    fn version_1_is_one_line_with_both_ends() {
        let header = header(ProxyVersion::V1, ends("192.0.2.1:4711", "192.0.2.2:443"));
        assert_eq!(header, b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 443\r\n");
    }

    #[test]
    fn version_1_over_ipv6_has_no_brackets_and_never_more_than_107_bytes() {
        let long = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        let header = header(ProxyVersion::V1, ends("[2001:db8::1]:1", "[2001:db8::2]:2"));
        assert_eq!(header, b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n");
        assert!(super::header(ProxyVersion::V1, ends(long, long)).len() <= 107);
    }

    #[test]
    fn version_1_without_addresses_is_unknown() {
        assert_eq!(header(ProxyVersion::V1, None), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_is_local_and_says_nothing_more() {
        let expected = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A\x20\x00\x00\x00";
        assert_eq!(header(ProxyVersion::V2, ends("192.0.2.1:4711", "192.0.2.2:443")), expected);
        assert_eq!(header(ProxyVersion::V2, None), expected);
    }
}

//! The Internet checksum (RFC 1071) in the two forms that VRRP is seen with.

use std::net::IpAddr;

use crate::types::{Family, Version};
use crate::wire::VRRP_PROTOCOL;

/// What a sender summed. VRRPv2 sums the message; VRRPv3 over IPv6 a pseudo-header and the message. For VRRPv3 over
/// IPv4, RFC 9568 section 5.2.8 says the message only; RFC 5798 was read both ways, and some peers add the pseudo-header
/// by default. There, and only there, both are accepted and either can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumForm {
    /// The VRRP message only (RFC 9568 for IPv4, RFC 3768).
    Message,
    /// A pseudo-header (RFC 768 for IPv4, RFC 8200 section 8.1 for IPv6) before the message.
    PseudoHeader,
}

impl ChecksumForm {
    /// A stable name to count it by.
    pub fn counter(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::PseudoHeader => "pseudo-header",
        }
    }

    /// The one form of this family and version; `None`: there are two.
    pub const fn only(family: Family, version: Version) -> Option<Self> {
        match (family, version) {
            (Family::V6, _) => Some(Self::PseudoHeader),
            (Family::V4, Version::V2) => Some(Self::Message),
            (Family::V4, Version::V3) => None,
        }
    }
}

/// The checksum to write into a message whose checksum field is 0.
pub(crate) fn of(message: &[u8], form: ChecksumForm, source: IpAddr, destination: IpAddr) -> [u8; 2] {
    let pseudo = match form {
        ChecksumForm::Message => 0,
        ChecksumForm::PseudoHeader => pseudo_header(message.len(), source, destination),
    };
    (!fold(sum(message) + pseudo)).to_be_bytes()
}

/// In which form the checksum of this message is right, if in any. Where both are (the pseudo-header sums to nothing)
/// it is the first.
pub(crate) fn form_of(message: &[u8], version: Version, source: IpAddr, destination: IpAddr) -> Option<ChecksumForm> {
    use ChecksumForm::{Message, PseudoHeader};
    let family = Family::of(source);
    let only = ChecksumForm::only(family, version);
    let message_sum = sum(message);
    let right = |pseudo| fold(message_sum + pseudo) == 0xffff;
    if only != Some(PseudoHeader) && right(0) {
        return Some(Message);
    }
    if only == Some(Message) {
        return None;
    }
    if right(pseudo_header(message.len(), source, destination)) {
        return Some(PseudoHeader);
    }
    // keepalived up to 1.3.6 put the group into the pseudo-header of a unicast packet too.
    let old_unicast = family == Family::V4 && right(pseudo_header(message.len(), source, family.group()));
    old_unicast.then_some(PseudoHeader)
}

/// Both families' pseudo-headers sum the same things: addresses, protocol, length.
fn pseudo_header(message_len: usize, source: IpAddr, destination: IpAddr) -> u64 {
    let length = u64::try_from(message_len).unwrap_or(u64::MAX) & 0xffff;
    sum_of(source) + sum_of(destination) + u64::from(VRRP_PROTOCOL) + length
}

fn sum_of(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    }
}

/// Sum of big-endian 16-bit words, a lone last byte padded with 0. A u64 can't overflow with anything that fits memory.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_sum_of_rfc_1071s_own_example() {
        // RFC 1071 section 3: 0001 f203 f4f5 f6f7 sums to ddf2.
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn a_lone_last_byte_is_the_high_half_of_a_word() {
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }

    #[test]
    fn a_message_with_its_own_checksum_is_right() {
        let mut message = [0x31, 10, 254, 1, 0, 10, 0, 0, 192, 0, 2, 10];
        let (source, group) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), Family::V4.group());
        for form in [ChecksumForm::Message, ChecksumForm::PseudoHeader] {
            message[6..8].fill(0);
            let checksum = of(&message, form, source, group);
            message[6..8].copy_from_slice(&checksum);
            assert_eq!(form_of(&message, Version::V3, source, group), Some(form));
        }
        assert_eq!(form_of(&message, Version::V2, source, group), None, "VRRPv2 never has a pseudo-header");
        message[2] ^= 1;
        assert_eq!(form_of(&message, Version::V3, source, group), None);
    }
}

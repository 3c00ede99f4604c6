//! The Internet checksum (RFC 1071) in the two forms that VRRPv3 over IPv4 is seen with.

use std::net::Ipv4Addr;

use crate::wire::VRRP_PROTOCOL;

/// What a sender summed. RFC 9568 section 5.2.8 says the message only for IPv4; RFC 5798 was read both ways, and some
/// peers add the pseudo-header by default. We send the first and accept both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumForm {
    /// The VRRP message only (RFC 9568).
    Message,
    /// An IPv4 pseudo-header before the message.
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
}

/// The checksum to write into a message whose checksum field is 0, in the form RFC 9568 wants.
pub(crate) fn of_message(message: &[u8]) -> [u8; 2] {
    (!fold(sum(message))).to_be_bytes()
}

/// In which form the checksum of this message is right, if in any. Where both are (the pseudo-header sums to nothing)
/// it is the first.
pub(crate) fn form_of(message: &[u8], source: Ipv4Addr, destination: Ipv4Addr) -> Option<ChecksumForm> {
    let message_sum = sum(message);
    if fold(message_sum) == 0xffff {
        return Some(ChecksumForm::Message);
    }
    let length = u64::try_from(message.len()).unwrap_or(u64::MAX) & 0xffff;
    let pseudo = sum(&source.octets()) + sum(&destination.octets()) + u64::from(VRRP_PROTOCOL) + length;
    (fold(message_sum + pseudo) == 0xffff).then_some(ChecksumForm::PseudoHeader)
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
        let checksum = of_message(&message);
        message[6..8].copy_from_slice(&checksum);
        let (source, group) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(224, 0, 0, 18));
        assert_eq!(form_of(&message, source, group), Some(ChecksumForm::Message));
        message[2] ^= 1;
        assert_eq!(form_of(&message, source, group), None);
    }
}

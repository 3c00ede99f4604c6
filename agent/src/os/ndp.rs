//! Neighbour discovery frames (RFC 4861).

use holdfast_vrrp::frames::Mac;
use std::net::Ipv6Addr;

/// Ethernet, IPv6, advertisement or solicitation, link-layer address option.
const FRAME: usize = ETHERNET + IPV6 + 24 + 8;
const ETHERNET: usize = 14;
const IPV6: usize = 40;
/// ff02::1
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// RFC 9568 section 6.4.2: unsolicited, to all nodes, R and O set, with the target's link-layer address.
pub(super) fn unsolicited_na(mac: Mac, ip: Ipv6Addr) -> [u8; FRAME] {
    frame(mac, ip, ALL_NODES, ADVERTISEMENT, ROUTER | OVERRIDE, ip, TARGET_LINK_ADDRESS)
}

/// "Who has `target`? Tell `source` at `mac`", to the group of those whose address may be it.
pub(super) fn neighbour_solicitation(mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> [u8; FRAME] {
    let [.., a, b, c] = target.octets();
    // RFC 4291 section 2.7.1.
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    frame(mac, source, group, SOLICITATION, 0, target, SOURCE_LINK_ADDRESS)
}

/// Whether this frame is `target`'s answer to our solicitation: an advertisement to us, solicited, from another link
/// address than ours. An announcement of the target isn't one: it doesn't show that our frames get through.
pub(super) fn solicited_by(frame: &[u8], mac: Mac, source: Ipv6Addr, target: Ipv6Addr) -> bool {
    let (Some((ethernet, rest)), us) = (frame.split_first_chunk::<ETHERNET>(), source.octets()) else { return false };
    let Some((ipv6, message)) = rest.split_first_chunk::<IPV6>() else { return false };
    let Some(advertisement) = message.first_chunk::<24>() else { return false };
    ethernet[..6] == mac
        && ethernet[6..12] != mac
        && ethernet[12..] == [0x86, 0xdd]
        // RFC 4861 section 7.1.2.
        && (ipv6[6], ipv6[7]) == (58, 255)
        && ipv6[24..] == us
        && (advertisement[0], advertisement[1]) == (ADVERTISEMENT, 0)
        && advertisement[4] & SOLICITED != 0
        && advertisement[8..] == target.octets()
}

fn frame(
    mac: Mac,
    source: Ipv6Addr,
    group: Ipv6Addr,
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: u8,
) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    let (ethernet, packet) = frame.split_at_mut(ETHERNET);
    let [.., a, b, c, d] = group.octets();
    ethernet[..6].copy_from_slice(&[0x33, 0x33, a, b, c, d]);
    ethernet[6..12].copy_from_slice(&mac);
    ethernet[12..].copy_from_slice(&[0x86, 0xdd]);
    let (ipv6, message) = packet.split_at_mut(IPV6);
    ipv6[0] = 0x60;
    ipv6[5] = 32; // payload length
    ipv6[6] = 58; // ICMPv6
    ipv6[7] = 255;
    ipv6[8..24].copy_from_slice(&source.octets());
    ipv6[24..].copy_from_slice(&group.octets());
    message[0] = kind;
    message[4] = flags;
    message[8..24].copy_from_slice(&target.octets());
    message[24] = option;
    message[25] = 1; // times eight bytes
    message[26..].copy_from_slice(&mac);
    // RFC 8200 section 8.1: addresses, length, next header, message.
    let checksum = !ones_complement_sum(32 + 58, &[&ipv6[8..], message]);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    frame
}

fn ones_complement_sum(start: u32, parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2)).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum = start + words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];
    const US: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const THEM: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x3456);

    #[test]
    fn frames_sum_to_all_ones_and_go_to_their_group() {
        for frame in [unsolicited_na(MAC, THEM), neighbour_solicitation(MAC, US, THEM)] {
            assert_eq!(frame[ETHERNET + 7], 255, "hop limit");
            assert_eq!(ones_complement_sum(32 + 58, &[&frame[ETHERNET + 8..]]), 0xffff);
        }
        let na = unsolicited_na(MAC, THEM);
        assert_eq!((na[54], na[58]), (136, 0xA0), "router and override");
        assert_eq!(na[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let ns = neighbour_solicitation(MAC, US, THEM);
        assert_eq!(ns[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(ns[38..54], "ff02::1:ff12:3456".parse::<Ipv6Addr>().expect("valid").octets());
    }

    #[test]
    fn only_a_solicited_advertisement_of_the_target_to_us_is_an_answer() {
        let mut answer = unsolicited_na(OTHER, THEM);
        assert!(!solicited_by(&answer, MAC, US, THEM), "an announcement");
        answer[..6].copy_from_slice(&MAC);
        answer[38..54].copy_from_slice(&US.octets());
        assert!(!solicited_by(&answer, MAC, US, THEM), "an announcement to us alone");
        answer[58] |= SOLICITED;
        assert!(solicited_by(&answer, MAC, US, THEM));
        assert!(!solicited_by(&answer, MAC, US, US), "of another");
        assert!(!solicited_by(&answer, MAC, THEM, THEM), "for another question");
        assert!(!solicited_by(&answer, OTHER, US, THEM), "to another");
        for cut in 0..78 {
            assert!(!solicited_by(&answer[..cut], MAC, US, THEM));
        }
        for (at, what) in [(12, "ethertype"), (20, "next header"), (21, "hop limit"), (54, "type"), (55, "code")] {
            let mut spoilt = answer;
            spoilt[at] ^= 1;
            assert!(!solicited_by(&spoilt, MAC, US, THEM), "{what}");
        }
        answer[6..12].copy_from_slice(&MAC);
        assert!(!solicited_by(&answer, MAC, US, THEM), "of our own interface");
    }
}

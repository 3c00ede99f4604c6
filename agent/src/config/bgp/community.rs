//! Communities as people write them.

use crate::config::values::shown;
use holdfast_bgp::types::Asn;
use holdfast_bgp::wire::community::{
    BLACKHOLE, GRACEFUL_SHUTDOWN, NO_ADVERTISE, NO_EXPORT, NO_EXPORT_SUBCONFED, NO_PEER,
};
use holdfast_node::config::LinkBandwidth;
use std::net::Ipv4Addr;

pub(super) const ACCEPTED: &str = "\"65000:100\" (two numbers of 0 to 65535), or a name: no-export, no-advertise, \
                                   no-export-subconfed, no-peer, blackhole, graceful-shutdown, accept-own, no-llgr";
pub(super) const ACCEPTED_LARGE: &str = "\"65000:1:2\" (three numbers of 0 to 4294967295)";
pub(super) const ACCEPTED_EXTENDED: &str = "\"rt:65000:1\", \"soo:65000:1\" (rt:10.0.0.1:1, rt:4200000000:1), \
                                            \"link-bandwidth:65000:10G\", or 16 hexadecimal digits after 0x";
pub(in crate::config) const ACCEPTED_RATE: &str =
    "bits per second as \"10G\" or \"400M\": a whole number and K, M, G or T";

/// IANA's registry of well-known communities.
const NAMES: [(&str, u32); 8] = [
    ("graceful-shutdown", GRACEFUL_SHUTDOWN),
    ("accept-own", 0xffff_0001),
    ("no-llgr", 0xffff_0007),
    ("blackhole", BLACKHOLE),
    ("no-export", NO_EXPORT),
    ("no-advertise", NO_ADVERTISE),
    ("no-export-subconfed", NO_EXPORT_SUBCONFED),
    ("no-peer", NO_PEER),
];

/// Digits only: neither a sign nor a blank.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// RFC 1997.
pub(super) fn standard(text: &str) -> Result<u32, String> {
    if let Some((_, known)) = NAMES.iter().find(|(name, _)| *name == text) {
        return Ok(*known);
    }
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [high, low] => match (number::<u16>(high), number::<u16>(low)) {
            (Some(high), Some(low)) => Ok(u32::from(high) << 16 | u32::from(low)),
            (None, Some(_)) if number::<u32>(high).is_some() => Err(format!(
                "`{}` has an AS of more than 16 bits, which fits a large community only: large_communities",
                shown(text)
            )),
            _ => Err(format!("`{}` is not a community", shown(text))),
        },
        [_, _, _] if large(text).is_ok() => Err(format!("`{}` is a large community: large_communities", shown(text))),
        [kind, ..] if parts.len() > 1 && extended(text).is_ok() => {
            Err(format!("`{}` is an extended community ({kind}): extended_communities", shown(text)))
        }
        _ => Err(format!("`{}` is not a community", shown(text))),
    }
}

/// RFC 8092.
pub(super) fn large(text: &str) -> Result<[u32; 3], String> {
    let parts: Option<Vec<u32>> = text.split(':').map(number).collect();
    parts.and_then(|parts| parts.try_into().ok()).ok_or_else(|| format!("`{}` is not a large community", shown(text)))
}

/// RFC 4360, 5668 and 7153 for what is written by name.
pub(super) fn extended(text: &str) -> Result<[u8; 8], String> {
    let wrong = || format!("`{}` is not an extended community", shown(text));
    if let Some(digits) = text.strip_prefix("0x") {
        let hex = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let bits = hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        return bits.map(u64::to_be_bytes).ok_or_else(wrong);
    }
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        ["rt", administrator, value] => administered(0x02, administrator, value).ok_or_else(wrong),
        ["soo", administrator, value] => administered(0x03, administrator, value).ok_or_else(wrong),
        ["link-bandwidth", asn, bits] => {
            let asn: u16 = number(asn).ok_or_else(wrong)?;
            Ok(LinkBandwidth { bits: rate(bits)?, transitive: false }.community(Asn(asn.into())))
        }
        ["link-bandwidth"] => Err("`link-bandwidth` says no bandwidth: link_bandwidth = \"10G\" is a key of its own \
                                   and takes this node's AS"
            .to_owned()),
        _ => Err(wrong()),
    }
}

fn administered(kind: u8, administrator: &str, value: &str) -> Option<[u8; 8]> {
    if let Some(asn) = number::<u16>(administrator) {
        let ([a, b], [c, d, e, f]) = (asn.to_be_bytes(), number::<u32>(value)?.to_be_bytes());
        return Some([0x00, kind, a, b, c, d, e, f]);
    }
    let [e, f] = number::<u16>(value)?.to_be_bytes();
    let (first, [a, b, c, d]) = match administrator.parse::<Ipv4Addr>() {
        Ok(ip) => (0x01, ip.octets()),
        Err(_) => (0x02, number::<u32>(administrator)?.to_be_bytes()),
    };
    Some([first, kind, a, b, c, d, e, f])
}

/// `10G`.
pub(in crate::config) fn rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is not a bandwidth", shown(text));
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let factor: u64 = match unit {
        'K' => 1_000,
        'M' => 1_000_000,
        'G' => 1_000_000_000,
        'T' => 1_000_000_000_000,
        _ if unit.is_ascii_digit() => return Err(format!("`{}` has no unit", shown(text))),
        _ => return Err(wrong()),
    };
    let n: u64 = text.strip_suffix(unit).and_then(number).ok_or_else(wrong)?;
    let bits = n.checked_mul(factor).filter(|bits| (1..=RATE_MAX).contains(bits));
    bits.ok_or_else(|| format!("`{}` is out of range", shown(text)))
}

/// Far above any link.
const RATE_MAX: u64 = 1_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_community_is_two_numbers_or_a_well_known_name() {
        assert_eq!(standard("65000:100"), Ok(0xfde8_0064));
        assert_eq!(standard("0:0"), Ok(0));
        assert_eq!(standard("no-export"), Ok(0xffff_ff01));
        assert_eq!(standard("graceful-shutdown"), Ok(0xffff_0000));
        assert_eq!(standard("blackhole"), Ok(0xffff_029a));
        for (text, why) in [
            ("65536:1", "large_communities"),
            ("65000:1:2", "large_communities"),
            ("rt:65000:1", "extended_communities"),
            ("65000:65536", "not a community"),
            ("65000", "not a community"),
            ("65000:", "not a community"),
            ("65000:+1", "not a community"),
            ("65000: 1", "not a community"),
            ("NO-EXPORT", "not a community"),
            ("", "not a community"),
        ] {
            let refused = standard(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_large_community_is_three_numbers_of_32_bits() {
        assert_eq!(large("4200000000:1:4294967295"), Ok([4_200_000_000, 1, u32::MAX]));
        for text in ["65000:1", "1:2:3:4", "1:2:4294967296", "1::3", "a:b:c", ""] {
            assert!(large(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_extended_community_is_written_by_kind_or_as_it_is_on_the_wire() {
        assert_eq!(extended("rt:65000:1"), Ok([0, 2, 0xfd, 0xe8, 0, 0, 0, 1]));
        assert_eq!(extended("rt:4200000000:1"), Ok([2, 2, 0xfa, 0x56, 0xea, 0, 0, 1]));
        assert_eq!(extended("rt:10.0.0.1:7"), Ok([1, 2, 10, 0, 0, 1, 0, 7]));
        assert_eq!(extended("soo:65000:1"), Ok([0, 3, 0xfd, 0xe8, 0, 0, 0, 1]));
        assert_eq!(extended("0x4004fde84c000000"), Ok([0x40, 4, 0xfd, 0xe8, 0x4c, 0, 0, 0]));
        // 1 Gbit/s is 125,000,000 bytes per second: 0x4cee6b28.
        assert_eq!(extended("link-bandwidth:65000:1G"), Ok([0x40, 4, 0xfd, 0xe8, 0x4c, 0xee, 0x6b, 0x28]));
        for (text, why) in [
            ("link-bandwidth", "a key of its own"),
            ("link-bandwidth:65000:10", "no unit"),
            ("rt:4200000000:65536", "not an extended"),
            ("rt:65000", "not an extended"),
            ("xx:65000:1", "not an extended"),
            ("0x4004", "not an extended"),
            ("0x4004fde84c00000g", "not an extended"),
        ] {
            let refused = extended(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_rate_is_a_whole_number_and_a_unit() {
        assert_eq!(rate("10G"), Ok(10_000_000_000));
        assert_eq!(rate("64K"), Ok(64_000));
        for text in ["10", "G", "1.5G", "10g", "0M", "2000T", "99999999999999999999T", "", "1Gé"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_two_numbers_say_is_on_the_wire(high: u16, low: u16) {
            prop_assert_eq!(standard(&format!("{high}:{low}")), Ok(u32::from(high) << 16 | u32::from(low)));
        }

        #[test]
        fn no_text_makes_them_panic(text in ".{0,40}") {
            let _ = (standard(&text), large(&text), extended(&text), rate(&text));
        }

        #[test]
        fn nothing_near_a_community_makes_them_panic(text in "(rt|soo|link-bandwidth|0x)?(:?[0-9.GMKé]{0,12}){0,5}") {
            let _ = (standard(&text), large(&text), extended(&text), rate(&text));
        }
    }
}

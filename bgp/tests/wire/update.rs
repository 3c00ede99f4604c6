//! UPDATE and its attributes: RFC 4271 sections 4.3 and 5, RFC 4760, 2545, 8950, 6793, 1997, 4360, 8092.

use std::net::{Ipv4Addr, Ipv6Addr};

use holdfast_bgp::types::{Asn, Families, Family, NextHop, Origin};
use holdfast_bgp::wire::update::inspect;
use holdfast_bgp::wire::{Attribute, AttributeValue, Codec, Fault, Inspected, PerFamily, Segment, SegmentKind, Update};

use super::{EBGP, hex, prefix};

const IBGP: Codec = Codec { internal: true, ..EBGP };
const TWO_OCTETS: Codec = Codec { four_octet_as: false, ..EBGP };
const EXTENDED_HOP: Codec = Codec { extended_next_hop: true, ..EBGP };

/// A body of withdrawn routes, attributes and NLRI.
pub(super) fn body(withdrawn: &str, attributes: &str, announced: &str) -> Vec<u8> {
    let (withdrawn, attributes) = (hex(withdrawn), hex(attributes));
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    [&length(&withdrawn)[..], &withdrawn, &length(&attributes), &attributes, &hex(announced)].concat()
}

/// Decodes without a fault, and checks that `inspect` counts the same.
fn good(body: &[u8], codec: &Codec) -> Update {
    let update = Update::decode(body, codec).unwrap();
    assert_eq!(update.faults, [], "{update:?}");
    let inspected = inspect(body, codec).unwrap();
    let count = |prefixes: &mut dyn Iterator<Item = holdfast_bgp::types::Prefix>| {
        let mut counts = PerFamily::default();
        for prefix in prefixes {
            match prefix.family() {
                Family::Ipv4 => counts.ipv4 += 1,
                Family::Ipv6 => counts.ipv6 += 1,
            }
        }
        counts
    };
    assert_eq!(inspected.announced, count(&mut update.all_announced()));
    assert_eq!(inspected.withdrawn, count(&mut update.all_withdrawn()));
    assert_eq!((inspected.end_of_rib, inspected.fault), (update.end_of_rib(), None));
    update
}

/// The value of the only attribute besides ORIGIN, AS_PATH and NEXT_HOP.
fn attribute(text: &str, codec: &Codec) -> Attribute {
    let width = if codec.four_octet_as { "40020602010000fde9" } else { "4002040201fde9" };
    let update = good(&body("", &format!("40010100 {width} 4003040a000001 {text}"), "18c00002"), codec);
    assert_eq!(update.attributes.len(), 4);
    update.attributes[3].clone()
}

fn sequence(asns: &[u32]) -> Segment {
    Segment { kind: SegmentKind::Sequence, asns: asns.iter().copied().map(Asn).collect() }
}

#[test]
fn s4_3_an_update_announces_and_withdraws() {
    let bytes = body("18c63364 00", "40010100 4002060201 0000fde9 4003040a000001", "18c00002 20cb007101 11c0a8ff");
    let update = good(&bytes, &EBGP);
    assert_eq!(update.withdrawn, [prefix("198.51.100.0/24"), prefix("0.0.0.0/0")]);
    let announced = [prefix("192.0.2.0/24"), prefix("203.0.113.1/32"), prefix("192.168.128.0/17")];
    assert_eq!(update.announced, announced, "bits beyond the length don't count");
    let values: Vec<&AttributeValue> = update.attributes.iter().map(|attribute| &attribute.value).collect();
    let expected = [
        &AttributeValue::Origin(Origin::Igp),
        &AttributeValue::AsPath(vec![sequence(&[65_001])]),
        &AttributeValue::NextHop(Ipv4Addr::new(10, 0, 0, 1)),
    ];
    assert_eq!(values, expected);
}

#[test]
fn s4_3_attributes_may_have_long_lengths_and_reserved_flags() {
    let update = good(&body("", "5f01000100 5f02000602010000fde9 5f0300040a000001", "00"), &EBGP);
    // As they came, but for the length's size, which is the encoder's business.
    assert!(update.attributes.iter().all(|attribute| attribute.flags == 0x4f));
    let mut out = Vec::new();
    update.encode(&EBGP, &mut out).unwrap();
    assert_eq!(out[23..27], [0x4f, 1, 1, 0]);
}

#[test]
fn each_attribute_says_what_its_rfc_has() {
    use AttributeValue as V;
    let address = Ipv4Addr::new(192, 0, 2, 1);
    let cases = [
        ("80 04 04 00000064", V::Med(100)),
        ("40 05 04 000000c8", V::LocalPref(200)),
        ("40 06 00", V::AtomicAggregate),
        ("c0 07 08 fa56ea01 c0000201", V::Aggregator(Asn(4_200_000_001), address)),
        ("c0 08 08 fde80064 ffff0000", V::Communities(vec![0xfde8_0064, 0xffff_0000])),
        ("80 09 04 c0000201", V::OriginatorId(address)),
        ("80 0a 08 c0000201 c0000201", V::ClusterList(vec![address; 2])),
        ("c0 10 08 4004fde94b95f380", V::ExtendedCommunities(vec![[0x40, 4, 0xfd, 0xe9, 0x4b, 0x95, 0xf3, 0x80]])),
        ("c0 20 0c fa56ea01 00000001 00000002", V::LargeCommunities(vec![[4_200_000_001, 1, 2]])),
        ("c0 63 03 010203", V::Other { code: 99, value: vec![1, 2, 3] }),
    ];
    for (text, value) in cases {
        let got = attribute(text, &IBGP);
        assert_eq!(got, Attribute { flags: hex(text)[0], value }, "{text}");
        if !matches!(got.value, V::Other { .. }) {
            assert_eq!(got, got.value.clone().with_flags(), "the flags it must have");
        }
    }
}

#[test]
fn s5_1_1_origin_has_three_values() {
    for (code, origin) in [("00", Origin::Igp), ("01", Origin::Egp), ("02", Origin::Incomplete)] {
        let update = good(&body("", &format!("400101{code} 400200 4003040a000001"), "00"), &EBGP);
        assert_eq!(update.attributes[0].value, AttributeValue::Origin(origin));
    }
}

#[test]
fn s5_1_2_a_path_has_segments_of_any_kind() {
    let path = "40021c 0202 00000001 00000002 0101 00000003 0301 00000004 0401 00000005";
    let update = good(&body("", &format!("40010100 {path} 4003040a000001"), "00"), &EBGP);
    let path = update.as_path().unwrap();
    let kinds: Vec<SegmentKind> = path.iter().map(|segment| segment.kind).collect();
    use SegmentKind::*;
    assert_eq!(kinds, [Sequence, Set, ConfedSequence, ConfedSet]);
    let text: Vec<String> = path.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["1 2", "{3}", "(4)", "[5]"]);
}

#[test]
fn rfc6793_numbers_have_two_octets_where_four_werent_negotiated() {
    let update = good(&body("", "40010100 4002060202 fde9 5ba0 4003040a000001 c007065ba0c0000201", "00"), &TWO_OCTETS);
    assert_eq!(update.as_path(), Some(vec![sequence(&[65_001, 23_456])]));
    let aggregator = AttributeValue::Aggregator(Asn::TRANS, Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(update.attributes[3].value, aggregator);
}

#[test]
fn rfc6793_as4_path_replaces_the_end_of_as_path() {
    let path = |as_path: &str, as4: &str| {
        let four = hex(as4);
        let two = hex(as_path);
        let text = format!("40010100 4002{:02x}{as_path} 4003040a000001 c011{:02x}{as4}", two.len(), four.len());
        good(&body("", &text, "00"), &TWO_OCTETS).as_path().unwrap()
    };
    // 65001 AS_TRANS AS_TRANS, and 4200000001 4200000002.
    let four = "0202fa56ea01fa56ea02";
    assert_eq!(path("0203fde95ba05ba0", four), [sequence(&[65_001, 4_200_000_001, 4_200_000_002])]);
    assert_eq!(path("02025ba05ba0", four), [sequence(&[4_200_000_001, 4_200_000_002])]);
    // Shorter than AS4_PATH: somebody prepended or cut; AS4_PATH is ignored.
    assert_eq!(path("02015ba0", four), [sequence(&[23_456])]);
    // A set counts one.
    let set = Segment { kind: SegmentKind::Set, asns: vec![Asn(1), Asn(2)] };
    let expected = [sequence(&[65_001]), set, sequence(&[4_200_000_001, 4_200_000_002])];
    assert_eq!(path("0201fde9010200010002 02025ba05ba0", four), expected);
}

#[test]
fn rfc6793_as4_attributes_between_speakers_of_four_octets_are_discarded() {
    let bytes = body("", "40010100 400200 4003040a000001 c011060201fa56ea01 c01208fa56ea01c0000201", "00");
    let update = Update::decode(&bytes, &EBGP).unwrap();
    assert_eq!(update.faults, [Fault::Unexpected(17), Fault::Unexpected(18)]);
    assert_eq!(update.attributes.len(), 3);
    assert_eq!(good(&bytes, &TWO_OCTETS).attributes.len(), 5);
}

/// MP_REACH_NLRI of a family with a next hop, and one prefix.
fn reach(codec: &Codec, afi: u16, next_hop: &str, nlri: &str) -> Result<NextHop, Vec<Fault>> {
    let hop = hex(next_hop);
    let value = format!("{afi:04x} 01 {:02x} {next_hop} 00 {nlri}", hop.len());
    let bytes = body("", &format!("900e{:04x} {value} 40010100 400200", hex(&value).len()), "");
    let update = Update::decode(&bytes, codec).map_err(|error| vec![error.fault])?;
    let hop = update.find(|value| match value {
        AttributeValue::MpReach { next_hop, prefixes, .. } if prefixes.len() == 1 => Some(*next_hop),
        _ => None,
    });
    hop.ok_or(update.faults)
}

const GLOBAL: &str = "20010db8000000000000000000000001";
const LOCAL: &str = "fe800000000000000000000000000001";
const ZERO: &str = "00000000000000000000000000000000";

fn v6(global: Option<&str>, link_local: Option<&str>) -> NextHop {
    let address = |text: &str| Ipv6Addr::from(<[u8; 16]>::try_from(hex(text)).unwrap());
    NextHop::V6 { global: global.map(address), link_local: link_local.map(address) }
}

#[test]
fn rfc2545_a_next_hop_is_global_or_link_local_or_both() {
    let hop = |text: &str| reach(&EBGP, 2, text, "80 20010db8000000000000000000000002");
    assert_eq!(hop(GLOBAL), Ok(v6(Some(GLOBAL), None)));
    assert_eq!(hop(&format!("{GLOBAL}{LOCAL}")), Ok(v6(Some(GLOBAL), Some(LOCAL))));
    assert_eq!(hop(LOCAL), Ok(v6(None, Some(LOCAL))), "unnumbered");
    // As others write an unnumbered one.
    assert_eq!(hop(&format!("{LOCAL}{LOCAL}")), Ok(v6(None, Some(LOCAL))));
    assert_eq!(hop(&format!("{ZERO}{LOCAL}")), Ok(v6(None, Some(LOCAL))));
    assert_eq!(hop(&format!("{GLOBAL}{ZERO}")), Ok(v6(Some(GLOBAL), None)));
    // No router's: unspecified, loopback, multicast.
    for wrong in [ZERO, &format!("{ZERO}{ZERO}"), &format!("{}01", &ZERO[2..]), &format!("ff02{}", &LOCAL[4..])] {
        assert_eq!(hop(wrong), Err(vec![Fault::NextHop]), "{wrong}");
    }
}

#[test]
fn rfc7606_s7_11_a_next_hop_of_a_wrong_length_hides_the_prefixes() {
    for length in (0..=255).filter(|length| !matches!(length, 16 | 32)) {
        let hop = reach(&EBGP, 2, &"20".repeat(length), "00");
        assert_eq!(hop, Err(vec![Fault::MalformedMp(14)]), "{length} bytes");
    }
}

#[test]
fn rfc8950_ipv4_has_ipv6_next_hops_only_where_that_was_negotiated() {
    let hop = |codec: &Codec, text: &str| reach(codec, 1, text, "20 c0000201");
    assert_eq!(hop(&EXTENDED_HOP, GLOBAL), Ok(v6(Some(GLOBAL), None)));
    assert_eq!(hop(&EXTENDED_HOP, &format!("{GLOBAL}{LOCAL}")), Ok(v6(Some(GLOBAL), Some(LOCAL))));
    assert_eq!(hop(&EBGP, GLOBAL), Err(vec![Fault::MalformedMp(14)]));
    for codec in [&EBGP, &EXTENDED_HOP] {
        assert_eq!(hop(codec, "c0000201"), Ok(NextHop::V4(Ipv4Addr::new(192, 0, 2, 1))));
        assert_eq!(hop(codec, "00000000"), Err(vec![Fault::NextHop]));
    }
}

#[test]
fn rfc4760_an_update_may_carry_both_families_and_withdraw_beside() {
    let bytes = body(
        "18c63364",
        &format!(
            "800e1b 0002 01 10 {GLOBAL} 00 2020010db8 00 900f0008 0002 01 2020010db9 40010100 400200 4003040a000001"
        ),
        "18c00002",
    );
    let update = good(&bytes, &EBGP);
    let announced: Vec<String> = update.all_announced().map(|prefix| prefix.to_string()).collect();
    assert_eq!(announced, ["192.0.2.0/24", "2001:db8::/32", "::/0"]);
    let withdrawn: Vec<String> = update.all_withdrawn().map(|prefix| prefix.to_string()).collect();
    assert_eq!(withdrawn, ["198.51.100.0/24", "2001:db9::/32"]);
}

#[test]
fn rfc4760_families_that_werent_negotiated_are_skipped() {
    let ipv4 = Codec { families: Families { ipv4: true, ipv6: false }, ..EBGP };
    // IPv6 prefixes that can't be read, with a next hop that can't be: nobody looks.
    let bytes = body("", "800e09 0002 01 03 010203 00 ff 40010100 400200", "");
    let inspected = inspect(&bytes, &ipv4).unwrap();
    assert_eq!(inspected, Inspected { foreign: true, ..Inspected::default() });
    let update = Update::decode(&bytes, &ipv4).unwrap();
    let other = AttributeValue::MpReachOther { afi: 2, safi: 1, next_hop: vec![1, 2, 3], nlri: vec![0xff] };
    assert_eq!(update.attributes[0].value, other);
    // VPN prefixes, and their withdrawal.
    let bytes = body("", "800f04 0001 80 70", "");
    assert_eq!(inspect(&bytes, &EBGP).unwrap(), Inspected { foreign: true, ..Inspected::default() });
    // IPv4 in the body, where it wasn't negotiated.
    let ipv6 = Codec { families: Families { ipv4: false, ipv6: true }, ..EBGP };
    let bytes = body("", "40010100 400200 4003040a000001", "00");
    assert!(inspect(&bytes, &ipv6).unwrap().foreign);
}

#[test]
fn rfc4724_end_of_rib_is_an_update_that_says_nothing() {
    let end = |attributes: &str| good(&body("", attributes, ""), &EBGP).end_of_rib();
    assert_eq!(end(""), Some(Family::Ipv4));
    assert_eq!(end("800f03 0002 01"), Some(Family::Ipv6));
    assert_eq!(end("900f0003 0002 01"), Some(Family::Ipv6));
    assert_eq!(end("800f03 0001 01"), Some(Family::Ipv4));
    assert_eq!(end("800f03 0001 80"), None, "of a family that isn't ours");
    assert_eq!(end("800f04 0002 01 00"), None, "a withdrawal");
    assert_eq!(end("40010100"), None, "ORIGIN of nothing");
    assert_eq!(good(&body("00", "", ""), &EBGP).end_of_rib(), None);
    assert_eq!(good(&body("00", "800f03 0002 01", ""), &EBGP).end_of_rib(), None);
}

#[test]
fn rfc4760_next_hop_beside_mp_reach_alone_is_ignored() {
    // As old Quagga wrote it.
    let bytes = body("", &format!("40010100 400200 400304 00000000 800e16 0002 01 10 {GLOBAL} 00 00"), "");
    assert_eq!(inspect(&bytes, &EBGP).unwrap().fault, None);
    // With IPv4 prefixes it counts.
    let bytes = body("", "40010100 400200 400304 00000000", "00");
    assert_eq!(inspect(&bytes, &EBGP).unwrap().fault, Some(Fault::NextHop));
    // Alone it says nothing, but it isn't nothing: no End-of-RIB.
    let bytes = body("", "400304 00000000", "");
    assert_eq!(inspect(&bytes, &EBGP).unwrap(), Inspected::default());
    assert_eq!(Update::decode(&bytes, &EBGP).unwrap().end_of_rib(), None);
}

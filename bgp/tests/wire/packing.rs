//! What sessions write: as few messages as hold it, each up to the limit, in the form that routers take.

use holdfast_bgp::types::{Asn, Family, NextHop, Origin, PathAttributes, Prefix};
use holdfast_bgp::wire::update::{announce, check, end_of_rib, withdraw};
use holdfast_bgp::wire::{AttributeValue, Codec, EncodeError, Frame, MAX_LEN, community};

use super::{EBGP, hex, hosts, plain, prefix, updates};

const IBGP: Codec = Codec { internal: true, ..EBGP };

fn announced(codec: &Codec, attributes: &PathAttributes, prefixes: &[Prefix]) -> Vec<u8> {
    let mut out = Vec::new();
    let family = prefixes[0].family();
    let messages = announce(&mut out, codec, attributes, family, prefixes.iter().copied()).unwrap();
    assert_eq!(messages, lengths(&out).len());
    out
}

fn lengths(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while !bytes.is_empty() {
        let (frame, rest) = Frame::split(bytes, true).unwrap().expect("whole messages");
        lengths.push(frame.bytes.len());
        bytes = rest;
    }
    lengths
}

#[test]
fn an_ipv4_route_on_ebgp_is_this() {
    let out = announced(&EBGP, &plain("10.0.0.1"), &[prefix("192.0.2.1/32")]);
    let expected = "ffffffffffffffffffffffffffffffff 0030 02 0000 0014
        40010100 400206 0201 0000fdf2 400304 0a000001 20c0000201"
        .replace('\n', "");
    assert_eq!(out, hex(&expected));
}

#[test]
fn an_ipv6_route_has_its_mp_reach_first_and_no_next_hop() {
    let out = announced(&EBGP, &plain("2001:db8::1"), &[prefix("2001:db8:1::/48")]);
    let expected = "ffffffffffffffffffffffffffffffff 0043 02 0000 002c
        800e1c 0002 01 10 20010db8000000000000000000000001 00 30 20010db80001
        40010100 400206 0201 0000fdf2"
        .replace('\n', "");
    assert_eq!(out, hex(&expected));
}

#[test]
fn everything_that_can_be_said_of_a_route_stands_in_the_order_of_its_codes() {
    let attributes = PathAttributes {
        origin: Origin::Incomplete,
        as_path: vec![Asn(65_010); 3],
        med: Some(7),
        local_pref: Some(100),
        communities: vec![community::GRACEFUL_SHUTDOWN],
        large: vec![[1, 2, 3]],
        extended: vec![community::link_bandwidth(Asn(65_010), 1.25e9)],
        ..plain("10.0.0.1")
    };
    let body = "40010102 40020e 0203 0000fdf20000fdf20000fdf2 400304 0a000001 800404 00000007 400504 00000064
        c00804 ffff0000 c01008 4004fdf24e9502f9 c0200c 000000010000000200000003"
        .replace('\n', "");
    let out = announced(&IBGP, &attributes, &[prefix("192.0.2.1/32")]);
    assert_eq!(out[23..out.len() - 5], hex(&body));
    // To others than internal neighbours no LOCAL_PREF.
    let out = announced(&EBGP, &attributes, &[prefix("192.0.2.1/32")]);
    assert_eq!(out[23..out.len() - 5], hex(&body.replace("400504 00000064", "")));
}

#[test]
fn rfc9774_a_path_is_a_sequence_and_empty_on_ibgp() {
    let attributes = PathAttributes { as_path: vec![], ..plain("10.0.0.1") };
    assert_eq!(announced(&IBGP, &attributes, &[prefix("192.0.2.1/32")])[27..30], hex("400200"));
    let long = PathAttributes { as_path: vec![Asn(65_010); 300], ..plain("10.0.0.1") };
    let update = &updates(&announced(&EBGP, &long, &[prefix("192.0.2.1/32")]), &EBGP)[0];
    let path = update.as_path().unwrap();
    assert_eq!(
        path.iter().map(|segment| (segment.kind.code(), segment.asns.len())).collect::<Vec<_>>(),
        [(2, 255), (2, 45)]
    );
}

#[test]
fn rfc6793_a_peer_of_two_octets_gets_as_trans_and_as4_path_only_where_a_number_is_lost() {
    let two = Codec { four_octet_as: false, ..EBGP };
    let out = announced(&two, &plain("10.0.0.1"), &[prefix("192.0.2.1/32")]);
    assert_eq!(out[27..34], hex("400204 0201 fdf2"));
    assert_eq!(updates(&out, &two)[0].attributes.len(), 3);
    let large = PathAttributes { as_path: vec![Asn(65_010), Asn(4_200_000_001)], ..plain("10.0.0.1") };
    let update = &updates(&announced(&two, &large, &[prefix("192.0.2.1/32")]), &two)[0];
    assert_eq!(update.faults, []);
    let old = update.find(|value| if let AttributeValue::AsPath(path) = value { Some(path) } else { None });
    assert_eq!(old.unwrap()[0].asns, [Asn(65_010), Asn::TRANS]);
    assert_eq!(update.as_path().unwrap()[0].asns, large.as_path);
}

#[test]
fn rfc2545_next_hops_are_global_link_local_or_both() {
    let global = "2001:db8::1".parse().unwrap();
    let local = "fe80::1".parse().unwrap();
    let cases = [(Some(global), None, 16), (Some(global), Some(local), 32), (None, Some(local), 16)];
    for (global, link_local, length) in cases {
        let next_hop = NextHop::V6 { global, link_local };
        let attributes = PathAttributes { next_hop, ..plain("10.0.0.1") };
        let out = announced(&EBGP, &attributes, &[prefix("2001:db8::2/128")]);
        assert_eq!(out[29], length);
        let got = updates(&out, &EBGP)[0].find(|value| match value {
            AttributeValue::MpReach { next_hop, .. } => Some(*next_hop),
            _ => None,
        });
        assert_eq!(got, Some(next_hop));
    }
}

#[test]
fn rfc8950_ipv4_over_ipv6_goes_out_only_where_it_was_negotiated() {
    let over = Codec { extended_next_hop: true, ..EBGP };
    let v6 = plain("2001:db8::1");
    let mut out = Vec::new();
    let prefixes = [prefix("192.0.2.1/32")];
    let refused = Err(EncodeError::NextHop(Family::Ipv4));
    assert_eq!(announce(&mut out, &EBGP, &v6, Family::Ipv4, prefixes), refused);
    assert_eq!(check(&EBGP, &v6, Family::Ipv4).err(), Some(EncodeError::NextHop(Family::Ipv4)));
    let v4 = plain("10.0.0.1");
    assert_eq!(announce(&mut out, &over, &v4, Family::Ipv6, []), Err(EncodeError::NextHop(Family::Ipv6)));
    let none = PathAttributes { next_hop: NextHop::V6 { global: None, link_local: None }, ..plain("10.0.0.1") };
    for family in Family::ALL {
        assert_eq!(announce(&mut out, &over, &none, family, []), Err(EncodeError::NextHop(family)));
    }
    assert_eq!(out, [], "nothing is written");
    let update = &updates(&announced(&over, &v6, &prefixes), &over)[0];
    assert_eq!(update.announced, [], "all in MP_REACH_NLRI");
    assert_eq!(update.all_announced().collect::<Vec<_>>(), prefixes);
}

#[test]
fn many_routes_are_packed_up_to_the_limit_and_no_byte_beyond() {
    for codec in [EBGP, Codec { extended_message: true, ..EBGP }] {
        for (family, hop) in [(Family::Ipv4, "10.0.0.1"), (Family::Ipv6, "2001:db8::1")] {
            let prefixes = hosts(family, 5000);
            let size = if family == Family::Ipv4 { 5 } else { 17 };
            let out = announced(&codec, &plain(hop), &prefixes);
            let lengths = lengths(&out);
            let (last, full) = lengths.split_last().unwrap();
            assert!(
                full.iter().all(|length| *length <= codec.limit() && *length + size > codec.limit()),
                "{lengths:?}"
            );
            assert!(*last <= codec.limit());
            let got: Vec<Prefix> =
                updates(&out, &codec).iter().flat_map(|update| update.all_announced().collect::<Vec<_>>()).collect();
            assert_eq!(got, prefixes, "each once, in order");
        }
    }
}

#[test]
fn many_withdrawals_are_packed_up_to_the_limit_and_carry_nothing_else() {
    for family in Family::ALL {
        let prefixes = hosts(family, 5000);
        let mut out = Vec::new();
        let messages = withdraw(&mut out, &EBGP, family, prefixes.iter().copied());
        let per_message = if family == Family::Ipv4 { (4096 - 23) / 5 } else { (4096 - 23 - 7) / 17 };
        assert_eq!(messages, 5000_usize.div_ceil(per_message));
        let lengths = lengths(&out);
        assert!(lengths.iter().all(|length| *length <= MAX_LEN), "{lengths:?}");
        let updates = updates(&out, &EBGP);
        let got: Vec<Prefix> = updates.iter().flat_map(|update| update.all_withdrawn().collect::<Vec<_>>()).collect();
        assert_eq!(got, prefixes);
        let attributes = usize::from(family == Family::Ipv6);
        assert!(updates.iter().all(|update| update.attributes.len() == attributes && update.announced.is_empty()));
    }
}

#[test]
fn withdrawals_are_these() {
    let mut out = Vec::new();
    withdraw(&mut out, &EBGP, Family::Ipv4, [prefix("192.0.2.1/32"), prefix("10.0.0.0/8")]);
    assert_eq!(out, hex("ffffffffffffffffffffffffffffffff 001e 02 0007 20c0000201080a 0000"));
    out.clear();
    withdraw(&mut out, &EBGP, Family::Ipv6, [prefix("2001:db8::/32")]);
    assert_eq!(out, hex("ffffffffffffffffffffffffffffffff 0022 02 0000 000b 800f08 0002 01 2020010db8"));
}

#[test]
fn nothing_to_say_is_no_message() {
    let mut out = Vec::new();
    assert_eq!(announce(&mut out, &EBGP, &plain("10.0.0.1"), Family::Ipv4, []), Ok(0));
    assert_eq!(withdraw(&mut out, &EBGP, Family::Ipv6, []), 0);
    assert_eq!(out, []);
}

#[test]
fn what_is_in_the_buffer_stays() {
    let mut out = vec![1, 2, 3];
    announce(&mut out, &EBGP, &plain("2001:db8::1"), Family::Ipv6, hosts(Family::Ipv6, 1000)).unwrap();
    withdraw(&mut out, &EBGP, Family::Ipv4, hosts(Family::Ipv4, 1000));
    end_of_rib(&mut out, Family::Ipv4);
    assert_eq!(out[..3], [1, 2, 3]);
    let updates = updates(&out[3..], &EBGP);
    assert_eq!(updates.iter().map(|update| update.all_announced().count()).sum::<usize>(), 1000);
    assert_eq!(updates.iter().map(|update| update.all_withdrawn().count()).sum::<usize>(), 1000);
    assert_eq!(updates.last().unwrap().end_of_rib(), Some(Family::Ipv4));
}

#[test]
fn rfc4724_the_ends_of_the_table_are_these() {
    let mut out = Vec::new();
    end_of_rib(&mut out, Family::Ipv4);
    assert_eq!(out, hex("ffffffffffffffffffffffffffffffff 0017 02 0000 0000"));
    out.clear();
    end_of_rib(&mut out, Family::Ipv6);
    assert_eq!(out, hex("ffffffffffffffffffffffffffffffff 001d 02 0000 0006 800f03 0002 01"));
}

#[test]
fn attributes_that_leave_no_room_for_a_prefix_are_refused_and_one_less_is_not() {
    for (family, hop) in [(Family::Ipv4, "10.0.0.1"), (Family::Ipv6, "2001:db8::1")] {
        let with = |communities: usize| PathAttributes { communities: vec![1; communities], ..plain(hop) };
        let most = (0..1024).rfind(|count| check(&EBGP, &with(*count), family).is_ok()).unwrap();
        let prefixes = hosts(family, 3);
        let out = announced(&EBGP, &with(most), &prefixes);
        assert!(lengths(&out).iter().all(|length| *length <= MAX_LEN));
        assert_eq!(updates(&out, &EBGP).iter().map(|update| update.all_announced().count()).sum::<usize>(), 3);
        let mut out = Vec::new();
        let refused = announce(&mut out, &EBGP, &with(most + 1), family, prefixes);
        assert!(matches!(refused, Err(EncodeError::TooLong { bytes, limit: 4096 }) if bytes > 4096), "{refused:?}");
        assert_eq!(out, []);
    }
}

#[test]
fn a_message_of_exactly_4096_bytes_is_written_and_read() {
    // 23 fixed, 4 ORIGIN, 9 AS_PATH, 7 NEXT_HOP, 4 + 4 n communities, 5 for each prefix: n = 1 leaves 4045, 809 prefixes.
    let attributes = PathAttributes { communities: vec![1, 2, 3], ..plain("10.0.0.1") };
    let fixed = 23 + 4 + 9 + 7 + 3 + 12;
    let mut prefixes = hosts(Family::Ipv4, 807);
    let rest = MAX_LEN - fixed - 807 * 5;
    assert_eq!(rest, 3, "a /16 fills it up");
    prefixes.push(prefix("172.16.0.0/16"));
    let out = announced(&EBGP, &attributes, &prefixes);
    assert_eq!(lengths(&out), [MAX_LEN]);
    assert_eq!(updates(&out, &EBGP)[0].announced, prefixes);
}

#[test]
fn absurd_attributes_are_refused_not_cut() {
    let long = Codec { extended_message: true, ..EBGP };
    let absurd = [
        PathAttributes { communities: vec![1; 20_000], ..plain("10.0.0.1") },
        PathAttributes { as_path: vec![Asn(1); 20_000], ..plain("10.0.0.1") },
        PathAttributes { large: vec![[1; 3]; 8000], extended: vec![[1; 8]; 9000], ..plain("10.0.0.1") },
    ];
    for attributes in absurd {
        for codec in [EBGP, long] {
            let mut out = Vec::new();
            let refused = announce(&mut out, &codec, &attributes, Family::Ipv4, hosts(Family::Ipv4, 1));
            assert!(matches!(refused, Err(EncodeError::TooLong { .. })), "{refused:?}");
            assert_eq!(out, []);
        }
    }
}

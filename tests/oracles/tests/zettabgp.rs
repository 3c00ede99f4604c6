//! zettabgp as oracle: it reads what we have validated. And its known faults, pinned: a release that mends one fails here,
//! and is to be looked at (why it stays off the session path: agent/docs/decisions).

use std::net::Ipv4Addr;
use std::panic::catch_unwind;
use std::process::{Command, Stdio};

use holdfast_bgp::types::{Family, NextHop, Origin, PathAttributes, Prefix};
use holdfast_bgp::wire::update::{announce, withdraw};
use holdfast_oracles::{CODEC, Rng, hex, routes, split};
use zettabgp::prelude::*;

/// A session of four octets over IPv4, without its guess at several paths per prefix.
fn session() -> BgpSessionParams {
    let id = Ipv4Addr::new(10, 0, 0, 1);
    let mut session =
        BgpSessionParams::new(65_010, 9, BgpTransportMode::IPv4, id, vec![BgpCapability::CapASN32(65_010)]);
    session.has_as32bit = true;
    session.fuzzy_pathid = false;
    session
}

fn read(body: &[u8]) -> Result<BgpUpdateMessage, BgpError> {
    let mut update = BgpUpdateMessage::new();
    update.decode_from(&session(), body).map(|()| update)
}

fn prefixes(addresses: &BgpAddrs) -> Vec<String> {
    match addresses {
        BgpAddrs::IPV4U(list) => list.iter().map(|it| format!("{}/{}", it.addr, it.prefixlen)).collect(),
        BgpAddrs::IPV6U(list) => list.iter().map(|it| format!("{}/{}", it.addr, it.prefixlen)).collect(),
        _ => vec![],
    }
}

fn same_attributes(update: &BgpUpdateMessage, said: &PathAttributes) {
    let path = update.get_attr_aspath().map(|path| &path.value[..]).unwrap_or_default();
    let path: Vec<u32> = path
        .iter()
        .flat_map(|item| match item {
            BgpASitem::Seq(sequence) => sequence.value.iter().map(|asn| asn.value).collect::<Vec<_>>(),
            BgpASitem::Set(set) => panic!("a set: {set:?}"),
        })
        .collect();
    assert_eq!(path, said.as_path.iter().map(|asn| asn.0).collect::<Vec<_>>());
    let origin = match update.get_attr_origin().expect("ORIGIN").value {
        BgpAttrOrigin::Igp => Origin::Igp,
        BgpAttrOrigin::Egp => Origin::Egp,
        BgpAttrOrigin::Incomplete => Origin::Incomplete,
    };
    assert_eq!(origin, said.origin);
    let find = |kind: fn(&BgpAttrItem) -> Option<u32>| update.attrs.iter().find_map(kind);
    assert_eq!(find(|it| if let BgpAttrItem::MED(med) = it { Some(med.value) } else { None }), said.med);
    assert_eq!(find(|it| if let BgpAttrItem::LocalPref(it) = it { Some(it.value) } else { None }), said.local_pref);
    let mut communities = said.communities.clone();
    communities.sort_unstable();
    communities.dedup();
    let theirs = update.get_attr_communitylist().map(|list| list.value.iter().map(|it| it.value).collect());
    assert_eq!(theirs.unwrap_or_else(Vec::new), communities);
    let mut large = said.large.clone();
    large.sort_unstable();
    large.dedup();
    let theirs = update
        .get_attr_largecommunitylist()
        .map(|list| list.value.iter().map(|it| [it.ga, it.ldp1, it.ldp2]).collect());
    assert_eq!(theirs.unwrap_or_else(Vec::new), large);
}

#[test]
fn what_we_announce_and_withdraw_it_reads_as_we_meant_it() {
    let mut rng = Rng(4);
    for _ in 0..500 {
        let (attributes, family, said) = routes(&mut rng);
        let mut out = Vec::new();
        announce(&mut out, &CODEC, &attributes, family, said.iter().copied()).expect("it fits");
        let expected: Vec<String> = said.iter().map(Prefix::to_string).collect();
        let mut got = Vec::new();
        for message in split(&out) {
            let update = read(&message[19..]).expect("it reads what we write");
            same_attributes(&update, &attributes);
            match family {
                Family::Ipv4 => got.extend(prefixes(&update.updates)),
                Family::Ipv6 => got.extend(prefixes(&update.get_mpupdates().expect("MP_REACH_NLRI").addrs)),
            }
            if let NextHop::V4(address) = attributes.next_hop {
                assert_eq!(update.get_attr_nexthop().expect("NEXT_HOP").value, address);
            }
        }
        assert_eq!(got, expected);
        let mut out = Vec::new();
        withdraw(&mut out, &CODEC, family, said.iter().copied());
        let mut got = Vec::new();
        for message in split(&out) {
            let update = read(&message[19..]).expect("it reads what we write");
            match family {
                Family::Ipv4 => got.extend(prefixes(&update.withdraws)),
                Family::Ipv6 => got.extend(prefixes(&update.get_mpwithdraws().expect("MP_UNREACH_NLRI").addrs)),
            }
        }
        assert_eq!(got, expected);
    }
}

#[test]
fn fault_1_it_writes_a_sequence_as_a_set() {
    let mut update = BgpUpdateMessage::new();
    update.attrs.push(BgpAttrItem::ASPath(BgpASpath::from([65_001])));
    let mut buffer = [0; 100];
    update.encode_to(&session(), &mut buffer).expect("it writes");
    let path = hex("50020006 01 01 0000fde9");
    assert!(buffer.windows(path.len()).any(|window| window == path), "mended? {buffer:02x?}");
}

/// Not run but by the test below, in a process of its own: it takes all memory there is.
#[test]
#[ignore = "takes all memory"]
fn endless() {
    let _ = read(&hex("0000001d40010100500200070101fa56ea014003040a000001d0080004ffff0000"));
}

/// The same without the byte.
#[test]
#[ignore = "only beside the other"]
fn finite() {
    read(&hex("0000 0015 40010100 50020006 0101fa56ea01 4003040a000001 00")).expect("it reads");
}

#[test]
fn fault_2_one_byte_after_an_as_path_takes_all_memory() {
    let this = std::env::current_exe().expect("this test's program");
    let succeeds = |test: &str| {
        let limited = format!("ulimit -v 400000; exec {} --ignored --exact {test}", this.display());
        let run = Command::new("sh").args(["-c", &limited]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.expect("sh").success()
    };
    assert!(succeeds("finite"), "the limit leaves room for what is right");
    assert!(!succeeds("endless"), "mended?");
}

#[test]
fn fault_3_it_panics_on_short_attributes() {
    // A header cut short, communities of three bytes, a large community of two, MP_REACH_NLRI without its next hop.
    for body in ["0000000140", "0000 0007 c00803fde80100", "0000 0005 c02002 0000", "0000 0007 800e04 0002 01 10"] {
        assert!(catch_unwind(|| read(&hex(body)).is_ok()).is_err(), "mended? {body}");
    }
}

#[test]
fn fault_5_an_ipv6_next_hop_of_ipv4_prefixes_is_cut_to_four_bytes() {
    let body = hex("0000 0028 800e1a 0001 01 10 20010db8000000000000000000000001 00 20c0000201 40010100 400200");
    let body = [&hex("0000 0024")[..], &body[4..]].concat();
    let update = read(&body).expect("it reads");
    let hop = format!("{:?}", update.get_mpupdates().expect("MP_REACH_NLRI").nexthop);
    assert!(hop.contains("32.1.13.184"), "mended? {hop}");
}

#[test]
fn fault_6_the_transports_family_is_taken_for_that_of_prefixes_in_the_body() {
    let mut session = session();
    session.peer_mode = BgpTransportMode::IPv6;
    let mut update = BgpUpdateMessage::new();
    update.decode_from(&session, &hex("0005 20c0000201 0000")).expect("it reads");
    assert_eq!(prefixes(&update.withdraws), ["c000:201::/32"], "mended?");
}

#[test]
fn fault_7_a_shutdowns_text_is_lost() {
    let mut notification = BgpNotificationMessage::new();
    notification.decode_from(&session(), &hex("0602 03627965")).expect("it reads");
    let BgpNotificationMessage { data, .. } = notification;
    let _: u16 = data; // Two bytes are all it has room for: if this no longer compiles, it was mended.
}

#[test]
fn fault_8_a_host_name_with_a_domain_fails_the_whole_open() {
    let mut open = BgpOpenMessage::new();
    let body = hex("04 fde9 0009 0a000001 0b 0209 4907 02 6e31 03 782e79");
    assert!(open.decode_from(&session(), &body).is_err(), "mended?");
}

//! Messages in words, as `holdfast bgp decode` prints them.

use holdfast_bgp::types::{Asn, Family, PathAttributes, RouterId};
use holdfast_bgp::wire::update::{announce, end_of_rib, withdraw};
use holdfast_bgp::wire::{
    Capability, Cease, Codec, Description, GracefulFamily, GracefulRestart, Notification, Open, RefreshKind,
    RouteRefresh, community,
};

use super::{EBGP, frame, hex, message, plain, prefix};

fn words(bytes: &[u8]) -> String {
    let frame = frame(bytes);
    Description::of(&frame, &Codec::guess(&frame)).to_string()
}

#[test]
fn an_open_in_words() {
    let open = Open {
        asn: Asn(4_200_000_001),
        hold_time_s: 9,
        router_id: RouterId::new([10, 0, 0, 1].into()).unwrap(),
        capabilities: vec![
            Capability::family(Family::Ipv4),
            Capability::Multiprotocol { afi: 1, safi: 128 },
            Capability::RouteRefresh,
            Capability::ipv4_over_ipv6(),
            Capability::GracefulRestart(GracefulRestart {
                restarting: true,
                notification: true,
                restart_time_s: 15,
                families: vec![GracefulFamily::new(Family::Ipv4, true), GracefulFamily::new(Family::Ipv6, false)],
            }),
            Capability::FourOctetAs(Asn(4_200_000_001)),
            Capability::Fqdn { host: "r1\n".into(), domain: String::new() },
            Capability::Other { code: 200, value: vec![0xbe, 0xef] },
        ],
    };
    let mut out = Vec::new();
    open.encode(&mut out);
    let expected = "\
OPEN, 82 bytes
  AS 4200000001
  identifier 10.0.0.1
  hold time 9 s
  capabilities
    IPv4 unicast
    IPv4 VPN
    route refresh
    extended next hop: IPv4 unicast over IPv6
    graceful restart within 15 s, has restarted, NOTIFICATION included: IPv4 unicast kept, IPv6 unicast
    four-octet AS 4200000001
    name \"r1\\n\"
    capability 200: beef";
    assert_eq!(words(&out), expected);
}

#[test]
fn a_route_in_words() {
    let attributes = PathAttributes {
        med: Some(100),
        communities: vec![0xfde8_0064, community::GRACEFUL_SHUTDOWN],
        large: vec![[65_000, 1, 2]],
        extended: vec![community::link_bandwidth(Asn(65_010), 1.25e9)],
        ..plain("2001:db8::1")
    };
    let mut out = Vec::new();
    let prefixes = [prefix("2001:db8:1::1/128"), prefix("2001:db8:2::/48")];
    announce(&mut out, &EBGP, &attributes, Family::Ipv6, prefixes).unwrap();
    let expected = "\
UPDATE, 128 bytes
  attributes
    MP_REACH_NLRI: IPv6 unicast, next hop 2001:db8::1
      2001:db8:1::1/128
      2001:db8:2::/48
    ORIGIN: IGP
    AS_PATH: 65010
    MULTI_EXIT_DISC: 100
    COMMUNITIES: 65000:100 graceful-shutdown
    EXTENDED_COMMUNITIES: link bandwidth 10000000000 bit/s (AS 65010)
    LARGE_COMMUNITY: 65000:1:2";
    assert_eq!(words(&out), expected);
}

#[test]
fn withdrawals_and_ends_of_tables_in_words() {
    let mut out = Vec::new();
    withdraw(&mut out, &EBGP, Family::Ipv4, [prefix("192.0.2.1/32")]);
    assert_eq!(words(&out), "UPDATE, 28 bytes\n  withdrawn\n    192.0.2.1/32");
    out.clear();
    end_of_rib(&mut out, Family::Ipv6);
    assert_eq!(words(&out), "UPDATE, 29 bytes\n  End-of-RIB of IPv6 unicast");
}

#[test]
fn what_is_wrong_stands_below_what_could_be_read() {
    let update = message(2, &hex("0000 0018 40010107 40020602010000fde9 4003040a000001 c06301ff 00"));
    let expected = "\
UPDATE, 48 bytes
  attributes
    AS_PATH: 65001
    NEXT_HOP: 10.0.0.1
    optional transitive 99: ff
  announced
    0.0.0.0/0
  wrong
    unknown ORIGIN 7: treated as withdrawn";
    assert_eq!(words(&update), expected);
}

#[test]
fn a_message_that_is_refused_says_why_and_what_is_answered() {
    let update = message(2, &hex("0000 0005 0102"));
    let expected = "\
UPDATE, 25 bytes
  refused: the lengths of withdrawn routes and attributes exceed the message
  answer: UPDATE message error: malformed attribute list
  body: 000000050102";
    assert_eq!(words(&update), expected);
}

#[test]
fn the_others_in_words() {
    let mut out = Vec::new();
    Notification::cease_with_text(Cease::AdministrativeShutdown, "drained").encode(&mut out);
    let expected = "\
NOTIFICATION, 29 bytes: Cease: administrative shutdown: \"drained\"
  code 6, subcode 2
  data: 07647261696e6564";
    assert_eq!(words(&out), expected);
    out.clear();
    RouteRefresh::new(RefreshKind::Begin, Family::Ipv6).encode(&mut out);
    assert_eq!(words(&out), "ROUTE-REFRESH, 23 bytes: beginning of IPv6 unicast");
}

#[test]
fn the_width_of_as_numbers_is_guessed_from_what_makes_sense() {
    let two = Codec { four_octet_as: false, ..EBGP };
    for codec in [EBGP, two] {
        let attributes = PathAttributes { as_path: vec![Asn(65_010), Asn(4_200_000_001)], ..plain("10.0.0.1") };
        let mut out = Vec::new();
        announce(&mut out, &codec, &attributes, Family::Ipv4, [prefix("192.0.2.1/32")]).unwrap();
        assert_eq!(Codec::guess(&frame(&out)).four_octet_as, codec.four_octet_as);
        assert!(!words(&out).contains("wrong"));
    }
}

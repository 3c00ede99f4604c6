//! OPEN and its capabilities: RFC 4271 sections 4.2 and 6.2, RFC 5492, RFC 6793, RFC 9072.

use holdfast_bgp::types::{Asn, Families, Family, RouterId};
use holdfast_bgp::wire::{Capability, GracefulFamily, GracefulRestart, Open, OpenError};

use super::{answer, frame, hex};

/// Version 4, AS 65001, hold time 9, identifier 10.0.0.1.
const FIXED: &str = "04 fde9 0009 0a000001";

fn decode(parameters: &str) -> Result<Open, OpenError> {
    Open::decode(&hex(&format!("{FIXED} {parameters}")))
}

fn open(capabilities: Vec<Capability>) -> Open {
    let router_id = RouterId::new([10, 0, 0, 1].into()).unwrap();
    Open { asn: Asn(65_001), hold_time_s: 9, router_id, capabilities }
}

fn encoded(open: &Open) -> Vec<u8> {
    let mut out = Vec::new();
    open.encode(&mut out);
    frame(&out).body.to_vec()
}

#[test]
fn s4_2_an_open_without_capabilities_speaks_ipv4_and_two_octets() {
    let open = decode("00").unwrap();
    assert_eq!(open, self::open(vec![]));
    assert_eq!(open.families(), Families { ipv4: true, ipv6: false });
    assert!(!open.four_octet_as() && !open.route_refresh() && open.graceful_restart().is_none());
    assert_eq!(encoded(&open), hex(&format!("{FIXED} 00")));
}

#[test]
fn s6_2_each_field_has_its_error() {
    let case = |text: &str| answer(Open::decode(&hex(text)).unwrap_err());
    assert_eq!(case("03 fde9 0009 0a000001 00"), (2, 1, vec![0, 4]), "and the version we speak");
    assert_eq!(case("05 fde9 0009 0a000001 00"), (2, 1, vec![0, 4]));
    assert_eq!(case("04 0000 0009 0a000001 00"), (2, 2, vec![]));
    assert_eq!(case("04 fde9 0001 0a000001 00"), (2, 6, vec![]));
    assert_eq!(case("04 fde9 0002 0a000001 00"), (2, 6, vec![]));
    assert_eq!(case("04 fde9 0009 00000000 00"), (2, 3, vec![]));
    assert_eq!(case("04 fde9 0009 0a000001 02 0100"), (2, 4, vec![]), "authentication, which is gone");
    for hold in ["0000", "0003", "ffff"] {
        assert!(Open::decode(&hex(&format!("04 fde9 {hold} 0a000001 00"))).is_ok());
    }
}

#[test]
fn s6_2_parameters_that_dont_add_up_are_malformed() {
    // Length of all beyond the end, or before it; of one beyond the end; a capability's beyond its parameter's.
    for wrong in ["04 0200", "02 0200 00", "03 0202 41", "02 0201", "04 0202 4104", "05 0203 410100", "01 02", ""] {
        assert_eq!(answer(decode(wrong).unwrap_err()), (2, 0, vec![]), "{wrong}");
    }
}

#[test]
fn rfc5492_capabilities_in_one_parameter_or_in_many_are_the_same() {
    let one = decode("10 020e 0104 0001 0001 0200 4104 0000fde9").unwrap();
    let many = decode("14 0206 0104 0001 0001 0202 0200 0206 4104 0000fde9").unwrap();
    assert_eq!(one, many);
    let expected =
        vec![Capability::family(Family::Ipv4), Capability::RouteRefresh, Capability::FourOctetAs(Asn(65_001))];
    assert_eq!(one.capabilities, expected);
}

#[test]
fn rfc5492_repeated_and_unknown_capabilities_are_no_error() {
    let open = decode("16 0214 0104 0001 0001 0104 0001 0001 0200 0200 f302 beef").unwrap();
    assert_eq!(open.capabilities.len(), 5);
    assert_eq!(open.capabilities[4], Capability::Other { code: 0xf3, value: vec![0xbe, 0xef] });
    assert_eq!(open.families(), Families { ipv4: true, ipv6: false });
}

#[test]
fn rfc5492_an_empty_parameter_holds_no_capability() {
    assert_eq!(decode("02 0200").unwrap().capabilities, vec![]);
}

#[test]
fn a_capability_that_cant_be_read_is_kept_and_ignored() {
    // Route refresh with a value, graceful restart of three bytes, extended next hop of five, FQDN cut short.
    let cases =
        [("05 0203 020100", 2), ("07 0205 4003 000000", 64), ("09 0207 0505 0001000100", 5), ("06 0204 4902 0561", 73)];
    for (text, code) in cases {
        let open = decode(text).unwrap();
        assert!(matches!(&open.capabilities[..], [Capability::Other { code: c, .. }] if *c == code), "{open:?}");
        assert!(!open.route_refresh() && open.graceful_restart().is_none() && !open.ipv4_over_ipv6());
    }
}

#[test]
fn a_capability_that_decides_how_we_read_must_be_whole() {
    for text in ["07 0205 4103 00fde9", "05 0203 010100", "09 0207 4105 0000fde900"] {
        assert_eq!(answer(decode(text).unwrap_err()), (2, 0, vec![]), "{text}");
    }
}

#[test]
fn rfc6793_the_capabilitys_number_counts_and_the_two_octets_mustnt_contradict() {
    let with = |two: &str, four: &str| {
        Open::decode(&hex(&format!("04 {two} 0009 0a000001 08 0206 4104 {four}"))).map(|open| open.asn)
    };
    assert_eq!(with("5ba0", "fa56ea01"), Ok(Asn(4_200_000_001)));
    assert_eq!(with("fde9", "0000fde9"), Ok(Asn(65_001)));
    // AS_TRANS although it would fit: tolerated.
    assert_eq!(with("5ba0", "0000fde9"), Ok(Asn(65_001)));
    for (two, four) in [("fde9", "fa56ea01"), ("fde9", "0000fdea"), ("fde9", "00000000"), ("0000", "0000fde9")] {
        assert_eq!(answer(with(two, four).unwrap_err()), (2, 2, vec![]), "{two} {four}");
    }
    let twice = decode("0e 020c 4104 0000fde9 4104 0000fdea");
    assert_eq!(answer(twice.unwrap_err()), (2, 2, vec![]), "two numbers");
}

#[test]
fn rfc6793_a_large_number_is_as_trans_in_the_fixed_part() {
    let large = Open { asn: Asn(4_200_000_001), ..open(vec![Capability::FourOctetAs(Asn(4_200_000_001))]) };
    assert_eq!(encoded(&large), hex("04 5ba0 0009 0a000001 08 0206 4104 fa56ea01"));
    assert_eq!(Open::decode(&encoded(&large)), Ok(large));
}

#[test]
fn rfc9072_the_extended_form_is_read() {
    // 255, 255, length of all; then parameters with lengths of two octets.
    let open = decode("ff ff 0012 02 0006 4104 0000fde9 02 0006 0104 0002 0001").unwrap();
    assert_eq!(open.capabilities, vec![Capability::FourOctetAs(Asn(65_001)), Capability::family(Family::Ipv6)]);
    // The length before it should be 255, and is ignored: but 0 says that there is none.
    assert_eq!(decode("01 ff 0009 02 0006 4104 0000fde9").unwrap().capabilities.len(), 1);
    assert!(decode("00 ff 0009 02 0006 4104 0000fde9").is_err());
    // One of more than 255 bytes: what it's for.
    let long = format!("ff ff 0107 02 0104 {} 4104 0000fde9", "f3fc".to_owned() + &"00".repeat(252));
    assert_eq!(decode(&long).unwrap().capabilities.len(), 2);
    for wrong in ["ff ff 0013 02 0006 4104 0000fde9", "ff ff 0009 02 0007 4104 0000fde9", "ff ff 00", "ff ff"] {
        assert_eq!(answer(decode(wrong).unwrap_err()), (2, 0, vec![]), "{wrong}");
    }
}

#[test]
fn rfc9072_the_extended_form_is_written_only_where_its_needed() {
    let filler = |length| Capability::Other { code: 0xf3, value: vec![0; length] };
    // 252 bytes of capabilities are the most whose parameters have 254, below the length that means the extended form.
    let most = open(vec![filler(250)]);
    assert_eq!(encoded(&most)[9..12], [254, 2, 252]);
    assert_eq!(Open::decode(&encoded(&most)), Ok(most));
    for length in [251, 252, 253, 254, 255] {
        let more = open(vec![filler(length)]);
        assert_eq!(encoded(&more)[9..11], [255, 255], "{length}");
        assert_eq!(Open::decode(&encoded(&more)), Ok(more));
    }
}

#[test]
fn an_open_is_never_longer_than_4096_bytes() {
    let filler = Capability::Other { code: 0xf3, value: vec![0; 255] };
    let mut out = Vec::new();
    open(vec![filler.clone(); 30]).encode(&mut out);
    assert!(out.len() <= 4096);
    let kept = Open::decode(frame(&out).body).unwrap().capabilities;
    assert!(kept.len() >= 15 && kept.iter().all(|capability| *capability == filler));
    // One that no length can tell is left out, and the others stay.
    let impossible = Capability::Other { code: 0xf3, value: vec![0; 256] };
    let body = encoded(&open(vec![impossible, Capability::RouteRefresh]));
    assert_eq!(Open::decode(&body).unwrap().capabilities, vec![Capability::RouteRefresh]);
}

#[test]
fn rfc4760_families_that_we_dont_speak_are_skipped() {
    let open = decode("14 0212 0104 0001 0080 0104 0002 0001 0104 0019 0046").unwrap();
    assert_eq!(open.families(), Families { ipv4: false, ipv6: true });
    let none = decode("08 0206 0104 0001 0080").unwrap();
    assert_eq!(none.families(), Families::NONE, "who names families speaks only those");
}

#[test]
fn rfc4724_graceful_restart_has_its_bits_and_of_several_the_last_counts() {
    let open = decode("14 0212 4006 8078 0001 0180 4008 c00f 0001 0180").err();
    assert!(open.is_some(), "the second is cut short");
    let open = decode("14 0212 4006 8078 0001 0180 4008 400f 0001 0100 0002 0180");
    assert!(open.is_err(), "lengths must add up");
    let open = decode("16 0214 4006 8078 0001 0180 400a 400f 0001 0100 0002 0180").err();
    assert_eq!(open, None, "restart time and two families: ten bytes");
    let open = decode("16 0214 4006 8078 0001 0180 400a 400f 0001 0100 0002 0180").unwrap();
    let expected = GracefulRestart {
        restarting: false,
        notification: true,
        restart_time_s: 15,
        families: vec![GracefulFamily::new(Family::Ipv4, false), GracefulFamily::new(Family::Ipv6, true)],
    };
    assert_eq!(open.graceful_restart(), Some(&expected));
}

#[test]
fn every_capability_is_what_its_rfc_says() {
    let graceful = GracefulRestart {
        restarting: true,
        notification: true,
        restart_time_s: 0x0123,
        families: vec![GracefulFamily::new(Family::Ipv6, true)],
    };
    let cases = [
        (Capability::family(Family::Ipv6), "0104 0002 0001"),
        (Capability::RouteRefresh, "0200"),
        (Capability::ipv4_over_ipv6(), "0506 0001 0001 0002"),
        (Capability::ExtendedMessage, "0600"),
        (Capability::Role(3), "0901 03"),
        (Capability::GracefulRestart(graceful), "4006 c123 0002 0180"),
        (Capability::FourOctetAs(Asn(4_200_000_001)), "4104 fa56ea01"),
        (Capability::AddPath(vec![(1, 1, 3)]), "4504 0001 0103"),
        (Capability::EnhancedRouteRefresh, "4600"),
        (Capability::Fqdn { host: "n1".into(), domain: "x.org".into() }, "4909 02 6e31 05 782e6f7267"),
        (Capability::SoftwareVersion("FRR".into()), "4b04 03 465252"),
    ];
    for (capability, text) in cases {
        let value = hex(text);
        assert_eq!(value[0], capability.code());
        let length = value.len() as u8;
        let asn = if let Capability::FourOctetAs(asn) = capability { asn } else { Asn(65_001) };
        let open = Open { asn, ..open(vec![capability]) };
        let body = encoded(&open);
        assert_eq!(body[9..12], [length + 2, 2, length], "{text}");
        assert_eq!(body[12..], value, "{text}");
        assert_eq!(Open::decode(&body), Ok(open));
    }
}

#[test]
fn a_restart_time_too_long_for_its_field_is_the_longest() {
    let graceful = GracefulRestart { restart_time_s: 5000, ..GracefulRestart::default() };
    let body = encoded(&open(vec![Capability::GracefulRestart(graceful)]));
    assert_eq!(body[14..16], [0x0f, 0xff]);
}

#[test]
fn rfc8950_only_ipv4_over_ipv6_is_ours() {
    assert!(decode("0a 0208 0506 0001 0001 0002").unwrap().ipv4_over_ipv6());
    assert!(!decode("0a 0208 0506 0001 0080 0002").unwrap().ipv4_over_ipv6());
    assert!(decode("10 020e 050c 0001 0080 0002 0001 0001 0002").unwrap().ipv4_over_ipv6(), "beside others");
}

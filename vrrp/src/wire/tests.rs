use std::collections::BTreeSet;

use super::*;
use crate::leg::{ChecksumMode, LegConfig, Transport};

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
const SOURCE6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);

/// VRID 10, priority 254, 10 cs, one address; its checksum follows from `message`.
const V3: [u8; 12] = [0x31, 10, 254, 1, 0, 10, 0, 0, 192, 0, 2, 10];
/// VRID 10, priority 254, 1 s, one address.
const V2: [u8; 20] = [0x21, 10, 254, 1, 0, 1, 0, 0, 192, 0, 2, 10, 0, 0, 0, 0, 0, 0, 0, 0];

fn message_of(good: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = good.to_vec();
    change(&mut message);
    checksummed(message, ChecksumForm::Message, SOURCE.into(), GROUP.into())
}

fn checksummed(mut message: Vec<u8>, form: ChecksumForm, source: IpAddr, destination: IpAddr) -> Vec<u8> {
    if message.len() >= HEADER_LEN {
        message[6..8].fill(0);
        let checksum = checksum::of(&message, form, source, destination);
        message[6..8].copy_from_slice(&checksum);
    }
    message
}

fn packet(message: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let total = u8::try_from(20 + message.len()).unwrap();
    let mut packet = vec![0x45, 0xc0, 0, total, 0, 1, 0x40, 0, TTL, VRRP_PROTOCOL, 0, 0];
    packet.extend(SOURCE.octets());
    packet.extend(GROUP.octets());
    packet.extend(message);
    change(&mut packet);
    packet
}

fn with_ip(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    packet(&message_of(&V3, |_| {}), change)
}

fn v3(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    packet(&message_of(&V3, change), |_| {})
}

fn v2(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    packet(&message_of(&V2, change), |_| {})
}

/// RFC 9568 section 7.1, RFC 3768 section 7.1 and the header fields of section 5: one row or more for each refusal.
fn refusals() -> Vec<(&'static str, Vec<u8>, AdvertError)> {
    use AdvertError as E;
    vec![
        ("nothing", vec![], E::Truncated { have: 0, need: 20 }),
        ("half an IP header", with_ip(|p| p.truncate(19)), E::Truncated { have: 19, need: 20 }),
        ("IPv6", with_ip(|p| p[0] = 0x65), E::IpHeader),
        ("IHL below 5", with_ip(|p| p[0] = 0x44), E::IpHeader),
        ("total length inside the header", with_ip(|p| p[3] = 19), E::IpHeader),
        ("options beyond the total length", with_ip(|p| p[0] = 0x4f), E::IpHeader),
        ("total length beyond the packet", with_ip(|p| p[3] = 33), E::Truncated { have: 32, need: 33 }),
        ("UDP", with_ip(|p| p[9] = 17), E::Protocol(17)),
        ("first fragment", with_ip(|p| p[6] = 0x20), E::Fragment),
        ("last fragment", with_ip(|p| p[7] = 1), E::Fragment),
        ("TTL 254 to the group", with_ip(|p| p[8] = 254), E::Ttl(254)),
        ("TTL 0 to the group", with_ip(|p| p[8] = 0), E::Ttl(0)),
        (
            "TTL 254 to everybody",
            with_ip(|p| {
                p[8] = 254;
                p[16..20].fill(255);
            }),
            E::Ttl(254),
        ),
        ("from nowhere", with_ip(|p| p[12..16].fill(0)), E::Source(Ipv4Addr::UNSPECIFIED.into())),
        ("from a group", with_ip(|p| p[12] = 224), E::Source(Ipv4Addr::new(224, 0, 0, 1).into())),
        ("from everybody", with_ip(|p| p[12..16].fill(255)), E::Source(Ipv4Addr::BROADCAST.into())),
        ("no message", packet(&[], |_| {}), E::Truncated { have: 0, need: 8 }),
        ("half a header", v3(|m| m.truncate(7)), E::Truncated { have: 7, need: 8 }),
        ("VRRPv4", v3(|m| m[0] = 0x41), E::Version(4)),
        ("version 0", v3(|m| m[0] = 0x01), E::Version(0)),
        ("type 0", v3(|m| m[0] = 0x30), E::Type(0)),
        ("type 2", v3(|m| m[0] = 0x32), E::Type(2)),
        ("count 0", v3(|m| m[3] = 0), E::NoAddresses),
        ("count 2 of 1", v3(|m| m[3] = 2), E::Truncated { have: 12, need: 16 }),
        ("count 255 of 1", v3(|m| m[3] = 255), E::Truncated { have: 12, need: 1028 }),
        ("a trailer", v3(|m| m.extend([0; 8])), E::Trailing(8)),
        ("one bit", with_ip(|p| p[31] ^= 1), E::Checksum),
        ("VRID 0", v3(|m| m[1] = 0), E::Vrid),
        ("interval 0", v3(|m| m[5] = 0), E::Interval),
        ("interval 0 under reserved bits", v3(|m| m[4..6].copy_from_slice(&[0xf0, 0])), E::Interval),
        ("v2 without authentication data", v2(|m| m.truncate(12)), E::Truncated { have: 12, need: 20 }),
        ("v2 with half of it", v2(|m| m.truncate(16)), E::Truncated { have: 16, need: 20 }),
        ("v2 count 0", v2(|m| m[3] = 0), E::NoAddresses),
        ("v2 type 2", v2(|m| m[0] = 0x22), E::Type(2)),
        ("v2 with a trailer", v2(|m| m.push(0)), E::Trailing(1)),
        ("v2 with a password", v2(|m| m[4] = 1), E::AuthType(1)),
        ("v2 with an authentication header", v2(|m| m[4] = 2), E::AuthType(2)),
        ("v2 interval 0", v2(|m| m[5] = 0), E::Interval),
        ("v2 VRID 0", v2(|m| m[1] = 0), E::Vrid),
        ("v2, a bit in the authentication data", packet(&message_of(&V2, |_| {}), |p| p[39] ^= 1), E::Checksum),
        (
            "v2 with a pseudo-header",
            packet(&checksummed(V2.to_vec(), ChecksumForm::PseudoHeader, SOURCE.into(), GROUP.into()), |_| {}),
            E::Checksum,
        ),
    ]
}

fn v6(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = vec![0x31, 10, 254, 2, 0, 10, 0, 0];
    message.extend("fe80::200:5eff:fe00:20a".parse::<Ipv6Addr>().unwrap().octets());
    message.extend("2001:db8::10".parse::<Ipv6Addr>().unwrap().octets());
    change(&mut message);
    checksummed(message, ChecksumForm::PseudoHeader, SOURCE6.into(), GROUP6.into())
}

/// What, source, destination, hop limit, message, refusal.
type RowV6 = (&'static str, Ipv6Addr, Ipv6Addr, u8, Vec<u8>, AdvertError);

/// The same for IPv6.
fn refusals_v6() -> Vec<RowV6> {
    use AdvertError as E;
    let sent = |message| (SOURCE6, GROUP6, TTL, message);
    let plain = checksummed(v6(|_| {}), ChecksumForm::Message, SOURCE6.into(), GROUP6.into());
    let row = |name, (source, destination, ttl, message), error| (name, source, destination, ttl, message, error);
    vec![
        row("hop limit 254", (SOURCE6, GROUP6, 254, v6(|_| {})), E::Ttl(254)),
        row("from nowhere", (Ipv6Addr::UNSPECIFIED, GROUP6, TTL, v6(|_| {})), E::Source(Ipv6Addr::UNSPECIFIED.into())),
        row("from a group", (GROUP6, GROUP6, TTL, v6(|_| {})), E::Source(GROUP6.into())),
        row("nothing", sent(vec![]), E::Truncated { have: 0, need: 8 }),
        row("VRRPv2", sent(v6(|m| m[0] = 0x21)), E::Version2),
        row("VRRPv4", sent(v6(|m| m[0] = 0x41)), E::Version(4)),
        row("type 2", sent(v6(|m| m[0] = 0x32)), E::Type(2)),
        row("count 0", sent(v6(|m| m[3] = 0)), E::NoAddresses),
        row("count 3 of 2", sent(v6(|m| m[3] = 3)), E::Truncated { have: 40, need: 56 }),
        row("half an address", sent(v6(|m| m.truncate(32))), E::Truncated { have: 32, need: 40 }),
        row("a trailer", sent(v6(|m| m.extend([0; 16]))), E::Trailing(16)),
        row("without pseudo-header", sent(plain), E::Checksum),
        row("another destination", (SOURCE6, SOURCE6, TTL, v6(|_| {})), E::Checksum),
        row("VRID 0", sent(v6(|m| m[1] = 0)), E::Vrid),
        row("interval 0", sent(v6(|m| m[5] = 0)), E::Interval),
    ]
}

#[test]
fn every_malformed_packet_is_refused_by_its_own_error() {
    for (name, packet, error) in refusals() {
        assert_eq!(decode_v4(&packet), Err(error), "{name}");
    }
    for (name, source, destination, ttl, message, error) in refusals_v6() {
        assert_eq!(decode_v6(source, destination, ttl, &message), Err(error), "{name}");
    }
}

/// A leg and a packet that it refuses.
fn leg_refusals() -> Vec<(&'static str, LegConfig, Received, AdvertError)> {
    use AdvertError as E;
    let leg = |version, transport| LegConfig {
        vrid: Vrid::new(10).unwrap(),
        version,
        addresses: Addresses::new([Ipv4Addr::new(192, 0, 2, 10)]).unwrap(),
        transport,
        checksum: ChecksumMode::Auto,
    };
    let unicast = |min_ttl| Transport::Unicast { peers: vec![SOURCE.into()], min_ttl };
    let group = || decode_v4(&v3(|_| {})).unwrap();
    let to_us = |ttl| Received { destination: Ipv4Addr::new(10, 0, 0, 5).into(), ttl, ..group() };
    let second = AdvertInterval::DEFAULT;
    let of_v2 = |change: fn(&mut Vec<u8>)| decode_v4(&v2(change)).unwrap();
    let host = IpAddr::from([10, 0, 0, 5]);
    let stranger = IpAddr::from([10, 0, 0, 6]);
    let family = decode_v6(SOURCE6, GROUP6, TTL, &v6(|_| {})).unwrap();
    let v2_seconds = AdvertInterval::from_seconds(2).unwrap();
    let versions = |ours, theirs| E::VersionMismatch { ours, theirs };
    vec![
        ("to a host", leg(Version::V3, Transport::Multicast), to_us(255), E::ExpectedMulticast(host)),
        ("to the group", leg(Version::V3, unicast(1)), group(), E::ExpectedUnicast(GROUP.into())),
        (
            "to everybody",
            leg(Version::V3, unicast(1)),
            Received { destination: Ipv4Addr::BROADCAST.into(), ..group() },
            E::ExpectedUnicast(Ipv4Addr::BROADCAST.into()),
        ),
        (
            "from a stranger",
            leg(Version::V3, unicast(1)),
            Received { source: stranger, ..to_us(255) },
            E::UnknownPeer(stranger),
        ),
        ("over a router", leg(Version::V3, unicast(255)), to_us(254), E::TtlBelowMinimum { ttl: 254, min: 255 }),
        ("IPv6", leg(Version::V3, Transport::Multicast), family, E::Family(Family::V6)),
        ("v2 to v3", leg(Version::V3, Transport::Multicast), of_v2(|_| {}), versions(Version::V3, Version::V2)),
        ("v3 to v2", leg(Version::V2, Transport::Multicast), group(), versions(Version::V2, Version::V3)),
        (
            "v2 with 2 s",
            leg(Version::V2, Transport::Multicast),
            of_v2(|m| m[5] = 2),
            E::IntervalMismatch { ours: second, theirs: v2_seconds },
        ),
        ("v2, other address", leg(Version::V2, Transport::Multicast), of_v2(|m| m[11] = 99), E::AddressMismatch),
    ]
}

#[test]
fn a_leg_refuses_what_came_another_way_or_is_spoken_otherwise() {
    for (name, leg, received, error) in leg_refusals() {
        assert_eq!(leg.accept(&received, AdvertInterval::DEFAULT), Err(error), "{name}");
    }
}

#[test]
fn a_leg_takes_what_is_meant_for_it() {
    let (_, multicast, ..) = leg_refusals().remove(0);
    let group = decode_v4(&v3(|_| {})).unwrap();
    assert_eq!(multicast.accept(&group, AdvertInterval::DEFAULT), Ok(()), "v3: another interval is no reason");
    let others = decode_v4(&v3(|m| m[11] = 99)).unwrap();
    assert_eq!(multicast.accept(&others, AdvertInterval::DEFAULT), Ok(()), "v3: other addresses are no reason");
    let unicast = |min_ttl| LegConfig {
        transport: Transport::Unicast { peers: vec![SOURCE.into()], min_ttl },
        ..multicast.clone()
    };
    let routed = Received { destination: IpAddr::from([10, 0, 0, 5]), ttl: 254, ..group };
    assert_eq!(unicast(254).accept(&routed, AdvertInterval::DEFAULT), Ok(()));
    let v2_leg = LegConfig { version: Version::V2, ..multicast.clone() };
    let same = decode_v4(&v2(|_| {})).unwrap();
    assert_eq!(v2_leg.accept(&same, AdvertInterval::DEFAULT), Ok(()));
    let owner = decode_v4(&v2(|m| {
        m[2] = 255;
        m[11] = 99;
    }));
    assert_eq!(v2_leg.accept(&owner.unwrap(), AdvertInterval::DEFAULT), Ok(()), "an owner knows its addresses best");
}

#[test]
fn every_counter_has_a_refusal_and_its_own_name() {
    let errors = refusals().into_iter().map(|(.., error)| error);
    let errors = errors.chain(refusals_v6().into_iter().map(|(.., error)| error));
    let errors = errors.chain(leg_refusals().into_iter().map(|(.., error)| error));
    let seen: BTreeSet<_> = errors.map(|error| error.counter()).collect();
    let names: BTreeSet<_> = AdvertError::COUNTERS.into_iter().collect();
    assert_eq!(names.len(), AdvertError::COUNTERS.len(), "no name stands twice");
    assert_eq!(seen, names);
}

#[test]
fn the_unchanged_packets_are_accepted() {
    let received = decode_v4(&with_ip(|_| {})).unwrap();
    assert_eq!((received.source, received.destination, received.ttl), (SOURCE.into(), GROUP.into(), 255));
    assert_eq!((received.advert.vrid.get(), received.advert.priority.get()), (10, 254));
    assert_eq!((received.advert.version, received.advert.interval.cs()), (Version::V3, 10));
    assert_eq!(*received.advert.addresses, [IpAddr::from([192, 0, 2, 10])]);

    let received = decode_v4(&v2(|_| {})).unwrap();
    assert_eq!((received.advert.version, received.advert.interval.seconds()), (Version::V2, Some(1)));
    assert_eq!(received.checksum, ChecksumForm::Message);

    let received = decode_v6(SOURCE6, GROUP6, TTL, &v6(|_| {})).unwrap();
    assert_eq!((received.source, received.destination), (SOURCE6.into(), GROUP6.into()));
    assert_eq!(received.advert.addresses[0], IpAddr::V6(crate::types::link_local(received.advert.vrid)));
    assert_eq!(received.checksum, ChecksumForm::PseudoHeader);
}

#[test]
fn authentication_data_means_nothing() {
    let with_data = decode_v4(&v2(|m| m[12..20].copy_from_slice(b"password"))).unwrap();
    assert_eq!(with_data.advert, decode_v4(&v2(|_| {})).unwrap().advert);
}

#[test]
fn what_goes_to_a_host_may_have_come_over_routers_as_far_as_decoding_goes() {
    let routed = with_ip(|p| {
        p[8] = 3;
        p[16..20].copy_from_slice(&[10, 0, 0, 5]);
    });
    assert_eq!(decode_v4(&routed).unwrap().ttl, 3);
}

#[test]
fn the_old_checksum_is_accepted_and_told_apart() {
    let mut message = message_of(&V3, |_| {});
    // The pseudo-header by hand: 10.0.0.1 + 224.0.0.18 + 112 + 12 = 0a00+0001+e000+0012+0070+000c = ea8f.
    let plain = u32::from(u16::from_be_bytes([message[6], message[7]]));
    let with_pseudo = (plain + (0xffff - 0xea8f)) % 0xffff;
    message[6..8].copy_from_slice(&u16::try_from(with_pseudo).unwrap().to_be_bytes());
    assert_eq!(decode_v4(&packet(&message, |_| {})).unwrap().checksum, ChecksumForm::PseudoHeader);
    // The pseudo-header is that of this packet, no other.
    assert_eq!(decode_v4(&packet(&message, |p| p[15] = 2)), Err(AdvertError::Checksum));
    // But for the group in a packet that went to a host: keepalived up to 1.3.6.
    let unicast = packet(&message, |p| p[16..20].copy_from_slice(&[10, 0, 0, 5]));
    assert_eq!(decode_v4(&unicast).unwrap().checksum, ChecksumForm::PseudoHeader);
}

#[test]
fn an_interval_that_a_version_cant_carry_becomes_the_next_longer_one_and_never_0() {
    let advert = |version, cs| Advert {
        version,
        interval: AdvertInterval::from_cs(cs).unwrap(),
        ..decode_v4(&v3(|_| {})).unwrap().advert
    };
    let seconds = |cs| advert(Version::V2, cs).encode(ChecksumForm::Message, SOURCE.into(), GROUP.into())[5];
    assert_eq!((seconds(1), seconds(40), seconds(100), seconds(101), seconds(4095)), (1, 1, 1, 2, 41));
    let long = Advert { interval: AdvertInterval::MAX_V2, ..advert(Version::V3, 1) };
    assert_eq!(long.encode(ChecksumForm::Message, SOURCE.into(), GROUP.into())[4..6], [0x0f, 0xff]);
}

#[test]
fn a_refusal_says_what_was_wrong() {
    assert_eq!(AdvertError::Ttl(64).to_string(), "TTL 64, must be 255");
    assert_eq!(AdvertError::Truncated { have: 7, need: 8 }.to_string(), "truncated: 7 bytes where 8 are needed");
    let versions = AdvertError::VersionMismatch { ours: Version::V3, theirs: Version::V2 };
    assert_eq!(versions.to_string(), "VRRPv2, this virtual router speaks VRRPv3");
}

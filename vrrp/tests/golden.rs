//! Wire vectors that our encoder had no part in: worked out from the RFC, or captured from a peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use holdfast_vrrp::wire::{Advert, AdvertError, ChecksumForm, Received, decode_v4, decode_v6};
use holdfast_vrrp::{Addresses, AdvertInterval, Family, Priority, Version, Vrid, frames};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const IPV6_HEADER_LEN: usize = 40;
/// Vectors that are frames, not VRRP.
const FRAMES: [&str; 3] = ["gratuitous-arp", "unsolicited-na", "neighbour-solicitation"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/vrrp")
}

/// Lines that start with `#` are comments, the rest is hex, blanks ignored.
fn golden(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(folder().join(format!("{name}.hex"))).expect(name);
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).expect("a hex digit")).unwrap())
        .collect();
    digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect()
}

/// Hands a vector to the decoder as a socket would: whole for IPv4, for IPv6 without its header.
fn decode(packet: &[u8]) -> Result<Received, AdvertError> {
    if packet[0] >> 4 == 4 {
        return decode_v4(packet);
    }
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
    assert_eq!((packet[6], usize::from(packet[5])), (112, packet.len() - IPV6_HEADER_LEN));
    decode_v6(address(8), address(24), packet[7], &packet[IPV6_HEADER_LEN..])
}

fn advert(version: Version, vrid: u8, priority: u8, cs: u16, addresses: &[&str]) -> Advert {
    let interval = match version {
        Version::V2 => AdvertInterval::from_seconds(u8::try_from(cs / 100).unwrap()),
        Version::V3 => AdvertInterval::from_cs(cs),
    };
    Advert {
        version,
        vrid: Vrid::new(vrid).unwrap(),
        priority: Priority::from_wire(priority),
        interval: interval.unwrap(),
        addresses: Addresses::new(addresses.iter().map(|a| a.parse::<IpAddr>().unwrap())).unwrap(),
    }
}

fn received(advert: Advert, checksum: ChecksumForm) -> Received {
    let source = if advert.addresses.family() == Family::V4 { SOURCE.into() } else { "fe80::1".parse().unwrap() };
    Received { source, destination: Family::of(source).group(), ttl: 255, advert, checksum }
}

fn table() -> Vec<(&'static str, Result<Received, AdvertError>)> {
    use AdvertError as E;
    use ChecksumForm::{Message, PseudoHeader};
    let v2 = |priority, cs| advert(Version::V2, 10, priority, cs, &["192.0.2.10"]);
    let v3 = |priority, addresses: &[&str]| advert(Version::V3, 10, priority, 10, addresses);
    let one = || v3(254, &["192.0.2.10"]);
    let two = &["192.0.2.10", "192.0.2.11"];
    let v6 = |priority| v3(priority, &["fe80::200:5eff:fe00:20a", "2001:db8::10"]);
    let to_host = |checksum| Received { destination: HOST.into(), ..received(one(), checksum) };
    let v6_unicast = Received {
        source: "2001:db8::1".parse().unwrap(),
        destination: "2001:db8::2".parse().unwrap(),
        ttl: 63,
        ..received(v6(254), PseudoHeader)
    };
    vec![
        ("v2", Ok(received(v2(254, 100), Message))),
        ("v2-resign", Ok(received(v2(0, 100), Message))),
        ("v2-longest-interval", Ok(received(v2(254, 25_500), Message))),
        ("v2-authentication-data", Ok(received(v2(254, 100), Message))),
        ("keepalived-2.2.7-v2", Ok(received(advert(Version::V2, 10, 254, 100, two), Message))),
        ("v3-message-checksum", Ok(received(v3(254, two), Message))),
        ("v3-resign", Ok(received(v3(0, &["192.0.2.10"]), Message))),
        ("v3-ip-options", Ok(received(one(), Message))),
        ("v3-ethernet-padding", Ok(received(one(), Message))),
        ("v3-reserved-bits", Ok(received(one(), Message))),
        ("v3-longest-interval", Ok(received(advert(Version::V3, 255, 255, 4095, &["192.0.2.10"]), Message))),
        ("v3-pseudo-header", Ok(received(one(), PseudoHeader))),
        ("keepalived-2.2.7-v3-pseudo-header", Ok(received(v3(254, two), PseudoHeader))),
        ("v3-unicast", Ok(to_host(Message))),
        ("v3-unicast-pseudo-header", Ok(to_host(PseudoHeader))),
        ("v3-old-unicast", Ok(to_host(PseudoHeader))),
        ("v3-routed-unicast", Ok(Received { ttl: 62, ..to_host(Message) })),
        ("v6", Ok(received(v6(254), PseudoHeader))),
        ("v6-resign", Ok(received(v6(0), PseudoHeader))),
        ("v6-unicast", Ok(v6_unicast)),
        ("refused-v2-password", Err(E::AuthType(1))),
        ("refused-v2-short", Err(E::Truncated { have: 12, need: 20 })),
        ("refused-v2-interval-0", Err(E::Interval)),
        ("refused-interval-0", Err(E::Interval)),
        ("refused-count-0", Err(E::NoAddresses)),
        ("refused-ttl-254", Err(E::Ttl(254))),
        ("refused-checksum", Err(E::Checksum)),
        ("refused-v6-message-checksum", Err(E::Checksum)),
        ("refused-v6-hop-limit-254", Err(E::Ttl(254))),
        ("refused-v6-v2", Err(E::Version2)),
    ]
}

#[test]
fn every_vector_decodes_to_what_its_file_says() {
    for (name, expected) in table() {
        assert_eq!(decode(&golden(name)), expected, "{name}");
    }
}

#[test]
fn no_vector_is_left_out_of_the_tables() {
    let mut in_folder: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut in_tables: Vec<String> =
        table().into_iter().map(|(name, _)| name).chain(FRAMES).map(ToOwned::to_owned).collect();
    in_folder.sort();
    in_tables.sort();
    assert_eq!(in_folder, in_tables);
}

#[test]
fn what_we_encode_is_byte_for_byte_the_vector() {
    // Those that we would never send: reserved bits set, authentication data, and the old unicast form.
    let foreign = ["v3-reserved-bits", "v2-authentication-data", "v3-old-unicast"];
    for (name, expected) in table() {
        let (Ok(received), false) = (expected, foreign.contains(&name)) else { continue };
        let packet = golden(name);
        let header = match received.source {
            IpAddr::V4(_) => 4 * usize::from(packet[0] & 0x0f),
            IpAddr::V6(_) => IPV6_HEADER_LEN,
        };
        let encoded = received.advert.encode(received.checksum, received.source, received.destination);
        assert_eq!(encoded, packet[header..header + encoded.len()], "{name}");
        let padding = packet.len() - header - encoded.len();
        assert!(padding == 0 || name == "v3-ethernet-padding", "{name}");
    }
}

#[test]
fn the_frames_are_byte_for_byte_the_vectors() {
    let mac = [2, 0, 0, 0, 0, 1];
    let vip = "2001:db8::10".parse().unwrap();
    let frames: [(&str, Vec<u8>); 3] = [
        ("gratuitous-arp", frames::gratuitous_arp(mac, Ipv4Addr::new(192, 0, 2, 10)).into()),
        ("unsolicited-na", frames::unsolicited_na(mac, vip).into()),
        ("neighbour-solicitation", frames::neighbour_solicitation(mac, "fe80::1".parse().unwrap(), vip).into()),
    ];
    assert_eq!(frames.each_ref().map(|(name, _)| *name), FRAMES);
    for (name, frame) in frames {
        assert_eq!(frame, golden(name), "{name}");
    }
}

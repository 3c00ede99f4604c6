//! Wire vectors that our encoder had no part in: worked out from the RFC, or captured from a peer.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use holdfast_vrrp::wire::{Advert, AdvertError, ChecksumForm, MULTICAST_GROUP, Received, decode_packet};
use holdfast_vrrp::{Addresses, AdvertInterval, Priority, Vrid, frames};

const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const IP_HEADER_LEN: usize = 20;

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

fn advert(vrid: u8, priority: u8, cs: u16, addresses: &[[u8; 4]]) -> Advert {
    Advert {
        vrid: Vrid::new(vrid).unwrap(),
        priority: Priority::from_wire(priority),
        interval: AdvertInterval::from_cs(cs).unwrap(),
        addresses: Addresses::new(addresses.iter().copied().map(Ipv4Addr::from).collect::<Vec<_>>()).unwrap(),
    }
}

fn received(advert: Advert, checksum: ChecksumForm) -> Result<Received, AdvertError> {
    Ok(Received { source: SOURCE, destination: MULTICAST_GROUP, ttl: 255, advert, checksum })
}

fn table() -> Vec<(&'static str, Result<Received, AdvertError>)> {
    use ChecksumForm::{Message, PseudoHeader};
    let one = &[[192, 0, 2, 10]];
    let two = &[[192, 0, 2, 10], [192, 0, 2, 11]];
    vec![
        ("v3-message-checksum", received(advert(10, 254, 10, two), Message)),
        ("v3-resign", received(advert(10, 0, 10, one), Message)),
        ("v3-ip-options", received(advert(10, 254, 10, one), Message)),
        ("v3-ethernet-padding", received(advert(10, 254, 10, one), Message)),
        ("v3-reserved-bits", received(advert(10, 254, 10, one), Message)),
        ("v3-longest-interval", received(advert(255, 255, 4095, one), Message)),
        ("keepalived-2.2.7-v3-pseudo-header", received(advert(10, 254, 10, two), PseudoHeader)),
        ("refused-keepalived-2.2.7-v2", Err(AdvertError::Version2)),
        ("refused-interval-0", Err(AdvertError::Interval)),
        ("refused-count-0", Err(AdvertError::NoAddresses)),
        ("refused-ttl-254", Err(AdvertError::Ttl(254))),
        ("refused-checksum", Err(AdvertError::Checksum)),
    ]
}

#[test]
fn every_vector_decodes_to_what_its_file_says() {
    for (name, expected) in table() {
        assert_eq!(decode_packet(&golden(name)), expected, "{name}");
    }
}

#[test]
fn no_vector_is_left_out_of_the_table() {
    let mut in_folder: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !name.contains("-arp"))
        .collect();
    let mut in_table: Vec<String> = table().into_iter().map(|(name, _)| name.to_owned()).collect();
    in_folder.sort();
    in_table.sort();
    assert_eq!(in_folder, in_table);
}

#[test]
fn what_we_encode_is_byte_for_byte_the_vector() {
    for name in ["v3-message-checksum", "v3-resign", "v3-longest-interval"] {
        let packet = golden(name);
        let decoded = decode_packet(&packet).unwrap().advert;
        assert_eq!(decoded.encode(), packet[IP_HEADER_LEN..], "{name}");
    }
}

#[test]
fn a_gratuitous_arp_is_byte_for_byte_the_vector() {
    let frame = frames::gratuitous_arp([2, 0, 0, 0, 0, 1], Ipv4Addr::new(192, 0, 2, 10));
    assert_eq!(frame.as_slice(), golden("gratuitous-arp"));
}

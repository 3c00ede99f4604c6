//! The wire format: by clause of the RFCs, as properties, against other people's encodings, and against hostile bytes.

mod corpus;
mod describe;
mod hostile;
mod messages;
mod open;
mod packing;
mod properties;
mod revised;
mod stream;
mod update;
mod vectors;

use holdfast_bgp::types::{Asn, Family, NextHop, Origin, PathAttributes, Prefix};
use holdfast_bgp::wire::{Codec, Error, Frame, Message, Update, decode};

/// Bytes written in hex; blanks are for the eye.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    assert!(digits.len().is_multiple_of(2) && text.chars().all(|c| c.is_ascii_hexdigit() || c == ' '), "{text}");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A message of this type with this body.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap();
    [&[0xff; 16][..], &length.to_be_bytes(), &[kind], body].concat()
}

/// One whole message, long ones too.
fn frame(bytes: &[u8]) -> Frame<'_> {
    let (frame, rest) = Frame::split(bytes, true).unwrap().expect("a whole message");
    assert_eq!(rest, b"", "one message");
    frame
}

/// All messages of a buffer.
fn messages(mut bytes: &[u8], codec: &Codec) -> Vec<Message> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (frame, rest) = Frame::split(bytes, codec.extended_message).unwrap().expect("whole messages");
        messages.push(decode(&frame, codec).unwrap());
        bytes = rest;
    }
    messages
}

/// All UPDATEs of a buffer, which holds nothing else.
fn updates(bytes: &[u8], codec: &Codec) -> Vec<Update> {
    let update = |message| if let Message::Update(update) = message { update } else { panic!("{message:?}") };
    messages(bytes, codec).into_iter().map(update).collect()
}

/// Code, subcode and data of what answers an error.
fn answer(error: impl Into<Error>) -> (u8, u8, Vec<u8>) {
    let notification = error.into().notification().expect("an answer");
    (notification.code, notification.subcode, notification.data)
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// An ordinary eBGP session: four octets, both families, nothing more.
const EBGP: Codec = Codec {
    four_octet_as: true,
    extended_message: false,
    extended_next_hop: false,
    families: holdfast_bgp::types::Families::BOTH,
    internal: false,
};

/// Attributes with nothing optional.
fn plain(next_hop: &str) -> PathAttributes {
    PathAttributes {
        origin: Origin::Igp,
        as_path: vec![Asn(65_010)],
        med: None,
        local_pref: None,
        communities: Vec::new(),
        large: Vec::new(),
        extended: Vec::new(),
        next_hop: next_hop
            .parse()
            .map_or_else(|_| NextHop::V6 { global: Some(next_hop.parse().unwrap()), link_local: None }, NextHop::V4),
    }
}

/// So many prefixes of a family, all different: hosts.
fn hosts(family: Family, count: u32) -> Vec<Prefix> {
    let host = |n: u32| match family {
        Family::Ipv4 => Prefix::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into()),
        Family::Ipv6 => Prefix::host(std::net::Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(n)).into()),
    };
    (0..count).map(host).collect()
}

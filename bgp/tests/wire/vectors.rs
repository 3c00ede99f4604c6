//! ExaBGP's published encodings (vectors/exabgp.tsv): all are read; those of unicast routes are written byte for byte.

use holdfast_bgp::types::{Asn, Family, NextHop, Origin, PathAttributes, Prefix};
use holdfast_bgp::wire::update::{announce, end_of_rib, inspect, withdraw};
use holdfast_bgp::wire::{AttributeValue, Codec, Description, Error, Fault, Message, MessageType, Update, decode};

use super::{frame, hex};

pub(super) struct Vector {
    name: &'static str,
    pub(super) bytes: Vec<u8>,
    command: &'static str,
}

pub(super) fn vectors() -> Vec<Vector> {
    let lines = include_str!("../vectors/exabgp.tsv").lines().filter(|line| !line.starts_with('#'));
    let vector = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut field = || fields.next().expect("name, hex, command");
        Vector { name: field(), bytes: hex(field()), command: field() }
    };
    lines.map(vector).collect()
}

/// ExaBGP writes two-octet numbers only where it says so.
fn codec(vector: &Vector) -> Codec {
    Codec { four_octet_as: vector.name != "conf-no-asn4", ..Codec::LENIENT }
}

#[test]
fn every_message_is_read_or_refused_for_a_reason() {
    let vectors = vectors();
    assert!(vectors.len() > 240, "the vectors are there");
    let mut refused = Vec::new();
    let mut faulty = Vec::new();
    for vector in &vectors {
        let frame = frame(&vector.bytes);
        match decode(&frame, &codec(vector)) {
            Ok(Message::Update(update)) => {
                let inspected = inspect(frame.body, &codec(vector)).unwrap();
                assert_eq!(inspected.reaction(), update.reaction(), "{}", vector.name);
                faulty.extend(update.faults.iter().map(|fault| (vector.name, *fault)));
            }
            Ok(_) => {}
            Err(Error::Update(error)) => refused.push((vector.name, error.fault)),
            Err(error) => panic!("{}: {error}", vector.name),
        }
        assert!(!Description::of(&frame, &codec(vector)).to_string().is_empty());
    }
    let expected = [
        // Flags 0x60 and 0x70 make an unknown attribute a well-known one.
        ("conf-generic-attribute", Fault::UnknownWellKnown(0x99)),
        ("conf-generic-attribute", Fault::UnknownWellKnown(0x99)),
        // An IPv4 next hop for IPv6 prefixes.
        ("extended-nexthop", Fault::MalformedMp(14)),
    ];
    assert_eq!(refused, expected);
    // Its own tests run on loopback, and one announces 255.255.255.255: next hops that no router can have.
    assert!(faulty.iter().all(|(_, fault)| *fault == Fault::NextHop), "{faulty:?}");
    assert_eq!(faulty.len(), 14);
}

/// What ExaBGP was told to announce, if it's a unicast route that we could announce too.
fn wanted(update: &Update) -> Option<(PathAttributes, Family, Vec<Prefix>)> {
    use AttributeValue as V;
    let mut wanted = PathAttributes {
        origin: Origin::Igp,
        as_path: vec![],
        med: None,
        local_pref: None,
        communities: vec![],
        large: vec![],
        extended: vec![],
        next_hop: NextHop::V4([0; 4].into()),
    };
    let mut family = Family::Ipv4;
    let mut prefixes = update.announced.clone();
    for attribute in &update.attributes {
        match attribute.value.clone() {
            V::Origin(origin) => wanted.origin = origin,
            V::AsPath(path) => wanted.as_path = path.into_iter().flat_map(|segment| segment.asns).collect(),
            V::NextHop(address) => wanted.next_hop = NextHop::V4(address),
            V::Med(med) => wanted.med = Some(med),
            V::LocalPref(preference) => wanted.local_pref = Some(preference),
            V::Communities(list) => wanted.communities = list,
            V::ExtendedCommunities(list) => wanted.extended = list,
            V::LargeCommunities(list) => wanted.large = list,
            V::MpReach { family: its, next_hop, prefixes: its_prefixes } => {
                (family, wanted.next_hop, prefixes) = (its, next_hop, its_prefixes);
            }
            _ => return None,
        }
    }
    (!prefixes.is_empty() && update.withdrawn.is_empty()).then_some((wanted, family, prefixes))
}

/// The attributes one by one, sorted: ExaBGP writes MP_REACH_NLRI last, and with a long length always.
fn parts(body: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let length = usize::from(u16::from_be_bytes([body[2], body[3]]));
    let (mut attributes, announced) = body[4..].split_at(length);
    let mut parts = Vec::new();
    while let [flags, code, rest @ ..] = attributes {
        let (length, rest) = if flags & 0x10 == 0 {
            (usize::from(rest[0]), &rest[1..])
        } else {
            (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..])
        };
        let (value, rest) = rest.split_at(length);
        parts.push([&[flags & !0x10, *code], value].concat());
        attributes = rest;
    }
    parts.sort();
    (parts, announced.to_vec())
}

#[test]
fn unicast_routes_are_written_as_exabgp_writes_them() {
    let (mut exact, mut reordered) = (0, 0);
    for vector in vectors() {
        let codec = codec(&vector);
        let frame = frame(&vector.bytes);
        let Ok(Message::Update(update)) = decode(&frame, &codec) else { continue };
        let Some((attributes, family, prefixes)) = wanted(&update).filter(|_| update.faults.is_empty()) else {
            continue;
        };
        let mut out = Vec::new();
        announce(&mut out, &codec, &attributes, family, prefixes).unwrap();
        if out == vector.bytes {
            exact += 1;
        } else {
            assert_eq!(parts(self::frame(&out).body), parts(frame.body), "{} {}", vector.name, vector.command);
            reordered += 1;
        }
    }
    assert_eq!((exact, reordered), (94, 10));
}

#[test]
fn withdrawals_and_ends_of_tables_are_written_as_exabgp_writes_them() {
    let (mut withdrawals, mut ends) = (0, 0);
    for vector in vectors() {
        let frame = frame(&vector.bytes);
        let Ok(Message::Update(update)) = decode(&frame, &Codec::LENIENT) else { continue };
        let mut out = Vec::new();
        if let Some(family) = update.end_of_rib() {
            end_of_rib(&mut out, family);
            ends += 1;
        } else {
            let prefixes: Vec<Prefix> = update.all_withdrawn().collect();
            let pure = update.attributes.iter().all(|it| matches!(it.value, AttributeValue::MpUnreach { .. }));
            let (Some(first), true) = (prefixes.first(), pure) else { continue };
            withdraw(&mut out, &Codec::LENIENT, first.family(), prefixes.iter().copied());
            withdrawals += 1;
        }
        if out != vector.bytes {
            assert_eq!(parts(self::frame(&out).body), parts(frame.body), "{}", vector.name);
        }
    }
    assert_eq!((withdrawals, ends), (12, 2));
}

#[test]
fn commands_say_what_we_read() {
    // The words of a command that we understand: family or "route", prefix, next hop.
    let mut checked = 0;
    for vector in vectors() {
        let words: Vec<&str> = vector.command.split(' ').collect();
        if words.contains(&"rd") || words.contains(&"label") {
            continue;
        }
        let prefix = match words[..] {
            ["announce", "route", prefix, "next-hop", ..] => prefix,
            ["announce", "ipv6" | "ipv4", "unicast", prefix, "next-hop", ..] => prefix,
            _ => continue,
        };
        let frame = frame(&vector.bytes);
        let Ok(Message::Update(update)) = decode(&frame, &codec(&vector)) else { continue };
        let Ok(prefix) = prefix.parse::<Prefix>() else { continue };
        // See above: of ::1 as a next hop, nothing is left.
        if update.faults.contains(&Fault::NextHop) {
            continue;
        }
        assert!(update.all_announced().any(|announced| announced == prefix), "{} {}", vector.name, vector.command);
        let after = |word: &str| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
        if let Some(preference) = after("local-preference") {
            let got = update.find(|v| if let AttributeValue::LocalPref(it) = v { Some(*it) } else { None });
            assert_eq!(got.map(|it| it.to_string()).as_deref(), Some(preference), "{}", vector.command);
        }
        if let Some(med) = after("med") {
            let got = update.find(|v| if let AttributeValue::Med(it) = v { Some(*it) } else { None });
            assert_eq!(got.map(|it| it.to_string()).as_deref(), Some(med), "{}", vector.command);
        }
        checked += 1;
    }
    assert_eq!(checked, 93);
}

#[test]
fn opens_are_read_and_written_as_exabgp_writes_them() {
    let mut opens = 0;
    for vector in vectors() {
        let frame = frame(&vector.bytes);
        if frame.kind != MessageType::Open {
            continue;
        }
        let Ok(Message::Open(open)) = decode(&frame, &Codec::LENIENT) else { panic!("{}", vector.name) };
        assert_eq!(open.asn, Asn(65_533));
        assert!(open.four_octet_as());
        let mut out = Vec::new();
        open.encode(&mut out);
        // It writes each capability into a parameter of its own.
        let again = decode(&self::frame(&out), &Codec::LENIENT);
        assert_eq!(again, Ok(Message::Open(open)), "{}", vector.name);
        opens += 1;
    }
    assert_eq!(opens, 4);
}

//! Other people's BGP decoders as oracles of ours: what we write they must read as we meant it, and what they read we must
//! read in the same way. Nothing here but tests, and the messages they start from.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use holdfast_bgp::types::{Asn, Families, Family, NextHop, Origin, PathAttributes, Prefix, RouterId};
use holdfast_bgp::wire::update::{announce, end_of_rib, withdraw};
use holdfast_bgp::wire::{
    Capability, Cease, Codec, Frame, GracefulFamily, GracefulRestart, Notification, Open, RefreshKind, RouteRefresh,
    community,
};

/// What the oracles speak too.
pub const CODEC: Codec = Codec {
    four_octet_as: true,
    extended_message: false,
    extended_next_hop: true,
    families: Families::BOTH,
    internal: true,
};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// ExaBGP's encodings, of numbers with four octets.
pub fn vectors() -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(top().join("bgp/tests/vectors/exabgp.tsv")).expect("the vectors are there");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("conf-no-asn4"));
    lines.map(|line| hex(line.split('\t').nth(1).expect("a second field"))).collect()
}

/// The UPDATEs of the fuzz corpus that were made for these settings.
pub fn corpus() -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(top().join("tests/fuzz/corpus/bgp_update")).expect("the corpus is there");
    let inputs = folder.map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"));
    inputs.filter(|input| input.first() == Some(&0)).map(|input| message(2, &input[1..])).collect()
}

/// Bytes written in hex.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A message of this type with this body.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).expect("a message's length");
    [&[0xff; 16][..], &length.to_be_bytes(), &[kind], body].concat()
}

/// Cuts a buffer into messages.
pub fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((frame, rest)) = Frame::split(bytes, true).expect("headers") {
        messages.push(frame.bytes.to_vec());
        bytes = rest;
    }
    messages
}

/// SplitMix64: the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Attributes and prefixes as an agent may announce them, chosen at random.
pub fn routes(rng: &mut Rng) -> (PathAttributes, Family, Vec<Prefix>) {
    let family = if rng.below(2) == 0 { Family::Ipv4 } else { Family::Ipv6 };
    let host = |rng: &mut Rng| -> IpAddr {
        match family {
            Family::Ipv4 => [10, rng.below(200) as u8, rng.below(256) as u8, 1 + rng.below(250) as u8].into(),
            Family::Ipv6 => [0x2001, 0xdb8, rng.below(9999) as u16, 0, 0, 0, 0, 1 + rng.below(9999) as u16].into(),
        }
    };
    let next_hop = match host(rng) {
        IpAddr::V4(address) => NextHop::V4(address),
        IpAddr::V6(global) => {
            let local = (rng.below(2) == 0).then(|| [0xfe80, 0, 0, 0, 0, 0, 0, 7].into());
            NextHop::V6 { global: Some(global), link_local: local }
        }
    };
    let some = |rng: &mut Rng, most: usize| rng.below(most + 1);
    let attributes = PathAttributes {
        origin: [Origin::Igp, Origin::Egp, Origin::Incomplete][rng.below(3)],
        as_path: (0..some(rng, 6)).map(|_| Asn(1 + rng.below(4_200_000_000) as u32)).collect(),
        med: (rng.below(2) == 0).then(|| rng.next() as u32),
        local_pref: (rng.below(2) == 0).then(|| rng.next() as u32),
        communities: (0..some(rng, 70)).map(|_| rng.next() as u32).collect(),
        large: (0..some(rng, 25)).map(|_| [rng.next() as u32, rng.next() as u32, rng.next() as u32]).collect(),
        extended: (0..some(rng, 2))
            .map(|_| community::link_bandwidth(Asn(65_010), rng.below(1 << 30) as f32))
            .collect(),
        next_hop,
    };
    let length = |rng: &mut Rng| 8 + rng.below(usize::from(family.bits()) - 7) as u8;
    let prefixes = (0..1 + some(rng, 40)).map(|_| {
        let (ip, length) = (host(rng), length(rng));
        Prefix::new(ip, length).expect("a length of the family")
    });
    (attributes, family, prefixes.collect())
}

/// UPDATEs that we write: routes, withdrawals, ends of tables.
pub fn our_updates(rng: &mut Rng, rounds: usize) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for _ in 0..rounds {
        let (attributes, family, prefixes) = routes(rng);
        announce(&mut out, &CODEC, &attributes, family, prefixes.iter().copied()).expect("it fits");
        withdraw(&mut out, &CODEC, family, prefixes);
        end_of_rib(&mut out, family);
    }
    split(&out)
}

/// One of every other message that we write.
pub fn our_others() -> Vec<Vec<u8>> {
    let graceful = GracefulRestart {
        restarting: true,
        notification: true,
        restart_time_s: 15,
        families: vec![GracefulFamily::new(Family::Ipv4, true), GracefulFamily::new(Family::Ipv6, false)],
    };
    let asn = Asn(4_200_000_001);
    let mut out = Vec::new();
    let open = Open {
        asn,
        hold_time_s: 9,
        router_id: RouterId::new([10, 0, 0, 1].into()).expect("not 0"),
        capabilities: vec![
            Capability::family(Family::Ipv4),
            Capability::family(Family::Ipv6),
            Capability::RouteRefresh,
            Capability::ipv4_over_ipv6(),
            Capability::ExtendedMessage,
            Capability::GracefulRestart(graceful),
            Capability::FourOctetAs(asn),
            Capability::EnhancedRouteRefresh,
        ],
    };
    open.encode(&mut out);
    for cease in Cease::ALL {
        Notification::cease_with_text(cease, "drained").encode(&mut out);
    }
    Notification::cease_with_text(Cease::AdministrativeShutdown, "bye").into_hard_reset().encode(&mut out);
    Notification::hold_timer_expired().encode(&mut out);
    Notification::new(1, 2, vec![0x10, 1]).encode(&mut out);
    for kind in [RefreshKind::Request, RefreshKind::Begin, RefreshKind::End] {
        RouteRefresh::new(kind, Family::Ipv6).encode(&mut out);
    }
    holdfast_bgp::wire::encode_keepalive(&mut out);
    split(&out)
}

//! What a session does for each change and each message heard: writing tables, reading UPDATEs, cutting a stream.
//! `cargo bench -p holdfast-bgp`. The allocations counted beside the times matter as much: reading makes none.

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use holdfast_bgp::types::{Asn, Families, Family, NextHop, Origin, PathAttributes, Prefix};
use holdfast_bgp::wire::update::{announce, inspect, withdraw};
use holdfast_bgp::wire::{Codec, Frame, Framer, Update, community};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

const CODEC: Codec = Codec {
    four_octet_as: true,
    extended_message: false,
    extended_next_hop: false,
    families: Families::BOTH,
    internal: false,
};
const FAMILIES: [Family; 2] = Family::ALL;
/// As many VIPs as a node may have.
const TABLE: u32 = 5000;

fn main() {
    divan::main();
}

fn attributes(family: Family) -> PathAttributes {
    PathAttributes {
        origin: Origin::Igp,
        as_path: vec![Asn(65_010)],
        med: Some(100),
        local_pref: None,
        communities: vec![community::GRACEFUL_SHUTDOWN],
        large: Vec::new(),
        extended: Vec::new(),
        next_hop: match family {
            Family::Ipv4 => NextHop::V4([10, 0, 0, 1].into()),
            Family::Ipv6 => NextHop::V6 { global: Some([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()), link_local: None },
        },
    }
}

fn prefixes(family: Family, count: u32) -> Vec<Prefix> {
    let host = |n: u32| match family {
        Family::Ipv4 => Prefix::host(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into()),
        Family::Ipv6 => Prefix::host(std::net::Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(n)).into()),
    };
    (0..count).map(host).collect()
}

fn table(family: Family) -> Vec<u8> {
    let mut out = Vec::new();
    announce(&mut out, &CODEC, &attributes(family), family, prefixes(family, TABLE)).expect("it fits");
    out
}

/// The table at the beginning of a session.
#[divan::bench(args = FAMILIES)]
fn announce_5000(bencher: Bencher<'_, '_>, family: Family) {
    let (attributes, prefixes) = (attributes(family), prefixes(family, TABLE));
    let mut out = Vec::with_capacity(1 << 20);
    bencher.counter(ItemsCount::new(TABLE)).bench_local(|| {
        out.clear();
        announce(&mut out, &CODEC, black_box(&attributes), family, prefixes.iter().copied())
    });
}

/// The balancer died: all of them go.
#[divan::bench(args = FAMILIES)]
fn withdraw_5000(bencher: Bencher<'_, '_>, family: Family) {
    let prefixes = prefixes(family, TABLE);
    let mut out = Vec::with_capacity(1 << 20);
    bencher.counter(ItemsCount::new(TABLE)).bench_local(|| {
        out.clear();
        withdraw(&mut out, &CODEC, family, black_box(&prefixes).iter().copied())
    });
}

/// One VIP goes.
#[divan::bench(args = FAMILIES)]
fn withdraw_one(bencher: Bencher<'_, '_>, family: Family) {
    let prefixes = prefixes(family, 1);
    let mut out = Vec::with_capacity(4096);
    bencher.bench_local(|| {
        out.clear();
        withdraw(&mut out, &CODEC, family, black_box(&prefixes).iter().copied())
    });
}

/// A router sends its table, which we count: the stream is cut, each UPDATE inspected.
#[divan::bench(args = FAMILIES)]
fn hear_5000(bencher: Bencher<'_, '_>, family: Family) {
    let stream = table(family);
    let mut framer = Framer::new();
    bencher.counter(ItemsCount::new(TABLE)).bench_local(|| {
        let mut input = black_box(&stream[..]);
        let mut heard = 0;
        while let Ok(Some(frame)) = framer.next(&mut input) {
            heard += inspect(frame.body, &CODEC).map_or(0, |inspected| inspected.announced.total());
        }
        heard
    });
}

/// The same, for a tool that wants all of it.
#[divan::bench(args = FAMILIES)]
fn decode_5000(bencher: Bencher<'_, '_>, family: Family) {
    let stream = table(family);
    bencher.counter(ItemsCount::new(TABLE)).bench_local(|| {
        let mut rest = black_box(&stream[..]);
        let mut read = 0;
        while let Ok(Some((frame, after))) = Frame::split(rest, false) {
            read += Update::decode(frame.body, &CODEC).map_or(0, |update| update.all_announced().count());
            rest = after;
        }
        read
    });
}

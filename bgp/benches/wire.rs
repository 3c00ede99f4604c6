//! What a session does for each change and each message heard: writing tables, reading UPDATEs, cutting a stream; and the
//! same with the session around it, from what is wanted to the bytes, and from the bytes to what is counted.
//! `cargo bench -p holdfast-bgp`. The allocations counted beside the times matter as much: reading makes none.

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use holdfast_bgp::rib::{AdjRibOut, Context, Desired, Route};
use holdfast_bgp::session::{HIGH_WATER, RemoteAs};
use holdfast_bgp::types::{Asn, Families, Family, NextHop, Origin, PathAttributes, Prefix, RouterId};
use holdfast_bgp::wire::update::{announce, inspect, withdraw};
use holdfast_bgp::wire::{Capability, Codec, Frame, Framer, Open, Update, community, encode_keepalive};
use holdfast_bgp::{ConnId, Input, Output, Peer, PeerConfig, State};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

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

/// How a session hands out what it has to say: by the batch.
fn tell(rib: &mut AdjRibOut, out: &mut Vec<u8>) -> u64 {
    let mut updates = 0;
    while rib.pending() {
        out.clear();
        updates += rib.poll(HIGH_WATER, out).updates;
    }
    updates
}

fn rib() -> AdjRibOut {
    let local = Ipv4Addr::new(10, 0, 0, 1).into();
    let next_hop_ipv6 = Some([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into());
    let context =
        Context { local_as: Asn(65_010), codec: CODEC, local, next_hop_ipv4: None, next_hop_ipv6, link_local: None };
    AdjRibOut::new(context, true)
}

/// Each prefix with the same route, or each with its own.
fn desired(family: Family, distinct: bool) -> Arc<Desired> {
    let route =
        |med| Arc::new(Route { med: Some(med), communities: vec![community::GRACEFUL_SHUTDOWN], ..Route::default() });
    let shared = route(100);
    let routes = (0..).map(|n| if distinct { route(n) } else { Arc::clone(&shared) });
    Arc::new(prefixes(family, TABLE).into_iter().zip(routes).collect())
}

/// The table at the beginning of a session, from what is wanted: all VIPs alike.
#[divan::bench(args = FAMILIES)]
fn want_5000_alike(bencher: Bencher<'_, '_>, family: Family) {
    let desired = desired(family, false);
    let mut out = Vec::with_capacity(1 << 20);
    bencher.counter(ItemsCount::new(TABLE)).with_inputs(rib).bench_local_values(|mut rib| {
        rib.want(black_box(&desired));
        (tell(&mut rib, &mut out), rib)
    });
}

/// The same, each with attributes of its own: as many UPDATEs.
#[divan::bench(args = FAMILIES)]
fn want_5000_distinct(bencher: Bencher<'_, '_>, family: Family) {
    let desired = desired(family, true);
    let mut out = Vec::with_capacity(1 << 20);
    bencher.counter(ItemsCount::new(TABLE)).with_inputs(rib).bench_local_values(|mut rib| {
        rib.want(black_box(&desired));
        (tell(&mut rib, &mut out), rib)
    });
}

/// All of it goes, from what is wanted: nothing.
#[divan::bench(args = FAMILIES)]
fn want_none_of_5000(bencher: Bencher<'_, '_>, family: Family) {
    let (desired, none) = (desired(family, false), Arc::default());
    let mut out = Vec::with_capacity(1 << 20);
    let told = || {
        let mut rib = rib();
        rib.want(&desired);
        tell(&mut rib, &mut Vec::new());
        rib
    };
    bencher.counter(ItemsCount::new(TABLE)).with_inputs(told).bench_local_values(|mut rib| {
        rib.want(black_box(&none));
        (tell(&mut rib, &mut out), rib)
    });
}

/// A session, up.
fn established(now: Instant) -> (Peer, ConnId) {
    let id = |last| RouterId::new(Ipv4Addr::new(10, 0, 0, last)).expect("not zero");
    let mut peer = Peer::new(PeerConfig::new(Asn(65_010), RemoteAs::Exactly(Asn(65_000)), id(1)), false, 1, now);
    peer.handle(now, Input::Start);
    let dialled = std::iter::from_fn(|| peer.poll_output()).find_map(|output| match output {
        Output::Connect { conn } => Some(conn),
        _ => None,
    });
    let conn = dialled.expect("it dials");
    let [local, remote] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 179)));
    peer.handle(now, Input::Connected { conn, local, remote });
    let capabilities = Family::ALL.map(Capability::family).into_iter().chain([Capability::FourOctetAs(Asn(65_000))]);
    let open = Open { asn: Asn(65_000), hold_time_s: 90, router_id: id(2), capabilities: capabilities.collect() };
    let mut bytes = Vec::new();
    open.encode(&mut bytes);
    encode_keepalive(&mut bytes);
    peer.handle(now, Input::Bytes { conn, bytes: &bytes });
    while peer.poll_output().is_some() {}
    assert_eq!(peer.state(), State::Established);
    (peer, conn)
}

/// A router sends its table to a session, a read of the socket at a time.
#[divan::bench(args = FAMILIES)]
fn session_hears_5000(bencher: Bencher<'_, '_>, family: Family) {
    #[allow(clippy::disallowed_methods, reason = "some instant to count from")]
    let now = Instant::now();
    let (mut peer, conn) = established(now);
    let stream = table(family);
    bencher.counter(ItemsCount::new(TABLE)).bench_local(|| {
        for bytes in black_box(&stream).chunks(16 * 1024) {
            peer.handle(now, Input::Bytes { conn, bytes });
        }
    });
    assert_eq!(peer.state(), State::Established);
}

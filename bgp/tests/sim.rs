//! Two speakers through collisions, cuts, crashes and changes: they always end with one session and equal tables.

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use common::net::Net;
use common::{Rng, config, ms, s};
use holdfast_bgp::rib::{Desired, Route};
use holdfast_bgp::session::RemoteAs;
use holdfast_bgp::types::{Asn, Prefix};
use holdfast_bgp::{Input, State, Stop};

/// 500; `HOLDFAST_CASES=20` makes them 10,000 (the full tier). One again: `HOLDFAST_SEED=n`.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("HOLDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..500 * number("HOLDFAST_CASES").unwrap_or(1),
    }
}

fn some_routes(rng: &mut Rng) -> Arc<Desired> {
    let routes = [0, 50, 100].map(|med| Arc::new(Route { med: Some(med), ..Route::default() }));
    let mut desired = Desired::new();
    for n in 0..rng.below(40) {
        let address = Ipv4Addr::new(198, 51, 100, n as u8).into();
        let route = Arc::clone(&routes[rng.below(3) as usize]);
        if rng.chance(70) {
            desired.insert(Prefix::host(address), route);
        }
    }
    Arc::new(desired)
}

fn two(seed: u64) -> Net {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let (low, high) = if rng.chance(50) { (1, 2) } else { (2, 1) };
    let mut configs = [config(low, high), config(high, low)];
    if rng.chance(20) {
        configs.iter_mut().for_each(|config| {
            config.local_as = Asn(65_000);
            config.remote_as = RemoteAs::Internal;
        });
    }
    if rng.chance(20) {
        // RFC 6286: equal identifiers in two AS.
        let id = configs[0].router_id;
        if configs[0].local_as != configs[1].local_as {
            configs[1].router_id = id;
        }
    }
    if rng.chance(20) {
        configs[rng.below(2) as usize].passive = true;
    }
    // Without hold times nobody notices that a host died which never dials.
    let shortest = if configs.iter().any(|config| config.passive) { 1 } else { 0 };
    for config in &mut configs {
        config.hold_time = s([0, 3, 9, 90][(shortest + rng.below(4 - shortest)) as usize]);
        if rng.chance(30) {
            config.graceful_restart = None;
        }
    }
    let mut net = Net::new(configs, seed);
    net.latency = Duration::from_micros(50 + rng.below(40_000));
    net.jitter_us = rng.below(20_000);
    net
}

/// Something goes wrong, or changes.
fn trouble(net: &mut Net, rng: &mut Rng) {
    let node = rng.below(2) as usize;
    match rng.below(9) {
        0 => net.cut = true,
        1 => net.cut = false,
        2 if net.nodes[node].up => net.crash(node, rng.chance(50)),
        3 if !net.nodes[node].up => net.reboot(node, rng.chance(50)),
        4 => net.give(node, Input::LinkDown),
        5 => net.give(node, Input::LinkUp),
        6 => net.give(node, Input::Stop(Stop::Reset { text: String::from("a reset") })),
        7 => {
            net.give(node, Input::Stop(Stop::Admin { text: String::from("a pause") }));
            net.run(ms(rng.below(2000)));
            let desired = Arc::clone(&net.nodes[node].desired);
            net.give(node, Input::Start);
            net.give(node, Input::Routes(&desired));
        }
        _ => {
            let routes = some_routes(rng);
            net.want(node, &routes);
        }
    }
}

fn run(seed: u64) -> Duration {
    let mut rng = Rng::new(seed);
    let mut net = two(seed);
    let routes = [some_routes(&mut rng), some_routes(&mut rng)];
    // Both at almost the same time, mostly.
    for node in [rng.below(2) as usize, 0, 1] {
        net.nodes[node].desired = Arc::clone(&routes[node]);
        net.give(node, Input::Start);
        net.give(node, Input::Routes(&routes[node]));
        let skew = ms(rng.below(20));
        net.run(skew);
    }
    for _ in 0..rng.below(12) {
        let pause = ms(if rng.chance(50) { rng.below(100) } else { rng.below(12_000) });
        net.run(pause);
        trouble(&mut net, &mut rng);
    }
    net.cut = false;
    for node in 0..2 {
        if !net.nodes[node].up {
            net.reboot(node, false);
        }
        net.give(node, Input::LinkUp);
    }
    let healed = net.elapsed();
    let end = net.now + s(120);
    let done = |net: &Net| net.one_session() && net.tables_equal();
    let up = net.run_until(end, done);
    assert!(up, "seed {seed}: {:?} after two minutes, {:?}", net.states(), net.nodes[0].peer.info());
    let took = net.elapsed() - healed;
    // And it stays so.
    let ups = net.ups();
    net.run(s(60));
    assert!(done(&net), "seed {seed}: it didn't last");
    assert_eq!(net.ups(), ups, "seed {seed}: it flaps");
    assert_eq!(net.open_connections(), 1, "seed {seed}: one connection is left");
    took
}

#[test]
fn after_any_trouble_two_speakers_have_one_session_and_equal_tables() {
    let mut longest = (Duration::ZERO, 0);
    let mut all = Vec::new();
    for seed in seeds() {
        let took = run(seed);
        longest = longest.max((took, seed));
        all.push(took);
    }
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100];
    println!(
        "healed to equal tables: median {:?}, p99 {:?}, longest {:?} (seed {})",
        at(50),
        at(99),
        longest.0,
        longest.1
    );
}

// Complaint 31.
#[test]
fn complaint_31_both_dial_at_once_and_one_connection_is_left_in_less_than_five_seconds() {
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let (low, high) = if seed % 2 == 0 { (1, 2) } else { (2, 1) };
        let mut net = Net::new([config(low, high), config(high, low)], seed);
        net.latency = Duration::from_micros(20 + rng.below(5_000));
        net.give(0, Input::Start);
        net.run(Duration::from_micros(rng.below(20_000)));
        net.give(1, Input::Start);
        let end = net.now + s(5);
        assert!(net.run_until(end, Net::one_session), "seed {seed}: {:?}", net.states());
        net.run(s(30));
        assert!(net.one_session() && net.open_connections() == 1, "seed {seed}");
        assert_eq!(net.ups(), [1, 1], "seed {seed}: up once");
        assert_eq!(net.states(), [State::Established; 2]);
    }
}

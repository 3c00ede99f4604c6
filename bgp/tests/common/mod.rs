//! Two speakers and the network between them, on a virtual clock; and a neighbour that a test plays by hand.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod hand;
pub(crate) mod net;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_bgp::rib::{Desired, Route};
use holdfast_bgp::session::RemoteAs;
use holdfast_bgp::types::{Asn, Prefix, RouterId};
use holdfast_bgp::{Event, Output, Peer, PeerConfig, State};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[expect(clippy::disallowed_methods, reason = "some instant to count from; nothing depends on which")]
pub(crate) fn time_zero() -> Instant {
    Instant::now()
}

pub(crate) fn router_id(last: u8) -> RouterId {
    RouterId::new(Ipv4Addr::new(10, 0, 0, last)).unwrap()
}

/// Of AS 65000 + `us`, with a neighbour in 65000 + `them`.
pub(crate) fn config(us: u8, them: u8) -> PeerConfig {
    let asn = |last: u8| Asn(65_000 + u32::from(last));
    PeerConfig::new(asn(us), RemoteAs::Exactly(asn(them)), router_id(us))
}

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

pub(crate) fn desired(prefixes: &[&str]) -> Arc<Desired> {
    let route = Arc::new(Route::default());
    Arc::new(prefixes.iter().map(|text| (prefix(text), Arc::clone(&route))).collect())
}

pub(crate) fn with_route(prefixes: &[&str], route: Route) -> Arc<Desired> {
    let route = Arc::new(route);
    Arc::new(prefixes.iter().map(|text| (prefix(text), Arc::clone(&route))).collect())
}

/// So many /32s with one set of attributes.
pub(crate) fn many(count: u32) -> Arc<Desired> {
    let route = Arc::new(Route::default());
    let host = |n: u32| Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
    Arc::new((0..count).map(|n| (host(n), Arc::clone(&route))).collect())
}

pub(crate) fn drain(peer: &mut Peer) -> Vec<Output> {
    std::iter::from_fn(|| peer.poll_output()).collect()
}

/// The states that a peer went through.
pub(crate) fn states(outputs: &[Output]) -> Vec<State> {
    let state = |output: &Output| match output {
        Output::Event(Event::State(transition)) => Some(transition.to),
        _ => None,
    };
    outputs.iter().filter_map(state).collect()
}

/// A small seeded generator (xorshift64*): the same seed always makes the same run.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

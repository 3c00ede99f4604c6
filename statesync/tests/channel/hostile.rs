//! What others send: replays, damage, garbage, floods. Nothing may change but counters.

use crate::net::{MS, Net, address, keypair, report};
use holdfast_statesync::{
    Channel, ChannelConfig, ChannelInput as Input, ChannelOutput as Output, Counters, PeerConfig, PeerState,
};
use proptest::prelude::*;
use rand_core::Rng;
use std::time::Duration;

/// All that a datagram could have changed at node 0 and 1: what is known, what was reported, what was sent.
fn picture(net: &Net) -> (Vec<PeerState>, Vec<usize>, usize) {
    let states = vec![net.state(0, 1), net.state(1, 0)];
    let events = net.nodes.iter().map(|node| node.events.len()).collect();
    (states, events, net.sent.len())
}

fn refusals(counters: &Counters) -> u64 {
    counters.unknown_source
        + counters.bad_version
        + counters.bad_handshake
        + counters.bad_auth
        + counters.unknown_session
        + counters.replayed
        + counters.too_old
        + counters.rate_limited
}

fn busy_pair(seed: u64) -> Net {
    let mut net = Net::new(seed, 2);
    net.run_for(50 * MS);
    for sequence in 0..50 {
        net.broadcast(0, &report(sequence));
        net.broadcast(1, &report(sequence));
        net.run_for(20 * MS);
    }
    net
}

/// Replays everything ever sent, at both ends, in both directions; used by the mutants' test too.
pub(crate) fn replaying_every_recorded_datagram_changes_nothing_while_up() {
    let mut net = busy_pair(1);
    let recorded = net.sent.clone();
    let before = picture(&net);
    for sent in &recorded {
        for (to, from) in [(sent.to, sent.from), (sent.from, sent.to), (sent.to, sent.to)] {
            net.inject(to, address(from), &sent.bytes);
        }
    }
    assert_eq!(picture(&net), before);
    for node in 0..2 {
        let counters = net.counters(node);
        assert!(counters.replayed > 50, "{counters:?}");
    }
    net.run_for(Duration::from_secs(5));
    assert_eq!((net.downs(0), net.downs(1)), (0, 0));
}

#[test]
fn every_recorded_datagram_sent_again_changes_nothing() {
    replaying_every_recorded_datagram_changes_nothing_while_up();
}

#[test]
fn recorded_datagrams_sent_again_after_a_restart_never_bring_a_peer_up_and_do_not_keep_it_from_coming() {
    let mut net = busy_pair(2);
    let recorded = net.sent.clone();
    // Node 1 is gone, node 0 has taken note; the recording plays its part.
    net.stop(1);
    net.run_for(Duration::from_secs(1));
    let (ups, heard) = (net.ups(0), net.heard_sequences(0).len());
    for round in 0..20 {
        for sent in recorded.iter().filter(|sent| sent.to == 0) {
            net.inject(0, address(1), &sent.bytes);
        }
        net.run_for(Duration::from_millis(100 + round));
    }
    assert_eq!(net.ups(0), ups);
    assert_eq!(net.heard_sequences(0).len(), heard);
    assert!(!net.state(0, 1).up);
    // A new run of node 0 hears the recording of the old one: nothing either.
    net.restart(0, 101);
    net.nodes[0].events.clear();
    for sent in recorded.iter().filter(|sent| sent.to == 0) {
        net.inject(0, address(1), &sent.bytes);
    }
    assert!(net.nodes[0].events.is_empty());
    net.restart(1, 101);
    assert!(net.run_until(Duration::from_millis(1100), |net| net.all_up()));
}

/// Flips every bit of one datagram of each kind; used by the mutants' test too.
pub(crate) fn flipping_any_bit_of_a_datagram_makes_it_refused() {
    let mut net = busy_pair(3);
    // A greeting that the receiver hasn't seen, and a report that it hasn't seen.
    net.broadcast(0, &report(1000));
    let fresh = net.sent.last().unwrap().bytes.clone();
    let greeting = net.sent.iter().find(|sent| sent.is_greeting() && sent.to == 1).unwrap().bytes.clone();
    let answer = net.sent.iter().find(|sent| sent.is_answer() && sent.to == 1).unwrap().bytes.clone();
    let mut before = picture(&net);
    for bytes in [fresh.clone(), greeting, answer] {
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let refused = refusals(&net.counters(1));
            // Time passes for the rate limits only; the channels' own timers wait.
            net.now += MS / 1000;
            net.inject(1, address(0), &damaged);
            assert_eq!(picture(&net), before, "bit {bit}");
            assert_eq!(refusals(&net.counters(1)), refused + 1);
        }
    }
    // The true one still passes.
    net.inject(1, address(0), &fresh);
    before.1[1] += 1;
    assert_eq!(picture(&net).1, before.1);
}

#[test]
fn any_flipped_bit_makes_a_datagram_refused() {
    flipping_any_bit_of_a_datagram_makes_it_refused();
}

#[test]
fn a_cut_datagram_of_any_length_is_refused() {
    let mut net = busy_pair(4);
    net.broadcast(0, &report(1000));
    let kinds: Vec<_> = [1, 2, 3]
        .map(|kind| net.sent.iter().rfind(|sent| sent.bytes[1] == kind && sent.to == 1).unwrap().bytes.clone())
        .into();
    let before = picture(&net);
    for bytes in kinds {
        for length in 0..bytes.len() {
            let refused = refusals(&net.counters(1));
            net.inject(1, address(0), &bytes[..length]);
            assert_eq!(refusals(&net.counters(1)), refused + 1);
        }
    }
    assert_eq!(picture(&net), before);
}

#[test]
fn a_stranger_that_knows_all_public_keys_gets_nowhere() {
    let mut net = Net::new(5, 2);
    net.run_for(Duration::from_secs(1));
    let before = (net.ups(0), net.state(0, 1).epoch);
    // The stranger is configured as node 1 is, at its address, but has another secret key.
    let (stranger, _) = keypair(77, 7);
    let public = keypair(5, 0).1;
    let peer = PeerConfig { name: "lb0".into(), address: address(0), public_keys: vec![public] };
    let config = ChannelConfig { secret_key: stranger, epoch: 900, peers: vec![peer] };
    let mut forger = Channel::new(config, [3; 32], net.now);
    for _ in 0..100 {
        net.run_for(50 * MS);
        forger.handle(net.now, Input::Timer);
        while let Some(output) = forger.poll_output() {
            if let Output::Transmit { bytes, .. } = output {
                net.inject(0, address(1), &bytes);
            }
        }
    }
    assert!(net.counters(0).bad_auth >= 5);
    assert_eq!((net.ups(0), net.state(0, 1).epoch), before);
    assert_eq!(net.downs(0), 0);
}

/// A datagram from an address without a peer; used by the mutants' test too.
pub(crate) fn a_foreign_source_is_refused_before_anything_else() {
    let mut net = busy_pair(6);
    net.broadcast(0, &report(1000));
    let recorded = net.sent.clone();
    let before = picture(&net);
    for sent in recorded.iter().filter(|sent| sent.to == 1) {
        net.inject(1, "10.1.0.99:7712".parse().unwrap(), &sent.bytes);
    }
    assert_eq!(picture(&net), before);
    let counters = net.counters(1);
    assert_eq!(counters.unknown_source, recorded.iter().filter(|sent| sent.to == 1).count() as u64);
    assert_eq!(refusals(&counters), counters.unknown_source, "nothing else was looked at");
}

#[test]
fn a_datagram_from_a_foreign_address_is_refused_before_anything_else() {
    a_foreign_source_is_refused_before_anything_else();
}

/// A greeting recorded and held back, delivered when its sender is gone; used by the mutants' test too.
pub(crate) fn an_unused_session_displaces_nothing() {
    // A seed with which node 0 has the lower key, and so renews.
    let seed = (0..).find(|seed| keypair(*seed, 0).1 < keypair(*seed, 1).1).unwrap();
    let mut net = Net::new(seed, 2);
    net.run_for(Duration::from_secs(119));
    let greetings = |net: &Net| net.sent.iter().filter(|sent| sent.is_greeting()).count();
    let known = greetings(&net);
    assert!(net.run_until(Duration::from_secs(2), |net| greetings(net) > known));
    let held_back = net.sent.iter().rfind(|sent| sent.is_greeting()).unwrap().clone();
    assert_eq!((held_back.from, held_back.to), (0, 1));
    // Its stamp is new, so nothing tells it from a true one: it is answered.
    net.drop_in_flight_from(0);
    net.stop(0);
    let session =
        |net: &Net| net.sent.iter().rfind(|sent| sent.from == 1 && sent.is_transport()).unwrap().bytes[2..6].to_vec();
    let before = (net.state(1, 0), net.ups(1), net.counters(1), session(&net));
    net.inject(1, address(0), &held_back.bytes);
    assert!(net.sent.last().unwrap().is_answer());
    net.broadcast(1, &report(1));
    assert_eq!((net.state(1, 0), net.ups(1), session(&net)), (before.0, before.1, before.3));
    assert_eq!(net.counters(1).sessions, before.2.sessions);
    // And to a node that knows its peer gone, it brings nothing alive.
    net.run_for(Duration::from_secs(10));
    let (ups, answers) = (net.ups(1), net.sent.iter().filter(|sent| sent.is_answer()).count());
    net.inject(1, address(0), &held_back.bytes);
    assert_eq!(net.sent.iter().filter(|sent| sent.is_answer()).count(), answers + 1);
    assert_eq!(net.ups(1), ups);
    assert!(!net.state(1, 0).up);
}

#[test]
fn a_greeting_alone_displaces_no_session_and_brings_nobody_up() {
    an_unused_session_displaces_nothing();
}

/// A recorded greeting to a peer with a living session; used by the mutants' test too.
pub(crate) fn an_old_greeting_is_not_even_answered() {
    let mut net = busy_pair(8);
    net.run_for(Duration::from_secs(10));
    let greetings: Vec<_> = net.sent.iter().filter(|sent| sent.is_greeting()).cloned().collect();
    let before = picture(&net);
    for greeting in greetings {
        let replayed = net.counters(greeting.to).replayed;
        net.inject(greeting.to, address(greeting.from), &greeting.bytes);
        assert_eq!(net.counters(greeting.to).replayed, replayed + 1);
    }
    assert_eq!(picture(&net), before);
}

#[test]
fn a_recorded_greeting_is_not_answered_while_a_session_lives() {
    an_old_greeting_is_not_even_answered();
}

#[test]
fn handshakes_are_limited_per_peer_and_altogether() {
    // Eleven peers greet one node as often as they can: by restarting all the time.
    let keys: Vec<_> = (0..12).map(|node| keypair(9, node)).collect();
    let peer =
        |node: usize| PeerConfig { name: format!("lb{node}"), address: address(node), public_keys: vec![keys[node].1] };
    let peers = (0..12).map(|node| if node == 0 { (1..12).map(peer).collect() } else { vec![peer(0)] }).collect();
    let mut net = Net::with_peers(9, keys.iter().map(|(secret, _)| secret.clone()).collect(), peers);
    net.run_for(Duration::from_secs(2));
    let answers = |net: &Net| net.sent.iter().filter(|sent| sent.from == 0 && sent.is_answer()).count();
    let before = (answers(&net), net.counters(0).rate_limited);
    for round in 0..100 {
        for node in 1..12 {
            net.restart(node, 1000 + round);
        }
        net.run_for(20 * MS);
    }
    let answered = answers(&net) - before.0;
    // Two seconds at 50 per second and the burst.
    assert!((80..=121).contains(&answered), "{answered}");
    assert!(net.counters(0).rate_limited - before.1 > 900);
    // And all is well when it ends.
    assert!(net.run_until(Duration::from_secs(5), |net| (1..12).all(|node| net.state(0, node).epoch == 1099)));
}

#[test]
fn one_peer_alone_gets_ten_handshakes_per_second() {
    let mut net = Net::new(10, 2);
    net.run_for(Duration::from_secs(2));
    let before = net.sent.iter().filter(|sent| sent.from == 0 && sent.is_answer()).count();
    for round in 0..1000 {
        net.restart(1, 1000 + round);
        net.run_for(2 * MS);
    }
    let answers = net.sent.iter().filter(|sent| sent.from == 0 && sent.is_answer()).count() - before;
    assert!((20..=26).contains(&answers), "{answers}");
}

#[test]
fn garbage_at_ten_thousand_per_second_changes_nothing_but_counters() {
    let mut net = Net::new(11, 2);
    net.run_for(Duration::from_secs(1));
    let mut bytes = [0; 1300];
    for round in 0..20_000u32 {
        net.rng.fill_bytes(&mut bytes);
        let length = (net.rng.next_u32() % 1300) as usize;
        // A part of it looks well formed from the outside.
        if round % 2 == 0 {
            bytes[0] = 1;
            bytes[1] = 1 + (round / 2 % 3) as u8;
        }
        let from = if round % 5 == 0 { "10.7.7.7:1".parse().unwrap() } else { address(1) };
        net.inject(0, from, &bytes[..length]);
        net.run_for(MS / 10);
    }
    let counters = net.counters(0);
    assert_eq!(refusals(&counters), 20_000);
    assert_eq!(counters.rate_limited, 0, "garbage doesn't use up handshakes");
    assert_eq!((net.downs(0), net.downs(1)), (0, 0));
    assert_eq!(net.ups(0), [100]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_from_any_port_of_a_peer_change_nothing(
        datagrams in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), 0u8..5, any::<u16>()), 1..20),
        up: bool,
    ) {
        let mut net = Net::new(12, 2);
        if up {
            net.run_for(10 * MS);
        }
        let before = picture(&net);
        for (bytes, kind, port) in datagrams {
            let from = std::net::SocketAddr::new(address(1).ip(), port);
            net.inject(0, from, &bytes);
            net.inject(0, from, &[&[1, kind][..], &bytes].concat());
        }
        prop_assert_eq!(picture(&net), before);
    }

    #[test]
    fn damaged_recordings_never_panic_or_bring_a_message(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..=255), 1..50),
    ) {
        let mut net = Net::new(13, 2);
        net.run_for(10 * MS);
        net.broadcast(0, &report(1));
        let recorded = net.sent.clone();
        let before = picture(&net);
        for (which, place, flip) in edits {
            let sent = which.get(&recorded);
            let mut bytes = sent.bytes.clone();
            let at = place.index(bytes.len());
            bytes[at] ^= flip;
            net.inject(sent.to, address(sent.from), &bytes);
        }
        prop_assert_eq!(picture(&net), before);
    }
}

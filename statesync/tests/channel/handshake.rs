//! Sessions come up, also when both sides start, after a restart, and with the keys and addresses that they should.

use crate::net::{MS, Net, Sent, address, keypair, report};
use holdfast_statesync::message::Message;
use holdfast_statesync::{ChannelOutput as Output, PeerConfig, PeerId};
use std::time::Duration;

fn peer(node: usize, public_keys: Vec<[u8; 32]>) -> PeerConfig {
    PeerConfig { name: format!("lb{node}"), address: address(node), public_keys }
}

/// Indexes of the sessions on which `from` sent after `since`.
fn sessions_used(net: &Net, from: usize, since: Duration) -> Vec<[u8; 4]> {
    let transports = net.sent.iter().filter(|sent| sent.at >= since && sent.from == from && sent.is_transport());
    let mut used: Vec<[u8; 4]> = transports.map(|sent: &Sent| sent.bytes[2..6].try_into().unwrap()).collect();
    used.dedup();
    used
}

#[test]
fn two_nodes_that_start_at_the_same_instant_are_up_after_one_round_trip_and_settle_on_one_session() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 2);
        net.run_for(2 * MS);
        assert!(net.all_up(), "seed {seed}");
        net.run_for(10 * MS);
        let settled = net.time();
        net.run_for(Duration::from_secs(5));
        for node in 0..2 {
            assert_eq!(net.ups(node), [100], "seed {seed}");
            assert_eq!(net.downs(node), 0, "seed {seed}");
            assert_eq!(sessions_used(&net, node, settled).len(), 1, "seed {seed}: one session is used");
        }
        // The greetings that both had on their way were enough: no side began again.
        assert_eq!(net.sent.iter().filter(|sent| sent.is_greeting()).count(), 2, "seed {seed}");
        // Both ends count both handshakes, and agree on the session that the lower key started.
        let lower = usize::from(keypair(seed, 0).1 > keypair(seed, 1).1);
        let greeting_of_lower_answered_at = |sent: &&Sent| sent.is_answer() && sent.to == lower;
        let answer = net.sent.iter().find(greeting_of_lower_answered_at).unwrap();
        let index_of_lower: [u8; 4] = answer.bytes[2..6].try_into().unwrap();
        assert_eq!(sessions_used(&net, 1 - lower, settled), [index_of_lower], "seed {seed}");
    }
}

#[test]
fn nothing_is_lost_while_both_sides_of_a_simultaneous_start_settle() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 2);
        net.jitter = 3 * MS;
        assert!(net.run_until(Duration::from_secs(1), |net| net.all_up()));
        for sequence in 0..100 {
            for node in 0..2 {
                net.broadcast(node, &report(sequence));
            }
            net.run_for(MS / 4);
        }
        net.run_for(Duration::from_millis(50));
        for node in 0..2 {
            let mut heard = net.heard_sequences(node);
            heard.sort_unstable();
            assert_eq!(heard, (0..100).collect::<Vec<_>>(), "seed {seed} node {node}");
        }
    }
}

#[test]
fn three_nodes_come_up_with_each_other_and_hear_each_others_broadcasts() {
    let mut net = Net::new(7, 3);
    assert!(net.run_until(10 * MS, |net| net.all_up()));
    net.broadcast(1, &report(9));
    net.run_for(2 * MS);
    assert_eq!(net.heard_sequences(0), [9]);
    assert_eq!(net.heard_sequences(1), [0u64; 0]);
    assert_eq!(net.heard_sequences(2), [9]);
}

#[test]
fn a_restarted_node_is_up_with_its_new_epoch_within_a_round_trip_and_never_down() {
    let mut net = Net::new(3, 2);
    net.run_for(Duration::from_secs(1));
    net.stop(1);
    net.run_for(50 * MS);
    net.restart(1, 101);
    // Greeting, answer, first authentic datagram: three one-way trips for the node that stayed, two for the new run.
    net.run_for(3 * MS);
    assert_eq!(net.ups(0), [100, 101]);
    assert_eq!(net.ups(1), [100, 100]);
    net.run_for(Duration::from_secs(5));
    assert_eq!((net.downs(0), net.downs(1)), (0, 0));
    assert_eq!(net.state(0, 1).epoch, 101);
}

#[test]
fn a_node_whose_clock_stepped_back_before_a_restart_is_taken_after_the_idle_time() {
    let mut net = Net::new(4, 2);
    net.run_for(Duration::from_secs(1));
    net.restart(1, 7);
    assert!(net.run_until(Duration::from_secs(2), |net| net.state(0, 1).epoch == 7));
    assert_eq!(net.downs(0), 1);
    net.run_for(Duration::from_secs(5));
    assert!(net.all_up());
    assert_eq!(net.downs(0), 1);
}

#[test]
fn a_node_that_restarts_again_and_again_is_always_taken_by_its_newest_epoch() {
    let mut net = Net::new(5, 2);
    for epoch in 101..130 {
        net.run_for(Duration::from_millis(epoch % 7 * 30));
        net.restart(1, epoch);
    }
    net.run_for(Duration::from_secs(2));
    assert!(net.all_up());
    assert_eq!(net.state(0, 1).epoch, 129);
}

#[test]
fn a_node_with_a_wrong_key_never_comes_up_and_is_told_from_noise() {
    let mut net = Net::new(6, 2);
    let (stranger, _) = keypair(99, 9);
    net.restart_with(1, 200, stranger, vec![peer(0, vec![keypair(6, 0).1])]);
    net.nodes[0].events.clear();
    net.run_for(Duration::from_secs(10));
    assert_eq!(net.ups(0), [0u64; 0]);
    assert!(net.counters(0).bad_auth > 0, "its greetings were refused by key");
    assert!(net.counters(1).bad_handshake > 0, "greetings for the former key are not for this node");
    assert!(!net.state(0, 1).up && !net.state(1, 0).up);
}

#[test]
fn while_keys_rotate_either_of_two_is_accepted_and_tried() {
    for (old, new) in [(0, 1), (1, 0)] {
        let keys = [keypair(8, 5), keypair(8, 6)];
        let (mine, my_public) = keypair(8, 0);
        // Node 0 lists both keys of node 1, in either order; node 1 has one of them.
        let listed = vec![keys[old].1, keys[new].1];
        let peers = vec![vec![peer(1, listed)], vec![peer(0, vec![my_public])]];
        let mut net = Net::with_peers(8, vec![mine, keys[0].0.clone()], peers);
        // Node 1 never hears of it by its own greeting: node 0 has to find the right key.
        net.cuts.insert((1, 0));
        net.run_for(10 * MS);
        net.cuts.clear();
        assert!(net.run_until(Duration::from_secs(1), |net| net.all_up()));
        // Now the key is changed.
        net.restart_with(1, 101, keys[1].0.clone(), vec![peer(0, vec![my_public])]);
        net.run_for(3 * MS);
        assert_eq!(net.state(0, 1).epoch, 101);
        assert_eq!(net.downs(0), 0);
    }
}

#[test]
fn the_port_of_a_datagram_is_free_but_its_address_is_not() {
    let mut net = Net::new(9, 2);
    net.run_for(Duration::from_secs(1));
    net.broadcast(0, &report(1));
    let bytes = net.sent.last().unwrap().bytes.clone();
    net.inject(1, "10.9.9.9:7712".parse().unwrap(), &bytes);
    assert_eq!(net.counters(1).unknown_source, 1);
    assert_eq!(net.heard_sequences(1), [0u64; 0]);
    net.inject(1, "[::ffff:10.1.0.11]:40000".parse().unwrap(), &bytes);
    assert_eq!(net.heard_sequences(1), [1]);
}

#[test]
fn sends_without_a_session_are_dropped_and_counted() {
    let mut net = Net::new(10, 2);
    net.send(0, PeerId(0), &Message::Goodbye);
    net.send(0, PeerId(7), &Message::Goodbye);
    assert_eq!(net.counters(0).dropped_sends, 2);
    net.run_for(10 * MS);
    net.send(0, PeerId(0), &Message::Goodbye);
    net.send(0, PeerId(0), &Message::Keep { vip: "no name".into(), role_epoch: 1 });
    assert_eq!(net.counters(0).dropped_sends, 3);
    net.run_for(10 * MS);
    let received = net.nodes[1].events.iter().filter(|event| matches!(event.output, Output::Received { .. })).count();
    assert_eq!(received, 1);
}

#[test]
fn a_report_too_big_for_one_datagram_arrives_in_parts() {
    let mut net = Net::new(11, 2);
    net.run_for(10 * MS);
    let Message::Report { vips, balancers, .. } = report(0) else { unreachable!() };
    let many: Vec<_> = (0..200)
        .map(|place| holdfast_statesync::message::VipReport { vip: format!("vip-{place}"), ..vips[0].clone() })
        .collect();
    net.broadcast(0, &Message::Report { sequence: 4, vips: many.clone(), balancers: balancers.clone() });
    net.run_for(10 * MS);
    let (mut got_vips, mut got_balancers, mut parts) = (Vec::new(), Vec::new(), 0);
    for event in &net.nodes[1].events {
        if let Output::Received { message: Message::Report { sequence, vips, balancers }, .. } = &event.output {
            assert_eq!(*sequence, 4);
            got_vips.extend(vips.clone());
            got_balancers.extend(balancers.clone());
            parts += 1;
        }
    }
    assert!(parts > 1);
    assert_eq!((got_vips, got_balancers), (many, balancers));
}

#[test]
fn a_peer_without_keys_is_never_greeted_and_never_up() {
    let (secret, _) = keypair(12, 0);
    let mut net = Net::with_peers(12, vec![secret], vec![vec![peer(1, vec![])]]);
    net.run_for(Duration::from_secs(5));
    assert!(net.sent.is_empty());
    assert_eq!(net.nodes[0].channel.poll_timeout(), None);
}

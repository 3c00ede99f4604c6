//! Whose a flow is, when VIPs move and packets take other ways.

use crate::heal::{assert_equal, assert_heals, pair};
use crate::kernel::Kernel;
use crate::sim::{MS, SECOND, SHARED, Sim, UDP_LIFE, VIP};
use holdfast_statesync::ct::{Event, EventKind};
use holdfast_statesync::flow::{Elected, Input, Survival};

#[test]
fn a_vip_that_goes_to_and_fro_breaks_no_flow() {
    let mut sim = pair(1, 200);
    for (step, to) in [1, 0, 1, 0, 1].into_iter().enumerate() {
        sim.move_vip(VIP, to);
        assert_eq!(sim.traffic(to, VIP), 0);
        sim.run_for(SECOND);
        sim.open(to, VIP, 20);
        let place = sim.below(sim.clients.len());
        sim.close(to, place);
        sim.run_for(2 * SECOND);
        assert!(sim.run_until(3 * SECOND, Sim::all_in_sync));
        assert!(sim.table(0).values().all(|(owner, ..)| *owner == to), "step {step}");
        assert_equal(&sim);
    }
    assert_eq!(sim.clients.len(), 200 + 5 * 19);
}

#[test]
fn a_vip_taken_from_a_dead_node_comes_back_with_all_flows() {
    let mut sim = pair(2, 200);
    sim.nodes[0].stalled_until = Some(sim.now + 600 * SECOND);
    sim.run_for(SECOND);
    sim.elect(1, VIP, Elected::Me);
    assert_eq!(sim.traffic(1, VIP), 0);
    sim.open(1, VIP, 50);
    for _ in 0..30 {
        let place = sim.below(sim.clients.len());
        sim.close(1, place);
    }
    sim.run_for(20 * SECOND);
    sim.nodes[0].stalled_until = None;
    let peer = sim.peer(0, 1);
    sim.elect(0, VIP, Elected::Peer(peer));
    assert_heals(&mut sim, 8 * SECOND);
    assert_eq!(sim.table(0).len(), 220);
    assert_eq!(sim.traffic(0, VIP), 0);
}

#[test]
pub(crate) fn flows_that_open_while_the_vip_moves_are_lost_on_neither_side() {
    for seed in 0..6 {
        let mut sim = Sim::idle(100 + seed, 2);
        // Compared before the new holder claims again what was on its way.
        sim.times.verify = 20 * MS;
        sim.start_agent(0);
        sim.start_agent(1);
        sim.move_vip(VIP, 0);
        sim.open(0, VIP, 50);
        assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
        sim.open(0, VIP, 30);
        let pause = sim.below(400) as u32 * MS / 1_000;
        sim.run_for(pause);
        sim.open(0, VIP, 30);
        sim.move_vip(VIP, 1);
        sim.run_for(6 * SECOND);
        assert_eq!(sim.table(1).len(), 110);
        assert_eq!(sim.traffic(1, VIP), 0);
        assert!(sim.run_until(3 * SECOND, Sim::all_in_sync));
        assert!(sim.table(0).values().all(|(owner, ..)| *owner == 1));
        assert_equal(&sim);
    }
}

#[test]
fn a_flow_closed_on_the_new_holder_goes_from_the_old_one() {
    let mut sim = pair(3, 10);
    sim.move_vip(VIP, 1);
    sim.run_for(100 * MS);
    sim.close(1, 4);
    sim.run_for(5 * MS);
    assert_eq!(sim.nodes[0].kernel.flows.len(), 9);
    assert_equal(&sim);
}

#[test]
pub(crate) fn what_goes_with_an_address_that_left_is_not_exported() {
    let mut sim = pair(4, 50);
    let other = sim.peer(0, 1);
    sim.elect(0, VIP, Elected::Peer(other));
    // Masqueraded flows are destroyed with the address, before the new holder claims them.
    let keys: Vec<_> = sim.clients.iter().map(|client| client.key()).collect();
    for key in &keys {
        sim.nodes[0].kernel.take(sim.now, key, 0);
    }
    sim.wake(0);
    sim.run_for(SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 50);
    sim.elect(1, VIP, Elected::Me);
    assert_eq!(sim.traffic(1, VIP), 0);
    sim.run_for(SECOND);
    // They are replicas of the new holder's now.
    assert_eq!(sim.nodes[0].kernel.flows.len(), 50);
    assert_equal(&sim);
}

#[test]
pub(crate) fn a_node_that_gives_a_vip_away_writes_its_entries_anew() {
    let mut sim = pair(5, 50);
    sim.cuts.extend([(0, 1), (1, 0)]);
    sim.run_for(SECOND);
    sim.move_vip(VIP, 1);
    sim.run_for(SECOND);
    assert!(sim.nodes[0].kernel.flows.values().all(|held| held.written.is_some()));
}

#[test]
fn flows_of_a_vip_that_two_nodes_held_at_once_are_sorted_out() {
    let mut sim = pair(6, 100);
    sim.cuts.extend([(0, 1), (1, 0)]);
    sim.run_for(SECOND);
    sim.elect(1, VIP, Elected::Me);
    sim.open(1, VIP, 20);
    sim.open(0, VIP, 20);
    sim.run_for(3 * SECOND);
    sim.cuts.clear();
    sim.run_for(SECOND);
    sim.move_vip(VIP, 0);
    assert_heals(&mut sim, 10 * SECOND);
    assert!(sim.table(1).values().all(|(owner, ..)| *owner == 0));
    assert_eq!(sim.table(1).len(), 140);
    assert_eq!(sim.traffic(0, VIP), 0);
}

#[test]
fn a_late_end_by_the_old_owner_ends_nothing_on_the_new_one() {
    let mut sim = pair(7, 0);
    foreign_delete(&mut sim);
    assert_eq!(sim.counters(1).foreign_deletes, 1);
    assert_heals(&mut sim, 8 * SECOND);
    assert_eq!(sim.table(0).len(), 10);
}

/// Packets of a flow come to the second node while the first one tells its end.
fn foreign_delete(sim: &mut Sim) {
    for node in [0, 1] {
        sim.elect(node, SHARED, Elected::Me);
    }
    sim.open(0, SHARED, 10);
    sim.run_for(100 * MS);
    packets_at(sim, 1, 4);
    let key = sim.clients[4].key();
    sim.nodes[0].kernel.take(sim.now, &key, 0);
    sim.wake(0);
    sim.run_for(MS);
}

/// An event of packets of a flow at this node.
fn packets_at(sim: &mut Sim, node: usize, place: usize) {
    let key = sim.clients[place].key();
    let entry = Kernel::entry(&sim.nodes[node].kernel.flows[&key], sim.now);
    sim.give(node, Input::Kernel(&Event { kind: EventKind::Update, port_id: 0, entry }));
    sim.give(node, Input::Drained);
    sim.drain(node);
}

#[test]
pub(crate) fn only_an_owner_deletes() {
    let mut sim = pair(8, 0);
    foreign_delete(&mut sim);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 10);
    assert_eq!(sim.sum(|counters| counters.foreign_deletes_applied), 0);
}

#[test]
pub(crate) fn a_flow_whose_packets_come_to_another_node_is_that_ones() {
    let mut sim = pair(9, 0);
    for node in [0, 1] {
        sim.elect(node, SHARED, Elected::Me);
    }
    sim.open(0, SHARED, 10);
    sim.run_for(100 * MS);
    packets_at(&mut sim, 1, 0);
    sim.run_for(10 * MS);
    let key = sim.clients[0].key();
    assert_eq!(sim.table(0)[&key].0, 1);
    assert_eq!(sim.table(1)[&key].0, 1);
    assert_eq!(sim.counters(1).claims, 1);
    assert_equal(&sim);
}

#[test]
fn packets_that_no_event_told_of_are_seen_by_the_audit() {
    let mut sim = pair(10, 0);
    for node in [0, 1] {
        sim.elect(node, SHARED, Elected::Me);
    }
    sim.open(0, SHARED, 10);
    sim.run_for(100 * MS);
    // They renew the timeout, no more.
    let key = sim.clients[0].key();
    for _ in 0..30 {
        let until = sim.now + 3600 * SECOND;
        sim.nodes[1].kernel.flows.get_mut(&key).expect("it is there").until = until;
        sim.run_for(200 * MS);
    }
    assert_eq!(sim.table(0)[&key].0, 1);
    assert_equal(&sim);
}

#[test]
pub(crate) fn a_udp_flow_with_a_timeout_of_6_seconds_lives_on_the_replica_as_long_as_on_the_owner() {
    let mut sim = pair(12, 0);
    for _ in 0..20 {
        let client = sim.next_client(VIP, true);
        sim.open_client(0, client);
    }
    sim.wake(0);
    for _ in 0..90 {
        sim.run_for(2 * SECOND);
        let until = sim.now + UDP_LIFE;
        sim.nodes[0].kernel.flows.values_mut().for_each(|held| held.until = until);
        assert_eq!(sim.nodes[1].kernel.flows.len(), 20);
    }
    assert_eq!(sim.timed_out, []);
    assert_eq!(sim.counters(1).refilled, 0);
    // Without packets they end on both.
    sim.run_for(8 * SECOND);
    assert!(sim.nodes.iter().all(|node| node.kernel.flows.is_empty()));
}

#[test]
pub(crate) fn two_flows_with_one_address_and_port_behind_the_nat_are_found_and_told() {
    let mut sim = pair(13, 0);
    for node in [0, 1] {
        sim.elect(node, SHARED, Elected::Me);
    }
    sim.open(0, SHARED, 5);
    sim.run_for(100 * MS);
    // A flow opened on the other node at a time when the first one's replica wasn't there.
    let client = sim.next_client(SHARED, false);
    let clashing = crate::sim::Client { reply: sim.clients[2].reply, ..client };
    let key = sim.clients[2].key();
    sim.nodes[1].kernel.lose_all();
    assert!(sim.open_client(1, clashing));
    sim.wake(1);
    sim.run_for(8 * SECOND);
    assert!(sim.counters(0).clashes + sim.counters(1).clashes >= 2);
    assert!(!sim.nodes[1].kernel.flows.contains_key(&key));
    // Its owner knows that it wouldn't survive there.
    let peer = sim.peer(0, 1);
    let explained = sim.flows(0).explain(sim.now, &key.original, Default::default());
    let holdfast_statesync::flow::Explanation::Known { peers, here: true, .. } = explained else {
        panic!("{explained:?}")
    };
    assert_eq!(peers, [(peer, Survival::Clash)]);
    // Nothing was remapped or taken from its owner.
    assert!(sim.nodes[0].kernel.flows.contains_key(&key) && sim.nodes[1].kernel.flows.contains_key(&clashing.key()));
}

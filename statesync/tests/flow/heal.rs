//! Tables become equal again, whatever happened, and nothing is lost meanwhile.

use crate::sim::{MS, SECOND, SHARED, Sim, TCP_LIFE, VIP};
use std::time::Duration;

/// Two nodes; the first holds the VIP and has this many flows; both are in sync.
pub(crate) fn pair(seed: u64, flows: usize) -> Sim {
    let mut sim = Sim::new(seed, 2);
    sim.move_vip(VIP, 0);
    sim.open(0, VIP, flows);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync), "{:?}", sim.differences());
    assert_equal(&sim);
    sim
}

pub(crate) fn assert_equal(sim: &Sim) {
    let differences = sim.differences();
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(sim.sum(|counters| counters.foreign_deletes_applied), 0);
    assert_eq!(sim.sum(|counters| counters.malformed), 0);
}

/// All disturbance ends; the tables are equal within this time.
pub(crate) fn assert_heals(sim: &mut Sim, within: Duration) {
    sim.heal();
    sim.run_for(SECOND);
    let equal = sim.run_until(within, |sim| sim.all_in_sync() && sim.differences().is_empty());
    assert!(equal, "in sync: {}, {:#?}", sim.all_in_sync(), sim.differences());
    assert_equal(sim);
}

#[test]
fn a_flow_is_in_the_peers_kernel_a_moment_after_it_is_assured() {
    let mut sim = pair(1, 0);
    sim.open(0, VIP, 8);
    sim.run_for(MS);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 8);
    assert_equal(&sim);
}

#[test]
fn a_closed_flow_goes_from_the_peers_kernel() {
    let mut sim = pair(2, 10);
    sim.close(0, 3);
    sim.close(0, 3);
    sim.run_for(2 * MS);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 8);
    assert_eq!(sim.counters(1).removed, 2);
    assert_equal(&sim);
}

#[test]
pub(crate) fn who_has_not_read_its_own_table_says_nothing_of_it() {
    let mut sim = pair(13, 500);
    let before = sim.counters(0).shards_sent;
    // It finds the replicas of the run before; the peer is heard long before they all are read.
    sim.dump_takes = 400 * MS;
    sim.restart(1);
    sim.run_for(300 * MS);
    let peer = sim.peer(0, 1);
    assert_ne!(sim.flows(0).outbound(sim.now, peer).and_then(|direction| direction.why), None);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    assert_eq!(sim.counters(0).shards_sent, before, "nothing was missing");
    assert_equal(&sim);
}

#[test]
fn a_node_that_starts_later_gets_all_flows_also_those_older_than_the_first_agent() {
    let mut sim = Sim::idle(3, 2);
    for _ in 0..2_000 {
        let client = sim.next_client(VIP, false);
        sim.open_client(0, client);
    }
    sim.start_agent(0);
    sim.move_vip(VIP, 0);
    sim.run_for(2 * SECOND);
    sim.start_agent(1);
    assert!(sim.run_until(3 * SECOND, Sim::all_in_sync));
    assert_eq!(sim.nodes[1].kernel.flows.len(), 2_000);
    assert_equal(&sim);
}

#[test]
fn two_nodes_that_start_at_once_have_equal_tables() {
    let mut sim = Sim::idle(4, 2);
    for node in [0, 1] {
        for _ in 0..200 {
            let client = sim.next_client(SHARED, false);
            sim.open_client(node, client);
        }
    }
    sim.start_agent(0);
    sim.start_agent(1);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    assert_eq!(sim.table(0).len(), 400);
    assert_equal(&sim);
}

#[test]
fn tables_are_equal_after_5_percent_loss_doubled_and_reordered_datagrams() {
    let mut sim = pair(5, 500);
    (sim.loss_percent, sim.double_percent, sim.jitter) = (5, 10, 3 * MS);
    for _ in 0..300 {
        sim.open(0, VIP, 10);
        for _ in 0..8 {
            let place = sim.below(sim.clients.len());
            sim.close(0, place);
        }
        sim.run_for(10 * MS);
    }
    assert!(sim.counters(0).batches_lost > 10 && sim.counters(1).batches_late > 10);
    assert_heals(&mut sim, 3 * SECOND);
    assert_eq!(sim.table(1).len(), 500 + 300 * 2);
}

#[test]
pub(crate) fn a_late_batch_overwrites_nothing() {
    let mut sim = pair(6, 0);
    (sim.double_percent, sim.jitter) = (50, 20 * MS);
    for _ in 0..150 {
        sim.open(0, VIP, 1);
        sim.run_for(2 * MS);
        let place = sim.below(sim.clients.len());
        sim.close(0, place);
        sim.run_for(2 * MS);
    }
    // Only what is on its way comes now: no digest is compared, nothing is said again.
    (sim.double_percent, sim.jitter) = (0, Duration::ZERO);
    sim.run_for(300 * MS);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 0);
    assert_eq!(sim.counters(0).shards_sent, 0);
}

#[test]
fn tables_are_equal_after_a_partition_of_5_seconds() {
    let mut sim = pair(7, 300);
    sim.cuts.extend([(0, 1), (1, 0)]);
    for _ in 0..50 {
        sim.open(0, VIP, 4);
        let place = sim.below(sim.clients.len());
        sim.close(0, place);
        sim.run_for(100 * MS);
    }
    let before = sim.counters(0).shards_sent;
    assert_heals(&mut sim, 3 * SECOND);
    // Only what differed was sent again.
    assert!(sim.counters(0).shards_sent - before <= 400, "{}", sim.counters(0).shards_sent);
}

#[test]
fn tables_are_equal_after_a_stall_of_10_seconds() {
    for stalled in [0, 1] {
        let mut sim = pair(8 + stalled as u64, 300);
        sim.nodes[stalled].stalled_until = Some(sim.now + 10 * SECOND);
        for _ in 0..50 {
            sim.open(0, VIP, 4);
            let place = sim.below(sim.clients.len());
            sim.close(0, place);
            sim.run_for(200 * MS);
        }
        assert_heals(&mut sim, 3 * SECOND);
    }
}

#[test]
pub(crate) fn a_flushed_replica_is_filled_again_within_a_second_and_the_owner_keeps_all() {
    let mut sim = pair(10, 400);
    sim.nodes[1].kernel.flush(sim.now);
    sim.wake(1);
    sim.run_for(SECOND);
    assert_eq!(sim.nodes[0].kernel.flows.len(), 400);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 400);
    assert!(sim.counters(1).refilled >= 400);
    assert_equal(&sim);
}

#[test]
fn a_flush_that_no_event_told_of_is_found_by_the_audit() {
    let mut sim = pair(11, 400);
    sim.nodes[1].kernel.lose_all();
    sim.run_for(7 * SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 400);
    assert_equal(&sim);
}

#[test]
fn lost_events_are_made_up_for() {
    let mut sim = pair(12, 300);
    for _ in 0..20 {
        sim.nodes[0].kernel.deaf = true;
        sim.open(0, VIP, 50);
        for _ in 0..20 {
            let place = sim.below(sim.clients.len());
            sim.close(0, place);
        }
        sim.hear_again(0);
        sim.run_for(30 * MS);
    }
    assert_eq!(sim.counters(0).overruns, 20);
    assert_heals(&mut sim, 4 * SECOND);
    assert_eq!(sim.table(1).len(), 300 + 20 * 30);
}

#[test]
fn a_restarted_agent_deletes_nothing_and_sends_little_again() {
    for node in [0, 1] {
        let mut sim = pair(13 + node as u64, 1_000);
        sim.restart(node);
        sim.run_for(50 * MS);
        assert_eq!([sim.nodes[0].kernel.flows.len(), sim.nodes[1].kernel.flows.len()], [1_000; 2]);
        assert_heals(&mut sim, 3 * SECOND);
        assert_eq!(sim.traffic(1 - node, VIP), 0);
    }
}

#[test]
fn a_snapshot_goes_on_beside_live_changes_and_holds_none_of_them_up() {
    let mut sim = Sim::new(30, 2);
    sim.move_vip(VIP, 0);
    sim.cuts.extend([(0, 1), (1, 0)]);
    sim.run_for(SECOND);
    sim.open(0, VIP, 4_000);
    sim.cuts.clear();
    assert!(sim.run_until(SECOND, |sim| !sim.nodes[1].kernel.flows.is_empty()));
    for _ in 0..100 {
        sim.open(0, VIP, 70);
        let newest: Vec<_> = sim.clients.iter().rev().take(70).map(|client| client.key()).collect();
        sim.run_for(3 * MS);
        assert!(newest.iter().all(|key| sim.nodes[1].kernel.flows.contains_key(key)));
    }
    assert_eq!(sim.nodes[1].kernel.flows.len(), 4_000 + 100 * 70);
}

#[test]
fn an_agent_killed_in_the_middle_of_a_snapshot_goes_on() {
    for node in [0, 1] {
        let mut sim = Sim::new(15 + node as u64, 2);
        sim.move_vip(VIP, 0);
        sim.cuts.extend([(0, 1), (1, 0)]);
        sim.run_for(SECOND);
        sim.open(0, VIP, 5_000);
        sim.cuts.clear();
        while sim.nodes[1].kernel.flows.len() < 1_000 {
            sim.run_for(MS / 10);
        }
        assert!(sim.nodes[1].kernel.flows.len() < 5_000);
        sim.restart(node);
        assert_heals(&mut sim, 4 * SECOND);
        assert_eq!(sim.nodes[1].kernel.flows.len(), 5_000);
    }
}

#[test]
fn the_flows_of_a_rebooted_node_stay_for_their_lease_and_then_go() {
    let mut sim = pair(17, 100);
    sim.open(1, SHARED, 50);
    sim.run_for(100 * MS);
    sim.reboot(0);
    sim.clients.clear();
    // Nobody is elected: nobody claims them.
    sim.elect(0, VIP, Default::default());
    sim.elect(1, VIP, Default::default());
    sim.run_for(5 * SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 150);
    assert_eq!(sim.nodes[0].kernel.flows.len(), 50);
    sim.run_for(3 * sim.times.lease);
    assert_heals(&mut sim, SECOND);
    assert_eq!(sim.table(1).len(), 50);
}

#[test]
fn four_nodes_hold_each_others_flows() {
    let mut sim = Sim::new(18, 4);
    for node in 0..4 {
        sim.elect(node, SHARED, holdfast_statesync::flow::Elected::Me);
        sim.open(node, SHARED, 100);
    }
    (sim.loss_percent, sim.jitter) = (5, MS);
    sim.run_for(5 * SECOND);
    assert_heals(&mut sim, 5 * SECOND);
    assert!((0..4).all(|node| sim.nodes[node].kernel.flows.len() == 400));
}

#[test]
fn a_tuple_that_another_connection_uses_again_gets_its_new_backend_everywhere() {
    let mut sim = pair(19, 5);
    let client = sim.clients[2];
    sim.close(0, 2);
    let other = sim.next_client(VIP, false);
    let again = crate::sim::Client { reply: other.reply, life: TCP_LIFE, ..client };
    assert!(sim.open_client(0, again));
    sim.wake(0);
    sim.run_for(5 * MS);
    assert_eq!(sim.nodes[1].kernel.flows[&client.key()].reply, other.reply);
    assert_equal(&sim);
}

#[test]
fn the_end_of_an_earlier_connection_that_is_told_late_ends_nothing() {
    let mut sim = pair(20, 3);
    let client = sim.clients[1];
    // The sockets for new flows and for ends have no common order.
    sim.nodes[0].kernel.close(sim.now, &client.key());
    let late = sim.nodes[0].kernel.events.pop_front();
    assert!(sim.nodes[0].kernel.open(sim.now, client.original, client.reply, TCP_LIFE, true));
    sim.wake(0);
    sim.nodes[0].kernel.events.extend(late);
    sim.wake(0);
    sim.run_for(5 * MS);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 3);
    assert_equal(&sim);
}

//! The flow lanes over the real channel: sessions that end, are renewed and forged.

use crate::heal::{assert_equal, assert_heals};
use crate::sim::{MS, SECOND, Sim, VIP};
use std::time::Duration;

/// As `heal::pair`, over channels.
fn pair(seed: u64, flows: usize) -> Sim {
    let mut sim = Sim::over_channels(seed, 2);
    sim.move_vip(VIP, 0);
    sim.open(0, VIP, flows);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync), "{:?}", sim.differences());
    assert_equal(&sim);
    sim
}

/// Flows come and go.
fn churn(sim: &mut Sim, rounds: usize, pause: Duration) {
    for _ in 0..rounds {
        sim.open(0, VIP, 4);
        for _ in 0..4 {
            let place = sim.below(sim.clients.len());
            sim.close(0, place);
        }
        sim.run_for(pause);
    }
}

#[test]
fn tables_are_equal_over_channels_that_lose_double_and_reorder() {
    let mut sim = pair(1, 200);
    (sim.loss_percent, sim.double_percent, sim.jitter) = (5, 10, 3 * MS);
    churn(&mut sim, 300, 10 * MS);
    assert!(sim.counters(0).batches_lost > 10 && sim.counters(1).batches_late > 10);
    assert!(sim.channel(1).counters().replayed > 10);
    assert_heals(&mut sim, 3 * SECOND);
}

#[test]
fn a_session_that_is_renewed_loses_no_batch_and_begins_nothing_anew() {
    let mut sim = pair(2, 50);
    sim.wire().ups = 0;
    let snapshot = sim.counters(0).shards_sent;
    // Two renewals, and changes all the time.
    churn(&mut sim, 2_500, 100 * MS);
    assert!(sim.channel(0).counters().sessions >= 3, "{:?}", sim.channel(0).counters());
    assert_eq!((sim.wire().ups, sim.wire().downs), (0, 0));
    assert_eq!(sim.sum(|counters| counters.batches_lost), 0);
    assert_eq!(sim.counters(0).shards_sent, snapshot);
    assert_heals(&mut sim, 2 * SECOND);
}

#[test]
fn a_side_that_restarts_quickly_is_up_without_a_down_and_tables_are_equal() {
    for node in [0, 1] {
        let mut sim = pair(3 + node as u64, 300);
        sim.wire().ups = 0;
        sim.restart(node);
        churn(&mut sim, 20, 20 * MS);
        assert_heals(&mut sim, 3 * SECOND);
        assert_eq!((sim.wire().ups, sim.wire().downs), (2, 0));
        assert_eq!(sim.traffic(1 - node, VIP), 0);
    }
}

#[test]
fn a_peer_whose_key_is_wrong_changes_nothing() {
    let mut sim = pair(5, 100);
    sim.kill(1);
    sim.run_for(2 * SECOND);
    // An impostor at its address: as it was, but for the key.
    let before = sim.table(0);
    let counters = sim.counters(0);
    sim.nodes[1].kernel.lose_all();
    sim.change_secret(1);
    sim.start_agent(1);
    let client = sim.next_client(VIP, false);
    sim.open_client(1, client);
    sim.elect(1, VIP, holdfast_statesync::flow::Elected::Me);
    sim.run_for(10 * SECOND);
    assert!(sim.channel(0).counters().refused() > 0);
    assert!(!sim.channel(0).peer_state(sim.peer(0, 1)).up && !sim.channel(1).peer_state(sim.peer(1, 0)).up);
    assert_eq!((sim.table(0), sim.counters(0).batches_applied), (before, counters.batches_applied));
    assert_eq!(sim.nodes[1].kernel.flows.len(), 1);
}

#[test]
fn datagrams_that_are_replayed_cut_short_or_changed_change_nothing() {
    let mut sim = pair(6, 100);
    sim.wire().kept = Some(Vec::new());
    churn(&mut sim, 100, 5 * MS);
    sim.run_for(SECOND);
    let kept = sim.wire().kept.take().expect("kept");
    assert!(kept.len() > 100);
    let batches = |sim: &Sim| sim.sum(|counters| counters.batches_applied + counters.batches_late);
    let (tables, before) = ([sim.table(0), sim.table(1)], batches(&sim));
    for (place, (from, to, bytes)) in kept.iter().enumerate() {
        sim.receive(*to, *from, bytes);
        sim.receive(*to, *from, &bytes[..place % bytes.len()]);
        let mut changed = bytes.clone();
        changed[place % bytes.len()] ^= 1 << (place % 8);
        sim.receive(*to, *from, &changed);
        // Also as if it came from the other one.
        sim.receive(*from, *to, bytes);
    }
    assert_eq!(([sim.table(0), sim.table(1)], batches(&sim)), (tables, before));
    assert_heals(&mut sim, 2 * SECOND);
}

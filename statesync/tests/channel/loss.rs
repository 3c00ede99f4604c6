//! A bad network: loss, doubling, reordering.

use crate::net::{MS, Net, report};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn a_session_survives_30_percent_loss_for_10_minutes_without_going_down() {
    let mut net = Net::new(1, 2);
    net.loss_percent = 30;
    net.jitter = MS;
    assert!(net.run_until(Duration::from_secs(5), |net| net.all_up()));
    let mut sequence = 0;
    let end = net.time() + Duration::from_secs(600);
    while net.time() < end {
        sequence += 1;
        net.broadcast(0, &report(sequence));
        net.broadcast(1, &report(sequence));
        net.run_for(100 * MS);
    }
    for node in 0..2 {
        assert_eq!(net.downs(node), 0, "node {node}");
        assert_eq!(net.ups(node), [100]);
        let heard = net.heard_sequences(node).len() as u64;
        assert!((60..80).contains(&(heard * 100 / sequence)), "{heard} of {sequence}");
    }
    // Five sessions were due meanwhile; all of them came.
    assert!(net.counters(0).sessions >= 5);
}

#[test]
fn doubled_and_reordered_datagrams_are_heard_exactly_once() {
    for seed in 0..5 {
        let mut net = Net::new(seed, 2);
        net.double_percent = 50;
        net.jitter = 20 * MS;
        assert!(net.run_until(Duration::from_secs(5), |net| net.all_up()));
        net.run_for(Duration::from_secs(1));
        for sequence in 0..2000 {
            net.broadcast(0, &report(sequence));
            net.run_for(MS);
        }
        net.run_for(Duration::from_secs(1));
        let heard = net.heard_sequences(1);
        assert_eq!(heard.len(), 2000, "seed {seed}");
        assert_eq!(heard.iter().copied().collect::<BTreeSet<_>>().len(), 2000);
        assert!(heard.windows(2).any(|pair| pair[0] > pair[1]), "the network did reorder");
        assert!(net.counters(1).replayed > 500);
        assert_eq!((net.downs(0), net.downs(1)), (0, 0));
    }
}

#[test]
fn nodes_come_up_through_60_percent_loss_with_reordering_and_doubling() {
    for seed in 0..20 {
        let mut net = Net::new(seed, 3);
        net.loss_percent = 60;
        net.double_percent = 20;
        net.jitter = 50 * MS;
        net.run_for(Duration::from_secs(10));
        net.loss_percent = 0;
        assert!(net.run_until(Duration::from_millis(1300), |net| net.all_up()), "seed {seed}");
    }
}

//! A new session every two minutes, beside the old one.

use crate::net::{MS, Net, report};
use std::time::Duration;

#[test]
fn sessions_are_renewed_every_two_minutes_without_losing_a_message() {
    let mut net = Net::new(1, 2);
    net.jitter = 5 * MS;
    net.run_for(Duration::from_secs(1));
    let mut sequence = 0;
    while net.time() < Duration::from_secs(390) {
        // Dense around the handshakes, sparse between them.
        let second = net.time().as_secs() % 120;
        for node in 0..2 {
            net.broadcast(node, &report(sequence));
        }
        sequence += 1;
        net.run_for(if second < 13 { 5 * MS } else { 80 * MS });
    }
    net.run_for(Duration::from_secs(1));
    for node in 0..2 {
        let mut heard = net.heard_sequences(node);
        heard.sort_unstable();
        assert_eq!(heard, (0..sequence).collect::<Vec<_>>());
        assert_eq!(net.downs(node), 0);
        assert_eq!(net.ups(node), [100]);
    }
    // Two sessions by the simultaneous start, then one each at 120, 240 and 360 s.
    assert_eq!(net.counters(0).sessions, 5);
    let greetings: Vec<_> = net.sent.iter().filter(|sent| sent.is_greeting()).map(|sent| sent.at.as_secs()).collect();
    assert_eq!(greetings, [0, 0, 120, 240, 360]);
}

#[test]
fn a_renewal_that_the_starter_can_not_make_is_made_by_the_other_side() {
    let mut net = Net::new(2, 2);
    net.run_for(Duration::from_secs(1));
    // From now on no answer passes to the side that starts renewals: it is the one of the lower key.
    let lower = usize::from(crate::net::keypair(2, 0).1 > crate::net::keypair(2, 1).1);
    net.run_for(Duration::from_secs(118));
    let end = Duration::from_secs(135);
    while net.time() < end {
        // Its greetings are lost, everything else passes: cut its direction only while it greets.
        let sent_before = net.sent.len();
        net.run_for(MS);
        let greeted = net.sent[sent_before..].iter().any(|sent| sent.from == lower && sent.is_greeting());
        if greeted {
            // Whatever left in this millisecond is dropped before it arrives.
            net.drop_in_flight_from(lower);
        }
    }
    let by_other = net.sent.iter().filter(|sent| sent.is_greeting() && sent.from != lower && sent.at.as_secs() >= 120);
    assert_eq!(by_other.count(), 1);
    net.run_for(Duration::from_secs(2));
    assert_eq!((net.downs(0), net.downs(1)), (0, 0));
    assert_eq!(net.counters(lower).sessions, 3);
}

#[test]
fn nothing_is_lost_from_the_moment_both_are_up_again_after_a_cut() {
    for seed in 0..10 {
        let mut net = Net::new(seed, 2);
        net.run_for(Duration::from_secs(1));
        net.jitter = 5 * MS;
        net.cuts.extend([(0, 1), (1, 0)]);
        net.run_for(Duration::from_millis(1000));
        net.cuts.clear();
        assert!(net.run_until(Duration::from_secs(2), |net| net.all_up()));
        for sequence in 0..200 {
            for node in 0..2 {
                net.broadcast(node, &report(sequence));
            }
            net.run_for(MS);
        }
        net.run_for(Duration::from_secs(1));
        for node in 0..2 {
            let mut heard = net.heard_sequences(node);
            heard.sort_unstable();
            assert_eq!(heard, (0..200).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

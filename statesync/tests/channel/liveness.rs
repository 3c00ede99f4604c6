//! Signs of life, Down and Up, retries.

use crate::net::{MS, Net, Sent, report};
use holdfast_statesync::{ChannelInput as Input, ChannelOutput as Output};
use std::time::Duration;

fn count(net: &Net, since: Duration, which: impl Fn(&Sent) -> bool) -> usize {
    net.sent.iter().filter(|sent| sent.at >= since && which(sent)).count()
}

#[test]
fn an_idle_session_sends_an_empty_datagram_every_110_ms_and_nothing_else() {
    let mut net = Net::new(1, 2);
    net.run_for(Duration::from_secs(1));
    let since = net.time();
    net.run_for(Duration::from_secs(10));
    for node in 0..2 {
        let sent = count(&net, since, |sent| sent.from == node);
        assert!((90..=91).contains(&sent), "{sent}");
    }
    // 14 bytes of header and 16 of tag, no content.
    assert!(net.sent.iter().filter(|sent| sent.at >= since).all(|sent| sent.bytes.len() == 30));
}

#[test]
fn a_node_that_reports_every_100_ms_or_faster_sends_no_empty_datagrams() {
    let mut net = Net::new(2, 2);
    net.run_for(Duration::from_secs(1));
    let since = net.time();
    for sequence in 0..100 {
        net.broadcast(0, &report(sequence));
        net.run_for(100 * MS);
    }
    assert_eq!(count(&net, since, |sent| sent.from == 0 && sent.bytes.len() == 30), 0);
}

#[test]
fn a_silent_peer_is_down_400_ms_after_its_last_sign_of_life() {
    let mut net = Net::new(3, 2);
    net.run_for(Duration::from_secs(1));
    net.stop(1);
    let last = net.state(0, 1).last_heard.unwrap();
    net.run_for(Duration::from_secs(1));
    let heard = net.state(0, 1).last_heard.unwrap();
    assert!(heard - last <= 100 * MS);
    let down = net.nodes[0].events.iter().find(|event| matches!(event.output, Output::Down { .. })).unwrap();
    assert_eq!(net.now - net.time() + down.at, heard + 400 * MS);
    assert_eq!(net.downs(0), 1);
    assert!(!net.state(0, 1).up);
}

#[test]
fn a_quiet_peer_is_asked_every_20_ms_from_125_ms_on() {
    let mut net = Net::new(4, 2);
    net.run_for(Duration::from_secs(1));
    net.cuts.insert((1, 0));
    let heard = net.state(0, 1).last_heard.unwrap();
    net.run_for(Duration::from_secs(1));
    let heard_at = net.time() - (net.now - net.state(0, 1).last_heard.unwrap().max(heard));
    let asked: Vec<_> = net
        .sent
        .iter()
        .filter(|sent| sent.from == 0 && sent.bytes.len() == 33)
        .map(|sent| (sent.at - heard_at).as_millis())
        .collect();
    assert_eq!(asked, [125, 145, 165, 185, 205, 225, 245, 265, 285, 305, 325, 345, 365, 385]);
}

#[test]
fn an_absent_peer_is_greeted_for_ever_with_pauses_up_to_a_second() {
    let mut net = Net::new(5, 2);
    net.stop(1);
    net.run_for(Duration::from_secs(120));
    let at: Vec<_> =
        net.sent.iter().filter(|sent| sent.from == 0 && sent.is_greeting()).map(|sent| sent.at.as_millis()).collect();
    let pauses: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (pause, longest) in pauses.iter().zip([100, 200, 400, 800]) {
        assert!((longest * 3 / 4..=longest).contains(pause), "{pause} of {longest}");
    }
    assert!(pauses[4..].iter().all(|pause| (749..=1000).contains(pause)), "{pauses:?}");
    assert!(at.len() > 120);
    // When it comes at last, it is up at once by its own greeting.
    net.restart(1, 300);
    net.run_for(3 * MS);
    assert!(net.all_up());
}

#[test]
fn after_a_cut_both_are_up_again_within_a_second_and_a_round_trip() {
    for seed in 0..10 {
        let mut net = Net::new(seed, 2);
        net.run_for(Duration::from_secs(1));
        net.cuts.extend([(0, 1), (1, 0)]);
        net.run_for(Duration::from_millis(1500 + 3333 * seed));
        assert!(!net.state(0, 1).up && !net.state(1, 0).up);
        net.cuts.clear();
        net.run_for(Duration::from_millis(1010));
        assert!(net.all_up(), "seed {seed}");
        assert_eq!((net.downs(0), net.downs(1)), (1, 1));
        net.run_for(Duration::from_secs(5));
        assert_eq!((net.downs(0), net.downs(1)), (1, 1));
    }
}

#[test]
fn in_a_cut_of_one_direction_the_other_one_still_carries_messages() {
    let mut net = Net::new(6, 2);
    net.run_for(Duration::from_secs(1));
    net.cuts.insert((1, 0));
    net.run_for(Duration::from_secs(2));
    assert!(!net.state(0, 1).up, "nothing is heard of it");
    assert!(net.state(1, 0).up, "it hears");
    net.broadcast(0, &report(5));
    net.run_for(10 * MS);
    assert_eq!(net.heard_sequences(1), [5]);
    net.cuts.clear();
    net.run_for(Duration::from_millis(1010));
    assert!(net.all_up());
    assert_eq!(net.downs(1), 0);
}

#[test]
fn what_an_old_session_delivers_after_a_silence_is_not_believed() {
    let mut net = Net::new(7, 2);
    net.run_for(Duration::from_secs(1));
    // Someone on the path holds everything back, and lets one report through much later.
    net.cuts.extend([(0, 1), (1, 0)]);
    net.broadcast(0, &report(5));
    let held_back = net.sent.last().unwrap().clone();
    net.run_for(Duration::from_secs(2));
    let before = net.state(1, 0);
    net.inject(1, crate::net::address(0), &held_back.bytes);
    assert_eq!(net.state(1, 0), before);
    assert_eq!(net.heard_sequences(1), [0u64; 0]);
    assert!(net.counters(1).too_old > 0);
}

#[test]
fn a_datagram_that_waited_in_the_socket_of_a_stalled_caller_counts_before_the_clock() {
    let mut net = Net::new(8, 2);
    net.run_for(Duration::from_secs(1));
    net.broadcast(1, &report(3));
    let bytes = net.sent.last().unwrap().bytes.clone();
    net.now += Duration::from_secs(2);
    let now = net.now;
    let from = crate::net::address(1);
    net.nodes[0].channel.handle(now, Input::Datagram { from, bytes: &bytes });
    assert!(net.state(0, 1).up);
}

#[test]
fn outputs_that_nobody_drains_are_bounded_and_counted() {
    let mut net = Net::new(9, 2);
    net.run_for(Duration::from_secs(1));
    let now = net.now;
    let message = report(1);
    for _ in 0..holdfast_statesync::channel::OUTPUTS_MAX + 10 {
        net.nodes[0].channel.handle(now, Input::Broadcast { message: &message });
    }
    assert_eq!(net.counters(0).dropped_outputs, 10);
}

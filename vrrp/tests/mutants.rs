//! Each guard that can be switched off has a check here that holds with it and fails without it.
#![cfg(feature = "mutants")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{
    Lan, advert, config, cs, drain, heard, host, leg, leg6, member, ms, prio, resume, start, time_zero, with_legs,
};
use holdfast_vrrp::mutants::{NAMES, off, with_off};
use holdfast_vrrp::wire::{Advert, AdvertError, ChecksumForm, Received, TTL, VRRP_PROTOCOL, decode_v4};
use holdfast_vrrp::{Family, Input, Output, Router, RouterConfig, State, Transport};

/// A guard's name, and the behaviour that it stands for.
type Check = (&'static str, fn() -> bool);

const CHECKS: [Check; 15] = [
    ("ttl-check", a_packet_from_beyond_the_segment_is_refused),
    ("checksum", a_packet_with_a_flipped_bit_is_refused),
    ("last-advert-of-the-loser", the_winner_of_a_healed_partition_announces_again),
    ("losing-advert-answered", a_partition_heals_at_once),
    ("tie-break", equal_priorities_end_with_one_active),
    ("resign-on-stop", a_shut_down_active_is_replaced_within_a_skew),
    ("advert-burst", a_late_timer_sends_one_advert),
    ("min-ttl", a_peer_beyond_one_router_more_is_refused),
    ("unicast-peers", a_stranger_is_refused),
    ("preempt-delay", a_lower_active_is_left_alone_for_a_while),
    ("last-resort-yield", a_node_that_failed_yields_without_preemption),
    ("lead-leg-tie-break", equals_are_decided_on_one_leg_only),
    ("checksum-auto", a_peer_is_answered_in_its_own_checksum),
    ("follow-the-better", the_last_word_of_a_loser_does_not_hide_its_winner),
    ("outranked", who_is_better_again_was_heard_when_it_was_heard),
];

#[test]
fn every_guard_has_a_check() {
    let checked: BTreeSet<_> = CHECKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(checked, BTreeSet::from(NAMES));
}

#[test]
fn every_check_holds_with_its_guard_and_fails_without_it() {
    for (name, check) in CHECKS {
        assert!(check(), "{name}: the check must hold");
        assert!(!with_off(name, check), "{name}: switched off, and the check didn't notice");
        assert!(!off(name), "{name}: stays off");
    }
}

fn packet(ttl: u8, message: &[u8]) -> Vec<u8> {
    let total = u8::try_from(20 + message.len()).unwrap();
    let mut packet = vec![0x45, 0xc0, 0, total, 0, 1, 0, 0, ttl, VRRP_PROTOCOL, 0, 0, 10, 0, 0, 1, 224, 0, 0, 18];
    packet.extend(message);
    packet
}

fn message() -> Vec<u8> {
    Advert::encode(&advert(254, 10), ChecksumForm::Message, host(1), Family::V4.group())
}

fn a_packet_from_beyond_the_segment_is_refused() -> bool {
    decode_v4(&packet(TTL - 1, &message())).is_err()
}

fn a_packet_with_a_flipped_bit_is_refused() -> bool {
    let mut message = message();
    message[2] ^= 1;
    decode_v4(&packet(TTL, &message)).is_err()
}

fn split_pair() -> Lan {
    let mut lan = Lan::new().node(254, cs(10)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.split(0, 1);
    lan.run_for(ms(1_030));
    assert_eq!(lan.actives(), [0, 1]);
    lan.heal();
    lan.forget();
    lan
}

/// The winner's regular advert comes first here: without the loser's last word it never learns that there were two.
fn the_winner_of_a_healed_partition_announces_again() -> bool {
    let mut lan = split_pair();
    // The loser may not speak before it has heard the winner.
    lan.cut(1, 0);
    while lan.sent(0).is_empty() {
        lan.run_for(Duration::from_micros(10));
    }
    lan.heal();
    lan.run_for(ms(50));
    lan.log.iter().any(|e| e.node == 0 && matches!(e.output, Output::Reassert(_)))
}

/// An Active that hears a lower one answers at once, not at its next advert.
fn a_partition_heals_at_once() -> bool {
    let now = time_zero();
    let mut router = Router::new(config(cs(10), true), now);
    resume(&mut router, now, host(1), 254);
    drain(&mut router);
    router.handle(now, heard(host(2), &advert(253, 10)));
    let outputs = drain(&mut router);
    matches!(outputs[..], [Output::Send { .. }, Output::Reassert(_)])
}

fn equal_priorities_end_with_one_active() -> bool {
    let mut lan = Lan::new().node(100, cs(10)).node(100, cs(10));
    lan.run_for(ms(2_000));
    lan.actives().len() == 1
}

fn a_shut_down_active_is_replaced_within_a_skew() -> bool {
    let mut lan = Lan::new().node(254, cs(10)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.input(0, Input::Stop);
    lan.run_for(ms(5));
    lan.state(1) == State::Active
}

fn a_late_timer_sends_one_advert() -> bool {
    let mut lan = Lan::new().node(254, cs(10));
    lan.run_for(ms(1_000));
    lan.freeze(0);
    lan.run_for(ms(1_000));
    lan.forget();
    lan.thaw(0, false);
    lan.run_for(ms(1));
    lan.sent(0).len() == 1
}

/// An advert of host 2, as it came from a unicast peer.
fn from_peer(ttl: u8) -> Received {
    let advert = advert(254, 10);
    Received { source: host(2), destination: host(1), ttl, advert, checksum: ChecksumForm::Message }
}

fn a_peer_beyond_one_router_more_is_refused() -> bool {
    let transport = Transport::Unicast { peers: vec![host(2)], min_ttl: 254 };
    assert_eq!(transport.accept(&from_peer(254)), Ok(()));
    transport.accept(&from_peer(253)) == Err(AdvertError::TtlBelowMinimum { ttl: 253, min: 254 })
}

fn a_stranger_is_refused() -> bool {
    let transport = Transport::Unicast { peers: vec![host(3)], min_ttl: 1 };
    transport.accept(&from_peer(255)) == Err(AdvertError::UnknownPeer(host(2)))
}

/// A Backup at 254 that hears an Active at this priority each interval, from its start on, for 3 s.
fn hears(priority: u8, config: RouterConfig) -> State {
    let zero = time_zero();
    let mut router = Router::new(config, zero);
    start(&mut router, zero, host(1), 254);
    for at in (0..3_000).step_by(100).map(ms) {
        router.handle(zero + at, heard(host(2), &advert(priority, 10)));
        router.handle(zero + at, Input::Timer);
    }
    router.state()
}

fn a_lower_active_is_left_alone_for_a_while() -> bool {
    let with_delay = |ms_| RouterConfig { preempt_delay: ms(ms_), ..config(cs(10), true) };
    assert_eq!(hears(253, with_delay(1_000)), State::Active, "and not longer");
    hears(253, with_delay(10_000)) == State::Backup
}

fn a_node_that_failed_yields_without_preemption() -> bool {
    assert_eq!(hears(2, config(cs(10), false)), State::Backup);
    hears(1, config(cs(10), false)) == State::Active
}

/// The addresses of the two hosts are in opposite order on the two legs.
fn equals_are_decided_on_one_leg_only() -> bool {
    let legs = || with_legs(vec![leg(), member(11)], cs(10));
    let mut lan = Lan::new().addresses(|n, at, _| host(if at == 0 { n } else { 10 - n }));
    lan = lan.started(100, legs()).started(100, legs());
    lan.split(0, 1);
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0, 1]);
    lan.heal();
    lan.forget();
    lan.run_for(ms(150));
    lan.actives() == [1] && lan.transitions().len() == 1
}

fn a_peer_is_answered_in_its_own_checksum() -> bool {
    let now = time_zero();
    let mut router = Router::new(with_legs(vec![leg(), leg6()], cs(10)), now);
    common::give_sources(&mut router, now, |at| if at == 0 { host(1) } else { common::host6(1) });
    router.handle(now, Input::Resume { priority: prio(254) });
    let advert = advert(253, 10);
    let form = ChecksumForm::PseudoHeader;
    drain(&mut router);
    router.handle(now, Input::Advert { leg: common::LEG, source: host(2), advert: &advert, form });
    let outputs = drain(&mut router);
    let packets = outputs.iter().find_map(|output| match output {
        Output::Send { packets, .. } => Some(packets),
        _ => None,
    });
    let packets = packets.expect("a losing advert is answered");
    let group = Family::V4.group();
    holdfast_vrrp::wire::decode_message(&packets[0].payload, host(1), group).unwrap().1 == form
}

/// A winner that advertises each second, and a loser that did each 100 ms and says its last word after it.
fn the_last_word_of_a_loser_does_not_hide_its_winner() -> bool {
    let zero = time_zero();
    let mut router = Router::new(config(cs(10), true), zero);
    start(&mut router, zero, host(1), 100);
    for second in 0..10 {
        let at = zero + Duration::from_secs(second);
        router.handle(at, heard(host(3), &advert(254, 100)));
        router.handle(at + ms(1), heard(host(2), &advert(253, 10)));
        router.handle(at + ms(600), Input::Timer);
    }
    router.state() == State::Backup
}

/// About to preempt one of 200, it falls below it: the down time counts from what was heard last.
fn who_is_better_again_was_heard_when_it_was_heard() -> bool {
    let zero = time_zero();
    let mut router = Router::new(config(cs(100), true), zero);
    start(&mut router, zero, host(1), 254);
    let at = |time| zero + ms(time);
    router.handle(at(2_900), heard(host(2), &advert(200, 100)));
    router.handle(at(2_950), Input::Priority(prio(100)));
    // 3.6 s since the start: the timer of the start. 6.5 s: that of the advert.
    router.handle(at(3_700), Input::Timer);
    let waits = router.state() == State::Backup;
    router.handle(at(6_600), Input::Timer);
    waits && router.state() == State::Active
}

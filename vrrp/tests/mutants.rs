//! Each guard that can be switched off has a check here that holds with it and fails without it.
#![cfg(feature = "mutants")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Lan, advert, config, cs, drain, host, ms, prio, time_zero};
use holdfast_vrrp::mutants::{NAMES, off, with_off};
use holdfast_vrrp::wire::{Advert, MULTICAST_GROUP, TTL, VRRP_PROTOCOL, decode_packet};
use holdfast_vrrp::{Input, Output, Router, State};

/// A guard's name, and the behaviour that it stands for.
type Check = (&'static str, fn() -> bool);

const CHECKS: [Check; 7] = [
    ("ttl-check", a_packet_from_beyond_the_segment_is_refused),
    ("checksum", a_packet_with_a_flipped_bit_is_refused),
    ("last-advert-of-the-loser", the_winner_of_a_healed_partition_announces_again),
    ("losing-advert-answered", a_partition_heals_at_once),
    ("tie-break", equal_priorities_end_with_one_active),
    ("resign-on-stop", a_shut_down_active_is_replaced_within_a_skew),
    ("advert-burst", a_late_timer_sends_one_advert),
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
    let mut packet = vec![0x45, 0xc0, 0, total, 0, 1, 0, 0, ttl, VRRP_PROTOCOL, 0, 0, 10, 0, 0, 1];
    packet.extend(MULTICAST_GROUP.octets());
    packet.extend(message);
    packet
}

fn message() -> Vec<u8> {
    Advert::encode(&advert(254, 10))
}

fn a_packet_from_beyond_the_segment_is_refused() -> bool {
    decode_packet(&packet(TTL - 1, &message())).is_err()
}

fn a_packet_with_a_flipped_bit_is_refused() -> bool {
    let mut message = message();
    message[2] ^= 1;
    decode_packet(&packet(TTL, &message)).is_err()
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
    router.handle(now, Input::Resume { priority: prio(254), source: host(1) });
    drain(&mut router);
    router.handle(now, Input::Advert { source: host(2), advert: &advert(253, 10) });
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

//! Each guard that can be switched off has a check here that holds with it and fails without it.
#![cfg(feature = "mutants")]

mod common;

use std::collections::BTreeSet;

use common::hand::{Hand, messages, notification, open, opens, updates, wire, withdrawn};
use common::net::Net;
use common::{config, many, ms, s, with_route};
use holdfast_bgp::mutants::{NAMES, off, with_off};
use holdfast_bgp::rib::Route;
use holdfast_bgp::session::{BfdState, HIGH_WATER};
use holdfast_bgp::types::Asn;
use holdfast_bgp::wire::{Message, Notification};
use holdfast_bgp::{Event, Input, Output, PeerConfig, State, Stop};

/// A guard's name, and the behaviour that it stands for.
type Check = (&'static str, fn() -> bool);

const CHECKS: [Check; 17] = [
    ("back-off", a_misconfigured_neighbour_is_dialled_less_often),
    ("bfd-edge", what_bfd_says_again_ends_nothing),
    ("collision", the_loser_of_two_connections_is_never_agreed_to),
    ("collision-by-identifier", two_that_dial_at_once_keep_the_same_connection),
    ("one-session", a_session_leaves_no_other_connection),
    ("hold-by-whole-messages", a_dribbling_neighbour_is_given_up),
    ("late-hold-timer", one_that_stood_still_hears_what_waits_first),
    ("send-hold", a_neighbour_that_takes_nothing_is_given_up),
    ("flow-control", a_full_socket_is_given_no_routes),
    ("hard-reset", a_stop_is_a_hard_reset_where_a_cease_would_keep_the_routes),
    ("silent-restart", a_restart_says_nothing),
    ("withdraw-before-farewell", a_stop_withdraws),
    ("r-bit-once", r_is_not_claimed_without_a_restart),
    ("honest-f-bit", f_is_not_claimed_without_a_data_plane),
    ("end-of-rib-last", end_of_rib_comes_after_the_routes),
    ("unchanged-is-silent", the_same_again_makes_no_update),
    ("level-triggered", what_was_withdrawn_meanwhile_stays_so),
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

fn a_misconfigured_neighbour_is_dialled_less_often() -> bool {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    for _ in 0..5 {
        let conn = hand.connect();
        hand.say(conn, &Message::Open(open(2, Asn(64_999))));
        let before = hand.attempts().len();
        while hand.attempts().len() == before {
            hand.now = hand.peer.poll_timeout().unwrap();
            hand.settle();
        }
    }
    let attempts = hand.attempts();
    attempts[5] - attempts[4] > s(10)
}

fn what_bfd_says_again_ends_nothing() -> bool {
    let (mut hand, _) = Hand::established(config(1, 2));
    hand.give(Input::Bfd(BfdState::Down));
    hand.state() == State::Established
}

fn the_loser_of_two_connections_is_never_agreed_to() -> bool {
    let mut hand = Hand::new(config(2, 1));
    hand.give(Input::Start);
    let (accepted, dialled) = (hand.accept(), hand.connect());
    let open = open(1, Asn(65_001));
    hand.say(accepted, &Message::Open(open.clone()));
    hand.say(dialled, &Message::Open(open));
    !hand.sent(accepted).contains(&Message::Keepalive)
}

fn two_that_dial_at_once_keep_the_same_connection() -> bool {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let (accepted, dialled) = (hand.accept(), hand.connect());
    for conn in [dialled, accepted] {
        let open = hand.their_open();
        hand.say(conn, &Message::Open(open));
    }
    for conn in [dialled, accepted] {
        hand.say(conn, &Message::Keepalive);
    }
    // Its identifier is the higher one, so what it dialled.
    hand.info().conn == Some(accepted)
}

fn a_session_leaves_no_other_connection() -> bool {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let (accepted, dialled) = (hand.accept(), hand.connect());
    let open = hand.their_open();
    hand.agree(accepted, &open);
    let outputs = hand.take();
    notification(&messages(&outputs, dialled)) == Some(Notification::new(6, 7, vec![]))
}

fn a_dribbling_neighbour_is_given_up() -> bool {
    let (mut hand, conn) = Hand::established(config(1, 2));
    for byte in &wire(&Message::Keepalive)[..15] {
        hand.run(s(1));
        hand.bytes(conn, &[*byte]);
    }
    hand.state() != State::Established
}

fn one_that_stood_still_hears_what_waits_first() -> bool {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.now += s(20);
    hand.give(Input::Timer);
    hand.say(conn, &Message::Keepalive);
    hand.state() == State::Established
}

fn a_neighbour_that_takes_nothing_is_given_up() -> bool {
    let (mut hand, conn) = Hand::established(PeerConfig { send_hold: Some(s(20)), ..config(1, 2) });
    hand.give(Input::Queued { conn, bytes: 1000 });
    // A timer that does nothing would be due for ever: step by step.
    for _ in 0..25 {
        hand.now += s(1);
        hand.give(Input::Timer);
        hand.say(conn, &Message::Keepalive);
    }
    hand.state() != State::Established
}

fn a_full_socket_is_given_no_routes() -> bool {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Queued { conn, bytes: HIGH_WATER + 1 });
    hand.give(Input::Routes(&many(10)));
    updates(&hand.sent(conn)).is_empty()
}

fn a_stop_is_a_hard_reset_where_a_cease_would_keep_the_routes() -> bool {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Stop(Stop::Admin { text: String::new() }));
    notification(&hand.sent(conn)).unwrap().is_hard_reset()
}

fn a_restart_says_nothing() -> bool {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(Input::Stop(Stop::Restart));
    hand.sent(conn).is_empty()
}

fn a_stop_withdraws() -> bool {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(Input::Stop(Stop::Admin { text: String::new() }));
    withdrawn(&hand.sent(conn)).len() == 3
}

fn first_open(serving: bool) -> holdfast_bgp::wire::GracefulRestart {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Serving(serving));
    hand.give(Input::Start);
    let conn = hand.connect();
    opens(&hand.sent(conn))[0].graceful_restart().unwrap().clone()
}

fn r_is_not_claimed_without_a_restart() -> bool {
    !first_open(true).restarting
}

fn f_is_not_claimed_without_a_data_plane() -> bool {
    !first_open(false).families.iter().any(|family| family.forwarding)
}

fn end_of_rib_comes_after_the_routes() -> bool {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Routes(&many(3)));
    hand.settle();
    updates(&hand.sent(conn))[0].end_of_rib().is_none()
}

fn the_same_again_makes_no_update() -> bool {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(Input::Routes(&with_route(&["198.18.0.0/32", "198.18.0.1/32", "198.18.0.2/32"], Route::default())));
    updates(&hand.sent(conn)).is_empty()
}

fn what_was_withdrawn_meanwhile_stays_so() -> bool {
    let mut net = Net::new([config(1, 2), config(2, 1)], 1);
    net.want(0, &many(3));
    net.start_both();
    net.run(s(1));
    net.give(0, Input::LinkDown);
    net.run(ms(100));
    net.want(0, &many(1));
    net.give(0, Input::LinkUp);
    net.run(s(10));
    let told = net.nodes[0].log.iter().any(|(_, output)| matches!(output, Output::Event(Event::Announced(_))));
    told && net.nodes[1].learnt.len() == 1
}

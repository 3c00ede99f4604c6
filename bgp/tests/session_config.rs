//! One peer whose configuration changes while it runs.

mod common;

use common::hand::{Hand, messages, notification};
use common::{config, desired, s};
use holdfast_bgp::wire::{Message, Notification};
use holdfast_bgp::{ConnId, Input, Output, PeerConfig, State};

fn change(hand: &mut Hand, config: PeerConfig) {
    hand.give(Input::Config(Box::new(config)));
}

/// What the session can't take up.
fn other() -> PeerConfig {
    PeerConfig { hold_time: s(30), ..config(1, 2) }
}

fn passive() -> PeerConfig {
    PeerConfig { passive: true, ..config(1, 2) }
}

fn connects(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Connect { .. })).count()
}

fn aborted(outputs: &[Output]) -> Vec<ConnId> {
    let aborted = |output: &Output| match output {
        Output::Abort { conn } => Some(*conn),
        _ => None,
    };
    outputs.iter().filter_map(aborted).collect()
}

#[test]
fn a_changed_configuration_ends_the_session_only_where_it_must() {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &desired(&["198.51.100.1/32"]));
    change(&mut hand, PeerConfig { connect_retry: s(5), send_hold: Some(s(60)), ..passive() });
    assert!(hand.take().is_empty());
    assert_eq!(hand.state(), State::Established);
    change(&mut hand, other());
    let outputs = hand.take();
    assert_eq!(notification(&messages(&outputs, conn)), Some(Notification::new(6, 6, vec![])));
    assert_eq!((connects(&outputs), aborted(&outputs)), (1, vec![]), "one attempt at once, and it stands");
    assert_eq!(hand.state(), State::Connect);
}

#[test]
fn an_attempt_under_the_former_configuration_is_given_up_for_one_under_the_new() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let former = hand.dialled().unwrap();
    hand.take();
    change(&mut hand, other());
    let outputs = hand.take();
    assert_eq!((connects(&outputs), aborted(&outputs)), (1, vec![former]));
    // Beside a connection that was accepted meanwhile.
    let former = hand.dialled().unwrap();
    let accepted = hand.accept();
    hand.take();
    change(&mut hand, config(1, 2));
    let outputs = hand.take();
    assert!(outputs.contains(&Output::Close { conn: accepted }));
    assert_eq!((connects(&outputs), aborted(&outputs)), (1, vec![former]));
}

#[test]
fn of_two_connections_none_survives_a_changed_configuration_and_one_attempt_follows() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let conns = [hand.accept(), hand.connect()];
    hand.take();
    change(&mut hand, other());
    let outputs = hand.take();
    assert!(conns.into_iter().all(|conn| outputs.contains(&Output::Close { conn })));
    assert_eq!((connects(&outputs), aborted(&outputs)), (1, vec![]));
}

#[test]
fn a_peer_that_is_made_passive_dials_no_more_whatever_it_was_about_to_do() {
    // Waiting for the next attempt, beside a connection that says nothing.
    let mut waiting = Hand::new(config(1, 2));
    waiting.give(Input::Start);
    waiting.refuse();
    // Or an attempt that nobody answers.
    let mut dialling = Hand::new(config(1, 2));
    dialling.give(Input::Start);
    for mut hand in [waiting, dialling] {
        let silent = hand.accept();
        change(&mut hand, passive());
        hand.run(s(600));
        assert_eq!(hand.attempts().len(), 1);
        assert!(hand.log.iter().any(|(_, output)| *output == Output::Close { conn: silent }));
        assert_eq!(hand.state(), State::Active);
        let conn = hand.accept();
        let open = hand.their_open();
        hand.agree(conn, &open);
        assert_eq!(hand.state(), State::Established);
        hand.say(conn, &Message::Keepalive);
    }
}

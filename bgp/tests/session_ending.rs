//! How sessions end, and what restarts: the intent matrix. And which of two connections is kept.

mod common;

use std::time::Duration;

use common::hand::{Hand, announced, messages, notification, open, opens, withdrawn, without};
use common::net::Net;
use common::{config, desired, many, ms, prefix, s};
use holdfast_bgp::rib::Route;
use holdfast_bgp::session::{BfdState, Reason};
use holdfast_bgp::types::Asn;
use holdfast_bgp::wire::{Message, Notification};
use holdfast_bgp::{ConnId, Event, Input, Output, PeerConfig, State, Stop};

fn admin(text: &str) -> Input<'static> {
    Input::Stop(Stop::Admin { text: String::from(text) })
}

/// Sends in order: withdrawals, a NOTIFICATION, and then the end.
fn farewell(outputs: &[Output], conn: ConnId) -> (usize, Notification) {
    let close = outputs.iter().position(|output| *output == Output::Close { conn }).expect("FIN");
    let (before, after) = outputs.split_at(close);
    assert!(!after.iter().any(|output| matches!(output, Output::Send { .. })), "nothing after FIN");
    let sent = messages(before, conn);
    let (last, rest) = sent.split_last().expect("a farewell");
    let Message::Notification(notification) = last else { panic!("{last:?} before FIN") };
    assert!(rest.iter().all(|message| matches!(message, Message::Update(_))), "{rest:?}");
    (withdrawn(rest).len(), notification.clone())
}

// ---- Stop (complaints 18 and 21).

#[test]
fn complaint_18_a_stop_withdraws_then_says_why_then_closes_in_this_order_every_time() {
    for count in [0, 1, 5000] {
        for graceful in [true, false] {
            let restart = graceful.then_some(s(15));
            let config = PeerConfig { graceful_restart: restart, ..config(1, 2) };
            let (mut hand, conn) = Hand::with_routes(config, &many(count));
            hand.give(admin("kernel update"));
            let (routes, notification) = farewell(&hand.take(), conn);
            assert_eq!(routes, count as usize);
            // With N in force a mere Cease would let the neighbour keep what it had.
            assert_eq!(notification.is_hard_reset(), graceful);
            let told = notification.inner().unwrap_or(notification);
            assert_eq!((told.code, told.subcode), (6, 2));
            assert_eq!(told.text().as_deref(), Some("kernel update"));
            assert_eq!(hand.state(), State::Idle);
        }
    }
}

#[test]
fn complaint_18_a_stop_withdraws_even_where_the_socket_is_full() {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(100));
    hand.give(Input::Queued { conn, bytes: 1 << 20 });
    hand.give(admin(""));
    assert_eq!(farewell(&hand.take(), conn).0, 100);
}

#[test]
fn a_text_is_cut_to_what_rfc_9003_allows() {
    let (mut hand, conn) = Hand::established(PeerConfig { notification_gr: false, ..config(1, 2) });
    hand.give(admin(&"ä".repeat(200)));
    let (_, notification) = farewell(&hand.take(), conn);
    assert_eq!(notification.text().unwrap(), "ä".repeat(127));
}

#[test]
fn complaint_21_a_restart_sends_nothing_and_leaves_the_connection() {
    let (mut hand, _) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(Input::Stop(Stop::Restart));
    let outputs = hand.take();
    assert!(matches!(outputs[..], [Output::Event(Event::State(_)), Output::Event(Event::Stopped)]), "{outputs:?}");
    assert_eq!(hand.state(), State::Idle);
}

#[test]
fn a_neighbour_that_is_no_longer_configured_is_told_so() {
    let (mut hand, conn) = Hand::with_routes(PeerConfig { notification_gr: false, ..config(1, 2) }, &many(3));
    hand.give(Input::Stop(Stop::Deconfigured));
    let (routes, notification) = farewell(&hand.take(), conn);
    assert_eq!((routes, notification.code, notification.subcode), (3, 6, 3));
}

#[test]
fn a_reset_withdraws_nothing_and_dials_again_at_once() {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(Input::Stop(Stop::Reset { text: String::from("by hand") }));
    let outputs = hand.take();
    let (routes, notification) = farewell(&outputs[..outputs.len() - 2], conn);
    assert_eq!((routes, notification.code, notification.subcode), (0, 6, 4));
    assert!(outputs.iter().any(|output| matches!(output, Output::Connect { .. })));
    // And the routes are told again by themselves: they are still wanted.
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    assert_eq!(announced(&hand.sent(conn)).len(), 3);
}

#[test]
fn a_stop_during_the_handshake_or_an_attempt_leaves_nothing() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let conn = hand.dialled().unwrap();
    hand.take();
    hand.give(admin(""));
    assert!(hand.take().contains(&Output::Abort { conn }));
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    hand.take();
    hand.give(admin("later"));
    let (_, notification) = farewell(&hand.take(), conn);
    assert_eq!((notification.code, notification.subcode), (6, 2));
    hand.run(s(1000));
    assert_eq!(hand.attempts().len(), 1);
}

// ---- Graceful restart (RFC 4724), we are the one that restarts.

#[test]
fn r_is_set_until_a_session_is_up_and_not_after() {
    let mut hand = Hand::restarted(config(1, 2), true);
    hand.give(Input::Serving(true));
    hand.give(Input::Start);
    let conn = hand.connect();
    let graceful = opens(&hand.sent(conn))[0].graceful_restart().unwrap().clone();
    assert!(graceful.restarting && graceful.families.iter().all(|family| family.forwarding));
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.give(Input::Closed { conn, why: None });
    hand.run(s(2));
    let conn = hand.connect();
    let graceful = opens(&hand.sent(conn)).pop().unwrap().graceful_restart().unwrap().clone();
    assert!(!graceful.restarting, "it's no restart of ours");
    assert!(graceful.families.iter().all(|family| family.forwarding), "but the data plane served on");
}

#[test]
fn r_is_not_claimed_after_the_restart_time_and_f_never_without_a_data_plane() {
    let mut hand = Hand::restarted(config(1, 2), true);
    hand.now += s(15);
    hand.give(Input::Start);
    let conn = hand.connect();
    let graceful = opens(&hand.sent(conn))[0].graceful_restart().unwrap().clone();
    assert!(!graceful.restarting && !graceful.families.iter().any(|family| family.forwarding));
}

// Complaint 2.
#[test]
fn complaint_02_end_of_rib_comes_after_the_routes_and_not_before_they_are_known() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.run(s(1));
    assert!(!hand.sent(conn).iter().any(|message| matches!(message, Message::Update(_))));
    hand.give(Input::Routes(&desired(&["198.51.100.1/32", "198.51.100.2/32"])));
    hand.settle();
    let sent = hand.sent(conn);
    let [Message::Update(routes), Message::Update(ipv4), Message::Update(ipv6)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(routes.all_announced().count(), 2);
    assert!(ipv4.end_of_rib().is_some() && ipv6.end_of_rib().is_some());
}

// ---- A route never comes back by itself (complaints 1, 3, 4, 23).

#[test]
fn complaint_03_what_was_withdrawn_while_the_session_was_down_is_never_seen_again() {
    let (mut hand, mut conn) = Hand::with_routes(config(1, 2), &desired(&["198.51.100.1/32", "198.51.100.2/32"]));
    for _ in 0..50 {
        hand.give(Input::Closed { conn, why: None });
        hand.give(Input::Routes(&desired(&["198.51.100.2/32"])));
        hand.run(s(2));
        conn = hand.connect();
        let open = hand.their_open();
        hand.agree(conn, &open);
        hand.settle();
        assert_eq!(announced(&hand.sent(conn)), [prefix("198.51.100.2/32")]);
    }
}

#[test]
fn complaint_03_after_a_stop_nothing_is_announced_before_it_is_wanted_anew() {
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &many(3));
    hand.give(admin(""));
    hand.give(Input::Closed { conn, why: None });
    hand.give(Input::Start);
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.run(s(5));
    assert!(common::hand::updates(&hand.sent(conn)).is_empty());
}

#[test]
fn complaint_01_a_route_that_flaps_with_the_session_ends_as_it_is_wanted() {
    for seed in 0..50 {
        let mut net = Net::new([config(1, 2), config(2, 1)], seed);
        net.want(0, &desired(&["198.51.100.1/32"]));
        net.start_both();
        let mut wanted = false;
        for _ in 0..20 {
            net.run(ms(net.rng.clone().below(700)));
            let routes = if wanted { desired(&["198.51.100.1/32"]) } else { desired(&[]) };
            net.want(0, &routes);
            wanted = !wanted;
            match net.rng.below(3) {
                0 => net.give(1, Input::LinkDown),
                1 => net.give(1, Input::LinkUp),
                _ => {}
            }
        }
        net.want(0, &desired(&[]));
        net.give(1, Input::LinkUp);
        net.run(s(20));
        assert!(net.one_session() && net.nodes[1].learnt.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_drain_that_is_taken_back_in_time_says_nothing() {
    let routes = many(1);
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &routes);
    // The socket is full: the withdrawal waits, and is overtaken.
    hand.give(Input::Queued { conn, bytes: 1 << 20 });
    hand.give(Input::Routes(&many(0)));
    hand.give(Input::Routes(&many(1)));
    hand.give(Input::Queued { conn, bytes: 0 });
    hand.settle();
    assert!(hand.sent(conn).is_empty());
}

// ---- Collisions (section 6.8, RFC 6286).

/// A dialled and an accepted connection, both with our OPEN out.
fn both(us: u8, them: u8) -> (Hand, ConnId, ConnId) {
    let mut hand = Hand::new(config(us, them));
    hand.give(Input::Start);
    let accepted = hand.accept();
    let dialled = hand.connect();
    hand.take();
    (hand, dialled, accepted)
}

#[test]
fn complaint_31_the_connection_of_the_higher_identifier_is_kept() {
    for (us, them) in [(1, 2), (2, 1)] {
        for first in [true, false] {
            let (mut hand, dialled, accepted) = both(us, them);
            let open = open(them, Asn(65_000 + u32::from(them)));
            let order = if first { [dialled, accepted] } else { [accepted, dialled] };
            for conn in order {
                hand.say(conn, &Message::Open(open.clone()));
            }
            for conn in order {
                hand.say(conn, &Message::Keepalive);
            }
            let (winner, loser) = if us > them { (dialled, accepted) } else { (accepted, dialled) };
            let outputs = hand.take();
            assert_eq!(hand.info().conn, Some(winner), "{us} {them} {first}");
            let told = notification(&messages(&outputs, loser));
            assert_eq!(told, Some(Notification::new(6, 7, vec![])));
            let keepalives = messages(&outputs, loser).iter().filter(|m| matches!(m, Message::Keepalive)).count();
            assert_eq!(keepalives, 0, "the loser was never agreed to");
        }
    }
}

#[test]
fn complaint_31_a_loser_takes_over_when_the_winner_dies() {
    let (mut hand, dialled, accepted) = both(2, 1);
    let open = open(1, Asn(65_001));
    hand.say(accepted, &Message::Open(open.clone()));
    hand.say(dialled, &Message::Open(open));
    hand.say(accepted, &Message::Keepalive);
    assert_eq!(hand.state(), State::OpenConfirm);
    hand.give(Input::Closed { conn: dialled, why: Some(String::from("reset")) });
    assert_eq!((hand.state(), hand.info().conn), (State::Established, Some(accepted)));
}

#[test]
fn complaint_31_a_better_connection_that_never_speaks_is_not_waited_for() {
    let (mut hand, _, accepted) = both(2, 1);
    let open = open(1, Asn(65_001));
    hand.agree(accepted, &open);
    assert_ne!(hand.state(), State::Established);
    hand.run(s(1));
    assert_eq!((hand.state(), hand.info().conn), (State::Established, Some(accepted)));
}

#[test]
fn a_session_is_not_given_up_for_a_new_connection_while_it_lives() {
    let config = PeerConfig { graceful_restart: None, ..config(1, 2) };
    let (mut hand, session) = Hand::established(config);
    hand.run_alive(session, s(60));
    hand.take();
    let new = hand.accept();
    let open = hand.their_open();
    hand.agree(new, &open);
    // It is asked whether it lives.
    assert!(matches!(hand.sent(session)[..], [Message::Keepalive]));
    hand.say(session, &Message::Keepalive);
    assert_eq!(notification(&hand.sent(new)), Some(Notification::new(6, 7, vec![])));
    assert_eq!(hand.info().conn, Some(session));
}

#[test]
fn a_new_connection_takes_over_from_a_session_whose_other_end_is_gone() {
    let config = PeerConfig { graceful_restart: None, ..config(1, 2) };
    let (mut hand, session) = Hand::established(config);
    hand.run_alive(session, s(60));
    let new = hand.accept();
    let open = hand.their_open();
    hand.agree(new, &open);
    hand.give(Input::Closed { conn: session, why: Some(String::from("reset")) });
    assert_eq!(hand.info().conn, Some(new));
}

#[test]
fn a_neighbour_that_restarts_gracefully_takes_its_session_along() {
    // RFC 4724 section 4.2: the old one ends without a NOTIFICATION, once the new one proves to be the neighbour's.
    let (mut hand, session) = Hand::with_routes(config(1, 2), &many(3));
    hand.run_alive(session, s(60));
    hand.take();
    let new = hand.accept();
    assert_eq!(hand.info().conn, Some(session));
    let open = hand.their_open();
    hand.agree(new, &open);
    let outputs = hand.take();
    assert_eq!(notification(&messages(&outputs, session)), None);
    assert!(outputs.contains(&Output::Close { conn: session }));
    assert_eq!(hand.info().conn, Some(new));
    assert_eq!(announced(&messages(&outputs, new)).len(), 3, "and it is told all");
}

#[test]
fn a_crossing_connection_right_after_a_session_began_is_no_restart() {
    let (mut hand, session) = Hand::established(config(2, 1).clone().with_their_as());
    hand.run(ms(100));
    let new = hand.accept();
    let open = hand.their_open();
    hand.agree(new, &open);
    hand.say(session, &Message::Keepalive);
    assert_eq!(hand.info().conn, Some(session));
}

trait WithTheirAs {
    fn with_their_as(self) -> Self;
}

impl WithTheirAs for PeerConfig {
    /// The neighbour that `Hand` plays is of AS 65002.
    fn with_their_as(mut self) -> Self {
        self.local_as = Asn(65_001);
        self.remote_as = holdfast_bgp::session::RemoteAs::Exactly(Asn(65_002));
        self.router_id = common::router_id(9);
        self
    }
}

#[test]
fn a_neighbour_that_dials_again_has_given_up_the_connection_before() {
    let mut hand = Hand::new(PeerConfig { passive: true, ..config(1, 2) });
    hand.give(Input::Start);
    let first = hand.accept();
    let second = hand.accept();
    assert!(hand.take().contains(&Output::Abort { conn: first }));
    let open = hand.their_open();
    hand.agree(second, &open);
    assert_eq!(hand.info().conn, Some(second));
}

// ---- Two speakers.

// Complaint 11.
#[test]
fn complaint_11_a_neighbour_that_was_killed_is_established_less_than_three_seconds_after_it_listens_again() {
    for seed in 0..100 {
        // We alone dial.
        let mut net = Net::new([config(1, 2), PeerConfig { passive: true, ..config(2, 1) }], seed);
        net.start_both();
        net.run(s(5));
        for _ in 0..5 {
            let silent = net.rng.chance(50);
            net.crash(1, silent);
            // Where a host died silently it is the hold time that ends what was.
            let away = ms(net.rng.below(20_000) + if silent { 9_500 } else { 0 });
            net.run(away);
            net.reboot(1, false);
            let end = net.now + s(3);
            assert!(net.run_until(end, Net::one_session), "seed {seed}: {:?}", net.states());
            let lives = ms(net.rng.below(5_000));
            net.run(lives);
        }
    }
}

// Complaint 4.
#[test]
fn complaint_04_a_reload_brings_back_nothing_that_was_withdrawn() {
    let (mut hand, _) = Hand::with_routes(config(1, 2), &desired(&["198.51.100.1/32", "198.51.100.2/32"]));
    hand.give(Input::Routes(&desired(&["198.51.100.2/32"])));
    // One that the session takes up, and one that it can't.
    hand.take();
    hand.give(Input::Config(Box::new(PeerConfig { connect_retry: s(5), ..config(1, 2) })));
    assert!(hand.take().is_empty());
    hand.give(Input::Config(Box::new(PeerConfig { hold_time: s(30), ..config(1, 2) })));
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.settle();
    assert_eq!(announced(&hand.sent(conn)), [prefix("198.51.100.2/32")]);
}

// Complaint 9.
#[test]
fn complaint_09_five_thousand_routes_that_come_and_go_starve_no_keepalive_at_a_hold_time_of_three_seconds() {
    let hold_3 = |us, them| PeerConfig { hold_time: s(3), ..config(us, them) };
    let mut net = Net::new([hold_3(1, 2), hold_3(2, 1)], 1);
    net.start_both();
    net.run(s(2));
    for count in 0..60 {
        net.want(0, &many(5000 * (count % 2)));
        net.run(s(1));
        assert!(net.tables_equal());
    }
    assert_eq!(net.ups(), [1, 1]);
}

// Complaint 13.
#[test]
fn complaint_13_a_route_is_back_less_than_five_seconds_after_its_link() {
    for seed in 0..50 {
        let mut net = Net::new([config(1, 2), config(2, 1)], seed);
        net.want(0, &many(3));
        net.start_both();
        net.run(s(40));
        net.cut = true;
        net.give(0, Input::LinkDown);
        net.run(s(3 * (seed + 1)));
        net.cut = false;
        net.give(0, Input::LinkUp);
        let end = net.now + s(5);
        assert!(net.run_until(end, |net| net.one_session() && net.tables_equal()), "seed {seed}");
    }
}

// Complaint 23.
#[test]
fn complaint_23_a_route_that_a_killed_worker_had_announced_is_not_revived_by_the_next() {
    let mut hand = Hand::restarted(config(1, 2), true);
    hand.give(Input::Serving(true));
    hand.give(Input::Start);
    // Its check failed meanwhile.
    hand.give(Input::Routes(&desired(&["198.51.100.2/32"])));
    for link in [Input::LinkDown, Input::LinkUp, Input::LinkDown, Input::LinkUp] {
        hand.give(link);
    }
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.settle();
    let sent = hand.sent(conn);
    assert_eq!(announced(&sent), [prefix("198.51.100.2/32")]);
    let ends = common::hand::updates(&sent).iter().filter(|update| update.end_of_rib().is_some()).count();
    assert_eq!(ends, 2, "by which the neighbour lets go of what it kept");
}

// Complaint 15.
#[test]
fn complaint_15_twenty_vips_come_and_go_and_the_session_never_notices() {
    let mut net = Net::new([config(1, 2), config(2, 1)], 1);
    net.start_both();
    net.run(s(5));
    let since = net.nodes[0].peer.info().established_at;
    for count in (0..=20).chain((0..20).rev()) {
        net.want(0, &many(count));
        net.run(s(1));
        assert!(net.tables_equal());
    }
    assert_eq!(net.nodes[0].peer.info().established_at, since);
}

// Complaint 8.
#[test]
fn complaint_08_a_hundred_checks_without_a_change_make_no_update() {
    let mut net = Net::new([config(1, 2), config(2, 1)], 1);
    net.start_both();
    net.want(0, &many(10));
    net.run(s(5));
    let before = net.nodes[0].peer.info().counters.updates_sent;
    for _ in 0..100 {
        // Made anew each time.
        net.want(0, &many(10));
        net.run(ms(100));
    }
    assert_eq!(net.nodes[0].peer.info().counters.updates_sent, before);
}

#[test]
fn one_change_is_one_update() {
    let mut net = Net::new([config(1, 2), config(2, 1)], 1);
    net.start_both();
    net.want(0, &many(10));
    net.run(s(5));
    let mut before = net.nodes[0].peer.info().counters.updates_sent;
    let changes = [many(11), many(10), many(3), common::with_route(&["198.51.100.1/32"], Route::default())];
    for (change, updates) in changes.iter().zip([1, 1, 1, 2]) {
        net.want(0, change);
        net.run(s(1));
        let now = net.nodes[0].peer.info().counters.updates_sent;
        assert_eq!(now - before, updates);
        before = now;
    }
}

#[test]
fn the_reason_of_the_end_is_there_to_be_read() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    let shutdown = Notification::cease_with_text(holdfast_bgp::wire::Cease::AdministrativeShutdown, "maintenance");
    hand.say(conn, &Message::Notification(shutdown));
    let (_, reason) = hand.info().last_error.unwrap();
    assert!(reason.to_string().contains("maintenance"), "{reason}");
    assert!(matches!(reason, Reason::NotificationReceived { code: 6, subcode: 2, .. }));
    assert!(hand.take().contains(&Output::Close { conn }), "no NOTIFICATION answers one");
}

#[test]
fn bfd_ends_only_what_it_watched() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    for bfd in [BfdState::Down, BfdState::Init, BfdState::Down, BfdState::AdminDown, BfdState::Down] {
        hand.give(Input::Bfd(bfd));
    }
    let conn = hand.connect();
    let open = without(hand.their_open(), 64);
    hand.agree(conn, &open);
    assert_eq!(hand.state(), State::Established);
    assert_eq!(hand.info().negotiated.unwrap().hold_time, Duration::from_secs(9));
}

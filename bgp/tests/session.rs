//! One peer, clause by clause: attempts, the handshake, timers, errors.

mod common;

use std::time::Duration;

use common::hand::{Hand, messages, messages_as, notification, open, opens, updates, wire, without};
use common::{config, desired, ms, router_id, s, with_route};
use holdfast_bgp::rib::{Route, Unsent};
use holdfast_bgp::session::{BfdState, HEALTHY, HIGH_WATER, OPEN_HOLD, Reason, RemoteAs};
use holdfast_bgp::types::{Asn, Families, Family};
use holdfast_bgp::wire::{
    Capability, Codec, Frame, Message, Notification, RefreshKind, RouteRefresh, Segment, SegmentKind,
};
use holdfast_bgp::{Event, Input, Output, State, Stop};

// ---- The handshake (RFC 4271 section 8.2.2).

#[test]
fn a_dialled_session_goes_through_all_states_in_order() {
    let mut hand = Hand::new(config(1, 2));
    assert_eq!(hand.state(), State::Idle);
    hand.give(Input::Start);
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    let outputs = hand.take();
    use State::{Connect, Established, OpenConfirm, OpenSent};
    assert_eq!(common::states(&outputs), [Connect, OpenSent, OpenConfirm, Established]);
    let sent = messages(&outputs, conn);
    assert!(matches!(sent[..], [Message::Open(_), Message::Keepalive]), "{sent:?}");
    let agreed = hand.info().negotiated.unwrap();
    assert_eq!((agreed.hold_time, agreed.keepalive, agreed.asn), (s(9), s(3), Asn(65_002)));
}

#[test]
fn complaint_32_a_passive_peer_never_dials_and_takes_what_comes() {
    let mut hand = Hand::new(holdfast_bgp::PeerConfig { passive: true, ..config(1, 2) });
    hand.give(Input::Start);
    assert_eq!(hand.state(), State::Active);
    hand.run(s(600));
    assert_eq!(hand.dialled(), None);
    let conn = hand.accept();
    let open = hand.their_open();
    hand.agree(conn, &open);
    assert_eq!(hand.state(), State::Established);
}

#[test]
fn a_stopped_peer_refuses_connections() {
    let mut hand = Hand::new(config(1, 2));
    let conn = hand.accept();
    assert_eq!(hand.take(), [Output::Abort { conn }]);
    assert_eq!(hand.state(), State::Idle);
}

#[test]
fn an_open_is_waited_for_four_minutes_and_keepalives_come_at_a_third_of_the_hold_time() {
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    hand.take();
    hand.run(OPEN_HOLD - ms(1));
    assert_eq!(hand.state(), State::OpenSent);
    hand.run(ms(1));
    let outputs = hand.take();
    assert_eq!(notification(&messages(&outputs, conn)), Some(Notification::hold_timer_expired()));
    assert!(outputs.contains(&Output::Close { conn }));

    let (mut hand, conn) = Hand::established(config(1, 2));
    let mut last = hand.now;
    for _ in 0..50 {
        let next = hand.peer.poll_timeout().unwrap();
        hand.now = next;
        hand.settle();
        assert!(matches!(hand.sent(conn)[..], [Message::Keepalive]));
        assert!((ms(2250)..=s(3)).contains(&(next - last)), "jittered by a quarter at most: {:?}", next - last);
        last = next;
        hand.say(conn, &Message::Keepalive);
    }
}

#[test]
fn a_hold_time_of_zero_arms_no_timer_at_all() {
    let (mut hand, conn) = Hand::established(holdfast_bgp::PeerConfig { hold_time: Duration::ZERO, ..config(1, 2) });
    hand.give(Input::Routes(&desired(&[])));
    assert_eq!(hand.peer.poll_timeout(), None);
    hand.run(s(100_000));
    assert_eq!(hand.state(), State::Established);
    let _ = hand.take();
    assert!(hand.sent(conn).is_empty());
}

#[test]
fn the_smaller_hold_time_counts() {
    for (ours, theirs, both) in [(9, 90, 9), (90, 3, 3), (90, 0, 0), (0, 90, 0)] {
        let (mut hand, conn) = Hand::open_sent(holdfast_bgp::PeerConfig { hold_time: s(ours), ..config(1, 2) });
        let mut open = hand.their_open();
        open.hold_time_s = theirs;
        hand.agree(conn, &open);
        assert_eq!(hand.info().negotiated.unwrap().hold_time, s(both));
    }
}

// Complaints 9 and 10.
#[test]
fn complaint_10_only_whole_messages_restart_the_hold_timer() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    // A neighbour that dribbles one byte a second of a message that never ends.
    let update = wire(&Message::Notification(Notification::new(6, 4, vec![0; 100])));
    for byte in &update[..8] {
        hand.run(s(1));
        hand.bytes(conn, &[*byte]);
    }
    assert_eq!(hand.state(), State::Established);
    hand.run(s(1));
    assert_ne!(hand.state(), State::Established);
    let sent = hand.sent(conn);
    assert_eq!(notification(&sent), Some(Notification::hold_timer_expired()));
}

#[test]
fn a_hold_timer_noticed_late_lets_what_waits_be_heard_first() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    // We stood still for 20 s.
    hand.now += s(20);
    hand.give(Input::Timer);
    assert_eq!(hand.state(), State::Established);
    hand.now += ms(50);
    hand.say(conn, &Message::Keepalive);
    hand.run(s(8));
    assert_eq!(hand.state(), State::Established);
    // But not for ever.
    hand.now += s(20);
    hand.give(Input::Timer);
    hand.now += ms(100);
    hand.give(Input::Timer);
    assert_ne!(hand.state(), State::Established);
}

// ---- What is offered, and what is agreed on.

#[test]
fn an_open_holds_what_is_configured() {
    let (mut hand, conn) = Hand::open_sent(holdfast_bgp::PeerConfig { extended_next_hop: true, ..config(1, 2) });
    let open = opens(&hand.sent(conn)).remove(0);
    assert_eq!((open.asn, open.hold_time_s, open.router_id), (Asn(65_001), 9, router_id(1)));
    assert_eq!(open.families(), Families::BOTH);
    assert!(open.route_refresh() && open.enhanced_route_refresh() && open.extended_message());
    assert!(open.four_octet_as() && open.ipv4_over_ipv6());
    let graceful = open.graceful_restart().unwrap();
    assert!(!graceful.restarting && graceful.notification && graceful.restart_time_s == 15);
    assert!(graceful.families.iter().all(|family| !family.forwarding), "F is false until told");
}

// Complaint 27.
#[test]
fn complaint_27_an_as_that_fits_two_octets_is_never_as_trans() {
    let mut config = config(1, 2);
    config.four_octet_as = false;
    let (mut hand, conn) = Hand::open_sent(config);
    let Output::Send { bytes, .. } = hand.take().into_iter().find(|o| matches!(o, Output::Send { .. })).unwrap() else {
        unreachable!()
    };
    assert_eq!(bytes[20..22], 65_001_u16.to_be_bytes());
    let open = without(hand.their_open(), 65);
    hand.agree(conn, &open);
    assert_eq!(hand.state(), State::Established);
}

#[test]
fn complaint_27_a_neighbour_of_two_octets_gets_as_trans_and_as4_path() {
    let mut config = config(1, 2);
    config.local_as = Asn(4_200_000_001);
    let (mut hand, conn) = Hand::open_sent(config);
    let first = hand.sent(conn);
    assert_eq!(opens(&first)[0].asn, Asn(4_200_000_001));
    let open = without(hand.their_open(), 65);
    hand.agree(conn, &open);
    hand.give(Input::Routes(&with_route(&["198.51.100.1/32"], Route { prepend: 1, ..Route::default() })));
    let codec = Codec { four_octet_as: false, ..Codec::LENIENT };
    let sent = messages_as(&hand.take(), conn, &codec);
    // Whoever merges AS4_PATH sees the truth.
    let path = updates(&sent)[0].as_path().unwrap();
    let truth = Segment { kind: SegmentKind::Sequence, asns: vec![Asn(4_200_000_001); 2] };
    assert_eq!(path, [truth]);
}

#[test]
fn a_neighbour_of_the_wrong_as_is_told_so() {
    let external = RemoteAs::External;
    let internal = RemoteAs::Internal;
    for (expected, theirs) in [(RemoteAs::Exactly(Asn(65_002)), 65_003), (internal, 65_002), (external, 65_001)] {
        let (mut hand, conn) = Hand::open_sent(holdfast_bgp::PeerConfig { remote_as: expected, ..config(1, 2) });
        hand.say(conn, &Message::Open(open(2, Asn(theirs))));
        let told = notification(&hand.sent(conn)).unwrap();
        assert_eq!((told.code, told.subcode), (2, 2));
        assert!(matches!(hand.info().last_error, Some((_, Reason::NotificationSent { .. }))));
    }
}

#[test]
fn our_own_identifier_is_refused_within_the_as_and_taken_beyond_it() {
    // RFC 6286.
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    let open_1 = open(1, Asn(65_002));
    hand.agree(conn, &open_1);
    assert_eq!(hand.state(), State::Established);
    let (mut hand, conn) = Hand::open_sent(holdfast_bgp::PeerConfig { remote_as: RemoteAs::Internal, ..config(1, 1) });
    hand.say(conn, &Message::Open(open(1, Asn(65_001))));
    assert_eq!(notification(&hand.sent(conn)).map(|told| (told.code, told.subcode)), Some((2, 3)));
}

#[test]
fn without_a_family_in_common_the_neighbour_is_told_which_we_miss() {
    let (mut hand, conn) =
        Hand::open_sent(holdfast_bgp::PeerConfig { families: Families::NONE.with(Family::Ipv6), ..config(1, 2) });
    let mut open = hand.their_open();
    open.capabilities.retain(|capability| *capability != Capability::family(Family::Ipv6));
    hand.say(conn, &Message::Open(open));
    let told = notification(&hand.sent(conn)).unwrap();
    assert_eq!((told.code, told.subcode, told.data), (2, 7, vec![1, 4, 0, 2, 0, 1]));
}

#[test]
fn a_neighbour_without_capabilities_gets_plain_ipv4() {
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    let mut open = hand.their_open();
    open.capabilities.clear();
    hand.agree(conn, &open);
    let agreed = hand.info().negotiated.unwrap();
    assert_eq!(agreed.families, Families::NONE.with(Family::Ipv4));
    assert!(!agreed.four_octet_as && !agreed.graceful_restart && !agreed.route_refresh);
    hand.take();
    hand.give(Input::Routes(&desired(&["198.51.100.1/32", "2001:db8::1/128"])));
    assert_eq!(hand.info().announced, (1, 0));
    assert_eq!(hand.info().unsent_example.unwrap().1, Unsent::Family(Family::Ipv6));

    let config =
        holdfast_bgp::PeerConfig { capabilities: false, families: Families::NONE.with(Family::Ipv4), ..config(1, 2) };
    let (mut hand, conn) = Hand::open_sent(config);
    assert!(opens(&hand.sent(conn))[0].capabilities.is_empty());
}

// ---- Errors (section 6, RFC 6608, RFC 7606).

#[test]
fn a_message_that_the_state_does_not_expect_ends_the_connection() {
    let update = Message::Update(holdfast_bgp::wire::Update::default());
    for (message, subcode) in [(Message::Keepalive, 1), (update.clone(), 1)] {
        let (mut hand, conn) = Hand::open_sent(config(1, 2));
        hand.take();
        hand.say(conn, &message);
        assert_eq!(notification(&hand.sent(conn)).map(|told| (told.code, told.subcode)), Some((5, subcode)));
    }
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    let open = Message::Open(hand.their_open());
    hand.say(conn, &open);
    hand.say(conn, &update);
    assert_eq!(notification(&hand.sent(conn)).map(|told| (told.code, told.subcode)), Some((5, 2)));
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.say(conn, &open);
    assert_eq!(notification(&hand.sent(conn)).map(|told| (told.code, told.subcode)), Some((5, 3)));
}

#[test]
fn a_stream_that_is_no_bgp_is_answered_and_closed() {
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    hand.bytes(conn, b"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n");
    assert_eq!(notification(&hand.sent(conn)).map(|told| (told.code, told.subcode)), Some((1, 1)));
    // And what comes after is for nobody.
    hand.bytes(conn, &[0xff; 4096]);
    assert!(hand.sent(conn).is_empty());
}

#[test]
fn a_long_message_is_taken_where_our_open_allowed_it_and_refused_where_it_did_not() {
    let mut long = Vec::new();
    let routes = common::many(1000);
    holdfast_bgp::wire::update::withdraw(&mut long, &Codec::LENIENT, Family::Ipv4, routes.keys().copied());
    assert!(long.len() > 4096 && Frame::split(&long, true).unwrap().unwrap().1.is_empty(), "one message");
    // RFC 8654 section 4: whatever the neighbour said.
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    let open = without(hand.their_open(), 6);
    hand.agree(conn, &open);
    hand.bytes(conn, &long);
    assert_eq!((hand.state(), hand.info().counters.withdrawals_dropped), (State::Established, 1000));

    let ipv4 = Families::NONE.with(Family::Ipv4);
    let (mut hand, conn) =
        Hand::open_sent(holdfast_bgp::PeerConfig { capabilities: false, families: ipv4, ..config(1, 2) });
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.take();
    hand.bytes(conn, &long);
    let length = (long.len() as u16).to_be_bytes().to_vec();
    assert_eq!(notification(&hand.sent(conn)), Some(Notification::new(1, 2, length)));
}

#[test]
fn a_malformed_attribute_is_counted_and_the_session_stays() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    // ORIGIN 9: treated as withdrawn.
    let attributes = [0x40, 1, 1, 9, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 2];
    let mut update = vec![0xff; 16];
    update.extend([0, 0, 2, 0, 0, 0, attributes.len() as u8]);
    update.extend(attributes);
    update.extend([32, 203, 0, 113, 1]);
    let length = (update.len() as u16).to_be_bytes();
    update[16..18].copy_from_slice(&length);
    hand.bytes(conn, &update);
    assert_eq!(hand.state(), State::Established);
    assert_eq!(hand.info().counters.updates_malformed, 1);
}

#[test]
fn what_a_neighbour_announces_is_counted_and_nothing_of_it_is_kept() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    let mut stream = Vec::new();
    let mut update = Vec::new();
    let attributes = holdfast_bgp::types::PathAttributes {
        origin: Default::default(),
        as_path: vec![Asn(65_002)],
        med: None,
        local_pref: None,
        communities: vec![],
        large: vec![],
        extended: vec![],
        next_hop: holdfast_bgp::types::NextHop::V4([192, 0, 2, 254].into()),
    };
    let routes = common::many(10_000);
    holdfast_bgp::wire::update::announce(
        &mut update,
        &Codec::LENIENT,
        &attributes,
        Family::Ipv4,
        routes.keys().copied(),
    )
    .unwrap();
    for _ in 0..10 {
        stream.extend(&update);
    }
    for piece in stream.chunks(60_001) {
        hand.bytes(conn, piece);
    }
    assert_eq!(hand.info().counters.routes_dropped, 100_000);
    assert!(hand.take().is_empty());
}

// ---- When the next attempt comes.

// Complaint 11.
#[test]
fn complaint_11_a_neighbour_that_comes_back_is_dialled_within_two_seconds_however_long_it_was_away() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    for _ in 0..300 {
        hand.refuse();
        hand.run(s(2));
    }
    let attempts = hand.attempts();
    let gaps = attempts.windows(2).map(|two| two[1] - two[0]);
    assert!(gaps.clone().all(|gap| gap <= s(4)), "{:?}", gaps.max());
    // Each two seconds there is one.
    assert!(hand.peer.poll_timeout().unwrap() <= hand.now + s(4));
    assert!(attempts.len() >= 290, "{}", attempts.len());
}

#[test]
fn an_attempt_without_an_answer_is_repeated_after_four_seconds_at_most() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    hand.run(s(100));
    let attempts = hand.attempts();
    assert!(attempts.windows(2).all(|two| (s(3)..=s(4)).contains(&(two[1] - two[0]))), "{attempts:?}");
    // The one before is given up.
    let aborted = hand.log.iter().filter(|(_, output)| matches!(output, Output::Abort { .. })).count();
    assert_eq!(aborted, attempts.len() - 1);
}

#[test]
fn a_misconfigured_neighbour_is_dialled_less_and_less_often_up_to_a_minute() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    let mut gaps = Vec::new();
    for _ in 0..12 {
        let conn = hand.connect();
        hand.say(conn, &Message::Open(open(2, Asn(64_999))));
        assert_eq!(hand.state(), State::Idle, "waits longer than usual");
        let before = hand.now;
        while hand.attempts().len() == gaps.len() + 1 {
            hand.now = hand.peer.poll_timeout().unwrap();
            hand.settle();
        }
        gaps.push(hand.now - before);
    }
    let bounds = [2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60, 60];
    for (gap, bound) in gaps.iter().zip(bounds) {
        assert!((s(bound) * 3 / 4..=s(bound)).contains(gap), "{gaps:?}");
    }
    // Once a session was well, all is forgotten.
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    hand.run_alive(conn, HEALTHY);
    let before = hand.now;
    hand.give(Input::Closed { conn, why: None });
    assert!(hand.info().next_attempt.unwrap() - before <= ms(250));
}

#[test]
fn a_misconfigured_neighbour_that_dials_us_is_taken_once_it_is_mended() {
    let mut hand = Hand::new(config(1, 2));
    hand.give(Input::Start);
    for _ in 0..10 {
        let conn = hand.accept();
        hand.say(conn, &Message::Open(open(2, Asn(64_999))));
    }
    let conn = hand.accept();
    let open = hand.their_open();
    hand.agree(conn, &open);
    assert_eq!(hand.state(), State::Established);
}

// Complaints 13 and 39.
#[test]
fn complaint_39_a_lost_link_is_idle_at_once_and_its_return_an_attempt_at_once() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::LinkDown);
    assert_eq!(hand.state(), State::Idle);
    assert!(hand.take().contains(&Output::Abort { conn }));
    hand.run(s(900));
    assert!(hand.take().is_empty(), "no attempt without a link");
    hand.give(Input::LinkUp);
    assert!(matches!(hand.take()[0], Output::Connect { .. }));
    assert_eq!(hand.state(), State::Connect);
}

// ---- BFD (RFC 5882).

#[test]
fn bfd_that_goes_down_ends_the_session_and_what_is_no_failure_does_not() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Bfd(BfdState::Down));
    hand.give(Input::Bfd(BfdState::Init));
    hand.give(Input::Bfd(BfdState::Up));
    hand.give(Input::Bfd(BfdState::AdminDown));
    hand.give(Input::Bfd(BfdState::Down));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::Bfd(BfdState::Up));
    hand.give(Input::Bfd(BfdState::Down));
    assert_eq!(notification(&hand.sent(conn)), Some(Notification::new(6, 10, vec![])));
}

// Complaint 35.
#[test]
fn complaint_35_an_old_bfd_event_does_not_kill_the_next_session() {
    let (mut hand, _) = Hand::established(config(1, 2));
    hand.give(Input::Bfd(BfdState::Up));
    hand.give(Input::Bfd(BfdState::Down));
    hand.run(s(2));
    let conn = hand.connect();
    let open = hand.their_open();
    hand.agree(conn, &open);
    assert_eq!(hand.state(), State::Established);
    // Told again, as after each new list of sessions.
    hand.give(Input::Bfd(BfdState::Down));
    assert_eq!(hand.state(), State::Established);
}

// ---- A neighbour that doesn't read (RFC 9687).

// Complaint 10.
#[test]
fn complaint_10_a_neighbour_that_takes_nothing_is_given_up_although_its_keepalives_come() {
    let (mut hand, conn) = Hand::established(holdfast_bgp::PeerConfig { send_hold: Some(s(20)), ..config(1, 2) });
    hand.give(Input::Queued { conn, bytes: 4000 });
    hand.run_alive(conn, s(15));
    // It took a little: that counts.
    hand.give(Input::Queued { conn, bytes: 3000 });
    hand.run_alive(conn, s(19));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::Queued { conn, bytes: 3000 + 19 * 4 });
    hand.take();
    hand.run_alive(conn, s(21));
    assert_ne!(hand.state(), State::Established);
    assert!(hand.take().contains(&Output::Abort { conn }));
    assert!(matches!(hand.info().last_error, Some((_, Reason::SendHoldExpired { .. }))));
}

#[test]
fn a_socket_that_is_full_is_given_no_routes_until_it_takes_some() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Queued { conn, bytes: HIGH_WATER + 1 });
    hand.give(Input::Routes(&common::many(100)));
    hand.settle();
    assert!(hand.sent(conn).is_empty());
    hand.give(Input::Queued { conn, bytes: 100 });
    assert_eq!(common::hand::announced(&hand.sent(conn)).len(), 100);
}

// ---- Route refresh (RFC 2918, RFC 7313).

#[test]
fn a_refresh_is_answered_with_the_whole_table_of_the_family_between_its_marks() {
    let routes = desired(&["198.51.100.1/32", "198.51.100.2/32", "2001:db8::1/128"]);
    let (mut hand, conn) = Hand::with_routes(
        holdfast_bgp::PeerConfig { next_hop_ipv6: Some("2001:db8::ff".parse().unwrap()), ..config(1, 2) },
        &routes,
    );
    let request = Message::RouteRefresh(RouteRefresh::new(RefreshKind::Request, Family::Ipv4));
    // A hundred requests at once are answered once, or twice.
    let burst = wire(&request).repeat(100);
    hand.bytes(conn, &burst);
    hand.settle();
    let sent = hand.sent(conn);
    let [Message::RouteRefresh(begin), Message::Update(update), Message::RouteRefresh(end)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((begin.kind, end.kind), (RefreshKind::Begin, RefreshKind::End));
    assert_eq!(update.all_announced().count(), 2);

    // Without RFC 7313: routes alone.
    let (mut hand, conn) = Hand::open_sent(config(1, 2));
    let open = without(hand.their_open(), 70);
    hand.agree(conn, &open);
    hand.give(Input::Routes(&routes));
    hand.take();
    hand.say(conn, &request);
    let sent = hand.sent(conn);
    assert!(matches!(sent[..], [Message::Update(_)]), "{sent:?}");
}

#[test]
fn a_refresh_of_another_length_is_an_error_only_where_rfc_7313_says_so() {
    let longer = |kind| {
        let mut bytes = wire(&Message::RouteRefresh(RouteRefresh::new(kind, Family::Ipv4)));
        bytes.push(0);
        bytes[17] += 1;
        bytes
    };
    for kind in [RefreshKind::Begin, RefreshKind::End] {
        let (mut hand, conn) = Hand::established(config(1, 2));
        hand.bytes(conn, &longer(kind));
        assert_eq!(notification(&hand.sent(conn)), Some(Notification::new(7, 1, longer(kind))));
        // A neighbour that doesn't speak it.
        let (mut hand, conn) = Hand::open_sent(config(1, 2));
        let open = without(hand.their_open(), 70);
        hand.agree(conn, &open);
        hand.take();
        hand.bytes(conn, &longer(kind));
        assert!(hand.take().is_empty());
        assert_eq!(hand.state(), State::Established);
    }
    // A kind that isn't known, and a request with a filter (RFC 5291) behind it.
    let (mut hand, conn) = Hand::with_routes(config(1, 2), &desired(&["198.51.100.1/32"]));
    hand.bytes(conn, &longer(RefreshKind::Other(3)));
    assert!(hand.take().is_empty());
    hand.bytes(conn, &longer(RefreshKind::Request));
    assert_eq!(common::hand::announced(&hand.sent(conn)).len(), 1);
    assert_eq!(hand.state(), State::Established);
}

// ---- A caller that doesn't drain, names that are gone.

#[test]
fn a_caller_that_takes_no_outputs_loses_the_connection_and_nothing_grows() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    for n in 0..100_000_u32 {
        let routes = common::many(n % 2 + 1);
        hand.peer.handle(hand.now, Input::Routes(&routes));
    }
    let outputs = common::drain(&mut hand.peer);
    assert!(outputs.len() < 1100, "{}", outputs.len());
    assert!(outputs.contains(&Output::Abort { conn }));
}

#[test]
fn what_is_said_of_a_connection_that_is_gone_is_ignored() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Closed { conn, why: None });
    hand.take();
    hand.say(conn, &Message::Keepalive);
    hand.give(Input::Queued { conn, bytes: 100 });
    hand.give(Input::Closed { conn, why: None });
    hand.give(Input::ConnectFailed { conn, why: String::new() });
    assert!(hand.take().is_empty());
    let (local, remote) = (hand.local, hand.remote);
    hand.give(Input::Connected { conn, local, remote });
    assert_eq!(hand.take(), [Output::Abort { conn }], "an attempt that was given up");
}

#[test]
fn stop_is_told_when_nothing_is_left() {
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Stop(Stop::Deconfigured));
    let outputs = hand.take();
    assert!(!outputs.contains(&Output::Event(Event::Stopped)));
    hand.give(Input::Closed { conn, why: None });
    assert_eq!(hand.take(), [Output::Event(Event::Stopped)]);
    // A neighbour that doesn't close is aborted.
    let (mut hand, conn) = Hand::established(config(1, 2));
    hand.give(Input::Stop(Stop::Deconfigured));
    hand.take();
    hand.run(s(4));
    assert_eq!(hand.take(), [Output::Abort { conn }, Output::Event(Event::Stopped)]);
}

//! A unit and its legs: families and members that move as one, reloads, looped adverts.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    Lan, active, advert_on, config, cs, drain, give_sources, host, host6, leg, leg6, member, ms, on, packets, prio,
    sent, start, time_zero, us, with_legs,
};
use holdfast_vrrp::router::{Notice, Reason, ReassertReason};
use holdfast_vrrp::wire::Advert;
use holdfast_vrrp::{ConfigError, Input, LegConfig, LegId, Output, Router, RouterConfig, State, Transport, Version};

/// IPv4 and IPv6 of one service.
fn dual() -> RouterConfig {
    with_legs(vec![leg(), leg6()], cs(10))
}

/// Three members of a group.
fn group() -> RouterConfig {
    with_legs(vec![leg(), member(11), member(12)], cs(10))
}

#[test]
fn both_families_move_together() {
    let mut lan = Lan::new().started(254, dual()).started(253, dual());
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0]);
    assert_eq!(lan.sent_on(0, Some(0)), lan.sent_on(0, Some(1)), "an advert on either leg each interval");
    lan.forget();
    lan.freeze(0);
    lan.run_for(ms(1_000));
    assert_eq!(lan.promotions().len(), 1);
    assert_eq!(lan.sent_on(1, Some(0)), lan.sent_on(1, Some(1)));
    assert!(lan.sent_on(1, Some(1)).len() >= 6);
}

#[test]
fn one_silent_leg_never_splits_a_unit() {
    for silent in [0, 1] {
        let mut lan = Lan::new().started(254, dual()).started(253, dual());
        lan.run_for(ms(1_000));
        lan.forget();
        lan.cut_leg(0, 1, silent);
        lan.cut_leg(1, 0, silent);
        lan.run_for(Duration::from_secs(60));
        assert_eq!(lan.transitions(), [], "leg {silent} is cut");
        let backup = lan.routers().nth(1).unwrap();
        let last = |leg| backup.heard_on(LegId(leg)).unwrap().at;
        assert!(last(1 - silent) - last(silent) > backup.active_down(), "and it can be told which leg is silent");
        lan.heal();
        lan.cut(0, 1);
        lan.run_for(ms(400));
        assert_eq!(lan.actives(), [0, 1], "only when all legs are silent it takes over");
    }
}

#[test]
fn a_better_advert_on_any_leg_makes_it_backup_with_all() {
    let now = time_zero();
    for at in 0..3 {
        let mut router = active(group(), now);
        let better = advert_on(&group().legs[usize::from(at)], 101, cs(10));
        router.handle(now, on(at, host(4), &better));
        assert_eq!(router.state(), State::Backup);
        let outputs = drain(&mut router);
        assert_eq!(sent(&outputs), [(0, host(5), 100), (1, host(5), 100), (2, host(5), 100)], "its last word on each");
        assert_eq!(router.heard().map(|heard| heard.leg), Some(LegId(at)));
    }
}

#[test]
fn an_owner_alive_on_one_leg_keeps_it_backup() {
    // Such as a peer with two independent instances of which only one is Active.
    let now = time_zero();
    let mut router = Router::new(group(), now);
    start(&mut router, now, host(5), 100);
    for at in (100..60_000).step_by(100).map(ms) {
        router.handle(now + at, on(2, host(6), &advert_on(&member(12), 200, cs(10))));
        router.handle(now + at, Input::Timer);
    }
    assert_eq!(router.state(), State::Backup);
    assert_eq!(router.heard_on(LegId(0)), None, "and the silent legs can be told");
}

#[test]
fn a_losing_advert_is_answered_on_its_leg_only() {
    let now = time_zero();
    let mut router = active(group(), now);
    router.handle(now, on(1, host(6), &advert_on(&member(11), 99, cs(10))));
    let outputs = drain(&mut router);
    assert_eq!(sent(&outputs), [(1, host(5), 100)]);
    let reassert = Output::Reassert(ReassertReason::LosingAdvert { from: host(6), its: prio(99) });
    assert_eq!(outputs.last(), Some(&reassert));
    // A resignation too, and the rhythm of the other legs stands.
    router.handle(now + ms(40), on(1, host(6), &advert_on(&member(11), 0, cs(10))));
    assert_eq!(sent(&drain(&mut router)), [(1, host(5), 100)]);
    assert_eq!(router.poll_timeout(), Some(now + ms(100)));
}

#[test]
fn a_claim_on_a_leg_without_a_source_is_answered_on_the_others() {
    let now = time_zero();
    let mut router = Router::new(dual(), now);
    router.handle(now, Input::Source { leg: LegId(0), source: host(5) });
    router.handle(now, Input::Resume { priority: prio(100) });
    assert_eq!(sent(&drain(&mut router)), [(0, host(5), 100)]);
    router.handle(now, on(1, host6(6), &advert_on(&leg6(), 99, cs(10))));
    assert_eq!(sent(&drain(&mut router)), [(0, host(5), 100)]);
}

#[test]
fn a_stop_resigns_on_every_leg_and_so_does_a_resignation() {
    let now = time_zero();
    for input in [Input::Stop, Input::Resign] {
        let mut router = active(dual(), now);
        router.handle(now, input);
        assert_eq!(sent(&drain(&mut router)), [(0, host(5), 0), (1, host6(5), 0)]);
    }
}

/// Two equals whose addresses are in opposite order on the two legs.
fn crossed() -> Lan {
    let config = || with_legs(vec![leg(), member(11)], cs(10));
    let lan = Lan::new().addresses(|n, at, _| host(if at == 0 { n } else { 10 - n }));
    lan.started(100, config()).started(100, config())
}

#[test]
fn equals_are_decided_by_the_address_on_the_lowest_leg() {
    let mut lan = crossed();
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [1]);
    assert_eq!(lan.promotions().len(), 2, "both fired together, and one gave way");
    let gave_way = lan.transitions().pop().unwrap();
    assert_eq!((gave_way.1, gave_way.2), (0, State::Backup));
}

#[test]
fn equals_that_cant_hear_each_other_on_the_lowest_leg_are_decided_on_the_next_after_two_intervals() {
    let mut lan = crossed();
    lan.cut_leg(0, 1, 0);
    lan.cut_leg(1, 0, 0);
    lan.run_for(us(361_037));
    assert_eq!(lan.actives(), [0, 1], "both hear an equal on the second leg, and wait for the first");
    lan.run_for(ms(199));
    assert_eq!(lan.actives(), [0, 1]);
    lan.run_for(ms(102));
    assert_eq!(lan.actives(), [0], "on the second leg the other address is the higher one");
    lan.forget();
    lan.heal();
    lan.run_for(Duration::from_secs(10));
    assert_eq!(lan.transitions(), [], "a leg that heals decides nothing anew: an Active and a Backup are no equals");
}

#[test]
fn a_leg_that_has_no_source_cant_decide_and_doesnt_hinder() {
    let now = time_zero();
    let mut router = Router::new(dual(), now);
    router.handle(now, Input::Source { leg: LegId(1), source: host6(5) });
    router.handle(now, Input::Resume { priority: prio(100) });
    router.handle(now, on(0, host(6), &advert_on(&leg(), 100, cs(10))));
    assert_eq!(router.state(), State::Active);
    router.handle(now, on(1, host6(6), &advert_on(&leg6(), 100, cs(10))));
    assert_eq!(router.state(), State::Backup);
}

#[test]
fn a_slow_equal_on_a_higher_leg_is_decided_too() {
    // Its interval is ten of ours: patience is counted in the longer one.
    let zero = time_zero();
    let mut router = active(dual(), zero);
    let slow = advert_on(&leg6(), 100, cs(100));
    for at in [0, 1_000, 2_000] {
        assert_eq!(router.state(), State::Active, "at {at} ms");
        router.handle(zero + ms(at), on(1, host6(6), &slow));
    }
    assert_eq!(router.state(), State::Backup);
}

#[test]
fn a_member_that_joins_changes_no_state_and_is_advertised_at_once() {
    let two = || with_legs(vec![leg(), member(11)], cs(10));
    let mut lan = Lan::new().started(254, two()).started(253, two());
    lan.run_for(ms(1_030));
    lan.forget();
    let reloaded = lan.at();
    lan.set_legs(0, group().legs);
    lan.set_legs(1, group().legs);
    assert_eq!(lan.sent_on(0, Some(2)), [(reloaded, 254)], "before the next regular advert");
    assert_eq!(lan.sent(0).len(), 1, "and on the new leg only");
    assert_eq!(lan.sent(1), []);
    lan.run_for(ms(1_000));
    assert_eq!(lan.transitions(), []);
    assert_eq!(lan.actives(), [0]);
    assert_eq!(lan.sent_on(0, Some(0)).len(), 10, "the rhythm of the others is kept");
}

#[test]
fn a_member_that_joins_on_one_node_only_is_no_reason_to_move() {
    let two = || with_legs(vec![leg(), member(11)], cs(10));
    let mut lan = Lan::new().started(254, two()).started(253, two());
    lan.run_for(ms(1_000));
    lan.forget();
    lan.set_legs(1, group().legs);
    lan.run_for(Duration::from_secs(60));
    assert_eq!(lan.transitions(), []);
}

#[test]
fn a_member_that_leaves_leaves_silently() {
    let mut lan = Lan::new().started(254, group()).started(253, group());
    lan.run_for(ms(1_000));
    lan.forget();
    lan.set_legs(0, group().legs[..2].to_vec());
    assert_eq!(lan.sent(0), [], "a priority 0 would make the peer take the whole unit");
    lan.run_for(Duration::from_secs(60));
    assert_eq!(lan.transitions(), []);
}

#[test]
fn legs_that_stay_keep_their_sources_in_whatever_order() {
    let now = time_zero();
    let mut router = Router::new(group(), now);
    give_sources(&mut router, now, |at| host(u8::try_from(at + 1).unwrap()));
    router.handle(now, Input::Resume { priority: prio(100) });
    drain(&mut router);
    router.set_legs(now, vec![member(13), member(12), leg()]);
    let sources: Vec<_> = (0..4).map(|at| router.source(LegId(at))).collect();
    assert_eq!(sources, [None, Some(host(3)), Some(host(1)), None]);
    assert_eq!(sent(&drain(&mut router)), [], "the one that joined has no source yet");
    router.handle(now, Input::Source { leg: LegId(0), source: host(9) });
    assert_eq!(sent(&drain(&mut router)), [(0, host(9), 100)]);
    // One VRID on two interfaces: only the addresses tell which is which.
    let twin = |last| LegConfig { vrid: leg().vrid, ..member(last) };
    router.set_legs(now, vec![twin(21), twin(22)]);
    assert_eq!((router.source(LegId(0)), router.source(LegId(1))), (None, None));
    give_sources(&mut router, now, |at| host(u8::try_from(at + 1).unwrap()));
    router.set_legs(now, vec![twin(22), twin(23)]);
    assert_eq!((router.source(LegId(0)), router.source(LegId(1))), (Some(host(2)), None));
    router.set_legs(now, vec![]);
    assert_eq!(router.config().legs.len(), 2, "a unit without a leg there can't be");
}

#[test]
fn other_addresses_on_a_leg_are_advertised_at_once() {
    let now = time_zero();
    let mut router = active(group(), now);
    let changed = LegConfig { addresses: leg6().addresses, ..leg6() };
    let more = LegConfig { addresses: member(99).addresses, ..member(11) };
    router.set_legs(now, vec![leg(), more.clone(), member(12)]);
    let outputs = drain(&mut router);
    assert_eq!(sent(&outputs), [(1, host(5), 100)]);
    let Some(Output::Send { packets, source, .. }) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(common::decoded(*source, &packets[0].payload).addresses, more.addresses);
    // Another family is another leg: its source isn't known.
    router.set_legs(now, vec![leg(), changed]);
    assert_eq!(sent(&drain(&mut router)), []);
}

#[test]
fn a_new_interval_is_kept_at_once_and_changes_no_state() {
    let now = time_zero();
    let mut router = active(with_legs(vec![leg()], cs(4_000)), now);
    router.set_config(now, config(cs(10), true));
    assert_eq!(router.poll_timeout(), Some(now + ms(100)), "not after the 40 s that ran");
    router.handle(now + ms(100), Input::Timer);
    let outputs = drain(&mut router);
    let Some(Output::Send { packets, .. }) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(common::decoded(host(5), &packets[0].payload).interval, cs(10));
    assert_eq!(router.state(), State::Active);
}

#[test]
fn a_stalled_active_stays_silent_through_a_reload() {
    let now = time_zero();
    let mut router = active(with_legs(vec![leg()], cs(10)), now);
    router.handle(now, Input::Stalled);
    router.set_legs(now, group().legs);
    give_sources(&mut router, now, |_| host(5));
    assert_eq!(sent(&drain(&mut router)), []);
    router.handle(now + ms(100), Input::Timer);
    assert_eq!(sent(&drain(&mut router)).len(), 3);
}

#[test]
fn an_advert_is_encoded_once_and_again_only_when_something_in_it_changes() {
    let zero = time_zero();
    let mut router = active(dual(), zero);
    let mut at = zero;
    let mut next = |router: &mut Router| {
        at += ms(100);
        router.handle(at, Input::Timer);
        packets(&drain(router))
    };
    let first = next(&mut router);
    let second = next(&mut router);
    assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(a, b)), "the same memory each interval");
    router.handle(zero, Input::Priority(prio(50)));
    drain(&mut router);
    assert!(next(&mut router).iter().zip(&second).all(|(a, b)| a != b));
    router.handle(zero, Input::Priority(prio(100)));
    drain(&mut router);
    assert_eq!(next(&mut router), second, "as before, byte for byte");
    // IPv6 has the source in its checksum.
    router.handle(zero, Input::Source { leg: LegId(1), source: host6(7) });
    let moved = next(&mut router);
    assert_eq!(moved[0], second[0]);
    assert_ne!(moved[1], second[1]);
}

#[test]
fn the_last_advert_is_at_hand_as_soon_as_there_is_a_source() {
    let now = time_zero();
    let mut router = Router::new(dual(), now);
    assert_eq!(router.resign_packets(LegId(0)), None);
    router.handle(now, Input::Source { leg: LegId(1), source: host6(5) });
    assert_eq!(router.resign_packets(LegId(0)), None);
    let (source, resign) = router.resign_packets(LegId(1)).unwrap();
    assert_eq!((source, resign[0].destination), (host6(5), "ff02::12".parse().unwrap()));
    let advert = common::decoded(source, &resign[0].payload);
    assert_eq!((advert.priority, advert.addresses), (prio(0), leg6().addresses));
    assert_eq!(router.resign_packets(LegId(2)), None);
    // What is sent at a stop is the very same.
    router.handle(now, Input::Resume { priority: prio(100) });
    drain(&mut router);
    router.handle(now, Input::Stop);
    assert!(Arc::ptr_eq(&packets(&drain(&mut router))[0], &resign));
}

#[test]
fn a_source_of_the_other_family_is_no_source() {
    let now = time_zero();
    let mut router = Router::new(dual(), now);
    router.handle(now, Input::Source { leg: LegId(0), source: host6(5) });
    router.handle(now, Input::Source { leg: LegId(7), source: host(5) });
    assert_eq!((router.source(LegId(0)), router.source(LegId(7))), (None, None));
}

#[test]
fn our_own_adverts_looped_back_on_any_leg_are_ignored() {
    let now = time_zero();
    let twin = LegConfig { vrid: leg().vrid, ..member(21) };
    let mut router = active(with_legs(vec![leg(), twin.clone()], cs(10)), now);
    router.handle(now, Input::Source { leg: LegId(1), source: host(6) });
    // The first leg's advert, heard on the second: two interfaces on one segment.
    for advert in [advert_on(&leg(), 100, cs(10)), advert_on(&leg(), 0, cs(10))] {
        router.handle(now, on(1, host(5), &advert));
        assert_eq!(drain(&mut router), [Output::Notice(Notice::OwnSource)]);
    }
    assert_eq!((router.counters().own_source, router.counters().heard), (2, 0));
    // The same address on the other segment is somebody else's, if it speaks of what the leg there is about.
    router.handle(now, on(1, host(5), &advert_on(&twin, 101, cs(10))));
    assert_eq!(router.state(), State::Backup);
}

#[test]
fn an_advert_that_isnt_the_legs_changes_nothing() {
    let now = time_zero();
    let mut router = active(dual(), now);
    let v2 = Advert { version: Version::V2, ..advert_on(&leg(), 255, cs(100)) };
    for (leg_id, advert) in [
        (0, advert_on(&member(11), 255, cs(10))),
        (0, advert_on(&leg6(), 255, cs(10))),
        (1, advert_on(&leg(), 255, cs(10))),
        (0, v2),
        (2, advert_on(&leg(), 255, cs(10))),
    ] {
        router.handle(now, on(leg_id, host(6), &advert));
    }
    assert_eq!(drain(&mut router), []);
    assert_eq!((router.state(), router.counters().foreign_vrid), (State::Active, 5));
}

#[test]
fn a_configuration_that_cant_run_is_told_why() {
    let one = |leg| with_legs(vec![leg], cs(10));
    let peers = |peers| LegConfig { transport: Transport::Unicast { peers, min_ttl: 255 }, ..leg() };
    let (vrid, version) = (leg().vrid, Version::V2);
    for (config, error) in [
        (with_legs(vec![], cs(10)), ConfigError::NoLegs),
        (with_legs(vec![leg(); 65_536], cs(10)), ConfigError::TooManyLegs(65_536)),
        (one(LegConfig { version, ..leg6() }), ConfigError::Version2Ipv6(vrid)),
        (one(LegConfig { version, ..leg() }), ConfigError::Interval { version, interval: cs(10) }),
        (one(peers(vec![])), ConfigError::NoPeers(vrid)),
        (
            one(peers(vec![host(1), host6(1)])),
            ConfigError::PeerFamily { peer: host6(1), family: holdfast_vrrp::Family::V4 },
        ),
        (one(peers(vec![[224, 0, 0, 18].into()])), ConfigError::PeerAddress([224, 0, 0, 18].into())),
    ] {
        assert_eq!(config.check(), Err(error.clone()), "{error}");
    }
    assert_eq!(dual().check(), Ok(()));
    assert_eq!(one(peers(vec![host(1)])).check(), Ok(()));
    assert_eq!((leg().message_len(), leg6().message_len()), (12, 40));
    assert_eq!(LegConfig { version, ..leg() }.message_len(), 20);
}

#[test]
fn a_hundred_legs_lose_no_output() {
    let legs: Vec<_> = (1..=200).map(member).collect();
    let now = time_zero();
    let mut router = active(with_legs(legs, cs(10)), now);
    router.handle(now + ms(100), Input::Timer);
    router.handle(now + ms(100), Input::Priority(prio(50)));
    router.handle(now + ms(100), Input::Stop);
    let outputs = drain(&mut router);
    assert_eq!(sent(&outputs).len(), 3 * 200);
    assert_eq!(router.counters().outputs_lost, 0);
    assert!(matches!(outputs.last(), Some(Output::Transition(t)) if t.reason == Reason::Stopped));
}

//! Who becomes Active beyond RFC 9568's rules: `preempt_delay`, the last resort, equals, and VRRPv2's time.

mod common;

use std::time::Duration;

use common::clause::*;
use common::{Lan, advert_on, config, cs, heard, host, leg, member, ms, neighbour, prio, start, time_zero, us};
use holdfast_vrrp::router::Reason;
use holdfast_vrrp::{AdvertInterval, Input, Router, RouterConfig, State, Version};

/// 100 ms, preempting after this delay.
fn delayed(seconds: u64) -> RouterConfig {
    RouterConfig { preempt_delay: Duration::from_secs(seconds), ..config(cs(10), true) }
}

/// Down time of priority 254 at 100 ms.
const DOWN_254: Duration = Duration::from_micros(300_781);

#[test]
fn at_boot_a_lower_active_is_left_alone_until_the_delay_is_over() {
    let mut lan = Lan::new().router(delayed(30)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.forget();
    lan.start(0, 254);
    lan.run_for(Duration::from_secs(30));
    assert_eq!(lan.actives(), [1]);
    assert_eq!(lan.transitions().len(), 1, "only its start");
    lan.run_for(ms(400));
    let promoted = lan.transitions()[1];
    assert_eq!(promoted.3, Reason::Preempt { peer: host(2), its: prio(253) });
    let after = promoted.0 - ms(1_000) - Duration::from_secs(30);
    assert!(after > ms(200) && after <= DOWN_254, "one down time after the last advert that counted: {after:?}");
    assert_eq!(lan.actives(), [0]);
}

#[test]
fn nobody_active_no_delay() {
    let mut lan = Lan::new().started(254, delayed(3_600)).started(253, delayed(3_600));
    lan.run_for(ms(400));
    assert_eq!(lan.promotions(), [(DOWN_254, 0)]);
    // Nor when the Active dies within the delay, or resigns.
    let mut lan = Lan::new().node(253, cs(10)).router(delayed(3_600));
    lan.run_for(ms(1_000));
    lan.start(1, 254);
    lan.run_for(ms(1_000));
    lan.forget();
    lan.freeze(0);
    lan.run_for(ms(400));
    assert_eq!(lan.promotions().len(), 1);

    let mut lan = Lan::new().node(253, cs(10)).router(delayed(3_600));
    lan.run_for(ms(1_000));
    lan.start(1, 254);
    lan.run_for(ms(1_000));
    lan.input(0, Input::Stop);
    lan.run_for(ms(5));
    assert_eq!(lan.state(1), State::Active);
}

#[test]
fn the_delay_begins_anew_with_each_rise_of_the_priority() {
    let mut lan = Lan::new().started(254, delayed(10)).node(253, cs(10));
    lan.run_for(Duration::from_secs(60));
    assert_eq!(lan.actives(), [0]);
    // A fault, and its end: below the peer, then above it again.
    lan.input(0, Input::Priority(prio(100)));
    lan.run_for(Duration::from_secs(5));
    assert_eq!(lan.actives(), [1]);
    lan.input(0, Input::Priority(prio(200)));
    lan.run_for(Duration::from_secs(5));
    lan.input(0, Input::Priority(prio(254)));
    lan.run_for(Duration::from_secs(10));
    assert_eq!(lan.actives(), [1], "ten seconds from the last rise");
    lan.run_for(ms(400));
    assert_eq!(lan.actives(), [0]);
    // A fall is no rise.
    lan.input(0, Input::Priority(prio(100)));
    lan.run_for(Duration::from_secs(1));
    lan.input(0, Input::Priority(prio(254)));
    lan.run_for(Duration::from_secs(9));
    lan.input(1, Input::Priority(prio(2)));
    lan.input(0, Input::Priority(prio(253)));
    lan.run_for(ms(1_400));
    assert_eq!(lan.actives(), [0]);
}

#[test]
fn a_rise_without_a_delay_puts_no_preemption_off() {
    let now = time_zero();
    let mut router = Router::new(config(cs(100), true), now);
    start(&mut router, now, host(1), 200);
    router.handle(now + ms(2_900), heard(host(2), &advert_on(&leg(), 100, cs(100))));
    router.handle(now + ms(2_950), Input::Priority(prio(254)));
    let down = router.active_down();
    assert_eq!(router.poll_timeout(), Some(now + down), "the timer of the start runs on");
    router.handle(now + down, Input::Timer);
    assert_eq!(router.state(), State::Active);
}

#[test]
fn the_end_of_the_delay_can_be_looked_up() {
    let now = time_zero();
    let mut router = Router::new(delayed(30), now);
    assert_eq!(router.preempts_from(), None);
    start(&mut router, now, host(1), 254);
    assert_eq!(router.preempts_from(), Some(now + Duration::from_secs(30)));
}

#[test]
fn an_active_is_not_touched_by_a_delay() {
    let mut lan = Lan::new().started(254, delayed(30)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.input(0, Input::Priority(prio(253)));
    lan.input(0, Input::Priority(prio(254)));
    lan.forget();
    lan.run_for(ms(1_000));
    assert_eq!(lan.transitions(), []);
    assert_eq!(lan.sent(0).len(), 10, "no advert is missed");
}

#[test]
fn a_failed_owner_yields_to_a_healthy_node_that_may_not_preempt() {
    for config in [config(cs(10), false), delayed(3_600)] {
        let mut lan = Lan::new().started(254, config.clone()).router(config);
        lan.run_for(ms(1_000));
        lan.start(1, 253);
        lan.run_for(ms(1_000));
        // A little lower than the other is no reason yet …
        lan.input(0, Input::Priority(prio(200)));
        lan.run_for(Duration::from_secs(10));
        assert_eq!(lan.actives(), [0]);
        // … but failed is, and it takes no longer than silence would.
        lan.forget();
        let failed = lan.at();
        lan.input(0, Input::Priority(prio(1)));
        lan.run_for(ms(400));
        let promoted = lan.promotions();
        assert_eq!(promoted.len(), 1);
        assert!(promoted[0].0 - failed <= us(301_171 + 100), "from an advert that was under way");
        assert_eq!(lan.actives(), [1]);
        // Well again, it doesn't take it back.
        lan.input(0, Input::Priority(prio(254)));
        lan.run_for(Duration::from_secs(60));
        assert_eq!(lan.actives(), [1]);
    }
}

#[test]
fn two_that_failed_leave_each_other_alone() {
    let mut lan = Lan::new().node(1, cs(10)).node(1, cs(10));
    lan.run_for(ms(2_000));
    assert_eq!(lan.actives().len(), 1);
    lan.forget();
    lan.run_for(Duration::from_secs(60));
    assert_eq!(lan.transitions(), []);
}

#[test]
fn of_three_equals_exactly_one_becomes_active_and_nobody_else_moves() {
    let mut lan = Lan::new().neighbours().latency(us(50));
    for _ in 0..3 {
        lan = lan.started(100, config(cs(10), true));
    }
    lan.run_for(ms(5_000));
    // Of 10.0.0.1, .2 and .3 the second has the shortest wait: 2 reversed is 64 of 256 parts of a step of 390 µs.
    assert_eq!(lan.promotions(), [(us(360_937 + 97), 1)]);
    assert_eq!(lan.transitions().len(), 3 + 1, "three starts and one promotion");
    // The Active dies: likewise.
    lan.freeze(1);
    lan.forget();
    lan.run_for(ms(5_000));
    assert_eq!(lan.promotions().len(), 1);
    assert_eq!(lan.transitions().len(), 1);
}

#[test]
fn the_jitter_of_a_low_priority_never_overtakes_a_higher_one() {
    // 10.0.0.255 waits longest of its priority, 10.0.1.0 shortest of the next.
    let mut lan = Lan::new().latency(us(1)).addresses(|n, _, _| if n == 1 { neighbour(255) } else { host(1) });
    lan = lan.started(101, config(cs(10), true)).started(100, config(cs(10), true));
    lan.run_for(ms(1_000));
    assert_eq!(lan.promotions().len(), 1);
    assert_eq!(lan.actives(), [0]);
}

#[test]
fn version_2_waits_by_its_own_clock() {
    let v2 = |seconds| RouterConfig {
        interval: AdvertInterval::from_seconds(seconds).unwrap(),
        legs: vec![holdfast_vrrp::LegConfig { version: Version::V2, ..leg() }],
        ..config(cs(100), true)
    };
    // RFC 3768 section 6.1: 3 × 10 s and a skew of (256 - 100) / 256 s, not of 10 s.
    let mut lan = Lan::new().started(100, v2(10));
    lan.run_for(Duration::from_secs(31));
    assert_eq!(lan.promotions(), [(us(30_609_375), 0)]);
    // After a resignation the skew alone.
    let mut lan = Lan::new().started(101, v2(10)).started(100, v2(10));
    lan.run_for(Duration::from_secs(60));
    lan.forget();
    let stopped = lan.at();
    lan.input(0, Input::Stop);
    lan.run_for(Duration::from_secs(1));
    assert_eq!(lan.promotions(), [(stopped + us(100 + 609_375), 1)]);
}

#[test]
fn one_leg_of_version_2_sets_the_clock_of_all() {
    let legs = vec![leg(), holdfast_vrrp::LegConfig { version: Version::V2, ..member(11) }];
    let config = RouterConfig { legs, interval: cs(1_000), ..config(cs(100), true) };
    assert_eq!(config.check(), Ok(()));
    let mut lan = Lan::new().started(100, config);
    lan.run_for(Duration::from_secs(31));
    assert_eq!(lan.promotions(), [(us(30_609_375), 0)]);
}

#[test]
fn clauses_of_the_delay_and_of_the_last_resort() {
    use State::Backup;
    check(vec![
        without_preempt(clause(
            "last resort",
            "an Active at 1 is preempted whatever Preempt_Mode",
            backup(100, &[(900, In::Advert(HIGH, 1, 100))]),
            vec![],
            Backup,
            Some(us(2_709_375)),
        )),
        without_preempt(clause(
            "last resort",
            "but not by one that is at 1 too",
            backup(1, &[(900, In::Advert(HIGH, 1, 100))]),
            vec![equal(HIGH)],
            Backup,
            Some(us(3_996_093)),
        )),
    ]);
    let zero = time_zero();
    let mut router = Router::new(delayed(2), zero);
    start(&mut router, zero, host(SELF), 254);
    let lower = advert_on(&leg(), 253, cs(10));
    // Within the delay it re-arms, on the stroke of its end it doesn't.
    for (at, armed) in [(1_999, 1_999), (2_000, 1_999)] {
        router.handle(zero + ms(at), heard(host(HIGH), &lower));
        assert_eq!(router.poll_timeout(), Some(zero + ms(armed) + DOWN_254), "at {at} ms");
    }
}

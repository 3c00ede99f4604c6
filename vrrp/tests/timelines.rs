//! Two and three routers on a virtual segment, with a virtual clock: what happens, and when exactly.

mod common;

use std::time::Duration;

use common::{Lan, advert, config, cs, heard, host, ms, prio, us};
use holdfast_vrrp::router::{OUTPUTS_MAX, Reason, ReassertReason};
use holdfast_vrrp::{Input, Output, Router, State};

const LATENCY: Duration = Duration::from_micros(100);

/// Active 254 (node 0) and Backup 253 (node 1) at 100 ms, settled, log cleared.
fn settled_pair() -> Lan {
    let mut lan = Lan::new().node(254, cs(10)).node(253, cs(10));
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0]);
    lan.forget();
    lan
}

#[test]
fn a_backup_takes_over_three_intervals_and_a_skew_after_the_last_advert_it_heard() {
    let mut lan = settled_pair();
    let last_heard = lan.routers().nth(1).and_then(|r| r.heard()).unwrap();
    lan.freeze(0);
    lan.run_for(ms(400));
    let silent = us(301_171);
    let takeover = lan.transitions();
    assert_eq!(takeover.len(), 1);
    assert_eq!((takeover[0].1, takeover[0].2), (1, State::Active));
    assert_eq!(takeover[0].3, Reason::DownTimer { silent: Some(silent) });
    assert_eq!(lan.routers().nth(1).unwrap().since(), last_heard.at + silent);
}

#[test]
fn a_cold_start_elects_the_highest_priority_and_disturbs_nobody_else() {
    let mut lan = Lan::new().node(100, cs(10)).node(254, cs(10)).node(253, cs(10));
    lan.run_for(ms(2_000));
    let active: Vec<_> = lan.transitions().into_iter().filter(|t| t.2 == State::Active).collect();
    assert_eq!(active, [(us(300_781), 1, State::Active, Reason::DownTimer { silent: None })]);
}

#[test]
fn priorities_next_to_each_other_are_told_apart_at_the_shortest_interval() {
    // 1 cs: a step of priority is 39 µs, shorter than the latency here would be; so the wire is quick.
    let mut lan = Lan::new().latency(us(5)).node(253, cs(1)).node(254, cs(1));
    lan.run_for(ms(200));
    let active: Vec<_> = lan.transitions().into_iter().filter(|t| t.2 == State::Active).collect();
    assert_eq!(active.len(), 1, "only one ever became Active");
    assert_eq!(lan.actives(), [1]);
}

#[test]
fn a_better_router_that_comes_back_preempts_after_its_down_time() {
    let mut lan = Lan::new().router(config(cs(10), true)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.forget();
    lan.start(0, 254);
    lan.run_for(ms(400));
    let started = ms(1_000);
    let preempted = started + us(300_781);
    assert_eq!(
        lan.transitions(),
        [
            (started, 0, State::Backup, Reason::Started),
            (preempted, 0, State::Active, Reason::Preempt { peer: host(2), its: prio(253) }),
            (preempted + LATENCY, 1, State::Backup, Reason::Outranked { by: host(1), its: prio(254) }),
        ]
    );
    // The loser's last advert made the winner announce again, once.
    let reasserted = ReassertReason::LosingAdvert { from: host(2), its: prio(253) };
    let reasserts: Vec<_> =
        lan.log.iter().filter(|e| matches!(e.output, Output::Reassert(_))).map(|e| (e.at, &e.output)).collect();
    assert_eq!(reasserts, [(preempted + 2 * LATENCY, &Output::Reassert(reasserted))]);
}

#[test]
fn a_better_router_that_may_not_preempt_stays_backup() {
    let mut lan = Lan::new().router(config(cs(10), false)).node(253, cs(10));
    lan.run_for(ms(1_000));
    lan.start(0, 254);
    lan.run_for(Duration::from_secs(60));
    assert_eq!(lan.actives(), [1]);
}

#[test]
fn a_resignation_moves_the_address_within_a_skew() {
    let mut lan = settled_pair();
    lan.input(0, Input::Priority(prio(1)));
    lan.input(0, Input::Resign);
    lan.run_for(ms(50));
    assert_eq!(
        lan.transitions(),
        [
            (ms(1_000), 0, State::Backup, Reason::Resigned),
            (ms(1_000) + LATENCY + us(1_171), 1, State::Active, Reason::PeerResigned { peer: host(1) }),
        ]
    );
    lan.run_for(Duration::from_secs(10));
    assert_eq!(lan.actives(), [1], "the one that resigned doesn't come back while it is heard");
}

#[test]
fn an_address_that_nobody_takes_comes_back_after_a_down_time() {
    let mut lan = Lan::new().node(254, cs(10));
    lan.run_for(ms(1_000));
    lan.forget();
    lan.input(0, Input::Resign);
    lan.run_for(ms(400));
    let back = ms(1_000) + us(300_781);
    assert_eq!(lan.transitions()[1], (back, 0, State::Active, Reason::DownTimer { silent: None }));
}

#[test]
fn a_targeted_hand_over_leaves_no_moment_without_an_active() {
    let mut lan = settled_pair();
    lan.input(0, Input::Priority(prio(1)));
    lan.input(1, Input::Promote);
    assert_eq!(lan.actives(), [0, 1], "the old one still answers when the new one begins");
    lan.run_for(ms(5));
    assert_eq!(lan.actives(), [1]);
    // The old one's last word makes the new one announce again.
    assert!(lan.log.iter().any(|e| e.node == 1 && matches!(e.output, Output::Reassert(_))));
}

#[test]
fn a_shut_down_active_is_replaced_within_a_skew() {
    let mut lan = settled_pair();
    lan.input(0, Input::Stop);
    lan.run_for(ms(5));
    assert_eq!((lan.state(0), lan.state(1)), (State::Initialize, State::Active));
}

#[test]
fn equal_priorities_that_start_together_end_with_the_higher_address() {
    let mut lan = Lan::new().node(100, cs(10)).node(100, cs(10)).node(100, cs(10));
    lan.run_for(ms(2_000));
    assert_eq!(lan.actives(), [2]);
    // All three fired together, since their addresses were chosen to give no jitter, as RFC 9568 has it; a packet's time later two have given way, for good.
    let fired = us(360_937);
    let gave_way: Vec<_> = lan.transitions().into_iter().filter(|t| t.0 > fired).map(|t| (t.0, t.1, t.2)).collect();
    assert_eq!(gave_way, [(fired + LATENCY, 0, State::Backup), (fired + LATENCY, 1, State::Backup)]);
}

#[test]
fn after_a_silent_partition_heals_the_loser_gives_way_and_the_winner_announces_again() {
    let mut lan = settled_pair();
    lan.split(0, 1);
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0, 1], "neither hears the other: the known split of plain VRRP");
    lan.heal();
    lan.forget();
    let healed = lan.at();
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0]);
    let gave_way = lan.transitions();
    assert_eq!(gave_way.len(), 1);
    assert!(gave_way[0].0 - healed <= ms(101), "within one interval: {:?}", gave_way[0].0 - healed);
    let last_claim = lan.sent(1).last().copied().expect("the loser had a last word");
    let announced = lan.log.iter().rev().find(|e| e.node == 0 && matches!(e.output, Output::Reassert(_))).unwrap();
    assert_eq!(announced.at, last_claim.0 + LATENCY, "the winner announces after the loser's last claim");
}

#[test]
fn a_one_way_partition_ends_as_soon_as_the_winner_is_heard() {
    let mut lan = settled_pair();
    lan.cut(0, 1);
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0, 1]);
    lan.forget();
    lan.heal();
    lan.run_for(ms(101));
    assert_eq!(lan.actives(), [0]);
    assert_eq!(lan.transitions().len(), 1);
}

#[test]
fn a_deaf_router_with_a_lower_priority_is_answered_but_never_floods() {
    let mut lan = settled_pair();
    lan.cut(0, 1);
    lan.run_for(ms(1_000));
    lan.forget();
    lan.run_for(ms(1_000));
    // Ten of its own and one answer to each of the other's ten.
    assert_eq!(lan.sent(0).len(), 20);
    assert_eq!(lan.sent(1).len(), 10);
}

#[test]
fn an_active_that_was_frozen_and_replaced_gives_no_contradiction_before_it_has_listened() {
    // No preemption and a peer that was given the higher priority meanwhile: the sleeper must find it and go.
    let mut lan = Lan::new().router(config(cs(10), false)).router(config(cs(10), false));
    lan.start(0, 200);
    lan.run_for(ms(500));
    lan.start(1, 100);
    lan.run_for(ms(500));
    lan.freeze(0);
    lan.run_for(ms(1_000));
    lan.input(1, Input::Priority(prio(220)));
    lan.run_for(ms(500));
    lan.forget();
    lan.thaw(0, true);
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [1]);
    let node0 = lan.sent(0);
    assert_eq!(node0.len(), 1, "only the loser's last advert: {node0:?}");
}

#[test]
fn an_active_that_was_frozen_and_is_still_the_best_announces_again() {
    let mut lan = settled_pair();
    lan.freeze(0);
    lan.run_for(ms(1_000));
    assert_eq!(lan.state(1), State::Active);
    lan.forget();
    lan.thaw(0, true);
    lan.run_for(ms(300));
    assert_eq!(lan.actives(), [0]);
    assert!(lan.log.iter().any(|e| e.node == 0 && matches!(e.output, Output::Reassert(_))));
}

#[test]
fn a_storm_of_losing_adverts_is_answered_a_limited_number_of_times_and_settled_at_the_next_advert() {
    let mut lan = Lan::new().node(254, cs(100));
    lan.run_for(Duration::from_secs(4));
    lan.forget();
    for _ in 0..10_000 {
        lan.input(0, heard(host(9), &advert(253, 100)));
    }
    let answers = usize::from(holdfast_vrrp::router::ANSWERS_PER_INTERVAL);
    assert_eq!(lan.sent(0).len(), answers);
    assert_eq!(lan.routers().next().unwrap().counters().answers_held_back, 10_000 - 16);
    lan.run_for(Duration::from_secs(1));
    let last = &lan.log.last().unwrap().output;
    let owed = ReassertReason::LosingAdvert { from: host(9), its: prio(253) };
    assert_eq!(last, &Output::Reassert(owed), "what was owed comes with the regular advert");
    assert_eq!(lan.sent(0).len(), answers + 1);
}

#[test]
fn a_timer_that_comes_an_hour_late_sends_one_advert() {
    let mut lan = Lan::new().node(254, cs(1));
    lan.run_for(ms(500));
    lan.freeze(0);
    lan.run_for(Duration::from_secs(3_600));
    lan.forget();
    lan.thaw(0, false);
    lan.run_for(Duration::ZERO);
    assert_eq!(lan.sent(0).len(), 1);
}

#[test]
fn a_resumed_worker_changes_no_role_and_keeps_its_peer_quiet() {
    let mut lan = settled_pair();
    // The worker dies; a new one takes up within the grace, as host 1 again.
    lan.freeze(0);
    lan.run_for(ms(150));
    lan.replace(0, config(cs(10), true));
    lan.resume(0, 254);
    lan.run_for(ms(1_000));
    assert_eq!(lan.transitions(), [(ms(1_150), 0, State::Active, Reason::Resumed)]);
    assert_eq!(lan.actives(), [0]);
}

#[test]
fn what_was_heard_is_known_in_every_state() {
    let mut lan = Lan::new().router(config(cs(10), true)).node(254, cs(10));
    lan.run_for(ms(1_000));
    let heard = lan.routers().next().unwrap().heard().expect("heard in Initialize");
    assert_eq!((heard.from, heard.priority, heard.interval), (host(2), prio(254), cs(10)));
    lan.input(1, Input::Stop);
    lan.run_for(ms(1));
    let heard = lan.routers().next().unwrap().heard().unwrap();
    assert_eq!(heard.priority, prio(0), "a resignation is heard too");
}

#[test]
fn a_caller_that_never_drains_loses_the_oldest_output_and_is_told_how_many() {
    let now = common::time_zero();
    let mut router = Router::new(config(cs(10), true), now);
    common::resume(&mut router, now, host(1), 254);
    for n in 1..=255 {
        router.handle(now, Input::Priority(prio(n)));
    }
    let outputs = common::drain(&mut router);
    let held = OUTPUTS_MAX + 4;
    assert_eq!(outputs.len(), held);
    // Transition and advert at first, then one advert per priority.
    assert_eq!(router.counters().outputs_lost, 2 + 255 - u64::try_from(held).unwrap());
    assert_eq!(common::sent(&outputs).last(), Some(&(0, host(1), 255)), "the newest is kept");
}

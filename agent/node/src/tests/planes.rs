//! What follows from each verdict: who leaves, who stays, and who goes first.

use super::guards::{Verdict as Outcome, expect};
use super::lab::*;
use crate::io::*;
use crate::journal::Kind;
use crate::plane::{Standing, Verdict};
use crate::{Input, Output};
use std::time::Duration;

pub(crate) fn answers() -> PlaneReport {
    PlaneReport { admin: Admin::Answers { took: ms(2) }, cpu_ticks: Some(1), ..PlaneReport::default() }
}

/// Its admin side is silent, and it spends no processor time.
pub(crate) fn stuck() -> PlaneReport {
    PlaneReport { admin: Admin::Silent { why: "no answer in 200ms".to_owned() }, ..answers() }
}

pub(crate) fn stopped() -> PlaneReport {
    PlaneReport { stopped: true, ..stuck() }
}

pub(crate) fn full() -> PlaneReport {
    PlaneReport { connections: Some(Level { now: 100, limit: 100 }), ..answers() }
}

pub(crate) fn pool(up: u32) -> PlaneReport {
    PlaneReport { backends: Some(Pool { up, total: 3 }), ..answers() }
}

pub(crate) fn verdict(lab: &Lab, i: usize) -> Verdict {
    lab.node(i).world().balancers[0].judged.verdict
}

/// A look at a connection table with so many of a hundred entries.
pub(crate) fn table(count: u64) -> Input<'static> {
    Input::Conntrack { sample: Ok(crate::conntrack::Sample::of(count, 100)) }
}

fn standing(lab: &Lab, i: usize) -> Standing {
    lab.node(i).plan().vips[0].standing
}

/// A pair, or more, whose balancers are looked at and well.
fn looked_at(priorities: &[u8]) -> Lab {
    let mut lab = Lab::settled(priorities, true);
    lab.hosts.iter_mut().for_each(|host| host.plane = Some(pool(3)));
    lab.looking(ms(1_000));
    lab
}

type Scenario = (&'static str, fn() -> Outcome);

fn resigned(lab: &Lab, i: usize) -> usize {
    lab.kinds(i).iter().filter(|kind| matches!(kind, Kind::Resign { .. })).count()
}

// The scenarios of the guards: with them, and (in builds with `mutants`) without.

pub(crate) fn a_full_owner_stays() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(10_000));
    expect("it never resigns", lab.owners() == [0] && resigned(&lab, 0) == 0)?;
    expect("but says so", lab.has(0, |k| matches!(k, Kind::BalancerVerdict { to, .. } if to == "saturated")))
}

pub(crate) fn a_dead_one_leaves_for_one_that_is_full() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[1].plane = Some(full());
    lab.hosts[1].probes = Probes::Silent;
    lab.looking(ms(2_000));
    expect("it can't show that it serves", standing(&lab, 1) == Standing::Poor)?;
    lab.kill_balancer(0);
    lab.looking(ms(500));
    expect("but it may", lab.owners() == [1] && standing(&lab, 1) == Standing::Full)?;
    lab.looking(ms(10_000));
    expect("and keeps it", lab.owners() == [1] && resigned(&lab, 1) == 0)
}

pub(crate) fn a_stopped_one_is_not_full() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    // The kernel goes on to accept for a stopped process, until the backlog is full.
    let queue = Some(Level { now: 101, limit: 100 });
    lab.hosts[0].plane = Some(PlaneReport { queue, cpu_ticks: None, ..stuck() });
    lab.looking(ms(500));
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(1_000));
    expect("it leaves", lab.owners() == [1])
}

pub(crate) fn looks_alone_tell_that_it_hangs() -> Outcome {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].checks.clear());
    lab.hosts.iter_mut().for_each(|host| host.plane = Some(answers()));
    lab.looking(ms(1_000));
    lab.hosts[0].plane = Some(stopped());
    lab.looking(ms(900));
    expect("two looks are too few", lab.owners() == [0])?;
    lab.looking(ms(1_500));
    expect("three are enough", lab.owners() == [1])
}

pub(crate) fn who_does_not_listen_does_not_hang() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    // A process that is nothing but a process: idle, it spends no time, and there is nobody else to ask.
    lab.hosts[0].plane = Some(PlaneReport { admin: Admin::NotConfigured, cpu_ticks: None, ..answers() });
    lab.looking(ms(1_000));
    let idle = PlaneReport { admin: Admin::NotConfigured, cpu_ticks: Some(7), ..answers() };
    lab.hosts[0].probes = Probes::Bad;
    for _ in 0..4 {
        lab.feed(0, Input::Plane { balancer: crate::config::BalancerId(0), report: idle.clone() });
        lab.hosts[0].plane = None;
        lab.run(ms(250));
    }
    expect("it fails", verdict(&lab, 0) == Verdict::Failing && lab.owners() == [1])?;
    // One that is there and says nothing hangs.
    lab.hosts[0].probes = Probes::Silent;
    lab.run(ms(500));
    lab.feed(0, Input::Plane { balancer: crate::config::BalancerId(0), report: idle });
    lab.run(ms(500));
    expect("now it hangs", verdict(&lab, 0) == Verdict::Hung)
}

pub(crate) fn a_sick_owner_that_hears_of_nobody_stays() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[1].probes = Probes::Status;
    lab.looking(ms(1_000));
    lab.cut_channels(0, true);
    lab.looking(ms(1_000));
    lab.hosts[0].probes = Probes::Status;
    lab.looking(ms(5_000));
    expect("nobody is known to be better", lab.owners() == [0] && resigned(&lab, 0) == 0)?;
    expect("never without an owner", lab.unowned_max.is_zero())
}

pub(crate) fn what_all_share_moves_nothing() -> Outcome {
    let mut lab = looked_at(&[254, 253, 252]);
    // They find out one after the other.
    for i in 0..3 {
        lab.hosts[i].probes = Probes::Status;
        lab.looking(ms(80));
    }
    lab.looking(ms(5_000));
    expect("nothing moves", lab.owners() == [0] && (0..3).all(|i| resigned(&lab, i) == 0))?;
    let status = lab.node(0).status(lab.now);
    expect("and it is said", status.vips[0].fail_open && status.vips[0].reasons[0].contains("every node"))?;
    let said = |k: &Kind| matches!(k, Kind::FailOpen { why, .. } if why.contains("every node"));
    expect("in the journal too", lab.has(0, said))
}

pub(crate) fn what_lay_unread_moves_nothing() -> Outcome {
    // So slow that nobody takes over from an owner that stands still.
    let interval = holdfast_vrrp::AdvertInterval::from_cs(50).expect("an interval");
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].vrrp.interval = interval);
    lab.hosts[0].probes = Probes::Status;
    lab.run(ms(200));
    expect("found out, and not compared yet", standing(&lab, 0) == Standing::Poor && resigned(&lab, 0) == 0)?;
    // The session outlives it, and the other one is well at first.
    lab.pause(0);
    lab.run(ms(150));
    lab.hosts[1].probes = Probes::Status;
    lab.run(ms(250));
    lab.resume(0);
    lab.run(ms(5_000));
    expect("the other one was well a while ago", lab.owners() == [0] && resigned(&lab, 0) == 0)?;
    lab.hosts[1].probes = Probes::Good;
    lab.run(ms(2_000));
    expect("one that is well now has it", lab.owners() == [1] && resigned(&lab, 0) == 1)
}

#[test]
fn what_all_shared_moves_nothing_when_it_is_over_either_whoever_finds_out_first() {
    let mut lab = looked_at(&[254, 253, 252]);
    (0..3).for_each(|i| lab.hosts[i].probes = Probes::Status);
    lab.looking(ms(5_000));
    for i in [1, 2, 0] {
        lab.hosts[i].probes = Probes::Good;
        lab.looking(ms(120));
    }
    lab.looking(ms(5_000));
    assert_eq!((lab.owners(), verdict(&lab, 0)), (vec![0], Verdict::Serving));
    assert!((0..3).all(|i| resigned(&lab, i) == 0));
    assert!(
        lab.kinds(1).iter().chain(&lab.kinds(2)).all(|k| !matches!(k, Kind::VipState { to, .. } if to == "active"))
    );
}

#[test]
fn one_that_recovers_alone_has_the_vip_once_the_owner_would_have_found_out() {
    let mut lab = looked_at(&[254, 253]);
    (0..2).for_each(|i| lab.hosts[i].probes = Probes::Status);
    lab.looking(ms(5_000));
    lab.hosts[1].probes = Probes::Good;
    lab.looking(ms(250));
    assert_eq!(lab.owners(), [0]);
    lab.looking(ms(1_500));
    assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![1], 1));
}

pub(crate) fn a_sick_owner_leaves_for_a_better_one() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].probes = Probes::Status;
    lab.looking(ms(250));
    expect("not before the peer can have seen the same", lab.owners() == [0])?;
    lab.looking(ms(750));
    expect("then it leaves", lab.owners() == [1] && resigned(&lab, 0) == 1 && lab.unowned_max <= ms(2))
}

pub(crate) fn a_dead_one_leaves_for_one_that_answers() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[1].plane = Some(pool(0));
    lab.hosts[1].probes = Probes::Status;
    lab.looking(ms(5_000));
    lab.kill_balancer(0);
    lab.looking(ms(50));
    expect("an error page is better than nothing", lab.owners() == [1])
}

pub(crate) fn the_best_is_told_to_take_it() -> Outcome {
    let mut lab = looked_at(&[254, 253, 252]);
    // As if its priority didn't say it: an older agent's would not.
    lab.hosts[1].plane = Some(full());
    lab.looking(ms(1_000));
    let now = lab.now;
    let report = |view: &crate::world::PeerView| view.vip(W, now).map(|report| (report.priority, report.standing));
    expect("it says so", report(&lab.node(0).world().peers[0]) == Some((2, Some(Standing::Full))))?;
    let mut world = lab.node(0).world().clone();
    world.peers[0].vips.get_mut(&W).expect("known").1.priority = 253;
    let best = world.able_peers(W, now).first().copied();
    expect("the one with room", best == Some(holdfast_statesync::channel::PeerId(1)))
}

/// Who takes it when the owner's agent is gone, with the second node like this.
fn successor(change: impl Fn(&mut Lab)) -> Vec<usize> {
    let mut lab = looked_at(&[254, 253, 100]);
    change(&mut lab);
    lab.looking(ms(1_000));
    lab.crash(0);
    lab.looking(ms(3_000));
    lab.owners()
}

pub(crate) fn an_unsupervised_one_lets_others_go_first() -> Outcome {
    let orphan = |lab: &mut Lab| lab.hosts[1].plane = Some(PlaneReport { supervised: false, ..pool(3) });
    expect("the third", successor(orphan) == [2])
}

pub(crate) fn a_full_table_lets_others_go_first() -> Outcome {
    let change = |lab: &mut Lab| {
        lab.feed(1, table(99));
    };
    expect("the third", successor(change) == [2])
}

pub(crate) fn who_lost_it_often_lets_others_go_first() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    for _ in 0..2 {
        lab.kill_balancer(0);
        lab.looking(ms(500));
        lab.revive_balancer(0);
        lab.looking(ms(1_500));
    }
    expect("it is held back", lab.owners() == [1])?;
    let status = lab.node(0).status(lab.now);
    expect("and that shows", status.vips[0].hold_down.as_ref().is_some_and(|held| held.left_ms > 1_000))?;
    lab.looking(ms(20_000));
    expect("for a while", lab.owners() == [0])
}

pub(crate) fn who_never_served_loses_nothing() -> Outcome {
    let mut lab = looked_at(&[254, 253]);
    for _ in 0..3 {
        let why = "its pidfile isn't there".to_owned();
        lab.balancer(1, BalancerState::Unknown { why });
        lab.looking(ms(200));
        lab.crash(0);
        lab.looking(ms(3_000));
        expect("it falls to one that doesn't know whether it can", lab.owners() == [1])?;
        lab.kill_balancer(1);
        lab.start(0);
        lab.looking(ms(3_000));
        expect("and goes home", lab.owners() == [0])?;
    }
    expect("that was no loss", lab.node(1).status(lab.now).vips[0].hold_down.is_none())
}

#[test]
fn each_scenario_holds_with_its_guard() {
    let scenarios: [Scenario; 15] = [
        ("saturated-stays", a_full_owner_stays),
        ("full-beats-dead", a_dead_one_leaves_for_one_that_is_full),
        ("saturated-works", a_stopped_one_is_not_full),
        ("hung-without-checks", looks_alone_tell_that_it_hangs),
        ("refused-is-not-hung", who_does_not_listen_does_not_hang),
        ("sick-compares", a_sick_owner_that_hears_of_nobody_stays),
        ("poor-margin", what_all_share_moves_nothing),
        ("unread-words", what_lay_unread_moves_nothing),
        ("poor-leaves", a_sick_owner_leaves_for_a_better_one),
        ("poor-beats-bad", a_dead_one_leaves_for_one_that_answers),
        ("best-standing", the_best_is_told_to_take_it),
        ("stands-behind", an_unsupervised_one_lets_others_go_first),
        ("conntrack-defers", a_full_table_lets_others_go_first),
        ("hold-down", who_lost_it_often_lets_others_go_first),
        ("hold-down-served", who_never_served_loses_nothing),
    ];
    let failed: Vec<_> = scenarios.iter().filter_map(|(name, run)| run().err().map(|why| (*name, why))).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

// And what stands on more than one guard.

#[test]
fn a_hung_balancer_is_left_as_soon_as_its_check_says_so() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].probes = Probes::Silent;
    lab.hosts[0].plane = Some(stopped());
    let took = lab.until(ms(1_000), |lab| lab.owners() == [1]);
    assert!(took <= ms(192), "a silent admin side isn't waited for: {took:?}");
}

#[test]
fn a_full_owner_that_does_not_listen_any_more_leaves() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::Bad;
    lab.looking(ms(1_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Saturated, vec![1]), "{}", lab.story());
}

#[test]
fn what_falls_to_an_unfit_node_is_no_loss_when_it_goes_on() {
    let mut lab = looked_at(&[254, 253]);
    lab.kill_balancer(1);
    for _ in 0..3 {
        lab.crash(0);
        // Until the kernel has dropped what was left there.
        lab.looking(ms(3_000));
        assert_eq!(lab.owners(), [1], "as last resort\n{}", lab.story());
        lab.start(0);
        lab.looking(ms(3_000));
        assert_eq!(lab.owners(), [0], "{}", lab.story());
    }
    assert!(resigned(&lab, 1) >= 3, "{}", lab.story());
    assert_eq!(lab.node(1).status(lab.now).vips[0].hold_down, None);
}

#[test]
fn a_full_owner_tells_its_peers_and_raises_an_alarm() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].plane = Some(full());
    lab.looking(ms(1_000));
    let (here, there) = (lab.node(0).status(lab.now), lab.node(1).status(lab.now));
    assert_eq!(here.verdict, crate::status::Verdict::Degraded);
    assert!(here.warnings.iter().any(|w| w.text.contains("100 of 100 connections")), "{:?}", here.warnings);
    assert_eq!((here.vips[0].fitness.as_str(), here.vips[0].standing.as_str()), ("fit", "full"));
    assert_eq!(there.peers[0].verdicts["proxy"], "saturated");
    assert_eq!(there.vips[0].peers[0].standing.as_deref(), Some("full"));
}

#[test]
fn an_empty_pool_stays_while_every_pool_is_empty_and_leaves_for_one_that_is_not() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].plane = Some(pool(0));
    lab.hosts[0].probes = Probes::Status;
    // The peer's balancer finds out within its own interval.
    lab.looking(ms(2_000));
    lab.hosts[1].plane = Some(pool(0));
    lab.hosts[1].probes = Probes::Status;
    lab.looking(ms(10_000));
    assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![0], 0), "{}", lab.story());
    assert_eq!((verdict(&lab, 0), verdict(&lab, 1)), (Verdict::PoolEmpty, Verdict::PoolEmpty));
    assert!(lab.unowned_max.is_zero());
    lab.hosts[1].plane = Some(pool(2));
    lab.hosts[1].probes = Probes::Good;
    lab.looking(ms(2_000));
    assert_eq!(lab.owners(), [0], "ours may be the last to find out\n{}", lab.story());
    lab.looking(ms(2_000));
    assert_eq!(lab.owners(), [1], "now that one has backends\n{}", lab.story());
}

#[test]
fn an_empty_pool_is_not_left_for_a_full_one() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[1].plane = Some(full());
    lab.looking(ms(1_000));
    lab.hosts[0].plane = Some(pool(0));
    lab.hosts[0].probes = Probes::Status;
    lab.looking(ms(10_000));
    assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![0], 0), "{}", lab.story());
}

#[test]
fn a_balancer_that_says_it_stops_is_left_at_once_if_somebody_can() {
    let mut lab = looked_at(&[254, 253]);
    lab.hosts[0].plane = Some(PlaneReport { leaving: true, ..pool(3) });
    lab.looking(ms(20));
    assert_eq!(lab.owners(), [1]);
    lab.hosts[1].plane = Some(PlaneReport { leaving: true, ..pool(3) });
    lab.looking(ms(5_000));
    assert_eq!(lab.owners(), [1], "nobody else does better");
}

#[test]
fn what_serves_though_something_is_odd_stays_where_it_is() {
    let reload = Reload { failed: 1, ..Reload::default() };
    for (odd, expected) in [
        (PlaneReport { supervised: false, ..pool(3) }, Verdict::Unsupervised),
        (PlaneReport { reload, ..pool(3) }, Verdict::BadReload),
    ] {
        let mut lab = looked_at(&[254, 253]);
        lab.hosts[0].plane = Some(odd);
        lab.looking(ms(5_000));
        assert_eq!((verdict(&lab, 0), standing(&lab, 0)), (expected, Standing::Degraded));
        assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![0], 0));
        assert_eq!(lab.node(0).status(lab.now).vips[0].priority, 254, "an owner keeps its priority");
        assert_eq!(lab.node(0).status(lab.now).verdict, crate::status::Verdict::Degraded);
    }
}

#[test]
fn a_reload_changes_nothing_but_the_journal() {
    let mut lab = looked_at(&[254, 253]);
    let before = lab.node(0).plan().vips[0].clone();
    let since = lab.at();
    let old = (1..200).map(|pid| OldWorker { pid, since: lab.now }).collect();
    lab.hosts[0].plane =
        Some(PlaneReport { reload: Reload { running: true, generation: 2, failed: 0, old }, ..pool(3) });
    lab.looking(ms(2_000));
    assert_eq!(verdict(&lab, 0), Verdict::Reloading);
    assert_eq!(lab.node(0).plan().vips[0], before);
    assert!(!lab.log_since(0, since).iter().any(|o| matches!(o, Output::State { .. })));
    assert_eq!(lab.node(0).status(lab.now).balancers[0].old.len(), OLD_WORKERS_MAX, "bounded");
    assert!(lab.has(0, |k| matches!(k, Kind::BalancerVerdict { to, .. } if to == "reloading")));
}

#[test]
fn a_full_connection_table_keeps_what_it_has_and_takes_what_nobody_else_takes() {
    let mut lab = looked_at(&[254, 253]);
    for i in 0..2 {
        lab.feed(i, table(99));
    }
    lab.looking(ms(2_000));
    assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![0], 0));
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.conntrack.as_ref().map(|c| c.level.as_str()), Some("full"));
    assert!(lab.has(0, |k| matches!(k, Kind::ConntrackLevel { to, .. } if to == "full")));
    lab.crash(0);
    lab.looking(ms(3_000));
    assert_eq!(lab.owners(), [1], "alone it takes it");
}

#[test]
fn without_a_channel_a_sick_owner_is_preempted_by_one_that_serves_and_kept_where_none_does() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.hosts[0].probes = Probes::Status;
    lab.run(ms(3_000));
    assert_eq!((lab.owners(), resigned(&lab, 0)), (vec![1], 0), "{}", lab.story());
    lab.hosts[1].probes = Probes::Status;
    lab.run(ms(5_000));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0], "{}", lab.story());
}

#[test]
fn a_failing_check_of_every_node_moves_nothing_for_good() {
    let mut lab = looked_at(&[254, 253, 252]);
    for i in 0..3 {
        lab.hosts[i].probes = Probes::Bad;
    }
    lab.looking(ms(5_000));
    let owners = lab.owners();
    assert_eq!(owners.len(), 1);
    let moves = moves(&lab);
    lab.looking(ms(20_000));
    assert_eq!((lab.owners(), super::planes::moves(&lab)), (owners, moves), "{}", lab.story());
}

/// Times that any host became the owner.
pub(crate) fn moves(lab: &Lab) -> usize {
    let taken = |kind: &&Kind| matches!(kind, Kind::VipState { to, .. } if to == "active");
    (0..lab.hosts.len()).map(|i| lab.kinds(i).into_iter().filter(taken).count()).sum()
}

/// Routers that know the way to the VIP through these hosts.
fn ways(lab: &Lab) -> Vec<usize> {
    lab.routers[0].ways(VIP)
}

#[test]
fn announcers_that_are_all_sick_stay_and_one_that_is_sick_alone_goes() {
    let mut lab = Lab::announcing(3, 1, true);
    lab.hosts[0].probes = Probes::Status;
    lab.run(ms(200));
    assert_eq!(ways(&lab), [0, 1, 2], "not before the others can have seen the same");
    lab.run(ms(2_000));
    assert_eq!(ways(&lab), [1, 2], "{}", lab.story());
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(3_000));
    assert_eq!(ways(&lab), [0, 1, 2], "{}", lab.story());
    (0..3).for_each(|i| lab.hosts[i].probes = Probes::Status);
    lab.run(ms(5_000));
    assert_eq!(ways(&lab), [0, 1, 2], "{}", lab.story());
    assert!(lab.node(0).status(lab.now).vips[0].fail_open);
}

#[test]
fn an_announcer_that_is_full_goes_on_and_one_with_a_full_table_begins_only_where_it_is_needed() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(3_000));
    assert_eq!(ways(&lab), [0, 1], "{}", lab.story());
    lab.hosts[0].plane = Some(answers());
    lab.hosts[0].probes = Probes::Good;
    lab.looking(ms(1_000));
    lab.kill_balancer(0);
    lab.run(ms(500));
    assert_eq!(ways(&lab), [1]);
    lab.feed(0, table(99));
    lab.revive_balancer(0);
    lab.run(ms(3_000));
    assert_eq!(ways(&lab), [1], "one is there, and that is enough\n{}", lab.story());
    lab.kill_balancer(1);
    lab.run(ms(1_000));
    assert_eq!(ways(&lab), [0], "now it is needed\n{}", lab.story());
}

#[test]
fn a_stall_shows_in_the_status_for_as_long_as_somebody_may_ask() {
    let mut lab = looked_at(&[254, 253]);
    lab.pause(0);
    lab.run(ms(900));
    lab.resume(0);
    lab.run(Duration::from_secs(1));
    let stall = lab.node(0).status(lab.now).stall.expect("it stood still");
    assert!(stall.late_ms >= 800 && stall.age_ms >= 1_000, "{stall:?}");
}

//! What is thought of a balancer, by each piece of evidence: the tables of verdicts.

use super::lab::*;
use super::planes::*;
use crate::config::{BalancerId, CheckId, VipId};
use crate::io::*;
use crate::journal::Kind;
use crate::plane::{Sign, Verdict};
use crate::{Input, Output};

/// The verdict on the first host's balancer after it has been like this for a while.
fn after(probes: Probes, report: Option<PlaneReport>) -> (Lab, Verdict) {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].probes = probes;
    lab.hosts[0].plane = report;
    lab.looking(ms(2_000));
    let verdict = verdict(&lab, 0);
    (lab, verdict)
}

#[test]
fn each_class_has_its_evidence() {
    let one = |now| Some(Level { now, limit: 100 });
    let reload = |failed, running| Reload { failed, running, ..Reload::default() };
    let (none, some) = (Some(Pool { up: 0, total: 3 }), Some(Pool { up: 1, total: 3 }));
    let table = [
        ("no look", Probes::Good, None, Verdict::Serving),
        ("all well", Probes::Good, Some(answers()), Verdict::Serving),
        ("refused, no look", Probes::Bad, None, Verdict::Failing),
        ("silent, no look", Probes::Silent, None, Verdict::Failing),
        ("503, no look", Probes::Status, None, Verdict::Sick),
        ("silent, but the admin side answers", Probes::Silent, Some(answers()), Verdict::Failing),
        ("silent and stopped", Probes::Silent, Some(stopped()), Verdict::Hung),
        ("silent without progress", Probes::Silent, Some(stuck()), Verdict::Hung),
        ("a silent admin side alone", Probes::Good, Some(stuck()), Verdict::Serving),
        ("connections", Probes::Good, Some(PlaneReport { connections: one(100), ..answers() }), Verdict::Saturated),
        (
            "one connection left",
            Probes::Good,
            Some(PlaneReport { connections: one(99), ..answers() }),
            Verdict::Serving,
        ),
        ("queue", Probes::Silent, Some(PlaneReport { queue: one(101), ..answers() }), Verdict::Saturated),
        ("descriptors", Probes::Bad, Some(PlaneReport { files: one(97), ..answers() }), Verdict::Saturated),
        ("full and stopped", Probes::Silent, Some(PlaneReport { queue: one(101), ..stopped() }), Verdict::Hung),
        ("503 with backends", Probes::Status, Some(PlaneReport { backends: some, ..answers() }), Verdict::Sick),
        ("503 without", Probes::Status, Some(PlaneReport { backends: none, ..answers() }), Verdict::PoolEmpty),
        (
            "no backends, and a good page",
            Probes::Good,
            Some(PlaneReport { backends: none, ..answers() }),
            Verdict::PoolEmpty,
        ),
        ("leaving", Probes::Good, Some(PlaneReport { leaving: true, ..answers() }), Verdict::Leaving),
        ("orphans", Probes::Good, Some(PlaneReport { supervised: false, ..answers() }), Verdict::Unsupervised),
        ("refused file", Probes::Good, Some(PlaneReport { reload: reload(2, false), ..answers() }), Verdict::BadReload),
        ("reload", Probes::Good, Some(PlaneReport { reload: reload(0, true), ..answers() }), Verdict::Reloading),
    ];
    for (what, probes, report, expected) in table {
        let (lab, verdict) = after(probes, report);
        assert_eq!(verdict, expected, "{what}: {:?}", lab.node(0).world().balancers[0].judged);
    }
}

#[test]
fn nginx_that_is_too_full_to_answer_for_itself_is_full_as_long_as_it_works() {
    use crate::config::BalancerKind::{Haproxy, Nginx};
    let queue = Some(Level { now: 600, limit: 511 });
    for (kind, stopped, expected) in
        [(Nginx, false, Verdict::Saturated), (Nginx, true, Verdict::Hung), (Haproxy, false, Verdict::Failing)]
    {
        let mut lab = Lab::settled_with(&[254, 253], true, |config| config.balancers[0].kind = kind);
        lab.hosts[0].probes = Probes::Silent;
        for ticks in 0..8 {
            let report = PlaneReport { queue, stopped, cpu_ticks: Some(ticks), ..stuck() };
            lab.feed(0, Input::Plane { balancer: BalancerId(0), report });
            lab.run(ms(200));
        }
        assert_eq!(verdict(&lab, 0), expected);
    }
}

#[test]
fn of_many_checks_that_fail_together_a_few_are_named_and_all_are_counted() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        for n in 1..100 {
            let check = crate::config::Check { name: name(&format!("page-{n}")), ..config.checks[0].clone() };
            config.checks.push(check);
        }
        config.vips[0].checks = (0..100).map(CheckId).collect();
    });
    lab.hosts[0].probes = Probes::Bad;
    lab.run(ms(1_000));
    let judged = &lab.node(0).world().balancers[0].judged;
    assert_eq!(judged.verdict, Verdict::Failing);
    assert_eq!(judged.evidence.len(), 9, "{judged:?}");
    assert_eq!(judged.evidence[8].sign, Sign::MoreChecks(92));
}

#[test]
fn a_dead_one_is_dead_whatever_was_seen_before() {
    let (mut lab, _) = after(Probes::Good, Some(answers()));
    lab.kill_balancer(0);
    assert_eq!(verdict(&lab, 0), Verdict::Dead);
    lab.looking(ms(600));
    assert_eq!(verdict(&lab, 0), Verdict::Dead, "a late look says nothing");
    assert!(lab.node(0).world().balancers[0].plane.is_none());
}

#[test]
fn looks_that_no_longer_come_excuse_nothing() {
    let (mut lab, full) = after(Probes::Silent, Some(full()));
    assert_eq!((full, lab.owners()), (Verdict::Saturated, vec![0]));
    lab.run(ms(4_500));
    assert_eq!(verdict(&lab, 0), Verdict::Failing);
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn evidence_keeps_its_age_while_its_figures_change() {
    let (mut lab, _) = after(Probes::Good, Some(full()));
    let report = PlaneReport { connections: Some(Level { now: 90, limit: 100 }), ..answers() };
    lab.hosts[0].plane = Some(report);
    lab.looking(ms(1_000));
    let status = lab.node(0).status(lab.now);
    let balancer = &status.balancers[0];
    assert_eq!(balancer.verdict, "saturated");
    assert_eq!(balancer.evidence.len(), 1, "{balancer:?}");
    assert_eq!(balancer.evidence[0].what, "90 of 100 connections");
    assert_eq!((balancer.evidence[0].age_ms, balancer.verdict_age_ms), (3_000, 3_000));
    assert!(balancer.looked_age_ms.is_some_and(|age| age <= 500));
}

#[test]
fn silence_between_answers_is_no_silence_until_fall_of_them_in_a_row_are() {
    let (mut lab, sick) = after(Probes::Status, Some(pool(1)));
    assert_eq!(sick, Verdict::Sick);
    // At any phase of the probes, never two of them silent in a row.
    for _ in 0..20 {
        lab.hosts[0].probes = Probes::Silent;
        lab.looking(ms(60));
        lab.hosts[0].probes = Probes::Status;
        lab.looking(ms(110));
        assert_eq!(verdict(&lab, 0), Verdict::Sick);
    }
    assert!(!lab.has(0, |k| matches!(k, Kind::BalancerVerdict { to, .. } if to == "failing")));
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(500));
    assert_eq!(verdict(&lab, 0), Verdict::Failing);
}

#[test]
fn one_that_was_full_has_the_time_to_pass_its_check_again() {
    let resigned = |lab: &Lab| lab.has(0, |k| matches!(k, Kind::Resign { .. }));
    let (mut lab, full) = after(Probes::Silent, Some(full()));
    assert_eq!(full, Verdict::Saturated);
    lab.hosts[0].plane = Some(answers());
    lab.looking(ms(1));
    assert_eq!(verdict(&lab, 0), Verdict::Saturated, "its check had no chance to pass yet");
    let mut well = lab;
    well.hosts[0].probes = Probes::Good;
    well.looking(ms(1_500));
    assert_eq!((verdict(&well, 0), resigned(&well)), (Verdict::Serving, false));
    let (mut lab, _) = after(Probes::Silent, Some(super::planes::full()));
    lab.hosts[0].plane = Some(answers());
    lab.looking(ms(1_500));
    assert!(resigned(&lab), "nothing excuses it any longer");
}

#[test]
fn a_look_is_asked_for_at_the_first_failure_and_not_again() {
    let mut lab = Lab::settled(&[254, 253], true);
    let since = lab.at();
    lab.hosts[0].probes = Probes::Silent;
    lab.run(ms(1_000));
    let looks = |lab: &Lab| lab.log_since(0, since).iter().filter(|o| matches!(o, Output::Look { .. })).count();
    assert_eq!(looks(&lab), 1);
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(1_000));
    lab.hosts[0].probes = Probes::Silent;
    lab.run(ms(1_000));
    assert_eq!(looks(&lab), 2, "it had passed in between");
}

#[test]
fn a_check_of_what_all_share_says_nothing_of_a_balancer() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.checks[0].shared = true);
    lab.hosts[0].probes = Probes::Bad;
    lab.run(ms(1_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Serving, vec![0]));
}

#[test]
fn a_page_that_fails_on_one_vip_moves_that_one() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        let second = crate::config::Check { name: name("other"), ..config.checks[0].clone() };
        config.checks.push(second);
        let mut other = vip("other", VIP2, 11, config.vips[0].vrrp.priority.get());
        other.balancers = config.vips[0].balancers.clone();
        other.checks = vec![CheckId(1)];
        config.vips.push(other);
    });
    let before = lab.node(0).world().vips[1].state;
    lab.hosts[0].probes = Probes::StatusOf(CheckId(0));
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [1], "its own VIP moves");
    assert_eq!(verdict(&lab, 0), Verdict::Sick);
    assert_eq!(lab.node(0).world().vips[1].state, before, "it has nothing to do with that");
    let plan = &lab.node(0).plan().vips[usize::from(VipId(1).0)];
    assert_eq!(plan.standing, crate::plane::Standing::Good, "{:?}", plan.reasons);
}

#[test]
fn the_journal_names_the_check_behind_the_verdict_and_the_verdict_behind_the_move() {
    let (lab, verdict) = after(Probes::Silent, Some(stopped()));
    assert_eq!(verdict, Verdict::Hung);
    let events: Vec<_> = lab.hosts[0].events.iter().map(|(_, e)| e).collect();
    let hung = events.iter().find(|e| matches!(&e.kind, Kind::BalancerVerdict { to, .. } if to == "hung"));
    let hung = hung.expect("it is said");
    let cause = events.iter().find(|e| Some(e.id) == hung.cause).expect("a cause");
    assert!(matches!(cause.kind, Kind::CheckState { passed: false, .. } | Kind::ProbeFailed { .. }), "{cause:?}");
    assert!(matches!(&hung.kind, Kind::BalancerVerdict { why, .. } if why.contains("stopped")), "{hung:?}");
}

#[test]
fn signs_of_one_kind_are_told_apart_by_their_check() {
    let (a, b) = (Sign::CheckSilent("a".to_owned()), Sign::CheckSilent("b".to_owned()));
    assert!(!a.same_kind(&b) && a.same_kind(&a));
    let level = |now| Sign::Connections(Level { now, limit: 9 });
    assert!(level(1).same_kind(&level(2)) && !level(1).same_kind(&Sign::Queue(Level { now: 1, limit: 9 })));
}

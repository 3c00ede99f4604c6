//! A pair with a channel: "take it now", fail open, claims.

use super::lab::*;
use crate::journal::Kind;
use crate::{Input, Output, Step};
use holdfast_statesync::message::{ClaimCause, Message};
use std::time::Duration;

fn position(log: &[&Output], test: impl Fn(&Output) -> bool) -> usize {
    log.iter().position(|o| test(o)).unwrap_or_else(|| panic!("not in {log:?}"))
}

fn became_active(lab: &Lab, i: usize) -> usize {
    lab.kinds(i).iter().filter(|k| matches!(k, Kind::VipState { to, .. } if to == "active")).count()
}

#[test]
fn a_pair_settles_and_each_knows_the_other() {
    let lab = Lab::settled(&[254, 253], true);
    let status = lab.node(1).status(lab.now);
    assert_eq!(status.vips[0].owner.as_deref(), Some("lb0"));
    assert_eq!(status.verdict, crate::status::Verdict::Ok, "{status:?}");
    assert!(status.peers[0].reachable);
    assert_eq!(status.vips[0].peers[0].role, "active");
    assert_eq!(status.peers[0].balancers["proxy"], "fit");
}

#[test]
fn a_dead_balancer_hands_over_within_a_millisecond_in_the_order_that_saves_most_time() {
    let mut lab = Lab::settled(&[254, 253], true);
    // At a moment at which nothing else is due.
    lab.run(ms(7));
    let since = lab.at();
    lab.kill_balancer(0);
    let took = lab.until(ms(10), |lab| lab.owners() == [1]);
    assert!(took <= ms(1), "{took:?}");
    let log = lab.log_since(0, since);
    let advert = position(&log, |o| matches!(o, Output::Advert { .. }));
    let datagram = position(&log, |o| matches!(o, Output::Datagram { .. }));
    let ledger = position(&log, |o| matches!(o, Output::Owner(r) if !r.active));
    let removal = position(&log, |o| matches!(o, Output::Step(Step::RemoveAddress { .. })));
    let event = position(&log, |o| matches!(o, Output::Event(_)));
    assert!(advert < datagram && datagram < ledger && ledger < removal && removal < event, "{log:?}");
    let log = lab.log_since(1, since);
    let ledger = position(&log, |o| matches!(o, Output::Owner(r) if r.active));
    let addition = position(&log, |o| matches!(o, Output::Step(Step::AddAddress { .. })));
    let announcement = position(&log, |o| matches!(o, Output::Step(Step::Announce { .. })));
    let advert = position(&log, |o| matches!(o, Output::Advert { .. }));
    let datagram = position(&log, |o| matches!(o, Output::Datagram { .. }));
    assert!(ledger < advert && advert < addition && addition < announcement && announcement < datagram, "{log:?}");
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.dual_max.is_zero());
}

#[test]
fn the_journal_tells_what_caused_what() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].probes = Probes::Bad;
    lab.run(ms(1_000));
    let events: Vec<_> = lab.hosts[0].events.iter().map(|(_, e)| e).collect();
    assert!(events.windows(2).all(|w| w[1].id == w[0].id + 1), "ids grow by one");
    let find = |test: &dyn Fn(&Kind) -> bool| *events.iter().find(|e| test(&e.kind)).expect("such an event");
    let took = find(&|k| matches!(k, Kind::PeerTook { .. }));
    let resign = find(&|k| matches!(k, Kind::Resign { .. }));
    let unfit = find(&|k| matches!(k, Kind::VipFitness { to, .. } if to == "unfit"));
    let check = find(&|k| matches!(k, Kind::CheckState { passed: false, .. }));
    assert_eq!(took.cause, Some(resign.id));
    assert_eq!(resign.cause, Some(unfit.id));
    assert_eq!(unfit.cause, Some(check.id));
    let probe = events.iter().find(|e| Some(e.id) == check.cause).expect("a cause");
    assert!(matches!(probe.kind, Kind::ProbeFailed { .. }));
    let text = serde_json::to_string(took).expect("JSON");
    assert_eq!(&serde_json::from_str::<crate::journal::Event>(&text).expect("an event"), took);
}

#[test]
fn a_hung_balancer_is_left_after_fall_probes_ran_out() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].probes = Probes::Silent;
    let took = lab.until(ms(1_000), |lab| lab.owners() == [1]);
    // At worst: a whole interval until the first, 50 ms (fast) to the second, its timeout of 40 ms.
    assert!(took <= ms(192), "{took:?}");
    lab.run(ms(500));
    assert!(lab.node(0).status(lab.now).counters["checks_late"] > 0, "late answers are ignored and counted");
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn when_every_balancer_is_dead_the_holder_stays_and_hands_over_to_the_first_that_recovers() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.kill_balancer(1);
    lab.run(ms(500));
    lab.kill_balancer(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero(), "never without an owner by our own choice");
    assert!(lab.has(0, |k| matches!(k, Kind::FailOpen { .. })));
    let status = lab.node(0).status(lab.now);
    assert_eq!((status.verdict, status.vips[0].priority), (crate::status::Verdict::Degraded, 1));
    lab.revive_balancer(1);
    lab.run(ms(1_500));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.dual_max <= ms(1), "{:?}", lab.dual_max);
}

#[test]
fn an_unfit_holder_whose_peer_is_silent_resigns_then_takes_back() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    lab.run(ms(1_000));
    lab.kill_balancer(0);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.has(0, |k| matches!(k, Kind::Resign { to: None, .. })), "a stale word names nobody");
    assert!(lab.unowned_max <= ms(401), "{:?}", lab.unowned_max);
}

#[test]
fn an_isolated_holder_yields_to_a_claimer_that_does_not_answer_its_probe() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.isolate(0, true);
    let took = lab.until(ms(1_000), |lab| lab.owners() == [1]);
    // At worst a down time of 301.2 ms, then two tries of 20 ms.
    assert!(took <= ms(345), "{took:?}");
    lab.run(ms(5_000));
    assert_eq!(lab.owners(), [1], "it does not take it back while the claimer lives");
    assert_eq!(became_active(&lab, 1), 1, "and they do not probe each other in turn\n{}", lab.story());
    lab.dual_max = Duration::ZERO;
    lab.isolate(0, false);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
}

#[test]
fn a_holder_whose_successor_vanishes_takes_back_what_it_yielded() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.isolate(0, true);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [1]);
    lab.crash(1);
    lab.run(ms(1_000));
    assert_eq!(lab.node(0).world().vips[0].state, holdfast_vrrp::State::Active);
}

#[test]
fn a_holder_whose_adverts_alone_are_lost_keeps_the_vip() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.mute.insert(0);
    lab.run(ms(5_000));
    assert_eq!(lab.owners(), [0]);
    assert_eq!(became_active(&lab, 1), 1, "{}", lab.story());
    assert!(lab.dual_max <= ms(2), "{:?}", lab.dual_max);
    assert!(lab.has(0, |k| matches!(k, Kind::ClaimProbed { answered: true, .. })));
    assert!(lab.has(0, |k| matches!(k, Kind::Reasserted { .. })));
    lab.mute.clear();
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    lab.crash(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1], "what it yielded to is over");
}

#[test]
fn an_owner_that_is_heard_by_nobody_but_hears_the_other_does_not_own_beside_it() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.cut.insert((0, 1));
    lab.run(ms(600));
    let mut dual = 0;
    for _ in 0..10_000 {
        lab.run(ms(1));
        dual += usize::from(lab.owners().len() > 1);
        assert!(!lab.owners().is_empty());
    }
    // Tried again after 1, 2, 4 … s, each time for one interval.
    assert!(dual <= 5 * 102, "{dual} ms\n{}", lab.story());
    lab.cut.clear();
    lab.run(ms(60_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_resignation_is_the_last_word_of_its_turn() {
    let mut lab = Lab::settled(&[254, 253], false);
    // The balancer dies at the very instant of a regular advert.
    let due = lab.node(0).vips[0].router.poll_timeout().expect("an armed timer");
    lab.run(due - lab.now - Duration::from_nanos(1));
    lab.now = due;
    let since = lab.at();
    lab.kill_balancer(0);
    let log = lab.log_since(0, since);
    let adverts = log.iter().filter(|o| matches!(o, Output::Advert { .. })).count();
    assert_eq!(adverts, 1, "{log:?}");
    lab.run(ms(5));
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn a_lost_carrier_hands_over_at_once_and_drops_the_address() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.link(0, false);
    lab.run(ms(1));
    assert_eq!(lab.owners(), [1]);
    assert!(!lab.hosts[0].kernel.contains_key(&(2, VIP, 32)));
    lab.run(ms(3_000));
    lab.link(0, true);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
}

#[test]
fn a_flapping_link_leaves_one_owner() {
    let mut lab = Lab::settled(&[254, 253], true);
    for i in 0..20 {
        lab.link(0, i % 2 == 1);
        lab.run(ms(7 + 13 * (i % 5)));
    }
    lab.link(0, true);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
}

#[test]
fn a_holder_that_can_not_send_hands_over_after_two_intervals_and_tries_again_later() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].send_errno = Some(1);
    let took = lab.until(ms(1_000), |lab| lab.owners() == [1]);
    assert!(took <= ms(310), "{took:?}");
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
    lab.hosts[0].send_errno = None;
    lab.run(ms(500));
    assert_eq!(lab.owners(), [1], "not at once");
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn the_first_advert_after_a_gap_is_followed_by_announcements() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.run(ms(5_000));
    lab.hosts[0].send_errno = Some(1);
    lab.until(ms(200), |lab| lab.has(0, |k| matches!(k, Kind::SendFailed { .. })));
    lab.hosts[0].send_errno = None;
    let since = lab.at();
    lab.run(ms(110));
    let log = lab.log_since(0, since);
    assert!(log.iter().any(|o| matches!(o, Output::Step(Step::Announce { .. }))), "{log:?}");
    assert!(lab.has(0, |k| matches!(k, Kind::SendRecovered { .. })));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_stale_take_now_changes_nothing() {
    let mut lab = Lab::settled(&[254, 253], true);
    let peer = holdfast_statesync::channel::PeerId(0);
    let (epoch, role_epoch) = {
        let view = &lab.node(1).world().peers[0];
        (view.epoch, view.vips[&W].1.role_epoch)
    };
    let now = lab.now;
    let mut tell = |epoch: u64, message: Message| {
        let node = lab.hosts[1].node.as_mut().expect("a node");
        node.on_message(now, peer, epoch, message);
        node.world().vips[0].state
    };
    let take = |role_epoch| Message::TakeNow { vip: "web".to_owned(), role_epoch, linger: false };
    use holdfast_vrrp::State::{Active, Backup};
    assert_eq!(tell(epoch, take(role_epoch - 1)), Backup, "older than its last report");
    assert_eq!(tell(epoch - 1, take(role_epoch)), Backup, "of a former run");
    let unknown = Message::TakeNow { vip: "other".to_owned(), role_epoch, linger: false };
    assert_eq!(tell(epoch, unknown), Backup, "a VIP that isn't here");
    let keep = Message::Keep { vip: "web".to_owned(), role_epoch };
    assert_eq!(tell(epoch, keep), Backup);
    assert_eq!(tell(epoch, take(role_epoch)), Active, "this one is current");
}

#[test]
fn keep_without_a_claim_of_ours_changes_nothing() {
    let mut lab = Lab::settled(&[254, 253], true);
    let view = &lab.node(0).world().peers[0];
    let (epoch, role_epoch) = (view.epoch, view.vips[&W].1.role_epoch);
    let now = lab.now;
    let node = lab.hosts[0].node.as_mut().expect("a node");
    let keep = Message::Keep { vip: "web".to_owned(), role_epoch };
    node.on_message(now, holdfast_statesync::channel::PeerId(0), epoch, keep);
    assert_eq!(node.world().vips[0].state, holdfast_vrrp::State::Active);
}

#[test]
fn a_claim_after_preemption_is_no_contest() {
    let mut lab = Lab::settled(&[254, 253], true);
    let view = &lab.node(0).world().peers[0];
    let (epoch, role_epoch) = (view.epoch, view.vips[&W].1.role_epoch);
    let now = lab.now;
    let node = lab.hosts[0].node.as_mut().expect("a node");
    let (vip, probe) = ("web".to_owned(), source(1).into());
    let claim = Message::Claim { vip, role_epoch, cause: ClaimCause::Preempt, probe };
    node.on_message(now, holdfast_statesync::channel::PeerId(0), epoch, claim);
    lab.run(ms(1_000));
    assert!(!lab.has(0, |k| matches!(k, Kind::Claimed { .. })));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn three_nodes_settle_again_after_each_loss() {
    let mut lab = Lab::settled(&[254, 253, 252], true);
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1]);
    lab.crash(1);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [2]);
    lab.start(1);
    lab.revive_balancer(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
}

#[test]
fn between_two_reports_of_all_a_change_is_told_by_itself() {
    const VIPS: u8 = 60;
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        for n in 1..VIPS {
            let priority = config.vips[0].vrrp.priority.get();
            config.vips.push(vip(
                &format!("w{n}"),
                std::net::Ipv4Addr::new(192, 0, 2, 20 + n).into(),
                10 + n,
                priority,
            ));
        }
    });
    lab.run(ms(1_000));
    let said = |lab: &Lab, since| -> usize {
        let sent = lab.log_since(0, since).into_iter();
        sent.map(|output| if let Output::Datagram { bytes, .. } = output { bytes.len() } else { 0 }).sum()
    };
    // Full reports of a quiet second, and of one in which a unit goes away and comes back five times.
    let quiet = lab.at();
    lab.run(ms(1_000));
    let (report, busy) = (said(&lab, quiet) / 10, lab.at());
    for _ in 0..5 {
        let role_epoch = lab.node(0).world().vips[0].role_epoch;
        lab.feed(0, Input::Lapsed { vip: W, role_epoch });
        lab.run(ms(200));
        assert_eq!(
            lab.node(1).world().peers[0].vip(W, lab.now).map(|report| report.role_epoch),
            Some(lab.node(0).world().vips[0].role_epoch)
        );
    }
    let more = said(&lab, busy).saturating_sub(10 * report);
    assert!(more < 3 * report, "{more} bytes beside the regular reports of {report} each");
}

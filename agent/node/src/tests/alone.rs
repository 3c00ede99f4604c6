//! Nodes without a channel: RFC 9568 alone.

use super::lab::*;
use crate::config::LastNode;
use crate::drain::LAST_NODE;
use crate::io::Answer;
use crate::journal::Kind;
use holdfast_vrrp::State;

#[test]
fn a_pair_without_a_channel_settles_on_the_higher_priority() {
    let lab = Lab::settled(&[254, 253], false);
    assert_eq!(lab.owners(), [0]);
    assert!(lab.hosts[0].kernel[&(2, VIP, 32)].0, "the address carries our mark");
}

#[test]
fn a_dead_balancer_makes_the_holder_resign_at_once() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.kill_balancer(0);
    let took = lab.until(ms(100), |lab| lab.owners() == [1]);
    assert!(took <= ms(2), "skew of priority 253 at 100 ms is 1.2 ms: {took:?}");
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.dual_max.is_zero());
    assert!(!lab.has(0, |k| matches!(k, Kind::FailOpen { .. })));
}

#[test]
fn an_unfit_node_takes_back_what_nobody_took_and_says_so() {
    let mut lab = Lab::settled(&[254], false);
    lab.kill_balancer(0);
    lab.run(ms(1));
    assert!(lab.owners().is_empty());
    // Active_Down at priority 1: 3 × 100 ms + 255/256 × 100 ms.
    lab.run(ms(400));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.has(0, |k| matches!(k, Kind::FailOpen { .. })));
    lab.run(ms(3_000));
    let resigned = lab.kinds(0).iter().filter(|k| matches!(k, Kind::Resign { .. })).count();
    assert_eq!(resigned, 1, "it stays, and does not resign again and again\n{}", lab.story());
    lab.revive_balancer(0);
    lab.run(ms(500));
    assert_eq!(lab.node(0).status(lab.now).vips[0].priority, 254);
}

#[test]
fn an_unfit_node_that_withdraws_leaves_for_good() {
    let mut lab = Lab::new(&[254], false);
    lab.hosts[0].config.vips[0].last_node = LastNode::Withdraw;
    lab.start(0);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    lab.kill_balancer(0);
    lab.run(ms(3_000));
    assert!(lab.owners().is_empty());
    lab.revive_balancer(0);
    lab.run(ms(1_500));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_node_whose_checks_fail_from_the_start_takes_a_vip_that_nobody_owns() {
    let mut lab = Lab::new(&[254], false);
    lab.hosts[0].probes = Probes::Bad;
    lab.start(0);
    lab.run(ms(390));
    assert!(lab.owners().is_empty(), "it listens for a down time first");
    lab.run(ms(20));
    assert_eq!(lab.owners(), [0]);
    assert_eq!(lab.node(0).status(lab.now).vips[0].priority, 1);
    assert!(lab.has(0, |k| matches!(k, Kind::FailOpen { .. })));
}

#[test]
fn a_fit_node_preempts_one_that_keeps_as_last_resort() {
    let mut lab = Lab::new(&[254, 253], false);
    lab.hosts[0].probes = Probes::Bad;
    lab.start(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    lab.start(1);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.dual_max <= ms(2), "{:?}", lab.dual_max);
}

#[test]
fn a_restarted_node_does_not_preempt_before_its_checks_have_passed() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.crash(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
    lab.hosts[0].probes = Probes::Bad;
    lab.start(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_drain_without_a_channel_moves_to_a_peer_that_takes_over() {
    let mut lab = Lab::settled(&[254, 253], false);
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))), "{}", lab.story());
    assert_eq!(lab.owners(), [1]);
    assert!(lab.unowned_max.is_zero(), "the address stays until the successor is seen");
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn a_drain_without_a_channel_is_taken_back_when_nobody_takes_over() {
    let mut lab = Lab::settled(&[254], false);
    let token = lab.drain(0, &[], false);
    assert!(lab.hosts[0].intents.drain.is_some());
    lab.run(ms(1_000));
    assert!(
        matches!(lab.answer(0, token), Some(Answer::Refused { interlock, .. }) if interlock == LAST_NODE),
        "{:?}",
        lab.hosts[0].answers
    );
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
    assert_eq!(lab.hosts[0].intents.drain, None);
    assert!(!lab.has(0, |k| matches!(k, Kind::FailOpen { .. })), "it can serve: {}", lab.story());
}

#[test]
fn a_forced_drain_without_a_channel_leaves_the_vip_to_nobody() {
    let mut lab = Lab::settled(&[254], false);
    let token = lab.drain(0, &[LAST_NODE], false);
    lab.run(ms(2_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))));
    assert!(lab.owners().is_empty());
}

#[test]
fn a_lone_node_that_stops_says_so_loudly_and_releases_everything() {
    let mut lab = Lab::settled(&[254], false);
    lab.feed(0, crate::Input::Stop { deadline: ms(5_000) });
    lab.run(ms(2_000));
    assert!(lab.hosts[0].stopped);
    assert!(lab.owners().is_empty());
    assert!(lab.hosts[0].sockets.is_empty());
    assert!(lab.has(0, |k| matches!(k, Kind::LastNode { .. })));
    assert_eq!(lab.node(0).poll_timeout(), None);
}

#[test]
fn a_node_stops_within_its_deadline_even_if_nobody_takes_over() {
    let mut lab = Lab::settled(&[254], false);
    lab.feed(0, crate::Input::Stop { deadline: ms(100) });
    lab.run(ms(100));
    assert!(lab.hosts[0].stopped);
    assert!(lab.owners().is_empty());
}

#[test]
fn a_resumed_worker_is_active_at_once_with_the_same_role_epoch() {
    let mut lab = Lab::settled(&[254, 253], false);
    let epoch = lab.node(0).world().vips[0].role_epoch;
    lab.crash(0);
    lab.run(ms(100));
    let since = lab.at();
    lab.boot(0, vec![("web".to_owned(), epoch)]);
    assert_eq!(lab.node(0).world().vips[0].state, State::Active);
    assert_eq!(lab.node(0).world().vips[0].role_epoch, epoch);
    let log = lab.log_since(0, since);
    let at = |test: &dyn Fn(&crate::Output) -> bool| log.iter().position(|o| test(o));
    let opened = at(&|o| matches!(o, crate::Output::Step(crate::Step::OpenVrrp { .. })));
    let sent = at(&|o| matches!(o, crate::Output::Advert { .. }));
    assert!(opened.is_some() && opened < sent, "{log:?}");
    assert!(!log.iter().any(|o| matches!(o, crate::Output::Step(crate::Step::RemoveAddress { .. }))));
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
    assert!(!lab.has(1, |k| matches!(k, Kind::VipState { to, .. } if to == "active")));
}

#[test]
fn a_resumed_worker_that_learns_nothing_for_a_second_counts_as_unfit() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.crash(0);
    lab.boot(0, vec![("web".to_owned(), 3)]);
    let why = "not looked at".to_owned();
    lab.balancer(0, crate::io::BalancerState::Unknown { why });
    lab.run(ms(900));
    assert_eq!(lab.owners(), [0]);
    lab.run(ms(200));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
}

#[test]
fn a_vip_that_the_keeper_gave_away_is_not_held_on_to() {
    let mut lab = Lab::settled(&[254, 253], false);
    let role_epoch = lab.node(0).world().vips[0].role_epoch;
    lab.feed(0, crate::Input::Lapsed { vip: W, role_epoch: role_epoch - 1 });
    assert_eq!(lab.node(0).world().vips[0].state, State::Active, "that was a former role");
    lab.feed(0, crate::Input::Lapsed { vip: W, role_epoch });
    assert_eq!(lab.node(0).world().vips[0].state, State::Backup);
    lab.run(ms(1));
    assert!(lab.owners().is_empty());
}

#[test]
fn an_active_that_stood_still_listens_then_asserts_itself() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.pause(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0, 1]);
    lab.resume(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
    assert!(lab.has(0, |k| matches!(k, Kind::Stalled { .. })));
    assert!(lab.has(0, |k| matches!(k, Kind::Reasserted { .. })));
}

#[test]
fn a_backup_that_stood_still_does_not_take_over() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.pause(1);
    lab.run(ms(1_000));
    lab.hosts[1].paused = false; // What arrived meanwhile is lost, as when a socket's buffer was full.
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert!(!lab.has(1, |k| matches!(k, Kind::VipState { to, .. } if to == "active")));
    assert!(lab.has(1, |k| matches!(k, Kind::Stalled { .. })));
}

#[test]
fn a_backup_is_out_at_the_first_failure_and_a_holder_at_fall() {
    let mut lab = Lab::settled(&[254, 253], false);
    for i in 0..2 {
        lab.hosts[i].probes = Probes::Bad;
    }
    // One probe of each fails, the next is good again.
    lab.until(ms(200), |lab| (0..2).all(|i| lab.has(i, |k| matches!(k, Kind::ProbeFailed { .. }))));
    for i in 0..2 {
        lab.hosts[i].probes = Probes::Good;
    }
    let fitness = |lab: &Lab, i: usize| lab.node(i).status(lab.now).vips[0].fitness.clone();
    assert_eq!(fitness(&lab, 0), "fit");
    assert_eq!(fitness(&lab, 1), "unfit");
    lab.run(ms(1_000));
    assert_eq!(fitness(&lab, 1), "fit");
    assert_eq!(lab.owners(), [0]);
}

//! Drain, undrain and stop of nodes with a channel.

use super::lab::*;
use crate::drain::{LAST_NODE, PEER_UNKNOWN};
use crate::io::{Answer, Request};
use crate::journal::Kind;

fn refused(answer: Option<&Answer>, by: &str) -> bool {
    matches!(answer, Some(Answer::Refused { interlock, .. }) if interlock == by)
}

#[test]
fn a_drain_moves_the_vip_without_a_gap_and_survives_a_restart() {
    let mut lab = Lab::settled(&[254, 253], true);
    let token = lab.drain(0, &[], false);
    lab.run(ms(100));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))), "{}", lab.story());
    assert_eq!(lab.owners(), [1]);
    assert!(lab.unowned_max.is_zero());
    assert!(lab.dual_max <= ms(2), "{:?}", lab.dual_max);
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.vips[0].fitness, "withheld");
    assert_eq!(
        status.drain.as_ref().map(|d| (d.reason.as_str(), d.phase.as_str())),
        Some(("kernel update", "drained"))
    );
    lab.crash(0);
    lab.run(ms(100));
    lab.start(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1], "the intent is stored");
    lab.crash(1);
    lab.run(ms(3_000));
    assert!(lab.owners().is_empty(), "a drained node is never Active");
}

#[test]
fn undrain_returns_by_preemption_without_a_gap() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.drain(0, &[], false);
    lab.run(ms(1_000));
    let token = lab.undrain(0);
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))));
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
    assert!(lab.dual_max <= ms(2), "{:?}", lab.dual_max);
    assert_eq!(lab.hosts[0].intents.drain, None);
}

#[test]
fn a_drain_of_a_backup_is_done_at_once() {
    let mut lab = Lab::settled(&[254, 253], true);
    let token = lab.drain(1, &[], false);
    assert!(matches!(lab.answer(1, token), Some(Answer::Done(_))));
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    let second = lab.drain(0, &[], false);
    assert!(refused(lab.answer(0, second), LAST_NODE), "the other one is drained");
}

#[test]
fn the_last_node_able_to_serve_refuses_and_nothing_changes() {
    super::guards::last_node_refuses().expect("the guard is on");
}

#[test]
fn a_peer_whose_word_is_stale_makes_a_drain_refuse_unless_forced_by_that_name() {
    super::guards::stale_word_refuses().expect("the guard is on");
    let mut lab = Lab::settled(&[254, 253], true);
    lab.cut_channels(0, true);
    lab.run(ms(500));
    let wrong = lab.drain(0, &[LAST_NODE], false);
    assert!(refused(lab.answer(0, wrong), PEER_UNKNOWN), "forced by another name");
    let unknown = lab.drain(0, &["everything"], false);
    assert!(refused(lab.answer(0, unknown), "everything"));
    let token = lab.drain(0, &[PEER_UNKNOWN], false);
    lab.run(ms(1_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))));
    assert_eq!(lab.owners(), [1], "the peer was there after all");
    assert!(lab.unowned_max.is_zero());
}

#[test]
fn a_forced_last_node_leaves_the_vip_to_nobody_until_undrained() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.kill_balancer(1);
    lab.run(ms(500));
    lab.hosts[1].config.vips[0].last_node = crate::config::LastNode::Withdraw;
    lab.crash(1);
    lab.run(ms(1_000));
    let token = lab.drain(0, &[LAST_NODE, PEER_UNKNOWN], false);
    lab.run(ms(2_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))));
    assert!(lab.owners().is_empty());
    lab.undrain(0);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_dry_run_says_what_would_happen_and_does_nothing() {
    let mut lab = Lab::settled(&[254, 253], true);
    let token = lab.drain(0, &[], true);
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(text)) if text == "would drain: web to lb1"));
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert_eq!(lab.hosts[0].intents.drain, None);
    lab.kill_balancer(1);
    lab.run(ms(500));
    let token = lab.drain(0, &[], true);
    assert!(refused(lab.answer(0, token), LAST_NODE));
}

#[test]
fn a_peer_that_dies_in_the_middle_is_said_and_the_node_keeps_the_vip() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::PeerLost(_))), "{}", lab.story());
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
    assert_eq!(lab.hosts[0].intents.drain, None);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    assert_eq!(lab.node(0).status(lab.now).vips[0].priority, 254);
}

#[test]
fn undrain_in_the_middle_aborts_the_drain() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    let token = lab.drain(0, &[], false);
    lab.run(ms(100));
    assert_eq!(lab.answer(0, token), None, "it still waits");
    lab.undrain(0);
    assert!(matches!(lab.answer(0, token), Some(Answer::Aborted(_))));
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
}

#[test]
fn a_second_drain_aborts_the_first() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    let first = lab.drain(0, &[], false);
    lab.run(ms(50));
    let second = lab.drain(0, &[], false);
    assert!(matches!(lab.answer(0, first), Some(Answer::Aborted(_))));
    lab.run(ms(1_000));
    assert!(matches!(lab.answer(0, second), Some(Answer::PeerLost(_))));
}

#[test]
fn a_drain_that_takes_too_long_says_so_and_goes_on() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    let (reason, who) = (String::new(), "uid 0".to_owned());
    let request = Request::Drain { reason, who, at_unix_ms: 1, deadline: ms(50), force: vec![], dry_run: false };
    let token = lab.operator(0, request);
    lab.run(ms(60));
    assert!(matches!(lab.answer(0, token), Some(Answer::Deadline(_))));
    assert!(lab.hosts[0].intents.drain.is_some());
}

#[test]
fn a_stop_hands_over_without_a_gap_and_leaves_nothing() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.feed(0, crate::Input::Stop { deadline: ms(5_000) });
    lab.run(ms(20));
    assert!(lab.hosts[0].stopped, "{}", lab.story());
    assert_eq!(lab.owners(), [1]);
    assert!(lab.unowned_max.is_zero());
    assert!(lab.hosts[0].sockets.is_empty());
    assert!(!lab.hosts[0].kernel.values().any(|(marked, _)| *marked));
    assert!(lab.hosts[0].records.values().all(|r| !r.active && r.addresses.is_empty()));
    assert!(lab.has(1, |k| matches!(k, Kind::PeerDown { goodbye: true, .. })));
    assert!(lab.node(1).status(lab.now).peers[0].left);
    let token = lab.drain(1, &[], false);
    assert!(refused(lab.answer(1, token), LAST_NODE), "one that left in order is known not to serve");
}

#[test]
fn a_worker_that_died_in_the_middle_of_a_drain_resumes_and_goes_on_with_it() {
    let mut lab = Lab::settled(&[254, 253], true);
    let role_epoch = lab.node(0).world().vips[0].role_epoch;
    lab.drain(0, &[], false);
    // Its last words never left.
    lab.crash(0);
    lab.hosts[0].kernel.insert((2, VIP, 32), (true, None));
    lab.boot(0, vec![("web".to_owned(), role_epoch)]);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    assert!(!lab.has(0, |k| matches!(k, Kind::FailOpen { .. })), "{}", lab.story());
    assert!(lab.hosts[0].intents.drain.is_some());
}

#[test]
fn a_drain_while_the_agent_stops_is_refused_and_one_on_its_way_aborted() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.crash(1);
    let first = lab.drain(0, &[], false);
    lab.feed(0, crate::Input::Stop { deadline: ms(5_000) });
    let second = lab.drain(0, &[], false);
    assert!(matches!(lab.answer(0, first), Some(Answer::Aborted(_))));
    assert!(refused(lab.answer(0, second), "stopping"));
    lab.run(ms(5_000));
    assert!(lab.hosts[0].stopped);
    assert!(lab.owners().is_empty());
}

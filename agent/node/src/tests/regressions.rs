//! What went wrong once.

use super::lab::*;
use crate::Node;
use crate::config::BalancerId;
use crate::drain::Intents;
use crate::io::{BalancerState, Boot, Input, Output, Packet};
use crate::journal::Kind;
use holdfast_statesync::message::{Fitness, Role};
use holdfast_vrrp::{LegId, State};
use std::time::{Duration, Instant};

fn fitness(lab: &Lab, i: usize) -> Fitness {
    lab.node(i).plan().vips[0].fitness
}

#[test]
fn a_balancer_restarted_within_a_millisecond_has_to_pass_its_checks_anew() {
    let mut lab = Lab::settled(&[254, 253], true);
    let died = lab.at();
    lab.balancer(0, BalancerState::Gone { pid: 7, why: "signal 9".to_owned() });
    lab.run(ms(1));
    lab.balancer(0, BalancerState::Alive { pid: 8 });
    assert_eq!(fitness(&lab, 0), Fitness::Unknown, "{}", lab.story());
    lab.until(ms(1_000), |lab| fitness(lab, 0) == Fitness::Fit);
    let took = lab.at() - died;
    // Three successes, 50 ms apart: at the fast pace, and not before the third.
    assert!((ms(100)..ms(200)).contains(&took), "{took:?}");
}

#[test]
fn a_check_of_what_all_nodes_share_does_not_die_with_the_balancer() {
    let mut lab = Lab::new(&[254], false);
    lab.hosts[0].config.checks[0].shared = true;
    lab.start(0);
    lab.run(ms(2_000));
    lab.balancer(0, BalancerState::Gone { pid: 7, why: "signal 9".to_owned() });
    lab.balancer(0, BalancerState::Alive { pid: 8 });
    assert_eq!(lab.node(0).world().checks[0].state, crate::world::CheckState::Passed);
}

#[test]
fn a_resumed_vip_is_not_assumed_fit_beyond_the_death_of_its_balancer() {
    let mut lab = Lab::settled(&[254], false);
    lab.crash(0);
    lab.boot(0, vec![("web".to_owned(), 3)]);
    assert_eq!(fitness(&lab, 0), Fitness::Fit);
    lab.balancer(0, BalancerState::Gone { pid: 7, why: "signal 9".to_owned() });
    lab.balancer(0, BalancerState::Alive { pid: 8 });
    assert_eq!(fitness(&lab, 0), Fitness::Unknown);
}

/// A node of its own, before its first Resync, that resumes the VIP.
fn unsynced() -> (Node, Instant, Vec<Output>) {
    #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
    let now = Instant::now();
    let resume = vec![("web".to_owned(), 3)];
    let intents = Intents::default();
    let boot = Boot { epoch: 1, seed: [7; 32], resume, intents, ..Boot::default() };
    (Node::new(config(0, 254, &[]), boot, now), now, vec![])
}

fn handle(node: &mut Node, now: Instant, input: Input<'_>, outputs: &mut Vec<Output>) {
    node.handle(now, input);
    outputs.extend(std::iter::from_fn(|| node.poll_output()));
}

#[test]
fn before_the_first_resync_nothing_is_judged_bad() {
    let (mut node, now, mut outputs) = unsynced();
    let state = BalancerState::Alive { pid: 7 };
    handle(&mut node, now, Input::Balancer { balancer: BalancerId(0), state }, &mut outputs);
    handle(&mut node, now + ms(40), Input::Timer, &mut outputs);
    let judged = |output: &&Output| match output {
        Output::Event(event) => matches!(
            event.kind,
            Kind::VipFitness { .. } | Kind::VipPriority { .. } | Kind::VipState { .. } | Kind::FailOpen { .. }
        ),
        Output::Owner(_) | Output::Step(_) | Output::RunHook { .. } => true,
        _ => false,
    };
    assert_eq!(outputs.iter().find(judged), None);
}

#[test]
fn a_node_that_never_sees_its_host_can_be_stopped() {
    let (mut node, now, mut outputs) = unsynced();
    handle(&mut node, now, Input::Stop { deadline: ms(500) }, &mut outputs);
    for n in 1..=60 {
        handle(&mut node, now + ms(n * 10), Input::Timer, &mut outputs);
    }
    assert_eq!(outputs.last(), Some(&Output::Stopped));
}

#[test]
fn what_is_refused_costs_a_counter_and_no_turn() {
    let mut lab = Lab::settled(&[254, 253], true);
    let node = lab.hosts[0].node.as_mut().expect("running");
    let wake = node.poll_timeout();
    // Later than anything that is due: a turn would have much to say.
    let late = lab.now + Duration::from_secs(5);
    let (_, resignation) = node.vips[0].router.resign_packets(LegId(0)).expect("it has a source");
    let good = packet(source(9), &resignation[0].payload);
    let mut wrong_ttl = good.clone();
    wrong_ttl[8] = 254;
    let mut wrong_checksum = good.clone();
    wrong_checksum[26] ^= 1;
    let mut unknown_vrid = good.clone();
    // VRID up by one, checksum down by one: right again.
    unknown_vrid[21] += 1;
    let checksum = u16::from_be_bytes([good[26], good[27]]) - 1;
    unknown_vrid[26..28].copy_from_slice(&checksum.to_be_bytes());
    for garbage in [&good[..27], &wrong_ttl, &wrong_checksum, &unknown_vrid, &[]] {
        node.handle(late, Input::Vrrp { ifindex: 2, packet: Packet::V4(garbage) });
        assert_eq!((node.poll_output(), node.poll_timeout()), (None, wake));
    }
    for from in ["10.1.0.2:7712", "10.1.0.99:7712"] {
        let from = from.parse().expect("an address");
        node.handle(late, Input::Datagram { from, bytes: &[0x55; 200] });
        // The channel's own clock is due, and it alone may say something.
        while node.poll_output().is_some() {}
        node.handle(late, Input::Datagram { from, bytes: &[0x55; 200] });
        assert_eq!(node.poll_output(), None);
    }
    let counters = node.status(late).counters;
    assert_eq!((counters["adverts_refused"], counters["adverts_unknown_vrid"]), (4, 1));
    assert_eq!(counters["channel_refused"], 4);
    assert_eq!((counters["adverts_refused_ttl"], counters["adverts_refused_checksum"]), (1, 1));
}

#[test]
fn the_last_word_of_an_owner_that_was_preempted_is_no_news() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.drain(0, &[], false);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1]);
    lab.undrain(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    assert!(!lab.has(0, |k| matches!(k, Kind::Reasserted { .. })), "{}", lab.story());
    let counters = lab.node(0).status(lab.now).counters;
    assert!(counters["reassertions"] > 0, "it is announced again all the same");
}

#[test]
fn a_conflict_that_nobody_asked_for_is_a_warning() {
    let mut lab = Lab::settled(&[254, 253], true);
    let (_, packets) = lab.node(1).vips[0].router.resign_packets(LegId(0)).expect("it has a source");
    let claimed = packet(source(1), &packets[0].payload);
    lab.feed(0, Input::Vrrp { ifindex: 2, packet: Packet::V4(&claimed) });
    assert!(lab.has(0, |k| matches!(k, Kind::Reasserted { .. })), "{}", lab.story());
}

#[test]
fn a_worker_that_begins_anew_with_a_low_role_epoch_is_believed() {
    let mut lab = Lab::settled(&[254, 253], true);
    // Each move adds to the role epoch.
    for _ in 0..2 {
        lab.drain(0, &[], false);
        lab.run(ms(1_000));
        lab.undrain(0);
        lab.run(ms(1_000));
    }
    let word = |lab: &Lab| lab.node(1).world().peers[0].vips[&W].clone();
    let before = word(&lab).1;
    assert_eq!(before.role, Role::Active);
    // It hung and was killed: the next one has nothing to resume, and its peers believe its first word.
    lab.crash(0);
    lab.hosts[0].probes = Probes::Bad;
    lab.start(0);
    lab.run(ms(1_000));
    let (at, after) = word(&lab);
    assert!(after.role_epoch < before.role_epoch, "{before:?} {after:?}");
    assert_eq!((after.role, after.fitness), (Role::Backup, Fitness::Unfit));
    assert!(lab.now - at <= ms(150), "and it is fresh");
    assert_eq!(lab.node(1).plan().vips[0].fitness, Fitness::Fit);
    assert_eq!(lab.node(0).vips[0].router.state(), State::Backup);
}

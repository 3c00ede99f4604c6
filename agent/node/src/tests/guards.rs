//! Scenarios that each stand on one guard. They run with the guard, and in builds with `mutants` without it: then the
//! scenario must fail.

use super::lab::*;
#[cfg(feature = "mutants")]
use super::{flows, interlocks, plane_groups, planes, ways};
use crate::config::{Damping, Partition};
use crate::drain::{LAST_NODE, PEER_UNKNOWN};
use crate::io::Answer;
use crate::journal::Kind;
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::Message;
use holdfast_vrrp::{LegId, State};

pub(crate) type Verdict = Result<(), String>;
#[cfg(feature = "mutants")]
type Scenario = fn() -> Verdict;

pub(crate) fn expect(what: &str, holds: bool) -> Verdict {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

pub(crate) fn last_node_refuses() -> Verdict {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.kill_balancer(1);
    lab.run(ms(500));
    let token = lab.drain(0, &[], false);
    let by = |by: &str| matches!(lab.answer(0, token), Some(Answer::Refused { interlock, .. }) if interlock == by);
    expect("refused by last-node", by(LAST_NODE))?;
    expect("nothing stored", lab.hosts[0].intents.drain.is_none())?;
    lab.run(ms(1_000));
    expect("nothing moved", lab.owners() == [0] && lab.unowned_max.is_zero())
}

pub(crate) fn stale_word_refuses() -> Verdict {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.cut_channels(0, true);
    lab.run(ms(500));
    let token = lab.drain(0, &[], false);
    let by = |by: &str| matches!(lab.answer(0, token), Some(Answer::Refused { interlock, .. }) if interlock == by);
    expect("refused by peer-unknown", by(PEER_UNKNOWN))?;
    lab.run(ms(1_000));
    expect("nothing moved", lab.owners() == [0])
}

pub(crate) fn only_shared_vips_are_touched() -> Verdict {
    let mut lab = Lab::new(&[254, 253], true);
    // lb0 runs another VIP, so "web" isn't shared.
    lab.hosts[0].config.vips[0].name = name("other");
    lab.hosts[0].config.vips[0].legs[0].vrid = holdfast_vrrp::Vrid::new(11).expect("a vrid");
    lab.hosts[0].config.vips[0].addresses[0].ip = "192.0.2.11".parse().expect("an address");
    lab.start(0);
    lab.start(1);
    lab.run(ms(200));
    let now = lab.now;
    let node = lab.hosts[1].node.as_mut().expect("a node");
    let epoch = node.world().peers[0].epoch;
    let take = Message::TakeNow { vip: "web".to_owned(), role_epoch: u64::MAX, linger: false };
    node.on_message(now, PeerId(0), epoch, take);
    expect("not taken", node.world().vips[0].state == State::Backup)
}

pub(crate) fn an_isolated_backup_does_not_take_the_service_along() -> Verdict {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.isolate(1, true);
    for _ in 0..5_000 {
        lab.run(ms(1));
        expect("the owner that the clients reach keeps the VIP", lab.owners().contains(&0))?;
    }
    lab.isolate(1, false);
    lab.run(ms(120));
    expect("one owner within an interval of the heal", lab.owners() == [0])
}

pub(crate) fn only_marked_leftovers_are_scrubbed() -> Verdict {
    let mut lab = Lab::new(&[254, 253], false);
    let other = "192.0.2.77".parse().expect("an address");
    lab.hosts[1].kernel.insert((2, VIP, 32), (false, None));
    lab.hosts[1].kernel.insert((2, other, 32), (true, None));
    lab.start(0);
    lab.start(1);
    lab.run(ms(2_000));
    expect("the marked one is gone", !lab.hosts[1].kernel.contains_key(&(2, other, 32)))?;
    expect("and it was said", lab.has(1, |k| matches!(k, Kind::Scrubbed { .. })))?;
    expect("the other one is somebody's", lab.hosts[1].kernel.contains_key(&(2, VIP, 32)))
}

pub(crate) fn a_claimer_is_probed_before_the_owner_yields() -> Verdict {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.mute.insert(0);
    lab.run(ms(3_000));
    expect("the owner keeps what it can serve", lab.owners() == [0])
}

pub(crate) fn one_silent_leg_is_a_failure() -> Verdict {
    let mut lab = Lab::settled_with(&[254, 253], true, group);
    lab.hosts[0].mute_legs.insert(LegId(1));
    lab.run(ms(450));
    expect("two intervals after the first failure it is the peer's", lab.owners() == [1])
}

pub(crate) fn a_new_agent_holds_off() -> Verdict {
    let mut lab = Lab::new(&[254], false);
    lab.hosts[0].config.vips[0].vrrp.startup_delay = ms(3_000);
    lab.start(0);
    lab.run(ms(2_999));
    expect("it takes nothing yet", lab.owners().is_empty())?;
    lab.run(ms(400));
    expect("a down time after its deadline it does", lab.owners() == [0])
}

pub(crate) fn a_cut_off_node_owns_nothing() -> Verdict {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].vrrp.partition = Partition::Neither);
    lab.isolate(1, true);
    lab.cut_channels(1, true);
    lab.run(ms(3_000));
    expect("neither side owns it", lab.owners().is_empty())?;
    lab.isolate(1, false);
    lab.cut_channels(1, false);
    lab.run(ms(3_000));
    expect("together they agree again", lab.owners() == [0])
}

pub(crate) fn waiting_equals_differ() -> Verdict {
    let mut lab = Lab::settled(&[254, 100, 100], true);
    lab.run(ms(500));
    let priority = |i: usize| lab.node(i).status(lab.now).vips[0].priority;
    expect("no two that wait have the same priority", (priority(1), priority(2)) == (100, 99))
}

pub(crate) fn the_last_announcer_refuses() -> Verdict {
    let mut lab = Lab::announcing(2, 1, true);
    lab.kill_balancer(1);
    lab.run(ms(1_000));
    let token = lab.drain(0, &[], false);
    let by = |by: &str| matches!(lab.answer(0, token), Some(Answer::Refused { interlock, .. }) if interlock == by);
    expect("refused by last-node", by(LAST_NODE))?;
    lab.run(ms(5_000));
    expect("nothing is withdrawn", lab.routers[0].ways(VIP).contains(&0))
}

pub(crate) fn the_route_waits_for_its_address() -> Verdict {
    let mut lab = Lab::new(&[100], false).with_routers(1);
    anycast(&mut lab.hosts[0].config, 1);
    lab.hosts[0].add_errno = Some(1);
    lab.start(0);
    lab.run(ms(3_000));
    expect("nothing was ever announced", lab.routers[0].changes.is_empty())?;
    lab.hosts[0].add_errno = None;
    lab.run(ms(6_000));
    expect("once it is there, it is", lab.routers[0].ways(VIP) == [0])
}

pub(crate) fn an_announcement_is_delayed() -> Verdict {
    let mut lab = Lab::new(&[100], false).with_routers(1);
    anycast(&mut lab.hosts[0].config, 1);
    lab.hosts[0].config.vips[0].bgp.as_mut().expect("announced").announce_delay = ms(5_000);
    lab.start(0);
    lab.run(ms(4_990));
    expect("nothing is announced yet", lab.routers[0].ways(VIP).is_empty())
}

pub(crate) fn a_flapping_unit_is_damped() -> Verdict {
    let damping = Damping { half_life: ms(15_000), suppress: 2_500, reuse: 1_500, max: ms(60_000) };
    let mut lab = Lab::announcing_with(2, 1, true, |config| {
        config.vips[0].bgp.as_mut().expect("announced").damping = Some(damping.clone());
    });
    for _ in 0..3 {
        lab.kill_balancer(0);
        lab.run(ms(100));
        lab.revive_balancer(0);
        lab.run(ms(900));
    }
    expect("the third time it stays away", lab.routers[0].ways(VIP) == [1])?;
    expect("and says so", lab.has(0, |k| matches!(k, Kind::RouteDamped { .. })))?;
    // Where it is the only one that can serve, that counts more.
    lab.kill_balancer(1);
    lab.run(ms(1_000));
    expect("the last one is never held back", lab.routers[0].ways(VIP).contains(&0))?;
    lab.revive_balancer(1);
    lab.run(ms(40_000));
    expect("it comes back by itself", lab.routers[0].ways(VIP) == [0, 1])
}

pub(crate) fn an_owner_without_routers_is_preempted() -> Verdict {
    let mut lab = Lab::new(&[254, 253], true).with_routers(1);
    lab.hosts.iter_mut().for_each(|host| speaks(&mut host.config, 1));
    (0..2).for_each(|i| lab.start(i));
    lab.run(ms(15_000));
    expect("the better one owns and announces it", lab.owners() == [0] && lab.routers[0].ways(VIP) == [0])?;
    lab.hosts[0].config.bgp.as_mut().expect("announced").neighbors[0].passive = true;
    lab.crash(0);
    lab.run(ms(3_000));
    expect("the other one takes over", lab.owners() == [1] && lab.routers[0].ways(VIP).contains(&1))?;
    // It can't speak to the router any more.
    lab.start(0);
    lab.run(ms(20_000));
    expect("who has no router doesn't preempt", lab.owners() == [1])
}

#[test]
fn a_peer_can_only_touch_vips_that_it_runs_too() {
    only_shared_vips_are_touched().expect("the guard is on");
}

#[test]
fn at_start_marked_leftovers_are_removed_and_nothing_else() {
    only_marked_leftovers_are_scrubbed().expect("the guard is on");
}

#[test]
fn an_owner_that_others_reach_keeps_the_vip_when_a_backup_is_cut_off() {
    an_isolated_backup_does_not_take_the_service_along().expect("the guard is on");
}

#[test]
fn an_owner_probes_before_it_yields() {
    a_claimer_is_probed_before_the_owner_yields().expect("the guard is on");
}

#[cfg(feature = "mutants")]
#[test]
fn each_scenario_fails_without_its_guard() {
    let scenarios: [(&str, Scenario); 36] = [
        ("interlock-last-node", last_node_refuses),
        ("interlock-pool-differs", interlocks::a_drain_to_another_table_is_refused),
        ("fresh-claim-only", stale_word_refuses),
        ("shared-vips-only", only_shared_vips_are_touched),
        ("scrub-only-marked", only_marked_leftovers_are_scrubbed),
        ("probe-before-yield", a_claimer_is_probed_before_the_owner_yields),
        ("witnesses", an_isolated_backup_does_not_take_the_service_along),
        ("sending-per-leg", one_silent_leg_is_a_failure),
        ("startup-delay", a_new_agent_holds_off),
        ("partition", a_cut_off_node_owns_nothing),
        ("unique-priorities", waiting_equals_differ),
        ("announce-delay", an_announcement_is_delayed),
        ("damping", a_flapping_unit_is_damped),
        ("bgp-settle", an_owner_without_routers_is_preempted),
        ("address-before-route", the_route_waits_for_its_address),
        ("saturated-stays", planes::a_full_owner_stays),
        ("full-beats-dead", planes::a_dead_one_leaves_for_one_that_is_full),
        ("saturated-works", planes::a_stopped_one_is_not_full),
        ("hung-without-checks", planes::looks_alone_tell_that_it_hangs),
        ("refused-is-not-hung", planes::who_does_not_listen_does_not_hang),
        ("sick-compares", planes::a_sick_owner_that_hears_of_nobody_stays),
        ("poor-margin", planes::what_all_share_moves_nothing),
        ("unread-words", planes::what_lay_unread_moves_nothing),
        ("poor-leaves", planes::a_sick_owner_leaves_for_a_better_one),
        ("poor-beats-bad", planes::a_dead_one_leaves_for_one_that_answers),
        ("best-standing", planes::the_best_is_told_to_take_it),
        ("stands-behind", planes::an_unsupervised_one_lets_others_go_first),
        ("conntrack-defers", planes::a_full_table_lets_others_go_first),
        ("hold-down", planes::who_lost_it_often_lets_others_go_first),
        ("hold-down-served", planes::who_never_served_loses_nothing),
        ("group-members-ask", plane_groups::members_tell_that_it_hangs),
        ("flows-before-address", flows::the_address_waits_for_flows),
        ("sync-before-preempt", flows::who_lacks_flows_does_not_preempt),
        ("flows-before-move", flows::a_planned_move_waits_for_flows),
        ("way-back-first", ways::a_node_takes_its_address_back_with_its_flows_and_is_announced_after_that),
        ("way-back-last", ways::an_address_leaves_after_what_comes_for_it),
    ];
    for (guard, scenario) in scenarios {
        assert!(crate::mutants::with_off(guard, scenario).is_err(), "passes without {guard}");
    }
    // Those of the connection table's watch are tested beside it.
    let elsewhere = |guard: &&str| !guard.starts_with("conntrack-") || **guard == *"conntrack-defers";
    let tested: Vec<&str> = scenarios.iter().map(|(guard, _)| *guard).collect();
    let named: Vec<&str> = crate::mutants::NAMES.into_iter().filter(elsewhere).collect();
    assert_eq!(tested, named);
}

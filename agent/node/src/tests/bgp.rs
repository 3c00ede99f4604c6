//! Units that BGP alone announces: up, down, drained, stopped, resumed.

use super::lab::*;
use crate::Input;
use crate::Step;
use crate::config::{Config, Vip, VipId};
use crate::io::{Answer, BalancerState, BgpOutput, Output};
use crate::journal::Kind;
use holdfast_bgp::wire::{CEASE, Cease};
use std::time::Duration;

/// What a host did with its address and its sessions, in order: `+address`, `-address`, `send`, `close`.
fn deeds(lab: &Lab, i: usize, since: Duration) -> Vec<&'static str> {
    let word = |output: &&Output| match output {
        Output::Step(Step::AddAddress { .. }) => Some("+address"),
        Output::Step(Step::RemoveAddress { .. }) => Some("-address"),
        Output::Bgp { output: BgpOutput::Send { bytes, .. }, .. } if bytes.get(18) == Some(&2) => Some("update"),
        Output::Bgp { output: BgpOutput::Close { .. }, .. } => Some("close"),
        _ => None,
    };
    let mut deeds: Vec<_> = lab.log_since(i, since).iter().filter_map(word).collect();
    deeds.dedup();
    deeds
}

fn announced(told: &Told) -> bool {
    matches!(told, Told::Announced { .. })
}

#[test]
fn the_address_comes_before_the_route_and_the_end_of_the_table_after_it() {
    let lab = Lab::announcing(1, 1, false);
    let at = |test: &dyn Fn(&Output) -> bool| lab.hosts[0].log.iter().position(|(_, o)| test(o)).expect("done");
    let added = at(&|o| matches!(o, Output::Step(Step::AddAddress { .. })));
    let sent = at(
        &|o| matches!(o, Output::Bgp { output: BgpOutput::Send { bytes, .. }, .. } if bytes.get(18) == Some(&2) && bytes.len() > 30),
    );
    let up = at(&|o| matches!(o, Output::Event(e) if matches!(e.kind, Kind::RouteAnnounced { .. })));
    assert!(added < sent && added < up, "{}", lab.story());
    let told = lab.routers[0].told_by(0, Duration::ZERO);
    let at = |test: &dyn Fn(&Told) -> bool| told.iter().position(|told| test(told));
    assert_eq!(told.iter().filter(|told| announced(told)).count(), 1, "one UPDATE, once: {told:?}");
    assert!(at(&announced).is_some() && at(&|t| *t == Told::EndOfRib).is_some(), "{told:?}");
    assert!(lab.hosts[0].kernel[&(LO, VIP, 32)].0, "on lo, with our mark");
    let announces = |o: &&Output| matches!(o, Output::Step(Step::Announce { .. }));
    assert_eq!(lab.log_since(0, Duration::ZERO).into_iter().find(announces), None, "no segment hears of it");
}

#[test]
fn a_session_that_comes_up_after_the_route_gets_route_and_then_end_of_table() {
    let mut lab = Lab::new(&[100], false).with_routers(1);
    anycast(&mut lab.hosts[0].config, 1);
    lab.router(0, false);
    lab.start(0);
    lab.run(ms(4_000));
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)), "ready before anybody listens");
    let since = lab.at();
    lab.router(0, true);
    let took = lab.until(ms(3_000), |lab| lab.routers[0].ways(VIP) == [0]);
    assert!(took <= ms(2_100), "{took:?}");
    lab.run(ms(100));
    let told = lab.routers[0].told_by(0, since);
    assert!(matches!(told[..], [Told::Open(_), Told::Announced { .. }, Told::EndOfRib, ..]), "{told:?}");
}

#[test]
fn a_dead_balancer_is_a_withdrawal_in_the_same_turn_and_the_address_goes_after_the_wait() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.run(ms(7));
    let (since, before) = (lab.at(), lab.hosts[0].log.len());
    lab.kill_balancer(0);
    let first = lab.hosts[0].log.get(before).map(|(_, o)| o);
    assert!(matches!(first, Some(Output::Bgp { output: BgpOutput::Send { .. }, .. })), "{first:?}");
    assert_eq!(deeds(&lab, 0, since), ["update"]);
    let fitness = |o: &Output| matches!(o, Output::Event(e) if matches!(e.kind, Kind::VipFitness { .. }));
    assert!(
        !lab.hosts[0].log[before..].iter().any(|(_, o)| fitness(o)),
        "all else comes after it, of one as of hundreds"
    );
    lab.run(ms(990));
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)), "what is on its way still finds it");
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    lab.run(ms(20));
    assert_eq!(deeds(&lab, 0, since), ["update", "-address"]);
    lab.run(ms(60_000));
    assert_eq!(lab.routers[0].told_by(0, since).len(), 1, "one withdrawal, and nothing else: {}", lab.story());
    // The journal tells why, back to what made it happen.
    let cause = |kind: &dyn Fn(&Kind) -> bool| lab.hosts[0].events.iter().find(|(_, e)| kind(&e.kind)).map(|(_, e)| e);
    let gone = cause(&|k| matches!(k, Kind::BalancerState { state, .. } if state == "gone")).expect("told");
    let unfit = cause(&|k| matches!(k, Kind::VipFitness { to, .. } if to == "unfit")).expect("told");
    let route = cause(&|k| matches!(k, Kind::RouteWithdrawn { .. })).expect("told");
    assert_eq!((route.cause, unfit.cause), (Some(unfit.id), Some(gone.id)), "{}", lab.story());
}

#[test]
fn a_check_that_fails_is_a_withdrawal_and_its_recovery_an_announcement_fifty_times() {
    let mut lab = Lab::announcing(2, 1, true);
    for round in 0..50 {
        lab.hosts[0].probes = Probes::Bad;
        // A failure during a flap of the session must not be lost either.
        if round % 5 == 4 {
            lab.router(0, false);
            lab.run(ms(500));
            lab.router(0, true);
        }
        lab.run(ms(5_000));
        assert_eq!(lab.routers[0].ways(VIP), [1], "round {round}\n{}", lab.story());
        lab.hosts[0].probes = Probes::Good;
        lab.run(ms(3_000));
        assert_eq!(lab.routers[0].ways(VIP), [0, 1], "round {round}\n{}", lab.story());
    }
}

#[test]
fn what_failed_while_the_router_was_away_is_never_told_when_it_is_back() {
    let mut lab = Lab::announcing(2, 1, true);
    for _ in 0..50 {
        lab.router(0, false);
        lab.run(ms(200));
        lab.kill_balancer(0);
        lab.run(ms(300));
        let since = lab.at();
        lab.router(0, true);
        lab.run(ms(5_000));
        let told = lab.routers[0].told_by(0, since);
        assert!(!told.iter().any(|told| announced(told)), "{told:?}");
        assert_eq!(lab.routers[0].ways(VIP), [1]);
        lab.revive_balancer(0);
        lab.run(ms(1_000));
        assert_eq!(lab.routers[0].ways(VIP), [0, 1], "{}", lab.story());
    }
}

#[test]
fn a_hundred_checks_without_a_change_are_no_update() {
    let mut lab = Lab::announcing(1, 2, false);
    let since = lab.at();
    lab.run(ms(10_000));
    for router in &lab.routers {
        assert!(router.told_by(0, since).is_empty(), "{:?}", router.told);
    }
    assert_eq!(deeds(&lab, 0, since), ["+address"], "refreshed, that's all");
}

#[test]
fn from_well_to_the_wire_takes_less_than_fifty_milliseconds() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.kill_balancer(0);
    lab.run(ms(3_000));
    lab.revive_balancer(0);
    let fit = |lab: &Lab| lab.node(0).status(lab.now).vips[0].fitness == "fit";
    lab.until(ms(2_000), fit);
    let took = lab.until(ms(50), |lab| lab.routers[0].ways(VIP) == [0, 1]);
    assert!(took <= ms(4), "{took:?}");
}

#[test]
fn an_address_that_somebody_deletes_is_back_at_once_and_the_route_stays() {
    let mut lab = Lab::announcing(1, 1, false);
    let since = lab.at();
    lab.hosts[0].kernel.remove(&(LO, VIP, 32)).expect("there");
    lab.feed(0, Input::AddressGone { ifindex: LO, ip: VIP, prefix: 32 });
    lab.run(ms(1));
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)));
    lab.run(ms(2_000));
    assert!(lab.routers[0].told_by(0, since).is_empty(), "{}", lab.story());
    assert!(lab.has(0, |k| matches!(k, Kind::AddressVanished { .. })));
}

#[test]
fn an_address_that_can_not_be_put_back_is_withdrawn() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.hosts[0].add_errno = Some(1);
    lab.hosts[0].kernel.remove(&(LO, VIP, 32)).expect("there");
    lab.feed(0, Input::AddressGone { ifindex: LO, ip: VIP, prefix: 32 });
    lab.run(ms(200));
    assert_eq!(lab.routers[0].ways(VIP), [1], "{}", lab.story());
    lab.hosts[0].add_errno = None;
    lab.run(ms(5_000));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1], "{}", lab.story());
}

#[test]
fn without_its_address_nothing_is_announced() {
    super::guards::the_route_waits_for_its_address().expect("the guard is on");
}

#[test]
fn a_drain_says_so_waits_withdraws_waits_and_then_removes_the_address() {
    let mut lab = Lab::announcing(2, 2, true);
    let since = lab.at();
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_990));
    let told = lab.routers[1].told_by(0, since);
    let [Told::Announced { med: Some(u32::MAX), communities, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(communities, &[0xffff_0000], "graceful shutdown");
    assert_eq!(lab.routers[0].ways(VIP), [0, 1], "still serving");
    lab.run(ms(20));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)));
    assert_eq!(lab.answer(0, token), None);
    lab.run(ms(1_000));
    assert_eq!(deeds(&lab, 0, since), ["update", "-address"]);
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))), "{}", lab.story());
    assert!(!lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)));
    assert_eq!(lab.node(0).status(lab.now).vips[0].fitness, "withheld");
    // And back.
    lab.undrain(0);
    lab.run(ms(100));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1]);
    let last = lab.routers[0].told_by(0, since).pop().cloned();
    assert!(
        matches!(last, Some(Told::Announced { med: Some(0), ref communities, .. }) if communities.is_empty()),
        "{last:?}"
    );
}

#[test]
fn a_drain_that_is_taken_back_while_it_waits_is_two_updates_and_no_gap() {
    let mut lab = Lab::announcing(2, 1, true);
    let since = lab.at();
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    lab.undrain(0);
    lab.run(ms(5_000));
    let told = lab.routers[0].told_by(0, since);
    assert!(matches!(told[..], [Told::Announced { .. }, Told::Announced { med: Some(0), .. }]), "{told:?}");
    assert!(matches!(lab.answer(0, token), Some(Answer::Aborted(_))));
    // Taken back after the withdrawal: the address never went.
    lab.drain(0, &[], false);
    lab.run(ms(2_500));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    let since = lab.at();
    lab.undrain(0);
    lab.run(ms(5_000));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1]);
    assert!(!deeds(&lab, 0, since).contains(&"-address"));
}

#[test]
fn a_stop_withdraws_before_it_closes_and_leaves_nothing() {
    let mut lab = Lab::announcing(2, 1, true);
    let since = lab.at();
    lab.feed(0, Input::Stop { deadline: ms(5_000) });
    lab.run(ms(90));
    let told = lab.routers[0].told_by(0, since);
    let [Told::Withdrawn(_), Told::Notification(last), Told::Closed] = &told[..] else {
        panic!("{told:?}\n{}", lab.story())
    };
    assert_eq!(
        (last.code, last.inner().map(|n| n.subcode)),
        (CEASE, Some(Cease::AdministrativeShutdown.subcode())),
        "a Hard Reset: nothing is kept"
    );
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)), "what is on its way still finds it");
    lab.run(ms(1_000));
    assert!(lab.hosts[0].stopped, "{}", lab.story());
    assert_eq!(deeds(&lab, 0, since), ["update", "close", "-address"]);
    assert_eq!(lab.hosts[0].kernel.len(), 1, "only its own address");
}

#[test]
fn a_stop_of_the_last_one_is_not_refused_and_ends_within_its_deadline() {
    let mut lab = Lab::announcing(1, 1, false);
    lab.feed(0, Input::Stop { deadline: ms(300) });
    lab.run(ms(300));
    assert!(lab.hosts[0].stopped, "{}", lab.story());
    assert_eq!(lab.hosts[0].kernel.len(), 1);
}

#[test]
fn a_restarted_worker_costs_no_change_of_any_table() {
    for (balancer_known, gap) in [(true, 10), (true, 3_000), (false, 500)] {
        let mut lab = Lab::announcing(2, 2, true);
        let since = lab.at();
        let epoch = lab.node(0).world().vips[0].role_epoch;
        lab.crash(0);
        lab.run(ms(gap));
        lab.boot(0, vec![("web".to_owned(), epoch)]);
        if !balancer_known {
            lab.balancer(0, BalancerState::Unknown { why: "not looked at".to_owned() });
            lab.run(ms(3_000));
            lab.balancer(0, BalancerState::Alive { pid: 7 });
        }
        lab.run(ms(30_000));
        for router in &lab.routers {
            assert!(router.changes.iter().all(|(at, ..)| *at < since), "{:?}\n{}", router.changes, lab.story());
            let told = router.told_by(0, since);
            let [Told::Closed, Told::Open(open), Told::Announced { .. }, Told::EndOfRib, ..] = &told[..] else {
                panic!("{told:?}")
            };
            let graceful = open.graceful_restart().expect("offered");
            assert!(graceful.restarting && graceful.families.iter().all(|f| f.forwarding), "{graceful:?}");
        }
        assert_eq!(lab.node(0).world().vips[0].role_epoch, epoch + 1, "announced once more by this worker");
    }
}

#[test]
fn a_resumed_worker_that_learns_nothing_for_five_seconds_withdraws() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.crash(0);
    lab.boot(0, vec![("web".to_owned(), 1)]);
    lab.balancer(0, BalancerState::Unknown { why: "not looked at".to_owned() });
    lab.run(ms(4_900));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1]);
    lab.run(ms(200));
    assert_eq!(lab.routers[0].ways(VIP), [1], "{}", lab.story());
}

#[test]
fn a_fresh_start_after_a_crash_says_that_it_did_not_serve() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.crash(0);
    lab.run(ms(25_000));
    let since = lab.at();
    lab.start(0);
    lab.run(ms(3_000));
    let told = lab.routers[0].told_by(0, since);
    let Some(Told::Open(open)) = told.iter().find(|t| matches!(t, Told::Open(_))) else { panic!("{told:?}") };
    let graceful = open.graceful_restart().expect("offered");
    assert!(!graceful.restarting && graceful.families.iter().all(|f| !f.forwarding), "{graceful:?}");
}

#[test]
fn who_never_comes_back_is_forgotten_at_the_restart_time() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.crash(0);
    lab.run(ms(14_900));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1]);
    lab.run(ms(300));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    lab.run(ms(60_000));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
}

#[test]
fn bfd_that_goes_down_ends_the_session_and_administratively_down_does_not() {
    use crate::keeper::ipc::BfdState;
    let mut lab = Lab::announcing(2, 1, true);
    lab.bfd(0, 0, BfdState::Up);
    let since = lab.at();
    lab.bfd(0, 0, BfdState::AdminDown);
    lab.run(ms(1_000));
    assert!(lab.routers[0].told_by(0, since).is_empty());
    lab.bfd(0, 0, BfdState::Up);
    lab.bfd(0, 0, BfdState::Down);
    lab.run(ms(1));
    let ended = lab.routers[0].told_by(0, since);
    assert!(ended.iter().any(|t| matches!(t, Told::Closed)), "{ended:?}");
    let events = &lab.hosts[0].events;
    let bfd = events.iter().rev().find(|(_, e)| matches!(&e.kind, Kind::BfdState { to, .. } if to == "Down"));
    let down = events.iter().rev().find(|(_, e)| matches!(&e.kind, Kind::NeighborDown { .. }));
    assert_eq!(down.expect("told").1.cause, Some(bfd.expect("told").1.id));
}

#[test]
fn when_the_checks_of_all_fail_the_announcers_stay_and_say_so() {
    let mut lab = Lab::announcing(3, 1, true);
    lab.run(ms(3_000));
    let since = lab.at();
    lab.hosts.iter_mut().for_each(|host| host.probes = Probes::Bad);
    lab.run(ms(10_000));
    assert!(!lab.routers[0].ways(VIP).is_empty(), "{}", lab.story());
    let dark = |changes: &[(Duration, usize, _, bool)]| {
        let mut there: std::collections::BTreeSet<usize> = [0, 1, 2].into();
        let (mut since, mut longest) = (None, Duration::ZERO);
        for (at, host, _, added) in changes {
            if *added {
                there.insert(*host)
            } else {
                there.remove(host)
            };
            match (there.is_empty(), since) {
                (true, None) => since = Some(*at),
                (false, Some(from)) => {
                    longest = longest.max(*at - from);
                    since = None;
                }
                _ => {}
            }
        }
        longest
    };
    let changes: Vec<_> = lab.routers[0].changes.iter().filter(|(at, ..)| *at >= since).cloned().collect();
    assert!(dark(&changes) <= ms(20), "{changes:?}");
    assert!(changes.len() <= 6, "it doesn't wander: {changes:?}");
    assert!((0..3).any(|i| lab.has(i, |k| matches!(k, Kind::FailOpen { .. }))));
    // One that can serve is enough: the others leave.
    lab.hosts[2].probes = Probes::Good;
    lab.run(ms(3_000));
    assert_eq!(lab.routers[0].ways(VIP), [2], "{}", lab.story());
}

#[test]
fn who_can_not_know_what_the_others_do_withdraws() {
    let mut alone = Lab::announcing(1, 1, false);
    alone.kill_balancer(0);
    alone.run(ms(100));
    assert!(alone.routers[0].ways(VIP).is_empty(), "no channel: {}", alone.story());
    let mut cut = Lab::announcing(2, 1, true);
    cut.cut_channels(0, true);
    cut.run(ms(1_000));
    cut.kill_balancer(0);
    cut.run(ms(100));
    assert_eq!(cut.routers[0].ways(VIP), [1], "{}", cut.story());
}

#[test]
fn who_stays_as_the_last_one_stays_when_the_channel_falls_silent() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.kill_balancer(1);
    lab.run(ms(2_000));
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.routers[0].ways(VIP), [0], "{}", lab.story());
    lab.cut_channels(0, true);
    lab.run(ms(5_000));
    assert_eq!(lab.routers[0].ways(VIP), [0], "{}", lab.story());
    lab.cut_channels(0, false);
    lab.revive_balancer(1);
    lab.run(ms(3_000));
    assert_eq!(lab.routers[0].ways(VIP), [1], "{}", lab.story());
}

#[test]
fn a_session_lost_and_found_is_no_flap_and_no_change_here() {
    let mut lab = Lab::announcing(2, 1, true);
    let since = lab.at();
    for _ in 0..10 {
        lab.router(0, false);
        lab.run(ms(500));
        lab.router(0, true);
        lab.run(ms(3_000));
        assert_eq!(lab.routers[0].ways(VIP), [0, 1], "{}", lab.story());
    }
    assert!(!deeds(&lab, 0, since).contains(&"-address"));
    assert!(!lab.has(0, |k| matches!(k, Kind::RouteWithdrawn { .. })));
}

#[test]
fn an_owner_that_has_no_router_gives_way() {
    super::guards::an_owner_without_routers_is_preempted().expect("the guard is on");
}

#[test]
fn one_router_that_is_away_leaves_the_other_alone_and_both_away_is_said() {
    let mut lab = Lab::announcing(2, 2, true);
    lab.router(0, false);
    lab.run(ms(6_000));
    assert_eq!(lab.node(0).status(lab.now).vips[0].fitness, "fit");
    lab.router(1, false);
    lab.run(ms(500));
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.vips[0].fitness, "unfit", "who can tell nobody can't serve: {:?}", status.vips[0].reasons);
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)), "ready for the first one that is back");
}

#[test]
fn a_drain_of_the_last_announcer_is_refused_unless_forced_by_that_name() {
    use crate::drain::{LAST_NODE, PEER_UNKNOWN};
    super::guards::the_last_announcer_refuses().expect("the guard is on");
    let refused = |lab: &Lab, token, by: &str| matches!(lab.answer(0, token), Some(Answer::Refused { interlock, .. }) if interlock == by);
    let mut lab = Lab::announcing(2, 1, true);
    lab.kill_balancer(1);
    lab.run(ms(1_000));
    let token = lab.drain(0, &[LAST_NODE], false);
    lab.run(ms(5_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))), "{}", lab.story());
    assert!(lab.routers[0].ways(VIP).iter().all(|host| *host == 1), "{}", lab.story());
    let mut alone = Lab::announcing(1, 1, false);
    let token = alone.drain(0, &[], false);
    assert!(refused(&alone, token, PEER_UNKNOWN), "BGP tells nobody who else announces it");
    let token = alone.drain(0, &[PEER_UNKNOWN], false);
    alone.run(ms(5_000));
    assert!(matches!(alone.answer(0, token), Some(Answer::Done(_))));
}

#[test]
fn fewer_than_min_announcing_others_refuse_a_drain() {
    let mut lab = Lab::announcing_with(3, 1, true, |config| {
        config.vips[0].bgp.as_mut().expect("announced").min_announcing = 2;
    });
    lab.kill_balancer(2);
    lab.run(ms(500));
    let token = lab.drain(0, &[], false);
    assert!(matches!(lab.answer(0, token), Some(Answer::Refused { why, .. }) if why.contains("fewer than 2")));
}

#[test]
fn a_drain_whose_relief_fails_while_it_waits_ends_and_the_node_stays() {
    let mut lab = Lab::announcing(2, 1, true);
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    lab.kill_balancer(1);
    lab.run(ms(500));
    assert!(matches!(lab.answer(0, token), Some(Answer::PeerLost(_))), "{}", lab.story());
    assert!(lab.routers[0].ways(VIP).contains(&0));
    let last = lab.routers[0].told.iter().rev().find(|(_, host, told)| *host == 0 && announced(told));
    assert!(matches!(last, Some((_, _, Told::Announced { med: Some(0), .. }))), "{last:?}");
}

#[test]
fn a_drain_survives_a_restart_of_the_worker_without_being_announced_again() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.drain(0, &[], false);
    lab.run(ms(4_000));
    lab.crash(0);
    lab.run(ms(100));
    let since = lab.at();
    lab.start(0);
    lab.run(ms(5_000));
    assert!(!lab.routers[0].told_by(0, since).iter().any(|told| announced(told)), "{}", lab.story());
}

#[test]
fn a_link_that_goes_down_ends_its_sessions_at_once_and_they_are_back_with_it() {
    let mut lab = Lab::announcing(1, 1, false);
    lab.link(0, false);
    assert_eq!(lab.node(0).status(lab.now).neighbors[0].state, "idle");
    lab.run(ms(5_000));
    lab.link(0, true);
    let took = lab.until(ms(1_000), |lab| lab.routers[0].ways(VIP) == [0]);
    assert!(took <= ms(10), "{took:?}");
}

#[test]
fn two_units_of_one_network_share_its_route_and_the_last_one_takes_it_along() {
    let net = |config: &mut Config| {
        config.vips[0].addresses[0].prefix = 24;
        let mut other = Vip { name: name("other"), checks: vec![], balancers: vec![], ..config.vips[0].clone() };
        other.addresses[0].ip = VIP2;
        other.members[0] = crate::config::Member { name: name("other"), addresses: vec![VIP2] };
        config.vips.push(other);
    };
    let mut lab = Lab::announcing_with(1, 1, false, net);
    lab.kill_balancer(0);
    lab.run(ms(2_000));
    assert_eq!(lab.routers[0].ways(VIP), [0], "the other one still has it");
    lab.feed(0, Input::Disabled { vip: VipId(1), disabled: true });
    lab.run(ms(100));
    assert!(lab.routers[0].ways(VIP).is_empty());
    lab.revive_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.routers[0].ways(VIP), [0], "the first one that returns brings it back");
}

#[test]
fn hundreds_of_units_go_out_in_few_messages_and_are_withdrawn_in_one() {
    let many = |config: &mut Config| {
        for n in 0..400_u16 {
            let [high, low] = n.to_be_bytes();
            let ip = std::net::IpAddr::from([10, 9, high, low]);
            let mut vip = Vip { name: name(&format!("v{n}")), ..config.vips[0].clone() };
            vip.addresses[0].ip = ip;
            vip.members[0] = crate::config::Member { name: vip.name.clone(), addresses: vec![ip] };
            config.vips.push(vip);
        }
    };
    let mut lab = Lab::announcing_with(1, 1, false, many);
    assert_eq!(lab.routers[0].table.len(), 401);
    let updates = |lab: &Lab, since: usize| {
        let update = |(_, o): &&(Duration, Output)| matches!(o, Output::Bgp { output: BgpOutput::Send { bytes, .. }, .. } if bytes.get(18) == Some(&2));
        lab.hosts[0].log[since..].iter().filter(update).count()
    };
    assert!(updates(&lab, 0) <= 20, "{}", updates(&lab, 0));
    let before = lab.hosts[0].log.len();
    lab.kill_balancer(0);
    assert_eq!(updates(&lab, before), 1, "in the turn of the verdict");
    let since = |lab: &Lab, test: &dyn Fn(&Output) -> bool| {
        lab.hosts[0].log[before..].iter().filter(|(_, output)| test(output)).count()
    };
    let fitness = |o: &Output| matches!(o, Output::Event(e) if matches!(e.kind, Kind::VipFitness { .. }));
    let withdrawn = |o: &Output| matches!(o, Output::Event(e) if matches!(e.kind, Kind::RouteWithdrawn { .. }));
    assert_eq!((since(&lab, &fitness), since(&lab, &withdrawn)), (0, 0), "what takes long comes after it");
    lab.run(ms(10));
    assert!(lab.routers[0].table.is_empty());
    assert_eq!((since(&lab, &fitness), since(&lab, &withdrawn)), (401, 401));
    assert_eq!(lab.hosts[0].kernel.len(), 402, "for what is still on its way");
    lab.run(ms(2_000));
    assert_eq!(lab.hosts[0].kernel.len(), 1);
    assert_eq!(updates(&lab, before), 1);
    lab.revive_balancer(0);
    lab.run(ms(3_000));
    assert_eq!(lab.routers[0].table.len(), 401, "and all of it comes back");
}

//! What people complain about in other VRRP daemons, and what happens here instead. The table is tests/COMPLAINTS.md.

use super::guards::{a_cut_off_node_owns_nothing, a_new_agent_holds_off, waiting_equals_differ};
use super::lab::*;
use crate::config::{CheckId, Hook, HookEvent, Partition};
use crate::io::{Address, UnitState};
use crate::journal::Kind;
use crate::{Input, Output, Step};
use holdfast_vrrp::{AdvertInterval, State};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

fn changes_of_role(lab: &Lab, i: usize) -> usize {
    lab.kinds(i).iter().filter(|k| matches!(k, Kind::VipState { .. })).count()
}

fn state(lab: &Lab, i: usize) -> State {
    lab.node(i).world().vips[0].state
}

#[test]
fn a_startup_delay_is_a_deadline_and_what_is_heard_meanwhile_counts() {
    a_new_agent_holds_off().expect("the guard is on");
    let mut lab = Lab::new(&[254, 253], false);
    lab.hosts[0].config.vips[0].vrrp.startup_delay = ms(5_000);
    lab.start(1);
    lab.run(ms(2_000));
    lab.start(0);
    lab.run(ms(4_900));
    assert_eq!(lab.owners(), [1], "the better node waits");
    assert!(lab.node(0).world().vips[0].heard.is_some());
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0], "until its deadline, and no longer");
    assert!(lab.dual_max <= ms(2), "{:?}", lab.dual_max);
}

#[test]
fn a_node_that_is_not_better_is_backup_after_its_startup_delay_and_stays_that() {
    let mut lab = Lab::new(&[254, 253], false);
    lab.hosts[1].config.vips[0].vrrp.startup_delay = ms(5_000);
    lab.start(0);
    lab.run(ms(1_000));
    lab.start(1);
    lab.run(ms(6_000));
    assert_eq!(state(&lab, 1), State::Backup);
    lab.run(ms(20_000));
    assert_eq!((lab.owners(), lab.dual_max), (vec![0], Duration::ZERO));
}

#[test]
fn a_preempt_delay_keeps_nobody_waiting_when_a_whole_site_powers_on() {
    let mut lab = Lab::new(&[254, 253], false);
    for i in [0, 1] {
        lab.hosts[i].config.vips[0].vrrp.preempt_delay = ms(30_000);
        lab.start(i);
    }
    // Checks pass after 100 ms; a down time at priority 254 is 301 ms, one more if the election began before.
    lab.until(ms(900), |lab| lab.owners().len() == 1);
}

#[test]
fn a_preempt_delay_counts_from_the_end_of_a_fault_too() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].vrrp.preempt_delay = ms(10_000));
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1]);
    lab.revive_balancer(0);
    lab.run(ms(9_000));
    assert_eq!(lab.owners(), [1]);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn after_its_fault_a_node_that_may_not_preempt_leaves_the_owner_alone() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].vrrp.preempt = false);
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [1]);
    let changes = changes_of_role(&lab, 1);
    lab.revive_balancer(0);
    lab.run(ms(30_000));
    assert_eq!((lab.owners(), changes_of_role(&lab, 1)), (vec![1], changes));
}

#[test]
fn a_failing_owner_yields_to_a_healthy_node_even_where_nobody_may_preempt() {
    for channel in [false, true] {
        let mut lab = Lab::settled_with(&[254, 253], channel, |config| config.vips[0].vrrp.preempt = false);
        lab.kill_balancer(0);
        let took = lab.until(ms(100), |lab| lab.owners() == [1]);
        assert!(took <= ms(3), "{took:?}");
        // One that keeps what nobody took meets a node that comes up well.
        let mut lab = Lab::new(&[254, 253], channel);
        for host in &mut lab.hosts {
            host.config.vips[0].vrrp.preempt = false;
        }
        lab.hosts[0].probes = Probes::Bad;
        lab.start(0);
        lab.run(ms(1_000));
        assert_eq!(lab.owners(), [0]);
        lab.start(1);
        lab.run(ms(1_000));
        assert_eq!(lab.owners(), [1], "{}", lab.story());
    }
}

#[test]
fn of_three_equals_one_takes_over_and_nobody_else_moves() {
    waiting_equals_differ().expect("the guard is on");
    for channel in [true, false] {
        let mut lab = Lab::new(&[100, 100, 100], channel);
        (0..3).for_each(|i| lab.start(i));
        lab.run(ms(3_000));
        let owners = lab.owners();
        let [owner] = owners[..] else { panic!("{owners:?}\n{}", lab.story()) };
        let before: Vec<usize> = (0..3).map(|i| changes_of_role(&lab, i)).collect();
        lab.crash(owner);
        lab.run(ms(3_000));
        let owners = lab.owners();
        let [next] = owners[..] else { panic!("{owners:?}\n{}", lab.story()) };
        for i in (0..3).filter(|i| *i != owner) {
            let more = changes_of_role(&lab, i) - before[i];
            assert_eq!(more, usize::from(i == next), "lb{i}\n{}", lab.story());
        }
    }
}

#[test]
fn after_fifty_flaps_the_kernel_has_what_the_roles_say() {
    let mut lab = Lab::settled(&[254, 253], true);
    for n in 0..100 {
        lab.link(n % 2, n % 4 < 2);
        lab.run(ms(100));
    }
    lab.link(0, true);
    lab.link(1, true);
    lab.run(ms(3_000));
    assert!(changes_of_role(&lab, 0) + changes_of_role(&lab, 1) >= 50, "{}", lab.story());
    for i in [0, 1] {
        let there = lab.hosts[i].kernel.keys().any(|key| key.1 == VIP);
        assert_eq!(there, state(&lab, i) == State::Active, "lb{i}");
    }
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn after_addresses_and_links_of_both_were_lost_in_turn_one_owner_is_left() {
    let mut lab = Lab::settled(&[254, 253], false);
    for round in 0..6 {
        let i = round % 2;
        let lost: Vec<_> = lab.hosts[i].kernel.keys().copied().collect();
        lab.hosts[i].kernel.clear();
        for (ifindex, ip, prefix) in lost {
            lab.feed(i, Input::AddressGone { ifindex, ip, prefix });
        }
        lab.link(i, false);
        lab.run(ms(50));
        lab.link(i, true);
        own_address(&mut lab, i);
        lab.run(ms(400));
    }
    lab.run(ms(1_400));
    assert_eq!(lab.owners(), [0], "{}", lab.story());
}

/// The host gets its own address (again).
fn own_address(lab: &mut Lab, i: usize) {
    let (ip, prefix) = (IpAddr::V4(source(i)), 24);
    lab.hosts[i].kernel.insert((2, ip, prefix), (false, None));
    let address = Address { ifindex: 2, ip, prefix, marked: false, secondary: false, tentative: false };
    lab.feed(i, Input::Address(address));
}

#[test]
fn a_node_without_a_source_address_takes_no_part_until_it_has_one_again() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.hosts[1].kernel.clear();
    lab.feed(1, Input::AddressGone { ifindex: 2, ip: IpAddr::V4(source(1)), prefix: 24 });
    lab.run(ms(10));
    assert_eq!(state(&lab, 1), State::Initialize);
    lab.link(0, false);
    lab.run(ms(1_000));
    assert!(lab.owners().is_empty(), "one that can't speak doesn't claim");
    own_address(&mut lab, 1);
    lab.run(ms(10));
    assert_eq!(state(&lab, 1), State::Backup);
    lab.run(ms(400));
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn a_backup_whose_link_flaps_never_has_the_address() {
    let mut lab = Lab::settled(&[254, 253], true);
    for n in 0..20 {
        lab.link(1, n % 2 == 1);
        for _ in 0..50 {
            lab.run(ms(1));
            assert!(!lab.hosts[1].kernel.keys().any(|key| key.1 == VIP), "{}", lab.story());
        }
    }
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_node_killed_with_all_its_processes_comes_back_without_a_second_owner() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.crash(0);
    let took = lab.until(ms(400), |lab| lab.owners().contains(&1));
    assert!(took <= ms(302), "{took:?}");
    lab.run(ms(500));
    assert_eq!(lab.owners(), [0, 1], "nobody is left to remove it but the kernel, within 2 s");
    lab.start(0);
    lab.run(ms(1));
    assert_eq!(lab.owners(), [1], "the new agent does it at once");
    for _ in 0..300 {
        lab.run(ms(10));
        assert!(lab.owners().len() <= 1 || lab.dual_max <= ms(2), "{}", lab.story());
    }
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn an_ipv6_leftover_is_removed_at_start_like_any_other() {
    let mut lab = Lab::new(&[254, 253], false);
    lab.start(0);
    let key = (2, "2001:db8::10".parse::<IpAddr>().expect("an address"), 128);
    lab.hosts[1].kernel.insert(key, (true, None));
    lab.start(1);
    lab.run(ms(10));
    assert!(!lab.hosts[1].kernel.contains_key(&key));
}

#[test]
fn every_promotion_of_a_group_announces_every_member_and_flapping_ends_well() {
    let mut lab = Lab::settled_with(&[254, 253], true, group);
    for _ in 0..20 {
        lab.link(0, false);
        lab.run(ms(150));
        lab.link(0, true);
        lab.run(ms(150));
    }
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    for i in [0, 1] {
        let mut announced = BTreeMap::<Duration, Vec<IpAddr>>::new();
        for (at, output) in &lab.hosts[i].log {
            if let Output::Step(Step::Announce { ip, .. }) = output {
                announced.entry(*at).or_default().push(*ip);
            }
        }
        let active = |(at, e): &(Duration, crate::journal::Event)| match &e.kind {
            Kind::VipState { to, .. } if to == "active" => Some(*at),
            _ => None,
        };
        let promotions: Vec<Duration> = lab.hosts[i].events.iter().filter_map(active).collect();
        assert!(!promotions.is_empty());
        for at in promotions {
            let mut at_once = announced.get(&at).cloned().unwrap_or_default();
            at_once.sort_unstable();
            assert_eq!(at_once, [VIP, VIP2], "lb{i} at {at:?}");
        }
    }
}

#[test]
fn a_host_that_was_suspended_for_a_minute_listens_before_it_claims() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.pause(0);
    lab.run(ms(60_000));
    assert_eq!(lab.owners(), [1]);
    lab.forget_duals();
    lab.resume(0);
    lab.run(ms(2_000));
    assert!(lab.dual_max <= ms(2), "{:?}\n{}", lab.dual_max, lab.story());
    assert_eq!(lab.owners(), [0]);
    assert!(lab.has(0, |k| matches!(k, Kind::Stalled { .. })));
}

#[test]
fn a_promotion_with_500_addresses_delays_no_advert() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        let vip = &mut config.vips[0];
        vip.vrrp.interval = AdvertInterval::from_cs(2).expect("an interval");
        let first = vip.addresses[0].clone();
        vip.addresses.extend((0..499_u16).map(|n| crate::config::VipAddress {
            ip: IpAddr::from([198, 51, u8::try_from(n / 200).expect("few"), u8::try_from(n % 200).expect("few")]),
            advertise: false,
            ..first.clone()
        }));
    });
    let since = lab.at();
    lab.kill_balancer(0);
    lab.until(ms(1_000), |lab| lab.hosts[1].kernel.len() == 501);
    lab.run(ms(1_000));
    let adverts = lab.hosts[1].log.iter().filter(|(at, o)| *at >= since && matches!(o, Output::Advert { .. }));
    let times: Vec<Duration> = adverts.map(|(at, _)| *at).collect();
    assert!(times[0] - since <= ms(2), "the advert comes before the addresses");
    let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap <= Some(ms(40)), "{gap:?}");
    let mut work = BTreeMap::<Duration, usize>::new();
    for (at, output) in lab.hosts[1].log.iter().filter(|(at, _)| *at >= since) {
        *work.entry(*at).or_default() += usize::from(matches!(output, Output::Step(_)));
    }
    assert!(work.values().all(|steps| *steps <= 300), "no turn does more: {:?}", work.values().max());
}

#[test]
fn when_the_checks_of_all_nodes_fail_one_holds_it_and_it_does_not_wander() {
    for channel in [true, false] {
        let mut lab = Lab::settled(&[254, 253], channel);
        lab.hosts.iter_mut().for_each(|host| host.probes = Probes::Bad);
        lab.run(ms(3_000));
        let owners = lab.owners();
        assert_eq!(owners.len(), 1, "{}", lab.story());
        let changes = [0, 1].map(|i| changes_of_role(&lab, i));
        lab.run(ms(30_000));
        assert_eq!((lab.owners(), [0, 1].map(|i| changes_of_role(&lab, i))), (owners, changes), "{}", lab.story());
    }
}

#[test]
fn of_two_sides_the_one_whose_gateway_answers_owns_it() {
    a_cut_off_node_owns_nothing().expect("the guard is on");
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        let vip = &mut config.vips[0];
        vip.checks.clear();
        vip.vrrp.partition = Partition::Gateway;
        vip.vrrp.gateway = Some(CheckId(0));
    });
    lab.hosts[0].probes = Probes::Bad;
    lab.isolate(0, true);
    lab.cut_channels(0, true);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    lab.hosts[0].probes = Probes::Good;
    lab.isolate(0, false);
    lab.cut_channels(0, false);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn a_node_whose_gateway_is_silent_leaves_an_owner_in_peace_that_it_would_outrank() {
    // Without a channel the adverts of the owner are all that is heard of it, and they end with its preemption.
    let mut lab = Lab::settled_with(&[254, 253], false, |config| {
        let vip = &mut config.vips[0];
        vip.checks.clear();
        vip.vrrp.partition = Partition::Gateway;
        vip.vrrp.gateway = Some(CheckId(0));
    });
    lab.hosts[0].probes = Probes::Bad;
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    let changes = [0, 1].map(|i| changes_of_role(&lab, i));
    lab.run(ms(30_000));
    assert_eq!((lab.owners(), [0, 1].map(|i| changes_of_role(&lab, i))), (vec![1], changes), "{}", lab.story());
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0], "{}", lab.story());
}

#[test]
fn hooks_run_for_each_vip_of_a_group_and_name_it() {
    let mut lab = Lab::settled_with(&[254], false, |config| {
        group(config);
        config.hooks = vec![Hook {
            name: name("tell"),
            on: vec![HookEvent::Active],
            exec: vec!["/bin/true".to_owned()],
            timeout: ms(1_000),
        }];
    });
    lab.run(ms(10));
    let told = |(_, o): &(Duration, Output)| match o {
        Output::RunHook { environment, .. } => {
            Some(environment.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>())
        }
        _ => None,
    };
    let runs: Vec<Vec<String>> = lab.hosts[0].log.iter().filter_map(told).collect();
    assert_eq!(runs.len(), 2);
    for (run, member) in runs.iter().zip(["HOLDFAST_VIP=web", "HOLDFAST_VIP=web2"]) {
        assert_eq!((run[0].as_str(), run[3].as_str()), (member, "HOLDFAST_GROUP=edge"));
    }
}

#[test]
fn programs_that_know_keepalived_are_told_each_change_once() {
    let mut lab = Lab::settled(&[254], false);
    lab.link(0, false);
    lab.run(ms(100));
    lab.link(0, true);
    lab.run(ms(1_000));
    lab.feed(0, Input::Stop { deadline: ms(500) });
    lab.run(ms(1_000));
    let told = |(_, o): &(Duration, Output)| match o {
        Output::State { state, .. } => Some(*state),
        _ => None,
    };
    let told: Vec<UnitState> = lab.hosts[0].log.iter().filter_map(told).collect();
    use UnitState::{Active, Backup, Fault, Stopped};
    assert_eq!(told, [Backup, Active, Fault, Backup, Active, Stopped]);
}

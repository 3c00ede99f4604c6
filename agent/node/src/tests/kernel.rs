//! What nodes do to the kernel: addresses, sockets, announcements, drift.

use super::lab::*;
use crate::config::{Hook, HookEvent, VipAddress, VipId};
use crate::io::Link;
use crate::journal::Kind;
use crate::{Input, Output, Step};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

fn count(log: &[&Output], test: impl Fn(&Step) -> bool) -> usize {
    log.iter().filter(|o| matches!(o, Output::Step(step) if test(step))).count()
}

#[test]
fn a_deleted_address_is_back_at_once_and_announced_without_a_change_of_role() {
    let mut lab = Lab::settled(&[254, 253], true);
    let epoch = lab.node(0).world().vips[0].role_epoch;
    lab.run(ms(5_000));
    let since = lab.at();
    lab.delete_address(0);
    lab.run(ms(1));
    assert_eq!(lab.owners(), [0]);
    let log = lab.log_since(0, since);
    assert_eq!(count(&log, |s| matches!(s, Step::Announce { .. })), 1, "{log:?}");
    assert_eq!(lab.node(0).world().vips[0].role_epoch, epoch);
    assert!(lab.has(0, |k| matches!(k, Kind::AddressVanished { .. })));
}

#[test]
fn an_address_that_is_deleted_again_and_again_is_a_fault_and_moves() {
    let mut lab = Lab::settled(&[254, 253], true);
    for _ in 0..21 {
        lab.delete_address(0);
        lab.run(ms(10));
    }
    assert!(lab.has(0, |k| matches!(k, Kind::AddressFault { .. })), "{}", lab.story());
    assert_eq!(lab.owners(), [1]);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0], "tried again after a while");
}

#[test]
fn an_address_that_vanishes_on_the_last_node_is_retried_once_a_second() {
    let mut lab = Lab::settled(&[254], false);
    for _ in 0..21 {
        lab.delete_address(0);
        lab.run(ms(10));
    }
    assert!(lab.owners().is_empty());
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn an_owner_whose_address_is_refused_hands_over() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.drain(0, &[], false);
    lab.run(ms(1_000));
    lab.hosts[0].add_errno = Some(1);
    lab.undrain(0);
    lab.run(ms(800));
    assert!(lab.has(0, |k| matches!(k, Kind::StepFailed { .. })), "{}", lab.story());
    assert!(lab.has(0, |k| matches!(k, Kind::AddressFault { .. })));
    assert_eq!(lab.owners(), [1]);
    lab.hosts[0].add_errno = None;
    lab.run(ms(4_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max <= ms(90), "10 + 20 + 40 ms of retries: {:?}", lab.unowned_max);
}

#[test]
fn an_owner_refreshes_its_address_every_half_second() {
    let mut lab = Lab::settled(&[254], false);
    let since = lab.at();
    lab.run(ms(5_000));
    let added = count(&lab.log_since(0, since), |s| matches!(s, Step::AddAddress { .. }));
    assert!((9..=11).contains(&added), "{added}");
    lab.crash(0);
    lab.run(ms(2_100));
    assert!(lab.owners().is_empty(), "the kernel drops what nobody refreshes");
}

#[test]
fn announcements_follow_a_takeover_in_two_bursts() {
    let mut lab = Lab::settled(&[254, 253], true);
    let since = lab.at();
    lab.kill_balancer(0);
    lab.run(ms(7_000));
    let at = |(at, o): &(Duration, Output)| {
        (*at >= since && matches!(o, Output::Step(Step::Announce { .. }))).then(|| (*at - since).as_millis())
    };
    let times: Vec<u128> = lab.hosts[1].log.iter().filter_map(at).collect();
    assert_eq!(times, [0, 50, 250, 1_000, 5_000, 5_050, 5_250, 6_000]);
}

#[test]
fn a_recreated_interface_works_under_its_new_index() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].present = false;
    lab.hosts[0].kernel.clear();
    lab.hosts[0].sockets.clear();
    lab.feed(0, Input::LinkGone { ifindex: 2 });
    lab.run(ms(1));
    assert_eq!(lab.owners(), [1], "handed over");
    lab.run(ms(1_000));
    lab.hosts[0].present = true;
    lab.hosts[0].ifindex = 7;
    lab.hosts[0].kernel.insert((7, IpAddr::V4(source(0)), 24), (false, None));
    lab.resync(0);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.hosts[0].sockets.iter().any(|s| s.ifindex == Some(7)));
    assert!(lab.hosts[0].kernel.contains_key(&(7, VIP, 32)));
}

#[test]
fn a_rename_in_place_is_taken_as_the_old_interface_gone() {
    let mut lab = Lab::settled(&[254, 253], true);
    let link = Link { ifindex: 9, name: eth0(), up: true, mac: [2; 6], mtu: 1500 };
    lab.feed(0, Input::Link(link));
    lab.run(ms(1));
    assert_eq!(lab.owners(), [0, 1], "the lab's kernel still has it on the old index, which we were not told is gone");
    assert_eq!(lab.node(0).world().vips[0].state, holdfast_vrrp::State::Initialize);
}

#[test]
fn without_an_address_of_its_own_a_node_takes_no_part() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.feed(0, Input::AddressGone { ifindex: 2, ip: IpAddr::V4(source(0)), prefix: 24 });
    lab.run(ms(10));
    assert_eq!(lab.owners(), [1]);
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.vips[0].state, "off");
    assert!(status.vips[0].reasons[0].contains("no IPv4 address"), "{:?}", status.vips[0].reasons);
}

#[test]
fn many_addresses_are_added_in_batches_with_adverts_between() {
    let mut lab = Lab::new(&[254], false);
    let address = |n: u16| VipAddress {
        ip: IpAddr::V4(Ipv4Addr::new(198, 51, (n / 200) as u8, (n % 200) as u8)),
        prefix: 32,
        interface: eth0(),
        advertise: false,
        derived: false,
    };
    lab.hosts[0].config.vips[0].addresses.extend((0..499).map(address));
    lab.start(0);
    lab.run(ms(3_000));
    assert_eq!(lab.hosts[0].kernel.len(), 501);
    let mut per_instant = std::collections::BTreeMap::<Duration, usize>::new();
    for (at, output) in &lab.hosts[0].log {
        if matches!(output, Output::Step(Step::AddAddress { .. } | Step::Announce { .. })) {
            *per_instant.entry(*at).or_default() += 1;
        }
    }
    let most = per_instant.values().max().copied().unwrap_or(0);
    assert!(most <= 200, "100 additions and 100 announcements at most: {most}");
    lab.feed(0, Input::Stop { deadline: ms(2_000) });
    lab.run(ms(2_000));
    assert!(lab.hosts[0].stopped);
    assert_eq!(lab.hosts[0].kernel.len(), 1, "only its own address is left");
}

#[test]
fn an_overrun_of_events_is_made_good_by_the_dump() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.hosts[0].kernel.remove(&(2, VIP, 32));
    lab.resync(0);
    lab.run(ms(1));
    assert_eq!(lab.owners(), [0]);
}

#[test]
fn the_ledger_covers_an_address_before_it_is_added_until_after_it_is_removed() {
    let mut lab = Lab::settled(&[254, 253], true);
    let record = lab.hosts[0].records[&0].clone();
    assert!(record.active && !record.resign.is_empty());
    assert_eq!(record.addresses, [(2, VIP, 32)]);
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    let record = &lab.hosts[0].records[&0];
    assert!(!record.active && record.resign.is_empty() && record.addresses.is_empty(), "{record:?}");
}

#[test]
fn hooks_run_at_active_and_backup_with_the_reason() {
    let mut lab = Lab::new(&[254], false);
    let hook = Hook {
        name: name("tell"),
        on: vec![HookEvent::Active, HookEvent::Backup, HookEvent::Fault],
        exec: vec!["/bin/true".to_owned()],
        timeout: ms(1_000),
    };
    lab.hosts[0].config.hooks.push(hook);
    lab.start(0);
    lab.run(ms(2_000));
    lab.link(0, false);
    lab.run(ms(10));
    let run = |(_, o): &(Duration, Output)| match o {
        Output::RunHook { hook: 0, environment } => Some(environment[1].1.clone()),
        _ => None,
    };
    let runs: Vec<String> = lab.hosts[0].log.iter().filter_map(run).collect();
    assert_eq!(runs, ["active", "fault"]);
}

#[test]
fn an_ipv6_address_is_announced_when_the_kernel_answers_for_it_and_lives_three_seconds() {
    let mut lab = Lab::new(&[254], false);
    let six: IpAddr = "2001:db8::10".parse().expect("an address");
    let address = VipAddress { ip: six, prefix: 128, interface: eth0(), advertise: false, derived: false };
    lab.hosts[0].config.vips[0].addresses.push(address);
    lab.start(0);
    let active = |lab: &Lab| lab.node(0).vips[0].router.state() == holdfast_vrrp::State::Active;
    while !active(&lab) {
        lab.run(Duration::from_micros(100));
    }
    lab.run(ms(10));
    let log = lab.log_since(0, Duration::ZERO);
    let announced =
        |ip: IpAddr| log.iter().filter(|o| matches!(o, Output::Step(Step::Announce { ip: a, .. }) if *a == ip)).count();
    assert_eq!((announced(six), announced(VIP)), (1, 1));
    let position = |is: fn(&Output) -> bool| lab.hosts[0].log.iter().position(|(_, o)| is(o));
    let six_announced = |o: &Output| matches!(o, Output::Step(Step::Announce { ip, .. }) if ip.is_ipv6());
    let at = |at: Option<usize>| lab.hosts[0].log[at.expect("it happens")].0;
    let added = |o: &Output| matches!(o, Output::Step(Step::AddAddress { ip, .. }) if ip.is_ipv6());
    assert!(at(position(six_announced)) > at(position(added)), "not before the kernel's event");
    let lifetime = |ip: IpAddr| {
        log.iter().find_map(|o| match o {
            Output::Step(Step::AddAddress { ip: a, lifetime, .. }) if *a == ip => Some(*lifetime),
            _ => None,
        })
    };
    assert_eq!((lifetime(six), lifetime(VIP)), (Some(ms(3_000)), Some(ms(2_000))));
}

#[test]
fn refreshes_and_reports_of_an_owner_go_out_in_turns_of_its_adverts() {
    let mut lab = Lab::settled(&[254, 253], true);
    lab.run(ms(3_000));
    let log = lab.hosts[0].log.len();
    lab.run(ms(2_000));
    let log = &lab.hosts[0].log[log..];
    let at = |test: fn(&Output) -> bool| -> Vec<Duration> {
        log.iter().filter(|(_, output)| test(output)).map(|(at, _)| *at).collect()
    };
    let adverts = at(|output| matches!(output, Output::Advert { .. }));
    let refreshes = at(|output| matches!(output, Output::Step(Step::AddAddress { .. })));
    let datagrams = at(|output| matches!(output, Output::Datagram { .. }));
    assert!((4..=5).contains(&refreshes.len()) && (19..=21).contains(&datagrams.len()), "{refreshes:?} {datagrams:?}");
    let alone = |times: &[Duration]| times.iter().filter(|at| !adverts.contains(at)).count();
    assert_eq!((alone(&refreshes), alone(&datagrams)), (0, 0), "{adverts:?} {refreshes:?} {datagrams:?}");
}

#[test]
fn adverts_of_many_vips_fall_into_step_and_none_is_ever_late() {
    const VIPS: u8 = 40;
    let mut lab = Lab::new(&[254], false);
    // They become Active one after the other, all over an interval.
    for n in 1..VIPS {
        let mut more = vip(&format!("w{n}"), Ipv4Addr::new(192, 0, 2, 20 + n).into(), 10 + n, 254);
        more.vrrp.startup_delay = ms(u64::from(n) * 7 % 100);
        lab.hosts[0].config.vips.push(more);
    }
    lab.start(0);
    lab.run(ms(4_000));
    let mut of = std::collections::BTreeMap::<VipId, Vec<Duration>>::new();
    for (at, output) in &lab.hosts[0].log {
        if let Output::Advert { vip, .. } = output {
            of.entry(*vip).or_default().push(*at);
        }
    }
    assert_eq!(of.len(), usize::from(VIPS));
    for times in of.values() {
        assert!(times.windows(2).all(|pair| (ms(90)..=ms(100)).contains(&(pair[1] - pair[0]))), "{times:?}");
    }
    let last = lab.at() - ms(1_000);
    let turns: std::collections::BTreeSet<_> = of.values().flatten().filter(|at| **at > last).collect();
    assert!(turns.len() <= 110, "{} wake-ups a second for {VIPS} VIPs", turns.len());
}

#[test]
fn no_turn_takes_over_more_than_a_hundred_vips() {
    let mut lab = Lab::new(&[254], false);
    for n in 1..=250_u8 {
        let more = vip(&format!("w{n}"), Ipv4Addr::new(198, 51, 100, n).into(), n, 254);
        lab.hosts[0].config.vips.push(more);
    }
    lab.hosts[0].config.vips.remove(0);
    lab.start(0);
    lab.run(ms(2_000));
    // What a turn puts out begins with the records of the units and then has their adverts.
    let log = lab.log_since(0, Duration::ZERO);
    let takes = |output: &&Output| matches!(output, Output::Advert { .. });
    let turns: Vec<usize> =
        log.chunk_by(|a, b| takes(a) == takes(b)).filter(|turn| takes(&turn[0])).map(<[_]>::len).collect();
    assert_eq!(turns.iter().take(3).copied().collect::<Vec<_>>(), [100, 100, 50]);
}

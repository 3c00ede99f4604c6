//! What is configured of units that BGP announces, and what they tell: routers, the keeper, people.

use super::lab::*;
use crate::Input;
use crate::Step;
use crate::config::{LastNode, NeighborId, Overrides, Unwell};
use crate::io::{BgpInput, BgpOutput, Output};
use crate::journal::Kind;
use std::time::Duration;

#[test]
fn its_address_lives_longer_than_a_restart_and_is_refreshed_at_every_quarter() {
    let mut lab = Lab::announcing(1, 1, false);
    let since = lab.at();
    lab.run(ms(24_500));
    let lifetimes: Vec<_> = lab
        .log_since(0, since)
        .iter()
        .filter_map(|o| if let Output::Step(Step::AddAddress { lifetime, .. }) = o { Some(*lifetime) } else { None })
        .collect();
    assert_eq!(lifetimes, [ms(24_500); 4], "half the hold time, then the restart time, and 5 s more");
}

#[test]
fn announce_delay_holds_off_for_its_time_and_no_longer() {
    super::guards::an_announcement_is_delayed().expect("the guard is on");
    let mut lab = Lab::new(&[100], false).with_routers(1);
    anycast(&mut lab.hosts[0].config, 1);
    lab.hosts[0].config.vips[0].bgp.as_mut().expect("announced").announce_delay = ms(5_000);
    lab.start(0);
    lab.run(ms(5_010));
    assert_eq!(lab.routers[0].ways(VIP), [0], "{}", lab.story());
    lab.crash(0);
    lab.boot(0, vec![("web".to_owned(), 1)]);
    lab.run(ms(1_000));
    assert_eq!(lab.routers[0].ways(VIP), [0], "a resumed one is not delayed");
}

#[test]
fn an_unfit_node_leaves_although_it_is_the_last_where_that_is_wanted() {
    let mut lab = Lab::announcing_with(2, 1, true, |config| config.vips[0].last_node = LastNode::Withdraw);
    lab.kill_balancer(0);
    lab.kill_balancer(1);
    lab.run(ms(2_000));
    assert!(lab.routers[0].ways(VIP).is_empty());
}

#[test]
fn fewer_than_min_announcing_others_keep_an_unfit_node() {
    let mut lab = Lab::announcing_with(3, 1, true, |config| {
        config.vips[0].bgp.as_mut().expect("announced").min_announcing = 2;
    });
    lab.kill_balancer(0);
    lab.run(ms(1_000));
    assert_eq!(lab.routers[0].ways(VIP), [1, 2], "two others can");
    lab.kill_balancer(1);
    lab.run(ms(1_000));
    assert!(lab.routers[0].ways(VIP).contains(&1), "{}", lab.story());
}

#[test]
fn down_is_announced_as_worse_where_that_is_wanted_and_a_dead_balancer_is_withdrawn() {
    let mut lab = Lab::announcing_with(2, 1, true, |config| {
        let worse = Overrides { med: Some(1_000), communities: Some(vec![0x0001_0002]), ..Overrides::default() };
        config.vips[0].bgp.as_mut().expect("announced").on_down = Unwell::Announce(worse);
    });
    let since = lab.at();
    lab.hosts[0].probes = Probes::Bad;
    lab.run(ms(2_000));
    let told = lab.routers[0].told_by(0, since);
    assert!(
        matches!(&told[..], [Told::Announced { med: Some(1_000), communities, .. }] if *communities == [0x0001_0002]),
        "{told:?}"
    );
    assert!(lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)));
    lab.hosts[0].probes = Probes::Good;
    lab.run(ms(2_000));
    let told = lab.routers[0].told_by(0, since);
    assert!(matches!(&told[..], [_, Told::Announced { med: Some(0), .. }]), "{told:?}");
    lab.kill_balancer(0);
    lab.run(ms(100));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
}

#[test]
fn a_disable_file_withdraws_or_announces_as_worse_whatever_the_checks_say() {
    let mut lab = Lab::announcing(2, 1, true);
    lab.feed(0, Input::Disabled { vip: W, disabled: true });
    lab.run(ms(5));
    assert_eq!(lab.routers[0].ways(VIP), [1]);
    lab.run(ms(2_000));
    assert!(!lab.hosts[0].kernel.contains_key(&(LO, VIP, 32)));
    assert_eq!(lab.node(0).status(lab.now).vips[0].fitness, "withheld");
    lab.feed(0, Input::Disabled { vip: W, disabled: false });
    lab.run(ms(5));
    assert_eq!(lab.routers[0].ways(VIP), [0, 1]);

    let mut worse = Lab::announcing_with(2, 1, true, |config| {
        let med = Overrides { med: Some(500), ..Overrides::default() };
        config.vips[0].bgp.as_mut().expect("announced").on_disabled = Unwell::Announce(med);
    });
    let since = worse.at();
    worse.feed(0, Input::Disabled { vip: W, disabled: true });
    worse.hosts[0].probes = Probes::Bad;
    worse.run(ms(3_000));
    let told = worse.routers[0].told_by(0, since);
    assert!(matches!(told[..], [Told::Announced { med: Some(500), .. }]), "{told:?}");
}

#[test]
fn what_flaps_is_held_back_and_comes_back_by_itself() {
    super::guards::a_flapping_unit_is_damped().expect("the guard is on");
}

#[test]
fn status_tells_who_announces_and_how_it_stands_with_each_router() {
    let mut lab = Lab::announcing(2, 2, true);
    lab.run(ms(1_000));
    let status = lab.node(0).status(lab.now);
    let vip = &status.vips[0];
    assert_eq!((vip.state.as_str(), vip.owner.as_deref()), ("announced", Some("lb0, lb1")));
    let route = vip.route.as_ref().expect("announced");
    assert_eq!((route.form.as_deref(), route.told.len(), route.neighbors.len()), (Some("normal"), 2, 2));
    let r1 = &status.neighbors[0];
    assert_eq!((r1.name.as_str(), r1.state.as_str(), r1.announced, r1.wanted), ("r1", "established", 1, 1));
    assert!(r1.capabilities.iter().any(|c| c == "graceful restart"), "{:?}", r1.capabilities);
    assert_eq!(status.verdict, crate::status::Verdict::Ok, "{:?}", status.warnings);

    lab.router(1, false);
    lab.run(ms(1_000));
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.verdict, crate::status::Verdict::Degraded);
    assert!(status.neighbors[1].last_error.is_some());
    assert!(status.warnings.iter().any(|w| w.text.starts_with("no session with r2")), "{:?}", status.warnings);
    lab.router(0, false);
    lab.run(ms(1_000));
    let status = lab.node(0).status(lab.now);
    assert_eq!((status.vips[0].state.as_str(), status.vips[0].owner.as_deref()), ("waiting", None));
    assert_eq!(status.verdict, crate::status::Verdict::Critical, "{:?}", status.warnings);
}

#[test]
fn why_a_router_can_not_be_dialled_is_shown_and_written_once() {
    let mut lab = Lab::announcing(1, 1, false);
    let why = || Some("TCP MD5 can't be set: not permitted".to_owned());
    for _ in 0..3 {
        lab.feed(0, Input::Bgp { neighbor: NeighborId(0), input: BgpInput::Problem { why: why() } });
    }
    let refused = |k: &&Kind| matches!(k, Kind::NeighborRefused { .. });
    assert_eq!(lab.kinds(0).into_iter().filter(refused).count(), 1);
    let status = lab.node(0).status(lab.now);
    assert_eq!(status.neighbors[0].last_error.as_ref().map(|e| e.text.clone()), why());
}

#[test]
fn the_keeper_learns_of_sessions_of_bfd_and_of_what_stays_without_a_worker() {
    use crate::keeper::ipc::BgpSession;
    let mut lab = Lab::announcing_with(1, 1, false, |config| {
        let bfd = crate::config::Bfd { interval: ms(50), multiplier: 3, multihop: false, min_ttl: 255 };
        config.bgp.as_mut().expect("there").neighbors[0].bfd = Some(bfd);
    });
    let sessions = |lab: &Lab| -> Vec<BgpSession> {
        let of = |o: &&Output| if let Output::BgpSession { session, .. } = o { Some(session.clone()) } else { None };
        lab.log_since(0, Duration::ZERO).iter().filter_map(of).collect()
    };
    let [up] = &sessions(&lab)[..] else { panic!("{:?}", sessions(&lab)) };
    assert!(up.active && up.hold == ms(9_000) && up.restart == Some(ms(15_000)), "{up:?}");
    assert_eq!(&up.farewell[18..21], [3, 6, 9], "Cease, Hard Reset: nothing is kept");
    let record = &lab.hosts[0].records[&0];
    assert!(record.active && record.bgp.is_some_and(|bgp| bgp.grace == ms(19_500)), "{record:?}");
    assert_eq!(record.addresses, [(LO, VIP, 32)]);
    let lists = |lab: &Lab| -> Vec<usize> {
        let of = |o: &&Output| if let Output::Bfd(list) = o { Some(list.len()) } else { None };
        lab.log_since(0, Duration::ZERO).iter().filter_map(of).collect()
    };
    lab.router(0, false);
    lab.run(ms(1_000));
    assert!(sessions(&lab).last().is_some_and(|last| !last.active));
    assert_eq!(lists(&lab), [1], "told once");
    lab.feed(0, Input::Stop { deadline: ms(3_000) });
    lab.run(ms(3_000));
    assert_eq!(lists(&lab), [1, 0]);
    let record = &lab.hosts[0].records[&0];
    assert!(!record.active && record.addresses.is_empty(), "{record:?}");
}

#[test]
fn several_addresses_move_together_and_increase_and_rotate_count_them() {
    let mut lab = Lab::announcing_with(1, 1, false, |config| {
        let unit = &mut config.vips[0];
        let more = crate::config::VipAddress { ip: VIP2, ..unit.addresses[0].clone() };
        unit.addresses.push(more);
        unit.members[0].addresses.push(VIP2);
        let bgp = unit.bgp.as_mut().expect("announced");
        (bgp.attributes.med, bgp.increase, bgp.rotate) = (100, 1, 1);
    });
    let told = lab.routers[0].told_by(0, Duration::ZERO);
    let med = |ip| {
        let of = |told: &&&Told| matches!(told, Told::Announced { prefix, .. } if prefix.ip() == ip);
        told.iter().filter(of).find_map(|t| if let Told::Announced { med, .. } = t { *med } else { None })
    };
    assert_eq!((med(VIP), med(VIP2)), (Some(101), Some(100)));
    let since = lab.at();
    lab.kill_balancer(0);
    lab.run(ms(100));
    let updates =
        lab.log_since(0, since).into_iter().filter(|o| matches!(o, Output::Bgp { output: BgpOutput::Send { .. }, .. }));
    assert_eq!(updates.count(), 1, "both in one message");
    assert!(lab.routers[0].ways(VIP2).is_empty());
}

#[test]
fn an_unnumbered_neighbour_has_bfd_as_soon_as_it_is_found_and_a_new_worker_waits_for_that() {
    let mut lab = Lab::new(&[100], false).with_routers(1);
    let config = &mut lab.hosts[0].config;
    anycast(config, 1);
    let neighbor = &mut config.bgp.as_mut().expect("there").neighbors[0];
    (neighbor.address, neighbor.interface) = (None, Some(eth0()));
    neighbor.bfd = Some(crate::config::Bfd { interval: ms(50), multiplier: 3, multihop: false, min_ttl: 255 });
    lab.hosts[0].routers_cut = true;
    let router: std::net::IpAddr = "fe80::1".parse().expect("an address");
    let found = |lab: &mut Lab| {
        let input = BgpInput::Found { remote: router };
        lab.feed(0, Input::Bgp { neighbor: NeighborId(0), input });
    };
    let lists = |lab: &Lab, since| -> Vec<Vec<std::net::IpAddr>> {
        let of = |o: &&Output| match o {
            Output::Bfd(list) => Some(list.iter().map(|spec| spec.remote).collect()),
            _ => None,
        };
        lab.log_since(0, since).iter().filter_map(of).collect()
    };
    lab.start(0);
    lab.run(ms(1_000));
    found(&mut lab);
    found(&mut lab);
    assert_eq!(lists(&lab, Duration::ZERO), [vec![], vec![router]], "before any session, and once");
    // What the keeper runs for the former worker goes on until the router is found again, or isn't.
    for (finds, expected) in [(true, vec![router]), (false, vec![])] {
        lab.run(ms(10));
        lab.crash(0);
        let since = lab.at();
        lab.boot(0, vec![("web".to_owned(), 1)]);
        lab.run(ms(1_000));
        assert_eq!(lists(&lab, since), [] as [Vec<std::net::IpAddr>; 0]);
        if finds {
            found(&mut lab);
        }
        lab.run(ms(5_000));
        assert_eq!(lists(&lab, since), [expected]);
    }
}

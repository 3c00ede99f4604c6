//! Routes, rules, devices and the guard: what moves with a unit beside its addresses.

use super::lab::*;
use crate::config::{self, Config};
use crate::journal::Kind;
use crate::kernel::{Prefix, Route, Rule, Vmac};
use crate::{Input, Output, Step};
use holdfast_vrrp::State;
use std::net::IpAddr;

const GATEWAY: [u8; 4] = [192, 0, 2, 1];

fn routed(config: &mut Config) {
    let vip = &mut config.vips[0];
    let (to, via) = ((IpAddr::from([0, 0, 0, 0]), 0), Some(GATEWAY.into()));
    let route = config::Route { to, via, interface: eth0(), table: 100, source: Some(VIP), metric: None };
    vip.routes = vec![route];
    vip.rules = vec![config::Rule { from: Some((VIP, 32)), to: None, table: 100, priority: 1_000 }];
}

fn with_vmac(config: &mut Config) {
    config.vips[0].legs[0].vmac = true;
}

fn vmac() -> Vmac {
    Vmac { parent: 2, vrid: 10, six: false }
}

/// Addition and removal of each kind, in the order in which a host did them.
fn steps(lab: &Lab, i: usize, since: std::time::Duration) -> Vec<&'static str> {
    let word = |output: &&Output| match output {
        Output::Step(Step::AddAddress { .. }) => Some("+address"),
        Output::Step(Step::RemoveAddress { .. }) => Some("-address"),
        Output::Step(Step::AddRoute { .. }) => Some("+route"),
        Output::Step(Step::RemoveRoute { .. }) => Some("-route"),
        Output::Step(Step::AddRule { .. }) => Some("+rule"),
        Output::Step(Step::RemoveRule { .. }) => Some("-rule"),
        Output::Step(Step::AddVmac { .. }) => Some("+device"),
        Output::Step(Step::RemoveVmac { .. }) => Some("-device"),
        _ => None,
    };
    lab.log_since(i, since).iter().filter_map(word).collect()
}

#[test]
fn routes_come_after_addresses_and_rules_after_routes_and_all_go_in_the_mirrored_order() {
    let mut lab = Lab::settled_with(&[254, 253], true, routed);
    assert_eq!((lab.hosts[0].routes.len(), lab.hosts[0].rules.len()), (1, 1), "{}", lab.story());
    assert_eq!((lab.hosts[1].routes.len(), lab.hosts[1].rules.len()), (0, 0));
    let since = lab.at();
    lab.kill_balancer(0);
    lab.run(ms(100));
    assert_eq!(steps(&lab, 0, since), ["-rule", "-route", "-address"]);
    assert_eq!(steps(&lab, 1, since), ["+address", "+route", "+rule"]);
    let record = &lab.hosts[1].records[&0];
    assert_eq!((record.routes.len(), record.rules.len()), (1, 1), "the keeper could undo it");
    let record = &lab.hosts[0].records[&0];
    assert_eq!((record.routes.len(), record.rules.len()), (0, 0), "nothing is left to undo");
}

#[test]
fn a_deleted_rule_or_route_is_back_at_once_without_a_change_of_role() {
    let mut lab = Lab::settled_with(&[254, 253], true, routed);
    let epoch = lab.node(0).world().vips[0].role_epoch;
    lab.meddle(0, |host| host.rules.clear());
    lab.run(ms(1));
    assert_eq!(lab.hosts[0].rules.len(), 1);
    lab.meddle(0, |host| host.routes.clear());
    lab.run(ms(1));
    assert_eq!((lab.hosts[0].routes.len(), lab.hosts[0].rules.len()), (1, 1));
    assert_eq!(lab.node(0).world().vips[0].role_epoch, epoch);
    assert!(lab.has(0, |k| matches!(k, Kind::AddressVanished { address, .. } if address.starts_with("rule "))));
}

#[test]
fn a_rule_that_is_deleted_again_and_again_is_a_fault_and_the_unit_moves() {
    let mut lab = Lab::settled_with(&[254, 253], true, routed);
    for _ in 0..21 {
        lab.meddle(0, |host| host.rules.clear());
        lab.run(ms(10));
    }
    assert!(lab.has(0, |k| matches!(k, Kind::AddressFault { .. })), "{}", lab.story());
    assert_eq!(lab.owners(), [1]);
    assert!(lab.hosts[0].rules.is_empty() && lab.hosts[0].routes.is_empty());
}

#[test]
fn a_route_that_goes_with_its_source_address_is_back_with_it() {
    let mut lab = Lab::settled_with(&[254], false, routed);
    lab.delete_address(0);
    lab.meddle(0, |host| host.routes.clear());
    lab.run(ms(2));
    assert_eq!((lab.hosts[0].routes.len(), lab.hosts[0].rules.len()), (1, 1), "{}", lab.story());
}

#[test]
fn a_route_that_is_refused_is_tried_again_and_gives_nothing_away() {
    let mut lab = Lab::new(&[254], false);
    routed(&mut lab.hosts[0].config);
    lab.hosts[0].route_errno = Some(101);
    lab.start(0);
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.has(0, |k| matches!(k, Kind::StepFailed { .. })));
    assert!(lab.hosts[0].rules.is_empty(), "a rule without its route would lead nowhere");
    lab.hosts[0].route_errno = None;
    lab.run(ms(1_100));
    assert_eq!((lab.hosts[0].routes.len(), lab.hosts[0].rules.len()), (1, 1));
}

#[test]
fn a_route_that_two_units_want_stays_until_the_last_of_them_leaves() {
    let mut lab = Lab::settled_with(&[254], false, |config| {
        routed(config);
        config.vips[0].routes[0].source = None;
        let mut other = vip("other", VIP2, 11, 254);
        other.routes.clone_from(&config.vips[0].routes);
        config.vips.push(other);
    });
    assert_eq!(lab.hosts[0].routes.len(), 1);
    lab.kill_balancer(0);
    lab.hosts[0].config.vips[0].last_node = config::LastNode::Withdraw;
    lab.run(ms(20));
    assert_eq!(lab.hosts[0].routes.len(), 1, "the other unit needs no balancer");
    lab.feed(0, Input::Stop { deadline: ms(1_000) });
    lab.run(ms(1_000));
    assert!(lab.hosts[0].stopped && lab.hosts[0].routes.is_empty());
}

#[test]
fn routes_rules_and_devices_of_a_crash_are_removed_at_start() {
    let mut lab = Lab::new(&[254, 253], false);
    lab.start(0);
    lab.run(ms(1_000));
    let host = &mut lab.hosts[1];
    let (to, source) = (Prefix::new(VIP, 32), None);
    host.routes.insert(Route { to, via: None, ifindex: 2, table: 7, source, metric: 3 });
    host.rules.insert(Rule { six: false, from: Some(to), to: None, table: 7, priority: 9 });
    host.vmacs.insert(Vmac { parent: 2, vrid: 77, six: true }, 1_077);
    host.guard.insert(VIP);
    lab.start(1);
    lab.run(ms(100));
    let host = &lab.hosts[1];
    assert!(host.routes.is_empty() && host.rules.is_empty() && host.vmacs.is_empty() && host.guard.is_empty());
    let scrubbed = lab.kinds(1).iter().filter(|k| matches!(k, Kind::Scrubbed { .. })).count();
    assert_eq!(scrubbed, 3, "{}", lab.story());
}

#[test]
fn what_a_worker_resumes_is_left_alone() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        routed(config);
        with_vmac(config);
    });
    let epoch = lab.node(0).world().vips[0].role_epoch;
    lab.crash(0);
    lab.run(ms(30));
    let since = lab.at();
    lab.boot(0, vec![("web".to_owned(), epoch)]);
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    let odd = |step: &&&str| step.starts_with('-') || **step == "+device";
    assert_eq!(steps(&lab, 0, since).iter().find(odd), None, "adding what is there changes nothing: {}", lab.story());
    assert_eq!((lab.hosts[0].routes.len(), lab.hosts[0].vmacs.len()), (1, 1));
}

#[test]
fn addresses_that_take_no_traffic_are_guarded_from_start_to_clean_stop_and_again_every_5_s() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| config.vips[0].vrrp.accept = false);
    for i in [0, 1] {
        assert_eq!(lab.hosts[i].guard, [VIP].into(), "on the backup too: before the address comes");
    }
    lab.hosts[0].guard.clear();
    lab.run(ms(5_100));
    assert_eq!(lab.hosts[0].guard, [VIP].into(), "whoever flushes the rule set doesn't say so");
    lab.feed(0, Input::Stop { deadline: ms(2_000) });
    lab.run(ms(2_000));
    assert!(lab.hosts[0].stopped && lab.hosts[0].guard.is_empty());
    let order = lab.hosts[0].log.iter().rev().find_map(|(_, o)| match o {
        Output::Step(Step::Guard { .. }) => Some("guard"),
        Output::Step(Step::RemoveAddress { .. }) => Some("address"),
        _ => None,
    });
    assert_eq!(order, Some("guard"), "after the address is gone");
}

#[test]
fn a_backup_has_no_device_and_an_owner_sends_from_it_once_it_is_up() {
    let mut lab = Lab::settled_with(&[254, 253], true, with_vmac);
    let device = lab.hosts[0].vmacs[&vmac()];
    assert!(lab.hosts[0].kernel.contains_key(&(device, VIP, 32)), "{:?}", lab.hosts[0].kernel);
    assert!(!lab.hosts[0].kernel.contains_key(&(2, VIP, 32)), "not on the parent");
    assert!(lab.hosts[1].vmacs.is_empty());
    assert_eq!(lab.hosts[0].records[&0].vmacs, [vmac()]);
    let since = lab.at();
    lab.kill_balancer(0);
    lab.run(ms(500));
    assert_eq!(lab.owners(), [1]);
    assert_eq!(steps(&lab, 0, since), ["-device"], "the addresses go with it");
    assert!(lab.hosts[0].vmacs.is_empty() && lab.hosts[0].records[&0].vmacs.is_empty());
    assert_eq!(&steps(&lab, 1, since)[..2], ["+device", "+address"]);
    let ways: Vec<u32> = lab
        .log_since(1, since)
        .iter()
        .filter_map(|o| if let Output::Advert { ifindex, .. } = o { Some(*ifindex) } else { None })
        .collect();
    assert_eq!((ways[0], ways[1]), (2, device), "the first advert waits for nothing");
    let announced = |o: &&&Output| matches!(o, Output::Step(Step::Announce { ifindex, .. }) if *ifindex == device);
    assert!(lab.log_since(1, since).iter().filter(announced).count() >= 1);
}

#[test]
fn a_device_that_somebody_deletes_is_back_with_its_addresses() {
    let mut lab = Lab::settled_with(&[254], false, with_vmac);
    let device = lab.hosts[0].vmacs.remove(&vmac()).expect("there");
    lab.hosts[0].kernel.retain(|key, _| key.0 != device);
    lab.feed(0, Input::LinkGone { ifindex: device });
    lab.run(ms(1));
    assert_eq!(lab.owners(), [0]);
    assert_eq!(lab.node(0).world().vips[0].state, State::Active);
    assert!(lab.has(0, |k| matches!(k, Kind::AddressVanished { address, .. } if address.starts_with("device "))));
}

#[test]
fn a_clean_stop_leaves_nothing() {
    let mut lab = Lab::settled_with(&[254], false, |config| {
        routed(config);
        with_vmac(config);
        config.vips[0].vrrp.accept = false;
    });
    lab.feed(0, Input::Stop { deadline: ms(2_000) });
    lab.run(ms(2_000));
    let host = &lab.hosts[0];
    assert!(host.stopped);
    assert_eq!(host.kernel.len(), 1, "only its own address");
    assert!(host.routes.is_empty() && host.rules.is_empty() && host.vmacs.is_empty() && host.guard.is_empty());
}

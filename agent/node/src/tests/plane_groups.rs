//! A VIP that names a group of checks: the members that ask its balancer say of it what they would if they were named.

use super::guards::{Verdict as Outcome, expect};
use super::lab::*;
use super::planes::*;
use crate::config::{Check, CheckId, Config, File, Group, GroupMember, Probe};
use crate::io::Failure;
use crate::plane::{Sign, Standing, Verdict, checks_of, judge};
use crate::world::{CheckState, World};
use std::path::PathBuf;

const SECOND: CheckId = CheckId(1);

/// The check is joined by these, and the VIP names all of them as one group, of which so many are needed.
fn grouped(probes: Vec<Probe>, at_least: u32) -> impl FnMut(&mut Config) {
    move |config| {
        let first = config.checks[0].clone();
        let more = (2..).zip(&probes).map(|(n, probe)| Check {
            name: name(&format!("web{n}")),
            probe: probe.clone(),
            ..first.clone()
        });
        config.checks.extend(more);
        let members = (0..).zip(&config.checks).map(|(n, _)| GroupMember { check: CheckId(n), weight: 1 }).collect();
        let group = CheckId(u16::try_from(config.checks.len()).expect("few"));
        config.checks.push(Check { name: name("all"), probe: Probe::Group(Group { members, at_least }), ..first });
        config.vips[0].checks = vec![group];
    }
}

fn page() -> Probe {
    Probe::tcp("127.0.0.1:81".parse().expect("an address"))
}

fn looked_at_with(probes: Vec<Probe>, at_least: u32) -> Lab {
    let mut lab = Lab::settled_with(&[254, 253], true, grouped(probes, at_least));
    lab.hosts.iter_mut().for_each(|host| host.plane = Some(pool(3)));
    lab.looking(ms(1_000));
    lab
}

pub(crate) fn members_tell_that_it_hangs() -> Outcome {
    let mut lab = looked_at_with(vec![page()], 2);
    lab.hosts[0].probes = Probes::Silent;
    lab.hosts[0].plane = Some(stopped());
    lab.looking(ms(200));
    expect("by its members' fall", verdict(&lab, 0) == Verdict::Hung)?;
    let signs = &lab.node(0).world().balancers[0].judged.evidence;
    let silent = signs.iter().filter(|e| matches!(e.sign, Sign::CheckSilent(_))).count();
    expect("both are named", silent == 2)?;
    expect("and it leaves", lab.owners() == [1])
}

#[test]
fn a_hung_balancer_is_known_by_the_members_of_a_group() {
    members_tell_that_it_hangs().expect("the guard is on");
}

#[test]
fn a_full_owner_stays_though_the_group_fails() {
    let mut lab = looked_at_with(vec![page()], 2);
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(10_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Saturated, vec![0]), "{}", lab.story());
    assert_eq!(lab.node(0).plan().vips[0].standing, Standing::Full);
}

#[test]
fn a_sick_owner_with_a_group_compares_before_it_leaves() {
    let mut lab = looked_at_with(vec![page()], 2);
    lab.hosts[0].probes = Probes::Status;
    lab.looking(ms(250));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Sick, vec![0]), "not at once\n{}", lab.story());
    lab.looking(ms(750));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    lab.hosts[1].probes = Probes::Status;
    lab.looking(ms(5_000));
    assert_eq!(lab.owners(), [1], "nobody does better\n{}", lab.story());
}

#[test]
fn a_member_that_fails_says_nothing_while_its_group_does_without_it() {
    let mut lab = looked_at_with(vec![page()], 1);
    lab.hosts[0].probes = Probes::StatusOf(SECOND);
    lab.looking(ms(2_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Serving, vec![0]), "{}", lab.story());
}

#[test]
fn a_member_that_says_nothing_takes_no_excuse_away_from_one_that_was_full() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        grouped(vec![page(), page()], 1)(config);
        let group = config.vips[0].checks[0];
        config.vips[0].checks = vec![CheckId(0), group];
    });
    lab.hosts.iter_mut().for_each(|host| host.plane = Some(pool(3)));
    lab.looking(ms(1_000));
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::Silent;
    lab.looking(ms(1_000));
    lab.hosts[0].plane = Some(answers());
    lab.looking(ms(1));
    let (id, config) = (crate::config::BalancerId(0), lab.hosts[0].config.clone());
    let mut world = lab.node(0).world().clone();
    let judged = |world: &World| judge(&config, world, lab.now, id, &checks_of(&config, id)).0;
    assert_eq!(judged(&world), Verdict::Saturated, "as all of them failed while it was full");
    // The group does with the third, and the second isn't listened for any more.
    world.failing[1].as_mut().expect("it fails").how = Failure::Refused;
    (world.checks[2].state, world.checks[3].state) = (CheckState::Passed, CheckState::Passed);
    assert_eq!(judged(&world), Verdict::Saturated);
    world.failing[0].as_mut().expect("it fails").how = Failure::Refused;
    assert_eq!(judged(&world), Verdict::Failing, "one that counts takes it away");
}

#[test]
fn what_a_member_finds_that_does_not_ask_the_balancer_is_not_excused_by_it() {
    let file = Probe::File(File { path: PathBuf::from("/run/ready"), present: true, max_age: None });
    let mut lab = looked_at_with(vec![file], 2);
    // Full, and the file is gone too.
    lab.hosts[0].plane = Some(full());
    lab.hosts[0].probes = Probes::StatusOf(SECOND);
    lab.looking(ms(1_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Saturated, vec![1]), "{}", lab.story());
}

#[test]
fn a_shared_group_says_nothing_of_a_balancer() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        grouped(vec![page()], 2)(config);
        config.checks.last_mut().expect("the group").shared = true;
    });
    lab.hosts[0].probes = Probes::Bad;
    lab.looking(ms(2_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::Serving, vec![0]), "{}", lab.story());
}

#[test]
fn a_group_of_a_group_asks_by_its_last_members() {
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        grouped(vec![page()], 2)(config);
        let inner = config.vips[0].checks[0];
        let outer = Group { members: vec![GroupMember { check: inner, weight: 1 }], at_least: 1 };
        config.checks.push(Check { name: name("outer"), probe: Probe::Group(outer), ..config.checks[0].clone() });
        config.vips[0].checks = vec![CheckId(inner.0 + 1)];
    });
    lab.hosts.iter_mut().for_each(|host| host.plane = Some(pool(3)));
    lab.looking(ms(1_000));
    lab.hosts[0].plane = Some(pool(0));
    lab.hosts[0].probes = Probes::Status;
    lab.looking(ms(1_000));
    assert_eq!((verdict(&lab, 0), lab.owners()), (Verdict::PoolEmpty, vec![0]), "it compares\n{}", lab.story());
    lab.looking(ms(3_500));
    assert_eq!(lab.owners(), [1], "the other one has backends\n{}", lab.story());
}

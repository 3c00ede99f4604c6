//! A VIP that several nodes announce, each with an address of its own that backends answer to, and that moves by VRRP: the
//! flows that are answered there move with it.

use super::flows::{missing, run_but, well};
use super::guards::{Verdict, expect};
use super::lab::*;
use crate::config::{
    Affinity, Config, NatMode, Nft, OnDown, Service, StateSync, SyncMode, SyncVip, Transport, Vip, VipId,
};
use crate::io::{Input, Output, Step};
use crate::journal::Kind;
use crate::sync::{Elected, GATE, SyncEvent};
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::flow::SourceId;
use holdfast_vrrp::State;
use std::net::IpAddr;
use std::time::Duration;

/// A host's own address, and the unit that it is.
fn own(i: usize) -> (IpAddr, VipId) {
    (IpAddr::from([192, 0, 2, 50 + i as u8]), VipId(1 + i as u16))
}

/// Units of all hosts' addresses, and one service that answers from this host's.
fn answered(config: &mut Config, hosts: usize) {
    let me: usize = config.node.as_str()[2..].parse().expect("lbN");
    for i in 0..hosts {
        let priority = if i == me { 254 } else { 200 - 10 * ((me + hosts - i) % hosts) as u8 };
        config.vips.push(vip(&format!("own{i}"), own(i).0, 50 + i as u8, priority));
    }
    config.nft = Some(Nft {
        services: vec![Service {
            vip: name("web"),
            protocol: Transport::Tcp,
            port: 80,
            addresses: vec![],
            mode: NatMode::Snat,
            affinity: Affinity::Flow,
            snat: vec![own(me).0],
            mss: None,
            on_down: OnDown::Keep,
        }],
        ..Nft::default()
    });
    config.statesync = Some(StateSync::new(vec![SyncVip { vip: W, mode: SyncMode::Assured }]));
}

/// All hosts announce, and each has its own address.
fn all(hosts: usize) -> Lab {
    let mut lab = Lab::new(&vec![100; hosts], true).with_routers(1);
    lab.hosts.iter_mut().for_each(|host| {
        anycast(&mut host.config, 1);
        answered(&mut host.config, hosts);
    });
    (0..hosts).for_each(|i| lab.start(i));
    run_but(&mut lab, ms(5_000), 0, well);
    assert_eq!(lab.routers[0].ways(VIP), (0..hosts).collect::<Vec<_>>(), "{}", lab.story());
    (0..hosts).for_each(|i| assert_eq!(at(&lab, i), [i], "{}", lab.story()));
    lab
}

/// Where a host's address is.
fn at(lab: &Lab, of: usize) -> Vec<usize> {
    let has = |i: &usize| lab.hosts[*i].kernel.keys().any(|key| key.1 == own(of).0);
    (0..lab.hosts.len()).filter(|i| lab.hosts[*i].node.is_some()).filter(has).collect()
}

/// What a host's sync thread was told of an address's unit.
fn told(lab: &Lab, i: usize, of: usize, since: Duration) -> Vec<Elected> {
    let told = lab.log_since(i, since).into_iter().filter_map(|output| match output {
        Output::Elected { vip, elected } if *vip == own(of).1 => Some(*elected),
        _ => None,
    });
    told.collect()
}

/// When something is first seen in a host's outputs.
fn first(lab: &Lab, i: usize, since: Duration, test: impl Fn(&Output) -> bool) -> Option<Duration> {
    lab.hosts[i].log.iter().find(|(at, output)| *at >= since && test(output)).map(|(at, _)| *at)
}

fn adds(output: &Output, of: usize) -> bool {
    matches!(output, Output::Step(Step::AddAddress { ip, .. }) if *ip == own(of).0)
}

#[test]
fn one_survivor_gets_the_address_of_a_node_that_died_and_its_flows_with_it() {
    let mut lab = all(3);
    let since = lab.at();
    lab.crash(2);
    run_but(&mut lab, ms(2_000), 0, well);
    let [heir] = at(&lab, 2)[..] else { panic!("{}", lab.story()) };
    let other = 1 - heir;
    assert_eq!(told(&lab, heir, 2, since), [Elected::Me]);
    assert!(matches!(told(&lab, other, 2, since)[..], [Elected::Peer(PeerId(0))]), "{:?}", told(&lab, other, 2, since));
    assert_eq!(told(&lab, heir, heir, since), [], "no news");
    // By name in the journal: the third by name.
    lab.feed(heir, Input::SyncEvent(SyncEvent::Inherited { source: SourceId(2), generation: 3 }));
    assert!(lab.has(heir, |kind| matches!(kind, Kind::FlowsClaimed { vip, generation: 3 } if vip == "own2")));
}

#[test]
fn an_address_that_flows_move_with_waits_for_them() {
    let mut lab = all(2);
    let word = missing(&lab);
    lab.feed(0, Input::Sync(word));
    let since = lab.at();
    lab.crash(1);
    lab.until(ms(1_000), |lab| lab.node(0).world().vips[2].state == State::Active);
    let active = lab.at();
    lab.run(ms(60));
    assert_eq!((first(&lab, 0, since, |o| adds(o, 1)), told(&lab, 0, 1, since)), (None, vec![]));
    lab.run(ms(500));
    let added = first(&lab, 0, since, |o| adds(o, 1)).expect("bounded");
    assert!((GATE - ms(1)..=GATE).contains(&(added - active)), "{added:?} {active:?}");
    assert_eq!(told(&lab, 0, 1, since), [Elected::Me]);
    assert!(lab.has(0, |kind| matches!(kind, Kind::PromotedUnsynced { vip, .. } if vip == "own1")));
}

pub(crate) fn a_node_takes_its_address_back_with_its_flows_and_is_announced_after_that() -> Verdict {
    let mut lab = all(2);
    lab.crash(1);
    run_but(&mut lab, ms(3_000), 0, well);
    expect("a survivor has it", at(&lab, 1) == [0])?;
    lab.start(1);
    let since = lab.at();
    run_but(&mut lab, ms(5_000), 1, missing);
    expect("it isn't taken without flows", at(&lab, 1) == [0])?;
    expect("and nothing comes there that would be answered elsewhere", lab.routers[0].ways(VIP) == [0])?;
    let reasons = lab.node(1).status(lab.now).vips[0].reasons.join("; ");
    expect("which is said", reasons.contains("is announced as soon as own1 is here"))?;
    run_but(&mut lab, ms(3_000), 0, well);
    expect("then it is", at(&lab, 1) == [1] && lab.routers[0].ways(VIP) == [0, 1])?;
    expect("the flows with it", told(&lab, 1, 1, since).last() == Some(&Elected::Me))?;
    expect("from the other", told(&lab, 0, 1, since).last() == Some(&Elected::Peer(PeerId(0))))?;
    let route = |o: &Output| matches!(o, Output::Event(e) if matches!(e.kind, Kind::RouteAnnounced { .. }));
    expect("in this order", first(&lab, 1, since, |o| adds(o, 1)) <= first(&lab, 1, since, route))
}

pub(crate) fn an_address_leaves_after_what_comes_for_it() -> Verdict {
    let mut lab = all(2);
    let since = lab.at();
    let token = lab.drain(1, &[], false);
    run_but(&mut lab, ms(100), 0, well);
    expect("routers are asked to send elsewhere", lab.routers[0].ways(VIP) == [0, 1] && at(&lab, 1) == [1])?;
    let reasons = lab.node(1).status(lab.now).vips[2].reasons.join("; ");
    expect("which is said", reasons.contains("stays while something comes here for web"))?;
    run_but(&mut lab, ms(5_000), 0, well);
    expect("it is done", lab.routers[0].ways(VIP) == [0] && at(&lab, 1) == [0] && lab.answer(1, token).is_some())?;
    let resigns =
        |o: &Output| matches!(o, Output::Event(e) if matches!(&e.kind, Kind::Resign { vip, .. } if vip == "own1"));
    let withdrawn = |o: &Output| matches!(o, Output::Event(e) if matches!(e.kind, Kind::RouteWithdrawn { .. }));
    let (withdrawn, resigned) = (first(&lab, 1, since, withdrawn), first(&lab, 1, since, resigns));
    expect("in this order", withdrawn.is_some() && withdrawn < resigned)?;
    let fence = first(&lab, 1, since, |o| matches!(o, Output::Elected { vip, .. } if *vip == own(1).1));
    let removed =
        first(&lab, 1, since, |o| matches!(o, Output::Step(Step::RemoveAddress { ip, .. }) if *ip == own(1).0));
    expect("the flows before the address", fence.is_some() && fence <= removed)
}

#[test]
fn a_node_that_comes_back_has_its_flows_before_its_address_and_that_before_its_route() {
    a_node_takes_its_address_back_with_its_flows_and_is_announced_after_that().expect("the guard is on");
}

#[test]
fn a_drained_node_gives_its_address_away_when_nothing_comes_for_it_any_more() {
    an_address_leaves_after_what_comes_for_it().expect("the guard is on");
}

#[test]
fn a_stop_withdraws_the_route_and_then_gives_the_address_away() {
    let mut lab = all(2);
    lab.feed(1, Input::Stop { deadline: ms(5_000) });
    run_but(&mut lab, ms(4_000), 0, well);
    assert!(lab.hosts[1].stopped, "{}", lab.story());
    assert_eq!((lab.routers[0].ways(VIP), lab.hosts[0].kernel.keys().any(|key| key.1 == own(1).0)), (vec![0], true));
}

#[test]
fn a_new_worker_finds_its_address_and_announces_at_once() {
    let mut lab = all(2);
    let epochs: Vec<(String, u64)> = lab.hosts[1]
        .records
        .iter()
        .filter(|(_, record)| record.active)
        .map(|(id, record)| (lab.hosts[1].config.vips[usize::from(*id)].name.as_str().to_owned(), record.role_epoch))
        .collect();
    assert_eq!(epochs.len(), 2, "{epochs:?}");
    lab.crash(1);
    lab.run(ms(20));
    lab.boot(1, epochs);
    let since = lab.at();
    lab.run(ms(50));
    assert_eq!(at(&lab, 1), [1]);
    let waits = lab.node(1).status(lab.now).vips[0].reasons.join("; ");
    assert!(!waits.contains("as soon as own1"), "{waits}");
    assert!(first(&lab, 1, since, |o| adds(o, 1)).is_none_or(|at| at - since < ms(1)));
}

#[test]
fn what_flows_move_with_is_what_vrrp_holds_and_isnt_replicated_itself_by_name() {
    let mut config = all(3).hosts[1].config.clone();
    let names = |config: &Config| -> Vec<String> {
        let units = config.flow_sources();
        units.iter().map(|id| config.vips[usize::from(id.0)].name.as_str().to_owned()).collect()
    };
    assert_eq!(names(&config), ["own0", "own1", "own2"]);
    config.vips.swap(1, 3);
    assert_eq!(names(&config), ["own0", "own1", "own2"]);
    let sync = config.statesync.as_mut().expect("there is one");
    sync.vips.push(SyncVip { vip: VipId(2), mode: SyncMode::Assured });
    assert_eq!(names(&config), ["own0", "own2"]);
    // Without a VIP that several nodes serve nothing moves with anything.
    config.statesync.as_mut().expect("there is one").vips.remove(0);
    assert_eq!(names(&config), Vec::<String>::new());
    let shared: &Vip = &config.vips[0];
    assert!(shared.anycast());
}

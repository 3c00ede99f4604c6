//! Nodes whose flows are replicated: flows before addresses, and who is told whose they are.

use super::guards::{Verdict, expect};
use super::lab::*;
use crate::config::{Config, StateSync, SyncFilter, SyncMode, SyncVip};
use crate::io::{Answer, FlowEvents, FlowFilter, Input, Output, Step};
use crate::journal::Kind;
use crate::sync::{Direction, Elected, GATE, NotReady, SyncEvent, SyncPeerWord, SyncVipWord, SyncWord, Why};
use holdfast_statesync::channel::PeerId;
use holdfast_vrrp::State;
use std::collections::BTreeMap;
use std::time::Duration;

const PEER: PeerId = PeerId(0);

fn replicates(config: &mut Config) {
    config.statesync = Some(StateSync::new(vec![SyncVip { vip: W, mode: SyncMode::Assured }]));
}

/// All is well.
pub(super) fn well(lab: &Lab) -> SyncWord {
    let direction = Direction { equal_at: Some(lab.now), why: None, since: lab.origin, behind: 0 };
    let peer = SyncPeerWord { inbound: direction, outbound: direction, flushed: true, flows: 7 };
    SyncWord {
        run: 1,
        vips: vec![SyncVipWord { ready: Ok(()), flows: 7, young: 0 }],
        peers: vec![peer; lab.hosts.len() - 1],
        lag: None,
        trouble: None,
    }
}

pub(super) fn missing(lab: &Lab) -> SyncWord {
    let vip = SyncVipWord { ready: Err(NotReady::Peer(PEER, Why::NotCompared)), flows: 0, young: 0 };
    SyncWord { vips: vec![vip], ..well(lab) }
}

fn under_way(lab: &Lab) -> SyncWord {
    let mut word = well(lab);
    word.peers.iter_mut().for_each(|peer| peer.flushed = false);
    word
}

fn say(lab: &mut Lab, i: usize, word: SyncWord) {
    lab.feed(i, Input::Sync(word));
}

/// Runs while every node hears each half second that all is well with it, but for one that hears this.
pub(super) fn run_but(lab: &mut Lab, time: Duration, one: usize, word: fn(&Lab) -> SyncWord) {
    let end = lab.now + time;
    while lab.now < end {
        for i in (0..lab.hosts.len()).filter(|i| lab.hosts[*i].node.is_some()).collect::<Vec<_>>() {
            let said = if i == one { word(lab) } else { well(lab) };
            say(lab, i, said);
        }
        lab.run(ms(500).min(end - lab.now));
    }
}

fn pair() -> Lab {
    let mut lab = Lab::settled_with(&[254, 253], true, replicates);
    run_but(&mut lab, ms(1_000), 0, well);
    assert_eq!(lab.owners(), [0], "{}", lab.story());
    lab
}

fn adds(output: &Output) -> bool {
    matches!(output, Output::Step(Step::AddAddress { ip, .. }) if *ip == VIP)
}

/// When the host became Active after this time, and when it added the address.
fn taken(lab: &Lab, i: usize, since: Duration) -> (Option<Duration>, Option<Duration>) {
    let log = || lab.hosts[i].log.iter().filter(|(at, _)| *at >= since);
    let active =
        |o: &Output| matches!(o, Output::Event(e) if matches!(&e.kind, Kind::VipState { to, .. } if to == "active"));
    let first = |test: &dyn Fn(&Output) -> bool| log().find(|(_, o)| test(o)).map(|(at, _)| *at);
    (first(&active), first(&adds))
}

pub(crate) fn the_address_waits_for_flows() -> Verdict {
    let mut lab = pair();
    let word = missing(&lab);
    say(&mut lab, 1, word);
    let since = lab.at();
    lab.crash(0);
    lab.until(ms(1_000), |lab| lab.node(1).world().vips[0].state == State::Active);
    lab.run(ms(60));
    expect("it waits", taken(&lab, 1, since).1.is_none())?;
    let reasons = lab.node(1).status(lab.now).vips[0].reasons.join("; ");
    expect("and says why", reasons.contains("its addresses wait for flows"))?;
    let word = well(&lab);
    say(&mut lab, 1, word);
    let (active, added) = taken(&lab, 1, since);
    expect("not a moment longer", added == Some(lab.at()) && active.is_some())?;
    lab.run(ms(500));
    expect("nothing to complain about", !lab.has(1, |kind| matches!(kind, Kind::PromotedUnsynced { .. })))
}

pub(crate) fn who_lacks_flows_does_not_preempt() -> Verdict {
    let mut lab = pair();
    lab.crash(0);
    run_but(&mut lab, ms(3_000), 1, well);
    lab.start(0);
    run_but(&mut lab, ms(5_000), 0, missing);
    expect("the owner is left in peace", lab.owners() == [1])?;
    let reasons = lab.node(0).status(lab.now).vips[0].reasons.join("; ");
    expect("and it is said why", reasons.contains("not in sync: not all flows of lb1 are here for sure"))?;
    run_but(&mut lab, ms(1_000), 0, well);
    expect("then it does", lab.owners() == [0])
}

pub(crate) fn a_planned_move_waits_for_flows() -> Verdict {
    let mut lab = pair();
    let word = under_way(&lab);
    say(&mut lab, 0, word);
    let token = lab.drain(0, &[], false);
    lab.run(ms(100));
    expect("it waits", lab.owners() == [0] && lab.node(0).world().vips[0].state == State::Active)?;
    let reasons = lab.node(0).status(lab.now).vips[0].reasons.join("; ");
    expect("and says why", reasons.contains("flows are still on their way to lb1"))?;
    let word = well(&lab);
    say(&mut lab, 0, word);
    expect("not a moment longer", lab.node(0).world().vips[0].state == State::Backup)?;
    lab.run(ms(100));
    expect("it is there", lab.owners() == [1] && matches!(lab.answer(0, token), Some(Answer::Done(_))))?;
    expect("without a gap", lab.unowned_max.is_zero())?;
    expect("nothing to complain about", !lab.has(0, |kind| matches!(kind, Kind::MovedUnsynced { .. })))
}

#[test]
fn an_address_waits_until_the_flows_that_it_needs_are_in_the_kernel() {
    the_address_waits_for_flows().expect("the guard is on");
}

#[test]
fn a_node_that_lacks_flows_preempts_nobody() {
    who_lacks_flows_does_not_preempt().expect("the guard is on");
}

#[test]
fn a_drain_waits_until_all_flows_are_at_the_peer() {
    a_planned_move_waits_for_flows().expect("the guard is on");
}

#[test]
fn who_is_ready_waits_for_nothing() {
    let mut lab = pair();
    let since = lab.at();
    lab.crash(0);
    lab.until(ms(1_000), |lab| lab.node(1).world().vips[0].state == State::Active);
    let (active, added) = taken(&lab, 1, since);
    assert!(active.is_some() && active == added, "{active:?} {added:?}");
}

#[test]
fn an_address_waits_no_longer_than_150_ms_and_it_is_said_what_was_missing() {
    for silent in [false, true] {
        let mut lab = pair();
        if silent {
            lab.run(ms(3_000));
        } else {
            let word = missing(&lab);
            say(&mut lab, 1, word);
        }
        let since = lab.at();
        lab.crash(0);
        lab.run(ms(1_000));
        let (Some(active), Some(added)) = taken(&lab, 1, since) else { panic!("{}", lab.story()) };
        assert_eq!(added - active, GATE);
        let said = lab.hosts[1].events.iter().find_map(|(at, event)| match &event.kind {
            Kind::PromotedUnsynced { why, waited_ms, .. } => Some((*at, event.cause, why.clone(), *waited_ms)),
            _ => None,
        });
        let (at, cause, why, waited_ms) = said.expect("a journal entry");
        assert_eq!((at, waited_ms), (added, 150));
        let expected = if silent {
            "the sync thread says nothing"
        } else {
            "not all flows of lb0 are here for sure: nothing was compared yet"
        };
        assert_eq!(why, expected);
        let cause = lab.hosts[1].events.iter().find(|(_, event)| Some(event.id) == cause).expect("its cause");
        assert!(matches!(&cause.1.kind, Kind::VipState { to, .. } if to == "active"));
    }
}

#[test]
fn an_address_waits_for_nothing_where_no_flows_can_come_and_it_is_said() {
    let mut lab = pair();
    let word = SyncWord { trouble: Some("no CAP_NET_ADMIN".to_owned()), ..well(&lab) };
    say(&mut lab, 1, word);
    let since = lab.at();
    lab.crash(0);
    lab.run(ms(1_000));
    let (active, added) = taken(&lab, 1, since);
    assert!(active.is_some() && active == added, "{active:?} {added:?}");
    let said =
        |kind: &Kind| matches!(kind, Kind::PromotedUnsynced { why, waited_ms: 0, .. } if why == "no CAP_NET_ADMIN");
    assert!(lab.has(1, said), "{}", lab.story());
}

#[test]
fn a_sick_owner_waits_for_flows_before_it_leaves_for_a_better_one() {
    let mut lab = pair();
    lab.hosts[0].probes = Probes::Status;
    let left = |lab: &Lab| lab.node(0).world().vips[0].state == State::Backup;
    let waits = |lab: &Lab| lab.node(0).status(lab.now).vips[0].reasons.join("; ").contains("waits before it is given");
    let until = lab.now + ms(3_000);
    while !waits(&lab) {
        assert!(lab.now < until && !left(&lab), "{}", lab.story());
        let word = under_way(&lab);
        say(&mut lab, 0, word);
        lab.run(ms(10));
    }
    let since = lab.at();
    lab.until(ms(1_000), left);
    assert!((GATE - ms(11)..=GATE).contains(&(lab.at() - since)), "{:?}", lab.at() - since);
    lab.run(ms(500));
    assert_eq!(lab.owners(), [1]);
}

#[test]
fn a_drain_waits_no_longer_than_150_ms_and_it_is_said_what_was_missing() {
    let mut lab = pair();
    let word = under_way(&lab);
    say(&mut lab, 0, word);
    let since = lab.at();
    lab.drain(0, &[], false);
    lab.until(ms(1_000), |lab| lab.node(0).world().vips[0].state == State::Backup);
    assert!((ms(150)..=ms(151)).contains(&(lab.at() - since)), "{:?}", lab.at() - since);
    assert!(lab.has(0, |kind| matches!(kind, Kind::MovedUnsynced { peer, .. } if peer == "lb1")), "{}", lab.story());
    lab.run(ms(100));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.unowned_max.is_zero());
}

#[test]
fn a_drain_to_a_peer_that_no_flow_reaches_waits_for_nothing_and_says_so() {
    let mut lab = pair();
    let mut word = under_way(&lab);
    word.peers[0].outbound.why = Some(Why::NoSession);
    say(&mut lab, 0, word);
    lab.drain(0, &[], false);
    assert_eq!(lab.node(0).world().vips[0].state, State::Backup);
    assert!(lab.has(0, |kind| matches!(kind, Kind::MovedUnsynced { .. })), "{}", lab.story());
}

#[test]
fn a_stop_waits_for_flows_as_a_drain_does_and_leaves_nothing() {
    let mut lab = pair();
    let word = under_way(&lab);
    say(&mut lab, 0, word);
    let since = lab.at();
    lab.feed(0, Input::Stop { deadline: ms(5_000) });
    lab.run(ms(140));
    assert_eq!(lab.owners(), [0]);
    lab.run(ms(200));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.hosts[0].stopped && lab.unowned_max.is_zero());
    let filters = filters(&lab, 0, since);
    assert_eq!(filters.last(), Some(&FlowFilter::Off), "the kernel's setting is put back");
}

#[test]
fn one_that_leaves_while_its_address_still_waits_adds_none() {
    let mut lab = pair();
    lab.drain(0, &[], false);
    run_but(&mut lab, ms(1_000), 0, well);
    lab.undrain(0);
    run_but(&mut lab, ms(1_000), 0, well);
    let word = missing(&lab);
    say(&mut lab, 1, word);
    let token = lab.drain(0, &[], false);
    lab.until(ms(1_000), |lab| lab.node(1).world().vips[0].state == State::Active);
    lab.undrain(0);
    lab.run(ms(1));
    let since = lab.at();
    lab.drain(1, &[], false);
    lab.run(ms(100));
    assert!(lab.answer(0, token).is_some());
    assert!(!lab.log_since(1, since).into_iter().any(adds), "{}", lab.story());
}

#[test]
fn a_dead_owner_waits_for_nothing() {
    let mut lab = pair();
    let word = under_way(&lab);
    say(&mut lab, 0, word);
    lab.kill_balancer(0);
    assert_eq!(lab.node(0).world().vips[0].state, State::Backup, "{}", lab.story());
}

#[test]
fn a_new_worker_takes_up_what_the_former_one_held_without_waiting() {
    let mut lab = pair();
    let epoch = lab.node(0).world().vips[0].role_epoch;
    lab.crash(0);
    lab.hosts[0].events.clear();
    lab.run(ms(20));
    lab.boot(0, vec![("web".to_owned(), epoch)]);
    run_but(&mut lab, ms(2_000), 0, missing);
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero());
    assert!(!lab.has(0, |kind| matches!(kind, Kind::PromotedUnsynced { .. })), "{}", lab.story());
}

#[test]
fn a_kernel_that_is_being_written_to_is_in_sync_for_a_second() {
    let mut lab = pair();
    let busy = |lab: &Lab| {
        let vip = SyncVipWord { ready: Err(NotReady::Kernel { behind: 3 }), flows: 7, young: 0 };
        SyncWord { vips: vec![vip], ..well(lab) }
    };
    let standing = |lab: &Lab| lab.node(1).status(lab.now).vips[0].standing.clone();
    let word = busy(&lab);
    say(&mut lab, 1, word);
    lab.run(ms(500));
    let word = busy(&lab);
    say(&mut lab, 1, word);
    lab.run(ms(400));
    assert_eq!(standing(&lab), "good");
    lab.run(ms(300));
    assert_eq!(standing(&lab), "degraded");
    let word = well(&lab);
    say(&mut lab, 1, word);
    assert_eq!(standing(&lab), "good");
}

fn elected(lab: &Lab, i: usize, since: Duration) -> Vec<Elected> {
    let told = lab.log_since(i, since).into_iter().filter_map(|o| match o {
        Output::Elected { elected, .. } => Some(*elected),
        _ => None,
    });
    told.collect()
}

fn filters(lab: &Lab, i: usize, since: Duration) -> Vec<FlowFilter> {
    let told = lab.log_since(i, since).into_iter().filter_map(|o| match o {
        Output::Step(Step::EventFilter { filter }) => Some(filter.clone()),
        _ => None,
    });
    told.collect()
}

#[test]
fn the_sync_thread_is_told_whose_a_vip_is_before_its_address_goes_and_again_when_it_begins_anew() {
    let mut lab = pair();
    assert_eq!(elected(&lab, 0, Duration::ZERO).last(), Some(&Elected::Me));
    assert_eq!(elected(&lab, 1, Duration::ZERO).last(), Some(&Elected::Peer(PEER)));
    let since = lab.at();
    lab.drain(0, &[], false);
    lab.run(ms(100));
    assert_eq!(elected(&lab, 0, since), [Elected::Unknown, Elected::Peer(PEER)]);
    assert_eq!(elected(&lab, 1, since), [Elected::Me]);
    let log = lab.log_since(0, since);
    let fence = log.iter().position(|o| matches!(o, Output::Elected { .. }));
    let removal = log.iter().position(|o| matches!(o, Output::Step(Step::RemoveAddress { .. })));
    assert!(fence.is_some() && fence < removal, "{fence:?} {removal:?}");
    let since = lab.at();
    let word = well(&lab);
    say(&mut lab, 0, word);
    assert_eq!(elected(&lab, 0, since), [], "no news");
    let word = SyncWord { run: 2, ..well(&lab) };
    say(&mut lab, 0, word);
    assert_eq!(elected(&lab, 0, since), [Elected::Peer(PEER)]);
}

#[test]
fn flows_are_not_claimed_before_those_of_the_former_owner_are_written() {
    let mut lab = pair();
    let word = missing(&lab);
    say(&mut lab, 1, word);
    let since = lab.at();
    lab.crash(0);
    lab.until(ms(1_000), |lab| lab.node(1).world().vips[0].state == State::Active);
    assert_eq!(elected(&lab, 1, since), []);
    let word = well(&lab);
    say(&mut lab, 1, word);
    assert_eq!(elected(&lab, 1, since), [Elected::Me]);
}

#[test]
fn the_kernel_tells_of_the_flows_that_are_replicated_and_is_told_so_again_now_and_then() {
    let lab = pair();
    let of = FlowFilter::Of(BTreeMap::from([(VIP, FlowEvents::AtAssured)]));
    assert_eq!(filters(&lab, 0, Duration::ZERO)[0], of);
    let mut lab = Lab::settled_with(&[254, 253], true, |config| {
        replicates(config);
        config.statesync.as_mut().expect("set above").filter = SyncFilter::User;
    });
    assert_eq!(filters(&lab, 0, Duration::ZERO), [FlowFilter::All]);
    let since = lab.at();
    lab.run(ms(6_000));
    assert_eq!(filters(&lab, 0, since), [FlowFilter::All]);
}

#[test]
fn without_replication_nothing_is_told_but_that_nothing_is_wanted() {
    let mut lab = Lab::settled(&[254, 253], true);
    let word = missing(&lab);
    say(&mut lab, 0, word);
    lab.run(ms(6_000));
    assert_eq!(elected(&lab, 0, Duration::ZERO), []);
    assert_eq!(filters(&lab, 0, Duration::ZERO), [FlowFilter::Off], "a former run may have wanted some");
    assert_eq!(lab.node(0).status(lab.now).sync, None);
    let json = serde_json::to_value(lab.node(0).status(lab.now)).expect("JSON");
    assert_eq!(json.get("sync"), None);
}

#[test]
fn the_route_of_a_unit_without_a_router_waits_for_flows() {
    let mut lab = Lab::new(&[100, 100], true).with_routers(1);
    lab.hosts.iter_mut().for_each(|host| {
        anycast(&mut host.config, 1);
        replicates(&mut host.config);
    });
    (0..2).for_each(|i| lab.start(i));
    let route = |lab: &Lab, i: usize| {
        let mut events = lab.hosts[i].events.iter();
        events.find(|(_, e)| matches!(e.kind, Kind::RouteAnnounced { .. })).map(|(at, _)| *at)
    };
    let unsynced = |lab: &Lab, i: usize| lab.has(i, |kind| matches!(kind, Kind::PromotedUnsynced { .. }));
    let held = |lab: &Lab, i: usize| lab.node(i).plan().vips[0].announce.is_some();
    lab.until(ms(3_000), |lab| held(lab, 0));
    let since = lab.at();
    assert_eq!(elected(&lab, 0, Duration::ZERO), [Elected::Unknown]);
    lab.run(ms(100));
    assert!(route(&lab, 0).is_none() && !lab.owns(0), "{}", lab.story());
    lab.run(ms(100));
    let told = route(&lab, 0).expect("bounded") - since;
    assert!(told <= GATE + ms(1) && unsynced(&lab, 0), "{told:?} {}", lab.story());
    assert_eq!(elected(&lab, 0, Duration::ZERO).last(), Some(&Elected::Me));
    // It serves, and all others have its flows: then its going isn't held up, and its coming back neither.
    run_but(&mut lab, ms(2_000), 0, well);
    let before = lab.at();
    lab.drain(0, &[], false);
    run_but(&mut lab, ms(60_000), 0, well);
    assert_eq!(elected(&lab, 0, before), [Elected::Unknown]);
    lab.undrain(0);
    run_but(&mut lab, ms(2_000), 0, well);
    assert_eq!(elected(&lab, 0, before), [Elected::Unknown, Elected::Me]);
}

#[test]
fn what_the_sync_thread_met_stands_in_the_journal_by_name() {
    let mut lab = pair();
    lab.feed(0, Input::SyncEvent(SyncEvent::OutOfSync { peer: PEER, outbound: true, why: Why::Stale }));
    lab.feed(0, Input::SyncEvent(SyncEvent::Claimed { vip: holdfast_statesync::flow::VipId(0), generation: 3 }));
    lab.feed(0, Input::SyncEvent(SyncEvent::Overrun));
    let of = |kind: &Kind| matches!(kind, Kind::FlowSync { peer, outbound: true, in_sync: false, .. } if peer == "lb1");
    assert!(lab.has(0, of));
    assert!(lab.has(0, |kind| matches!(kind, Kind::FlowsClaimed { vip, generation: 3 } if vip == "web")));
    assert!(lab.has(0, |kind| matches!(kind, Kind::FlowNotice { .. })));
}

#[test]
fn a_sync_thread_that_cannot_work_is_a_fault_and_its_end_is_told() {
    let mut lab = pair();
    let word = SyncWord { trouble: Some("no CAP_NET_ADMIN".to_owned()), ..well(&lab) };
    say(&mut lab, 0, word);
    let status = lab.node(0).status(lab.now);
    assert!(status.warnings.iter().any(|w| w.text == "no flows are replicated: no CAP_NET_ADMIN"), "{status:?}");
    assert_eq!(status.sync.as_ref().map(|sync| sync.vips[0].ready), Some(false));
    // Waiting is of no use then.
    lab.drain(0, &[], false);
    assert_eq!(lab.node(0).world().vips[0].state, State::Backup);
    let word = well(&lab);
    say(&mut lab, 0, word);
    let told: Vec<&str> = lab.hosts[0]
        .events
        .iter()
        .filter_map(|(_, e)| if let Kind::SyncTrouble { why } = &e.kind { Some(why.as_str()) } else { None })
        .collect();
    assert_eq!(told, ["no CAP_NET_ADMIN", ""]);
}

#[test]
fn the_status_says_for_each_direction_and_vip_how_it_is() {
    let mut lab = pair();
    let mut word = well(&lab);
    word.peers[0].outbound = Direction { equal_at: None, why: Some(Why::Differs), since: lab.now, behind: 5 };
    word.lag = Some(Duration::from_micros(800));
    say(&mut lab, 0, word);
    lab.run(ms(200));
    let sync = lab.node(0).status(lab.now).sync.expect("a section");
    assert_eq!((sync.age_ms, sync.lag_us), (Some(200), Some(800)));
    let vip = &sync.vips[0];
    assert_eq!((vip.name.as_str(), vip.ready, vip.owner.as_deref(), vip.flows), ("web", true, Some("lb0"), 7));
    let peer = &sync.peers[0];
    assert!(peer.inbound.in_sync && !peer.outbound.in_sync && peer.outbound.behind == 5);
    assert_eq!((peer.outbound.since_ms, peer.outbound.compared_ms), (200, None));
    assert!(lab.node(0).status(lab.now).warnings.is_empty(), "it has just begun");
    run_but(&mut lab, ms(3_000), 0, well);
    let mut word = well(&lab);
    word.peers[0].outbound = Direction { equal_at: None, why: Some(Why::Differs), since: lab.origin, behind: 5 };
    say(&mut lab, 0, word);
    let warnings = lab.node(0).status(lab.now).warnings;
    assert_eq!(warnings[0].text, "this node's flows at lb1 aren't in sync: it differs and is being sent");
}

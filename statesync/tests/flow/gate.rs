//! Facts about who holds what, and when a VIP may come.

use crate::heal::pair;
use crate::sim::{MS, SECOND, Sim, VIP};
use holdfast_statesync::flow::{Event, Explanation, Mode, NotReady, Survival, Whose, Why};
use std::time::Duration;

#[test]
pub(crate) fn a_node_is_ready_when_it_has_all_flows_of_its_peers_in_its_kernel() {
    let mut sim = Sim::new(1, 2);
    sim.move_vip(VIP, 0);
    sim.open(0, VIP, 3_000);
    let peer = sim.peer(1, 0);
    sim.run_for(100 * MS);
    let mut waited = 0;
    while sim.flows(1).may_promote(sim.now, VIP).is_err() {
        sim.run_for(MS);
        waited += 1;
        assert!(waited < 5_000, "{:?}", sim.flows(1).may_promote(sim.now, VIP));
    }
    assert_eq!(sim.nodes[1].kernel.flows.len(), 3_000);

    // A restarted agent has to be in sync first.
    sim.restart(1);
    let ready = sim.flows(1).may_promote(sim.now, VIP);
    assert_eq!(ready, Err(NotReady::Peer(peer, Why::NoSession)), "it can't know yet");
    assert!(sim.run_until(3 * SECOND, |sim| sim.flows(1).may_promote(sim.now, VIP).is_ok()));
}

#[test]
fn a_peer_that_is_down_is_not_waited_for() {
    let mut sim = pair(2, 100);
    sim.cuts.extend([(0, 1), (1, 0)]);
    sim.run_for(SECOND);
    assert_eq!(sim.flows(1).may_promote(sim.now, VIP), Ok(()));
}

#[test]
fn each_direction_says_since_when_and_why_it_is_out_of_sync() {
    let mut sim = pair(3, 100);
    let peer = sim.peer(0, 1);
    let at = sim.now;
    sim.run_for(3 * SECOND);
    let direction = sim.flows(0).outbound(sim.now, peer).expect("it is a peer");
    assert_eq!((direction.why, direction.behind), (None, 0));
    assert!(direction.equal_at.expect("it was compared") > at, "the fact is renewed");
    sim.cuts.insert((1, 0));
    sim.run_for(SECOND);
    let cut = sim.now;
    sim.run_for(SECOND);
    for direction in [sim.flows(0).outbound(sim.now, peer), sim.flows(0).inbound(sim.now, peer)] {
        let direction = direction.expect("it is a peer");
        assert_eq!(direction.why, Some(Why::NoSession));
        assert!(direction.since < cut);
    }
    let events = &sim.nodes[0].events;
    assert!(events.contains(&Event::InSync { peer, outbound: true }));
    assert!(events.contains(&Event::OutOfSync { peer, outbound: false, why: Why::NoSession }));
}

#[test]
fn the_barrier_before_an_address_goes_says_whether_all_is_acknowledged() {
    let mut sim = pair(4, 10);
    let peer = sim.peer(0, 1);
    assert!(sim.flows(0).is_flushed(peer));
    sim.open(0, VIP, 5);
    assert!(!sim.flows(0).is_flushed(peer));
    sim.run_for(5 * MS);
    assert!(sim.flows(0).is_flushed(peer));
}

#[test]
fn the_watermark_says_what_is_sent_what_is_settled_and_since_when_something_waits() {
    let mut sim = pair(4, 10);
    let peer = sim.peer(0, 1);
    let before = sim.flows(0).watermark(peer).expect("there is a session");
    assert_eq!((before.sent, before.waits_since), (before.settled, None));
    sim.open(0, VIP, 5);
    let now = sim.now;
    let on_way = sim.flows(0).watermark(peer).expect("there is a session");
    assert!(on_way.waits_since.is_some_and(|since| since <= now), "{on_way:?}");
    sim.run_for(5 * MS);
    let after = sim.flows(0).watermark(peer).expect("there is a session");
    assert_eq!((after.sent, after.waits_since), (after.settled, None));
    assert!(after.sent > before.sent);
}

#[test]
fn explain_says_where_a_flow_would_survive_and_why_not() {
    let mut sim = Sim::idle(5, 2);
    sim.mode = Mode::After(Duration::from_secs(2));
    sim.start_agent(0);
    sim.start_agent(1);
    sim.move_vip(VIP, 0);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    sim.open(0, VIP, 1);
    let original = sim.clients[0].original;
    let peer = sim.peer(0, 1);
    let survival = |sim: &Sim| match sim.flows(0).explain(sim.now, &original, Default::default()) {
        Explanation::Known { owner: Whose::Ours, here: true, clash: false, peers, .. } => peers,
        other => panic!("{other:?}"),
    };
    assert_eq!(survival(&sim), [(peer, Survival::Young)]);
    assert!(sim.nodes[1].kernel.flows.is_empty());
    sim.run_for(SECOND);
    assert!(sim.nodes[1].kernel.flows.is_empty());
    sim.run_for(1_100 * MS);
    assert_eq!(survival(&sim), [(peer, Survival::Yes)]);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 1);
    sim.cuts.extend([(0, 1), (1, 0)]);
    sim.run_for(SECOND);
    assert_eq!(survival(&sim), [(peer, Survival::NotInSync(Why::NoSession))]);
    // The other node knows whose it is.
    let there = sim.flows(1).explain(sim.now, &original, Default::default());
    assert!(matches!(there, Explanation::Known { owner: Whose::Peers(_), here: true, .. }), "{there:?}");
}

#[test]
fn a_short_flow_of_a_vip_that_waits_costs_nothing() {
    let mut sim = Sim::idle(6, 2);
    sim.mode = Mode::After(Duration::from_secs(2));
    sim.start_agent(0);
    sim.start_agent(1);
    sim.move_vip(VIP, 0);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    let before = sim.counters(0).records_sent;
    for _ in 0..100 {
        sim.open(0, VIP, 1);
        sim.run_for(10 * MS);
        sim.close(0, 0);
    }
    sim.run_for(3 * SECOND);
    assert_eq!(sim.counters(0).records_sent, before);
}

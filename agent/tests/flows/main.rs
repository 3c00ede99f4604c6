//! Two agents that replicate flows, in network namespaces: what one's kernel forwards is in the other's, and goes on there.
//! Needs root; without, it says so and is skipped.

#[path = "../agent/mod.rs"]
mod agent;
mod fabric;
mod kinds;
mod loss;
#[path = "../netns/mod.rs"]
mod netns;
mod told;

use fabric::{Pair, Shape, patient, speaks};
use holdfast::os::ct::Removals;
use holdfast_statesync::ct::{Status, TcpState};
use holdfast_statesync::flow::{NodeId, Tag};
use netns::{skipped, until};
use nix::sys::signal::Signal;
use std::net::TcpStream;
use std::time::Duration;

const MASK: u32 = 0xff00_0000;

/// A pair, and a connection of which the second host has a replica.
fn replicated() -> (Pair, (TcpStream, TcpStream, u16)) {
    let pair = Pair::started("");
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    until("the replica is there", || pair.hosts[1].flow(port));
    (pair, (near, far, port))
}

#[test]
fn a_flow_through_one_host_is_a_replica_in_the_other_until_it_ends() {
    if skipped() {
        return;
    }
    let mut pair = Pair::started("");
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    let replica = until("the replica is there", || pair.hosts[1].flow(port));
    let own = pair.hosts[0].flow(port).expect("it forwards it");
    assert_eq!((replica.original, replica.reply), (own.original, own.reply), "with its translation");
    let status = replica.status.expect("dumps have it");
    assert!(status.has(Status::ASSURED.with(Status::SEEN_REPLY).with(Status::DST_NAT).with(Status::SRC_NAT)));
    assert_eq!(replica.tcp.expect("it is TCP").state, TcpState::Established);
    assert_eq!(replica.mark.unwrap_or(0) & MASK, Tag::default().of(NodeId::of_name("lb0")), "whose it is");
    assert_eq!(own.mark.unwrap_or(0) & MASK, 0, "an own one has no mark");
    assert!(replica.timeout_s.is_some_and(|s| s <= 600), "a lease, not the countdown: {replica:?}");
    for host in &pair.hosts {
        assert_eq!(host.settings(), [Some(1); 2], "{}", host.log());
        assert!(host.tables().contains("holdfast_events"));
    }
    // Nothing of the hosts' own traffic, of which there is enough between them.
    assert_eq!(pair.hosts[1].flows().len(), 1);

    // It goes on where the VIP goes.
    pair.kill_first();
    assert!(speaks(&mut near, &mut far), "it broke");
    let taken = until("it is its own flow now", || {
        pair.hosts[1].flow(port).filter(|entry| entry.mark.unwrap_or(0) & MASK == 0)
    });
    assert!(taken.timeout_s.is_some_and(|s| s > 600), "with the kernel's own timeout: {taken:?}");
    pair.hosts[1].stop();
    drop((near, far));
}

#[test]
fn a_flow_that_ends_ends_at_the_peer_too() {
    if skipped() {
        return;
    }
    let (pair, (_near, _far, port)) = replicated();
    // The owner's kernel forgets it (conntrack -D is the operator's; the same event as of a timeout).
    let gone = pair.hosts[0].namespace.exec(&format!("conntrack -D -p tcp --orig-port-src {port}"));
    assert!(gone.contains("ESTABLISHED"), "{gone}");
    until("the replica is gone", || pair.hosts[1].flow(port).is_none().then_some(()));
}

#[test]
fn what_somebody_deletes_from_a_replica_comes_back_and_the_owner_loses_nothing() {
    if skipped() {
        return;
    }
    let (pair, (mut near, mut far, port)) = replicated();
    pair.hosts[1].namespace.exec("conntrack -F");
    until("it is there again", || pair.hosts[1].flow(port));
    assert!(pair.hosts[0].flow(port).is_some(), "deletes don't travel backwards");
    assert!(speaks(&mut near, &mut far));
}

#[test]
fn a_worker_that_is_killed_or_replaced_leaves_all_flows_and_knows_them_again() {
    if skipped() {
        return;
    }
    let (pair, (mut near, mut far, port)) = replicated();
    let mut watched = pair.hosts[1].namespace.enter(|| Removals::open(1 << 20).expect("opens"));
    for host in &pair.hosts {
        let worker = host.worker();
        host.signal(worker, Signal::SIGKILL);
        until("another one runs", || (host.worker() != worker).then_some(()));
        // Refused until that one has begun.
        until("and is replaced", || host.holdfast(&["upgrade"]).status.success().then_some(()));
    }
    // In sync again: what happens now arrives.
    until("both say so again", || {
        pair.hosts.iter().all(|host| host.log().matches(fabric::OURS_THERE).count() >= 2).then_some(())
    });
    let mut deleted = 0;
    watched.read(|event| deleted += u32::from(event.entry.original.layer4.source_port() == port)).expect("read");
    assert_eq!(deleted, 0, "nothing was flushed");
    assert!(speaks(&mut near, &mut far));
    assert!(pair.hosts[1].flow(port).is_some_and(|entry| entry.mark.unwrap_or(0) & MASK != 0));
    pair.hosts[0].namespace.exec(&format!("conntrack -D -p tcp --orig-port-src {port}"));
    until("its end is told by the new ones", || pair.hosts[1].flow(port).is_none().then_some(()));
}

#[test]
fn a_planned_move_breaks_no_flow_and_a_clean_stop_leaves_the_host_as_it_was() {
    if skipped() {
        return;
    }
    let mut pair = Pair::new(Shape::default());
    let [events, stamps] = pair.hosts[0].settings();
    pair.hosts.iter_mut().for_each(fabric::Host::start);
    until("the first one holds it", || pair.hosts[0].holds().then_some(()));
    until("both are in sync", || pair.hosts.iter().all(fabric::in_sync).then_some(()));
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    pair.hosts[0].stop();
    assert!(pair.hosts[1].holds(), "handed over");
    patient([&near, &far], Duration::from_secs(5));
    assert!(speaks(&mut near, &mut far), "it broke");
    assert_eq!(pair.hosts[0].settings(), [events.or(Some(2)), stamps.or(Some(0))]);
    assert!(!pair.hosts[0].tables().contains("holdfast"), "{}", pair.hosts[0].tables());
    assert!(pair.hosts[1].flow(port).is_some());
}

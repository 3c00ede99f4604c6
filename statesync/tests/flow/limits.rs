//! Bounds, and what isn't replicated.

use crate::heal::{assert_heals, pair};
use crate::kernel::Kernel;
use crate::sim::{MS, SECOND, SHARED, Sim, TCP_LIFE, VIP};
use holdfast_statesync::ct::{Entry, Event, EventKind, SequenceAdjustment, SynProxy};
use holdfast_statesync::flow::{Class, Elected, Event as Told, Input, NotReplicated, Why};

#[test]
fn a_full_table_sheds_the_shortest_lived_flows_first_and_says_so() {
    let mut sim = Sim::idle(1, 2);
    sim.max_flows = 100;
    sim.start_agent(0);
    sim.start_agent(1);
    sim.move_vip(VIP, 0);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    for _ in 0..60 {
        let client = sim.next_client(VIP, true);
        sim.open_client(0, client);
    }
    sim.wake(0);
    sim.run_for(10 * MS);
    sim.open(0, VIP, 60);
    sim.run_for(10 * MS);
    for _ in 0..30 {
        sim.open(0, VIP, 5);
        sim.run_for(5 * MS);
        assert!(sim.flows(0).records() <= 100 && sim.flows(1).records() <= 100);
    }
    assert!(sim.counters(0).shed >= 60);
    let full = |event: &&Told| matches!(event, Told::Full { class: Class::TcpOpen });
    assert!(sim.nodes[0].events.iter().any(|event| full(&event)));
    // No UDP flow has a place while open TCP flows wait for one.
    let udp = sim.flows(0).list().filter(|flow| flow.class == Class::UdpStream).count();
    assert_eq!(udp, 0);
    // Our own kernel has them all.
    assert_eq!(sim.nodes[0].kernel.flows.len(), 60 + 60 + 150);
}

#[test]
fn a_peer_without_room_says_so_and_isnt_flooded() {
    let mut sim = Sim::idle(2, 2);
    sim.max_flows = 500;
    sim.start_agent(0);
    sim.max_flows = 200;
    sim.start_agent(1);
    sim.move_vip(VIP, 0);
    sim.open(0, VIP, 400);
    sim.run_for(20 * SECOND);
    let peer = sim.peer(0, 1);
    let why = sim.flows(0).outbound(sim.now, peer).and_then(|direction| direction.why);
    assert_eq!(why, Some(Why::PeerFull));
    assert!(sim.flows(1).records() <= 200);
    let before = sim.wire_bytes;
    sim.run_for(10 * SECOND);
    assert!(sim.wire_bytes - before < 200_000, "{} bytes", sim.wire_bytes - before);
}

#[test]
fn a_kernel_without_room_is_counted_and_tried_again() {
    let mut sim = pair(3, 0);
    sim.nodes[1].kernel.max = 20;
    sim.open(0, VIP, 50);
    sim.run_for(SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 20);
    assert!(sim.counters(1).kernel_refused >= 30);
    assert_eq!(sim.flows(1).not_in_kernel(), 30);
    let told = sim.nodes[1].events.iter().filter(|event| matches!(event, Told::KernelRefused { errno: 12 })).count();
    assert!((1..=6).contains(&told), "{told} events");
    sim.nodes[1].kernel.max = 1_000;
    sim.run_for(7 * SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 50);
}

#[test]
pub(crate) fn a_peer_cant_touch_a_vip_that_it_doesnt_share() {
    let mut sim = Sim::idle(4, 2);
    sim.unshared = true;
    sim.start_agent(0);
    sim.start_agent(1);
    sim.elect(1, SHARED, Elected::Me);
    sim.elect(0, SHARED, Elected::Me);
    sim.open(1, SHARED, 20);
    sim.open(0, SHARED, 20);
    sim.run_for(3 * SECOND);
    assert!(sim.nodes[0].kernel.flows.values().all(|held| held.mark == 0), "nothing came from the peer");
    assert_eq!(sim.nodes[0].kernel.flows.len(), 20);
    assert!(sim.counters(0).unlisted >= 20);
    // It isn't told of them, and what it is refused it doesn't repeat at full speed.
    assert!(sim.counters(1).shards_sent < 20 * 12, "{} shards", sim.counters(1).shards_sent);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 20);
}

#[test]
fn what_cant_be_replicated_is_counted_and_told_apart() {
    let mut sim = pair(5, 0);
    let client = sim.next_client(VIP, false);
    assert!(sim.nodes[0].kernel.open(sim.now, client.original, client.reply, TCP_LIFE, true));
    let entry = Kernel::entry(&sim.nodes[0].kernel.flows[&client.key()], sim.now);
    sim.nodes[0].kernel.events.clear();
    let flows = sim.flows(0);
    assert_eq!(flows.why_not(&entry), None);

    let local = Entry { reply: entry.original.inverse().expect("TCP has one"), ..entry };
    let proxy = SynProxy { initial_sequence: 1, initial_timestamp: 2, timestamp_offset: 3 };
    let odd = Entry { syn_proxy: Some(proxy), ..entry };
    let young = Entry { status: Some(Default::default()), ..entry };
    let foreign = Entry { original: entry.reply, ..entry };
    let cases = [
        (local, NotReplicated::Proxied),
        (odd, NotReplicated::NotCarried),
        (young, NotReplicated::NotAssured),
        (foreign, NotReplicated::NotForVips),
    ];
    for (entry, why) in cases {
        assert_eq!(sim.flows(0).why_not(&entry), Some(why));
        sim.give(0, Input::Kernel(&Event { kind: EventKind::New, port_id: 0, entry }));
    }
    let counters = sim.counters(0);
    assert_eq!((counters.proxied, counters.not_carried, counters.not_for_vips), (1, 1, 1));
    assert_eq!(sim.flows(0).records(), 0);

    // Its backend is on this host.
    let flows = sim.flows_mut(0);
    flows.set_local([entry.reply.addresses.source()]);
    assert_eq!(flows.why_not(&entry), Some(NotReplicated::Proxied));
    sim.give(0, Input::Kernel(&Event { kind: EventKind::New, port_id: 0, entry }));
    assert_eq!((sim.counters(0).proxied, sim.flows(0).records()), (2, 0));
    sim.flows_mut(0).set_local([]);
    sim.give(0, Input::Kernel(&Event { kind: EventKind::New, port_id: 0, entry }));
    assert_eq!(sim.flows(0).records(), 1);
}

#[test]
fn a_peers_flow_to_a_backend_that_is_here_has_its_replica() {
    let mut sim = pair(5, 0);
    let client = sim.next_client(VIP, false);
    assert!(sim.nodes[0].kernel.open(sim.now, client.original, client.reply, TCP_LIFE, true));
    let entry = Kernel::entry(&sim.nodes[0].kernel.flows[&client.key()], sim.now);
    sim.flows_mut(1).set_local([entry.reply.addresses.source()]);
    assert!(sim.run_until(SECOND, |sim| sim.nodes[1].kernel.flows.contains_key(&client.key())));
}

#[test]
fn an_inserted_entry_tells_of_proxy_and_shift_by_zeros_and_is_replicated_all_the_same() {
    let mut sim = pair(5, 0);
    let client = sim.next_client(VIP, false);
    assert!(sim.nodes[0].kernel.open(sim.now, client.original, client.reply, TCP_LIFE, true));
    let plain = Kernel::entry(&sim.nodes[0].kernel.flows[&client.key()], sim.now);
    let (proxy, shift) = (SynProxy::default(), SequenceAdjustment::default());
    let zeros = Entry { syn_proxy: Some(proxy), sequence_adjustment: [Some(shift), Some(shift)], ..plain };
    assert_eq!(sim.flows(0).why_not(&zeros), None);
    let odd = [
        Entry { syn_proxy: Some(SynProxy { timestamp_offset: 1, ..proxy }), ..zeros },
        Entry { sequence_adjustment: [Some(shift), Some(SequenceAdjustment { offset_after: -1, ..shift })], ..zeros },
    ];
    for entry in odd {
        assert_eq!(sim.flows(0).why_not(&entry), Some(NotReplicated::NotCarried), "{entry:?}");
    }
}

#[test]
fn bytes_that_are_no_batch_change_nothing_and_are_counted() {
    let mut sim = pair(6, 20);
    let peer = sim.peer(1, 0);
    let before = sim.table(1);
    for bytes in [&[][..], &[1], &[1, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0xff], &[7; 40]] {
        sim.give(1, Input::Batch { peer, bytes });
    }
    // Another version.
    sim.give(1, Input::Batch { peer, bytes: &[2, 1, 0, 0, 0, 0, 9, 0, 0, 0] });
    // A peer that isn't one.
    sim.give(1, Input::Batch { peer: holdfast_statesync::PeerId(9), bytes: &[1, 1, 0, 0, 0, 0, 9, 0, 0, 0] });
    sim.give(1, Input::Done { ticket: holdfast_statesync::flow::Ticket(u32::MAX), result: Err(5) });
    assert_eq!(sim.table(1), before);
    assert_eq!(sim.counters(1).malformed + sim.counters(1).batches_foreign, 5);
}

#[test]
fn ipv6_flows_are_replicated_like_others() {
    let mut sim = Sim::new(7, 2);
    sim.v6 = true;
    sim.move_vip(VIP, 0);
    sim.open(0, VIP, 200);
    sim.run_for(2 * SECOND);
    assert_eq!(sim.nodes[1].kernel.flows.len(), 200);
    sim.move_vip(VIP, 1);
    assert_eq!(sim.traffic(1, VIP), 0);
    for _ in 0..50 {
        sim.close(1, 0);
    }
    assert_heals(&mut sim, 5 * SECOND);
    assert_eq!(sim.nodes[0].kernel.flows.len(), 150);
}

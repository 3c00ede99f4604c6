//! Properties over random inputs and random faults.

use super::lab::*;
use crate::config::{BalancerId, CheckId, InterfaceName, NeighborId, VipId};
use crate::io::*;
use crate::{Input, Step};
use holdfast_vrrp::{Family, LegId};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// An input that nobody would send in this order.
#[derive(Debug, Clone)]
enum Wild {
    Vrrp(u32, Vec<u8>),
    Advert(u8, u8, u8),
    Sent(u16, bool),
    Datagram(u8, Vec<u8>),
    Probed(u16, u8, bool),
    Link(u32, bool, bool),
    LinkGone(u32),
    Address(u32, u8, u8, bool),
    AddressGone(u32, u8, u8),
    Resync(bool),
    Done(u32, u8, bool),
    Balancer(u16, u8),
    Check(u16, u64, u8),
    Plane(u16, [u64; 4], [bool; 3]),
    Table(u64, u64),
    Drain(bool),
    Undrain,
    Upgrade,
    Replaced(bool),
    Status,
    Lapsed(u16, u64),
    Bgp(u16, u8, u64, Vec<u8>),
    Bfd(u16, u8),
    Disabled(u16, bool),
    Stop(u64),
    Wait(u64),
}

fn wild() -> impl Strategy<Value = Wild> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..64);
    prop_oneof![
        1 => (0..4u32, bytes()).prop_map(|(i, b)| Wild::Vrrp(i, b)),
        4 => (8..12u8, any::<u8>(), 90..110u8).prop_map(|(v, p, s)| Wild::Advert(v, p, s)),
        1 => (0..3u16, any::<bool>()).prop_map(|(v, ok)| Wild::Sent(v, ok)),
        1 => (0..4u8, bytes()).prop_map(|(p, b)| Wild::Datagram(p, b)),
        1 => (0..3u16, 90..110u8, any::<bool>()).prop_map(|(v, t, a)| Wild::Probed(v, t, a)),
        2 => (0..4u32, any::<bool>(), any::<bool>()).prop_map(|(i, n, up)| Wild::Link(i, n, up)),
        1 => (0..4u32).prop_map(Wild::LinkGone),
        2 => (0..4u32, 5..15u8, 0..=32u8, any::<bool>()).prop_map(|(i, a, p, m)| Wild::Address(i, a, p, m)),
        1 => (0..4u32, 5..15u8, 24..=32u8).prop_map(|(i, a, p)| Wild::AddressGone(i, a, p)),
        1 => any::<bool>().prop_map(Wild::Resync),
        2 => (0..4u32, 0..5u8, any::<bool>()).prop_map(|(i, k, ok)| Wild::Done(i, k, ok)),
        2 => (0..3u16, 0..3u8).prop_map(|(b, s)| Wild::Balancer(b, s)),
        2 => (0..3u16, 0..20u64, 0..5u8).prop_map(|(c, s, how)| Wild::Check(c, s, how)),
        2 => (0..3u16, any::<[u64; 4]>(), any::<[bool; 3]>()).prop_map(|(b, n, f)| Wild::Plane(b, n, f)),
        1 => (any::<u64>(), 0..3u64).prop_map(|(n, limit)| Wild::Table(n, limit)),
        1 => any::<bool>().prop_map(Wild::Drain),
        1 => Just(Wild::Undrain),
        1 => Just(Wild::Upgrade),
        1 => any::<bool>().prop_map(Wild::Replaced),
        1 => Just(Wild::Status),
        1 => (0..3u16, 0..5u64).prop_map(|(v, e)| Wild::Lapsed(v, e)),
        4 => (0..3u16, 0..8u8, 0..4u64, bytes()).prop_map(|(n, k, c, b)| Wild::Bgp(n, k, c, b)),
        1 => (0..3u16, 0..4u8).prop_map(|(n, s)| Wild::Bfd(n, s)),
        1 => (0..3u16, any::<bool>()).prop_map(|(v, d)| Wild::Disabled(v, d)),
        1 => (0..1_000u64).prop_map(Wild::Stop),
        6 => (0..500u64).prop_map(Wild::Wait),
    ]
}

fn feed(lab: &mut Lab, wild: Wild) {
    let ip = |last: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    let named = |known: bool| if known { eth0() } else { InterfaceName::new("eth1").expect("a name") };
    match wild {
        Wild::Vrrp(ifindex, bytes) => lab.feed(0, Input::Vrrp { ifindex, packet: Packet::V4(&bytes) }),
        Wild::Advert(vrid, priority, from) => {
            let advert = holdfast_vrrp::wire::Advert {
                version: holdfast_vrrp::Version::V3,
                vrid: holdfast_vrrp::Vrid::new(vrid).expect("a vrid"),
                priority: holdfast_vrrp::Priority::from_wire(priority),
                interval: holdfast_vrrp::AdvertInterval::from_cs(10).expect("an interval"),
                addresses: holdfast_vrrp::Addresses::new([VIP]).expect("one"),
            };
            let (source, group) = (Ipv4Addr::new(192, 0, 2, from), Ipv4Addr::new(224, 0, 0, 18));
            let form = holdfast_vrrp::wire::ChecksumForm::Message;
            let packet = packet(source, &advert.encode(form, source.into(), group.into()));
            lab.feed(0, Input::Vrrp { ifindex: 2, packet: Packet::V4(&packet) });
        }
        Wild::Sent(vip, ok) => {
            let result = if ok { Ok(()) } else { Err(SendError { errno: 1 }) };
            lab.feed(0, Input::AdvertSent { vip: VipId(vip), leg: LegId(0), result });
        }
        Wild::Datagram(peer, bytes) => {
            let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, peer)), 7712);
            lab.feed(0, Input::Datagram { from, bytes: &bytes });
        }
        Wild::Probed(vip, last, answered) => {
            let target = ip(last);
            let outcome = if answered { ProbeOutcome::Target } else { ProbeOutcome::Nobody };
            lab.feed(0, Input::Probed { vip: VipId(vip), target, outcome });
        }
        Wild::Link(ifindex, known, up) => {
            let link = Link { ifindex, name: named(known), up, mac: [0; 6], mtu: 1500 };
            lab.feed(0, Input::Link(link));
        }
        Wild::LinkGone(ifindex) => lab.feed(0, Input::LinkGone { ifindex }),
        Wild::Address(ifindex, last, prefix, marked) => {
            let address = Address { ifindex, ip: ip(last), prefix, marked, secondary: false, tentative: false };
            lab.feed(0, Input::Address(address));
        }
        Wild::AddressGone(ifindex, last, prefix) => {
            lab.feed(0, Input::AddressGone { ifindex, ip: ip(last), prefix });
        }
        Wild::Resync(true) => lab.resync(0),
        Wild::Resync(false) => lab.feed(0, Input::Resync { links: &[], addresses: &[] }),
        Wild::Done(ifindex, kind, ok) => {
            let (ip, prefix) = (VIP, 32);
            let step = match kind {
                0 => Step::AddAddress { ifindex, ip, prefix, lifetime: ms(2_000) },
                1 => Step::RemoveAddress { ifindex, ip, prefix },
                2 => Step::Announce { ifindex, ip },
                3 => Step::OpenVrrp { socket: SocketKey { family: Family::V4, ifindex: Some(ifindex) } },
                _ => Step::CloseVrrp { socket: SocketKey { family: Family::V4, ifindex: Some(ifindex) } },
            };
            let result = if ok { Ok(()) } else { Err(StepError { errno: 1, what: "no".to_owned() }) };
            lab.feed(0, Input::StepDone { step, result });
        }
        Wild::Balancer(id, state) => {
            let state = match state {
                0 => BalancerState::Unknown { why: "x".to_owned() },
                1 => BalancerState::Alive { pid: 1 },
                _ => BalancerState::Gone { pid: 1, why: "x".to_owned() },
            };
            lab.feed(0, Input::Balancer { balancer: BalancerId(id), state });
        }
        Wild::Plane(id, [now, limit, up, failed], [stopped, supervised, silent]) => {
            let level = Some(Level { now, limit: limit % 3 });
            let (old, silent) =
                (OldWorker { pid: 1, since: lab.now }, silent.then(|| Admin::Silent { why: "x".to_owned() }));
            let report = PlaneReport {
                admin: silent.unwrap_or_else(|| Admin::Answers { took: ms(now) }),
                connections: level,
                queue: level,
                files: level,
                backends: Some(Pool { up: up as u32, total: limit as u32 }),
                stopped,
                cpu_ticks: Some(now),
                supervised,
                reload: Reload { generation: up, failed, running: stopped, old: vec![old; (up % 100) as usize] },
                leaving: !supervised,
            };
            lab.feed(0, Input::Plane { balancer: BalancerId(id), report });
        }
        Wild::Table(count, limit) => {
            let sample = Ok(crate::conntrack::Sample::of(count, limit));
            lab.feed(0, Input::Conntrack { sample });
        }
        Wild::Check(id, sequence, how) => {
            let failures =
                [None, Some(Failure::Silent), Some(Failure::Answered), Some(Failure::Refused), Some(Failure::Other)];
            let how = failures[usize::from(how) % failures.len()];
            let result = how.map_or(Ok(()), |how| Err(CheckError { what: "x".to_owned(), how }));
            lab.feed(0, Input::CheckDone { check: CheckId(id), sequence, result, note: None });
        }
        Wild::Bgp(n, kind, conn, bytes) => {
            let conn = holdfast_bgp::ConnId(conn);
            let end = |last| SocketAddr::new(ip(last), 179);
            let input = match kind {
                0 => BgpInput::Connected { conn, local: end(100), remote: end(1) },
                1 => BgpInput::ConnectFailed { conn, why: "x".to_owned() },
                2 => BgpInput::Accepted { conn, local: end(100), remote: end(1) },
                3 => BgpInput::Bytes { conn, bytes: &bytes },
                4 => BgpInput::Closed { conn, why: None },
                5 => BgpInput::Queued { conn, bytes: bytes.len() * 4_096 },
                6 => BgpInput::Found { remote: end(1).ip() },
                _ => BgpInput::Problem { why: bytes.first().map(|b| b.to_string()) },
            };
            lab.feed(0, Input::Bgp { neighbor: NeighborId(n), input });
        }
        Wild::Bfd(n, state) => {
            use crate::keeper::ipc::BfdState::{AdminDown, Down, Init, Up};
            let state = [AdminDown, Down, Init, Up][usize::from(state % 4)];
            lab.feed(0, Input::Bfd { neighbor: NeighborId(n), state, diag: 1 });
        }
        Wild::Upgrade => {
            lab.operator(0, crate::io::Request::Upgrade { who: "uid 0".to_owned() });
        }
        Wild::Replaced(ready) => {
            let result = if ready { Ok(9) } else { Err("x".to_owned()) };
            lab.feed(0, Input::Replaced { result });
        }
        Wild::Disabled(vip, disabled) => lab.feed(0, Input::Disabled { vip: VipId(vip), disabled }),
        Wild::Drain(force) => {
            let force: &[&str] = if force { &["last-node", "peer-unknown"] } else { &[] };
            lab.drain(0, force, false);
        }
        Wild::Undrain => {
            lab.undrain(0);
        }
        Wild::Status => {
            lab.operator(0, Request::Status);
        }
        Wild::Lapsed(vip, role_epoch) => lab.feed(0, Input::Lapsed { vip: VipId(vip), role_epoch }),
        Wild::Stop(deadline) => lab.feed(0, Input::Stop { deadline: ms(deadline) }),
        Wild::Wait(time) => lab.run(ms(time)),
    }
}

/// A fault with the time that passes before the next.
#[derive(Debug, Clone)]
enum Fault {
    Balancer(usize, bool),
    Probes(usize, u8),
    Segment(usize, usize, bool),
    Isolate(usize, bool),
    Channel(usize, bool),
    Mute(usize, bool),
    Link(usize, bool),
    Crash(usize),
    Start(usize),
    Delete(usize),
    Send(usize, bool),
    Drain(usize),
    Undrain(usize),
    Pause(usize),
    Go(usize),
}

fn fault(nodes: usize) -> impl Strategy<Value = (Fault, u64)> {
    let i = move || 0..nodes;
    let kind = prop_oneof![
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Balancer(i, on)),
        (i(), 0..3u8).prop_map(|(i, p)| Fault::Probes(i, p)),
        (i(), i(), any::<bool>()).prop_map(|(a, b, on)| Fault::Segment(a, b, on)),
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Isolate(i, on)),
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Channel(i, on)),
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Mute(i, on)),
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Link(i, on)),
        i().prop_map(Fault::Crash),
        i().prop_map(Fault::Start),
        i().prop_map(Fault::Delete),
        (i(), any::<bool>()).prop_map(|(i, on)| Fault::Send(i, on)),
        i().prop_map(Fault::Drain),
        i().prop_map(Fault::Undrain),
        i().prop_map(Fault::Pause),
        i().prop_map(Fault::Go),
    ];
    (kind, 0..800u64)
}

fn strike(lab: &mut Lab, fault: &Fault) {
    match *fault {
        Fault::Balancer(i, true) => lab.revive_balancer(i),
        Fault::Balancer(i, false) => lab.kill_balancer(i),
        Fault::Probes(i, p) => lab.hosts[i].probes = [Probes::Good, Probes::Bad, Probes::Silent][usize::from(p)],
        Fault::Segment(a, b, true) => drop(lab.cut.insert((a, b))),
        Fault::Segment(a, b, false) => drop(lab.cut.remove(&(a, b))),
        Fault::Isolate(i, cut) => lab.isolate(i, cut),
        Fault::Channel(i, cut) => lab.cut_channels(i, cut),
        Fault::Mute(i, true) => drop(lab.mute.insert(i)),
        Fault::Mute(i, false) => drop(lab.mute.remove(&i)),
        Fault::Link(i, up) => lab.link(i, up),
        Fault::Crash(i) => lab.crash(i),
        Fault::Start(i) if lab.hosts[i].node.is_none() => lab.start(i),
        Fault::Start(_) => {}
        Fault::Delete(i) => lab.delete_address(i),
        Fault::Send(i, ok) => lab.hosts[i].send_errno = (!ok).then_some(1),
        Fault::Drain(i) => drop(lab.drain(i, &[], false)),
        Fault::Undrain(i) => drop(lab.undrain(i)),
        Fault::Pause(i) => lab.pause(i),
        Fault::Go(i) => lab.resume(i),
    }
}

/// Everything whole again.
fn mend(lab: &mut Lab) {
    lab.cut.clear();
    lab.cut_channel.clear();
    lab.mute.clear();
    for i in 0..lab.hosts.len() {
        lab.resume(i);
        lab.hosts[i].send_errno = None;
        if lab.hosts[i].node.is_none() {
            lab.start(i);
        }
        lab.link(i, true);
        lab.revive_balancer(i);
        lab.undrain(i);
    }
}

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { cases: n, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn no_order_of_inputs_panics(
        inputs in proptest::collection::vec(wild(), 1..80),
        channel: bool,
        routers in 0..3usize,
    ) {
        let mut lab = Lab::new(&[254, 253], channel).with_routers(routers);
        match routers {
            0 => {}
            1 => speaks(&mut lab.hosts[0].config, 1),
            _ => anycast(&mut lab.hosts[0].config, 2),
        }
        // Inputs that contradict the lab's kernel make announcements of absent addresses: here only the node is tested.
        lab.hosts[0].add_errno = Some(1);
        lab.start(0);
        for input in inputs {
            feed(&mut lab, input);
        }
        lab.run(ms(2_000));
    }
}

proptest! {
    #![proptest_config(cases(25))]

    #[test]
    fn after_any_faults_there_is_one_owner_within_two_down_times(
        faults in proptest::collection::vec(fault(3), 1..16),
        channel: bool,
        nodes in 2..4usize,
    ) {
        let mut lab = Lab::settled(&[254, 253, 252][..nodes], channel);
        for (fault, wait) in &faults {
            let of = |i: usize| i % nodes;
            let fault = match fault.clone() {
                Fault::Balancer(i, on) => Fault::Balancer(of(i), on),
                Fault::Probes(i, p) => Fault::Probes(of(i), p),
                Fault::Segment(a, b, on) => Fault::Segment(of(a), of(b), on),
                Fault::Isolate(i, on) => Fault::Isolate(of(i), on),
                Fault::Channel(i, on) => Fault::Channel(of(i), on),
                Fault::Mute(i, on) => Fault::Mute(of(i), on),
                Fault::Link(i, on) => Fault::Link(of(i), on),
                Fault::Crash(i) => Fault::Crash(of(i)),
                Fault::Start(i) => Fault::Start(of(i)),
                Fault::Delete(i) => Fault::Delete(of(i)),
                Fault::Send(i, on) => Fault::Send(of(i), on),
                Fault::Drain(i) => Fault::Drain(of(i)),
                Fault::Undrain(i) => Fault::Undrain(of(i)),
                Fault::Pause(i) => Fault::Pause(of(i)),
                Fault::Go(i) => Fault::Go(of(i)),
            };
            strike(&mut lab, &fault);
            lab.run(ms(*wait));
        }
        mend(&mut lab);
        lab.forget_duals();
        // Two down times at the lowest priority.
        lab.run(ms(800));
        prop_assert_eq!(lab.owners().len(), 1, "{:?}\n{}", lab.owners(), lab.story());
        // Fault back-off of a minute may hold a node off; but there is one owner all the time.
        lab.unowned_max = Duration::ZERO;
        lab.run(ms(5_000));
        prop_assert_eq!(lab.owners().len(), 1, "{:?}\n{}", lab.owners(), lab.story());
        prop_assert!(lab.dual_max <= ms(120), "dual for {:?}\n{}", lab.dual_max, lab.story());
        prop_assert!(lab.unowned_max <= ms(1), "unowned for {:?}\n{}", lab.unowned_max, lab.story());
    }
}

proptest! {
    #![proptest_config(cases(25))]

    #[test]
    fn after_any_faults_routers_know_exactly_those_that_can_serve(
        faults in proptest::collection::vec((fault(3), prop::option::of((0..2usize, any::<bool>()))), 1..16),
        channel: bool,
        dead in 0..4usize,
    ) {
        let mut lab = Lab::announcing(3, 2, channel);
        for ((fault, wait), router) in &faults {
            strike(&mut lab, fault);
            if let Some((r, up)) = router {
                lab.router(*r, *up);
            }
            lab.run(ms(*wait));
        }
        mend(&mut lab);
        (0..2).for_each(|r| lab.router(r, true));
        if dead < 3 {
            lab.kill_balancer(dead);
        }
        // Back-off of sessions and faults, and what routers keep for those that never came back.
        lab.run(ms(70_000));
        let able: Vec<usize> = (0..3).filter(|i| *i != dead).collect();
        for router in &lab.routers {
            prop_assert_eq!(router.ways(VIP), able.clone(), "{}", lab.story());
        }
        for i in 0..3 {
            let there = lab.hosts[i].kernel.keys().any(|key| key.1 == VIP);
            prop_assert_eq!(there, i != dead, "lb{}\n{}", i, lab.story());
        }
        let since = lab.at();
        lab.run(ms(20_000));
        prop_assert!(lab.routers.iter().all(|r| (0..3).all(|i| r.told_by(i, since).is_empty())), "{}", lab.story());
    }
}

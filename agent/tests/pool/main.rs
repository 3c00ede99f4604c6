//! The embedded balancer in the kernel: a client, a balancer host and three backends in network namespaces of their own.
//! Needs root; without, it says so and is skipped.

#[path = "../agent/mod.rs"]
mod agent;
mod alone;
mod cost;
mod fabric;
#[path = "../figures/mod.rs"]
mod figures;
#[path = "../netns/mod.rs"]
mod netns;
mod turn;

use fabric::{Fabric, VIP, VIP6, ask, connect};
use holdfast::os::nft::Balancer;
use holdfast_node::config::{Affinity, NatMode, OnDown, Service, SetId, Transport};
use holdfast_node::pool::maglev::Layout;
use holdfast_node::pool::{Balance, Ruleset, SetChange, SetTable, SlotChange};
use netns::skipped;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

fn table(backends: &[SocketAddr], shares: &[u32]) -> SetTable {
    let layout = Layout::new(&backends.iter().map(|backend| (*backend, 1)).collect::<Vec<_>>());
    SetTable { backends: backends.into(), slots: layout.table(shares).into() }
}

fn service(ip: IpAddr, protocol: Transport, port: u16, set: u16) -> Service {
    Service {
        vip: holdfast_node::config::Name::new("web").expect("a name"),
        protocol,
        port,
        addresses: vec![(ip, SetId(set))],
        mode: NatMode::Snat,
        affinity: Affinity::Flow,
        snat: Vec::new(),
        mss: None,
        on_down: OnDown::usual(protocol),
    }
}

fn load(services: Vec<Service>, sets: Vec<SetTable>) -> Balance {
    Balance::Load(Arc::new(Ruleset { services: services.into(), sets }))
}

/// From one table of a set to another.
fn change(set: u16, from: &SetTable, to: &SetTable) -> Balance {
    let slots = (0..from.slots.len()).filter(|slot| from.slots[*slot] != to.slots[*slot]);
    let slots =
        slots.map(|slot| SlotChange { slot: u32::try_from(slot).expect("small"), taken: true, to: to.backend(slot) });
    Balance::Change([SetChange { set: SetId(set), six: from.is_six(), slots: slots.collect() }].into())
}

fn vip() -> IpAddr {
    VIP.parse().expect("an address")
}

fn udp_backends(fabric: &Fabric) -> Vec<SocketAddr> {
    fabric.backends.iter().map(|backend| backend.address(53)).collect()
}

#[test]
fn ten_thousand_flows_are_spread_by_weight_and_a_death_moves_only_its_own() {
    if skipped() {
        return;
    }
    const FLOWS: u16 = 10_000;
    let fabric = Fabric::new();
    fabric.hold();
    let backends = udp_backends(&fabric);
    let (all, two) = (table(&backends, &[1_000; 3]), table(&backends, &[1_000, 0, 1_000]));
    let tcp: Vec<SocketAddr> = fabric.backends.iter().map(|backend| backend.address(80)).collect();
    let (all_tcp, two_tcp) = (table(&tcp, &[1_000; 3]), table(&tcp, &[1_000, 0, 1_000]));
    let services = vec![service(vip(), Transport::Udp, 53, 0), service(vip(), Transport::Tcp, 80, 1)];
    let mut kernel = fabric.host.enter(|| Balancer::open().expect("open"));
    fabric.host.enter(|| kernel.apply(&load(services, vec![all.clone(), all_tcp.clone()])).expect("loaded"));
    let mut open: Vec<_> = fabric.client.enter(|| {
        let opened = (0..60).map(|_| connect(&format!("{VIP}:80")).expect("connected"));
        opened.map(|mut stream| (ask(&mut stream).expect("answered"), stream)).collect()
    });

    let ports = 20_000..20_000 + FLOWS;
    let first = fabric.ask_by_udp(ports.clone());
    let fair = f64::from(FLOWS) / 3.0;
    for number in 1..=3 {
        let got = first.iter().filter(|answer| **answer == number).count() as f64;
        assert!((got / fair - 1.0).abs() <= 0.05, "backend {number}: {got} of {FLOWS}");
    }
    let counted = fabric.host.enter(|| kernel.flows(SetId(0)).expect("read"));
    for (backend, number) in backends.iter().zip(1..) {
        let got = first.iter().filter(|answer| **answer == number).count() as u64;
        assert_eq!(counted.get(backend), Some(&got), "{counted:?}");
    }

    fabric.host.enter(|| {
        kernel.apply(&change(0, &all, &two)).expect("changed");
        kernel.apply(&change(1, &all_tcp, &two_tcp)).expect("changed");
    });
    // The same flows, as if they were new.
    fabric.host.exec("conntrack -D -p udp");
    let second = fabric.ask_by_udp(ports.clone());
    let moved = first.iter().zip(&second).filter(|(a, b)| a != b).count();
    assert!(second.iter().all(|answer| [1, 3].contains(answer)), "{second:?}");
    assert!(moved as f64 <= 1.3 / 3.0 * f64::from(FLOWS), "{moved}");
    let own = first.iter().filter(|answer| **answer == 2).count();
    assert_eq!(moved, own, "nobody else's flow moved");

    fabric.host.enter(|| kernel.apply(&change(0, &two, &all)).expect("changed"));
    fabric.host.exec("conntrack -D -p udp");
    assert_eq!(fabric.ask_by_udp(ports), first, "back where they were");

    // Connections that are established have never noticed, those to the one that was taken out included.
    for (before, stream) in &mut open {
        assert_eq!(ask(stream).as_ref(), Some(&*before));
    }
    assert!(open.iter().any(|((number, _), _)| *number == 2));
}

#[test]
fn both_families_sources_affinity_hairpin_and_segment_size_are_as_the_service_says() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    fabric.hold();
    for address in ["10.9.2.101/24", "10.9.2.102/24"] {
        fabric.host.ip(&format!("address add {address} dev back"));
    }
    let four: Vec<SocketAddr> = fabric.backends.iter().map(|backend| backend.address(80)).collect();
    let six: Vec<SocketAddr> = (1..=3).map(|n| format!("[fd09:2::1{n}]:80").parse().expect("an address")).collect();
    let vip6: IpAddr = VIP6.parse().expect("an address");
    let services = vec![
        service(vip(), Transport::Tcp, 80, 0),
        Service { mode: NatMode::Dnat, ..service(vip(), Transport::Tcp, 81, 0) },
        Service { affinity: Affinity::Source, mss: Some(1_200), ..service(vip(), Transport::Tcp, 82, 0) },
        Service {
            snat: vec!["10.9.2.101".parse().expect("an address"), "10.9.2.102".parse().expect("an address")],
            ..service(vip(), Transport::Tcp, 83, 0)
        },
        service(vip6, Transport::Tcp, 80, 1),
        Service { mode: NatMode::Dnat, affinity: Affinity::Source, ..service(vip6, Transport::Tcp, 81, 1) },
    ];
    let sets = vec![table(&four, &[1; 3]), table(&six, &[1; 3])];
    fabric.host.enter(|| Balancer::open().expect("open").apply(&load(services, sets)).expect("loaded"));
    let shown = fabric.host.exec("nft list table inet holdfast_pool");
    assert!(shown.contains("chain pre"), "nft can show it");
    // No packet comes to a process.
    assert!([" queue", " log", " dup ", " trace", "hook ingress"].iter().all(|word| !shown.contains(word)), "{shown}");
    let several = |address: &str| -> Vec<(u8, IpAddr)> {
        let one = |_| connect(address).and_then(|mut stream| ask(&mut stream)).unwrap_or_else(|| panic!("{address}"));
        fabric.client.enter(|| (0..30).map(one).collect())
    };
    let numbers = |answers: &[(u8, IpAddr)]| answers.iter().map(|(n, _)| *n).collect::<std::collections::BTreeSet<_>>();
    let seen = |answers: &[(u8, IpAddr)]| {
        answers.iter().map(|(_, ip)| ip.to_string()).collect::<std::collections::BTreeSet<_>>()
    };
    let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<std::collections::BTreeSet<_>>();

    let answers = several(&format!("{VIP}:80"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.2.1"])), "the host's own address");
    let answers = several(&format!("{VIP}:81"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.1.2"])), "the client's");
    let answers = several(&format!("{VIP}:82"));
    assert_eq!(numbers(&answers).len(), 1, "one client, one backend");
    let answers = several(&format!("{VIP}:83"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.2.101", "10.9.2.102"])));
    let answers = several(&format!("[{VIP6}]:80"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["fd09:2::1"])));
    let answers = several(&format!("[{VIP6}]:81"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (1, set(&["fd09:1::2"])));

    // A backend that comes to the service itself would else be answered past the host.
    let own = fabric.backends[0].namespace.enter(|| {
        let one = |_| connect(&format!("{VIP}:81")).and_then(|mut stream| ask(&mut stream)).expect("answered");
        (0..30).map(one).collect::<Vec<_>>()
    });
    assert_eq!((numbers(&own).len(), seen(&own)), (3, set(&["10.9.2.1"])));
    // And so does the host.
    let host = fabric.host.enter(|| connect(&format!("{VIP}:80")).and_then(|mut stream| ask(&mut stream)));
    assert!(host.is_some());

    let mss = |port: u16| {
        fabric.client.enter(|| {
            let stream = connect(&format!("{VIP}:{port}")).expect("connected");
            nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::TcpMaxSeg).expect("read")
        })
    };
    // What the client may send: 12 bytes of each segment are its timestamps.
    assert_eq!((mss(82), mss(80) > 1_400), (1_200 - 12, true));
}

fn spread(sets: u16, services: u16) -> (Vec<Service>, Vec<SetTable>) {
    let backends = |set: u16| -> Vec<SocketAddr> {
        let [high, low] = set.to_be_bytes();
        (1..=5).map(|n| SocketAddr::from(([10, 100 + high, low, n], 80))).collect()
    };
    let all = (0..sets).map(|set| table(&backends(set), &[1; 5])).collect();
    let service = |n: u16| service(vip(), Transport::Tcp, 1_000 + n, n % sets);
    ((0..services).map(service).collect(), all)
}

#[test]
fn a_hundred_sets_fit_one_transaction_and_a_change_is_of_one() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (services, sets) = spread(100, 100);
    let from = sets[42].clone();
    let to = table(&from.backends, &[1, 1, 0, 1, 1]);
    fabric.host.enter(|| {
        let mut kernel = Balancer::open().expect("open");
        kernel.apply(&load(services, sets)).expect("loaded");
        kernel.apply(&change(42, &from, &to)).expect("changed");
        let gone = SlotChange { slot: 5_000, taken: true, to: None };
        let wrong = SetChange { set: SetId(42), six: false, slots: vec![gone] };
        let error = kernel.apply(&Balance::Change([wrong].into())).expect_err("there is no such slot");
        assert!(error.what.contains("m42"), "{}", error.what);
        kernel.apply(&Balance::Unload).expect("removed");
        assert!(!kernel.is_there().expect("asked"));
        kernel.apply(&Balance::Unload).expect("gone already");
    });
}

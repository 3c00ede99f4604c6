//! What the kernel tells.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::monitor::{Monitor, MonitorEvent};
use holdfast::os::vrrp::{self, Family};
use holdfast::reconcile::Executor;
use holdfast_node::io::{Address, SocketKey, Step};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Reads until an event fits; whatever else comes meanwhile is passed over.
async fn until<R>(monitor: &mut Monitor, mut fits: impl FnMut(&MonitorEvent) -> Option<R>) -> R {
    loop {
        let event = monitor.next().await.expect("event");
        if let Some(found) = fits(&event) {
            return found;
        }
    }
}

fn is_resync(event: &MonitorEvent) -> Option<Vec<Address>> {
    match event {
        MonitorEvent::Resync { addresses, .. } => Some(addresses.clone()),
        _ => None,
    }
}

#[test]
fn the_first_event_is_everything_and_changes_follow_at_once() {
    if skipped() {
        return;
    }
    Namespace::with_pair().block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        match monitor.next().await.expect("event") {
            MonitorEvent::Resync { links, addresses } => {
                let found = links.iter().find(|link| link.ifindex == a).expect("listed");
                assert!(
                    found.up && found.name.as_str() == "v0" && found.mtu == 1500 && found.mac != [0; 6],
                    "{found:?}"
                );
                assert!(addresses.iter().any(|address| address.ip == IpAddr::from(Ipv4Addr::LOCALHOST)));
            }
            other => panic!("a resync comes first, not {other:?}"),
        }
        let mut latencies = Vec::new();
        for _ in 0..50 {
            socket.add(a, VIP.into(), 32, LIFETIME).expect("added");
            let found = until(&mut monitor, |event| match event {
                MonitorEvent::Address(address) if address.ip == IpAddr::from(VIP) => Some(address.clone()),
                _ => None,
            });
            assert!(found.await.marked);
            let start = Instant::now();
            socket.remove(a, VIP.into(), 32).expect("removed");
            until(&mut monitor, |event| match event {
                MonitorEvent::AddressGone { ifindex, ip, prefix: 32 } => {
                    (*ifindex == a && *ip == IpAddr::from(VIP)).then_some(())
                }
                _ => None,
            })
            .await;
            latencies.push(start.elapsed());
        }
        latencies.sort_unstable();
        println!("removal to event: median {:?}, worst {:?}", latencies[25], latencies[49]);
        assert_eq!(monitor.overruns(), 0);
    });
}

#[test]
fn lost_events_are_replaced_by_the_complete_state() {
    if skipped() {
        return;
    }
    Namespace::with_pair().block_on(|| async {
        let mut monitor = Monitor::open_with_buffer(8 * 1024).expect("open");
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        until(&mut monitor, is_resync).await;
        for i in 0..1000u16 {
            let [high, low] = i.to_be_bytes();
            socket.add(a, Ipv4Addr::new(10, 9, high, low).into(), 32, LIFETIME).expect("added");
            if i % 10 != 0 {
                socket.remove(a, Ipv4Addr::new(10, 9, high, low).into(), 32).expect("removed");
            }
        }
        let addresses = until(&mut monitor, is_resync).await;
        assert_eq!(addresses.iter().filter(|address| address.marked).count(), 100);
        assert!(monitor.overruns() > 0);
        // And it goes on.
        socket.add(a, VIP.into(), 32, LIFETIME).expect("added");
        until(&mut monitor, |event| {
            matches!(event, MonitorEvent::Address(address) if address.ip == IpAddr::from(VIP)).then_some(())
        })
        .await;
    });
}

#[test]
fn a_tiny_buffer_ends_with_the_truth_however_often_links_flap() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.block_on(|| async {
        let mut monitor = Monitor::open_with_buffer(4 * 1024).expect("open");
        let (mut links, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        let mut socket = AddressSocket::open().expect("open");
        let (mut resyncs, mut last) = (0, index("v0"));
        for round in 0..10 {
            // Flaps, comings and goings that nobody reads meanwhile: v0 has another index each time.
            for _ in 0..3 {
                namespace.ip("link set v0 down");
                namespace.ip("link set v0 up");
            }
            namespace.ip("link del v0");
            namespace.ip("link add v0 type veth peer name v1");
            for interface in ["v0", "v1"] {
                namespace.ip(&format!("link set {interface} up"));
            }
            namespace.until_up("v0");
            assert_ne!(index("v0"), last, "the index isn't used again");
            last = index("v0");
            for i in 0..20 {
                socket.add(last, Ipv4Addr::new(10, 9, round, i).into(), 32, LIFETIME).expect("added");
            }
            // Reads until what it was told is what there is.
            loop {
                let truth_links = socket.dump_links().expect("listed").into_iter().map(|l| (l.ifindex, l)).collect();
                let truth_addresses: BTreeMap<_, _> = socket
                    .dump_addresses()
                    .expect("listed")
                    .into_iter()
                    .map(|a| ((a.ifindex, a.ip, a.prefix), a))
                    .collect();
                if links == truth_links && addresses == truth_addresses {
                    break;
                }
                match monitor.next().await.expect("event") {
                    MonitorEvent::Resync { links: l, addresses: a } => {
                        resyncs += 1;
                        links = l.into_iter().map(|l| (l.ifindex, l)).collect();
                        addresses = a.into_iter().map(|a| ((a.ifindex, a.ip, a.prefix), a)).collect();
                    }
                    MonitorEvent::Link(link) => drop(links.insert(link.ifindex, link)),
                    MonitorEvent::LinkGone { ifindex } => drop(links.remove(&ifindex)),
                    MonitorEvent::Address(a) => drop(addresses.insert((a.ifindex, a.ip, a.prefix), a)),
                    MonitorEvent::AddressGone { ifindex, ip, prefix } => {
                        addresses.remove(&(ifindex, ip, prefix));
                    }
                    MonitorEvent::Ours { .. } => {}
                }
            }
        }
        println!("{resyncs} listings after {} overruns", monitor.overruns());
        assert!(monitor.overruns() > 0);
    });
}

#[test]
fn an_interface_that_is_deleted_and_recreated_works_again_under_its_new_index() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        let mut executor = Executor::new().expect("open");
        until(&mut monitor, is_resync).await;
        let old = index("v0");
        let up = |ifindex| {
            [
                Step::OpenVrrp { socket: segment(ifindex) },
                Step::AddAddress { ifindex, ip: VIP.into(), prefix: 32, lifetime: LIFETIME },
                Step::Announce { ifindex, ip: VIP.into() },
            ]
        };
        assert_eq!(executor.execute_all(&up(old)), vec![Ok(()); 3]);
        namespace.ip("link del v0");
        let mut address_gone = false;
        until(&mut monitor, |event| {
            address_gone |= matches!(event, MonitorEvent::AddressGone { ip, .. } if *ip == IpAddr::from(VIP));
            matches!(event, MonitorEvent::LinkGone { ifindex } if *ifindex == old).then_some(())
        })
        .await;
        assert!(address_gone, "the address goes before its interface");
        let error = executor.execute(&Step::Announce { ifindex: old, ip: VIP.into() }).expect_err("no interface");
        assert!([libc::ENODEV, libc::ENXIO].contains(&error.errno), "{error:?}");
        let error = executor.sender(segment(old)).expect("still open");
        let error = error.send(VIP.into(), old, vrrp::GROUP.into(), &[0; 12]).expect_err("no interface");
        assert!(
            [libc::ENODEV, libc::ENXIO, libc::ENETUNREACH].contains(&error.raw_os_error().expect("errno")),
            "{error}"
        );
        executor.execute(&Step::RemoveAddress { ifindex: old, ip: VIP.into(), prefix: 32 }).expect("gone already");
        executor.execute(&Step::CloseVrrp { socket: segment(old) }).expect("closed");

        namespace.ip("link add v0 type veth peer name v1");
        namespace.ip("link set v0 up");
        namespace.ip("link set v1 up");
        let new = until(&mut monitor, |event| match event {
            MonitorEvent::Link(link) if link.name.as_str() == "v0" && link.up => Some(link.ifindex),
            _ => None,
        })
        .await;
        assert_ne!(new, old);
        assert_eq!(executor.execute_all(&up(new)), vec![Ok(()); 3]);
    });
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_gone() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("link add name br type bridge");
    namespace.ip("link set v0 master br");
    namespace.block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        until(&mut monitor, is_resync).await;
        namespace.ip("link set v0 nomaster");
        namespace.ip("link set v0 mtu 1400");
        until(&mut monitor, |event| match event {
            MonitorEvent::LinkGone { ifindex } => panic!("interface {ifindex} is still there"),
            MonitorEvent::Link(link) => (link.mtu == 1400).then_some(()),
            _ => None,
        })
        .await;
    });
}

#[test]
fn a_socket_that_lost_its_group_with_the_interfaces_ipv6_gets_it_back_by_the_event() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        until(&mut monitor, is_resync).await;
        let mut executor = Executor::new().expect("open");
        let socket = SocketKey { family: Family::V6, ifindex: Some(index("v0")) };
        executor.execute(&Step::OpenVrrp { socket }).expect("open");
        let member = || namespace.ip("maddress show dev v0").contains("ff02::12");
        assert!(member());
        for mtu in [1000, 1400] {
            namespace.ip(&format!("link set v0 mtu {mtu}"));
            assert!(!member());
            until(&mut monitor, |event| match event {
                MonitorEvent::Link(link) if link.name.as_str() == "v0" => {
                    executor.link_changed(link, false);
                    (link.mtu == mtu).then_some(())
                }
                _ => None,
            })
            .await;
        }
        assert!(member());
    });
}

#[test]
fn what_our_own_socket_adds_and_refreshes_is_no_event_and_all_else_is() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        until(&mut monitor, is_resync).await;
        let mut executor = Executor::new().expect("open");
        monitor.pass_over(executor.address_port().expect("it has a port")).expect("filtered");
        let ifindex = index("v0");
        let mut add = |ip| {
            let step = Step::AddAddress { ifindex, ip, prefix: 32, lifetime: LIFETIME };
            executor.execute(&step).expect("added");
        };
        let other = IpAddr::from(Ipv4Addr::new(203, 0, 113, 77));
        let (vip, six) = (IpAddr::from(VIP), IpAddr::from(VIP6));
        let changed = |event: &MonitorEvent| {
            let news = match event {
                MonitorEvent::Address(address) => (address.ip, false),
                MonitorEvent::AddressGone { ip, .. } => (*ip, true),
                _ => return None,
            };
            [vip, other, six].contains(&news.0).then_some(news)
        };
        for _ in 0..3 {
            // Somebody else's address marks the end: ours were added before and are passed over.
            add(vip);
            add(vip);
            namespace.ip(&format!("address add {other}/32 dev v0"));
            assert_eq!(until(&mut monitor, changed).await, (other, false));
            // Somebody else changes ours, and takes it away.
            namespace.ip(&format!("address change {vip}/32 dev v0 valid_lft 60 preferred_lft 60"));
            assert_eq!(until(&mut monitor, changed).await, (vip, false));
            namespace.ip(&format!("address delete {vip}/32 dev v0"));
            assert_eq!(until(&mut monitor, changed).await, (vip, true));
            namespace.ip(&format!("address delete {other}/32 dev v0"));
            assert_eq!(until(&mut monitor, changed).await, (other, true));
        }
        // Nobody refreshes it: that is told too.
        let step = Step::AddAddress { ifindex, ip: vip, prefix: 32, lifetime: Duration::from_secs(1) };
        executor.execute(&step).expect("added");
        assert_eq!(until(&mut monitor, changed).await, (vip, true));
        let six = IpAddr::from(VIP6);
        executor.execute(&Step::AddAddress { ifindex, ip: six, prefix: 128, lifetime: LIFETIME }).expect("added");
        assert_eq!(until(&mut monitor, changed).await, (six, false), "the kernel has finished it");
    });
}

//! What is different about IPv6: neighbour discovery, duplicate detection, source selection.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::announce::Announcer;
use holdfast::os::monitor::{Monitor, MonitorEvent};
use holdfast::os::neighbour;
use holdfast::os::probe::probe;
use holdfast::os::vrrp::Family;
use holdfast_node::io::ProbeOutcome;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The link-local address that virtual router 1 has.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0200, 0x5eff, 0xfe00, 0x201);

fn host(prefix: u16, last: u16) -> IpAddr {
    Ipv6Addr::new(prefix, 0, 0, 0, 0, 0, 0, last).into()
}

fn set(key: &str, value: u8) {
    fs::write(format!("/proc/sys/net/ipv6/conf/{key}"), value.to_string()).expect("root may");
}

#[test]
fn an_announcement_over_ipv6_changes_the_neighbours_mind_at_once() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    one.ip("link set eth0 address 02:00:00:00:00:11");
    for (state, ip) in [("stale", "2001:db8::10"), ("reachable", "fe80::200:5eff:fe00:201")] {
        two.ip(&format!("neighbour replace {ip} lladdr 02:00:00:00:00:99 nud {state} dev eth0"));
        let start = Instant::now();
        one.enter(|| Announcer::new().announce(index("eth0"), ip.parse().expect("valid")).expect("announced"));
        let known = || two.ip(&format!("-6 neighbour show {ip}")).contains("02:00:00:00:00:11");
        eventually("the neighbour knows", known);
        println!("{ip}: the {state} neighbour knows after {:?}", start.elapsed());
    }
}

#[test]
fn a_solicitation_tells_the_targets_answer_from_that_of_others_and_of_nobody() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    one.block_on(|| async {
        let eth0 = index("eth0");
        let (wait, short) = (Duration::from_millis(500), Duration::from_millis(20));
        for prefix in [0xfe80, 0xfd00] {
            let (source, target, nobody) = (host(prefix, 1), host(prefix, 2), host(prefix, 3));
            let start = Instant::now();
            assert_eq!(probe(eth0, source, target, &[], 2, wait).await.expect("probed"), ProbeOutcome::Target);
            println!("{target} answered after {:?}", start.elapsed());
            assert_eq!(probe(eth0, source, nobody, &[], 2, short).await.expect("probed"), ProbeOutcome::Nobody);
            one.ip(&format!("neighbour replace {target} lladdr 02:00:00:00:00:02 nud stale dev eth0"));
            let others = neighbour::answered(eth0, Family::V6, 4).expect("listed");
            assert!(others.contains(&target), "{others:?}");
            assert_eq!(probe(eth0, source, nobody, &[target], 2, wait).await.expect("probed"), ProbeOutcome::Others);
            // Of another family: can't be asked, and isn't.
            let four = ["10.0.0.2".parse().expect("valid")];
            assert_eq!(probe(eth0, source, nobody, &four, 2, short).await.expect("probed"), ProbeOutcome::Nobody);
            assert!(probe(eth0, source, four[0], &[], 2, short).await.is_err());
        }
        two.enter(|| set("eth0/disable_ipv6", 1));
        let target = host(0xfe80, 2);
        assert_eq!(
            probe(eth0, host(0xfe80, 1), target, &[target], 2, short).await.expect("probed"),
            ProbeOutcome::Nobody
        );
        eventually("its socket is closed", || proc_net("packet").lines().count() == 1);
    });
}

/// The kernel finishes an IPv6 address behind our back: the group in which it's asked for and the route that delivers
/// its packets come a little after the addition has been acknowledged, and the event tells when.
#[test]
fn an_address_answers_as_soon_as_the_kernel_reports_it_whatever_duplicate_detection_is_set_to() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let eth0 = index("eth0");
        let mut monitor = Monitor::open().expect("open");
        let mut socket = AddressSocket::open().expect("open");
        assert!(matches!(monitor.next().await, Ok(MonitorEvent::Resync { .. })));
        let mut worst = Duration::ZERO;
        for round in 0..30 {
            set("eth0/accept_dad", round % 3);
            for ip in [VIP6, LINK_LOCAL] {
                let start = Instant::now();
                socket.add(eth0, ip.into(), 128, LIFETIME).expect("added");
                loop {
                    match monitor.next().await.expect("event") {
                        MonitorEvent::Address(address) if address.ip == IpAddr::from(ip) => {
                            assert!(address.marked);
                            break;
                        }
                        _ => {}
                    }
                }
                worst = worst.max(start.elapsed());
                // One question, which nobody repeats.
                let outcome = one.block_on(|| async {
                    probe(index("eth0"), host(0xfe80, 1), ip.into(), &[], 1, Duration::from_secs(2)).await
                });
                assert_eq!(outcome.expect("probed"), ProbeOutcome::Target, "{ip} in round {round}");
                let [.., a, b, c] = ip.octets();
                let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
                let groups = || two.ip("maddress show dev eth0");
                assert!(groups().contains(&group.to_string()), "{group} in {}", groups());
                socket.remove(eth0, ip.into(), 128).expect("removed");
                assert!(!groups().contains(&group.to_string()), "{group} in {}", groups());
            }
        }
        println!("an address was reported at most {worst:?} after it was asked for");
    });
}

#[test]
fn the_host_never_speaks_from_a_virtual_address_of_its_own_accord() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let eth0 = index("eth0");
        // By the rules of RFC 6724 these would win: the longest common prefix with the destination.
        let near = [(host(0xfd00, 0x1002), 128), (host(0xfd00, 0x1003), 64), (host(0xfe80, 0x1002), 128)];
        for (ip, prefix) in near.into_iter().chain([(LINK_LOCAL.into(), 64)]) {
            socket.add(eth0, ip, prefix, LIFETIME).expect("added");
            let found = find(&mut socket, ip);
            assert!(matches!(found.as_slice(), [a] if a.marked && a.prefix == prefix), "{found:?}");
        }
        assert!(one.ip("-6 route get fd00::1000").contains("src fd00::1 "), "{}", one.ip("-6 route get fd00::1000"));
        let link_local = one.ip("-6 route get fe80::1000 oif eth0");
        assert!(link_local.contains("src fe80::1 "), "{link_local}");
        let shown = one.ip("-6 address show dev eth0");
        assert_eq!(shown.matches("deprecated").count(), 4, "{shown}");
        assert_eq!(shown.matches("scope link").count(), 3, "{shown}");
    });
}

#[test]
fn an_address_is_tentative_until_duplicate_detection_has_ended_well() {
    if skipped() {
        return;
    }
    let (_one, two) = two_hosts();
    two.block_on(|| async {
        let mut monitor = Monitor::open().expect("open");
        let mut socket = AddressSocket::open().expect("open");
        let Ok(MonitorEvent::Resync { addresses, .. }) = monitor.next().await else { panic!("a listing comes first") };
        assert!(addresses.iter().any(|a| a.ip == host(0xfe80, 2)));
        assert!(addresses.iter().all(|a| !a.tentative), "{addresses:?}");
        // What the peer has is a duplicate.
        for (free, text) in [(true, "fe80::3/64"), (false, "fd00::1/64")] {
            let ip: IpAddr = text.split('/').next().expect("first").parse().expect("valid");
            two.ip(&format!("address add {text} dev eth0"));
            let mut told = Vec::new();
            while told.len() < 2 {
                match monitor.next().await.expect("event") {
                    MonitorEvent::Address(a) if a.ip == ip => told.push(a.tentative),
                    _ => {}
                }
            }
            assert_eq!(told, [true, !free], "{text}");
            let found = find(&mut socket, ip);
            assert!(matches!(found.as_slice(), [a] if a.tentative != free), "{found:?}");
            assert_eq!(two.ip("-6 address show dev eth0").contains("dadfailed"), !free);
        }
    });
}

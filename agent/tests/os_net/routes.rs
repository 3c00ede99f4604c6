//! Routes and rules that move with a VIP.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::leftovers;
use holdfast::os::nft::{Balancer, Guard};
use holdfast::os::route::{Prefix, Route, RouteSocket};
use holdfast::os::route_watch::RouteWatch;
use holdfast::os::rule::Rule;
use holdfast::os::vmac::{Vmac, VmacSocket};
use holdfast_node::pool::{Balance, Ruleset};
use std::net::IpAddr;
use std::sync::Arc;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str, length: u8) -> Prefix {
    Prefix::new(ip(text), length).expect("fits")
}

/// A pair with an IPv4 and an IPv6 prefix on `v0`.
fn routed() -> Namespace {
    let namespace = Namespace::with_pair();
    namespace.ip("address add 10.0.0.1/24 dev v0");
    namespace.ip("address add fd00::1/64 dev v0 nodad");
    namespace
}

/// Every kind of route that the configuration can ask for.
fn all_kinds(ifindex: u32) -> Vec<Route> {
    let (four, six) = (prefix("0.0.0.0", 0), prefix("::", 0));
    vec![
        Route { via: Some(ip("10.0.0.9")), ifindex: Some(ifindex), table: 100, ..Route::to(four) },
        Route { via: Some(ip("fd00::9")), ifindex: Some(ifindex), table: 100, ..Route::to(six) },
        Route { via: Some(ip("10.0.0.9")), source: Some(ip("10.0.0.1")), metric: 10, ..Route::to(four) },
        Route { via: Some(ip("10.0.0.8")), metric: 20, ..Route::to(four) },
        Route { ifindex: Some(ifindex), table: 100_000, ..Route::to(prefix("198.51.100.0", 24)) },
        Route { ifindex: Some(ifindex), metric: 7, ..Route::to(prefix("2001:db8:1::", 48)) },
        Route {
            via: Some(ip("203.0.113.1")),
            ifindex: Some(ifindex),
            onlink: true,
            ..Route::to(prefix("198.51.100.7", 32))
        },
        Route {
            via: Some(ip("fe80::9")),
            ifindex: Some(ifindex),
            source: Some(ip("fd00::1")),
            ..Route::to(prefix("2001:db8:2::", 64))
        },
    ]
}

#[test]
fn every_kind_of_route_is_added_once_listed_as_ours_and_removed_without_a_trace() {
    if skipped() {
        return;
    }
    let namespace = routed();
    let shown = || namespace.ip("route show table all") + &namespace.ip("-6 route show table all");
    let before = shown();
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let wanted = all_kinds(index("v0"));
        for _ in 0..2 {
            for route in &wanted {
                socket.add_route(route).expect("added, or there already");
            }
        }
        let listed = socket.our_routes().expect("listed");
        assert_eq!(listed.len(), wanted.len(), "{listed:#?}");
        assert!(shown().contains("default via 10.0.0.9 dev v0 table 100 proto 244"), "{}", shown());
        // What is listed is enough to remove it: so is a crash undone.
        for route in &listed {
            socket.remove_route(route).expect("removed");
        }
        assert_eq!(socket.our_routes().expect("listed"), []);
        for route in &wanted {
            socket.remove_route(route).expect("gone already");
        }
    });
    assert_eq!(shown(), before);
}

#[test]
fn a_route_of_another_is_neither_replaced_nor_removed_and_the_refusal_says_so() {
    if skipped() {
        return;
    }
    let namespace = routed();
    namespace.ip("route add default via 10.0.0.254 table 100");
    namespace.ip("-6 route add default via fd00::254 table 100");
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        for (to, via, theirs) in [("0.0.0.0", "10.0.0.9", "10.0.0.254"), ("::", "fd00::9", "fd00::254")] {
            let ours = Route { via: Some(ip(via)), table: 100, ..Route::to(prefix(to, 0)) };
            let error = socket.add_route(&ours).expect_err("the place is taken");
            assert_eq!(error.errno, libc::EEXIST);
            let metric = if to == "::" { " metric 1024" } else { "" };
            let what = format!(
                "add route default via {via} table 100{metric}: table 100 has a route to default with that metric \
                 already, and it isn't ours"
            );
            assert_eq!(error.what, what);
            // Just what the other has is the other's all the same.
            let same = Route { via: Some(ip(theirs)), ..ours };
            assert!(socket.add_route(&same).is_err());
            socket.remove_route(&same).expect("nothing of ours to remove");
            socket.remove_route(&ours).expect("nothing of ours to remove");
        }
        assert_eq!(socket.our_routes().expect("listed"), []);
    });
    assert!(namespace.ip("route show table 100").contains("default via 10.0.0.254"));
    assert!(namespace.ip("-6 route show table 100").contains("default via fd00::254"));
}

#[test]
fn a_route_of_ours_with_another_next_hop_is_replaced() {
    if skipped() {
        return;
    }
    routed().enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        for (to, one, two) in [("0.0.0.0", "10.0.0.8", "10.0.0.9"), ("::", "fd00::8", "fd00::9")] {
            let route = |via| Route { via: Some(ip(via)), table: 100, metric: 5, ..Route::to(prefix(to, 0)) };
            socket.add_route(&route(one)).expect("added");
            socket.add_route(&route(two)).expect("replaced");
            let ours = socket.our_routes().expect("listed");
            assert_eq!(ours.iter().map(|r| r.via).collect::<Vec<_>>(), [Some(ip(two))]);
            socket.remove_route(&route(one)).expect("that one is gone");
            assert_eq!(socket.our_routes().expect("listed").len(), 1);
            socket.remove_route(&route(two)).expect("removed");
        }
    });
}

#[test]
fn of_two_routes_that_differ_by_metric_just_the_one_is_removed() {
    if skipped() {
        return;
    }
    routed().enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        for (to, via) in [("0.0.0.0", "10.0.0.9"), ("::", "fd00::9")] {
            let route = |metric| Route { via: Some(ip(via)), table: 100, metric, ..Route::to(prefix(to, 0)) };
            let metrics = |socket: &mut RouteSocket| {
                socket.our_routes().expect("listed").iter().map(|r| r.metric).collect::<Vec<_>>()
            };
            socket.add_route(&route(10)).expect("added");
            socket.remove_route(&route(0)).expect("there is none");
            assert_eq!(metrics(&mut socket), [10]);
            socket.add_route(&route(0)).expect("added");
            socket.remove_route(&route(0)).expect("removed");
            assert_eq!(metrics(&mut socket), [10]);
            socket.remove_route(&route(10)).expect("removed");
        }
    });
}

#[test]
fn what_the_kernel_refuses_is_said_with_the_route_named() {
    if skipped() {
        return;
    }
    routed().enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let far = Route { via: Some(ip("203.0.113.1")), table: 100, ..Route::to(prefix("0.0.0.0", 0)) };
        let error = socket.add_route(&far).expect_err("not on a segment");
        assert_eq!(error.errno, libc::ENETUNREACH);
        assert!(
            error.what.starts_with("add route default via 203.0.113.1 table 100: network is unreachable"),
            "{error:?}"
        );
        let near = Route { via: Some(ip("10.0.0.9")), ..far };
        let sourced = Route { source: Some(ip("192.0.2.10")), ..near };
        assert_eq!(socket.add_route(&sourced).expect_err("its source isn't there").errno, libc::EINVAL);
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .expect("giving up is always allowed");
        let error = socket.add_route(&near).expect_err("no right");
        assert!(error.what.ends_with("operation not permitted (missing CAP_NET_ADMIN)"), "{error:?}");
    });
}

#[test]
fn the_kernel_takes_a_route_away_with_its_source_in_the_main_table_only() {
    if skipped() {
        return;
    }
    let namespace = routed();
    namespace.ip("address add 192.0.2.10/32 dev v0");
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let main = Route { via: Some(ip("10.0.0.9")), source: Some(VIP.into()), ..Route::to(prefix("0.0.0.0", 0)) };
        let other = Route { table: 100, ..main };
        for route in [&main, &other] {
            socket.add_route(route).expect("added");
        }
        namespace.ip("address del 192.0.2.10/32 dev v0");
        let left: Vec<u32> = socket.our_routes().expect("listed").iter().map(|r| r.table).collect();
        assert_eq!(left, [100], "so routes have to be removed before their source");
        for route in [&main, &other] {
            socket.remove_route(route).expect("removed, or gone already");
        }
        assert_eq!(socket.our_routes().expect("listed"), []);
    });
}

#[test]
fn rules_are_added_once_listed_as_ours_and_removed_without_a_trace() {
    if skipped() {
        return;
    }
    let namespace = routed();
    let shown = || namespace.ip("rule show") + &namespace.ip("-6 rule show");
    namespace.ip("rule add from 192.0.2.0/24 table 7 priority 999");
    let before = shown();
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let bare = Rule { six: false, from: None, to: None, mark: None, table: 100, priority: 1000 };
        let wanted = [
            Rule { from: Some(prefix("192.0.2.10", 32)), ..bare },
            Rule { from: Some(prefix("192.0.2.10", 32)), to: Some(prefix("10.9.0.0", 16)), table: 0, ..bare },
            Rule { mark: Some((7, 0xff)), table: 100_000, priority: 1001, ..bare },
            Rule { six: true, from: Some(prefix("2001:db8::10", 128)), ..bare },
            Rule { six: true, to: Some(prefix("2001:db8:9::", 48)), priority: 1002, ..bare },
        ];
        for _ in 0..2 {
            for rule in &wanted {
                socket.add_rule(rule).expect("added, or there already");
            }
        }
        let ours = socket.our_rules().expect("listed");
        assert_eq!(ours.len(), wanted.len(), "{ours:#?}");
        assert!(shown().contains("1000:\tfrom 192.0.2.10 lookup 100 proto 244"), "{}", shown());
        // One that says less than another of ours doesn't take that one away.
        socket.remove_rule(&bare).expect("there is none");
        assert_eq!(socket.our_rules().expect("listed").len(), wanted.len());
        for rule in &ours {
            socket.remove_rule(rule).expect("removed");
            socket.remove_rule(rule).expect("gone already");
        }
        assert_eq!(socket.our_rules().expect("listed"), []);
    });
    assert_eq!(shown(), before);
}

#[test]
fn a_rule_of_another_that_says_the_same_stays() {
    if skipped() {
        return;
    }
    let namespace = routed();
    namespace.ip("rule add from 192.0.2.10 table 100 priority 1000");
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let from = Some(prefix("192.0.2.10", 32));
        let rule = Rule { six: false, from, to: None, mark: None, table: 100, priority: 1000 };
        socket.remove_rule(&rule).expect("nothing of ours to remove");
        // Whether the kernel takes it for the same is its own affair; in no case it becomes ours.
        if let Err(error) = socket.add_rule(&rule) {
            assert_eq!(error.what, "add rule 1000: from 192.0.2.10/32 lookup 100: it is there already and isn't ours");
        }
        socket.remove_rule(&rule).expect("removed, or nothing of ours");
        assert_eq!(socket.our_rules().expect("listed"), []);
    });
    assert!(namespace.ip("rule show").contains("1000:\tfrom 192.0.2.10 lookup 100"));
}

#[test]
fn the_way_to_an_address_is_the_kernels() {
    if skipped() {
        return;
    }
    let namespace = routed();
    namespace.ip("route add default via 10.0.0.254");
    namespace.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let near = socket.way(ip("10.0.0.9"), None).expect("a way");
        assert_eq!((near.ifindex, near.via, near.source), (index("v0"), None, Some(ip("10.0.0.1"))));
        let far = socket.way(ip("203.0.113.1"), None).expect("a way");
        assert_eq!((far.ifindex, far.via), (index("v0"), Some(ip("10.0.0.254"))));
        let six = socket.way(ip("fd00::9"), Some(index("v0"))).expect("a way");
        assert_eq!((six.ifindex, six.via), (index("v0"), None));
        assert!(socket.way(ip("2001:db8::1"), None).is_err(), "no way");
    });
}

#[test]
fn what_somebody_takes_away_of_ours_wakes_the_watch_and_the_rest_does_not() {
    if skipped() {
        return;
    }
    let namespace = routed();
    namespace.block_on(|| async {
        let mut socket = RouteSocket::open().expect("open");
        let mut watch = RouteWatch::open().expect("open");
        let quiet = std::time::Duration::from_millis(300);
        for (to, via, words) in [
            ("0.0.0.0", "10.0.0.9", "route del default table 100"),
            ("::", "fd00::9", "-6 route del default table 100"),
        ] {
            let route = Route { via: Some(ip(via)), table: 100, ..Route::to(prefix(to, 0)) };
            socket.add_route(&route).expect("added");
            let six = if to == "::" { "-6 " } else { "" };
            namespace.ip(&format!("{six}route add default via {via} table 101"));
            namespace.ip(&format!("{six}route del default table 101"));
            assert!(tokio::time::timeout(quiet, watch.gone()).await.is_err(), "another's");
            namespace.ip(words);
            watch.gone().await.expect("told");
            assert!(tokio::time::timeout(quiet, watch.gone()).await.is_err(), "once");
        }
        for (from, words) in [
            (prefix("192.0.2.10", 32), "rule del from 192.0.2.10 table 100"),
            (prefix("2001:db8::10", 128), "-6 rule del from 2001:db8::10 table 100"),
        ] {
            let six = from.ip().is_ipv6();
            let rule = Rule { six, from: Some(from), to: None, mark: None, table: 100, priority: 1000 };
            socket.add_rule(&rule).expect("added");
            namespace.ip(words);
            watch.gone().await.expect("told");
        }
    });
}

#[test]
fn all_that_a_crash_left_is_found_by_its_marks_and_nothing_else_goes() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.ip("route add 198.51.100.0/24 via 10.0.0.9");
    one.ip("rule add from 192.0.2.0/24 table 7 priority 999");
    one.ip("link add mine link eth0 type macvlan mode private");
    let shown = || ["address", "route show table all", "rule", "-6 rule", "link"].map(|words| one.ip(words)).concat();
    let quiet = |text: String| text.replace(" state DOWN", "").replace("<BROADCAST,MULTICAST,UP,LOWER_UP>", "");
    let before = quiet(shown());
    one.enter(|| {
        let mut socket = RouteSocket::open().expect("open");
        let vmac = Vmac { parent: index("eth0"), vrid: 51, six: false };
        let device = VmacSocket::open().expect("open").add(&vmac).expect("made");
        AddressSocket::open().expect("open").add(device, VIP.into(), 32, LIFETIME).expect("added");
        let via = Some(ip("10.0.0.9"));
        socket.add_route(&Route { via, table: 100, ..Route::to(prefix("0.0.0.0", 0)) }).expect("added");
        socket.add_route(&Route { via, ..Route::to(prefix("203.0.113.0", 24)) }).expect("added");
        let from = Some(prefix("192.0.2.10", 32));
        let rule = Rule { six: false, from, to: None, mark: None, table: 100, priority: 1000 };
        socket.add_rule(&rule).expect("added");
        let mut guard = Guard::open().expect("open");
        guard.set(&[VIP.into()].into_iter().collect()).expect("committed");
        let mut balancer = Balancer::open().expect("open");
        let nothing = Ruleset { services: [].into(), sets: Vec::new() };
        balancer.apply(&Balance::Load(Arc::new(nothing))).expect("loaded");
        let mut gone = Vec::new();
        leftovers::remove_all(|what, result| {
            assert_eq!(result, Ok(()), "{what}");
            gone.push(what);
        });
        assert_eq!(gone.len(), 6, "a rule, two routes, a device, two tables: {gone:?}");
        leftovers::remove_all(|what, result| panic!("{what} was left: {result:?}"));
        assert!(!guard.is_there().expect("asked") && !balancer.is_there().expect("asked"));
    });
    assert_eq!(quiet(shown()), before);
}

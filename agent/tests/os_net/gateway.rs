//! Asking the gateway.

use crate::world::*;
use holdfast::check::gateway::ask;
use holdfast::os::addr::AddressSocket;
use holdfast_node::config::{GatewayMethod, InterfaceName};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

const METHODS: [GatewayMethod; 2] = [GatewayMethod::Neighbour, GatewayMethod::Icmp];

/// The answer, or what was said instead; `None`: still waiting when the time was over.
async fn answer(
    target: &str,
    interface: Option<&str>,
    method: GatewayMethod,
    limit: Duration,
) -> Option<Result<(), String>> {
    let interface = interface.map(|name| InterfaceName::new(name).expect("valid"));
    let target = target.parse().expect("an address");
    let managed = BTreeSet::from([VIP.into(), VIP6.into()]);
    tokio::time::timeout(limit, ask(target, interface.as_ref(), method, &managed, limit)).await.ok()
}

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_gateway_on_the_segment_answers_by_both_methods_in_both_families() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.block_on(|| async {
        for method in METHODS {
            for (target, interface) in [
                ("10.0.0.2", None),
                ("10.0.0.2", Some("eth0")),
                ("fd00::2", None),
                ("fd00::2", Some("eth0")),
                ("fe80::2", Some("eth0")),
            ] {
                let answer = answer(target, interface, method, LONG).await;
                assert_eq!(answer, Some(Ok(())), "{target} {interface:?} {method:?}");
            }
        }
    });
}

#[test]
fn the_capabilities_that_the_worker_keeps_are_enough() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.block_on(|| async {
        let keep = holdfast::os::caps::WORKER;
        let sets = rustix::thread::CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).expect("giving up is always allowed");
        for method in METHODS {
            assert_eq!(answer("10.0.0.2", Some("eth0"), method, LONG).await, Some(Ok(())), "{method:?}");
            assert_eq!(answer("fd00::2", None, method, LONG).await, Some(Ok(())), "{method:?}");
        }
    });
}

#[test]
fn a_gateway_that_is_not_there_gives_no_answer_and_leaves_no_socket() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.block_on(|| async {
        for method in METHODS {
            for target in ["10.0.0.9", "fd00::9"] {
                let answer = answer(target, Some("eth0"), method, SHORT).await;
                // The kernel may find out itself that nobody has the address.
                let said = answer.map(|a| a.expect_err("nobody is there"));
                assert!(said.as_deref().is_none_or(|s| s == "host unreachable"), "{target} {method:?}: {said:?}");
            }
        }
        eventually("no packet socket is left", || proc_net("packet").lines().count() == 1);
        eventually("no raw socket is left", || proc_net("raw").lines().count() == 1);
        eventually("no raw socket is left", || proc_net("raw6").lines().count() == 1);
    });
}

#[test]
fn what_makes_no_sense_to_ask_is_said_at_once() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.ip("route add default via 10.0.0.2");
    one.block_on(|| async {
        let said = |target: &'static str, interface, method| async move {
            answer(target, interface, method, LONG).await.expect("at once").expect_err("not asked")
        };
        for method in METHODS {
            assert_eq!(said("10.0.0.1", None, method).await, "10.0.0.1 is an address of this host");
            assert_eq!(said("10.0.0.2", Some("gone0"), method).await, "there is no interface gone0");
            assert_eq!(said("2001:db8::9", None, method).await, "no way to 2001:db8::9: network unreachable");
        }
        let behind = "203.0.113.1 is not on the segment of eth0, but behind 10.0.0.2";
        assert_eq!(said("203.0.113.1", None, GatewayMethod::Neighbour).await, behind);
    });
}

#[test]
fn the_question_is_never_asked_from_a_managed_address() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    // The only addresses of the segment are managed, one by its mark and one by its name alone.
    one.ip("address flush dev eth0");
    one.ip("address add 192.0.2.10/24 dev eth0");
    two.ip("address add 192.0.2.1/24 dev eth0");
    one.block_on(|| async {
        let marked: IpAddr = "192.0.2.11".parse().expect("valid");
        AddressSocket::open().expect("open").add(index("eth0"), marked, 24, LIFETIME).expect("added");
        for method in METHODS {
            let said = answer("192.0.2.1", Some("eth0"), method, LONG).await;
            assert_eq!(said, Some(Err("eth0 has no address of its own to ask from".to_owned())), "{method:?}");
        }
        one.ip("address add 192.0.2.12/24 dev eth0");
        for method in METHODS {
            assert_eq!(answer("192.0.2.1", Some("eth0"), method, LONG).await, Some(Ok(())), "{method:?}");
        }
    });
}

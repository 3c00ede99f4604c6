//! Addresses that are held but not spoken to.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::nft::{GUARDED_MAX, Guard};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Instant;

fn nft(namespace: &Namespace, arguments: &str) -> String {
    namespace.exec(&format!("nft {arguments}"))
}

fn answers(from: &Namespace, target: IpAddr) -> bool {
    let all = ["netns", "exec", &from.name, "ping", "-c1", "-W1", &target.to_string()];
    Command::new("ip").args(all).output().expect("ping is installed").status.success()
}

#[test]
fn the_table_is_what_nft_would_have_made_of_it() {
    if skipped() {
        return;
    }
    let namespace = Namespace::new("os");
    namespace.enter(|| {
        let mut guard = Guard::open().expect("open");
        assert!(!guard.is_there().expect("asked"));
        guard.set(&BTreeSet::from([VIP.into(), VIP6.into()])).expect("committed");
        assert!(guard.is_there().expect("asked"));
    });
    let expected = "table inet holdfast {
\tset guarded4 {
\t\ttype ipv4_addr
\t\telements = { 192.0.2.10 }
\t}

\tset guarded6 {
\t\ttype ipv6_addr
\t\telements = { 2001:db8::10 }
\t}

\tchain vip_input {
\t\ttype filter hook input priority filter - 10; policy accept;
\t\ticmpv6 type nd-neighbor-solicit accept
\t\ticmpv6 type nd-neighbor-advert accept
\t\tip daddr @guarded4 counter packets 0 bytes 0 drop
\t\tip6 daddr @guarded6 counter packets 0 bytes 0 drop
\t}
}
";
    assert_eq!(nft(&namespace, "list ruleset"), expected);
}

#[test]
fn the_set_is_replaced_as_a_whole_and_the_table_goes_with_the_last_address() {
    if skipped() {
        return;
    }
    let namespace = Namespace::new("os");
    nft(&namespace, "add table inet other");
    namespace.enter(|| {
        let mut guard = Guard::open().expect("open");
        let other: IpAddr = Ipv4Addr::new(192, 0, 2, 11).into();
        for addresses in [vec![VIP.into(), VIP6.into()], vec![VIP.into(), VIP6.into()], vec![other]] {
            guard.set(&addresses.into_iter().collect()).expect("committed");
        }
        let shown = nft(&namespace, "list table inet holdfast");
        assert!(shown.contains("elements = { 192.0.2.11 }") && !shown.contains("192.0.2.10"), "{shown}");
        // Somebody's hand: the next commit puts it right.
        nft(&namespace, "flush chain inet holdfast vip_input");
        nft(&namespace, "add chain inet holdfast more");
        guard.set(&BTreeSet::from([other])).expect("committed");
        assert_eq!(
            nft(&namespace, "list table inet holdfast").replace(char::is_whitespace, ""),
            shown.replace(char::is_whitespace, "")
        );
        for _ in 0..2 {
            guard.set(&BTreeSet::new()).expect("removed");
            guard.remove().expect("gone already");
        }
    });
    assert_eq!(nft(&namespace, "list tables"), "table inet other\n");
}

#[test]
fn as_many_addresses_as_are_promised_can_be_guarded_and_more_are_refused() {
    if skipped() {
        return;
    }
    let namespace = Namespace::new("os");
    let shown = namespace.enter(|| {
        let mut guard = Guard::open().expect("open");
        let many = |n: usize| -> BTreeSet<IpAddr> {
            let six = |i: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i).into();
            (0..n).map(|i| six(u16::try_from(i).expect("a few thousand"))).collect()
        };
        let start = Instant::now();
        guard.set(&many(GUARDED_MAX)).expect("committed");
        println!("guard {GUARDED_MAX} addresses: {:?}", start.elapsed());
        let shown = nft(&namespace, "list set inet holdfast guarded6");
        let error = guard.set(&many(GUARDED_MAX + 1)).expect_err("too many");
        assert_eq!(error.errno, libc::E2BIG);
        shown
    });
    assert_eq!(shown.matches("2001:db8::").count(), GUARDED_MAX);
    assert_eq!(nft(&namespace, "list set inet holdfast guarded6"), shown, "the refusal changed nothing");
}

#[test]
fn a_guarded_address_is_resolved_but_answers_nothing() {
    if skipped() {
        return;
    }
    let (router, client) = two_hosts();
    let (vip, vip6): (IpAddr, IpAddr) = ("10.0.0.10".parse().expect("valid"), "fd00::10".parse().expect("valid"));
    router.enter(|| {
        let mut addresses = AddressSocket::open().expect("open");
        addresses.add(index("eth0"), vip, 32, LIFETIME).expect("added");
        addresses.add(index("eth0"), vip6, 128, LIFETIME).expect("added");
        eventually("both answer", || answers(&client, vip) && answers(&client, vip6));
        let mut guard = Guard::open().expect("open");
        guard.set(&BTreeSet::from([vip, vip6])).expect("committed");
        client.ip("neighbour flush dev eth0");
        for address in [vip, vip6] {
            assert!(!answers(&client, address), "{address}");
        }
        assert!(answers(&client, "10.0.0.1".parse().expect("valid")), "the router's own address is not guarded");
        assert!(answers(&client, "fd00::1".parse().expect("valid")), "the router's own address is not guarded");
        let shown = client.ip("neighbour show dev eth0");
        for address in ["10.0.0.10 ", "fd00::10 "] {
            let line = shown.lines().find(|line| line.starts_with(address)).unwrap_or_default();
            assert!(line.contains("lladdr"), "{shown}");
        }
        guard.remove().expect("removed");
        assert!(answers(&client, vip) && answers(&client, vip6), "no longer guarded");
    });
}

#[test]
fn without_the_right_the_guard_is_refused_in_words() {
    if skipped() {
        return;
    }
    Namespace::new("os").enter(|| {
        let mut guard = Guard::open().expect("opening needs nothing");
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).expect("giving up is always allowed");
        let error = guard.set(&BTreeSet::from([VIP.into()])).expect_err("no right");
        let what = "nftables: commit table inet holdfast: operation not permitted (missing CAP_NET_ADMIN)";
        assert_eq!((error.errno, error.what.as_str()), (libc::EPERM, what));
    });
}

/// Run by hand: `cargo test --test os_net guard_cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn guard_cost() {
    Namespace::new("os").enter(|| {
        let mut guard = Guard::open().expect("open");
        let mut took: Vec<_> = (0..50)
            .map(|_| {
                let start = Instant::now();
                guard.set(&BTreeSet::from([VIP.into(), VIP6.into()])).expect("committed");
                start.elapsed()
            })
            .collect();
        took.sort();
        println!("replace the guard: median {:?}, worst {:?}", took[took.len() / 2], took[took.len() - 1]);
    });
}

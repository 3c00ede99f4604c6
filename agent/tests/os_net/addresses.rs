//! Adding, refreshing, removing, listing.

use crate::world::*;
use holdfast::os::addr::{AddressSocket, Wanted};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

#[test]
fn adding_twice_and_removing_twice_is_success() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        for (ip, prefix) in vips() {
            for _ in 0..2 {
                socket.add(a, ip, prefix, LIFETIME).expect("added");
                assert_eq!(find(&mut socket, ip).len(), 1);
            }
            for _ in 0..2 {
                socket.remove(a, ip, prefix).expect("removed");
                assert_eq!(find(&mut socket, ip), []);
            }
            socket.remove(9999, ip, prefix).expect("an interface that is gone has no address");
            let error = socket.add(9999, ip, prefix, LIFETIME).expect_err("no such interface");
            assert_eq!(error.errno, libc::ENODEV, "{error:?}");
        }
    });
}

#[test]
fn an_address_is_marked_makes_no_prefix_route_and_a_refresh_keeps_mark_and_flags() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        for round in 0..3 {
            socket.add(a, VIP.into(), 24, Duration::from_secs(60 - round)).expect("added");
            socket.add(a, VIP6.into(), 64, Duration::from_secs(60 - round)).expect("added");
            for ip in [VIP.into(), VIP6.into()] {
                let found = find(&mut socket, IpAddr::to_owned(&ip));
                assert_eq!(found.len(), 1);
                assert!(found.iter().all(|address| address.marked && address.ifindex == a), "{found:?}");
            }
            let shown = namespace.ip("address show dev v0");
            let four = shown.split("inet ").nth(1).expect("IPv4 shown");
            let four = four.split("inet6").next().expect("first part");
            assert!(four.contains("noprefixroute") && four.contains("scope global"), "{shown}");
            assert!(four.contains(&format!("valid_lft {}sec", 60 - round)), "{shown}");
            assert!(!four.contains("brd"), "{shown}");
            let six = shown.split("inet6 2001:db8::10").nth(1).expect("IPv6 shown");
            let six = six.split("inet6").next().expect("first part");
            for word in ["noprefixroute", "nodad", "deprecated", "preferred_lft 0sec", "valid_lft"] {
                assert!(six.contains(word), "{word} in {shown}");
            }
            assert!(!six.contains("tentative"), "{shown}");
        }
        assert!(socket.marks());
        assert!(!namespace.ip("route show table all").contains("192.0.2.0/24"));
        assert!(!namespace.ip("-6 route show table all").contains("2001:db8::/64"));
        assert!(namespace.ip("route show table local").contains("local 192.0.2.10"));
    });
}

#[test]
fn the_admins_address_is_seen_unmarked_and_survives_ours() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("address add 192.0.2.10/24 dev v0");
    namespace.ip("address add 2001:db8::10/64 dev v0 nodad");
    namespace.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        assert!(find(&mut socket, VIP).iter().all(|address| !address.marked));
        socket.add(a, VIP.into(), 32, LIFETIME).expect("IPv4 keeps both");
        let mut found: Vec<_> = find(&mut socket, VIP).iter().map(|f| (f.prefix, f.marked)).collect();
        found.sort_unstable();
        assert_eq!(found, [(24, false), (32, true)]);
        socket.remove(a, VIP.into(), 32).expect("removed");
        assert_eq!(find(&mut socket, VIP).iter().map(|f| f.prefix).collect::<Vec<_>>(), [24]);

        // IPv6 has room for one: ours would change the lifetime of the admin's.
        let error = socket.add(a, VIP6.into(), 128, LIFETIME).expect_err("refused");
        assert_eq!(error.errno, libc::EEXIST);
        assert_eq!(error.what, "add 2001:db8::10/128 dev v0: 2001:db8::10/64 is there already and isn't ours");
        socket.remove(a, VIP6.into(), 128).expect("not there");
        let found = find(&mut socket, VIP6);
        assert_eq!(found.iter().map(|f| (f.prefix, f.marked)).collect::<Vec<_>>(), [(64, false)]);
        // One that is refused doesn't shift the results of its neighbours in a batch.
        let wanted =
            |ip: &str, prefix| Wanted { ifindex: a, ip: ip.parse().expect("valid"), prefix, lifetime: LIFETIME };
        let batch =
            [wanted("2001:db8::9", 128), wanted("2001:db8::10", 128), wanted("192.0.2.9", 33), wanted("192.0.2.8", 32)];
        let results = socket.add_many(&batch);
        assert_eq!(
            results.iter().map(|r| r.as_ref().err().map(|e| e.errno)).collect::<Vec<_>>(),
            [None, Some(libc::EEXIST), Some(libc::EINVAL), None]
        );
    });
    assert!(namespace.ip("-6 address show dev v0").contains("valid_lft forever"));
}

#[test]
fn a_removal_takes_that_prefix_length_and_interface_only() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("address add 192.0.2.10/24 dev v1");
    namespace.ip("address add 2001:db8::10/64 dev v1 nodad");
    namespace.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let (a, b) = (index("v0"), index("v1"));
        let left = |socket: &mut AddressSocket, ip: IpAddr| {
            let mut left: Vec<_> = find(socket, ip).iter().map(|f| (f.ifindex == b, f.prefix)).collect();
            left.sort_unstable();
            left
        };
        for (gone, stays) in [(32, 24), (24, 32)] {
            for prefix in [24, 32] {
                socket.add(a, VIP.into(), prefix, LIFETIME).expect("added");
            }
            socket.remove(a, VIP.into(), gone).expect("removed");
            socket.remove(a, VIP.into(), 25).expect("not there");
            assert_eq!(left(&mut socket, VIP.into()), [(false, stays), (true, 24)]);
            socket.remove(a, VIP.into(), stays).expect("removed");
        }
        socket.add(a, VIP6.into(), 128, LIFETIME).expect("added");
        socket.remove(a, VIP6.into(), 64).expect("not there");
        assert_eq!(left(&mut socket, VIP6.into()), [(false, 128), (true, 64)]);
        socket.remove(a, VIP6.into(), 128).expect("removed");
        assert_eq!(left(&mut socket, VIP6.into()), [(true, 64)]);
        assert_eq!(left(&mut socket, VIP.into()), [(true, 24)]);
    });
}

#[test]
fn the_kernel_drops_what_nobody_refreshes() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        let kept: [(IpAddr, u8); 2] =
            [(Ipv4Addr::new(192, 0, 2, 11).into(), 32), ("2001:db8::11".parse().expect("valid"), 128)];
        let start = Instant::now();
        let short = Duration::from_millis(1500); // 2 s: whole seconds, rounded up
        for (ip, prefix) in vips() {
            socket.add(a, ip, prefix, short).expect("added");
        }
        let mut gone = [None; 2];
        while start.elapsed() < Duration::from_millis(3500) {
            for (ip, prefix) in kept {
                socket.add(a, ip, prefix, short).expect("refreshed");
            }
            for (slot, (ip, _)) in gone.iter_mut().zip(vips()) {
                if slot.is_none() && find(&mut socket, ip).is_empty() {
                    *slot = Some(start.elapsed());
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("lifetime 2 s: gone after {gone:?}");
        for gone in gone {
            assert!(gone.is_some_and(|after| after >= Duration::from_millis(1900)), "{gone:?}");
        }
        for (ip, _) in kept {
            assert_eq!(find(&mut socket, ip).len(), 1, "the refreshed one stays");
        }
    });
}

#[test]
fn the_kernels_own_words_are_passed_on() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        fs::write("/proc/sys/net/ipv6/conf/v0/disable_ipv6", "1").expect("root may");
        let mut socket = AddressSocket::open().expect("open");
        let error = socket.add(index("v0"), VIP6.into(), 128, LIFETIME).expect_err("refused");
        assert_eq!(error.errno, libc::EACCES);
        assert!(error.what.ends_with("IPv6 is disabled on this device)"), "{error:?}");
    });
}

#[test]
fn the_cost_of_an_address_is_printed() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        for (ip, prefix) in vips() {
            let rounds = 200;
            let start = Instant::now();
            for _ in 0..rounds {
                socket.add(a, ip, prefix, LIFETIME).expect("added");
                socket.remove(a, ip, prefix).expect("removed");
            }
            println!("add + remove {ip}: {:?}", start.elapsed() / rounds);
        }
        let wanted = |ip, prefix| Wanted { ifindex: a, ip, prefix, lifetime: LIFETIME };
        let four = |i: u32| wanted(Ipv4Addr::from_bits(0x0a09_0000 + i).into(), 32);
        let six = |i: u128| wanted(Ipv6Addr::from_bits((0xfd00 << 112) + i).into(), 128);
        for (family, wanted) in
            [("IPv4", (0..500).map(four).collect::<Vec<_>>()), ("IPv6", (0..500).map(six).collect())]
        {
            let rounds = [("add", &wanted[..100]), ("refresh", &wanted[..100]), ("add", &wanted), ("refresh", &wanted)];
            for (what, wanted) in rounds {
                let start = Instant::now();
                let failed: Vec<_> = socket.add_many(wanted).into_iter().filter_map(Result::err).collect();
                println!("{what} {} {family} addresses in batches: {:?}", wanted.len(), start.elapsed());
                assert_eq!(failed, []);
            }
        }
        let start = Instant::now();
        let listed = socket.dump_addresses().expect("dump").len();
        println!("list {listed} addresses: {:?}", start.elapsed());
    });
}

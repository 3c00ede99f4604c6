//! Steps, capabilities, counting.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::diag;
use holdfast::os::monitor::Monitor;
use holdfast::os::probe::probe;
use holdfast::os::vrrp;
use holdfast::reconcile::Executor;
use holdfast_node::io::{Step, StepError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// What waits can be spawned and what is owned can move to the protocol thread, or this file doesn't compile.
const _: () = {
    const fn sendable<T: Send, F: FnOnce() -> T>(_: &F) {}
    sendable(&|| probe(1, VIP.into(), VIP.into(), &[], 1, LIFETIME));
    sendable(&|| -> Executor { unreachable!() });
    sendable(&|| -> Monitor { unreachable!() });
};

/// Takes every capability but these from the calling thread.
fn keep_only(capabilities: rustix::thread::CapabilitySet) {
    let sets = rustix::thread::CapabilitySets {
        effective: capabilities,
        permitted: capabilities,
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).expect("giving up is always allowed");
}

#[test]
fn what_is_missing_is_said_in_words() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let a = index("v0");
        keep_only(rustix::thread::CapabilitySet::empty());
        let mut executor = Executor::new().expect("opening needs nothing");
        let add = Step::AddAddress { ifindex: a, ip: VIP.into(), prefix: 32, lifetime: LIFETIME };
        let what = "add 192.0.2.10/32 dev v0: operation not permitted (missing CAP_NET_ADMIN)".to_owned();
        assert_eq!(executor.execute(&add), Err(StepError { errno: libc::EPERM, what }));
        let announce = Step::Announce { ifindex: a, ip: VIP.into() };
        let what = "announce 192.0.2.10 dev v0: operation not permitted (missing CAP_NET_RAW)".to_owned();
        assert_eq!(executor.execute(&announce), Err(StepError { errno: libc::EPERM, what }));
        assert_eq!((executor.counters().done, executor.counters().failed), (0, 2));
    });
}

#[test]
fn every_step_works_with_net_admin_and_net_raw_alone() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("address add 10.0.0.1/24 dev v0");
    namespace.block_on(|| async {
        keep_only(rustix::thread::CapabilitySet::NET_ADMIN | rustix::thread::CapabilitySet::NET_RAW);
        let mut executor = Executor::new().expect("open");
        let ifindex = index("v0");
        let socket = segment(ifindex);
        let open = Step::OpenVrrp { socket };
        let steps = [
            open.clone(),
            open,
            Step::AddAddress { ifindex, ip: VIP.into(), prefix: 32, lifetime: LIFETIME },
            Step::AddAddress { ifindex, ip: VIP6.into(), prefix: 128, lifetime: LIFETIME },
            Step::Announce { ifindex, ip: VIP.into() },
            Step::Announce { ifindex, ip: VIP6.into() },
            Step::RemoveAddress { ifindex, ip: VIP.into(), prefix: 32 },
        ];
        assert_eq!(executor.execute_all(&steps), vec![Ok(()); steps.len()]);
        assert_eq!(executor.sockets().map(|(i, _)| i).collect::<Vec<_>>(), [socket]);
        let sender = executor.sender(socket).expect("open");
        sender.send([10, 0, 0, 1].into(), ifindex, vrrp::GROUP.into(), &[0; 12]).expect("sent");
        let counters = executor.counters();
        assert_eq!((counters.done, counters.failed), (7, 0));
        assert_eq!((counters.added, counters.removed, counters.announced), (2, 1, 2));
        executor.execute(&Step::CloseVrrp { socket }).expect("closed");
        executor.execute(&Step::CloseVrrp { socket }).expect("closed already");
        assert!(executor.sender(socket).is_none());
        eventually("no packet socket is left", || proc_net("packet").lines().count() == 1);
        eventually("no raw socket is left", || proc_net("raw").lines().count() == 1);
    });
}

#[test]
fn many_addresses_go_in_batches_and_each_has_its_result() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let mut executor = Executor::new().expect("open");
        let ifindex = index("v0");
        let step = |i: u8, prefix| Step::AddAddress {
            ifindex: if i == 77 { 9999 } else { ifindex },
            ip: Ipv4Addr::new(198, 51, 100, i).into(),
            prefix,
            lifetime: LIFETIME,
        };
        let steps: Vec<Step> = (0..=249).map(|i| step(i, 32)).collect();
        let results = executor.execute_all(&steps);
        let failed: Vec<usize> = results.iter().enumerate().filter(|(_, r)| r.is_err()).map(|(i, _)| i).collect();
        assert_eq!(failed, [77]);
        assert_eq!((executor.counters().added, executor.counters().failed), (249, 1));
        let mut socket = AddressSocket::open().expect("open");
        let marked = socket.dump_addresses().expect("dump").iter().filter(|a| a.marked).count();
        assert_eq!(marked, 249);
    });
}

#[test]
fn established_connections_are_counted_by_their_local_address() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("address add 10.0.0.1/24 dev v0");
    namespace.ip("address add fd00::1/64 dev v0 nodad");
    namespace.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        for (ip, prefix) in vips() {
            socket.add(index("v0"), ip, prefix, LIFETIME).expect("added");
        }
        let connect = |from: IpAddr, to: SocketAddr| {
            let client =
                socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None).expect("open");
            client.bind(&SocketAddr::new(from, 0).into()).expect("bound");
            // IPv6 has no route until it has noticed that the link is up.
            eventually("connected", || client.connect(&to.into()).is_ok());
            client
        };
        let count = |ips: &[IpAddr]| diag::established(ips).expect("counted");
        let (four, six) = (IpAddr::from(VIP), IpAddr::from(VIP6));
        let (own, own6) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), "fd00::1".parse().expect("valid"));
        let plain = TcpListener::bind((VIP, 0)).expect("listen");
        // A listener for both families: its IPv4 connections live in the IPv6 table.
        let dual = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("listen");
        assert_eq!(count(&[four, six]), 0, "listeners don't count");
        let first = connect(own, plain.local_addr().expect("bound"));
        let second = connect(own, SocketAddr::new(four, dual.local_addr().expect("bound").port()));
        let third = connect(own6, SocketAddr::new(six, dual.local_addr().expect("bound").port()));
        let accepted = [plain.accept(), dual.accept(), dual.accept()];
        assert!(accepted.iter().all(Result::is_ok));
        assert_eq!((count(&[four]), count(&[six]), count(&[four, six])), (2, 1, 3));
        assert_eq!(count(&[Ipv4Addr::new(192, 0, 2, 99).into()]), 0);
        assert_eq!(count(&[]), 0);
        drop((first, second, third));
        drop(accepted);
        eventually("closed ones don't count", || count(&[four, six]) == 0);
    });
}

#[test]
fn a_hard_cut_ends_the_connections_of_an_address_and_no_others() {
    if skipped() {
        return;
    }
    let namespace = Namespace::with_pair();
    namespace.ip("address add 10.0.0.1/24 dev v0");
    namespace.enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        for (ip, prefix) in vips() {
            socket.add(index("v0"), ip, prefix, LIFETIME).expect("added");
        }
        let own = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
        let dual = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("listen");
        let port = dual.local_addr().expect("bound").port();
        // From another address, or the client's end would be the VIP's too.
        let connect = |to: IpAddr| {
            let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("open");
            client.bind(&SocketAddr::new(own, 0).into()).expect("bound");
            client.connect(&SocketAddr::new(to, port).into()).expect("connected");
            std::net::TcpStream::from(client)
        };
        let cut: Vec<_> = (0..100).map(|_| connect(VIP.into())).collect();
        let kept = connect(own);
        let accepted: Vec<_> = (0..101).map(|_| dual.accept().expect("accepted").0).collect();
        assert_eq!(diag::destroy(&[VIP.into()]).expect("cut"), 100);
        for client in &cut {
            let read = std::io::Read::read(&mut &*client, &mut [0; 1]);
            assert_eq!(read.expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
        }
        kept.set_nonblocking(true).expect("set");
        let read = std::io::Read::read(&mut &kept, &mut [0; 1]);
        assert_eq!(read.expect_err("open").kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(diag::destroy(&[VIP.into()]).expect("nothing left"), 0);
        drop(accepted);
    });
}

//! Network adapters against a real kernel. Every test has network namespaces of its own, so it needs root; without,
//! it says so and is skipped.

use holdfast::os::addr::{AddressSocket, Wanted};
use holdfast::os::arp::{self, Announcer};
use holdfast::os::diag;
use holdfast::os::link;
use holdfast::os::monitor::{Monitor, MonitorEvent};
use holdfast::os::vrrp::{self, VrrpReceiver};
use holdfast::reconcile::Executor;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::{Address, Step, StepError};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use std::fs::{self, File};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
const LIFETIME: Duration = Duration::from_secs(60);

/// What waits can be spawned and what is owned can move to the protocol thread, or this file doesn't compile.
const _: () = {
    const fn sendable<T: Send, F: FnOnce() -> T>(_: &F) {}
    sendable(&|| arp::probe(1, VIP, VIP, 1, LIFETIME));
    sendable(&|| -> Executor { unreachable!() });
    sendable(&|| -> Monitor { unreachable!() });
};

/// A network namespace, removed when dropped (also by a panic), with everything in it.
struct Namespace {
    name: String,
}

impl Namespace {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hfos{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// One with a pair of interfaces `v0` and `v1`, both up.
    fn with_pair() -> Self {
        let namespace = Self::new();
        namespace.ip("link add v0 type veth peer name v1");
        namespace.ip("link set v0 up");
        namespace.ip("link set v1 up");
        namespace
    }

    fn ip(&self, arguments: &str) -> String {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    /// Runs `f` on a thread inside the namespace; a panic goes on here.
    fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
                nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter it");
                f()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Like `enter`, in the kind of runtime that the protocol thread has.
    fn block_on<R: Send, F: Future<Output = R>>(&self, f: impl FnOnce() -> F + Send) -> R {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), f()).await.expect("ends in time") })
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Two namespaces joined by a cable: interface `eth0` in each, 10.0.0.1 and 10.0.0.2.
fn two_hosts() -> (Namespace, Namespace) {
    let (one, two) = (Namespace::new(), Namespace::new());
    one.ip(&format!("link add name eth0 type veth peer name eth0 netns {}", two.name));
    for (host, address) in [(&one, "10.0.0.1/24"), (&two, "10.0.0.2/24")] {
        host.ip(&format!("address add {address} dev eth0"));
        host.ip("link set eth0 up");
    }
    (one, two)
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {error}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn skipped() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    !root
}

fn index(name: &str) -> u32 {
    link::index(name).expect("the interface is there")
}

fn find(socket: &mut AddressSocket, ip: impl Into<IpAddr>) -> Vec<Address> {
    let ip = ip.into();
    socket.dump_addresses().expect("dump").into_iter().filter(|a| a.ip == ip).collect()
}

/// Waits up to five seconds. What a process of another test inherited between fork and exec stays open that long, and
/// the segment has its own speed.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes every capability but these from the calling thread.
fn keep_only(capabilities: rustix::thread::CapabilitySet) {
    let sets = rustix::thread::CapabilitySets {
        effective: capabilities,
        permitted: capabilities,
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).expect("giving up is always allowed");
}

fn vips() -> [(IpAddr, u8); 2] {
    [(VIP.into(), 32), (VIP6.into(), 128)]
}

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
fn the_kernel_drops_what_nobody_refreshes() {
    if skipped() {
        return;
    }
    Namespace::with_pair().enter(|| {
        let mut socket = AddressSocket::open().expect("open");
        let a = index("v0");
        let kept: IpAddr = Ipv4Addr::new(192, 0, 2, 11).into();
        let start = Instant::now();
        let short = Duration::from_millis(1500); // 2 s: whole seconds, rounded up
        for (ip, prefix) in vips() {
            socket.add(a, ip, prefix, short).expect("added");
        }
        let mut gone = [None; 2];
        while start.elapsed() < Duration::from_millis(3500) {
            socket.add(a, kept, 32, short).expect("refreshed");
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
        assert_eq!(find(&mut socket, kept).len(), 1, "the refreshed one stays");
    });
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
        let open = Step::OpenVrrp { ifindex, interface: InterfaceName::new("v0").expect("valid") };
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
        assert_eq!(executor.sockets().map(|(i, _)| i).collect::<Vec<_>>(), [ifindex]);
        executor.sender(ifindex).expect("open").send(Ipv4Addr::new(10, 0, 0, 1), &[0; 12]).expect("sent");
        let counters = executor.counters();
        assert_eq!((counters.done, counters.failed), (7, 0));
        assert_eq!((counters.added, counters.removed, counters.announced), (2, 1, 2));
        executor.execute(&Step::CloseVrrp { ifindex }).expect("closed");
        executor.execute(&Step::CloseVrrp { ifindex }).expect("closed already");
        assert!(executor.sender(ifindex).is_none());
        eventually("no packet socket is left", || proc_net("packet").lines().count() == 1);
        eventually("no raw socket is left", || proc_net("raw").lines().count() == 1);
    });
}

/// A table of the calling thread's network namespace.
fn proc_net(name: &str) -> String {
    fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("procfs")
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
                Step::OpenVrrp { ifindex, interface: InterfaceName::new("v0").expect("valid") },
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
        let error = executor.sender(old).expect("still open").send(VIP, &[0; 12]).expect_err("no interface");
        assert!(
            [libc::ENODEV, libc::ENXIO, libc::ENETUNREACH].contains(&error.raw_os_error().expect("errno")),
            "{error}"
        );
        executor.execute(&Step::RemoveAddress { ifindex: old, ip: VIP.into(), prefix: 32 }).expect("gone already");
        executor.execute(&Step::CloseVrrp { ifindex: old }).expect("closed");

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
fn an_advert_crosses_the_segment_with_ttl_255_and_is_heard_once() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("link add name other type veth peer name far");
    two.ip("link set other up");
    two.ip("link set far up");
    let source = Ipv4Addr::new(10, 0, 0, 1);
    let payload: Vec<u8> = (0..16).collect();
    two.block_on(|| async {
        let receiver = VrrpReceiver::open(index("eth0")).expect("open");
        let elsewhere = VrrpReceiver::open(index("other")).expect("open");
        let back = vrrp::open_send(index("eth0")).expect("open");
        assert!(two.ip("maddress show dev eth0").contains("224.0.0.18"), "member of the group");
        let mut buffer = [0; vrrp::PACKET_MAX];
        one.enter(|| {
            let sender = vrrp::open_send(index("eth0")).expect("open");
            sender.send(source, &payload).expect("sent");
            // What the keeper does: a duplicate, and the payload prepared beforehand.
            let duplicate: OwnedFd = sender.as_fd().try_clone_to_owned().expect("duplicate");
            let ifindex = sender.ifindex();
            drop(sender);
            vrrp::send(duplicate.as_fd(), ifindex, source, &payload).expect("sent");
        });
        for _ in 0..2 {
            let n = receiver.recv(&mut buffer).await.expect("received");
            assert_eq!(n, 20 + payload.len());
            assert_eq!((buffer[0], buffer[1], buffer[8], buffer[9]), (0x45, 0xC0, 255, 112), "IHL, TOS, TTL, protocol");
            assert_eq!(buffer[12..16], source.octets());
            assert_eq!(buffer[16..20], vrrp::GROUP.octets());
            assert_eq!(buffer[20..n], payload);
        }
        // Heard by nobody but the receiver of that interface; our own adverts neither.
        back.send(Ipv4Addr::new(10, 0, 0, 2), &payload).expect("sent");
        let would_block = |result: io::Result<usize>| result.expect_err("nothing").kind() == io::ErrorKind::WouldBlock;
        assert!(would_block(receiver.try_recv(&mut buffer)));
        assert!(would_block(elsewhere.try_recv(&mut buffer)));
        let queued = recv(back.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
        assert_eq!(queued, Err(nix::errno::Errno::EAGAIN), "a sender queues nothing");

        let foreign = back.send(Ipv4Addr::new(10, 0, 0, 99), &payload).expect_err("not our address");
        assert_eq!(foreign.raw_os_error(), Some(libc::ENETUNREACH));
        two.ip("link set eth0 down");
        let down = back.send(Ipv4Addr::new(10, 0, 0, 2), &payload).expect_err("link is down");
        println!("send on a link that is down: {down}");
        two.ip("link set eth0 up");
        back.send(Ipv4Addr::new(10, 0, 0, 2), &payload).expect("works again without reopening");
        drop(receiver);
        eventually("left the group", || !two.ip("maddress show dev eth0").contains("224.0.0.18"));
    });
}

/// Waits until the raw sockets of the calling thread's namespace have this many bytes queued; how many they have.
fn until_queued(bytes: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let table = proc_net("raw");
        let queues = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(4)?.split(':').nth(1));
        let queued = queues.map(|hex| u64::from_str_radix(hex, 16).expect("hexadecimal")).sum();
        if queued >= bytes {
            return queued;
        }
        assert!(Instant::now() < deadline, "{queued} of {bytes} bytes arrived");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stalled_receiver_keeps_thousands_of_packets() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let receiver = VrrpReceiver::open(index("eth0")).expect("open");
        // In small lots, each waited for, since the interfaces' own queue would drop from a larger one.
        let send = |count: usize| {
            one.enter(|| {
                let sender = vrrp::open_send(index("eth0")).expect("open");
                (0..count).for_each(|_| sender.send(Ipv4Addr::new(10, 0, 0, 1), &[0; 12]).expect("sent"));
            });
        };
        send(1);
        let size = until_queued(1);
        send(99);
        for lot in 1..=30 {
            until_queued(lot * 100 * size);
            if lot < 30 {
                send(100);
            }
        }
        let mut buffer = [0; vrrp::PACKET_MAX];
        let start = Instant::now();
        for _ in 0..3000 {
            assert_eq!(receiver.recv(&mut buffer).await.expect("received"), 32);
        }
        println!("one packet read: {:?}, {size} bytes of the buffer", start.elapsed() / 3000);
    });
}

#[test]
fn adverts_of_two_interfaces_are_taken_in_turn() {
    if skipped() {
        return;
    }
    let namespace = Namespace::new();
    let peer = Namespace::new();
    for (i, name) in ["x", "y"].into_iter().enumerate() {
        namespace.ip(&format!("link add name {name} type veth peer name {name} netns {}", peer.name));
        for (host, end) in [(&namespace, 1), (&peer, 2)] {
            host.ip(&format!("address add 10.0.{i}.{end}/24 dev {name}"));
            host.ip(&format!("link set {name} up"));
        }
    }
    namespace.block_on(|| async {
        let mut executor = Executor::new().expect("open");
        for name in ["x", "y"] {
            let interface = InterfaceName::new(name).expect("valid");
            executor.execute(&Step::OpenVrrp { ifindex: index(name), interface }).expect("open");
        }
        let send = |name, source, count| {
            peer.enter(|| {
                let sender = vrrp::open_send(index(name)).expect("open");
                (0..count).for_each(|_| sender.send(source, &[0; 12]).expect("sent"));
            });
        };
        send("x", Ipv4Addr::new(10, 0, 0, 2), 1);
        let size = until_queued(1);
        send("x", Ipv4Addr::new(10, 0, 0, 2), 2);
        send("y", Ipv4Addr::new(10, 0, 1, 2), 3);
        until_queued(6 * size);
        let mut buffer = [0; vrrp::PACKET_MAX];
        let mut order = Vec::new();
        for _ in 0..6 {
            let (ifindex, result) = executor.recv(&mut buffer).await;
            assert_eq!(result.expect("received"), 32);
            order.push(ifindex);
        }
        let (x, y) = (index("x"), index("y"));
        assert!(order == [x, y, x, y, x, y] || order == [y, x, y, x, y, x], "{order:?}");
    });
}

/// A socket that takes every frame of its namespace.
fn tap() -> OwnedFd {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).expect("open");
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(2, 0)).expect("set");
    fd
}

/// The next frame that fits, or a panic after two seconds without any.
fn next_frame(tap: &OwnedFd, fits: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut buffer = [0; 2048];
    loop {
        let n = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("a frame in time");
        if fits(&buffer[..n]) {
            return buffer[..n].to_vec();
        }
    }
}

#[test]
fn an_announcement_carries_the_link_address_of_the_moment() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    let is_arp = |frame: &[u8]| frame[12..14] == [0x08, 0x06];
    let is_na = |frame: &[u8]| frame[12..14] == [0x86, 0xdd] && frame[54] == 136 && frame[62..78] == VIP6.octets();
    let taps = two.enter(tap);
    one.enter(|| {
        let mut announcer = Announcer::new();
        for mac in [[2, 0, 0, 0, 0, 0x11], [2, 0, 0, 0, 0, 0x22]] {
            one.ip(&format!("link set eth0 address 02:00:00:00:00:{:02x}", mac[5]));
            announcer.announce(index("eth0"), VIP.into()).expect("announced");
            let frame = next_frame(&taps, is_arp);
            assert_eq!(frame[..6], [0xff; 6]);
            assert_eq!(frame[6..12], mac);
            assert_eq!(frame[20..22], [0, 1], "a request");
            assert_eq!((&frame[22..28], &frame[28..32]), (&mac[..], &VIP.octets()[..]));
            assert_eq!(frame[38..42], VIP.octets());
            announcer.announce(index("eth0"), VIP6.into()).expect("announced");
            let frame = next_frame(&taps, is_na);
            assert_eq!(frame[6..12], mac);
            assert_eq!((frame[21], frame[58]), (255, 0xA0), "hop limit; router and override");
            assert_eq!(frame[80..86], mac, "target link-layer address");
        }
        // Steady state costs nothing: the socket takes no protocol, has queued nothing, and isn't promiscuous.
        let sockets = proc_net("packet");
        let fields: Vec<&str> = sockets.lines().nth(1).expect("one socket").split_whitespace().collect();
        assert_eq!((fields[3], fields[6]), ("0000", "0"), "protocol and queued bytes in {sockets}");
        assert!(one.ip("-d link show eth0").contains("promiscuity 0"));
        one.ip("link set eth0 down");
        let error = announcer.announce(index("eth0"), VIP.into()).expect_err("down");
        assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN), "{error}");
        one.ip("link set eth0 up");
        announcer.announce(index("eth0"), VIP.into()).expect("works again");
    });
}

#[test]
fn the_neighbour_believes_an_announcement() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("neighbour replace 10.0.0.1 lladdr 02:00:00:00:00:99 nud stale dev eth0");
    one.ip("link set eth0 address 02:00:00:00:00:11");
    one.enter(|| Announcer::new().announce(index("eth0"), Ipv4Addr::new(10, 0, 0, 1).into()).expect("announced"));
    eventually("the neighbour knows", || two.ip("neighbour show 10.0.0.1").contains("02:00:00:00:00:11"));
}

#[test]
fn a_probe_is_answered_by_the_target_alone() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    one.block_on(|| async {
        let eth0 = index("eth0");
        let (source, target) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let wait = Duration::from_millis(500);
        let start = Instant::now();
        assert!(arp::probe(eth0, source, target, 2, wait).await.expect("probed"));
        println!("answered after {:?}", start.elapsed());
        let start = Instant::now();
        let short = Duration::from_millis(20);
        assert!(!arp::probe(eth0, source, Ipv4Addr::new(10, 0, 0, 3), 2, short).await.expect("probed"));
        println!("two tries of 20 ms unanswered after {:?}", start.elapsed());
        assert!(start.elapsed() >= Duration::from_millis(40));
        two.ip("link set eth0 arp off");
        assert!(!arp::probe(eth0, source, target, 2, short).await.expect("probed"));
        assert!(arp::probe(9999, source, target, 2, short).await.is_err());
        eventually("its socket is closed", || proc_net("packet").lines().count() == 1);
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
            for what in ["add", "refresh"] {
                let start = Instant::now();
                let failed: Vec<_> = socket.add_many(&wanted).into_iter().filter_map(Result::err).collect();
                println!("{what} 500 {family} addresses in batches: {:?}", start.elapsed());
                assert_eq!(failed, []);
            }
        }
        let start = Instant::now();
        let listed = socket.dump_addresses().expect("dump").len();
        println!("list {listed} addresses: {:?}", start.elapsed());
    });
}

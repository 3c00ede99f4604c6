//! What goes over the wire: adverts, announcements, probes.

use crate::world::*;
use holdfast::os::announce::Announcer;
use holdfast::os::neighbour;
use holdfast::os::probe::probe;
use holdfast::os::vrrp::{self, Family, Receiver, Sender};
use holdfast::reconcile::Executor;
use holdfast_node::io::{ProbeOutcome, Step};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

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

fn adverts(interface: &str, source: Ipv4Addr, count: usize) {
    let ifindex = index(interface);
    let sender = Sender::open(Family::V4, Some(ifindex)).expect("open");
    for _ in 0..count {
        sender.send(source.into(), ifindex, vrrp::GROUP.into(), &[0; 12]).expect("sent");
    }
}

#[test]
fn a_stalled_receiver_keeps_thousands_of_packets() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let receiver = Receiver::open(Family::V4, Some(index("eth0"))).expect("open");
        // In small lots, each waited for, since the interfaces' own queue would drop from a larger one.
        let send = |count: usize| {
            one.enter(|| {
                adverts("eth0", Ipv4Addr::new(10, 0, 0, 1), count);
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
            receiver.recv(&mut buffer).await.expect("received");
        }
        println!("one packet read: {:?}, {size} bytes of the buffer", start.elapsed() / 3000);
    });
}

#[test]
fn adverts_of_two_interfaces_are_taken_in_turn() {
    if skipped() {
        return;
    }
    let namespace = Namespace::new("os");
    let peer = Namespace::new("os");
    for (i, name) in ["x", "y"].into_iter().enumerate() {
        namespace.ip(&format!("link add name {name} type veth peer name {name} netns {}", peer.name));
        for (host, end) in [(&namespace, 1), (&peer, 2)] {
            host.ip(&format!("address add 10.0.{i}.{end}/24 dev {name}"));
            host.ip(&format!("link set {name} up"));
        }
        namespace.until_up(name);
        peer.until_up(name);
    }
    namespace.block_on(|| async {
        let mut executor = Executor::new().expect("open");
        for name in ["x", "y"] {
            executor.execute(&Step::OpenVrrp { socket: segment(index(name)) }).expect("open");
        }
        let send = |name, source, count| {
            peer.enter(|| {
                adverts(name, source, count);
            });
        };
        // More on the one than is taken at once, and a little on the other.
        let many = vrrp::RECEIVE_BATCH * 2;
        send("x", Ipv4Addr::new(10, 0, 0, 2), 1);
        let size = until_queued(1);
        send("x", Ipv4Addr::new(10, 0, 0, 2), many - 1);
        send("y", Ipv4Addr::new(10, 0, 1, 2), 1);
        until_queued((many as u64 + 1) * size);
        let mut batch = vrrp::Batch::new();
        let mut order = Vec::new();
        while order.len() < 3 {
            std::future::poll_fn(|cx| executor.poll_recv(cx, &mut batch)).await.expect("received");
            order.push((batch.packets().next().expect("a packet").ifindex, batch.len()));
        }
        let (x, y) = ((index("x"), vrrp::RECEIVE_BATCH), (index("y"), 1));
        assert!(order == [x, y, x] || order == [y, x, x], "{order:?}");
    });
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
fn a_probe_tells_the_targets_answer_from_that_of_others_and_of_nobody() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    one.block_on(|| async {
        let eth0 = index("eth0");
        let [source, target, nobody] = [1, 2, 3].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
        let wait = Duration::from_millis(500);
        let start = Instant::now();
        assert_eq!(probe(eth0, source, target, &[], 2, wait).await.expect("probed"), ProbeOutcome::Target);
        println!("answered after {:?}", start.elapsed());
        let start = Instant::now();
        let short = Duration::from_millis(20);
        assert_eq!(probe(eth0, source, nobody, &[], 2, short).await.expect("probed"), ProbeOutcome::Nobody);
        println!("two tries of 20 ms unanswered after {:?}", start.elapsed());
        assert!(start.elapsed() >= Duration::from_millis(40));
        one.ip("neighbour replace 10.0.0.2 lladdr 02:00:00:00:00:02 nud stale dev eth0");
        one.ip("neighbour replace 10.0.0.9 lladdr 02:00:00:00:00:09 nud noarp dev eth0");
        let others = neighbour::answered(eth0, Family::V4, 4).expect("listed");
        assert_eq!(others, [target], "those that once answered");
        assert_eq!(probe(eth0, source, nobody, &others, 2, wait).await.expect("probed"), ProbeOutcome::Others);
        two.ip("link set eth0 arp off");
        assert_eq!(probe(eth0, source, nobody, &others, 2, short).await.expect("probed"), ProbeOutcome::Nobody);
        assert_eq!(probe(eth0, source, target, &[], 2, short).await.expect("probed"), ProbeOutcome::Nobody);
        assert!(probe(9999, source, target, &[], 2, short).await.is_err());
        eventually("its socket is closed", || proc_net("packet").lines().count() == 1);
    });
}

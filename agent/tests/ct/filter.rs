//! Which flows tell of what.

use crate::fabric::*;
use holdfast::os::ct::{Changes, Removals};
use holdfast::os::nft::{EVENTS_TABLE, EventFilter, EventMask};
use holdfast_statesync::ct::{Event, EventKind, Replica, Status};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};

struct Ear {
    changes: Changes,
    removals: Removals,
}

impl Ear {
    fn of(namespace: &Namespace) -> Self {
        namespace.enter(|| Self {
            changes: Changes::open(Changes::RECEIVE_BUFFER).expect("opens"),
            removals: Removals::open(Removals::RECEIVE_BUFFER).expect("opens"),
        })
    }

    fn heard(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while self.changes.read(|event| all.push(event)).expect("read").more {}
        while self.removals.read(|event| all.push(event)).expect("read").more {}
        all
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn filter(namespace: &Namespace, vips: &[(&str, EventMask)]) {
    let vips: BTreeMap<_, _> = vips.iter().map(|(text, mask)| (ip(text), *mask)).collect();
    namespace.enter(|| EventFilter::open().expect("opens").set(&vips).expect("committed"));
}

/// Short timeouts, so that ends come soon.
fn brief(namespace: &Namespace) {
    for state in ["time_wait", "last_ack", "close"] {
        namespace.set(&format!("netfilter/nf_conntrack_tcp_timeout_{state}"), "1");
    }
}

#[test]
fn the_table_is_what_nft_would_have_made_of_it() {
    if skipped() {
        return;
    }
    let namespace = Namespace::tracking("f");
    filter(
        &namespace,
        &[(VIP, EventMask::AT_ASSURED), ("10.9.9.10", EventMask::AT_SYN), (VIP6, EventMask::AT_ASSURED)],
    );
    let expected = "table inet holdfast_events {
\tset vips4_14 {
\t\ttype ipv4_addr
\t\telements = { 10.9.9.9 }
\t}

\tset vips6_14 {
\t\ttype ipv6_addr
\t\telements = { fd09:9::9 }
\t}

\tset vips4_1d {
\t\ttype ipv4_addr
\t\telements = { 10.9.9.10 }
\t}

\tchain before {
\t\ttype filter hook prerouting priority 400; policy accept;
\t\tmeta nfproto ipv4 ct original ip daddr @vips4_14 accept
\t\tmeta nfproto ipv6 ct original ip6 daddr @vips6_14 accept
\t\tmeta nfproto ipv4 ct original ip daddr @vips4_1d accept
\t\tct event set 0x0
\t}

\tchain through {
\t\ttype filter hook forward priority 400; policy accept;
\t\tmeta nfproto ipv4 ct original ip daddr @vips4_14 ct event set destroy,assured
\t\tmeta nfproto ipv6 ct original ip6 daddr @vips6_14 ct event set destroy,assured
\t\tmeta nfproto ipv4 ct original ip daddr @vips4_1d ct event set new,destroy,reply,assured
\t}

\tchain here {
\t\ttype filter hook input priority 400; policy accept;
\t\tct state established,new ct event set 0x0
\t}

\tchain from_here {
\t\ttype filter hook output priority 400; policy accept;
\t\tct state established,new ct event set 0x0
\t}
}
";
    assert_eq!(namespace.exec("nft list ruleset"), expected);
    namespace.enter(|| {
        let mut filter = EventFilter::open().expect("opens");
        assert!(filter.is_there().expect("asked"));
        filter.set(&BTreeMap::new()).expect("removed");
        assert!(!filter.is_there().expect("asked"));
        filter.remove().expect("gone already");
    });
    assert_eq!(namespace.exec("nft list ruleset"), "");
}

#[test]
fn a_short_connection_to_a_vip_is_two_events_and_other_traffic_none() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    brief(&fabric.a);
    filter(&fabric.a, &[(VIP, EventMask::AT_ASSURED), (VIP6, EventMask::AT_ASSURED)]);
    let mut ear = Ear::of(&fabric.a);
    for six in [false, true] {
        let (near, far) = fabric.connect(six);
        assert!(speaks(&near, &far));
        drop((near, far));
        // Around the VIP: forwarded, but not to it.
        let direct = fabric.server.enter(|| TcpListener::bind((SERVER, 81)).expect("free"));
        let stream = fabric.client.enter(|| TcpStream::connect((SERVER, 81)).expect("forwarded"));
        drop((direct.accept().expect("connected"), stream));
        let mut all = Vec::new();
        until("its end", || {
            // The kernel removes what has expired when it comes across it.
            assert!(fabric.a.dump().len() < 10);
            all.extend(ear.heard());
            all.iter().any(|event| event.kind == EventKind::Destroy).then_some(())
        });
        until("everything has ended", || {
            all.extend(ear.heard());
            fabric.a.dump().iter().all(|entry| entry.tcp.is_none()).then_some(())
        });
        all.extend(ear.heard());
        let told: Vec<_> = all.iter().map(|event| (event.kind, event.entry.original.destination())).collect();
        assert_eq!(told, [(EventKind::Update, vip(six)), (EventKind::Destroy, vip(six))]);
        assert!(all[0].entry.status.expect("told").has(Status::ASSURED));
        assert_eq!(all.iter().map(|event| event.port_id).collect::<Vec<_>>(), [0, 0]);
    }
}

#[test]
fn a_vip_may_tell_from_the_first_packet_on() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    filter(&fabric.a, &[(VIP, EventMask::AT_SYN)]);
    let mut ear = Ear::of(&fabric.a);
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    let kinds: Vec<_> = ear.heard().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::New, EventKind::Update, EventKind::Update], "SYN, answer, assured");
}

#[test]
fn local_and_proxied_flows_are_never_told_of() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    fabric.a.ip("address add 10.9.9.9/32 dev lo");
    filter(&fabric.a, &[(VIP, EventMask::AT_ASSURED)]);
    let mut ear = Ear::of(&fabric.a);
    // A proxy at the VIP, on a port that isn't translated; something of the host's own, both ways; and a VIP that the
    // host itself asks for.
    let proxy = fabric.a.enter(|| TcpListener::bind((VIP, 443)).expect("free"));
    let through = fabric.client.enter(|| TcpStream::connect((VIP, 443)).expect("connected"));
    let accepted = proxy.accept().expect("connected").0;
    assert!(speaks(&through, &accepted));
    let own = fabric.server.enter(|| TcpListener::bind((SERVER, 22)).expect("free"));
    let outgoing = fabric.a.enter(|| TcpStream::connect((SERVER, 22)).expect("connected"));
    assert!(speaks(&outgoing, &own.accept().expect("connected").0));
    let itself = fabric.a.enter(|| TcpStream::connect((VIP, 443)).expect("connected"));
    assert!(speaks(&itself, &proxy.accept().expect("connected").0));
    let datagram = fabric.a.enter(|| UdpSocket::bind("0.0.0.0:0").expect("free"));
    datagram.send_to(b"x", (SERVER, 53)).expect("sent");
    assert_eq!(ear.heard(), []);
    fabric.a.exec("conntrack -F");
    assert_eq!(ear.heard(), [], "their ends neither");
}

#[test]
fn a_replica_tells_of_its_life_once_it_carries_traffic_whatever_its_host_was_told_before() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    for host in [&fabric.a, &fabric.b] {
        brief(host);
        filter(host, &[(VIP, EventMask::AT_ASSURED)]);
    }
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    let told = fabric.a.flow_to(vip(false));
    fabric.b.create(&[Replica::of(&told, 300, None)]);
    let mut ear = Ear::of(&fabric.b);
    fabric.move_to(Host::B);
    assert!(speaks(&near, &far));
    assert_eq!(ear.heard(), [], "traffic alone is no news");
    drop((near, far));
    let end = until("its end", || {
        fabric.b.dump();
        ear.heard().pop()
    });
    assert_eq!((end.kind, end.port_id, end.entry.original), (EventKind::Destroy, 0, told.original));
}

#[test]
fn who_else_sets_masks_is_named() {
    if skipped() {
        return;
    }
    let namespace = Namespace::tracking("o");
    filter(&namespace, &[(VIP, EventMask::AT_ASSURED)]);
    let others = || namespace.enter(|| EventFilter::open().expect("opens").others().expect("asked"));
    assert!(others().is_empty(), "ours are ours: {EVENTS_TABLE}");
    namespace
        .nft("table ip x { chain c { type filter hook forward priority 0; ct state new counter; ct mark set 1; }; }");
    assert!(others().is_empty(), "reading, and other settings, are nothing to us");
    namespace.nft("table ip x { chain d { type filter hook input priority 0; ct event set new,destroy; }; }");
    let named: Vec<_> = others().into_iter().map(|other| format!("{} {}", other.table, other.chain)).collect();
    assert_eq!(named, ["ip x d"]);
}

//! A flow that is forwarded by one host goes on at another that has a replica of it.

use crate::fabric::*;
use holdfast::os::ct::{Changes, Removals};
use holdfast_statesync::ct::{
    Batch, Entry, EventKind, Layer4, Mark, Outcome, Replica, Status, Tcp, TcpFlags, TcpState,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn replica(entry: &Entry) -> Replica {
    Replica::of(entry, 300, None)
}

#[test]
fn a_flow_goes_on_with_megabytes_at_the_host_that_has_a_replica_and_back() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    for six in [false, true] {
        let (near, far) = fabric.connect(six);
        exchange(&near, &far, 4 << 20).expect("through A");
        let told = fabric.a.flow_to(vip(six));
        fabric.b.create(&[replica(&told)]);
        let held = fabric.b.flow_to(vip(six));
        assert_eq!((held.original, held.reply), (told.original, told.reply));
        let nat = Status::SRC_NAT.with(Status::DST_NAT).with(Status::SEEN_REPLY).with(Status::ASSURED);
        assert!(held.status.unwrap().has(nat), "{held:?}");
        let (Some(Tcp { state, sides: Some(sides) }), Some(Tcp { sides: Some(before), .. })) = (held.tcp, told.tcp)
        else {
            panic!("{held:?}")
        };
        assert_eq!(state, TcpState::Established);
        for (side, before) in sides.into_iter().zip(before) {
            assert!(side.flags.has(TcpFlags::WINDOW_SCALE.with(TcpFlags::BE_LIBERAL)));
            assert_eq!(side.window_scale, before.window_scale);
        }
        fabric.move_to(Host::B);
        exchange(&near, &far, 16 << 20).expect("through B");
        // A's own entry has missed it all: windows moved on. The replica's update makes it forgiving.
        let mut batch = Batch::new();
        batch.update(&replica(&fabric.b.flow_to(vip(six))), false).expect("fits");
        assert_eq!(outcomes(&mut fabric.a.writer(), &batch), [Outcome::Done]);
        fabric.move_to(Host::A);
        exchange(&near, &far, 16 << 20).expect("through A again");
    }
}

#[test]
fn without_a_replica_the_flow_is_dead_so_the_rule_set_is_strict() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    fabric.move_to(Host::B);
    assert!(!speaks(&near, &far));
}

/// Sends bytes as they are; the errors that come back.
fn raw(namespace: &Namespace, bytes: &[u8]) -> Vec<i32> {
    namespace.enter(|| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter).expect("opens");
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).expect("bound");
        send(fd.as_raw_fd(), bytes, MsgFlags::empty()).expect("sent");
        let mut errors = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(length) = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            assert!(length >= 20);
            errors.push(-i32::from_ne_bytes(buffer[16..20].try_into().expect("four bytes")));
        }
        errors
    })
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(value.len() + 4).expect("small").to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An IPv4 TCP flow in the words of its dump: translated reply tuple, no NAT attributes.
fn verbatim(entry: &Entry) -> Vec<u8> {
    let tuple = |kind: u16, tuple: &holdfast_statesync::ct::Tuple| {
        let octets = |address: SocketAddr| match address {
            SocketAddr::V4(address) => address.ip().octets(),
            SocketAddr::V6(_) => panic!("IPv4"),
        };
        let (from, to) = (tuple.source(), tuple.destination());
        let ip = [attribute(1, &octets(from)), attribute(2, &octets(to))].concat();
        let ports = [attribute(2, &from.port().to_be_bytes()), attribute(3, &to.port().to_be_bytes())].concat();
        let proto = [attribute(1, &[6]), ports].concat();
        attribute(kind | 0x8000, &[attribute(0x8001, &ip), attribute(0x8002, &proto)].concat())
    };
    let tcp = attribute(0x8001, &attribute(1, &[3]));
    let body = [
        vec![2, 0, 0, 0],
        tuple(1, &entry.original),
        tuple(2, &entry.reply),
        attribute(3, &entry.status.expect("told").0.to_be_bytes()),
        attribute(7, &300_u32.to_be_bytes()),
        attribute(0x8004, &tcp),
    ]
    .concat();
    let mut message = u32::try_from(body.len() + 16).expect("small").to_ne_bytes().to_vec();
    message.extend_from_slice(&0x100_u16.to_ne_bytes());
    message.extend_from_slice(&0x605_u16.to_ne_bytes());
    message.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(body);
    message
}

#[test]
fn a_copy_of_what_was_dumped_is_taken_by_the_kernel_and_dead() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    let told = fabric.a.flow_to(vip(false));
    assert_eq!(raw(&fabric.b, &verbatim(&told)), [0], "it is taken");
    let held = fabric.b.flow_to(vip(false));
    assert_eq!((held.original, held.reply), (told.original, told.reply), "and looks right");
    fabric.move_to(Host::B);
    assert!(!speaks(&near, &far));
}

/// Segments that the client has sent, and the server's host answered, while nothing came back: the server's
/// acknowledgement is then beyond what the new host saw of the client.
#[test]
fn a_flow_whose_answers_were_lost_before_it_moved_drains() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    exchange(&near, &far, 1 << 20).expect("through A");
    fabric.b.create(&[replica(&fabric.a.flow_to(vip(false)))]);
    fabric.a.nft("table inet cut { chain f { type filter hook forward priority 0; ip saddr 10.9.2.2 drop; }; }");
    std::thread::scope(|scope| {
        let up = scope.spawn(|| transfer(&near, &far, 1 << 20));
        std::thread::sleep(Duration::from_millis(700));
        fabric.move_to(Host::B);
        up.join().expect("no panic").expect("drained");
    });
    exchange(&near, &far, 1 << 20).expect("goes on");
}

#[test]
fn flags_without_a_mask_are_ignored_by_the_kernel() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    let mut batch = Batch::new();
    batch.create(&replica(&fabric.a.flow_to(vip(false)))).expect("fits");
    // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL and …_REPLY: 6 bytes of type 4 and 5; the last of them is the mask.
    let mut bytes = batch.bytes().to_vec();
    let mut changed = 0;
    for at in 0..bytes.len() - 5 {
        if bytes[at..at + 2] == [6, 0] && matches!(bytes[at + 2..at + 4], [4 | 5, 0]) && bytes[at + 4] & 8 != 0 {
            bytes[at + 5] = 0;
            changed += 1;
        }
    }
    assert_eq!(changed, 2);
    assert_eq!(raw(&fabric.b, &bytes), [] as [i32; 0]);
    let sides = fabric.b.flow_to(vip(false)).tcp.and_then(|tcp| tcp.sides).expect("told");
    assert!(sides.iter().all(|side| side.window_scale == 0 && side.flags == TcpFlags::default()), "{sides:?}");
}

#[test]
fn datagrams_and_pings_go_on_with_their_translation() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let server = fabric.server.enter(|| UdpSocket::bind("10.9.2.2:5353").expect("free"));
    let client = fabric.client.enter(|| UdpSocket::bind("10.9.1.2:40001").expect("free"));
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
    }
    let ask = || {
        client.send_to(b"q", (VIP, 53)).expect("sent");
        let mut buffer = [0; 8];
        let (_, from) = server.recv_from(&mut buffer).expect("forwarded");
        assert_eq!(from.ip().to_string(), SOURCE);
        server.send_to(b"r", from).expect("sent");
        let (_, from) = client.recv_from(&mut buffer).expect("answered");
        assert_eq!(from.to_string(), "10.9.9.9:53");
        // The server's port for the next one must be the same.
        from
    };
    ask();
    fabric.client.exec(&format!("ping -c1 -W5 -e 700 {VIP}"));
    fabric.client.exec(&format!("ping -6 -c1 -W5 -e 701 {VIP6}"));
    let told = fabric.a.dump();
    let replicas: Vec<_> = told.iter().map(replica).collect();
    assert!(replicas.len() >= 3, "{replicas:?}");
    fabric.b.create(&replicas);
    let held = fabric.b.dump();
    for entry in &told {
        let same = held.iter().find(|held| held.original == entry.original).expect("held");
        assert_eq!(same.reply, entry.reply);
    }
    assert!(held.iter().any(|entry| matches!(entry.original.layer4, Layer4::Icmp6 { .. })));
    fabric.move_to(Host::B);
    ask();
    let udp = fabric.b.flow_to("10.9.9.9:53".parse().expect("an address"));
    assert_eq!(udp.reply, told.iter().find(|e| e.original == udp.original).expect("told").reply);
}

#[test]
fn a_flow_that_nobody_answered_yet_isnt_translated_anew_by_the_rules_of_the_next_host() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    // A leaves it alone; B's rules would translate it.
    fabric.a.exec("nft flush chain inet lab pre");
    fabric.a.exec("nft flush chain inet lab post");
    let server = fabric.server.enter(|| UdpSocket::bind("10.9.2.2:53").expect("free"));
    server.set_read_timeout(Some(PATIENCE)).expect("set");
    let client = fabric.client.enter(|| UdpSocket::bind("10.9.1.2:40001").expect("free"));
    let mut buffer = [0; 8];
    let mut ask = || {
        client.send_to(b"q", (SERVER, 53)).expect("sent");
        server.recv_from(&mut buffer).expect("forwarded").1.to_string()
    };
    assert_eq!(ask(), "10.9.1.2:40001");
    let told = fabric.a.flow_to("10.9.2.2:53".parse().expect("an address"));
    assert!(!told.status.expect("told").has(Status::SEEN_REPLY));
    fabric.b.create(&[replica(&told)]);
    fabric.move_to(Host::B);
    assert_eq!(ask(), "10.9.1.2:40001");
}

#[test]
fn an_offloaded_flow_is_written_with_a_state_and_a_lease_and_lives() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    exchange(&near, &far, 1 << 20).expect("through A");
    let mut told = fabric.a.flow_to(vip(false));
    // As a flow table's are dumped.
    (told.timeout_s, told.tcp) = (None, None);
    told.status = told.status.map(|status| status.with(Status::OFFLOAD));
    fabric.b.create(&[replica(&told)]);
    fabric.move_to(Host::B);
    exchange(&near, &far, 8 << 20).expect("through B");
}

#[test]
fn an_inherited_flow_that_ends_at_the_new_host_is_told_of_there() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (near, far) = fabric.connect(false);
    assert!(speaks(&near, &far));
    fabric.b.set("netfilter/nf_conntrack_tcp_timeout_time_wait", "1");
    fabric.b.set("netfilter/nf_conntrack_tcp_timeout_last_ack", "1");
    fabric.b.set("netfilter/nf_conntrack_tcp_timeout_close", "1");
    let (mut changes, mut removals) = fabric.b.enter(|| {
        let changes = Changes::open(Changes::RECEIVE_BUFFER).expect("opens");
        (changes, Removals::open(Removals::RECEIVE_BUFFER).expect("opens"))
    });
    let mut writer = fabric.b.writer();
    let told = Replica::of(&fabric.a.flow_to(vip(false)), 300, Some(Mark { value: 0x10, mask: 0xf0 }));
    let mut batch = Batch::new();
    batch.create(&told).expect("fits");
    assert_eq!(outcomes(&mut writer, &batch), [Outcome::Done]);
    let mut seen = Vec::new();
    changes.read(|event| seen.push(event)).expect("read");
    let [event] = seen[..] else { panic!("{seen:?}") };
    assert_eq!((event.kind, event.port_id), (EventKind::New, writer.port_id().expect("bound")), "ours");
    assert_eq!((event.entry.original, event.entry.mark), (told.original, Some(0x10)));
    fabric.move_to(Host::B);
    assert!(speaks(&near, &far));
    drop((near, far));
    // The kernel removes what has expired when it comes across it: a dump does.
    let destroyed = until("the end is told of", || {
        fabric.b.dump();
        let mut end = None;
        removals.read(|event| end = Some(event)).expect("read");
        end
    });
    assert_eq!((destroyed.kind, destroyed.port_id), (EventKind::Destroy, 0));
    assert_eq!(destroyed.entry.original, told.original);
    assert!(destroyed.entry.id.is_some());
    let mut states = Vec::new();
    until("the changes are told of", || {
        changes.read(|event| states.extend(event.entry.tcp.map(|tcp| (event.port_id, tcp.state)))).expect("read");
        states.contains(&(0, TcpState::TimeWait)).then_some(())
    });
}

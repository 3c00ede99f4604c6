//! The VRRP sockets: what each sends, what each hears.

use crate::world::*;
use holdfast::os::vrrp::{self, Batch, Family, GROUP, GROUP_V6, Heard, Outgoing, PACKET_MAX, Packet, Receiver, Sender};
use nix::sys::socket::{MsgFlags, recv};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const PAYLOAD: [u8; 12] = [0x31, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

fn group(family: Family) -> IpAddr {
    match family {
        Family::V4 => GROUP.into(),
        Family::V6 => GROUP_V6.into(),
    }
}

/// The address that a host with this number sends adverts to the group from.
fn lead(family: Family, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, 0, host).into(),
        Family::V6 => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host.into()).into(),
    }
}

fn global(host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into()
}

/// Source, destination, TTL or hop limit, VRRP message.
fn parts<'a>(heard: &Heard<'a>) -> (IpAddr, IpAddr, u8, &'a [u8]) {
    match heard.packet {
        Packet::V4(packet) => {
            assert_eq!((packet[0], packet[1], packet[9]), (0x45, 0xC0, 112), "IHL, TOS, protocol");
            let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).expect("four"));
            (ip(12), ip(16), packet[8], &packet[20..])
        }
        Packet::V6 { source, destination, hop_limit, message } => {
            (source.into(), destination.into(), hop_limit, message)
        }
    }
}

fn nothing(receiver: &Receiver) {
    let mut buffer = [0; PACKET_MAX];
    let error = receiver.try_recv(&mut buffer).expect_err("nothing is there");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
}

#[test]
fn each_socket_hears_its_kind_alone_with_source_hop_limit_and_interface() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("link add name other type veth peer name far");
    two.ip("link set other up");
    two.ip("link set far up");
    for family in FAMILIES {
        let mut peers = vec![(lead(family, 1), lead(family, 2))];
        if family == Family::V6 {
            peers.push((global(1), global(2)));
        }
        two.block_on(|| async {
            let eth0 = index("eth0");
            let multicast = Receiver::open(family, Some(eth0)).expect("open");
            let elsewhere = Receiver::open(family, Some(index("other"))).expect("open");
            let unicast = Receiver::open(family, None).expect("open");
            assert_eq!((multicast.family(), multicast.interface(), unicast.interface()), (family, Some(eth0), None));
            let back = Sender::open(family, Some(eth0)).expect("open");
            assert!(two.ip("maddress show dev eth0").contains(&group(family).to_string()), "member of the group");
            one.enter(|| {
                let eth0 = index("eth0");
                let senders = [Sender::open(family, Some(eth0)), Sender::open(family, None)].map(|s| s.expect("open"));
                // What the keeper does: duplicates, and the payload prepared beforehand.
                let duplicates: [OwnedFd; 2] = senders.each_ref().map(|s| s.as_fd().try_clone_to_owned().expect("dup"));
                let [multicast, unicast] = &senders;
                multicast.send(lead(family, 1), eth0, group(family), &PAYLOAD).expect("sent");
                for (from, to) in &peers {
                    unicast.send(*from, eth0, *to, &PAYLOAD).expect("sent");
                }
                drop(senders);
                let [multicast, unicast] = &duplicates;
                let to_all =
                    Outgoing { source: lead(family, 1), ifindex: eth0, destination: group(family), payload: &PAYLOAD };
                vrrp::send_to(multicast.as_fd(), &to_all).expect("sent");
                for (from, to) in &peers {
                    let packet = Outgoing { source: *from, destination: *to, ..to_all };
                    vrrp::send_to(unicast.as_fd(), &packet).expect("sent");
                }
                vrrp::send_to(multicast.as_fd(), &to_all).expect("sent");
            });
            let mut buffer = [0; PACKET_MAX];
            for _ in 0..3 {
                let heard = multicast.recv(&mut buffer).await.expect("received");
                assert_eq!(heard.ifindex, eth0);
                assert_eq!(parts(&heard), (lead(family, 1), group(family), 255, &PAYLOAD[..]));
            }
            for (from, to) in peers.iter().chain(&peers) {
                let heard = unicast.recv(&mut buffer).await.expect("received");
                assert_eq!(heard.ifindex, eth0);
                assert_eq!(parts(&heard), (*from, *to, 255, &PAYLOAD[..]));
            }
            // The last to the group came after all others: whoever was to hear them has.
            for receiver in [&multicast, &unicast, &elsewhere] {
                nothing(receiver);
            }
            // Nor do we hear ourselves, and a sender queues nothing.
            back.send(lead(family, 2), eth0, group(family), &PAYLOAD).expect("sent");
            nothing(&multicast);
            assert_eq!(recv(back.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT), Err(nix::errno::Errno::EAGAIN));
            drop(multicast);
            let left = || !two.ip("maddress show dev eth0").contains(&group(family).to_string());
            eventually("left the group", left);
        });
    }
}

#[test]
fn an_advert_over_ipv6_goes_to_the_groups_link_address_as_control_traffic() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    let tap = two.enter(tap);
    one.enter(|| {
        let eth0 = index("eth0");
        let sender = Sender::open(Family::V6, Some(eth0)).expect("open");
        sender.send(lead(Family::V6, 1), eth0, GROUP_V6.into(), &PAYLOAD).expect("sent");
    });
    let frame = next_frame(&tap, |frame| frame[12..14] == [0x86, 0xdd] && frame[20] == 112);
    assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x12]);
    assert_eq!((frame[14], frame[15] & 0xF0), (0x6C, 0), "version, traffic class 0xC0");
    assert_eq!(frame[21], 255, "hop limit");
    assert_eq!(frame[54..], PAYLOAD, "the message as it is: its checksum isn't the kernel's");
}

#[test]
fn a_unicast_socket_takes_no_broadcast() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let unicast = Receiver::open(Family::V4, None).expect("open");
        one.enter(|| {
            let raw = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(112.into())).expect("open");
            raw.set_broadcast(true).expect("set");
            let broadcast: std::net::SocketAddr = "10.0.0.255:0".parse().expect("valid");
            raw.send_to(&PAYLOAD, &broadcast.into()).expect("sent");
            let sender = Sender::open(Family::V4, None).expect("open");
            sender.send(lead(Family::V4, 1), 0, lead(Family::V4, 2), &PAYLOAD).expect("sent");
        });
        let mut buffer = [0; PACKET_MAX];
        let heard = unicast.recv(&mut buffer).await.expect("received");
        assert_eq!(parts(&heard).1, lead(Family::V4, 2), "the broadcast was before it");
        nothing(&unicast);
    });
}

#[test]
fn a_routed_peer_is_heard_on_whichever_interface_its_packets_come_in() {
    if skipped() {
        return;
    }
    // one -- router == two, joined by two cables; 10.9.0.2 and fd09::2 are two's own, on no cable.
    let (one, router, two) = (Namespace::new("os"), Namespace::new("os"), Namespace::new("os"));
    let cable = |a: &Namespace, name_a: &str, b: &Namespace, name_b: &str, net: u8| {
        a.ip(&format!("link add name {name_a} type veth peer name {name_b} netns {}", b.name));
        for (host, name, last) in [(a, name_a, 1), (b, name_b, 2)] {
            host.ip(&format!("link set {name} up"));
            host.ip(&format!("address add 10.{net}.0.{last}/24 dev {name}"));
            host.ip(&format!("address add fd{net:02}::{last}/64 dev {name} nodad"));
        }
        a.until_up(name_a);
        b.until_up(name_b);
    };
    cable(&one, "eth0", &router, "left", 1);
    cable(&router, "x", &two, "x", 2);
    cable(&router, "y", &two, "y", 3);
    two.ip("address add 10.9.0.2/32 dev lo");
    two.ip("address add fd09::2/128 dev lo nodad");
    router.enter(|| {
        for file in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{file}"), "1").expect("root may");
        }
    });
    one.ip("route add 10.9.0.0/24 via 10.1.0.2");
    one.ip("-6 route add fd09::/64 via fd01::2");
    let sources: [IpAddr; 2] = ["10.1.0.1".parse().expect("valid"), "fd01::1".parse().expect("valid")];
    let peers: [IpAddr; 2] = ["10.9.0.2".parse().expect("valid"), "fd09::2".parse().expect("valid")];
    two.block_on(|| async {
        for ((family, source), peer) in FAMILIES.into_iter().zip(sources).zip(peers) {
            let receiver = Receiver::open(family, None).expect("open");
            for (name, net) in [("x", 2), ("y", 3)] {
                router.ip(&format!("route replace 10.9.0.0/24 via 10.{net}.0.2"));
                router.ip(&format!("-6 route replace fd09::/64 via fd{net:02}::2"));
                one.enter(|| {
                    // The interface is no matter here: the routes decide.
                    let sender = Sender::open(family, None).expect("open");
                    sender.send(source, index("eth0"), peer, &PAYLOAD).expect("sent");
                });
                let mut buffer = [0; PACKET_MAX];
                let heard = receiver.recv(&mut buffer).await.expect("received");
                assert_eq!(heard.ifindex, index(name));
                assert_eq!(parts(&heard), (source, peer, 254, &PAYLOAD[..]), "one router on the way");
            }
        }
    });
}

#[test]
fn what_cannot_be_sent_says_why_and_the_sockets_outlive_a_link_that_is_down() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("link set eth0 addrgenmode none");
    for family in FAMILIES {
        two.block_on(|| async {
            let eth0 = index("eth0");
            let receiver = Receiver::open(family, Some(eth0)).expect("open");
            let errno = |result: io::Result<()>| result.expect_err("refused").raw_os_error().expect("of the system");
            let multicast = Sender::open(family, Some(eth0)).expect("open");
            let unicast = Sender::open(family, None).expect("open");
            for (sender, to) in [(&multicast, group(family)), (&unicast, lead(family, 1))] {
                let foreign = errno(sender.send(lead(family, 99), eth0, to, &PAYLOAD));
                assert!([libc::ENETUNREACH, libc::EINVAL].contains(&foreign), "errno {foreign}");
            }
            let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
            assert_eq!(errno(multicast.send(lead(other, 2), eth0, group(family), &PAYLOAD)), libc::EAFNOSUPPORT);
            assert!(multicast.send(lead(other, 2), eth0, group(other), &PAYLOAD).is_err(), "the socket's own family");
            two.ip("link set eth0 down");
            let down = errno(multicast.send(lead(family, 2), eth0, group(family), &PAYLOAD));
            println!("{family:?} on a link that is down: {}", io::Error::from_raw_os_error(down));
            two.ip("link set eth0 up");
            two.until_up("eth0");
            if family == Family::V6 {
                // The kernel took them away with the link.
                two.ip("address add fe80::2/64 dev eth0 nodad");
            }
            multicast.send(lead(family, 2), eth0, group(family), &PAYLOAD).expect("works again without reopening");
            // Hearing too: the membership is there still. What the link's end said of itself comes first.
            let heard = async {
                let mut buffer = [0; PACKET_MAX];
                loop {
                    one.enter(|| {
                        let eth0 = index("eth0");
                        let sender = Sender::open(family, Some(eth0)).expect("open");
                        let _ = sender.send(lead(family, 1), eth0, group(family), &PAYLOAD);
                    });
                    let next = tokio::time::timeout(Duration::from_millis(50), receiver.recv(&mut buffer));
                    match next.await {
                        Ok(Ok(heard)) => return parts(&heard).0,
                        Ok(Err(e)) => println!("{family:?} receiver: {e}"),
                        Err(_) => {}
                    }
                }
            };
            assert_eq!(heard.await, lead(family, 1));
            let nowhere = Receiver::open(family, Some(9999)).expect_err("no such interface");
            assert_eq!(nowhere.raw_os_error(), Some(libc::ENODEV), "{nowhere}");
            assert!(Sender::open(family, Some(0)).is_err());
        });
    }
}

#[test]
fn ipv6_sends_from_no_tentative_address() {
    if skipped() {
        return;
    }
    let (_one, two) = two_hosts();
    two.enter(|| {
        let eth0 = index("eth0");
        std::fs::write("/proc/sys/net/ipv6/conf/eth0/dad_transmits", "20").expect("root may");
        let sender = Sender::open(Family::V6, Some(eth0)).expect("open");
        two.ip("address add fe80::3/64 dev eth0");
        let error = sender.send(lead(Family::V6, 3), eth0, GROUP_V6.into(), &PAYLOAD).expect_err("tentative");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
    });
}

#[test]
fn many_packets_go_and_come_in_order_and_each_has_its_result() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        for family in FAMILIES {
            let receiver = Receiver::open(family, Some(index("eth0"))).expect("open");
            const COUNT: u8 = 150;
            one.enter(|| {
                let eth0 = index("eth0");
                let sender = Sender::open(family, Some(eth0)).expect("open");
                let payloads: Vec<[u8; 1]> = (0..COUNT).map(|i| [i]).collect();
                let packets: Vec<Outgoing<'_>> = payloads
                    .iter()
                    .enumerate()
                    .map(|(i, payload)| Outgoing {
                        source: match i {
                            70 => "::1".parse().expect("valid"), // a mixture in one family, not ours in the other
                            0 | 71 | 149 => lead(family, 99),
                            _ => lead(family, 1),
                        },
                        ifindex: eth0,
                        destination: group(family),
                        payload,
                    })
                    .collect();
                let mut failed = Vec::new();
                let mut told = vec![0; packets.len()];
                sender.send_many(&packets, |at, result| {
                    told[at] += 1;
                    failed.extend(result.is_err().then_some(at));
                });
                failed.sort_unstable();
                assert_eq!(failed, [0, 70, 71, 149]);
                assert!(told.iter().all(|times| *times == 1), "each once: {told:?}");
                sender.send_many(&[], |_, _| panic!("nothing was sent"));
            });
            let (mut batch, mut order) = (Batch::new(), Vec::new());
            while order.len() < usize::from(COUNT) - 4 {
                poll_fn(|cx| receiver.poll_recv_many(cx, &mut batch)).await.expect("received");
                assert!(!batch.is_empty() && batch.len() <= vrrp::RECEIVE_BATCH);
                for heard in batch.packets() {
                    let (source, destination, ttl, message) = parts(&heard);
                    assert_eq!((source, destination, ttl), (lead(family, 1), group(family), 255));
                    assert_eq!(heard.ifindex, index("eth0"));
                    order.extend_from_slice(message);
                }
            }
            let expected: Vec<u8> = (0..COUNT).filter(|i| ![0, 70, 71, 149].contains(i)).collect();
            assert_eq!(order, expected);
            nothing(&receiver);
        }
    });
}

#[test]
fn the_cost_of_a_thousand_adverts_is_printed() {
    if skipped() {
        return;
    }
    const COUNT: usize = 1000;
    const ROUNDS: u32 = 20;
    let (one, two) = two_hosts();
    two.block_on(|| async {
        for family in FAMILIES {
            let receiver = Receiver::open(family, Some(index("eth0"))).expect("open");
            let send = |many: bool| {
                one.enter(|| {
                    let eth0 = index("eth0");
                    let sender = Sender::open(family, Some(eth0)).expect("open");
                    let packet = Outgoing {
                        source: lead(family, 1),
                        ifindex: eth0,
                        destination: group(family),
                        payload: &PAYLOAD,
                    };
                    let start = Instant::now();
                    if many {
                        sender.send_many(&[packet; COUNT], |_, result| result.expect("sent"));
                    } else {
                        (0..COUNT).for_each(|_| vrrp::send_to(sender.as_fd(), &packet).expect("sent"));
                    }
                    start.elapsed()
                })
            };
            let mut buffer = [0; PACKET_MAX];
            let mut batch = Batch::new();
            let mut took = [Duration::ZERO; 4];
            let mut got = [0, 0];
            for _ in 0..ROUNDS {
                took[0] += send(false);
                let start = Instant::now();
                while receiver.try_recv(&mut buffer).is_ok() {
                    got[0] += 1;
                }
                took[1] += start.elapsed();
                took[2] += send(true);
                let start = Instant::now();
                let many = async {
                    loop {
                        poll_fn(|cx| receiver.poll_recv_many(cx, &mut batch)).await.expect("received");
                        got[1] += batch.len();
                    }
                };
                // Ends when nothing is left.
                let _ = tokio::time::timeout(Duration::ZERO, many).await;
                took[3] += start.elapsed();
            }
            // The device's queue may drop from a burst: what is measured is what came.
            assert!(got.iter().all(|n| *n > 0));
            let each = |total: Duration, n: usize| total / u32::try_from(n).expect("few");
            let sent = COUNT * ROUNDS as usize;
            println!(
                "{family:?}, one packet: send {:?}, send_many {:?}; receive {:?} ({} came), receive many {:?} ({} came)",
                each(took[0], sent),
                each(took[2], sent),
                each(took[1], got[0]),
                got[0],
                each(took[3], got[1]),
                got[1],
            );
        }
    });
}

#[test]
fn a_socket_whose_interface_is_gone_says_so_and_its_successor_works() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let eth0 = index("eth0");
        for family in FAMILIES {
            Receiver::open(family, Some(eth0)).expect("open");
        }
        let unicast = FAMILIES.map(|family| Receiver::open(family, None).expect("open"));
        let old = FAMILIES.map(|family| Sender::open(family, Some(eth0)).expect("open"));
        one.ip("link del eth0");
        one.ip(&format!("link add name eth0 type veth peer name eth0 netns {}", two.name));
        for (host, last) in [(&one, 1), (&two, 2)] {
            host.ip("link set eth0 addrgenmode none up");
            host.ip(&format!("address add 10.0.0.{last}/24 dev eth0"));
            host.ip(&format!("address add fe80::{last}/64 dev eth0 nodad"));
        }
        one.until_up("eth0");
        two.until_up("eth0");
        let new = index("eth0");
        assert_ne!(new, eth0);
        for ((family, old), unicast) in FAMILIES.into_iter().zip(&old).zip(&unicast) {
            let error = old.send(lead(family, 2), eth0, group(family), &PAYLOAD).expect_err("its interface is gone");
            println!("{family:?}, interface gone: {error}");
            let multicast = Receiver::open(family, Some(new)).expect("open");
            one.enter(|| {
                let eth0 = index("eth0");
                let sender = Sender::open(family, Some(eth0)).expect("open");
                sender.send(lead(family, 1), eth0, group(family), &PAYLOAD).expect("sent");
                let sender = Sender::open(family, None).expect("open");
                sender.send(lead(family, 1), eth0, lead(family, 2), &PAYLOAD).expect("sent");
            });
            let mut buffer = [0; PACKET_MAX];
            assert_eq!(multicast.recv(&mut buffer).await.expect("received").ifindex, new);
            let heard = unicast.recv(&mut buffer).await.expect("an unbound socket lives on");
            assert_eq!((heard.ifindex, parts(&heard).0), (new, lead(family, 1)));
        }
    });
}

#[test]
fn an_interface_that_had_no_ipv6_for_a_while_is_joined_again() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.block_on(|| async {
        let eth0 = index("eth0");
        let receiver = Receiver::open(Family::V6, Some(eth0)).expect("open");
        let member = || two.ip("maddress show dev eth0").contains("ff02::12");
        let tap = one.enter(tap);
        receiver.rejoin().expect("nothing to do");
        assert!(member());
        two.ip("link set eth0 mtu 1000");
        assert_eq!(receiver.rejoin().expect_err("no IPv6").raw_os_error(), Some(libc::EINVAL));
        two.ip("link set eth0 mtu 1500");
        assert!(!member(), "the kernel forgot");
        receiver.rejoin().expect("joined again");
        assert!(member());
        one.enter(|| {
            let eth0 = index("eth0");
            let sender = Sender::open(Family::V6, Some(eth0)).expect("open");
            sender.send(lead(Family::V6, 1), eth0, GROUP_V6.into(), &PAYLOAD).expect("sent");
        });
        let mut buffer = [0; PACKET_MAX];
        assert_eq!(parts(&receiver.recv(&mut buffer).await.expect("received")).3, PAYLOAD);
        // Nobody was told that the host leaves the group: a record of type TO_IN for it, from a host that sends MLDv2.
        let leaves = |frame: &[u8]| {
            frame.get(62) == Some(&143) && frame[70..].windows(20).any(|r| r[0] == 3 && r[4..] == GROUP_V6.octets())
        };
        drop(receiver);
        let left = next_frame(&tap, leaves);
        assert!(!two.ip("maddress show dev eth0").contains("ff02::12"), "{left:?}");
    });
}

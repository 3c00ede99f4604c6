use super::*;
use std::time::{Duration, Instant};

/// The ports are fixed, so one test has them at a time; another program's are left alone.
fn receiver(kind: Kind) -> Option<Receiver> {
    match Receiver::open(kind) {
        Ok(receiver) => Some(receiver),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EADDRINUSE | libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => None,
        Err(e) => panic!("{kind:?}: {e}"),
    }
}

fn fill(receiver: &Receiver, batch: &mut Batch) -> bool {
    let limit = Instant::now() + Duration::from_secs(5);
    loop {
        match receiver.receive(batch) {
            Ok(more) => return more,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < limit => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn datagrams_come_with_source_destination_interface_and_ttl_and_others_than_255_only_over_several_hops() {
    let loopback = crate::os::link::index("lo").expect("every host has one");
    for (v6, multihop) in [(false, false), (false, true), (true, false), (true, true)] {
        let Some(receiver) = receiver(Kind { v6, multihop }) else { continue };
        let ip: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let path = Path { local: Some(ip), remote: ip, ifindex: None, multihop };
        let sender = (49_152..=65_535).find_map(|port| Sender::open(&path, port).ok()).expect("a port is free");
        // One from far away first.
        let far = std::net::UdpSocket::bind((ip, 0)).expect("bound");
        far.send_to(b"far", (ip, receiver.kind.port())).expect("sent");
        for n in 0..20_u8 {
            sender.send(&[n; 24]).expect("sent");
        }
        let mut batch = Batch::default();
        assert!(fill(&receiver, &mut batch));
        let mut heard: Vec<(Vec<u8>, u8)> = Vec::new();
        loop {
            for datagram in batch.datagrams() {
                assert_eq!((datagram.from, datagram.to, datagram.multihop), (ip, Some(ip), multihop));
                assert_eq!(datagram.ifindex, loopback);
                heard.push((datagram.bytes.to_vec(), datagram.ttl));
            }
            if receiver.receive(&mut batch).is_err() {
                break;
            }
        }
        let far: Vec<_> = heard.iter().filter(|(_, ttl)| *ttl != 255).map(|(bytes, _)| bytes.clone()).collect();
        let expected: &[Vec<u8>] = if multihop { &[b"far".to_vec()] } else { &[] };
        assert_eq!(far, expected);
        assert_eq!(heard.iter().filter(|(_, ttl)| *ttl == 255).count(), 20);
        assert_eq!(batch.datagrams().count(), 0, "an error leaves nothing");
    }
}

#[test]
fn a_port_belongs_to_one_session() {
    let path = Path { local: None, remote: Ipv4Addr::LOCALHOST.into(), ifindex: None, multihop: false };
    let port = (49_152..=65_535).find(|port| Sender::open(&path, *port).is_ok()).expect("a port is free");
    let _first = Sender::open(&path, port).expect("free");
    assert_eq!(Sender::open(&path, port).expect_err("in use").raw_os_error(), Some(libc::EADDRINUSE));
}

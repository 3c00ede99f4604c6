//! What a kernel sent (`tests/golden/ct`), read.

use crate::support::{recorded, tcp, udp};
use holdfast_statesync::ct::{
    Addresses, Direction, Entry, Event, EventKind, Layer4, Message, Messages, Replica, Skipped, Status, TcpFlags,
    TcpState, Zone,
};

fn read(prefix: &str) -> (Vec<Message>, Skipped) {
    let mut skipped = Skipped::default();
    let mut all = Vec::new();
    for (name, bytes) in recorded() {
        if name.rsplit_once('-').is_some_and(|(front, _)| front == prefix) || name == prefix {
            let mut messages = Messages::new(&bytes);
            all.extend(messages.by_ref());
            skipped.add(messages.skipped());
        }
    }
    assert!(!all.is_empty() || skipped != Skipped::default(), "nothing recorded as {prefix}");
    (all, skipped)
}

fn events(prefix: &str) -> Vec<Event> {
    let (messages, skipped) = read(prefix);
    assert_eq!(skipped, Skipped::default());
    let event = |message| if let Message::Event(event) = message { event } else { panic!("{message:?}") };
    messages.into_iter().map(event).collect()
}

#[test]
fn a_connection_opens_in_three_events() {
    let events = events("event-tcp4-open");
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::New, EventKind::Update, EventKind::Update]);
    let states: Vec<_> = events.iter().map(|event| event.entry.tcp.unwrap().state).collect();
    assert_eq!(states, [TcpState::SynSent, TcpState::SynRecv, TcpState::Established]);
    for Event { port_id, entry, .. } in &events {
        assert_eq!(*port_id, 0, "packets did it");
        assert_eq!(entry.original, tcp("10.9.1.2:40000", "10.9.9.9:80"));
        assert_eq!(entry.reply.source(), "10.9.2.2:8080".parse().unwrap());
        assert_eq!(entry.reply.destination().ip(), "10.9.2.1".parse::<std::net::IpAddr>().unwrap());
        assert!(entry.is_dnat() && entry.is_snat());
        assert!(entry.id.is_some() && entry.timeout_s.is_some());
        assert!(entry.event_ns.is_some_and(|ns| ns > 1_600_000_000_000_000_000), "{entry:?}");
        assert_eq!(entry.mark, Some(0x5a));
        assert_eq!(entry.zone, Zone::default());
    }
    let last = events.last().unwrap().entry;
    assert!(last.status.unwrap().has(Status::ASSURED.with(Status::SEEN_REPLY)));
    let sides = last.tcp.unwrap().sides.unwrap();
    assert!(sides.iter().all(|side| side.flags.has(TcpFlags::WINDOW_SCALE) && side.window_scale > 0), "{sides:?}");
}

#[test]
fn ipv6_is_read_alike() {
    let events = events("event-tcp6-open");
    let entry = events.last().unwrap().entry;
    assert_eq!(entry.original, tcp("[fd01::2]:40000", "[fd09::9]:80"));
    assert_eq!(entry.reply.source(), "[fd02::2]:8080".parse().unwrap());
    assert!(matches!(entry.reply.addresses, Addresses::V6 { .. }));
}

#[test]
fn datagrams_and_pings_have_no_tcp_part() {
    for event in events("event-udp4") {
        assert_eq!(event.entry.original, udp("10.9.1.2:40001", "10.9.9.9:53"));
        assert_eq!(event.entry.tcp, None);
        assert!(event.entry.is_dnat() && !event.entry.is_snat());
    }
    let pings: Vec<Entry> = events("event-icmp-and-zones")
        .into_iter()
        .map(|event| event.entry)
        .filter(|entry| !matches!(entry.original.layer4, Layer4::Udp { .. }))
        .collect();
    let four = |entry: &&Entry| entry.original.layer4 == Layer4::Icmp { id: 513, kind: 8, code: 0 };
    let six = |entry: &&Entry| entry.original.layer4 == Layer4::Icmp6 { id: 514, kind: 128, code: 0 };
    for ping in [pings.iter().find(four), pings.iter().find(six)] {
        let ping = ping.expect("recorded");
        assert!(ping.is_dnat() && !ping.is_snat());
        assert_eq!(ping.reply.layer4, ping.original.layer4.inverse().unwrap());
    }
}

#[test]
fn zones_of_one_direction_are_told_from_those_of_both() {
    let zones: Vec<_> = events("event-icmp-and-zones")
        .into_iter()
        .map(|event| event.entry)
        .filter(|entry| matches!(entry.original.layer4, Layer4::Udp { .. }))
        .map(|entry| (entry.original.destination().to_string(), entry.zone))
        .collect();
    let original = Zone { id: 9, direction: Direction::Original };
    assert!(zones.contains(&("10.9.9.9:5300".into(), Zone::both(7))), "{zones:?}");
    assert!(zones.contains(&("10.9.2.2:5300".into(), original)), "{zones:?}");
    assert_eq!(original.original(), 9);
    assert_eq!(Zone { id: 9, direction: Direction::Reply }.original(), 0);
}

#[test]
fn other_protocols_are_counted_and_passed_over() {
    let (messages, skipped) = read("event-other");
    assert_eq!(messages, []);
    assert_eq!(skipped, Skipped { protocols: 1, ..Skipped::default() });
}

#[test]
fn a_dump_is_entries_and_an_end() {
    let (messages, skipped) = read("dump-all");
    let (last, entries) = messages.split_last().unwrap();
    assert_eq!(*last, Message::Done { sequence: 77, errno: 0, interrupted: false });
    assert!(entries.len() >= 6, "{}", entries.len());
    assert!(entries.iter().all(|message| matches!(message, Message::Entry { sequence: 77, .. })));
    assert_eq!(skipped, Skipped { protocols: 1, ..Skipped::default() });
    let (six, _) = read("dump-v6");
    let addresses = six.iter().filter_map(|m| if let Message::Entry { entry, .. } = m { Some(entry) } else { None });
    assert!(addresses.into_iter().all(|entry| matches!(entry.original.addresses, Addresses::V6 { .. })));
}

#[test]
fn what_was_deleted_by_request_names_the_requester_and_the_last_state() {
    let [event] = events("event-tcp4-deleted")[..] else { panic!("one event") };
    assert_eq!(event.kind, EventKind::Destroy);
    assert_ne!(event.port_id, 0);
    let tcp = event.entry.tcp.unwrap();
    assert_eq!((tcp.state, tcp.sides), (TcpState::TimeWait, None));
    assert!(event.entry.timeout_s.is_some_and(|left| left > 0), "it didn't run out");
    assert!(event.entry.id.is_some());
}

#[test]
fn an_event_without_a_part_doesnt_undo_it() {
    let mut entry = events("event-tcp4-open").last().unwrap().entry;
    let before = entry;
    let [destroyed] = events("event-tcp4-deleted")[..] else { panic!("one event") };
    entry.merge(&destroyed.entry);
    assert_eq!(entry.tcp.unwrap().state, TcpState::TimeWait);
    assert_eq!(entry.tcp.unwrap().sides, before.tcp.unwrap().sides);
    assert_eq!((entry.mark, entry.id), (before.mark, before.id));
    assert_eq!(entry.timeout_s, destroyed.entry.timeout_s);
    assert_eq!(entry.event_ns, destroyed.entry.event_ns);
}

#[test]
fn an_error_is_an_answer_with_its_number() {
    assert_eq!(read("answer-missing").0, [Message::Answer { sequence: 4711, errno: 2 }]);
    assert_eq!(read("answer-get-missing").0, [Message::Answer { sequence: 4712, errno: 2 }]);
}

#[test]
fn everything_recorded_can_be_written() {
    let mut batch = holdfast_statesync::ct::Batch::new();
    for (_, bytes) in recorded() {
        for message in Messages::new(&bytes) {
            let entry = match message {
                Message::Entry { entry, .. } | Message::Event(Event { entry, .. }) => entry,
                _ => continue,
            };
            let replica = Replica::of(&entry, 60, None);
            batch.create(&replica).unwrap();
            let Some(Message::Entry { entry: written, .. }) = Messages::new(batch.bytes()).next() else {
                panic!("{entry:?}")
            };
            assert_eq!((written.original, written.zone), (entry.original, entry.zone));
            assert_eq!(Some(written.reply), entry.original.inverse());
            assert_eq!(written.timeout_s, Some(60));
            assert_eq!(written.tcp.map(|tcp| tcp.state), entry.tcp.map(|tcp| tcp.state));
            batch.clear();
        }
    }
}

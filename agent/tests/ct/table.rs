//! What the kernel says to batches, and what it can be asked.

use crate::fabric::*;
use holdfast::os::ct::Writer;
use holdfast::os::nft::Translating;
use holdfast_statesync::ct::{
    Addresses, Batch, Direction, DumpFilter, Key, Layer4, Mark, Outcome, Replica, Status, Tcp, TcpSide, TcpState,
    Toward, Tuple, Zone,
};
use std::net::Ipv4Addr;

fn established() -> Option<Tcp> {
    Some(Tcp { state: TcpState::Established, sides: Some([TcpSide::default(); 2]) })
}

/// Client `n` of VIP 10.9.9.9:80, which is 10.9.2.2:8080 and sees 10.9.2.100.
pub(crate) fn flow(n: u16) -> Replica {
    let [high, low] = n.to_be_bytes();
    let client = Ipv4Addr::new(10, 77, high, low);
    let addresses = |source: [u8; 4], destination: [u8; 4]| Addresses::V4 {
        source: source.into(),
        destination: destination.into(),
    };
    Replica {
        original: Tuple {
            addresses: addresses(client.octets(), [10, 9, 9, 9]),
            layer4: Layer4::Tcp { source: 30_000, destination: 80 },
        },
        reply: Tuple {
            addresses: addresses([10, 9, 2, 2], [10, 9, 2, 100]),
            layer4: Layer4::Tcp { source: 8080, destination: 1_000 + n },
        },
        zone: Zone::default(),
        status: Status::SEEN_REPLY.with(Status::ASSURED),
        timeout_s: 300,
        mark: None,
        tcp: established(),
        sequence_adjustment: [None; 2],
        syn_proxy: None,
    }
}

/// A table without traffic, with something to translate.
pub(crate) fn alone() -> Namespace {
    let namespace = Namespace::tracking("t");
    namespace.nft("table inet t { chain p { type nat hook prerouting priority dstnat; ct state new accept; }; }");
    namespace
}

fn one(write: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::new();
    write(&mut batch);
    assert_eq!(batch.len(), 1);
    batch
}

fn create(replica: &Replica) -> Batch {
    one(|batch| batch.create(replica).map(drop).expect("fits"))
}

fn update(replica: &Replica, exists: bool) -> Batch {
    one(|batch| batch.update(replica, exists).map(drop).expect("fits"))
}

#[test]
fn flows_that_are_looked_up_together_are_each_found_or_not() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let there: Vec<Replica> = (0..100).map(flow).collect();
    namespace.create(&there);
    let mut writer = namespace.writer();
    // Every second one isn't there, and one is asked for by the tuple of its answers.
    let mut keys: Vec<Key> = (0..100)
        .flat_map(|n| [flow(n), flow(n + 1_000)])
        .map(|replica| Key { original: replica.original, zone: 0 })
        .collect();
    keys.truncate(Writer::LOOK_UPS_MAX);
    keys[1].original = there[99].reply;
    for _ in 0..3 {
        let mut found = Vec::new();
        writer.look_up_all(&keys, |entry| found.push(entry.original)).expect("answered");
        let mut expected: Vec<_> = keys.iter().step_by(2).map(|key| key.original).collect();
        expected.insert(1, there[99].original);
        assert_eq!(found, expected);
        // The next answers are to the next questions.
        assert!(writer.look_up(&there[7].original, Zone::default()).expect("asked").is_some());
    }
    writer.look_up_all(&[], |_| panic!("nothing was asked")).expect("nothing was asked");
}

#[test]
fn a_lease_is_what_the_kernel_counts_down_from() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut writer = namespace.writer();
    let mut replica = flow(1);
    replica.mark = Some(Mark { value: 0xab00_0000, mask: 0xff00_0000 });
    assert_eq!(outcomes(&mut writer, &create(&replica)), [Outcome::Done]);
    let look = |writer: &mut holdfast::os::ct::Writer| {
        writer.look_up(&replica.original, replica.zone).expect("asked").expect("there")
    };
    let held = look(&mut writer);
    assert!((295..=300).contains(&held.timeout_s.expect("told")), "{held:?}");
    assert_eq!((held.reply, held.mark), (replica.reply, Some(0xab00_0000)));
    assert!(held.status.expect("told").has(Status::SEEN_REPLY.with(Status::ASSURED).with(Status::CONFIRMED)));
    let mut batch = Batch::new();
    batch.refresh(&replica.original, replica.zone, 9_000, Some(Mark { value: 0x5, mask: 0xf })).expect("fits");
    assert_eq!(outcomes(&mut writer, &batch), [Outcome::Done]);
    let held = look(&mut writer);
    assert!((8_990..=9_000).contains(&held.timeout_s.expect("told")), "{held:?}");
    assert_eq!(held.mark, Some(0xab00_0005), "other bits stay");
    assert_eq!(held.tcp.map(|tcp| tcp.state), Some(TcpState::Established));
    batch.clear();
    batch.delete(&replica.original, replica.zone, held.id.map(|id| id ^ 1)).expect("fits");
    batch.delete(&replica.original, replica.zone, held.id).expect("fits");
    batch.delete(&replica.original, replica.zone, None).expect("fits");
    assert_eq!(outcomes(&mut writer, &batch), [Outcome::Missing, Outcome::Done, Outcome::Missing], "another, it, gone");
    assert_eq!(writer.look_up(&replica.original, replica.zone).expect("asked"), None);
}

#[test]
fn there_already_is_told_from_another_flow_with_the_same_answers() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut writer = namespace.writer();
    let first = flow(1);
    assert_eq!(outcomes(&mut writer, &update(&first, false)), [Outcome::Missing]);
    assert_eq!(outcomes(&mut writer, &create(&first)), [Outcome::Done]);
    assert_eq!(outcomes(&mut writer, &create(&first)), [Outcome::Exists]);
    assert_eq!(outcomes(&mut writer, &update(&first, true)), [Outcome::Done]);
    // Another client, with the same address and port toward the server.
    let mut clash = flow(2);
    clash.reply = first.reply;
    assert_eq!(outcomes(&mut writer, &create(&clash)), [Outcome::Exists]);
    assert_eq!(outcomes(&mut writer, &update(&clash, true)), [Outcome::ReplyClash]);
    assert_eq!(namespace.dump().len(), 1, "never with another port");
}

#[test]
fn a_flow_cant_be_made_younger() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut writer = namespace.writer();
    let mut replica = flow(1);
    assert_eq!(outcomes(&mut writer, &create(&replica)), [Outcome::Done]);
    replica.status = Status::SEEN_REPLY;
    assert_eq!(outcomes(&mut writer, &update(&replica, false)), [Outcome::Unchangeable]);
    replica.status = Status::ASSURED;
    assert_eq!(outcomes(&mut writer, &update(&replica, false)), [Outcome::Unchangeable]);
    replica.status = Status::ASSURED.with(Status::SEEN_REPLY);
    replica.tcp = Some(Tcp { state: TcpState::FinWait, sides: None });
    assert_eq!(outcomes(&mut writer, &update(&replica, false)), [Outcome::Done]);
    let held = writer.look_up(&replica.original, replica.zone).expect("asked").expect("there");
    assert_eq!(held.tcp.map(|tcp| tcp.state), Some(TcpState::FinWait));
}

#[test]
fn of_a_long_batch_each_failure_is_told_with_its_place() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut writer = namespace.writer();
    let mut batch = Batch::new();
    for n in 0..200 {
        batch.create(&flow(n)).expect("fits");
    }
    assert!(outcomes(&mut writer, &batch).iter().all(|outcome| *outcome == Outcome::Done));
    batch.clear();
    for n in 0..u16::try_from(Batch::MAX).expect("small") {
        // Every third one is new.
        batch.create(&flow(if n % 3 == 0 { 1_000 + n } else { n % 200 })).expect("fits");
    }
    let seen = outcomes(&mut writer, &batch);
    for (n, outcome) in seen.iter().enumerate() {
        assert_eq!(*outcome, if n % 3 == 0 { Outcome::Done } else { Outcome::Exists }, "{n}");
    }
    // Only errors.
    batch.clear();
    for n in 0..u16::try_from(Batch::MAX).expect("small") {
        batch.delete(&flow(5_000 + n).original, Zone::default(), None).expect("fits");
    }
    assert_eq!(outcomes(&mut writer, &batch), [Outcome::Missing; Batch::MAX]);
}

#[test]
fn equal_tuples_of_different_zones_are_different_flows() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut writer = namespace.writer();
    let zones = [Zone::default(), Zone::both(1), Zone { id: 2, direction: Direction::Original }];
    for (n, zone) in zones.into_iter().enumerate() {
        let mut replica = flow(1);
        replica.zone = zone;
        // With one zone for the original direction the answers of all are in zone 0.
        replica.reply.layer4 = Layer4::Tcp { source: 8080, destination: 2_000 + u16::try_from(n).expect("small") };
        assert_eq!(outcomes(&mut writer, &create(&replica)), [Outcome::Done], "{zone:?}");
        assert_eq!(outcomes(&mut writer, &create(&replica)), [Outcome::Exists], "{zone:?}");
        assert_eq!(outcomes(&mut writer, &update(&replica, true)), [Outcome::Done], "{zone:?}");
        let held = writer.look_up(&replica.original, zone).expect("asked").expect("there");
        assert_eq!((held.zone, held.reply), (zone, replica.reply));
    }
    let other = Zone { id: 3, direction: Direction::Reply };
    let mut replica = flow(9);
    replica.zone = other;
    assert_eq!(outcomes(&mut writer, &create(&replica)), [Outcome::Done]);
    let held = writer.look_up(&replica.original, other).expect("asked").expect("there");
    assert_eq!(held.zone, other);
    assert_eq!(held.key().zone, 0);
    let of_zone = namespace.dump_of(&DumpFilter { zone: Some(1), ..DumpFilter::default() });
    assert_eq!(of_zone.iter().map(|entry| entry.zone).collect::<Vec<_>>(), [zones[1]]);
    let mut batch = Batch::new();
    batch.delete(&flow(1).original, zones[1], None).expect("fits");
    assert_eq!(outcomes(&mut writer, &batch), [Outcome::Done]);
    assert_eq!(namespace.dump().len(), 3);
}

#[test]
fn a_dump_holds_what_was_asked_for_only() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut replicas: Vec<_> = (0..300).map(flow).collect();
    for (n, replica) in replicas.iter_mut().enumerate() {
        let n = u32::try_from(n).expect("small");
        replica.mark = Some(Mark { value: n % 3, mask: 0xff });
        replica.zone = Zone::both(if n < 100 { 4 } else { 0 });
        if n >= 200 {
            replica.original.addresses = match replica.original.addresses {
                Addresses::V4 { source, .. } => Addresses::V4 { source, destination: [10, 9, 9, 10].into() },
                six @ Addresses::V6 { .. } => six,
            };
            replica.status = Status::SEEN_REPLY;
        }
    }
    let six = |text: &str| text.parse().expect("an address");
    let tuple = |source: &str, destination: &str| Tuple::udp(six(source), six(destination)).expect("one family");
    let mut far = flow(0);
    far.original = tuple("[fd01::1]:53", "[fd09:9::9]:53");
    far.reply = tuple("[fd02::2]:53", "[fd02::1]:53");
    far.tcp = None;
    replicas.push(far);
    namespace.create(&replicas);
    let count = |filter: DumpFilter| namespace.dump_of(&filter).len();
    let all = DumpFilter::default();
    assert_eq!(count(all), 301);
    assert_eq!(count(DumpFilter { mark: Some(Mark { value: 1, mask: 0x3 }), ..all }), 100);
    assert_eq!(count(DumpFilter { status: Some((Status::ASSURED, Status::ASSURED)), ..all }), 201);
    assert_eq!(count(DumpFilter { status: Some((Status(0), Status::ASSURED)), ..all }), 100);
    assert_eq!(count(DumpFilter { zone: Some(4), ..all }), 100);
    assert_eq!(count(DumpFilter { six: Some(true), ..all }), 1);
    assert_eq!(count(DumpFilter { six: Some(false), ..all }), 300);
    let toward = |ip: &str, protocol, port| DumpFilter {
        toward: Some(Toward { address: ip.parse().expect("an address"), protocol, port }),
        ..all
    };
    assert_eq!(count(toward("10.9.9.10", None, None)), 100);
    assert_eq!(count(toward("10.9.9.10", Some(6), Some(80))), 100);
    assert_eq!(count(toward("10.9.9.10", Some(17), None)), 0);
    assert_eq!(count(toward("10.9.9.10", Some(6), Some(81))), 0);
    assert_eq!(count(toward("fd09:9::9", None, None)), 1);
    assert_eq!(count(toward("fd09:9::9", Some(17), Some(53))), 1);
    assert_eq!(count(toward("fd09:9::9", Some(17), Some(54))), 0);
    assert_eq!(count(toward("fd09:9::8", None, None)), 0);
    let both = DumpFilter { mark: Some(Mark { value: 1, mask: 0x3 }), ..toward("10.9.9.10", None, None) };
    assert_eq!(namespace.dump_of(&both).len(), 33);
}

#[test]
fn without_a_nat_chain_a_translated_replica_is_taken_all_the_same_so_the_chain_is_looked_for() {
    if skipped() {
        return;
    }
    let namespace = Namespace::tracking("n");
    namespace.create(&[flow(1)]);
    assert_eq!(namespace.dump()[0].reply, flow(1).reply);
    let look = || namespace.enter(|| Translating::look().expect("asked"));
    namespace.nft("table inet t { chain f { type filter hook forward priority 0; }; chain nat { counter; }; }");
    assert_eq!(look(), Translating { four: false, six: false });
    namespace.nft("table ip6 t { chain n { type nat hook postrouting priority srcnat; }; }");
    assert_eq!(look(), Translating { four: false, six: true });
    namespace.nft("table ip t { chain n { type nat hook prerouting priority dstnat; }; }");
    assert_eq!(look(), Translating { four: true, six: true });
    namespace.exec("nft flush ruleset");
    namespace.nft("table inet t { chain n { type nat hook input priority 100; }; }");
    assert_eq!(look(), Translating { four: true, six: true });
}

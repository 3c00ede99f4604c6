//! The batches' form.

use super::*;
use proptest::prelude::*;

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn upsert() -> impl Strategy<Value = Upsert> {
    let numbers = (any::<u16>(), any::<Option<u16>>(), any::<Option<u16>>());
    let rest = (any::<u16>(), any::<u16>(), any::<u32>(), any::<Option<u8>>(), any::<u32>(), any::<(u8, u8, bool)>());
    (numbers, address(), rest).prop_map(
        |(
            (service, backend, snat),
            client,
            (client_port, snat_port, mark, scale, generation, (state, flags, fresh)),
        )| {
            Upsert {
                service,
                client,
                client_port,
                backend,
                snat,
                snat_port,
                mark,
                scale,
                generation,
                state,
                flags,
                fresh,
            }
        },
    )
}

fn other() -> impl Strategy<Value = Record<'static>> {
    let hello = (any::<[u64; 5]>(), any::<u32>(), any::<u32>()).prop_map(|(words, node, capabilities)| {
        let [run, boot, birth, first, second] = words;
        Record::Hello(Hello { run, boot, birth: (birth, node), key: [first, second], capabilities })
    });
    let service = || {
        (any::<[u16; 3]>(), any::<u8>(), 0..3usize, address()).prop_map(
            |([number, port, id], protocol, direction, address)| {
                let direction = [Direction::Both, Direction::Original, Direction::Reply][direction];
                Record::Service { number, service: Service { protocol, port, zone: Zone { id, direction }, address } }
            },
        )
    };
    let clash = (service(), address(), any::<(u16, bool)>()).prop_map(|(service, client, (client_port, clashes))| {
        let Record::Service { service, .. } = service else { unreachable!("it makes no others") };
        Record::Clash { key: FlowKey { service, client, client_port }, clashes }
    });
    let ack = any::<(u32, u32, u64)>();
    let claim = (any::<u32>(), prop::option::of(1u32..), prop::option::of(address()));
    prop_oneof![
        hello,
        service(),
        clash,
        ack.prop_map(|(session, highest, applied)| Record::Ack { session, highest, applied }),
        any::<u32>().prop_map(|session| Record::Nack { session }),
        (any::<u16>(), address(), any::<u16>())
            .prop_map(|(number, address, port)| Record::Backend { number, address: (address, port) }),
        (any::<u16>(), address()).prop_map(|(number, address)| Record::Snat { number, address }),
        claim.prop_map(|(generation, from, vip)| Record::Claim { generation, from: from.map(NodeId), vip }),
        any::<(u16, u32)>().prop_map(|(shard, check)| Record::Begin { shard, check }),
        any::<(u16, u32)>().prop_map(|(shard, count)| Record::End { shard, count }),
        any::<(u8, u8, u64, u64, bool)>().prop_map(|(round, group, compared, equal, full)| Record::Answer {
            round,
            group,
            compared,
            equal,
            full
        }),
        any::<u32>().prop_map(|age_ms| Record::InSync { age_ms }),
    ]
}

fn decoded(bytes: &[u8]) -> Vec<Record<'_>> {
    decode(bytes).unwrap().1.map(Result::unwrap).collect()
}

fn v4() -> Upsert {
    Upsert {
        service: 1,
        client: IpAddr::from([198, 51, 100, 7]),
        client_port: 40000,
        backend: Some(3),
        snat: Some(0),
        snat_port: 50000,
        mark: 0,
        scale: Some(0x77),
        generation: 2,
        state: 0x43,
        flags: 7,
        fresh: false,
    }
}

#[test]
fn an_ipv4_upsert_takes_16_bytes_and_a_delete_8() {
    let mut writer = Writer::default();
    writer.begin(7);
    writer.upsert(&v4());
    assert_eq!(writer.copy_to(Vec::new()).len() - HEADER_LEN, 16);
    writer.begin(7);
    writer.delete(1, v4().client, 40000);
    assert_eq!(writer.copy_to(Vec::new()).len() - HEADER_LEN, 8);
}

#[test]
fn a_batch_of_the_first_version_reads_as_recorded() {
    let mut writer = Writer::default();
    writer.begin(0x0403_0201);
    writer.sequence(9);
    writer.upsert(&v4());
    writer.delete(200, IpAddr::from([192, 0, 2, 1]), 1);
    let bytes = writer.copy_to(Vec::new());
    let recorded = [
        &[1, 1, 1, 2, 3, 4, 9, 0, 0, 0][..],
        &[0xec, 0x43, 7, 1, 198, 51, 100, 7, 0x40, 0x9c, 3, 0, 0x50, 0xc3, 0x77, 2],
        &[0x20, 0xc8, 1, 192, 0, 2, 1, 1, 0],
    ]
    .concat();
    assert_eq!(bytes, recorded);
    assert_eq!(decode(&bytes).unwrap().0, Head { session: 0x0403_0201, sequence: Some(9) });
}

#[test]
fn digests_carry_one_sum_per_bit_of_their_mask() {
    let mut writer = Writer::default();
    writer.begin(1);
    let record = Record::Digests { check: 1, round: 2, group: 255, mask: 0b101, sums: Sums(&[]) };
    writer.other(&record, &[8, 9]);
    let bytes = writer.copy_to(Vec::new());
    let records = decoded(&bytes);
    let [Record::Digests { mask: 0b101, sums, .. }] = records[..] else { panic!("{records:?}") };
    assert_eq!(sums.collect::<Vec<_>>(), [8, 9]);
}

#[test]
fn what_a_later_version_adds_is_skipped() {
    let mut writer = Writer::default();
    writer.begin(1);
    let mut bytes = writer.copy_to(Vec::new());
    bytes.extend_from_slice(&[60, 2, 0, 0xff, 0xff]);
    bytes.extend_from_slice(&[12, 6, 0, 5, 0, 0, 0, 99, 99]);
    assert_eq!(decoded(&bytes), [Record::Unknown, Record::InSync { age_ms: 5 }]);
    // A hello with one more field.
    let hello = Hello { run: 1, boot: 2, birth: (3, 4), key: [5, 6], capabilities: 7 };
    writer.begin(1);
    writer.other(&Record::Hello(hello), &[]);
    let mut bytes = writer.copy_to(Vec::new());
    bytes.extend_from_slice(&[9, 3, 1, 2, 3]);
    let length = HEADER_LEN + 1;
    bytes[length] += 5;
    assert_eq!(decoded(&bytes), [Record::Hello(hello)]);
    bytes[0] = VERSION + 1;
    assert!(matches!(decode(&bytes), Err(DecodeError::Version(2))));
}

proptest! {
    #[test]
    fn every_record_survives_the_wire(
        upserts in prop::collection::vec(upsert(), 0..12), others in prop::collection::vec(other(), 0..8),
    ) {
        let mut writer = Writer::default();
        writer.begin(3);
        for upsert in &upserts {
            let before = writer.room();
            writer.upsert(upsert);
            prop_assert!(before - writer.room() <= RECORD_MAX);
        }
        others.iter().for_each(|record| writer.other(record, &[]));
        upserts.iter().for_each(|upsert| writer.delete(upsert.service, upsert.client, upsert.client_port));
        let bytes = writer.copy_to(Vec::new());
        let deletes = upserts.iter().map(|upsert| Record::Delete {
            service: upsert.service, client: upsert.client, client_port: upsert.client_port,
        });
        let sent: Vec<_> =
            upserts.iter().map(|upsert| Record::Upsert(*upsert)).chain(others.iter().cloned()).chain(deletes).collect();
        prop_assert_eq!(decoded(&bytes), sent);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes: Vec<u8>, kind in 0u8..40) {
        for bytes in [&bytes[..], &[&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, kind][..], &bytes].concat()] {
            if let Ok((_, records)) = decode(bytes) {
                prop_assert!(records.count() <= bytes.len());
            }
        }
    }
}

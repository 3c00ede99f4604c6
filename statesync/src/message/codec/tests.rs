use super::*;
use proptest::prelude::*;

const ROOM: usize = 1170;

fn encoded(message: &Message) -> Vec<Vec<u8>> {
    let mut buffer = Encoded::default();
    buffer.encode(message, ROOM).expect("the message is valid");
    buffer.records().map(<[u8]>::to_vec).collect()
}

fn decoded(bytes: &[u8]) -> Vec<Result<Record, DecodeError>> {
    Records::new(bytes).collect()
}

fn vip(name: &str) -> VipReport {
    VipReport {
        vip: name.to_owned(),
        fitness: Fitness::Fit,
        role: Role::Active,
        role_epoch: 7,
        priority: 254,
        role_age_ms: 1000,
        standing: Some(Standing::Full),
    }
}

#[test]
fn a_message_has_exactly_the_bytes_of_the_layout() {
    let take = Message::TakeNow { vip: "web".into(), role_epoch: 0x0102, linger: true };
    assert_eq!(encoded(&take), [[2, 13, 0, 3, b'w', b'e', b'b', 2, 1, 0, 0, 0, 0, 0, 0, 1]]);
    assert_eq!(encoded(&Message::Goodbye), [[5, 0, 0]]);
    let table = |timeouts| Message::Table { limit: 0x0102, timeouts };
    assert_eq!(encoded(&table(None)), [[6, 8, 0, 2, 1, 0, 0, 0, 0, 0, 0]]);
    let timeouts = Timeouts { established_s: 0x0304, udp_stream_s: 5 };
    assert_eq!(encoded(&table(Some(timeouts))), [[6, 16, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 5, 0, 0, 0]]);
    assert_eq!(encoded(&Message::Pool { fingerprint: 0x0102 }), [[7, 8, 0, 2, 1, 0, 0, 0, 0, 0, 0]]);
    let report = Message::Report {
        sequence: 5,
        vips: vec![vip("a")],
        balancers: vec![BalancerReport { balancer: "b".into(), fitness: Fitness::Unfit, verdict: Some(Verdict::Hung) }],
    };
    let expected: [&[u8]; 4] = [
        &[1, 38, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0],
        &[18, 0, 1, b'a', 1, 2, 7, 0, 0, 0, 0, 0, 0, 0, 254],
        &[232, 3, 0, 0, 3],
        &[4, 0, 1, b'b', 2, 4],
    ];
    assert_eq!(encoded(&report), [expected.concat()]);
}

#[test]
fn a_table_of_an_agent_that_tells_no_timeouts_is_read() {
    for half in [&[][..], &[1, 0, 0, 0]] {
        let bytes = [&[6, 8 + u8::try_from(half.len()).expect("short"), 0, 9, 0, 0, 0, 0, 0, 0, 0][..], half].concat();
        let expected = Record::Message(Message::Table { limit: 9, timeouts: None });
        assert_eq!(decoded(&bytes), [Ok(expected)]);
    }
}

#[test]
fn unknown_kinds_are_skipped_and_what_follows_is_read() {
    let bytes = [&[77, 2, 0, 9, 9][..], &[5, 0, 0]].concat();
    assert_eq!(decoded(&bytes), [Ok(Record::Unknown { kind: 77 }), Ok(Record::Message(Message::Goodbye))]);
}

#[test]
fn trailing_fields_of_a_later_version_are_skipped_in_bodies_and_entries() {
    let bytes = [4, 12, 0, 1, b'v', 3, 0, 0, 0, 0, 0, 0, 0, 99, 98];
    assert_eq!(decoded(&bytes), [Ok(Record::Message(Message::Keep { vip: "v".into(), role_epoch: 3 }))]);
    let mut report =
        encoded(&Message::Report { sequence: 5, vips: vec![vip("a"), vip("b")], balancers: vec![] }).remove(0);
    // The first entry grows by two bytes: entry length, bytes and the record's length.
    report.splice(35..35, [99, 98]);
    report[15] += 2;
    report[1] += 2;
    assert_eq!(
        decoded(&report),
        [Ok(Record::Message(Message::Report { sequence: 5, vips: vec![vip("a"), vip("b")], balancers: vec![] }))]
    );
}

#[test]
fn a_report_of_an_earlier_version_leaves_unsaid_what_it_did_not_know() {
    let bytes = [
        &[1, 36, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0][..],
        &[17, 0, 1, b'a', 1, 2, 7, 0, 0, 0, 0, 0, 0, 0, 254, 232, 3, 0, 0],
        &[3, 0, 1, b'b', 2],
    ]
    .concat();
    let vips = vec![VipReport { standing: None, ..vip("a") }];
    let balancers = vec![BalancerReport { balancer: "b".into(), fitness: Fitness::Unfit, verdict: None }];
    assert_eq!(decoded(&bytes), [Ok(Record::Message(Message::Report { sequence: 5, vips, balancers }))]);
}

#[test]
fn a_malformed_body_is_reported_and_the_next_record_is_still_read() {
    let bytes = [&[4, 1, 0, 9][..], &[5, 0, 0]].concat();
    assert_eq!(
        decoded(&bytes),
        [Err(DecodeError::Truncated { need: 9, have: 0 }), Ok(Record::Message(Message::Goodbye))]
    );
}

#[test]
fn a_record_longer_than_the_datagram_ends_the_row() {
    assert_eq!(decoded(&[5, 1, 0]), [Err(DecodeError::Truncated { need: 1, have: 0 })]);
    assert_eq!(decoded(&[5, 0]), [Err(DecodeError::Truncated { need: 2, have: 1 })]);
}

#[test]
fn codes_without_a_meaning_are_refused_but_an_unknown_fitness_is_unknown() {
    let keep = |name: &[u8]| {
        let body = [&[u8::try_from(name.len()).unwrap()][..], name, &[0; 8]].concat();
        decoded(&[&[4, u8::try_from(body.len()).unwrap(), 0][..], &body].concat())
    };
    assert_eq!(keep(b""), [Err(DecodeError::Name)]);
    assert_eq!(keep(b"a b"), [Err(DecodeError::Name)]);
    assert_eq!(keep("é".as_bytes()), [Err(DecodeError::Name)]);
    assert_eq!(keep(&[b'x'; 64]), [Err(DecodeError::Name)]);
    assert!(matches!(&keep(&[b'x'; 63])[..], [Ok(Record::Message(Message::Keep { .. }))]));

    let claim = |cause, family| {
        decoded(&[&[3, 16, 0, 1, b'v', 0, 0, 0, 0, 0, 0, 0, 0, cause, family][..], &[192, 0, 2, 1]].concat())
    };
    assert_eq!(claim(3, 4), [Err(DecodeError::Code { field: "cause", value: 3 })]);
    assert_eq!(claim(0, 5), [Err(DecodeError::Code { field: "address family", value: 5 })]);
    assert!(matches!(&claim(0, 4)[..], [Ok(_)]));

    let mut report = encoded(&Message::Report { sequence: 5, vips: vec![vip("a")], balancers: vec![] }).remove(0);
    report[19] = 200;
    let mut expected = vip("a");
    expected.fitness = Fitness::Unknown;
    let message = Message::Report { sequence: 5, vips: vec![expected], balancers: vec![] };
    assert_eq!(decoded(&report), [Ok(Record::Message(message))]);
    report[20] = 3;
    assert_eq!(decoded(&report), [Err(DecodeError::Code { field: "role", value: 3 })]);
    report[12] = 2;
    assert_eq!(decoded(&report), [Err(DecodeError::TooMany { count: 513 })]);
}

#[test]
fn names_that_are_none_are_not_sent() {
    let mut buffer = Encoded::default();
    for name in ["", "a b", "ü", &"x".repeat(64)] {
        let message = Message::Keep { vip: name.to_owned(), role_epoch: 1 };
        assert_eq!(buffer.encode(&message, ROOM), Err(EncodeError::Name(name.to_owned())));
        assert_eq!(buffer.records().count(), 0);
    }
}

#[test]
fn a_record_that_can_not_fit_is_refused_instead_of_looping() {
    let mut buffer = Encoded::default();
    let report = Message::Report { sequence: 1, vips: vec![vip("a")], balancers: vec![] };
    assert!(matches!(buffer.encode(&report, 20), Err(EncodeError::Room { .. })));
    assert!(matches!(buffer.encode(&Message::Goodbye, 2), Err(EncodeError::Room { need: 3, room: 2 })));
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9._-]{1,63}"
}

fn fitness() -> impl Strategy<Value = Fitness> {
    prop_oneof![Just(Fitness::Unknown), Just(Fitness::Fit), Just(Fitness::Unfit), Just(Fitness::Withheld)]
}

fn vip_report() -> impl Strategy<Value = VipReport> {
    let role = prop_oneof![Just(Role::Out), Just(Role::Backup), Just(Role::Active)];
    (name(), fitness(), role, any::<u64>(), any::<u8>(), any::<u32>(), any::<u8>()).prop_map(
        |(vip, fitness, role, role_epoch, priority, role_age_ms, standing)| VipReport {
            vip,
            fitness,
            role,
            role_epoch,
            priority,
            role_age_ms,
            standing: Standing::from_code(standing % 8),
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let cause = prop_oneof![Just(ClaimCause::DownTimer), Just(ClaimCause::Handed), Just(ClaimCause::Preempt)];
    let balancer = (name(), fitness(), any::<u8>()).prop_map(|(balancer, fitness, verdict)| BalancerReport {
        balancer,
        fitness,
        verdict: Verdict::from_code(verdict % 16),
    });
    let timeouts =
        any::<(u32, u32)>().prop_map(|(established_s, udp_stream_s)| Timeouts { established_s, udp_stream_s });
    prop_oneof![
        (any::<u64>(), prop::collection::vec(vip_report(), 0..300), prop::collection::vec(balancer, 0..300))
            .prop_map(|(sequence, vips, balancers)| Message::Report { sequence, vips, balancers }),
        (name(), any::<u64>(), any::<bool>()).prop_map(|(vip, role_epoch, linger)| Message::TakeNow {
            vip,
            role_epoch,
            linger
        }),
        (name(), any::<u64>(), cause, any::<IpAddr>()).prop_map(|(vip, role_epoch, cause, probe)| Message::Claim {
            vip,
            role_epoch,
            cause,
            probe
        }),
        (name(), any::<u64>()).prop_map(|(vip, role_epoch)| Message::Keep { vip, role_epoch }),
        Just(Message::Goodbye),
        (any::<u64>(), proptest::option::of(timeouts)).prop_map(|(limit, timeouts)| Message::Table { limit, timeouts }),
        any::<u64>().prop_map(|fingerprint| Message::Pool { fingerprint }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_encoded_decodes_to_the_same_and_fits(message in message(), room in 120usize..2000) {
        let mut buffer = Encoded::default();
        buffer.encode(&message, room).unwrap();
        let (mut all_vips, mut all_balancers) = (Vec::new(), Vec::new());
        for record in buffer.records() {
            prop_assert!(record.len() <= room);
            let mut messages = decoded(record);
            prop_assert_eq!(messages.len(), 1);
            match (&message, messages.remove(0)) {
                (Message::Report { sequence: sent, .. }, Ok(Record::Message(Message::Report { sequence, vips, balancers }))) => {
                    prop_assert_eq!(*sent, sequence);
                    all_vips.extend(vips);
                    all_balancers.extend(balancers);
                }
                (sent, got) => prop_assert_eq!(Ok(Record::Message(sent.clone())), got),
            }
        }
        if let Message::Report { vips, balancers, .. } = &message {
            prop_assert_eq!(vips, &all_vips);
            prop_assert_eq!(balancers, &all_balancers);
        }
    }

    #[test]
    fn any_bytes_decode_to_records_or_refusals(bytes: Vec<u8>) {
        // Each record takes at least its header, so a row always ends.
        prop_assert!(decoded(&bytes).len() <= bytes.len() / RECORD_HEADER_LEN + 1);
    }

    #[test]
    fn a_damaged_message_decodes_to_records_or_refusals(message in message(), at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        for mut record in encoded(&message) {
            let place = at.index(record.len());
            record[place] = with;
            record.truncate(cut.index(record.len()) + 1);
            prop_assert!(decoded(&record).len() <= record.len() / RECORD_HEADER_LEN + 1);
        }
    }
}

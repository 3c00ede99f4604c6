//! What is written for the kernel, by clause.

use crate::support::{at, attributes, bare, requests, socket, tcp, translated, udp};
use holdfast_statesync::ct::{
    Addresses, Batch, Direction, DumpFilter, EncodeError, Layer4, Mark, Message, Messages, Operation, Outcome, Replica,
    SequenceAdjustment, Status, SynProxy, Tcp, TcpFlags, TcpState, Toward, Tuple, Zone, look_up,
};

fn created(replica: &Replica) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.create(replica).unwrap();
    requests(batch.bytes()).remove(0).body
}

fn updated(replica: &Replica) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.update(replica, false).unwrap();
    requests(batch.bytes()).remove(0).body
}

#[test]
fn a_create_must_be_new_and_an_update_must_not() {
    let mut batch = Batch::new();
    let replica = translated();
    assert_eq!(batch.create(&replica), Ok(0));
    assert_eq!(batch.update(&replica, false), Ok(1));
    assert_eq!(batch.refresh(&replica.original, replica.zone, 30, None), Ok(2));
    assert_eq!(batch.delete(&replica.original, replica.zone, None), Ok(3));
    let requests = requests(batch.bytes());
    let seen: Vec<_> = requests.iter().map(|r| (r.kind, r.flags, r.sequence, r.family)).collect();
    // NLM_F_REQUEST is 1, NLM_F_EXCL 0x200, NLM_F_CREATE 0x400.
    assert_eq!(seen, [(0x100, 0x601, 1, 2), (0x100, 1, 2, 2), (0x100, 1, 3, 2), (0x102, 1, 4, 2)]);
}

#[test]
fn the_reply_tuple_is_the_plain_inverse_and_the_translation_is_in_the_nat_attributes() {
    let body = created(&translated());
    // CTA_TUPLE_REPLY: from the VIP to the client, as if nothing were translated.
    assert_eq!(at(&body, &[2, 1, 1]), Some(vec![10, 9, 9, 9]));
    assert_eq!(at(&body, &[2, 1, 2]), Some(vec![10, 9, 1, 2]));
    assert_eq!(at(&body, &[2, 2, 2]), Some(80_u16.to_be_bytes().to_vec()));
    assert_eq!(at(&body, &[2, 2, 3]), Some(40_000_u16.to_be_bytes().to_vec()));
    for (nat, address, port) in [(13, [10, 9, 2, 2], 8080_u16), (6, [10, 9, 2, 1], 50_000)] {
        for bound in [1, 2] {
            assert_eq!(at(&body, &[nat, bound]), Some(address.to_vec()), "address, pinned");
            assert_eq!(at(&body, &[nat, 3, bound]), Some(port.to_be_bytes().to_vec()), "port, pinned");
        }
    }
}

#[test]
fn with_only_one_side_translated_the_other_is_pinned_too() {
    let mut replica = translated();
    replica.reply = tcp("10.9.2.2:8080", "10.9.1.2:40000");
    let body = created(&replica);
    assert_eq!(at(&body, &[6, 1]), Some(vec![10, 9, 1, 2]));
    assert_eq!(at(&body, &[6, 3, 1]), Some(40_000_u16.to_be_bytes().to_vec()));
    replica.reply = tcp("10.9.9.9:80", "10.9.2.1:40000");
    let body = created(&replica);
    assert_eq!(at(&body, &[13, 1]), Some(vec![10, 9, 9, 9]));
    assert_eq!(at(&body, &[13, 3, 1]), Some(80_u16.to_be_bytes().to_vec()));
    assert_eq!(at(&body, &[6, 1]), Some(vec![10, 9, 2, 1]));
}

#[test]
fn a_flow_without_translation_says_none() {
    let mut replica = translated();
    replica.reply = replica.original.inverse().unwrap();
    let body = created(&replica);
    assert_eq!((at(&body, &[6]), at(&body, &[13])), (None, None));
}

#[test]
fn ipv6_is_translated_with_attributes_of_its_own() {
    let mut replica = translated();
    replica.original = tcp("[fd01::2]:40000", "[fd09::9]:80");
    replica.reply = tcp("[fd02::2]:8080", "[fd02::1]:50000");
    let mut batch = Batch::new();
    batch.create(&replica).unwrap();
    let request = requests(batch.bytes()).remove(0);
    assert_eq!(request.family, 10);
    let to = |text: &str| match socket(text).ip() {
        std::net::IpAddr::V6(ip) => Some(ip.octets().to_vec()),
        std::net::IpAddr::V4(_) => None,
    };
    assert_eq!(at(&request.body, &[1, 1, 3]), to("[fd01::2]:0"));
    assert_eq!(at(&request.body, &[2, 1, 3]), to("[fd09::9]:0"));
    for bound in [4, 5] {
        assert_eq!(at(&request.body, &[13, bound]), to("[fd02::2]:0"));
        assert_eq!(at(&request.body, &[6, bound]), to("[fd02::1]:0"));
    }
    assert_eq!(at(&request.body, &[13, 1]), None);
    assert_eq!(at(&request.body, &[13, 3, 1]), Some(8080_u16.to_be_bytes().to_vec()));
}

#[test]
fn the_status_is_confirmed_never_expected_or_dying_and_names_no_translation() {
    for (said, written) in [(0xffff_ffff_u32, 0xe_u32), (0, 0x8), (0x2, 0xa), (0x1be, 0xe), (0x1 | 0x200 | 0x4000, 0x8)]
    {
        let mut replica = translated();
        replica.status = Status(said);
        assert_eq!(at(&created(&replica), &[3]), Some(written.to_be_bytes().to_vec()), "{said:#x}");
        assert_eq!(at(&updated(&replica), &[3]), Some(written.to_be_bytes().to_vec()), "{said:#x}");
    }
}

#[test]
fn the_timeout_is_the_lease() {
    assert_eq!(at(&created(&translated()), &[7]), Some(600_u32.to_be_bytes().to_vec()));
    assert_eq!(at(&updated(&translated()), &[7]), Some(600_u32.to_be_bytes().to_vec()));
}

#[test]
fn tcp_flags_have_a_mask_and_both_sides_are_liberal() {
    for body in [created(&translated()), updated(&translated())] {
        assert_eq!(at(&body, &[4, 1, 1]), Some(vec![3]), "established");
        assert_eq!(at(&body, &[4, 1, 2]), Some(vec![7]), "window scale");
        assert_eq!(at(&body, &[4, 1, 3]), Some(vec![9]));
        for side in [4, 5] {
            let [flags, mask] = at(&body, &[4, 1, side]).unwrap()[..] else { panic!("two bytes") };
            assert_eq!(flags, 0x01 | 0x02 | 0x08, "window scale, SACK, liberal");
            assert_eq!(mask & 0x0b, 0x0b);
            assert_eq!(mask & 0x70, 0, "what conntrack learns from segments stays its own");
        }
    }
}

#[test]
fn a_window_scale_that_no_kernel_takes_is_lowered() {
    let mut replica = translated();
    let Some(Tcp { sides: Some(sides), .. }) = &mut replica.tcp else { panic!("TCP") };
    sides[0].window_scale = 255;
    assert_eq!(at(&created(&replica), &[4, 1, 2]), Some(vec![14]));
}

#[test]
fn tcp_of_which_only_the_state_is_known_keeps_its_scales() {
    let mut replica = translated();
    replica.tcp = Some(Tcp { state: TcpState::FinWait, sides: None });
    let body = updated(&replica);
    assert_eq!(at(&body, &[4, 1, 1]), Some(vec![4]));
    assert_eq!(at(&body, &[4, 1, 2]), None);
    assert_eq!(at(&body, &[4, 1, 4]), Some(vec![8, 8]));
    assert_eq!(at(&body, &[4, 1, 5]), Some(vec![8, 8]));
}

#[test]
fn other_protocols_have_no_tcp_part() {
    let mut replica = translated();
    replica.original = udp("10.9.1.2:40000", "10.9.9.9:53");
    replica.reply = udp("10.9.2.2:5353", "10.9.1.2:40000");
    let body = created(&replica);
    assert_eq!(at(&body, &[4]), None);
    assert_eq!(at(&body, &[1, 2, 1]), Some(vec![17]));
}

#[test]
fn a_ping_is_translated_by_its_identifier() {
    let mut replica = translated();
    let four = |source: [u8; 4], destination: [u8; 4]| Addresses::V4 {
        source: source.into(),
        destination: destination.into(),
    };
    replica.tcp = None;
    replica.original =
        Tuple { addresses: four([10, 9, 1, 2], [10, 9, 9, 9]), layer4: Layer4::Icmp { id: 513, kind: 8, code: 0 } };
    replica.reply =
        Tuple { addresses: four([10, 9, 2, 2], [10, 9, 2, 1]), layer4: Layer4::Icmp { id: 700, kind: 0, code: 0 } };
    let body = created(&replica);
    assert_eq!(at(&body, &[2, 2, 5]), Some(vec![0]), "the plain inverse is an answer");
    assert_eq!(at(&body, &[2, 2, 4]), Some(513_u16.to_be_bytes().to_vec()));
    assert_eq!(at(&body, &[6, 3, 1]), Some(700_u16.to_be_bytes().to_vec()));
    assert_eq!(at(&body, &[13, 3]), None, "type and code aren't translated");
    replica.original.layer4 = Layer4::Icmp { id: 513, kind: 3, code: 0 };
    let mut batch = Batch::new();
    assert_eq!(batch.create(&replica), Err(EncodeError::NoInverse));
    replica.reply = tcp("10.9.2.2:8080", "10.9.1.2:40000");
    assert_eq!(batch.create(&replica), Err(EncodeError::Mixed));
    assert!(batch.is_empty() && batch.bytes().is_empty(), "nothing of them is left");
}

#[test]
fn a_mark_has_a_mask_and_no_bit_outside() {
    let mut replica = translated();
    assert_eq!(at(&created(&replica), &[8]), None);
    replica.mark = Some(Mark { value: 0xa1b2_c3d4, mask: 0xffff_0000 });
    for body in [created(&replica), updated(&replica)] {
        assert_eq!(at(&body, &[8]), Some(vec![0xa1, 0xb2, 0, 0]));
        assert_eq!(at(&body, &[21]), Some(vec![0xff, 0xff, 0, 0]));
    }
}

#[test]
fn a_zone_is_said_where_it_counts() {
    let mut replica = translated();
    for (direction, top, original, reply) in [
        (Direction::Both, true, false, false),
        (Direction::Original, false, true, false),
        (Direction::Reply, false, false, true),
    ] {
        replica.zone = Zone { id: 7, direction };
        let body = created(&replica);
        let said = |there: bool| there.then(|| vec![0, 7]);
        assert_eq!(at(&body, &[18]), said(top), "{direction:?}");
        assert_eq!(at(&body, &[1, 3]), said(original), "{direction:?}");
        assert_eq!(at(&body, &[2, 3]), said(reply), "{direction:?}");
    }
}

#[test]
fn an_update_touches_no_translation() {
    let mut replica = translated();
    replica.sequence_adjustment = [Some(SequenceAdjustment::default()); 2];
    let kinds: Vec<_> = attributes(&updated(&replica)).into_iter().map(|(kind, _)| kind & 0x3fff).collect();
    assert_eq!(kinds, [1, 3, 7, 4], "tuple, status, timeout, TCP");
}

#[test]
fn a_refresh_is_a_tuple_and_a_timeout() {
    let replica = translated();
    let mut batch = Batch::new();
    batch.refresh(&replica.original, Zone::both(3), 90, Some(Mark { value: 1, mask: 3 })).unwrap();
    let body = requests(batch.bytes()).remove(0).body;
    let kinds: Vec<_> = attributes(&body).into_iter().map(|(kind, _)| kind & 0x3fff).collect();
    assert_eq!(kinds, [1, 18, 7, 8, 21]);
}

#[test]
fn a_delete_names_the_very_flow_where_it_is_known() {
    let replica = translated();
    let mut batch = Batch::new();
    batch.delete(&replica.original, replica.zone, Some(0x0102_0304)).unwrap();
    batch.delete(&replica.original, replica.zone, None).unwrap();
    let requests = requests(batch.bytes());
    assert_eq!(at(&requests[0].body, &[12]), Some(vec![1, 2, 3, 4]));
    assert_eq!(at(&requests[1].body, &[12]), None);
}

#[test]
fn shifts_of_sequence_numbers_and_a_syn_proxy_go_along() {
    let mut replica = translated();
    let shift = SequenceAdjustment { correction_position: 7, offset_before: -1, offset_after: 2 };
    replica.sequence_adjustment = [None, Some(shift)];
    let proxy = SynProxy { initial_sequence: 1, initial_timestamp: 2, timestamp_offset: 3 };
    replica.syn_proxy = Some(proxy);
    let body = created(&replica);
    assert_eq!(at(&body, &[15]), None);
    assert_eq!(at(&body, &[16, 2]), Some(vec![0xff; 4]));
    assert_eq!(at(&body, &[24, 3]), Some(vec![0, 0, 0, 3]));
    let mut batch = Batch::new();
    batch.create(&replica).unwrap();
    let Some(Message::Entry { entry, .. }) = Messages::new(batch.bytes()).next() else { panic!("an entry") };
    assert_eq!((entry.sequence_adjustment, entry.syn_proxy), ([None, Some(shift)], Some(proxy)));
}

#[test]
fn an_offloaded_flow_is_given_the_lease_and_a_state_that_it_must_have() {
    let mut entry = bare(translated().original, translated().reply);
    entry.status = Some(Status::OFFLOAD.with(Status(0x1be)));
    let replica = Replica::of(&entry, 120, None);
    let body = created(&replica);
    assert_eq!(at(&body, &[7]), Some(120_u32.to_be_bytes().to_vec()));
    assert_eq!(at(&body, &[4, 1, 1]), Some(vec![3]), "established");
    assert_eq!(at(&body, &[4, 1, 4]).unwrap()[0] & 8, 8, "liberal");
    assert_eq!(at(&body, &[3]), Some(0xe_u32.to_be_bytes().to_vec()));
    let plain = Replica::of(&bare(udp("10.0.0.1:1", "10.0.0.2:2"), udp("10.0.0.2:2", "10.0.0.1:1")), 1, None);
    assert_eq!(plain.tcp, None);
}

#[test]
fn an_answer_leads_to_its_message() {
    let mut batch = Batch::new();
    let replica = translated();
    batch.create(&replica).unwrap();
    batch.update(&replica, true).unwrap();
    assert_eq!(batch.outcome(1, 17), Some((0, Outcome::Exists)));
    assert_eq!(batch.outcome(2, 2), Some((1, Outcome::ReplyClash)));
    assert_eq!((batch.outcome(0, 0), batch.outcome(3, 0)), (None, None));
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(batch.outcome(1, 17), None, "late");
    batch.delete(&replica.original, replica.zone, None).unwrap();
    assert_eq!(batch.outcome(3, 2), Some((0, Outcome::Missing)));
    assert_eq!(batch.operations(), [Operation::Delete]);
}

#[test]
fn a_batch_ends_at_its_limit_and_keeps_its_memory() {
    let mut batch = Batch::new();
    let mut replica = translated();
    replica.original = tcp("[fd01::2]:40000", "[fd09::9]:80");
    replica.reply = tcp("[fd02::2]:8080", "[fd02::1]:50000");
    replica.zone = Zone::both(9);
    replica.mark = Some(Mark { value: 1, mask: u32::MAX });
    replica.sequence_adjustment = [Some(SequenceAdjustment::default()); 2];
    replica.syn_proxy = Some(SynProxy::default());
    for n in 0..Batch::MAX {
        assert_eq!(batch.create(&replica), Ok(n));
    }
    assert!(batch.is_full());
    assert_eq!(batch.create(&replica), Err(EncodeError::Full));
    let longest = batch.bytes().len() / Batch::MAX;
    assert!(longest <= Batch::MESSAGE_MAX, "{longest}");
    let place = batch.bytes().as_ptr();
    batch.clear();
    for _ in 0..Batch::MAX {
        batch.create(&replica).unwrap();
    }
    assert_eq!(batch.bytes().as_ptr(), place, "no new memory");
}

#[test]
fn errors_mean_what_the_operation_makes_of_them() {
    use Operation::{Create, Delete, Refresh, Update, UpdateExisting};
    for (operation, errno, outcome) in [
        (Create, 0, Outcome::Done),
        (Create, 17, Outcome::Exists),
        (Update, 2, Outcome::Missing),
        (Refresh, 2, Outcome::Missing),
        (Delete, 2, Outcome::Missing),
        (UpdateExisting, 2, Outcome::ReplyClash),
        (Create, 28, Outcome::ChainFull),
        (Create, 12, Outcome::TableFull),
        (Create, 11, Outcome::Retry),
        (Update, 16, Outcome::Unchangeable),
        (Update, 95, Outcome::Unsupported),
        (Update, 1, Outcome::NotPermitted),
        (Create, 22, Outcome::Invalid(22)),
        (Create, 71, Outcome::Other(71)),
    ] {
        assert_eq!(Outcome::of(operation, errno), outcome, "{operation:?} {errno}");
    }
}

#[test]
fn a_dump_says_what_it_is_to_hold() {
    let mut out = Vec::new();
    DumpFilter::default().request(&mut out, 7);
    let filter = DumpFilter {
        mark: Some(Mark { value: 0x12, mask: 0xf0 }),
        status: Some((Status::ASSURED, Status::ASSURED.with(Status::DYING))),
        zone: Some(4),
        toward: Some(Toward { address: "fd09::9".parse().unwrap(), protocol: Some(6), port: Some(80) }),
        six: None,
    };
    filter.request(&mut out, 8);
    let requests = requests(&out);
    assert_eq!((requests[0].kind, requests[0].flags, requests[0].sequence), (0x101, 0x301, 7));
    assert_eq!((requests[0].family, requests[0].body.len()), (0, 0));
    let body = &requests[1].body;
    assert_eq!(requests[1].family, 10);
    assert_eq!((at(body, &[8]), at(body, &[21])), (Some(vec![0, 0, 0, 0x10]), Some(vec![0, 0, 0, 0xf0])));
    assert_eq!((at(body, &[3]), at(body, &[26])), (Some(vec![0, 0, 0, 4]), Some(vec![0, 0, 2, 4])));
    assert_eq!(at(body, &[18]), Some(vec![0, 4]));
    assert_eq!(at(body, &[1, 1]), None, "the kernel would leave out just these");
    assert_eq!(at(body, &[25, 1]), Some(0b10_1000_u32.to_ne_bytes().to_vec()), "protocol and port");
    let mut out = Vec::new();
    let toward = Some(Toward { address: "10.9.9.9".parse().unwrap(), protocol: None, port: Some(80) });
    DumpFilter { toward, ..DumpFilter::default() }.request(&mut out, 9);
    let body = crate::support::requests(&out).remove(0).body;
    assert_eq!(at(&body, &[1, 1, 2]), Some(vec![10, 9, 9, 9]));
    assert_eq!(at(&body, &[1, 1, 1]), None, "from anybody");
    assert_eq!(at(&body, &[1, 2]), None, "no port without a protocol");
    assert_eq!(at(&body, &[25, 1]), Some(0b10_u32.to_ne_bytes().to_vec()));
}

#[test]
fn what_a_kernel_didnt_leave_out_is_seen_not_to_be_asked_for() {
    let entry = bare(translated().original, translated().reply);
    let toward = |ip: &str, protocol, port| DumpFilter {
        toward: Some(Toward { address: ip.parse().unwrap(), protocol, port }),
        ..DumpFilter::default()
    };
    for (filter, fits) in [
        (DumpFilter::default(), true),
        (DumpFilter { six: Some(false), ..DumpFilter::default() }, true),
        (DumpFilter { six: Some(true), ..DumpFilter::default() }, false),
        (toward("10.9.9.9", None, None), true),
        (toward("10.9.9.9", Some(6), Some(80)), true),
        (toward("10.9.9.9", Some(6), Some(81)), false),
        (toward("10.9.9.9", Some(17), None), false),
        (toward("10.9.9.8", None, None), false),
        (toward("fd09:9::9", None, None), false),
    ] {
        assert_eq!(filter.matches(&entry), fits, "{filter:?}");
    }
}

#[test]
fn a_look_up_is_a_tuple_in_its_zone() {
    let mut out = Vec::new();
    look_up(&mut out, 9, &translated().original, Zone::both(2));
    let request = requests(&out).remove(0);
    assert_eq!((request.kind, request.flags, request.sequence), (0x101, 1, 9));
    let kinds: Vec<_> = attributes(&request.body).into_iter().map(|(kind, _)| kind & 0x3fff).collect();
    assert_eq!(kinds, [1, 18]);
}

#[test]
fn flags_of_a_side_keep_what_was_offered_only() {
    let mut replica = translated();
    let Some(Tcp { sides: Some(sides), .. }) = &mut replica.tcp else { panic!("TCP") };
    sides[1].flags = TcpFlags(0xff);
    let [flags, mask] = at(&created(&replica), &[4, 1, 5]).unwrap()[..] else { panic!("two bytes") };
    assert_eq!((flags, mask), (0x8f, 0x8f));
}

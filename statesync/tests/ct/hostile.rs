//! Bytes that no kernel sends.

use crate::corpus::ct_messages;
use crate::support::{recorded, translated};
use holdfast_statesync::ct::{Batch, Message, Messages, Skipped};
use proptest::prelude::*;

/// A message with this header; its length is right.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

fn read(bytes: &[u8]) -> (Vec<Message>, Skipped) {
    let mut messages = Messages::new(bytes);
    let all = messages.by_ref().collect();
    (all, messages.skipped())
}

const MALFORMED: Skipped = Skipped { protocols: 0, messages: 0, malformed: 1 };

#[test]
fn a_length_that_lies_hides_what_is_behind_it_and_is_counted() {
    let done = message(3, 0, 1, &[0; 4]);
    for length in [0_u32, 15, 21, 4_000, u32::MAX] {
        let mut bytes = done.clone();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        assert_eq!(read(&bytes), (vec![], MALFORMED), "{length}");
    }
    let mut bytes = done.clone();
    bytes.extend_from_slice(&done[..7]);
    assert_eq!(read(&bytes), (vec![Message::Done { sequence: 1, errno: 0, interrupted: false }], MALFORMED));
}

#[test]
fn a_malformed_message_doesnt_hide_the_next() {
    let mut bytes = message(0x100, 0, 0, &[2, 0, 0, 0]);
    bytes.extend(message(3, 0x10, 5, &[]));
    assert_eq!(read(&bytes), (vec![Message::Done { sequence: 5, errno: 0, interrupted: true }], MALFORMED));
}

#[test]
fn other_kinds_are_counted_and_an_overrun_is_told() {
    let mut bytes = message(0x900, 0, 0, &[]);
    bytes.extend(message(1, 0, 0, &[]));
    bytes.extend(message(4, 0, 0, &[]));
    assert_eq!(read(&bytes), (vec![Message::Overrun], Skipped { messages: 1, ..Skipped::default() }));
}

#[test]
fn an_end_with_an_error_says_which_and_an_odd_one_isnt_negative() {
    let ended = |code: i32| match read(&message(3, 2, 9, &code.to_ne_bytes())).0[..] {
        [Message::Done { errno, .. }] => errno,
        _ => panic!("an end"),
    };
    assert_eq!((ended(-4), ended(0), ended(7), ended(i32::MIN)), (4, 0, 0, i32::MAX));
    assert_eq!(read(&message(2, 0, 9, &[1, 2])), (vec![], MALFORMED));
}

#[test]
fn an_entry_cut_anywhere_is_refused_or_whole() {
    let mut batch = Batch::new();
    batch.create(&translated()).unwrap();
    let payload = &batch.bytes()[16..];
    for cut in 0..payload.len() {
        let (messages, skipped) = read(&message(0x100, 2, 1, &payload[..cut]));
        assert_eq!(messages.len() as u64 + skipped.malformed, 1, "cut at {cut}");
    }
}

#[test]
fn every_recorded_datagram_with_a_byte_changed_or_cut_short_is_harmless() {
    for (name, bytes) in recorded() {
        println!("{name}");
        for at in 0..bytes.len() {
            ct_messages::run(&bytes[..at]);
            for value in [0, 1, 4, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                ct_messages::run(&changed);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        ct_messages::run(&bytes);
    }

    #[test]
    fn any_attributes_of_a_flow_are_read_without_harm(
        kinds in prop::collection::vec((0_u16..32, prop::collection::vec(any::<u8>(), 0..80)), 0..12),
        kind in 0x100_u16..0x103,
    ) {
        let mut payload = vec![2, 0, 0, 0];
        for (kind, value) in kinds {
            payload.extend_from_slice(&u16::try_from(value.len() + 4).unwrap().to_ne_bytes());
            payload.extend_from_slice(&kind.to_ne_bytes());
            payload.extend_from_slice(&value);
            payload.resize(payload.len().next_multiple_of(4), 0);
        }
        ct_messages::run(&message(kind, 0, 0, &payload));
    }
}

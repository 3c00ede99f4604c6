//! Headers (RFC 4271 sections 4.1 and 6.1, RFC 8654) and cutting the stream.

use holdfast_bgp::wire::{Framer, HeaderError, MAX_EXTENDED_LEN, MAX_LEN, MessageType, Notification, encode_keepalive};
use proptest::prelude::*;

use super::{answer, hex, message};

fn first(bytes: &[u8], extended: bool) -> Result<Option<(MessageType, usize)>, HeaderError> {
    let mut framer = Framer::new();
    framer.set_extended(extended);
    let mut input = bytes;
    framer.next(&mut input).map(|frame| frame.map(|frame| (frame.kind, frame.body.len())))
}

#[test]
fn a_keepalive_is_a_header_and_nothing_else() {
    let mut out = Vec::new();
    encode_keepalive(&mut out);
    assert_eq!(out, hex("ffffffffffffffffffffffffffffffff 0013 04"));
    assert_eq!(first(&out, false), Ok(Some((MessageType::Keepalive, 0))));
}

#[test]
fn s6_1_a_marker_that_isnt_all_ones_loses_the_connection() {
    for at in 0..16 {
        let mut bytes = message(4, &[]);
        bytes[at] = 0xfe;
        assert_eq!(first(&bytes, false), Err(HeaderError::NotSynchronized));
    }
    assert_eq!(answer(HeaderError::NotSynchronized), (1, 1, vec![]));
}

#[test]
fn s6_1_a_length_that_a_type_cant_have_is_told_back() {
    // Type, too short, shortest, longest, too long.
    let types = [(1, 28, 29, 4096, 4097), (2, 22, 23, 4096, 4097), (3, 20, 21, 4096, 4097), (5, 22, 23, 4096, 4097)];
    for (kind, too_short, shortest, longest, too_long) in types {
        for length in [shortest, longest] {
            let bytes = message(kind, &vec![0; length - 19]);
            assert_eq!(first(&bytes, false).unwrap().unwrap().1, length - 19, "type {kind}, {length} bytes");
        }
        for length in [too_short, too_long] {
            let bytes = message(kind, &vec![0; length - 19]);
            let error = first(&bytes, false).unwrap_err();
            assert_eq!(answer(error), (1, 2, u16::try_from(length).unwrap().to_be_bytes().to_vec()));
        }
    }
    for length in [0, 1, 18, 20, 65_535_u16] {
        let bytes = [&[0xff; 16][..], &length.to_be_bytes(), &[4]].concat();
        assert_eq!(answer(first(&bytes, true).unwrap_err()), (1, 2, length.to_be_bytes().to_vec()));
    }
}

#[test]
fn s6_1_an_unknown_type_is_told_back() {
    for kind in [0, 6, 128, 255] {
        assert_eq!(answer(first(&message(kind, &[0; 10]), false).unwrap_err()), (1, 3, vec![kind]));
    }
}

#[test]
fn rfc8654_long_messages_but_never_a_long_open() {
    let longest = message(2, &vec![0; MAX_EXTENDED_LEN - 19]);
    assert_eq!(first(&longest, true), Ok(Some((MessageType::Update, MAX_EXTENDED_LEN - 19))));
    for kind in [3, 5] {
        assert!(first(&message(kind, &[0; 5000]), true).unwrap().is_some());
        assert!(first(&message(kind, &[0; 5000]), false).is_err());
    }
    assert!(first(&message(1, &vec![0; MAX_LEN - 19]), true).unwrap().is_some());
    assert!(first(&message(1, &vec![0; MAX_LEN - 18]), true).is_err());
}

#[test]
fn a_bad_header_is_told_before_the_message_is_there() {
    let mut framer = Framer::new();
    let header = [&[0xff; 16][..], &[0x10, 0x01, 2]].concat();
    let mut input = &header[..10];
    assert_eq!(framer.next(&mut input), Ok(None));
    let mut input = &header[10..];
    assert_eq!(framer.next(&mut input), Err(HeaderError::Length { length: 4097, kind: Some(MessageType::Update) }));
}

#[test]
fn the_framer_holds_less_than_a_message() {
    let stream = [message(2, &[0; 4000]), message(4, &[]), message(2, &[0; 4077])].concat();
    let mut framer = Framer::new();
    for mut piece in stream.chunks(999) {
        while framer.next(&mut piece).unwrap().is_some() {}
        assert!(framer.pending() < MAX_LEN);
    }
    assert_eq!(framer.pending(), 0);
}

#[test]
fn a_whole_message_is_not_copied() {
    let bytes = message(2, &[0; 100]);
    let mut framer = Framer::new();
    let mut input = &bytes[..];
    let frame = framer.next(&mut input).unwrap().unwrap();
    assert!(std::ptr::eq(frame.bytes, &raw const bytes[..]));
}

proptest! {
    #[test]
    fn any_segmentation_gives_the_same_messages(
        bodies in prop::collection::vec((2_u8..=5, prop::collection::vec(any::<u8>(), 4..300)), 1..12),
        cuts in prop::collection::vec(1_usize..400, 1..40),
    ) {
        // A KEEPALIVE has no body.
        let sent: Vec<Vec<u8>> =
            bodies.iter().map(|(kind, body)| message(*kind, if *kind == 4 { &[] } else { body })).collect();
        let stream = sent.concat();
        let mut framer = Framer::new();
        let mut got = Vec::new();
        let mut rest = &stream[..];
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (mut piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            rest = after;
            while let Some(frame) = framer.next(&mut piece).unwrap() {
                got.push(frame.bytes.to_vec());
            }
            prop_assert!(piece.is_empty());
        }
        prop_assert_eq!(got, sent);
        prop_assert_eq!(framer.pending(), 0);
    }
}

#[test]
fn what_we_say_has_a_valid_header() {
    let mut out = Vec::new();
    Notification::new(1, 1, vec![7; 70_000]).encode(&mut out);
    assert_eq!(out.len(), MAX_LEN, "cut to what an ordinary message takes");
    assert_eq!(first(&out, false), Ok(Some((MessageType::Notification, MAX_LEN - 19))));
}

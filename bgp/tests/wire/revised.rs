//! RFC 7606, clause by clause: what is discarded, what is treated as withdrawn, and what resets the session.

use holdfast_bgp::wire::update::inspect;
use holdfast_bgp::wire::{Codec, Fault, Reaction, Update};

use super::update::body;
use super::{EBGP, answer, hex};

const IBGP: Codec = Codec { internal: true, ..EBGP };
const TWO_OCTETS: Codec = Codec { four_octet_as: false, ..EBGP };

const ORIGIN: &str = "40010100";
const AS_PATH: &str = "40020602010000fde9";
const NEXT_HOP: &str = "4003040a000001";
const GLOBAL: &str = "20010db8000000000000000000000001";

/// A route with these attributes, or its faults; checks that both readers agree.
fn read(codec: &Codec, bytes: &[u8]) -> (Option<Reaction>, Vec<Fault>) {
    let update = Update::decode(bytes, codec);
    let inspected = inspect(bytes, codec);
    match update {
        Ok(update) => {
            assert_eq!(inspected.unwrap().reaction(), update.reaction());
            (update.reaction(), update.faults)
        }
        Err(error) => {
            assert_eq!(inspected, Err(error.clone()));
            assert_eq!(error.notification().code, 3);
            (Some(Reaction::Reset), vec![error.fault])
        }
    }
}

/// An IPv4 route with its mandatory attributes and one more.
fn with(codec: &Codec, attribute: &str) -> (Option<Reaction>, Vec<Fault>) {
    read(codec, &body("", &format!("{ORIGIN} {AS_PATH} {NEXT_HOP} {attribute}"), "18c00002"))
}

/// An IPv4 route with just these.
fn only(attributes: &str) -> (Option<Reaction>, Vec<Fault>) {
    read(&EBGP, &body("", attributes, "18c00002"))
}

fn withdraw(fault: Fault) -> (Option<Reaction>, Vec<Fault>) {
    (Some(Reaction::TreatAsWithdraw), vec![fault])
}

fn discard(fault: Fault) -> (Option<Reaction>, Vec<Fault>) {
    (Some(Reaction::AttributeDiscard), vec![fault])
}

fn reset(fault: Fault) -> (Option<Reaction>, Vec<Fault>) {
    (Some(Reaction::Reset), vec![fault])
}

#[test]
fn s3_c_wrong_optional_or_transitive_flags_are_treated_as_withdrawn() {
    let flags = |attribute, flags| withdraw(Fault::Flags { attribute, flags });
    assert_eq!(only(&format!("c0010100 {AS_PATH} {NEXT_HOP}")), flags(1, 0xc0));
    assert_eq!(only(&format!("00010100 {AS_PATH} {NEXT_HOP}")), flags(1, 0x00));
    assert_eq!(with(&EBGP, "4004 04 00000064"), flags(4, 0x40), "MED isn't well-known");
    assert_eq!(with(&EBGP, "c004 04 00000064"), flags(4, 0xc0), "nor transitive");
    assert_eq!(with(&EBGP, "4008 04 fde80064"), flags(8, 0x40));
    assert_eq!(with(&EBGP, "8020 0c 000000010000000200000003"), flags(32, 0x80));
    assert_eq!(with(&EBGP, "8006 00"), flags(6, 0x80), "the length of ATOMIC_AGGREGATE is discarded, its flags aren't");
    let reach = format!("400e 16 0002 01 10 {GLOBAL} 00 00 {ORIGIN} {AS_PATH}");
    assert_eq!(read(&EBGP, &body("", &reach, "")), flags(14, 0x40));
    // Partial and the reserved bits are nobody's business.
    assert_eq!(with(&EBGP, "ef08 04 fde80064"), (None, vec![]));
}

#[test]
fn s3_d_a_route_without_its_mandatory_attributes_is_treated_as_withdrawn() {
    assert_eq!(only(&format!("{AS_PATH} {NEXT_HOP}")), withdraw(Fault::Missing(1)));
    assert_eq!(only(&format!("{ORIGIN} {NEXT_HOP}")), withdraw(Fault::Missing(2)));
    assert_eq!(only(&format!("{ORIGIN} {AS_PATH}")), withdraw(Fault::Missing(3)));
    let (reaction, faults) = only("");
    assert_eq!((reaction, faults.len()), (Some(Reaction::TreatAsWithdraw), 3));
    // Not of NEXT_HOP if all prefixes are in MP_REACH_NLRI, and of nothing without prefixes.
    let reach = format!("800e 16 0002 01 10 {GLOBAL} 00 00");
    assert_eq!(read(&EBGP, &body("", &format!("{reach} {ORIGIN} {AS_PATH}"), "")), (None, vec![]));
    assert_eq!(read(&EBGP, &body("", &reach, "")).1, [Fault::Missing(1), Fault::Missing(2)]);
    assert_eq!(read(&EBGP, &body("18c00002", "", "")), (None, vec![]));
}

#[test]
fn s3_g_of_a_repeated_attribute_the_first_counts() {
    assert_eq!(with(&EBGP, "8004 04 00000001 8004 04 00000002"), discard(Fault::Duplicate(4)));
    let bytes = body("", &format!("{ORIGIN} {AS_PATH} {NEXT_HOP} {ORIGIN} c0630101 c0630102"), "00");
    let update = Update::decode(&bytes, &EBGP).unwrap();
    assert_eq!(update.faults, [Fault::Duplicate(1), Fault::Duplicate(99)], "unknown ones too");
    assert_eq!(update.attributes.len(), 4);
    // A second that is wrong is discarded unseen; a first that is wrong counts.
    assert_eq!(with(&EBGP, "4001 01 07"), discard(Fault::Duplicate(1)));
    let (reaction, faults) = only(&format!("40010107 {ORIGIN} {AS_PATH} {NEXT_HOP}"));
    assert_eq!((reaction, faults), (Some(Reaction::TreatAsWithdraw), vec![Fault::Origin(7), Fault::Duplicate(1)]));
}

#[test]
fn s3_g_a_repeated_mp_attribute_resets() {
    let reach = format!("800e 16 0002 01 10 {GLOBAL} 00 00");
    let bytes = body("", &format!("{reach} {reach} {ORIGIN} {AS_PATH}"), "");
    assert_eq!(read(&EBGP, &bytes), reset(Fault::DuplicateMp(14)));
    assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()), (3, 1, hex(&reach)));
    assert_eq!(read(&EBGP, &body("", "800f 03 0002 01 800f 03 0002 01", "")), reset(Fault::DuplicateMp(15)));
}

#[test]
fn s3_h_of_several_faults_the_strongest_counts() {
    let (reaction, faults) = with(&EBGP, "4006 01 00 c008 03 fde800 8004 04 00000001 8004 04 00000001");
    assert_eq!(reaction, Some(Reaction::TreatAsWithdraw));
    assert_eq!(faults.len(), 3);
    assert_eq!(
        inspect(&body("", &format!("{ORIGIN} {AS_PATH} {NEXT_HOP} 40060100 c00800"), "00"), &EBGP).unwrap().fault,
        Some(Fault::Length { attribute: 8, length: 0 })
    );
    assert_eq!(with(&EBGP, "c008 03 fde800 4063 00"), reset(Fault::UnknownWellKnown(99)));
}

#[test]
fn s3_i_and_j_prefixes_that_cant_be_read_reset() {
    let route = format!("{ORIGIN} {AS_PATH} {NEXT_HOP}");
    for wrong in ["21c0000201 00", "18c000", "20", "ff"] {
        let bytes = body(wrong, &route, "");
        assert_eq!(read(&EBGP, &bytes), reset(Fault::Withdrawn), "{wrong}");
        assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()), (3, 10, vec![]));
        assert_eq!(read(&EBGP, &body("", &route, wrong)), reset(Fault::Nlri), "{wrong}");
    }
}

#[test]
fn rfc4271_s6_3_lengths_beyond_the_message_reset() {
    for wrong in ["", "00", "0000", "000000", "0001 0000", "0000 0001", "0005 00 0000", "ffff ffff"] {
        assert_eq!(read(&EBGP, &hex(wrong)), reset(Fault::Lengths), "{wrong}");
        assert_eq!(answer(inspect(&hex(wrong), &EBGP).unwrap_err()), (3, 1, vec![]));
    }
}

#[test]
fn s4_attributes_that_overrun_are_treated_as_withdrawn_for_the_prefixes_are_still_there() {
    let route = format!("{ORIGIN} {AS_PATH} {NEXT_HOP}");
    let (reaction, faults) = only(&format!("{route} c008 05 fde80064"));
    assert_eq!((reaction, faults), withdraw(Fault::Overrun(8)));
    for cut in ["c0", "c008", "d008", "d00800"] {
        assert_eq!(only(&format!("{route} {cut}")), withdraw(Fault::Underrun), "{cut}");
    }
}

#[test]
fn s5_2_where_nothing_is_announced_what_isnt_a_discard_resets() {
    // What couldn't be read may have been the routes.
    let bytes = body("18c00002", "8004 05 00000064", "");
    assert_eq!(read(&EBGP, &bytes), reset(Fault::Overrun(4)));
    assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()), (3, 5, hex("8004 05 00000064")));
    assert_eq!(read(&EBGP, &body("", "40010107", "")), reset(Fault::Origin(7)));
    assert_eq!(read(&EBGP, &body("", "400600 40060100", "")).0, Some(Reaction::AttributeDiscard));
    // MP_UNREACH_NLRI alone with wrong flags says what it withdraws.
    let (reaction, faults) = read(&EBGP, &body("", "400f 04 0002 01 00", ""));
    assert_eq!((reaction, faults), withdraw(Fault::Flags { attribute: 15, flags: 0x40 }));
    // An MP_REACH_NLRI with wrong flags announces all the same.
    let reach = format!("400e 16 0002 01 10 {GLOBAL} 00 00 {ORIGIN} {AS_PATH}");
    assert_eq!(read(&EBGP, &body("", &reach, "")).0, Some(Reaction::TreatAsWithdraw));
}

#[test]
fn s5_3_mp_attributes_too_short_to_have_a_family_reset() {
    let bare = ["", "00", "0002", "000201", "00020110", "000201 01 20", "000201 00"];
    for value in bare {
        let attribute = format!("800e {:02x} {value} {ORIGIN} {AS_PATH}", hex(value).len());
        assert_eq!(read(&EBGP, &body("", &attribute, "")), reset(Fault::MalformedMp(14)), "{value}");
    }
    for value in ["", "00", "0002", "000201 81", "000201 40 20010db8"] {
        let attribute = format!("800f {:02x} {value}", hex(value).len());
        assert_eq!(read(&EBGP, &body("", &attribute, "")), reset(Fault::MalformedMp(15)), "{value}");
    }
    let bytes = body("", "800f 02 0002", "");
    assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()), (3, 9, hex("800f 02 0002")));
}

#[test]
fn s7_1_origin() {
    for (value, fault) in [
        ("00", Fault::Length { attribute: 1, length: 0 }),
        ("02 0000", Fault::Length { attribute: 1, length: 2 }),
        ("01 03", Fault::Origin(3)),
    ] {
        assert_eq!(only(&format!("4001 {value} {AS_PATH} {NEXT_HOP}")), withdraw(fault));
    }
}

#[test]
fn s7_2_as_path() {
    // Unknown kinds, an overrun, one octet left, an empty segment, and AS 0 (RFC 7607).
    let wrong = [
        "06 0001 0000fde9".to_owned(),
        "06 0501 0000fde9".to_owned(),
        "06 0202 0000fde9".to_owned(),
        "05 0201 00fde9".to_owned(),
        "07 0201 0000fde9 02".to_owned(),
        "02 0200".to_owned(),
        "08 0201 0000fde9 0200".to_owned(),
        "06 0201 00000000".to_owned(),
        "0a 0202 0000fde9 00000000".to_owned(),
    ];
    for path in wrong {
        assert_eq!(only(&format!("{ORIGIN} 4002 {path} {NEXT_HOP}")), withdraw(Fault::AsPath), "{path}");
    }
    // What is right in two octets is wrong in four, and the other way.
    let two = body("", &format!("{ORIGIN} 4002040201fde9 {NEXT_HOP}"), "00");
    assert_eq!(read(&EBGP, &two), withdraw(Fault::AsPath));
    assert_eq!(read(&TWO_OCTETS, &two), (None, vec![]));
    assert_eq!(only(&format!("{ORIGIN} 400200 {NEXT_HOP}")), (None, vec![]), "empty is right");
}

#[test]
fn s7_3_next_hop() {
    for length in [0_u8, 3, 5, 16] {
        let hop = format!("4003 {length:02x} {}", "0a".repeat(length.into()));
        let fault = Fault::Length { attribute: 3, length: length.into() };
        assert_eq!(only(&format!("{ORIGIN} {AS_PATH} {hop}")), withdraw(fault));
    }
    // Not a host's: this network, loopback, multicast, reserved, broadcast.
    for wrong in ["00000000", "00000001", "7f000001", "e0000001", "f0000001", "ffffffff"] {
        assert_eq!(only(&format!("{ORIGIN} {AS_PATH} 400304 {wrong}")), withdraw(Fault::NextHop), "{wrong}");
    }
}

#[test]
fn s7_4_and_7_8_to_7_14_lengths_that_are_treated_as_withdrawn() {
    let cases = [(4, "80", 4, 1), (8, "c0", 4, 0), (16, "c0", 8, 0), (32, "c0", 12, 0)];
    for (code, flags, unit, fixed) in cases {
        for length in 0..=2 * unit + 1 {
            let right = if fixed == 1 { length == unit } else { length > 0 && length % unit == 0 };
            let attribute = format!("{flags}{code:02x} {length:02x} {}", "01".repeat(length));
            let fault = Fault::Length { attribute: code, length: length as u16 };
            let expected = if right { (None, vec![]) } else { withdraw(fault) };
            assert_eq!(with(&EBGP, &attribute), expected, "{attribute}");
        }
    }
}

#[test]
fn s7_5_7_9_7_10_what_only_internal_neighbours_send() {
    let cases = [(5, "40", true), (9, "80", true), (10, "80", false)];
    for (code, flags, fixed) in cases {
        for length in [0_usize, 3, 4, 5, 8] {
            let attribute = format!("{flags}{code:02x} {length:02x} {}", "01".repeat(length));
            assert_eq!(with(&EBGP, &attribute), discard(Fault::Unexpected(code)), "from outside, whatever it holds");
            let right = if fixed { length == 4 } else { length > 0 && length % 4 == 0 };
            let fault = Fault::Length { attribute: code, length: length as u16 };
            let expected = if right { (None, vec![]) } else { withdraw(fault) };
            assert_eq!(with(&IBGP, &attribute), expected, "{attribute}");
        }
    }
}

#[test]
fn s7_6_and_7_7_aggregation_that_cant_be_read_is_discarded() {
    assert_eq!(with(&EBGP, "4006 01 00"), discard(Fault::Length { attribute: 6, length: 1 }));
    assert_eq!(with(&EBGP, "c007 06 fde9c0000201"), discard(Fault::Length { attribute: 7, length: 6 }));
    assert_eq!(with(&EBGP, "c007 08 00000000c0000201"), discard(Fault::Malformed(7)), "AS 0 (RFC 7607)");
    let two = |attribute: &str| {
        read(&TWO_OCTETS, &body("", &format!("{ORIGIN} 4002040201fde9 {NEXT_HOP} {attribute}"), "00"))
    };
    assert_eq!(two("c007 08 0000fde9c0000201"), discard(Fault::Length { attribute: 7, length: 8 }));
    assert_eq!(two("c007 06 fde9c0000201"), (None, vec![]));
    // RFC 6793 section 6.
    assert_eq!(two("c012 06 fde9c0000201"), discard(Fault::Length { attribute: 18, length: 6 }));
    assert_eq!(two("c012 08 00000000c0000201"), discard(Fault::Malformed(18)));
    for path in ["00", "04 0201fde9", "06 0202 fa56ea01", "06 0901 fa56ea01", "06 0201 00000000", "02 0200"] {
        assert_eq!(two(&format!("c011 {path}")), discard(Fault::Malformed(17)), "{path}");
    }
}

#[test]
fn rfc4271_s6_3_an_unknown_well_known_attribute_resets() {
    let bytes = body("", &format!("{ORIGIN} {AS_PATH} {NEXT_HOP} 4063 01 07"), "00");
    assert_eq!(read(&EBGP, &bytes), reset(Fault::UnknownWellKnown(99)));
    assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()), (3, 2, hex("4063 01 07")));
    for flags in ["80", "c0", "e0"] {
        assert_eq!(with(&EBGP, &format!("{flags}63 01 07")), (None, vec![]));
    }
}

#[test]
fn an_answer_gives_back_no_more_than_it_has_room_for() {
    let attribute = format!("d0630fff {} ", "00".repeat(4095));
    let bytes = body("", &format!("{ORIGIN} 4063 00 {attribute}"), "00");
    assert_eq!(answer(inspect(&bytes, &EBGP).unwrap_err()).2, hex("4063 00"));
    let long = body("", &format!("5063 1fff {}", "00".repeat(0x1fff)), "00");
    assert_eq!(answer(inspect(&long, &EBGP).unwrap_err()).2.len(), 4096 - 21);
}

#[test]
fn every_fault_has_words_a_reaction_and_a_subcode() {
    let faults = [
        (Fault::Lengths, Reaction::Reset, 1),
        (Fault::Withdrawn, Reaction::Reset, 10),
        (Fault::Nlri, Reaction::Reset, 10),
        (Fault::DuplicateMp(14), Reaction::Reset, 1),
        (Fault::MalformedMp(15), Reaction::Reset, 9),
        (Fault::UnknownWellKnown(99), Reaction::Reset, 2),
        (Fault::Overrun(8), Reaction::TreatAsWithdraw, 5),
        (Fault::Underrun, Reaction::TreatAsWithdraw, 1),
        (Fault::Flags { attribute: 1, flags: 0 }, Reaction::TreatAsWithdraw, 4),
        (Fault::Length { attribute: 4, length: 3 }, Reaction::TreatAsWithdraw, 5),
        (Fault::Length { attribute: 6, length: 3 }, Reaction::AttributeDiscard, 5),
        (Fault::Origin(9), Reaction::TreatAsWithdraw, 6),
        (Fault::AsPath, Reaction::TreatAsWithdraw, 11),
        (Fault::NextHop, Reaction::TreatAsWithdraw, 8),
        (Fault::Malformed(17), Reaction::AttributeDiscard, 9),
        (Fault::Missing(2), Reaction::TreatAsWithdraw, 3),
        (Fault::Unexpected(5), Reaction::AttributeDiscard, 9),
        (Fault::Duplicate(4), Reaction::AttributeDiscard, 1),
    ];
    for (fault, reaction, subcode) in faults {
        assert_eq!((fault.reaction(), fault.subcode()), (reaction, subcode), "{fault}");
        assert!(fault.to_string().len() > 8);
    }
}

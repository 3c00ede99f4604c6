//! netgauze-bgp-pkt as oracle: it reads, writes what it has read, and we must read the same from both.

use std::collections::BTreeSet;

use holdfast_bgp::wire::{Fault, Frame, Message, MessageType, Update, decode};
use holdfast_oracles::{CODEC, Rng, corpus, message, our_others, our_updates, vectors};
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::wire::deserializer::BgpParsingContext;
use netgauze_parse_utils::WritablePdu;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput;

/// What it reads, strictly, with four octets.
fn theirs(bytes: &[u8]) -> Option<BgpMessage> {
    let mut context = BgpParsingContext::asn2_default();
    context.set_asn4(true);
    let mut reader = SliceReader::new(bytes);
    BgpMessage::parse(&mut reader, &mut context).ok()
}

/// The reserved bits of flags mean nothing, and they don't keep them.
fn ours(bytes: &[u8]) -> Option<Message> {
    let (frame, _) = Frame::split(bytes, true).ok()??;
    let mut message = decode(&frame, &CODEC).ok()?;
    if let Message::Update(update) = &mut message {
        update.attributes.iter_mut().for_each(|attribute| attribute.flags &= 0xf0);
    }
    Some(message)
}

/// Read by them, written by them, read by us.
fn by_way_of_them(theirs: &BgpMessage) -> Option<Message> {
    let mut out = Vec::new();
    theirs.write(&mut out).ok()?;
    ours(&out)
}

#[test]
fn what_we_write_it_reads_and_means_the_same_by() {
    let messages = [our_updates(&mut Rng(1), 500), our_others()].concat();
    assert!(messages.len() > 1000);
    for bytes in messages {
        let read = theirs(&bytes).unwrap_or_else(|| panic!("refused: {bytes:02x?}"));
        assert_eq!(by_way_of_them(&read), ours(&bytes), "{bytes:02x?}");
    }
}

/// Changes a byte or two of an UPDATE, or cuts it.
fn mutated(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let seed = &seeds[rng.below(seeds.len())];
    let mut body = seed[19..].to_vec();
    for _ in 0..=rng.below(2) {
        let at = rng.below(body.len());
        match rng.below(4) {
            0 => body.truncate(body.len().saturating_sub(rng.below(3))),
            1 if !body.is_empty() => body[at] = rng.next() as u8,
            2 if !body.is_empty() => body[at] ^= 1 << rng.below(8),
            _ if !body.is_empty() => body[at] = body[at].wrapping_add(1),
            _ => {}
        }
    }
    message(2, &body)
}

/// Why they may read what we find wrong: rules that are not theirs.
fn known(fault: &Fault) -> bool {
    match fault {
        // Next hops that no router has, AS 0 (RFC 7607), missing and repeated attributes are for others to judge, there.
        Fault::NextHop | Fault::AsPath | Fault::Malformed(_) | Fault::Missing(_) | Fault::Duplicate(_) => true,
        // AS4_PATH between speakers of four octets.
        Fault::Unexpected(code) => matches!(code, 17 | 18),
        // It doesn't look at the flags of AS4_AGGREGATOR.
        Fault::Flags { attribute: 18, .. } => true,
        // It takes empty lists, and an ORIGINATOR_ID that goes on.
        Fault::Length { attribute, length } => *length == 0 || *attribute == 9,
        _ => false,
    }
}

#[test]
fn what_both_read_of_a_changed_update_is_the_same() {
    let updates = |messages: Vec<Vec<u8>>| messages.into_iter().filter(|bytes| bytes[18] == MessageType::Update.code());
    let seeds: Vec<Vec<u8>> = updates(vectors())
        .chain(corpus())
        .chain(our_updates(&mut Rng(2), 30))
        .filter(|bytes| bytes.len() < 600)
        .collect();
    let mut rng = Rng(3);
    let (mut both, mut only_we, mut only_they, mut neither) = (0, 0, 0, 0);
    let mut unknown = BTreeSet::new();
    for _ in 0..cases() {
        let bytes = mutated(&seeds, &mut rng);
        match (ours(&bytes), theirs(&bytes)) {
            (Some(Message::Update(update)), Some(read)) if update.faults.is_empty() => {
                if !foreign(&update) {
                    let again = by_way_of_them(&read);
                    assert_eq!(again, Some(Message::Update(update)), "{bytes:02x?}");
                }
                both += 1;
            }
            (Some(Message::Update(update)), Some(_)) => {
                unknown.extend(update.faults.iter().filter(|fault| !known(fault)).map(|fault| fault.to_string()));
                only_they += 1;
            }
            (Some(_), None) => only_we += 1,
            (None, Some(_)) => only_they += 1,
            (None, None) => neither += 1,
            (Some(other), Some(_)) => panic!("{other:?}"),
        }
    }
    assert_eq!(unknown, BTreeSet::new(), "they read what we find wrong");
    println!("both {both}, only we {only_we}, only they {only_they}, neither {neither}");
    assert!(both > cases() / 10 && neither > 0);
}

/// Whether it has an attribute that we keep as bytes and they may write in another form; or extended communities, of
/// which it writes some kinds (0009) as others.
fn foreign(update: &Update) -> bool {
    use holdfast_bgp::wire::AttributeValue as V;
    update.attributes.iter().any(|attribute| {
        let value = &attribute.value;
        matches!(value, V::Other { .. } | V::MpReachOther { .. } | V::MpUnreachOther { .. } | V::ExtendedCommunities(_))
    })
}

fn cases() -> u32 {
    let times = std::env::var("HOLDFAST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    200_000 * times
}

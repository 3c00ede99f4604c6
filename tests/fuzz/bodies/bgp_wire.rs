//! What the fuzz targets of BGP's wire format and the replay of their corpora do with an input. Panics if something that
//! must hold doesn't. The first byte of an input is what was negotiated (see [`codec`]); `header` has a stream after it,
//! the others the body of a message.

use holdfast_bgp::types::Families;
use holdfast_bgp::wire::update::inspect;
use holdfast_bgp::wire::{
    Codec, Description, Error, Frame, Framer, MAX_LEN, Message, Notification, Open, Reaction, RefreshKind, Update,
    decode,
};

/// What was negotiated: one bit each.
fn codec(settings: u8) -> Codec {
    let bit = |at: u8| settings >> at & 1 == 1;
    Codec {
        four_octet_as: !bit(0),
        extended_message: !bit(1),
        extended_next_hop: !bit(2),
        families: Families { ipv4: !bit(3), ipv6: !bit(4) },
        internal: !bit(5),
    }
}

/// A TCP stream, in pieces whose lengths the settings choose.
pub(crate) fn header(data: &[u8]) {
    let Some((settings, stream)) = data.split_first() else { return };
    let mut framer = Framer::new();
    framer.set_extended(settings & 1 == 1);
    let mut whole = stream;
    for mut piece in stream.chunks(usize::from(settings >> 1) + 1) {
        loop {
            // Cut from pieces or from the whole, the messages are the same.
            let expected = Frame::split(whole, settings & 1 == 1);
            match framer.next(&mut piece) {
                Ok(Some(frame)) => {
                    let Ok(Some((same, rest))) = expected else { panic!("{frame:?}") };
                    assert_eq!(frame, same);
                    whole = rest;
                }
                Ok(None) => {
                    assert!(piece.is_empty());
                    break;
                }
                Err(error) => {
                    assert_eq!(expected, Err(error));
                    return;
                }
            }
        }
        assert!(framer.pending() <= whole.len());
    }
}

/// A message of a kind with this body, as long as it may be.
fn framed(kind: u8, data: &[u8]) {
    let Some((settings, body)) = data.split_first() else { return };
    let Ok(length) = u16::try_from(19 + body.len()) else { return };
    let bytes = [&[0xff; 16][..], &length.to_be_bytes(), &[kind], body].concat();
    any(&bytes, *settings);
}

/// An OPEN's body.
pub(crate) fn open(data: &[u8]) {
    framed(1, data);
}

/// An UPDATE's body.
pub(crate) fn update(data: &[u8]) {
    framed(2, data);
}

/// A NOTIFICATION's body.
pub(crate) fn notification(data: &[u8]) {
    framed(3, data);
}

/// A ROUTE-REFRESH's body.
pub(crate) fn refresh(data: &[u8]) {
    framed(5, data);
}

/// A message, through all that reads one; whether it was read.
pub(crate) fn any(bytes: &[u8], settings: u8) -> bool {
    let codec = codec(settings);
    let Ok(Some((frame, rest))) = Frame::split(bytes, true) else { return false };
    assert!(rest.is_empty());
    let decoded = decode(&frame, &codec);
    if settings & 0x40 != 0 {
        let words = Description::of(&frame, &Codec::guess(&frame)).to_string();
        assert!(words.chars().all(|c| c == '\n' || !c.is_control()), "{words}");
    }
    if let Err(error) = &decoded {
        refused(error);
    }
    match decoded {
        Ok(Message::Open(open)) => check_open(&open),
        Ok(Message::Update(update)) => check_update(&frame, &codec, &update),
        Ok(Message::Notification(notification)) => check_notification(&notification),
        Ok(Message::RouteRefresh(refresh)) => {
            let mut out = Vec::new();
            refresh.encode(&mut out);
            // What follows the four bytes is kept of none, and may follow only where nothing depends on it.
            let (kept, tail) = bytes.split_at(23);
            assert_eq!(out[18..], kept[18..]);
            assert!(tail.is_empty() || !matches!(refresh.kind, RefreshKind::Begin | RefreshKind::End));
        }
        Ok(Message::Keepalive) => {}
        Err(Error::RouteRefresh(_)) => {
            assert!(matches!(frame.body, [_, _, 1 | 2, _, _, ..]), "{frame:?}");
            return false;
        }
        Err(Error::Update(error)) => {
            assert_eq!(inspect(frame.body, &codec), Err(error));
            return false;
        }
        Err(_) => return false,
    }
    true
}

/// What is answered is a message.
fn refused(error: &Error) {
    let Some(answer) = error.notification() else { return };
    assert!(answer.code_name().is_some() && !error.to_string().is_empty());
    let mut out = Vec::new();
    answer.encode(&mut out);
    assert!(out.len() <= MAX_LEN);
    let (frame, _) = Frame::split(&out, false).expect("a header").expect("a whole message");
    assert_eq!(decode(&frame, &Codec::LENIENT), Ok(Message::Notification(answer)));
}

fn check_open(open: &Open) {
    let mut out = Vec::new();
    open.encode(&mut out);
    let (frame, _) = Frame::split(&out, false).expect("a header").expect("a whole message");
    let again = Open::decode(frame.body).expect("what we write can be read");
    // Some thousands of capabilities in the extended form don't fit into a message that we'd write.
    if open.capabilities.len() == again.capabilities.len() {
        assert_eq!(again, *open);
    }
    assert_eq!((again.asn, again.hold_time_s, again.router_id), (open.asn, open.hold_time_s, open.router_id));
}

fn check_notification(notification: &Notification) {
    let words = notification.to_string();
    assert!(words.chars().all(|c| !c.is_control()), "{words}");
    let mut out = Vec::new();
    notification.encode(&mut out);
    assert!(out.len() <= MAX_LEN);
    assert!(notification.clone().into_hard_reset().is_hard_reset());
}

fn check_update(frame: &Frame<'_>, codec: &Codec, update: &Update) {
    let inspected = inspect(frame.body, codec).expect("both readers agree");
    assert_eq!(inspected.reaction(), update.reaction());
    assert_ne!(update.reaction(), Some(Reaction::Reset));
    assert_eq!(inspected.announced.total() as usize, update.all_announced().count());
    assert_eq!(inspected.withdrawn.total() as usize, update.all_withdrawn().count());
    assert_eq!(inspected.end_of_rib.is_some(), update.end_of_rib().is_some());
    // Written and read again it is the same, but for what was wrong with it.
    let mut out = Vec::new();
    let mut wide = *codec;
    wide.extended_message = true;
    if update.encode(&wide, &mut out).is_err() {
        // A next hop written twice grows by nothing; a message that was full may lose its room for flags only.
        assert!(frame.bytes.len() > 60_000);
        return;
    }
    let (again, _) = Frame::split(&out, true).expect("a header").expect("a whole message");
    match Update::decode(again.body, codec) {
        Ok(again) => {
            assert_eq!(again.attributes, update.attributes);
            assert_eq!((&again.withdrawn, &again.announced), (&update.withdrawn, &update.announced));
        }
        // What was wrong was left out, and so may be all that was announced.
        Err(_) => assert!(!update.faults.is_empty()),
    }
    if update.faults.is_empty() {
        assert_eq!(inspect(again.body, codec).as_ref(), Ok(&inspected));
    }
    let _ = update.as_path();
}

//! `holdfast bgp decode`: BGP messages out of hex text or a capture, in words.
//!
//! Our own decoder says what a message is. An UPDATE in which it finds nothing wrong is shown to another one as well, and
//! where the two differ that is told.

mod capture;
mod second;
mod streams;

use super::{exit, render};
use crate::config::file;
use holdfast_bgp::wire::{Codec, Description, Frame, HeaderError, MessageType, Update};
use std::io::Read as _;
use std::path::Path;
use streams::Streams;

/// What is looked at of a file or of standard input.
const INPUT_MAX: usize = 256 << 20;
/// Bytes of a message's header.
const HEADER: usize = 19;

/// Decodes `hex`, else the file, else standard input. `port`: where BGP is spoken in a capture.
pub(super) fn run(path: Option<&Path>, hex: Option<&str>, port: u16) -> u8 {
    let bytes = match (hex, path) {
        (Some(hex), _) => Ok(hex.as_bytes().to_vec()),
        (None, Some(path)) if path != Path::new("-") => file::read_regular(path, INPUT_MAX)
            .map_err(|error| format!("{}: {}", path.display(), file::in_words(&error))),
        (None, _) => stdin(),
    };
    let (text, whole) = match bytes.and_then(|bytes| decode(&bytes, port)) {
        Ok(decoded) => decoded,
        Err(why) => {
            eprintln!("holdfast: {why}");
            return exit::FAILED;
        }
    };
    render::out(&render::inert(&text));
    if whole { exit::OK } else { exit::FAILED }
}

fn stdin() -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(INPUT_MAX).unwrap_or(u64::MAX);
    let read = std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes);
    match read {
        Ok(_) if bytes.len() > INPUT_MAX => Err(format!("standard input is longer than {INPUT_MAX} bytes")),
        Ok(_) => Ok(bytes),
        Err(error) => Err(format!("standard input: {error}")),
    }
}

/// What is printed, and whether all of it was messages that nobody would refuse.
fn decode(bytes: &[u8], port: u16) -> Result<(String, bool), String> {
    if !capture::is_one(bytes) {
        return Ok(messages(&hex(bytes)?));
    }
    let mut streams = Streams::new(port);
    capture::packets(bytes, |at, link, packet| streams.packet(at, link, packet))?;
    let (text, whole) = streams.finish();
    if text.is_empty() {
        return Err(format!("there is no BGP on port {port} in this capture; --port names another one"));
    }
    Ok((text, whole))
}

/// `ff:ff …`, with blanks and lines as you like; what follows a `#` is a comment.
fn hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut digits = Vec::new();
    for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        for byte in line.strip_prefix(b"0x").unwrap_or(line) {
            match char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()) {
                Some(digit) => digits.push(digit),
                None if byte.is_ascii_whitespace() || *byte == b':' => {}
                None => return Err(format!("line {} is neither hexadecimal digits nor part of a capture", n + 1)),
            }
        }
    }
    if digits.is_empty() {
        return Err("there is nothing to decode".to_owned());
    }
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("the number of hexadecimal digits is odd".to_owned());
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// One message after the other.
fn messages(bytes: &[u8]) -> (String, bool) {
    let (mut text, mut whole) = (String::new(), true);
    let mut rest = bytes;
    while !rest.is_empty() {
        match Frame::split(rest, true) {
            Ok(Some((frame, after))) => {
                let (message, fine) = message(&frame);
                text.push_str(&message);
                whole &= fine;
                rest = after;
            }
            Ok(None) => {
                text.push_str(&format!("the message is cut off after {} bytes\n", rest.len()));
                return (text, false);
            }
            Err(error) => {
                text.push_str(&refused(&error));
                return (text, false);
            }
        }
    }
    (text, whole)
}

/// Behind it nobody knows where a message begins.
fn refused(error: &HeaderError) -> String {
    format!("not a message: {error}\n  answer: {}\n", error.notification())
}

/// One message in words, and whether it's one that nobody would refuse.
fn message(frame: &Frame<'_>) -> (String, bool) {
    let codec = Codec::guess(frame);
    let mut text = format!("{}\n", Description::of(frame, &codec));
    let fine = match holdfast_bgp::wire::decode(frame, &codec) {
        Ok(holdfast_bgp::wire::Message::Update(update)) => {
            let opinion = second_opinion(frame, &update, &codec);
            text.push_str(&opinion);
            update.faults.is_empty()
        }
        Ok(_) => true,
        Err(_) => false,
    };
    (text, fine)
}

fn second_opinion(frame: &Frame<'_>, update: &Update, codec: &Codec) -> String {
    debug_assert_eq!(frame.kind, MessageType::Update, "only they have one");
    match second::opinion(frame.body, update, codec) {
        second::Opinion::Same => "  zettabgp reads the same\n".to_owned(),
        second::Opinion::NotAsked(why) => format!("  zettabgp not asked: {why}\n"),
        second::Opinion::Failed(why) => format!("  zettabgp can't read it: {why}\n"),
        second::Opinion::Differs(all) => {
            all.iter().map(|difference| format!("  zettabgp differs: {difference}\n")).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An UPDATE as our own writer makes it: 192.0.2.10/32, AS path 65010 65010, MED 7, community 65000:100.
    pub(super) const UPDATE: &str = "ffffffffffffffffffffffffffffffff 0042 02 0000 0026 \
        40010100 40020a02020000fdf20000fdf2 4003040a00000b 80040400000007 c00804fde80064 20c000020a";

    #[test]
    fn an_update_is_told_in_words_and_both_decoders_agree() {
        let (text, whole) = decode(UPDATE.as_bytes(), 179).expect("hex");
        assert!(whole, "{text}");
        for part in ["UPDATE, 66 bytes", "192.0.2.10/32", "65010 65010", "65000:100", "zettabgp reads the same"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn several_messages_one_behind_the_other_are_all_told() {
        let keepalive = "ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff 00 13 04";
        let text = format!("# two of them\n{keepalive}\n0x{}\n", keepalive.replace(' ', ":"));
        assert_eq!(decode(text.as_bytes(), 179), Ok(("KEEPALIVE, 19 bytes\nKEEPALIVE, 19 bytes\n".to_owned(), true)));
    }

    #[test]
    fn what_is_cut_off_or_no_message_is_told_as_that() {
        let (text, whole) = decode(&UPDATE.as_bytes()[..60], 179).expect("hex");
        assert!(!whole && text.contains("cut off after"), "{text}");
        let (text, whole) = decode(b"00112233445566778899aabbccddeeff001304", 179).expect("hex");
        assert!(!whole && text.contains("not a message"), "{text}");
        for (bytes, why) in
            [(&b"hello"[..], "line 1 is neither"), (b"# only that", "nothing to decode"), (b"fff", "is odd")]
        {
            let refused = decode(bytes, 179).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_damaged_update_is_never_shown_to_the_other_decoder() {
        // The AS path has one byte too many: the other decoder would fill the memory.
        let damaged = UPDATE
            .replace("0042", "0043")
            .replace("0026", "0027")
            .replace("40020a02020000fdf20000fdf2", "40020b02020000fdf20000fdf202");
        let (text, whole) = decode(damaged.as_bytes(), 179).expect("hex");
        assert!(!whole && text.contains("not asked: ours finds faults in it"), "{text}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, 179);
        }

        #[test]
        fn no_damaged_message_makes_it_panic(at in 0..132_usize, digit in 0..16_u32) {
            let mut text: Vec<char> = UPDATE.chars().filter(char::is_ascii_hexdigit).collect();
            text[at] = char::from_digit(digit, 16).expect("hexadecimal");
            let text: String = text.into_iter().collect();
            prop_assert!(decode(text.as_bytes(), 179).is_ok());
        }
    }
}

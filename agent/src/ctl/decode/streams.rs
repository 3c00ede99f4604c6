//! From packets to the two byte streams of each TCP connection, and from these to messages.

use super::capture::Link;
use super::{HEADER, message, refused};
use holdfast_bgp::wire::Frame;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Connections whose streams are followed; more are left out.
const STREAMS_MAX: usize = 4096;
/// Segments of a stream that wait for one before them. Full: what is missing was not captured.
const WAITING_MAX: usize = 1024;

/// All streams of a capture.
pub(super) struct Streams {
    port: u16,
    first: Option<Duration>,
    streams: HashMap<(SocketAddr, SocketAddr), Stream>,
    text: String,
    whole: bool,
}

/// One direction of a connection.
#[derive(Default)]
struct Stream {
    /// The number of the byte that comes next, once one is known.
    next: Option<u32>,
    /// By sequence number.
    waiting: BTreeMap<u32, Vec<u8>>,
    /// What isn't a whole message yet.
    bytes: Vec<u8>,
    /// Begun in the middle of it, or something is missing: up to the next marker.
    lost: bool,
}

struct Segment<'p> {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    syn: bool,
    payload: &'p [u8],
}

impl Streams {
    pub(super) fn new(port: u16) -> Self {
        Self { port, first: None, streams: HashMap::new(), text: String::new(), whole: true }
    }

    /// What was said, and whether all of it were messages that nobody would refuse.
    pub(super) fn finish(self) -> (String, bool) {
        (self.text, self.whole)
    }

    pub(super) fn packet(&mut self, at: Duration, link: Link, packet: &[u8]) {
        let first = *self.first.get_or_insert(at);
        let Some(segment) = ip(link, packet).and_then(tcp) else { return };
        if segment.from.port() != self.port && segment.to.port() != self.port {
            return;
        }
        let key = (segment.from, segment.to);
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&key) {
            return;
        }
        let stream = self.streams.entry(key).or_default();
        stream.take(&segment);
        let head = format!("{:.6} {} > {}: ", at.saturating_sub(first).as_secs_f64(), segment.from, segment.to);
        self.whole &= stream.messages(&head, &mut self.text);
    }
}

impl Stream {
    fn take(&mut self, segment: &Segment<'_>) {
        if segment.syn {
            *self = Self { next: Some(segment.sequence.wrapping_add(1)), ..Self::default() };
            return;
        }
        if segment.payload.is_empty() {
            return;
        }
        let next = *self.next.get_or_insert_with(|| {
            self.lost = true;
            segment.sequence
        });
        // Before it, as sequence numbers go: sent again.
        let ahead = segment.sequence.wrapping_sub(next);
        if ahead > u32::MAX / 2 {
            let known = usize::try_from(next.wrapping_sub(segment.sequence)).unwrap_or(usize::MAX);
            if let Some(fresh) = segment.payload.get(known..).filter(|fresh| !fresh.is_empty()) {
                self.append(fresh);
            }
        } else {
            self.waiting.insert(segment.sequence, segment.payload.to_vec());
        }
        self.in_order();
        if self.waiting.len() > WAITING_MAX {
            // It wasn't captured.
            let first = self.waiting.keys().copied().min_by_key(|sequence| sequence.wrapping_sub(next));
            self.next = first;
            self.bytes.clear();
            self.lost = true;
            self.in_order();
        }
    }

    fn in_order(&mut self) {
        while let Some(bytes) = self.next.and_then(|next| self.waiting.remove(&next)) {
            self.append(&bytes);
        }
        // What begins before the next byte and reaches beyond it.
        let Some(next) = self.next else { return };
        let behind = |sequence: &u32| next.wrapping_sub(*sequence) < u32::MAX / 2;
        let Some(sequence) = self.waiting.keys().copied().find(behind) else { return };
        let Some(bytes) = self.waiting.remove(&sequence) else { return };
        let known = usize::try_from(next.wrapping_sub(sequence)).unwrap_or(usize::MAX);
        if let Some(fresh) = bytes.get(known..) {
            self.append(fresh);
        }
        self.in_order();
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len()).unwrap_or_default();
        self.next = self.next.map(|next| next.wrapping_add(len));
    }

    /// Writes what is whole. `false`: somebody would refuse something of it.
    fn messages(&mut self, head: &str, text: &mut String) -> bool {
        let mut fine = true;
        let mut done = 0;
        while let Some(rest) = self.bytes.get(done..).filter(|rest| !rest.is_empty()) {
            if self.lost {
                let Some(at) = rest.windows(16).position(|window| window == [0xff; 16]) else {
                    done = self.bytes.len().saturating_sub(15).max(done);
                    break;
                };
                done += at;
                self.lost = false;
                continue;
            }
            match Frame::split(rest, true) {
                Ok(Some((frame, _))) => {
                    let (said, good) = message(&frame);
                    let _ = write!(text, "{head}{said}");
                    fine &= good;
                    done += frame.bytes.len();
                }
                Ok(None) => break,
                Err(error) => {
                    let _ = write!(text, "{head}{}", refused(&error));
                    fine = false;
                    done += HEADER.min(rest.len());
                    self.lost = true;
                }
            }
        }
        self.bytes.drain(..done.min(self.bytes.len()));
        fine
    }
}

/// The IP packet in a frame.
fn ip(link: Link, frame: &[u8]) -> Option<&[u8]> {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;
    let kind_at = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    match link {
        Link::Raw => Some(frame),
        Link::Null => frame.get(4..),
        Link::Cooked => matches!(kind_at(14)?, IPV4 | IPV6).then(|| frame.get(16..)).flatten(),
        Link::Cooked2 => matches!(kind_at(0)?, IPV4 | IPV6).then(|| frame.get(20..)).flatten(),
        Link::Ethernet => {
            let mut at = 12;
            // Two tags at most.
            for _ in 0..2 {
                if matches!(kind_at(at)?, 0x8100 | 0x88a8) {
                    at += 4;
                }
            }
            matches!(kind_at(at)?, IPV4 | IPV6).then(|| frame.get(at + 2..)).flatten()
        }
        Link::Other => None,
    }
}

/// A TCP segment of an unfragmented packet.
fn tcp(packet: &[u8]) -> Option<Segment<'_>> {
    let (from, to, segment): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 0xf) * 4;
            let total = usize::from(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?));
            let fragment = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?) & 0x3fff;
            if *packet.get(9)? != 6 || fragment != 0 {
                return None;
            }
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            // Behind it an Ethernet frame may be padded.
            (address(12)?, address(16)?, packet.get(header..total.min(packet.len()))?)
        }
        6 => {
            if *packet.get(6)? != 6 {
                return None;
            }
            let len = usize::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?));
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            (address(8)?, address(24)?, packet.get(40..(40 + len).min(packet.len()))?)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*segment.get(at..)?.first_chunk()?));
    let payload = segment.get(usize::from(segment.get(12)? >> 4) * 4..)?;
    Some(Segment {
        from: SocketAddr::new(from, port(0)?),
        to: SocketAddr::new(to, port(2)?),
        sequence: u32::from_be_bytes(*segment.get(4..)?.first_chunk()?),
        syn: segment.get(13)? & 0x02 != 0,
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use proptest::prelude::*;

    const KEEPALIVE: [u8; 19] =
        [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 19, 4];

    fn packet(sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0xc0, 0, 0, 179];
        tcp.extend(sequence.to_be_bytes());
        tcp.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        tcp.extend(payload);
        let len = u16::try_from(tcp.len() + 20).expect("short").to_be_bytes();
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 1, 6, 0, 0, 10, 0, 0, 11, 10, 0, 0, 1]);
        frame.extend(tcp);
        frame
    }

    fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
        let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]);
        for (n, packet) in (0_u32..).zip(packets) {
            let len = u32::try_from(packet.len()).expect("short");
            for word in [7, n * 1000, len, len] {
                file.extend(word.to_le_bytes());
            }
            file.extend(packet);
        }
        file
    }

    fn pcapng(packets: &[Vec<u8>]) -> Vec<u8> {
        let block = |kind: u32, body: &[u8]| {
            let mut padded = body.to_vec();
            padded.resize(body.len().next_multiple_of(4), 0);
            let len = u32::try_from(padded.len() + 12).expect("short").to_be_bytes();
            [&kind.to_be_bytes()[..], &len, &padded, &len].concat()
        };
        let mut file =
            block(0x0a0d_0d0a, &[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        // Ethernet; time in nanoseconds.
        file.extend(block(1, &[0, 1, 0, 0, 0, 0, 0xff, 0xff, 0, 9, 0, 1, 9, 0, 0, 0]));
        for (n, packet) in (0_u32..).zip(packets) {
            let len = u32::try_from(packet.len()).expect("short");
            let head: Vec<u8> =
                [0, 0, n * 1_000_000, len, len].iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
            file.extend(block(6, &[head, packet.clone()].concat()));
        }
        file
    }

    #[test]
    fn messages_are_put_together_whatever_the_segments_their_order_and_the_file() {
        let two = [KEEPALIVE, KEEPALIVE].concat();
        let packets = [
            packet(99, 0x02, &[]),
            packet(100, 0x10, &two[..7]),
            packet(125, 0x10, &two[25..]),
            // Sent again, and further than before.
            packet(100, 0x10, &two[..25]),
        ];
        for file in [pcap(&packets), pcapng(&packets)] {
            let (text, whole) = decode(&file, 179).expect("a capture");
            let line = "0.003000 10.0.0.11:49152 > 10.0.0.1:179: KEEPALIVE, 19 bytes\n";
            assert_eq!((text, whole), (line.repeat(2), true));
        }
    }

    #[test]
    fn what_begins_in_the_middle_of_a_message_is_taken_up_at_the_next() {
        let middle = [&KEEPALIVE[16..], &KEEPALIVE[..]].concat();
        let (text, whole) = decode(&pcap(&[packet(5, 0x18, &middle)]), 179).expect("a capture");
        assert!(whole && text.ends_with("KEEPALIVE, 19 bytes\n"), "{text}");
    }

    #[test]
    fn another_port_is_named_or_there_is_nothing() {
        let file = pcap(&[packet(5, 0x18, &KEEPALIVE)]);
        assert!(decode(&file, 1179).expect_err("nothing").contains("no BGP on port 1179"));
        assert!(decode(&file, 49_152).is_ok());
    }

    proptest! {
        #[test]
        fn no_damage_to_a_capture_makes_it_panic(at in 0..400_usize, byte: u8, ng: bool, cut in 0..400_usize) {
            let packets = [packet(99, 0x02, &[]), packet(100, 0x10, &KEEPALIVE), packet(140, 0x10, &KEEPALIVE)];
            let mut file = if ng { pcapng(&packets) } else { pcap(&packets) };
            file.truncate(cut.max(24));
            if let Some(at) = file.get_mut(at) {
                *at = byte;
            }
            let _ = decode(&file, 179);
        }

        #[test]
        fn no_order_of_segments_makes_it_panic(parts in prop::collection::vec((any::<u8>(), 0..38_usize, 0..38_usize), 0..12)) {
            let two = [KEEPALIVE, KEEPALIVE].concat();
            let packets: Vec<Vec<u8>> = parts
                .iter()
                .map(|(far, a, b)| packet(100 + u32::from(*far), 0x10, &two[*a.min(b)..*a.max(b)]))
                .collect();
            let _ = decode(&pcap(&packets), 179);
        }
    }
}

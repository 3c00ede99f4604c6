//! Bytes that nobody should send: messages of all kinds, changed at random, read by everything that reads. None may panic,
//! and what can be read must hold together. `HOLDFAST_MUTATIONS=10000000` is what `make full` runs, optimised.

use holdfast_bgp::types::{Asn, Family, RouterId};
use holdfast_bgp::wire::{Capability, Framer, MessageType, Notification, Open};

use super::corpus::bgp_wire;
use super::{message, vectors};

fn cases() -> u64 {
    std::env::var("HOLDFAST_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(40_000)
}

/// SplitMix64: the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// What is changed: other people's messages, the corpus, and some of ours.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = vectors::vectors().into_iter().map(|vector| vector.bytes).collect();
    seeds.extend(super::corpus::messages());
    let open = Open {
        asn: Asn(4_200_000_001),
        hold_time_s: 9,
        router_id: RouterId::new([10, 0, 0, 1].into()).unwrap(),
        capabilities: vec![
            Capability::family(Family::Ipv6),
            Capability::ipv4_over_ipv6(),
            Capability::FourOctetAs(Asn(4_200_000_001)),
            Capability::Other { code: 0xf3, value: vec![0; 250] },
        ],
    };
    let mut out = Vec::new();
    open.encode(&mut out);
    seeds.push(out);
    seeds
}

/// Some of: a byte set, a bit flipped, a field of two octets set, a piece cut out, doubled, or taken from another seed.
fn mutated(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let seed = &seeds[rng.below(seeds.len())];
    let kind = seed[18];
    let mut body = seed[19..].to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(body.len());
        match rng.below(8) {
            0 | 1 if !body.is_empty() => body[at] = [0, 1, 0x7f, 0x80, 0xff, rng.next() as u8][rng.below(6)],
            2 if !body.is_empty() => body[at] ^= 1 << rng.below(8),
            3 if !body.is_empty() => body[at] = body[at].wrapping_add(1).wrapping_sub(2 * rng.below(2) as u8),
            4 => {
                let end = at + rng.below(body.len().saturating_sub(at).min(32) + 1);
                body.drain(at..end.min(body.len()));
            }
            5 => {
                let end = (at + rng.below(32)).min(body.len());
                let piece = body[at..end].to_vec();
                body.splice(at..at, piece);
            }
            6 => {
                let other = &seeds[rng.below(seeds.len())][19..];
                let from = rng.below(other.len());
                let to = (from + rng.below(32)).min(other.len());
                body.splice(at..at, other[from..to].iter().copied());
            }
            _ => body.truncate(rng.below(body.len() + 1)),
        }
    }
    // The lengths of an UPDATE's parts mostly right: else nothing behind them is ever reached.
    if kind == 2 && body.len() >= 4 && rng.below(4) != 0 {
        let withdrawn = usize::from(u16::from_be_bytes([body[0], body[1]])).min(body.len() - 4);
        body[..2].copy_from_slice(&(withdrawn as u16).to_be_bytes());
        if rng.below(2) == 0 {
            let left = body.len() - 4 - withdrawn;
            let attributes = left - left.min(rng.below(6));
            body[2 + withdrawn..4 + withdrawn].copy_from_slice(&(attributes as u16).to_be_bytes());
        }
    }
    body.truncate(4077);
    message(kind, &body)
}

#[test]
fn no_mutated_message_makes_anything_panic() {
    let seeds = seeds();
    let mut rng = Rng(20_260_101);
    let mut reached = [0_u64; 2];
    for _ in 0..cases() {
        let bytes = mutated(&seeds, &mut rng);
        reached[usize::from(bgp_wire::any(&bytes, rng.next() as u8))] += 1;
    }
    let [refused, read] = reached;
    println!("{read} of {} read, the others refused", refused + read);
    assert!(refused > cases() / 20 && read > cases() / 20, "{refused} refused, {read} read: both worlds are seen");
}

#[test]
fn no_stream_of_random_bytes_makes_the_framer_panic_or_grow() {
    let mut rng = Rng(7);
    for _ in 0..20_000 {
        let mut framer = Framer::new();
        framer.set_extended(rng.below(2) == 0);
        for _ in 0..8 {
            let mut piece: Vec<u8> = (0..rng.below(64)).map(|_| rng.next() as u8).collect();
            if rng.below(2) == 0 {
                piece.splice(0..0, [0xff; 16].into_iter().chain([0, rng.below(64) as u8, rng.below(7) as u8]));
            }
            let mut input = &piece[..];
            loop {
                match framer.next(&mut input) {
                    Ok(Some(frame)) => assert!(frame.bytes.len() >= 19),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(error.notification().code, 1);
                        break;
                    }
                }
            }
            assert!(framer.pending() < 65_535);
        }
    }
}

#[test]
fn every_message_cut_at_every_byte_is_read_or_refused() {
    for seed in seeds() {
        for end in 19..seed.len() {
            let bytes = message(seed[18], &seed[19..end]);
            bgp_wire::any(&bytes, 0);
            bgp_wire::any(&bytes, 0xff);
        }
    }
}

#[test]
fn a_peer_cant_make_an_error_answer_longer_than_a_message() {
    let mut out = Vec::new();
    for kind in MessageType::ALL {
        for fill in [0, 0xff, 0x40, 0xc0] {
            let bytes = message(kind.code(), &vec![fill; 60_000]);
            let error = match holdfast_bgp::wire::Frame::split(&bytes, true) {
                Ok(Some((frame, _))) => holdfast_bgp::wire::decode(&frame, &super::EBGP).err(),
                Ok(None) => None,
                Err(error) => Some(error.into()),
            };
            let Some(answer) = error.and_then(|error| error.notification()) else { continue };
            out.clear();
            answer.encode(&mut out);
            assert!(out.len() <= 4096);
            assert!(Notification::decode(&out[19..]).is_ok());
        }
    }
}

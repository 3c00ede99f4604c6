//! Datagrams at the lanes' port that nobody may act upon, made of those that the peer really sends: the same again later,
//! cut, with a bit flipped, and of another version.

use crate::clock::{SECOND, now};
use crate::watch::wire::open;
use anyhow::Result;

/// The lanes' port, as the lab configures it.
const PORT: u16 = 7713;
/// Datagrams that are taken as models.
const MODELS: usize = 50;
/// Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Listens on the cable to the peer, in the namespace of the host that sends, and sends them by it. How many; none, if
/// nothing was to be heard.
///
/// # Errors
/// No packet socket.
pub(super) fn send() -> Result<u64> {
    let (interface, mut tx, mut rx) = open("eth2")?;
    let mine = interface.mac.map(|m| m.octets());
    let (mut models, limit) = (Vec::new(), now() + 5 * SECOND);
    while models.len() < MODELS && now() < limit {
        let Ok(frame) = rx.next() else { continue };
        let from_here = frame.get(6..12).is_some_and(|source| mine.is_some_and(|m| source == m));
        if from_here && is_of_the_lanes(frame) {
            models.push(frame.to_vec());
        }
    }
    let mut sent = 0;
    let strays = models.iter().enumerate().flat_map(|(n, model)| {
        let body = model.len() - HEADERS;
        let cut = body * (n % 9 + 1) / 10;
        let flipped = (n * 7919) % (body * 8);
        [
            with(model, |_| {}),
            with(model, |b| b.truncate(cut)),
            with(model, |b| b[flipped / 8] ^= 1 << (flipped % 8)),
            {
                // The first byte is the form of the datagram, with its version.
                with(model, |b| b[0] = b[0].wrapping_add(16))
            },
        ]
    });
    for frame in strays {
        if tx.send_to(&frame, None).is_some_and(|r| r.is_ok()) {
            sent += 1;
        }
    }
    Ok(sent)
}

fn is_of_the_lanes(frame: &[u8]) -> bool {
    // IPv4 without options, UDP, to the port, with a body.
    frame.len() > HEADERS + 8
        && frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && frame[23] == 17
        && frame[36..38] == PORT.to_be_bytes()
}

/// The same with another body: lengths and checksums are right.
fn with(model: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = model[HEADERS..].to_vec();
    change(&mut body);
    let mut frame = model[..HEADERS].to_vec();
    let udp = (body.len() + 8) as u16;
    frame[16..18].copy_from_slice(&(udp + 20).to_be_bytes());
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34].chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame[38..40].copy_from_slice(&udp.to_be_bytes());
    frame[40..42].fill(0); // none
    frame.extend(body);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the RFC's own kind: the sum over a right header is all ones.
    fn header_sum(frame: &[u8]) -> u16 {
        let mut sum: u32 = frame[14..34].chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn a_stray_is_a_right_packet_around_another_body() {
        let mut model = vec![0; HEADERS];
        (model[12], model[14], model[22], model[23]) = (8, 0x45, 64, 17);
        model[26..34].copy_from_slice(&[10, 1, 0, 11, 10, 1, 0, 12]);
        model[36..38].copy_from_slice(&PORT.to_be_bytes());
        model.extend([7; 100]);
        assert!(is_of_the_lanes(&model));
        let cut = with(&model, |b| b.truncate(60));
        assert_eq!((cut.len(), header_sum(&cut)), (HEADERS + 60, 0xffff));
        assert_eq!((&cut[16..18], &cut[38..40]), (&[0, 88][..], &[0, 68][..]));
        model[37] += 1;
        assert!(!is_of_the_lanes(&model));
    }
}

//! Which packets a VRRP socket takes: decided in the kernel, so that a packet isn't copied to a socket that it doesn't
//! concern.
//!
//! Classic BPF. The program runs before the socket's queue and sees the IP header at `SKF_NET_OFF`, whatever the family.

use super::{Family, GROUP, GROUP_V6};
use socket2::SockFilter;

/// Takes nothing.
pub(super) const NOTHING: [SockFilter; 1] = [SockFilter::new(RET, 0, 0, 0)];

const LD_WORD: u16 = 0x20;
const LD_BYTE: u16 = 0x30;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const AND: u16 = 0x54;
const RET: u16 = 0x06;
/// The whole packet.
const ALL: u32 = u32::MAX;
/// Where the destination stands in the header.
const DESTINATION_V4: u32 = 16;
const DESTINATION_V6: u32 = 24;
const PACKET_HOST: u32 = 0;

/// What is for the group; or what is for this host alone, by its address and by its frame.
pub(super) fn program(family: Family, multicast: bool) -> Vec<SockFilter> {
    match (family, multicast) {
        (Family::V4, true) => for_group(DESTINATION_V4, &[GROUP.to_bits()]),
        (Family::V6, true) => {
            let group = GROUP_V6.to_bits();
            // The words of the address, the first first.
            for_group(DESTINATION_V6, &[96, 64, 32, 0].map(|shift| (group >> shift) as u32))
        }
        (Family::V4, false) => for_host(DESTINATION_V4, 0xF0, 0xE0),
        (Family::V6, false) => for_host(DESTINATION_V6, 0xFF, 0xFF),
    }
}

fn for_group(at: u32, words: &[u32]) -> Vec<SockFilter> {
    let mut program = Vec::with_capacity(2 * words.len() + 2);
    let tests = u8::try_from(words.len()).expect("four words at most");
    for (i, (word, offset)) in (0..tests).zip(words.iter().zip((at..).step_by(4))) {
        program.push(SockFilter::new(LD_WORD, 0, 0, network(offset)));
        // Another destination: past the remaining tests and the acceptance.
        program.push(SockFilter::new(JEQ, 0, 2 * (tests - 1 - i) + 1, *word));
    }
    program.push(SockFilter::new(RET, 0, 0, ALL));
    program.push(SockFilter::new(RET, 0, 0, 0));
    program
}

/// Multicast addresses are those whose first byte is `class` or more under `mask`.
fn for_host(at: u32, mask: u32, class: u32) -> Vec<SockFilter> {
    vec![
        // A broadcast comes in a frame that isn't for this host alone.
        SockFilter::new(LD_BYTE, 0, 0, (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32),
        SockFilter::new(JEQ, 0, 4, PACKET_HOST),
        SockFilter::new(LD_BYTE, 0, 0, network(at)),
        SockFilter::new(AND, 0, 0, mask),
        SockFilter::new(JGE, 1, 0, class),
        SockFilter::new(RET, 0, 0, ALL),
        SockFilter::new(RET, 0, 0, 0),
    ]
}

fn network(offset: u32) -> u32 {
    (libc::SKF_NET_OFF as u32).wrapping_add(offset)
}

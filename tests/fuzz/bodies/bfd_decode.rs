//! Any bytes to BFD's port, as the first packet and as a later one: a packet or a refusal, never more answers than one
//! packet can ask for, and nothing left that is due.

use holdfast_bfd::{Control, Datagram, Peer, Table, Timers};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The first byte chooses: bit 0 multihop, bit 1 with our discriminator written in, bit 7 a TTL of 255, without which it
/// is bits 2 to 6 as they stand: 0 to 124, of which one hop takes none, and several take those from 4.
/// Returns whether the first of them was taken.
pub(crate) fn run(data: &[u8]) -> bool {
    let Some((how, packet)) = data.split_first() else { return false };
    if let Ok(decoded) = Control::decode(packet) {
        let again = Control::decode(&decoded.encode());
        assert_eq!(again, Ok(decoded), "what decodes encodes to the same");
    }
    // Time is only compared here.
    #[allow(clippy::disallowed_methods)]
    let now = Instant::now();
    let timers = Timers::new(Duration::from_millis(50), 3).expect("in range");
    let mut table = Table::new(u64::from(*how));
    let from = Ipv4Addr::new(192, 0, 2, 1).into();
    let near = table.add(now, Peer::single_hop(from, None), timers);
    let far = table.add(now, Peer::multihop(from, None, 4), timers);
    let multihop = how & 1 != 0;
    let ttl = if how & 0x80 != 0 { 255 } else { how & 0x7c };
    let mut bytes = packet.to_vec();
    if how & 2 != 0
        && let Some(room) = bytes.get_mut(8..12)
    {
        room.copy_from_slice(&(if multihop { far } else { near }).get().to_be_bytes());
    }
    let mut first = false;
    for step in 0..3_u32 {
        let at = now + Duration::from_millis(40) * step;
        let datagram = Datagram { bytes: &bytes, from, to: None, ifindex: 1, ttl, multihop };
        let taken = table.receive(at, &datagram).is_ok();
        first |= taken && step == 0;
        assert!(!taken || ttl >= if multihop { 4 } else { 255 }, "from too far away: {ttl}");
        let mut events = 0;
        while table.poll_event().is_some() {
            events += 1;
        }
        // A change of state and its news, or a Poll of ours and what must come before it; and an answer to a Poll.
        assert!(events <= if taken { 3 } else { 0 });
        table.timer(at);
        while table.poll_event().is_some() {}
        assert!(table.poll_timeout().is_some_and(|next| next > at), "a timer that is due for ever");
    }
    first
}

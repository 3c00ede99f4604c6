//! Any bytes to BFD's port, as the first packet and as a later one: a packet or a refusal, and never more answers than
//! one packet can ask for.

use holdfast_bfd::{Control, Datagram, Peer, Table, Timers};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The first byte chooses: bit 0 multihop, bit 1 with our discriminator written in, bits 2-7 the TTL's upper ones.
pub(crate) fn run(data: &[u8]) {
    let Some((how, packet)) = data.split_first() else { return };
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
    let mut bytes = packet.to_vec();
    if how & 2 != 0
        && let Some(room) = bytes.get_mut(8..12)
    {
        room.copy_from_slice(&(if multihop { far } else { near }).get().to_be_bytes());
    }
    for step in 0..3_u32 {
        let at = now + Duration::from_millis(40) * step;
        let datagram = Datagram { bytes: &bytes, from, to: None, ifindex: 1, ttl: how | 3, multihop };
        let taken = table.receive(at, &datagram).is_ok();
        let mut events = 0;
        while table.poll_event().is_some() {
            events += 1;
        }
        // A change of state, an answer to a Poll, the news of the change, and a Poll of ours.
        assert!(events <= if taken { 5 } else { 0 });
        table.timer(at);
        while table.poll_event().is_some() {}
        assert!(table.poll_timeout().is_some(), "the sessions send");
    }
}

//! What the channel says by itself and on request: messages, signs of life, greetings.

use super::noise::{self, TAG_LEN};
use super::peer::{Attempt, Greeting, Peer};
use super::wire::{self, CONTENT_ROOM, GreetingPayload};
use super::{Channel, MAX_DATAGRAM, Outbox, Output, PeerId, peer_id};
use crate::message::Message;
use crate::message::codec::{PROBE_RECORD, batch_record};
use rand_core::Rng;
use std::time::{Duration, Instant};

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);

impl Channel {
    pub(super) fn send(&mut self, now: Instant, to: PeerId, message: &Message) {
        let Some(peer) = self.peers.get_mut(usize::from(to.0)) else {
            self.outbox.counters.dropped_sends += 1;
            return;
        };
        if self.encoded.encode(message, CONTENT_ROOM).is_err() {
            self.outbox.counters.dropped_sends += 1;
            return;
        }
        let sent = self.encoded.records().all(|record| send_content(peer, &mut self.outbox, now, record));
        self.outbox.counters.dropped_sends += u64::from(!sent);
    }

    pub(super) fn broadcast(&mut self, now: Instant, message: &Message) {
        if self.encoded.encode(message, CONTENT_ROOM).is_err() {
            self.outbox.counters.dropped_sends += 1;
            return;
        }
        for peer in self.peers.iter_mut().filter(|peer| peer.current.is_some()) {
            let sent = self.encoded.records().all(|record| send_content(peer, &mut self.outbox, now, record));
            self.outbox.counters.dropped_sends += u64::from(!sent);
        }
    }

    pub(super) fn send_batch(&mut self, now: Instant, to: PeerId, bytes: &[u8]) {
        let sent = match self.peers.get_mut(usize::from(to.0)) {
            Some(peer) if batch_record(&mut self.content, bytes, CONTENT_ROOM) => {
                send_content(peer, &mut self.outbox, now, &self.content)
            }
            _ => false,
        };
        // What arrives is opened into this: it has its full length again.
        self.content.resize(MAX_DATAGRAM, 0);
        self.outbox.counters.dropped_sends += u64::from(!sent);
    }

    /// Does all that is due.
    pub(super) fn run_timers(&mut self, now: Instant) {
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(index) else { return };
            peer.expire(now);
            if peer.idle_at().is_some_and(|at| now >= at) {
                peer.up = false;
                // Whatever was tried before is about an old state of the peer: start over, at once.
                peer.attempt = None;
                self.outbox.push(Output::Down { peer: peer_id(index) });
            }
            if peer.keepalive_at().is_some_and(|at| now >= at) {
                send_content(peer, &mut self.outbox, now, &[]);
            }
            if peer.probe_at().is_some_and(|at| now >= at) {
                peer.last_probe = now;
                send_content(peer, &mut self.outbox, now, &PROBE_RECORD);
            }
            if peer.attempt.is_none() && peer.wants_session(now) {
                peer.attempt = Some(Attempt::default());
            }
            if peer.attempt.as_ref().is_some_and(|attempt| attempt.retry_at.is_none_or(|at| now >= at)) {
                self.greet(now, index);
            }
        }
    }

    /// Sends a new greeting to a peer; the one before can't be answered any more.
    fn greet(&mut self, now: Instant, index: usize) {
        let (seed, local, jitter) = (self.draw_seed(), self.draw_index(), self.rng.next_u32());
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(attempt) = &mut peer.attempt else { return };
        // The key that worked last, then the other one: while keys rotate either may be the peer's.
        let first = peer.current.as_ref().map_or(0, |session| session.key);
        let key = (first + attempt.tries as usize) % peer.keys.len().max(1);
        attempt.retry_at = Some(now + retry_delay(attempt.tries, jitter));
        attempt.tries = attempt.tries.saturating_add(1);
        attempt.greeting = None;

        let Some(remote) = peer.keys.get(key) else { return };
        let Ok(mut handshake) = noise::initiator(seed, self.secret.bytes(), remote) else { return };
        self.stamp += 1;
        let payload = GreetingPayload { index: local, stamp: (self.epoch, self.stamp) }.encode();
        let mut message = [0; MAX_DATAGRAM];
        let Ok(length) = handshake.write_message(&payload, &mut message) else { return };
        let mut bytes = wire::greeting_header();
        bytes.extend(message.iter().take(length));
        let check = noise::greeting_check(remote, &bytes);
        bytes.extend_from_slice(&check);
        attempt.greeting = Some(Greeting { handshake, index: local, key });
        self.outbox.transmit(peer.address, bytes);
    }
}

/// Sends records on the peer's current session. `false`: there is none (any more).
pub(super) fn send_content(peer: &mut Peer, outbox: &mut Outbox, now: Instant, content: &[u8]) -> bool {
    debug_assert!(content.len() + TAG_LEN < MAX_DATAGRAM);
    let Some(session) = &mut peer.current else { return false };
    let Some(bytes) = session.seal(content) else {
        // Its counters are used up although new sessions were tried for 2^32 datagrams.
        peer.current = None;
        return false;
    };
    outbox.transmit(peer.address, bytes);
    peer.last_sent = now;
    true
}

/// 100 ms, doubled with each try up to 1 s, minus up to a quarter so that two nodes don't stay in step.
fn retry_delay(tries: u32, jitter: u32) -> Duration {
    let full = RETRY_FIRST.saturating_mul(1 << tries.min(4)).min(RETRY_MAX);
    full - full / 4 * (jitter % 1024) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_double_from_100_ms_to_1_s_less_up_to_a_quarter() {
        let longest: Vec<_> = [0, 1, 2, 3, 4, 5, u32::MAX].map(|tries| retry_delay(tries, 0).as_millis()).into();
        assert_eq!(longest, [100, 200, 400, 800, 1000, 1000, 1000]);
        let shortest = retry_delay(0, 1023).as_micros();
        assert!((75_000..75_100).contains(&shortest), "{shortest}");
    }
}

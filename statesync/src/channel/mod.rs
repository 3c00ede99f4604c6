//! The peers' channel: one [`Channel`] per node speaks with all configured peers over datagrams.
//!
//! Handshake Noise_IK_25519_ChaChaPoly_BLAKE2s (static keys pinned in the configuration, two per peer while rotating),
//! then transport messages with an explicit 64-bit counter and a replay window. An unauthenticated or replayed
//! datagram changes nothing but a counter.
//!
//! # How a session comes and goes
//!
//! - A node *greets* every peer without a session: after 75 to 100 ms again, then at doubled times up to 1 s, for ever.
//!   The greeting carries the boot epoch and a stamp that grows; while a session lives, a stamp that isn't newer than
//!   the last one is a replay.
//! - The greeted node *answers*, and keeps the session aside until something authentic arrives on it: a replayed
//!   greeting never displaces a session.
//! - Both may greet at once. Both sessions then receive; both sides send on that of the lower public key.
//! - Every two minutes or 2^32 datagrams a new session is made beside the old one, which goes on receiving for 5 s.
//! - Who sent nothing for 100 ms sends an empty datagram; who heard nothing for 125 ms asks every 20 ms for one, so that
//!   heavy loss isn't taken for a dead peer. After 400 ms without anything authentic the peer is Down. The old session
//!   still sends, for the sake of a cut in one direction, but only a fresh handshake brings the peer Up again: what an
//!   old session delivers after a silence may have been held back by someone.
//! - A new boot epoch ends all sessions of the one before and is reported as Up at once.
//!
//! # What a stranger can cost
//!
//! A datagram from an address without a peer costs a comparison. A greeting must carry a check value made with our
//! public key (one hash), and at most 10 handshakes per second and peer and 50 altogether are computed (after small
//! bursts). Whoever knows our public key and forges a peer's address can use that up, and so delay a handshake; a
//! session that is up doesn't notice.
//!
//! Refuses to queue what can't be sent: state repeats itself.

mod incoming;
mod limit;
pub(crate) mod noise;
mod outgoing;
mod peer;
mod replay;
mod session;
mod types;
mod wire;

pub use types::{ChannelConfig, Counters, Input, Output, PeerConfig, PeerId, PeerState};

use crate::key::{SecretKey, public_key};
use crate::message::codec::Encoded;
use limit::RateLimit;
use peer::Peer;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Largest datagram that is sent or accepted, in bytes: fits every path that carries IPv6.
pub const MAX_DATAGRAM: usize = 1200;

/// Largest batch of the flow lanes, in bytes.
pub const MAX_BATCH: usize = wire::CONTENT_ROOM - crate::message::codec::RECORD_HEADER_LEN;

/// A peer is Down when nothing authentic was heard for this long: three keepalives and a bit lost in a row.
pub const IDLE_TIMEOUT: Duration = Duration::from_millis(400);

/// When nothing else was sent to a peer for this long, an empty datagram is. A bit more than what lies between two
/// reports, so that none goes out beside each of them, and less than [`PROBE_AFTER`].
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(110);

/// When nothing was heard from a peer for this long, it is asked for an answer,
pub const PROBE_AFTER: Duration = Duration::from_millis(125);

/// and again each time this has passed.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Outputs that wait to be drained; beyond, new ones are dropped and counted.
pub const OUTPUTS_MAX: usize = 4096;

/// Handshakes that we compute for all peers together: per second, and at once.
const HANDSHAKES_PER_SECOND: u32 = 50;
const HANDSHAKES_BURST: u32 = 20;

/// The channel. See the module documentation.
pub struct Channel {
    secret: SecretKey,
    public: [u8; 32],
    epoch: u64,
    /// Stamp of the last greeting sent.
    stamp: u64,
    rng: ChaCha20Rng,
    peers: Vec<Peer>,
    handshake_limit: RateLimit,
    /// Batches of the flow lanes are taken; else they are a kind that isn't known here.
    carries_batches: bool,
    outbox: Outbox,
    /// Kept from message to message.
    encoded: Encoded,
    content: Vec<u8>,
}

/// What goes to the caller.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Output>,
    counters: Counters,
}

impl Outbox {
    fn push(&mut self, output: Output) {
        if self.queue.len() >= OUTPUTS_MAX {
            self.counters.dropped_outputs += 1;
        } else {
            self.queue.push_back(output);
        }
    }

    fn transmit(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        self.counters.transmitted += 1;
        self.push(Output::Transmit { to, bytes });
    }
}

impl Channel {
    /// A channel that greets all peers at once: drain [`poll_output`](Self::poll_output) right away. `seed` is fresh
    /// randomness of the operating system, never used before: the secrecy of every session of this run rests on it.
    pub fn new(config: ChannelConfig, seed: [u8; 32], now: Instant) -> Self {
        let seed = Zeroizing::new(seed);
        let ids = usize::from(u16::MAX) + 1;
        let mut channel = Self {
            public: public_key(&config.secret_key),
            secret: config.secret_key,
            epoch: config.epoch,
            stamp: 0,
            rng: ChaCha20Rng::from_seed(*seed),
            peers: config.peers.into_iter().take(ids).map(|peer| Peer::new(peer, now)).collect(),
            handshake_limit: RateLimit::new(HANDSHAKES_PER_SECOND, HANDSHAKES_BURST, now),
            carries_batches: false,
            outbox: Outbox::default(),
            encoded: Encoded::default(),
            content: vec![0; MAX_DATAGRAM],
        };
        channel.run_timers(now);
        channel
    }

    /// The same channel, for the flow lanes: it takes batches, too.
    #[must_use]
    pub const fn carrying_batches(mut self) -> Self {
        self.carries_batches = true;
        self
    }

    /// Takes an input. Drain [`poll_output`](Self::poll_output) before the next one.
    ///
    /// A datagram is looked at before the clock: after a stall of the caller what waited in its socket still counts as
    /// heard.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Datagram { from, bytes } => self.receive(now, from, bytes),
            Input::Send { peer, message } => self.send(now, peer, message),
            Input::Broadcast { message } => self.broadcast(now, message),
            Input::SendBatch { peer, bytes } => self.send_batch(now, peer, bytes),
            Input::Timer => {}
        }
        self.run_timers(now);
    }

    /// What to do now, in order; `None`: nothing left.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.queue.pop_front()
    }

    /// Whether [`poll_output`](Self::poll_output) has something to give.
    pub fn has_output(&self) -> bool {
        !self.outbox.queue.is_empty()
    }

    /// When `handle(Timer)` wants to be called; `None` only without peers that have a key.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.peers.iter().filter_map(Peer::deadline).min()
    }

    /// What is known of a peer; that of a peer never heard for an unknown id.
    pub fn peer_state(&self, peer: PeerId) -> PeerState {
        self.peers
            .get(usize::from(peer.0))
            .map(|peer| PeerState { up: peer.up, epoch: peer.epoch, last_heard: peer.last_heard })
            .unwrap_or_default()
    }

    /// What was counted so far.
    pub const fn counters(&self) -> Counters {
        self.outbox.counters
    }

    /// A seed for one handshake.
    fn draw_seed(&mut self) -> Zeroizing<[u8; 32]> {
        let mut seed = Zeroizing::new([0; 32]);
        self.rng.fill_bytes(&mut *seed);
        seed
    }

    /// An index that names no other session or greeting of ours. Random, so that a stranger can't guess it.
    fn draw_index(&mut self) -> u32 {
        loop {
            let index = self.rng.next_u32();
            if !self.peers.iter().any(|peer| peer.uses_index(index)) {
                return index;
            }
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let up: Vec<_> = self.peers.iter().map(|peer| (peer.address, peer.up)).collect();
        f.debug_struct("Channel").field("epoch", &self.epoch).field("peers", &up).finish_non_exhaustive()
    }
}

fn peer_id(index: usize) -> PeerId {
    PeerId(u16::try_from(index).expect("a channel has at most 65536 peers"))
}

#[cfg(test)]
mod tests;

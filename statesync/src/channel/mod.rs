//! The peers' channel: one [`Channel`] per node speaks with all configured peers over datagrams.
//!
//! Handshake Noise_IK_25519_ChaChaPoly_BLAKE2s (static keys pinned in the configuration, two per peer while rotating),
//! then transport messages with an explicit 64-bit counter and a replay window. An unauthenticated or replayed
//! datagram changes nothing but a counter.

pub(crate) mod noise;
mod replay;
mod types;

pub use types::{ChannelConfig, Counters, Input, Output, PeerConfig, PeerId, PeerState};

use std::time::{Duration, Instant};

/// Largest datagram that is sent or accepted, in bytes: fits every path that carries IPv6.
pub const MAX_DATAGRAM: usize = 1200;

/// A peer is Down when nothing authentic was heard for this long.
pub const IDLE_TIMEOUT: Duration = Duration::from_millis(400);

/// The channel. See the module documentation.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// A channel that starts handshakes with all peers at once. `seed` is fresh randomness of the operating system,
    /// never used before: the secrecy of every session of this run rests on it.
    pub fn new(_config: ChannelConfig, _seed: [u8; 32], _now: Instant) -> Self {
        Self
    }

    /// Takes an input. Drain [`poll_output`](Self::poll_output) before the next one.
    pub fn handle(&mut self, _now: Instant, _input: Input<'_>) {}

    /// What to do now, in order; `None`: nothing left.
    pub fn poll_output(&mut self) -> Option<Output> {
        None
    }

    /// When `handle(Timer)` wants to be called; `None` only without peers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// What is known of a peer; that of a peer never heard for an unknown id.
    pub fn peer_state(&self, _peer: PeerId) -> PeerState {
        PeerState::default()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}

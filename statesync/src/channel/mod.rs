//! The peers' channel: one [`Channel`] per node speaks with all configured peers over datagrams.
//!
//! Handshake Noise_IK_25519_ChaChaPoly_BLAKE2s (static keys pinned in the configuration, two per peer while rotating),
//! then transport messages with an explicit 64-bit counter and a replay window. An unauthenticated or replayed
//! datagram changes nothing but a counter.

use crate::message::Message;
use std::net::SocketAddr;
use std::time::Instant;

/// Index of a peer in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u16);

/// One peer as configured.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    pub name: String,
    pub address: SocketAddr,
    /// One or two (while rotating) X25519 public keys.
    pub public_keys: Vec<[u8; 32]>,
}

/// Something happened.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram arrived.
    Datagram { from: SocketAddr, bytes: &'a [u8] },
    /// Send this to one peer (dropped and counted when there is no session: state repeats, nothing is queued).
    Send { peer: PeerId, message: &'a Message },
    /// Send this to every peer with a session.
    Broadcast { message: &'a Message },
    /// `poll_timeout` has passed.
    Timer,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Transmit { to: SocketAddr, bytes: Vec<u8> },
    /// An authenticated, fresh message.
    Received { peer: PeerId, epoch: u64, message: Message },
    /// A session with this peer's boot epoch is up. A new epoch means that the peer's agent restarted.
    Up { peer: PeerId, epoch: u64 },
    /// Nothing authentic was heard for the session's idle time.
    Down { peer: PeerId },
}

/// The channel. See the module documentation.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// When `handle(Timer)` wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

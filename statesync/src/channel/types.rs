//! What the channel is given and what it gives back.

use crate::key::SecretKey;
use crate::message::Message;
use std::net::SocketAddr;
use std::time::Instant;

/// Index of a peer in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u16);

/// One peer as configured.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// The peer's node name; the channel only keeps it for the caller.
    pub name: String,
    /// Where datagrams for this peer go. What comes from it must have this IP address; the port may differ.
    pub address: SocketAddr,
    /// One or two (while rotating) X25519 public keys. Without any the peer never comes up.
    pub public_keys: Vec<[u8; 32]>,
}

/// What a channel is built from.
#[derive(Debug, Clone)]
pub struct ChannelConfig {
    /// This node's secret key.
    pub secret_key: SecretKey,
    /// This run's boot epoch: greater than that of every earlier run of this node. If it isn't (a clock stepped back),
    /// a peer that still holds the old session takes the new run only after [`IDLE_TIMEOUT`](super::IDLE_TIMEOUT).
    pub epoch: u64,
    /// The peers, at most 65536; their place here is their [`PeerId`].
    pub peers: Vec<PeerConfig>,
}

/// Something happened.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram arrived.
    Datagram {
        /// Its source address.
        from: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// Send this to one peer (dropped and counted when there is no session: state repeats, nothing is queued).
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        message: &'a Message,
    },
    /// Send this to every peer with a session.
    Broadcast {
        /// What.
        message: &'a Message,
    },
    /// Send this batch of the flow lanes to one peer (dropped and counted when there is no session or it is too big).
    SendBatch {
        /// To whom.
        peer: PeerId,
        /// At most [`MAX_BATCH`](super::MAX_BATCH) bytes; the channel doesn't look into it.
        bytes: &'a [u8],
    },
    /// `poll_timeout` has passed.
    Timer,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram. A failed send needs no answer to the channel: everything that matters is repeated.
    Transmit {
        /// The peer's configured address.
        to: SocketAddr,
        /// At most [`MAX_DATAGRAM`](super::MAX_DATAGRAM) bytes.
        bytes: Vec<u8>,
    },
    /// An authenticated, fresh message.
    Received {
        /// Its sender.
        peer: PeerId,
        /// The sender's boot epoch.
        epoch: u64,
        /// What it said.
        message: Message,
    },
    /// An authenticated, fresh batch of the flow lanes. Only of a channel that [carries
    /// them](super::Channel::carrying_batches).
    Batch {
        /// Its sender.
        peer: PeerId,
        /// The sender's boot epoch.
        epoch: u64,
        /// The batch.
        bytes: Vec<u8>,
    },
    /// A session with this peer's boot epoch is up. A new epoch means that the peer's agent restarted (without a
    /// `Down` before it when it was quick).
    Up {
        /// Which peer.
        peer: PeerId,
        /// Its boot epoch.
        epoch: u64,
    },
    /// Nothing authentic was heard for the session's idle time.
    Down {
        /// Which peer.
        peer: PeerId,
    },
}

/// What is known of a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerState {
    /// Authentic datagrams arrive.
    pub up: bool,
    /// The last boot epoch heard; 0 if the peer was never up.
    pub epoch: u64,
    /// When the last authentic, fresh datagram arrived.
    pub last_heard: Option<Instant>,
}

/// What the channel counted since it was built. A refused datagram is in exactly one of the counters of refusals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams given to the channel.
    pub datagrams: u64,
    /// Datagrams handed out for sending.
    pub transmitted: u64,
    /// Handshakes that led to a session, by whichever side started.
    pub sessions: u64,
    /// Refused: the source address belongs to no configured peer. Nothing else of it was looked at.
    pub unknown_source: u64,
    /// Refused: another major version of the channel.
    pub bad_version: u64,
    /// Refused: too short or long, unknown type, a greeting not made for our key, or no valid handshake message.
    pub bad_handshake: u64,
    /// Refused: the content isn't authentic, or the handshake's key is not one configured for this address.
    pub bad_auth: u64,
    /// Refused: belongs to no session that still receives. Normal after a restart on either side.
    pub unknown_session: u64,
    /// Refused: seen before. Includes greetings whose stamp isn't newer than the last one.
    pub replayed: u64,
    /// Refused: behind the replay window, or of a session that went silent.
    pub too_old: u64,
    /// Refused: more handshakes than we want to compute.
    pub rate_limited: u64,
    /// Records of authentic datagrams that don't decode.
    pub malformed_message: u64,
    /// Records of authentic datagrams of a kind that this version doesn't know; skipped.
    pub unknown_kind: u64,
    /// Messages not sent: no session with the peer, or the message can't be encoded.
    pub dropped_sends: u64,
    /// Outputs dropped because the caller didn't drain them.
    pub dropped_outputs: u64,
}

impl Counters {
    /// Datagrams that were refused, for whatever reason.
    pub const fn refused(&self) -> u64 {
        self.unknown_source
            + self.bad_version
            + self.bad_handshake
            + self.bad_auth
            + self.unknown_session
            + self.replayed
            + self.too_old
            + self.rate_limited
    }
}

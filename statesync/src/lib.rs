//! What the peers say to each other, as pure code: the authenticated channel (Noise), its framing and replay window,
//! and the control lane's messages; the kernel's connection table, encoded and decoded ([`ct`]); its replication ([`flow`]).
//!
//! Nothing here touches a socket, a clock or the operating system's randomness.
//!
//! What this crate refuses to do: look at anything that isn't authenticated, and judge what a message means for a
//! virtual address (the node does).

#![forbid(unsafe_code)]

pub mod channel;
pub mod ct;
pub mod flow;
pub mod key;
pub mod message;
pub mod mutants;

pub use channel::{
    Channel, ChannelConfig, Counters, Input as ChannelInput, Output as ChannelOutput, PeerConfig, PeerId, PeerState,
};
pub use key::{KeyError, SecretKey, decode_key, encode_key, generate_keypair, public_key};

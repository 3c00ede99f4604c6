//! BGP as pure code: wire format, the one-peer state machine, what we announce (Adj-RIB-Out) and message framing.
//!
//! BFD lives in its own small crate (`bgp/bfd`); this one does not know it.

#![forbid(unsafe_code)]
// What a neighbour sends may be anything: what reads it may neither index nor unwrap.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

pub mod mutants;
pub mod rib;
pub mod session;
pub mod types;
pub mod wire;

pub use rib::{Desired, Route};
pub use session::{ConnId, Event, Input, Output, Peer, PeerConfig, State, Stop};

//! The kernel's connection table, as ctnetlink tells and takes it: pure encoding and decoding.
//!
//! | module | does |
//! |---|---|
//! | `tuple` | one direction of a flow: [`Tuple`], its plain inverse, the [`Zone`] that it counts in |
//! | `entry` | what the kernel says of a flow: [`Entry`], [`Event`] |
//! | `replica` | what we have the kernel hold: [`Replica`] |
//!
//! What this module refuses to do: open a socket, remember a flow, or judge whose a flow is.

mod entry;
mod replica;
mod tuple;

pub use entry::{
    Entry, Event, EventKind, Extras, SequenceAdjustment, Status, SynProxy, Tcp, TcpFlags, TcpSide, TcpState,
};
pub use replica::{Mark, Replica};
pub use tuple::{Addresses, Direction, Key, Layer4, Tuple, Zone};

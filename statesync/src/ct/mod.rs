//! The kernel's connection table, as ctnetlink tells and takes it: pure encoding and decoding.
//!
//! | module | does |
//! |---|---|
//! | `tuple` | one direction of a flow: [`Tuple`], its plain inverse, the [`Zone`] that it counts in |
//! | `entry` | what the kernel says of a flow: [`Entry`], [`Event`] |
//! | `decode` | reads a receive buffer: [`Messages`] |
//! | `replica` | what we have the kernel hold: [`Replica`] |
//! | `encode` | writes it: [`Batch`] |
//! | `outcome` | what the answers mean: [`Outcome`] |
//! | `ask` | dumps ([`DumpFilter`]), and a flow by its tuple ([`look_up`]) |
//!
//! What this module refuses to do: open a socket, remember a flow, or judge whose a flow is.

mod ask;
mod decode;
mod encode;
mod entry;
mod number;
mod outcome;
mod read;
mod replica;
mod tuple;
mod write;

pub use ask::{DumpFilter, Toward, look_up};
pub use decode::{Message, Messages, Skipped};
pub use encode::{Batch, EncodeError};
pub use entry::{
    Entry, Event, EventKind, Extras, SequenceAdjustment, Status, SynProxy, Tcp, TcpFlags, TcpSide, TcpState,
};
pub use outcome::{Operation, Outcome};
pub use replica::{Mark, Replica};
pub use tuple::{Addresses, Direction, Key, Layer4, Tuple, Zone};

//! The kernel's connection table: events, dumps, and writing into it (ctnetlink; bytes are [`holdfast_statesync::ct`]'s).
//!
//! | item | is for |
//! |---|---|
//! | [`Changes`] | NEW and UPDATE events; what was lost shows |
//! | [`Removals`] | DESTROY events, reliable |
//! | [`Dump`] | the whole table, or a part of it |
//! | [`Writer`] | batches of creates, updates and deletes; a look at one flow, or at some |
//! | [`Setting`] | what has to be set for events to come |
//! | [`entries`] | how many flows there are |
//! | [`timeouts`] | the kernel's own timeouts |
//! | [`forget`] | flows whose backend is down, which the table would still send there |
//!
//! Each belongs to the network namespace of the thread that opened it, and each needs CAP_NET_ADMIN to be opened. None
//! waits but [`Dump::all`], [`Writer::look_up`] and [`forget`], and those for no longer than a kernel takes.
//!
//! Two kinds of events, two sockets, because "reliable" is of use with DESTROY only: the kernel keeps a flow that it
//! couldn't tell of as dead until it can, but NEW and UPDATE would be lost, without a word.
//!
//! What this module refuses to do: decide whose a flow is, retry, or flush.

mod dump;
mod events;
mod orphans;
mod receive;
mod setting;
mod writer;

pub use dump::{Dump, Dumped, Progress};
pub use events::{Changes, Read, Removals};
pub use orphans::forget;
pub use setting::{Setting, entries, timeouts};
pub use writer::Writer;

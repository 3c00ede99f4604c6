//! Our table in the kernel's packet filter, written straight to nf_tables: no program is run, nothing waits.
//!
//! | module | does |
//! |---|---|
//! | `expr` | what a rule is made of, typed |
//! | `batch` | tables, chains, sets, rules: encoded as one transaction |
//! | `socket` | commits it |
//! | [`Guard`] | addresses that we hold but accept no packet for |
//! | [`EventFilter`] | which flows conntrack tells of, in a table of its own |
//! | [`Translating`] | whether replicas of translated flows are translated here |
//! | [`Balancer`] | the embedded balancer's table, of its own |
//! | [`TableWatch`] | tells when somebody else changes that |
//!
//! A feature describes all that it wants as a [`Batch`] that begins with [`Batch::replace_table`]: after a commit the
//! table is exactly that, whatever it was before (a crash's leftovers, an admin's hand), and the packets of no moment
//! meet half of it. A commit that fails has changed nothing.
//!
//! The kernel makes one change at a time in a network namespace, whoever asks for it: a guard that is set while a large
//! table of the balancer (or of anybody else) is loaded waits until that is done.
//!
//! What this module refuses to do: read rules of others (but to find those that set masks of events), touch a table that
//! isn't named after us, or remember what was committed.

mod batch;
mod events;
mod expr;
mod guard;
mod hooks;
mod pool;
mod socket;
mod watch;

pub use batch::{BALANCE_TABLE, Batch, Chain, Element, Hook, KeyType, Map, MapValue, Policy, TABLE, TypeNumber, Value};
pub use events::{EVENTS_TABLE, EventFilter, EventMask, FILTERED_MAX, Other};
pub use expr::{Base, Comparison, Expression, Flow, Meta, Register, Verdict};
pub use guard::{GUARDED_MAX, Guard};
pub use hooks::Translating;
pub use pool::Balancer;
pub use socket::NftSocket;
pub use watch::{Generation, Membership, TableWatch};

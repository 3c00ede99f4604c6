//! Deterministic simulator: whole nodes ([`holdfast_node::Node`], the very code the agent runs) on a virtual clock, a
//! virtual segment, a virtual channel network and a virtual kernel, with faults drawn from a seed.
//!
//! | module | holds |
//! |---|---|
//! | [`rng`] | the seed's random numbers |
//! | [`net`] | who hears whom, how late, how surely: loss, delay, duplicates, one-way cuts |
//! | [`kernel`] | a host's links, addresses with lifetimes and open sockets |
//! | [`host`] | a host: node, kernel, balancer; crash, stall, restart |
//! | [`cluster`] | the event queue and the verbs of a scenario |
//! | [`checker`] | what must always hold (DESIGN section 4), checked after every event |
//! | [`chaos`] | random faults from a seed, then quiet, then the state everybody must agree on |
//!
//! A failing seed prints itself and the last lines of its trace; `HOLDFAST_SEED=n cargo test -p holdfast-sim one_seed`
//! runs it again.

#![forbid(unsafe_code)]

pub mod chaos;
pub mod checker;
pub mod cluster;
pub mod host;
pub mod kernel;
pub mod net;
pub mod rng;

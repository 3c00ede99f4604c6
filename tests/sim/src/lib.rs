//! Deterministic simulator: whole nodes ([`holdfast_node::Node`], the very code the agent runs) on a virtual clock,
//! virtual segments, a virtual channel network and virtual kernels, with faults drawn from a seed.
//!
//! | module | holds |
//! |---|---|
//! | [`rng`] | the seed's random numbers |
//! | [`net`] | who hears whom, how late, how surely: loss, delay, duplicates, one-way cuts |
//! | [`kernel`] | a host's links, addresses with lifetimes and open sockets |
//! | [`host`] | a host: agent, kernel, balancer, clock |
//! | [`plane`] | what a balancer is like, and what is found by those who look at it |
//! | [`flows`] | what a host's sync thread says of the replication of flows |
//! | [`peer`] | another implementation of VRRP, in a host's place |
//! | [`options`] | how a cluster is made, and each host's configuration |
//! | [`cluster`] | hosts, wires and the event queue; `verbs`: what a scenario does to them; `obey`: what they ask for |
//! | [`checker`] | what must always hold (DESIGN section 4), checked after every event |
//! | [`chaos`] | random faults from a seed, then quiet, then the state everybody must agree on |
//! | [`coverage`] | what was seen in runs |
//!
//! A failing seed prints itself and the last lines of its trace; `HOLDFAST_SEED=n cargo test -p holdfast-sim one_seed`
//! runs it again.

#![forbid(unsafe_code)]

pub mod chaos;
pub mod checker;
pub mod cluster;
pub mod coverage;
pub mod flows;
pub mod host;
pub mod kernel;
pub mod net;
mod obey;
pub mod options;
pub mod peer;
pub mod plane;
pub mod rng;
pub mod verbs;

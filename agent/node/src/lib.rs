//! A whole Holdfast node as pure code.
//!
//! [`Node`] is one sans-IO machine: it holds the validated [`config::Config`], every observation ([`world::World`]),
//! a VRRP router per VIP, the peers' channel, the checks' schedule, the drain machine and the journal. The agent feeds
//! it what sockets and the kernel say and does what it asks; the simulator does the same with a virtual clock.
//!
//! observe → decide → act: [`decide::decide`] is a pure function from (Config, World, now) to a [`decide::Plan`];
//! [`diff::diff`] compares the plan with what the kernel has and yields ordered [`Step`]s. Level-triggered: whatever
//! drifts is put right at the next turn.
//!
//! What this crate refuses to do: read a clock, a socket or a file; format a log line; change the kernel.

#![forbid(unsafe_code)]

mod announce;
pub mod bgp;
pub mod checks;
mod claims;
pub mod config;
pub mod conntrack;
mod damping;
pub mod decide;
pub mod diff;
pub mod drain;
pub mod extras;
pub mod io;
pub mod journal;
pub mod keeper;
pub mod kernel;
mod legs;
pub mod mutants;
mod node;
mod observe;
pub mod plane;
pub mod pool;
pub mod reasons;
mod records;
mod refused;
mod schedule;
mod segment;
mod sending;
pub mod status;
pub mod sync;
mod telling;
mod turn;
pub mod upgrade;
mod vip;
pub mod world;

pub use io::{Input, Output, Step};
pub use node::Node;

#[cfg(test)]
mod tests;

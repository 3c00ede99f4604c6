//! Flows: whether established connections outlive the balancer that forwards them.
//!
//! | module | is |
//! |---|---|
//! | [`drills`] | the drills, and what is expected |
//! | [`net`] | what flows need beyond the fabric of all drills: IPv6, forwarding, rules, a host without power |
//! | [`stream`] | what flows carry, and its digest |
//! | [`stall`] | how long a flow waited |
//! | [`server`] | the backends |
//! | [`client`], [`udp`] | the clients: flows that talk, bulk, idle, half-closed; UDP |
//! | [`record`] | what became of each flow |
//! | [`pair`], [`conntrackd`] | what replicates: Holdfast, conntrackd beside keepalived, nothing |
//! | [`run`], [`figures`] | how a drill is run, and what comes out |
//! | [`ecmp`] | flows behind a router that spreads them over nodes |
//! | `faults`, [`tables`], [`churn`], `strays` | whether both tables are equal after faults of the replication |
//!
//! Every run has all of it at once: IPv4 and IPv6, DNAT and SNAT, each kind of flow through each of the four ways.

pub mod churn;
pub mod client;
pub mod conntrackd;
pub mod drills;
pub mod ecmp;
mod faults;
pub mod figures;
pub mod net;
pub mod pair;
pub mod record;
pub mod run;
pub mod server;
pub mod stall;
mod strays;
pub mod stream;
pub mod tables;
pub mod udp;

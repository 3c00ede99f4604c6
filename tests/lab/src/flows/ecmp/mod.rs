//! Flows behind a router that spreads them over three or four nodes by ECMP: one node leaves, and comes back.
//!
//! | module | is |
//! |---|---|
//! | [`drills`] | the drills, and what is expected |
//! | [`net`] | what the network of the BGP drills needs beyond: nodes that forward, rules, a host without power |
//! | [`agents`] | Holdfast on each node |
//! | [`load`] | the clients: thousands of connections that talk, or are idle and talk later |
//! | [`run`], [`figures`] | how a drill is run, and what comes out |
//!
//! Each node translates to an address of its own, a VRRP VIP that a survivor takes over; so what backends answer meets
//! another node than what clients send, from the first change of the router's table on.

pub mod agents;
pub mod drills;
pub mod figures;
pub mod load;
pub mod net;
pub mod run;

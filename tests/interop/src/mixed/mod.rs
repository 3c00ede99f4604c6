//! Mixed pairs: every peer, version, family, transport and checksum as the other end, in both roles, through the same
//! round of scenarios; who owned the address when is read off the wire.
//!
//! | module | is |
//! |---|---|
//! | [`cell`] | the matrix, as data |
//! | [`scenario`] | the round that every cell goes through, as data, and what must hold after each step |
//! | [`node`] | what a router under test can be told to do |
//! | [`keepalived`], [`frr`], [`holdfast`] | the routers |
//! | [`program`] | where the peers' programs are |
//! | [`wire`] | what went over the two routers' ports, and the probes that make an owner answer |
//! | [`judge`] | who owned the address from when to when, and for how long both did |
//! | [`runner`] | a cell's rounds, many cells side by side |
//! | [`table`] | the results, for people and as JSON |

pub mod cell;
pub mod frr;
pub mod holdfast;
pub mod judge;
pub mod keepalived;
pub mod node;
pub mod program;
pub mod runner;
pub mod scenario;
pub mod table;
pub mod wire;

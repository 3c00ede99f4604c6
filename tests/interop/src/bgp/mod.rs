//! BGP with real routers: each peer, kind of session, transport and feature is a cell, and each cell goes through the same
//! steps. What the router made of it is read off its kernel (FRR, BIRD) or its table (GoBGP, ExaBGP), and what was said
//! off the wire.
//!
//! | module | is |
//! |---|---|
//! | [`cell`] | the matrix, as data |
//! | [`scenario`] | the steps, as data |
//! | [`ours`] | what speaks for us: the agent, or BIRD to show what is the harness's doing |
//! | [`gobgp`], [`exabgp`] | the routers without a kernel's table; the others are the lab's |
//! | [`stage`] | a cell's network with all that runs in it, and what can be asked of it |
//! | [`runner`] | the steps of a cell, and many cells side by side |

pub mod cell;
pub mod exabgp;
pub mod gobgp;
pub mod ours;
pub mod runner;
pub mod scenario;
pub mod stage;

//! What replicating flows costs and how fast it is, beside conntrackd on the same load in one run.
//!
//! Both programs are the real ones, on two hosts of the lab's network; the load is written into the owner's connection
//! table, and what came of it is read from the kernels, by neither program's own account. Each figure and its limit is
//! defined where it is taken, in `cases`.

#![forbid(unsafe_code)]

pub mod adverts;
pub mod cases;
pub mod limits;
pub mod load;
pub mod netlink;
pub mod outcome;
pub mod pair;
pub mod seen;

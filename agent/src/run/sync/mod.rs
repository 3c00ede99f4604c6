//! The thread that replicates flows: the kernel's connection table for the VIPs, at every peer.

pub mod query;

//! The connection table of a real kernel: what is read of it, what is written into it, and whether flows live on where
//! they were written. Every test has network namespaces of its own, so it needs root; without, it says so and is skipped.
//!
//! The sizes of the table and of its buckets are the host's: nothing here changes them.

mod cost;
mod events;
mod fabric;
mod filter;
mod moves;
#[path = "../netns/mod.rs"]
mod netns;
mod open;
mod table;

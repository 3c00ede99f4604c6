//! Guards that a test build can switch off by name, so that the test of each guard can be seen to fail without it.
//!
//! Without the feature `mutants` this is `false`, and the compiler removes it. With it, a guard is off inside
//! `with_off` on the calling thread, or for the whole process if `HOLDFAST_MUTANTS` names it (comma-separated).

/// The names of this crate's guards.
pub const NAMES: [&str; 15] = [
    "ttl-check",
    "checksum",
    "last-advert-of-the-loser",
    "losing-advert-answered",
    "tie-break",
    "resign-on-stop",
    "advert-burst",
    "min-ttl",
    "unicast-peers",
    "preempt-delay",
    "last-resort-yield",
    "lead-leg-tie-break",
    "checksum-auto",
    "follow-the-better",
    "outranked",
];

/// Whether the guard of this name is switched off.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn off(_name: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
#[path = "../../tests/mutants_switch.rs"]
mod switch;

#[cfg(feature = "mutants")]
pub use switch::{off, with_off};

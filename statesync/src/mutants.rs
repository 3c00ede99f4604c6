//! Guards that a test build can switch off by name, so that the test of each guard can be seen to fail without it.
//!
//! Without the feature `mutants` this is `false`, and the compiler removes it. With it, a guard is off inside
//! `with_off` on the calling thread, or for the whole process if `HOLDFAST_MUTANTS` names it (comma-separated).

/// The names of this crate's guards.
pub const NAMES: [&str; 20] = [
    "replay-window",
    "auth",
    "source-check",
    "key-confirmation",
    "stamp",
    "owner-deletes",
    "fence",
    "lease",
    "batch-order",
    "unlisted-vip",
    "claim-by-packets",
    "promote-gate",
    "refresh-on-release",
    "refill",
    "clash",
    "claim-what-it-has",
    "claim-by-source",
    "source-keeps",
    "claim-raises-own",
    "read-before-answer",
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

//! The keeper's guards, as those of [`crate::mutants`].

/// The names of the keeper's guards.
pub const NAMES: [&str; 8] = [
    "keeper-grace",
    "keeper-hang",
    "next-limit",
    "leave-limit",
    "adopt",
    "bfd-forsake",
    "bgp-farewell",
    "bgp-half-hold",
];

#[cfg(not(feature = "mutants"))]
pub use crate::mutants::off;

#[cfg(feature = "mutants")]
#[allow(clippy::duplicate_mod, reason = "the keeper's guards have a switch of their own")]
#[path = "../../../../tests/mutants_switch.rs"]
mod switch;

#[cfg(feature = "mutants")]
pub use switch::{off, with_off};

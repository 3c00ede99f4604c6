//! The names of the keeper's guards; the switch is the crate's, [`crate::mutants`].

#[cfg(feature = "mutants")]
pub use crate::mutants::with_off;

pub use crate::mutants::off;

/// The names of the keeper's guards.
pub const NAMES: [&str; 6] = ["keeper-grace", "keeper-hang", "adopt", "bfd-forsake", "bgp-farewell", "bgp-half-hold"];

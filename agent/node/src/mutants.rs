//! Guards that a test build can switch off by name, so that the test of each guard can be seen to fail without it.
//!
//! Without the feature `mutants` this is `false`, and the compiler removes it. With it, a guard is off inside
//! `with_off` on the calling thread, or for the whole process if `HOLDFAST_MUTANTS` names it (comma-separated).

/// The names of the node's guards; the keeper's are in [`crate::keeper::mutants`].
pub const NAMES: [&str; 39] = [
    "interlock-last-node",
    "interlock-pool-differs",
    "fresh-claim-only",
    "shared-vips-only",
    "scrub-only-marked",
    "probe-before-yield",
    "witnesses",
    "sending-per-leg",
    "startup-delay",
    "partition",
    "unique-priorities",
    "announce-delay",
    "damping",
    "bgp-settle",
    "address-before-route",
    "conntrack-loss",
    "conntrack-hysteresis",
    "conntrack-sum",
    "saturated-stays",
    "full-beats-dead",
    "saturated-works",
    "hung-without-checks",
    "refused-is-not-hung",
    "sick-compares",
    "poor-margin",
    "unread-words",
    "poor-leaves",
    "poor-beats-bad",
    "best-standing",
    "stands-behind",
    "conntrack-defers",
    "hold-down",
    "hold-down-served",
    "group-members-ask",
    "flows-before-address",
    "sync-before-preempt",
    "flows-before-move",
    "way-back-first",
    "way-back-last",
];

/// Whether the guard of this name is switched off.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn off(_name: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
#[path = "../../../tests/mutants_switch.rs"]
mod switch;

#[cfg(feature = "mutants")]
pub use switch::{off, with_off};

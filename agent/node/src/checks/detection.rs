//! How long a check takes to notice a change, computed from its configuration. The schedule keeps to it exactly: tests
//! on virtual time hold the two together.

use crate::config::{Check, Config, Probe};
use std::time::Duration;

/// From the change until the verdict, at best and at worst: it depends on when the change falls between two probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The change comes just before a probe starts.
    pub min: Duration,
    /// The change comes just after a probe started.
    pub max: Duration,
}

/// Until a check that passed has failed, after what it asks stopped answering. Probes start every `interval`. The first
/// that fails takes its timeout; its failure brings the next one forward to `fast_interval` after its own start, but not
/// before now; all others follow at `fast_interval`, and the last one takes its timeout too. With
/// `fast_interval = interval` that is `(fall - 1) × interval + timeout` to `fall × interval + timeout`.
///
/// Where nothing listens any more, probes fail at once and it's quicker: this is the worst that can happen.
pub fn detection(check: &Check, config: &Config) -> Range {
    let times = |check: &Check| {
        let second = check.fast_interval.max(check.timeout);
        let steps = match u32::from(check.fall) {
            0 | 1 => Duration::ZERO,
            fall => second + check.fast_interval * (fall - 2),
        };
        let min = steps + check.timeout;
        Range { min, max: check.interval + min }
    };
    combined(check, config, &times)
}

/// Until a check that failed has passed, after what it asks answers again, at once: the first success comes with the next
/// probe, the others follow at `fast_interval`. The answers' own time comes on top. With `fast_interval = interval` that
/// is `(rise - 1) × interval` to `rise × interval`.
pub fn recovery(check: &Check, config: &Config) -> Range {
    let times = |check: &Check| {
        let min = check.fast_interval * u32::from(check.rise.saturating_sub(1));
        Range { min, max: check.interval + min }
    };
    combined(check, config, &times)
}

/// Of a group: from that of its quickest member, if that one decides, to that of its slowest.
fn combined(check: &Check, config: &Config, times: &dyn Fn(&Check) -> Range) -> Range {
    let Probe::Group(_) = &check.probe else { return times(check) };
    // Members stand before their group, so this ends.
    let own = config.checks.iter().position(|other| other == check).unwrap_or_default();
    let members = check.probe.members().map(|id| usize::from(id.0)).filter(|id| *id < own);
    let members = members.filter_map(|id| config.checks.get(id)).map(|member| combined(member, config, times));
    let both = |one: Range, other: Range| Range { min: one.min.min(other.min), max: one.max.max(other.max) };
    members.reduce(both).unwrap_or(Range { min: Duration::ZERO, max: Duration::ZERO })
}

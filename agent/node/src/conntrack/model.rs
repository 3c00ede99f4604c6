//! How many entries come in a second, though the kernel counts only how many there are: what leaves now is what came one
//! `TIME_WAIT` ago.

use std::collections::VecDeque;
use std::time::Duration;

/// Longest stay that is reckoned with, seconds: bounds the history. What stays longer is forecast too low.
const STAY_MAX_S: usize = 600;
/// Looks that are further apart than this say nothing of single seconds: the history begins anew.
const GAP_MAX_S: usize = 10;
/// Seconds over which the rate is averaged.
const SMOOTH: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Model {
    /// New entries of each of the last seconds, oldest first, as many as an entry stays. Together they are `count`.
    inflow: VecDeque<f64>,
    count: f64,
    /// Time that isn't a whole second yet.
    carried: Duration,
    /// Seconds of the history that were observed, not assumed.
    seen: usize,
}

impl Model {
    /// `since`: the look before this one.
    pub(super) fn take(&mut self, since: Option<Duration>, count: u64, time_wait: Duration) {
        let stay = usize::try_from(time_wait.as_secs()).unwrap_or(STAY_MAX_S).clamp(1, STAY_MAX_S);
        let count = as_float(count);
        let Some(since) = since.filter(|_| self.inflow.len() == stay) else { return self.begin(count, stay) };
        let elapsed = self.carried.saturating_add(since);
        let seconds = usize::try_from(elapsed.as_secs()).unwrap_or(usize::MAX);
        if seconds > GAP_MAX_S {
            return self.begin(count, stay);
        }
        self.carried = Duration::from_nanos(u64::from(elapsed.subsec_nanos()));
        if seconds == 0 {
            return;
        }
        let growth = (count - self.count) / as_float(u64::try_from(seconds).unwrap_or(1));
        for _ in 0..seconds {
            let leaves = self.inflow.pop_front().unwrap_or(0.0);
            self.inflow.push_back((growth + leaves).max(0.0));
        }
        self.seen = self.seen.saturating_add(seconds);
        // More left than the model knows of (a flush, connections that were reset): it left evenly.
        let sum: f64 = self.inflow.iter().sum();
        if sum > count {
            let share = count / sum;
            self.inflow.iter_mut().for_each(|inflow| *inflow *= share);
        }
        self.count = count;
    }

    /// All that is there came evenly.
    fn begin(&mut self, count: f64, stay: usize) {
        let each = count / as_float(u64::try_from(stay).unwrap_or(1));
        *self = Self { inflow: VecDeque::from(vec![each; stay]), count, ..Self::default() };
    }

    fn rate_exact(&self) -> f64 {
        let n = SMOOTH.min(self.inflow.len()).max(1);
        self.inflow.iter().rev().take(n).sum::<f64>() / as_float(u64::try_from(n).unwrap_or(1))
    }

    pub(super) fn rate(&self) -> u64 {
        whole(self.rate_exact())
    }

    /// Entries in the end.
    pub(super) fn forecast(&self) -> u64 {
        whole(self.rate_exact() * as_float(u64::try_from(self.inflow.len()).unwrap_or(0)))
    }

    /// Seconds until `limit` is reached if as many come from now on.
    pub(super) fn full_in_s(&self, limit: u64) -> Option<u64> {
        if self.seen < SMOOTH {
            return None;
        }
        let (rate, limit) = (self.rate_exact(), as_float(limit));
        let mut count = self.count;
        for (second, leaves) in (0..).zip(&self.inflow) {
            if count >= limit {
                return Some(second);
            }
            count += rate - leaves;
        }
        (count >= limit).then(|| u64::try_from(self.inflow.len()).unwrap_or(u64::MAX))
    }
}

#[allow(clippy::cast_precision_loss, reason = "an estimate; exact below 2^53")]
fn as_float(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is never negative")]
fn whole(n: f64) -> u64 {
    n.round() as u64
}

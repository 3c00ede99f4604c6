//! One backend set: who is in service, and with which share.

use super::maglev::Layout;
use crate::config::BackendSet;
use crate::world::{CheckState, CheckView};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A share is counted in these parts of the weight.
const WHOLE: u32 = 1_000;
/// A backend that comes back begins with so many of them …
const RAMP_FIRST: u32 = 100;
/// … and gets more in so many steps.
const RAMP_STEPS: u32 = 20;

/// How the set stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All that are healthy are in service, no others.
    Normal,
    /// More have failed than checks may take out.
    Capped,
    /// Fewer are healthy than the panic threshold says: all are in service.
    Panic,
    /// None is healthy: all are in service.
    FailOpen,
}

impl Mode {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Capped => "ejection-limited",
            Self::Panic => "panic",
            Self::FailOpen => "fail-open",
        }
    }
}

/// A backend's own state.
#[derive(Debug, Clone)]
pub(crate) struct BackendRun {
    /// What its check says; without one it is healthy.
    pub health: CheckState,
    /// When that began.
    pub since: Instant,
    /// An operator took it out.
    pub drained: bool,
    /// It gets new flows.
    pub in_service: bool,
    /// Its share grows since.
    pub ramp_from: Option<Instant>,
}

/// A set at work.
#[derive(Debug)]
pub(crate) struct SetRun {
    pub(crate) addresses: Arc<[SocketAddr]>,
    weights: Vec<u16>,
    pub(crate) probes: Vec<Option<u16>>,
    panic_threshold: u8,
    max_ejection: u8,
    slow_start: Duration,
    pub(crate) layout: Layout,
    pub(crate) backends: Vec<BackendRun>,
    pub(crate) shares: Vec<u32>,
    pub(crate) table: Arc<[u16]>,
    pub(crate) mode: Mode,
    /// When shares change by themselves.
    pub(crate) next: Option<Instant>,
}

impl SetRun {
    pub(crate) fn new(set: &BackendSet, drained: &BTreeSet<SocketAddr>, now: Instant) -> Self {
        let backends: Vec<(SocketAddr, u16)> = set.backends.iter().map(|b| (b.address, b.weight)).collect();
        let layout = Layout::new(&backends);
        let run = |b: &crate::config::Backend| BackendRun {
            health: if b.probe.is_some() { CheckState::Unknown } else { CheckState::Passed },
            since: now,
            drained: drained.contains(&b.address),
            in_service: !drained.contains(&b.address),
            ramp_from: None,
        };
        let mut run = Self {
            addresses: backends.iter().map(|(address, _)| *address).collect(),
            weights: backends.iter().map(|(_, weight)| *weight).collect(),
            probes: set.backends.iter().map(|b| b.probe).collect(),
            panic_threshold: set.panic_threshold,
            max_ejection: set.max_ejection,
            slow_start: set.slow_start,
            table: layout.base().into(),
            layout,
            backends: set.backends.iter().map(run).collect(),
            shares: Vec::new(),
            mode: Mode::Normal,
            next: None,
        };
        run.judge(now);
        run
    }

    /// What a check says of a backend now. True: something that [`Self::judge`] goes by.
    pub(crate) fn check(&mut self, backend: usize, view: &CheckView) -> bool {
        let Some(run) = self.backends.get_mut(backend) else { return false };
        let changed = run.health != view.state;
        if changed {
            run.health = view.state;
            run.since = view.since;
        }
        changed
    }

    /// An operator takes a backend out, or puts it back. True: that is new.
    pub(crate) fn drain(&mut self, backend: usize, drained: bool) -> bool {
        let Some(run) = self.backends.get_mut(backend) else { return false };
        std::mem::replace(&mut run.drained, drained) != drained
    }

    /// Backends that an operator didn't take out, and how many of them can serve as far as is known.
    pub(crate) fn healthy(&self) -> (usize, usize) {
        let candidates = self.backends.iter().filter(|run| !run.drained);
        let (mut all, mut up) = (0, 0);
        for run in candidates {
            all += 1;
            up += usize::from(run.health != CheckState::Failed);
        }
        (up, all)
    }

    /// Backends that may go on with what they have: all but those that were taken out because they are down.
    pub(crate) fn not_down(&self) -> impl Iterator<Item = SocketAddr> {
        let each = self.addresses.iter().zip(&self.backends);
        each.filter(|(_, run)| run.in_service || run.health != CheckState::Failed).map(|(address, _)| *address)
    }

    /// Who is in service, with which share, and the table that follows. True: the table changed.
    pub(crate) fn judge(&mut self, now: Instant) -> bool {
        let (up, all) = self.healthy();
        let failed = all - up;
        let allowed = (all * usize::from(self.max_ejection) / 100).max(1);
        self.mode = if up == 0 && all > 0 {
            Mode::FailOpen
        } else if up * 100 < usize::from(self.panic_threshold) * all {
            Mode::Panic
        } else if failed > allowed {
            Mode::Capped
        } else {
            Mode::Normal
        };
        let ejected = match self.mode {
            Mode::FailOpen | Mode::Panic => BTreeSet::new(),
            // Those that failed first stay out: one that fails later doesn't bring an earlier one back.
            Mode::Normal | Mode::Capped => self.failed_first(allowed),
        };
        self.next = None;
        let slow_start = self.slow_start;
        let mut shares = Vec::with_capacity(self.backends.len());
        for (at, (run, weight)) in self.backends.iter_mut().zip(&self.weights).enumerate() {
            let serves = !run.drained && !ejected.contains(&at);
            // One that is bad and used all the same isn't eased in.
            let eased = serves && !run.in_service && run.health != CheckState::Failed && !slow_start.is_zero();
            if eased {
                run.ramp_from = Some(now);
            } else if !serves || run.health == CheckState::Failed {
                run.ramp_from = None;
            }
            run.in_service = serves;
            let part = match run.ramp_from {
                _ if !serves => 0,
                None => WHOLE,
                Some(from) => match ramp(slow_start, now.saturating_duration_since(from)) {
                    Some((part, left)) => {
                        let at = now + left;
                        self.next = Some(self.next.map_or(at, |next| next.min(at)));
                        part
                    }
                    None => {
                        run.ramp_from = None;
                        WHOLE
                    }
                },
            };
            shares.push(u32::from(*weight) * part);
        }
        if shares == self.shares {
            return false;
        }
        self.shares = shares;
        let table: Arc<[u16]> = self.layout.table(&self.shares).into();
        std::mem::replace(&mut self.table, Arc::clone(&table)) != table
    }

    fn failed_first(&self, allowed: usize) -> BTreeSet<usize> {
        let failed = self.backends.iter().enumerate();
        let failed = failed.filter(|(_, run)| !run.drained && run.health == CheckState::Failed);
        let mut failed: Vec<(Instant, usize)> = failed.map(|(at, run)| (run.since, at)).collect();
        failed.sort_unstable();
        failed.into_iter().take(allowed).map(|(_, at)| at).collect()
    }
}

/// The part of its weight that a backend has so long after it came back, and how long until it has more; `None`: all.
fn ramp(slow_start: Duration, after: Duration) -> Option<(u32, Duration)> {
    let step = slow_start / RAMP_STEPS;
    if after >= slow_start || step.is_zero() {
        return None;
    }
    let done = u32::try_from(after.as_nanos() / step.as_nanos().max(1)).unwrap_or(RAMP_STEPS);
    let part = (WHOLE * done / RAMP_STEPS).max(RAMP_FIRST);
    Some((part, (step * (done + 1)).saturating_sub(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Backend;

    struct Bench {
        set: SetRun,
        now: Instant,
    }

    impl Bench {
        fn new(n: u8, panic_threshold: u8, max_ejection: u8, slow_start: Duration) -> Self {
            #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
            let now = Instant::now();
            let address = |n: u8| SocketAddr::from(([10, 2, 0, n], 80));
            let backend = |n| Backend { address: address(n), weight: 1, probe: Some(u16::from(n)) };
            let backends = (1..=n).map(backend).collect();
            let set = BackendSet { backends, panic_threshold, max_ejection, slow_start };
            Self { set: SetRun::new(&set, &BTreeSet::new(), now), now }
        }

        fn says(&mut self, backend: usize, state: CheckState) {
            self.now += Duration::from_millis(1);
            let view = CheckView { state, clean: state == CheckState::Passed, since: self.now, event: None };
            self.set.check(backend, &view);
            self.set.judge(self.now);
        }

        fn fails(&mut self, backends: impl IntoIterator<Item = usize>) {
            backends.into_iter().for_each(|backend| self.says(backend, CheckState::Failed));
        }

        fn in_service(&self) -> Vec<usize> {
            (0..self.set.backends.len()).filter(|at| self.set.backends[*at].in_service).collect()
        }
    }

    #[test]
    fn what_nothing_is_known_of_serves() {
        let bench = Bench::new(3, 0, 100, Duration::ZERO);
        assert_eq!((bench.in_service(), bench.set.mode), (vec![0, 1, 2], Mode::Normal));
        assert_eq!(&*bench.set.table, bench.set.layout.base());
    }

    #[test]
    fn one_that_fails_is_out_and_with_none_left_all_are_in() {
        let mut bench = Bench::new(3, 0, 100, Duration::ZERO);
        bench.fails([1]);
        assert_eq!((bench.in_service(), bench.set.mode), (vec![0, 2], Mode::Normal));
        bench.fails([0, 2]);
        assert_eq!((bench.in_service(), bench.set.mode), (vec![0, 1, 2], Mode::FailOpen));
        assert_eq!(&*bench.set.table, bench.set.layout.base());
        bench.says(2, CheckState::Passed);
        assert_eq!((bench.in_service(), bench.set.mode), (vec![2], Mode::Normal));
    }

    #[test]
    fn below_the_panic_threshold_all_are_in() {
        let mut bench = Bench::new(4, 50, 100, Duration::ZERO);
        bench.fails([0, 1]);
        assert_eq!((bench.in_service().len(), bench.set.mode), (2, Mode::Normal), "half is not below half");
        bench.fails([2]);
        assert_eq!((bench.in_service().len(), bench.set.mode), (4, Mode::Panic));
    }

    #[test]
    fn checks_take_out_no_more_than_they_may_and_those_that_failed_first_stay_out() {
        let mut bench = Bench::new(10, 0, 20, Duration::ZERO);
        bench.fails([7, 3, 5]);
        assert_eq!((bench.in_service().len(), bench.set.mode), (8, Mode::Capped));
        assert!(!bench.in_service().contains(&7) && !bench.in_service().contains(&3));
        bench.says(7, CheckState::Passed);
        assert!(bench.in_service().contains(&7) && !bench.in_service().contains(&5));
        let mut small = Bench::new(3, 0, 10, Duration::ZERO);
        small.fails([0]);
        assert_eq!(small.in_service(), [1, 2], "one may always go");
    }

    #[test]
    fn one_that_comes_back_gets_its_share_step_by_step() {
        let mut bench = Bench::new(2, 0, 100, Duration::from_secs(20));
        bench.fails([0]);
        bench.says(0, CheckState::Passed);
        let back = bench.now;
        let mut shares = vec![bench.set.shares[0]];
        while let Some(next) = bench.set.next {
            assert!(next > bench.now);
            bench.now = next;
            bench.set.judge(next);
            shares.push(bench.set.shares[0]);
        }
        assert_eq!(bench.now - back, Duration::from_secs(20));
        assert!(shares.is_sorted() && shares[0] == 100 && shares.last() == Some(&1_000), "{shares:?}");
        assert_eq!(shares[10], 500, "linear");
        assert_eq!(&*bench.set.table, bench.set.layout.base());
    }

    #[test]
    fn a_drained_backend_is_out_whatever_its_check_says_and_counts_for_nothing() {
        let mut bench = Bench::new(3, 0, 100, Duration::ZERO);
        assert!(bench.set.drain(0, true) && !bench.set.drain(0, true));
        bench.set.judge(bench.now);
        assert_eq!(bench.in_service(), [1, 2]);
        bench.fails([1, 2]);
        assert_eq!((bench.in_service(), bench.set.mode), (vec![1, 2], Mode::FailOpen));
        assert_eq!(bench.set.healthy(), (0, 2));
    }
}

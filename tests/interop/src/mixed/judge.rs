//! Who owned the address from when to when, read off what went over the wire. Pure.
//!
//! A router owns the address while it sends adverts with a priority other than 0, or answers ARP or neighbour
//! solicitations for it (DESIGN section 4). Both are points in time; points of one router that are no further apart
//! than an owner may be silent make a run. Runs reach from the first point to the last, so they are never longer than
//! the truth: what is found to overlap did.

use super::cell::Family;
use holdfast_lab::clock::{Ns, ms_between};
use holdfast_lab::fabric::Lb;

/// One thing that a router said about the virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// When it was on the wire.
    pub at: Ns,
    /// By whom: the port it came in at.
    pub by: Lb,
    /// The family of the virtual address.
    pub family: Family,
    /// What.
    pub what: What,
}

/// What was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An advert.
    Advert {
        /// Its priority; 0 gives up.
        priority: u8,
    },
    /// An answer to a who-has or a neighbour solicitation.
    Answer,
    /// A gratuitous ARP or an unsolicited neighbour advertisement.
    Announcement,
}

/// From the first to the last sign that a router owned the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Who.
    pub by: Lb,
    /// First sign.
    pub from: Ns,
    /// Last sign.
    pub to: Ns,
}

/// Runs of each router, by their beginning. `silent`: an owner may be silent so long. `answers`: they count, too.
#[must_use]
pub fn runs(seen: &[Seen], family: Family, silent: Ns, answers: bool) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for by in Lb::BOTH {
        let mut open: Option<Run> = None;
        for s in seen.iter().filter(|s| s.by == by && s.family == family) {
            match s.what {
                // It gave up: what it says after that is a new run.
                What::Advert { priority: 0 } => all.extend(open.take()),
                What::Answer if !answers => {}
                What::Announcement => {}
                What::Advert { .. } | What::Answer => {
                    if open.is_some_and(|r| s.at.saturating_sub(r.to) > silent) {
                        all.extend(open.take());
                    }
                    open.get_or_insert(Run { by, from: s.at, to: s.at }).to = s.at;
                }
            }
        }
        all.extend(open);
    }
    all.sort_by_key(|r| (r.from, r.by));
    all
}

/// The longest time for which both owned the address at once, in milliseconds.
#[must_use]
pub fn dual_ms(runs: &[Run]) -> f64 {
    let of = |lb: Lb| runs.iter().filter(move |r| r.by == lb);
    let overlaps = of(Lb::Lb1).flat_map(|a| of(Lb::Lb2).map(move |b| (a.from.max(b.from), a.to.min(b.to))));
    overlaps.filter(|(from, to)| to > from).map(|(from, to)| ms_between(from, to)).fold(0.0, f64::max)
}

/// Who sent adverts, in order, each only when it took over from another.
#[must_use]
pub fn owners(runs: &[Run]) -> Vec<Lb> {
    let mut all: Vec<Lb> = runs.iter().map(|r| r.by).collect();
    all.dedup();
    all
}

/// The last sign of `by` at or before `until`.
#[must_use]
pub fn last_sign(seen: &[Seen], by: Lb, family: Family, until: Ns) -> Option<Ns> {
    let mine = seen.iter().filter(|s| s.by == by && s.family == family && s.at <= until);
    mine.filter(|s| !matches!(s.what, What::Announcement)).map(|s| s.at).next_back()
}

/// The first advert with a priority other than 0 of `by` at or after `from`.
#[must_use]
pub fn first_advert(seen: &[Seen], by: Lb, family: Family, from: Ns) -> Option<Ns> {
    let claims = |s: &&Seen| matches!(s.what, What::Advert { priority } if priority > 0);
    seen.iter().filter(|s| s.by == by && s.family == family && s.at >= from).find(claims).map(|s| s.at)
}

/// The first advert with priority 0 of `by` at or after `from`.
#[must_use]
pub fn gave_up(seen: &[Seen], by: Lb, family: Family, from: Ns) -> Option<Ns> {
    let zero = |s: &&Seen| s.what == What::Advert { priority: 0 };
    seen.iter().filter(|s| s.by == by && s.family == family && s.at >= from).find(zero).map(|s| s.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_lab::clock::MS;

    const SILENT: Ns = 150 * MS;

    fn seen(by: Lb, ms: u64, what: What) -> Seen {
        Seen { at: ms * MS, by, family: Family::V4, what }
    }

    fn adverts(by: Lb, priority: u8, times: impl IntoIterator<Item = u64>) -> Vec<Seen> {
        times.into_iter().map(|t| seen(by, t, What::Advert { priority })).collect()
    }

    fn sorted(parts: &[Vec<Seen>]) -> Vec<Seen> {
        let mut all = parts.concat();
        all.sort_by_key(|s| s.at);
        all
    }

    #[test]
    fn two_that_both_send_adverts_overlap_from_the_second_ones_first_to_the_first_ones_last() {
        let all =
            sorted(&[adverts(Lb::Lb1, 200, [0, 100, 200, 300, 400]), adverts(Lb::Lb2, 100, [150, 250, 350, 450])]);
        let runs = runs(&all, Family::V4, SILENT, true);
        assert_eq!(dual_ms(&runs), 250.0);
        assert_eq!(owners(&runs), [Lb::Lb1, Lb::Lb2]);
    }

    #[test]
    fn an_answer_makes_an_owner_as_an_advert_does() {
        let answers = (100..=400).step_by(10).map(|t| seen(Lb::Lb2, t, What::Answer)).collect();
        let all = sorted(&[adverts(Lb::Lb1, 200, [0, 100, 200, 300, 400]), answers]);
        assert_eq!(dual_ms(&runs(&all, Family::V4, SILENT, true)), 300.0);
        assert_eq!(dual_ms(&runs(&all, Family::V4, SILENT, false)), 0.0);
        assert_eq!(dual_ms(&runs(&all, Family::V6, SILENT, true)), 0.0);
    }

    #[test]
    fn one_that_gave_up_owns_nothing_until_it_claims_again() {
        let zero = vec![seen(Lb::Lb1, 210, What::Advert { priority: 0 })];
        let all = sorted(&[adverts(Lb::Lb1, 200, [0, 100, 200]), zero, adverts(Lb::Lb2, 100, [270, 370])]);
        let first = runs(&all, Family::V4, SILENT, true);
        assert_eq!(first[0], Run { by: Lb::Lb1, from: 0, to: 200 * MS });
        assert_eq!(dual_ms(&first), 0.0);
        assert_eq!(gave_up(&all, Lb::Lb1, Family::V4, 0), Some(210 * MS));
        assert_eq!(first_advert(&all, Lb::Lb2, Family::V4, 210 * MS), Some(270 * MS));
        // One whose host still answers although it gave up is found out.
        let late = (300..=360).step_by(10).map(|t| seen(Lb::Lb1, t, What::Answer)).collect();
        assert_eq!(dual_ms(&runs(&sorted(&[all, late]), Family::V4, SILENT, true)), 60.0);
    }

    #[test]
    fn silence_ends_a_run_and_a_flap_shows_in_the_owners() {
        let all = sorted(&[adverts(Lb::Lb1, 200, [0, 100, 900, 1000]), adverts(Lb::Lb2, 100, [500, 600])]);
        let runs = runs(&all, Family::V4, SILENT, true);
        assert_eq!(owners(&runs), [Lb::Lb1, Lb::Lb2, Lb::Lb1]);
        assert_eq!(last_sign(&all, Lb::Lb1, Family::V4, 500 * MS), Some(100 * MS));
    }
}

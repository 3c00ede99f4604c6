//! How long a flow waited: from the moment it was owed bytes (or the last ones came while more were owed) until some came.

use crate::clock::{MS, Ns};
use crate::metrics::Span;

/// Shorter waits are not worth a note: requests are further apart.
pub const FLOOR: Ns = 20 * MS;
/// Waits a flow remembers; beyond it the shortest goes.
const NOTED: usize = 64;

/// A flow's waiting.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    since: Option<Ns>,
    noted: Vec<Span>,
}

impl Waiting {
    /// Something was asked at `t`. A flow that waits already goes on waiting since then.
    pub fn asked(&mut self, t: Ns) {
        self.since.get_or_insert(t);
    }

    /// Something came at `t`; `more`: but not all that is owed.
    pub fn answered(&mut self, t: Ns, more: bool) {
        if let Some(from) = self.since.take()
            && t.saturating_sub(from) >= FLOOR
        {
            self.note(Span { from, to: t });
        }
        if more {
            self.since = Some(t);
        }
    }

    /// For how long it has been waiting at `t`; 0: it isn't.
    #[must_use]
    pub fn age(&self, t: Ns) -> Ns {
        self.since.map_or(0, |s| t.saturating_sub(s))
    }

    /// Its longest wait that ended in `span`; one that began before a fault and was ended after it is that fault's.
    #[must_use]
    pub fn longest(&self, span: Span) -> Ns {
        let within = self.noted.iter().filter(|w| span.from < w.to && w.to <= span.to);
        within.map(|w| w.to - w.from).max().unwrap_or(0)
    }

    fn note(&mut self, wait: Span) {
        if self.noted.len() < NOTED {
            self.noted.push(wait);
            return;
        }
        let length = |w: &Span| w.to - w.from;
        if let Some(shortest) = self.noted.iter_mut().min_by_key(|w| length(w))
            && length(shortest) < length(&wait)
        {
            *shortest = wait;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Span = Span { from: 0, to: Ns::MAX };

    fn span(from: u64, to: u64) -> Span {
        Span { from: from * MS, to: to * MS }
    }

    #[test]
    fn a_wait_lasts_from_the_first_question_to_the_next_answer_whatever_is_asked_meanwhile() {
        let mut w = Waiting::default();
        for t in [100, 150, 200, 250] {
            w.asked(t * MS);
        }
        assert_eq!(w.age(300 * MS), 200 * MS);
        w.answered(430 * MS, false);
        assert_eq!((w.longest(ALL), w.age(900 * MS)), (330 * MS, 0));
    }

    #[test]
    fn who_is_owed_more_waits_on_from_what_came_last() {
        let mut w = Waiting::default();
        w.asked(100 * MS);
        w.answered(110 * MS, true);
        assert_eq!(w.age(160 * MS), 50 * MS);
        w.answered(190 * MS, true);
        w.answered(195 * MS, false);
        assert_eq!(w.longest(ALL), 80 * MS);
    }

    #[test]
    fn silence_that_nobody_asked_into_is_no_stall() {
        let mut w = Waiting::default();
        w.asked(100 * MS);
        w.answered(101 * MS, false);
        assert_eq!(w.age(60_000 * MS), 0);
        w.asked(60_000 * MS);
        w.answered(60_030 * MS, false);
        assert_eq!(w.longest(ALL), 30 * MS);
    }

    #[test]
    fn a_wait_is_the_spans_in_which_it_ended() {
        let mut w = Waiting::default();
        w.asked(990 * MS);
        w.answered(1400 * MS, false);
        w.asked(2500 * MS);
        w.answered(2600 * MS, false);
        assert_eq!(w.longest(span(0, 1000)), 0);
        assert_eq!(w.longest(span(1000, 2000)), 410 * MS);
        assert_eq!(w.longest(span(2000, 3000)), 100 * MS);
    }

    #[test]
    fn of_too_many_waits_the_longest_stay() {
        let mut w = Waiting::default();
        for n in 0..1000_u64 {
            w.asked(n * 1000 * MS);
            w.answered((n * 1000 + 20 + n % 500) * MS, false);
        }
        assert_eq!((w.noted.len(), w.longest(ALL)), (NOTED, 519 * MS));
    }
}

//! Figures from samples; pure. `METRICS.md` says in words what this module says in code.

use crate::clock::{MS, Ns, ms_between};
use crate::fabric::Lb;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::Ipv4Addr;

/// How one request or flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A complete, valid answer before the deadline.
    Ok,
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// No complete answer before the deadline.
    Timeout,
    /// The connection ended before the answer was complete.
    Truncated,
    /// A complete answer that isn't the right one (an error status, say).
    Wrong,
    /// The client's own kernel saw no way there.
    Unreachable,
}

impl Class {
    /// The class of a socket error.
    #[must_use]
    pub fn of(e: &std::io::Error) -> Self {
        match e.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => Self::Reset,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => Self::Unreachable,
            ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Wrong,
        }
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Truncated => "truncated",
            Self::Wrong => "wrong",
            Self::Unreachable => "unreachable",
        }
    }
}

/// One request of an open-loop stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When it was sent.
    pub sent: Ns,
    /// When it was decided.
    pub done: Ns,
    /// How.
    pub class: Class,
    /// Which load balancer answered: 0, 1, or 255 unknown.
    pub node: u8,
}

impl Sample {
    /// The moment that decides to which span it belongs: a refusal, a reset or a cut-off belongs where it happened;
    /// what was answered, or never was, where it was sent, [`GRACE`] allowed.
    #[must_use]
    pub fn belongs_at(&self) -> Ns {
        match self.class {
            Class::Ok | Class::Timeout => self.sent + GRACE.min(self.done - self.sent.min(self.done)),
            _ => self.done,
        }
    }
}

/// One long-lived connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Its first answer.
    pub established: Ns,
    /// When it became unusable (for a stall: when the unanswered request was sent), and how.
    pub broken: Option<(Ns, Class)>,
    /// Answers so far.
    pub requests: u32,
    /// Which load balancer answered first.
    pub node: u8,
}

/// An ARP message that claims the VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// When it was seen.
    pub at: Ns,
    /// The MAC that claims.
    pub mac: [u8; 6],
    /// Unasked for.
    pub gratuitous: bool,
}

/// A VRRP advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advert {
    /// When it was seen.
    pub at: Ns,
    /// The sender.
    pub source: Ipv4Addr,
    /// Its VRID.
    pub vrid: u8,
    /// Its priority; 0 resigns.
    pub priority: u8,
    /// The interval it announces, ms.
    pub interval_ms: u32,
}

/// A kernel gained or lost the VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// When the poll saw it.
    pub at: Ns,
    /// Whose kernel.
    pub lb: Lb,
    /// There or gone.
    pub present: bool,
}

/// How long before an event an unanswered request may have been sent and still be the event's: more than a request
/// takes on a busy machine. Successes are moved alike, so that the counts fit.
pub const GRACE: Ns = 50 * MS;

/// A span of time, start included, end not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Start.
    pub from: Ns,
    /// End.
    pub to: Ns,
}

impl Span {
    /// Whether `t` is in it.
    #[must_use]
    pub fn holds(&self, t: Ns) -> bool {
        self.from <= t && t < self.to
    }
}

/// What an open-loop stream saw in a span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outage {
    /// Requests of the span.
    pub requests: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// The longest window without a success, ms.
    pub longest_ms: f64,
    /// All such windows together, ms.
    pub sum_ms: f64,
    /// Start of the longest window.
    pub from: Option<Ns>,
    /// Failures by class.
    pub by_class: BTreeMap<&'static str, usize>,
}

/// A maximal run of consecutive failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Send time of its first failure.
    pub from: Ns,
    /// Send time of the first success after it; when none follows, of the last failure plus one interval.
    pub to: Ns,
    /// Where its first failure belongs ([`Sample::belongs_at`]).
    pub belongs_at: Ns,
}

/// The windows of a stream with nominal interval `d`. `samples` may come in any order.
#[must_use]
pub fn windows(samples: &[Sample], d: Ns) -> Vec<Window> {
    let mut sorted = samples.to_vec();
    sorted.sort_by_key(|s| s.sent);
    let mut all: Vec<Window> = Vec::new();
    let mut open: Option<Window> = None;
    for s in &sorted {
        match (&mut open, s.class) {
            (Some(w), Class::Ok) => {
                w.to = s.sent;
                all.push(*w);
                open = None;
            }
            (None, Class::Ok) => {}
            (Some(w), _) => w.to = s.sent + d,
            (None, _) => open = Some(Window { from: s.sent, to: s.sent + d, belongs_at: s.belongs_at() }),
        }
    }
    all.extend(open);
    all
}

/// What the stream saw in `span`; see [`Sample::belongs_at`]. A window belongs where its first failure belongs, and
/// counts in full.
#[must_use]
pub fn outage(samples: &[Sample], d: Ns, span: Span) -> Outage {
    let mut o = Outage::default();
    for s in samples.iter().filter(|s| span.holds(s.belongs_at())) {
        o.requests += 1;
        if s.class != Class::Ok {
            o.failed += 1;
            *o.by_class.entry(s.class.name()).or_default() += 1;
        }
    }
    for w in windows(samples, d).iter().filter(|w| span.holds(w.belongs_at)) {
        let ms = ms_between(w.from, w.to);
        o.sum_ms += ms;
        if ms > o.longest_ms {
            (o.longest_ms, o.from) = (ms, Some(w.from));
        }
    }
    o
}

/// (broken, all): flows established and usable when the span began, and those of them that broke within it.
#[must_use]
pub fn broken_flows(flows: &[Flow], span: Span) -> (usize, usize) {
    let before = flows.iter().filter(|f| f.established < span.from && f.broken.is_none_or(|(t, _)| t >= span.from));
    before.fold((0, 0), |(broken, all), f| (broken + usize::from(f.broken.is_some_and(|(t, _)| t < span.to)), all + 1))
}

/// The spans in which two different claimants held something at once, by what each was seen to claim when.
///
/// A claimant holds from its first claim to its last, as long as no gap between two of its claims is longer than
/// `gap`.
#[must_use]
pub fn dual_spans<K: Ord>(claims: impl Iterator<Item = (Ns, K)>, gap: Ns) -> Vec<Span> {
    let mut holdings: BTreeMap<K, Vec<Span>> = BTreeMap::new();
    for (at, who) in claims {
        let of = holdings.entry(who).or_default();
        match of.last_mut() {
            Some(h) if at.saturating_sub(h.to) <= gap => h.to = h.to.max(at),
            _ => of.push(Span { from: at, to: at }),
        }
    }
    let all: Vec<(&K, &Span)> = holdings.iter().flat_map(|(k, s)| s.iter().map(move |s| (k, s))).collect();
    let mut dual = Vec::new();
    for (i, (who, a)) in all.iter().enumerate() {
        for (other, b) in all.iter().skip(i + 1) {
            let both = Span { from: a.from.max(b.from), to: a.to.min(b.to) };
            if who != other && both.from < both.to {
                dual.push(both);
            }
        }
    }
    dual
}

/// [`dual_spans`] of the MACs that answer for the VIP within `span`, probed every `probe`; gaps up to two and a half
/// probes. Each gratuitous answer counts as any other.
#[must_use]
pub fn dual_holders(answers: &[Answer], probe: Ns, span: Span) -> Vec<Span> {
    dual_spans(answers.iter().filter(|a| span.holds(a.at)).map(|a| (a.at, a.mac)), probe * 5 / 2)
}

/// [`dual_spans`] of the senders of non-zero adverts within `span`; gaps up to one and a half intervals.
#[must_use]
pub fn dual_advertisers(adverts: &[Advert], vrid: u8, interval: Ns, span: Span) -> Vec<Span> {
    let ours = adverts.iter().filter(|a| a.vrid == vrid && a.priority > 0 && span.holds(a.at));
    dual_spans(ours.map(|a| (a.at, a.source)), interval * 3 / 2)
}

/// Together, ms.
#[must_use]
pub fn total_ms(spans: &[Span]) -> f64 {
    spans.iter().fold(0.0, |sum, s| sum + ms_between(s.from, s.to))
}

/// How often the sender of non-zero adverts changed within `span`, counted against who sent last before it.
#[must_use]
pub fn role_changes(adverts: &[Advert], vrid: u8, span: Span) -> usize {
    let mut owner = None;
    let mut changes = 0;
    for a in adverts.iter().filter(|a| a.vrid == vrid && a.priority > 0 && a.at < span.to) {
        if a.at >= span.from && owner.is_some_and(|o| o != a.source) {
            changes += 1;
        }
        owner = Some(a.source);
    }
    changes
}

/// How much later than its interval each advert of `source` came within `span`, ms (0 when early).
#[must_use]
pub fn advert_lateness_ms(adverts: &[Advert], source: Ipv4Addr, interval: Ns, span: Span) -> Vec<f64> {
    let times: Vec<Ns> =
        adverts.iter().filter(|a| a.source == source && a.priority > 0 && span.holds(a.at)).map(|a| a.at).collect();
    times.windows(2).filter_map(|w| Some(ms_between(*w.first()? + interval, *w.get(1)?).max(0.0))).collect()
}

/// The value below which `p` (0..=1) of the values lie (nearest rank); `None` when there are none.
#[must_use]
pub fn percentile(values: &[f64], p: f64) -> Option<f64> {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let rank = (p * v.len() as f64).ceil().max(1.0) as usize;
    v.get(rank.checked_sub(1)?).copied()
}

/// Smallest, median and largest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median: of an even number, the mean of the middle two.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// `None` when there are no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut v = values.to_vec();
        v.sort_by(f64::total_cmp);
        let (min, max) = (*v.first()?, *v.last()?);
        let mid = v.len() / 2;
        let hi = *v.get(mid)?;
        let median = if v.len() % 2 == 1 { hi } else { (hi + v.get(mid.checked_sub(1)?)?) / 2.0 };
        Some(Self { min, median, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Ns = 5 * MS;

    /// One character per request: `.` ok, anything else failed.
    fn stream(s: &str) -> Vec<Sample> {
        s.chars()
            .enumerate()
            .map(|(i, c)| {
                let sent = i as u64 * D;
                let class = match c {
                    '.' => Class::Ok,
                    'r' => Class::Refused,
                    _ => Class::Timeout,
                };
                let done = if class == Class::Timeout { sent + 500 * MS } else { sent + MS };
                Sample { sent, done, class, node: 0 }
            })
            .collect()
    }

    fn span(from_ms: u64, to_ms: u64) -> Span {
        Span { from: from_ms * MS, to: to_ms * MS }
    }

    #[test]
    fn an_outage_lasts_from_the_first_failure_to_the_next_success() {
        let o = outage(&stream("....rrrr...."), D, span(10, 1000));
        assert_eq!((o.failed, o.longest_ms, o.sum_ms), (4, 20.0, 20.0));
        assert_eq!(o.from, Some(20 * MS));
        assert_eq!(o.by_class.get("refused"), Some(&4));
    }

    #[test]
    fn the_longest_window_and_the_sum_are_told_apart() {
        let o = outage(&stream("..rr.rrr.r.."), D, span(0, 1000));
        assert_eq!((o.failed, o.longest_ms, o.sum_ms), (6, 15.0, 30.0));
    }

    #[test]
    fn no_failure_is_no_outage_and_an_unfinished_one_ends_an_interval_after_its_last_failure() {
        assert_eq!(outage(&stream("......"), D, span(0, 1000)).longest_ms, 0.0);
        assert_eq!(outage(&stream("...rrr"), D, span(0, 1000)).longest_ms, 15.0);
    }

    #[test]
    fn a_request_in_flight_when_the_fault_came_belongs_to_the_fault() {
        // Sent at 20 ms, unanswered when the fault comes at 60 ms; one span ends where the next begins.
        let s = stream("....tt......");
        assert_eq!(outage(&s, D, span(0, 60)).failed, 0);
        assert_eq!((outage(&s, D, span(60, 1000)).failed, outage(&s, D, span(60, 1000)).longest_ms), (2, 10.0));
        // One that was reset belongs where that happened, however long ago it was sent.
        let reset = [Sample { sent: 20 * MS, done: 320 * MS, class: Class::Reset, node: 0 }];
        assert_eq!(outage(&reset, D, span(300, 400)).failed, 1);
    }

    #[test]
    fn a_window_belongs_to_one_span_only() {
        let s = stream("....ttttrrrr....");
        for cut in [25, 40, 70, 75, 80, 100] {
            let (a, b) = (outage(&s, D, span(0, cut)), outage(&s, D, span(cut, 1000)));
            assert_eq!(a.longest_ms + b.longest_ms, 40.0, "{cut}");
            assert_eq!((a.failed + b.failed, a.requests + b.requests), (8, 16), "{cut}");
        }
    }

    #[test]
    fn order_of_completion_does_not_matter() {
        let mut s = stream("..tt.r..");
        s.sort_by_key(|s| s.done);
        assert_eq!(outage(&s, D, span(0, 2000)), outage(&stream("..tt.r.."), D, span(0, 2000)));
    }

    #[test]
    fn only_flows_that_were_usable_before_the_fault_can_break() {
        let flow = |established: u64, broken: Option<u64>| Flow {
            established: established * MS,
            broken: broken.map(|t| (t * MS, Class::Reset)),
            requests: 1,
            node: 0,
        };
        let flows = [
            flow(1, None),
            flow(1, Some(120)),
            flow(1, Some(50)),    // broke before
            flow(110, Some(130)), // came after
            flow(1, Some(900)),   // broke after the span
        ];
        assert_eq!(broken_flows(&flows, span(100, 500)), (1, 3));
    }

    fn answers(mac: u8, times: impl IntoIterator<Item = u64>) -> Vec<Answer> {
        times.into_iter().map(|t| Answer { at: t * MS, mac: [mac; 6], gratuitous: false }).collect()
    }

    fn merged(mut a: Vec<Answer>, b: Vec<Answer>) -> Vec<Answer> {
        a.extend(b);
        a.sort_by_key(|a| a.at);
        a
    }

    #[test]
    fn a_clean_hand_over_has_no_dual_holder() {
        let a = merged(answers(1, (0..10).map(|i| i * 10)), answers(2, (10..20).map(|i| i * 10)));
        assert_eq!(total_ms(&dual_holders(&a, 10 * MS, span(0, 1000))), 0.0);
    }

    #[test]
    fn two_answerers_are_counted_for_as_long_as_both_answer() {
        let a = merged(answers(1, (0..15).map(|i| i * 10)), answers(2, (10..20).map(|i| i * 10)));
        assert_eq!(total_ms(&dual_holders(&a, 10 * MS, span(0, 1000))), 40.0);
    }

    #[test]
    fn two_answerers_that_take_turns_are_dual_too() {
        let a = merged(answers(1, (0..20).map(|i| i * 20)), answers(2, (0..20).map(|i| i * 20 + 10)));
        assert_eq!(total_ms(&dual_holders(&a, 10 * MS, span(0, 1000))), 370.0);
    }

    #[test]
    fn a_return_after_a_pause_is_not_dual() {
        let a = [answers(1, [0, 10, 20]), answers(2, [30, 40, 50]), answers(1, [60, 70])].concat();
        assert_eq!(total_ms(&dual_holders(&a, 10 * MS, span(0, 1000))), 0.0);
    }

    #[test]
    fn a_role_changes_when_another_sender_advertises_and_not_on_a_resignation() {
        let (x, y) = (Lb::Lb1.front(), Lb::Lb2.front());
        let ad = |t: u64, source, priority| Advert { at: t * MS, source, vrid: 10, priority, interval_ms: 100 };
        let a = [ad(0, x, 254), ad(100, x, 254), ad(150, x, 0), ad(155, y, 253), ad(255, y, 253), ad(300, x, 254)];
        assert_eq!(role_changes(&a, 10, span(120, 290)), 1);
        assert_eq!(role_changes(&a, 10, span(120, 400)), 2);
        assert_eq!(role_changes(&a, 10, span(0, 140)), 0);
        assert_eq!(role_changes(&a, 11, span(0, 400)), 0);
    }

    #[test]
    fn adverts_that_cross_are_two_owners_and_a_hand_over_is_not() {
        let (x, y) = (Lb::Lb1.front(), Lb::Lb2.front());
        let ad = |t: u64, source| Advert { at: t * MS, source, vrid: 10, priority: 200, interval_ms: 100 };
        let handed = [ad(0, x), ad(100, x), ad(150, y), ad(250, y)];
        assert!(dual_advertisers(&handed, 10, 100 * MS, span(0, 1000)).is_empty());
        let crossed = [ad(0, x), ad(50, y), ad(100, x), ad(150, y), ad(250, y)];
        assert_eq!(dual_advertisers(&crossed, 10, 100 * MS, span(0, 1000)), [span(50, 100)]);
    }

    #[test]
    fn lateness_is_what_goes_beyond_the_interval() {
        let x = Lb::Lb1.front();
        let a: Vec<Advert> = [0_u64, 100, 195, 310]
            .into_iter()
            .map(|t| Advert { at: t * MS, source: x, vrid: 10, priority: 254, interval_ms: 100 })
            .collect();
        assert_eq!(advert_lateness_ms(&a, x, 100 * MS, span(0, 1000)), [0.0, 0.0, 15.0]);
    }

    #[test]
    fn medians_and_percentiles() {
        let s = Spread::of(&[4.0, 1.0, 3.0, 2.0]).expect("not empty");
        assert_eq!((s.min, s.median, s.max), (1.0, 2.5, 4.0));
        assert!(Spread::of(&[]).is_none());
        let v: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&v, 0.99), Some(99.0));
        assert_eq!(percentile(&v, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}

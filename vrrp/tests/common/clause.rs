//! One row per rule. Each row starts a router, feeds it inputs, and looks at what the last input made it do, which
//! state it is in, and when its timer is due (counted from the last input).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use holdfast_vrrp::router::{Notice, Reason, ReassertReason, Transition};
use holdfast_vrrp::wire::Advert;
use holdfast_vrrp::{ChecksumForm, Input, LegId, Output, Router, State};

use super::{LEG, advert, config, cs, drain, heard, host, ms, prio, resume, sent, start, time_zero, us};

/// Every router here is host 5, has an interval of 1 s and, unless a row says so, preempts.
pub(crate) const SELF: u8 = 5;
pub(crate) const LOW: u8 = 4;
pub(crate) const HIGH: u8 = 6;

#[derive(Clone)]
pub(crate) enum In {
    Start(u8),
    Resume(u8),
    Stop,
    /// From host, priority, interval in cs.
    Advert(u8, u8, u16),
    AdvertOf(u8, Advert),
    /// From a source, on a leg, with a checksum.
    AdvertAt(IpAddr, u16, Advert, ChecksumForm),
    Timer,
    Priority(u8),
    Source(IpAddr),
    Resign,
    Promote,
    Yield,
    OwnerLives,
    Stalled,
    Advertise,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Out {
    /// An advert with this priority.
    Sent(u8),
    SentFrom(IpAddr, u8),
    To(State, Reason),
    Reassert(ReassertReason),
    Notice(Notice),
}

pub(crate) struct Clause {
    pub(crate) section: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) preempt: bool,
    /// Inputs with the time of each in ms.
    pub(crate) inputs: Vec<(u64, In)>,
    pub(crate) outputs: Vec<Out>,
    pub(crate) state: State,
    pub(crate) timer: Option<Duration>,
}

pub(crate) fn feed(router: &mut Router, now: Instant, input: In) {
    match input {
        In::Start(p) => start(router, now, host(SELF), p),
        In::Resume(p) => resume(router, now, host(SELF), p),
        In::Stop => router.handle(now, Input::Stop),
        In::Advert(from, p, interval) => router.handle(now, heard(host(from), &advert(p, interval))),
        In::AdvertOf(from, advert) => router.handle(now, heard(host(from), &advert)),
        In::AdvertAt(source, leg, advert, form) => {
            router.handle(now, Input::Advert { leg: LegId(leg), source, advert: &advert, form });
        }
        In::Timer => router.handle(now, Input::Timer),
        In::Priority(p) => router.handle(now, Input::Priority(prio(p))),
        In::Source(source) => router.handle(now, Input::Source { leg: LEG, source }),
        In::Resign => router.handle(now, Input::Resign),
        In::Promote => router.handle(now, Input::Promote),
        In::Yield => router.handle(now, Input::Yield),
        In::OwnerLives => router.handle(now, Input::OwnerLives),
        In::Stalled => router.handle(now, Input::Stalled),
        In::Advertise => router.handle(now, Input::Advertise),
    }
}

pub(crate) fn seen(output: Output) -> Out {
    match output {
        Output::Send { .. } => match sent(&[output])[..] {
            [(_, source, priority)] if source == host(SELF) => Out::Sent(priority),
            [(_, source, priority)] => Out::SentFrom(source, priority),
            ref other => unreachable!("one output is one advert: {other:?}"),
        },
        Output::Transition(Transition { to, reason, .. }) => Out::To(to, reason),
        Output::Reassert(reason) => Out::Reassert(reason),
        Output::Notice(notice) => Out::Notice(notice),
    }
}

pub(crate) fn check(clauses: Vec<Clause>) {
    for clause in clauses {
        let zero = time_zero();
        let mut router = Router::new(config(cs(100), clause.preempt), zero);
        let mut outputs = Vec::new();
        let mut now = zero;
        for (at, input) in clause.inputs {
            now = zero + ms(at);
            feed(&mut router, now, input);
            outputs = drain(&mut router);
        }
        let outputs: Vec<Out> = outputs.into_iter().map(seen).collect();
        let name = format!("{}: {}", clause.section, clause.rule);
        assert_eq!(outputs, clause.outputs, "{name}: outputs");
        assert_eq!(router.state(), clause.state, "{name}: state");
        assert_eq!(router.poll_timeout().map(|at| at.saturating_duration_since(now)), clause.timer, "{name}: timer");
    }
}

/// A row that preempts.
pub(crate) fn clause(
    section: &'static str,
    rule: &'static str,
    inputs: Vec<(u64, In)>,
    outputs: Vec<Out>,
    state: State,
    timer: Option<Duration>,
) -> Clause {
    Clause { section, rule, preempt: true, inputs, outputs, state, timer }
}

/// A row with Preempt_Mode false.
pub(crate) fn without_preempt(clause: Clause) -> Clause {
    Clause { preempt: false, ..clause }
}

pub(crate) fn backup(p: u8, then: &[(u64, In)]) -> Vec<(u64, In)> {
    [&[(0, In::Start(p))], then].concat()
}

pub(crate) fn active(p: u8, then: &[(u64, In)]) -> Vec<(u64, In)> {
    [&[(0, In::Resume(p))], then].concat()
}

pub(crate) fn outranked(by: u8, its: u8) -> Out {
    Out::To(State::Backup, Reason::Outranked { by: host(by), its: prio(its) })
}

pub(crate) fn reassert(from: u8, its: u8) -> Out {
    Out::Reassert(ReassertReason::LosingAdvert { from: host(from), its: prio(its) })
}

pub(crate) fn equal(peer: u8) -> Out {
    Out::Notice(Notice::EqualPriority { peer: host(peer) })
}

pub(crate) const SECOND: Option<Duration> = Some(Duration::from_secs(1));

/// Active_Down_Interval at priority 100 and 1 s.
pub(crate) fn down_100() -> Option<Duration> {
    Some(us(3_609_375))
}

//! RFC 9568, clause by clause: one row per rule. Each row starts a router, feeds it inputs, and looks at what the last
//! input made it do, which state it is in, and when its timer is due (counted from the last input).

mod common;

use common::{advert, config, cs, decoded, drain, host, ms, prio, time_zero, us};
use holdfast_vrrp::router::{Notice, Reason, ReassertReason, Transition};
use holdfast_vrrp::wire::Advert;
use holdfast_vrrp::{Addresses, Input, Output, Router, State};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Every router here is host 5, has an interval of 1 s and, unless a row says so, preempts.
const SELF: u8 = 5;
const LOW: u8 = 4;
const HIGH: u8 = 6;

#[derive(Clone)]
enum In {
    Start(u8),
    Resume(u8),
    Stop,
    /// From host, priority, interval in cs.
    Advert(u8, u8, u16),
    AdvertOf(u8, Advert),
    Timer,
    Priority(u8),
    Source(Ipv4Addr),
    Resign,
    Promote,
    Yield,
    OwnerLives,
    Stalled,
}

#[derive(Debug, PartialEq)]
enum Out {
    /// An advert with this priority.
    Sent(u8),
    SentFrom(Ipv4Addr, u8),
    To(State, Reason),
    Reassert(ReassertReason),
    Notice(Notice),
}

struct Clause {
    section: &'static str,
    rule: &'static str,
    preempt: bool,
    /// Inputs with the time of each in ms.
    inputs: Vec<(u64, In)>,
    outputs: Vec<Out>,
    state: State,
    timer: Option<Duration>,
}

fn feed(router: &mut Router, now: Instant, input: In) {
    match input {
        In::Start(p) => router.handle(now, Input::Start { priority: prio(p), source: host(SELF) }),
        In::Resume(p) => router.handle(now, Input::Resume { priority: prio(p), source: host(SELF) }),
        In::Stop => router.handle(now, Input::Stop),
        In::Advert(from, p, interval) => {
            router.handle(now, Input::Advert { source: host(from), advert: &advert(p, interval) });
        }
        In::AdvertOf(from, advert) => router.handle(now, Input::Advert { source: host(from), advert: &advert }),
        In::Timer => router.handle(now, Input::Timer),
        In::Priority(p) => router.handle(now, Input::Priority(prio(p))),
        In::Source(source) => router.handle(now, Input::Source(source)),
        In::Resign => router.handle(now, Input::Resign),
        In::Promote => router.handle(now, Input::Promote),
        In::Yield => router.handle(now, Input::Yield),
        In::OwnerLives => router.handle(now, Input::OwnerLives),
        In::Stalled => router.handle(now, Input::Stalled),
    }
}

fn seen(output: Output) -> Out {
    match output {
        Output::Send { source, payload } => {
            let priority = decoded(source, &payload).priority.get();
            if source == host(SELF) { Out::Sent(priority) } else { Out::SentFrom(source, priority) }
        }
        Output::Transition(Transition { to, reason, .. }) => Out::To(to, reason),
        Output::Reassert(reason) => Out::Reassert(reason),
        Output::Notice(notice) => Out::Notice(notice),
    }
}

fn check(clauses: Vec<Clause>) {
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
fn clause(
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
fn without_preempt(clause: Clause) -> Clause {
    Clause { preempt: false, ..clause }
}

fn backup(p: u8, then: &[(u64, In)]) -> Vec<(u64, In)> {
    [&[(0, In::Start(p))], then].concat()
}

fn active(p: u8, then: &[(u64, In)]) -> Vec<(u64, In)> {
    [&[(0, In::Resume(p))], then].concat()
}

fn outranked(by: u8, its: u8) -> Out {
    Out::To(State::Backup, Reason::Outranked { by: host(by), its: prio(its) })
}

fn reassert(from: u8, its: u8) -> Out {
    Out::Reassert(ReassertReason::LosingAdvert { from: host(from), its: prio(its) })
}

fn equal(peer: u8) -> Out {
    Out::Notice(Notice::EqualPriority { peer: host(peer) })
}

const SECOND: Option<Duration> = Some(Duration::from_secs(1));

/// Active_Down_Interval at priority 100 and 1 s.
fn down_100() -> Option<Duration> {
    Some(us(3_609_375))
}

#[test]
fn initialize_follows_6_4_1() {
    use State::{Active, Backup, Initialize};
    check(vec![
        clause(
            "6.4.1",
            "an owner (255) starts as Active and advertises",
            vec![(0, In::Start(255))],
            vec![Out::To(Active, Reason::StartedAsOwner), Out::Sent(255)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.1",
            "others start as Backup with Active_Down from their own interval",
            vec![(0, In::Start(100))],
            vec![Out::To(Backup, Reason::Started)],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.1",
            "an advert before Startup changes nothing",
            vec![(0, In::Advert(HIGH, 200, 100))],
            vec![],
            Initialize,
            None,
        ),
        clause("6.4.1", "no timer runs before Startup", vec![(0, In::Timer)], vec![], Initialize, None),
        clause("6.4.1", "Shutdown before Startup changes nothing", vec![(0, In::Stop)], vec![], Initialize, None),
        clause(
            "6.4.1",
            "a second Startup is ignored",
            backup(100, &[(5, In::Start(255))]),
            vec![],
            Backup,
            Some(us(3_604_375)),
        ),
        clause(
            "ours",
            "a resumed router is Active at once and says so",
            vec![(0, In::Resume(254))],
            vec![Out::To(Active, Reason::Resumed), Out::Sent(254)],
            Active,
            SECOND,
        ),
        clause(
            "ours",
            "Resume means nothing once started",
            backup(100, &[(0, In::Resume(100))]),
            vec![],
            Backup,
            down_100(),
        ),
        clause(
            "ours",
            "a priority of 0 is no router's own: it becomes the last resort",
            vec![(0, In::Resume(0))],
            vec![Out::To(Active, Reason::Resumed), Out::Sent(1)],
            Active,
            SECOND,
        ),
    ]);
}

#[test]
fn backup_follows_6_4_2() {
    use State::{Active, Backup, Initialize};
    let gap = |ms_: u64| Some(us(3_609_375) - ms(ms_));
    check(vec![
        clause(
            "6.4.2",
            "Shutdown is silent",
            backup(100, &[(7, In::Stop)]),
            vec![Out::To(Initialize, Reason::Stopped)],
            Initialize,
            None,
        ),
        clause(
            "6.4.2",
            "Active_Down_Timer fires: advert, Active",
            backup(100, &[(3_610, In::Timer)]),
            vec![Out::To(Active, Reason::DownTimer { silent: None }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.2",
            "a timer called too early does nothing",
            backup(100, &[(3_609, In::Timer)]),
            vec![],
            Backup,
            Some(us(375)),
        ),
        clause(
            "6.4.2",
            "the time of silence is told",
            backup(100, &[(1_000, In::Advert(HIGH, 200, 100)), (5_000, In::Timer)]),
            vec![Out::To(Active, Reason::DownTimer { silent: Some(ms(4_000)) }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.2",
            "priority 0 sets the timer to Skew_Time",
            backup(100, &[(500, In::Advert(HIGH, 0, 100))]),
            vec![],
            Backup,
            Some(us(609_375)),
        ),
        clause(
            "6.4.2",
            "after priority 0 the skew passes, then Active",
            backup(100, &[(500, In::Advert(HIGH, 0, 100)), (1_110, In::Timer)]),
            vec![Out::To(Active, Reason::PeerResigned { peer: host(HIGH) }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.2, differs",
            "a repeated priority 0 doesn't postpone",
            backup(100, &[(500, In::Advert(HIGH, 0, 100)), (600, In::Advert(HIGH, 0, 100))]),
            vec![],
            Backup,
            Some(us(509_375)),
        ),
        clause(
            "6.4.2",
            "a higher advert after a priority 0 re-arms the whole down time",
            backup(100, &[(500, In::Advert(HIGH, 0, 100)), (600, In::Advert(LOW, 200, 100))]),
            vec![],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.2",
            "a higher priority re-arms",
            backup(100, &[(900, In::Advert(LOW, 101, 100))]),
            vec![],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.2",
            "an equal priority re-arms, whatever its address",
            backup(100, &[(900, In::Advert(LOW, 100, 100))]),
            vec![equal(LOW)],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.2",
            "a lower priority is discarded when we preempt",
            backup(100, &[(900, In::Advert(HIGH, 99, 100))]),
            vec![],
            Backup,
            gap(900),
        ),
        clause(
            "6.4.2",
            "and is preempted when the timer fires",
            backup(100, &[(900, In::Advert(HIGH, 99, 100)), (3_610, In::Timer)]),
            vec![Out::To(Active, Reason::Preempt { peer: host(HIGH), its: prio(99) }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.2",
            "a lower one heard longer ago than a down time was not preempted",
            backup(100, &[(0, In::Advert(HIGH, 99, 100)), (3_610, In::Timer)]),
            vec![Out::To(Active, Reason::DownTimer { silent: None }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        without_preempt(clause(
            "6.4.2",
            "a lower priority re-arms when Preempt_Mode is false",
            backup(100, &[(900, In::Advert(HIGH, 1, 100))]),
            vec![],
            Backup,
            down_100(),
        )),
        without_preempt(clause(
            "6.4.2",
            "priority 0 is heeded when Preempt_Mode is false",
            backup(100, &[(900, In::Advert(HIGH, 0, 100))]),
            vec![],
            Backup,
            Some(us(609_375)),
        )),
        clause(
            "6.4.2, 6.1",
            "the Active's interval is adopted, and both timers follow it",
            backup(100, &[(900, In::Advert(HIGH, 200, 10))]),
            vec![Out::Notice(Notice::IntervalMismatch { peer: host(HIGH), theirs: cs(10) })],
            Backup,
            Some(us(360_937)),
        ),
        clause(
            "6.4.2, 6.1",
            "the skew after priority 0 comes from the adopted interval",
            backup(100, &[(900, In::Advert(HIGH, 200, 10)), (950, In::Advert(HIGH, 0, 10))]),
            vec![Out::Notice(Notice::IntervalMismatch { peer: host(HIGH), theirs: cs(10) })],
            Backup,
            Some(us(60_937)),
        ),
        clause(
            "6.4.2, 6.1",
            "a discarded advert's interval is not adopted",
            backup(100, &[(900, In::Advert(HIGH, 99, 10))]),
            vec![Out::Notice(Notice::IntervalMismatch { peer: host(HIGH), theirs: cs(10) })],
            Backup,
            gap(900),
        ),
        clause(
            "6.4.2",
            "once Active, our own interval counts",
            backup(100, &[(0, In::Advert(HIGH, 200, 10)), (400, In::Timer)]),
            vec![Out::To(Active, Reason::DownTimer { silent: Some(ms(400)) }), Out::Sent(100)],
            Active,
            SECOND,
        ),
    ]);
}

#[test]
fn active_follows_6_4_3() {
    use State::{Active, Backup, Initialize};
    let left = |ms_: u64| Some(ms(ms_));
    check(vec![
        clause(
            "6.4.3",
            "Shutdown sends priority 0",
            active(100, &[(7, In::Stop)]),
            vec![Out::Sent(0), Out::To(Initialize, Reason::Stopped)],
            Initialize,
            None,
        ),
        clause(
            "6.4.3",
            "Adver_Timer fires: advert, and again",
            active(100, &[(1_000, In::Timer)]),
            vec![Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.3",
            "a timer called too early does nothing",
            active(100, &[(999, In::Timer)]),
            vec![],
            Active,
            left(1),
        ),
        clause(
            "6.4.3",
            "a little late, the rhythm is kept",
            active(100, &[(1_200, In::Timer)]),
            vec![Out::Sent(100)],
            Active,
            left(800),
        ),
        clause(
            "6.4.3",
            "hours late, one advert is sent",
            active(100, &[(9_999_999, In::Timer)]),
            vec![Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.3",
            "priority 0 is answered at once and resets Adver_Timer",
            active(100, &[(400, In::Advert(HIGH, 0, 100))]),
            vec![Out::Sent(100), reassert(HIGH, 0)],
            Active,
            SECOND,
        ),
        clause(
            "6.4.3",
            "a higher priority makes it Backup, after one last advert",
            active(100, &[(400, In::Advert(LOW, 101, 100))]),
            vec![Out::Sent(100), outranked(LOW, 101)],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.3, 6.1",
            "and it adopts the winner's interval",
            active(100, &[(400, In::Advert(LOW, 101, 10))]),
            vec![
                Out::Notice(Notice::IntervalMismatch { peer: host(LOW), theirs: cs(10) }),
                Out::Sent(100),
                outranked(LOW, 101),
            ],
            Backup,
            Some(us(360_937)),
        ),
        clause(
            "6.4.3",
            "equal priority, higher address: Backup",
            active(100, &[(400, In::Advert(HIGH, 100, 100))]),
            vec![equal(HIGH), Out::Sent(100), outranked(HIGH, 100)],
            Backup,
            down_100(),
        ),
        clause(
            "6.4.3",
            "equal priority, lower address: it is the other that loses",
            active(100, &[(400, In::Advert(LOW, 100, 100))]),
            vec![equal(LOW), Out::Sent(100), reassert(LOW, 100)],
            Active,
            left(600),
        ),
        clause(
            "6.4.3",
            "a losing advert is answered at once; Adver_Timer runs on",
            active(100, &[(400, In::Advert(HIGH, 99, 100))]),
            vec![Out::Sent(100), reassert(HIGH, 99)],
            Active,
            left(600),
        ),
        without_preempt(clause(
            "6.4.3",
            "a higher priority wins over an Active whatever Preempt_Mode",
            active(100, &[(400, In::Advert(LOW, 101, 100))]),
            vec![Out::Sent(100), outranked(LOW, 101)],
            Backup,
            down_100(),
        )),
    ]);
}

#[test]
fn addresses_compare_as_numbers_in_network_order() {
    let zero = time_zero();
    let of = |source: [u8; 4]| Ipv4Addr::from(source);
    for (ours, theirs) in
        [([10, 0, 0, 9], [10, 0, 0, 10]), ([9, 255, 255, 255], [10, 0, 0, 0]), ([100, 0, 0, 1], [192, 0, 0, 1])]
    {
        let run = |ours, theirs| {
            let mut router = Router::new(config(cs(100), true), zero);
            router.handle(zero, Input::Resume { priority: prio(100), source: ours });
            router.handle(zero, Input::Advert { source: theirs, advert: &advert(100, 100) });
            router.state()
        };
        assert_eq!(run(of(ours), of(theirs)), State::Backup, "{ours:?} loses to {theirs:?}");
        assert_eq!(run(of(theirs), of(ours)), State::Active, "{theirs:?} wins over {ours:?}");
    }
}

#[test]
fn reception_follows_7_1() {
    use State::{Active, Backup};
    let other_addresses = |priority| Advert {
        addresses: Addresses::new([Ipv4Addr::new(192, 0, 2, 99)]).unwrap(),
        ..advert(priority, 100)
    };
    let other_vrid = Advert { vrid: holdfast_vrrp::Vrid::new(11).unwrap(), ..advert(255, 100) };
    check(vec![
        clause(
            "7.1",
            "a different address list is told, not a reason to drop",
            backup(100, &[(900, In::AdvertOf(HIGH, other_addresses(200)))]),
            vec![Out::Notice(Notice::AddressMismatch { peer: host(HIGH) })],
            Backup,
            down_100(),
        ),
        clause(
            "7.1, erratum 8298",
            "two owners are told and elect by address: the lower loses",
            vec![(0, In::Start(255)), (400, In::Advert(HIGH, 255, 100))],
            vec![Out::Notice(Notice::SecondOwner { peer: host(HIGH) }), Out::Sent(255), outranked(HIGH, 255)],
            Backup,
            Some(us(3_003_906)),
        ),
        clause(
            "7.1, erratum 8298",
            "two owners are told and elect by address: the higher stays",
            vec![(0, In::Start(255)), (400, In::Advert(LOW, 255, 100))],
            vec![Out::Notice(Notice::SecondOwner { peer: host(LOW) }), Out::Sent(255), reassert(LOW, 255)],
            Active,
            Some(ms(600)),
        ),
        clause(
            "7.1",
            "another virtual router's advert is ignored",
            active(100, &[(400, In::AdvertOf(HIGH, other_vrid))]),
            vec![],
            Active,
            Some(ms(600)),
        ),
        clause(
            "ours",
            "our own advert looped back is ignored",
            active(100, &[(400, In::Advert(SELF, 255, 100))]),
            vec![Out::Notice(Notice::OwnSource)],
            Active,
            Some(ms(600)),
        ),
        clause(
            "ours",
            "our own resignation looped back doesn't shorten the wait",
            active(100, &[(400, In::Resign), (400, In::Advert(SELF, 0, 100))]),
            vec![Out::Notice(Notice::OwnSource)],
            Backup,
            down_100(),
        ),
    ]);
}

#[test]
fn a_node_can_give_take_and_keep_the_address() {
    use State::{Active, Backup, Initialize};
    check(vec![
        clause(
            "Resign",
            "priority 0, then Backup with a whole down time",
            active(100, &[(400, In::Resign)]),
            vec![Out::Sent(0), Out::To(Backup, Reason::Resigned)],
            Backup,
            down_100(),
        ),
        clause(
            "Resign",
            "the down time is that of the priority it has by then",
            active(100, &[(300, In::Priority(1)), (400, In::Resign)]),
            vec![Out::Sent(0), Out::To(Backup, Reason::Resigned)],
            Backup,
            Some(us(3_996_093)),
        ),
        clause(
            "Resign",
            "nobody took it: it comes back",
            active(100, &[(0, In::Resign), (3_610, In::Timer)]),
            vec![Out::To(Active, Reason::DownTimer { silent: None }), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause("Resign", "means nothing to a Backup", backup(100, &[(0, In::Resign)]), vec![], Backup, down_100()),
        clause("Resign", "means nothing before Startup", vec![(0, In::Resign)], vec![], Initialize, None),
        clause(
            "Promote",
            "a Backup goes Active at once",
            backup(100, &[(5, In::Promote)]),
            vec![Out::To(Active, Reason::Promoted), Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "Promote",
            "means nothing to an Active",
            active(100, &[(5, In::Promote)]),
            vec![],
            Active,
            Some(ms(995)),
        ),
        clause("Promote", "means nothing before Startup", vec![(5, In::Promote)], vec![], Initialize, None),
        clause(
            "Yield",
            "an Active becomes Backup without a word",
            active(100, &[(5, In::Yield)]),
            vec![Out::To(Backup, Reason::Yielded)],
            Backup,
            down_100(),
        ),
        clause(
            "Yield",
            "means nothing to a Backup",
            backup(100, &[(5, In::Yield)]),
            vec![],
            Backup,
            Some(us(3_604_375)),
        ),
        clause(
            "OwnerLives",
            "re-arms the whole down time",
            backup(100, &[(3_000, In::OwnerLives)]),
            vec![],
            Backup,
            down_100(),
        ),
        clause(
            "OwnerLives",
            "also after a priority 0",
            backup(100, &[(500, In::Advert(HIGH, 0, 100)), (600, In::OwnerLives)]),
            vec![],
            Backup,
            down_100(),
        ),
        clause(
            "OwnerLives",
            "means nothing to an Active",
            active(100, &[(5, In::OwnerLives)]),
            vec![],
            Active,
            Some(ms(995)),
        ),
    ]);
}

#[test]
fn a_new_priority_is_told_at_once_and_moves_the_deadline() {
    use State::{Active, Backup, Initialize};
    check(vec![
        clause(
            "Priority",
            "lowered while Active: an advert carries it at once",
            active(254, &[(400, In::Priority(1))]),
            vec![Out::Sent(1)],
            Active,
            SECOND,
        ),
        clause(
            "Priority",
            "raised while Active: likewise",
            active(100, &[(400, In::Priority(254))]),
            vec![Out::Sent(254)],
            Active,
            SECOND,
        ),
        clause(
            "Priority",
            "unchanged: nothing",
            active(100, &[(400, In::Priority(100))]),
            vec![],
            Active,
            Some(ms(600)),
        ),
        clause(
            "Priority",
            "raised in Backup: the skew shrinks, counted from what was heard",
            backup(100, &[(500, In::Advert(HIGH, 255, 100)), (1_500, In::Priority(254))]),
            vec![],
            Backup,
            Some(us(2_007_812)),
        ),
        clause(
            "Priority",
            "lowered in Backup: the skew grows",
            backup(100, &[(500, In::Advert(HIGH, 255, 100)), (1_500, In::Priority(1))]),
            vec![],
            Backup,
            Some(us(2_996_093)),
        ),
        clause(
            "Priority",
            "after a priority 0 only the skew changes",
            backup(100, &[(500, In::Advert(HIGH, 0, 100)), (500, In::Priority(254))]),
            vec![],
            Backup,
            Some(us(7_812)),
        ),
        clause(
            "Priority",
            "0 is taken as the last resort",
            active(100, &[(400, In::Priority(0))]),
            vec![Out::Sent(1)],
            Active,
            SECOND,
        ),
        clause("Priority", "before Startup: nothing to say", vec![(0, In::Priority(254))], vec![], Initialize, None),
        clause(
            "Source",
            "the next advert comes from the new address",
            active(100, &[(400, In::Source(host(9))), (1_000, In::Timer)]),
            vec![Out::SentFrom(host(9), 100)],
            Active,
            SECOND,
        ),
    ]);
}

#[test]
fn a_stalled_node_listens_before_it_claims() {
    use State::{Active, Backup, Initialize};
    let stalled = |then: &[(u64, In)]| active(100, &[&[(5_000, In::Stalled)], then].concat());
    check(vec![
        clause(
            "Stalled",
            "an Active is silent for one interval",
            stalled(&[(5_000, In::Timer)]),
            vec![],
            Active,
            SECOND,
        ),
        clause(
            "Stalled",
            "then goes on and announces again",
            stalled(&[(6_000, In::Timer)]),
            vec![Out::Sent(100), Out::Reassert(ReassertReason::Stalled)],
            Active,
            SECOND,
        ),
        clause(
            "Stalled",
            "and only once",
            stalled(&[(6_000, In::Timer), (7_000, In::Timer)]),
            vec![Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "Stalled",
            "told twice, the silence isn't prolonged",
            stalled(&[(5_500, In::Stalled)]),
            vec![],
            Active,
            Some(ms(500)),
        ),
        clause(
            "Stalled",
            "a better advert meanwhile: Backup",
            stalled(&[(5_100, In::Advert(LOW, 200, 100))]),
            vec![Out::Sent(100), outranked(LOW, 200)],
            Backup,
            down_100(),
        ),
        clause(
            "Stalled",
            "a losing advert ends the silence: the timer is due",
            stalled(&[(5_100, In::Advert(LOW, 99, 100))]),
            vec![],
            Active,
            Some(Duration::ZERO),
        ),
        clause(
            "Stalled",
            "and the timer answers it",
            stalled(&[(5_100, In::Advert(LOW, 99, 100)), (5_100, In::Timer)]),
            vec![Out::Sent(100), reassert(LOW, 99)],
            Active,
            SECOND,
        ),
        clause(
            "Stalled",
            "unless a better one was behind it in the socket",
            stalled(&[(5_100, In::Advert(LOW, 99, 100)), (5_100, In::Advert(LOW, 200, 100))]),
            vec![Out::Sent(100), outranked(LOW, 200)],
            Backup,
            down_100(),
        ),
        clause(
            "Stalled",
            "a new priority waits for the next advert",
            stalled(&[(5_100, In::Priority(50))]),
            vec![],
            Active,
            Some(ms(900)),
        ),
        clause(
            "Stalled",
            "and is carried by it",
            stalled(&[(5_100, In::Priority(50)), (6_000, In::Timer)]),
            vec![Out::Sent(50), Out::Reassert(ReassertReason::Stalled)],
            Active,
            SECOND,
        ),
        clause(
            "Stalled",
            "a Backup listens for a whole down time",
            backup(100, &[(9_000, In::Stalled), (9_000, In::Timer)]),
            vec![],
            Backup,
            down_100(),
        ),
        clause("Stalled", "means nothing before Startup", vec![(0, In::Stalled)], vec![], Initialize, None),
    ]);
}

//! RFC 9568, clause by clause.

mod common;

use std::net::{IpAddr, Ipv4Addr};

use common::clause::*;
use common::{advert, config, cs, heard, host, ms, prio, resume, time_zero, us};
use holdfast_vrrp::router::{Notice, Reason};
use holdfast_vrrp::wire::Advert;
use holdfast_vrrp::{Addresses, Router, State};

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
            backup(100, &[(900, In::Advert(HIGH, 2, 100))]),
            vec![],
            Backup,
            down_100(),
        )),
        without_preempt(clause(
            "6.1",
            "an owner preempts when Preempt_Mode is false",
            vec![
                (0, In::Start(255)),
                (400, In::Advert(HIGH, 255, 100)),
                (900, In::Advert(HIGH, 255, 100)),
                (1_000, In::Advert(LOW, 254, 100)),
            ],
            vec![],
            Backup,
            Some(us(3_003_906) - ms(100)),
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
    let of = |source: [u8; 4]| IpAddr::from(source);
    for (ours, theirs) in
        [([10, 0, 0, 9], [10, 0, 0, 10]), ([9, 255, 255, 255], [10, 0, 0, 0]), ([100, 0, 0, 1], [192, 0, 0, 1])]
    {
        let run = |ours, theirs| {
            let mut router = Router::new(config(cs(100), true), zero);
            resume(&mut router, zero, ours, 100);
            router.handle(zero, heard(theirs, &advert(100, 100)));
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

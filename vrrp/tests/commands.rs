//! What a node may ask of its router beyond RFC 9568: give, take, keep, another priority, a stall.

mod common;

use std::time::Duration;

use common::clause::*;
use common::{host, ms, us};
use holdfast_vrrp::State;
use holdfast_vrrp::router::{Reason, ReassertReason};

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

#[test]
fn an_advert_that_goes_out_early_is_followed_by_the_next_an_interval_later() {
    use State::{Active, Backup, Initialize};
    check(vec![
        clause(
            "Advertise",
            "the advert goes out now, and the next an interval from now",
            active(100, &[(950, In::Advertise)]),
            vec![Out::Sent(100)],
            Active,
            SECOND,
        ),
        clause(
            "Advertise",
            "the timer that was due then has nothing to do",
            active(100, &[(950, In::Advertise), (1_000, In::Timer)]),
            vec![],
            Active,
            Some(ms(950)),
        ),
        clause(
            "Advertise",
            "an advert that is due is the timer's",
            active(100, &[(1_000, In::Advertise)]),
            vec![],
            Active,
            Some(ms(0)),
        ),
        clause(
            "Advertise",
            "a silence after a stall is kept",
            active(100, &[(400, In::Stalled), (1_350, In::Advertise)]),
            vec![],
            Active,
            Some(ms(50)),
        ),
        clause(
            "Advertise",
            "means nothing to a Backup",
            backup(100, &[(5, In::Advertise)]),
            vec![],
            Backup,
            Some(us(3_604_375)),
        ),
        clause("Advertise", "means nothing before Startup", vec![(0, In::Advertise)], vec![], Initialize, None),
    ]);
}

//! Units that VRRP holds and BGP announces.

use super::lab::*;
use crate::Input;
use crate::io::Answer;
use crate::journal::Kind;
use holdfast_vrrp::State;
use std::time::Duration;

/// Two hosts on a segment with a router, long enough for their sessions to count.
fn pair() -> Lab {
    let mut lab = Lab::new(&[254, 253], true).with_routers(1);
    lab.hosts.iter_mut().for_each(|host| speaks(&mut host.config, 1));
    (0..2).for_each(|i| lab.start(i));
    lab.run(ms(15_000));
    assert_eq!((lab.owners(), lab.routers[0].ways(VIP)), (vec![0], vec![0]), "{}", lab.story());
    lab.forget_duals();
    lab.unowned_max = Duration::ZERO;
    lab
}

#[test]
fn its_owner_announces_it_and_nobody_else() {
    let mut lab = pair();
    lab.kill_balancer(0);
    lab.run(ms(500));
    assert_eq!((lab.owners(), lab.routers[0].ways(VIP)), (vec![1], vec![1]), "{}", lab.story());
    lab.revive_balancer(0);
    lab.run(ms(5_000));
    assert_eq!((lab.owners(), lab.routers[0].ways(VIP)), (vec![0], vec![0]), "{}", lab.story());
    assert!(lab.has(0, |k| matches!(k, Kind::RouteWithdrawn { .. })));
}

#[test]
fn a_cold_start_holds_it_before_sessions_settle_and_calls_nobody_unable() {
    let mut lab = Lab::new(&[254, 253], true).with_routers(1);
    lab.hosts.iter_mut().for_each(|host| speaks(&mut host.config, 1));
    (0..2).for_each(|i| lab.start(i));
    lab.run(ms(3_000));
    assert_eq!(lab.owners().len(), 1, "{}", lab.story());
    assert!(!(0..2).any(|i| lab.has(i, |k| matches!(k, Kind::FailOpen { .. }))), "{}", lab.story());
    let status = lab.node(0).status(lab.now);
    assert!(status.vips[0].reasons.iter().any(|r| r.contains("settle")), "{:?}", status.vips[0].reasons);
}

#[test]
fn who_has_no_router_gives_way_to_who_has_one() {
    let mut lab = pair();
    // Only this host's session ends, and it isn't taken again.
    lab.hosts[0].routers_cut = true;
    lab.lose_router(0, 0);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [1], "{}", lab.story());
    assert!(lab.routers[0].ways(VIP).contains(&1), "{}", lab.story());
    assert!(lab.has(0, |k| matches!(k, Kind::RouteWithdrawn { .. })));
    assert!(lab.dual_max <= ms(120), "{:?}", lab.dual_max);
}

#[test]
fn all_routers_away_move_nothing() {
    let mut lab = pair();
    lab.router(0, false);
    lab.run(ms(10_000));
    assert_eq!(lab.owners(), [0], "both are as bad: {}", lab.story());
    lab.router(0, true);
    lab.run(ms(20_000));
    assert_eq!((lab.owners(), lab.routers[0].ways(VIP)), (vec![0], vec![0]), "{}", lab.story());
}

#[test]
fn a_restarted_worker_moves_nothing_and_costs_no_route() {
    let mut lab = pair();
    let (since, epoch) = (lab.at(), lab.node(0).world().vips[0].role_epoch);
    lab.crash(0);
    lab.run(ms(100));
    lab.boot(0, vec![("web".to_owned(), epoch)]);
    lab.run(ms(20_000));
    assert_eq!(lab.owners(), [0], "{}", lab.story());
    assert_eq!(lab.node(1).world().vips[0].state, State::Backup);
    let changes: Vec<_> = lab.routers[0].changes.iter().filter(|(at, ..)| *at >= since).collect();
    assert!(changes.is_empty(), "{changes:?}\n{}", lab.story());
}

#[test]
fn a_drain_moves_it_and_a_stop_closes_after_the_route_has_moved() {
    let mut lab = pair();
    let token = lab.drain(0, &[], false);
    lab.run(ms(3_000));
    assert!(matches!(lab.answer(0, token), Some(Answer::Done(_))), "{}", lab.story());
    assert_eq!((lab.owners(), lab.routers[0].ways(VIP)), (vec![1], vec![1]), "{}", lab.story());
    assert!(lab.unowned_max.is_zero());
    let since = lab.at();
    lab.feed(1, Input::Stop { deadline: ms(3_000) });
    lab.run(ms(3_000));
    assert!(lab.hosts[1].stopped, "{}", lab.story());
    let told = lab.routers[0].told_by(1, since);
    let at = |test: &dyn Fn(&Told) -> bool| told.iter().position(|told| test(told));
    let gone = at(&|t| matches!(t, Told::Withdrawn(_))).expect("withdrawn");
    assert!(gone < at(&|t| matches!(t, Told::Notification(_))).expect("told why"), "{told:?}");
    assert_eq!(lab.hosts[1].kernel.len(), 1, "only its own address");
}

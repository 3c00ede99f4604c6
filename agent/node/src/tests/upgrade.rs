//! A worker that gives its place to another one.

use super::lab::*;
use crate::drain::STOPPING;
use crate::io::{Answer, Input, Output, Request};
use crate::journal::Kind;
use crate::upgrade::{DRAINING, NOT_READY, SHORT_INTERVAL, UPGRADING};
use holdfast_vrrp::AdvertInterval;

fn upgrade(lab: &mut Lab, i: usize) -> u64 {
    lab.operator(i, Request::Upgrade { who: "uid 0".to_owned() })
}

fn asked(lab: &Lab, i: usize) -> usize {
    lab.hosts[i].log.iter().filter(|(_, output)| *output == Output::Replace).count()
}

fn refused(lab: &Lab, i: usize, token: u64, by: &str) -> bool {
    let told = matches!(lab.answer(i, token), Some(Answer::Refused { interlock, .. }) if interlock == by);
    let kept = |kind: &Kind| matches!(kind, Kind::UpgradeRefused { interlock, .. } if interlock == by);
    told && lab.hosts[i].events.iter().any(|(_, event)| kept(&event.kind))
}

#[test]
fn another_worker_is_asked_for_and_when_it_is_ready_nothing_is_released_and_the_next_one_resumes() {
    let mut lab = Lab::settled(&[254, 253], true);
    let token = upgrade(&mut lab, 0);
    assert_eq!((asked(&lab, 0), lab.answer(0, token)), (1, None));
    lab.run(ms(500));
    lab.hosts[0].log.clear();
    lab.feed(0, Input::Replaced { result: Ok(42) });
    assert_eq!(lab.answer(0, token), Some(&Answer::Done("worker 42 takes over".to_owned())));
    assert!(lab.hosts[0].events.iter().any(|(_, e)| matches!(&e.kind, Kind::WorkerReplaced { pid: 42, .. })));
    let said = |output: &Output| !matches!(output, Output::Answer { .. } | Output::Event(_));
    assert!(!lab.hosts[0].log.iter().any(|(_, output)| said(output)), "{}", lab.story());
    let epoch = lab.hosts[0].records[&0].role_epoch;
    lab.crash(0);
    lab.run(ms(50));
    lab.boot(0, vec![("web".to_owned(), epoch)]);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0]);
    assert!(lab.unowned_max.is_zero() && lab.dual_max.is_zero(), "{}", lab.story());
}

#[test]
fn a_worker_whose_successor_is_not_ready_goes_on_and_says_why() {
    let mut lab = Lab::settled(&[254, 253], true);
    let token = upgrade(&mut lab, 0);
    let second = upgrade(&mut lab, 0);
    assert!(refused(&lab, 0, second, UPGRADING));
    lab.feed(0, Input::Replaced { result: Err("exit status 1".to_owned()) });
    assert!(refused(&lab, 0, token, NOT_READY));
    lab.run(ms(1_000));
    assert_eq!(lab.owners(), [0]);
    upgrade(&mut lab, 0);
    assert_eq!(asked(&lab, 0), 2, "it may be tried again");
}

#[test]
fn where_the_peers_would_not_wait_for_the_other_worker_it_is_refused_while_a_vip_is_here() {
    let often = |config: &mut crate::config::Config| {
        config.vips[0].vrrp.interval = AdvertInterval::from_cs(9).expect("an interval");
    };
    let mut lab = Lab::settled_with(&[254, 253], true, often);
    let (here, there) = (upgrade(&mut lab, 0), upgrade(&mut lab, 1));
    assert!(refused(&lab, 0, here, SHORT_INTERVAL));
    assert_eq!((asked(&lab, 0), asked(&lab, 1)), (0, 1));
    assert_eq!(lab.answer(1, there), None);
}

#[test]
fn while_somebody_waits_for_a_drain_or_the_agent_stops_it_is_refused() {
    let mut lab = Lab::settled(&[254], false);
    lab.drain(0, &[crate::drain::LAST_NODE], false);
    let token = upgrade(&mut lab, 0);
    assert!(refused(&lab, 0, token, DRAINING));
    lab.feed(0, Input::Stop { deadline: ms(5_000) });
    let token = upgrade(&mut lab, 0);
    assert!(refused(&lab, 0, token, STOPPING));
    assert_eq!(asked(&lab, 0), 0);
}

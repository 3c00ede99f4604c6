//! Units of several virtual routers: what one leg can't do, the unit can't.

use super::guards::one_silent_leg_is_a_failure;
use super::lab::*;
use crate::journal::Kind;
use crate::{Output, Step};
use holdfast_vrrp::LegId;

#[test]
fn a_unit_whose_one_leg_can_not_send_moves_although_the_other_can() {
    one_silent_leg_is_a_failure().expect("the guard is on");
}

#[test]
fn a_leg_that_sends_again_after_a_gap_is_announced_again_though_the_others_never_stopped() {
    let mut lab = Lab::settled_with(&[254], false, group);
    lab.hosts[0].mute_legs.insert(LegId(1));
    lab.run(ms(150));
    lab.hosts[0].mute_legs.clear();
    lab.run(ms(300));
    assert_eq!(lab.owners(), [0], "shorter than two intervals of failing: it stays");
    assert!(!lab.has(0, |k| matches!(k, Kind::Resign { .. })), "{}", lab.story());
    let recovered = |k: &Kind| matches!(k, Kind::SendRecovered { gap_ms, .. } if *gap_ms >= 200);
    assert!(lab.has(0, recovered), "{}", lab.story());
    let since = lab.at();
    lab.run(ms(1_000));
    let announced = |vip| {
        let log = lab.log_since(0, since);
        log.iter().filter(|o| matches!(o, Output::Step(Step::Announce { ip, .. }) if *ip == vip)).count()
    };
    assert!(announced(VIP) >= 1 && announced(VIP2) >= 1, "the whole unit is announced");
}

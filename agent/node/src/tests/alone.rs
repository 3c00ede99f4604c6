//! Pairs without a channel: RFC 9568 alone.

use super::lab::*;
use crate::journal::Kind;

#[test]
fn a_pair_without_a_channel_settles_on_the_higher_priority() {
    let lab = Lab::settled(&[254, 253], false);
    assert_eq!(lab.owners(), [0]);
    assert!(lab.hosts[0].kernel[&(2, VIP, 32)].0, "the address carries our mark");
}

#[test]
fn a_dead_balancer_makes_the_holder_resign_at_once() {
    let mut lab = Lab::settled(&[254, 253], false);
    lab.kill_balancer(0);
    let took = lab.until(ms(100), |lab| lab.owners() == [1]);
    assert!(took <= ms(2), "skew of priority 253 at 100 ms is 1.2 ms: {took:?}");
    lab.run(ms(3_000));
    assert_eq!(lab.owners(), [1]);
    assert!(lab.dual_max.is_zero());
    assert!(!lab.has(0, |k| matches!(k, Kind::FailOpen { .. })));
}

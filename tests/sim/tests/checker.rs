//! The checker sees what it is there to see: each invariant is broken by hand once.

use holdfast_sim::chaos;
use holdfast_sim::cluster::{Cluster, Options};
use holdfast_sim::plane::{Looks, Plane};
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
#[should_panic(expected = "invariant 1")]
fn an_address_on_two_hosts_is_seen() {
    let mut cluster = Cluster::settled(Options::default());
    let (key, until) =
        (*cluster.hosts[0].kernel.vips.keys().next().expect("the owner has it"), cluster.now() + ms(5000));
    // Behind the second node's back: no event tells it.
    cluster.hosts[1].kernel.vips.insert(key, until);
    cluster.run(ms(200));
}

#[test]
#[should_panic(expected = "invariant 7")]
fn an_address_that_outlives_a_crash_is_seen() {
    let mut cluster = Cluster::settled(Options::default());
    cluster.crash(0);
    let until = cluster.now() + ms(60_000);
    cluster.hosts[0].kernel.vips.values_mut().for_each(|end| *end = until);
    cluster.run(ms(4000));
}

#[test]
#[should_panic(expected = "invariant 2")]
fn an_owner_with_a_dead_balancer_beside_a_fit_one_is_seen() {
    let mut cluster = Cluster::new(Options::default());
    // A node that checks nothing and is told nothing.
    cluster.hosts[0].config.vips[0].checks.clear();
    (0..2).for_each(|i| cluster.start(i));
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [0]);
    cluster.hosts[0].plane = Plane::Dead;
    cluster.run(ms(5000));
}

#[test]
#[should_panic(expected = "[1] can serve")]
fn a_drain_that_is_refused_beside_a_node_that_can_serve_is_seen() {
    let mut cluster = Cluster::settled(Options::default());
    // Nobody knows it under this address: its words go nowhere, on a wire that is sound.
    cluster.hosts[0].channel = "10.9.9.9:1".parse().expect("an address");
    cluster.run(ms(2000));
    chaos::drain_with_reason(&mut cluster, 0);
}

#[test]
fn a_drain_that_is_refused_for_want_of_another_takes_no_host_out() {
    let mut cluster = Cluster::settled(Options::default());
    cluster.set_plane(1, Plane::Dead);
    cluster.run(ms(1000));
    assert_eq!(chaos::drain_with_reason(&mut cluster, 0), "left: nothing, a drain was refused");
    assert_eq!(cluster.candidates(), [0]);
    cluster.set_plane(1, Plane::Alive);
    cluster.run(ms(3000));
    assert_eq!(chaos::drain_with_reason(&mut cluster, 0), "left: one host drained");
    assert_eq!(cluster.candidates(), [1]);
}

/// How long a host stands still here: short enough that nobody takes over meanwhile.
const STANDSTILL: u64 = 200;

/// Drains the owner when nobody else has been able to serve for so long, which the other node doesn't know of: it
/// claims that it can, and the drain goes through. If told so, the owner and its clock stood still just before.
fn drain_beside_one_that_only_claims_it_can(unable_for: u64, stands_still: bool) {
    let mut cluster = Cluster::new(Options::default());
    cluster.hosts[1].config.vips[0].checks.clear();
    (0..2).for_each(|i| cluster.start(i));
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [0]);
    cluster.hosts[1].plane = Plane::Dead;
    cluster.run(ms(unable_for - STANDSTILL));
    if stands_still {
        cluster.freeze(0, ms(STANDSTILL));
    }
    cluster.run(ms(STANDSTILL));
    assert_eq!((cluster.owners(), cluster.hosts[0].clock_stood.is_some()), (vec![0], stands_still));
    assert_eq!(chaos::drain_with_reason(&mut cluster, 0), "left: one host drained");
    cluster.run(ms(50));
    assert_eq!(cluster.owners(), [1], "it went through");
}

#[test]
#[should_panic(expected = "invariant 3")]
fn a_drain_to_nobody_is_seen() {
    drain_beside_one_that_only_claims_it_can(550, false);
}

#[test]
fn a_clock_that_stood_still_excuses_a_claim_that_is_as_much_older() {
    drain_beside_one_that_only_claims_it_can(550, true);
}

#[test]
#[should_panic(expected = "invariant 3")]
fn a_drain_to_nobody_is_seen_also_after_a_clock_stood_still() {
    drain_beside_one_that_only_claims_it_can(800, true);
}

#[test]
#[should_panic(expected = "invariant 3")]
fn a_clock_that_stood_still_long_ago_excuses_nothing() {
    let mut cluster = Cluster::new(Options::default());
    cluster.hosts[1].config.vips[0].checks.clear();
    (0..2).for_each(|i| cluster.start(i));
    cluster.run(ms(3000));
    cluster.freeze(0, ms(STANDSTILL));
    cluster.run(ms(1000));
    cluster.hosts[1].plane = Plane::Dead;
    cluster.run(ms(550));
    cluster.drain(0);
    cluster.run(ms(50));
}

#[test]
#[should_panic(expected = "verdict: lb1's balancer is Sick and is taken for Serving")]
fn a_balancer_that_is_taken_for_something_else_is_seen() {
    let mut cluster = Cluster::settled(Options { looks: Looks::None, ..Options::default() });
    // Nobody is told of it: its checks find nothing, since there are none.
    cluster.hosts[0].config.checks[0].interval = ms(3_600_000);
    cluster.hosts[0].config.checks[0].fast_interval = ms(100);
    cluster.crash(0);
    cluster.run(ms(3000));
    cluster.start(0);
    cluster.run(ms(5000));
    cluster.set_plane(0, Plane::Sick);
    cluster.run(ms(5000));
}

/// The owner leaves because of its balancer, as its agent has it, while it is really like this.
fn left_with(plane: Plane, other: Plane) {
    let mut cluster = Cluster::settled(Options::default());
    cluster.set_plane(1, other);
    cluster.run(ms(3000));
    // Behind the agent's back: it is told something else.
    cluster.hosts[0].plane = plane;
    cluster.hosts[0].plane_since = cluster.now() - ms(10_000);
    let pid = cluster.hosts[0].pid;
    cluster.tell_death(0, pid);
    cluster.run(ms(100));
}

#[test]
#[should_panic(expected = "it serves")]
fn an_owner_that_leaves_though_it_serves_is_seen() {
    left_with(Plane::Saturated, Plane::Alive);
}

#[test]
#[should_panic(expected = "nobody better was there")]
fn an_owner_that_leaves_for_one_that_serves_as_badly_is_seen() {
    left_with(Plane::PoolEmpty, Plane::PoolEmpty);
}

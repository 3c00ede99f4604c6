//! The checker sees what it is there to see: each invariant is broken by hand once.

use holdfast_sim::cluster::{Cluster, Options};
use holdfast_sim::host::Plane;
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

//! Directed runs: what a balancer is like, as all that looks at it finds out, and what follows from it.

use holdfast_node::plane::Verdict;
use holdfast_sim::cluster::{Cluster, Options};
use holdfast_sim::plane::{Looks, Plane};
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const ALL_LOOKS: [Looks; 3] = [Looks::None, Looks::Processes, Looks::Whole];

/// Every way to look, with a check by itself and one in a group, with and without the channel.
fn each(hosts: usize, mut check: impl FnMut(&mut Cluster)) {
    for looks in ALL_LOOKS {
        for check_group in [false, true] {
            for channel in [true, false] {
                check(&mut Cluster::settled(Options { hosts, looks, check_group, channel, ..Options::default() }));
            }
        }
    }
}

fn verdict(cluster: &Cluster, i: usize) -> Verdict {
    cluster.hosts[i].node.as_ref().expect("it runs").world().balancers[0].judged.verdict
}

#[test]
fn each_balancer_is_taken_for_what_it_is() {
    let planes = [
        Plane::Hung,
        Plane::Stopped,
        Plane::Closed,
        Plane::Saturated,
        Plane::Sick,
        Plane::PoolEmpty,
        Plane::Reloading,
        Plane::Leaving,
        Plane::Unsupervised,
        Plane::Dead,
    ];
    each(2, |cluster| {
        for plane in planes {
            cluster.set_plane(1, plane);
            cluster.run(ms(2500));
            let expected = plane.verdict(cluster.options().looks);
            assert_eq!(verdict(cluster, 1), expected, "{plane:?}\n{}", cluster.trace());
            cluster.set_plane(1, Plane::Alive);
            cluster.run(ms(1500));
            assert_eq!(verdict(cluster, 1), Verdict::Serving, "after {plane:?}\n{}", cluster.trace());
            assert_eq!((cluster.owners(), cluster.hosts[0].transitions), (vec![0], 2), "{}", cluster.trace());
        }
    });
}

#[test]
fn a_hung_balancer_is_left_at_fall_however_it_hangs() {
    each(2, |cluster| {
        for plane in [Plane::Hung, Plane::Stopped, Plane::Closed] {
            cluster.set_plane(0, plane);
            cluster.run(ms(310));
            assert_eq!(cluster.owners(), [1], "{plane:?}\n{}", cluster.trace());
            cluster.set_plane(0, Plane::Alive);
            // Hold-downs included.
            cluster.run(ms(30_000));
            assert_eq!(cluster.owners(), [0], "{plane:?}\n{}", cluster.trace());
        }
        assert!(cluster.checker.unowned <= ms(10), "{:?}\n{}", cluster.checker.unowned, cluster.trace());
    });
}

#[test]
fn a_full_owner_stays_whoever_else_is_there() {
    for (looks, check_group) in [(Looks::Processes, false), (Looks::Whole, false), (Looks::Whole, true)] {
        for channel in [true, false] {
            let options = Options { hosts: 3, looks, check_group, channel, ..Options::default() };
            let mut cluster = Cluster::settled(options);
            cluster.set_plane(0, Plane::Saturated);
            cluster.run(ms(20_000));
            assert_eq!((cluster.owners(), cluster.hosts[0].transitions), (vec![0], 2), "{}", cluster.trace());
            assert_eq!(cluster.checker.unowned, Duration::ZERO);
        }
    }
}

#[test]
fn a_dead_owner_gives_it_to_one_that_is_full_when_nobody_else_is_there() {
    let mut cluster = Cluster::settled(Options::default());
    cluster.set_plane(1, Plane::Saturated);
    cluster.run(ms(3000));
    cluster.set_plane(0, Plane::Dead);
    cluster.run(ms(1000));
    assert_eq!((cluster.owners(), verdict(&cluster, 1)), (vec![1], Verdict::Saturated), "{}", cluster.trace());
    cluster.run(ms(20_000));
    assert_eq!(cluster.owners(), [1], "and there it stays\n{}", cluster.trace());
}

#[test]
fn something_shared_that_fails_moves_nothing_and_is_said() {
    for (plane, spread) in [(Plane::Sick, Duration::ZERO), (Plane::PoolEmpty, ms(2000))] {
        each(3, |cluster| {
            // Who isn't told of the pool can't wait for the others to find out about theirs.
            if plane == Plane::PoolEmpty && cluster.options().looks != Looks::Whole {
                return;
            }
            cluster.shared_failure(plane, spread);
            cluster.run(ms(20_000));
            assert_eq!(
                (cluster.owners(), cluster.hosts[0].transitions),
                (vec![0], 2),
                "{plane:?}\n{}",
                cluster.trace()
            );
            assert_eq!(cluster.checker.unowned, Duration::ZERO, "{plane:?}");
            let plan = cluster.hosts[0].node.as_ref().expect("it runs").plan().vips[0].clone();
            assert!(plan.fail_open, "it says so: {:?}", plan.reasons);
        });
    }
}

#[test]
fn an_empty_pool_is_left_for_one_that_is_not_empty() {
    each(2, |cluster| {
        cluster.set_plane(0, Plane::PoolEmpty);
        cluster.run(ms(8000));
        assert_eq!(cluster.owners(), [1], "{}", cluster.trace());
        assert!(cluster.checker.unowned <= ms(10), "{:?}\n{}", cluster.checker.unowned, cluster.trace());
    });
}

#[test]
fn who_lost_it_often_goes_last_and_takes_it_at_once_when_nobody_else_is_there() {
    for channel in [true, false] {
        let mut cluster = Cluster::settled(Options { channel, ..Options::default() });
        for _ in 0..4 {
            cluster.set_plane(0, Plane::Dead);
            cluster.run(ms(1000));
            cluster.set_plane(0, Plane::Alive);
            // Longer than any of these hold-downs.
            cluster.run(ms(30_000));
            assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
        }
        cluster.set_plane(0, Plane::Dead);
        cluster.run(ms(1000));
        cluster.set_plane(0, Plane::Alive);
        cluster.run(ms(5000));
        assert_eq!(cluster.owners(), [1], "held back\n{}", cluster.trace());
        cluster.crash(1);
        let mut waited = Duration::ZERO;
        while !cluster.hosts[0].owns() {
            assert!(waited < ms(450), "a down time at the lowest priority\n{}", cluster.trace());
            cluster.run(ms(10));
            waited += ms(10);
        }
    }
}

#[test]
fn reloads_in_a_row_are_no_event_for_the_vip() {
    each(2, |cluster| {
        for _ in 0..250 {
            cluster.set_plane(0, Plane::Reloading);
            cluster.run(ms(40));
            cluster.set_plane(0, Plane::Alive);
            cluster.run(ms(40));
        }
        assert_eq!((cluster.owners(), cluster.hosts[0].transitions), (vec![0], 2), "{}", cluster.trace());
        assert_eq!(cluster.hosts[1].adverts, 0);
    });
}

#[test]
fn a_full_connection_table_lets_others_go_first_and_is_used_when_there_are_none() {
    let mut cluster = Cluster::settled(Options { hosts: 3, ..Options::default() });
    cluster.set_table(1, true);
    cluster.run(ms(1000));
    cluster.set_plane(0, Plane::Dead);
    cluster.run(ms(1000));
    assert_eq!(cluster.owners(), [2], "the third has room\n{}", cluster.trace());
    cluster.set_plane(2, Plane::Dead);
    cluster.run(ms(1000));
    assert_eq!(cluster.owners(), [1], "{}", cluster.trace());
    cluster.set_plane(0, Plane::Sick);
    cluster.run(ms(20_000));
    assert_eq!(cluster.owners(), [1], "that is no reason to leave\n{}", cluster.trace());
}

//! Directed runs: one fault each, with its figure on virtual time.

use holdfast_node::config::{LastNode, Partition};
use holdfast_sim::cluster::{Cluster, Options, PeerOptions, Shape};
use holdfast_sim::net::SEGMENT;
use holdfast_sim::plane::Plane;
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn pair(channel: bool) -> Cluster {
    Cluster::settled(Options { channel, ..Options::default() })
}

/// Runs in steps of a tenth of a millisecond until this holds; the time it took.
fn until(cluster: &mut Cluster, limit: Duration, holds: impl Fn(&Cluster) -> bool) -> Duration {
    let start = cluster.now();
    while !holds(cluster) {
        assert!(cluster.now() - start < limit, "it took more than {limit:?}\n{}", cluster.trace());
        cluster.run(Duration::from_micros(100));
    }
    cluster.now() - start
}

#[test]
fn a_dead_balancer_moves_the_address_in_milliseconds_with_and_without_the_channel() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.set_plane(0, Plane::Dead);
        let took = until(&mut cluster, ms(20), |c| c.owners() == [1]);
        assert!(took <= ms(5), "channel {channel}: {took:?}\n{}", cluster.trace());
        cluster.run(ms(2000));
        assert_eq!(cluster.owners(), [1], "{}", cluster.trace());
        cluster.set_plane(0, Plane::Alive);
        cluster.run(ms(2000));
        assert_eq!(cluster.owners(), [0], "preempted back\n{}", cluster.trace());
        assert!(cluster.checker.unowned <= ms(5), "channel {channel}: {:?}", cluster.checker.unowned);
    }
}

#[test]
fn a_hung_balancer_is_left_within_fall_times_interval_plus_timeout() {
    let mut cluster = pair(true);
    cluster.set_plane(0, Plane::Hung);
    let took = until(&mut cluster, ms(400), |c| c.owners() == [1]);
    assert!(took <= ms(310), "{took:?}\n{}", cluster.trace());
}

#[test]
fn a_cut_cable_is_told_over_the_channel_at_once_and_by_silence_without() {
    let mut cluster = pair(true);
    cluster.set_carrier(0, false);
    let took = until(&mut cluster, ms(50), |c| c.owners() == [1]);
    assert!(took <= ms(5), "{took:?}\n{}", cluster.trace());

    let mut cluster = pair(false);
    cluster.set_carrier(0, false);
    let took = until(&mut cluster, ms(400), |c| c.owners() == [1]);
    assert!(took <= ms(303), "{took:?}\n{}", cluster.trace());
    cluster.set_carrier(0, true);
    cluster.run(ms(2000));
    assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
}

#[test]
fn after_a_silent_cut_heals_one_owner_is_left_within_an_interval_and_it_announces() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.isolate(0, true);
        cluster.run(ms(1000));
        let owners = cluster.owners();
        assert!(owners.contains(&1), "the reachable side is served\n{}", cluster.trace());
        if channel {
            assert_eq!(owners, [1], "the cut-off owner was claimed from and could not be reached\n{}", cluster.trace());
        }
        cluster.isolate(0, false);
        let healed = cluster.now();
        cluster.run(ms(120));
        assert_eq!(cluster.owners().len(), 1, "channel {channel}\n{}", cluster.trace());
        cluster.run(ms(1000));
        assert_eq!(cluster.owners(), [0], "channel {channel}\n{}", cluster.trace());
        let announced = cluster.hosts[0].announced.expect("it announced");
        assert!(announced >= healed, "the winner announces after the heal\n{}", cluster.trace());
    }
}

#[test]
fn an_isolated_backup_does_not_take_the_service_along() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.isolate(1, true);
        for _ in 0..5000 {
            cluster.run(ms(1));
            assert!(cluster.owners().contains(&0), "channel {channel}: the clients' owner stays\n{}", cluster.trace());
        }
        cluster.isolate(1, false);
        cluster.run(ms(120));
        assert_eq!(cluster.owners(), [0], "channel {channel}\n{}", cluster.trace());
    }
}

#[test]
fn one_way_loss_of_adverts_does_not_give_two_owners_for_long() {
    let mut cluster = pair(true);
    cluster.net.cut(SEGMENT, 0, 1, true);
    cluster.run(ms(3000));
    assert_eq!(cluster.owners().len(), 1, "{}", cluster.trace());
}

#[test]
fn where_nobody_may_own_alone_a_peer_without_a_channel_is_not_preempted_again_and_again() {
    let plain = PeerOptions { priority: 100, interval_ms: 100, pseudo_header: false };
    let partition = Partition::Neither;
    let mut cluster = Cluster::settled(Options { hosts: 3, partition, plain: Some(plain), ..Options::default() });
    cluster.crash(1);
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [2], "it has no such rule\n{}", cluster.trace());
    let before: Vec<u64> = cluster.hosts.iter().map(|host| host.transitions).collect();
    cluster.run(ms(20_000));
    let after: Vec<u64> = cluster.hosts.iter().map(|host| host.transitions).collect();
    assert_eq!((cluster.owners(), after), (vec![2], before), "{}", cluster.trace());
    cluster.start(1);
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
}

#[test]
fn a_worker_that_resumes_moves_nothing() {
    let policies = [Partition::Both, Partition::Gateway, Partition::Neither];
    for (channel, partition) in [true, false].into_iter().flat_map(|channel| policies.map(|p| (channel, p))) {
        if partition == Partition::Neither && !channel {
            continue;
        }
        let mut cluster = Cluster::settled(Options { channel, partition, ..Options::default() });
        cluster.worker_crash(0, ms(40));
        cluster.run(ms(3000));
        assert_eq!(cluster.owners(), [0], "channel {channel}, {partition:?}\n{}", cluster.trace());
        assert_eq!(cluster.hosts[1].adverts, 0, "the peer never woke up\n{}", cluster.trace());
        assert_eq!(cluster.checker.unowned, Duration::ZERO, "{}", cluster.trace());
    }
}

#[test]
fn a_crash_of_everything_leaves_no_second_owner_after_three_seconds() {
    let mut cluster = pair(true);
    cluster.crash(0);
    let took = until(&mut cluster, ms(400), |c| c.hosts[1].owns());
    assert!(took <= ms(303), "{took:?}");
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [1], "{}", cluster.trace());
    cluster.start(0);
    cluster.run(ms(3000));
    assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
}

#[test]
fn a_drain_moves_the_address_without_a_gap_and_undrain_returns_it() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.drain(0);
        cluster.run(ms(1000));
        assert_eq!(cluster.owners(), [1], "channel {channel}\n{}", cluster.trace());
        let last = cluster.hosts[0].answers.last().map(|(_, a)| format!("{a:?}")).unwrap_or_default();
        assert!(last.starts_with("Done"), "{last}\n{}", cluster.trace());
        cluster.undrain(0);
        cluster.run(ms(3000));
        assert_eq!(cluster.owners(), [0], "channel {channel}\n{}", cluster.trace());
        assert_eq!(cluster.checker.unowned, Duration::ZERO, "channel {channel}\n{}", cluster.trace());
    }
}

#[test]
fn the_last_node_able_to_serve_refuses_to_be_drained() {
    let mut cluster = pair(true);
    cluster.set_plane(1, Plane::Dead);
    cluster.run(ms(1000));
    cluster.drain(0);
    cluster.run(ms(1000));
    let last = cluster.hosts[0].answers.last().map(|(_, a)| format!("{a:?}")).unwrap_or_default();
    assert!(last.contains("last-node"), "{last}\n{}", cluster.trace());
    assert_eq!(cluster.owners(), [0]);
    assert_eq!(cluster.checker.unowned, Duration::ZERO);
}

#[test]
fn when_every_balancer_is_dead_the_address_stays_somewhere() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.set_plane(1, Plane::Dead);
        cluster.run(ms(1000));
        cluster.set_plane(0, Plane::Dead);
        cluster.run(ms(3000));
        assert_eq!(cluster.owners().len(), 1, "channel {channel}: fail open\n{}", cluster.trace());
        cluster.set_plane(1, Plane::Alive);
        cluster.run(ms(3000));
        assert_eq!(cluster.owners(), [1], "channel {channel}: the first that serves takes it\n{}", cluster.trace());
    }
}

#[test]
fn last_node_withdraw_gives_the_address_up() {
    let mut cluster = Cluster::settled(Options { last_node: LastNode::Withdraw, ..Options::default() });
    cluster.set_plane(1, Plane::Dead);
    cluster.run(ms(1000));
    cluster.set_plane(0, Plane::Dead);
    cluster.run(ms(3000));
    assert!(cluster.owners().is_empty(), "{}", cluster.trace());
}

#[test]
fn a_deleted_address_is_back_at_once_without_a_change_of_role() {
    let mut cluster = pair(true);
    cluster.delete_address(0);
    cluster.run(ms(1));
    assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
    cluster.run(ms(2000));
    assert_eq!(cluster.hosts[1].adverts, 0, "{}", cluster.trace());
}

#[test]
fn a_host_that_stood_still_listens_before_it_speaks() {
    let mut cluster = pair(true);
    cluster.pause(0, ms(1000));
    cluster.run(ms(990));
    assert!(cluster.hosts[1].owns(), "the peer took over\n{}", cluster.trace());
    cluster.run(ms(210));
    assert_eq!(cluster.owners().len(), 1, "{}", cluster.trace());
    cluster.run(ms(2000));
    assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
}

#[test]
fn what_happened_to_an_interface_while_the_host_stood_still_is_known_to_it_afterwards() {
    // Thousands of adverts arrive meanwhile, more than a socket holds, and with the second change of the interface more
    // notices of the kernel than it keeps: then it gets the whole state.
    for times in [1, 2] {
        let options = Options { hosts: 3, shape: Shape::Dual, interval_ms: 10, ..Options::default() };
        let mut cluster = Cluster::settled(options);
        cluster.pause(0, ms(9000));
        cluster.run(ms(5000));
        (0..times).for_each(|_| cluster.recreate(0, 0, ms(300)));
        cluster.run(ms(6000));
        assert_eq!(cluster.owners(), [0], "{}", cluster.trace());
        let ifindex = cluster.hosts[0].kernel.interfaces[0].ifindex;
        assert!(cluster.hosts[0].kernel.vips.keys().all(|key| key.0 == ifindex), "{}", cluster.trace());
        assert!(!cluster.trace().contains("no such device"), "{}", cluster.trace());
    }
}

#[test]
fn a_stop_hands_over_and_leaves_nothing() {
    for channel in [true, false] {
        let mut cluster = pair(channel);
        cluster.stop(0);
        cluster.run(ms(2500));
        assert!(cluster.hosts[0].node.is_none(), "it ended\n{}", cluster.trace());
        assert!(cluster.hosts[0].kernel.vips.is_empty() && cluster.hosts[0].kernel.open.is_empty());
        assert_eq!(cluster.owners(), [1], "{}", cluster.trace());
        assert_eq!(cluster.checker.unowned, Duration::ZERO, "channel {channel}\n{}", cluster.trace());
    }
}

#[test]
fn twenty_seconds_without_a_fault_change_nothing() {
    let mut cluster = pair(true);
    let before = cluster.hosts[0].adverts;
    cluster.run(ms(20_000));
    assert_eq!(cluster.owners(), [0]);
    assert_eq!(cluster.hosts[1].adverts, 0);
    assert_eq!(cluster.hosts[0].adverts - before, 200, "one advert per interval");
    assert_eq!(cluster.checker.longest_dual, Duration::ZERO);
}

#[test]
fn the_owner_of_equals_is_followed_by_nobody_when_its_word_comes_before_its_advert() {
    // Its report and its advert race each other: in every one of these seeds one transition only.
    for seed in 0..20 {
        let options = Options { hosts: 3, priorities: vec![100; 3], interval_ms: 1000, seed, ..Options::default() };
        let mut cluster = Cluster::new(options);
        (0..3).for_each(|i| cluster.start(i));
        cluster.run(ms(8000));
        let active: u64 = cluster.hosts.iter().map(|host| host.transitions).sum();
        assert_eq!(active, 4, "three start, one takes over\n{}", cluster.trace());
    }
}

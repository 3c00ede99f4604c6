//! The embedded balancer in a whole node.

use super::maglev::NOBODY;
use super::*;
use crate::config::{
    Affinity, Backend, BackendSet, Balancer, BalancerKind, Check, Config, NatMode, OnDown, Probe, ProcessSource,
    Transport,
};
use crate::io::{Answer, Input, Output, Request, Step};
use crate::journal::Kind;
use crate::tests::lab::{Lab, VIP, ms, name};

fn backend(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, n], 8080))
}

fn service(set: u16, port: u16) -> Service {
    Service {
        vip: name("web"),
        protocol: Transport::Tcp,
        port,
        addresses: vec![(VIP, SetId(set))],
        mode: NatMode::Snat,
        affinity: Affinity::Flow,
        snat: vec![],
        mss: None,
        on_down: OnDown::usual(Transport::Tcp),
    }
}

/// Two services; the backends 1, 2, 3 of the first, 3, 4 of the second.
fn nft() -> Nft {
    let set = |backends: &[u8]| BackendSet {
        backends: backends
            .iter()
            .map(|n| Backend { address: backend(*n), weight: 1, probe: Some(u16::from(*n) - 1) })
            .collect(),
        panic_threshold: 0,
        max_ejection: 100,
        slow_start: Duration::ZERO,
    };
    let probe = |n: u8| Check {
        name: name(&format!("backend-{n}")),
        probe: Probe::tcp(backend(n)),
        interval: ms(100),
        fast_interval: ms(50),
        timeout: ms(40),
        jitter: Duration::ZERO,
        fall: 2,
        rise: 3,
        shared: false,
    };
    Nft {
        services: vec![service(0, 80), service(1, 81)],
        sets: vec![set(&[1, 2, 3]), set(&[3, 4])],
        probes: (1..=4).map(probe).collect(),
    }
}

fn embedded(config: &mut Config) {
    config.balancers = vec![Balancer::new(name("l4"), BalancerKind::Nft, ProcessSource::Kernel)];
    config.nft = Some(nft());
}

fn lab() -> Lab {
    Lab::settled_with(&[200, 100], true, embedded)
}

fn balances(lab: &Lab, i: usize, since: Duration) -> Vec<Balance> {
    let balance = |output: &&Output| match output {
        Output::Step(Step::Balance(balance)) => Some(balance.clone()),
        _ => None,
    };
    lab.log_since(i, since).iter().filter_map(balance).collect()
}

#[test]
fn the_table_is_loaded_at_start_on_both_nodes_and_makes_the_balancer_alive() {
    let lab = lab();
    for i in 0..2 {
        let all = balances(&lab, i, Duration::ZERO);
        let [Balance::Load(ruleset)] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((ruleset.services.len(), ruleset.sets.len()), (2, 2));
        assert!(ruleset.sets.iter().all(|set| set.slots.iter().all(|slot| *slot != NOBODY)));
        assert!(lab.has(i, |kind| matches!(kind, Kind::BalancerState { state, .. } if state == "alive")));
    }
    assert_eq!(lab.owners(), [0]);
    let (a, b) = (lab.node(0).status(lab.now).pool.expect("there"), lab.node(1).status(lab.now).pool.expect("there"));
    assert!(a.loaded && a.fingerprint == b.fingerprint);
}

#[test]
fn a_backend_that_dies_moves_its_own_slots_in_every_set_at_once_and_comes_back() {
    let mut lab = lab();
    let before = lab.at();
    lab.hosts[0].dead_backends.insert(2);
    lab.run(ms(1_000));
    let all = balances(&lab, 0, before);
    let [Balance::Change(changes)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(changes.iter().map(|change| change.set).collect::<Vec<_>>(), [SetId(0), SetId(1)]);
    let slots = changes[0].slots.len();
    assert!((slots as f64) <= 1.3 / 3.0 * 1021.0 && slots >= 340, "{slots}");
    assert!(changes.iter().flat_map(|c| &c.slots).all(|s| s.taken && s.to.is_some_and(|to| to != backend(3))));
    assert!(lab.has(0, |kind| matches!(kind, Kind::BackendState { up: false, .. })));
    let since = lab.at();
    lab.hosts[0].dead_backends.clear();
    lab.run(ms(1_000));
    let all = balances(&lab, 0, since);
    let [Balance::Change(back)] = all.as_slice() else { panic!("{all:?}") };
    let of = |changes: &[SetChange]| changes[0].slots.iter().map(|s| s.slot).collect::<Vec<_>>();
    assert_eq!(of(back), of(changes));
    assert_eq!(lab.owners(), [0], "the address never moved");
    assert!(balances(&lab, 1, before).is_empty(), "the other node's checks are its own");
}

/// As [`lab`], with the first service over UDP.
fn datagrams() -> Lab {
    let mut lab = Lab::settled_with(&[200, 100], true, |config| {
        embedded(config);
        let service = &mut config.nft.as_mut().expect("there").services[0];
        (service.protocol, service.on_down) = (Transport::Udp, OnDown::Cut);
    });
    lab.run(ms(2_000));
    lab
}

/// Each time that flows were to be forgotten: the backends whose flows were not.
fn kept(lab: &Lab, i: usize, since: Duration) -> Vec<Vec<u8>> {
    let last = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    };
    let cut = |output: &&Output| match output {
        Output::Step(Step::Cut(cut)) => {
            assert_eq!(cut.services.keys().collect::<Vec<_>>(), [&(VIP, Transport::Udp, 80)]);
            Some(cut.services.values().flatten().map(last).collect())
        }
        _ => None,
    };
    lab.log_since(i, since).iter().filter_map(cut).collect()
}

#[test]
fn datagrams_to_a_backend_that_is_down_are_forgotten_by_the_owner_after_the_table_was_changed_and_once_more() {
    let mut lab = datagrams();
    assert_eq!(kept(&lab, 0, Duration::ZERO), [[1, 2, 3]], "what a former configuration left");
    let since = lab.at();
    lab.hosts[0].dead_backends.insert(1);
    lab.run(ms(500));
    assert_eq!(kept(&lab, 0, since), [[1, 3]]);
    let steps = lab.log_since(0, since);
    let order = steps.iter().filter_map(|output| match output {
        Output::Step(Step::Balance(_)) => Some("table"),
        Output::Step(Step::Cut(_)) => Some("flows"),
        _ => None,
    });
    assert_eq!(order.collect::<Vec<_>>(), ["table", "flows"]);
    lab.run(ms(1_000));
    assert_eq!(kept(&lab, 0, since), [[1, 3], [1, 3]], "what was on its way meanwhile");
    lab.hosts[0].dead_backends.clear();
    lab.run(ms(3_000));
    assert_eq!(kept(&lab, 0, since).len(), 2, "one that comes back costs nobody a flow");
    assert_eq!(kept(&lab, 1, Duration::ZERO), Vec::<Vec<u8>>::new(), "the flows are the owner's");
}

#[test]
fn whoever_takes_over_forgets_at_once_what_goes_to_a_backend_that_it_finds_down() {
    let mut lab = datagrams();
    lab.hosts[1].dead_backends.insert(0);
    lab.run(ms(1_000));
    let since = lab.at();
    lab.crash(0);
    lab.run(ms(1_000));
    assert_eq!((lab.owns(1), kept(&lab, 1, since)), (true, vec![vec![2, 3]]));
    lab.run(ms(1_000));
    assert_eq!(kept(&lab, 1, since), [[2, 3], [2, 3]]);
}

#[test]
fn a_drained_backend_keeps_its_datagrams_until_it_is_down_too() {
    let mut lab = datagrams();
    let since = lab.at();
    assert!(matches!(pool(&mut lab, "10.2.0.2", true), Answer::Done(_)));
    lab.run(ms(2_000));
    assert_eq!(kept(&lab, 0, since), Vec::<Vec<u8>>::new());
    lab.hosts[0].dead_backends.insert(1);
    lab.run(ms(500));
    assert_eq!(kept(&lab, 0, since), [[1, 3]]);
    let since = lab.at();
    lab.hosts[0].dead_backends.extend([0, 2]);
    lab.run(ms(5_000));
    assert!(kept(&lab, 0, since).iter().all(|kept| !kept.is_empty()), "with all down, all are used, and keep theirs");
}

#[test]
fn connections_are_never_cut_unless_the_service_says_so() {
    let mut lab = lab();
    lab.hosts[0].dead_backends.insert(1);
    lab.run(ms(3_000));
    assert_eq!(kept(&lab, 0, Duration::ZERO), Vec::<Vec<u8>>::new());
}

#[test]
fn with_all_backends_down_all_are_used_and_the_pool_says_so() {
    let mut lab = lab();
    lab.hosts[0].dead_backends.extend([2, 3]);
    lab.run(ms(1_000));
    let status = lab.node(0).status(lab.now).pool.expect("there");
    let modes: Vec<&str> = status.sets.iter().map(|set| set.mode.as_str()).collect();
    assert_eq!(modes, ["normal", "fail-open"]);
    assert!(lab.has(0, |kind| matches!(kind, Kind::PoolMode { mode, .. } if mode == "fail-open")));
    assert!(status.sets[1].backends.iter().all(|backend| backend.in_service && backend.slots > 0));
}

#[test]
fn a_service_without_backends_goes_to_a_node_that_reaches_some_though_nothing_new_is_seen_meanwhile() {
    let mut lab = lab();
    lab.run(ms(1_000));
    lab.hosts[0].dead_backends.extend([2, 3]);
    lab.run(ms(2_500));
    assert_eq!(lab.owners(), [0], "the peer may find out later");
    lab.run(ms(5_000));
    assert_eq!(lab.node(0).world().balancers[0].judged.verdict, crate::plane::Verdict::PoolEmpty);
    assert_eq!(lab.owners(), [1], "{}", lab.story());
}

#[test]
fn answers_that_a_node_had_no_time_to_read_take_no_backend_out() {
    let mut lab = Lab::settled_with(&[200, 100], true, |config| {
        embedded(config);
        config.nft.as_mut().expect("there").probes.iter_mut().for_each(|probe| probe.fall = 1);
    });
    lab.run(ms(1_000));
    let first = lab.hosts[0].config.checks.len();
    let asks = |output: &&Output| matches!(output, Output::StartCheck { check, .. } if usize::from(check.0) >= first);
    loop {
        let since = lab.at();
        lab.run(Duration::from_micros(500));
        if lab.log_since(0, since).iter().any(asks) {
            break;
        }
    }
    lab.pause(0);
    lab.run(ms(2_000));
    lab.resume(0);
    lab.run(ms(500));
    assert!(lab.has(0, |kind| matches!(kind, Kind::Stalled { .. })));
    assert!(!lab.has(0, |kind| matches!(kind, Kind::BackendState { up: false, .. })), "{}", lab.story());
}

#[test]
fn a_table_that_somebody_flushed_is_put_back_and_not_more_often_than_is_sane() {
    let mut lab = lab();
    lab.run(ms(1_000));
    let since = lab.at();
    lab.feed(0, Input::TableTouched);
    lab.run(ms(5));
    assert!(matches!(balances(&lab, 0, since).as_slice(), [Balance::Load(_)]));
    for _ in 0..100 {
        lab.feed(0, Input::TableTouched);
        lab.run(ms(10));
    }
    assert!((3..=7).contains(&balances(&lab, 0, since).len()), "{}", balances(&lab, 0, since).len());
    lab.run(ms(1_000));
    assert!(lab.node(0).status(lab.now).pool.expect("there").loaded);
}

fn pool(lab: &mut Lab, backend: &str, drain: bool) -> Answer {
    let request = Request::Pool { who: "uid 0".to_owned(), backend: backend.to_owned(), drain };
    let token = lab.operator(0, request);
    lab.answer(0, token).expect("answered at once").clone()
}

#[test]
fn a_drained_backend_gets_no_new_flows_also_after_a_restart() {
    let mut lab = lab();
    assert!(matches!(pool(&mut lab, "10.2.0.3", true), Answer::Done(_)));
    lab.run(ms(10));
    let slots = |lab: &Lab| {
        let status = lab.node(0).status(lab.now).pool.expect("there");
        status
            .sets
            .iter()
            .map(|set| set.backends.iter().find(|b| b.address.contains(".3:")).expect("there").slots)
            .collect::<Vec<_>>()
    };
    assert_eq!(slots(&lab), [0, 0]);
    lab.crash(0);
    lab.run(ms(100));
    lab.start(0);
    lab.run(ms(1_000));
    assert_eq!(slots(&lab), [0, 0]);
    assert!(matches!(pool(&mut lab, "10.2.0.3:8080", false), Answer::Done(_)));
    assert!(slots(&lab).iter().all(|slots| *slots > 300));
    assert!(lab.hosts[0].intents.backends.is_empty());
}

#[test]
fn the_last_backend_of_a_service_and_one_that_is_not_there_are_refused() {
    let mut lab = lab();
    assert!(matches!(pool(&mut lab, "10.2.0.9", true), Answer::Refused { interlock, .. } if interlock == NO_BACKEND));
    assert!(
        matches!(pool(&mut lab, "10.2.0.3:81", true), Answer::Refused { interlock, .. } if interlock == NO_BACKEND)
    );
    assert!(matches!(pool(&mut lab, "10.2.0.4", true), Answer::Done(_)));
    let refused = pool(&mut lab, "10.2.0.3", true);
    assert!(
        matches!(&refused, Answer::Refused { interlock, why } if interlock == LAST_BACKEND && why.contains("tcp/81"))
    );
}

#[test]
fn nodes_whose_tables_differ_say_so_and_others_do_not() {
    let warns = |lab: &Lab| {
        let status = |i| lab.node(i).status(lab.now);
        [0, 1].map(|i| status(i).warnings.iter().any(|w| w.text.contains("the balancing table of")))
    };
    let mut same = lab();
    same.run(Duration::from_secs(3));
    assert_eq!(warns(&same), [false, false]);
    assert!(same.node(0).world().peers.iter().all(|peer| peer.pool.is_some()));
    let mut first = true;
    let mut lab = Lab::settled_with(&[200, 100], true, |config| {
        embedded(config);
        if std::mem::take(&mut first) {
            config.nft.as_mut().expect("there").sets[0].backends[0].weight = 2;
        }
    });
    lab.run(Duration::from_secs(3));
    assert_eq!(warns(&lab), [true, true]);
}

#[test]
fn a_stop_removes_the_table_before_the_last_word() {
    let mut lab = lab();
    let since = lab.at();
    lab.feed(0, Input::Stop { deadline: Duration::from_secs(5) });
    lab.run(Duration::from_secs(2));
    assert!(lab.hosts[0].stopped);
    assert_eq!(balances(&lab, 0, since), [Balance::Unload]);
}

#[test]
fn the_table_of_a_former_configuration_goes_and_one_that_stops_at_once_leaves_none() {
    let without = Lab::settled(&[200, 100], true);
    assert_eq!(balances(&without, 0, Duration::ZERO), [Balance::Unload]);
    let mut lab = lab();
    lab.crash(0);
    lab.run(ms(100));
    lab.start(0);
    let since = lab.at();
    lab.feed(0, Input::Stop { deadline: Duration::from_secs(5) });
    lab.run(Duration::from_secs(2));
    assert!(lab.hosts[0].stopped);
    assert_eq!(balances(&lab, 0, since).last(), Some(&Balance::Unload));
}

#[test]
fn the_fingerprint_is_of_what_decides_where_flows_go_and_of_nothing_else() {
    let print = |nft: &Nft| {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        Pools::new(nft, &BTreeSet::new(), [7; 32], Instant::now()).fingerprint()
    };
    let first = nft();
    let mut other = nft();
    other.services.reverse();
    other.services[0].snat = vec![VIP];
    other.services[0].mss = Some(1_300);
    other.sets[0].slow_start = Duration::from_secs(60);
    assert_eq!(print(&first), print(&other), "this node's own addresses and rules");
    other.sets[0].backends[0].weight = 2;
    assert_ne!(print(&first), print(&other));
    let mut other = nft();
    other.services[0].affinity = Affinity::Source;
    assert_ne!(print(&first), print(&other));
}

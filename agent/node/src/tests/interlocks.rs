//! The interlock between embedded balancers that differ. The others are in `drain` and `guards`.

use super::guards::{Verdict, expect};
use super::lab::*;
use crate::config::{
    Affinity, Backend, BackendSet, Balancer, BalancerKind, Config, NatMode, Nft, OnDown, ProcessSource, Service, SetId,
    Transport,
};
use crate::drain::{LAST_NODE, POOL_DIFFERS};
use crate::io::{Answer, BalancerState};
use std::net::SocketAddr;
use std::time::Duration;

/// One service with so many backends.
fn embedded(config: &mut Config, backends: u8) {
    let backend = |n: u8| Backend { address: SocketAddr::from(([10, 2, 0, n], 8080)), weight: 1, probe: None };
    config.balancers = vec![Balancer::new(name("l4"), BalancerKind::Nft, ProcessSource::Kernel)];
    config.nft = Some(Nft {
        services: vec![Service {
            vip: name("web"),
            protocol: Transport::Tcp,
            port: 80,
            addresses: vec![(VIP, SetId(0))],
            mode: NatMode::Snat,
            affinity: Affinity::Flow,
            snat: vec![],
            mss: None,
            on_down: OnDown::Keep,
        }],
        sets: vec![BackendSet {
            backends: (1..=backends).map(backend).collect(),
            panic_threshold: 0,
            max_ejection: 100,
            slow_start: Duration::ZERO,
        }],
        probes: vec![],
    });
}

/// Nodes with so many backends each, which have heard of each other's tables.
fn lab(backends: [u8; 2]) -> Lab {
    let mut each = backends.into_iter();
    let mut lab = Lab::settled_with(&[254, 253], true, |config| embedded(config, each.next().expect("two nodes")));
    lab.run(Duration::from_secs(3));
    lab
}

fn refused_by(lab: &Lab, i: usize, token: u64) -> Option<&str> {
    match lab.answer(i, token)? {
        Answer::Refused { interlock, .. } => Some(interlock),
        _ => None,
    }
}

pub(crate) fn a_drain_to_another_table_is_refused() -> Verdict {
    let mut lab = lab([3, 2]);
    let token = lab.drain(0, &[], false);
    expect("by that name", refused_by(&lab, 0, token) == Some(POOL_DIFFERS))?;
    lab.run(ms(1_000));
    expect("nothing moves", lab.owners() == [0] && lab.hosts[0].intents.drain.is_none())
}

#[test]
fn a_drain_is_refused_while_the_other_node_would_send_flows_elsewhere() {
    a_drain_to_another_table_is_refused().expect("the guard is on");
}

#[test]
fn a_drain_to_the_same_table_goes_through() {
    let mut lab = lab([3, 3]);
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    assert_eq!((refused_by(&lab, 0, token), lab.owners()), (None, vec![1]), "{}", lab.story());
}

#[test]
fn a_backup_moves_no_flow_and_is_drained_whatever_the_tables_are() {
    let mut lab = lab([3, 2]);
    let token = lab.drain(1, &[], false);
    lab.run(ms(100));
    assert_eq!((refused_by(&lab, 1, token), lab.owners()), (None, vec![0]), "{}", lab.story());
}

#[test]
fn forced_by_that_name_it_goes_through_and_the_vip_is_left_to_nobody_all_the_same() {
    let mut lab = lab([3, 2]);
    let token = lab.drain(0, &[POOL_DIFFERS], false);
    lab.run(ms(1_000));
    assert_eq!((refused_by(&lab, 0, token), lab.owners()), (None, vec![1]), "{}", lab.story());

    // That name doesn't force the other interlock …
    let mut lab = self::lab([3, 2]);
    lab.balancer(1, BalancerState::Gone { pid: 0, why: "its table can't be loaded".to_owned() });
    lab.run(ms(500));
    let token = lab.drain(0, &[POOL_DIFFERS], false);
    assert_eq!(refused_by(&lab, 0, token), Some(LAST_NODE), "{}", lab.story());

    // … and a peer that dies before it has taken over isn't waited for any longer than without it.
    let mut lab = self::lab([3, 2]);
    lab.crash(1);
    let token = lab.drain(0, &[POOL_DIFFERS], false);
    lab.run(ms(2_000));
    assert_eq!(lab.owners(), [0], "it takes back what nobody took\n{}", lab.story());
    assert!(matches!(lab.answer(0, token), Some(Answer::PeerLost(_))), "{}", lab.story());
}

#[test]
fn a_peer_that_comes_back_with_the_same_table_is_in_nobodys_way() {
    let mut lab = lab([3, 2]);
    lab.crash(1);
    embedded(&mut lab.hosts[1].config, 3);
    lab.start(1);
    lab.run(Duration::from_secs(3));
    let token = lab.drain(0, &[], false);
    lab.run(ms(1_000));
    assert_eq!((refused_by(&lab, 0, token), lab.owners()), (None, vec![1]), "{}", lab.story());
}

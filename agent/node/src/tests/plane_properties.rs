//! For any evidence on any nodes: DESIGN section 4, 1 to 3, and no VIP wanders.

use super::lab::*;
use super::planes::{answers, full, moves, pool, stopped, table};
use crate::io::*;
use crate::journal::Kind;
use crate::plane::Standing;
use proptest::prelude::*;
use std::time::Duration;

/// What a balancer is like, as all that looks at it finds.
const KINDS: usize = 11;

fn become_like(lab: &mut Lab, i: usize, kind: usize) {
    let reload = |failed, running| Reload { failed, running, ..Reload::default() };
    let (probes, plane) = match kind {
        0 | 1 => (Probes::Good, pool(3)),
        2 => (Probes::Silent, stopped()),
        3 => (Probes::Silent, full()),
        4 => (Probes::Status, pool(2)),
        5 => (Probes::Status, pool(0)),
        6 => (Probes::Good, PlaneReport { supervised: false, ..pool(3) }),
        7 => (Probes::Good, PlaneReport { reload: reload(1, true), ..pool(3) }),
        8 => (Probes::Good, PlaneReport { leaving: true, ..answers() }),
        9 => (Probes::Bad, answers()),
        _ => {
            lab.kill_balancer(i);
            return;
        }
    };
    lab.hosts[i].plane = Some(plane);
    lab.revive_balancer(i);
    lab.hosts[i].probes = probes;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_balancers_are_like_the_best_has_the_vip_and_it_does_not_wander(
        course in proptest::collection::vec((0..3usize, 0..KINDS, any::<bool>(), 0..3_000u64), 1..10),
        nodes in 2..4usize,
    ) {
        let mut lab = Lab::settled(&[254, 253, 100][..nodes], true);
        for i in 0..nodes {
            become_like(&mut lab, i, 0);
        }
        lab.looking(ms(1_000));
        for (i, kind, full_table, wait) in &course {
            become_like(&mut lab, i % nodes, *kind);
            lab.feed(i % nodes, table(if *full_table { 99 } else { 10 }));
            lab.looking(ms(*wait));
        }
        // Margins, recoveries, and the short ones of the hold-downs.
        lab.looking(Duration::from_secs(15));
        let owners = lab.owners();
        prop_assert_eq!(owners.len(), 1, "{}", lab.story());
        let standing = |i: usize| lab.node(i).plan().vips[0].standing;
        let (owner, best) = (standing(owners[0]), (0..nodes).map(standing).max().unwrap_or(Standing::Bad));
        match owner {
            Standing::Bad => prop_assert_eq!(best, Standing::Bad, "{}", lab.story()),
            Standing::Poor => prop_assert!(best <= Standing::Full, "{:?}\n{}", best, lab.story()),
            _ => {}
        }
        for i in 0..nodes {
            for kind in lab.kinds(i) {
                if let Kind::Resign { to, why, .. } = kind {
                    prop_assert!(to.is_some(), "lb{} left for nobody: {}\n{}", i, why, lab.story());
                    prop_assert!(!why.contains("saturated") && !why.contains("table is full"), "lb{}: {}\n{}", i, why, lab.story());
                }
            }
        }
        // Each change moves it at most away and back.
        let moved = moves(&lab);
        prop_assert!(moved <= 1 + 2 * course.len() + nodes, "{} moves\n{}", moved, lab.story());
        prop_assert!(lab.dual_max <= ms(120), "dual for {:?}\n{}", lab.dual_max, lab.story());
        lab.unowned_max = Duration::ZERO;
        lab.looking(Duration::from_secs(30));
        // The end of a hold-down may bring it home, once.
        prop_assert!(moves(&lab) <= moved + 1, "{}", lab.story());
        prop_assert!(lab.unowned_max <= ms(1), "unowned for {:?}\n{}", lab.unowned_max, lab.story());
    }
}

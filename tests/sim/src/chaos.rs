//! A seed's run: safety under random faults, then all is mended and the cluster must agree (liveness).

use crate::cluster::{Cluster, Options};
use crate::host::Plane;
use crate::net::{Path, Wire};
use holdfast_node::config::LastNode;
use std::time::Duration;

/// Faults of one run.
const FAULTS: u64 = 40;
/// After everything is mended: within this time exactly the best host owns the VIP.
const SETTLE: Duration = Duration::from_secs(8);
/// … and then nothing changes for this long.
const QUIET: Duration = Duration::from_secs(3);

/// Runs a seed to its end. Panics with the seed and the trace when something doesn't hold.
pub fn run(seed: u64) {
    let mut pick = crate::rng::SimRng::new(seed ^ 0x5eed);
    let options = Options {
        hosts: if pick.chance(300) { 3 } else { 2 },
        channel: pick.chance(750),
        interval_ms: [50, 100, 200][usize::try_from(pick.below(3)).expect("small")],
        preempt: true,
        last_node: LastNode::Keep,
        seed,
    };
    let mut cluster = Cluster::settled(options);
    for _ in 0..FAULTS {
        fault(&mut cluster, &mut pick);
        let pause = pick.between(20, 1500);
        cluster.run(Duration::from_millis(pause));
    }
    mend(&mut cluster);
    cluster.run(SETTLE);
    let owners = cluster.owners();
    assert_eq!(owners, [0], "seed {seed}: after healing the first host owns the VIP\n{}", cluster.trace());
    let adverts: Vec<u64> = cluster.hosts.iter().map(|h| h.adverts).collect();
    cluster.run(QUIET);
    assert_eq!(cluster.owners(), [0], "seed {seed}: it keeps it\n{}", cluster.trace());
    for (i, host) in cluster.hosts.iter().enumerate().skip(1) {
        assert_eq!(host.adverts, adverts[i], "seed {seed}: {} stays silent as Backup\n{}", host.name, cluster.trace());
    }
}

fn fault(cluster: &mut Cluster, pick: &mut crate::rng::SimRng) {
    let hosts = u64::try_from(cluster.hosts.len()).expect("few");
    let i = usize::try_from(pick.below(hosts)).expect("few");
    let j = (i + 1 + usize::try_from(pick.below(hosts - 1)).expect("few")) % cluster.hosts.len();
    match pick.below(20) {
        0 | 1 => cluster.set_plane(i, Plane::Dead),
        2..=4 => cluster.set_plane(i, Plane::Alive),
        5 => cluster.set_plane(i, Plane::Hung),
        6 => cluster.cut(Wire::Segment, i, j, true),
        18 => cluster.net.heal(),
        7 => cluster.net.cut(Wire::Segment, i, j, true),
        8 => cluster.cut(Wire::Channel, i, j, true),
        9 => cluster.net.heal(),
        10 => {
            let cut = pick.chance(600);
            cluster.isolate(i, cut);
        }
        11 => {
            let (loss, jitter_us) = (pick.below(200), pick.below(8000));
            for (a, b) in [(i, j), (j, i)] {
                cluster.net.set(Wire::Segment, a, b, Path { loss, duplicate: 50, jitter_us, ..Path::default() });
                cluster.net.set(Wire::Channel, a, b, Path { loss, duplicate: 50, jitter_us, ..Path::default() });
            }
        }
        12 => {
            let time = pick.between(20, 2500);
            cluster.pause(i, Duration::from_millis(time));
        }
        13 => cluster.crash(i),
        14 => cluster.start(i),
        15 => {
            let gap = pick.between(5, 90);
            cluster.worker_crash(i, Duration::from_millis(gap));
        }
        16 => cluster.delete_address(i),
        17 => {
            let up = pick.chance(600);
            cluster.set_carrier(i, up);
        }
        _ => {
            if pick.chance(500) {
                cluster.drain(i);
            } else {
                cluster.undrain(i);
            }
        }
    }
}

fn mend(cluster: &mut Cluster) {
    cluster.note("mended".to_owned());
    cluster.net.heal();
    for i in 0..cluster.hosts.len() {
        if let Some(until) = cluster.hosts[i].paused_until {
            let rest = until.saturating_duration_since(cluster.now());
            cluster.run(rest);
        }
    }
    for i in 0..cluster.hosts.len() {
        cluster.set_carrier(i, true);
        cluster.set_plane(i, Plane::Alive);
        cluster.start(i);
        cluster.undrain(i);
    }
}

//! Any mixture of faults, by seed: after healing all tables are equal, nobody but an owner ever deleted, and no replica
//! of a living flow went by its own timer while its owner was heard.

use crate::heal::assert_heals;
use crate::sim::{MS, SECOND, SHARED, Sim, VIP};
use holdfast_statesync::flow::Elected;

/// Seeds in a usual run; `HOLDFAST_FLOW_SEEDS` asks for others (FIRST..END).
const SEEDS: std::ops::Range<u64> = 0..24;

/// Seeds that found something once. 17: an agent that restarted forgot the replicas of peers that it hadn't heard yet.
/// 49, 98: a hello that was due while the window was full made the timer fire without a pause. 456, 596: so did a flow
/// that waited for a session that wasn't open yet.
const FOUND: [u64; 4] = [49, 98, 456, 596];

#[allow(clippy::disallowed_methods, reason = "the range of seeds comes from the environment")]
pub(crate) fn seeds(usual: impl Iterator<Item = u64>) -> Vec<u64> {
    let Ok(text) = std::env::var("HOLDFAST_FLOW_SEEDS") else { return usual.collect() };
    let parts = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    let (first, end) = parts.expect("HOLDFAST_FLOW_SEEDS is FIRST..END");
    (first..end).collect()
}

#[test]
fn whatever_happens_tables_are_equal_after_healing() {
    hold(&seeds(SEEDS.chain(FOUND)), |seed| run(Sim::new(seed, count_of(seed))));
}

#[test]
fn whatever_happens_tables_are_equal_after_healing_over_real_channels() {
    hold(&seeds(0..6), |seed| run(Sim::over_channels(seed, count_of(seed))));
}

const fn count_of(seed: u64) -> usize {
    2 + (seed % 3) as usize
}

pub(crate) fn hold(seeds: &[u64], run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let failed: Vec<u64> =
        seeds.iter().copied().filter(|seed| std::panic::catch_unwind(|| run(*seed)).is_err()).collect();
    assert!(failed.is_empty(), "failed: seeds {failed:?}");
}

fn run(mut sim: Sim) {
    let count = sim.nodes.len();
    let mut holder = sim.below(count);
    sim.move_vip(VIP, holder);
    (0..count).for_each(|node| sim.elect(node, SHARED, Elected::Me));
    sim.run_for(SECOND);
    for _ in 0..120 {
        step(&mut sim, &mut holder);
        let pause = sim.below(400) as u32;
        sim.run_for(pause * MS);
        for node in 0..count {
            if let Some(flows) = &sim.nodes[node].flows {
                assert!(flows.records() <= sim.max_flows);
            }
        }
    }
    sim.move_vip(VIP, holder);
    assert_heals(&mut sim, 60 * SECOND);
    assert_eq!(sim.timed_out, []);
}

fn step(sim: &mut Sim, holder: &mut usize) {
    let count = sim.nodes.len();
    let node = sim.below(count);
    match sim.below(22) {
        0..6 => sim.open(*holder, VIP, 5),
        6..8 => sim.open(node, SHARED, 5),
        8..12 => close_some(sim, *holder),
        12 => {
            *holder = node;
            sim.move_vip(VIP, node);
            sim.traffic(node, VIP);
        }
        13 => sim.loss_percent = sim.below(30) as u32,
        14 => (sim.double_percent, sim.jitter) = (sim.below(30) as u32, sim.below(10) as u32 * MS),
        15 => {
            let other = sim.below(count);
            sim.cuts.insert((node, other));
        }
        16 => sim.cuts.clear(),
        17 => {
            let time = sim.below(6_000) as u32 * MS;
            sim.nodes[node].stalled_until = Some(sim.now + time);
        }
        18 => sim.restart(node),
        19 if sim.nodes[node].kernel.deaf => sim.hear_again(node),
        19 => sim.nodes[node].kernel.deaf = true,
        20 if node != *holder => {
            // What others own is flushed; its own flows stay, or they would be over.
            let replicas: Vec<_> =
                sim.nodes[node].kernel.flows.iter().filter(|(_, held)| held.mark != 0).map(|(key, _)| *key).collect();
            for key in replicas {
                sim.nodes[node].kernel.take(sim.now, &key, 4242);
            }
            sim.wake(node);
        }
        _ => {
            // Both sides of a partition may think that they hold the VIP.
            if sim.chance(20) {
                sim.elect(node, VIP, Elected::Me);
            }
        }
    }
}

/// Closes some of the flows that this node's kernel has.
fn close_some(sim: &mut Sim, node: usize) {
    for _ in 0..3 {
        let place = sim.below(sim.clients.len());
        let known = sim.clients.get(place).filter(|client| client.vip == VIP);
        if known.is_some_and(|client| sim.nodes[node].kernel.flows.contains_key(&client.key())) {
            sim.close(node, place);
        }
    }
}

//! Figures that the design promises: bytes per event on the wire, memory per flow.

use crate::heal::pair;
use crate::sim::{MS, SECOND, Sim, VIP};

/// IPv4, UDP and the channel's header and tag, around each batch: 20 + 8 + 14 + 3 + 16 bytes.
const AROUND: u64 = 61;

#[test]
fn an_event_of_an_ipv4_flow_takes_at_most_40_bytes_on_the_wire_in_bursts_of_8() {
    let mut sim = pair(1, 64);
    let (bytes, datagrams) = (sim.wire_bytes, sim.datagrams);
    let bursts = 1_000;
    for _ in 0..bursts {
        sim.open(0, VIP, 4);
        (0..4).for_each(|_| {
            let client = sim.clients.swap_remove(0);
            sim.nodes[0].kernel.close(sim.now, &client.key());
        });
        sim.wake(0);
        sim.run_for(MS / 2);
    }
    // Acknowledgements, digests and keepalives of both directions are in it.
    let total = sim.wire_bytes - bytes + (sim.datagrams - datagrams) * AROUND;
    let each = total as f64 / f64::from(bursts * 8);
    println!("{each:.1} bytes per event");
    assert!(each <= 40.0, "{each:.1} bytes per event");
}

#[test]
fn a_replicated_ipv4_flow_takes_at_most_128_bytes_of_memory_at_either_side() {
    let mut sim = Sim::idle(2, 2);
    sim.max_flows = 1_000_000;
    sim.start_agent(0);
    sim.start_agent(1);
    sim.move_vip(VIP, 0);
    assert!(sim.run_until(5 * SECOND, Sim::all_in_sync));
    let empty = [sim.flows(0).memory(), sim.flows(1).memory()];
    let count = 40_000;
    for _ in 0..count / 100 {
        sim.open(0, VIP, 100);
        sim.run_for(MS);
    }
    sim.run_for(50 * MS);
    assert_eq!(sim.flows(1).records(), count);
    for node in [0, 1] {
        let each = (sim.flows(node).memory() - empty[node]) as f64 / count as f64;
        println!("node {node}: {each:.1} bytes per flow");
        assert!(each <= 128.0, "node {node}: {each:.1} bytes per flow");
    }
}

//! The packet simulator: for each ordered pair of hosts on each network, whether a packet arrives, when and how often.

use crate::rng::SimRng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Which wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    /// The clients' segment: adverts and ARP.
    Segment,
    /// The channel's own link.
    Channel,
}

/// How one direction of one pair behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Nothing arrives.
    pub cut: bool,
    /// Lost packets per 1000.
    pub loss: u64,
    /// Packets per 1000 that arrive twice.
    pub duplicate: u64,
    /// Delay of every packet, microseconds.
    pub delay_us: u64,
    /// Random extra delay up to this, microseconds (packets may overtake each other).
    pub jitter_us: u64,
}

impl Default for Path {
    fn default() -> Self {
        Self { cut: false, loss: 0, duplicate: 0, delay_us: 100, jitter_us: 50 }
    }
}

/// All paths.
#[derive(Debug, Default)]
pub struct Net {
    paths: BTreeMap<(Wire, usize, usize), Path>,
    islands: BTreeSet<usize>,
}

impl Net {
    /// How packets from `from` to `to` fare.
    pub fn path(&self, wire: Wire, from: usize, to: usize) -> Path {
        self.paths.get(&(wire, from, to)).copied().unwrap_or_default()
    }

    /// Changes one direction.
    pub fn set(&mut self, wire: Wire, from: usize, to: usize, path: Path) {
        self.paths.insert((wire, from, to), path);
    }

    /// Cuts or joins one direction, leaving its other properties.
    pub fn cut(&mut self, wire: Wire, from: usize, to: usize, cut: bool) {
        let path = self.path(wire, from, to);
        self.set(wire, from, to, Path { cut, ..path });
    }

    /// Everything as new.
    pub fn heal(&mut self) {
        self.paths.clear();
        self.islands.clear();
    }

    /// Takes a host off the segment, from the other `hosts` and from the clients, or puts it back.
    pub fn isolate(&mut self, host: usize, hosts: usize, cut: bool) {
        for other in (0..hosts).filter(|&other| other != host) {
            self.cut(Wire::Segment, host, other, cut);
            self.cut(Wire::Segment, other, host, cut);
        }
        if cut {
            self.islands.insert(host)
        } else {
            self.islands.remove(&host)
        };
    }

    /// Clients on the segment reach this host.
    pub fn reachable(&self, host: usize) -> bool {
        !self.islands.contains(&host)
    }

    /// Both directions deliver every packet.
    pub fn sound(&self, wire: Wire, a: usize, b: usize) -> bool {
        [self.path(wire, a, b), self.path(wire, b, a)].iter().all(|p| !p.cut && p.loss == 0)
    }

    /// Delays after which copies of a packet arrive: none when it is lost.
    pub fn deliveries(&self, rng: &mut SimRng, wire: Wire, from: usize, to: usize) -> Vec<Duration> {
        let path = self.path(wire, from, to);
        if path.cut || rng.chance(path.loss) {
            return vec![];
        }
        let copies = if rng.chance(path.duplicate) { 2 } else { 1 };
        (0..copies).map(|_| Duration::from_micros(path.delay_us + rng.below(path.jitter_us + 1))).collect()
    }
}

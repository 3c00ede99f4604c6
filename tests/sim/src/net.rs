//! The packet simulator: for each ordered pair of hosts on each network, whether a packet arrives, when and how often.

use crate::rng::SimRng;
use std::time::Duration;

/// Hosts of a cluster at most.
pub const HOSTS_MAX: usize = 6;
/// The place of the segment's router among the hosts.
pub const GATEWAY: usize = HOSTS_MAX;

/// Which wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    /// A clients' segment: adverts, ARP and neighbour discovery. Interface `eth0` is on the first, `eth1` on the second.
    Segment(u8),
    /// The channel's own link.
    Channel,
}

/// The segment of the first leg.
pub const SEGMENT: Wire = Wire::Segment(0);
/// All wires.
pub const WIRES: [Wire; 3] = [Wire::Segment(0), Wire::Segment(1), Wire::Channel];

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
#[derive(Debug)]
pub struct Net {
    paths: Vec<Path>,
    islands: [[bool; HOSTS_MAX]; 2],
}

impl Default for Net {
    fn default() -> Self {
        let paths = vec![Path::default(); WIRES.len() * (HOSTS_MAX + 1) * (HOSTS_MAX + 1)];
        Self { paths, islands: Default::default() }
    }
}

fn place(wire: Wire, from: usize, to: usize) -> usize {
    let wire = match wire {
        Wire::Segment(n) => usize::from(n),
        Wire::Channel => 2,
    };
    (wire * (HOSTS_MAX + 1) + from) * (HOSTS_MAX + 1) + to
}

impl Net {
    /// How packets from `from` to `to` fare.
    pub fn path(&self, wire: Wire, from: usize, to: usize) -> Path {
        self.paths[place(wire, from, to)]
    }

    /// Changes one direction.
    pub fn set(&mut self, wire: Wire, from: usize, to: usize, path: Path) {
        self.paths[place(wire, from, to)] = path;
    }

    /// Cuts or joins one direction, leaving its other properties.
    pub fn cut(&mut self, wire: Wire, from: usize, to: usize, cut: bool) {
        self.paths[place(wire, from, to)].cut = cut;
    }

    /// Everything as new.
    pub fn heal(&mut self) {
        *self = Self::default();
    }

    /// Takes a host off a segment, from all others and from the clients, or puts it back.
    pub fn isolate(&mut self, segment: u8, host: usize, cut: bool) {
        for other in (0..=GATEWAY).filter(|&other| other != host) {
            self.cut(Wire::Segment(segment), host, other, cut);
            self.cut(Wire::Segment(segment), other, host, cut);
        }
        self.islands[usize::from(segment)][host] = cut;
    }

    /// Clients on the segment reach this host.
    pub fn reachable(&self, segment: u8, host: usize) -> bool {
        !self.islands[usize::from(segment)][host]
    }

    /// Both directions deliver every packet.
    pub fn sound(&self, wire: Wire, a: usize, b: usize) -> bool {
        let sound = |path: Path| !path.cut && path.loss == 0;
        sound(self.path(wire, a, b)) && sound(self.path(wire, b, a))
    }

    /// Delays after which the copies of a packet arrive: none when it is lost.
    pub fn deliveries(
        &self,
        rng: &mut SimRng,
        wire: Wire,
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = Duration> + use<> {
        let path = self.path(wire, from, to);
        let arrives = !(path.cut || path.loss > 0 && rng.chance(path.loss));
        let twice = arrives && path.duplicate > 0 && rng.chance(path.duplicate);
        let mut delay =
            |there: bool| there.then(|| Duration::from_micros(path.delay_us + rng.below(path.jitter_us + 1)));
        let copies = [delay(arrives), delay(twice)];
        copies.into_iter().flatten()
    }
}

//! A simulated host: a node (or none, when it crashed), its kernel and its balancer.

use crate::kernel::Kernel;
use holdfast_node::Node;
use holdfast_node::config::Config;
use holdfast_node::drain::Intents;
use holdfast_node::io::{Answer, OwnerRecord};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

/// The balancer of a host, as it really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Serves.
    Alive,
    /// Gone; the supervisor sees it at once.
    Dead,
    /// There, but answers nothing.
    Hung,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Host {
    /// Its name in the configuration.
    pub name: String,
    /// Its address on the channel's network.
    pub channel: SocketAddr,
    /// Its configuration.
    pub config: Config,
    /// The channel's secret.
    pub secret_key: Option<holdfast_statesync::SecretKey>,
    /// The agent; `None`: crashed.
    pub node: Option<Node>,
    /// Grows with each start: wakes of former lives are ignored.
    pub life: u64,
    /// What the kernel has.
    pub kernel: Kernel,
    /// The balancer as it is.
    pub plane: Plane,
    /// Pid of the balancer's present life.
    pub pid: u32,
    /// Stands still until then; packets wait.
    pub paused_until: Option<Instant>,
    /// When its node wants to be woken (so that one wake is queued, not many).
    pub wake_at: Option<Instant>,
    /// What the keeper was told, by VIP.
    pub ledger: BTreeMap<u16, OwnerRecord>,
    /// Stored intents.
    pub intents: Intents,
    /// Last journal id, as stored.
    pub last_event_id: u64,
    /// Answers to operators, newest last.
    pub answers: Vec<(u64, Answer)>,
    /// Adverts sent with a priority above 0, and when the last one left.
    pub adverts: u64,
    /// See `adverts`.
    pub last_advert: Option<Instant>,
    /// Since when the balancer is as it is.
    pub plane_since: Instant,
    /// An operator wants it out.
    pub drained: bool,
}

impl Host {
    /// Answers ARP for the VIP: what "owns" means on the segment.
    pub fn owns(&self) -> bool {
        self.kernel.carrier && !self.kernel.vips.is_empty()
    }

    /// Its agent runs and isn't standing still.
    pub fn responsive(&self, now: Instant) -> bool {
        self.node.is_some() && self.paused_until.is_none_or(|until| until <= now)
    }
}

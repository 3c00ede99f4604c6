//! A simulated host: its agent (or none, when it crashed), its kernel, its balancer and its clock.

use crate::flows::Flows;
use crate::kernel::Kernel;
use crate::peer::Peer;
use crate::plane::Plane;
use holdfast_node::Node;
use holdfast_node::config::{Config, InterfaceName, VipId};
use holdfast_node::drain::Intents;
use holdfast_node::io::{Answer, OwnerRecord};
use holdfast_vrrp::State;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// See the module documentation.
#[derive(Debug)]
pub struct Host {
    /// Its name in the configuration.
    pub name: String,
    /// Its address on the channel's network.
    pub channel: SocketAddr,
    /// Its configuration; of a plain peer: that of the unit which it shares.
    pub config: Config,
    /// The channel's secret.
    pub secret_key: Option<holdfast_statesync::SecretKey>,
    /// It runs another implementation.
    pub plain: bool,
    /// The agent; `None`: crashed, stopped, or a plain peer.
    pub node: Option<Node>,
    /// The other implementation, while it runs.
    pub peer: Option<Peer>,
    /// Grows with each start: wakes of former lives are ignored.
    pub life: u64,
    /// What the kernel has.
    pub kernel: Kernel,
    /// The balancer as it is.
    pub plane: Plane,
    /// Pid of the balancer's present life.
    pub pid: u32,
    /// How far its clock is behind: what it stood still with the host.
    pub lag: Duration,
    /// Stands still until then; packets wait.
    pub paused_until: Option<Instant>,
    /// Its clock stands still too, since then.
    pub frozen_at: Option<Instant>,
    /// When its clock went on last, and how long it had stood still.
    pub clock_stood: Option<(Instant, Duration)>,
    /// Since when it stands still, with its clock or without.
    pub stands_from: Option<Instant>,
    /// When it went on last, and how long it had stood still.
    pub stood: Option<(Instant, Duration)>,
    /// Adverts can't be sent.
    pub mute: bool,
    /// When its agent wants to be woken (so that one wake is queued, not many).
    pub wake_at: Option<Instant>,
    /// For when a look at the kernel's lifetimes is queued.
    pub expire_at: Option<Instant>,
    /// What the keeper was told, by VIP.
    pub ledger: BTreeMap<u16, OwnerRecord>,
    /// Stored intents.
    pub intents: Intents,
    /// Last journal id, as stored.
    pub last_event_id: u64,
    /// Answers to operators, newest last.
    pub answers: Vec<(u64, Answer)>,
    /// Adverts sent with a priority above 0.
    pub adverts: u64,
    /// When the last one left.
    pub last_advert: Option<Instant>,
    /// When it last announced an address.
    pub announced: Option<Instant>,
    /// Changes of its router's state.
    pub transitions: u64,
    /// Since when the balancer is as it is.
    pub plane_since: Instant,
    /// Processor time that it has spent.
    pub ticks: u64,
    /// The connection table is full.
    pub table_full: bool,
    /// Its sync thread.
    pub flows: Flows,
    /// It was told to stop.
    pub stopping: bool,
    /// Last time that it could really serve.
    pub able_at: Option<Instant>,
    /// Last time that its agent took itself for one that serves well, perhaps with something odd.
    pub said_well_at: Option<Instant>,
    /// The same: for one that answers at least, however badly.
    pub said_poor_at: Option<Instant>,
}

impl Host {
    /// Has a VIP address on an interface that works, or is Active with a way out: what "owns" means on a segment.
    pub fn owns(&self) -> bool {
        let answers = (0..2).any(|segment| self.kernel.answers(segment));
        answers || self.is_active() && self.config.vips[0].legs.iter().any(|leg| self.interface_works(&leg.interface))
    }

    /// Its state machine is Active.
    pub fn is_active(&self) -> bool {
        match (&self.node, &self.peer) {
            (Some(node), _) => node.world().vips[usize::from(VipId(0).0)].state == State::Active,
            (None, Some(peer)) => peer.is_active(),
            (None, None) => false,
        }
    }

    /// An agent runs.
    pub fn runs(&self) -> bool {
        self.node.is_some() || self.peer.is_some()
    }

    /// Its agent runs and isn't standing still.
    pub fn responsive(&self, now: Instant) -> bool {
        self.runs() && self.paused_until.is_none_or(|until| until <= now)
    }

    /// This interface carries frames.
    pub fn interface_works(&self, name: &InterfaceName) -> bool {
        self.kernel.interfaces.iter().any(|i| i.name == *name && i.works())
    }

    /// Every interface of the unit is there, with carrier and its own addresses.
    pub fn linked(&self) -> bool {
        let based = |name: &InterfaceName| self.kernel.interfaces.iter().any(|i| i.name == *name && i.based);
        let vip = &self.config.vips[0];
        vip.legs.iter().map(|leg| &leg.interface).all(|name| self.interface_works(name) && based(name))
    }

    /// The host's own clock when the world's shows `now`.
    pub fn local(&self, now: Instant) -> Instant {
        self.frozen_at.unwrap_or(now) - self.lag
    }
}

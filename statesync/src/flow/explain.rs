//! Would this flow survive on each peer, and why not?

use super::facts::FlowKey;
use super::record::{CLASH, DEAD, IN_KERNEL, Record, YOUNG};
use super::types::{Class, Mode, NodeId, VipId, Why};
use super::{Flows, ME, peer_id};
use crate::channel::PeerId;
use crate::ct::{Entry, Key, Tuple, Zone};
use std::net::SocketAddr;
use std::time::Instant;

/// Whose a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This node's.
    Ours,
    /// A peer's.
    Peers(PeerId),
    /// A peer's, in an earlier life of its kernel: it ends with its lease if nobody claims it.
    Past(PeerId),
}

/// Whether a flow would go on if this peer had to serve it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// The peer is its owner, or acknowledged its latest state.
    Yes,
    /// It is too young for the VIP's mode.
    Young,
    /// The VIP's mode is off, or the VIP isn't shared with this peer.
    NotWanted,
    /// The peer didn't acknowledge its latest state.
    NotAcknowledged,
    /// The peer can't hold it: another flow has its address and port behind the NAT there.
    Clash,
    /// Nothing is known of what the peer has.
    NotInSync(Why),
    /// Another node owns it: ask there.
    AskOwner(NodeId),
}

/// What is known of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// Its destination is no VIP of ours.
    NotForVips,
    /// The VIP's flows aren't replicated.
    Off(VipId),
    /// No such flow is replicated: it is over, isn't assured yet, or ends on this host (proxied), or needs what isn't
    /// carried. [`Flows::why_not`] tells these apart if the kernel's entry is given.
    Unknown(VipId),
    /// It is in the table.
    Known {
        /// Its VIP.
        vip: VipId,
        /// Whose it is.
        owner: Whose,
        /// Its generation.
        generation: u32,
        /// It is in this node's kernel, so it would survive here.
        here: bool,
        /// It can't be in this node's kernel: another flow has its address and port.
        clash: bool,
        /// For each peer whether it would survive there.
        peers: Vec<(PeerId, Survival)>,
    },
}

/// A flow in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its VIP.
    pub vip: VipId,
    /// Its original tuple and zone.
    pub key: Key,
    /// Where it goes.
    pub backend: Option<SocketAddr>,
    /// Whose it is.
    pub owner: Whose,
    /// Its kind of life.
    pub class: Class,
    /// Its generation.
    pub generation: u32,
    /// It is in this node's kernel.
    pub here: bool,
}

/// Why an entry of the kernel isn't replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReplicated {
    /// Its destination is no VIP of ours.
    NotForVips,
    /// The VIP's flows aren't.
    Off,
    /// It ends on this host. Drain, and affinity by stick table or cookie, are the answer.
    Proxied,
    /// It needs a helper, a SYN proxy or shifted sequence numbers.
    NotCarried,
    /// It isn't assured yet.
    NotAssured,
}

impl Flows {
    /// What is known of a flow, by its original tuple.
    pub fn explain(&self, now: Instant, tuple: &Tuple, zone: Zone) -> Explanation {
        let Some(vip) = self.addresses.get(&tuple.addresses.destination()).copied() else {
            return Explanation::NotForVips;
        };
        if self.vip_config(vip).is_some_and(|config| config.mode == Mode::Off) {
            return Explanation::Off(vip);
        }
        let key = FlowKey::of(tuple, zone);
        let Some(record) = self.table.find(&key).and_then(|id| self.table.get(id)).filter(|r| !r.has(DEAD)) else {
            return Explanation::Unknown(vip);
        };
        let owner = match Self::peer_of(record.owner) {
            None => Whose::Ours,
            Some(index) if self.is_past(record.owner) => Whose::Past(peer_id(index)),
            Some(index) => Whose::Peers(peer_id(index)),
        };
        let peers = (0..self.peers.len()).map(|index| (peer_id(index), self.survival(now, index, vip, record, &key)));
        Explanation::Known {
            vip,
            owner,
            generation: record.generation,
            here: record.local(IN_KERNEL),
            clash: record.local(CLASH),
            peers: peers.collect(),
        }
    }

    /// All flows in the table.
    pub fn list(&self) -> impl Iterator<Item = Listed> + '_ {
        (0..self.table.end()).filter_map(|id| {
            let record = self.table.get(id).filter(|record| !record.has(DEAD))?;
            let key = self.table.flow_key(record)?;
            let nat = self.table.nat(record);
            let owner = match Self::peer_of(record.owner) {
                None => Whose::Ours,
                Some(index) if self.is_past(record.owner) => Whose::Past(peer_id(index)),
                Some(index) => Whose::Peers(peer_id(index)),
            };
            Some(Listed {
                vip: self.table.vip(record),
                key: key.kernel_key()?,
                backend: nat.backend.map(|(address, port)| SocketAddr::new(address, port)),
                owner,
                class: record.class(),
                generation: record.generation,
                here: record.local(IN_KERNEL),
            })
        })
    }

    fn survival(&self, now: Instant, index: usize, vip: VipId, record: &Record, key: &FlowKey) -> Survival {
        let Some(peer) = self.peers.get(index) else { return Survival::NotWanted };
        if Self::peer_of(record.owner) == Some(index) {
            return Survival::Yes;
        }
        if record.owner != ME {
            return Survival::AskOwner(self.node_of(record.owner));
        }
        if !self.shares(vip, index) {
            return Survival::NotWanted;
        }
        if record.has(YOUNG) {
            return Survival::Young;
        }
        if self.clashes.contains(&(*key, peer_id(index))) {
            return Survival::Clash;
        }
        if record.unacked & peer.bit != 0 {
            return Survival::NotAcknowledged;
        }
        match self.outbound_why(now, index) {
            Some(why) => Survival::NotInSync(why),
            None => Survival::Yes,
        }
    }

    /// Why an entry of the kernel isn't replicated; `None`: it is, or will be.
    pub fn why_not(&self, entry: &Entry) -> Option<NotReplicated> {
        let Some(vip) = self.addresses.get(&entry.original.addresses.destination()) else {
            return Some(NotReplicated::NotForVips);
        };
        let mode = self.vip_config(*vip).map_or(Mode::Off, |config| config.mode);
        if mode == Mode::Off {
            Some(NotReplicated::Off)
        } else if !entry.is_dnat() || self.ends_here(entry) {
            Some(NotReplicated::Proxied)
        } else if Self::is_odd(entry) {
            Some(NotReplicated::NotCarried)
        } else if mode != Mode::Syn && !super::facts::State::of(entry, None).assured {
            Some(NotReplicated::NotAssured)
        } else {
            None
        }
    }
}

//! Whose advert it is: from what a packet shows to a unit's leg, without looking at every unit.

use crate::config::{Config, VipId};
use crate::decide::socket_of;
use crate::io::SocketKey;
use crate::world::World;
use holdfast_vrrp::{Family, LegId, Vrid, wire};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// All legs. Where two fit, the first in the configuration has it.
#[derive(Debug, Default)]
pub(crate) struct LegIndex {
    /// Multicast: VRIDs are told apart by segment and family.
    groups: BTreeMap<(u32, Family, Vrid), (VipId, LegId)>,
    /// A unicast advert may come in on any interface, and is told apart by its sender.
    peers: BTreeMap<(IpAddr, Family, Vrid), (VipId, LegId)>,
    /// Units whose adverts come and go through a socket.
    users: BTreeMap<SocketKey, Vec<VipId>>,
}

impl LegIndex {
    /// Of interfaces as they are now.
    pub(crate) fn new(config: &Config, world: &World) -> Self {
        let mut index = Self::default();
        for (id, vip) in (0..).map(VipId).zip(&config.vips) {
            for (at, leg) in (0..).map(LegId).zip(&vip.legs) {
                if let Some(link) = world.link(&leg.interface) {
                    index.users.entry(socket_of(leg, link.ifindex)).or_default().push(id);
                }
                if leg.peers.is_empty() {
                    let Some(link) = world.link(&leg.interface) else { continue };
                    index.groups.entry((link.ifindex, leg.family, leg.vrid)).or_insert((id, at));
                }
                for peer in &leg.peers {
                    index.peers.entry((*peer, leg.family, leg.vrid)).or_insert((id, at));
                }
            }
        }
        index
    }

    /// Units whose adverts come and go through this socket.
    pub(crate) fn users(&self, socket: SocketKey) -> &[VipId] {
        self.users.get(&socket).map_or(&[], Vec::as_slice)
    }

    /// Whether this is for a leg of ours with unicast peers, from one that isn't among them.
    pub(crate) fn stranger(&self, received: &wire::Received) -> bool {
        let (family, vrid) = (received.advert.addresses.family(), received.advert.vrid);
        let unicast = !received.destination.is_multicast();
        unicast && self.peers.keys().any(|(_, theirs, id)| (*theirs, *id) == (family, vrid))
    }

    /// The leg that this advert is for.
    pub(crate) fn find(&self, ifindex: u32, received: &wire::Received) -> Option<(VipId, LegId)> {
        let (family, vrid) = (received.advert.addresses.family(), received.advert.vrid);
        if received.destination.is_multicast() {
            self.groups.get(&(ifindex, family, vrid)).copied()
        } else {
            self.peers.get(&(received.source, family, vrid)).copied()
        }
    }
}

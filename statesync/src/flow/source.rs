//! Sources: addresses that backends answer to, each at one node at a time. With a shared VIP it is they that say whose a
//! flow is: clients' packets come to any node, answers only to the one that has the flow's SNAT address. It alone sees the
//! flow's end for sure, so it renews and ends it.
//!
//! What has no SNAT address is answered through a gateway, which any source may be. Such flows follow their packets while
//! their node lives; what a node leaves behind is claimed by the holder of the first source that has one.

use super::claim::{Scope, Seat};
use super::record::Record;
use super::table::{OWNERS, PLAIN};
use super::types::{Elected, SourceId, VipId};
use super::{Flows, ME};
use crate::mutants;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A node has left behind what it had when nothing was heard of it for so long.
const LEFT_AFTER: Duration = Duration::from_secs(3);

impl Flows {
    pub(super) fn on_source_elected(&mut self, now: Instant, source: SourceId, elected: Elected) {
        let Some(seat) = self.sources.get_mut(usize::from(source.0)) else { return };
        let before = seat.elect(now, elected);
        self.after_election(now, Scope::Source(source.0 + 1), before);
    }

    /// Who has a source has all flows of it, and one node what others left behind: claims them as long as there are some.
    pub(super) fn check_sources(&mut self, now: Instant) {
        if mutants::off("claim-by-source") {
            return;
        }
        for place in 0..self.sources.len() {
            let (source, seat) = ((place + 1) as u8, self.sources[place]);
            let foreign: u32 = (1..OWNERS as u8).map(|owner| self.table.source_count(source, owner)).sum();
            let scope = Scope::Source(source);
            if seat.elected == Elected::Me && foreign > 0 && self.may_claim(now, scope, seat) {
                self.claim(now, scope, None, self.top_of(scope).saturating_add(1));
            }
        }
        let is_heir = self.heir().and_then(|heir| self.sources.get(usize::from(heir.0)));
        if is_heir.is_some_and(|seat| seat.elected == Elected::Me) {
            (0..self.peers.len()).for_each(|index| self.check_left(now, index));
        }
    }

    fn check_left(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get(index) else { return };
        let first = 2 * (1 + index) as u8;
        let left: u32 = (first..first + 2)
            .filter(|owner| self.is_left(*owner))
            .map(|owner| self.table.source_count(PLAIN, owner))
            .sum();
        if left == 0 {
            return;
        }
        let (seat, gone_at) = (peer.left, peer.seen_at.unwrap_or(self.started) + LEFT_AFTER);
        if !peer.up && now < gone_at {
            self.arm(gone_at);
        } else if self.may_claim(now, Scope::Source(PLAIN), seat) {
            let scope = Scope::Source(PLAIN);
            self.claim(now, scope, Some(index), self.top_of(scope).saturating_add(1));
        }
    }

    /// The first source whose holder is known. Its holder is the same on all nodes but for a moment.
    pub(super) fn heir(&self) -> Option<SourceId> {
        let place = self.sources.iter().position(|seat| seat.elected != Elected::Unknown)?;
        u8::try_from(place).ok().map(SourceId)
    }

    /// Nobody looks after the flows of this owner, as far as is known here. Our own: who says so outlived us.
    pub(super) fn is_left(&self, owner: u8) -> bool {
        let peer = Self::peer_of(owner).and_then(|index| self.peers.get(index));
        self.is_past(owner) || peer.is_none_or(|peer| !peer.up)
    }

    /// The election that a flow of a shared VIP goes by.
    fn seat_of(&self, record: &Record) -> Option<Seat> {
        let place = self.table.source(record)?.checked_sub(1)?;
        self.sources.get(usize::from(place)).copied().filter(|seat| seat.elected != Elected::Unknown)
    }

    /// By whom the flow would be claimed as a whole.
    pub(super) fn elected_for(&self, record: &Record) -> Elected {
        self.seat_of(record).map_or(Elected::Unknown, |seat| seat.elected)
    }

    /// Whether an election says that flows of this VIP with this SNAT address are this node's.
    pub(super) fn elected_here(&self, vip: VipId, snat: Option<IpAddr>) -> bool {
        let seat = match self.vip_config(vip).is_some_and(|vip| vip.shared) {
            true => snat.and_then(|snat| self.sources.get(usize::from(self.source_of.get(&snat)?.0))),
            false => self.vips.get(usize::from(vip.0)).map(|vip| &vip.seat),
        };
        seat.is_some_and(|seat| seat.elected == Elected::Me)
    }

    /// The same of a flow in the table.
    pub(super) fn is_elected_for(&self, record: &Record) -> bool {
        self.elected_here(self.table.vip(record), self.table.nat(record).snat)
    }

    /// Whether what this kernel says of a flow's end counts: its packets, all of them, come through here.
    pub(super) fn sees_the_end(&self, record: &Record) -> bool {
        match self.elected_for(record) {
            Elected::Me => true,
            Elected::Peer(_) => false,
            Elected::Unknown => self.serves(self.table.vip(record)),
        }
    }

    /// Whether a replica is ours when its packets come through here. Who has its source sees the others, and keeps it.
    pub(super) fn follows_packets(&self, record: &Record) -> bool {
        let kept = match self.elected_for(record) {
            Elected::Peer(peer) => {
                Self::peer_of(record.owner) == Some(usize::from(peer.0)) && !self.is_left(record.owner)
            }
            Elected::Me | Elected::Unknown => record.owner == ME,
        };
        self.serves(self.table.vip(record)) && (!kept || mutants::off("source-keeps"))
    }
}

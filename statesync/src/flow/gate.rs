//! Who holds whose flows, since when, and whether a VIP may come here.

use super::record::{CLASH, REFUSED, YOUNG};
use super::types::{Direction, Event, VipId, Why};
use super::{Flows, peer_id};
use crate::channel::PeerId;
use std::time::{Duration, Instant};

/// Why a VIP shouldn't come to this node yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReady {
    /// Our own kernel's table was not read yet.
    Reading,
    /// We don't hold all flows of this peer for sure.
    Peer(PeerId, Why),
    /// Replicas wait to be written into the kernel.
    Kernel {
        /// So many.
        behind: usize,
    },
}

/// A moment in what is told to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    session: u32,
    sequence: u32,
}

/// How far a peer is with what it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The last batch that was sent, counted since the session began.
    pub sent: u32,
    /// All batches up to this one are acknowledged, or counted as lost, and what they held is sent anew.
    pub settled: u32,
    /// Since when the oldest change waits: to be sent, or on its way.
    pub waits_since: Option<Instant>,
}

/// How long a node that just started waits for peers that it never heard.
const FIRST_CONTACT: Duration = Duration::from_secs(2);

impl Flows {
    /// Our flows at this peer.
    pub fn outbound(&self, now: Instant, peer: PeerId) -> Option<Direction> {
        let index = usize::from(peer.0);
        let state = self.peers.get(index)?;
        Some(Direction {
            equal_at: state.verify.equal_at,
            why: self.outbound_why(now, index),
            since: state.outbound.1,
            behind: state.tx.unsettled_total,
        })
    }

    /// This peer's flows here.
    pub fn inbound(&self, now: Instant, peer: PeerId) -> Option<Direction> {
        let index = usize::from(peer.0);
        let state = self.peers.get(index)?;
        Some(Direction {
            equal_at: state.rx.equal_at,
            why: self.inbound_why(now, index),
            since: state.inbound.1,
            behind: 0,
        })
    }

    /// Whether all that the peers that are up (or may come up, in the first two seconds) have of this VIP's flows is in our kernel. The caller decides how long it
    /// waits: a peer that is down can't be waited for, and isn't.
    ///
    /// # Errors
    /// [`NotReady`] says what is missing.
    pub fn may_promote(&self, now: Instant, vip: VipId) -> Result<(), NotReady> {
        if self.reading() {
            return Err(NotReady::Reading);
        }
        for (index, peer) in self.peers.iter().enumerate() {
            // Who was never heard in this run may be about to be.
            let is_unknown = peer.seen_at.is_none() && now < self.started + FIRST_CONTACT;
            if !(peer.up || is_unknown) || !self.shares(vip, index) || crate::mutants::off("promote-gate") {
                continue;
            }
            if let Some(why) = self.inbound_why(now, index) {
                return Err(NotReady::Peer(peer_id(index), why));
            }
        }
        match self.kernel.behind() {
            0 => Ok(()),
            behind => Err(NotReady::Kernel { behind }),
        }
    }

    /// Whether nothing of ours is on its way to the peer: the barrier before an address goes. In a session in which nothing
    /// was compared yet all of it may be.
    pub fn is_flushed(&self, peer: PeerId) -> bool {
        self.peers.get(usize::from(peer.0)).is_none_or(|peer| {
            let claims = peer.tx.control.iter().any(|control| matches!(control, super::peer::Control::Claim(_)));
            peer.tx.unsettled_total == 0 && !claims && (!peer.up || peer.verify.equal_at.is_some())
        })
    }

    /// Live flows that are ours, of all VIPs.
    pub fn own_flows(&self) -> usize {
        self.table.owned(super::ME)
    }

    /// Live flows that are this peer's, those of earlier lives of its kernel among them.
    pub fn replicas_of(&self, peer: PeerId) -> usize {
        let first = 2 * (1 + usize::from(peer.0));
        (first..first + 2).filter_map(|owner| u8::try_from(owner).ok()).map(|owner| self.table.owned(owner)).sum()
    }

    /// Live flows of a VIP: ours, and those of others.
    pub fn flows_of(&self, vip: VipId) -> (usize, usize) {
        (self.table.count(vip, super::ME) as usize, self.foreign(vip) as usize)
    }

    /// Flows of each VIP that are still too young to be replicated.
    pub fn young(&self) -> Vec<usize> {
        let mut counts = vec![0; self.vips.len()];
        for std::cmp::Reverse((_, id)) in &self.young {
            if let Some(record) = self.table.get(*id).filter(|record| record.has(YOUNG))
                && let Some(count) = counts.get_mut(usize::from(self.table.vip(record).0))
            {
                *count += 1;
            }
        }
        counts
    }

    /// How far what is told to a peer has come; to be compared with [`Self::has_settled`].
    pub fn told(&self, peer: PeerId) -> Option<Told> {
        let tx = &self.peers.get(usize::from(peer.0)).filter(|peer| peer.up)?.tx;
        Some(Told { session: tx.session, sequence: tx.sequence })
    }

    /// Whether the peer has acknowledged all that was sent up to then, or it was given up; `None`: that session is over.
    pub fn has_settled(&self, peer: PeerId, told: Told) -> Option<bool> {
        let tx = &self.peers.get(usize::from(peer.0)).filter(|peer| peer.up)?.tx;
        if tx.session != told.session {
            return None;
        }
        Some(tx.flights.front().is_none_or(|flight| flight.sequence >= told.sequence))
    }

    /// How far a peer is with what it was sent; `None`: there is no session.
    pub fn watermark(&self, peer: PeerId) -> Option<Watermark> {
        let tx = &self.peers.get(usize::from(peer.0)).filter(|peer| peer.up)?.tx;
        let sent = tx.sequence.saturating_sub(1);
        let on_way = tx.flights.iter().find(|flight| !flight.keys.is_empty()).map(|flight| flight.sent_at);
        Some(Watermark {
            sent,
            settled: tx.flights.front().map_or(sent, |flight| flight.sequence.saturating_sub(1)),
            waits_since: on_way.into_iter().chain(tx.waiting_since).min(),
        })
    }

    /// Records in the table, ended ones that peers have to learn of among them.
    pub const fn records(&self) -> usize {
        self.table.len()
    }

    /// Replicas that aren't in the kernel because it refused them or another flow has their address and port. Looks at
    /// all records.
    pub fn not_in_kernel(&self) -> usize {
        let is_out = |id: &u32| self.table.get(*id).is_some_and(|record| record.local & (CLASH | REFUSED) != 0);
        (0..self.table.end()).filter(is_out).count()
    }

    /// Tells the journal when a direction came into or went out of sync.
    pub(super) fn note_sync(&mut self, now: Instant, index: usize) {
        let (out, inb) = (self.outbound_why(now, index), self.inbound_why(now, index));
        for (outbound, why) in [(true, out), (false, inb)] {
            let Some(peer) = self.peers.get_mut(index) else { return };
            let before = if outbound { &mut peer.outbound } else { &mut peer.inbound };
            if before.0 == why {
                continue;
            }
            let was = std::mem::replace(before, (why, now)).0;
            let peer = peer_id(index);
            match (was, why) {
                (_, None) => self.event(now, Event::InSync { peer, outbound }),
                (None, Some(why)) => self.event(now, Event::OutOfSync { peer, outbound, why }),
                _ => {}
            }
        }
    }
}

//! The last word of the sync thread, with its age, and what it comes to for one VIP.

use super::{SyncVipWord, SyncWord, why_text};
use crate::config::{Config, SyncMode, VipId};
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::flow::{NotReady, Why};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A word that is older says nothing.
pub const WORD_MAX: Duration = Duration::from_secs(3);
/// A node whose kernel is being given flows stays in sync for this long: while the owner has traffic there is always
/// something to write.
const BUSY: Duration = Duration::from_secs(1);

/// What is known of the replication.
#[derive(Debug, Clone)]
pub struct View {
    /// Where the flows of each unit stand in the words: its own, or all those that move with it.
    places: BTreeMap<VipId, Vec<usize>>,
    word: Option<(Instant, SyncWord)>,
    /// By place: until when it was ready last.
    ready_at: Vec<Option<Instant>>,
}

/// Why flows aren't where they should be, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unready {
    /// The sync thread has said nothing for [`WORD_MAX`], or nothing yet.
    Silent,
    /// It can't work.
    Trouble(String),
    /// Something is missing here.
    Missing(NotReady),
    /// Something of ours isn't at this peer yet.
    UnderWay(PeerId),
    /// Nothing of ours can get to this peer.
    Unreached(PeerId, Why),
}

impl View {
    /// `None`: no flows are replicated.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let vips = &config.statesync.as_ref()?.vips;
        let replicated = vips.iter().enumerate().filter(|(_, sync)| sync.mode != SyncMode::Off);
        let mut places: BTreeMap<VipId, Vec<usize>> =
            replicated.clone().map(|(place, sync)| (sync.vip, vec![place])).collect();
        let is_spread = |id: VipId| config.vips.get(usize::from(id.0)).is_some_and(crate::config::Vip::anycast);
        let spread: Vec<usize> = replicated.filter(|(_, sync)| is_spread(sync.vip)).map(|(place, _)| place).collect();
        places.extend(config.flow_sources().into_iter().map(|id| (id, spread.clone())));
        Some(Self { places, word: None, ready_at: vec![None; vips.len()] })
    }

    /// Units whose flows are replicated, and those that flows move with.
    pub(crate) fn units(&self) -> impl Iterator<Item = VipId> {
        self.places.keys().copied()
    }

    pub(crate) fn replicates(&self, id: VipId) -> bool {
        self.places.contains_key(&id)
    }

    pub(crate) fn take(&mut self, now: Instant, word: SyncWord) {
        let before = self.fresh(now).map(|word| word.vips.as_slice()).unwrap_or_default();
        let ready = |words: &[SyncVipWord], place: usize| words.get(place).is_some_and(|vip| vip.ready.is_ok());
        let works = word.trouble.is_none();
        let news: Vec<bool> =
            (0..self.ready_at.len()).map(|place| ready(before, place) || works && ready(&word.vips, place)).collect();
        for (at, _) in self.ready_at.iter_mut().zip(news).filter(|(_, ready)| *ready) {
            *at = Some(now);
        }
        self.word = Some((now, word));
    }

    /// The last word and when it came, however old.
    pub fn last(&self) -> Option<&(Instant, SyncWord)> {
        self.word.as_ref()
    }

    /// The last word, if it still counts.
    fn fresh(&self, now: Instant) -> Option<&SyncWord> {
        let (_, word) = self.word.as_ref().filter(|(at, _)| now < *at + WORD_MAX)?;
        word.trouble.is_none().then_some(word)
    }

    fn silence(&self, now: Instant) -> Unready {
        let word = self.word.as_ref().filter(|(at, _)| now < *at + WORD_MAX);
        word.and_then(|(_, word)| word.trouble.clone()).map_or(Unready::Silent, Unready::Trouble)
    }

    /// Whether all flows of a unit are in this kernel, as far as peers have them. Those that aren't replicated count as if
    /// they were.
    ///
    /// # Errors
    /// What is missing.
    pub fn ready(&self, id: VipId, now: Instant) -> Result<(), Unready> {
        let Some(places) = self.places.get(&id) else { return Ok(()) };
        let Some(word) = self.fresh(now) else { return Err(self.silence(now)) };
        for place in places {
            let vip = word.vips.get(*place).ok_or(Unready::Silent)?;
            vip.ready.map_err(Unready::Missing)?;
        }
        Ok(())
    }

    /// The same for one that needn't hurry: the kernel may lag for a moment.
    ///
    /// # Errors
    /// What is missing.
    pub fn in_sync(&self, id: VipId, now: Instant) -> Result<(), Unready> {
        match self.ready(id, now) {
            Err(Unready::Missing(NotReady::Kernel { .. })) if self.ready_until(id).is_some_and(|at| now < at) => Ok(()),
            other => other,
        }
    }

    fn ready_until(&self, id: VipId) -> Option<Instant> {
        let places = self.places.get(&id)?.iter();
        let at = places.map(|place| self.ready_at.get(*place).copied().flatten()).min().flatten();
        at.map(|at| at + BUSY)
    }

    /// Whether all of ours is at this peer.
    ///
    /// # Errors
    /// Why not.
    pub fn flushed(&self, peer: PeerId, now: Instant) -> Result<(), Unready> {
        let Some(word) = self.fresh(now) else { return Err(self.silence(now)) };
        let view = word.peers.get(usize::from(peer.0)).ok_or(Unready::Unreached(peer, Why::NoSession))?;
        match view.outbound.why {
            Some(why @ Why::NoSession) => Err(Unready::Unreached(peer, why)),
            _ if view.flushed => Ok(()),
            _ => Err(Unready::UnderWay(peer)),
        }
    }

    /// When what is said here of a unit changes by itself.
    pub(crate) fn turning_points(&self, id: VipId) -> impl Iterator<Item = Instant> + use<> {
        let word = self.word.as_ref().filter(|_| self.replicates(id)).map(|(at, _)| *at + WORD_MAX);
        word.into_iter().chain(self.ready_until(id))
    }
}

impl Unready {
    /// Waiting may be of use.
    pub(crate) const fn may_end(&self) -> bool {
        matches!(self, Self::Silent | Self::Missing(_) | Self::UnderWay(_))
    }

    /// In words; `name` has the peers' names.
    pub fn text(&self, name: impl Fn(PeerId) -> String) -> String {
        match self {
            Self::Silent => "the sync thread says nothing".to_owned(),
            Self::Trouble(why) => why.clone(),
            Self::Missing(NotReady::Reading) => "the kernel's connection table is still being read".to_owned(),
            Self::Missing(NotReady::Peer(peer, why)) => {
                format!("not all flows of {} are here for sure: {}", name(*peer), why_text(*why))
            }
            Self::Missing(NotReady::Kernel { behind }) => {
                format!("{behind} flows are still to be written into the kernel")
            }
            Self::UnderWay(peer) => format!("flows are still on their way to {}", name(*peer)),
            Self::Unreached(peer, why) => format!("flows don't get to {}: {}", name(*peer), why_text(*why)),
        }
    }
}

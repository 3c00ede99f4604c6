//! Which checksum a leg sends (VRRPv3 over IPv4), learnt from its peers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::leg::{ChecksumMode, LegConfig};
use crate::mutants;
use crate::wire::ChecksumForm;

/// How many peers' forms are remembered; beyond that the one heard longest ago is forgotten.
const PEERS_MAX: usize = 16;
/// For how long a form is remembered: a peer that was replaced by another make must not count for ever.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);

/// The forms of the peers on one leg, and the one to send.
#[derive(Debug)]
pub(super) struct Checksums {
    /// The leg's family and version know one form only.
    only: Option<ChecksumForm>,
    mode: ChecksumMode,
    sent: ChecksumForm,
    peers: Vec<Peer>,
    /// Whether the present mismatch was told.
    told: bool,
}

#[derive(Debug, Clone, Copy)]
struct Peer {
    address: IpAddr,
    form: ChecksumForm,
    at: Instant,
}

impl Checksums {
    pub(super) fn new(config: &LegConfig) -> Self {
        let only = ChecksumForm::only(config.family(), config.version);
        // All the room that it will ever need, so that an advert allocates nothing.
        let room = if only.is_some() { 0 } else { PEERS_MAX };
        let mut checksums = Self {
            only,
            mode: config.checksum,
            sent: ChecksumForm::Message,
            peers: Vec::with_capacity(room),
            told: false,
        };
        checksums.set_mode(config);
        checksums
    }

    /// Another mode, after a reload; what was learnt stays, and so do family and version.
    pub(super) fn set_mode(&mut self, config: &LegConfig) {
        self.mode = config.checksum;
        self.sent = self.choose();
    }

    /// The form to send.
    pub(super) fn sent(&self) -> ChecksumForm {
        self.sent
    }

    /// A peer whose form isn't the one we send, the one heard last first.
    pub(super) fn mismatch(&self) -> Option<(IpAddr, ChecksumForm)> {
        let others = self.peers.iter().filter(|peer| peer.form != self.sent);
        others.max_by_key(|peer| peer.at).map(|peer| (peer.address, peer.form))
    }

    /// Takes a form that was heard; a mismatch that is worth telling, which each one is once.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        form: ChecksumForm,
    ) -> Option<(IpAddr, ChecksumForm)> {
        if self.only.is_some() {
            return None;
        }
        self.peers.retain(|peer| peer.address != address && now.saturating_duration_since(peer.at) < REMEMBERED_FOR);
        if self.peers.len() >= PEERS_MAX {
            // In the order they were heard: the first is the oldest.
            self.peers.remove(0);
        }
        self.peers.push(Peer { address, form, at: now });
        self.sent = self.choose();
        let mismatch = self.mismatch();
        let told = std::mem::replace(&mut self.told, mismatch.is_some());
        mismatch.filter(|_| !told)
    }

    fn choose(&self) -> ChecksumForm {
        use ChecksumForm::{Message, PseudoHeader};
        if let Some(only) = self.only {
            return only;
        }
        match self.mode {
            ChecksumMode::Rfc9568 => Message,
            ChecksumMode::PseudoHeader => PseudoHeader,
            ChecksumMode::Auto => {
                let learnt = !self.peers.is_empty() && self.peers.iter().all(|peer| peer.form == PseudoHeader);
                if learnt && !mutants::off("checksum-auto") { PseudoHeader } else { Message }
            }
        }
    }
}

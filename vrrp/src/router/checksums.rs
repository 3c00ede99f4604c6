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

/// Both forms within this time come from one that follows its peers as we do: it understands both.
const TOGETHER: Duration = Duration::from_secs(10);

/// The forms of the peers on one leg, and the ones to send.
#[derive(Debug)]
pub(super) struct Checksums {
    /// The leg's family and version know one form only.
    only: Option<ChecksumForm>,
    mode: ChecksumMode,
    sent: &'static [ChecksumForm],
    peers: Vec<Peer>,
    /// What a former run had learnt: counts until a peer is heard.
    assumed: &'static [ChecksumForm],
    /// Whether the present mismatch was told.
    told: bool,
}

/// When a peer last used each form.
#[derive(Debug, Clone, Copy)]
struct Peer {
    address: IpAddr,
    message: Option<Instant>,
    pseudo_header: Option<Instant>,
}

impl Peer {
    fn heard(&self) -> Option<Instant> {
        self.message.max(self.pseudo_header)
    }

    /// The form that it may be deaf without: the one it used last. `None`: it uses both.
    fn needs(&self) -> Option<ChecksumForm> {
        match (self.message, self.pseudo_header) {
            (Some(message), Some(pseudo)) if message.max(pseudo) - message.min(pseudo) <= TOGETHER => None,
            (message, pseudo) if message > pseudo => Some(ChecksumForm::Message),
            _ => Some(ChecksumForm::PseudoHeader),
        }
    }
}

impl Checksums {
    pub(super) fn new(config: &LegConfig) -> Self {
        let mut checksums = Self {
            only: None,
            mode: config.checksum,
            sent: &[ChecksumForm::Message],
            peers: Vec::with_capacity(PEERS_MAX),
            assumed: &[],
            told: false,
        };
        checksums.set_mode(config);
        checksums
    }

    /// Another mode, after a reload; what was learnt stays.
    pub(super) fn set_mode(&mut self, config: &LegConfig) {
        self.only = ChecksumForm::only(config.family(), config.version);
        self.mode = config.checksum;
        self.sent = self.choose();
    }

    /// What a former run sent: silent Backups of another make would not understand anything else.
    pub(super) fn assume(&mut self, forms: &'static [ChecksumForm]) {
        self.assumed = forms;
        self.sent = self.choose();
    }

    /// The forms to send: each advert goes out once in each. Never empty.
    pub(super) fn forms(&self) -> &'static [ChecksumForm] {
        self.sent
    }

    /// The first of them.
    pub(super) fn sent(&self) -> ChecksumForm {
        self.sent.first().copied().unwrap_or(ChecksumForm::Message)
    }

    /// A peer whose form isn't the first that we send, the one heard last first.
    pub(super) fn mismatch(&self) -> Option<(IpAddr, ChecksumForm)> {
        let others = self.peers.iter().filter_map(|peer| Some((peer, peer.needs()?)));
        let others = others.filter(|(_, form)| *form != self.sent());
        others.max_by_key(|(peer, _)| peer.heard()).map(|(peer, form)| (peer.address, form))
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
        let known = self.peers.iter().find(|peer| peer.address == address).copied();
        let mut peer = known.unwrap_or(Peer { address, message: None, pseudo_header: None });
        match form {
            ChecksumForm::Message => peer.message = Some(now),
            ChecksumForm::PseudoHeader => peer.pseudo_header = Some(now),
        }
        let fresh = |peer: &Peer| peer.heard().is_some_and(|at| now.saturating_duration_since(at) < REMEMBERED_FOR);
        self.peers.retain(|peer| peer.address != address && fresh(peer));
        if self.peers.len() >= PEERS_MAX {
            // In the order they were heard: the first is the oldest.
            self.peers.remove(0);
        }
        self.peers.push(peer);
        self.sent = self.choose();
        let mismatch = self.mismatch();
        let told = std::mem::replace(&mut self.told, mismatch.is_some());
        mismatch.filter(|_| !told)
    }

    /// Peers that differ among themselves get both forms: one that is deaf to us would be Active beside us for good. To
    /// the others the second copy is a wrong checksum, which they count and drop.
    fn choose(&self) -> &'static [ChecksumForm] {
        use ChecksumForm::{Message, PseudoHeader};
        match self.only {
            Some(Message) => return &[Message],
            Some(PseudoHeader) => return &[PseudoHeader],
            None => {}
        }
        match self.mode {
            ChecksumMode::Rfc9568 => &[Message],
            ChecksumMode::PseudoHeader => &[PseudoHeader],
            ChecksumMode::Auto if mutants::off("checksum-auto") => &[Message],
            ChecksumMode::Auto => {
                let assumed = |form| self.peers.is_empty() && self.assumed.contains(&form);
                let needed = |form| assumed(form) || self.peers.iter().any(|peer| peer.needs() == Some(form));
                match (needed(Message), needed(PseudoHeader)) {
                    (true, true) => &[Message, PseudoHeader],
                    (false, true) => &[PseudoHeader],
                    (_, false) => &[Message],
                }
            }
        }
    }
}

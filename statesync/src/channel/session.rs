//! One session: the keys of a finished handshake, our counter, and the replay window for the peer's.

use super::noise::TAG_LEN;
use super::replay::{Refusal, ReplayWindow};
use super::wire::{TRANSPORT_HEADER_LEN, transport_header};
use crate::mutants;
use snow::StatelessTransportState;
use std::time::{Duration, Instant};

/// Age at which the side that started the session starts the next one.
pub(crate) const REKEY_AFTER: Duration = Duration::from_secs(120);

/// The other side starts it this much later, if nothing happened.
pub(crate) const REKEY_GRACE: Duration = Duration::from_secs(10);

/// Datagrams sent after which either side starts the next session.
pub(crate) const REKEY_AFTER_MESSAGES: u64 = 1 << 32;

/// Datagrams after which a session sends nothing any more, and takes nothing.
pub(crate) const MESSAGES_MAX: u64 = 1 << 33;

/// Age at which a session is dropped, if no handshake succeeded since [`REKEY_AFTER`].
pub(crate) const SESSION_LIFE: Duration = Duration::from_secs(600);

/// A session that we started and on which nothing was heard after this time is replaced: the peer may not have it.
pub(crate) const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a transport datagram isn't opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenError {
    Window(Refusal),
    Auth,
}

/// See the module documentation.
pub(crate) struct Session {
    transport: StatelessTransportState,
    /// Our end's index: what the peer writes as `receiver`.
    pub(crate) local: u32,
    /// The peer's end's index.
    remote: u32,
    /// We started it.
    pub(crate) ours: bool,
    /// The starter has the lower public key: the one to keep when both sides started at once.
    pub(crate) preferred: bool,
    /// The peer's boot epoch.
    pub(crate) epoch: u64,
    /// Which of the peer's public keys it uses.
    pub(crate) key: usize,
    pub(crate) established: Instant,
    /// Something authentic arrived on it.
    pub(crate) heard: bool,
    next_counter: u64,
    window: ReplayWindow,
}

/// What is known of a session beside its keys.
pub(crate) struct SessionFacts {
    pub(crate) local: u32,
    pub(crate) remote: u32,
    pub(crate) ours: bool,
    pub(crate) preferred: bool,
    pub(crate) epoch: u64,
    pub(crate) key: usize,
}

impl Session {
    pub(crate) const fn new(transport: StatelessTransportState, facts: SessionFacts, now: Instant) -> Self {
        let SessionFacts { local, remote, ours, preferred, epoch, key } = facts;
        Self {
            transport,
            local,
            remote,
            ours,
            preferred,
            epoch,
            key,
            established: now,
            heard: false,
            next_counter: 0,
            window: ReplayWindow::new(),
        }
    }

    /// Encrypts `content` into a datagram; `None` when the session's counters are used up.
    pub(crate) fn seal(&mut self, content: &[u8]) -> Option<Vec<u8>> {
        let counter = self.next_counter;
        if counter >= MESSAGES_MAX {
            return None;
        }
        let mut bytes = vec![0; TRANSPORT_HEADER_LEN + content.len() + TAG_LEN];
        let (header, sealed) = bytes.split_at_mut(TRANSPORT_HEADER_LEN);
        header.copy_from_slice(&transport_header(self.remote, counter));
        self.transport.write_message(counter, content, sealed).ok()?;
        // Counted even if the datagram is lost: a counter is used once.
        self.next_counter += 1;
        Some(bytes)
    }

    /// Checks the counter, decrypts into `content`, and only then remembers the counter. Returns the content's length.
    pub(crate) fn open(&mut self, counter: u64, sealed: &[u8], content: &mut [u8]) -> Result<usize, OpenError> {
        if counter >= MESSAGES_MAX {
            return Err(OpenError::Auth);
        }
        self.window.check(counter).map_err(OpenError::Window)?;
        let length = match self.transport.read_message(counter, sealed, content) {
            Ok(length) => length,
            Err(_) if mutants::off("auth") => 0,
            Err(_) => return Err(OpenError::Auth),
        };
        self.window.commit(counter);
        self.heard = true;
        Ok(length)
    }

    /// When a new session is wanted in place of this one.
    pub(crate) fn renew_at(&self) -> Instant {
        if self.next_counter >= REKEY_AFTER_MESSAGES {
            return self.established;
        }
        let by_age = self.established + if self.ours { REKEY_AFTER } else { REKEY_AFTER + REKEY_GRACE };
        if self.ours && !self.heard { by_age.min(self.established + CONFIRM_TIMEOUT) } else { by_age }
    }

    /// When it is dropped.
    pub(crate) fn ends_at(&self) -> Instant {
        self.established + SESSION_LIFE
    }

    /// Lets a test come near the limits of the counter.
    #[cfg(test)]
    pub(crate) const fn skip_to_counter(&mut self, counter: u64) {
        self.next_counter = counter;
    }
}

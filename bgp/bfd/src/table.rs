//! All sessions of a system, and which packet belongs to which (RFC 5880 section 6.3, RFC 5881 section 3, RFC 5883
//! section 4).

use crate::mutants;
use crate::rng::Rng;
use crate::session::{Event, Session};
use crate::timers::Timers;
use crate::wire::{Control, DecodeError, State, TTL};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Instant;
use thiserror::Error;

/// Our name of a session, unlike all others of this system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Discriminator(NonZeroU32);

impl Discriminator {
    /// As on the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// Whom a session is with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The neighbour's address.
    pub remote: IpAddr,
    /// Ours; `None`: any.
    pub local: Option<IpAddr>,
    /// The interface that its packets must come in by; `None`: any.
    pub ifindex: Option<u32>,
    /// Over several hops.
    pub multihop: bool,
    /// Over several hops: the lowest TTL that is taken.
    pub min_ttl: u8,
    /// Wait until the neighbour begins (section 6.1). Counts when the session is made.
    pub passive: bool,
}

impl Peer {
    /// A neighbour on the same link.
    #[must_use]
    pub const fn single_hop(remote: IpAddr, ifindex: Option<u32>) -> Self {
        Self { remote, local: None, ifindex, multihop: false, min_ttl: TTL, passive: false }
    }

    /// One behind routers: at most 255 less `min_ttl` of them.
    #[must_use]
    pub const fn multihop(remote: IpAddr, local: Option<IpAddr>, min_ttl: u8) -> Self {
        Self { remote, local, ifindex: None, multihop: true, min_ttl, passive: false }
    }

    fn takes(&self, datagram: &Datagram<'_>) -> bool {
        self.multihop == datagram.multihop
            && (mutants::off("source-match")
                || self.remote == datagram.from
                    && self.ifindex.is_none_or(|ifindex| ifindex == datagram.ifindex)
                    && self.local.is_none_or(|local| datagram.to.is_none_or(|to| to == local)))
    }
}

/// What a socket received.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// The payload.
    pub bytes: &'a [u8],
    /// Its source.
    pub from: IpAddr,
    /// Its destination, if that is known.
    pub to: Option<IpAddr>,
    /// The interface it came in by.
    pub ifindex: u32,
    /// The TTL or hop limit that it arrived with.
    pub ttl: u8,
    /// It came to port 4784, not 3784.
    pub multihop: bool,
}

/// Why a datagram was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No packet that we take.
    #[error(transparent)]
    Packet(#[from] DecodeError),
    /// From farther away than it may.
    #[error("TTL {ttl} is below {least}")]
    Ttl {
        /// What it had.
        ttl: u8,
        /// What it needs.
        least: u8,
    },
    /// Nobody is called so, or nobody waits for this neighbour.
    #[error("no session for it")]
    NoSession,
    /// It has a session's discriminator, but comes from elsewhere.
    #[error("not from where the session's neighbour is")]
    Elsewhere,
}

/// Refused datagrams, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// [`Refusal::Packet`].
    pub packet: u64,
    /// [`Refusal::Ttl`].
    pub ttl: u64,
    /// [`Refusal::NoSession`] and [`Refusal::Elsewhere`].
    pub session: u64,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    session: Session,
}

/// See the module. Hand in one thing, drain [`Self::poll_event`], then the next; call [`Self::timer`] at
/// [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Table {
    entries: BTreeMap<Discriminator, Entry>,
    events: VecDeque<(Discriminator, Event)>,
    rng: Rng,
    refused: Refused,
}

impl Table {
    /// Empty. The seed is for jitter and discriminators: another one at each start.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { entries: BTreeMap::new(), events: VecDeque::new(), rng: Rng::new(seed), refused: Refused::default() }
    }

    /// A new session.
    pub fn add(&mut self, now: Instant, peer: Peer, timers: Timers) -> Discriminator {
        let id = loop {
            let Some(id) = NonZeroU32::new((self.rng.next() >> 32) as u32) else { continue };
            if !self.entries.contains_key(&Discriminator(id)) {
                break id;
            }
        };
        let session = Session::new(now, id, timers, peer.passive, self.rng.next());
        self.entries.insert(Discriminator(id), Entry { peer, session });
        Discriminator(id)
    }

    /// Forgets a session; nothing is sent.
    pub fn remove(&mut self, id: Discriminator) {
        self.entries.remove(&id);
        self.events.retain(|(of, _)| *of != id);
    }

    /// A datagram has come to one of BFD's ports. Returns whose it was.
    ///
    /// # Errors
    /// It is nobody's, which is counted.
    pub fn receive(&mut self, now: Instant, datagram: &Datagram<'_>) -> Result<Discriminator, Refusal> {
        self.route(now, datagram).inspect_err(|refusal| {
            let counter = match refusal {
                Refusal::Packet(_) => &mut self.refused.packet,
                Refusal::Ttl { .. } => &mut self.refused.ttl,
                Refusal::NoSession | Refusal::Elsewhere => &mut self.refused.session,
            };
            *counter = counter.saturating_add(1);
        })
    }

    fn route(&mut self, now: Instant, datagram: &Datagram<'_>) -> Result<Discriminator, Refusal> {
        let ttl = datagram.ttl;
        if !datagram.multihop && ttl != TTL && !mutants::off("ttl-255") {
            return Err(Refusal::Ttl { ttl, least: TTL });
        }
        let packet = Control::decode(datagram.bytes)?;
        let (id, entry) = match NonZeroU32::new(packet.your_discriminator) {
            Some(id) => {
                let id = Discriminator(id);
                let entry = self.entries.get_mut(&id).ok_or(Refusal::NoSession)?;
                if !entry.peer.takes(datagram) {
                    return Err(Refusal::Elsewhere);
                }
                (id, entry)
            }
            None => {
                // One that takes its leave may have been replaced already.
                let waits = |entry: &Entry| entry.session.state() != State::AdminDown && entry.peer.takes(datagram);
                let theirs = self.entries.iter_mut().find(|(_, entry)| waits(entry));
                theirs.map(|(id, entry)| (*id, entry)).ok_or(Refusal::NoSession)?
            }
        };
        let least = entry.peer.min_ttl;
        if datagram.multihop && ttl < least && !mutants::off("min-ttl") {
            return Err(Refusal::Ttl { ttl, least });
        }
        entry.session.receive(now, &packet);
        collect(&mut self.events, id, &mut entry.session);
        Ok(id)
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn timer(&mut self, now: Instant) {
        for (id, Entry { session, .. }) in &mut self.entries {
            if session.poll_timeout().is_some_and(|at| at <= now) {
                session.timer(now);
                collect(&mut self.events, *id, session);
            }
        }
    }

    /// Changes a session by one of its own functions: `|session| session.admin_down(now)`.
    pub fn with<R>(&mut self, id: Discriminator, change: impl FnOnce(&mut Session) -> R) -> Option<R> {
        let session = &mut self.entries.get_mut(&id)?.session;
        let result = change(session);
        collect(&mut self.events, id, session);
        Some(result)
    }

    /// A session.
    #[must_use]
    pub fn session(&self, id: Discriminator) -> Option<&Session> {
        Some(&self.entries.get(&id)?.session)
    }

    /// Whom a session is with: which packets are its own from now on. All but `passive` may be changed at any time.
    pub fn peer_mut(&mut self, id: Discriminator) -> Option<&mut Peer> {
        Some(&mut self.entries.get_mut(&id)?.peer)
    }

    /// What was refused since the start.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// The next thing that a session wants, in order.
    pub fn poll_event(&mut self) -> Option<(Discriminator, Event)> {
        self.events.pop_front()
    }

    /// When to call [`Self::timer`] at the latest; `None`: nothing armed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.session.poll_timeout()).min()
    }
}

fn collect(events: &mut VecDeque<(Discriminator, Event)>, id: Discriminator, session: &mut Session) {
    while let Some(event) = session.poll_event() {
        events.push_back((id, event));
    }
}

#[cfg(test)]
pub(crate) mod tests;

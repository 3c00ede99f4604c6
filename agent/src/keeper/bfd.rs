//! The sockets of BFD's sessions.

use crate::os::bfd::{Batch, Kind, Path, Receiver, Sender};
use crate::os::link;
use holdfast_bfd::wire::SOURCE_PORTS;
use holdfast_bfd::{Datagram, Discriminator};
use holdfast_node::keeper::ipc::BfdSpec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Ports that are tried before we give up.
const TRIES: u16 = 64;
/// Batches per turn: 256 datagrams. What is left waits for the next one, which comes at once.
const BATCHES: usize = 16;

#[derive(Debug)]
struct Link {
    sender: Sender,
    kind: Kind,
    /// The outcome of the last send was told.
    told: Option<bool>,
}

/// What a send has changed.
#[derive(Debug)]
pub(super) enum Sent {
    /// Nothing: it went as the one before.
    AsBefore,
    /// It sends, for the first time or again.
    Works,
    /// It doesn't, since now.
    Fails(String),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Links {
    receivers: BTreeMap<Kind, Receiver>,
    links: BTreeMap<Discriminator, Link>,
    /// Each session's own, also after its socket was opened again.
    ports: BTreeMap<Discriminator, u16>,
    batch: Batch,
}

impl Links {
    /// Opens what the session needs. Returns the interface it is bound to.
    pub(super) fn open(&mut self, session: Discriminator, spec: &BfdSpec) -> Result<Option<u32>, String> {
        self.links.remove(&session);
        let ifindex = spec
            .interface
            .as_deref()
            .map(|name| link::index(name).map_err(|error| format!("interface {name}: {error}")));
        let path =
            Path { local: spec.local, remote: spec.remote, ifindex: ifindex.transpose()?, multihop: spec.multihop };
        let kind = path.kind();
        if let Entry::Vacant(vacant) = self.receivers.entry(kind) {
            vacant.insert(Receiver::open(kind).map_err(|error| format!("port {}: {error}", kind.port()))?);
        }
        let (sender, port) = self.bind(session, &path).map_err(|error| match spec.local {
            Some(local) => format!("send from {local}: {error}"),
            None => format!("send: {error}"),
        })?;
        self.ports.insert(session, port);
        self.links.insert(session, Link { sender, kind, told: None });
        Ok(path.ifindex)
    }

    /// On the session's own port, or on one that no session has; the discriminator is random, so where to begin is too.
    fn bind(&self, session: Discriminator, path: &Path) -> io::Result<(Sender, u16)> {
        let first = *SOURCE_PORTS.start();
        let span = SOURCE_PORTS.end() - first + 1;
        let begin = u16::try_from(session.get() % u32::from(span)).unwrap_or_default();
        let fresh = (0..TRIES).map(|n| first + (begin + n) % span);
        let fresh = fresh.filter(|port| !self.ports.values().any(|taken| taken == port));
        let mut last = io::Error::from_raw_os_error(libc::EADDRINUSE);
        for port in self.ports.get(&session).copied().into_iter().chain(fresh) {
            match Sender::open(path, port) {
                Ok(sender) => return Ok((sender, port)),
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// The session is over.
    pub(super) fn close(&mut self, session: Discriminator) {
        self.links.remove(&session);
        self.ports.remove(&session);
        let links = &self.links;
        self.receivers.retain(|kind, _| links.values().any(|link| link.kind == *kind));
    }

    /// Sends a packet of the session.
    pub(super) fn send(&mut self, session: Discriminator, packet: &[u8]) -> Sent {
        let Some(link) = self.links.get_mut(&session) else { return Sent::AsBefore };
        let outcome = match link.sender.send(packet) {
            // A full queue loses packets as a network does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::AsBefore,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Sent::AsBefore,
            outcome => outcome,
        };
        if link.told.replace(outcome.is_ok()) == Some(outcome.is_ok()) {
            return Sent::AsBefore;
        }
        outcome.map_or_else(|error| Sent::Fails(error.to_string()), |()| Sent::Works)
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.receivers.values().map(AsFd::as_fd)
    }

    /// Hands out what has come.
    pub(super) fn receive(&mut self, mut take: impl FnMut(&Datagram<'_>)) {
        for receiver in self.receivers.values() {
            for _ in 0..BATCHES {
                let Ok(more) = receiver.receive(&mut self.batch) else { break };
                self.batch.datagrams().for_each(|datagram| take(&datagram));
                if !more {
                    break;
                }
            }
        }
    }
}

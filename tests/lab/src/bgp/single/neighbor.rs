//! A neighbour that is the lab itself: it takes a session from one agent, keeps the table that it is told, and can be
//! away, or tell a table as large as the Internet's.

use crate::bgp::message::{Said, take};
use crate::bgp::net::ROUTER;
use crate::bgp::router::ROUTER_AS;
use crate::clock::{Ns, SECOND, now};
use crate::load::Stopper;
use crate::netns::Netns;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The hold time that it offers, s.
const HOLD_S: u16 = 9;
/// How often it looks at what else it has to do.
const TICK: Duration = Duration::from_millis(10);
/// Prefixes in one UPDATE of a large table: in the Internet's few share their attributes.
const PER_UPDATE: usize = 8;
/// UPDATEs handed to the socket at once.
const PER_WRITE: usize = 64;

/// What it was told.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Sessions so far.
    pub(super) sessions: usize,
    /// When the one that stands was established.
    pub(super) established: Option<Ns>,
    /// What it has of the agent; a session that ends takes everything with it.
    pub(super) table: BTreeSet<(IpAddr, u8)>,
    /// When a route came or went, and whether it came.
    pub(super) changes: Vec<(Ns, bool)>,
    /// End-of-RIB of the session that stands.
    pub(super) complete: bool,
    /// A NOTIFICATION of the agent's.
    pub(super) notified: Option<(u8, u8)>,
    /// A table to tell: so many routes, announced or withdrawn. `None`: told.
    wanted: Option<(usize, bool)>,
}

/// The neighbour.
#[derive(Debug)]
pub(super) struct Neighbor {
    ns: Netns,
    state: Arc<Mutex<State>>,
    /// It listens and speaks; `None`: it is away.
    here: Option<Stopper>,
}

impl Neighbor {
    /// One that is away.
    pub(super) fn new(ns: Netns) -> Self {
        Self { ns, state: Arc::default(), here: None }
    }

    /// What it was told.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on.
    pub(super) fn come(&mut self) -> Result<()> {
        let listener = self.ns.inside(|| {
            let l = TcpListener::bind(SocketAddrV4::new(ROUTER, 179)).context("listen on BGP's port")?;
            l.set_nonblocking(true)?;
            Ok(l)
        })?;
        let state = self.state.clone();
        self.here = Some(Stopper::spawn("neighbor", move |stop| {
            while !stop() {
                match listener.accept() {
                    Ok((stream, _)) => {
                        // How a session ends is in the state; the next one may come.
                        let _ended = session(stream, &state, stop);
                        let mut s = lock(&state);
                        if s.established.take().is_some() && !s.table.is_empty() {
                            s.changes.push((now(), false));
                        }
                        s.table.clear();
                        s.complete = false;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(TICK),
                    Err(e) => return Err(e).context("accept a session"),
                }
            }
            Ok(())
        })?);
        Ok(())
    }

    /// Ends its session, with everything that it was told, and refuses others.
    pub(super) fn go(&mut self) -> Result<()> {
        self.here.take().map_or(Ok(()), Stopper::finish)
    }

    /// Tells so many routes, or takes them back, and waits until all is with the kernel.
    pub(super) fn tell(&self, routes: usize, announce: bool, patience: Duration) -> Result<bool> {
        self.state().wanted = Some((routes, announce));
        crate::fabric::wait_for(patience, TICK, || Ok(self.state().wanted.is_none()))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session, until it ends or the neighbour goes.
fn session(mut stream: TcpStream, state: &Mutex<State>, stop: &dyn Fn() -> bool) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(&open())?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let mut keepalive_at = 0;
    while !stop() {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => bytes.extend(buffer.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e.into()),
        }
        let at = now();
        while let Some(said) = take(&mut bytes) {
            let mut s = lock(state);
            match said {
                Said::Open { .. } => keepalive_at = 1,
                Said::Keepalive if s.established.is_none() => {
                    s.established = Some(at);
                    s.sessions += 1;
                }
                Said::Update(u) => {
                    s.changes.extend(u.withdrawn.iter().map(|_| (at, false)));
                    s.changes.extend(u.announced.iter().map(|_| (at, true)));
                    u.withdrawn.iter().for_each(|p| {
                        s.table.remove(p);
                    });
                    s.table.extend(u.announced);
                    s.complete |= u.end_of_rib;
                }
                Said::Notification { code, subcode } => s.notified = Some((code, subcode)),
                _ => {}
            }
        }
        if keepalive_at > 0 && at >= keepalive_at {
            stream.write_all(&message(4, &[]))?;
            keepalive_at = at + u64::from(HOLD_S / 3) * SECOND;
        }
        let wanted = lock(state).wanted;
        if let Some((routes, announce)) = wanted.filter(|_| lock(state).established.is_some()) {
            for first in (0..routes).step_by(PER_UPDATE * PER_WRITE) {
                let last = routes.min(first + PER_UPDATE * PER_WRITE);
                let batch = (first..last).step_by(PER_UPDATE).map(|n| update(n, last.min(n + PER_UPDATE), announce));
                stream.write_all(&batch.collect::<Vec<_>>().concat())?;
            }
            lock(state).wanted = None;
        }
    }
    Ok(())
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut m = vec![0xff; 16];
    m.extend(u16::try_from(19 + body.len()).unwrap_or(u16::MAX).to_be_bytes());
    m.push(kind);
    m.extend(body);
    m
}

/// OPEN with IPv4 unicast and ASes of four octets (RFC 4271 section 4.2, RFC 5492).
fn open() -> Vec<u8> {
    let asn = u16::try_from(ROUTER_AS).unwrap_or(23_456);
    let capabilities = [&[1, 4, 0, 1, 0, 1, 65, 4][..], &ROUTER_AS.to_be_bytes()].concat();
    let size = u8::try_from(capabilities.len()).unwrap_or(0);
    let head = [&[4][..], &asn.to_be_bytes(), &HOLD_S.to_be_bytes(), &ROUTER.octets()].concat();
    message(1, &[&head[..], &[size + 2, 2, size], &capabilities].concat())
}

/// Routes `from..to` of a large table: /24s, whose path differs with every UPDATE.
fn update(from: usize, to: usize, announce: bool) -> Vec<u8> {
    let prefixes: Vec<u8> = (from..to)
        .flat_map(|n| {
            let [_, a, b, c] = u32::try_from(n).unwrap_or(0).saturating_add(1 << 16).to_be_bytes();
            [24, a, b, c]
        })
        .collect();
    let size = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    if !announce {
        return message(2, &[&size(prefixes.len())[..], &prefixes, &[0, 0]].concat());
    }
    // ORIGIN, AS_PATH of three, NEXT_HOP, MED, two communities.
    let path = [ROUTER_AS, 64_512 + u32::try_from(from % 1000).unwrap_or(0), u32::try_from(from + 1).unwrap_or(1)];
    let path: Vec<u8> = path.iter().flat_map(|a| a.to_be_bytes()).collect();
    let attributes = [
        &[0x40, 1, 1, 0, 0x40, 2, 14, 2, 3][..],
        &path,
        &[0x40, 3, 4],
        &ROUTER.octets(),
        &[0x80, 4, 4, 0, 0, 0, 9, 0xc0, 8, 8, 0xfd, 0xe8, 0, 1, 0xfd, 0xe8, 0, 2],
    ]
    .concat();
    message(2, &[&[0, 0][..], &size(attributes.len()), &attributes, &prefixes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_tells_reads_as_what_was_meant() {
        let (mut all, mut prefixes) = (BTreeSet::new(), 0);
        for first in (0..100_000).step_by(PER_UPDATE) {
            let Some(Said::Update(u)) = take(&mut update(first, first + PER_UPDATE, true)) else { panic!("no UPDATE") };
            assert_eq!((u.announced.len(), u.withdrawn.len(), u.end_of_rib), (PER_UPDATE, 0, false));
            prefixes += u.announced.len();
            all.extend(u.announced);
        }
        assert_eq!(all.len(), prefixes);
        let Some(Said::Update(gone)) = take(&mut update(0, PER_UPDATE, false)) else { panic!("no UPDATE") };
        assert!(gone.withdrawn.iter().all(|p| all.contains(p)) && gone.withdrawn.len() == PER_UPDATE);
        assert_eq!(take(&mut open()), Some(Said::Open { restarting: None }));
    }
}

//! The connections with routers: dials and takes them as the node says, moves bytes both ways, and finds unnumbered
//! neighbours. What is said on them is the node's.
//!
//! Bounded work: one read of at most [`READ`] bytes a connection and call, and the caller bounds the calls of a turn.

use crate::os::link;
use crate::os::ra::{Advertiser, Heard};
use crate::os::tcp::{self, Accepted, Connection, Happened, Hops, Key, Listener, Way};
use holdfast_bgp::ConnId;
use holdfast_node::config::{Bgp, Neighbor, NeighborId};
use holdfast_node::io::{BgpInput, BgpOutput};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Bytes of one connection per call.
const READ: usize = 64 * 1024;
/// How long an orderly end may take before it becomes a reset.
const END: Duration = Duration::from_secs(2);
/// Pause before a port or an interface that couldn't be had is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Between two of our router advertisements: FRR's own interval for unnumbered neighbours. Also the pause after the first
/// ones, so that a neighbour that starts later is not left waiting.
const ADVERTISE: Duration = Duration::from_secs(10);
const ADVERTISE_FIRST: Duration = Duration::from_secs(1);
/// Advertisements sent at that faster pace.
const FIRST: u32 = 3;
/// Connections accepted per call and family, strangers included.
const ACCEPTS: u32 = 8;
/// Connections of one neighbour, those that are ending included: more are reset at once.
const CONNECTIONS_MAX: usize = 4;

/// What happened with a neighbour; owns its data but for bytes, which are in the caller's buffer.
#[derive(Debug)]
pub(super) enum Event {
    Connected { conn: ConnId, local: SocketAddr, remote: SocketAddr },
    ConnectFailed { conn: ConnId, why: String },
    Accepted { conn: ConnId, local: SocketAddr, remote: SocketAddr },
    Bytes { conn: ConnId, length: usize },
    Closed { conn: ConnId, why: Option<String> },
    Queued { conn: ConnId, bytes: usize },
    Found { remote: IpAddr },
    Problem { why: Option<String> },
}

impl Event {
    /// For the node; `buffer` is the one that was read into.
    pub(super) fn into_input(self, buffer: &[u8]) -> BgpInput<'_> {
        match self {
            Self::Connected { conn, local, remote } => BgpInput::Connected { conn, local, remote },
            Self::ConnectFailed { conn, why } => BgpInput::ConnectFailed { conn, why },
            Self::Accepted { conn, local, remote } => BgpInput::Accepted { conn, local, remote },
            Self::Bytes { conn, length } => BgpInput::Bytes { conn, bytes: buffer.get(..length).unwrap_or_default() },
            Self::Closed { conn, why } => BgpInput::Closed { conn, why },
            Self::Queued { conn, bytes } => BgpInput::Queued { conn, bytes },
            Self::Found { remote } => BgpInput::Found { remote },
            Self::Problem { why } => BgpInput::Problem { why },
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Desk {
    lines: Vec<Line>,
    port: Option<u16>,
    listeners: Vec<Listener>,
    /// When to try to listen (again).
    listen_at: Option<Instant>,
    /// Why nobody can connect to us (`errno`), and whether that was told.
    listen_error: Option<(i32, bool)>,
    next_accepted: u64,
    /// Not yet told.
    ready: VecDeque<(NeighborId, Event)>,
    /// Which neighbour is looked at first, so that no one keeps the others waiting.
    first: usize,
    /// Connections from strangers that were reset.
    pub(super) strangers: u64,
}

/// One neighbour.
#[derive(Debug)]
struct Line {
    config: Neighbor,
    key: Option<Key>,
    open: Vec<Open>,
    problem: Option<String>,
    unnumbered: Option<Unnumbered>,
}

/// A connection.
#[derive(Debug)]
struct Open {
    conn: ConnId,
    connection: Connection,
    /// Dialled, and not yet known to stand.
    dialling: bool,
    /// It is to end in order until then.
    ending: Option<Instant>,
}

/// How a neighbour that is known only by its interface is found.
#[derive(Debug, Default)]
struct Unnumbered {
    advertiser: Option<Advertiser>,
    router: Option<(Ipv6Addr, u32)>,
    /// When we say that we are there, or try to open the socket.
    next: Option<Instant>,
    sent: u32,
}

impl Desk {
    /// With the neighbours' keys in the order of the neighbours. Nothing is opened before the first poll.
    pub(super) fn new(bgp: &Bgp, keys: Vec<Option<Key>>, now: Instant) -> Self {
        let lines = bgp.neighbors.iter().zip(keys).map(|(neighbor, key)| Line {
            key,
            open: Vec::new(),
            problem: None,
            unnumbered: neighbor.address.is_none().then(|| Unnumbered { next: Some(now), ..Unnumbered::default() }),
            config: neighbor.clone(),
        });
        Self {
            lines: lines.collect(),
            port: bgp.listen.then_some(bgp.listen_port),
            listen_at: bgp.listen.then_some(now),
            next_accepted: 1,
            ..Self::default()
        }
    }

    /// When it has something to do by the clock.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let ending = self.lines.iter().flat_map(|line| &line.open).filter_map(|open| open.ending);
        let found = self.lines.iter().filter_map(|line| line.unnumbered.as_ref()?.next);
        ending.chain(found).chain(self.listen_at).min()
    }

    /// What the node wants done.
    pub(super) fn carry_out(&mut self, now: Instant, neighbor: NeighborId, output: BgpOutput) {
        match output {
            BgpOutput::Connect { conn } => self.dial(neighbor, conn),
            BgpOutput::Send { conn, bytes } => {
                let Some(open) = self.open(neighbor, conn) else { return };
                let left = open.connection.send(bytes);
                if left > 0 {
                    self.ready.push_back((neighbor, Event::Queued { conn, bytes: left }));
                }
            }
            BgpOutput::Close { conn } => {
                let Some(open) = self.open(neighbor, conn) else { return };
                open.connection.end();
                open.ending = Some(now + END);
            }
            BgpOutput::Abort { conn } => self.abort(neighbor, conn),
        }
    }

    /// A second descriptor of this connection, for the keeper.
    pub(super) fn duplicate(&self, neighbor: &str, conn: ConnId) -> Option<OwnedFd> {
        let line = self.lines.iter().find(|line| line.config.name == neighbor)?;
        line.open.iter().find(|open| open.conn == conn)?.connection.duplicate().ok()
    }

    /// Why nobody can connect to us, once.
    pub(super) fn take_listen_error(&mut self) -> Option<(u16, i32)> {
        let (errno, told) = self.listen_error.as_mut()?;
        (!std::mem::replace(told, true)).then_some((self.port?, *errno))
    }

    /// The next thing that happened; bytes are put into `buffer`.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        buffer: &mut Vec<u8>,
    ) -> Poll<(NeighborId, Event)> {
        if let Some(event) = self.ready.pop_front() {
            return Poll::Ready(event);
        }
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen(now);
        }
        self.find(cx, now);
        self.accept(cx);
        if let Some(event) = self.ready.pop_front() {
            return Poll::Ready(event);
        }
        buffer.resize(READ, 0);
        let count = self.lines.len();
        for step in 0..count {
            let index = (self.first + step) % count;
            let (Some(line), Ok(id)) = (self.lines.get_mut(index), u16::try_from(index)) else { continue };
            if let Some(event) = line.poll(cx, now, buffer) {
                self.first = (index + 1) % count;
                return Poll::Ready((NeighborId(id), event));
            }
        }
        Poll::Pending
    }

    fn open(&mut self, neighbor: NeighborId, conn: ConnId) -> Option<&mut Open> {
        self.lines.get_mut(usize::from(neighbor.0))?.open.iter_mut().find(|open| open.conn == conn)
    }

    fn dial(&mut self, neighbor: NeighborId, conn: ConnId) {
        let Some(line) = self.lines.get(usize::from(neighbor.0)) else { return };
        // Room is made at the cost of the one that has been ending for the longest.
        let oldest = line.open.iter().filter_map(|open| Some((open.ending?, open.conn))).min();
        if let Some((_, conn)) = oldest.filter(|_| line.open.len() >= CONNECTIONS_MAX) {
            self.abort(neighbor, conn);
        }
        let Some(line) = self.lines.get_mut(usize::from(neighbor.0)) else { return };
        let way = line.problem.clone().map_or_else(|| line.way(), Err);
        let dialled = way.and_then(|way| Connection::dial(&way).map_err(|e| tcp::in_words(&e)));
        match dialled {
            Ok(connection) => line.open.push(Open { conn, connection, dialling: true, ending: None }),
            Err(why) => self.ready.push_back((neighbor, Event::ConnectFailed { conn, why })),
        }
    }

    fn abort(&mut self, neighbor: NeighborId, conn: ConnId) {
        let Some(line) = self.lines.get_mut(usize::from(neighbor.0)) else { return };
        if let Some(at) = line.open.iter().position(|open| open.conn == conn) {
            line.open.swap_remove(at).connection.abort();
            self.ready.push_back((neighbor, Event::Closed { conn, why: None }));
        }
    }

    /// On all addresses of both families, or on none: half a listener would hide that the other half is missing. A host
    /// without IPv6 has one family.
    fn listen(&mut self, now: Instant) {
        self.listen_at = None;
        let Some(port) = self.port else { return };
        let any = [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))];
        let mut listeners = Vec::new();
        for address in any {
            match Listener::bind(address) {
                Ok(listener) => listeners.push(listener),
                Err(e) if address.is_ipv6() && e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                Err(e) => {
                    self.listen_error.get_or_insert_with(|| (e.raw_os_error().unwrap_or(libc::EIO), false));
                    self.listen_at = Some(now + RETRY);
                    return;
                }
            }
        }
        (self.listeners, self.listen_error) = (listeners, None);
        for index in 0..self.lines.len() {
            self.protect(index, None);
        }
    }

    /// The neighbour's key is demanded of whoever connects from its address. Without that nobody may. `former`: the
    /// address that it had before; the kernel has room for so many keys.
    fn protect(&mut self, index: usize, former: Option<IpAddr>) {
        let (Some(line), Ok(id)) = (self.lines.get_mut(index), u16::try_from(index)) else { return };
        let Some(key) = &line.key else { return };
        if let Some(former) = former {
            for listener in &self.listeners {
                // Err: of the other family.
                let _ = listener.set_key(former, None);
            }
        }
        let Some(address) = line.address() else { return };
        let listener = self.listeners.iter().find(|l| l.address().is_ok_and(|a| a.is_ipv4() == address.is_ipv4()));
        let Some(listener) = listener else { return };
        let problem = match listener.set_key(address, Some(key)) {
            Ok(()) => None,
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                Some("this kernel can't sign TCP (CONFIG_TCP_MD5SIG): no session without the password".to_owned())
            }
            Err(e) => Some(format!("the password can't be set on the listening socket: {e}")),
        };
        if line.problem != problem {
            line.problem.clone_from(&problem);
            self.ready.push_back((NeighborId(id), Event::Problem { why: problem }));
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.listeners.len() {
            let mut left = ACCEPTS;
            while let Some(Poll::Ready(Ok(accepted))) = self.listeners.get(at).map(|l| l.poll_accept(cx)) {
                self.take(accepted);
                left -= 1;
                if left == 0 {
                    // More may wait, and the next look at them must not wait for something else to happen.
                    cx.waker().wake_by_ref();
                    break;
                }
            }
        }
    }

    fn take(&mut self, accepted: Accepted) {
        let (local, remote) = (accepted.local, accepted.remote);
        let Some(index) = self.lines.iter().position(|line| line.is(remote)) else {
            self.strangers += 1;
            accepted.refuse();
            return;
        };
        let (Some(line), Ok(id)) = (self.lines.get_mut(index), u16::try_from(index)) else { return };
        if line.problem.is_some() || line.open.len() >= CONNECTIONS_MAX {
            accepted.refuse();
            return;
        }
        // What protects it can't be set: it was closed with that.
        let Ok(connection) = accepted.take(line.hops(), line.config.hold_time) else { return };
        let conn = ConnId(self.next_accepted);
        self.next_accepted += 2;
        line.open.push(Open { conn, connection, dialling: false, ending: None });
        self.ready.push_back((NeighborId(id), Event::Accepted { conn, local, remote }));
    }

    /// Unnumbered neighbours: says that we are there, and hears who else is.
    fn find(&mut self, cx: &mut Context<'_>, now: Instant) {
        for index in 0..self.lines.len() {
            let Some(line) = self.lines.get_mut(index) else { continue };
            let (Some(unnumbered), Some(interface)) = (&mut line.unnumbered, &line.config.interface) else { continue };
            let former = unnumbered.router;
            unnumbered.turn(cx, now, interface.as_str());
            let router = unnumbered.router;
            if router != former {
                self.protect(index, former.map(|(ip, _)| ip.into()));
            }
            let found = router.map(|(ip, _)| ip).filter(|ip| former.map(|(ip, _)| ip) != Some(*ip));
            if let (Some(ip), Ok(id)) = (found, u16::try_from(index)) {
                self.ready.push_back((NeighborId(id), Event::Found { remote: ip.into() }));
            }
        }
    }
}

impl Line {
    fn address(&self) -> Option<IpAddr> {
        self.config.address.or_else(|| Some(self.unnumbered.as_ref()?.router?.0.into()))
    }

    fn hops(&self) -> Hops {
        self.config.min_ttl().map_or_else(|| Hops::Send(self.config.ttl()), Hops::AtLeast)
    }

    /// How it is reached, or why it can't be.
    fn way(&self) -> Result<Way, String> {
        let interface = self.config.interface.as_ref().map(|name| name.as_str());
        let address = self.address().ok_or_else(|| {
            format!("no router advertises itself on {} (RFC 4861)", interface.unwrap_or("its interface"))
        })?;
        let remote = match address {
            IpAddr::V6(six) if six.is_unicast_link_local() => {
                let index = interface.map(link::index).transpose().map_err(|e| tcp::in_words(&e))?;
                SocketAddrV6::new(six, self.config.port, 0, index.unwrap_or(0)).into()
            }
            _ => SocketAddr::new(address, self.config.port),
        };
        Ok(Way {
            local: self.config.source,
            remote,
            interface: interface.map(str::to_owned),
            hops: self.hops(),
            key: self.key.clone(),
            user_timeout: self.config.hold_time,
        })
    }

    /// A connection from there is this neighbour's.
    fn is(&self, remote: SocketAddr) -> bool {
        let here = |scope: u32| {
            let index = self.config.interface.as_ref().and_then(|name| link::index(name.as_str()).ok());
            index == Some(scope)
        };
        match (self.config.address, remote) {
            (Some(address), SocketAddr::V6(six)) if six.ip().is_unicast_link_local() => {
                address == remote.ip() && here(six.scope_id())
            }
            (Some(address), _) => address == remote.ip(),
            (None, SocketAddr::V6(six)) => {
                // With a key only the router that it is set for may connect; without, whoever is on the segment.
                let known = self.unnumbered.as_ref().and_then(|u| u.router).map(|(ip, _)| ip);
                six.ip().is_unicast_link_local()
                    && here(six.scope_id())
                    && (self.key.is_none() || known == Some(*six.ip()))
            }
            (None, SocketAddr::V4(_)) => false,
        }
    }

    /// The next thing that happened on one of its connections.
    fn poll(&mut self, cx: &mut Context<'_>, now: Instant, buffer: &mut [u8]) -> Option<Event> {
        for at in 0..self.open.len() {
            let open = self.open.get_mut(at)?;
            let conn = open.conn;
            if open.ending.is_some_and(|until| until <= now) {
                self.open.swap_remove(at).connection.abort();
                return Some(Event::Closed { conn, why: None });
            }
            match open.connection.poll(cx, buffer) {
                Poll::Pending => {}
                Poll::Ready(Happened::Connected { local, remote }) => {
                    open.dialling = false;
                    return Some(Event::Connected { conn, local, remote });
                }
                Poll::Ready(Happened::Received(length)) if open.ending.is_none() => {
                    return Some(Event::Bytes { conn, length });
                }
                // What comes after our last word is dropped; the task must be woken for the rest of it.
                Poll::Ready(Happened::Received(_)) => cx.waker().wake_by_ref(),
                Poll::Ready(Happened::Queued(bytes)) => return Some(Event::Queued { conn, bytes }),
                Poll::Ready(Happened::Closed(kind, why)) => {
                    let dialling = open.dialling;
                    self.open.swap_remove(at);
                    let why = kind.is_some().then_some(why);
                    return Some(if dialling {
                        Event::ConnectFailed { conn, why: why.unwrap_or_else(|| "closed".to_owned()) }
                    } else {
                        Event::Closed { conn, why }
                    });
                }
            }
        }
        None
    }
}

impl Unnumbered {
    /// What is due and what was heard.
    fn turn(&mut self, cx: &mut Context<'_>, now: Instant, interface: &str) {
        if self.next.is_some_and(|at| at <= now) {
            self.next = Some(now + self.speak(interface).unwrap_or(RETRY));
        }
        let Some(advertiser) = &self.advertiser else { return };
        match advertiser.poll_heard(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(Heard::Question)) => {
                // At the usual pace: questions cost nothing to ask.
                self.sent = 0;
                self.next = self.next.map(|at| at.min(now + ADVERTISE_FIRST));
                cx.waker().wake_by_ref();
            }
            Poll::Ready(Ok(Heard::Router(router))) => {
                cx.waker().wake_by_ref();
                self.router = Some((router, link::index(interface).unwrap_or(0)));
            }
            Poll::Ready(Err(_)) => {
                // The interface is gone or down: opened anew when it's back.
                (self.advertiser, self.router) = (None, None);
                self.next = Some(now + RETRY);
            }
        }
    }

    /// Says that we are there; returns when to do it again.
    fn speak(&mut self, interface: &str) -> io::Result<Duration> {
        let advertiser = match self.advertiser.take() {
            Some(advertiser) => advertiser,
            None => {
                let advertiser = Advertiser::open(link::index(interface)?)?;
                self.sent = 0;
                // Whoever is there answers sooner than its own timer would make it.
                let _ = advertiser.ask();
                advertiser
            }
        };
        // An error closes it: the interface may have been made anew under its name.
        advertiser.advertise()?;
        self.advertiser = Some(advertiser);
        self.sent = self.sent.saturating_add(1);
        Ok(if self.sent < FIRST { ADVERTISE_FIRST } else { ADVERTISE })
    }
}

#[cfg(test)]
mod tests;

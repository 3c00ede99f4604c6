//! The backends of flows: what they are sent comes back, over TCP with a digest at the end, over UDP for as long as the
//! session stays the one that was begun. One thread, one epoll.
//!
//! A TCP client begins with a [`Hello`]. [`Wants::Echo`]: every byte comes back, and when the client has ended its side,
//! the digest of what arrived, then the end. [`Wants::Pour`]: the client ends its side at once, and is sent its stream,
//! a piece each [`PIECE_INTERVAL`], until it goes: that is a half-closed connection.

use super::net::{BACKEND_PORT, backends};
use super::stream::{Digest, Stream};
use crate::clock::{MS, Ns, now};
use crate::fabric::Fabric;
use crate::load::{Stopper, forget, wait};
use crate::metrics::Class;
use crate::netns::Netns;
use anyhow::{Context, Result};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a request, and of a piece of a stream.
pub const PIECE: usize = 64;
/// Time between two pieces of a stream.
pub const PIECE_INTERVAL: Ns = 50 * MS;
/// Connections at once; beyond it new ones are closed. Far above what the load opens.
const CONNECTIONS_MAX: usize = 8192;
/// UDP sessions at once; beyond it no new one begins.
const SESSIONS_MAX: usize = 8192;
/// Bytes of one connection that wait to be sent back; beyond it nothing more is read.
const HELD_MAX: usize = 256 * 1024;
/// Read at once.
const READ: usize = 64 * 1024;

/// What a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// All bytes back, then the digest.
    Echo,
    /// Its stream, until it goes.
    Pour,
}

/// A client's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// What it wants.
    pub wants: Wants,
    /// Its stream's seed.
    pub seed: u64,
}

impl Hello {
    /// Its length.
    pub const BYTES: usize = 12;

    /// As it is sent.
    #[must_use]
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let mut b = *b"flo\0\0\0\0\0\0\0\0\0";
        b[3] = match self.wants {
            Wants::Echo => b'e',
            Wants::Pour => b'p',
        };
        b[4..].copy_from_slice(&self.seed.to_le_bytes());
        b
    }

    /// Sends it on a connection that was just begun; false: it isn't established yet.
    ///
    /// # Errors
    /// How the connection broke.
    pub fn send(self, socket: &mut impl Write) -> Result<bool, Class> {
        match socket.write(&self.bytes()) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => Ok(false),
            Err(e) => Err(Class::of(&e)),
        }
    }

    /// Reads it; `None`: it is none.
    #[must_use]
    pub fn read(b: &[u8; Self::BYTES]) -> Option<Self> {
        let (head, seed) = b.split_first_chunk::<4>()?;
        let wants = match head {
            b"floe" => Wants::Echo,
            b"flop" => Wants::Pour,
            _ => return None,
        };
        Some(Self { wants, seed: u64::from_le_bytes(*seed.first_chunk()?) })
    }
}

/// A datagram: of which flow, its number in that flow, and in answers whether the session is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// The flow.
    pub flow: u64,
    /// Its number; 0 begins a session.
    pub number: u32,
    /// In an answer: the session that this flow began is still the one that was asked.
    pub known: bool,
}

impl Datagram {
    /// Its length.
    pub const BYTES: usize = 13;

    /// As it is sent.
    #[must_use]
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&self.flow.to_le_bytes());
        b[8..12].copy_from_slice(&self.number.to_le_bytes());
        b[12] = u8::from(self.known);
        b
    }

    /// Reads it; `None`: it is none.
    #[must_use]
    pub fn read(b: &[u8]) -> Option<Self> {
        let (flow, rest) = b.split_first_chunk::<8>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let [known] = rest else { return None };
        Some(Self { flow: u64::from_le_bytes(*flow), number: u32::from_le_bytes(*number), known: *known == 1 })
    }
}

/// The running backends.
#[derive(Debug)]
pub struct Server {
    stopper: Stopper,
}

impl Server {
    /// Opens all sockets in the backends' namespaces and serves them until dropped.
    ///
    /// # Errors
    /// A namespace, a socket, or the thread.
    pub fn start(fabric: &Fabric) -> Result<Self> {
        Self::serve(backends().map(|(node, addresses)| (fabric.ns(node), addresses.to_vec())))
    }

    /// The same at these addresses, each in its namespace.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn serve(places: impl Iterator<Item = (Netns, Vec<IpAddr>)>) -> Result<Self> {
        let mut sockets = Vec::new();
        for (ns, addresses) in places {
            for ip in addresses {
                let at = SocketAddr::new(ip, BACKEND_PORT);
                let (l, u) = ns.inside(move || {
                    let what = || format!("listen on {at}");
                    Ok((TcpListener::bind(at).with_context(what)?, UdpSocket::bind(at).with_context(what)?))
                })?;
                l.set_nonblocking(true)?;
                u.set_nonblocking(true)?;
                sockets.extend([Socket::Listener(l), Socket::Udp(u, HashMap::new())]);
            }
        }
        let stopper = Stopper::spawn("flow-server", move |stop| Loop::new(sockets)?.run(stop))?;
        Ok(Self { stopper })
    }

    /// The serving thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }
}

enum Socket {
    Listener(TcpListener),
    /// With whom began a session, and the flow it is of.
    Udp(UdpSocket, HashMap<SocketAddr, u64>),
    Tcp(Connection),
}

struct Connection {
    socket: TcpStream,
    hello: Vec<u8>,
    wants: Option<Wants>,
    digest: Digest,
    /// To be sent.
    held: Vec<u8>,
    /// The client has ended its side.
    ended: bool,
    stream: Stream,
    poured: u64,
    due: Ns,
    /// Watched for room to write as well.
    watched: epoll::EventFlags,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            hello: Vec::new(),
            wants: None,
            digest: Digest::default(),
            held: Vec::new(),
            ended: false,
            stream: Stream::new(0),
            poured: 0,
            due: 0,
            watched: epoll::EventFlags::IN,
        }
    }

    /// Moves on as far as it goes; false: close.
    fn progress(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            if !self.write() {
                return false;
            }
            if self.ended || self.held.len() >= HELD_MAX {
                break;
            }
            match self.socket.read(buffer) {
                Ok(0) => self.end(),
                Ok(n) => {
                    if !self.take(&buffer[..n]) {
                        return false;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        !(self.ended && self.held.is_empty() && self.wants == Some(Wants::Echo))
    }

    /// Writes what is held; false: close.
    fn write(&mut self) -> bool {
        while !self.held.is_empty() {
            match self.socket.write(&self.held) {
                Ok(n) => drop(self.held.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let missing = Hello::BYTES - self.hello.len();
        let (head, body) = bytes.split_at(missing.min(bytes.len()));
        self.hello.extend_from_slice(head);
        if self.wants.is_none() {
            let Some(hello) = self.hello.first_chunk() else { return true };
            let Some(hello) = Hello::read(hello) else { return false };
            (self.wants, self.stream) = (Some(hello.wants), Stream::new(hello.seed));
        }
        if self.wants == Some(Wants::Echo) {
            self.digest.add(body);
            self.held.extend_from_slice(body);
        }
        true
    }

    fn end(&mut self) {
        self.ended = true;
        match self.wants {
            Some(Wants::Echo) => self.held.extend_from_slice(&self.digest.bytes()),
            Some(Wants::Pour) => self.due = now(),
            None => self.wants = Some(Wants::Echo), // it said nothing: nothing is owed
        }
    }

    /// The pieces of a stream that are due; false: close.
    fn pour(&mut self, t: Ns) -> bool {
        if !(self.ended && self.wants == Some(Wants::Pour)) || t < self.due {
            return true;
        }
        self.due += PIECE_INTERVAL * ((t - self.due) / PIECE_INTERVAL + 1);
        if self.held.len() < HELD_MAX {
            let mut piece = [0; PIECE];
            self.stream.fill(self.poured, &mut piece);
            self.poured += PIECE as u64;
            self.held.extend_from_slice(&piece);
        }
        self.write()
    }

    /// What epoll is to watch it for.
    fn interest(&self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        if !self.ended && self.held.len() < HELD_MAX {
            flags |= epoll::EventFlags::IN;
        }
        if !self.held.is_empty() {
            flags |= epoll::EventFlags::OUT;
        }
        flags
    }
}

struct Loop {
    epoll: OwnedFd,
    sockets: HashMap<u64, Socket>,
    next: u64,
    buffer: Vec<u8>,
}

impl Loop {
    fn new(sockets: Vec<Socket>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut me = Self { epoll, sockets: HashMap::new(), next: 0, buffer: vec![0; READ] };
        sockets.into_iter().try_for_each(|s| me.insert(s))?;
        Ok(me)
    }

    fn insert(&mut self, s: Socket) -> Result<()> {
        let data = epoll::EventData::new_u64(self.next);
        let fd = match &s {
            Socket::Listener(l) => l.as_fd(),
            Socket::Udp(u, _) => u.as_fd(),
            Socket::Tcp(c) => c.socket.as_fd(),
        };
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).context("epoll add")?;
        self.sockets.insert(self.next, s);
        self.next += 1;
        Ok(())
    }

    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        while !stop() {
            wait(&self.epoll, &mut events, 10 * MS)?;
            for e in &events {
                self.serve(e.data.u64())?;
            }
            self.pour();
        }
        Ok(())
    }

    fn serve(&mut self, key: u64) -> Result<()> {
        let room = self.sockets.len() < CONNECTIONS_MAX;
        let mut new = Vec::new();
        let keep = match self.sockets.get_mut(&key) {
            None => return Ok(()),
            Some(Socket::Listener(l)) => {
                while let Ok((c, _)) = l.accept() {
                    if room && c.set_nonblocking(true).is_ok() {
                        let _best_effort = c.set_nodelay(true);
                        new.push(Socket::Tcp(Connection::new(c)));
                    }
                }
                true
            }
            Some(Socket::Udp(u, sessions)) => {
                answer(u, sessions);
                true
            }
            Some(Socket::Tcp(c)) => c.progress(&mut self.buffer) && watch(&self.epoll, key, c),
        };
        if !keep {
            self.close(key);
        }
        new.into_iter().try_for_each(|s| self.insert(s))
    }

    fn close(&mut self, key: u64) {
        if let Some(Socket::Tcp(c)) = self.sockets.remove(&key) {
            forget(&self.epoll, &c.socket);
        }
    }

    fn pour(&mut self) {
        let t = now();
        let mut gone = Vec::new();
        for (key, s) in &mut self.sockets {
            if let Socket::Tcp(c) = s
                && !(c.pour(t) && watch(&self.epoll, *key, c))
            {
                gone.push(*key);
            }
        }
        gone.into_iter().for_each(|key| self.close(key));
    }
}

/// Tells epoll if what the connection waits for has changed; false: it can't be told.
fn watch(epoll: &OwnedFd, key: u64, c: &mut Connection) -> bool {
    let interest = c.interest();
    if interest == c.watched {
        return true;
    }
    c.watched = interest;
    epoll::modify(epoll, &c.socket, epoll::EventData::new_u64(key), interest).is_ok()
}

fn answer(u: &UdpSocket, sessions: &mut HashMap<SocketAddr, u64>) {
    let mut b = [0; 64];
    while let Ok((n, from)) = u.recv_from(&mut b) {
        let Some(d) = b.get(..n).and_then(Datagram::read) else { continue };
        if d.number == 0 && sessions.len() < SESSIONS_MAX {
            sessions.insert(from, d.flow);
        }
        let known = sessions.get(&from) == Some(&d.flow);
        let _lost = u.send_to(&Datagram { known, ..d }.bytes(), from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_first_is_read_as_it_was_meant() {
        for wants in [Wants::Echo, Wants::Pour] {
            let hello = Hello { wants, seed: 0x0102_0304_0506_0708 };
            assert_eq!(Hello::read(&hello.bytes()), Some(hello));
        }
        assert_eq!(Hello::read(b"GET / HTTP/1"), None);
        let d = Datagram { flow: u64::MAX - 1, number: 7, known: true };
        assert_eq!(Datagram::read(&d.bytes()), Some(d));
        assert_eq!(Datagram::read(&d.bytes()[1..]), None);
    }

    /// The server's side of a connection, and the client's.
    fn pair() -> (Connection, TcpStream) {
        let l = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(l.local_addr().expect("bound")).expect("connected");
        let (server, _) = l.accept().expect("accepted");
        server.set_nonblocking(true).expect("nonblocking");
        (Connection::new(server), client)
    }

    /// Serves until the connection is done or the client has `n` bytes.
    fn serve_until(c: &mut Connection, client: &mut TcpStream, n: usize) -> Vec<u8> {
        client.set_read_timeout(Some(std::time::Duration::from_millis(5))).expect("a timeout");
        let (mut got, mut buffer) = (Vec::new(), vec![0; READ]);
        for _ in 0..2000 {
            let mut b = [0; 4096];
            let open = c.progress(&mut buffer) && c.pour(now());
            if let Ok(k) = client.read(&mut b) {
                got.extend_from_slice(&b[..k]);
            }
            if !open || got.len() >= n {
                break;
            }
        }
        got
    }

    #[test]
    fn an_echo_ends_with_the_digest_of_what_arrived() {
        let (mut c, mut client) = pair();
        let mut sent = vec![0; 3000];
        Stream::new(5).fill(0, &mut sent);
        client.write_all(&Hello { wants: Wants::Echo, seed: 5 }.bytes()).expect("written");
        client.write_all(&sent).expect("written");
        client.shutdown(std::net::Shutdown::Write).expect("half-closed");
        let got = serve_until(&mut c, &mut client, sent.len() + Digest::BYTES);
        let mut digest = Digest::default();
        digest.add(&sent);
        assert_eq!((&got[..sent.len()], &got[sent.len()..]), (&sent[..], &digest.bytes()[..]));
    }

    #[test]
    fn who_ended_its_side_at_once_is_sent_its_stream() {
        let (mut c, mut client) = pair();
        client.write_all(&Hello { wants: Wants::Pour, seed: 9 }.bytes()).expect("written");
        client.shutdown(std::net::Shutdown::Write).expect("half-closed");
        let got = serve_until(&mut c, &mut client, 2 * PIECE);
        assert!(got.len() >= 2 * PIECE && Stream::new(9).is(0, &got), "{} bytes", got.len());
    }

    #[test]
    fn a_session_is_known_to_the_one_that_began_it_and_from_there_only() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
        server.set_nonblocking(true).expect("nonblocking");
        let mut sessions = HashMap::new();
        let at = server.local_addr().expect("bound");
        let client = || {
            let u = UdpSocket::bind("127.0.0.1:0").expect("a port");
            u.connect(at).expect("connected");
            u.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("a timeout");
            u
        };
        let mut ask = |u: &UdpSocket, number| {
            let mut b = [0; 64];
            u.send(&Datagram { flow: 3, number, known: false }.bytes()).expect("sent");
            answer(&server, &mut sessions);
            let n = u.recv(&mut b).expect("an answer");
            Datagram::read(&b[..n]).expect("a datagram").known
        };
        let (a, b) = (client(), client());
        assert!(ask(&a, 0) && ask(&a, 1));
        assert!(!ask(&b, 2), "the same flow from another port");
        assert!(ask(&a, 3));
    }
}

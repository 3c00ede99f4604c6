//! The ends of the line: three HTTP backends and, on both load balancers, a UDP echo that doesn't depend on the
//! balancer. One thread, one epoll.

use crate::clock::MS;
use crate::fabric::{BACKEND_PORT, BACKENDS, ECHO_PORT, Fabric, Lb};
use crate::load::{Stopper, wait};
use anyhow::{Context, Result};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Connections at once; beyond it new ones are closed. Far above what the load keeps open.
const CONNECTIONS_MAX: usize = 4096;

enum Socket {
    Listener(TcpListener, u8),
    Stream(TcpStream, u8, Vec<u8>),
    Echo(UdpSocket, u8),
}

/// The running responder.
#[derive(Debug)]
pub struct Responder {
    stopper: Stopper,
    status: Arc<AtomicU16>,
}

impl Responder {
    /// Opens all sockets inside `fabric` and serves them until dropped.
    ///
    /// # Errors
    /// A namespace or a socket.
    pub fn start(fabric: &Fabric) -> Result<Self> {
        let mut sockets = Vec::new();
        for lb in Lb::BOTH {
            let s = fabric.lb(lb).inside(|| Ok(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ECHO_PORT))?))?;
            s.set_nonblocking(true)?;
            sockets.push(Socket::Echo(s, lb.index() as u8));
        }
        for (i, node) in ["b1", "b2", "b3"].into_iter().enumerate() {
            let s = fabric.ns(node).inside(|| Ok(TcpListener::bind((BACKENDS[i], BACKEND_PORT))?))?;
            s.set_nonblocking(true)?;
            sockets.push(Socket::Listener(s, i as u8 + 1));
        }
        Self::run(sockets)
    }

    /// Serves web servers that listen already, each with its number.
    ///
    /// # Errors
    /// A socket, or the thread.
    pub fn serve(listeners: Vec<(TcpListener, u8)>) -> Result<Self> {
        for (l, _) in &listeners {
            l.set_nonblocking(true)?;
        }
        Self::run(listeners.into_iter().map(|(l, id)| Socket::Listener(l, id)).collect())
    }

    fn run(sockets: Vec<Socket>) -> Result<Self> {
        let status = Arc::new(AtomicU16::new(200));
        let shared = status.clone();
        let stopper = Stopper::spawn("responder", move |stop| Loop::new(sockets, shared)?.run(stop))?;
        Ok(Self { stopper, status })
    }

    /// From now on every backend answers with this status.
    pub fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::Release);
    }

    /// The serving thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }
}

struct Loop {
    epoll: OwnedFd,
    sockets: HashMap<u64, Socket>,
    next: u64,
    status: Arc<AtomicU16>,
}

impl Loop {
    fn new(sockets: Vec<Socket>, status: Arc<AtomicU16>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut me = Self { epoll, sockets: HashMap::new(), next: 0, status };
        for s in sockets {
            me.insert(s)?;
        }
        Ok(me)
    }

    fn insert(&mut self, s: Socket) -> Result<()> {
        let data = epoll::EventData::new_u64(self.next);
        match &s {
            Socket::Listener(l, _) => epoll::add(&self.epoll, l, data, epoll::EventFlags::IN),
            Socket::Stream(c, ..) => epoll::add(&self.epoll, c, data, epoll::EventFlags::IN),
            Socket::Echo(u, _) => epoll::add(&self.epoll, u, data, epoll::EventFlags::IN),
        }
        .context("epoll add")?;
        self.sockets.insert(self.next, s);
        self.next += 1;
        Ok(())
    }

    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        while !stop() {
            wait(&self.epoll, &mut events, 50 * MS)?;
            for e in &events {
                self.serve(e.data.u64())?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, key: u64) -> Result<()> {
        let room = self.sockets.len() < CONNECTIONS_MAX;
        let status = self.status.load(Ordering::Acquire);
        let mut new = Vec::new();
        let keep = match self.sockets.get_mut(&key) {
            None => return Ok(()),
            Some(Socket::Listener(l, id)) => {
                while let Ok((c, _)) = l.accept() {
                    if room && c.set_nonblocking(true).is_ok() {
                        let _best_effort = c.set_nodelay(true);
                        new.push(Socket::Stream(c, *id, Vec::new()));
                    }
                }
                true
            }
            Some(Socket::Stream(c, id, buffer)) => stream(c, *id, status, buffer),
            Some(Socket::Echo(u, node)) => {
                let mut b = [0; 64];
                while let Ok((n, from)) = u.recv_from(&mut b) {
                    let Some(seq) = b.get(..n).and_then(|b| b.first_chunk::<8>()) else { continue };
                    let mut reply = [0; 9];
                    reply[..8].copy_from_slice(seq);
                    reply[8] = *node;
                    let _lost = u.send_to(&reply, from);
                }
                true
            }
        };
        if !keep && let Some(Socket::Stream(c, ..)) = self.sockets.remove(&key) {
            crate::load::forget(&self.epoll, &c);
        }
        new.into_iter().try_for_each(|s| self.insert(s))
    }
}

/// Answers every complete request in the buffer; false: close.
fn stream(c: &mut TcpStream, id: u8, status: u16, buffer: &mut Vec<u8>) -> bool {
    let mut b = [0; 4096];
    loop {
        match c.read(&mut b) {
            Ok(0) => return false,
            Ok(n) => buffer.extend_from_slice(&b[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    while let Some(end) = find(buffer, b"\r\n\r\n") {
        let close = find(&buffer[..end], b"onnection: close").is_some();
        buffer.drain(..end + 4);
        let word = if status == 200 { "OK" } else { "Unwell" };
        let reply = format!("HTTP/1.1 {status} {word}\r\nContent-Length: 3\r\nContent-Type: text/plain\r\n\r\nb{id}\n");
        if c.write_all(reply.as_bytes()).is_err() || close {
            return false;
        }
    }
    buffer.len() < 16_384
}

/// Where `needle` starts.
#[must_use]
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|w| w == needle)
}

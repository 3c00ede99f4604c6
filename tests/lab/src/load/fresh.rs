//! One new TCP connection with one HTTP request every `d`, whatever became of those before.

use crate::clock::{MS, Ns, now};
use crate::load::{Response, Stopper, connect, parse_response, wait};
use crate::metrics::{Class, Sample};
use crate::netns::Netns;
use anyhow::Result;
use rustix::event::epoll;
use socket2::{SockAddr, Socket};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

/// What the client saw so far.
#[derive(Debug, Default, Clone)]
pub struct Log {
    /// Decided requests, in the order they were decided.
    pub samples: Vec<Sample>,
    /// How late a request left at most, with when.
    pub late: Vec<(Ns, Ns)>,
}

/// The running client.
#[derive(Debug)]
pub struct Fresh {
    stopper: Stopper,
    log: Arc<Mutex<Log>>,
}

impl Fresh {
    /// A request to `to` from `ns` every `interval`, each with `deadline` to be answered.
    ///
    /// # Errors
    /// The namespace, or the thread.
    pub fn start(ns: &Netns, to: SocketAddrV4, interval: Ns, deadline: Ns) -> Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let (ns, shared) = (ns.clone(), log.clone());
        let stopper = Stopper::spawn("fresh", move |stop| {
            ns.enter()?;
            Client {
                to: to.into(),
                deadline,
                epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
                open: HashMap::new(),
                order: VecDeque::new(),
                next: 0,
                log: shared,
            }
            .run(interval, stop)
        })?;
        Ok(Self { stopper, log })
    }

    /// The sending thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// A copy of the log as it is.
    #[must_use]
    pub fn log(&self) -> Log {
        self.log.lock().map(|l| l.clone()).unwrap_or_default()
    }

    /// How many of the last `n` decided requests succeeded.
    #[must_use]
    pub fn recent_ok(&self, n: usize) -> usize {
        self.log.lock().map_or(0, |l| l.samples.iter().rev().take(n).filter(|s| s.class == Class::Ok).count())
    }

    /// Stops sending, lets every open request reach its deadline, and returns all samples.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Log> {
        self.stopper.finish()?;
        Ok(self.log.lock().map(|l| l.clone()).unwrap_or_default())
    }
}

struct Conn {
    socket: Socket,
    sent: Ns,
    written: bool,
    buffer: Vec<u8>,
}

struct Client {
    to: SockAddr,
    deadline: Ns,
    epoll: OwnedFd,
    open: HashMap<u64, Conn>,
    order: VecDeque<u64>,
    next: u64,
    log: Arc<Mutex<Log>>,
}

impl Client {
    fn run(mut self, interval: Ns, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut due = now();
        let mut events = Vec::with_capacity(256);
        loop {
            let stopped = stop();
            if stopped && self.open.is_empty() {
                return Ok(());
            }
            let t = now();
            if !stopped && t >= due {
                if t - due > MS {
                    self.note(|l| l.late.push((t, t - due)));
                }
                self.begin(t);
                // Slots that were slept through are skipped, not sent in a burst: the lateness says how many.
                due += interval * ((t - due) / interval + 1);
            }
            self.expire(now());
            let until = if stopped { now() + 5 * MS } else { due };
            wait(&self.epoll, &mut events, until.saturating_sub(now()))?;
            for e in &events {
                self.progress(e.data.u64());
            }
        }
    }

    fn note(&self, f: impl FnOnce(&mut Log)) {
        if let Ok(mut l) = self.log.lock() {
            f(&mut l);
        }
    }

    fn begin(&mut self, t: Ns) {
        match connect(&self.to, &self.epoll, self.next) {
            Ok(socket) => {
                self.open.insert(self.next, Conn { socket, sent: t, written: false, buffer: Vec::new() });
                self.order.push_back(self.next);
            }
            Err(e) => self.note(|l| l.samples.push(Sample { sent: t, done: now(), class: Class::of(&e), node: 255 })),
        }
        self.next += 1;
    }

    fn expire(&mut self, t: Ns) {
        while let Some(&id) = self.order.front() {
            match self.open.get(&id) {
                Some(c) if t.saturating_sub(c.sent) < self.deadline => return,
                Some(_) => self.decide(id, Class::Timeout, 255),
                None => {}
            }
            self.order.pop_front();
        }
    }

    fn decide(&mut self, id: u64, class: Class, node: u8) {
        if let Some(c) = self.open.remove(&id) {
            super::forget(&self.epoll, &c.socket);
            self.note(|l| l.samples.push(Sample { sent: c.sent, done: now(), class, node }));
        }
    }

    fn progress(&mut self, id: u64) {
        let Some(c) = self.open.get_mut(&id) else { return };
        match advance(c) {
            Ok(None) => {
                if c.written {
                    // Writable again is of no interest.
                    let again = epoll::EventData::new_u64(id);
                    let _known = epoll::modify(&self.epoll, &c.socket, again, epoll::EventFlags::IN);
                }
            }
            Ok(Some((class, node))) => self.decide(id, class, node),
            Err(e) => self.decide(id, Class::of(&e), 255),
        }
    }
}

/// Moves one request on; `Some` when it is decided.
fn advance(c: &mut Conn) -> std::io::Result<Option<(Class, u8)>> {
    if let Some(e) = c.socket.take_error()? {
        return Err(e);
    }
    if !c.written {
        match c.socket.write(REQUEST) {
            Ok(n) if n == REQUEST.len() => c.written = true,
            Ok(_) => return Err(ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::NotConnected => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    let mut b = [0; 4096];
    loop {
        match c.socket.read(&mut b) {
            Ok(0) => return Ok(Some((Class::Truncated, 255))),
            Ok(n) => c.buffer.extend_from_slice(&b[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        }
        match parse_response(&c.buffer) {
            Response::Partial => {}
            Response::Complete(200, node, _) => return Ok(Some((Class::Ok, node))),
            Response::Complete(..) | Response::Garbage => return Ok(Some((Class::Wrong, 255))),
        }
    }
}

//! N long-lived connections, each with a request every `interval`. A connection that breaks is noted with the time
//! and replaced, so that the next fault finds flows to break.

use crate::clock::{MS, Ns, now};
use crate::load::{Response, Stopper, connect, parse_response, wait};
use crate::metrics::{Class, Flow};
use crate::netns::Netns;
use anyhow::Result;
use rustix::event::epoll;
use socket2::{SockAddr, Socket};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web\r\n\r\n";
/// A request on an established flow that isn't answered for so long breaks the flow.
pub const STALL: Ns = 1000 * MS;
/// Before a broken flow is replaced.
const RECONNECT: Ns = 100 * MS;

/// The running connections.
#[derive(Debug)]
pub struct Long {
    stopper: Stopper,
    flows: Arc<Mutex<Vec<Flow>>>,
}

impl Long {
    /// `count` connections from `ns` to `to`, a request each `interval`.
    ///
    /// # Errors
    /// The namespace, or the thread.
    pub fn start(ns: &Netns, to: SocketAddrV4, count: usize, interval: Ns) -> Result<Self> {
        let flows = Arc::new(Mutex::new(Vec::new()));
        let (ns, shared) = (ns.clone(), flows.clone());
        let stopper = Stopper::spawn("long", move |stop| {
            ns.enter()?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let t = now();
            let slots = (0..count).map(|i| Slot::idle(t + interval * i as u64 / count as u64)).collect();
            Clients { to: to.into(), interval, epoll, slots, flows: shared }.run(stop)
        })?;
        Ok(Self { stopper, flows })
    }

    /// The sending thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// How many flows are established and unbroken now.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.flows.lock().map_or(0, |f| f.iter().filter(|f| f.broken.is_none()).count())
    }

    /// Stops; a request that is unanswered then and was sent more than [`STALL`] ago breaks its flow.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<Flow>> {
        self.stopper.finish()?;
        Ok(self.flows.lock().map(|f| f.clone()).unwrap_or_default())
    }
}

struct Slot {
    socket: Option<Socket>,
    connecting: bool,
    /// Index into the flow log, once the first answer came.
    flow: Option<usize>,
    /// When the unanswered request was sent (or the connection begun).
    waiting: Option<Ns>,
    due: Ns,
    buffer: Vec<u8>,
}

impl Slot {
    fn idle(due: Ns) -> Self {
        Self { socket: None, connecting: false, flow: None, waiting: None, due, buffer: Vec::new() }
    }
}

struct Clients {
    to: SockAddr,
    interval: Ns,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    flows: Arc<Mutex<Vec<Flow>>>,
}

impl Clients {
    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        while !stop() {
            let t = now();
            for i in 0..self.slots.len() {
                self.turn(i, t);
            }
            let next = self.slots.iter().map(|s| s.due).min().unwrap_or(t + 50 * MS);
            wait(&self.epoll, &mut events, next.saturating_sub(now()).min(50 * MS))?;
            for e in &events {
                self.read(e.data.u64() as usize);
            }
        }
        let t = now();
        for i in 0..self.slots.len() {
            self.stalled(i, t);
        }
        Ok(())
    }

    /// What the clock asks of slot `i`.
    fn turn(&mut self, i: usize, t: Ns) {
        self.stalled(i, t);
        let interval = self.interval;
        let Some(s) = self.slots.get_mut(i) else { return };
        if t < s.due {
            return;
        }
        s.due += interval * ((t - s.due) / interval + 1);
        if s.socket.is_none() {
            let opened = connect(&self.to, &self.epoll, i as u64);
            let Some(s) = self.slots.get_mut(i) else { return };
            match opened {
                Ok(socket) => {
                    s.socket = Some(socket);
                    s.connecting = true;
                    s.waiting = Some(t);
                }
                Err(_) => s.due = t + RECONNECT,
            }
            return;
        }
        // One request at a time: the flow's own request is still out, so this slot passes.
        if s.waiting.is_none() {
            s.waiting = Some(t);
            let sent = s.socket.as_ref().map(|mut c| c.write(REQUEST));
            if let Some(Err(e)) = sent {
                self.broke(i, t, Class::of(&e));
            }
        }
    }

    fn stalled(&mut self, i: usize, t: Ns) {
        if let Some(w) = self.slots.get(i).and_then(|s| s.waiting)
            && t.saturating_sub(w) >= STALL
        {
            self.broke(i, w, Class::Timeout);
        }
    }

    fn broke(&mut self, i: usize, at: Ns, class: Class) {
        let Some(s) = self.slots.get_mut(i) else { return };
        if let (Some(f), Ok(mut flows)) = (s.flow, self.flows.lock())
            && let Some(flow) = flows.get_mut(f)
        {
            flow.broken = Some((at, class));
        }
        if let Some(socket) = &s.socket {
            super::forget(&self.epoll, socket);
        }
        *s = Slot::idle(now() + RECONNECT);
    }

    fn read(&mut self, i: usize) {
        let Some(s) = self.slots.get_mut(i) else { return };
        let Some(socket) = s.socket.as_mut() else { return };
        if let Ok(Some(e)) = socket.take_error() {
            return self.broke(i, now(), Class::of(&e));
        }
        if s.connecting {
            match socket.write(REQUEST) {
                Ok(_) => {
                    s.connecting = false;
                    // Writable again is of no interest.
                    let again = epoll::EventData::new_u64(i as u64);
                    let _known = epoll::modify(&self.epoll, &*socket, again, epoll::EventFlags::IN);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::NotConnected => return,
                Err(e) => return self.broke(i, now(), Class::of(&e)),
            }
        }
        let mut b = [0; 4096];
        loop {
            match socket.read(&mut b) {
                Ok(0) => return self.broke(i, now(), Class::Truncated),
                Ok(n) => s.buffer.extend_from_slice(&b[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return self.broke(i, now(), Class::of(&e)),
            }
        }
        match parse_response(&s.buffer) {
            Response::Partial => {}
            Response::Complete(200, node, used) => {
                s.buffer.drain(..used);
                s.waiting = None;
                self.answered(i, node);
            }
            Response::Complete(..) | Response::Garbage => self.broke(i, now(), Class::Wrong),
        }
    }

    fn answered(&mut self, i: usize, node: u8) {
        let (Some(s), Ok(mut flows)) = (self.slots.get_mut(i), self.flows.lock()) else { return };
        let f = *s.flow.get_or_insert_with(|| {
            flows.push(Flow { established: now(), broken: None, requests: 0, node });
            flows.len() - 1
        });
        if let Some(flow) = flows.get_mut(f) {
            flow.requests += 1;
        }
    }
}

//! UDP flows: a datagram every two seconds, which is all that keeps the kernel's entry alive, and an answer that says
//! whether the backend knows the session. A session whose datagrams come to another backend, or from another port,
//! isn't known there: the flow is broken, though its datagrams are answered.

use super::net::Path;
use super::record::{Counted, Kind, Record};
use super::server::Datagram;
use crate::clock::{MS, Ns, SECOND, now};
use crate::load::{Stopper, forget, wait};
use crate::metrics::{Class, Flow};
use crate::netns::Netns;
use anyhow::Result;
use rustix::event::epoll;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Time between two datagrams of a flow.
const KEEPALIVE: Ns = 2 * SECOND;
/// Time between two of the questions at the end.
const LAST: Ns = 300 * MS;
/// So many unanswered in a row break a flow.
const UNANSWERED: u32 = 3;

/// The running clients.
#[derive(Debug)]
pub struct Sessions {
    stopper: Stopper,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Sessions {
    /// Begins `count` of them from `ns`, spread over all ways.
    ///
    /// # Errors
    /// The namespace, or the thread.
    pub fn start(ns: &Netns, count: usize) -> Result<Self> {
        let records = Arc::new(Mutex::new(Vec::new()));
        let (ns, shared) = (ns.clone(), records.clone());
        let stopper = Stopper::spawn("flow-udp", move |stop| {
            ns.enter()?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let t = now();
            let slot =
                |i: usize| Slot::new(Path::ALL[i % Path::ALL.len()], t + 500 * MS * i as u64 / count.max(1) as u64);
            Loop { epoll, slots: (0..count).map(slot).collect(), records: shared, next: 1 }.run(stop)
        })?;
        Ok(Self { stopper, records })
    }

    /// The thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// As [`super::client::Clients::counted`].
    #[must_use]
    pub fn counted(&self) -> Counted {
        Counted::of(&self.records)
    }

    /// Asks every flow once more, and returns what became of all there were.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<Record>> {
        self.stopper.finish()?;
        Ok(self.records.lock().map(|r| r.clone()).unwrap_or_default())
    }
}

struct Slot {
    path: Path,
    socket: Option<UdpSocket>,
    flow: u64,
    number: u32,
    unanswered: u32,
    record: Option<usize>,
    due: Ns,
}

impl Slot {
    fn new(path: Path, due: Ns) -> Self {
        Self { path, socket: None, flow: 0, number: 0, unanswered: 0, record: None, due }
    }
}

struct Loop {
    epoll: OwnedFd,
    slots: Vec<Slot>,
    records: Arc<Mutex<Vec<Record>>>,
    next: u64,
}

impl Loop {
    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        while !stop() {
            let t = now();
            (0..self.slots.len()).for_each(|i| self.turn(i, t, KEEPALIVE));
            self.receive()?;
        }
        // At the end none may be left that nobody has asked since the last move.
        for s in self.slots.iter_mut().filter(|s| s.record.is_some()) {
            (s.due, s.unanswered) = (0, 0);
        }
        let mut asked = vec![0; self.slots.len()];
        let end = now() + LAST * u64::from(UNANSWERED + 1);
        while now() < end {
            let t = now();
            for (i, asked) in asked.iter_mut().enumerate() {
                let s = &self.slots[i];
                let answered = *asked > 0 && s.unanswered == 0;
                if s.record.is_some() && !answered && t >= s.due && *asked <= UNANSWERED {
                    *asked += 1;
                    self.slots[i].due = t;
                    self.turn(i, t, LAST);
                }
            }
            self.receive()?;
        }
        Ok(())
    }

    fn turn(&mut self, i: usize, t: Ns, interval: Ns) {
        if t < self.slots[i].due {
            return;
        }
        if self.slots[i].unanswered >= UNANSWERED {
            return self.broke(i, Class::Timeout);
        }
        if self.slots[i].socket.is_none() && !self.begin(i) {
            self.slots[i].due = t + interval;
            return;
        }
        let s = &mut self.slots[i];
        s.due = t + interval;
        // A session begins anew until it was answered once.
        let number = if s.record.is_none() { 0 } else { s.number };
        s.number += 1;
        s.unanswered += 1;
        if let Some(u) = &s.socket {
            let _lost = u.send(&Datagram { flow: s.flow, number, known: false }.bytes());
        }
    }

    fn begin(&mut self, i: usize) -> bool {
        let s = &mut self.slots[i];
        let to = s.path.address();
        let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let open = || -> std::io::Result<UdpSocket> {
            let u = UdpSocket::bind((any, 0))?;
            u.set_nonblocking(true)?;
            u.connect(to)?;
            epoll::add(&self.epoll, &u, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)?;
            Ok(u)
        };
        let Ok(u) = open() else { return false };
        (s.socket, s.flow) = (Some(u), self.next);
        self.next += 1;
        true
    }

    fn receive(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        wait(&self.epoll, &mut events, 20 * MS)?;
        for e in &events {
            self.read(e.data.u64() as usize);
        }
        Ok(())
    }

    fn read(&mut self, i: usize) {
        let mut b = [0; 64];
        while let Some(s) = self.slots.get_mut(i)
            && let Some(u) = &s.socket
        {
            // Errors are the network's for now: what isn't answered counts, whatever the reason.
            let n = match u.recv(&mut b) {
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => continue,
            };
            let Some(d) = b.get(..n).and_then(Datagram::read).filter(|d| d.flow == s.flow) else { continue };
            if !d.known {
                return self.broke(i, Class::Wrong);
            }
            s.unanswered = 0;
            let Ok(mut records) = self.records.lock() else { return };
            let at = *s.record.get_or_insert_with(|| {
                records.push(Record { whole: true, ..Record::new(Kind::Udp, s.path) });
                records.len() - 1
            });
            if let Some(r) = records.get_mut(at) {
                r.moved += n as u64;
                r.flow = Flow { requests: r.flow.requests + 1, ..r.flow };
            }
        }
    }

    fn broke(&mut self, i: usize, class: Class) {
        let s = &mut self.slots[i];
        if let (Some(at), Ok(mut records)) = (s.record, self.records.lock())
            && let Some(r) = records.get_mut(at)
        {
            (r.flow.broken, r.whole) = (Some((now(), class)), false);
        }
        if let Some(u) = &s.socket {
            forget(&self.epoll, u);
        }
        *s = Slot::new(s.path, now() + 100 * MS);
    }
}

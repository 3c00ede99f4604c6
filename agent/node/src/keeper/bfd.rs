//! The BFD sessions that the keeper runs: as the worker last asked for them, whether one lives or not.
//!
//! The protocol is [`holdfast_bfd`]'s. Here is which sessions there are, what the worker is told of them, and what
//! becomes of them when what they stand for is gone.

use super::Out;
use super::ipc::{BFD_MAX, BfdReport, BfdSpec, BfdState, ToWorker};
use super::types::{Event, Output};
use holdfast_bfd::{Datagram, Discriminator, Event as Did, Peer, Session, State, Table, Timers};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// From a socket that couldn't be opened, or that fails, to the next try.
const RETRY: Duration = Duration::from_secs(1);
/// How long a session that was taken down is kept so that the neighbour sees it, when we stop.
const SEEN_MAX: Duration = Duration::from_secs(1);
/// What is told of a session within [`PER`]: anybody on the segment can make it change with each packet, and neither
/// the log nor a worker keeps up with that.
const REPORTS: usize = 10;
/// See [`REPORTS`].
const PER: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Socket {
    /// The caller opens it.
    Opening,
    Open,
    /// It is open and doesn't send, which may be the network's fault: it goes on, and is opened again then.
    Failing {
        retry_at: Instant,
    },
    /// It can't be opened: tried again then.
    Failed {
        retry_at: Instant,
    },
}

#[derive(Debug)]
struct Entry {
    spec: BfdSpec,
    socket: Socket,
    problem: Option<String>,
    /// As it is, and since when it is in this state.
    state: BfdState,
    diag: u8,
    since: Instant,
    told: Told,
    /// Not wanted any more, and says so.
    leaving: bool,
}

/// What the worker, and the log, were told last.
#[derive(Debug)]
struct Told {
    state: BfdState,
    diag: u8,
    problem: Option<String>,
    /// Changes since then, which are told of as one when that may be.
    changes: u32,
    /// The last ones, the oldest first: at most [`REPORTS`].
    at: VecDeque<Instant>,
}

impl Told {
    /// When the next one may be. `None`: at any time.
    fn next(&self) -> Option<Instant> {
        self.at.front().filter(|_| self.at.len() >= REPORTS).map(|oldest| *oldest + PER)
    }

    fn count(&mut self, now: Instant) {
        if self.at.len() >= REPORTS {
            self.at.pop_front();
        }
        self.at.push_back(now);
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Bfd {
    table: Table,
    entries: BTreeMap<Discriminator, Entry>,
    /// Set while sessions are held down since nothing serves behind them: until then the neighbours must see it.
    seen_at: Option<Instant>,
}

impl Bfd {
    pub(super) fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), entries: BTreeMap::new(), seen_at: None }
    }

    /// Makes the sessions those that a living worker wants, and tells it of each.
    pub(super) fn want(&mut self, now: Instant, specs: Vec<BfdSpec>, out: &mut Out) {
        // It has just said that it is there, and will see to what is behind them.
        self.seen_at = None;
        let gone = self.entries.iter().filter(|(_, e)| !specs.iter().any(|spec| is_same_path(spec, &e.spec)));
        let gone: Vec<Discriminator> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.leave(now, id);
        }
        for spec in specs {
            self.want_one(now, spec, out);
        }
        self.pump(now, out);
        for entry in self.entries.values_mut().filter(|entry| !entry.leaving) {
            entry.log(out);
            entry.report(now, out);
        }
    }

    fn want_one(&mut self, now: Instant, spec: BfdSpec, out: &mut Out) {
        let Ok(timers) = Timers::new(spec.interval, spec.multiplier) else {
            out.event(Event::Refused { what: "BFD times that are out of range" });
            return;
        };
        let known = self.entries.iter_mut().find(|(_, entry)| is_same_path(&spec, &entry.spec));
        let Some((id, entry)) = known else {
            self.add(now, spec, timers, out);
            return;
        };
        if let Some(peer) = self.table.peer_mut(*id) {
            peer.min_ttl = spec.min_ttl;
        }
        entry.spec = spec;
        entry.leaving = false;
        self.table.with(*id, |session| {
            session.set_serving(now, true);
            session.admin_up(now);
            session.set_timers(now, timers);
        });
    }

    fn add(&mut self, now: Instant, spec: BfdSpec, timers: Timers, out: &mut Out) {
        if self.entries.len() >= BFD_MAX {
            out.event(Event::Refused { what: "too many BFD sessions" });
            return;
        }
        let peer = Peer {
            local: spec.local,
            min_ttl: spec.min_ttl,
            multihop: spec.multihop,
            ..Peer::single_hop(spec.remote, None)
        };
        let id = self.table.add(now, peer, timers);
        out.push(Output::OpenBfd { session: id, spec: Box::new(spec.clone()) });
        let entry = Entry {
            spec,
            socket: Socket::Opening,
            problem: None,
            state: BfdState::Down,
            diag: 0,
            since: now,
            told: Told { state: BfdState::Down, diag: 0, problem: None, changes: 0, at: VecDeque::new() },
            leaving: false,
        };
        self.entries.insert(id, entry);
    }

    fn leave(&mut self, now: Instant, id: Discriminator) {
        if let Some(entry) = self.entries.get_mut(&id)
            && !std::mem::replace(&mut entry.leaving, true)
        {
            self.table.with(id, |session| session.admin_down(now));
        }
    }

    /// What the neighbours reach through us is gone, and nobody else tells them: Down, which they act upon, and never
    /// AdminDown, which they don't.
    pub(super) fn forsake(&mut self, now: Instant, out: &mut Out) {
        let mut seen = now;
        for id in self.entries.keys() {
            self.table.with(*id, |session| {
                seen = seen.max(now + session.remote_detection_time().min(SEEN_MAX));
                session.set_serving(now, false);
            });
        }
        self.seen_at = Some(seen);
        self.pump(now, out);
    }

    /// We stop, and no worker is left that could want any. What is held down stays so, and the others say AdminDown.
    pub(super) fn leave_all(&mut self, now: Instant, out: &mut Out) {
        let ids: Vec<Discriminator> = self.entries.keys().copied().collect();
        match self.seen_at {
            Some(at) if at > now => {}
            Some(_) => ids.into_iter().for_each(|id| self.close(id, out)),
            None => ids.into_iter().for_each(|id| self.leave(now, id)),
        }
        self.pump(now, out);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A datagram has come.
    pub(super) fn receive(&mut self, now: Instant, datagram: &Datagram<'_>, out: &mut Out) {
        let Ok(id) = self.table.receive(now, datagram) else { return };
        self.observe(now, id, out);
        self.pump(now, out);
    }

    /// Whatever is due.
    pub(super) fn timer(&mut self, now: Instant, out: &mut Out) {
        self.table.timer(now);
        self.pump(now, out);
        for entry in self.entries.values_mut().filter(|entry| entry.owes_at().is_some_and(|at| at <= now)) {
            entry.tell(now, out);
        }
    }

    /// Opens again what failed.
    pub(super) fn retry(&mut self, now: Instant, out: &mut Out) {
        for (id, entry) in &mut self.entries {
            if entry.socket.retry_at().is_some_and(|at| at <= now) {
                entry.socket = Socket::Opening;
                out.push(Output::OpenBfd { session: *id, spec: Box::new(entry.spec.clone()) });
            }
        }
    }

    /// Its socket is open, on this interface if it is bound to one.
    pub(super) fn opened(&mut self, id: Discriminator, ifindex: Option<u32>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.socket = Socket::Open;
        if let Some(peer) = self.table.peer_mut(id) {
            peer.ifindex = ifindex;
        }
    }

    /// It sends, for the first time or again.
    pub(super) fn sends(&mut self, now: Instant, id: Discriminator, out: &mut Out) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Socket::Failing { .. } = entry.socket {
            entry.socket = Socket::Open;
        }
        if entry.problem.take().is_some() {
            entry.changed(now, out);
        }
    }

    /// Its socket can't be opened, or, if `open`, doesn't send.
    pub(super) fn failed(&mut self, now: Instant, id: Discriminator, why: String, open: bool, out: &mut Out) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let retry_at = now + RETRY;
        match entry.socket {
            Socket::Failing { .. } if open => {}
            _ if open => entry.socket = Socket::Failing { retry_at },
            _ => entry.socket = Socket::Failed { retry_at },
        }
        if entry.problem.as_ref() == Some(&why) || entry.leaving {
            return;
        }
        entry.problem = Some(why);
        entry.changed(now, out);
    }

    /// When [`Self::timer`] is due: to the microsecond, and often.
    pub(super) fn session_timeout(&self) -> Option<Instant> {
        let owed = self.entries.values().filter_map(|entry| entry.owes_at());
        owed.chain(self.table.poll_timeout()).min()
    }

    /// When [`Self::retry`] is.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.socket.retry_at()).min()
    }

    /// While we stop.
    pub(super) fn seen_at(&self) -> Option<Instant> {
        self.seen_at.filter(|_| !self.entries.is_empty())
    }

    /// What the sessions want done.
    fn pump(&mut self, now: Instant, out: &mut Out) {
        while let Some((id, did)) = self.table.poll_event() {
            match did {
                Did::Send { bytes } => {
                    // Without a socket it is lost, like any packet.
                    let open = |entry: &Entry| matches!(entry.socket, Socket::Open | Socket::Failing { .. });
                    if self.entries.get(&id).is_some_and(open) {
                        out.push(Output::SendBfd { session: id, bytes });
                    }
                }
                Did::State { .. } => self.observe(now, id, out),
                Did::Left => {
                    if self.entries.get(&id).is_some_and(|entry| entry.leaving) {
                        self.close(id, out);
                    }
                }
            }
        }
    }

    fn close(&mut self, id: Discriminator, out: &mut Out) {
        self.entries.remove(&id);
        self.table.remove(id);
        out.push(Output::CloseBfd { session: id });
    }

    /// Tells the worker if there is news.
    fn observe(&mut self, now: Instant, id: Discriminator, out: &mut Out) {
        let (Some(entry), Some(session)) = (self.entries.get_mut(&id), self.table.session(id)) else { return };
        let (state, diag) = (standing(session), session.diagnostic().code());
        if (entry.state, entry.diag) == (state, diag) {
            return;
        }
        let from = std::mem::replace(&mut entry.state, state);
        entry.diag = diag;
        if from != state {
            entry.since = now;
        }
        entry.changed(now, out);
    }
}

impl Socket {
    fn retry_at(&self) -> Option<Instant> {
        match self {
            Self::Failing { retry_at } | Self::Failed { retry_at } => Some(*retry_at),
            Self::Opening | Self::Open => None,
        }
    }
}

impl Entry {
    /// Tells of a change now or when that may be; the loss of a session that the worker counts on at once. Of those there
    /// are no more than of the others, since it has been told of each that it came up.
    fn changed(&mut self, now: Instant, out: &mut Out) {
        if self.leaving {
            return;
        }
        self.told.changes = self.told.changes.saturating_add(1);
        let lost = self.told.state == BfdState::Up && self.state != BfdState::Up;
        if lost || self.told.next().is_none_or(|at| at <= now) {
            self.tell(now, out);
        }
    }

    /// When changes that were not told are to be.
    fn owes_at(&self) -> Option<Instant> {
        self.told.next().filter(|_| self.told.changes > 0 && !self.leaving)
    }

    fn is_news(&self) -> bool {
        let Told { state, diag, problem, .. } = &self.told;
        (*state, *diag, problem) != (self.state, self.diag, &self.problem)
    }

    fn tell(&mut self, now: Instant, out: &mut Out) {
        self.told.count(now);
        let news = self.is_news();
        self.log(out);
        if news {
            self.report(now, out);
        }
    }

    /// To be called before [`Self::report`].
    fn log(&mut self, out: &mut Out) {
        let Self { state: to, diag, .. } = *self;
        let neighbor = self.spec.neighbor.clone();
        // One of them is the one that is told.
        let left_out = std::mem::take(&mut self.told.changes).saturating_sub(u32::from(self.is_news()));
        if left_out > 0 || (self.told.state, self.told.diag) != (to, diag) {
            out.event(Event::Bfd { neighbor: neighbor.clone(), from: self.told.state, to, diag, left_out });
        }
        if let Some(what) = self.problem.clone().filter(|_| self.told.problem != self.problem) {
            out.event(Event::BfdProblem { neighbor, what });
        }
    }

    fn report(&mut self, now: Instant, out: &mut Out) {
        (self.told.state, self.told.diag) = (self.state, self.diag);
        self.told.problem.clone_from(&self.problem);
        out.push(Output::SendToWorker(ToWorker::Bfd(BfdReport {
            neighbor: self.spec.neighbor.clone(),
            state: self.state,
            diag: self.diag,
            since: now.saturating_duration_since(self.since),
            problem: self.problem.clone(),
        })));
    }
}

/// Whether one session serves both: only its times and what it takes may differ.
fn is_same_path(a: &BfdSpec, b: &BfdSpec) -> bool {
    let path = |spec: &BfdSpec| (spec.local, spec.remote, spec.multihop);
    a.neighbor == b.neighbor && a.interface == b.interface && path(a) == path(b)
}

/// The session's state as it concerns the worker: what the neighbour's operator took down isn't broken.
fn standing(session: &Session) -> BfdState {
    match (session.state(), session.remote().state) {
        (State::AdminDown, _) | (State::Down, State::AdminDown) => BfdState::AdminDown,
        (State::Down, _) => BfdState::Down,
        (State::Init, _) => BfdState::Init,
        (State::Up, _) => BfdState::Up,
    }
}

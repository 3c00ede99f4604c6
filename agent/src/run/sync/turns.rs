//! The loop: moves what the kernel and the peers say to the flow side, and does what that asks for.
//!
//! A turn does a bounded amount of everything. After events were *read* and before they are handled it takes in whose the
//! VIPs are: what is queued by the protocol thread before it removes an address then fences the flows that the kernel
//! forgets with it.

use super::audits::Audits;
use super::kernel::Kernel;
use super::link::{Ends, Of, Order};
use super::query::{Answer, Asked, SyncFigures};
use super::telling::{self, Lag, Telling};
use super::{Names, Setup};
use crate::os::addr::AddressSocket;
use crate::os::ct;
use crate::os::timerfd::TimerFd;
use crate::os::udp::UdpChannel;
use crate::run::queues::Note;
use holdfast_node::sync::SyncWord;
use holdfast_statesync::channel::{self, Channel, PeerId};
use holdfast_statesync::ct::Event;
use holdfast_statesync::flow::{Config, Elected, Flows, Input, Output, SourceId, VipId, Whose};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Datagrams per turn.
const DATAGRAMS: usize = 64;
/// Questions per turn.
const QUERIES: usize = 2;
/// Before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The same for a socket that a former worker may still have.
const RETRY_BIND: Duration = Duration::from_millis(100);
/// Largest datagram that is taken; a longer one is cut, and then fails its authentication.
const DATAGRAM: usize = 2_048;
/// How long the removal of replicas may take at the end; the rest goes with its lease.
const CLEAR_LIMIT: Duration = Duration::from_millis(800);
/// Figures for whoever counts.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// Turns that follow each other without a look at what is new.
const TURNS: u32 = 4;

/// Runs until the protocol thread is gone.
pub(super) async fn run(setup: Setup) {
    let Setup { flow, channel, listen, names, run, room, seeds, figures, mut ends } = setup;
    let mut early = Vec::new();
    let Some(kernel) = open(&mut ends, &names, (run, room), &mut early).await else { return };
    let now = Instant::now();
    let timer = match TimerFd::new() {
        Ok(timer) => timer,
        Err(e) => {
            // The words stay out: the node counts nothing as replicated.
            let _ = ends.notes.try_send(Note::Sync(e));
            return;
        }
    };
    let config = Config { port_id: kernel.port_id().unwrap_or(0), ..flow };
    let peers = names.peers.len();
    let mut sync = Sync {
        flows: Flows::new(config, seeds[0], now),
        channel: Channel::new(channel, seeds[1], now).carrying_batches(),
        socket: None,
        bind_at: Some(now),
        bind_failed: None,
        bind_failures: 0,
        listen,
        kernel,
        kernel_failed: None,
        ends,
        names,
        run,
        elected: Vec::new(),
        timer,
        buffer: vec![0; DATAGRAM],
        telling: Telling::new(now),
        lag: Lag::new(peers, now),
        restless: false,
        streak: 0,
        over: false,
        others: None,
        room,
        audits: Audits::default(),
        bytes: vec![[0; 2]; peers],
        wire_bytes: [0; 2],
        figures,
        figures_at: now,
    };
    sync.elected = vec![Elected::Unknown; sync.names.vips.len()];
    early.into_iter().for_each(|order| sync.order(now, order));
    sync.carry_out(now);
    sync.turns().await;
}

/// Opens the kernel's table, however long that takes. Meanwhile it says why nothing is replicated. `None`: nobody listens
/// any more.
async fn open(ends: &mut Ends, names: &Names, (run, room): (u64, usize), early: &mut Vec<Order>) -> Option<Kernel> {
    let mut said = String::new();
    loop {
        let why = match Kernel::open(room) {
            Ok(kernel) => return Some(kernel),
            Err(why) => why,
        };
        said.clone_from(&why);
        let word = SyncWord { run, vips: Vec::new(), peers: Vec::new(), lag: None, trouble: Some(why) };
        let _ = ends.words.try_send(word);
        let limit = tokio::time::Instant::now() + RETRY;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(limit) => break,
                order = ends.orders.recv() => {
                    let order @ Order::Elected { of: new, .. } = order? else { return None };
                    // The last of each unit is what counts.
                    early.retain(|known| !matches!(known, Order::Elected { of, .. } if *of == new));
                    early.push(order);
                }
                Some(asked) = ends.queries.recv() => {
                    let summary = names.empty_summary(&said);
                    let answer = match asked.query {
                        super::query::Query::Summary => Answer::Summary(summary),
                        _ => Answer::Refused(said.clone()),
                    };
                    let _ = asked.reply.send(answer);
                }
            }
        }
    }
}

pub(super) struct Sync {
    pub(super) flows: Flows,
    pub(super) channel: Channel,
    socket: Option<UdpChannel>,
    /// When to bind it, while it isn't.
    bind_at: Option<Instant>,
    bind_failed: Option<String>,
    bind_failures: u32,
    listen: SocketAddr,
    pub(super) kernel: Kernel,
    /// Why it has to be opened again, and when.
    kernel_failed: Option<(String, Instant)>,
    ends: Ends,
    pub(super) names: Names,
    run: u64,
    /// Whose each VIP is, as told.
    pub(super) elected: Vec<Elected>,
    timer: TimerFd,
    buffer: Vec<u8>,
    telling: Telling,
    pub(super) lag: Lag,
    /// Something has happened since the last look whether there is something to say.
    restless: bool,
    streak: u32,
    over: bool,
    /// Who else sets masks of events, as of when.
    pub(super) others: Option<(Instant, Vec<String>)>,
    /// Bytes of room for unread events.
    room: usize,
    pub(super) audits: Audits,
    /// Of batches, to and from each peer.
    pub(super) bytes: Vec<[u64; 2]>,
    /// Of datagrams, out and in.
    pub(super) wire_bytes: [u64; 2],
    figures: watch::Sender<Arc<SyncFigures>>,
    figures_at: Instant,
}

impl Sync {
    async fn turns(&mut self) {
        while !self.over {
            poll_fn(|cx| self.poll_turn(cx)).await;
            self.streak += 1;
            if self.streak.is_multiple_of(TURNS) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// One turn; ready if anything was done.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut busy = self.turn_kernel(cx);
        busy |= self.turn_channel(cx);
        busy |= self.turn_dump();
        busy |= self.turn_write();
        busy |= self.turn_clock();
        busy |= self.turn_queries(cx);
        self.restless |= busy;
        self.tell();
        if busy || self.over {
            return Poll::Ready(());
        }
        let due = self.due();
        if due <= Instant::now() {
            return Poll::Ready(());
        }
        self.streak = 0;
        // Can't fail for these arguments; if it did, the next datagram or event would wake us. Each event moves the
        // deadlines of what it sent a little further: that alone is no reason to set the timer anew.
        let _ = self.timer.arm_no_later(due);
        self.timer.poll_expired(cx).map(|_| ())
    }

    fn due(&self) -> Instant {
        let reopen = self.kernel_failed.as_ref().map(|(_, at)| *at);
        let all = [self.flows.poll_timeout(), self.channel.poll_timeout(), self.bind_at, reopen];
        let telling = self.telling.due(self.restless);
        all.into_iter().flatten().chain([telling]).min().unwrap_or(telling)
    }

    /// Whose the VIPs are. True if something was said.
    fn take_orders(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut any = false;
        while let Poll::Ready(order) = self.ends.orders.poll_recv(cx) {
            any = true;
            let Some(order) = order else {
                self.over = true;
                break;
            };
            self.order(now, order);
        }
        any
    }

    fn order(&mut self, now: Instant, order: Order) {
        let (of, elected) = match order {
            Order::Elected { of, elected } => (of, elected),
            Order::Clear => {
                self.over = true;
                self.clear(now);
                return;
            }
        };
        match of {
            Of::Vip(vip) => {
                if let Some(known) = self.elected.get_mut(usize::from(vip)) {
                    *known = elected;
                }
                self.flows.handle(now, Input::Elected { vip: VipId(vip), elected });
            }
            Of::Source(source) => {
                self.flows.handle(now, Input::SourceElected { source: SourceId(source), elected });
            }
        }
    }

    fn turn_kernel(&mut self, cx: &mut Context<'_>) -> bool {
        let seen = if self.kernel_failed.is_some() {
            Default::default()
        } else {
            self.kernel.poll_read(cx).unwrap_or_else(|e| {
                self.fail(format!("events of the connection table: {e}"));
                Default::default()
            })
        };
        let now = Instant::now();
        let told = self.take_orders(cx, now);
        if !seen.any && !seen.ready && !told {
            return false;
        }
        let events = self.kernel.take(seen);
        let any = told || !events.0.is_empty() || !events.1.is_empty() || seen.overrun;
        if any {
            let before = Lag::before(&self.flows, self.names.peers.len());
            // Looked for only while it is of use: under load that is seldom.
            let happened = self.lag.is_free().then(|| self.first_change(now, &events)).flatten();
            self.audits.unread |= seen.overrun;
            for event in events.0.iter().chain(&events.1) {
                self.flows.handle(now, Input::Kernel(event));
            }
            if seen.overrun {
                self.audits.unread = true;
                self.flows.handle(now, Input::Overrun);
            }
            if seen.drained {
                self.flows.handle(now, Input::Drained);
            }
            self.carry_out(now);
            self.lag.sent(&self.flows, &before, now, happened);
        }
        self.kernel.give_back(events);
        any || seen.any
    }

    fn turn_channel(&mut self, cx: &mut Context<'_>) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut count = 0;
        while count < DATAGRAMS
            && let Some(socket) = &self.socket
            && let Poll::Ready(received) = socket.poll_recv(cx, &mut buffer)
        {
            count += 1;
            // An error is an answer of the network to what we sent: the peer's silence says as much.
            if let Ok((n, from)) = received {
                let now = Instant::now();
                let bytes = buffer.get(..n).unwrap_or_default();
                self.wire_bytes[1] += bytes.len() as u64;
                self.channel.handle(now, channel::Input::Datagram { from, bytes });
                self.flush_channel(now);
                self.carry_out(now);
            }
        }
        self.buffer = buffer;
        if count > 0 {
            self.lag.look(&self.flows, Instant::now());
        }
        count > 0
    }

    fn turn_dump(&mut self) -> bool {
        if !self.kernel.is_dumping() {
            return false;
        }
        let now = Instant::now();
        let flows = &mut self.flows;
        if let Some(complete) = self.kernel.read_dump(|entry| flows.handle(now, Input::Dumped(entry))) {
            self.audits.ended(complete);
            self.flows.handle(now, Input::DumpEnd { complete });
        }
        self.carry_out(now);
        true
    }

    fn turn_write(&mut self) -> bool {
        if !self.kernel.has_ops() || self.kernel_failed.is_some() {
            return false;
        }
        let now = Instant::now();
        for (ticket, result) in self.kernel.write() {
            self.flows.handle(now, Input::Done { ticket: *ticket, result: *result });
        }
        self.carry_out(now);
        true
    }

    fn turn_clock(&mut self) -> bool {
        let now = Instant::now();
        let mut busy = false;
        if self.flows.poll_timeout().is_some_and(|at| at <= now) {
            self.flows.handle(now, Input::Timer);
            busy = true;
        }
        if self.channel.poll_timeout().is_some_and(|at| at <= now) {
            self.channel.handle(now, channel::Input::Timer);
            self.flush_channel(now);
            busy = true;
        }
        if self.bind_at.is_some_and(|at| at <= now) {
            self.bind(now);
            busy = true;
        }
        if self.kernel_failed.as_ref().is_some_and(|(_, at)| *at <= now) {
            self.reopen(now);
            busy = true;
        }
        if busy {
            self.carry_out(now);
        }
        busy
    }

    fn turn_queries(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        for _ in 0..QUERIES {
            // None: the runtime has ended, and this thread will soon.
            let Poll::Ready(Some(Asked { query, reply })) = self.ends.queries.poll_recv(cx) else { break };
            any = true;
            let answer = self.answer(Instant::now(), &query);
            // Err: who asked is gone.
            let _ = reply.send(answer);
        }
        any
    }

    fn bind(&mut self, now: Instant) {
        match UdpChannel::bind_for_flows(self.listen) {
            Ok(socket) => {
                self.socket = Some(socket);
                self.bind_at = None;
                (self.bind_failed, self.bind_failures) = (None, 0);
            }
            Err(e) => {
                // A former worker may have it for some moments yet: no trouble yet.
                self.bind_failures += 1;
                self.bind_failed = (self.bind_failures > 3).then(|| format!("bind {}: {e}", self.listen));
                self.bind_at = Some(now + RETRY_BIND);
            }
        }
    }

    fn fail(&mut self, why: String) {
        self.kernel_failed = Some((why, Instant::now() + RETRY));
    }

    /// All sockets anew; what was lost meanwhile is found by reading the whole table.
    fn reopen(&mut self, now: Instant) {
        match Kernel::open(self.room) {
            Ok(mut kernel) => {
                self.kernel.take_ops().into_iter().for_each(|(ticket, op)| kernel.push(ticket, op));
                kernel.refusals = std::mem::take(&mut self.kernel.refusals);
                let dumping = self.kernel.is_dumping();
                self.kernel = kernel;
                self.kernel_failed = None;
                self.flows.set_port_id(self.kernel.port_id().unwrap_or(0));
                if dumping {
                    self.flows.handle(now, Input::DumpEnd { complete: false });
                }
                self.flows.handle(now, Input::Overrun);
            }
            Err(why) => self.kernel_failed = Some((why, now + RETRY)),
        }
    }

    /// Does all that the flow side asks for.
    fn carry_out(&mut self, now: Instant) {
        while let Some(output) = self.flows.poll_output() {
            match output {
                Output::Send { peer, bytes } => {
                    self.count_bytes(peer, 0, bytes.len());
                    self.channel.handle(now, channel::Input::SendBatch { peer, bytes: &bytes });
                    self.flush_channel(now);
                    self.flows.reuse(bytes);
                }
                Output::Kernel { ticket, op } => self.kernel.push(ticket, op),
                Output::Dump => self.begin_audit(now),
                // Full: the journal lacks it; the status has what counts.
                Output::Event(event) => drop(self.ends.events.try_send(event)),
            }
        }
    }

    /// Has the kernel's table looked at: all of it, or only what we know of, where that is a small part of it.
    fn begin_audit(&mut self, now: Instant) {
        // It goes with what the host is called now, without what it was called when it can't be said.
        if let Ok(local) = AddressSocket::open().and_then(|mut socket| socket.dump_addresses()) {
            self.flows.set_local(local.into_iter().map(|address| address.ip));
        }
        let told_all = self.others.as_ref().is_none_or(|(_, others)| others.is_empty());
        let entries = ct::entries().unwrap_or(0);
        if told_all && self.audits.by_name(entries as usize, self.flows.records()) {
            let here = self.flows.list().filter(|flow| flow.here);
            let names = here.map(|flow| flow.key).collect();
            self.kernel.begin_look(names);
        } else if let Err(e) = self.kernel.begin_dump() {
            self.flows.handle(now, Input::DumpEnd { complete: false });
            self.fail(format!("dump of the connection table: {e}"));
        }
    }

    /// When the first of these changes happened that peers are told of, if the kernel says.
    fn first_change(&self, now: Instant, events: &(Vec<Event>, Vec<Event>)) -> Option<Instant> {
        let own = self.kernel.port_id()?;
        let all = events.0.iter().chain(&events.1).filter(|event| event.port_id != own);
        let ours = all.filter(|event| self.flows.why_not(&event.entry).is_none());
        telling::when(now, ours.filter_map(|event| event.entry.event_ns).min()?)
    }

    fn count_bytes(&mut self, peer: PeerId, direction: usize, bytes: usize) {
        let counts = self.bytes.get_mut(usize::from(peer.0)).and_then(|counts| counts.get_mut(direction));
        if let Some(count) = counts {
            *count += bytes as u64;
        }
    }

    /// Removes all replicas from the kernel: they are of use to nobody here, and would stay for their lease. What is ours by
    /// its packets stays.
    fn clear(&mut self, now: Instant) {
        let foreign = self.flows.list().filter(|flow| flow.here && flow.owner != Whose::Ours);
        let keys: Vec<_> = foreign.map(|flow| flow.key).collect();
        self.kernel.clear(&keys, now + CLEAR_LIMIT);
    }

    fn flush_channel(&mut self, now: Instant) {
        while let Some(output) = self.channel.poll_output() {
            match output {
                channel::Output::Transmit { to, bytes } => {
                    self.wire_bytes[0] += bytes.len() as u64;
                    // What is lost is sent again.
                    let _ = self.socket.as_ref().map(|socket| socket.send(to, &bytes));
                }
                channel::Output::Batch { peer, bytes, .. } => {
                    self.count_bytes(peer, 1, bytes.len());
                    self.flows.handle(now, Input::Batch { peer, bytes: &bytes });
                }
                channel::Output::Up { peer, .. } => self.flows.handle(now, Input::PeerUp { peer }),
                channel::Output::Down { peer } => self.flows.handle(now, Input::PeerDown { peer }),
                // The control lane's are on a channel of their own.
                channel::Output::Received { .. } => {}
            }
        }
    }

    fn tell(&mut self) {
        let now = Instant::now();
        if self.restless {
            let flows = &self.flows;
            self.telling.note(|peer| flows.is_flushed(peer), self.names.peers.len());
        }
        if now >= self.figures_at {
            self.figures_at = now + FIGURES_EVERY;
            let figures = self.figures(now);
            self.figures.send_replace(Arc::new(figures));
        }
        if now < self.telling.due(self.restless) {
            return;
        }
        let (flows, lag, trouble) = (&self.flows, self.lag.median(), self.trouble());
        let counts = (self.run, self.names.vips.len(), self.names.peers.len());
        let said = self.telling.look(now, |young, count| {
            let word = telling::word(flows, counts, now, (young, count));
            SyncWord { lag, trouble, ..word }
        });
        // What happens from here on is new.
        self.restless = false;
        let Some(word) = said else { return };
        if self.ends.words.try_send(word.clone()).is_ok() {
            self.telling.told(now, word);
        } else {
            self.telling.refused(now);
        }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let kernel = self.kernel_failed.as_ref().map(|(why, _)| why.clone());
        kernel.or_else(|| self.bind_failed.clone())
    }
}

//! The protocol thread: one loop that moves inputs to the node and carries out what it says.
//!
//! A turn reads a bounded number of inputs from each source, adverts first; a source that has more is read on in the
//! next turn, so that no flood on one keeps another from being heard. What this loop refuses to do: touch a file,
//! format a log line, resolve a name, start a program, wait for anything but its own sources.

use super::bgp::Desk;
use super::emit::{Outcome, Outputs};
use super::flood::Flood;
use super::lateness::Histogram;
use super::link::KeeperLink;
use super::queues::{Note, ProtocolEnds};
use super::sync::SyncLink;
use crate::balancer::Process;
use crate::balancer::watch::Watcher;
use crate::keeper::channel::WorkerEnd;
use crate::keeper::pulse::Pulse;
use crate::os::monitor::{Monitor, MonitorEvent};
use crate::os::tcp::Key;
use crate::os::timerfd::TimerFd;
use crate::os::vrrp::Batch;
use crate::os::{sched, udp::UdpChannel};
use crate::reconcile::{Executor, Heard};
use holdfast_node::config::{BalancerId, BalancerKind, Config, NeighborId, ProcessSource, VipId};
use holdfast_node::io::Boot;
use holdfast_node::keeper::beat_every;
use holdfast_node::keeper::ipc::{ToKeeper, ToWorker};
use holdfast_node::{Input, Node};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Packets, datagrams or events of one source per turn.
const PER_SOURCE: usize = 64;
/// Of routers per turn: 64 KiB each at most.
const ROUTERS: usize = 8;
/// Results of what was carried out, told at once.
const RESULTS: usize = 256;
/// Messages of the keeper and deaths per turn.
const FEW: usize = 16;
/// Turns with something to do that follow each other without a look at what is new.
const TURNS: u32 = 4;
/// Operators' requests per turn.
const REQUESTS: usize = 8;
/// Between two beats to the keeper: the shortest time, in turns that happen anyway.
const BEAT_SHORTEST: Duration = Duration::from_millis(40);
/// How old the figures may get.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// Pause before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
const MONITOR_RETRY: Duration = Duration::from_millis(100);
/// Without a keeper nobody waits for us: leave within this time.
const ORPHAN_DEADLINE: Duration = Duration::from_secs(3);
/// How much later than its deadline the node may say that it has stopped.
const STOP_SLACK: Duration = Duration::from_millis(500);
/// How long the removal of replicas may take, once all is released.
const CLEAR_FLOWS: Duration = Duration::from_secs(1);
/// How long the last message may take to the keeper.
const GOODBYE: Duration = Duration::from_millis(100);

/// What the thread is given.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) config: Config,
    pub(super) boot: Boot,
    /// Of the neighbours, in their order.
    pub(super) keys: Vec<Option<Key>>,
    pub(super) keeper: WorkerEnd,
    /// Where beats go that wake nobody.
    pub(super) pulse: Option<Pulse>,
    pub(super) watcher: Watcher,
    pub(super) ends: ProtocolEnds,
    pub(super) sync: Option<SyncLink>,
}

/// How the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// All is released and the keeper knows.
    Clean,
    /// The node didn't say so in time.
    Late,
    /// Nothing is released: another worker takes over.
    Left,
}

/// Runs the loop on the calling thread until the node has stopped.
///
/// # Errors
/// A socket that nothing works without could not be opened, in words.
pub(super) fn run(setup: Setup) -> Result<Ended, String> {
    let realtime = sched::realtime(sched::PROTOCOL_PRIORITY);
    let locked = sched::lock_memory_on_fault();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("protocol thread's runtime: {e}"))?;
    let _inside = runtime.enter();
    let mut protocol = Protocol::new(setup)?;
    for reason in [realtime.err(), locked.err()].into_iter().flatten() {
        protocol.outputs.figures.not_realtime.get_or_insert_with(|| reason.to_string());
        protocol.outputs.note(Note::Not(reason));
    }
    // The loop has limits of its own; tokio's would stop it in the middle of a turn.
    Ok(runtime.block_on(tokio::task::unconstrained(protocol.turns())))
}

struct Protocol {
    node: Node,
    outputs: Outputs,
    monitor: Monitor,
    watcher: Watcher,
    timer: TimerFd,
    /// For datagrams of the channel.
    buffer: Vec<u8>,
    /// For what routers say; taken while it is handled.
    routers: Vec<u8>,
    /// For adverts; taken while they are handled.
    batch: Option<Box<Batch>>,
    pulse: Option<Pulse>,
    /// When the keeper heard from us; `None`: not yet.
    beat_at: Option<Instant>,
    beat_every: Duration,
    next_figures: Instant,
    /// When to bind the channel's socket, while it isn't.
    bind_at: Option<Instant>,
    /// When to read the kernel's events again, after an error.
    monitor_at: Option<Instant>,
    /// When to end without the node's consent.
    stop_limit: Option<Instant>,
    keeper_gone: bool,
    /// Another worker takes over.
    left: bool,
    /// Turns in a row that had something to do.
    streak: u32,
    requests_closed: bool,
    timers: Histogram,
    /// Of the VRRP sockets and the channel's.
    floods: [Flood; 2],
}

impl Protocol {
    fn new(setup: Setup) -> Result<Self, String> {
        let Setup { config, boot, keys, keeper, pulse, watcher, ends, sync } = setup;
        let executor = Executor::new().map_err(|e| format!("netlink socket: {e}"))?;
        let mut monitor = Monitor::open().map_err(|e| format!("netlink events: {e}"))?;
        // Without it there are more events, nothing else.
        let _ = executor.address_port().and_then(|port| monitor.pass_over(port));
        let follow = config.vips.iter().any(|vip| !vip.routes.is_empty() || !vip.rules.is_empty());
        monitor.list_ours(follow).map_err(|e| format!("netlink routes: {e}"))?;
        let timer = TimerFd::new().map_err(|e| format!("timer: {e}"))?;
        let link = KeeperLink::new(keeper).map_err(|e| format!("keeper's socket: {e}"))?;
        let now = Instant::now();
        let bind_at = config.cluster.is_some().then_some(now);
        let beat_every = beat_every(super::startup::hang_limit(&config));
        let desk = config.bgp.as_ref().map(|bgp| Desk::new(bgp, keys, now)).unwrap_or_default();
        let mut outputs = Outputs::new(&config, executor, link, desk, ends);
        outputs.sync = sync;
        let mut protocol = Self {
            node: Node::new(config, boot, now),
            outputs,
            monitor,
            watcher,
            timer,
            buffer: vec![0; MAX_DATAGRAM],
            routers: Vec::new(),
            batch: Some(Box::new(Batch::new())),
            pulse,
            beat_at: None,
            beat_every,
            next_figures: now,
            bind_at,
            monitor_at: None,
            stop_limit: None,
            keeper_gone: false,
            left: false,
            streak: 0,
            requests_closed: false,
            timers: Histogram::default(),
            floods: [Flood::new(now), Flood::new(now)],
        };
        protocol.start_balancers();
        protocol.drain();
        Ok(protocol)
    }

    fn start_balancers(&mut self) {
        for b in &self.node.config().balancers {
            if let ProcessSource::Command(argv) = &b.source {
                let soft_stop = match b.kind {
                    BalancerKind::Haproxy => Some(libc::SIGUSR1),
                    BalancerKind::Nginx => Some(libc::SIGQUIT),
                    // Envoy knows no signal that lets connections finish.
                    BalancerKind::Envoy | BalancerKind::Nft | BalancerKind::Process => None,
                };
                let name = b.name.as_str().to_owned();
                self.outputs.keeper.send(ToKeeper::StartBalancer { name, argv: argv.clone(), soft_stop }, None);
            }
        }
    }

    async fn turns(&mut self) -> Ended {
        loop {
            poll_fn(|cx| self.poll_turn(cx)).await;
            if self.outputs.stopped {
                self.clear_flows().await;
                self.goodbye().await;
                return Ended::Clean;
            }
            if self.left {
                self.publish();
                return Ended::Left;
            }
            if self.stop_limit.is_some_and(|limit| Instant::now() >= limit) {
                self.outputs.note(Note::StopLate);
                return Ended::Late;
            }
            // Lets the driver look at the sockets and the ARP probes run, also while one source never runs dry. Not each
            // time, since it costs a system call, and most turns leave nothing to do for the next one.
            self.streak += 1;
            if self.streak.is_multiple_of(TURNS) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Beats on meanwhile: the keeper takes silence for a hang, and many replicas take longer than it waits.
    async fn clear_flows(&mut self) {
        let Some(mut sync) = self.outputs.sync.take() else { return };
        sync.clear(CLEAR_FLOWS, self.beat_every, || {
            self.beat(Instant::now());
            self.outputs.keeper.flush();
        })
        .await;
    }

    async fn goodbye(&mut self) {
        self.publish();
        self.outputs.keeper.send(ToKeeper::Stopped, None);
        let limit = Instant::now() + GOODBYE;
        while self.outputs.keeper.is_behind() && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.outputs.keeper.flush();
        }
    }

    /// One turn; ready if anything was done, so that the caller looks at all sources again.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut busy = self.turn_vrrp(cx);
        busy |= self.turn_clock();
        busy |= self.turn_balancers(cx);
        busy |= self.turn_later(cx);
        busy |= self.turn_bgp(cx);
        busy |= self.turn_monitor(cx);
        busy |= self.turn_channel(cx);
        busy |= self.turn_keeper(cx);
        busy |= self.turn_sync(cx);
        busy |= self.turn_requests(cx);
        busy |= self.turn_checks(cx);
        busy |= self.outputs.is_behind();
        if busy || self.outputs.stopped || self.left {
            self.drain();
            return Poll::Ready(());
        }
        let due = self.due();
        if due.is_some_and(|d| d <= Instant::now()) {
            return Poll::Ready(());
        }
        self.streak = 0;
        // Can't fail for these arguments; if it did, the next input would wake us, and the keeper sees the beats stop.
        let _ = self.timer.arm(due);
        self.timer.poll_expired(cx).map(|_| ())
    }

    fn due(&self) -> Option<Instant> {
        let beat = self.beat_at.map_or_else(Instant::now, |at| at + self.beat_every);
        // Figures are made in a turn that happens anyway: the beat's at the latest.
        let beat = [Some(beat), self.bind_at, self.monitor_at, self.stop_limit];
        let others = [self.node.poll_timeout(), self.watcher.poll_timeout(), self.outputs.bgp.poll_timeout()];
        let floods = self.floods.iter().map(Flood::poll_timeout);
        beat.into_iter().chain(others).chain(floods).flatten().min()
    }

    fn feed(&mut self, input: Input<'_>) {
        self.node.handle(Instant::now(), input);
        self.drain();
    }

    /// Carries out what the node says, and tells it how that went; at most a bounded number of results at a time, the
    /// rest in the next turn.
    fn drain(&mut self) {
        self.outputs.carry_out(&mut self.node);
        if self.outputs.outcomes.is_empty() {
            return;
        }
        // One look at the clock for all: they are answers to what was said at one time.
        let now = Instant::now();
        let some = self.outputs.outcomes.len().min(RESULTS);
        let outcomes = self.outputs.outcomes.drain(..some);
        self.node.handle_all(now, outcomes.map(Outcome::into_input));
        self.outputs.carry_out(&mut self.node);
    }

    fn turn_vrrp(&mut self, cx: &mut Context<'_>) -> bool {
        if self.floods[0].rests(Instant::now()) {
            return false;
        }
        let Some(mut batch) = self.batch.take() else { return false };
        let refused = self.node.refused();
        let mut count = 0;
        while count < PER_SOURCE
            && let Poll::Ready(received) = self.outputs.executor.poll_recv(cx, &mut batch)
        {
            count += batch.len().max(1);
            match received {
                Ok(()) => {
                    let heard = batch.packets();
                    let inputs = heard.map(|heard| Input::Vrrp { ifindex: heard.ifindex, packet: heard.packet });
                    self.node.handle_all(Instant::now(), inputs);
                    self.drain();
                }
                // The link's own event says what happened to it.
                Err(_) => self.outputs.count.vrrp_errors += 1,
            }
        }
        self.batch = Some(batch);
        if count > 0 {
            self.floods[0].read(Instant::now(), self.node.refused() - refused);
        }
        count > 0
    }

    /// Everything that is due by the clock.
    fn turn_clock(&mut self) -> bool {
        let mut busy = false;
        let now = Instant::now();
        self.beat(now);
        if let Some(due) = self.node.poll_timeout().filter(|due| *due <= now) {
            self.timers.record(now.saturating_duration_since(due));
            self.outputs.due = Some(due);
            self.feed(Input::Timer);
            self.outputs.due = None;
            busy = true;
        }
        if self.watcher.poll_timeout().is_some_and(|due| due <= now) {
            self.watcher.timeout(now);
            busy = true;
        }
        if self.bind_at.is_some_and(|at| at <= now) {
            self.bind_channel(now);
            busy = true;
        }
        if self.monitor_at.is_some_and(|at| at <= now) {
            self.monitor_at = None;
            busy = true;
        }
        if now >= self.next_figures {
            self.next_figures = now + FIGURES_EVERY;
            self.publish();
        }
        busy
    }

    /// Tells the keeper that this thread lives. The first time by a message, which says that it has begun to.
    fn beat(&mut self, now: Instant) {
        if self.beat_at.is_some_and(|at| now < at + BEAT_SHORTEST) {
            return;
        }
        let first = self.beat_at.replace(now).is_none();
        if first || !self.pulse.as_ref().is_some_and(Pulse::beat) {
            self.outputs.keeper.send(ToKeeper::Beat, None);
        }
    }

    fn bind_channel(&mut self, now: Instant) {
        let Some(listen) = self.node.config().cluster.as_ref().map(|c| c.listen) else {
            self.bind_at = None;
            return;
        };
        match UdpChannel::bind(listen) {
            Ok(socket) => {
                self.outputs.channel = Some(socket);
                self.bind_at = None;
                if self.outputs.count.bind_errors > 0 {
                    self.outputs.note(Note::ChannelBound { listen });
                }
            }
            Err(e) => {
                if self.outputs.count.bind_errors == 0 {
                    self.outputs.note(Note::ChannelBind { listen, errno: errno(&e) });
                }
                self.outputs.count.bind_errors += 1;
                self.bind_at = Some(now + RETRY);
            }
        }
    }

    fn turn_balancers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < FEW
            && let Poll::Ready((balancer, state)) = self.watcher.poll(cx, Instant::now())
        {
            count += 1;
            self.feed(Input::Balancer { balancer, state });
        }
        count > 0
    }

    fn turn_later(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < FEW
            && let Poll::Ready(heard) = self.outputs.executor.poll_later(cx)
        {
            count += 1;
            match heard {
                Heard::Done(step, result) => self.feed(Input::StepDone { step, result }),
                Heard::Touched => self.feed(Input::TableTouched),
            }
        }
        count > 0
    }

    fn turn_bgp(&mut self, cx: &mut Context<'_>) -> bool {
        let mut buffer = std::mem::take(&mut self.routers);
        let mut count = 0;
        while count < ROUTERS
            && let Poll::Ready((neighbor, event)) = self.outputs.bgp.poll_next(cx, Instant::now(), &mut buffer)
        {
            count += 1;
            self.feed(Input::Bgp { neighbor, input: event.into_input(&buffer) });
        }
        self.routers = buffer;
        if let Some((port, errno)) = self.outputs.bgp.take_listen_error() {
            self.outputs.note(Note::BgpListen { port, errno });
        }
        count > 0
    }

    fn turn_monitor(&mut self, cx: &mut Context<'_>) -> bool {
        // What the kernel lists must not be older than what the node knows of its own steps.
        if self.monitor_at.is_some() || self.outputs.is_behind() {
            return false;
        }
        let mut count = 0;
        while count < PER_SOURCE
            && !self.outputs.is_behind()
            && let Poll::Ready(event) = self.monitor.poll_next(cx)
        {
            count += 1;
            match event {
                Ok(MonitorEvent::Resync { links, addresses }) => {
                    links.iter().for_each(|link| self.outputs.executor.link_changed(link, true));
                    self.feed(Input::Resync { links: &links, addresses: &addresses });
                }
                Ok(MonitorEvent::Link(link)) => {
                    self.outputs.executor.link_changed(&link, false);
                    self.feed(Input::Link(link));
                }
                Ok(MonitorEvent::Ours { routes, rules }) => {
                    self.feed(Input::Ours { routes: &routes, rules: &rules });
                }
                Ok(MonitorEvent::LinkGone { ifindex }) => self.feed(Input::LinkGone { ifindex }),
                Ok(MonitorEvent::Address(address)) => self.feed(Input::Address(address)),
                Ok(MonitorEvent::AddressGone { ifindex, ip, prefix }) => {
                    self.feed(Input::AddressGone { ifindex, ip, prefix });
                }
                Err(e) => {
                    if self.outputs.count.monitor_errors == 0 {
                        self.outputs.note(Note::Monitor { errno: errno(&e) });
                    }
                    self.outputs.count.monitor_errors += 1;
                    self.monitor_at = Some(Instant::now() + MONITOR_RETRY);
                    break;
                }
            }
        }
        count > 0
    }

    fn turn_channel(&mut self, cx: &mut Context<'_>) -> bool {
        if self.floods[1].rests(Instant::now()) {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let refused = self.node.refused();
        let mut count = 0;
        while count < PER_SOURCE
            && let Some(socket) = &self.outputs.channel
            && let Poll::Ready(received) = socket.poll_recv(cx, &mut buffer)
        {
            count += 1;
            match received {
                Ok((n, from)) => self.feed(Input::Datagram { from, bytes: buffer.get(..n).unwrap_or_default() }),
                // An answer of the network to what we sent: the peer's silence says as much.
                Err(_) => self.outputs.count.channel_errors += 1,
            }
        }
        self.buffer = buffer;
        if count > 0 {
            self.floods[1].read(Instant::now(), self.node.refused() - refused);
        }
        count > 0
    }

    fn turn_keeper(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < FEW && !self.keeper_gone {
            let Poll::Ready(message) = self.outputs.keeper.poll_receive(cx) else { break };
            count += 1;
            match message {
                Some(message) => self.keeper_says(message),
                None => {
                    self.keeper_gone = true;
                    self.outputs.note(Note::KeeperGone);
                    self.stop(ORPHAN_DEADLINE);
                }
            }
        }
        count > 0
    }

    fn keeper_says(&mut self, message: ToWorker) {
        match message {
            // Answered before this thread began.
            ToWorker::Held { .. } | ToWorker::Boot { .. } => {}
            ToWorker::Lapsed { vip, role_epoch } => {
                let position = self.node.config().vips.iter().position(|v| v.name.as_str() == vip);
                if let Some(id) = position.and_then(|p| u16::try_from(p).ok()) {
                    self.feed(Input::Lapsed { vip: VipId(id), role_epoch });
                }
                self.outputs.note(Note::Lapsed { vip });
            }
            ToWorker::Balancer { name, pid, start_time } => {
                if let Some(id) = self.balancer(&name) {
                    self.watcher.started(id, Process { start: start_time, pid });
                }
            }
            ToWorker::BalancerExited { name, pid, what } => {
                if let Some(id) = self.balancer(&name) {
                    self.watcher.exited(Instant::now(), id, pid, &what);
                }
            }
            ToWorker::Bfd(report) => {
                if let Some(neighbor) = self.neighbor(&report.neighbor) {
                    self.feed(Input::Bfd { neighbor, state: report.state, diag: report.diag });
                }
            }
            ToWorker::ExecDone { token, result, output } => self.outputs.exec_done(token, &result, &output),
            ToWorker::Reload => self.outputs.note(Note::Reload),
            ToWorker::Leave { pid } => {
                self.feed(Input::Replaced { result: Ok(pid) });
                self.left = true;
            }
            ToWorker::NotReplaced { why } => self.feed(Input::Replaced { result: Err(why) }),
            ToWorker::Stop { deadline } => {
                self.outputs.note(Note::Stop { deadline });
                self.stop(deadline);
            }
        }
    }

    fn stop(&mut self, deadline: Duration) {
        let limit = Instant::now() + deadline + STOP_SLACK;
        self.stop_limit = Some(self.stop_limit.map_or(limit, |l| l.min(limit)));
        self.feed(Input::Stop { deadline });
    }

    fn balancer(&self, name: &str) -> Option<BalancerId> {
        let position = self.node.config().balancers.iter().position(|b| b.name.as_str() == name)?;
        u16::try_from(position).ok().map(BalancerId)
    }

    fn neighbor(&self, name: &str) -> Option<NeighborId> {
        let mut neighbors = self.node.config().bgp.iter().flat_map(|bgp| bgp.each());
        neighbors.find(|(_, neighbor)| neighbor.name == name).map(|(id, _)| id)
    }

    fn turn_sync(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < FEW
            && let Some(sync) = &mut self.outputs.sync
            && let Poll::Ready(word) = sync.poll_word(cx)
        {
            count += 1;
            self.feed(Input::Sync(word));
        }
        while count < FEW
            && let Some(sync) = &mut self.outputs.sync
            && let Poll::Ready(event) = sync.poll_event(cx)
        {
            count += 1;
            self.feed(Input::SyncEvent(event));
        }
        count > 0
    }

    fn turn_requests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < REQUESTS && !self.requests_closed {
            let Poll::Ready(asked) = self.outputs.ends.requests.poll_recv(cx) else { break };
            match asked {
                Some(asked) => {
                    count += 1;
                    let token = self.outputs.remember(asked.reply);
                    self.feed(Input::Operator { token, request: asked.request });
                }
                None => self.requests_closed = true,
            }
        }
        count > 0
    }

    fn turn_checks(&mut self, cx: &mut Context<'_>) -> bool {
        let mut count = 0;
        while count < PER_SOURCE {
            // Err of either: the runtime is ending, so are we.
            if let Poll::Ready(Some(some)) = self.outputs.ends.results.poll_recv(cx) {
                count += some.len();
                let results = some.into_iter().map(|done| Outcome::Check(done).into_input());
                self.node.handle_all(Instant::now(), results);
                self.drain();
                continue;
            } else if let Poll::Ready(Some(seen)) = self.outputs.ends.planes.poll_recv(cx) {
                self.feed(Input::Plane { balancer: seen.balancer, report: seen.report });
            } else if let Poll::Ready(Some((vip, disabled))) = self.outputs.ends.disabled.poll_recv(cx) {
                self.feed(Input::Disabled { vip, disabled });
            } else if let Poll::Ready(Some(sample)) = self.outputs.ends.conntrack.poll_recv(cx) {
                self.feed(Input::Conntrack { sample });
            } else if let Poll::Ready(Some(outcome)) = self.outputs.probed.poll_recv(cx) {
                self.feed(outcome.into_input());
            } else {
                break;
            }
            count += 1;
        }
        count > 0
    }

    fn publish(&mut self) {
        let timer = self.timers.snapshot();
        self.outputs.publish(timer, self.monitor.overruns());
    }
}

/// A datagram of the channel is smaller; what is longer is cut, and then fails its authentication.
const MAX_DATAGRAM: usize = 2_048;

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

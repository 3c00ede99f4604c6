//! Carries out what the node says: sockets, the kernel, the keeper, the queues to the runtime.

use super::api::{Recorded, WorkerFigures};
use super::bgp::Desk;
use super::exec::ExecDesk;
use super::fifo::{FifoState, Line, Subject};
use super::lateness::{Histogram, Snapshot};
use super::link::KeeperLink;
use super::queues::{Note, ProtocolEnds, StartProbe};
use super::sync::SyncLink;
use crate::check;
use crate::os::udp::UdpChannel;
use crate::os::vrrp::Outgoing;
use crate::os::{neighbour, probe};
use crate::reconcile::Executor;
use holdfast_node::config::{CheckId, Config, Probe, ProcessSource, VipId};
use holdfast_node::io::{
    Answer, CheckError, OwnerRecord, ProbeOutcome, SendError, SocketKey, Step, StepError, UnitState,
};
use holdfast_node::keeper::ipc::{ExecResult, ToKeeper, Undo, VipAddress, VipRecord};
use holdfast_node::status::Status;
use holdfast_node::{Input, Node, Output};
use holdfast_vrrp::{Family, LegId, Packet};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Steps that are executed together.
const BATCH: usize = 100;
/// ARP probes at once. Full → counts as unanswered at once.
const PROBES_MAX: usize = 64;

/// How something that the node asked for went: an input that owns its data.
#[derive(Debug)]
pub(super) enum Outcome {
    Advert(VipId, LegId, Result<(), SendError>),
    Step(Step, Result<(), StepError>),
    Check(check::Done),
    Probe { vip: VipId, target: IpAddr, outcome: ProbeOutcome },
}

impl Outcome {
    pub(super) fn into_input(self) -> Input<'static> {
        match self {
            Self::Advert(vip, leg, result) => Input::AdvertSent { vip, leg, result },
            Self::Step(step, result) => Input::StepDone { step, result },
            Self::Check(check::Done { check, sequence, result, note }) => {
                Input::CheckDone { check, sequence, result, note }
            }
            Self::Probe { vip, target, outcome } => Input::Probed { vip, target, outcome },
        }
    }
}

/// An advert on its way.
#[derive(Debug)]
struct Advert {
    vip: VipId,
    leg: LegId,
    ifindex: u32,
    source: IpAddr,
    packets: Arc<[Packet]>,
}

/// Neighbours that are asked, beside the claimer of a VIP, whether they hear us.
const WITNESSES: usize = 4;

/// Counted by the loop.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) vrrp_errors: u64,
    pub(super) channel_errors: u64,
    pub(super) send_errors: u64,
    pub(super) bind_errors: u64,
    pub(super) monitor_errors: u64,
    events_dropped: u64,
    probes_dropped: u64,
    arp_dropped: u64,
    answers_dropped: u64,
    notes_dropped: u64,
    lines_dropped: u64,
}

/// Everything that the node's outputs act on.
pub(super) struct Outputs {
    pub(super) executor: Executor,
    pub(super) keeper: KeeperLink,
    pub(super) channel: Option<UdpChannel>,
    pub(super) bgp: Desk,
    pub(super) ends: ProtocolEnds,
    /// `None`: nothing is replicated.
    pub(super) sync: Option<SyncLink>,
    /// Results not yet told to the node. Bounded by what one turn's outputs can cause.
    pub(super) outcomes: VecDeque<Outcome>,
    /// Results of ARP probes.
    pub(super) probed: mpsc::Receiver<Outcome>,
    probing: mpsc::Sender<Outcome>,
    pub(super) count: Count,
    pub(super) figures: WorkerFigures,
    /// While the node handles its timer: when that was due.
    pub(super) due: Option<Instant>,
    /// The node has stopped.
    pub(super) stopped: bool,
    /// Adverts that wait for others to be sent together.
    adverts: Vec<Advert>,
    /// Probes likewise.
    starting: Vec<StartProbe>,
    /// How late adverts went out.
    lateness: Histogram,
    exec: ExecDesk,
    /// Operators that wait. At most as many as the control API has connections: an entry goes with its last answer or
    /// when the client does.
    waiting: BTreeMap<u64, mpsc::Sender<Answer>>,
    next_token: u64,
    names: Names,
}

/// Names and programs by index, so that nothing is looked up in a configuration that the node owns.
#[derive(Debug)]
struct Names {
    /// Name of the VIP, and of those of its balancers that the keeper runs.
    vips: Vec<(String, Vec<String>)>,
    /// What is told of each VIP: its members, and the group.
    told: Vec<Vec<(Subject, String)>>,
    /// The program of an `exec` check.
    programs: Vec<Option<Vec<String>>>,
}

impl Outputs {
    pub(super) fn new(config: &Config, executor: Executor, keeper: KeeperLink, bgp: Desk, ends: ProtocolEnds) -> Self {
        let run_by_keeper = |vip: &holdfast_node::config::Vip| {
            let balancers = vip.balancers.iter().filter_map(|b| config.balancers.get(usize::from(b.0)));
            let run = balancers.filter(|b| matches!(b.source, ProcessSource::Command(_)));
            run.map(|b| b.name.as_str().to_owned()).collect()
        };
        let names = Names {
            vips: config.vips.iter().map(|v| (v.name.as_str().to_owned(), run_by_keeper(v))).collect(),
            told: config.vips.iter().map(told).collect(),
            programs: config
                .checks
                .iter()
                .map(|c| match &c.probe {
                    Probe::Exec { argv } => Some(argv.clone()),
                    _ => None,
                })
                .collect(),
        };
        let (probing, probed) = mpsc::channel(PROBES_MAX);
        Self {
            executor,
            keeper,
            channel: None,
            bgp,
            ends,
            sync: None,
            outcomes: VecDeque::new(),
            probed,
            probing,
            count: Count::default(),
            figures: WorkerFigures::default(),
            due: None,
            stopped: false,
            adverts: Vec::new(),
            starting: Vec::new(),
            lateness: Histogram::default(),
            exec: ExecDesk::new(&config.hooks),
            waiting: BTreeMap::new(),
            next_token: 1,
            names,
        }
    }

    /// Whether results still wait to be told.
    pub(super) fn is_behind(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Does all that the node has to say, in order. Steps that follow each other go to the kernel together, and so do
    /// adverts. Probes start at the end, all together: whoever runs them is woken once.
    pub(super) fn carry_out(&mut self, node: &mut Node) {
        let mut next = node.poll_output();
        while let Some(output) = next.take() {
            match output {
                Output::Step(step) => {
                    let mut steps = vec![step];
                    next = node.poll_output();
                    while let Some(Output::Step(_)) = next
                        && steps.len() < BATCH
                        && let Some(Output::Step(step)) = next.take()
                    {
                        steps.push(step);
                        next = node.poll_output();
                    }
                    let results = self.executor.execute_all(&steps);
                    let done = steps.into_iter().zip(results).filter(|(s, r)| !is_on_its_way(s, r));
                    self.outcomes.extend(done.map(|(s, r)| Outcome::Step(s, r)));
                }
                Output::Advert { vip, leg, ifindex, source, packets } => {
                    self.adverts.push(Advert { vip, leg, ifindex, source, packets });
                    next = node.poll_output();
                    if self.adverts.len() == BATCH || !matches!(next, Some(Output::Advert { .. })) {
                        self.send_adverts();
                    }
                }
                other => {
                    self.emit(other);
                    next = node.poll_output();
                }
            }
        }
        self.start_probes();
    }

    fn emit(&mut self, output: Output) {
        match output {
            // Batched by the caller; alone it's done alone.
            Output::Step(step) => {
                let result = self.executor.execute(&step);
                if !is_on_its_way(&step, &result) {
                    self.outcomes.push_back(Outcome::Step(step, result));
                }
            }
            // Likewise.
            Output::Advert { vip, leg, ifindex, source, packets } => {
                self.adverts.push(Advert { vip, leg, ifindex, source, packets });
                self.send_adverts();
            }
            Output::Datagram { to, bytes } => {
                let sent = self.channel.as_ref().is_some_and(|c| c.send(to, &bytes).is_ok());
                self.count.send_errors += u64::from(!sent);
            }
            Output::Bgp { neighbor, output } => self.bgp.carry_out(Instant::now(), neighbor, output),
            Output::BgpSession { conn, session } => {
                let socket = conn.and_then(|conn| self.bgp.duplicate(&session.neighbor, conn));
                self.keeper.send_with(ToKeeper::BgpSession(session), socket);
            }
            Output::Elected { vip, elected } => {
                if let Some(sync) = &mut self.sync {
                    sync.elected(vip, elected);
                }
            }
            Output::Bfd(sessions) => self.keeper.send(ToKeeper::Bfd(sessions), None),
            Output::Probe { vip, ifindex, source, target, tries, wait } => {
                self.probe(vip, ifindex, source, target, tries, wait);
            }
            Output::StartCheck { check, sequence, timeout } => self.start_check(check, sequence, timeout),
            Output::Look { balancer } => {
                if let Some(look) = self.ends.looks.get(usize::from(balancer.0)) {
                    look.notify_one();
                }
            }
            Output::State { vip, state, priority } => self.tell(vip, state, priority),
            Output::RunHook { hook, environment } => {
                if let Some(message) = self.exec.hook(hook, environment) {
                    self.keeper.send(message, None);
                }
            }
            Output::Owner(record) => self.owner(record),
            Output::Event(event) => {
                let entry = Recorded { wall: SystemTime::now(), event };
                self.count.events_dropped += u64::from(self.ends.events.try_send(entry).is_err());
            }
            Output::Persist(intents) => drop(self.ends.intents.send_replace(intents)),
            Output::Answer { token, answer } => self.answer(token, answer),
            Output::Replace => self.keeper.send(ToKeeper::Replace, None),
            Output::Stopped => self.stopped = true,
        }
    }

    /// In keepalived's words, to those who listen for them: a line for each VIP, then one for their group.
    fn tell(&mut self, vip: VipId, state: UnitState, priority: u8) {
        let state = match state {
            UnitState::Active => FifoState::Master,
            UnitState::Backup => FifoState::Backup,
            UnitState::Fault => FifoState::Fault,
            UnitState::Stopped => FifoState::Stop,
        };
        let Some((subjects, lines)) = self.names.told.get(usize::from(vip.0)).zip(self.ends.lines.as_ref()) else {
            return;
        };
        for (subject, name) in subjects {
            let line = Line { subject: *subject, name: name.clone(), state, priority };
            self.count.lines_dropped += u64::from(lines.try_send(line).is_err());
        }
    }

    /// Those that wait, socket by socket. That one can't go to one of several unicast peers is that peer's misfortune.
    fn send_adverts(&mut self) {
        let adverts = std::mem::take(&mut self.adverts);
        let mut results = vec![Err(SendError { errno: libc::ENOTCONN }); adverts.len()];
        let mut order: Vec<(SocketKey, usize, Outgoing<'_>)> = Vec::with_capacity(adverts.len());
        for (at, Advert { ifindex, source, packets, .. }) in adverts.iter().enumerate() {
            order.extend(packets.iter().map(|packet| {
                let (ifindex, source, destination) = (*ifindex, *source, packet.destination);
                let packet = Outgoing { source, ifindex, destination, payload: &packet.payload };
                (SocketKey::towards(ifindex, destination), at, packet)
            }));
        }
        // Stable: what goes through one socket keeps its order.
        order.sort_by_key(|(key, ..)| *key);
        for same in order.chunk_by(|a, b| a.0 == b.0) {
            let Some(sender) = same.first().and_then(|(key, ..)| self.executor.sender(*key)) else { continue };
            let packets: Vec<Outgoing<'_>> = same.iter().map(|(.., packet)| *packet).collect();
            sender.send_many(&packets, |position, sent| {
                let result = same.get(position).and_then(|(_, at, _)| results.get_mut(*at));
                match (result, sent) {
                    (Some(result), Ok(())) => *result = Ok(()),
                    (Some(result @ Err(_)), Err(e)) => {
                        *result = Err(SendError { errno: e.raw_os_error().unwrap_or(libc::EIO) });
                    }
                    _ => {}
                }
            });
        }
        if let Some(due) = self.due {
            let late = Instant::now().saturating_duration_since(due);
            adverts.iter().for_each(|_| self.lateness.record(late));
        }
        self.outcomes.extend(adverts.iter().zip(results).map(|(a, result)| Outcome::Advert(a.vip, a.leg, result)));
        // The room is kept for the next ones.
        self.adverts = adverts;
        self.adverts.clear();
    }

    fn probe(&mut self, vip: VipId, ifindex: u32, source: IpAddr, target: IpAddr, tries: u8, wait: Duration) {
        let Ok(slot) = self.probing.clone().try_reserve_owned() else {
            self.count.arp_dropped += 1;
            self.outcomes.push_back(Outcome::Probe { vip, target, outcome: ProbeOutcome::Nobody });
            return;
        };
        tokio::spawn(async move {
            let family = Family::of(target);
            let others = neighbour::answered(ifindex, family, WITNESSES).unwrap_or_default();
            // What can't be asked isn't answered: the claimer stands.
            let outcome = probe::probe(ifindex, source, target, &others, tries, wait).await;
            slot.send(Outcome::Probe { vip, target, outcome: outcome.unwrap_or(ProbeOutcome::Nobody) });
        });
    }

    fn start_check(&mut self, check: CheckId, sequence: u64, timeout: Duration) {
        match self.names.programs.get(usize::from(check.0)) {
            Some(Some(argv)) => match self.exec.check(check, sequence, argv, timeout) {
                Ok(message) => self.keeper.send(message, None),
                Err(e) => self.refuse(check, sequence, e),
            },
            _ => self.starting.push(StartProbe { check, sequence, timeout }),
        }
    }

    fn start_probes(&mut self) {
        if self.starting.is_empty() {
            return;
        }
        let refused = self.ends.probes.try_send(std::mem::take(&mut self.starting)).err();
        for StartProbe { check, sequence, .. } in refused.into_iter().flat_map(TrySendError::into_inner) {
            self.refuse(check, sequence, "the agent is too busy to probe".to_owned().into());
        }
    }

    fn refuse(&mut self, check: CheckId, sequence: u64, e: CheckError) {
        self.count.probes_dropped += 1;
        self.outcomes.push_back(Outcome::Check(check::Done { check, sequence, result: Err(e), note: None }));
    }

    /// The keeper says that a program ended.
    pub(super) fn exec_done(&mut self, token: u64, result: &ExecResult, output: &[u8]) {
        let (done, next) = self.exec.done(token, result, output);
        self.outcomes.extend(done.map(Outcome::Check));
        if let Some(message) = next {
            self.keeper.send(message, None);
        }
    }

    fn owner(&mut self, record: OwnerRecord) {
        let Some((vip, balancers)) = self.names.vips.get(usize::from(record.vip.0)).cloned() else { return };
        // One socket travels with a record; for other legs the keeper opens its own when it needs them.
        let first = record.resign.first();
        let socket = first.and_then(|r| self.executor.sender(SocketKey::towards(r.ifindex, r.destination)));
        let rules = record.rules.into_iter().map(Undo::Rule);
        let routes = record.routes.into_iter().map(Undo::Route);
        let vmacs = record.vmacs.into_iter().map(Undo::Vmac);
        let address = |(ifindex, ip, prefix)| Undo::Address(VipAddress { ifindex, ip, prefix });
        let addresses = record.addresses.into_iter().map(address);
        let message = VipRecord {
            vip,
            active: record.active,
            role_epoch: record.role_epoch,
            undo: rules.chain(routes).chain(vmacs).chain(addresses).collect(),
            resign: record.resign,
            interval: record.interval,
            balancers,
            pseudo_header: record.pseudo_header,
            bgp: record.bgp,
        };
        self.keeper.send(ToKeeper::Owner(message), socket.map(AsFd::as_fd));
    }

    /// A token for an operator's request.
    pub(super) fn remember(&mut self, reply: mpsc::Sender<Answer>) -> u64 {
        self.waiting.retain(|_, r| !r.is_closed());
        let token = self.next_token;
        self.next_token += 1;
        self.waiting.insert(token, reply);
        token
    }

    fn answer(&mut self, token: u64, mut answer: Answer) {
        if matches!(answer, Answer::Progress(_)) {
            // One place is always left for the final answer.
            let room = self.waiting.get(&token).is_some_and(|r| r.capacity() > 1 && r.try_send(answer).is_ok());
            self.count.answers_dropped += u64::from(!room);
            return;
        }
        if let Answer::Status(status) = &mut answer {
            self.add_own(status);
        }
        if let Some(reply) = self.waiting.remove(&token) {
            self.count.answers_dropped += u64::from(reply.try_send(answer).is_err());
        }
    }

    /// What the node can't know of itself.
    fn add_own(&mut self, status: &mut Status) {
        let f = &self.figures;
        let advert = self.lateness.snapshot();
        let mut add = |name: &str, value: u64| {
            status.counters.insert(name.to_owned(), value);
        };
        for (what, s) in [("advert", advert), ("timer", f.timer)] {
            add(&format!("{what}_late_count"), s.count);
            add(&format!("{what}_late_p50_us"), s.p50_us);
            add(&format!("{what}_late_p99_us"), s.p99_us);
            add(&format!("{what}_late_max_us"), s.max_us);
        }
        for (name, value) in &f.dropped {
            add(&format!("dropped_{name}"), *value);
        }
        add("disk_errors", f.disk_errors);
        add("bgp_strangers", self.bgp.strangers);
        add("channel_send_errors", self.count.send_errors);
        add("channel_receive_errors", self.count.channel_errors);
        add("vrrp_receive_errors", self.count.vrrp_errors);
        let steps = self.executor.counters();
        add("steps_done", steps.done);
        add("steps_failed", steps.failed);
    }

    pub(super) fn note(&mut self, note: Note) {
        self.count.notes_dropped += u64::from(self.ends.notes.try_send(note).is_err());
    }

    /// Makes the figures visible.
    pub(super) fn publish(&mut self, timer: Snapshot, overruns: u64) {
        let c = &self.count;
        self.figures.timer = timer;
        self.figures.advert = self.lateness.snapshot();
        self.figures.disk_errors = self.ends.disk.errors();
        self.figures.dropped = vec![
            ("events", c.events_dropped),
            ("journal_lines", self.ends.disk.dropped()),
            ("probes", c.probes_dropped),
            ("arp_probes", c.arp_dropped),
            ("answers", c.answers_dropped),
            ("notes", c.notes_dropped),
            ("keeper_messages", self.keeper.dropped),
            ("hook_runs", self.exec.dropped),
            ("fifo_lines", c.lines_dropped),
            ("netlink_overruns", overruns),
        ];
        // Who waits for a change waits for something that was dropped: nobody is woken for less.
        self.ends.figures.send_if_modified(|last| {
            let news = last.dropped != self.figures.dropped;
            *last = Arc::new(self.figures.clone());
            news
        });
    }
}

/// Its answer comes when it is done.
fn is_on_its_way(step: &Step, result: &Result<(), StepError>) -> bool {
    Executor::is_answered_later(step) && result.is_ok()
}

fn told(vip: &holdfast_node::config::Vip) -> Vec<(Subject, String)> {
    let members = vip.members.iter().map(|member| (Subject::Instance, member.name.as_str().to_owned()));
    members.chain(vip.group.then(|| (Subject::Group, vip.name.as_str().to_owned()))).collect()
}

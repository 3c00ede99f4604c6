//! The keeper's loop: waits, tells the machine what happened, does what it says.

use super::KeeperOptions;
use super::bfd::{Links, Sent};
use super::channel::Received;
use super::children::{Balancer, Exec, Worker};
use super::ledger::LedgerFile;
use super::log::{Line, Log};
use super::notify::Manager;
use super::pulse;
use super::undo::Undo;
use crate::os::pollset::PollSet;
use crate::os::process::{Adopted, has_ended};
use crate::os::sched;
use holdfast_node::keeper::ipc::{ExecResult, ToKeeper};
use holdfast_node::keeper::{Child, Found, Input, Keeper, Notify, Options, Output, Process};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sd_notify::NotifyState;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Messages of the worker per turn: more of them wait for the next one, timers first.
const MESSAGES_PER_TURN: usize = 256;

/// Reads of a BGP socket that is about to be closed, 4 KiB each.
const READS: usize = 64;

/// Everything the keeper holds.
pub(super) struct Runner {
    options: KeeperOptions,
    machine: Keeper,
    /// Answers for the machine, before anything else happens.
    inputs: VecDeque<Input>,
    worker: Option<Worker>,
    /// The one that is to take its place, until it does.
    next: Option<Worker>,
    former: Option<Adopted>,
    balancers: BTreeMap<String, Balancer>,
    execs: BTreeMap<u64, Exec>,
    links: Links,
    /// Duplicates of the worker's BGP sockets, by neighbour.
    bgp: BTreeMap<String, OwnedFd>,
    undo: Undo,
    signals: SignalFd,
    ledger: LedgerFile,
    manager: Manager,
    log: Log,
    limits_reported: bool,
    exit: Option<u8>,
    waiting: Waiting,
}

/// What the loop waits for. Built anew whenever anything but BFD has happened: BFD happens dozens of times a second.
#[derive(Debug, Default)]
struct Waiting {
    stale: bool,
    set: PollSet,
    /// The first ones of the set are BFD's.
    bfd: usize,
    /// What the others are.
    tags: Vec<Ready>,
    /// When something but BFD is due.
    due: Option<Instant>,
}

/// What became ready.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ready {
    Signals,
    WorkerSocket,
    WorkerProcess,
    NextSocket,
    NextProcess,
    /// There was no beat for a while.
    Pulse,
    Former,
    Balancer(String),
    ExecOutput(u64),
    ExecProcess(u64),
}

impl Runner {
    pub(super) fn start(options: KeeperOptions) -> io::Result<Self> {
        let mut log = Log::default();
        let ledger = LedgerFile::open(&options.runtime_dir)
            .map_err(|error| io::Error::other(format!("{}: {error}", options.runtime_dir.display())))?;
        // Blocked before anything is started, so that none is lost; children unblock everything.
        let wanted: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        wanted.thread_block()?;
        let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        if let Err(reason) = sched::realtime(sched::KEEPER_PRIORITY) {
            log.line(&format_args!("goes on without: {reason}"));
        }
        if let Err(reason) = sched::lock_memory_on_fault() {
            log.line(&format_args!("goes on without: {reason}"));
        }
        let found = ledger.find().unwrap_or_else(|error| {
            log.line(&format_args!("the ledger of a former keeper can't be used, nothing is adopted: {error}"));
            Found::default()
        });
        let now = Instant::now();
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let settings = Options { stop_deadline: options.stop_deadline, seed: u64::from_ne_bytes(seed) };
        let machine = Keeper::new(now, settings, found);
        Ok(Self {
            options,
            machine,
            inputs: VecDeque::new(),
            worker: None,
            next: None,
            former: None,
            balancers: BTreeMap::new(),
            execs: BTreeMap::new(),
            links: Links::default(),
            bgp: BTreeMap::new(),
            undo: Undo::default(),
            signals,
            ledger,
            manager: Manager::from_environment(now),
            log,
            limits_reported: false,
            exit: None,
            waiting: Waiting { stale: true, ..Waiting::default() },
        })
    }

    /// Until the machine says exit: its status.
    pub(super) fn run(mut self) -> u8 {
        loop {
            self.settle();
            if let Some(status) = self.exit {
                if let Err(error) = self.undo.clear_filter() {
                    self.log.line(&format_args!("can't remove our packet filter: {error}"));
                }
                return status;
            }
            self.wait();
            self.turn_bfd();
            let ready = self.ready();
            if ready.is_empty() && self.waiting.due.is_none_or(|at| at > Instant::now()) {
                continue;
            }
            self.waiting.stale = true;
            // The worker's words first: what it said before anything below happened counts.
            self.hear_worker(MESSAGES_PER_TURN);
            for one in ready {
                self.take(one);
            }
            let now = Instant::now();
            if self.machine.poll_timeout().is_some_and(|at| at <= now) {
                self.feel_pulse(now);
                self.handle(Input::Timer);
            }
            self.manager.ping(now);
        }
    }

    /// Packets first, then timers: what lies unread after a stall must not look like silence.
    fn turn_bfd(&mut self) {
        let now = Instant::now();
        let Self { waiting, links, machine, .. } = self;
        if (0..waiting.bfd).any(|position| waiting.set.is_ready(position)) {
            links.receive(|datagram| machine.bfd_receive(now, datagram));
        }
        if machine.bfd_timeout().is_some_and(|at| at <= now) {
            machine.bfd_timer(now);
        }
        self.settle();
    }

    /// When the worker left word last.
    fn feel_pulse(&mut self, now: Instant) {
        let pulse = self.worker.as_ref().and_then(|worker| worker.pulse.as_ref());
        if let Some(at) = pulse.and_then(|pulse| pulse::last(pulse.as_fd(), now)) {
            self.handle(Input::Pulse { at });
        }
    }

    /// One input, and all that follows from it.
    fn handle(&mut self, input: Input) {
        self.inputs.push_back(input);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            while let Some(output) = self.machine.poll_output() {
                self.waiting.stale |= !matches!(output, Output::SendBfd { .. });
                self.perform(output);
            }
            let Some(input) = self.inputs.pop_front() else { return };
            self.waiting.stale = true;
            self.machine.handle(Instant::now(), input);
        }
    }

    /// Waits until something is ready or the next timer is due.
    fn wait(&mut self) {
        if std::mem::take(&mut self.waiting.stale) {
            self.rebuild();
        }
        let next = [self.waiting.due, self.machine.bfd_timeout()].into_iter().flatten().min();
        // Interrupted: there is another turn. Anything else can't happen with descriptors that are open.
        let _ = self.waiting.set.wait(next.map(|at| at.saturating_duration_since(Instant::now())));
    }

    fn rebuild(&mut self) {
        let Waiting { set, bfd, tags, due, .. } = &mut self.waiting;
        set.clear();
        tags.clear();
        *due = [self.machine.poll_timeout(), self.manager.next()].into_iter().flatten().min();
        *bfd = 0;
        for fd in self.links.descriptors() {
            set.push(fd, PollFlags::IN);
            *bfd += 1;
        }
        let mut add = |tag, fd: BorrowedFd<'_>, flags| {
            tags.push(tag);
            set.push(fd, flags);
        };
        add(Ready::Signals, self.signals.as_fd(), PollFlags::IN);
        if let Some(worker) = &self.worker {
            if let Some(end) = &worker.end {
                let out = if worker.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
                add(Ready::WorkerSocket, end.as_fd(), PollFlags::IN | out);
            }
            add(Ready::WorkerProcess, worker.process(), PollFlags::IN);
            if let Some(pulse) = &worker.pulse {
                add(Ready::Pulse, pulse.as_fd(), PollFlags::IN);
            }
        }
        if let Some(next) = &self.next {
            if let Some(end) = &next.end {
                add(Ready::NextSocket, end.as_fd(), PollFlags::IN);
            }
            add(Ready::NextProcess, next.process(), PollFlags::IN);
        }
        if let Some(former) = &self.former {
            add(Ready::Former, former.as_fd(), PollFlags::IN);
        }
        for (name, balancer) in &self.balancers {
            add(Ready::Balancer(name.clone()), balancer.process(), PollFlags::IN);
        }
        for (id, exec) in &self.execs {
            if let Some(pipe) = exec.pipe() {
                add(Ready::ExecOutput(*id), pipe, PollFlags::IN);
            }
            add(Ready::ExecProcess(*id), exec.process(), PollFlags::IN);
        }
    }

    /// What became ready, but for BFD. No allocation where nothing did.
    fn ready(&self) -> Vec<Ready> {
        let Waiting { set, bfd, tags, .. } = &self.waiting;
        let ready = tags.iter().enumerate().filter(|(position, _)| set.is_ready(bfd + position));
        ready.map(|(_, tag)| tag.clone()).collect()
    }

    fn take(&mut self, ready: Ready) {
        match ready {
            Ready::Signals => self.take_signals(),
            Ready::WorkerSocket => {
                if let Some(worker) = &mut self.worker {
                    worker.flush();
                }
            }
            Ready::WorkerProcess => self.worker_ended(),
            Ready::NextSocket => self.hear_next(),
            Ready::NextProcess => self.next_ended(),
            Ready::Pulse => {
                if let Some(pulse) = self.worker.as_ref().and_then(|worker| worker.pulse.as_ref()) {
                    pulse::ran_out(pulse.as_fd());
                }
                self.feel_pulse(Instant::now());
            }
            Ready::Former => {
                if self.former.as_ref().is_some_and(|former| has_ended(former.as_fd())) {
                    self.former = None;
                    self.handle(Input::FormerWorkerExited);
                }
            }
            Ready::Balancer(name) => {
                if let Some(what) = self.balancers.get(&name).and_then(Balancer::ended) {
                    self.balancers.remove(&name);
                    self.handle(Input::BalancerExited { name, what });
                }
            }
            Ready::ExecOutput(id) => {
                if let Some(exec) = self.execs.get_mut(&id) {
                    exec.read();
                }
            }
            Ready::ExecProcess(id) => {
                if let Some((result, output)) = self.execs.get_mut(&id).and_then(Exec::ended) {
                    self.execs.remove(&id);
                    self.handle(Input::ExecExited { id, result, output });
                }
            }
        }
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let hangup = i32::try_from(info.ssi_signo) == Ok(libc::SIGHUP);
            self.handle(if hangup { Input::Reload } else { Input::Terminate });
        }
    }

    fn hear_worker(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(worker) = &mut self.worker else { return };
            match worker.receive() {
                Received::Empty => return,
                Received::Message(message, fd) => {
                    match (&message, fd) {
                        (ToKeeper::Owner(record), Some(fd)) => self.undo.keep(record, fd),
                        (ToKeeper::BgpSession(session), Some(fd)) if session.active => {
                            self.bgp.insert(session.neighbor.clone(), fd);
                        }
                        // A session without its socket: what we may have is that of a former one.
                        (ToKeeper::BgpSession(session), _) => drop(self.bgp.remove(&session.neighbor)),
                        (ToKeeper::Hello { .. }, Some(fd)) => {
                            worker.pulse = Some(fd);
                            self.feel_pulse(Instant::now());
                        }
                        _ => {}
                    }
                    self.handle(Input::Worker(message));
                }
                Received::Closed => {
                    self.handle(Input::WorkerClosed);
                    return;
                }
            }
        }
    }

    /// It says that it is ready, and waits for the answer.
    fn hear_next(&mut self) {
        // What was its socket may be the worker's by now.
        let Some(next) = &mut self.next else { return };
        match next.receive() {
            Received::Message(ToKeeper::Hello { hang_limit, resume_limit }, pulse) => {
                let felt = pulse.as_ref().is_some_and(|pulse| pulse::last(pulse.as_fd(), Instant::now()).is_some());
                next.pulse = pulse;
                self.handle(Input::NextReady { hang_limit, resume_limit, felt });
            }
            Received::Closed => next.kill(),
            Received::Message(..) | Received::Empty => {}
        }
    }

    fn next_ended(&mut self) {
        let what = match self.next.as_ref().map(Worker::reap) {
            Some(Ok(Some(ended))) => ended.to_string(),
            Some(Err(error)) => format!("lost: {error}"),
            Some(Ok(None)) | None => return,
        };
        self.next = None;
        self.handle(Input::NextExited { what });
    }

    fn worker_ended(&mut self) {
        let what = match self.worker.as_ref().map(Worker::reap) {
            Some(Ok(Some(ended))) => ended.to_string(),
            Some(Err(error)) => format!("lost: {error}"),
            Some(Ok(None)) | None => return,
        };
        // All that it said before it died; its socket is closed, so this ends.
        self.hear_worker(usize::MAX);
        self.worker = None;
        self.handle(Input::WorkerExited { what });
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::SpawnWorker => {
                let spawned = self.spawn_worker();
                self.inputs.push_back(match spawned {
                    Ok((worker, process)) => {
                        self.worker = Some(worker);
                        Input::WorkerSpawned(process)
                    }
                    Err(error) => Input::WorkerNotSpawned { why: error.to_string() },
                });
            }
            Output::KillWorker => {
                if let Some(worker) = &self.worker {
                    worker.kill();
                }
            }
            Output::SpawnNext if self.next.is_some() => {
                self.inputs.push_back(Input::NextNotSpawned { why: "the last one is still ending".to_owned() });
            }
            Output::SpawnNext => {
                let spawned = self.spawn_worker();
                self.inputs.push_back(match spawned {
                    Ok((next, process)) => {
                        self.next = Some(next);
                        Input::NextSpawned(process)
                    }
                    Err(error) => Input::NextNotSpawned { why: error.to_string() },
                });
            }
            Output::KillNext => {
                if let Some(next) = &self.next {
                    next.kill();
                }
            }
            Output::Promote => self.worker = self.next.take(),
            Output::WatchFormerWorker(Process { pid, start_time }) => {
                self.former = Adopted::open(pid, start_time);
                if self.former.is_none() {
                    self.inputs.push_back(Input::FormerWorkerExited);
                }
            }
            Output::KillFormerWorker => {
                if let Some(former) = &self.former {
                    former.signal_group(libc::SIGKILL);
                }
            }
            Output::SendToWorker(message) => {
                if self.worker.as_mut().is_some_and(|worker| !worker.send(message)) {
                    self.inputs.push_back(Input::WorkerStuck);
                }
            }
            Output::SendResign(resign) => {
                if let Err(error) = self.undo.resign(&resign) {
                    self.log.line(&format_args!("can't send priority 0 on interface {}: {error}", resign.ifindex));
                }
            }
            Output::Remove(undo) => {
                let result = self.undo.remove(undo);
                self.inputs.push_back(Input::Removed { undo, result });
            }
            Output::SpawnBalancer { name, argv } => self.spawn_balancer(name, &argv),
            Output::WatchBalancer { name, process } => match Adopted::open(process.pid, process.start_time) {
                Some(adopted) => {
                    self.balancers.insert(name, Balancer::Adopted(adopted));
                }
                None => self.inputs.push_back(Input::BalancerExited { name, what: "gone already".to_owned() }),
            },
            Output::SignalBalancer { name, signal, group } => {
                if let Some(balancer) = self.balancers.get(&name) {
                    balancer.signal(signal, group);
                }
            }
            Output::Release(child) => self.release(child),
            Output::SpawnExec { id, argv, environment } => match Exec::start(&argv, &environment) {
                Ok(exec) => {
                    self.execs.insert(id, exec);
                }
                Err(error) => {
                    let result = ExecResult::NotStarted(error.to_string());
                    self.inputs.push_back(Input::ExecExited { id, result, output: Vec::new() });
                }
            },
            Output::SignalExec { id, signal } => {
                if let Some(exec) = self.execs.get(&id) {
                    exec.signal(signal);
                }
            }
            Output::OpenBfd { session, spec } => self.inputs.push_back(match self.links.open(session, &spec) {
                Ok(ifindex) => Input::BfdOpened { session, ifindex },
                Err(why) => Input::BfdNotOpened { session, why },
            }),
            Output::SendBfd { session, bytes } => match self.links.send(session, &bytes) {
                Sent::AsBefore => {}
                Sent::Works => self.inputs.push_back(Input::BfdSent { session }),
                Sent::Fails(why) => self.inputs.push_back(Input::BfdUnsent { session, why }),
            },
            Output::CloseBfd { session } => self.links.close(session),
            Output::DropBgp { neighbor } => {
                if let Some(socket) = self.bgp.remove(&neighbor) {
                    empty(&socket);
                }
            }
            Output::RefuseBgp { neighbor } => drop(self.bgp.remove(&neighbor)),
            Output::FarewellBgp { neighbor, notification } => {
                let sent = self.bgp.remove(&neighbor).map(|socket| farewell(socket, &notification));
                if let Some(Err(error)) = sent {
                    self.log.line(&format_args!("bgp {neighbor}: the farewell may not have arrived: {error}"));
                }
            }
            Output::Ledger(ledger) => {
                if let Err(error) = self.ledger.store(&ledger) {
                    self.log.line(&format_args!("can't write the ledger: {error}"));
                }
            }
            Output::Notify(Notify::Ready) => self.manager.tell(&NotifyState::Ready),
            Output::Notify(Notify::Stopping) => self.manager.tell(&NotifyState::Stopping),
            Output::Notify(Notify::Status(status)) => self.manager.tell(&NotifyState::Status(&status)),
            Output::Event(event) => self.log.line(&Line(&event)),
            Output::Exit(status) => self.exit = Some(status),
        }
    }

    /// One that waits for its release.
    fn spawn_worker(&mut self) -> io::Result<(Worker, Process)> {
        let (worker, process) = Worker::hold(&self.options.worker_argv)?;
        if let Err(reasons) = sched::raise_limits(worker.pid(), sched::PROTOCOL_PRIORITY)
            && !std::mem::replace(&mut self.limits_reported, true)
        {
            for reason in reasons {
                self.log.line(&format_args!("the worker's limits stay, it keeps the capability instead: {reason}"));
            }
        }
        Ok((worker, process))
    }

    fn spawn_balancer(&mut self, name: String, argv: &[String]) {
        match Balancer::hold(argv) {
            Ok((balancer, process)) => {
                self.balancers.insert(name.clone(), balancer);
                self.inputs.push_back(Input::BalancerSpawned { name, process });
            }
            Err(error) => self.inputs.push_back(Input::BalancerNotSpawned { name, why: error.to_string() }),
        }
    }

    fn release(&mut self, child: Child) {
        match child {
            Child::Worker => self.worker = self.worker.take().map(Worker::release),
            Child::Next => self.next = self.next.take().map(Worker::release),
            Child::Balancer(name) => {
                if let Some(balancer) = self.balancers.remove(&name) {
                    self.balancers.insert(name, balancer.release());
                }
            }
        }
    }
}

/// Says it and ends the connection, whoever else may have the socket. The dead worker may have left half a message in
/// it: then the neighbour ends the session for what it can't read, which is as good.
fn farewell(socket: OwnedFd, notification: &[u8]) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::send(&socket, notification, flags);
    rustix::net::shutdown(&socket, Shutdown::Write)?;
    empty(&socket);
    match sent? {
        length if length == notification.len() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    }
}

/// Throws away what the neighbour has said to a dead worker: a socket that is closed with something unread resets the
/// connection, which may overtake what was said last.
fn empty(socket: &OwnedFd) {
    let mut buffer = [0; 4_096];
    for _ in 0..READS {
        if !matches!(rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT), Ok((1.., _))) {
            return;
        }
    }
}

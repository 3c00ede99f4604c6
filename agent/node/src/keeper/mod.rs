//! The keeper's machine and the messages between keeper and worker.
//!
//! The keeper outlives the worker: it starts it, hears its beats, undoes its work when it can't, and runs what must
//! not die with it (balancers) or must not have its rights (exec checks, hooks). [`Keeper`] decides all of that
//! without doing any of it: `handle`, then drain `poll_output`, then wait until `poll_timeout`.
//!
//! What happens when something dies (VRRP):
//!
//! | what | the keeper |
//! |---|---|
//! | worker crashes | starts the next one at once (then with back-off); Active VIPs wait min(200 ms, 2 × interval) for it to say `Owner` again, else priority 0 and the addresses go |
//! | worker hangs (no beat for max(300 ms, its limit), the keeper being on time) | SIGKILL, priority 0 and the addresses go at once; the next worker has nothing to resume |
//! | balancer dies while no worker lives | priority 0 and the addresses go at once |
//! | balancer dies, worker alive | tells the worker; starts the balancer again with back-off |
//! | keeper is killed | the worker leaves in order; the next keeper waits for that, and adopts the balancers |
//! | worker is to be replaced | starts the next one beside it (`upgrade.rs`); when that is ready the old one leaves, and all waits for the next as after a crash |
//! | keeper is told to stop | the worker leaves in order within the deadline, then what is left is undone, then the balancers stop |
//!
//! And for what is announced by BGP, with BFD and duplicates of the sessions' sockets (`routers.rs`):
//!
//! | what | the keeper |
//! |---|---|
//! | worker crashes or hangs | BFD stays Up; the addresses stay for their grace; the sockets are held for half the hold time, then closed in silence |
//! | balancer dies while no worker lives, or the grace is over | BFD Down, never AdminDown; a NOTIFICATION that defeats graceful restart on each socket; then the addresses go |
//! | balancer dies, worker alive | nothing: the worker withdraws |
//! | worker says that it is done | the sockets are dropped; BFD says AdminDown when the keeper stops |
//!
//! What this module refuses to do: know which process or socket is behind a name, and retry what nobody reported.

mod backoff;
mod balancers;
mod bfd;
mod bgp_sockets;
mod ending;
mod execs;
pub mod ipc;
pub mod mutants;
#[cfg(test)]
mod properties;
mod routers;
mod stopping;
#[cfg(test)]
mod tests;
mod types;
mod upgrade;
mod vips;

pub use types::{
    Child, Event, Found, Input, KillReason, Ledger, LedgerBalancer, Notify, Options, Output, Process, UndoReason,
};

use backoff::Backoff;
use balancers::Balancers;
use execs::Execs;
use holdfast_bfd::Datagram;
use ipc::{ToKeeper, ToWorker};
use routers::Routers;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use stopping::Stopping;
use upgrade::Next;
use vips::Vips;

/// Less silence than this is never a hang.
const HANG_MIN: Duration = Duration::from_millis(300);
/// A worker that hears nothing of its own for longer is hung whatever it claims.
const HANG_MAX: Duration = Duration::from_secs(60);
/// From start to the first beat or record. On a busy machine a start takes longer than a hang may.
const START_LIMIT: Duration = Duration::from_secs(10);
/// From Stopped, or from the end of the stop deadline, to the exit.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// From the end of its socket to the exit of a worker that dies: the kernel closes the one a little before the other.
const EXIT_LIMIT: Duration = Duration::from_millis(100);
/// A former keeper's worker leaves in order by itself; then it is killed.
const FORMER_LIMIT: Duration = Duration::from_secs(5);
/// A killed worker that the kernel can't end keeps us from stopping for no longer than this.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// All that follows the worker's end when we stop: undo, balancers (2 × 5 s), programs.
const FINISH_LIMIT: Duration = Duration::from_secs(20);
/// After a stall of our own the worker's silence counts from this long before its end.
const SILENT_BEFORE: Duration = Duration::from_millis(50);
/// While a worker lives the keeper wakes at least this often, so that its own lateness is seen.
/// Less than half of [`HANG_MIN`]: what a tick can't see of a stall of both mustn't look like a hang.
const TICK: Duration = Duration::from_millis(140);
/// Later than this is not on time.
const LATE: Duration = Duration::from_millis(20);
/// Worth an event.
const LATE_EVENT: Duration = Duration::from_millis(100);
/// After the first Hello every balancer of the configuration has been asked for.
const CLAIM_LIMIT: Duration = Duration::from_secs(10);

/// After how much silence a worker that says this limit is really taken as hung.
pub fn hang_limit_of(said: Duration) -> Duration {
    said.clamp(HANG_MIN, HANG_MAX)
}

/// For how long the last word of a worker with this limit is fresh. It leaves word after three fifths of this time at the
/// latest ([`beat_every`]).
pub fn patience(hang_limit: Duration) -> Duration {
    hang_limit * 2 / 3
}

/// How often a worker with this limit leaves word at least: a little less often than an Active with the shortest interval
/// that makes this the limit advertises, so that it does both in the same turns.
pub fn beat_every(hang_limit: Duration) -> Duration {
    hang_limit * 2 / 5
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    options: Options,
    out: Out,
    worker: Worker,
    /// The one that is to take its place.
    next: Option<Next>,
    vips: Vips,
    balancers: Balancers,
    execs: Execs,
    routers: Routers,
    backoff: Backoff,
    /// Workers that ended unasked, and how the last one did.
    crashed: u32,
    former_end: String,
    hang_limit: Duration,
    resume_limit: Duration,
    /// The first Hello was heard.
    ready: bool,
    unclaimed_at: Option<Instant>,
    stopping: Option<Stopping>,
    /// When `handle` ran last.
    last: Instant,
    /// As it was last put out; `None`: never, whatever a former keeper left is still there.
    ledger: Option<Ledger>,
    exited: bool,
}

#[derive(Debug)]
enum Worker {
    /// A former keeper's worker still leaves.
    Former { process: Process, kill_at: Option<Instant> },
    /// The next one starts at that time.
    Waiting { at: Instant },
    /// The caller is starting it.
    Spawning,
    /// It lives.
    Running(Running),
    /// It was killed and is not gone yet.
    Dying { process: Process, since: Instant, killed_at: Instant, why: KillReason },
    /// We stop, and it is gone.
    Gone,
}

#[derive(Debug)]
struct Running {
    process: Process,
    since: Instant,
    /// When it last said something.
    beat_at: Instant,
    hello: bool,
    /// Its protocol thread has begun: silence means something from here on.
    beating: bool,
    /// We can feel its pulse.
    felt: bool,
    /// It leaves word, and somebody wakes us when that stops ([`Input::Pulse`]).
    quiet: bool,
    /// It said Stopped then.
    done: Option<Instant>,
    /// It was told then to leave to the next one what it has.
    leaving: Option<Instant>,
    /// Its end of the socket pair was closed then: it is about to exit, or lost its mind.
    closed: Option<Instant>,
}

impl Running {
    fn new(now: Instant, process: Process) -> Self {
        Self {
            process,
            since: now,
            beat_at: now,
            hello: false,
            beating: false,
            felt: false,
            quiet: false,
            done: None,
            leaving: None,
            closed: None,
        }
    }
}

/// The queue of outputs. Bounded by what one input can cause: the machine's tables are.
#[derive(Debug, Default)]
struct Out(VecDeque<Output>);

impl Out {
    fn push(&mut self, output: Output) {
        self.0.push_back(output);
    }

    fn extend(&mut self, outputs: impl IntoIterator<Item = Output>) {
        self.0.extend(outputs);
    }

    fn event(&mut self, event: Event) {
        self.push(Output::Event(event));
    }
}

impl Keeper {
    /// A keeper that begins with what a former one left. There are outputs at once.
    pub fn new(now: Instant, options: Options, found: Found) -> Self {
        let mut out = Out::default();
        let balancers = Balancers::adopt(now, found.balancers, &mut out);
        let mut worker = Worker::Waiting { at: now };
        if let Some((process, start_time)) = found.worker
            && start_time == Some(process.start_time)
        {
            out.push(Output::WatchFormerWorker(process));
            worker = Worker::Former { process, kill_at: Some(now + FORMER_LIMIT) };
        }
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), Duration::from_secs(60));
        let mut keeper = Self {
            options,
            out,
            worker,
            next: None,
            vips: Vips::default(),
            balancers,
            execs: Execs::default(),
            routers: Routers::new(options.seed),
            backoff,
            crashed: 0,
            former_end: String::new(),
            hang_limit: HANG_MIN,
            resume_limit: Duration::MAX,
            ready: false,
            unclaimed_at: None,
            stopping: None,
            last: now,
            ledger: None,
            exited: false,
        };
        keeper.turn(now);
        keeper
    }

    /// Takes one input. Drain [`Self::poll_output`] afterwards.
    pub fn handle(&mut self, now: Instant, input: Input) {
        if self.exited {
            return;
        }
        self.observe_lateness(now);
        self.last = now;
        match input {
            Input::Timer => {}
            Input::WorkerSpawned(process) => self.worker_spawned(now, process),
            Input::WorkerNotSpawned { why } => self.worker_not_spawned(now, why),
            Input::Worker(message) => self.hear(now, message),
            Input::Pulse { at } => self.feel(now, at.min(now)),
            Input::WorkerClosed => self.worker_closed(now),
            Input::WorkerStuck => self.worker_stuck(now),
            Input::WorkerExited { what } => self.worker_exited(now, what),
            Input::FormerWorkerExited => {
                if let Worker::Former { .. } = self.worker {
                    self.worker = Worker::Waiting { at: now };
                }
            }
            Input::NextSpawned(process) => self.next_spawned(process),
            Input::NextNotSpawned { why } => self.give_up(why),
            Input::NextReady { hang_limit, resume_limit, felt } => {
                self.next_ready(now, hang_limit, resume_limit, felt);
            }
            Input::NextExited { what } => self.give_up(what),
            Input::BalancerSpawned { name, process } => {
                self.balancers.spawned(now, &name, process, &mut self.out);
                // Known to a later keeper before it can open a port.
                self.sync_ledger();
                Balancers::release(&name, &mut self.out);
            }
            Input::BalancerNotSpawned { name, why } => self.balancer_ended(now, &name, format!("can't start: {why}")),
            Input::BalancerExited { name, what } => self.balancer_ended(now, &name, what),
            Input::ExecExited { id, result, output } => self.execs.exited(id, result, output, &mut self.out),
            Input::Removed { undo, result } => self.vips.removed(now, undo, result, &mut self.out),
            Input::BfdOpened { session, ifindex } => self.routers.bfd.opened(session, ifindex),
            Input::BfdNotOpened { session, why } => self.routers.bfd.failed(now, session, why, false, &mut self.out),
            Input::BfdUnsent { session, why } => self.routers.bfd.failed(now, session, why, true, &mut self.out),
            Input::BfdSent { session } => self.routers.bfd.sends(now, session, &mut self.out),
            Input::Terminate => self.terminate(now),
            Input::Reload => self.tell(ToWorker::Reload),
        }
        self.turn(now);
    }

    /// A datagram has come to one of BFD's ports. Apart from [`Self::handle`], and [`Self::bfd_timer`] with it: this
    /// happens dozens of times a second and concerns nothing else. Hand in all that has come before the timers.
    pub fn bfd_receive(&mut self, now: Instant, datagram: &Datagram<'_>) {
        self.routers.bfd.receive(now, datagram, &mut self.out);
    }

    /// [`Self::bfd_timeout`] has passed.
    pub fn bfd_timer(&mut self, now: Instant) {
        self.routers.bfd.timer(now, &mut self.out);
        // The last farewell may have been what we waited for.
        if self.stopping.is_some() {
            self.progress_stop(now);
        }
    }

    /// When to call [`Self::bfd_timer`] at the latest; `None`: nothing armed.
    pub fn bfd_timeout(&self) -> Option<Instant> {
        self.routers.bfd.session_timeout().filter(|_| !self.exited)
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        loop {
            let output = self.out.0.pop_front()?;
            // Balancers and programs report whether somebody listens or not.
            if matches!(output, Output::SendToWorker(_)) && !self.is_booted() {
                continue;
            }
            return Some(output);
        }
    }

    /// When to hand in [`Input::Timer`] at the latest; `None`: nothing armed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.exited {
            return None;
        }
        let worker = match &self.worker {
            Worker::Former { kill_at, .. } => *kill_at,
            Worker::Waiting { at } => Some(*at),
            Worker::Running(running) => match self.limit(running) {
                None if running.quiet => None,
                limit => Some(limit.map_or(self.last + TICK, |at| at.min(self.last + TICK))),
            },
            Worker::Dying { killed_at, .. } => self.stopping.as_ref().map(|_| *killed_at + KILL_LIMIT),
            Worker::Spawning | Worker::Gone => None,
        };
        let stopping = self.stopping.as_ref().and_then(|stopping| match self.worker {
            Worker::Gone => stopping.finish_until.min(self.routers.bfd.seen_at().or(stopping.finish_until)),
            Worker::Running(_) => Some(stopping.worker_until),
            _ => None,
        });
        let routers = [self.routers.bfd.poll_timeout(), self.routers.sockets.poll_timeout()];
        let rest = [self.vips.poll_timeout(), self.balancers.poll_timeout(), self.execs.poll_timeout()];
        let rest = rest.into_iter().chain(routers);
        let next = self.next.as_ref().and_then(Next::limit);
        rest.chain([worker, next, stopping, self.unclaimed_at]).flatten().min()
    }

    /// When the worker's silence becomes a reason to kill it.
    fn limit(&self, running: &Running) -> Option<Instant> {
        let leaves = running.leaving.map(|at| at + LEAVE_LIMIT).filter(|_| !mutants::off("leave-limit"));
        let limit = match running {
            Running { done: Some(done), .. } => Some(*done + LEAVE_LIMIT),
            Running { closed: Some(closed), .. } => Some(*closed + EXIT_LIMIT),
            Running { beating: false, since, .. } => Some(*since + START_LIMIT),
            Running { quiet: true, .. } => None,
            Running { beat_at, .. } if !mutants::off("keeper-hang") => Some(*beat_at + self.hang_limit),
            Running { .. } => None,
        };
        limit.into_iter().chain(leaves).min()
    }

    fn is_booted(&self) -> bool {
        matches!(self.worker, Worker::Running(Running { hello: true, closed: None, .. }))
    }

    fn tell(&mut self, message: ToWorker) {
        if self.is_booted() {
            self.out.push(Output::SendToWorker(message));
        }
    }

    /// The worker left word at that time. As long as that is fresh nothing has to be looked at; then its silence is
    /// watched, and so is our own lateness. From there to the limit is long enough for a worker to leave word again that
    /// was stopped until then together with us.
    fn feel(&mut self, now: Instant, at: Instant) {
        let due = at + patience(self.hang_limit);
        let Worker::Running(running) = &mut self.worker else { return };
        running.felt = true;
        running.beat_at = running.beat_at.max(at);
        let slept = std::mem::replace(&mut running.quiet, running.beating && now < due);
        if slept && !running.quiet {
            self.excuse(now, now.saturating_duration_since(due));
        }
    }

    /// Silence that passed while the keeper itself didn't run doesn't count: what stopped us may have stopped both.
    fn observe_lateness(&mut self, now: Instant) {
        let late = self.poll_timeout().map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        self.excuse(now, late);
    }

    fn excuse(&mut self, now: Instant, late: Duration) {
        if late <= LATE {
            return;
        }
        if let Worker::Running(running) = &mut self.worker {
            // What was silent before we stopped counts for little: it may have stopped earlier than we could see.
            let counts = now.checked_sub(SILENT_BEFORE).unwrap_or(now);
            running.beat_at = (running.beat_at + late).max(counts).min(now);
        }
        if late >= LATE_EVENT {
            self.out.event(Event::Late { by: late });
        }
    }

    /// Everything that is due by now.
    fn turn(&mut self, now: Instant) {
        self.supervise(now);
        self.supervise_next(now);
        for (vip, role_epoch) in self.vips.lapse(now, &mut self.routers, &mut self.out) {
            self.tell(ToWorker::Lapsed { vip, role_epoch });
        }
        self.vips.retry(now, &mut self.out);
        self.routers.sockets.timer(now, &mut self.out);
        self.routers.bfd.retry(now, &mut self.out);
        self.balancers.timer(now, &mut self.out);
        self.execs.timer(now, &mut self.out);
        if self.unclaimed_at.is_some_and(|at| at <= now) {
            self.unclaimed_at = None;
            self.balancers.report_unclaimed(&mut self.out);
        }
        if self.stopping.is_some() {
            self.progress_stop(now);
        } else if matches!(self.worker, Worker::Waiting { at } if at <= now) {
            self.worker = Worker::Spawning;
            self.out.push(Output::SpawnWorker);
        }
        self.sync_ledger();
    }

    fn supervise(&mut self, now: Instant) {
        match &mut self.worker {
            Worker::Former { kill_at, .. } if kill_at.is_some_and(|at| at <= now) => {
                *kill_at = None;
                self.out.push(Output::KillFormerWorker);
            }
            Worker::Running(_) => {
                let Worker::Running(running) = &self.worker else { return };
                if self.limit(running).is_none_or(|limit| limit > now) {
                    return;
                }
                match running {
                    // It said it was done: only its process is late.
                    Running { done: Some(_), .. } | Running { closed: Some(_), .. } => {
                        self.kill(now, KillReason::Closed)
                    }
                    Running { beating: false, .. } => self.kill(now, KillReason::Silent),
                    Running { leaving: Some(at), .. } if *at + LEAVE_LIMIT <= now => self.kill(now, KillReason::Stays),
                    Running { beat_at, .. } => {
                        let silent = now.saturating_duration_since(*beat_at);
                        self.kill(now, KillReason::Hung(silent));
                        self.vips.undo_hung(now, &mut self.routers, &mut self.out);
                    }
                }
            }
            _ => {}
        }
    }

    fn worker_spawned(&mut self, now: Instant, process: Process) {
        let Worker::Spawning = self.worker else { return };
        self.worker = Worker::Running(Running::new(now, process));
        self.out.event(Event::WorkerStarted { pid: process.pid });
        if self.stopping.is_some() {
            self.kill(now, KillReason::Stopping);
        } else {
            self.sync_ledger();
            self.out.push(Output::Release(Child::Worker));
        }
    }

    fn worker_not_spawned(&mut self, now: Instant, why: String) {
        let Worker::Spawning = self.worker else { return };
        let retry_in = self.backoff.ended(Duration::ZERO);
        self.worker = Worker::Waiting { at: now + retry_in };
        self.out.event(Event::WorkerNotStarted { why, retry_in });
    }

    fn hear(&mut self, now: Instant, message: ToKeeper) {
        let running = match (&mut self.worker, message) {
            (Worker::Running(running), message) => {
                running.beat_at = now;
                running.beating |= matches!(message, ToKeeper::Beat | ToKeeper::Owner(_));
                (running, message)
            }
            // Its last words, sent before it was killed, read before or after we gave up waiting for its end.
            (Worker::Dying { .. } | Worker::Gone, ToKeeper::Owner(record)) => {
                return self.vips.remove_late(&record, &mut self.out);
            }
            // The caller has the socket already.
            (Worker::Dying { .. } | Worker::Gone, ToKeeper::BgpSession(session)) => {
                return self.routers.sockets.set_late(now, session, &mut self.out);
            }
            _ => return,
        };
        match running {
            (running, ToKeeper::Hello { hang_limit, resume_limit }) => {
                let first = !std::mem::replace(&mut running.hello, true);
                self.hang_limit = hang_limit_of(hang_limit);
                self.resume_limit = resume_limit;
                if first {
                    self.boot(now, self.former_end.clone());
                }
            }
            (_, ToKeeper::Beat) => {}
            (_, ToKeeper::Owner(record)) => self.vips.replace(record, &mut self.out),
            (_, ToKeeper::Bfd(specs)) => self.routers.bfd.want(now, specs, &mut self.out),
            (_, ToKeeper::BgpSession(session)) => self.routers.sockets.set(session, &mut self.out),
            (running, ToKeeper::Stopped) => {
                running.done = Some(now);
                self.routers.sockets.clear(&mut self.out);
            }
            (_, ToKeeper::Replace) => self.prepare_next(now),
            (_, ToKeeper::StopBalancer { name }) => self.balancers.stop(now, &name, &mut self.out),
            (_, ToKeeper::StartBalancer { name, argv, soft_stop }) => {
                if self.stopping.is_none() {
                    self.balancers.start(now, name, argv, soft_stop, &mut self.out);
                }
            }
            (_, ToKeeper::Exec { token, argv, environment, timeout }) => {
                self.execs.start(now, token, argv, environment, timeout, &mut self.out);
            }
        }
    }

    /// Answers its greeting. What is to be said of the end of the former one: nothing of one that left in order.
    fn boot(&mut self, now: Instant, former_end: String) {
        self.routers.attended = true;
        let mut parts = self.vips.held();
        let (resume, pseudo_header) = parts.pop().unwrap_or_default();
        for (resume, pseudo_header) in parts {
            self.tell(ToWorker::Held { resume, pseudo_header });
        }
        let (crashed_before, bgp_restarting) = (self.crashed, self.routers.sockets.resume(now, &mut self.out));
        let pulse = matches!(self.worker, Worker::Running(Running { felt: true, .. }));
        self.tell(ToWorker::Boot { resume, pseudo_header, crashed_before, former_end, bgp_restarting, pulse });
        if !std::mem::replace(&mut self.ready, true) {
            self.out.push(Output::Notify(Notify::Ready));
            self.unclaimed_at = Some(now + CLAIM_LIMIT);
        }
        let status = match self.crashed {
            0 => "running".to_owned(),
            n => format!("running; {n} workers ended unasked, the last one: {}", self.former_end),
        };
        self.out.push(Output::Notify(Notify::Status(status)));
        if let Some(Stopping { worker_until, .. }) = self.stopping {
            self.tell(ToWorker::Stop { deadline: worker_until.saturating_duration_since(now) });
        }
    }

    fn balancer_ended(&mut self, now: Instant, name: &str, what: String) {
        if self.balancers.ended(now, name, what, &mut self.out) {
            self.vips.balancer_ended(now, name, &mut self.routers, &mut self.out);
        }
    }

    fn sync_ledger(&mut self) {
        let worker = match &self.worker {
            Worker::Former { process, .. } | Worker::Dying { process, .. } => Some(*process),
            Worker::Running(running) => Some(running.process),
            Worker::Waiting { .. } | Worker::Spawning | Worker::Gone => None,
        };
        let ledger = Ledger { worker, balancers: self.balancers.ledger() };
        if self.ledger.as_ref() != Some(&ledger) {
            self.ledger = Some(ledger.clone());
            self.out.push(Output::Ledger(ledger));
        }
    }
}

//! What goes into the [`Keeper`](super::Keeper) and what comes out of it.

use super::ipc::{BfdSpec, BfdState, ExecResult, Resign, ToKeeper, ToWorker, Undo};
use holdfast_bfd::Discriminator;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A process that can't be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_time: u64,
}

/// What a later keeper must know when this one is killed. To be stored atomically; empty: to be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The worker, which leaves in order by itself when its keeper is gone.
    pub worker: Option<Process>,
    /// The balancers that we started.
    pub balancers: Vec<LedgerBalancer>,
}

/// A balancer in the [`Ledger`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerBalancer {
    /// Its name in the configuration.
    pub name: String,
    /// What was started.
    pub argv: Vec<String>,
    /// See [`ToKeeper::StartBalancer`].
    pub soft_stop: Option<i32>,
    /// The process that was started.
    pub process: Process,
}

/// The ledger of a former keeper and what is there of it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The former worker, and the start time of whatever process has its id now.
    pub worker: Option<(Process, Option<u64>)>,
    /// The balancers, each with the start time of whatever process has its id now.
    pub balancers: Vec<(LedgerBalancer, Option<u64>)>,
}

/// Times that are the operator's.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long the worker may take to leave in order when the keeper is told to stop.
    pub stop_deadline: Duration,
    /// For BFD's jitter and discriminators: another one at each start.
    pub seed: u64,
}

/// Something happened. Read what is waiting on the worker's socket before handing in [`Input::Timer`]: beats that
/// lie unread must not look like silence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// `poll_timeout` has passed.
    Timer,
    /// Answer to [`Output::SpawnWorker`].
    WorkerSpawned(Process),
    /// The other answer to [`Output::SpawnWorker`].
    WorkerNotSpawned {
        /// Why.
        why: String,
    },
    /// Answer to [`Output::SpawnNext`].
    NextSpawned(Process),
    /// The other answer to [`Output::SpawnNext`].
    NextNotSpawned {
        /// Why.
        why: String,
    },
    /// The next worker has said Hello, and nothing else: what it says after [`Output::Promote`] is a worker's.
    NextReady {
        /// See [`ToKeeper::Hello`].
        hang_limit: Duration,
        /// See [`ToKeeper::Hello`].
        resume_limit: Duration,
        /// The means to feel its pulse came along.
        felt: bool,
    },
    /// The next worker's process is gone, before [`Output::Promote`].
    NextExited {
        /// How, in words.
        what: String,
    },
    /// The worker said something.
    Worker(ToKeeper),
    /// The worker was alive then, as it left word without waking us. To be handed in before a
    /// greeting that brought the means to it, before [`Input::Timer`], and when
    /// [`patience`](super::patience) has passed since: who hands in one undertakes to do so, and may sleep until then.
    Pulse {
        /// When.
        at: Instant,
    },
    /// The worker's end of the socket pair is closed.
    WorkerClosed,
    /// The worker doesn't read: what we have to tell it has filled the queue.
    WorkerStuck,
    /// The worker's process is gone.
    WorkerExited {
        /// How, in words: `signal 9`.
        what: String,
    },
    /// The former keeper's worker is gone.
    FormerWorkerExited,
    /// Answer to [`Output::SpawnBalancer`].
    BalancerSpawned {
        /// Its name.
        name: String,
        /// What was started.
        process: Process,
    },
    /// The other answer to [`Output::SpawnBalancer`].
    BalancerNotSpawned {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// A balancer's process is gone.
    BalancerExited {
        /// Its name.
        name: String,
        /// How, in words.
        what: String,
    },
    /// A program is gone, or could not be started.
    ExecExited {
        /// The id of [`Output::SpawnExec`].
        id: u64,
        /// How.
        result: ExecResult,
        /// What it wrote.
        output: Vec<u8>,
    },
    /// How [`Output::Remove`] ended: exactly one for each.
    Removed {
        /// Which.
        undo: Undo,
        /// `Err`: it may still be there; why, in words.
        result: Result<(), String>,
    },
    /// Answer to [`Output::OpenBfd`].
    BfdOpened {
        /// Which session.
        session: Discriminator,
        /// The interface it is bound to now.
        ifindex: Option<u32>,
    },
    /// The other answer to [`Output::OpenBfd`]: it is asked for again in a while.
    BfdNotOpened {
        /// Which session.
        session: Discriminator,
        /// In words.
        why: String,
    },
    /// A packet could not be sent. To be handed in once, until packets are sent again.
    BfdUnsent {
        /// Which session.
        session: Discriminator,
        /// In words.
        why: String,
    },
    /// A packet was sent, the first one of this socket or after [`Input::BfdUnsent`].
    BfdSent {
        /// Which session.
        session: Discriminator,
    },
    /// SIGTERM or SIGINT.
    Terminate,
    /// SIGHUP.
    Reload,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Start a worker that waits for [`Output::Release`]; answer with `WorkerSpawned` or `WorkerNotSpawned`.
    SpawnWorker,
    /// SIGKILL to the worker's process group.
    KillWorker,
    /// Start another worker beside the living one, that waits for [`Output::Release`]; answer with `NextSpawned` or
    /// `NextNotSpawned`.
    SpawnNext,
    /// SIGKILL to that one's process group.
    KillNext,
    /// The former worker is gone: the next one is the worker from here on.
    Promote,
    /// Watch the worker that a former keeper left; report with `FormerWorkerExited`.
    WatchFormerWorker(Process),
    /// SIGKILL to that one's process group.
    KillFormerWorker,
    /// Tell the worker.
    SendToWorker(ToWorker),
    /// Send this advert, now.
    SendResign(Resign),
    /// Remove this, now; gone already is success. Answer with `Removed`.
    Remove(Undo),
    /// Start a balancer that waits for [`Output::Release`]; answer with `BalancerSpawned` or `BalancerNotSpawned`.
    SpawnBalancer {
        /// Its name.
        name: String,
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// Watch a balancer that a former keeper started; report with `BalancerExited` if it is gone already.
    WatchBalancer {
        /// Its name.
        name: String,
        /// The process.
        process: Process,
    },
    /// A signal to a balancer.
    SignalBalancer {
        /// Its name.
        name: String,
        /// The signal's number.
        signal: i32,
        /// To its whole process group.
        group: bool,
    },
    /// Let a spawned process run its program: it is in the ledger now.
    Release(Child),
    /// Run a program; report with `ExecExited`.
    SpawnExec {
        /// Names this run.
        id: u64,
        /// Program and arguments.
        argv: Vec<String>,
        /// Added to our own environment.
        environment: Vec<(String, String)>,
    },
    /// A signal to the process group of a program.
    SignalExec {
        /// Which run.
        id: u64,
        /// The signal's number.
        signal: i32,
    },
    /// Open what this session sends by (in place of what it had), and hear what comes to its port; answer with
    /// `BfdOpened` or `BfdNotOpened`.
    OpenBfd {
        /// Which session.
        session: Discriminator,
        /// From where to where.
        spec: Box<BfdSpec>,
    },
    /// Send this packet, now.
    SendBfd {
        /// Which session.
        session: Discriminator,
        /// The payload.
        bytes: [u8; holdfast_bfd::wire::LEN],
    },
    /// The session is over.
    CloseBfd {
        /// Which session.
        session: Discriminator,
    },
    /// Close our duplicate of a BGP session's socket, if there is one; say nothing. Nobody reads from it any more: what
    /// the neighbour has said may be thrown away, so that the close resets nothing.
    DropBgp {
        /// The neighbour.
        neighbor: String,
    },
    /// Close our duplicate of a BGP session's socket, and do nothing else with it: it is refused, and the worker lives
    /// and reads from it.
    RefuseBgp {
        /// The neighbour.
        neighbor: String,
    },
    /// Send this through it first, and make sure that the session ends.
    FarewellBgp {
        /// The neighbour.
        neighbor: String,
        /// A whole NOTIFICATION.
        notification: Vec<u8>,
    },
    /// Store this.
    Ledger(Ledger),
    /// Tell the service manager.
    Notify(Notify),
    /// To be logged.
    Event(Event),
    /// End with this status. Nothing follows.
    Exit(u8),
}

/// See [`Output::Release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Child {
    /// The worker.
    Worker,
    /// The one that is to take its place.
    Next,
    /// The balancer of this name.
    Balancer(String),
}

/// What the service manager is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notify {
    /// The first worker has said Hello.
    Ready,
    /// We are leaving.
    Stopping,
    /// One line for people.
    Status(String),
}

/// What happened, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker process was started.
    WorkerStarted {
        /// Its process id.
        pid: u32,
    },
    /// A worker ended without having been asked to.
    WorkerEnded {
        /// How.
        what: String,
        /// How long it lived.
        lived: Duration,
        /// When the next one starts.
        restart_in: Duration,
    },
    /// A worker left in order to the one that was started beside it.
    WorkerReplaced {
        /// The new one's process id.
        pid: u32,
        /// How long the former one lived.
        lived: Duration,
    },
    /// The worker that was to take over can't; the living one goes on.
    NextFailed {
        /// Why.
        why: String,
    },
    /// A worker could not be started.
    WorkerNotStarted {
        /// Why.
        why: String,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// A worker is killed.
    WorkerKilled {
        /// Why.
        why: KillReason,
    },
    /// A VIP was undone on the worker's behalf.
    Undone {
        /// The VIP.
        vip: String,
        /// Priority 0 was sent.
        resigned: bool,
        /// How much was removed.
        removed: usize,
        /// Why.
        why: UndoReason,
    },
    /// A new worker resumed a VIP within its grace.
    Resumed {
        /// The VIP.
        vip: String,
    },
    /// Something could not be removed; it is tried again.
    RemoveFailed {
        /// Which.
        undo: Undo,
        /// In words.
        what: String,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// A balancer was started.
    BalancerStarted {
        /// Its name.
        name: String,
        /// Its process id.
        pid: u32,
    },
    /// A balancer ended.
    BalancerEnded {
        /// Its name.
        name: String,
        /// How.
        what: String,
        /// When it is started again; `None`: it isn't.
        restart_in: Option<Duration>,
    },
    /// A balancer that a former keeper started goes on under this one.
    BalancerAdopted {
        /// Its name.
        name: String,
        /// Its process id.
        pid: u32,
    },
    /// The new worker's configuration doesn't name this balancer, which a former keeper started. It is left alone.
    BalancerUnclaimed {
        /// Its name.
        name: String,
        /// Its process id.
        pid: u32,
    },
    /// A request was refused because too much is there already.
    Refused {
        /// What.
        what: &'static str,
    },
    /// The keeper itself was not on time; the wait for beats is longer by as much.
    Late {
        /// How late.
        by: Duration,
    },
    /// A BFD session changed its state.
    Bfd {
        /// The neighbour.
        neighbor: String,
        /// The former state.
        from: BfdState,
        /// This one.
        to: BfdState,
        /// Why: see [`super::ipc::describe_diagnostic`].
        diag: u8,
        /// Changes in between that came too fast to be told one by one.
        left_out: u32,
    },
    /// A BFD session can't run; it is tried again.
    BfdProblem {
        /// The neighbour.
        neighbor: String,
        /// In words.
        what: String,
    },
    /// A dead worker's BGP session was closed: half its hold time is over and nobody has resumed it.
    BgpClosed {
        /// The neighbour.
        neighbor: String,
    },
    /// Something that was announced is gone and no worker could withdraw it: BFD is Down to all neighbours, and their
    /// sessions that stood were ended.
    Forsaken,
    /// The keeper was told to stop.
    Stopping,
}

/// Why a worker was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// No beat for this long.
    Hung(Duration),
    /// It closed its socket and went on running.
    Closed,
    /// It doesn't read its socket.
    Stuck,
    /// It did not leave when the next one was ready.
    Stays,
    /// It did not begin: no Hello, or no beat after it.
    Silent,
    /// It did not leave within the stop deadline.
    StopDeadline,
    /// We stop, and it had not begun its work yet.
    Stopping,
}

/// Why the keeper undid a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoReason {
    /// The worker hung.
    Hung,
    /// No worker resumed it within its grace.
    Lapsed,
    /// The worker died when it was not Active, or had said that it was done.
    Left,
    /// Its balancer doesn't run and no worker is there to react.
    Balancer,
    /// The new worker came up as Backup.
    NotResumed,
    /// The keeper stops.
    Stopping,
}

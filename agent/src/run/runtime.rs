//! The worker's runtime: journal, intents, log, control API. Nothing here is in a hurry, and nothing here can hold the
//! protocol thread up. Beside it are the threads of checks and balancers ([`super::looks`]).

use super::api::{ApiHandle, EventRing, Recorded};
use super::fifo::{Fifo, Line};
use super::protocol::Ended;
use super::queues::{DiskFigures, Note, RuntimeEnds, StartProbe};
use super::sync::query::SyncHandle;
use super::{intents, journal, looks};
use crate::balancer::report::Reporter;
use crate::balancer::watch::Looker;
use crate::os::conntrack::Table;
use crate::{check, ctl};
use holdfast_node::config::{Check, Conntrack};
use holdfast_node::drain::Intents;
use holdfast_node::journal::Severity;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Entries on their way to log and disk. Full (a disk or a log that refuses for long) → dropped and counted.
const LINES_MAX: usize = 4_096;
/// Entries taken at once.
const SOME: usize = 256;
/// Pause before a disk that refused is tried again.
const DISK_RETRY: Duration = Duration::from_secs(1);
/// How long the last entries may take at the end.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The same where another worker waits for our end.
const SHORT_LAST_WORDS: Duration = Duration::from_millis(50);
/// How long reading the old journal may hold up new entries.
const TAIL_PATIENCE: Duration = Duration::from_secs(1);
/// At most this often the log says that something was dropped.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// What the runtime is given.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) state_dir: PathBuf,
    pub(super) checks: Vec<Check>,
    /// The addresses that this node manages.
    pub(super) managed: BTreeSet<IpAddr>,
    pub(super) lookers: Vec<Looker>,
    pub(super) reporters: Vec<Reporter>,
    /// Files that take a VIP out while they are there.
    pub(super) disable: super::disable::Files,
    /// When the connection table is to be worried about.
    pub(super) conntrack: Conntrack,
    /// keepalived's notify fifo.
    pub(super) fifo: Option<PathBuf>,
    pub(super) ends: RuntimeEnds,
    pub(super) api: Option<UnixListener>,
    /// Of the thread that replicates flows, if one does.
    pub(super) sync: Option<SyncHandle>,
    /// How the protocol thread ended; closed: it panicked.
    pub(super) ended: oneshot::Receiver<Result<Ended, String>>,
}

/// Log lines of this process go to stderr: what starts it knows where that leads. `HOLDFAST_LOG` filters them.
pub(super) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("HOLDFAST_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    // Err: somebody has set up another one, which is as good. The journal of systemd has its own time.
    let _ = if std::env::var_os("JOURNAL_STREAM").is_some() {
        builder.without_time().try_init()
    } else {
        builder.try_init()
    };
}

/// Runs until the protocol thread ends, and a little longer so that its last words are kept.
///
/// # Errors
/// Why the protocol thread could not start, or that it panicked.
pub(super) fn run(setup: Setup) -> Result<Ended, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_name("runtime")
        .enable_all()
        .build()
        .map_err(|e| format!("runtime: {e}"))?;
    let ended = runtime.block_on(main(setup));
    // Tasks that wait for a disk or a target that never answers are left behind.
    runtime.shutdown_background();
    ended
}

async fn main(setup: Setup) -> Result<Ended, String> {
    let Setup { state_dir, checks, managed, lookers, reporters, disable, conntrack, fifo, ends, api, sync, ended } =
        setup;
    looks::balancers(lookers, reporters)?;
    looks::spawn("checks", move || async move {
        let runner = check::Runner::new(&checks, ends.results, Handle::current()).with_managed(managed);
        let conntrack = super::conntrack::watch(conntrack, Table::new(), ends.conntrack);
        tokio::join!(probes(runner, ends.probes), conntrack);
    })?;
    let stop = CancellationToken::new();
    let last_words = TaskTracker::new();
    let ring = Arc::new(EventRing::new());
    tokio::spawn(ignore_signals());
    tokio::spawn(notes(ends.notes));
    tokio::spawn(super::disable::watch(disable, ends.disabled));
    last_words.spawn(events(state_dir.clone(), ends.events, Arc::clone(&ring), Arc::clone(&ends.disk)));
    last_words.spawn(store_intents(state_dir, ends.intents, ends.disk));
    if let Some(path) = fifo {
        last_words.spawn(states(path, ends.lines));
    }
    let handle = ApiHandle::new(ends.requests, ring, ends.figures.clone()).with_sync(sync);
    tokio::spawn(complain(ends.figures));
    if let Some(listener) = api {
        match listener.set_nonblocking(true).and_then(|()| tokio::net::UnixListener::from_std(listener)) {
            Ok(listener) => drop(last_words.spawn(ctl::server::serve(listener, handle, stop.clone()))),
            Err(e) => tracing::error!("control socket: {e}"),
        }
    }
    let ended = ended.await.unwrap_or_else(|_| Err("the protocol thread panicked".to_owned()));
    stop.cancel();
    last_words.close();
    let patience = if matches!(ended, Ok(Ended::Left)) { SHORT_LAST_WORDS } else { LAST_WORDS };
    if tokio::time::timeout(patience, last_words.wait()).await.is_err() {
        tracing::warn!("left before everything was written");
    }
    ended
}

/// Signals to the worker itself are not for it: the keeper hears them and tells what to do. (A service manager or a
/// terminal signals every process of the group.)
async fn ignore_signals() {
    use tokio::signal::unix::{SignalKind, signal};
    let all = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    // Once a handler is installed the default action is gone, whether anybody listens or not.
    let handlers: Vec<_> = all.into_iter().filter_map(|kind| signal(kind).ok()).collect();
    std::future::pending::<()>().await;
    drop(handlers);
}

async fn probes(runner: check::Runner, mut asked: mpsc::Receiver<Vec<StartProbe>>) {
    while let Some(together) = asked.recv().await {
        for StartProbe { check, sequence, timeout } in together {
            runner.start(check, sequence, timeout);
        }
    }
}

/// Ring first, so that readers of the API never wait for a disk; then log and disk, in a thread of their own.
async fn events(dir: PathBuf, mut events: mpsc::Receiver<Recorded>, ring: Arc<EventRing>, disk: Arc<DiskFigures>) {
    let old = {
        let dir = dir.clone();
        let read = tokio::task::spawn_blocking(move || journal::tail(&dir).unwrap_or_default());
        tokio::time::timeout(TAIL_PATIENCE, read).await
    };
    for entry in old.into_iter().flatten().flatten() {
        ring.push(Arc::new(entry));
    }
    let (lines, waiting) = mpsc::channel(LINES_MAX);
    let (written_in, written) = oneshot::channel::<()>();
    let counted = Arc::clone(&disk);
    let writer = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
        write_lines(journal::Writer::new(&dir), waiting, &counted);
        drop(written_in);
    });
    if let Err(e) = writer {
        tracing::error!("journal thread: {e}; events are kept in memory only");
    }
    let mut some = Vec::with_capacity(SOME);
    while events.recv_many(&mut some, SOME).await > 0 {
        for entry in some.drain(..).map(Arc::new) {
            ring.push(Arc::clone(&entry));
            if lines.try_send(entry).is_err() {
                disk.add(0, 1);
            }
        }
    }
    drop(lines);
    // Closed, never sent: the thread is done.
    let _ = written.await;
}

fn write_lines(mut writer: journal::Writer, mut waiting: mpsc::Receiver<Arc<Recorded>>, disk: &DiskFigures) {
    let mut some = Vec::with_capacity(SOME);
    let mut said = false;
    let mut open = true;
    while open {
        open = waiting.blocking_recv_many(&mut some, SOME) > 0;
        for entry in some.drain(..) {
            log(&entry);
            writer.take(&entry);
        }
        writer.flush();
        disk.add(std::mem::take(&mut writer.errors), std::mem::take(&mut writer.dropped));
        match &writer.failing {
            Some(why) if !said => tracing::error!("journal: {why}; entries wait in memory"),
            None if said => tracing::info!("journal: written again"),
            _ => {}
        }
        said = writer.failing.is_some();
        if open && writer.is_behind() {
            std::thread::sleep(DISK_RETRY);
        }
    }
}

/// One line per event, as JSON: for people there is `holdfast events`.
fn log(entry: &Recorded) {
    let line = serde_json::to_string(&entry.event).unwrap_or_default();
    match entry.event.kind.severity() {
        Severity::Info => tracing::info!("{line}"),
        Severity::Warning => tracing::warn!("{line}"),
        Severity::Fault => tracing::error!("{line}"),
    }
}

async fn store_intents(dir: PathBuf, mut changed: watch::Receiver<Intents>, disk: Arc<DiskFigures>) {
    while changed.changed().await.is_ok() {
        loop {
            let intents = changed.borrow_and_update().clone();
            let dir = dir.clone();
            let stored = tokio::task::spawn_blocking(move || intents::store(&dir, &intents)).await;
            let Ok(Err(e)) = stored else { break };
            disk.add(1, 0);
            tracing::error!("intents can't be stored: {e}; a restart would forget them");
            tokio::time::sleep(DISK_RETRY).await;
        }
    }
}

async fn notes(mut notes: mpsc::Receiver<Note>) {
    let said = |errno: i32| io::Error::from_raw_os_error(errno);
    while let Some(note) = notes.recv().await {
        match note {
            Note::Not(reason) => tracing::warn!("{reason}"),
            Note::ChannelBind { listen, errno } => {
                tracing::error!("peers' channel: bind {listen}: {}; tried again every second", said(errno));
            }
            Note::ChannelBound { listen } => tracing::info!("peers' channel: {listen} is bound now"),
            Note::Monitor { errno } => tracing::error!("network events: {}; tried again", said(errno)),
            Note::BgpListen { port, errno } => {
                tracing::error!(
                    "bgp: can't listen on port {port}: {}; tried again every second, routers that wait for us to be \
                     called can't connect (listen = false where another speaker has the port)",
                    said(errno)
                );
            }
            Note::KeeperGone => tracing::error!("the keeper is gone: leaving in order"),
            Note::Stop { deadline } => tracing::info!("told to stop within {} ms", deadline.as_millis()),
            Note::StopLate => tracing::error!("not released in time: the rest is left to the keeper"),
            Note::Sync(e) => tracing::error!("no flow is replicated: timer: {e}"),
            Note::Reload => tracing::warn!("reload: this version takes a new configuration only at its next start"),
            Note::Lapsed { vip } => tracing::warn!("{vip}: the keeper gave it away, this worker came too late"),
        }
    }
}

/// Changes of state to the notify fifo, to the last one.
async fn states(path: PathBuf, mut lines: mpsc::Receiver<Line>) {
    let fifo = Fifo::spawn(path);
    while let Some(line) = lines.recv().await {
        fifo.tell(line);
    }
    fifo.flush().await;
}

/// Says in the log that something was dropped, at most once a minute per cause.
async fn complain(mut figures: watch::Receiver<Arc<super::api::WorkerFigures>>) {
    let mut said: Vec<(&'static str, u64)> = Vec::new();
    while figures.changed().await.is_ok() {
        let now = figures.borrow_and_update().dropped.clone();
        let grown = now.iter().filter(|(name, n)| *n > said.iter().find(|(s, _)| s == name).map_or(0, |(_, n)| *n));
        let grown: Vec<String> = grown.map(|(name, n)| format!("{name} {n}")).collect();
        if !grown.is_empty() {
            tracing::warn!("a queue was full; dropped since the start: {}", grown.join(", "));
            said = now;
            tokio::time::sleep(COMPLAIN_EVERY).await;
        }
    }
}

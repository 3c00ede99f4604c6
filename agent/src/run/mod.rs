//! The worker: everything but the keeper's few duties.
//!
//! | module | does |
//! |---|---|
//! | `startup` | what is read before rights are given away |
//! | `protocol`, `emit` | the protocol thread: inputs, outputs |
//! | `bgp` | the connections with routers |
//! | `disable` | files that take a VIP out |
//! | `link`, `exec` | the line to the keeper, programs that it runs for us |
//! | `flood` | how often a socket is read that brings garbage |
//! | `queues` | everything between the protocol thread and the runtime |
//! | `runtime` | journal, intents, log, control API |
//! | `looks` | threads for checks and for looks at balancers |
//! | [`journal`], `record`, `intents` | what is on disk |
//! | [`api`] | the handle by which the control API asks and listens |
//! | [`sync`] | the thread that replicates flows |
//! | [`lateness`] | how late the protocol thread was, as a histogram |
//!
//! Order at start: what may fail comes first (configuration, keys), then the keeper's word, which a worker that is to take
//! over from a living one waits for; then what that one has left, rights, the protocol thread. Runtime, journal and API
//! follow while that thread already works.
//!
//! What this module refuses to do: decide anything ([`holdfast_node::Node`] does) and change the kernel
//! ([`crate::reconcile`] does). It moves inputs and outputs, each over a bounded queue.

pub mod api;
mod bgp;
mod conntrack;
mod disable;
mod emit;
mod exec;
pub mod fifo;
mod flood;
mod intents;
pub mod journal;
pub mod lateness;
mod link;
mod looks;
mod protocol;
mod queues;
mod record;
mod runtime;
mod startup;
pub mod sync;
#[cfg(test)]
mod testing;

pub(crate) use startup::secret_key;

use crate::balancer::{report, watch};
use crate::keeper::channel::{End, Received, WorkerEnd};
use crate::keeper::pulse;
use crate::os::{caps, process, sched};
use crate::{config, ctl};
use holdfast_node::io::Boot;
use holdfast_node::keeper::ipc::{ToKeeper, ToWorker};
use holdfast_node::keeper::patience;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Whom a worker becomes, where that user exists.
const USER: &str = "holdfast";
/// How long the keeper may take to answer the first message.
const BOOT_PATIENCE: Duration = Duration::from_secs(5);
/// How long VIPs may wait for a worker to resume (the keeper takes less where the interval is short).
const RESUME_LIMIT: Duration = Duration::from_millis(200);

/// How the keeper starts a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Sockets and pidfiles (`/run/holdfast`).
    pub runtime_dir: PathBuf,
    /// Journal and intents (`/var/lib/holdfast`).
    pub state_dir: PathBuf,
    /// The socketpair to the keeper, inherited.
    pub ipc_fd: RawFd,
}

/// Runs the worker until the keeper says stop or vanishes. Never called but in a process of its own, before that
/// process has a second thread.
pub fn worker(options: WorkerOptions) -> ExitCode {
    runtime::log_to_stderr();
    match run(&options) {
        Ok(protocol::Ended::Clean | protocol::Ended::Left) => ExitCode::SUCCESS,
        Ok(protocol::Ended::Late) => ExitCode::FAILURE,
        Err(why) => {
            tracing::error!("worker: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &WorkerOptions) -> Result<protocol::Ended, String> {
    let begun = Instant::now();
    let mut notes = Vec::new();
    let keeper =
        process::take_inherited(options.ipc_fd).map_err(|e| format!("keeper's socket {}: {e}", options.ipc_fd))?;
    let mut keeper: WorkerEnd = End::new(keeper);
    let config = config::load(&options.config).map_err(|e| e.to_string())?;
    let mut boot = startup::boot(&config)?;
    let keys = startup::passwords(&config)?;
    startup::prepare_state_dir(&options.state_dir, USER, &mut notes);
    if let Some(path) = &config.fifo {
        let user = nix::unistd::User::from_name(USER).ok().flatten();
        let owner = user.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        let made = fifo::prepare(path, owner);
        notes.extend(made.err().map(|e| format!("notify fifo {}: {e}", path.display())));
    }
    notes.extend(startup::vmac_parents(&config));
    // All that can be wrong with a new program or a new configuration is behind us: with this we say that we are ready to
    // take over. While another worker lives, the answer comes when that one has left.
    let hang_limit = startup::hang_limit(&config);
    let hello = ToKeeper::Hello { hang_limit, resume_limit: RESUME_LIMIT };
    let (pulse, theirs) = match pulse::pulse(patience(hang_limit)) {
        Ok((pulse, theirs)) => (Some(pulse), Some(theirs)),
        // Messages do as well, they only cost more.
        Err(_) => (None, None),
    };
    keeper.send(&hello, theirs.as_ref().map(AsFd::as_fd)).map_err(|e| format!("keeper: {e}"))?;
    drop(theirs);
    let (former_end, felt) = await_boot(&mut keeper, &mut boot)?;
    startup::recall(&mut boot, &options.state_dir, &mut notes);
    let life = config.statesync.as_ref().map(|_| sync::life(&options.state_dir, &mut notes));
    let api = bind_api(&options.runtime_dir, &mut notes);
    // Of what starts later: the protocol thread has real-time scheduling of its own.
    notes.extend(sched::favour().err().map(|reason| reason.to_string()));
    let keep = caps::WORKER | sched::capabilities_needed(sched::PROTOCOL_PRIORITY);
    let dropped = caps::drop_to(USER, keep).map_err(|e| e.to_string())?;
    notes.extend(dropped.notes);
    let pulse = pulse.filter(|_| felt);
    let (watcher, mut lookers) = watch::pair(&config.balancers);
    let of_backends = config.nft.iter().flat_map(|nft| &nft.probes);
    let checks: Vec<_> = config.checks.iter().chain(of_backends).cloned().collect();
    let (protocol_ends, runtime_ends) =
        queues::pair(boot.intents.clone(), config.fifo.is_some(), config.balancers.len());
    let reporters = report::reporters(&config, &mut lookers, &runtime_ends.planes, &runtime_ends.looks);
    let fifo = config.fifo.clone();
    let managed = config.vips.iter().flat_map(|vip| vip.addresses.iter().map(|address| address.ip)).collect();
    let disable = disable::files(&config);
    let conntrack = config.conntrack;
    let (link, handle) = match life {
        Some(life) => sync::start(&config, &boot, life, &protocol_ends.notes)?.unzip(),
        None => (None, None),
    };
    let setup = protocol::Setup { config, boot, keys, keeper, watcher, ends: protocol_ends, sync: link, pulse };
    let (ended_in, ended) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("protocol".to_owned());
    let thread = thread.spawn(move || {
        // Err: the runtime ended first; then nobody waits for this.
        let _ = ended_in.send(protocol::run(setup));
    });
    thread.map_err(|e| format!("protocol thread: {e}"))?;
    let took = begun.elapsed();
    if !former_end.is_empty() {
        tracing::warn!("the former worker ended: {former_end}");
    }
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    tracing::info!(
        uid = dropped.uid,
        gid = dropped.gid,
        capabilities = %caps::names(dropped.kept),
        "worker started in {} ms",
        took.as_millis()
    );
    runtime::run(runtime::Setup {
        state_dir: options.state_dir.clone(),
        checks,
        managed,
        lookers,
        reporters,
        fifo,
        disable,
        conntrack,
        ends: runtime_ends,
        api,
        sync: handle,
        ended,
    })
}

/// While we still may write to the runtime directory. A worker without its API still keeps the address up.
fn bind_api(runtime_dir: &Path, notes: &mut Vec<String>) -> Option<UnixListener> {
    let bound = || -> std::io::Result<UnixListener> {
        std::fs::create_dir_all(runtime_dir)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let _inside = runtime.enter();
        ctl::server::bind(runtime_dir)?.into_std()
    };
    bound().map_err(|e| notes.push(format!("control socket: {e}; `holdfast status` can't reach this agent"))).ok()
}

/// Waits for the answer to our first message: what to resume. How the former worker ended, and whether the keeper feels our
/// pulse.
fn await_boot(keeper: &mut WorkerEnd, boot: &mut Boot) -> Result<(String, bool), String> {
    let limit = Instant::now() + BOOT_PATIENCE;
    loop {
        match keeper.receive().map_err(|e| format!("keeper: {e}"))? {
            Received::Message(ToWorker::Boot { resume, pseudo_header, former_end, bgp_restarting, pulse, .. }, _) => {
                boot.resume.extend(resume);
                boot.pseudo_header.extend(pseudo_header);
                boot.bgp_restarting = bgp_restarting;
                return Ok((former_end, pulse));
            }
            Received::Message(ToWorker::Held { resume, pseudo_header }, _) => {
                boot.resume.extend(resume);
                boot.pseudo_header.extend(pseudo_header);
            }
            Received::Message(ToWorker::Stop { .. }, _) => return Err("told to stop before the start".to_owned()),
            // Nothing else has a meaning before the answer.
            Received::Message(..) => {}
            Received::Closed => return Err("the keeper is gone".to_owned()),
            Received::Empty => {
                let left = limit.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(format!("the keeper didn't answer within {} s", BOOT_PATIENCE.as_secs()));
                }
                let timeout = Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
                    tv_nsec: i64::from(left.subsec_nanos()),
                };
                // Interrupted or not: the socket is asked again.
                let _ = poll(&mut [PollFd::new(keeper, PollFlags::IN)], Some(&timeout));
            }
        }
    }
}

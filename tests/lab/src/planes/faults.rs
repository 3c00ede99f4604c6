//! How a situation comes about on lb1, and how it ends.

use super::hogs::Hogs;
use super::situation::Situation;
use super::verdicts::Verdicts;
use super::world::World;
use crate::clock::{Ns, now};
use crate::fabric::{Lb, VIP, wait_for};
use crate::process::Pidfd;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::net::SocketAddrV4;
use std::time::Duration;

/// Where all of it happens.
const LB: Lb = Lb::Lb1;
/// How long the next worker may take after a reload, and the last client of one that ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// Descriptors that are left to one that shall run out of them.
const FILES_LEFT: u64 = 8;
/// Hogs beyond what a plane may have, so that it is full even if its own clients leave.
const MORE: usize = 50;

/// What lasts until the repair.
#[derive(Debug, Default)]
pub struct Lasting {
    /// Whom SIGSTOP was sent.
    stopped: Vec<Pidfd>,
    hogs: Option<Hogs>,
    /// Whose limit of descriptors was lowered, with what it was.
    limits: Vec<(Pid, Rlimit)>,
}

/// Does it; returns when it began. `reloads`: how many [`Situation::Reloads`] are.
///
/// # Errors
/// It can't be done; nothing was measured then.
pub fn inject(s: Situation, w: &mut World, reloads: u32, seen: &Verdicts) -> Result<(Ns, Lasting)> {
    let mut lasting = Lasting::default();
    let t = now();
    match s {
        Situation::Killed => return Ok((signal_all(&open(w.processes(LB))?, Signal::KILL)?, lasting)),
        Situation::Stopped => {
            lasting.stopped = open(w.processes(LB))?;
            return Ok((signal_all(&lasting.stopped, Signal::STOP)?, lasting));
        }
        Situation::WorkerKilled => return Ok((signal_all(&open(w.workers(LB))?, Signal::KILL)?, lasting)),
        Situation::MasterKilled => {
            let main = w.main(LB)?.pid();
            let master = w.plane().master(main).context("it has a master")?;
            return Ok((Pidfd::open(master)?.signal(Signal::KILL)?, lasting));
        }
        Situation::ExitsZero => {
            let main = Pidfd::open(w.main(LB)?.pid())?;
            let t = now();
            w.plane().exit(w.host(LB), &main)?;
            let code = w.main(LB)?.exit_code(PATIENCE);
            if code != Some(0) {
                bail!("told to end it ended with {code:?}, not 0");
            }
            return Ok((t, lasting));
        }
        Situation::Reload => reload(w, 1, seen)?,
        Situation::Reloads => reload(w, reloads, seen)?,
        Situation::FailedReload => {
            w.configure(LB, true)?;
            let main = Pidfd::open(w.main(LB)?.pid())?;
            w.plane().reload(w.host(LB), &main)?;
        }
        Situation::ConnectionsFull => lasting.hogs = Some(hogs(w, w.plane().connections() + MORE)?),
        Situation::QueueFull => {
            let main = w.main(LB)?.pid();
            w.plane().slow(w.host(LB), main, true)?;
        }
        Situation::BackendsDown => w.backends(false)?,
        Situation::BackendsFail => w.backends_answer(500),
        Situation::FilesFull => {
            for pid in w.workers(LB) {
                let open = std::fs::read_dir(format!("/proc/{pid}/fd")).context("a worker's descriptors")?.count();
                let worker = Pid::from_raw(pid).context("a worker has a pid")?;
                let maximum = files_at_most(pid)?;
                let few = Rlimit { current: Some(open as u64 + FILES_LEFT), maximum };
                let old = prlimit(Some(worker), Resource::Nofile, few);
                lasting.limits.push((worker, old.context("lower a worker's limit of descriptors")?));
            }
            lasting.hogs = Some(hogs(w, MORE)?);
        }
    }
    Ok((t, lasting))
}

/// Undoes it; returns when that began.
///
/// # Errors
/// It can't be undone: the drill ends here.
pub fn repair(s: Situation, w: &mut World, lasting: Lasting) -> Result<Ns> {
    let t = now();
    match s {
        Situation::Killed | Situation::ExitsZero => w.start_plane(LB)?,
        // What a plane doesn't mend itself.
        Situation::WorkerKilled | Situation::MasterKilled => {
            let main = w.main(LB)?;
            if !main.alive() {
                w.start_plane(LB)?;
            }
        }
        Situation::Stopped => {
            signal_all(&lasting.stopped, Signal::CONT)?;
        }
        Situation::FailedReload => {
            w.configure(LB, false)?;
            let main = Pidfd::open(w.main(LB)?.pid())?;
            w.plane().reload(w.host(LB), &main)?;
        }
        Situation::QueueFull => {
            let main = w.main(LB)?.pid();
            w.plane().slow(w.host(LB), main, false)?;
        }
        Situation::BackendsDown => w.backends(true)?,
        Situation::BackendsFail => w.backends_answer(200),
        Situation::FilesFull => {
            for (worker, limit) in lasting.limits {
                // One that couldn't live with it is gone.
                let _gone = prlimit(Some(worker), Resource::Nofile, limit);
            }
            if !w.main(LB)?.alive() {
                w.start_plane(LB)?;
            }
        }
        Situation::Reload | Situation::Reloads | Situation::ConnectionsFull => {}
    }
    Ok(t)
}

/// Handles first, signals after: none of them gets to act on another's end.
fn open(pids: Vec<i32>) -> Result<Vec<Pidfd>> {
    if pids.is_empty() {
        bail!("the plane has no such process");
    }
    pids.into_iter().map(Pidfd::open).collect()
}

/// When the first was sent.
fn signal_all(to: &[Pidfd], signal: Signal) -> Result<Ns> {
    let times: Vec<Ns> = to.iter().filter_map(|p| p.signal(signal).ok()).collect();
    times.first().copied().context("all of them were gone already")
}

fn hogs(w: &World, count: usize) -> Result<Hogs> {
    Hogs::start(&w.place().fabric.ns("client"), SocketAddrV4::new(VIP, 80), count)
}

/// Reloads again and again, each time once others serve; then waits until the agent knows of all of them.
fn reload(w: &mut World, times: u32, seen: &Verdicts) -> Result<()> {
    let before = seen.generation(LB).unwrap_or(0);
    for n in 1..=times {
        let main = Pidfd::open(w.main(LB)?.pid())?;
        let old = w.workers(LB);
        w.plane().reload(w.host(LB), &main)?;
        let next = || Ok(w.plane().reloaded(w.host(LB), main.pid(), &old));
        if !wait_for(PATIENCE, Duration::from_millis(10), next)? {
            bail!("reload {n}: no new worker within {} s", PATIENCE.as_secs());
        }
    }
    if !w.plane().counts_reloads() {
        return Ok(());
    }
    let known = || Ok(seen.generation(LB).is_some_and(|g| g >= before + u64::from(times)));
    if !wait_for(PATIENCE, Duration::from_millis(20), known)? {
        bail!("{times} reloads, and the agent knows of {:?}, before them of {before}", seen.generation(LB));
    }
    Ok(())
}

/// How far a process may raise its own limit of descriptors: that stays as it is.
fn files_at_most(pid: i32) -> Result<Option<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("Max open files")).context("a limit of descriptors")?;
    Ok(line.split_whitespace().nth(1).and_then(|hard| hard.parse().ok()))
}

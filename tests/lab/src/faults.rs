//! What is done to lb1 (or, where it says so, to lb2), and how it is undone.

use crate::clock::{Ns, now};
use crate::fabric::Lb;
use crate::process::{Pidfd, Proc, alive};
use crate::subject::{Place, Subject};
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// How often a drain is asked for, and the pause after a refusal.
const DRAIN_TRIES: u32 = 4;
const DRAIN_PAUSE: Duration = Duration::from_millis(400);

/// Loops of [`Fault::BusyHost`].
const BUSY_LOOPS: usize = 8;

/// Every fault the drills know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to the balancer.
    BalancerKilled,
    /// SIGSTOP to the balancer: it lives, accepts, and answers nothing.
    BalancerHung,
    /// The switch-side link goes down: lb1 loses its carrier.
    CableCut,
    /// The switch drops every frame from and to lb1; its carrier stays up.
    SilentDrop,
    /// The same to lb2, the Backup: it can't hear the Active, and nobody hears it.
    BackupDropped,
    /// SIGKILL to the worker, which may start again.
    WorkerKilled,
    /// The worker is replaced by a new one, in order.
    WorkerRestarted,
    /// SIGKILL to the worker, which can't start again.
    WorkerLost,
    /// SIGSTOP to the worker.
    WorkerHung,
    /// SIGKILL to the whole agent; the balancer lives on.
    AgentKilled,
    /// lb1 is drained by its operator.
    PlannedDrain,
    /// lb1, drained before, is brought back.
    Failback,
    /// Someone runs `ip addr del` on the VIP.
    AddressDeleted,
    /// Eight busy loops on the machine that both hosts run on.
    BusyHost,
    /// Nothing.
    NoFault,
}

/// Does it to lb1; returns when. `PlannedDrain` and `Failback` return once the command has.
///
/// # Errors
/// It could not be done; nothing was measured then.
pub fn inject(fault: Fault, place: &mut Place, subject: &mut dyn Subject) -> Result<Ns> {
    let lb = Lb::Lb1;
    match fault {
        Fault::BalancerKilled => {
            if place.balancer.comm().is_none() {
                let t = now();
                place.balancer.nat(&place.fabric, lb, false)?;
                return Ok(t);
            }
            Pidfd::open(subject.balancer(place, lb)?)?.signal(Signal::KILL)
        }
        Fault::BalancerHung => Pidfd::open(subject.balancer(place, lb)?)?.signal(Signal::STOP),
        Fault::CableCut => place.fabric.cable(lb, false),
        Fault::SilentDrop => place.fabric.forwarding(lb, false),
        Fault::BackupDropped => place.fabric.forwarding(Lb::Lb2, false),
        Fault::WorkerKilled => Pidfd::open(subject.worker(lb)?)?.signal(Signal::KILL),
        Fault::WorkerRestarted => {
            let t = now();
            subject.upgrade(place, lb)?;
            Ok(t)
        }
        Fault::WorkerLost => {
            let worker = Pidfd::open(subject.worker(lb)?)?;
            subject.worker_can_start(place, lb, false)?;
            worker.signal(Signal::KILL)
        }
        Fault::WorkerHung => Pidfd::open(subject.worker(lb)?)?.signal(Signal::STOP),
        Fault::AgentKilled => {
            let all: Vec<Pidfd> = subject.agent(lb).into_iter().map(Pidfd::open).collect::<Result<_>>()?;
            if all.is_empty() {
                bail!("the agent isn't running");
            }
            // All at once: no one of them gets to act on another's death.
            let t = now();
            all.iter().try_for_each(|p| p.signal(Signal::STOP).map(|_| ()))?;
            all.iter().try_for_each(|p| p.signal(Signal::KILL).map(|_| ()))?;
            Ok(t)
        }
        Fault::PlannedDrain => drained(place, subject, lb),
        Fault::Failback => {
            let t = now();
            subject.undrain(place, lb)?;
            Ok(t)
        }
        Fault::AddressDeleted => place.fabric.delete_vip(lb),
        Fault::BusyHost => {
            for n in 0..BUSY_LOOPS {
                let mut c = Command::new("sh");
                c.args(["-c", "while :; do :; done"]);
                let log = place.file(&format!("busy{n}.log"));
                place.busy.push(Proc::start(format!("busy loop {n}"), c, &log)?);
            }
            Ok(now())
        }
        Fault::NoFault => Ok(now()),
    }
}

/// Drains. A refusal (exit 10) moves nothing: lb2 missed one answer within 100 ms just now, and a Backup is unfit at the
/// first. It is asked again, as an operator would.
pub(crate) fn drained(place: &Place, subject: &mut dyn Subject, lb: Lb) -> Result<Ns> {
    for _ in 1..DRAIN_TRIES {
        let t = now();
        match subject.drain(place, lb) {
            Ok(()) => return Ok(t),
            Err(e) if e.to_string().contains("exit 10") => std::thread::sleep(DRAIN_PAUSE),
            Err(e) => return Err(e),
        }
    }
    let t = now();
    subject.drain(place, lb)?;
    Ok(t)
}

/// What must stay true while the fault lasts: a worker that was lost stays lost, even if it found another way up.
pub fn insist(fault: Fault, subject: &dyn Subject) {
    if fault == Fault::WorkerLost
        && let Ok(pid) = subject.worker(Lb::Lb1)
    {
        crate::process::kill_pid(pid);
    }
}

/// Undoes it; returns when. `hung` is the process that was stopped, if one was.
///
/// # Errors
/// It can't be undone: the drill ends here.
pub fn repair(fault: Fault, place: &mut Place, subject: &mut dyn Subject, hung: Option<i32>) -> Result<Ns> {
    let lb = Lb::Lb1;
    let t = now();
    match fault {
        Fault::BalancerKilled => {
            if place.balancer.comm().is_none() {
                place.balancer.nat(&place.fabric, lb, true)?;
            } else {
                subject.mend_balancer(place, lb)?;
            }
        }
        Fault::BalancerHung | Fault::WorkerHung => {
            if let Some(pid) = hung.filter(|&p| alive(p)) {
                let _may_be_gone = Pidfd::open(pid).and_then(|p| p.signal(Signal::CONT));
            }
            if fault == Fault::BalancerHung {
                subject.mend_balancer(place, lb)?;
            }
        }
        Fault::CableCut => return place.fabric.cable(lb, true),
        Fault::SilentDrop => return place.fabric.forwarding(lb, true),
        Fault::BackupDropped => return place.fabric.forwarding(Lb::Lb2, true),
        Fault::WorkerLost => subject.worker_can_start(place, lb, true)?,
        Fault::AgentKilled => subject.start_again(place, lb)?,
        Fault::PlannedDrain => subject.undrain(place, lb)?,
        Fault::BusyHost => place.busy.clear(),
        Fault::WorkerKilled | Fault::WorkerRestarted | Fault::Failback | Fault::AddressDeleted | Fault::NoFault => {}
    }
    Ok(t)
}

/// The process that `fault` stops, to be continued later.
#[must_use]
pub fn to_be_hung(fault: Fault, place: &Place, subject: &dyn Subject) -> Option<i32> {
    match fault {
        Fault::BalancerHung => subject.balancer(place, Lb::Lb1).ok(),
        Fault::WorkerHung => subject.worker(Lb::Lb1).ok(),
        _ => None,
    }
}

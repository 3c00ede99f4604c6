//! One drill, run as often as asked: settle, measure, break, wait, mend, settle, count.

use super::figures::{Measured, figures};
use super::home::{Home, Lent};
use super::situation::{Reaction, TWIN};
use super::verdicts::Verdicts;
use super::world::World;
use super::{Drill, faults};
use crate::balancer;
use crate::clock::{MS, Ns, now, sleep_until};
use crate::env;
use crate::fabric::{Lb, VIP, wait_for};
use crate::load::{fresh::Fresh, long::Long};
use crate::process::make_realtime;
use crate::repeat::{LONG_INTERVAL, NOISE, PRIORITY, Repeat, Stage, Unsettled, phase};
use crate::report::{Report, Run, unrest};
use crate::run::{DEADLINE, Instruments};
use anyhow::{Context, Result, bail};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

/// The agents' check of the plane: from start to start, …
pub const CHECK_INTERVAL: Ns = 200 * MS;
/// … while it fails, …
pub const CHECK_FAST: Ns = 100 * MS;
/// … until it is given up, …
pub const CHECK_TIMEOUT: Ns = 200 * MS;
/// … and how often it must fail.
pub const CHECK_FALL: u64 = 2;
/// Requests: 500 a second.
pub const INTERVAL: Ns = 2 * MS;
/// How long all may take until everything is well.
const SETTLE: Duration = Duration::from_secs(30);
/// After the repair and the return, for what comes late.
const AFTERMATH: Ns = 700 * MS;

/// How a drill is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// Valid runs wanted.
    pub repeat: usize,
    /// How many reloads in a row are many.
    pub reloads: u32,
    /// Leave the fault out; everything must then be 0.
    pub twin: bool,
    /// Compare with the figures themselves.
    pub strict: bool,
    /// Keep the temporary directory.
    pub keep: bool,
    /// Long-lived connections.
    pub flows: usize,
    /// Print each run's timeline to stderr as it happens.
    pub narrate: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            holdfast: None,
            repeat: 1,
            reloads: 100,
            twin: false,
            strict: false,
            keep: false,
            flows: 20,
            narrate: false,
        }
    }
}

/// Runs `d` until it has `o.repeat` valid runs, an error ends it, or too many were void.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it. What goes wrong in a run is in the report.
pub fn drill(d: Drill, o: &Options, home: &Home) -> Result<Report> {
    env::require_basics()?;
    let plane = d.plane.plane();
    let mut report = Report {
        channel: true,
        twin: o.twin,
        strict: o.strict,
        skipped: plane.lacks(d.situation).map(str::to_owned),
        ..Report::new(&d.name(), crate::agent::version(&env::holdfast(o.holdfast.as_deref())?), balancer::Kind::Forward)
    };
    report.balancer = plane.version();
    if report.skipped.is_none() {
        drill_more(&mut report, d, o, home, o.repeat)?;
    }
    Ok(report)
}

/// Adds runs to `report` until it has `wanted` valid ones, and judges it anew.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it.
pub fn drill_more(report: &mut Report, d: Drill, o: &Options, home: &Home, wanted: usize) -> Result<()> {
    let name = d.name();
    let expected = d.plane.plane().expected(d.situation);
    // A node that loses the VIP again and again is held back: not what these drills are about.
    let stays = o.twin || expected.reaction == Reaction::Stays;
    let repeat = Repeat { name: &name, wanted, afresh: !stays, narrate: o.narrate, keep: o.keep };
    let holdfast = env::holdfast(o.holdfast.as_deref())?;
    let start = || home.lend(d.plane, holdfast.clone(), o.keep);
    repeat.run(report, start, |lent: &mut Lent<'_>, nth| {
        let run = one_run(d, o, lent.world()?, nth)?;
        let moved = |key| run.numbers.get(key).copied().flatten() != Some(0.0);
        if stays && run.void.is_none() && !moved("role_changes") && !moved("failback_role_changes") {
            lent.sound();
        }
        Ok(run)
    })?;
    let expect = d.situation.expect(expected);
    report.judge_by(if o.twin { TWIN } else { &expect }, wanted);
    Ok(())
}

/// Until lb1 alone holds the VIP, and both agents are content with their planes.
fn settle(w: &mut World, instruments: &Instruments, verdicts: &Verdicts, what: &str) -> Result<Ns> {
    if !wait_for(SETTLE, Duration::from_millis(20), || Ok(verdicts.all_well()))? {
        let of = |lb| verdicts.now(lb).unwrap_or_else(|| "without a verdict".to_owned());
        let dead = w.ended().map(|d| format!("; {d} has ended")).unwrap_or_default();
        let journal = w.journal(Lb::Lb1).join("\n    ");
        bail!(Unsettled(format!(
            "{what}: after {} s lb1's plane is {}, lb2's {}{dead}\n    {journal}",
            SETTLE.as_secs(),
            of(Lb::Lb1),
            of(Lb::Lb2)
        )));
    }
    instruments.await_owner(Lb::Lb1, what)
}

fn one_run(d: Drill, o: &Options, w: &mut World, nth: usize) -> Result<Run> {
    let instruments = Instruments::start(w.place())?;
    let verdicts = Verdicts::start(w.directory())?;
    settle(w, &instruments, &verdicts, "before the drill")?;
    let client = w.place().fabric.ns("client");
    let web = SocketAddrV4::new(VIP, 80);
    let fresh = Fresh::start(&client, web, INTERVAL, DEADLINE)?;
    let long = Long::start(&client, web, o.flows, LONG_INTERVAL)?;
    let mut realtime = make_realtime(instruments.reference.thread(), 90);
    let mut threads = vec![fresh.thread(), long.thread()];
    threads.extend(w.responder_thread());
    threads.extend(instruments.wire.threads());
    threads.extend(instruments.addresses.threads());
    for t in threads {
        realtime = realtime.and_then(|()| make_realtime(t, PRIORITY));
    }
    let warm = || Ok(long.alive() >= o.flows && fresh.recent_ok(100) >= 100);
    if !wait_for(Duration::from_secs(10), Duration::from_millis(20), warm)? {
        let (ok, flows) = (fresh.recent_ok(100), long.alive());
        bail!("the service didn't answer before the drill ({ok} of 100 requests, {flows} flows)");
    }
    let steady = now();
    sleep_until(steady + NOISE + phase(nth, CHECK_INTERVAL));

    let (fault, lasting) = if o.twin {
        (now(), faults::Lasting::default())
    } else {
        faults::inject(d.situation, w, o.reloads, &verdicts).context("the fault")?
    };
    sleep_until(now().max(fault + d.situation.hold()));
    let open = verdicts.fails_open(Lb::Lb1);
    let repair = if o.twin { now() } else { faults::repair(d.situation, w, lasting).context("the repair")? };
    let settled = settle(w, &instruments, &verdicts, "after the repair")?;
    // What clients lose is measured to its end: they may be lost for longer than the hosts are at odds.
    let served = || Ok(fresh.recent_ok(100) >= 100);
    let _else_the_figure_is_a_lower_bound = wait_for(Duration::from_secs(10), Duration::from_millis(20), served)?;
    sleep_until(now() + AFTERMATH);
    let end = now();
    let journal = if o.narrate { w.journal(Lb::Lb1) } else { Vec::new() };
    let mut run = figures(
        &Measured {
            interval: INTERVAL,
            steady,
            fault,
            repair,
            settled,
            end,
            open,
            macs: [w.place().fabric.mac(Lb::Lb1)?, w.place().fabric.mac(Lb::Lb2)?],
            fresh: fresh.finish()?,
            flows: long.finish()?,
            verdicts: verdicts.finish()?,
            wire: instruments.wire.finish()?,
            held: instruments.addresses.finish()?,
            late: instruments.reference.finish()?,
            realtime: realtime.err().map(|e| format!("{e:#}")),
        },
        d.plane.plane().expected(d.situation),
    );
    if !o.twin && run.void.is_none() {
        run.void = unrest(&run);
    }
    run.journal = journal;
    Ok(run)
}

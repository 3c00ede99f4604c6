//! One drill of flows, run as often as asked: open all flows, wait, and then three times: make the VIP move, let flows
//! come to themselves, bring the loser back, wait until it has what it lacks.

use super::client::{Clients, HUNG};
use super::drills::{Drill, Fault, NONE_STRICT, READY, TABLES_NONE, TABLES_TWIN, TWIN};
use super::faults;
use super::figures::{MEGABYTE, Measured, Move, figures, judge_lateness};
use super::net::{self, Rules};
use super::pair::{Pair, Sync};
use super::record::{Counted, Counts};
use super::server::Server;
use super::udp::Sessions;
use crate::balancer::Kind;
use crate::clock::{MS, Ns, SECOND, now, sleep_until};
use crate::env;
use crate::fabric::{ECHO_PORT, Fabric, Lb, VIP, wait_for};
use crate::load::udp::Udp;
use crate::process::make_realtime;
use crate::repeat::{PRIORITY, Repeat, Stage, Unsettled, last_lines};
use crate::report::{Report, Run};
use crate::responder::Responder;
use crate::run::{DEADLINE, Instruments, UDP_INTERVAL};
use crate::subject::{INTERVAL, Place};
use crate::watch::address::holds_vip;
use anyhow::{Context, Result, bail};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long all flows may take to be established.
const OPEN: Duration = Duration::from_secs(20);
/// A flow that waits no longer than this waits for nothing.
const AT_REST: Ns = 250 * MS;
/// After a move, before anybody looks whether flows have come to themselves: what is sent now is lost or answered.
const AFTER: Ns = 1500 * MS;
/// How long the loser may take to be the other one's backup again.
const REJOIN: Ns = 2 * SECOND;

/// How a drill is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What replicates.
    pub sync: Sync,
    /// The load balancers' rules.
    pub rules: Rules,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// Valid runs wanted.
    pub repeat: usize,
    /// Leave the faults out.
    pub twin: bool,
    /// Compare with the figures themselves.
    pub strict: bool,
    /// Keep the temporary directory.
    pub keep: bool,
    /// Print each run's timeline to stderr as it happens.
    pub narrate: bool,
    /// Flows that talk; a fifth as many of each of the small kinds, but at least four.
    pub flows: usize,
    /// Bulk flows.
    pub bulk: usize,
    /// What each of these moves each way at least, megabytes.
    pub megabytes: u64,
    /// How often the VIP moves.
    pub moves: usize,
    /// How old flows are when it moves first.
    pub lead: Ns,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Holdfast,
            rules: Rules::Strict,
            holdfast: None,
            repeat: 1,
            twin: false,
            strict: false,
            keep: false,
            narrate: false,
            flows: 20,
            bulk: 4,
            megabytes: 4,
            moves: 3,
            // Longer than the kernel keeps a UDP flow.
            lead: (u64::from(net::UDP_TIMEOUT_S) + 2) * SECOND,
        }
    }
}

impl Options {
    /// Nothing replicates, and no connection can live (or no two tables be equal): what is put to the test is the drill.
    #[must_use]
    pub fn proves_that_it_fails(&self) -> bool {
        self.sync == Sync::None && self.rules == Rules::Strict && !self.twin
    }

    /// Something does.
    pub(super) fn replicates(&self) -> bool {
        self.sync != Sync::None
    }

    fn counts(&self) -> Counts {
        Counts { talk: self.flows, bulk: self.bulk, others: (self.flows / 5).max(4) }
    }
}

/// All that runs, in the order in which it is dropped: the network last.
pub(super) struct Session {
    pub(super) pair: Box<dyn Pair>,
    _server: Server,
    responder: Responder,
    pub(super) place: Place,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pair.stop();
    }
}

impl Stage for Session {
    fn directory(&self) -> &Path {
        self.place.fabric.directory()
    }
}

impl Session {
    fn start(o: &Options) -> Result<Self> {
        let mut pair = o.sync.pair(o.holdfast.as_deref())?;
        let fabric = Fabric::up(o.keep)?;
        net::prepare(&fabric, o.rules)?;
        let balancer = Kind::Forward; // nobody's: the pair has its own
        let place = Place { fabric, balancer, channel: true, vips: 1, adverts: INTERVAL, busy: Vec::new() };
        let (server, responder) = (Server::start(&place.fabric)?, Responder::start(&place.fabric)?);
        // Nobody preempts: who is there first has the VIP.
        let mut started = pair.start(&place, Lb::Lb1);
        if started.is_ok() {
            let first = place.fabric.lb(Lb::Lb1);
            let held = || first.inside(|| Ok(holds_vip()));
            started = wait_for(Duration::from_secs(15), Duration::from_millis(50), held).map(|_| ());
        }
        if let Err(e) = started.and_then(|()| pair.start(&place, Lb::Lb2)) {
            pair.stop();
            return Err(e);
        }
        std::thread::sleep(Duration::from_millis(200));
        let mut s = Self { pair, _server: server, responder, place };
        if let Some(dead) = s.pair.ended() {
            bail!("{dead} ended as soon as it was started\n{}", last_lines(s.directory()));
        }
        Ok(s)
    }

    /// Until `heir` could take over with all flows, as far as its program knows.
    fn ready(&mut self, heir: Lb, o: &Options) -> Result<()> {
        let mut lacks = None;
        let limit = Duration::from_nanos(READY);
        let ready = wait_for(limit, Duration::from_millis(50), || {
            lacks = self.pair.lacks(&self.place, heir)?;
            Ok(lacks.is_none())
        })?;
        // Another's answer isn't what is put to the test here: its figures are.
        if !ready && o.sync == Sync::Holdfast {
            let lacks = lacks.unwrap_or_default();
            bail!(Unsettled(format!("{} isn't ready to take over after {} s: {lacks}", heir.name(), limit.as_secs())));
        }
        Ok(())
    }

    /// Makes `owner` lose the VIP; returns when that began.
    fn inject(&mut self, fault: Fault, owner: Lb) -> Result<Ns> {
        let t = now();
        match fault {
            Fault::Kill => return net::power_off(&mut self.place.fabric, owner),
            Fault::Cable => return self.place.fabric.cable(owner, false),
            Fault::Move => self.pair.give_away(&self.place, owner)?,
            Fault::Tables => bail!("it has faults of its own"),
        }
        Ok(t)
    }

    /// Brings it back.
    fn repair(&mut self, fault: Fault, loser: Lb, rules: Rules) -> Result<()> {
        match fault {
            Fault::Kill => {
                net::power_on(&mut self.place.fabric, loser, rules)?;
                self.pair.start(&self.place, loser)
            }
            Fault::Cable => self.place.fabric.cable(loser, true).map(|_| ()),
            Fault::Move => self.pair.take_part(&self.place, loser),
            Fault::Tables => Ok(()),
        }
    }
}

/// Runs `drill` until it has `o.repeat` valid runs, an error ends it, or too many were void.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it. What goes wrong in a run is in the report.
pub fn drill(d: &Drill, o: &Options) -> Result<Report> {
    env::require_basics()?;
    for program in ["nft", "conntrack"] {
        if env::find_program(program).is_none() {
            bail!(env::Lacks(program.into()));
        }
    }
    let probe = o.sync.pair(o.holdfast.as_deref())?;
    let mut report = Report {
        channel: true,
        twin: o.twin,
        strict: o.strict,
        ..Report::new(d.name, format!("{}, {} rules", probe.version(), o.rules.name()), Kind::Nft)
    };
    drop(probe);
    drill_more(&mut report, d, o, o.repeat)?;
    Ok(report)
}

/// Adds runs to `report` until it has `wanted` valid ones, and judges it anew.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it.
pub fn drill_more(report: &mut Report, d: &Drill, o: &Options, wanted: usize) -> Result<()> {
    // After three moves the VIP is where no run begins.
    let repeat = Repeat { name: d.name, wanted, afresh: true, narrate: o.narrate, keep: o.keep };
    repeat.run(report, || Session::start(o), |s, _| one_run(d, o, s))?;
    report.judge_by(expected(d, o), wanted);
    Ok(())
}

fn expected<'a>(d: &'a Drill, o: &Options) -> &'a [crate::drills::Expect] {
    if d.fault == Fault::Tables {
        return match o.twin {
            true => TABLES_TWIN,
            false if o.replicates() => d.expect,
            false => TABLES_NONE,
        };
    }
    match o.twin {
        true => TWIN,
        false if o.proves_that_it_fails() => NONE_STRICT,
        false => d.expect,
    }
}

fn one_run(d: &Drill, o: &Options, s: &mut Session) -> Result<Run> {
    if d.fault == Fault::Tables {
        return faults::one_run(o, s);
    }
    let instruments = Instruments::start(&s.place)?;
    let mut owner = Lb::Lb1;
    if let Err(e) = instruments.await_owner(owner, "before the drill") {
        let dead = s.pair.ended().map(|d| format!("; {d} has ended")).unwrap_or_default();
        bail!(Unsettled(format!("{e:#}{dead}")));
    }
    let client = s.place.fabric.ns("client");
    let probes = Udp::start(&client, SocketAddrV4::new(VIP, ECHO_PORT), UDP_INTERVAL, DEADLINE)?;
    let (counts, bytes) = (o.counts(), o.megabytes * MEGABYTE);
    let over = o.lead + o.moves as u64 * 6 * SECOND;
    let clients = Clients::start(&client, counts, bytes, over)?;
    let sessions = Sessions::start(&client, counts.others)?;
    let mut realtime = make_realtime(instruments.reference.thread(), 90);
    let watching = instruments.wire.threads().into_iter().chain(instruments.addresses.threads());
    for t in watching.chain([probes.thread(), s.responder.thread()]) {
        realtime = realtime.and_then(|()| make_realtime(t, PRIORITY));
    }
    let all = counts.talk + counts.bulk + 3 * counts.others;
    let counted = || clients.counted() + sessions.counted();
    let alive = || counted().alive;
    if !wait_for(OPEN, Duration::from_millis(20), || Ok(alive() >= all))? {
        let journal = s.pair.journal(&s.place, owner).join("\n    ");
        bail!("{} of {all} flows were established after {} s\n    {journal}", alive(), OPEN.as_secs());
    }
    let complaints = s.place.fabric.complaints();
    sleep_until(now() + o.lead);
    // What breaks with no move is in no figure of a move, and has its successor by now.
    let Counted { alive: living, broken } = counted();
    if living < all || broken > 0 {
        bail!("of {all} flows {living} were there at the first move, after {broken} had broken with no move at all");
    }
    let mut moves = Vec::new();
    for nth in 1..=o.moves {
        let heir = owner.other();
        s.ready(heir, o)?;
        let fault = if o.twin { now() } else { s.inject(d.fault, owner).context("the fault")? };
        let next = if o.twin { owner } else { heir };
        let taken = instruments.await_owner(next, "after the fault")?;
        moves.push(Move { from: owner, fault, taken });
        clients.wake(nth == o.moves);
        sleep_until(now() + AFTER);
        // Until every flow is well or was given up, and those that were have a successor.
        let limit = Duration::from_nanos(HUNG + 2 * SECOND);
        let _else_it_is_broken =
            wait_for(limit, Duration::from_millis(20), || Ok(clients.oldest_wait() < AT_REST && alive() >= all))?;
        if !o.twin && nth < o.moves {
            s.repair(d.fault, owner, o.rules).context("the repair")?;
            sleep_until(now() + REJOIN);
            instruments.await_owner(next, "after the repair")?;
        }
        owner = next;
    }
    let clients_late = clients.late();
    let mut records = clients.finish(HUNG + 2 * SECOND)?;
    records.extend(sessions.finish()?);
    let end = now();
    let said = s.place.fabric.complaints();
    if said != complaints {
        bail!("a fault or its repair failed: {}", said.trim_start_matches(&complaints).trim());
    }
    let late = instruments.reference.finish()?.into_iter().map(|(_, l)| l).max().unwrap_or(0);
    let mut run =
        figures(&Measured { moves, end, records, bytes, probes: probes.finish()?, machine_late: late, clients_late });
    judge_lateness(&mut run, late.max(clients_late), o.strict);
    run.realtime = realtime.err().map(|e| format!("{e:#}"));
    if o.narrate {
        let both = Lb::BOTH.map(|lb| s.pair.journal(&s.place, lb));
        run.journal = both.concat();
    }
    Ok(run)
}

//! One drill, run as often as asked: settle, measure, break, wait, mend, settle, count.

use crate::balancer::Kind;
use crate::clock::{MS, Ns, now, sleep_until};
use crate::drills::{Drill, TWIN};
use crate::env;
use crate::fabric::{ECHO_PORT, Fabric, Lb, VIP, VRID, wait_for};
use crate::faults::{self, Fault};
use crate::load::{fresh::Fresh, long::Long, udp::Udp};
use crate::process::make_realtime;
use crate::repeat::{LONG_INTERVAL, NOISE, PRIORITY, Repeat, Stage, Unsettled, last_lines, phase};
use crate::report::{Measured, Report, Run, figures, unrest};
use crate::responder::Responder;
use crate::subject::holdfast::Holdfast;
use crate::subject::keepalived::Keepalived;
use crate::subject::{INTERVAL, Place, Subject, SubjectKind};
use crate::watch::{address::Addresses, reference::Reference, wire::Wire};
use anyhow::{Context, Result, bail};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A fresh request's deadline.
pub const DEADLINE: Ns = 500 * MS;
/// Time between two UDP probes.
pub const UDP_INTERVAL: Ns = MS;
/// How long a pair may take until lb1 alone is Active.
const SETTLE: Duration = Duration::from_secs(20);
/// How long clients may be without service after that.
const SERVED: Duration = Duration::from_secs(10);

/// How a drill is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is put to the test.
    pub subject: SubjectKind,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// The balancer, if given.
    pub balancer: Option<Kind>,
    /// With the peers' channel.
    pub channel: bool,
    /// Valid runs wanted.
    pub repeat: usize,
    /// Leave the fault out; everything must then be 0.
    pub twin: bool,
    /// Compare with the figures themselves.
    pub strict: bool,
    /// Keep the temporary directory.
    pub keep: bool,
    /// Time between two fresh requests.
    pub interval: Ns,
    /// Long-lived connections.
    pub flows: usize,
    /// Print each run's timeline to stderr as it happens.
    pub narrate: bool,
    /// Adverts' interval.
    pub adverts: Duration,
    /// How long a fault is left, instead of the drill's own time.
    pub hold: Option<Ns>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            subject: SubjectKind::Holdfast,
            holdfast: None,
            balancer: None,
            channel: true,
            repeat: 1,
            twin: false,
            strict: false,
            keep: false,
            interval: 5 * MS,
            flows: 20,
            narrate: false,
            adverts: INTERVAL,
            hold: None,
        }
    }
}

/// A running pair with the fabric around it.
struct Session {
    // Dropped in this order: processes first, their network last.
    subject: Box<dyn Subject>,
    _responder: Responder,
    place: Place,
    responder_thread: i32,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.subject.stop();
    }
}

impl Session {
    fn start(o: &Options) -> Result<Self> {
        let mut subject = subject(o)?;
        let balancer = o.balancer.unwrap_or_else(Kind::best);
        let channel = o.channel && o.subject == SubjectKind::Holdfast;
        let place =
            Place { fabric: Fabric::up(o.keep)?, balancer, channel, vips: 1, adverts: o.adverts, busy: Vec::new() };
        let responder = Responder::start(&place.fabric)?;
        for lb in Lb::BOTH {
            if let Err(e) = subject.start(&place, lb) {
                subject.stop();
                return Err(e);
            }
        }
        // What can't run says so at once.
        std::thread::sleep(Duration::from_millis(200));
        if let Some(dead) = subject.ended() {
            let logs = last_lines(place.fabric.directory());
            subject.stop();
            bail!("{dead} ended as soon as it was started\n{logs}");
        }
        Ok(Self { subject, responder_thread: responder.thread(), _responder: responder, place })
    }
}

impl Stage for Session {
    fn directory(&self) -> &Path {
        self.place.fabric.directory()
    }
}

/// The subject that the options name.
///
/// # Errors
/// [`env::Lacks`].
pub fn subject(o: &Options) -> Result<Box<dyn Subject>> {
    Ok(match o.subject {
        SubjectKind::Holdfast => Box::new(Holdfast::new(env::holdfast(o.holdfast.as_deref())?)),
        SubjectKind::Keepalived => Box::new(Keepalived::new()?),
    })
}

/// Runs `drill` until it has `o.repeat` valid runs, an error ends it, or too many were void.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it. What goes wrong in a run is in the report.
pub fn drill(drill: &Drill, o: &Options) -> Result<Report> {
    env::require_basics()?;
    let probe = subject(o)?;
    let o = &Options { adverts: drill.adverts.map_or(o.adverts, Duration::from_nanos), ..o.clone() };
    let balancer = o.balancer.unwrap_or_else(Kind::best);
    let channel = o.channel && o.subject == SubjectKind::Holdfast;
    let mut report =
        Report { channel, twin: o.twin, strict: o.strict, ..Report::new(drill.name, probe.version(), balancer) };
    if let Some(why) = probe.lacks(drill.fault) {
        report.skipped = Some(why);
        return Ok(report);
    }
    if balancer == Kind::Nft && drill.fault == Fault::BalancerHung {
        report.skipped = Some("nftables NAT has no process to hang".into());
        return Ok(report);
    }
    drop(probe);
    drill_more(&mut report, drill, o, o.repeat)?;
    Ok(report)
}

/// Adds runs to `report` until it has `wanted` valid ones, and judges it anew.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it.
pub fn drill_more(report: &mut Report, drill: &Drill, o: &Options, wanted: usize) -> Result<()> {
    let o = &Options { adverts: drill.adverts.map_or(o.adverts, Duration::from_nanos), ..o.clone() };
    // A worker that dies again and again is kept waiting: not what this drill is about.
    let afresh = drill.fault == Fault::WorkerKilled;
    let repeat = Repeat { name: drill.name, wanted, afresh, narrate: o.narrate, keep: o.keep };
    repeat.run(report, || Session::start(o), |s, nth| one_run(drill, o, s, nth))?;
    report.judge_by(if o.twin { TWIN } else { drill.expect }, wanted);
    Ok(())
}

/// The measuring threads of one run.
pub(crate) struct Instruments {
    pub(crate) wire: Wire,
    pub(crate) addresses: Addresses,
    pub(crate) reference: Reference,
    /// Adverts' interval.
    adverts: Ns,
}

impl Instruments {
    pub(crate) fn start(place: &Place) -> Result<Self> {
        Ok(Self {
            wire: Wire::start(&place.fabric.ns("obs"))?,
            addresses: Addresses::start(&place.fabric)?,
            reference: Reference::start()?,
            adverts: place.adverts.as_nanos() as u64,
        })
    }

    /// `owner` alone holds the VIP and alone advertises it, by what kernels and wire say.
    fn settled_on(&self, owner: Lb) -> bool {
        let interval = self.adverts;
        let since = now().saturating_sub(3 * interval);
        let log = self.wire.log();
        let recent: Vec<_> = log
            .adverts
            .iter()
            .rev()
            .take_while(|a| a.at >= since)
            .filter(|a| a.vrid == VRID && a.priority > 0)
            .collect();
        self.addresses.held(owner)
            && !self.addresses.held(owner.other())
            && recent.len() >= 2
            && recent.iter().all(|a| a.source == owner.front())
    }

    /// The first moment from `t` on that lies where run number `nth` wants it between two adverts ([`phase`]).
    fn at_phase(&self, t: Ns, nth: usize) -> Ns {
        let interval = self.adverts;
        let Some(last) = self.wire.log().adverts.iter().rfind(|a| a.vrid == VRID).map(|a| a.at) else { return t };
        let first = last + phase(nth, interval);
        let late = t.saturating_sub(first);
        first + late.div_ceil(interval) * interval
    }

    pub(crate) fn await_owner(&self, owner: Lb, what: &str) -> Result<Ns> {
        if !wait_for(SETTLE, Duration::from_millis(5), || Ok(self.settled_on(owner)))? {
            let limit = SETTLE.as_secs();
            bail!(Unsettled(format!("{what}: {} was not the only Active within {limit} s", owner.name())));
        }
        Ok(now())
    }
}

/// A running pair under load, for checks that are no drills.
pub struct Pair {
    loads: Loads,
    instruments: Instruments,
    session: Session,
}

impl Pair {
    /// Starts it and its load.
    ///
    /// # Errors
    /// The machine can't run it, or the pair didn't come up.
    pub fn start(o: &Options) -> Result<Self> {
        env::require_basics()?;
        let session = Session::start(o)?;
        let instruments = Instruments::start(&session.place)?;
        if let Err(e) = instruments.await_owner(Lb::Lb1, "at the start") {
            bail!("{e:#}\n{}", last_lines(session.directory()));
        }
        let loads = Loads::start(o, &session.place, &instruments, session.responder_thread)?;
        Ok(Self { loads, instruments, session })
    }

    /// Until lb1 alone is Active.
    ///
    /// # Errors
    /// It wasn't within the time it may take.
    pub fn await_lb1(&self) -> Result<Ns> {
        self.instruments.await_owner(Lb::Lb1, "under load")
    }

    /// The network it runs in.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.session.place.fabric
    }

    /// Whether the subject has the peers' channel.
    #[must_use]
    pub fn channel(&self) -> bool {
        self.session.place.channel
    }

    /// The subject's name and version.
    #[must_use]
    pub fn version(&self) -> String {
        self.session.subject.version()
    }

    /// lb1's own account of what happened.
    #[must_use]
    pub fn journal(&self) -> Vec<String> {
        self.session.subject.journal(&self.session.place, Lb::Lb1)
    }

    /// Stops everything and returns what was recorded; `fault`, `repair` and `settled` are the end.
    ///
    /// # Errors
    /// A measuring thread failed.
    pub fn finish(self) -> Result<Measured> {
        let t = now();
        let times = Times { steady: 0, fault: t, repair: t, settled: t, end: t, failback: false };
        record(times, self.loads, self.instruments, &self.session.place)
    }
}

/// The clients of one run.
struct Loads {
    fresh: Fresh,
    long: Long,
    udp: Udp,
    interval: Ns,
    realtime: Option<String>,
}

impl Loads {
    /// Starts them, gives every measuring thread its priority, and waits until the service answers.
    fn start(o: &Options, place: &Place, instruments: &Instruments, responder: i32) -> Result<Self> {
        let client = place.fabric.ns("client");
        let web = SocketAddrV4::new(VIP, 80);
        let fresh = Fresh::start(&client, web, o.interval, DEADLINE)?;
        let long = Long::start(&client, web, o.flows, LONG_INTERVAL)?;
        let udp = Udp::start(&client, SocketAddrV4::new(VIP, ECHO_PORT), UDP_INTERVAL, DEADLINE)?;
        let mut threads = vec![fresh.thread(), long.thread(), udp.thread(), responder];
        threads.extend(instruments.wire.threads());
        threads.extend(instruments.addresses.threads());
        let mut realtime = make_realtime(instruments.reference.thread(), 90);
        for t in threads {
            realtime = realtime.and_then(|()| make_realtime(t, PRIORITY));
        }
        let warm = || Ok(long.alive() >= o.flows && fresh.recent_ok(40) >= 40);
        if !wait_for(Duration::from_secs(10), Duration::from_millis(20), warm)? {
            let (ok, flows) = (fresh.recent_ok(40), long.alive());
            bail!("the service didn't answer before the drill ({ok} of 40 requests, {flows} flows)");
        }
        Ok(Self { fresh, long, udp, interval: o.interval, realtime: realtime.err().map(|e| format!("{e:#}")) })
    }
}

/// The moments of one run.
struct Times {
    steady: Ns,
    fault: Ns,
    repair: Ns,
    settled: Ns,
    end: Ns,
    failback: bool,
}

/// Stops all threads and gathers what they recorded.
fn record(t: Times, loads: Loads, instruments: Instruments, place: &Place) -> Result<Measured> {
    Ok(Measured {
        interval: loads.interval,
        adverts: place.adverts.as_nanos() as u64,
        steady: t.steady,
        fault: t.fault,
        repair: t.repair,
        settled: t.settled,
        end: t.end,
        failback: t.failback,
        macs: [place.fabric.mac(Lb::Lb1)?, place.fabric.mac(Lb::Lb2)?],
        fresh: loads.fresh.finish()?,
        udp: loads.udp.finish()?,
        flows: loads.long.finish()?,
        wire: instruments.wire.finish()?,
        held: instruments.addresses.finish()?,
        late: instruments.reference.finish()?,
        realtime: loads.realtime,
    })
}

fn one_run(drill: &Drill, o: &Options, s: &mut Session, nth: usize) -> Result<Run> {
    let instruments = Instruments::start(&s.place)?;
    if let Err(e) = instruments.await_owner(Lb::Lb1, "before the drill") {
        let dead = s.subject.ended().map(|d| format!("; {d} has ended")).unwrap_or_default();
        bail!(Unsettled(format!("{e:#}{dead}")));
    }
    if drill.fault == Fault::Failback && !o.twin {
        s.subject.drain(&s.place, Lb::Lb1).context("drain before a failback")?;
        instruments.await_owner(Lb::Lb2, "drained before a failback")?;
    }
    let loads = Loads::start(o, &s.place, &instruments, s.responder_thread)?;
    let complaints = s.place.fabric.complaints();
    let steady = now();
    sleep_until(steady + NOISE);
    sleep_until(instruments.at_phase(steady + NOISE, nth));

    let hung = faults::to_be_hung(drill.fault, &s.place, &*s.subject);
    let fault =
        if o.twin { now() } else { faults::inject(drill.fault, &mut s.place, &mut *s.subject).context("the fault")? };
    // A command returns when it is done; everything else is held from the moment it was done.
    let from = if matches!(drill.fault, Fault::PlannedDrain | Fault::Failback) { now() } else { fault };
    let hold = o.hold.unwrap_or(drill.hold);
    while now() < from + hold {
        if !o.twin {
            faults::insist(drill.fault, &*s.subject);
        }
        sleep_until((now() + 5 * MS).min(from + hold));
    }
    let repair = if o.twin {
        now()
    } else {
        faults::repair(drill.fault, &mut s.place, &mut *s.subject, hung).context("the repair")?
    };
    let settled = instruments.await_owner(Lb::Lb1, "after the repair")?;
    // An outage after the repair is measured to its end: clients may be lost for longer than the hosts are at odds.
    let served = || Ok(loads.fresh.recent_ok(40) >= 40);
    let _else_the_figure_is_a_lower_bound = wait_for(SERVED, Duration::from_millis(20), served)?;
    std::thread::sleep(Duration::from_millis(700));
    let end = now();
    let said = s.place.fabric.complaints();
    if said != complaints {
        bail!("the fault or its repair failed: {}", said.trim_start_matches(&complaints).trim());
    }
    let failback = drill.fault == Fault::Failback && !o.twin;
    let times = Times { steady, fault, repair, settled, end, failback };
    let measured = record(times, loads, instruments, &s.place)?;
    let mut run = figures(&measured, drill);
    if drill.fault != Fault::NoFault && !o.twin && run.void.is_none() {
        run.void = unrest(&run);
    }
    if o.narrate {
        run.journal = s.subject.journal(&s.place, Lb::Lb1);
    }
    Ok(run)
}

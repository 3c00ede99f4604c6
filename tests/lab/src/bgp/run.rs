//! One BGP drill, run as often as asked: settle, measure, break, wait, mend, settle, count.

use super::drills::{Drill, TWIN};
use super::fib::Fib;
use super::figures::{Measured, figures};
use super::net::{Net, Node, VIP};
use super::router::{self, Bfd, Neighbour, Router, Setup};
use super::speaker::{self, Fault, Place, Speaker, glue::Glue, holdfast::Holdfast};
use super::{resilient, wire::Wire};
use crate::balancer::Kind as Balancer;
use crate::clock::{MS, Ns, now, sleep_until};
use crate::env;
use crate::fabric::wait_for;
use crate::load::{fresh::Fresh, long::Long};
use crate::process::{Pidfd, Witness, make_realtime};
use crate::repeat::{LONG_INTERVAL, NOISE, PRIORITY, Repeat, Stage, Unsettled, last_lines, phase};
use crate::report::{Report, Run, unrest};
use crate::responder::Responder;
use crate::run::DEADLINE;
use crate::watch::reference::Reference;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::net::{IpAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long all may take until every node is a next hop.
const SETTLE: Duration = Duration::from_secs(45);
/// After the repair and the return, for what comes late.
const AFTERMATH: Ns = 500 * MS;
/// How long a killed process may take to be gone.
const WITNESS_LIMIT: Duration = Duration::from_secs(5);

/// Next hops in the router's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextHops {
    /// A hop that goes moves flows of the others, too.
    #[default]
    Classic,
    /// It moves only its own.
    Resilient,
}

/// How a drill is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is put to the test.
    pub speaker: speaker::Kind,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// The router.
    pub router: router::Kind,
    /// How many nodes announce the VIP.
    pub nodes: usize,
    /// The router's next hops.
    pub next_hops: NextHops,
    /// Valid runs wanted.
    pub repeat: usize,
    /// Leave the fault out.
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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            speaker: speaker::Kind::Holdfast,
            holdfast: None,
            router: router::Kind::Bird,
            nodes: 2,
            next_hops: NextHops::Classic,
            repeat: 1,
            twin: false,
            strict: false,
            keep: false,
            interval: 5 * MS,
            flows: 20,
            narrate: false,
        }
    }
}

fn speaker(o: &Options) -> Result<Box<dyn Speaker>> {
    Ok(match o.speaker {
        speaker::Kind::Holdfast => Box::new(Holdfast::new(env::holdfast(o.holdfast.as_deref())?)),
        glue => Box::new(Glue::new(glue)?),
    })
}

/// All that runs, in the order in which it is dropped: the network last.
struct Session {
    speaker: Box<dyn Speaker>,
    router: Box<dyn Router>,
    fib: Fib,
    responder: Responder,
    place: Place,
    nodes: Vec<Node>,
}

impl Session {
    fn start(d: &Drill, o: &Options) -> Result<Self> {
        let net = Net::up(o.nodes, o.keep)?;
        let mut speaker = speaker(o)?;
        // ExaBGP and GoBGP of Debian 12 have no BFD: a hold time of 3 s, the least there is, is what they have instead.
        let can = matches!(o.speaker, speaker::Kind::Holdfast | speaker::Kind::Bird);
        let bfd = (d.bfd && can).then_some(Bfd { interval_ms: 50, multiplier: 3 });
        let hold_s = if d.bfd && !can { 3 } else { 9 };
        let nodes: Vec<Node> = net.nodes().collect();
        let neighbours = nodes.iter().map(|n| Neighbour { bfd, hold_s, ..Neighbour::plain(*n) }).collect();
        let retain = d.fault == Fault::RouterRestarted;
        let mut router = o.router.router(&net, Setup { retain, ..Setup::new(neighbours) })?;
        let responder = Responder::serve(net.backends()?)?;
        let listener = match o.next_hops {
            NextHops::Classic => None,
            NextHops::Resilient => Some(resilient::follow(&net)?),
        };
        let fib = Fib::start(&net.ns("rt"), vec![IpAddr::V4(VIP)], listener)?;
        let place = Place { net, hold_s, bfd };
        router.start()?;
        for n in &nodes {
            speaker.start(&place, *n)?;
        }
        std::thread::sleep(Duration::from_millis(200));
        if let Some(dead) = speaker.ended() {
            bail!("{dead} ended as soon as it was started\n{}", last_lines(place.net.directory()));
        }
        Ok(Self { speaker, router, fib, responder, place, nodes })
    }

    /// Until every node is a next hop, all sessions are established and have BFD where they should.
    fn settle(&self, what: &str) -> Result<Ns> {
        let mut missing = String::new();
        let settled = wait_for(SETTLE, Duration::from_millis(20), || {
            let hops = self.fib.hops(VIP.into());
            missing.clear();
            for n in &self.nodes {
                if !hops.contains_key(&n.front().into()) {
                    missing += &format!(" {} is no next hop;", n.name());
                } else if !self.router.established(*n) {
                    missing += &format!(" no session with {};", n.name());
                } else if self.place.bfd.is_some() && !self.router.bfd_up(*n) {
                    missing += &format!(" no BFD with {};", n.name());
                }
            }
            Ok(missing.is_empty())
        })?;
        if !settled {
            let (limit, told) = (SETTLE.as_secs(), self.router.told());
            bail!(Unsettled(format!("{what}:{missing} after {limit} s\n{told}")));
        }
        Ok(now())
    }
}

impl Stage for Session {
    fn directory(&self) -> &Path {
        self.place.net.directory()
    }
}

/// Runs `drill` until it has `o.repeat` valid runs, an error ends it, or too many were void.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it. What goes wrong in a run is in the report.
pub fn drill(d: &Drill, o: &Options) -> Result<Report> {
    env::require_basics()?;
    let probe = speaker(o)?;
    let hops = if o.next_hops == NextHops::Resilient { ", resilient" } else { "" };
    let subject = format!("{}, router {}, {} nodes{hops}", probe.version(), router::version(o.router), o.nodes);
    let mut report = Report {
        channel: true,
        twin: o.twin,
        strict: o.strict,
        skipped: probe.lacks(d.fault),
        ..Report::new(d.name, subject, Balancer::Haproxy)
    };
    drop(probe);
    if report.skipped.is_none() {
        drill_more(&mut report, d, o, o.repeat)?;
    }
    Ok(report)
}

/// Adds runs to `report` until it has `wanted` valid ones, and judges it anew.
///
/// # Errors
/// [`env::Lacks`] when the machine can't run it.
pub fn drill_more(report: &mut Report, d: &Drill, o: &Options, wanted: usize) -> Result<()> {
    // A worker that dies again and again is kept waiting: not what this drill is about.
    let afresh = d.fault == Fault::WorkerKilled;
    let repeat = Repeat { name: d.name, wanted, afresh, narrate: o.narrate, keep: o.keep };
    repeat.run(report, || Session::start(d, o), |s, nth| one_run(d, o, s, nth))?;
    let expect = d.expect(o);
    report.judge_by(if o.twin { TWIN } else { &expect }, wanted);
    Ok(())
}

/// A fault, done.
struct Injected {
    at: Ns,
    /// Whom it stopped.
    stopped: Vec<Pidfd>,
    /// Sees the end of whom it killed.
    witness: Option<Witness>,
}

/// Does it to the first node, or to the router.
fn inject(fault: Fault, s: &mut Session) -> Result<Injected> {
    let n = Node(0);
    let nobody = Vec::new();
    let mut witness = None;
    let (at, stopped) = match fault {
        Fault::BalancerKilled => {
            let pid = s.speaker.balancer(&s.place, n)?;
            // Without real-time priority it would be seen late: then not at all.
            witness = Witness::watch(Pidfd::open(pid)?, PRIORITY, WITNESS_LIMIT).ok();
            (Pidfd::open(pid)?.signal(Signal::KILL)?, nobody)
        }
        Fault::BalancerHung => {
            let p = Pidfd::open(s.speaker.balancer(&s.place, n)?)?;
            (p.signal(Signal::STOP)?, vec![p])
        }
        Fault::HostFrozen => {
            let all: Vec<Pidfd> = s.place.net.node(n).pids().into_iter().filter_map(|p| Pidfd::open(p).ok()).collect();
            let t = now();
            for p in &all {
                let _ended = p.signal(Signal::STOP);
            }
            (t, all)
        }
        Fault::CableCut => (s.place.net.cable(n, false)?, nobody),
        Fault::WorkerKilled => (Pidfd::open(s.speaker.worker(n)?)?.signal(Signal::KILL)?, nobody),
        Fault::WorkerRestarted => (s.speaker.upgrade(&s.place, n)?, nobody),
        Fault::Drain => (s.speaker.drain(&s.place, n)?, nobody),
        Fault::RouterRestarted => {
            let t = now();
            s.router.kill();
            (t, nobody)
        }
    };
    Ok(Injected { at, stopped, witness })
}

fn repair(fault: Fault, s: &mut Session, stopped: &[Pidfd]) -> Result<Ns> {
    let n = Node(0);
    let t = now();
    for p in stopped {
        let _may_be_gone = p.signal(Signal::CONT);
    }
    match fault {
        Fault::BalancerKilled | Fault::BalancerHung => s.speaker.mend_balancer(&s.place, n)?,
        Fault::CableCut => {
            let at = s.place.net.cable(n, true)?;
            // With the carrier went the routes over the link, as on any host without a network manager.
            let route = format!("route replace default via {}\n", super::net::ROUTER);
            std::thread::sleep(Duration::from_millis(100));
            crate::fabric::ip_batch(Some(&s.place.net.node(n)), &route)?;
            return Ok(at);
        }
        Fault::Drain => s.speaker.undrain(&s.place, n)?,
        Fault::RouterRestarted => s.router.start()?,
        Fault::HostFrozen | Fault::WorkerKilled | Fault::WorkerRestarted => {}
    }
    Ok(t)
}

fn one_run(d: &Drill, o: &Options, s: &mut Session, nth: usize) -> Result<Run> {
    s.settle("before the drill")?;
    let wire = Wire::start(&s.place.net)?;
    let reference = Reference::start()?;
    let client = s.place.net.ns("client");
    let web = SocketAddrV4::new(VIP, 80);
    let fresh = Fresh::start(&client, web, o.interval, DEADLINE)?;
    let long = Long::start(&client, web, o.flows, LONG_INTERVAL)?;
    let mut realtime = make_realtime(reference.thread(), 90);
    for t in [fresh.thread(), long.thread(), s.responder.thread(), wire.thread(), s.fib.thread()] {
        realtime = realtime.and_then(|()| make_realtime(t, PRIORITY));
    }
    let warm = || Ok(long.alive() >= o.flows && fresh.recent_ok(40) >= 40);
    if !wait_for(Duration::from_secs(10), Duration::from_millis(20), warm)? {
        bail!(
            "the service didn't answer before the drill ({} of 40 requests, {} flows)",
            fresh.recent_ok(40),
            long.alive()
        );
    }
    let complaints = s.place.net.complaints();
    let steady = now();
    sleep_until(steady + NOISE + phase(nth, 100 * MS));
    let nothing = || Injected { at: now(), stopped: Vec::new(), witness: None };
    let Injected { at: fault, stopped, witness } =
        if o.twin { nothing() } else { inject(d.fault, s).context("the fault")? };
    // A drain returns when it is done; everything else is held from the moment it was done.
    let from = if d.fault == Fault::Drain { now() } else { fault };
    sleep_until(from + d.hold);
    let repaired = if o.twin { now() } else { repair(d.fault, s, &stopped).context("the repair")? };
    let settled = s.settle("after the repair");
    if let Err(e) = settled {
        let journal = s.speaker.journal(&s.place, Node(0)).join("\n    ");
        bail!(Unsettled(format!("{e:#}\n    {journal}")));
    }
    sleep_until(now() + AFTERMATH);
    let end = now();
    let said = s.place.net.complaints();
    if said != complaints {
        bail!("the fault or its repair failed: {}", said.trim_start_matches(&complaints).trim());
    }
    let mut run = figures(&Measured {
        interval: o.interval,
        steady,
        fault,
        ended: witness.and_then(Witness::ended),
        repair: repaired,
        end,
        victim: (d.fault != Fault::RouterRestarted).then_some(Node(0)),
        twin: o.twin,
        nodes: s.nodes.clone(),
        fresh: fresh.finish()?,
        flows: long.finish()?,
        wire: wire.finish()?,
        fib: s.fib.since(0),
        late: reference.finish()?,
        realtime: realtime.err().map(|e| format!("{e:#}")),
    });
    if !o.twin && run.void.is_none() {
        run.void = unrest(&run);
    }
    if o.narrate {
        run.journal = s.speaker.journal(&s.place, Node(0));
    }
    Ok(run)
}

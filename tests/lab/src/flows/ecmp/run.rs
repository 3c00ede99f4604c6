//! One drill, run as often as asked: open all flows, wait until every node has them, let one node leave, let flows come to
//! themselves, and where the drill says so bring the node back and let them do so once more.

use super::agents::{Agents, BFD, HOLD_S};
use super::drills::{Drill, Fault, NONE_STRICT, TWIN};
use super::figures::{Measured, figures, judge_lateness};
use super::load::Load;
use super::net::{self, PORT, snat};
use crate::balancer::Kind;
use crate::bgp::fib::Fib;
use crate::bgp::net::{Net, Node, VIP};
use crate::bgp::resilient;
use crate::bgp::router::{self, Neighbour, Router, Setup};
use crate::bgp::run::NextHops;
use crate::clock::{MS, Ns, SECOND, now, sleep_until};
use crate::env;
use crate::fabric::wait_for;
use crate::flows::client::HUNG;
use crate::flows::net::Rules;
use crate::flows::pair::Sync;
use crate::flows::server::Server;
use crate::process::make_realtime;
use crate::repeat::{PRIORITY, Repeat, Stage, Unsettled, last_lines};
use crate::report::{Report, Run};
use crate::watch::reference::Reference;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long all may take until every node is a next hop, and has its own address.
const SETTLE: Duration = Duration::from_secs(45);
/// How long all flows may take to be established, and to be in every node's kernel.
const OPEN: Duration = Duration::from_secs(30);
/// Entries that a kernel may lack of all flows: of those that were opened just now.
const SLACK: usize = 2;
/// Flows opened last, one each [`FRESH`], so that some are young when the node goes.
const FRESH_FLOWS: usize = 25;
/// And some after it was asked where each one goes.
const YOUNG_FLOWS: usize = 5;
const FRESH: Ns = 20 * MS;
/// A flow that waits no longer than this waits for nothing.
const AT_REST: Ns = 600 * MS;
/// After a change, before anybody looks whether flows have come to themselves.
const AFTER: Ns = 1500 * MS;
/// How long the node stays away, at least.
const AWAY: Ns = 3 * SECOND;
/// After a return: the node's own address comes back as well, and what it changes.
const REJOIN: Ns = 2 * SECOND;

/// How a drill is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What replicates.
    pub sync: Sync,
    /// The nodes' rules.
    pub rules: Rules,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// Nodes.
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
    /// Print each run's timeline to stderr as it happens.
    pub narrate: bool,
    /// Flows; every fifth one is idle.
    pub flows: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync: Sync::Holdfast,
            rules: Rules::Strict,
            holdfast: None,
            nodes: 4,
            next_hops: NextHops::Classic,
            repeat: 1,
            twin: false,
            strict: false,
            keep: false,
            narrate: false,
            flows: 200,
        }
    }
}

impl Options {
    /// Nothing replicates, and no flow of the node that leaves can live: what is put to the test is the drill.
    #[must_use]
    pub fn proves_that_it_fails(&self) -> bool {
        self.sync == Sync::None && self.rules == Rules::Strict && !self.twin
    }
}

/// All that runs, in the order in which it is dropped: the network last.
struct Session {
    agents: Agents,
    router: Box<dyn Router>,
    fib: Fib,
    _server: Server,
    net: Net,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.agents.stop(&self.net);
    }
}

impl Stage for Session {
    fn directory(&self) -> &Path {
        self.net.directory()
    }
}

impl Session {
    fn start(o: &Options) -> Result<Self> {
        let net = Net::up(o.nodes, o.keep)?;
        net::prepare(&net, o.rules)?;
        let bfd = Some(BFD);
        let neighbours = net.nodes().map(|n| Neighbour { bfd, hold_s: HOLD_S, ..Neighbour::plain(n) }).collect();
        let router = router::Kind::Bird.router(&net, Setup::new(neighbours))?;
        let server = Server::serve([net::backends(&net)].into_iter())?;
        let listener = match o.next_hops {
            NextHops::Classic => None,
            NextHops::Resilient => Some(resilient::follow(&net)?),
        };
        let fib = Fib::start(&net.ns("rt"), vec![IpAddr::V4(VIP)], listener)?;
        let agents = Agents::new(env::holdfast(o.holdfast.as_deref())?, o.sync);
        let mut s = Self { agents, router, fib, _server: server, net };
        s.router.start()?;
        for n in s.net.nodes() {
            s.agents.start(&s.net, n)?;
        }
        std::thread::sleep(Duration::from_millis(200));
        if let Some(dead) = s.agents.ended() {
            bail!("{dead} ended as soon as it was started\n{}", last_lines(s.directory()));
        }
        Ok(s)
    }

    /// What is missing until all is as it should be: every node a next hop with BFD, and its own address on it alone.
    fn missing(&self) -> String {
        let hops = self.fib.hops(VIP.into());
        let mut missing = String::new();
        for n in self.net.nodes() {
            let name = n.name();
            let holders: Vec<String> =
                self.net.nodes().filter(|h| net::holds(&self.net, *h, snat(n))).map(Node::name).collect();
            if !hops.contains_key(&n.front().into()) {
                missing += &format!(" {name} is no next hop;");
            } else if !self.router.bfd_up(n) {
                missing += &format!(" no BFD with {name};");
            } else if holders != [n.name()] {
                missing += &format!(" the address of {name} is on {holders:?};");
            }
        }
        missing
    }

    fn settle(&self, what: &str) -> Result<()> {
        let mut missing = String::new();
        let settled = wait_for(SETTLE, Duration::from_millis(50), || {
            missing = self.missing();
            Ok(missing.is_empty())
        })?;
        if !settled {
            let journal: Vec<String> = self.net.nodes().flat_map(|n| self.agents.journal(&self.net, n)).collect();
            let (limit, told) = (SETTLE.as_secs(), self.router.told());
            bail!(Unsettled(format!("{what}:{missing} after {limit} s\n{told}\n    {}", journal.join("\n    "))));
        }
        Ok(())
    }

    /// Until every kernel has all flows.
    fn replicated(&self, flows: usize, what: &str) -> Result<()> {
        let mut lacks = String::new();
        let ready = wait_for(OPEN, Duration::from_millis(100), || {
            lacks.clear();
            for n in self.net.nodes() {
                let here = net::entries(&self.net, n)?.len();
                if here + SLACK < flows {
                    lacks += &format!(" {here} of {flows} on {};", n.name());
                }
            }
            Ok(lacks.is_empty())
        })?;
        if !ready {
            bail!(Unsettled(format!("{what}: after {} s there are flows missing:{lacks}", OPEN.as_secs())));
        }
        Ok(())
    }

    /// Which node's address backends answer to, by the client's port: of what any kernel has.
    fn answers(&self) -> Result<BTreeMap<u16, Node>> {
        let mut all = BTreeMap::new();
        for n in self.net.nodes() {
            for (port, ip) in net::entries(&self.net, n)? {
                all.extend(self.net.nodes().find(|n| ip == IpAddr::V4(snat(*n))).map(|of| (port, of)));
            }
        }
        Ok(all)
    }

    fn leave(&mut self, fault: Fault, n: Node) -> Result<Ns> {
        let t = now();
        match fault {
            Fault::Drain => self.agents.drain(&self.net, n)?,
            Fault::Kill => {
                net::power_off(&self.net, n)?;
                self.agents.is_dead(n);
            }
        }
        Ok(t)
    }

    fn come_back(&mut self, fault: Fault, n: Node, rules: Rules) -> Result<Ns> {
        let t = now();
        match fault {
            Fault::Drain => self.agents.undrain(&self.net, n)?,
            Fault::Kill => {
                net::power_on(&self.net, n, rules)?;
                self.agents.start(&self.net, n)?;
            }
        }
        Ok(t)
    }

    /// Waits until another node alone has the address of `n`; returns when it was seen.
    fn taken(&self, n: Node) -> Result<Ns> {
        let elsewhere = || {
            let holders: Vec<Node> = self.net.nodes().filter(|h| net::holds(&self.net, *h, snat(n))).collect();
            Ok(matches!(holders[..], [one] if one != n))
        };
        if !wait_for(Duration::from_secs(10), Duration::from_millis(5), elsewhere)? {
            bail!(Unsettled(format!("no other node alone has the address of {} after 10 s", n.name())));
        }
        Ok(now())
    }

    /// Waits until `n` is a next hop, or isn't; returns when that came to be, as far as it did since `from`.
    fn hop(&self, n: Node, is: bool, from: Ns) -> Result<Ns> {
        let hop = IpAddr::V4(n.front());
        let there = || self.fib.hops(VIP.into()).contains_key(&hop);
        if !wait_for(SETTLE, Duration::from_millis(5), || Ok(there() == is))? {
            let what = if is { "no" } else { "still a" };
            bail!(Unsettled(format!("{} is {what} next hop after {} s", n.name(), SETTLE.as_secs())));
        }
        // For good: a route that is written anew is gone for a moment.
        let mut at = None;
        for e in self.fib.since(from) {
            at = (e.hops.contains_key(&hop) == is).then(|| at.unwrap_or(e.at));
        }
        Ok(at.unwrap_or(from))
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
    let probe = Agents::new(env::holdfast(o.holdfast.as_deref())?, o.sync);
    let hops = if o.next_hops == NextHops::Resilient { ", resilient" } else { "" };
    let (version, router) = (probe.version(), router::version(router::Kind::Bird));
    let subject = format!("{version}, router {router}, {} nodes{hops}, {} rules", o.nodes, o.rules.name());
    let skipped = (o.sync == Sync::Conntrackd).then(|| "conntrackd replicates between two nodes".to_owned());
    let mut report =
        Report { channel: true, twin: o.twin, strict: o.strict, skipped, ..Report::new(d.name, subject, Kind::Nft) };
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
    // A node that left and came back is held back when it leaves again.
    let repeat = Repeat { name: d.name, wanted, afresh: true, narrate: o.narrate, keep: o.keep };
    repeat.run(report, || Session::start(o), |s, _| one_run(d, o, s))?;
    let expected = match o.twin {
        true => TWIN,
        false if o.proves_that_it_fails() => NONE_STRICT,
        false => d.expect,
    };
    report.judge_by(expected, wanted);
    Ok(())
}

/// Until every flow is well or was given up.
fn at_rest(load: &Load) -> Result<()> {
    sleep_until(now() + AFTER);
    let limit = Duration::from_nanos(HUNG + 2 * SECOND);
    let _else_it_is_broken = wait_for(limit, Duration::from_millis(20), || Ok(load.oldest_wait() < AT_REST))?;
    Ok(())
}

fn one_run(d: &Drill, o: &Options, s: &mut Session) -> Result<Run> {
    let victim = Node(0);
    s.settle("before the drill")?;
    let reference = Reference::start()?;
    let load = Load::start(&s.net.ns("client"), (VIP, PORT).into(), o.flows)?;
    let mut realtime = make_realtime(reference.thread(), 90);
    realtime = realtime.and_then(|()| make_realtime(s.fib.thread(), PRIORITY));
    if !wait_for(OPEN, Duration::from_millis(20), || Ok(load.alive() >= o.flows))? {
        let journal = s.agents.journal(&s.net, victim).join("\n    ");
        bail!("{} of {} flows were established after {} s\n    {journal}", load.alive(), o.flows, OPEN.as_secs());
    }
    if o.sync == Sync::Holdfast {
        s.replicated(o.flows, "before the drill")?;
    }
    sleep_until(now() + AFTER);
    let (answers, lag_ms) = (s.answers()?, s.agents.lag_p99_ms(&s.net));
    let complaints = s.net.complaints();
    let ports = || load.ports().into_keys().collect::<BTreeSet<u16>>();
    let fresh = |n: usize| {
        for _ in 0..n {
            load.one_more();
            sleep_until(now() + FRESH);
        }
    };
    fresh(FRESH_FLOWS);
    let before = net::paths(&s.net, &ports())?;
    fresh(YOUNG_FLOWS);
    if load.broken() > 0 {
        bail!("{} flows had broken before anything was done", load.broken());
    }
    let fault = if o.twin { now() } else { s.leave(d.fault, victim).context("the fault")? };
    let (mut gone, mut taken) = (None, None);
    if !o.twin {
        taken = Some(s.taken(victim)?);
        gone = Some(s.hop(victim, false, fault)?);
    }
    let after = net::paths(&s.net, &ports())?;
    if !before.values().any(|n| *n == victim) {
        bail!("no flow is on {}", victim.name());
    }
    // When the drill itself is put to the test, it has its answer then.
    let comes_back = d.returns && !o.twin && !o.proves_that_it_fails();
    load.wake();
    if !comes_back {
        load.wake(); // all of them
    }
    at_rest(&load)?;
    let (mut returned, mut back) = (None, now());
    if comes_back {
        sleep_until(fault + AWAY);
        back = s.come_back(d.fault, victim, o.rules).context("the return")?;
        returned = Some(s.hop(victim, true, back)?);
        sleep_until(now() + REJOIN);
        s.settle("after the return")?;
        load.wake();
        at_rest(&load)?;
    }
    let later = net::paths(&s.net, &ports())?;
    let clients_late = load.late();
    if let Some(dead) = s.agents.ended() {
        bail!("{dead} has ended");
    }
    let records = load.finish(HUNG + 2 * SECOND)?;
    let end = now();
    let said = s.net.complaints();
    if said != complaints {
        bail!("a fault or its repair failed: {}", said.trim_start_matches(&complaints).trim());
    }
    let late = reference.finish()?.into_iter().map(|(_, l)| l).max().unwrap_or(0);
    let mut run = figures(&Measured {
        victim,
        fault,
        gone,
        taken,
        back,
        returned,
        end,
        twin: o.twin,
        paths: [before, after, later],
        answers,
        records,
        lag_ms,
        machine_late: late,
        clients_late,
    });
    judge_lateness(&mut run, late.max(clients_late));
    run.realtime = realtime.err().map(|e| format!("{e:#}"));
    if o.narrate {
        run.journal = s.net.nodes().flat_map(|n| s.agents.journal(&s.net, n)).collect();
    }
    Ok(run)
}

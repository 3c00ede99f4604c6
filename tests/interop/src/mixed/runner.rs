//! A cell's rounds, and many cells side by side.

use super::cell::{Cell, PROBER6, Transport};
use super::judge::{Seen, What};
use super::node::{Node, Seat};
use super::scenario::{Act, HIGH, HIGHEST, LOW, LOWEST, Limits, Outcome, ROUND, Role, Step, judge, ns};
use super::table::unit;
use super::wire::Wire;
use crate::beside::{self, beside};
use anyhow::{Context, Result, ensure};
use holdfast_lab::clock::{MS, Ns, SECOND, ms_between, now};
use holdfast_lab::env::Lacks;
use holdfast_lab::fabric::{Fabric, Lb, ip_batch, wait_for};
use holdfast_lab::watch::reference::{Reference, VOID};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// How long a step may take until everything is at rest; starting a router is in it.
const REST: Duration = Duration::from_secs(20);
/// Rounds that may be void before a failure counts although the machine stood still.
const VOIDS: usize = 3;
/// After so many failed rounds a cell is given up.
const GIVE_UP: usize = 2;

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Rounds for each cell.
    pub rounds: usize,
    /// Cells side by side.
    pub jobs: usize,
    /// How far figures may be from theory.
    pub limits: Limits,
    /// A cell that failed is run again alone, and that counts.
    pub again: bool,
    /// A line for each step.
    pub verbose: bool,
}

/// What came out of a cell.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub cell: Cell,
    /// Rounds that count.
    pub rounds: usize,
    /// Rounds that don't, since the machine stood still.
    pub void: usize,
    /// Every step of every round that counts.
    pub outcomes: Vec<Outcome>,
    /// A failure each, with all that can be said about it.
    pub failures: Vec<String>,
    /// Not run, and why.
    pub skipped: Option<String>,
    /// It failed beside others and passed alone.
    pub again: bool,
    /// Seconds it took.
    pub seconds: u64,
}

impl beside::Done for Done {
    type Cell = Cell;

    fn cell(&self) -> Cell {
        self.cell
    }

    fn ours(&self) -> bool {
        self.cell.mixed()
    }

    fn pass(&self) -> bool {
        self.skipped.is_none() && self.failures.is_empty()
    }

    fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    fn passed_alone(&mut self) {
        self.again = true;
    }

    fn unit(&self) -> Value {
        unit(self)
    }
}

/// Two routers that run, and the eyes on them.
struct Pair {
    cell: Cell,
    // Before the fabric: it ends what still runs in it.
    nodes: [Box<dyn Node>; 2],
    wire: Wire,
    fabric: Fabric,
    /// When a host was cut off: what it sent then reached nobody.
    cuts: Vec<(Lb, Ns, Ns)>,
}

impl Pair {
    fn up(cell: Cell) -> Result<Self> {
        let fabric = Fabric::up(false)?;
        let obs = fabric.ns("obs");
        obs.inside(|| std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_ra", "0").context("accept_ra"))?;
        ip_batch(Some(&obs), &format!("addr add {PROBER6}/64 dev eth0 nodad\n"))?;
        let seat = |lb, priority| {
            let seat = Seat::new(&fabric, lb, cell, priority)?;
            if cell.transport == Transport::Unicast {
                // A peer that died answers no ARP: what is sent to it would never be seen on the wire.
                let mac = fabric.mac(lb.other())?.map(|byte| format!("{byte:02x}")).join(":");
                for &family in cell.families {
                    seat.ip(&format!("neigh replace {} lladdr {mac} dev eth0 nud permanent\n", seat.peer(family)))?;
                }
            }
            seat.node()
        };
        let nodes = [seat(Lb::Lb1, HIGH)?, seat(Lb::Lb2, LOW)?];
        let wire = Wire::start(&fabric, cell.families)?;
        let mut pair = Self { cell, nodes, wire, fabric, cuts: Vec::new() };
        for index in [0, 1] {
            let started = pair.nodes[index].start().and_then(|()| pair.rest(Lb::Lb1));
            started.with_context(|| format!("at the start of {:?}\n{}", Lb::BOTH[index], pair.logs()))?;
        }
        Ok(pair)
    }

    fn logs(&self) -> String {
        self.nodes.iter().flat_map(|n| n.logs().lines().map(|l| format!("    {l}\n")).collect::<Vec<_>>()).collect()
    }

    fn round(&mut self, limits: Limits, verbose: bool) -> (Vec<Outcome>, Option<String>) {
        let mut outcomes = Vec::new();
        for step in &ROUND {
            let Some(lb) = step.to.at(&self.cell) else { continue };
            let at = now();
            let done = self.act(step, lb);
            let rested = done.and_then(|()| self.rest(step.after));
            // Back to where `rest` has seen an advert of the owner and nothing of the other one.
            let seen = self.seen(at.saturating_sub(self.window()));
            let mut outcome = judge(&self.cell, step, at, &seen, limits);
            if let Err(e) = rested {
                outcome.failed.push(format!("{e:#}"));
            } else if step.to == Role::Other && step.act == Act::Boot {
                outcome.failed.extend(self.complaints());
            }
            if verbose {
                println!("  {:?} {:?}: {outcome:?}", step.to, step.act);
            }
            let failed = (!outcome.failed.is_empty()).then(|| self.tell(step, at, &outcome, &seen));
            outcomes.push(outcome);
            if failed.is_some() {
                return (outcomes, failed);
            }
        }
        (outcomes, None)
    }

    fn act(&mut self, step: &Step, lb: Lb) -> Result<()> {
        let node = &mut self.nodes[lb.index()];
        match step.act {
            Act::Die => {
                self.cuts.push((lb, now(), Ns::MAX));
                self.fabric.forwarding(lb, false)?;
                node.kill()
            }
            Act::Boot => {
                node.wipe()?;
                self.fabric.forwarding(lb, true)?;
                if let Some(cut) = self.cuts.last_mut() {
                    cut.2 = now();
                }
                node.start()
            }
            Act::Drain => node.drain(),
            Act::Undrain => node.undrain(),
            Act::Stop => node.stop(),
            Act::Start => node.start(),
            Act::Give => node.set_priority(if lb == Lb::Lb1 { LOWEST } else { HIGHEST }),
            Act::Take => node.set_priority(if lb == Lb::Lb1 { HIGH } else { LOW }),
            Act::Crash => node.crash(),
        }
    }

    /// What reached the segment since `from`.
    fn seen(&self, from: Ns) -> Vec<Seen> {
        let reached = |s: &Seen| !self.cuts.iter().any(|&(lb, a, b)| s.by == lb && (a..b).contains(&s.at));
        let mut seen = self.wire.since(from);
        seen.retain(reached);
        seen
    }

    fn window(&self) -> Ns {
        2 * ns(self.cell.interval()) + 100 * MS
    }

    /// Waits until one router alone has owned every address for two intervals, by its adverts and its answers.
    fn rest(&self, owner: Lb) -> Result<()> {
        let window = self.window();
        let mut why = String::new();
        let rested = wait_for(REST, Duration::from_millis(20), || {
            why.clear();
            let t = now();
            let seen = self.seen(t.saturating_sub(window));
            for &family in self.cell.families {
                let of = |lb: Lb| seen.iter().filter(move |s| s.by == lb && s.family == family);
                let claims = |s: &&Seen| matches!(s.what, What::Advert { priority } if priority > 0);
                let answers = |s: &&Seen| s.what == What::Answer;
                if of(owner.other()).any(|s| claims(&s) || answers(&s)) {
                    write!(why, "{:?} owns the {family:?} address, too; ", owner.other())?;
                }
                if !of(owner).any(|s| claims(&s)) {
                    write!(why, "{owner:?} sends no {family:?} adverts; ")?;
                }
                if !of(owner).filter(answers).any(|s| t.saturating_sub(s.at) < 100 * MS) {
                    write!(why, "{owner:?} doesn't answer for the {family:?} address; ")?;
                }
            }
            Ok(why.is_empty())
        })?;
        ensure!(rested, "not at rest with {owner:?} as the owner within {REST:?}: {}", why.trim_end_matches("; "));
        Ok(())
    }

    fn complaints(&mut self) -> Vec<String> {
        self.nodes.iter_mut().filter_map(|n| n.complaint().unwrap_or_else(|e| Some(format!("{e:#}")))).collect()
    }

    /// All that can be said about a failure.
    fn tell(&self, step: &Step, at: Ns, outcome: &Outcome, seen: &[Seen]) -> String {
        let mut t = format!("{}: {:?} of {:?}\n", self.cell, step.act, step.to);
        outcome.failed.iter().for_each(|f| t += &format!("  {f}\n"));
        t += "  on the wire, ms since the step (answers: the first and the last of each row of them):\n";
        for line in timeline(seen, at) {
            t += &format!("    {line}\n");
        }
        t += &self.logs();
        t += &self.fabric.complaints();
        t
    }
}

/// Adverts and announcements, and where rows of answers begin and end.
fn timeline(seen: &[Seen], at: Ns) -> Vec<String> {
    const MOST: usize = 60;
    let mut lines: Vec<String> = Vec::new();
    let mut last: Vec<Seen> = Vec::new();
    for s in seen {
        let same = last.iter_mut().find(|l| l.by == s.by && l.family == s.family && l.what == s.what);
        let gap = same.as_ref().map_or(Ns::MAX, |l| s.at - l.at);
        if s.what != What::Answer || gap > 100 * MS {
            let before = same.as_ref().filter(|_| s.what == What::Answer).map(|l| ms_between(at, l.at));
            let after = before.map(|b| format!(" (the last before: {b:.1})")).unwrap_or_default();
            lines.push(format!("{:>9.1} {:?} {:?} {:?}{after}", ms_between(at, s.at), s.by, s.family, s.what));
        }
        match same {
            Some(l) => l.at = s.at,
            None => last.push(*s),
        }
    }
    for l in last.iter().filter(|l| l.what == What::Answer) {
        lines.push(format!("{:>9.1} {:?} {:?} last answer", ms_between(at, l.at), l.by, l.family));
    }
    let cut = lines.len().saturating_sub(MOST);
    if cut > 0 {
        lines.drain(MOST / 2..MOST / 2 + cut);
        lines.insert(MOST / 2, format!("… {cut} more …"));
    }
    lines
}

/// Runs one cell.
#[must_use]
pub fn cell(cell: Cell, o: &Options) -> Done {
    let start = now();
    let mut done = Done {
        cell,
        rounds: 0,
        void: 0,
        outcomes: Vec::new(),
        failures: Vec::new(),
        skipped: None,
        again: false,
        seconds: 0,
    };
    let mut pair: Option<Pair> = None;
    while done.rounds < o.rounds && done.failures.len() < GIVE_UP {
        let reference = Reference::start().ok();
        if let Some(r) = &reference {
            let _normal = holdfast_lab::process::make_realtime(r.thread(), 70);
        }
        let (outcomes, failed) = match pair.take().map_or_else(|| Pair::up(cell), Ok) {
            Ok(mut up) => {
                let (outcomes, failed) = up.round(o.limits, o.verbose);
                if failed.is_none() {
                    pair = Some(up);
                }
                (outcomes, failed)
            }
            Err(e) if e.downcast_ref::<Lacks>().is_some() => {
                done.skipped = Some(format!("{e:#}"));
                break;
            }
            Err(e) => (Vec::new(), Some(format!("{cell}: {e:#}\n"))),
        };
        let late = reference.and_then(|r| r.finish().ok()).unwrap_or_default();
        if failed.is_some() && done.void < VOIDS && late.iter().any(|&(_, late)| late >= VOID) {
            done.void += 1;
            continue;
        }
        done.rounds += 1;
        done.outcomes.extend(outcomes);
        done.failures.extend(failed);
    }
    done.seconds = (now() - start) / SECOND;
    done
}

/// Runs cells side by side; `tell` hears of each when it is done.
#[must_use]
pub fn cells(all: &[Cell], o: &Options, tell: impl FnMut(&Done)) -> Vec<Done> {
    beside(all, o.jobs, o.again, |c| cell(c, o), tell)
}

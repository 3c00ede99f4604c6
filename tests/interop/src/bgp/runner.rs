//! The steps of a cell, and many cells side by side.

use super::cell::{Cell, Feature, Peer};
use super::ours::{Kind, RESTART};
use super::scenario::{STEPS, Step};
use super::stage::Stage;
use crate::beside::{self, Done as _, beside};
use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::bgp::message::Said;
use holdfast_lab::bgp::wire::Seen;
use holdfast_lab::clock::{MS, Ns, SECOND, ms_between, now};
use holdfast_lab::env::Lacks;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;

/// Far more than anything takes, for a busy machine.
const SOON: Duration = Duration::from_secs(25);
/// How long something that must not happen is waited for.
const QUIET: Duration = Duration::from_millis(1200);

/// How cells are run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What speaks for us.
    pub ours: Kind,
    /// Rounds of each cell.
    pub rounds: usize,
    /// Cells side by side.
    pub jobs: usize,
    /// Against the figures themselves; nothing is run a second time.
    pub strict: bool,
    /// A line for each step.
    pub verbose: bool,
}

/// A step that was done.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Which.
    pub step: Step,
    /// How long until what it waits for, ms.
    pub ms: f64,
    /// What didn't hold.
    pub failed: Option<String>,
}

/// A cell that was run.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub cell: Cell,
    /// What spoke for us.
    pub ours: Kind,
    /// Its steps, of all rounds.
    pub outcomes: Vec<Outcome>,
    /// All that can be said about what failed.
    pub failures: Vec<String>,
    /// Why it wasn't run.
    pub skipped: Option<String>,
    /// It failed beside others and passed alone.
    pub again: bool,
    /// Seconds it took.
    pub seconds: u64,
}

impl Done {
    /// For people, a line.
    #[must_use]
    pub fn line(&self) -> String {
        let word = match (&self.skipped, self.pass()) {
            (Some(_), _) => "skip",
            (None, true) => "pass",
            (None, false) => "FAIL",
        };
        let note = self.skipped.clone().unwrap_or_else(|| self.times());
        let again = if self.again { " (alone)" } else { "" };
        format!("{word}  {:<70}{:>4} s  {note}{again}", self.name(), self.seconds)
    }

    /// The cell's name, and who spoke for us where it wasn't the agent.
    fn name(&self) -> String {
        match self.ours {
            Kind::Holdfast => self.cell.to_string(),
            Kind::Bird => format!("{}, without ours", self.cell),
        }
    }

    /// The longest time of each step, ms.
    fn times(&self) -> String {
        let of = |step: &Step| {
            let all = || self.outcomes.iter().filter(|o| o.step == *step);
            let worst = all().map(|o| o.ms).fold(0.0, f64::max);
            all().next().map(|_| {
                let bad = if all().any(|o| o.failed.is_some()) { "!" } else { "" };
                format!("{} {worst:.0}{bad}", step.name())
            })
        };
        STEPS.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }
}

impl beside::Done for Done {
    type Cell = Cell;

    fn cell(&self) -> Cell {
        self.cell
    }

    fn ours(&self) -> bool {
        self.ours == Kind::Holdfast
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
        let steps: Vec<Value> =
            self.outcomes.iter().map(|o| json!({"step": o.step.name(), "ms": o.ms, "failed": o.failed})).collect();
        json!({
            "cell": self.name(), "pass": self.pass(), "skipped": self.skipped, "again": self.again,
            "steps": steps,
        })
    }
}

/// Runs one cell.
#[must_use]
pub fn cell(cell: Cell, o: &Options) -> Done {
    let start = now();
    let mut done = Done {
        cell,
        ours: o.ours,
        outcomes: Vec::new(),
        failures: Vec::new(),
        skipped: None,
        again: false,
        seconds: 0,
    };
    for _ in 0..o.rounds {
        match round(cell, o, &mut done.outcomes) {
            Ok(None) => {}
            Ok(Some(failure)) => done.failures.push(failure),
            Err(e) if e.downcast_ref::<Lacks>().is_some() => done.skipped = Some(format!("{e:#}")),
            Err(e) => done.failures.push(format!("{cell}: {e:#}\n")),
        }
        if !done.pass() {
            break;
        }
    }
    done.seconds = (now() - start) / SECOND;
    done
}

/// One round; gives what can be said about the step that failed.
fn round(cell: Cell, o: &Options, outcomes: &mut Vec<Outcome>) -> Result<Option<String>> {
    let mut stage = Stage::up(cell, o.ours)?;
    for step in STEPS.into_iter().filter(|s| s.applies(&cell)) {
        if o.ours == Kind::Bird && matches!(step, Step::Crash) {
            continue; // it has no worker
        }
        let at = now();
        let done = act(&mut stage, step, at, o);
        let (ms, failed) = match done {
            Ok(ms) => (ms, None),
            Err(e) => (ms_between(at, now()), Some(format!("{e:#}"))),
        };
        if o.verbose {
            println!("  {cell}: {} {ms:.1} ms {}", step.name(), failed.as_deref().unwrap_or("ok"));
        }
        let failure = failed.clone();
        outcomes.push(Outcome { step, ms, failed });
        if let Some(why) = failure {
            let told = stage.tell(at)?;
            return Ok(Some(format!("{cell}: {}\n  {why}\n{told}", step.name())));
        }
    }
    Ok(None)
}

/// Does a step and waits for what must come of it; gives how long that took, ms.
fn act(s: &mut Stage, step: Step, at: Ns, o: &Options) -> Result<f64> {
    let key = s.cell.password();
    let since = |s: Ns| ms_between(s, now());
    match step {
        Step::WrongKey => {
            start(s, Some("this-is-not-the-key"))?;
            std::thread::sleep(2 * QUIET);
            ensure!(!s.established(), "a session in spite of a wrong key");
            ensure!(s.cell.vips().iter().all(|v| !s.has(*v)), "a route in spite of a wrong key");
            let took = since(at);
            s.ours.iter_mut().try_for_each(super::ours::Ours::stop)?;
            return Ok(took);
        }
        Step::TooFar => {
            s.farther(true)?;
            start(s, key)?;
            std::thread::sleep(2 * QUIET);
            // The others don't call within that time, and their answers to our calls are no messages.
            let far = s.seen(at).iter().any(|x| !x.by_node && x.ttl == 254);
            ensure!(far || !matches!(s.cell.peer, Peer::Frr | Peer::Bird), "the router's frames didn't lose a hop");
            let said = s.seen(at).iter().find(|x| x.by_node && matches!(x.said, Said::Open { .. })).cloned();
            ensure!(said.is_none(), "we spoke with a router that is a hop too far: {said:?}");
            ensure!(!s.established(), "a session with a router that is a hop too far");
            ensure!(s.cell.vips().iter().all(|v| !s.has(*v)), "a route at a router that is a hop too far");
            let took = since(at);
            s.ours.iter_mut().try_for_each(super::ours::Ours::stop)?;
            s.farther(false)?;
            return Ok(took);
        }
        Step::Up | Step::UpAgain => {
            start(s, key)?;
            s.await_routes(true, SOON)?;
            let took = since(at);
            s.await_sessions(s.cell.nodes(), at, SOON)?;
            frames(s, at)?;
            weights(s)?;
            return Ok(took);
        }
        Step::Unfit => {
            s.ours.iter_mut().try_for_each(|o| o.fit(false))?;
            s.await_routes(false, SOON)?;
            let took = since(at);
            unbroken(s, at)?;
            return Ok(took);
        }
        Step::FlapUnfit => {
            s.flap()?;
            s.await_sessions(s.cell.nodes(), at, SOON)?;
            let took = since(at);
            std::thread::sleep(QUIET);
            let seen = s.seen(at);
            let announced =
                seen.iter().find(|x| x.by_node && matches!(&x.said, Said::Update(u) if !u.announced.is_empty()));
            ensure!(announced.is_none(), "announced while unfit: {announced:?}");
            s.await_routes(false, Duration::ZERO)?;
            return Ok(took);
        }
        Step::Fit => {
            s.ours.iter_mut().try_for_each(|o| o.fit(true))?;
            s.await_routes(true, SOON)?;
            let took = since(at);
            unbroken(s, at)?;
            return Ok(took);
        }
        Step::Flap => {
            s.flap()?;
            s.await_sessions(s.cell.nodes(), at, SOON)?;
            s.await_routes(true, SOON)?;
        }
        Step::Freeze => return freeze(s, at, o),
        Step::Crash => return crash(s, at),
        Step::Die => return die(s, at),
        Step::Stop => return stop(s, at),
    }
    Ok(since(at))
}

fn start(s: &mut Stage, key: Option<&str>) -> Result<()> {
    s.ours.iter_mut().try_for_each(|o| o.start(key))
}

/// The session lived through the step.
fn unbroken(s: &Stage, at: Ns) -> Result<()> {
    match s.ended(at) {
        Some(how) => bail!("the session ended: {how}"),
        None => Ok(()),
    }
}

/// What every frame of ours must look like.
fn frames(s: &Stage, at: Ns) -> Result<()> {
    let seen = s.seen(at);
    // A reset while nobody listens yet is the kernel's own.
    let tcp = |x: &&Seen| x.by_node && !matches!(x.said, Said::Bfd { .. } | Said::Reset);
    let said: Vec<&Seen> = seen.iter().filter(tcp).collect();
    ensure!(!said.is_empty(), "nothing of ours on the wire");
    if s.cell.feature == Feature::Md5 {
        ensure!(said.iter().all(|x| x.signed), "a segment without a signature: {:?}", said.iter().find(|x| !x.signed));
    }
    // BIRD sends link-local sessions with a hop limit of its own.
    if let (Some(ttl), true) = (s.cell.ttl(), s.ours.iter().all(super::ours::Ours::is_holdfast)) {
        let other = said.iter().find(|x| x.ttl != ttl);
        ensure!(other.is_none(), "a TTL other than {ttl}: {other:?}");
    }
    if let Some(b) = seen.iter().find(|x| matches!(x.said, Said::Bfd { .. }) && x.ttl != 255) {
        bail!("a BFD packet of one hop with another TTL than 255: {b:?}");
    }
    Ok(())
}

/// Weights of 1 and 3 arrive in the kernel as such, whatever the scale.
fn weights(s: &Stage) -> Result<()> {
    if s.cell.feature != Feature::Weights {
        return Ok(());
    }
    // The second node's path may come a moment after the first's.
    let ratio = || {
        let hops = s.hops(IpAddr::V4(holdfast_lab::bgp::net::VIP));
        let of = |n: usize| hops.get(&IpAddr::V4(holdfast_lab::bgp::net::Node(n).front())).map(|w| f64::from(*w));
        of(1).zip(of(0)).map(|(b, a)| b / a)
    };
    let right = || Ok(ratio().is_some_and(|r| (r - 3.0).abs() < 0.2));
    ensure!(super::ours::Ours::wait(SOON, right)?, "weights 1 and 3 are {:?} in the kernel", ratio());
    Ok(())
}

fn freeze(s: &mut Stage, at: Ns, o: &Options) -> Result<f64> {
    s.first()?.freeze(true)?;
    let gone = s.await_routes(false, SOON);
    let took = ms_between(at, now());
    s.first()?.freeze(false)?;
    gone?;
    // 50 ms × 3, and the router's own time; without BFD it would be the hold time, 9 s.
    let limit = match (o.strict, s.cell.peer) {
        (true, Peer::Bird) => 160.0,
        (true, _) => 230.0,
        (false, _) => 3000.0,
    };
    ensure!(took <= limit, "the route went {took:.0} ms after everything froze, not within {limit} ms");
    s.await_routes(true, SOON)?;
    s.await_sessions(s.cell.nodes(), at, SOON)?;
    Ok(took)
}

fn crash(s: &mut Stage, at: Ns) -> Result<f64> {
    let key = s.cell.password();
    s.first()?.crash(key)?;
    if !s.cell.keeps_routes() {
        s.await_sessions(1, at, SOON)?;
        s.await_routes(true, SOON)?;
        return Ok(ms_between(at, now()));
    }
    s.await_sessions(1, at, SOON)?;
    let wanted = s.cell.vips().len();
    let told = |s: &Stage| {
        let seen = s.seen(at);
        let updates = || {
            seen.iter().filter(|x| x.by_node).filter_map(|x| if let Said::Update(u) = &x.said { Some(u) } else { None })
        };
        let announced: usize = updates().map(|u| u.announced.len()).sum();
        announced >= wanted && updates().filter(|u| u.end_of_rib).count() >= wanted
    };
    ensure!(super::ours::Ours::wait(SOON, || Ok(told(s)))?, "not all was announced anew with an End-of-RIB");
    let took = ms_between(at, now());
    std::thread::sleep(QUIET);
    let seen = s.seen(at);
    let restarting = seen.iter().any(|x| x.by_node && matches!(x.said, Said::Open { restarting: Some(true) }));
    ensure!(restarting, "the OPEN after the crash didn't say that we restart");
    let notified = seen.iter().find(|x| x.by_node && matches!(x.said, Said::Notification { .. }));
    ensure!(notified.is_none(), "a crash sends no NOTIFICATION: {notified:?}");
    let events = s.fib.since(at);
    ensure!(events.is_empty(), "the router's table noticed: {events:?}");
    Ok(took)
}

fn die(s: &mut Stage, at: Ns) -> Result<f64> {
    s.first()?.die()?;
    let held = RESTART.mul_f64(0.6);
    std::thread::sleep(held);
    ensure!(s.cell.vips().iter().all(|v| s.has(*v)), "the router dropped the route before the restart time was over");
    s.await_routes(false, SOON)?;
    let took = ms_between(at, now());
    let limit = ms_between(0, u64::try_from(RESTART.as_nanos()).unwrap_or(0) + 5000 * MS);
    ensure!(took <= limit, "the route of the dead stayed for {took:.0} ms");
    Ok(took)
}

fn stop(s: &mut Stage, at: Ns) -> Result<f64> {
    s.ours.iter_mut().try_for_each(super::ours::Ours::stop)?;
    s.await_routes(false, SOON)?;
    let took = ms_between(at, now());
    if !s.ours.iter().all(super::ours::Ours::is_holdfast) {
        return Ok(took);
    }
    let seen = s.seen(at);
    for node in (0..s.cell.nodes()).map(holdfast_lab::bgp::net::Node) {
        let by = || seen.iter().filter(|x| x.node == node && x.by_node);
        let fin =
            by().find(|x| matches!(x.said, Said::Fin | Said::Reset)).context("the connection was never closed")?;
        ensure!(fin.said == Said::Fin, "the connection was reset");
        for vip in s.cell.vips() {
            let gone =
                by().find(|x| matches!(&x.said, Said::Update(u) if u.withdrawn.iter().any(|(ip, _)| *ip == vip)));
            // In the same segment is before: a FIN is noted after what its segment carries.
            let order = |x: &Seen| seen.iter().position(|y| std::ptr::eq(x, y));
            ensure!(
                gone.is_some_and(|g| order(g) < order(fin)),
                "{vip} was not withdrawn before the FIN of {}",
                node.name()
            );
        }
        let cease = by().any(|x| matches!(x.said, Said::Notification { code: 6, .. }));
        ensure!(cease, "no Cease from {}", node.name());
    }
    for o in &s.ours {
        ensure!(!o.holds_vips()?, "the VIP is still on the node after the stop");
    }
    Ok(took)
}

/// Runs cells side by side; `tell` hears of each when it is done.
#[must_use]
pub fn cells(all: &[Cell], o: &Options, tell: impl FnMut(&Done)) -> Vec<Done> {
    beside(all, o.jobs, !o.strict, |c| cell(c, o), tell)
}

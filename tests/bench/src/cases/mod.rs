//! The questions.

mod cpu;
mod lag;
mod rate;
mod resync;
mod takeover;

use crate::adverts::Adverts;
use crate::limits::Limits;
use crate::outcome::Outcome;
use crate::pair::{Kind, Pair, cpu};
use crate::seen::{Divergence, count, table};
use anyhow::Result;
use holdfast_lab::clock::{MS, Ns, SECOND, now};
use holdfast_lab::fabric::{Lb, wait_for};
use std::path::PathBuf;
use std::time::Duration;

/// One question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// A load without end.
    Rate,
    /// Processor time and bytes per event.
    Cpu,
    /// From one kernel to the other.
    Lag,
    /// A peer that begins with nothing; then events that are lost.
    Resync,
    /// What many replicas cost when the address moves.
    Takeover,
}

impl Case {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Lag, Self::Rate, Self::Resync, Self::Takeover];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Cpu => "cpu",
            Self::Lag => "lag",
            Self::Resync => "resync",
            Self::Takeover => "takeover",
        }
    }

    /// What it asks.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Rate => "events without end, until then in the peer's kernel",
            Self::Cpu => "processor time of sender and receiver, and bytes on the wire, per event",
            Self::Lag => "from a change in one kernel to the same in the other",
            Self::Resync => "all flows into a peer that begins with none, memory for them, and lost events made good",
            Self::Takeover => "what replicas that are there cost when the address moves",
        }
    }
}

/// How they are asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// Events of a load.
    pub events: u32,
    /// Flows of a big table.
    pub entries: u32,
    /// Events per second of the sustained load.
    pub rate: u32,
    /// How often.
    pub repeat: u32,
    /// Without the other.
    pub alone: bool,
    /// The agent's binary.
    pub holdfast: Option<PathBuf>,
    /// Keep configurations and logs.
    pub keep: bool,
}

impl Options {
    /// Both, the other first; or one of them.
    fn kinds(&self, cache: bool) -> Vec<Kind> {
        let other = (!self.alone).then_some(Kind::Conntrackd { cache });
        other.into_iter().chain([Kind::Holdfast]).collect()
    }

    /// Measures both, or one of them, as often as is asked for.
    fn each(&self, measure: fn(&Self, Kind, &mut Outcome) -> Result<()>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for _ in 0..self.repeat {
            for kind in self.kinds(false) {
                measure(self, kind, &mut outcome)?;
            }
        }
        Ok(outcome)
    }

    fn pair(&self, kind: Kind, entries: u32) -> Result<Pair> {
        Pair::new(kind, self.holdfast.as_deref(), self.keep, entries)
    }
}

/// Asks one.
///
/// # Errors
/// [`holdfast_lab::env::Lacks`], or something didn't run at all.
pub fn run(case: Case, o: &Options) -> Result<Outcome> {
    let entries = match case {
        Case::Rate | Case::Cpu | Case::Lag => o.events,
        // What is written on top of them.
        Case::Resync => o.entries + o.entries / 2 + 65_536,
        Case::Takeover => o.entries,
    };
    let _raised = Limits::raise(entries)?;
    match case {
        Case::Rate => o.each(rate::measure),
        Case::Cpu => cpu::ask(o),
        Case::Lag => lag::ask(o),
        Case::Resync => o.each(resync::measure),
        Case::Takeover => takeover::ask(o),
    }
}

/// Adverts are watched where there are any.
fn watch(pair: &Pair) -> Result<Option<Adverts>> {
    (pair.kind == Kind::Holdfast).then(|| Adverts::watch(&pair.place.fabric)).transpose()
}

/// Entries that aren't the load's: adverts, the channel.
const OTHERS: u64 = 32;

/// Waits until lb2's kernel has as many flows as lb1's. How long that took, ns; `None`: it didn't come to it.
fn settle(pair: &Pair, limit: Duration) -> Result<Option<Ns>> {
    let from = now();
    let hosts = Lb::BOTH.map(|lb| pair.place.fabric.lb(lb));
    let alike = || Ok(count(&hosts[0])?.abs_diff(count(&hosts[1])?) <= OTHERS);
    Ok(wait_for(limit, Duration::from_millis(2), alike)?.then(|| now() - from))
}

/// How the kernels differ, after what is on its way has had its time.
fn divergence(pair: &Pair) -> Result<Divergence> {
    let [owner, replica] = Lb::BOTH.map(|lb| pair.place.fabric.lb(lb));
    let mut last = Divergence::between(&table(&owner)?, &table(&replica)?);
    let limit = now() + 2 * SECOND;
    while !last.is_none() && now() < limit {
        std::thread::sleep(Duration::from_millis(200));
        last = Divergence::between(&table(&owner)?, &table(&replica)?);
    }
    Ok(last)
}

/// Waits until the program on `lb` has nothing more to do.
fn calm(pair: &Pair, lb: Lb, limit: Duration) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(250);
    let pids = pair.pids(lb);
    let end = now() + limit.as_nanos() as u64;
    while now() < end {
        let before = cpu(&pids);
        std::thread::sleep(LOOK);
        if cpu(&pids) - before < 25 * MS {
            return Ok(());
        }
    }
    anyhow::bail!("{} on {} was still busy after {} s", pair.kind.name(), lb.name(), limit.as_secs())
}

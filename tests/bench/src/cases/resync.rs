//! A peer that begins with nothing beside a full owner: how long until all flows are in its kernel, counted from the
//! start of its program, and how long single new flows take meanwhile. What memory they take: how much the resident
//! memory of each host's processes has grown, divided by the flows. Then events are lost: the program that reads them is
//! stopped for 200 ms again and again while a fifth more flows are written as fast as the kernel takes them; how long
//! until both tables are alike, counted from the last of them. Adverts are judged but for the time of the stops.

use super::{Options, calm, divergence, watch};
use crate::load::{Kind as Event, Load};
use crate::outcome::{Outcome, Row, percentile};
use crate::pair::{Kind, Pair, cpu, resident};
use crate::seen::{Prober, count};
use anyhow::{Result, bail};
use holdfast_lab::clock::{MS, ms_between, now, sleep_until};
use holdfast_lab::fabric::{Lb, wait_for};
use holdfast_lab::process::Pidfd;
use rustix::process::Signal;
use std::time::Duration;

/// s.
const RESYNC: f64 = 8.0;
/// ms.
const LAG: f64 = 20.0;
/// B of each flow.
const MEMORY: f64 = 128.0;
/// s.
const HEAL: f64 = 4.0;
/// How long the reader of events stands still: less than what makes a keeper replace it.
const STOPPED: u64 = 200 * MS;
/// And how long it runs in between.
const RUNNING: u64 = 30 * MS;
/// The other's own repair comes 30 s later.
const PATIENCE: Duration = Duration::from_secs(50);
/// Events that are too many for the room that there is for unread ones.
const FLOOD_MIN: u32 = 10_000;
/// The probes' flows, far from the others.
const PROBES: u32 = 3_000_000;

pub(super) fn measure(o: &Options, kind: Kind, outcome: &mut Outcome) -> Result<()> {
    let mut pair = o.pair(kind, o.entries)?;
    pair.start(Lb::Lb1)?;
    pair.serves(Lb::Lb1)?;
    std::thread::sleep(Duration::from_millis(500));
    let empty = resident(&pair.pids(Lb::Lb1));
    Load::of(Event::Insert, 0, o.entries).run(&pair.place.fabric.lb(Lb::Lb1))?;
    calm(&pair, Lb::Lb1, PATIENCE)?;
    let owner = resident(&pair.pids(Lb::Lb1));
    let adverts = watch(&pair)?;
    resync(o, &mut pair, outcome)?;
    calm(&pair, Lb::Lb2, PATIENCE)?;
    let replica = resident(&pair.pids(Lb::Lb2));
    let each = |after: u64| after.saturating_sub(empty) as f64 / f64::from(o.entries);
    let name = kind.name();
    let row =
        Row::new(format!("{name}, memory for {} flows", o.entries)).with("empty MiB", empty as f64 / 1048576.0, 1);
    outcome.rows.push(row.with("owner B/flow", each(owner), 1).with("replica B/flow", each(replica), 1));
    if kind == Kind::Holdfast {
        outcome.at_most("memory of a flow at its owner", each(owner), MEMORY, "B");
        outcome.at_most("memory of a replica", each(replica), MEMORY, "B");
    }
    let differs = divergence(&pair)?;
    if kind == Kind::Holdfast {
        outcome.must(differs.is_none(), format!("{name}, after the resync: {}", differs.text()));
    }
    if let Some(adverts) = adverts {
        adverts.judge("resync", outcome)?;
    }
    overrun(o, &pair, outcome)?;
    pair.alive()
}

fn resync(o: &Options, pair: &mut Pair, outcome: &mut Outcome) -> Result<()> {
    let (lb1, lb2) = (pair.place.fabric.lb(Lb::Lb1), pair.place.fabric.lb(Lb::Lb2));
    let at = now();
    let spent = cpu(&pair.pids(Lb::Lb1));
    pair.start(Lb::Lb2)?;
    pair.tell_conntrackd(Lb::Lb2, "-n")?;
    let wanted = u64::from(o.entries);
    let begun = || Ok(count(&lb2)? > wanted / 100);
    if !wait_for(PATIENCE, Duration::from_millis(2), begun)? {
        bail!("{}: no flows came to lb2 within {} s", pair.kind.name(), PATIENCE.as_secs());
    }
    let first = now();
    let prober = Prober::start(&lb1, &lb2, PROBES)?;
    if !wait_for(PATIENCE, Duration::from_millis(5), || Ok(count(&lb2)? >= wanted))? {
        bail!("{}: {} of {wanted} flows after {} s", pair.kind.name(), count(&lb2)?, PATIENCE.as_secs());
    }
    let full = now();
    let lag: Vec<f64> = prober.finish()?.into_iter().map(|ns| ms_between(0, ns)).collect();
    let (p99, max) = (percentile(&lag, 0.99), percentile(&lag, 1.0));
    let name = pair.kind.name();
    let seconds = ms_between(at, full) / 1000.0;
    let cpu_s = [(cpu(&pair.pids(Lb::Lb1)) - spent) as f64 / 1e9, cpu(&pair.pids(Lb::Lb2)) as f64 / 1e9];
    let row = Row::new(format!("{name}, resync of {} flows", o.entries)).with("s", seconds, 2);
    let row = row.with("of these moving", ms_between(first, full) / 1000.0, 2);
    let row = row.with("sender CPU s", cpu_s[0], 2).with("receiver CPU s", cpu_s[1], 2);
    let row = row.with("live flows", lag.len() as f64, 0).with("lag p50 ms", percentile(&lag, 0.5), 2);
    outcome.rows.push(row.with("lag p99 ms", p99, 2).with("lag max ms", max, 2));
    if pair.kind == Kind::Holdfast {
        outcome.at_most(&format!("resync of {} flows", o.entries), seconds, RESYNC, "s");
        outcome.at_most("live lag p99 meanwhile", p99, LAG, "ms");
    }
    Ok(())
}

fn overrun(o: &Options, pair: &Pair, outcome: &mut Outcome) -> Result<()> {
    let (lb1, lb2) = (pair.place.fabric.lb(Lb::Lb1), pair.place.fabric.lb(Lb::Lb2));
    let reader = Pidfd::open(pair.reader(Lb::Lb1)?)?;
    let lost_before = lost(pair);
    let flood = Load { burst: 64, ..Load::of(Event::Insert, o.entries, (o.entries / 5).max(FLOOD_MIN)) };
    let written = std::thread::scope(|s| {
        let writer = s.spawn(|| flood.run(&lb1).map(|_| now()));
        while !writer.is_finished() {
            let stopped = reader.signal(Signal::STOP)?;
            sleep_until(stopped + STOPPED);
            let runs = reader.signal(Signal::CONT)?;
            sleep_until(runs + RUNNING);
        }
        writer.join().unwrap_or_else(|_| bail!("the writer panicked"))
    });
    let at = written?;
    let adverts = watch(pair)?;
    let alike = || Ok(count(&lb1)?.abs_diff(count(&lb2)?) <= super::OTHERS);
    let healed = wait_for(PATIENCE, Duration::from_millis(5), alike)?;
    let seconds = ms_between(at, now()) / 1000.0;
    let lost = lost(pair).saturating_sub(lost_before);
    let name = pair.kind.name();
    let differs = divergence(pair)?;
    let row = Row::new(format!("{name}, {} more in a flood", flood.flows)).with("overruns", lost as f64, 0);
    let row = row.with("alike after s", if healed { seconds } else { f64::INFINITY }, 2);
    outcome.rows.push(row.with("missing", differs.missing as f64, 0).with("zombies", differs.zombies as f64, 0));
    if pair.kind == Kind::Holdfast {
        outcome.must(healed && differs.is_none(), format!("{name}, after {lost} overruns: {}", differs.text()));
        outcome.at_most("overrun healed in", seconds, HEAL, "s");
    }
    if let Some(adverts) = adverts {
        adverts.judge("after the overrun", outcome)?;
    }
    Ok(())
}

/// Overruns that the program on lb1 has counted.
fn lost(pair: &Pair) -> u64 {
    let number = |text: &str, after: &str| {
        let (_, rest) = text.split_once(after)?;
        rest.trim_start_matches([':', ',', '"', ' ', '\t', '\n'])
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse::<u64>()
            .ok()
    };
    if pair.kind == Kind::Holdfast {
        let said = pair.client(Lb::Lb1, &["peers", "--json"]).unwrap_or_default();
        number(&said, "overruns").unwrap_or(0)
    } else {
        number(&pair.conntrackd_says(Lb::Lb1), "netlink overrun").unwrap_or(0)
    }
}

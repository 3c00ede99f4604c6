//! Processor seconds per 100,000 events on both hosts, and bytes on the wire, at 10,000 events a second: events one at a
//! time, and in bursts of 8. Every kind of event apart; what is judged is their sum. What a program uses at rest isn't
//! counted: the other holds no address. Headers are counted, Ethernet's
//! too. The other injects directly, without its external cache: what it does then is what we do.

use super::{Options, divergence, settle, watch};
use crate::load::{Kind as Event, Load};
use crate::outcome::{Outcome, Row};
use crate::pair::{Kind, Pair, cpu, sent};
use anyhow::Result;
use holdfast_lab::clock::{ms_between, now};
use holdfast_lab::fabric::Lb;
use std::time::Duration;

const RATE: u32 = 10_000;
/// How long a program at rest is looked at.
const REST: Duration = Duration::from_millis(700);
const BURSTS: [u32; 2] = [1, 8];
/// Of conntrackd's sender, and of its receiver.
const PARTS: [f64; 2] = [0.6, 0.8];
/// Of an IPv4 event in bursts.
const BYTES: f64 = 40.0;
/// The other flows of [`Event::Churn`], far from those of the rest.
const ELSEWHERE: u32 = 2_000_000;

/// What one load cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    cpu: [f64; 2],
    bytes: f64,
    packets: f64,
}

pub(super) fn ask(o: &Options) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for burst in BURSTS {
        let mut sums = Vec::new();
        for _ in 0..o.repeat {
            for kind in o.kinds(false) {
                sums.push((kind, measure(o, kind, burst, &mut outcome)?));
            }
        }
        let total = |ours: bool, host: usize| {
            let all = sums.iter().filter(|(kind, _)| (*kind == Kind::Holdfast) == ours);
            all.map(|(_, cost)| cost.cpu[host]).sum::<f64>()
        };
        for (host, part) in PARTS.into_iter().enumerate() {
            let (ours, theirs) = (total(true, host), total(false, host));
            if theirs > 0.0 {
                let who = ["sender", "receiver"][host];
                outcome.at_most(&format!("{who}, bursts of {burst}: of conntrackd's"), ours / theirs, part, "");
            }
        }
        if burst > 1 {
            let bytes = sums.iter().filter(|(kind, _)| *kind == Kind::Holdfast).map(|(_, cost)| cost.bytes);
            outcome.at_most("bytes of an event in bursts", bytes.fold(0.0, f64::max), BYTES, "B");
        }
    }
    Ok(outcome)
}

/// All kinds of events; gives the sum of processor time per event, and the most bytes.
fn measure(o: &Options, kind: Kind, burst: u32, outcome: &mut Outcome) -> Result<Cost> {
    let mut pair = o.pair(kind, o.events)?;
    pair.up()?;
    let adverts = watch(&pair)?;
    let mut sum = Cost::default();
    let loads = [Event::Insert, Event::Update, Event::Delete, Event::Churn { live: 5_000.min(o.events / 6) }];
    for event in loads {
        let churn = matches!(event, Event::Churn { .. });
        let (first, flows) = if churn { (ELSEWHERE, o.events / 3) } else { (0, o.events) };
        let load = Load { rate: RATE, burst, ..Load::of(event, first, flows) };
        let cost = once(&pair, &load)?;
        let differs = divergence(&pair)?;
        outcome.must(differs.is_none(), format!("{}, {}: {}", kind.name(), event.name(), differs.text()));
        let row = Row::new(format!("{}, bursts of {burst}, {}", kind.name(), event.name()));
        let row = row.with("sender s/100k", cost.cpu[0], 3).with("receiver s/100k", cost.cpu[1], 3);
        outcome.rows.push(row.with("B/event", cost.bytes, 1).with("packets/event", cost.packets, 3));
        if !churn {
            sum.cpu[0] += cost.cpu[0];
            sum.cpu[1] += cost.cpu[1];
            sum.bytes = sum.bytes.max(cost.bytes);
        }
    }
    pair.alive()?;
    if let Some(adverts) = adverts {
        adverts.judge(&format!("bursts of {burst}"), outcome)?;
    }
    Ok(sum)
}

/// One load, from before it begins until it is everywhere and acknowledged.
pub(super) struct Spent {
    pub(super) cpu: [f64; 2],
    pub(super) bytes: f64,
    pub(super) packets: f64,
    pub(super) events: u64,
    pub(super) rate: f64,
    pub(super) drained_ms: f64,
}

pub(super) fn spend(pair: &Pair, load: &Load) -> Result<Spent> {
    let fabric = &pair.place.fabric;
    let pids = Lb::BOTH.map(|lb| pair.pids(lb));
    let spent = || pids.each_ref().map(|p| cpu(p));
    let (at, resting) = (now(), spent());
    std::thread::sleep(REST);
    let (from, before, wire) = (now(), spent(), sent(fabric, Lb::Lb1)?);
    let done = load.run(&fabric.lb(Lb::Lb1))?;
    let drained = settle(pair, Duration::from_secs(20))?;
    std::thread::sleep(Duration::from_millis(300));
    let (to, after, wire_after) = (now(), spent(), sent(fabric, Lb::Lb1)?);
    let per = done.events.max(1) as f64;
    let at_rest = |host: usize| (before[host] - resting[host]) as f64 / ms_between(at, from) * ms_between(from, to);
    let used = |host: usize| ((after[host] - before[host]) as f64 - at_rest(host)) / 1e9 * 100_000.0 / per;
    Ok(Spent {
        cpu: [used(0), used(1)],
        bytes: (wire_after.0 - wire.0) as f64 / per,
        packets: (wire_after.1 - wire.1) as f64 / per,
        events: done.events,
        rate: done.rate(),
        drained_ms: drained.map_or(f64::INFINITY, |ns| ns as f64 / 1e6),
    })
}

fn once(pair: &Pair, load: &Load) -> Result<Cost> {
    let Spent { cpu, bytes, packets, .. } = spend(pair, load)?;
    Ok(Cost { cpu, bytes, packets })
}

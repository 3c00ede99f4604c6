//! What replicas cost when their owner's host loses its power: from its last advert to the first gratuitous ARP of the
//! heir, with none and with all of them; the difference of the medians is theirs. Of the other, which holds them in its
//! cache until then, it is how long `conntrackd -c` takes, as the script that keepalived starts sees it.

use super::{Options, settle};
use crate::adverts::Adverts;
use crate::load::{Kind as Event, Load};
use crate::outcome::{Outcome, Row, percentile};
use crate::pair::{Kind, Pair};
use crate::seen::count;
use anyhow::{Context, Result, bail};
use holdfast_lab::clock::{Ns, ms_between, now};
use holdfast_lab::fabric::{Lb, wait_for};
use holdfast_lab::flows::net::{Rules, power_off, power_on};
use std::time::Duration;

/// ms.
const ADDS: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(40);

pub(super) fn ask(o: &Options) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    if !o.alone {
        commit(o, &mut outcome)?;
    }
    let none = takeovers(o, 0, &mut outcome)?;
    let all = takeovers(o, o.entries, &mut outcome)?;
    let adds = percentile(&all, 0.5) - percentile(&none, 0.5);
    outcome.at_most(&format!("a takeover with {} replicas takes longer by", o.entries), adds, ADDS, "ms");
    Ok(outcome)
}

fn takeovers(o: &Options, entries: u32, outcome: &mut Outcome) -> Result<Vec<f64>> {
    let mut pair = o.pair(Kind::Holdfast, o.entries)?;
    pair.up()?;
    let wire = Adverts::watch(&pair.place.fabric)?;
    let mut owner = Lb::Lb1;
    Load::of(Event::Insert, 0, entries).run(&pair.place.fabric.lb(owner))?;
    let mut all = Vec::new();
    for _ in 0..o.repeat {
        if settle(&pair, PATIENCE)?.is_none() {
            bail!("lb1's and lb2's tables weren't alike after {} s", PATIENCE.as_secs());
        }
        // Its word that it has them all is sent once a second.
        std::thread::sleep(Duration::from_millis(1500));
        let heir = owner.other();
        let at = now();
        let mac = pair.place.fabric.mac(heir)?;
        power_off(&mut pair.place.fabric, owner)?;
        pair.serves(heir)?;
        std::thread::sleep(Duration::from_millis(300));
        let took = took(&wire, owner, mac, at).with_context(|| format!("{} announced nothing", heir.name()))?;
        all.push(took);
        let held = count(&pair.place.fabric.lb(heir))?;
        outcome.must(held >= u64::from(entries), format!("{} took over with {held} flows", heir.name()));
        let unsynced = pair.journal(heir).iter().filter(|l| l.contains("unsynced")).count();
        outcome.must(unsynced == 0, format!("{} had all flows when it took the address", heir.name()));
        power_on(&mut pair.place.fabric, owner, Rules::Loose)?;
        pair.start(owner)?;
        owner = heir;
    }
    let row = Row::new(format!("holdfast, takeover with {entries} replicas")).with("times", all.len() as f64, 0);
    let row = row.with("min ms", percentile(&all, 0.0), 2).with("median ms", percentile(&all, 0.5), 2);
    outcome.rows.push(row.with("max ms", percentile(&all, 1.0), 2));
    Ok(all)
}

/// From the last advert of `owner` to the first gratuitous ARP of the heir after `at`, ms.
fn took(wire: &Adverts, owner: Lb, heir: [u8; 6], at: Ns) -> Option<f64> {
    let log = wire.log();
    let last = log.adverts.iter().rev().find(|a| a.source == owner.front() && a.priority > 0)?.at;
    let first = log.answers.iter().find(|a| a.gratuitous && a.mac == heir && a.at > at)?.at;
    Some(ms_between(last, first))
}

fn commit(o: &Options, outcome: &mut Outcome) -> Result<()> {
    let mut pair: Pair = o.pair(Kind::Conntrackd { cache: true }, o.entries)?;
    pair.up()?;
    Load { rate: 100_000, ..Load::of(Event::Insert, 0, o.entries) }.run(&pair.place.fabric.lb(Lb::Lb1))?;
    let cached = || Ok(pair.cached(Lb::Lb2) >= u64::from(o.entries));
    if !wait_for(PATIENCE, Duration::from_millis(100), cached)? {
        bail!("conntrackd had {} of {} flows after {} s", pair.cached(Lb::Lb2), o.entries, PATIENCE.as_secs());
    }
    let at = now();
    pair.tell_conntrackd(Lb::Lb2, "-c")?;
    let took = ms_between(at, now());
    let there = count(&pair.place.fabric.lb(Lb::Lb2))?;
    let row = Row::new(format!("conntrackd, commit of {} flows", o.entries)).with("ms", took, 1);
    outcome.rows.push(row.with("in the kernel", there as f64, 0));
    Ok(())
}

//! The main job once, told as it happens: the balancer is killed, and a client keeps its service.

use crate::balancer::Kind;
use crate::clock::MS;
use crate::drills::find;
use crate::fabric::{BACKENDS, VIP};
use crate::report::{Report, Run};
use crate::run::{Options, drill};
use crate::subject::INTERVAL;
use anyhow::{Context, Result};

/// Runs `balancer-killed` once and prints what is built, the timeline and the client's view.
///
/// # Errors
/// The machine can't run it.
pub fn demo(o: &Options) -> Result<Report> {
    let d = find("balancer-killed").context("the table has it")?;
    let balancer = o.balancer.unwrap_or_else(Kind::best).version();
    let (every, adverts) = (o.interval / MS, INTERVAL.as_millis());
    println!("Built from network namespaces, and gone when this ends:");
    println!("  lb1, lb2    two load balancers: Holdfast, and {balancer} under it");
    println!("  client      one new connection every {every} ms, {} kept open, all to {VIP}", o.flows);
    println!("  b1, b2, b3  {} web servers behind the load balancers", BACKENDS.len());
    println!("  sw          the switch; lb1 and lb2 have a second link of their own, for the peers' channel");
    println!("  obs         an observer: it sees every advert and asks every 10 ms who has {VIP}");
    println!("lb1 holds {VIP} and says so every {adverts} ms. Now its balancer is killed (SIGKILL) ...\n");
    let report = drill(d, o)?;
    let Some(run) = report.runs.iter().rfind(|r| r.void.is_none()) else {
        println!("No valid run: {}", why_none(&report));
        return Ok(report);
    };
    print!("{}", told(run));
    let n = |key: &str| run.numbers.get(key).copied().flatten().unwrap_or(f64::NAN);
    println!("\nWhat the client saw (measured):");
    println!(
        "  {:.0} of {:.0} new requests failed until lb1 was back; longest time without an answer {:.0} ms",
        n("failed"),
        n("requests"),
        n("outage_ms")
    );
    println!(
        "  {:.0} of {:.0} open connections broke: they were the dead balancer's own",
        n("broken_flows"),
        n("flows")
    );
    println!(
        "  lb2 had the address {:.1} ms after the kill; both answered for it for {:.0} ms",
        n("takeover_ms"),
        n("dual_holder_ms")
    );
    println!(
        "  lb1's balancer was started again and the address went back: {:.0} new requests failed",
        n("failback_failed")
    );
    let verdict = if report.pass { "as expected" } else { "NOT as expected" };
    println!("\n{} on {}: {verdict}", report.subject, report.machine);
    for (text, _) in report.verdicts.iter().filter(|(_, held)| !held) {
        println!("  did not hold: {text}");
    }
    println!("`holdfast-drill drill list` names what else can be broken.");
    Ok(report)
}

fn why_none(report: &Report) -> String {
    let void = report.runs.iter().filter_map(|r| r.void.clone());
    report.skipped.iter().cloned().chain(void).chain(report.errors.iter().cloned()).collect::<Vec<_>>().join("; ")
}

/// The timeline without what only repeats: gratuitous ARP is sent several times, on purpose.
fn told(run: &Run) -> String {
    let mut said: Vec<&str> = Vec::new();
    let mut s = String::new();
    for (t, what) in &run.timeline {
        let repeats = what.starts_with("gratuitous ARP") && said.contains(&what.as_str());
        if !repeats {
            s += &format!("  {t:>8.1} ms  {what}\n");
        }
        said.push(what);
    }
    s
}

//! Tiers: named lists of pieces (`tests/tiers.toml`), run one after the other, each with a verdict.

mod piece;

use crate::clock::{SECOND, now};
use crate::drills::Drill;
use crate::env::Lacks;
use crate::record::Provenance;
use crate::report::Report;
use crate::run::{Options, drill, drill_more};
use crate::subject::SubjectKind;
use crate::{bench, bgp, calibrate, env, flows, garbage, idle, interop, planes, residue, simulate, startstop};
use anyhow::{Context, Result, bail};
use piece::{Channel, Kind, Piece};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What to run.
#[derive(Debug, Clone)]
pub struct Tier {
    /// The tier's name in the file.
    pub name: String,
    /// The file.
    pub file: PathBuf,
    /// One piece's name, or `all`.
    pub piece: String,
    /// Where results are written, if anywhere.
    pub results: Option<PathBuf>,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
}

/// How one part of a piece ended.
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

struct Unit {
    name: String,
    verdict: Verdict,
    /// The line's end: figures, or why not.
    note: String,
    /// What a failure leaves in the log.
    details: String,
    json: Value,
}

impl Unit {
    fn new(name: String, pass: bool, note: String, details: String, json: Value) -> Self {
        Self { name, verdict: if pass { Verdict::Passed } else { Verdict::Failed }, note, details, json }
    }

    fn skipped(name: String, why: String) -> Self {
        let json = json!({"scenario": name, "skipped": why});
        Self { name, verdict: Verdict::Skipped, note: why, details: String::new(), json }
    }
}

/// Counts of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Passed.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
    /// Not run, for a reason that was printed.
    pub skipped: usize,
}

impl Count {
    /// The last line of a tier.
    #[must_use]
    pub fn text(&self) -> String {
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        format!("{} passed, {} failed{skipped}", self.passed, self.failed)
    }
}

fn pieces(tier: &Tier) -> Result<Vec<Piece>> {
    let text = std::fs::read_to_string(&tier.file).with_context(|| format!("read {}", tier.file.display()))?;
    select(&text, &tier.name, &tier.piece).with_context(|| tier.file.display().to_string())
}

fn select(text: &str, tier: &str, piece: &str) -> Result<Vec<Piece>> {
    let mut tiers: BTreeMap<String, Vec<Piece>> = toml::from_str(text)?;
    let known: Vec<String> = tiers.keys().cloned().collect();
    let Some(all) = tiers.remove(tier) else { bail!("no tier is called {tier:?}: {}", known.join(", ")) };
    let names: Vec<String> = all.iter().map(|p| p.name.clone()).collect();
    let chosen: Vec<Piece> = all.into_iter().filter(|p| piece == "all" || p.name == piece).collect();
    if chosen.is_empty() {
        bail!("no piece of {tier:?} is called {piece:?}: {}", names.join(", "));
    }
    Ok(chosen)
}

/// Runs a tier's pieces: a line for each part, a table at the end.
///
/// # Errors
/// The file, a name in it, or what no drill can do without. What goes wrong in a piece is that piece's verdict.
pub fn run(tier: &Tier) -> Result<Count> {
    let pieces = pieces(tier)?;
    for p in &pieces {
        if matches!(p.kind, Kind::Drill | Kind::Twin) {
            p.drills()?;
        }
        if matches!(p.kind, Kind::Bgp | Kind::BgpTwin) {
            p.bgp_drills()?;
        }
        if matches!(p.kind, Kind::Planes | Kind::PlanesTwin) {
            p.plane_drills()?;
        }
        if matches!(p.kind, Kind::Flows | Kind::FlowsTwin) {
            p.flow_drills()?;
        }
        if matches!(p.kind, Kind::Ecmp | Kind::EcmpTwin) {
            p.ecmp_drills()?;
        }
    }
    env::require_basics()?;
    env::holdfast(tier.holdfast.as_deref())?;
    residue::remove_on_signal()?;
    let provenance = Provenance::of(tier.file.parent().filter(|p| p.is_dir()).unwrap_or_else(|| Path::new(".")));
    let mut count = Count::default();
    let mut table: Vec<String> = Vec::new();
    let from = now();
    for p in &pieces {
        let (mut units, mut pass, start) = (Vec::new(), true, now());
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for part in parts(p)? {
            let began = now();
            let unit = one_unit(&part, p, tier);
            let word = match unit.verdict {
                Verdict::Passed => "pass",
                Verdict::Failed => "FAIL",
                Verdict::Skipped => "skip",
            };
            println!("{word}  {:<38} {:>5} s  {}", unit.name, (now() - began) / SECOND, unit.note);
            print!("{}", unit.details);
            match unit.verdict {
                Verdict::Passed => passed += 1,
                Verdict::Failed => failed += 1,
                Verdict::Skipped => skipped += 1,
            }
            pass &= !matches!(unit.verdict, Verdict::Failed);
            units
                .push(json!({"unit": unit.name, "pass": matches!(unit.verdict, Verdict::Passed), "report": unit.json}));
        }
        if let (Some(directory), true) = (&tier.results, passed + failed > 0) {
            provenance.write(directory, &p.name, p.kind.name(), pass, &units)?;
        }
        table.push(format!("  {:<28}{passed:>8}{failed:>8}{skipped:>8}{:>8}", p.name, (now() - start) / SECOND));
        count.passed += passed;
        count.failed += failed;
        count.skipped += skipped;
    }
    println!("\n  {:<28}{:>8}{:>8}{:>8}{:>8}", "piece", "passed", "failed", "skipped", "s");
    table.iter().for_each(|l| println!("{l}"));
    println!("tier {} took {} s", tier.name, (now() - from) / SECOND);
    println!("{}", count.text());
    Ok(count)
}

/// One part of a piece: a drill with or without the channel, or the piece as a whole.
struct Part {
    name: String,
    drill: Option<&'static Drill>,
    channel: bool,
    vips: u8,
    /// A BGP drill, with its router and how many nodes.
    bgp: Option<(&'static bgp::drills::Drill, bgp::router::Kind, usize)>,
    /// A drill of a plane.
    plane: Option<(planes::Drill, Rc<planes::home::Home>)>,
    /// A drill of flows, with what replicates them and the balancers' rules.
    flows: Option<(&'static flows::drills::Drill, flows::pair::Sync, flows::net::Rules)>,
    /// A drill of flows behind a router, with what replicates them and how many nodes.
    ecmp: Option<(&'static flows::ecmp::drills::Drill, flows::pair::Sync, usize)>,
}

fn parts(p: &Piece) -> Result<Vec<Part>> {
    let whole = |channel: bool, vips: u8, name: String| Part {
        name,
        drill: None,
        channel,
        vips,
        bgp: None,
        plane: None,
        flows: None,
        ecmp: None,
    };
    Ok(match p.kind {
        Kind::Drill | Kind::Twin => {
            let mut all = Vec::new();
            for d in p.drills()? {
                for &channel in if p.subject == SubjectKind::Holdfast { p.channel.each() } else { &[false] } {
                    let how = match (p.subject, channel) {
                        (SubjectKind::Keepalived, _) => "keepalived",
                        (_, true) => "channel",
                        (_, false) => "no channel",
                    };
                    let twin = if p.kind == Kind::Twin { " twin" } else { "" };
                    let name = format!("{}{twin}, {how}", d.name);
                    all.push(Part { drill: Some(d), ..whole(channel, 1, name) });
                }
            }
            all
        }
        Kind::Garbage => {
            let name = |c: bool| format!("{}, {}", p.name, if c { "channel" } else { "no channel" });
            p.channel.each().iter().map(|&c| whole(c, 1, name(c))).collect()
        }
        Kind::Idle => {
            let vips = if p.vips.is_empty() { &[1][..] } else { &p.vips[..] };
            vips.iter().map(|&v| whole(p.channel != Channel::No, v, format!("{}, {v} VIPs", p.name))).collect()
        }
        Kind::Bgp | Kind::BgpTwin => {
            let twin = if p.kind == Kind::BgpTwin { " twin" } else { "" };
            let mut all = Vec::new();
            for d in p.bgp_drills()? {
                for (&router, &nodes) in p.routers.iter().flat_map(|r| p.nodes.iter().map(move |n| (r, n))) {
                    let whose = if p.speaker == bgp::speaker::Kind::Holdfast { "" } else { p.speaker.name() };
                    let gap = if whose.is_empty() { "" } else { ", " };
                    let name = format!("{}{twin}, {}, {nodes} nodes{gap}{whose}", d.name, router.name());
                    all.push(Part { bgp: Some((d, router, nodes)), ..whole(true, 1, name) });
                }
            }
            all
        }
        Kind::Planes | Kind::PlanesTwin => {
            let twin = if p.kind == Kind::PlanesTwin { " twin" } else { "" };
            let home = Rc::new(planes::home::Home::default());
            let part = |d: planes::Drill| Part {
                plane: Some((d, home.clone())),
                ..whole(true, 1, format!("{}{twin}", d.name()))
            };
            p.plane_drills()?.into_iter().map(part).collect()
        }
        Kind::Flows | Kind::FlowsTwin => {
            let twin = if p.kind == Kind::FlowsTwin { " twin" } else { "" };
            let mut all = Vec::new();
            for d in p.flow_drills()? {
                for (&sync, &rules) in p.sync.iter().flat_map(|s| p.rules.iter().map(move |r| (s, r))) {
                    let name = format!("{}{twin}, {}, {}", d.name, sync.name(), rules.name());
                    all.push(Part { flows: Some((d, sync, rules)), ..whole(true, 1, name) });
                }
            }
            all
        }
        Kind::Ecmp | Kind::EcmpTwin => {
            let twin = if p.kind == Kind::EcmpTwin { " twin" } else { "" };
            let mut all = Vec::new();
            for d in p.ecmp_drills()? {
                for (&sync, &nodes) in p.sync.iter().flat_map(|s| p.nodes.iter().map(move |n| (s, n))) {
                    let name = format!("{}{twin}, {}, {nodes} nodes", d.name, sync.name());
                    all.push(Part { ecmp: Some((d, sync, nodes)), ..whole(true, 1, name) });
                }
            }
            all
        }
        Kind::BgpSingle => {
            p.case.with_context(|| format!("piece {}: a bgp-single has a case", p.name))?;
            let name = |n: usize| if p.repeat > 1 { format!("{}, {n}", p.name) } else { p.name.clone() };
            (1..=p.repeat).map(|n| whole(false, 1, name(n))).collect()
        }
        Kind::Calibrate | Kind::StartStop | Kind::Interop | Kind::BgpInterop | Kind::Sim | Kind::FlowsBench => {
            vec![whole(false, 1, p.name.clone())]
        }
    })
}

fn one_unit(part: &Part, p: &Piece, tier: &Tier) -> Unit {
    match attempt(part, p, tier) {
        Ok(unit) => unit,
        Err(e) if e.downcast_ref::<Lacks>().is_some() => Unit::skipped(part.name.clone(), format!("{e:#}")),
        Err(e) => {
            let text = format!("{e:#}");
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let rest = if rest.is_empty() { String::new() } else { format!("{rest}\n") };
            Unit::new(part.name.clone(), false, first.into(), rest, json!({"error": first}))
        }
    }
}

fn attempt(part: &Part, p: &Piece, tier: &Tier) -> Result<Unit> {
    let o = Options { channel: part.channel, ..p.options(tier) };
    let name = part.name.clone();
    Ok(match p.kind {
        Kind::Drill | Kind::Twin => {
            let d = part.drill.context("a drill's part has one")?;
            let ours = o.subject == SubjectKind::Holdfast;
            drill_unit(name, drill(d, &o)?, ours, p.again, |r, wanted| drill_more(r, d, &o, wanted))?
        }
        Kind::Calibrate => {
            let c = calibrate::calibrate(100 * crate::clock::MS)?;
            let text = c.text();
            let note = text.lines().last().unwrap_or_default().trim().to_owned();
            let details = if c.pass() { String::new() } else { text.clone() };
            Unit::new(name, c.pass(), note, details, json!({"text": text}))
        }
        Kind::StartStop => {
            let left = startstop::start_stop(&env::holdfast(o.holdfast.as_deref())?, p.times)?;
            let what = if left.is_empty() { "nothing left behind" } else { "something was left behind" };
            let details = left.iter().map(|l| format!("  left behind: {l}\n")).collect();
            let json = json!({"times": p.times, "left_behind": left});
            Unit::new(name, left.is_empty(), format!("{} starts and stops: {what}", p.times), details, json)
        }
        Kind::Garbage => garbage_unit(name, &o, p)?,
        Kind::Idle => {
            let cost = idle::idle(&o, part.vips, p.seconds)?;
            Unit::new(name, true, cost.text(), String::new(), cost.json())
        }
        Kind::Sim => {
            let seeds = simulate::seeds(p.times)?;
            Unit::new(name, seeds.pass, seeds.note, seeds.details, seeds.json)
        }
        Kind::Bgp | Kind::BgpTwin => {
            let (d, router, nodes) = part.bgp.context("a BGP drill's part has one")?;
            let o = p.bgp_options(tier, router, nodes);
            let ours = o.speaker == bgp::speaker::Kind::Holdfast;
            drill_unit(name, bgp::run::drill(d, &o)?, ours, p.again, |r, wanted| {
                bgp::run::drill_more(r, d, &o, wanted)
            })?
        }
        Kind::Planes | Kind::PlanesTwin => {
            let (d, home) = part.plane.as_ref().context("a plane's part has a drill")?;
            let o = p.plane_options(tier);
            drill_unit(name, planes::run::drill(*d, &o, home)?, true, p.again, |r, wanted| {
                planes::run::drill_more(r, *d, &o, home, wanted)
            })?
        }
        Kind::Flows | Kind::FlowsTwin => {
            let (d, sync, rules) = part.flows.context("a drill of flows has one")?;
            let o = p.flow_options(tier, sync, rules);
            // With nothing that replicates, the drill itself is put to the test: it must find flows broken.
            let ours = sync == flows::pair::Sync::Holdfast || o.proves_that_it_fails();
            drill_unit(name, flows::run::drill(d, &o)?, ours, p.again, |r, wanted| {
                flows::run::drill_more(r, d, &o, wanted)
            })?
        }
        Kind::Ecmp | Kind::EcmpTwin => {
            let (d, sync, nodes) = part.ecmp.context("a drill of flows behind a router has one")?;
            let o = p.ecmp_options(tier, sync, nodes);
            let ours = sync == flows::pair::Sync::Holdfast || o.proves_that_it_fails();
            drill_unit(name, flows::ecmp::run::drill(d, &o)?, ours, p.again, |r, wanted| {
                flows::ecmp::run::drill_more(r, d, &o, wanted)
            })?
        }
        Kind::BgpSingle => {
            let holdfast = env::holdfast(o.holdfast.as_deref())?;
            let case = p.case.context("a bgp-single has a case")?;
            let asked = bgp::single::Options { count: p.count, strict: p.strict, holdfast: &holdfast };
            let a = bgp::single::ask(case, &asked)?;
            Unit::new(name, a.pass, a.note, a.details, a.json)
        }
        Kind::FlowsBench => {
            let figures = bench::run(&env::holdfast(o.holdfast.as_deref())?, &p.bench_load())?;
            Unit::new(name, figures.pass, figures.note, String::new(), figures.json)
        }
        Kind::Interop | Kind::BgpInterop => {
            let bgp = p.kind == Kind::BgpInterop;
            let rounds = interop::Rounds { bgp, rounds: p.repeat, strict: p.strict, baselines: p.baselines };
            let matrix = interop::run(&env::holdfast(o.holdfast.as_deref())?, &rounds)?;
            Unit::new(name, matrix.pass, matrix.note, String::new(), matrix.json)
        }
    })
}

/// A drill's unit; `more` adds runs to its report until so many are valid. Another subject than ours isn't held to our
/// figures: its own are what is wanted.
fn drill_unit(
    name: String,
    mut report: Report,
    ours: bool,
    again: usize,
    more: impl FnOnce(&mut Report, usize) -> Result<()>,
) -> Result<Unit> {
    if let Some(why) = &report.skipped {
        return Ok(Unit::skipped(name, why.clone()));
    }
    if !report.pass && report.errors.is_empty() && again > 0 {
        // One run on a shared machine is little evidence: more of it, and all of it counts.
        let wanted = report.valid() + again;
        more(&mut report, wanted)?;
    }
    let pass = report.pass || !ours && report.complete();
    let details = if pass { String::new() } else { report.text() };
    Ok(Unit::new(name, pass, note(&report), details, strip_timelines(report.json())))
}

fn note(report: &Report) -> String {
    let failed = report.verdicts.iter().filter(|(_, held)| !report.pass && !held);
    let chosen: Vec<&str> = if report.pass {
        report.verdicts.iter().map(|(t, _)| t.as_str()).collect()
    } else {
        failed.map(|(t, _)| t.as_str()).chain(report.errors.iter().filter_map(|e| e.lines().next())).collect()
    };
    chosen.join("; ")
}

/// Timelines are for people who look at one run.
fn strip_timelines(mut report: Value) -> Value {
    for list in ["runs", "void_runs"] {
        for run in report.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            run.as_object_mut().map(|r| r.remove("timeline"));
        }
    }
    report
}

fn garbage_unit(name: String, o: &Options, p: &Piece) -> Result<Unit> {
    const SEED: u64 = 1;
    const TRIES: usize = 3;
    for _ in 1..TRIES {
        let outcome = garbage::garbage(o, p.rate, p.seconds, SEED)?;
        if outcome.pass() || !outcome.void() {
            return Ok(garbage_said(name, &outcome));
        }
    }
    Ok(garbage_said(name, &garbage::garbage(o, p.rate, p.seconds, SEED)?))
}

fn garbage_said(name: String, outcome: &garbage::Outcome) -> Unit {
    let note = format!(
        "{} + {} packets; {} requests failed, {} role changes; adverts late p99 {:.2} ms{}",
        outcome.vrrp,
        outcome.channel,
        outcome.failed,
        outcome.role_changes,
        outcome.late_p99_ms,
        if outcome.void() { " (void: the machine was late)" } else { "" }
    );
    let details = if outcome.pass() { String::new() } else { outcome.text() };
    Unit::new(name, outcome.pass(), note, details, outcome.json())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[ci]]\nname = \"no-fault\"\nkind = \"drill\"\n\n[[ci]]\nname = \"rest\"\nkind = \"drill\"\n\
                        drills = [\"cable-cut\", \"failback\"]\nchannel = \"yes\"\n";

    #[test]
    fn a_piece_is_found_by_name_and_an_unknown_one_is_refused_with_the_known_ones() {
        assert_eq!(select(FILE, "ci", "all").expect("valid").len(), 2);
        assert_eq!(select(FILE, "ci", "rest").expect("valid").len(), 1);
        let e = select(FILE, "ci", "other").expect_err("there is none").to_string();
        assert!(e.contains("no-fault, rest"), "{e}");
        assert!(select(FILE, "full", "all").is_err());
        assert!(select("[[ci]]\nname = \"x\"\nkind = \"drill\"\nrepeats = 3\n", "ci", "all").is_err());
    }

    #[test]
    fn a_drill_runs_with_and_without_the_channel_unless_told_otherwise() {
        let all = select(FILE, "ci", "all").expect("valid");
        let names: Vec<String> = all.iter().flat_map(|p| parts(p).expect("known drills")).map(|p| p.name).collect();
        assert_eq!(names, ["no-fault, channel", "no-fault, no channel", "cable-cut, channel", "failback, channel"]);
    }

    #[test]
    fn the_tiers_of_the_tree_name_only_drills_that_exist() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tiers.toml");
        let text = std::fs::read_to_string(file).expect("tests/tiers.toml is there");
        for tier in ["ci", "full", "bench", "compare"] {
            for p in select(&text, tier, "all").expect("a valid tier") {
                assert!(!parts(&p).expect("drills that exist").is_empty(), "{}", p.name);
            }
        }
    }

    #[test]
    fn the_last_line_counts() {
        let c = Count { passed: 3, failed: 1, skipped: 0 };
        assert_eq!(c.text(), "3 passed, 1 failed");
        assert_eq!(Count { skipped: 2, ..c }.text(), "3 passed, 1 failed, 2 skipped");
    }
}

//! `holdfast-drill`: the lab's command line. `holdfast drill …` and `holdfast lab …` start it with the same words.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use holdfast_lab::balancer::Kind;
use holdfast_lab::clock::{MS, SECOND};
use holdfast_lab::drills::{DRILLS, Drill, find};
use holdfast_lab::env::Lacks;
use holdfast_lab::fabric::{Fabric, NODES};
use holdfast_lab::netns::Netns;
use holdfast_lab::report::Report;
use holdfast_lab::run::{Options, drill};
use holdfast_lab::subject::SubjectKind;
use holdfast_lab::{
    bgp, calibrate, demo, env, figures, flows, forward, garbage, planes, residue, scale, startstop, tier,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Failover drills in network namespaces, with what clients saw as the figure.
///
/// Exit codes: 0 pass, 1 an expectation failed, 2 nothing ran, 3 the machine lacks something, 4 usage.
#[derive(Debug, Parser)]
#[command(name = "holdfast-drill", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs drills.
    #[command(subcommand)]
    Drill(DrillCommand),
    /// The same fabric to play in.
    #[command(subcommand)]
    Lab(LabCommand),
    /// Kills a balancer once and tells what happens.
    Demo(DrillOptions),
    /// Runs a tier: drills and checks by a file, a line for each.
    Tier {
        /// The tier's name in the file.
        name: String,
        /// The file that says what is in it.
        #[arg(long, default_value = "tests/tiers.toml")]
        tiers: PathBuf,
        /// One piece of it, or `all`.
        #[arg(long, default_value = "all")]
        piece: String,
        /// Write a JSON file for each piece into this directory.
        #[arg(long)]
        results: Option<PathBuf>,
        /// The agent's binary; else `holdfast` beside this program, then in PATH.
        #[arg(long)]
        holdfast: Option<PathBuf>,
    },
    /// What many virtual routers cost, and whether all of them stay right; Holdfast and keepalived in the same run.
    Scale(ScaleOptions),
    /// Prints the table of figures from the results of a tier.
    Figures {
        /// The directory with the results.
        results: PathBuf,
        /// Which table.
        #[arg(long, value_enum, default_value = "figures")]
        table: figures::Table,
        /// Put it between this file's `figures: begin` and `figures: end` (or `planes: begin` and `planes: end`).
        #[arg(long, conflicts_with = "check")]
        write: Option<PathBuf>,
        /// Exit 1 if this file has another table.
        #[arg(long)]
        check: Option<PathBuf>,
    },
    /// Forwards TCP connections: the balancer where no other is installed.
    #[command(hide = true)]
    Forward {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long = "backend", required = true)]
        backends: Vec<SocketAddr>,
    },
}

#[derive(Debug, Subcommand)]
enum DrillCommand {
    /// Names every drill.
    List {
        /// Only those whose name or description holds this text.
        #[arg(long)]
        topic: Option<String>,
    },
    /// Runs one drill, or `all`.
    Run {
        /// A name from `drill list`, or `all`, `bgp-all`, `flows-all`, `flows-ecmp`, `plane-all`, `plane-haproxy` and so on.
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        options: DrillOptions,
    },
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Builds the fabric and leaves it.
    Up,
    /// Removes every fabric that `lab up` left and that dead runs left.
    Down,
    /// Removes what dead runs left.
    Clean,
    /// Measures an outage of known length, to prove the measuring.
    Calibrate {
        /// Length of the outage, ms.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=5000))]
        length_ms: u64,
    },
    /// Starts and stops the agent again and again; nothing may be left behind.
    StartStop {
        /// How often.
        times: u32,
        /// The agent's binary.
        #[arg(long)]
        holdfast: Option<PathBuf>,
    },
    /// Sends garbage to a running pair; nothing may change but counters.
    Garbage {
        /// Packets per second.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rate: u32,
        /// Seconds, once for VRRP and once for the channel's port.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
        /// Seed of the packets.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        options: DrillOptions,
    },
    /// Asks one agent, with the lab itself as its BGP neighbour.
    Single {
        /// What.
        #[arg(value_enum)]
        case: bgp::single::Case,
        /// VIPs, routes of the table, or runs of each kind.
        #[arg(value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
        count: u32,
        /// How often.
        #[arg(long, default_value_t = 1)]
        repeat: u16,
        /// Against the figures themselves, not CI's wider limits.
        #[arg(long)]
        strict: bool,
        /// The agent's binary.
        #[arg(long)]
        holdfast: Option<PathBuf>,
    },
    /// A shell in a node of the fabric that is up.
    Shell {
        /// sw, client, obs, lb1, lb2, b1, b2 or b3.
        node: String,
    },
}

#[derive(Debug, Args)]
struct ScaleOptions {
    /// What to ask.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle,promotion,flap")]
    case: Vec<scale::Case>,
    /// Sizes for `idle`.
    #[arg(long, value_delimiter = ',', default_value = "1,50,250,1000", value_parser = clap::value_parser!(u16).range(1..=4000))]
    instances: Vec<u16>,
    /// Interfaces for `idle`; else as few as can carry the VRIDs.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=250))]
    interfaces: Option<u16>,
    /// How long each pair is measured at rest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// How often each is asked.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// What is put to the test, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "keepalived,holdfast")]
    subject: Vec<SubjectKind>,
    /// The agent's binary; else `holdfast` beside this program, then in PATH.
    #[arg(long)]
    holdfast: Option<PathBuf>,
    /// Without [cluster]: VRRP alone.
    #[arg(long)]
    no_channel: bool,
    /// Write `scale.json` into this directory.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Keep the temporary directory with configurations and logs.
    #[arg(long)]
    keep: bool,
}

impl ScaleOptions {
    fn options(self) -> scale::Options {
        scale::Options {
            subjects: self.subject,
            cases: self.case,
            instances: self.instances,
            segments: self.interfaces,
            seconds: self.seconds,
            repeat: self.repeat,
            channel: !self.no_channel,
            holdfast: self.holdfast,
            results: self.results,
            keep: self.keep,
        }
    }
}

#[derive(Debug, Args)]
struct DrillOptions {
    /// Valid runs wanted.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// What is put to the test.
    #[arg(long, value_enum, default_value = "holdfast")]
    subject: SubjectKind,
    /// bgp-* drills: what announces the VIP.
    #[arg(long, value_enum, default_value = "holdfast")]
    speaker: bgp::speaker::Kind,
    /// bgp-* drills: the router.
    #[arg(long, value_enum, default_value = "bird")]
    router: bgp::router::Kind,
    /// bgp-* and flows-ecmp-* drills: the router's next hops.
    #[arg(long, value_enum, default_value = "classic")]
    next_hops: bgp::run::NextHops,
    /// bgp-* drills: how many nodes announce the VIP; flows-ecmp-*: at least 3.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    nodes: u8,
    /// plane-* drills: how many reloads in a row are many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reloads: u32,
    /// flows-* drills: what replicates flows.
    #[arg(long, value_enum, default_value = "holdfast")]
    sync: flows::pair::Sync,
    /// flows-* drills: how hard the balancers' rules are on flows that they don't know.
    #[arg(long, value_enum, default_value = "strict")]
    rules: flows::net::Rules,
    /// flows-* drills: bulk flows.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=200))]
    bulk: u16,
    /// flows-* drills: what each of these moves each way at least.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    megabytes: u64,
    /// flows-* drills: how often the VIP moves.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    moves: u16,
    /// flows-* drills: how old flows are when it moves first, seconds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    lead: u64,
    /// The agent's binary; else `holdfast` beside this program, then in PATH.
    #[arg(long)]
    holdfast: Option<PathBuf>,
    /// Use this balancer; else haproxy when installed, else nft, else forward.
    #[arg(long, value_enum)]
    balancer: Option<Kind>,
    /// Without [cluster]: VRRP alone.
    #[arg(long)]
    no_channel: bool,
    /// Leave the fault out; everything must then be 0.
    #[arg(long)]
    twin: bool,
    /// Compare medians with the figures themselves, not with CI's wider limits.
    #[arg(long)]
    strict: bool,
    /// One JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Keep the temporary directory with configurations and logs.
    #[arg(long)]
    keep: bool,
    /// Print each run's timeline.
    #[arg(long, short)]
    verbose: bool,
    /// Milliseconds between two fresh requests.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    interval_ms: u64,
    /// Long-lived connections.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=4000))]
    flows: u16,
}

impl DrillOptions {
    fn options(&self) -> Options {
        Options {
            subject: self.subject,
            holdfast: self.holdfast.clone(),
            balancer: self.balancer,
            channel: !self.no_channel,
            repeat: self.repeat.into(),
            twin: self.twin,
            strict: self.strict,
            keep: self.keep,
            interval: self.interval_ms * MS,
            flows: self.flows.into(),
            narrate: self.verbose,
            ..Options::default()
        }
    }

    fn bgp(&self) -> bgp::run::Options {
        bgp::run::Options {
            speaker: self.speaker,
            holdfast: self.holdfast.clone(),
            router: self.router,
            nodes: self.nodes.into(),
            next_hops: self.next_hops,
            repeat: self.repeat.into(),
            twin: self.twin,
            strict: self.strict,
            keep: self.keep,
            interval: self.interval_ms * MS,
            flows: self.flows.into(),
            narrate: self.verbose,
        }
    }
}

impl DrillOptions {
    fn flows(&self) -> flows::run::Options {
        flows::run::Options {
            sync: self.sync,
            rules: self.rules,
            holdfast: self.holdfast.clone(),
            repeat: self.repeat.into(),
            twin: self.twin,
            strict: self.strict,
            keep: self.keep,
            narrate: self.verbose,
            flows: self.flows.into(),
            bulk: self.bulk.into(),
            megabytes: self.megabytes,
            moves: self.moves.into(),
            lead: self.lead * SECOND,
        }
    }

    fn ecmp(&self) -> flows::ecmp::run::Options {
        flows::ecmp::run::Options {
            sync: self.sync,
            rules: self.rules,
            holdfast: self.holdfast.clone(),
            // Of two nodes one is left: nothing is spread any more.
            nodes: usize::from(self.nodes).max(3),
            next_hops: self.next_hops,
            repeat: self.repeat.into(),
            twin: self.twin,
            strict: self.strict,
            keep: self.keep,
            narrate: self.verbose,
            flows: self.flows.into(),
        }
    }

    fn planes(&self) -> planes::run::Options {
        planes::run::Options {
            holdfast: self.holdfast.clone(),
            repeat: self.repeat.into(),
            reloads: self.reloads,
            twin: self.twin,
            strict: self.strict,
            keep: self.keep,
            flows: self.flows.into(),
            narrate: self.verbose,
        }
    }
}

/// A drill of any kind.
#[derive(Clone, Copy)]
enum Wanted {
    /// A pair on one segment.
    Segment(&'static Drill),
    /// Nodes behind a router.
    Router(&'static bgp::drills::Drill),
    /// A plane and a situation.
    Plane(planes::Drill),
    /// Established flows.
    Flows(&'static flows::drills::Drill),
    /// The same behind a router.
    Ecmp(&'static flows::ecmp::drills::Drill),
}

/// The exit codes of DESIGN section 3.
const FAILED: u8 = 1;
const NOTHING_RAN: u8 = 2;
const LACKING: u8 = 3;
const USAGE: u8 = 4;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(c) => c,
        Err(e) => {
            let _printed = e.print();
            return if e.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match go(cli.command) {
        Ok(code) => code.into(),
        Err(e) => {
            eprintln!("holdfast-drill: {e:#}");
            if e.downcast_ref::<Lacks>().is_some() { LACKING.into() } else { NOTHING_RAN.into() }
        }
    }
}

fn go(command: Command) -> Result<u8> {
    match command {
        Command::Forward { listen, backends } => forward::run(listen, &backends).map(|()| 0),
        Command::Drill(DrillCommand::List { topic }) => {
            list(topic.as_deref());
            Ok(0)
        }
        Command::Drill(DrillCommand::Run { names, options }) => run(&names, &options),
        Command::Demo(options) => {
            residue::remove_on_signal()?;
            let report = demo::demo(&options.options())?;
            Ok(if report.pass { 0 } else { FAILED })
        }
        Command::Lab(c) => lab(&c),
        Command::Tier { name, tiers, piece, results, holdfast } => {
            let count = tier::run(&tier::Tier { name, file: tiers, piece, results, holdfast })?;
            Ok(match count {
                tier::Count { failed: 1.., .. } => FAILED,
                tier::Count { passed: 0, .. } => NOTHING_RAN,
                tier::Count { .. } => 0,
            })
        }
        Command::Scale(options) => {
            residue::remove_on_signal()?;
            Ok(if scale::scale(&options.options())? { 0 } else { FAILED })
        }
        Command::Figures { results, table: which, write, check } => {
            let table = figures::table(&results, which)?;
            match (write, check) {
                (Some(file), _) => figures::write(&file, which, &table)?,
                (None, Some(file)) if !figures::same(&file, which, &table)? => {
                    eprintln!("{}: its figures aren't those of {}", file.display(), results.display());
                    return Ok(FAILED);
                }
                (None, Some(_)) => {}
                (None, None) => print!("{table}"),
            }
            Ok(0)
        }
    }
}

fn list(topic: Option<&str>) {
    let wanted = |d: &&Drill| topic.is_none_or(|t| d.name.contains(t) || d.about.contains(t));
    for d in DRILLS.iter().filter(wanted) {
        println!("{:<22}{}", d.name, d.about);
    }
    for d in bgp::drills::DRILLS.iter().filter(|d| topic.is_none_or(|t| d.name.contains(t) || d.about.contains(t))) {
        println!("{:<22}{}", d.name, d.about);
    }
    for d in flows::drills::DRILLS.iter().filter(|d| topic.is_none_or(|t| d.name.contains(t) || d.about.contains(t))) {
        println!("{:<22}{}", d.name, d.about);
    }
    for d in
        flows::ecmp::drills::DRILLS.iter().filter(|d| topic.is_none_or(|t| d.name.contains(t) || d.about.contains(t)))
    {
        println!("{:<22}{}", d.name, d.about);
    }
    for d in planes::drills() {
        let (name, about) = (d.name(), d.situation.about());
        if topic.is_none_or(|t| name.contains(t) || about.contains(t)) {
            println!("{name:<30}{about}");
        }
    }
}

fn run(names: &[String], options: &DrillOptions) -> Result<u8> {
    let mut drills = Vec::new();
    for name in names {
        match (find(name), bgp::drills::find(name)) {
            (Some(d), _) => drills.push(Wanted::Segment(d)),
            (None, Some(d)) => drills.push(Wanted::Router(d)),
            (None, None) if name == "all" => drills.extend(DRILLS.iter().map(Wanted::Segment)),
            (None, None) if name == "bgp-all" => drills.extend(bgp::drills::DRILLS.iter().map(Wanted::Router)),
            (None, None) => {
                let (planes, flows) = (planes::find(name), flows::drills::find(name));
                let ecmp = flows::ecmp::drills::find(name);
                if planes.is_empty() && flows.is_empty() && ecmp.is_empty() {
                    bail!("no drill is called {name:?}; `drill list` names them");
                }
                drills.extend(planes.into_iter().map(Wanted::Plane));
                drills.extend(flows.into_iter().map(Wanted::Flows));
                drills.extend(ecmp.into_iter().map(Wanted::Ecmp));
            }
        }
    }
    env::require_basics()?;
    residue::remove_on_signal()?;
    let o = options.options();
    let mut reports: Vec<Report> = Vec::new();
    let home = planes::home::Home::default();
    for d in drills {
        let report = match d {
            Wanted::Segment(d) => drill(d, &o)?,
            Wanted::Router(d) => bgp::run::drill(d, &options.bgp())?,
            Wanted::Plane(d) => planes::run::drill(d, &options.planes(), &home)?,
            Wanted::Flows(d) => flows::run::drill(d, &options.flows())?,
            Wanted::Ecmp(d) => flows::ecmp::run::drill(d, &options.ecmp())?,
        };
        if !options.json {
            println!("{}", report.text());
        }
        reports.push(report);
    }
    let ran = reports.iter().any(|r| r.valid() > 0 || !r.errors.is_empty());
    let pass = reports.iter().filter(|r| r.skipped.is_none()).all(|r| r.pass);
    if options.json {
        let all: Vec<_> = reports.iter().map(Report::json).collect();
        let document = match all.as_slice() {
            [one] => one.clone(),
            _ => serde_json::json!({"schema": 1, "pass": pass && ran, "drills": all}),
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    }
    Ok(match (ran, pass) {
        (false, _) => NOTHING_RAN,
        (true, true) => 0,
        (true, false) => FAILED,
    })
}

fn lab(command: &LabCommand) -> Result<u8> {
    env::require_basics()?;
    match command {
        LabCommand::Up => {
            let left = Fabric::up(true)?.leave();
            println!("{}: nodes {}; directory {}", left.prefix, NODES.join(" "), left.directory.display());
        }
        LabCommand::Down | LabCommand::Clean => {
            for prefix in residue::clean()? {
                println!("removed {prefix}");
            }
        }
        LabCommand::Calibrate { length_ms } => {
            residue::remove_on_signal()?;
            let c = calibrate::calibrate(*length_ms * MS)?;
            print!("{}", c.text());
            return Ok(if c.pass() { 0 } else { FAILED });
        }
        LabCommand::StartStop { times, holdfast } => {
            residue::remove_on_signal()?;
            let left = startstop::start_stop(&env::holdfast(holdfast.as_deref())?, *times)?;
            left.iter().for_each(|l| println!("left behind: {l}"));
            println!("{times} starts and stops: {}", if left.is_empty() { "nothing left behind" } else { "FAIL" });
            return Ok(if left.is_empty() { 0 } else { FAILED });
        }
        LabCommand::Garbage { rate, seconds, seed, options } => {
            residue::remove_on_signal()?;
            for _attempt in 0..3 {
                let outcome = garbage::garbage(&options.options(), *rate, *seconds, *seed)?;
                print!("{}", outcome.text());
                if outcome.pass() || !outcome.void() {
                    return Ok(if outcome.pass() { 0 } else { FAILED });
                }
            }
            return Ok(NOTHING_RAN);
        }
        LabCommand::Single { case, count, repeat, strict, holdfast } => {
            residue::remove_on_signal()?;
            let holdfast = env::holdfast(holdfast.as_deref())?;
            let o = bgp::single::Options { count: *count as usize, strict: *strict, holdfast: &holdfast };
            let mut pass = true;
            for _ in 0..*repeat {
                let a = bgp::single::ask(*case, &o)?;
                println!("{}  {}\n{}", if a.pass { "pass" } else { "FAIL" }, a.note, a.details);
                pass &= a.pass;
            }
            return Ok(if pass { 0 } else { FAILED });
        }
        LabCommand::Shell { node } => {
            if !NODES.contains(&node.as_str()) {
                bail!("no node is called {node:?}: {}", NODES.join(", "));
            }
            let up = std::fs::read_dir(holdfast_lab::netns::DIRECTORY)?
                .filter_map(|e| e.ok()?.file_name().into_string().ok())
                .find(|n| residue::pid_in(n).is_some() && n.ends_with(&format!("-{node}")));
            let ns = Netns::named(up.context("no fabric is up (`lab up`)")?);
            let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
            let status = ns.command(shell).status().context("start a shell")?;
            return Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1));
        }
    }
    Ok(0)
}

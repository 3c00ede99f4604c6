//! What stands in a file of tiers: pieces, each with its keys.

use super::Tier;
use crate::bench;
use crate::bgp;
use crate::drills::{DRILLS, Drill, find};
use crate::flows;
use crate::planes;
use crate::run::Options;
use crate::subject::SubjectKind;
use anyhow::{Result, bail};
use serde::Deserialize;

/// What a piece does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Drills.
    Drill,
    /// Drills with the fault left out: everything must be 0.
    Twin,
    /// The measuring against an outage of known length.
    Calibrate,
    /// The agent, started and stopped again and again.
    StartStop,
    /// Garbage on the wire.
    Garbage,
    /// What an idle agent costs.
    Idle,
    /// Seeds of the simulator.
    Sim,
    /// Real peers as the other end, by `holdfast-interop`.
    Interop,
    /// Drills of nodes behind a router.
    Bgp,
    /// The same with the fault left out.
    BgpTwin,
    /// Real routers as the other end, by `holdfast-interop --bgp`.
    BgpInterop,
    /// One agent, and the lab itself as its BGP neighbour.
    BgpSingle,
    /// Drills of data planes.
    Planes,
    /// The same with the fault left out.
    PlanesTwin,
    /// Drills of flows.
    Flows,
    /// The same with the fault left out.
    FlowsTwin,
    /// What replicating flows costs beside conntrackd, by `holdfast-bench`.
    FlowsBench,
    /// Drills of flows behind a router.
    Ecmp,
    /// The same with the fault left out.
    EcmpTwin,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Drill => "drill",
            Self::Twin => "twin",
            Self::Calibrate => "calibrate",
            Self::StartStop => "start-stop",
            Self::Garbage => "garbage",
            Self::Idle => "idle",
            Self::Sim => "sim",
            Self::Interop => "interop",
            Self::Bgp => "bgp",
            Self::BgpTwin => "bgp-twin",
            Self::BgpInterop => "bgp-interop",
            Self::BgpSingle => "bgp-single",
            Self::Planes => "planes",
            Self::PlanesTwin => "planes-twin",
            Self::Flows => "flows",
            Self::FlowsTwin => "flows-twin",
            Self::FlowsBench => "flows-bench",
            Self::Ecmp => "ecmp",
            Self::EcmpTwin => "ecmp-twin",
        }
    }
}

/// With or without the peers' channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Channel {
    Yes,
    No,
    #[default]
    Both,
}

impl Channel {
    pub(super) fn each(self) -> &'static [bool] {
        match self {
            Self::Yes => &[true],
            Self::No => &[false],
            Self::Both => &[true, false],
        }
    }
}

/// One piece of a tier.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Piece {
    /// Its name for `--piece`, and of its file of results.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// drill, twin: which; absent: the one that has the piece's name; "all": every one.
    #[serde(default)]
    pub(super) drills: Vec<String>,
    #[serde(default)]
    pub(super) subject: SubjectKind,
    #[serde(default)]
    pub(super) channel: Channel,
    /// drill, twin: valid runs wanted; interop: rounds.
    #[serde(default = "one")]
    pub(super) repeat: usize,
    /// drill, twin: when an expectation failed, so many more runs; all of them count.
    #[serde(default)]
    pub(super) again: usize,
    /// Against the figures themselves, not CI's wider limits.
    #[serde(default)]
    pub(super) strict: bool,
    /// start-stop: how often; sim: seeds.
    #[serde(default = "times")]
    pub(super) times: u32,
    /// garbage: packets per second.
    #[serde(default = "rate")]
    pub(super) rate: u32,
    /// drill: how long the fault is left, seconds, instead of the drill's own time.
    #[serde(default)]
    pub(super) hold: Option<u64>,
    /// garbage, idle: how long.
    #[serde(default = "seconds")]
    pub(super) seconds: u32,
    /// idle: how many VIPs.
    #[serde(default)]
    pub(super) vips: Vec<u8>,
    /// interop: pairs without Holdfast as well.
    #[serde(default)]
    pub(super) baselines: bool,
    /// bgp-single: the question.
    #[serde(default)]
    pub(super) case: Option<bgp::single::Case>,
    /// bgp-single: VIPs, routes of the table, or runs of each kind.
    #[serde(default = "count")]
    pub(super) count: usize,
    /// planes: how many reloads in a row are many.
    #[serde(default = "reloads")]
    pub(super) reloads: u32,
    /// bgp, bgp-twin: with each of these routers.
    #[serde(default = "routers")]
    pub(super) routers: Vec<bgp::router::Kind>,
    /// bgp, bgp-twin: what announces the VIP.
    #[serde(default)]
    pub(super) speaker: bgp::speaker::Kind,
    /// bgp, bgp-twin, ecmp, ecmp-twin: with so many nodes each.
    #[serde(default = "nodes")]
    pub(super) nodes: Vec<usize>,
    /// bgp, bgp-twin, ecmp, ecmp-twin: the router's next hops.
    #[serde(default)]
    pub(super) next_hops: bgp::run::NextHops,
    /// flows, flows-twin, ecmp, ecmp-twin: with each of these replicating, …
    #[serde(default = "syncs")]
    pub(super) sync: Vec<flows::pair::Sync>,
    /// … and each of these rules.
    #[serde(default = "rules")]
    pub(super) rules: Vec<flows::net::Rules>,
    /// flows, flows-twin: flows that talk; ecmp, ecmp-twin: all flows, …
    #[serde(default)]
    pub(super) flows: Option<usize>,
    /// … bulk flows, …
    #[serde(default)]
    pub(super) bulk: Option<usize>,
    /// … what each of these moves each way at least, …
    #[serde(default)]
    pub(super) megabytes: Option<u64>,
    /// … how often the VIP moves, …
    #[serde(default)]
    pub(super) moves: Option<usize>,
    /// … and how old flows are when it does first, seconds.
    #[serde(default)]
    pub(super) lead: Option<u64>,
    /// flows-bench: its questions; absent: all.
    #[serde(default)]
    pub(super) cases: Vec<String>,
    /// flows-bench: flows of a big table; events of a load are `count`, their rate is `rate`.
    #[serde(default = "entries")]
    pub(super) entries: u32,
}

fn one() -> usize {
    1
}

fn times() -> u32 {
    200
}

fn count() -> usize {
    1000
}

fn entries() -> u32 {
    1_000_000
}

fn reloads() -> u32 {
    100
}

fn rate() -> u32 {
    10_000
}

fn seconds() -> u32 {
    5
}

fn routers() -> Vec<bgp::router::Kind> {
    vec![bgp::router::Kind::Bird, bgp::router::Kind::Frr]
}

fn syncs() -> Vec<flows::pair::Sync> {
    vec![flows::pair::Sync::Holdfast]
}

fn rules() -> Vec<flows::net::Rules> {
    vec![flows::net::Rules::Strict]
}

fn nodes() -> Vec<usize> {
    vec![2]
}

impl Piece {
    pub(super) fn options(&self, base: &Tier) -> Options {
        Options {
            subject: self.subject,
            holdfast: base.holdfast.clone(),
            repeat: self.repeat,
            twin: self.kind == Kind::Twin,
            strict: self.strict,
            hold: self.hold.map(|seconds| seconds * crate::clock::SECOND),
            ..Options::default()
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        if self.drills.is_empty() { vec![self.name.clone()] } else { self.drills.clone() }
    }

    pub(super) fn bgp_drills(&self) -> Result<Vec<&'static bgp::drills::Drill>> {
        let mut all = Vec::new();
        for n in &self.names() {
            match bgp::drills::find(n) {
                Some(d) => all.push(d),
                None if n == "all" => all.extend(bgp::drills::DRILLS),
                None => bail!("piece {}: no BGP drill is called {n:?}", self.name),
            }
        }
        Ok(all)
    }

    pub(super) fn bgp_options(&self, base: &Tier, router: bgp::router::Kind, nodes: usize) -> bgp::run::Options {
        bgp::run::Options {
            speaker: self.speaker,
            holdfast: base.holdfast.clone(),
            router,
            nodes,
            next_hops: self.next_hops,
            repeat: self.repeat,
            twin: self.kind == Kind::BgpTwin,
            strict: self.strict,
            ..bgp::run::Options::default()
        }
    }

    pub(super) fn plane_drills(&self) -> Result<Vec<planes::Drill>> {
        let mut all = Vec::new();
        for n in &self.names() {
            let found = planes::find(n);
            if found.is_empty() {
                bail!("piece {}: no drill of a plane is called {n:?}", self.name);
            }
            all.extend(found);
        }
        Ok(all)
    }

    pub(super) fn flow_drills(&self) -> Result<Vec<&'static flows::drills::Drill>> {
        let mut all = Vec::new();
        for n in &self.names() {
            let found = flows::drills::find(n);
            if found.is_empty() {
                bail!("piece {}: no drill of flows is called {n:?}", self.name);
            }
            all.extend(found);
        }
        Ok(all)
    }

    pub(super) fn flow_options(
        &self,
        base: &Tier,
        sync: flows::pair::Sync,
        rules: flows::net::Rules,
    ) -> flows::run::Options {
        let usual = flows::run::Options::default();
        flows::run::Options {
            sync,
            rules,
            holdfast: base.holdfast.clone(),
            repeat: self.repeat,
            twin: self.kind == Kind::FlowsTwin,
            strict: self.strict,
            flows: self.flows.unwrap_or(usual.flows),
            bulk: self.bulk.unwrap_or(usual.bulk),
            megabytes: self.megabytes.unwrap_or(usual.megabytes),
            moves: self.moves.unwrap_or(usual.moves),
            lead: self.lead.map_or(usual.lead, |seconds| seconds * crate::clock::SECOND),
            ..usual
        }
    }

    pub(super) fn bench_load(&self) -> bench::Load<'_> {
        bench::Load {
            cases: &self.cases,
            events: u32::try_from(self.count).unwrap_or(u32::MAX),
            entries: self.entries,
            rate: self.rate,
            repeat: self.repeat,
            strict: self.strict,
        }
    }

    pub(super) fn ecmp_drills(&self) -> Result<Vec<&'static flows::ecmp::drills::Drill>> {
        let mut all = Vec::new();
        for n in &self.names() {
            let found = flows::ecmp::drills::find(n);
            if found.is_empty() {
                bail!("piece {}: no drill of flows behind a router is called {n:?}", self.name);
            }
            all.extend(found);
        }
        Ok(all)
    }

    pub(super) fn ecmp_options(&self, base: &Tier, sync: flows::pair::Sync, nodes: usize) -> flows::ecmp::run::Options {
        let usual = flows::ecmp::run::Options::default();
        flows::ecmp::run::Options {
            sync,
            holdfast: base.holdfast.clone(),
            nodes,
            next_hops: self.next_hops,
            repeat: self.repeat,
            twin: self.kind == Kind::EcmpTwin,
            strict: self.strict,
            flows: self.flows.unwrap_or(usual.flows),
            ..usual
        }
    }

    pub(super) fn plane_options(&self, base: &Tier) -> planes::run::Options {
        planes::run::Options {
            holdfast: base.holdfast.clone(),
            repeat: self.repeat,
            reloads: self.reloads,
            twin: self.kind == Kind::PlanesTwin,
            strict: self.strict,
            ..planes::run::Options::default()
        }
    }

    pub(super) fn drills(&self) -> Result<Vec<&'static Drill>> {
        let mut all = Vec::new();
        for n in &self.names() {
            match find(n) {
                Some(d) => all.push(d),
                None if n == "all" => all.extend(DRILLS),
                None => bail!("piece {}: no drill is called {n:?}", self.name),
            }
        }
        Ok(all)
    }
}

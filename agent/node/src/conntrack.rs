//! The kernel's connection table as it fills: how full, what was lost, and when it will be full at this rate.
//!
//! A table that is full drops the first packet of every new connection while all others go on and the processor is idle:
//! nothing else shows it. So it is told before: at three levels of use, and by a forecast. The forecast goes by the model
//! that an entry stays for the time of `TIME_WAIT` after it came (that is what nearly all entries of a busy balancer are
//! in): what comes in a second leaves that much later, and the table holds rate × time in the end.
//!
//! What this module refuses to do: read the kernel, or decide what follows ([`crate::decide`]).

mod model;
#[cfg(test)]
mod tests;

use crate::config::Conntrack;
use crate::io::ConntrackLevel;
use crate::journal::Kind;
use crate::mutants;
use crate::node::Node;
use holdfast_statesync::message::Message;
pub use holdfast_statesync::message::Timeouts;
use model::Model;
use std::time::{Duration, Instant};

/// How long an entry of a closed TCP connection stays, unless the kernel says otherwise.
pub const TIME_WAIT: Duration = Duration::from_secs(120);
/// What an entry takes in the kernel, about, without its share of the hash table.
const ENTRY_BYTES: u64 = 320;
/// A level is left when the use is so far below where it begins, per mille of the limit: what hovers changes nothing.
const HYSTERESIS: u64 = 50;
/// A table that lost something counts as full until nothing was lost for so long.
const LOSS_COUNTS: Duration = Duration::from_secs(10);
/// A forecast begins to count when so many looks in a row say that the table will be full, and ends when so many don't.
const FORECAST_FROM: u32 = 3;
const FORECAST_TO: u32 = 10;

/// One look at the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Entries in it.
    pub count: u64,
    /// Entries that it may have (`nf_conntrack_max`); 0: no limit.
    pub limit: u64,
    /// What was lost since the agent began to look; grows.
    pub lost: Lost,
    /// How long an entry in `TIME_WAIT` stays.
    pub time_wait: Duration,
    /// How long others stay that are idle, where that is known.
    pub timeouts: Option<Timeouts>,
}

impl Sample {
    /// A table from which nothing was lost.
    pub const fn of(count: u64, limit: u64) -> Self {
        let lost = Lost { dropped: 0, early_dropped: 0, insert_failed: 0 };
        Self { count, limit, lost, time_wait: TIME_WAIT, timeouts: None }
    }

    /// How full it is, per mille of the limit; 0 without a limit.
    pub fn used_permille(&self) -> u64 {
        self.count.saturating_mul(1000).checked_div(self.limit).unwrap_or(0)
    }
}

/// What the kernel counts as lost, of all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Packets dropped because no entry could be made (`drop`).
    pub dropped: u64,
    /// Entries of others thrown out to make room (`early_drop`).
    pub early_dropped: u64,
    /// Entries that were there already when they were to be added (`insert_failed`): two packets of one connection at
    /// once. Happens to UDP without harm.
    pub insert_failed: u64,
}

impl Lost {
    fn since(self, before: Self) -> Self {
        Self {
            dropped: self.dropped.saturating_sub(before.dropped),
            early_dropped: self.early_dropped.saturating_sub(before.early_dropped),
            insert_failed: self.insert_failed.saturating_sub(before.insert_failed),
        }
    }

    fn and(self, more: Self) -> Self {
        Self {
            dropped: self.dropped.saturating_add(more.dropped),
            early_dropped: self.early_dropped.saturating_add(more.early_dropped),
            insert_failed: self.insert_failed.saturating_add(more.insert_failed),
        }
    }

    /// A new connection, or a former one, didn't get what it should.
    const fn hurts(self) -> bool {
        self.dropped > 0 || self.early_dropped > 0
    }
}

/// The table as last judged: part of the [`World`](crate::world::World).
#[derive(Debug, Clone)]
pub struct View {
    /// How full it is, in words of one kind.
    pub level: ConntrackLevel,
    /// When `level` began.
    pub since: Instant,
    /// The figures in words, as they were when `level` began; why it is unknown.
    pub why: String,
    /// The journal entry that says so.
    pub event: Option<u64>,
}

impl View {
    pub(crate) fn new(now: Instant) -> Self {
        Self { level: ConntrackLevel::Unknown, since: now, why: "not looked at yet".to_owned(), event: None }
    }

    /// No further VIP should come here while another node can take it.
    pub fn refuses_more(&self) -> bool {
        self.level == ConntrackLevel::Full
    }
}

/// What a look at the table brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct News {
    /// The level is another one now.
    pub level: Option<ConntrackLevel>,
    /// So much was lost since the look before.
    pub lost: Lost,
    /// It is foreseen from now on that the table will be full, in so many seconds. Told once until it isn't any more.
    pub full_in_s: Option<u64>,
}

/// Judges one look after the other.
#[derive(Debug)]
pub struct Watch {
    config: Conntrack,
    level: ConntrackLevel,
    last: Option<(Instant, Sample)>,
    /// When something was lost while the table was at least filling.
    lost_at: Option<Instant>,
    /// What was lost and stands in no entry of the journal yet, which holds back what repeats.
    untold: Lost,
    model: Model,
    /// Looks in a row with, or without a forecast.
    foreseen: u32,
    unforeseen: u32,
    /// A forecast counts.
    warned: bool,
}

impl Watch {
    /// One that has seen nothing.
    pub fn new(config: Conntrack) -> Self {
        Self {
            config,
            level: ConntrackLevel::Unknown,
            last: None,
            lost_at: None,
            untold: Lost::default(),
            model: Model::default(),
            foreseen: 0,
            unforeseen: 0,
            warned: false,
        }
    }

    /// The level now.
    pub const fn level(&self) -> ConntrackLevel {
        self.level
    }

    /// The last look.
    pub fn last(&self) -> Option<&Sample> {
        self.last.as_ref().map(|(_, sample)| sample)
    }

    /// New entries in a second, by the model.
    pub fn rate(&self) -> u64 {
        self.model.rate()
    }

    /// Entries that there will be in the end at this rate.
    pub fn forecast(&self) -> u64 {
        self.model.forecast()
    }

    /// Seconds until the table is full at this rate; `None`: never, or without a limit, or seen too seldom to say.
    pub fn full_in_s(&self) -> Option<u64> {
        let (_, sample) = self.last?;
        (self.warned && sample.limit > 0).then(|| self.model.full_in_s(sample.limit)).flatten()
    }

    /// Takes a look at `now`.
    pub fn take(&mut self, now: Instant, sample: Sample) -> News {
        let before = self.last.replace((now, sample));
        let lost = before.map(|(_, before)| sample.lost.since(before.lost)).unwrap_or_default();
        self.model.take(before.map(|(at, _)| now.saturating_duration_since(at)), sample.count, sample.time_wait);
        self.untold = self.untold.and(lost);
        let old = self.level;
        self.level = self.judge(now, &sample, lost);
        News { level: (self.level != old).then_some(self.level), lost, full_in_s: self.foresee(&sample) }
    }

    /// It can't be looked at any more. True: that is news.
    pub fn lose_sight(&mut self) -> bool {
        let news = self.level != ConntrackLevel::Unknown;
        *self = Self::new(self.config);
        news
    }

    fn judge(&mut self, now: Instant, sample: &Sample, lost: Lost) -> ConntrackLevel {
        let used = sample.used_permille();
        if sample.limit == 0 {
            return ConntrackLevel::Fine;
        }
        // Below that a loss has other reasons than the limit: a hash chain too long, two packets of one connection.
        if lost.hurts() && used >= begins(&self.config, ConntrackLevel::Filling) {
            self.lost_at = Some(now);
        }
        if self.lost_at.is_some_and(|at| now.saturating_duration_since(at) < LOSS_COUNTS)
            && !mutants::off("conntrack-loss")
        {
            return ConntrackLevel::Full;
        }
        let levels = [ConntrackLevel::Full, ConntrackLevel::High, ConntrackLevel::Filling];
        let slack = if mutants::off("conntrack-hysteresis") { 0 } else { HYSTERESIS };
        let holds = |level: &ConntrackLevel| {
            let from = begins(&self.config, *level);
            used >= if *level <= self.level { from.saturating_sub(slack) } else { from }
        };
        levels.into_iter().find(holds).unwrap_or(ConntrackLevel::Fine)
    }

    fn foresee(&mut self, sample: &Sample) -> Option<u64> {
        let full = (sample.limit > 0).then(|| self.model.full_in_s(sample.limit)).flatten();
        match full {
            Some(_) => (self.foreseen, self.unforeseen) = (self.foreseen.saturating_add(1), 0),
            None => (self.foreseen, self.unforeseen) = (0, self.unforeseen.saturating_add(1)),
        }
        if self.warned {
            self.warned = self.unforeseen < FORECAST_TO;
            return None;
        }
        self.warned = self.foreseen >= FORECAST_FROM;
        full.filter(|_| self.warned)
    }
}

/// Where a level begins, per mille of the limit.
fn begins(config: &Conntrack, level: ConntrackLevel) -> u64 {
    10 * u64::from(match level {
        ConntrackLevel::Unknown | ConntrackLevel::Fine => 0,
        ConntrackLevel::Filling => config.filling,
        ConntrackLevel::High => config.high,
        ConntrackLevel::Full => config.full,
    })
}

/// `fine`, `filling`, `high`, `full`, `unknown`.
pub fn level_word(level: ConntrackLevel) -> &'static str {
    match level {
        ConntrackLevel::Unknown => "unknown",
        ConntrackLevel::Fine => "fine",
        ConntrackLevel::Filling => "filling",
        ConntrackLevel::High => "high",
        ConntrackLevel::Full => "full",
    }
}

/// `249036 of 262144 entries (95 %)`.
pub(crate) fn figures(sample: &Sample) -> String {
    match sample.limit {
        0 => format!("{} entries, no limit", sample.count),
        limit => format!("{} of {limit} entries ({} %)", sample.count, sample.used_permille() / 10),
    }
}

/// What somebody should look at beside the level, each with its remedy.
pub(crate) fn warnings(node: &Node) -> Vec<(String, &'static str)> {
    const MORE: &str = "raise net.netfilter.nf_conntrack_max on all nodes alike (and the hash buckets with it)";
    let Some(sample) = node.conntrack.last() else { return Vec::new() };
    let mut warnings = Vec::new();
    if let Some(seconds) = node.conntrack.full_in_s() {
        let (rate, forecast) = (node.conntrack.rate(), node.conntrack.forecast());
        let text = format!(
            "the connection table is full in {seconds} s at {rate} new connections a second ({forecast} entries in the end, \
             limit {}; that many take about {} MiB)",
            sample.limit,
            forecast.saturating_mul(ENTRY_BYTES) >> 20,
        );
        warnings.push((text, MORE));
    }
    let peers = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    for (peer, limit) in peers.filter_map(|(peer, view)| Some((&peer.name, view.table_limit?))) {
        if limit != sample.limit {
            let word = |limit: u64| if limit == 0 { "no limit".to_owned() } else { format!("{limit} entries") };
            let (theirs, ours) = (word(limit), word(sample.limit));
            warnings.push((
                format!("the connection table of {peer} may have {theirs}, this node's {ours}"),
                "set net.netfilter.nf_conntrack_max alike on all nodes: what fits one must fit the node that takes over",
            ));
        }
    }
    let Some(ours) = sample.timeouts else { return warnings };
    let peers = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    for (peer, theirs) in peers.filter_map(|(peer, view)| Some((&peer.name, view.table_timeouts?))) {
        let pairs = [
            ("an established TCP connection", theirs.established_s, ours.established_s),
            ("a UDP stream", theirs.udp_stream_s, ours.udp_stream_s),
        ];
        for (what, theirs, ours) in pairs.into_iter().filter(|(_, theirs, ours)| theirs != ours) {
            warnings.push((
                format!("the connection table of {peer} keeps {what} for {theirs} s when idle, this node's for {ours} s"),
                "set net.netfilter.nf_conntrack_*_timeout_* alike on all nodes: a flow that is taken over must not end sooner",
            ));
        }
    }
    warnings
}

impl Node {
    /// A look at the connection table, or why there can't be one.
    pub(crate) fn on_conntrack(&mut self, now: Instant, sample: Result<Sample, String>) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(why) => {
                if self.conntrack.lose_sight() {
                    self.level_of_conntrack(now, ConntrackLevel::Unknown, why);
                } else {
                    self.world.conntrack.why = why;
                }
                return;
            }
        };
        let news = self.conntrack.take(now, sample);
        if news.lost.hurts() {
            // What was held back stands in the next entry.
            let lost = if mutants::off("conntrack-sum") { news.lost } else { self.conntrack.untold };
            let Lost { dropped, early_dropped, .. } = lost;
            if self.event(now, None, Kind::ConntrackLost { dropped, early_dropped, why: figures(&sample) }).is_some() {
                self.conntrack.untold = Lost::default();
            }
        }
        if let Some(seconds) = news.full_in_s {
            let (rate, forecast) = (self.conntrack.rate(), self.conntrack.forecast());
            let kind = Kind::ConntrackForecast { full_in_s: seconds, rate, forecast, limit: sample.limit };
            self.event(now, None, kind);
        }
        if let Some(level) = news.level {
            let untold = std::mem::take(&mut self.conntrack.untold);
            let lost = match (news.lost.hurts(), untold.hurts()) {
                (true, _) => ", new connections are lost".to_owned(),
                (false, true) => format!(
                    ", and {} packets of new connections and {} entries of others more were lost than was told so far",
                    untold.dropped, untold.early_dropped
                ),
                (false, false) => String::new(),
            };
            self.level_of_conntrack(now, level, format!("{}{lost}", figures(&sample)));
        }
        self.broadcast(now, &Message::Table { limit: sample.limit, timeouts: sample.timeouts });
    }

    fn level_of_conntrack(&mut self, now: Instant, level: ConntrackLevel, why: String) {
        let from = level_word(self.world.conntrack.level).to_owned();
        let to = level_word(level).to_owned();
        let event = self.event(now, None, Kind::ConntrackLevel { from, to, why: why.clone() });
        self.world.conntrack = View { level, since: now, why, event };
        self.dirty.all = true;
        self.report_due = true;
    }
}

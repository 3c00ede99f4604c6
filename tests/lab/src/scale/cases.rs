//! The three questions and their answers.

use crate::clock::{MS, Ns, ms_between, now, sleep_until};
use crate::env;
use crate::fabric::{Lb, wait_for};
use crate::scale::network::Network;
use crate::scale::observer::Observer;
use crate::scale::pair::{Pair, cpu, held, memory};
use crate::scale::{Case, Options, Shape, own};
use crate::subject::SubjectKind;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

/// What settles later than this does not settle.
const PATIENCE: Duration = Duration::from_secs(30);
/// Start-up and its repeated announcements are no idling.
const CALM: Duration = Duration::from_secs(6);
/// DESIGN section 7: settled this soon after the start of both.
const SETTLED_MS: f64 = 2_000.0;
/// Memory: so much for one host, and so much more for each instance.
const MEMORY_KIB: u64 = 23 * 1024;
const MEMORY_EACH_KIB: u64 = 8;
/// The last address of a promoted VIP answers this soon.
const LAST_ANSWER_MS: f64 = 1_000.0;
/// How long a promotion is watched.
const PROMOTION: Duration = Duration::from_secs(4);
/// How often the trunk goes away, for how long, and for how long it is there between.
const FLAPS: u32 = 6;
const FLAP_DOWN: Duration = Duration::from_millis(400);
const FLAP_UP: Duration = Duration::from_millis(300);
/// After the last flap every instance is where it belongs this soon.
const FLAP_LIMIT_MS: f64 = 5_000.0;

/// An answer to one question.
pub(super) trait Answer {
    fn line(&self) -> String;
    fn json(&self) -> Value;
    fn pass(&self) -> bool;
    /// Processor time of the Active in percent, of a pair that was steady.
    fn cost(&self) -> Option<f64> {
        None
    }
}

/// What one host's daemon used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host {
    /// Processor time, percent of one core.
    pub cpu_percent: f64,
    /// Resident memory of all its processes, KiB.
    pub rss_kib: u64,
    /// The same with shared pages divided among those who share them.
    pub pss_kib: u64,
    /// Its processes.
    pub processes: usize,
}

/// A pair at rest.
#[derive(Debug, Clone)]
pub struct Idle {
    subject: SubjectKind,
    shape: Shape,
    /// From the start of the first daemon until lb1 had every address and lb2 none; `None`: not within 30 s.
    settled_ms: Option<f64>,
    /// Addresses that exactly one host (lb1) answered for, as the observer saw it.
    answered: usize,
    /// Still so at the end.
    steady: bool,
    /// Frames per second that came from each.
    sent_per_s: [f64; 2],
    over_ms: f64,
    hosts: [Host; 2],
}

impl Answer for Idle {
    fn line(&self) -> String {
        let settled = self.settled_ms.map_or_else(|| "no".into(), |ms| format!("{:.2} s", ms / 1000.0));
        let host = |h: &Host| format!("{:.2} | {} | {}", h.cpu_percent, h.rss_kib, h.pss_kib);
        format!(
            "| {:?} | {} | {} | {settled} | {}/{} | {} | {:.0} / {:.0} | {} | {} |",
            self.subject,
            self.shape.instances,
            self.shape.segments,
            self.answered,
            self.shape.instances,
            if self.steady { "yes" } else { "NO" },
            self.sent_per_s[0],
            self.sent_per_s[1],
            host(&self.hosts[0]),
            host(&self.hosts[1])
        )
    }

    fn json(&self) -> Value {
        let host = |h: &Host| json!({"cpu_percent": h.cpu_percent, "rss_kib": h.rss_kib, "pss_kib": h.pss_kib, "processes": h.processes});
        json!({
            "case": "idle", "subject": format!("{:?}", self.subject), "instances": self.shape.instances,
            "interfaces": self.shape.segments, "interval_ms": self.shape.interval_ms, "settled_ms": self.settled_ms,
            "answered": self.answered, "steady": self.steady, "sent_per_s_active": self.sent_per_s[0],
            "sent_per_s_backup": self.sent_per_s[1], "over_ms": self.over_ms, "active": host(&self.hosts[0]),
            "backup": host(&self.hosts[1]), "memory_limit_kib": self.memory_limit(),
        })
    }

    fn cost(&self) -> Option<f64> {
        self.steady.then_some(self.hosts[0].cpu_percent)
    }

    fn pass(&self) -> bool {
        self.settled_ms.is_some_and(|ms| ms <= SETTLED_MS)
            && self.steady
            && self.answered == usize::from(self.shape.instances)
            && self.hosts.iter().all(|h| h.pss_kib <= self.memory_limit())
    }
}

impl Idle {
    fn memory_limit(&self) -> u64 {
        MEMORY_KIB + MEMORY_EACH_KIB * u64::from(self.shape.instances)
    }
}

/// A VIP with many addresses went from lb1, whose cables were pulled, to lb2.
#[derive(Debug, Clone)]
pub struct Promotion {
    subject: SubjectKind,
    shape: Shape,
    /// From the fault to lb2's first advert.
    first_advert_ms: Option<f64>,
    /// The longest pause between two of its adverts from then on.
    longest_gap_ms: f64,
    /// From its first advert until the last of the addresses was answered for by it; `None`: not while watched.
    last_answer_ms: Option<f64>,
    answered: usize,
}

impl Answer for Promotion {
    fn line(&self) -> String {
        let ms = |v: Option<f64>| v.map_or_else(|| "never".into(), |v| format!("{v:.1}"));
        format!(
            "| {:?} | {} | {} | {} | {:.1} | {} | {} |",
            self.subject,
            self.shape.addresses,
            self.shape.interval_ms,
            ms(self.first_advert_ms),
            self.longest_gap_ms,
            ms(self.last_answer_ms),
            self.answered
        )
    }

    fn json(&self) -> Value {
        json!({
            "case": "promotion", "subject": format!("{:?}", self.subject), "addresses": self.shape.addresses,
            "interval_ms": self.shape.interval_ms, "first_advert_ms": self.first_advert_ms,
            "longest_gap_ms": self.longest_gap_ms, "last_answer_ms": self.last_answer_ms, "answered": self.answered,
        })
    }

    fn pass(&self) -> bool {
        self.longest_gap_ms <= f64::from(2 * self.shape.interval_ms)
            && self.last_answer_ms.is_some_and(|ms| ms <= LAST_ANSWER_MS)
    }
}

/// The trunk of lb1 flapped.
#[derive(Debug, Clone)]
pub struct Flap {
    subject: SubjectKind,
    shape: Shape,
    flaps: u32,
    /// From the last time it came back until lb1 had every address and lb2 none; `None`: not within 30 s.
    right_ms: Option<f64>,
    /// Instances in the wrong place at the end of that.
    wrong: usize,
}

impl Answer for Flap {
    fn line(&self) -> String {
        let right = self.right_ms.map_or_else(|| "never".into(), |ms| format!("{ms:.0}"));
        format!(
            "| {:?} | {} | {} | {} | {right} | {} |",
            self.subject, self.shape.instances, self.shape.segments, self.flaps, self.wrong
        )
    }

    fn json(&self) -> Value {
        json!({
            "case": "flap", "subject": format!("{:?}", self.subject), "instances": self.shape.instances,
            "interfaces": self.shape.segments, "flaps": self.flaps, "right_ms": self.right_ms, "wrong": self.wrong,
        })
    }

    fn pass(&self) -> bool {
        self.wrong == 0 && self.right_ms.is_some_and(|ms| ms <= FLAP_LIMIT_MS)
    }
}

/// The head of a case's table.
pub(super) fn heading(case: Case) -> &'static str {
    match case {
        Case::Idle => {
            "| subject | instances | interfaces | settled | answered by one | steady | frames/s lb1 / lb2 | Active CPU % | RSS KiB | PSS KiB | Backup CPU % | RSS KiB | PSS KiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
        }
        Case::Promotion => {
            "| subject | addresses | interval ms | fault to first advert ms | longest advert gap ms | last address answers after ms | answered |\n|---|---|---|---|---|---|---|"
        }
        Case::Flap => {
            "| subject | instances | interfaces | flaps | all right after ms | wrong |\n|---|---|---|---|---|---|"
        }
    }
}

/// Asks one.
pub(super) fn ask(case: Case, subject: SubjectKind, shape: &Shape, o: &Options) -> Result<Box<dyn Answer>> {
    let network = Network::up(shape.segments, o.keep)?;
    let binary = match subject {
        SubjectKind::Holdfast => env::holdfast(o.holdfast.as_deref())?,
        SubjectKind::Keepalived => env::find_program("keepalived").context("keepalived isn't installed")?,
    };
    let started = now();
    let pair = Pair::start(subject, shape, &network, &binary, o.channel)?;
    let lab = Lab { subject, shape: shape.clone(), network, pair, started };
    Ok(match case {
        Case::Idle => Box::new(lab.idle(o.seconds)?),
        Case::Promotion => Box::new(lab.promotion()?),
        Case::Flap => Box::new(lab.flap()?),
    })
}

struct Lab {
    subject: SubjectKind,
    shape: Shape,
    // The daemons end before the network goes: fields drop in this order.
    pair: Pair,
    network: Network,
    started: Ns,
}

impl Lab {
    fn addresses(&self) -> BTreeSet<Ipv4Addr> {
        self.shape.routers().into_iter().flat_map(|r| r.addresses).collect()
    }

    /// Addresses that aren't where they belong: at lb1, and only there.
    fn misplaced(&self) -> Result<usize> {
        let wanted = self.addresses();
        let at = [held(&self.network, Lb::Lb1)?, held(&self.network, Lb::Lb2)?];
        Ok(wanted.iter().filter(|a| !at[0].contains(a) || at[1].contains(a)).count())
    }

    /// Waits until none is misplaced; ms since `from`.
    fn settle(&mut self, from: Ns) -> Result<Option<f64>> {
        let mut when = None;
        wait_for(PATIENCE, Duration::from_millis(20), || {
            self.pair.check()?;
            let at = now();
            when = (self.misplaced()? == 0).then_some(at);
            Ok(when.is_some())
        })?;
        Ok(when.map(|at| ms_between(from, at)))
    }

    fn idle(mut self, seconds: u32) -> Result<Idle> {
        let started = self.started;
        let settled_ms = self.settle(started)?;
        std::thread::sleep(CALM);
        let pids = Lb::BOTH.map(|lb| self.pair.pids(lb));
        let frames = |n: &Network| -> Result<[u64; 2]> { Ok([n.sent(Lb::Lb1)?, n.sent(Lb::Lb2)?]) };
        let (sent, from, before) = (frames(&self.network)?, now(), pids.each_ref().map(|p| cpu(p)));
        sleep_until(from + u64::from(seconds) * 1000 * MS);
        let (to, after) = (now(), pids.each_ref().map(|p| cpu(p)));
        let over_ms = ms_between(from, to);
        let now_sent = frames(&self.network)?;
        let hosts = [0, 1].map(|i| Host {
            cpu_percent: 100.0 * ms_between(before[i], after[i]) / over_ms,
            rss_kib: memory(&pids[i], "Rss:"),
            pss_kib: memory(&pids[i], "Pss:"),
            processes: pids[i].len(),
        });
        let steady = self.misplaced()? == 0;
        let answered = self.answered()?;
        self.pair.check()?;
        Ok(Idle {
            subject: self.subject,
            shape: self.shape.clone(),
            settled_ms,
            answered,
            steady,
            sent_per_s: [0, 1].map(|i| now_sent[i].saturating_sub(sent[i]) as f64 * 1000.0 / over_ms),
            over_ms,
            hosts,
        })
    }

    /// Addresses for which exactly one host answers the observer.
    fn answered(&self) -> Result<usize> {
        let routers = self.shape.routers();
        let mut count = 0;
        for segment in 0..self.network.observed {
            let here: Vec<Ipv4Addr> =
                routers.iter().filter(|r| r.segment == segment).flat_map(|r| r.addresses.clone()).collect();
            let observer = Observer::start(&self.network.node("obs"), segment)?;
            let answers = observer.answers(&here, Duration::from_millis(800))?;
            count += here.iter().filter(|a| answers.get(a).is_some_and(|macs| macs.len() == 1)).count();
        }
        Ok(count)
    }

    fn promotion(mut self) -> Result<Promotion> {
        let started = self.started;
        if self.settle(started)?.is_none() {
            bail!("the pair didn't settle within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(CALM);
        let addresses: Vec<Ipv4Addr> = self.addresses().into_iter().collect();
        let lb2 = own(0, Lb::Lb2);
        let observer = Observer::start(&self.network.node("obs"), 0)?;
        let mac = self.mac(Lb::Lb2)?;
        let fault = self.network.trunk(Lb::Lb1, false)?;
        let end = fault + u64::try_from(PROMOTION.as_nanos()).unwrap_or(0);
        let mut missing = addresses;
        while now() < end {
            std::thread::sleep(Duration::from_millis(20));
            let seen = observer.seen();
            if seen.adverts.iter().any(|(at, from)| *from == lb2 && *at >= fault) {
                missing.retain(|a| !seen.claims.contains_key(&(*a, mac)));
                observer.ask(&missing)?;
            }
        }
        let seen = observer.seen();
        let adverts: Vec<Ns> =
            seen.adverts.iter().filter(|(at, from)| *from == lb2 && *at >= fault).map(|a| a.0).collect();
        let first = adverts.first().copied();
        let gaps = adverts.windows(2).map(|w| ms_between(w[0], w[1]));
        let claims: Vec<Ns> = self.addresses().iter().filter_map(|a| seen.claims.get(&(*a, mac)).copied()).collect();
        let all = claims.len() == self.addresses().len();
        let last = claims.iter().max().copied().filter(|_| all);
        Ok(Promotion {
            subject: self.subject,
            shape: self.shape.clone(),
            first_advert_ms: first.map(|at| ms_between(fault, at)),
            longest_gap_ms: gaps.fold(0.0, f64::max),
            last_answer_ms: first.zip(last).map(|(first, last)| ms_between(first, last)),
            answered: claims.len(),
        })
    }

    fn mac(&self, lb: Lb) -> Result<[u8; 6]> {
        self.network.lb(lb).inside(|| {
            let eth0 = pnet::datalink::interfaces().into_iter().find(|i| i.name == "eth0");
            Ok(eth0.and_then(|i| i.mac).context("eth0 has a MAC")?.octets())
        })
    }

    fn flap(mut self) -> Result<Flap> {
        let started = self.started;
        if self.settle(started)?.is_none() {
            bail!("the pair didn't settle within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_secs(1));
        let mut back = now();
        for _ in 0..FLAPS {
            self.network.trunk(Lb::Lb1, false)?;
            std::thread::sleep(FLAP_DOWN);
            back = self.network.trunk(Lb::Lb1, true)?;
            std::thread::sleep(FLAP_UP);
        }
        let right_ms = self.settle(back)?;
        // And it stays so.
        std::thread::sleep(Duration::from_secs(2));
        let wrong = self.misplaced()?;
        Ok(Flap { subject: self.subject, shape: self.shape.clone(), flaps: FLAPS, right_ms, wrong })
    }
}

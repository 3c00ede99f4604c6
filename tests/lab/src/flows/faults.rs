//! `flows-tables`: one fault of the replication after the other, while flows come and go; after each of them both tables
//! must be equal again within [`EQUAL`], and nothing may ever be deleted on the word of somebody who isn't the owner.
//!
//! Each fault has to be seen to strike, by a counter of the agents or by what it did to a process or a table: what struck
//! nothing proves nothing.

use super::churn::Churn;
use super::net::{self, DNAT_PORT};
use super::run::Options;
use super::strays;
use super::tables::{Said, flows};
use crate::clock::{MS, SECOND, ms_between, now, sleep_until};
use crate::fabric::{Lb, VIP, ip_batch, nft, wait_for};
use crate::process::{Pidfd, kill_pid};
use crate::repeat::Unsettled;
use crate::report::Run;
use crate::subject::Place;
use crate::watch::address::holds_vip;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fmt::Write;
use std::time::Duration;

/// How long tables may take to be equal after a fault is over.
const EQUAL: Duration = Duration::from_secs(30);
/// The same where nothing replicates: they never are.
const NEVER: Duration = Duration::from_secs(3);
/// Flows that are there all the time, so that a snapshot takes a while.
const STANDING: u32 = 20_000;
/// New flows at once.
const BURST: u32 = 100_000;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// 5 % of the lanes' datagrams are lost, 5 % come twice, 20 % late, both ways, for eight seconds.
    Loss,
    /// No cable between the two for five seconds; the adverts go another way.
    Partition,
    /// All processes of the agent that isn't the owner stand still for ten seconds.
    HeirStopped,
    /// Those of the owner: the VIP moves.
    OwnerStopped,
    /// Somebody empties the table of the one that isn't the owner.
    Flush,
    /// That, its worker is killed, and its successor as well in the middle of the snapshot.
    HeirKilled,
    /// The same, but it is the owner's worker that is killed in the middle.
    OwnerKilled,
    /// Many new flows at once, while the owner's thread that reads events gets no processor: the kernel drops events.
    Overrun,
    /// Datagrams at the lanes' port that are not the peer's, or not what it sent, or not now.
    Strays,
    /// Both agents are killed and started at the same time.
    BothStart,
}

const ALL: [Fault; 10] = [
    Fault::Loss,
    Fault::Partition,
    Fault::HeirStopped,
    Fault::OwnerStopped,
    Fault::Flush,
    Fault::HeirKilled,
    Fault::OwnerKilled,
    Fault::Overrun,
    Fault::Strays,
    Fault::BothStart,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Loss => "datagrams lost, doubled, late",
            Self::Partition => "partition, 5 s",
            Self::HeirStopped => "heir stopped, 10 s",
            Self::OwnerStopped => "owner stopped, 10 s",
            Self::Flush => "heir's table emptied",
            Self::HeirKilled => "heir's worker killed in its snapshot",
            Self::OwnerKilled => "owner's worker killed in the snapshot",
            Self::Overrun => "events overrun",
            Self::Strays => "stray datagrams",
            Self::BothStart => "both start at once",
        }
    }
}

/// One run: all faults.
///
/// # Errors
/// Something that isn't put to the test doesn't work.
pub(super) fn one_run(o: &Options, s: &mut super::run::Session) -> Result<Run> {
    let mut e = Ends { s, floor: 0 };
    e.load(STANDING, 0)?;
    let limit = if o.replicates() { EQUAL } else { NEVER };
    if o.replicates()
        && let Some(why) = e.unequal(now(), EQUAL)?
    {
        bail!(Unsettled(format!("tables weren't equal before any fault: {why}")));
    }
    let mut run = Run::default();
    let begun = now();
    let (mut unequal, mut missed, mut struck, mut longest, mut opened) = (0, 0, 0, 0.0_f64, 0);
    let (mut foreign, mut ignored) = (0, 0);
    for fault in ALL {
        let churn = Churn::start(&e.s.place.fabric.ns("client"))?;
        let at = now();
        let proof = if o.twin { None } else { e.strike(fault).with_context(|| fault.name())? };
        let over = now();
        opened += churn.finish()?;
        let lacks = e.unequal(over, limit)?;
        let took = ms_between(over, now());
        longest = longest.max(took);
        for lb in Lb::BOTH {
            let said = e.said(lb);
            foreign += said.counter("foreign_deletes_applied");
            ignored += said.counter("foreign_deletes");
        }
        let mut text = fault.name().to_owned();
        match &proof {
            Some(proof) => {
                struck += 1;
                let _ = write!(text, " ({proof})");
            }
            None => missed += 1,
        }
        match lacks {
            None => _ = write!(text, ": equal after {took:.0} ms"),
            Some(why) => {
                unequal += 1;
                let _ = write!(text, ": not equal after {took:.0} ms: {why}");
            }
        }
        run.timeline.push((ms_between(begun, at), text));
    }
    run.numbers.extend([
        ("faults", Some(ALL.len() as f64)),
        ("struck", Some(f64::from(struck))),
        ("missed", Some(f64::from(missed))),
        ("unequal", Some(f64::from(unequal))),
        ("equal", Some(ALL.len() as f64 - f64::from(unequal))),
        ("equal_ms", Some(longest)),
        ("foreign_deletes_applied", Some(foreign as f64)),
        ("foreign_deletes", Some(ignored as f64)),
        ("churned", Some(opened as f64)),
    ]);
    Ok(run)
}

struct Ends<'a> {
    s: &'a mut super::run::Session,
    /// Standing flows' next number.
    floor: u32,
}

impl Ends<'_> {
    fn place(&self) -> &Place {
        &self.s.place
    }

    fn said(&self, lb: Lb) -> Said {
        Said::of(&*self.s.pair, &self.s.place, lb)
    }

    fn owner(&self) -> Result<Lb> {
        let mut found = None;
        wait_for(Duration::from_secs(10), Duration::from_millis(50), || {
            let holds = |lb: &Lb| self.place().fabric.lb(*lb).inside(|| Ok(holds_vip())).unwrap_or(false);
            found = Lb::BOTH.into_iter().find(holds);
            Ok(found.is_some())
        })?;
        found.context("nobody has the VIP")
    }

    /// Why the tables aren't equal; `None`: they are, and both agents found them so after `since`.
    fn unequal(&self, since: u64, limit: Duration) -> Result<Option<String>> {
        let mut why = None;
        wait_for(limit, Duration::from_millis(200), || {
            let age = (now() - since) / MS;
            let agents = Lb::BOTH.iter().find_map(|lb| Some(format!("{}: {}", lb.name(), self.said(*lb).lacks(age)?)));
            why = match agents {
                Some(agents) => Some(agents),
                None => self.kernels_differ()?,
            };
            Ok(why.is_none())
        })?;
        Ok(why)
    }

    fn kernels_differ(&self) -> Result<Option<String>> {
        let [one, two] = Lb::BOTH.map(|lb| flows(&self.place().fabric, lb));
        let (one, two) = (one?, two?);
        let differ = one.symmetric_difference(&two);
        let first = differ.clone().next().map(|f| format!(", {f} for one"));
        Ok(first.map(|f| format!("{} and {} flows, {} differ{f}", one.len(), two.len(), differ.count())))
    }

    /// So many established flows to the VIP, all at once, in the owner's kernel.
    fn load(&mut self, count: u32, priority: u8) -> Result<()> {
        let owner = self.owner()?;
        let mut script = String::new();
        for n in self.floor..self.floor + count {
            let ([a, b], port) = ([(n >> 14) as u8, (n >> 8) as u8 & 63], 1024 + (n & 255));
            let _ = writeln!(
                script,
                "-I -p tcp -s 198.18.{a}.{b} -d {VIP} --sport {port} --dport {DNAT_PORT} --dst-nat 10.2.0.21:{} \
                 --state ESTABLISHED -t 3000 -u SEEN_REPLY,ASSURED",
                net::BACKEND_PORT
            );
        }
        self.floor += count;
        let file = self.place().file("standing-flows");
        std::fs::write(&file, script)?;
        let mut c = match priority {
            0 => self.place().fabric.lb(owner).command("conntrack"),
            p => {
                // On the first processor, before all that isn't real-time.
                let mut c = self.place().fabric.lb(owner).command("chrt");
                c.args(["--fifo", &p.to_string(), "taskset", "--cpu-list", "0", "conntrack"]);
                c
            }
        };
        let out = c.arg("-R").arg(&file).output().context("start conntrack")?;
        if !out.status.success() {
            bail!("conntrack -R: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    fn empty(&self, lb: Lb) -> Result<()> {
        let out = self.place().fabric.lb(lb).command("conntrack").arg("-F").output().context("start conntrack")?;
        if !out.status.success() {
            bail!("conntrack -F: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    /// All entries of a table, whatever they are.
    fn entries(&self, lb: Lb) -> Result<u64> {
        self.place().fabric.lb(lb).inside(|| {
            let text = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?;
            Ok(text.trim().parse()?)
        })
    }

    fn counted(&self, name: &str) -> u64 {
        Lb::BOTH.iter().map(|lb| self.said(*lb).counter(name)).sum()
    }

    /// Does it; how it was seen to strike, or `None`: it wasn't.
    fn strike(&mut self, fault: Fault) -> Result<Option<String>> {
        let owner = self.owner()?;
        let heir = owner.other();
        match fault {
            Fault::Loss => self.loss(),
            Fault::Partition => self.partition(),
            Fault::HeirStopped => self.stopped(heir),
            Fault::OwnerStopped => self.stopped(owner),
            Fault::Flush => {
                let before = self.said(heir).counter("refilled");
                let had = self.entries(heir)?;
                self.empty(heir)?;
                let left = self.entries(heir)?;
                sleep_until(now() + 2 * SECOND);
                let refilled = self.said(heir).counter("refilled").saturating_sub(before);
                Ok((left < had / 2).then(|| format!("{had} entries became {left}, {refilled} were put back so far")))
            }
            Fault::HeirKilled => self.killed(heir, heir),
            Fault::OwnerKilled => self.killed(heir, owner),
            Fault::Overrun => self.overrun(owner),
            Fault::Strays => self.strays(owner),
            Fault::BothStart => self.both_start(),
        }
    }

    fn loss(&self) -> Result<Option<String>> {
        // What comes twice is refused by the channel already.
        let names = ["batches_lost", "batches_late", "datagrams_refused"];
        let before = names.map(|n| self.counted(n));
        for lb in Lb::BOTH {
            let ns = self.place().fabric.lb(lb);
            for words in [
                "qdisc add dev eth2 root handle 1: htb default 1",
                "class add dev eth2 parent 1: classid 1:1 htb rate 10gbit quantum 60000",
                "class add dev eth2 parent 1: classid 1:2 htb rate 1mbit burst 2k",
            ] {
                let out = ns.command("tc").args(words.split(' ')).output().context("start tc")?;
                if !out.status.success() {
                    bail!("tc {words}: {}", String::from_utf8_lossy(&out.stderr).trim());
                }
            }
            nft(
                &ns,
                "table netdev drill_lanes {\n chain out {\n type filter hook egress device \"eth2\" priority 0\n \
                 udp dport 7713 numgen random mod 100 < 5 drop\n \
                 udp dport 7713 numgen random mod 100 < 5 dup to \"eth2\"\n \
                 udp dport 7713 numgen random mod 100 < 20 meta priority set 1:2\n }\n}\n",
            )?;
        }
        sleep_until(now() + 8 * SECOND);
        for lb in Lb::BOTH {
            let ns = self.place().fabric.lb(lb);
            nft(&ns, "delete table netdev drill_lanes\n")?;
            let _gone = ns.command("tc").args(["qdisc", "del", "dev", "eth2", "root"]).output();
        }
        let [lost, late, twice] = [0, 1, 2].map(|i| self.counted(names[i]).saturating_sub(before[i]));
        let struck = lost > 0 && late + twice > 0;
        Ok(struck.then(|| format!("{lost} batches lost, {late} late, {twice} datagrams refused")))
    }

    fn partition(&self) -> Result<Option<String>> {
        let cables = |state: &str| -> Result<()> {
            Lb::BOTH.iter().try_for_each(|lb| {
                ip_batch(Some(&self.place().fabric.lb(*lb)), &format!("link set dev eth2 {state}\n"))
            })
        };
        cables("down")?;
        sleep_until(now() + 5 * SECOND);
        let out = Lb::BOTH.iter().filter(|lb| self.said(**lb).is_out_of_sync()).count();
        cables("up")?;
        Ok((out == 2).then(|| "both out of sync".to_owned()))
    }

    fn stopped(&self, lb: Lb) -> Result<Option<String>> {
        let all: Vec<Pidfd> = self.s.pair.agent(lb).into_iter().filter_map(|p| Pidfd::open(p).ok()).collect();
        // The keeper first: it would take its worker for hung.
        for p in all.iter().rev() {
            let _ended = p.signal(Signal::STOP);
        }
        sleep_until(now() + 10 * SECOND);
        let still = !all.is_empty() && all.iter().all(|p| net::is_stopped(p.pid()));
        let out = self.said(lb.other()).is_out_of_sync();
        for p in &all {
            let _ended = p.signal(Signal::CONT);
        }
        Ok((still && out).then(|| format!("{} was out of sync", lb.other().name())))
    }

    /// The heir begins anew with nothing, and in the middle of that the worker of `victim` is killed.
    fn killed(&self, heir: Lb, victim: Lb) -> Result<Option<String>> {
        let worker = |lb: Lb| self.s.pair.agent(lb).into_iter().next();
        let first = worker(heir).context("the heir has no worker")?;
        let full = self.entries(heir)?;
        kill_pid(first);
        self.empty(heir)?;
        let mut at_kill = 0;
        let killed = wait_for(Duration::from_secs(10), Duration::from_millis(2), || {
            at_kill = self.entries(heir)?;
            if at_kill < full / 20 {
                return Ok(false);
            }
            let new = worker(victim).filter(|p| *p != first);
            new.into_iter().for_each(kill_pid);
            Ok(new.is_some())
        })?;
        sleep_until(now() + SECOND);
        let there = format!("when {at_kill} of {full} entries were there");
        Ok((killed && at_kill < full * 9 / 10).then_some(there))
    }

    fn overrun(&mut self, owner: Lb) -> Result<Option<String>> {
        let before = self.said(owner).counter("overruns");
        let worker = self.s.pair.agent(owner).into_iter().next().context("no worker")?;
        let tid = std::fs::read_dir(format!("/proc/{worker}/task"))?
            .flatten()
            .find(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|name| name.trim() == "sync"))
            .and_then(|t| t.file_name().to_str()?.parse::<i32>().ok());
        let Some(tid) = tid else { return Ok(None) };
        pin(tid, Some(0))?;
        let loaded = self.load(BURST, 1);
        pin(tid, None)?;
        loaded?;
        sleep_until(now() + SECOND);
        let overruns = self.said(owner).counter("overruns").saturating_sub(before);
        Ok((overruns > 0).then(|| format!("{overruns} overruns by {BURST} new flows")))
    }

    fn strays(&self, owner: Lb) -> Result<Option<String>> {
        let heir = owner.other();
        let before = self.said(heir).counter("datagrams_refused");
        let log = self.place().file(&format!("{}-holdfast.log", heir.name()));
        let lines = || std::fs::read_to_string(&log).map_or(0, |t| t.lines().count());
        let said_before = lines();
        let sent = self.place().fabric.lb(owner).inside(strays::send)?;
        sleep_until(now() + SECOND);
        let refused = self.said(heir).counter("datagrams_refused").saturating_sub(before);
        let said = lines().saturating_sub(said_before);
        if self.said(heir).is_out_of_sync() {
            bail!("strays put {} out of sync", heir.name());
        }
        if said > 20 {
            bail!("{} wrote {said} lines about {sent} strays", heir.name());
        }
        Ok((sent > 0 && refused >= sent).then(|| format!("{refused} refused, {sent} sent, {said} lines in the log")))
    }

    fn both_start(&mut self) -> Result<Option<String>> {
        let old: Vec<i32> = Lb::BOTH.iter().flat_map(|lb| self.s.pair.agent(*lb)).collect();
        old.iter().rev().for_each(|p| kill_pid(*p));
        sleep_until(now() + 500 * MS);
        for lb in Lb::BOTH {
            self.s.pair.start(&self.s.place, lb)?;
        }
        let fresh = wait_for(Duration::from_secs(10), Duration::from_millis(50), || {
            let new: Vec<i32> = Lb::BOTH.iter().flat_map(|lb| self.s.pair.agent(*lb)).collect();
            Ok(new.len() == old.len() && !new.iter().any(|p| old.contains(p)))
        })?;
        self.owner()?;
        Ok((fresh && !old.is_empty()).then(|| format!("{} new processes", old.len())))
    }
}

/// On this processor only, or on all there are.
fn pin(tid: i32, cpu: Option<usize>) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    let cpus = cpu.map_or_else(|| 0..std::thread::available_parallelism().map_or(1, usize::from), |c| c..c + 1);
    cpus.for_each(|c| set.set(c));
    let tid = rustix::process::Pid::from_raw(tid);
    rustix::thread::sched_setaffinity(tid, &set).context("pin the thread")
}

//! What the subject costs while nothing happens: processor time and memory on both hosts.

use crate::balancer::Kind;
use crate::clock::{MS, Ns, ms_between, now, sleep_until};
use crate::fabric::{Fabric, Lb, wait_for};
use crate::run::{Options, subject};
use crate::subject::{INTERVAL, Place, SubjectKind};
use crate::watch::address::holds_vip;
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// Until lb1 holds the VIP.
const ACTIVE: Duration = Duration::from_secs(20);
/// Start-up is no idling.
const CALM: Duration = Duration::from_secs(3);

/// What one host's agent used.
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

/// What the pair used.
#[derive(Debug, Clone)]
pub struct Cost {
    /// The subject's name and version.
    pub subject: String,
    /// VIPs, one advert each 100 ms for each.
    pub vips: u8,
    /// With the peers' channel.
    pub channel: bool,
    /// How long was measured, ms.
    pub over_ms: f64,
    /// lb1 (Active) and lb2 (Backup).
    pub hosts: [Host; 2],
}

impl Cost {
    /// One line.
    #[must_use]
    pub fn text(&self) -> String {
        let host = |h: &Host| format!("{:.2} % CPU, {} KiB RSS ({} PSS)", h.cpu_percent, h.rss_kib, h.pss_kib);
        format!("{}: Active {}; Backup {}", self.subject, host(&self.hosts[0]), host(&self.hosts[1]))
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let host = |h: &Host| json!({"cpu_percent": h.cpu_percent, "rss_kib": h.rss_kib, "pss_kib": h.pss_kib, "processes": h.processes});
        json!({
            "subject": self.subject, "vips": self.vips, "channel": self.channel, "over_ms": self.over_ms,
            "active": host(&self.hosts[0]), "backup": host(&self.hosts[1]),
        })
    }
}

/// Starts a pair with `vips` VIPs and measures it over `seconds`; nobody sends it anything.
///
/// # Errors
/// The machine can't run it, or the pair didn't come up.
pub fn idle(o: &Options, vips: u8, seconds: u32) -> Result<Cost> {
    let mut subject = subject(o)?;
    let channel = o.channel && o.subject == SubjectKind::Holdfast;
    let balancer = o.balancer.unwrap_or_else(Kind::best);
    let place = Place { fabric: Fabric::up(o.keep)?, balancer, channel, vips, adverts: INTERVAL, busy: Vec::new() };
    let measured = (|| {
        for lb in Lb::BOTH {
            subject.start(&place, lb)?;
        }
        let lb1 = place.fabric.lb(Lb::Lb1);
        if !wait_for(ACTIVE, Duration::from_millis(50), || lb1.inside(|| Ok(holds_vip())))? {
            bail!("lb1 didn't hold the VIP within {} s", ACTIVE.as_secs());
        }
        std::thread::sleep(CALM);
        let pids = Lb::BOTH.map(|lb| subject.agent(lb));
        let (from, before) = (now(), pids.each_ref().map(|p| cpu(p)));
        sleep_until(from + u64::from(seconds) * 1000 * MS);
        let (to, after) = (now(), pids.each_ref().map(|p| cpu(p)));
        let mut hosts = [Host::default(); 2];
        for (i, h) in hosts.iter_mut().enumerate() {
            let used = ms_between(before[i], after[i]);
            *h = Host {
                cpu_percent: 100.0 * used / ms_between(from, to),
                rss_kib: pids[i].iter().map(|&p| memory(p, "Rss:")).sum(),
                pss_kib: pids[i].iter().map(|&p| memory(p, "Pss:")).sum(),
                processes: pids[i].len(),
            };
        }
        Ok(Cost { subject: subject.version(), vips, channel, over_ms: ms_between(from, to), hosts })
    })();
    subject.stop();
    measured
}

/// Processor time of all threads of `pids` so far, by the scheduler's own account (finer than utime + stime).
fn cpu(pids: &[i32]) -> Ns {
    let mut sum = 0;
    for pid in pids {
        for t in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok) {
            let text = std::fs::read_to_string(t.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|n| n.parse::<Ns>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// A line of `/proc/PID/smaps_rollup`, KiB.
fn memory(pid: i32, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

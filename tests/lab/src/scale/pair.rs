//! The pair under test: its configurations, its processes, and what they use.

use crate::clock::Ns;
use crate::fabric::Lb;
use crate::process::{Proc, children};
use crate::scale::network::Network;
use crate::scale::{Instance, Shape};
use crate::subject::SubjectKind;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// RFC 9568 section 5.2.5: the count of addresses is one byte.
const ADVERTISED_MAX: usize = 255;

/// Both hosts' daemons; ended when dropped.
#[derive(Debug)]
pub(super) struct Pair {
    daemons: Vec<(Lb, Proc)>,
}

impl Pair {
    /// Writes both configurations, then starts both daemons, lb1 first.
    pub(super) fn start(
        subject: SubjectKind,
        shape: &Shape,
        network: &Network,
        holdfast: &Path,
        channel: bool,
    ) -> Result<Self> {
        let routers = shape.routers();
        let commands = match subject {
            SubjectKind::Holdfast => holdfast_commands(holdfast, shape, &routers, network, channel)?,
            SubjectKind::Keepalived => keepalived_commands(shape, &routers, network)?,
        };
        let mut daemons = Vec::new();
        for (lb, command) in Lb::BOTH.into_iter().zip(commands) {
            let log = network.directory().join(format!("{}.log", lb.name()));
            daemons.push((lb, Proc::start(format!("{subject:?} on {}", lb.name()), command, &log)?));
        }
        Ok(Self { daemons })
    }

    /// Processes of `lb`: the daemon and its children.
    pub(super) fn pids(&self, lb: Lb) -> Vec<i32> {
        let mine = self.daemons.iter().filter(|(l, _)| *l == lb).map(|(_, d)| d.pid());
        mine.flat_map(|pid| children(pid).into_iter().map(|c| c.pid).chain([pid]).collect::<Vec<_>>()).collect()
    }

    /// A daemon that ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.daemons.iter_mut().find_map(|(_, d)| (!d.alive()).then(|| d.label.clone())) {
            Some(label) => bail!("{label} ended"),
            None => Ok(()),
        }
    }

    /// Ends both daemons, in order where they do.
    pub(super) fn stop(&mut self) {
        for (_, daemon) in &mut self.daemons {
            let _late = daemon.stop(Duration::from_secs(8));
        }
        self.daemons.clear();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The addresses that the kernel of `lb` has, of all interfaces.
pub(super) fn held(network: &Network, lb: Lb) -> Result<BTreeSet<Ipv4Addr>> {
    network.lb(lb).inside(|| {
        let all = nix::ifaddrs::getifaddrs().context("list addresses")?;
        Ok(all.filter_map(|a| a.address.and_then(|s| s.as_sockaddr_in().map(|s| s.ip()))).collect())
    })
}

fn keepalived_commands(shape: &Shape, routers: &[Instance], network: &Network) -> Result<Vec<Command>> {
    let mut commands = Vec::new();
    for lb in Lb::BOTH {
        let mut t = String::from(
            "global_defs {\n  vrrp_version 3\n  vrrp_skip_check_adv_addr\n  vrrp_rt_priority 50\n  \
             vrrp_rlimit_rttime 1000000\n  vrrp_no_swap\n}\n",
        );
        for r in routers {
            let (dev, advert) = (format!("eth{}", r.segment), f64::from(shape.interval_ms) / 1000.0);
            write!(
                t,
                "vrrp_instance i{} {{\n  state BACKUP\n  interface {dev}\n  virtual_router_id {}\n  priority {}\n  \
                 advert_int {advert}\n  virtual_ipaddress {{\n",
                r.number,
                r.vrid,
                lb.priority()
            )?;
            let (advertised, others) = r.addresses.split_at(r.addresses.len().min(ADVERTISED_MAX));
            advertised.iter().try_for_each(|a| writeln!(t, "    {a}/32 dev {dev}"))?;
            t += "  }\n";
            if !others.is_empty() {
                t += "  virtual_ipaddress_excluded {\n";
                others.iter().try_for_each(|a| writeln!(t, "    {a}/32 dev {dev}"))?;
                t += "  }\n";
            }
            t += "}\n";
        }
        let file = |what: &str| network.directory().join(format!("{}-{what}", lb.name()));
        std::fs::write(file("keepalived.conf"), t)?;
        let mut c = network.lb(lb).command("keepalived");
        c.args(["-n", "-l", "-P", "-f"]).arg(file("keepalived.conf"));
        c.arg("-p").arg(file("parent.pid")).arg("-r").arg(file("vrrp.pid"));
        commands.push(c);
    }
    Ok(commands)
}

fn holdfast_commands(
    binary: &Path,
    shape: &Shape,
    routers: &[Instance],
    network: &Network,
    channel: bool,
) -> Result<Vec<Command>> {
    let file = |lb: Lb, what: &str| network.directory().join(format!("{}-{what}", lb.name()));
    let mut keys = Vec::new();
    for lb in Lb::BOTH.into_iter().filter(|_| channel) {
        let run = |words: &[&str]| -> Result<String> {
            let out = Command::new(binary).arg("keygen").args(words).arg(file(lb, "node.key")).output()?;
            if !out.status.success() {
                bail!("holdfast keygen: {}", String::from_utf8_lossy(&out.stderr).trim());
            }
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        };
        run(&[])?;
        let said = run(&["--public"])?;
        let key = said.split_whitespace().map(|w| w.trim_matches('"')).find(|w| w.len() == 44 && w.ends_with('='));
        keys.push(key.context("holdfast keygen --public prints a key")?.to_owned());
    }
    let mut commands = Vec::new();
    for lb in Lb::BOTH {
        let mut t = format!("[node]\nname = \"{}\"\n", lb.name());
        for r in routers {
            let addresses = r.addresses.iter().enumerate().map(|(i, a)| match i {
                ..ADVERTISED_MAX => format!("\"{a}/32\""),
                _ => format!("{{ ip = \"{a}/32\", advertise = false }}"),
            });
            write!(
                t,
                "\n[[vip]]\nname = \"i{}\"\naddresses = [{}]\n\
                 vrrp = {{ interface = \"eth{}\", vrid = {}, priority = {}, interval = \"{}ms\" }}\n",
                r.number,
                addresses.collect::<Vec<_>>().join(", "),
                r.segment,
                r.vrid,
                lb.priority(),
                shape.interval_ms
            )?;
        }
        if let Some(key) = keys.get(lb.other().index()) {
            let (peer, own_key): (Lb, PathBuf) = (lb.other(), file(lb, "node.key"));
            write!(
                t,
                "\n[cluster]\nlisten = \"{}:7712\"\nkey_file = \"{}\"\n\n[[cluster.peer]]\nname = \"{}\"\n\
                 address = \"{}:7712\"\npublic_keys = [\"{key}\"]\n",
                lb.channel(),
                own_key.display(),
                peer.name(),
                peer.channel()
            )?;
        }
        std::fs::write(file(lb, "holdfast.toml"), t)?;
        let mut c = network.lb(lb).command(binary);
        c.arg("run").arg("--config").arg(file(lb, "holdfast.toml"));
        c.arg("--runtime-dir").arg(file(lb, "run")).arg("--state-dir").arg(file(lb, "state"));
        commands.push(c);
    }
    Ok(commands)
}

/// Processor time of all threads of `pids` so far, by the scheduler's own account.
pub(super) fn cpu(pids: &[i32]) -> Ns {
    let mut sum = 0;
    for pid in pids {
        for t in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok) {
            let text = std::fs::read_to_string(t.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|n| n.parse::<Ns>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// A line of `/proc/PID/smaps_rollup`, KiB, summed.
pub(super) fn memory(pids: &[i32], key: &str) -> u64 {
    let each = pids.iter().map(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0)
    });
    each.sum()
}

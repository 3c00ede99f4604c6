//! conntrackd as its package has it: `Mode FTFW` with an external cache, keepalived beside it, and between the two the
//! steps of the packaged `primary-backup.sh`, which keepalived starts when its state changes. The balancer is nftables
//! NAT with a fixed seed, so that both hosts pick the same backend: the best there is without the agent.

use super::net::{self, BACKEND_PORT, DNAT_PORT, SNAT, SNAT_PORT, SNAT6, VIP6};
use super::pair::{Pair, SLACK};
use crate::env::{Lacks, find_program};
use crate::fabric::{Lb, VIP, VRID, nft};
use crate::process::Proc;
use crate::subject::Place;
use crate::subject::keepalived::{self, GLOBAL};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The pair.
#[derive(Debug, Default)]
pub struct Conntrackd {
    vrrp: [Option<Proc>; 2],
    sync: [Option<Proc>; 2],
}

impl Conntrackd {
    /// Checks that all of it is installed.
    ///
    /// # Errors
    /// [`Lacks`].
    pub fn new() -> Result<Self> {
        for program in ["conntrackd", "keepalived", "nft"] {
            if find_program(program).is_none() {
                bail!(Lacks(program.into()));
            }
        }
        Ok(Self::default())
    }

    fn conf(place: &Place, lb: Lb) -> PathBuf {
        place.file(&format!("{}-conntrackd.conf", lb.name()))
    }

    fn start_sync(&mut self, place: &Place, lb: Lb) -> Result<()> {
        let name = lb.name();
        for of_the_last in ["lock", "ctl"] {
            let _absent = std::fs::remove_file(place.file(&format!("{name}-conntrackd.{of_the_last}")));
        }
        std::fs::write(Self::conf(place, lb), sync_config(place, lb))?;
        let mut c = place.fabric.lb(lb).command("conntrackd");
        c.arg("-C").arg(Self::conf(place, lb));
        let log = place.file(&format!("{name}-conntrackd-out.log"));
        self.sync[lb.index()] = Some(Proc::start(format!("conntrackd on {name}"), c, &log)?);
        let up = || Ok(count(place, lb, "internal").is_some());
        if !crate::fabric::wait_for(Duration::from_secs(10), Duration::from_millis(20), up)? {
            bail!("conntrackd on {name} didn't answer within 10 s");
        }
        Ok(())
    }

    fn start_vrrp(&mut self, place: &Place, lb: Lb) -> Result<()> {
        let script = place.file(&format!("{}-primary-backup.sh", lb.name()));
        std::fs::write(&script, steps(place, lb))?;
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let config = vrrp_config(place, lb, &script.to_string_lossy());
        self.vrrp[lb.index()] = Some(keepalived::daemon(place, lb, &config)?);
        Ok(())
    }
}

fn sync_config(place: &Place, lb: Lb) -> String {
    let file = |what: &str| place.file(&format!("{}-conntrackd.{what}", lb.name())).display().to_string();
    let (own, peer) = (lb.channel(), lb.other().channel());
    format!(
        "Sync {{\n  Mode FTFW {{\n    ResendQueueSize 131072\n    ACKWindowSize 300\n    DisableExternalCache no\n  }}\n  \
         UDP {{\n    IPv4_address {own}\n    IPv4_Destination_Address {peer}\n    Port 3780\n    Interface eth2\n    \
         SndSocketBuffer 1249280\n    RcvSocketBuffer 1249280\n    Checksum on\n  }}\n}}\n\
         General {{\n  HashSize 32768\n  HashLimit 131072\n  LogFile {}\n  Syslog off\n  LockFile {}\n  \
         UNIX {{\n    Path {}\n  }}\n  NetlinkBufferSize 2097152\n  NetlinkBufferSizeMaxGrowth 8388608\n  \
         Filter From Userspace {{\n    Protocol Accept {{\n      TCP\n      UDP\n    }}\n    Address Ignore {{\n      \
         IPv4_address 127.0.0.1\n      IPv4_address {own}\n      IPv4_address {peer}\n    }}\n  }}\n}}\n",
        file("log"),
        file("lock"),
        file("ctl"),
    )
}

/// What the packaged `primary-backup.sh` does at each change of state.
fn steps(place: &Place, lb: Lb) -> String {
    let log = place.file(&format!("{}-primary-backup.log", lb.name()));
    format!(
        "#!/bin/sh\nexec >>{} 2>&1\necho \"$1\"\nc='conntrackd -C {}'\ncase \"$1\" in\n\
         primary) $c -c; $c -f; $c -R; $c -B ;;\nbackup) $c -t; $c -n ;;\nfault) $c -t ;;\nesac\n",
        log.display(),
        Conntrackd::conf(place, lb).display()
    )
}

fn vrrp_config(place: &Place, lb: Lb, script: &str) -> String {
    let address = |(ip, device): &(String, &str)| format!("    {ip} dev {device}\n");
    let [first, others @ ..] = net::floating();
    let (first, others) = (address(&first), others.iter().map(address).collect::<String>());
    format!(
        // No `enable_script_security`: it refuses scripts below a directory that others may write into, as /tmp.
        "global_defs {{\n{GLOBAL}}}\n\
         vrrp_instance web {{\n  state BACKUP\n  nopreempt\n  interface eth0\n  virtual_router_id {VRID}\n  priority {}\n  \
         advert_int {}\n  track_interface {{\n    eth1\n  }}\n  virtual_ipaddress {{\n{first}  }}\n  \
         virtual_ipaddress_excluded {{\n{others}  }}\n  notify_master \"{script} primary\"\n  \
         notify_backup \"{script} backup\"\n  notify_fault \"{script} fault\"\n}}\n",
        lb.priority(),
        place.adverts.as_secs_f64(),
    )
}

/// The services of the embedded balancer, by hand.
fn rules() -> String {
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for (i, (_, [a, b])) in net::backends().enumerate() {
        four.push(format!("{i} : {a} . {BACKEND_PORT}"));
        six.push(format!("{i} : {b} . {BACKEND_PORT}"));
    }
    let (mut pre, mut post) = (String::new(), String::new());
    for protocol in ["tcp", "udp"] {
        for (family, vip, map) in [("ip", VIP.to_string(), four.join(", ")), ("ip6", VIP6.to_string(), six.join(", "))]
        {
            for port in [DNAT_PORT, SNAT_PORT] {
                pre += &format!(
                    "  {family} daddr {vip} {protocol} dport {port} dnat {family} to jhash {family} saddr . {protocol} \
                     sport mod 3 seed 0xbeef map {{ {map} }}\n"
                );
            }
            let to = if family == "ip" { SNAT.to_string() } else { SNAT6.to_string() };
            post += &format!(
                "  meta l4proto {protocol} ct original {family} daddr {vip} ct original proto-dst {SNAT_PORT} \
                 snat {family} to {to}\n"
            );
        }
    }
    format!(
        "table inet drill_nat {{\n chain pre {{\n  type nat hook prerouting priority -100\n{pre} }}\n chain post {{\n  \
         type nat hook postrouting priority 100\n{post} }}\n}}\n"
    )
}

/// How many entries the cache of `lb` has; `None`: it doesn't answer.
fn count(place: &Place, lb: Lb, cache: &str) -> Option<usize> {
    let mut c = Command::new("conntrackd");
    c.arg("-C").arg(Conntrackd::conf(place, lb)).arg("-s");
    let out = c.output().ok().filter(|o| o.status.success())?;
    count_in(&String::from_utf8_lossy(&out.stdout), cache)
}

fn count_in(said: &str, cache: &str) -> Option<usize> {
    let (_, of_it) = said.split_once(&format!("cache {cache}:"))?;
    let line = of_it.lines().find(|l| l.contains("active connections:"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

impl Pair for Conntrackd {
    fn version(&self) -> String {
        let said = |program: &str| {
            let out = Command::new(program).arg("-v").output();
            let text = out.map(|o| [o.stdout, o.stderr].concat()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let number = text
                .split(|c: char| c.is_whitespace() || c == ',')
                .find(|w| w.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit()) && w.contains('.'));
            format!("{program} {}", number.unwrap_or("?").trim_matches(['v', '.']))
        };
        format!("{} beside {}", said("conntrackd"), said("keepalived"))
    }

    fn start(&mut self, place: &Place, lb: Lb) -> Result<()> {
        nft(&place.fabric.lb(lb), &rules())?;
        self.start_sync(place, lb)?;
        self.start_vrrp(place, lb)
    }

    fn lacks(&mut self, place: &Place, heir: Lb) -> Result<Option<String>> {
        let there = count(place, heir.other(), "internal").unwrap_or(0);
        let here = count(place, heir, "external").unwrap_or(0);
        Ok((here + SLACK < there).then(|| format!("{here} of {there} entries")))
    }

    fn give_away(&mut self, _place: &Place, lb: Lb) -> Result<()> {
        let Some(mut d) = self.vrrp[lb.index()].take() else { bail!("keepalived isn't running") };
        if !d.stop(Duration::from_secs(5)) {
            bail!("keepalived didn't stop within 5 s");
        }
        Ok(())
    }

    fn take_part(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.start_vrrp(place, lb)
    }

    fn ended(&mut self) -> Option<String> {
        let all = self.vrrp.iter_mut().chain(&mut self.sync).flatten();
        all.into_iter().find_map(|d| (!d.alive()).then(|| d.label.clone()))
    }

    fn stop(&mut self) {
        self.vrrp.iter_mut().filter_map(Option::take).for_each(keepalived::end);
        for mut d in self.sync.iter_mut().filter_map(Option::take) {
            let _else_it_is_killed = d.stop(Duration::from_secs(2));
        }
    }

    fn journal(&self, place: &Place, lb: Lb) -> Vec<String> {
        let log = place.file(&format!("{}-primary-backup.log", lb.name()));
        std::fs::read_to_string(log).context("no log").map(|t| crate::agent::last_events(&t)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_counted_by_its_own_line() {
        let said = "cache internal:\ncurrent active connections:\t\t         212\nconnections created:\t\t 230\n\n\
                    cache external:\ncurrent active connections:\t\t           7\n";
        assert_eq!((count_in(said, "internal"), count_in(said, "external")), (Some(212), Some(7)));
        assert_eq!(count_in("ERROR: connect", "internal"), None);
    }
}

//! keepalived. What it needs and does: `tests/interop/PEERS.md`.

use super::cell::{Family, Kind, Transport, VIP6, VIRTUAL_LINK_LOCAL, Version};
use super::node::{Node, Seat, tail};
use super::program::Program;
use anyhow::{Context, Result, ensure};
use holdfast_lab::fabric::{VIP, VRID, wait_for};
use holdfast_lab::process::{Proc, children, kill_pid};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::time::Duration;

/// One keepalived.
#[derive(Debug)]
pub struct Keepalived {
    seat: Seat,
    priority: u8,
    daemon: Option<Proc>,
    program: Program,
}

impl Keepalived {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// It isn't there.
    pub fn new(seat: Seat) -> Result<Self> {
        let program = Program::find("keepalived", &seat.cell)?;
        Ok(Self { priority: seat.priority, seat, daemon: None, program })
    }

    fn configure(&self) -> Result<()> {
        let seat = &self.seat;
        let interval = if seat.cell.version == Version::V2 { "1" } else { "0.1" };
        let mut t = format!("global_defs {{\n  vrrp_version {}\n  vrrp_no_swap\n}}\n", seat.version());
        if seat.cell.families.len() > 1 {
            t += "vrrp_sync_group both {\n  group {\n    web4\n    web6\n  }\n}\n";
        }
        for &family in seat.cell.families {
            let (name, addresses) = match family {
                Family::V4 => ("web4", format!("    {VIP}/32 dev eth0\n")),
                // It drops adverts whose list of addresses isn't its own, and vrrpd's begins with the address itself.
                Family::V6 if seat.cell.kind(seat.lb.other().index()) == Kind::Frr => {
                    ("web6", format!("    {VIP6}/128 dev eth0\n"))
                }
                Family::V6 => ("web6", format!("    {VIRTUAL_LINK_LOCAL}/64 dev eth0\n    {VIP6}/128 dev eth0\n")),
            };
            write!(
                t,
                "vrrp_instance {name} {{\n  state BACKUP\n  interface eth0\n  virtual_router_id {VRID}\n  \
                 priority {}\n  advert_int {interval}\n",
                self.priority
            )?;
            if family == Family::V6 {
                t += "  native_ipv6\n";
            } else if seat.cell.newer() {
                t += "  v3_checksum_as_v2\n";
            }
            if seat.cell.transport == Transport::Unicast {
                let (own, peer) = (seat.own(family), seat.peer(family));
                // Without the TTL, IPv6 adverts leave with hop limit 64 (2.2.7), which a peer must not accept by itself.
                write!(t, "  unicast_src_ip {own}\n  unicast_ttl 255\n  unicast_peer {{\n    {peer}\n  }}\n")?;
            }
            write!(t, "  virtual_ipaddress {{\n{addresses}  }}\n}}\n")?;
        }
        let file = seat.file("keepalived.conf");
        std::fs::write(&file, t).with_context(|| file.display().to_string())
    }

    fn daemon(&mut self) -> Result<&mut Proc> {
        let lb = self.seat.lb.name();
        self.daemon.as_mut().with_context(|| format!("keepalived on {lb} isn't running"))
    }
}

impl Node for Keepalived {
    fn start(&mut self) -> Result<()> {
        self.configure()?;
        let seat = &self.seat;
        let mut command = self.program.inside(&seat.ns);
        command.args(["-n", "-l", "-D", "-P", "-f"]).arg(seat.file("keepalived.conf"));
        // Newer ones lock those of processes that they don't start, too.
        for (flag, name) in [("-p", "parent.pid"), ("-r", "vrrp.pid"), ("-c", "checkers.pid"), ("-b", "bfd.pid")] {
            let file = seat.file(name);
            let _absent = std::fs::remove_file(&file);
            command.arg(flag).arg(file);
        }
        let label = format!("keepalived on {}", seat.lb.name());
        self.daemon = Some(Proc::start(label, command, &seat.file("keepalived.log"))?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("keepalived isn't running")?;
        // A host's memory is gone at once: no parent that sees its child go, no child that gives the address up.
        let _stopped = daemon.fd().signal(Signal::STOP);
        children(daemon.pid()).into_iter().for_each(|child| kill_pid(child.pid));
        daemon.kill();
        Ok(())
    }

    fn wipe(&mut self) -> Result<()> {
        self.seat.ip_anyway(&format!(
            "addr del {VIP}/32 dev eth0\naddr del {VIP6}/128 dev eth0\naddr del {VIRTUAL_LINK_LOCAL}/64 dev eth0\n"
        ))
    }

    fn stop(&mut self) -> Result<()> {
        let ended = self.daemon()?.stop(Duration::from_secs(10));
        self.daemon = None;
        ensure!(ended, "keepalived didn't stop within 10 s");
        Ok(())
    }

    /// It has no drain: maintenance is a stop.
    fn drain(&mut self) -> Result<()> {
        self.stop()
    }

    fn undrain(&mut self) -> Result<()> {
        self.start()
    }

    fn set_priority(&mut self, priority: u8) -> Result<()> {
        self.priority = priority;
        self.configure()?;
        self.daemon()?.fd().signal(Signal::HUP)?;
        Ok(())
    }

    fn complaint(&mut self) -> Result<Option<String>> {
        let alive = self.daemon()?.alive();
        ensure!(alive, "keepalived on {} has died", self.seat.lb.name());
        let log = std::fs::read_to_string(self.seat.file("keepalived.log")).unwrap_or_default();
        let bad = ["nvalid", "hecksum", "mismatch", "exited due to signal"];
        // One of ours that starts cold can't know yet which checksum is understood here: it learns it from an answer.
        let cold = |line: &str| !self.seat.cell.newer() && self.seat.cell.mixed() && line.contains("VRRPv3 checksum");
        let complaint = log.lines().find(|l| bad.iter().any(|b| l.contains(b)) && !cold(l));
        Ok(complaint.map(|l| format!("keepalived says: {l}")))
    }

    fn logs(&self) -> String {
        tail(&self.seat.file("keepalived.log"), 40)
    }
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.stop(Duration::from_secs(2));
        }
        let gone = || Ok(self.seat.ns.pids().is_empty());
        let _left = wait_for(Duration::from_millis(200), Duration::from_millis(10), gone);
    }
}

//! FRR's vrrpd, with the zebra it needs. What it needs and does: `tests/interop/PEERS.md`.

use super::cell::{Family, VIP6};
use super::node::{Node, Seat, tail};
use super::program::Program;
use anyhow::{Context, Result, ensure};
use holdfast_lab::fabric::{VIP, VRID, wait_for};
use holdfast_lab::process::Proc;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[derive(Debug)]
struct Programs {
    zebra: Program,
    vrrpd: Program,
    vtysh: Program,
}

/// One vrrpd.
#[derive(Debug)]
pub struct Frr {
    seat: Seat,
    priority: u8,
    zebra: Option<Proc>,
    vrrpd: Option<Proc>,
    /// Its files and sockets: they belong to FRR's own user, so no other file may lie there.
    home: PathBuf,
    programs: Programs,
}

impl Frr {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// It isn't installed, or its directory can't be made.
    pub fn new(seat: Seat) -> Result<Self> {
        let [zebra, vrrpd, vtysh] = ["zebra", "vrrpd", "vtysh"].map(|name| Program::find(name, &seat.cell));
        let programs = Programs { zebra: zebra?, vrrpd: vrrpd?, vtysh: vtysh? };
        // The virtual addresses stay on this host while it is Backup, on interfaces that are down. Linux answers ARP
        // for any address of the host on any interface unless told otherwise, so a Backup would answer from eth0.
        seat.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
        seat.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
        let home = seat.file("frr");
        std::fs::create_dir_all(&home)?;
        Ok(Self { priority: seat.priority, seat, zebra: None, vrrpd: None, home, programs })
    }

    /// The interfaces that carry the virtual addresses: an administrator makes them, vrrpd finds them by their MAC.
    /// They are born with `protodown`, else they answer until vrrpd has found them.
    fn interfaces(&self) -> Result<()> {
        let mut lines = String::new();
        for family in self.seat.cell.families {
            let (dev, middle, address) = match family {
                Family::V4 => ("vrrp4", 1, format!("{VIP}/24")),
                Family::V6 => ("vrrp6", 2, format!("{VIP6}/64")),
            };
            write!(
                lines,
                "link add {dev} link eth0 address 00:00:5e:00:{middle:02x}:{VRID:02x} type macvlan mode bridge\n\
                 link set dev {dev} addrgenmode random\naddr add {address} dev {dev}\n\
                 link set dev {dev} protodown on\nlink set dev {dev} up\n"
            )?;
        }
        self.wipe_interfaces()?;
        self.seat.ip(&lines)
    }

    fn wipe_interfaces(&self) -> Result<()> {
        self.seat.ip_anyway("link del vrrp4\nlink del vrrp6\n")
    }

    fn configure(&self) -> Result<()> {
        let mut t = format!(
            "debug vrrp protocol\ninterface eth0\n vrrp {VRID} version {}\n vrrp {VRID} priority {}\n \
             vrrp {VRID} advertisement-interval {}\n",
            self.seat.version(),
            self.priority,
            self.seat.cell.interval().as_millis()
        );
        if self.seat.cell.newer() {
            writeln!(t, " no vrrp {VRID} checksum-with-ipv4-pseudoheader")?;
        }
        for family in self.seat.cell.families {
            match family {
                Family::V4 => writeln!(t, " vrrp {VRID} ip {VIP}")?,
                Family::V6 => writeln!(t, " vrrp {VRID} ipv6 {VIP6}")?,
            }
        }
        std::fs::write(self.home.join("vrrpd.conf"), t)?;
        std::fs::write(self.home.join("zebra.conf"), format!("hostname {}\n", self.seat.lb.name()))?;
        let owned = Command::new("chown").args(["-R", "frr:frr"]).arg(&self.home).output().context("run chown")?;
        ensure!(owned.status.success(), "chown: {}", crate::said(&owned));
        Ok(())
    }

    fn daemon(&self, name: &str, program: &Program) -> Result<Proc> {
        let mut command = program.inside(&self.seat.ns);
        for (flag, file) in [("-f", format!("{name}.conf")), ("-i", format!("{name}.pid")), ("-z", "zserv".into())] {
            command.arg(flag).arg(self.home.join(file));
        }
        // Port 0: no listening TCP socket.
        command.arg("--vty_socket").arg(&self.home).args(["-P", "0", "--log-level", "debug", "--log"]);
        command.arg(format!("file:{}", self.home.join(format!("{name}.log")).display()));
        Proc::start(format!("{name} on {}", self.seat.lb.name()), command, &self.seat.file(&format!("{name}.out")))
    }

    fn configure_live(&self, line: &str) -> Result<()> {
        let interface = self.vtysh(&["configure terminal", "interface eth0", line])?;
        ensure!(!interface.contains('%'), "vtysh: {line}: {interface}");
        Ok(())
    }

    fn vtysh(&self, lines: &[&str]) -> Result<String> {
        let mut command = self.programs.vtysh.command();
        command.arg("--vty_socket").arg(&self.home);
        lines.iter().for_each(|line| {
            command.args(["-c", line]);
        });
        crate::checked("vtysh", &command.output().context("run vtysh")?)
    }

    fn appears(&self, file: &str) -> Result<()> {
        let path = self.home.join(file);
        let there = wait_for(Duration::from_secs(10), Duration::from_millis(10), || Ok(path.exists()))?;
        ensure!(there, "frr on {}: no {file} within 10 s\n{}", self.seat.lb.name(), self.logs());
        Ok(())
    }
}

impl Node for Frr {
    fn start(&mut self) -> Result<()> {
        self.interfaces()?;
        self.configure()?;
        for socket in ["zserv", "vrrpd.vty", "zebra.vty"] {
            let _absent = std::fs::remove_file(self.home.join(socket));
        }
        self.zebra = Some(self.daemon("zebra", &self.programs.zebra)?);
        self.appears("zserv")?;
        self.vrrpd = Some(self.daemon("vrrpd", &self.programs.vrrpd)?);
        self.appears("vrrpd.vty")
    }

    fn kill(&mut self) -> Result<()> {
        for daemon in [&mut self.vrrpd, &mut self.zebra] {
            daemon.take().context("frr isn't running")?.kill();
        }
        Ok(())
    }

    fn wipe(&mut self) -> Result<()> {
        self.wipe_interfaces()
    }

    fn stop(&mut self) -> Result<()> {
        for daemon in [&mut self.vrrpd, &mut self.zebra] {
            let ended = daemon.take().context("frr isn't running")?.stop(Duration::from_secs(10));
            ensure!(ended, "frr didn't stop within 10 s");
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.configure_live(&format!("vrrp {VRID} shutdown"))
    }

    fn undrain(&mut self) -> Result<()> {
        self.configure_live(&format!("no vrrp {VRID} shutdown"))
    }

    fn set_priority(&mut self, priority: u8) -> Result<()> {
        self.priority = priority;
        self.configure_live(&format!("vrrp {VRID} priority {priority}"))
    }

    fn complaint(&mut self) -> Result<Option<String>> {
        for daemon in [&mut self.vrrpd, &mut self.zebra] {
            let alive = daemon.as_mut().context("frr isn't running")?.alive();
            ensure!(alive, "frr on {} has died", self.seat.lb.name());
        }
        let log = std::fs::read_to_string(self.home.join("vrrpd.log")).unwrap_or_default();
        let bad = ["Invalid", "invalid", "Bad checksum", "mismatch", "datagram"];
        let complaint = log.lines().find(|l| bad.iter().any(|b| l.contains(b)));
        Ok(complaint.map(|l| format!("vrrpd says: {l}")))
    }

    fn logs(&self) -> String {
        let said = |name: &str| tail(&self.seat.file(&format!("{name}.out")), 5);
        format!("{}{}{}", tail(&self.home.join("vrrpd.log"), 30), said("vrrpd"), said("zebra"))
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        for daemon in [&mut self.vrrpd, &mut self.zebra].into_iter().flatten() {
            daemon.stop(Duration::from_secs(2));
        }
    }
}

//! Ours, as an operator has it: a file, a program, its commands.

use super::cell::{Checksum, Family, Kind, Transport, VIP6, Version};
use super::node::{Node, Seat, tail};
use super::scenario::{HIGH, LOW, LOWEST};
use crate::agent::Agent;
use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::fabric::{VIP, VRID, wait_for};
use holdfast_lab::process::{children, kill_pid};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// One agent.
#[derive(Debug)]
pub struct Holdfast {
    seat: Seat,
    agent: Option<Agent>,
}

impl Holdfast {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// There is no binary.
    pub fn new(seat: Seat) -> Result<Self> {
        crate::holdfast()?;
        Ok(Self { seat, agent: None })
    }

    fn config(&self) -> Result<String> {
        let seat = &self.seat;
        let addresses: Vec<String> = seat
            .cell
            .families
            .iter()
            .map(|family| match family {
                Family::V4 => format!("\"{VIP}/32\""),
                Family::V6 => format!("\"{VIP6}/128\""),
            })
            .collect();
        let mut vrrp = format!(
            "interface = \"eth0\", vrid = {VRID}, priority = {}, interval = \"{}ms\"",
            seat.priority,
            seat.cell.interval().as_millis()
        );
        if seat.cell.version == Version::V2 {
            vrrp += ", version = 2";
        }
        if seat.cell.transport == Transport::Unicast {
            let peers: Vec<String> = seat.cell.families.iter().map(|&f| format!("\"{}\"", seat.peer(f))).collect();
            write!(vrrp, ", peers = [{}]", peers.join(", "))?;
        }
        let mut t = format!("[node]\nname = \"{}\"\n\n", seat.lb.name());
        let mut track = String::new();
        if seat.priority == HIGH {
            // Its priority changes while it runs when something that it tracks with a weight does.
            write!(vrrp, ", rivals = [{LOW}]")?;
            write!(
                t,
                "[[check]]\nname = \"wish\"\nexec = [\"/usr/bin/test\", \"!\", \"-e\", \"{}\"]\ninterval = \"300ms\"\n\
                 fast_interval = \"300ms\"\ntimeout = \"300ms\"\nfall = 1\nrise = 1\n\n",
                self.wish().display()
            )?;
            let weight = i16::from(LOWEST) - i16::from(HIGH);
            track = format!("checks = []\ntrack = [{{ check = \"wish\", weight = {weight} }}]\n");
        }
        write!(t, "[[vip]]\nname = \"web\"\naddresses = [{}]\nvrrp = {{ {vrrp} }}\n{track}", addresses.join(", "))?;
        Ok(t)
    }

    /// The priority is low while this file is there.
    fn wish(&self) -> PathBuf {
        self.seat.file("low-priority")
    }

    fn agent(&mut self) -> Result<&mut Agent> {
        let lb = self.seat.lb.name();
        self.agent.as_mut().with_context(|| format!("the agent on {lb} isn't running"))
    }

    fn client(&mut self, words: &[&str]) -> Result<String> {
        let output = self.agent()?.client(words)?;
        crate::checked(&format!("holdfast {}", words.join(" ")), &output)
    }
}

impl Node for Holdfast {
    fn start(&mut self) -> Result<()> {
        let toml = self.config()?;
        self.agent = Some(Agent::start_with(&self.seat.ns, self.seat.lb, &self.seat.directory, &toml)?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        self.agent.take().context("the agent isn't running")?.kill();
        Ok(())
    }

    fn wipe(&mut self) -> Result<()> {
        self.seat.ip_anyway(&format!("addr del {VIP}/32 dev eth0\naddr del {VIP6}/128 dev eth0\n"))
    }

    fn stop(&mut self) -> Result<()> {
        let mut agent = self.agent.take().context("the agent isn't running")?;
        ensure!(agent.keeper.stop(Duration::from_secs(10)), "the agent didn't stop within 10 s");
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.client(&["drain", "--reason", "interop"]).map(|_| ())
    }

    fn undrain(&mut self) -> Result<()> {
        self.client(&["undrain"]).map(|_| ())
    }

    fn set_priority(&mut self, priority: u8) -> Result<()> {
        match priority {
            LOWEST => std::fs::write(self.wish(), "")?,
            HIGH => std::fs::remove_file(self.wish())?,
            other => bail!("its configuration knows {HIGH} and {LOWEST}, not {other}"),
        }
        Ok(())
    }

    fn crash(&mut self) -> Result<()> {
        let keeper = self.agent()?.keeper.pid();
        let worker = || children(keeper).into_iter().find(|child| child.comm.starts_with("holdfast")).map(|c| c.pid);
        let old = worker().context("the keeper has a worker")?;
        kill_pid(old);
        let agent = self.agent()?;
        let again = wait_for(Duration::from_secs(10), Duration::from_millis(10), || {
            let new = worker().is_some_and(|new| new != old);
            Ok(new && agent.state().is_ok_and(|state| state == "active" || state == "backup"))
        })?;
        ensure!(again, "no worker takes part within 10 s of the crash");
        // A peer that doesn't understand what the new one sends shows only now.
        std::thread::sleep(self.seat.cell.down_time(LOW) + self.seat.cell.interval());
        Ok(())
    }

    fn complaint(&mut self) -> Result<Option<String>> {
        let cell = self.seat.cell;
        let peer = cell.kind(self.seat.lb.other().index());
        let counters = self.agent()?.status()?["counters"].clone();
        let counter = |name: &str| counters[name].as_u64().unwrap_or(0);
        if counter("adverts_refused") > 0 {
            return Ok(Some(format!("the agent refused adverts: {counters}")));
        }
        // Only a peer's version 3 adverts for IPv4 have a choice.
        let choice = cell.version == Version::V3 && cell.families == [Family::V4] && peer != Kind::Holdfast;
        let pseudo = counter("adverts_checksum_pseudo_header");
        let expected = cell.checksum == Checksum::PseudoHeader;
        if choice && counter("adverts_received") > 0 && (pseudo > 0) != expected {
            return Ok(Some(format!("the peer should send {:?} checksums: {counters}", cell.checksum)));
        }
        Ok(None)
    }

    fn logs(&self) -> String {
        let log = tail(&self.seat.file("holdfast.log"), 20);
        let Some(agent) = &self.agent else { return log };
        let said = |words: &[&str]| agent.client(words).map(|o| crate::said(&o)).unwrap_or_default();
        let events = said(&["events"]);
        let lines: Vec<&str> = events.lines().collect();
        let last = lines.get(lines.len().saturating_sub(25)..).unwrap_or_default().join("\n");
        format!("{log}--- status\n{}--- events\n{last}\n", said(&["status"]))
    }
}

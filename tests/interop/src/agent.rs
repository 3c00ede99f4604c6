//! One agent in a namespace of the fabric, with a file system that it shares with all others.

use crate::{checked, holdfast};
use anyhow::{Context, Result, bail};
use holdfast_lab::fabric::{Fabric, Lb, VIP, VRID, wait_for};
use holdfast_lab::netns::Netns;
use holdfast_lab::process::{Proc, children, kill_pid};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(20);

/// The agent, running.
#[derive(Debug)]
pub struct Agent {
    /// Its keeper.
    pub keeper: Proc,
    program: PathBuf,
    ns: Netns,
    places: Vec<String>,
}

impl Agent {
    /// Starts one on `lb` with the lab's VIP at 100 ms and nothing to look after: what it says of the segment is all
    /// that counts.
    ///
    /// # Errors
    /// There is no binary, or it doesn't answer within 10 s.
    pub fn start(fabric: &Fabric, lb: Lb, priority: u8) -> Result<Self> {
        let toml = format!(
            "[node]\nname = \"{}\"\n\n[[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\n\
             vrrp = {{ interface = \"eth0\", vrid = {VRID}, priority = {priority}, interval = \"100ms\" }}\n",
            lb.name()
        );
        Self::start_with(&fabric.lb(lb), lb, fabric.directory(), &toml)
    }

    /// Starts one with that configuration; its files lie in `directory` with the host's name first.
    ///
    /// # Errors
    /// There is no binary, or it doesn't answer within 10 s.
    pub fn start_with(ns: &Netns, lb: Lb, directory: &Path, toml: &str) -> Result<Self> {
        let program = holdfast()?;
        let path = |what: &str| directory.join(format!("{}-{what}", lb.name())).display().to_string();
        std::fs::write(path("holdfast.toml"), toml)?;
        let [config, run, state] = ["holdfast.toml", "run", "state"].map(path);
        let places = ["--config", &config, "--runtime-dir", &run, "--state-dir", &state].map(str::to_owned).to_vec();
        let ns = ns.clone();
        let mut command = ns.command(&program);
        command.arg("run").args(&places);
        let keeper = Proc::start("holdfast", command, path("holdfast.log").as_ref())?;
        let agent = Self { keeper, program, ns, places };
        let up = wait_for(Duration::from_secs(10), STEP, || Ok(agent.status().is_ok()))?;
        if !up {
            bail!("no answer from the agent: {}", std::fs::read_to_string(agent.keeper.log()).unwrap_or_default());
        }
        Ok(agent)
    }

    /// SIGKILL for the keeper and all that it started, as at once: none sees another go.
    pub fn kill(mut self) {
        let _stopped = self.keeper.fd().signal(Signal::STOP);
        children(self.keeper.pid()).into_iter().for_each(|child| kill_pid(child.pid));
        self.keeper.kill();
    }

    /// Runs a client command.
    ///
    /// # Errors
    /// It can't be started.
    pub fn client(&self, words: &[&str]) -> Result<Output> {
        let mut command: Command = self.ns.command(&self.program);
        command.args(words).args(&self.places).output().context("run the client")
    }

    /// `holdfast status --json`.
    ///
    /// # Errors
    /// No answer.
    pub fn status(&self) -> Result<Value> {
        let output = self.client(&["status", "--json"])?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).with_context(|| format!("status: {}", crate::said(&output)))
    }

    /// The VIP's state: `active`, `backup`, …
    ///
    /// # Errors
    /// No answer.
    pub fn state(&self) -> Result<String> {
        Ok(self.status()?["vips"][0]["state"].as_str().unwrap_or_default().to_owned())
    }

    /// One of the counters; 0 until it is first counted.
    ///
    /// # Errors
    /// No answer.
    pub fn counter(&self, name: &str) -> Result<u64> {
        Ok(self.status()?["counters"][name].as_u64().unwrap_or(0))
    }

    /// Waits until the VIP's state is `state`.
    ///
    /// # Errors
    /// It isn't within `limit`; the text has the status and the events.
    pub fn becomes(&self, state: &str, limit: Duration) -> Result<()> {
        if wait_for(limit, STEP, || Ok(self.state()? == state))? {
            return Ok(());
        }
        let status = crate::said(&self.client(&["status"])?);
        bail!("not {state} within {limit:?}:\n{status}\n{}", crate::said(&self.client(&["events"])?));
    }

    /// The lines of `holdfast events`.
    ///
    /// # Errors
    /// No answer.
    pub fn events(&self) -> Result<String> {
        checked("holdfast events", &self.client(&["events"])?)
    }
}

/// The MACs that answer ARP requests for `ip` on the client's segment, asked by broadcast from the observer.
///
/// # Errors
/// `arping` can't be started.
pub fn answerers(fabric: &Fabric, ip: &str) -> Result<BTreeSet<String>> {
    let mut arping = fabric.ns("obs").command("arping");
    let output = arping.args(["-b", "-c", "3", "-w", "2", "-I", "eth0", ip]).output().context("run arping")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split('[').skip(1).filter_map(|rest| Some(rest.split_once(']')?.0.to_lowercase())).collect())
}

//! The one agent: its configuration, its processes, and what it says of itself.

use crate::agent;
use crate::bgp::net::{Net, Node, ROUTER};
use crate::bgp::router::{NODE_AS, ROUTER_AS};
use crate::process::{Proc, tail};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whose agent it is.
pub(super) const NODE: Node = Node(0);

/// A running agent; ended in order when dropped.
#[derive(Debug)]
pub(super) struct Agent {
    binary: PathBuf,
    daemon: Option<Proc>,
}

/// Its configuration but for VIPs and checks: a balancer that only has to live, and one neighbour.
fn base() -> String {
    format!(
        "[node]\nname = \"lb1\"\n\n[[balancer]]\nname = \"b\"\nkind = \"process\"\n\
         command = [\"/usr/bin/sleep\", \"100000\"]\n\n[bgp]\nasn = {NODE_AS}\nrouter_id = \"{}\"\n\n\
         [[bgp.neighbor]]\nname = \"rt\"\naddress = \"{ROUTER}\"\nasn = {ROUTER_AS}\nhold_time = \"9s\"\n\
         connect_retry = \"1s\"\n",
        NODE.front()
    )
}

impl Agent {
    /// Not started yet.
    pub(super) fn new(binary: &Path) -> Self {
        Self { binary: binary.to_owned(), daemon: None }
    }

    /// Starts it with those VIPs and checks.
    pub(super) fn start(&mut self, net: &Net, more: &str) -> Result<()> {
        for d in ["run", "state"] {
            std::fs::create_dir_all(net.file(d))?;
        }
        std::fs::write(net.file("holdfast.toml"), base() + more)?;
        let mut c = net.node(NODE).command(&self.binary);
        c.arg("run").args(places(net));
        self.daemon = Some(Proc::start("holdfast", c, &net.file("holdfast.log"))?);
        Ok(())
    }

    /// SIGTERM, and until it has ended.
    pub(super) fn stop(&mut self) -> Result<()> {
        let Some(mut d) = self.daemon.take() else { return Ok(()) };
        if !d.stop(Duration::from_secs(20)) {
            bail!("the agent didn't end within 20 s of SIGTERM");
        }
        Ok(())
    }

    fn keeper(&self) -> Result<i32> {
        Ok(self.daemon.as_ref().context("the agent isn't running")?.pid())
    }

    /// The worker's pid.
    pub(super) fn worker(&self) -> Result<i32> {
        agent::worker_of(self.keeper()?)
    }

    /// The balancer's pid.
    pub(super) fn balancer(&self) -> Result<i32> {
        let all = crate::process::children(self.keeper()?);
        Ok(all.into_iter().find(|s| s.comm == "sleep").context("the agent has no balancer")?.pid)
    }

    /// What a client command of it says, as JSON.
    pub(super) fn ask(&self, net: &Net, words: &[&str]) -> Result<Value> {
        let mut c = net.node(NODE).command(&self.binary);
        c.args(words).arg("--json").args(places(net));
        let out = c.output().context("run the client")?;
        serde_json::from_slice(&out.stdout)
            .with_context(|| format!("holdfast {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
    }

    /// The last of its events and of its log.
    pub(super) fn told(&self, net: &Net) -> String {
        let mut c = net.node(NODE).command(&self.binary);
        c.arg("events").args(places(net));
        let said = c.output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let events: String = agent::last_events(&said).iter().map(|l| format!("    {l}\n")).collect();
        format!("{events}{}", tail(&net.file("holdfast.log"), 10))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _late = self.stop();
    }
}

fn places(net: &Net) -> Vec<String> {
    let [config, run, state] = ["holdfast.toml", "run", "state"].map(|f| net.file(f).to_string_lossy().into_owned());
    ["--config", &config, "--runtime-dir", &run, "--state-dir", &state].map(str::to_owned).into()
}

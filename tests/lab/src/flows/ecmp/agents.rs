//! Holdfast on each node: the VIP by BGP, an embedded balancer that translates to the node's own address, and all of these
//! addresses as VRRP VIPs of which each node prefers its own.

use super::net::{BACKEND_PORT, PORT, snat};
use crate::agent;
use crate::bgp::net::{BACKENDS, Net, Node, ROUTER, VIP};
use crate::bgp::router::{Bfd, NODE_AS, ROUTER_AS};
use crate::flows::pair::Sync;
use crate::process::{Proc, kill_pid};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// BFD of all sessions: who is gone is no next hop after 150 ms.
pub const BFD: Bfd = Bfd { interval_ms: 50, multiplier: 3 };
/// The sessions' hold time, s.
pub const HOLD_S: u16 = 9;
/// How often a drain that is refused for now is tried, and the pause between.
const DRAIN_TRIES: usize = 20;
const DRAIN_PAUSE: Duration = Duration::from_millis(100);

/// The agents.
#[derive(Debug)]
pub struct Agents {
    binary: PathBuf,
    replicates: bool,
    daemons: BTreeMap<Node, Proc>,
    keys: BTreeMap<Node, String>,
}

impl Agents {
    /// Agents from the program at `binary`.
    #[must_use]
    pub fn new(binary: PathBuf, sync: Sync) -> Self {
        let replicates = sync == Sync::Holdfast;
        Self { binary, replicates, daemons: BTreeMap::new(), keys: BTreeMap::new() }
    }

    /// Name and version.
    #[must_use]
    pub fn version(&self) -> String {
        let what = if self.replicates { "" } else { " without [statesync]" };
        format!("{}{what}", agent::version(&self.binary))
    }

    fn configuration(&self, net: &Net, node: Node) -> Result<String> {
        let backends = BACKENDS.map(|ip| format!("\"{}\"", SocketAddr::new(ip.into(), BACKEND_PORT))).join(", ");
        let mut t = format!(
            "[node]\nname = \"{}\"\n\n[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n\n\
             [[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\nchecks = []\nbgp = {{}}\n\n\
             [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = {PORT}\nbackends = [{backends}]\n\
             mode = \"snat\"\nsnat = [\"{}\"]\ncheck = false\n\n\
             [bgp]\nasn = {NODE_AS}\nrouter_id = \"{}\"\n\n\
             [[bgp.neighbor]]\nname = \"rt\"\naddress = \"{ROUTER}\"\nasn = {ROUTER_AS}\nhold_time = \"{HOLD_S}s\"\n\
             connect_retry = \"1s\"\nbfd = {{ interval = \"{}ms\", multiplier = {} }}\n\n",
            node.name(),
            snat(node),
            node.front(),
            BFD.interval_ms,
            BFD.multiplier,
        );
        let nodes: Vec<Node> = net.nodes().collect();
        for of in &nodes {
            // Its own first, then the next one's, and so on around.
            let away = (node.0 + nodes.len() - of.0) % nodes.len();
            t += &format!(
                "[[vip]]\nname = \"inside{}\"\naddresses = [\"{}/32\"]\nchecks = []\n\
                 vrrp = {{ interface = \"eth1\", vrid = {}, priority = {}, interval = \"100ms\" }}\n\n",
                of.0 + 1,
                snat(*of),
                of.0 + 1,
                254 - 40 * away
            );
        }
        t += &format!(
            "[cluster]\nlisten = \"{}:7712\"\nkey_file = \"{}\"\n\n",
            node.channel(),
            key_file(net, node).display()
        );
        for p in nodes.iter().filter(|p| **p != node) {
            t += &format!(
                "[[cluster.peer]]\nname = \"{}\"\naddress = \"{}:7712\"\npublic_keys = [\"{}\"]\n\n",
                p.name(),
                p.channel(),
                self.keys.get(p).context("every node has a key")?
            );
        }
        if self.replicates {
            t += "[statesync]\nvips = [\"web\"]\n";
        }
        Ok(t)
    }

    /// Starts it on `node`, which has nothing of it yet: at the start, or when its power is back.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(&mut self, net: &Net, node: Node) -> Result<()> {
        for n in net.nodes().filter(|_| self.keys.is_empty()).collect::<Vec<_>>() {
            let key = agent::keygen(&self.binary, &key_file(net, n))?;
            self.keys.insert(n, key);
        }
        let file = |what: &str| net.file(&format!("{}-{what}", node.name()));
        // What is below /run doesn't outlive a host.
        let _absent = std::fs::remove_dir_all(file("run"));
        for d in ["run", "state"] {
            std::fs::create_dir_all(file(d))?;
        }
        std::fs::write(file("holdfast.toml"), self.configuration(net, node)?)?;
        let mut c = net.node(node).command(&self.binary);
        c.arg("run").args(places(net, node));
        self.daemons.insert(node, Proc::start(format!("holdfast on {}", node.name()), c, &file("holdfast.log"))?);
        Ok(())
    }

    /// What `holdfast WORDS` says there.
    ///
    /// # Errors
    /// Another exit code than 0.
    pub fn client(&self, net: &Net, node: Node, words: &[&str]) -> Result<String> {
        let mut c = net.node(node).command(&self.binary);
        c.args(words).args(places(net, node));
        agent::checked(c.output().context("run the client")?, &format!("holdfast {}", words.join(" ")))
    }

    /// Takes `node` out in order; returns when that is done.
    ///
    /// # Errors
    /// It was refused or failed.
    pub fn drain(&self, net: &Net, node: Node) -> Result<()> {
        for _ in 1..DRAIN_TRIES {
            match self.client(net, node, &["drain", "--reason", "drill"]) {
                Err(e) if e.to_string().contains("exit 10") => std::thread::sleep(DRAIN_PAUSE),
                other => return other.map(|_| ()),
            }
        }
        self.client(net, node, &["drain", "--reason", "drill"]).map(|_| ())
    }

    /// Lets it take part again.
    ///
    /// # Errors
    /// It was refused.
    pub fn undrain(&self, net: &Net, node: Node) -> Result<()> {
        self.client(net, node, &["undrain"]).map(|_| ())
    }

    /// The p99 of replication's lag as the agents measured it, the largest, ms; `None`: nobody has one.
    #[must_use]
    pub fn lag_p99_ms(&self, net: &Net) -> Option<f64> {
        let of = |n: Node| {
            let said = self.client(net, n, &["peers", "--json"]).ok()?;
            let all: serde_json::Value = serde_json::from_str(&said).ok()?;
            let mut found = Vec::new();
            lags(&all, &mut found);
            found.into_iter().max()
        };
        let worst = net.nodes().filter_map(of).max()?;
        Some(worst as f64 / 1000.0)
    }

    /// It was killed: that it has ended is no news.
    pub fn is_dead(&mut self, node: Node) {
        self.daemons.remove(&node);
    }

    /// A program that should run and has ended, by name.
    pub fn ended(&mut self) -> Option<String> {
        self.daemons.values_mut().find_map(|d| (!d.alive()).then(|| d.label.clone()))
    }

    /// Its own account of what happened on `node`.
    #[must_use]
    pub fn journal(&self, net: &Net, node: Node) -> Vec<String> {
        agent::last_events(&self.client(net, node, &["events"]).unwrap_or_else(|e| format!("{e:#}")))
    }

    /// Ends all of them.
    pub fn stop(&mut self, net: &Net) {
        for (node, mut d) in std::mem::take(&mut self.daemons) {
            if !d.stop(Duration::from_secs(5)) {
                net.node(node).pids().into_iter().for_each(kill_pid);
            }
        }
    }
}

/// Every `p99_us` in it.
fn lags(v: &serde_json::Value, found: &mut Vec<u64>) {
    match v {
        serde_json::Value::Object(o) => {
            found.extend(o.get("p99_us").and_then(serde_json::Value::as_u64));
            o.values().for_each(|v| lags(v, found));
        }
        serde_json::Value::Array(a) => a.iter().for_each(|v| lags(v, found)),
        _ => {}
    }
}

/// `--config`, `--runtime-dir` and `--state-dir`.
fn places(net: &Net, node: Node) -> Vec<String> {
    let path = |what: &str| net.file(&format!("{}-{what}", node.name())).to_string_lossy().into_owned();
    let [config, run, state] = ["holdfast.toml", "run", "state"].map(path);
    ["--config", &config, "--runtime-dir", &run, "--state-dir", &state].map(str::to_owned).into()
}

fn key_file(net: &Net, node: Node) -> PathBuf {
    net.file(&format!("{}-node.key", node.name()))
}

//! Holdfast: an agent per node, HAProxy started by the agent, the peers' channel beside.

use super::{Fault, Place, Speaker, haproxy};
use crate::agent;
use crate::bgp::net::{Node, ROUTER, VIP};
use crate::bgp::router::{NODE_AS, ROUTER_AS};
use crate::clock::{Ns, now};
use crate::fabric::wait_for;
use crate::process::{Proc, Stat};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The agents.
#[derive(Debug)]
pub struct Holdfast {
    binary: PathBuf,
    daemons: BTreeMap<Node, Proc>,
    /// Public keys of the nodes.
    keys: BTreeMap<Node, String>,
}

impl Holdfast {
    /// Agents from the program at `binary`.
    #[must_use]
    pub fn new(binary: PathBuf) -> Self {
        Self { binary, daemons: BTreeMap::new(), keys: BTreeMap::new() }
    }

    /// `--config`, `--runtime-dir` and `--state-dir` of `node`.
    fn places(place: &Place, node: Node) -> Vec<String> {
        let path = |what: &str| place.net.file(&format!("{}-{what}", node.name())).to_string_lossy().into_owned();
        let [config, run, state] = ["holdfast.toml", "run", "state"].map(path);
        ["--config", &config, "--runtime-dir", &run, "--state-dir", &state].map(str::to_owned).into()
    }

    fn keygen(&mut self, place: &Place) -> Result<()> {
        for n in place.net.nodes().filter(|_| self.keys.is_empty()).collect::<Vec<_>>() {
            self.keys.insert(n, agent::keygen(&self.binary, &key_file(place, n))?);
        }
        Ok(())
    }

    fn config(&self, place: &Place, node: Node) -> Result<String> {
        let argv: Vec<String> = haproxy(&place.net, node)?.iter().map(|a| format!("{a:?}")).collect();
        let mut t = format!(
            "[node]\nname = \"{}\"\n\n[[balancer]]\nname = \"haproxy\"\nkind = \"haproxy\"\ncommand = [{}]\n\n\
             [[check]]\nname = \"web\"\nhttp = \"http://127.0.0.1:80/healthz\"\ninterval = \"100ms\"\n\
             fast_interval = \"100ms\"\ntimeout = \"100ms\"\nfall = 2\nrise = 2\n\n\
             [[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\nbgp = {{}}\n\n\
             [bgp]\nasn = {NODE_AS}\nrouter_id = \"{}\"\n\n\
             [[bgp.neighbor]]\nname = \"rt\"\naddress = \"{ROUTER}\"\nasn = {ROUTER_AS}\nhold_time = \"{}s\"\n\
             connect_retry = \"1s\"\n",
            node.name(),
            argv.join(", "),
            node.front(),
            place.hold_s
        );
        if let Some(b) = place.bfd {
            t += &format!("bfd = {{ interval = \"{}ms\", multiplier = {} }}\n", b.interval_ms, b.multiplier);
        }
        let peers: Vec<Node> = place.net.nodes().filter(|n| *n != node).collect();
        if !peers.is_empty() {
            t += &format!(
                "\n[cluster]\nlisten = \"{}:7712\"\nkey_file = \"{}\"\n",
                node.channel(),
                key_file(place, node).display()
            );
        }
        for p in peers {
            t += &format!(
                "\n[[cluster.peer]]\nname = \"{}\"\naddress = \"{}:7712\"\npublic_keys = [\"{}\"]\n",
                p.name(),
                p.channel(),
                self.keys.get(&p).context("every node has a key")?
            );
        }
        Ok(t)
    }

    fn client(&self, place: &Place, node: Node, words: &[&str]) -> Result<String> {
        let mut c = place.net.node(node).command(&self.binary);
        c.args(words).args(Self::places(place, node));
        agent::checked(c.output().context("run the client")?, &format!("holdfast {}", words.join(" ")))
    }

    fn keeper(&self, node: Node) -> Result<i32> {
        Ok(self.daemons.get(&node).context("the agent isn't running")?.pid())
    }
}

fn key_file(place: &Place, node: Node) -> PathBuf {
    place.net.file(&format!("{}-node.key", node.name()))
}

impl Speaker for Holdfast {
    fn version(&self) -> String {
        agent::version(&self.binary)
    }

    fn lacks(&self, _fault: Fault) -> Option<String> {
        None
    }

    fn start(&mut self, place: &Place, node: Node) -> Result<()> {
        self.keygen(place)?;
        for d in ["run", "state"] {
            std::fs::create_dir_all(place.net.file(&format!("{}-{d}", node.name())))?;
        }
        let toml = self.config(place, node)?;
        std::fs::write(place.net.file(&format!("{}-holdfast.toml", node.name())), toml)?;
        let mut c = place.net.node(node).command(&self.binary);
        c.arg("run").args(Self::places(place, node));
        let log = place.net.file(&format!("{}-holdfast.log", node.name()));
        self.daemons.insert(node, Proc::start(format!("holdfast on {}", node.name()), c, &log)?);
        Ok(())
    }

    fn balancer(&self, place: &Place, node: Node) -> Result<i32> {
        let pids = place.net.node(node).pids();
        let found = pids.into_iter().find(|&p| Stat::of(p).is_some_and(|s| s.comm == "haproxy" && s.alive()));
        found.with_context(|| format!("no haproxy on {}", node.name()))
    }

    fn worker(&self, node: Node) -> Result<i32> {
        agent::worker_of(self.keeper(node)?)
    }

    fn upgrade(&mut self, place: &Place, node: Node) -> Result<Ns> {
        let former = self.worker(node)?;
        let t = now();
        self.client(place, node, &["upgrade"])?;
        match self.worker(node)? {
            pid if pid == former => bail!("the worker is still {pid}"),
            _ => Ok(t),
        }
    }

    fn mend_balancer(&mut self, place: &Place, node: Node) -> Result<()> {
        // The agent's own business; here we only wait for it.
        let back = || Ok(self.balancer(place, node).is_ok());
        if !wait_for(Duration::from_secs(20), Duration::from_millis(20), back)? {
            bail!("the agent didn't start the balancer again within 20 s");
        }
        Ok(())
    }

    fn drain(&mut self, place: &Place, node: Node) -> Result<Ns> {
        let t = now();
        self.client(place, node, &["drain", "--reason", "drill"])?;
        Ok(t)
    }

    fn undrain(&mut self, place: &Place, node: Node) -> Result<()> {
        self.client(place, node, &["undrain"]).map(|_| ())
    }

    fn ended(&mut self) -> Option<String> {
        self.daemons.values_mut().find_map(|d| (!d.alive()).then(|| d.label.clone()))
    }

    fn journal(&self, place: &Place, node: Node) -> Vec<String> {
        agent::last_events(&self.client(place, node, &["events"]).unwrap_or_else(|e| format!("{e:#}")))
    }
}

impl Drop for Holdfast {
    fn drop(&mut self) {
        for (_, d) in std::mem::take(&mut self.daemons) {
            let mut d = d;
            d.stop(Duration::from_secs(5));
        }
    }
}

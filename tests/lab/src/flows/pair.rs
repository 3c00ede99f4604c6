//! What keeps the flows: two hosts' worth of it.

use super::conntrackd::Conntrackd;
use super::net::{self, BACKEND_PORT, DNAT_PORT, SNAT, SNAT_PORT, SNAT6};
use crate::env;
use crate::fabric::{Lb, VRID};
use crate::faults::drained;
use crate::subject::holdfast::Holdfast;
use crate::subject::{Place, Subject};
use anyhow::Result;
use std::path::Path;

/// What replicates flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// Holdfast.
    #[default]
    Holdfast,
    /// conntrackd (FT-FW) beside keepalived, as its package has it.
    Conntrackd,
    /// Nothing, beside Holdfast without `[statesync]`.
    None,
}

/// Entries of the owner that may be missing at the other: those of flows that are about to begin or to end.
pub(super) const SLACK: usize = 2;

/// Two hosts' worth of it.
pub trait Pair {
    /// Its name and version.
    fn version(&self) -> String;

    /// Starts it on `lb`, which has nothing of it yet: at the start, or when its power is back.
    ///
    /// # Errors
    /// Something didn't start.
    fn start(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// What `heir` still lacks of the other's flows; `None`: it could take over now.
    ///
    /// # Errors
    /// It can't be asked.
    fn lacks(&mut self, place: &Place, heir: Lb) -> Result<Option<String>>;

    /// Gives the VIP away in order; returns when that is done.
    ///
    /// # Errors
    /// It was refused.
    fn give_away(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// Lets `lb` take part again.
    ///
    /// # Errors
    /// It was refused.
    fn take_part(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// A program that should run and has ended, by name.
    fn ended(&mut self) -> Option<String>;

    /// Ends everything on both hosts.
    fn stop(&mut self);

    /// Its own account of what happened on `lb`.
    fn journal(&self, place: &Place, lb: Lb) -> Vec<String>;

    /// What `peers --json` says on `lb`; nothing, where there is no such thing.
    ///
    /// # Errors
    /// It doesn't answer.
    fn peers(&self, _place: &Place, _lb: Lb) -> Result<serde_json::Value> {
        Ok(serde_json::Value::Null)
    }

    /// The processes of the agent on `lb`, children first; none, where there is no agent.
    fn agent(&self, _lb: Lb) -> Vec<i32> {
        Vec::new()
    }
}

impl Sync {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::Conntrackd => "conntrackd",
            Self::None => "no sync",
        }
    }

    /// Two hosts' worth of it.
    ///
    /// # Errors
    /// [`env::Lacks`].
    pub fn pair(self, holdfast: Option<&Path>) -> Result<Box<dyn Pair>> {
        Ok(match self {
            Self::Holdfast => Box::new(Agents::new(holdfast, true)?),
            Self::None => Box::new(Agents::new(holdfast, false)?),
            Self::Conntrackd => Box::new(Conntrackd::new()?),
        })
    }
}

/// Holdfast, with its embedded balancer.
#[derive(Debug)]
struct Agents {
    agents: Holdfast,
    replicates: bool,
}

impl Agents {
    fn new(holdfast: Option<&Path>, replicates: bool) -> Result<Self> {
        let agents = Holdfast::new(env::holdfast(holdfast)?)
            .with_sections(Lb::BOTH.map(|_| services(replicates)))
            .with_vips(Lb::BOTH.map(vip));
        Ok(Self { agents, replicates })
    }
}

/// All that moves is one VIP: the clients' addresses, the backends' way back, and where SNAT's flows come from.
fn vip(lb: Lb) -> String {
    let addresses: Vec<String> = net::floating()
        .into_iter()
        .enumerate()
        // One of them in the adverts is enough, and IPv4's are those that are watched.
        .map(|(i, (ip, device))| format!("{{ ip = \"{ip}\", interface = \"{device}\", advertise = {} }}", i == 0))
        .collect();
    format!(
        "[[vip]]\nname = \"web\"\naddresses = [\n    {},\n]\nchecks = []\n\
         vrrp = {{ interface = \"eth0\", vrid = {VRID}, priority = {}, interval = \"100ms\", preempt = false }}\n\n",
        addresses.join(",\n    "),
        lb.priority()
    )
}

fn services(replicates: bool) -> String {
    let backends: Vec<String> = net::backends()
        .flat_map(|(_, addresses)| addresses)
        .map(|ip| format!("\"{}\"", std::net::SocketAddr::new(ip, BACKEND_PORT)))
        .collect();
    let mut t = "[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n\n".to_owned();
    for protocol in ["tcp", "udp"] {
        for (port, mode) in [(DNAT_PORT, "mode = \"dnat\""), (SNAT_PORT, "mode = \"snat\"")] {
            let snat = if port == SNAT_PORT { format!("\nsnat = [\"{SNAT}\", \"{SNAT6}\"]") } else { String::new() };
            t += &format!(
                "[[nft.service]]\nvip = \"web\"\nprotocol = \"{protocol}\"\nport = {port}\nbackends = [{}]\n{mode}{snat}\n\
                 check = false\n\n",
                backends.join(", ")
            );
        }
    }
    if replicates {
        t += "[statesync]\nvips = [\"web\"]\n\n";
    }
    t
}

impl Pair for Agents {
    fn version(&self) -> String {
        let what = if self.replicates { "" } else { " without [statesync]" };
        format!("{}{what}", self.agents.version())
    }

    fn start(&mut self, place: &Place, lb: Lb) -> Result<()> {
        // What is below /run doesn't outlive a host.
        let _absent = std::fs::remove_dir_all(place.file(&format!("{}-run", lb.name())));
        self.agents.start(place, lb)
    }

    fn lacks(&mut self, place: &Place, heir: Lb) -> Result<Option<String>> {
        if !self.replicates {
            return Ok(None);
        }
        // Not by its own word: what the kernels have.
        let (there, here) = (net::entries(&place.fabric, heir.other())?, net::entries(&place.fabric, heir)?);
        Ok((here + SLACK < there).then(|| format!("{here} of {there} entries")))
    }

    fn give_away(&mut self, place: &Place, lb: Lb) -> Result<()> {
        drained(place, &mut self.agents, lb).map(|_| ())
    }

    fn take_part(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.agents.undrain(place, lb)
    }

    fn ended(&mut self) -> Option<String> {
        self.agents.ended()
    }

    fn stop(&mut self) {
        self.agents.stop();
    }

    fn journal(&self, place: &Place, lb: Lb) -> Vec<String> {
        self.agents.journal(place, lb)
    }

    fn peers(&self, place: &Place, lb: Lb) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.agents.client(place, lb, &["peers", "--json"])?)?)
    }

    fn agent(&self, lb: Lb) -> Vec<i32> {
        self.agents.agent(lb)
    }
}

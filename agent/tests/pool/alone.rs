//! The agent and all that it does for the embedded balancer.

use crate::agent::{self, skipped, until};
use crate::fabric::{Fabric, VIP, ask, connect};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};

/// Answers by curl, through everything.
fn curl(fabric: &Fabric) -> Option<u8> {
    let words = ["netns", "exec", &fabric.client.0, "curl", "-s", "-m", "2", &format!("http://{VIP}/")];
    let output = Command::new("ip").args(words).output().expect("curl is installed");
    String::from_utf8_lossy(&output.stdout).split(' ').next()?.parse().ok()
}

struct Agent {
    folder: PathBuf,
    namespace: String,
    child: Option<Child>,
}

impl Agent {
    fn new(fabric: &Fabric) -> Self {
        let folder = std::env::temp_dir().join(format!("{}-agent", fabric.host.0));
        fs::create_dir(&folder).expect("a fresh name");
        let backends: Vec<String> = fabric.backends.iter().map(|b| format!("\"{}\"", b.address(80))).collect();
        let config = format!(
            "[node]\nname = \"a\"\n[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n[[vip]]\nname = \"web\"\n\
             addresses = [\"{VIP}/32\"]\nvrrp = {{ interface = \"front\", vrid = 7, priority = 254, interval = \"100ms\" }}\n\
             [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [{}]\n\
             check = {{ http = \"/healthz\", interval = \"200ms\", timeout = \"100ms\", fall = 2, rise = 2 }}\n",
            backends.join(", ")
        );
        fs::write(folder.join("holdfast.toml"), config).expect("writable");
        Self { folder, namespace: fabric.host.0.clone(), child: None }
    }

    fn start(&mut self) {
        self.child = Some(agent::start(&self.namespace, &self.folder));
    }

    fn ask(&self, words: &[&str]) -> Output {
        agent::command(&self.namespace, &self.folder, words).output().expect("it starts")
    }

    fn pool(&self) -> Option<serde_json::Value> {
        let status: serde_json::Value = serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).ok()?;
        status.get("pool").cloned()
    }

    /// Slots and state of each backend.
    fn backends(&self) -> Option<Vec<(u64, String)>> {
        let pool = self.pool()?;
        let backends = pool["sets"][0]["backends"].as_array()?;
        Some(
            backends
                .iter()
                .map(|b| (b["slots"].as_u64().unwrap_or(0), b["state"].as_str().unwrap_or("").to_owned()))
                .collect(),
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_agent_alone_serves_drops_the_dead_puts_back_what_was_flushed_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let mut fabric = Fabric::new();
    let mut agent = Agent::new(&fabric);
    agent.start();
    until("it serves", || curl(&fabric));
    let up = |agent: &Agent, expected: [&str; 3]| {
        agent.backends().filter(|all| all.iter().map(|(_, state)| state.as_str()).eq(expected))
    };
    until("the checks pass", || up(&agent, ["up", "up", "up"]));
    let text = String::from_utf8_lossy(&agent.ask(&["status"]).stdout).into_owned();
    assert!(text.contains("web tcp/80") && text.contains("10.9.2.13:80"), "{text}");

    // One that is flushed comes back, and a connection through it goes on.
    let mut stream = fabric.client.enter(|| connect(&format!("{VIP}:80"))).expect("connected");
    let before = ask(&mut stream).expect("answered");
    fabric.host.exec("nft flush ruleset");
    until("the table is back", || fabric.host.exec("nft list tables").contains("holdfast_pool").then_some(()));
    assert_eq!(ask(&mut stream), Some(before));
    until("it serves", || curl(&fabric));
    fabric.host.exec("nft delete chain inet holdfast_pool post");
    let whole = || fabric.host.exec("nft list chains").contains("chain post").then_some(());
    until("the chain is back", whole);

    fabric.backends[1].stop();
    let after = until("the dead one is out", || up(&agent, ["up", "down", "up"]));
    assert_eq!(after[1].0, 0);
    assert!((0..30).filter_map(|_| curl(&fabric)).all(|number| number != 2));
    fabric.backends[1].start();
    until("it is back", || up(&agent, ["up", "up", "up"]).filter(|all| all[1].0 > 300));

    let drained = agent.ask(&["pool", "drain", "10.9.2.11"]);
    assert_eq!(drained.status.code(), Some(0), "{}", String::from_utf8_lossy(&drained.stderr));
    until("the drained one is out", || agent.backends().filter(|all| all[0].0 == 0 && all[0].1 == "drained"));
    assert!((0..30).filter_map(|_| curl(&fabric)).all(|number| number != 1));
    assert_eq!(agent.ask(&["pool", "drain", "10.9.2.99"]).status.code(), Some(10));
    assert_eq!(agent.ask(&["pool", "undrain", "10.9.2.11:80"]).status.code(), Some(0));
    until("it is back", || agent.backends().filter(|all| all[0].0 > 300));
    let flows = |pool: &serde_json::Value| pool["sets"][0]["backends"][2]["flows"].as_u64();
    assert!(agent.pool().as_ref().and_then(flows).is_some_and(|flows| flows > 0), "{:?}", agent.pool());

    let mut child = agent.child.take().expect("started");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    let code = until("it ends", || child.try_wait().expect("our child"));
    assert_eq!(code.code(), Some(0), "{}", agent::log(&agent.folder));
    assert_eq!(fabric.host.exec("nft list tables"), "");
}

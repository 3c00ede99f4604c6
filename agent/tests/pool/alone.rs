//! The agent and all that it does for the embedded balancer.

use crate::agent;
use crate::fabric::{Fabric, VIP, ask, connect};
use crate::netns::{skipped, until};
use crate::{load, service, table, udp_backends, vip};
use holdfast::os::nft::Balancer;
use holdfast_node::config::Transport;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

/// A balancer that needs none of what is tested here.
const PROCESS: &str = "[[balancer]]\nname = \"any\"\nkind = \"process\"\ncommand = [\"/bin/sleep\", \"100000\"]\n";

fn web(interval: &str) -> String {
    format!(
        "[[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\n\
         vrrp = {{ interface = \"front\", vrid = 7, priority = 254, interval = \"{interval}\" }}\n"
    )
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).expect("a pid"))
}

/// A client that keeps its port, of the wanted backend.
fn datagrams(fabric: &Fabric, wanted: u8) -> UdpSocket {
    fabric.client.enter(|| {
        let of_port = |port| {
            // Taken: by one that was found before.
            let socket = UdpSocket::bind(("10.9.1.2", port)).ok()?;
            socket.connect((VIP, 53)).expect("connected");
            socket.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
            (answer(&socket) == Some(wanted)).then_some(socket)
        };
        (41_000..41_200).find_map(of_port).expect("one of two hundred flows goes there")
    })
}

fn answer(socket: &UdpSocket) -> Option<u8> {
    let mut buffer = [0];
    // Refused is what was said about a datagram before.
    socket.send(b"?").or_else(|_| socket.send(b"?")).ok()?;
    socket.recv(&mut buffer).ok().map(|_| buffer[0])
}

/// Answers by curl, through everything.
fn curl(fabric: &Fabric) -> Option<u8> {
    let words = ["netns", "exec", &fabric.client.name, "curl", "-s", "-m", "2", &format!("http://{VIP}/")];
    let output = Command::new("ip").args(words).output().expect("curl is installed");
    String::from_utf8_lossy(&output.stdout).split(' ').next()?.parse().ok()
}

pub(crate) struct Agent {
    folder: PathBuf,
    namespace: String,
    child: Option<Child>,
}

impl Agent {
    fn new(fabric: &Fabric) -> Self {
        let backends = |port| {
            let each = fabric.backends.iter().map(|backend| format!("\"{}\"", backend.address(port)));
            each.collect::<Vec<_>>().join(", ")
        };
        let check = "interval = \"200ms\", timeout = \"100ms\", fall = 2, rise = 2";
        Self::with(
            fabric,
            &format!(
                "[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n{}\
                 [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [{}]\n\
                 check = {{ http = \"/healthz\", {check} }}\n\
                 [[nft.service]]\nvip = \"web\"\nprotocol = \"udp\"\nport = 53\nbackends = [{}]\n\
                 check = {{ http = \"/healthz\", port = 80, {check} }}\n",
                web("100ms"),
                backends(80),
                backends(53)
            ),
        )
    }

    /// One that wraps a process, with so many checks of the fabric's backends.
    pub(crate) fn checking(fabric: &Fabric, checks: usize) -> Self {
        let check = |n: usize| {
            let address = fabric.backends[n % fabric.backends.len()].address(80);
            format!("[[check]]\nname = \"c{n}\"\nhttp = \"http://{address}/healthz\"\ninterval = \"500ms\"\n")
        };
        let checks: String = (0..checks).map(check).collect();
        Self::with(fabric, &format!("{PROCESS}{checks}{}", web("1s")))
    }

    fn with(fabric: &Fabric, sections: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("{}-agent", fabric.host.name));
        fs::create_dir(&folder).expect("a fresh name");
        let config = format!("[node]\nname = \"a\"\n{sections}");
        fs::write(folder.join("holdfast.toml"), config).expect("writable");
        Self { folder, namespace: fabric.host.name.clone(), child: None }
    }

    pub(crate) fn start(&mut self) {
        self.child = Some(agent::start(&self.namespace, &self.folder));
    }

    /// As a service manager does. The status it ends with.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("started");
        kill(pid(child.id()), Signal::SIGTERM).expect("it runs");
        until("it ends", || child.try_wait().expect("our child")).code()
    }

    fn worker(&self) -> Option<Pid> {
        let keeper = self.child.as_ref().expect("started").id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        let named = |name: &str, pid: &str| {
            let text = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            text.split('\0').nth(1) == Some(name)
        };
        let worker = children.split_whitespace().find(|pid| named("worker", pid))?;
        Some(Pid::from_raw(worker.parse().ok()?))
    }

    /// Until it holds the VIP, and so many checks (at least) pass.
    pub(crate) fn settle(&self, passing: usize) {
        until("it holds the VIP", || {
            let status: serde_json::Value = serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).ok()?;
            let active = status["vips"][0]["state"] == "active";
            let checks = serde_json::to_string(&status["checks"]).ok()?;
            (active && checks.matches("\"passed\"").count() >= passing).then_some(())
        });
    }

    /// Processor time of keeper and worker.
    pub(crate) fn spent(&self) -> Duration {
        let keeper = self.child.as_ref().expect("started").id();
        let worker = self.worker().expect("it lives").as_raw();
        let of = |process: i64| -> u64 {
            let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it lives").filter_map(Result::ok);
            let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("schedstat")).ok();
            let spent = |text: String| text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            tasks.filter_map(read).filter_map(spent).sum()
        };
        Duration::from_nanos(of(i64::from(keeper)) + of(i64::from(worker)))
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

    let (lost, unhurt) = (datagrams(&fabric, 2), datagrams(&fabric, 3));
    fabric.backends[1].stop();
    let after = until("the dead one is out", || up(&agent, ["up", "down", "up"]));
    assert_eq!(after[1].0, 0);
    assert!((0..30).filter_map(|_| curl(&fabric)).all(|number| number != 2));
    // A client that goes on asking from the same port is heard by another one: the kernel has forgotten its flow.
    assert_ne!(until("the flow finds another backend", || answer(&lost)), 2);
    assert_eq!(until("the flow goes on", || answer(&unhurt)), 3, "and nobody else's");
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

    assert_eq!(agent.stop(), Some(0), "{}", agent::log(&agent.folder));
    assert_eq!(fabric.host.exec("nft list tables"), "");
}

#[test]
fn a_table_of_services_that_are_not_configured_any_more_goes_and_that_of_a_worker_that_cannot_stop_too() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let former = load(vec![service(vip(), Transport::Udp, 53, 0)], vec![table(&udp_backends(&fabric), &[1; 3])]);
    fabric.host.enter(|| Balancer::open().expect("open").apply(&former).expect("loaded"));
    fabric.host.exec("nft add table ip mine");
    let mut without = Agent::checking(&fabric, 0);
    without.start();
    let left = || fabric.host.exec("nft list tables");
    until("the former table is gone", || (left().trim() == "table ip mine").then_some(()));
    assert_eq!(without.stop(), Some(0), "{}", agent::log(&without.folder));
    drop(without);

    let mut agent = Agent::new(&fabric);
    agent.start();
    until("the table is there", || left().contains("holdfast_pool").then_some(()));
    agent.settle(0);
    let worker = agent.worker().expect("it lives");
    kill(worker, Signal::SIGSTOP).expect("it lives");
    agent.stop();
    assert_eq!(left().trim(), "table ip mine", "{}", agent::log(&agent.folder));
}

//! The whole agent in a network namespace of its own: start, serve clients, end. Needs root; without, it says so and is
//! skipped.

mod agent;
mod netns;

use netns::{skipped, until};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

const VIP: &str = "192.0.2.10/32";

/// A namespace with an interface `eth0`, a folder, and at most one agent. All of it goes at the end.
struct Host {
    name: String,
    folder: PathBuf,
    agent: Option<Child>,
}

impl Host {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hfrun{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir(&folder).expect("a fresh name");
        let host = Self { name, folder, agent: None };
        host.ip("netns add NAME");
        host.ip("-n NAME link add eth0 type veth peer name far");
        host.ip("-n NAME link set eth0 up");
        host.ip("-n NAME link set far up");
        host.ip("-n NAME address add 10.0.0.1/24 dev eth0");
        let vrrp = "{ interface = \"eth0\", vrid = 7, priority = 254 }";
        let config = format!("[node]\nname = \"a\"\n[[vip]]\nname = \"web\"\naddresses = [\"{VIP}\"]\nvrrp = {vrrp}\n");
        fs::write(host.folder.join("holdfast.toml"), config).expect("writable");
        host
    }

    /// With a route, a rule and a guard that move with the address.
    fn with_extras() -> Self {
        let host = Self::new();
        let path = host.folder.join("holdfast.toml");
        let config =
            fs::read_to_string(&path).expect("written").replace("priority = 254", "priority = 254, accept = false");
        let route = "{ to = \"default\", via = \"10.0.0.254\", interface = \"eth0\", table = 100 }";
        let rule = "{ from = \"192.0.2.10/32\", table = 100, priority = 1000 }";
        fs::write(path, format!("{config}routes = [{route}]\nrules = [{rule}]\n")).expect("writable");
        host
    }

    /// Route, rule and guard that are there.
    fn extras(&self) -> (bool, bool, bool) {
        let words = ["netns", "exec", &self.name, "ip", "route", "show", "table", "100"];
        let routes = Command::new("ip").args(words).output().expect("iproute2 is installed");
        let words = ["netns", "exec", &self.name, "nft", "list", "tables"];
        let tables = Command::new("ip").args(words).output().expect("nft is installed");
        let rule = self.ip("-n NAME rule show priority 1000").contains("lookup 100");
        (String::from_utf8_lossy(&routes.stdout).contains("default"), rule, !tables.stdout.is_empty())
    }

    fn ip(&self, words: &str) -> String {
        let words = words.replace("NAME", &self.name);
        let output = Command::new("ip").args(words.split(' ')).output().expect("iproute2 is installed");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn holdfast(&self, words: &[&str]) -> Output {
        agent::command(&self.name, &self.folder, words).output().expect("it starts")
    }

    /// Starts the agent and waits until it holds the address.
    fn start(&mut self) {
        self.agent = Some(agent::start(&self.name, &self.folder));
        until("the address comes", || self.holds().then_some(()));
    }

    fn holds(&self) -> bool {
        self.ip("-n NAME address show dev eth0").contains(VIP)
    }

    fn keeper(&self) -> i32 {
        let agent = self.agent.as_ref().expect("it was started");
        i32::try_from(agent.id()).expect("a pid")
    }

    fn worker(&self) -> i32 {
        let keeper = self.keeper();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).expect("it runs");
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("the worker")
    }

    fn wait(&mut self) -> Option<i32> {
        let mut agent = self.agent.take().expect("it was started");
        until("the agent ends", || agent.try_wait().expect("our child")).code()
    }

    fn log(&self) -> String {
        agent::log(&self.folder)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("it runs");
}

/// Gone, or only waiting to be reaped.
fn ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

#[test]
fn the_agent_serves_its_clients_refuses_a_second_one_and_leaves_nothing_behind() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    host.start();

    let status = host.holdfast(&["status", "--json"]);
    let code = status.status.code();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let expected = match status["verdict"].as_str() {
        Some("ok") => 0,
        Some("degraded") => 1,
        verdict => panic!("{verdict:?}"),
    };
    assert_eq!(code, Some(expected));
    assert_eq!((&status["node"], &status["vips"][0]["state"]), (&"a".into(), &"active".into()), "{status:#}");
    let events = host.holdfast(&["events"]);
    assert!(String::from_utf8_lossy(&events.stdout).contains("-> active"), "{}", host.log());

    let second = host.holdfast(&["run"]);
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("another agent (pid {})", host.keeper())), "{said}");

    // Nobody else can serve: refused, and nothing moves.
    let drain = host.holdfast(&["drain", "--reason", "test"]);
    assert_eq!(drain.status.code(), Some(10), "{}", String::from_utf8_lossy(&drain.stderr));
    assert!(host.holds());

    let worker = host.worker();
    kill(host.keeper(), nix::sys::signal::Signal::SIGTERM);
    assert_eq!(host.wait(), Some(0), "{}", host.log());
    assert!(!host.holds(), "the address stayed");
    assert!(!PathBuf::from(format!("/proc/{worker}")).exists(), "the worker stayed");
    assert!(!host.folder.join("run/holdfast.sock").exists(), "the socket stayed");
    assert_eq!(host.holdfast(&["status"]).status.code(), Some(3));
}

#[test]
fn cleanup_removes_what_a_killed_agent_left_and_touches_nothing_while_one_runs() {
    if skipped() {
        return;
    }
    let mut host = Host::with_extras();
    host.start();
    until("all is there", || (host.extras() == (true, true, true)).then_some(()));
    let refused = host.holdfast(&["cleanup"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(host.holds(), "cleanup took a running agent's address");

    let worker = host.worker();
    // The worker first: it must not see the keeper go. It is stopped so that nothing restarts it in between.
    kill(host.keeper(), nix::sys::signal::Signal::SIGSTOP);
    kill(worker, nix::sys::signal::Signal::SIGKILL);
    kill(host.keeper(), nix::sys::signal::Signal::SIGKILL);
    host.wait();
    // Until then its socket still listens, and counts as in use.
    until("the killed worker ends", || ended(worker).then_some(()));
    // An address of somebody else, in the agent's place and with an end of its own.
    host.ip("-n NAME address add 192.0.2.11/32 dev eth0");
    let cleaned = host.holdfast(&["cleanup"]);
    assert_eq!(cleaned.status.code(), Some(0), "{}", String::from_utf8_lossy(&cleaned.stderr));
    assert!(!host.holds(), "the address stayed");
    assert_eq!(host.extras(), (false, false, false), "route, rule, guard");
    assert!(host.ip("-n NAME address show dev eth0").contains("192.0.2.11/32"), "it took a foreign address");
    assert!(!host.folder.join("run/holdfast.sock").exists(), "the socket stayed");
    let again = host.holdfast(&["cleanup"]);
    assert_eq!((again.status.code(), again.stdout.as_slice()), (Some(0), &[][..]));
}

#[test]
fn the_keeper_takes_away_all_that_a_hung_worker_had_and_at_its_end_what_a_dead_one_left() {
    if skipped() {
        return;
    }
    let mut host = Host::with_extras();
    host.start();
    until("all is there", || (host.extras() == (true, true, true)).then_some(()));
    let worker = host.worker();
    kill(worker, nix::sys::signal::Signal::SIGSTOP);
    // Its successor begins as Backup, and takes it back after a down time of three seconds and more.
    until("the keeper took all of it away", || {
        let (route, rule, _) = host.extras();
        (!host.holds() && !route && !rule).then_some(())
    });
    assert!(host.log().contains("vip web: priority 0 sent, 3 removed"), "{}", host.log());
    until("the successor has it", || (host.holds() && host.extras() == (true, true, true)).then_some(()));
    // The keeper is told to stop while its worker is dead and the next one can't be there yet.
    kill(host.keeper(), nix::sys::signal::Signal::SIGSTOP);
    kill(host.worker(), nix::sys::signal::Signal::SIGKILL);
    kill(host.keeper(), nix::sys::signal::Signal::SIGTERM);
    kill(host.keeper(), nix::sys::signal::Signal::SIGCONT);
    host.wait();
    assert!(!host.holds());
    assert_eq!(host.extras(), (false, false, false), "route, rule, guard\n{}", host.log());
}

#[test]
fn upgrade_replaces_the_worker_and_takes_nothing_away_meanwhile() {
    if skipped() {
        return;
    }
    let mut host = Host::with_extras();
    host.start();
    until("all is there", || (host.extras() == (true, true, true)).then_some(()));
    let watched = host.folder.join("watched");
    let words = ["netns", "exec", &host.name, "ip", "-o", "monitor", "address", "route", "rule"];
    let out = fs::File::create(&watched).expect("writable");
    let mut monitor = Command::new("ip").args(words).stdout(out).spawn().expect("iproute2 is installed");
    std::thread::sleep(std::time::Duration::from_millis(300));
    for _ in 0..3 {
        let (keeper, worker) = (host.keeper(), host.worker());
        let begun = std::time::Instant::now();
        let upgrade = host.holdfast(&["upgrade"]);
        println!("replaced after {:?}", begun.elapsed());
        let said = String::from_utf8_lossy(&upgrade.stderr).into_owned();
        assert_eq!(upgrade.status.code(), Some(0), "{said}{}", host.log());
        until("the former one ends", || ended(worker).then_some(()));
        assert_eq!(host.keeper(), keeper);
        assert_ne!(host.worker(), worker);
        assert!(host.holds() && host.extras() == (true, true, true), "{}", host.log());
    }
    let status: serde_json::Value = serde_json::from_slice(&host.holdfast(&["status", "--json"]).stdout).expect("JSON");
    assert_eq!((&status["vips"][0]["state"], &status["worker"]["pid"]), (&"active".into(), &host.worker().into()));
    let _ = monitor.kill();
    let _ = monitor.wait();
    let seen = fs::read_to_string(&watched).expect("written");
    assert!(!seen.contains("Deleted"), "{seen}{}", host.log());
    let journal = fs::read_to_string(host.folder.join("state/events.jsonl")).expect("written");
    assert_eq!(journal.matches("\"event\":\"worker_replaced\"").count(), 3, "{journal}");
    let ids: Vec<u64> = journal
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?.get("id")?.as_u64())
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
}

#[test]
fn an_upgrade_to_a_configuration_that_is_refused_changes_nothing() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    host.start();
    let worker = host.worker();
    let path = host.folder.join("holdfast.toml");
    let good = fs::read_to_string(&path).expect("written");
    fs::write(&path, "this is no configuration\n").expect("writable");
    let upgrade = host.holdfast(&["upgrade"]);
    let said = String::from_utf8_lossy(&upgrade.stderr).into_owned();
    assert_eq!(upgrade.status.code(), Some(1), "{said}");
    assert!(said.contains("not-ready") && said.contains("this worker goes on"), "{said}");
    assert!(host.holds() && host.worker() == worker, "{}", host.log());
    fs::write(&path, good).expect("writable");
    assert_eq!(host.holdfast(&["upgrade"]).status.code(), Some(0), "{}", host.log());
    assert!(host.holds());
}

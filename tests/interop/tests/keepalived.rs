//! keepalived 2.2 (VRRPv3) on the other host.
//!
//! It sends IPv4 adverts whose checksum covers a pseudo-header, which we accept and count. It drops ours, whose
//! checksum is RFC 9568's. So what is tested is where we listen: it has the higher priority throughout.

use anyhow::{Context, Result, ensure};
use holdfast_interop::agent::{Agent, answerers};
use holdfast_interop::skipped;
use holdfast_lab::fabric::{Fabric, Lb, VIP, VRID, wait_for};
use holdfast_lab::process::{Proc, children, kill_pid};
use std::time::Duration;

const PRIORITY: u8 = 200;
/// Three intervals of 100 ms and the skew of priority 100, with room for a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(50);

/// keepalived on lb1.
struct Keepalived {
    daemon: Proc,
}

impl Keepalived {
    fn start(fabric: &Fabric) -> Result<Self> {
        let file = |name: &str| fabric.directory().join(name);
        let config = format!(
            "global_defs {{\n  vrrp_version 3\n  vrrp_no_swap\n}}\nvrrp_instance web {{\n  state BACKUP\n  \
             interface eth0\n  virtual_router_id {VRID}\n  priority {PRIORITY}\n  advert_int 0.1\n  \
             virtual_ipaddress {{\n    {VIP}/32 dev eth0\n  }}\n}}\n"
        );
        std::fs::write(file("keepalived.conf"), config)?;
        for pid in ["ka.pid", "ka-vrrp.pid"] {
            let _absent = std::fs::remove_file(file(pid));
        }
        let mut command = fabric.lb(Lb::Lb1).command("keepalived");
        command.args(["-n", "-l", "-D", "-P", "-f"]).arg(file("keepalived.conf"));
        command.arg("-p").arg(file("ka.pid")).arg("-r").arg(file("ka-vrrp.pid"));
        let daemon = Proc::start("keepalived", command, &file("keepalived.log"))?;
        let started = Self { daemon };
        let holds = wait_for(Duration::from_secs(10), STEP, || has_vip(fabric, Lb::Lb1))?;
        ensure!(holds, "keepalived: {}", std::fs::read_to_string(started.daemon.log()).unwrap_or_default());
        Ok(started)
    }

    /// Both its processes, as a host that loses its memory would.
    fn kill(mut self) {
        let children = children(self.daemon.pid());
        self.daemon.kill();
        children.into_iter().for_each(|child| kill_pid(child.pid));
    }
}

fn has_vip(fabric: &Fabric, lb: Lb) -> Result<bool> {
    let shown = fabric.lb(lb).command("ip").args(["-br", "addr", "show", "dev", "eth0"]).output()?;
    Ok(String::from_utf8_lossy(&shown.stdout).contains(&VIP.to_string()))
}

/// Exactly one host answers for the VIP, and it is this one.
fn answers_alone(fabric: &Fabric, lb: Lb) -> Result<()> {
    let mac = fabric.mac(lb)?.map(|byte| format!("{byte:02x}")).join(":");
    let mut seen = answerers(fabric, &VIP.to_string())?;
    // A busy machine may let one round go unanswered; a second owner would show in any.
    if seen.is_empty() {
        seen = answerers(fabric, &VIP.to_string())?;
    }
    ensure!(seen.iter().eq([&mac]), "{} ({mac}) should answer alone, but {seen:?} did", lb.name());
    Ok(())
}

/// A keepalived that is Active, and an agent of lower priority that came after it.
fn pair() -> Result<(Fabric, Keepalived, Agent)> {
    let fabric = Fabric::up(false)?;
    let keepalived = Keepalived::start(&fabric)?;
    let agent = Agent::start(&fabric, Lb::Lb2, 100)?;
    agent.becomes("backup", TAKEN_OVER)?;
    let heard = wait_for(Duration::from_secs(10), STEP, || Ok(agent.counter("adverts_received")? >= 5))?;
    let log = || std::fs::read_to_string(keepalived.daemon.log()).unwrap_or_default();
    ensure!(heard, "keepalived wasn't heard:\n{}\n{}\n{}", agent.events()?, agent.status()?["counters"], log());
    Ok((fabric, keepalived, agent))
}

#[test]
fn an_agent_of_lower_priority_hears_keepalived_and_stays_backup() -> Result<()> {
    if skipped(&["keepalived", "arping"]) {
        return Ok(());
    }
    let (fabric, _keepalived, agent) = pair()?;
    std::thread::sleep(Duration::from_secs(2));
    let status = agent.status()?;
    let vip = &status["vips"][0];
    ensure!(vip["state"] == "backup", "{vip}");
    ensure!(vip["heard"]["from"] == Lb::Lb1.front().to_string(), "{vip}");
    ensure!(vip["heard"]["priority"] == PRIORITY, "{vip}");
    ensure!(vip["owner"] == Lb::Lb1.front().to_string(), "{vip}");
    let counter = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    let (received, pseudo) = (counter("adverts_received"), counter("adverts_checksum_pseudo_header"));
    ensure!(received >= 10 && pseudo == received, "{pseudo} of {received} had the pseudo-header");
    ensure!(counter("adverts_refused") == 0, "{}", status["counters"]);
    ensure!(!agent.events()?.contains("-> active"), "{}", agent.events()?);
    answers_alone(&fabric, Lb::Lb1)
}

#[test]
fn a_keepalived_that_stops_hands_over_and_one_that_comes_back_gets_the_address_again() -> Result<()> {
    if skipped(&["keepalived", "arping"]) {
        return Ok(());
    }
    let (fabric, mut keepalived, agent) = pair()?;
    ensure!(keepalived.daemon.stop(Duration::from_secs(10)), "keepalived didn't stop");
    agent.becomes("active", TAKEN_OVER)?;
    // Priority 0, not silence: RFC 9568 section 6.4.2 (300) then waits for the skew alone.
    let events = agent.events()?;
    let taken = events.lines().find(|line| line.contains("-> active")).context("it took over")?;
    ensure!(taken.contains("resign") || taken.contains("priority 0"), "{taken}");
    answers_alone(&fabric, Lb::Lb2)?;

    let _keepalived = Keepalived::start(&fabric)?;
    agent.becomes("backup", TAKEN_OVER)?;
    ensure!(wait_for(TAKEN_OVER, STEP, || Ok(!has_vip(&fabric, Lb::Lb2)?))?, "the address stayed on lb2");
    answers_alone(&fabric, Lb::Lb1)
}

#[test]
fn a_keepalived_that_is_killed_is_followed_after_the_down_time() -> Result<()> {
    if skipped(&["keepalived", "arping"]) {
        return Ok(());
    }
    let (mut fabric, keepalived, agent) = pair()?;
    keepalived.kill();
    // It leaves its address behind, which nobody but an operator removes.
    fabric.delete_vip(Lb::Lb1)?;
    agent.becomes("active", TAKEN_OVER)?;
    answers_alone(&fabric, Lb::Lb2)
}

//! What moves as one: both address families of a VIP, and the VIPs of a group on different segments.

use anyhow::{Context, Result, ensure};
use holdfast_interop::agent::Agent;
use holdfast_interop::{said, skipped};
use holdfast_lab::fabric::{Fabric, Lb, wait_for};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(20);
/// Far more than a down time of 100 ms adverts, and than duplicate address detection of the hosts' own link-locals.
const SOON: Duration = Duration::from_secs(15);
const SIX: &str = "2001:db8::10";
const FOUR: &str = "192.168.77.10";
const INSIDE: &str = "10.2.0.1";

fn toml(lb: Lb) -> String {
    let priority = lb.priority();
    format!(
        "[node]\nname = \"{}\"\n\n[[vip]]\nname = \"web\"\ngroup = \"edge\"\n\
         addresses = [\"{FOUR}/32\", \"{SIX}/128\"]\n\
         vrrp = {{ interface = \"eth0\", vrid = 10, priority = {priority}, interval = \"100ms\" }}\n\n\
         [[vip]]\nname = \"inside\"\ngroup = \"edge\"\naddresses = [\"{INSIDE}/24\"]\n\
         vrrp = {{ interface = \"eth1\", vrid = 11, priority = {priority}, interval = \"100ms\" }}\n",
        lb.name()
    )
}

fn ip(fabric: &Fabric, node: &str, words: &str) -> Result<String> {
    let output = fabric.ns(node).command("ip").args(words.split(' ')).output().context("run ip")?;
    ensure!(output.status.success(), "ip {words} on {node}: {}", said(&output));
    Ok(said(&output))
}

/// How many of the unit's addresses a host has.
fn held(fabric: &Fabric, lb: Lb) -> Result<usize> {
    let all = ip(fabric, lb.name(), "-o addr show")?;
    Ok([FOUR, SIX, INSIDE].iter().filter(|ip| all.contains(&format!(" {ip}/"))).count())
}

/// All of it is on one host, and nothing on the other.
fn moves_to(fabric: &Fabric, lb: Lb, agents: [&Agent; 2]) -> Result<()> {
    let whole = || Ok((held(fabric, lb)?, held(fabric, lb.other())?) == (3, 0));
    if wait_for(SOON, STEP, whole)? {
        return Ok(());
    }
    let [one, two] = agents.map(|a| a.events().unwrap_or_default());
    let have = (held(fabric, Lb::Lb1)?, held(fabric, Lb::Lb2)?);
    anyhow::bail!("{} should hold all three addresses alone, but lb1 and lb2 have {have:?}\n{one}\n{two}", lb.name());
}

/// The link address that the observer's kernel believes an IPv6 address to be at.
fn believed(fabric: &Fabric) -> Result<String> {
    let shown = ip(fabric, "obs", "-6 neigh show dev eth0")?;
    let line = shown.lines().find(|line| line.starts_with(SIX)).unwrap_or_default();
    Ok(line.split("lladdr ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned())
}

#[test]
fn both_families_and_the_inside_gateway_move_together_and_neighbours_follow() -> Result<()> {
    if skipped(&["ip", "ping"]) {
        return Ok(());
    }
    let fabric = Fabric::up(false)?;
    for node in ["obs", "lb1", "lb2"] {
        let last = match node {
            "lb1" => 11,
            "lb2" => 12,
            _ => 2,
        };
        ip(&fabric, node, &format!("addr add 2001:db8::{last}/64 dev eth0 nodad"))?;
    }
    let one = Agent::start_with(&fabric.lb(Lb::Lb1), Lb::Lb1, fabric.directory(), &toml(Lb::Lb1))?;
    let two = Agent::start_with(&fabric.lb(Lb::Lb2), Lb::Lb2, fabric.directory(), &toml(Lb::Lb2))?;
    moves_to(&fabric, Lb::Lb1, [&one, &two])?;

    let vips = &one.status()?["vips"];
    ensure!(vips[0]["group"] == "edge" && vips[1]["name"] == "inside", "{vips}");
    ensure!(vips[0]["legs"].as_array().map(Vec::len) == Some(2), "one leg for each family: {vips}");

    // The observer talks to the IPv6 address, so that it has an entry to be mended.
    let ping = || Ok(fabric.ns("obs").command("ping").args(["-c", "1", "-W", "1", SIX]).output()?.status.success());
    ensure!(wait_for(SOON, STEP, ping)?, "no answer from {SIX}");
    let mac = |lb| Ok::<String, anyhow::Error>(fabric.mac(lb)?.map(|byte| format!("{byte:02x}")).join(":"));
    let at = |lb| Ok(believed(&fabric)? == mac(lb)?);
    ensure!(wait_for(SOON, STEP, || at(Lb::Lb1))?, "{}", believed(&fabric)?);

    // The inside cable of lb1 goes: everything leaves, not just the inside gateway.
    ip(&fabric, "lb1", "link set eth1 down")?;
    moves_to(&fabric, Lb::Lb2, [&one, &two])?;
    ensure!(wait_for(SOON, STEP, || at(Lb::Lb2))?, "the unsolicited NA wasn't believed: {}", believed(&fabric)?);
    ensure!(wait_for(SOON, STEP, ping)?, "no answer from {SIX} on lb2");

    ip(&fabric, "lb1", "link set eth1 up")?;
    moves_to(&fabric, Lb::Lb1, [&one, &two])?;
    ensure!(wait_for(SOON, STEP, || at(Lb::Lb1))?, "the unsolicited NA wasn't believed: {}", believed(&fabric)?);

    // Killed altogether: the other one takes all of it, and no family stays behind for longer than its lifetime.
    one.kill();
    let taken = wait_for(SOON, STEP, || Ok(held(&fabric, Lb::Lb2)? == 3))?;
    ensure!(taken, "{}", two.events()?);
    let gone = wait_for(Duration::from_secs(6), STEP, || Ok(held(&fabric, Lb::Lb1)? == 0))?;
    ensure!(gone, "{}", ip(&fabric, "lb1", "-o addr show")?);
    Ok(())
}

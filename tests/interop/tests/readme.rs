//! README's "A pair of hosts in ten minutes", followed word for word on two hosts made of namespaces.
//!
//! What stands in for something: `cargo` does nothing, since the binaries are built already (they lie where its
//! release build would put them); `systemctl enable --now holdfast` starts what the installed unit's `ExecStart=`
//! names, in the background, and waits until it answers, as `Type=notify` does; HAProxy is started in a control group
//! by the name of its unit, as systemd would (where this machine has no control groups, `unit =` becomes the
//! `pidfile =` that the line's comment names). All else is the page's own text.

use anyhow::{Context, Result, ensure};
use holdfast_interop::docs::Page;
use holdfast_interop::host::Host;
use holdfast_interop::{holdfast, said, skipped, tree};
use holdfast_lab::fabric::{Fabric, Lb, ip_batch, wait_for};
use holdfast_lab::process::Proc;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$*" = "enable --now holdfast" ] || { echo "systemctl $*: not what the page says" >&2; exit 1; }
start=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/holdfast.service)
mkdir -p /run/holdfast /var/lib/holdfast
setsid $start </dev/null >/run/agent.log 2>&1 &
for i in $(seq 200); do
  holdfast status --oneline >/dev/null 2>&1; [ $? = 3 ] || exit 0
  sleep 0.05
done
cat /run/agent.log >&2
exit 1
"#;

/// The page's two hosts, with HAProxy on each.
struct Two {
    fabric: Fabric,
    hosts: [Host; 2],
    checkout: PathBuf,
    page: Page,
    balancers: Vec<Proc>,
}

impl Two {
    fn up() -> Result<Self> {
        let page = Page::load(&tree().join("README.md"))?;
        let fabric = Fabric::up(false)?;
        for (node, number) in [("client", 1), ("lb1", 11), ("lb2", 12)] {
            let lines = format!("addr flush dev eth0\naddr add 192.0.2.{number}/24 dev eth0\n");
            ip_batch(Some(&fabric.ns(node)), &lines)?;
        }
        let checkout = checkout(fabric.directory())?;
        let make = |lb: Lb| -> Result<Host> {
            let host = Host::new(lb.name(), &fabric.lb(lb), fabric.directory())?;
            host.shim("systemctl", SYSTEMCTL)?;
            host.shim("cargo", "#!/bin/sh\n[ \"$1 $2\" = \"build --release\" ]\n")?;
            Ok(host)
        };
        let hosts = [make(Lb::Lb1)?, make(Lb::Lb2)?];
        let mut two = Self { fabric, hosts, checkout, page, balancers: Vec::new() };
        for host in &two.hosts {
            let frontend = two.page.block("haproxy.cfg")?;
            let config = format!(
                "defaults\n    mode http\n    timeout connect 1s\n    timeout client 5s\n    timeout server 5s\n\n\
                 {frontend}    http-request return status 200 content-type text/plain string \"from {}\\n\"\n",
                host.name
            );
            host.write("/etc/haproxy/haproxy.cfg", &config)?;
            let words = ["-Ws", "-f", "/etc/haproxy/haproxy.cfg", "-p", "/run/haproxy.pid"];
            two.balancers.push(host.start_unit("haproxy.service", "haproxy", &words)?);
        }
        Ok(two)
    }

    /// Follows a block on every host, in order; gives what each said.
    fn each(&self, block: &str) -> Result<Vec<String>> {
        let lines = self.page.block(block)?;
        self.hosts.iter().map(|host| host.follow(&self.checkout, lines)).collect()
    }

    /// lb1's configuration is the page's; lb2's is the page's with what its sentence says changed.
    ///
    /// `keygen_said`: what `holdfast keygen` printed on each; the public key is the first line.
    fn configure(&self, keygen_said: &[String]) -> Result<()> {
        let public_key = |said: &String| said.lines().next().unwrap_or_default().to_owned();
        let keys: Vec<String> = keygen_said.iter().map(public_key).collect();
        let lb1 = self.page.block("lb1.toml")?.replace("LB2_PUBLIC_KEY", &keys[1]);
        let mut lb2 = self.page.block("lb1.toml")?.replace("LB2_PUBLIC_KEY", &keys[0]);
        for (from, to) in [
            ("name = \"lb1\"", "name = \"mine\""),
            ("name = \"lb2\"", "name = \"lb1\""),
            ("name = \"mine\"", "name = \"lb2\""),
            ("priority = 254", "priority = 253"),
            ("\"10.1.0.11:7712\"", "\"here\""),
            ("\"10.1.0.12:7712\"", "\"10.1.0.11:7712\""),
            ("\"here\"", "\"10.1.0.12:7712\""),
        ] {
            ensure!(lb2.contains(from), "the page's configuration has no {from}");
            lb2 = lb2.replace(from, to);
        }
        for (host, mut text) in self.hosts.iter().zip([lb1, lb2]) {
            if !host.has_units() {
                println!("no control groups here: pidfile instead of unit");
                text = text.replace("unit = \"haproxy.service\"", "pidfile = \"/run/haproxy.pid\"");
            }
            host.write("/etc/holdfast/holdfast.toml", &text)?;
        }
        Ok(())
    }

    /// What a client of the virtual IP gets.
    fn answer(&self) -> Result<String> {
        let mut curl = self.fabric.ns("client").command("curl");
        Ok(said(&curl.args(["-sS", "-m", "2", "http://192.0.2.10/"]).output()?).trim().to_owned())
    }

    /// Waits for a verdict line on a host.
    fn says(&self, host: &Host, verdict: &str) -> Result<()> {
        let mut last = String::new();
        let came = wait_for(Duration::from_secs(15), Duration::from_millis(50), || {
            last = said(&host.shell(&self.checkout, "holdfast status --oneline")?).trim().to_owned();
            Ok(last == verdict)
        })?;
        let status = || said(&host.shell(&self.checkout, "holdfast status; holdfast events").expect("a shell"));
        ensure!(came, "{} says '{last}', not '{verdict}'\n{}", host.name, status());
        Ok(())
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in &self.hosts {
                eprintln!("{}", said(&host.shell(Path::new("/"), "cat /run/agent.log").expect("a shell")));
            }
        }
    }
}

/// A directory as a checkout is after the page's build.
fn checkout(directory: &Path) -> Result<PathBuf> {
    let checkout = directory.join("checkout");
    let release = checkout.join("target/release");
    fs::create_dir_all(&release)?;
    symlink(tree().join("agent"), checkout.join("agent"))?;
    let binary = holdfast()?;
    symlink(&binary, release.join("holdfast"))?;
    // What is installed beside the agent; nothing here runs it.
    let drill = binary.with_file_name("holdfast-drill");
    symlink(if drill.exists() { &drill } else { &binary }, release.join("holdfast-drill"))?;
    Ok(checkout)
}

#[test]
fn two_hosts_set_up_word_for_word_serve_a_client_and_are_drained_and_undrained() -> Result<()> {
    if skipped(&["haproxy", "curl", "nsenter", "unshare"]) {
        return Ok(());
    }
    let two = Two::up()?;
    two.each("install")?;
    two.configure(&two.each("keys")?)?;
    for said in two.each("start")? {
        ensure!(said.contains("ok\n"), "holdfast check: {said}");
    }
    let ok = "OK: 2/2 nodes, web on lb1, can lose 1";
    ensure!(fs::read_to_string(tree().join("README.md"))?.contains(&format!("`{ok}`")), "the page shows another line");
    for host in &two.hosts {
        two.says(host, ok)?;
        let said = host.follow(&two.checkout, two.page.block("status")?)?;
        ensure!(said.starts_with(&format!("{ok}\n")), "{said}");
    }
    ensure!(two.answer()? == "from lb1", "{}", two.answer()?);

    // A host is taken out and comes back, in the page's two steps.
    let steps = two.page.block("drain")?;
    let (drain, undrain) = steps.trim_end().split_once('\n').context("the page drains and undrains")?;
    let lb1 = &two.hosts[0];
    // A connection is open meanwhile: it is counted and told.
    let held = format!("bash -c 'exec 3<>/dev/tcp/192.0.2.10/80; {drain}'");
    let said = lb1.follow(&two.checkout, &held)?;
    ensure!(said.contains("drained in") && said.contains("open through this host break"), "{said}");
    ensure!(!said.contains("; 0 connections"), "{said}");
    two.says(&two.hosts[1], "DEGRADED: 2/2 nodes, web on lb2, can lose 0")?;
    ensure!(two.answer()? == "from lb2", "{}", two.answer()?);
    ensure!(!lb1.addresses("eth0")?.contains("192.0.2.10/"), "{}", lb1.addresses("eth0")?);
    lb1.follow(&two.checkout, undrain)?;
    for host in &two.hosts {
        two.says(host, ok)?;
    }
    ensure!(two.answer()? == "from lb1", "{}", two.answer()?);
    let events = lb1.follow(&two.checkout, "holdfast events")?;
    ensure!(events.contains("kernel update"), "the drain's reason is in the journal: {events}");
    Ok(())
}

#[test]
fn a_balancer_that_dies_as_a_unit_moves_the_address() -> Result<()> {
    if skipped(&["haproxy", "curl", "nsenter", "unshare"]) {
        return Ok(());
    }
    let mut two = Two::up()?;
    two.each("install")?;
    two.configure(&two.each("keys")?)?;
    two.each("start")?;
    two.says(&two.hosts[0], "OK: 2/2 nodes, web on lb1, can lose 1")?;
    two.balancers[0].stop(Duration::from_secs(5));
    two.says(&two.hosts[1], "DEGRADED: 2/2 nodes, web on lb2, can lose 0")?;
    ensure!(two.answer()? == "from lb2", "{}", two.answer()?);
    Ok(())
}

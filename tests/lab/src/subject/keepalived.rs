//! keepalived at its best, for comparison: VRRPv3 at 100 ms, priorities 254/253, real-time, a `track_file` that a
//! pidfd watcher of the lab writes the moment the balancer dies, and a `vrrp_script` against a hung one.

use crate::env::{Lacks, find_program};
use crate::fabric::Lb;
use crate::faults::Fault;
use crate::load::Stopper;
use crate::process::{Pidfd, Proc, children, kill_pid};
use crate::subject::{Place, Subject};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One host.
#[derive(Debug, Default)]
struct Host {
    daemon: Option<Proc>,
    balancer: Option<Proc>,
    watcher: Option<Stopper>,
}

/// The pair.
#[derive(Debug, Default)]
pub struct Keepalived {
    hosts: [Host; 2],
}

impl Keepalived {
    /// Checks that it is installed.
    ///
    /// # Errors
    /// [`Lacks`].
    pub fn new() -> Result<Self> {
        if find_program("keepalived").is_none() {
            bail!(Lacks("keepalived".into()));
        }
        Ok(Self::default())
    }

    fn host(&mut self, lb: Lb) -> &mut Host {
        &mut self.hosts[lb.index()]
    }

    fn start_daemon(&mut self, place: &Place, lb: Lb) -> Result<()> {
        let config = config(place, lb, &place.file(&format!("{}-track", lb.name())));
        self.host(lb).daemon = Some(daemon(place, lb, &config)?);
        Ok(())
    }

    fn start_balancer(&mut self, place: &Place, lb: Lb) -> Result<()> {
        place.balancer.nat(&place.fabric, lb, true)?;
        let Some(argv) = place.balancer.command(&place.fabric, lb)? else { return Ok(()) };
        let (program, args) = argv.split_first().context("a command has a program")?;
        let mut c = place.fabric.lb(lb).command(program);
        c.args(args);
        let log = place.file(&format!("{}-balancer.log", lb.name()));
        let p = Proc::start(format!("balancer on {}", lb.name()), c, &log)?;
        let watched = Pidfd::open(p.pid())?;
        let track = place.file(&format!("{}-track", lb.name()));
        let host = self.host(lb);
        host.balancer = Some(p);
        host.watcher = Some(Stopper::spawn("pidfd", move |stop| {
            while !stop() {
                if watched.wait_ended(Duration::from_millis(50)) {
                    std::fs::write(&track, "-254\n")?;
                    break;
                }
            }
            Ok(())
        })?);
        Ok(())
    }
}

/// Starts it on `lb` with that configuration, for VRRP alone.
///
/// # Errors
/// A file can't be written, or the program not be started.
pub(crate) fn daemon(place: &Place, lb: Lb, config: &str) -> Result<Proc> {
    let name = lb.name();
    let conf = place.file(&format!("{name}-keepalived.conf"));
    std::fs::write(&conf, config)?;
    let mut c = place.fabric.lb(lb).command("keepalived");
    c.args(["-n", "-l", "-D", "-G", "-P", "-f"]).arg(conf);
    for (flag, file) in [("-p", "parent.pid"), ("-r", "vrrp.pid")] {
        let pidfile = place.file(&format!("{name}-{file}"));
        let _absent = std::fs::remove_file(&pidfile);
        c.arg(flag).arg(pidfile);
    }
    let log = place.file(&format!("{name}-keepalived.log"));
    Proc::start(format!("keepalived on {name}"), c, &log)
}

/// Ends it in order, or else it and its children.
pub(crate) fn end(mut daemon: Proc) {
    let below: Vec<i32> = children(daemon.pid()).into_iter().map(|s| s.pid).collect();
    if !daemon.stop(Duration::from_secs(2)) {
        below.into_iter().for_each(kill_pid);
    }
}

/// How it is at its best, whatever it is asked to do: lines of `global_defs`.
pub(crate) const GLOBAL: &str = "  script_user root\n  vrrp_version 3\n  vrrp_skip_check_adv_addr\n  \
     vrrp_rt_priority 50\n  vrrp_rlimit_rttime 1000000\n  vrrp_no_swap\n";

fn config(place: &Place, lb: Lb, track: &Path) -> String {
    let mut t = format!(
        "global_defs {{\n  enable_script_security\n{GLOBAL}}}\ntrack_file balancer {{\n  file \"{}\"\n  weight 1\n}}\n\
         vrrp_script web {{\n  script \"/usr/bin/curl -fsS -m 0.5 -o /dev/null http://127.0.0.1/healthz\"\n  \
         interval 1\n  timeout 1\n  fall 1\n  rise 1\n}}\n",
        track.display()
    );
    let adverts = place.adverts.as_secs_f64();
    for (n, address, vrid) in place.addresses() {
        t += &format!(
            "vrrp_instance web{n} {{\n  state BACKUP\n  interface eth0\n  virtual_router_id {vrid}\n  priority {}\n  \
             advert_int {adverts}\n  virtual_ipaddress {{\n    {address}/32 dev eth0\n  }}\n  \
             track_file {{\n    balancer\n  }}\n  track_script {{\n    web\n  }}\n}}\n",
            lb.priority()
        );
    }
    t
}

impl Subject for Keepalived {
    fn version(&self) -> String {
        let out = Command::new("keepalived").arg("--version").output();
        let text = out.map(|o| String::from_utf8_lossy(&o.stderr).into_owned()).unwrap_or_default();
        let words: Vec<&str> = text.lines().next().unwrap_or("Keepalived").split(' ').take(2).collect();
        words.join(" ").to_lowercase()
    }

    fn lacks(&self, fault: Fault) -> Option<String> {
        match fault {
            Fault::WorkerRestarted => Some("its child isn't replaced in order".into()),
            Fault::WorkerLost => Some("its child can't be kept from starting without its parent".into()),
            _ => None,
        }
    }

    fn start(&mut self, place: &Place, lb: Lb) -> Result<()> {
        std::fs::write(place.file(&format!("{}-track", lb.name())), "0\n")?;
        self.start_balancer(place, lb)?;
        self.start_daemon(place, lb)
    }

    fn balancer(&self, _place: &Place, lb: Lb) -> Result<i32> {
        Ok(self.hosts[lb.index()].balancer.as_ref().context("no balancer process")?.pid())
    }

    fn worker(&self, lb: Lb) -> Result<i32> {
        let parent = self.hosts[lb.index()].daemon.as_ref().context("keepalived isn't running")?.pid();
        let child = children(parent).into_iter().find(|s| s.comm.starts_with("keepalived"));
        Ok(child.context("keepalived has no VRRP child")?.pid)
    }

    fn agent(&self, lb: Lb) -> Vec<i32> {
        let Some(d) = &self.hosts[lb.index()].daemon else { return Vec::new() };
        // The child first: its parent's death would make it stop in order.
        children(d.pid()).into_iter().map(|s| s.pid).chain([d.pid()]).collect()
    }

    fn start_again(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.host(lb).daemon = None;
        self.start_daemon(place, lb)
    }

    fn worker_can_start(&mut self, _place: &Place, _lb: Lb, _can: bool) -> Result<()> {
        bail!("not applicable to keepalived")
    }

    fn upgrade(&mut self, _place: &Place, _lb: Lb) -> Result<()> {
        bail!("not applicable to keepalived")
    }

    fn mend_balancer(&mut self, place: &Place, lb: Lb) -> Result<()> {
        if self.host(lb).balancer.as_mut().is_some_and(Proc::alive) {
            return Ok(());
        }
        self.host(lb).watcher = None;
        self.start_balancer(place, lb)?;
        Ok(std::fs::write(place.file(&format!("{}-track", lb.name())), "0\n")?)
    }

    fn drain(&mut self, _place: &Place, lb: Lb) -> Result<()> {
        let Some(mut d) = self.host(lb).daemon.take() else { bail!("keepalived isn't running") };
        if !d.stop(Duration::from_secs(5)) {
            bail!("keepalived didn't stop within 5 s");
        }
        Ok(())
    }

    fn undrain(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.start_daemon(place, lb)
    }

    fn ended(&mut self) -> Option<String> {
        self.hosts.iter_mut().filter_map(|h| h.daemon.as_mut()).find_map(|d| (!d.alive()).then(|| d.label.clone()))
    }

    fn stop(&mut self) {
        for lb in Lb::BOTH {
            let host = self.host(lb);
            if let Some(d) = host.daemon.take() {
                end(d);
            }
            host.watcher = None;
            if let Some(mut b) = host.balancer.take() {
                b.kill();
            }
        }
    }

    fn journal(&self, _place: &Place, _lb: Lb) -> Vec<String> {
        Vec::new()
    }
}

//! Holdfast itself: an agent per host from a copy of the binary, HAProxy started by the agent.

use crate::agent;
use crate::balancer::Kind;
use crate::fabric::{Lb, wait_for};
use crate::faults::Fault;
use crate::process::{Proc, Stat, children, kill_pid};
use crate::subject::{Place, Subject};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pair.
#[derive(Debug)]
pub struct Holdfast {
    binary: PathBuf,
    daemons: [Option<Proc>; 2],
    /// Public keys of both.
    keys: Option<[String; 2]>,
    /// What stands in the configuration of each in place of our own balancer and check.
    sections: Option<[String; 2]>,
    /// What stands in it in place of our own VIPs.
    vips: Option<[String; 2]>,
}

impl Holdfast {
    /// The agent at `binary`.
    #[must_use]
    pub fn new(binary: PathBuf) -> Self {
        Self { binary, daemons: [None, None], keys: None, sections: None, vips: None }
    }

    /// The same with these `[[balancer]]` and `[[check]]` sections: of lb1, of lb2.
    #[must_use]
    pub fn with_sections(self, sections: [String; 2]) -> Self {
        Self { sections: Some(sections), ..self }
    }

    /// The same with these `[[vip]]` sections: of lb1, of lb2.
    #[must_use]
    pub fn with_vips(self, vips: [String; 2]) -> Self {
        Self { vips: Some(vips), ..self }
    }

    /// The copy of the binary that `lb` runs; a drill may swap it.
    fn program(place: &Place, lb: Lb) -> PathBuf {
        place.file(&format!("{}-bin/holdfast", lb.name()))
    }

    /// `--config`, `--runtime-dir` and `--state-dir` of `lb`.
    #[must_use]
    pub fn places(place: &Place, lb: Lb) -> Vec<String> {
        let path = |what: &str| place.file(&format!("{}-{what}", lb.name())).to_string_lossy().into_owned();
        vec![
            "--config".into(),
            path("holdfast.toml"),
            "--runtime-dir".into(),
            path("run"),
            "--state-dir".into(),
            path("state"),
        ]
    }

    /// Writes the binary's copy, directories, keys and configuration of `lb`.
    ///
    /// # Errors
    /// A file, or `holdfast keygen`.
    pub fn prepare(&mut self, place: &Place, lb: Lb) -> Result<()> {
        let program = Self::program(place, lb);
        for d in ["bin", "run", "state"] {
            std::fs::create_dir_all(place.file(&format!("{}-{d}", lb.name())))?;
        }
        if !program.exists() {
            place_binary(&self.binary, &program)?;
        }
        if place.channel && self.keys.is_none() {
            let key = |lb| agent::keygen(&self.binary, &key_file(place, lb));
            self.keys = Some([key(Lb::Lb1)?, key(Lb::Lb2)?]);
        }
        let toml = self.config(place, lb)?;
        std::fs::write(place.file(&format!("{}-holdfast.toml", lb.name())), toml)?;
        Ok(())
    }

    fn config(&self, place: &Place, lb: Lb) -> Result<String> {
        let mut t = format!("[node]\nname = \"{}\"\n\n", lb.name());
        match &self.sections {
            Some(sections) => t += &sections[lb.index()],
            None => t += &own_sections(place, lb)?,
        }
        if let Some(vips) = &self.vips {
            t += &vips[lb.index()];
        }
        let ms = place.adverts.as_millis();
        for (n, address, vrid) in place.addresses().filter(|_| self.vips.is_none()) {
            let name = if n == 0 { "web".to_owned() } else { format!("web{n}") };
            t += &format!(
                "[[vip]]\nname = \"{name}\"\naddresses = [\"{address}/32\"]\n\
                 vrrp = {{ interface = \"eth0\", vrid = {vrid}, priority = {}, interval = \"{ms}ms\" }}\n\n",
                lb.priority()
            );
        }
        if let (true, Some(keys)) = (place.channel, &self.keys) {
            let peer = lb.other();
            t += &format!(
                "[cluster]\nlisten = \"{}:7712\"\nkey_file = \"{}\"\n\n[[cluster.peer]]\nname = \"{}\"\n\
                 address = \"{}:7712\"\npublic_keys = [\"{}\"]\n",
                lb.channel(),
                key_file(place, lb).display(),
                peer.name(),
                peer.channel(),
                keys[peer.index()]
            );
        }
        Ok(t)
    }

    fn start_daemon(&mut self, place: &Place, lb: Lb) -> Result<()> {
        let mut c = place.fabric.lb(lb).command(Self::program(place, lb));
        c.arg("run").args(Self::places(place, lb));
        let log = place.file(&format!("{}-holdfast.log", lb.name()));
        self.daemons[lb.index()] = Some(Proc::start(format!("holdfast on {}", lb.name()), c, &log)?);
        Ok(())
    }

    fn keeper(&self, lb: Lb) -> Result<i32> {
        Ok(self.daemons[lb.index()].as_ref().context("the agent isn't running")?.pid())
    }

    /// Runs a client command against `lb`'s agent.
    ///
    /// # Errors
    /// It exited with another code than 0; the text holds what it said.
    pub fn client(&self, place: &Place, lb: Lb, words: &[&str]) -> Result<String> {
        let mut c = place.fabric.lb(lb).command(&self.binary);
        c.args(words).args(Self::places(place, lb));
        agent::checked(c.output().context("run the client")?, &format!("holdfast {}", words.join(" ")))
    }

    /// The agent's process on `lb`, for commands that start and stop it themselves.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_only(&mut self, place: &Place, lb: Lb) -> Result<&mut Proc> {
        self.start_daemon(place, lb)?;
        self.daemons[lb.index()].as_mut().context("just started")
    }
}

/// The balancer that all other drills have, started by the agent, and a check that asks it alone.
fn own_sections(place: &Place, lb: Lb) -> Result<String> {
    let mut t = String::new();
    if let Some(argv) = place.balancer.command(&place.fabric, lb)? {
        let kind = if place.balancer == Kind::Haproxy { "haproxy" } else { "process" };
        let argv: Vec<String> = argv.iter().map(|a| format!("{a:?}")).collect();
        t += &format!("[[balancer]]\nname = \"balancer\"\nkind = \"{kind}\"\ncommand = [{}]\n\n", argv.join(", "));
    }
    t += "[[check]]\nname = \"web\"\nhttp = \"http://127.0.0.1:80/healthz\"\ninterval = \"100ms\"\n\
          fast_interval = \"100ms\"\ntimeout = \"100ms\"\nfall = 2\nrise = 2\n\n";
    Ok(t)
}

/// A name of its own for the binary. What is swapped later is the name, so a hard link does.
fn place_binary(from: &Path, to: &Path) -> Result<()> {
    let _absent = std::fs::remove_file(to);
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    }
    Ok(())
}

fn key_file(place: &Place, lb: Lb) -> PathBuf {
    place.file(&format!("{}-node.key", lb.name()))
}

impl Subject for Holdfast {
    fn version(&self) -> String {
        agent::version(&self.binary)
    }

    fn lacks(&self, _fault: Fault) -> Option<String> {
        None
    }

    fn start(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.prepare(place, lb)?;
        place.balancer.nat(&place.fabric, lb, true)?;
        self.start_daemon(place, lb)
    }

    fn balancer(&self, place: &Place, lb: Lb) -> Result<i32> {
        let comm = place.balancer.comm().context("this balancer has no process")?;
        let mine = children(self.keeper(lb)?).into_iter().find(|s| s.comm == comm).map(|s| s.pid);
        // One that a former keeper started is a child of init by now.
        let adopted = || place.fabric.lb(lb).pids().into_iter().find(|&p| Stat::of(p).is_some_and(|s| s.comm == comm));
        mine.or_else(adopted).with_context(|| format!("no {comm} process on {}", lb.name()))
    }

    fn worker(&self, lb: Lb) -> Result<i32> {
        agent::worker_of(self.keeper(lb)?)
    }

    fn agent(&self, lb: Lb) -> Vec<i32> {
        // The worker first: it must not see the keeper go.
        self.worker(lb).into_iter().chain(self.keeper(lb)).collect()
    }

    fn start_again(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.daemons[lb.index()] = None;
        self.start_daemon(place, lb)
    }

    fn worker_can_start(&mut self, place: &Place, lb: Lb, can: bool) -> Result<()> {
        let program = Self::program(place, lb);
        let config = place.file(&format!("{}-holdfast.toml", lb.name()));
        if can {
            let fresh = program.with_extension("new");
            place_binary(&self.binary, &fresh)?;
            std::fs::rename(fresh, program)?;
            std::fs::write(config, self.config(place, lb)?)?;
        } else {
            // By name it is a program that fails; and whoever still has the old inode finds a broken file.
            let broken = program.with_extension("broken");
            std::fs::write(&broken, "#!/bin/false\n")?;
            std::fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            std::fs::rename(broken, program)?;
            std::fs::write(config, "this is no configuration\n")?;
        }
        Ok(())
    }

    fn mend_balancer(&mut self, place: &Place, lb: Lb) -> Result<()> {
        // The agent's own business; here we only wait for it.
        let back =
            wait_for(Duration::from_secs(20), Duration::from_millis(20), || Ok(self.balancer(place, lb).is_ok()))?;
        if !back {
            bail!("the agent didn't start the balancer again within 20 s");
        }
        Ok(())
    }

    fn upgrade(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.client(place, lb, &["upgrade"]).map(|_| ())
    }

    fn drain(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.client(place, lb, &["drain", "--reason", "drill"]).map(|_| ())
    }

    fn undrain(&mut self, place: &Place, lb: Lb) -> Result<()> {
        self.client(place, lb, &["undrain"]).map(|_| ())
    }

    fn ended(&mut self) -> Option<String> {
        self.daemons.iter_mut().flatten().find_map(|d| (!d.alive()).then(|| d.label.clone()))
    }

    fn stop(&mut self) {
        for lb in Lb::BOTH {
            let pids = self.agent(lb);
            if let Some(mut d) = self.daemons[lb.index()].take()
                && !d.stop(Duration::from_secs(5))
            {
                pids.into_iter().for_each(kill_pid);
            }
        }
    }

    fn journal(&self, place: &Place, lb: Lb) -> Vec<String> {
        agent::last_events(&self.client(place, lb, &["events"]).unwrap_or_default())
    }
}

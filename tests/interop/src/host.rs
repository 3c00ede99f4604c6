//! A host as its operator sees it: a network namespace of the fabric, and a mount namespace with `/etc`, `/run`,
//! `/usr/sbin` and `/var/lib` of its own. What is done there never touches this machine's.

use crate::said;
use anyhow::{Context, Result, bail};
use holdfast_lab::fabric::wait_for;
use holdfast_lab::netns::{DIRECTORY, Netns};
use holdfast_lab::process::Proc;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// One host.
#[derive(Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    anchor: Proc,
    /// Where its own files lie as seen from outside.
    root: PathBuf,
    /// Programs that stand in for the system's: first in its PATH.
    shims: PathBuf,
    cgroup: Option<PathBuf>,
}

impl Host {
    /// Makes one in `ns`, with its files below `directory`.
    ///
    /// # Errors
    /// A mount or a file; the text has what the shell said.
    pub fn new(name: &str, ns: &Netns, directory: &Path) -> Result<Self> {
        let root = directory.join(format!("{name}-root"));
        let shims = root.join("shims");
        fs::create_dir_all(&shims)?;
        let group = format!("{}-{name}", ns.name());
        let cgroup = systemd_tree().map(|tree| (tree.join(&group), tree));
        let cgroup = cgroup.filter(|(own, _)| fs::create_dir(own).is_ok());
        let mut script = format!("set -e\nmount --make-rprivate /\nroot={}\n", root.display());
        script.push_str("mkdir -p $root/run $root/var-lib $root/usr-sbin\n");
        script.push_str("cp -a /etc $root/etc\ncp -a /usr/sbin/. $root/usr-sbin/\n");
        script.push_str("for d in etc usr-sbin var-lib run; do mount --bind $root/$d /$(echo $d | tr - /); done\n");
        if let Some((own, tree)) = &cgroup {
            script.push_str(&format!("mount --bind {} {}\n", own.display(), tree.display()));
        }
        script.push_str("touch $root/ready\nexec sleep 100000\n");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={DIRECTORY}/{}", ns.name())).args(["unshare", "-m", "sh", "-c", &script]);
        let log = directory.join(format!("{name}-anchor.log"));
        let mut anchor = Proc::start(format!("host {name}"), command, &log)?;
        let ready = root.join("ready");
        let made = wait_for(Duration::from_secs(20), Duration::from_millis(20), || Ok(ready.exists()))?;
        if !made || !anchor.alive() {
            bail!("host {name}: {}", fs::read_to_string(&log).unwrap_or_default().trim());
        }
        Ok(Self { name: name.to_owned(), anchor, root, shims, cgroup: cgroup.map(|(own, _)| own) })
    }

    /// Whether units can be shown to the agent: this machine has a control group tree that we may write to.
    #[must_use]
    pub fn has_units(&self) -> bool {
        self.cgroup.is_some()
    }

    /// A command on this host.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.anchor.pid().to_string(), "-n", "-m", "--", program]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin:{path}", self.shims.display()));
        command
    }

    /// Runs lines as an operator's shell would in `directory`, stopping at the first that fails.
    ///
    /// # Errors
    /// The shell can't be started.
    pub fn shell(&self, directory: &Path, lines: &str) -> Result<Output> {
        let lines = format!("cd {} && set -eu\n{lines}", directory.display());
        self.command("sh").args(["-c", &lines]).output().context("start a shell")
    }

    /// [`Self::shell`] that must end with 0; gives what was said.
    ///
    /// # Errors
    /// It ended otherwise.
    pub fn follow(&self, directory: &Path, lines: &str) -> Result<String> {
        let output = self.shell(directory, lines)?;
        if !output.status.success() {
            bail!("{}: {}: {}\n{lines}", self.name, output.status, said(&output).trim());
        }
        Ok(said(&output))
    }

    /// Writes a file of this host.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let (top, rest) = ["/etc/", "/run/", "/usr/sbin/", "/var/lib/"]
            .iter()
            .find_map(|top| Some((top.trim_matches('/').replace('/', "-"), path.strip_prefix(top)?)))
            .with_context(|| format!("{path} is not in one of this host's own directories"))?;
        let path = self.root.join(top).join(rest);
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Puts a stand-in for a program of the system in place.
    ///
    /// # Errors
    /// It can't be written.
    pub fn shim(&self, name: &str, script: &str) -> Result<()> {
        let path = self.shims.join(name);
        fs::write(&path, script)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
    }

    /// Starts a service in a unit of its own, as systemd would, as far as the agent can see.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_unit(&self, unit: &str, program: &str, arguments: &[&str]) -> Result<Proc> {
        let mut script = String::new();
        if let Some(cgroup) = &self.cgroup {
            let unit = cgroup.join("system.slice").join(unit);
            fs::create_dir_all(&unit)?;
            script = format!("echo $$ > {}/cgroup.procs && ", self.seen(&unit).display());
        }
        script.push_str("exec \"$0\" \"$@\"");
        let mut command = self.command("sh");
        command.args(["-c", &script, program]).args(arguments);
        Proc::start(format!("{unit} on {}", self.name), command, &self.root.join(format!("{unit}.log")))
    }

    /// A path in our control group as this host sees it.
    fn seen(&self, path: &Path) -> PathBuf {
        let own = self.cgroup.as_deref().unwrap_or_else(|| Path::new("/"));
        let tree = own.parent().unwrap_or(own);
        tree.join(path.strip_prefix(own).unwrap_or(path))
    }

    /// Addresses on an interface, as `ip` prints them.
    ///
    /// # Errors
    /// `ip` can't be started.
    pub fn addresses(&self, interface: &str) -> Result<String> {
        Ok(said(&self.command("ip").args(["-br", "addr", "show", "dev", interface]).output()?))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(own) = &self.cgroup else { return };
        // A group can be removed once its processes are gone; the fabric ends what is left in the namespace.
        let end = |dir: &Path| {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Ok(pid) = pid.parse() {
                    holdfast_lab::process::kill_pid(pid);
                }
            }
        };
        let slice = own.join("system.slice");
        let units = fs::read_dir(&slice).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        let all: Vec<PathBuf> = units.filter(|p| p.is_dir()).chain([slice.clone(), own.clone()]).collect();
        all.iter().for_each(|dir| end(dir));
        for dir in &all {
            let _gone = wait_for(Duration::from_secs(2), Duration::from_millis(10), || {
                Ok(!dir.exists() || fs::remove_dir(dir).is_ok())
            });
        }
    }
}

/// Where systemd keeps (or would keep) its units on this machine.
fn systemd_tree() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let ours = filesystem.starts_with("cgroup2 ") || filesystem.contains("name=systemd");
        ours.then(|| mount.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

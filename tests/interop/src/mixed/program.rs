//! Where the peers' programs are: those of this machine, or newer ones in a directory of their own.
//!
//! Debian 12's keepalived 2.2.7 and vrrpd 8.4.4 know one checksum for version 3 and IPv4. Debian 13's know both, so
//! `tests/setup.sh` unpacks them, with all the libraries they need, below `target/peers/debian13`; their own dynamic
//! loader starts them there. Nothing of that is installed.

use super::cell::Cell;
use anyhow::{Result, bail};
use holdfast_lab::env::{Lacks, find_program};
use holdfast_lab::netns::Netns;
use std::path::PathBuf;
use std::process::Command;

/// A program, ready to be run.
#[derive(Debug, Clone)]
pub struct Program {
    words: Vec<PathBuf>,
    /// A directory that it must find elsewhere: newer keepaliveds end without a file in `/etc/keepalived`.
    etc: Option<(PathBuf, PathBuf)>,
}

impl Program {
    /// keepalived, zebra, vrrpd or vtysh, of the release that the cell needs.
    ///
    /// # Errors
    /// [`Lacks`], by name.
    pub fn find(name: &str, cell: &Cell) -> Result<Self> {
        if cell.newer() { Self::newer(name) } else { Self::installed(name) }
    }

    fn installed(name: &str) -> Result<Self> {
        let frr = PathBuf::from("/usr/lib/frr").join(name);
        match find_program(name).or_else(|| frr.is_file().then_some(frr)) {
            Some(program) => Ok(Self { words: vec![program], etc: None }),
            None => bail!(Lacks(format!("{name} (packages keepalived and frr)"))),
        }
    }

    fn newer(name: &str) -> Result<Self> {
        let root = root();
        let mut places = ["usr/sbin", "usr/lib/frr", "usr/bin"].iter().map(|d| root.join(d).join(name));
        let Some(program) = places.find(|p| p.is_file()) else {
            bail!(Lacks(format!("Debian 13's {name} in {} (tests/setup.sh fetches it)", root.display())));
        };
        let library = root.join("usr/lib/x86_64-linux-gnu");
        let all = [library.clone(), library.join("frr"), library.join("systemd")].map(|p| p.display().to_string());
        let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
        let etc = (name == "keepalived").then(|| (root.join("etc/keepalived"), "/etc/keepalived".into()));
        Ok(Self { words: vec![loader, "--library-path".into(), all.join(":").into(), program], etc })
    }

    /// A command of it in a namespace, under real-time scheduling where that is permitted: a router that starves on a
    /// busy machine tells nothing of how two of them get along. Ours asks for it itself.
    #[must_use]
    pub fn inside(&self, ns: &Netns) -> Command {
        let mut command = ns.command("sh");
        let mut script = String::new();
        if let Some((from, to)) = &self.etc {
            // `ip netns exec` has made a mount namespace of its own for what follows.
            script = format!("mount --bind {} {} && ", from.display(), to.display());
        }
        command.args(["-c", &format!("{script}chrt --rr --pid 50 $$ 2>/dev/null; exec \"$0\" \"$@\"")]);
        command.args(&self.words);
        command
    }

    /// A command of it here.
    #[must_use]
    pub fn command(&self) -> Command {
        let (first, rest) = self.parts();
        let mut command = Command::new(first);
        command.args(rest);
        command
    }

    fn parts(&self) -> (&PathBuf, &[PathBuf]) {
        self.words.split_first().expect("a program has a path")
    }
}

/// Where the newer ones are.
fn root() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::tree().join("target"), PathBuf::from);
    std::env::var_os("HOLDFAST_PEERS").map_or_else(|| target.join("peers/debian13"), PathBuf::from)
}

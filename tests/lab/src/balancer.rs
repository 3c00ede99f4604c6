//! The balancer behind the VIP: HAProxy when installed, else nftables NAT, else the lab's own forwarder.

use crate::env::{Lacks, find_program};
use crate::fabric::{BACKEND_PORT, BACKENDS, Fabric, Lb, nft};
use anyhow::{Context, Result, bail};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

/// Which balancer a run uses; the report says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// HAProxy in http mode.
    Haproxy,
    /// nftables destination NAT in the host; there is no process.
    Nft,
    /// `holdfast-drill forward`.
    Forward,
}

impl Kind {
    /// The best one this machine has.
    #[must_use]
    pub fn best() -> Self {
        if find_program("haproxy").is_some() {
            Self::Haproxy
        } else if find_program("nft").is_some() {
            Self::Nft
        } else {
            Self::Forward
        }
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nft => "nft",
            Self::Forward => "forward",
        }
    }

    /// The kernel's name for its process.
    #[must_use]
    pub fn comm(self) -> Option<&'static str> {
        match self {
            Self::Haproxy => Some("haproxy"),
            Self::Nft => None,
            Self::Forward => Some("holdfast-drill"),
        }
    }

    /// The command line for `lb`, its files written; `None`: there is no process.
    ///
    /// # Errors
    /// A file can't be written, or the balancer isn't installed.
    pub fn command(self, fabric: &Fabric, lb: Lb) -> Result<Option<Vec<String>>> {
        match self {
            Self::Haproxy => {
                let file = fabric.directory().join(format!("{}-haproxy.cfg", lb.name()));
                haproxy(file, lb.name(), &BACKENDS).map(Some)
            }
            Self::Forward => {
                let me = text(std::env::current_exe()?);
                let mut argv = vec![me, "forward".into(), "--listen".into(), "0.0.0.0:80".into()];
                for b in BACKENDS {
                    argv.extend(["--backend".into(), format!("{b}:{BACKEND_PORT}")]);
                }
                Ok(Some(argv))
            }
            Self::Nft => Ok(None),
        }
    }

    /// Puts the NAT rules of `lb` in place, or takes them away; nothing for the other kinds.
    ///
    /// # Errors
    /// nft refused, or isn't installed.
    pub fn nat(self, fabric: &Fabric, lb: Lb, on: bool) -> Result<()> {
        if self != Self::Nft {
            return Ok(());
        }
        let backends: Vec<String> =
            BACKENDS.iter().enumerate().map(|(i, b)| format!("{i} : {b} . {BACKEND_PORT}")).collect();
        let map = format!("dnat ip to numgen inc mod 3 map {{ {} }}", backends.join(", "));
        let rules = format!(
            "table ip hflab {{\n chain pre {{\n type nat hook prerouting priority -100\n tcp dport 80 {map}\n }}\n \
             chain out {{\n type nat hook output priority -100\n ip daddr 127.0.0.1 tcp dport 80 {map}\n }}\n \
             chain post {{\n type nat hook postrouting priority 100\n oifname \"eth1\" masquerade\n }}\n}}\n"
        );
        let script = if on { rules } else { "delete table ip hflab\n".to_owned() };
        let ns = fabric.lb(lb);
        ns.inside(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", if on { "1" } else { "0" })?;
            std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1")?;
            Ok(())
        })?;
        nft(&ns, &script)
    }

    /// Its version, for reports.
    #[must_use]
    pub fn version(self) -> String {
        let out = match self {
            Self::Haproxy => Command::new("haproxy").arg("-v").output(),
            Self::Nft => Command::new("nft").arg("--version").output(),
            Self::Forward => return format!("forward {}", env!("CARGO_PKG_VERSION")),
        };
        let out = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let words: Vec<&str> = out.lines().next().unwrap_or_else(|| self.name()).split(' ').take(3).collect();
        words.join(" ")
    }
}

fn text(p: PathBuf) -> String {
    p.to_string_lossy().into_owned()
}

/// HAProxy's command line on the host of that name, its configuration written to `file`.
///
/// # Errors
/// HAProxy isn't installed, or the file can't be written.
pub fn haproxy(file: PathBuf, host: &str, backends: &[Ipv4Addr]) -> Result<Vec<String>> {
    let Some(program) = find_program("haproxy") else { bail!(Lacks("haproxy".into())) };
    let servers: String =
        backends.iter().enumerate().map(|(i, b)| format!("    server b{} {b}:{BACKEND_PORT}\n", i + 1)).collect();
    let config = format!(
        "global\n    maxconn 4000\n    nbthread 1\n\
         defaults\n    mode http\n    timeout connect 1s\n    timeout client 30s\n    timeout server 30s\n    \
         timeout http-keep-alive 30s\n\
         frontend web\n    bind *:80\n    \
         http-request return status 200 content-type text/plain string ok if {{ path /healthz }}\n    \
         http-response set-header x-lb {host}\n    default_backend pool\n\
         backend pool\n    balance roundrobin\n{servers}"
    );
    std::fs::write(&file, config).context("write HAProxy's configuration")?;
    Ok([text(program), "-db".into(), "-f".into(), text(file)].into())
}

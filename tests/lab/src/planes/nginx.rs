//! nginx: a master with one worker, and a status page.

use super::plane::{Host, Plane, first_word_of_version};
use super::situation::{Expected, Reaction, Situation};
use crate::env::{Lacks, find_program};
use crate::fabric::{BACKEND_PORT, BACKENDS, VIP};
use crate::process::Pidfd;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::process::Command;

/// Connections that its worker may have, those to backends among them.
const CONNECTIONS: usize = 200;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 64;
/// Where its status page is.
const STATUS: &str = "127.0.0.1:8081";

/// The plane.
#[derive(Debug)]
pub(super) struct Nginx;

impl Plane for Nginx {
    fn version(&self) -> String {
        let out = Command::new("nginx").arg("-v").output();
        // "nginx version: nginx/1.22.1"
        first_word_of_version(out, '/').map_or_else(|| "nginx".to_owned(), |v| format!("nginx {v}"))
    }

    fn processes(&self) -> &'static [&'static str] {
        &["nginx"]
    }

    fn configure(&self, host: Host<'_>, broken: bool) -> Result<()> {
        let server = |b: &std::net::Ipv4Addr| format!("    server {b}:{BACKEND_PORT} fail_timeout=1s;\n");
        let servers: String = BACKENDS.iter().map(server).collect();
        let temporary = |what: &str| format!("  {what}_temp_path {};\n", host.path(&format!("nginx-{what}")));
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(temporary).concat();
        let broken = if broken { "nonsense;\n" } else { "" };
        let config = format!(
            "daemon off;\nuser root;\npid {};\nerror_log {};\nworker_processes 1;\nworker_shutdown_timeout 30s;\n\
             events {{ worker_connections {CONNECTIONS}; }}\n\
             http {{\n  access_log off;\n{temporary}  upstream pool {{\n{servers}  }}\n  \
             server {{\n    listen {VIP}:80 backlog={BACKLOG};\n    listen 127.0.0.1:80 backlog={BACKLOG};\n    \
             add_header x-lb {} always;\n    location / {{ proxy_pass http://pool; proxy_connect_timeout 1s; }}\n  }}\n  \
             server {{\n    listen {STATUS};\n    location = /status {{ stub_status; }}\n  }}\n}}\n{broken}",
            host.path("nginx.pid"),
            host.path("nginx-error.log"),
            host.lb.name(),
        );
        std::fs::write(host.file("nginx.conf"), config).context("write nginx's configuration")
    }

    fn command(&self, host: Host<'_>) -> Result<Vec<String>> {
        let Some(program) = find_program("nginx") else { bail!(Lacks("nginx".into())) };
        let program = program.to_string_lossy().into_owned();
        Ok([&program, "-c", &host.path("nginx.conf")].map(str::to_owned).into())
    }

    fn section(&self, _host: Host<'_>) -> String {
        format!("admin = \"http://{STATUS}/status\"\n")
    }

    fn workers(&self, host: Host<'_>, main: i32) -> Vec<i32> {
        let title = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let serves = |pid: i32| pid != main && !title(pid).contains("shutting down");
        host.processes(self.processes()).iter().map(|s| s.pid).filter(|pid| serves(*pid)).collect()
    }

    fn counts_reloads(&self) -> bool {
        false
    }

    fn master(&self, main: i32) -> Option<i32> {
        Some(main)
    }

    fn lacks(&self, situation: Situation) -> Option<&'static str> {
        match situation {
            Situation::QueueFull => Some("nginx accepts whatever comes until it has no connection left"),
            _ => None,
        }
    }

    fn expected(&self, situation: Situation) -> Expected {
        match situation {
            Situation::Killed => Expected::new(&["dead"], Reaction::Moves),
            Situation::Stopped => Expected::new(&["failing", "hung"], Reaction::Moves),
            Situation::ExitsZero => Expected::new(&["leaving", "dead"], Reaction::Moves).also(&["failing"]),
            // Its master replaces it.
            Situation::WorkerKilled | Situation::Reload | Situation::Reloads => Expected::no_event(),
            Situation::MasterKilled => Expected::new(&["unsupervised"], Reaction::Stays),
            Situation::FailedReload => Expected::new(&["bad-reload"], Reaction::Stays).also(&["serving"]),
            Situation::ConnectionsFull | Situation::QueueFull | Situation::FilesFull => {
                Expected::new(&["saturated"], Reaction::Stays)
            }
            // It doesn't say what it thinks of its backends.
            Situation::BackendsDown | Situation::BackendsFail => Expected::new(&["sick"], Reaction::Stays),
        }
    }

    fn connections(&self) -> usize {
        CONNECTIONS
    }

    fn exit(&self, _host: Host<'_>, main: &Pidfd) -> Result<()> {
        main.signal(Signal::QUIT).map(|_| ())
    }

    fn reload(&self, _host: Host<'_>, main: &Pidfd) -> Result<()> {
        main.signal(Signal::HUP).map(|_| ())
    }

    fn slow(&self, _host: Host<'_>, _main: i32, _on: bool) -> Result<()> {
        bail!("nothing makes nginx accept slowly")
    }
}

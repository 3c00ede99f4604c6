//! HAProxy: a master with one worker, a stats socket, the master's own socket.

use super::plane::{Host, Plane};
use super::situation::{Expected, Reaction, Situation};
use crate::env::{Lacks, find_program};
use crate::fabric::{BACKEND_PORT, BACKENDS, VIP};
use crate::process::{Pidfd, children};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connections that it may have: more than the drills' own load has, few enough to be used up by hogs.
const MAXCONN: usize = 200;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 64;
/// Connections a second that it accepts while it is slow.
const SLOW: usize = 5;

/// Its sockets.
const ADMIN: &str = "admin.sock";
const MASTER: &str = "master.sock";

/// The plane.
#[derive(Debug)]
pub(super) struct Haproxy;

impl Haproxy {
    /// A command to the worker's stats socket, or to the master's.
    fn ask(host: Host<'_>, socket: &str, command: &str) -> Result<String> {
        const PATIENCE: Option<Duration> = Some(Duration::from_secs(2));
        let mut socket = UnixStream::connect(host.file(socket)).with_context(|| format!("HAProxy's {socket}"))?;
        socket.set_read_timeout(PATIENCE)?;
        socket.set_write_timeout(PATIENCE)?;
        socket.write_all(format!("{command}\n").as_bytes())?;
        let (mut answer, mut some) = (Vec::new(), [0; 4096]);
        // The master stays for more; an empty line ends what it said.
        while !answer.ends_with(b"\n\n") {
            match socket.read(&mut some).with_context(|| format!("HAProxy's answer to {command:?}"))? {
                0 => break,
                n => answer.extend_from_slice(&some[..n]),
            }
        }
        Ok(String::from_utf8_lossy(&answer).trim().to_owned())
    }
}

impl Plane for Haproxy {
    fn version(&self) -> String {
        crate::balancer::Kind::Haproxy.version()
    }

    fn processes(&self) -> &'static [&'static str] {
        &["haproxy"]
    }

    fn configure(&self, host: Host<'_>, broken: bool) -> Result<()> {
        let server = |(i, b): (usize, _)| format!("    server b{} {b}:{BACKEND_PORT} check\n", i + 1);
        let servers: String = BACKENDS.iter().enumerate().map(server).collect();
        let broken = if broken { "    nonsense\n" } else { "" };
        let config = format!(
            "global\n    maxconn {MAXCONN}\n    nbthread 1\n    hard-stop-after 30s\n    \
             stats socket {} mode 666 level admin\n\
             defaults\n    mode http\n    option redispatch 1\n    timeout connect 100ms\n    timeout client 30s\n    timeout server 30s\n    \
             timeout http-keep-alive 30s\n\
             frontend web\n    bind {VIP}:80 backlog {BACKLOG}\n    bind 127.0.0.1:80 backlog {BACKLOG}\n    \
             http-response set-header x-lb {}\n    default_backend pool\n\
             backend pool\n    balance roundrobin\n    default-server inter 150ms fall 2 rise 2\n{servers}{broken}",
            host.path(ADMIN),
            host.lb.name(),
        );
        std::fs::write(host.file("haproxy.cfg"), config).context("write HAProxy's configuration")
    }

    fn command(&self, host: Host<'_>) -> Result<Vec<String>> {
        let Some(program) = find_program("haproxy") else { bail!(Lacks("haproxy".into())) };
        let master = format!("{},mode,666", host.path(MASTER));
        let program = program.to_string_lossy().into_owned();
        Ok([&program, "-W", "-S", &master, "-f", &host.path("haproxy.cfg")].map(str::to_owned).into())
    }

    fn section(&self, host: Host<'_>) -> String {
        format!("admin = \"{}\"\nmaster = \"{}\"\n", host.path(ADMIN), host.path(MASTER))
    }

    fn workers(&self, _host: Host<'_>, main: i32) -> Vec<i32> {
        // Older ones finish what they have.
        children(main).iter().map(|s| s.pid).max().into_iter().collect()
    }

    fn reloaded(&self, host: Host<'_>, main: i32, old: &[i32]) -> bool {
        let new = self.workers(host, main);
        let others = !new.is_empty() && new.iter().all(|pid| !old.contains(pid));
        // A master that still starts loses the next signal; it answers once it is done.
        others && Self::ask(host, MASTER, "show proc").is_ok_and(|said| said.contains(&new[0].to_string()))
    }

    fn master(&self, main: i32) -> Option<i32> {
        Some(main)
    }

    fn lacks(&self, _situation: Situation) -> Option<&'static str> {
        None
    }

    fn expected(&self, situation: Situation) -> Expected {
        match situation {
            // Its processes end together.
            Situation::Killed | Situation::WorkerKilled | Situation::MasterKilled => {
                Expected::new(&["dead"], Reaction::Moves)
            }
            // It refuses whoever comes, and the last of its clients may stay for a while.
            Situation::ExitsZero => Expected::new(&["leaving", "dead"], Reaction::Moves).also(&["failing"]),
            // The check may have failed often enough before the look is done that says why.
            Situation::Stopped => Expected::new(&["failing", "hung"], Reaction::Moves),
            Situation::Reload | Situation::Reloads => Expected::no_event(),
            Situation::FailedReload => Expected::new(&["bad-reload"], Reaction::Stays).also(&["reloading", "serving"]),
            Situation::ConnectionsFull | Situation::QueueFull => Expected::new(&["saturated"], Reaction::Stays),
            // It can't accept those who ask how it is either: nobody can tell it from one that hangs.
            Situation::FilesFull => Expected::new(&["failing"], Reaction::Moves).also(&["hung", "sick", "saturated"]),
            // Until its own checks say so, it looks as if it were ill itself.
            Situation::BackendsDown => Expected::new(&["pool-empty"], Reaction::Stays).also(&["sick"]),
            Situation::BackendsFail => Expected::new(&["sick"], Reaction::Stays),
        }
    }

    fn connections(&self) -> usize {
        MAXCONN
    }

    fn exit(&self, _host: Host<'_>, main: &Pidfd) -> Result<()> {
        main.signal(Signal::USR1).map(|_| ())
    }

    fn reload(&self, _host: Host<'_>, main: &Pidfd) -> Result<()> {
        main.signal(Signal::USR2).map(|_| ())
    }

    fn slow(&self, host: Host<'_>, _main: i32, on: bool) -> Result<()> {
        let rate = if on { SLOW } else { 0 };
        let said = Self::ask(host, ADMIN, &format!("set rate-limit connections global {rate}"))?;
        if !said.is_empty() {
            bail!("HAProxy: {said}");
        }
        Ok(())
    }
}

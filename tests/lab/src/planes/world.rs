//! Two hosts, each with a plane and an agent that watches it, in the fabric of all other drills.

use super::plane::{Host, Kind, Plane};
use super::run::{CHECK_FALL, CHECK_FAST, CHECK_INTERVAL, CHECK_TIMEOUT};
use crate::balancer;
use crate::clock::MS;
use crate::fabric::{Fabric, Lb, wait_for};
use crate::load::{Response, parse_response};
use crate::process::{Proc, kill_pid};
use crate::repeat::{Stage, last_lines};
use crate::responder::Responder;
use crate::subject::holdfast::Holdfast;
use crate::subject::{INTERVAL, Place, Subject};
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a plane may take until it serves.
const UP: Duration = Duration::from_secs(15);

/// Both hosts and what is around them.
#[derive(Debug)]
pub struct World {
    // Dropped in this order: processes first, their network last.
    agents: Holdfast,
    planes: [Option<Proc>; 2],
    responder: Option<Responder>,
    plane: Box<dyn Plane>,
    place: Place,
}

impl Drop for World {
    fn drop(&mut self) {
        self.agents.stop();
    }
}

impl Stage for World {
    fn directory(&self) -> &Path {
        self.place.fabric.directory()
    }
}

impl World {
    /// Builds it; returns when both planes serve and the agents run.
    ///
    /// # Errors
    /// [`crate::env::Lacks`], or something didn't start.
    pub fn start(kind: Kind, holdfast: PathBuf, keep: bool) -> Result<Self> {
        let fabric = Fabric::up(keep)?;
        for lb in Lb::BOTH {
            // Planes bind the VIP on the host that doesn't hold it, too.
            fabric.lb(lb).inside(|| Ok(std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1")?))?;
        }
        let plane = kind.plane();
        let sections = Lb::BOTH.map(|lb| sections(kind, &*plane, Host { fabric: &fabric, lb }));
        let place = Place {
            fabric,
            balancer: balancer::Kind::Forward, // ours are started here
            channel: true,
            vips: 1,
            adverts: INTERVAL,
            busy: Vec::new(),
        };
        let agents = Holdfast::new(holdfast).with_sections(sections);
        let mut w = Self { agents, planes: [None, None], responder: None, plane, place };
        w.backends(true)?;
        for lb in Lb::BOTH {
            w.configure(lb, false)?;
            w.start_plane(lb)?;
        }
        for lb in Lb::BOTH {
            w.agents.start(&w.place, lb)?;
        }
        Ok(w)
    }

    /// Where it runs.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The plane's kind.
    #[must_use]
    pub fn plane(&self) -> &dyn Plane {
        &*self.plane
    }

    /// One of the hosts.
    #[must_use]
    pub fn host(&self, lb: Lb) -> Host<'_> {
        Host { fabric: &self.place.fabric, lb }
    }

    /// The agents' version.
    #[must_use]
    pub fn version(&self) -> String {
        self.agents.version()
    }

    /// What the agent of `lb` says of what happened.
    #[must_use]
    pub fn journal(&self, lb: Lb) -> Vec<String> {
        self.agents.journal(&self.place, lb)
    }

    /// An agent that should run and has ended, by name.
    pub fn ended(&mut self) -> Option<String> {
        self.agents.ended()
    }

    /// The plane's process on `lb`.
    ///
    /// # Errors
    /// It was never started.
    pub fn main(&mut self, lb: Lb) -> Result<&mut Proc> {
        self.planes[lb.index()].as_mut().context("the plane was started")
    }

    /// Its processes on `lb`.
    #[must_use]
    pub fn processes(&self, lb: Lb) -> Vec<i32> {
        self.host(lb).processes(self.plane.processes()).iter().map(|s| s.pid).collect()
    }

    /// Those of them that serve.
    #[must_use]
    pub fn workers(&self, lb: Lb) -> Vec<i32> {
        let main = self.planes[lb.index()].as_ref().map_or(0, Proc::pid);
        self.plane.workers(self.host(lb), main)
    }

    /// The thread of the backends, to give it priority.
    #[must_use]
    pub fn responder_thread(&self) -> Option<i32> {
        self.responder.as_ref().map(Responder::thread)
    }

    /// All backends listen, or none.
    ///
    /// # Errors
    /// A socket.
    pub fn backends(&mut self, up: bool) -> Result<()> {
        self.responder = if up { Some(Responder::start(&self.place.fabric)?) } else { None };
        Ok(())
    }

    /// All backends answer with that status.
    pub fn backends_answer(&self, status: u16) {
        self.responder.iter().for_each(|r| r.answer_with(status));
    }

    /// Writes the plane's configuration on `lb`.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn configure(&self, lb: Lb, broken: bool) -> Result<()> {
        self.plane.configure(self.host(lb), broken)
    }

    /// Starts the plane on `lb`, once nothing of a former one is left there; returns when it serves.
    ///
    /// # Errors
    /// It doesn't start, or doesn't serve.
    pub fn start_plane(&mut self, lb: Lb) -> Result<()> {
        self.planes[lb.index()] = None;
        self.processes(lb).into_iter().for_each(kill_pid);
        let host = self.host(lb);
        let argv = self.plane.command(host)?;
        let Some((program, arguments)) = argv.split_first() else { bail!("a command has a program") };
        let mut command = host.ns().command(program);
        command.args(arguments);
        let what = format!("{} on {}", self.plane.version(), lb.name());
        let mut main = Proc::start(what.clone(), command, &host.file("plane.log"))?;
        let ns = host.ns();
        let serves = wait_for(UP, Duration::from_millis(20), || {
            if !main.alive() {
                bail!("{what} ended as soon as it was started\n{}", last_lines(self.directory()));
            }
            Ok(ns.inside(|| Ok(get())).unwrap_or(false))
        })?;
        if !serves {
            bail!("{what} serves nothing after {} s\n{}", UP.as_secs(), last_lines(self.directory()));
        }
        std::fs::write(host.file("plane.pid"), format!("{}\n", main.pid()))?;
        self.planes[lb.index()] = Some(main);
        Ok(())
    }
}

/// Whether a request from the host itself is answered with 200.
fn get() -> bool {
    const PATIENCE: Duration = Duration::from_millis(500);
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut c = TcpStream::connect_timeout(&([127, 0, 0, 1], 80).into(), PATIENCE)?;
        c.set_read_timeout(Some(PATIENCE))?;
        c.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        c.read_to_end(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|a| matches!(parse_response(&a), Response::Complete(200, ..)))
}

/// What the agent of `host` is told of the plane, and how it asks it: by a check that goes through to the backends.
fn sections(kind: Kind, plane: &dyn Plane, host: Host<'_>) -> String {
    let ms = |ns: u64| ns / MS;
    format!(
        "[[balancer]]\nname = \"plane\"\nkind = \"{}\"\npidfile = \"{}\"\n{}\n\
         [[check]]\nname = \"web\"\nhttp = \"http://127.0.0.1:80/\"\ninterval = \"{}ms\"\nfast_interval = \"{}ms\"\n\
         timeout = \"{}ms\"\nfall = {CHECK_FALL}\nrise = 2\n\n",
        kind.name(),
        host.path("plane.pid"),
        plane.section(host),
        ms(CHECK_INTERVAL),
        ms(CHECK_FAST),
        ms(CHECK_TIMEOUT),
    )
}

//! A route that failed never comes back by itself: not with the session, not with the agent, not in the middle.

use super::agent::Agent;
use super::neighbor::Neighbor;
use super::{Options, Outcome, network};
use crate::bgp::net::{Net, VIP};
use crate::clock::{MS, Ns, now, sleep_until};
use crate::fabric::wait_for;
use crate::process::kill_pid;
use anyhow::{Result, bail};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// The check: every 100 ms, and the second failure, or success, decides.
const DECIDED: Ns = 500 * MS;
/// After all is at rest, so long is looked whether the route comes back.
const WATCHED: Ns = 700 * MS;
const PATIENCE: Duration = Duration::from_secs(20);

/// What happens to a route that failed, or that is failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It fails while the neighbour is away, which then comes.
    Away,
    /// It has failed; the neighbour goes and comes.
    Flap,
    /// It has failed; the worker is killed and starts again.
    WorkerKilled,
    /// It has failed; the agent is stopped and started.
    Restart,
    /// The session ends between the first failure and the one that decides.
    Middle,
}

const KINDS: [Kind; 5] = [Kind::Away, Kind::Flap, Kind::WorkerKilled, Kind::Restart, Kind::Middle];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Away => "fails while the peer is away",
            Self::Flap => "peer down and up",
            Self::WorkerKilled => "worker killed",
            Self::Restart => "agent restarted",
            Self::Middle => "flap amid a failing check",
        }
    }
}

/// All that a run needs.
struct Scene {
    net: Net,
    neighbor: Neighbor,
    agent: Agent,
    /// The check holds while this is there.
    well: PathBuf,
    vips: String,
}

impl Scene {
    fn start(o: &Options<'_>) -> Result<Self> {
        let net = network()?;
        let well = net.file("well");
        std::fs::write(&well, "")?;
        let vips = format!(
            "\n[[check]]\nname = \"web\"\nexec = [\"/usr/bin/test\", \"-e\", {well:?}]\ninterval = \"100ms\"\n\
             fast_interval = \"100ms\"\ntimeout = \"100ms\"\nfall = 2\nrise = 2\n\n[[vip]]\nname = \"web\"\n\
             addresses = [\"{VIP}/32\"]\nbgp = {{ withdraw_wait = \"100ms\" }}\n"
        );
        let mut neighbor = Neighbor::new(net.ns("rt"));
        neighbor.come()?;
        let mut agent = Agent::new(o.holdfast);
        agent.start(&net, &vips)?;
        let mut scene = Self { net, neighbor, agent, well, vips };
        scene.announced("at the start")?;
        Ok(scene)
    }

    fn has(&self) -> bool {
        self.neighbor.state().table.contains(&(VIP.into(), 32))
    }

    fn announced(&mut self, when: &str) -> Result<()> {
        if !wait_for(PATIENCE, Duration::from_millis(5), || Ok(self.has()))? {
            bail!("not announced {when}\n{}", self.agent.told(&self.net));
        }
        Ok(())
    }

    fn withdrawn(&self) -> Result<()> {
        if !wait_for(PATIENCE, Duration::from_millis(5), || Ok(!self.has()))? {
            bail!("a route that failed wasn't withdrawn\n{}", self.agent.told(&self.net));
        }
        Ok(())
    }

    /// The next session, whole: everything that it had to say was said.
    fn session(&self, after: usize) -> Result<()> {
        let whole = || {
            let s = self.neighbor.state();
            Ok(s.sessions > after && s.complete)
        };
        if !wait_for(PATIENCE, Duration::from_millis(5), whole)? {
            bail!("no session within {} s\n{}", PATIENCE.as_secs(), self.agent.told(&self.net));
        }
        Ok(())
    }

    /// How often the route came since `from`.
    fn came(&self, from: Ns) -> usize {
        self.neighbor.state().changes.iter().filter(|(at, came)| *came && *at >= from).count()
    }

    /// One run; how often the route came back.
    fn run(&mut self, kind: Kind, nth: usize) -> Result<usize> {
        let sessions = self.neighbor.state().sessions;
        let mut from = now();
        match kind {
            Kind::Away => {
                self.neighbor.go()?;
                self.fail()?;
                sleep_until(now() + DECIDED);
                self.neighbor.come()?;
                self.session(sessions)?;
            }
            Kind::Flap | Kind::WorkerKilled | Kind::Restart => {
                self.fail()?;
                self.withdrawn()?;
                from = now();
                match kind {
                    Kind::Flap => {
                        self.neighbor.go()?;
                        sleep_until(now() + 20 * MS);
                        self.neighbor.come()?;
                    }
                    Kind::WorkerKilled => kill_pid(self.agent.worker()?),
                    _ => {
                        self.agent.stop()?;
                        self.agent.start(&self.net, &self.vips)?;
                    }
                }
                self.session(sessions)?;
            }
            Kind::Middle => {
                self.fail()?;
                // Each run at another moment of the check's interval.
                sleep_until(now() + (nth as u64 * 37 % 200) * MS);
                self.neighbor.go()?;
                self.neighbor.come()?;
                self.session(sessions)?;
                // Until it is decided the route may be told again; from then on it may not.
                from += DECIDED;
                sleep_until(from);
                self.withdrawn()?;
            }
        }
        sleep_until(now() + WATCHED);
        let came = self.came(from) + usize::from(self.has());
        std::fs::write(&self.well, "")?;
        self.announced("when it was well again")?;
        Ok(came)
    }

    fn fail(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.well)?)
    }
}

pub(super) fn ask(o: &Options<'_>) -> Result<Outcome> {
    let (mut kinds, mut details, mut pass) = (Vec::new(), String::new(), true);
    for kind in KINDS {
        let mut returned = 0;
        let mut scene = Scene::start(o)?;
        for nth in 0..o.count {
            // A worker that dies again and again is kept waiting, and that is another matter.
            if kind == Kind::WorkerKilled && nth > 0 {
                scene = Scene::start(o)?;
            }
            let came = scene.run(kind, nth).map_err(|e| e.context(format!("{}, run {nth}", kind.name())))?;
            if came > 0 {
                returned += 1;
                details +=
                    &format!("  {}, run {nth}: the route came back\n{}", kind.name(), scene.agent.told(&scene.net));
            }
        }
        pass &= returned == 0;
        kinds.push(json!({"kind": kind.name(), "runs": o.count, "returned": returned}));
    }
    let total: u64 = kinds.iter().filter_map(|k| k["returned"].as_u64()).sum();
    Ok(Outcome {
        pass,
        void: false,
        note: format!("{} kinds, {} runs each: a route came back by itself in {total}", KINDS.len(), o.count),
        details,
        json: json!({"case": "no-return", "kinds": kinds, "pass": pass}),
    })
}

//! The operator's will: drain, undrain, stop.
//!
//! By its own choice a node leaves only if a fresh word says that another can serve (DESIGN section 4, 3): else the
//! drain is refused by the interlock `last-node` or `peer-unknown`, unless that one is forced by name. Where the embedded
//! balancer of another node would send flows elsewhere it is refused by `pool-differs`. Without a
//! channel nothing can be known beforehand: the node resigns, and takes back what nobody took within one down time.

use crate::io::{Answer, Output, Request};
use crate::journal::Kind;
use crate::mutants;
use crate::node::Node;
use crate::pool::Pools;
use crate::world::Withheld;
use holdfast_statesync::message::{Fitness, Message};
use holdfast_vrrp::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// No other node is known to be able to serve.
pub const LAST_NODE: &str = "last-node";
/// What the other nodes can do isn't known.
pub const PEER_UNKNOWN: &str = "peer-unknown";
/// The embedded balancer of another node has other services or backends: flows that move there would break.
pub const POOL_DIFFERS: &str = "pool-differs";
/// Those that can be forced.
const INTERLOCKS: [&str; 3] = [LAST_NODE, PEER_UNKNOWN, POOL_DIFFERS];
/// The agent stops already. Can't be forced.
pub const STOPPING: &str = "stopping";

/// Stored intents of operators. Survives restarts: [`Output::Persist`] replaces what was stored, and
/// [`crate::io::Boot::intents`] brings it back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intents {
    /// This node is taken out for maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainIntent>,
    /// Backends of the embedded balancer that get no new flows.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub backends: BTreeSet<SocketAddr>,
}

/// Who took this node out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainIntent {
    /// Who asked, as the agent names callers (`uid 0`).
    pub who: String,
    /// The operator's words.
    pub reason: String,
    /// Wall clock of the request, Unix milliseconds (from the request: the node has no wall clock).
    pub since_unix_ms: u64,
    /// Wall clock at which the drain ends by itself; `None`: until `undrain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}

/// A drain that somebody waits for.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    pub token: u64,
    pub who: String,
    pub started: Instant,
    pub deadline: Instant,
    pub event: Option<u64>,
}

/// A stop on its way.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    pub deadline: Instant,
    /// Addresses stay for a successor no longer than this, so that their removal is seen to work before the deadline.
    pub linger_until: Instant,
    /// No VIP is ours any more: sockets close too.
    pub releasing: bool,
    pub event: Option<u64>,
}

impl Node {
    /// Brings the world's view of the operator's will up to date.
    pub(crate) fn set_withheld(&mut self) {
        self.world.withheld = if self.stop.is_some() {
            Some(Withheld::Stopping)
        } else {
            self.intents.drain.is_some().then_some(Withheld::Drained { forced: self.forced })
        };
        self.dirty.all = true;
    }

    pub(crate) fn on_operator(&mut self, now: Instant, token: u64, request: Request) {
        match request {
            Request::Drain { .. } => self.on_drain(now, token, request),
            Request::Undrain { who } => self.on_undrain(now, token, who),
            Request::Pool { who, backend, drain } => self.on_pool_request(now, token, who, &backend, drain),
            Request::Upgrade { who } => self.on_upgrade(now, token, who),
            Request::Status => {}
        }
    }

    fn on_drain(&mut self, now: Instant, token: u64, request: Request) {
        let Request::Drain { reason, who, at_unix_ms, deadline, force, dry_run } = request else { return };
        let unknown = force.iter().find(|name| !INTERLOCKS.contains(&name.as_str()));
        let refusal = if self.stop.is_some() {
            Some((STOPPING.to_owned(), "the agent stops already".to_owned()))
        } else if let Some(name) = unknown {
            Some((name.clone(), format!("no interlock is called {name}: there are {}", INTERLOCKS.join(", "))))
        } else {
            self.interlock(now, &force).map(|(name, why)| (name.to_owned(), why))
        };
        if let Some((interlock, why)) = refusal {
            self.count("drains_refused");
            if !dry_run {
                self.event(now, None, Kind::DrainRefused { who, interlock: interlock.clone(), why: why.clone() });
            }
            self.answer(token, Answer::Refused { interlock, why });
            return;
        }
        let ours = self.ours();
        if dry_run {
            self.answer(token, Answer::Done(format!("would drain: {}", self.prediction(now, &ours))));
            return;
        }
        if let Some(old) = self.drain.take() {
            self.answer(old.token, Answer::Aborted(format!("another drain by {who} replaces this one")));
            self.event(now, old.event, Kind::DrainEnded { who: old.who, how: "replaced".to_owned() });
        }
        let progress = self.prediction(now, &ours);
        // Who doesn't mind that flows break doesn't want the VIP to be left to nobody.
        let alone = self.interlock(now, &[POOL_DIFFERS.to_owned()]).is_some();
        self.forced =
            !force.is_empty() && alone || self.config.cluster.is_none() && force.iter().any(|name| name == LAST_NODE);
        let (intent_who, intent_reason) = (who.clone(), reason.clone());
        self.intents.drain = Some(DrainIntent {
            who: intent_who,
            reason: intent_reason,
            since_unix_ms: at_unix_ms,
            until_unix_ms: None,
        });
        self.out.rest.push(Output::Persist(self.intents.clone()));
        let kind = Kind::DrainStarted { who: who.clone(), reason, forced: force };
        let event = self.event(now, None, kind);
        self.drain = Some(Drain { token, who, started: now, deadline: now + deadline, event });
        self.answer(token, Answer::Progress(progress));
        self.set_withheld();
    }

    fn on_undrain(&mut self, now: Instant, token: u64, who: String) {
        if self.intents.drain.is_none() {
            self.answer(token, Answer::Done("this node was not drained".to_owned()));
            return;
        }
        self.end_drain(now, None, "undrained", Answer::Aborted(format!("undrained by {who}")));
        self.event(now, None, Kind::Undrained { who });
        self.answer(token, Answer::Done("this node takes part again".to_owned()));
    }

    /// The first interlock that holds and isn't forced.
    fn interlock(&self, now: Instant, force: &[String]) -> Option<(&'static str, String)> {
        let plan = crate::decide::decide(&self.config, &self.world, now);
        for ((id, view), plan) in self.ids().zip(&self.world.vips).zip(&plan.vips) {
            let vip = self.vip_config(id);
            // Without a channel VRRP takes back what nobody took. BGP doesn't learn of that.
            if self.config.cluster.is_none() && !vip.anycast() {
                continue;
            }
            let serves = view.state == State::Active || plan.fitness == Fitness::Fit || self.anycast_here(id);
            let enough = vip.bgp.as_ref().filter(|_| vip.anycast()).map_or(1, |bgp| usize::from(bgp.min_announcing));
            if !serves || self.world.able_peers(id, now).len() >= enough {
                continue;
            }
            let name = self.vip_name(id);
            let (interlock, why) = if self.config.cluster.is_none() {
                (PEER_UNKNOWN, format!("without [cluster] nothing says that another node announces {name}"))
            } else if self.world.all_peers_known(id, now) {
                let others =
                    if enough > 1 { format!("fewer than {enough} other nodes") } else { "no other node".to_owned() };
                (LAST_NODE, format!("{others} can serve {name} now"))
            } else {
                (PEER_UNKNOWN, format!("no fresh word of a peer says that it can serve {name}"))
            };
            let off = interlock == LAST_NODE && mutants::off("interlock-last-node");
            if !off && !force.iter().any(|forced| forced == interlock) {
                return Some((interlock, why));
            }
        }
        self.pool_differs(now).filter(|(interlock, _)| !force.iter().any(|forced| forced == interlock))
    }

    /// A peer with other tables, if flows would go to it. They live on where every node gives them the same backend.
    fn pool_differs(&self, now: Instant) -> Option<(&'static str, String)> {
        let (pools, balancer) = (self.pools.as_ref()?, self.nft_balancer()?);
        let here = |id: &crate::config::VipId| self.view(*id).state == State::Active || self.anycast_here(*id);
        let moves = |id: &crate::config::VipId| self.vip_config(*id).balancers.contains(&balancer) && here(id);
        let moved: Vec<crate::config::VipId> = self.ids().filter(moves).collect();
        let peers = self.config.cluster.iter().flat_map(|cluster| &cluster.peers).zip(&self.world.peers);
        let other = |view: &crate::world::PeerView| view.pool.is_some_and(|theirs| theirs != pools.fingerprint());
        let takes = |view: &crate::world::PeerView| moved.iter().any(|id| view.vip(*id, now).is_some());
        let (peer, _) = peers.into_iter().find(|(_, view)| other(view) && takes(view))?;
        let why = format!("{} balances with other services or backends than this node: flows would break", peer.name);
        (!mutants::off("interlock-pool-differs")).then_some((POOL_DIFFERS, why))
    }

    /// VIPs that are Active here or on their way out.
    fn ours(&self) -> Vec<crate::config::VipId> {
        let ours = |id: &crate::config::VipId| {
            let view = self.view(*id);
            view.state == State::Active || view.leaving.is_some() || view.resume.is_some() || self.anycast_here(*id)
        };
        self.ids().filter(ours).collect()
    }

    fn prediction(&self, now: Instant, ours: &[crate::config::VipId]) -> String {
        if ours.is_empty() {
            return "no VIP is here".to_owned();
        }
        let to = |id: &crate::config::VipId| {
            let peer = self.world.able_peers(*id, now).first().map(|peer| self.peer_name(*peer));
            format!("{} to {}", self.vip_name(*id), peer.unwrap_or_else(|| "whoever takes it".to_owned()))
        };
        ours.iter().map(to).collect::<Vec<_>>().join(", ")
    }

    /// The intent goes, whoever waits for the drain is told, and the node takes part again.
    fn end_drain(&mut self, now: Instant, cause: Option<u64>, how: &str, answer: Answer) {
        let intent = self.intents.drain.take();
        self.forced = false;
        self.out.rest.push(Output::Persist(self.intents.clone()));
        if let Some(drain) = self.drain.take() {
            self.answer(drain.token, answer);
            let kind = Kind::DrainEnded { who: drain.who, how: how.to_owned() };
            self.event(now, cause.or(drain.event), kind);
        } else if let Some(intent) = intent.filter(|_| cause.is_some()) {
            self.event(now, cause, Kind::DrainEnded { who: intent.who, how: how.to_owned() });
        }
        self.set_withheld();
    }

    /// A VIP that was given away came back, since nobody took it within one down time.
    pub(crate) fn drain_taken_back(&mut self, now: Instant, id: crate::config::VipId, cause: Option<u64>) {
        if self.intents.drain.is_none() {
            return;
        }
        let why = format!("nobody took {} within one down time: this node keeps it", self.vip_name(id));
        if self.config.cluster.is_none() {
            self.count("drains_refused");
            let answer = Answer::Refused { interlock: LAST_NODE.to_owned(), why };
            self.end_drain(now, cause, "nobody took over", answer);
        } else {
            self.end_drain(now, cause, "peer lost", Answer::PeerLost(why));
        }
    }

    pub(crate) fn on_stop(&mut self, now: Instant, deadline: Duration) {
        if self.stop.is_some() {
            return;
        }
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let event = self.event(now, None, Kind::Stopping { deadline_ms });
        if let Some(drain) = self.drain.take() {
            self.answer(drain.token, Answer::Aborted("the agent stops".to_owned()));
            self.event(now, event, Kind::DrainEnded { who: drain.who, how: "the agent stops".to_owned() });
        }
        let deadline_at = now + deadline;
        let linger_until = now + deadline * 3 / 4;
        self.stop = Some(Stop { deadline: deadline_at, linger_until, releasing: false, event });
        self.set_withheld();
    }

    /// Whether what an operator waits for has happened.
    pub(crate) fn run_operations(&mut self, now: Instant) {
        if self.drain.is_none() && self.stop.is_none() {
            return;
        }
        self.regret(now);
        let ours = self.ours();
        if ours.is_empty()
            && let Some(drain) = self.drain.take()
        {
            let ms = crate::io::age_ms(now, drain.started);
            self.event(now, drain.event, Kind::DrainDone { who: drain.who, ms });
            self.answer(drain.token, Answer::Done(format!("drained in {ms} ms")));
        } else if self.drain.as_ref().is_some_and(|drain| drain.deadline <= now)
            && let Some(drain) = self.drain.take()
        {
            let names = ours.iter().map(|id| self.vip_name(*id)).collect::<Vec<_>>().join(", ");
            let answer = Answer::Deadline(format!("{names} still here; the drain goes on"));
            self.answer(drain.token, answer);
            self.event(now, drain.event, Kind::DrainEnded { who: drain.who, how: "deadline".to_owned() });
        }
        let Some(stop) = &mut self.stop else { return };
        if !stop.releasing && (ours.is_empty() || stop.deadline <= now) {
            stop.releasing = true;
            for id in self.ids() {
                self.view_mut(id).leaving = None;
            }
            self.dirty.all = true;
        }
    }

    /// While a drain still waits with its routes out, the others may fail: then they stay out.
    fn regret(&mut self, now: Instant) {
        let Some(drain) = self.drain.as_ref().filter(|_| !self.forced && self.stop.is_none()) else { return };
        let cause = drain.event;
        let lonely = |id: &crate::config::VipId| {
            let unit = self.vip_config(*id);
            let told = unit.anycast() && self.view(*id).bgp.offered.is_some();
            told && self.world.able_peers(*id, now).is_empty()
        };
        if let Some(id) = self.ids().find(lonely) {
            let why = format!("nobody else can serve {} any more: this node keeps it", self.vip_name(id));
            self.end_drain(now, cause, "peer lost", Answer::PeerLost(why));
        }
    }

    /// The last words, when nothing of ours is left or time is up.
    pub(crate) fn finish_stop(&mut self, now: Instant) {
        let Some(stop) = &self.stop else { return };
        let clean = self.actual.is_clean() && self.pools.as_ref().is_none_or(Pools::is_clean);
        if !stop.releasing || !(clean && self.speakers.ended() || stop.deadline <= now) {
            return;
        }
        let event = stop.event;
        self.broadcast(now, &Message::Goodbye);
        self.event(now, event, Kind::Stopped);
        self.out.last.push(Output::Stopped);
    }
}

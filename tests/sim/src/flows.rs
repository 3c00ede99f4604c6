//! The sync thread of a host, as far as its node sees it: words that come late, say less than all is well, or don't come.
//!
//! What flows there are isn't simulated (`statesync` has a simulator of its own): a host has all that it needs, or it
//! doesn't, and that changes at random. What it draws from is apart from the run's other random numbers, so that a seed
//! without replication is the run that it was.

use crate::cluster::{Cluster, Happening};
use crate::options::name;
use crate::rng::SimRng;
use holdfast_node::config::VipId;
use holdfast_node::io::{Input, Step};
use holdfast_node::journal::Kind;
use holdfast_node::sync::{Direction, GATE, NotReady, SyncPeerWord, SyncVipWord, SyncWord, WORD_MAX, Why};
use holdfast_statesync::channel::PeerId;
use std::time::{Duration, Instant};

/// Who lacks flows runs at no more than this, whatever is configured.
const BEHIND: u8 = 18;

/// A word that grew too old is noticed within this time.
const LOOKS_AROUND: Duration = Duration::from_millis(600);

/// A host's sync thread.
#[derive(Debug, Default)]
pub struct Flows {
    /// Its run.
    run: u64,
    /// It holds all that it needs.
    ready: bool,
    /// All of its own is at the peers.
    flushed: bool,
    /// What the node was told last, when by its own clock, and until when it had been told before that it is ready.
    told: Option<(Instant, bool)>,
    ready_until: Option<Instant>,
    /// The role epoch that a new worker took up: no address waits in it.
    resumed: Option<u64>,
}

impl Flows {
    /// Until when the node knew itself to be ready.
    fn known_ready(&self, now: Instant) -> Option<Instant> {
        match self.told {
            Some((at, true)) => Some(now.min(at + WORD_MAX)),
            _ => self.ready_until,
        }
    }

    /// By the last word, unless that is too old.
    fn is_ready(&self, now: Instant) -> bool {
        self.told.is_some_and(|(at, ready)| ready && now < at + WORD_MAX)
    }
}

/// What all hosts have of it.
#[derive(Debug)]
pub(crate) struct FlowFaults {
    rng: SimRng,
    /// Threads lag and fall silent.
    pub(crate) made: bool,
}

impl FlowFaults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: SimRng::new(seed ^ 0xf10e), made: true }
    }
}

impl Cluster {
    /// Sets what a host's sync thread says from now on, and has it say so after `delay`.
    pub fn set_flows(&mut self, i: usize, ready: bool, flushed: bool, delay: Duration) {
        let flows = &mut self.hosts[i].flows;
        (flows.ready, flows.flushed) = (ready, flushed);
        self.say_flows(i, delay);
    }

    /// From now on all threads have all, and say so.
    pub fn mend_flows(&mut self) {
        self.flow_faults.made = false;
        for i in 0..self.hosts.len() {
            self.set_flows(i, true, true, Duration::ZERO);
        }
    }

    /// The thread begins with its agent.
    pub(crate) fn start_flows(&mut self, i: usize, resume: bool) {
        if self.hosts[i].config.statesync.is_none() {
            return;
        }
        let life = self.hosts[i].life;
        let held = self.hosts[i].ledger.values().find(|record| record.active && resume);
        let resumed = held.map(|record| record.role_epoch);
        self.hosts[i].flows =
            Flows { run: life, ready: !self.flow_faults.made, flushed: true, resumed, ..Flows::default() };
        let first = Duration::from_millis(self.flow_faults.rng.below(40));
        self.push(first, i, Happening::Flows { life });
    }

    /// The thread looks at what it has, and says so.
    pub(crate) fn flows_tick(&mut self, i: usize) {
        let life = self.hosts[i].life;
        let faults = &mut self.flow_faults;
        let mut next = faults.rng.between(50, 1000);
        let flows = &mut self.hosts[i].flows;
        if faults.made {
            flows.ready = if flows.ready { !faults.rng.chance(60) } else { faults.rng.chance(300) };
            flows.flushed = faults.rng.chance(700);
            if faults.rng.chance(15) {
                next += 5_000;
                self.coverage.see("fault: sync thread silent");
            }
        }
        let delay = Duration::from_millis(self.flow_faults.rng.below(30));
        self.say_flows(i, delay);
        self.push(Duration::from_millis(next), i, Happening::Flows { life });
    }

    fn say_flows(&mut self, i: usize, delay: Duration) {
        let (life, now) = (self.hosts[i].life, self.now);
        let peers = self.hosts[i].config.cluster.as_ref().map_or(0, |cluster| cluster.peers.len());
        let flows = &self.hosts[i].flows;
        let direction = |holds: bool| {
            let why = (!holds).then_some(Why::Differs);
            Direction { equal_at: Some(now), why, since: now, behind: 0 }
        };
        let peer = SyncPeerWord {
            inbound: direction(flows.ready),
            outbound: direction(flows.flushed),
            flushed: flows.flushed,
            flows: 1,
        };
        let missing = NotReady::Peer(PeerId(0), Why::NotCompared);
        let ready = if flows.ready { Ok(()) } else { Err(missing) };
        let word = SyncWord {
            run: flows.run,
            vips: vec![SyncVipWord { ready, flows: 1, young: 0 }],
            peers: vec![peer; peers],
            lag: None,
            trouble: None,
        };
        self.push(delay, i, Happening::Said { life, word: Box::new(word) });
    }

    /// A word arrives.
    pub(crate) fn flows_said(&mut self, i: usize, word: SyncWord) {
        let local = self.hosts[i].local(self.now);
        let ready = word.vips.iter().all(|vip| vip.ready.is_ok());
        let flows = &mut self.hosts[i].flows;
        flows.ready_until = flows.known_ready(local);
        flows.told = Some((local, ready));
        self.feed(i, Input::Sync(word));
    }

    /// Invariant 4: an address comes after the flows, or 150 ms after its owner became that.
    pub(crate) fn flows_first(&mut self, i: usize, step: &Step) {
        let Step::AddAddress { ifindex, ip, prefix, .. } = *step else { return };
        let host = &self.hosts[i];
        if host.config.statesync.is_none() || host.kernel.vips.contains_key(&(ifindex, ip, prefix)) {
            return;
        }
        if !host.is_active() {
            return;
        }
        let local = host.local(self.now);
        let Some(view) = host.node.as_ref().map(|node| &node.world().vips[usize::from(VipId(0).0)]) else { return };
        let since = view.since;
        let ready = host.flows.known_ready(local).is_some_and(|until| until >= since);
        let taken_up = host.flows.resumed == Some(view.role_epoch);
        if !(ready || taken_up || local - since >= GATE) {
            self.broken = Some(format!(
                "invariant 4: {} adds {ip} {:?} after it became the owner, and its flows aren't there",
                name(i),
                local - since
            ));
        }
        self.coverage.see(if ready { "promoted: with its flows" } else { "promoted: without" });
    }

    /// Who lacks flows preempts nobody that serves; what is said of flows is so.
    pub(crate) fn flows_witness(&mut self, i: usize, kind: &Kind) {
        if self.hosts[i].config.statesync.is_none() {
            return;
        }
        let local = self.hosts[i].local(self.now);
        let flows = &self.hosts[i].flows;
        let wrong = match kind {
            Kind::VipState { to, reason, .. } if to == "active" => {
                let its = reason.strip_prefix("preempts ").and_then(|text| text.rsplit(' ').next()?.parse::<u8>().ok());
                let lacks = !flows.is_ready(local) && !flows.is_ready(local - LOOKS_AROUND);
                (lacks && its.is_some_and(|its| its > BEHIND)).then_some("it preempts without its flows")
            }
            Kind::PromotedUnsynced { .. } => flows.is_ready(local).then_some("it says that flows are missing"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.broken = Some(format!("invariant 4: {}: {wrong}: {kind:?}", name(i)));
        }
    }
}

//! When a VIP with replicated flows may come here, and when it may go.
//!
//! - Flows before addresses: one that becomes the owner adds the addresses, and tells routers of them, when all flows that
//!   peers have are in its kernel (DESIGN section 4, 4); after [`GATE`] it does so all the same, and says so. Where
//!   nothing can come, it doesn't wait.
//! - Who doesn't have them stands behind those who do, so it preempts no owner.
//! - A planned move waits, as long as that, until all of ours is at the peer that takes it.
//! - The sync thread is told whose each VIP is.

use super::{Elected, SyncWord, Unready, why_text};
use crate::config::{SyncFilter, SyncMode, VipId};
use crate::decide::{Judge, Leave, VipPlan};
use crate::io::{FlowEvents, FlowFilter, Output};
use crate::journal::Kind;
use crate::mutants;
use crate::node::Node;
use crate::reasons::Reason;
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::flow;
use holdfast_vrrp::State;
use std::time::{Duration, Instant};

/// How long addresses wait for flows, and a planned move.
pub const GATE: Duration = Duration::from_millis(150);

/// What the decision on a unit knows of its flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowsView {
    /// It is ours, and its addresses wait for flows.
    pub gate: Option<Gate>,
    /// It is to be given away, and waits for flows to get to the peer, until then.
    pub flush_until: Option<Instant>,
}

/// See [`FlowsView::gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// When it began.
    pub since: Instant,
    /// It opens then, whatever is missing.
    pub until: Instant,
    /// The journal entry of what made the unit ours.
    pub event: Option<u64>,
}

impl Judge<'_> {
    fn text(&self, unready: &Unready) -> String {
        unready.text(|peer| self.peer_name(peer))
    }

    /// What this node lacks to take over a unit without breaking flows, if it is one with replicated flows and not here.
    pub(crate) fn not_in_sync(&self) -> Option<Reason> {
        let unready = self.world.sync.as_ref()?.in_sync(self.id, self.now).err()?;
        (!mutants::off("sync-before-preempt")).then(|| Reason::NotInSync(self.text(&unready)))
    }

    /// Its addresses wait.
    pub(crate) fn flows_first(&self) -> Option<Reason> {
        let gate = self.view().flows.gate.filter(|gate| self.now < gate.until)?;
        let unready = self.world.sync.as_ref()?.ready(self.id, self.now).err()?;
        Some(Reason::FlowsFirst { why: self.text(&unready), left: gate.until - self.now })
    }

    /// Whether a unit that could be given to one of these stays until what the peer lacks has arrived there.
    pub(crate) fn flushes(&self, to: &[PeerId], reasons: &mut Vec<Reason>) -> bool {
        let Some(sync) = self.world.sync.as_ref().filter(|sync| sync.replicates(self.id)) else { return false };
        let waited = self.view().flows.flush_until.is_some_and(|until| until <= self.now);
        if waited || mutants::off("flows-before-move") {
            return false;
        }
        let missing = to.iter().find_map(|peer| sync.flushed(*peer, self.now).err().filter(Unready::may_end));
        reasons.extend(missing.as_ref().map(|missing| Reason::FlowsUnderWay(self.text(missing))));
        missing.is_some()
    }
}

impl Node {
    pub(crate) fn on_sync(&mut self, now: Instant, word: SyncWord) {
        let Some(view) = &mut self.world.sync else { return };
        let restarted = view.last().is_none_or(|(_, old)| old.run != word.run);
        let trouble = view.last().and_then(|(_, old)| old.trouble.clone());
        let stand = |view: &super::View, id| (view.ready(id, now).is_ok(), view.in_sync(id, now).is_ok());
        let units: Vec<VipId> = view.units().collect();
        let before: Vec<_> = units.iter().map(|id| stand(view, *id)).collect();
        view.take(now, word);
        let after: Vec<_> = units.iter().map(|id| stand(view, *id)).collect();
        let new_trouble = view.last().and_then(|(_, word)| word.trouble.clone());
        for (id, (before, after)) in units.into_iter().zip(before.into_iter().zip(after)) {
            if restarted {
                self.run_mut(id).elected = None;
            }
            let flows = self.view(id).flows;
            if after.0 && flows.gate.is_some() {
                self.open_gate(id);
            }
            if restarted || before != after || flows.flush_until.is_some() {
                self.dirty.units.insert(id);
            }
        }
        if trouble != new_trouble {
            self.event(now, None, Kind::SyncTrouble { why: new_trouble.unwrap_or_default() });
        }
    }

    pub(crate) fn on_sync_event(&mut self, now: Instant, event: flow::Event) {
        let Some(sync) = &self.config.statesync else { return };
        let vip = |vip: flow::VipId| sync.vips.get(usize::from(vip.0)).map(|sync| self.vip_name(sync.vip));
        let notice = |what: String| Kind::FlowNotice { what };
        let kind = match event {
            flow::Event::InSync { peer, outbound } => {
                Kind::FlowSync { peer: self.peer_name(peer), outbound, in_sync: true, why: String::new() }
            }
            flow::Event::OutOfSync { peer, outbound, why } => {
                let why = why_text(why).to_owned();
                Kind::FlowSync { peer: self.peer_name(peer), outbound, in_sync: false, why }
            }
            flow::Event::Claimed { vip: place, generation } => {
                let Some(vip) = vip(place) else { return };
                Kind::FlowsClaimed { vip, generation }
            }
            flow::Event::Inherited { source, generation } => {
                let sources = self.config.flow_sources();
                let Some(vip) = sources.get(usize::from(source.0)).map(|id| self.vip_name(*id)) else { return };
                Kind::FlowsClaimed { vip, generation }
            }
            flow::Event::Full { class } => {
                let what = "max_flows is reached: this kind of flow and shorter-lived ones are no longer replicated";
                notice(format!("{what}: {}", class_text(class)))
            }
            flow::Event::Clash { key } => notice(format!(
                "two flows have the same address and port behind the NAT, one of them has no replica here: {key:?}"
            )),
            flow::Event::Overrun => notice("events of the kernel were lost: its table is read anew".to_owned()),
            flow::Event::KernelRefused { errno } => notice(format!("the kernel refused a flow: error {errno}")),
        };
        self.event(now, None, kind);
    }

    /// A unit has become ours: its addresses wait if flows are missing.
    pub(crate) fn close_gate(&mut self, now: Instant, id: VipId, event: Option<u64>) {
        let missing = self.world.sync.as_ref().and_then(|sync| sync.ready(id, now).err());
        match missing.filter(|_| !mutants::off("flows-before-address")) {
            Some(missing) if missing.may_end() => {
                self.view_mut(id).flows.gate = Some(Gate { since: now, until: now + GATE, event });
            }
            Some(missing) => self.promoted_unsynced(now, id, &Gate { since: now, until: now, event }, &missing),
            None => {}
        }
    }

    fn promoted_unsynced(&mut self, now: Instant, id: VipId, gate: &Gate, missing: &Unready) {
        let why = missing.text(|peer| self.peer_name(peer));
        let waited_ms = crate::io::age_ms(now, gate.since);
        self.count("promoted_unsynced");
        self.event(now, gate.event, Kind::PromotedUnsynced { vip: self.vip_name(id), why, waited_ms });
    }

    pub(crate) fn open_gate(&mut self, id: VipId) {
        if self.view(id).flows.gate.is_some() {
            self.view_mut(id).flows.gate = None;
            self.dirty.units.insert(id);
            self.reconcile_due = true;
        }
    }

    /// A unit without a router begins or ends to be ours with its plan.
    pub(crate) fn gate_routes(&mut self, now: Instant, id: VipId, (before, after): (bool, bool)) {
        if self.world.sync.is_none() || !self.vip_config(id).anycast() {
            return;
        }
        if !after {
            self.open_gate(id);
        } else if !before && self.view(id).resume.is_none() {
            self.close_gate(now, id, self.run(id).fitness_event);
        }
    }

    /// Its addresses wait for flows.
    pub(crate) fn is_gated(&self, now: Instant, id: VipId) -> bool {
        self.view(id).flows.gate.is_some_and(|gate| now < gate.until)
    }

    /// Of the units in hand: those that have waited long enough.
    pub(crate) fn expire_gates(&mut self, now: Instant) {
        if self.world.sync.is_none() {
            return;
        }
        for id in self.touched.sorted() {
            let flows = self.view(id).flows;
            if flows.flush_until.is_some_and(|until| until <= now) {
                self.dirty.units.insert(id);
            }
            let Some(gate) = flows.gate.filter(|gate| gate.until <= now) else { continue };
            self.open_gate(id);
            let sync = self.world.sync.as_ref();
            if let Some(missing) = sync.and_then(|sync| sync.ready(id, now).err()) {
                self.promoted_unsynced(now, id, &gate, &missing);
            }
        }
    }

    /// Takes note of whether a planned move waits.
    pub(crate) fn note_flush(&mut self, now: Instant, id: VipId) {
        if self.world.sync.is_none() {
            return;
        }
        let waits = |plan: &VipPlan| plan.reasons.iter().any(|reason| matches!(reason, Reason::FlowsUnderWay(_)));
        let waits = self.plan.vips.get(usize::from(id.0)).is_some_and(waits);
        let before = self.view(id).flows.flush_until;
        if waits == before.is_some() {
            return;
        }
        let until = self.stop.as_ref().map_or(now + GATE, |stop| stop.linger_until.min(now + GATE));
        self.view_mut(id).flows.flush_until = waits.then_some(until);
    }

    /// A unit is given away by an operator's will: what that means for its flows.
    pub(crate) fn note_move(&mut self, now: Instant, id: VipId, leave: Leave, cause: Option<u64>) {
        let sync = self.world.sync.as_ref().filter(|sync| leave.planned && sync.replicates(id));
        let (Some(sync), Some(peer)) = (sync, leave.to) else { return };
        let Some(unready) = sync.flushed(peer, now).err() else { return };
        let why = unready.text(|peer| self.peer_name(peer));
        self.count("moved_unsynced");
        let kind = Kind::MovedUnsynced { vip: self.vip_name(id), peer: self.peer_name(peer), why };
        self.event(now, cause, kind);
    }

    /// Tells the sync thread whose a unit is, if that is news.
    pub(crate) fn tell_elected(&mut self, now: Instant, id: VipId) {
        if !self.world.sync.as_ref().is_some_and(|sync| sync.replicates(id)) {
            return;
        }
        let before = self.run(id).elected;
        let elected = self.elected(now, id, before.unwrap_or_default());
        if before != Some(elected) {
            self.run_mut(id).elected = Some(elected);
            self.out.flows.push(Output::Elected { vip: id, elected });
        }
    }

    /// Whose it is, as far as is known. A peer that falls silent has been the last owner until another is seen.
    fn elected(&self, now: Instant, id: VipId, before: Elected) -> Elected {
        let view = self.view(id);
        if self.vip_config(id).anycast() {
            return if view.bgp.offered.is_some() { Elected::Me } else { Elected::Unknown };
        }
        match (view.state, self.world.active_peer(id, now)) {
            // What peers have sent and we haven't written yet isn't to be claimed.
            (State::Active, _) if self.is_gated(now, id) => before,
            (State::Active, _) => Elected::Me,
            (_, Some(peer)) => Elected::Peer(peer),
            (_, None) if before == Elected::Me => Elected::Unknown,
            (_, None) => before,
        }
    }

    /// Of which flows the kernel is to tell.
    pub(crate) fn wanted_flows(&self) -> FlowFilter {
        let sync = self.config.statesync.as_ref();
        let Some(sync) = sync.filter(|_| !self.stop.as_ref().is_some_and(|stop| stop.releasing)) else {
            return FlowFilter::Off;
        };
        if sync.vips.iter().all(|sync| sync.mode == SyncMode::Off) {
            return FlowFilter::Off;
        }
        if sync.filter == SyncFilter::User {
            return FlowFilter::All;
        }
        let told = sync.vips.iter().filter_map(|sync| {
            let events = match sync.mode {
                SyncMode::Syn => FlowEvents::AtSyn,
                SyncMode::Assured | SyncMode::After(_) => FlowEvents::AtAssured,
                SyncMode::Off => return None,
            };
            Some(self.vip_config(sync.vip).addresses.iter().map(move |address| (address.ip, events)))
        });
        FlowFilter::Of(told.flatten().collect())
    }
}

const fn class_text(class: flow::Class) -> &'static str {
    match class {
        flow::Class::Icmp => "ICMP queries",
        flow::Class::UdpSingle => "UDP without an answer",
        flow::Class::TcpBrief => "TCP that opens or closes",
        flow::Class::UdpStream => "UDP both ways",
        flow::Class::TcpOpen => "open TCP connections",
    }
}

//! The composition: one node, its inputs and outputs.
//!
//! An input first becomes an observation in the [`World`] (or goes to the machine it is for); then, if anything that
//! matters changed or time is up, one turn decides and acts (`turn`). Steady state does neither: an advert that only
//! re-arms a timer costs no decision.

use crate::bgp;
use crate::bgp::speakers::Speakers;
use crate::checks::Checks;
use crate::config::{BalancerId, Config, VipId};
use crate::conntrack::Watch;
use crate::decide::{Plan, decide, managed};
use crate::diff::Actual;
use crate::drain::{Drain, Intents, Stop};
use crate::io::{Boot, Input, Output, Request};
use crate::journal::{Journal, Kind};
use crate::legs::LegIndex;
use crate::mutants;
use crate::plane::Asking;
use crate::pool::Pools;
use crate::refused::Refused;
use crate::schedule::{Dirty, Schedule, Units};
use crate::status::Status;
use crate::upgrade::Upgrade;
use crate::vip::VipRun;
use crate::world::{REREAD, UNREAD, World};
use holdfast_statesync::channel::{Channel, ChannelConfig, PeerConfig};
use holdfast_vrrp::{AdvertInterval, LegId, wire};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Outputs held for a caller that doesn't drain; full: the oldest is lost and counted. One input of a node with 255
/// VIPs makes fewer.
const OUTPUTS_MAX: usize = 65_536;

/// A whole node. See the crate's documentation.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) by_name: BTreeMap<String, VipId>,
    pub(crate) managed: BTreeSet<IpAddr>,
    /// Units that have more than addresses.
    pub(crate) with_extras: Vec<VipId>,
    /// Whose an address is.
    pub(crate) owner_of: BTreeMap<IpAddr, VipId>,
    pub(crate) epoch: u64,
    pub(crate) started: Instant,
    pub(crate) world: World,
    pub(crate) plan: Plan,
    pub(crate) actual: Actual,
    pub(crate) vips: Vec<VipRun>,
    pub(crate) checks: Checks,
    pub(crate) pools: Option<Pools>,
    /// Without services: the table of a former run, until it is known that there is none.
    pub(crate) former_table: Option<crate::pool::Kernel>,
    pub(crate) conntrack: Watch,
    /// By [`crate::config::BalancerId`]: the checks that ask it.
    pub(crate) asking: Vec<Vec<Asking>>,
    /// A check that asks a balancer ended otherwise than before.
    pub(crate) judge_due: bool,
    /// How long this node last stood still, and until when.
    pub(crate) stalled: Option<(Duration, Instant)>,
    pub(crate) channel: Option<Channel>,
    pub(crate) speakers: Speakers,
    /// Links or addresses that sessions depend on may have changed.
    pub(crate) neighbors_moved: bool,
    pub(crate) intents: Intents,
    pub(crate) drain: Option<Drain>,
    /// The drain in force was forced: it leaves even if nobody takes over.
    pub(crate) forced: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) upgrade: Option<Upgrade>,
    pub(crate) journal: Journal,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) adverts: Adverts,
    /// How far ahead of its time an advert may go out with others, of any unit.
    pub(crate) together: Duration,
    pub(crate) refused: Refused,
    pub(crate) out: Buckets,
    pub(crate) outputs: VecDeque<Output>,
    /// Of what something that a decision depends on changed.
    pub(crate) dirty: Dirty,
    /// When all was decided last.
    pub(crate) decided_at: Option<Instant>,
    /// Units with state that was changed in this turn, or that have something due.
    pub(crate) touched: Units,
    /// Decided, and but for their withdrawals nothing has been done of it.
    pub(crate) unfinished: Option<bgp::Unfinished>,
    /// Units of which the keeper may have to know something new.
    pub(crate) records: Units,
    /// When each unit has something to do.
    pub(crate) timers: Schedule,
    /// When the decision on each unit no longer stands by itself.
    pub(crate) ages: Schedule,
    /// `None`: to be made anew from the links.
    pub(crate) legs: Option<LegIndex>,
    /// VRRP sockets were opened or closed since the last decision.
    pub(crate) sockets_changed: bool,
    /// The shortest down time that a peer can have.
    shortest_down: Option<Duration>,
    pub(crate) reconcile_at: Option<Instant>,
    /// From when on in a turn that happens anyway.
    pub(crate) reconcile_join: Option<Instant>,
    pub(crate) reconcile_due: bool,
    /// Something waits for steps that are on their way.
    pub(crate) reconcile_again: bool,
    /// Our routes and rules in the kernel are known.
    pub(crate) ours_known: bool,
    pub(crate) announcements: VecDeque<(u32, IpAddr)>,
    /// What is in `announcements`.
    pub(crate) announced: BTreeSet<(u32, IpAddr)>,
    /// Not before then, when a batch of announcements has just gone out.
    pub(crate) announce_at: Option<Instant>,
    pub(crate) report_at: Instant,
    pub(crate) report_due: bool,
    /// Units of which the peers have to hear something new before that.
    pub(crate) report_of: Units,
    pub(crate) report_sequence: u64,
    /// The kernel's state is known.
    pub(crate) synced: bool,
    pub(crate) stopped: bool,
    wake: Option<Instant>,
}

/// Counted for each advert.
#[derive(Debug, Default)]
pub(crate) struct Adverts {
    pub sent: u64,
    pub received: u64,
    /// With the checksum over the pseudo-header, over IPv4.
    pub pseudo_header: u64,
}

/// How far ahead of its time an advert may go out with others. They fall into step with these, so that one wake-up
/// serves many; an advert is never later than its interval.
pub(crate) fn together(interval: AdvertInterval) -> Duration {
    interval.duration() / 10
}

/// What one turn puts out, in the order in which it leaves.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// Sockets that the rest needs.
    pub first: Vec<Output>,
    /// Priority 0 and "take it now": these save the most time.
    pub urgent: Vec<Output>,
    /// Routes withdrawn and announced: before all that changes the kernel.
    pub bgp: Vec<Output>,
    /// Whose flows are whose: before what makes the kernel forget some.
    pub flows: Vec<Output>,
    pub owners: Vec<Output>,
    /// Before the addresses: with hundreds of them the peers must not wait for the last one.
    pub adverts: Vec<Output>,
    pub steps: Vec<Output>,
    pub announces: Vec<Output>,
    pub datagrams: Vec<Output>,
    pub rest: Vec<Output>,
    pub last: Vec<Output>,
}

impl Node {
    /// A node that has seen nothing yet. It does nothing to the kernel before its first [`Input::Resync`].
    pub fn new(config: Config, boot: Boot, now: Instant) -> Self {
        let mut world = World::new(&config, now);
        let by_name: BTreeMap<String, VipId> =
            (0..).map(VipId).zip(&config.vips).map(|(id, vip)| (vip.name.as_str().to_owned(), id)).collect();
        for (name, role_epoch) in &boot.resume {
            let view = by_name.get(name).and_then(|id| world.vips.get_mut(usize::from(id.0)));
            if let Some(view) = view {
                view.resume = Some(*role_epoch);
                view.role_epoch = *role_epoch;
                view.assumed_fit_until = Some(now + crate::turn::ASSUMED_FIT);
                view.bgp.settled_until = Some(now + bgp::NEIGHBOR_GRACE);
            }
        }
        for (name, legs) in boot.pseudo_header {
            if let Some(view) = by_name.get(&name).and_then(|id| world.vips.get_mut(usize::from(id.0))) {
                view.resume_pseudo_header = legs;
            }
        }
        for (_, view) in config.vips.iter().zip(&mut world.vips).filter(|(vip, _)| vip.anycast()) {
            view.assumed_fit_until = view.assumed_fit_until.map(|_| now + bgp::ASSUMED_FIT);
        }
        let speakers = Speakers::new(&config, &world, boot.bgp_restarting, boot.seed, now);
        let channel = match (&config.cluster, boot.secret_key) {
            (Some(cluster), Some(secret_key)) => {
                let peer = |p: &crate::config::Peer| PeerConfig {
                    name: p.name.as_str().to_owned(),
                    address: p.address,
                    public_keys: p.public_keys.clone(),
                };
                let peers = cluster.peers.iter().map(peer).collect();
                Some(Channel::new(ChannelConfig { secret_key, epoch: boot.epoch, peers }, boot.seed, now))
            }
            _ => None,
        };
        let addresses =
            (0..).map(VipId).zip(&config.vips).flat_map(|(id, vip)| vip.addresses.iter().map(move |a| (a.ip, id)));
        let units = config.vips.len();
        let mut node = Self {
            by_name,
            managed: managed(&config),
            with_extras: with_extras(&config),
            owner_of: addresses.collect(),
            epoch: boot.epoch,
            started: now,
            plan: decide(&config, &world, now),
            world,
            actual: Actual::default(),
            vips: config.vips.iter().map(|vip| VipRun::new(vip, config.cluster.is_none(), now)).collect(),
            checks: Checks::new(&config.checks, boot.seed, now),
            pools: config.nft.as_ref().map(|nft| Pools::new(nft, &boot.intents.backends, boot.seed, now)),
            former_table: config.nft.is_none().then(crate::pool::Kernel::default),
            conntrack: Watch::new(config.conntrack),
            asking: asking(&config),
            judge_due: false,
            stalled: None,
            channel,
            speakers,
            neighbors_moved: false,
            intents: boot.intents,
            drain: None,
            forced: false,
            stop: None,
            upgrade: None,
            journal: Journal::new(boot.last_event_id),
            counters: BTreeMap::new(),
            adverts: Adverts::default(),
            together: config.vips.iter().map(|vip| together(vip.vrrp.interval)).max().unwrap_or_default(),
            refused: Refused::default(),
            out: Buckets::default(),
            outputs: VecDeque::new(),
            dirty: Dirty::everything(units),
            decided_at: None,
            touched: Units::new(units),
            unfinished: None,
            records: Units::new(units),
            timers: Schedule::new(units),
            ages: Schedule::new(units),
            legs: None,
            sockets_changed: false,
            // Three intervals and no skew (priority 255).
            shortest_down: config.vips.iter().map(shortest_down).min(),
            reconcile_at: None,
            reconcile_join: None,
            reconcile_due: true,
            reconcile_again: false,
            ours_known: false,
            announcements: VecDeque::new(),
            announced: BTreeSet::new(),
            announce_at: None,
            report_at: now,
            report_due: false,
            report_of: Units::new(units),
            report_sequence: 0,
            synced: false,
            stopped: false,
            wake: Some(now),
            config,
        };
        node.ids().for_each(|id| node.touched.insert(id));
        node.set_withheld();
        let name = node.config.node.as_str().to_owned();
        node.event(now, None, Kind::Started { node: name, epoch: boot.epoch });
        node.drain_channel(now);
        node.rearm(now);
        node.flush();
        node
    }

    /// Takes one input. Drain [`Self::poll_output`] after each.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        self.handle_all(now, [input]);
    }

    /// Takes inputs that one look at a source gave, in order, and then does one turn for all of them. Drain
    /// [`Self::poll_output`] afterwards. The caller bounds their number.
    pub fn handle_all<'a>(&mut self, now: Instant, inputs: impl IntoIterator<Item = Input<'a>>) {
        let mut turn = false;
        for input in inputs {
            if self.stopped {
                return;
            }
            let accepted = match &input {
                Input::Vrrp { ifindex, packet } => match self.accept_vrrp(*ifindex, *packet) {
                    Some(accepted) => Some(accepted),
                    // Garbage costs a counter and no turn.
                    None => continue,
                },
                Input::Datagram { from, bytes } => {
                    if self.channel.is_none() || self.refuses_datagram(now, *from, bytes) {
                        continue;
                    }
                    None
                }
                _ => None,
            };
            if !std::mem::replace(&mut turn, true) {
                self.finish_plans(now);
                self.notice_stall(now);
            }
            self.observe(now, input, accepted);
        }
        if !turn {
            return;
        }
        self.run_due(now);
        if self.unfinished.is_some() {
            // What was said is to leave before anything else is done; the rest follows at once.
            self.wake = Some(now);
            self.flush();
            return;
        }
        self.rearm(now);
        self.refresh_early(now);
        self.report(now);
        self.wake = self.next_wake(now);
        self.flush();
    }

    /// What an input changes by itself.
    fn observe(&mut self, now: Instant, input: Input<'_>, accepted: Option<(VipId, LegId, wire::Received)>) {
        match input {
            Input::Timer => {}
            Input::Vrrp { .. } => {
                if let Some((id, leg, received)) = accepted {
                    self.on_vrrp(now, id, leg, &received);
                }
            }
            Input::AdvertSent { vip, leg, result } => self.on_advert_sent(now, vip, leg, result),
            Input::Datagram { .. } => self.drain_channel(now),
            Input::Probed { vip, target, outcome } => self.on_probed(now, vip, target, outcome),
            Input::Link(link) => self.on_link(now, link),
            Input::LinkGone { ifindex } => self.on_link_gone(now, ifindex),
            Input::Address(address) => self.on_address(address),
            Input::AddressGone { ifindex, ip, prefix } => self.on_address_gone(now, (ifindex, ip, prefix)),
            Input::Resync { links, addresses } => self.on_resync(now, links, addresses),
            Input::Ours { routes, rules } => self.on_ours(now, routes, rules),
            Input::StepDone { step, result } => self.on_step_done(now, &step, result),
            Input::TableTouched => self.on_table_touched(now),
            Input::Balancer { balancer, state } => self.on_balancer(now, balancer, state),
            Input::Conntrack { sample } => self.on_conntrack(now, sample),
            Input::Plane { balancer, report } => self.on_plane(now, balancer, report),
            Input::Sync(word) => self.on_sync(now, word),
            Input::SyncEvent(event) => self.on_sync_event(now, event),
            Input::Lapsed { vip, role_epoch } => self.on_lapsed(now, vip, role_epoch),
            Input::CheckDone { check, sequence, result, note } => {
                self.on_check_done(now, check, sequence, result, note)
            }
            Input::Bgp { neighbor, input } => self.on_bgp(now, neighbor, input),
            Input::Bfd { neighbor, state, diag } => self.on_bfd(now, neighbor, state, diag),
            Input::Disabled { vip, disabled } => self.on_disabled(now, vip, disabled),
            Input::Operator { token, request } => match request {
                Request::Status => {
                    let status = Box::new(self.status(now));
                    self.answer(token, crate::io::Answer::Status(status));
                }
                request => self.on_operator(now, token, request),
            },
            Input::Replaced { result } => self.on_replaced(now, result),
            Input::Stop { deadline } => self.on_stop(now, deadline),
        }
    }

    /// What the caller must do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timer`] is wanted next. `None`: nothing armed (after [`Output::Stopped`]).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Everything this node has observed.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What it decided last.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Packets and datagrams that changed nothing, so far.
    pub fn refused(&self) -> u64 {
        self.refused.total() + self.channel.as_ref().map_or(0, |channel| channel.counters().refused())
    }

    /// Status at `now`.
    pub fn status(&self, now: Instant) -> Status {
        crate::status::of(self, now)
    }

    /// A stall is seen at the first input after it, whatever that is: the timer that should have come didn't.
    fn notice_stall(&mut self, now: Instant) {
        let Some(wake) = self.wake.filter(|wake| *wake < now) else { return };
        let late = now.saturating_duration_since(wake);
        if late > UNREAD && !mutants::off("unread-words") {
            self.world.unread_until = Some(now + REREAD);
        }
        if self.shortest_down.is_some_and(|shortest| late > shortest) {
            self.on_stall(now, late);
        }
    }

    pub(crate) fn count(&mut self, name: &str) {
        match self.counters.get_mut(name) {
            Some(counter) => *counter = counter.saturating_add(1),
            None => {
                self.counters.insert(name.to_owned(), 1);
            }
        }
    }

    /// Writes the journal; the entry's number, to be the cause of others.
    pub(crate) fn event(&mut self, now: Instant, cause: Option<u64>, kind: Kind) -> Option<u64> {
        let event = self.journal.record(now, cause, kind)?;
        let id = event.id;
        self.out.rest.push(Output::Event(event));
        Some(id)
    }

    pub(crate) fn answer(&mut self, token: u64, answer: crate::io::Answer) {
        self.out.rest.push(Output::Answer { token, answer });
    }

    fn flush(&mut self) {
        let Buckets { first, urgent, bgp, flows, owners, adverts, steps, announces, datagrams, rest, last } =
            std::mem::take(&mut self.out);
        for output in
            [first, urgent, bgp, flows, owners, adverts, steps, announces, datagrams, rest, last].into_iter().flatten()
        {
            if self.outputs.len() >= OUTPUTS_MAX {
                self.outputs.pop_front();
                self.count("outputs_lost");
            }
            self.stopped |= output == Output::Stopped;
            self.outputs.push_back(output);
        }
        if self.stopped {
            self.wake = None;
        }
    }

    /// Looks again when the units that were touched have something to do.
    fn rearm(&mut self, now: Instant) {
        for id in self.touched.take() {
            let at = self.unit_wake(now, id);
            self.timers.set(id, at);
        }
    }

    /// When a unit has something to do.
    fn unit_wake(&self, now: Instant, id: VipId) -> Option<Instant> {
        let (run, view) = (self.run(id), self.view(id));
        let timers = [run.router.poll_timeout(), run.contest.map(|(_, at)| at), run.announcer.poll_timeout()];
        let others = [
            view.fault.map(|f| f.until),
            view.leaving.and_then(|l| l.until),
            view.assumed_fit_until,
            view.relisten_until,
            view.flows.gate.map(|gate| gate.until),
            view.flows.flush_until,
            Some(self.started + self.vip_config(id).vrrp.startup_delay),
        ];
        let tracks = view.tracks.iter().filter_map(|track| track.turns_at);
        let routes = bgp::turning_points(self.vip_config(id), &view.bgp, &self.world);
        let others = others.into_iter().flatten().chain(tracks).chain(routes).filter(|at| *at > now);
        timers.into_iter().flatten().chain(others).min()
    }

    /// The earliest of everything that waits for a time.
    fn next_wake(&self, now: Instant) -> Option<Instant> {
        let channel = self.channel.as_ref().map(|c| (c.poll_timeout(), self.report_at));
        let channel = channel.into_iter().flat_map(|(at, report)| [at, Some(report)]).flatten();
        let operators = self.drain.iter().map(|d| d.deadline).chain(self.stop.iter().map(|s| s.deadline));
        let wake = channel
            .chain(self.timers.first())
            .chain(self.speakers.poll_timeout())
            .chain(operators.filter(|at| *at > now))
            .chain(self.checks.poll_timeout())
            .chain(self.pools.as_ref().and_then(Pools::poll_timeout))
            .chain(self.former_table.as_ref().and_then(crate::pool::Kernel::poll_timeout))
            .chain(self.reconcile_at)
            .chain(self.announce_at)
            .min();
        // A node with nothing to do still looks around: what it decides may depend on the age of a word.
        Some(wake.map_or(now + IDLE, |at| at.min(now + IDLE)))
    }
}

/// A stall that is longer than this says that what was seen before it may not be so any more. Without VRRP nobody takes
/// anything from us meanwhile, but answers of checks may lie unread.
fn shortest_down(vip: &crate::config::Vip) -> Duration {
    if vip.anycast() { ANYCAST_STALL } else { vip.vrrp.interval.duration() * 3 }
}

const ANYCAST_STALL: Duration = Duration::from_millis(300);
const IDLE: Duration = Duration::from_millis(500);

fn asking(config: &Config) -> Vec<Vec<Asking>> {
    let ids = (0..).map(BalancerId).zip(&config.balancers).map(|(id, _)| id);
    ids.map(|id| crate::plane::checks_of(config, id)).collect()
}

fn with_extras(config: &Config) -> Vec<VipId> {
    let vips = (0..).map(VipId).zip(&config.vips);
    let more = |vip: &crate::config::Vip| {
        !vip.routes.is_empty() || !vip.rules.is_empty() || vip.legs.iter().any(|leg| leg.vmac)
    };
    vips.filter(|(_, vip)| more(vip)).map(|(id, _)| id).collect()
}

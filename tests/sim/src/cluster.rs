//! The world of a run: hosts, wires, virtual time and its queue of happenings.
//!
//! What may be done to it is in `verbs`, what hosts ask of it in `obey`.

use crate::checker::Checker;
use crate::coverage::Coverage;
use crate::flows::{FlowFaults, Flows};
use crate::host::Host;
use crate::kernel::{Change, EVENT_DELAY, Kernel};
use crate::net::{Net, Wire};
use crate::options::{channel_address, config, name};
use crate::peer::Act;
use crate::plane::{Looks, POLL, Plane};
use crate::rng::SimRng;
use holdfast_node::Node;
use holdfast_node::config::{BalancerId, CheckId, VipId};
use holdfast_node::io::{
    BalancerState, CheckError, Failure, Input, Output, Packet, PlaneReport, ProbeOutcome, SocketKey,
};
use holdfast_node::sync::SyncWord;
use holdfast_vrrp::Family;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use crate::options::{Options, Shape, TrackOptions};
pub use crate::peer::PeerOptions;

/// Lines of the trace that are kept: the newest.
const TRACE_MAX: usize = 600;
/// Packets that wait for a standing host; more are dropped, as a socket's buffer does.
const INBOX_MAX: usize = 500;
/// The kernel's notices that wait for one: so few that an overrun is seen in runs. Then all are lost, and the host is
/// told so: it gets everything that there is in their stead, as a netlink monitor does after `ENOBUFS`.
const NOTICES_MAX: usize = 4;
/// Happenings that may wait: more are a storm.
const QUEUE_MAX: usize = 200_000;

/// A VRRP packet on a segment.
#[derive(Debug, Clone)]
pub(crate) struct OnWire {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    /// IPv4: with the IP header.
    pub bytes: Vec<u8>,
}

/// What is in the queue.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    Wake {
        life: u64,
    },
    Vrrp {
        segment: u8,
        packet: Rc<OnWire>,
        forged: bool,
    },
    Datagram {
        from: SocketAddr,
        bytes: Rc<Vec<u8>>,
    },
    Kernel(Change),
    Link {
        segment: u8,
    },
    Unplugged {
        ifindex: u32,
    },
    Based {
        segment: u8,
    },
    Probed {
        life: u64,
        vip: VipId,
        target: IpAddr,
        outcome: ProbeOutcome,
    },
    Checked {
        life: u64,
        check: CheckId,
        sequence: u64,
        result: Result<(), Failure>,
    },
    Expire,
    Plane,
    /// The balancer becomes like this, by what all hosts share.
    Becomes {
        plane: Plane,
        round: u64,
    },
    /// A look at the balancer is due.
    Look {
        life: u64,
    },
    /// What it found.
    Looked {
        life: u64,
        report: Box<PlaneReport>,
    },
    /// The sync thread looks at what it has.
    Flows {
        life: u64,
    },
    /// What it says.
    Said {
        life: u64,
        word: Box<SyncWord>,
    },
}

impl Happening {
    fn is_packet(&self) -> bool {
        matches!(self, Self::Vrrp { .. } | Self::Datagram { .. })
    }

    fn is_notice(&self) -> bool {
        matches!(self, Self::Kernel(_) | Self::Link { .. } | Self::Unplugged { .. } | Self::Based { .. })
    }
}

/// What waits for a host that stands still.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Happening>,
    packets: usize,
    notices: usize,
    /// Notices were lost.
    overrun: bool,
}

impl Inbox {
    fn put(&mut self, happening: Happening) {
        if happening.is_packet() {
            if self.packets == INBOX_MAX {
                return;
            }
            self.packets += 1;
        } else if happening.is_notice() {
            if self.overrun || self.notices == NOTICES_MAX {
                self.overrun = true;
                self.waiting.retain(|waiting| !waiting.is_notice());
                return;
            }
            self.notices += 1;
        }
        self.waiting.push_back(happening);
    }
}

/// N hosts on two segments. See the crate's documentation.
#[derive(Debug)]
pub struct Cluster {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The wires.
    pub net: Net,
    /// The run's random numbers.
    pub rng: SimRng,
    /// What must always hold.
    pub checker: Checker,
    /// What was seen.
    pub coverage: Coverage,
    /// The segment's router answers.
    pub gateway: bool,
    /// To whom the clients' ARP and neighbour caches point, by address.
    pub neighbours: BTreeMap<IpAddr, usize>,
    pub(crate) flow_faults: FlowFaults,
    pub(crate) options: Options,
    pub(crate) now: Instant,
    origin: Instant,
    queue: BTreeMap<(Instant, u64), (usize, Happening)>,
    sequence: u64,
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) calm: Vec<Option<Instant>>,
    trace: VecDeque<String>,
    pub(crate) token: u64,
    /// Datagrams seen on the channel's link, to be replayed.
    pub(crate) overheard: VecDeque<(usize, SocketAddr, Rc<Vec<u8>>)>,
    /// How often something shared failed or was mended.
    pub(crate) shared: u64,
    /// What broke while an output was carried out.
    pub(crate) broken: Option<String>,
}

impl Cluster {
    /// All hosts down; [`Self::start`] them.
    pub fn new(options: Options) -> Self {
        // The one real instant: an origin to count from, with room for clocks that are behind. Its value never matters.
        #[allow(clippy::disallowed_methods, reason = "an arbitrary origin for virtual time")]
        let origin = Instant::now() + Duration::from_secs(3600);
        let mut rng = SimRng::new(options.seed);
        let keys: Vec<_> = (0..options.hosts).map(|_| holdfast_statesync::generate_keypair(rng.seed32())).collect();
        let publics: Vec<_> = keys.iter().map(|(_, public)| *public).collect();
        let host = |i: usize| Host {
            name: name(i),
            channel: channel_address(i),
            config: config(&options, i, &publics),
            secret_key: (options.channel && !options.is_plain(i)).then(|| keys[i].0.clone()),
            plain: options.is_plain(i),
            node: None,
            peer: None,
            life: 0,
            kernel: Kernel::new(u8::try_from(i).expect("few hosts")),
            plane: Plane::Alive,
            pid: 100,
            lag: Duration::ZERO,
            paused_until: None,
            frozen_at: None,
            clock_stood: None,
            stands_from: None,
            stood: None,
            mute: false,
            wake_at: None,
            expire_at: None,
            ledger: BTreeMap::new(),
            intents: Default::default(),
            last_event_id: 0,
            answers: vec![],
            adverts: 0,
            last_advert: None,
            announced: None,
            transitions: 0,
            plane_since: origin,
            flows: Flows::default(),
            stopping: false,
            able_at: None,
            ticks: 0,
            table_full: false,
            said_well_at: None,
            said_poor_at: None,
        };
        Self {
            hosts: (0..options.hosts).map(host).collect(),
            net: Net::default(),
            rng,
            checker: Checker::new(origin),
            coverage: Coverage::default(),
            gateway: true,
            neighbours: BTreeMap::new(),
            flow_faults: FlowFaults::new(options.seed),
            now: origin,
            origin,
            queue: BTreeMap::new(),
            sequence: 0,
            inboxes: vec![Inbox::default(); options.hosts],
            calm: vec![None; options.hosts],
            trace: VecDeque::new(),
            token: 0,
            overheard: VecDeque::new(),
            shared: 0,
            broken: None,
            options,
        }
    }

    /// A cluster whose hosts were all started at once and have settled: the first is the owner.
    pub fn settled(options: Options) -> Self {
        let cluster = Self::started(options);
        assert_eq!(cluster.owners(), [0], "a fresh cluster settles on its first host\n{}", cluster.trace());
        cluster
    }

    /// A cluster whose hosts were all started at once, some time ago.
    pub fn started(options: Options) -> Self {
        let mut cluster = Self::new(options);
        (0..cluster.hosts.len()).for_each(|i| cluster.start(i));
        let time = cluster.options.down_time() * 2 + cluster.options.startup_delay + cluster.options.preempt_delay;
        cluster.run(time + Duration::from_secs(2));
        cluster
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How it was made.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Since when this host's agent runs without a restart, pause or drain.
    pub fn calm_since(&self, host: usize) -> Option<Instant> {
        self.calm[host]
    }

    /// Hosts that answer for the VIP.
    pub fn owners(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|&i| self.hosts[i].owns()).collect()
    }

    /// The newest lines of what happened.
    pub fn trace(&self) -> String {
        self.trace.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: String) {
        let at = (self.now - self.origin).as_micros();
        if self.trace.len() == TRACE_MAX {
            self.trace.pop_front();
        }
        self.trace.push_back(format!("{:>10}.{:03} {line}", at / 1000, at % 1000));
    }

    /// Lets this much time pass. Panics with the seed and the trace when an invariant breaks.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        // What was done to the hosts at this very moment.
        self.look();
        while let Some((&(at, sequence), _)) = self.queue.first_key_value() {
            if at > end {
                break;
            }
            let (i, happening) = self.queue.remove(&(at, sequence)).expect("just seen");
            self.now = at;
            self.happen(i, happening);
            self.look();
        }
        self.now = end;
        self.look();
    }

    fn look(&mut self) {
        let mut checker = std::mem::take(&mut self.checker);
        let verdict = checker.look(self);
        self.checker = checker;
        if let Some(broken) = self.broken.take().or_else(|| verdict.err()) {
            let trace = self.trace();
            panic!("seed {}: {broken}\n{:?}\n{trace}", self.options.seed, self.options);
        }
    }

    pub(crate) fn push(&mut self, after: Duration, host: usize, happening: Happening) {
        self.sequence += 1;
        assert!(self.queue.len() < QUEUE_MAX, "seed {}: a storm\n{}", self.options.seed, self.trace());
        self.queue.insert((self.now + after, self.sequence), (host, happening));
    }

    fn happen(&mut self, i: usize, happening: Happening) {
        if let Some(until) = self.hosts[i].paused_until {
            if until > self.now {
                // A host whose clock stands still loses no address meanwhile; another one's kernel goes on.
                if matches!(happening, Happening::Expire) && self.hosts[i].frozen_at.is_none() {
                    self.expire(i);
                } else if !matches!(happening, Happening::Wake { .. }) {
                    self.inboxes[i].put(happening);
                }
                return;
            }
            self.wake_up(i);
        }
        self.deliver(i, happening);
    }

    fn wake_up(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        host.paused_until = None;
        host.stood = host.stands_from.take().map(|since| (self.now, self.now - since));
        if let Some(since) = host.frozen_at.take() {
            host.lag += self.now - since;
            host.clock_stood = Some((self.now, self.now - since));
        }
        host.wake_at = None;
        host.expire_at = None;
        self.calm[i] = Some(self.now);
        self.note(format!("{} goes on", name(i)));
        let inbox = std::mem::take(&mut self.inboxes[i]);
        if inbox.overrun {
            self.coverage.see("kernel: notices overran");
            let (links, addresses) = (self.hosts[i].kernel.links(), self.hosts[i].kernel.addresses());
            self.feed(i, Input::Resync { links: &links, addresses: &addresses });
            self.peer_links(i);
        }
        inbox.waiting.into_iter().for_each(|h| self.deliver(i, h));
        self.feed(i, Input::Timer);
        self.expire(i);
    }

    fn expire(&mut self, i: usize) {
        let local = self.hosts[i].local(self.now);
        self.hosts[i].expire_at = None;
        for change in self.hosts[i].kernel.expire(local) {
            self.note(format!("{}: address ran out", name(i)));
            self.coverage.see("kernel: address ran out");
            self.push(EVENT_DELAY, i, Happening::Kernel(change));
        }
        self.arm_expiry(i);
    }

    pub(crate) fn arm_expiry(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let local = host.local(self.now);
        let Some(at) = host.kernel.next_expiry().filter(|at| host.expire_at.is_none_or(|have| *at < have)) else {
            return;
        };
        host.expire_at = Some(at);
        self.push(at.saturating_duration_since(local), i, Happening::Expire);
    }

    fn deliver(&mut self, i: usize, happening: Happening) {
        match happening {
            Happening::Wake { life } => {
                let local = self.hosts[i].local(self.now);
                // A later wake that was overtaken by an earlier one finds nothing to do.
                if life == self.hosts[i].life && self.hosts[i].wake_at.is_some_and(|at| at <= local) {
                    self.hosts[i].wake_at = None;
                    self.feed(i, Input::Timer);
                }
            }
            Happening::Vrrp { segment, packet, forged } => self.arrives(i, segment, &packet, forged),
            Happening::Datagram { from, bytes } => self.feed(i, Input::Datagram { from, bytes: &bytes }),
            Happening::Kernel(Change::There(address)) => self.feed(i, Input::Address(address)),
            Happening::Kernel(Change::Gone(ifindex, ip, prefix)) => {
                self.feed(i, Input::AddressGone { ifindex, ip, prefix });
            }
            Happening::Link { segment } => {
                let interface = &self.hosts[i].kernel.interfaces[usize::from(segment)];
                if interface.present {
                    let link = interface.link();
                    self.feed(i, Input::Link(link));
                }
                self.peer_links(i);
            }
            Happening::Unplugged { ifindex } => {
                self.feed(i, Input::LinkGone { ifindex });
                self.peer_links(i);
            }
            Happening::Based { segment } => {
                let interface = self.hosts[i].kernel.interfaces[usize::from(segment)].clone();
                for own in interface.own().into_iter().filter(|_| interface.present) {
                    if interface.based {
                        self.feed(i, Input::Address(own));
                    } else {
                        let (ifindex, ip, prefix) = (own.ifindex, own.ip, own.prefix);
                        self.feed(i, Input::AddressGone { ifindex, ip, prefix });
                    }
                }
                self.peer_links(i);
            }
            Happening::Probed { life, vip, target, outcome } => {
                if life == self.hosts[i].life {
                    self.feed(i, Input::Probed { vip, target, outcome });
                }
            }
            Happening::Checked { life, check, sequence, result } => {
                if life == self.hosts[i].life {
                    let result = result.map_err(|how| CheckError { what: format!("{how:?}"), how });
                    self.feed(i, Input::CheckDone { check, sequence, result, note: None });
                }
            }
            Happening::Plane => self.plane_seen(i),
            Happening::Becomes { plane, round } => {
                if self.hosts[i].plane == Plane::Alive && round == self.shared {
                    self.set_plane(i, plane);
                }
            }
            Happening::Look { life } => {
                if life == self.hosts[i].life {
                    self.look_at_plane(i);
                    let early = Duration::from_millis(self.rng.below(50));
                    self.push(POLL - early, i, Happening::Look { life });
                }
            }
            Happening::Looked { life, report } => {
                if life == self.hosts[i].life {
                    self.feed(i, Input::Plane { balancer: BalancerId(0), report: *report });
                }
            }
            Happening::Flows { life } => {
                if life == self.hosts[i].life {
                    self.flows_tick(i);
                }
            }
            Happening::Said { life, word } => {
                if life == self.hosts[i].life {
                    self.flows_said(i, *word);
                }
            }
            Happening::Expire => self.expire(i),
        }
    }

    /// A packet reaches the host's interface on a segment.
    fn arrives(&mut self, i: usize, segment: u8, packet: &OnWire, forged: bool) {
        let host = &mut self.hosts[i];
        let interface = &host.kernel.interfaces[usize::from(segment)];
        if !interface.works() {
            return;
        }
        let ifindex = interface.ifindex;
        let input = match (packet.source, packet.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Packet::V6 { source, destination, hop_limit: packet.ttl, message: &packet.bytes }
            }
            _ => Packet::V4(&packet.bytes),
        };
        if host.plain {
            let local = host.local(self.now);
            let multicast = packet.destination.is_multicast();
            let fits = |leg: &holdfast_node::config::Leg| {
                let here = interface.name == leg.interface && leg.family == Family::of(packet.source);
                here && multicast == leg.peers.is_empty()
            };
            let leg = host.config.vips[0].legs.iter().position(fits);
            if let (Some(peer), Some(leg)) = (host.peer.as_mut(), leg) {
                let acts = peer.packet(local, leg, input);
                self.act(i, acts);
            }
            return;
        }
        let family = Family::of(packet.source);
        let socket = SocketKey { family, ifindex: packet.destination.is_multicast().then_some(ifindex) };
        if !host.kernel.open.contains(&socket) {
            return;
        }
        let before = (host.is_active(), host.node.as_ref().map(Node::refused), host.transitions);
        self.feed(i, Input::Vrrp { ifindex, packet: input });
        if forged {
            let host = &self.hosts[i];
            let after = (host.is_active(), host.node.as_ref().map(Node::refused), host.transitions);
            let refused = before.1.map(|n| n + 1) == after.1;
            if before.1.is_some() && !(refused && (before.0, before.2) == (after.0, after.2)) {
                self.broken = Some(format!("{} took a forged advert: {packet:?}", name(i)));
            }
        }
    }

    pub(crate) fn plane_seen(&mut self, i: usize) {
        let pid = self.hosts[i].pid;
        let state = match self.hosts[i].plane {
            Plane::Dead => BalancerState::Gone { pid, why: "killed".to_owned() },
            _ => BalancerState::Alive { pid },
        };
        self.feed(i, Input::Balancer { balancer: BalancerId(0), state });
    }

    /// One look at the balancer; what it finds is told when it is done.
    pub(crate) fn look_at_plane(&mut self, i: usize) {
        let looks = self.options.looks;
        let plane = self.hosts[i].plane;
        if looks == Looks::None || plane == Plane::Dead || self.hosts[i].plain {
            return;
        }
        // One without requests may do nothing between two looks.
        let spent = self.rng.below(3);
        let host = &mut self.hosts[i];
        if !plane.still() {
            host.ticks += spent + u64::from(plane.busy());
        }
        let (report, took) = plane.report(looks, host.local(self.now), host.pid, host.ticks);
        let life = host.life;
        self.push(took, i, Happening::Looked { life, report: Box::new(report) });
    }

    /// One input, then everything that follows from it at this instant. A plain peer knows only of time.
    pub(crate) fn feed(&mut self, i: usize, input: Input<'_>) {
        let host = &mut self.hosts[i];
        let local = host.local(self.now);
        if let (Some(peer), Input::Timer) = (host.peer.as_mut(), &input) {
            let acts = peer.timer(local);
            return self.act(i, acts);
        }
        let Some(node) = host.node.as_mut() else { return };
        node.handle(local, input);
        let mut outputs: VecDeque<Output> = std::iter::from_fn(|| node.poll_output()).collect();
        let mut turns = 0;
        while let Some(output) = outputs.pop_front() {
            turns += 1;
            assert!(turns < 10_000, "seed {}: outputs without end\n{}", self.options.seed, self.trace());
            if let Some(answer) = self.obey(i, output) {
                let Some(node) = self.hosts[i].node.as_mut() else { return };
                node.handle(local, answer);
                outputs.extend(std::iter::from_fn(|| node.poll_output()));
            }
        }
        self.arm(i);
    }

    /// What a plain peer does.
    pub(crate) fn act(&mut self, i: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Send { leg, source, packets } => {
                    let interface = self.hosts[i].config.vips[0].legs[leg].interface.clone();
                    let segment = u8::from(interface.as_str() == "eth1");
                    self.advertise(i, segment, source, &packets);
                }
                Act::Holds { leg, active } => self.plain_holds(i, leg, active),
            }
        }
        self.arm(i);
    }

    fn arm(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let at = host.node.as_ref().and_then(Node::poll_timeout);
        let Some(at) = at.or_else(|| host.peer.as_ref().and_then(crate::peer::Peer::poll_timeout)) else { return };
        if host.wake_at.is_none_or(|have| at < have) {
            host.wake_at = Some(at);
            let life = host.life;
            let after = at.saturating_duration_since(host.local(self.now));
            self.push(after, i, Happening::Wake { life });
        }
    }

    /// Whether frames of host `a` reach `b` and back on some segment where the unit has a leg.
    pub fn hear_each_other(&self, a: usize, b: usize, every: bool) -> bool {
        let works = |i: usize, segment: u8| {
            let host = &self.hosts[i];
            host.kernel.interfaces[usize::from(segment)].works() && !host.mute
        };
        let group = matches!(self.options.shape, Shape::Group | Shape::DualGroup);
        let sound =
            |segment: u8| works(a, segment) && works(b, segment) && self.net.sound(Wire::Segment(segment), a, b);
        let mut segments = 0..=u8::from(group);
        if every { segments.all(sound) } else { segments.any(sound) }
    }
}

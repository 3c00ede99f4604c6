//! The event queue and the verbs of a scenario: start, run, break, mend.

use crate::checker::Checker;
use crate::host::{Host, Plane};
use crate::kernel::{Change, EVENT_DELAY, IFINDEX, Kernel};
use crate::net::{Net, Wire};
use crate::rng::SimRng;
use holdfast_node::Node;
use holdfast_node::config::{
    Balancer, BalancerId, BalancerKind, Check, CheckId, Cluster as ClusterConfig, Config, InterfaceName, LastNode, Leg,
    Name, Peer, Probe, ProcessSource, Vip, VipAddress, VipId, VrrpConfig,
};
use holdfast_node::io::{BalancerState, Boot, CheckError, Input, Output, Packet, ProbeOutcome, Request};
use holdfast_vrrp::{AdvertInterval, Priority, Vrid};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Lines of the trace that are kept: the newest.
const TRACE_MAX: usize = 600;
/// Packets that wait for a standing host; more are dropped, as a socket's buffer does.
const INBOX_MAX: usize = 500;

/// What is in the queue.
#[derive(Debug, Clone)]
enum Happening {
    Wake { life: u64 },
    Vrrp(Vec<u8>),
    Datagram { from: SocketAddr, bytes: Vec<u8> },
    Kernel(Change),
    Link,
    Probed { vip: VipId, target: IpAddr, outcome: ProbeOutcome },
    Checked { life: u64, check: CheckId, sequence: u64, ok: bool },
    Expire,
    Plane,
}

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Hosts; the first has the highest priority, 254.
    pub hosts: usize,
    /// With `[cluster]`.
    pub channel: bool,
    /// Advert interval, milliseconds.
    pub interval_ms: u64,
    /// RFC 9568 Preempt_Mode of all.
    pub preempt: bool,
    /// What the last node does.
    pub last_node: LastNode,
    /// The run's seed.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { hosts: 2, channel: true, interval_ms: 100, preempt: true, last_node: LastNode::Keep, seed: 1 }
    }
}

/// N hosts on a segment. See the crate's documentation.
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
    options: Options,
    now: Instant,
    origin: Instant,
    queue: BTreeMap<(Instant, u64), (usize, Happening)>,
    sequence: u64,
    inboxes: Vec<VecDeque<Happening>>,
    calm: Vec<Option<Instant>>,
    trace: VecDeque<String>,
    token: u64,
}

impl Cluster {
    /// All hosts down; [`Self::start`] them.
    pub fn new(options: Options) -> Self {
        // The one real instant: an origin to count from. Its value never matters.
        #[allow(clippy::disallowed_methods, reason = "an arbitrary origin for virtual time")]
        let origin = Instant::now();
        let mut rng = SimRng::new(options.seed);
        let keys: Vec<_> = (0..options.hosts).map(|_| holdfast_statesync::generate_keypair(rng.seed32())).collect();
        let hosts = (0..options.hosts)
            .map(|i| {
                let publics: Vec<_> = keys.iter().map(|(_, public)| *public).collect();
                let base = Ipv4Addr::new(192, 168, 0, 11 + u8::try_from(i).expect("few hosts"));
                Host {
                    name: name(i),
                    channel: channel_address(i),
                    config: config(&options, i, &publics),
                    secret_key: options.channel.then(|| keys[i].0.clone()),
                    node: None,
                    life: 0,
                    kernel: Kernel::new(base),
                    plane: Plane::Alive,
                    pid: 100,
                    paused_until: None,
                    wake_at: None,
                    ledger: BTreeMap::new(),
                    intents: Default::default(),
                    last_event_id: 0,
                    answers: vec![],
                    adverts: 0,
                    last_advert: None,
                    plane_since: origin,
                    drained: false,
                }
            })
            .collect();
        Self {
            hosts,
            net: Net::default(),
            rng,
            checker: Checker::default(),
            now: origin,
            origin,
            queue: BTreeMap::new(),
            sequence: 0,
            inboxes: vec![VecDeque::new(); options.hosts],
            calm: vec![None; options.hosts],
            trace: VecDeque::new(),
            token: 0,
            options,
        }
    }

    /// A cluster whose hosts were all started at once and have settled: the first is the owner.
    pub fn settled(options: Options) -> Self {
        let mut cluster = Self::new(options);
        (0..cluster.hosts.len()).for_each(|i| cluster.start(i));
        cluster.run(Duration::from_secs(3));
        assert_eq!(cluster.owners(), [0], "a fresh cluster settles on its first host\n{}", cluster.trace());
        cluster
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advert interval of all.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.options.interval_ms)
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

    // Verbs.

    /// Starts an agent; a running one is left alone. `resume`: as a worker restarted by its keeper.
    fn boot(&mut self, i: usize, resume: bool) {
        let epoch = u64::try_from((self.now - self.origin).as_nanos()).expect("virtual time fits") + 1;
        let seed = self.rng.seed32();
        let host = &mut self.hosts[i];
        if host.node.is_some() {
            return;
        }
        let vips = host.config.vips.clone();
        let resume = if resume {
            host.ledger
                .values()
                .filter(|r| r.active)
                .map(|r| (vips[usize::from(r.vip.0)].name.as_str().to_owned(), r.role_epoch))
                .collect()
        } else {
            vec![]
        };
        let boot = Boot {
            epoch,
            seed,
            resume,
            intents: host.intents.clone(),
            secret_key: host.secret_key.clone(),
            last_event_id: host.last_event_id,
        };
        host.life += 1;
        host.wake_at = None;
        host.node = Some(Node::new(host.config.clone(), boot, self.now));
        self.calm[i] = Some(self.now);
        self.note(format!("{} starts", name(i)));
        let (links, addresses) = (vec![self.hosts[i].kernel.link()], self.hosts[i].kernel.addresses());
        self.feed(i, Input::Resync { links: &links, addresses: &addresses });
        self.plane_seen(i);
    }

    /// Starts the agent of a host.
    pub fn start(&mut self, i: usize) {
        self.boot(i, false);
    }

    /// Everything of the agent dies at once; the kernel keeps what it has until it runs out.
    pub fn crash(&mut self, i: usize) {
        self.note(format!("{} crashes", name(i)));
        self.hosts[i].node = None;
        self.hosts[i].kernel.open.clear();
        self.hosts[i].paused_until = None;
        self.inboxes[i].clear();
        self.calm[i] = None;
    }

    /// The worker dies and its keeper has a new one running after `gap`, which resumes.
    pub fn worker_crash(&mut self, i: usize, gap: Duration) {
        if self.hosts[i].node.is_none() {
            return;
        }
        self.crash(i);
        self.run(gap);
        self.boot(i, true);
    }

    /// A host stands still (a paused VM) for this long.
    pub fn pause(&mut self, i: usize, time: Duration) {
        self.note(format!("{} stands still for {time:?}", name(i)));
        let until = self.now + time;
        self.hosts[i].paused_until = Some(until);
        self.calm[i] = None;
        let life = self.hosts[i].life;
        self.push(time, i, Happening::Wake { life });
    }

    /// The balancer changes.
    pub fn set_plane(&mut self, i: usize, plane: Plane) {
        if self.hosts[i].plane == plane {
            return;
        }
        self.note(format!("{}: balancer {plane:?}", name(i)));
        if self.hosts[i].plane == Plane::Dead {
            self.hosts[i].pid += 1;
        }
        self.hosts[i].plane = plane;
        self.hosts[i].plane_since = self.now;
        self.push(Duration::from_micros(300), i, Happening::Plane);
    }

    /// Carrier on the host's interface.
    pub fn set_carrier(&mut self, i: usize, up: bool) {
        self.note(format!("{}: carrier {up}", name(i)));
        self.hosts[i].kernel.carrier = up;
        if let (true, Some(_)) = (up, self.calm[i]) {
            self.calm[i] = Some(self.now);
        }
        self.push(EVENT_DELAY, i, Happening::Link);
    }

    /// Cuts or joins all paths between two hosts on a wire, both ways.
    pub fn cut(&mut self, wire: Wire, a: usize, b: usize, cut: bool) {
        self.note(format!("{wire:?} between {} and {}: cut {cut}", name(a), name(b)));
        self.net.cut(wire, a, b, cut);
        self.net.cut(wire, b, a, cut);
    }

    /// Takes a host off the segment, silently, or puts it back.
    pub fn isolate(&mut self, i: usize, cut: bool) {
        self.note(format!("{}: off the segment {cut}", name(i)));
        self.net.isolate(i, self.hosts.len(), cut);
    }

    /// Somebody deletes the VIP on this host.
    pub fn delete_address(&mut self, i: usize) {
        if let Some(change) = self.hosts[i].kernel.delete_first() {
            self.note(format!("{}: address deleted by hand", name(i)));
            self.push(EVENT_DELAY, i, Happening::Kernel(change));
        }
    }

    /// An operator drains this host.
    pub fn drain(&mut self, i: usize) {
        self.hosts[i].drained = true;
        self.operator(
            i,
            Request::Drain {
                reason: "test".to_owned(),
                who: "tester".to_owned(),
                at_unix_ms: 0,
                deadline: Duration::from_secs(5),
                force: vec![],
                dry_run: false,
            },
        );
    }

    /// An operator takes the drain back.
    pub fn undrain(&mut self, i: usize) {
        self.hosts[i].drained = false;
        if let Some(since) = self.calm[i].as_mut() {
            *since = self.now;
        }
        self.operator(i, Request::Undrain { who: "tester".to_owned() });
    }

    fn operator(&mut self, i: usize, request: Request) {
        self.token += 1;
        let token = self.token;
        self.note(format!("{}: operator {request:?}", name(i)));
        self.feed(i, Input::Operator { token, request });
    }

    /// The agent leaves in order.
    pub fn stop(&mut self, i: usize) {
        self.note(format!("{}: stop", name(i)));
        self.feed(i, Input::Stop { deadline: Duration::from_secs(2) });
    }

    // The loop.

    /// Lets this much time pass. Panics with the seed and the trace when an invariant breaks.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
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
        if let Err(broken) = verdict {
            let trace = self.trace();
            panic!("seed {}: {broken}\n{trace}", self.options.seed);
        }
    }

    fn push(&mut self, after: Duration, host: usize, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), (host, happening));
    }

    fn happen(&mut self, i: usize, happening: Happening) {
        if let Happening::Expire = happening {
            for change in self.hosts[i].kernel.expire(self.now) {
                self.note(format!("{}: address ran out", name(i)));
                self.push(EVENT_DELAY, i, Happening::Kernel(change));
            }
            return;
        }
        if let Some(until) = self.hosts[i].paused_until {
            if until > self.now {
                if self.inboxes[i].len() < INBOX_MAX && !matches!(happening, Happening::Wake { .. }) {
                    self.inboxes[i].push_back(happening);
                }
                return;
            }
            self.hosts[i].paused_until = None;
            self.calm[i] = Some(self.now);
            self.note(format!("{} goes on", name(i)));
            let waiting = std::mem::take(&mut self.inboxes[i]);
            waiting.into_iter().for_each(|h| self.deliver(i, h));
            let life = self.hosts[i].life;
            self.deliver(i, Happening::Wake { life });
        }
        self.deliver(i, happening);
    }

    fn deliver(&mut self, i: usize, happening: Happening) {
        match happening {
            Happening::Wake { life } => {
                if life == self.hosts[i].life {
                    self.hosts[i].wake_at = None;
                    self.feed(i, Input::Timer);
                }
            }
            Happening::Vrrp(packet) => {
                if self.hosts[i].kernel.carrier && !self.hosts[i].kernel.open.is_empty() {
                    self.feed(i, Input::Vrrp { ifindex: IFINDEX, packet: Packet::V4(&packet) });
                }
            }
            Happening::Datagram { from, bytes } => self.feed(i, Input::Datagram { from, bytes: &bytes }),
            Happening::Kernel(Change::There(address)) => self.feed(i, Input::Address(address)),
            Happening::Kernel(Change::Gone(ip, prefix)) => {
                self.feed(i, Input::AddressGone { ifindex: IFINDEX, ip, prefix });
            }
            Happening::Link => {
                let link = self.hosts[i].kernel.link();
                self.feed(i, Input::Link(link));
            }
            Happening::Probed { vip, target, outcome } => self.feed(i, Input::Probed { vip, target, outcome }),
            Happening::Checked { life, check, sequence, ok } => {
                if life == self.hosts[i].life {
                    let result =
                        if ok { Ok(()) } else { Err(CheckError { what: "connection refused".into(), overdue: false }) };
                    self.feed(i, Input::CheckDone { check, sequence, result });
                }
            }
            Happening::Plane => self.plane_seen(i),
            Happening::Expire => {}
        }
    }

    fn plane_seen(&mut self, i: usize) {
        let pid = self.hosts[i].pid;
        let state = match self.hosts[i].plane {
            Plane::Dead => BalancerState::Gone { pid, why: "killed".to_owned() },
            Plane::Alive | Plane::Hung => BalancerState::Alive { pid },
        };
        self.feed(i, Input::Balancer { balancer: BalancerId(0), state });
    }

    /// One input, then everything that follows from it at this instant.
    fn feed(&mut self, i: usize, input: Input<'_>) {
        let Some(node) = self.hosts[i].node.as_mut() else { return };
        node.handle(self.now, input);
        let mut outputs: VecDeque<Output> = std::iter::from_fn(|| node.poll_output()).collect();
        let mut turns = 0;
        while let Some(output) = outputs.pop_front() {
            turns += 1;
            assert!(turns < 10_000, "seed {}: outputs without end\n{}", self.options.seed, self.trace());
            if let Some(answer) = self.obey(i, output) {
                let Some(node) = self.hosts[i].node.as_mut() else { return };
                node.handle(self.now, answer);
                outputs.extend(std::iter::from_fn(|| node.poll_output()));
            }
        }
        self.arm(i);
    }

    fn arm(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        let Some(at) = host.node.as_ref().and_then(Node::poll_timeout) else { return };
        if host.wake_at.is_none_or(|have| at < have) {
            host.wake_at = Some(at);
            let life = host.life;
            let after = at.saturating_duration_since(self.now);
            self.push(after, i, Happening::Wake { life });
        }
    }

    /// Does what a node asks; the answer, where there is one, is its next input.
    fn obey(&mut self, i: usize, output: Output) -> Option<Input<'static>> {
        match output {
            Output::Advert { vip, leg, source, packets, .. } => {
                if !self.hosts[i].kernel.carrier {
                    return Some(Input::AdvertSent { vip, leg, result: Ok(()) });
                }
                let payload = &packets.first().expect("an advert goes somewhere").payload;
                if payload.get(2).is_some_and(|&priority| priority > 0) {
                    self.hosts[i].adverts += 1;
                    self.hosts[i].last_advert = Some(self.now);
                } else {
                    self.note(format!("{} sends priority 0", name(i)));
                }
                self.multicast(i, &ip_packet(source, payload));
                Some(Input::AdvertSent { vip, leg, result: Ok(()) })
            }
            Output::Datagram { to, bytes } => {
                if let Some(j) = self.hosts.iter().position(|h| h.channel == to) {
                    let from = self.hosts[i].channel;
                    for delay in self.net.deliveries(&mut self.rng, Wire::Channel, i, j) {
                        self.push(delay, j, Happening::Datagram { from, bytes: bytes.clone() });
                    }
                }
                None
            }
            Output::Step(step) => {
                let (result, change) = self.hosts[i].kernel.step(self.now, &step);
                let refresh = matches!(change, Some(Change::There(_)));
                if let Some(change) = change {
                    if !refresh {
                        self.note(format!("{}: {step:?}", name(i)));
                    }
                    self.push(EVENT_DELAY, i, Happening::Kernel(change));
                }
                if let Some(at) = self.hosts[i].kernel.next_expiry() {
                    self.push(at.saturating_duration_since(self.now), i, Happening::Expire);
                }
                Some(Input::StepDone { step, result })
            }
            Output::Probe { vip, target, tries, wait, .. } => {
                let found = self.hosts.iter().position(|h| IpAddr::V4(h.kernel.base) == target);
                let answered = found.is_some_and(|j| {
                    let carrier = self.hosts[i].kernel.carrier && self.hosts[j].kernel.carrier;
                    let out = self.net.deliveries(&mut self.rng, Wire::Segment, i, j);
                    let back = self.net.deliveries(&mut self.rng, Wire::Segment, j, i);
                    carrier && !out.is_empty() && !back.is_empty()
                });
                let after = if answered { Duration::from_micros(300) } else { wait * u32::from(tries) };
                let others = self.hosts[i].kernel.carrier && self.net.reachable(i);
                let outcome = match (answered, others) {
                    (true, _) => ProbeOutcome::Target,
                    (false, true) => ProbeOutcome::Others,
                    (false, false) => ProbeOutcome::Nobody,
                };
                self.note(format!("{} probes {target}: {outcome:?}", name(i)));
                self.push(after, i, Happening::Probed { vip, target, outcome });
                None
            }
            Output::StartCheck { check, sequence, .. } => {
                let life = self.hosts[i].life;
                let ok = match self.hosts[i].plane {
                    Plane::Alive => true,
                    Plane::Dead => false,
                    Plane::Hung => return None,
                };
                self.push(Duration::from_micros(700), i, Happening::Checked { life, check, sequence, ok });
                None
            }
            Output::Owner(record) => {
                self.hosts[i].ledger.insert(record.vip.0, record);
                None
            }
            Output::Event(event) => {
                self.hosts[i].last_event_id = event.id;
                self.note(format!("{}: #{} <- {:?} {:?}", name(i), event.id, event.cause, event.kind));
                None
            }
            Output::Persist(intents) => {
                self.hosts[i].intents = intents;
                None
            }
            Output::Answer { token, answer } => {
                self.note(format!("{}: answer {answer:?}", name(i)));
                self.hosts[i].answers.push((token, answer));
                None
            }
            Output::RunHook { .. } | Output::State { .. } => None,
            Output::Stopped => {
                self.note(format!("{} stopped", name(i)));
                self.hosts[i].node = None;
                self.hosts[i].kernel.open.clear();
                self.calm[i] = None;
                None
            }
        }
    }

    fn multicast(&mut self, i: usize, packet: &[u8]) {
        for j in (0..self.hosts.len()).filter(|&j| j != i) {
            for delay in self.net.deliveries(&mut self.rng, Wire::Segment, i, j) {
                self.push(delay, j, Happening::Vrrp(packet.to_vec()));
            }
        }
    }
}

fn name(i: usize) -> String {
    format!("lb{}", i + 1)
}

fn channel_address(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 11 + u8::try_from(i).expect("few hosts")], 7712))
}

/// An IPv4 packet as a raw socket gives it.
fn ip_packet(source: IpAddr, payload: &[u8]) -> Vec<u8> {
    let IpAddr::V4(source) = source else { unreachable!("the simulated segment is IPv4") };
    let length = u16::try_from(20 + payload.len()).expect("adverts are short");
    let mut packet = vec![0x45, 0xc0, 0, 0, 0, 0, 0, 0, 255, 112, 0, 0];
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&[224, 0, 0, 18]);
    packet.extend_from_slice(payload);
    packet
}

fn config(options: &Options, i: usize, publics: &[[u8; 32]]) -> Config {
    let text = |s: &str| Name::new(s).expect("a valid name");
    let priority = 254 - u8::try_from(i).expect("few hosts");
    Config {
        node: text(&name(i)),
        balancers: vec![Balancer {
            name: text("plane"),
            kind: BalancerKind::Process,
            source: ProcessSource::Command(vec!["/bin/plane".to_owned()]),
            admin: None,
        }],
        checks: vec![Check {
            name: text("web"),
            probe: Probe::Tcp { address: SocketAddr::from(([127, 0, 0, 1], 80)) },
            interval: Duration::from_millis(100),
            fast_interval: Duration::from_millis(100),
            timeout: Duration::from_millis(100),
            fall: 2,
            rise: 2,
            shared: false,
        }],
        vips: vec![vip(options, priority)],
        cluster: options.channel.then(|| ClusterConfig {
            listen: channel_address(i),
            key_file: "/nowhere".into(),
            peers: (0..options.hosts)
                .filter(|&j| j != i)
                .map(|j| Peer { name: text(&name(j)), address: channel_address(j), public_keys: vec![publics[j]] })
                .collect(),
        }),
        hooks: vec![],
        fifo: None,
    }
}

fn vip(options: &Options, priority: u8) -> Vip {
    let eth0 = InterfaceName::new("eth0").expect("a valid interface");
    let ip = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 100));
    let interval = AdvertInterval::from_duration(Duration::from_millis(options.interval_ms)).expect("a valid interval");
    let vrrp = VrrpConfig::new(Priority::configured(priority).expect("a valid priority"), interval);
    let leg = Leg::multicast(eth0.clone(), Vrid::new(10).expect("a valid VRID"), vec![ip]);
    let address = VipAddress { ip, prefix: 32, interface: eth0, advertise: true, derived: false };
    Vip {
        balancers: vec![BalancerId(0)],
        checks: vec![CheckId(0)],
        last_node: options.last_node,
        ..Vip::single(
            Name::new("web").expect("a valid name"),
            vec![address],
            vec![leg],
            VrrpConfig { preempt: options.preempt, ..vrrp },
        )
    }
}

//! A small laboratory: nodes on a virtual segment and channel network, with a virtual clock and a fake kernel.

mod obey;
mod routers;

use crate::Node;
use crate::config::{
    Balancer, BalancerId, BalancerKind, Check, CheckId, Cluster, Config, InterfaceName, Leg, Name, NeighborId, Peer,
    Probe, ProcessSource, Vip, VipAddress, VipId, VrrpConfig,
};
use crate::drain::Intents;
use crate::io::*;
use crate::journal::{Event, Kind};
use crate::kernel::{Route, Rule, Vmac};
use holdfast_statesync::SecretKey;
use holdfast_vrrp::{AdvertInterval, LegId, Priority, Vrid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

pub(crate) use routers::{Router, Told, anycast, speaks};

pub(crate) const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
pub(crate) const W: VipId = VipId(0);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// How the probes of a host end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probes {
    Good,
    Bad,
    /// Answered, with a status that isn't wanted.
    Status,
    /// The same of one check only.
    StatusOf(CheckId),
    Silent,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub config: Config,
    pub node: Option<Node>,
    pub ifindex: u32,
    pub up: bool,
    pub present: bool,
    /// Address with mark and expiry.
    pub kernel: BTreeMap<(u32, IpAddr, u8), (bool, Option<Instant>)>,
    pub sockets: BTreeSet<SocketKey>,
    pub routes: BTreeSet<Route>,
    pub rules: BTreeSet<Rule>,
    pub guard: BTreeSet<IpAddr>,
    /// Devices of virtual routers, with their indices.
    pub vmacs: BTreeMap<Vmac, u32>,
    pub route_errno: Option<i32>,
    pub probes: Probes,
    /// What looks at its balancer give.
    pub plane: Option<PlaneReport>,
    pub send_errno: Option<i32>,
    /// Legs whose adverts can't be sent.
    pub mute_legs: BTreeSet<LegId>,
    pub add_errno: Option<i32>,
    /// No router can be dialled from here.
    /// Checks of backends that fail, counted from the first of them.
    pub dead_backends: BTreeSet<u16>,
    pub routers_cut: bool,
    pub paused: bool,
    pub events: Vec<(Duration, Event)>,
    pub answers: Vec<(u64, Answer)>,
    pub log: Vec<(Duration, Output)>,
    pub intents: Intents,
    pub records: BTreeMap<u16, OwnerRecord>,
    pub last_event: u64,
    pub stopped: bool,
    secret: Option<SecretKey>,
    backlog: VecDeque<Ev>,
}

#[derive(Debug, Clone)]
enum Ev {
    Packet(Vec<u8>),
    Datagram(SocketAddr, Vec<u8>),
    Sent(VipId, LegId, Result<(), SendError>),
    Done(Step, Result<(), StepError>),
    Addr(Address),
    AddrGone(u32, IpAddr, u8),
    Ours,
    Link(Link),
    LinkGone(u32),
    Probed(VipId, IpAddr, ProbeOutcome),
    Check(CheckId, u64, Option<Failure>),
    Bgp(NeighborId, routers::Said),
    /// For this router, from the host.
    Router(usize, routers::Said),
    Expire,
}

#[derive(Debug)]
pub(crate) struct Lab {
    pub hosts: Vec<Host>,
    pub now: Instant,
    pub origin: Instant,
    queue: BTreeMap<(Instant, u64), (usize, Ev)>,
    serial: u64,
    /// One-way cuts (from, to).
    pub cut: BTreeSet<(usize, usize)>,
    pub cut_channel: BTreeSet<(usize, usize)>,
    /// Hosts that the rest of the segment doesn't reach either.
    pub isolated: BTreeSet<usize>,
    /// Hosts whose adverts alone are lost.
    pub mute: BTreeSet<usize>,
    /// Neighbours of every host, in the order of its configuration.
    pub routers: Vec<Router>,
    dual_since: Option<Instant>,
    /// The longest time that two hosts which hear each other owned the VIP.
    pub dual_max: Duration,
    unowned_since: Option<Instant>,
    pub unowned_max: Duration,
    token: u64,
}

pub(crate) fn source(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 100 + i as u8)
}

fn channel_address(i: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, i as u8 + 1)), 7712)
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub(crate) fn eth0() -> InterfaceName {
    InterfaceName::new("eth0").expect("a name")
}

pub(crate) fn config(i: usize, priority: u8, keys: &[[u8; 32]]) -> Config {
    let peers = keys.iter().enumerate().filter(|(p, _)| *p != i).map(|(p, key)| Peer {
        name: name(&format!("lb{p}")),
        address: channel_address(p),
        public_keys: vec![*key],
    });
    Config {
        node: name(&format!("lb{i}")),
        balancers: vec![Balancer::new(
            name("proxy"),
            BalancerKind::Process,
            ProcessSource::Pidfile("/run/proxy.pid".into()),
        )],
        checks: vec![Check {
            name: name("web"),
            probe: Probe::tcp("127.0.0.1:80".parse().expect("an address")),
            interval: ms(100),
            fast_interval: ms(50),
            timeout: ms(40),
            jitter: Duration::ZERO,
            fall: 2,
            rise: 3,
            shared: false,
        }],
        vips: vec![Vip { balancers: vec![BalancerId(0)], checks: vec![CheckId(0)], ..vip("web", VIP, 10, priority) }],
        bgp: None,
        cluster: (!keys.is_empty()).then(|| Cluster {
            listen: channel_address(i),
            key_file: "/etc/key".into(),
            peers: peers.collect(),
        }),
        statesync: None,
        hooks: vec![],
        nft: None,
        conntrack: Default::default(),
        fifo: None,
    }
}

/// A VIP of one IPv4 address on eth0.
pub(crate) fn vip(vip: &str, ip: IpAddr, vrid: u8, priority: u8) -> Vip {
    let address = VipAddress { ip, prefix: 32, interface: eth0(), advertise: true, derived: false };
    let leg = Leg::multicast(eth0(), Vrid::new(vrid).expect("a vrid"), vec![ip]);
    let interval = AdvertInterval::from_cs(10).expect("an interval");
    Vip::single(name(vip), vec![address], vec![leg], VrrpConfig::new(Priority::from_wire(priority), interval))
}

/// The loopback interface.
pub(crate) const LO: u32 = 1;

pub(crate) fn lo() -> InterfaceName {
    InterfaceName::new("lo").expect("a name")
}

/// The link of a virtual router's device.
pub(crate) fn device(vmac: Vmac, ifindex: u32) -> Link {
    let mac = [0, 0, 0x5e, 0, 1 + u8::from(vmac.six), vmac.vrid];
    Link { ifindex, name: vmac.name(), up: true, mac, mtu: 1500 }
}

/// The other member's address in a [`group`].
pub(crate) const VIP2: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11));

/// Makes the VIP of a configuration the first of two in a group: two virtual routers, one state machine.
pub(crate) fn group(config: &mut Config) {
    let unit = &mut config.vips[0];
    let other = vip("web2", VIP2, 11, 100);
    unit.members.extend(other.members);
    unit.legs.extend(other.legs);
    unit.addresses.extend(other.addresses);
    unit.name = name("edge");
    unit.group = true;
}

pub(crate) fn packet(source: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut p = vec![0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0, 0, 255, 112, 0, 0];
    p.extend(source.octets());
    p.extend([224, 0, 0, 18]);
    p.extend(payload);
    p
}

impl Lab {
    /// Hosts with these priorities, not started yet.
    pub(crate) fn new(priorities: &[u8], channel: bool) -> Self {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let origin = Instant::now();
        let pairs: Vec<_> =
            (0..priorities.len()).map(|i| holdfast_statesync::generate_keypair([i as u8 + 1; 32])).collect();
        let keys: Vec<_> = if channel { pairs.iter().map(|(_, public)| *public).collect() } else { vec![] };
        let hosts = priorities.iter().enumerate().map(|(i, priority)| Host {
            config: config(i, *priority, &keys),
            node: None,
            ifindex: 2,
            up: true,
            present: true,
            kernel: BTreeMap::from([((2, IpAddr::V4(source(i)), 24), (false, None))]),
            sockets: BTreeSet::new(),
            routes: BTreeSet::new(),
            rules: BTreeSet::new(),
            guard: BTreeSet::new(),
            vmacs: BTreeMap::new(),
            route_errno: None,
            probes: Probes::Good,
            dead_backends: BTreeSet::new(),
            plane: None,
            send_errno: None,
            mute_legs: BTreeSet::new(),
            add_errno: None,
            routers_cut: false,
            paused: false,
            events: vec![],
            answers: vec![],
            log: vec![],
            intents: Intents::default(),
            records: BTreeMap::new(),
            last_event: 0,
            stopped: false,
            secret: channel.then(|| pairs[i].0.clone()),
            backlog: VecDeque::new(),
        });
        Self {
            hosts: hosts.collect(),
            now: origin,
            origin,
            queue: BTreeMap::new(),
            serial: 0,
            cut: BTreeSet::new(),
            cut_channel: BTreeSet::new(),
            isolated: BTreeSet::new(),
            mute: BTreeSet::new(),
            routers: vec![],
            dual_since: None,
            dual_max: Duration::ZERO,
            unowned_since: None,
            unowned_max: Duration::ZERO,
            token: 0,
        }
    }

    /// All started and settled: the first is the owner.
    pub(crate) fn settled(priorities: &[u8], channel: bool) -> Self {
        Self::settled_with(priorities, channel, |_| {})
    }

    /// Like [`Self::settled`], with configurations that differ from the usual ones.
    pub(crate) fn settled_with(priorities: &[u8], channel: bool, mut change: impl FnMut(&mut Config)) -> Self {
        let mut lab = Self::new(priorities, channel);
        lab.hosts.iter_mut().for_each(|host| change(&mut host.config));
        (0..priorities.len()).for_each(|i| lab.start(i));
        lab.run(ms(2_000));
        assert_eq!(lab.owners(), [0], "{}", lab.story());
        lab.dual_max = Duration::ZERO;
        lab.unowned_max = Duration::ZERO;
        lab.unowned_since = None;
        lab
    }

    pub(crate) fn start(&mut self, i: usize) {
        self.boot(i, vec![]);
    }

    pub(crate) fn boot(&mut self, i: usize, resume: Vec<(String, u64)>) {
        let host = &mut self.hosts[i];
        let boot = Boot {
            epoch: 1 + (self.now - self.origin).as_nanos() as u64,
            seed: [host.last_event as u8 ^ i as u8; 32],
            bgp_restarting: !resume.is_empty(),
            resume,
            pseudo_header: vec![],
            intents: host.intents.clone(),
            secret_key: host.secret.clone(),
            last_event_id: host.last_event,
        };
        host.stopped = false;
        host.node = Some(Node::new(host.config.clone(), boot, self.now));
        self.resync(i);
        self.balancer(i, BalancerState::Alive { pid: 7 });
    }

    pub(crate) fn resync(&mut self, i: usize) {
        let (links, addresses) = (self.links(i), self.addresses(i));
        self.feed(i, Input::Resync { links: &links, addresses: &addresses });
        self.happen(i, Ev::Ours);
    }

    fn links(&self, i: usize) -> Vec<Link> {
        let host = &self.hosts[i];
        let link = Link { ifindex: host.ifindex, name: eth0(), up: host.up, mac: [2, 0, 0, 0, 0, i as u8], mtu: 1500 };
        let devices = host.vmacs.iter().map(|(vmac, ifindex)| Link { up: host.up, ..device(*vmac, *ifindex) });
        let mut links = if host.present { std::iter::once(link).chain(devices).collect() } else { vec![] };
        links.push(Link { ifindex: LO, name: lo(), up: true, mac: [0; 6], mtu: 65_536 });
        links
    }

    fn addresses(&self, i: usize) -> Vec<Address> {
        let address = |(key, (marked, _)): (&(u32, IpAddr, u8), &(bool, Option<Instant>))| Address {
            ifindex: key.0,
            ip: key.1,
            prefix: key.2,
            marked: *marked,
            secondary: false,
            tentative: false,
        };
        self.hosts[i].kernel.iter().map(address).collect()
    }

    /// The agent is gone at once; the kernel keeps the addresses until they expire.
    pub(crate) fn crash(&mut self, i: usize) {
        self.hosts[i].node = None;
        self.hosts[i].sockets.clear();
        self.hosts[i].backlog.clear();
        self.routers_lose(i);
    }

    pub(crate) fn balancer(&mut self, i: usize, state: BalancerState) {
        self.feed(i, Input::Balancer { balancer: BalancerId(0), state });
    }

    pub(crate) fn kill_balancer(&mut self, i: usize) {
        self.hosts[i].probes = Probes::Bad;
        self.balancer(i, BalancerState::Gone { pid: 7, why: "signal 9".to_owned() });
    }

    pub(crate) fn revive_balancer(&mut self, i: usize) {
        self.hosts[i].probes = Probes::Good;
        self.balancer(i, BalancerState::Alive { pid: 8 });
    }

    /// Runs, and looks at every balancer twice a second meanwhile, as an adapter would.
    pub(crate) fn looking(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for i in 0..self.hosts.len() {
                let Some(plane) = &mut self.hosts[i].plane else { continue };
                let runs = !plane.stopped && !matches!(plane.admin, Admin::Silent { .. });
                plane.cpu_ticks = plane.cpu_ticks.map(|ticks| ticks + u64::from(runs));
                let report = plane.clone();
                self.feed(i, Input::Plane { balancer: BalancerId(0), report });
            }
            self.run(ms(500).min(end - self.now));
        }
    }

    pub(crate) fn link(&mut self, i: usize, up: bool) {
        self.hosts[i].up = up;
        let link = self.links(i).remove(0);
        self.feed(i, Input::Link(link));
    }

    pub(crate) fn operator(&mut self, i: usize, request: Request) -> u64 {
        self.token += 1;
        self.feed(i, Input::Operator { token: self.token, request });
        self.token
    }

    pub(crate) fn drain(&mut self, i: usize, force: &[&str], dry_run: bool) -> u64 {
        let force = force.iter().map(|s| (*s).to_owned()).collect();
        let (reason, who) = ("kernel update".to_owned(), "uid 0".to_owned());
        self.operator(i, Request::Drain { reason, who, at_unix_ms: 1, deadline: ms(10_000), force, dry_run })
    }

    pub(crate) fn undrain(&mut self, i: usize) -> u64 {
        self.operator(i, Request::Undrain { who: "uid 0".to_owned() })
    }

    /// The last answer to a token, progress aside.
    pub(crate) fn answer(&self, i: usize, token: u64) -> Option<&Answer> {
        let last = |(t, a): &&(u64, Answer)| *t == token && !matches!(a, Answer::Progress(_));
        let all: Vec<_> = self.hosts[i].answers.iter().filter(last).collect();
        assert!(all.len() <= 1, "a request is answered once: {all:?}");
        all.first().map(|(_, a)| a)
    }

    pub(crate) fn delete_address(&mut self, i: usize) {
        let key = (self.hosts[i].ifindex, VIP, 32);
        if self.hosts[i].kernel.remove(&key).is_some() {
            self.push(Duration::from_micros(50), i, Ev::AddrGone(key.0, key.1, key.2));
        }
    }

    /// Somebody on a host changes the kernel's routes and rules.
    pub(crate) fn meddle(&mut self, i: usize, change: impl FnOnce(&mut Host)) {
        change(&mut self.hosts[i]);
        self.push(Duration::from_micros(50), i, Ev::Ours);
    }

    /// Nobody on the segment reaches this host, nor it them.
    pub(crate) fn isolate(&mut self, i: usize, cut: bool) {
        if cut {
            self.isolated.insert(i)
        } else {
            self.isolated.remove(&i)
        };
        for p in 0..self.hosts.len() {
            for pair in [(i, p), (p, i)] {
                if cut {
                    self.cut.insert(pair)
                } else {
                    self.cut.remove(&pair)
                };
            }
        }
    }

    pub(crate) fn cut_channels(&mut self, i: usize, cut: bool) {
        for p in 0..self.hosts.len() {
            for pair in [(i, p), (p, i)] {
                if cut {
                    self.cut_channel.insert(pair)
                } else {
                    self.cut_channel.remove(&pair)
                };
            }
        }
    }

    pub(crate) fn owns(&self, i: usize) -> bool {
        let host = &self.hosts[i];
        host.present && host.up && host.kernel.keys().any(|key| key.1 == VIP)
    }

    /// Who answers for the VIP.
    pub(crate) fn owners(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|i| self.owns(*i)).collect()
    }

    pub(crate) fn node(&self, i: usize) -> &Node {
        self.hosts[i].node.as_ref().expect("a running node")
    }

    pub(crate) fn at(&self) -> Duration {
        self.now - self.origin
    }

    /// Events of a host since the beginning.
    pub(crate) fn kinds(&self, i: usize) -> Vec<&Kind> {
        self.hosts[i].events.iter().map(|(_, e)| &e.kind).collect()
    }

    pub(crate) fn has(&self, i: usize, test: impl Fn(&Kind) -> bool) -> bool {
        self.hosts[i].events.iter().any(|(_, e)| test(&e.kind))
    }

    /// Outputs of a host from a time on.
    pub(crate) fn log_since(&self, i: usize, since: Duration) -> Vec<&Output> {
        self.hosts[i].log.iter().filter(|(at, _)| *at >= since).map(|(_, o)| o).collect()
    }

    pub(crate) fn story(&self) -> String {
        let mut all: Vec<_> =
            (0..self.hosts.len()).flat_map(|i| self.hosts[i].events.iter().map(move |(at, e)| (*at, i, e))).collect();
        all.sort_by_key(|(at, i, e)| (*at, *i, e.id));
        let line = |(at, i, e): &(Duration, usize, &Event)| {
            format!("{:>10.3} lb{i} #{} <- {:?} {:?}\n", at.as_secs_f64() * 1e3, e.id, e.cause, e.kind)
        };
        all.iter().map(line).collect()
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let wake = |(i, h): (usize, &Host)| match &h.node {
                Some(node) if !h.paused => node.poll_timeout().map(|at| (at, i)),
                _ => None,
            };
            let timer = self.hosts.iter().enumerate().filter_map(wake).min();
            let routers = self.routers_wake();
            let event = self.queue.keys().next().map(|(at, _)| *at);
            let next = [timer.map(|t| t.0), event, routers].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.watch(next);
            self.now = self.now.max(next);
            if event == Some(next) {
                let (_, (i, ev)) = self.queue.pop_first().expect("peeked");
                self.happen(i, ev);
            } else if routers == Some(next) {
                self.routers_timers();
            } else if let Some((_, i)) = timer {
                self.feed(i, Input::Timer);
            }
        }
        self.watch(end);
        self.now = end;
    }

    /// Runs until a condition, at most this long; how long it took.
    pub(crate) fn until(&mut self, at_most: Duration, test: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !test(self) {
            assert!(self.now - start < at_most, "not within {at_most:?}\n{}", self.story());
            self.run(ms(1));
        }
        self.now - start
    }

    pub(crate) fn pause(&mut self, i: usize) {
        self.hosts[i].paused = true;
    }

    /// Goes on; what arrived meanwhile is read first.
    pub(crate) fn resume(&mut self, i: usize) {
        self.hosts[i].paused = false;
        while let Some(ev) = self.hosts[i].backlog.pop_front() {
            self.happen(i, ev);
        }
    }

    /// Counts two owners from now on only.
    pub(crate) fn forget_duals(&mut self) {
        self.dual_since = None;
        self.dual_max = Duration::ZERO;
    }

    fn watch(&mut self, until: Instant) {
        let owners = self.owners();
        let hears = |a: usize, b: usize| !self.cut.contains(&(a, b)) && !self.cut.contains(&(b, a));
        let running = |i: &usize| self.hosts[*i].node.is_some() && !self.hosts[*i].paused;
        let active: Vec<usize> = owners.iter().copied().filter(running).collect();
        let dual = active.iter().any(|a| active.iter().any(|b| a != b && hears(*a, *b)));
        if dual {
            let since = *self.dual_since.get_or_insert(self.now);
            self.dual_max = self.dual_max.max(until - since);
        } else {
            self.dual_since = None;
        }
        if owners.is_empty() {
            let since = *self.unowned_since.get_or_insert(self.now);
            self.unowned_max = self.unowned_max.max(until - since);
        } else {
            self.unowned_since = None;
        }
    }

    fn push(&mut self, after: Duration, i: usize, ev: Ev) {
        self.serial += 1;
        self.queue.insert((self.now + after, self.serial), (i, ev));
    }

    fn happen(&mut self, i: usize, ev: Ev) {
        if let Ev::Expire = ev {
            let now = self.now;
            let expired: Vec<_> = self.hosts[i]
                .kernel
                .iter()
                .filter(|(_, (_, until))| until.is_some_and(|u| u <= now))
                .map(|(k, _)| *k)
                .collect();
            for key in expired {
                self.hosts[i].kernel.remove(&key);
                self.push(Duration::ZERO, i, Ev::AddrGone(key.0, key.1, key.2));
            }
            return;
        }
        if let Ev::Router(r, said) = ev {
            self.router_hears(r, i, said);
            return;
        }
        if self.hosts[i].paused {
            if self.hosts[i].backlog.len() < 5000 {
                self.hosts[i].backlog.push_back(ev);
            }
            return;
        }
        let host = &self.hosts[i];
        match ev {
            Ev::Packet(p) if host.up && host.sockets.iter().any(|s| s.ifindex == Some(host.ifindex)) => {
                let ifindex = host.ifindex;
                self.feed(i, Input::Vrrp { ifindex, packet: Packet::V4(&p) });
            }
            Ev::Packet(_) | Ev::Expire | Ev::Router(..) => {}
            Ev::Bgp(neighbor, said) => self.feed(i, Input::Bgp { neighbor, input: said.input() }),
            Ev::Datagram(from, bytes) => self.feed(i, Input::Datagram { from, bytes: &bytes }),
            Ev::Sent(vip, leg, result) => self.feed(i, Input::AdvertSent { vip, leg, result }),
            Ev::Done(step, result) => self.feed(i, Input::StepDone { step, result }),
            Ev::Ours => {
                let routes: Vec<_> = host.routes.iter().copied().collect();
                let rules: Vec<_> = host.rules.iter().copied().collect();
                self.feed(i, Input::Ours { routes: &routes, rules: &rules });
            }
            Ev::Link(link) => self.feed(i, Input::Link(link)),
            Ev::LinkGone(ifindex) => self.feed(i, Input::LinkGone { ifindex }),
            Ev::Addr(address) => self.feed(i, Input::Address(address)),
            Ev::AddrGone(ifindex, ip, prefix) => self.feed(i, Input::AddressGone { ifindex, ip, prefix }),
            Ev::Probed(vip, target, outcome) => self.feed(i, Input::Probed { vip, target, outcome }),
            Ev::Check(check, sequence, failure) => {
                let what = if failure == Some(Failure::Answered) { "status 503" } else { "connection refused" };
                let result = failure.map_or(Ok(()), |how| Err(CheckError { what: what.to_owned(), how }));
                self.feed(i, Input::CheckDone { check, sequence, result, note: None });
            }
        }
    }

    pub(crate) fn feed(&mut self, i: usize, input: Input<'_>) {
        let now = self.now;
        let Some(node) = &mut self.hosts[i].node else { return };
        node.handle(now, input);
        let mut outputs = vec![];
        while let Some(output) = node.poll_output() {
            outputs.push(output);
        }
        for output in outputs {
            let at = self.at();
            self.hosts[i].log.push((at, output.clone()));
            self.execute(i, output);
        }
    }
}

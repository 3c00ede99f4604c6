//! Routers of the lab: each speaks with every host through its own [`Peer`]s, and keeps what it is told as a router
//! does: a session that ends takes its routes along, but for graceful restart (RFC 4724).

use super::*;
use crate::config::{Bgp, Neighbor, NeighborAs, RouterIdFrom, VipBgp};
use holdfast_bgp::session::RemoteAs;
use holdfast_bgp::types::{Asn, NextHop, Prefix, RouterId};
use holdfast_bgp::wire::{AttributeValue, Codec, Frame, Message, Notification, Open, decode};
use holdfast_bgp::{ConnId, Peer, PeerConfig};

pub(crate) const LOCAL_AS: Asn = Asn(65_010);
pub(crate) const REMOTE_AS: Asn = Asn(65_000);
/// One way.
const WIRE: Duration = Duration::from_micros(100);

/// What one end of a connection makes the other end see.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    Connected(ConnId, SocketAddr, SocketAddr),
    Failed(ConnId),
    Dialled(ConnId),
    Bytes(ConnId, Vec<u8>),
    Closed(ConnId),
}

impl Said {
    pub(super) fn input(&self) -> BgpInput<'_> {
        match self {
            Self::Connected(conn, local, remote) => BgpInput::Connected { conn: *conn, local: *local, remote: *remote },
            Self::Failed(conn) => BgpInput::ConnectFailed { conn: *conn, why: "connection refused".to_owned() },
            Self::Bytes(conn, bytes) => BgpInput::Bytes { conn: *conn, bytes },
            Self::Closed(conn) | Self::Dialled(conn) => BgpInput::Closed { conn: *conn, why: None },
        }
    }
}

/// What a router was told, with when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    Open(Open),
    Announced { prefix: Prefix, med: Option<u32>, communities: Vec<u32>, next_hop: Option<NextHop> },
    Withdrawn(Prefix),
    EndOfRib,
    Notification(Notification),
    Closed,
}

/// One router: a passive speaker.
#[derive(Debug)]
pub(crate) struct Router {
    pub address: IpAddr,
    /// It answers at all.
    pub up: bool,
    pub config: PeerConfig,
    /// By host.
    ends: BTreeMap<usize, End>,
    /// Its table, as the kernel would have it: host and prefix, with when it goes if nobody tells it again.
    pub table: BTreeMap<(usize, Prefix), Option<Instant>>,
    /// Changes of the table: when, of which host, added or removed.
    pub changes: Vec<(Duration, usize, Prefix, bool)>,
    pub told: Vec<(Duration, usize, Told)>,
    next_conn: u64,
}

#[derive(Debug)]
struct End {
    peer: Peer,
    /// The connection in use: the host's name of it and ours.
    conn: Option<(ConnId, ConnId)>,
    graceful: Option<Duration>,
    notified: bool,
}

/// Makes the VIP one that BGP alone announces, to `routers` of them.
pub(crate) fn anycast(config: &mut Config, routers: usize) {
    speaks(config, routers);
    let vip = &mut config.vips[0];
    vip.legs.clear();
    vip.addresses.iter_mut().for_each(|address| address.interface = lo());
}

/// The same, beside VRRP.
pub(crate) fn speaks(config: &mut Config, routers: usize) {
    let neighbors = (0..routers)
        .map(|r| Neighbor { name: format!("r{}", r + 1), ..Neighbor::new(address(r), NeighborAs::Exactly(REMOTE_AS)) });
    let number: u8 = config.node.as_str()[2..].parse().expect("lbN");
    config.bgp = Some(Bgp {
        asn: LOCAL_AS,
        router_id: RouterId::new(source(usize::from(number))).expect("not 0"),
        router_id_from: RouterIdFrom::Configured,
        listen: true,
        listen_port: 179,
        graceful_restart: Some(ms(15_000)),
        neighbors: neighbors.collect(),
    });
    for vip in &mut config.vips {
        vip.bgp = Some(VipBgp::to((0..routers).map(|r| NeighborId(r as u16)).collect()));
    }
}

pub(crate) fn address(router: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + router as u8))
}

impl Router {
    fn new(r: usize) -> Self {
        let id = RouterId::new(Ipv4Addr::new(192, 0, 2, 1 + r as u8)).expect("not 0");
        let config = PeerConfig {
            passive: true,
            graceful_restart: Some(Duration::from_secs(120)),
            ..PeerConfig::new(REMOTE_AS, RemoteAs::Exactly(LOCAL_AS), id)
        };
        Self {
            address: address(r),
            up: true,
            config,
            ends: BTreeMap::new(),
            table: BTreeMap::new(),
            changes: vec![],
            told: vec![],
            next_conn: 0,
        }
    }

    /// A connection that this host has with it.
    fn knows(&self, host: usize, conn: ConnId) -> bool {
        self.ends.get(&host).and_then(|end| end.conn).is_some_and(|(theirs, _)| theirs == conn)
    }

    fn end(&mut self, host: usize, now: Instant) -> &mut End {
        let config = self.config.clone();
        self.ends.entry(host).or_insert_with(|| {
            let mut peer = Peer::new(config, false, host as u64, now);
            peer.handle(now, holdfast_bgp::Input::Start);
            peer.handle(now, holdfast_bgp::Input::Routes(&Default::default()));
            End { peer, conn: None, graceful: None, notified: false }
        })
    }

    /// Which hosts it sends what is for this address to.
    pub(crate) fn ways(&self, ip: IpAddr) -> Vec<usize> {
        let to = self.table.keys().filter(|(_, prefix)| prefix.contains(ip)).map(|(host, _)| *host);
        to.collect()
    }

    /// What a host told it since then, keepalives aside.
    pub(crate) fn told_by(&self, host: usize, since: Duration) -> Vec<&Told> {
        self.told.iter().filter(|(at, h, _)| *at >= since && *h == host).map(|(_, _, told)| told).collect()
    }
}

impl Lab {
    /// Routers, before the hosts are started.
    pub(crate) fn with_routers(mut self, routers: usize) -> Self {
        self.routers = (0..routers).map(Router::new).collect();
        self
    }

    /// Hosts that announce the VIP by BGP alone to so many routers, up and told.
    pub(crate) fn announcing(hosts: usize, routers: usize, channel: bool) -> Self {
        Self::announcing_with(hosts, routers, channel, |_| {})
    }

    /// Like [`Self::announcing`], with configurations that differ.
    pub(crate) fn announcing_with(
        hosts: usize,
        routers: usize,
        channel: bool,
        mut change: impl FnMut(&mut Config),
    ) -> Self {
        let mut lab = Self::new(&vec![100; hosts], channel).with_routers(routers);
        lab.hosts.iter_mut().for_each(|host| {
            anycast(&mut host.config, routers);
            change(&mut host.config);
        });
        (0..hosts).for_each(|i| lab.start(i));
        lab.run(ms(3_000));
        let all: Vec<usize> = (0..hosts).collect();
        for router in &lab.routers {
            assert_eq!(router.ways(VIP), all, "{}", lab.story());
        }
        lab
    }

    /// A router is gone with its connections, or back.
    pub(crate) fn router(&mut self, r: usize, up: bool) {
        self.routers[r].up = up;
        if up {
            return;
        }
        let ends = std::mem::take(&mut self.routers[r].ends);
        for (host, end) in ends {
            if let Some((conn, _)) = end.conn {
                self.push(WIRE, host, Ev::Bgp(NeighborId(r as u16), Said::Closed(conn)));
            }
        }
        self.routers[r].table.clear();
    }

    /// One host's connection with a router is reset.
    pub(crate) fn lose_router(&mut self, i: usize, r: usize) {
        let Some((conn, _)) = self.routers[r].ends.get(&i).and_then(|end| end.conn) else { return };
        self.push(WIRE, i, Ev::Bgp(NeighborId(r as u16), Said::Closed(conn)));
        self.push(WIRE, i, Ev::Router(r, Said::Closed(conn)));
    }

    pub(crate) fn bfd(&mut self, i: usize, r: u16, state: crate::keeper::ipc::BfdState) {
        let diag = u8::from(state == crate::keeper::ipc::BfdState::Down);
        self.feed(i, Input::Bfd { neighbor: NeighborId(r), state, diag });
    }

    /// The host's process is gone, and with it its connections.
    pub(super) fn routers_lose(&mut self, i: usize) {
        for r in 0..self.routers.len() {
            let conn = self.routers[r].ends.get(&i).and_then(|end| end.conn);
            if let Some((conn, _)) = conn {
                self.push(WIRE, i, Ev::Router(r, Said::Closed(conn)));
            }
        }
    }

    pub(super) fn router_is_told(&mut self, i: usize, neighbor: NeighborId, output: BgpOutput) {
        let r = usize::from(neighbor.0);
        match output {
            BgpOutput::Connect { conn }
                if self.routers.get(r).is_some_and(|router| router.up)
                    && self.hosts[i].up
                    && !self.hosts[i].routers_cut =>
            {
                let local = SocketAddr::new(IpAddr::V4(source(i)), 40_000);
                let remote = SocketAddr::new(self.routers[r].address, 179);
                self.push(WIRE * 2, i, Ev::Bgp(neighbor, Said::Connected(conn, local, remote)));
                self.push(WIRE * 2, i, Ev::Router(r, Said::Dialled(conn)));
            }
            BgpOutput::Connect { conn } => self.push(ms(1), i, Ev::Bgp(neighbor, Said::Failed(conn))),
            BgpOutput::Send { conn, bytes } => self.push(WIRE, i, Ev::Router(r, Said::Bytes(conn, bytes))),
            BgpOutput::Close { conn } => {
                self.push(WIRE, i, Ev::Router(r, Said::Closed(conn)));
                self.push(WIRE * 2, i, Ev::Bgp(neighbor, Said::Closed(conn)));
            }
            BgpOutput::Abort { conn } => self.push(WIRE, i, Ev::Router(r, Said::Closed(conn))),
        }
    }

    pub(super) fn router_hears(&mut self, r: usize, host: usize, said: Said) {
        let (now, at) = (self.now, self.at());
        if let Said::Bytes(conn, _) = &said
            && !self.routers.get(r).is_some_and(|router| router.up && router.knows(host, *conn))
        {
            // A host that sends on a connection of which the router knows nothing (any more) is told so by a reset.
            self.push(WIRE, host, Ev::Bgp(NeighborId(r as u16), Said::Closed(*conn)));
            return;
        }
        let Some(router) = self.routers.get_mut(r).filter(|router| router.up) else { return };
        match said {
            Said::Dialled(conn) => {
                router.next_conn += 2;
                let ours = ConnId(router.next_conn + 1);
                let local = SocketAddr::new(router.address, 179);
                let remote = SocketAddr::new(IpAddr::V4(source(host)), 40_000);
                let end = router.end(host, now);
                (end.conn, end.notified) = (Some((conn, ours)), false);
                end.peer.handle(now, holdfast_bgp::Input::Accepted { conn: ours, local, remote });
            }
            Said::Bytes(conn, bytes) => {
                let end = router.end(host, now);
                let Some((_, ours)) = end.conn.filter(|(theirs, _)| *theirs == conn) else { return };
                let mut messages = vec![];
                let mut rest = bytes.as_slice();
                // Each piece that is sent is whole messages.
                while let Some((frame, more)) = Frame::split(rest, false).expect("we send what is well-formed") {
                    rest = more;
                    let codec = Codec { internal: false, ..Codec::LENIENT };
                    messages.push(decode(&frame, &codec).expect("we send what is well-formed"));
                }
                end.peer.handle(now, holdfast_bgp::Input::Bytes { conn: ours, bytes: &bytes });
                for message in messages {
                    router.learn(at, now, host, message);
                }
            }
            Said::Closed(conn) => {
                let end = router.end(host, now);
                let Some((_, ours)) = end.conn.filter(|(theirs, _)| *theirs == conn) else { return };
                end.conn = None;
                end.peer.handle(now, holdfast_bgp::Input::Closed { conn: ours, why: None });
                router.told.push((at, host, Told::Closed));
                router.lost(at, now, host);
            }
            Said::Connected(..) | Said::Failed(_) => {}
        }
        self.router_speaks(r, host);
    }

    /// What a router's machine puts out.
    fn router_speaks(&mut self, r: usize, host: usize) {
        let now = self.now;
        let end = self.routers[r].end(host, now);
        let mut out = vec![];
        while let Some(output) = end.peer.poll_output() {
            out.push(output);
        }
        let conn = end.conn;
        for output in out {
            let Some((theirs, ours)) = conn else { continue };
            let said = match output {
                holdfast_bgp::Output::Send { conn, bytes } if conn == ours => Said::Bytes(theirs, bytes),
                holdfast_bgp::Output::Close { conn } | holdfast_bgp::Output::Abort { conn } if conn == ours => {
                    Said::Closed(theirs)
                }
                _ => continue,
            };
            self.push(WIRE, host, Ev::Bgp(NeighborId(r as u16), said));
        }
    }

    pub(super) fn routers_wake(&self) -> Option<Instant> {
        let peers =
            self.routers.iter().flat_map(|router| router.ends.values().filter_map(|end| end.peer.poll_timeout()));
        let stale = self.routers.iter().flat_map(|router| router.table.values().flatten().copied());
        peers.chain(stale).min()
    }

    pub(super) fn routers_timers(&mut self) {
        let (now, at) = (self.now, self.at());
        for r in 0..self.routers.len() {
            let hosts: Vec<usize> = self.routers[r].ends.keys().copied().collect();
            for host in hosts {
                self.routers[r].end(host, now).peer.handle(now, holdfast_bgp::Input::Timer);
                self.router_speaks(r, host);
            }
            let over: Vec<_> =
                self.routers[r].table.iter().filter(|(_, t)| t.is_some_and(|t| t <= now)).map(|(k, _)| *k).collect();
            over.into_iter().for_each(|(host, prefix)| self.routers[r].remove(at, host, prefix));
        }
    }
}

impl Router {
    fn learn(&mut self, at: Duration, now: Instant, host: usize, message: Message) {
        match message {
            Message::Open(open) => {
                let graceful = open.graceful_restart().cloned();
                let forwards = graceful.as_ref().is_some_and(|g| g.families.iter().any(|f| f.forwarding));
                self.end(host, now).graceful = graceful.map(|g| Duration::from_secs(g.restart_time_s.into()));
                if !forwards {
                    self.drop_stale(at, host);
                }
                self.told.push((at, host, Told::Open(open)));
            }
            Message::Update(update) => {
                for prefix in update.all_withdrawn() {
                    self.told.push((at, host, Told::Withdrawn(prefix)));
                    self.remove(at, host, prefix);
                }
                let med = update.find(|value| if let AttributeValue::Med(med) = value { Some(*med) } else { None });
                let communities =
                    update.find(
                        |value| if let AttributeValue::Communities(list) = value { Some(list.clone()) } else { None },
                    );
                let next_hop = update.find(|value| match value {
                    AttributeValue::NextHop(ip) => Some(NextHop::V4(*ip)),
                    AttributeValue::MpReach { next_hop, .. } => Some(*next_hop),
                    _ => None,
                });
                for prefix in update.all_announced() {
                    let communities = communities.clone().unwrap_or_default();
                    self.told.push((at, host, Told::Announced { prefix, med, communities, next_hop }));
                    if self.table.insert((host, prefix), None).is_none() {
                        self.changes.push((at, host, prefix, true));
                    }
                }
                if update.end_of_rib().is_some() {
                    self.told.push((at, host, Told::EndOfRib));
                    self.drop_stale(at, host);
                }
            }
            Message::Notification(notification) => {
                self.end(host, now).notified = true;
                self.told.push((at, host, Told::Notification(notification)));
            }
            Message::Keepalive | Message::RouteRefresh(_) => {}
        }
    }

    fn remove(&mut self, at: Duration, host: usize, prefix: Prefix) {
        if self.table.remove(&(host, prefix)).is_some() {
            self.changes.push((at, host, prefix, false));
        }
    }

    fn drop_stale(&mut self, at: Duration, host: usize) {
        let stale: Vec<_> =
            self.table.iter().filter(|((h, _), until)| *h == host && until.is_some()).map(|((_, p), _)| *p).collect();
        stale.into_iter().for_each(|prefix| self.remove(at, host, prefix));
    }

    /// The session is over: what was heard on it is kept for the restart time if that was agreed on.
    fn lost(&mut self, at: Duration, now: Instant, host: usize) {
        let end = self.end(host, now);
        let keeps = end.graceful.filter(|_| !end.notified);
        let those: Vec<_> = self.table.keys().filter(|(h, _)| *h == host).map(|(_, p)| *p).collect();
        for prefix in those {
            match keeps {
                Some(time) => {
                    self.table.insert((host, prefix), Some(now + time));
                }
                None => self.remove(at, host, prefix),
            }
        }
    }
}

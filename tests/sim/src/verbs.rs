//! The verbs of a scenario: start, break, mend.

use crate::cluster::{Cluster, Happening};
use crate::kernel::EVENT_DELAY;
use crate::net::Wire;
use crate::obey::{gone, on_wire};
use crate::options::name;
use crate::peer::Peer;
use crate::plane::Plane;
use holdfast_node::Node;
use holdfast_node::config::BalancerId;
use holdfast_node::conntrack::Sample;
use holdfast_node::io::{BalancerState, Boot, Input, OwnerRecord, Request};
use holdfast_vrrp::wire::Advert;
use holdfast_vrrp::{Addresses, AdvertInterval, ChecksumForm, Family, Priority};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

/// What is wrong with a forged advert. All claim priority 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgery {
    /// Came over a router: TTL 254.
    Ttl,
    /// A wrong checksum.
    Checksum,
    /// Its sender is no peer (unicast; on a multicast leg: sent to the host alone).
    Stranger,
}

impl Cluster {
    /// Starts the agent of a host; a running one is left alone.
    pub fn start(&mut self, i: usize) {
        self.boot(i, false);
    }

    /// `resume`: as a worker restarted by its keeper.
    fn boot(&mut self, i: usize, resume: bool) {
        if self.hosts[i].runs() {
            return;
        }
        let epoch = self.hosts[i].life + 1;
        let seed = self.rng.seed32();
        let local = self.hosts[i].local(self.now);
        self.hosts[i].life += 1;
        self.hosts[i].wake_at = None;
        self.calm[i] = Some(self.now);
        self.note(format!("{} starts", name(i)));
        if self.hosts[i].plain {
            let options = self.options.plain.expect("a plain host has options");
            let vip = &self.hosts[i].config.vips[0];
            let source = |leg: &holdfast_node::config::Leg| {
                let interface = &self.hosts[i].kernel.interfaces[usize::from(leg.interface.as_str() == "eth1")];
                match leg.family {
                    Family::V4 => IpAddr::V4(interface.base4),
                    Family::V6 => IpAddr::V6(interface.base6),
                }
            };
            let sources: Vec<IpAddr> = vip.legs.iter().map(source).collect();
            let peer = Peer::new(local, vip, options, &sources);
            self.hosts[i].peer = Some(peer);
            return self.peer_links(i);
        }
        let host = &mut self.hosts[i];
        let vips = host.config.vips.clone();
        let held = host.ledger.values().filter(|r| r.active && resume);
        let of = |r: &OwnerRecord| vips[usize::from(r.vip.0)].name.as_str().to_owned();
        let boot = Boot {
            epoch,
            seed,
            bgp_restarting: false,
            pseudo_header: held.clone().map(|r| (of(r), r.pseudo_header.clone())).collect(),
            resume: held.map(|r| (of(r), r.role_epoch)).collect(),
            intents: host.intents.clone(),
            secret_key: host.secret_key.clone(),
            last_event_id: host.last_event_id,
        };
        host.stopping = false;
        host.node = Some(Node::new(host.config.clone(), boot, local));
        let (links, addresses) = (host.kernel.links(), host.kernel.addresses());
        self.feed(i, Input::Resync { links: &links, addresses: &addresses });
        self.plane_seen(i);
        self.table_seen(i);
        self.start_flows(i, resume);
        let (life, phase) = (self.hosts[i].life, Duration::from_millis(self.rng.below(500)));
        self.push(phase, i, Happening::Look { life });
    }

    /// A plain peer follows its interfaces.
    pub(crate) fn peer_links(&mut self, i: usize) {
        let local = self.hosts[i].local(self.now);
        let up = self.hosts[i].linked();
        let Some(peer) = self.hosts[i].peer.as_mut() else { return };
        let acts = peer.set_up(local, up);
        self.act(i, acts);
    }

    /// Everything of the agent dies at once; the kernel keeps what it has until it runs out. A plain peer's host dies
    /// whole.
    pub fn crash(&mut self, i: usize) {
        self.note(format!("{} crashes", name(i)));
        let now = self.now;
        let host = &mut self.hosts[i];
        host.node = None;
        if host.peer.take().is_some() {
            host.kernel.vips.clear();
        }
        host.kernel.open.clear();
        host.paused_until = None;
        host.stands_from = None;
        if let Some(since) = host.frozen_at.take() {
            host.lag += now - since;
        }
        host.expire_at = None;
        host.stopping = false;
        self.inboxes[i] = Default::default();
        self.calm[i] = None;
        self.arm_expiry(i);
    }

    /// The worker dies and its keeper has a new one running after `gap`. Within the keeper's patience it resumes; later
    /// the keeper has given the VIP away.
    pub fn worker_crash(&mut self, i: usize, gap: Duration) {
        if self.hosts[i].node.is_none() || self.hosts[i].paused_until.is_some() {
            return;
        }
        self.crash(i);
        let patience = Duration::from_millis(200).min(Duration::from_millis(self.options.interval_ms) * 2);
        if gap <= patience {
            self.run(gap);
            if !self.hosts[i].runs() {
                self.boot(i, true);
            }
            return;
        }
        self.run(patience);
        self.keeper_gives_away(i);
        self.run(gap - patience);
        self.boot(i, false);
    }

    /// Priority 0 as it was prepared, and the addresses go.
    fn keeper_gives_away(&mut self, i: usize) {
        self.note(format!("{}: the keeper gives away", name(i)));
        let records: Vec<_> = self.hosts[i].ledger.values().cloned().collect();
        for record in records {
            for resign in &record.resign {
                let Some((segment, interface)) = self.hosts[i].kernel.by_index(resign.ifindex) else { continue };
                if interface.works() {
                    let packet = Rc::new(on_wire(resign.source, resign.destination, 255, &resign.payload));
                    self.transmit(i, segment, &packet);
                }
            }
            for key in record.addresses {
                self.hosts[i].kernel.delete(key);
            }
        }
        self.hosts[i].ledger.clear();
    }

    /// A host stands still for this long: its timers come late.
    pub fn pause(&mut self, i: usize, time: Duration) {
        self.stand_still(i, time, false);
    }

    /// A host stands still for this long, and its clock with it (a paused virtual machine): to it no time has passed.
    pub fn freeze(&mut self, i: usize, time: Duration) {
        self.stand_still(i, time, true);
    }

    fn stand_still(&mut self, i: usize, time: Duration, clock: bool) {
        if self.hosts[i].paused_until.is_some() {
            return;
        }
        self.note(format!("{} stands still for {time:?}{}", name(i), if clock { ", and its clock" } else { "" }));
        self.hosts[i].paused_until = Some(self.now + time);
        self.hosts[i].stands_from = Some(self.now);
        self.hosts[i].frozen_at = clock.then_some(self.now);
        self.calm[i] = None;
        let life = self.hosts[i].life;
        self.push(time, i, Happening::Wake { life });
    }

    /// The balancer changes.
    pub fn set_plane(&mut self, i: usize, plane: Plane) {
        if self.hosts[i].plane == plane || self.hosts[i].plain {
            return;
        }
        self.note(format!("{}: balancer {plane:?}", name(i)));
        // A reload has other processes, and no other balancer.
        if self.hosts[i].plane == Plane::Dead || plane == Plane::Reloading {
            self.hosts[i].pid += 1;
        }
        self.hosts[i].plane = plane;
        self.hosts[i].plane_since = self.now;
        self.push(Duration::from_micros(300), i, Happening::Plane);
    }

    /// The supervisor says that the balancer with this pid died, whether or not it did.
    pub fn tell_death(&mut self, i: usize, pid: u32) {
        let state = BalancerState::Gone { pid, why: "killed".to_owned() };
        self.feed(i, Input::Balancer { balancer: BalancerId(0), state });
    }

    /// Something that all balancers need fails at once, or (`spread`) each of them notices in its own time.
    pub fn shared_failure(&mut self, plane: Plane, spread: Duration) {
        self.note(format!("what all share fails: {plane:?}"));
        self.shared += 1;
        let round = self.shared;
        for i in 0..self.hosts.len() {
            let after = self.rng.below(u64::try_from(spread.as_micros()).expect("short") + 1);
            self.push(Duration::from_micros(after), i, Happening::Becomes { plane, round });
        }
    }

    /// Every balancer is well, also those that were still to find out about something shared.
    pub fn mend_planes(&mut self) {
        self.shared += 1;
        (0..self.hosts.len()).for_each(|i| self.set_plane(i, Plane::Alive));
    }

    /// The connection table fills up, or empties.
    pub fn set_table(&mut self, i: usize, full: bool) {
        let asleep = self.hosts[i].paused_until.is_some();
        if self.hosts[i].table_full != full && !self.hosts[i].plain && !asleep {
            self.note(format!("{}: connection table full {full}", name(i)));
            self.hosts[i].table_full = full;
            self.table_seen(i);
        }
    }

    fn table_seen(&mut self, i: usize) {
        let sample = Ok(Sample::of(if self.hosts[i].table_full { 99 } else { 10 }, 100));
        self.feed(i, Input::Conntrack { sample });
    }

    /// Carrier on the interface of the first leg.
    pub fn set_carrier(&mut self, i: usize, up: bool) {
        self.set_carrier_of(i, 0, up);
    }

    /// Carrier on an interface.
    pub fn set_carrier_of(&mut self, i: usize, segment: u8, up: bool) {
        let interface = &mut self.hosts[i].kernel.interfaces[usize::from(segment)];
        if interface.carrier == up {
            return;
        }
        interface.carrier = up;
        self.note(format!("{}: carrier of eth{segment} {up}", name(i)));
        self.disturb(i);
        self.push(EVENT_DELAY, i, Happening::Link { segment });
    }

    /// The interface is made anew: its addresses go, its index changes, its own addresses come back a moment later.
    pub fn recreate(&mut self, i: usize, segment: u8, gap: Duration) {
        self.note(format!("{}: eth{segment} is made anew", name(i)));
        let ifindex = self.hosts[i].kernel.unplug(segment);
        self.push(EVENT_DELAY, i, Happening::Unplugged { ifindex });
        self.disturb(i);
        self.run(gap);
        self.hosts[i].kernel.plug(segment);
        self.disturb(i);
        self.push(EVENT_DELAY, i, Happening::Link { segment });
        self.push(EVENT_DELAY * 2, i, Happening::Based { segment });
    }

    /// The host's own addresses on an interface go, or come back.
    pub fn set_based(&mut self, i: usize, segment: u8, based: bool) {
        if self.hosts[i].kernel.interfaces[usize::from(segment)].based == based {
            return;
        }
        self.note(format!("{}: own addresses of eth{segment}: {based}", name(i)));
        self.hosts[i].kernel.interfaces[usize::from(segment)].based = based;
        self.disturb(i);
        self.push(EVENT_DELAY, i, Happening::Based { segment });
    }

    /// Adverts can't be sent, or can again.
    pub fn set_mute(&mut self, i: usize, mute: bool) {
        if self.hosts[i].mute != mute && !self.hosts[i].plain {
            self.note(format!("{}: sending fails {mute}", name(i)));
            self.hosts[i].mute = mute;
            self.disturb(i);
        }
    }

    /// What was known of this host is old.
    pub(crate) fn disturb(&mut self, i: usize) {
        if let Some(since) = self.calm[i].as_mut() {
            *since = self.now;
        }
    }

    /// Cuts or joins all paths between two hosts on a wire, both ways.
    pub fn cut(&mut self, wire: Wire, a: usize, b: usize, cut: bool) {
        self.note(format!("{wire:?} between {} and {}: cut {cut}", name(a), name(b)));
        self.net.cut(wire, a, b, cut);
        self.net.cut(wire, b, a, cut);
    }

    /// Takes a host off every segment, silently, or puts it back.
    pub fn isolate(&mut self, i: usize, cut: bool) {
        self.note(format!("{}: off the segments {cut}", name(i)));
        (0..2).for_each(|segment| self.net.isolate(segment, i, cut));
    }

    /// Somebody deletes a VIP address on this host.
    pub fn delete_address(&mut self, i: usize) {
        if self.hosts[i].plain {
            return;
        }
        if let Some(change) = self.hosts[i].kernel.delete_first() {
            self.note(format!("{}: address deleted by hand", name(i)));
            self.push(EVENT_DELAY, i, gone(change));
        }
    }

    /// An operator drains this host.
    pub fn drain(&mut self, i: usize) {
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
        self.disturb(i);
        self.operator(i, Request::Undrain { who: "tester".to_owned() });
    }

    fn operator(&mut self, i: usize, request: Request) {
        if self.hosts[i].plain || self.hosts[i].paused_until.is_some() {
            return;
        }
        self.token += 1;
        let token = self.token;
        self.note(format!("{}: operator {request:?}", name(i)));
        self.feed(i, Input::Operator { token, request });
    }

    /// The agent leaves in order.
    pub fn stop(&mut self, i: usize) {
        if self.hosts[i].paused_until.is_some() {
            return;
        }
        self.note(format!("{}: stop", name(i)));
        self.hosts[i].stopping = true;
        self.calm[i] = None;
        let local = self.hosts[i].local(self.now);
        if let Some(mut peer) = self.hosts[i].peer.take() {
            let acts = peer.set_up(local, false);
            return self.act(i, acts);
        }
        self.feed(i, Input::Stop { deadline: Duration::from_secs(2) });
    }

    /// Somebody sends a host an advert that is right in all but one thing, on any of its legs. The host must count it
    /// and do nothing.
    pub fn forge(&mut self, i: usize, leg: usize, forgery: Forgery) {
        let Some(leg) = self.hosts[i].config.vips[0].legs.get(leg).cloned() else { return };
        let segment = u8::from(leg.interface.as_str() == "eth1");
        let interface = &self.hosts[i].kernel.interfaces[usize::from(segment)];
        let own = match leg.family {
            Family::V4 => IpAddr::V4(interface.base4),
            Family::V6 => IpAddr::V6(interface.base6),
        };
        let stranger = match leg.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 168, segment, 250)),
            Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x250)),
        };
        let known = leg.peers.first().copied().unwrap_or(stranger);
        let (source, ttl) = match forgery {
            Forgery::Ttl => (known, 254),
            Forgery::Checksum => (known, 255),
            Forgery::Stranger => (stranger, 255),
        };
        let unicast = !leg.peers.is_empty() || forgery == Forgery::Stranger;
        let destination = if unicast { own } else { leg.family.group() };
        let advert = Advert {
            version: leg.version,
            vrid: leg.vrid,
            priority: Priority::OWNER,
            interval: AdvertInterval::from_duration(Duration::from_millis(self.options.interval_ms))
                .expect("a valid interval"),
            addresses: Addresses::new(leg.advertised.clone()).expect("the unit's addresses are valid"),
        };
        let mut payload = advert.encode(ChecksumForm::Message, source, destination);
        if forgery == Forgery::Checksum {
            payload[6] ^= 0x55;
        }
        self.note(format!("{}: forged advert, {forgery:?}", name(i)));
        let packet = Rc::new(on_wire(source, destination, ttl, &payload));
        self.push(Duration::ZERO, i, Happening::Vrrp { segment, packet, forged: true });
    }

    /// A datagram that was overheard comes again.
    pub fn replay(&mut self) {
        let n = self.rng.below(u64::try_from(self.overheard.len()).expect("few"));
        let overheard = self.overheard.get(usize::try_from(n).expect("few")).cloned();
        if let Some((to, from, bytes)) = overheard {
            self.push(Duration::ZERO, to, Happening::Datagram { from, bytes });
        }
    }
}

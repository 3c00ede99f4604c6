//! What hosts ask for: packets go out, the kernel changes, probes and checks are answered.

use crate::checker::UNSEEN;
use crate::cluster::{Cluster, Happening, OnWire};
use crate::kernel::{Change, EVENT_DELAY};
use crate::net::{GATEWAY, Wire};
use crate::options::{GATEWAY_ADDRESS, gateway_check, name};
use holdfast_node::io::{Input, Output, ProbeOutcome, SendError, Step};
use holdfast_node::journal::Kind;
use holdfast_node::plane::Standing;
use holdfast_vrrp::Packet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Datagrams that may be replayed.
const OVERHEARD_MAX: usize = 64;

impl Cluster {
    /// Does what a node asks; the answer, where there is one, is its next input.
    pub(crate) fn obey(&mut self, i: usize, output: Output) -> Option<Input<'static>> {
        match output {
            Output::Advert { vip, leg, ifindex, source, packets } => {
                let sent = |result| Some(Input::AdvertSent { vip, leg, result });
                if self.hosts[i].mute {
                    return sent(Err(SendError { errno: 1 }));
                }
                let Some((segment, _)) = self.hosts[i].kernel.by_index(ifindex) else {
                    return sent(Err(SendError { errno: 19 }));
                };
                self.advertise(i, segment, source, &packets);
                sent(Ok(()))
            }
            Output::Datagram { to, bytes } => {
                if let Some(j) = self.hosts.iter().position(|h| h.channel == to) {
                    let (from, bytes) = (self.hosts[i].channel, Rc::new(bytes));
                    if self.overheard.len() == OVERHEARD_MAX {
                        self.overheard.pop_front();
                    }
                    self.overheard.push_back((j, from, Rc::clone(&bytes)));
                    for delay in self.net.deliveries(&mut self.rng, Wire::Channel, i, j) {
                        self.push(delay, j, Happening::Datagram { from, bytes: Rc::clone(&bytes) });
                    }
                }
                None
            }
            Output::Step(step) => {
                let result = self.step(i, &step);
                Some(Input::StepDone { step, result })
            }
            Output::Probe { vip, ifindex, target, tries, wait, .. } => {
                let (outcome, after) = self.probe(i, ifindex, target, wait * u32::from(tries));
                self.note(format!("{} probes {target}: {outcome:?}", name(i)));
                self.coverage.see(match outcome {
                    ProbeOutcome::Target => "probe: answered",
                    ProbeOutcome::Others => "probe: others answered",
                    ProbeOutcome::Nobody => "probe: nobody answered",
                });
                let life = self.hosts[i].life;
                self.push(after, i, Happening::Probed { life, vip, target, outcome });
                None
            }
            Output::StartCheck { check, sequence, .. } => {
                let life = self.hosts[i].life;
                let luck = self.rng.chance(250);
                let result = if Some(check) == gateway_check(&self.options) {
                    self.gateway_answers(i).then_some(Ok(()))
                } else {
                    self.hosts[i].plane.answer(luck)
                };
                if let Some(result) = result {
                    let answer = Happening::Checked { life, check, sequence, result };
                    self.push(Duration::from_micros(700), i, answer);
                }
                None
            }
            Output::Owner(record) => {
                self.hosts[i].ledger.insert(record.vip.0, record);
                None
            }
            Output::Event(event) => {
                self.hosts[i].last_event_id = event.id;
                self.note(format!("{}: #{} <- {:?} {:?}", name(i), event.id, event.cause, event.kind));
                self.witness(i, &event.kind);
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
            Output::Look { .. } => {
                self.look_at_plane(i);
                None
            }
            Output::RunHook { .. } | Output::State { .. } | Output::Elected { .. } => None,
            Output::Bgp { .. } | Output::BgpSession { .. } | Output::Bfd(_) | Output::Replace => None,
            Output::Stopped => {
                self.stopped(i);
                None
            }
        }
    }

    /// Sends the packets of an advert, each where it is for.
    pub(crate) fn advertise(&mut self, i: usize, segment: u8, source: IpAddr, packets: &[Packet]) {
        let Some(first) = packets.first() else { return };
        if first.payload.get(2).is_some_and(|&priority| priority > 0) {
            self.hosts[i].adverts += 1;
            self.hosts[i].last_advert = Some(self.now);
        } else {
            self.note(format!("{} sends priority 0", name(i)));
            self.coverage.see("sent: priority 0");
        }
        if !self.hosts[i].kernel.interfaces[usize::from(segment)].works() {
            return;
        }
        for packet in packets {
            let on_wire = Rc::new(on_wire(source, packet.destination, 255, &packet.payload));
            self.transmit(i, segment, &on_wire);
        }
    }

    /// To all on the segment, or to the one that has the address.
    pub(crate) fn transmit(&mut self, i: usize, segment: u8, packet: &Rc<OnWire>) {
        for j in (0..self.hosts.len()).filter(|&j| j != i) {
            let interface = &self.hosts[j].kernel.interfaces[usize::from(segment)];
            let here = match packet.destination {
                to if to.is_multicast() => true,
                IpAddr::V4(to) => to == interface.base4 && interface.based,
                IpAddr::V6(to) => to == interface.base6 && interface.based,
            };
            if !here {
                continue;
            }
            for delay in self.net.deliveries(&mut self.rng, Wire::Segment(segment), i, j) {
                let packet = Rc::clone(packet);
                self.push(delay, j, Happening::Vrrp { segment, packet, forged: false });
            }
        }
    }

    fn step(&mut self, i: usize, step: &Step) -> Result<(), holdfast_node::io::StepError> {
        let now = self.now;
        let local = self.hosts[i].local(now);
        if let Step::RemoveAddress { ip, .. } = step
            && self.hosts[i].kernel.interfaces.iter().any(|x| IpAddr::V4(x.base4) == *ip || IpAddr::V6(x.base6) == *ip)
        {
            self.broken = Some(format!("invariant 7: {} removes an address that isn't ours: {step:?}", name(i)));
        }
        self.flows_first(i, step);
        let known = self.hosts[i].kernel.vips.len();
        let (result, change) = self.hosts[i].kernel.step(local, step);
        if let Some(change) = change {
            if self.hosts[i].kernel.vips.len() != known {
                self.note(format!("{}: {step:?}", name(i)));
            }
            self.push(EVENT_DELAY, i, Happening::Kernel(change));
        }
        if let (Step::Announce { ifindex, ip }, Ok(())) = (step, &result)
            && let Some((segment, interface)) = self.hosts[i].kernel.by_index(*ifindex)
            && interface.works()
            && self.net.reachable(segment, i)
        {
            self.neighbours.insert(*ip, i);
            self.hosts[i].announced = Some(self.now);
        }
        self.arm_expiry(i);
        result
    }

    /// Who answers an ARP request or a solicitation, and how long that takes.
    fn probe(&mut self, i: usize, ifindex: u32, target: IpAddr, patience: Duration) -> (ProbeOutcome, Duration) {
        let Some((segment, _)) = self.hosts[i].kernel.by_index(ifindex) else {
            return (ProbeOutcome::Nobody, patience);
        };
        let place = usize::from(segment);
        let has = |h: &crate::host::Host| {
            let own = &h.kernel.interfaces[place];
            own.based && (IpAddr::V4(own.base4) == target || IpAddr::V6(own.base6) == target)
        };
        let works = self.hosts[i].kernel.interfaces[place].works();
        let found = self.hosts.iter().position(has);
        let answered = found.is_some_and(|j| {
            let wire = Wire::Segment(segment);
            let out = self.net.deliveries(&mut self.rng, wire, i, j).next();
            let back = self.net.deliveries(&mut self.rng, wire, j, i).next();
            let there = &self.hosts[j];
            let awake = there.paused_until.is_none_or(|until| until <= self.now);
            works && there.kernel.interfaces[place].works() && awake && out.is_some() && back.is_some()
        });
        let others = works && self.net.reachable(segment, i);
        match (answered, others) {
            (true, _) => (ProbeOutcome::Target, Duration::from_micros(300)),
            (false, true) => (ProbeOutcome::Others, patience),
            (false, false) => (ProbeOutcome::Nobody, patience),
        }
    }

    /// The router answers this host.
    pub fn gateway_answers(&self, i: usize) -> bool {
        let wire = Wire::Segment(0);
        let sound = self.net.sound(wire, i, GATEWAY);
        debug_assert!(GATEWAY_ADDRESS.is_ipv4(), "asked on the first segment");
        self.gateway && sound && self.hosts[i].kernel.interfaces[0].works()
    }

    fn stopped(&mut self, i: usize) {
        self.note(format!("{} stopped", name(i)));
        let host = &mut self.hosts[i];
        if !(host.kernel.vips.is_empty() && host.kernel.open.is_empty()) {
            let left = (host.kernel.vips.clone(), host.kernel.open.clone());
            self.broken = Some(format!("invariant 7: {} stopped and left {left:?}", name(i)));
        }
        let host = &mut self.hosts[i];
        host.node = None;
        host.stopping = false;
        host.kernel.open.clear();
        self.calm[i] = None;
    }

    /// The instances of a plain peer add and remove their addresses without a lifetime.
    pub(crate) fn plain_holds(&mut self, i: usize, leg: usize, active: bool) {
        let leg = self.hosts[i].config.vips[0].legs[leg].clone();
        let advertised = |a: &&holdfast_node::config::VipAddress| leg.advertised.contains(&a.ip);
        let vip = &self.hosts[i].config.vips[0];
        let addresses: Vec<_> = vip.addresses.iter().filter(advertised).map(|a| (a.ip, a.prefix)).collect();
        self.note(format!("{} (plain): {} active {active}", name(i), leg.interface));
        self.coverage.see(if active { "plain peer: active" } else { "plain peer: backup" });
        self.hosts[i].transitions += 1;
        let segment = u8::from(leg.interface.as_str() == "eth1");
        let host = &mut self.hosts[i];
        let interface = &host.kernel.interfaces[usize::from(segment)];
        let (ifindex, works) = (interface.ifindex, interface.works());
        for (ip, prefix) in addresses {
            if !active {
                host.kernel.vips.remove(&(ifindex, ip, prefix));
            } else if interface_present(host, segment) {
                host.kernel.vips.insert((ifindex, ip, prefix), self.now + Duration::from_secs(86_400));
                if works && self.net.reachable(segment, i) {
                    self.neighbours.insert(ip, i);
                }
            }
        }
    }

    /// Notes what a journal entry shows, and what it must not show.
    fn witness(&mut self, i: usize, kind: &Kind) {
        self.coverage.event(kind);
        self.flows_witness(i, kind);
        match kind {
            Kind::VipState { .. } => self.hosts[i].transitions += 1,
            // Only an operator's will lets the addresses linger.
            Kind::Resign { linger: true, .. } => {
                // One that can't serve itself leaves for that reason, whatever the operator wants.
                let serves = self.standing_of_owner(i) >= Standing::Full;
                let forced_out = self.hosts[i].stopping || !self.options.channel || !serves;
                if !forced_out && !self.somebody_was_able(i) {
                    self.broken = Some(format!(
                        "invariant 3: {} left by its own choice, and no other node was able to serve",
                        name(i)
                    ));
                }
            }
            Kind::Resign { linger: false, to, why, .. } => self.resigned(i, to.as_deref(), why),
            _ => {}
        }
    }

    /// One that leaves because of its balancer: not as long as that serves, and one that serves badly only for another
    /// that took itself for better a moment ago. One that doesn't serve at all goes at once, after a stall by words of
    /// before it, too: if it had heard nothing, it would leave as well, and to nobody.
    fn resigned(&mut self, i: usize, to: Option<&str>, why: &str) {
        if !(why.starts_with("balancer") || why.starts_with("check web") || why.starts_with("check all")) {
            return;
        }
        let known = self.found_out(i);
        let stood = self.hosts[i].stood.filter(|(at, _)| self.now - *at <= UNSEEN);
        let stood = stood.map_or(Duration::ZERO, |(_, time)| time);
        let better = |at: fn(&crate::host::Host) -> Option<Instant>, unread: Duration| {
            let other = to.and_then(|to| self.hosts.iter().find(|host| host.name == to));
            other.and_then(at).is_some_and(|at| self.now - at <= self.moment(i) + unread)
        };
        let wrong = match self.standing_of_owner(i) {
            Standing::Good | Standing::Degraded | Standing::Full => known.then_some("it serves"),
            Standing::Poor if !better(|host| host.said_well_at, Duration::ZERO) => {
                self.is_known_for(i, UNSEEN).then_some("nobody better was there")
            }
            _ if to.is_some() && !better(|host| host.said_poor_at, stood) => Some("the other one is no better"),
            _ => None,
        };
        self.coverage.see(&format!("resigned: {:?}, to somebody {}", self.standing_of_owner(i), to.is_some()));
        if let Some(wrong) = wrong {
            let plane = self.hosts[i].plane;
            self.broken = Some(format!("{} with its balancer {plane:?} left to {to:?} ({why}): {wrong}", name(i)));
        }
    }

    /// For how long a fresh claim may be believed. Right after a host's clock stood still, what the peers had said
    /// meanwhile was all delivered at once, and nothing that the host has can tell it from what was said just then (the
    /// channel has no round trips): it is as much longer.
    fn moment(&self, i: usize) -> Duration {
        let fresh = Duration::from_millis(300 + 150);
        let stood = self.hosts[i].clock_stood.filter(|(at, _)| self.now - *at <= fresh);
        fresh + stood.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// Some other host could really serve a moment ago: a fresh claim of it may be believed still.
    fn somebody_was_able(&self, i: usize) -> bool {
        let able = |j: usize| self.hosts[j].able_at.is_some_and(|at| self.now - at <= self.moment(i));
        (0..self.hosts.len()).any(|j| j != i && able(j))
    }
}

fn interface_present(host: &crate::host::Host, segment: u8) -> bool {
    host.kernel.interfaces[usize::from(segment)].present
}

/// A packet as the segment carries it.
pub(crate) fn on_wire(source: IpAddr, destination: IpAddr, ttl: u8, payload: &[u8]) -> OnWire {
    let bytes = match (source, destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = u16::try_from(20 + payload.len()).expect("adverts are short");
            let mut packet = Vec::with_capacity(20 + payload.len());
            packet.extend_from_slice(&[0x45, 0xc0]);
            packet.extend_from_slice(&length.to_be_bytes());
            packet.extend_from_slice(&[0, 0, 0, 0, ttl, 112, 0, 0]);
            packet.extend_from_slice(&from.octets());
            packet.extend_from_slice(&to.octets());
            packet.extend_from_slice(payload);
            packet
        }
        _ => payload.to_vec(),
    };
    OnWire { source, destination, ttl, bytes }
}

/// An address that is gone, as the monitor tells it.
pub(crate) fn gone(change: Change) -> Happening {
    Happening::Kernel(change)
}

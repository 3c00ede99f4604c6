//! Answers to the control API.

use super::query::{
    Answer, DirectionSummary, Explained, Flow, FlowName, Flows, LIST_MAX, Lag, PeerSummary, Query, Standing, Summary,
    Survival, SyncFigures, VipSummary, Watermark, not_ready_text, translated, why_word,
};
use super::turns::Sync;
use crate::os::nft::EventFilter;
use holdfast_statesync::PeerId;
use holdfast_statesync::ct::Layer4;
use holdfast_statesync::flow::{
    Class, Direction, Elected, Explanation, Listed, NotReplicated, Survival as Survives, VipId, Whose,
};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How old what is known of other rules may be: it takes the kernel a walk through all of them.
const OTHERS_EVERY: Duration = Duration::from_secs(30);

impl Sync {
    pub(super) fn answer(&mut self, now: Instant, query: &Query) -> Answer {
        match query {
            Query::Summary => Answer::Summary(self.summary(now)),
            Query::List { vip, limit } => self.list(vip.as_deref(), *limit),
            Query::Explain { flow } => self.explain(now, flow),
        }
    }

    fn summary(&mut self, now: Instant) -> Summary {
        self.look_for_others(now);
        let vips = self.names.vips.iter().zip(0..).zip(&self.elected).map(|((vip, place), elected)| {
            let id = VipId(place);
            let (own, others) = self.flows.flows_of(id);
            let ready = self.flows.may_promote(now, id);
            VipSummary {
                name: vip.name.clone(),
                members: vip.member_names(),
                mode: vip.mode.clone(),
                owner: match elected {
                    Elected::Unknown => "unknown".to_owned(),
                    Elected::Me => "here".to_owned(),
                    Elected::Peer(peer) => self.names.peer(*peer),
                },
                own: own as u64,
                replicas: others as u64,
                not_ready: ready.err().map(|why| not_ready_text(why, |place| self.peer_at(place))),
            }
        });
        let vips = vips.collect();
        Summary {
            failing: self.trouble(),
            peers: self.peers(now),
            vips,
            records: self.flows.records() as u64,
            max_flows: self.names.max_flows,
            memory: self.flows.memory() as u64,
            not_in_kernel: self.flows.not_in_kernel() as u64,
            other_filters: self.others.as_ref().map(|(_, others)| others.clone()).unwrap_or_default(),
            counters: self.counters().into_iter().map(|(name, count)| (name.into(), count)).collect(),
            kernel_errors: self.kernel.refusals.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
        }
    }

    fn peers(&self, now: Instant) -> Vec<PeerSummary> {
        let peers = self.names.peers.iter().zip(0..).filter_map(|(name, place)| {
            let id = PeerId(place);
            let (inbound, outbound) = (self.flows.inbound(now, id)?, self.flows.outbound(now, id)?);
            let [bytes_sent, bytes_received] = self.bytes.get(usize::from(place)).copied().unwrap_or_default();
            Some(PeerSummary {
                name: name.clone(),
                up: self.channel.peer_state(id).up,
                outbound: direction(now, outbound),
                inbound: direction(now, inbound),
                replicas: self.flows.replicas_of(id) as u64,
                behind: outbound.behind as u64,
                lag: self.lag.of(usize::from(place)).map(|(lag, by_kernel)| Lag {
                    count: lag.count,
                    p50_us: lag.p50_us,
                    p99_us: lag.p99_us,
                    max_us: lag.max_us,
                    by_kernel,
                }),
                watermark: self.flows.watermark(id).map(|mark| Watermark {
                    sent: mark.sent,
                    settled: mark.settled,
                    waits_ms: mark.waits_since.map(|since| ms(now, since)),
                }),
                bytes_sent,
                bytes_received,
            })
        });
        peers.collect()
    }

    /// What is made once a second; nothing in it looks at each flow.
    pub(super) fn figures(&self, now: Instant) -> SyncFigures {
        SyncFigures {
            records: self.flows.records() as u64,
            max_flows: self.names.max_flows,
            memory: self.flows.memory() as u64,
            peers: self.peers(now),
            counters: self.counters().into_iter().collect(),
            kernel_errors: self.kernel.refusals.clone(),
        }
    }

    fn look_for_others(&mut self, now: Instant) {
        if self.others.as_ref().is_some_and(|(at, _)| now.saturating_duration_since(*at) < OTHERS_EVERY) {
            return;
        }
        let found = EventFilter::open().and_then(|mut filter| filter.others()).unwrap_or_default();
        let found = found.into_iter().map(|other| format!("{} {}", other.table, other.chain));
        self.others = Some((now, found.collect()));
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (flows, channel) = (self.flows.counters(), self.channel.counters());
        vec![
            ("kernel_events", flows.kernel_events),
            ("own_echoes", flows.own_echoes),
            ("not_for_vips", flows.not_for_vips),
            ("proxied", flows.proxied),
            ("not_carried", flows.not_carried),
            ("removed", flows.removed),
            ("foreign_deletes", flows.foreign_deletes),
            ("foreign_deletes_applied", flows.foreign_deletes_applied),
            ("refilled", flows.refilled),
            ("conflicts", flows.conflicts),
            ("clashes", flows.clashes),
            ("shed", flows.shed),
            ("overruns", flows.overruns),
            ("events_lost", self.kernel.without_room()),
            ("audits", flows.audits),
            ("audits_by_name", self.audits.names),
            ("audit_repairs", flows.audit_repairs),
            ("claims", flows.claims),
            ("vip_claims", flows.vip_claims),
            ("source_claims", flows.source_claims),
            ("batches_sent", flows.batches_sent),
            ("bytes_sent", flows.bytes_sent),
            ("records_sent", flows.records_sent),
            ("batches_applied", flows.batches_applied),
            ("batches_late", flows.batches_late),
            ("batches_lost", flows.batches_lost),
            ("batches_foreign", flows.batches_foreign),
            ("malformed", flows.malformed),
            ("unlisted", flows.unlisted),
            ("unknown", flows.unknown),
            ("shards_sent", flows.shards_sent),
            ("kernel_ops", flows.kernel_ops),
            ("kernel_refused", flows.kernel_refused),
            ("events_suppressed", flows.events_suppressed),
            ("datagrams", channel.datagrams),
            ("datagrams_refused", channel.refused()),
            ("datagrams_dropped", channel.dropped_sends + channel.dropped_outputs),
            ("wire_bytes_sent", self.wire_bytes[0]),
            ("wire_bytes_received", self.wire_bytes[1]),
        ]
    }

    fn list(&self, vip: Option<&str>, limit: usize) -> Answer {
        let wanted = match vip.map(|name| (name, self.names.find(name))) {
            None => None,
            Some((_, Some(found))) => Some(found),
            Some((name, None)) => {
                let all: Vec<&str> = self.names.vips.iter().map(|vip| vip.name.as_str()).collect();
                return Answer::Refused(format!("flows of `{name}` aren't replicated: only {}", all.join(", ")));
            }
        };
        let limit = limit.min(LIST_MAX);
        let matches = |flow: &Listed| {
            wanted.is_none_or(|(place, only)| {
                let is_at = |ips: &[IpAddr]| ips.contains(&flow.key.original.addresses.destination());
                usize::from(flow.vip.0) == place && only.is_none_or(is_at)
            })
        };
        let mut listed = self.flows.list().filter(matches);
        let flows = listed.by_ref().take(limit).map(|flow| self.flow(&flow)).collect();
        Answer::Flows(Flows { flows, more: listed.next().is_some() })
    }

    fn flow(&self, flow: &Listed) -> Flow {
        let original = &flow.key.original;
        let (protocol, port) = match original.layer4 {
            Layer4::Tcp { source, .. } => ("tcp", source),
            Layer4::Udp { source, .. } => ("udp", source),
            Layer4::Icmp { .. } => ("icmp", 0),
            Layer4::Icmp6 { .. } => ("icmp6", 0),
        };
        let at = |ip: IpAddr, port: Option<u16>| SocketAddr::new(ip, port.unwrap_or(0));
        Flow {
            vip: self.names.vip(flow.vip),
            protocol: protocol.into(),
            source: at(original.addresses.source(), Some(port)),
            destination: at(original.addresses.destination(), original.layer4.destination_port()),
            backend: flow.backend,
            owner: self.owner(flow.owner),
            class: match flow.class {
                Class::Icmp => "icmp",
                Class::UdpSingle => "udp-single",
                Class::TcpBrief => "tcp-brief",
                Class::UdpStream => "udp-stream",
                Class::TcpOpen => "tcp-open",
            }
            .into(),
            here: flow.here,
        }
    }

    fn owner(&self, owner: Whose) -> String {
        match owner {
            Whose::Ours => "here".to_owned(),
            Whose::Peers(peer) => self.names.peer(peer),
            Whose::Past(peer) => format!("{} (before it started anew)", self.names.peer(peer)),
        }
    }

    fn peer_at(&self, place: usize) -> String {
        self.names.peers.get(place).cloned().unwrap_or_default()
    }

    fn explain(&mut self, now: Instant, flow: &FlowName) -> Answer {
        let Some(tuple) = flow.tuple() else {
            return Answer::Refused("only tcp and udp, with two addresses of one family, can be explained".to_owned());
        };
        let entry = match self.kernel.look_up(&tuple, flow.zone()) {
            Ok(entry) => entry,
            Err(e) => return Answer::Refused(format!("the kernel's connection table: {e}")),
        };
        let (backend, seen_as) = entry.as_ref().map(|entry| translated(&entry.reply)).unzip();
        let mut explained = Explained {
            vip: None,
            standing: Standing::Absent,
            owner: None,
            here: false,
            peers: Vec::new(),
            backend,
            seen_as,
        };
        match self.flows.explain(now, &tuple, flow.zone()) {
            Explanation::NotForVips => explained.standing = Standing::NotForVips,
            Explanation::Off(vip) => {
                explained.vip = Some(self.names.vip(vip));
                explained.standing = Standing::Off;
            }
            Explanation::Unknown(vip) => {
                explained.vip = Some(self.names.vip(vip));
                explained.here = entry.is_some();
                explained.standing = match entry.as_ref().map(|entry| self.flows.why_not(entry)) {
                    None => Standing::Absent,
                    Some(None) => Standing::Soon,
                    Some(Some(NotReplicated::NotForVips)) => Standing::NotForVips,
                    Some(Some(NotReplicated::Off)) => Standing::Off,
                    Some(Some(NotReplicated::Proxied)) => Standing::Proxied,
                    Some(Some(NotReplicated::NotCarried)) => Standing::NotCarried,
                    Some(Some(NotReplicated::NotAssured)) => Standing::NotAssured,
                };
            }
            Explanation::Known { vip, owner, here, clash, peers, .. } => {
                explained.vip = Some(self.names.vip(vip));
                explained.standing = if clash { Standing::Clash } else { Standing::Known };
                explained.owner = Some(self.owner(owner));
                explained.here = here;
                explained.peers = peers.into_iter().map(|(peer, survival)| self.survival(peer, survival)).collect();
            }
        }
        Answer::Explained(explained)
    }

    fn survival(&self, peer: PeerId, survival: Survives) -> Survival {
        let why = match survival {
            Survives::Yes => None,
            Survives::Young => Some("it is too young for this vip's mode".to_owned()),
            Survives::NotWanted => Some("its vip isn't shared with this peer".to_owned()),
            Survives::NotAcknowledged => Some("the peer hasn't acknowledged its latest state yet".to_owned()),
            Survives::Clash => Some("another flow has its address and port behind the NAT there".to_owned()),
            Survives::NotInSync(why) => {
                Some(format!("it isn't known what the peer has: not in sync ({})", why_word(why)))
            }
            Survives::AskOwner(_) => Some("another node owns it: ask there".to_owned()),
        };
        Survival { peer: self.names.peer(peer), survives: survival == Survives::Yes, why }
    }
}

fn ms(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

fn direction(now: Instant, direction: Direction) -> DirectionSummary {
    DirectionSummary {
        in_sync: direction.why.is_none(),
        why: direction.why.map(|why| why_word(why).into()),
        since_ms: ms(now, direction.since),
        equal_ms: direction.equal_at.map(|at| ms(now, at)),
    }
}

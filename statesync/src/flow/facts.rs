//! A flow as the rules see it: what it is called (service and client), where it goes, and how it stands. Made of what
//! the kernel says, and back into what the kernel takes.

use super::types::Class;
use crate::ct::{Addresses, Entry, Key, Layer4, Mark, Replica, Status, Tcp, TcpFlags, TcpSide, TcpState, Tuple, Zone};
use std::net::IpAddr;

/// What a VIP offers at one port. For ICMP the port is type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Service {
    pub(crate) protocol: u8,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) zone: Zone,
}

/// A flow's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) service: Service,
    pub(crate) client: IpAddr,
    pub(crate) client_port: u16,
}

/// Where a flow goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nat {
    /// The true destination; `None`: the VIP itself.
    pub(crate) backend: Option<(IpAddr, u16)>,
    /// What the client's address is translated to; `None`: not at all.
    pub(crate) snat: Option<IpAddr>,
    /// What the client's port is translated to.
    pub(crate) snat_port: u16,
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tcp: u8,
    pub(crate) class: Class,
    /// Flags of a record: answers seen, assured.
    pub(crate) assured: bool,
    pub(crate) seen_reply: bool,
    /// TCP's sides, where they are told.
    pub(crate) sides: Option<[TcpSide; 2]>,
    /// The mark, where it is told.
    pub(crate) mark: Option<u32>,
}

impl FlowKey {
    /// Of the original tuple.
    pub(crate) fn of(tuple: &Tuple, zone: Zone) -> Self {
        let port = match tuple.layer4 {
            Layer4::Tcp { destination, .. } | Layer4::Udp { destination, .. } => destination,
            Layer4::Icmp { kind, code, .. } | Layer4::Icmp6 { kind, code, .. } => u16::from_be_bytes([kind, code]),
        };
        let service = Service { protocol: tuple.layer4.protocol(), address: tuple.addresses.destination(), port, zone };
        Self { service, client: tuple.addresses.source(), client_port: tuple.layer4.source_port() }
    }

    /// The original tuple again; `None` where the families differ or the protocol isn't one of ours.
    pub(crate) fn tuple(&self) -> Option<Tuple> {
        let Service { protocol, address, port, .. } = self.service;
        let [kind, code] = port.to_be_bytes();
        let layer4 = match protocol {
            Layer4::TCP => Layer4::Tcp { source: self.client_port, destination: port },
            Layer4::UDP => Layer4::Udp { source: self.client_port, destination: port },
            Layer4::ICMP if address.is_ipv4() => Layer4::Icmp { id: self.client_port, kind, code },
            Layer4::ICMP6 if address.is_ipv6() => Layer4::Icmp6 { id: self.client_port, kind, code },
            _ => return None,
        };
        Addresses::new(self.client, address).map(|addresses| Tuple { addresses, layer4 })
    }

    /// As the kernel is asked for it.
    pub(crate) fn kernel_key(&self) -> Option<Key> {
        self.tuple().map(|original| Key { original, zone: self.service.zone.original() })
    }
}

impl Nat {
    /// Of an entry's two tuples.
    pub(crate) fn of(entry: &Entry) -> Self {
        let (original, reply) = (&entry.original, &entry.reply);
        let backend = entry.is_dnat().then(|| (reply.addresses.source(), reply.layer4.source_port()));
        let port = reply.layer4.destination_port().unwrap_or_else(|| reply.layer4.source_port());
        let address = reply.addresses.destination();
        let snat = (address != original.addresses.source()).then_some(address);
        Self { backend, snat, snat_port: port }
    }

    /// The tuple of answers; `None` where the families differ or ICMP has no answer of this kind.
    fn reply(&self, original: &Tuple) -> Option<Tuple> {
        let plain = original.inverse()?;
        let (backend, backend_port) =
            self.backend.unwrap_or_else(|| (plain.addresses.source(), plain.layer4.source_port()));
        let client = self.snat.unwrap_or_else(|| plain.addresses.destination());
        let layer4 = match plain.layer4 {
            Layer4::Tcp { .. } => Layer4::Tcp { source: backend_port, destination: self.snat_port },
            Layer4::Udp { .. } => Layer4::Udp { source: backend_port, destination: self.snat_port },
            Layer4::Icmp { kind, code, .. } => Layer4::Icmp { id: self.snat_port, kind, code },
            Layer4::Icmp6 { kind, code, .. } => Layer4::Icmp6 { id: self.snat_port, kind, code },
        };
        Addresses::new(backend, client).map(|addresses| Tuple { addresses, layer4 })
    }
}

impl State {
    /// Of what the kernel says. `before` is what was known: an event says only what changed.
    pub(crate) fn of(entry: &Entry, before: Option<Self>) -> Self {
        let status = entry.status;
        let known = |bit: Status, old: fn(&Self) -> bool| match status {
            Some(status) => status.has(bit),
            None => before.as_ref().is_some_and(old),
        };
        let is_tcp = matches!(entry.original.layer4, Layer4::Tcp { .. });
        let offloaded = status.is_some_and(|status| status.has_any(Status::OFFLOAD));
        let tcp = match (entry.tcp, before) {
            (Some(tcp), _) => tcp.state as u8,
            (None, Some(before)) => before.tcp,
            // Assured TCP flows that don't say more were open when they became so; offloaded ones are.
            (None, None) if is_tcp && (offloaded || known(Status::ASSURED, |_| false)) => TcpState::Established as u8,
            (None, None) => 0,
        };
        let seen_reply = known(Status::SEEN_REPLY, |before| before.seen_reply);
        let class = match entry.original.layer4 {
            Layer4::Tcp { .. } if (TcpState::Established as u8..=TcpState::CloseWait as u8).contains(&tcp) => {
                Class::TcpOpen
            }
            Layer4::Tcp { .. } => Class::TcpBrief,
            Layer4::Udp { .. } if seen_reply => Class::UdpStream,
            Layer4::Udp { .. } => Class::UdpSingle,
            Layer4::Icmp { .. } | Layer4::Icmp6 { .. } => Class::Icmp,
        };
        Self {
            tcp,
            class,
            assured: known(Status::ASSURED, |before| before.assured),
            seen_reply,
            sides: entry.tcp.and_then(|tcp| tcp.sides).or_else(|| before.and_then(|before| before.sides)),
            mark: entry.mark.or_else(|| before.and_then(|before| before.mark)),
        }
    }
}

/// What the kernel is told of a flow; `None`: it can't be (see [`FlowKey::tuple`]).
pub(crate) fn replica(key: &FlowKey, nat: &Nat, state: &State, timeout_s: u32, mark: Mark) -> Option<Replica> {
    let original = key.tuple()?;
    let reply = nat.reply(&original)?;
    let mut status = Status::CONFIRMED;
    for (set, bit) in [
        (state.seen_reply, Status::SEEN_REPLY),
        (state.assured, Status::ASSURED),
        (nat.backend.is_some(), Status::DST_NAT),
        (nat.snat.is_some() || nat.snat_port != key.client_port, Status::SRC_NAT),
    ] {
        if set {
            status = status.with(bit);
        }
    }
    let liberal = |side: TcpSide| TcpSide { flags: side.flags.with(TcpFlags::BE_LIBERAL), ..side };
    let tcp = (key.service.protocol == Layer4::TCP).then(|| Tcp {
        state: TcpState::from_wire(state.tcp).unwrap_or(TcpState::Established),
        sides: Some(state.sides.unwrap_or_default().map(liberal)),
    });
    Some(Replica {
        original,
        reply,
        zone: key.service.zone,
        status,
        timeout_s,
        mark: Some(mark),
        tcp,
        sequence_adjustment: [None, None],
        syn_proxy: None,
    })
}

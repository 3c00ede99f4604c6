//! What is asked of the kernel's table.

use super::encode::{family, tuple, zone};
use super::entry::{Entry, Status};
use super::number::*;
use super::replica::Mark;
use super::tuple::{Layer4, Tuple, Zone};
use super::write::{begin, end, nest, put_quad, put8, put16, put32, unnest};
use std::net::IpAddr;

/// The flows whose original destination is this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Toward {
    /// The address.
    pub address: IpAddr,
    /// The protocol above IP; `None`: any.
    pub protocol: Option<u8>,
    /// The port, with a protocol that has such.
    pub port: Option<u16>,
}

/// What a dump is to hold. All that is given has to hold; nothing given: all flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct DumpFilter {
    /// These bits of the mark have this value.
    pub mark: Option<Mark>,
    /// These bits of the status (the second) have this value (the first).
    pub status: Option<(Status, Status)>,
    /// It is in this zone (both directions).
    pub zone: Option<u16>,
    /// Its original destination. Kernels before 5.8 don't look at it: see [`Self::matches`].
    pub toward: Option<Toward>,
    /// IPv4 only, or (true) IPv6 only; follows from `toward` where that is given.
    pub six: Option<bool>,
}

impl DumpFilter {
    /// Appends the request for a dump.
    pub fn request(&self, out: &mut Vec<u8>, sequence: u32) {
        let six = self.toward.map(|toward| toward.address.is_ipv6()).or(self.six);
        let family = six.map_or(AF_UNSPEC, |six| if six { AF_INET6 } else { AF_INET });
        let open = begin(out, CT_GET, NLM_F_DUMP, sequence, family);
        if let Some(Mark { value, mask }) = self.mark {
            put32(out, CTA_MARK, value & mask);
            put32(out, CTA_MARK_MASK, mask);
        }
        if let Some((value, mask)) = self.status {
            put32(out, CTA_STATUS, value.0 & mask.0);
            put32(out, CTA_STATUS_MASK, mask.0);
        }
        if let Some(zone) = self.zone {
            put16(out, CTA_ZONE, zone);
        }
        if let Some(toward) = self.toward {
            toward.filter(out);
        }
        end(out, open);
    }

    /// Whether this entry of the answer is of the family and to the destination that was asked for. The kernel's answer
    /// may hold others: it leaves out what it can compare, but that is neither everything nor the same in all versions.
    #[must_use]
    pub fn matches(&self, entry: &Entry) -> bool {
        let destination = entry.original.addresses.destination();
        self.six.is_none_or(|six| six == destination.is_ipv6() || self.toward.is_some())
            && self.toward.is_none_or(|toward| toward.matches(&entry.original))
    }
}

impl Toward {
    /// Whether a flow with this original tuple is one of them.
    #[must_use]
    pub fn matches(&self, original: &Tuple) -> bool {
        let layer4 = original.layer4;
        original.addresses.destination() == self.address
            && self.protocol.is_none_or(|protocol| protocol == layer4.protocol())
            && self.wanted_port().is_none_or(|port| layer4.destination_port() == Some(port))
    }

    /// The port, if it can have one.
    fn wanted_port(&self) -> Option<u16> {
        self.port.filter(|_| matches!(self.protocol, Some(Layer4::TCP | Layer4::UDP)))
    }

    fn filter(&self, out: &mut Vec<u8>) {
        let mut compare = 0;
        let open = nest(out, CTA_TUPLE_ORIG);
        // Kernels (6.18 at least) compare IPv6 addresses the wrong way round, and would leave out just those.
        if let IpAddr::V4(address) = self.address {
            let ip = nest(out, CTA_TUPLE_IP);
            put_quad(out, CTA_IP_V4_DST, address.octets());
            unnest(out, ip);
            compare |= CTA_FILTER_IP_DST;
        }
        if let Some(protocol) = self.protocol {
            let proto = nest(out, CTA_TUPLE_PROTO);
            put8(out, CTA_PROTO_NUM, protocol);
            compare |= CTA_FILTER_PROTO_NUM;
            if let Some(port) = self.wanted_port() {
                put16(out, CTA_PROTO_DST_PORT, port);
                compare |= CTA_FILTER_PROTO_DST_PORT;
            }
            unnest(out, proto);
        }
        unnest(out, open);
        let open = nest(out, CTA_FILTER);
        // In the host's order, other than the rest.
        put_quad(out, CTA_FILTER_ORIG_FLAGS, compare.to_ne_bytes());
        put_quad(out, CTA_FILTER_REPLY_FLAGS, [0; 4]);
        unnest(out, open);
    }
}

/// Appends the request for one flow; the answer is an entry, or ENOENT.
pub fn look_up(out: &mut Vec<u8>, sequence: u32, original: &Tuple, in_zone: Zone) {
    let open = begin(out, CT_GET, 0, sequence, family(original));
    tuple(out, CTA_TUPLE_ORIG, original, &in_zone);
    zone(out, in_zone);
    end(out, open);
}

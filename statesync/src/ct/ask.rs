//! What is asked of the kernel's table.

use super::encode::{family, tuple, zone};
use super::entry::Status;
use super::number::*;
use super::replica::Mark;
use super::tuple::{Layer4, Tuple, Zone};
use super::write::{begin, end, nest, put_quad, put_sixteen, put8, put16, put32, unnest};
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
    /// Its original destination. Kernels from 5.8 on.
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
}

impl Toward {
    fn filter(&self, out: &mut Vec<u8>) {
        let ports = matches!(self.protocol, Some(Layer4::TCP | Layer4::UDP));
        let port = self.port.filter(|_| ports);
        let open = nest(out, CTA_TUPLE_ORIG);
        let ip = nest(out, CTA_TUPLE_IP);
        match self.address {
            IpAddr::V4(address) => put_quad(out, CTA_IP_V4_DST, address.octets()),
            IpAddr::V6(address) => put_sixteen(out, CTA_IP_V6_DST, address.octets()),
        }
        unnest(out, ip);
        let mut compare = CTA_FILTER_IP_DST;
        if let Some(protocol) = self.protocol {
            let proto = nest(out, CTA_TUPLE_PROTO);
            put8(out, CTA_PROTO_NUM, protocol);
            compare |= CTA_FILTER_PROTO_NUM;
            if let Some(port) = port {
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

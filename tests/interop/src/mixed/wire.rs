//! The two routers' ports as the switch sees them, and an observer that asks for the virtual address every
//! [`PROBE`], so that whoever owns it says so.
//!
//! One packet socket in the switch's namespace hears every port. Frames that come *in* at a router's port were sent by
//! that router, whatever addresses they carry: with a virtual MAC both routers use the same one. This also shows
//! unicast adverts, which the observer's own port never sees. Times are the kernel's, of when the frame was received.

use super::cell::{Family, PROBER4, PROBER6, VIP6};
use super::judge::{Seen, What};
use anyhow::{Context, Result};
use holdfast_lab::clock::{MS, Ns, now, sleep_until};
use holdfast_lab::fabric::{Fabric, Lb, VIP, VRID};
use holdfast_lab::load::Stopper;
use holdfast_lab::watch::stamped::Stamped;
use holdfast_lab::watch::wire::{open, who_has};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Between two questions for the virtual address.
pub const PROBE: Ns = 10 * MS;
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VRRP: u8 = 112;
const ICMPV6: u8 = 58;

/// The running watcher.
#[derive(Debug)]
pub struct Wire {
    _receive: Stopper,
    _probe: Stopper,
    log: Arc<Mutex<Vec<Seen>>>,
}

impl Wire {
    /// Watches both routers' ports of the fabric and asks for the virtual addresses of these families.
    ///
    /// # Errors
    /// A socket, or a namespace that is gone.
    pub fn start(fabric: &Fabric, families: &'static [Family]) -> Result<Self> {
        let log: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (mut socket, ports) = fabric.ns("sw").inside(|| {
            let ports = Lb::BOTH.map(|lb| nix::net::if_::if_nametoindex(lb.port().as_str()));
            let [a, b] = ports;
            Ok((packet_socket()?, [a.context("lb1's port")?, b.context("lb2's port")?]))
        })?;
        let shared = log.clone();
        let receive = Stopper::spawn("ports", move |stop| receive(&mut socket, ports, &shared, stop))?;
        let (eth0, mut tx, _rx) = fabric.ns("obs").inside(|| open("eth0"))?;
        let mac = eth0.mac.context("eth0 has a MAC")?;
        let frames: Vec<Vec<u8>> = families
            .iter()
            .map(|family| match family {
                Family::V4 => who_has(mac, PROBER4, VIP),
                Family::V6 => solicitation(mac.octets(), PROBER6, VIP6),
            })
            .collect();
        let probe = Stopper::spawn("asks", move |stop| {
            let mut due = now();
            while !stop() {
                for frame in &frames {
                    let _lost = tx.send_to(frame, None);
                }
                due = (due + PROBE).max(now());
                sleep_until(due);
            }
            Ok(())
        })?;
        for thread in [&receive, &probe] {
            // Where a host forbids it, lateness shows in the reference thread and voids what it touches.
            let _normal = holdfast_lab::process::make_realtime(thread.thread(), 60);
        }
        Ok(Self { _receive: receive, _probe: probe, log })
    }

    /// What was seen since `from`, in order.
    #[must_use]
    pub fn since(&self, from: Ns) -> Vec<Seen> {
        let Ok(log) = self.log.lock() else { return Vec::new() };
        let start = log.partition_point(|s| s.at < from);
        log.get(start..).unwrap_or_default().to_vec()
    }
}

fn packet_socket() -> Result<Stamped<OwnedFd>> {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .context("packet socket")?;
    Stamped::new(fd)
}

fn receive(
    socket: &mut Stamped<OwnedFd>,
    ports: [u32; 2],
    log: &Mutex<Vec<Seen>>,
    stop: &dyn Fn() -> bool,
) -> Result<()> {
    while !stop() {
        let Some(frame) = socket.receive().filter(|f| !f.outgoing) else { continue };
        let at = frame.at;
        let Some(by) = Lb::BOTH.into_iter().find(|lb| ports[lb.index()] == frame.ifindex) else { continue };
        let Some((family, what)) = classify(frame.bytes) else { continue };
        if let Ok(mut log) = log.lock() {
            // In order, also when the wall clock was set between two frames.
            let at = at.max(log.last().map_or(0, |s| s.at));
            log.push(Seen { at, by, family, what });
        }
    }
    Ok(())
}

/// What a frame says about the virtual address, if anything.
fn classify(frame: &[u8]) -> Option<(Family, What)> {
    let kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
    let packet = frame.get(14..)?;
    match kind {
        ARP => arp(packet).map(|w| (Family::V4, w)),
        IPV4 => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            (*packet.get(9)? == VRRP).then_some(())?;
            advert(packet.get(header..)?).map(|w| (Family::V4, w))
        }
        IPV6 => match *packet.get(6)? {
            VRRP => advert(packet.get(40..)?).map(|w| (Family::V6, w)),
            ICMPV6 => neighbour(packet.get(40..)?).map(|w| (Family::V6, w)),
            _ => None,
        },
        _ => None,
    }
}

fn advert(message: &[u8]) -> Option<What> {
    let &[kind, vrid, priority, ..] = message else { return None };
    (kind & 0x0f == 1 && vrid == VRID).then_some(What::Advert { priority })
}

fn arp(message: &[u8]) -> Option<What> {
    let operation = u16::from_be_bytes(*message.get(6..)?.first_chunk()?);
    let (sender, target) = (message.get(14..18)?, message.get(24..28)?);
    if sender != VIP.octets() {
        return None;
    }
    match operation {
        _ if sender == target => Some(What::Announcement),
        2 => Some(What::Answer),
        _ => None,
    }
}

fn neighbour(message: &[u8]) -> Option<What> {
    const ADVERTISEMENT: u8 = 136;
    const SOLICITED: u8 = 0x40;
    let target = message.get(8..24)?;
    if *message.first()? != ADVERTISEMENT || target != VIP6.octets() {
        return None;
    }
    Some(if message.get(4)? & SOLICITED != 0 { What::Answer } else { What::Announcement })
}

/// A neighbour solicitation (RFC 4861 section 4.3) with our link-layer address in it.
fn solicitation(mac: [u8; 6], from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&target.octets()[13..]);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([1, 1]);
    message.extend(mac);
    let length = [0, 32];
    // RFC 8200 section 8.1: the sum covers both addresses, the length and the protocol.
    let pseudo = [&from.octets()[..], &group, &[0, 0], &length, &[0, 0, 0, ICMPV6]].concat();
    let sum = checksum(&[&pseudo[..], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0xff, group[13], group[14], group[15]];
    frame.extend(mac);
    frame.extend(IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length);
    frame.extend([ICMPV6, 255]);
    frame.extend(from.octets());
    frame.extend(group);
    frame.extend(message);
    frame
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_of_ours_says_nothing_and_sums_to_nought() {
        let frame = solicitation([2, 0, 0, 0, 0, 1], PROBER6, VIP6);
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(classify(&frame), None);
        let (source, rest) = (&frame[22..54], &frame[54..]);
        let pseudo = [source, &[0, 0, 0, 32, 0, 0, 0, 58][..], rest].concat();
        assert_eq!(checksum(&pseudo), 0);
    }

    #[test]
    fn adverts_answers_and_announcements_are_told_apart_by_their_bytes() {
        let mut ipv4 = vec![0; 14];
        ipv4[12..14].copy_from_slice(&IPV4.to_be_bytes());
        ipv4.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 255, VRRP, 0, 0, 192, 168, 77, 11, 224, 0, 0, 18]);
        ipv4.extend([0x31, VRID, 200, 1, 0, 10, 0, 0, 192, 168, 77, 10]);
        assert_eq!(classify(&ipv4), Some((Family::V4, What::Advert { priority: 200 })));
        ipv4[35] = VRID + 1;
        assert_eq!(classify(&ipv4), None);
        let mut na = solicitation([2, 0, 0, 0, 0, 1], PROBER6, VIP6);
        (na[54], na[58]) = (136, 0x60);
        assert_eq!(classify(&na), Some((Family::V6, What::Answer)));
        na[58] = 0xa0;
        assert_eq!(classify(&na), Some((Family::V6, What::Announcement)));
        for length in 0..na.len() {
            let _total = classify(&na[..length]);
        }
    }
}

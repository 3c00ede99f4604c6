//! The segment as the `obs` namespace sees it: every VRRP advert, every ARP message that claims the VIP, and who
//! answers an ARP who-has each 10 ms. `obs` has its own MAC and address, so nothing here feeds the client's
//! neighbour table.

use crate::clock::{MS, Ns, now, sleep_until};
use crate::fabric::VIP;
use crate::load::Stopper;
use crate::metrics::{Advert, Answer};
use crate::netns::Netns;
use anyhow::{Context, Result, bail};
use pnet::datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};
use pnet::packet::Packet;
use pnet::packet::arp::{ArpHardwareTypes, ArpOperations, ArpPacket, MutableArpPacket};
use pnet::packet::ethernet::{EtherTypes, EthernetPacket, MutableEthernetPacket};
use pnet::packet::ip::IpNextHeaderProtocol;
use pnet::packet::ipv4::Ipv4Packet;
use pnet::util::MacAddr;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time between two who-has probes; the resolution of everything that is derived from answers.
pub const PROBE: Ns = 10 * MS;
/// VRRP's IP protocol number.
pub const VRRP: IpNextHeaderProtocol = IpNextHeaderProtocol(112);

/// What went over the wire, in order.
#[derive(Debug, Default, Clone)]
pub struct Log {
    /// Adverts for our VRID.
    pub adverts: Vec<Advert>,
    /// ARP messages that say who has the VIP.
    pub answers: Vec<Answer>,
}

/// The running watcher.
#[derive(Debug)]
pub struct Wire {
    receive: Stopper,
    probe: Stopper,
    log: Arc<Mutex<Log>>,
}

impl Wire {
    /// Watches `eth0` of `ns` and probes for the VIP from there.
    ///
    /// # Errors
    /// The namespace or the packet socket.
    pub fn start(ns: &Netns) -> Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let (eth0, tx, rx) = ns.inside(|| open("eth0"))?;
        let shared = log.clone();
        let mine = eth0.mac;
        let receive = Stopper::spawn("wire-rx", move |stop| receive(rx, mine, &shared, stop))?;
        let probe = Stopper::spawn("wire-arp", move |stop| probe(tx, &eth0, stop))?;
        Ok(Self { receive, probe, log })
    }

    /// Both threads, to give them priority.
    #[must_use]
    pub fn threads(&self) -> [i32; 2] {
        [self.receive.thread(), self.probe.thread()]
    }

    /// A copy of what was seen so far.
    #[must_use]
    pub fn log(&self) -> Log {
        self.log.lock().map(|l| l.clone()).unwrap_or_default()
    }

    /// Stops and returns the log.
    ///
    /// # Errors
    /// A thread failed.
    pub fn finish(self) -> Result<Log> {
        self.probe.finish()?;
        self.receive.finish()?;
        Ok(self.log.lock().map(|l| l.clone()).unwrap_or_default())
    }
}

/// An interface with both ends of a packet socket on it.
pub type Tap = (NetworkInterface, Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>);

/// Opens a packet socket on `name` in the calling thread's namespace.
///
/// # Errors
/// No such interface, or no CAP_NET_RAW.
pub fn open(name: &str) -> Result<Tap> {
    let interface =
        pnet::datalink::interfaces().into_iter().find(|i| i.name == name).with_context(|| format!("no {name}"))?;
    let config = Config {
        promiscuous: false, // broadcast and multicast reach us anyway
        read_timeout: Some(Duration::from_millis(50)),
        ..Config::default()
    };
    match pnet::datalink::channel(&interface, config).with_context(|| format!("packet socket on {name}"))? {
        Channel::Ethernet(tx, rx) => Ok((interface, tx, rx)),
        _ => bail!("{name} is no Ethernet interface"),
    }
}

fn receive(
    mut rx: Box<dyn DataLinkReceiver>,
    mine: Option<MacAddr>,
    log: &Mutex<Log>,
    stop: &dyn Fn() -> bool,
) -> Result<()> {
    while !stop() {
        let frame = match rx.next() {
            Ok(f) => f,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted) => continue,
            // The interface went down or away for a moment: what is not seen is not counted.
            Err(_) => continue,
        };
        let at = now();
        let seen = EthernetPacket::new(frame).filter(|e| Some(e.get_source()) != mine).and_then(|e| classify(&e, at));
        if let (Some(seen), Ok(mut l)) = (seen, log.lock()) {
            match seen {
                Seen::Advert(a) => l.adverts.push(a),
                Seen::Answer(a) => l.answers.push(a),
            }
        }
    }
    Ok(())
}

enum Seen {
    Advert(Advert),
    Answer(Answer),
}

fn classify(e: &EthernetPacket<'_>, at: Ns) -> Option<Seen> {
    match e.get_ethertype() {
        EtherTypes::Arp => {
            let a = ArpPacket::new(e.payload())?;
            let reply = a.get_operation() == ArpOperations::Reply;
            let gratuitous = a.get_sender_proto_addr() == a.get_target_proto_addr();
            let claims = a.get_sender_proto_addr() == VIP && (reply || gratuitous);
            claims.then(|| Seen::Answer(Answer { at, mac: a.get_sender_hw_addr().octets(), gratuitous }))
        }
        EtherTypes::Ipv4 => {
            let ip = Ipv4Packet::new(e.payload())?;
            if ip.get_next_level_protocol() != VRRP {
                return None;
            }
            parse_advert(ip.get_source(), ip.payload(), at).map(Seen::Advert)
        }
        _ => None,
    }
}

/// Reads the fixed part of an advert (RFC 9568 section 5.1; version 2 alike up to the interval).
fn parse_advert(source: Ipv4Addr, p: &[u8], at: Ns) -> Option<Advert> {
    let &[version_type, vrid, priority, _count, hi, lo, ..] = p else { return None };
    if version_type & 0x0f != 1 {
        return None;
    }
    let interval_ms = match version_type >> 4 {
        2 => u32::from(lo) * 1000, // authentication type, then seconds
        _ => u32::from(u16::from_be_bytes([hi & 0x0f, lo])) * 10,
    };
    Some(Advert { at, source, vrid, priority, interval_ms })
}

fn probe(mut tx: Box<dyn DataLinkSender>, eth0: &NetworkInterface, stop: &dyn Fn() -> bool) -> Result<()> {
    let mac = eth0.mac.context("eth0 has a MAC")?;
    let ip = eth0
        .ips
        .iter()
        .find_map(|n| match n.ip() {
            std::net::IpAddr::V4(ip) => Some(ip),
            std::net::IpAddr::V6(_) => None,
        })
        .context("eth0 has an address")?;
    let frame = who_has(mac, ip, VIP);
    let mut due = now();
    while !stop() {
        let _lost = tx.send_to(&frame, None);
        due += PROBE;
        sleep_until(due);
        due = due.max(now().saturating_sub(PROBE));
    }
    Ok(())
}

/// An ARP request for `target`.
#[must_use]
pub fn who_has(mac: MacAddr, ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0_u8; 42];
    if let Some(mut e) = MutableEthernetPacket::new(&mut frame) {
        e.set_destination(MacAddr::broadcast());
        e.set_source(mac);
        e.set_ethertype(EtherTypes::Arp);
    }
    if let Some(mut a) = frame.get_mut(14..).and_then(MutableArpPacket::new) {
        a.set_hardware_type(ArpHardwareTypes::Ethernet);
        a.set_protocol_type(EtherTypes::Ipv4);
        a.set_hw_addr_len(6);
        a.set_proto_addr_len(4);
        a.set_operation(ArpOperations::Request);
        a.set_sender_hw_addr(mac);
        a.set_sender_proto_addr(ip);
        a.set_target_proto_addr(target);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advert_is_read_up_to_its_interval_and_no_further() {
        let source = Ipv4Addr::new(192, 168, 77, 11);
        let a = parse_advert(source, &[0x31, 10, 254, 1, 0, 10, 0, 0], 7).expect("well formed");
        assert_eq!(a, Advert { at: 7, source, vrid: 10, priority: 254, interval_ms: 100 });
        assert!(parse_advert(source, &[0x31, 10, 254, 1, 0], 7).is_none());
        assert!(parse_advert(source, &[0x32, 10, 254, 1, 0, 10], 7).is_none());
    }

    #[test]
    fn a_probe_of_ours_is_not_taken_for_an_answer() {
        let mac = MacAddr::new(2, 0, 0, 0, 0, 1);
        let frame = who_has(mac, Ipv4Addr::new(192, 168, 77, 2), VIP);
        let e = EthernetPacket::new(&frame).expect("42 bytes");
        assert!(classify(&e, 1).is_none());
        // The same message with the VIP on both sides is gratuitous, and claims it.
        let frame = who_has(mac, VIP, VIP);
        let e = EthernetPacket::new(&frame).expect("42 bytes");
        assert!(matches!(classify(&e, 1), Some(Seen::Answer(a)) if a.gratuitous && a.mac == [2, 0, 0, 0, 0, 1]));
    }
}

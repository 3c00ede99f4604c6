//! What a neighbour on the segments sees: adverts, and who answers for an address.

use crate::clock::{MS, Ns, now};
use crate::load::Stopper;
use crate::netns::Netns;
use crate::watch::wire::{VRRP, open, who_has};
use anyhow::{Context, Result};
use pnet::packet::Packet;
use pnet::packet::arp::ArpPacket;
use pnet::packet::ethernet::{EtherTypes, EthernetPacket};
use pnet::packet::ipv4::Ipv4Packet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was seen on one segment.
#[derive(Debug, Default, Clone)]
pub(super) struct Seen {
    /// Source and time of each advert.
    pub(super) adverts: Vec<(Ns, Ipv4Addr)>,
    /// By address and MAC: when it was first said, by an answer or a gratuitous ARP.
    pub(super) claims: BTreeMap<(Ipv4Addr, [u8; 6]), Ns>,
}

/// Listens on one segment until dropped.
#[derive(Debug)]
pub(super) struct Observer {
    ns: Netns,
    device: String,
    seen: Arc<Mutex<Seen>>,
    _listener: Stopper,
}

impl Observer {
    pub(super) fn start(ns: &Netns, segment: u16) -> Result<Self> {
        let device = format!("eth{segment}");
        let (interface, _tx, mut rx) = ns.inside(|| open(&device))?;
        let mine = interface.mac;
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        let listener = Stopper::spawn("observer", move |stop| {
            while !stop() {
                let Ok(frame) = rx.next() else { continue };
                let at = now();
                let Some(e) = EthernetPacket::new(frame).filter(|e| Some(e.get_source()) != mine) else { continue };
                let Ok(mut seen) = shared.lock() else { continue };
                match e.get_ethertype() {
                    EtherTypes::Arp => {
                        if let Some(a) = ArpPacket::new(e.payload()) {
                            let key = (a.get_sender_proto_addr(), a.get_sender_hw_addr().octets());
                            seen.claims.entry(key).or_insert(at);
                        }
                    }
                    EtherTypes::Ipv4 => {
                        let ip = Ipv4Packet::new(e.payload()).filter(|ip| ip.get_next_level_protocol() == VRRP);
                        seen.adverts.extend(ip.map(|ip| (at, ip.get_source())));
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
        Ok(Self { ns: ns.clone(), device, seen, _listener: listener })
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.lock().map(|s| s.clone()).unwrap_or_default()
    }

    /// Asks for each address once.
    pub(super) fn ask(&self, addresses: &[Ipv4Addr]) -> Result<()> {
        self.ns.inside(|| {
            let (interface, mut tx, _rx) = open(&self.device)?;
            let mac = interface.mac.context("an Ethernet interface has a MAC")?;
            let ip = interface.ips.iter().find_map(|n| match n.ip() {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            });
            let ip = ip.context("the observer has an address")?;
            for address in addresses {
                let _lost = tx.send_to(&who_has(mac, ip, *address), None);
            }
            Ok(())
        })
    }

    /// Who answers for each address within `patience`: the MACs seen, by address.
    pub(super) fn answers(
        &self,
        addresses: &[Ipv4Addr],
        patience: Duration,
    ) -> Result<BTreeMap<Ipv4Addr, BTreeSet<[u8; 6]>>> {
        let from = now();
        let until = from + u64::try_from(patience.as_millis()).unwrap_or(0) * MS;
        if let Ok(mut seen) = self.seen.lock() {
            seen.claims.clear();
        }
        let mut all: BTreeMap<Ipv4Addr, BTreeSet<[u8; 6]>> = BTreeMap::new();
        while now() < until {
            let missing: Vec<Ipv4Addr> = addresses.iter().filter(|a| !all.contains_key(a)).copied().collect();
            self.ask(&missing)?;
            std::thread::sleep(Duration::from_millis(100));
            for (ip, mac) in self.seen().claims.into_keys() {
                all.entry(ip).or_default().insert(mac);
            }
        }
        Ok(all)
    }
}

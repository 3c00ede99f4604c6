//! Tells the segment where an address lives.
//!
//! What this module refuses to do: turn promiscuous mode on; keep a socket that receives frames nobody reads; send
//! more than it was asked for (repetition and pacing are the node's).

use super::packet::{self, Takes, link_address, send_frame};
use holdfast_vrrp::frames::{gratuitous_arp, unsolicited_na};
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Announces addresses; keeps one sending socket per interface.
#[derive(Debug, Default)]
pub struct Announcer {
    sockets: BTreeMap<u32, OwnedFd>,
}

impl Announcer {
    /// Without any socket yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends one gratuitous ARP request (or unsolicited neighbour advertisement) for `ip` with the link address that
    /// the interface has now. Never blocks; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// `ENODEV` or `ENXIO` when the interface is gone, `ENETDOWN` when it's down, `ENOBUFS` when the send queue is
    /// full. The socket is opened anew at the next call.
    pub fn announce(&mut self, ifindex: u32, ip: IpAddr) -> io::Result<()> {
        let socket = match self.sockets.entry(ifindex) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(none) => none.insert(packet::open(ifindex, Takes::Nothing)?),
        };
        let result = announce(socket, ip);
        if result.is_err() {
            self.sockets.remove(&ifindex);
        }
        result
    }

    /// Closes the socket of an interface.
    pub fn forget(&mut self, ifindex: u32) {
        self.sockets.remove(&ifindex);
    }
}

fn announce(socket: &OwnedFd, ip: IpAddr) -> io::Result<()> {
    let mac = link_address(socket)?;
    match ip {
        IpAddr::V4(ip) => send_frame(socket, &gratuitous_arp(mac, ip)),
        IpAddr::V6(ip) => send_frame(socket, &unsolicited_na(mac, ip)),
    }
}

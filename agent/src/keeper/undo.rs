//! What the keeper does to the kernel and the segment when no worker can: send a prepared advert, remove an address.

use crate::os::addr::AddressSocket;
use crate::os::vrrp;
use holdfast_node::io::SocketKey;
use holdfast_node::keeper::ipc::{Resign, VipAddress, VipRecord};
use holdfast_vrrp::Family;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Interfaces beyond this have no socket kept ready; one is opened when it is needed.
const SOCKETS_MAX: usize = 256;

/// The sockets for it.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// Duplicates of the worker's VRRP send sockets.
    senders: BTreeMap<SocketKey, OwnedFd>,
    addresses: Option<AddressSocket>,
}

impl Undo {
    /// Keeps the send socket that came with a record. Each replaces the former one of its interface.
    pub(super) fn keep(&mut self, record: &VipRecord, socket: OwnedFd) {
        let Some(key) = record.resign.first().map(key) else { return };
        if self.senders.contains_key(&key) || self.senders.len() < SOCKETS_MAX {
            self.senders.insert(key, socket);
        }
    }

    /// Sends the priority-0 advert.
    pub(super) fn resign(&mut self, resign: &Resign) -> io::Result<()> {
        let key = key(resign);
        let packet = vrrp::Outgoing {
            source: resign.source,
            ifindex: resign.ifindex,
            destination: resign.destination,
            payload: &resign.payload,
        };
        if let Some(socket) = self.senders.get(&key) {
            match vrrp::send_to(socket.as_fd(), &packet) {
                Ok(()) => return Ok(()),
                // Not the socket we were told it is, or its interface is gone.
                Err(_) => self.senders.remove(&key),
            };
        }
        let socket = vrrp::Sender::open(key.family, key.ifindex)?;
        vrrp::send_to(socket.as_fd(), &packet)
    }

    /// Removes an address; gone already is success.
    pub(super) fn remove(&mut self, address: VipAddress) -> Result<(), String> {
        let mut socket = match self.addresses.take() {
            Some(socket) => socket,
            None => AddressSocket::open().map_err(|error| format!("open netlink: {error}"))?,
        };
        // A socket that failed is not kept: the next try begins with a new one.
        socket.remove(address.ifindex, address.ip, address.prefix).map_err(|error| error.what)?;
        self.addresses = Some(socket);
        Ok(())
    }
}

fn key(resign: &Resign) -> SocketKey {
    let family = if resign.destination.is_ipv4() { Family::V4 } else { Family::V6 };
    SocketKey { family, ifindex: resign.destination.is_multicast().then_some(resign.ifindex) }
}

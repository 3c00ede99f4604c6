//! What the keeper does to the kernel and the segment when no worker can: send a prepared advert, remove what is ours.

use crate::os::addr::AddressSocket;
use crate::os::link;
use crate::os::nft::{Balancer, Guard};
use crate::os::route::RouteSocket;
use crate::os::vmac::VmacSocket;
use crate::os::vrrp;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::{SocketKey, StepError};
use holdfast_node::keeper::ipc::{Resign, Undo as What, VipAddress, VipRecord};
use holdfast_node::kernel::Vmac;
use holdfast_node::pool::Balance;
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
    routes: Option<RouteSocket>,
    vmacs: Option<VmacSocket>,
}

impl Undo {
    /// Keeps the send socket that came with a record. Each replaces the former one of its interface.
    pub(super) fn keep(&mut self, record: &VipRecord, socket: OwnedFd) {
        let Some(key) = record.resign.first().map(|resign| SocketKey::towards(resign.ifindex, resign.destination))
        else {
            return;
        };
        if self.senders.contains_key(&key) || self.senders.len() < SOCKETS_MAX {
            self.senders.insert(key, socket);
        }
    }

    /// Sends the priority-0 advert.
    pub(super) fn resign(&mut self, resign: &Resign) -> io::Result<()> {
        let key = SocketKey::towards(resign.ifindex, resign.destination);
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
        let device = key.ifindex.filter(|_| is_device(resign.ifindex));
        let socket = match device {
            Some(ifindex) => vrrp::Sender::open_device(key.family, ifindex)?,
            None => vrrp::Sender::open(key.family, key.ifindex)?,
        };
        vrrp::send_to(socket.as_fd(), &packet)
    }

    /// Removes it; gone already is success.
    pub(super) fn remove(&mut self, what: What) -> Result<(), String> {
        match what {
            What::Rule(rule) => with(&mut self.routes, RouteSocket::open, |s| s.remove_rule(&rule.into())),
            What::Route(route) => with(&mut self.routes, RouteSocket::open, |s| s.remove_route(&route.into())),
            What::Vmac(vmac) => with(&mut self.vmacs, VmacSocket::open, |s| s.remove(vmac.name().as_str())),
            What::Address(VipAddress { ifindex, ip, prefix }) => {
                with(&mut self.addresses, AddressSocket::open, |s| s.remove(ifindex, ip, prefix))
            }
        }
    }

    /// Removes the packet filter's tables, where the worker had no time to; none is success, and so is a kernel that has no
    /// packet filter.
    pub(super) fn clear_filter(&self) -> Result<(), String> {
        let guard = Guard::open().map_or(Ok(()), |mut guard| guard.remove());
        let balancer = Balancer::open().map_or(Ok(()), |mut balancer| balancer.apply(&Balance::Unload).map(|_| ()));
        guard.and(balancer).map_err(|error| error.what)
    }
}

/// A socket that failed is not kept: the next try begins with a new one.
fn with<S>(
    kept: &mut Option<S>,
    open: impl FnOnce() -> io::Result<S>,
    remove: impl FnOnce(&mut S) -> Result<(), StepError>,
) -> Result<(), String> {
    let mut socket = match kept.take() {
        Some(socket) => socket,
        None => open().map_err(|error| format!("open netlink: {error}"))?,
    };
    remove(&mut socket).map_err(|error| error.what)?;
    *kept = Some(socket);
    Ok(())
}

/// Whether the interface is the device of a virtual router.
fn is_device(ifindex: u32) -> bool {
    InterfaceName::new(&link::name(ifindex)).is_some_and(|name| Vmac::named(&name).is_some())
}

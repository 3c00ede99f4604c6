//! What moves with a unit beside its addresses: routes, rules, the devices of virtual routers.

use crate::os::addr::step_error;
use crate::os::link;
use crate::os::route::RouteSocket;
use crate::os::vmac::{VmacSocket, parent_settings};
use crate::os::vrrp::Sender;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::{SocketKey, StepError};
use holdfast_node::kernel::Vmac;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// The sockets for it.
#[derive(Debug)]
pub(super) struct Extras {
    pub(super) routes: RouteSocket,
    /// Opened at the first use.
    vmacs: Option<VmacSocket>,
    /// By which adverts leave the devices of virtual routers. One for each device.
    senders: BTreeMap<SocketKey, (Vmac, Arc<Sender>)>,
}

impl Extras {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { routes: RouteSocket::open()?, vmacs: None, senders: BTreeMap::new() })
    }

    /// The parent's settings concern all that the host does there: they are the operator's to make, and without them
    /// the parent would answer for the virtual router's addresses with its own MAC.
    pub(super) fn add_vmac(&mut self, vmac: Vmac) -> Result<(), StepError> {
        let parent = link::name(vmac.parent);
        let missing = InterfaceName::new(&parent).filter(|_| !vmac.six).map(|parent| parent_settings(&parent));
        if let Some(wanted) = missing.unwrap_or_default().first() {
            let what = format!(
                "add {vmac} dev {parent}: {} must be at least {}: {}",
                wanted.setting, wanted.value, wanted.why
            );
            return Err(StepError { errno: libc::EINVAL, what });
        }
        self.vmacs()?.add(&vmac.into()).map(|_| ())
    }

    /// Has the device removed. Returns the indices whose sockets are of no use any more.
    pub(super) fn remove_vmac(&mut self, vmac: Vmac) -> Result<Vec<u32>, StepError> {
        // The kernel takes tens of milliseconds for it: by a thread. That it is gone is an event.
        self.vmacs()?.remove_soon(vmac.name().as_str())?;
        Ok(self.forget(vmac))
    }

    /// The socket by which adverts leave a device of ours; `None`: the interface isn't one.
    pub(super) fn sender(&mut self, key: SocketKey) -> Option<&Sender> {
        if !self.senders.contains_key(&key) {
            let vmac = Vmac::named(&InterfaceName::new(&link::name(key.ifindex?))?)?;
            let sender = Sender::open_device(key.family, key.ifindex?).ok()?;
            // The device may have been made anew, under another index.
            self.forget(vmac);
            self.senders.insert(key, (vmac, Arc::new(sender)));
        }
        self.senders.get(&key).map(|(_, sender)| &**sender)
    }

    fn forget(&mut self, vmac: Vmac) -> Vec<u32> {
        let gone: Vec<SocketKey> =
            self.senders.iter().filter(|(_, (of, _))| *of == vmac).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| drop(self.senders.remove(key)));
        gone.into_iter().filter_map(|key| key.ifindex).collect()
    }

    fn vmacs(&mut self) -> Result<&mut VmacSocket, StepError> {
        if self.vmacs.is_none() {
            self.vmacs = Some(VmacSocket::open().map_err(|e| failure(&e, "open netlink".to_owned()))?);
        }
        Ok(self.vmacs.as_mut().expect("opened above"))
    }
}

fn failure(error: &io::Error, object: String) -> StepError {
    step_error(error.raw_os_error().unwrap_or(libc::EIO), None, "CAP_NET_ADMIN", object)
}

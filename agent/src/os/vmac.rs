//! The virtual MAC: a macvlan interface that has it, for as long as the router is Active.
//!
//! It must not exist on a Backup: a report of group membership, or an answer that leaves with the virtual MAC would
//! teach the switch the wrong port. So the interface is made when the router becomes Active, before its addresses, and
//! removed with all its addresses when it leaves: the kernel then sends nothing more, whereas taking an IPv6 address
//! off first makes it report, with the virtual MAC, that a group was left.
//!
//! Ours are told by the interface group ([`GROUP`]), which is set in the very request that makes them, and by the
//! alias that `ip link` shows.
//!
//! To make one takes a millisecond, to remove one tens of them (the kernel waits until no processor uses it any more):
//! [`VmacSocket::remove_soon`] has a thread do it.
//!
//! What this module refuses to do: decide, change the parent interface, or touch an interface without our mark.

use super::addr::step_error;
use super::link;
use super::netlink::{Ack, Message, NetlinkSocket, attributes, push_attribute, push_nested, push_request};
use super::route::{check, parse_u32};
use super::sysctl::{Setting, Tree, Wanted};
use holdfast_node::config::InterfaceName;
use holdfast_node::io::StepError;
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Removals that wait for the thread. Full → refused, and asked for again.
const REMOVALS_MAX: usize = 1_024;
/// How long a new interface waits for the removal of the former one of its name.
const REMOVAL_PATIENCE: Duration = Duration::from_millis(200);

/// The interface group of ours (`ip link show group 1212566596`).
pub const GROUP: u32 = 0x4846_4C44;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;

/// `struct ifinfomsg`: family, padding, type, index, flags, mask of changed flags.
const LINK_HEADER: usize = 16;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_PRIVATE: u32 = 1;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const KIND: &[u8] = b"macvlan";

const IPV4_DEVCONF_RP_FILTER: u16 = 8;
const IPV4_DEVCONF_ARP_ANNOUNCE: u16 = 18;
const IPV4_DEVCONF_ARP_IGNORE: u16 = 19;
const IPV4_DEVCONF_ARP_NOTIFY: u16 = 22;

/// A virtual router's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vmac {
    /// The interface it sits on.
    pub parent: u32,
    /// Virtual router, 1..=255.
    pub vrid: u8,
    /// Of the IPv6 virtual router.
    pub six: bool,
}

impl Vmac {
    /// Its interface's name: `hf` + parent's index (hexadecimal) + `.` (IPv4) or `-` (IPv6) + VRID; at most 14 bytes.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { parent, vrid, six } = *self;
        holdfast_node::kernel::Vmac { parent, vrid, six }.name().as_str().to_owned()
    }

    /// RFC 9568 section 7.3.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        [0, 0, 0x5e, 0, if self.six { 2 } else { 1 }, self.vrid]
    }
}

impl From<holdfast_node::kernel::Vmac> for Vmac {
    fn from(vmac: holdfast_node::kernel::Vmac) -> Self {
        let holdfast_node::kernel::Vmac { parent, vrid, six } = vmac;
        Self { parent, vrid, six }
    }
}

/// A macvlan interface as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    ifindex: u32,
    name: String,
    parent: u32,
    mac: [u8; 6],
    ours: bool,
}

/// A socket that makes and removes them, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct VmacSocket {
    netlink: NetlinkSocket,
    /// Started when it is first needed.
    remover: Option<Remover>,
}

/// A thread that removes interfaces. It ends, after what it was told, when this is dropped.
#[derive(Debug)]
struct Remover {
    told: SyncSender<String>,
    pending: Arc<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    names: Mutex<BTreeSet<String>>,
    fewer: Condvar,
}

impl VmacSocket {
    /// Opens the socket; changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: NetlinkSocket::open(SockProtocol::NetlinkRoute)?, remover: None })
    }

    /// Makes the interface, up and quiet, and returns its index. There already as ours is success. Its carrier
    /// is the parent's. What is set on the parent ([`parent_settings`]) is left as it is.
    ///
    /// # Errors
    /// `EEXIST` when another has an interface of that name; `EADDRINUSE` when another macvlan has the virtual MAC;
    /// `EBUSY` when the parent is a port of a bridge; else the kernel's answer. Nothing is left behind.
    pub fn add(&mut self, vmac: &Vmac) -> Result<u32, StepError> {
        let name = vmac.name();
        let object = || format!("add {name} dev {}", link::name(vmac.parent));
        if let Some(remover) = &self.remover
            && !remover.pending.wait(REMOVAL_PATIENCE, |names| !names.contains(&name))
        {
            let what = format!("{}: the former one is still being removed", object());
            return Err(StepError { errno: libc::EBUSY, what });
        }
        let mut ack = self.create(vmac, &name);
        if matches!(&ack, Ok(ack) if ack.errno == libc::EEXIST) {
            match self.find(&name).map_err(|e| failure(&e, object()))? {
                Some(listed) if listed.ours && (listed.parent, listed.mac) == (vmac.parent, vmac.mac()) => {
                    ack = Ok(Ack { errno: 0, text: None });
                }
                // The index in its name was another interface's once.
                Some(listed) if listed.ours => {
                    self.delete(&listed)?;
                    ack = self.create(vmac, &name);
                }
                _ => {
                    let what = format!("{}: an interface of that name is there already and isn't ours", object());
                    return Err(StepError { errno: libc::EEXIST, what });
                }
            }
        }
        if matches!(&ack, Ok(ack) if ack.errno == libc::EBUSY) {
            let what = format!("{}: the interface is a port of a bridge or a bond", object());
            return Err(StepError { errno: libc::EBUSY, what });
        }
        check(ack, &[], object)?;
        let ifindex = link::index(&name).map_err(|e| failure(&e, object()))?;
        self.prepare(vmac, &name, ifindex).inspect_err(|_| {
            // It was made a moment ago: nobody else knows it.
            let _ = self.remove(&name);
        })?;
        Ok(ifindex)
    }

    /// Removes it with everything on it, if it is ours. Gone already is success, and so is another's of that name,
    /// which stays.
    ///
    /// # Errors
    /// The kernel's answer, with the object named.
    pub fn remove(&mut self, name: &str) -> Result<(), StepError> {
        match self.find(name).map_err(|e| failure(&e, format!("remove {name}")))? {
            Some(listed) if listed.ours => self.delete(&listed),
            _ => Ok(()),
        }
    }

    /// Like [`Self::remove`], done by a thread. That it's gone is seen by the kernel's event; asked for again meanwhile,
    /// nothing more is done, and an [`Self::add`] waits for it (at most 200 ms).
    ///
    /// # Errors
    /// The thread can't be started, or has more to do than it can remember.
    pub fn remove_soon(&mut self, name: &str) -> Result<(), StepError> {
        let failed = |error: io::Error| failure(&error, format!("remove {name}"));
        let remover = match self.remover.take() {
            Some(remover) => self.remover.insert(remover),
            None => self.remover.insert(Remover::start().map_err(failed)?),
        };
        if !remover.pending.lock().insert(name.to_owned()) {
            return Ok(());
        }
        remover.told.try_send(name.to_owned()).map_err(|_| {
            remover.pending.done(name);
            failed(io::Error::from_raw_os_error(libc::EAGAIN))
        })
    }

    /// Waits until all that [`Self::remove_soon`] was told is done; false: not within this time.
    pub fn settle(&self, limit: Duration) -> bool {
        self.remover.as_ref().is_none_or(|remover| remover.pending.wait(limit, BTreeSet::is_empty))
    }

    /// Every interface of ours: index and name.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn ours(&mut self) -> io::Result<Vec<(u32, String)>> {
        let mut body = vec![0; LINK_HEADER];
        push_attribute(&mut body, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut found = Vec::new();
        self.netlink.dump(RTM_GETLINK, &body, &mut found, Vec::clear, |found, message| {
            if let Some(listed) = parse(message)
                && listed.ours
            {
                found.push((listed.ifindex, listed.name));
            }
        })?;
        Ok(found)
    }

    fn create(&mut self, vmac: &Vmac, name: &str) -> Result<Ack, i32> {
        self.request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |out| {
            out.extend_from_slice(&[0; LINK_HEADER]);
            push_attribute(out, IFLA_IFNAME, &terminated(name));
            push_attribute(out, IFLA_ADDRESS, &vmac.mac());
            push_attribute(out, IFLA_LINK, &vmac.parent.to_ne_bytes());
            push_attribute(out, IFLA_GROUP, &GROUP.to_ne_bytes());
            push_nested(out, IFLA_LINKINFO, |out| {
                push_attribute(out, IFLA_INFO_KIND, KIND);
                push_nested(out, IFLA_INFO_DATA, |out| {
                    push_attribute(out, IFLA_MACVLAN_MODE, &MACVLAN_MODE_PRIVATE.to_ne_bytes());
                });
            });
        })
    }

    /// Settings before it is up, then up.
    fn prepare(&mut self, vmac: &Vmac, name: &str, ifindex: u32) -> Result<(), StepError> {
        let interface = InterfaceName::new(name).expect("two letters, hexadecimal digits, a separator, a number");
        let six = |key| Setting::new(Tree::V6, &interface, key).expect("a name of ours and a plain key");
        // Not there: a kernel without IPv6.
        let has_six = six("disable_ipv6").read().is_ok();
        if has_six {
            if vmac.six {
                // Nothing is learnt here and nobody is asked for anything: it is there to be spoken to.
                for key in ["accept_ra", "autoconf", "accept_dad", "router_solicitations", "accept_redirects"] {
                    six(key).write(0)?;
                }
                six("disable_ipv6").write(0)?;
            } else {
                six("disable_ipv6").write(1)?;
            }
        }
        let object = || format!("set up {name}");
        let filter = all_reverse_path_filter();
        let ack = self.request(RTM_NEWLINK, 0, |out| {
            header(out, ifindex, 0, 0);
            let parent = link::name(vmac.parent);
            let family = if vmac.six { "IPv6" } else { "IPv4" };
            let alias = format!("holdfast: virtual MAC of VRID {} ({family}) on {parent}", vmac.vrid);
            push_attribute(out, IFLA_IFALIAS, alias.as_bytes());
            push_nested(out, IFLA_AF_SPEC, |out| {
                push_nested(out, super::route::family_number(false).into(), |out| {
                    push_nested(out, IFLA_INET_CONF, |out| {
                        // 1: answers for its own addresses only. 8: for none, an IPv6 router has none.
                        let ignore = if vmac.six { 8 } else { 1 };
                        let wanted = [
                            (IPV4_DEVCONF_RP_FILTER, filter),
                            (IPV4_DEVCONF_ARP_IGNORE, ignore),
                            (IPV4_DEVCONF_ARP_ANNOUNCE, 2),
                            (IPV4_DEVCONF_ARP_NOTIFY, 0),
                        ];
                        for (kind, value) in wanted {
                            push_attribute(out, kind, &u32::to_ne_bytes(value));
                        }
                    });
                });
                if has_six {
                    push_nested(out, super::route::family_number(true).into(), |out| {
                        push_attribute(out, IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
                    });
                }
            });
        });
        check(ack, &[], object)?;
        let up = u32::try_from(libc::IFF_UP).expect("1");
        let ack = self.request(RTM_NEWLINK, 0, |out| header(out, ifindex, up, up));
        check(ack, &[], object)
    }

    fn delete(&mut self, listed: &Listed) -> Result<(), StepError> {
        // By index: the name could have moved to another meanwhile.
        let ack = self.request(RTM_DELLINK, 0, |out| header(out, listed.ifindex, 0, 0));
        check(ack, &[libc::ENODEV], || format!("remove {}", listed.name))
    }

    /// The interface of that name; `None`: there is none, or it's no macvlan.
    fn find(&mut self, name: &str) -> io::Result<Option<Listed>> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::with_capacity(64);
        push_request(&mut datagram, RTM_GETLINK, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&[0; LINK_HEADER]);
            push_attribute(out, IFLA_IFNAME, &terminated(name));
            push_attribute(out, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        });
        let mut found = None;
        let acks = self
            .netlink
            .transact(&datagram, sequence, 1, |_, message| found = found.take().or_else(|| parse(message)))?;
        match acks.first().and_then(Option::as_ref).map_or(libc::ETIMEDOUT, |ack| ack.errno) {
            0 => Ok(found),
            libc::ENODEV => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn request(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) -> Result<Ack, i32> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::with_capacity(256);
        push_request(&mut datagram, kind, flags | NLM_F_ACK, sequence, body);
        match self.netlink.transact(&datagram, sequence, 1, |_, _| ()) {
            Ok(acks) => acks.into_iter().next().flatten().ok_or(libc::ETIMEDOUT),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

impl Remover {
    /// In the network namespace of the caller, with its rights.
    fn start() -> io::Result<Self> {
        let (told, names) = sync_channel::<String>(REMOVALS_MAX);
        let pending = Arc::<Pending>::default();
        let shared = Arc::clone(&pending);
        std::thread::Builder::new().name("vmac".to_owned()).spawn(move || {
            for name in names {
                // What fails is still there afterwards, and whoever looks asks again.
                if let Ok(mut socket) = VmacSocket::open() {
                    let _ = socket.remove(&name);
                }
                shared.done(&name);
            }
        })?;
        Ok(Self { told, pending })
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, name: &str) {
        self.lock().remove(name);
        self.fewer.notify_all();
    }

    /// Until it's so; false: not within this time.
    fn wait(&self, limit: Duration, so: impl Fn(&BTreeSet<String>) -> bool) -> bool {
        let (names, _) = self
            .fewer
            .wait_timeout_while(self.lock(), limit, |names| !so(names))
            .unwrap_or_else(PoisonError::into_inner);
        so(&names)
    }
}

/// What must be set on the parent of a virtual MAC and isn't: the change concerns the whole interface, so it is not
/// made here. Without it the parent answers, and asks, for the addresses of the virtual router with its own MAC.
#[must_use]
pub fn parent_settings(parent: &InterfaceName) -> Vec<Wanted> {
    let wanted = [
        ("arp_ignore", 1, "the interface must not answer with its own MAC for addresses on the virtual one"),
        ("arp_announce", 2, "the interface must not name addresses of the virtual one in its own requests"),
    ];
    let missing = |(key, value, why): (&'static str, i64, &'static str)| {
        let setting = Setting::new(Tree::V4, parent, key)?;
        // What can't be read can't be right.
        let enough = setting.read_with_all().is_ok_and(|now| now >= value);
        (!enough).then_some(Wanted { setting, value, why })
    };
    wanted.into_iter().filter_map(missing).collect()
}

/// The kernel takes the larger of this and the interface's: with a strict filter for all (1) the virtual interface,
/// by which no route leads, would be deaf. 2, the loose filter, is larger.
fn all_reverse_path_filter() -> u32 {
    match super::sysctl::of_all(Tree::V4, "rp_filter") {
        Ok(0) => 0,
        _ => 2,
    }
}

fn failure(error: &io::Error, object: String) -> StepError {
    step_error(error.raw_os_error().unwrap_or(libc::EIO), None, "CAP_NET_ADMIN", object)
}

fn header(out: &mut Vec<u8>, ifindex: u32, flags: u32, change: u32) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&ifindex.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&change.to_ne_bytes());
}

fn terminated(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Reads `RTM_NEWLINK` of a macvlan; `None` for all else.
fn parse(message: &Message<'_>) -> Option<Listed> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let ifindex = message.payload.get(4..8).and_then(parse_u32)?;
    let (mut name, mut parent, mut mac, mut group, mut macvlan) = (None, 0, [0; 6], 0, false);
    for (kind, value) in attributes(message.payload.get(LINK_HEADER..)?) {
        match kind {
            IFLA_IFNAME => name = std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok(),
            IFLA_ADDRESS => mac = value.try_into().unwrap_or(mac),
            IFLA_LINK => parent = parse_u32(value)?,
            IFLA_GROUP => group = parse_u32(value)?,
            IFLA_LINKINFO => {
                macvlan = attributes(value)
                    .any(|(kind, value)| kind == IFLA_INFO_KIND && value.strip_suffix(&[0]).unwrap_or(value) == KIND);
            }
            _ => {}
        }
    }
    let ours = group == GROUP && matches!(mac, [0, 0, 0x5e, 0, 1 | 2, _]);
    macvlan.then_some(Listed { ifindex, name: name?.to_owned(), parent, mac, ours })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_and_tells_the_families_apart_and_the_mac_is_the_virtual_routers() {
        let four = Vmac { parent: u32::MAX, vrid: 255, six: false };
        let six = Vmac { six: true, ..four };
        assert_eq!((four.name().as_str(), six.name().as_str()), ("hfffffffff.255", "hfffffffff-255"));
        assert!(InterfaceName::new(&six.name()).is_some());
        assert_eq!(four.mac(), [0, 0, 0x5e, 0, 1, 255]);
        assert_eq!(six.mac(), [0, 0, 0x5e, 0, 2, 255]);
    }

    #[test]
    fn only_a_macvlan_of_our_group_with_a_virtual_mac_is_ours() {
        let listed = |kind: &[u8], group: u32, mac: [u8; 6]| {
            let mut bytes = Vec::new();
            header(&mut bytes, 9, 0, 0);
            push_attribute(&mut bytes, IFLA_IFNAME, b"hf2.51\0");
            push_attribute(&mut bytes, IFLA_LINK, &2u32.to_ne_bytes());
            push_attribute(&mut bytes, IFLA_GROUP, &group.to_ne_bytes());
            push_attribute(&mut bytes, IFLA_ADDRESS, &mac);
            push_nested(&mut bytes, IFLA_LINKINFO, |out| push_attribute(out, IFLA_INFO_KIND, kind));
            for cut in 0..bytes.len() {
                let _ = parse(&Message { kind: RTM_NEWLINK, flags: 0, sequence: 1, payload: &bytes[..cut] });
            }
            parse(&Message { kind: RTM_NEWLINK, flags: 0, sequence: 1, payload: &bytes }).map(|l| l.ours)
        };
        let mac = [0, 0, 0x5e, 0, 1, 51];
        assert_eq!(listed(b"macvlan\0", GROUP, mac), Some(true));
        assert_eq!(listed(b"macvlan\0", 0, mac), Some(false));
        assert_eq!(listed(b"macvlan\0", GROUP, [2, 0, 0, 0, 0, 1]), Some(false));
        assert_eq!(listed(b"veth\0", GROUP, mac), None);
    }
}

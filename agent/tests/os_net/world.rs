//! Network namespaces, and what the tests share.

pub(crate) use crate::netns::{Namespace, run, skipped};
use holdfast::os::addr::AddressSocket;
use holdfast::os::link;
use holdfast_node::io::{Address, SocketKey};
use holdfast_vrrp::Family;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use std::fs;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

pub(crate) const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);

pub(crate) const LIFETIME: Duration = Duration::from_secs(60);

impl Namespace {
    /// One with a pair of interfaces `v0` and `v1`, both up.
    pub(crate) fn with_pair() -> Self {
        let namespace = Self::new("os");
        namespace.ip("link add v0 type veth peer name v1");
        namespace.ip("link set v0 up");
        namespace.ip("link set v1 up");
        namespace.until_up("v0");
        namespace.until_up("v1");
        namespace
    }

    /// Waits until the interface sends: the kernel notices a new cable a little later.
    pub(crate) fn until_up(&self, interface: &str) {
        eventually("the link is up", || self.ip(&format!("link show {interface}")).contains("state UP"));
    }

    /// Like `enter`, in the kind of runtime that the protocol thread has.
    pub(crate) fn block_on<R: Send, F: Future<Output = R>>(&self, f: impl FnOnce() -> F + Send) -> R {
        self.enter(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), f()).await.expect("ends in time") })
        })
    }
}

/// Two namespaces joined by a cable: interface `eth0` in each, 10.0.0.1 and 10.0.0.2, fd00::1 and fd00::2, fe80::1 and
/// fe80::2, all usable at once.
pub(crate) fn two_hosts() -> (Namespace, Namespace) {
    let (one, two) = (Namespace::new("os"), Namespace::new("os"));
    one.ip(&format!("link add name eth0 type veth peer name eth0 netns {}", two.name));
    for (host, last) in [(&one, 1), (&two, 2)] {
        host.ip("link set eth0 addrgenmode none up");
        host.ip(&format!("address add 10.0.0.{last}/24 dev eth0"));
        host.ip(&format!("address add fd00::{last}/64 dev eth0 nodad"));
        host.ip(&format!("address add fe80::{last}/64 dev eth0 nodad"));
    }
    one.until_up("eth0");
    two.until_up("eth0");
    (one, two)
}

pub(crate) fn index(name: &str) -> u32 {
    link::index(name).expect("the interface is there")
}

pub(crate) fn find(socket: &mut AddressSocket, ip: impl Into<IpAddr>) -> Vec<Address> {
    let ip = ip.into();
    socket.dump_addresses().expect("dump").into_iter().filter(|a| a.ip == ip).collect()
}

/// Waits up to five seconds. What a process of another test inherited between fork and exec stays open that long, and
/// the segment has its own speed.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn vips() -> [(IpAddr, u8); 2] {
    [(VIP.into(), 32), (VIP6.into(), 128)]
}

/// A table of the calling thread's network namespace.
pub(crate) fn proc_net(name: &str) -> String {
    fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("procfs")
}

/// A socket that takes every frame of its namespace.
pub(crate) fn tap() -> OwnedFd {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).expect("open");
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(2, 0)).expect("set");
    fd
}

/// The next frame that fits, or a panic after two seconds without any.
pub(crate) fn next_frame(tap: &OwnedFd, fits: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut buffer = [0; 2048];
    loop {
        let n = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("a frame in time");
        if fits(&buffer[..n]) {
            return buffer[..n].to_vec();
        }
    }
}

/// The IPv4 sockets of a segment.
pub(crate) fn segment(ifindex: u32) -> SocketKey {
    SocketKey { family: Family::V4, ifindex: Some(ifindex) }
}

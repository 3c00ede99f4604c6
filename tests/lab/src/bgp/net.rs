//! The network of the BGP drills, made of namespaces:
//!
//! ```text
//!                                  ┌─ lb1 ─┐
//!   client ── rt ── br0 (sw) ──────┼─ lb2 ─┼── br1 (sw) ── be   (three web servers)
//!                                  └─ … ───┘
//! ```
//!
//! The router's `eth1` and each node's `eth0` are on one segment behind a switch (10.60.0.0/24, 2001:db8:60::/64), so
//! that a node can lose its cable while the router's own link stays up. `eth1` of the nodes faces the backends
//! (10.70.0.0/24), `eth2` is the peers' channel (10.80.0.0/24). The VIP is on no interface until somebody puts it there.

use crate::clock::Ns;
use crate::fabric::{BACKEND_PORT, Batch, ip_batch, sysctl};
use crate::netns::Netns;
use crate::residue::Residue;
use anyhow::{Result, ensure};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};

/// The virtual IP.
pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The virtual IPv6 address.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 1);
/// The router on the nodes' segment.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 1);
/// Its IPv6 address there.
pub const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x60, 0, 0, 0, 0, 1);
/// Its link-local address there.
pub const ROUTER_LL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The client.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 50, 0, 2);
/// The router as the client's gateway: an address of its own that is on no node's link.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 50, 0, 1);
/// The web servers.
pub const BACKENDS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 70, 0, 21), Ipv4Addr::new(10, 70, 0, 22), Ipv4Addr::new(10, 70, 0, 23)];
/// The most nodes.
pub const NODES_MAX: usize = 4;

/// One load balancer, by its number from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub usize);

impl Node {
    /// `lb1` and so on; also its namespace's last part.
    #[must_use]
    pub fn name(self) -> String {
        format!("lb{}", self.0 + 1)
    }

    fn last(self) -> u8 {
        u8::try_from(11 + self.0).unwrap_or(u8::MAX)
    }

    /// Its address towards the router.
    #[must_use]
    pub fn front(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 60, 0, self.last())
    }

    /// Its IPv6 address towards the router.
    #[must_use]
    pub fn front6(self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0x60, 0, 0, 0, 0, self.last().into())
    }

    /// Its link-local address towards the router.
    #[must_use]
    pub fn link_local(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, self.last().into())
    }

    /// Its address on the channel.
    #[must_use]
    pub fn channel(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 80, 0, self.last())
    }

    fn back(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 70, 0, self.last())
    }

    /// The switch's port to it on the router's segment.
    #[must_use]
    pub fn port(self) -> String {
        format!("p-{}", self.name())
    }

    /// Which node a next hop is.
    #[must_use]
    pub fn with_address(ip: IpAddr) -> Option<Self> {
        (0..NODES_MAX)
            .map(Self)
            .find(|n| ip == IpAddr::V4(n.front()) || ip == IpAddr::V6(n.front6()) || ip == IpAddr::V6(n.link_local()))
    }
}

/// The namespaces, their wiring, and the hands that change it. Dropping it removes everything.
#[derive(Debug)]
pub struct Net {
    residue: Residue,
    nodes: usize,
    switch_ip: Batch,
}

impl Net {
    /// Builds it with that many nodes.
    ///
    /// # Errors
    /// Not root, iproute2 missing, or the kernel lacks veth or bridge; what was built is removed again.
    pub fn up(nodes: usize, keep_directory: bool) -> Result<Self> {
        ensure!((1..=NODES_MAX).contains(&nodes), "1 to {NODES_MAX} nodes, not {nodes}");
        let residue = Residue::create(keep_directory)?;
        Self::build(&residue, nodes).inspect_err(|_| residue.remove())
    }

    fn build(residue: &Residue, nodes: usize) -> Result<Self> {
        let p = &residue.prefix;
        let ns = |name: &str| Netns::named(format!("{p}-{name}"));
        let all: Vec<Node> = (0..nodes).map(Node).collect();
        let names: Vec<String> =
            ["sw", "client", "rt", "be"].map(str::to_owned).into_iter().chain(all.iter().map(|n| n.name())).collect();
        let mut script: String = names.iter().map(|n| format!("netns add {p}-{n}\n")).collect();
        let mut veth = |a: &str, adev: &str, b: &str, bdev: &str| {
            script += &format!("link add name {adev} netns {p}-{a} type veth peer name {bdev} netns {p}-{b}\n");
        };
        veth("client", "eth0", "rt", "eth0");
        veth("rt", "eth1", "sw", "p-rt");
        veth("be", "eth0", "sw", "q-be");
        for n in &all {
            let name = n.name();
            veth(&name, "eth0", "sw", &n.port());
            veth(&name, "eth1", "sw", &format!("q-{name}"));
            veth(&name, "eth2", "sw", &format!("c-{name}"));
        }
        ip_batch(None, &script)?;
        for name in &names {
            ns(name).inside(|| {
                for (key, value) in [
                    // An IPv6 address must not be tentative for a second, and no router's word changes a host.
                    ("net/ipv6/conf/all/dad_transmits", "0"),
                    ("net/ipv6/conf/default/dad_transmits", "0"),
                    ("net/ipv6/conf/default/accept_dad", "0"),
                    ("net/ipv4/ip_forward", "0"),
                    ("net/ipv4/conf/all/rp_filter", "0"),
                    ("net/ipv4/conf/default/rp_filter", "0"),
                ] {
                    sysctl(key, value)?;
                }
                Ok(())
            })?;
        }
        ns("rt").inside(|| {
            sysctl("net/ipv4/ip_forward", "1")?;
            sysctl("net/ipv6/conf/all/forwarding", "1")?;
            // Flows, not pairs of addresses, are spread: there is one client.
            sysctl("net/ipv4/fib_multipath_hash_policy", "1")?;
            sysctl("net/ipv6/fib_multipath_hash_policy", "1")
        })?;
        ip_batch(Some(&ns("sw")), &switch_script(&all))?;
        ip_batch(
            Some(&ns("client")),
            &format!(
                "link set dev lo up\naddr add {CLIENT}/24 dev eth0\nlink set dev eth0 up\nroute add default via {GATEWAY}\n"
            ),
        )?;
        ip_batch(
            Some(&ns("rt")),
            &format!(
                "link set dev lo up\nlink set dev eth0 up\naddr add {GATEWAY}/24 dev eth0\n\
                 link set dev eth1 addrgenmode none\nlink set dev eth1 up\naddr add {ROUTER}/24 dev eth1\n\
                 addr add {ROUTER6}/64 dev eth1 nodad\naddr add {ROUTER_LL}/64 dev eth1 nodad\n"
            ),
        )?;
        let mut backends = String::from("link set dev lo up\nlink set dev eth0 up\n");
        BACKENDS.iter().for_each(|b| backends += &format!("addr add {b}/24 dev eth0\n"));
        ip_batch(Some(&ns("be")), &backends)?;
        for n in &all {
            ns(&n.name()).inside(|| sysctl("net/ipv6/conf/eth0/accept_ra", "0"))?;
            ip_batch(
                Some(&ns(&n.name())),
                &format!(
                    "link set dev lo up\nlink set dev eth0 addrgenmode none\nlink set dev eth0 up\n\
                     addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\naddr add {}/64 dev eth0 nodad\n\
                     link set dev eth1 up\naddr add {}/24 dev eth1\nlink set dev eth2 up\naddr add {}/24 dev eth2\n\
                     route add default via {ROUTER}\n",
                    n.front(),
                    n.front6(),
                    n.link_local(),
                    n.back(),
                    n.channel()
                ),
            )?;
        }
        Ok(Self { residue: residue.clone(), nodes, switch_ip: Batch::start("ip", &ns("sw"), &residue.directory)? })
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.nodes).map(Node)
    }

    /// A namespace by its last part: `client`, `rt`, `sw`, `be`, `lb1` …
    #[must_use]
    pub fn ns(&self, name: &str) -> Netns {
        Netns::named(format!("{}-{name}", self.residue.prefix))
    }

    /// A node's namespace.
    #[must_use]
    pub fn node(&self, n: Node) -> Netns {
        self.ns(&n.name())
    }

    /// The temporary directory, readable by all.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.residue.directory
    }

    /// A file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.residue.directory.join(name)
    }

    /// The switch's port to `n` down: the node loses its carrier, the router doesn't. Returns the time.
    ///
    /// # Errors
    /// The switch's `ip` ended.
    pub fn cable(&mut self, n: Node, plugged: bool) -> Result<Ns> {
        let state = if plugged { "up" } else { "down" };
        self.switch_ip.line(&format!("link set dev {} {state}", n.port()))
    }

    /// What the tools that change the network complained about.
    #[must_use]
    pub fn complaints(&self) -> String {
        self.switch_ip.complaints()
    }

    /// The web servers' listeners, with their numbers from 1.
    ///
    /// # Errors
    /// The namespace, or a socket.
    pub fn backends(&self) -> Result<Vec<(TcpListener, u8)>> {
        self.ns("be").inside(|| {
            BACKENDS.iter().zip(1..).map(|(b, id)| Ok((TcpListener::bind((*b, BACKEND_PORT))?, id))).collect()
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.residue.remove();
    }
}

fn switch_script(nodes: &[Node]) -> String {
    let mut s = String::from("link set dev lo up\n");
    for br in ["br0", "br1", "br2"] {
        s += &format!("link add name {br} type bridge forward_delay 0 stp_state 0 mcast_snooping 0\n");
        s += &format!("link set dev {br} up\n");
    }
    let mut ports = vec![("p-rt".to_owned(), "br0"), ("q-be".to_owned(), "br1")];
    for n in nodes {
        ports.extend([(n.port(), "br0"), (format!("q-{}", n.name()), "br1"), (format!("c-{}", n.name()), "br2")]);
    }
    for (port, br) in ports {
        s += &format!("link set dev {port} master {br}\nlink set dev {port} up\n");
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_names_its_node_in_every_form() {
        let n = Node(2);
        assert_eq!(n.name(), "lb3");
        for ip in [IpAddr::from(n.front()), n.front6().into(), n.link_local().into()] {
            assert_eq!(Node::with_address(ip), Some(n));
        }
        assert_eq!(Node::with_address(ROUTER.into()), None);
    }
}

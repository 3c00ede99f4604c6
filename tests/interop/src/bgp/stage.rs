//! A cell's network with all that runs in it, and what can be asked of it.

use super::cell::{Cell, Peer};
use super::exabgp::Exabgp;
use super::gobgp::Gobgp;
use super::ours::{Kind, Ours};
use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::bgp::fib::{Fib, Hops};
use holdfast_lab::bgp::message::Said;
use holdfast_lab::bgp::net::{Net, Node};
use holdfast_lab::bgp::router::{self, Router, Setup};
use holdfast_lab::bgp::wire::{Seen, Wire};
use holdfast_lab::clock::{Ns, ms_between};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

/// The router.
enum Table {
    /// Its routes are in the kernel.
    Kernel(Box<dyn Router>),
    Gobgp(Gobgp),
    Exabgp(Exabgp),
}

impl Table {
    fn router(&self) -> &dyn Router {
        match self {
            Self::Kernel(r) => &**r,
            Self::Gobgp(r) => r,
            Self::Exabgp(r) => r,
        }
    }

    fn router_mut(&mut self) -> &mut dyn Router {
        match self {
            Self::Kernel(r) => &mut **r,
            Self::Gobgp(r) => r,
            Self::Exabgp(r) => r,
        }
    }
}

/// The stage; dropped in this order.
pub struct Stage {
    /// What it is about.
    pub cell: Cell,
    /// Our speakers.
    pub ours: Vec<Ours>,
    table: Table,
    /// The router's kernel.
    pub fib: Fib,
    wire: Wire,
    net: Net,
}

impl Stage {
    /// Builds it; the router runs, ours don't.
    ///
    /// # Errors
    /// A program is missing ([`holdfast_lab::env::Lacks`]) or doesn't start.
    pub fn up(cell: Cell, kind: Kind) -> Result<Self> {
        let net = Net::up(cell.nodes(), false)?;
        let setup = Setup::new(net.nodes().map(|n| cell.neighbour(n)).collect());
        let mut table = match cell.peer {
            Peer::Frr => Table::Kernel(router::Kind::Frr.router(&net, setup)?),
            Peer::Bird => Table::Kernel(router::Kind::Bird.router(&net, setup)?),
            Peer::Gobgp => Table::Gobgp(Gobgp::new(&net, setup)?),
            Peer::Exabgp => Table::Exabgp(Exabgp::new(&net, setup)?),
        };
        let ours = net.nodes().map(|n| Ours::new(kind, cell, n, &net)).collect::<Result<_>>()?;
        let fib = Fib::start(&net.ns("rt"), cell.vips(), None)?;
        let wire = Wire::start(&net)?;
        table.router_mut().start()?;
        Ok(Self { cell, ours, table, fib, wire, net })
    }

    /// Whether the router has the VIP from every node.
    #[must_use]
    pub fn has(&self, vip: IpAddr) -> bool {
        match &self.table {
            Table::Kernel(_) => self.from(vip).is_some_and(|all| all.len() == self.cell.nodes()),
            Table::Gobgp(r) => r.has(vip),
            Table::Exabgp(r) => r.has(vip),
        }
    }

    /// The nodes that the kernel's next hops to the VIP are, in order; `None`: one of them is nobody.
    fn from(&self, vip: IpAddr) -> Option<Vec<Node>> {
        let mut all: Vec<Node> = self.fib.hops(vip).into_keys().map(Node::with_address).collect::<Option<_>>()?;
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    /// The kernel's next hops to the VIP with their weights.
    #[must_use]
    pub fn hops(&self, vip: IpAddr) -> Hops {
        self.fib.hops(vip)
    }

    /// Waits until the router has all VIPs, or none.
    ///
    /// # Errors
    /// It hasn't within `limit`.
    pub fn await_routes(&self, there: bool, limit: Duration) -> Result<()> {
        let vips = self.cell.vips();
        let gone = |v: &IpAddr| match &self.table {
            Table::Kernel(_) => self.fib.hops(*v).is_empty(),
            _ => !self.has(*v),
        };
        let done = || Ok(vips.iter().all(|v| if there { self.has(*v) } else { gone(v) }));
        if Ours::wait(limit, done)? {
            return Ok(());
        }
        let state: Vec<String> = vips.iter().map(|v| format!("{v} via {:?}", self.fib.hops(*v))).collect();
        bail!("the routes aren't {} within {limit:?}: {}", if there { "there" } else { "gone" }, state.join(", "))
    }

    /// Waits until the sessions of the first so many nodes are established, each opened after `from`.
    ///
    /// # Errors
    /// They aren't within `limit`.
    pub fn await_sessions(&self, nodes: usize, from: Ns, limit: Duration) -> Result<()> {
        let nodes: Vec<Node> = (0..nodes).map(Node).collect();
        let opened =
            |n: Node| self.seen(from).iter().any(|s| s.node == n && s.by_node && matches!(s.said, Said::Open { .. }));
        let done = || Ok(nodes.iter().all(|n| opened(*n) && self.table.router().established(*n)));
        ensure!(Ours::wait(limit, done)?, "no session within {limit:?}");
        Ok(())
    }

    /// Whether any session is established.
    #[must_use]
    pub fn established(&self) -> bool {
        (0..self.cell.nodes()).any(|n| self.table.router().established(Node(n)))
    }

    /// What was said since `from`.
    #[must_use]
    pub fn seen(&self, from: Ns) -> Vec<Seen> {
        self.wire.since(from)
    }

    /// The router ends its sessions and begins them anew.
    ///
    /// # Errors
    /// It doesn't.
    pub fn flap(&mut self) -> Result<()> {
        match &mut self.table {
            Table::Kernel(r) => r.clear(),
            // Neither has a way that doesn't make it wait for half a minute.
            other => {
                other.router_mut().kill();
                other.router_mut().start()
            }
        }
    }

    /// The router's frames of BGP have lost a hop, or have not.
    ///
    /// # Errors
    /// nft isn't there or refuses.
    pub fn farther(&self, lost: bool) -> Result<()> {
        let own = "tcp sport 179 ip ttl set 254; tcp dport 179 ip ttl set 254";
        let own6 = "tcp sport 179 ip6 hoplimit set 254; tcp dport 179 ip6 hoplimit set 254";
        let table = |family: &str, rules: &str| {
            format!("table {family} far {{\n chain out {{\n type filter hook output priority 0; {rules}\n }}\n}}\n")
        };
        let rules = [table("ip", own), table("ip6", own6)].concat();
        let script = if lost { rules } else { "delete table ip far\ndelete table ip6 far\n".to_owned() };
        let mut nft = self.net.ns("rt").command("nft");
        crate::checked("nft", &nft.arg(script).output().context("run nft")?).map(|_| ())
    }

    /// Whether sessions ended since `from`: by whom and how. (A router that dials while it is dialled may send a second
    /// later to the connection that lost. The kernel answers that with a reset of its own, with its usual TTL; one of a
    /// session's socket has the socket's.)
    #[must_use]
    pub fn ended(&self, from: Ns) -> Option<String> {
        let ttl = self.cell.ttl().filter(|_| self.ours.iter().all(Ours::is_holdfast));
        let ends = |s: &Seen| match s.said {
            Said::Notification { .. } | Said::Fin => true,
            Said::Reset => !s.by_node || ttl.is_none_or(|ttl| s.ttl == ttl),
            _ => false,
        };
        let who = |s: &Seen| format!("{} {:?}", if s.by_node { s.node.name() } else { "the router".into() }, s.said);
        self.seen(from).iter().find(|s| ends(s)).map(who)
    }

    /// All that can be said about a failure, with the wire since `from`.
    ///
    /// # Errors
    /// Never, but for a full memory.
    pub fn tell(&mut self, from: Ns) -> Result<String> {
        const MOST: usize = 60;
        let mut t = String::from("  on the wire, ms since the step:\n");
        let mut last = None;
        let mut lines = 0;
        for s in self.seen(from) {
            let what = (s.node, s.by_node, s.said.clone());
            if matches!(s.said, Said::Keepalive) || matches!(s.said, Said::Bfd { .. }) && last.as_ref() == Some(&what) {
                continue;
            }
            let who = if s.by_node { s.node.name() } else { format!("router to {}", s.node.name()) };
            writeln!(
                t,
                "    {:>9.1} {who}: {:?} ttl {}{}",
                ms_between(from, s.at),
                s.said,
                s.ttl,
                if s.signed { " signed" } else { "" }
            )?;
            last = Some(what);
            lines += 1;
            if lines == MOST {
                t += "    …\n";
                break;
            }
        }
        for e in self.fib.since(from) {
            writeln!(t, "    {:>9.1} table: {} via {:?}", ms_between(from, e.at), e.to, e.hops)?;
        }
        if !self.table.router_mut().alive() {
            t += "  the router has ended\n";
        }
        t += &self.table.router().told();
        for o in &self.ours {
            t += &o.told();
        }
        Ok(t)
    }

    /// The first node's speaker.
    ///
    /// # Errors
    /// Never: a stage has one.
    pub fn first(&mut self) -> Result<&mut Ours> {
        self.ours.first_mut().context("a stage has a node")
    }
}

//! TOML text to a validated [`Config`].
//!
//! The text becomes a tree in which every key and value knows its place; the readers of the sections take the tree
//! apart, and `cross` holds what must be true between sections. Everything that is wrong is collected and told in
//! one go, each finding as `file:line:column: key.path: what is wrong; accepted: …`.
//!
//! What this module refuses to do: look at anything but the text, the MTU of interfaces that are there, and the password
//! files of BGP neighbours, without which a session would be refused or, worse, unprotected. Whether an interface or
//! the channel's key file is there depends on the machine; `holdfast check` warns of it, `holdfast run` finds out.

mod balancer;
mod bgp;
mod conntrack;
mod cross;
pub mod duration;
mod error;
pub(crate) mod file;
mod nft;
mod probe;
mod schema;
mod sections;
mod statesync;
mod tree;
mod values;
mod vip;

pub use error::{ConfigErrors, Finding, Kind};
use holdfast_node::config::{CheckId, Config, InterfaceName, Leg};
use holdfast_vrrp::{Family, wire};
pub use schema::{Section, sections as schema_sections};
use std::collections::HashMap;
use std::path::Path;
use toml::de::DeTable;
use tree::{Sink, Table};

/// The MTU of an interface, as far as it's to be judged by: an advert must fit it. `None`: don't.
pub type MtuOf<'m> = &'m dyn Fn(&InterfaceName) -> Option<usize>;

/// Reads and validates a file; adverts must fit the interfaces that are there.
///
/// # Errors
/// [`Kind::Syntax`] when it can't be read or isn't TOML, [`Kind::Semantics`] with everything else that is wrong.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let here = Mtus::here();
    load_for(path, &|interface| here.of(interface))
}

/// The MTUs of the interfaces that are here.
#[derive(Debug, Default)]
pub(crate) struct Mtus(HashMap<InterfaceName, usize>);

impl Mtus {
    /// Asks the kernel of this network namespace; empty if it doesn't answer.
    pub(crate) fn here() -> Self {
        let links =
            crate::os::addr::AddressSocket::open().and_then(|mut socket| socket.dump_links()).unwrap_or_default();
        Self(links.into_iter().filter_map(|link| Some((link.name, usize::try_from(link.mtu).ok()?))).collect())
    }

    /// `None`: it isn't there.
    pub(crate) fn of(&self, interface: &InterfaceName) -> Option<usize> {
        self.0.get(interface).copied()
    }
}

/// As [`load`], for a machine with these MTUs.
///
/// # Errors
/// As [`load`].
pub fn load_for(path: &Path, mtu: MtuOf<'_>) -> Result<Config, ConfigErrors> {
    load_here(path, &Here { mtu, password: Some(&file::password_wrong) })
}

fn load_here(path: &Path, here: &Here<'_>) -> Result<Config, ConfigErrors> {
    let name = path.display().to_string();
    let bytes = file::read_regular(path, TEXT_MAX).map_err(|e| ConfigErrors::unreadable(&name, &file::in_words(&e)))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes().iter().take(e.utf8_error().valid_up_to()).filter(|b| **b == b'\n').count() + 1;
        ConfigErrors::unreadable(&name, &format!("line {line} is not UTF-8"))
    })?;
    parse_here(&text, &name, here)
}

/// Validates a text, whatever the machine; `file` is only how messages name it.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigErrors> {
    parse_for(text, file, &|_| None)
}

/// As [`parse`], for a machine with these MTUs.
///
/// # Errors
/// As [`load`].
pub fn parse_for(text: &str, file: &str, mtu: MtuOf<'_>) -> Result<Config, ConfigErrors> {
    parse_here(text, file, &Here { mtu, password: None })
}

/// What is wrong with a file as a key.
type PasswordWrong<'m> = &'m dyn Fn(&Path) -> Option<String>;

/// What the machine has to say.
struct Here<'m> {
    mtu: MtuOf<'m>,
    /// What is wrong with a file as the key of a session, if anything is. `None`: files aren't looked at.
    password: Option<PasswordWrong<'m>>,
}

fn parse_here(text: &str, file: &str, here: &Here<'_>) -> Result<Config, ConfigErrors> {
    // Bytes, not characters: what is longer was not written by hand.
    if text.len() > TEXT_MAX {
        return Err(ConfigErrors::unreadable(file, &format!("longer than {TEXT_MAX} bytes")));
    }
    let tree = match DeTable::parse(text) {
        Ok(tree) => tree,
        Err(error) => {
            let mut sink = Sink::default();
            sink.push(error.span().unwrap_or(0..0), "", error.message().to_owned(), None);
            return Err(ConfigErrors::new(Kind::Syntax, file, text, sink.into_findings()));
        }
    };
    let mut sink = Sink::default();
    let config = read(&Table::root(tree.get_ref()), here, &mut sink);
    match config {
        Some(config) if sink.is_empty() => Ok(config),
        _ => Err(ConfigErrors::new(Kind::Semantics, file, text, sink.into_findings())),
    }
}

/// Bytes of a leg's advert as a packet: its message and the IP header.
pub(crate) fn packet_len(leg: &Leg) -> usize {
    let header = match leg.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    wire::message_len(leg.version, leg.family, leg.advertised.len()) + header
}

/// Longest text that is looked at.
const TEXT_MAX: usize = 4 << 20;

fn read(root: &Table<'_>, here: &Here<'_>, sink: &mut Sink) -> Option<Config> {
    root.known_keys(&schema::ROOT, sink);
    let node = sections::node(root, sink);
    let balancers: Vec<_> = root
        .tables("balancer", sections::BALANCERS_MAX, sink)
        .iter()
        .map(|table| balancer::balancer(table, sink))
        .collect();
    let mut later = probe::Later::default();
    let tables = root.tables("check", sections::CHECKS_MAX, sink);
    let tables = (0..).map(CheckId).zip(&tables);
    let mut checks: Vec<_> = tables.map(|(id, table)| sections::check(table, id, &mut later, sink)).collect();
    if root.get("vip").is_none() {
        root.require("vip", "at least one [[vip]] section", sink);
    }
    let cluster = sections::cluster(root, sink);
    let bgp = bgp::bgp(root, sink);
    let neighbors = root.get("bgp").map(|_| bgp.as_ref().map_or(&[] as &[_], |bgp| bgp.neighbors.as_slice()));
    let known = vip::Known::new(&balancers, &checks, &later, neighbors, root.get("cluster").is_some());
    let vips: Vec<_> =
        root.tables("vip", sections::VIPS_MAX, sink).iter().map(|table| vip::vip(table, &known, sink)).collect();
    let hooks: Vec<_> =
        root.tables("hook", sections::HOOKS_MAX, sink).iter().map(|table| sections::hook(table, sink)).collect();

    let fifo = sections::notify(root, sink);
    let conntrack = conntrack::read(root, sink);

    cross::balancers(&balancers, sink);
    cross::vips(&vips, sink);
    cross::adverts(&vips, here.mtu, sink);
    let addresses = cross::Addresses::of(&vips);
    cross::checks(&checks, &later, &addresses, sink);
    cross::unique_names(&hooks, sink);
    if let Some(cluster) = &cluster {
        cross::cluster(cluster, node.as_ref(), &addresses, sink);
    }
    cross::stays(&vips, &addresses, sink);
    let name = node.as_ref().map(|(name, _)| name);
    let speaker = bgp::resolve(bgp.as_ref(), &vips, name, cluster.as_ref(), &addresses, sink);
    if let (Some(bgp), Some(wrong)) = (&bgp, here.password) {
        bgp.passwords(wrong, sink);
    }
    let nft = nft::nft(root, &balancers, &vips, &addresses, sink);
    let statesync = statesync::read(root, node.as_ref(), cluster.as_ref(), &vips, sink);
    drop(addresses);
    let units = vip::units::units(vips, &known, sink);
    if let Some(units) = &units {
        probe::resolve(&mut checks, &later, units, sink);
    }
    let nft = match nft {
        Some(read) => Some(read.resolve(units.as_deref().unwrap_or_default(), &balancers, sink)?),
        None => None,
    };
    let statesync = match statesync? {
        Some(read) => Some(read.resolve(units.as_deref()?, sink)?),
        None => None,
    };
    let cluster = match cluster {
        Some(read) => Some(read.item?),
        None => None,
    };
    Some(Config {
        node: node?.0,
        balancers: balancers.into_iter().map(|named| named.item).collect::<Option<_>>()?,
        checks: checks.into_iter().map(|named| named.item).collect::<Option<_>>()?,
        vips: units?,
        bgp: speaker?,
        cluster,
        hooks: hooks.into_iter().map(|named| named.item).collect::<Option<_>>()?,
        nft,
        conntrack: conntrack?,
        statesync,
        fifo: fifo?,
    })
}

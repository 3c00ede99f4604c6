//! Does the gateway answer? By its link address (ARP, neighbour discovery), or to an echo request.
//!
//! The question is always asked from an address that is this host's own: an answer to a managed one says nothing of a
//! node that doesn't hold it, and would go to the node that does.

use crate::os::addr::AddressSocket;
use crate::os::icmp::Echo;
use crate::os::route::RouteSocket;
use crate::os::{link, probe};
use holdfast_node::config::{GatewayMethod, InterfaceName};
use holdfast_node::io::{Address, ProbeOutcome};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// How often it is asked within the timeout: one lost frame is no dead gateway.
const TRIES: u8 = 3;

/// Asks `target` three times within `timeout`, from an address of this host that isn't one of `managed` (nor marked as
/// ours in the kernel), over `interface` if one is given, else over that by which the kernel would send. Without an
/// answer it goes on waiting: the caller ends it. Cancel safe; needs a tokio runtime and CAP_NET_RAW.
///
/// # Errors
/// In few words why it can't be asked.
pub async fn ask(
    target: IpAddr,
    interface: Option<&InterfaceName>,
    method: GatewayMethod,
    managed: &BTreeSet<IpAddr>,
    timeout: Duration,
) -> Result<(), String> {
    let (ifindex, source) = from_where(target, interface, method, managed)?;
    let wait = timeout / TRIES.into();
    match method {
        GatewayMethod::Neighbour => {
            let outcome = probe::probe(ifindex, source, target, &[], TRIES, wait).await;
            match outcome.map_err(|e| super::describe(&e))? {
                ProbeOutcome::Target => return Ok(()),
                ProbeOutcome::Others | ProbeOutcome::Nobody => {}
            }
        }
        GatewayMethod::Icmp => {
            let mut echo = Echo::open(ifindex, source, target).map_err(|e| super::describe(&e))?;
            for _ in 0..TRIES {
                match echo.ask() {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    asked => asked.map_err(|e| super::describe(&e))?,
                }
                if let Ok(answered) = tokio::time::timeout(wait, echo.answered()).await {
                    return answered.map_err(|e| super::describe(&e));
                }
            }
        }
    }
    std::future::pending().await
}

/// Interface and source address of the question.
pub(super) fn from_where(
    target: IpAddr,
    interface: Option<&InterfaceName>,
    method: GatewayMethod,
    managed: &BTreeSet<IpAddr>,
) -> Result<(u32, IpAddr), String> {
    let asked_for = match interface {
        Some(name) => Some(link::index(name.as_str()).map_err(|_| format!("there is no interface {name}"))?),
        None => None,
    };
    let addresses = AddressSocket::open().and_then(|mut socket| socket.dump_addresses());
    let addresses = addresses.map_err(|e| format!("addresses can't be listed: {}", super::describe(&e)))?;
    if addresses.iter().any(|address| address.ip == target) {
        return Err(format!("{target} is an address of this host"));
    }
    let way = RouteSocket::open().and_then(|mut socket| socket.way(target, asked_for));
    let way = way.map_err(|e| format!("no way to {target}: {}", super::describe(&e)))?;
    if method == GatewayMethod::Neighbour
        && let Some(via) = way.via
    {
        return Err(format!("{target} is not on the segment of {}, but behind {via}", link::name(way.ifindex)));
    }
    let source = source(&addresses, way.ifindex, way.source, target, managed);
    let source = source.ok_or_else(|| format!("{} has no address of its own to ask from", link::name(way.ifindex)))?;
    Ok((way.ifindex, source))
}

/// The source: the one that the kernel would take, unless it's managed; else one in the target's prefix; else any.
fn source(
    addresses: &[Address],
    ifindex: u32,
    preferred: Option<IpAddr>,
    target: IpAddr,
    managed: &BTreeSet<IpAddr>,
) -> Option<IpAddr> {
    let fits = |address: &&Address| {
        address.ifindex == ifindex
            && address.ip.is_ipv4() == target.is_ipv4()
            && (!is_link_local(target) || is_link_local(address.ip))
            && !address.marked
            && !address.tentative
            && !managed.contains(&address.ip)
    };
    let rank = |address: &&Address| {
        if Some(address.ip) == preferred {
            0
        } else if shares_prefix(address.ip, target, address.prefix) {
            1
        } else {
            2
        }
    };
    addresses.iter().filter(fits).min_by_key(rank).map(|address| address.ip)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local())
}

fn shares_prefix(one: IpAddr, other: IpAddr, length: u8) -> bool {
    let differing = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    };
    differing >= length.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ifindex: u32, ip: &str, prefix: u8, marked: bool) -> Address {
        Address { ifindex, ip: ip.parse().expect("an address"), prefix, marked, secondary: false, tentative: false }
    }

    fn chosen(addresses: &[Address], preferred: Option<&str>, target: &str, managed: &[&str]) -> Option<String> {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let managed = managed.iter().map(|text| ip(text)).collect();
        source(addresses, 2, preferred.map(ip), ip(target), &managed).map(|ip| ip.to_string())
    }

    #[test]
    fn a_managed_address_is_never_the_source_whoever_prefers_it() {
        let all = [address(2, "192.0.2.10", 24, true), address(2, "192.0.2.11", 24, false)];
        assert_eq!(chosen(&all, Some("192.0.2.10"), "192.0.2.1", &[]).as_deref(), Some("192.0.2.11"));
        assert_eq!(chosen(&all, Some("192.0.2.11"), "192.0.2.1", &["192.0.2.11"]), None);
    }

    #[test]
    fn the_kernels_choice_comes_first_then_the_targets_prefix_then_any_of_the_interface() {
        let all = [
            address(3, "192.0.2.9", 24, false),
            address(2, "10.0.0.1", 24, false),
            address(2, "192.0.2.11", 24, false),
            address(2, "fd00::1", 64, false),
        ];
        assert_eq!(chosen(&all, Some("10.0.0.1"), "192.0.2.1", &[]).as_deref(), Some("10.0.0.1"));
        assert_eq!(chosen(&all, Some("192.0.2.9"), "192.0.2.1", &[]).as_deref(), Some("192.0.2.11"));
        assert_eq!(chosen(&all, None, "203.0.113.1", &[]).as_deref(), Some("10.0.0.1"));
        assert_eq!(chosen(&all, None, "fd00::9", &[]).as_deref(), Some("fd00::1"));
        assert_eq!(chosen(&all, None, "fe80::9", &[]), None, "a link-local target needs a link-local source");
    }
}

//! `canary = true`: the check goes to a VIP, over the wire, from the nodes that don't hold it, and only ever warns.

use super::super::sections::Named;
use super::super::tree::{Place, Sink, Table, Value};
use super::super::values::host_address;
use super::Later;
use holdfast_node::config::{Canary, Check, CheckId, GatewayMethod, InterfaceName, Probe, Vip, VipId};
use holdfast_vrrp::types::virtual_mac;
use std::net::IpAddr;

const ACCEPTED: &str = "the address of a vip with vrrp";

/// Whether it is one; then it's remembered for [`resolve`]. `None`: wrong.
pub(super) fn asked(check: &Table<'_>, id: CheckId, later: &mut Later, sink: &mut Sink) -> Option<bool> {
    let Some(value) = check.get("canary") else { return Some(false) };
    let canary = value.boolean(sink)?;
    if canary {
        let place = Place { span: check.place.span.clone(), path: check.place.path.clone() };
        later.canaries.insert(id, place);
    }
    Some(canary)
}

/// `gateway`: the VIP's owner is only asked for by its link address. Interface and method follow from the VIP.
pub(super) fn neighbour(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let target = host_address(value, None, ACCEPTED, sink);
    let mut right = Some(());
    for given in ["interface", "method"].into_iter().filter_map(|key| check.get(key)) {
        given.refuse("follows from the vip that the canary is for", "nothing with canary = true", sink);
        right = None;
    }
    right?;
    Some(Probe::Gateway { target: target?, interface: None, method: GatewayMethod::Neighbour })
}

/// Makes canaries of those that are to be.
pub(in super::super) fn resolve(checks: &mut [Named<Check>], later: &Later, units: &[Vip], sink: &mut Sink) {
    for (id, named) in (0..).map(CheckId).zip(checks) {
        let (Some(place), Some(check)) = (later.canaries.get(&id), &mut named.item) else { continue };
        let Some(target) = check.probe.target() else {
            sink.push(place.span.clone(), &place.path, "goes to no address".to_owned(), Some(ACCEPTED.to_owned()));
            continue;
        };
        let Some((vip, interface, mac)) = owner(units, target, place, sink) else { continue };
        let probe = check.probe.clone();
        let through = (!matches!(probe, Probe::Gateway { .. })).then(|| Box::new(probe));
        check.shared = true;
        check.probe = Probe::Canary(Canary { vip, target, interface, mac, through });
    }
}

/// Whose the address is, on which interface, and which link address must answer for it, if that is known.
fn owner(
    units: &[Vip],
    target: IpAddr,
    place: &Place,
    sink: &mut Sink,
) -> Option<(VipId, InterfaceName, Option<[u8; 6]>)> {
    let found = (0..).map(VipId).zip(units).find_map(|(id, vip)| {
        let address = vip.addresses.iter().find(|address| address.ip == target)?;
        Some((id, vip, address))
    });
    let Some((id, vip, address)) = found else {
        let what = format!("is a canary for {target}, which is of no vip");
        sink.push(place.span.clone(), &place.path, what, Some(ACCEPTED.to_owned()));
        return None;
    };
    if vip.anycast() {
        let what = format!("is a canary for {target}, which every node has itself: it's announced by BGP");
        sink.push(place.span.clone(), &place.path, what, Some(ACCEPTED.to_owned()));
        return None;
    }
    let leg = vip.legs.iter().find(|leg| leg.vmac && leg.advertised.contains(&target));
    Some((id, address.interface.clone(), leg.map(|leg| virtual_mac(leg.family, leg.vrid))))
}

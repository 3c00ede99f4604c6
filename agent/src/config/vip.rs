//! `[[vip]]`: addresses, how they are held, and what they depend on.

use super::duration;
use super::schema;
use super::sections::{Named, named_vip};
use super::tree::{Place, Sink, Table, Value};
use super::values::{interface, shown, word};
use holdfast_node::config::{
    Balancer, BalancerId, Check, CheckId, InterfaceName, LastNode, Leg, Vip, VipAddress, VrrpConfig,
};
use holdfast_vrrp::{AdvertInterval, Priority, Vrid};
use std::net::{IpAddr, Ipv4Addr};

const ACCEPTED_ADDRESS: &str = "an IPv4 address with prefix, as \"192.0.2.10/32\"";
const ACCEPTED_ADDRESSES: &str =
    "[\"192.0.2.10/32\", …], or { ip = \"192.0.2.11/32\", interface = \"eth1\", advertise = false }";
const ACCEPTED_VRRP: &str = "{ interface = \"eth0\", vrid = 10, priority = 254 }";
/// RFC 9568 section 5.2.5: the count of addresses is 8 bits wide. 255 IPv4 addresses make an advert of 1,048 bytes with
/// its IP header, which fits an MTU of 1,500.
const ADVERTISED_MAX: usize = 255;
/// All addresses of a VIP, advertised or not.
const ADDRESSES_MAX: usize = 1024;
/// 100 ms: blind failover in 0.3 s without real-time scheduling being a must.
const ADVERT_INTERVAL: &str = "100ms";

/// A VIP with the places that the cross checks talk about.
#[derive(Debug)]
pub(super) struct VipRead {
    pub(super) named: Named<Vip>,
    pub(super) addresses: Vec<(Ipv4Addr, Place)>,
    pub(super) router: Option<(InterfaceName, Vrid, Place)>,
}

/// What a VIP can refer to.
pub(super) struct Known<'k> {
    pub(super) balancers: &'k [Named<Balancer>],
    pub(super) checks: &'k [Named<Check>],
}

/// One `[[vip]]`.
pub(super) fn vip(table: &Table<'_>, known: &Known<'_>, sink: &mut Sink) -> VipRead {
    table.known_keys(&schema::VIP, sink);
    let mut named = named_vip(table, sink);
    let balancer = balancer(table, known.balancers, sink);
    let checks = checks(table, known.checks, sink);
    let last_node = table.get("last_node").map_or(Some(LastNode::Keep), |value| {
        word(&value, &[("keep", LastNode::Keep), ("withdraw", LastNode::Withdraw)], sink)
    });
    let vrrp = vrrp(table, sink);
    let addresses = table
        .require("addresses", ACCEPTED_ADDRESSES, sink)
        .map(|value| addresses(&value, vrrp.interface.as_ref(), sink));
    let (read, addresses) = addresses.unwrap_or_default();
    named.item = (|| {
        let name = named.name.as_ref()?.0.clone();
        let addresses = addresses?;
        let (vrrp, (interface, vrid, _)) = (vrrp.item?, vrrp.router.clone()?);
        let advertised = addresses.iter().filter(|a: &&VipAddress| a.advertise).map(|a| a.ip).collect();
        let leg = Leg::multicast(interface, vrid, advertised);
        Some(Vip {
            balancers: balancer?.into_iter().collect(),
            checks: checks?,
            last_node: last_node?,
            ..Vip::single(name, addresses, vec![leg], vrrp)
        })
    })();
    VipRead { named, addresses: read, router: vrrp.router }
}

/// `Some(None)`: this VIP wraps no balancer.
fn balancer(table: &Table<'_>, balancers: &[Named<Balancer>], sink: &mut Sink) -> Option<Option<BalancerId>> {
    let names = || names(balancers);
    let Some(value) = table.get("balancer") else {
        if balancers.len() > 1 {
            let what = format!("is missing, and there are {} balancers", balancers.len());
            sink.push(table.place.span.clone(), &format!("{}.balancer", table.place.path), what, Some(names()));
            return None;
        }
        return Some((!balancers.is_empty()).then_some(BalancerId(0)));
    };
    let at = refer(&value, balancers, "[[balancer]]", sink)?;
    Some(Some(BalancerId(at)))
}

fn checks(table: &Table<'_>, checks: &[Named<Check>], sink: &mut Sink) -> Option<Vec<CheckId>> {
    let Some(value) = table.get("checks") else {
        return (0..checks.len()).map(|at| u16::try_from(at).ok().map(CheckId)).collect();
    };
    let mut ids = Vec::new();
    let mut wrong = false;
    for item in value.array("a list of names of [[check]] sections", sink)? {
        match refer(&item, checks, "[[check]]", sink).map(CheckId) {
            Some(id) if ids.contains(&id) => {
                item.refuse("is there twice", "each check once", sink);
                wrong = true;
            }
            Some(id) => ids.push(id),
            None => wrong = true,
        }
    }
    (!wrong).then_some(ids)
}

/// The index of what `value` names.
fn refer<T>(value: &Value<'_>, among: &[Named<T>], what: &str, sink: &mut Sink) -> Option<u16> {
    let accepted =
        if among.is_empty() { format!("the name of a {what} section (there is none)") } else { names(among) };
    let text = value.string(&accepted, sink)?;
    let at = among.iter().position(|named| named.name.as_ref().is_some_and(|(name, _)| name.as_str() == text));
    if at.is_none() {
        value.refuse(&format!("there is no {what} named `{}`", shown(text)), &accepted, sink);
    }
    at.and_then(|at| u16::try_from(at).ok())
}

fn names<T>(among: &[Named<T>]) -> String {
    let names: Vec<&str> = among.iter().filter_map(|named| Some(named.name.as_ref()?.0.as_str())).collect();
    names.join(", ")
}

#[derive(Default)]
struct VrrpRead {
    interface: Option<InterfaceName>,
    router: Option<(InterfaceName, Vrid, Place)>,
    item: Option<VrrpConfig>,
}

fn vrrp(vip: &Table<'_>, sink: &mut Sink) -> VrrpRead {
    // `bgp` was already told as not supported; asking for vrrp on top would only hide that.
    if vip.get("vrrp").is_none() && vip.get("bgp").is_some() {
        return VrrpRead::default();
    }
    let table = vip.require("vrrp", ACCEPTED_VRRP, sink).and_then(|value| value.table(ACCEPTED_VRRP, sink));
    let Some(table) = table else { return VrrpRead::default() };
    table.known_keys(&schema::VRRP, sink);
    let interface = table.require("interface", InterfaceName::ACCEPTED, sink).and_then(|value| interface(&value, sink));
    let vrid = table.require("vrid", "1 to 255", sink).and_then(|value| {
        let number = value.integer_in(1..256, "1 to 255", sink)?;
        Some((Vrid::new(number).ok()?, value.place))
    });
    let priority = table.require("priority", "1 to 254, as 254 on the preferred node and 253 on the other", sink);
    let priority = priority.and_then(|value| priority_of(&value, sink));
    let interval = advert_interval(&table, sink);
    let preempt = table.get("preempt").map_or(Some(true), |value| value.boolean(sink));
    let router = interface.clone().zip(vrid.clone()).map(|(interface, (vrid, place))| (interface, vrid, place));
    let item = (|| Some(VrrpConfig { preempt: preempt?, ..VrrpConfig::new(priority?, interval?) }))();
    VrrpRead { interface, router, item }
}

fn priority_of(value: &Value<'_>, sink: &mut Sink) -> Option<Priority> {
    let accepted = "1 to 254, highest wins";
    match value.integer_in(0..256, accepted, sink)? {
        0 => value.refuse("0 means in an advert that the sender gives the address away", accepted, sink),
        255 => value.refuse("255 is for a router whose own address this is for good", accepted, sink),
        n => return Priority::configured(n).ok(),
    }
    None
}

fn advert_interval(table: &Table<'_>, sink: &mut Sink) -> Option<AdvertInterval> {
    let accepted = "10ms to 40950ms in steps of 10ms, as \"100ms\"";
    let value = table.get("interval");
    let text = value.as_ref().map_or(Some(ADVERT_INTERVAL), |value| value.string(accepted, sink))?;
    let read = duration::parse(text).and_then(|given| {
        AdvertInterval::from_duration(given).map_err(|_| format!("`{}` is not an advert interval", shown(text)))
    });
    match (read, value) {
        (Ok(interval), _) => return Some(interval),
        (Err(why), Some(value)) => value.refuse(&why, accepted, sink),
        (Err(_), None) => {}
    }
    None
}

/// What was read of each (for the cross checks), and all of them if nothing is wrong.
fn addresses(
    value: &Value<'_>,
    vrrp_interface: Option<&InterfaceName>,
    sink: &mut Sink,
) -> (Vec<(Ipv4Addr, Place)>, Option<Vec<VipAddress>>) {
    let Some(items) = value.array(ACCEPTED_ADDRESSES, sink) else { return Default::default() };
    if items.is_empty() || items.len() > ADDRESSES_MAX {
        let accepted = format!("1 to {ADDRESSES_MAX} addresses");
        value.refuse(&format!("has {} addresses", items.len()), &accepted, sink);
        return Default::default();
    }
    let mut read = Vec::new();
    let mut all = Some(Vec::new());
    let mut advertised = 0;
    for item in &items {
        let address = address(item, vrrp_interface, sink);
        if let Some((ip, place)) = address.read {
            read.push((ip, place));
        }
        advertised += usize::from(address.advertise);
        all = all.zip(address.item).map(|(mut all, item): (Vec<VipAddress>, _)| {
            all.push(item);
            all
        });
    }
    if advertised == 0 {
        value.refuse("has no address with advertise = true: an advert must carry one", "at least one", sink);
    }
    if advertised > ADVERTISED_MAX {
        let what = format!("has {advertised} advertised addresses: they don't fit one advert");
        value.refuse(&what, &format!("at most {ADVERTISED_MAX}, the others with advertise = false"), sink);
    }
    (read, all)
}

struct AddressRead {
    read: Option<(Ipv4Addr, Place)>,
    advertise: bool,
    item: Option<VipAddress>,
}

fn address(item: &Value<'_>, vrrp_interface: Option<&InterfaceName>, sink: &mut Sink) -> AddressRead {
    if !item.is_table() {
        let read = item.string(ACCEPTED_ADDRESSES, sink).and_then(|text| ip_and_prefix(text, item, sink));
        let item_of = |(ip, prefix)| {
            Some(VipAddress {
                ip: IpAddr::V4(ip),
                prefix,
                interface: vrrp_interface?.clone(),
                advertise: true,
                derived: false,
            })
        };
        return AddressRead {
            read: read.map(|(ip, _)| (ip, item.place.clone())),
            advertise: true,
            item: read.and_then(item_of),
        };
    }
    let wrong = AddressRead { read: None, advertise: true, item: None };
    let Some(table) = item.table(ACCEPTED_ADDRESSES, sink) else { return wrong };
    table.known_keys(&schema::ADDRESS, sink);
    let ip = table.require("ip", ACCEPTED_ADDRESS, sink).and_then(|value| {
        let text = value.string(ACCEPTED_ADDRESS, sink)?;
        Some((ip_and_prefix(text, &value, sink)?, value.place))
    });
    let interface = table.get("interface").map_or_else(|| vrrp_interface.cloned(), |value| interface(&value, sink));
    let advertise = table.get("advertise").map_or(Some(true), |value| value.boolean(sink));
    let item = (|| {
        let ((ip, prefix), _) = ip.clone()?;
        Some(VipAddress { ip: IpAddr::V4(ip), prefix, interface: interface?, advertise: advertise?, derived: false })
    })();
    AddressRead { read: ip.map(|((ip, _), place)| (ip, place)), advertise: advertise.unwrap_or(true), item }
}

fn ip_and_prefix(text: &str, value: &Value<'_>, sink: &mut Sink) -> Option<(Ipv4Addr, u8)> {
    let wrong = match parse_ip_and_prefix(text) {
        Ok(read) => return Some(read),
        Err(wrong) => wrong,
    };
    value.refuse(&wrong, ACCEPTED_ADDRESS, sink);
    None
}

fn parse_ip_and_prefix(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    match ip.parse() {
        Ok(IpAddr::V6(_)) => Err(format!("`{}`: IPv6 is not supported by this version", shown(text))),
        Ok(IpAddr::V4(ip)) => {
            let Some(prefix) = prefix else { return Err(format!("`{}` has no prefix length", shown(text))) };
            let digits = !prefix.is_empty() && prefix.len() <= 2 && prefix.bytes().all(|b| b.is_ascii_digit());
            let length = prefix.parse().ok().filter(|n: &u8| digits && (1..=32).contains(n));
            let Some(length) = length else {
                return Err(format!("`{}` is not a prefix length of 1 to 32", shown(prefix)));
            };
            if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast() {
                return Err(format!("{ip} can't be the address of a host on a network"));
            }
            Ok((ip, length))
        }
        Err(_) => Err(format!("`{}` is not an address", shown(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_its_prefix() {
        assert_eq!(parse_ip_and_prefix("192.0.2.10/32"), Ok((Ipv4Addr::new(192, 0, 2, 10), 32)));
        assert_eq!(parse_ip_and_prefix("192.0.2.10/24"), Ok((Ipv4Addr::new(192, 0, 2, 10), 24)));
        for (text, why) in [
            ("192.0.2.10", "no prefix length"),
            ("192.0.2.10/", "not a prefix length"),
            ("192.0.2.10/0", "not a prefix length"),
            ("192.0.2.10/33", "not a prefix length"),
            ("192.0.2.10/+8", "not a prefix length"),
            ("192.0.2.10/032", "not a prefix length"),
            ("192.0.2/24", "not an address"),
            ("0.0.0.0/32", "can't be the address"),
            ("127.0.0.1/8", "can't be the address"),
            ("224.0.0.18/32", "can't be the address"),
            ("255.255.255.255/32", "can't be the address"),
            ("2001:db8::10/128", "IPv6 is not supported"),
            ("", "not an address"),
        ] {
            let refused = parse_ip_and_prefix(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}

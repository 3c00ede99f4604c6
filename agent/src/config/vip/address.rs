//! Addresses of a VIP: as text, or as a table with an interface of its own.

use crate::config::schema;
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{interface, shown};
use holdfast_node::config::{InterfaceName, VipAddress};
use holdfast_vrrp::Family;
use std::net::{IpAddr, Ipv6Addr};

const ACCEPTED_ADDRESS: &str = "an address with prefix, as \"192.0.2.10/32\" or \"2001:db8::10/128\"";
const ACCEPTED_ADDRESSES: &str = "[\"192.0.2.10/32\", \"2001:db8::10/128\", …], or { ip = \"192.0.2.11/32\", interface = \"eth1\", advertise = false }";
/// All addresses of a VIP, advertised or not.
const ADDRESSES_MAX: usize = 1024;

/// One address with what the cross checks need.
#[derive(Debug, Clone)]
pub(in crate::config) struct AddressRead {
    pub(in crate::config) ip: IpAddr,
    /// `None`: nothing is known of it, since the VRRP interface is wrong.
    pub(in crate::config) interface: Option<InterfaceName>,
    pub(in crate::config) place: Place,
    /// Made from the VRID.
    pub(in crate::config) derived: bool,
}

/// What was read of each (for the cross checks), and all of them if nothing is wrong.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    pub(super) read: Vec<AddressRead>,
    pub(super) all: Option<Vec<VipAddress>>,
    /// Where the list is.
    pub(super) place: Option<Place>,
}

/// The key `addresses`. `anycast`: they are announced by BGP alone, and `own` is where they stand.
pub(super) fn addresses(vip: &Table<'_>, own: Option<&InterfaceName>, anycast: bool, sink: &mut Sink) -> Addresses {
    let Some(value) = vip.require("addresses", ACCEPTED_ADDRESSES, sink) else { return Addresses::default() };
    let Some(items) = value.array(ACCEPTED_ADDRESSES, sink) else { return Addresses::default() };
    if items.is_empty() || items.len() > ADDRESSES_MAX {
        let accepted = format!("1 to {ADDRESSES_MAX} addresses");
        value.refuse(&format!("has {} addresses", items.len()), &accepted, sink);
        return Addresses::default();
    }
    let mut found = Addresses { read: Vec::new(), all: Some(Vec::new()), place: Some(value.place.clone()) };
    let mut advertised = false;
    for item in &items {
        let (read, address, advertise) = address(item, own, anycast, sink);
        found.read.extend(read);
        advertised |= advertise;
        match (&mut found.all, address) {
            (Some(all), Some(address)) => all.push(address),
            (all, _) => *all = None,
        }
    }
    if !advertised {
        let what = if anycast {
            "has no address with advertise = true: nothing would be announced"
        } else {
            "has no address with advertise = true: an advert must carry one"
        };
        value.refuse(what, "at least one", sink);
        found.all = None;
    }
    found
}

/// What was read of it, the whole, and whether it is advertised.
fn address(
    item: &Value<'_>,
    own: Option<&InterfaceName>,
    anycast: bool,
    sink: &mut Sink,
) -> (Option<AddressRead>, Option<VipAddress>, bool) {
    let read = |ip, interface: Option<&InterfaceName>, place: &Place| AddressRead {
        ip,
        interface: interface.cloned(),
        place: place.clone(),
        derived: false,
    };
    let whole = |(ip, prefix), interface: Option<&InterfaceName>, advertise| {
        Some(VipAddress { ip, prefix, interface: interface?.clone(), advertise, derived: false })
    };
    if !item.is_table() {
        let text = item.string(ACCEPTED_ADDRESSES, sink);
        let Some(found) = text.and_then(|text| ip_and_prefix(text, item, anycast, sink)) else {
            return (None, None, true);
        };
        return (Some(read(found.0, own, &item.place)), whole(found, own, true), true);
    }
    let Some(table) = item.table(ACCEPTED_ADDRESSES, sink) else { return (None, None, true) };
    table.known_keys(&schema::ADDRESS, sink);
    let ip = table.require("ip", ACCEPTED_ADDRESS, sink).and_then(|value| {
        let text = value.string(ACCEPTED_ADDRESS, sink)?;
        Some((ip_and_prefix(text, &value, anycast, sink)?, value.place))
    });
    let interface = table.get("interface").map_or_else(|| own.cloned(), |value| interface(&value, sink));
    let advertise = table.get("advertise").map_or(Some(true), |value| value.boolean(sink));
    let item = ip.as_ref().and_then(|(found, _)| whole(*found, interface.as_ref(), advertise?));
    (ip.map(|((ip, _), place)| read(ip, interface.as_ref(), &place)), item, advertise.unwrap_or(true))
}

fn ip_and_prefix(text: &str, value: &Value<'_>, anycast: bool, sink: &mut Sink) -> Option<(IpAddr, u8)> {
    let read = match text.parse::<IpAddr>() {
        // It is added to lo and announced as it is: there is nothing else that it could mean.
        Ok(ip) if anycast => parse_ip_and_prefix(&format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })),
        _ => parse_ip_and_prefix(text),
    };
    let read = read.and_then(|(ip, prefix)| match ip {
        IpAddr::V6(v6) if anycast && v6.is_unicast_link_local() => {
            Err(format!("{ip} is link-local: it can't be announced"))
        }
        _ => Ok((ip, prefix)),
    });
    read.map_err(|wrong| value.refuse(&wrong, ACCEPTED_ADDRESS, sink)).ok()
}

fn parse_ip_and_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let Ok(ip) = ip.parse::<IpAddr>() else {
        return Err(match ip.split_once('%') {
            Some((bare, _)) if bare.parse::<Ipv6Addr>().is_ok() => {
                format!("`{}` has a zone: the interface is a key of its own", shown(text))
            }
            _ => format!("`{}` is not an address", shown(text)),
        });
    };
    let Some(prefix) = prefix else { return Err(format!("`{}` has no prefix length", shown(text))) };
    let length = prefix_length(prefix, Family::of(ip), 1)?;
    match host(ip) {
        Ok(()) => Ok((ip, length)),
        Err(()) => Err(format!("{ip} can't be the address of a host on a network")),
    }
}

/// `24`: digits only, no longer than the family's addresses.
pub(super) fn prefix_length(text: &str, family: Family, least: u8) -> Result<u8, String> {
    let most: u8 = match family {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    let digits =
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let length = text.parse().ok().filter(|n: &u8| digits && (least..=most).contains(n));
    length.ok_or_else(|| format!("`{}` is not a prefix length of {least} to {most}", shown(text)))
}

/// Whether it can be the address of one host on a network.
pub(in crate::config) fn host(ip: IpAddr) -> Result<(), ()> {
    let no_host = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    let no_host = no_host
        || match ip {
            IpAddr::V4(ip) => ip.is_broadcast(),
            IpAddr::V6(ip) => ip.to_ipv4_mapped().is_some(),
        };
    if no_host { Err(()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_its_prefix() {
        let of = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(parse_ip_and_prefix("192.0.2.10/32"), Ok((of("192.0.2.10"), 32)));
        assert_eq!(parse_ip_and_prefix("192.0.2.10/24"), Ok((of("192.0.2.10"), 24)));
        assert_eq!(parse_ip_and_prefix("2001:db8::10/128"), Ok((of("2001:db8::10"), 128)));
        assert_eq!(parse_ip_and_prefix("fe80::1/64"), Ok((of("fe80::1"), 64)));
        for (text, why) in [
            ("192.0.2.10", "no prefix length"),
            ("2001:db8::10", "no prefix length"),
            ("192.0.2.10/", "not a prefix length"),
            ("192.0.2.10/0", "not a prefix length"),
            ("192.0.2.10/33", "not a prefix length"),
            ("2001:db8::10/129", "not a prefix length of 1 to 128"),
            ("2001:db8::10/0128", "not a prefix length"),
            ("192.0.2.10/+8", "not a prefix length"),
            ("192.0.2.10/032", "not a prefix length"),
            ("192.0.2/24", "not an address"),
            ("0.0.0.0/32", "can't be the address"),
            ("127.0.0.1/8", "can't be the address"),
            ("224.0.0.18/32", "can't be the address"),
            ("255.255.255.255/32", "can't be the address"),
            ("::/128", "can't be the address"),
            ("::1/128", "can't be the address"),
            ("ff02::12/128", "can't be the address"),
            ("::ffff:192.0.2.1/128", "can't be the address"),
            ("fe80::1%eth0/64", "has a zone"),
            ("", "not an address"),
        ] {
            let refused = parse_ip_and_prefix(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}

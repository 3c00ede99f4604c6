//! Is an address usable on this host?

use crate::os::addr::AddressSocket;
use crate::os::link;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::Address;
use std::net::IpAddr;

/// Asks the kernel, which answers at once.
pub(super) fn look(ip: IpAddr, interface: Option<&InterfaceName>) -> Result<(), String> {
    let on = match interface {
        Some(name) => Some(link::index(name.as_str()).map_err(|_| format!("there is no interface {name}"))?),
        None => None,
    };
    let addresses = AddressSocket::open().and_then(|mut socket| socket.dump_addresses());
    let addresses = addresses.map_err(|e| format!("addresses can't be listed: {}", super::describe(&e)))?;
    judge(&addresses, ip, on)
}

fn judge(addresses: &[Address], ip: IpAddr, on: Option<u32>) -> Result<(), String> {
    let mut here = addresses.iter().filter(|a| a.ip == ip && on.is_none_or(|on| a.ifindex == on)).peekable();
    if here.peek().is_none() {
        return Err("the address isn't here".to_owned());
    }
    if here.all(|address| address.tentative) {
        return Err("the address is tentative: a duplicate, or not yet looked for".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ifindex: u32, ip: &str, tentative: bool) -> Address {
        let ip = ip.parse().expect("an address");
        Address { ifindex, ip, prefix: 32, marked: false, secondary: false, tentative }
    }

    #[test]
    fn an_address_counts_where_it_is_and_usable() {
        let all = [address(2, "192.0.2.1", false), address(3, "2001:db8::1", true), address(4, "192.0.2.2", false)];
        let judged = |ip: &str, on| judge(&all, ip.parse().expect("an address"), on);
        assert_eq!(judged("192.0.2.1", None), Ok(()));
        assert_eq!(judged("192.0.2.1", Some(2)), Ok(()));
        assert_eq!(judged("192.0.2.1", Some(4)), Err("the address isn't here".to_owned()));
        assert_eq!(judged("192.0.2.9", None), Err("the address isn't here".to_owned()));
        let tentative = judged("2001:db8::1", None).expect_err("can't be used");
        assert!(tentative.contains("tentative"), "{tentative}");
    }

    #[test]
    fn the_kernel_is_asked() {
        assert_eq!(look("127.0.0.1".parse().expect("an address"), None), Ok(()));
        assert!(look("192.0.2.254".parse().expect("an address"), None).is_err());
        let name = InterfaceName::new("gone0").expect("a name");
        let refused = look("127.0.0.1".parse().expect("an address"), Some(&name));
        assert_eq!(refused, Err("there is no interface gone0".to_owned()));
    }
}

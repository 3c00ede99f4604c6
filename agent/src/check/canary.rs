//! Who answers for a VIP on its segment? Asked by a node that doesn't hold it, over the wire and not on its own
//! loopback: what a client behind the same switch would be told.
//!
//! What this module refuses to do: decide anything by the answer. The kernel's neighbour table is neither asked nor
//! changed: it would say what was true a minute ago.

use super::{describe, gateway};
use crate::os::addr::AddressSocket;
use crate::os::probe;
use holdfast_node::config::{Canary, GatewayMethod};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// How often it is asked within half of the timeout.
const TRIES: u8 = 2;
/// After the first answer, how long a second one is waited for, at most: two hosts that have an address answer within
/// the same millisecond.
const SECOND: Duration = Duration::from_millis(50);

/// Who has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This node: there is nobody to ask.
    Here,
    /// One other host, and the right one as far as that is known.
    At(Mac),
}

/// A link address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mac(pub(super) [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Asks the segment.
pub(super) async fn owner(canary: &Canary, managed: &BTreeSet<IpAddr>, timeout: Duration) -> Result<Owner, String> {
    let addresses = AddressSocket::open().and_then(|mut socket| socket.dump_addresses());
    let addresses = addresses.map_err(|e| format!("addresses can't be listed: {}", describe(&e)))?;
    if addresses.iter().any(|address| address.ip == canary.target) {
        return Ok(Owner::Here);
    }
    let (interface, method) = (Some(&canary.interface), GatewayMethod::Neighbour);
    let (ifindex, source) = gateway::from_where(canary.target, interface, method, managed)?;
    let wait = timeout / (2 * u32::from(TRIES));
    let asked = probe::who_has(ifindex, source, canary.target, TRIES, wait, SECOND.min(timeout / 8));
    let answered = asked.await.map_err(|e| describe(&e))?;
    judge(canary, &answered.into_iter().map(Mac).collect::<Vec<_>>())
}

fn judge(canary: &Canary, answered: &[Mac]) -> Result<Owner, String> {
    let target = canary.target;
    match answered {
        [] => Err(format!("nobody answers for {target}")),
        [mac] => match canary.mac.map(Mac) {
            Some(expected) if expected != *mac => {
                Err(format!("{target} is answered for by {mac}, not by its virtual router's {expected}"))
            }
            _ => Ok(Owner::At(*mac)),
        },
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(format!("{target} is answered for by {}", several.join(" and ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::{InterfaceName, VipId};

    const ONE: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const TWO: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn canary(mac: Option<[u8; 6]>) -> Canary {
        let interface = InterfaceName::new("eth0").expect("a name");
        Canary { vip: VipId(0), target: "192.0.2.10".parse().expect("an address"), interface, mac, through: None }
    }

    #[test]
    fn one_host_answers_or_it_is_said_who_does() {
        assert_eq!(judge(&canary(None), &[ONE]), Ok(Owner::At(ONE)));
        assert_eq!(judge(&canary(None), &[]), Err("nobody answers for 192.0.2.10".to_owned()));
        let both = "192.0.2.10 is answered for by 02:00:00:00:00:01 and 02:00:00:00:00:02";
        assert_eq!(judge(&canary(None), &[ONE, TWO]), Err(both.to_owned()));
    }

    #[test]
    fn the_virtual_routers_link_address_is_the_only_right_one_where_there_is_one() {
        let virtual_mac = [0, 0, 0x5e, 0, 1, 10];
        assert_eq!(judge(&canary(Some(virtual_mac)), &[Mac(virtual_mac)]), Ok(Owner::At(Mac(virtual_mac))));
        let other = "192.0.2.10 is answered for by 02:00:00:00:00:01, not by its virtual router's 00:00:5e:00:01:0a";
        assert_eq!(judge(&canary(Some(virtual_mac)), &[ONE]), Err(other.to_owned()));
    }
}

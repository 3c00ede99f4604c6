//! A backup asks over the wire who has a VIP.

use crate::world::*;
use holdfast::check::Prepared;
use holdfast_node::config::{Canary, InterfaceName, Probe, VipId};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

async fn asked(target: &str, mac: Option<[u8; 6]>, through: Option<Probe>) -> Result<Option<String>, String> {
    let target: IpAddr = target.parse().expect("an address");
    let interface = InterfaceName::new("eth0").expect("valid");
    let canary = Canary { vip: VipId(0), target, interface, mac, through: through.map(Box::new) };
    let managed = BTreeSet::from([target]);
    Prepared::new(Probe::Canary(canary)).run(&managed, Duration::from_secs(3)).await.map_err(|e| e.what)
}

#[test]
fn a_canary_finds_the_owner_by_his_link_address_in_both_families() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("address add 10.0.0.50/32 dev eth0");
    two.ip("address add fd00::50/128 dev eth0 nodad");
    let mac = two.ip("link show eth0");
    let mac = mac.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).expect("it has one").to_owned();
    one.block_on(|| async move {
        for target in ["10.0.0.50", "fd00::50"] {
            assert_eq!(asked(target, None, None).await, Ok(Some(format!("{target} is at {mac}"))));
            let other = asked(target, Some([0, 0, 0x5e, 0, 1, 10]), None).await.expect_err("another has it");
            assert_eq!(
                other,
                format!("{target} is answered for by {mac}, not by its virtual router's 00:00:5e:00:01:0a")
            );
            let port = format!("{}:9", if target.contains(':') { format!("[{target}]") } else { target.to_owned() });
            let through = Probe::tcp(port.parse().expect("an address"));
            assert_eq!(asked(target, None, Some(through)).await, Err("connection refused".to_owned()));
        }
        assert_eq!(asked("10.0.0.51", None, None).await, Err("nobody answers for 10.0.0.51".to_owned()));
        let own = asked("10.0.0.1", None, None).await;
        assert_eq!(own, Ok(Some("held by this node: nothing is asked".to_owned())));
    });
}

#[test]
fn two_hosts_that_have_a_vip_are_both_named() {
    if skipped() {
        return;
    }
    let (one, two) = two_hosts();
    two.ip("link add mv0 link eth0 type macvlan mode bridge");
    two.ip("link set mv0 up");
    // Both of the host's devices answer for the address: to the one who asks they are two hosts.
    two.ip("address add 10.0.0.50/32 dev eth0");
    two.ip("address add 10.0.0.3/24 dev mv0");
    two.until_up("mv0");
    one.block_on(|| async {
        let said = asked("10.0.0.50", None, None).await.expect_err("two answer");
        assert!(said.starts_with("10.0.0.50 is answered for by ") && said.contains(" and "), "{said}");
    });
}

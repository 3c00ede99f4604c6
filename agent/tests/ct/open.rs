//! Connections with VIPs that the packet filter passes on are counted and ended as those of a process are.

use crate::fabric::*;
use holdfast::balancer::flows;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::time::Duration;

#[test]
fn open_connections_are_counted_whoever_serves_them_and_ended_on_demand() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let vips: Vec<IpAddr> = [VIP, VIP6].iter().map(|ip| ip.parse().expect("an address")).collect();
    let open = |vips: &[IpAddr]| fabric.a.enter(|| flows::open(vips).expect("the kernel answers"));
    assert_eq!(open(&vips), 0);
    let (near, far) = fabric.connect(false);
    let (mut near6, mut far6) = fabric.connect(true);
    transfer(&near6, &far6, 1_000).expect("through A");
    assert_eq!((open(&vips), open(&vips[..1]), open(&[])), (2, 1, 0));
    let others: Vec<IpAddr> = (1..=9).map(|n| IpAddr::from([192, 0, 2, n])).collect();
    assert_eq!(open(&others), 0, "no flow of a VIP of ours");
    assert_eq!(open(&[&others[..], &vips[..]].concat()), 2, "with more VIPs than the kernel is asked for one by one");
    drop((near, far));
    until("the closed one isn't open any more", || (open(&vips) == 1).then_some(()));
    assert_eq!(fabric.a.enter(|| flows::cut(&vips).expect("permitted")), 2, "the closed one lingers in the table");
    assert_eq!(open(&vips), 0);
    // Nobody's packet now: the rule set drops it.
    far6.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    near6.write_all(b"x").expect("into the socket's buffer");
    assert!(far6.read(&mut [0; 1]).is_err());
}

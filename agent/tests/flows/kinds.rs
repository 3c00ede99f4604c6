//! Other kinds of pairs: IPv6, a shared VIP, events that are sorted out by the agent, a backend on the host itself.

use crate::MASK;
use crate::fabric::{Pair, Shape, speaks};
use crate::netns::{skipped, until};
use nix::sys::signal::Signal;

#[test]
fn a_connection_by_ipv6_goes_on_at_the_survivor() {
    if skipped() {
        return;
    }
    let pair = Pair::shaped(Shape { six: true, ..Shape::default() });
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    let replica = until("the replica is there", || pair.hosts[1].flow(port));
    let own = pair.hosts[0].flow(port).expect("it forwards it");
    assert!(own.original.addresses.destination().is_ipv6() && own.is_dnat() && own.is_snat());
    assert_eq!((replica.original, replica.reply), (own.original, own.reply), "with its translation");
    pair.kill_first();
    assert!(speaks(&mut near, &mut far), "it broke");
}

#[test]
fn with_the_filter_in_user_space_the_same_flows_are_replicated_and_no_others() {
    if skipped() {
        return;
    }
    let pair = Pair::started("filter = \"user\"");
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    until("the replica is there", || pair.hosts[1].flow(port));
    for host in &pair.hosts {
        let rules = host.namespace.exec("nft list table inet holdfast_events");
        assert!(!rules.contains("event set"), "no mask is set: {rules}");
        assert_eq!(host.settings()[0], Some(1));
        // The hosts' own traffic is told of, and passed over.
        until("others were seen", || (host.counted("not_for_vips") > 0).then_some(()));
        assert_eq!(host.json(&["flows", "--json"])["flows"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(pair.hosts[1].flows().len(), 1);
    pair.kill_first();
    assert!(speaks(&mut near, &mut far), "it broke");
}

#[test]
fn a_connection_to_a_shared_vip_goes_on_when_the_routers_send_it_to_the_other_node() {
    if skipped() {
        return;
    }
    let shape = Shape { shared: true, ..Shape::default() };
    let pair = Pair::shaped(shape);
    // As a router does, and as the server's gateway.
    let lead = |last: u8| {
        pair.client.ip(&format!("route replace {}/32 via {}", shape.vip(), shape.at(1, last)));
        pair.server.ip(&format!("route replace default via {}", shape.at(2, last)));
    };
    lead(11);
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    until("the replica is there", || pair.hosts[1].flow(port));
    lead(12);
    assert!(speaks(&mut near, &mut far), "it broke");
}

#[test]
fn a_connection_whose_backend_is_the_host_itself_is_named_and_has_no_replica() {
    if skipped() {
        return;
    }
    let pair = Pair::shaped(Shape { at_home: true, ..Shape::default() });
    let host = &pair.hosts[0];
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    let told = || {
        let output = host.holdfast(&["explain", "tcp", &format!("10.9.1.2:{port}"), "10.9.1.10:80"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let words = until("it is seen to end there", || Some(told()).filter(|told| told.starts_with("NO: ")));
    assert!(words.contains("it ends on this host"), "{words}");
    // A worker that begins reads the whole table.
    let worker = host.worker();
    host.signal(worker, Signal::SIGKILL);
    until("another one runs", || (host.worker() != worker).then_some(()));
    until("it has read the table", || {
        (host.holdfast(&["status"]).status.success() && host.counted("audits") > 0).then_some(())
    });
    assert!(told().starts_with("NO: "), "{}", told());
    assert!(host.counted("proxied") > 0);
    assert_eq!(host.json(&["flows", "--json"])["flows"].as_array().map(Vec::len), Some(0));
    assert!(pair.hosts[1].flows().is_empty(), "{:?}", pair.hosts[1].flows());
    assert!(speaks(&mut near, &mut far));
}

#[test]
fn a_clean_stop_takes_the_replicas_along_and_the_owner_loses_nothing() {
    if skipped() {
        return;
    }
    let mut pair = Pair::started("");
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    until("the replica is there", || pair.hosts[1].flow(port));
    pair.hosts[1].stop();
    assert_eq!(pair.hosts[1].flow(port), None, "of use to nobody there, and it would stay for its lease");
    assert!(pair.hosts[0].flow(port).is_some_and(|entry| entry.mark.unwrap_or(0) & MASK == 0));
    assert!(speaks(&mut near, &mut far));
    assert_eq!(pair.hosts[0].counted("foreign_deletes_applied"), 0);
    // It gets them again when it is back.
    pair.hosts[1].start();
    until("the replica is there again", || pair.hosts[1].flow(port));
    assert!(speaks(&mut near, &mut far));
}

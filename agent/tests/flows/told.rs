//! What `peers`, `flows` and `explain` say of a connection, and whether it comes true.

use crate::fabric::{Host, Pair, VIP, speaks};
use crate::netns::{PATIENCE, skipped, until};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// What a client command prints; nothing if it fails.
fn out(host: &Host, words: &[&str]) -> String {
    let output = host.holdfast(words);
    let done = output.status.code() == Some(0);
    if done { String::from_utf8_lossy(&output.stdout).into_owned() } else { String::new() }
}

fn first_line(host: &Host, words: &[&str]) -> String {
    out(host, words).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_connection_of_which_explain_says_yes_goes_on_when_its_host_dies() {
    if skipped() {
        return;
    }
    let pair = Pair::started("");
    let [one, two] = &pair.hosts;
    for host in [one, two] {
        until("it says that it is in sync", || {
            (first_line(host, &["peers"]) == "OK: 1/1 peer is heard, in sync both ways").then_some(())
        });
    }
    let (mut near, mut far, port) = pair.connect();
    assert!(speaks(&mut near, &mut far));
    let flow = format!("tcp 10.9.1.2:{port} {VIP}:80");
    let words: Vec<&str> = std::iter::once("explain").chain(flow.split(' ')).collect();
    until("the owner says that it would go on", || {
        (first_line(one, &words) == format!("YES: {flow}: it would go on at lb1 without this node")).then_some(())
    });
    assert_eq!(first_line(two, &words), format!("YES: {flow}: lb0 owns it, and it would go on here"));
    for (host, owner) in [(one, "here"), (two, "lb0")] {
        let listed = host.json(&["flows", "--vip", "web", "--json"]);
        let [ours] = listed["flows"].as_array().expect("a list").as_slice() else { panic!("{listed:#}") };
        assert_eq!((&ours["owner"], &ours["here"]), (&owner.into(), &true.into()), "{listed:#}");
        assert_eq!((&ours["source"], &ours["backend"]), (&format!("10.9.1.2:{port}").into(), &"10.9.2.21:80".into()));
        assert_eq!(host.json(&["flows", "--vip", "inside", "--json"])["flows"], serde_json::json!([]));
    }
    let unknown = one.holdfast(&["flows", "--vip", "wbe"]);
    assert_eq!(unknown.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("`wbe`"), "{unknown:?}");
    let told = out(one, &["explain", "web"]);
    assert!(told.starts_with("web: owner lb0 (this node); active here for "), "{told}");

    // By the kernel's own time of the event, at both places where it is told.
    let lag = until("lag was measured", || {
        let lag = one.json(&["peers", "--json"])["sync"]["peers"][0]["lag"].clone();
        lag.is_object().then_some(lag)
    });
    assert!(lag["by_kernel"] == true && lag["count"].as_u64() >= Some(1), "{lag:#}");
    let figures = until("the figures have it", || {
        let figures = one.json(&["status", "--json"])["worker"]["sync"].clone();
        figures["peers"][0]["lag"].is_object().then_some(figures)
    });
    let peer = &figures["peers"][0];
    assert!(peer["bytes_sent"].as_u64() > Some(0) && peer["bytes_received"].as_u64() > Some(0), "{figures:#}");
    assert!(peer["watermark"]["sent"].as_u64() >= Some(1) && peer["behind"].is_u64(), "{figures:#}");
    for name in ["overruns", "clashes", "kernel_refused", "wire_bytes_sent", "audits", "audits_by_name"] {
        assert!(figures["counters"][name].is_u64(), "{name}: {figures:#}");
    }
    assert!(figures["kernel_errors"].is_object(), "{figures:#}");

    pair.kill_first();
    assert!(speaks(&mut near, &mut far), "it broke");
    until("it is the other one's", || {
        first_line(two, &words).starts_with(&format!("NO: {flow}: it would go on at no peer (lb0)")).then_some(())
    });
    until("the loss of the peer is told", || {
        let text = out(two, &["peers"]);
        let told = text.starts_with("DEGRADED: 0/1 peer is heard; lb0 lacks flows of this node for ");
        (told && text.contains("lb0: our flows there: no session on the flow lanes")).then_some(())
    });
}

#[test]
fn what_cannot_be_replicated_is_named_with_its_remedy() {
    if skipped() {
        return;
    }
    let pair = Pair::started("");
    let host = &pair.hosts[0];
    // As a proxy does.
    let _proxy = host.namespace.enter(|| TcpListener::bind(format!("{VIP}:81")).expect("the VIP is here"));
    let at: SocketAddr = format!("{VIP}:81").parse().expect("an address");
    let connection = pair.client.enter(|| TcpStream::connect_timeout(&at, PATIENCE).expect("it listens"));
    let flow = format!("tcp {} {at}", connection.local_addr().expect("connected"));
    let told =
        until("it is seen to end there", || Some(out(host, &["explain", &flow])).filter(|t| t.starts_with("NO: ")));
    assert!(told.contains("it ends on this host") && told.contains("`holdfast drain`"), "{told}");
    let absent = out(host, &["explain", "tcp", "10.9.1.9:1", &format!("{VIP}:80")]);
    assert!(absent.starts_with("UNKNOWN: "), "{absent}");
    let foreign = out(host, &["explain", "tcp", "10.9.1.9:1", "10.9.1.77:80"]);
    assert!(foreign.contains("is no VIP whose flows are replicated"), "{foreign}");
}

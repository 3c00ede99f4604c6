//! What is asked of the thread that replicates flows: the real server in front of a stand-in for the thread.

use super::{Agent, a_status, code, err, holdfast, out};
use holdfast::run::sync::query::{self, Query, SyncHandle};
use holdfast_node::io::{Answer, Request};
use holdfast_node::status::{Status, Verdict};
use std::sync::{Arc, Mutex};

/// An agent whose thread that replicates flows answers like this, and what that was asked.
fn replicating(answer: impl Fn(&Query) -> query::Answer + Send + 'static) -> (Agent, Arc<Mutex<Vec<Query>>>) {
    let (sync, mut questions) = SyncHandle::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        while let Some(query::Asked { query, reply }) = questions.blocking_recv() {
            let _ = reply.send(answer(&query));
            log.lock().expect("no panic").push(query);
        }
    });
    let status = |_: &Request| vec![Answer::Status(Box::new(with_web()))];
    (Agent::with_sync(status, Some(sync)), asked)
}

fn with_web() -> Status {
    let text = serde_json::json!({
        "name": "web", "state": "active", "owner": "lb1", "age_ms": 61_000, "addresses": [], "priority": 254,
        "configured_priority": 254, "interface": "eth0", "vrid": 10, "interval_ms": 100, "fitness": "fit",
        "fitness_age_ms": 5, "fail_open": false, "reasons": ["this node owns it"], "peers": [], "heard": null,
        "role_epoch": 1,
    });
    let peer = serde_json::json!({
        "name": "lb2", "reachable": true, "age_ms": 12, "address": "10.1.0.12:7712", "epoch": 1, "left": false,
        "balancers": {},
    });
    Status {
        vips: vec![serde_json::from_value(text).expect("a VIP")],
        peers: vec![serde_json::from_value(peer).expect("a peer")],
        ..a_status(Verdict::Ok)
    }
}

fn in_sync() -> query::Summary {
    let direction = query::DirectionSummary { in_sync: true, why: None, since_ms: 9_000, equal_ms: Some(1_200) };
    let peer = query::PeerSummary {
        name: "lb2".to_owned(),
        up: true,
        outbound: direction.clone(),
        inbound: direction,
        replicas: 80,
        ..query::PeerSummary::default()
    };
    query::Summary { peers: vec![peer], max_flows: 1_000, ..query::Summary::default() }
}

fn answered(asked: &Query) -> query::Answer {
    match asked {
        Query::Summary => query::Answer::Summary(in_sync()),
        Query::List { vip: Some(vip), .. } if vip != "web" => {
            query::Answer::Refused(format!("no VIP is called `{vip}`"))
        }
        Query::List { .. } => query::Answer::Flows(query::Flows {
            flows: vec![query::Flow {
                vip: "web".to_owned(),
                protocol: "tcp".into(),
                source: "[2001:db8::7]:40000".parse().expect("an address"),
                destination: "[2001:db8::10]:80".parse().expect("an address"),
                backend: None,
                owner: "lb2".to_owned(),
                class: "tcp-open".into(),
                here: true,
            }],
            more: false,
        }),
        Query::Explain { .. } => query::Answer::Explained(query::Explained {
            vip: Some("web".to_owned()),
            standing: query::Standing::Known,
            owner: Some("here".to_owned()),
            here: true,
            peers: vec![query::Survival { peer: "lb2".to_owned(), survives: true, why: None }],
            backend: None,
            seen_as: None,
        }),
    }
}

#[test]
fn peers_and_flows_are_tables_with_a_verdict_and_json() {
    let (agent, asked) = replicating(answered);
    let output = agent.ask(&["peers"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).starts_with("OK: 1/1 peer is heard, in sync both ways\n"), "{}", out(&output));
    assert!(out(&output).contains("our flows there"), "{}", out(&output));
    let output = agent.ask(&["peers", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&value["schema"], &value["peers"][0]["name"]), (&1.into(), &"lb2".into()));
    assert_eq!(value["sync"]["peers"][0]["outbound"]["equal_ms"], 1_200);

    let output = agent.ask(&["flows", "--vip", "web", "--limit", "7"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(out(&output).contains("tcp    [2001:db8::7]:40000  [2001:db8::10]:80"), "{}", out(&output));
    let list = Query::List { vip: Some("web".to_owned()), limit: 7 };
    assert!(asked.lock().expect("no panic").contains(&list), "{asked:?}");
    let output = agent.ask(&["flows", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&value["schema"], &value["flows"][0]["owner"]), (&1.into(), &"lb2".into()));
    assert_eq!((&value["more"], &value["sync"]["max_flows"]), (&false.into(), &1_000.into()));

    let output = agent.ask(&["flows", "--vip", "a b&c"]);
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("no VIP is called `a b&c`"), "{}", err(&output));
}

#[test]
fn a_flow_is_explained_however_it_is_written_and_a_vip_too() {
    let (agent, asked) = replicating(answered);
    let ways: [&[&str]; 3] = [
        &["explain", "tcp", "198.51.100.7:40000", "192.0.2.10:80"],
        &["explain", "tcp 198.51.100.7:40000 > 192.0.2.10:80"],
        &["explain", "tcp 6 9 ESTABLISHED src=198.51.100.7 dst=192.0.2.10 sport=40000 dport=80 src=10.2.0.21"],
    ];
    for words in ways {
        asked.lock().expect("no panic").clear();
        let output = agent.ask(words);
        assert_eq!(code(&output), 0, "{}", err(&output));
        let verdict = "YES: tcp 198.51.100.7:40000 192.0.2.10:80: it would go on at lb2 without this node\n";
        assert!(out(&output).starts_with(verdict), "{}", out(&output));
        let asked = asked.lock().expect("no panic");
        let Some(Query::Explain { flow, .. }) = asked.first() else { panic!("{asked:?}") };
        assert_eq!((flow.source.to_string().as_str(), flow.destination.port()), ("198.51.100.7:40000", 80));
    }
    let output = agent.ask(&["explain", "--json", "udp [2001:db8::7]:5000 [2001:db8::10]:53"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&value["schema"], &value["flow"]), (&1.into(), &"udp [2001:db8::7]:5000 [2001:db8::10]:53".into()));
    assert_eq!(value["explained"]["peers"][0]["survives"], true);

    for words in [&["explain", "web"][..], &["explain"]] {
        let output = agent.ask(words);
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert!(out(&output).starts_with("web: owner lb1 (this node); active here for 1m01s\n"), "{}", out(&output));
    }
    let output = agent.ask(&["explain", "web", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&value["node"], &value["vips"][0]["name"]), (&"lb1".into(), &"web".into()));
}

#[test]
fn what_cannot_be_explained_says_what_is_wrong_and_ends_with_4() {
    let (agent, asked) = replicating(answered);
    let output = agent.ask(&["explain", "wbe"]);
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("no VIP is called `wbe` here, only web"), "{}", err(&output));
    // No agent is needed to see that this is no flow.
    let output = holdfast(&["explain", "tcp", "198.51.100.7", "192.0.2.10:80", "--runtime-dir", "/nonexistent"]);
    assert_eq!(code(&output), 4);
    assert!(err(&output).contains("`198.51.100.7` is no client's address with a port"), "{}", err(&output));
    assert!(asked.lock().expect("no panic").is_empty());
}

#[test]
fn without_statesync_that_is_said_and_is_no_error() {
    let agent = Agent::start(|_| vec![Answer::Status(Box::new(with_web()))]);
    for (words, part) in [
        (&["peers"][..], "no flows are replicated (there is no [statesync])"),
        (&["flows"], "there is no [statesync] in the configuration"),
        (
            &["explain", "tcp 198.51.100.7:40000 192.0.2.10:80"],
            "NO: tcp 198.51.100.7:40000 192.0.2.10:80: no flows are",
        ),
    ] {
        let output = agent.ask(words);
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert!(out(&output).contains(part), "{words:?}: {}", out(&output));
    }
    for words in [&["peers", "--json"][..], &["flows", "--json"], &["explain", "--json", "tcp 1.2.3.4:5 6.7.8.9:10"]] {
        let value: serde_json::Value = serde_json::from_slice(&agent.ask(words).stdout).expect("JSON");
        assert_eq!((&value["schema"], &value["sync"]), (&1.into(), &serde_json::Value::Null), "{words:?}");
    }
}

#[test]
fn a_thread_that_has_ended_is_unreachable_and_what_is_no_flow_is_refused_by_the_agent_too() {
    use std::io::{Read as _, Write as _};
    let (sync, questions) = SyncHandle::new();
    drop(questions);
    let agent = Agent::with_sync(|_| vec![Answer::Status(Box::new(with_web()))], Some(sync));
    let output = agent.ask(&["flows"]);
    assert_eq!(code(&output), 3);
    assert!(err(&output).contains("stopping"), "{}", err(&output));
    let get = |target: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(agent.folder.path("holdfast.sock")).expect("there");
        let _ = write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let refused = get("/v1/explain?flow=tcp%20web");
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("`web` is no client's"), "{refused}");
    for target in ["/v1/explain", "/v1/flows?limit=-1", "/v1/flows?vpi=web", "/v1/explain?flow=%FF"] {
        assert!(get(target).starts_with("HTTP/1.1 400"), "{target}");
    }
}

//! What it costs: `make balance`.

use crate::fabric::{Fabric, VIP};
use crate::{change, load, service, spread, table, udp_backends, vip};
use holdfast::os::nft::Balancer;
use holdfast_node::config::Transport;
use std::fs;
use std::time::{Duration, Instant};

#[test]
#[ignore = "a measurement"]
fn balance_cost() {
    let fabric = Fabric::new();
    for (sets, services) in [(100, 100), (20, 1_000)] {
        let (services, tables) = spread(sets, services);
        let from = tables[0].clone();
        let to = table(&from.backends, &[1, 1, 0, 1, 1]);
        let (mut loads, mut changes) = (Vec::new(), Vec::new());
        fabric.host.enter(|| {
            let mut kernel = Balancer::open().expect("open");
            for _ in 0..10 {
                let wanted = load(services.clone(), tables.clone());
                let begun = Instant::now();
                kernel.apply(&wanted).expect("loaded");
                loads.push(begun.elapsed());
                for (a, b) in [(&from, &to), (&to, &from)] {
                    let wanted = change(0, a, b);
                    let begun = Instant::now();
                    kernel.apply(&wanted).expect("changed");
                    changes.push(begun.elapsed());
                }
            }
        });
        for (what, mut took) in [("load", loads), ("change one", changes)] {
            took.sort();
            let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
            println!("{sets} sets, {} services: {what}: median {median:?}, worst {worst:?}", services.len());
        }
    }
}

/// Our table beside one written by hand for the same backends, in turns: time for a number of exchanges on one flow
/// each, and the ratio of each pair. The upper bound is the fifteenth of twenty (95 %, one-sided, distribution-free).
#[test]
#[ignore = "a measurement"]
fn forwarding_cost() {
    const PAIRS: usize = 20;
    const EXCHANGES: usize = 20_000;
    let fabric = Fabric::new();
    fabric.hold();
    let backends = udp_backends(&fabric);
    let choices: Vec<String> =
        backends.iter().zip(0..).map(|(b, n)| format!("{n} : {} . {}", b.ip(), b.port())).collect();
    let by_hand = format!(
        "table ip byhand {{\n chain pre {{ type nat hook prerouting priority dstnat;\n ip daddr {VIP} udp dport 53 dnat ip to \
         jhash ip saddr . udp sport mod 3 map {{ {} }}\n }}\n chain post {{ type nat hook postrouting priority srcnat;\n \
         ip daddr 10.9.2.0/24 udp dport 53 masquerade\n }}\n}}\n",
        choices.join(", ")
    );
    let file = std::env::temp_dir().join(format!("{}.nft", fabric.host.0));
    fs::write(&file, by_hand).expect("writable");
    let ours = load(vec![service(vip(), Transport::Udp, 53, 0)], vec![table(&backends, &[1; 3])]);
    let measure = |embedded: bool, port: u16| -> Duration {
        fabric.host.exec("nft flush ruleset");
        fabric.host.exec("conntrack -F");
        if embedded {
            fabric.host.enter(|| Balancer::open().expect("open").apply(&ours).expect("loaded"));
        } else {
            fabric.host.exec(&format!("nft -f {}", file.display()));
        }
        fabric.client.enter(|| {
            let socket = std::net::UdpSocket::bind(("10.9.1.2", port)).expect("free");
            socket.connect((VIP, 53)).expect("connected");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
            let mut buffer = [0; 8];
            let mut exchange = || {
                socket.send(b"?").expect("sent");
                socket.recv(&mut buffer).expect("answered");
            };
            (0..1_000).for_each(|_| exchange());
            let begun = Instant::now();
            (0..EXCHANGES).for_each(|_| exchange());
            begun.elapsed()
        })
    };
    let mut ratios: Vec<f64> = (0..PAIRS)
        .map(|pair| {
            let port = 30_000 + u16::try_from(pair).expect("few");
            let first = pair % 2 == 0;
            let (a, b) = (measure(first, port), measure(!first, port));
            let (ours, theirs) = if first { (a, b) } else { (b, a) };
            println!("pair {pair}: ours {ours:?}, by hand {theirs:?}");
            ours.as_secs_f64() / theirs.as_secs_f64()
        })
        .collect();
    let _ = fs::remove_file(file);
    ratios.sort_by(f64::total_cmp);
    println!("ratio: median {:.3}, upper 95 % bound {:.3}", (ratios[9] + ratios[10]) / 2.0, ratios[14]);
}

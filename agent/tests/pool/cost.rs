//! What it costs: `make balance`.

use crate::alone::Agent;
use crate::fabric::{Fabric, VIP};
use crate::figures::{self, median, milliseconds};
use crate::turn::{beside_loads, guard, runtime};
use crate::{change, load, service, spread, table, udp_backends, vip};
use holdfast::os::nft::Balancer;
use holdfast::reconcile::Executor;
use holdfast_node::config::Transport;
use serde_json::{Value, json};
use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const LOAD_MAX_MS: f64 = 1_000.0;
const CHANGE_MAX_MS: f64 = 50.0;

#[test]
#[ignore = "a measurement"]
fn balance_cost() {
    let fabric = Fabric::new();
    let mut units = Vec::new();
    for (sets, services) in [(100, 100), (20, 1_000)] {
        let (list, tables) = spread(sets, services);
        let from = tables[0].clone();
        let to = table(&from.backends, &[1, 1, 0, 1, 1]);
        let (mut loads, mut changes) = (Vec::new(), Vec::new());
        let begun_with = figures::load();
        fabric.host.enter(|| {
            let mut kernel = Balancer::open().expect("open");
            for _ in 0..10 {
                let wanted = load(list.clone(), tables.clone());
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
        let (loads, changes) = (milliseconds(&loads), milliseconds(&changes));
        let worst = |sorted: &[f64]| sorted.last().copied().unwrap_or(f64::NAN);
        units.push(json!({
            "pass": worst(&loads) <= LOAD_MAX_MS && worst(&changes) <= CHANGE_MAX_MS,
            "report": {
                "case": "load", "sets": sets, "services": services, "load_average": begun_with,
                "load_max_ms": LOAD_MAX_MS, "change_max_ms": CHANGE_MAX_MS,
                "load_median_ms": median(&loads), "change_median_ms": median(&changes),
                "load_ms": loads, "change_ms": changes,
            },
        }));
    }
    units.push(beside_a_load(&fabric));
    figures::record("balance", &units);
}

/// How long the protocol thread is kept by setting the guard while somebody loads a thousand services again and again.
fn beside_a_load(fabric: &Fabric) -> Value {
    const KEPT_MAX_MS: f64 = 20.0;
    let begun_with = figures::load();
    let kept: Vec<Duration> = fabric.host.enter(|| {
        let runtime = runtime();
        let mut executor = runtime.block_on(async { Executor::new() }).expect("open");
        // The thread is there from now on.
        runtime.block_on(guard(&mut executor));
        beside_loads(|_| {
            let one = |_| {
                std::thread::sleep(Duration::from_millis(3));
                runtime.block_on(guard(&mut executor))
            };
            (0..100).map(one).collect()
        })
    });
    let kept = milliseconds(&kept);
    let worst = kept.last().copied().unwrap_or(f64::NAN);
    json!({
        "pass": worst <= KEPT_MAX_MS,
        "report": {
            "case": "guard-beside-a-load", "services": 1_000, "load_average": begun_with, "kept_max_ms": KEPT_MAX_MS,
            "kept_median_ms": median(&kept), "kept_worst_ms": worst, "kept_ms": kept,
        },
    })
}

/// Upper bound of the median's confidence interval: the fifteenth of twenty (95 %, one-sided, distribution-free).
const PAIRS: usize = 20;
const BOUND: usize = 14;
const RATIO_MAX: f64 = 1.05;

/// Our table beside one written by hand for the same backends, in turns: time for a number of exchanges on one flow, and
/// for as many first exchanges of flows. Both are held to the limit: it is one for the cost of forwarding, and a flow's
/// first packet, the only one that meets a table, is forwarded too.
#[test]
#[ignore = "a measurement"]
fn forwarding_cost() {
    let fabric = Fabric::new();
    fabric.hold();
    let bench = Bench::new(&fabric);
    let begun_with = figures::load();
    let cases: [(&str, Measure); 2] = [("packets of a flow", exchanges), ("first packets of flows", beginnings)];
    let units: Vec<Value> = cases
        .iter()
        .map(|(case, measure)| {
            let mut pairs = Vec::new();
            for pair in 0..PAIRS {
                let first = pair % 2 == 0;
                let (a, b) = (bench.run(first, *measure), bench.run(!first, *measure));
                let (ours, by_hand) = if first { (a, b) } else { (b, a) };
                pairs.push(json!({"ours_ms": ours.as_secs_f64() * 1e3, "by_hand_ms": by_hand.as_secs_f64() * 1e3,
                    "ratio": ours.as_secs_f64() / by_hand.as_secs_f64()}));
            }
            let mut ratios: Vec<f64> = pairs.iter().filter_map(|pair| pair["ratio"].as_f64()).collect();
            ratios.sort_by(f64::total_cmp);
            json!({
                "pass": ratios[BOUND] <= RATIO_MAX,
                "report": {
                    "case": case, "load_average": begun_with, "ratio_max": RATIO_MAX, "ratio_median": median(&ratios),
                    "ratio_upper_95": ratios[BOUND], "pairs": pairs,
                },
            })
        })
        .collect();
    figures::record("forwarding", &units);
}

/// From this port of the client on.
type Measure = fn(u16) -> Duration;

struct Bench<'a> {
    fabric: &'a Fabric,
    by_hand: std::path::PathBuf,
    ours: holdfast_node::pool::Balance,
}

impl<'a> Bench<'a> {
    fn new(fabric: &'a Fabric) -> Self {
        let backends = udp_backends(fabric);
        let choices: Vec<String> =
            backends.iter().zip(0..).map(|(b, n)| format!("{n} : {} . {}", b.ip(), b.port())).collect();
        let text = format!(
            "table ip byhand {{\n chain pre {{ type nat hook prerouting priority dstnat;\n ip daddr {VIP} udp dport 53 dnat ip to \
             jhash ip saddr . udp sport mod 3 map {{ {} }}\n }}\n chain post {{ type nat hook postrouting priority srcnat;\n \
             ip daddr 10.9.2.0/24 udp dport 53 masquerade\n }}\n}}\n",
            choices.join(", ")
        );
        let by_hand = std::env::temp_dir().join(format!("{}.nft", fabric.host.name));
        fs::write(&by_hand, text).expect("writable");
        let ours = load(vec![service(vip(), Transport::Udp, 53, 0)], vec![table(&backends, &[1; 3])]);
        Self { fabric, by_hand, ours }
    }

    fn run(&self, embedded: bool, measure: Measure) -> Duration {
        let Fabric { host, client, .. } = self.fabric;
        host.exec("nft flush ruleset");
        if embedded {
            host.enter(|| Balancer::open().expect("open").apply(&self.ours).expect("loaded"));
        } else {
            host.exec(&format!("nft -f {}", self.by_hand.display()));
        }
        host.exec("conntrack -F");
        client.enter(|| measure(30_000))
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.by_hand);
    }
}

fn exchange(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(("10.9.1.2", port)).expect("free");
    socket.connect((VIP, 53)).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
    socket
}

fn ask(socket: &UdpSocket) {
    socket.send(b"?").expect("sent");
    socket.recv(&mut [0; 8]).expect("answered");
}

fn exchanges(port: u16) -> Duration {
    let socket = exchange(port);
    (0..1_000).for_each(|_| ask(&socket));
    let begun = Instant::now();
    (0..20_000).for_each(|_| ask(&socket));
    begun.elapsed()
}

fn beginnings(port: u16) -> Duration {
    (0..200).for_each(|n| ask(&exchange(port + n)));
    let begun = Instant::now();
    (200..8_000).for_each(|n| ask(&exchange(port + n)));
    begun.elapsed()
}

/// What the whole agent costs, idle, with ten checks twice a second, and with none.
#[test]
#[ignore = "a measurement"]
fn idle_cost() {
    const OVER: Duration = Duration::from_secs(30);
    const SHARE_MAX: f64 = 0.5;
    let fabric = Fabric::new();
    let begun_with = figures::load();
    let [without, with] = [0, 10].map(|checks| {
        let mut agent = Agent::checking(&fabric, checks);
        agent.start();
        agent.settle(checks);
        std::thread::sleep(Duration::from_secs(3));
        let (begun, before) = (Instant::now(), agent.spent());
        std::thread::sleep(OVER);
        let share = (agent.spent() - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        agent.stop();
        share
    });
    let unit = json!({
        "pass": with < SHARE_MAX,
        "report": {
            "case": "idle, 10 HTTP checks at 500 ms, adverts at 1 s", "load_average": begun_with,
            "over_s": OVER.as_secs(), "cpu_percent_max": SHARE_MAX, "cpu_percent": with, "cpu_percent_without_checks": without,
        },
    });
    figures::record("checks", &[unit]);
}

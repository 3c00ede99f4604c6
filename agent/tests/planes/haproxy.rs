//! HAProxy.

use super::scene::{BACKEND, LONG, PORT, Scene, VIP, answers, connect, get, scene, signal, silent};
use holdfast_node::config::{Admin, Balancer, BalancerKind};
use holdfast_node::io::{Level, Pool};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM, SIGUSR2};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// `extra`: lines of the backend.
fn config(scene: &Scene, maxconn: u32, extra: &str) -> String {
    let text = format!(
        "global\n  maxconn {maxconn}\n  stats socket {}/admin.sock level admin\ndefaults\n  mode http\n  \
         timeout connect 1s\n  timeout client 30s\n  timeout server 30s\nfrontend f\n  bind {VIP}:{PORT} backlog 64\n  \
         monitor-uri /ready\n  monitor fail if {{ var(proc.stopping) -m bool }}\n  default_backend b\nbackend b\n{extra}",
        scene.dir.display()
    );
    scene.write("haproxy.cfg", &text)
}

const STATIC: &str = "  http-request return status 200\n";

/// A master and its worker, or one process.
fn start(scene: &mut Scene, master: bool, file: &str) -> (u32, Balancer) {
    let socket = scene.path("master.sock");
    let cli = socket.display().to_string();
    let mode: &[&str] = if master { &["-W", "-S", &cli] } else { &["-db"] };
    let pid = scene.start(Path::new("haproxy"), &[mode, &["-f", file]].concat());
    let mut balancer = Scene::balancer(BalancerKind::Haproxy, Some(pid), Path::new("/"));
    balancer.admin = Some(Admin::Socket(scene.path("admin.sock")));
    balancer.master = master.then_some(socket);
    scene.watch(&balancer, Some(pid));
    (pid, balancer)
}

async fn started(scene: &mut Scene, master: bool) -> (u32, Balancer) {
    let file = config(scene, 100, STATIC);
    let started = start(scene, master, &file);
    scene.well().await;
    if master {
        listens(scene).await;
    }
    started
}

/// Until the master listens: its worker may be well before, and a signal that comes while the master starts is lost.
async fn listens(scene: &mut Scene) {
    let socket = scene.path("master.sock");
    let ask = async || {
        let mut stream = UnixStream::connect(&socket).await.ok()?;
        stream.write_all(b"show proc\n").await.ok()?;
        stream.shutdown().await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.contains("master").then_some(())
    };
    let end = Instant::now() + LONG;
    // One that it inherited may close what came in while it started.
    while !matches!(tokio::time::timeout(LONG, ask()).await, Ok(Some(()))) {
        assert!(Instant::now() < end, "its master never answers");
        scene.pass(Duration::from_millis(10)).await;
    }
}

#[test]
fn killed_is_gone() {
    scene("killed", async |mut scene| {
        let (pid, _) = started(&mut scene, false).await;
        signal(pid, SIGKILL);
        assert_eq!(scene.gone().await, format!("process {pid} ended"));
    });
}

#[test]
fn a_killed_worker_or_master_is_gone() {
    for which in ["worker", "master"] {
        scene(which, async |mut scene| {
            let (master, _) = started(&mut scene, true).await;
            let worker = scene.serving("a worker", |pids| pids.len() == 1 && pids[0] != master).await[0];
            signal(if which == "worker" { worker } else { master }, SIGKILL);
            let why = scene.gone().await;
            assert!(why.contains(" process ") && why.contains(" ended"), "{why}");
        });
    }
}

#[test]
fn an_orderly_end_is_an_end_too() {
    scene("term", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        signal(pid, SIGTERM);
        scene.gone().await;
    });
}

#[test]
fn stopped_is_silent_stopped_and_without_progress_and_comes_back() {
    scene("stop", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        let worker = scene.serving("a worker", |pids| pids.len() == 1 && pids[0] != pid).await[0];
        signal(worker, SIGSTOP);
        let first = scene.report("silent and stopped", |r| silent(r) && r.stopped).await;
        let second = scene.report("again", |r| silent(r) && r.stopped).await;
        assert_eq!(first.cpu_ticks, second.cpu_ticks);
        scene.never_gone();
        signal(worker, SIGCONT);
        scene.report("it goes on", |r| answers(r) && !r.stopped).await;
    });
}

#[test]
fn twenty_reloads_in_a_row_are_no_death() {
    scene("reload", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        for n in 1..=20 {
            signal(pid, SIGUSR2);
            // A second signal while it starts from the first is lost.
            scene.report("a new generation", |r| answers(r) && r.reload.generation >= n).await;
            assert_eq!(get().await, Some(200));
        }
        let last = scene.report("the old ones ended", |r| r.reload.old.is_empty()).await;
        assert_eq!((last.reload.generation, last.reload.failed, last.supervised), (20, 0, true));
        scene.never_gone();
    });
}

#[test]
fn an_old_worker_that_a_client_keeps_is_told_and_its_end_is_no_event() {
    scene("old", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        let before = scene.serving("a worker", |pids| pids.len() == 1 && pids[0] != pid).await;
        // A request that isn't finished holds the worker.
        let mut client = connect().await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.expect("open");
        scene.report("accepted", |r| r.connections.is_some_and(|l| l.now >= 1)).await;
        signal(pid, SIGUSR2);
        let during = scene.report("an old worker", |r| !r.reload.old.is_empty()).await;
        assert_eq!(during.reload.old.iter().map(|w| w.pid).collect::<Vec<_>>(), before);
        assert!(during.reload.running);
        drop(client);
        scene.report("it ended", |r| r.reload.old.is_empty()).await;
        scene.never_gone();
    });
}

#[test]
fn a_failed_reload_is_counted_until_one_succeeds() {
    scene("failed", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        config(&scene, 100, "  nonsense\n");
        signal(pid, SIGUSR2);
        let failed = scene.report("the failure", |r| r.reload.failed == 1).await;
        assert!(answers(&failed) && failed.reload.generation == 0, "{failed:?}");
        assert_eq!(get().await, Some(200));
        config(&scene, 100, STATIC);
        signal(pid, SIGUSR2);
        scene
            .report("it runs what it was told", |r| answers(r) && r.reload.failed == 0 && r.reload.generation == 2)
            .await;
        scene.never_gone();
    });
}

#[test]
fn a_failed_reload_stands_and_the_worker_answers_while_the_master_says_nothing() {
    scene("mstop", async |mut scene| {
        let (pid, _) = started(&mut scene, true).await;
        config(&scene, 100, "  nonsense\n");
        signal(pid, SIGUSR2);
        scene.report("the failure", |r| r.reload.failed == 1).await;
        signal(pid, SIGSTOP);
        // Looks that began before don't count.
        scene.pass(Duration::from_secs(1)).await;
        for _ in 0..3 {
            let report = scene.report("a look", |_| true).await;
            assert!(answers(&report) && report.reload.failed == 1, "{report:?}");
        }
        signal(pid, SIGCONT);
        config(&scene, 100, STATIC);
        signal(pid, SIGUSR2);
        scene.report("it runs what it was told", |r| answers(r) && r.reload.failed == 0).await;
        scene.never_gone();
    });
}

#[test]
fn at_maxconn_its_limit_is_reached_connections_wait_and_it_answers() {
    scene("full", async |mut scene| {
        let file = config(&scene, 4, STATIC);
        start(&mut scene, false, &file);
        scene.well().await;
        let mut clients = Vec::new();
        for _ in 0..7 {
            clients.push(connect().await);
        }
        let full = scene
            .report("full", |r| r.connections == Some(Level { now: 4, limit: 4 }) && r.queue.is_some_and(|q| q.now > 0))
            .await;
        assert!(answers(&full) && !full.stopped, "{full:?}");
        assert!(full.files.is_some_and(|f| f.now > 4 && f.now < f.limit), "{full:?}");
        drop(clients);
        scene.report("it took them", |r| r.queue.is_some_and(|q| q.now == 0)).await;
    });
}

#[test]
fn backends_that_are_down_are_counted_and_it_serves_on() {
    scene("down", async |mut scene| {
        let server = |n: u32, port: u16| format!("  server s{n} 127.0.0.1:{port} check inter 100ms fall 1 rise 1\n");
        let file = config(&scene, 100, &[server(1, BACKEND), server(2, BACKEND + 1)].concat());
        let backend = scene.backend().await;
        start(&mut scene, false, &file);
        scene.report("one is up", |r| r.backends == Some(Pool { up: 1, total: 2 })).await;
        backend.abort();
        let none = scene.report("none is up", |r| r.backends == Some(Pool { up: 0, total: 2 })).await;
        assert!(answers(&none));
        assert_eq!(get().await, Some(503));
        scene.never_gone();
    });
}

#[test]
fn told_to_leave_it_fails_its_monitor_page_and_serves_on_and_told_to_shed_it_ends() {
    scene("acts", async |mut scene| {
        let (pid, balancer) = started(&mut scene, true).await;
        let plane = Scene::acts(&balancer);
        let limit = Duration::from_secs(10);
        for act in plane.leave() {
            act.perform(limit).await.expect("done");
        }
        assert_eq!(monitor().await, Some(503));
        assert_eq!(get().await, Some(200));
        for act in plane.stay() {
            act.perform(limit).await.expect("done");
        }
        assert_eq!(monitor().await, Some(200));
        let mut client = connect().await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.expect("open");
        scene.report("accepted", |r| r.connections.is_some_and(|l| l.now >= 1)).await;
        let tree = scene.tree.as_ref().expect("watched").borrow().clone().expect("found");
        assert_eq!(tree.main.pid, pid);
        for act in plane.shed(&tree) {
            act.perform(limit).await.expect("done");
        }
        scene.report("it says that it leaves", |r| r.leaving).await;
        drop(client);
        scene.gone().await;
    });
}

async fn monitor() -> Option<u16> {
    let mut client = connect().await;
    client.write_all(b"GET /ready HTTP/1.0\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

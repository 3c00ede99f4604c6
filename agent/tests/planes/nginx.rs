//! nginx.

use super::scene::{ADMIN, PORT, Scene, VIP, answers, connect, get, scene, signal, silent};
use holdfast_node::config::{Admin, Balancer, BalancerKind, HttpAt};
use holdfast_node::io::Level;
use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGKILL, SIGQUIT, SIGSTOP, SIGUSR1};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

fn config(scene: &Scene, workers: u32, connections: u32, extra: &str) -> String {
    let dir = scene.dir.display();
    let text = format!(
        "daemon off;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\nworker_processes {workers};\n\
         events {{ worker_connections {connections}; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {dir}/body;\n  \
         proxy_temp_path {dir}/proxy;\n  fastcgi_temp_path {dir}/fastcgi;\n  uwsgi_temp_path {dir}/uwsgi;\n  \
         scgi_temp_path {dir}/scgi;\n  server {{ listen {VIP}:{PORT}; location / {{ return 200; }} }}\n  \
         server {{ listen 127.0.0.1:{ADMIN}; location = /status {{ stub_status; }} }}\n{extra}}}\n"
    );
    scene.write("nginx.conf", &text)
}

fn start(scene: &mut Scene, file: &str) -> (u32, Balancer) {
    let pid = scene.start(Path::new("/usr/sbin/nginx"), &["-c", file]);
    let mut balancer = Scene::balancer(BalancerKind::Nginx, Some(pid), Path::new("/"));
    let at = HttpAt::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN)));
    balancer.admin = Some(Admin::Http { at, path: "/status".to_owned() });
    scene.watch(&balancer, Some(pid));
    (pid, balancer)
}

/// The master and its workers.
async fn started(scene: &mut Scene, workers: u32) -> (u32, Vec<u32>) {
    let file = config(scene, workers, 64, "");
    let (pid, _) = start(scene, &file);
    let count = workers as usize;
    let serving = scene.serving("workers", |pids| pids.len() == count && !pids.contains(&pid)).await;
    scene.well().await;
    (pid, serving)
}

#[test]
fn all_killed_is_gone() {
    scene("nkilled", async |mut scene| {
        let (pid, workers) = started(&mut scene, 2).await;
        signal(pid, SIGKILL);
        workers.iter().for_each(|worker| signal(*worker, SIGKILL));
        scene.gone().await;
    });
}

#[test]
fn an_orderly_end_is_an_end_and_is_seen_as_leaving_while_a_client_holds_it_up() {
    scene("nquit", async |mut scene| {
        let (pid, _) = started(&mut scene, 1).await;
        let mut client = connect().await;
        tokio::io::AsyncWriteExt::write_all(&mut client, b"GET / HTTP/1.1\r\n").await.expect("open");
        // Accepted, or it would be reset.
        scene.report("accepted", |r| r.connections.is_some_and(|l| l.now >= 2)).await;
        signal(pid, SIGQUIT);
        let leaving = scene.report("it leaves", |r| r.leaving).await;
        assert!(!leaving.stopped);
        scene.never_gone();
        drop(client);
        scene.gone().await;
    });
}

#[test]
fn a_killed_worker_is_replaced_and_that_is_no_event() {
    scene("nworker", async |mut scene| {
        let (_, mut workers) = started(&mut scene, 1).await;
        for _ in 0..3 {
            let dead = workers[0];
            signal(dead, SIGKILL);
            workers = scene.serving("a new worker", |pids| pids.len() == 1 && pids[0] != dead).await;
            assert_eq!(get().await, Some(200));
        }
        let report = scene.well().await;
        assert_eq!((report.supervised, report.reload.generation), (true, 0));
        scene.never_gone();
    });
}

#[test]
fn workers_without_a_master_serve_on_unsupervised_until_the_last_is_gone() {
    scene("norphans", async |mut scene| {
        let (pid, workers) = started(&mut scene, 2).await;
        signal(pid, SIGKILL);
        let orphaned = scene.report("orphaned", |r| !r.supervised).await;
        assert!(answers(&orphaned));
        scene.pass(Duration::from_millis(500)).await;
        scene.never_gone();
        assert_eq!(get().await, Some(200));
        signal(workers[0], SIGKILL);
        scene.pass(Duration::from_millis(300)).await;
        scene.never_gone();
        signal(workers[1], SIGKILL);
        scene.gone().await;
    });
}

#[test]
fn stopped_is_silent_stopped_and_without_progress() {
    scene("nstop", async |mut scene| {
        let (_, workers) = started(&mut scene, 1).await;
        signal(workers[0], SIGSTOP);
        let first = scene.report("silent and stopped", |r| silent(r) && r.stopped).await;
        let second = scene.report("again", |r| silent(r) && r.stopped).await;
        assert_eq!(first.cpu_ticks, second.cpu_ticks);
        scene.never_gone();
        signal(workers[0], SIGCONT);
        scene.report("it goes on", |r| answers(r) && !r.stopped).await;
    });
}

#[test]
fn twenty_reloads_in_a_row_are_no_death_and_a_failed_one_is_told_until_one_succeeds() {
    scene("nreload", async |mut scene| {
        let (pid, mut workers) = started(&mut scene, 1).await;
        for _ in 0..20 {
            let old = workers.clone();
            signal(pid, SIGHUP);
            workers = scene.serving("new workers", |pids| pids.len() == 1 && *pids != old[..]).await;
            assert_eq!(get().await, Some(200));
        }
        scene.report("none failed", |r| answers(r) && r.reload.failed == 0 && r.reload.old.is_empty()).await;
        config(&scene, 1, 64, "nonsense;");
        signal(pid, SIGHUP);
        let failed = scene.report("the failure", |r| r.reload.failed == 1).await;
        assert!(answers(&failed) && failed.supervised && !failed.leaving, "{failed:?}");
        assert_eq!(scene.serving("workers", |pids| pids.len() == 1).await, workers);
        config(&scene, 1, 64, "");
        signal(pid, SIGHUP);
        scene.report("it runs what it was told", |r| answers(r) && r.reload.failed == 0).await;
        scene.never_gone();
    });
}

#[test]
fn a_configuration_that_is_only_read_or_tested_is_no_failed_reload() {
    scene("nread", async |mut scene| {
        let (pid, _) = started(&mut scene, 1).await;
        scene.pass(Duration::from_secs(1)).await;
        let file = config(&scene, 1, 64, "nonsense;");
        let log = std::fs::File::create(scene.path("test.log")).expect("writable");
        let mut test = std::process::Command::new("/usr/sbin/nginx");
        assert!(!test.args(["-t", "-c", &file]).stderr(log).status().expect("it is installed").success());
        scene.pass(Duration::from_secs(8)).await;
        // Its logs are rotated.
        signal(pid, SIGUSR1);
        let end = std::time::Instant::now() + Duration::from_secs(8);
        while std::time::Instant::now() < end {
            scene.report("none failed", |r| r.reload.failed == 0).await;
        }
        scene.never_gone();
    });
}

#[test]
fn an_old_worker_that_a_client_keeps_is_told() {
    scene("nold", async |mut scene| {
        let (pid, before) = started(&mut scene, 1).await;
        let mut client = connect().await;
        tokio::io::AsyncWriteExt::write_all(&mut client, b"GET / HTTP/1.1\r\n").await.expect("open");
        scene.report("accepted", |r| r.connections.is_some_and(|l| l.now >= 2)).await;
        signal(pid, SIGHUP);
        let during = scene.report("an old worker", |r| !r.reload.old.is_empty() && r.reload.generation == 1).await;
        assert_eq!(during.reload.old.iter().map(|w| w.pid).collect::<Vec<_>>(), before);
        assert!(during.reload.running && !during.leaving);
        drop(client);
        scene.report("it ended", |r| r.reload.old.is_empty()).await;
        scene.never_gone();
    });
}

#[test]
fn connections_beyond_its_limit_show_that_it_is_reached() {
    scene("nfull", async |mut scene| {
        let file = config(&scene, 1, 16, "");
        start(&mut scene, &file);
        scene.well().await;
        // A request that isn't finished holds its connection; those that are idle it would close.
        let mut clients = Vec::new();
        let flood = async {
            loop {
                let mut client = connect().await;
                // Refused already: then it has none left.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut client, b"GET / HTTP/1.1\r\n").await;
                clients.push(client);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let full = |r: &holdfast_node::io::PlaneReport| {
            answers(r) && r.connections.is_some_and(|Level { now, limit }| limit > 0 && now >= limit)
        };
        tokio::select! {
            () = flood => {}
            report = scene.report("full", full) => assert!(!report.stopped),
        }
        scene.never_gone();
    });
}

#[test]
fn a_new_master_in_the_pidfile_is_alive_as_itself() {
    scene("npidfile", async |mut scene| {
        let file = config(&scene, 1, 64, "");
        let first = scene.start(Path::new("/usr/sbin/nginx"), &["-c", &file]);
        let balancer = Scene::balancer(BalancerKind::Nginx, None, &scene.path("nginx.pid"));
        scene.watch(&balancer, None);
        scene.serving("a worker", |pids| pids.len() == 1 && pids[0] != first).await;
        scene.alive(first).await;
        signal(first, SIGQUIT);
        scene.gone().await;
        let second = scene.start(Path::new("/usr/sbin/nginx"), &["-c", &file]);
        scene.alive(second).await;
        scene.serving("a worker of the new one", |pids| pids.len() == 1 && pids[0] != second).await;
    });
}

//! Envoy.

use super::scene::{ADMIN, BACKEND, LONG, PORT, Scene, VIP, answers, connect, get, scene, signal, silent};
use holdfast_node::config::{Admin, Balancer, BalancerKind, HttpAt};
use holdfast_node::io::Pool;
use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGKILL, SIGSTOP, SIGTERM};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where tests/setup.sh puts it.
fn program() -> PathBuf {
    let target = || match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
    };
    let root = std::env::var_os("HOLDFAST_ENVOY").map_or_else(|| target().join("peers/envoy"), PathBuf::from);
    root.join("envoy")
}

fn config(scene: &Scene) -> String {
    let text = format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {ADMIN} }} }} }}
overload_manager:
  resource_monitors:
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: 4
static_resources:
  listeners:
  - name: front
    address: {{ socket_address: {{ address: {VIP}, port_value: {PORT} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: front
          cluster: back
  clusters:
  - name: back
    connect_timeout: 1s
    type: STATIC
    health_checks:
    - {{ timeout: 1s, interval: 0.2s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {{}}, no_traffic_interval: 0.2s }}
    load_assignment:
      cluster_name: back
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {BACKEND} }} }} }}
"#
    );
    scene.write("envoy.yaml", &text)
}

/// Starts each epoch when told to by SIGHUP, as Envoy's own hot restarter does, or `envoy-next` in its stead; writes
/// down which ended.
const RESTARTER: &str = r#"
n=0
again=1
trap 'again=1' HUP
while :; do
  if [ -n "$again" ]; then
    again=
    next="${0%/*}/envoy-next"
    if [ -e "$next" ]; then
      "$next" 1 &
    else
      { "$@" --restart-epoch "$n"; echo "$n" >>"$0.ended"; } &
      n=$((n+1))
    fi
  fi
  sleep 0.05
done
"#;

/// Below a restarter, or alone.
fn start(scene: &mut Scene, restarter: bool) -> (u32, Balancer) {
    let (program, file) = (program(), config(scene));
    let path = program.display().to_string();
    let args = ["-c", &file, "--concurrency", "1", "-l", "warning"];
    let times = ["--drain-time-s", "1", "--parent-shutdown-time-s", "2"];
    let pid = if restarter {
        let script = scene.write("restarter", RESTARTER);
        // A shell can't trap what was ignored when it began, and `nohup` hands that down to all that it starts.
        let shell = ["--default-signal=HUP", "/bin/sh", script.as_str(), path.as_str()];
        scene.start(Path::new("/usr/bin/env"), &[&shell, &args[..], &times[..]].concat())
    } else {
        scene.start(&program, &[&args[..], &times[..]].concat())
    };
    let mut balancer = Scene::balancer(BalancerKind::Envoy, Some(pid), Path::new("/"));
    let at = HttpAt::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN)));
    balancer.admin = Some(Admin::Http { at, path: "/".to_owned() });
    scene.watch(&balancer, Some(pid));
    (pid, balancer)
}

#[test]
fn killed_or_terminated_is_gone() {
    for end in [SIGKILL, SIGTERM] {
        scene("ekilled", async |mut scene| {
            let (pid, _) = start(&mut scene, false);
            scene.report("it answers", answers).await;
            signal(pid, end);
            assert_eq!(scene.gone().await, format!("process {pid} ended"));
        });
    }
}

#[test]
fn stopped_is_silent_stopped_and_without_progress() {
    scene("estop", async |mut scene| {
        let (pid, _) = start(&mut scene, false);
        scene.report("it answers", answers).await;
        signal(pid, SIGSTOP);
        let first = scene.report("silent and stopped", |r| silent(r) && r.stopped).await;
        let second = scene.report("again", |r| silent(r) && r.stopped).await;
        assert_eq!(first.cpu_ticks, second.cpu_ticks);
        scene.never_gone();
        signal(pid, SIGCONT);
        scene.report("it goes on", |r| answers(r) && !r.stopped).await;
    });
}

#[test]
fn backends_and_limits_are_told_and_health_checks_fail_when_told_to_leave() {
    scene("efigures", async |mut scene| {
        let backend = scene.backend().await;
        let (_, balancer) = start(&mut scene, false);
        scene.report("its backend is up", |r| answers(r) && r.backends == Some(Pool { up: 1, total: 1 })).await;
        assert_eq!(get().await, Some(200));
        let mut clients = Vec::new();
        // More than it may have: what it refuses shows the limit, again and again.
        let flood = async {
            loop {
                clients.push(connect().await);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = flood => {}
            full = scene.report("full", |r| r.connections.is_some_and(|l| l.limit > 0 && l.now >= l.limit)) => {
                assert!(answers(&full));
            }
        }
        drop(clients);
        backend.abort();
        scene.report("its backend is down", |r| answers(r) && r.backends == Some(Pool { up: 0, total: 1 })).await;
        let plane = Scene::acts(&balancer);
        let limit = Duration::from_secs(10);
        for act in plane.leave() {
            act.perform(limit).await.expect("done");
        }
        scene.report("it leaves", |r| r.leaving).await;
        for act in plane.stay() {
            act.perform(limit).await.expect("done");
        }
        scene.report("it stays", |r| answers(r) && !r.leaving).await;
        let tree = scene.tree.as_ref().expect("watched").borrow().clone().expect("found");
        scene.never_gone();
        for act in [plane.shed(&tree), plane.stop(&tree)].concat() {
            act.perform(limit).await.expect("done");
        }
        scene.gone().await;
    });
}

#[test]
fn a_hot_restart_is_no_death_and_one_that_fails_changes_nothing() {
    scene("erestart", async |mut scene| {
        let _backend = scene.backend().await;
        let (restarter, _) = start(&mut scene, true);
        scene.report("it answers", |r| answers(r) && r.backends == Some(Pool { up: 1, total: 1 })).await;
        let first = scene.serving("one epoch", |pids| pids.len() == 1 && pids[0] != restarter).await;
        signal(restarter, SIGHUP);
        let second = scene.serving("the next epoch", |pids| pids.len() == 1 && *pids != first[..]).await;
        scene.report("it says so", |r| answers(r) && r.reload.generation == 1 && r.reload.old.is_empty()).await;
        assert_eq!(get().await, Some(200));
        scene.never_gone();
        scene.write("envoy.yaml", "nonsense: [");
        signal(restarter, SIGHUP);
        ended(&mut scene, "2").await;
        scene.serving("the same epoch", |pids| *pids == second[..]).await;
        scene.report("it answers", |r| answers(r) && r.reload.generation == 1).await;
        scene.never_gone();
    });
}

#[test]
fn an_epoch_that_ends_before_it_serves_is_a_failed_reload_until_one_serves() {
    scene("efailed", async |mut scene| {
        let (restarter, _) = start(&mut scene, true);
        scene.report("it answers", answers).await;
        let first = scene.serving("one epoch", |pids| pids.len() == 1 && pids[0] != restarter).await;
        // Takes as long as one that has much to read.
        let next = scene.path("envoy-next");
        std::os::unix::fs::symlink("/bin/sleep", &next).expect("a fresh directory");
        signal(restarter, SIGHUP);
        let failed = scene.report("the failure", |r| r.reload.failed == 1).await;
        assert!(answers(&failed) && failed.reload.generation == 0, "{failed:?}");
        scene.serving("the same epoch", |pids| *pids == first[..]).await;
        std::fs::remove_file(next).expect("ours");
        signal(restarter, SIGHUP);
        scene
            .report("it runs what it was told", |r| answers(r) && r.reload.failed == 0 && r.reload.generation == 1)
            .await;
        scene.never_gone();
    });
}

/// Until the restarter saw this epoch end.
async fn ended(scene: &mut Scene, epoch: &str) {
    let file = scene.path("restarter.ended");
    let end = Instant::now() + LONG;
    while !std::fs::read_to_string(&file).unwrap_or_default().lines().any(|line| line == epoch) {
        assert!(Instant::now() < end, "epoch {epoch} never ends");
        scene.pass(Duration::from_millis(20)).await;
    }
}

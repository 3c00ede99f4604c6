//! Envoy below a hot restarter, with its admin side.

use super::plane::{Host, Plane, first_word_of_version};
use super::situation::{Expected, Reaction, Situation};
use crate::env::{Lacks, find_program};
use crate::fabric::{BACKEND_PORT, BACKENDS, VIP};
use crate::process::Pidfd;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Connections that it may have.
const CONNECTIONS: usize = 200;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 64;
/// Where its admin side is.
const ADMIN: u16 = 9901;

/// Starts each epoch when told to by SIGHUP, as Envoy's own hot restarter does, and ends with the last one. An epoch that
/// ends before it serves leaves the former one where it was.
const RESTARTER: &str = "\
n=0
start() { former=$last; \"$@\" --restart-epoch $n & last=$!; n=$((n+1)); }
trap 'start \"$@\"' HUP
start \"$@\"
while :; do
  wait \"$last\"; code=$?
  kill -0 \"$last\" 2>/dev/null && continue
  [ -n \"$former\" ] && kill -0 \"$former\" 2>/dev/null || exit \"$code\"
  last=$former former= n=$((n-1))
done
";

/// What runs it. A shell can't trap what was ignored when it began, and `nohup` hands that down to all that it starts.
const SHELL: [&str; 3] = ["env", "--default-signal=HUP", "/bin/sh"];

/// Epochs find each other by memory that all namespaces share, and leave it there when they are killed. `ip netns exec`
/// has given them a mount namespace: with a file system of its own there, that memory goes with the last of them.
const OWN_MEMORY: &str = "mount -t tmpfs shm /dev/shm && exec /bin/sh \"$@\"";

/// The plane.
#[derive(Debug)]
pub(super) struct Envoy;

/// Where tests/setup.sh puts it: below `target/`, beside the folder of this program.
fn program() -> Option<PathBuf> {
    let target = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("peers/envoy"));
    let root = std::env::var_os("HOLDFAST_ENVOY").map(PathBuf::from).or_else(target);
    root.map(|r| r.join("envoy")).filter(|p| p.is_file()).or_else(|| find_program("envoy"))
}

impl Envoy {
    fn post(host: Host<'_>, path: &str) -> Result<()> {
        const PATIENCE: Option<Duration> = Some(Duration::from_secs(2));
        host.ns().inside(|| {
            let mut c = TcpStream::connect(("127.0.0.1", ADMIN)).context("Envoy's admin side")?;
            c.set_read_timeout(PATIENCE)?;
            c.write_all(format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())?;
            let mut status = [0; 12];
            c.read_exact(&mut status).with_context(|| format!("Envoy's answer to {path}"))?;
            if status != *b"HTTP/1.1 200" {
                bail!("Envoy: {path}: {}", String::from_utf8_lossy(&status));
            }
            Ok(())
        })
    }

    /// How much of a resource is used, as its monitor reads it: 1 stops it accepting.
    fn pressure(host: Host<'_>, of_all: &str) -> Result<()> {
        // It watches for files that are moved here.
        let new = host.file("pressure.new");
        std::fs::write(&new, of_all)?;
        std::fs::rename(new, host.file("pressure")).context("move the file of Envoy's resource monitor")
    }
}

impl Plane for Envoy {
    fn version(&self) -> String {
        let out = program().map(|p| Command::new(p).arg("--version").output());
        // "… version: 0123abcd/1.40.0/Clean/RELEASE/BoringSSL"
        let version = out.and_then(|out| first_word_of_version(out, '/'));
        version.map_or_else(|| "Envoy".to_owned(), |v| format!("Envoy {v}"))
    }

    fn processes(&self) -> &'static [&'static str] {
        &["envoy", "sh"]
    }

    fn configure(&self, host: Host<'_>, broken: bool) -> Result<()> {
        if !host.file("pressure").exists() {
            Self::pressure(host, "0")?;
        }
        std::fs::write(host.file("restarter"), RESTARTER)?;
        let endpoint = |b: &std::net::Ipv4Addr| {
            format!(
                "        - endpoint: {{ address: {{ socket_address: {{ address: {b}, port_value: {BACKEND_PORT} }} }} }}\n"
            )
        };
        let endpoints: String = BACKENDS.iter().map(endpoint).collect();
        let listener = |name: &str, address: std::net::Ipv4Addr| {
            format!(
                r#"  - name: {name}
    address: {{ socket_address: {{ address: {address}, port_value: 80 }} }}
    tcp_backlog_size: {BACKLOG}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            response_headers_to_add:
            - header: {{ key: x-lb, value: {lb} }}
            virtual_hosts:
            - {{ name: web, domains: ["*"], routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: pool }} }}] }}
"#,
                lb = host.lb.name()
            )
        };
        let config = format!(
            r#"admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {ADMIN} }} }} }}
overload_manager:
  refresh_interval: 0.1s
  resource_monitors:
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: {CONNECTIONS}
  - name: envoy.resource_monitors.injected_resource
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig
      filename: "{pressure}"
  actions:
  - name: envoy.overload_actions.stop_accepting_connections
    triggers:
    - name: envoy.resource_monitors.injected_resource
      threshold: {{ value: 0.9 }}
static_resources:
  listeners:
{vip}{own}  clusters:
  - name: pool
    connect_timeout: 1s
    type: STATIC
    health_checks:
    - {{ timeout: 1s, interval: 0.2s, unhealthy_threshold: 2, healthy_threshold: 1, tcp_health_check: {{}}, no_traffic_interval: 0.2s }}
    load_assignment:
      cluster_name: pool
      endpoints:
      - lb_endpoints:
{endpoints}{broken}"#,
            pressure = host.path("pressure"),
            vip = listener("vip", VIP),
            own = listener("own", std::net::Ipv4Addr::LOCALHOST),
            broken = if broken { "nonsense: [\n" } else { "" },
        );
        std::fs::write(host.file("envoy.yaml"), config).context("write Envoy's configuration")
    }

    fn command(&self, host: Host<'_>) -> Result<Vec<String>> {
        // By what epochs know each other: none of a former plane, that may still be ending.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(program) = program() else { bail!(Lacks("Envoy (tests/setup.sh fetches it)".into())) };
        let base = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let (restarter, config) = (host.path("restarter"), host.path("envoy.yaml"));
        let program = program.to_string_lossy().into_owned();
        let below = ["-c", OWN_MEMORY, "own-memory", &restarter];
        let own = [&program, "-c", &config, "--base-id", &base, "--concurrency", "1"];
        let times = ["-l", "warning", "--drain-time-s", "1", "--parent-shutdown-time-s", "2"];
        Ok(SHELL.iter().chain(&below).chain(&own).chain(&times).map(|s| (*s).to_owned()).collect())
    }

    fn section(&self, _host: Host<'_>) -> String {
        format!("admin = \"http://127.0.0.1:{ADMIN}\"\n")
    }

    fn workers(&self, host: Host<'_>, _main: i32) -> Vec<i32> {
        // Former epochs finish what they have.
        host.processes(&["envoy"]).iter().map(|s| s.pid).max().into_iter().collect()
    }

    fn reloaded(&self, host: Host<'_>, main: i32, old: &[i32]) -> bool {
        // The next epoch is refused while the former one is there.
        let new = self.workers(host, main);
        let only = host.processes(&["envoy"]).len() == 1;
        only && new.iter().all(|pid| !old.contains(pid)) && Self::post(host, "/stats/recentlookups/disable").is_ok()
    }

    fn master(&self, main: i32) -> Option<i32> {
        Some(main)
    }

    fn lacks(&self, _situation: Situation) -> Option<&'static str> {
        None
    }

    fn expected(&self, situation: Situation) -> Expected {
        match situation {
            // Its restarter ends with it.
            Situation::Killed | Situation::WorkerKilled => Expected::new(&["dead"], Reaction::Moves),
            Situation::Stopped => Expected::new(&["failing", "hung"], Reaction::Moves),
            // It gets a SIGTERM when its restarter dies, and takes its time for that.
            Situation::ExitsZero | Situation::MasterKilled => {
                Expected::new(&["leaving", "dead"], Reaction::Moves).also(&["failing"])
            }
            Situation::Reload | Situation::Reloads => Expected::no_event(),
            Situation::FailedReload => Expected::new(&["bad-reload"], Reaction::Stays).also(&["reloading", "serving"]),
            Situation::ConnectionsFull | Situation::QueueFull => Expected::new(&["saturated"], Reaction::Stays),
            // It aborts when it can't open a descriptor.
            Situation::FilesFull => Expected::new(&["dead"], Reaction::Moves).also(&["failing", "saturated"]),
            Situation::BackendsDown => Expected::new(&["pool-empty"], Reaction::Stays).also(&["sick"]),
            Situation::BackendsFail => Expected::new(&["sick"], Reaction::Stays),
        }
    }

    fn connections(&self) -> usize {
        CONNECTIONS
    }

    fn exit(&self, host: Host<'_>, _main: &Pidfd) -> Result<()> {
        Self::post(host, "/quitquitquit")
    }

    fn reload(&self, _host: Host<'_>, main: &Pidfd) -> Result<()> {
        main.signal(Signal::HUP).map(|_| ())
    }

    fn slow(&self, host: Host<'_>, _main: i32, on: bool) -> Result<()> {
        Self::pressure(host, if on { "1" } else { "0" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::wait_for;
    use crate::process::{Proc, Stat, alive, kill_pid};

    /// Writes down its pid and epoch; ends at once if the file `broken` is there.
    const FAKE: &str = "#!/bin/sh\necho $$ $2 >>\"$0.epochs\"\n[ -e \"$0.broken\" ] && exit 1\nexec sleep 60\n";

    fn until(what: &str, done: impl FnMut() -> Result<bool>) {
        assert!(wait_for(Duration::from_secs(10), Duration::from_millis(5), done).expect("it can be seen"), "{what}");
    }

    #[test]
    fn each_hup_starts_an_epoch_even_where_it_was_ignored_and_one_that_fails_is_no_parent() {
        let directory = std::env::temp_dir().join(format!("holdfast-lab-restarter-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a fresh directory");
        let file = |name: &str| directory.join(name);
        std::fs::write(file("restarter"), RESTARTER).expect("writable");
        std::fs::write(file("fake"), FAKE).expect("writable");
        let mut command = Command::new("/bin/sh");
        // As below nohup.
        command.args(["-c", "trap '' HUP; exec \"$@\"", "nohup"]).args(SHELL);
        command.args([file("restarter"), "/bin/sh".into(), file("fake")]);
        let mut restarter = Proc::start("the restarter", command, &file("log")).expect("a shell");
        let epochs = || -> Vec<(i32, u32)> {
            let text = std::fs::read_to_string(file("fake.epochs")).unwrap_or_default();
            let line = |l: &str| l.split_once(' ').and_then(|(pid, n)| Some((pid.parse().ok()?, n.parse().ok()?)));
            text.lines().filter_map(line).collect()
        };
        let shell = restarter.pid();
        let waits = || Stat::of(shell).is_some_and(|s| s.state == 'S');
        let hup = |wanted: &[u32]| {
            restarter.fd().signal(Signal::HUP).expect("it lives");
            until(&format!("{wanted:?}"), || Ok(epochs().len() >= wanted.len() && waits()));
            assert_eq!(epochs().iter().map(|(_, n)| *n).collect::<Vec<_>>(), wanted);
        };
        until("the first epoch", || Ok(epochs().len() == 1 && waits()));
        hup(&[0, 1]);
        std::fs::write(file("fake.broken"), "").expect("writable");
        hup(&[0, 1, 2]);
        // Its end is noticed when nothing of it is left.
        let failed = epochs()[2].0;
        until("its end", || Ok(Stat::of(failed).is_none() && waits()));
        std::fs::remove_file(file("fake.broken")).expect("it is there");
        hup(&[0, 1, 2, 2]);
        let all: Vec<i32> = epochs().iter().map(|(pid, _)| *pid).filter(|pid| *pid != failed).collect();
        kill_pid(all[2]);
        until("back to the one before", || Ok(Stat::of(all[2]).is_none() && waits()));
        kill_pid(all[1]);
        until("its end with the last one", || Ok(!alive(shell)));
        assert_eq!(restarter.exit_code(Duration::ZERO), Some(137));
        all.into_iter().for_each(kill_pid);
        let _gone = std::fs::remove_dir_all(directory);
    }
}

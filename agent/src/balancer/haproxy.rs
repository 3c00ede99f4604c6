//! HAProxy: a master and its workers, or one process. Asked over the stats socket (`show info`, `show stat`) and the
//! master CLI (`show proc`).
//!
//! Of a reload the youngest worker serves and the older ones finish. The stats socket is the worker's: one that is
//! stopped accepts and never answers, while the master still calls it healthy; one that leaves closes it at once, and
//! only the master CLI still reaches it.

use super::acts::Act;
use super::plane::{Asked, Asking, Member, Plane, fuller, generations, within};
use super::{Tree, ask};
use holdfast_node::config::{Admin as Where, Balancer};
use holdfast_node::io::{Admin, Level, Pool};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest answer: about 3,000 servers.
const ANSWER_MAX: usize = 1 << 20;
/// Frontends, backends and servers; of very many servers frontends and backends alone.
const EVERYTHING: &str = "show stat -1 7 -1";
const SUMMARY: &str = "show stat -1 3 -1";
/// So many long lists in a row that were too long, or late, and it is asked for the short one.
const MISSED: u32 = 3;
/// The variable by which a configuration can fail its own monitor page: `monitor fail if { var(proc.stopping) -m bool }`.
const STOPPING: &str = "proc.stopping";

/// One HAProxy.
#[derive(Debug)]
pub(super) struct Haproxy {
    admin: Option<PathBuf>,
    master: Option<PathBuf>,
    /// Long lists in a row that didn't come.
    missed: u32,
}

impl Haproxy {
    pub(super) fn new(balancer: &Balancer) -> Self {
        let admin = match &balancer.admin {
            Some(Where::Socket(path)) => Some(path.clone()),
            Some(Where::Http { .. }) | None => None,
        };
        Self { admin, master: balancer.master.clone(), missed: 0 }
    }

    async fn asked(&mut self, tree: &Tree, patience: Duration) -> Asked {
        let (admin, master) = (self.admin.clone(), self.master.clone());
        let proc = async {
            let master = master.as_ref()?;
            let answer = within(patience, ask::command(master, "show proc", ANSWER_MAX)).await.ok()?;
            processes(&String::from_utf8_lossy(&answer))
        };
        // Each by itself: a master that is stopped, or reads a long configuration, says nothing of its worker.
        let worker = async {
            match (&admin, &master) {
                (None, None) => Asked::only(Admin::NotConfigured),
                (Some(socket), master) => self.worker(socket, master.as_deref(), tree, patience).await,
                (None, Some(master)) => self.figures(master, "@1 ", patience).await.unwrap_or_else(silent),
            }
        };
        let (mut asked, told) = tokio::join!(worker, proc);
        asked.generation = told.map(|p| p.generation);
        asked.failed = told.map(|p| p.failed);
        asked
    }

    async fn worker(&mut self, socket: &Path, master: Option<&Path>, tree: &Tree, patience: Duration) -> Asked {
        let began = Instant::now();
        let why = match self.figures(socket, "", patience).await {
            Ok(asked) => return asked,
            Err(why) => why,
        };
        // A worker that leaves closes its socket first; its master still reaches it.
        if let (Some(master), Some(worker)) = (master, tree.youngest()) {
            let began_again = Instant::now();
            if leaves(master, worker.pid, patience.saturating_sub(began.elapsed())).await {
                return Asked { leaving: true, ..Asked::only(Admin::Answers { took: began_again.elapsed() }) };
            }
        }
        silent(why)
    }

    /// `prefix`: towards the worker, on the master CLI.
    async fn figures(&mut self, socket: &Path, prefix: &str, patience: Duration) -> Result<Asked, String> {
        let began = Instant::now();
        let info = within(patience, ask::command(socket, &format!("{prefix}show info"), ANSWER_MAX)).await?;
        let took = began.elapsed();
        let mut seen = Seen::default();
        seen.info(&String::from_utf8_lossy(&info));
        if !seen.understood {
            return Err(format!("{}: not an answer of HAProxy", socket.display()));
        }
        let many = self.missed >= MISSED;
        let list = if many { SUMMARY } else { EVERYTHING };
        let rest = patience.saturating_sub(took);
        let list = within(rest, ask::command(socket, &format!("{prefix}{list}"), ANSWER_MAX)).await;
        // It has said how it is; what its list would add can wait for the next look.
        match list {
            Ok(list) => {
                self.missed = if many { self.missed } else { 0 };
                seen.stat(&String::from_utf8_lossy(&list));
            }
            Err(_) => self.missed = self.missed.saturating_add(1),
        }
        Ok(seen.asked(Admin::Answers { took }, many))
    }
}

fn silent(why: String) -> Asked {
    Asked::only(Admin::Silent { why })
}

/// Whether this worker says to its master that it is stopping.
async fn leaves(master: &Path, worker: u32, patience: Duration) -> bool {
    let mut seen = Seen::default();
    if let Ok(info) = within(patience, ask::command(master, &format!("@!{worker} show info"), ANSWER_MAX)).await {
        seen.info(&String::from_utf8_lossy(&info));
    }
    seen.stopping
}

impl Plane for Haproxy {
    fn shape(&self, main: &Member, members: &[Member]) -> Tree {
        // A master's other children (`program` sections) have another name.
        let worker = |m: &&Member| m.parent == main.process.pid && m.name == main.name;
        generations(main, members.iter().filter(worker).map(|m| m.process).collect(), members)
    }

    fn ask<'a>(&'a mut self, tree: &'a Tree, patience: Duration) -> Asking<'a> {
        Box::pin(self.asked(tree, patience))
    }

    fn leave(&self) -> Vec<Act> {
        self.variable(true)
    }

    fn stay(&self) -> Vec<Act> {
        self.variable(false)
    }

    fn shed(&self, tree: &Tree) -> Vec<Act> {
        vec![Act::signal(tree.main, libc::SIGUSR1)]
    }

    fn stop(&self, tree: &Tree) -> Vec<Act> {
        vec![Act::signal(tree.main, libc::SIGTERM)]
    }
}

impl Haproxy {
    fn variable(&self, stopping: bool) -> Vec<Act> {
        // 2.6 takes this for an experiment.
        let command = format!("experimental-mode on; set var {STOPPING} bool({stopping})");
        self.admin.iter().map(|socket| Act::Command { socket: socket.clone(), command: command.clone() }).collect()
    }
}

/// What `show info` and `show stat` said.
#[derive(Debug, Default)]
struct Seen {
    understood: bool,
    stopping: bool,
    /// Of the process and of its frontends; the fullest counts.
    connections: Vec<Level>,
    frontends: u32,
    open: u32,
    /// Of servers, and of backends where servers weren't listed.
    servers: Count,
    backends: Count,
}

/// Up, and all.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    up: u32,
    total: u32,
}

impl Seen {
    /// `Key: value` lines.
    fn info(&mut self, text: &str) {
        let value = |key: &str| -> Option<u64> {
            let lines = text.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(k, _)| *k == key).find_map(|(_, v)| v.trim().parse().ok())
        };
        self.understood = value("Pid").is_some();
        self.stopping = value("Stopping").is_some_and(|n| n > 0);
        if let (Some(now), Some(limit)) = (value("CurrConns"), value("Maxconn")) {
            self.connections.push(Level { now, limit });
        }
    }

    /// Comma-separated values under a header that names them.
    fn stat(&mut self, text: &str) {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("# pxname,"));
        let Some(header) = lines.next() else { return };
        let names: Vec<&str> = header.trim_start_matches("# ").split(',').collect();
        let column = |name: &str| names.iter().position(|n| *n == name);
        let columns = ["type", "status", "scur", "slim", "act", "bck"].map(column);
        for line in lines {
            let fields: Vec<&str> = line.split(',').take(names.len()).collect();
            let field = |n: usize| columns.get(n).copied().flatten().and_then(|c| fields.get(c)).copied();
            let number = |n: usize| field(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            let status = field(1).unwrap_or_default();
            match field(0) {
                Some("0") => {
                    self.frontends = self.frontends.saturating_add(1);
                    self.open = self.open.saturating_add(u32::from(matches!(status, "OPEN" | "FULL")));
                    self.connections.push(Level { now: number(2), limit: number(3) });
                }
                Some("1") => {
                    let up = number(4).saturating_add(number(5));
                    self.backends.up = self.backends.up.saturating_add(u32::try_from(up).unwrap_or(u32::MAX));
                    self.backends.total = self.backends.total.saturating_add(1);
                }
                Some("2") if !status.starts_with("MAINT") && !status.starts_with("DRAIN") => {
                    self.servers.total = self.servers.total.saturating_add(1);
                    let up = status.starts_with("UP") || status == "no check";
                    self.servers.up = self.servers.up.saturating_add(u32::from(up));
                }
                _ => {}
            }
        }
    }

    /// `many`: servers weren't listed, backends stand for them.
    fn asked(self, admin: Admin, many: bool) -> Asked {
        let full = |l: &Level| l.limit > 0;
        let connections = self.connections.iter().copied().filter(full).max_by(fuller);
        let sums = Count { total: self.backends.total.max(self.backends.up), ..self.backends };
        let count = if many { sums } else { self.servers };
        Asked {
            connections,
            backends: (count.total > 0).then_some(Pool { up: count.up, total: count.total }),
            leaving: self.stopping || (self.frontends > 0 && self.open == 0),
            ..Asked::only(admin)
        }
    }
}

/// What `show proc` said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Processes {
    generation: u64,
    failed: u64,
}

/// Rows of `PID type reloads …` under a header, workers and old workers under headings of their own. `None`: not that.
fn processes(text: &str) -> Option<Processes> {
    let mut reloads = None;
    let mut column = None;
    let mut failed = 0;
    let mut current: Option<u64> = None;
    let mut old = false;
    for line in text.lines() {
        if line.starts_with("#<PID>") {
            // Names in angle brackets, some with a blank inside.
            column = line.split_once("<reloads>").map(|(before, _)| before.matches('<').count());
            continue;
        }
        if let Some(heading) = line.strip_prefix("# ") {
            old = heading.starts_with("old");
            continue;
        }
        let fields: Vec<&str> = line.split_ascii_whitespace().take(16).collect();
        let count = || column.and_then(|c| fields.get(c)).and_then(|f| f.parse::<u64>().ok());
        match fields.get(1) {
            Some(&"master") => {
                reloads = count();
                let after = line.split_once("[failed:").and_then(|(_, rest)| rest.split_once(']'));
                failed = after.and_then(|(n, _)| n.trim().parse().ok()).unwrap_or(0);
            }
            // Reloads that a worker has outlived: those that failed.
            Some(&"worker") if !old => current = count(),
            _ => {}
        }
    }
    Some(Processes { generation: reloads?.saturating_sub(current.unwrap_or(0)), failed })
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::{member, pids};
    use super::*;
    use proptest::prelude::*;

    const PROC: &str = "#<PID>          <type>          <reloads>       <uptime>        <version>      \n\
        23175           master          3 [failed: 2]   0d00h00m07s     2.6.12-1\n# workers\n\
        23232           worker          2               0d00h00m05s     2.6.12-1\n# old workers\n\
        23181           worker          9               0d00h00m09s     2.6.12-1\n# programs\n\n";

    const STAT: &str = "# pxname,svname,qcur,qmax,scur,smax,slim,stot,status,act,bck,type,\n\
        f,FRONTEND,,,7,0,10,0,OPEN,,,0,\nstats,FRONTEND,,,0,0,2000,0,PAUSED,,,0,\n\
        b,a,0,0,0,0,,0,DOWN,1,0,2,\nb,b,0,0,0,0,,0,no check,1,0,2,\nb,c,0,0,0,0,,0,UP 1/2,1,0,2,\n\
        b,d,0,0,0,0,,0,MAINT,1,0,2,\nb,BACKEND,0,0,0,0,5,0,UP,2,0,1,\n\n";

    fn haproxy() -> Haproxy {
        Haproxy { admin: Some("/s".into()), master: None, missed: 0 }
    }

    fn seen(info: &str, stat: &str) -> Asked {
        let mut seen = Seen::default();
        seen.info(info);
        seen.stat(stat);
        seen.asked(Admin::NotConfigured, false)
    }

    #[test]
    fn the_youngest_worker_serves_the_older_finish_and_a_program_is_neither() {
        let main = member(10, 1, "haproxy -W");
        let members = [main.clone(), member(30, 10, "haproxy"), member(20, 10, "haproxy"), member(40, 10, "api")];
        let tree = haproxy().shape(&main, &members);
        assert_eq!((pids(&tree.serving), pids(&tree.old), pids(&tree.others)), (vec![30], vec![20], vec![40]));
        let alone = haproxy().shape(&main, std::slice::from_ref(&main));
        assert_eq!(alone, Tree::single(main.process));
    }

    #[test]
    fn the_fullest_count_wins_and_servers_in_maintenance_are_not_counted() {
        let asked = seen("Name: HAProxy\nPid: 7\nMaxconn: 50\nCurrConns: 5\nStopping: 0\n", STAT);
        assert_eq!(asked.connections, Some(Level { now: 7, limit: 10 }));
        assert_eq!(asked.backends, Some(Pool { up: 2, total: 3 }));
        assert!(!asked.leaving);
    }

    #[test]
    fn where_servers_are_too_many_to_list_backends_stand_for_them() {
        let summed = |rows: &str| {
            let mut seen = Seen::default();
            seen.stat(&format!("{}\n{rows}", STAT.lines().next().expect("a header")));
            seen.asked(Admin::NotConfigured, true).backends
        };
        assert_eq!(summed("b,BACKEND,0,0,0,0,5,0,UP,2,1,1,\n"), Some(Pool { up: 3, total: 3 }));
        assert_eq!(summed("b,BACKEND,0,0,0,0,5,0,DOWN,0,0,1,\n"), Some(Pool { up: 0, total: 1 }));
        assert_eq!(summed(""), None);
    }

    #[tokio::test]
    async fn one_that_answers_is_not_silent_though_its_list_never_comes_and_then_the_short_one_is_asked_for() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let path = std::env::temp_dir().join(format!("holdfast-haproxy-{}.sock", std::process::id()));
        let listener = tokio::net::UnixListener::bind(&path).expect("a fresh socket");
        let header = STAT.lines().next().expect("a header").to_owned();
        let serve = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = String::new();
                let _ = stream.read_to_string(&mut question).await;
                let answer = match question.trim() {
                    "show info" => "Pid: 7\nMaxconn: 50\nCurrConns: 5\n".to_owned(),
                    SUMMARY => format!("{header}\nb,BACKEND,0,0,0,0,5,0,UP,2,1,1,\n"),
                    _ => {
                        held.push(stream);
                        continue;
                    }
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let mut haproxy = Haproxy { admin: Some(path.clone()), ..haproxy() };
        let tree = Tree::single(super::super::Process { start: 1, pid: 1 });
        for n in 0..=MISSED {
            let asked = haproxy.asked(&tree, Duration::from_millis(300)).await;
            assert!(matches!(asked.admin, Admin::Answers { .. }), "{asked:?}");
            assert_eq!(asked.connections, Some(Level { now: 5, limit: 50 }));
            assert_eq!(asked.backends, (n == MISSED).then_some(Pool { up: 3, total: 3 }));
        }
        serve.abort();
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn it_leaves_when_it_is_stopping_or_every_frontend_is_off() {
        assert!(seen("Pid: 7\nStopping: 1\n", STAT).leaving);
        assert!(seen("Pid: 7\n", &STAT.replace("OPEN", "STOP")).leaving);
        assert!(!seen("Pid: 7\nStopping: 0\n", "").leaving);
    }

    #[test]
    fn a_failed_reload_counts_as_failed_and_not_as_a_generation() {
        assert_eq!(processes(PROC), Some(Processes { generation: 1, failed: 2 }));
        let again = PROC.replace("3 [failed: 2]", "4 [failed: 0]").replace("worker          2", "worker          0");
        assert_eq!(processes(&again), Some(Processes { generation: 4, failed: 0 }));
        assert_eq!(processes("Unknown command\n"), None);
    }

    #[test]
    fn an_older_haproxy_with_another_column_is_read_too() {
        let text = "#<PID> <type> <relative PID> <reloads> <uptime> <version>\n1 master 0 5 0d 2.2\n# workers\n\
                    2 worker 1 0 0d 2.2\n";
        assert_eq!(processes(text), Some(Processes { generation: 5, failed: 0 }));
    }

    proptest! {
        #[test]
        fn no_answer_can_stop_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = processes(&text);
            let _ = seen(&text, &text);
            let _ = seen(&format!("Pid: 1\n{text}"), &format!("# pxname,type,scur,slim,status,act,bck\n{text}"));
            let _ = processes(&format!("#<PID> <type> <reloads>\n{text}"));
        }

        #[test]
        fn numbers_of_any_size_are_no_overflow(rows in proptest::collection::vec((0u8..4, any::<u64>(), any::<u64>()), 0..40)) {
            let mut text = "# pxname,type,scur,slim,status,act,bck\n".to_owned();
            for (kind, a, b) in &rows {
                text.push_str(&format!("x,{kind},{a},{b},UP,{a},{b}\n"));
            }
            let asked = seen(&format!("Pid: 1\nCurrConns: {0}\nMaxconn: {0}\n", u64::MAX), &text);
            prop_assert!(asked.backends.is_none_or(|p| p.up <= p.total));
            prop_assert!(asked.connections.is_some_and(|l| l.limit > 0));
        }

        #[test]
        fn a_table_of_processes_cut_anywhere_is_read_or_refused(cut in 0..PROC.len()) {
            if let Some(read) = processes(&PROC[..cut]) {
                prop_assert!(read.generation <= 3 && read.failed <= 2);
            }
        }
    }
}

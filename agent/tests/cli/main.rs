//! The real program: words in, exit codes and text out. The agent's side of the socket is the real server in front of
//! a stand-in for the node.

mod flows;

use holdfast::ctl::server;
use holdfast::run::api::{ApiHandle, Asked, EventRing, Recorded, WorkerFigures};
use holdfast::run::sync::query::SyncHandle;
use holdfast_node::io::{Answer, Request};
use holdfast_node::journal::{Event, Kind};
use holdfast_node::status::{NeighborStatus, Status, Verdict};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

fn holdfast(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast")).args(words).output().expect("the program starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("holdfast-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a fresh name");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.0.join(name), text).expect("writable");
        self.path(name)
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).expect("readable").next().is_none()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tree(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

#[test]
fn a_wrong_command_line_ends_with_4_and_help_with_0() {
    for words in [&["fly"][..], &[], &["status", "--jsn"], &["drain", "--for", "2h"], &["drain", "--deadline", "5"]] {
        assert_eq!(code(&holdfast(words)), 4, "{words:?}");
    }
    for words in [["--help"], ["--version"]] {
        assert_eq!(code(&holdfast(&words)), 0, "{words:?}");
    }
    assert_eq!(code(&holdfast(&["drain", "--help"])), 0);
}

#[test]
fn a_client_without_an_agent_ends_with_3_and_says_where_it_looked() {
    let folder = Folder::new();
    for words in [
        &["status"][..],
        &["status", "--oneline"],
        &["events"],
        &["drain"],
        &["undrain"],
        &["peers"],
        &["flows"],
        &["explain"],
        &["explain", "tcp", "198.51.100.7:40000", "192.0.2.10:80"],
    ] {
        let mut words = words.to_vec();
        let runtime = folder.path("run");
        words.extend(["--runtime-dir", &runtime]);
        let output = holdfast(&words);
        assert_eq!(code(&output), 3, "{words:?}");
        assert!(err(&output).contains(&format!("{runtime}/holdfast.sock")), "{}", err(&output));
    }
}

#[test]
fn check_accepts_the_examples_and_states_computed_times() {
    for (file, silent) in [("lb1.toml", "301ms"), ("lb2.toml", "301ms")] {
        let output = holdfast(&["check", &tree(&format!("packaging/examples/{file}"))]);
        assert_eq!(code(&output), 0, "{}", err(&output));
        let text = out(&output);
        assert!(text.contains("ok\n"), "{text}");
        // fall 2, interval 500 ms, fast_interval 100 ms, timeout 200 ms.
        assert!(text.contains("detect: web gives no answer"), "{text}");
        assert!(text.contains("400ms to 900ms (computed)"), "{text}");
        assert!(text.contains(&format!("{silent} (computed)")), "{text}");
    }
}

#[test]
fn the_examples_are_each_others_mirror() {
    let load = |file: &str| holdfast::config::load(Path::new(&tree(&format!("packaging/examples/{file}"))));
    for (first, second) in [("lb1.toml", "lb2.toml"), ("gw1.toml", "gw2.toml")] {
        let (one, two) = (load(first).expect("valid"), load(second).expect("valid"));
        let (a, b) = (one.cluster.expect("a pair"), two.cluster.expect("a pair"));
        assert_eq!((a.peers[0].name.as_str(), a.peers[0].address), (two.node.as_str(), b.listen));
        assert_eq!((b.peers[0].name.as_str(), b.peers[0].address), (one.node.as_str(), a.listen));
        assert_eq!(one.vips.len(), two.vips.len());
        for (v1, v2) in one.vips.iter().zip(&two.vips) {
            assert_eq!((&v1.name, &v1.members, &v1.addresses), (&v2.name, &v2.members, &v2.addresses));
            assert_eq!((&v1.legs, &v1.vrrp.interval), (&v2.legs, &v2.vrrp.interval));
            assert!(v1.vrrp.priority > v2.vrrp.priority);
        }
    }
}

#[test]
fn check_as_json_is_the_model() {
    let output = holdfast(&["check", "--json", &tree("packaging/examples/lb1.toml")]);
    assert_eq!(code(&output), 0);
    let model: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(model["schema"], 1);
    assert_eq!(model["ok"], true);
    assert_eq!(model["config"]["node"], "lb1");
    assert_eq!(model["config"]["vips"][0]["legs"][0]["vrid"], 10);
    assert_eq!(model["config"]["vips"][0]["vrrp"]["interval_ms"], 100);
    assert_eq!(model["config"]["balancers"][0]["source"]["unit"], "haproxy.service");
    assert_eq!(model["config"]["cluster"]["peers"][0]["name"], "lb2");
    assert_eq!(model["computed"][0]["checks"][0]["detect_max_ms"], 900.0);
    assert_eq!(model["computed"][0]["takeover_silent_ms"], 300.781);
}

#[test]
fn check_and_run_end_with_1_for_syntax_and_2_for_semantics_and_start_nothing() {
    let folder = Folder::new();
    let runtime = Folder::new();
    let syntax = folder.file("syntax.toml", "[node\n");
    let semantics = folder.file("semantics.toml", "[node]\nname = \"a\"\n");
    for (file, expected, text) in
        [(&syntax, 1, "syntax.toml:1:6: "), (&semantics, 2, "semantics.toml:1:1: vip: is missing")]
    {
        let output = holdfast(&["check", file]);
        assert_eq!(code(&output), expected);
        assert!(err(&output).contains(text), "{}", err(&output));
        assert_eq!(out(&output), "");

        let output = holdfast(&["check", "--json", file]);
        assert_eq!(code(&output), expected);
        let refusal: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&refusal["ok"], &refusal["errors"][0]["line"]), (&false.into(), &1.into()));

        let output = holdfast(&[
            "run",
            "--config",
            file,
            "--runtime-dir",
            &runtime.path("."),
            "--state-dir",
            &runtime.path("."),
        ]);
        assert_eq!(code(&output), expected);
        assert!(err(&output).contains(text) && err(&output).contains("nothing was started"), "{}", err(&output));
        assert!(runtime.is_empty(), "run left something behind");
    }
}

#[test]
fn every_bad_file_is_refused_by_the_program_with_the_exit_code_it_expects() {
    for entry in fs::read_dir(tree("tests/config/bad")).expect("in the tree") {
        let path = entry.expect("readable").path().display().to_string();
        let text = fs::read_to_string(&path).expect("readable");
        let expected: i32 = text.split(' ').nth(2).and_then(|code| code.parse().ok()).expect("an expectation");
        assert_eq!(code(&holdfast(&["check", &path])), expected, "{path}");
    }
}

#[test]
fn keygen_writes_a_key_for_its_group_only_and_never_overwrites_one() {
    let folder = Folder::new();
    let file = folder.path("node.key");
    let made = holdfast(&["keygen", "--out", &file]);
    assert_eq!(code(&made), 0, "{}", err(&made));
    let public = out(&made).trim().to_owned();
    assert_eq!(public.len(), 44);
    assert!(holdfast_statesync::decode_key(&public).is_ok());
    let mode = fs::metadata(&file).expect("written").permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    let secret = fs::read_to_string(&file).expect("ours");
    assert!(!out(&made).contains(secret.trim()) && !err(&made).contains(secret.trim()));

    let again = holdfast(&["keygen", &file]);
    assert_eq!(code(&again), 1);
    assert!(err(&again).contains("never overwritten"), "{}", err(&again));
    assert_eq!(fs::read_to_string(&file).expect("ours"), secret);

    let shown = holdfast(&["keygen", "--public", &file]);
    assert_eq!((code(&shown), out(&shown).trim()), (0, public.as_str()));
    let other = holdfast(&["keygen", &folder.path("other.key")]);
    assert_ne!(out(&other).trim(), public);

    let nonsense = folder.file("nonsense", "secret-looking text");
    let refused = holdfast(&["keygen", "--public", &nonsense]);
    assert_eq!(code(&refused), 1);
    assert!(!err(&refused).contains("secret-looking"), "{}", err(&refused));
}

#[test]
fn completions_are_a_script_that_knows_the_commands() {
    let output = holdfast(&["completions", "bash"]);
    assert_eq!(code(&output), 0);
    assert!(out(&output).contains("undrain"));
    assert_eq!(code(&holdfast(&["completions", "cobol"])), 4);
}

#[test]
fn drill_becomes_the_program_beside_it_and_ends_with_3_where_there_is_none() {
    let folder = Folder::new();
    let own = folder.path("holdfast");
    // By a process of its own: a file that this one writes could still be open in a child that another test starts at
    // that moment, and then can't be executed.
    let install = |from: &str, to: &str| {
        let installed = Command::new("install").args(["-m", "755", from, to]).status().expect("coreutils are there");
        assert!(installed.success());
    };
    install(env!("CARGO_BIN_EXE_holdfast"), &own);
    let run = |words: &[&str]| Command::new(&own).args(words).env("PATH", "/nonexistent").output().expect("starts");
    let absent = run(&["drill", "list"]);
    assert_eq!(code(&absent), 3);
    assert!(err(&absent).contains("holdfast-drill"), "{}", err(&absent));

    let script = folder.file("script", "#!/bin/sh\necho \"$@\"\nexit 2\n");
    install(&script, &folder.path("holdfast-drill"));
    let present = run(&["drill", "run", "balancer-killed", "--repeat", "2", "--json"]);
    assert_eq!((code(&present), out(&present).as_str()), (2, "drill run balancer-killed --repeat 2 --json\n"));
    assert_eq!(out(&run(&["lab", "--help"])), "lab --help\n");
}

/// A stand-in for the node: answers what it was told to, and remembers what it was asked.
struct Agent {
    folder: Folder,
    asked: Arc<Mutex<Vec<Request>>>,
    ring: Arc<EventRing>,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Agent {
    fn start(answers: impl Fn(&Request) -> Vec<Answer> + Send + 'static) -> Self {
        Self::with_sync(answers, None)
    }

    /// With a stand-in for the thread that replicates flows, too.
    fn with_sync(answers: impl Fn(&Request) -> Vec<Answer> + Send + 'static, sync: Option<SyncHandle>) -> Self {
        let folder = Folder::new();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let ring = Arc::new(EventRing::new());
        let stop = CancellationToken::new();
        let (log, events, stopped, directory) = (Arc::clone(&asked), Arc::clone(&ring), stop.clone(), folder.0.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = server::bind(&directory).expect("a fresh folder");
                let (requests, mut node) = mpsc::channel::<Asked>(8);
                let figures = WorkerFigures { disk_errors: 3, ..WorkerFigures::default() };
                let (_keep, figures) = watch::channel(Arc::new(figures));
                let api = ApiHandle::new(requests, events, figures).with_sync(sync);
                tokio::spawn(async move {
                    while let Some(Asked { request, reply }) = node.recv().await {
                        let answers = answers(&request);
                        log.lock().expect("no panic").push(request);
                        for answer in answers {
                            let _ = reply.send(answer).await;
                        }
                    }
                });
                ready.send(()).expect("the test waits");
                server::serve(listener, api, stopped).await;
            });
        });
        is_ready.recv().expect("the server starts");
        Self { folder, asked, ring, stop, thread: Some(thread) }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut words = words.to_vec();
        let runtime = self.folder.path(".");
        words.extend(["--runtime-dir", &runtime]);
        holdfast(&words)
    }

    fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("no panic").clone()
    }

    /// What was asked that changes something: the server looks at the status by itself before a drain.
    fn verbs(&self) -> Vec<Request> {
        self.asked().into_iter().filter(|request| !matches!(request, Request::Status)).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn a_status(verdict: Verdict) -> Status {
    Status {
        schema: 1,
        verdict,
        summary: "2/2 nodes, web on lb1, can lose 1".to_owned(),
        node: "lb1".to_owned(),
        epoch: 1,
        age_ms: 61_000,
        vips: Vec::new(),
        neighbors: Vec::new(),
        peers: Vec::new(),
        balancers: Vec::new(),
        checks: Vec::new(),
        pool: None,
        conntrack: None,
        sync: None,
        stall: None,
        drain: None,
        counters: BTreeMap::new(),
        warnings: Vec::new(),
    }
}

#[test]
fn status_begins_with_the_verdict_and_ends_with_its_exit_code() {
    for (verdict, word, expected) in
        [(Verdict::Ok, "OK", 0), (Verdict::Degraded, "DEGRADED", 1), (Verdict::Critical, "CRITICAL", 2)]
    {
        let agent = Agent::start(move |_| vec![Answer::Status(Box::new(a_status(verdict)))]);
        let line = format!("{word}: 2/2 nodes, web on lb1, can lose 1\n");
        let output = agent.ask(&["status"]);
        assert_eq!(code(&output), expected);
        assert!(out(&output).starts_with(&line), "{}", out(&output));
        assert!(out(&output).contains("3 writes of the journal"), "{}", out(&output));
        let output = agent.ask(&["status", "--oneline"]);
        assert_eq!((code(&output), out(&output)), (expected, line));
        let output = agent.ask(&["status", "--json"]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((code(&output), &value["schema"], &value["node"]), (expected, &1.into(), &"lb1".into()));
        assert_eq!(value["worker"]["disk_errors"], 3);
    }
}

#[test]
fn neighbors_are_a_table_and_json() {
    let neighbor =
        NeighborStatus { name: "r1".to_owned(), state: "established".to_owned(), ..NeighborStatus::default() };
    let status = Status { neighbors: vec![neighbor], ..a_status(Verdict::Ok) };
    let agent = Agent::start(move |_| vec![Answer::Status(Box::new(status.clone()))]);
    let output = agent.ask(&["neighbors"]);
    assert_eq!(code(&output), 0);
    assert!(out(&output).contains("NEIGHBOR") && out(&output).contains("r1"), "{}", out(&output));
    let output = agent.ask(&["neighbors", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&value["schema"], &value["neighbors"][0]["state"]), (&1.into(), &"established".into()));
}

#[test]
fn a_drain_shows_progress_and_ends_with_the_exit_code_of_its_end() {
    let refused = Answer::Refused { interlock: "last-node".to_owned(), why: "nobody else can serve".to_owned() };
    for (end, expected, text) in [
        (Answer::Done("drained: web is on lb2".to_owned()), 0, "drained: web is on lb2"),
        (refused, 10, "`last-node`: nobody else can serve"),
        (Answer::Deadline("3 connections left".to_owned()), 11, "3 connections left"),
        (Answer::Aborted("undrained".to_owned()), 12, "undrained"),
        (Answer::PeerLost("lb2".to_owned()), 13, "lb2"),
    ] {
        let answers = vec![Answer::Progress("web: handing over to lb2".to_owned()), end];
        let agent = Agent::start(move |_| answers.clone());
        let output = agent.ask(&["drain", "--reason", "new\nkernel", "--deadline", "90s", "--force", "last-node"]);
        assert_eq!(code(&output), expected, "{}", err(&output));
        assert!(out(&output).contains("web: handing over to lb2\n"), "{}", out(&output));
        assert!(format!("{}{}", out(&output), err(&output)).contains(text), "{}", err(&output));
        let asked = agent.verbs();
        let [Request::Drain { reason, who, at_unix_ms, deadline, force, dry_run }] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert_eq!((reason.as_str(), *deadline, *dry_run), ("new kernel", Duration::from_secs(90), false));
        assert_eq!(force, &["last-node"]);
        let uid = nix::unistd::geteuid();
        assert!(who.starts_with(&format!("uid {uid} (pid ")), "{who}");
        assert!(*at_unix_ms > 1_700_000_000_000);
    }
}

#[test]
fn a_detached_drain_lets_go_after_the_first_progress_but_still_tells_a_refusal() {
    let agent = Agent::start(|_| vec![Answer::Progress("handing over".to_owned())]);
    assert_eq!(code(&agent.ask(&["drain", "--detach"])), 0);
    let agent = Agent::start(|_| vec![Answer::Refused { interlock: "last-node".to_owned(), why: "alone".to_owned() }]);
    assert_eq!(code(&agent.ask(&["drain", "--detach"])), 10);
}

#[test]
fn an_agent_that_ends_before_its_answer_is_unreachable() {
    let agent = Agent::start(|_| vec![Answer::Progress("handing over".to_owned())]);
    let output = agent.ask(&["drain"]);
    assert_eq!(code(&output), 3);
    assert!(err(&output).contains("before the answer was complete"), "{}", err(&output));
}

#[test]
fn undrain_tells_who_asked() {
    let agent = Agent::start(|_| vec![Answer::Done("takes part again".to_owned())]);
    let output = agent.ask(&["undrain"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "takes part again\n"));
    assert!(matches!(agent.asked().as_slice(), [Request::Undrain { who }] if who.starts_with("uid ")));
}

fn record(agent: &Agent, id: u64, cause: Option<u64>) {
    let kind = Kind::BalancerState { balancer: "h".to_owned(), state: "gone".to_owned(), why: "killed".to_owned() };
    let event = Event { id, cause, suppressed: 0, kind };
    agent.ring.push(Arc::new(Recorded { wall: SystemTime::UNIX_EPOCH, event }));
}

#[test]
fn events_are_lines_with_their_cause_or_json_and_begin_after_since() {
    let agent = Agent::start(|_| Vec::new());
    record(&agent, 1, None);
    record(&agent, 2, Some(1));
    let output = agent.ask(&["events"]);
    assert_eq!(code(&output), 0);
    let text = out(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("#2 1970-01-01T00:00:00.000000Z FAULT: balancer h: gone: killed [because of #1]"), "{text}");
    let output = agent.ask(&["events", "--json", "--since", "1"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert_eq!((&value["id"], &value["cause"], &value["event"]), (&2.into(), &1.into(), &"balancer_state".into()));
}

#[test]
fn following_events_shows_what_comes_and_ends_with_the_agent() {
    let mut agent = Agent::start(|_| Vec::new());
    record(&agent, 1, None);
    let runtime = agent.folder.path(".");
    let mut follower = Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .args(["events", "--follow", "--json", "--runtime-dir", &runtime])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follower.stdout.take().expect("piped")));
    let mut next = || lines.next().map(|line| line.expect("text"));
    assert!(next().expect("the first").contains("\"id\":1"));
    record(&agent, 2, None);
    assert!(next().expect("the second").contains("\"id\":2"));
    agent.stop.cancel();
    agent.thread.take().expect("running").join().expect("no panic");
    assert_eq!(next(), None);
    follower.wait().expect("it ends by itself");
}

#[test]
fn the_socket_is_for_owner_and_group_and_a_second_server_is_refused_while_a_stale_file_is_replaced() {
    let agent = Agent::start(|_| Vec::new());
    let socket = agent.folder.path("holdfast.sock");
    let mode = fs::metadata(&socket).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o660);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let second = runtime.block_on(async { server::bind(&agent.folder.0) });
    let error = second.expect_err("somebody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("holdfast.sock"), "{error}");

    let folder = Folder::new();
    // A socket file whose listener is gone, as a killed worker leaves it.
    drop(std::os::unix::net::UnixListener::bind(folder.0.join("holdfast.sock")).expect("fresh"));
    runtime.block_on(async { server::bind(&folder.0) }).expect("stale files are replaced");
}

#[test]
fn a_request_that_is_too_long_or_not_understood_is_refused_and_never_reaches_the_node() {
    use std::io::{Read as _, Write as _};
    let agent = Agent::start(|_| vec![Answer::Done(String::new())]);
    let post = |body: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(agent.folder.path("holdfast.sock")).expect("there");
        let head = "POST /v1/drain HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n";
        let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let long = format!("{{\"deadline_ms\":1,\"reason\":\"{}\"}}", "x".repeat(20_000));
    assert!(post(&long).starts_with("HTTP/1.1 413"), "too long");
    let wordy = format!("{{\"deadline_ms\":1,\"reason\":\"{}\"}}", "x".repeat(600));
    assert!(post(&wordy).starts_with("HTTP/1.1 400"), "reason too long");
    assert!(post("{").starts_with("HTTP/1.1 400"), "not JSON");
    assert!(post("{\"deadline_ms\":1,\"for_ms\":2}").starts_with("HTTP/1.1 422"), "unknown field");
    assert!(agent.asked().is_empty());
    assert!(post("{\"deadline_ms\":1}").starts_with("HTTP/1.1 200"));
    assert_eq!(agent.verbs().len(), 1);
}

#[test]
fn a_client_that_goes_away_does_not_cancel_the_drain() {
    use std::io::Write as _;
    let (got, is_got) = std::sync::mpsc::channel::<()>();
    let (gone, is_gone) = std::sync::mpsc::channel::<()>();
    let agent = Agent::start(move |request| {
        if matches!(request, Request::Drain { .. }) {
            got.send(()).expect("the test waits");
            // The client is gone before the node goes on; its first line already finds nobody.
            is_gone.recv().expect("the test tells");
        }
        vec![Answer::Progress(String::new()), Answer::Done(String::new())]
    });
    let mut stream = std::os::unix::net::UnixStream::connect(agent.folder.path("holdfast.sock")).expect("there");
    let body = "{\"deadline_ms\":1}";
    let head = "POST /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("it reads");
    is_got.recv().expect("the node gets it");
    drop(stream);
    gone.send(()).expect("the node waits");
    // The server goes on as well, and nothing was put in the drain's place.
    assert_eq!(code(&agent.ask(&["undrain"])), 0);
    assert!(
        matches!(agent.verbs().as_slice(), [Request::Drain { .. }, Request::Undrain { .. }]),
        "{:?}",
        agent.asked()
    );
}

//! What the agents think of their planes: the status of each, asked for all the time. Every verdict comes with its age,
//! so that the time of a change is the agent's own, to the millisecond, however seldom it is asked.

use crate::clock::{MS, Ns, now, sleep_until};
use crate::fabric::Lb;
use crate::load::{Response, Stopper, parse_response};
use anyhow::{Result, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time between two questions: a verdict that lasts longer than that is never missed.
const POLL: Ns = 20 * MS;
/// Two times of one change differ by so much: the age is in whole milliseconds, and an answer takes its time.
const SAME: Ns = 15 * MS;
/// A status is far shorter.
const ANSWER_MAX: u64 = 1 << 20;

/// A verdict, and when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: Ns,
    /// On whose plane.
    pub lb: Lb,
    /// Its word.
    pub verdict: String,
    /// What it rested on when it was first seen.
    pub why: String,
}

/// What was seen so far.
#[derive(Debug, Default, Clone)]
struct Log {
    changes: Vec<Change>,
    /// The last known number of reloads, by host.
    generation: [Option<u64>; 2],
    /// The last known fitness for the VIP.
    fitness: [String; 2],
    /// Whether it was last said to be kept although it can't be served well, and why.
    open: [Option<String>; 2],
}

/// The running questions, a thread for each agent.
#[derive(Debug)]
pub struct Verdicts {
    threads: Vec<Stopper>,
    log: Arc<Mutex<Log>>,
}

impl Verdicts {
    /// Asks the agents that have their sockets in `directory`.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(directory: &Path) -> Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let mut threads = Vec::new();
        for lb in Lb::BOTH {
            let socket = directory.join(format!("{}-run", lb.name())).join("holdfast.sock");
            let shared = log.clone();
            threads.push(Stopper::spawn("verdicts", move |stop| {
                let mut due = now();
                while !stop() {
                    // Nobody answers while it starts.
                    if let Ok(status) = ask(&socket)
                        && let Ok(mut l) = shared.lock()
                    {
                        take(&mut l, lb, now(), &status);
                    }
                    due = (due + POLL).max(now());
                    sleep_until(due);
                }
                Ok(())
            })?);
        }
        Ok(Self { threads, log })
    }

    /// The verdict on the plane of `lb` now, once there is one.
    #[must_use]
    pub fn now(&self, lb: Lb) -> Option<String> {
        self.log.lock().ok()?.changes.iter().rfind(|c| c.lb == lb).map(|c| c.verdict.clone())
    }

    /// Both agents think that they can serve the VIP, and that all is well with their planes.
    #[must_use]
    pub fn all_well(&self) -> bool {
        let fit = self.log.lock().is_ok_and(|l| l.fitness.iter().all(|f| f == "fit"));
        fit && Lb::BOTH.iter().all(|lb| self.now(*lb).is_some_and(|v| v == "serving"))
    }

    /// Reloads of the plane of `lb` that the agent knows of.
    #[must_use]
    pub fn generation(&self, lb: Lb) -> Option<u64> {
        self.log.lock().ok()?.generation[lb.index()]
    }

    /// Why `lb` keeps the VIP although it can't serve it well, if it says so now.
    #[must_use]
    pub fn fails_open(&self, lb: Lb) -> Option<String> {
        self.log.lock().ok()?.open[lb.index()].clone()
    }

    /// Stops and returns every change, in order.
    ///
    /// # Errors
    /// A thread failed.
    pub fn finish(self) -> Result<Vec<Change>> {
        self.threads.into_iter().try_for_each(Stopper::finish)?;
        let mut all = self.log.lock().map(|l| l.changes.clone()).unwrap_or_default();
        all.sort_by_key(|c| c.at);
        Ok(all)
    }
}

fn ask(socket: &PathBuf) -> Result<Value> {
    const PATIENCE: Option<Duration> = Some(Duration::from_millis(500));
    let mut c = UnixStream::connect(socket)?;
    c.set_read_timeout(PATIENCE)?;
    c.set_write_timeout(PATIENCE)?;
    c.write_all(b"GET /v1/status HTTP/1.1\r\nHost: holdfast\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    c.take(ANSWER_MAX).read_to_end(&mut answer)?;
    let Response::Complete(200, _, length) = parse_response(&answer) else { bail!("no status") };
    let body = answer.windows(4).position(|w| w == b"\r\n\r\n").and_then(|end| answer.get(end + 4..length));
    Ok(serde_json::from_slice(body.unwrap_or_default())?)
}

/// Notes what `status` of `lb` says, which came at `at`.
fn take(log: &mut Log, lb: Lb, at: Ns, status: &Value) {
    if let Some(fitness) = status.pointer("/vips/0/fitness").and_then(Value::as_str) {
        fitness.clone_into(&mut log.fitness[lb.index()]);
    }
    let open = status.pointer("/vips/0/fail_open").and_then(Value::as_bool) == Some(true);
    let reasons = status.pointer("/vips/0/reasons").and_then(Value::as_array).into_iter().flatten();
    let reasons: Vec<&str> = reasons.filter_map(Value::as_str).collect();
    log.open[lb.index()] = open.then(|| reasons.join(", "));
    let Some(b) = status.pointer("/balancers/0") else { return };
    log.generation[lb.index()] = b.get("generation").and_then(Value::as_u64);
    let Some(verdict) = b.get("verdict").and_then(Value::as_str) else { return };
    let since = at.saturating_sub(b.get("verdict_age_ms").and_then(Value::as_u64).unwrap_or(0) * MS);
    let last = log.changes.iter().rfind(|c| c.lb == lb);
    if last.is_some_and(|l| l.verdict == verdict && since <= l.at + SAME) {
        return;
    }
    let what = |e: &Value| e.get("what").and_then(Value::as_str).map(str::to_owned);
    let why: Vec<String> = b.get("evidence").and_then(Value::as_array).into_iter().flatten().filter_map(what).collect();
    log.changes.push(Change { at: since, lb, verdict: verdict.to_owned(), why: why.join(", ") });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(verdict: &str, age_ms: u64) -> Value {
        let evidence = json!([{"what": "it is so", "age_ms": age_ms}]);
        let b = json!({"verdict": verdict, "verdict_age_ms": age_ms, "evidence": evidence, "generation": 3});
        json!({"balancers": [b], "vips": [{"fitness": "fit", "fail_open": true, "reasons": ["one", "two"]}]})
    }

    #[test]
    fn a_change_has_the_time_that_its_age_says_and_is_noted_once() {
        let mut log = Log::default();
        take(&mut log, Lb::Lb1, 1_000 * MS, &status("serving", 900));
        take(&mut log, Lb::Lb2, 1_000 * MS, &status("serving", 800));
        take(&mut log, Lb::Lb1, 1_020 * MS, &status("serving", 919));
        take(&mut log, Lb::Lb1, 1_040 * MS, &status("dead", 13));
        let seen: Vec<(Lb, Ns, &str)> = log.changes.iter().map(|c| (c.lb, c.at / MS, c.verdict.as_str())).collect();
        assert_eq!(seen, [(Lb::Lb1, 100, "serving"), (Lb::Lb2, 200, "serving"), (Lb::Lb1, 1_027, "dead")]);
        assert_eq!((log.changes[2].why.as_str(), log.generation), ("it is so", [Some(3); 2]));
        assert_eq!(log.open, [Some("one, two".to_owned()), Some("one, two".to_owned())]);
    }

    #[test]
    fn a_verdict_that_came_and_went_between_two_questions_leaves_its_trace() {
        let mut log = Log::default();
        take(&mut log, Lb::Lb1, 1_000 * MS, &status("serving", 900));
        take(&mut log, Lb::Lb1, 1_020 * MS, &status("serving", 4));
        assert_eq!(log.changes.len(), 2);
    }
}

//! Programs that run once on the worker's request: exec checks and hooks. Bounded in number and in time.

use super::Out;
use super::ipc::{ExecResult, ToWorker};
use super::types::{Event, Output};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Further ones are answered with [`ExecResult::NotStarted`].
const EXECS_MAX: usize = 64;
/// From SIGTERM to SIGKILL.
const KILL_AFTER: Duration = Duration::from_millis(500);
/// Nothing runs longer, whatever the worker asks for.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[derive(Debug)]
enum Phase {
    Running { until: Instant },
    Terminated { kill_at: Instant },
    Killed,
}

#[derive(Debug)]
struct Exec {
    /// The worker that asked, and its token; `None`: that worker is gone, nobody wants the result.
    token: Option<u64>,
    phase: Phase,
}

/// All that run.
#[derive(Debug, Default)]
pub(super) struct Execs {
    all: BTreeMap<u64, Exec>,
    last_id: u64,
}

impl Execs {
    pub(super) fn start(
        &mut self,
        now: Instant,
        token: u64,
        argv: Vec<String>,
        environment: Vec<(String, String)>,
        timeout: Duration,
        out: &mut Out,
    ) {
        if self.all.len() >= EXECS_MAX || argv.is_empty() {
            out.event(Event::Refused { what: "too many programs at a time, or one without a command" });
            let result = ExecResult::NotStarted("too many programs run already, or there is no command".to_owned());
            out.push(Output::SendToWorker(ToWorker::ExecDone { token, result, output: Vec::new() }));
            return;
        }
        self.last_id = self.last_id.wrapping_add(1);
        let until = now + timeout.min(TIMEOUT_MAX);
        self.all.insert(self.last_id, Exec { token: Some(token), phase: Phase::Running { until } });
        out.push(Output::SpawnExec { id: self.last_id, argv, environment });
    }

    pub(super) fn exited(&mut self, id: u64, result: ExecResult, output: Vec<u8>, out: &mut Out) {
        let Some(exec) = self.all.remove(&id) else { return };
        let result = match exec.phase {
            Phase::Running { .. } => result,
            Phase::Terminated { .. } | Phase::Killed => ExecResult::TimedOut,
        };
        if let Some(token) = exec.token {
            out.push(Output::SendToWorker(ToWorker::ExecDone { token, result, output }));
        }
    }

    /// Their worker is gone. They go on to their own end (a hook should not be lost with its worker), unheard.
    pub(super) fn orphan(&mut self) {
        for exec in self.all.values_mut() {
            exec.token = None;
        }
    }

    /// We leave.
    pub(super) fn stop_all(&mut self, now: Instant, out: &mut Out) {
        for (id, exec) in &mut self.all {
            if let Phase::Running { .. } = exec.phase {
                exec.phase = Phase::Terminated { kill_at: now + KILL_AFTER };
                out.push(Output::SignalExec { id: *id, signal: SIGTERM });
            }
        }
    }

    pub(super) fn timer(&mut self, now: Instant, out: &mut Out) {
        for (id, exec) in &mut self.all {
            let signal = match exec.phase {
                Phase::Running { until } if until <= now => {
                    exec.phase = Phase::Terminated { kill_at: now + KILL_AFTER };
                    SIGTERM
                }
                Phase::Terminated { kill_at } if kill_at <= now => {
                    exec.phase = Phase::Killed;
                    SIGKILL
                }
                _ => continue,
            };
            out.push(Output::SignalExec { id: *id, signal });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let at = |exec: &Exec| match exec.phase {
            Phase::Running { until } => Some(until),
            Phase::Terminated { kill_at } => Some(kill_at),
            Phase::Killed => None,
        };
        self.all.values().filter_map(at).min()
    }
}

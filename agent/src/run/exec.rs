//! Programs that the keeper runs for the node: `exec` checks and hooks.
//!
//! Checks are independent of each other. Runs of one hook are ordered: the next starts when the one before has ended;
//! of too many that wait the oldest is dropped, since a later state says more than an earlier one.

use crate::check;
use holdfast_node::config::{CheckId, Hook};
use holdfast_node::io::{CheckError, Failure};
use holdfast_node::keeper::ipc::{ExecResult, ToKeeper};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Programs that run at once. Full → a check fails, a hook waits.
const RUNNING_MAX: usize = 64;
/// Runs of one hook that wait.
const WAITING_MAX: usize = 16;
/// Bytes of a program's output that go into a check's result.
const SAID_MAX: usize = 80;

type Environment = Vec<(String, String)>;

/// Keeps track of what runs. Pure: what it returns is to be sent.
#[derive(Debug)]
pub(super) struct ExecDesk {
    next_token: u64,
    running: BTreeMap<u64, Purpose>,
    hooks: Vec<(Hook, HookRuns)>,
    /// Hook runs that were dropped.
    pub(super) dropped: u64,
}

#[derive(Debug)]
enum Purpose {
    Check { check: CheckId, sequence: u64, timeout: Duration },
    Hook(usize),
}

#[derive(Debug, Default)]
struct HookRuns {
    running: bool,
    waiting: VecDeque<Environment>,
}

impl ExecDesk {
    pub(super) fn new(hooks: &[Hook]) -> Self {
        let hooks = hooks.iter().map(|h| (h.clone(), HookRuns::default())).collect();
        Self { next_token: 1, running: BTreeMap::new(), hooks, dropped: 0 }
    }

    /// `Err`: the result at once.
    pub(super) fn check(
        &mut self,
        check: CheckId,
        sequence: u64,
        argv: &[String],
        timeout: Duration,
    ) -> Result<ToKeeper, CheckError> {
        if self.running.len() >= RUNNING_MAX {
            return Err(format!("{RUNNING_MAX} programs still run").into());
        }
        Ok(self.exec(Purpose::Check { check, sequence, timeout }, argv.to_vec(), Vec::new(), timeout))
    }

    /// The run, if it's this one's turn.
    pub(super) fn hook(&mut self, hook: u16, environment: Environment) -> Option<ToKeeper> {
        let hook = usize::from(hook);
        let (_, runs) = self.hooks.get_mut(hook)?;
        if runs.waiting.len() >= WAITING_MAX {
            runs.waiting.pop_front();
            self.dropped += 1;
        }
        runs.waiting.push_back(environment);
        self.next_run(hook)
    }

    /// A program ended (or could not even be asked for). What to tell the node, and what to run next.
    pub(super) fn done(
        &mut self,
        token: u64,
        result: &ExecResult,
        output: &[u8],
    ) -> (Option<check::Done>, Option<ToKeeper>) {
        match self.running.remove(&token) {
            None => (None, None),
            Some(Purpose::Check { check, sequence, timeout }) => {
                let result = judge(result, output, timeout);
                (Some(check::Done { check, sequence, result, note: None }), None)
            }
            Some(Purpose::Hook(hook)) => {
                if let Some((_, runs)) = self.hooks.get_mut(hook) {
                    runs.running = false;
                }
                (None, self.next_run(hook))
            }
        }
    }

    fn next_run(&mut self, hook: usize) -> Option<ToKeeper> {
        let (configured, runs) = self.hooks.get_mut(hook)?;
        if runs.running {
            return None;
        }
        let environment = runs.waiting.pop_front()?;
        runs.running = true;
        let (argv, timeout) = (configured.exec.clone(), configured.timeout);
        Some(self.exec(Purpose::Hook(hook), argv, environment, timeout))
    }

    fn exec(&mut self, purpose: Purpose, argv: Vec<String>, environment: Environment, timeout: Duration) -> ToKeeper {
        let token = self.next_token;
        self.next_token += 1;
        self.running.insert(token, purpose);
        ToKeeper::Exec { token, argv, environment, timeout }
    }
}

fn judge(result: &ExecResult, output: &[u8], timeout: Duration) -> Result<(), CheckError> {
    let failed = |what: String| Err(CheckError::from(what));
    match result {
        ExecResult::Status(0) => Ok(()),
        ExecResult::Status(n) => failed(match first_line(output) {
            Some(said) => format!("exit status {n}: {said}"),
            None => format!("exit status {n}"),
        }),
        ExecResult::Signal(n) => failed(format!("ended by signal {n}")),
        ExecResult::TimedOut => {
            Err(CheckError { what: format!("no answer in {}", check::in_words(timeout)), how: Failure::Silent })
        }
        ExecResult::NotStarted(why) => failed(format!("not started: {why}")),
    }
}

/// The first line that says something, printable and short.
fn first_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().map(str::trim).find(|l| !l.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(SAID_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::Name;

    const SECOND: Duration = Duration::from_secs(1);

    fn desk() -> ExecDesk {
        let name = Name::new("notify").expect("a valid name");
        ExecDesk::new(&[Hook { name, on: Vec::new(), exec: vec!["/bin/notify".to_owned()], timeout: SECOND }])
    }

    fn event(value: &str) -> Environment {
        vec![("HOLDFAST_EVENT".to_owned(), value.to_owned())]
    }

    fn asked(message: Option<ToKeeper>) -> Option<(u64, Environment)> {
        match message {
            Some(ToKeeper::Exec { token, environment, .. }) => Some((token, environment)),
            _ => None,
        }
    }

    #[test]
    fn runs_of_one_hook_are_ordered_one_at_a_time() {
        let mut desk = desk();
        let (first, _) = asked(desk.hook(0, event("active"))).expect("the first one starts");
        assert_eq!(desk.hook(0, event("backup")), None);
        assert_eq!(desk.hook(0, event("fault")), None);
        let (done, next) = desk.done(first, &ExecResult::TimedOut, b"");
        assert_eq!(done, None);
        let (second, environment) = asked(next).expect("the next one starts");
        assert_eq!(environment, event("backup"));
        assert_eq!(desk.done(first, &ExecResult::Status(0), b""), (None, None), "a token counts once");
        let (_, next) = desk.done(second, &ExecResult::Status(0), b"");
        assert_eq!(asked(next).map(|(_, e)| e), Some(event("fault")));
    }

    #[test]
    fn of_too_many_waiting_runs_the_oldest_is_dropped_and_counted() {
        let mut desk = desk();
        let (token, _) = asked(desk.hook(0, event("first"))).expect("starts");
        for n in 0..=WAITING_MAX {
            assert_eq!(desk.hook(0, event(&n.to_string())), None);
        }
        assert_eq!(desk.dropped, 1);
        let (_, next) = desk.done(token, &ExecResult::Status(0), b"");
        assert_eq!(asked(next).map(|(_, e)| e), Some(event("1")));
    }

    #[test]
    fn a_check_passes_by_exit_status_0_and_else_says_what_the_program_said() {
        let mut desk = desk();
        let mut result = |how: ExecResult, output: &[u8]| {
            let ask = desk.check(CheckId(3), 9, &["/bin/check".to_owned()], SECOND).expect("room");
            let (token, _) = asked(Some(ask)).expect("an exec");
            let (done, next) = desk.done(token, &how, output);
            assert_eq!(next, None);
            let done = done.expect("a result");
            assert_eq!((done.check, done.sequence), (CheckId(3), 9));
            done.result.map_err(|e| (e.what, e.how))
        };
        let failed = |what: &str, how| Err((what.to_owned(), how));
        assert_eq!(result(ExecResult::Status(0), b"all good"), Ok(()));
        assert_eq!(
            result(ExecResult::Status(2), b"\n pool \x1b[31mempty\nmore"),
            failed("exit status 2: pool [31mempty", Failure::Other)
        );
        assert_eq!(result(ExecResult::Status(1), b""), failed("exit status 1", Failure::Other));
        assert_eq!(result(ExecResult::Signal(11), b""), failed("ended by signal 11", Failure::Other));
        assert_eq!(result(ExecResult::TimedOut, b""), failed("no answer in 1s", Failure::Silent));
        assert_eq!(
            result(ExecResult::NotStarted("no such file".to_owned()), b""),
            failed("not started: no such file", Failure::Other)
        );
    }

    #[test]
    fn too_many_programs_at_once_fail_the_check_at_once() {
        let mut desk = desk();
        for n in 0..RUNNING_MAX as u64 {
            assert!(desk.check(CheckId(0), n, &[], SECOND).is_ok());
        }
        assert!(desk.check(CheckId(0), 99, &[], SECOND).is_err());
    }
}

//! A drill, run until enough of its runs are valid, whatever it is run on.

use crate::clock::{MS, Ns, SECOND};
use crate::env;
use crate::process::{make_realtime, tail};
use crate::report::{Report, Run};
use crate::watch::reference::{Reference, VOID};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// How long the noise floor is measured before each fault.
pub(crate) const NOISE: Ns = SECOND;
/// Time between two requests on a long-lived connection.
pub(crate) const LONG_INTERVAL: Ns = 50 * MS;
/// Real-time priority of the measuring threads: below the agents' (so that measuring doesn't delay what is measured)
/// but for the reference.
pub(crate) const PRIORITY: u8 = 10;
/// Void runs are repeated up to so many times over the whole drill, beside the runs that are wanted.
const VOIDS_MAX: usize = 5;
/// Lines of each log that a failure shows.
const LOG_LINES: usize = 15;

/// What never came to rest, though it had far more time than it takes: a failure, however late the machine was
/// meanwhile. (Anything else that breaks off while the machine stands still says nothing.)
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unsettled(pub(crate) String);

/// Where run number `nth` wants its fault within a span that repeats itself (between two adverts, say). Faults come at
/// any phase; over the runs of a drill theirs are spread evenly (multiples of the golden ratio), so that a median isn't
/// a matter of when the drill happened to start.
pub(crate) fn phase(nth: usize, span: Ns) -> Ns {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    (((nth as f64 + 0.5) * GOLDEN).fract() * span as f64) as Ns
}

/// The end of each log in `directory`.
pub(crate) fn last_lines(directory: &Path) -> String {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
    files.sort();
    let logs = files.iter().filter(|f| f.extension().is_some_and(|e| e == "log" || e == "err"));
    logs.map(|f| tail(f, LOG_LINES)).filter(|t| t.lines().count() > 1).collect()
}

/// What runs of a drill are done on, one after the other.
pub(crate) trait Stage {
    /// Where its logs are.
    fn directory(&self) -> &Path;
}

/// How a drill is repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeat<'a> {
    /// The drill's name.
    pub(crate) name: &'a str,
    /// Valid runs wanted.
    pub(crate) wanted: usize,
    /// Each run has a stage of its own.
    pub(crate) afresh: bool,
    /// Print each run's timeline to stderr as it happens.
    pub(crate) narrate: bool,
    /// Say where the stage's directory is: it is kept.
    pub(crate) keep: bool,
}

/// What a run's end means.
#[derive(Debug)]
enum Outcome {
    Ran(Run),
    Void(String),
    Broke(anyhow::Error),
}

/// `late`: how late the machine was at worst during the run.
fn outcome(ended: Result<Run>, late: Ns) -> Outcome {
    match ended {
        Ok(run) => Outcome::Ran(run),
        // A machine that stands still fails checks everywhere: what broke off then says nothing either.
        Err(e) if late > VOID && e.downcast_ref::<Unsettled>().is_none() => {
            Outcome::Void(format!("the machine was late, then: {e:#}"))
        }
        Err(e) => Outcome::Broke(e),
    }
}

impl Repeat<'_> {
    /// Adds runs to `report` until it has as many valid ones as are wanted, two broke off, or too many were void.
    ///
    /// # Errors
    /// [`env::Lacks`] when the machine can't run it. What goes wrong in a run is in the report.
    pub(crate) fn run<S: Stage>(
        &self,
        report: &mut Report,
        start: impl Fn() -> Result<S>,
        one: impl Fn(&mut S, usize) -> Result<Run>,
    ) -> Result<()> {
        let kept = |s: &S| {
            if self.keep {
                eprintln!("kept: {}", s.directory().display());
            }
        };
        let mut stage: Option<S> = None;
        let (mut errors, mut voids) = (0, 0);
        while report.valid() < self.wanted && errors < 2 && voids <= VOIDS_MAX {
            let s = match stage.as_mut() {
                Some(s) => s,
                None => match start() {
                    Ok(s) => stage.insert(s),
                    Err(e) if e.downcast_ref::<env::Lacks>().is_some() => return Err(e),
                    Err(e) => {
                        eprintln!("{}: {e:#}", self.name);
                        report.errors.push(first_line(&e));
                        break;
                    }
                },
            };
            let reference = Reference::start()?;
            let _without = make_realtime(reference.thread(), 90);
            let ended = one(s, report.runs.len());
            let late = reference.finish()?.into_iter().map(|(_, l)| l).max().unwrap_or(0);
            match outcome(ended, late) {
                Outcome::Ran(run) => {
                    voids += usize::from(run.void.is_some());
                    if self.narrate {
                        eprint!("{}", run.timeline_text());
                        run.journal.iter().for_each(|l| eprintln!("    {l}"));
                    }
                    report.runs.push(run);
                    if self.afresh {
                        stage = None;
                    }
                }
                Outcome::Void(why) => {
                    voids += 1;
                    report.runs.push(Run { void: Some(why), ..Run::default() });
                    stage = None;
                }
                Outcome::Broke(e) => {
                    errors += 1;
                    kept(s);
                    eprintln!("{}: {e:#}\n{}", self.name, last_lines(s.directory()));
                    report.errors.push(first_line(&e));
                    stage = None; // whatever state it is in, the next run starts afresh
                }
            }
        }
        if let Some(s) = &stage {
            kept(s);
        }
        Ok(())
    }
}

fn first_line(e: &anyhow::Error) -> String {
    format!("{e:#}").lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    struct Nowhere;

    impl Stage for Nowhere {
        fn directory(&self) -> &Path {
            Path::new("/nonexistent")
        }
    }

    fn repeated(wanted: usize, one: impl Fn(usize) -> Result<Run>) -> Report {
        let mut report = Report::new("drill", "subject".into(), crate::balancer::Kind::Forward);
        let repeat = Repeat { name: "drill", wanted, afresh: false, narrate: false, keep: false };
        repeat.run(&mut report, || Ok(Nowhere), |_, nth| one(nth)).expect("nothing is missing");
        report.judge_by(&[], wanted);
        report
    }

    #[test]
    fn a_late_machine_voids_what_broke_off_but_not_what_never_came_to_rest() {
        let broke = |e, late| matches!(outcome(Err(e), late), Outcome::Broke(_));
        assert!(!broke(anyhow!("a check failed"), VOID + 1));
        assert!(broke(anyhow!("a check failed"), VOID));
        assert!(broke(Unsettled("not the only Active".into()).into(), VOID + 1));
        assert!(broke(anyhow::Error::from(Unsettled("x".into())).context("the repair"), VOID + 1));
    }

    #[test]
    fn void_runs_are_repeated_and_too_many_of_them_leave_a_drill_short_which_fails() {
        let void = || Run { void: Some("late".into()), ..Run::default() };
        let some = repeated(2, |nth| Ok(if nth < 3 { void() } else { Run::default() }));
        assert_eq!((some.runs.len(), some.valid(), some.pass), (5, 2, true));
        let short = repeated(2, |nth| Ok(if nth == 0 { Run::default() } else { void() }));
        assert_eq!((short.runs.len(), short.valid(), short.pass), (2 + VOIDS_MAX, 1, false));
        assert_eq!(short.verdicts, [("1 valid runs of 2".to_owned(), false)]);
    }

    #[test]
    fn two_that_broke_off_end_a_drill() {
        let report = repeated(5, |nth| Err(Unsettled(format!("run {nth}\nmore")).into()));
        assert_eq!((report.errors, report.pass), (vec!["run 0".to_owned(), "run 0".to_owned()], false));
    }

    #[test]
    fn ten_runs_spread_their_faults_over_the_span() {
        let mut all: Vec<Ns> = (0..10).map(|nth| phase(nth, 100)).collect();
        all.sort_unstable();
        assert!(all.iter().all(|p| *p < 100) && all.windows(2).all(|w| w[1] - w[0] <= 20), "{all:?}");
    }
}

//! Programs that are run for the worker; a reload.

use super::*;

fn exec(timeout: u64) -> ToKeeper {
    ToKeeper::Exec { token: 5, argv: vec!["/bin/true".to_owned()], environment: Vec::new(), timeout: ms(timeout) }
}

#[test]
fn a_program_that_takes_too_long_gets_sigterm_then_sigkill_and_counts_as_timed_out() {
    let mut bench = Bench::working();
    bench.say(exec(200));
    bench.beat(ms(1_000));
    let signals: Vec<_> = bench
        .log
        .iter()
        .filter_map(|(at, o)| if let Output::SignalExec { id: 1, signal } = o { Some((*at, *signal)) } else { None })
        .collect();
    assert_eq!(signals, [(200, 15), (700, 9)]);
    bench.input(Input::ExecExited { id: 1, result: ExecResult::Signal(9), output: b"slow".to_vec() });
    let done = ToWorker::ExecDone { token: 5, result: ExecResult::TimedOut, output: b"slow".to_vec() };
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(done.clone())), [1_000]);
}

#[test]
fn the_result_of_a_program_goes_to_the_worker_that_asked_and_to_no_other() {
    let mut bench = Bench::working();
    bench.say(exec(5_000));
    bench.crash();
    bench.hello();
    bench.input(Input::ExecExited { id: 1, result: ExecResult::Status(0), output: Vec::new() });
    let done = |o: &Output| matches!(o, Output::SendToWorker(ToWorker::ExecDone { .. }));
    assert_eq!(bench.times(done), [0; 0]);
    bench.say(exec(5_000));
    bench.input(Input::ExecExited { id: 2, result: ExecResult::Status(3), output: Vec::new() });
    assert_eq!(bench.times(done).len(), 1);
}

#[test]
fn too_many_programs_at_a_time_are_refused_one_by_one() {
    let mut bench = Bench::working();
    for _ in 0..65 {
        bench.say(exec(5_000));
    }
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnExec { .. })).len(), 64);
    let refused = |o: &Output| {
        matches!(o, Output::SendToWorker(ToWorker::ExecDone { result: ExecResult::NotStarted(_), token: 5, .. }))
    };
    assert_eq!(bench.times(refused).len(), 1);
}

#[test]
fn a_reload_is_passed_on() {
    let mut bench = Bench::working();
    bench.input(Input::Reload);
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(ToWorker::Reload)), [0]);
}

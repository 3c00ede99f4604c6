//! Results on their way to who asked: one that says what is known already waits a moment for others.
//!
//! Who hears them is the protocol thread, and each time it is woken costs more than what it hears. A failure, and a
//! pass of a check that has yet to show that it passes, goes at once and takes along what waits.

use super::Done;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// So long a result may wait for others.
pub(super) const HOLD: Duration = Duration::from_millis(10);
/// Results that go together at most.
const TOGETHER: usize = 64;

/// A result, and whether it may wait.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) done: Done,
    pub(super) waits: bool,
}

/// Passes results on, none of them more than `hold` later, until nobody gives or takes any. While a probe is `running`,
/// there is somebody to wait for.
pub(super) async fn gather(
    mut told: mpsc::Receiver<Told>,
    running: Arc<AtomicUsize>,
    results: mpsc::Sender<Vec<Done>>,
    hold: Duration,
) {
    let mut held: Vec<Done> = Vec::new();
    let mut until = None;
    let mut open = true;
    while open {
        let mut go = tokio::select! {
            biased;
            first = told.recv() => {
                open = first.is_some();
                let room = TOGETHER.saturating_sub(held.len() + 1);
                let more = std::iter::from_fn(|| told.try_recv().ok()).take(room);
                let mut urgent = !open;
                for Told { done, waits } in first.into_iter().chain(more) {
                    urgent |= !waits;
                    held.push(done);
                }
                urgent
            }
            () = at(until) => true,
        };
        go |= held.len() >= TOGETHER || running.load(Ordering::Relaxed) == 0;
        if !go {
            until.get_or_insert_with(|| Instant::now() + hold);
            continue;
        }
        until = None;
        // Err: the worker is stopping, nobody wants to know.
        if !held.is_empty() && results.send(std::mem::take(&mut held)).await.is_err() {
            return;
        }
    }
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::CheckId;

    const LONG: Duration = Duration::from_secs(600);

    struct Bench {
        tell: mpsc::Sender<Told>,
        running: Arc<AtomicUsize>,
        results: mpsc::Receiver<Vec<Done>>,
    }

    impl Bench {
        fn new(running: usize, hold: Duration) -> Self {
            let ((tell, told), (results_in, results)) = (mpsc::channel(256), mpsc::channel(256));
            let running = Arc::new(AtomicUsize::new(running));
            tokio::spawn(gather(told, Arc::clone(&running), results_in, hold));
            Self { tell, running, results }
        }

        async fn tell(&self, sequence: u64, waits: bool) {
            let done = Done { check: CheckId(0), sequence, result: Ok(()), note: None };
            self.tell.send(Told { done, waits }).await.expect("it listens");
            // Its turn.
            tokio::task::yield_now().await;
        }

        async fn next(&mut self) -> Vec<u64> {
            self.results.recv().await.expect("something comes").iter().map(|done| done.sequence).collect()
        }
    }

    #[tokio::test]
    async fn what_agrees_waits_for_those_that_run_and_goes_with_the_last_one() {
        let mut bench = Bench::new(1, LONG);
        bench.tell(1, true).await;
        bench.tell(2, true).await;
        assert!(bench.results.is_empty());
        bench.running.store(0, Ordering::Relaxed);
        bench.tell(3, true).await;
        assert_eq!(bench.next().await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn what_cannot_wait_goes_at_once_with_what_does() {
        let mut bench = Bench::new(1, LONG);
        bench.tell(1, true).await;
        bench.tell(2, false).await;
        assert_eq!(bench.next().await, [1, 2]);
    }

    #[tokio::test]
    async fn nothing_waits_longer_than_a_moment_for_one_that_never_ends() {
        let mut bench = Bench::new(1, Duration::from_millis(1));
        for sequence in 0..3 {
            bench.tell(sequence, true).await;
            assert_eq!(bench.next().await, [sequence]);
        }
    }

    #[tokio::test]
    async fn as_many_go_together_as_fit_and_the_last_ones_too_when_nobody_tells_more() {
        let mut bench = Bench::new(1, LONG);
        for sequence in 0..130 {
            bench.tell(sequence, true).await;
        }
        drop(bench.tell);
        let mut all = Vec::new();
        while let Some(some) = bench.results.recv().await {
            assert!(some.len() <= TOGETHER);
            all.extend(some.iter().map(|done| done.sequence));
        }
        assert_eq!(all, (0..130).collect::<Vec<_>>());
    }
}

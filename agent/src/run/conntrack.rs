//! Looks at the connection table once a second, and tells the node.

use crate::os::conntrack::Source;
use crate::os::timerfd::Pause;
use holdfast_node::config::Conntrack;
use holdfast_node::conntrack::Sample;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// An empty table that stayed as it is for so many looks, more than the node remembers anything of it for, is told of
/// only every so many looks, which its forecast bears: nobody uses it, and each word of it wakes the thread that sends
/// adverts, here and at the peers.
const SETTLED: u32 = 15;
const SELDOM: u32 = 5;

/// Looks until nobody listens any more.
pub(super) async fn watch(config: Conntrack, source: impl Source, told: mpsc::Sender<Result<Sample, String>>) {
    if config.watch {
        look(config, source, told, EVERY).await;
    }
}

async fn look(config: Conntrack, mut source: impl Source, told: mpsc::Sender<Result<Sample, String>>, every: Duration) {
    let mut pause = Pause::new();
    let (mut last, mut again) = (None, 0u32);
    loop {
        // The kernel answers at once: to have another thread woken for it would cost more.
        let sample = source.look();
        let sample = sample.map(|sample| limited(config, sample));
        again = if last.as_ref() == Some(&sample) { again.saturating_add(1) } else { 0 };
        last = Some(sample.clone());
        let news = match &sample {
            Ok(sample) => sample.count > 0 || again < SETTLED || again % SELDOM == 0,
            // That there is no table is told once.
            Err(_) => again == 0,
        };
        if news && told.send(sample).await.is_err() {
            return;
        }
        pause.until(Instant::now() + every).await;
    }
}

/// With the limit of the configuration, if that is lower.
fn limited(config: Conntrack, sample: Sample) -> Sample {
    let limit = match (config.limit, sample.limit) {
        (None, kernel) => kernel,
        (Some(own), 0) => own,
        (Some(own), kernel) => own.min(kernel),
    };
    Sample { limit, ..sample }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table whose limit is whatever a test says: the kernel's own is one for the whole machine.
    struct Fake(std::vec::IntoIter<Result<Sample, String>>);

    impl Source for Fake {
        fn look(&mut self) -> Result<Sample, String> {
            self.0.next().unwrap_or_else(|| Err("the end".to_owned()))
        }
    }

    async fn told(looks: Vec<Result<Sample, String>>, n: usize) -> Vec<Result<Sample, String>> {
        let (told, mut seen) = mpsc::channel(2);
        let fake = Fake(looks.into_iter());
        let watcher = tokio::spawn(look(Conntrack::default(), fake, told, Duration::from_millis(1)));
        let mut all = Vec::new();
        for _ in 0..n {
            all.extend(seen.recv().await);
        }
        watcher.abort();
        all
    }

    #[test]
    fn the_lower_limit_counts() {
        let with = |own, kernel| limited(Conntrack { limit: own, ..Conntrack::default() }, Sample::of(5, kernel)).limit;
        assert_eq!([with(None, 100), with(Some(50), 100), with(Some(200), 100), with(Some(50), 0)], [100, 50, 100, 50]);
    }

    #[tokio::test]
    async fn that_there_is_no_table_is_told_once_and_again_when_there_is_another_reason() {
        let none = || Err("none".to_owned());
        let looks = vec![none(), none(), Ok(Sample::of(1, 2)), none(), none(), Err("other".to_owned())];
        let seen = told(looks, 4).await;
        assert_eq!(seen, [none(), Ok(Sample::of(1, 2)), none(), Err("other".to_owned())]);
    }

    #[tokio::test]
    async fn a_table_that_nobody_uses_is_told_of_seldom_and_at_once_when_somebody_does() {
        let (empty, used) = (Ok(Sample::of(0, 9)), Ok(Sample::of(1, 9)));
        let looks = [vec![empty.clone(); 36], vec![used.clone(); 30]].concat();
        // The first 15, and after the first the 15th, 20th, 25th, 30th and 35th; and all in which something is there.
        let expected = [vec![empty; 20], vec![used; 30]].concat();
        assert_eq!(told(looks, expected.len()).await, expected);
    }

    #[tokio::test]
    async fn nothing_is_looked_at_when_it_is_not_to_be_watched() {
        let off = Conntrack { watch: false, ..Conntrack::default() };
        let (told, mut seen) = mpsc::channel(2);
        watch(off, Fake(vec![Ok(Sample::of(1, 2))].into_iter()), told).await;
        assert_eq!(seen.recv().await, None);
    }
}

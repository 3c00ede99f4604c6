//! Is a file there, or not there, and when was it changed?

use holdfast_node::config::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// One look at a time: a file system that hangs keeps one thread, not one for each probe.
#[derive(Debug, Default)]
pub(super) struct Looks(Arc<Mutex<()>>);

impl Looks {
    pub(super) async fn look(&self, file: &File) -> Result<(), String> {
        let Ok(turn) = Arc::clone(&self.0).try_lock_owned() else {
            return Err("an earlier look still waits for the file system".to_owned());
        };
        let path = file.path.clone();
        let changed = tokio::task::spawn_blocking(move || changed(&path, turn)).await;
        let changed = changed.map_err(|_| "the agent is stopping".to_owned())??;
        judge(file, changed, SystemTime::now())
    }
}

/// When it was changed; `None`: it isn't there.
fn changed(path: &Path, _turn: OwnedMutexGuard<()>) -> Result<Option<SystemTime>, String> {
    match std::fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(at) => Ok(Some(at)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(super::describe(&e)),
    }
}

fn judge(file: &File, changed: Option<SystemTime>, now: SystemTime) -> Result<(), String> {
    match (changed, file.present) {
        (None, false) => Ok(()),
        (None, true) => Err("the file isn't there".to_owned()),
        (Some(_), false) => Err("the file is there".to_owned()),
        (Some(at), true) => {
            // A change in the future is a clock that was set back: the file is as new as can be.
            let age = now.duration_since(at).unwrap_or_default();
            match file.max_age {
                Some(most) if age > most => Err(format!("the file was changed {} s ago", age.as_secs())),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn judged(present: bool, max_age_s: Option<u64>, age_s: Option<i64>) -> Result<(), String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let file = File { path: "/run/flag".into(), present, max_age: max_age_s.map(Duration::from_secs) };
        let changed = age_s.map(|age| match u64::try_from(age) {
            Ok(age) => now - Duration::from_secs(age),
            Err(_) => now + Duration::from_secs(age.unsigned_abs()),
        });
        judge(&file, changed, now)
    }

    #[test]
    fn a_file_that_must_be_there_may_be_no_older_than_said() {
        assert_eq!(judged(true, None, Some(99_999)), Ok(()));
        assert_eq!(judged(true, Some(60), Some(60)), Ok(()));
        assert_eq!(judged(true, Some(60), Some(61)), Err("the file was changed 61 s ago".to_owned()));
        assert_eq!(judged(true, Some(60), Some(-5)), Ok(()), "the clock was set back");
        assert_eq!(judged(true, None, None), Err("the file isn't there".to_owned()));
    }

    #[test]
    fn a_file_that_must_not_be_there_is_a_failure_when_it_is() {
        assert_eq!(judged(false, None, None), Ok(()));
        assert_eq!(judged(false, None, Some(5)), Err("the file is there".to_owned()));
    }

    #[tokio::test]
    async fn a_look_that_hangs_keeps_the_next_one_from_starting() {
        let looks = Looks::default();
        let file = File { path: "/".into(), present: true, max_age: None };
        let hangs = Arc::clone(&looks.0).lock_owned().await;
        let refused = looks.look(&file).await.expect_err("one hangs");
        assert_eq!(refused, "an earlier look still waits for the file system");
        drop(hangs);
        assert_eq!(looks.look(&file).await, Ok(()));
    }
}

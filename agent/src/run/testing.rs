//! Shared by the unit tests of this module.

use super::api::Recorded;
use holdfast_node::journal::{Event, Kind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// A directory of the test's own, removed at its end.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("holdfast-run-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a fresh directory");
        Self(dir)
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An entry with this id.
pub(super) fn recorded(id: u64) -> Recorded {
    let kind = Kind::CheckState { check: "web".to_owned(), passed: false, why: "status 503".to_owned() };
    let event = Event { id, cause: (id > 1).then(|| id - 1), suppressed: 0, kind };
    Recorded { wall: UNIX_EPOCH + Duration::from_micros(1_795_988_222_000_001 + id), event }
}

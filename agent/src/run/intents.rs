//! The operators' intents on disk: `intents.json` in the state directory.

use holdfast_node::drain::Intents;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Name of the file in the state directory.
pub(super) const FILE: &str = "intents.json";

/// What was stored; an unreadable file counts as nothing stored, and a note says so: a node that is up with a
/// forgotten drain is better than none.
pub(super) fn load(state_dir: &Path, notes: &mut Vec<String>) -> Intents {
    let path = state_dir.join(FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|e| {
            notes.push(format!("{}: {e}; stored drains are forgotten", path.display()));
            Intents::default()
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Intents::default(),
        Err(e) => {
            notes.push(format!("{}: {e}; stored drains are forgotten", path.display()));
            Intents::default()
        }
    }
}

/// Stores them: after a crash at any point either the old or the new ones are there, whole.
pub(super) fn store(state_dir: &Path, intents: &Intents) -> io::Result<()> {
    let temporary = state_dir.join("intents.json.new");
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(intents)?)?;
    file.sync_all()?;
    fs::rename(&temporary, state_dir.join(FILE))?;
    File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Dir;
    use holdfast_node::drain::DrainIntent;

    fn drained() -> Intents {
        let drain =
            DrainIntent { who: "uid 0".to_owned(), reason: "disk".to_owned(), since_unix_ms: 5, until_unix_ms: None };
        Intents { drain: Some(drain), ..Intents::default() }
    }

    #[test]
    fn what_was_stored_is_loaded_and_nothing_else_stays_behind() {
        let dir = Dir::new();
        let mut notes = Vec::new();
        assert_eq!(load(dir.root(), &mut notes), Intents::default());
        store(dir.root(), &drained()).expect("writable");
        assert_eq!(load(dir.root(), &mut notes), drained());
        store(dir.root(), &Intents::default()).expect("writable");
        assert_eq!(load(dir.root(), &mut notes), Intents::default());
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(fs::read_dir(dir.root()).expect("there").count(), 1);
    }

    #[test]
    fn a_torn_file_is_nothing_stored_and_is_said() {
        let dir = Dir::new();
        fs::write(dir.path(FILE), "{\"drain\":{\"who\"").expect("writable");
        let mut notes = Vec::new();
        assert_eq!(load(dir.root(), &mut notes), Intents::default());
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn a_directory_that_is_missing_is_an_error_and_not_a_panic() {
        let dir = Dir::new();
        assert!(store(&dir.path("missing"), &drained()).is_err());
    }
}

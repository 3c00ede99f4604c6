//! The ledger file in the runtime directory. Whoever runs a keeper holds that directory's lock ([`crate::ctl::instance`]).

use crate::os::process;
use holdfast_node::keeper::{Found, Ledger};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "keeper.json";
/// A longer file isn't ours.
const LENGTH_MAX: u64 = 1 << 20;

/// The file.
#[derive(Debug)]
pub(super) struct LedgerFile {
    path: PathBuf,
}

impl LedgerFile {
    /// Creates the directory where needed.
    ///
    /// # Errors
    /// The directory can't be made.
    pub(super) fn open(runtime_dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(runtime_dir)?;
        Ok(Self { path: runtime_dir.join(FILE) })
    }

    /// What a former keeper left, with what is there of it now. `Err`: the file is there and can't be used.
    pub(super) fn find(&self) -> io::Result<Found> {
        let ledger = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::default()),
            Err(error) => return Err(error),
            Ok(meta) if meta.len() > LENGTH_MAX => return Err(io::Error::other("too long")),
            Ok(_) => serde_json::from_slice::<Ledger>(&fs::read(&self.path)?)?,
        };
        let now = |pid| process::start_time(pid);
        Ok(Found {
            worker: ledger.worker.map(|worker| (worker, now(worker.pid))),
            balancers: ledger
                .balancers
                .into_iter()
                .map(|entry| {
                    let pid = entry.process.pid;
                    (entry, now(pid))
                })
                .collect(),
        })
    }

    /// Stores it atomically; an empty one is removed. The directory is lost at a reboot, as the processes are, so
    /// nothing is synced.
    pub(super) fn store(&self, ledger: &Ledger) -> io::Result<()> {
        if *ledger == Ledger::default() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let next = self.path.with_extension("json.new");
        fs::write(&next, serde_json::to_vec(ledger)?)?;
        fs::rename(&next, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::keeper::{LedgerBalancer, Process};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("holdfast-ledger-{name}-{}", std::process::id()));
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_ledger_is_found_again_with_what_is_there_of_its_processes() {
        let folder = Folder::new("again");
        let file = LedgerFile::open(&folder.0).expect("opened");
        assert_eq!(file.find().expect("nothing yet"), Found::default());
        let pid = std::process::id();
        let process = Process { pid, start_time: 1 };
        let entry = LedgerBalancer { name: "haproxy".to_owned(), argv: vec!["x".to_owned()], soft_stop: None, process };
        let ledger = Ledger { worker: Some(Process { pid: u32::MAX, start_time: 3 }), balancers: vec![entry.clone()] };
        file.store(&ledger).expect("stored");
        let found = file.find().expect("found");
        assert_eq!(found.worker, Some((Process { pid: u32::MAX, start_time: 3 }, None)));
        assert_eq!(found.balancers, [(entry, process::start_time(pid))]);
        file.store(&Ledger::default()).expect("removed");
        file.store(&Ledger::default()).expect("removed already");
        assert_eq!(file.find().expect("nothing left"), Found::default());
    }

    #[test]
    fn a_broken_ledger_is_an_error_and_no_panic() {
        let folder = Folder::new("broken");
        let file = LedgerFile::open(&folder.0).expect("opened");
        for garbage in ["", "{", "[]", "{\"worker\": 5, \"balancers\": []}", "\u{0}"] {
            fs::write(&file.path, garbage).expect("written");
            assert!(file.find().is_err(), "{garbage:?}");
        }
    }
}

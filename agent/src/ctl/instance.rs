//! One agent per runtime directory, held by a lock on a file in it. The kernel lets the lock go when the agent dies,
//! however it dies.

use crate::config::file::in_words;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Name of the locked file in the runtime directory.
pub const LOCK_FILE: &str = "holdfast.lock";

/// Held as long as this agent is the one of its runtime directory. Inherited by nobody (close-on-exec).
#[derive(Debug)]
pub struct InstanceLock {
    _lock: Flock<File>,
}

/// Why this agent can't have the runtime directory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("{}: another agent (pid {pid}) runs with this runtime directory; stop it, or give --runtime-dir", dir.display())]
    Taken {
        /// The runtime directory.
        dir: PathBuf,
        /// Its pid as it wrote it, or `unknown`.
        pid: String,
    },
    /// The directory or the file can't be made.
    #[error("{}: {}", path.display(), in_words(source))]
    Io {
        /// What could not be made or opened.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Makes the runtime directory where it is missing and takes its lock, without waiting.
///
/// # Errors
/// See [`LockError`].
pub fn lock(runtime_dir: &Path) -> Result<InstanceLock, LockError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| LockError::Io { path, source }
    };
    std::fs::create_dir_all(runtime_dir).map_err(io(runtime_dir))?;
    let path = runtime_dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        // The directory may belong to the worker's user: never follow what that user put here.
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(&path)
        .map_err(io(&path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            // The pid is for people only; a failed write changes nothing.
            let _ = lock.set_len(0).and_then(|()| write!(&mut *lock, "{}", std::process::id()));
            Ok(InstanceLock { _lock: lock })
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut pid));
            let pid =
                if !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) { pid } else { "unknown".to_owned() };
            Err(LockError::Taken { dir: runtime_dir.to_owned(), pid })
        }
        Err((_, errno)) => Err(LockError::Io { path, source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_on_the_same_runtime_directory_is_refused_and_told_who_has_it() {
        let dir = std::env::temp_dir().join(format!("holdfast-lock-{}", std::process::id()));
        let first = lock(&dir).expect("the directory is free");
        let refused = lock(&dir).expect_err("it is taken").to_string();
        assert!(refused.contains(&format!("(pid {})", std::process::id())), "{refused}");
        assert!(refused.contains(&dir.display().to_string()), "{refused}");
        drop(first);
        drop(lock(&dir).expect("free again"));
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

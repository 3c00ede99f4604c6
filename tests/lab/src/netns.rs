//! Running code and programs inside a named network namespace.

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

/// Where iproute2 keeps named namespaces.
pub const DIRECTORY: &str = "/run/netns";

/// A named network namespace. Creating and deleting it is the fabric's business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Refers to the namespace of that name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }

    /// Its name under [`DIRECTORY`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(DIRECTORY).join(&self.name)
    }

    /// Moves the calling thread into the namespace: sockets it creates from now on live there. There is no way back
    /// that this crate uses, so call it only on a thread that was started for it.
    ///
    /// # Errors
    /// The namespace is gone, or we lack CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<()> {
        let file = std::fs::File::open(self.path()).with_context(|| format!("open namespace {}", self.name))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("enter namespace {}", self.name))
    }

    /// Runs `f` on a short-lived thread inside the namespace and returns what it returned.
    ///
    /// # Errors
    /// The namespace can't be entered, or `f` failed or panicked.
    pub fn inside<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|s| {
            s.spawn(|| {
                self.enter()?;
                f()
            })
            .join()
            .unwrap_or_else(|_| anyhow::bail!("a thread in {} panicked", self.name))
        })
    }

    /// Starts a thread inside the namespace; `f` runs after the move.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        label: &str,
        f: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let me = self.clone();
        std::thread::Builder::new()
            .name(label.chars().take(15).collect())
            .spawn(move || {
                me.enter()?;
                f()
            })
            .with_context(|| format!("start thread {label}"))
    }

    /// A command that runs in the namespace; `ip netns exec` replaces itself, so the pid is the program's.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &self.name]).arg(program);
        c
    }

    /// Pids of the processes (by their main thread) that live in the namespace.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let Ok(mine) = std::fs::metadata(self.path()) else { return Vec::new() };
        crate::process::all_pids()
            .into_iter()
            .filter(|pid| {
                std::fs::metadata(format!("/proc/{pid}/ns/net"))
                    .is_ok_and(|m| m.ino() == mine.ino() && m.dev() == mine.dev())
            })
            .collect()
    }
}

//! What must not be left behind: namespaces, processes, temporary directories; removed on drop, panic, SIGINT and
//! SIGTERM, and by `lab clean` for runs that were killed outright.
//!
//! Names are `hf<pid>x<random>-<node>`: the pid tells whether the run that made them still lives.

use crate::netns::{DIRECTORY, Netns};
use crate::process::{Pidfd, alive, kill_pid};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;

/// Every prefix this process has in use, for the signal handler.
static LIVE: Mutex<Vec<Residue>> = Mutex::new(Vec::new());

/// Programs that this process waits for, and that remove what is theirs themselves.
static PROGRAMS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// How long such a program may take to end when it is told to.
const PROGRAM_ENDS: std::time::Duration = std::time::Duration::from_secs(20);

/// One fabric's leftovers: all namespaces with a prefix, all processes in them, one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residue {
    /// `hf<pid>x<random>`.
    pub prefix: String,
    /// The fabric's temporary directory.
    pub directory: PathBuf,
    /// Keep the directory (`--keep`).
    pub keep_directory: bool,
}

impl Residue {
    /// A prefix that nobody has, and its directory, which all may enter: daemons run as other users than root, and must
    /// reach their files. Noted for the signal handler.
    ///
    /// # Errors
    /// The directory can't be made.
    pub fn create(keep_directory: bool) -> Result<Self> {
        let mut random = [0_u8; 2];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
        let prefix = format!("hf{}x{:02x}{:02x}", std::process::id(), random[0], random[1]);
        let directory = std::env::temp_dir().join(&prefix);
        std::fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let residue = Self { prefix, directory, keep_directory };
        residue.register();
        Ok(residue)
    }

    /// Notes it for the signal handler.
    pub fn register(&self) {
        if let Ok(mut live) = LIVE.lock() {
            live.retain(|r| r.prefix != self.prefix);
            live.push(self.clone());
        }
    }

    /// Ends every process in the namespaces, deletes them and the directory. Idempotent.
    pub fn remove(&self) {
        let spaces = namespaces_with(&self.prefix);
        for _round in 0..3 {
            let pids: Vec<i32> = spaces.iter().flat_map(Netns::pids).collect();
            if pids.is_empty() {
                break;
            }
            pids.into_iter().for_each(kill_pid);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        for n in spaces {
            let _gone = Command::new("ip").args(["netns", "del", n.name()]).output();
        }
        if !self.keep_directory {
            let _gone = std::fs::remove_dir_all(&self.directory);
        }
        if let Ok(mut live) = LIVE.lock() {
            live.retain(|r| r.prefix != self.prefix);
        }
    }
}

/// The named namespaces that start with `prefix-`.
#[must_use]
pub fn namespaces_with(prefix: &str) -> Vec<Netns> {
    let Ok(dir) = std::fs::read_dir(DIRECTORY) else { return Vec::new() };
    let start = format!("{prefix}-");
    dir.filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| n.starts_with(&start))
        .map(Netns::named)
        .collect()
}

/// The pid in a name that we made, `None` for any other name.
#[must_use]
pub fn pid_in(name: &str) -> Option<i32> {
    let (pid, _) = name.strip_prefix("hf")?.split_once('x')?;
    pid.parse().ok()
}

/// Runs a program to its end. When this process is told to end first, so is the program.
///
/// # Errors
/// It can't be started.
pub fn run(command: &mut Command) -> Result<ExitStatus> {
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).context("pid fits an i32")?;
    if let Ok(mut programs) = PROGRAMS.lock() {
        programs.push(pid);
    }
    let status = child.wait();
    if let Ok(mut programs) = PROGRAMS.lock() {
        programs.retain(|other| *other != pid);
    }
    Ok(status?)
}

fn end_programs() {
    let pids = PROGRAMS.lock().map(|programs| programs.clone()).unwrap_or_default();
    let told: Vec<Pidfd> = pids.into_iter().filter_map(|pid| Pidfd::open(pid).ok()).collect();
    for program in &told {
        let _gone = program.signal(Signal::TERM);
    }
    for program in &told {
        let _late = program.wait_ended(PROGRAM_ENDS);
    }
}

/// Removes everything registered by this process.
pub fn remove_all() {
    end_programs();
    let all = LIVE.lock().map(|l| l.clone()).unwrap_or_default();
    all.iter().for_each(Residue::remove);
}

/// On SIGINT or SIGTERM: remove everything, then exit with 128 + signal.
///
/// # Errors
/// The handler's thread can't be started.
pub fn remove_on_signal() -> Result<()> {
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async move {
                use tokio::signal::unix::{SignalKind, signal};
                let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
                else {
                    return;
                };
                let _listening = ready.send(());
                let code = tokio::select! { _ = int.recv() => 130, _ = term.recv() => 143 };
                remove_all();
                std::process::exit(code);
            });
        })
        .context("start the signal thread")?;
    is_ready.recv().context("listen for SIGINT and SIGTERM")
}

/// Removes what dead runs left; returns the prefixes removed.
///
/// # Errors
/// The namespace directory can't be read.
pub fn clean() -> Result<Vec<String>> {
    let mut prefixes: Vec<String> = Vec::new();
    let names = std::fs::read_dir(DIRECTORY).into_iter().flatten().chain(std::fs::read_dir(std::env::temp_dir())?);
    for name in names.filter_map(|e| e.ok()?.file_name().into_string().ok()) {
        let prefix = name.split('-').next().unwrap_or_default().to_owned();
        // A run that still lives under that pid is left alone, even if the pid was reused by something else.
        if pid_in(&name).is_some_and(|pid| !alive(pid)) && !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    for p in &prefixes {
        let directory = std::env::temp_dir().join(p);
        Residue { prefix: p.clone(), directory, keep_directory: false }.remove();
    }
    Ok(prefixes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_to_end_and_its_end_is_waited_for() {
        let ready = std::env::temp_dir().join(format!("holdfast-lab-program-{}", std::process::id()));
        let mut command = Command::new("sh");
        // Its own child goes with it, or it would hold the pipe of this test.
        command.args(["-c", "trap 'kill $!; exit 7' TERM; sleep 60 & : >\"$0\"; wait"]).arg(&ready);
        let program = std::thread::spawn(move || run(&mut command));
        let begun = || PROGRAMS.lock().expect("no panic").clone();
        while begun().is_empty() || !ready.exists() {
            std::thread::yield_now();
        }
        std::fs::remove_file(ready).expect("it is there");
        end_programs();
        assert_eq!(program.join().expect("no panic").expect("it runs").code(), Some(7));
        assert!(begun().is_empty());
    }

    #[test]
    fn only_names_we_made_carry_a_pid() {
        assert_eq!(pid_in("hf123x9f2c-lb1"), Some(123));
        assert_eq!(pid_in("hf123x9f2c"), Some(123));
        for other in ["hfx-1", "hf12-lb1", "default", "hfabcx1", "bl-7-sw"] {
            assert_eq!(pid_in(other), None, "{other}");
        }
    }
}

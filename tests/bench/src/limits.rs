//! The connection table's limits, raised for a run. They are the whole machine's, writable in its first namespace only,
//! so they are put back however this program ends: a shell holds the other end of a pipe and writes the old values when
//! that closes, be it by a drop, a panic or SIGKILL.

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

const FOLDER: &str = "/proc/sys/net/netfilter";
/// Two runs would put back each other's values.
const LOCK: &str = "/run/holdfast-bench.lock";
/// Entries to spare for what isn't ours.
const SPARE: u64 = 65_536;

/// Puts the limits back when it goes.
#[derive(Debug)]
pub struct Limits {
    shell: Child,
    pipe: Option<ChildStdin>,
    _lock: File,
}

impl Limits {
    /// Room for so many entries in each namespace. `None`: there is.
    ///
    /// # Errors
    /// They can't be raised, or another run has them.
    pub fn raise(entries: u32) -> Result<Option<Self>> {
        let wanted = u64::from(entries) + SPARE;
        let (max, buckets) = (read("nf_conntrack_max")?, read("nf_conntrack_buckets")?);
        // Twice the hosts' entries: all namespaces share one hash table.
        let buckets_wanted = (2 * wanted).next_power_of_two();
        if max >= wanted && buckets * 4 >= buckets_wanted {
            return Ok(None);
        }
        let lock = File::create(LOCK).with_context(|| format!("create {LOCK}"))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another run has raised the limits of the connection table ({LOCK})");
        }
        let script = format!(
            "trap '' HUP INT TERM; read -r _; echo {max} >{FOLDER}/nf_conntrack_max; \
             echo {buckets} >{FOLDER}/nf_conntrack_buckets"
        );
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start a shell")?;
        let pipe = shell.stdin.take();
        let raised = Self { shell, pipe, _lock: lock };
        write("nf_conntrack_buckets", buckets_wanted.max(buckets))?;
        write("nf_conntrack_max", wanted.max(max))?;
        Ok(Some(raised))
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _written = self.shell.wait();
    }
}

fn read(what: &str) -> Result<u64> {
    let file = Path::new(FOLDER).join(what);
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    text.trim().parse().with_context(|| format!("{}: {text:?}", file.display()))
}

fn write(what: &str, value: u64) -> Result<()> {
    let file = Path::new(FOLDER).join(what);
    std::fs::write(&file, value.to_string()).with_context(|| format!("set {} to {value}", file.display()))
}

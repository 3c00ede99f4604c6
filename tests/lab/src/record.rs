//! Results on disk: what was measured, of which commit, on which machine.

use crate::balancer::Kind;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where figures come from; taken once, before anything is written.
#[derive(Debug, Clone)]
pub struct Provenance {
    commit: Option<String>,
    dirty: Option<bool>,
    date: String,
    profile: String,
    machine: Value,
}

impl Provenance {
    /// Of the working tree around `inside`, and of this machine. Files under `tests/results` don't make a tree dirty:
    /// they are what is written here.
    #[must_use]
    pub fn of(inside: &Path) -> Self {
        let git = |args: &[&str]| {
            let out = Command::new("git").arg("-C").arg(inside).args(args).output().ok()?;
            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let changed = git(&["status", "--porcelain", "--", ":/", ":(top,exclude)tests/results"]);
        let exe = std::env::current_exe().unwrap_or_default();
        let profile = exe.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        Self {
            commit: git(&["rev-parse", "HEAD"]),
            dirty: changed.map(|c| !c.is_empty()),
            date: utc(SystemTime::now()),
            profile: profile.unwrap_or_default(),
            machine: machine(),
        }
    }

    /// Writes `tests/results/<piece>.json` (or another directory's).
    ///
    /// # Errors
    /// The directory or the file can't be written.
    pub fn write(&self, directory: &Path, piece: &str, kind: &str, pass: bool, units: &[Value]) -> Result<()> {
        let document = json!({
            "schema": 1, "piece": piece, "kind": kind, "commit": self.commit, "dirty": self.dirty, "date": self.date,
            "profile": self.profile, "machine": self.machine, "pass": pass, "units": units,
        });
        std::fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let file = directory.join(format!("{piece}.json"));
        std::fs::write(&file, text(&document)).with_context(|| format!("write {}", file.display()))
    }
}

fn machine() -> Value {
    let u = rustix::system::uname();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).map(|l| l.trim_start_matches([' ', '\t', ':']));
    json!({
        "kernel": u.release().to_string_lossy(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model,
        "haproxy": crate::env::find_program("haproxy").map(|_| Kind::Haproxy.version()),
    })
}

/// `t` as ISO 8601 in UTC.
fn utc(t: SystemTime) -> String {
    let seconds = t.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, counted in eras of 400 years from 0000-03-01: the leap day comes last.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// JSON with what holds only scalars on one line: a run is a line, and a change of figures is a readable diff.
fn text(v: &Value) -> String {
    let mut s = String::new();
    put(v, 0, &mut s);
    s.push('\n');
    s
}

fn put(v: &Value, depth: usize, s: &mut String) {
    let scalar = |v: &Value| !v.is_object() && !v.is_array();
    let (open, close, items): (_, _, Vec<(Option<&String>, &Value)>) = match v {
        Value::Object(o) if !o.values().all(scalar) => ('{', '}', o.iter().map(|(k, v)| (Some(k), v)).collect()),
        Value::Array(a) if !a.iter().all(scalar) => ('[', ']', a.iter().map(|v| (None, v)).collect()),
        _ => {
            let _ = write!(s, "{v}");
            return;
        }
    };
    s.push(open);
    for (i, (key, value)) in items.iter().enumerate() {
        s.push_str(if i == 0 { "\n" } else { ",\n" });
        s.push_str(&" ".repeat(depth + 1));
        if let Some(k) = key {
            let _ = write!(s, "{}: ", Value::from(k.as_str()));
        }
        put(value, depth + 1, s);
    }
    let _ = write!(s, "\n{}{close}", " ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_utc_with_leap_days() {
        let at = |s| utc(UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_740_787_200), "2025-03-01T00:00:00Z");
    }

    #[test]
    fn what_is_written_is_the_same_document_with_a_run_on_each_line() {
        let v = json!({"a": [{"x": 1, "y": null}, {"x": 2, "y": "\"\n"}], "b": {}, "c": [1, 2]});
        let t = text(&v);
        assert_eq!(serde_json::from_str::<Value>(&t).expect("valid JSON"), v);
        assert!(t.lines().any(|l| l.trim() == r#"{"x":1,"y":null},"#), "{t}");
    }
}

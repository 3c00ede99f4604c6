//! The lint of the plane's own files (`config` of a `[[balancer]]`): what in them defeats a drain, a take-over or a check.
//!
//! The files are somebody else's, in somebody else's language: the parsers take any text, look at a bounded part of it,
//! and pass over what they don't know. Nothing is found that isn't written there, or that follows from the plane's
//! documented defaults.

mod common;
mod envoy;
mod haproxy;
mod model;
mod nginx;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod tests;
mod yaml;

use super::super::budget;
use crate::config::file::{in_words, read_regular};
use holdfast_node::config::{Balancer, BalancerKind, Config, Endpoint, Probe};
use holdfast_node::status::Warning;
use model::{At, OurCheck, Ours, Plane};
use nginx::Included;
use std::cell::Cell;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Longest file.
const FILE_MAX: usize = 1 << 20;
/// Files that those of one balancer include, one that is included again counts again; their length together; and
/// entries of a folder that are looked at.
const FILES_MAX: usize = 4096;
const INCLUDED_MAX: usize = 32 << 20;
const ENTRIES_MAX: usize = 16_384;

/// What was found in the files of all balancers.
#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<(String, model::Finding)>,
    /// Each with its balancer.
    pub(super) facts: Vec<(String, String)>,
}

impl Report {
    /// As warnings: `/etc/haproxy/haproxy.cfg:12: what: what happens`.
    pub(super) fn warnings(&self) -> impl Iterator<Item = Warning> + '_ {
        self.findings.iter().map(|(_, finding)| Warning {
            text: format!("{}: {}: {} [{}]", place(&finding.at), finding.cause, finding.consequence, finding.rule),
            remedy: finding.remedy.clone(),
        })
    }

    /// For JSON.
    pub(super) fn model(&self) -> serde_json::Value {
        let finding = |(balancer, finding): &(String, model::Finding)| {
            serde_json::json!({
                "balancer": balancer, "finding": finding.rule, "file": finding.at.file, "line": finding.at.line,
                "cause": finding.cause, "consequence": finding.consequence, "remedy": finding.remedy,
            })
        };
        let fact = |(balancer, fact): &(String, String)| serde_json::json!({ "balancer": balancer, "fact": fact });
        serde_json::json!({
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "facts": self.facts.iter().map(fact).collect::<Vec<_>>(),
        })
    }
}

fn place(at: &At) -> String {
    if at.line == 0 { at.file.clone() } else { format!("{}:{}", at.file, at.line) }
}

/// Looks over the files of every balancer that names some.
pub(super) fn report(config: &Config) -> Report {
    let mut report = Report::default();
    for balancer in config.balancers.iter().filter(|balancer| !balancer.config.is_empty()) {
        let name = balancer.name.as_str();
        let plane = lint(balancer, &ours(config, balancer));
        report.findings.extend(plane.findings.into_iter().map(|finding| (name.to_owned(), finding)));
        report.facts.extend(plane.facts.into_iter().map(|fact| (name.to_owned(), fact)));
    }
    report
}

fn lint(balancer: &Balancer, ours: &Ours) -> Plane {
    let mut files = Vec::new();
    let mut unreadable = Vec::new();
    for path in &balancer.config {
        let name = path.display().to_string();
        match text(path) {
            Ok(text) => files.push((name, text)),
            Err(why) => unreadable.push((At { file: name, line: 0 }, why)),
        }
    }
    let mut plane = match balancer.kind {
        BalancerKind::Haproxy if !files.is_empty() => haproxy::read(&files),
        BalancerKind::Nginx => match (files.first(), balancer.config.first().and_then(|path| path.parent())) {
            (Some((name, text)), Some(folder)) => {
                let room = Room::default();
                nginx::read(name, text, &|pattern| included(folder, pattern, &room))
            }
            _ => Plane::default(),
        },
        BalancerKind::Envoy => {
            let mut plane = Plane::default();
            files.iter().for_each(|(name, text)| envoy::read(&mut plane, name, text));
            plane
        }
        kind => {
            let mut plane = Plane::default();
            if !files.is_empty() {
                plane.facts.push(format!("files of kind {} are not looked at", kind.word()));
            }
            plane
        }
    };
    for (at, why) in unreadable {
        plane.find(
            "unreadable",
            &at,
            why,
            "nothing is known of what is in it",
            "run `check` as root, or correct `config`",
        );
    }
    common::judge(&mut plane, ours);
    if plane.untold > 0 {
        plane.facts.push(format!("{} more findings are not told", plane.untold));
    }
    plane
}

/// What of our configuration concerns a balancer: VIPs and checks of the units that depend on it.
fn ours(config: &Config, balancer: &Balancer) -> Ours {
    let is_it = |id: &holdfast_node::config::BalancerId| {
        config.balancers.get(usize::from(id.0)).is_some_and(|b| b.name == balancer.name)
    };
    let units = || config.vips.iter().filter(|vip| vip.balancers.iter().any(is_it));
    let mut ids: Vec<_> = units().flat_map(|vip| vip.checks.iter().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    let checks = ids.into_iter().filter_map(|id| config.checks.get(usize::from(id.0))).filter(|check| !check.shared);
    let check = |check: &holdfast_node::config::Check| {
        let (endpoint, http) = match &check.probe {
            Probe::Http(http) => (&http.endpoint, Some((http.path.clone(), http.expect.clone()))),
            Probe::Tcp(stream) => (&stream.endpoint, None),
            _ => return None,
        };
        let Endpoint::Ip(address) = *endpoint else { return None };
        let (detect, name) = (budget::detect(check, config), check.name.as_str().to_owned());
        Some(OurCheck { name, address, http, min: detect.min, max: detect.max })
    };
    let allowed = |family: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind")).is_ok_and(|text| text.trim() == "1")
    };
    Ours {
        vips: units().flat_map(|vip| vip.addresses.iter().map(|address| address.ip)).collect(),
        checks: checks.filter_map(check).collect(),
        nodes: u32::try_from(config.cluster.as_ref().map_or(0, |c| c.peers.len())).unwrap_or(0) + 1,
        nonlocal: (allowed("ipv4"), allowed("ipv6")),
        admin: balancer.admin.is_some(),
    }
}

fn text(path: &Path) -> Result<String, String> {
    let bytes = read_regular(path, FILE_MAX).map_err(|e| in_words(&e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What may still be included.
#[derive(Debug)]
struct Room {
    files: Cell<usize>,
    bytes: Cell<usize>,
}

impl Default for Room {
    fn default() -> Self {
        Self { files: Cell::new(FILES_MAX), bytes: Cell::new(INCLUDED_MAX) }
    }
}

impl Room {
    fn text(&self, path: &Path) -> Result<String, String> {
        let text = text(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let left = self.bytes.get().checked_sub(text.len());
        self.bytes.set(left.ok_or_else(|| format!("{}: more than is looked at", path.display()))?);
        Ok(text)
    }
}

/// The files that a pattern of nginx names, if it stays below the main file's folder; `*` and `?` in the last part only.
fn included(folder: &Path, pattern: &str, room: &Room) -> Included {
    let (paths, mut missing) = match named(folder, pattern) {
        Ok(named) => named,
        Err(why) => return Included { files: Vec::new(), missing: vec![why] },
    };
    let many = paths.len();
    let mut files = Vec::new();
    for (n, path) in paths.into_iter().enumerate() {
        let Some(left) = room.files.get().checked_sub(1) else {
            missing.push(format!("{} of {many} files are more than are looked at", many - n));
            break;
        };
        room.files.set(left);
        match room.text(&path) {
            Ok(text) => files.push((path.display().to_string(), text)),
            Err(why) => missing.push(why),
        }
    }
    Included { files, missing }
}

/// Paths, and what may be missing among them.
fn named(folder: &Path, pattern: &str) -> Result<(Vec<PathBuf>, Vec<String>), String> {
    let path = folder.join(pattern);
    let below = path.strip_prefix(folder).map_err(|_| format!("is not below {}: not followed", folder.display()))?;
    if below.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Err("leads out of the folder: not followed".to_owned());
    }
    let marked = |text: &str| text.contains(['*', '?', '[']);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = path.parent().unwrap_or(folder);
    if parent.strip_prefix(folder).ok().and_then(Path::to_str).is_none_or(marked) || name.contains('[') {
        return Err("a pattern of a kind that is not followed".to_owned());
    }
    if !marked(name) {
        return Ok((vec![path.clone()], Vec::new()));
    }
    // Where there is no such folder a pattern names nothing, which nginx takes.
    let mut entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(e) => return Err(format!("{}: {}", parent.display(), in_words(&e))),
    };
    let some: Vec<PathBuf> = entries.by_ref().take(ENTRIES_MAX).filter_map(|e| Some(e.ok()?.path())).collect();
    let rest = entries.next().map(|_| format!("{} has more entries than are looked at", parent.display()));
    let fits = |path: &PathBuf| {
        let entry = path.file_name().and_then(|name| name.to_str());
        entry.is_some_and(|entry| !entry.starts_with('.') && matches(name, entry))
    };
    let mut paths: Vec<PathBuf> = some.into_iter().filter(fits).collect();
    paths.sort();
    Ok((paths, rest.into_iter().collect()))
}

/// Whether a name fits a pattern of `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || name.get(n) == Some(c) => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

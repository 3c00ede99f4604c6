//! The table of figures, made from results on disk and nothing else.

use crate::drills::{DRILLS, Drill};
use crate::{bgp, planes};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Table {
    /// Of the drills on a segment, with what isn't a drill.
    Figures,
    /// Of what comes of each situation of a data plane.
    Planes,
}

impl Table {
    /// Where it begins and ends in a document.
    fn marks(self) -> [&'static str; 2] {
        match self {
            Self::Figures => ["<!-- figures: begin -->", "<!-- figures: end -->"],
            Self::Planes => ["<!-- planes: begin -->", "<!-- planes: end -->"],
        }
    }
}

/// One file of results.
struct File {
    piece: String,
    document: Value,
}

impl File {
    fn kind(&self) -> &str {
        self.document.get("kind").and_then(Value::as_str).unwrap_or_default()
    }
}

fn files(directory: &Path) -> Result<Vec<File>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut all = Vec::new();
    for path in entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|x| x == "json")) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let document: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let piece = document.get("piece").and_then(Value::as_str).unwrap_or_default().to_owned();
        all.push(File { piece, document });
    }
    all.sort_by(|a, b| a.piece.cmp(&b.piece));
    Ok(all)
}

/// The table as Markdown.
///
/// # Errors
/// The directory or a file in it can't be read.
pub fn table(directory: &Path, which: Table) -> Result<String> {
    let files = files(directory)?;
    Ok(match which {
        Table::Figures => markdown(&files),
        Table::Planes => {
            let (of_planes, _) = files.into_iter().partition::<Vec<File>, _>(|f| f.kind() == "planes");
            let documents: Vec<&Value> = of_planes.iter().map(|f| &f.document).collect();
            planes::table::markdown(&documents) + &machines(&of_planes)
        }
    })
}

/// Puts the table of that kind where it belongs in `file`.
///
/// # Errors
/// The file, or it has no such place.
pub fn write(file: &Path, which: Table, table: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let new = replaced(&text, which, table).with_context(|| file.display().to_string())?;
    std::fs::write(file, new).with_context(|| format!("write {}", file.display()))
}

/// Whether `file` has `table` already.
///
/// # Errors
/// As [`write()`].
pub fn same(file: &Path, which: Table, table: &str) -> Result<bool> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Ok(replaced(&text, which, table).with_context(|| file.display().to_string())? == text)
}

fn replaced(text: &str, which: Table, table: &str) -> Result<String> {
    let [begin, end] = which.marks();
    let Some((head, rest)) = text.split_once(begin) else { bail!("it has no line {begin}") };
    let Some((_, tail)) = rest.split_once(end) else { bail!("it has no line {end} after that") };
    Ok(format!("{head}{begin}\n{table}{end}{tail}"))
}

/// Reports of `drill` for one column: with the channel, without, or keepalived's.
fn report<'a>(files: &'a [File], drill: &Drill, column: Column) -> Option<&'a Value> {
    let reports = files.iter().filter(|f| f.kind() == "drill");
    let reports = reports.flat_map(|f| f.document.get("units").and_then(Value::as_array).into_iter().flatten());
    reports.filter_map(|u| u.get("report")).find(|r| {
        let text = |key: &str| r.get(key).and_then(Value::as_str).unwrap_or_default();
        let keepalived = text("subject").starts_with("keepalived");
        let channel = r.get("channel").and_then(Value::as_bool) == Some(true);
        text("scenario") == drill.name
            && match column {
                Column::Channel => !keepalived && channel,
                Column::Alone => !keepalived && !channel,
                Column::Keepalived => keepalived,
            }
    })
}

#[derive(Debug, Clone, Copy)]
enum Column {
    Channel,
    Alone,
    Keepalived,
}

fn cell(report: Option<&Value>, key: &str) -> String {
    let spread = report.and_then(|r| r.get("summary")?.get(key));
    let of = |k: &str| spread.and_then(|s| s.get(k)?.as_f64());
    match (of("median"), of("min"), of("max")) {
        (Some(median), Some(min), Some(max)) => format!("{} ({}–{})", short(median), short(min), short(max)),
        _ => "–".into(),
    }
}

/// At most one decimal, and none where it is 0 or means nothing.
fn short(v: f64) -> String {
    if v.abs() >= 100.0 || (v - v.round()).abs() < 0.05 { format!("{v:.0}") } else { format!("{v:.1}") }
}

fn markdown(files: &[File]) -> String {
    let mut s = String::new();
    let columns = [Column::Channel, Column::Alone, Column::Keepalived];
    let mut rows = String::new();
    let mut counts = BTreeSet::new();
    for d in DRILLS {
        let reports = columns.map(|c| report(files, d, c));
        let runs = |r: &&Value| r.get("runs").and_then(Value::as_array).map(Vec::len);
        counts.extend(reports.iter().flatten().filter_map(runs));
        for (i, (key, what)) in d.shows.iter().enumerate() {
            if reports.iter().all(Option::is_none) {
                continue;
            }
            let name = if i == 0 { format!("`{}`: {}", d.name, d.about) } else { String::new() };
            let cells = reports.map(|r| cell(r, key));
            let _ = writeln!(rows, "| {name} | {what} | {} |", cells.join(" | "));
        }
    }
    if !rows.is_empty() {
        let repeat = match (counts.first(), counts.last()) {
            (Some(a), Some(b)) if a == b => format!("{a} runs"),
            (Some(a), Some(b)) => format!("{a} to {b} runs"),
            _ => "no runs".into(),
        };
        let _ = writeln!(
            s,
            "Median (smallest–largest) of {repeat} each; adverts every 100 ms, a new request every 5 ms. What each figure is:\n\
             [tests/lab/METRICS.md](tests/lab/METRICS.md). Every run is in [tests/results](tests/results).\n\n\
             | drill | figure | with the channel | VRRP alone | keepalived |\n|---|---|---|---|---|"
        );
        s += &rows;
    }
    s += &routers(files);
    s += &others(files);
    s += &machines(files);
    s
}

/// What isn't a drill.
fn others(files: &[File]) -> String {
    let mut s = String::new();
    let units = |f: &File| f.document.get("units").and_then(Value::as_array).cloned().unwrap_or_default();
    for f in files {
        let kind = f.kind();
        for u in units(f) {
            let Some(r) = u.get("report") else { continue };
            let n = |key: &str| r.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
            let text = |key: &str| r.get(key).and_then(Value::as_str).unwrap_or_default();
            let line = match kind {
                "start-stop" => {
                    let left = r.get("left_behind").and_then(Value::as_array).map_or(0, Vec::len);
                    format!("{:.0} starts and stops of the agent: {left} things left behind.", n("times"))
                }
                "garbage" => format!(
                    "{:.0} packets of garbage to VRRP and {:.0} to the channel's port, 10,000 a second: {:.0} requests \
                     failed, {:.0} role changes, adverts {:.2} ms late at the 99th percentile.",
                    n("vrrp"),
                    n("channel"),
                    n("failed"),
                    n("role_changes"),
                    n("late_p99_ms")
                ),
                "idle" => {
                    let host = |h: &str| {
                        let of = |key: &str| r.get(h).and_then(|h| h.get(key)?.as_f64()).unwrap_or(f64::NAN);
                        format!("{:.2} % of a core, {:.1} MiB", of("cpu_percent"), of("pss_kib") / 1024.0)
                    };
                    format!(
                        "Idle, {:.0} VIPs, {}: Active {}; Backup {}.",
                        n("vips"),
                        text("subject"),
                        host("active"),
                        host("backup")
                    )
                }
                _ => continue,
            };
            let _ = writeln!(s, "- {line}");
        }
    }
    if s.is_empty() { s } else { format!("\n{s}") }
}

/// Drills before a router: a column for each, of two nodes; of what is killed the others' ways beside ours.
fn routers(files: &[File]) -> String {
    let units = files.iter().filter(|f| f.kind() == "bgp" && f.piece != "bgp-resilient");
    let units = units.flat_map(|f| f.document.get("units").and_then(Value::as_array).into_iter().flatten());
    let reports: Vec<&Value> = units.filter_map(|u| u.get("report")).collect();
    let text = |r: &Value, key: &str| r.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let find = |drill: &str, who: &str, router: &str| {
        reports.iter().copied().find(|r| {
            let subject = text(r, "subject");
            let is_of = |part: &str| subject.contains(part);
            text(r, "scenario") == drill
                && subject.starts_with(who)
                && is_of(&format!("router {router} "))
                && is_of(" 2 nodes")
        })
    };
    let mut rows = String::new();
    let mut counts = BTreeSet::new();
    for drill in bgp::drills::DRILLS {
        for (who, by) in
            [("holdfast", ""), ("exabgp", ", ExaBGP and its health check"), ("gobgp", ", GoBGP and a watcher")]
        {
            let both = ["bird", "frr"].map(|router| find(drill.name, who, router));
            if both.iter().all(Option::is_none) {
                continue;
            }
            counts.extend(both.iter().flatten().filter_map(|r| r.get("runs")?.as_array().map(Vec::len)));
            let mut name = format!("`{}`: {}{by}", drill.name, drill.about);
            for (key, what) in ROUTER_FIGURES {
                let cells = both.map(|r| cell(r, key));
                if cells.iter().any(|cell| cell != "–") {
                    let _ = writeln!(rows, "| {} | {what} | {} |", std::mem::take(&mut name), cells.join(" | "));
                }
            }
        }
    }
    match (counts.first(), counts.last()) {
        (Some(least), Some(most)) => format!(
            "\nTwo nodes that announce a VIP to a router, {least} to {most} runs each; FRR itself waits about 60 ms before it \
             changes its table.\n\n| drill | figure | BIRD | FRR |\n|---|---|---|---|\n{rows}"
        ),
        _ => String::new(),
    }
}

/// What is shown of a drill before a router.
const ROUTER_FIGURES: [(&str, &str); 4] = [
    ("withdraw_ms", "withdrawn, ms"),
    ("fib_ms", "out of the router's table, ms"),
    ("failed_lost", "requests lost"),
    ("fib_events", "changes of the router's table"),
];

/// Where all this was measured: usually one machine and few commits.
fn machines(files: &[File]) -> String {
    let mut all: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    for f in files {
        let text = |v: Option<&Value>| v.and_then(Value::as_str).unwrap_or("?").to_owned();
        let m = f.document.get("machine");
        let of = |key: &str| m.and_then(|m| m.get(key));
        let commit: String = text(f.document.get("commit")).chars().take(12).collect();
        let dirty = if f.document.get("dirty").and_then(Value::as_bool) == Some(false) { "" } else { " with changes" };
        let cores = of("cores").and_then(Value::as_u64).unwrap_or(0);
        let machine =
            format!("Linux {}, {cores} cores ({}), {}", text(of("kernel")), text(of("cpu")), text(of("haproxy")));
        let (dates, commits) = all.entry(machine).or_default();
        dates.insert(text(f.document.get("date")).chars().take(10).collect());
        commits.insert(format!("{commit}{dirty}"));
    }
    if all.is_empty() {
        return String::new();
    }
    let list = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(", ");
    let each = |(machine, (dates, commits))| format!("{}: {machine}, commits {}", list(dates), list(commits));
    format!("\nMeasured {}.\n", all.into_iter().map(each).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(subject: &str, channel: bool, median: f64) -> File {
        let report = json!({
            "scenario": "cable-cut", "subject": subject, "channel": channel, "runs": [{}, {}],
            "summary": {"outage_ms": {"min": 1.0, "median": median, "max": 300.04}},
        });
        let document = json!({"piece": "x", "kind": "drill", "dirty": false, "units": [{"report": report}]});
        File { piece: "x".into(), document }
    }

    #[test]
    fn each_router_has_a_column_and_who_else_announces_a_row() {
        let of = |subject: &str, median: f64| {
            let report = json!({
                "scenario": "bgp-balancer-killed", "subject": subject, "runs": [{}],
                "summary": {"fib_ms": {"min": 1.0, "median": median, "max": 9.0}},
            });
            let document = json!({"piece": "bgp", "kind": "bgp", "dirty": false, "units": [{"report": report}]});
            File { piece: "bgp".into(), document }
        };
        let all = [
            of("holdfast 1, router frr 8, 2 nodes", 64.0),
            of("holdfast 1, router bird 2, 4 nodes", 5.0),
            of("holdfast 1, router bird 2, 2 nodes", 4.0),
            of("exabgp 4, router bird 2, 2 nodes", 80.0),
        ];
        let t = markdown(&all);
        assert!(t.contains("| out of the router's table, ms | 4 (1–9) | 64 (1–9) |"), "{t}");
        assert!(t.contains("ExaBGP and its health check | out of the router's table, ms | 80 (1–9) | – |"), "{t}");
        assert_eq!(t.matches("| `bgp-").count(), 2, "{t}");
        assert!(routers(&[]).is_empty());
    }

    #[test]
    fn each_report_stands_in_its_own_column() {
        let all =
            [file("holdfast 1", true, 2.25), file("holdfast 1", false, 30.0), file("keepalived v2", false, 250.0)];
        let t = markdown(&all);
        assert!(t.contains("| 2.2 (1–300) | 30 (1–300) | 250 (1–300) |"), "{t}");
        assert!(t.contains("of 2 runs each"), "{t}");
        let t = markdown(&all[..1]);
        assert!(t.contains("| 2.2 (1–300) | – | – |"), "{t}");
    }

    #[test]
    fn the_table_replaces_what_stands_between_the_marks_and_nothing_else() {
        let [begin, end] = Table::Figures.marks();
        let text = format!("head\n{begin}\nold\n{end}\ntail\n");
        let put = |text: &str| replaced(text, Table::Figures, "new\n");
        let new = put(&text).expect("it has both marks");
        assert_eq!(new, format!("head\n{begin}\nnew\n{end}\ntail\n"));
        assert_eq!(put(&new).expect("it has both marks"), new);
        assert!(put("no marks").is_err() && put(&format!("{end} {begin}")).is_err());
        assert!(replaced(&text, Table::Planes, "new\n").is_err(), "each table has marks of its own");
    }

    #[test]
    fn no_results_make_no_table() {
        assert_eq!(markdown(&[]), "");
    }
}

//! The table of what comes of each situation, plane by plane, made from results on disk and nothing else.

use super::{Kind, Situation, drills};
use serde_json::Value;
use std::fmt::Write;

/// The newest report of each drill among `documents` (files of results), as Markdown.
#[must_use]
pub fn markdown(documents: &[&Value]) -> String {
    let kind = |d: &&&Value| d.get("kind").is_some_and(|k| k == "planes");
    let mut documents: Vec<&Value> = documents.iter().filter(kind).copied().collect();
    documents.sort_by_key(|d| d.get("date").and_then(Value::as_str).unwrap_or_default());
    let mut s = String::new();
    for plane in Kind::ALL {
        let mut rows = String::new();
        let mut version = String::new();
        for d in drills().filter(|d| d.plane == plane) {
            let Some(report) = newest(&documents, &d.name()) else { continue };
            if let Some(v) = report.get("balancer").and_then(Value::as_str) {
                v.clone_into(&mut version);
            }
            rows += &row(d.situation, report);
        }
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(
            s,
            "{}{version}\n\n| situation | verdict | after, ms | the VIP | requests that failed | longest outage, ms |\n\
             |---|---|---|---|---|---|\n{rows}",
            if s.is_empty() { "" } else { "\n" }
        );
    }
    let runs: Vec<usize> = drills()
        .filter_map(|d| newest(&documents, &d.name())?.get("runs").and_then(Value::as_array).map(Vec::len))
        .filter(|n| *n > 0)
        .collect();
    if let (Some(few), Some(many)) = (runs.iter().min(), runs.iter().max()) {
        let runs = if few == many { format!("{few}") } else { format!("{few} to {many}") };
        let _ = writeln!(s, "Median (smallest–largest) of {runs} runs each, 500 requests a second.");
    }
    s
}

fn newest<'a>(documents: &[&'a Value], name: &str) -> Option<&'a Value> {
    let units = |d: &&'a Value| d.get("units").and_then(Value::as_array);
    let mut reports = documents.iter().filter_map(units).flatten().filter_map(|u| u.get("report"));
    // One that was skipped, too: its row says why.
    reports.rfind(|r| r.get("scenario").is_some_and(|s| s == name))
}

fn row(situation: Situation, report: &Value) -> String {
    let about = situation.about();
    let runs = report.get("runs").and_then(Value::as_array);
    if runs.is_none_or(Vec::is_empty) {
        let why = report.get("skipped").and_then(Value::as_str).unwrap_or("never measured");
        return format!("| {about} | – | | | {why} | |\n");
    }
    let verdict = verdict(report);
    let moved = summary(report, "role_changes").is_some_and(|(_, _, max)| max > 0.0);
    let vip = match summary(report, "takeover_ms") {
        Some((median, ..)) if moved => format!("moves after {}", short(median)),
        _ if moved => "moves".to_owned(),
        _ => "stays".to_owned(),
    };
    let requests =
        summary(report, "requests").map_or_else(String::new, |(median, ..)| format!(" of {}", short(median)));
    format!(
        "| {about} | {verdict} | {} | {vip} | {}{requests} | {} |\n",
        spread(report, "verdict_ms"),
        spread(report, "failed"),
        spread(report, "outage_ms"),
    )
}

/// What it was called in most runs.
fn verdict(report: &Value) -> String {
    let mut counts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for run in report.get("runs").and_then(Value::as_array).into_iter().flatten() {
        *counts.entry(run.get("verdict").and_then(Value::as_str).unwrap_or_default()).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, n)| *n).map(|(word, _)| word).unwrap_or_default();
    if most.is_empty() { "–".to_owned() } else { most.to_owned() }
}

/// Median, smallest, largest.
fn summary(report: &Value, key: &str) -> Option<(f64, f64, f64)> {
    let of = |k: &str| report.get("summary")?.get(key)?.get(k)?.as_f64();
    Some((of("median")?, of("min")?, of("max")?))
}

fn spread(report: &Value, key: &str) -> String {
    match summary(report, key) {
        Some((_, min, max)) if min == max => short(min),
        Some((median, min, max)) => format!("{} ({}–{})", short(median), short(min), short(max)),
        None => String::new(),
    }
}

/// At most one decimal, and none where it is 0 or means nothing.
fn short(v: f64) -> String {
    if v.abs() >= 100.0 || (v - v.round()).abs() < 0.05 { format!("{v:.0}") } else { format!("{v:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(date: &str, verdict: &str, moved: f64) -> Value {
        let one = |v: f64| json!({"min": v, "median": v, "max": v});
        let report = json!({
            "scenario": "plane-haproxy-killed", "balancer": "HAProxy version 2.6", "skipped": null,
            "runs": [{"verdict": verdict}],
            "summary": {
                "verdict_ms": {"min": 3.0, "median": 4.0, "max": 6.5}, "role_changes": one(moved), "takeover_ms": one(12.0),
                "failed": one(5.0), "requests": one(750.0), "outage_ms": one(10.0),
            },
        });
        json!({"kind": "planes", "date": date, "units": [{"report": report}]})
    }

    #[test]
    fn a_row_says_what_it_was_called_how_soon_and_what_it_cost_by_the_newest_results() {
        let (old, new) = (document("2026-01-01", "hung", 0.0), document("2026-02-01", "dead", 1.0));
        let t = markdown(&[&new, &old]);
        assert!(t.contains("| SIGKILL to all of it | dead | 4 (3–6.5) | moves after 12 | 5 of 750 | 10 |"), "{t}");
        assert!(t.contains("HAProxy version 2.6") && t.contains("of 1 runs each"), "{t}");
        let t = markdown(&[&old]);
        assert!(t.contains("| hung | 4 (3–6.5) | stays |"), "{t}");
    }

    #[test]
    fn results_of_other_kinds_make_no_table() {
        assert_eq!(markdown(&[&json!({"kind": "drill", "units": []})]), "");
    }
}

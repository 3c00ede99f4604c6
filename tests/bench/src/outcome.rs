//! What a case says: figures in rows, and what they were held against.

use serde_json::{Map, Value, json};

/// One line of a table.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Whose figures, and of what.
    pub name: String,
    /// Name, value, decimals.
    values: Vec<(&'static str, f64, usize)>,
}

impl Row {
    /// With no figures yet.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), values: Vec::new() }
    }

    /// Adds a figure; `decimals`: how exactly people see it.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64, decimals: usize) -> Self {
        self.values.push((name, value, decimals));
        self
    }

    /// A figure by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(n, _, _)| *n == name).map(|(_, v, _)| *v)
    }

    fn json(&self) -> Value {
        let mut all = Map::new();
        all.insert("of".into(), self.name.clone().into());
        all.extend(self.values.iter().map(|(name, value, _)| ((*name).to_owned(), json!(value))));
        all.into()
    }
}

/// Something that was to hold.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The figure and its limit.
    pub text: String,
    /// Whether it did.
    pub held: bool,
    /// A figure of a machine that does nothing else: judged with `--strict` only.
    pub goal: bool,
}

/// What came of a case.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The figures.
    pub rows: Vec<Row>,
    /// What they were held against.
    pub verdicts: Vec<Verdict>,
}

impl Outcome {
    /// Holds it, whatever the machine.
    pub fn must(&mut self, held: bool, text: impl Into<String>) {
        self.verdicts.push(Verdict { text: text.into(), held, goal: false });
    }

    /// Holds a figure against its goal.
    pub fn goal(&mut self, held: bool, text: impl Into<String>) {
        self.verdicts.push(Verdict { text: text.into(), held, goal: true });
    }

    /// `value` of `unit` against the most that it may be.
    pub fn at_most(&mut self, what: &str, value: f64, limit: f64, unit: &str) {
        self.goal(value <= limit, format!("{what} {value:.2} {unit} (goal: {limit:.2})"));
    }

    /// Whether all that is judged held.
    #[must_use]
    pub fn pass(&self, strict: bool) -> bool {
        self.verdicts.iter().all(|v| v.held || v.goal && !strict)
    }

    /// A table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut t = String::new();
        let mut heading = Vec::new();
        for row in &self.rows {
            let names: Vec<&str> = row.values.iter().map(|(n, _, _)| *n).collect();
            if names != heading {
                t += &format!("\n  {:<44}", "");
                names.iter().for_each(|n| t += &format!("{n:>16}"));
                t.push('\n');
                heading = names;
            }
            t += &format!("  {:<44}", row.name);
            row.values.iter().for_each(|(_, v, decimals)| t += &format!("{v:>16.decimals$}"));
            t.push('\n');
        }
        t.push('\n');
        for v in &self.verdicts {
            let word = match (v.held, v.goal) {
                (true, _) => "ok",
                (false, true) => "missed",
                (false, false) => "FAILED",
            };
            t += &format!("  {word:<7} {}\n", v.text);
        }
        t
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let verdicts = self.verdicts.iter().map(|v| json!({"text": v.text, "held": v.held, "goal": v.goal}));
        json!({
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "verdicts": verdicts.collect::<Vec<_>>(),
        })
    }
}

/// The value below which the part `p` of them lies; 0 of none.
#[must_use]
pub fn percentile(values: &[f64], p: f64) -> f64 {
    holdfast_lab::metrics::percentile(values, p).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_fails_only_where_it_is_strict_and_what_must_hold_always() {
        let mut o = Outcome::default();
        o.at_most("lag", 2.0, 1.0, "ms");
        assert!(o.pass(false) && !o.pass(true));
        o.must(false, "equal tables");
        assert!(!o.pass(false));
        assert!(o.text().contains("missed  lag 2.00 ms (goal: 1.00)") && o.text().contains("FAILED  equal tables"));
    }
}

//! What was seen in runs: how often each fault was made, each event written, each change of state happened. A simulator
//! in which something never happens proves nothing about it.

use holdfast_node::journal::Kind;
use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    seen: BTreeMap<String, u64>,
}

impl Coverage {
    /// Once more.
    pub fn see(&mut self, what: &str) {
        match self.seen.get_mut(what) {
            Some(count) => *count += 1,
            None => {
                self.seen.insert(what.to_owned(), 1);
            }
        }
    }

    /// A journal entry.
    pub fn event(&mut self, kind: &Kind) {
        let text = format!("{kind:?}");
        let name = text.split([' ', '{', '(']).next().unwrap_or_default();
        self.see(&format!("event: {name}"));
        if let Kind::VipState { from, to, reason, .. } = kind {
            self.see(&format!("{from} to {to}: {}", in_kind(reason)));
        }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.seen {
            *self.seen.entry(what.clone()).or_insert(0) += count;
        }
    }

    /// How often this was seen.
    pub fn count(&self, what: &str) -> u64 {
        self.seen.get(what).copied().unwrap_or(0)
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.seen.iter().map(|(what, count)| (what.as_str(), *count))
    }

    /// Those of `wanted` that were never seen.
    pub fn missing<'a>(&self, wanted: &[&'a str]) -> Vec<&'a str> {
        wanted.iter().copied().filter(|what| self.count(what) == 0).collect()
    }
}

/// A reason without its names and numbers.
fn in_kind(reason: &str) -> &'static str {
    const KINDS: [(&str, &str); 12] = [
        ("no advert for", "the owner fell silent"),
        ("no owner was heard", "no owner was heard"),
        ("preempts", "preempts"),
        ("is better", "outranked"),
        ("started as", "started as owner"),
        ("started", "started"),
        ("resumed", "resumed"),
        ("handed it over", "handed over"),
        ("yielded", "yielded"),
        ("takes no part", "takes no part"),
        (" resigned", "the owner resigned"),
        ("resigned", "resigned"),
    ];
    KINDS.iter().find(|(part, _)| reason.contains(part)).map_or("other", |(_, kind)| kind)
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(what, count)| writeln!(f, "{count:>9}  {what}"))
    }
}

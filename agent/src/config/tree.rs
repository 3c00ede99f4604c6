//! The TOML tree with places, and the sink that collects what is wrong with it.

use super::error::Finding;
use super::schema::{self, Section};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Findings kept. More help nobody; full: the rest is left out.
const FINDINGS_MAX: usize = 100;

/// Collects findings.
#[derive(Debug, Default)]
pub(super) struct Sink {
    findings: Vec<Finding>,
    /// Those left out too.
    found: usize,
}

impl Sink {
    pub(super) fn push(&mut self, span: Range<usize>, path: &str, what: String, accepted: Option<String>) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { span, line: 0, column: 0, path: path.to_owned(), what, accepted });
        }
    }

    /// About a place that is already read.
    pub(super) fn at(&mut self, place: &Place, what: impl Into<String>) {
        self.push(place.span.clone(), &place.path, what.into(), None);
    }

    /// How many there are: what is read next was right if it stays so.
    pub(super) fn len(&self) -> usize {
        self.found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }
}

/// Where something stands in the file.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) span: Range<usize>,
    pub(super) path: String,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Value<'t> {
    inner: &'t DeValue<'t>,
    pub(super) place: Place,
}

/// A table and its place.
#[derive(Debug, Clone)]
pub(super) struct Table<'t> {
    entries: &'t DeTable<'t>,
    pub(super) place: Place,
}

impl<'t> Table<'t> {
    pub(super) fn root(entries: &'t DeTable<'t>) -> Self {
        Self { entries, place: Place { span: 0..0, path: String::new() } }
    }

    fn path_of(&self, key: &str) -> String {
        if self.place.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.place.path) }
    }

    /// Tells every key that `section` doesn't know. A key of the design that this version doesn't have yet is told
    /// apart from a typo.
    pub(super) fn known_keys(&self, section: &Section, sink: &mut Sink) {
        for (key, value) in self.entries {
            let name: &str = key.get_ref();
            if section.keys.contains(&name) {
                continue;
            }
            // A section's key is its header; a value's is what stands left of the `=`.
            let span = if key.span().is_empty() { value.span() } else { key.span() };
            if let Some((_, instead)) = section.not_yet.iter().find(|(k, _)| *k == name) {
                sink.push(
                    span,
                    &self.path_of(name),
                    "is not supported by this version".to_owned(),
                    instead.map(str::to_owned),
                );
                continue;
            }
            let mut what = "unknown key".to_owned();
            if let Some(near) = schema::nearest(name, section.keys) {
                what.push_str(&format!(", did you mean `{near}`?"));
            }
            sink.push(span, &self.path_of(name), what, Some(section.keys.join(", ")));
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Value<'t>> {
        let value: &'t Spanned<DeValue<'t>> = self.entries.get(key)?;
        Some(Value { inner: value.get_ref(), place: Place { span: value.span(), path: self.path_of(key) } })
    }

    /// As [`Table::get`]; its absence is a finding.
    pub(super) fn require(&self, key: &str, accepted: &str, sink: &mut Sink) -> Option<Value<'t>> {
        let value = self.get(key);
        if value.is_none() {
            sink.push(self.place.span.clone(), &self.path_of(key), "is missing".to_owned(), Some(accepted.to_owned()));
        }
        value
    }

    /// The tables of `[[key]]`, at most `max`.
    pub(super) fn tables(&self, key: &str, max: usize, sink: &mut Sink) -> Vec<Self> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let accepted = format!("[[{}]] sections", self.path_of(key).replace("[0]", ""));
        let Some(items) = value.inner.as_array() else {
            value.refuse_type(&accepted, sink);
            return Vec::new();
        };
        if items.len() > max {
            value.refuse(&format!("has {} entries", items.len()), &format!("at most {max}"), sink);
        }
        value.items(items).take(max).filter_map(|item| item.table(&accepted, sink)).collect()
    }
}

impl<'t> Value<'t> {
    fn items(&self, items: &'t toml::de::DeArray<'t>) -> impl Iterator<Item = Self> {
        let path = self.place.path.clone();
        items.iter().enumerate().map(move |(n, item)| Self {
            inner: item.get_ref(),
            place: Place { span: item.span(), path: format!("{path}[{n}]") },
        })
    }

    /// Tells that the value is wrong.
    pub(super) fn refuse(&self, what: &str, accepted: &str, sink: &mut Sink) {
        sink.push(self.place.span.clone(), &self.place.path, what.to_owned(), Some(accepted.to_owned()));
    }

    pub(super) fn refuse_type(&self, accepted: &str, sink: &mut Sink) {
        self.refuse(&format!("is {}", self.type_name()), accepted, sink);
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self.inner {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a floating-point number",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        }
    }

    pub(super) fn string(&self, accepted: &str, sink: &mut Sink) -> Option<&'t str> {
        let text = self.inner.as_str();
        if text.is_none() {
            self.refuse_type(accepted, sink);
        }
        text
    }

    /// Without a finding when it isn't one.
    pub(super) fn as_str(&self) -> Option<&'t str> {
        self.inner.as_str()
    }

    /// Without a finding when it isn't one.
    pub(super) fn as_bool(&self) -> Option<bool> {
        self.inner.as_bool()
    }

    pub(super) fn is_table(&self) -> bool {
        self.inner.is_table()
    }

    pub(super) fn is_array(&self) -> bool {
        self.inner.is_array()
    }

    /// `Some(None)`: an integer, but far out of range.
    fn integer(&self) -> Option<Option<i64>> {
        let integer = self.inner.as_integer()?;
        Some(i64::from_str_radix(integer.as_str(), integer.radix()).ok())
    }

    /// An integer of this range.
    pub(super) fn integer_in(&self, range: Range<i64>, accepted: &str, sink: &mut Sink) -> Option<i64> {
        match self.integer() {
            None => self.refuse_type(accepted, sink),
            Some(Some(n)) if range.contains(&n) => return Some(n),
            Some(Some(n)) => self.refuse(&format!("{n} is out of range"), accepted, sink),
            Some(None) => self.refuse("is out of range", accepted, sink),
        }
        None
    }

    pub(super) fn boolean(&self, sink: &mut Sink) -> Option<bool> {
        let boolean = self.inner.as_bool();
        if boolean.is_none() {
            self.refuse_type("true, false", sink);
        }
        boolean
    }

    pub(super) fn array(&self, accepted: &str, sink: &mut Sink) -> Option<Vec<Self>> {
        let items = self.inner.as_array();
        if items.is_none() {
            self.refuse_type(accepted, sink);
        }
        items.map(|items| self.items(items).collect())
    }

    pub(super) fn table(&self, accepted: &str, sink: &mut Sink) -> Option<Table<'t>> {
        let entries = self.inner.as_table();
        if entries.is_none() {
            self.refuse_type(accepted, sink);
        }
        entries.map(|entries| Table { entries, place: self.place.clone() })
    }
}

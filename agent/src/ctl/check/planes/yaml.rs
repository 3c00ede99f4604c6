//! YAML (and with it JSON) as a tree that knows its lines. Total and bounded: aliases are not followed, so that a small
//! text can't become a large tree.

use saphyr_parser::{Event, Parser};

const NODES_MAX: usize = 200_000;
const DEPTH_MAX: usize = 64;
const ALIAS: Yaml = Yaml { line: 0, value: Value::Unknown };

/// A value and the line (from 1) where it begins.
#[derive(Debug, Clone)]
pub(super) struct Yaml {
    pub(super) line: usize,
    value: Value,
}

#[derive(Debug, Clone)]
enum Value {
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
    Unknown,
}

impl Yaml {
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// `a.b.c`.
    pub(super) fn at(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |value, key| value.get(key))
    }

    pub(super) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The items of a list below, or none.
    pub(super) fn each(&self, path: &str) -> &[Self] {
        self.at(path).map_or(&[], Self::items)
    }
}

/// The first document.
pub(super) fn parse(text: &str) -> Result<Yaml, (usize, String)> {
    // Lists and maps that are open; of a map also the key that waits for its value.
    let mut open: Vec<(Yaml, Option<String>)> = Vec::new();
    let mut nodes = 0usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|e| (e.marker().line(), e.info().to_owned()))?;
        let line = span.start.line();
        nodes += 1;
        if nodes > NODES_MAX || open.len() > DEPTH_MAX {
            return Err((line, "larger or deeper than is looked at".to_owned()));
        }
        let done = match event {
            Event::SequenceStart(..) => {
                open.push((Yaml { line, value: Value::List(Vec::new()) }, None));
                continue;
            }
            Event::MappingStart(..) => {
                open.push((Yaml { line, value: Value::Map(Vec::new()) }, None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some((done, _)) => done,
                None => continue,
            },
            Event::Scalar(text, ..) => Yaml { line, value: Value::Text(text.into_owned()) },
            Event::Alias(_) => Yaml { line, ..ALIAS },
            _ => continue,
        };
        let Some((parent, key)) = open.last_mut() else { return Ok(done) };
        match &mut parent.value {
            Value::List(items) => items.push(done),
            Value::Map(entries) => match key.take() {
                Some(key) => entries.push((key, done)),
                None => *key = Some(done.text().unwrap_or_default().to_owned()),
            },
            _ => {}
        }
    }
    Err((1, "nothing is in it".to_owned()))
}

//! What is wrong with a configuration: every finding with its place, ready for people and for `grep`.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::fmt;
use std::ops::Range;

/// How far the text got; also the exit code of `holdfast check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The file can't be read or isn't TOML (exit 1).
    Syntax,
    /// It is TOML, but not a configuration: unknown keys, wrong types, values out of range, contradictions (exit 2).
    Semantics,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Bytes of the text this is about. Empty at 0 when the whole file is meant.
    pub span: Range<usize>,
    /// Line, from 1; 0: the file could not be read.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Path of the key, as `vip[0].vrrp.vrid`; empty for the file as such.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What is accepted instead.
    pub accepted: Option<String>,
}

/// A configuration that was refused. Nothing of it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// How far the text got.
    pub kind: Kind,
    /// The file as it was named.
    pub file: String,
    /// At least one, in the order of the file.
    pub findings: Vec<Finding>,
    /// The text, for [`ConfigErrors::render`].
    text: String,
}

impl ConfigErrors {
    /// `findings` need only their spans; lines and columns are computed here.
    pub(super) fn new(kind: Kind, file: &str, text: &str, mut findings: Vec<Finding>) -> Self {
        for finding in &mut findings {
            let start = floor(text, finding.span.start);
            let end = floor(text, finding.span.end).max(start);
            finding.span = start..end;
            let before = text.get(..start).unwrap_or_default();
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            finding.line = before.bytes().filter(|b| *b == b'\n').count() + 1;
            finding.column = before.get(line_start..).map_or(0, |line| line.chars().count()) + 1;
        }
        findings.sort_by(|a, b| (a.span.start, &a.path).cmp(&(b.span.start, &b.path)));
        findings.dedup_by(|a, b| a.span == b.span && a.path == b.path && a.what == b.what);
        Self { kind, file: file.to_owned(), findings, text: text.to_owned() }
    }

    /// The file could not be read at all.
    pub(super) fn unreadable(file: &str, why: &str) -> Self {
        let what = format!("can't be read: {why}");
        let finding = Finding { span: 0..0, line: 0, column: 0, path: String::new(), what, accepted: None };
        Self { kind: Kind::Syntax, file: file.to_owned(), findings: vec![finding], text: String::new() }
    }

    /// Exit code of `holdfast check` and `holdfast run` (DESIGN section 3).
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Syntax => 1,
            Kind::Semantics => 2,
        }
    }

    /// Every finding as its one line, followed by the source line and a caret.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut all = String::new();
        for finding in &self.findings {
            all.push_str(&self.line(finding));
            all.push('\n');
            if finding.line > 0 {
                all.push_str(&self.snippet(finding, &renderer));
                all.push('\n');
            }
        }
        all
    }

    /// `file:line:column: key.path: what is wrong; accepted: …`
    pub fn line(&self, finding: &Finding) -> String {
        let mut line = self.file.clone();
        if finding.line > 0 {
            line.push_str(&format!(":{}:{}", finding.line, finding.column));
        }
        if !finding.path.is_empty() {
            line.push_str(&format!(": {}", finding.path));
        }
        line.push_str(&format!(": {}", finding.what));
        if let Some(accepted) = &finding.accepted {
            line.push_str(&format!("; accepted: {accepted}"));
        }
        line
    }

    /// Only the line where the finding starts is shown: a table's span may be long, and the path says what is meant.
    fn snippet(&self, finding: &Finding, renderer: &Renderer) -> String {
        let start = finding.span.start;
        let line_start = self.text.get(..start).and_then(|t| t.rfind('\n')).map_or(0, |at| at + 1);
        let rest = self.text.get(line_start..).unwrap_or_default();
        let source: String = rest
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            // Control characters would move the caret, or the terminal.
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        // A control character may be two bytes long and its blank is one: count characters, then bytes of the blanked
        // line.
        let characters = |bytes: Range<usize>| self.text.get(bytes).map_or(0, |t| t.chars().count());
        let line_end = line_start + rest.lines().next().unwrap_or_default().len();
        let from = characters(line_start..start);
        let to = from + characters(start..finding.span.end.min(line_end).max(start));
        let byte = |n: usize| source.char_indices().nth(n).map_or(source.len(), |(at, _)| at);
        let span = byte(from)..byte(to).max(byte(from));
        let snippet = Snippet::source(source.as_str())
            .line_start(finding.line)
            .annotation(AnnotationKind::Primary.span(span).label(finding.what.as_str()));
        renderer.render(&[Group::with_level(Level::ERROR).element(snippet)])
    }
}

/// The nearest character boundary at or below `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, finding) in self.findings.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&self.line(finding))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

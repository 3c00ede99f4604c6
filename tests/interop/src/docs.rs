//! Blocks of the documentation that a test follows, marked `<!-- test: NAME -->` on the line before.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The marked blocks of a page, by name.
#[derive(Debug)]
pub struct Page {
    blocks: BTreeMap<String, String>,
}

impl Page {
    /// Reads a page.
    ///
    /// # Errors
    /// It isn't there.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut blocks = BTreeMap::new();
        let mut marked = None;
        let mut open: Option<(String, String)> = None;
        for line in text.lines() {
            if let Some((name, block)) = &mut open {
                if line == "```" {
                    blocks.insert(std::mem::take(name), std::mem::take(block));
                    open = None;
                } else {
                    block.push_str(line);
                    block.push('\n');
                }
            } else if let Some(name) = line.strip_prefix("<!-- test: ").and_then(|l| l.strip_suffix(" -->")) {
                marked = Some(name.to_owned());
            } else if line.starts_with("```") {
                open = marked.take().map(|name| (name, String::new()));
            }
        }
        Self { blocks }
    }

    /// The block of that name.
    ///
    /// # Errors
    /// The page has none: then a test and the page no longer say the same.
    pub fn block(&self, name: &str) -> Result<&str> {
        let block = self.blocks.get(name).map(String::as_str);
        block.with_context(|| format!("no block is marked <!-- test: {name} -->"))
    }

    /// All names.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.blocks.keys().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_blocks_are_followed() {
        let page =
            Page::parse("<!-- test: a -->\n```sh\none\ntwo\n```\n\n```sh\nno\n```\n<!-- test: b -->\n```\nx\n```\n");
        assert_eq!(page.names(), ["a", "b"]);
        assert_eq!(page.block("a").expect("marked"), "one\ntwo\n");
        assert!(page.block("c").is_err());
    }
}

//! The table of field complaints names tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn path(written: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree's top");
    match written.split_once('/') {
        Some(("node", rest)) => root.join("agent/node/src/tests").join(rest),
        Some(("agent", rest)) if !rest.starts_with("src/") => root.join("agent/tests").join(rest),
        Some(("keeper", rest)) => root.join("agent/node/src/keeper/tests").join(rest),
        _ => root.join(written),
    }
}

#[test]
fn every_test_in_the_table_of_complaints_is_there() {
    let table = fs::read_to_string(path("tests/COMPLAINTS.md")).expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
    let mut named = 0;
    for row in rows {
        let tests = row.split('|').nth(3).expect("a third column");
        let mut source = String::new();
        for word in tests.split([' ', ',']) {
            if word.ends_with(".rs") {
                source = fs::read_to_string(path(word)).unwrap_or_else(|e| panic!("{word}: {e}\n{row}"));
            } else if let Some(test) = word.strip_prefix('`').and_then(|word| word.strip_suffix('`'))
                && test.contains('_')
                && test != "min_ttl"
            {
                named += 1;
                // A test, or what a macro makes one of.
                let is_name = |(at, _): (usize, &str)| {
                    let around = [source[..at].chars().next_back(), source[at + test.len()..].chars().next()];
                    !around.into_iter().flatten().any(|c| c.is_alphanumeric() || c == '_')
                };
                assert!(source.match_indices(test).any(is_name), "no test is called {test}\n{row}");
            }
        }
    }
    assert!(named >= 40, "{named}");
}

//! The table of field complaints names tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn path(written: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree's top");
    match written.split_once('/') {
        Some(("node", rest)) => root.join("agent/node/src/tests").join(rest),
        Some(("agent", rest)) if !rest.starts_with("src/") && !rest.starts_with("node/") => {
            root.join("agent/tests").join(rest)
        }
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

/// What was asked for of the data planes.
const DATA_PLANES: [u32; 39] = [
    6, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 29, 31, 32, 33, 34, 41, 42, 43, 44, 46, 47,
    48, 49, 50, 53, 56, 59, 62, 71, 73, 74,
];

#[test]
fn every_row_that_was_asked_for_of_the_data_planes_has_its_line() {
    let table = fs::read_to_string(path("tests/COMPLAINTS.md")).expect("the table");
    let (_, section) = table.split_once("## Data planes").expect("a section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|line| line.split('|').next());
    let mut numbers: Vec<u32> = rows.flat_map(|cell| cell.split(',')).filter_map(|n| n.trim().parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, DATA_PLANES);
}

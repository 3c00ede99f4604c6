//! The reference pages tell the truth.

use clap::CommandFactory as _;
use holdfast::config;
use holdfast::ctl::cli::Cli;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    fs::read_to_string(path).expect("the page is in the tree")
}

/// First cells of the table behind each `<!-- keys: PATH -->`.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    let mut path = None;
    for line in page("configuration.md").lines() {
        if let Some(marked) = line.strip_prefix("<!-- keys: ").and_then(|l| l.strip_suffix(" -->")) {
            path = Some(marked.to_owned());
            found.insert(marked.to_owned(), BTreeSet::new());
        } else if line.starts_with('#') {
            path = None;
        } else if let (Some(path), Some(row)) = (&path, line.strip_prefix("| `")) {
            let key = row.split('`').next().unwrap_or_default().to_owned();
            found.entry(path.clone()).or_insert_with(BTreeSet::new).insert(key);
        }
    }
    found
}

#[test]
fn every_key_of_every_section_is_documented_and_no_other() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for section in config::schema_sections().into_iter().filter(|section| !section.path.is_empty()) {
        known.insert(section.path.to_owned(), section.keys.iter().map(|&key| key.to_owned()).collect());
    }
    assert_eq!(documented(), known);
}

#[test]
fn every_configuration_in_the_pages_is_accepted_by_check() {
    for (name, least) in [("configuration.md", 7), ("guide.md", 11)] {
        let text = page(name);
        let mut blocks = 0;
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            let mut file = block.to_owned();
            if !block.contains("[node]") {
                file.push_str("[node]\nname = \"lb1\"\n");
            }
            if !block.contains("[[vip]]") {
                file.push_str("[[vip]]\nname = \"v\"\naddresses = [\"192.0.2.99/32\"]\n");
                file.push_str("vrrp = { interface = \"eth0\", vrid = 99, priority = 254 }\n");
            }
            // As `check` does where no interface is there.
            if let Err(errors) = config::parse_for(&file, name, &|_| Some(1500)) {
                panic!("{}\n{block}", errors.render(false));
            }
            blocks += 1;
        }
        assert!(blocks >= least, "{name}: only {blocks} blocks were found");
    }
}

/// The headings of a page as links name them: lower case, no marks, hyphens for blanks.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

#[test]
fn every_link_between_the_pages_leads_somewhere() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut seen = 0;
    for name in ["configuration.md", "guide.md", "cli.md", "planes.md"] {
        for link in page(name).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { name } else { file };
            let text = fs::read_to_string(docs.join(file));
            let text = text.unwrap_or_else(|e| panic!("{name}: {link}: {e}"));
            assert!(anchor.is_empty() || anchors(&text).contains(anchor), "{name}: {link}");
            seen += 1;
        }
    }
    assert!(seen >= 8, "only {seen} links were found");
}

#[test]
fn every_command_and_every_option_is_documented() {
    let text = page("cli.md");
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        assert!(text.contains(&format!("`holdfast {name}")), "{name}");
        for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(text.contains(&format!("--{option}")), "{name} --{option}");
        }
    }
}

#[test]
fn the_unit_calls_commands_that_exist_and_gives_the_agent_time_to_leave() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/holdfast.service");
    let unit = fs::read_to_string(path).expect("the unit is in the tree");
    let value =
        |key: &str| unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect::<Vec<_>>();
    let mut called = Vec::new();
    for line in value("ExecStart").into_iter().chain(value("ExecStopPost")) {
        let words: Vec<&str> = line.trim_start_matches('-').split(' ').collect();
        assert!(Cli::command().try_get_matches_from(&words).is_ok(), "{line}");
        called.push(words.last().copied().unwrap_or_default());
    }
    assert_eq!(called, ["run", "cleanup"]);
    let stop = value("TimeoutStopSec");
    let stop = config::duration::parse(stop.first().expect("it is set")).expect("a duration");
    assert!(stop > holdfast::ctl::STOP_DEADLINE, "{stop:?}");
}

/// As a shell would take the line apart: blanks, double quotes, a comment at the end.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut begun) = (false, false);
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            '#' if !quoted && !begun => break,
            ' ' if !quoted => {
                if begun {
                    words.push(String::new());
                }
                begun = false;
            }
            c => {
                words.last_mut().expect("never empty").push(c);
                begun = true;
            }
        }
    }
    if !begun {
        words.pop();
    }
    words
}

/// Command lines of a page: in blocks, fenced or indented, and between backquotes in prose.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            found.push(line.trim_start().to_owned());
        } else if !line.starts_with("### ") {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found.retain(|line| line.starts_with("holdfast "));
    found
}

#[test]
fn every_command_line_that_is_shown_is_accepted() {
    let mut seen = 0;
    for page in ["../README.md", "docs/guide.md", "docs/cli.md", "docs/configuration.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = fs::read_to_string(path).expect("the page is in the tree");
        for line in command_lines(&text) {
            // What stands for something isn't a command line: `holdfast COMMAND`.
            if line == "holdfast COMMAND" || line.contains('…') {
                continue;
            }
            let accepted = Cli::command().try_get_matches_from(words(&line));
            assert!(accepted.is_ok(), "{page}: {line}: {}", accepted.err().map(|e| e.to_string()).unwrap_or_default());
            seen += 1;
        }
    }
    assert!(seen >= 15, "only {seen} command lines were found");
}

//! Configuration files, good and bad.

use holdfast::config::{self, ConfigErrors, Kind};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the folder is in the tree")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
}

/// `# expect: EXIT LINE:COLUMN PATH|- TEXT`, one line per finding, at the top of the file.
fn expectations(text: &str) -> Vec<(u8, String, String, String)> {
    text.lines()
        .map_while(|line| line.strip_prefix("# expect: "))
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().expect("an expectation has four parts").to_owned();
            let exit = word().parse().expect("an exit code");
            (exit, word(), word(), word())
        })
        .collect()
}

fn mismatches(name: &str, text: &str, errors: &ConfigErrors) -> Vec<String> {
    let expected = expectations(text);
    assert!(!expected.is_empty(), "{name}: says nothing of what is expected");
    let mut wrong = Vec::new();
    if expected.len() != errors.findings.len() {
        wrong.push(format!("{} findings, {} expected", errors.findings.len(), expected.len()));
    }
    for (finding, (exit, place, path, what)) in errors.findings.iter().zip(&expected) {
        let line = errors.line(finding);
        let path = if path == "-" { "" } else { path };
        let fits = errors.exit_code() == *exit
            && format!("{}:{}", finding.line, finding.column) == *place
            && finding.path == path
            && line.contains(what.as_str());
        if !fits {
            wrong.push(format!("exit {}, {line}\n    expected: {exit} {place} {path} … {what}", errors.exit_code()));
        }
    }
    wrong.into_iter().map(|wrong| format!("{name}: {wrong}")).collect()
}

#[test]
fn every_bad_file_is_refused_with_line_column_path_and_reason() {
    let files = files("tests/config/bad");
    assert!(files.len() >= 60, "only {} bad files", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("readable");
        match config::parse(&text, &name) {
            Ok(_) => wrong.push(format!("{name}: accepted")),
            Err(errors) => {
                wrong.extend(mismatches(&name, &text, &errors));
                // The picture shows the line and never loses the one-line form.
                let picture = errors.render(false);
                for finding in &errors.findings {
                    assert!(picture.contains(&errors.line(finding)), "{name}: {picture}");
                }
                assert!(picture.contains('^'), "{name}: no caret\n{picture}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_good_file_and_both_examples_are_accepted() {
    for path in files("tests/config/good").into_iter().chain(files("packaging/examples")) {
        if let Err(errors) = config::load(&path) {
            panic!("{}", errors.render(false));
        }
    }
}

#[test]
fn defaults_are_as_documented() {
    let text = r#"
        [node]
        name = "a"
        [[check]]
        name = "c"
        http = "http://127.0.0.1/"
        [[vip]]
        name = "v"
        addresses = ["192.0.2.10/32"]
        vrrp = { interface = "eth0", vrid = 1, priority = 254 }
        [[hook]]
        name = "h"
        on = "active"
        exec = ["/bin/true"]
    "#;
    let config = config::parse(text, "text").expect("valid");
    let value = serde_json::to_value(&config).expect("plain data");
    assert_eq!(value["checks"][0]["interval_ms"], 1000);
    assert_eq!(value["checks"][0]["fast_interval_ms"], 200);
    assert_eq!(value["checks"][0]["timeout_ms"], 1000);
    assert_eq!(value["checks"][0]["fall"], 3);
    assert_eq!(value["checks"][0]["rise"], 2);
    assert_eq!(value["checks"][0]["shared"], false);
    assert_eq!(value["checks"][0]["probe"]["http"]["expect"], serde_json::json!([[200, 399]]));
    assert_eq!(value["checks"][0]["probe"]["http"]["host"], "127.0.0.1");
    assert_eq!(value["vips"][0]["balancers"], serde_json::json!([]));
    assert_eq!(value["vips"][0]["checks"], serde_json::json!([0]));
    assert_eq!(value["vips"][0]["last_node"], "keep");
    assert_eq!(value["vips"][0]["vrrp"]["interval_ms"], 100);
    assert_eq!(value["vips"][0]["vrrp"]["preempt"], true);
    assert_eq!(value["vips"][0]["addresses"][0]["interface"], "eth0");
    assert_eq!(value["vips"][0]["addresses"][0]["advertise"], true);
    assert_eq!(value["hooks"][0]["timeout_ms"], 10_000);
    assert_eq!(value["cluster"], serde_json::Value::Null);
}

#[test]
fn a_missing_file_and_one_that_is_not_text_end_with_the_exit_code_of_a_syntax_error() {
    let missing = config::load(Path::new("/nonexistent/holdfast.toml")).expect_err("it isn't there");
    assert_eq!((missing.kind, missing.exit_code()), (Kind::Syntax, 1));
    assert!(missing.to_string().starts_with("/nonexistent/holdfast.toml: can't be read: "), "{missing}");
    let path = std::env::temp_dir().join(format!("holdfast-not-text-{}.toml", std::process::id()));
    fs::write(&path, b"[node]\nname = \"\xff\"\n").expect("the folder is writable");
    let refused = config::load(&path);
    fs::remove_file(&path).expect("just written");
    assert_eq!(refused.expect_err("not UTF-8").exit_code(), 1);
}

#[test]
fn everything_that_is_wrong_is_told_in_one_go_and_in_the_order_of_the_file() {
    let text = "[node]\nname = \"-\"\nx = 1\n[[vip]]\nname = 5\naddresses = []\nvrrp = { interface = \"\", vrid = 0, priority = 255 }\n";
    let errors = config::parse(text, "f").expect_err("much is wrong");
    let lines: Vec<usize> = errors.findings.iter().map(|f| f.line).collect();
    assert_eq!(lines, [2, 3, 5, 6, 7, 7, 7], "{errors}");
}

fn corpus() -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    for path in files("tests/config/good").into_iter().chain(files("packaging/examples")) {
        corpus.push(fs::read(path).expect("readable"));
    }
    corpus
}

/// Neither reading nor showing what is wrong may panic, and a refusal always says something.
fn survives(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(errors) = config::parse(&text, "f") {
        assert!(!errors.findings.is_empty());
        assert!(!errors.render(false).is_empty());
        assert!(!errors.render(true).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        survives(&bytes);
    }

    #[test]
    fn no_mutation_of_an_example_makes_it_panic(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..12),
    ) {
        let mut bytes = which.get(&corpus()).clone();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => { bytes.remove(at); }
                // Whole lines move: tables change owners, keys their tables.
                _ => {
                    let end = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n + 1);
                    let cut: Vec<u8> = bytes.drain(at..end).collect();
                    let to = usize::from(byte) * bytes.len() / 256;
                    bytes.splice(to..to, cut);
                }
            }
            if bytes.is_empty() { break; }
        }
        survives(&bytes);
    }

    #[test]
    fn no_value_in_the_place_of_another_makes_it_panic(
        which in any::<prop::sample::Index>(),
        line in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            "0", "-1", "99999999999999999999", "1.5", "nan", "true", "\"\"", "\"\\u0000\"", "[]", "[[]]", "{}", "[{}]",
            "2026-01-01", "\"é€𝄞\"", "'\t'", "{ a = { b = [1] } }", "0xff", "\"1s\"", "\"/\"", "[\"/\", 1]",
        ]),
    ) {
        let text = String::from_utf8(which.get(&corpus()).clone()).expect("the examples are text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = line.index(lines.len());
        if let Some((key, _)) = lines[at].clone().split_once('=') {
            lines[at] = format!("{key}= {value}");
        }
        survives(lines.join("\n").as_bytes());
    }
}

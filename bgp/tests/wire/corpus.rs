//! Everything in the fuzz targets' corpora, through the fuzz targets' own functions.

#[path = "../../../tests/fuzz/bodies/bgp_wire.rs"]
pub(super) mod bgp_wire;

use std::path::{Path, PathBuf};

type Run = fn(&[u8]);

const TARGETS: [(&str, Run); 5] = [
    ("bgp_header", bgp_wire::header),
    ("bgp_open", bgp_wire::open),
    ("bgp_update", bgp_wire::update),
    ("bgp_notification", bgp_wire::notification),
    ("bgp_refresh", bgp_wire::refresh),
];

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(target)
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.display().to_string(), std::fs::read(&path).unwrap())
    };
    std::fs::read_dir(folder(target)).unwrap().map(read).collect()
}

/// The corpora's inputs as messages: what other tests start from.
pub(super) fn messages() -> Vec<Vec<u8>> {
    let bodies = [("bgp_open", 1), ("bgp_update", 2), ("bgp_notification", 3), ("bgp_refresh", 5)];
    let message = |kind: u8, input: &[u8]| super::message(kind, input.get(1..).unwrap_or_default());
    bodies
        .into_iter()
        .flat_map(|(target, kind)| corpus(target).into_iter().map(move |(_, input)| message(kind, &input)))
        .collect()
}

#[test]
fn every_input_in_the_corpus_runs() {
    for (target, run) in TARGETS {
        let corpus = corpus(target);
        assert!(corpus.len() >= 4, "the corpus of {target} is there");
        for (name, input) in corpus {
            // The name of the one that fails is the last one printed.
            println!("{name}");
            run(&input);
        }
    }
}

#[test]
fn every_input_cut_short_or_with_a_byte_changed_runs() {
    for (target, run) in TARGETS {
        for (name, input) in corpus(target) {
            println!("{name}");
            for at in 0..input.len().min(300) {
                run(&input[..at]);
                for value in [0, 1, 0x7f, 0xff] {
                    let mut changed = input.clone();
                    changed[at] = value;
                    run(&changed);
                }
            }
        }
    }
}

//! Everything in the fuzz target's corpus, through the fuzz target's own function.

#[path = "../../../tests/fuzz/bodies/bfd_decode.rs"]
mod bfd_decode;

use std::path::Path;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/bfd_decode");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
    };
    let mut corpus: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    corpus.sort();
    corpus
}

#[test]
fn every_input_in_the_corpus_runs() {
    let corpus = corpus();
    assert!(corpus.len() >= 20, "the corpus is there");
    for (name, input) in corpus {
        // The name of the one that fails is the last one printed.
        println!("{name}");
        bfd_decode::run(&input);
    }
}

#[test]
fn what_is_taken_of_the_corpus_is_what_its_names_say() {
    let refused: Vec<_> =
        corpus().into_iter().filter(|(_, input)| !bfd_decode::run(input)).map(|(name, _)| name).collect();
    let expected = [
        "authenticated",
        "authenticated-short",
        "empty",
        "init-no-session",
        "length-23",
        "length-255",
        "multihop-far",
        "multiplier-0",
        "multipoint",
        "no-discriminator",
        "ones",
        "short",
        "ttl-64",
        "up-unknown-session",
        "version-0",
        "version-7",
        "zeros",
    ];
    assert_eq!(refused, expected);
}

#[test]
fn every_input_cut_short_or_with_a_byte_changed_runs() {
    for (name, input) in corpus() {
        println!("{name}");
        for at in 0..input.len() {
            bfd_decode::run(&input[..at]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = input.clone();
                changed[at] = value;
                bfd_decode::run(&changed);
            }
        }
    }
}

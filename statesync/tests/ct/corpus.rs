//! Everything in the fuzz target's corpus, through the fuzz target's own function.

#[path = "../../../tests/fuzz/bodies/ct_messages.rs"]
pub(crate) mod ct_messages;

use std::path::Path;

#[test]
fn every_input_in_the_corpus_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/ct_messages");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "the corpus is there");
    for file in files {
        // The name of the one that fails is the last one printed.
        println!("{}", file.display());
        let input = std::fs::read(&file).unwrap();
        ct_messages::run(&input);
        for at in 0..input.len() {
            ct_messages::run(&input[..at]);
        }
    }
}

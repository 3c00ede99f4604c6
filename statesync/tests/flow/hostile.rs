//! Batches that no good peer sends, through the fuzz target's own function: it says what must hold.

#[path = "../../../tests/fuzz/bodies/flow_batches.rs"]
mod flow_batches;

use crate::sim::{MS, SECOND, SHARED, Sim, VIP};
use holdfast_statesync::flow::Elected;
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus/flow_batches");
    let files = std::fs::read_dir(folder).expect("the corpus").map(|entry| entry.expect("a file").path());
    let read = |path: PathBuf| (path.display().to_string(), std::fs::read(path).expect("readable"));
    let mut all: Vec<_> = files.map(read).collect();
    all.sort();
    all
}

#[test]
pub(crate) fn every_input_in_the_corpus_runs_whole_and_cut_short() {
    let corpus = corpus();
    assert!(corpus.len() >= 10, "the corpus is there");
    let mut applied = 0;
    for (name, input) in corpus {
        // The name of the one that fails is the last one printed.
        println!("{name}");
        applied += flow_batches::run(&input);
        for at in (0..input.len()).step_by(1 + input.len() / 24) {
            flow_batches::run(&input[..at]);
        }
    }
    assert!(applied >= 20, "{applied} batches were applied");
}

/// What good nodes send to each other in a busy second, heads left out.
fn sent() -> &'static [Vec<u8>] {
    static SENT: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SENT.get_or_init(|| {
        let mut sim = Sim::idle(1, 3);
        sim.kept = Some(Vec::new());
        (0..3).for_each(|node| sim.start_agent(node));
        sim.loss_percent = 5;
        (0..3).for_each(|node| sim.elect(node, SHARED, Elected::Me));
        for round in 0..12 {
            sim.v6 = round % 3 == 0;
            sim.move_vip(VIP, round % 3);
            sim.open(round % 3, VIP, 3);
            sim.open((round + 1) % 3, SHARED, 3);
            sim.run_for(20 * MS);
            let place = sim.below(sim.clients.len());
            sim.close(round % 3, place);
            sim.run_for(SECOND / 4);
        }
        let kept = sim.kept.take().expect("kept");
        kept.into_iter().filter(|bytes| bytes.len() > 10).map(|bytes| bytes[10..].to_vec()).collect()
    })
}

fn step(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn no_batch_changes_flows_of_a_vip_that_its_sender_doesnt_share(
        options in any::<u8>(),
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::option::of(any::<u8>()), 0_u16..40), 1..24,
        ),
    ) {
        let mut input = vec![options];
        for (batch, at, change, time) in steps {
            let mut body = sent()[batch.index(sent().len())].clone();
            if let Some(change) = change {
                let at = at.index(body.len());
                body[at] = change;
            }
            input.extend(step(1, &body));
            if time < 20 {
                input.extend([2, time as u8, 0]);
            }
        }
        flow_batches::run(&input);
    }

    #[test]
    fn any_bytes_are_taken_without_harm(input in prop::collection::vec(any::<u8>(), 0..400)) {
        flow_batches::run(&input);
    }
}

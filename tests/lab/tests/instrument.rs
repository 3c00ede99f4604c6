//! The measuring against the truth, in real namespaces: run as root with `cargo test -p holdfast-lab -- --ignored`.

use holdfast_lab::calibrate::calibrate;
use holdfast_lab::clock::MS;
use holdfast_lab::fabric::Fabric;
use holdfast_lab::residue::namespaces_with;

#[test]
#[ignore = "needs root and network namespaces"]
fn an_outage_of_known_length_is_measured_as_that_length() {
    let c = calibrate(100 * MS).expect("the fabric comes up");
    assert!(c.pass(), "{}", c.text());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_fabric_that_goes_leaves_nothing() {
    let fabric = Fabric::up(false).expect("the fabric comes up");
    let (prefix, directory) = (fabric.prefix().to_owned(), fabric.directory().to_owned());
    assert_eq!(namespaces_with(&prefix).len(), holdfast_lab::fabric::NODES.len());
    drop(fabric);
    assert!(namespaces_with(&prefix).is_empty());
    assert!(!directory.exists());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_panic_leaves_nothing_either() {
    let mut prefix = String::new();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let fabric = Fabric::up(false).expect("the fabric comes up");
        prefix = fabric.prefix().to_owned();
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    assert!(!prefix.is_empty() && namespaces_with(&prefix).is_empty());
}

//! `[conntrack]`: when the connection table is to be worried about.

use super::schema;
use super::tree::{Sink, Table};
use holdfast_node::config::Conntrack;

/// Largest limit: more entries than any host has memory for.
const LIMIT_MAX: i64 = 1 << 40;

/// `None`: something is wrong with it.
pub(super) fn read(root: &Table<'_>, sink: &mut Sink) -> Option<Conntrack> {
    let plain = Conntrack::default();
    let Some(value) = root.get("conntrack") else { return Some(plain) };
    let table = value.table("a [conntrack] section", sink)?;
    table.known_keys(&schema::CONNTRACK, sink);
    let watch = table.get("watch").map_or(Some(plain.watch), |value| value.boolean(sink));
    let mut percent = |key, otherwise| {
        let Some(value) = table.get(key) else { return Some(otherwise) };
        let read = value.integer_in(1..101, "percent of the table's limit, 1 to 100", sink)?;
        u8::try_from(read).ok()
    };
    let (filling, high, full) =
        (percent("filling", plain.filling), percent("high", plain.high), percent("full", plain.full));
    let limit = match table.get("limit") {
        None => None,
        Some(value) => {
            let read = value.integer_in(1..LIMIT_MAX + 1, "a number of entries, 1 to 2^40", sink)?;
            u64::try_from(read).ok()
        }
    };
    let (filling, high, full) = (filling?, high?, full?);
    if !(filling < high && high < full) {
        let what = format!("filling ({filling}), high ({high}) and full ({full}) are not in this order");
        let accepted = "each larger than the one before".to_owned();
        sink.push(table.place.span.clone(), &table.place.path, what, Some(accepted));
        return None;
    }
    Some(Conntrack { watch: watch?, filling, high, full, limit })
}

//! Any bytes in place of what the kernel sends of its connection table: messages and refusals, no more than there is
//! room for, and every flow that is read can be written and is the same when read again.

use holdfast_statesync::ct::{Batch, EncodeError, Event, Message, Messages, Replica};

/// One datagram.
pub(crate) fn run(data: &[u8]) {
    let mut batch = Batch::new();
    let mut messages = Messages::new(data);
    let mut count = 0;
    for message in messages.by_ref() {
        count += 1;
        let entry = match message {
            Message::Entry { entry, .. } | Message::Event(Event { entry, .. }) => entry,
            Message::Answer { errno, .. } | Message::Done { errno, .. } => {
                assert!(errno >= 0);
                continue;
            }
            Message::Overrun => continue,
        };
        let mut merged = entry;
        merged.merge(&entry);
        assert_eq!(merged, entry, "it says nothing new of itself");
        let replica = Replica::of(&entry, 60, None);
        match batch.create(&replica) {
            Ok(_) => {}
            Err(EncodeError::NoInverse) => {
                assert_eq!(entry.original.inverse(), None);
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        batch.update(&replica, true).expect("what can be created can be updated");
        batch.delete(&entry.original, entry.zone, entry.id).expect("and deleted");
        let [created] = only_entries(&batch)[..] else { panic!("one can be read: the others have no reply tuple") };
        assert_eq!((created.original, created.reply), (entry.original, entry.original.inverse().expect("has one")));
        // Zone 0 is not said, whatever its direction.
        assert_eq!(created.zone.id, entry.zone.id);
        assert!(created.zone.id == 0 || created.zone == entry.zone);
        assert_eq!(created.sequence_adjustment, entry.sequence_adjustment);
        assert_eq!(created.syn_proxy, entry.syn_proxy);
        assert!(batch.bytes().len() <= 3 * Batch::MESSAGE_MAX);
        batch.clear();
    }
    let skipped = messages.skipped();
    let all = count + skipped.protocols + skipped.messages + skipped.malformed;
    assert!(all <= data.len() as u64 / 16 + 1, "more messages than there is room for");
    assert_eq!(messages.next(), None, "the end is the end");
}

fn only_entries(batch: &Batch) -> Vec<holdfast_statesync::ct::Entry> {
    let entry = |message| if let Message::Entry { entry, .. } = message { Some(entry) } else { None };
    Messages::new(batch.bytes()).filter_map(entry).collect()
}

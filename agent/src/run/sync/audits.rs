//! How the kernel's table is read: as a whole, or by the names of the flows that we know.
//!
//! A dump costs what is in the table, whosever it is. What we know is looked up by name where that is a small part of it.
//! Flows of which no event told are found by dumps only, so there are some all the same: at the start, after events were
//! lost, and every so often.
//!
//! What this module refuses to do: have the kernel filter its dump. It takes a tenth of the time then, but in one piece,
//! with all packets of that processor waiting: 60 to 90 ms at 200,000 entries.

/// Below, a dump takes some milliseconds.
const LEAST: usize = 16_384;
/// A look-up costs about twice what an entry of a dump does.
const FACTOR: usize = 4;
/// Audits by name between two dumps: five minutes.
const IN_A_ROW: u32 = 10;

/// Decides.
#[derive(Debug)]
pub(super) struct Audits {
    /// Something may be in the table that we don't know: it has to be read as a whole.
    pub(super) unread: bool,
    /// The one that is on its way goes by names.
    by_name: bool,
    in_a_row: u32,
    /// How many went by names.
    pub(super) names: u64,
}

impl Default for Audits {
    fn default() -> Self {
        Self { unread: true, by_name: false, in_a_row: 0, names: 0 }
    }
}

impl Audits {
    /// One begins: whether it goes by names.
    pub(super) fn by_name(&mut self, entries: usize, records: usize) -> bool {
        let is_small = entries > records.saturating_mul(FACTOR).saturating_add(LEAST);
        self.by_name = is_small && !self.unread && self.in_a_row < IN_A_ROW;
        if self.by_name {
            self.in_a_row += 1;
            self.names += 1;
        } else {
            // What is lost from here on needs another one.
            self.unread = false;
        }
        self.by_name
    }

    /// It is at its end.
    pub(super) const fn ended(&mut self, complete: bool) {
        if self.by_name {
            return;
        }
        if complete {
            self.in_a_row = 0;
        } else {
            self.unread = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 500_000;

    fn read() -> Audits {
        let mut audits = Audits::default();
        assert!(!audits.by_name(MANY, 10), "at the start all is read");
        audits.ended(true);
        audits
    }

    #[test]
    fn what_we_know_is_looked_up_where_it_is_a_small_part_and_every_now_and_then_all_is_read() {
        let mut audits = read();
        for _ in 0..IN_A_ROW {
            assert!(audits.by_name(MANY, 10));
            audits.ended(true);
        }
        assert!(!audits.by_name(MANY, 10));
        audits.ended(true);
        assert!(audits.by_name(MANY, 10));
        assert!(!read().by_name(MANY, MANY / 2), "most of it is ours");
        assert!(!read().by_name(1_000, 1), "a dump is as quick");
    }

    #[test]
    fn lost_events_and_a_dump_that_was_cut_off_need_a_whole_one() {
        let mut audits = read();
        audits.unread = true;
        assert!(!audits.by_name(MANY, 10));
        audits.ended(false);
        assert!(!audits.by_name(MANY, 10), "it was cut off");
        audits.unread = true;
        audits.ended(true);
        assert!(!audits.by_name(MANY, 10), "they were lost while it ran");
        audits.ended(true);
        assert!(audits.by_name(MANY, 10));
    }
}

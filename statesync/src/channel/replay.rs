//! The replay window: which counters of a session were already seen (RFC 6479's ring of bit blocks).
//!
//! Refuses to learn from a datagram that isn't authenticated: [`ReplayWindow::check`] looks, and only
//! [`ReplayWindow::commit`] remembers.

use crate::mutants;

/// Counters that may arrive late, behind the highest one seen.
pub(crate) const WINDOW: u64 = BITS - BLOCK_BITS;

const BLOCK_BITS: u64 = 64;
const BLOCKS: usize = 32;
const BITS: u64 = BLOCK_BITS * BLOCKS as u64;

/// Why a counter is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Seen before.
    Replayed,
    /// So far behind that nobody knows whether it was seen.
    TooOld,
}

/// One direction of one session.
#[derive(Debug, Clone)]
pub(crate) struct ReplayWindow {
    /// One above the highest counter seen; 0: none seen.
    next: u64,
    blocks: [u64; BLOCKS],
}

impl ReplayWindow {
    /// Nothing seen.
    pub(crate) const fn new() -> Self {
        Self { next: 0, blocks: [0; BLOCKS] }
    }

    /// Whether a datagram with this counter may be looked at.
    pub(crate) fn check(&self, counter: u64) -> Result<(), Refusal> {
        if mutants::off("replay-window") || counter >= self.next {
            return Ok(());
        }
        if self.next - counter > WINDOW {
            return Err(Refusal::TooOld);
        }
        let (block, bit) = place(counter);
        if self.blocks[block] & bit == 0 { Ok(()) } else { Err(Refusal::Replayed) }
    }

    /// Remembers a counter that passed [`check`](Self::check) and whose datagram is authentic.
    pub(crate) fn commit(&mut self, counter: u64) {
        if counter >= self.next {
            // Blocks between the old and the new head hold counters of one lap before.
            let head = if self.next == 0 { None } else { Some((self.next - 1) / BLOCK_BITS) };
            let target = counter / BLOCK_BITS;
            let fresh = head.map_or(BLOCKS as u64, |head| (target - head).min(BLOCKS as u64));
            for step in 0..fresh {
                let block = (target.wrapping_sub(step) % BLOCKS as u64) as usize;
                self.blocks[block] = 0;
            }
            // The highest value is never sent (Noise section 5.1), so this can't wrap.
            self.next = counter.saturating_add(1);
        }
        let (block, bit) = place(counter);
        self.blocks[block] |= bit;
    }
}

const fn place(counter: u64) -> (usize, u64) {
    ((counter / BLOCK_BITS % BLOCKS as u64) as usize, 1 << (counter % BLOCK_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_counter_passes_once() {
        let mut window = ReplayWindow::new();
        assert_eq!(window.check(0), Ok(()));
        window.commit(0);
        assert_eq!(window.check(0), Err(Refusal::Replayed));
        assert_eq!(window.check(1), Ok(()));
    }

    #[test]
    fn a_look_alone_changes_nothing() {
        let window = ReplayWindow::new();
        assert_eq!(window.check(u64::MAX - 1), Ok(()));
        assert_eq!(window.check(0), Ok(()));
    }

    #[test]
    fn late_counters_pass_inside_the_window_and_are_too_old_behind_it() {
        let mut window = ReplayWindow::new();
        window.commit(10_000);
        assert_eq!(window.check(10_001 - WINDOW), Ok(()));
        assert_eq!(window.check(10_000 - WINDOW), Err(Refusal::TooOld));
    }

    #[test]
    fn the_highest_counters_neither_wrap_nor_panic() {
        let mut window = ReplayWindow::new();
        window.commit(u64::MAX - 1);
        window.commit(u64::MAX);
        assert_eq!(window.check(u64::MAX - 1), Err(Refusal::Replayed));
        assert_eq!(window.check(0), Err(Refusal::TooOld));
    }

    /// Steps around one place, with jumps of about a window and far ones.
    fn counters() -> impl Strategy<Value = Vec<u64>> {
        let step = prop_oneof![
            6 => (0u64..100).prop_map(|back| -(back as i64)),
            6 => (0u64..100).prop_map(|ahead| ahead as i64),
            2 => -(3 * BITS as i64)..(3 * BITS as i64),
            1 => -(1i64 << 40)..(1i64 << 40),
        ];
        (0u64..u64::MAX / 2, prop::collection::vec(step, 1..300)).prop_map(|(start, steps)| {
            let mut at = start;
            steps
                .into_iter()
                .map(|step| {
                    at = at.saturating_add_signed(step);
                    at
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn the_window_equals_a_set_of_seen_counters(counters in counters(), low: bool) {
            let mut window = ReplayWindow::new();
            let mut seen = BTreeSet::new();
            for counter in counters {
                let counter = if low { counter % (4 * BITS) } else { counter };
                let expected = match seen.last() {
                    Some(highest) if *highest >= counter && highest - counter >= WINDOW => Err(Refusal::TooOld),
                    _ if seen.contains(&counter) => Err(Refusal::Replayed),
                    _ => Ok(()),
                };
                prop_assert_eq!(window.check(counter), expected);
                if expected.is_ok() {
                    window.commit(counter);
                    seen.insert(counter);
                }
            }
        }
    }
}

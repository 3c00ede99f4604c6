//! The proof that a weight can have its effect.
//!
//! A weight smaller than the distance to the next priority moves nothing: the node that failed keeps the address. That
//! is the most common mistake with weights, so it's refused. The rule, as in the reference page: all nodes are taken to
//! weigh alike; a weight has an effect if there is a rival and a choice of what else fails on each of the two, so that
//! this node is before the rival until the weight is lost and behind it then. Equal ones leave the address where it is:
//! that is with the one whose configured priority is higher.

/// The least that weights leave (as the node has it); a lower configured priority stays.
const LEAST: u8 = 2;

/// What this node and its rivals run at, with all that can fail.
#[derive(Clone, Copy)]
pub(super) struct Proof<'p> {
    /// This node's priority.
    pub(super) priority: u8,
    /// The others'.
    pub(super) rivals: &'p [u8],
    /// What is lost for each thing that fails.
    pub(super) weights: &'p [u8],
}

impl Proof<'_> {
    /// For each weight whether it can change who is the higher one. Linear in rivals and quadratic in weights, both of
    /// which are few.
    pub(super) fn effects(&self) -> Vec<bool> {
        let rivals: Vec<(u8, Vec<u16>)> =
            self.rivals.iter().map(|rival| (*rival, below(&self.reachable(*rival, None)))).collect();
        let each = self.weights.iter().enumerate();
        each.map(|(at, weight)| self.has_effect(*weight, &self.reachable(self.priority, Some(at)), &rivals)).collect()
    }

    /// `own`: what this node can be at with this weight not lost; `rivals`: how many numbers the others can be at below
    /// each number.
    fn has_effect(&self, weight: u8, own: &[bool], rivals: &[(u8, Vec<u16>)]) -> bool {
        let floor = LEAST.min(self.priority);
        let before = || (0..=u8::MAX).zip(own).filter(|(_, there)| **there).map(|(before, _)| before);
        rivals.iter().any(|(rival, below)| {
            before().any(|before| {
                let after = if before == floor { floor } else { before.saturating_sub(weight).max(floor) };
                // Equal before: then the one with the higher configured priority has it.
                let most = if self.priority < *rival { before.saturating_sub(1) } else { before };
                let upto = |p: u8| below.get(usize::from(p) + 1).copied().unwrap_or_default();
                upto(most) > upto(after)
            })
        })
    }

    /// Priorities that a node can come down to, by what fails of all but one.
    fn reachable(&self, priority: u8, but: Option<usize>) -> Vec<bool> {
        let mut reached = vec![false; 256];
        let mark = |reached: &mut Vec<bool>, p: u8| {
            if let Some(there) = reached.get_mut(usize::from(p)) {
                *there = true;
            }
        };
        mark(&mut reached, priority);
        // An owner's priority never changes.
        if priority == u8::MAX {
            return reached;
        }
        let floor = LEAST.min(priority);
        for (_, weight) in self.weights.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
            // From below, so that no weight counts twice.
            for from in floor..=priority {
                if reached.get(usize::from(from)) == Some(&true) {
                    mark(&mut reached, from.saturating_sub(*weight).max(floor));
                }
            }
        }
        reached
    }
}

/// How many are marked below each place.
fn below(marked: &[bool]) -> Vec<u16> {
    let mut counts = vec![0];
    for there in marked {
        counts.push(counts.last().copied().unwrap_or_default() + u16::from(*there));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn effects(priority: u8, rivals: &[u8], weights: &[u8]) -> Vec<bool> {
        Proof { priority, rivals, weights }.effects()
    }

    #[test]
    fn a_weight_must_be_larger_than_the_distance_to_a_rival() {
        assert_eq!(effects(103, &[100], &[2]), [false]);
        // Equal to the distance: then both are equal, and the one that holds it keeps it.
        assert_eq!(effects(103, &[100], &[3]), [false]);
        assert_eq!(effects(103, &[100], &[4]), [true]);
        assert_eq!(effects(254, &[253], &[20]), [true]);
    }

    #[test]
    fn the_lower_node_is_judged_alike_since_it_weighs_alike() {
        assert_eq!(effects(100, &[103], &[3]), [false]);
        assert_eq!(effects(100, &[103], &[4]), [true]);
    }

    #[test]
    fn one_of_several_rivals_is_enough() {
        assert_eq!(effects(254, &[100, 253], &[20]), [true]);
        assert_eq!(effects(254, &[100, 200], &[20]), [false]);
    }

    #[test]
    fn weights_that_only_matter_together_are_taken() {
        assert_eq!(effects(103, &[100], &[2, 2]), [true, true]);
        assert_eq!(effects(103, &[100], &[2, 50]), [false, true]);
        // The third node: after both fail on the two above it, it's the highest.
        assert_eq!(effects(200, &[254, 253], &[20, 40]), [true, true]);
        assert_eq!(effects(200, &[254, 253], &[20]), [false]);
    }

    #[test]
    fn nobody_gets_below_a_rival_at_the_bottom_or_above_an_owner() {
        assert_eq!(effects(254, &[1], &[253]), [false]);
        assert_eq!(effects(254, &[2], &[253]), [false]);
        assert_eq!(effects(254, &[3], &[253]), [true]);
        assert_eq!(effects(254, &[255], &[253]), [false]);
        assert_eq!(effects(1, &[2], &[10]), [false]);
    }

    /// The same by trying everything.
    fn by_trying(priority: u8, rival: u8, weights: &[u8], at: usize) -> bool {
        let left = |p: u8, lost: u32| {
            if p == 255 { 255 } else { u32::from(p).saturating_sub(lost).max(u32::from(p.min(LEAST))) }
        };
        let sum =
            |set: u32| (0..weights.len()).filter(|n| set >> n & 1 == 1).map(|n| u32::from(weights[n])).sum::<u32>();
        let sets = || 0..1_u32 << weights.len();
        sets().filter(|set| set >> at & 1 == 0).any(|own| {
            sets().any(|theirs| {
                let (before, after) = (left(priority, sum(own)), left(priority, sum(own | 1 << at)));
                let theirs = left(rival, sum(theirs));
                (before > theirs || before == theirs && priority >= rival) && after < theirs
            })
        })
    }

    proptest! {
        #[test]
        fn the_proof_agrees_with_trying_everything(
            priority in 1..255_u8,
            rival in 1..=255_u8,
            weights in prop::collection::vec(1..254_u8, 1..5),
        ) {
            let tried: Vec<bool> = (0..weights.len()).map(|at| by_trying(priority, rival, &weights, at)).collect();
            prop_assert_eq!(effects(priority, &[rival], &weights), tried);
        }
    }
}

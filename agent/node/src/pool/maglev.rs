//! The lookup table: which backend a hash belongs to.
//!
//! Maglev (Eisenbud and others, NSDI 2016, section 3.4): each backend has its own permutation of the slots, drawn from
//! its address alone, and they take slots in turns, each as often as its weight says. So every node that has the same
//! configuration makes the same table, whatever order its file is in.
//!
//! Other than there, a backend that is out (or ramps up) doesn't make a new table: the slots of the others stay, and
//! only those that it can't serve are dealt out, again by turns. A death therefore moves the dead one's share and
//! nothing else, and its return moves that back.

use std::net::{IpAddr, SocketAddr};

/// Slots of a table: primes, so that every step reaches every slot.
const SIZES: [u32; 4] = [1_021, 4_093, 16_381, 65_521];
/// With so many slots for each backend the shares are right to 1 %.
const SLOTS_PER_BACKEND: usize = 100;
/// Of all hashes. Changing it moves every flow that is new after an upgrade.
const SEED: u64 = 0x6d61_676c_6576_0001;
/// What a slot holds that no backend serves.
pub const NOBODY: u16 = u16::MAX;

/// The size of a table for so many configured backends: the same however many of them are up.
pub fn size_for(backends: usize) -> u32 {
    let fits = |size: &&u32| usize::try_from(**size).is_ok_and(|size| size / SLOTS_PER_BACKEND >= backends);
    SIZES.iter().find(fits).or(SIZES.last()).copied().unwrap_or(0)
}

/// The seed of the kernel's own hash of addresses and ports, the same on every node.
pub const KERNEL_SEED: u32 = 0x686f_6c64;

/// What a set of backends and weights makes of the slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    size: u32,
    /// Of each backend: first slot, and the step from one to the next.
    permutations: Vec<(u32, u32)>,
    /// Whose each slot is while all are in service.
    base: Vec<u16>,
    /// The slots of each backend, in the order in which it took them.
    claimed: Vec<Vec<u32>>,
}

impl Layout {
    /// Of these backends (address, weight), sorted by address, at most [`crate::config::BACKENDS_MAX`].
    pub fn new(backends: &[(SocketAddr, u16)]) -> Self {
        let size = size_for(backends.len());
        let permutations = backends.iter().map(|(address, _)| {
            let bytes = bytes_of(*address);
            let part = |salt: u64, of: u32| u32::try_from(hash(&bytes, SEED ^ salt) % u64::from(of)).unwrap_or(0);
            (part(0, size), part(0x5bd1_e995_9e37_79b9, size - 1) + 1)
        });
        let mut layout = Self { size, permutations: permutations.collect(), base: Vec::new(), claimed: Vec::new() };
        let shares: Vec<u32> = backends.iter().map(|(_, weight)| u32::from(*weight)).collect();
        let mut table = vec![NOBODY; usize::try_from(size).unwrap_or(0)];
        layout.claimed = layout.deal(&mut table, &apportion(size, &shares));
        layout.base = table;
        layout
    }

    /// Number of slots.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whose each slot is while all are in service.
    pub fn base(&self) -> &[u16] {
        &self.base
    }

    /// Whose each slot is with these shares (one per backend, 0: out of service). All 0: nobody's.
    pub fn table(&self, shares: &[u32]) -> Vec<u16> {
        let targets = apportion(self.size, shares);
        let mut table = vec![NOBODY; self.base.len()];
        let mut needs = Vec::with_capacity(targets.len());
        for (backend, (target, claimed)) in (0..).zip(targets.iter().zip(&self.claimed)) {
            let keep = claimed.len().min(usize::try_from(*target).unwrap_or(usize::MAX));
            for slot in claimed.iter().take(keep) {
                set(&mut table, *slot, backend);
            }
            needs.push(target.saturating_sub(u32::try_from(keep).unwrap_or(u32::MAX)));
        }
        self.deal(&mut table, &needs);
        table
    }

    /// Deals free slots out by turns, to each as many as it needs; who took which, in order.
    fn deal(&self, table: &mut [u16], needs: &[u32]) -> Vec<Vec<u32>> {
        let most = needs.iter().copied().max().unwrap_or(0);
        let mut taken: Vec<Vec<u32>> = vec![Vec::new(); self.permutations.len()];
        let mut next = vec![0_u32; self.permutations.len()];
        let mut credit = vec![0_u32; self.permutations.len()];
        for _ in 0..most {
            for (backend, need) in (0_u16..).zip(needs) {
                let at = usize::from(backend);
                let (Some(credit), Some(next), Some(taken)) = (credit.get_mut(at), next.get_mut(at), taken.get_mut(at))
                else {
                    continue;
                };
                // The one that needs most takes one each turn, the others as often as that is fair.
                *credit += need;
                if *credit < most {
                    continue;
                }
                *credit -= most;
                while *next < self.size {
                    let slot = self.slot(at, *next);
                    *next += 1;
                    if table.get(usize::try_from(slot).unwrap_or(usize::MAX)) == Some(&NOBODY) {
                        set(table, slot, backend);
                        taken.push(slot);
                        break;
                    }
                }
            }
        }
        taken
    }

    fn slot(&self, backend: usize, nth: u32) -> u32 {
        let (offset, step) = self.permutations.get(backend).copied().unwrap_or((0, 1));
        let slot = (u64::from(offset) + u64::from(nth) * u64::from(step)) % u64::from(self.size.max(1));
        u32::try_from(slot).unwrap_or(0)
    }
}

fn set(table: &mut [u16], slot: u32, backend: u16) {
    if let Some(place) = table.get_mut(usize::try_from(slot).unwrap_or(usize::MAX)) {
        *place = backend;
    }
}

/// Divides `size` by these shares: whole numbers that add up, the largest remainders rounded up.
fn apportion(size: u32, shares: &[u32]) -> Vec<u32> {
    let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    if total == 0 {
        return vec![0; shares.len()];
    }
    let exact = |share: &u32| u64::from(size) * u64::from(*share);
    let mut parts: Vec<u32> = shares.iter().map(|s| u32::try_from(exact(s) / total).unwrap_or(size)).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(shares.get(*at).map_or(0, |s| exact(s) % total)), *at));
    let given: u32 = parts.iter().sum();
    for at in order.into_iter().take(usize::try_from(size - given).unwrap_or(0)) {
        if let Some(part) = parts.get_mut(at) {
            *part += 1;
        }
    }
    parts
}

fn bytes_of(address: SocketAddr) -> Vec<u8> {
    let mut bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    bytes.extend_from_slice(&address.port().to_be_bytes());
    bytes
}

/// FNV-1a, and the finalizer of SplitMix64 on top, without which neighbours in an address range would be neighbours in
/// the table. Not for secrets: everybody may know where flows go.
pub(super) fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
    for byte in bytes {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ h >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn backends(weights: &[u16]) -> Vec<(SocketAddr, u16)> {
        let address = |n: u8| SocketAddr::from(([10, 2, 0, n], 8080));
        (1..).zip(weights).map(|(n, weight)| (address(n), *weight)).collect()
    }

    fn shares(weights: &[u16]) -> Vec<u32> {
        weights.iter().map(|weight| u32::from(*weight) * 1000).collect()
    }

    fn count(table: &[u16], backend: usize) -> usize {
        table.iter().filter(|slot| usize::from(**slot) == backend).count()
    }

    fn moved(a: &[u16], b: &[u16]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn the_table_is_the_same_wherever_it_is_made() {
        let layout = Layout::new(&backends(&[1, 2, 3]));
        let bytes: Vec<u8> = layout.base().iter().flat_map(|slot| slot.to_be_bytes()).collect();
        assert_eq!(
            hash(&bytes, 0),
            16_628_736_180_823_237_633,
            "a change here moves flows between nodes of two versions"
        );
    }

    #[test]
    fn sizes_are_primes_and_fixed_by_what_is_configured() {
        for size in SIZES {
            assert!((2..).take_while(|d| d * d <= size).all(|d| size % d != 0), "{size}");
        }
        let of = |n| size_for(n);
        assert_eq!((of(1), of(10), of(11), of(40), of(41), of(256)), (1_021, 1_021, 4_093, 4_093, 16_381, 65_521));
    }

    #[test]
    fn with_nobody_in_service_no_slot_is_anybodys() {
        let layout = Layout::new(&backends(&[1, 1]));
        assert!(layout.table(&[0, 0]).iter().all(|slot| *slot == NOBODY));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn shares_are_those_of_the_weights(weights in prop::collection::vec(1..=16_u16, 1..24)) {
            let layout = Layout::new(&backends(&weights));
            let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            prop_assert!(layout.base().iter().all(|slot| usize::from(*slot) < weights.len()));
            for (backend, weight) in weights.iter().enumerate() {
                let fair = f64::from(layout.size()) * f64::from(*weight) / total as f64;
                let got = count(layout.base(), backend) as f64;
                prop_assert!((got - fair).abs() < 1.0, "{got} for {fair}");
            }
        }

        #[test]
        fn all_in_service_is_the_base_and_removing_one_moves_its_own_slots_only(
            weights in prop::collection::vec(1..=8_u16, 2..24), out: prop::sample::Index,
        ) {
            let layout = Layout::new(&backends(&weights));
            let mut shares = shares(&weights);
            prop_assert_eq!(layout.table(&shares), layout.base());
            let out = out.index(weights.len());
            shares[out] = 0;
            let without = layout.table(&shares);
            prop_assert_eq!(count(&without, out), 0);
            prop_assert_eq!(count(&without, usize::from(NOBODY)), 0);
            prop_assert_eq!(moved(layout.base(), &without), count(layout.base(), out));
        }

        #[test]
        fn a_second_death_moves_little_more_than_its_share(n in 3..24_usize, a: prop::sample::Index, b: prop::sample::Index) {
            let weights = vec![1; n];
            let layout = Layout::new(&backends(&weights));
            let (a, b) = (a.index(n), b.index(n));
            prop_assume!(a != b);
            let mut shares = shares(&weights);
            shares[a] = 0;
            let one = layout.table(&shares);
            shares[b] = 0;
            let both = layout.table(&shares);
            let limit = 1.3 / (n - 1) as f64 * f64::from(layout.size());
            prop_assert!((moved(&one, &both) as f64) <= limit, "{} of {limit}", moved(&one, &both));
        }

        #[test]
        fn a_backend_that_is_new_in_the_configuration_moves_little_more_than_its_share(n in 2..9_usize) {
            // Within one size of the table; at 11 and 41 backends that changes, and new flows are dealt out anew.
            let small = Layout::new(&backends(&vec![1; n]));
            let large = Layout::new(&backends(&vec![1; n + 1]));
            let moved = moved(small.base(), large.base()) as f64 / f64::from(small.size());
            prop_assert!(moved <= 1.3 / (n + 1) as f64 + 0.1, "{moved}");
        }

        #[test]
        fn a_ramp_takes_ever_more_slots_and_never_gives_one_back(n in 2..12_usize, who: prop::sample::Index) {
            let weights = vec![1; n];
            let layout = Layout::new(&backends(&weights));
            let who = who.index(n);
            let mut shares = shares(&weights);
            let mut held: Vec<usize> = Vec::new();
            for permille in (100..=1_000).step_by(100) {
                shares[who] = permille;
                let table = layout.table(&shares);
                let now: Vec<usize> = (0..table.len()).filter(|slot| usize::from(table[*slot]) == who).collect();
                prop_assert!(held.iter().all(|slot| now.contains(slot)));
                prop_assert!(now.len() > held.len());
                held = now;
            }
            prop_assert_eq!(held.len(), count(layout.base(), who));
        }
    }

    #[test]
    fn ten_thousand_flows_are_spread_within_five_percent_of_the_weights() {
        // A sample of 10,000 deviates by 2 % of a third by chance alone, and by more of smaller shares.
        for (weights, flows) in [(vec![1, 1, 1], 10_000_u32), (vec![1, 2, 3], 40_000), (vec![3; 7], 100_000)] {
            let layout = Layout::new(&backends(&weights));
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let mut counts = vec![0_u32; weights.len()];
            for flow in 0..flows {
                let slot = hash(&flow.to_be_bytes(), 7) % u64::from(layout.size());
                counts[usize::from(layout.base()[usize::try_from(slot).expect("small")])] += 1;
            }
            for (weight, count) in weights.iter().zip(counts) {
                let fair = f64::from(flows) * f64::from(*weight) / total;
                assert!((f64::from(count) / fair - 1.0).abs() < 0.05, "{count} for {fair}");
            }
        }
    }
}

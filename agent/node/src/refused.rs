//! What arrived and was refused: counted without a turn and without an allocation, since a flood may consist of it.

use holdfast_vrrp::wire::AdvertError;

/// Counters of packets that changed nothing.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// In the order of [`AdvertError::COUNTERS`].
    adverts: [u64; AdvertError::COUNTERS.len()],
    /// Well-formed, of a virtual router that isn't ours on this interface.
    pub(crate) unknown_vrid: u64,
    /// Well-formed, with our own source address.
    pub(crate) own_source: u64,
}

impl Refused {
    /// A packet that the decoder refused.
    pub(crate) fn advert(&mut self, error: AdvertError) {
        let kinds = AdvertError::COUNTERS.iter().zip(&mut self.adverts);
        for (_, count) in kinds.filter(|(name, _)| **name == error.counter()) {
            *count += 1;
        }
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.adverts.iter().sum::<u64>() + self.unknown_vrid + self.own_source
    }

    /// For the status, those that aren't 0.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let kinds = AdvertError::COUNTERS.iter().zip(&self.adverts);
        let kinds = kinds.map(|(name, n)| (format!("adverts_refused_{}", name.replace('-', "_")), *n));
        let rest = [
            ("adverts_refused", self.adverts.iter().sum()),
            ("adverts_unknown_vrid", self.unknown_vrid),
            ("adverts_own_source", self.own_source),
        ];
        let rest = rest.into_iter().map(|(name, n)| (name.to_owned(), n));
        kinds.chain(rest).filter(|(_, n)| *n > 0).collect()
    }
}

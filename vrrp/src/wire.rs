//! Wire format (RFC 9568 section 5).
/// A decoded advert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert;
/// Why a packet was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvertError {}

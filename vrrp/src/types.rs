//! Newtypes that carry their range: a value that exists is valid.

use std::num::NonZeroU8;

/// Virtual router identifier, 1..=255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vrid(NonZeroU8);

/// VRRP priority: 0 resigns, 255 owns the address, 1..=254 else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

/// Advert interval in centiseconds, 1..=4095 (12 bits on the wire).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdvertInterval(u16);

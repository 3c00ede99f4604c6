//! Newtypes that carry their range: a value that exists is valid.

use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU8;
use std::ops::Deref;
use std::time::Duration;

use thiserror::Error;

/// Virtual router identifier, 1..=255 (RFC 9568 section 5.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vrid(NonZeroU8);

impl Vrid {
    /// Takes 1..=255; anything else is an error that says so.
    pub fn new(n: impl Into<i64>) -> Result<Self, VridError> {
        let given = n.into();
        u8::try_from(given).ok().and_then(NonZeroU8::new).map(Self).ok_or(VridError { given })
    }

    /// The number as it stands on the wire.
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl fmt::Display for Vrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that is no [`Vrid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("VRID {given} is out of range: 1 to 255")]
pub struct VridError {
    /// What was given.
    pub given: i64,
}

/// VRRP priority: 0 resigns, 255 owns the address, 1..=254 else (RFC 9568 section 5.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// "I stop being Active": only ever sent, never a router's own priority.
    pub const RESIGN: Self = Self(0);
    /// The lowest priority that still takes the address when nobody else does.
    pub const LAST_RESORT: Self = Self(1);
    /// RFC 9568's default.
    pub const DEFAULT: Self = Self(100);
    /// The router that owns the address as its own interface address.
    pub const OWNER: Self = Self(255);

    /// What an operator may configure: 1..=254. The two special values can't be built by accident.
    pub fn configured(n: impl Into<i64>) -> Result<Self, PriorityError> {
        let given = n.into();
        match u8::try_from(given) {
            Ok(n @ 1..=254) => Ok(Self(n)),
            _ => Err(PriorityError { given }),
        }
    }

    /// Any value is valid on the wire.
    pub const fn from_wire(n: u8) -> Self {
        Self(n)
    }

    /// The number as it stands on the wire.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that can't be configured as [`Priority`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("priority {given} is out of range: 1 to 254")]
pub struct PriorityError {
    /// What was given.
    pub given: i64,
}

/// Advert interval in centiseconds, 1..=4095 (12 bits on the wire; RFC 9568 section 5.2.7, erratum 8301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdvertInterval(u16);

impl AdvertInterval {
    /// 10 ms.
    pub const MIN: Self = Self(1);
    /// 1 s, RFC 9568's default.
    pub const DEFAULT: Self = Self(100);
    /// 40.95 s.
    pub const MAX: Self = Self(4095);

    /// Takes 1..=4095 centiseconds.
    pub fn from_cs(cs: u16) -> Result<Self, IntervalError> {
        if (Self::MIN.0..=Self::MAX.0).contains(&cs) {
            Ok(Self(cs))
        } else {
            Err(IntervalError::Range { given: Duration::from_millis(u64::from(cs) * 10) })
        }
    }

    /// Takes 10 ms to 40.95 s in steps of 10 ms; never rounds (0.4 s rounded to 0 has flooded networks).
    pub fn from_duration(given: Duration) -> Result<Self, IntervalError> {
        if given < Self::MIN.duration() || given > Self::MAX.duration() {
            return Err(IntervalError::Range { given });
        }
        let (cs, rest) = (given.as_nanos() / 10_000_000, given.as_nanos() % 10_000_000);
        match u16::try_from(cs) {
            Ok(cs) if rest == 0 => Self::from_cs(cs),
            _ => Err(IntervalError::Step { given }),
        }
    }

    /// Centiseconds, as on the wire.
    pub const fn cs(self) -> u16 {
        self.0
    }

    /// The interval as a time.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64 * 10)
    }
}

impl fmt::Display for AdvertInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

/// A time that is no [`AdvertInterval`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IntervalError {
    /// Below 10 ms or above 40.95 s.
    #[error("advert interval {given:?} is out of range: 10ms to 40.95s")]
    Range {
        /// What was given.
        given: Duration,
    },
    /// The wire carries centiseconds.
    #[error("advert interval {given:?} is not a multiple of 10ms")]
    Step {
        /// What was given.
        given: Duration,
    },
}

/// The addresses of one virtual router, in order: 1 to 255 of them, since the wire counts them in one byte and a
/// count of 0 is refused (RFC 9568 section 5.2.5, erratum 8299).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Addresses(Vec<Ipv4Addr>);

impl Addresses {
    /// Takes 1 to 255 addresses.
    pub fn new(addresses: impl Into<Vec<Ipv4Addr>>) -> Result<Self, AddressesError> {
        let addresses = addresses.into();
        if (1..=255).contains(&addresses.len()) {
            Ok(Self(addresses))
        } else {
            Err(AddressesError { given: addresses.len() })
        }
    }

    /// How many, as it stands on the wire.
    pub fn count(&self) -> u8 {
        u8::try_from(self.0.len()).expect("an Addresses holds 1 to 255 addresses")
    }

    /// Whether both hold the same addresses in whatever order: order means nothing to a receiver.
    pub fn same_set(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let (mut a, mut b) = (self.0.clone(), other.0.clone());
        a.sort_unstable();
        b.sort_unstable();
        a == b
    }
}

impl Deref for Addresses {
    type Target = [Ipv4Addr];

    fn deref(&self) -> &[Ipv4Addr] {
        &self.0
    }
}

/// A list too short or too long for [`Addresses`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{given} advertised addresses: a virtual router has 1 to 255")]
pub struct AddressesError {
    /// How many were given.
    pub given: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vrid_is_1_to_255() {
        assert_eq!(Vrid::new(1).map(Vrid::get), Ok(1));
        assert_eq!(Vrid::new(255).map(Vrid::get), Ok(255));
        for given in [-1_i64, 0, 256, i64::MAX] {
            assert_eq!(Vrid::new(given), Err(VridError { given }));
        }
        assert_eq!(Vrid::new(0).unwrap_err().to_string(), "VRID 0 is out of range: 1 to 255");
    }

    #[test]
    fn a_configured_priority_is_neither_resigning_nor_owner() {
        assert_eq!(Priority::configured(1), Ok(Priority::LAST_RESORT));
        assert_eq!(Priority::configured(254).map(Priority::get), Ok(254));
        for given in [-5_i64, 0, 255, 256] {
            assert_eq!(Priority::configured(given), Err(PriorityError { given }));
        }
        assert_eq!(Priority::configured(255).unwrap_err().to_string(), "priority 255 is out of range: 1 to 254");
    }

    #[test]
    fn an_interval_is_10ms_to_40_95s_in_steps_of_10ms() {
        let of = |us| AdvertInterval::from_duration(Duration::from_micros(us));
        assert_eq!(of(10_000), Ok(AdvertInterval::MIN));
        assert_eq!(of(1_000_000), Ok(AdvertInterval::DEFAULT));
        assert_eq!(of(40_950_000), Ok(AdvertInterval::MAX));
        for us in [0, 9_999, 40_950_001, u64::MAX] {
            assert_eq!(of(us), Err(IntervalError::Range { given: Duration::from_micros(us) }));
        }
        for us in [10_001, 15_000, 40_940_001] {
            assert_eq!(of(us), Err(IntervalError::Step { given: Duration::from_micros(us) }));
        }
        assert_eq!(AdvertInterval::from_cs(0), Err(IntervalError::Range { given: Duration::ZERO }));
        assert_eq!(
            AdvertInterval::from_cs(4096).unwrap_err().to_string(),
            "advert interval 40.96s is out of range: 10ms to 40.95s"
        );
        assert_eq!(of(15_000).unwrap_err().to_string(), "advert interval 15ms is not a multiple of 10ms");
    }

    #[test]
    fn every_interval_survives_the_way_to_a_duration_and_back() {
        for cs in 1..=4095 {
            let interval = AdvertInterval::from_cs(cs).unwrap();
            assert_eq!(AdvertInterval::from_duration(interval.duration()), Ok(interval));
        }
    }

    #[test]
    fn a_router_has_1_to_255_addresses() {
        let list = |n| vec![Ipv4Addr::new(192, 0, 2, 1); n];
        assert_eq!(Addresses::new(list(1)).unwrap().count(), 1);
        assert_eq!(Addresses::new(list(255)).unwrap().count(), 255);
        assert_eq!(Addresses::new(list(0)), Err(AddressesError { given: 0 }));
        assert_eq!(Addresses::new(list(256)), Err(AddressesError { given: 256 }));
    }

    #[test]
    fn the_order_of_addresses_means_nothing_but_their_number_does() {
        let of = |last: &[u8]| {
            Addresses::new(last.iter().map(|n| Ipv4Addr::new(192, 0, 2, *n)).collect::<Vec<_>>()).unwrap()
        };
        assert!(of(&[1, 2]).same_set(&of(&[2, 1])));
        assert!(!of(&[1, 2]).same_set(&of(&[1])));
        assert!(!of(&[1, 1]).same_set(&of(&[1])));
        assert!(!of(&[1, 2]).same_set(&of(&[1, 3])));
    }
}

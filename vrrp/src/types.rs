//! Newtypes that carry their range: a value that exists is valid.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;
use std::ops::Deref;
use std::time::Duration;

use thiserror::Error;

/// Which IP carries the adverts, and is what they speak of: never mixed in one virtual router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Where adverts go, never forwarded (RFC 9568 sections 5.1.1.2 and 5.1.2.2).
    pub const fn group(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::new(224, 0, 0, 18)),
            Self::V6 => IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12)),
        }
    }

    /// Bytes of an address on the wire.
    pub const fn address_len(self) -> usize {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Protocol version. The default is 3; 2 (RFC 3768) is for peers that know no other, and has no IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Version {
    /// RFC 3768: IPv4, whole seconds.
    V2,
    /// RFC 9568 (and RFC 5798 before it).
    #[default]
    V3,
}

impl Version {
    /// The number as it stands on the wire.
    pub const fn get(self) -> u8 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A leg of a unit: its place in [`RouterConfig::legs`](crate::RouterConfig::legs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LegId(pub u16);

impl LegId {
    /// The place as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The virtual router's link-local address, if none is configured: `fe80::200:5eff:fe00:2XX`, the modified EUI-64 of
/// its virtual MAC. It is the first address of an IPv6 advert (RFC 9568 section 5.2.9, erratum 8300).
pub const fn link_local(vrid: Vrid) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0200, 0x5eff, 0xfe00, 0x0200 | vrid.get() as u16)
}

/// The virtual router's MAC: `00-00-5E-00-01-XX` for IPv4, `00-00-5E-00-02-XX` for IPv6 (RFC 9568 section 7.3).
pub const fn virtual_mac(family: Family, vrid: Vrid) -> [u8; 6] {
    let family = match family {
        Family::V4 => 1,
        Family::V6 => 2,
    };
    [0, 0, 0x5e, 0, family, vrid.get()]
}

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

/// Advert interval. VRRPv3 has 1..=4095 centiseconds (12 bits on the wire; RFC 9568 section 5.2.7, erratum 8301),
/// VRRPv2 whole seconds, 1..=255 (RFC 3768 section 5.3.7): [`AdvertInterval::fits`] says which version can carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdvertInterval(u16);

impl AdvertInterval {
    /// 10 ms.
    pub const MIN: Self = Self(1);
    /// 1 s, RFC 9568's default.
    pub const DEFAULT: Self = Self(100);
    /// 40.95 s: the longest of VRRPv3.
    pub const MAX: Self = Self(4095);
    /// 255 s: the longest of VRRPv2.
    pub const MAX_V2: Self = Self(25_500);

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

    /// Takes 1..=255 seconds, what VRRPv2 can say.
    pub fn from_seconds(seconds: u8) -> Result<Self, IntervalError> {
        match seconds {
            0 => Err(IntervalError::Range { given: Duration::ZERO }),
            seconds => Ok(Self(u16::from(seconds) * 100)),
        }
    }

    /// The interval in seconds, if it is whole ones: what VRRPv2 carries.
    pub fn seconds(self) -> Option<u8> {
        if self.0.is_multiple_of(100) { u8::try_from(self.0 / 100).ok() } else { None }
    }

    /// Whether this version can carry it.
    pub fn fits(self, version: Version) -> bool {
        match version {
            Version::V2 => self.seconds().is_some(),
            Version::V3 => self <= Self::MAX,
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

/// The addresses of one virtual router, in order and of one family: 1 to 255 of them, since the wire counts them in one
/// byte and a count of 0 is refused (RFC 9568 section 5.2.5, erratum 8299). How many fit a packet is the MTU's matter:
/// see [`LegConfig::message_len`](crate::LegConfig::message_len).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Addresses(Vec<IpAddr>);

/// The most addresses that one advert can count.
const ADDRESSES_MAX: usize = 255;

impl Addresses {
    /// Takes 1 to 255 addresses of one family.
    pub fn new<A: Into<IpAddr>>(addresses: impl IntoIterator<Item = A>) -> Result<Self, AddressesError> {
        let addresses: Vec<IpAddr> = addresses.into_iter().map(Into::into).collect();
        if !(1..=ADDRESSES_MAX).contains(&addresses.len()) {
            return Err(AddressesError::Count { given: addresses.len() });
        }
        if addresses.iter().any(|a| a.is_ipv4()) && addresses.iter().any(|a| a.is_ipv6()) {
            return Err(AddressesError::Mixed);
        }
        Ok(Self(addresses))
    }

    /// The family of all of them.
    pub fn family(&self) -> Family {
        self.0.first().copied().map(Family::of).expect("an Addresses holds 1 to 255 addresses")
    }

    /// How many, as it stands on the wire.
    pub fn count(&self) -> u8 {
        u8::try_from(self.0.len()).expect("an Addresses holds 1 to 255 addresses")
    }

    /// Whether both hold the same addresses in whatever order: order means nothing to a receiver. Never allocates,
    /// since it is asked of each advert that arrives.
    pub fn same_set(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        if self.0.len() != other.0.len() {
            return false;
        }
        let (mut a, mut b) = ([Self::NONE; ADDRESSES_MAX], [Self::NONE; ADDRESSES_MAX]);
        self.sort_into(&mut a) == other.sort_into(&mut b)
    }

    const NONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn sort_into<'a>(&self, room: &'a mut [IpAddr; ADDRESSES_MAX]) -> &'a [IpAddr] {
        let (room, _) = room.split_at_mut(self.0.len());
        room.copy_from_slice(&self.0);
        room.sort_unstable();
        room
    }
}

impl Deref for Addresses {
    type Target = [IpAddr];

    fn deref(&self) -> &[IpAddr] {
        &self.0
    }
}

/// A list that is no [`Addresses`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AddressesError {
    /// Too short or too long.
    #[error("{given} advertised addresses: a virtual router has 1 to 255")]
    Count {
        /// How many were given.
        given: usize,
    },
    /// Both families.
    #[error("IPv4 and IPv6 addresses in one virtual router: each family has its own")]
    Mixed,
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
        assert_eq!(Addresses::new(list(0)), Err(AddressesError::Count { given: 0 }));
        assert_eq!(Addresses::new(list(256)), Err(AddressesError::Count { given: 256 }));
    }

    #[test]
    fn families_dont_mix() {
        let both = [IpAddr::from([192, 0, 2, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        assert_eq!(Addresses::new(both), Err(AddressesError::Mixed));
        assert_eq!(Addresses::new([Ipv6Addr::LOCALHOST]).unwrap().family(), Family::V6);
    }

    #[test]
    fn an_interval_of_version_2_is_1_to_255_whole_seconds() {
        assert_eq!(AdvertInterval::from_seconds(1), Ok(AdvertInterval::DEFAULT));
        assert_eq!(AdvertInterval::from_seconds(255), Ok(AdvertInterval::MAX_V2));
        assert_eq!(AdvertInterval::from_seconds(0), Err(IntervalError::Range { given: Duration::ZERO }));
        for (cs, v2, v3) in [(100, true, true), (150, false, true), (40, false, true), (4000, true, true)] {
            let interval = AdvertInterval::from_cs(cs).unwrap();
            assert_eq!((interval.fits(Version::V2), interval.fits(Version::V3)), (v2, v3), "{interval}");
        }
        assert!(!AdvertInterval::MAX_V2.fits(Version::V3));
        for seconds in 1..=255 {
            assert_eq!(AdvertInterval::from_seconds(seconds).unwrap().seconds(), Some(seconds));
        }
    }

    #[test]
    fn the_derived_addresses_are_those_of_the_virtual_mac() {
        let vrid = Vrid::new(254).unwrap();
        assert_eq!(link_local(vrid).to_string(), "fe80::200:5eff:fe00:2fe");
        assert_eq!(virtual_mac(Family::V4, vrid), [0, 0, 0x5e, 0, 1, 254]);
        assert_eq!(virtual_mac(Family::V6, vrid), [0, 0, 0x5e, 0, 2, 254]);
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

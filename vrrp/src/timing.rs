//! Timers in microseconds (RFC 9568 section 6.1).
//!
//! Centiseconds exist only on the wire. In whole centiseconds the skew of priority 254 at 100 ms would be 0, and so
//! would that of 253: every Backup would fire at once and the priority order be lost.

use std::net::IpAddr;
use std::time::Duration;

use crate::types::{AdvertInterval, Priority};

/// `Skew_Time = (256 - Priority) * Active_Adver_Interval / 256`, rounded down to a microsecond: one step of priority is
/// at least 39 µs, so the order of priorities holds at every interval.
pub const fn skew_time(priority: Priority, active_adver_interval: AdvertInterval) -> Duration {
    Duration::from_micros((256 - priority.get() as u64) * interval_us(active_adver_interval) / 256)
}

/// `Active_Down_Interval = 3 * Active_Adver_Interval + Skew_Time`.
pub const fn active_down_interval(priority: Priority, active_adver_interval: AdvertInterval) -> Duration {
    let skew_us = (256 - priority.get() as u64) * interval_us(active_adver_interval) / 256;
    Duration::from_micros(3 * interval_us(active_adver_interval) + skew_us)
}

/// VRRPv2: `Skew_Time = (256 - Priority) / 256` seconds, whatever the interval (RFC 3768 section 6.1).
pub const fn skew_time_v2(priority: Priority) -> Duration {
    skew_time(priority, AdvertInterval::DEFAULT)
}

/// What a waiting router adds to its timers so that equals don't fire together: a part of one priority step of the skew,
/// by the bit-reversed low byte of its address. Bit-reversed, because neighbours' addresses differ in their last bits,
/// and those should lie far apart. Always shorter than a step: the order of priorities holds, but two that are one apart
/// may come closer than a packet needs on its way. So it is for routers whose priorities nobody keeps apart
/// ([`RouterConfig::jitter`](crate::RouterConfig::jitter)).
pub const fn jitter(address: IpAddr, skew_interval: AdvertInterval) -> Duration {
    let low = match address {
        IpAddr::V4(address) => {
            let [_, _, _, low] = address.octets();
            low
        }
        IpAddr::V6(address) => {
            let [.., low] = address.octets();
            low
        }
    };
    Duration::from_micros(low.reverse_bits() as u64 * interval_us(skew_interval) / (256 * 256))
}

const fn interval_us(interval: AdvertInterval) -> u64 {
    interval.cs() as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (priority, interval in cs, skew in µs, Active_Down_Interval in µs), worked out by hand.
    const TABLE: &[(u8, u16, u64, u64)] = &[
        (100, 100, 609_375, 3_609_375),
        (254, 100, 7_812, 3_007_812),
        (254, 10, 781, 300_781),
        (253, 10, 1_171, 301_171),
        (254, 1, 78, 30_078),
        (255, 1, 39, 30_039),
        (1, 1, 9_960, 39_960),
        (1, 4095, 40_790_039, 163_640_039),
        (255, 4095, 159_960, 123_009_960),
    ];

    #[test]
    fn skew_and_down_interval_are_exact_to_the_microsecond() {
        for &(priority, cs, skew, down) in TABLE {
            let (p, i) = (Priority::from_wire(priority), AdvertInterval::from_cs(cs).unwrap());
            assert_eq!(skew_time(p, i), Duration::from_micros(skew), "skew of {priority} at {cs} cs");
            assert_eq!(active_down_interval(p, i), Duration::from_micros(down), "down of {priority} at {cs} cs");
        }
    }

    #[test]
    fn skew_keeps_the_order_of_all_priorities_at_every_interval() {
        for cs in 1..=4095 {
            let interval = AdvertInterval::from_cs(cs).unwrap();
            for p in 1..=254_u8 {
                let (low, high) = (Priority::from_wire(p), Priority::from_wire(p + 1));
                assert!(skew_time(high, interval) < skew_time(low, interval), "{high} and {low} at {interval}");
            }
        }
    }

    #[test]
    fn skew_is_never_zero_and_never_longer_than_an_interval() {
        for cs in [1, 2, 10, 100, 4095] {
            let interval = AdvertInterval::from_cs(cs).unwrap();
            for p in 1..=255 {
                let skew = skew_time(Priority::from_wire(p), interval);
                assert!(skew > Duration::ZERO && skew < interval.duration());
            }
        }
    }

    #[test]
    fn version_2_skews_by_the_second_whatever_the_interval() {
        assert_eq!(skew_time_v2(Priority::from_wire(100)), Duration::from_micros(609_375));
        assert_eq!(skew_time_v2(Priority::from_wire(255)), Duration::from_micros(3_906));
    }

    #[test]
    fn jitter_is_shorter_than_a_step_of_priority_and_sets_neighbours_apart() {
        let of = |low, cs| jitter(IpAddr::from([10, 0, 0, low]), AdvertInterval::from_cs(cs).unwrap());
        // A step is 3906 µs at 1 s: 1, 2 and 3 reversed are 128, 64 and 192 of 256.
        let us = |n| Duration::from_micros(n);
        assert_eq!((of(1, 100), of(2, 100), of(3, 100)), (us(1_953), us(976), us(2_929)));
        assert_eq!(of(0, 100), Duration::ZERO);
        for cs in [1, 2, 10, 100, 4095] {
            let interval = AdvertInterval::from_cs(cs).unwrap();
            for p in 1..=254_u8 {
                let step =
                    skew_time(Priority::from_wire(p), interval) - skew_time(Priority::from_wire(p + 1), interval);
                assert!(of(255, cs) < step, "at {interval}");
            }
        }
        let v6 = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 0xff01]);
        assert_eq!(jitter(v6, AdvertInterval::DEFAULT), us(1_953), "the low byte, of either family");
    }
}

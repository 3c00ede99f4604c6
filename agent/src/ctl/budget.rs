//! How long things take at worst, computed from the configuration. Nothing here is measured.

use holdfast_node::config::{Check, Config, Neighbor, Probe, Vip};
use holdfast_vrrp::Version;
use holdfast_vrrp::timing::{skew_time, skew_time_v2};
use serde::Serialize;
use std::time::Duration;

pub(super) use holdfast_node::checks::{detection as detect, recovery as recover};

/// What a balancer that hangs costs a unit, computed.
#[derive(Debug, Serialize)]
pub(super) struct Loss {
    vip: String,
    check: String,
    detect_min_ms: f64,
    detect_max_ms: f64,
    recover_min_ms: f64,
    recover_max_ms: f64,
    /// Until another node serves it: with VRRP the skew time comes on top.
    outage_min_ms: f64,
    outage_max_ms: f64,
    /// At the rate that was asked for.
    lost_min: Option<u64>,
    lost_max: Option<u64>,
}

/// Requests of so long at this rate, rounded up.
fn requests(time: Duration, rate: u32) -> u64 {
    u64::try_from((time.as_micros() * u128::from(rate)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Of every unit and each check that can take it away.
pub(super) fn losses(config: &Config, rate: Option<u32>) -> Vec<Loss> {
    let of = |vip: &Vip, check: &Check| {
        let (detect, recover) = (detect(check, config), recover(check, config));
        let over = if vip.anycast() { Duration::ZERO } else { skew(vip) };
        let (min, max) = (detect.min + over, detect.max + over);
        Loss {
            vip: vip.name.to_string(),
            check: check.name.to_string(),
            detect_min_ms: ms(detect.min),
            detect_max_ms: ms(detect.max),
            recover_min_ms: ms(recover.min),
            recover_max_ms: ms(recover.max),
            outage_min_ms: ms(min),
            outage_max_ms: ms(max),
            lost_min: rate.map(|rate| requests(min, rate)),
            lost_max: rate.map(|rate| requests(max, rate)),
        }
    };
    config.vips.iter().flat_map(|vip| checks(config, vip).map(move |check| of(vip, check))).collect()
}

/// The same in words, and how often things are asked.
pub(super) fn told(config: &Config, rate: Option<u32>) -> String {
    let mut text = String::new();
    if let Some(rate) = rate {
        for loss in losses(config, Some(rate)) {
            let Loss { vip, check, outage_min_ms, outage_max_ms, lost_min, lost_max, .. } = loss;
            text.push_str(&format!(
                "vip {vip}: hung here as {check} sees it: {outage_min_ms:.0}ms to {outage_max_ms:.0}ms until served \
                 elsewhere, at {rate} requests/s {} to {} lost (computed)\n",
                lost_min.unwrap_or_default(),
                lost_max.unwrap_or_default()
            ));
        }
    }
    let nodes = config.cluster.as_ref().map_or(0, |cluster| cluster.peers.len()) + 1;
    // For a group nobody is asked.
    for check in config.checks.iter().filter(|check| !matches!(check.probe, Probe::Group(_))) {
        let each = 1.0 / check.interval.as_secs_f64();
        let all = each * f64::from(u32::try_from(nodes).unwrap_or(u32::MAX));
        let by = if nodes == 1 { String::new() } else { format!(", {all:.1} by all {nodes} nodes") };
        text.push_str(&format!("check {}: asks {each:.1} times a second{by} (computed)\n", check.name));
    }
    text
}

/// RFC 9568 section 6.1; where a leg speaks VRRPv2 the unit keeps that one's time, whose skew is a part of a second
/// whatever the interval (RFC 3768 section 6.1).
pub(super) fn skew(vip: &Vip) -> Duration {
    if by_v2(vip) { skew_time_v2(vip.vrrp.priority) } else { skew_time(vip.vrrp.priority, vip.vrrp.interval) }
}

/// A leg speaks VRRPv2.
pub(super) fn by_v2(vip: &Vip) -> bool {
    vip.legs.iter().any(|leg| leg.version == Version::V2)
}

/// This node as Backup, from the last advert of an owner that fell silent: 3 × interval + skew.
pub(super) fn silent(vip: &Vip) -> Duration {
    vip.vrrp.interval.duration() * 3 + skew(vip)
}

/// When a neighbour that hears nothing more of this node drops its routes, and by what. `None`: never.
pub(super) fn silent_to(neighbor: &Neighbor) -> Option<(Duration, &'static str)> {
    let hold = (!neighbor.hold_time.is_zero()).then_some((neighbor.hold_time, "hold time"));
    let bfd = neighbor.bfd.as_ref().map(|bfd| (bfd.detection(), "BFD"));
    bfd.into_iter().chain(hold).min_by_key(|(after, _)| *after)
}

/// Times of one VIP in milliseconds, for JSON.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    vip: String,
    checks: Vec<CheckTimes>,
    /// With VRRP only.
    takeover_silent_ms: Option<f64>,
    takeover_given_ms: Option<f64>,
    /// Those that it is announced to.
    neighbors: Vec<NeighborTimes>,
}

#[derive(Debug, Serialize)]
struct NeighborTimes {
    neighbor: String,
    /// Until it drops the routes of a host that fell silent; null: never.
    silent_ms: Option<f64>,
    /// `BFD` or `hold time`.
    by: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct CheckTimes {
    check: String,
    detect_min_ms: f64,
    detect_max_ms: f64,
    /// Until it is passed again.
    recover_min_ms: f64,
    recover_max_ms: f64,
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// All VIPs' times.
pub(super) fn times(config: &Config) -> Vec<Times> {
    let told = |vip: &Vip| {
        let ids = vip.bgp.iter().flat_map(|bgp| bgp.neighbors.clone());
        let neighbors = ids.filter_map(|id| config.bgp.as_ref()?.neighbor(id));
        let times = |neighbor: &Neighbor| {
            let (after, by) = silent_to(neighbor).unzip();
            NeighborTimes { neighbor: neighbor.name.clone(), silent_ms: after.map(ms), by }
        };
        neighbors.map(times).collect()
    };
    let of = |vip: &Vip| Times {
        vip: vip.name.to_string(),
        checks: checks(config, vip)
            .map(|check| {
                let (detect, recover) = (detect(check, config), recover(check, config));
                CheckTimes {
                    check: check.name.to_string(),
                    detect_min_ms: ms(detect.min),
                    detect_max_ms: ms(detect.max),
                    recover_min_ms: ms(recover.min),
                    recover_max_ms: ms(recover.max),
                }
            })
            .collect(),
        takeover_silent_ms: (!vip.anycast()).then(|| ms(silent(vip))),
        takeover_given_ms: (!vip.anycast()).then(|| ms(skew(vip))),
        neighbors: told(vip),
    };
    config.vips.iter().map(of).collect()
}

/// The checks that can take a VIP away: those that aren't shared.
pub(super) fn checks<'c>(config: &'c Config, vip: &'c Vip) -> impl Iterator<Item = &'c Check> {
    vip.checks.iter().filter_map(|id| config.checks.get(usize::from(id.0))).filter(|check| !check.shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(check: &str, vrrp: &str) -> Config {
        let text = format!(
            "[node]\nname = \"a\"\n[[check]]\nname = \"c\"\ntcp = \"127.0.0.1:80\"\n{check}\n[[vip]]\nname = \"v\"\n\
             addresses = [\"192.0.2.1/32\"]\nvrrp = {{ interface = \"eth0\", vrid = 1, {vrrp} }}\n"
        );
        crate::config::parse(&text, "test").expect("valid")
    }

    #[test]
    fn detection_is_from_the_first_failing_probe_to_the_last_timeout() {
        let check = "interval = \"100ms\"\nfast_interval = \"100ms\"\ntimeout = \"100ms\"\nfall = 2";
        let config = config(check, "priority = 254");
        let found = detect(&config.checks[0], &config);
        assert_eq!((found.min, found.max), (Duration::from_millis(200), Duration::from_millis(300)));
    }

    #[test]
    fn detection_uses_the_fast_interval_after_the_first_failure() {
        let check = "interval = \"10s\"\nfast_interval = \"1s\"\ntimeout = \"1s\"\nfall = 3";
        let config = config(check, "priority = 254");
        let found = detect(&config.checks[0], &config);
        assert_eq!((found.min, found.max), (Duration::from_secs(3), Duration::from_secs(13)));
    }

    #[test]
    fn probes_overlap_when_the_timeout_is_longer_than_the_fast_interval() {
        let check = "interval = \"500ms\"\nfast_interval = \"100ms\"\ntimeout = \"200ms\"\nfall = 4";
        // Starts at 0, 200 (when the first failed), 300, 400; the last one fails at 600.
        let four = config(check, "priority = 254");
        let found = detect(&four.checks[0], &four);
        assert_eq!((found.min, found.max), (Duration::from_millis(600), Duration::from_millis(1100)));
        let one = config("timeout = \"300ms\"\nfall = 1", "priority = 254");
        let found = detect(&one.checks[0], &one);
        assert_eq!((found.min, found.max), (Duration::from_millis(300), Duration::from_millis(1300)));
    }

    /// (interval, timeout, fall) as others write them: one interval, whatever the state.
    fn plain(interval: &str, timeout: &str, fall: u8, rise: u8) -> Config {
        let check = format!(
            "interval = \"{interval}\"\nfast_interval = \"{interval}\"\ntimeout = \"{timeout}\"\nfall = {fall}\nrise = {rise}"
        );
        config(&check, "priority = 254, interval = \"100ms\"")
    }

    #[test]
    fn lost_requests_are_rate_times_outage_the_take_over_included() {
        // Skew of priority 254 at 100 ms: 0.78 ms, less than a request.
        let loss = &losses(&plain("30s", "5s", 2, 2), Some(200))[0];
        assert_eq!((loss.lost_min, loss.lost_max), (Some(7_001), Some(13_001)));
        assert_eq!(losses(&plain("30s", "5s", 2, 2), None)[0].lost_max, None);
        let text = told(&plain("30s", "5s", 2, 2), Some(200));
        assert!(text.contains("at 200 requests/s 7001 to 13001 lost (computed)"), "{text}");
        assert!(!told(&plain("30s", "5s", 2, 2), None).contains("lost"));
    }

    #[test]
    fn how_often_a_check_asks_is_said_of_those_that_ask() {
        let group = "interval = \"250ms\"\n[[check]]\nname = \"all\"\nall = [\"c\"]";
        assert_eq!(told(&config(group, "priority = 254"), None), "check c: asks 4.0 times a second (computed)\n");
    }

    #[test]
    fn takeover_is_three_intervals_and_the_skew_of_the_priority() {
        let vip = &config("", "priority = 254, interval = \"100ms\"").vips[0];
        assert_eq!(silent(vip), Duration::from_micros(300_781));
        let vip = &config("", "priority = 100, interval = \"1s\"").vips[0];
        assert_eq!(silent(vip), Duration::from_micros(3_609_375));
        assert_eq!(skew(vip), Duration::from_micros(609_375));
    }

    #[test]
    fn with_version_2_the_skew_is_a_part_of_a_second_whatever_the_interval() {
        let vip = &config("", "priority = 100, interval = \"4s\", version = 2").vips[0];
        assert_eq!(skew(vip), Duration::from_micros(609_375));
        assert_eq!(silent(vip), Duration::from_micros(12_609_375));
    }

    #[test]
    fn an_advert_is_as_long_as_its_addresses_and_headers() {
        let len = |vrrp: &str| crate::config::packet_len(&config("", vrrp).vips[0].legs[0]);
        assert_eq!(len("priority = 254"), 20 + 8 + 4);
        // VRRPv2 carries eight bytes of authentication data.
        assert_eq!(len("priority = 254, version = 2"), 20 + 8 + 4 + 8);
    }
}

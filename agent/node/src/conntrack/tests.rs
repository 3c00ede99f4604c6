use super::*;
use crate::tests::lab::{Lab, ms};
use crate::{Input, mutants};
use proptest::prelude::*;

fn start() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
    Instant::now()
}

fn second(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The levels after looks at so many of 1,000 entries, one a second.
fn levels(counts: &[u64]) -> Vec<ConntrackLevel> {
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    let each = (0..).zip(counts).map(|(n, count)| {
        watch.take(now + second(n), Sample::of(*count, 1000));
        watch.level()
    });
    each.collect()
}

/// A level is left five points lower than it is entered.
fn levels_do_not_hover() -> Result<(), String> {
    use ConntrackLevel::{Filling, Fine, Full, High};
    let seen = levels(&[699, 700, 690, 651, 650, 649, 850, 820, 799, 950, 910, 900, 899, 0]);
    let expected = [Fine, Filling, Filling, Filling, Filling, Fine, High, High, Filling, Full, Full, Full, High, Fine];
    if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
}

/// A table that loses something is full, whatever its figures, until it was quiet for 10 s.
fn a_loss_is_full() -> Result<(), String> {
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    let look = |watch: &mut Watch, n: u64, count: u64, dropped: u64| {
        let lost = Lost { dropped, ..Lost::default() };
        watch.take(now + second(n), Sample { lost, ..Sample::of(count, 1000) });
        watch.level()
    };
    let mut seen = vec![look(&mut watch, 0, 720, 5), look(&mut watch, 1, 720, 6)];
    seen.extend((2..12).map(|n| look(&mut watch, n, 720, 6)));
    let full = seen.iter().filter(|level| **level == ConntrackLevel::Full).count();
    if full == 10 && seen[0] == ConntrackLevel::Filling && seen[11] == ConntrackLevel::Filling {
        return Ok(());
    }
    Err(format!("{seen:?}"))
}

#[test]
fn a_level_begins_at_its_threshold_and_ends_five_points_lower() {
    levels_do_not_hover().expect("the guard is on");
}

#[test]
fn a_table_that_loses_packets_counts_as_full_for_ten_seconds() {
    a_loss_is_full().expect("the guard is on");
}

/// What the journal holds back is in the next entry: the figures of all entries add up to what was lost.
fn losses_add_up() -> Result<(), String> {
    let mut lab = Lab::settled(&[254, 253], true);
    let mut dropped = 0;
    let mut look = |lab: &mut Lab, more: u64| {
        dropped += more;
        let lost = Lost { dropped, ..Lost::default() };
        lab.feed(0, Input::Conntrack { sample: Ok(Sample { lost, ..Sample::of(960, 1000) }) });
        lab.run(ms(1_000));
    };
    look(&mut lab, 0);
    for _ in 0..30 {
        look(&mut lab, 7);
    }
    (0..40).for_each(|_| look(&mut lab, 0));
    look(&mut lab, 7);
    let kinds = lab.kinds(0);
    let told: Vec<u64> = kinds
        .iter()
        .filter_map(|kind| if let Kind::ConntrackLost { dropped, .. } = kind { Some(*dropped) } else { None })
        .collect();
    // Five in the first minute, then one that makes up for the rest.
    if told == [7, 7, 7, 7, 7, 25 * 7 + 7] { Ok(()) } else { Err(format!("{told:?}")) }
}

#[test]
fn what_the_journal_holds_back_of_losses_is_in_its_next_entry() {
    losses_add_up().expect("the guard is on");
}

#[test]
fn when_the_losses_are_over_what_was_held_back_is_told() {
    let mut lab = Lab::settled(&[254, 253], true);
    for n in 0..12 {
        let lost = Lost { dropped: n, ..Lost::default() };
        feed(&mut lab, 0, Ok(Sample { lost, ..Sample::of(960, 1000) }));
    }
    lab.run(ms(20_000));
    let lost = Lost { dropped: 11, ..Lost::default() };
    feed(&mut lab, 0, Ok(Sample { lost, ..Sample::of(10, 1000) }));
    let over = |kind: &Kind| matches!(kind, Kind::ConntrackLevel { to, why, .. } if to == "fine" && why.contains("and 6 packets"));
    assert!(lab.has(0, over), "{}", lab.story());
}

#[cfg(feature = "mutants")]
#[test]
fn without_the_guards_their_tests_fail() {
    for (name, test) in [
        ("conntrack-hysteresis", levels_do_not_hover as fn() -> Result<(), String>),
        ("conntrack-loss", a_loss_is_full as fn() -> Result<(), String>),
    ] {
        assert!(mutants::with_off(name, test).is_err(), "{name}");
    }
}

#[test]
fn a_loss_in_a_table_with_room_and_two_packets_of_one_connection_are_no_want_of_room() {
    assert!(!mutants::off("conntrack-loss"));
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    watch.take(now, Sample::of(10, 1000));
    let lost = Lost { dropped: 3, early_dropped: 0, insert_failed: 9 };
    let news = watch.take(now + second(1), Sample { lost, ..Sample::of(10, 1000) });
    assert_eq!((watch.level(), news.lost), (ConntrackLevel::Fine, lost));
    let lost = Lost { insert_failed: 50, ..lost };
    watch.take(now + second(2), Sample { lost, ..Sample::of(720, 1000) });
    assert_eq!(watch.level(), ConntrackLevel::Filling);
}

#[test]
fn a_table_without_a_limit_is_fine_and_never_full() {
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    for n in 0..20 {
        watch.take(now + second(n), Sample::of(n * 1_000_000, 0));
    }
    assert_eq!((watch.level(), watch.full_in_s()), (ConntrackLevel::Fine, None));
}

/// As the kernel would have it: `rate` new entries a second, each for `stay`.
fn filled(rate: u64, limit: u64, seconds: u64) -> (Watch, Option<(u64, u64)>) {
    let (now, mut watch, mut first) = (start(), Watch::new(Conntrack::default()), None);
    for n in 0..=seconds {
        let count = (rate * n.min(120)).min(limit);
        if let Some(full) = watch.take(now + second(n), Sample::of(count, limit)).full_in_s {
            first.get_or_insert((n, full));
        }
    }
    (watch, first)
}

#[test]
fn at_20_000_new_connections_a_second_half_a_million_entries_are_full_after_26_s() {
    let (watch, first) = filled(20_000, 524_288, 10);
    let (at, full) = first.expect("foreseen");
    // 524,288 / 20,000 = 26.2: whole seconds, the one in which it is reached included.
    assert_eq!(at + full, 27);
    assert!(at <= 8, "it is foreseen long before, at {at} s");
    assert_eq!((watch.rate(), watch.forecast()), (20_000, 2_400_000), "TIME_WAIT of 120 s holds 2.4 million");
}

#[test]
fn a_rate_whose_entries_fit_is_never_foreseen_as_full() {
    // 4,000 × 120 s = 480,000.
    let (watch, first) = filled(4_000, 524_288, 400);
    assert_eq!((first, watch.full_in_s(), watch.rate()), (None, None, 4_000));
}

#[test]
fn a_forecast_ends_when_the_rate_falls() {
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    let mut count = 0;
    for n in 0..10 {
        watch.take(now + second(n), Sample::of(count, 100_000));
        count += 5_000;
    }
    assert!(watch.full_in_s().is_some());
    for n in 10..30 {
        watch.take(now + second(n), Sample::of(count, 100_000));
    }
    assert_eq!(watch.full_in_s(), None);
}

#[test]
fn a_gap_in_the_looks_begins_the_history_anew() {
    let (now, mut watch) = (start(), Watch::new(Conntrack::default()));
    watch.take(now, Sample::of(0, 1_000_000));
    watch.take(now + second(60), Sample::of(600_000, 1_000_000));
    assert_eq!((watch.rate(), watch.full_in_s()), (5_000, None), "spread over 120 s");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_figures_make_it_panic_and_the_model_holds_what_is_there(
        looks in prop::collection::vec((any::<u64>(), any::<u64>(), 0u64..20_000, any::<u32>(), 0u64..2_000), 1..40)
    ) {
        let (mut now, mut watch) = (start(), Watch::new(Conntrack::default()));
        for (count, limit, after, dropped, stay) in looks {
            now += Duration::from_millis(after);
            let lost = Lost { dropped: u64::from(dropped), ..Lost::default() };
            watch.take(now, Sample { count, limit, lost, time_wait: second(stay), timeouts: None });
            prop_assert!(watch.full_in_s().is_none_or(|s| s <= 600));
            prop_assert!(watch.level() != ConntrackLevel::Unknown);
        }
    }
}

fn feed(lab: &mut Lab, i: usize, sample: Result<Sample, String>) {
    lab.feed(i, Input::Conntrack { sample });
    lab.run(ms(50));
}

#[test]
fn a_change_of_level_is_an_event_and_a_warning_with_a_remedy() {
    let mut lab = Lab::settled(&[254, 253], true);
    feed(&mut lab, 0, Ok(Sample::of(500, 1000)));
    feed(&mut lab, 0, Ok(Sample::of(960, 1000)));
    let now = lab.now;
    let node = lab.node(0);
    assert!(node.world().conntrack.refuses_more());
    let status = node.status(now);
    let warned = status.warnings.iter().find(|w| w.text.contains("960 of 1000 entries (96 %)")).expect("a warning");
    assert!(warned.remedy.contains("nf_conntrack_max"), "{warned:?}");
    let table = status.conntrack.expect("looked at");
    assert_eq!((table.level.as_str(), table.used_percent), ("full", 96));
    let kinds = lab.kinds(0);
    let levels: Vec<&str> = kinds
        .iter()
        .filter_map(|kind| if let Kind::ConntrackLevel { to, .. } = kind { Some(to.as_str()) } else { None })
        .collect();
    assert_eq!(levels, ["fine", "full"]);
    feed(&mut lab, 0, Err("no table".to_owned()));
    assert_eq!(lab.node(0).world().conntrack.level, ConntrackLevel::Unknown, "unknown is not full");
}

#[test]
fn peers_with_another_limit_are_told_with_what_to_do_about_it() {
    let mut lab = Lab::settled(&[254, 253], true);
    feed(&mut lab, 0, Ok(Sample::of(1, 262_144)));
    feed(&mut lab, 1, Ok(Sample::of(1, 131_072)));
    let warned = |lab: &Lab, i: usize| {
        let status = lab.node(i).status(lab.now);
        status.warnings.into_iter().find(|w| w.text.contains("connection table of")).map(|w| w.text)
    };
    let text = warned(&lab, 0).expect("told");
    assert!(text.contains("may have 131072 entries, this node's 262144 entries"), "{text}");
    // The one that said so first hears it too, with the next look.
    feed(&mut lab, 0, Ok(Sample::of(1, 262_144)));
    assert!(warned(&lab, 1).is_some());
    feed(&mut lab, 1, Ok(Sample::of(1, 262_144)));
    assert_eq!(warned(&lab, 0), None);
}

#[test]
fn peers_that_keep_idle_flows_for_another_time_are_told() {
    let mut lab = Lab::settled(&[254, 253], true);
    let table = |established_s, udp_stream_s| {
        let timeouts = Some(Timeouts { established_s, udp_stream_s });
        Ok(Sample { timeouts, ..Sample::of(1, 262_144) })
    };
    let warned = |lab: &Lab| {
        let status = lab.node(0).status(lab.now);
        status.warnings.into_iter().filter(|w| w.text.contains("when idle")).map(|w| w.text).collect::<Vec<_>>()
    };
    feed(&mut lab, 1, Ok(Sample::of(1, 262_144)));
    feed(&mut lab, 0, table(432_000, 120));
    assert_eq!(warned(&lab), [""; 0], "one that doesn't say is not another");
    feed(&mut lab, 1, table(86_400, 120));
    let expected = "the connection table of lb1 keeps an established TCP connection for 86400 s when idle, \
                    this node's for 432000 s";
    assert_eq!(warned(&lab), [expected]);
    feed(&mut lab, 1, table(86_400, 180));
    assert_eq!(warned(&lab).len(), 2, "UDP too: {:?}", warned(&lab));
    feed(&mut lab, 1, table(432_000, 120));
    assert_eq!(warned(&lab), [""; 0]);
}

#[test]
fn what_a_forecast_needs_is_said_in_entries_and_in_memory() {
    let mut lab = Lab::settled(&[254, 253], true);
    for n in 0..8 {
        lab.feed(0, Input::Conntrack { sample: Ok(Sample::of(20_000 * n, 524_288)) });
        lab.run(ms(1_000));
    }
    let status = lab.node(0).status(lab.now);
    let text = status.warnings.iter().map(|w| w.text.as_str()).find(|text| text.contains("is full in"));
    let text = text.expect("foreseen");
    assert!(text.contains("(2400000 entries in the end, limit 524288; that many take about 732 MiB)"), "{text}");
}

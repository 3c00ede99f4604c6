//! Each guard, switched off, makes its test fail.

use crate::{mutants, session, table, wire};

#[test]
fn every_guard_is_missed_by_its_test() {
    let cases: [(&'static str, fn()); 12] = [
        ("ttl-255", table::tests::over_one_hop_only_ttl_255_is_taken),
        ("min-ttl", table::tests::over_several_hops_both_addresses_and_the_least_ttl_count),
        ("source-match", table::tests::a_discriminator_that_was_guessed_is_no_use_from_elsewhere),
        ("your-discriminator", wire::tests::no_discriminator_of_ours_is_allowed_in_down_and_admin_down_only),
        ("jitter", session::tests::each_interval_is_shortened_by_up_to_a_quarter_at_random),
        ("slow-start", session::tests::until_it_is_up_a_session_sends_once_a_second_and_says_so),
        ("poll-first", session::tests::a_longer_interval_counts_only_when_the_poll_is_answered),
        (
            "min-rx-zero",
            session::tests::a_neighbour_that_takes_nothing_gets_no_periodic_packets_but_answers_and_changes,
        ),
        ("hold-down", session::tests::a_data_plane_that_does_not_serve_holds_the_session_down_until_it_does),
        ("speed-up-at-once", session::tests::when_the_neighbour_takes_more_we_speed_up_at_once),
        ("repeats", session::tests::admin_down_is_told_three_times_and_for_a_detection_time_and_then_all_is_quiet),
        ("company", session::company::two_neighbours_share_their_wake_ups),
    ];
    assert_eq!(cases.map(|(name, _)| name), mutants::NAMES);
    for (name, test) in cases {
        let result = std::panic::catch_unwind(|| mutants::with_off(name, test));
        assert!(result.is_err(), "without {name} its test still passes");
    }
}

//! What the field complains of (tests/COMPLAINTS.md), as directed runs: the behaviour that each complaint asks for.

mod common;

macro_rules! scenarios {
    ($($name:ident;)*) => {$(
        #[test]
        fn $name() {
            common::$name();
        }
    )*};
}

scenarios! {
    a_frozen_owner_is_what_clients_point_to_again_within_200_ms;
    a_healed_partition_leaves_one_holder_that_announces;
    of_three_equals_exactly_one_takes_over_and_nobody_else_moves;
    equals_of_two_families_part_with_one_transition;
    without_preemption_the_owner_stays_when_the_other_recovers;
    a_failed_owner_yields_to_a_healthy_node_without_preemption;
    a_group_whose_link_flaps_twenty_times_recovers_with_all_members;
    after_a_stall_no_two_own_it_longer_than_an_interval;
    a_late_owner_sends_one_advert;
    a_clock_that_stood_still_gives_no_false_takeover;
    when_all_fail_exactly_one_holds_it_and_it_does_not_wander;
    preempt_delay_delays_no_cold_start_but_a_return;
    startup_delay_holds_off_for_its_time_and_no_longer;
    an_owner_whose_adverts_were_refused_announces_when_they_go_out_again;
    after_fifty_flips_in_ten_seconds_the_kernels_have_what_they_should;
    links_that_go_down_and_up_in_turn_leave_one_holder;
    an_interface_made_anew_is_used_again_and_no_source_means_no_part;
    a_peer_of_the_other_checksum_hears_us;
    a_slower_better_peer_is_left_in_peace;
    an_advert_that_came_over_a_router_counts_for_nothing;
    a_unicast_advert_from_too_far_away_counts_for_nothing;
    an_advert_with_a_wrong_checksum_counts_for_nothing;
    a_strangers_advert_counts_for_nothing;
    equals_that_were_cut_apart_end_with_one_owner;
    a_stop_leaves_no_gap;
    a_stop_without_anybody_to_ask_is_told_by_priority_0;
    a_drain_on_an_old_word_is_refused;
    lost_adverts_alone_move_nothing;
    an_address_comes_after_its_flows_or_150_ms;
    who_lacks_flows_leaves_a_good_owner_in_peace;
    who_loses_its_flows_right_before_it_preempts_leaves_a_good_owner_in_peace;
    a_drain_waits_until_all_flows_have_arrived;
}

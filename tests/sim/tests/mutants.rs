//! Each guard that concerns elections, switched off, makes a scenario fail that holds with it.
#![cfg(feature = "mutants")]

mod common;

use common::*;
use std::panic::catch_unwind;

type Scenario = (&'static str, fn());

const VRRP: [Scenario; 14] = [
    ("ttl-check", an_advert_that_came_over_a_router_counts_for_nothing),
    ("checksum", an_advert_with_a_wrong_checksum_counts_for_nothing),
    ("last-advert-of-the-loser", a_healed_partition_leaves_one_holder_that_announces),
    ("losing-advert-answered", a_healed_partition_leaves_one_holder_that_announces),
    ("tie-break", equals_that_were_cut_apart_end_with_one_owner),
    ("resign-on-stop", a_stop_without_anybody_to_ask_is_told_by_priority_0),
    ("advert-burst", a_late_owner_sends_one_advert),
    ("min-ttl", a_unicast_advert_from_too_far_away_counts_for_nothing),
    ("preempt-delay", preempt_delay_delays_no_cold_start_but_a_return),
    ("last-resort-yield", a_failed_owner_yields_to_a_healthy_node_without_preemption),
    ("lead-leg-tie-break", equals_of_two_families_part_with_one_transition),
    ("checksum-auto", a_peer_of_the_other_checksum_hears_us),
    ("follow-the-better", a_slower_better_peer_is_left_in_peace),
    ("outranked", who_loses_its_flows_right_before_it_preempts_leaves_a_good_owner_in_peace),
];

/// A stranger's unicast advert is refused twice, by the node before the leg: no run shows the second alone. Its test is
/// in the crate vrrp.
const HIDDEN: [&str; 1] = ["unicast-peers"];

const NODE: [Scenario; 7] = [
    ("interlock-last-node", the_last_node_able_to_serve_refuses_to_be_drained),
    ("fresh-claim-only", a_drain_on_an_old_word_is_refused),
    ("probe-before-yield", lost_adverts_alone_move_nothing),
    ("witnesses", an_isolated_backup_does_not_take_the_service_along),
    ("flows-before-address", an_address_comes_after_its_flows_or_150_ms),
    ("sync-before-preempt", who_lacks_flows_leaves_a_good_owner_in_peace),
    ("flows-before-move", a_drain_waits_until_all_flows_have_arrived),
];

#[test]
fn each_guard_of_the_protocol_is_needed() {
    let all: Vec<&str> = VRRP.iter().map(|(guard, _)| *guard).chain(HIDDEN).collect();
    assert!(holdfast_vrrp::mutants::NAMES.iter().all(|name| all.contains(name)), "a guard has no scenario");
    for (guard, scenario) in VRRP {
        scenario();
        let held = holdfast_vrrp::mutants::with_off(guard, || catch_unwind(scenario));
        assert!(held.is_err(), "{guard}: switched off, and no run shows it");
    }
}

#[test]
fn each_guard_of_the_node_that_concerns_elections_is_needed() {
    for (guard, scenario) in NODE {
        scenario();
        let held = holdfast_node::mutants::with_off(guard, || catch_unwind(scenario));
        assert!(held.is_err(), "{guard}: switched off, and no run shows it");
    }
}

//! Each guard's check, seen to fail when the guard is off.

use crate::{claims, ecmp, gate, heal, hostile, limits};
use holdfast_statesync::mutants::with_off;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn fails_without(guard: &'static str, check: fn()) {
    check();
    let outcome = catch_unwind(AssertUnwindSafe(|| with_off(guard, check)));
    assert!(outcome.is_err(), "the check of {guard} passes although the guard is off");
}

#[test]
fn without_ownership_of_deletes_a_foreign_one_is_noticed() {
    fails_without("owner-deletes", claims::only_an_owner_deletes);
}

#[test]
fn without_the_fence_exported_ends_are_noticed() {
    fails_without("fence", claims::what_goes_with_an_address_that_left_is_not_exported);
}

#[test]
fn without_renewed_leases_a_replica_that_timed_out_is_noticed() {
    fails_without("lease", claims::a_udp_flow_with_a_timeout_of_6_seconds_lives_on_the_replica_as_long_as_on_the_owner);
}

#[test]
fn without_the_order_of_batches_an_old_one_that_overwrites_is_noticed() {
    fails_without("batch-order", heal::a_late_batch_overwrites_nothing);
}

#[test]
fn without_the_list_of_vips_a_foreign_flow_is_noticed() {
    fails_without("unlisted-vip", limits::a_peer_cant_touch_a_vip_that_it_doesnt_share);
}

#[test]
fn without_the_list_of_vips_the_corpus_of_batches_notices() {
    fails_without("unlisted-vip", hostile::every_input_in_the_corpus_runs_whole_and_cut_short);
}

#[test]
fn without_ownership_of_deletes_the_corpus_of_batches_notices() {
    fails_without("owner-deletes", hostile::every_input_in_the_corpus_runs_whole_and_cut_short);
}

#[test]
fn without_claims_by_packets_a_flow_of_the_wrong_owner_is_noticed() {
    fails_without("claim-by-packets", claims::a_flow_whose_packets_come_to_another_node_is_that_ones);
}

#[test]
fn without_the_gate_a_node_that_isnt_in_sync_is_noticed() {
    fails_without("promote-gate", gate::a_node_is_ready_when_it_has_all_flows_of_its_peers_in_its_kernel);
}

#[test]
fn without_the_rewrite_stale_entries_are_noticed() {
    fails_without("refresh-on-release", claims::a_node_that_gives_a_vip_away_writes_its_entries_anew);
}

#[test]
fn without_refilling_a_flushed_replica_is_noticed() {
    fails_without("refill", heal::a_flushed_replica_is_filled_again_within_a_second_and_the_owner_keeps_all);
}

#[test]
fn without_the_rule_for_clashes_a_clash_is_noticed() {
    fails_without("clash", claims::two_flows_with_one_address_and_port_behind_the_nat_are_found_and_told);
}

#[test]
fn without_the_limit_of_claims_lost_flows_are_noticed() {
    fails_without("claim-what-it-has", claims::flows_that_open_while_the_vip_moves_are_lost_on_neither_side);
}

#[test]
fn without_claims_by_address_flows_of_a_dead_node_are_noticed() {
    fails_without(
        "claim-by-source",
        ecmp::who_gets_a_dead_nodes_address_has_its_flows_by_one_message_and_idle_ones_live_on,
    );
}

#[test]
fn without_the_rule_of_the_address_a_flow_that_its_clients_packets_took_along_is_noticed() {
    fails_without("source-keeps", ecmp::a_flow_stays_with_who_has_its_address_whoever_gets_its_clients_packets);
}

#[test]
fn without_a_read_table_answers_that_have_flows_sent_again_are_noticed() {
    fails_without("read-before-answer", heal::who_has_not_read_its_own_table_says_nothing_of_it);
}

#[test]
fn without_the_generation_of_claims_on_ones_own_flows_lost_ones_are_noticed() {
    fails_without("claim-raises-own", ecmp::claims_that_cross_lose_nothing);
}

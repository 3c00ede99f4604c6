//! Each guard's check, seen to fail when the guard is off.

use crate::hostile;
use holdfast_statesync::mutants::with_off;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn fails_without(guard: &'static str, check: fn()) {
    check();
    let outcome = catch_unwind(AssertUnwindSafe(|| with_off(guard, check)));
    assert!(outcome.is_err(), "the check of {guard} passes although the guard is off");
}

#[test]
fn without_the_replay_window_a_replay_is_noticed() {
    fails_without("replay-window", hostile::replaying_every_recorded_datagram_changes_nothing_while_up);
}

#[test]
fn without_authentication_a_flipped_bit_is_noticed() {
    fails_without("auth", hostile::flipping_any_bit_of_a_datagram_makes_it_refused);
}

#[test]
fn without_the_source_check_a_foreign_source_is_noticed() {
    fails_without("source-check", hostile::a_foreign_source_is_refused_before_anything_else);
}

#[test]
fn without_key_confirmation_an_unused_session_is_noticed() {
    fails_without("key-confirmation", hostile::an_unused_session_displaces_nothing);
}

#[test]
fn without_the_stamp_an_old_greeting_is_noticed() {
    fails_without("stamp", hostile::an_old_greeting_is_not_even_answered);
}

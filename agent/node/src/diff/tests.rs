//! The difference by itself, step by step.

use super::*;
use std::net::Ipv4Addr;

fn key(n: u8) -> Key {
    (2, IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 32)
}

fn wanted(keys: &[u8]) -> Wanted {
    Wanted { addresses: keys.iter().map(|n| key(*n)).collect(), ..Wanted::default() }
}

fn now() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
    Instant::now()
}

/// Of a kernel in which no former run left a guard.
fn actual() -> Actual {
    Actual { guard: Guard { set: Some(BTreeSet::new()), at: None, ours: false }, ..Actual::default() }
}

fn issue(actual: &mut Actual, diff: &Diff, now: Instant) {
    diff.steps.iter().for_each(|step| actual.issued(step, now));
}

#[test]
fn an_address_that_a_late_refresh_put_back_is_still_ours_to_remove() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&wanted(&[1]), &actual, now);
    issue(&mut actual, &first, now);
    first.steps.iter().for_each(|step| assert!(actual.done(step, None, now).is_none()));
    // A node that stood still refreshes what has run out meanwhile, and then hears that it ran out.
    let late = now + Duration::from_secs(4);
    let refresh = diff(&wanted(&[1]), &actual, late);
    issue(&mut actual, &refresh, late);
    refresh.steps.iter().for_each(|step| assert!(actual.done(step, None, late).is_none()));
    assert!(actual.gone(key(1), late));
    actual.tidy(late);
    actual.seen(key(1));
    let removal = diff(&wanted(&[]), &actual, late);
    assert!(matches!(removal.steps[..], [Step::RemoveAddress { .. }]), "{removal:?}");
}

#[test]
fn what_is_wanted_is_added_once_and_refreshed_in_time() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&wanted(&[1]), &actual, now);
    assert_eq!(first.added, [key(1)]);
    issue(&mut actual, &first, now);
    let again = diff(&wanted(&[1]), &actual, now + Duration::from_millis(499));
    assert_eq!((again.steps.len(), again.next), (0, Some(now + REFRESH)));
    let refresh = diff(&wanted(&[1]), &actual, now + REFRESH);
    assert_eq!((refresh.steps.len(), refresh.added.len()), (1, 0), "a refresh is no addition to announce");
}

#[test]
fn what_we_did_not_add_is_never_removed() {
    let (now, mut actual) = (now(), actual());
    actual.seen(key(1));
    assert_eq!(diff(&wanted(&[]), &actual, now).steps, []);
    actual.adopt(key(1));
    assert_eq!(diff(&wanted(&[]), &actual, now).steps.len(), 1);
}

#[test]
fn a_failed_step_comes_again_with_back_off_up_to_a_second() {
    let (mut now, mut actual) = (now(), actual());
    let mut waits = vec![];
    for _ in 0..9 {
        let steps = diff(&wanted(&[1]), &actual, now);
        assert_eq!(steps.steps.len(), 1);
        issue(&mut actual, &steps, now);
        let retry = actual.done(&steps.steps[0], Some("refused"), now).expect("a retry");
        waits.push((retry.at - now).as_millis());
        assert_eq!(diff(&wanted(&[1]), &actual, now).next, Some(retry.at));
        now = retry.at;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
}

#[test]
fn the_event_of_our_own_removal_is_no_surprise_even_after_a_new_addition() {
    let (now, mut actual) = (now(), actual());
    for want in [&[1][..], &[], &[1]] {
        let steps = diff(&wanted(want), &actual, now);
        issue(&mut actual, &steps, now);
        for step in &steps.steps {
            actual.done(step, None, now);
        }
    }
    assert!(!actual.gone(key(1), now), "the removal's event, late");
    assert!(actual.present(&key(1)));
    assert!(actual.gone(key(1), now), "this one is somebody else's doing");
    assert_eq!(diff(&wanted(&[1]), &actual, now).added, [key(1)]);
}

#[test]
fn held_addresses_are_neither_added_nor_removed() {
    let (now, mut actual) = (now(), actual());
    let mut want = wanted(&[1, 2]);
    want.held.insert(key(1));
    let steps = diff(&want, &actual, now);
    assert_eq!(steps.added, [key(2)]);
    issue(&mut actual, &steps, now);
    assert_eq!(diff(&want, &actual, now).steps, []);
}

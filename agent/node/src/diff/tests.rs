//! The difference by itself, step by step.

use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn key(n: u8) -> Key {
    (2, IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 32)
}

/// What [`super::diff`] says if these addresses are wanted, and no others.
fn diff(keys: &[u8], actual: &mut Actual, now: Instant) -> Diff {
    for n in 0..=9 {
        actual.want(key(n), if keys.contains(&n) { Want::Yes } else { Want::No }, None);
    }
    super::diff(&Wanted::default(), actual, now, now)
}

fn now() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
    Instant::now()
}

/// Of a kernel in which no former run left a guard, and that tells of no flows.
fn actual() -> Actual {
    let guard = Guard { set: Some(BTreeSet::new()), ..Guard::default() };
    let mut actual = Actual { guard, ..Actual::default() };
    actual.flows.issued(&FlowFilter::Off, now());
    actual
}

fn issue(actual: &mut Actual, diff: &Diff, now: Instant) {
    diff.steps.iter().for_each(|step| actual.issued(step, now));
}

/// Addresses 1 and 2 are wanted, and 1 is to take no traffic.
fn guarded(actual: &mut Actual, now: Instant) -> Diff {
    actual.want(key(1), Want::Yes, None);
    actual.want(key(2), Want::Yes, None);
    super::diff(&Wanted { guard: [key(1).1].into(), ..Wanted::default() }, actual, now, now)
}

fn added(diff: &Diff) -> Vec<Key> {
    let key = |step: &Step| match step {
        Step::AddAddress { ifindex, ip, prefix, .. } => Some((*ifindex, *ip, *prefix)),
        _ => None,
    };
    diff.steps.iter().filter_map(key).collect()
}

#[test]
fn an_address_that_takes_no_traffic_waits_until_the_guard_is_known_to_hold_it_and_no_other_does() {
    let (now, mut actual) = (now(), actual());
    let first = guarded(&mut actual, now);
    issue(&mut actual, &first, now);
    let [guard @ Step::Guard { .. }, _] = &first.steps[..] else { panic!("{first:?}") };
    assert_eq!((added(&first), first.next), (vec![key(2)], Some(now + GUARD_WAIT)));
    let soon = now + Duration::from_millis(1);
    assert_eq!(guarded(&mut actual, soon).steps, []);
    assert!(actual.done(guard, None, soon).is_none());
    let then = guarded(&mut actual, soon);
    assert_eq!(added(&then), [key(1)]);
    issue(&mut actual, &then, soon);
    // It is written anew from time to time: what it holds already waits for nothing.
    let late = now + GUARD_REFRESH + REFRESH;
    let again = guarded(&mut actual, late);
    assert!(matches!(again.steps[..], [Step::Guard { .. }, _, _]), "{again:?}");
    issue(&mut actual, &again, late);
    assert!(actual.gone(key(1), late));
    assert_eq!(added(&guarded(&mut actual, late)), [key(1)]);
}

#[test]
fn the_wait_for_the_guard_ends_with_its_time_or_its_failure() {
    let (now, mut slow) = (now(), actual());
    let first = guarded(&mut slow, now);
    issue(&mut slow, &first, now);
    assert_eq!(added(&guarded(&mut slow, now + GUARD_WAIT - Duration::from_micros(1))), []);
    assert_eq!(added(&guarded(&mut slow, now + GUARD_WAIT)), [key(1)]);
    let mut broken = actual();
    let first = guarded(&mut broken, now);
    issue(&mut broken, &first, now);
    assert!(broken.done(&first.steps[0], Some("no nf_tables"), now).is_some());
    assert_eq!(added(&guarded(&mut broken, now)), [key(1)], "a VIP that nobody has is worse");
}

#[test]
fn an_ipv6_address_answers_when_its_event_says_so_or_when_that_must_have_been_lost() {
    let (now, mut actual) = (now(), actual());
    let six: Key = (2, "2001:db8::10".parse().expect("an address"), 128);
    let add = |actual: &mut Actual, now| {
        actual.want(six, Want::Yes, None);
        let diff = super::diff(&Wanted::default(), actual, now, now);
        assert_eq!(added(&diff), [six]);
        issue(actual, &diff, now);
        assert!(actual.done(&diff.steps[0], None, now).is_none());
    };
    assert!(!actual.answers(&six, now), "it isn't there");
    add(&mut actual, now);
    let late = now + Duration::from_millis(40);
    assert!(actual.present(&six) && !actual.answers(&six, now));
    assert!(!actual.answers(&six, late - Duration::from_micros(1)) && actual.answers(&six, late));
    assert!(actual.seen(six) && actual.answers(&six, now));
    // A refresh changes nothing, another addition does.
    add(&mut actual, now + REFRESH_V6);
    assert!(actual.answers(&six, now + REFRESH_V6));
    assert!(actual.gone(six, now + REFRESH_V6));
    add(&mut actual, now + 2 * REFRESH_V6);
    assert!(!actual.answers(&six, now + 2 * REFRESH_V6));
    // IPv4 answers at once.
    let four = diff(&[1], &mut actual, now);
    issue(&mut actual, &four, now);
    assert!(actual.answers(&key(1), now));
}

#[test]
fn an_address_that_a_late_refresh_put_back_is_still_ours_to_remove() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&[1], &mut actual, now);
    issue(&mut actual, &first, now);
    first.steps.iter().for_each(|step| assert!(actual.done(step, None, now).is_none()));
    // A node that stood still refreshes what has run out meanwhile, and then hears that it ran out.
    let late = now + Duration::from_secs(4);
    let refresh = diff(&[1], &mut actual, late);
    issue(&mut actual, &refresh, late);
    refresh.steps.iter().for_each(|step| assert!(actual.done(step, None, late).is_none()));
    assert!(actual.gone(key(1), late));
    actual.tidy(late);
    actual.seen(key(1));
    let removal = diff(&[], &mut actual, late);
    assert!(matches!(removal.steps[..], [Step::RemoveAddress { .. }]), "{removal:?}");
}

#[test]
fn what_is_wanted_is_added_once_and_refreshed_in_time() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&[1], &mut actual, now);
    assert_eq!(first.added, [key(1)]);
    issue(&mut actual, &first, now);
    let again = diff(&[1], &mut actual, now + Duration::from_millis(499));
    assert_eq!((again.steps.len(), again.next), (0, Some(now + REFRESH)));
    let refresh = diff(&[1], &mut actual, now + REFRESH);
    assert_eq!((refresh.steps.len(), refresh.added.len()), (1, 0), "a refresh is no addition to announce");
}

#[test]
fn what_we_did_not_add_is_never_removed() {
    let (now, mut actual) = (now(), actual());
    actual.seen(key(1));
    assert_eq!(diff(&[], &mut actual, now).steps, []);
    actual.adopt(key(1));
    assert_eq!(diff(&[], &mut actual, now).steps.len(), 1);
}

#[test]
fn a_failed_step_comes_again_with_back_off_up_to_a_second() {
    let (mut now, mut actual) = (now(), actual());
    let mut waits = vec![];
    for _ in 0..9 {
        let steps = diff(&[1], &mut actual, now);
        assert_eq!(steps.steps.len(), 1);
        issue(&mut actual, &steps, now);
        let retry = actual.done(&steps.steps[0], Some("refused"), now).expect("a retry");
        waits.push((retry.at - now).as_millis());
        assert_eq!(diff(&[1], &mut actual, now).next, Some(retry.at));
        now = retry.at;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
}

#[test]
fn the_event_of_our_own_removal_is_no_surprise_even_after_a_new_addition() {
    let (now, mut actual) = (now(), actual());
    for want in [&[1][..], &[], &[1]] {
        let steps = diff(want, &mut actual, now);
        issue(&mut actual, &steps, now);
        for step in &steps.steps {
            actual.done(step, None, now);
        }
    }
    assert!(!actual.gone(key(1), now), "the removal's event, late");
    assert!(actual.present(&key(1)));
    assert!(actual.gone(key(1), now), "this one is somebody else's doing");
    assert_eq!(diff(&[1], &mut actual, now).added, [key(1)]);
}

#[test]
fn held_addresses_are_not_added_but_stay_where_they_are() {
    let (now, mut actual) = (now(), actual());
    let hold = |actual: &mut Actual, now| {
        actual.want(key(1), Want::Held, None);
        actual.want(key(2), Want::Held, None);
        super::diff(&Wanted::default(), actual, now, now)
    };
    let steps = diff(&[2], &mut actual, now);
    issue(&mut actual, &steps, now);
    assert_eq!(hold(&mut actual, now).steps, []);
    let refresh = hold(&mut actual, now + REFRESH);
    assert!(matches!(refresh.steps[..], [Step::AddAddress { ip, .. }] if ip == key(2).1), "{refresh:?}");
    assert_eq!(diff(&[1, 2], &mut actual, now).added, [key(1)]);
}

#[test]
fn a_refresh_joins_the_last_turn_before_it_and_is_never_late() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&[1], &mut actual, now);
    issue(&mut actual, &first, now);
    let due = now + REFRESH;
    let steps = |actual: &mut Actual, before: u64, until| {
        let diff = super::diff(&Wanted::default(), actual, due - Duration::from_millis(before), until);
        (diff.steps.len(), diff.added.len(), diff.next)
    };
    let just_before = due - Duration::from_millis(1);
    assert_eq!(steps(&mut actual, 60, just_before), (0, 0, Some(due)), "another turn comes in time");
    assert_eq!(steps(&mut actual, 101, due), (0, 0, Some(due)), "too early");
    assert_eq!(steps(&mut actual, 100, due).0, 1);
    assert_eq!(steps(&mut actual, 1, due + EARLY).0, 1);
}

#[test]
fn what_is_not_issued_comes_again() {
    let (now, mut actual) = (now(), actual());
    assert_eq!(diff(&[1], &mut actual, now).added, [key(1)]);
    let first = diff(&[1], &mut actual, now);
    assert_eq!(first.added, [key(1)]);
    issue(&mut actual, &first, now);
    let mut again = || diff(&[], &mut actual, now).steps.len();
    assert_eq!((again(), again()), (1, 1));
}

#[test]
fn what_was_wanted_on_an_interface_that_is_gone_is_wanted_again_when_it_is_back() {
    let (now, mut actual) = (now(), actual());
    let first = diff(&[1], &mut actual, now);
    issue(&mut actual, &first, now);
    first.steps.iter().for_each(|step| assert!(actual.done(step, None, now).is_none()));
    actual.link_gone(2);
    assert!(!actual.present(&key(1)));
    assert_eq!(diff(&[1], &mut actual, now).added, [key(1)]);
}

#[derive(Debug, Clone)]
enum Event {
    Want(u8, Want),
    Seen(u8),
    Adopt(u8),
    Gone(u8),
    LinkGone,
    Resync(Vec<u8>),
    Wait(u64),
    /// A turn; what it issues ends like this, now or after the next event.
    Turn {
        fails: bool,
        late: bool,
        next: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let n = 0..4_u8;
    prop_oneof![
        4 => (n.clone(), prop_oneof![1 => Just(Want::No), 1 => Just(Want::Held), 2 => Just(Want::Yes)]).prop_map(|(n, w)| Event::Want(n, w)),
        1 => n.clone().prop_map(Event::Seen),
        1 => n.clone().prop_map(Event::Adopt),
        2 => n.clone().prop_map(Event::Gone),
        1 => Just(Event::LinkGone),
        1 => prop::collection::vec(n, 0..4).prop_map(Event::Resync),
        3 => (1..600_u64).prop_map(Event::Wait),
        5 => (any::<bool>(), any::<bool>(), 0..150_u64).prop_map(|(fails, late, next)| Event::Turn { fails, late, next }),
    ]
}

proptest! {
    /// A look at what changed and what is due finds what a look at everything finds, at whatever time.
    #[test]
    fn a_turn_misses_nothing_that_a_complete_comparison_finds(events in prop::collection::vec(event(), 1..60)) {
        let (mut now, mut actual) = (now(), actual());
        let mut on_their_way: Vec<(Step, bool)> = Vec::new();
        for event in events {
            let ended = std::mem::take(&mut on_their_way);
            let mut late_ones = false;
            match event {
                Event::Want(n, want) => actual.want(key(n), want, (n == 3).then_some(LIFETIME * 4)),
                Event::Seen(n) => drop(actual.seen(key(n))),
                Event::Adopt(n) => actual.adopt(key(n)),
                Event::Gone(n) => drop(actual.gone(key(n), now)),
                Event::LinkGone => actual.link_gone(2),
                Event::Resync(all) => drop(actual.resync(&all.into_iter().map(key).collect(), now)),
                Event::Wait(ms) => now += Duration::from_millis(ms),
                Event::Turn { fails, late, next } => {
                    let until = now + Duration::from_millis(next);
                    let mut complete = actual.clone();
                    complete.look_at_all();
                    let expected = super::diff(&Wanted::default(), &mut complete, now, until);
                    let found = super::diff(&Wanted::default(), &mut actual, now, until);
                    prop_assert_eq!(&found, &expected);
                    issue(&mut actual, &found, now);
                    on_their_way = found.steps.into_iter().map(|step| (step, fails)).collect();
                    late_ones = late;
                }
            }
            let mut end = |steps: Vec<(Step, bool)>| steps.into_iter().for_each(|(step, fails)| {
                actual.done(&step, fails.then_some("refused"), now);
            });
            end(ended);
            if !late_ones {
                end(std::mem::take(&mut on_their_way));
            }
            actual.tidy(now);
        }
    }
}

/// What is done about the flows of which the kernel is to tell.
fn filters(wanted: FlowFilter, actual: &mut Actual, now: Instant) -> Vec<Step> {
    let diff = super::diff(&Wanted { flows: wanted, ..Wanted::default() }, actual, now, now);
    issue(actual, &diff, now);
    diff.steps
}

#[test]
fn the_kernel_is_told_of_which_flows_it_tells_until_it_has_it_and_again_now_and_then() {
    let (now, mut actual) = (now(), actual());
    let step = Step::EventFilter { filter: FlowFilter::All };
    assert_eq!(filters(FlowFilter::All, &mut actual, now), std::slice::from_ref(&step));
    assert_eq!(filters(FlowFilter::All, &mut actual, now), [], "on its way");
    assert_eq!(actual.done(&step, Some("refused"), now).map(|retry| retry.failures), Some(1));
    assert_eq!(filters(FlowFilter::All, &mut actual, now), [], "not at once");
    assert_eq!(filters(FlowFilter::All, &mut actual, now + RETRY_FIRST), std::slice::from_ref(&step));
    assert!(actual.done(&step, None, now + RETRY_FIRST).is_some(), "it works again");
    let later = now + RETRY_FIRST + GUARD_REFRESH;
    assert_eq!(filters(FlowFilter::All, &mut actual, later - Duration::from_millis(1)), []);
    assert_eq!(
        filters(FlowFilter::All, &mut actual, later),
        std::slice::from_ref(&step),
        "somebody may have undone it"
    );
    assert!(!actual.is_clean());
    let off = Step::EventFilter { filter: FlowFilter::Off };
    assert_eq!(filters(FlowFilter::Off, &mut actual, later), std::slice::from_ref(&off));
    assert!(actual.done(&step, None, later).is_none(), "the answer to the one before");
    assert!(!actual.is_clean(), "on its way");
    assert!(actual.done(&off, None, later).is_none());
    assert!(actual.is_clean());
    assert_eq!(
        filters(FlowFilter::Off, &mut actual, later + GUARD_REFRESH),
        [],
        "what isn't there needs no looking after"
    );
}

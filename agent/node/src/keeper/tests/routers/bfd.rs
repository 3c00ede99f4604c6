//! Lists of BFD sessions, their sockets, and how often the worker is told of them.

use super::*;

#[test]
fn a_new_list_changes_times_live_and_leaves_the_rest_alone() {
    let mut lab = Lab::serving();
    let second = BfdSpec { neighbor: "r2".to_owned(), remote: [10, 0, 0, 2].into(), ..spec(50) };
    lab.bench.say(ToKeeper::Bfd(vec![second.clone(), spec(300)]));
    lab.beat(ms(2_000));
    let remote = *lab.router.session(lab.theirs).expect("there is one").remote();
    assert_eq!((remote.min_tx, remote.min_rx), (ms(300), ms(300)));
    lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
    lab.beat(ms(2_000));
    let again = *lab.router.session(lab.theirs).expect("there is one").remote();
    assert_eq!((again.min_tx, again.discriminator), (ms(50), remote.discriminator));
    assert_eq!((lab.seen.len(), lab.their_state()), (0, State::Up));
}

#[test]
fn what_is_not_wanted_any_more_says_admin_down_and_is_closed() {
    let mut lab = Lab::serving();
    lab.bench.say(ToKeeper::Bfd(vec![]));
    lab.beat(ms(400));
    assert_eq!(lab.bench.times(|o| matches!(o, Output::CloseBfd { .. })).len(), 1);
    assert_eq!(lab.seen.first().map(|(_, state, diag)| (*state, *diag)), Some((State::Down, 7)));
    assert_eq!(lab.reports(), []);
}

#[test]
fn one_that_is_wanted_again_while_it_takes_its_leave_is_the_same_session() {
    let mut lab = Lab::serving();
    let former = lab.router.session(lab.theirs).expect("there is one").remote().discriminator;
    lab.bench.say(ToKeeper::Bfd(vec![]));
    lab.run(ms(60));
    lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
    lab.beat(ms(3_000));
    assert_eq!(lab.their_state(), State::Up);
    assert_eq!(lab.router.session(lab.theirs).expect("there is one").remote().discriminator, former);
    assert_eq!(lab.bench.times(|o| matches!(o, Output::CloseBfd { .. })), [0; 0]);
}

#[test]
fn a_path_that_changes_is_a_new_session() {
    let mut lab = Lab::serving();
    lab.bench.say(ToKeeper::Bfd(vec![BfdSpec { local: Some(US), ..spec(50) }]));
    lab.beat(ms(5_000));
    assert_eq!(lab.bench.times(|o| matches!(o, Output::OpenBfd { .. })).len(), 1);
    assert_eq!(lab.bench.times(|o| matches!(o, Output::CloseBfd { .. })).len(), 1);
    assert_eq!(lab.their_state(), State::Up);
}

#[test]
fn a_socket_that_cant_be_opened_is_told_and_tried_again_each_second() {
    let mut bench = Bench::working();
    bench.answers = false;
    bench.say(ToKeeper::Bfd(vec![spec(50)]));
    let opens = |o: &Output| matches!(o, Output::OpenBfd { .. });
    let Some((_, Output::OpenBfd { session, .. })) = bench.log.iter().find(|(_, o)| opens(o)).cloned() else {
        panic!("it was asked for")
    };
    for _ in 0..3 {
        bench.input(Input::BfdNotOpened { session, why: "port 3784 is in use".to_owned() });
        bench.beat(ms(1_000));
    }
    assert_eq!(bench.times(opens), [0, 1_000, 2_000, 3_000]);
    let problem = |o: &Output| matches!(o, Output::SendToWorker(ToWorker::Bfd(r)) if r.problem.is_some());
    assert_eq!(bench.times(problem).len(), 1, "told once");
    assert!(bench.times(|o| matches!(o, Output::SendBfd { .. })).is_empty(), "nothing is sent without a socket");
    bench.input(Input::BfdOpened { session, ifindex: Some(2) });
    bench.log.clear();
    bench.input(Input::BfdSent { session });
    let well = |o: &Output| matches!(o, Output::SendToWorker(ToWorker::Bfd(r)) if r.problem.is_none());
    assert_eq!(bench.times(well).len(), 1);
    bench.beat(ms(1_000));
    assert!(!bench.times(|o| matches!(o, Output::SendBfd { .. })).is_empty());
}

/// A route that is missing for a moment must not cost the session more than that moment.
#[test]
fn a_socket_that_does_not_send_is_opened_again_each_second_and_goes_on_meanwhile() {
    let mut lab = Lab::serving();
    let sends = |o: &Output| matches!(o, Output::SendBfd { .. });
    let session = lab.towards[0];
    let why = "network unreachable".to_owned();
    lab.bench.input(Input::BfdUnsent { session, why });
    lab.beat(ms(900));
    assert!(lab.bench.times(sends).len() >= 15);
    assert_eq!(lab.bench.times(|o| matches!(o, Output::OpenBfd { .. })).len(), 0);
    lab.beat(ms(200));
    assert_eq!(lab.bench.times(|o| matches!(o, Output::OpenBfd { .. })).len(), 1);
    assert_eq!(lab.their_state(), State::Up);
    assert_eq!(lab.reports().iter().map(|r| r.problem.is_some()).collect::<Vec<_>>(), [true]);
}

impl Lab {
    /// Somebody on the segment speaks in the router's name, having read our discriminator there.
    fn forge(&mut self, state: State) {
        let packet = Control {
            diagnostic: holdfast_bfd::Diagnostic::NONE,
            state,
            poll: false,
            final_: false,
            control_plane_independent: true,
            demand: false,
            multiplier: 3,
            my_discriminator: 7,
            your_discriminator: self.towards[0].get(),
            desired_min_tx: ms(50),
            required_min_rx: ms(50),
            required_min_echo_rx: Duration::ZERO,
        };
        self.bench.keeper.bfd_receive(self.bench.now, &datagram(&packet.encode(), R1));
        self.bench.drain();
    }

    /// (ms, state) of each report.
    fn told(&self) -> Vec<(u64, BfdState)> {
        let report = |(at, output): &(u64, Output)| match output {
            Output::SendToWorker(ToWorker::Bfd(report)) => Some((*at, report.state)),
            _ => None,
        };
        self.bench.log.iter().filter_map(report).collect()
    }
}

const REPORTS_A_SECOND: usize = 10;

/// Whoever alternates what a session sees does so as fast as packets go; neither the log nor the worker may follow.
#[test]
fn a_session_that_changes_with_each_packet_is_told_ten_times_a_second_and_its_losses_at_once() {
    let mut lab = Lab::serving();
    let mut forged = 0_u32;
    for n in 0..1_500 {
        lab.forge(if n % 2 == 0 { State::Down } else { State::Init });
        forged += 1;
        lab.bench.run(ms(2));
        if n % 25 == 0 {
            lab.bench.say(ToKeeper::Beat);
        }
    }
    lab.forge(State::Down);
    forged += 1;
    lab.bench.beat(ms(2_000));
    let told = lab.told();
    assert!(told.len() >= 30, "{told:?}");
    for (position, (at, _)) in told.iter().enumerate() {
        let within = told[..=position].iter().filter(|(before, _)| before + 1_000 > *at).count();
        assert!(within <= REPORTS_A_SECOND + 1, "{within} at {at}: {told:?}");
    }
    for pair in told.windows(2).filter(|pair| pair[0].1 == BfdState::Up) {
        assert!(pair[1].1 != BfdState::Up && pair[1].0 - pair[0].0 <= 2, "a loss is told at once: {told:?}");
    }
    // In the end the worker knows the truth, and the log how much there was.
    assert_eq!(told.last().map(|(_, state)| *state), Some(BfdState::Down));
    let events = lab.bench.log.iter().filter_map(|(_, output)| match output {
        Output::Event(Event::Bfd { from, to, left_out, .. }) => Some(u32::from(from != to) + left_out),
        _ => None,
    });
    let (lines, changes) = events.fold((0, 0), |(lines, sum), one| (lines + 1, sum + one));
    assert_eq!(changes, forged);
    assert!(lines <= 60, "{lines}");
}

#[test]
fn a_session_that_was_told_too_often_loses_at_once_and_rises_when_it_may() {
    let mut lab = Lab::serving();
    let at = lab.since_start();
    for _ in 0..5 {
        for state in [State::Down, State::Init] {
            lab.forge(state);
            lab.bench.run(ms(1));
        }
    }
    assert_eq!(lab.told().len(), 10);
    lab.forge(State::Down);
    assert_eq!(lab.told().last(), Some(&(at + 10, BfdState::Down)));
    for _ in 0..30 {
        lab.forge(State::Init);
        lab.bench.beat(ms(50));
    }
    // The second of those that count is a second old.
    assert_eq!(lab.told()[11..], [(at + 1_001, BfdState::Up)]);
}

/// An ICMP error for each packet that we send, which anybody can send as well.
#[test]
fn a_socket_that_works_and_fails_in_turn_is_told_ten_times_a_second_too() {
    let mut lab = Lab::serving();
    let session = lab.towards[0];
    // Less than the detection time.
    for _ in 0..20 {
        lab.bench.input(Input::BfdUnsent { session, why: "refused".to_owned() });
        lab.bench.input(Input::BfdSent { session });
        lab.bench.run(ms(5));
    }
    assert_eq!(lab.told().len(), REPORTS_A_SECOND);
    lab.bench.input(Input::BfdUnsent { session, why: "refused".to_owned() });
    lab.beat(ms(1_000));
    let last = lab.reports().last().and_then(|report| report.problem.clone());
    assert_eq!(last, Some("refused".to_owned()));
}

/// RFC 5882 section 4.2: AdminDown isn't a failure, so the worker must be able to tell.
#[test]
fn a_neighbour_that_its_operator_takes_down_is_reported_as_such() {
    let mut lab = Lab::serving();
    let (id, now) = (lab.theirs, lab.bench.now);
    lab.router.with(id, |session| session.admin_down(now));
    lab.beat(ms(1_000));
    assert_eq!(lab.reports().last().map(|report| (report.state, report.diag)), Some((BfdState::AdminDown, 3)));
    // Then it is cut off: silence is no news.
    lab.beat(ms(5_000));
    let last = lab.reports().last().map(|report| report.state);
    assert!(matches!(last, Some(BfdState::AdminDown | BfdState::Down)));
}

#[test]
fn a_router_that_stands_still_is_reported_within_the_detection_time() {
    let mut lab = Lab::serving();
    let at = lab.since_start();
    // It stands still.
    lab.bench.beat(ms(400));
    let reported = lab.bench.times(|o| matches!(o, Output::SendToWorker(ToWorker::Bfd(r)) if r.diag == 1));
    assert_eq!(reported.len(), 1);
    assert!((at + 100..=at + 150).contains(&reported[0]), "{at} {reported:?}");
}

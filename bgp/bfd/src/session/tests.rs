//! By clause of RFC 5880, with a virtual clock.

use super::*;
use crate::wire::State::{AdminDown, Down, Init, Up};

const OURS: u32 = 0xaaaa_0001;
pub(crate) const THEIRS: u32 = 0xbbbb_0002;

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn timers(interval: u64, multiplier: u8) -> Timers {
    Timers::new(ms(interval), multiplier).expect("in range")
}

/// A session, a clock, and what it did.
struct Bench {
    session: Session,
    start: Instant,
    now: Instant,
    /// (ms since the start, packet)
    sent: Vec<(u64, Control)>,
    states: Vec<(State, State, Diagnostic)>,
    left: bool,
}

impl Bench {
    fn new(interval: u64, multiplier: u8) -> Self {
        Self::of(timers(interval, multiplier), false, 7)
    }

    fn of(timers: Timers, passive: bool, seed: u64) -> Self {
        #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
        let now = Instant::now();
        let id = NonZeroU32::new(OURS).expect("not zero");
        let session = Session::new(now, id, timers, passive, seed);
        Self { session, start: now, now, sent: Vec::new(), states: Vec::new(), left: false }
    }

    /// One that is Up with a neighbour whose times are these, all agreed, and nothing noted yet.
    fn up(interval: u64, multiplier: u8, theirs: (u64, u64)) -> Self {
        let mut bench = Self::new(interval, multiplier);
        bench.rise(theirs);
        bench
    }

    fn rise(&mut self, (tx, rx): (u64, u64)) {
        self.hear(packet(Init, tx, rx));
        self.hear(Control { final_: true, ..packet(Up, tx, rx) });
        assert_eq!(self.session.state(), Up);
        self.take();
    }

    fn hear(&mut self, packet: Control) {
        self.session.receive(self.now, &packet);
        self.drain();
    }

    fn change(&mut self, change: impl FnOnce(&mut Session, Instant)) {
        change(&mut self.session, self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Send { bytes } => {
                    let at = u64::try_from((self.now - self.start).as_millis()).expect("a short test");
                    let packet = Control::decode(&bytes).expect("what we send is valid");
                    assert!(!(packet.poll && packet.final_), "P and F are never set together (section 4.1)");
                    assert!(packet.control_plane_independent && !packet.demand);
                    self.sent.push((at, packet));
                }
                Event::State { from, to, diagnostic } => self.states.push((from, to, diagnostic)),
                Event::Left => self.left = true,
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(due) = self.session.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.session.timer(self.now);
            self.drain();
        }
        self.now = until;
    }

    /// Time passes, and the neighbour is heard this often.
    fn run_hearing(&mut self, span: Duration, every: Duration, packet: Control) {
        let until = self.now + span;
        while self.now < until {
            self.run(every.min(until - self.now));
            self.hear(packet);
        }
    }

    fn take(&mut self) -> Vec<(u64, Control)> {
        std::mem::take(&mut self.sent)
    }

    fn take_states(&mut self) -> Vec<(State, State, Diagnostic)> {
        std::mem::take(&mut self.states)
    }
}

/// A packet of the neighbour.
fn packet(state: State, tx: u64, rx: u64) -> Control {
    Control {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        final_: false,
        control_plane_independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: THEIRS,
        your_discriminator: OURS,
        desired_min_tx: ms(tx),
        required_min_rx: ms(rx),
        required_min_echo_rx: Duration::ZERO,
    }
}

fn gaps(sent: &[(u64, Control)]) -> Vec<u64> {
    sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
}

/// Section 6.8.6, the table of states: all that may be received in each.
#[test]
fn each_state_and_received_state_leads_where_section_6_8_6_says() {
    let table = [
        (Down, [(AdminDown, Down), (Down, Init), (Init, Up), (Up, Down)]),
        (Init, [(AdminDown, Down), (Down, Init), (Init, Up), (Up, Up)]),
        (Up, [(AdminDown, Down), (Down, Down), (Init, Up), (Up, Up)]),
        (AdminDown, [(AdminDown, AdminDown), (Down, AdminDown), (Init, AdminDown), (Up, AdminDown)]),
    ];
    for (from, row) in table {
        for (received, to) in row {
            let mut bench = Bench::new(50, 3);
            match from {
                Down => {}
                Init => bench.hear(packet(Down, 1_000, 50)),
                Up => bench.hear(packet(Init, 1_000, 50)),
                AdminDown => bench.change(Session::admin_down),
            }
            assert_eq!(bench.session.state(), from);
            bench.hear(packet(received, 1_000, 50));
            assert_eq!(bench.session.state(), to, "{from} hears {received}");
        }
    }
}

#[test]
fn a_neighbour_that_goes_down_takes_the_session_down_with_diagnostic_3() {
    for received in [Down, AdminDown] {
        let mut bench = Bench::up(50, 3, (50, 50));
        bench.take_states();
        bench.hear(packet(received, 1_000, 50));
        assert_eq!(bench.take_states(), [(Up, Down, Diagnostic::NEIGHBOR_DOWN)]);
        let (_, told) = bench.take()[0];
        assert_eq!((told.state, told.diagnostic), (Down, Diagnostic::NEIGHBOR_DOWN));
    }
}

#[test]
fn a_change_of_state_is_told_at_once() {
    let mut bench = Bench::new(50, 3);
    bench.run(ms(100));
    bench.take();
    bench.hear(packet(Down, 1_000, 50));
    assert_eq!(bench.take().iter().map(|(at, p)| (*at, p.state)).collect::<Vec<_>>(), [(100, Init)]);
    bench.run(ms(1));
    bench.hear(packet(Up, 1_000, 50));
    assert_eq!(bench.take().iter().map(|(at, p)| (*at, p.state)).collect::<Vec<_>>(), [(101, Up)]);
}

/// Section 6.8.3: not less than a second while the session isn't Up.
#[test]
pub(crate) fn until_it_is_up_a_session_sends_once_a_second_and_says_so() {
    let mut bench = Bench::new(50, 3);
    bench.run(ms(60_000));
    let sent = bench.take();
    assert_eq!(sent[0].0, 0);
    assert!((60..=80).contains(&sent.len()), "{}", sent.len());
    assert!(gaps(&sent).iter().all(|gap| (749..=1_000).contains(gap)), "{:?}", gaps(&sent));
    assert!(sent.iter().all(|(_, p)| p.desired_min_tx == ms(1_000) && p.required_min_rx == ms(50)));
    assert!(sent.iter().all(|(_, p)| p.state == Down && p.your_discriminator == 0 && !p.poll));
}

#[test]
fn an_interval_above_a_second_is_kept_in_every_state() {
    let mut bench = Bench::new(2_000, 3);
    bench.run(ms(60_000));
    assert!(bench.take().iter().all(|(_, p)| p.desired_min_tx == ms(2_000)));
}

/// The gaps between packets that no packet of the neighbour takes along: it wants to be lost only after 102 s.
fn alone(multiplier: u8) -> Vec<u64> {
    let mut bench = Bench::up(400, multiplier, (400, 400));
    let patient = Control { multiplier: 255, ..packet(Up, 400, 400) };
    for _ in 0..10 {
        bench.hear(patient);
        bench.run(ms(100_000));
    }
    gaps(&bench.take())
}

/// Section 6.8.7: between 75 and 100 % of the interval.
#[test]
pub(crate) fn each_interval_is_shortened_by_up_to_a_quarter_at_random() {
    let gaps = alone(3);
    assert!(gaps.iter().all(|gap| (299..=400).contains(gap)), "{gaps:?}");
    // All of the range is used.
    assert!(gaps.iter().any(|gap| *gap < 310) && gaps.iter().any(|gap| *gap > 390));
    let mean = gaps.iter().sum::<u64>() / u64::try_from(gaps.len()).expect("a few");
    assert!((340..=360).contains(&mean), "{mean}");
}

/// Section 6.8.7: where one lost packet ends the session, between 75 and 90 %.
#[test]
fn with_multiplier_1_the_interval_never_passes_nine_tenths() {
    let gaps = alone(1);
    assert!(gaps.iter().all(|gap| (299..=360).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().any(|gap| *gap > 350));
}

/// Section 6.8.2, both ways.
#[test]
fn what_is_sent_is_the_slower_of_what_we_want_and_what_the_neighbour_takes() {
    for (ours, takes, expected) in [(50, 300, 300), (300, 50, 300), (50, 50, 50)] {
        let bench = Bench::up(ours, 3, (50, takes));
        assert_eq!(bench.session.tx_interval(), ms(expected), "{ours} {takes}");
    }
}

/// Section 6.8.4: the neighbour's multiplier, and the slower of what it wants to send and what we take.
#[test]
fn the_detection_time_follows_the_formula() {
    for (ours, wants, multiplier, expected) in
        [(50, 50, 3, 150), (50, 300, 3, 900), (300, 50, 5, 1_500), (50, 50, 1, 50)]
    {
        let mut bench = Bench::up(ours, 9, (wants, 50));
        bench.hear(Control { multiplier, ..packet(Up, wants, 50) });
        assert_eq!(bench.session.detection_time(), ms(expected));
        bench.take_states();
        bench.run(ms(expected) - Duration::from_micros(1));
        assert_eq!(bench.take_states(), []);
        bench.run(Duration::from_micros(1));
        assert_eq!(bench.take_states(), [(Up, Down, Diagnostic::EXPIRED)]);
    }
}

#[test]
fn a_session_in_init_is_lost_as_well() {
    let mut bench = Bench::new(50, 3);
    bench.hear(packet(Down, 1_000, 50));
    bench.take_states();
    bench.run(ms(3_000));
    assert_eq!(bench.take_states(), [(Init, Down, Diagnostic::EXPIRED)]);
}

/// Section 6.8.1, bfd.RemoteDiscr; and what FRR got wrong (issue 18593).
#[test]
fn the_neighbours_discriminator_is_kept_for_a_detection_time_after_the_last_packet_and_no_longer() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.hear(packet(Down, 1_000, 50));
    assert_eq!(bench.session.state(), Down);
    bench.run(ms(2_900));
    assert_eq!(bench.session.remote().discriminator, THEIRS);
    assert!(bench.take().iter().all(|(_, p)| p.your_discriminator == THEIRS));
    bench.run(ms(200));
    assert_eq!(bench.session.remote().discriminator, 0);
    bench.run(ms(2_000));
    assert!(bench.take().iter().rev().take(1).all(|(_, p)| p.your_discriminator == 0));
}

/// Section 6.8.6: F as soon as possible, whatever the timer says.
#[test]
fn a_poll_is_answered_at_once_and_moves_no_timer() {
    let mut bench = Bench::up(400, 3, (400, 400));
    bench.run(ms(150));
    let next = bench.session.poll_timeout();
    bench.hear(Control { poll: true, ..packet(Up, 400, 400) });
    let sent = bench.take();
    assert_eq!(sent.iter().map(|(at, p)| (*at, p.poll, p.final_)).collect::<Vec<_>>(), [(150, false, true)]);
    assert_eq!(bench.session.poll_timeout(), next);
}

#[test]
fn a_poll_that_brings_the_session_up_is_answered_in_the_new_state() {
    let mut bench = Bench::new(50, 3);
    bench.hear(packet(Down, 1_000, 50));
    bench.take();
    bench.hear(Control { poll: true, ..packet(Up, 50, 50) });
    let sent: Vec<_> = bench.take().iter().map(|(_, p)| (p.state, p.poll, p.final_)).collect();
    // The answer, and our own Poll for leaving the slow start.
    assert_eq!(sent, [(Up, false, true), (Up, true, false)]);
}

/// Section 6.8.3: the slow start ends with a Poll Sequence.
#[test]
fn coming_up_polls_until_the_neighbour_answers() {
    let mut bench = Bench::new(50, 3);
    bench.hear(packet(Init, 1_000, 50));
    bench.run_hearing(ms(500), ms(40), packet(Up, 50, 50));
    let sent = bench.take();
    assert!(sent.len() > 8 && sent.iter().all(|(_, p)| p.poll && p.desired_min_tx == ms(50)));
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    bench.run_hearing(ms(500), ms(40), packet(Up, 50, 50));
    let sent = bench.take();
    assert!(sent.len() > 8 && sent.iter().all(|(_, p)| !p.poll));
}

/// Section 6.8.3: a longer interval counts only once the neighbour knows of it.
#[test]
pub(crate) fn a_longer_interval_counts_only_when_the_poll_is_answered() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.change(|s, now| s.set_timers(now, timers(300, 3)));
    let (_, told) = bench.take()[0];
    assert_eq!((told.poll, told.desired_min_tx, told.required_min_rx), (true, ms(300), ms(300)));
    // What it may send less of counts at once: we wait longer.
    assert_eq!((bench.session.tx_interval(), bench.session.detection_time()), (ms(50), ms(900)));
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    assert_eq!((bench.session.tx_interval(), bench.session.detection_time()), (ms(300), ms(900)));
    assert_eq!(bench.session.state(), Up);
}

/// Section 6.8.3 and 6.8.4: a shorter one counts at once for what we send, and after the answer for what we expect.
#[test]
fn a_shorter_interval_is_sent_at_once_and_expected_when_the_poll_is_answered() {
    let mut bench = Bench::up(300, 3, (50, 50));
    bench.change(|s, now| s.set_timers(now, timers(50, 3)));
    assert_eq!((bench.session.tx_interval(), bench.session.detection_time()), (ms(50), ms(900)));
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    assert_eq!((bench.session.tx_interval(), bench.session.detection_time()), (ms(50), ms(150)));
}

/// Section 6.5: between two Poll Sequences there is a packet without P.
#[test]
fn a_change_during_a_poll_waits_for_it_and_a_packet_without_p_comes_between() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.change(|s, now| s.set_timers(now, timers(300, 3)));
    bench.change(|s, now| s.set_timers(now, timers(200, 3)));
    assert!(bench.take().iter().all(|(_, p)| p.poll && p.desired_min_tx == ms(300)));
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    let sent: Vec<_> = bench.take().iter().map(|(_, p)| (p.poll, p.desired_min_tx)).collect();
    assert_eq!(sent, [(false, ms(300)), (true, ms(200))]);
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    assert_eq!(bench.session.tx_interval(), ms(200));
}

#[test]
fn a_final_that_nobody_asked_for_changes_nothing() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    assert_eq!((bench.take().len(), bench.session.tx_interval()), (0, ms(50)));
}

/// FRR pull request 22932.
#[test]
pub(crate) fn when_the_neighbour_takes_more_we_speed_up_at_once() {
    let mut bench = Bench::up(50, 3, (50, 10_000));
    bench.run_hearing(ms(1_000), ms(50), packet(Up, 50, 10_000));
    bench.take();
    bench.hear(packet(Up, 50, 50));
    // More than an interval has passed since the last one: at once, and from then on at the new rate.
    assert_eq!(bench.take().len(), 1);
    bench.run_hearing(ms(500), ms(40), packet(Up, 50, 50));
    assert!(bench.take().len() >= 10);
}

/// Section 6.8.7.
#[test]
pub(crate) fn a_neighbour_that_takes_nothing_gets_no_periodic_packets_but_answers_and_changes() {
    let mut bench = Bench::up(50, 3, (50, 50));
    let silent = packet(Up, 50, 0);
    bench.hear(silent);
    bench.take();
    bench.run_hearing(ms(5_000), ms(100), silent);
    assert_eq!(bench.take(), []);
    bench.hear(Control { poll: true, ..silent });
    assert_eq!(bench.take().len(), 1);
    bench.hear(packet(Down, 50, 0));
    assert_eq!(bench.take().iter().map(|(_, p)| p.state).collect::<Vec<_>>(), [Down]);
    // When it is gone, what it took is forgotten: a new one must hear us.
    bench.run(ms(5_000));
    assert!(bench.take().len() >= 3);
}

/// Section 6.6 and 6.8.7.
#[test]
fn a_neighbour_in_demand_mode_gets_periodic_packets_only_until_both_are_up() {
    let mut bench = Bench::up(50, 3, (50, 50));
    let demanding = Control { demand: true, ..packet(Up, 50, 50) };
    bench.hear(demanding);
    bench.take();
    bench.run_hearing(ms(1_000), ms(50), demanding);
    assert_eq!(bench.take(), []);
    bench.change(|s, now| s.set_timers(now, timers(60, 3)));
    bench.run_hearing(ms(200), ms(50), demanding);
    assert!(bench.take().len() >= 3, "a Poll Sequence is sent all the same");
}

/// Section 6.1.
#[test]
fn a_passive_session_waits_for_the_neighbour_and_forgets_it_again() {
    let mut bench = Bench::of(timers(50, 3), true, 7);
    bench.run(ms(10_000));
    assert_eq!(bench.take(), []);
    bench.hear(packet(Down, 1_000, 50));
    assert_eq!(bench.take().iter().map(|(_, p)| p.state).collect::<Vec<_>>(), [Init]);
    bench.run(ms(3_000));
    assert_eq!(bench.session.state(), Down);
    bench.take();
    bench.run(ms(10_000));
    assert_eq!(bench.take(), []);
}

/// Section 6.8.16: told for a Detection Time; and one lost packet doesn't turn it into a failure.
#[test]
pub(crate) fn admin_down_is_told_three_times_and_for_a_detection_time_and_then_all_is_quiet() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.take_states();
    bench.change(Session::admin_down);
    assert_eq!(bench.take_states(), [(Up, AdminDown, Diagnostic::ADMIN_DOWN)]);
    bench.run_hearing(ms(149), ms(50), packet(Down, 1_000, 50));
    assert!(!bench.left && !bench.session.has_left());
    let sent = bench.take();
    assert_eq!(sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 50, 100]);
    assert!(sent.iter().all(|(_, p)| p.state == AdminDown && p.diagnostic == Diagnostic::ADMIN_DOWN));
    bench.run(ms(1));
    assert!(bench.left && bench.session.has_left());
    assert_eq!(bench.session.poll_timeout(), None);
    bench.run(ms(10_000));
    assert_eq!(bench.take(), []);
}

#[test]
fn admin_down_of_a_neighbour_that_nobody_heard_is_over_at_once() {
    let mut bench = Bench::new(50, 3);
    bench.run(ms(1_500));
    bench.take();
    bench.change(Session::admin_down);
    assert!(bench.left);
    assert_eq!(bench.take(), []);
}

#[test]
fn what_was_admin_down_comes_back_when_it_is_wanted_again() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.change(Session::admin_down);
    bench.run(ms(60));
    bench.change(Session::admin_up);
    assert_eq!((bench.session.state(), bench.session.diagnostic()), (Down, Diagnostic::NONE));
    bench.hear(packet(Down, 1_000, 50));
    bench.hear(packet(Init, 1_000, 50));
    assert_eq!(bench.session.state(), Up);
    bench.run(ms(140));
    assert!(!bench.left);
}

/// Sections 6.2 and 6.8.15: the neighbour must take it for a failure, so Down and never AdminDown, and it stays.
#[test]
pub(crate) fn a_data_plane_that_does_not_serve_holds_the_session_down_until_it_does() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.take_states();
    bench.change(|s, now| s.set_serving(now, false));
    assert_eq!(bench.take_states(), [(Up, Down, Diagnostic::DATA_PLANE)]);
    bench.run_hearing(ms(10_000), ms(500), packet(Down, 1_000, 50));
    bench.run_hearing(ms(10_000), ms(500), packet(Init, 1_000, 50));
    assert_eq!(bench.take_states(), []);
    let sent = bench.take();
    assert_eq!(sent.iter().take(3).map(|(at, _)| *at).collect::<Vec<_>>(), [0, 50, 100]);
    assert!(sent.iter().all(|(_, p)| p.state == Down && p.diagnostic == Diagnostic::DATA_PLANE));
    bench.change(|s, now| s.set_serving(now, true));
    bench.hear(packet(Init, 1_000, 50));
    assert_eq!(bench.session.state(), Up);
}

/// MetalLB pull request 2454 and its like: the session is the same one.
#[test]
fn new_timers_leave_state_and_discriminator_alone() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.take_states();
    for (interval, multiplier) in [(300, 3), (50, 5), (10, 3), (1_000, 2)] {
        bench.change(|s, now| s.set_timers(now, timers(interval, multiplier)));
        bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
        bench.hear(Control { final_: true, ..packet(Up, 50, 50) });
    }
    assert_eq!(bench.take_states(), []);
    assert_eq!((bench.session.tx_interval(), bench.session.discriminator().get()), (ms(1_000), OURS));
}

#[test]
fn a_new_multiplier_is_told_at_once() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.change(|s, now| s.set_timers(now, timers(50, 5)));
    assert_eq!(bench.take().iter().map(|(_, p)| (p.multiplier, p.poll)).collect::<Vec<_>>(), [(5, false)]);
}

#[test]
fn a_neighbour_that_restarts_is_a_failure_and_then_a_new_neighbour() {
    let mut bench = Bench::up(50, 3, (50, 50));
    bench.take_states();
    let new = Control { my_discriminator: 99, your_discriminator: 0, ..packet(Down, 1_000, 50) };
    bench.hear(new);
    assert_eq!(bench.take_states(), [(Up, Down, Diagnostic::NEIGHBOR_DOWN)]);
    bench.hear(new);
    assert_eq!(bench.take_states(), [(Down, Init, Diagnostic::NEIGHBOR_DOWN)]);
    assert_eq!(bench.take().last().map(|(_, p)| p.your_discriminator), Some(99));
}

//! The drills and what is expected of them: one table.

use crate::clock::{MS, Ns};
use crate::faults::Fault;

/// When an expectation applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// With the peers' channel.
    Channel,
    /// Without it (or for a subject that has none).
    Alone,
}

/// What is compared: of all valid runs of a drill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The median.
    Median,
    /// The value that 99 of 100 don't exceed; of few runs the largest.
    P99,
    /// The largest: things that must never happen.
    Max,
}

/// One figure that must not be exceeded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expect {
    /// The figure's key in a run.
    pub key: &'static str,
    /// The largest value allowed.
    pub figure: f64,
    /// When it applies.
    pub when: When,
    /// Of which statistic.
    pub of: Of,
    /// A count, or a time that noise doesn't stretch: the CI limit is the figure and its allowance.
    pub count: bool,
    /// What CI allows such a one beyond its figure.
    pub allowance: f64,
    /// The figure must exist: a run in which it was never seen (no takeover, say) fails.
    pub must: bool,
}

impl Expect {
    pub(crate) const fn ms(key: &'static str, figure: f64) -> Self {
        Self { key, figure, when: When::Always, of: Of::Median, count: false, allowance: 0.0, must: false }
    }

    pub(crate) const fn count(key: &'static str, figure: f64) -> Self {
        Self { key, figure, when: When::Always, of: Of::Median, count: true, allowance: 0.0, must: false }
    }

    const fn when(self, when: When) -> Self {
        Self { when, ..self }
    }

    pub(crate) const fn must(self) -> Self {
        Self { must: true, ..self }
    }

    pub(crate) const fn of(self, of: Of) -> Self {
        Self { of, ..self }
    }

    pub(crate) const fn allow(self, allowance: f64) -> Self {
        Self { allowance, ..self }
    }

    /// The limit: the figure itself when strict (and for counts), else three times the figure + 50 ms, because
    /// machines are shared.
    #[must_use]
    pub fn limit(&self, strict: bool) -> f64 {
        match (strict, self.count) {
            (true, _) => self.figure,
            (false, true) => self.figure + self.allowance,
            (false, false) => 3.0 * self.figure + 50.0,
        }
    }

    /// Whether it applies to a run with or without the channel.
    #[must_use]
    pub fn applies(&self, channel: bool) -> bool {
        match self.when {
            When::Always => true,
            When::Channel => channel,
            When::Alone => !channel,
        }
    }
}

/// One drill.
#[derive(Debug, Clone, Copy)]
pub struct Drill {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is done.
    pub fault: Fault,
    /// One line about it.
    pub about: &'static str,
    /// How long it is left before the repair.
    pub hold: Ns,
    /// What is expected.
    pub expect: &'static [Expect],
    /// The figures that tell its story: key, and what a table calls it.
    pub shows: &'static [(&'static str, &'static str)],
    /// Adverts' interval, if it isn't the usual one.
    pub adverts: Option<Ns>,
}

const BLIND: &[Expect] = &[Expect::ms("blind_excess_ms", 5.0).must()];

/// Blind takeover at one advert interval.
const fn blind(name: &'static str, about: &'static str, adverts: Ns) -> Drill {
    Drill {
        name,
        fault: Fault::SilentDrop,
        about,
        hold: 5 * adverts + 500 * MS,
        expect: BLIND,
        shows: &[("blind_excess_ms", "beyond 3 intervals + skew, ms"), ("takeover_ms", "takeover, ms")],
        adverts: Some(adverts),
    }
}

/// Two answerers: one advert interval + 20 ms (DESIGN section 4, invariant 1), seen with probes 10 ms apart.
const ONE_OWNER: Expect = Expect { of: Of::Max, ..Expect::ms("dual_holder_ms", 130.0) };

/// A planned move loses nothing; on a slow machine up to two requests are in flight when it happens.
const NOTHING_FAILS: Expect = Expect { allowance: 2.0, ..Expect::count("failed", 0.0) };

/// Every drill.
pub static DRILLS: &[Drill] = &[
    Drill {
        name: "balancer-killed",
        fault: Fault::BalancerKilled,
        about: "SIGKILL to the balancer on the Active",
        hold: 1500 * MS,
        expect: &[
            Expect::ms("outage_ms", 20.0).when(When::Channel),
            Expect::ms("outage_ms", 30.0).when(When::Alone),
            ONE_OWNER,
        ],
        shows: &[("outage_ms", "outage, ms"), ("failed", "failed requests")],
        adverts: None,
    },
    Drill {
        name: "balancer-hung",
        fault: Fault::BalancerHung,
        about: "SIGSTOP to the balancer on the Active",
        hold: 2000 * MS,
        expect: &[Expect::ms("outage_ms", 380.0), ONE_OWNER],
        shows: &[("outage_ms", "outage, ms")],
        adverts: None,
    },
    Drill {
        name: "cable-cut",
        fault: Fault::CableCut,
        about: "the Active's link at the switch goes down",
        hold: 1500 * MS,
        expect: &[
            Expect::ms("outage_ms", 40.0).when(When::Channel),
            Expect::ms("outage_ms", 290.0).when(When::Alone),
            Expect::ms("takeover_ms", 290.0).must(),
            ONE_OWNER,
        ],
        shows: &[("outage_ms", "outage, ms")],
        adverts: None,
    },
    Drill {
        name: "silent-drop",
        fault: Fault::SilentDrop,
        about: "the switch drops the Active's frames for 1 s, then heals",
        hold: 1000 * MS,
        expect: &[
            // The drill did something: three intervals and the skew time.
            Expect::ms("takeover_ms", 310.0).must(),
            // None, but that a request may be under way in the moment of the move, and rarely is.
            Expect { allowance: 10.0, ..Expect::count("failback_outage_ms", 0.0) },
            // On a slow machine an answer takes longer, so more are under way: five, at 200 a second and 25 ms each.
            Expect { of: Of::Max, allowance: 4.0, ..Expect::count("failback_in_flight", 1.0) },
            Expect { of: Of::Max, allowance: 2.0, ..Expect::count("failback_lost", 0.0) },
            Expect { figure: 120.0, of: Of::Median, ..ONE_OWNER },
            Expect::ms("one_owner_ms", 120.0),
        ],
        shows: &[("one_owner_ms", "heal → one owner, ms"), ("failback_outage_ms", "outage after the heal, ms")],
        adverts: None,
    },
    Drill {
        name: "backup-dropped",
        fault: Fault::BackupDropped,
        about: "the switch drops the Backup's frames for 1 s, then heals: the clients' owner must stay",
        hold: 1000 * MS,
        expect: &[
            Expect::count("failed", 0.0),
            Expect::count("broken_flows", 0.0),
            Expect { allowance: 10.0, ..Expect::count("failback_outage_ms", 0.0) },
            Expect { figure: 120.0, of: Of::Median, ..ONE_OWNER },
            Expect::ms("one_owner_ms", 120.0),
        ],
        shows: &[("failed", "failed requests"), ("one_owner_ms", "heal → one owner, ms")],
        adverts: None,
    },
    Drill {
        name: "worker-killed",
        fault: Fault::WorkerKilled,
        about: "SIGKILL to the worker, which starts again",
        hold: 1500 * MS,
        expect: &[Expect::count("role_changes", 0.0), Expect::ms("outage_ms", 100.0), ONE_OWNER],
        shows: &[("role_changes", "role changes"), ("outage_ms", "outage, ms")],
        adverts: None,
    },
    Drill {
        name: "worker-restarted",
        fault: Fault::WorkerRestarted,
        about: "the operator replaces the worker",
        hold: 1500 * MS,
        expect: &[
            Expect::count("role_changes", 0.0),
            Expect::count("failed", 0.0),
            Expect::count("broken_flows", 0.0),
            ONE_OWNER,
        ],
        shows: &[("role_changes", "role changes"), ("failed", "failed requests")],
        adverts: None,
    },
    Drill {
        name: "worker-lost",
        fault: Fault::WorkerLost,
        about: "SIGKILL to the worker, which can't start again",
        hold: 2000 * MS,
        expect: &[Expect::ms("address_gone_ms", 250.0).must(), Expect::ms("peer_active_ms", 300.0).must(), ONE_OWNER],
        shows: &[("address_gone_ms", "address gone after, ms"), ("peer_active_ms", "peer Active after, ms")],
        adverts: None,
    },
    Drill {
        name: "worker-hung",
        fault: Fault::WorkerHung,
        about: "SIGSTOP to the worker",
        hold: 2500 * MS,
        expect: &[Expect::ms("peer_active_ms", 310.0).must(), Expect::ms("address_gone_ms", 450.0).must()],
        shows: &[("peer_active_ms", "peer Active after, ms"), ("address_gone_ms", "address gone after, ms")],
        adverts: None,
    },
    Drill {
        name: "agent-killed",
        fault: Fault::AgentKilled,
        about: "SIGKILL to keeper and worker; the balancer lives on",
        hold: 4500 * MS,
        expect: &[
            Expect::ms("outage_ms", 290.0),
            // The address's lifetime, not the machine, sets this: three times as much would be no expectation.
            Expect { allowance: 500.0, ..Expect::count("one_answerer_ms", 3000.0).must() },
            Expect { allowance: 500.0, ..Expect::count("dual_holder_ms", 3000.0) },
        ],
        shows: &[("outage_ms", "outage, ms"), ("one_answerer_ms", "one answerer after, ms")],
        adverts: None,
    },
    Drill {
        name: "planned-drain",
        fault: Fault::PlannedDrain,
        about: "the operator drains the Active",
        hold: 1500 * MS,
        expect: &[NOTHING_FAILS, Expect::ms("takeover_ms", 1000.0).must(), ONE_OWNER],
        shows: &[("failed", "failed requests")],
        adverts: None,
    },
    Drill {
        name: "failback",
        fault: Fault::Failback,
        about: "the drained node of higher priority comes back",
        hold: 2500 * MS,
        expect: &[NOTHING_FAILS, Expect::ms("takeover_ms", 2500.0).must(), ONE_OWNER],
        shows: &[("failed", "failed requests")],
        adverts: None,
    },
    Drill {
        name: "address-deleted",
        fault: Fault::AddressDeleted,
        about: "someone runs `ip addr del` on the VIP",
        hold: 1000 * MS,
        expect: &[Expect::ms("address_back_ms", 50.0).must(), Expect::count("role_changes", 0.0), ONE_OWNER],
        shows: &[("address_back_ms", "address back after, ms"), ("failed", "failed requests")],
        adverts: None,
    },
    blind("blind-1s", "the switch drops the Active's frames, adverts every second", 1000 * MS),
    blind("blind-100ms", "the switch drops the Active's frames, adverts every 100 ms", 100 * MS),
    blind("blind-10ms", "the switch drops the Active's frames, adverts every 10 ms", 10 * MS),
    Drill {
        name: "busy-host",
        fault: Fault::BusyHost,
        about: "eight busy loops on every processor's back, adverts every 50 ms: nobody takes over",
        hold: 8000 * MS,
        expect: &[Expect::count("role_changes", 0.0)],
        shows: &[("role_changes", "role changes"), ("advert_late_max_ms", "latest advert, ms late")],
        adverts: Some(50 * MS),
    },
    Drill {
        name: "no-fault",
        fault: Fault::NoFault,
        about: "nothing happens, and nothing may be lost",
        hold: 2000 * MS,
        expect: TWIN,
        shows: &[("failed", "failed requests")],
        adverts: None,
    },
];

/// What every drill's twin, in which the fault is left out, must report.
pub const TWIN: &[Expect] = &[
    Expect::count("failed", 0.0),
    Expect::count("broken_flows", 0.0),
    Expect::count("role_changes", 0.0),
    Expect::count("noise_failed", 0.0),
    Expect::count("noise_role_changes", 0.0),
    Expect { of: Of::Max, count: true, ..Expect::ms("dual_holder_ms", 0.0) },
];

/// The drill of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Drill> {
    DRILLS.iter().find(|d| d.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_figure_when_strict_and_three_times_it_plus_fifty_in_ci() {
        let e = Expect::ms("outage_ms", 20.0);
        assert_eq!((e.limit(true), e.limit(false)), (20.0, 110.0));
        let c = Expect::count("failed", 0.0);
        assert_eq!((c.limit(true), c.limit(false)), (0.0, 0.0));
    }

    #[test]
    fn every_drill_expects_something_with_and_without_the_channel() {
        for d in DRILLS {
            for channel in [true, false] {
                assert!(d.expect.iter().any(|e| e.applies(channel)), "{}", d.name);
            }
            assert!(std::ptr::eq(find(d.name).expect("found by its own name"), d));
        }
    }
}

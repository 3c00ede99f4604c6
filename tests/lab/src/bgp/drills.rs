//! The BGP drills and what is expected of them.

use super::router;
use super::run::{NextHops, Options};
use super::speaker::Fault;
use crate::clock::{MS, Ns};
use crate::drills::{Expect, Of};

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
    /// The sessions have BFD, 50 ms × 3.
    pub bfd: bool,
}

/// Every drill.
pub static DRILLS: &[Drill] = &[
    Drill {
        name: "bgp-balancer-killed",
        fault: Fault::BalancerKilled,
        about: "SIGKILL to the balancer of one of the nodes that announce the VIP",
        hold: 1000 * MS,
        bfd: false,
    },
    Drill {
        name: "bgp-balancer-hung",
        fault: Fault::BalancerHung,
        about: "SIGSTOP to the balancer of one of the nodes",
        hold: 2000 * MS,
        bfd: false,
    },
    Drill {
        name: "bgp-host-frozen",
        fault: Fault::HostFrozen,
        about: "SIGSTOP to everything on one of the nodes, BFD 50 ms × 3",
        hold: 2000 * MS,
        bfd: true,
    },
    Drill {
        name: "bgp-cable-cut",
        fault: Fault::CableCut,
        about: "one node's link at the switch goes down, the router's doesn't; BFD 50 ms × 3",
        hold: 1500 * MS,
        bfd: true,
    },
    Drill {
        name: "bgp-worker-killed",
        fault: Fault::WorkerKilled,
        about: "SIGKILL to the worker of one node, which starts again: the router's table may not notice",
        hold: 3000 * MS,
        bfd: true,
    },
    Drill {
        name: "bgp-worker-restarted",
        fault: Fault::WorkerRestarted,
        about: "the operator replaces the worker of one node: the router's table may not notice",
        hold: 3000 * MS,
        bfd: true,
    },
    Drill {
        name: "bgp-drain",
        fault: Fault::Drain,
        about: "the operator drains one node",
        hold: 1000 * MS,
        bfd: false,
    },
    Drill {
        name: "bgp-router-restarted",
        fault: Fault::RouterRestarted,
        about: "the router's daemons are killed and start again; its kernel keeps forwarding",
        hold: 500 * MS,
        bfd: false,
    },
];

impl Drill {
    /// What is expected when it is run so. A router's own time is in the figure: FRR batches for about 60 ms.
    #[must_use]
    pub fn expect(&self, o: &Options) -> Vec<Expect> {
        let bird = o.router == router::Kind::Bird;
        let by = |of_bird: f64, of_frr: f64| if bird { of_bird } else { of_frr };
        // BIRD waits for nothing: BFD's detection time bounds every run.
        let detected = if bird && o.strict { Of::P99 } else { Of::Median };
        // Nobody but the node that failed: what flows the router moves is counted apart.
        let lost_elsewhere = Expect::count("failed_elsewhere", 0.0).of(Of::Max).allow(2.0);
        // A node announces again when it serves, not before.
        let returned = Expect::count("failback_lost", 0.0).allow(2.0);
        let mut all = match self.fault {
            Fault::BalancerKilled => vec![
                // The kernel tells of a process's end when all is given back. HAProxy's, measured by a lone real-time
                // watcher in sets of 15 runs: median 2.2 to 3.1 ms, longest 3.3 to 6.9 ms. The tail is asked of what
                // follows, which is ours.
                Expect::ms("withdraw_ms", 5.0).must(),
                Expect::ms("withdraw_after_exit_ms", 5.0).of(Of::P99).must(),
                Expect::ms("fib_ms", by(8.0, 70.0)).must(),
                Expect::count("sessions_ended", 0.0).of(Of::Max),
                lost_elsewhere,
            ],
            // A check every 100 ms, each with 100 ms to answer, the second that fails decides.
            Fault::BalancerHung => vec![
                Expect::ms("fib_ms", by(380.0, 450.0)).must(),
                Expect::count("sessions_ended", 0.0).of(Of::Max),
                lost_elsewhere,
            ],
            Fault::HostFrozen | Fault::CableCut => {
                vec![Expect::ms("fib_ms", by(160.0, 230.0)).of(detected).must(), lost_elsewhere]
            }
            Fault::WorkerKilled | Fault::WorkerRestarted => vec![
                Expect::count("fib_events", 0.0).of(Of::Max),
                Expect::count("bfd_flaps", 0.0).of(Of::Max),
                Expect::count("failed", 0.0).of(Of::Max),
                Expect::count("broken_flows", 0.0).of(Of::Max),
                Expect::ms("announced_ms", 1000.0).must(),
            ],
            Fault::Drain => vec![
                Expect::count("failed_lost", 0.0).allow(1.0),
                // The community, 2 s until the withdrawal, and the router's own time: what was configured, not the machine.
                Expect::count("fib_ms", 2500.0).allow(1500.0).must(),
                Expect::count("sessions_ended", 0.0).of(Of::Max),
            ],
            // It forwards all the while, and its table stays as it was. FRR writes each route again, as it is.
            Fault::RouterRestarted => vec![
                Expect::ms("announced_ms", 3000.0).must(),
                Expect::count("failed", 0.0).of(Of::Max),
                Expect::count("broken_flows", 0.0).of(Of::Max),
                Expect::count("fib_changes", 0.0).of(Of::Max),
                Expect::count("fib_events", by(0.0, 1.0)).of(Of::Max),
            ],
        };
        if self.fault != Fault::RouterRestarted {
            all.push(returned);
        }
        if o.next_hops == NextHops::Resilient {
            all.push(Expect::count("broken_elsewhere", 0.0).of(Of::Max));
        }
        all
    }
}

/// What every drill's twin, in which the fault is left out, must report.
pub static TWIN: &[Expect] = &[
    Expect::count("failed", 0.0).of(Of::Max),
    Expect::count("broken_flows", 0.0).of(Of::Max),
    Expect::count("fib_events", 0.0).of(Of::Max),
    Expect::count("sessions_ended", 0.0).of(Of::Max),
    Expect::count("bfd_flaps", 0.0).of(Of::Max),
    Expect::count("noise_failed", 0.0).of(Of::Max),
    Expect::count("noise_fib_events", 0.0).of(Of::Max),
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
    fn every_drill_expects_something_with_each_router_and_all_names_begin_alike() {
        for d in DRILLS {
            assert!(d.name.starts_with("bgp-"), "{}", d.name);
            for router in [router::Kind::Bird, router::Kind::Frr] {
                assert!(!d.expect(&Options { router, ..Options::default() }).is_empty(), "{}", d.name);
            }
            assert!(std::ptr::eq(find(d.name).expect("found by its own name"), d));
        }
    }

    #[test]
    fn every_single_loss_of_a_frozen_host_counts_where_figures_are_strict_and_the_router_waits_for_nothing() {
        let d = find("bgp-host-frozen").expect("in the table");
        let of = |router, strict| {
            let all = d.expect(&Options { router, strict, ..Options::default() });
            all.iter().find(|e| e.key == "fib_ms").expect("what it is about").of
        };
        assert_eq!((of(router::Kind::Bird, true), of(router::Kind::Bird, false)), (Of::P99, Of::Median));
        assert_eq!(of(router::Kind::Frr, true), Of::Median);
    }

    #[test]
    fn resilient_next_hops_keep_the_flows_of_all_others() {
        let with = |next_hops| {
            let o = Options { next_hops, ..Options::default() };
            DRILLS.iter().filter(|d| d.expect(&o).iter().any(|e| e.key == "broken_elsewhere")).count()
        };
        assert_eq!((with(NextHops::Classic), with(NextHops::Resilient)), (0, DRILLS.len()));
    }
}

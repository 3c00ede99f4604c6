//! The drills of flows, and what is expected of them.

use crate::clock::{MS, Ns};
use crate::drills::{Expect, Of};

/// How the VIP is made to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The owner's power goes: programs, cables and connection table. It comes back empty.
    Kill,
    /// The owner's cable to the clients is pulled; its kernel keeps what it knows, and that grows old.
    Cable,
    /// The owner gives the VIP away in order.
    Move,
    /// None: it is the replication that is hurt, in one way after the other.
    Tables,
}

/// One drill: established flows while the VIP goes from lb1 to lb2, back, and to lb2 again.
#[derive(Debug, Clone, Copy)]
pub struct Drill {
    /// Its name on the command line.
    pub name: &'static str,
    /// How the VIP moves.
    pub fault: Fault,
    /// One line about it.
    pub about: &'static str,
    /// What is expected.
    pub expect: &'static [Expect],
}

/// Every flow lives, with all its bytes.
const NOTHING_BREAKS: [Expect; 3] = [
    Expect::count("broken_flows", 0.0).of(Of::Max),
    Expect::count("hash_errors", 0.0).of(Of::Max),
    Expect::count("bulk_short", 0.0).of(Of::Max),
];

/// A crash: the client's stall follows TCP's back-off, not the outage.
const CRASH: &[Expect] =
    &[NOTHING_BREAKS[0], NOTHING_BREAKS[1], NOTHING_BREAKS[2], Expect::ms("stall_excess_ms", 250.0).of(Of::Max)];

const PLANNED: &[Expect] =
    &[NOTHING_BREAKS[0], NOTHING_BREAKS[1], NOTHING_BREAKS[2], Expect::ms("stall_ms", 300.0).of(Of::Max)];

/// After every fault, each of which must be seen to strike.
const TABLES: &[Expect] = &[
    Expect::count("unequal", 0.0).of(Of::Max),
    Expect::count("foreign_deletes_applied", 0.0).of(Of::Max),
    Expect::count("missed", 0.0).of(Of::Max),
];

/// Every drill.
pub static DRILLS: &[Drill] = &[
    Drill {
        name: "flows-kill",
        fault: Fault::Kill,
        about: "established flows; the owner's power goes, three times, from one host to the other and back",
        expect: CRASH,
    },
    Drill {
        name: "flows-cable",
        fault: Fault::Cable,
        about: "established flows; the owner's link to the clients goes down, likewise",
        expect: CRASH,
    },
    Drill {
        name: "flows-move",
        fault: Fault::Move,
        about: "established flows; the owner is drained, likewise",
        expect: PLANNED,
    },
    Drill {
        name: "flows-tables",
        fault: Fault::Tables,
        about: "the replication is hurt in ten ways, one after the other, while flows come and go: both tables equal after each",
        expect: TABLES,
    },
];

/// Without a fault the tables stay equal, and no fault is seen to strike.
pub const TABLES_TWIN: &[Expect] = &[
    Expect::count("unequal", 0.0).of(Of::Max),
    Expect::count("foreign_deletes_applied", 0.0).of(Of::Max),
    Expect::count("struck", 0.0).of(Of::Max),
];

/// With nothing replicated no two tables can be equal.
pub const TABLES_NONE: &[Expect] = &[Expect::count("equal", 0.0).of(Of::Max).must()];

/// What the twin, in which nothing happens, must report.
pub const TWIN: &[Expect] =
    &[NOTHING_BREAKS[0], NOTHING_BREAKS[1], NOTHING_BREAKS[2], Expect::ms("stall_ms", 200.0).of(Of::Max)];

/// With nothing replicated and strict rules no TCP connection can live: a drill that finds one alive proves nothing.
pub const NONE_STRICT: &[Expect] = &[Expect::count("survived_tcp", 0.0).of(Of::Max).must()];

/// How long the heir may lack flows before a move, after all was settled.
pub const READY: Ns = 20_000 * MS;

/// The drill of that name; `flows-all`: every one in which the VIP moves.
#[must_use]
pub fn find(name: &str) -> Vec<&'static Drill> {
    DRILLS.iter().filter(|d| d.name == name || (name == "flows-all" && d.fault != Fault::Tables)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_is_found_by_its_own_name_and_all_by_theirs() {
        for d in DRILLS {
            assert!(matches!(find(d.name)[..], [one] if std::ptr::eq(one, d)), "{}", d.name);
        }
        assert_eq!(find("flows-all").len(), DRILLS.len() - 1);
        assert!(find("flows").is_empty());
    }

    #[test]
    fn no_flow_may_break_in_any_run_whatever_the_machine() {
        for d in DRILLS.iter().filter(|d| d.fault != Fault::Tables) {
            for key in ["broken_flows", "hash_errors", "bulk_short"] {
                let e = d.expect.iter().find(|e| e.key == key).expect("expected of every drill");
                assert_eq!((e.limit(false), e.of), (0.0, Of::Max), "{}: {key}", d.name);
            }
        }
    }
}

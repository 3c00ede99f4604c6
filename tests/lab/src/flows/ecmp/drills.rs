//! The drills of flows behind a router, and what is expected of them.

use crate::clock::{MS, Ns};
use crate::drills::{Expect, Of};

/// How the node leaves, and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is drained; later it takes part again.
    Drain,
    /// Its power goes: programs, cables and connection table. It comes back empty.
    Kill,
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
    /// It comes back in the same run.
    pub returns: bool,
    /// What is expected.
    pub expect: &'static [Expect],
}

/// Flows that are younger than this when their node goes may not be at the others yet: they are counted apart.
pub const LAG: Ns = 50 * MS;

const BYTES: Expect = Expect::count("hash_errors", 0.0).of(Of::Max);
const RETURN: Expect = Expect::count("return_broken", 0.0).of(Of::Max);

/// Every drill.
pub static DRILLS: &[Drill] = &[
    Drill {
        name: "flows-ecmp-drain",
        fault: Fault::Drain,
        about: "NAT'd flows over nodes behind a router (ECMP); one node is drained, and takes part again",
        returns: true,
        expect: &[
            Expect::count("broken_flows", 0.0).of(Of::Max),
            Expect::count("broken_young", 0.0).of(Of::Max),
            RETURN,
            BYTES,
        ],
    },
    Drill {
        name: "flows-ecmp-kill",
        fault: Fault::Kill,
        about: "NAT'd flows over nodes behind a router (ECMP); one node's power goes",
        returns: false,
        expect: &[Expect::count("broken_percent", 0.1).of(Of::Max), BYTES],
    },
    Drill {
        name: "flows-ecmp-return",
        fault: Fault::Kill,
        about: "as flows-ecmp-kill; the node comes back, with nothing of what it had",
        returns: true,
        expect: &[Expect::count("broken_percent", 0.1).of(Of::Max), RETURN, BYTES],
    },
];

/// What the twin, in which nothing happens, must report.
pub const TWIN: &[Expect] =
    &[Expect::count("broken_flows", 0.0).of(Of::Max), Expect::count("broken_young", 0.0).of(Of::Max), RETURN, BYTES];

/// With nothing replicated and strict rules no flow of the node that leaves can live: a drill that finds one alive proves
/// nothing.
pub const NONE_STRICT: &[Expect] = &[Expect::count("survived_leaving", 0.0).of(Of::Max).must()];

/// The drill of that name; `flows-ecmp`: every one.
#[must_use]
pub fn find(name: &str) -> Vec<&'static Drill> {
    DRILLS.iter().filter(|d| d.name == name || name == "flows-ecmp").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_is_found_by_its_own_name_and_all_by_theirs() {
        for d in DRILLS {
            assert!(matches!(find(d.name)[..], [one] if std::ptr::eq(one, d)), "{}", d.name);
        }
        assert_eq!(find("flows-ecmp").len(), DRILLS.len());
        assert!(find("flows").is_empty());
    }

    #[test]
    fn the_issues_own_numbers_are_the_limits_whatever_the_machine() {
        let limit = |name: &str, key: &str| {
            let all = find(name).first().expect("a drill").expect;
            let e = all.iter().find(|e| e.key == key).expect("expected");
            (e.limit(false), e.of)
        };
        assert_eq!(limit("flows-ecmp-drain", "broken_flows"), (0.0, Of::Max));
        assert_eq!(limit("flows-ecmp-kill", "broken_percent"), (0.1, Of::Max));
        for d in DRILLS {
            assert_eq!(limit(d.name, "hash_errors"), (0.0, Of::Max), "{}", d.name);
            let of_return = d.expect.iter().find(|e| e.key == "return_broken").map(|e| (e.limit(false), e.of));
            assert_eq!(of_return, d.returns.then_some((0.0, Of::Max)), "{}", d.name);
        }
    }
}

//! What many virtual routers cost: processor time, memory and time to settle, and that none is lost on the way.
//!
//! Three questions, each asked of Holdfast and of keepalived in the same run ([`Case`]):
//!
//! - `idle`: a pair at rest with 1 to 1,000 instances at 100 ms: what does it use, and how soon did it settle?
//! - `promotion`: one VIP with 500 addresses at 20 ms: do adverts go on while the new owner adds and announces them?
//! - `flap`: 250 instances on 250 interfaces, and the trunk under them flaps: does each reach the right state?

mod cases;
mod network;
mod observer;
mod pair;

pub use cases::{Flap, Host, Idle, Promotion};

use crate::env;
use crate::fabric::Lb;
use crate::record::Provenance;
use crate::subject::SubjectKind;
use anyhow::Result;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// One question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Cost of a pair at rest.
    Idle,
    /// A VIP with many addresses changes its owner.
    Promotion,
    /// The trunk under many interfaces flaps.
    Flap,
}

/// How it is asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which subjects, in this order.
    pub subjects: Vec<SubjectKind>,
    /// Which questions.
    pub cases: Vec<Case>,
    /// idle: sizes.
    pub instances: Vec<u16>,
    /// idle: interfaces; else as few as can carry the VRIDs.
    pub segments: Option<u16>,
    /// idle: how long is measured.
    pub seconds: u32,
    /// How often each.
    pub repeat: u16,
    /// With the peers' channel.
    pub channel: bool,
    /// The agent's binary, if given.
    pub holdfast: Option<PathBuf>,
    /// Where the results are written, if anywhere.
    pub results: Option<PathBuf>,
    /// Keep configurations and logs.
    pub keep: bool,
}

/// What a pair is made of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Virtual routers.
    pub instances: u16,
    /// Interfaces that they are spread over, evenly.
    pub segments: u16,
    /// Addresses of each.
    pub addresses: u16,
    /// Advert interval, ms.
    pub interval_ms: u32,
}

/// One virtual router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its number, from 0.
    pub number: u16,
    /// Its interface, `eth<segment>`.
    pub segment: u16,
    /// Its VRID.
    pub vrid: u8,
    /// Its addresses.
    pub addresses: Vec<Ipv4Addr>,
}

/// VRIDs on one interface.
const VRIDS: u16 = 255;

impl Shape {
    /// As few interfaces as can carry them.
    #[must_use]
    pub fn of(instances: u16) -> Self {
        Self { instances, segments: instances.div_ceil(VRIDS).max(1), addresses: 1, interval_ms: 100 }
    }

    /// All of them. Addresses of segment `s` lie in the /16 of [`host`].
    #[must_use]
    pub fn routers(&self) -> Vec<Instance> {
        let mut taken = vec![0_u16; usize::from(self.segments)];
        let each = (0..self.instances).map(|number| {
            let segment = number % self.segments.max(1);
            let place = taken.get_mut(usize::from(segment)).map_or(0, |t| std::mem::replace(t, *t + 1));
            let addresses = (0..self.addresses).map(|a| {
                let n = place * self.addresses + a;
                let [x, y, _, _] = host(segment, 0).octets();
                Ipv4Addr::new(x, y, 1 + (n / 250) as u8, 1 + (n % 250) as u8)
            });
            Instance { number, segment, vrid: (place + 1).min(VRIDS) as u8, addresses: addresses.collect() }
        });
        each.collect()
    }
}

/// Host `n` on a segment: 1 and 2 are the load balancers', 9 the observer's.
fn host(segment: u16, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(11 + (segment / 250) as u8, 1 + (segment % 250) as u8, 0, n)
}

/// `lb`'s own address on a segment.
fn own(segment: u16, lb: Lb) -> Ipv4Addr {
    host(segment, 1 + u8::try_from(lb.index()).unwrap_or(0))
}

/// Asks everything, prints a table line for each answer as it comes. Returns whether all was as it should be: other
/// subjects than Holdfast are measured, not judged.
///
/// # Errors
/// The machine lacks something, or the results can't be written.
pub fn scale(o: &Options) -> Result<bool> {
    env::require_basics()?;
    if o.subjects.contains(&SubjectKind::Holdfast) {
        env::holdfast(o.holdfast.as_deref())?;
    }
    let provenance = Provenance::of(Path::new("."));
    let (mut units, mut pass) = (Vec::<Value>::new(), true);
    for case in &o.cases {
        println!("{}", cases::heading(*case));
        let shapes: Vec<Shape> = match case {
            Case::Idle => o
                .instances
                .iter()
                .map(|n| Shape { segments: o.segments.unwrap_or(0).max(Shape::of(*n).segments), ..Shape::of(*n) })
                .collect(),
            Case::Promotion => vec![Shape { addresses: 500, interval_ms: 20, ..Shape::of(1) }],
            Case::Flap => vec![Shape { segments: 250, ..Shape::of(250) }],
        };
        for shape in shapes {
            let mut costs: Vec<(SubjectKind, f64)> = Vec::new();
            for _ in 0..o.repeat {
                for subject in &o.subjects {
                    let answer = cases::ask(*case, *subject, &shape, o);
                    let ours = *subject == SubjectKind::Holdfast;
                    let unit = match answer {
                        Ok(answer) => {
                            println!("{}", answer.line());
                            pass &= answer.pass() || !ours;
                            costs.extend(answer.cost().map(|cost| (*subject, cost)));
                            json!({"pass": answer.pass(), "report": answer.json()})
                        }
                        Err(e) => {
                            println!("| {subject:?} | {} | {e:#} |", shape.instances);
                            pass &= !ours;
                            json!({"pass": false, "report": {"subject": format!("{subject:?}"), "error": format!("{e:#}")}})
                        }
                    };
                    units.push(unit);
                }
            }
            if let Some((ours, theirs)) = compared(&costs) {
                println!("  {} instances: {ours:.2} % beside keepalived's {theirs:.2} %", shape.instances);
                pass &= ours <= theirs;
                let report = json!({"case": "compared", "instances": shape.instances, "active_cpu_percent": ours, "keepalived": theirs});
                units.push(json!({"pass": ours <= theirs, "report": report}));
            }
        }
        println!();
    }
    if let Some(directory) = &o.results {
        provenance.write(directory, "scale", "scale", pass, &units)?;
    }
    Ok(pass)
}

/// What both cost, the median of each, if both were measured.
fn compared(costs: &[(SubjectKind, f64)]) -> Option<(f64, f64)> {
    let median = |subject: SubjectKind| {
        let mut all: Vec<f64> = costs.iter().filter(|(s, _)| *s == subject).map(|(_, cost)| *cost).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    median(SubjectKind::Holdfast).zip(median(SubjectKind::Keepalived))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_router_has_its_own_place_on_the_wire_and_its_own_addresses() {
        for shape in [Shape::of(1), Shape::of(255), Shape::of(1000), Shape { segments: 250, ..Shape::of(250) }] {
            let routers = shape.routers();
            assert_eq!(routers.len(), usize::from(shape.instances));
            let places: BTreeSet<_> = routers.iter().map(|r| (r.segment, r.vrid)).collect();
            let addresses: BTreeSet<_> = routers.iter().flat_map(|r| &r.addresses).collect();
            assert_eq!((places.len(), addresses.len()), (routers.len(), routers.len()));
        }
        let big = Shape { addresses: 500, ..Shape::of(1) }.routers().remove(0).addresses;
        assert_eq!(big.iter().collect::<BTreeSet<_>>().len(), 500);
    }

    #[test]
    fn interfaces_are_as_few_as_can_carry_the_vrids() {
        assert_eq!([1, 255, 256, 1000].map(|n| Shape::of(n).segments), [1, 1, 2, 4]);
    }

    #[test]
    fn medians_are_compared_and_only_where_both_were_measured() {
        let (ours, theirs) = (SubjectKind::Holdfast, SubjectKind::Keepalived);
        assert_eq!(compared(&[(ours, 3.0), (ours, 1.0), (theirs, 5.0), (ours, 2.0)]), Some((2.0, 5.0)));
        assert_eq!(compared(&[(ours, 3.0)]), None);
    }
}

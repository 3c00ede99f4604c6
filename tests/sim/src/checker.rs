//! What must always hold (DESIGN section 4), checked after every event of a run.

use crate::cluster::Cluster;
use crate::host::Plane;
use crate::net::Wire;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Invariant 1: nodes that hear each other own a VIP together no longer than one interval and this.
const DUAL_SLACK: Duration = Duration::from_millis(20);
/// Invariant 7: what a crash leaves behind is gone after this.
const LEFTOVER_MAX: Duration = Duration::from_secs(3);
/// Invariant 2: how long an unfit node may hold on beside a fit, reachable one. Detection by checks, one try of a
/// hand-over and its retry are within it.
const UNFIT_MAX: Duration = Duration::from_millis(2500);

/// The running observations behind the invariants.
#[derive(Debug, Default)]
pub struct Checker {
    dual_since: BTreeMap<(usize, usize), Instant>,
    crashed_since: BTreeMap<usize, Instant>,
    unfit_since: BTreeMap<usize, Instant>,
    /// Longest time two hosts that hear each other owned the VIP.
    pub longest_dual: Duration,
    /// Time without any owner, summed from the first owner on.
    pub unowned: Duration,
    unowned_since: Option<Instant>,
    ever_owned: bool,
}

impl Checker {
    /// Looks at the cluster after an event. `Err` says which invariant broke and how.
    pub fn look(&mut self, cluster: &Cluster) -> Result<(), String> {
        let now = cluster.now();
        self.owners(cluster, now);
        self.duals(cluster, now)?;
        self.leftovers(cluster, now)?;
        self.unfit(cluster, now)
    }

    fn owners(&mut self, cluster: &Cluster, now: Instant) {
        if cluster.hosts.iter().any(|h| h.owns()) {
            self.ever_owned = true;
            if let Some(since) = self.unowned_since.take() {
                self.unowned += now - since;
            }
        } else if self.ever_owned {
            self.unowned_since.get_or_insert(now);
        }
    }

    fn duals(&mut self, cluster: &Cluster, now: Instant) -> Result<(), String> {
        let limit = cluster.interval() + DUAL_SLACK;
        for a in 0..cluster.hosts.len() {
            for b in a + 1..cluster.hosts.len() {
                let both = [a, b].iter().all(|&i| cluster.hosts[i].owns() && cluster.hosts[i].responsive(now));
                if both && cluster.net.sound(Wire::Segment, a, b) {
                    let since = *self.dual_since.entry((a, b)).or_insert(now);
                    self.longest_dual = self.longest_dual.max(now - since);
                    if now - since > limit {
                        return Err(format!(
                            "invariant 1: {} and {} hear each other and both own the VIP for {:?} (limit {limit:?})",
                            cluster.hosts[a].name,
                            cluster.hosts[b].name,
                            now - since
                        ));
                    }
                } else {
                    self.dual_since.remove(&(a, b));
                }
            }
        }
        Ok(())
    }

    fn leftovers(&mut self, cluster: &Cluster, now: Instant) -> Result<(), String> {
        for (i, host) in cluster.hosts.iter().enumerate() {
            if host.node.is_some() || host.kernel.vips.is_empty() {
                self.crashed_since.remove(&i);
                continue;
            }
            let since = *self.crashed_since.entry(i).or_insert(now);
            if now - since > LEFTOVER_MAX {
                return Err(format!(
                    "invariant 7: {} crashed {:?} ago and its address is still there",
                    host.name,
                    now - since
                ));
            }
        }
        Ok(())
    }

    fn unfit(&mut self, cluster: &Cluster, now: Instant) -> Result<(), String> {
        for i in 0..cluster.hosts.len() {
            let host = &cluster.hosts[i];
            let better = (0..cluster.hosts.len()).any(|j| j != i && self.could_take(cluster, i, j, now));
            if host.owns() && host.plane != Plane::Alive && host.responsive(now) && better {
                let since = *self.unfit_since.entry(i).or_insert(now);
                if now - since > UNFIT_MAX {
                    return Err(format!(
                        "invariant 2: {} owns the VIP with its balancer {:?} for {:?} beside a node that can serve",
                        host.name,
                        host.plane,
                        now - since
                    ));
                }
            } else {
                self.unfit_since.remove(&i);
            }
        }
        Ok(())
    }

    /// `j` has been able to serve for a while, hears `i` on both wires, and nobody took it out.
    fn could_take(&self, cluster: &Cluster, i: usize, j: usize, now: Instant) -> bool {
        let other = &cluster.hosts[j];
        other.plane == Plane::Alive
            && now - other.plane_since > Duration::from_secs(1)
            && other.responsive(now)
            && cluster.calm_since(j).is_some_and(|since| now - since > Duration::from_secs(1))
            && other.kernel.carrier
            && !other.drained
            && cluster.hosts[i].kernel.carrier
            && cluster.net.sound(Wire::Segment, i, j)
            && cluster.net.sound(Wire::Channel, i, j)
    }
}

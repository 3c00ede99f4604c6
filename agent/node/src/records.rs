//! What the keeper is told of each unit: what it would have to undo, and what it would have to say on our behalf.

use crate::config::{Leg, VipAddress, VipId};
use crate::decide::LegPath;
use crate::diff::Key;
use crate::extras;
use crate::io::{Output, OwnerRecord};
use crate::keeper::ipc::{BgpGrace, Resign};
use crate::node::Node;
use holdfast_vrrp::{ChecksumMode, Family, LegId, State};

impl Node {
    /// Tells the keeper what it would have to undo, before the steps that it covers.
    pub(crate) fn write_records(&mut self) {
        for id in self.records.take() {
            let vip = self.vip_config(id);
            let plan = self.plan.vips.get(usize::from(id.0));
            let key = |a: &VipAddress| Some((extras::place(vip, a, &self.world)?, a.ip, a.prefix));
            let covered = |k: &Key| plan.is_some_and(|p| p.addresses.contains(k)) || self.actual.maybe_ours(k);
            let addresses = vip.addresses.iter().filter_map(key).filter(covered).collect::<Vec<_>>();
            let mut of = extras::of(vip, &self.world, 0);
            let planned = plan.map(|plan| &plan.extras);
            of.routes.retain(|r| planned.is_some_and(|p| p.routes.contains(r)) || self.actual.routes.maybe(r));
            of.rules.retain(|r| planned.is_some_and(|p| p.rules.contains(r)) || self.actual.rules.maybe(r));
            of.vmacs.retain(|v| planned.is_some_and(|p| p.vmacs.contains(v)) || self.actual.maybe_vmac(v));
            let run = self.run(id);
            let active = run.router.state() == State::Active || vip.anycast() && self.view(id).bgp.offered.is_some();
            let resign = if active { self.resignations(id) } else { Vec::new() };
            let record = OwnerRecord {
                vip: id,
                active,
                role_epoch: self.view(id).role_epoch,
                addresses,
                routes: of.routes.into_iter().collect(),
                rules: of.rules.into_iter().collect(),
                vmacs: of.vmacs.into_iter().collect(),
                resign,
                interval: vip.vrrp.interval.duration(),
                bgp: vip.bgp.as_ref().map(|bgp| BgpGrace { grace: bgp.grace(&self.config) }),
                pseudo_header: if active { self.pseudo_header_legs(id) } else { Vec::new() },
            };
            let same = match &run.record {
                Some(old) => *old == record,
                None => !record.active && record.addresses.is_empty() && record.vmacs.is_empty(),
            };
            if !same {
                self.run_mut(id).record = Some(record.clone());
                self.out.owners.push(Output::Owner(record));
            }
        }
    }

    /// The legs that had to learn what their peers understand, for the next worker.
    fn pseudo_header_legs(&self, id: VipId) -> Vec<(u16, bool)> {
        let choice = |(_, leg): &(u16, &Leg)| leg.checksum == ChecksumMode::Auto && leg.family == Family::V4;
        let legs = (0..).zip(&self.vip_config(id).legs).filter(choice);
        legs.filter_map(|(leg, _)| Some((leg, self.run(id).router.pseudo_header(LegId(leg))?))).collect()
    }

    /// The priority-0 adverts of every leg, for the keeper.
    fn resignations(&self, id: VipId) -> Vec<Resign> {
        let run = self.run(id);
        let legs = (0..).map(LegId).zip(run.path.iter().flatten());
        let of = |(leg, way): (LegId, &LegPath)| {
            let ifindex = way.out;
            let (source, packets) = run.router.resign_packets(leg)?;
            Some(
                packets
                    .iter()
                    .map(move |p| {
                        let (destination, payload) = (p.destination, p.payload.clone());
                        Resign { ifindex, source, destination, payload }
                    })
                    .collect::<Vec<_>>(),
            )
        };
        legs.filter_map(of).flatten().collect()
    }
}

//! What BGP adds to a unit that VRRP holds: its owner announces it, and who can't tell any router had better not be
//! that owner.

use crate::config::{Form, Unwell};
use crate::decide::Judge;
use crate::mutants;
use crate::plane::Standing;
use crate::reasons::Reason;
use holdfast_vrrp::{Priority, State};

impl Judge<'_> {
    /// What this node runs at when it is well: the lowest until a router has had a session with it for `settle`.
    pub(crate) fn settled_priority(&self, standing: Standing, reasons: &mut Vec<Reason>) -> Priority {
        let priority = self.priority(standing, reasons);
        if self.settled() || priority == Priority::OWNER || mutants::off("bgp-settle") {
            return priority;
        }
        reasons.insert(0, Reason::BgpNotSettled);
        Priority::LAST_RESORT
    }

    fn settled(&self) -> bool {
        let Some(bgp) = self.vip.bgp.as_ref().filter(|bgp| !bgp.settle.is_zero()) else { return true };
        let view = &self.view().bgp;
        let resumed = view.settled_until.is_some_and(|until| self.now < until);
        let lasted = view.up_since.is_some_and(|since| since + bgp.settle <= self.now);
        view.settled || resumed || lasted
    }

    /// How a unit with legs should be announced: by its owner, and by one that leaves until its successor is seen.
    pub(crate) fn route_form(&self, fit: bool) -> Option<Form> {
        let bgp = self.vip.bgp.as_ref()?;
        let view = self.view();
        if !self.holds() || view.bgp.disabled && bgp.on_disabled == Unwell::Withdraw {
            None
        } else if view.bgp.disabled {
            Some(Form::Disabled)
        } else if view.state != State::Active {
            Some(Form::GracefulShutdown)
        } else if !fit && bgp.on_down != Unwell::Withdraw {
            Some(Form::Down)
        } else {
            Some(Form::Normal)
        }
    }
}

//! This worker's place taken by another one, of a newer program perhaps or with a new configuration, so that no router
//! and no peer notices (DESIGN section 4, 8).
//!
//! The keeper starts the other one. When that is ready nothing is released and nothing is said: the other one finds all
//! as after a crash, and resumes it.

use crate::drain::STOPPING;
use crate::io::{Answer, Output};
use crate::journal::Kind;
use crate::node::Node;
use holdfast_vrrp::State;
use std::time::{Duration, Instant};

/// Another upgrade is under way.
pub const UPGRADING: &str = "upgrading";
/// Somebody waits for a drain.
pub const DRAINING: &str = "draining";
/// A VIP is advertised so often that its peers would take it over meanwhile.
pub const SHORT_INTERVAL: &str = "short-interval";
/// The other worker didn't get ready.
pub const NOT_READY: &str = "not-ready";

/// From this interval on a worker resumes before the peers miss it.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// One that somebody waits for.
#[derive(Debug, Clone)]
pub(crate) struct Upgrade {
    token: u64,
    who: String,
}

impl Node {
    pub(crate) fn on_upgrade(&mut self, now: Instant, token: u64, who: String) {
        if let Some((interlock, why)) = self.upgrade_interlock() {
            self.refuse_upgrade(now, Upgrade { token, who }, interlock, why);
            return;
        }
        self.upgrade = Some(Upgrade { token, who });
        self.answer(token, Answer::Progress("the other worker starts".to_owned()));
        self.out.rest.push(Output::Replace);
    }

    fn upgrade_interlock(&self) -> Option<(&'static str, String)> {
        if self.stop.is_some() {
            return Some((STOPPING, "the agent stops already".to_owned()));
        }
        if self.upgrade.is_some() {
            return Some((UPGRADING, "another worker starts already".to_owned()));
        }
        if self.drain.is_some() {
            return Some((DRAINING, "a drain is under way: wait for its end, or end it with undrain".to_owned()));
        }
        let short = |id: &crate::config::VipId| {
            self.view(*id).state == State::Active && self.vip_config(*id).vrrp.interval.duration() < INTERVAL_MIN
        };
        let id = self.ids().find(short)?;
        let interval = self.vip_config(id).vrrp.interval.duration();
        let why = format!(
            "{} is Active here and advertised every {} ms: its peers would take it before the other worker is there; \
             drain this node first",
            self.vip_name(id),
            interval.as_millis()
        );
        Some((SHORT_INTERVAL, why))
    }

    /// How it went.
    pub(crate) fn on_replaced(&mut self, now: Instant, result: Result<u32, String>) {
        let Some(upgrade) = self.upgrade.take() else { return };
        match result {
            Ok(pid) => {
                self.answer(upgrade.token, Answer::Done(format!("worker {pid} takes over")));
                self.event(now, None, Kind::WorkerReplaced { who: upgrade.who, pid });
            }
            Err(why) => self.refuse_upgrade(now, upgrade, NOT_READY, format!("{why}; this worker goes on")),
        }
    }

    fn refuse_upgrade(&mut self, now: Instant, upgrade: Upgrade, interlock: &str, why: String) {
        self.count("upgrades_refused");
        let kind = Kind::UpgradeRefused { who: upgrade.who, interlock: interlock.to_owned(), why: why.clone() };
        self.event(now, None, kind);
        self.answer(upgrade.token, Answer::Refused { interlock: interlock.to_owned(), why });
    }
}

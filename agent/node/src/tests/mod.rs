//! Timelines of whole nodes.

mod alone;
mod bgp;
mod bgp_beside;
mod bgp_told;
mod complaints;
mod drain;
mod extras;
mod flows;
mod guards;
mod interlocks;
mod kernel;
pub(crate) mod lab;
mod legs;
mod pair;
mod plane_groups;
mod plane_properties;
mod plane_verdicts;
mod planes;
mod properties;
mod regressions;
mod status;
mod upgrade;
mod ways;

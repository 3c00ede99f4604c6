//! Namespaces, load, faults and figures: what a client saw while one of two load balancers went away.
//!
//! The lab builds a small network out of namespaces ([`fabric`]), starts a subject on two hosts of it ([`subject`]:
//! Holdfast, or keepalived for comparison), sends open-loop load ([`load`]), watches the wire and the kernels
//! ([`watch`]), injects one fault per run ([`faults`], [`run`]) and reports figures ([`metrics`], [`report`]).
//! How each figure is defined is written once, in `METRICS.md`.
//!
//! What this crate refuses to do: link the agent (it only starts binaries), touch anything outside its own
//! namespaces and temporary directory, or print a figure it didn't measure.

#![forbid(unsafe_code)]

pub mod agent;
pub mod balancer;
pub mod bench;
pub mod bgp;
pub mod calibrate;
pub mod clock;
pub mod demo;
pub mod drills;
pub mod env;
pub mod fabric;
pub mod faults;
pub mod figures;
pub mod flows;
pub mod forward;
pub mod garbage;
pub mod idle;
pub mod interop;
pub mod load;
pub mod metrics;
pub mod netns;
pub mod planes;
pub mod process;
pub mod record;
pub mod repeat;
pub mod report;
pub mod residue;
pub mod responder;
pub mod run;
pub mod scale;
pub mod simulate;
pub mod startstop;
pub mod subject;
pub mod tier;
pub mod watch;

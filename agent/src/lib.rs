//! The Holdfast agent: everything around the pure [`holdfast_node`].
//!
//! | module | does |
//! |---|---|
//! | [`os`] | Linux, one facility per file, the only place with `unsafe` |
//! | [`config`] | TOML text to a validated configuration, errors with line, column and caret |
//! | [`keeper`] | the small process that outlives the worker and undoes its work |
//! | [`run`] | the worker: protocol thread and runtime |
//! | [`reconcile`] | executes the node's steps, the only place that changes the kernel |
//! | [`balancer`] | finds the balancer's processes and sees them die |
//! | [`check`] | runs probes |
//! | [`ctl`] | control API and command line |

#![deny(unsafe_code)]

pub mod balancer;
pub mod check;
pub mod config;
pub mod ctl;
pub mod keeper;
pub mod os;
pub mod reconcile;
pub mod run;

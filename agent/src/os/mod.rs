//! Linux, one facility per file.

#![allow(unsafe_code)]

pub mod caps;
pub mod fdpass;
pub mod sched;

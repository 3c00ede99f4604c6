//! Linux, one facility per file.

#![allow(unsafe_code)]

pub mod addr;
pub mod announce;
pub mod asyncfd;
pub mod bfd;
pub mod caps;
pub mod conntrack;
pub mod ct;
pub mod diag;
pub mod fdpass;
pub mod icmp;
pub mod leftovers;
pub mod link;
pub mod monitor;
pub mod neighbour;
mod netlink;
pub mod netns;
pub mod nft;
mod packet;
pub mod pidfd;
pub mod pollset;
pub mod probe;
pub mod process;
pub mod ra;
pub mod route;
pub mod route_watch;
pub mod rule;
pub mod sched;
pub mod sysctl;
pub mod tcp;
pub mod timerfd;
pub mod udp;
pub mod vmac;
pub mod vrrp;

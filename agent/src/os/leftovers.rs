//! Everything but addresses that a former run may have left in the kernel: found by its marks, removed as a whole.
//!
//! For whoever knows that nobody holds anything: a worker at its start that resumes nothing, the keeper when the last
//! VIP of a dead worker has lapsed. (Addresses are known one by one, and told by their own mark.)
//!
//! What this module refuses to do: spare anything of ours, or touch anything else.

use super::nft::{Balancer, Guard};
use super::route::RouteSocket;
use super::vmac::VmacSocket;
use holdfast_node::io::StepError;
use holdfast_node::pool::Balance;
use std::io;

/// Removes rules, routes, interfaces with a virtual MAC (with their addresses) and the packet filter's tables, in this
/// order: first what leads traffic here. Each is tried whatever becomes of the others.
///
/// # Errors
/// What could not be listed or removed; empty: nothing of ours is left.
pub fn remove_all() -> Vec<StepError> {
    let mut errors = Vec::new();
    match RouteSocket::open() {
        Ok(mut socket) => {
            match socket.our_rules() {
                Ok(rules) => errors.extend(rules.iter().filter_map(|rule| socket.remove_rule(rule).err())),
                Err(e) => errors.push(failed(&e, "list rules")),
            }
            match socket.our_routes() {
                Ok(routes) => errors.extend(routes.iter().filter_map(|route| socket.remove_route(route).err())),
                Err(e) => errors.push(failed(&e, "list routes")),
            }
        }
        Err(e) => errors.push(failed(&e, "open netlink")),
    }
    match VmacSocket::open().and_then(|mut socket| socket.ours().map(|ours| (socket, ours))) {
        Ok((mut socket, ours)) => errors.extend(ours.iter().filter_map(|(_, name)| socket.remove(name).err())),
        Err(e) => errors.push(failed(&e, "list interfaces")),
    }
    match Guard::open() {
        Ok(mut guard) => errors.extend(guard.remove().err()),
        // Without netfilter there is nothing of ours in it.
        Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {}
        Err(e) => errors.push(failed(&e, "open netfilter")),
    }
    match Balancer::open() {
        Ok(mut balancer) => errors.extend(balancer.apply(&Balance::Unload).err()),
        Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {}
        Err(e) => errors.push(failed(&e, "open netfilter")),
    }
    errors
}

fn failed(error: &io::Error, what: &str) -> StepError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    super::addr::step_error(errno, None, "CAP_NET_ADMIN", what.to_owned())
}

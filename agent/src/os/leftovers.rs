//! Everything but addresses that a former run may have left in the kernel: found by its marks, removed as a whole.
//!
//! For whoever knows that nobody holds anything. (Addresses are known one by one, and told by their own mark.)
//!
//! What this module refuses to do: spare anything of ours, or touch anything else.

use super::nft::{Balancer, EventFilter, Guard};
use super::route::RouteSocket;
use super::vmac::VmacSocket;
use holdfast_node::io::StepError;
use holdfast_node::pool::Balance;
use std::io;

/// Removes rules, routes, interfaces with a virtual MAC (with their addresses) and the packet filter's tables, in this
/// order: first what leads traffic here. Each is tried whatever becomes of the others, and `said` hears of it: what it
/// is, and whether it is gone or why it isn't, or couldn't be looked for.
pub fn remove_all(mut said: impl FnMut(String, Result<(), StepError>)) {
    let listed = RouteSocket::open().and_then(|mut socket| {
        let (rules, routes) = (socket.our_rules()?, socket.our_routes()?);
        Ok((socket, rules, routes))
    });
    match listed {
        Ok((mut socket, rules, routes)) => {
            rules.iter().for_each(|rule| said(format!("rule {rule}"), socket.remove_rule(rule)));
            routes.iter().for_each(|route| said(format!("route {route}"), socket.remove_route(route)));
        }
        Err(e) => said("routes".to_owned(), Err(failed(&e, "list routes"))),
    }
    match VmacSocket::open().and_then(|mut socket| Ok((socket.ours()?, socket))) {
        Ok((ours, mut socket)) => {
            ours.iter().for_each(|(_, name)| said(format!("interface {name}"), socket.remove(name)));
        }
        Err(e) => said("interfaces".to_owned(), Err(failed(&e, "list interfaces"))),
    }
    // A kernel without a packet filter has none of ours.
    if let Ok(mut guard) = Guard::open()
        && guard.is_there().unwrap_or(true)
    {
        said("the packet filter's table".to_owned(), guard.remove());
    }
    if let Ok(mut filter) = EventFilter::open()
        && filter.is_there().unwrap_or(true)
    {
        said("the table for events of flows".to_owned(), filter.remove());
    }
    if let Ok(mut balancer) = Balancer::open()
        && balancer.is_there().unwrap_or(true)
    {
        said("the balancing table".to_owned(), balancer.apply(&Balance::Unload).map(|_| ()));
    }
}

fn failed(error: &io::Error, what: &str) -> StepError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    super::addr::step_error(errno, None, "CAP_NET_ADMIN", what.to_owned())
}

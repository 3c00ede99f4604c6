//! The last net: what a killed agent left that nobody holds any more.

use super::{exit, instance, render, server};
use crate::os::addr::AddressSocket;
use crate::os::nft::{Balancer, Guard};
use crate::os::route::RouteSocket;
use crate::os::vmac::VmacSocket;
use holdfast_node::io::StepError;
use holdfast_node::pool::Balance;
use std::path::Path;

/// Removes all that carries our mark (rules, routes, devices, addresses, the packet filter's table) and a stale control socket, unless an agent runs with this runtime directory.
pub(super) fn run(runtime_dir: &Path) -> u8 {
    let _lock = match instance::lock(runtime_dir) {
        Ok(lock) => lock,
        Err(error) => {
            eprintln!("holdfast: nothing was removed: {error}");
            return exit::FAILED;
        }
    };
    server::remove_stale(runtime_dir);
    let others = remove_extras();
    let result = AddressSocket::open().and_then(|mut socket| {
        let marked: Vec<_> = socket.dump_addresses()?.into_iter().filter(|address| address.marked).collect();
        Ok((socket, marked))
    });
    let (mut socket, marked) = match result {
        Ok(found) => found,
        Err(error) => {
            eprintln!("holdfast: addresses can't be listed: {error}");
            return exit::FAILED;
        }
    };
    let mut code = others;
    for address in marked {
        match socket.remove(address.ifindex, address.ip, address.prefix) {
            Ok(()) => {
                let interface = crate::os::link::name(address.ifindex);
                render::out(&format!("removed {}/{} from {interface}\n", address.ip, address.prefix));
            }
            Err(error) => {
                eprintln!("holdfast: {}", error.what);
                code = exit::FAILED;
            }
        }
    }
    code
}

/// Rules, then routes, then devices with all that is on them, and the packet filter's table.
fn remove_extras() -> u8 {
    let mut code = exit::OK;
    let mut said = |what: String, result: Result<(), StepError>| match result {
        Ok(()) => {
            render::out(&format!("removed {what}\n"));
        }
        Err(error) => {
            eprintln!("holdfast: {}", error.what);
            code = exit::FAILED;
        }
    };
    let listed = RouteSocket::open().and_then(|mut socket| {
        let (rules, routes) = (socket.our_rules()?, socket.our_routes()?);
        Ok((socket, rules, routes))
    });
    match listed {
        Ok((mut socket, rules, routes)) => {
            rules.iter().for_each(|rule| said(format!("rule {rule}"), socket.remove_rule(rule)));
            routes.iter().for_each(|route| said(format!("route {route}"), socket.remove_route(route)));
        }
        Err(error) => eprintln!("holdfast: routes can't be listed: {error}"),
    }
    match VmacSocket::open().and_then(|mut socket| Ok((socket.ours()?, socket))) {
        Ok((ours, mut socket)) => {
            ours.iter().for_each(|(_, name)| said(format!("interface {name}"), socket.remove(name)));
        }
        Err(error) => eprintln!("holdfast: interfaces can't be listed: {error}"),
    }
    // A kernel without a packet filter has none of ours.
    if let Ok(mut guard) = Guard::open()
        && guard.is_there().unwrap_or(true)
    {
        said("the packet filter's table".to_owned(), guard.remove());
    }
    if let Ok(mut balancer) = Balancer::open()
        && balancer.is_there().unwrap_or(true)
    {
        said("the balancing table".to_owned(), balancer.apply(&Balance::Unload).map(|_| ()));
    }
    code
}

//! The last net: what a killed agent left that nobody holds any more.

use super::{exit, instance, render, server};
use crate::os::addr::AddressSocket;
use crate::os::leftovers;
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
    let mut code = exit::OK;
    leftovers::remove_all(|what, result| match result {
        Ok(()) => {
            render::out(&format!("removed {what}\n"));
        }
        Err(error) => {
            eprintln!("holdfast: {}", error.what);
            code = exit::FAILED;
        }
    });
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

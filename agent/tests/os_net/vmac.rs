//! The virtual MAC.

use crate::world::*;
use holdfast::os::addr::AddressSocket;
use holdfast::os::vmac::{Vmac, VmacSocket, parent_settings};
use holdfast_node::config::InterfaceName;
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

fn vmac(vrid: u8, six: bool) -> Vmac {
    Vmac { parent: index("eth0"), vrid, six }
}

fn setting(tree: &str, interface: &str, key: &str) -> String {
    let path = format!("/proc/sys/net/{tree}/conf/{interface}/{key}");
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")).trim().to_owned()
}

#[test]
fn an_interface_is_made_quiet_marked_and_up_and_made_twice_is_success() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = VmacSocket::open().expect("open");
        for six in [false, true] {
            let wanted = vmac(51, six);
            let name = wanted.name();
            let ifindex = socket.add(&wanted).expect("made");
            assert_eq!(ifindex, index(&name));
            assert_eq!(socket.add(&wanted).expect("there already"), ifindex);
            let shown = one.ip(&format!("-d link show {name}"));
            let mac = if six { "00:00:5e:00:02:33" } else { "00:00:5e:00:01:33" };
            for words in [
                mac,
                "macvlan mode private",
                "addrgenmode none",
                "alias holdfast: virtual MAC of VRID 51",
                "UP,LOWER_UP",
            ] {
                assert!(shown.contains(words), "{words}: {shown}");
            }
            assert_eq!(one.ip(&format!("address show {name}")).matches("inet").count(), 0, "no address of its own");
            assert_eq!(setting("ipv4", &name, "arp_ignore"), if six { "8" } else { "1" });
            assert_eq!(setting("ipv4", &name, "arp_announce"), "2");
            assert_eq!(setting("ipv6", &name, "disable_ipv6"), if six { "0" } else { "1" });
        }
        let names: Vec<String> = socket.ours().expect("listed").into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, [vmac(51, false).name(), vmac(51, true).name()]);
        for name in &names {
            socket.remove(name).expect("removed");
            socket.remove(name).expect("gone already");
        }
        assert_eq!(socket.ours().expect("listed"), []);
    });
}

#[test]
fn an_interface_of_another_is_neither_taken_nor_removed() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = VmacSocket::open().expect("open");
        let wanted = vmac(51, false);
        let name = wanted.name();
        for kind in ["link eth0 type macvlan mode private", "type veth peer name other"] {
            let mut words = vec!["-n", one.name.as_str(), "link", "add", name.as_str()];
            words.extend(kind.split(' '));
            run("ip", &words);
            let error = socket.add(&wanted).expect_err("the name is taken");
            assert_eq!(error.errno, libc::EEXIST);
            assert_eq!(
                error.what,
                format!("add {name} dev eth0: an interface of that name is there already and isn't ours")
            );
            socket.remove(&name).expect("nothing of ours to remove");
            assert_eq!(socket.ours().expect("listed"), []);
            one.ip(&format!("link del {name}"));
        }
        // Another program's virtual MAC on the same segment: two of one address can't be up.
        run(
            "ip",
            &[
                "-n",
                &one.name,
                "link",
                "add",
                "vrrp.51",
                "link",
                "eth0",
                "address",
                "00:00:5e:00:01:33",
                "type",
                "macvlan",
                "mode",
                "private",
            ],
        );
        one.ip("link set vrrp.51 up");
        let error = socket.add(&wanted).expect_err("the MAC is taken");
        assert!(error.what.contains(&name), "{error:?}");
        assert_eq!(socket.ours().expect("listed"), [], "nothing is left behind");
        assert!(one.ip("link show vrrp.51").contains("UP"));
    });
}

#[test]
fn what_the_kernel_refuses_is_said_and_nothing_is_left_behind() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = VmacSocket::open().expect("open");
        let error = socket.add(&Vmac { parent: 9999, vrid: 1, six: false }).expect_err("no such parent");
        assert_eq!(error.errno, libc::ENODEV, "{error:?}");
        one.ip("link add bridge type bridge");
        one.ip("link set eth0 master bridge");
        let error = socket.add(&vmac(51, false)).expect_err("a port of a bridge");
        assert!(error.what.ends_with("dev eth0: the interface is a port of a bridge or a bond"), "{error:?}");
        assert_eq!(socket.ours().expect("listed"), []);
    });
}

#[test]
fn a_parent_says_what_it_lacks_until_it_has_it() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let parent = InterfaceName::new("eth0").expect("valid");
        let names: Vec<String> = parent_settings(&parent).iter().map(|w| w.setting.to_string()).collect();
        assert_eq!(names, ["net.ipv4.conf.eth0.arp_ignore", "net.ipv4.conf.eth0.arp_announce"]);
        for wanted in parent_settings(&parent) {
            wanted.setting.write(wanted.value).expect("root may");
            assert_eq!(wanted.setting.read().expect("readable"), wanted.value);
        }
        assert_eq!(parent_settings(&parent), []);
        let gone = parent_settings(&InterfaceName::new("gone0").expect("valid"));
        let error = gone.first().expect("it lacks all").setting.write(1).expect_err("no such interface");
        assert_eq!(error.what, "set net.ipv4.conf.gone0.arp_ignore = 1: no such file or directory");
    });
}

/// Frames that left `eth0` of `host` while `f` ran and a while longer, as tcpdump shows them.
fn captured(peer: &Namespace, filter: &str, f: impl FnOnce()) -> String {
    let file = std::env::temp_dir().join(format!("holdfast-vmac-{}-{}", std::process::id(), peer.name));
    let path = file.to_str().expect("plain");
    let mut capture = Command::new("ip")
        .args(["netns", "exec", &peer.name, "tcpdump", "-U", "-n", "-i", "eth0", "-w", path, filter])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("tcpdump is installed");
    eventually("the capture has begun", || fs::metadata(&file).is_ok_and(|m| m.len() >= 24));
    std::thread::sleep(Duration::from_millis(200));
    f();
    std::thread::sleep(Duration::from_secs(3));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(capture.id().try_into().expect("a pid")),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("it runs");
    capture.wait().expect("ended");
    let shown = run("tcpdump", &["-e", "-n", "-r", path]);
    let _ = fs::remove_file(&file);
    shown
}

/// keepalived issue 882: a Backup's membership report poisons the switch.
#[test]
fn neither_making_nor_removing_it_sends_a_frame_with_the_virtual_mac() {
    if skipped() {
        return;
    }
    for forwarding in ["0", "1"] {
        let (one, two) = two_hosts();
        one.enter(|| {
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", forwarding).expect("root may");
            fs::write("/proc/sys/net/ipv4/ip_forward", forwarding).expect("root may");
        });
        let made = captured(&two, "ether host 00:00:5e:00:01:33 or ether host 00:00:5e:00:02:33", || {
            one.enter(|| {
                let mut socket = VmacSocket::open().expect("open");
                for six in [false, true] {
                    socket.add(&vmac(51, six)).expect("made");
                }
            });
        });
        // A router with IPv6 joins the group of all routers: right, since it is made when that router becomes Active.
        let joins = |line: &str| {
            forwarding == "1" && line.contains("00:00:5e:00:02:33 > 33:33:00:00:00:16") && line.contains("report v2")
        };
        let making: Vec<&str> = made.lines().filter(|line| !joins(line)).collect();
        // Addresses make the kernel report their groups, which is right: the router is Active.
        one.enter(|| {
            let mut addresses = AddressSocket::open().expect("open");
            let vips: [(bool, IpAddr, u8); 3] = [
                (false, "10.0.0.10".parse().expect("valid"), 32),
                (true, "fe80::200:5eff:fe00:233".parse().expect("valid"), 128),
                (true, "fd00::10".parse().expect("valid"), 128),
            ];
            for (six, ip, prefix) in vips {
                addresses.add(index(&vmac(51, six).name()), ip, prefix, LIFETIME).expect("added");
            }
        });
        std::thread::sleep(Duration::from_secs(3));
        let removed = captured(&two, "ether host 00:00:5e:00:01:33 or ether host 00:00:5e:00:02:33", || {
            one.enter(|| {
                let mut socket = VmacSocket::open().expect("open");
                for (_, name) in socket.ours().expect("listed") {
                    socket.remove(&name).expect("removed");
                }
            });
        });
        assert_eq!(making, [""; 0]);
        assert_eq!(removed, "");
    }
}

#[test]
fn a_removal_by_the_thread_is_over_before_the_next_one_of_that_name_is_made() {
    if skipped() {
        return;
    }
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = VmacSocket::open().expect("open");
        let wanted = vmac(51, false);
        let first = socket.add(&wanted).expect("made");
        for _ in 0..2 {
            socket.remove_soon(&wanted.name()).expect("told");
        }
        // Patience ends after 200 ms: on a busy machine the kernel may take longer.
        let mut second = None;
        eventually("it is made again", {
            let cell = std::cell::RefCell::new((&mut socket, &mut second));
            move || {
                let (socket, second) = &mut *cell.borrow_mut();
                **second = socket.add(&wanted).ok();
                second.is_some()
            }
        });
        assert!(socket.settle(Duration::from_secs(5)));
        assert_ne!(second, Some(first), "another interface");
        assert_eq!(second, Some(index(&wanted.name())), "and it stays");
        socket.remove_soon(&wanted.name()).expect("told");
        socket.remove_soon("lo").expect("told, though it isn't ours");
        assert!(socket.settle(Duration::from_secs(5)));
        assert_eq!(socket.ours().expect("listed"), []);
        assert!(index("lo") > 0);
    });
}

/// Run by hand: `cargo test --test os_net vmac_cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn vmac_cost() {
    let (one, _two) = two_hosts();
    one.enter(|| {
        let mut socket = VmacSocket::open().expect("open");
        for six in [false, true] {
            let wanted = vmac(51, six);
            let (mut made, mut removed) = (Vec::new(), Vec::new());
            for _ in 0..50 {
                let start = Instant::now();
                socket.add(&wanted).expect("made");
                made.push(start.elapsed());
                let start = Instant::now();
                socket.remove(&wanted.name()).expect("removed");
                removed.push(start.elapsed());
            }
            made.sort();
            removed.sort();
            println!("IPv6 {six}: make: median {:?}, worst {:?}", made[25], made[49]);
            println!("IPv6 {six}: remove: median {:?}, worst {:?}", removed[25], removed[49]);
        }
    });
}

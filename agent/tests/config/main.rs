//! Configuration files, good and bad.

mod properties;

use holdfast::config::{self, ConfigErrors, Kind};
use holdfast_node::config::{BalancerId, CheckId, Form, SyncFilter, SyncMode, Track, Tracked};
use holdfast_vrrp::{Family, Version};
use serde_json::{Value, json};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the folder is in the tree")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
}

/// `# expect: EXIT LINE:COLUMN PATH|- TEXT`, one line per finding, at the top of the file.
fn expectations(text: &str) -> Vec<(u8, String, String, String)> {
    text.lines()
        .map_while(|line| line.strip_prefix("# expect: "))
        .map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().expect("an expectation has four parts").to_owned();
            let exit = word().parse().expect("an exit code");
            (exit, word(), word(), word())
        })
        .collect()
}

fn mismatches(name: &str, text: &str, errors: &ConfigErrors) -> Vec<String> {
    let expected = expectations(text);
    assert!(!expected.is_empty(), "{name}: says nothing of what is expected");
    let mut wrong = Vec::new();
    if expected.len() != errors.findings.len() {
        wrong.push(format!("{} findings, {} expected", errors.findings.len(), expected.len()));
    }
    for (finding, (exit, place, path, what)) in errors.findings.iter().zip(&expected) {
        let line = errors.line(finding);
        let path = if path == "-" { "" } else { path };
        let fits = errors.exit_code() == *exit
            && format!("{}:{}", finding.line, finding.column) == *place
            && finding.path == path
            && line.contains(what.as_str());
        if !fits {
            wrong.push(format!("exit {}, {line}\n    expected: {exit} {place} {path} … {what}", errors.exit_code()));
        }
    }
    wrong.into_iter().map(|wrong| format!("{name}: {wrong}")).collect()
}

#[test]
fn every_bad_file_is_refused_with_line_column_path_and_reason() {
    let files = files("tests/config/bad");
    assert!(files.len() >= 200, "only {} bad files", files.len());
    let mut wrong = Vec::new();
    for path in files {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("readable");
        match config::parse(&text, &name) {
            Ok(_) => wrong.push(format!("{name}: accepted")),
            Err(errors) => {
                wrong.extend(mismatches(&name, &text, &errors));
                // The picture shows the line and never loses the one-line form.
                let picture = errors.render(false);
                for finding in &errors.findings {
                    assert!(picture.contains(&errors.line(finding)), "{name}: {picture}");
                }
                assert!(picture.contains('^'), "{name}: no caret\n{picture}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_good_file_and_both_examples_are_accepted() {
    for path in files("tests/config/good").into_iter().chain(files("packaging/examples")) {
        if let Err(errors) = config::load(&path) {
            panic!("{}", errors.render(false));
        }
    }
}

/// Objects may have more keys than expected; all else is the same.
fn assert_holds(value: &Value, expected: &Value, at: &str) {
    match (value, expected) {
        (Value::Object(value), Value::Object(expected)) => {
            for (key, expected) in expected {
                let value = value.get(key).unwrap_or_else(|| panic!("{at}.{key} isn't there"));
                assert_holds(value, expected, &format!("{at}.{key}"));
            }
        }
        (Value::Array(value), Value::Array(expected)) if value.len() == expected.len() => {
            for (n, (value, expected)) in value.iter().zip(expected).enumerate() {
                assert_holds(value, expected, &format!("{at}[{n}]"));
            }
        }
        _ => assert_eq!(value, expected, "{at}"),
    }
}

#[test]
fn defaults_are_as_documented() {
    let text = r#"
        [node]
        name = "a"
        [[check]]
        name = "c"
        http = "http://127.0.0.1/"
        [[vip]]
        name = "v"
        addresses = ["192.0.2.10/32"]
        vrrp = { interface = "eth0", vrid = 1, priority = 254 }
        [[hook]]
        name = "h"
        on = "active"
        exec = ["/bin/true"]
    "#;
    let config = config::parse(text, "text").expect("valid");
    let value = serde_json::to_value(&config).expect("plain data");
    let expected = json!({
        "checks": [{
            "interval_ms": 1_000, "fast_interval_ms": 200, "timeout_ms": 1_000, "fall": 3, "rise": 2, "shared": false,
            "probe": { "http": { "expect": [[200, 399]], "host": "127.0.0.1" } },
        }],
        "vips": [{
            "balancers": [], "checks": [0], "last_node": "keep", "group": false,
            "addresses": [{ "interface": "eth0", "advertise": true }],
            "vrrp": {
                "interval_ms": 100, "preempt": true, "preempt_delay_ms": 0, "startup_delay_ms": 0, "accept": true,
                "partition": "both", "gateway": null, "rivals": [],
            },
            "legs": [{
                "version": 3, "family": "ipv4", "checksum": "auto", "peers": [], "min_ttl": 255, "vmac": false,
            }],
            "announce": { "repeat": 4, "second_ms": 5_000, "refresh_ms": 0 },
        }],
        "hooks": [{ "timeout_ms": 10_000 }],
        "fifo": null,
        "cluster": null,
    });
    assert_holds(&value, &expected, "");
}

#[test]
fn defaults_of_bgp_are_as_documented() {
    let text = r#"
        [node]
        name = "a"
        [[vip]]
        name = "v"
        addresses = ["192.0.2.10", "2001:db8::10"]
        bgp = {}
        [bgp]
        asn = 65010
        [[bgp.neighbor]]
        address = "10.0.0.1"
        asn = 65000
        [[bgp.neighbor]]
        address = "2001:db8:0:1::1"
        asn = 65010
        bfd = true
    "#;
    let config = config::parse(text, "text").unwrap_or_else(|errors| panic!("{errors}"));
    let value = serde_json::to_value(&config).expect("plain data");
    let expected = json!({
        "bgp": {
            "asn": 65010, "listen": true, "listen_port": 179, "router_id_from": "node_name",
            "graceful_restart_ms": 15_000,
            // Families: what it can carry of what its VIPs need.
            "neighbors": [
                {
                    "name": "10.0.0.1", "port": 179, "hold_time_ms": 9_000, "connect_retry_ms": 2_000,
                    "passive": false, "capabilities": true, "multihop": 1, "families": ["ipv4"], "bfd": null,
                },
                {
                    "multihop": 255, "families": ["ipv6"],
                    "bfd": { "interval_ms": 300, "multiplier": 3, "multihop": false, "min_ttl": 255 },
                },
            ],
        },
        "vips": [{
            "legs": [],
            "addresses": [{ "interface": "lo", "prefix": 32 }, { "prefix": 128 }],
            "bgp": {
                "attributes": { "med": 0, "local_pref": 100 }, "neighbors": [0, 1], "announce_delay_ms": 0,
                "settle_ms": 10_000, "withdraw_wait_ms": 1_000, "drain_wait_ms": 2_000, "on_down": "withdraw",
                "on_disabled": "withdraw", "min_announcing": 1, "damping": null,
            },
        }],
    });
    assert_holds(&value, &expected, "");
    // Longer than any router keeps its route.
    let bgp = config.vips[0].bgp.as_ref().expect("announced");
    let (grace, more) = (std::time::Duration::from_millis(4_500 + 15_000), std::time::Duration::from_secs(5));
    assert_eq!((bgp.grace(&config), bgp.lifetime(&config)), (grace, grace + more));
}

#[test]
fn each_neighbour_and_each_state_hears_what_is_said_to_it() {
    let text = r#"
        [node]
        name = "a"
        [[vip]]
        name = "v"
        addresses = ["192.0.2.10", "192.0.2.11"]
        bgp = { communities = ["65000:1"], med = 100, increase = 1, rotate = 1, weight = 3, on_down = { med = 1000, communities = ["65000:9"] } }
        [bgp]
        asn = 65010
        [[bgp.neighbor]]
        address = "10.0.0.1"
        asn = 65000
        communities = ["65000:5", "65000:1"]
        med = 50
        prepend = 2
    "#;
    let config = config::parse(text, "text").unwrap_or_else(|errors| panic!("{errors}"));
    let (vip, bgp) = (&config.vips[0], config.bgp.as_ref().expect("configured"));
    let (own, neighbor) = (vip.bgp.as_ref().expect("announced"), &bgp.neighbors[0]);
    let positions: Vec<u32> = vip.addresses.iter().map(|address| vip.bgp_position(address.ip)).collect();
    assert_eq!(positions, [1, 0]);
    let said = |form, position| own.attributes_for(bgp, neighbor, form, position);
    let community = |low: u32| 65_000 << 16 | low;
    let normal = said(Form::Normal, 1).expect("announced");
    assert_eq!((normal.communities, normal.med, normal.prepend), (vec![community(1), community(5)], 51, 2));
    // 3 × 100 Mbit/s are 37,500,000 bytes per second: 0x4c0f0d18.
    assert_eq!(normal.extended, [[0x40, 4, 0xfd, 0xf2, 0x4c, 0x0f, 0x0d, 0x18]]);
    let down = said(Form::Down, 0).expect("worse, but announced");
    assert_eq!((down.communities, down.med), (vec![community(9), community(5), community(1)], 1000));
    assert_eq!(said(Form::Disabled, 0), None);
    let leaving = said(Form::GracefulShutdown, 0).expect("still announced");
    assert!(leaving.communities.contains(&0xffff_0000));
    assert_eq!((leaving.med, leaving.local_pref), (u32::MAX, 0));
}

#[test]
fn a_password_file_must_be_there_be_a_key_and_be_for_few() {
    let folder = std::env::temp_dir().join(format!("holdfast-keys-{}", std::process::id()));
    fs::create_dir(&folder).expect("a fresh name");
    let key = folder.join("bgp.key");
    let file = folder.join("holdfast.toml");
    let text = format!(
        "[node]\nname = \"a\"\n[[vip]]\nname = \"v\"\naddresses = [\"192.0.2.10\"]\nbgp = {{}}\n[bgp]\nasn = 65010\n\
         [[bgp.neighbor]]\naddress = \"10.0.0.1\"\nasn = 65000\npassword_file = \"{}\"\n",
        key.display()
    );
    fs::write(&file, &text).expect("writable");
    let with = |bytes: &[u8], mode: u32| {
        fs::write(&key, bytes).expect("writable");
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("ours");
        config::load(&file).map_err(|errors| errors.to_string())
    };
    let missing = config::load(&file).expect_err("it isn't there").to_string();
    let mut wrong = Vec::new();
    if !missing.contains("holdfast.toml:12:17: bgp.neighbor[0].password_file:") || !missing.contains("No such file") {
        wrong.push(missing);
    }
    for (bytes, mode, why) in [
        (&b""[..], 0o600, "is empty"),
        (b"\n", 0o600, "is empty"),
        (&[b'x'; 81], 0o600, "has 81 bytes: a TCP MD5 key has at most 80"),
        (b"one\ntwo\n", 0o600, "more than one line"),
        (b"secret", 0o644, "mode 0644 lets others read or change the key"),
        (b"secret", 0o660, "mode 0660 lets others read or change the key"),
    ] {
        let refused = with(bytes, mode).expect_err(why);
        if !refused.contains(why) || refused.contains("secret") {
            wrong.push(refused);
        }
    }
    let longest = [&[b'x'; 80][..], b"\n"].concat();
    wrong.extend(with(&longest, 0o640).err());
    wrong.extend(with(b"secret\r\n", 0o600).err());
    fs::remove_dir_all(&folder).expect("ours");
    assert!(wrong.is_empty(), "{wrong:?}");
    // A text alone says nothing of the files of a machine.
    assert!(config::parse(&text, "text").is_ok());
}

#[test]
fn a_missing_file_and_one_that_is_not_text_end_with_the_exit_code_of_a_syntax_error() {
    let missing = config::load(Path::new("/nonexistent/holdfast.toml")).expect_err("it isn't there");
    assert_eq!((missing.kind, missing.exit_code()), (Kind::Syntax, 1));
    assert!(missing.to_string().starts_with("/nonexistent/holdfast.toml: can't be read: "), "{missing}");
    let path = std::env::temp_dir().join(format!("holdfast-not-text-{}.toml", std::process::id()));
    fs::write(&path, b"[node]\nname = \"\xff\"\n").expect("the folder is writable");
    let refused = config::load(&path);
    fs::remove_file(&path).expect("just written");
    assert_eq!(refused.expect_err("not UTF-8").exit_code(), 1);
}

#[test]
fn everything_that_is_wrong_is_told_in_one_go_and_in_the_order_of_the_file() {
    let text = "[node]\nname = \"-\"\nx = 1\n[[vip]]\nname = 5\naddresses = []\nvrrp = { interface = \"\", vrid = 0, priority = 0 }\n";
    let errors = config::parse(text, "f").expect_err("much is wrong");
    let lines: Vec<usize> = errors.findings.iter().map(|f| f.line).collect();
    assert_eq!(lines, [2, 3, 5, 6, 7, 7, 7], "{errors}");
}

#[test]
fn a_thousand_vips_and_a_group_of_two_hundred_fit_one_file() {
    let mut text = "[node]\nname = \"a\"\n".to_owned();
    for n in 0..1_000 {
        let group = if n < 200 { "group = \"g\"\n" } else { "" };
        text.push_str(&format!(
            "[[vip]]\nname = \"v{n}\"\n{group}addresses = [\"10.{}.{}.1/32\", \"2001:db8::{n:x}/128\"]\n\
             vrrp = {{ interface = \"eth{}\", vrid = {}, priority = 254 }}\n",
            n / 250,
            n % 250,
            n / 250,
            n % 250 + 1,
        ));
    }
    let config = config::parse(&text, "f").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.vips.len(), 801);
    assert_eq!((config.vips[0].members.len(), config.vips[0].legs.len()), (200, 400));
    properties::consistent(&config).expect("consistent");
}

#[test]
fn a_vip_of_both_families_is_one_unit_of_two_legs_with_the_link_local_address_first() {
    let of = |addresses: &str, vrrp: &str| {
        let text = format!(
            "[node]\nname = \"a\"\n[[vip]]\nname = \"v\"\naddresses = [{addresses}]\n\
             vrrp = {{ interface = \"eth0\", vrid = 10, priority = 254, {vrrp} }}\n"
        );
        config::parse(&text, "f").unwrap_or_else(|errors| panic!("{errors}")).vips.remove(0)
    };
    let both = "\"2001:db8::10/128\", \"192.0.2.10/32\"";
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let vip = of(both, "version = 2, peers = [\"fe80::2\", \"10.0.0.2\"], min_ttl = 254");
    let [v4, v6] = vip.legs.as_slice() else { panic!("{:?}", vip.legs) };
    assert_eq!((v4.family, v4.version, v4.peers.as_slice()), (Family::V4, Version::V2, &[ip("10.0.0.2")][..]));
    assert_eq!((v6.family, v6.version, v6.peers.as_slice()), (Family::V6, Version::V3, &[ip("fe80::2")][..]));
    assert_eq!((v4.min_ttl, v6.min_ttl), (254, 254));
    assert_eq!(vip.vrrp.interval.seconds(), Some(1), "the default of version 2");
    assert_eq!(v6.advertised, [ip("fe80::200:5eff:fe00:20a"), ip("2001:db8::10")]);
    let derived: Vec<_> = vip.addresses.iter().filter(|address| address.derived).collect();
    assert_eq!(derived.iter().map(|a| (a.ip, a.prefix)).collect::<Vec<_>>(), [(ip("fe80::200:5eff:fe00:20a"), 128)]);
    assert_eq!(vip.members[0].addresses, [ip("2001:db8::10"), ip("192.0.2.10")]);

    // Given, or among the addresses.
    let given = of(both, "link_local = \"fe80::1\"");
    assert_eq!(given.legs[1].advertised, [ip("fe80::1"), ip("2001:db8::10")]);
    assert!(given.addresses.iter().any(|a| a.ip == ip("fe80::1") && !a.derived));
    let written = of("\"2001:db8::10/128\", \"fe80::5/64\"", "");
    assert_eq!(written.legs[0].advertised, [ip("fe80::5"), ip("2001:db8::10")]);
    assert_eq!(written.addresses.len(), 2);

    // A family that isn't advertised goes along.
    let along = of("\"192.0.2.10/32\", { ip = \"2001:db8::10/128\", advertise = false }", "");
    assert_eq!((along.legs.len(), along.addresses.len()), (1, 2));
}

#[test]
fn a_group_is_one_unit_with_all_that_its_members_need() {
    let text = r#"
        [node]
        name = "a"
        [[balancer]]
        name = "one"
        kind = "process"
        pidfile = "/run/one.pid"
        [[balancer]]
        name = "two"
        kind = "process"
        pidfile = "/run/two.pid"
        [[check]]
        name = "web"
        tcp = "127.0.0.1:80"
        [[check]]
        name = "gw"
        gateway = "192.0.2.1"
        interface = "eth0"
        [[check]]
        name = "cache"
        tcp = "127.0.0.1:81"
        [[vip]]
        name = "outside"
        group = "edge"
        addresses = ["192.0.2.10/32"]
        balancer = "one"
        track = [{ check = "cache", weight = -20 }, { interface = "eth2", up_delay = "1s" }]
        vrrp = { interface = "eth0", vrid = 10, priority = 254, partition = "gateway", gateway = "gw", rivals = [253] }
        [[vip]]
        name = "alone"
        addresses = ["192.0.2.20/32"]
        balancer = "two"
        checks = ["gw"]
        vrrp = { interface = "eth0", vrid = 20, priority = 253 }
        [[vip]]
        name = "inside"
        group = "edge"
        addresses = ["10.2.0.1/24"]
        balancer = "two"
        checks = []
        routes = [{ to = "default", via = "192.0.2.1", table = 100 }]
        vrrp = { interface = "eth1", vrid = 10, priority = 254, partition = "gateway", gateway = "gw" }
    "#;
    let config = config::parse(text, "f").unwrap_or_else(|errors| panic!("{errors}"));
    let names: Vec<&str> = config.vips.iter().map(|vip| vip.name.as_str()).collect();
    assert_eq!(names, ["edge", "alone"]);
    let edge = &config.vips[0];
    assert!(edge.group && !config.vips[1].group);
    assert_eq!(edge.members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["outside", "inside"]);
    assert_eq!(edge.legs.iter().map(|l| l.interface.as_str()).collect::<Vec<_>>(), ["eth0", "eth1"]);
    assert_eq!(edge.balancers, [BalancerId(0), BalancerId(1)]);
    // Neither the gateway's check nor the weighed one, unless they are named.
    assert_eq!(edge.checks, [CheckId(0)]);
    assert_eq!(config.vips[1].checks, [CheckId(1)]);
    assert_eq!(edge.vrrp.gateway, Some(CheckId(1)));
    assert_eq!(edge.vrrp.rivals, [253]);
    assert_eq!(edge.tracks[0], Track { what: Tracked::Check(CheckId(2)), weight: Some(20) });
    assert_eq!(edge.tracks.len(), 2);
    assert_eq!(edge.routes[0].to_string(), "0.0.0.0/0 via 192.0.2.1 dev eth1 table 100");
}

#[test]
fn an_advert_larger_than_the_interface_takes_is_refused_with_how_many_are_too_many() {
    let list: Vec<String> = (1..=100).map(|n| format!("\"2001:db8::{n:x}/128\"")).collect();
    let text = format!(
        "[node]\nname = \"a\"\n[[vip]]\nname = \"v\"\naddresses = [{}]\n\
         vrrp = {{ interface = \"eth0\", vrid = 10, priority = 254 }}\n",
        list.join(", ")
    );
    // 40 + 8 + 101 × 16.
    let errors = config::parse_for(&text, "f", &|_| Some(1500)).expect_err("too large").to_string();
    assert!(errors.contains("f:5:13: vip[0].addresses: makes IPv6 adverts of 1664 bytes"), "{errors}");
    assert!(errors.contains("the MTU of eth0 (1500); accepted: advertise = false for at least 11"), "{errors}");
    assert!(config::parse_for(&text, "f", &|_| Some(1664)).is_ok());
    assert!(config::parse_for(&text, "f", &|_| Some(1663)).is_err());
    assert!(config::parse(&text, "f").is_ok(), "judged where the interface is known");
}

#[test]
fn each_kind_of_balancer_is_read_with_where_it_is_asked() {
    use holdfast_node::config::{Admin, BalancerKind, HttpAt, POLL};
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/good/balancers.toml");
    let config = config::load(&path).expect("a good file");
    let admins: Vec<_> = config.balancers.iter().map(|b| (b.kind, b.admin.clone())).collect();
    let http = |at, path: &str| Some(Admin::Http { at, path: path.to_owned() });
    let expected = [
        (BalancerKind::Haproxy, Some(Admin::Socket("/run/haproxy/admin.sock".into()))),
        (BalancerKind::Nginx, http(HttpAt::Tcp(([127, 0, 0, 1], 8080).into()), "/status?short")),
        (BalancerKind::Nginx, http(HttpAt::Unix("/run/nginx/status.sock".into()), "/status")),
        (BalancerKind::Envoy, http(HttpAt::Tcp("[::1]:9901".parse().expect("an address")), "/")),
        (BalancerKind::Envoy, http(HttpAt::Unix("/run/envoy/admin.sock".into()), "/")),
        (BalancerKind::Process, None),
    ];
    assert_eq!(admins, expected);
    let haproxy = config.balancers.first().expect("the first");
    assert_eq!(haproxy.master.as_deref(), Some(Path::new("/run/haproxy-master.sock")));
    assert_eq!(haproxy.config, [PathBuf::from("/etc/haproxy/haproxy.cfg")]);
    assert_eq!(
        config.balancers.iter().map(|b| b.poll.as_millis()).collect::<Vec<_>>(),
        [250, 500, 500, 500, 500, 60_000]
    );
    assert_eq!(config.balancers.get(1).expect("the second").poll, POLL);
}

#[test]
fn services_with_the_same_backends_under_the_same_rules_share_one_set() {
    use holdfast_node::config::{Affinity, BalancerKind, NatMode, OnDown, ProcessSource, SetId};
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/good/nft.toml");
    let config = config::load(&path).expect("a good file");
    let balancer = config.balancers.first().expect("one");
    assert_eq!((balancer.kind, &balancer.source), (BalancerKind::Nft, &ProcessSource::Kernel));
    let nft = config.nft.expect("it is there");
    let sets: Vec<Vec<u16>> =
        nft.services.iter().map(|s| s.addresses.iter().map(|(_, SetId(set))| *set).collect()).collect();
    assert_eq!(sets, [vec![0, 1], vec![2, 3], vec![4, 5], vec![4, 5]], "a set is of one family");
    let first = nft.sets.first().expect("of the first service");
    let backends: Vec<String> = first.backends.iter().map(|b| format!("{} {}", b.address, b.weight)).collect();
    assert_eq!(backends, ["10.2.0.21:8080 3", "10.2.0.22:8080 1"], "sorted, whatever the order in the file");
    assert!(first.backends.iter().all(|b| b.probe.is_some()));
    assert!(nft.sets[2..].iter().flat_map(|set| &set.backends).all(|b| b.probe.is_none()), "udp, and check = false");
    let probe = nft.probes.first().expect("of the first backend");
    assert_eq!((probe.interval.as_millis(), probe.fall, probe.rise), (1_000, 2, 3));
    let (one, two) = (&nft.services[0], &nft.services[1]);
    assert_eq!((one.mode, one.affinity, one.mss, one.snat.len()), (NatMode::Snat, Affinity::Source, Some(1_360), 2));
    let on_down: Vec<OnDown> = nft.services.iter().map(|service| service.on_down).collect();
    assert_eq!(on_down, [OnDown::Cut, OnDown::Cut, OnDown::Keep, OnDown::Keep], "said, UDP, TCP, TCP");
    assert_eq!((two.mode, two.affinity, two.mss, two.snat.len()), (NatMode::Dnat, Affinity::Flow, None, 0));
}

#[test]
fn a_group_is_replicated_as_one_and_what_is_said_of_a_vip_goes_before_the_rest() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/good/statesync.toml"));
    let config = config::parse(&text.expect("in the tree"), "statesync.toml").expect("accepted");
    let sync = config.statesync.expect("it is there");
    let modes: Vec<_> = sync.vips.iter().map(|vip| (vip.vip.0, vip.mode)).collect();
    let after = SyncMode::After(std::time::Duration::from_secs(5));
    assert_eq!(modes, [(0, after), (1, SyncMode::Syn)]);
    assert_eq!((sync.mark.shift, sync.mark.bits, sync.max_flows), (16, 6, 100_000));
    assert_eq!((sync.filter, sync.event_buffer), (SyncFilter::User, 200_000));
    let none = config::parse(&fs::read_to_string("tests/config/good/minimal.toml").expect("in the tree"), "x");
    assert_eq!(none.expect("accepted").statesync, None);
}

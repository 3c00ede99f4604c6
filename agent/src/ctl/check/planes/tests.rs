use super::model::{Finding, OurCheck, Ours, Plane};
use super::{Room, common, envoy, haproxy, included, matches, nginx, rules};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn haproxy(text: &str) -> Plane {
    haproxy::read(&[("haproxy.cfg".to_owned(), text.to_owned())])
}

fn nginx(text: &str) -> Plane {
    let file = |name: &str, text: &str| nginx::Included {
        files: vec![(name.to_owned(), text.to_owned())],
        ..nginx::Included::default()
    };
    nginx::read("nginx.conf", text, &|pattern| match pattern {
        "conf.d/*.conf" => {
            file("conf.d/a.conf", "server {\n listen 192.0.2.10:80;\n location / { proxy_pass http://app; }\n}")
        }
        "loop.conf" => file("loop.conf", "include loop.conf;"),
        _ => nginx::Included { missing: vec!["is not below the folder".to_owned()], ..nginx::Included::default() },
    })
}

fn envoy(text: &str) -> Plane {
    let mut plane = Plane::default();
    envoy::read(&mut plane, "envoy.yaml", text);
    plane
}

fn check(path: &str, expect: &[(u16, u16)], min: Duration, max: Duration) -> OurCheck {
    OurCheck {
        name: "web".to_owned(),
        address: "127.0.0.1:80".parse().expect("an address"),
        http: Some((path.to_owned(), expect.to_vec())),
        min,
        max,
    }
}

fn ours(check: OurCheck) -> Ours {
    let vips = vec!["192.0.2.10".parse().expect("an address"), "2001:db8::10".parse().expect("an address")];
    Ours { vips, checks: vec![check], nodes: 2, nonlocal: (false, false), admin: true }
}

fn fast() -> OurCheck {
    check("/", &[(200, 399)], MS(400), MS(900))
}

fn judged(mut plane: Plane, ours: &Ours) -> Plane {
    common::judge(&mut plane, ours);
    plane
}

/// `rule line`.
fn found(plane: &Plane) -> Vec<String> {
    plane.findings.iter().map(|Finding { rule, at, .. }| format!("{rule} {}", at.line)).collect()
}

const HAPROXY: &str = "global
    hard-stop-after 5m
    close-spread-time 1m
    maxconn 1000
defaults
    mode http
    timeout connect 1s
    timeout check 1s
frontend web
    bind :80
    default_backend app
backend app
    option httpchk
    server a 10.0.0.1:80 check inter 1s fall 2
    server b 10.0.0.2:80 check inter 1s fall 2
";

#[test]
fn a_haproxy_that_is_well_configured_has_no_findings_but_what_the_check_is_too_fast_for() {
    let plane = haproxy(HAPROXY);
    assert_eq!(found(&plane), Vec::<String>::new());
    // 1 s + 1 s + 1 s at least, 1 s more at most.
    let slow = check("/", &[(200, 399), (503, 503)], S(5), S(6));
    let plane = judged(plane, &ours(slow));
    assert_eq!(found(&plane), Vec::<String>::new());
    assert!(
        plane
            .facts
            .iter()
            .any(|f| f.contains("takes a dead backend out after 3s to 4s (inter 1s, fall 2, timeout 1s)")),
        "{:?}",
        plane.facts
    );
    assert!(plane.facts.iter().any(|f| f.contains("with all backends down check web gets 503 and passes")));
    assert!(plane.facts.iter().any(|f| f.contains("by 2 nodes 2.0 times a second each")), "{:?}", plane.facts);
}

#[test]
fn each_weak_line_of_a_haproxy_is_found_with_its_line() {
    let weak = "global
    grace 10s
    mworker-max-reloads 3
    maxconn 60000
    ulimit-n 65536
listen web
    bind 192.0.2.10:80,[2001:db8::10]:80
    bind :80
    balance leastconn
    server a 10.0.0.1:80 check inter 100ms
";
    let plane = judged(haproxy(weak), &ours(fast()));
    assert_eq!(
        found(&plane),
        [
            "hard-stop-after 1",
            "grace 2",
            "mworker-max-reloads 3",
            "fd-limit 4",
            "failing-looks-fastest 9",
            "nonlocal-bind 7",
            "nonlocal-bind 7",
            "pool-empty 8",
            "detection-faster 10",
            "probe-rate 6"
        ]
    );
}

#[test]
fn connections_are_closed_over_less_time_than_until_the_hard_stop() {
    for (spread, finds) in [("1m", false), ("5m", true), ("infinite", true), ("299s", false)] {
        let plane = haproxy(&HAPROXY.replace("close-spread-time 1m", &format!("close-spread-time {spread}")));
        assert_eq!(found(&plane), if finds { vec!["close-spread-time 3".to_owned()] } else { vec![] }, "{spread}");
    }
}

#[test]
fn old_processes_without_any_bound_are_found_twice_and_without_reload_limit_only_once() {
    let text = HAPROXY.replace("hard-stop-after 5m", "nbthread 2");
    assert_eq!(found(&haproxy(&text)), ["hard-stop-after 1", "mworker-max-reloads 1"]);
    let text = text.replace("nbthread 2", "mworker-max-reloads 50");
    assert_eq!(found(&haproxy(&text)), ["hard-stop-after 1"]);
}

#[test]
fn a_check_must_be_slower_than_the_detection_of_the_plane_and_not_very_much_slower() {
    let with = |min, max| found(&judged(haproxy(HAPROXY), &ours(check("/", &[(200, 503)], min, max))));
    assert_eq!(with(S(4), S(5)), ["detection-faster 15"], "at its worst the plane takes 4 s");
    assert_eq!(with(MS(4_001), S(5)), Vec::<String>::new());
    assert_eq!(with(S(16), S(17)), ["detection-slower 15"]);
    assert_eq!(with(S(15), S(16)), Vec::<String>::new());
}

#[test]
fn a_haproxy_of_10_s_2_s_and_2_failures_takes_14_to_24_s() {
    let text = "backend b\n timeout check 2s\n server a 10.0.0.1:80 check inter 10s fall 2\n";
    let plane = haproxy(text);
    let detection = plane.pools[0].detection.as_ref().expect("checked");
    assert_eq!((detection.min, detection.max), (S(14), S(24)));
}

#[test]
fn a_monitor_uri_is_the_balancers_own_answer_unless_it_judges_the_pool() {
    let with = |lines: &str, admin| {
        let text = HAPROXY.replace("    bind :80\n", &format!("    bind :80\n{lines}"));
        let mut ours = ours(check("/alive", &[(200, 200)], MS(400), MS(900)));
        ours.admin = admin;
        judged(haproxy(&text), &ours)
    };
    let plane = with("    monitor-uri /alive\n", true);
    assert_eq!(found(&plane), Vec::<String>::new());
    assert!(plane.facts.iter().any(|f| f.contains("answers by itself")), "{:?}", plane.facts);
    assert_eq!(found(&with("    monitor-uri /alive\n", false)), ["monitor-uri 11"], "a full balancer looks dead");
    let judged = "    monitor-uri /alive\n    acl empty nbsrv(app) lt 1\n    monitor fail if empty\n";
    assert_eq!(found(&with(judged, true)), ["pool-empty 11"]);
    let returned = "    http-request return status 200 if { path /alive }\n";
    assert_eq!(found(&with(returned, false)), Vec::<String>::new());
}

#[test]
fn a_listener_on_the_vip_needs_leave_to_bind_where_the_vip_is_not() {
    let text = HAPROXY.replace("bind :80", "bind 192.0.2.10:80 transparent");
    assert_eq!(found(&judged(haproxy(&text), &ours(fast()))), Vec::<String>::new());
    let text = HAPROXY.replace("bind :80", "bind 192.0.2.10:80");
    assert_eq!(found(&judged(haproxy(&text), &ours(fast()))), ["nonlocal-bind 10"]);
    let allowed = Ours { nonlocal: (true, false), ..ours(fast()) };
    assert_eq!(found(&judged(haproxy(&text), &allowed)), Vec::<String>::new());
    let six = HAPROXY.replace("bind :80", "bind 2001:db8::10:80");
    assert_eq!(found(&judged(haproxy(&six), &allowed)), ["nonlocal-bind 10"], "each family has its own switch");
}

#[test]
fn defaults_are_inherited_until_the_next_ones_and_by_name() {
    let text = "defaults slow\n default-server inter 10s fall 2\n timeout check 2s\ndefaults\n default-server inter 1s\n\
                backend a from slow\n server a 1.2.3.4:1 check\nbackend b\n server b 1.2.3.4:1 check\n";
    let plane = haproxy(text);
    let max = |n: usize| plane.pools[n].detection.as_ref().expect("checked").max;
    assert_eq!(max(0), S(24));
    // 1 s, three times, each with a timeout of its interval: 2 × 2 s + 1 s, and an interval before.
    assert_eq!(max(1), S(6));
}

const NGINX: &str = "worker_shutdown_timeout 5m;
worker_rlimit_nofile 4096;
events { worker_connections 1024; }
http {
    proxy_connect_timeout 2s;
    upstream app {
        server 10.0.0.1:80 max_fails=2;
        server 10.0.0.2:80;
    }
    server {
        listen 80;
        location = /alive { return 200; }
        location / { proxy_pass http://app; }
    }
}
";

/// Each of 10,000 would have a copy of 10,000.
#[test]
fn what_defaults_give_to_each_proxy_is_bounded_and_so_is_their_number() {
    let acls = "  acl dead nbsrv(app) lt 1\n  http-request return status 200 if { path /h }\n".repeat(10_000);
    let text = |proxies: usize| {
        let servers = "  server-template s 4096 h:80 check\n  bind :80\n  monitor fail if dead\n";
        format!("global\n  hard-stop-after 5m\ndefaults\n{servers}{acls}{}", "listen l\n  bind :81\n".repeat(proxies))
    };
    let plane = haproxy(&text(10_000));
    assert_eq!((plane.fronts.len(), plane.pools.len()), (10_000, 0), "HAProxy has no servers in defaults");
    assert!(plane.fronts.iter().all(|front| front.own.len() == 32 && front.binds.len() == 1));
    assert_eq!(found(&plane), [""; 0]);
    let plane = haproxy(&text(20_000));
    assert_eq!((plane.fronts.len(), found(&plane).len()), (16_383, 1), "and one was the defaults");
}

#[test]
fn an_nginx_that_is_well_configured_has_no_findings_and_passive_detection_is_reckoned_with() {
    let plane = judged(nginx(NGINX), &ours(check("/alive", &[(200, 200)], MS(400), MS(900))));
    assert_eq!(found(&plane), Vec::<String>::new());
    let plane = judged(nginx(NGINX), &ours(fast()));
    assert_eq!(found(&plane), ["pool-empty 11", "detection-faster 7"]);
    assert!(plane.findings[0].cause.contains("gets 502 and fails"), "{:?}", plane.findings[0]);
    assert!(
        plane.findings[1].cause.contains("0ms to 4s (max_fails 2, proxy_connect_timeout 2s)"),
        "{:?}",
        plane.findings[1]
    );
}

#[test]
fn each_weak_line_of_an_nginx_is_found_with_its_file_and_line() {
    let weak = "# a comment; { with marks\nevents {\n worker_connections 4096;\n}\nhttp {\n include conf.d/*.conf;\n include /elsewhere;\n}\n";
    let plane = judged(nginx(weak), &ours(fast()));
    assert_eq!(found(&plane), ["unreadable 7", "worker-shutdown-timeout 0", "fd-limit 3", "nonlocal-bind 2"]);
    assert_eq!(plane.findings[3].at.file, "conf.d/a.conf");
    let plane = nginx("worker_shutdown_timeout 1m;\ninclude loop.conf;");
    assert_eq!(plane.findings.len(), 1, "an include of itself ends: {:?}", plane.findings);
}

#[test]
fn what_an_include_names_and_is_not_looked_at_is_said() {
    let dir = std::env::temp_dir().join(format!("holdfast-included-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("sites/d.conf")).expect("a fresh directory");
    for name in ["a.conf", "b.conf", "c.conf", "other"] {
        std::fs::write(dir.join("sites").join(name), "server { listen 80; }").expect("writable");
    }
    let names = |files: &[(String, String)]| -> Vec<String> {
        files.iter().filter_map(|(name, _)| Some(name.rsplit_once('/')?.1.to_owned())).collect()
    };
    let room = |files, bytes| Room { files: Cell::new(files), bytes: Cell::new(bytes) };
    let some = |pattern: &str, room: &Room| {
        let included = included(&dir, pattern, room);
        (names(&included.files), included.missing)
    };
    let all = ["a.conf", "b.conf", "c.conf"].map(str::to_owned);
    let (files, missing) = some("sites/*.conf", &Room::default());
    assert_eq!(files, all, "one that can't be read doesn't hide the others");
    assert!(missing.len() == 1 && missing[0].contains("/sites/d.conf: "), "{missing:?}");
    let small = room(2, 1000);
    assert_eq!(
        some("sites/*.conf", &small),
        (all[..2].to_vec(), vec!["2 of 4 files are more than are looked at".to_owned()])
    );
    assert_eq!(some("sites/a.conf", &small).1, ["1 of 1 files are more than are looked at"]);
    let (files, missing) = some("sites/?.conf", &room(9, 50));
    assert_eq!((files, missing.len()), (all[..2].to_vec(), 2), "{missing:?}");
    assert!(missing[0].ends_with("/c.conf: more than is looked at"), "{missing:?}");
    for other in ["*/a.conf", "sites/[ab].conf", "../x.conf", "/etc/x.conf"] {
        assert_eq!(some(other, &Room::default()).1.len(), 1, "{other}");
    }
    assert_eq!(some("none/*.conf", &Room::default()), (vec![], vec![]), "nginx takes it too");
    let plane = nginx::read("nginx.conf", "http {\n include sites/*.conf;\n}", &|p| included(&dir, p, &room(3, 1000)));
    let said: Vec<&str> = plane.findings.iter().filter(|f| f.rule == "unreadable").map(|f| f.cause.as_str()).collect();
    assert_eq!(said, ["include sites/*.conf: 1 of 4 files are more than are looked at"]);
    std::fs::remove_dir_all(dir).expect("ours");
}

#[test]
fn findings_beyond_the_most_that_are_told_are_counted() {
    let plane = nginx(&"include /elsewhere;\n".repeat(150));
    assert_eq!((plane.findings.len(), plane.untold), (100, 51));
}

const ENVOY: &str = r#"
overload_manager:
  resource_monitors:
  - name: envoy.resource_monitors.global_downstream_max_connections
static_resources:
  listeners:
  - name: web
    address: { socket_address: { address: 0.0.0.0, port_value: 80 } }
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          route_config:
            virtual_hosts:
            - name: all
              routes:
              - match: { path: /alive }
                direct_response: { status: 200 }
              - match: { prefix: / }
                route: { cluster: app }
  clusters:
  - name: app
    health_checks:
    - timeout: 0.5s
      interval: 1s
      no_traffic_interval: 1s
      unhealthy_threshold: 2
    load_assignment:
      endpoints:
      - lb_endpoints: [{}, {}]
"#;

#[test]
fn an_envoy_that_is_well_configured_has_no_findings_as_yaml_and_as_json() {
    let alive = ours(check("/alive", &[(200, 200)], MS(400), MS(900)));
    assert_eq!(found(&judged(envoy(ENVOY), &alive)), Vec::<String>::new());
    let plane = judged(envoy(ENVOY), &ours(fast()));
    assert_eq!(found(&plane), ["pool-empty 8", "detection-faster 25"]);
    assert!(
        plane.findings[1].cause.contains("2s to 3s (interval 1s, unhealthy_threshold 2, timeout 500ms)"),
        "{:?}",
        plane.findings[1]
    );
    let json = "{\"static_resources\": {\"listeners\": [],\n\"clusters\": [{\"name\": \"a\",\n\"health_checks\": [{\"timeout\": \"1s\", \"interval\": \"5s\"}]}]}}";
    assert_eq!(found(&envoy(json)), ["no-traffic-interval 3"]);
}

#[test]
fn each_weak_line_of_an_envoy_is_found_with_its_line() {
    let weak = ENVOY
        .replace("global_downstream_max_connections", "fixed_heap")
        .replace("0.0.0.0", "192.0.2.10")
        .replace("      no_traffic_interval: 1s\n", "")
        .replace("  - name: app\n", "  - name: app\n    lb_policy: LEAST_REQUEST\n");
    let plane = judged(envoy(&weak), &ours(fast()));
    assert_eq!(found(&plane), ["no-traffic-interval 26", "failing-looks-fastest 24", "fd-limit 3", "nonlocal-bind 8"]);
    let free = weak.replace("  - name: web\n", "  - name: web\n    freebind: true\n");
    assert!(!found(&judged(envoy(&free), &ours(fast()))).iter().any(|f| f.starts_with("nonlocal-bind")));
    assert_eq!(found(&envoy("a: [1,\n")).len(), 1);
    assert_eq!(found(&envoy("")), ["unreadable 1"]);
}

#[test]
fn every_finding_is_one_of_the_documented_and_the_page_has_the_table() {
    let mut ids = BTreeSet::new();
    for rule in rules::RULES {
        assert!(ids.insert(rule.id), "{} is there twice", rule.id);
    }
    let all = [haproxy("global\n grace 1\n"), nginx(""), envoy("")];
    for finding in all.iter().flat_map(|plane| &plane.findings) {
        assert!(ids.contains(finding.rule), "{}", finding.rule);
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let page = std::fs::read_to_string(path).expect("the page is in the tree");
    assert!(page.contains(&rules::table()), "docs/cli.md should have:\n{}", rules::table());
}

#[test]
fn a_pattern_fits_as_a_shell_would_say() {
    for (pattern, name, fits) in [
        ("*.conf", "a.conf", true),
        ("*.conf", ".conf", true),
        ("*.conf", "a.conf~", false),
        ("*", "default", true),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("*a*b", "xaybzb", true),
        ("", "", true),
    ] {
        assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
    }
}

/// Pieces of which texts are made that come near to what the parsers know.
fn pieces() -> impl Strategy<Value = String> {
    let words = [
        "global",
        "defaults",
        "frontend",
        "backend",
        "listen",
        "bind",
        "server",
        "check",
        "inter",
        "fall",
        "4294967295",
        "18446744073709551615",
        "1s",
        "d",
        "http {",
        "server {",
        "}",
        ";",
        "{",
        "location",
        "upstream",
        "include loop.conf;",
        "\"",
        "'",
        "\\",
        "#",
        "\n",
        " ",
        "\t",
        ":",
        "- ",
        "[",
        "]",
        "&a",
        "*a",
        "static_resources:",
        "listeners:",
        "clusters:",
        "health_checks:",
        "timeout: 1e400s",
        "interval: 1s",
        "unhealthy_threshold: 4000000000",
        "maxconn",
        "ulimit-n",
        "192.0.2.10:80",
        "[::]:1-65535",
        "monitor-uri",
        "/",
        "${",
        "é",
        "|\n",
        "?",
        "---",
        "%",
        "!",
        "server-template",
        "1-99999999",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..60).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_makes_a_parser_panic_and_findings_are_bounded(text in prop_oneof![any::<String>(), pieces()]) {
        for plane in [haproxy(&text), nginx(&text), envoy(&text)] {
            let plane = judged(plane, &ours(fast()));
            prop_assert!(plane.findings.len() <= super::model::FINDINGS_MAX);
        }
    }

    #[test]
    fn a_damaged_file_is_still_looked_at(cut in any::<prop::sample::Index>(), with in any::<char>(), which in 0usize..3) {
        let text = [HAPROXY, NGINX, ENVOY][which];
        let at = cut.index(text.chars().count());
        let damaged: String = text.chars().enumerate().map(|(n, c)| if n == at { with } else { c }).collect();
        for plane in [haproxy(&damaged), nginx(&damaged), envoy(&damaged)] {
            judged(plane, &ours(fast()));
        }
    }
}

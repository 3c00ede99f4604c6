//! What the status says of configurations that don't belong together.

use super::lab::*;
use crate::status::Verdict;
use holdfast_vrrp::Vrid;

/// Two nodes that have run for a while, the second with another configuration.
fn pair(change: impl Fn(&mut crate::config::Vip)) -> Lab {
    let mut lab = Lab::new(&[254, 253], true);
    change(&mut lab.hosts[1].config.vips[0]);
    (0..2).for_each(|i| lab.start(i));
    lab.run(ms(10_000));
    lab
}

fn warned(lab: &Lab, i: usize, what: &str) -> bool {
    let status = lab.node(i).status(lab.now);
    status.verdict == Verdict::Degraded && status.warnings.iter().any(|w| w.text.contains(what))
}

fn story(lab: &Lab) -> String {
    format!("{:?}\n{:?}", lab.node(0).status(lab.now).warnings, lab.node(1).status(lab.now).warnings)
}

#[test]
fn a_pair_that_belongs_together_has_no_warning() {
    let lab = pair(|_| {});
    assert_eq!(story(&lab), "[]\n[]");
}

#[test]
fn a_vip_that_the_peer_knows_by_another_name_is_told_on_both() {
    let lab = pair(|vip| {
        vip.name = name("www");
        vip.members[0].name = name("www");
    });
    assert!(
        warned(&lab, 0, "lb1 says nothing of web") && warned(&lab, 1, "lb0 says nothing of www"),
        "{}",
        story(&lab)
    );
}

#[test]
fn another_vrid_shows_as_adverts_that_do_not_arrive() {
    let lab = pair(|vip| vip.legs[0].vrid = Vrid::new(11).expect("a vrid"));
    assert!(warned(&lab, 1, "lb0 owns web, but its adverts don't arrive on eth0"), "{}", story(&lab));
}

#[test]
fn other_addresses_under_the_same_vrid_are_told() {
    let lab = pair(|vip| {
        let other = "192.0.2.99".parse().expect("an address");
        vip.addresses[0].ip = other;
        vip.legs[0].advertised = vec![other];
        vip.members[0].addresses = vec![other];
    });
    assert!(warned(&lab, 1, "has other addresses for VRID 10 on eth0"), "{}", story(&lab));
}

#[test]
fn a_node_that_keeps_an_address_says_why_once() {
    let mut lab = Lab::settled(&[254, 253], true);
    (0..2).for_each(|i| lab.kill_balancer(i));
    lab.run(ms(1_000));
    let owner = lab.owners()[0];
    let status = lab.node(owner).status(lab.now);
    let told = status.warnings.iter().filter(|w| w.text.contains("balancer")).count();
    assert_eq!(told, 1, "{:?}", status.warnings);
}

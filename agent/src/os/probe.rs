//! Asks the segment who has an address.
//!
//! What this module refuses to do: keep a socket longer than a question; change the kernel's neighbour table.

use super::asyncfd::AsyncDescriptor;
use super::packet::{self, Takes, link_address, send_frame};
use holdfast_node::io::ProbeOutcome;
use holdfast_vrrp::frames::{Kind, Mac, arp_request, neighbour_solicitation, parse_arp_reply, parse_na};
use nix::sys::socket::{MsgFlags, recv};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Who has `target`? Sends up to `tries` ARP requests (or neighbour solicitations) from `source`, waits `wait` for an
/// answer to each, and tells whether the target itself answered; if not, whether any of the `others`, who were asked at
/// the same time, did. Others of another family are passed over. Must be called inside a tokio runtime; needs
/// CAP_NET_RAW.
///
/// # Errors
/// `EAFNOSUPPORT` when `source` and `target` are of different families, else whatever the system says about the socket
/// or the first send.
pub async fn probe(
    ifindex: u32,
    source: IpAddr,
    target: IpAddr,
    others: &[IpAddr],
    tries: u8,
    wait: Duration,
) -> io::Result<ProbeOutcome> {
    if source.is_ipv4() != target.is_ipv4() {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    }
    let takes = if target.is_ipv4() { Takes::Arp } else { Takes::NeighbourAdvertisements };
    let fd = packet::open(ifindex, takes)?;
    let mac = link_address(&fd)?;
    let socket = AsyncDescriptor::new(fd)?;
    let outcome = question(&socket, mac, (source, target), others, tries, wait).await;
    // After an election of hundreds of virtual routers there are dozens at once, and each would hold the caller up.
    socket.close_elsewhere();
    outcome
}

/// Who has `target`? As [`probe`], but tells the link address of everybody who says that he has it, in order: after the
/// first answer others are waited for, `linger` long. Must be called inside a tokio runtime; needs CAP_NET_RAW.
///
/// # Errors
/// As for [`probe`].
pub async fn who_has(
    ifindex: u32,
    source: IpAddr,
    target: IpAddr,
    tries: u8,
    wait: Duration,
    linger: Duration,
) -> io::Result<BTreeSet<Mac>> {
    if source.is_ipv4() != target.is_ipv4() {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    }
    let takes = if target.is_ipv4() { Takes::Arp } else { Takes::NeighbourAdvertisements };
    let fd = packet::open(ifindex, takes)?;
    let mac = link_address(&fd)?;
    let socket = AsyncDescriptor::new(fd)?;
    let (mut buffer, mut found) = ([0; 256], BTreeSet::new());
    for _ in 0..tries {
        ask(&socket, mac, source, target)?;
        let mut deadline = Instant::now() + wait;
        // Bounded by the deadline: other frames are skipped.
        loop {
            let read = socket.read(|fd| Ok(recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?));
            let Ok(read) = timeout_at(deadline, read).await else { break };
            let frame = buffer.get(..read?).unwrap_or_default();
            let Some(answered) = answered_by(frame, mac, source, target) else { continue };
            if found.is_empty() {
                deadline = deadline.min(Instant::now() + linger);
            }
            // More than a handful is a broken segment, whoever they are.
            if found.len() < ANSWERS_MAX {
                found.insert(answered);
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    socket.close_elsewhere();
    Ok(found)
}

/// Hosts that are told apart.
const ANSWERS_MAX: usize = 8;

/// Whose answer to our question this is.
fn answered_by(frame: &[u8], mac: Mac, source: IpAddr, target: IpAddr) -> Option<Mac> {
    if !answers(frame, mac, source, target) {
        return None;
    }
    match target {
        IpAddr::V4(_) => parse_arp_reply(frame).map(|arp| arp.sender_mac),
        // RFC 4861 section 4.4 wants the option in answers to multicast questions; else the frame says who sent it.
        IpAddr::V6(_) => {
            let sender = frame.get(6..12).and_then(|sender| Mac::try_from(sender).ok());
            parse_na(frame).and_then(|na| na.mac).or(sender)
        }
    }
}

async fn question(
    socket: &AsyncDescriptor,
    mac: Mac,
    (source, target): (IpAddr, IpAddr),
    others: &[IpAddr],
    tries: u8,
    wait: Duration,
) -> io::Result<ProbeOutcome> {
    let mut buffer = [0; 256];
    let mut outcome = ProbeOutcome::Nobody;
    for _ in 0..tries {
        for asked in std::iter::once(&target).chain(others) {
            ask(socket, mac, source, *asked)?;
        }
        let deadline = Instant::now() + wait;
        // Bounded by the deadline: other frames are skipped.
        loop {
            let read = socket.read(|fd| Ok(recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?));
            let Ok(read) = timeout_at(deadline, read).await else { break };
            let frame = buffer.get(..read?).unwrap_or_default();
            if answers(frame, mac, source, target) {
                return Ok(ProbeOutcome::Target);
            }
            if others.iter().any(|other| answers(frame, mac, source, *other)) {
                outcome = ProbeOutcome::Others;
            }
        }
    }
    Ok(outcome)
}

fn ask(socket: &AsyncDescriptor, mac: Mac, source: IpAddr, target: IpAddr) -> io::Result<()> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => send_frame(socket, &arp_request(mac, source, target)),
        (IpAddr::V6(source), IpAddr::V6(target)) => send_frame(socket, &neighbour_solicitation(mac, source, target)),
        _ => Ok(()),
    }
}

fn answers(frame: &[u8], mac: Mac, source: IpAddr, target: IpAddr) -> bool {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => replies(frame, mac, source, target),
        (IpAddr::V6(_), IpAddr::V6(target)) => advertises(frame, mac, target),
        _ => false,
    }
}

/// Whether this frame is `target`'s answer to our request: a reply to us, from it, for the address that we asked from.
/// An announcement of the target isn't one: it doesn't show that our frames get through.
fn replies(frame: &[u8], mac: Mac, source: Ipv4Addr, target: Ipv4Addr) -> bool {
    parse_arp_reply(frame).is_some_and(|arp| {
        arp.answers(target) && arp.target == source && arp.target_mac == mac && arp.sender_mac != mac
    })
}

/// The same for IPv6: an advertisement that says it was asked for, in a frame to us from another. Only our question can
/// have caused it: the socket lives no longer than that, and the kernel, if it asks too, learns the same.
fn advertises(frame: &[u8], mac: Mac, target: Ipv6Addr) -> bool {
    let Some((to, rest)) = frame.split_first_chunk::<6>() else { return false };
    *to == mac
        && !rest.starts_with(&mac)
        && parse_na(frame)
            .is_some_and(|na| na.answers(target) && matches!(na.kind, Kind::Advertisement { solicited: true, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_vrrp::frames::{gratuitous_arp, unsolicited_na};

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn only_a_reply_of_the_target_to_us_is_an_answer() {
        let (us, them) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut reply = arp_request(OTHER, them, us);
        reply[21] = 2;
        assert!(!replies(&reply, MAC, us, them), "it must be addressed to our link address");
        reply[32..38].copy_from_slice(&MAC);
        assert!(replies(&reply, MAC, us, them));
        assert_eq!(answered_by(&reply, MAC, us.into(), them.into()), Some(OTHER));
        assert!(!replies(&reply, MAC, us, Ipv4Addr::new(10, 0, 0, 3)), "of another");
        assert!(!replies(&reply, MAC, Ipv4Addr::new(10, 0, 0, 9), them), "for another question");
        assert!(!replies(&gratuitous_arp(OTHER, them), MAC, us, them), "an announcement");
        reply[22..28].copy_from_slice(&MAC);
        assert!(!replies(&reply, MAC, us, them), "of our own interface");
    }

    #[test]
    fn only_a_solicited_advertisement_of_the_target_to_us_is_an_answer() {
        let them: Ipv6Addr = "2001:db8::10".parse().expect("valid");
        let mut frame = unsolicited_na(OTHER, them);
        frame[..6].copy_from_slice(&MAC);
        assert!(!advertises(&frame, MAC, them), "an announcement");
        frame[58] |= 0x40;
        let checksum = u16::from_be_bytes([frame[56], frame[57]]) - 0x4000;
        frame[56..58].copy_from_slice(&checksum.to_be_bytes());
        assert!(advertises(&frame, MAC, them));
        assert_eq!(answered_by(&frame, MAC, Ipv6Addr::LOCALHOST.into(), them.into()), Some(OTHER));
        assert!(!advertises(&frame, OTHER, them), "to another");
        assert!(!advertises(&frame, MAC, Ipv6Addr::LOCALHOST), "of another");
        assert!((0..frame.len()).all(|cut| !advertises(&frame[..cut], MAC, them)), "cut");
        frame[6..12].copy_from_slice(&MAC);
        assert!(!advertises(&frame, MAC, them), "of our own interface");
    }
}

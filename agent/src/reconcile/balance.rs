//! The embedded balancer's table, changed by a thread of its own: a large one takes the kernel hundreds of milliseconds,
//! and no advert is to wait for that.

use crate::os::nft::{Balancer, TableWatch};
use holdfast_node::io::StepError;
use holdfast_node::pool::{Balance, Ruleset};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Changes that wait for the thread. The node asks for one at a time. Full → refused, and asked for again.
const CHANGES_MAX: usize = 4;

/// What the protocol thread hears of the table.
#[derive(Debug)]
pub enum Heard {
    /// A change is done, or isn't.
    Done(Balance, Result<(), StepError>),
    /// Somebody else changed something.
    Touched,
}

/// The thread, and what is heard of its table. The thread ends with this.
#[derive(Debug)]
pub(super) struct Desk {
    told: SyncSender<Balance>,
    done: mpsc::Receiver<(Balance, Result<bool, StepError>)>,
    watch: TableWatch,
    /// A change ended with a word of others.
    touched: bool,
}

impl Desk {
    /// Must be called inside a tokio runtime, in the network namespace of the table.
    pub(super) fn start() -> io::Result<Self> {
        let (watch, membership) = TableWatch::open()?;
        let mut balancer = Balancer::unheard(membership)?;
        let (told, asked) = sync_channel::<Balance>(CHANGES_MAX);
        let (tell, done) = mpsc::channel(CHANGES_MAX + 1);
        std::thread::Builder::new().name("nft".to_owned()).spawn(move || {
            while let Ok(balance) = asked.recv() {
                let result = forwards(&balance).and_then(|()| balancer.apply(&balance));
                if tell.blocking_send((balance, result)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { told, done, watch, touched: false })
    }

    pub(super) fn ask(&self, balance: &Balance) -> Result<(), StepError> {
        self.told.try_send(balance.clone()).map_err(|error| {
            let errno = if matches!(error, TrySendError::Full(_)) { libc::EAGAIN } else { libc::ESRCH };
            StepError { errno, what: "change the balancing table: its thread is busy or gone".to_owned() }
        })
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        if std::mem::take(&mut self.touched) {
            return Poll::Ready(Heard::Touched);
        }
        if let Poll::Ready(Some((balance, result))) = self.done.poll_recv(cx) {
            self.touched = matches!(result, Ok(true));
            return Poll::Ready(Heard::Done(balance, result.map(|_| ())));
        }
        self.watch.poll_touched(cx).map(|()| Heard::Touched)
    }
}

/// A table that rewrites packets which the host then doesn't forward serves nobody. The setting concerns all that the
/// host does: it is the operator's to make.
fn forwards(balance: &Balance) -> Result<(), StepError> {
    let Balance::Load(ruleset) = balance else { return Ok(()) };
    for (six, path, key) in [
        (false, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (true, "/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        if serves(ruleset, six) && fs::read_to_string(path).is_ok_and(|text| text.trim() == "0") {
            let what = format!("load the balancing table: {key} is 0: set it to 1, or nothing reaches a backend");
            return Err(StepError { errno: libc::EINVAL, what });
        }
    }
    Ok(())
}

fn serves(ruleset: &Ruleset, six: bool) -> bool {
    let mut addresses = ruleset.services.iter().flat_map(|service| &service.addresses);
    addresses.any(|(ip, _)| matches!(ip, IpAddr::V6(_)) == six)
}

//! The packet filter, changed by a thread of its own: the kernel makes one change to it at a time, whoever asks, and a
//! large one takes hundreds of milliseconds. No advert is to wait for that, be it our own load or somebody else's.

use super::failure;
use super::thread::Thread;
use crate::os::nft::{Balancer, EventFilter, EventMask, Guard, Membership, TableWatch};
use holdfast_node::io::{FlowEvents, FlowFilter, Step, StepError};
use holdfast_node::pool::{Balance, Ruleset};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

/// What the protocol thread hears of the packet filter.
#[derive(Debug)]
pub enum Heard {
    /// A step is done, or isn't.
    Done(Step, Result<(), StepError>),
    /// Somebody else changed something of the balancer's table.
    Touched,
}

#[derive(Debug)]
enum Job {
    Step(Step),
    /// Of the watch of the balancer's table; before the first step to that.
    Watch(Membership),
}

/// A step, and whether somebody else changed something meanwhile.
type Answer = (Step, Result<bool, StepError>);

/// The thread, and what is heard of the balancer's table.
#[derive(Debug)]
pub(super) struct Desk {
    thread: Thread<Job, Answer>,
    /// From the first step to that table on.
    watch: Option<TableWatch>,
    /// A change ended with a word of others.
    touched: bool,
}

impl Desk {
    pub(super) fn start() -> io::Result<Self> {
        let mut filter = Filter::default();
        Ok(Self { thread: Thread::start("nft", move |job| filter.work(job))?, watch: None, touched: false })
    }

    /// Must be called inside a tokio runtime.
    pub(super) fn ask(&mut self, step: &Step) -> Result<(), StepError> {
        if self.watch.is_none() && matches!(step, Step::Balance(_)) {
            let (watch, membership) = TableWatch::open().map_err(|e| open_failed(&e))?;
            self.thread.ask(Job::Watch(membership))?;
            self.watch = Some(watch);
        }
        self.thread.ask(Job::Step(step.clone()))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        if std::mem::take(&mut self.touched) {
            return Poll::Ready(Heard::Touched);
        }
        if let Poll::Ready((step, result)) = self.thread.poll(cx) {
            self.touched = matches!(result, Ok(true));
            return Poll::Ready(Heard::Done(step, result.map(|_| ())));
        }
        let Some(watch) = &mut self.watch else { return Poll::Pending };
        watch.poll_touched(cx).map(|()| Heard::Touched)
    }
}

/// Whether the step removes what isn't there: no thread is needed to find nothing. The kernel answers at once, whatever
/// else it does.
pub(super) fn removes_nothing(step: &Step) -> bool {
    match step {
        // A kernel without a packet filter has nothing of a former run either.
        Step::Guard { addresses } if addresses.is_empty() => {
            Guard::open().map_or(true, |mut guard| guard.is_there().is_ok_and(|there| !there))
        }
        Step::EventFilter { filter: FlowFilter::Off } => {
            EventFilter::open().map_or(true, |mut filter| filter.is_there().is_ok_and(|there| !there))
        }
        Step::Balance(Balance::Unload) => {
            Balancer::open().map_or(true, |mut balancer| balancer.is_there().is_ok_and(|there| !there))
        }
        _ => false,
    }
}

/// What the thread has. Each socket is opened at its first use.
#[derive(Debug, Default)]
struct Filter {
    guard: Option<Guard>,
    balancer: Option<Balancer>,
    events: Option<EventFilter>,
    membership: Option<Membership>,
}

impl Filter {
    fn work(&mut self, job: Job) -> Option<Answer> {
        let step = match job {
            Job::Step(step) => step,
            Job::Watch(membership) => {
                self.membership = Some(membership);
                return None;
            }
        };
        let result = match &step {
            Step::Guard { addresses } => self.guard(addresses).map(|()| false),
            Step::Balance(balance) => self.balance(balance),
            Step::EventFilter { filter } => self.events(filter).map(|()| false),
            _ => return None,
        };
        Some((step, result))
    }

    fn guard(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), StepError> {
        if self.guard.is_none() {
            self.guard = Some(Guard::open().map_err(|e| open_failed(&e))?);
        }
        self.guard.as_mut().expect("opened above").set(addresses)
    }

    fn events(&mut self, filter: &FlowFilter) -> Result<(), StepError> {
        if self.events.is_none() {
            self.events = Some(EventFilter::open().map_err(|e| open_failed(&e))?);
        }
        let events = self.events.as_mut().expect("opened above");
        match filter {
            FlowFilter::Off => events.remove(),
            FlowFilter::All => events.replicate(None),
            FlowFilter::Of(vips) => {
                let mask = |of: &FlowEvents| match of {
                    FlowEvents::AtAssured => EventMask::AT_ASSURED,
                    FlowEvents::AtSyn => EventMask::AT_SYN,
                };
                let masks = vips.iter().map(|(ip, of)| (*ip, mask(of))).collect();
                events.replicate(Some(&masks))
            }
        }
    }

    fn balance(&mut self, balance: &Balance) -> Result<bool, StepError> {
        forwards(balance)?;
        if self.balancer.is_none() {
            let balancer = Balancer::open().map_err(|e| open_failed(&e))?;
            self.balancer = Some(match self.membership.take() {
                Some(membership) => balancer.unheard(membership),
                None => balancer,
            });
        }
        self.balancer.as_mut().expect("opened above").apply(balance)
    }
}

fn open_failed(error: &io::Error) -> StepError {
    failure(error, || "open the packet filter".to_owned())
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

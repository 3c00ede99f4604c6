//! Real-time scheduling, locked memory, resource limits, and how late a loop woke up.
//!
//! What isn't permitted is not an error that ends anything: the caller goes on and shows the [`Reason`].

use super::caps::CapabilitySet;
use rustix::mm::MlockAllFlags;
use rustix::process::{Pid, Resource, Rlimit};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// Priority of the keeper under SCHED_RR: above the worker, or a busy protocol thread could starve its supervisor.
pub const KEEPER_PRIORITY: u8 = 41;
/// Priority of the worker's protocol thread under SCHED_RR: below what kernels give to interrupt threads (50).
pub const PROTOCOL_PRIORITY: u8 = 40;

/// Why something isn't permitted, in the operator's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The process lacks a capability and its limit is too low.
    Limit {
        /// What was asked for.
        what: &'static str,
        /// Name of the limit.
        limit: &'static str,
        /// Its value now; `None`: unlimited.
        have: Option<u64>,
        /// The capability that would do as well.
        capability: &'static str,
    },
    /// The capability is there, but only within a user namespace, which the kernel doesn't accept for this.
    Namespace {
        /// What was asked for.
        what: &'static str,
    },
    /// The capability is there and still the kernel refuses: the cgroup has no real-time budget (RT_GROUP_SCHED).
    Cgroup {
        /// What was asked for.
        what: &'static str,
    },
    /// Anything else.
    Other {
        /// What was asked for.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { what, limit, have, capability } => {
                write!(f, "{what} not permitted: {limit} is ")?;
                match have {
                    Some(have) => write!(f, "{have}")?,
                    None => f.write_str("unlimited")?,
                }
                write!(f, " and CAP_{capability} is missing")
            }
            Self::Namespace { what } => write!(f, "{what} not permitted in a rootless namespace"),
            Self::Cgroup { what } => {
                write!(f, "{what} not permitted in this cgroup: it has no real-time budget (cpu.rt_runtime_us)")
            }
            Self::Other { what, errno } => write!(f, "{what}: {}", io::Error::from_raw_os_error(*errno)),
        }
    }
}

/// Nine times the share of a process with default scheduling.
const FAVOURED_NICE: i32 = -10;

/// The shortest that the kernel takes; by default it is 2.8 ms.
const SHORT_TURN: Duration = Duration::from_micros(100);

const REALTIME: &str = "real-time scheduling";
const LOCKED: &str = "locked memory";

/// Puts the calling thread under SCHED_RR with reset-on-fork: its children and threads start with default scheduling.
///
/// # Errors
/// The reason to show; the thread goes on as it was.
pub fn realtime(priority: u8) -> Result<(), Reason> {
    let parameters = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a plain system call on this thread; `parameters` lives through it.
    let result =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const parameters) };
    if result == 0 {
        return Ok(());
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if errno != libc::EPERM {
        return Err(Reason::Other { what: REALTIME, errno });
    }
    let limit = rustix::process::getrlimit(Resource::Rtprio).current;
    Err(refused(priority, has(CapabilitySet::SYS_NICE), super::caps::in_user_namespace(), limit))
}

/// Which of the reasons it was, when the kernel said EPERM.
fn refused(priority: u8, capable: bool, namespace: bool, limit: Option<u64>) -> Reason {
    let within = limit.is_none_or(|limit| limit >= u64::from(priority));
    match (capable, namespace) {
        (true, true) if !within => Reason::Namespace { what: REALTIME },
        (false, _) if !within => {
            Reason::Limit { what: REALTIME, limit: "RLIMIT_RTPRIO", have: limit, capability: "SYS_NICE" }
        }
        _ => Reason::Cgroup { what: REALTIME },
    }
}

/// Locks all memory of the process, each page when it is first touched: no page fault goes to disk afterwards, and
/// what is never touched costs nothing.
///
/// # Errors
/// The reason to show. With a finite RLIMIT_MEMLOCK and no CAP_IPC_LOCK it is refused here without asking the
/// kernel: with a lock on all future memory a limit that is reached later turns into a failed allocation, which is
/// worse than a page fault.
pub fn lock_memory_on_fault() -> Result<(), Reason> {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    if limit.is_some() && !has(CapabilitySet::IPC_LOCK) {
        return Err(Reason::Limit { what: LOCKED, limit: "RLIMIT_MEMLOCK", have: limit, capability: "IPC_LOCK" });
    }
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|error| Reason::Other { what: LOCKED, errno: error.raw_os_error() })
}

/// Gives the calling thread, and every thread that it starts from now on, more of a busy processor: a check that gets
/// no processor time says nothing about its target.
///
/// # Errors
/// The reason to show; the thread goes on as it was.
pub fn favour() -> Result<(), Reason> {
    const WHAT: &str = "a higher share of the processor";
    rustix::process::setpriority_process(None, FAVOURED_NICE).map_err(|error| match error {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Reason::Limit {
            what: WHAT,
            limit: "RLIMIT_NICE",
            have: rustix::process::getrlimit(Resource::Nice).current,
            capability: "SYS_NICE",
        },
        other => Reason::Other { what: WHAT, errno: other.raw_os_error() },
    })
}

/// Has the calling thread run soon after it is woken, and for no longer at a time in return: its share of a busy processor
/// stays what it is. Kernels before 6.12 don't know of this, and go on as before.
pub fn short_turns() {
    /// `struct sched_attr` as it was first; the kernel takes what is missing as zero.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    /// `SCHED_FLAG_KEEP_POLICY`.
    const KEEP_POLICY: u64 = 0x08;
    let Ok(nice) = rustix::process::getpriority_process(None) else { return };
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: KEEP_POLICY,
        nice,
        priority: 0,
        runtime: SHORT_TURN.as_nanos() as u64,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the pointer is to a live structure that says its own size; 0 is the calling thread.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// What a process must keep of its capabilities for [`realtime`] at this priority and [`lock_memory_on_fault`],
/// because its limits alone don't permit them.
pub fn capabilities_needed(priority: u8) -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    if rustix::process::getrlimit(Resource::Memlock).current.is_some() {
        needed |= CapabilitySet::IPC_LOCK;
    }
    if rustix::process::getrlimit(Resource::Rtprio).current.is_some_and(|limit| limit < u64::from(priority)) {
        needed |= CapabilitySet::SYS_NICE;
    }
    needed
}

/// Raises RLIMIT_MEMLOCK (to unlimited) and RLIMIT_RTPRIO (to `priority`) of another process; limits that are higher
/// already stay.
///
/// # Errors
/// One reason for each limit that this host forbids raising; the other is raised all the same.
pub fn raise_limits(pid: Pid, priority: u8) -> Result<(), Vec<Reason>> {
    let wanted = [
        (Resource::Memlock, None, LOCKED, "RLIMIT_MEMLOCK"),
        (Resource::Rtprio, Some(u64::from(priority)), REALTIME, "RLIMIT_RTPRIO"),
    ];
    let mut refused = Vec::new();
    for (resource, want, what, limit) in wanted {
        let have = rustix::process::getrlimit(resource);
        if at_least(have.current, want) {
            continue;
        }
        let maximum = if at_least(have.maximum, want) { have.maximum } else { want };
        if rustix::process::prlimit(Some(pid), resource, Rlimit { current: want, maximum }).is_err() {
            refused.push(Reason::Limit { what, limit, have: have.current, capability: "SYS_RESOURCE" });
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused) }
}

/// `None` is unlimited.
fn at_least(have: Option<u64>, want: Option<u64>) -> bool {
    match (have, want) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(have), Some(want)) => have >= want,
    }
}

fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// How late a loop wakes up: tell it when the wake-up is due, ask it when awake.
#[derive(Debug, Default)]
pub struct Lateness {
    due: Option<Instant>,
    /// The worst since it was last taken.
    worst: Duration,
}

impl Lateness {
    /// The loop is about to wait until `due` (`None`: until something happens).
    pub fn expect(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    /// The loop is awake. How much later than due; zero when it was woken before.
    pub fn observe(&mut self, now: Instant) -> Duration {
        let late = self.due.take().map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        self.worst = self.worst.max(late);
        late
    }

    /// The worst since the last call, for metrics.
    pub fn take_worst(&mut self) -> Duration {
        std::mem::take(&mut self.worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_what_an_operator_can_change() {
        let limit = refused(40, false, false, Some(0));
        assert_eq!(
            limit.to_string(),
            "real-time scheduling not permitted: RLIMIT_RTPRIO is 0 and CAP_SYS_NICE is missing"
        );
        assert_eq!(refused(40, true, true, Some(0)), Reason::Namespace { what: REALTIME });
        assert_eq!(refused(40, true, false, Some(0)), Reason::Cgroup { what: REALTIME });
        assert_eq!(refused(40, false, false, Some(50)), Reason::Cgroup { what: REALTIME });
        assert_eq!(refused(40, false, false, None), Reason::Cgroup { what: REALTIME });
    }

    #[test]
    fn real_time_is_reset_on_fork_or_its_refusal_has_a_reason() {
        let result = std::thread::spawn(|| {
            realtime(PROTOCOL_PRIORITY).map(|()| {
                // SAFETY: a plain query of this thread's policy.
                let policy = unsafe { libc::sched_getscheduler(0) };
                assert_eq!(policy, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
                let child = std::thread::spawn(|| {
                    // SAFETY: as above.
                    unsafe { libc::sched_getscheduler(0) }
                });
                assert_eq!(child.join().expect("joined"), libc::SCHED_OTHER);
            })
        })
        .join()
        .expect("joined");
        if let Err(reason) = result {
            println!("not permitted here: {reason}");
            assert!(!matches!(reason, Reason::Other { .. }), "{reason}");
        }
    }

    #[test]
    fn a_favoured_thread_passes_it_on_or_the_refusal_has_a_reason() {
        let nice = || rustix::process::getpriority_process(None).expect("this thread's");
        let result = std::thread::spawn(move || favour().map(|()| std::thread::spawn(nice).join().expect("joined")));
        match result.join().expect("joined") {
            Ok(child) => assert_eq!(child, FAVOURED_NICE),
            Err(reason) => {
                println!("not permitted here: {reason}");
                assert!(!matches!(reason, Reason::Other { .. }), "{reason}");
            }
        }
    }

    #[test]
    fn short_turns_leave_the_policy_and_the_share_as_they_are() {
        let both = || {
            let nice = rustix::process::getpriority_process(None).expect("this thread's");
            // SAFETY: a plain query of this thread's policy.
            (unsafe { libc::sched_getscheduler(0) }, nice)
        };
        let compared = std::thread::spawn(move || {
            let before = both();
            short_turns();
            (before, both())
        });
        let (before, after) = compared.join().expect("joined");
        assert_eq!(before, after);
    }

    #[test]
    fn limits_compare_with_unlimited_as_the_largest() {
        assert!(at_least(None, None) && at_least(None, Some(5)) && at_least(Some(5), Some(5)));
        assert!(!at_least(Some(5), None) && !at_least(Some(4), Some(5)));
    }

    #[test]
    fn lateness_counts_only_waits_that_ran_out() {
        let start = Instant::now();
        let mut lateness = Lateness::default();
        lateness.expect(Some(start + Duration::from_millis(10)));
        assert_eq!(lateness.observe(start + Duration::from_millis(5)), Duration::ZERO);
        lateness.expect(Some(start + Duration::from_millis(10)));
        assert_eq!(lateness.observe(start + Duration::from_millis(17)), Duration::from_millis(7));
        lateness.expect(None);
        assert_eq!(lateness.observe(start + Duration::from_secs(9)), Duration::ZERO);
        assert_eq!((lateness.take_worst(), lateness.take_worst()), (Duration::from_millis(7), Duration::ZERO));
    }
}

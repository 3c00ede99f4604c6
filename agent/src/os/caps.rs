//! Capability sets, and dropping from root to a user that keeps a few of them.

use rustix::thread::CapabilitySets;
use std::ffi::CString;
use std::fmt;
use std::io;

pub use rustix::thread::CapabilitySet;

/// What the worker's own work needs: addresses and the connection table, raw VRRP and ARP sockets, ports under 1024.
pub const WORKER: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::NET_BIND_SERVICE);

/// What [`drop_to`] arrived at, read back from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// User id now.
    pub uid: u32,
    /// Group id now.
    pub gid: u32,
    /// Permitted and effective capabilities now.
    pub kept: CapabilitySet,
    /// What could not be done and why, to be shown: the user is missing, the namespace is rootless, …
    pub notes: Vec<String>,
}

/// Dropping failed half-way or the kernel shows more than was to be kept: the process must not go on.
#[derive(Debug)]
pub struct DropError {
    /// What was tried.
    pub what: &'static str,
    /// How it failed.
    pub source: io::Error,
}

impl fmt::Display for DropError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "drop privileges: {}: {}", self.what, self.source)
    }
}

impl std::error::Error for DropError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

fn step<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> DropError {
    move |source| DropError { what, source: source.into() }
}

/// Becomes `user` with its groups, keeping just `keep` (what of it is there) as permitted and effective: nothing
/// inheritable, nothing ambient, the bounding set cut to `keep`, no_new_privs set. Must be called before the process
/// starts threads, since capabilities belong to threads.
///
/// Without that user, without the right to change ids, or in a namespace that maps a single id, the ids stay as they
/// are and a note says so; the capabilities are reduced all the same.
///
/// # Errors
/// A step failed that should not, or the read-back differs. The process should exit.
pub fn drop_to(user: &str, keep: CapabilitySet) -> Result<Dropped, DropError> {
    let mut notes = Vec::new();
    let had = rustix::thread::capabilities(None).map_err(step("read capabilities"))?;
    let keep = keep & had.permitted;
    cut_bounding_set(keep, &had, &mut notes);
    rustix::thread::clear_ambient_capability_set().map_err(step("clear the ambient set"))?;
    let target = match identity(user, &had) {
        Ok(target) => target,
        Err(note) => {
            notes.push(note);
            None
        }
    };
    if let Some(target) = &target {
        // From here to the capset below the thread keeps its permitted set although it is no longer root.
        rustix::thread::set_keep_capabilities(true).map_err(step("keep capabilities across setuid"))?;
        nix::unistd::initgroups(&target.name, target.gid).map_err(step("set groups"))?;
        nix::unistd::setresgid(target.gid, target.gid, target.gid).map_err(step("set group id"))?;
        nix::unistd::setresuid(target.uid, target.uid, target.uid).map_err(step("set user id"))?;
        rustix::thread::set_keep_capabilities(false).map_err(step("stop keeping capabilities"))?;
    }
    let wanted = CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, wanted).map_err(step("set capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(step("set no_new_privs"))?;
    verify(target.as_ref(), wanted, notes)
}

struct Target {
    name: CString,
    uid: nix::unistd::Uid,
    gid: nix::unistd::Gid,
}

/// Whom to become; `Ok(None)`: we are that user already; `Err`: why the id stays.
fn identity(user: &str, had: &CapabilitySets) -> Result<Option<Target>, String> {
    let found = nix::unistd::User::from_name(user).map_err(|error| format!("look up user {user}: {error}"))?;
    let uid = nix::unistd::getuid();
    let Some(found) = found else {
        return Err(format!("user {user} doesn't exist: the worker keeps user id {uid}"));
    };
    if found.uid == uid {
        return Ok(None);
    }
    if mapped_ids() == Some(1) {
        return Err(format!("rootless namespace with a single user id: the worker keeps user id {uid}"));
    }
    if !had.effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        return Err(format!("CAP_SETUID or CAP_SETGID is missing: the worker keeps user id {uid}"));
    }
    let name = CString::new(user).map_err(|_| "a user name can't hold a NUL".to_owned())?;
    Ok(Some(Target { name, uid: found.uid, gid: found.gid }))
}

fn cut_bounding_set(keep: CapabilitySet, had: &CapabilitySets, notes: &mut Vec<String>) {
    if !had.effective.contains(CapabilitySet::SETPCAP) {
        notes.push("CAP_SETPCAP is missing: the bounding set stays as it is".to_owned());
        return;
    }
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // Numbers the kernel doesn't know end the range with an error.
        match rustix::thread::capability_is_in_bounding_set(one) {
            Err(_) => break,
            Ok(true) if !keep.contains(one) => {
                if let Err(error) = rustix::thread::remove_capability_from_bounding_set(one) {
                    notes.push(format!("capability {bit} stays in the bounding set: {error}"));
                }
            }
            Ok(_) => {}
        }
    }
}

/// Trusts only what the kernel says afterwards.
fn verify(target: Option<&Target>, wanted: CapabilitySets, notes: Vec<String>) -> Result<Dropped, DropError> {
    let differs = |what| DropError { what, source: io::Error::other("the kernel shows something else") };
    let have = rustix::thread::capabilities(None).map_err(step("read capabilities back"))?;
    if have != wanted {
        return Err(differs("read capabilities back"));
    }
    let ids = nix::unistd::getresuid().map_err(step("read user id back"))?;
    let groups = nix::unistd::getresgid().map_err(step("read group id back"))?;
    if let Some(target) = target
        && ([ids.real, ids.effective, ids.saved] != [target.uid; 3]
            || [groups.real, groups.effective, groups.saved] != [target.gid; 3])
    {
        return Err(differs("read ids back"));
    }
    Ok(Dropped { uid: ids.effective.as_raw(), gid: groups.effective.as_raw(), kept: have.effective, notes })
}

/// How many user ids this namespace maps; `None`: unknown.
fn mapped_ids() -> Option<u64> {
    count_ids(&std::fs::read_to_string("/proc/self/uid_map").ok()?)
}

fn count_ids(map: &str) -> Option<u64> {
    map.lines()
        .map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .try_fold(0_u64, |sum, count| Some(sum.saturating_add(count?)))
}

/// Whether this is another than the initial user namespace, where some rights stay refused even to its root.
pub fn in_user_namespace() -> bool {
    mapped_ids().is_some_and(|ids| ids != u64::from(u32::MAX))
}

/// The sets' names as `NET_ADMIN NET_RAW`, for people.
pub fn names(set: CapabilitySet) -> String {
    let names: Vec<&str> = set.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_map_of_one_line_and_one_id_is_a_rootless_namespace() {
        assert_eq!(count_ids("         0       1000          1\n"), Some(1));
        assert_eq!(count_ids("         0          0 4294967295\n"), Some(u64::from(u32::MAX)));
        assert_eq!(count_ids("0 1000 1\n1 100000 65536\n"), Some(65_537));
        assert_eq!(count_ids("0 1000"), None);
        assert_eq!(count_ids("0 1000 x"), None);
    }

    #[test]
    fn names_are_those_of_the_manual() {
        assert_eq!(names(WORKER), "NET_BIND_SERVICE NET_ADMIN NET_RAW");
        assert_eq!(names(CapabilitySet::empty()), "none");
    }
}

//! Which life of the kernel's connection table this is: the same for every agent that runs while it lasts, and a larger one
//! than that of each before it.
//!
//! A table lives as long as its network namespace, so boot and namespace are remembered, with the number that was given to
//! them: a clock that steps changes nothing then.

use crate::os::netns;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// In the state directory.
const FILE: &str = "flows.life";
const TEMPORARY: &str = "flows.life.new";

/// The number of this life. Notes are for the log.
pub(in crate::run) fn number(state_dir: &Path, notes: &mut Vec<String>) -> u64 {
    let name = name();
    let known = fs::read_to_string(state_dir.join(FILE)).ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    let number = match decide(&name, known.as_deref(), now) {
        Ok(number) => return number,
        Err(number) => number,
    };
    if let Err(e) = store(state_dir, &name, number) {
        let path = state_dir.join(FILE);
        notes.push(format!("{}: {e}; the next worker won't take this one's flows for its own", path.display()));
    }
    number
}

/// `Ok`: it is known. `Err`: it is new, and later than all before.
fn decide(name: &str, known: Option<&str>, now: u64) -> Result<u64, u64> {
    let former = known.and_then(|text| {
        let (number, name) = text.trim_end().split_once(' ')?;
        Some((number.parse::<u64>().ok()?, name))
    });
    match former {
        Some((number, of)) if of == name => Ok(number),
        Some((number, _)) => Err(now.max(number.saturating_add(1))),
        None => Err(now),
    }
}

fn name() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = match netns::cookie() {
        Ok(cookie) => format!("cookie {cookie}"),
        Err(_) => fs::read_link("/proc/self/ns/net").map(|l| l.display().to_string()).unwrap_or_default(),
    };
    format!("{} {namespace}", boot.trim())
}

fn store(dir: &Path, name: &str, number: u64) -> io::Result<()> {
    let new = dir.join(TEMPORARY);
    fs::write(&new, format!("{number} {name}\n"))?;
    fs::rename(new, dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Dir;

    #[test]
    fn a_life_keeps_its_number_and_the_next_one_has_a_larger_one_whatever_the_clock_says() {
        assert_eq!(decide("a", None, 1_000), Err(1_000));
        assert_eq!(decide("a", Some("1000 a\n"), 5_000), Ok(1_000));
        assert_eq!(decide("b", Some("1000 a\n"), 5_000), Err(5_000));
        assert_eq!(decide("b", Some("1000 a\n"), 500), Err(1_001), "a clock that stepped back");
        for broken in ["", "a", "x a", "1000"] {
            assert_eq!(decide("a", Some(broken), 7), Err(7), "{broken:?}");
        }
    }

    #[test]
    fn two_workers_of_one_life_have_one_number() {
        let (dir, mut notes) = (Dir::new(), Vec::new());
        let first = number(dir.root(), &mut notes);
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert_eq!(number(dir.root(), &mut notes), first);
        assert_eq!(notes, Vec::<String>::new());
        let absent = number(&dir.path("absent"), &mut notes);
        assert!(absent >= first && notes.len() == 1, "{notes:?}");
    }
}

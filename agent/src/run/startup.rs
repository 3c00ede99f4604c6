//! What a worker reads before it gives its rights away: the secret key, and what the last one left on disk.

use super::{intents, journal};
use crate::config::file::{read_password, read_secret};
use crate::os::tcp::Key;
use crate::os::vmac::parent_settings;
use holdfast_node::config::Config;
use holdfast_node::io::Boot;
use holdfast_node::keeper::hang_limit_of;
use holdfast_statesync::key::SecretKey;
use holdfast_vrrp::Family;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Everything of [`Boot`] but what the keeper tells and a former worker has left ([`recall`]).
pub(super) fn boot(config: &Config) -> Result<Boot, String> {
    let secret_key = match &config.cluster {
        Some(cluster) => Some(secret_key(&cluster.key_file)?),
        None => None,
    };
    let mut seed = [0; 32];
    fill_random(&mut seed).map_err(|e| format!("random numbers: {e}"))?;
    Ok(Boot { seed, secret_key, ..Boot::default() })
}

/// What a former worker has left on disk; it must be gone. Notes are for the log: what could not be read and what that
/// means.
pub(super) fn recall(boot: &mut Boot, state_dir: &Path, notes: &mut Vec<String>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    boot.epoch = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    boot.intents = intents::load(state_dir, notes);
    boot.last_event_id = journal::last_id(state_dir, notes);
}

pub(super) fn fill_random(mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => rest = rest.get_mut(n..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Reads the node's key.
pub(crate) fn secret_key(path: &Path) -> Result<SecretKey, String> {
    let bytes = read_secret(path, "a key file (holdfast keygen makes one)").map_err(|(e, why)| match e {
        io::ErrorKind::NotFound => format!("{}: {why}; make one with `holdfast keygen`", path.display()),
        _ => format!("{}: {why}", path.display()),
    })?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| format!("{}: not a key file (holdfast keygen makes one)", path.display()))?;
    SecretKey::from_text(text.trim()).map_err(|e| format!("{}: {e}", path.display()))
}

/// The neighbours' passwords, in the order of the neighbours.
pub(super) fn passwords(config: &Config) -> Result<Vec<Option<Key>>, String> {
    let neighbors = config.bgp.iter().flat_map(|bgp| &bgp.neighbors);
    let key = |path: &Path| {
        let key = read_password(path).map_err(|(_, why)| format!("{}: {why}", path.display()))?;
        Ok(Key::new(&key).expect("a password that was read has the length of a key"))
    };
    neighbors.map(|neighbor| neighbor.password_file.as_deref().map(key).transpose()).collect()
}

/// Makes the state directory, and gives it and what a former agent left in it to the user that the worker becomes.
/// The worker goes on without: then the journal says that it can't write.
pub(super) fn prepare_state_dir(dir: &Path, user: &str, notes: &mut Vec<String>) {
    let prepare = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
        let Ok(Some(user)) = nix::unistd::User::from_name(user) else { return Ok(()) };
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        give(dir, &user)?;
        for name in [journal::FILE, journal::OLD_FILE, intents::FILE] {
            match give(&dir.join(name), &user) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    };
    if let Err(e) = prepare() {
        notes.push(format!("{}: {e}; journal and drains may not outlive this agent", dir.display()));
    }
}

/// Only what root has: another owner was chosen by somebody. Never through a symbolic link, which the user could have
/// put there.
fn give(path: &Path, user: &nix::unistd::User) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.uid() == 0 && !meta.is_symlink() {
        lchown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    Ok(())
}

/// What the interfaces lack upon which virtual MACs are to be: known before the first promotion, which would be refused.
pub(super) fn vmac_parents(config: &Config) -> Vec<String> {
    let legs = config.vips.iter().flat_map(|vip| &vip.legs);
    let parents: BTreeSet<_> =
        legs.filter(|leg| leg.vmac && leg.family == Family::V4).map(|leg| &leg.interface).collect();
    let missing = parents.into_iter().flat_map(parent_settings);
    missing.map(|s| format!("vmac: {} must be at least {}: {}", s.setting, s.value, s.why)).collect()
}

/// Without a beat for this long the worker counts as hung (DESIGN "Processes and threads").
pub(super) fn hang_limit(config: &Config) -> Duration {
    let on_a_segment = config.vips.iter().filter(|vip| !vip.anycast());
    let shortest = on_a_segment.map(|vip| vip.vrrp.interval.duration()).min().unwrap_or_default();
    hang_limit_of(shortest * 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Dir;
    use holdfast_statesync::key;
    use std::os::unix::fs::PermissionsExt;

    fn key_file(dir: &Dir, mode: u32) -> Result<String, String> {
        let path = dir.path("node.key");
        fs::write(&path, format!("{}\n", key::encode_key(&[7; 32]))).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        secret_key(&path).map(|key| key.to_text().to_string())
    }

    #[test]
    fn a_key_that_only_owner_and_group_can_read_is_taken() {
        let dir = Dir::new();
        for mode in [0o400, 0o600, 0o440, 0o640] {
            assert_eq!(key_file(&dir, mode), Ok(key::encode_key(&[7; 32])), "{mode:o}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_or_change_is_refused_with_its_mode() {
        let dir = Dir::new();
        for mode in [0o604, 0o602, 0o620, 0o660, 0o644, 0o666] {
            let why = key_file(&dir, mode).expect_err("refused");
            assert!(why.contains(&format!("mode {mode:04o}")), "{why}");
        }
    }

    #[test]
    fn a_file_without_a_key_and_an_absent_one_are_named() {
        let dir = Dir::new();
        let path = dir.path("empty.key");
        let why = secret_key(&path).expect_err("absent");
        assert!(why.starts_with(&path.display().to_string()), "{why}");
        fs::write(&path, "").expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        assert!(secret_key(&path).is_err());
    }

    #[test]
    fn the_state_directory_is_made_with_its_parents_and_closed_to_others() {
        let dir = Dir::new();
        let state = dir.path("var/lib");
        let mut notes = Vec::new();
        prepare_state_dir(&state, "root", &mut notes);
        prepare_state_dir(&state, "root", &mut notes);
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(fs::metadata(&state).expect("made").mode() & 0o777, 0o750);
        let file = dir.path("file");
        fs::write(&file, "").expect("writable");
        prepare_state_dir(&file.join("below"), "root", &mut notes);
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn random_numbers_fill_the_whole_seed() {
        let (mut a, mut b) = ([0; 32], [0; 32]);
        fill_random(&mut a).expect("the kernel has some");
        fill_random(&mut b).expect("the kernel has some");
        assert_ne!(a, b);
    }
}

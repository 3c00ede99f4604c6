//! The channel's key pair.

use super::{exit, render};
use crate::config::file::{in_words, open_regular};
use holdfast_statesync::{SecretKey, encode_key, generate_keypair, public_key};
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use zeroize::Zeroizing;

/// Where the secret key goes when nobody says otherwise.
pub(super) const DEFAULT: &str = "/etc/holdfast/node.key";
/// A key file is one line of 44 characters; what is longer is something else.
const FILE_MAX: u64 = 1024;

/// Writes a fresh secret key, 0640 and group `holdfast` where that exists, and prints its public key.
pub(super) fn make(path: &Path) -> u8 {
    match try_make(path) {
        Ok(public) => {
            let shown = render::out(&format!("{public}\n"));
            eprintln!(
                "holdfast: wrote the secret key to {}; the line above goes under public_keys on the peers",
                path.display()
            );
            if shown { exit::OK } else { exit::FAILED }
        }
        Err(error) => {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => " (make the directory first)",
                io::ErrorKind::AlreadyExists => " (a key is never overwritten; remove it first if nobody uses it)",
                _ => "",
            };
            eprintln!("holdfast: {}: {}{hint}", path.display(), in_words(&error));
            exit::FAILED
        }
    }
}

fn try_make(path: &Path) -> io::Result<String> {
    let mut seed = Zeroizing::new([0_u8; 32]);
    std::fs::File::open("/dev/urandom")?.read_exact(&mut *seed)?;
    let (secret, public) = generate_keypair(*seed);
    let mut text = secret.to_text();
    text.push('\n');
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| {
        // The group first: readable for it only once it is the right one.
        if let Ok(Some(group)) = nix::unistd::Group::from_name("holdfast") {
            let _ = std::os::unix::fs::fchown(&file, None, Some(group.gid.as_raw()));
        }
        file.set_permissions(std::fs::Permissions::from_mode(0o640))?;
        file.sync_all()
    });
    if let Err(error) = written {
        // Half a key is worse than none: nothing would ever replace it.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(encode_key(&public))
}

/// Prints the public key of a secret key.
pub(super) fn show(path: &Path) -> u8 {
    match read_secret(path) {
        Ok(secret) => {
            let shown = render::out(&format!("{}\n", encode_key(&public_key(&secret))));
            if shown { exit::OK } else { exit::FAILED }
        }
        Err(error) => {
            eprintln!("holdfast: {}: {}", path.display(), in_words(&error));
            exit::FAILED
        }
    }
}

/// Reads a key file as [`make`] writes it.
///
/// # Errors
/// What the system says, or `InvalidData` with what is wrong, without a part of the text.
pub fn read_secret(path: &Path) -> io::Result<SecretKey> {
    let mut text = Zeroizing::new(String::new());
    open_regular(path)?.take(FILE_MAX).read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    SecretKey::from_text(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

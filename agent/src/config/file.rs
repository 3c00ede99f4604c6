//! Reading files that somebody may have put anything in place of.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use zeroize::Zeroizing;

/// Opens a regular file. A FIFO would make the opener wait for a writer, a device may never end.
///
/// # Errors
/// What the system says; `InvalidInput` for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// The whole of a regular file.
///
/// # Errors
/// As [`open_regular`]; `FileTooLarge` beyond `most` bytes.
pub(crate) fn read_regular(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    open_regular(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Longest file with a secret.
const SECRET_MAX: u64 = 1024;
/// Mode bits that such a file must not have: written by the group, read or written by everybody.
const FORBIDDEN: u32 = 0o026;

/// What is in a file, but only if nobody else can have written or (beyond the owner and group) read it. `what`: what it
/// should be.
///
/// # Errors
/// The kind of the system's error, `Other` if it was refused by us; and why, in words.
pub(crate) fn read_secret(path: &Path, what: &str) -> Result<Zeroizing<Vec<u8>>, (io::ErrorKind, String)> {
    let said = |e: io::Error| (e.kind(), in_words(&e));
    let refused = |why: String| (io::ErrorKind::Other, why);
    let file = open_regular(path).map_err(said)?;
    // Of the open file, not of whatever the path names by now.
    let meta = file.metadata().map_err(said)?;
    let mode = meta.mode() & 0o7777;
    if meta.len() > SECRET_MAX {
        return Err(refused(format!("not {what}")));
    }
    if mode & FORBIDDEN != 0 {
        let why = format!("mode {mode:04o} lets others read or change the key; chmod 0600 it (0640 is accepted)");
        return Err(refused(why));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        return Err(refused(format!("owned by user {}, neither root nor the agent's ({own})", meta.uid())));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(SECRET_MAX).read_to_end(&mut bytes).map_err(said)?;
    Ok(bytes)
}

/// The key of a BGP session.
///
/// # Errors
/// As [`read_secret`]; it's no key.
pub(crate) fn read_password(path: &Path) -> Result<Zeroizing<Vec<u8>>, (io::ErrorKind, String)> {
    let bytes = read_secret(path, "a password of at most 80 bytes")?;
    let key = holdfast_node::config::password(&bytes).map_err(|why| (io::ErrorKind::Other, why))?;
    Ok(Zeroizing::new(key.to_vec()))
}

/// What is wrong with a file as the key of a BGP session. One that isn't for the reader's eyes is taken as it is: `check`
/// by an ordinary user can't know.
pub(super) fn password_wrong(path: &Path) -> Option<String> {
    read_password(path).err().filter(|(kind, _)| *kind != io::ErrorKind::PermissionDenied).map(|(_, why)| why)
}

/// `No such file or directory (os error 2)` without the number, which tells people nothing.
pub(crate) fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let fifo = std::env::temp_dir().join(format!("holdfast-fifo-{}", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("a fresh name");
        for path in [fifo.as_path(), Path::new("/"), Path::new("/dev/zero")] {
            let why = read_regular(path, 10).expect_err("refused").to_string();
            assert_eq!(why, "not a regular file", "{}", path.display());
        }
        std::fs::remove_file(fifo).expect("ours");
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let path = std::env::temp_dir().join(format!("holdfast-long-{}", std::process::id()));
        std::fs::write(&path, "12345").expect("writable");
        assert_eq!(read_regular(&path, 5).expect("as long as it may be"), b"12345");
        assert_eq!(read_regular(&path, 4).expect_err("longer").to_string(), "longer than 4 bytes");
        std::fs::remove_file(path).expect("ours");
    }

    #[test]
    fn errors_are_told_in_words() {
        assert_eq!(in_words(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(in_words(&io::Error::other("plain")), "plain");
    }
}

//! Reading files that somebody may have put anything in place of.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

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

/// What is wrong with a file as the key of a BGP session: it isn't there, others may read it, or it's no key. A file that
/// isn't for the reader's eyes is taken as it is: `check` by an ordinary user can't know.
pub(super) fn password_wrong(path: &Path) -> Option<String> {
    let read = || -> io::Result<(u32, Vec<u8>)> {
        let file = open_regular(path)?;
        let mode = file.metadata()?.permissions().mode();
        let mut bytes = Vec::new();
        // Longer than any key, short enough for whatever the file is.
        file.take(PASSWORD_READ).read_to_end(&mut bytes)?;
        Ok((mode, bytes))
    };
    match read() {
        Ok((mode, _)) if mode & 0o007 != 0 => {
            Some(format!("others may read or change it (mode {:04o})", mode & 0o7777))
        }
        Ok((_, bytes)) => holdfast_node::config::password(&bytes).err(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(error) => Some(in_words(&error)),
    }
}

const PASSWORD_READ: u64 = 4096;

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

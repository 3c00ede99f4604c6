//! The journal on disk: `events.jsonl` in the state directory, one JSON object a line, oldest first.
//!
//! At [`ROTATE_AT`] bytes the file becomes `events.1.jsonl` and a new one begins; one old file is kept. A disk that
//! refuses never blocks anything: lines wait in memory up to [`WAITING_MAX`], then the oldest are dropped and counted.

use super::api::Recorded;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the file in the state directory.
pub const FILE: &str = "events.jsonl";
/// Name of the one before it.
pub const OLD_FILE: &str = "events.1.jsonl";
/// Bytes at which a new file begins.
const ROTATE_AT: u64 = 10 << 20;
/// Lines that wait for a disk that refuses.
const WAITING_MAX: usize = 4_096;
/// How much of the file's end is read at start, …
const TAIL: u64 = 512 * 1024;
/// … and how much of it for the last id alone.
const LAST_LINES: u64 = 8 * 1024;

/// Writes the journal. Its methods touch the disk: call them where waiting is allowed.
#[derive(Debug)]
pub(super) struct Writer {
    dir: PathBuf,
    rotate_at: u64,
    open: Option<(File, u64)>,
    waiting: VecDeque<String>,
    /// Writes that failed.
    pub(super) errors: u64,
    /// Lines that were dropped because too many waited.
    pub(super) dropped: u64,
    /// Why the last write failed, until one succeeds.
    pub(super) failing: Option<String>,
}

impl Writer {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            rotate_at: ROTATE_AT,
            open: None,
            waiting: VecDeque::new(),
            errors: 0,
            dropped: 0,
            failing: None,
        }
    }

    /// Takes lines to be written by the next [`Writer::flush`].
    pub(super) fn take(&mut self, entry: &Recorded) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(entry.to_json());
    }

    /// Whether lines wait.
    pub(super) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes what waits. What can't be written keeps waiting.
    pub(super) fn flush(&mut self) {
        while !self.waiting.is_empty() {
            match self.write_some() {
                Ok(()) => self.failing = None,
                Err(e) => {
                    self.errors += 1;
                    self.failing = Some(e.to_string());
                    // The file may have been removed or replaced, or end within a line.
                    self.open = None;
                    return;
                }
            }
        }
    }

    fn write_some(&mut self) -> io::Result<()> {
        let (file, size) = match &mut self.open {
            Some(open) => open,
            none => none.insert(open_at_line_start(&self.dir.join(FILE))?),
        };
        if *size >= self.rotate_at {
            fs::rename(self.dir.join(FILE), self.dir.join(OLD_FILE))?;
            self.open = None;
            return Ok(());
        }
        let mut text = Vec::new();
        let mut lines = 0;
        let room = self.rotate_at - *size;
        for line in &self.waiting {
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
            lines += 1;
            if text.len() as u64 >= room {
                break;
            }
        }
        file.write_all(&text)?;
        *size += text.len() as u64;
        self.waiting.drain(..lines);
        Ok(())
    }
}

/// Opens for appending; a torn last line (the machine lost power within it) gets its end, so that it spoils no other.
fn open_at_line_start(path: &Path) -> io::Result<(File, u64)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o640).open(path)?;
    let mut size = file.seek(SeekFrom::End(0))?;
    if size > 0 {
        file.seek(SeekFrom::Start(size - 1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    Ok((file, size))
}

/// The newest entries on disk, oldest first; what can't be read is left out.
pub(super) fn tail(dir: &Path) -> io::Result<Vec<Recorded>> {
    let mut entries = tail_of(&dir.join(FILE), TAIL)?;
    if entries.is_empty() {
        // Rotated a moment ago.
        entries = tail_of(&dir.join(OLD_FILE), TAIL)?;
    }
    Ok(entries)
}

fn tail_of(path: &Path, most: u64) -> io::Result<Vec<Recorded>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes.split(|b| *b == b'\n').filter_map(Recorded::from_json).collect())
}

/// The last id on disk, so that ids go on; 0 without a journal.
pub(super) fn last_id(dir: &Path, notes: &mut Vec<String>) -> u64 {
    // A resuming worker is waited for: the last few lines tell, all of them only if those don't.
    let few = tail_of(&dir.join(FILE), LAST_LINES);
    let entries = if few.as_ref().is_ok_and(Vec::is_empty) { tail(dir) } else { few };
    match entries {
        Ok(entries) => entries.iter().map(|e| e.event.id).max().unwrap_or(0),
        Err(e) => {
            notes.push(format!("{}: {e}; event ids begin anew", dir.join(FILE).display()));
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::{Dir, recorded};

    fn ids(entries: &[Recorded]) -> Vec<u64> {
        entries.iter().map(|e| e.event.id).collect()
    }

    fn write(writer: &mut Writer, ids: std::ops::RangeInclusive<u64>) {
        ids.for_each(|id| writer.take(&recorded(id)));
        writer.flush();
    }

    #[test]
    fn what_was_written_is_read_back_and_ids_go_on() {
        let dir = Dir::new();
        let mut notes = Vec::new();
        assert_eq!(last_id(dir.root(), &mut notes), 0);
        write(&mut Writer::new(dir.root()), 1..=3);
        write(&mut Writer::new(dir.root()), 4..=5);
        assert_eq!(tail(dir.root()).expect("readable"), (1..=5).map(recorded).collect::<Vec<_>>());
        assert_eq!(last_id(dir.root(), &mut notes), 5);
        assert!(notes.is_empty());
    }

    #[test]
    fn the_last_id_is_found_behind_garbage_and_after_a_rotation() {
        let dir = Dir::new();
        write(&mut Writer::new(dir.root()), 1..=7);
        let path = dir.path(FILE);
        let mut text = fs::read(&path).expect("readable");
        text.extend_from_slice(&[b'x'; LAST_LINES as usize]);
        fs::write(&path, text).expect("writable");
        let mut notes = Vec::new();
        assert_eq!(last_id(dir.root(), &mut notes), 7);
        fs::rename(&path, dir.path(OLD_FILE)).expect("same directory");
        assert_eq!(last_id(dir.root(), &mut notes), 7);
        fs::write(&path, "").expect("writable");
        assert_eq!(last_id(dir.root(), &mut notes), 7);
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_spoils_no_other() {
        let dir = Dir::new();
        write(&mut Writer::new(dir.root()), 1..=2);
        let path = dir.path(FILE);
        let text = fs::read(&path).expect("readable");
        fs::write(&path, text.get(..text.len() - 9).expect("longer than that")).expect("writable");
        assert_eq!(ids(&tail(dir.root()).expect("readable")), [1]);
        write(&mut Writer::new(dir.root()), 3..=3);
        assert_eq!(ids(&tail(dir.root()).expect("readable")), [1, 3]);
    }

    #[test]
    fn a_full_file_is_put_aside_and_one_old_one_is_kept() {
        let dir = Dir::new();
        let mut writer = Writer::new(dir.root());
        writer.rotate_at = 400;
        write(&mut writer, 1..=40);
        assert!(!writer.is_behind());
        let mut names: Vec<_> =
            fs::read_dir(dir.root()).expect("there").map(|e| e.expect("readable").file_name()).collect();
        names.sort();
        assert_eq!(names, [OLD_FILE, FILE]);
        let newest = ids(&tail(dir.root()).expect("readable"));
        assert_eq!(newest.last(), Some(&40));
        let old = ids(&tail_of(&dir.path(OLD_FILE), TAIL).expect("readable"));
        assert_eq!(old.last().map(|id| id + 1), newest.first().copied(), "no line is lost in between");
    }

    #[test]
    fn a_disk_that_refuses_is_counted_and_what_waits_is_written_once_it_accepts() {
        let dir = Dir::new();
        let missing = dir.path("not-yet");
        let mut writer = Writer::new(&missing);
        write(&mut writer, 1..=2);
        assert!(writer.is_behind() && writer.errors == 1 && writer.failing.is_some());
        fs::create_dir(&missing).expect("writable");
        write(&mut writer, 3..=3);
        assert_eq!(ids(&tail(&missing).expect("readable")), [1, 2, 3]);
        assert!(!writer.is_behind() && writer.failing.is_none());
    }

    #[test]
    fn of_too_many_waiting_lines_the_oldest_are_dropped_and_counted() {
        let dir = Dir::new();
        let mut writer = Writer::new(&dir.path("missing"));
        (1..=WAITING_MAX as u64 + 3).for_each(|id| writer.take(&recorded(id)));
        assert_eq!((writer.waiting.len(), writer.dropped), (WAITING_MAX, 3));
    }
}

//! keepalived's notify fifo: one line per change of state, for programs that were written for that one.
//!
//! ```text
//! INSTANCE "web" MASTER 254
//! GROUP "edge" BACKUP 253
//! ```
//!
//! Whoever opens it for reading is told the current state of all first. A reader that is slow loses the oldest lines,
//! and is told the current state of all again once it has read the rest: it always ends with the truth. A reader
//! should keep it open (`exec 3</run/holdfast/notify; while read -r line <&3; …`): what waits in it is lost when the
//! last reader closes it.
//!
//! What this module refuses to do: hold anybody up, or write to anything but a fifo.

use holdfast_node::config::VIPS_MAX;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chownat, fstat, mkfifoat, open};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::sync::Notify;

/// Lines that wait for a reader that is there. Full → the oldest is dropped, counted, and all states follow at the end.
const QUEUE_MAX: usize = 1_024;
/// Things whose state is remembered: each VIP, and its group.
const STATES_MAX: usize = 2 * VIPS_MAX;
/// Pause before looking again whether somebody reads.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of a name that are written: a line has to fit what a pipe takes as a whole.
const NAME_MAX: usize = 128;
/// Owner reads and writes, group reads.
const MODE: u32 = 0o640;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A VIP.
    Instance,
    /// A group of VIPs.
    Group,
}

/// The states that keepalived knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FifoState {
    /// Active.
    Master,
    /// Backup.
    Backup,
    /// Something that it tracks has failed.
    Fault,
    /// The agent stops, or it was taken out of the configuration.
    Stop,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is about.
    pub subject: Subject,
    /// Name of the VIP or group.
    pub name: String,
    /// State now.
    pub state: FifoState,
    /// Effective priority now.
    pub priority: u8,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::Instance => "INSTANCE",
            Subject::Group => "GROUP",
        };
        let state = match self.state {
            FifoState::Master => "MASTER",
            FifoState::Backup => "BACKUP",
            FifoState::Fault => "FAULT",
            FifoState::Stop => "STOP",
        };
        writeln!(f, "{subject} \"{}\" {state} {}", self.name, self.priority)
    }
}

/// The end into which changes are told: never waits, cheap to clone.
#[derive(Debug, Clone)]
pub struct Fifo {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// Something is to be written.
    told: Notify,
    /// Everything is written, or nobody reads any more.
    written: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    states: BTreeMap<(Subject, String), (FifoState, u8)>,
    queue: VecDeque<String>,
    /// Somebody reads.
    read: bool,
    /// Lines were dropped: all states have to follow.
    lossy: bool,
    /// A line is on its way.
    writing: bool,
    dropped: u64,
}

impl Fifo {
    /// Starts the writer on the runtime of the caller, where it runs as long as that. The fifo need not be there yet.
    #[must_use]
    pub fn spawn(path: PathBuf) -> Self {
        let shared = Arc::<Shared>::default();
        tokio::spawn(write(path, Arc::clone(&shared)));
        Self { shared }
    }

    /// Tells a state. What is known already makes no line (a new priority alone doesn't either, as with keepalived).
    pub fn tell(&self, mut line: Line) {
        // Names are checked elsewhere; nothing else may make two lines of one.
        line.name.retain(|c| c != '"' && !c.is_control());
        let end = (0..=NAME_MAX).rev().find(|end| line.name.is_char_boundary(*end)).unwrap_or(0);
        line.name.truncate(end);
        self.shared.lock().tell(&line);
        self.shared.told.notify_one();
    }

    /// Waits until all that was told is written, or nobody reads. For the last words; bound it by a timeout.
    pub async fn flush(&self) {
        loop {
            let written = self.shared.written.notified();
            let mut written = std::pin::pin!(written);
            // From here on a notification counts.
            written.as_mut().enable();
            if self.shared.lock().is_idle() {
                return;
            }
            written.await;
        }
    }

    /// Lines that no reader got because it was too slow, since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn tell(&mut self, line: &Line) {
        let key = (line.subject, line.name.clone());
        let before = if line.state == FifoState::Stop {
            // The next reader need not hear of what is over.
            self.states.remove(&key)
        } else if self.states.len() < STATES_MAX || self.states.contains_key(&key) {
            self.states.insert(key, (line.state, line.priority))
        } else {
            self.dropped += 1;
            return;
        };
        if self.read && before.map(|(state, _)| state) != Some(line.state) {
            self.push(line.to_string());
        }
    }

    fn push(&mut self, line: String) {
        if self.queue.len() >= QUEUE_MAX {
            self.queue.pop_front();
            self.dropped += 1;
            self.lossy = true;
        }
        self.queue.push_back(line);
    }

    /// All that a reader needs to know who knows nothing.
    fn begin(&mut self) {
        self.read = true;
        self.lossy = false;
        let line = |((subject, name), (state, priority)): (&(Subject, String), &(FifoState, u8))| {
            Line { subject: *subject, name: name.clone(), state: *state, priority: *priority }.to_string()
        };
        // As many as there are: they are bounded.
        self.queue = self.states.iter().map(line).collect();
    }

    fn end(&mut self) {
        self.read = false;
        self.lossy = false;
        self.writing = false;
        self.queue = VecDeque::new();
    }

    fn next(&mut self) -> Option<String> {
        if self.queue.is_empty() && self.lossy {
            self.begin();
        }
        let line = self.queue.pop_front();
        self.writing = line.is_some();
        line
    }

    fn is_idle(&self) -> bool {
        !self.read || (self.queue.is_empty() && !self.lossy && !self.writing)
    }
}

/// Waits for a reader, writes until it's gone, waits for the next.
async fn write(path: PathBuf, shared: Arc<Shared>) {
    let mut said = None;
    loop {
        let sender = loop {
            match open_writing(&path) {
                Ok(Some(sender)) => break sender,
                Ok(None) => said = None,
                // Once per cause.
                Err(e) => {
                    let e = e.to_string();
                    if said.as_ref() != Some(&e) {
                        tracing::error!("notify fifo {}: {e}; tried again", path.display());
                        said = Some(e);
                    }
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        shared.lock().begin();
        let gone = serve(&sender, &shared).await;
        shared.lock().end();
        shared.written.notify_waiters();
        tracing::debug!("notify fifo {}: {gone}", path.display());
        drop(sender);
        // A reader that opens it for each line alone would otherwise be told all states as fast as it can read.
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Writes until nobody reads any more; says why it ended.
async fn serve(sender: &Sender, shared: &Shared) -> io::Error {
    let closed = async {
        match sender.ready(Interest::ERROR).await {
            Ok(_) => io::Error::from(io::ErrorKind::BrokenPipe),
            Err(e) => e,
        }
    };
    let writing = async {
        loop {
            let line = shared.lock().next();
            let Some(line) = line else {
                shared.written.notify_waiters();
                shared.told.notified().await;
                continue;
            };
            // All or nothing: a line is far shorter than what a pipe takes as a whole (PIPE_BUF).
            loop {
                match sender.try_write(line.as_bytes()) {
                    Ok(_) => break,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        if let Err(e) = sender.writable().await {
                            return e;
                        }
                    }
                    Err(e) => return e,
                }
            }
        }
    };
    tokio::select! {
        e = closed => e,
        e = writing => e,
    }
}

/// `None`: nobody reads.
fn open_writing(path: &Path) -> io::Result<Option<Sender>> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Never blocks; a device that did something at its opening would have to be put there by root.
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(not_a_fifo(FileType::Symlink)),
        Err(e) => return Err(e.into()),
    };
    let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
    if kind != FileType::Fifo {
        return Err(not_a_fifo(kind));
    }
    Sender::from_owned_fd(fd).map(Some)
}

/// Makes the fifo (mode 0640) if there is none, and gives it to `owner` (user and group id). One that is there stays as
/// it is. To be called before rights are given away; its directory must be there.
///
/// # Errors
/// Something else is there (a symbolic link too), or the directory doesn't let us.
pub fn prepare(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let made = match mkfifoat(CWD, path, Mode::from_raw_mode(MODE)) {
        Ok(()) => true,
        Err(rustix::io::Errno::EXIST) => false,
        Err(e) => return Err(e.into()),
    };
    // A handle to just this object, whatever it is: nothing is opened by it.
    let handle = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&handle)?.st_mode);
    if kind != FileType::Fifo {
        return Err(not_a_fifo(kind));
    }
    if made {
        // Whatever the umask was.
        let by_handle = format!("/proc/self/fd/{}", handle.as_raw_fd());
        std::fs::set_permissions(by_handle, std::fs::Permissions::from_mode(MODE))?;
        if let Some((user, group)) = owner {
            let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
            chownat(&handle, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
    }
    Ok(())
}

fn not_a_fifo(kind: FileType) -> io::Error {
    let what = match kind {
        FileType::Symlink => "a symbolic link",
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    io::Error::new(io::ErrorKind::AlreadyExists, format!("there is {what}, not a fifo"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Dir;
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::unix::pipe::{OpenOptions, Receiver};

    fn line(name: &str, state: FifoState, priority: u8) -> Line {
        Line { subject: Subject::Instance, name: name.to_owned(), state, priority }
    }

    /// Virtual time would run away while a real pipe is waited for.
    async fn within<T>(what: &str, f: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(20), f).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }

    async fn next(reader: &mut BufReader<Receiver>) -> String {
        let mut text = String::new();
        within("a line", reader.read_line(&mut text)).await.expect("readable");
        text
    }

    fn open_reading(path: &Path) -> BufReader<Receiver> {
        BufReader::new(OpenOptions::new().open_receiver(path).expect("a fifo"))
    }

    fn started() -> (Dir, PathBuf, Fifo) {
        let dir = Dir::new();
        let path = dir.path("notify");
        prepare(&path, None).expect("made");
        let fifo = Fifo::spawn(path.clone());
        (dir, path, fifo)
    }

    /// Until the writer has seen that somebody reads, or that nobody does.
    async fn until_read(fifo: &Fifo, read: bool) {
        within("the writer", async {
            while fifo.shared.lock().read != read {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    #[test]
    fn lines_are_those_of_keepalived() {
        assert_eq!(line("web", FifoState::Master, 254).to_string(), "INSTANCE \"web\" MASTER 254\n");
        assert_eq!(line("web", FifoState::Stop, 0).to_string(), "INSTANCE \"web\" STOP 0\n");
        let group = Line { subject: Subject::Group, ..line("edge", FifoState::Backup, 253) };
        assert_eq!(group.to_string(), "GROUP \"edge\" BACKUP 253\n");
        assert_eq!(line("a", FifoState::Fault, 1).to_string(), "INSTANCE \"a\" FAULT 1\n");
    }

    #[tokio::test]
    async fn a_reader_gets_the_state_of_all_first_and_then_each_change_once() {
        let (_dir, path, fifo) = started();
        fifo.tell(line("web", FifoState::Backup, 100));
        fifo.tell(line("web", FifoState::Master, 100));
        fifo.tell(Line { subject: Subject::Group, ..line("edge", FifoState::Fault, 0) });
        let mut reader = open_reading(&path);
        assert_eq!(next(&mut reader).await, "INSTANCE \"web\" MASTER 100\n");
        assert_eq!(next(&mut reader).await, "GROUP \"edge\" FAULT 0\n");
        fifo.tell(line("web", FifoState::Master, 100));
        fifo.tell(line("web", FifoState::Master, 90));
        fifo.tell(line("web", FifoState::Backup, 90));
        fifo.tell(line("web", FifoState::Stop, 90));
        assert_eq!(next(&mut reader).await, "INSTANCE \"web\" BACKUP 90\n");
        assert_eq!(next(&mut reader).await, "INSTANCE \"web\" STOP 90\n");
        within("the last words", fifo.flush()).await;
        assert_eq!(fifo.dropped(), 0);
    }

    #[tokio::test]
    async fn a_reader_that_comes_back_gets_the_state_of_all_and_nothing_that_is_over() {
        let (_dir, path, fifo) = started();
        fifo.tell(line("a", FifoState::Master, 1));
        fifo.tell(line("b", FifoState::Backup, 2));
        let mut reader = open_reading(&path);
        assert_eq!(next(&mut reader).await, "INSTANCE \"a\" MASTER 1\n");
        drop(reader);
        until_read(&fifo, false).await;
        fifo.tell(line("a", FifoState::Stop, 1));
        fifo.tell(line("b", FifoState::Fault, 2));
        let mut reader = open_reading(&path);
        assert_eq!(next(&mut reader).await, "INSTANCE \"b\" FAULT 2\n");
        fifo.tell(line("b", FifoState::Backup, 2));
        assert_eq!(next(&mut reader).await, "INSTANCE \"b\" BACKUP 2\n");
    }

    #[tokio::test]
    async fn a_slow_reader_loses_the_oldest_and_still_ends_with_the_truth() {
        let (_dir, path, fifo) = started();
        let mut reader = open_reading(&path);
        until_read(&fifo, true).await;
        fifo.tell(line("early", FifoState::Fault, 7));
        assert_eq!(next(&mut reader).await, "INSTANCE \"early\" FAULT 7\n");
        // More than a pipe and the queue hold together.
        fifo.tell(line("early", FifoState::Backup, 7));
        let name = "x".repeat(100);
        for _ in 0..3_000 {
            fifo.tell(line(&name, FifoState::Master, 9));
            fifo.tell(line(&name, FifoState::Backup, 9));
            tokio::task::yield_now().await;
        }
        let dropped = fifo.dropped();
        assert!(dropped > 0);
        let mut last = BTreeMap::new();
        let end = format!("INSTANCE \"{name}\" BACKUP 9\n");
        let mut lines = 0;
        // All states come at the end, by name.
        loop {
            let text = next(&mut reader).await;
            lines += 1;
            let subject = text.split(' ').nth(1).expect("a name").to_owned();
            let was_early = last.insert("before", text.clone()) == Some("INSTANCE \"early\" BACKUP 7\n".to_owned());
            last.insert(if subject == "\"early\"" { "early" } else { "other" }, text.clone());
            if was_early && text == end && lines > 1_000 {
                break;
            }
        }
        assert_eq!(last.get("early").map(String::as_str), Some("INSTANCE \"early\" BACKUP 7\n"));
        within("the last words", fifo.flush()).await;
        assert_eq!(fifo.dropped(), dropped);
    }

    #[tokio::test]
    async fn nobody_waits_where_nobody_reads() {
        let (_dir, _path, fifo) = started();
        for n in 0..VIPS_MAX {
            fifo.tell(line(&format!("vip{n}"), FifoState::Backup, 1));
            fifo.tell(Line { subject: Subject::Group, ..line(&format!("vip{n}"), FifoState::Backup, 1) });
        }
        assert_eq!(fifo.dropped(), 0, "there is room for what a configuration may have");
        for n in 0..2_000 {
            fifo.tell(line(&format!("other{n}"), FifoState::Backup, 1));
        }
        within("the last words", fifo.flush()).await;
        let inner = fifo.shared.lock();
        assert_eq!((inner.queue.len(), inner.states.len()), (0, STATES_MAX));
    }

    #[tokio::test]
    async fn a_name_can_not_forge_a_line() {
        let (_dir, path, fifo) = started();
        let mut reader = open_reading(&path);
        fifo.tell(line(&format!("a\"\nINSTANCE \"b{}", "é".repeat(200)), FifoState::Fault, 1));
        let text = next(&mut reader).await;
        assert!(text.starts_with("INSTANCE \"aINSTANCE bé") && text.ends_with("é\" FAULT 1\n"), "{text}");
        assert!(text.len() < 200);
    }

    #[test]
    fn the_fifo_is_made_once_with_its_mode_and_owner_and_one_that_is_there_stays_as_it_is() {
        let dir = Dir::new();
        let path = dir.path("notify");
        let root = nix::unistd::geteuid().is_root();
        prepare(&path, root.then_some((12_345, 12_346))).expect("made");
        let made = std::fs::symlink_metadata(&path).expect("there");
        assert!(made.file_type().is_fifo());
        assert_eq!(made.mode() & 0o7777, MODE);
        if root {
            assert_eq!((made.uid(), made.gid()), (12_345, 12_346));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
        prepare(&path, None).expect("there already");
        assert_eq!(std::fs::symlink_metadata(&path).expect("there").mode() & 0o7777, 0o600);
    }

    #[tokio::test]
    async fn what_is_no_fifo_is_neither_taken_nor_written_to() {
        let dir = Dir::new();
        let (file, fifo, link, folder) = (dir.path("file"), dir.path("fifo"), dir.path("link"), dir.path("folder"));
        std::fs::write(&file, "precious").expect("written");
        prepare(&fifo, None).expect("made");
        std::os::unix::fs::symlink(&fifo, &link).expect("linked");
        std::fs::create_dir(&folder).expect("made");
        let _reader = open_reading(&fifo);
        for (path, what) in [(&file, "a file"), (&link, "a symbolic link"), (&folder, "a directory")] {
            let error = prepare(path, Some((0, 0))).expect_err("something else");
            assert_eq!(error.to_string(), format!("there is {what}, not a fifo"));
            assert!(open_writing(path).is_err(), "{what}");
        }
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "precious");
        assert!(prepare(&dir.path("gone/notify"), None).is_err(), "no such directory");
    }
}

//! nginx: a master, its workers, and those of former configurations that finish what they have. Asked over
//! `stub_status`, which is a hint only: it counts every server block and our own question, and knows no limit.
//!
//! The master holds the listening sockets and replaces a worker that dies. Without their master workers go on serving,
//! but nobody can reload or replace them. Processes are told apart by their titles.

use super::acts::Act;
use super::attempts::{Attempts, Opened, changed};
use super::plane::{Asked, Asking, Member, Plane, within};
use super::{Process, Tree, ask, proc};
use holdfast_node::config::{Admin as Where, Balancer, HttpAt};
use holdfast_node::io::{Admin, Level};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};

/// Longest answer; a status page has 100 bytes.
const ANSWER_MAX: usize = 16 * 1024;
const MASTER: &str = "nginx: master process";
const WORKER: &str = "nginx: worker process";
const LEAVING: &str = "nginx: worker process is shutting down";
/// What it reads unless it is told another.
const FILE: &str = "/etc/nginx/nginx.conf";
/// A folder whose files aren't all looked at within this time is looked at while other looks go on.
const CONFIRMED: Duration = Duration::from_millis(50);
/// How often it is looked whether that leads elsewhere by now.
const FILE_AGAIN: Duration = Duration::from_secs(10);

/// One nginx.
#[derive(Debug)]
pub(super) struct Nginx {
    admin: Option<(HttpAt, String)>,
    /// Connections that had been refused in the last look, by the nginx with this main process.
    refused: Option<(Process, u64)>,
    /// Connections in the last look that could count them.
    active: u64,
    reloads: Reloads,
}

impl Nginx {
    pub(super) fn new(balancer: &Balancer) -> Self {
        let admin = match &balancer.admin {
            Some(Where::Http { at, path }) => Some((at.clone(), path.clone())),
            Some(Where::Socket(_)) | None => None,
        };
        let reloads = Reloads { file: balancer.config.first().cloned(), ..Reloads::default() };
        Self { admin, refused: None, active: 1, reloads }
    }

    async fn asked(&mut self, tree: &Tree, patience: Duration) -> Asked {
        let failed = self.reloads.failed(tree).await;
        Asked { failed, ..self.page(tree, patience).await }
    }

    async fn page(&mut self, tree: &Tree, patience: Duration) -> Asked {
        // Without any worker it is about to start one.
        let leaving = tree.serving.is_empty() && !tree.old.is_empty();
        let Some((at, path)) = &self.admin else {
            return Asked { leaving, ..Asked::only(Admin::NotConfigured) };
        };
        let began = Instant::now();
        let answer = within(patience, ask::http(at, "GET", path, ANSWER_MAX)).await;
        let took = began.elapsed();
        let page = answer.and_then(|(status, body)| match status {
            200 => page(&String::from_utf8_lossy(&body)).ok_or_else(|| format!("{at}: not a status page of nginx")),
            other => Err(format!("{at}: status {other}")),
        });
        match page {
            Ok(page) => {
                let connections = Some(self.level(tree.main, page));
                Asked { connections, leaving, ..Asked::only(Admin::Answers { took }) }
            }
            // It took our connection and closed it: it has none left, not even for its own page.
            Err(why) if why.ends_with(ask::CLOSED) && !leaving => {
                let connections = Some(Level { now: self.active, limit: self.active });
                Asked { connections, ..Asked::only(Admin::Answers { took }) }
            }
            Err(why) => Asked { leaving, ..Asked::only(Admin::Silent { why }) },
        }
    }

    /// It tells no limit; but it has reached one if it took connections that it could not handle.
    fn level(&mut self, main: Process, page: Page) -> Level {
        self.active = page.active.max(1);
        let refused = page.accepts.saturating_sub(page.handled);
        let before = self.refused.replace((main, refused)).filter(|(of, _)| *of == main).map(|(_, refused)| refused);
        let full = before.is_some_and(|before| refused > before);
        let limit = if full { page.active.max(1) } else { 0 };
        Level { now: page.active.max(limit), limit }
    }
}

/// What is looked at to see reloads that failed. Files are looked at beside, however long that takes.
#[derive(Debug, Default)]
struct Reloads {
    /// As configured.
    file: Option<PathBuf>,
    attempts: Attempts,
    opened: Option<Opened>,
    watching: Option<JoinHandle<Option<Opened>>>,
    watched: Option<Instant>,
    confirming: Option<JoinHandle<Option<u64>>>,
}

impl Reloads {
    /// `None`: its file can't be seen.
    async fn failed(&mut self, tree: &Tree) -> Option<u64> {
        // Nobody could tell it to reload, or it serves itself and starts no others.
        if !tree.supervised || tree.serving.contains(&tree.main) {
            return None;
        }
        if self.watching.is_none() && self.watched.is_none_or(|at| at.elapsed() >= FILE_AGAIN) {
            let (file, master) = (self.file.clone(), tree.main.pid);
            self.watching = Some(spawn_blocking(move || Opened::of(&file.or_else(|| read_by(master))?)));
        }
        if let Some(watching) = self.watching.take_if(|watching| watching.is_finished()) {
            self.watched = Some(Instant::now());
            let found = watching.await.ok().flatten();
            if !matches!((&found, &self.opened), (Some(new), Some(old)) if new.same(old)) {
                self.opened = found;
            }
        }
        let opened = self.opened.as_ref()?;
        let Some(since) = opened.since() else {
            (self.opened, self.watched) = (None, None);
            return None;
        };
        let (proc, master) = (Path::new("/proc"), tree.main.pid);
        let signals = proc::signals(proc, master)?;
        let children = || proc::children(proc, master).into_iter().collect();
        // One at a time: a disk that hangs shall hold one thread. Attempts meanwhile count with the one that is looked at.
        if let Some(loaded) = self.attempts.look(Instant::now(), tree, signals, since, children)
            && self.confirming.is_none()
        {
            let folder = opened.folder().to_owned();
            self.confirming = Some(spawn_blocking(move || changed(&folder, loaded).then_some(loaded)));
        }
        if let Some(confirming) = &mut self.confirming
            && let Ok(done) = tokio::time::timeout(CONFIRMED, confirming).await
        {
            self.confirming = None;
            if let Ok(Some(loaded)) = done {
                self.attempts.confirm(loaded);
            }
        }
        Some(self.attempts.failed())
    }
}

/// The configuration file of the nginx with this master, by its title. `None`: named from where it was started.
fn read_by(master: u32) -> Option<PathBuf> {
    let title = proc::title(Path::new("/proc"), master);
    let mut words = title.split_ascii_whitespace();
    let named = words.find(|word| *word == "-c").and_then(|_| words.next()).unwrap_or(FILE);
    Some(PathBuf::from(named)).filter(|file| file.is_absolute())
}

impl Plane for Nginx {
    fn titles(&self) -> bool {
        true
    }

    fn shape(&self, main: &Member, members: &[Member]) -> Tree {
        let (mut serving, mut old, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for member in members {
            let title = member.title.as_str();
            match member.process {
                leaving if title.starts_with(LEAVING) => old.push(leaving),
                worker if title.starts_with(WORKER) => serving.push(worker),
                other if other != main.process => others.push(other),
                _ => {}
            }
        }
        // Without a master, and not as an orphan: `master_process off`.
        if serving.is_empty() && old.is_empty() && !main.title.starts_with(MASTER) {
            serving.push(main.process);
        }
        for list in [&mut serving, &mut old, &mut others] {
            list.sort_unstable();
        }
        let orphans = main.title.starts_with(WORKER);
        Tree { main: main.process, serving, old, others, supervised: !orphans, aborted: 0 }
    }

    fn ask<'a>(&'a mut self, tree: &'a Tree, patience: Duration) -> Asking<'a> {
        Box::pin(self.asked(tree, patience))
    }

    fn shed(&self, tree: &Tree) -> Vec<Act> {
        signal(tree, libc::SIGQUIT)
    }

    fn stop(&self, tree: &Tree) -> Vec<Act> {
        signal(tree, libc::SIGTERM)
    }
}

/// To the master, which tells its workers; without one to each worker.
fn signal(tree: &Tree, signal: i32) -> Vec<Act> {
    if tree.supervised {
        return vec![Act::signal(tree.main, signal)];
    }
    tree.serving.iter().map(|worker| Act::signal(*worker, signal)).collect()
}

/// The figures of `stub_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    active: u64,
    accepts: u64,
    handled: u64,
}

/// `None`: it is something else.
fn page(text: &str) -> Option<Page> {
    let active =
        text.trim_start().strip_prefix("Active connections:")?.split_ascii_whitespace().next()?.parse().ok()?;
    let (_, rest) = text.split_once("accepts handled requests")?;
    let mut numbers = rest.split_ascii_whitespace();
    Some(Page { active, accepts: numbers.next()?.parse().ok()?, handled: numbers.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::{member, pids};
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = "Active connections: 291 \nserver accepts handled requests\n 16630948 16630940 31070465 \n\
                        Reading: 6 Writing: 179 Waiting: 106 \n";

    fn nginx() -> Nginx {
        Nginx { admin: None, refused: None, active: 1, reloads: Reloads::default() }
    }

    fn lists(tree: &Tree) -> [Vec<u32>; 3] {
        [pids(&tree.serving), pids(&tree.old), pids(&tree.others)]
    }

    #[test]
    fn workers_serve_those_that_shut_down_are_old_and_the_cache_manager_is_neither() {
        let main = member(10, 1, "nginx: master process /usr/sbin/nginx");
        let members = [
            main.clone(),
            member(21, 10, "nginx: worker process is shutting down"),
            member(31, 10, "nginx: worker process"),
            member(30, 10, "nginx: worker process"),
            member(40, 10, "nginx: cache manager process"),
        ];
        let tree = nginx().shape(&main, &members);
        assert_eq!(lists(&tree), [vec![30, 31], vec![21], vec![40]]);
        assert!(tree.supervised);
    }

    #[test]
    fn orphans_serve_without_a_master() {
        let main = member(30, 1, "nginx: worker process");
        let tree = nginx().shape(&main, &[main.clone(), member(31, 1, "nginx: worker process")]);
        assert_eq!(lists(&tree), [vec![30, 31], vec![], vec![]]);
        assert!(!tree.supervised);
        assert_eq!(nginx().stop(&tree).len(), 2, "each is told");
    }

    #[test]
    fn a_master_whose_workers_all_shut_down_is_leaving() {
        let main = member(10, 1, "nginx: master process nginx");
        let tree = nginx().shape(&main, &[main.clone(), member(20, 10, LEAVING)]);
        assert_eq!(lists(&tree), [vec![], vec![20], vec![]]);
    }

    #[test]
    fn without_a_master_process_the_only_one_serves() {
        let main = member(10, 1, "nginx");
        assert_eq!(nginx().shape(&main, std::slice::from_ref(&main)), Tree::single(main.process));
    }

    #[test]
    fn a_status_page_is_read_and_anything_else_is_not() {
        assert_eq!(page(PAGE), Some(Page { active: 291, accepts: 16_630_948, handled: 16_630_940 }));
        for other in
            ["", "<html>", "Active connections: x", "Active connections: 1 \nserver accepts handled requests\n 1"]
        {
            assert_eq!(page(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_limit_is_known_only_while_connections_are_refused() {
        let mut nginx = nginx();
        let main = Process { start: 1, pid: 1 };
        let at = |handled| Page { active: 30, accepts: 100, handled };
        assert_eq!(nginx.level(main, at(90)), Level { now: 30, limit: 0 }, "refused before we looked");
        assert_eq!(nginx.level(main, at(89)), Level { now: 30, limit: 30 });
        assert_eq!(nginx.level(main, at(89)), Level { now: 30, limit: 0 });
        let other = Process { start: 2, pid: 2 };
        assert_eq!(nginx.level(other, at(10)), Level { now: 30, limit: 0 }, "another nginx counts from zero");
    }

    proptest! {
        #[test]
        fn no_answer_can_stop_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = page(&text);
            let _ = page(&format!("Active connections: 1\nserver accepts handled requests\n{text}"));
        }

        #[test]
        fn figures_of_any_size_are_no_overflow(active: u64, accepts: u64, handled: u64) {
            let text = format!("Active connections: {active} \nserver accepts handled requests\n {accepts} {handled} 1 \n");
            let page = page(&text);
            prop_assert_eq!(page, Some(Page { active, accepts, handled }));
            let level = nginx().level(Process { start: 1, pid: 1 }, page.expect("just compared"));
            prop_assert_eq!(level.limit, 0);
        }
    }
}

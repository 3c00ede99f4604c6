//! Files that take a VIP out while they are there (`disable_file`), as ExaBGP's health check knows them.

use holdfast_node::config::{Config, VipId};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// The files that are configured, each with the VIPs that go by it.
pub(super) type Files = BTreeMap<PathBuf, Vec<VipId>>;

/// Those of a configuration.
pub(super) fn files(config: &Config) -> Files {
    let mut files = Files::new();
    for (id, vip) in (0..).map(VipId).zip(&config.vips) {
        if let Some(path) = vip.bgp.as_ref().and_then(|bgp| bgp.disable_file.clone()) {
            files.entry(path).or_default().push(id);
        }
    }
    files
}

/// Tells of each VIP whether its file is there: at the start, and at each change. What can't be looked at isn't there,
/// which is said in the log each time that it begins.
pub(super) async fn watch(files: Files, told: mpsc::Sender<(VipId, bool)>) {
    let mut seen: Vec<Option<Result<bool, io::ErrorKind>>> = vec![None; files.len()];
    while !files.is_empty() {
        for ((path, vips), seen) in files.iter().zip(&mut seen) {
            let looked = tokio::fs::try_exists(path).await;
            let now = looked.as_ref().map(|there| *there).map_err(io::Error::kind);
            let there = now.unwrap_or(false);
            if let Err(e) = looked
                && *seen != Some(now)
            {
                tracing::warn!("disable file {}: {e}; it counts as absent", path.display());
            }
            let news = seen.is_none_or(|seen| seen.unwrap_or(false) != there);
            *seen = Some(now);
            for vip in vips.iter().filter(|_| news) {
                if told.send((*vip, there)).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Dir;

    #[tokio::test]
    async fn a_file_is_told_of_at_the_start_and_when_it_comes_or_goes_to_all_that_go_by_it() {
        let dir = Dir::new();
        let path = dir.path("off");
        let (told, mut seen) = mpsc::channel(8);
        let files = Files::from([(path.clone(), vec![VipId(3), VipId(5)]), (path.join("below"), vec![VipId(7)])]);
        let watcher = tokio::spawn(watch(files, told));
        let mut told = async |n: usize| {
            let mut all = Vec::new();
            for _ in 0..n {
                all.extend(seen.recv().await);
            }
            all
        };
        assert_eq!(told(3).await, [(VipId(3), false), (VipId(5), false), (VipId(7), false)]);
        // What is below a file can't be looked at: that is no news of it.
        std::fs::write(&path, "").expect("writable");
        assert_eq!(told(2).await, [(VipId(3), true), (VipId(5), true)]);
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(told(2).await, [(VipId(3), false), (VipId(5), false)]);
        watcher.abort();
    }
}

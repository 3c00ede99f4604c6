//! Files that take a VIP out while they are there (`disable_file`), as ExaBGP's health check knows them.

use holdfast_node::config::{Config, VipId};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// The files that are configured.
pub(super) fn files(config: &Config) -> Vec<(VipId, PathBuf)> {
    let vips = (0..).map(VipId).zip(&config.vips);
    vips.filter_map(|(id, vip)| Some((id, vip.bgp.as_ref()?.disable_file.clone()?))).collect()
}

/// Tells of each whether it is there: at the start, and at each change. What can't be looked at isn't there.
pub(super) async fn watch(files: Vec<(VipId, PathBuf)>, told: mpsc::Sender<(VipId, bool)>) {
    let mut seen: Vec<Option<bool>> = vec![None; files.len()];
    while !files.is_empty() {
        for ((vip, path), seen) in files.iter().zip(&mut seen) {
            let there = tokio::fs::try_exists(path).await.unwrap_or(false);
            if *seen != Some(there) && told.send((*vip, there)).await.is_err() {
                return;
            }
            *seen = Some(there);
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::Dir;

    #[tokio::test]
    async fn a_file_is_told_of_at_the_start_and_when_it_comes_or_goes() {
        let dir = Dir::new();
        let path = dir.path("off");
        let (told, mut seen) = mpsc::channel(8);
        let watcher = tokio::spawn(watch(vec![(VipId(3), path.clone())], told));
        assert_eq!(seen.recv().await, Some((VipId(3), false)));
        std::fs::write(&path, "").expect("writable");
        assert_eq!(seen.recv().await, Some((VipId(3), true)));
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(seen.recv().await, Some((VipId(3), false)));
        watcher.abort();
    }
}

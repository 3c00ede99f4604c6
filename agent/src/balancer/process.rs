//! Any process: it serves itself, and whatever it starts may go on after it.

use super::Tree;
use super::acts::Act;
use super::plane::{Asked, Asking, Member, Plane};
use holdfast_node::io::Admin;
use std::time::Duration;

/// Of which nothing is known.
#[derive(Debug)]
pub(super) struct Plain;

impl Plane for Plain {
    fn reloads(&self) -> bool {
        false
    }

    fn shape(&self, main: &Member, members: &[Member]) -> Tree {
        let others = members.iter().map(|m| m.process).filter(|p| *p != main.process).collect();
        Tree { others, ..Tree::single(main.process) }
    }

    fn ask<'a>(&'a mut self, _tree: &'a Tree, _patience: Duration) -> Asking<'a> {
        Box::pin(std::future::ready(Asked::only(Admin::NotConfigured)))
    }

    fn shed(&self, tree: &Tree) -> Vec<Act> {
        vec![Act::signal(tree.main, libc::SIGTERM)]
    }

    fn stop(&self, tree: &Tree) -> Vec<Act> {
        vec![Act::signal(tree.main, libc::SIGTERM)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::{member, pids};
    use super::*;

    #[test]
    fn the_named_process_serves_and_the_rest_is_only_its_company() {
        let main = member(10, 1, "lb");
        let tree = Plain.shape(&main, &[main.clone(), member(20, 10, "helper"), member(30, 1, "lb")]);
        assert_eq!((tree.main.pid, pids(&tree.serving), pids(&tree.others)), (10, vec![10], vec![20, 30]));
        assert!(tree.old.is_empty() && tree.supervised);
    }
}

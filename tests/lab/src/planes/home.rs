//! A stage between two drills: what moved nothing leaves both hosts as they were, and the next drill can have them.

use super::plane::Kind;
use super::world::World;
use crate::repeat::Stage;
use anyhow::Result;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Where a stage waits for the next drill of the same plane.
#[derive(Debug, Default)]
pub struct Home(RefCell<Option<(Kind, World)>>);

impl Home {
    /// The stage that waits here, or a new one.
    ///
    /// # Errors
    /// As [`World::start`].
    pub(super) fn lend(&self, kind: Kind, holdfast: PathBuf, keep: bool) -> Result<Lent<'_>> {
        let waiting = self.0.borrow_mut().take().filter(|(k, _)| *k == kind);
        let world = match waiting {
            Some((_, world)) => world,
            None => World::start(kind, holdfast, keep)?,
        };
        Ok(Lent { home: self, kind, world: Some(world), sound: false })
    }
}

/// A stage that goes back where it came from if it is as good as new.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    home: &'a Home,
    kind: Kind,
    /// There until this is dropped.
    world: Option<World>,
    sound: bool,
}

impl Lent<'_> {
    /// The stage itself. Whoever takes it in hand says afterwards whether it is [`Lent::sound`].
    pub(super) fn world(&mut self) -> Result<&mut World> {
        self.sound = false;
        anyhow::Context::context(self.world.as_mut(), "a stage is there until it goes back")
    }

    /// All went as it should, and no VIP moved.
    pub(super) fn sound(&mut self) {
        self.sound = true;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let (true, Some(world)) = (self.sound, self.world.take()) {
            *self.home.0.borrow_mut() = Some((self.kind, world));
        }
    }
}

impl Stage for Lent<'_> {
    fn directory(&self) -> &Path {
        self.world.as_ref().map_or_else(|| Path::new("/nonexistent"), Stage::directory)
    }
}

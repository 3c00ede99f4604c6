//! A real-time thread that only sleeps: how late it wakes is how late this machine was. A run during which it was
//! more than [`VOID`] late says nothing about the subject and is void.

use crate::clock::{MS, Ns, now, sleep_until};
use crate::load::Stopper;
use anyhow::Result;
use std::sync::{Arc, Mutex};

/// Lateness that voids a run.
pub const VOID: Ns = 50 * MS;
/// Time between two wake-ups.
const STEP: Ns = 2 * MS;
/// Lateness below this isn't noted.
const NOTE: Ns = MS / 2;

/// The running thread.
#[derive(Debug)]
pub struct Reference {
    stopper: Stopper,
    late: Arc<Mutex<Vec<(Ns, Ns)>>>,
}

impl Reference {
    /// Starts it.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start() -> Result<Self> {
        let late = Arc::new(Mutex::new(Vec::new()));
        let shared = late.clone();
        let stopper = Stopper::spawn("reference", move |stop| {
            let mut due = now();
            while !stop() {
                due += STEP;
                sleep_until(due);
                let t = now();
                if t.saturating_sub(due) >= NOTE
                    && let Ok(mut l) = shared.lock()
                {
                    l.push((t, t - due));
                }
                due = due.max(t.saturating_sub(STEP));
            }
            Ok(())
        })?;
        Ok(Self { stopper, late })
    }

    /// The thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// Stops and returns (when, how late).
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<(Ns, Ns)>> {
        self.stopper.finish()?;
        Ok(self.late.lock().map(|l| l.clone()).unwrap_or_default())
    }
}

//! How a guard is switched off: the module `mutants` of each crate that has guards includes this file, with the feature of
//! that name only. The names are the including module's `NAMES`.

use std::cell::Cell;
use std::sync::LazyLock;

#[allow(clippy::disallowed_methods, reason = "test builds only: the name of the guard comes from the environment")]
static PROCESS: LazyLock<String> = LazyLock::new(|| std::env::var("HOLDFAST_MUTANTS").unwrap_or_default());

thread_local! {
    static THREAD: Cell<&'static str> = const { Cell::new("") };
}

/// Whether the guard of this name is switched off.
pub fn off(name: &str) -> bool {
    THREAD.get() == name || PROCESS.split(',').any(|off| off == name)
}

/// Runs `test` on this thread with the guard switched off; it is on again afterwards, also after a panic.
pub fn with_off<T>(name: &'static str, test: impl FnOnce() -> T) -> T {
    assert!(super::NAMES.contains(&name), "no guard is called {name}");
    struct Restore(&'static str);
    impl Drop for Restore {
        fn drop(&mut self) {
            THREAD.set(self.0);
        }
    }
    let _restore = Restore(THREAD.replace(name));
    test()
}

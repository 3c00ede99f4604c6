//! Guards that a test build can switch off by name, so that the test of a guard can be seen to fail without it.
//!
//! Without the feature `mutants` nothing can be switched off: [`off`] is constant `false` and the check compiles away.
//! With it a guard is off when the environment variable `HOLDFAST_MUTANT` names it, or inside [`without`].

/// The guards of this crate.
pub const GUARDS: [&str; 5] = ["replay-window", "auth", "source-check", "key-confirmation", "stamp"];

/// Whether the guard of this name is switched off.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn off(_guard: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use switchable::without;

#[cfg(feature = "mutants")]
pub(crate) use switchable::off;

#[cfg(feature = "mutants")]
mod switchable {
    use std::cell::RefCell;
    use std::sync::OnceLock;

    thread_local! {
        static OFF: RefCell<Option<String>> = const { RefCell::new(None) };
    }

    /// Whether the guard of this name is switched off, in this thread or by the environment.
    pub(crate) fn off(guard: &str) -> bool {
        static BY_ENVIRONMENT: OnceLock<Option<String>> = OnceLock::new();
        let named = BY_ENVIRONMENT.get_or_init(|| std::env::var("HOLDFAST_MUTANT").ok());
        named.as_deref() == Some(guard) || OFF.with_borrow(|off| off.as_deref() == Some(guard))
    }

    /// Runs `body` with one guard off in this thread; the guard is on again afterwards, also after a panic.
    pub fn without<T>(guard: &str, body: impl FnOnce() -> T) -> T {
        struct Restore(Option<String>);
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.with_borrow_mut(|off| *off = self.0.take());
            }
        }
        let _restore = Restore(OFF.replace(Some(guard.to_owned())));
        body()
    }
}

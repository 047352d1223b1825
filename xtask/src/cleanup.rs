//! What must be undone however the program ends.
//!
//! A node is a process, a UNIX socket and a terminal in raw mode; each has to be put back on return, on an error, on a
//! panic and on a signal. Rust's destructors see to the first two. The third ends in `abort` (the workspace builds with
//! `panic = "abort"`), and a signal runs no destructor at all: for those there is a list of what is open, which the
//! panic hook and the signal handler work off.

use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};

type Undo = Box<dyn FnOnce() + Send>;

static OPEN: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
static NEXT: Mutex<u64> = Mutex::new(0);
/// Held while the list is worked off, so that the main thread cannot return, and end the program, in the middle of it.
static ENDING: Mutex<()> = Mutex::new(());

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A list is whole after any of the operations on it, so that a poisoned one is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs its action once: when it is dropped, or when the program ends before that.
#[must_use = "dropping it undoes at once"]
pub struct Cleanup {
    number: u64,
}

impl Cleanup {
    pub fn new(undo: impl FnOnce() + Send + 'static) -> Self {
        let mut next = held(&NEXT);
        *next += 1;
        held(&OPEN).push((*next, Box::new(undo)));
        Cleanup { number: *next }
    }

    /// Leaves things as they are.
    pub fn defuse(self) {
        let _ = take(self.number);
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(undo) = take(self.number) {
            undo();
        }
    }
}

fn take(number: u64) -> Option<Undo> {
    let mut open = held(&OPEN);
    let place = open.iter().position(|(other, _)| *other == number)?;
    Some(open.remove(place).1)
}

/// Undoes everything that is open, the newest first; waits if another thread is at it.
pub fn undo_all() {
    let ending = held(&ENDING);
    work_off();
    drop(ending);
}

fn work_off() {
    loop {
        // The lock is not held while the action runs: an action may drop another `Cleanup`.
        let newest = held(&OPEN).pop();
        match newest {
            Some((_, undo)) => undo(),
            None => break,
        }
    }
}

/// Makes SIGINT, SIGTERM, SIGHUP and panics undo what is open.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        let ending = held(&ENDING);
        work_off();
        // 128 + SIGINT, as a shell reports it. The lock is not given back: this is how the program ends.
        std::mem::forget(ending);
        process::exit(130);
    })
    .context("installing the handler of Ctrl-C")?;
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // An action that panics is in this hook already.
        if let Ok(_ending) = ENDING.try_lock() {
            work_off();
        }
        default(info);
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn an_action_runs_once_or_never() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = |runs: &Arc<AtomicUsize>| {
            let runs = Arc::clone(runs);
            Cleanup::new(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
        };
        drop(count(&runs));
        count(&runs).defuse();
        let open = count(&runs);
        undo_all();
        drop(open);
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }
}

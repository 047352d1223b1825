//! The event: how anything, an interrupt handler too, tells a task to go on.
//!
//! An event is latched and resets itself: a signal that finds nobody waiting is kept for the
//! next wait, and one signal ends one wait. A waiter that was given the signal is taken off the
//! list by the signaller, so "am I still on the list" is the one truth about who ended a timed
//! wait, the signal or the clock.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::sync::{IrqSpinLock, irq_off};
use crate::task::{self, Task};

/// See the module.
pub struct Event {
    inner: IrqSpinLock<Inner>,
}

struct Inner {
    signalled: bool,
    waiters: VecDeque<Arc<Task>>,
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl Event {
    /// An event that has not been signalled.
    pub const fn new() -> Self {
        Event { inner: IrqSpinLock::new(Inner { signalled: false, waiters: VecDeque::new() }) }
    }

    /// Ends one wait: that of the longest waiter, or else the next. From any context.
    pub fn signal(&self) {
        let waiter = {
            let mut inner = self.inner.lock();
            let waiter = inner.waiters.pop_front();
            inner.signalled |= waiter.is_none();
            waiter
        };
        if let Some(waiter) = waiter {
            task::wake(&waiter);
        }
    }

    /// Takes a kept signal without waiting. Whether there was one.
    pub fn try_take(&self) -> bool {
        core::mem::take(&mut self.inner.lock().signalled)
    }

    /// Waits for a signal. Tasks only.
    pub fn wait(&self) {
        self.wait_inner(None);
    }

    /// Waits for a signal until `deadline_ns` (ns since boot). Whether the signal came.
    pub fn wait_until(&self, deadline_ns: u64) -> bool {
        self.wait_inner(Some(deadline_ns))
    }

    fn wait_inner(&self, deadline_ns: Option<u64>) -> bool {
        // Interrupts stay off from the look at the latch to the switch: a task that is listed as
        // waiting but has not yet set its alarm must not be switched away.
        let _irq = irq_off();
        let me = task::current();
        {
            let mut inner = self.inner.lock();
            if core::mem::take(&mut inner.signalled) {
                return true;
            }
            if has_passed(deadline_ns) {
                return false;
            }
            inner.waiters.push_back(me.clone());
            task::mark_blocked(&me);
        }
        loop {
            match deadline_ns {
                None => task::schedule(),
                Some(deadline_ns) => task::schedule_until(&me, deadline_ns),
            }
            let mut inner = self.inner.lock();
            let Some(place) = inner.waiters.iter().position(|waiter| Arc::ptr_eq(waiter, &me)) else {
                return true;
            };
            if has_passed(deadline_ns) {
                inner.waiters.remove(place);
                return false;
            }
            // A wake-up that was meant for an earlier wait: its signaller took this task off that
            // list, and the clock ended that wait before the wake-up arrived. Wait on.
            task::mark_blocked(&me);
        }
    }
}

fn has_passed(deadline_ns: Option<u64>) -> bool {
    deadline_ns.is_some_and(|deadline| deadline <= crate::time::now_ns())
}

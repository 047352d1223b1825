//! Whether the consumer of some rings must be woken.
//!
//! A consumer that is awake looks at its rings anyway, so to signal it for every value is work for nothing, and
//! the signal's lock is one that all producers share. Here a producer asks first. Neither may miss the other,
//! whoever is faster: the consumer says that it will sleep and *then* looks at its rings once more; a producer
//! pushes and *then* looks whether the consumer sleeps. Both do it by a read-modify-write of one flag, so one of the two
//! comes later and sees what the other did before: the consumer the value, or the producer the sleeper.
//! (That the flag is changed by nothing but read-modify-writes is what makes this hold for every producer before,
//! not only for the last.)

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, Ordering::AcqRel};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering::AcqRel};

/// See the module. Any number of producers, one consumer.
#[derive(Debug)]
pub struct Sleeper {
    asleep: AtomicBool,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

impl Sleeper {
    /// A consumer that is awake.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// A consumer that is awake (loom's atomics cannot be made in a constant).
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// The consumer is about to sleep. It must look at every ring once more ([`crate::Ring::has_next`]), and
    /// [`Sleeper::get_up`] instead of sleeping if there is something.
    pub fn lie_down(&self) {
        self.asleep.swap(true, AcqRel);
    }

    /// The consumer does not sleep, or no longer.
    pub fn get_up(&self) {
        self.asleep.swap(false, AcqRel);
    }

    /// A producer has pushed. `true`: the consumer is to be woken, by the one who is told so.
    #[must_use]
    pub fn rouse(&self) -> bool {
        self.asleep.swap(false, AcqRel)
    }
}

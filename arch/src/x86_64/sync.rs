//! The two synchronization tools `arch` itself needs.
//!
//! `kcore` has the locks that the rest of the kernel uses; those know of tasks and
//! preemption and are built on `arch`, so `arch` cannot use them.

use super::cpu;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const FULL: u8 = 2;

/// A value written once, at boot, and read from then on.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value moves in by `set` on one CPU and is only shared afterwards, by
// reference; the Release store of FULL and the Acquire load in `get` order the two.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// A cell without a value.
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Stores `value` and tells where; `None`, and nothing changes, if there is one already.
    pub fn set(&self, value: T) -> Option<&T> {
        let claim = self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_err() {
            return None;
        }
        // SAFETY: the exchange from EMPTY succeeds once, so nobody else writes; readers
        // wait for FULL.
        let stored = unsafe { (*self.value.get()).write(value) };
        self.state.store(FULL, Ordering::Release);
        Some(stored)
    }

    /// The value, once it is there.
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != FULL {
            return None;
        }
        // SAFETY: FULL is stored after the value was written, and never taken back.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }
}

/// A spinlock that turns interrupts off while held.
pub struct IrqLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one exclusive reference at a time.
unsafe impl<T: Send> Sync for IrqLock<T> {}

impl<T> IrqLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, running `while_waiting` at each turn.
    ///
    /// The wait has interrupts off, so a holder that waits for an answer from this CPU
    /// (a TLB shootdown) needs `while_waiting` to give it.
    pub fn lock_with(&self, while_waiting: impl Fn()) -> IrqGuard<'_, T> {
        let interrupts = cpu::irq_save();
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while_waiting();
            cpu::pause();
        }
        IrqGuard { lock: self, interrupts }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> IrqGuard<'_, T> {
        self.lock_with(|| ())
    }
}

/// Proof that the lock is held and interrupts are off.
pub struct IrqGuard<'l, T> {
    lock: &'l IrqLock<T>,
    interrupts: cpu::IrqState,
}

impl<T> Deref for IrqGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the lock is held.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for IrqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard itself is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for IrqGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
        cpu::irq_restore(self.interrupts);
    }
}

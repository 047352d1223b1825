//! Locks whose type says what they turn off.
//!
//! | lock | turns off | who may take it |
//! |---|---|---|
//! | [`SpinLock`] | preemption on this CPU | tasks |
//! | [`IrqSpinLock`] | interrupts on this CPU | tasks and interrupt handlers |
//! | [`crate::mutex::Mutex`] | nothing: the waiting task sleeps | tasks |
//!
//! Giving a lock back is also a moment at which a postponed request to reschedule is followed:
//! whichever guard makes the CPU preemptible again looks at the request (see
//! `sched::may_switch`), so a request that came under the lock is late by the lock, never lost.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::{cpu, task};

/// A test-and-test-and-set lock without data and without policy.
pub(crate) struct RawSpin(AtomicBool);

impl RawSpin {
    pub const fn new() -> Self {
        RawSpin(AtomicBool::new(false))
    }

    pub fn try_acquire(&self) -> bool {
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    pub fn acquire(&self) {
        while !self.try_acquire() {
            while self.0.load(Relaxed) {
                arch::cpu::pause();
            }
        }
    }

    pub fn release(&self) {
        self.0.store(false, Release);
    }
}

/// Holds preemption off on this CPU while it lives. Guards nest. Not `Send`: it speaks of a CPU.
pub struct PreemptGuard(PhantomData<*mut ()>);

/// Turns preemption off until the guard goes.
pub fn preempt_off() -> PreemptGuard {
    let depth = &cpu::local().preempt_depth;
    // Only this CPU writes the depth, and an interrupt leaves it as it found it.
    depth.store(depth.load(Relaxed) + 1, Relaxed);
    PreemptGuard(PhantomData)
}

impl Drop for PreemptGuard {
    fn drop(&mut self) {
        let depth = &cpu::local().preempt_depth;
        depth.store(depth.load(Relaxed) - 1, Relaxed);
        task::reschedule_if_wanted();
    }
}

/// Holds interrupts off on this CPU while it lives. Guards nest.
pub struct IrqGuard {
    state: arch::cpu::IrqState,
    _cpu_bound: PhantomData<*mut ()>,
}

/// Turns interrupts off until the guard goes.
pub fn irq_off() -> IrqGuard {
    IrqGuard { state: arch::cpu::irq_save(), _cpu_bound: PhantomData }
}

impl Drop for IrqGuard {
    fn drop(&mut self) {
        arch::cpu::irq_restore(self.state);
        task::reschedule_if_wanted();
    }
}

/// A spinning lock that holds preemption off. Interrupt handlers must not take it: they would
/// wait for the task they interrupted.
pub struct SpinLock<T: ?Sized> {
    raw: RawSpin,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out `&mut T` to one holder at a time, on whichever CPU; that needs T: Send.
unsafe impl<T: ?Sized + Send> Send for SpinLock<T> {}
// SAFETY: as above: sharing the lock shares only the right to take turns.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock, spinning, with preemption off.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        debug_assert!(!cpu::in_interrupt(), "a SpinLock was taken in an interrupt handler");
        let preempt = preempt_off();
        self.raw.acquire();
        SpinGuard { lock: self, _preempt: preempt }
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let preempt = preempt_off();
        self.raw.try_acquire().then(|| SpinGuard { lock: self, _preempt: preempt })
    }
}

/// The right to use what a [`SpinLock`] guards.
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    // After `drop` has released the lock this field goes, and preemption comes back.
    _preempt: PreemptGuard,
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.release();
    }
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this holder alone has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

/// A spinning lock that holds interrupts off: the only lock an interrupt handler may take.
pub struct IrqSpinLock<T: ?Sized> {
    raw: RawSpin,
    value: UnsafeCell<T>,
}

// SAFETY: as for `SpinLock`.
unsafe impl<T: ?Sized + Send> Send for IrqSpinLock<T> {}
// SAFETY: as for `SpinLock`.
unsafe impl<T: ?Sized + Send> Sync for IrqSpinLock<T> {}

impl<T> IrqSpinLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        IrqSpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> IrqSpinLock<T> {
    /// Waits for the lock, spinning, with interrupts off.
    pub fn lock(&self) -> IrqSpinGuard<'_, T> {
        let irq = irq_off();
        self.raw.acquire();
        IrqSpinGuard { lock: self, _irq: irq }
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock(&self) -> Option<IrqSpinGuard<'_, T>> {
        let irq = irq_off();
        self.raw.try_acquire().then(|| IrqSpinGuard { lock: self, _irq: irq })
    }

    /// Forgets whoever holds the lock. For a panic only, when the holder has been stopped.
    pub(crate) fn break_open(&self) {
        self.raw.release();
    }
}

/// The right to use what an [`IrqSpinLock`] guards.
pub struct IrqSpinGuard<'a, T: ?Sized> {
    lock: &'a IrqSpinLock<T>,
    _irq: IrqGuard,
}

impl<T: ?Sized> Drop for IrqSpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.release();
    }
}

impl<T: ?Sized> Deref for IrqSpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this holder alone has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for IrqSpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

/// A value set once, at start, and read without a lock ever after.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<Option<T>>,
}

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;

// SAFETY: the value moves in from one thread and is then only shared.
unsafe impl<T: Send + Sync> Sync for Once<T> {}
// SAFETY: an owned value goes where its cell goes.
unsafe impl<T: Send> Send for Once<T> {}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Once<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Once { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(None) }
    }

    /// Sets the value; gives it back if there is one already (or one is being set).
    pub fn set(&self, value: T) -> Result<(), T> {
        if self.state.compare_exchange(EMPTY, BUSY, Acquire, Relaxed).is_err() {
            return Err(value);
        }
        // SAFETY: EMPTY became BUSY by this call alone, and nobody reads before READY.
        unsafe { *self.value.get() = Some(value) };
        self.state.store(READY, Release);
        Ok(())
    }

    /// The value, once it is set.
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Acquire) != READY {
            return None;
        }
        // SAFETY: READY is stored after the value and never taken back; the value is not written again.
        unsafe { (*self.value.get()).as_ref() }
    }
}

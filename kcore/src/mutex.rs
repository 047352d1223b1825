//! A lock for tasks: whoever must wait sleeps.
//!
//! Built on [`Event`]: the holder leaves a latched signal behind, so a wake-up between a failed
//! attempt and the wait is not lost. A waiter competes again after each wake-up; the lock is not
//! handed over, which would make every contended release a task switch.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use crate::event::Event;

/// A sleeping lock. Tasks only, and never with preemption or interrupts off.
pub struct Mutex<T: ?Sized> {
    held: AtomicBool,
    waiters: AtomicUsize,
    freed: Event,
    value: UnsafeCell<T>,
}

// SAFETY: one holder at a time gets `&mut T`; that needs T: Send.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex around `value`.
    pub const fn new(value: T) -> Self {
        Mutex {
            held: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            freed: Event::new(),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.held
            .compare_exchange(false, true, Acquire, Relaxed)
            .ok()
            .map(|_| MutexGuard { mutex: self, _marker: PhantomData })
    }

    /// Waits for the mutex, asleep.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            // Announced before the second look: the holder reads `waiters` after it has let go,
            // so either it sees us and signals, or we see the mutex free.
            self.waiters.fetch_add(1, SeqCst);
            let guard = self.try_lock();
            if guard.is_none() {
                self.freed.wait();
            }
            self.waiters.fetch_sub(1, SeqCst);
            if let Some(guard) = guard {
                return guard;
            }
        }
    }
}

/// The right to use what a [`Mutex`] guards.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Neither Send nor Sync by itself: a shared guard gives out `&T`, so it is as shareable as T.
    _marker: PhantomData<*mut T>,
}

// SAFETY: a shared guard gives out `&T` and nothing else.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}
// SAFETY: a mutex is held by whoever has the guard, on whichever CPU; what moves is `&mut T`.
unsafe impl<T: ?Sized + Send> Send for MutexGuard<'_, T> {}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.held.store(false, Release);
        core::sync::atomic::fence(SeqCst);
        if self.mutex.waiters.load(SeqCst) > 0 {
            self.mutex.freed.signal();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this holder alone has the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

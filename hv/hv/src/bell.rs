//! The doorbells of one guest's CPUs.
//!
//! A guest CPU is inside the guest, on its way there, working for it, or asleep. The
//! backend's doorbell gets it out of the first two; an event wakes it from the last.
//! Both words are set before the other side's is read, so whichever comes second sees
//! the first.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use hvarch::Doorbell;
use kcore::event::Event;

/// One CPU's.
pub struct Bell {
    doorbell: Arc<Doorbell>,
    asleep: AtomicBool,
    wake: Event,
}

impl Bell {
    fn new() -> Bell {
        Bell { doorbell: Arc::new(Doorbell::new()), asleep: AtomicBool::new(false), wake: Event::new() }
    }

    /// For the backend.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        self.doorbell.clone()
    }

    fn ring(&self) {
        self.doorbell.ring();
        if self.asleep.load(Ordering::SeqCst) {
            self.wake.signal();
        }
    }

    /// The CPU's own task, before it looks at what ringers left.
    pub fn take(&self) -> bool {
        self.doorbell.take()
    }

    /// The CPU's own task: sleeps until the bell rings (or rang since [`Bell::take`]), or
    /// until the time has come.
    pub fn sleep(&self, until_ns: Option<u64>) {
        self.asleep.store(true, Ordering::SeqCst);
        if !self.doorbell.has_rung() {
            match until_ns {
                Some(until_ns) => {
                    self.wake.wait_until(until_ns);
                }
                None => self.wake.wait(),
            }
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// All of a guest's bells.
#[derive(Clone)]
pub struct Bells(Arc<[Bell]>);

impl Bells {
    pub fn new(cpus: usize) -> Bells {
        Bells((0..cpus).map(|_| Bell::new()).collect())
    }

    /// Rings for CPU `cpu`, from any context.
    pub fn ring(&self, cpu: usize) {
        if let Some(bell) = self.0.get(cpu) {
            bell.ring();
        }
    }

    /// Rings for the CPU that does the devices' work.
    pub fn ring_device_cpu(&self) {
        self.ring(0);
    }

    pub fn ring_all(&self) {
        self.0.iter().for_each(Bell::ring);
    }

    pub fn of(&self, cpu: usize) -> &Bell {
        &self.0[cpu]
    }

    /// For the machine's interrupt messages.
    pub fn for_machine(&self) -> Box<dyn machine::apic::bus::Doorbell> {
        Box::new(self.clone())
    }
}

impl machine::apic::bus::Doorbell for Bells {
    fn ring(&self, cpu: usize) {
        Bells::ring(self, cpu);
    }
}

//! How one CPU gets another's guest out.
//!
//! A virtual CPU that must look up (an interrupt arrived for it, a frame waits, the
//! guest is to stop) may be inside the guest, on its way in, or out. The doorbell's two
//! words close the gap between the last look and the entry: the runner first says
//! where it is, then looks whether the bell rang; the ringer first rings, then looks
//! where the runner is. Whichever comes second sees the first, so no ring is lost, and
//! no interrupt is sent to a CPU that would have looked anyway.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const OUTSIDE: usize = usize::MAX;

/// One for each virtual CPU, shared by everyone who may want its attention.
pub struct Doorbell {
    rung: AtomicBool,
    /// The host CPU that is inside the guest or about to enter, or [`OUTSIDE`].
    inside: AtomicUsize,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    pub const fn new() -> Self {
        Self { rung: AtomicBool::new(false), inside: AtomicUsize::new(OUTSIDE) }
    }

    /// Asks for attention: from any context. The guest is taken out by a reschedule
    /// interrupt if it runs on another CPU than this one.
    pub fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        let cpu = self.inside.load(Ordering::SeqCst);
        if cpu != OUTSIDE && cpu != arch::cpu::index() {
            arch::apic::send_ipi(cpu, arch::traps::VECTOR_RESCHEDULE);
        }
    }

    /// Whether it rang since the last call. The runner calls it before it looks at
    /// whatever ringers leave for it.
    pub fn take(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }

    /// Whether it rang and nobody has taken that.
    pub fn has_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// With interrupts off: announces the entry. False if the bell rang, and then the
    /// guest must not be entered.
    pub(crate) fn enter(&self) -> bool {
        self.inside.store(arch::cpu::index(), Ordering::SeqCst);
        let quiet = !self.has_rung();
        if !quiet {
            self.leave();
        }
        quiet
    }

    pub(crate) fn leave(&self) {
        self.inside.store(OUTSIDE, Ordering::SeqCst);
    }
}

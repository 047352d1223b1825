//! The kernel's heap: talc over page runs that are taken as they are needed.
//!
//! Interrupt handlers may free (the last share of something) and, rarely, allocate, so the lock
//! turns interrupts off.

use core::alloc::Layout;
use core::cell::Cell;
use core::ops::DerefMut;

use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use crate::memory::{self, PAGE_BYTES};
use crate::sync::RawSpin;

/// Bytes the heap grows by at least.
const GROWTH_BYTES: usize = 1 << 20;
/// What talc needs beside an allocation in a new piece: tags, and its lists in the first one.
const OVERHEAD_BYTES: usize = 16 * 1024;

/// A spinning lock that holds interrupts off, in the shape that talc takes.
pub struct RawIrqSpin {
    raw: RawSpin,
    irq: Cell<Option<arch::cpu::IrqState>>,
}

// SAFETY: `irq` is written and read by the holder only.
unsafe impl Sync for RawIrqSpin {}

// SAFETY: `lock` returns only when `RawSpin` was acquired, which one holder at a time can do.
unsafe impl lock_api::RawMutex for RawIrqSpin {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait asks for a constant")]
    const INIT: Self = RawIrqSpin { raw: RawSpin::new(), irq: Cell::new(None) };
    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        let irq = arch::cpu::irq_save();
        self.raw.acquire();
        self.irq.set(Some(irq));
    }

    fn try_lock(&self) -> bool {
        let irq = arch::cpu::irq_save();
        let taken = self.raw.try_acquire();
        if taken {
            self.irq.set(Some(irq));
        } else {
            arch::cpu::irq_restore(irq);
        }
        taken
    }

    unsafe fn unlock(&self) {
        let irq = self.irq.take();
        self.raw.release();
        if let Some(irq) = irq {
            arch::cpu::irq_restore(irq);
        }
    }
}

/// Feeds the heap from physical memory.
#[derive(Debug)]
pub struct PageSource {
    total_bytes: usize,
}

// SAFETY: `acquire` touches the allocator only through `talc`, allocates nothing from it, and
// says Ok only when a piece was claimed.
unsafe impl Source for PageSource {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let wanted =
            layout.size().checked_add(layout.align()).and_then(|n| n.checked_add(OVERHEAD_BYTES)).ok_or(())?;
        let piece = |bytes: usize| {
            let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
            memory::take_for_heap(bytes / PAGE_BYTES).map(|base| (base, bytes))
        };
        // Where memory is in small pieces, no more than is needed.
        let (base, bytes) = piece(wanted.max(GROWTH_BYTES)).or_else(|| piece(wanted)).ok_or(())?;
        // SAFETY: the pages are the heap's own from now on and never given back.
        unsafe { talc.claim(base, bytes) }.ok_or(())?;
        talc.source.total_bytes += bytes;
        Ok(())
    }
}

#[global_allocator]
static HEAP: TalcLock<RawIrqSpin, PageSource> = TalcLock::new(PageSource { total_bytes: 0 });

/// Bytes allocated, and bytes taken from physical memory.
pub(crate) fn usage() -> (usize, usize) {
    let mut heap = HEAP.lock();
    let heap = heap.deref_mut();
    (heap.counters().allocated_bytes, heap.source.total_bytes)
}

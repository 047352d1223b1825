//! Page frames for the smoke test: a bump allocator, and a list of what came back.

use arch::addr::{PAGE_BYTES, PhysAddr};
use arch::boot::{BootInfo, MemoryKind};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);

/// Takes the largest usable region.
pub fn init(boot: &BootInfo) {
    let usable = boot.memory.iter().filter(|region| region.kind == MemoryKind::Usable);
    if let Some(region) = usable.max_by_key(|region| region.bytes) {
        NEXT.store(region.start.as_u64(), Ordering::Relaxed);
        END.store(region.end().as_u64(), Ordering::Relaxed);
    }
}

/// A frame that was never given before.
pub fn alloc() -> Option<PhysAddr> {
    let frame = NEXT.fetch_add(PAGE_BYTES, Ordering::Relaxed);
    (frame < END.load(Ordering::Relaxed)).then_some(PhysAddr(frame))
}

/// Counts the frame; the smoke test has enough of them.
pub fn free(_frame: PhysAddr) {
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// Frames that came back.
pub fn freed() -> usize {
    FREED.load(Ordering::Relaxed)
}

//! Physical memory, by pages of 4 KiB.
//!
//! Everything that owns memory owns a [`PageRun`]: heap chunks, the frame pool, DMA buffers,
//! guests. A request that cannot be met fails with its name and size. The last 8 MiB are kept for the
//! kernel's own small allocations, which cannot fail one by one: a heap that finds no page panics.

use core::fmt;
use core::slice;

use arch::addr::{PhysAddr, phys_to_virt};
use arch::boot::{BootInfo, MemoryKind};
use pagemap::{PAGES_PER_WORD, PageMap};

use crate::sync::IrqSpinLock;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Pages that only the heap, page tables and stacks may take: whoever asks for memory by name is
/// refused before the kernel's own small allocations can fail.
const KERNEL_RESERVE_PAGES: usize = 2048;

static PAGES: IrqSpinLock<Option<PageMap<'static>>> = IrqSpinLock::new(None);
static TOTAL_PAGES: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Memory that was not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What it was wanted for.
    pub what: &'static str,
    /// How much was wanted, in bytes.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for {}: {} KiB in one piece are not free", self.what, self.bytes / 1024)
    }
}

/// Takes over the memory that the boot loader reported as usable.
pub(crate) fn init(info: &BootInfo) {
    let usable = || info.memory.iter().filter(|region| region.kind == MemoryKind::Usable && region.bytes > 0);
    let end = usable().map(|region| region.start.as_u64() + region.bytes).max().unwrap_or(0);
    let words = (end as usize / PAGE_BYTES).div_ceil(PAGES_PER_WORD);
    let map_bytes = words * size_of::<u64>();
    let Some(home) = usable().map(whole_pages).find(|(start, end)| end - start >= map_bytes) else {
        return;
    };
    // SAFETY: the region is usable RAM, in the direct map, and nothing has been allocated from it
    // yet; the map's own pages are never released below.
    let storage =
        unsafe { slice::from_raw_parts_mut(phys_to_virt(PhysAddr::new(home.0 as u64)).cast::<u64>(), words) };
    let mut map = PageMap::new(storage);
    for (start, end) in usable().map(whole_pages) {
        let start = if start == home.0 { (start + map_bytes).next_multiple_of(PAGE_BYTES) } else { start };
        if end > start {
            // Regions that overlap, which firmware should not report, are refused whole.
            map.release(start / PAGE_BYTES, (end - start) / PAGE_BYTES);
        }
    }
    TOTAL_PAGES.store(map.free(), core::sync::atomic::Ordering::Relaxed);
    *PAGES.lock() = Some(map);
}

/// A region's whole pages: first and end address.
fn whole_pages(region: &arch::boot::MemoryRegion) -> (usize, usize) {
    let start = (region.start.as_u64() as usize).next_multiple_of(PAGE_BYTES);
    let end = (region.start.as_u64() + region.bytes) as usize / PAGE_BYTES * PAGE_BYTES;
    (start, end.max(start))
}

fn take(pages: usize, align_pages: usize, leave_pages: usize) -> Option<PhysAddr> {
    let mut map = PAGES.lock();
    let map = map.as_mut()?;
    if pages.checked_add(leave_pages)? > map.free() {
        return None;
    }
    let first = map.take(pages, align_pages)?;
    Some(PhysAddr::new((first * PAGE_BYTES) as u64))
}

fn zero(phys: PhysAddr, pages: usize) {
    // SAFETY: the pages were just taken from the map, so nobody else knows them, and all RAM is
    // in the direct map.
    unsafe { core::ptr::write_bytes(phys_to_virt(phys), 0, pages * PAGE_BYTES) };
}

/// Takes one zeroed page, for page tables and stacks.
pub(crate) fn alloc_page() -> Option<PhysAddr> {
    let phys = take(1, 1, 0)?;
    zero(phys, 1);
    Some(phys)
}

/// Gives one page back.
pub(crate) fn free_page(phys: PhysAddr) {
    release(phys, 1);
}

fn release(phys: PhysAddr, pages: usize) {
    let released = match PAGES.lock().as_mut() {
        Some(map) => map.release(phys.as_u64() as usize / PAGE_BYTES, pages),
        None => false,
    };
    assert!(released, "pages at {:#x} were given back twice", phys.as_u64());
}

/// Takes pages that are not zeroed, for the heap; never given back.
pub(crate) fn take_for_heap(pages: usize) -> Option<*mut u8> {
    take(pages, 1, 0).map(phys_to_virt)
}

/// Pages in one piece, owned; given back when dropped.
#[derive(Debug)]
pub struct PageRun {
    phys: PhysAddr,
    pages: usize,
}

impl PageRun {
    /// Takes `pages` zeroed pages in one piece, the first at a multiple of `align_pages` pages.
    /// `what` names the use in the error.
    pub fn new(pages: usize, align_pages: usize, what: &'static str) -> Result<PageRun, OutOfMemory> {
        let phys = take(pages, align_pages, KERNEL_RESERVE_PAGES)
            .ok_or(OutOfMemory { what, bytes: pages.saturating_mul(PAGE_BYTES) })?;
        zero(phys, pages);
        Ok(PageRun { phys, pages })
    }

    /// Where the run begins.
    #[inline]
    pub fn phys(&self) -> PhysAddr {
        self.phys
    }

    /// Its length in pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Where the kernel sees the run. What lies there may be written by a device or a guest at
    /// any time: use it by volatile accesses or copies, never as a reference.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        phys_to_virt(self.phys)
    }
}

impl Drop for PageRun {
    fn drop(&mut self) {
        release(self.phys, self.pages);
    }
}

/// How much memory there is, in pages.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStats {
    /// Pages that the kernel manages.
    pub total_pages: usize,
    /// Pages not in use.
    pub free_pages: usize,
    /// Bytes of the heap that are allocated.
    pub heap_used_bytes: usize,
    /// Bytes that the heap has taken.
    pub heap_total_bytes: usize,
}

/// How much memory there is and how much is free.
pub fn stats() -> MemoryStats {
    let free_pages = PAGES.lock().as_ref().map_or(0, PageMap::free);
    let (heap_used_bytes, heap_total_bytes) = crate::heap::usage();
    MemoryStats {
        total_pages: TOTAL_PAGES.load(core::sync::atomic::Ordering::Relaxed),
        free_pages,
        heap_used_bytes,
        heap_total_bytes,
    }
}

/// Pages that somebody owns: without the heap's, the page tables', and those of the pool of shared
/// pages, all of which are taken on need and kept.
pub(crate) fn pages_in_use() -> usize {
    let stats = stats();
    let kept = stats.heap_total_bytes / PAGE_BYTES
        + arch::paging::tables_made()
        + crate::frame::page_stats().total as usize;
    (stats.total_pages - stats.free_pages).saturating_sub(kept)
}

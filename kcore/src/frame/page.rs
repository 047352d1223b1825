//! Shared pages, for data that no frame holds: a sector of 4 KiB.
//!
//! The disk fills a page once, and the cards send it in as many packets as it takes, each with a
//! share of the page behind its headers; the last packet sent gives it back. So a page has any
//! number of holders, and one rule: **while it is shared, nobody writes to it**, neither the CPU
//! ([`Page::fill`]) nor a device (`DmaMemory::from_page` takes a page only from its sole holder).
//!
//! The pages are a pool of their own, made when the first is wanted: a node whose disks have
//! 512-byte sectors does not pay for it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arch::addr::PhysAddr;
use pieces::{FreeList, Shares};

use crate::memory::{OutOfMemory, PAGE_BYTES, PageRun};
use crate::sync::{IrqSpinLock, Once};

/// Pages of the pool: 2 MiB, room for all 256 requests of a server and as many pages again with
/// the cards.
const POOL_PAGES: u32 = 512;

struct Pool {
    memory: PageRun,
    shares: Shares,
    free: IrqSpinLock<FreeList>,
}

static POOL: Once<Pool> = Once::new();
/// Times a page was wanted and there was none, the pool itself included.
static FAILURES: AtomicU64 = AtomicU64::new(0);

/// The pool; a page proves that it exists.
fn pool() -> &'static Pool {
    POOL.get().expect("pages exist only once their pool does")
}

impl Pool {
    fn new() -> Result<Pool, OutOfMemory> {
        let memory = PageRun::new(POOL_PAGES as usize, 1, "the pool of shared pages")?;
        let no_table = |_| OutOfMemory {
            what: "the tables of the shared pages",
            bytes: POOL_PAGES as usize * 2 * size_of::<u32>(),
        };
        Ok(Pool {
            memory,
            shares: Shares::new(POOL_PAGES).map_err(no_table)?,
            free: IrqSpinLock::new(FreeList::full(POOL_PAGES).map_err(no_table)?),
        })
    }

    fn offset(index: u32) -> usize {
        index as usize * PAGE_BYTES
    }

    fn address(&self, index: u32) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(Pool::offset(index))
    }
}

/// Where a page lies of which somebody has a share.
pub(super) fn phys(index: u32) -> PhysAddr {
    pool().memory.phys() + Pool::offset(index)
}

/// Where the kernel sees byte `offset` of such a page.
pub(super) fn address(index: u32, offset: usize) -> *const u8 {
    pool().address(index).wrapping_add(offset)
}

/// Makes the pool, if it is not there yet: for whoever will need pages and would rather be refused
/// at its start than find none later.
pub fn prepare_pages() -> Result<(), OutOfMemory> {
    if POOL.get().is_none() {
        // Of two that come at once one keeps its pool, the other's memory goes back.
        drop(POOL.set(Pool::new()?));
    }
    Ok(())
}

/// A share of a page of the pool. A clone is another share; the last that is dropped gives the
/// page back, in any context.
#[derive(Debug)]
pub struct Page {
    index: u32,
}

/// Why nothing was written into a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FillError {
    /// Somebody else sees the page too.
    Shared,
    /// The bytes do not fit there.
    OverTheEnd,
}

impl Page {
    /// Takes a page. What it holds is left over from its last use.
    pub fn alloc() -> Option<Page> {
        let taken = prepare_pages().ok().and(POOL.get()).and_then(|pool| pool.free.lock().take());
        let Some(index) = taken else {
            FAILURES.fetch_add(1, Relaxed);
            return None;
        };
        pool().shares.first(index);
        Some(Page { index })
    }

    /// Where the page lies.
    pub fn phys(&self) -> PhysAddr {
        phys(self.index)
    }

    /// Whether somebody else has a share of the page. If not, nobody gets one before this holder
    /// gives it.
    pub fn is_shared(&self) -> bool {
        !pool().shares.is_sole(self.index)
    }

    /// The whole page.
    pub fn bytes(&self) -> &[u8; PAGE_BYTES] {
        // SAFETY: it is a page of the pool's memory. It is written to only through its sole holder,
        // by `fill`, which takes that holder mutably, or by a device, which then has the holder
        // itself (`DmaMemory::from_page`): not while it is borrowed here.
        unsafe { &*pool().address(self.index).cast::<[u8; PAGE_BYTES]>() }
    }

    /// Copies `bytes` into the page at `offset`, unless the page is shared.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) -> Result<(), FillError> {
        let end = offset.checked_add(bytes.len()).ok_or(FillError::OverTheEnd)?;
        if self.is_shared() {
            return Err(FillError::Shared);
        }
        // SAFETY: it is a page of the pool's memory, and this is its only holder, taken mutably, so
        // nobody else reads or writes it.
        let page = unsafe { &mut *pool().address(self.index).cast::<[u8; PAGE_BYTES]>() };
        page.get_mut(offset..end).ok_or(FillError::OverTheEnd)?.copy_from_slice(bytes);
        Ok(())
    }

    /// The share as a number, to be noted in a packet.
    pub(super) fn into_index(self) -> u32 {
        core::mem::ManuallyDrop::new(self).index
    }

    /// The share that was noted under this number, once.
    pub(super) fn from_index(index: u32) -> Page {
        Page { index }
    }
}

impl Clone for Page {
    fn clone(&self) -> Page {
        pool().shares.share(self.index);
        Page { index: self.index }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let pool = pool();
        if pool.shares.leave(self.index) {
            pool.free.lock().give(self.index);
        }
    }
}

/// The state of the pool of shared pages. All zero before the first is wanted.
pub fn page_stats() -> super::PoolStats {
    let alloc_failures = FAILURES.load(Relaxed);
    let Some(pool) = POOL.get() else {
        return super::PoolStats { alloc_failures, ..super::PoolStats::default() };
    };
    let free = pool.free.lock();
    super::PoolStats { total: POOL_PAGES, free: free.len(), low_water: free.low_water(), alloc_failures }
}

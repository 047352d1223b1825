//! Page tables: four levels of 512 entries (AMD APM vol. 2 section 5.3).
//!
//! Entries are atomics and tables are never freed, so that a fault handler or an NMI may
//! walk them without the lock that writers hold.

use super::{FrameSource, MapError};
use crate::x86_64::addr::{PAGE_BYTES, PhysAddr, VirtAddr, phys_to_virt};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use x86_64::structures::paging::PageTableFlags as Flags;

const ENTRIES: usize = 512;
/// Bits 12 to 51: the physical address in an entry.
const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;

/// Tables made since the start; they are never freed.
static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Frames that have become page tables, besides those of the image.
pub fn tables_made() -> usize {
    TABLES.load(Ordering::Relaxed)
}

/// One table, as it lies in memory.
#[repr(C, align(4096))]
pub struct PageTable([AtomicU64; ENTRIES]);

impl PageTable {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; ENTRIES])
    }

    /// Sets entry `index` to lead to `target`.
    pub fn set(&self, index: usize, target: PhysAddr, flags: Flags) {
        self.0[index].store(target.as_u64() | flags.bits(), Ordering::Release);
    }

    /// Makes the upper half of the address space what it is in `other`.
    pub fn copy_upper_half(&self, other: &Self) {
        for (entry, from) in self.0.iter().zip(&other.0).skip(ENTRIES / 2) {
            entry.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }
}

/// How much one entry maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    FourKib,
    TwoMib,
    OneGib,
}

impl PageSize {
    pub const fn bytes(self) -> u64 {
        match self {
            Self::FourKib => PAGE_BYTES,
            Self::TwoMib => PAGE_BYTES << 9,
            Self::OneGib => PAGE_BYTES << 18,
        }
    }

    /// The level of the tables whose entries map this much; the lowest is 1.
    const fn level(self) -> u32 {
        match self {
            Self::FourKib => 1,
            Self::TwoMib => 2,
            Self::OneGib => 3,
        }
    }
}

/// A run of pages to map.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub at: VirtAddr,
    pub to: PhysAddr,
    pub bytes: u64,
    /// Without PRESENT and HUGE_PAGE.
    pub flags: Flags,
    /// The largest page to use.
    pub largest: PageSize,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    pub flags: Flags,
}

/// An address space, by its root table's frame.
#[derive(Clone, Copy)]
pub struct AddressSpace {
    root: PhysAddr,
}

/// The entry that decides about `address` in a table of `level`.
#[allow(clippy::cast_possible_truncation, reason = "nine bits")]
const fn index_at(level: u32, address: VirtAddr) -> usize {
    (address.as_u64() >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

fn table_at(frame: PhysAddr) -> &'static PageTable {
    // SAFETY: `frame` comes from CR3 or from a table's entry, so it holds a page table; tables
    // are zeroed before they are linked and never freed, and the direct map covers them.
    unsafe { &*phys_to_virt(frame).cast::<PageTable>() }
}

impl AddressSpace {
    /// The space whose root table is in `root`.
    ///
    /// # Safety
    /// The frame holds a root page table whose tables are all covered by the direct map that
    /// is in force, and none of them is ever freed.
    pub const unsafe fn from_root(root: PhysAddr) -> Self {
        Self { root }
    }

    /// Maps every page of `run`, with the largest pages that fit.
    pub fn map(&self, run: &Run, source: FrameSource) -> Result<(), MapError> {
        let mut done = 0;
        while done < run.bytes {
            let (at, to) = (run.at.as_u64() + done, run.to.as_u64() + done);
            let fits = |size: &PageSize| {
                size.level() <= run.largest.level()
                    && (at | to).is_multiple_of(size.bytes())
                    && run.bytes - done >= size.bytes()
            };
            let sizes = [PageSize::OneGib, PageSize::TwoMib, PageSize::FourKib];
            let size = sizes.into_iter().find(fits).ok_or(MapError::BadRange)?;
            self.map_page(VirtAddr(at), PhysAddr(to), size, run.flags, source)?;
            done += size.bytes();
        }
        Ok(())
    }

    fn map_page(
        &self,
        at: VirtAddr,
        to: PhysAddr,
        size: PageSize,
        flags: Flags,
        source: FrameSource,
    ) -> Result<(), MapError> {
        let table = self.table_for(at, size.level(), source)?;
        let entry = &table.0[index_at(size.level(), at)];
        if entry.load(Ordering::Acquire) != 0 {
            return Err(MapError::AlreadyMapped);
        }
        let mut flags = flags | Flags::PRESENT;
        flags.set(Flags::HUGE_PAGE, size != PageSize::FourKib);
        entry.store(to.as_u64() | flags.bits(), Ordering::Release);
        Ok(())
    }

    /// The table of `level` that decides about `at`, made where it is missing.
    pub fn table_for(
        &self,
        at: VirtAddr,
        level: u32,
        source: FrameSource,
    ) -> Result<&'static PageTable, MapError> {
        let mut table = table_at(self.root);
        for upper in (level + 1..=4).rev() {
            let entry = &table.0[index_at(upper, at)];
            let bits = Flags::from_bits_retain(entry.load(Ordering::Acquire));
            let next = if !bits.contains(Flags::PRESENT) {
                let frame = new_table(source)?;
                let flags = Flags::PRESENT | Flags::WRITABLE;
                entry.store(frame.as_u64() | flags.bits(), Ordering::Release);
                frame
            } else if bits.contains(Flags::HUGE_PAGE) {
                return Err(MapError::AlreadyMapped);
            } else {
                PhysAddr(bits.bits() & ADDRESS_MASK)
            };
            table = table_at(next);
        }
        Ok(table)
    }

    /// Takes the 4 KiB mapping at `at` away and gives the frame that was there. The caller
    /// makes every CPU forget it before the frame is used for anything else.
    pub fn unmap(&self, at: VirtAddr) -> Option<PhysAddr> {
        let (entry, level) = self.find(at)?;
        let bits = entry.load(Ordering::Acquire);
        if level != 1 {
            return None;
        }
        entry.store(0, Ordering::Release);
        Some(PhysAddr(bits & ADDRESS_MASK))
    }

    /// Gives the mapped 4 KiB at `at` other flags. A larger page that they are part of is cut into
    /// smaller ones, each as it was. The caller makes every CPU forget the old translation.
    pub fn protect(&self, at: VirtAddr, flags: Flags, source: FrameSource) -> Result<(), MapError> {
        loop {
            let (entry, level) = self.find(at).ok_or(MapError::NotMapped)?;
            let old = entry.load(Ordering::Acquire);
            if level == 1 {
                let to = old & ADDRESS_MASK;
                entry.store(to | (flags | Flags::PRESENT).bits(), Ordering::Release);
                return Ok(());
            }
            // The entry may hold the large page and the table that replaces it: both lead to the same
            // places with the same rights (AMD APM vol. 2 section 7.8.3 asks for no more).
            let table = new_table(source)?;
            let step = PAGE_BYTES << (9 * (level - 2));
            let first = old & ADDRESS_MASK & !(step * ENTRIES as u64 - 1);
            let mut kept = Flags::from_bits_truncate(old & !ADDRESS_MASK);
            kept.set(Flags::HUGE_PAGE, level > 2);
            for (index, part) in table_at(table).0.iter().enumerate() {
                part.store((first + index as u64 * step) | kept.bits(), Ordering::Release);
            }
            entry.store(table.as_u64() | (Flags::PRESENT | Flags::WRITABLE).bits(), Ordering::Release);
        }
    }

    /// What is mapped at `at`.
    pub fn lookup(&self, at: VirtAddr) -> Option<Leaf> {
        let (entry, _) = self.find(at)?;
        let flags = Flags::from_bits_truncate(entry.load(Ordering::Acquire) & !ADDRESS_MASK);
        Some(Leaf { flags })
    }

    /// The present leaf entry for `at`, and its level.
    fn find(&self, at: VirtAddr) -> Option<(&'static AtomicU64, u32)> {
        let mut table = table_at(self.root);
        for level in (1..=4).rev() {
            let entry = &table.0[index_at(level, at)];
            let bits = Flags::from_bits_retain(entry.load(Ordering::Acquire));
            if !bits.contains(Flags::PRESENT) {
                return None;
            }
            if level == 1 || bits.contains(Flags::HUGE_PAGE) {
                return Some((entry, level));
            }
            table = table_at(PhysAddr(bits.bits() & ADDRESS_MASK));
        }
        None
    }
}

/// A zeroed frame for a table.
fn new_table(source: FrameSource) -> Result<PhysAddr, MapError> {
    let frame = source().ok_or(MapError::OutOfFrames)?;
    if !super::is_reachable(frame) {
        return Err(MapError::UnreachableFrame);
    }
    // SAFETY: the source gave the frame away, and the direct map in force reaches it.
    unsafe { phys_to_virt(frame).write_bytes(0, PAGE_BYTES as usize) };
    TABLES.fetch_add(1, Ordering::Relaxed);
    Ok(frame)
}

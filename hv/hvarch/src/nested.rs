//! Nested page tables: guest-physical to host-physical.
//!
//! The format is that of long-mode page tables (AMD APM vol. 2 sec. 15.25.3), four
//! levels, walked with the host's EFER and CR4. Every guest access counts as a user
//! access (sec. 15.25.5), so U is set throughout. Only RAM is mapped; all the rest of
//! the guest's address space faults, and a fault is how an access to a device arrives.
//! The map is made once, before the guest's first entry, and never changed, so no
//! translation is ever stale.

use alloc::vec::Vec;

use arch::addr::PhysAddr;
use kcore::memory::{OutOfMemory, PAGE_BYTES, PageRun};

use crate::memory::{GuestMemory, PIECE_BYTES};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const ENTRIES: u64 = 512;
/// Bits of guest-physical address that a level's index takes away: 512 GiB, 1 GiB,
/// 2 MiB, 4 KiB.
const SHIFTS: [u32; 4] = [39, 30, 21, 12];

/// The tables of one guest. Dropping them frees their pages; the virtual CPUs that use
/// them hold a share.
pub struct NestedTables {
    /// The root first.
    tables: Vec<PageRun>,
}

impl NestedTables {
    /// Tables that map `memory` and nothing else.
    pub fn new(memory: &GuestMemory) -> Result<NestedTables, OutOfMemory> {
        let mut tables = NestedTables { tables: Vec::new() };
        tables.add_table()?;
        memory.for_each_stretch(|guest, host, bytes| {
            let large = PIECE_BYTES;
            if bytes == large && guest % large == 0 && host.as_u64() % large == 0 {
                return tables.map(guest, host.as_u64() | LARGE, 2);
            }
            for page in (0..bytes).step_by(PAGE_BYTES) {
                tables.map(guest + page, host.as_u64() + page, 3)?;
            }
            Ok(())
        })?;
        Ok(tables)
    }

    /// For N_CR3.
    pub fn root(&self) -> PhysAddr {
        self.tables[0].phys()
    }

    /// Enters `leaf` (address and LARGE) for `guest` at `level`, which counts from the
    /// root's 0.
    fn map(&mut self, guest: u64, leaf: u64, level: usize) -> Result<(), OutOfMemory> {
        let mut table = 0;
        for shift in &SHIFTS[..level] {
            let index = (guest >> shift) % ENTRIES;
            let entry = self.entry(table, index);
            table = if entry & PRESENT != 0 {
                self.position(entry & ADDRESS)
            } else {
                let below = self.add_table()?;
                let address = self.tables[below].phys().as_u64();
                self.set_entry(table, index, address | PRESENT | WRITABLE | USER);
                below
            };
        }
        let index = (guest >> SHIFTS[level]) % ENTRIES;
        self.set_entry(table, index, leaf | PRESENT | WRITABLE | USER);
        Ok(())
    }

    fn add_table(&mut self) -> Result<usize, OutOfMemory> {
        self.tables.push(PageRun::new(1, 1, "nested page table")?);
        Ok(self.tables.len() - 1)
    }

    /// Which of the tables lies at `address`. Tables are few (one for each GiB), and
    /// this runs at a guest's start alone. The newest is the likeliest.
    fn position(&self, address: u64) -> usize {
        self.tables
            .iter()
            .rposition(|table| table.phys().as_u64() == address)
            .expect("an entry of these tables points to one of them")
    }

    fn entry(&self, table: usize, index: u64) -> u64 {
        // SAFETY: `index` is below 512 (reduced by every caller), so the pointer stays
        // within the page that the run owns; the entry is aligned. The processor may
        // set accessed bits meanwhile, hence volatile.
        unsafe { self.slot(table, index).read_volatile() }
    }

    fn set_entry(&mut self, table: usize, index: u64, entry: u64) {
        // SAFETY: as in `entry`; exclusive by `&mut self`, and no processor walks the
        // tables before they are finished (`new` is the only caller of `map`).
        unsafe { self.slot(table, index).write_volatile(entry) }
    }

    fn slot(&self, table: usize, index: u64) -> *mut u64 {
        self.tables[table].as_ptr().cast::<u64>().wrapping_add((index % ENTRIES) as usize)
    }
}

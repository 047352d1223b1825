//! From the guest's linear addresses to its physical ones, by its own page tables.
//!
//! Used where the processor has not done it for us: to fetch an intercepted
//! instruction's bytes, and for the memory side of string port accesses. The tables
//! belong to the guest and change under the walk; every entry is copied once, checked,
//! and used from the copy, so the worst a racing guest gets is the translation it had
//! a moment ago. Accessed and dirty bits are not written: a guest that pages itself
//! sees them set by its own CPUs, and no system ages pages by port accesses.
//!
//! AMD APM vol. 2 (rev. 3.42) sec. 5.2 (legacy and PAE), 5.3 (long mode), 5.4 (fault
//! codes in sec. 8.4.2), 5.6 (protection).

use virtio_device::{GuestPhysAddr, GuestRam};

use crate::backend::PagingState;

const CR0_PG: u64 = 1 << 31;
const CR0_WP: u64 = 1 << 16;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

const ENTRY_PRESENT: u64 = 1 << 0;
const ENTRY_WRITABLE: u64 = 1 << 1;
const ENTRY_USER: u64 = 1 << 2;
const ENTRY_LARGE: u64 = 1 << 7;
const ENTRY_NO_EXECUTE: u64 = 1 << 63;
/// Bits 51:12 of an entry.
const ENTRY_ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const FAULT_PRESENT: u32 = 1 << 0;
const FAULT_WRITE: u32 = 1 << 1;
const FAULT_USER: u32 = 1 << 2;
const FAULT_FETCH: u32 = 1 << 4;

/// What the translation is for; decides the protection checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkAccess {
    Read,
    Write,
    Fetch,
}

/// Why there is no translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkFault {
    /// The guest earns #PF with this error code and CR2 = the linear address.
    PageFault { error: u32 },
    /// A page table lies outside the guest's RAM. Real hardware would read whatever
    /// the bus answers; no working system does this.
    TableOutsideRam { table: GuestPhysAddr },
}

/// One level's share of the walk.
struct Level {
    shift: u32,
    index_bits: u32,
    entry_bytes: u64,
    /// Whether bit 7 of an entry makes it a page at this level.
    may_be_large: bool,
    /// PAE's four top entries have neither W, U nor NX (APM vol. 2 fig. 5-11).
    carries_protection: bool,
}

impl Level {
    const fn wide(shift: u32, may_be_large: bool) -> Self {
        Self { shift, index_bits: 9, entry_bytes: 8, may_be_large, carries_protection: true }
    }
}

const LONG: [Level; 5] = [
    Level::wide(48, false),
    Level::wide(39, false),
    Level::wide(30, true),
    Level::wide(21, true),
    Level::wide(12, false),
];

const PAE: [Level; 3] = [
    Level { shift: 30, index_bits: 2, entry_bytes: 8, may_be_large: false, carries_protection: false },
    Level::wide(21, true),
    Level::wide(12, false),
];

const LEGACY: [Level; 2] = [
    Level { shift: 22, index_bits: 10, entry_bytes: 4, may_be_large: true, carries_protection: true },
    Level { shift: 12, index_bits: 10, entry_bytes: 4, may_be_large: false, carries_protection: true },
];

/// The guest-physical address of `linear`. It need not be RAM.
pub fn translate(
    ram: &dyn GuestRam,
    paging: &PagingState,
    linear: u64,
    access: WalkAccess,
) -> Result<GuestPhysAddr, WalkFault> {
    if paging.cr0 & CR0_PG == 0 {
        return Ok(GuestPhysAddr::new(linear & 0xffff_ffff));
    }
    let long = paging.efer & EFER_LMA != 0;
    let pae = paging.cr4 & CR4_PAE != 0;
    let (levels, root, linear): (&[Level], u64, u64) = if long {
        let levels = if paging.cr4 & CR4_LA57 != 0 { &LONG[..] } else { &LONG[1..] };
        (levels, paging.cr3 & ENTRY_ADDRESS, linear)
    } else if pae {
        (&PAE, paging.cr3 & 0xffff_ffe0, linear & 0xffff_ffff)
    } else {
        (&LEGACY, paging.cr3 & 0xffff_f000, linear & 0xffff_ffff)
    };

    let user = paging.privilege_level == 3;
    let mut error = 0;
    if access == WalkAccess::Write {
        error |= FAULT_WRITE;
    }
    if user {
        error |= FAULT_USER;
    }
    let no_execute_enabled = (long || pae) && paging.efer & EFER_NXE != 0;
    if access == WalkAccess::Fetch && no_execute_enabled {
        error |= FAULT_FETCH;
    }

    let mut table = root;
    // The strictest of all levels holds (APM vol. 2 sec. 5.6.2, 5.6.4).
    let mut writable = true;
    let mut user_allowed = true;
    let mut no_execute = false;
    for (depth, level) in levels.iter().enumerate() {
        let index = (linear >> level.shift) & ((1 << level.index_bits) - 1);
        let entry = read_entry(ram, table + index * level.entry_bytes, level.entry_bytes)?;
        if entry & ENTRY_PRESENT == 0 {
            return Err(WalkFault::PageFault { error });
        }
        if level.carries_protection {
            writable &= entry & ENTRY_WRITABLE != 0;
            user_allowed &= entry & ENTRY_USER != 0;
            no_execute |= entry & ENTRY_NO_EXECUTE != 0;
        }
        let four_mib_allowed = long || pae || paging.cr4 & CR4_PSE != 0;
        let last = depth + 1 == levels.len();
        let large = level.may_be_large && entry & ENTRY_LARGE != 0 && four_mib_allowed;
        if !last && !large {
            table = entry & ENTRY_ADDRESS;
            continue;
        }
        let refused = (access == WalkAccess::Write && !writable && (user || paging.cr0 & CR0_WP != 0))
            || (user && !user_allowed)
            || (access == WalkAccess::Fetch && no_execute_enabled && no_execute);
        if refused {
            return Err(WalkFault::PageFault { error: error | FAULT_PRESENT });
        }
        let offset_mask = (1u64 << level.shift) - 1;
        let mut frame = entry & ENTRY_ADDRESS;
        if large && level.entry_bytes == 4 {
            // PSE-36: bits 20:13 are address bits 39:32 (APM vol. 2 fig. 5-7).
            frame = (entry & 0xffc0_0000) | ((entry >> 13) & 0xff) << 32;
        }
        return Ok(GuestPhysAddr::new((frame & !offset_mask) | (linear & offset_mask)));
    }
    // The last level of every table above returns.
    Err(WalkFault::PageFault { error })
}

fn read_entry(ram: &dyn GuestRam, address: u64, bytes: u64) -> Result<u64, WalkFault> {
    let address = GuestPhysAddr::new(address);
    let entry = if bytes == 8 { ram.read_u64(address) } else { ram.read_u32(address).map(u64::from) };
    entry.map_err(|_| WalkFault::TableOutsideRam { table: address })
}

/// Copies up to `into.len()` bytes from `linear` on; how many could be read before a
/// page without translation or RAM began.
pub fn copy_from_linear(
    ram: &dyn GuestRam,
    paging: &PagingState,
    linear: u64,
    access: WalkAccess,
    into: &mut [u8],
) -> usize {
    let mut done = 0;
    while done < into.len() {
        let at = linear.wrapping_add(done as u64);
        let Ok(physical) = translate(ram, paging, at, access) else { break };
        let in_page = 4096 - (at & 4095) as usize;
        let count = in_page.min(into.len() - done);
        if ram.read(physical, &mut into[done..done + count]).is_err() {
            break;
        }
        done += count;
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use virtio_device::fake::VecRam;

    use super::*;

    const LONG_MODE: PagingState = PagingState {
        cr0: CR0_PG | CR0_WP | 1,
        cr3: 0x1000,
        cr4: CR4_PAE,
        efer: EFER_LMA | EFER_NXE,
        privilege_level: 0,
    };

    fn put(ram: &VecRam, address: u64, entry: u64) {
        ram.write(GuestPhysAddr::new(address), &entry.to_le_bytes()).unwrap();
    }

    /// 0x40_0000 -> 4 KiB page 0x5000; 0x60_0000 -> 2 MiB page at 0x80_0000 read-only.
    fn long_tables() -> VecRam {
        let ram = VecRam::new(0x8000);
        put(&ram, 0x1000, 0x2000 | 7);
        put(&ram, 0x2000, 0x3000 | 7);
        put(&ram, 0x3000 + 2 * 8, 0x4000 | 7);
        put(&ram, 0x3000 + 3 * 8, 0x80_0000 | ENTRY_LARGE | ENTRY_USER | ENTRY_PRESENT | ENTRY_NO_EXECUTE);
        put(&ram, 0x4000, 0x5000 | 3);
        ram
    }

    #[test]
    fn long_mode_small_and_large_pages() {
        let ram = long_tables();
        let at = |linear, access| translate(&ram, &LONG_MODE, linear, access);
        assert_eq!(at(0x40_0123, WalkAccess::Write), Ok(GuestPhysAddr::new(0x5123)));
        assert_eq!(at(0x67_0123, WalkAccess::Read), Ok(GuestPhysAddr::new(0x87_0123)));
        assert_eq!(at(0x67_0123, WalkAccess::Write), Err(WalkFault::PageFault { error: 3 }));
        assert_eq!(at(0x67_0123, WalkAccess::Fetch), Err(WalkFault::PageFault { error: 0x11 }));
        assert_eq!(at(0x40_1000, WalkAccess::Read), Err(WalkFault::PageFault { error: 0 }));
    }

    #[test]
    fn user_code_needs_the_user_bit_on_every_level() {
        let ram = long_tables();
        let user = PagingState { privilege_level: 3, ..LONG_MODE };
        assert_eq!(
            translate(&ram, &user, 0x40_0000, WalkAccess::Read),
            Err(WalkFault::PageFault { error: 5 })
        );
        assert!(translate(&ram, &user, 0x60_0000, WalkAccess::Read).is_ok());
    }

    #[test]
    fn without_paging_linear_is_physical() {
        let ram = VecRam::new(16);
        let paging = PagingState::default();
        assert_eq!(
            translate(&ram, &paging, 0x1_2345_6789, WalkAccess::Fetch),
            Ok(GuestPhysAddr::new(0x2345_6789))
        );
    }

    #[test]
    fn legacy_tables_and_four_mib_pages() {
        let ram = VecRam::new(0x4000);
        let paging = PagingState { cr0: CR0_PG | 1, cr3: 0x1000, cr4: CR4_PSE, ..PagingState::default() };
        ram.write(GuestPhysAddr::new(0x1000), &(0x2000u32 | 7).to_le_bytes()).unwrap();
        ram.write(GuestPhysAddr::new(0x2004), &(0x3000u32 | 7).to_le_bytes()).unwrap();
        ram.write(GuestPhysAddr::new(0x1004), &(0x0080_0000u32 | 0x87).to_le_bytes()).unwrap();
        assert_eq!(translate(&ram, &paging, 0x1abc, WalkAccess::Write), Ok(GuestPhysAddr::new(0x3abc)));
        assert_eq!(translate(&ram, &paging, 0x41_1abc, WalkAccess::Write), Ok(GuestPhysAddr::new(0x81_1abc)));
    }

    #[test]
    fn a_copy_ends_where_translations_end() {
        let ram = long_tables();
        ram.write(GuestPhysAddr::new(0x5ffe), b"ab").unwrap();
        let mut bytes = [0; 8];
        let count = copy_from_linear(&ram, &LONG_MODE, 0x40_0ffe, WalkAccess::Fetch, &mut bytes);
        assert_eq!(&bytes[..count], b"ab");
    }

    proptest! {
        /// Whatever the tables and registers hold, a walk ends and never panics.
        #[test]
        fn any_tables_any_state(
            words in proptest::collection::vec(any::<u64>(), 2048),
            cr0 in any::<u64>(), cr3 in 0u64..0x4000, cr4 in any::<u64>(), efer in any::<u64>(),
            privilege_level in 0u8..4, linear in any::<u64>(),
        ) {
            let ram = VecRam::new(words.len() * 8);
            for (index, word) in words.iter().enumerate() {
                // Half of the entries point back into the tables.
                let entry = if index % 2 == 0 { word & 0x3fff | 7 } else { *word };
                put(&ram, index as u64 * 8, entry);
            }
            let paging = PagingState { cr0, cr3, cr4, efer, privilege_level };
            for access in [WalkAccess::Read, WalkAccess::Write, WalkAccess::Fetch] {
                let _ = translate(&ram, &paging, linear, access);
            }
            let _ = copy_from_linear(&ram, &paging, linear, WalkAccess::Read, &mut [0; 32]);
        }
    }
}

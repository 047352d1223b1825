//! The start-info structure of a PVH boot (`qemu -kernel`, Xen).
//!
//! Layout: Xen's public header `arch-x86/hvm/start_info.h`, described in Xen's
//! `docs/misc/pvh.pandoc`. All fields little-endian:
//!
//! ```text
//!  0 magic 0x336ec578   4 version       8 flags         12 nr_modules
//! 16 modlist_paddr     24 cmdline_paddr 32 rsdp_paddr
//! 40 memmap_paddr      48 memmap_entries (version 1 on) 52 reserved
//! module:       0 paddr  8 size  16 cmdline_paddr  24 reserved
//! memmap entry: 0 addr   8 size  16 type           20 reserved
//! ```

use crate::addr::{PhysAddr, PhysRange};
use crate::bytes::{PhysicalMemory, c_string, u32_at, u64_at};
use crate::memory::MemoryKind;

/// "xEn3" with the top bit set.
pub const MAGIC: u32 = 0x336e_c578;

const START_INFO_BYTES: usize = 56;
const MODULE_BYTES: usize = 32;
const MAP_ENTRY_BYTES: usize = 24;
/// More modules or map entries than this are not believed.
const MAX_ENTRIES: u32 = 4096;

/// Why a start-info structure cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PvhError {
    /// The structure, or a table it points to, is not in readable memory.
    Unreadable,
    /// The first word is not the magic number.
    BadMagic(u32),
    /// Version 0 has no memory map, and the kernel has no hypervisor to ask for one.
    NoMemoryMap,
    /// An entry count that no machine has.
    TooManyEntries(u32),
    /// A module's range leaves the address space.
    BadModule,
}

/// A checked view of the structure and of the tables that it points to.
#[derive(Clone, Copy)]
pub struct StartInfo<'m> {
    memory: &'m dyn PhysicalMemory,
    map: &'m [u8],
    archive: Option<PhysRange>,
    command_line: &'m [u8],
    rsdp: Option<PhysAddr>,
}

impl<'m> StartInfo<'m> {
    /// Checks the structure at `start` and everything the kernel uses behind it.
    /// Of the command line at most `command_line_limit` bytes are taken.
    pub fn parse(
        memory: &'m dyn PhysicalMemory,
        start: PhysAddr,
        command_line_limit: usize,
    ) -> Result<Self, PvhError> {
        let header = memory.slice(start, START_INFO_BYTES).ok_or(PvhError::Unreadable)?;
        let word = |offset| u32_at(header, offset).ok_or(PvhError::Unreadable);
        let address = |offset| u64_at(header, offset).ok_or(PvhError::Unreadable);

        let magic = word(0)?;
        if magic != MAGIC {
            return Err(PvhError::BadMagic(magic));
        }
        if word(4)? < 1 {
            return Err(PvhError::NoMemoryMap);
        }

        let entries = word(48)?;
        let map = table(memory, address(40)?, entries, MAP_ENTRY_BYTES)?;
        if map.is_empty() {
            return Err(PvhError::NoMemoryMap);
        }

        let modules = table(memory, address(16)?, word(12)?, MODULE_BYTES)?;
        let archive = match modules.first_chunk::<MODULE_BYTES>() {
            None => None,
            Some(module) => Some(module_range(module).ok_or(PvhError::BadModule)?),
        };

        let command_line = match address(24)? {
            0 => &[][..],
            at => c_string(memory, PhysAddr(at), command_line_limit).ok_or(PvhError::Unreadable)?,
        };
        let rsdp = Some(address(32)?).filter(|at| *at != 0).map(PhysAddr);
        Ok(Self { memory, map, archive, command_line, rsdp })
    }

    /// The memory map's entries: start, length, kind; unchecked numbers for
    /// [`MemoryMapBuilder::add`](crate::memory::MemoryMapBuilder::add).
    pub fn memory_map(&self) -> impl Iterator<Item = (u64, u64, MemoryKind)> + use<'m> {
        self.map.chunks_exact(MAP_ENTRY_BYTES).filter_map(|entry| {
            let kind = MemoryKind::from_e820(u32_at(entry, 16)?);
            Some((u64_at(entry, 0)?, u64_at(entry, 8)?, kind))
        })
    }

    /// The first module: the boot archive. Its range is readable memory or absent.
    pub fn archive(&self) -> Option<PhysRange> {
        self.archive.filter(|range| {
            usize::try_from(range.bytes)
                .is_ok_and(|bytes| bytes > 0 && self.memory.slice(range.start, bytes).is_some())
        })
    }

    /// The command line's bytes, without the NUL.
    pub const fn command_line(&self) -> &'m [u8] {
        self.command_line
    }

    /// Where the boot loader says that the ACPI root pointer is.
    pub const fn rsdp(&self) -> Option<PhysAddr> {
        self.rsdp
    }
}

/// `count` entries of `entry_bytes` at `start`.
fn table(memory: &dyn PhysicalMemory, start: u64, count: u32, entry_bytes: usize) -> Result<&[u8], PvhError> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > MAX_ENTRIES {
        return Err(PvhError::TooManyEntries(count));
    }
    memory.slice(PhysAddr(start), count as usize * entry_bytes).ok_or(PvhError::Unreadable)
}

fn module_range(module: &[u8; MODULE_BYTES]) -> Option<PhysRange> {
    PhysRange::new(PhysAddr(u64_at(module, 0)?), u64_at(module, 8)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::fake::FakeMemory;
    use proptest::prelude::*;

    const BASE: u64 = 0x8000;

    fn sample() -> FakeMemory {
        let mut memory = FakeMemory::new(BASE, 0x1000);
        let mut header = Vec::new();
        for word in [MAGIC, 1, 0, 1] {
            header.extend(u32::to_le_bytes(word));
        }
        for address in [BASE + 0x100, BASE + 0x200, 0xe_0000, BASE + 0x300] {
            header.extend(u64::to_le_bytes(address));
        }
        header.extend(u32::to_le_bytes(2));
        header.extend(u32::to_le_bytes(0));
        memory.put(BASE, &header);
        for (at, value) in [(0x100, BASE + 0x800), (0x108, 0x400), (0x300, 0), (0x308, 0x9fc00)] {
            memory.put(BASE + at, &u64::to_le_bytes(value));
        }
        memory.put(BASE + 0x310, &u32::to_le_bytes(1));
        memory.put(BASE + 0x318, &u64::to_le_bytes(0x10_0000));
        memory.put(BASE + 0x320, &u64::to_le_bytes(0x100_0000));
        memory.put(BASE + 0x328, &u32::to_le_bytes(2));
        memory.put(BASE + 0x200, b"console=ttyS0\0");
        memory
    }

    #[test]
    fn a_well_formed_structure() {
        let memory = sample();
        let info = StartInfo::parse(&memory, PhysAddr(BASE), 1024).unwrap();
        assert_eq!(info.command_line(), b"console=ttyS0");
        assert_eq!(info.rsdp(), Some(PhysAddr(0xe_0000)));
        assert_eq!(info.archive(), PhysRange::new(PhysAddr(BASE + 0x800), 0x400));
        assert_eq!(
            info.memory_map().collect::<Vec<_>>(),
            [(0, 0x9fc00, MemoryKind::Usable), (0x10_0000, 0x100_0000, MemoryKind::Reserved)]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut memory = sample();
        let parse = |m: &FakeMemory| StartInfo::parse(m, PhysAddr(BASE), 1024).map(|_| ());
        memory.put(BASE + 48, &u32::to_le_bytes(5000));
        assert_eq!(parse(&memory), Err(PvhError::TooManyEntries(5000)));
        memory.put(BASE + 48, &u32::to_le_bytes(0));
        assert_eq!(parse(&memory), Err(PvhError::NoMemoryMap));
        memory.put(BASE + 48, &u32::to_le_bytes(2));
        memory.put(BASE + 40, &u64::to_le_bytes(u64::MAX - 4));
        assert_eq!(parse(&memory), Err(PvhError::Unreadable));
        memory.put(BASE, &[0; 4]);
        assert_eq!(parse(&memory), Err(PvhError::BadMagic(0)));
    }

    #[test]
    fn an_archive_outside_memory_is_absent() {
        let mut memory = sample();
        memory.put(BASE + 0x108, &u64::to_le_bytes(0x10_0000));
        let info = StartInfo::parse(&memory, PhysAddr(BASE), 1024).unwrap();
        assert_eq!(info.archive(), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            noise in prop::collection::vec((0usize..0x400, any::<u8>()), 0..64),
            start in prop_oneof![Just(BASE), any::<u64>()],
        ) {
            let mut memory = sample();
            for (at, byte) in noise {
                memory.bytes[at] = byte;
            }
            if let Ok(info) = StartInfo::parse(&memory, PhysAddr(start), 1024) {
                let mut builder = crate::memory::MemoryMapBuilder::new();
                for (start, bytes, kind) in info.memory_map() {
                    builder.add(start, bytes, kind);
                }
                builder.build();
                let _ = (info.archive(), info.command_line(), info.rsdp());
            }
        }
    }
}

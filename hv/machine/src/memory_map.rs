//! Where things lie in a guest's physical memory.
//!
//! RAM begins at 0 and goes up to 3 GiB; what is more lies from 4 GiB on. The gigabyte in between
//! is a PC's: interrupt controllers at its top, windows for devices below them. The first
//! mebibyte looks as firmware would have left it, and the loader's own structures lie in the
//! part of it that the E820 map calls usable, since the kernel copies them before it uses that.

use arrayvec::ArrayVec;

/// End of the RAM below the device gigabyte.
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// Start of the RAM above it.
pub const HIGH_RAM_START: u64 = 0x1_0000_0000;
/// Window that the host bridge forwards to devices.
pub const DEVICE_WINDOW_START: u64 = LOW_RAM_END;
pub const DEVICE_WINDOW_END: u64 = 0xfec0_0000;

/// The loader's structures.
pub const GDT_ADDRESS: u64 = 0x500;
pub const BOOT_PARAMS_ADDRESS: u64 = 0x7000;
pub const PAGE_TABLES_ADDRESS: u64 = 0x9000;
pub const COMMAND_LINE_ADDRESS: u64 = 0x2_0000;
/// What is reserved for the command line, its zero included.
pub const COMMAND_LINE_BYTES: u64 = 0x1_0000;
/// A stack for a kernel that wants one before it has its own.
pub const STACK_TOP: u64 = 0x8000;

/// Where an old BIOS data area would begin; usable memory ends here.
pub const LOW_USABLE_END: u64 = 0x9_fc00;
/// The ACPI tables, in what a PC reserves for firmware.
pub const ACPI_TABLES_ADDRESS: u64 = 0xe_0000;
pub const ACPI_TABLES_END: u64 = 0x10_0000;
/// First address for a kernel.
pub const KERNEL_SPACE_START: u64 = 0x10_0000;

/// A run of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub bytes: u64,
}

impl Range {
    pub const fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The RAM of a guest with so many bytes of it: one or two runs.
pub fn ram_ranges(bytes: u64) -> ArrayVec<Range, 2> {
    let mut ranges = ArrayVec::new();
    ranges.push(Range { start: 0, bytes: bytes.min(LOW_RAM_END) });
    if bytes > LOW_RAM_END {
        ranges.push(Range { start: HIGH_RAM_START, bytes: bytes - LOW_RAM_END });
    }
    ranges
}

/// Types of the E820 map (ACPI 6.4 table 15.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum E820Kind {
    Usable = 1,
    Reserved = 2,
}

/// The E820 map of a guest with so many bytes of RAM.
pub fn e820(ram_bytes: u64) -> ArrayVec<(Range, E820Kind), 8> {
    let between = |start, end| Range { start, bytes: end - start };
    let low_end = ram_bytes.min(LOW_RAM_END);
    let mut map = ArrayVec::new();
    map.push((between(0, LOW_USABLE_END), E820Kind::Usable));
    map.push((between(LOW_USABLE_END, 0xa_0000), E820Kind::Reserved));
    map.push((between(ACPI_TABLES_ADDRESS, ACPI_TABLES_END), E820Kind::Reserved));
    if low_end > KERNEL_SPACE_START {
        map.push((between(KERNEL_SPACE_START, low_end), E820Kind::Usable));
    }
    for window in [crate::apic::ioapic::BASE, crate::apic::local::DEFAULT_BASE] {
        map.push((between(window, window + 0x1000), E820Kind::Reserved));
    }
    if ram_bytes > LOW_RAM_END {
        map.push((Range { start: HIGH_RAM_START, bytes: ram_bytes - LOW_RAM_END }, E820Kind::Usable));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_device_gigabyte_free() {
        assert_eq!(ram_ranges(1 << 20).as_slice(), &[Range { start: 0, bytes: 1 << 20 }]);
        let large = ram_ranges(8 << 30);
        assert_eq!(large[0].end(), LOW_RAM_END);
        assert_eq!((large[1].start, large[1].bytes), (HIGH_RAM_START, 5 << 30));
    }

    #[test]
    fn the_map_is_sorted_and_covers_all_ram_above_a_mebibyte() {
        for bytes in [64 << 20, 3 << 30, 4 << 30, 16 << 30] {
            let map = e820(bytes);
            assert!(map.windows(2).all(|pair| pair[0].0.end() <= pair[1].0.start));
            let usable: u64 = map
                .iter()
                .filter(|(range, kind)| *kind == E820Kind::Usable && range.start != 0)
                .map(|(range, _)| range.bytes)
                .sum();
            assert_eq!(usable, bytes - KERNEL_SPACE_START);
        }
    }
}

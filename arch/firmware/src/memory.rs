//! The physical memory map that the kernel is handed.
//!
//! Firmware and boot loaders describe memory as a list of ranges that may overlap,
//! be unsorted, be unaligned, wrap around or contradict each other. [`MemoryMap::build`]
//! turns any such list into the map the kernel works with:
//!
//! - sorted, disjoint, of whole pages, neighbours of one kind merged;
//! - where two ranges overlap, the more restrictive kind wins;
//! - RAM shrinks to whole pages, everything else grows to them;
//! - the kernel image and the boot archive are cut out of the RAM they lie in;
//! - RAM below 1 MiB is [`MemoryKind::LowMemory`]: real-mode structures of the
//!   firmware live there that no map mentions, and the application processors'
//!   trampoline needs a page of it.
//!
//! What is left as [`MemoryKind::Usable`] belongs to the kernel without conditions.
//! Addresses that no region covers are holes: usually device memory, never RAM.

use crate::addr::{PAGE_BYTES, PhysAddr, PhysRange};
use arrayvec::ArrayVec;

/// Most regions of a finished map.
pub const MAX_REGIONS: usize = 128;
/// Most ranges taken from firmware. Further ones are ignored, which can only lose RAM.
pub const MAX_RAW_RANGES: usize = 192;

/// One mebibyte: the end of what real mode could address.
const ONE_MEBIBYTE: u64 = 1 << 20;
/// Addresses from here on cannot be reached by any x86-64 processor (52 bits, AMD APM
/// vol. 2 section 5.3.2); a range that claims them is cut.
const PHYSICAL_LIMIT: u64 = 1 << 52;

/// What a region of physical memory is. Ordered: where ranges overlap the greater wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// RAM, the kernel's to hand out.
    Usable,
    /// RAM below 1 MiB. Not handed out; see the module's text.
    LowMemory,
    /// RAM that holds ACPI tables, free once nobody reads them.
    AcpiReclaim,
    /// RAM that firmware keeps across sleep states.
    AcpiNvs,
    /// The firmware's own, or no memory at all.
    Reserved,
    /// RAM with errors.
    Bad,
    /// The boot archive, page-rounded.
    Archive,
    /// The kernel image: code, data, zeroed data and boot page tables.
    Kernel,
}

impl MemoryKind {
    /// Whether regions of this kind are RAM that the direct map covers.
    ///
    /// ACPI NVS memory is RAM too, but only firmware reads and writes it.
    pub const fn is_ram(self) -> bool {
        matches!(self, Self::Usable | Self::LowMemory | Self::AcpiReclaim | Self::Archive | Self::Kernel)
    }

    /// The kind for an address-range type as E820, PVH and Multiboot2 number them
    /// (ACPI 6.5 section 15, table 15.3). Unknown numbers are reserved.
    pub const fn from_e820(number: u32) -> Self {
        match number {
            1 => Self::Usable,
            3 => Self::AcpiReclaim,
            4 => Self::AcpiNvs,
            5 => Self::Bad,
            _ => Self::Reserved,
        }
    }
}

/// One region: whole pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// First byte, page-aligned.
    pub start: PhysAddr,
    /// Length, a multiple of the page size, never zero.
    pub bytes: u64,
    /// What is there.
    pub kind: MemoryKind,
}

impl MemoryRegion {
    /// One past the last byte.
    pub const fn end(&self) -> PhysAddr {
        PhysAddr(self.start.0 + self.bytes)
    }
}

/// The finished map.
pub type MemoryMap = ArrayVec<MemoryRegion, MAX_REGIONS>;

/// Collects raw ranges and makes the map of them.
#[derive(Default)]
pub struct MemoryMapBuilder {
    /// Page-aligned, non-empty, inside the physical address space.
    ranges: ArrayVec<MemoryRegion, MAX_RAW_RANGES>,
    ignored: usize,
}

impl MemoryMapBuilder {
    /// A builder that knows of no memory.
    pub const fn new() -> Self {
        Self { ranges: ArrayVec::new_const(), ignored: 0 }
    }

    /// How many ranges were dropped because there were too many.
    pub const fn ignored(&self) -> usize {
        self.ignored
    }

    /// Adds one range as firmware or the loader stated it.
    pub fn add(&mut self, start: u64, bytes: u64, kind: MemoryKind) {
        let end = start.saturating_add(bytes).min(PHYSICAL_LIMIT);
        let (start, end) = if kind == MemoryKind::Usable {
            // A page that is RAM only in part is not RAM.
            (start.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX), end & !(PAGE_BYTES - 1))
        } else {
            (start & !(PAGE_BYTES - 1), end.next_multiple_of(PAGE_BYTES))
        };
        if start >= end {
            return;
        }
        let region = MemoryRegion { start: PhysAddr(start), bytes: end - start, kind };
        if self.ranges.try_push(region).is_err() {
            self.ignored += 1;
        }
    }

    /// Adds a range that the kernel itself needs left alone.
    pub fn carve(&mut self, range: PhysRange, kind: MemoryKind) {
        self.add(range.start.0, range.bytes, kind);
    }

    /// The map. Should it have more than [`MAX_REGIONS`] regions, the smallest usable
    /// ones are given up first: losing RAM is safe, losing a reservation is not.
    pub fn build(&self) -> MemoryMap {
        // Every region boundary of the result is an end of some range, or 1 MiB.
        let mut edges: ArrayVec<u64, { 2 * MAX_RAW_RANGES + 1 }> = ArrayVec::new();
        edges.push(ONE_MEBIBYTE);
        for range in &self.ranges {
            edges.push(range.start.0);
            edges.push(range.end().0);
        }
        edges.sort_unstable();

        let mut map = MemoryMap::new();
        for pair in edges.windows(2) {
            let &[start, end] = pair else { continue };
            if start == end {
                continue;
            }
            let Some(kind) = self.kind_at(start) else { continue };
            let piece = MemoryRegion { start: PhysAddr(start), bytes: end - start, kind };
            push_merged(&mut map, piece);
        }
        map
    }

    /// The kind of the elementary interval that begins at `start`.
    fn kind_at(&self, start: u64) -> Option<MemoryKind> {
        let covering = self.ranges.iter().filter(|range| range.start.0 <= start && start < range.end().0);
        match covering.map(|range| range.kind).max()? {
            MemoryKind::Usable if start < ONE_MEBIBYTE => Some(MemoryKind::LowMemory),
            kind => Some(kind),
        }
    }
}

/// Appends `piece`, which lies behind everything in `map`, merging it with the last region
/// where they touch and are of one kind.
fn push_merged(map: &mut MemoryMap, piece: MemoryRegion) {
    if let Some(last) = map.last_mut()
        && last.end() == piece.start
        && last.kind == piece.kind
    {
        last.bytes += piece.bytes;
        return;
    }
    if map.is_full() {
        let smallest = map
            .iter()
            .enumerate()
            .filter(|(_, region)| region.kind == MemoryKind::Usable)
            .min_by_key(|(_, region)| region.bytes)
            .map(|(index, region)| (index, region.bytes));
        match smallest {
            Some((_, bytes)) if piece.kind == MemoryKind::Usable && piece.bytes <= bytes => return,
            Some((index, _)) => {
                map.remove(index);
            }
            // 128 regions and none of them RAM: the piece is a hole then, which nothing uses.
            None => return,
        }
    }
    map.push(piece);
}

/// The highest page-aligned address below `limit` in a region of `kind` that leaves one
/// page of room, or `None`. For the application processors' start page.
pub fn page_below(map: &[MemoryRegion], kind: MemoryKind, limit: u64) -> Option<PhysAddr> {
    map.iter()
        .filter(|region| region.kind == kind && region.start.0 < limit)
        .map(|region| region.end().0.min(limit) & !(PAGE_BYTES - 1))
        .filter_map(|end| end.checked_sub(PAGE_BYTES))
        // Page zero holds the real-mode interrupt vectors.
        .filter(|start| *start >= PAGE_BYTES)
        .max()
        .map(PhysAddr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(ranges: &[(u64, u64, MemoryKind)]) -> MemoryMap {
        let mut builder = MemoryMapBuilder::new();
        for (start, bytes, kind) in ranges {
            builder.add(*start, *bytes, *kind);
        }
        builder.build()
    }

    #[test]
    fn the_map_of_a_small_pc() {
        use MemoryKind::*;
        // As QEMU's q35 states it for 512 MiB, with a kernel and an archive.
        let map = build(&[
            (0, 0x9fc00, Usable),
            (0x9fc00, 0x400, Reserved),
            (0xf0000, 0x10000, Reserved),
            (0x10_0000, 0x1fed_f000, Usable),
            (0x1ffd_f000, 0x2_1000, Reserved),
            (0x20_0000, 0x12_3456, Kernel),
            (0x1ff0_0000, 0x1234, Archive),
        ]);
        let shown: Vec<_> = map.iter().map(|r| (r.start.0, r.end().0, r.kind)).collect();
        assert_eq!(
            shown,
            [
                (0, 0x9f000, LowMemory),
                (0x9f000, 0xa0000, Reserved),
                (0xf0000, 0x10_0000, Reserved),
                (0x10_0000, 0x20_0000, Usable),
                (0x20_0000, 0x32_4000, Kernel),
                (0x32_4000, 0x1ff0_0000, Usable),
                (0x1ff0_0000, 0x1ff0_2000, Archive),
                (0x1ff0_2000, 0x1ffd_f000, Usable),
                (0x1ffd_f000, 0x2000_0000, Reserved),
            ]
        );
        assert_eq!(page_below(&map, LowMemory, 0x10_0000), Some(PhysAddr(0x9e000)));
        assert_eq!(page_below(&map, LowMemory, 0x8000), Some(PhysAddr(0x7000)));
        assert_eq!(page_below(&map, LowMemory, 0x1000), None);
    }

    #[test]
    fn too_many_regions_cost_the_smallest_usable_ones() {
        let mut builder = MemoryMapBuilder::new();
        for index in 0..90u64 {
            let base = 0x100_0000 + index * 0x10_0000;
            builder.add(base, PAGE_BYTES * (index + 1), MemoryKind::Usable);
            builder.add(base + 0x8_0000, PAGE_BYTES, MemoryKind::Reserved);
        }
        let map = builder.build();
        assert_eq!(map.len(), MAX_REGIONS);
        assert_eq!(map.iter().filter(|r| r.kind == MemoryKind::Reserved).count(), 90);
    }

    fn any_kind() -> impl Strategy<Value = MemoryKind> {
        (0u32..9).prop_map(|n| match n {
            7 => MemoryKind::Archive,
            8 => MemoryKind::Kernel,
            n => MemoryKind::from_e820(n),
        })
    }

    fn any_range() -> impl Strategy<Value = (u64, u64, MemoryKind)> {
        // Both wild numbers and ones that collide with each other.
        let number = prop_oneof![any::<u64>(), 0u64..0x40_0000, Just(u64::MAX)];
        (number.clone(), number, any_kind())
    }

    proptest! {
        #[test]
        fn any_list_gives_a_sound_map(ranges in prop::collection::vec(any_range(), 0..250)) {
            let map = build(&ranges);
            for region in &map {
                prop_assert!(region.bytes > 0);
                prop_assert!(region.start.is_aligned(PAGE_BYTES));
                prop_assert!(region.bytes.is_multiple_of(PAGE_BYTES));
            }
            for pair in map.windows(2) {
                prop_assert!(pair[0].end() <= pair[1].start);
                prop_assert!(pair[0].end() < pair[1].start || pair[0].kind != pair[1].kind);
            }
        }

        #[test]
        fn usable_memory_is_claimed_by_nothing_else(
            ranges in prop::collection::vec(any_range(), 0..60)
        ) {
            let map = build(&ranges);
            for region in map.iter().filter(|r| r.kind == MemoryKind::Usable) {
                prop_assert!(region.start.0 >= ONE_MEBIBYTE);
                for (start, bytes, kind) in &ranges {
                    let touches = *start < region.end().0
                        && start.saturating_add(*bytes) > region.start.0
                        && *bytes > 0;
                    prop_assert!(*kind == MemoryKind::Usable || !touches);
                }
            }
        }
    }
}

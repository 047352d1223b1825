//! The master boot record, and the chain of logical partitions in an extended one.

use alloc::string::String;
use alloc::vec::Vec;

use crate::extent::Extent;
use crate::layout::{Kind, Partition, Reason, Refused};
use crate::source::SectorSource;

/// Where the four entries begin, and how long one is (UEFI sec 5.2.1).
const ENTRIES_OFFSET: usize = 446;
const ENTRY_BYTES: usize = 16;
const SIGNATURE_OFFSET: usize = 510;

/// The type of the entry that marks a GPT disk (UEFI sec 5.2.3).
const PROTECTIVE: u8 = 0xee;
/// The types of an extended partition: by cylinder, by sector, and Linux's own.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

const FIRST_LOGICAL: u32 = 5;
/// Logical partitions that are looked for. A chain may also lead in a circle; see `follow_chain`.
const MAX_LOGICAL: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    kind: u8,
    first_sector: u32,
    sectors: u32,
}

impl Entry {
    fn is_used(&self) -> bool {
        self.kind != 0
    }

    fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }
}

/// What the first sector of a disk is.
#[derive(Debug, PartialEq, Eq)]
pub enum BootSector {
    /// No partition table: empty, or a file system from the first sector on.
    NoTable,
    /// A disk with a GPT.
    Protective,
    Mbr([Entry; 4]),
}

/// `sector` has at least 512 bytes.
pub fn read_boot_sector(sector: &[u8]) -> BootSector {
    let Some(entries) = read_entries(sector) else { return BootSector::NoTable };
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        BootSector::Protective
    } else {
        BootSector::Mbr(entries)
    }
}

/// The four entries, if the sector holds a table. File systems end their first sector with the
/// same signature, so each entry's first byte, which can only be 0 or 80h, must agree.
fn read_entries(sector: &[u8]) -> Option<[Entry; 4]> {
    let signature = sector.get(SIGNATURE_OFFSET..SIGNATURE_OFFSET + 2)?;
    if signature != [0x55, 0xaa] {
        return None;
    }
    let table = sector.get(ENTRIES_OFFSET..SIGNATURE_OFFSET)?;
    let (entries, _) = table.as_chunks::<ENTRY_BYTES>();
    let entries: &[[u8; ENTRY_BYTES]; 4] = entries.try_into().ok()?;
    if entries.iter().any(|entry| entry[0] & 0x7f != 0) {
        return None;
    }
    let number = |entry: &[u8; ENTRY_BYTES], offset: usize| {
        u32::from_le_bytes(core::array::from_fn(|place| entry[offset + place]))
    };
    Some(core::array::from_fn(|place| {
        let entry = &entries[place];
        Entry { kind: entry[4], first_sector: number(entry, 8), sectors: number(entry, 12) }
    }))
}

/// Partitions that the table and its chain name, and those refused so far. What leaves the disk or
/// overlaps is still among the former.
pub fn read_partitions(
    source: &mut impl SectorSource,
    sector: &mut [u8],
    entries: &[Entry; 4],
) -> (Vec<Partition>, Vec<Refused>) {
    let mut found = Found { partitions: Vec::new(), refused: Vec::new() };
    let mut next_logical = FIRST_LOGICAL;
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| entry.is_used()) {
        let extent = Extent::new(u64::from(entry.first_sector), u64::from(entry.sectors));
        match extent {
            None => found.refuse(number, Reason::Empty),
            Some(extent) if extent.first_sector() == 0 => found.refuse(number, Reason::OverTable),
            Some(extent) if extent.end() > source.sectors() => found.refuse(number, Reason::OutsideDisk),
            Some(extent) if entry.is_extended() => {
                follow_chain(source, sector, extent, &mut next_logical, &mut found);
            }
            Some(extent) => found.add(number, extent, entry.kind),
        }
    }
    (found.partitions, found.refused)
}

struct Found {
    partitions: Vec<Partition>,
    refused: Vec<Refused>,
}

impl Found {
    fn add(&mut self, number: u32, extent: Extent, kind: u8) {
        self.partitions.push(Partition { number, extent, kind: Kind::Mbr(kind), name: String::new() });
    }

    fn refuse(&mut self, number: u32, reason: Reason) {
        self.refused.push(Refused { number, reason });
    }
}

/// Walks the boot records inside an extended partition. Each names one logical partition, by its
/// distance from the record, and the next record, by its distance from the extended partition.
/// The record that is out of place, was there before, or cannot be read ends the walk.
fn follow_chain(
    source: &mut impl SectorSource,
    sector: &mut [u8],
    container: Extent,
    next_logical: &mut u32,
    found: &mut Found,
) {
    let mut seen = Vec::new();
    let mut record = container.first_sector();
    loop {
        let is_inside = record >= container.first_sector() && record < container.end();
        if !is_inside || seen.contains(&record) || source.read(record, sector).is_err() {
            return found.refuse(*next_logical, Reason::BrokenChain);
        }
        if seen.len() == MAX_LOGICAL {
            return found.refuse(*next_logical, Reason::TooMany);
        }
        seen.push(record);
        let Some([logical, next, ..]) = read_entries(sector) else {
            return found.refuse(*next_logical, Reason::BrokenChain);
        };
        // An empty record at the head of a chain is what deleting the first partition leaves.
        if logical.is_used() && !logical.is_extended() {
            let number = *next_logical;
            *next_logical += 1;
            // Both are below 2^33, so the sum can be counted.
            match Extent::new(record + u64::from(logical.first_sector), u64::from(logical.sectors)) {
                None => found.refuse(number, Reason::Empty),
                Some(extent) if extent.first_sector() == record => found.refuse(number, Reason::OverTable),
                Some(extent) if !container.contains(&extent) => found.refuse(number, Reason::OutsideRange),
                Some(extent) => found.add(number, extent, logical.kind),
            }
        }
        if !next.is_extended() {
            return;
        }
        record = container.first_sector() + u64::from(next.first_sector);
    }
}

#[cfg(test)]
mod tests {
    use crate::fake::{FakeDisk, MbrEntry};
    use crate::layout::{Kind, Layout, Reason, Refused, Table, scan};
    use proptest::prelude::*;

    fn extents(layout: &Layout) -> Vec<(u32, u64, u64)> {
        let extent = |partition: &crate::Partition| {
            (partition.number, partition.extent.first_sector(), partition.extent.sectors())
        };
        layout.partitions.iter().map(extent).collect()
    }

    fn linux(first_sector: u32, sectors: u32) -> MbrEntry {
        MbrEntry { kind: 0x83, first_sector, sectors }
    }

    fn extended(first_sector: u32, sectors: u32) -> MbrEntry {
        MbrEntry { kind: 0x0f, first_sector, sectors }
    }

    #[test]
    fn primary_and_logical_partitions_are_found() {
        let mut disk = FakeDisk::new(512, 10_000);
        disk.write_mbr(0, &[linux(2048, 1000), extended(4000, 5000)]);
        disk.write_mbr(4000, &[linux(10, 100), extended(200, 500)]);
        disk.write_mbr(4200, &[linux(10, 200)]);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(layout.table, Table::Mbr);
        assert_eq!(extents(&layout), [(1, 2048, 1000), (5, 4010, 100), (6, 4210, 200)]);
        assert_eq!(layout.partitions[0].kind, Kind::Mbr(0x83));
        assert_eq!(layout.refused, []);
    }

    #[test]
    fn a_disk_without_a_signature_has_no_table() {
        let layout = scan(&mut FakeDisk::new(512, 100)).unwrap();
        assert_eq!(layout, Layout { table: Table::None, partitions: vec![], refused: vec![] });
    }

    #[test]
    fn a_file_system_in_the_first_sector_is_no_table() {
        let mut disk = FakeDisk::new(512, 1000);
        disk.write_mbr(0, &[linux(1, 10)]);
        // Boot code where the third entry's first byte would be.
        disk.write(0, 446 + 32, &[0xcd]);
        assert_eq!(scan(&mut disk).unwrap().table, Table::None);
    }

    #[test]
    fn unsound_entries_are_refused_and_the_others_stay() {
        let mut disk = FakeDisk::new(512, 1000);
        disk.write_mbr(0, &[linux(0, 10), linux(100, 0), linux(900, 101), linux(500, 100)]);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(extents(&layout), [(4, 500, 100)]);
        let refused = |number, reason| Refused { number, reason };
        assert_eq!(
            layout.refused,
            [refused(1, Reason::OverTable), refused(2, Reason::Empty), refused(3, Reason::OutsideDisk)]
        );
    }

    #[test]
    fn both_of_two_overlapping_partitions_are_refused() {
        let mut disk = FakeDisk::new(512, 1000);
        disk.write_mbr(0, &[linux(100, 100), linux(199, 10), linux(300, 10)]);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(extents(&layout), [(3, 300, 10)]);
        assert_eq!(layout.refused[0].reason, Reason::Overlaps { other: 2 });
        assert_eq!(layout.refused[1].reason, Reason::Overlaps { other: 1 });
    }

    #[test]
    fn a_chain_in_a_circle_ends() {
        let mut disk = FakeDisk::new(512, 1000);
        disk.write_mbr(0, &[extended(100, 800)]);
        disk.write_mbr(100, &[linux(1, 10), extended(50, 50)]);
        disk.write_mbr(150, &[linux(1, 10), extended(0, 50)]);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(extents(&layout), [(5, 101, 10), (6, 151, 10)]);
        assert_eq!(layout.refused, [Refused { number: 7, reason: Reason::BrokenChain }]);
    }

    #[test]
    fn a_chain_that_leaves_its_partition_ends() {
        let mut disk = FakeDisk::new(512, 1000);
        disk.write_mbr(0, &[extended(100, 100)]);
        disk.write_mbr(100, &[linux(1, 100), extended(100, 50)]);
        disk.write_mbr(200, &[linux(1, 10)]);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(layout.partitions, []);
        assert_eq!(layout.refused[0].reason, Reason::OutsideRange);
        assert_eq!(layout.refused[1].reason, Reason::BrokenChain);
    }

    #[test]
    fn an_endless_chain_is_cut() {
        let mut disk = FakeDisk::new(512, 10_000);
        disk.write_mbr(0, &[extended(100, 9000)]);
        for place in 0..100 {
            disk.write_mbr(100 + 10 * place, &[linux(1, 5), extended(10 * (place as u32 + 1), 10)]);
        }
        let layout = scan(&mut disk).unwrap();
        assert_eq!(layout.partitions.len(), 60);
        assert_eq!(layout.refused, [Refused { number: 65, reason: Reason::TooMany }]);
    }

    #[test]
    fn an_unreadable_record_costs_the_logical_partitions_only() {
        let mut disk = FakeDisk::new(4096, 1000);
        disk.write_mbr(0, &[linux(10, 10), extended(100, 100)]);
        disk.break_sector(100);
        let layout = scan(&mut disk).unwrap();
        assert_eq!(extents(&layout), [(1, 10, 10)]);
        assert_eq!(layout.refused, [Refused { number: 5, reason: Reason::BrokenChain }]);
    }

    fn entry() -> impl Strategy<Value = MbrEntry> {
        let kind = prop_oneof![Just(0x83_u8), Just(0x05), Just(0x0f), any::<u8>()];
        let number = || prop_oneof![0_u32..300, any::<u32>()];
        (kind, number(), number()).prop_map(|(kind, first_sector, sectors)| MbrEntry {
            kind,
            first_sector,
            sectors,
        })
    }

    proptest! {
        /// Tables of all kinds all over a small disk, so that chains lead to further tables.
        #[test]
        fn no_partition_leaves_the_disk_or_covers_another(
            tables in proptest::collection::vec((0_u64..256, proptest::collection::vec(entry(), 4)), 1..40),
        ) {
            let mut disk = FakeDisk::new(512, 256);
            disk.write_mbr(0, &tables[0].1);
            for (sector, entries) in &tables {
                disk.write_mbr(*sector, entries);
            }
            if let Ok(layout) = scan(&mut disk) {
                crate::fake::assert_sound(&layout, 256);
            }
        }
    }
}

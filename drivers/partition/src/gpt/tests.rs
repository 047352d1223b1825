use super::*;
use crate::fake::{FakeDisk, GptEntry, GptHeader, MbrEntry, assert_sound};
use crate::layout::{Layout, Table, scan};
use proptest::prelude::*;

const LINUX: u128 = 0x0fc63daf_8483_4772_8e79_3d69d8477de4;

fn entry(first_sector: u64, last_sector: u64, name: &str) -> GptEntry {
    GptEntry { kind: Guid::from_u128(LINUX), first_sector, last_sector, name: name.into() }
}

fn disk(sector_bytes: u32, entries: &[GptEntry]) -> FakeDisk {
    let mut disk = FakeDisk::new(sector_bytes, 1000);
    disk.write_gpt(entries);
    disk
}

fn two() -> Vec<GptEntry> {
    vec![entry(40, 99, "root"), entry(100, 900, "data")]
}

fn extents(layout: &Layout) -> Vec<(u32, u64, u64)> {
    let extent = |partition: &Partition| {
        (partition.number, partition.extent.first_sector(), partition.extent.sectors())
    };
    layout.partitions.iter().map(extent).collect()
}

#[test]
fn partitions_are_found_with_both_sector_sizes() {
    for sector_bytes in [512, 4096] {
        let layout = scan(&mut disk(sector_bytes, &two())).unwrap();
        assert_eq!(layout.table, Table::Gpt(GptCopy::Primary));
        assert_eq!(extents(&layout), [(1, 40, 60), (2, 100, 801)]);
        assert_eq!(layout.partitions[0].name, "root");
        assert_eq!(layout.partitions[0].kind.to_string(), "Linux file system");
        assert_eq!(layout.refused, []);
    }
}

#[test]
fn the_backup_serves_when_the_primary_is_damaged() {
    type Damage = (&'static str, fn(&mut FakeDisk), HeaderError);
    let damages: [Damage; 5] = [
        ("overwritten", |disk| disk.write(1, 0, b"garbage!"), HeaderError::NoSignature),
        ("one bit", |disk| disk.flip(1, 48, 1), HeaderError::HeaderChecksum),
        ("one bit of an entry", |disk| disk.flip(2, 40, 1), HeaderError::EntriesChecksum),
        ("unreadable header", |disk| disk.break_sector(1), HeaderError::Unreadable),
        ("unreadable entries", |disk| disk.break_sector(3), HeaderError::Unreadable),
    ];
    for (what, damage_disk, damage) in damages {
        let mut disk = disk(512, &two());
        damage_disk(&mut disk);
        let layout = scan(&mut disk).expect(what);
        assert_eq!(layout.table, Table::Gpt(GptCopy::Backup { damage }), "{what}");
        assert_eq!(extents(&layout), [(1, 40, 60), (2, 100, 801)], "{what}");
    }
}

#[test]
fn a_disk_with_two_damaged_copies_says_so() {
    let mut disk = disk(512, &two());
    disk.flip(1, 0, 1);
    disk.break_sector(999);
    let (primary, backup) = (HeaderError::NoSignature, HeaderError::Unreadable);
    assert_eq!(scan(&mut disk), Err(ScanError::DamagedGpt { primary, backup }));
}

#[test]
fn without_a_protective_entry_an_old_gpt_is_ignored() {
    let mut disk = disk(512, &two());
    disk.write_mbr(0, &[MbrEntry { kind: 0x83, first_sector: 50, sectors: 10 }]);
    let layout = scan(&mut disk).unwrap();
    assert_eq!(layout.table, Table::Mbr);
    assert_eq!(extents(&layout), [(1, 50, 10)]);
}

#[test]
fn unsound_entries_are_refused_and_the_others_stay() {
    let entries = [
        entry(40, 99, "a"),
        entry(99, 110, "overlaps"),
        entry(200, 199, "backwards"),
        entry(2, 33, "over the entries"),
        entry(900, 1000, "past the disk"),
        entry(0, u64::MAX, "everything"),
        entry(300, 300, "one sector"),
    ];
    let layout = scan(&mut disk(512, &entries)).unwrap();
    assert_eq!(extents(&layout), [(7, 300, 1)]);
    let reasons: Vec<_> = layout.refused.iter().map(|refused| (refused.number, refused.reason)).collect();
    assert_eq!(
        reasons,
        [
            (1, Reason::Overlaps { other: 2 }),
            (2, Reason::Overlaps { other: 1 }),
            (3, Reason::Empty),
            (4, Reason::OutsideRange),
            (5, Reason::OutsideRange),
            (6, Reason::Empty),
        ]
    );
}

/// The damage that a header with right checksums can still do.
fn damage(change: impl FnOnce(&mut GptHeader)) -> HeaderError {
    let mut disk = disk(512, &two());
    disk.change_gpt_header(1, change);
    match scan(&mut disk).unwrap().table {
        Table::Gpt(GptCopy::Backup { damage }) => damage,
        table => panic!("the primary was used: {table:?}"),
    }
}

#[test]
fn a_header_with_a_right_checksum_is_not_believed_either() {
    assert_eq!(damage(|header| header.own_sector = 2), HeaderError::Misplaced { sector: 2 });
    assert_eq!(damage(|header| header.header_bytes = 91), HeaderError::HeaderSize { bytes: 91 });
    assert_eq!(damage(|header| header.header_bytes = 513), HeaderError::HeaderSize { bytes: 513 });
    assert_eq!(damage(|header| header.revision = 1), HeaderError::Revision { revision: 1 });
    assert_eq!(damage(|header| header.first_usable = 33), HeaderError::UsableRange);
    assert_eq!(damage(|header| header.first_usable = 0), HeaderError::UsableRange);
    assert_eq!(damage(|header| header.last_usable = 1000), HeaderError::UsableRange);
    assert_eq!(damage(|header| header.last_usable = u64::MAX), HeaderError::UsableRange);
    assert_eq!(damage(|header| header.last_usable = 20), HeaderError::UsableRange);
    assert_eq!(damage(|header| header.entries_sector = 0), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries_sector = 1), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries_sector = 999), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries_sector = u64::MAX), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries = 0), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries = u32::MAX), HeaderError::Entries);
    assert_eq!(damage(|header| header.entry_bytes = 64), HeaderError::Entries);
    assert_eq!(damage(|header| header.entry_bytes = 192), HeaderError::Entries);
    assert_eq!(damage(|header| header.entry_bytes = 1 << 31), HeaderError::Entries);
    assert_eq!(damage(|header| header.entries_crc ^= 1), HeaderError::EntriesChecksum);
}

#[test]
fn names_cannot_speak_to_a_terminal() {
    let layout = scan(&mut disk(512, &[entry(40, 50, "a\u{1b}[2Jé")])).unwrap();
    assert_eq!(layout.partitions[0].name, "a?[2Jé");
}

#[test]
fn a_tiny_disk_is_no_trouble() {
    for sectors in 1..40 {
        let mut disk = FakeDisk::new(512, sectors);
        disk.write_mbr(0, &[MbrEntry { kind: 0xee, first_sector: 1, sectors: 39 }]);
        assert!(matches!(scan(&mut disk), Err(ScanError::DamagedGpt { .. })));
    }
}

/// A number that is often near something: the start, the end, or an overflow.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..50, 950_u64..1050, (u64::MAX - 50)..=u64::MAX, 40_u64..960]
}

proptest! {
    /// Headers and entries with any numbers, but with right checksums, so that each number is
    /// judged and not the checksum alone.
    #[test]
    fn no_partition_leaves_the_disk_or_covers_another(
        ranges in proptest::collection::vec((number(), number()), 0..20),
        first_usable in number(), last_usable in number(), entries_sector in number(),
        entries in prop_oneof![Just(128_u32), 0_u32..3000, any::<u32>()],
        entry_bytes in prop_oneof![Just(128_u32), Just(256), Just(512), any::<u32>()],
        change_usable: bool, change_table: bool,
    ) {
        let ranges: Vec<_> = ranges.into_iter().map(|(first, last)| entry(first, last, "x")).collect();
        let mut disk = disk(512, &ranges);
        disk.change_gpt_header(1, |header| {
            if change_usable {
                (header.first_usable, header.last_usable) = (first_usable, last_usable);
            }
            if change_table {
                (header.entries_sector, header.entries) = (entries_sector, entries);
                header.entry_bytes = entry_bytes;
            }
        });
        if change_table {
            disk.repair_entries_checksum(1);
        }
        if let Ok(layout) = scan(&mut disk) {
            assert_sound(&layout, 1000);
        }
    }

    /// Any sectors at all, some of them unreadable.
    #[test]
    fn garbage_never_panics(
        patches in proptest::collection::vec((0_u64..1000, 0_usize..500, any::<[u8; 12]>()), 0..30),
        broken in proptest::collection::vec(0_u64..1000, 0..3),
        start_from_gpt: bool,
    ) {
        let mut disk = if start_from_gpt { disk(512, &two()) } else { FakeDisk::new(512, 1000) };
        for (sector, offset, bytes) in patches {
            // A good part of the damage where it matters.
            disk.write(if sector % 2 == 0 { sector % 5 } else { sector }, offset, &bytes);
        }
        disk.write(0, 510, &[0x55, 0xaa]);
        for sector in broken {
            disk.break_sector(sector);
        }
        if let Ok(layout) = scan(&mut disk) {
            assert_sound(&layout, 1000);
        }
    }
}

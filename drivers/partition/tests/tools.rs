//! Tables that other people's tools wrote: the fakes of this crate could share its mistakes.

use partition::fake::FakeDisk;
use partition::{GptCopy, Layout, Table, scan};

fn disk(rows: &str) -> FakeDisk {
    let mut bytes = vec![0; 16 << 20];
    for row in rows.lines().filter(|row| !row.starts_with('#')) {
        let (offset, values) = row.split_once(' ').expect("an offset and bytes");
        let offset = usize::from_str_radix(offset, 16).expect("an offset");
        for (place, value) in values.as_bytes().chunks(2).enumerate() {
            let value = std::str::from_utf8(value).expect("hexadecimal digits");
            bytes[offset + place] = u8::from_str_radix(value, 16).expect("a byte");
        }
    }
    FakeDisk::from_bytes(512, bytes)
}

fn describe(layout: &Layout) -> Vec<String> {
    let describe = |partition: &partition::Partition| {
        let (number, kind, name) = (partition.number, partition.kind, &partition.name);
        format!(
            "{number}: {} + {}, {kind}, {name:?}",
            partition.extent.first_sector(),
            partition.extent.sectors()
        )
    };
    layout.partitions.iter().map(describe).collect()
}

#[test]
fn a_gpt_by_sgdisk() {
    let expected = [
        "1: 2048 + 8192, EFI system, \"EFI system\"",
        "2: 10240 + 12288, Linux file system, \"root\"",
        "3: 22528 + 10207, Linux swap, \"swap\"",
    ];
    let mut disk = disk(include_str!("sgdisk.hex"));
    let layout = scan(&mut disk).unwrap();
    assert_eq!(layout.table, Table::Gpt(GptCopy::Primary));
    assert_eq!(describe(&layout), expected);
    assert_eq!(layout.refused, []);

    disk.flip(1, 20, 1);
    let layout = scan(&mut disk).unwrap();
    assert!(matches!(layout.table, Table::Gpt(GptCopy::Backup { .. })));
    assert_eq!(describe(&layout), expected);
}

#[test]
fn an_mbr_by_sfdisk() {
    let layout = scan(&mut disk(include_str!("sfdisk.hex"))).unwrap();
    assert_eq!(layout.table, Table::Mbr);
    let expected = [
        "1: 2048 + 4096, type 0x83, \"\"",
        "5: 10240 + 2048, type 0x82, \"\"",
        "6: 14336 + 4096, type 0x83, \"\"",
    ];
    assert_eq!(describe(&layout), expected);
    assert_eq!(layout.refused, []);
}
